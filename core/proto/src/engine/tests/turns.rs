//! Fairness between clients: their turns, and the channel on which they publish releases.

use super::*;
use crate::tuning;

const TURN: Duration = Duration::from_micros(700);

fn message(rig: &mut Rig) {
    rig.input(Input::Message("n".into()));
}

/// A hold that was waited for. Its channel stays subscribed.
fn won_from_others(rig: &mut Rig) -> Grant {
    rig.engine.cx.config.linger = secs(1);
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id)
}

/// Releases the hold. The message reaches `heard` clients, including this one, which reads it after
/// the reply.
fn free_heard_by(rig: &mut Rig, grant: &Grant, heard: u32) {
    rig.release(grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(heard));
    message(rig);
}

/// How long `used_up` takes.
const USED: Duration = tuning::HANDOVER_FRESH.saturating_mul(2);

/// Hands the lock over to local waiters as often as allowed, then releases it, with one client
/// hearing of that. One local waiter is left.
fn used_up(rig: &mut Rig, grant: Grant) -> RequestId {
    used_up_heard_by(rig, grant, 1)
}

/// Like `used_up`, with a release message that reaches `heard` clients.
fn used_up_heard_by(rig: &mut Rig, mut grant: Grant, heard: u32) -> RequestId {
    let waiters = [(); HANDOVERS + 1].map(|()| rig.acquire("n"));
    for waiter in &waiters[..HANDOVERS] {
        rig.pass(tuning::HANDOVER_FRESH);
        rig.release(&grant);
        let sent = rig.sent();
        rig.pass_on(&sent);
        grant = rig.granted(*waiter);
    }
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(heard));
    waiters[HANDOVERS]
}

/// One other client hears of this release and gets the time of one turn.
fn others_are_first_for_a_turn(rig: &mut Rig, grant: &Grant) {
    free_heard_by(rig, grant, 2);
    rig.acquire("n");
    rig.nothing_sent();
    rig.pass(TURN);
    rig.sent().acquire();
}

#[test]
fn a_channel_stays_subscribed_for_a_while() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    rig.pass(ms(600));
    free_heard_by(&mut rig, &grant, 1);
    // The next waiter need not subscribe, and hears of a release at once.
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.subscribed, [Name::from("n")]);
    rig.pass(ms(600));
    rig.nothing_sent();
    message(&mut rig);
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(id);
    free_heard_by(&mut rig, &grant, 1);
    rig.pass(ms(999));
    assert_eq!(rig.subscribed, [Name::from("n")]);
    rig.pass(ms(1));
    rig.nothing_left();
}

#[test]
fn a_release_during_the_first_try_on_a_channel_that_stayed_is_not_missed() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    free_heard_by(&mut rig, &grant, 1);
    rig.acquire("n");
    let sent = rig.sent();
    message(&mut rig);
    rig.busy(&sent, LEASE);
    rig.sent().acquire();
}

#[test]
fn the_message_of_its_own_release_wakes_nobody() {
    let cases = [Kind::Reentrant, Kind::Write].map(|kind| [(kind, true), (kind, false)]);
    for (kind, early) in cases.into_iter().flatten() {
        let mut rig = Rig::new();
        rig.engine.cx.config.linger = secs(1);
        let terms = Terms { kind, ..WATCHED };
        let asks = |rig: &mut Rig| rig.acquire_with("n", OwnerKey::Once, None, terms);
        let id = asks(&mut rig);
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        rig.input(Input::Subscribed("n".into()));
        let sent = rig.sent();
        rig.grant(&sent);
        let grant = rig.granted(id);
        rig.release(&grant);
        let sent = rig.sent();
        if early {
            message(&mut rig);
        }
        rig.reply(&sent, Reply::Released(1));
        asks(&mut rig);
        let sent = rig.sent();
        if !early {
            message(&mut rig);
        }
        rig.busy(&sent, LEASE);
        rig.nothing_sent();
        message(&mut rig);
        rig.sent().acquire();
    }
}

#[test]
fn an_own_message_that_never_came_hides_no_other() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(1));
    rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.pass(ms(100));
    message(&mut rig);
    rig.sent().acquire();
}

/// An idle client may have left the message unread in the socket.
#[test]
fn an_own_message_that_is_read_late_costs_one_try() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(1));
    rig.pass(ms(500));
    rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    message(&mut rig);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.pass(RECHECK / 2);
    rig.nothing_sent();
    message(&mut rig);
    rig.sent().acquire();
}

#[test]
fn others_who_wait_are_first_after_a_hold_that_was_waited_for() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    free_heard_by(&mut rig, &grant, 4);
    let id = rig.acquire("n");
    // Each of the three other clients has a turn. This client waits for an unused turn no longer
    // than this.
    rig.nothing_sent();
    rig.pass(TURN * 3 - Duration::from_micros(1));
    rig.nothing_sent();
    message(&mut rig);
    rig.pass(TURN);
    message(&mut rig);
    rig.pass(TURN - Duration::from_micros(1));
    rig.nothing_sent();
    message(&mut rig);
    let sent = rig.sent();
    rig.grant(&sent);
    // No try was refused, and yet others had the lock in between: they are first again.
    let grant = rig.granted(id);
    others_are_first_for_a_turn(&mut rig, &grant);
}

#[test]
fn turns_that_nobody_takes_are_not_left_again_soon() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    free_heard_by(&mut rig, &grant, 100);
    let id = rig.acquire("n");
    rig.pass(TURN * 8);
    let sent = rig.sent();
    rig.grant(&sent);
    let mut grant = rig.granted(id);
    for _ in 0..3 {
        free_heard_by(&mut rig, &grant, 100);
        let id = rig.acquire("n");
        let sent = rig.sent();
        rig.grant(&sent);
        grant = rig.granted(id);
    }
}

#[test]
fn a_yielding_client_sleeps_through_releases() {
    let mut rig = Rig::new();
    let skipped = |rig: &Rig| {
        rig.engine
            .skipped(rig.now, false)
            .map(|(_, messages)| messages)
    };
    let grant = won_from_others(&mut rig);
    assert_eq!(skipped(&rig), None, "it holds something");
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(4));
    assert_eq!(skipped(&rig), None, "nobody waits");
    rig.acquire("n");
    // Four messages are expected: its own and one from each of the three others. Three of them may
    // stay unread.
    assert_eq!(skipped(&rig), Some(3));
    message(&mut rig);
    assert_eq!(skipped(&rig), Some(2));
    message(&mut rig);
    message(&mut rig);
    assert_eq!(skipped(&rig), Some(0));
    let held = rig.acquire("held");
    assert_eq!(skipped(&rig), None, "a call is under way");
    let sent = rig.sent();
    rig.grant(&sent);
    let held = rig.granted(held);
    assert_eq!(skipped(&rig), None, "something is held");
    rig.release(&held);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    assert_eq!(skipped(&rig), Some(0));
    let other = rig.acquire("other");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(skipped(&rig), None, "another lock is waited for");
    rig.input(Input::Cancel { id: other });
    assert_eq!(skipped(&rig), Some(0));
    rig.pass(TURN);
    rig.sent().acquire();
    assert_eq!(skipped(&rig), None, "it tries");
}

#[test]
fn a_late_message_of_another_turn_causes_no_try() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(4));
    rig.acquire("n");
    rig.sleep(TURN * 3);
    // One read delivers the invalidation of its own release, the message of that release, and the
    // messages of two of the three others.
    let message = || Input::Message("n".into());
    for input in [
        Input::Invalidated(Some(vec!["n".into()])),
        message(),
        message(),
        message(),
    ] {
        let mut out = Vec::new();
        rig.engine.handle(rig.now, input, &mut out);
        rig.look_at(out);
    }
    rig.wake();
    rig.nothing_sent();
    rig.pass(TURN);
    rig.sent().acquire();
}

#[test]
fn a_late_release_message_after_the_wait_causes_no_try() {
    let mut late = Rig::new();
    let id = late.acquire_with("n", OwnerKey::Once, Some(secs(1)), WATCHED);
    let sent = late.sent();
    late.busy(&sent, LEASE);
    late.input(Input::Subscribed("n".into()));
    let sent = late.sent();
    late.busy(&sent, LEASE);
    late.sleep(secs(1));
    message(&mut late);
    assert_eq!(late.failed(id), ErrorKind::Timeout);
    late.nothing_sent();
}

#[test]
fn a_turn_of_others_is_waited_for_without_a_call() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    rig.release(&grant);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(3));
    let id = rig.acquire_with("n", OwnerKey::Once, Some(TURN * 3), WATCHED);
    rig.nothing_sent();
    rig.input(Input::Cancel { id });
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    // Time that ends before the turn does is used for a try at once.
    rig.acquire_with("n", OwnerKey::Once, Some(TURN * 2), WATCHED);
    rig.sent().acquire();
}

#[test]
fn an_inline_release_needs_no_wake_up_for_its_own_message() {
    let mut rig = Rig::new();
    let skipped = |rig: &Rig| {
        rig.engine
            .skipped(rig.now, true)
            .map(|(_, messages)| messages)
    };
    let grant = won_from_others(&mut rig);
    assert_eq!(skipped(&rig), None, "it is not released");
    rig.release(&grant);
    assert_eq!(skipped(&rig), Some(1));
    assert_eq!(
        rig.engine.skipped(rig.now, false),
        None,
        "the answer comes where messages do"
    );
    rig.request(Request::Inspect {
        name: "other".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    assert_eq!(
        skipped(&rig),
        None,
        "the answer to another call is shorter than the message"
    );
    assert!(!rig.engine.is_at_rest());
}

#[test]
fn a_patient_client_hears_of_the_first_rival() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    used_up_heard_by(&mut rig, grant, 2);
    assert_eq!(rig.engine.skipped(rig.now, false), None);
    rig.nothing_sent();
}

#[test]
fn a_vain_try_lengthens_the_turns_of_others() {
    let longer = Duration::from_micros(350);
    let mut rig = Rig::new();
    let mut grant = won_from_others(&mut rig);
    // The other client takes its turn each time, and has not released the lock when the turn should
    // be over.
    for more in [0, 1, 2, 3, 4, 5, 6, 6, 6] {
        free_heard_by(&mut rig, &grant, 2);
        let id = rig.acquire("n");
        rig.pass(TURN + longer * more - Duration::from_micros(1));
        rig.nothing_sent();
        rig.pass(Duration::from_micros(1));
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        message(&mut rig);
        let sent = rig.sent();
        rig.grant(&sent);
        grant = rig.granted(id);
    }
    // One of two other clients takes its turn.
    free_heard_by(&mut rig, &grant, 3);
    let id = rig.acquire("n");
    message(&mut rig);
    rig.pass(TURN * 4);
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(id);
    others_are_first_for_a_turn(&mut rig, &grant);
}

#[test]
fn a_waiter_without_time_does_not_yield() {
    for wait in [ms(0), ms(1)] {
        let mut rig = Rig::new();
        let grant = won_from_others(&mut rig);
        free_heard_by(&mut rig, &grant, 4);
        rig.acquire_with("n", OwnerKey::Once, Some(wait), WATCHED);
        rig.sent().acquire();
    }
}

#[test]
fn others_are_first_when_a_client_has_handed_the_lock_over_long_enough() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    used_up(&mut rig, grant);
    rig.pass(USED - Duration::from_micros(1));
    rig.nothing_sent();
    rig.pass(Duration::from_micros(1));
    rig.sent().acquire();
}

/// Other clients may be too slow for their turn, on a busy machine or in a JVM. Without growing
/// patience they would get the lock only after all local waiters had been served.
#[test]
fn a_client_that_had_the_lock_for_long_is_more_patient_each_time_until_somebody_comes() {
    let mut rig = Rig::new();
    let mut grant = Some(rig.hold("n"));
    let mut turn = |longer: u32, taken: bool| {
        let last = used_up(&mut rig, grant.take().expect("held"));
        rig.pass((USED * longer).min(ms(20)) - Duration::from_micros(1));
        rig.nothing_sent();
        rig.pass(Duration::from_micros(1));
        let sent = rig.sent();
        if taken {
            rig.busy(&sent, LEASE);
            rig.input(Input::Subscribed("n".into()));
            let sent = rig.sent();
            rig.grant(&sent);
        } else {
            rig.grant(&sent);
        }
        grant = Some(rig.granted(last));
    };
    for longer in [1, 2, 4, 8, 100] {
        turn(longer, false);
    }
    turn(100, true);
    turn(1, false);
}

#[test]
fn alone_nobody_waits_for_a_turn() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    free_heard_by(&mut rig, &grant, 1);
    rig.acquire("n");
    rig.sent().acquire();
}

#[test]
fn closing_gives_up_channels_that_stayed() {
    let mut rig = Rig::new();
    let grant = won_from_others(&mut rig);
    free_heard_by(&mut rig, &grant, 1);
    rig.request(Request::Close { limit: secs(1) });
    assert!(rig.stopped && rig.subscribed.is_empty());
}
