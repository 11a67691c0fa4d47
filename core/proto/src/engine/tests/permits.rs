//! Semaphores: several owners at a time, each with its number of permits.

use super::*;
use crate::tuning;
use crate::wire::Permits;

const SEMAPHORE: Terms = Terms {
    kind: Kind::Semaphore,
    reentrant: false,
    permits: 1,
    special: Special {
        limit: 5,
        ..Special::NONE
    },
    ..WATCHED
};

fn wanting(permits: u16) -> Terms {
    Terms {
        permits,
        ..SEMAPHORE
    }
}

/// The owner of an acquire, the permits that it wants, and the limit that it sets.
fn asked(sent: &Sent) -> (OwnerId, u16, u32) {
    match &sent.op {
        Op::Acquire(Acquire {
            owner,
            form,
            payload,
            ..
        }) => (*owner, form.permits, payload.limit()),
        other => panic!("not an acquire: {other:?}"),
    }
}

/// The owner of a release, and the permits that it gives back.
fn given_back(sent: &Sent) -> (OwnerId, u16) {
    match &sent.op {
        Op::Release(Release {
            owner,
            form,
            remaining: 0,
            ..
        }) => (*owner, form.permits),
        other => panic!("not a release: {other:?}"),
    }
}

impl Rig {
    fn want(&mut self, permits: u16) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, wanting(permits))
    }

    fn try_permit(&mut self) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, Some(ms(0)), SEMAPHORE)
    }

    fn permits(&mut self, permits: u16) -> Grant {
        self.hold_with("n", OwnerKey::Once, wanting(permits))
    }

    /// The head of the queue asks, is refused, and waits for a message.
    fn parked(&mut self, permits: u16) -> RequestId {
        let id = self.want(permits);
        let sent = self.sent();
        self.busy(&sent, secs(9));
        self.input(Input::Subscribed("n".into()));
        let sent = self.sent();
        self.busy(&sent, secs(9));
        id
    }
}

#[test]
fn holders_do_not_keep_each_other_out() {
    let mut rig = Rig::new();
    let two = rig.permits(2);
    let three = rig.want(3);
    let sent = rig.sent();
    assert_eq!(asked(&sent).1, 3);
    assert_eq!(asked(&sent).2, 5);
    assert_ne!(asked(&sent).0, two.owner());
    rig.grant(&sent);
    let three = rig.granted(three);
    assert!(rig.is_held(&two) && rig.is_held(&three));
    rig.free(&two);
    assert!(rig.is_held(&three));
    rig.free(&three);
    rig.nothing_left();
}

/// A level whose time is over outlives the release of the last one with time. The waiter looked at its next
/// recheck.
#[test]
fn a_release_that_leaves_a_lost_level_behind_wakes_the_next_one() {
    let mut rig = Rig::new();
    let fixed = Terms {
        lease: Lease::Fixed(secs(1)),
        ..wanting(2)
    };
    let outer = rig.hold_with("n", OwnerKey::Once, fixed);
    let inner = rig.hold_with("n", OwnerKey::Hold(outer.level), wanting(2));
    let waiter = rig.parked(4);
    rig.pass(secs(2));
    rig.nothing_sent();
    let id = rig.release(&inner);
    let sent = rig.sent();
    assert_eq!(given_back(&sent).1, 2);
    rig.reply(&sent, Reply::Released(1));
    rig.released(id);
    assert_eq!(rig.lost, [(outer.owner(), LostReason::Expired)]);
    let next = rig.all_sent();
    let next = next.iter().find(|sent| matches!(sent.op, Op::Acquire(_)));
    rig.grant(next.expect("it asks"));
    rig.granted(waiter);
}

#[test]
fn tries_go_beside_each_other() {
    let mut rig = Rig::new();
    let ids = [rig.try_permit(), rig.try_permit(), rig.try_permit()];
    let sent = rig.all_sent();
    assert_eq!(sent.len(), 3, "{sent:?}");
    rig.busy(&sent[1], secs(9));
    rig.grant(&sent[2]);
    rig.grant(&sent[0]);
    assert_eq!(rig.failed(ids[1]), ErrorKind::Timeout);
    let last = rig.granted(ids[2]);
    let first = rig.granted(ids[0]);
    rig.free(&first);
    rig.free(&last);
    rig.nothing_left();
}

#[test]
fn a_try_does_not_overtake_a_waiter_that_was_refused() {
    let mut rig = Rig::new();
    let waits = rig.parked(3);
    let tried = rig.try_permit();
    rig.nothing_sent();
    assert_eq!(rig.failed(tried), ErrorKind::Timeout);
    assert!(rig.pending(waits));
}

#[test]
fn callers_come_in_their_order_whatever_they_want() {
    let mut rig = Rig::new();
    let many = rig.parked(5);
    let behind = rig.want(1);
    rig.nothing_sent();
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    assert_eq!(asked(&sent).1, 5, "the one that asked first");
    rig.busy(&sent, secs(9));
    rig.nothing_sent();
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(many);
    let sent = rig.sent();
    assert_eq!(asked(&sent).1, 1);
    rig.grant(&sent);
    rig.granted(behind);
    rig.nothing_sent();
}

#[test]
fn a_key_has_permits_of_one_acquisition() {
    let mut rig = Rig::new();
    let held = rig.hold_with("n", KEY, SEMAPHORE);
    let again = rig.acquire_with("n", KEY, None, SEMAPHORE);
    rig.nothing_sent();
    assert_eq!(rig.failed(again), ErrorKind::InvalidArgument);
    // It is free to have a lock of this client, or permits of another semaphore.
    let other = rig.hold_with("m", KEY, SEMAPHORE);
    let by_key = |name: &str| {
        Request::Release(Target::Key {
            name: name.into(),
            key: KEY,
            kind: Kind::Semaphore,
        })
    };
    for (name, grant) in [("n", held), ("m", other)] {
        rig.input(grant.detached());
        let id = rig.request(by_key(name));
        let sent = rig.sent();
        assert_eq!(given_back(&sent), (grant.owner(), 1));
        rig.reply(&sent, Reply::Released(0));
        rig.released(id);
    }
    let waits = rig.acquire_with("n", KEY, None, SEMAPHORE);
    let sent = rig.sent();
    let again = rig.acquire_with("n", KEY, None, wanting(2));
    assert_eq!(rig.failed(again), ErrorKind::InvalidArgument);
    rig.grant(&sent);
    let held = rig.granted(waits);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_level_more_of_a_hold_takes_no_permit_more() {
    let mut rig = Rig::new();
    let outer = rig.permits(2);
    let inner = rig.hold_with("n", OwnerKey::Hold(outer.level), wanting(2));
    assert_eq!((inner.owner(), inner.cell.count()), (outer.owner(), 2));
    let id = rig.release(&inner);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 1);
    rig.reply(&sent, Reply::Kept);
    rig.released(id);
    rig.free(&outer);
    rig.nothing_left();
}

#[test]
fn an_own_release_wakes_the_waiter() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = rig.parked(1);
    rig.pass(RUN);
    // No message comes of it.
    rig.free(&held);
    let sent = rig.sent();
    rig.grant(&sent);
    let next = rig.granted(waits);
    rig.free(&next);
    rig.nothing_left();
}

#[test]
fn permits_pass_on_to_the_next_callers_without_a_call() {
    let mut rig = Rig::new();
    let held = [rig.permits(1), rig.permits(1)];
    let waits = [rig.parked(1), rig.want(1), rig.want(1), rig.want(1)];
    let deadline = held[0].cell.deadline();
    rig.pass(ms(20));
    let releases = [rig.release(&held[0]), rig.release(&held[1])];
    let next = [rig.granted(waits[0]), rig.granted(waits[1])];
    for (at, next) in next.iter().enumerate() {
        rig.released(releases[at]);
        assert_eq!(next.owner(), held[at].owner());
        assert!(rig.is_held(next) && !rig.is_held(&held[at]));
        assert_eq!((next.cell.count(), held[at].cell.count()), (1, 0));
    }
    // The lease goes on: nobody asked the server for more.
    assert_eq!(next[0].cell.deadline(), deadline);
    rig.nothing_sent();
    assert!(rig.pending(waits[2]) && rig.pending(waits[3]));
}

#[test]
fn permits_that_were_passed_on_are_renewed_and_given_back_once() {
    let mut rig = Rig::new();
    let held = rig.permits(2);
    let waits = rig.parked(2);
    rig.pass(ms(20));
    let release = rig.release(&held);
    let next = rig.granted(waits);
    rig.released(release);
    let again = rig.release(&held);
    assert_eq!(rig.failed(again), ErrorKind::NotOwner);
    rig.input(Input::Dropped {
        owner: held.owner(),
        level: held.level,
    });
    rig.nothing_sent();
    rig.pass(LEASE / 3);
    let renewal = rig.sent();
    assert_eq!(renewal.question(), (held.owner(), LEASE));
    rig.keep(&renewal);
    let id = rig.release(&next);
    let back = rig.sent();
    assert_eq!(given_back(&back), (held.owner(), 2));
    rig.reply(&back, Reply::Released(0));
    rig.released(id);
    rig.nothing_sent();
}

#[test]
fn a_renewal_in_flight_counts_for_the_next_caller() {
    for answer in [RenewReply::Kept, RenewReply::Gone(LostReason::Deleted)] {
        let mut rig = Rig::new();
        let held = rig.permits(1);
        let deadline = held.cell.deadline();
        rig.pass(ms(20));
        // A new connection: every hold is renewed at once.
        rig.input(Input::Up(0));
        let renewal = rig.sent();
        let waits = rig.want(1);
        let asks = rig.sent();
        rig.busy(&asks, secs(9));
        let release = rig.release(&held);
        let next = rig.granted(waits);
        rig.released(release);
        rig.reply(&renewal, Reply::Renewed(vec![answer.clone()]));
        if answer == RenewReply::Kept {
            assert_eq!(next.cell.deadline(), deadline.after(ms(20)));
        } else {
            assert_eq!(rig.lost, [(next.owner(), LostReason::Deleted)]);
        }
    }
}

#[test]
fn a_loss_is_told_to_the_one_that_has_the_permits() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = rig.parked(1);
    let release = rig.release(&held);
    let next = rig.granted(waits);
    rig.released(release);
    rig.pass(LEASE / 3);
    let renewal = rig.sent();
    rig.reply(
        &renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(next.owner(), LostReason::Deleted)]);
    assert!(!rig.is_held(&next) && held.cell.told_lost().is_none());
}

#[test]
fn permits_are_not_passed_on_where_that_would_change_something() {
    let giving = |held: Terms, wanted: Terms, pause: Duration| {
        let mut rig = Rig::new();
        let held = rig.hold_with("n", OwnerKey::Once, held);
        let waits = rig.acquire_with("n", OwnerKey::Once, None, wanted);
        let sent = rig.sent();
        rig.busy(&sent, secs(9));
        rig.input(Input::Subscribed("n".into()));
        let sent = rig.sent();
        rig.busy(&sent, secs(9));
        rig.pass(pause);
        rig.release(&held);
        match rig.all_sent().as_slice() {
            [] => rig.granted(waits).owner() != held.owner(),
            sent => {
                let gives = |sent: &Sent| matches!(sent.op, Op::Release(_));
                sent.iter().any(gives) && rig.pending(waits)
            }
        }
    };
    let watched = |lease| Terms {
        lease: Lease::Watchdog(lease),
        ..SEMAPHORE
    };
    let fixed = |lease| Terms {
        permits: 1,
        kind: Kind::Semaphore,
        ..fixed(lease)
    };
    assert!(!giving(SEMAPHORE, SEMAPHORE, RUN - ms(1)));
    assert!(giving(SEMAPHORE, SEMAPHORE, RUN));
    assert!(!giving(watched(ms(150)), watched(ms(150)), ms(49)));
    assert!(giving(watched(ms(150)), watched(ms(150)), ms(50)));
    assert!(giving(watched(secs(9)), watched(secs(5)), ms(1)));
    assert!(giving(watched(secs(5)), watched(secs(9)), ms(1)));
    assert!(giving(wanting(2), SEMAPHORE, ms(1)));
    assert!(giving(SEMAPHORE, wanting(2), ms(1)));
    assert!(giving(fixed(secs(9)), fixed(secs(5)), ms(1)));
    // A fixed lease begins anew for each caller.
    assert!(!giving(fixed(secs(9)), fixed(secs(9)), ms(1)));
    assert!(giving(
        fixed(secs(9)),
        fixed(secs(9)),
        tuning::HANDOVER_FRESH
    ));
}

#[test]
fn permits_are_passed_on_behind_a_head_that_asks() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let (head, second, third) = (rig.want(1), rig.want(1), rig.want(2));
    let asks = rig.sent();
    let release = rig.release(&held);
    let second = rig.granted(second);
    rig.released(release);
    // The third wants two: these permits go back, and then the head asks once more.
    let last = rig.release(&second);
    let back = rig.sent();
    assert_eq!(given_back(&back), (held.owner(), 1));
    rig.reply(&back, Reply::Released(0));
    rig.released(last);
    rig.grant(&asks);
    let head = rig.granted(head);
    assert!(rig.is_held(&head) && rig.pending(third));
}

#[test]
fn nobody_overtakes_a_head_that_asks_for_more() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let (head, second) = (rig.want(2), rig.want(1));
    let asks = rig.sent();
    rig.release(&held);
    let back = rig.sent();
    assert_eq!(given_back(&back), (held.owner(), 1));
    rig.reply(&back, Reply::Released(0));
    rig.grant(&asks);
    rig.granted(head);
    assert!(rig.pending(second));
}

/// A permit went from its holder to the head, which was parked. The waiter behind it took over the
/// parking.
fn passed_on() -> (Rig, RequestId) {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = [rig.parked(1), rig.want(1)];
    rig.release(&held);
    rig.granted(waits[0]);
    rig.nothing_sent();
    (rig, waits[1])
}

#[test]
fn a_head_that_wants_another_number_asks_for_itself() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = [rig.parked(1), rig.want(2)];
    let release = rig.release(&held);
    rig.granted(waits[0]);
    rig.released(release);
    let asks = rig.sent();
    assert_eq!(asked(&asks).1, 2);
}

/// The permits of this hold go back to the server, and another client hears of it.
fn given_to_others(rig: &mut Rig, held: &Grant, echo_first: bool) {
    rig.release(held);
    let back = rig.sent();
    assert_eq!(given_back(&back).0, held.owner());
    if echo_first {
        rig.input(Input::Message("n".into()));
    }
    rig.reply(&back, Reply::Released(2));
    if !echo_first {
        rig.nothing_sent();
        rig.input(Input::Message("n".into()));
    }
}

#[test]
fn the_message_of_an_own_release_does_not_end_the_turn_of_others() {
    for echo_first in [false, true] {
        let mut rig = Rig::new();
        let mut held = rig.permits(1);
        let first = rig.parked(1);
        let waits: Vec<_> = (0..HANDOVERS).map(|_| rig.want(1)).collect();
        for id in [first].iter().chain(&waits[..HANDOVERS - 1]) {
            rig.release(&held);
            held = rig.granted(*id);
        }
        given_to_others(&mut rig, &held, echo_first);
        rig.nothing_sent();
        // Another client took a permit and gave it back. Now it is our turn.
        rig.input(Input::Message("n".into()));
        rig.sent();
    }
}

#[test]
fn permits_that_are_passed_on_leave_others_their_turn() {
    let mut rig = Rig::new();
    let old = rig.permits(1);
    rig.pass(RUN);
    let fresh = [rig.permits(1), rig.permits(1)];
    let waits = [rig.parked(1), rig.want(1), rig.want(1)];
    rig.release(&fresh[0]);
    rig.granted(waits[0]);
    given_to_others(&mut rig, &old, true);
    rig.nothing_sent();
    rig.release(&fresh[1]);
    rig.granted(waits[1]);
    let turn = &rig.engine.names.queues[&Name::from("n")].turn;
    assert!(turn.of_others(rig.now).is_some() && turn.needless <= rig.now);
}

/// A streak that ends because its time is over leaves others as long a turn as one that ends by number.
#[test]
fn permits_that_were_passed_on_for_long_leave_others_a_long_turn() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = [rig.parked(1), rig.want(1)];
    rig.pass(ms(2));
    rig.release(&held);
    let held = rig.granted(waits[0]);
    // The server confirmed the permit a run ago. The first hand-over was later.
    rig.pass(RUN - ms(1));
    given_to_others(&mut rig, &held, true);
    rig.pass(tuning::TURN * 5);
    rig.nothing_sent();
    assert!(rig.pending(waits[1]));
}

#[test]
fn a_caller_behind_a_parking_that_was_taken_over_runs_out_of_time() {
    let (mut rig, _) = passed_on();
    rig.pass(ms(1));
    let late = rig.acquire_with("n", OwnerKey::Once, Some(secs(2)), SEMAPHORE);
    rig.pass(secs(2));
    assert_eq!(rig.failed(late), ErrorKind::Timeout);
}

#[test]
fn permits_that_are_passed_on_are_no_answer_to_a_head_without_one() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let (_head, second) = (rig.want(1), rig.want(1));
    let third = rig.acquire_with("n", OwnerKey::Once, Some(ms(1500)), SEMAPHORE);
    rig.sent();
    rig.release(&held);
    rig.granted(second);
    rig.pass(ms(1500));
    assert_eq!(rig.failed(third), ErrorKind::Unavailable);
}

#[test]
fn a_message_wakes_the_head_that_took_over_the_parking() {
    let (mut rig, next) = passed_on();
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(next);
}

#[test]
fn a_parking_that_was_taken_over_ends_in_time() {
    let (mut rig, _) = passed_on();
    rig.pass(secs(9) + tuning::EXPIRY_SLACK);
    let asks = rig.all_sent();
    assert!(
        asks.iter().any(|sent| matches!(sent.op, Op::Acquire(_))),
        "{asks:?}"
    );
}

#[test]
fn a_release_while_the_head_asks_makes_it_ask_again() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let waits = rig.parked(1);
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    // The server runs the release after the try, and answers it first.
    rig.free(&held);
    rig.nothing_sent();
    rig.busy(&sent, secs(9));
    let again = rig.sent();
    assert_eq!(asked(&again).1, 1);
    rig.grant(&again);
    rig.granted(waits);
}

#[test]
fn permits_that_are_cleaned_up_wake_the_waiter() {
    let mut rig = Rig::new();
    let gone = rig.want(2);
    let sent = rig.sent();
    rig.cancel(gone);
    assert_eq!(rig.failed(gone), ErrorKind::Cancelled);
    let waits = rig.want(1);
    rig.nothing_sent();
    rig.grant(&sent);
    let sent = rig.all_sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    let (cleanup, tried): (Vec<_>, Vec<_>) = sent
        .into_iter()
        .partition(|sent| matches!(sent.op, Op::Release(_)));
    assert_eq!(given_back(&cleanup[0]).1, 2, "all that it wanted");
    rig.busy(&tried[0], secs(9));
    rig.reply(&cleanup[0], Reply::Released(0));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(waits);
}

#[test]
fn an_acquire_without_an_answer_is_asked_again_as_the_same_owner() {
    let mut rig = Rig::new();
    let id = rig.want(3);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.nothing_sent();
    rig.pass(COPY);
    let again = rig.sent();
    assert_eq!(asked(&again), asked(&sent));
    rig.grant(&again);
    let three = rig.granted(id);
    rig.free(&three);
    rig.nothing_left();
}

#[test]
fn a_try_without_an_answer_gives_all_permits_back() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), wanting(3));
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let cleanup = rig.sent();
    assert_eq!(given_back(&cleanup), (asked(&sent).0, 3));
    rig.reply(&cleanup, Reply::Gone(LostReason::Stolen));
    rig.pass(COPY);
    let cleanup = rig.sent();
    assert_eq!(
        given_back(&cleanup),
        (asked(&sent).0, 3),
        "the copy is dead"
    );
    rig.reply(&cleanup, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn permits_of_many_semaphores_are_renewed_together() {
    let mut rig = Rig::new();
    let n = rig.permits(3);
    let m = rig.hold_with("m", OwnerKey::Once, SEMAPHORE);
    rig.hold("lock");
    rig.pass(secs(10));
    let sent = rig.all_sent();
    let renewed = |sent: &Sent| match &sent.op {
        Op::Renew { holds } => holds
            .iter()
            .map(|hold| (hold.owner, hold.form.permits))
            .collect::<Vec<_>>(),
        other => panic!("not a renewal: {other:?}"),
    };
    assert_eq!(sent.len(), 2, "a lock is renewed by another script");
    let permits = sent.iter().map(renewed).find(|holds| holds.len() == 2);
    let mut permits = permits.expect("both semaphores");
    permits.sort_unstable();
    let mut expected = vec![(n.owner(), 3), (m.owner(), 1)];
    expected.sort_unstable();
    assert_eq!(permits, expected);
    for sent in &sent {
        if renewed(sent).len() == 2 {
            let gone = RenewReply::Gone(LostReason::Stolen);
            rig.reply(sent, Reply::Renewed(vec![gone, RenewReply::Kept]));
        } else {
            rig.keep(sent);
        }
    }
    assert_eq!(rig.lost.len(), 1);
    let (owner, reason) = rig.lost[0];
    assert_eq!(reason, LostReason::Stolen);
    // The rest of them is given back.
    let cleanup = rig.sent();
    let lost = if owner == n.owner() {
        (owner, 3)
    } else {
        (owner, 1)
    };
    assert_eq!(given_back(&cleanup), lost);
}

#[test]
fn the_deadline_is_that_of_the_lease_without_the_margin() {
    let mut rig = Rig::new();
    let held = rig.permits(1);
    let end = rig.now.after(ms(29_698));
    assert_eq!(held.cell.deadline(), end);
}

#[test]
fn the_number_of_permits_is_read_and_set() {
    let mut rig = Rig::new();
    let permits = Permits {
        available: -1,
        limit: 2,
    };
    for limit in [None, Some(2)] {
        let id = rig.request(Request::Count {
            name: "n".into(),
            limit,
        });
        let sent = rig.sent();
        assert_eq!(
            sent.op,
            Op::Count {
                name: "n".into(),
                limit
            }
        );
        rig.reply(&sent, Reply::Counted(permits));
        assert!(matches!(rig.done(id), Done::Counted(told) if told == permits));
    }
    rig.nothing_left();
}

// ---- many callers and many free permits ----

const FAIR_SEMAPHORE: Terms = Terms {
    kind: Kind::FairSemaphore,
    ..SEMAPHORE
};
const READER: Terms = Terms {
    kind: Kind::Read,
    ..WATCHED
};

/// A server with so many free permits. It answers all calls in flight at once, one round trip after the other.
struct Permitting {
    free: u16,
    /// How many calls each round trip had.
    calls: Vec<usize>,
}

impl Permitting {
    fn new(free: u16) -> Permitting {
        let calls = Vec::new();
        Permitting { free, calls }
    }

    fn answer(&mut self, rig: &mut Rig, sent: &Sent) {
        let Op::Acquire(op) = &sent.op else {
            panic!("not an acquire: {sent:?}");
        };
        match self.free.checked_sub(op.form.permits) {
            Some(free) => {
                self.free = free;
                rig.grant(sent);
            }
            None => rig.busy(sent, secs(9)),
        }
    }

    fn round_trip(&mut self, rig: &mut Rig, sent: &[Sent]) {
        self.calls.push(sent.len());
        rig.pass(ms(5));
        for sent in sent {
            self.answer(rig, sent);
        }
    }

    /// Until nothing is in flight.
    fn serve(&mut self, rig: &mut Rig) {
        loop {
            let sent = rig.all_sent();
            if sent.is_empty() {
                return;
            }
            self.round_trip(rig, &sent);
        }
    }
}

impl Rig {
    fn crowd_in(&mut self, many: usize, terms: Terms) -> Vec<RequestId> {
        let want = |_| self.acquire_with("n", OwnerKey::Once, None, terms);
        (0..many).map(want).collect()
    }

    fn served(&self, ids: &[RequestId]) -> usize {
        ids.iter().filter(|id| !self.pending(**id)).count()
    }
}

#[test]
fn fifty_callers_get_fifty_free_permits_in_a_few_round_trips() {
    for (terms, most) in [
        (SEMAPHORE, 7),
        (wanting(2), 7),
        (FAIR_SEMAPHORE, 2),
        (READER, 2),
    ] {
        let mut rig = Rig::new();
        let mut server = Permitting::new(50 * terms.permits);
        let ids = rig.crowd_in(50, terms);
        server.serve(&mut rig);
        assert_eq!(rig.served(&ids), 50, "{:?}", server.calls);
        let kind = terms.kind;
        assert!(server.calls.len() <= most, "{kind:?}: {:?}", server.calls);
        assert_eq!(server.calls.iter().sum::<usize>(), 50, "{kind:?}");
    }
}

#[test]
fn callers_whose_round_trip_was_in_vain_ask_one_by_one_again() {
    let mut rig = Rig::new();
    let mut server = Permitting::new(10);
    let ids = rig.crowd_in(100, SEMAPHORE);
    server.serve(&mut rig);
    assert_eq!(rig.served(&ids), 10);
    assert_eq!(rig.served(&ids[..10]), 10);
    let calls: usize = server.calls.iter().sum();
    assert!(
        calls <= 20,
        "no more in vain than granted: {:?}",
        server.calls
    );
    rig.input(Input::Subscribed("n".into()));
    server.serve(&mut rig);
    // Now and then one permit is given back by others.
    for served in 11..20 {
        let before: usize = server.calls.iter().sum();
        server.free += 1;
        rig.input(Input::Message("n".into()));
        server.serve(&mut rig);
        assert_eq!(rig.served(&ids[..served]), served);
        let after: usize = server.calls.iter().sum();
        assert_eq!(after - before, 2, "one for the permit, one in vain");
    }
    assert_eq!(rig.served(&ids), 19);
}

#[test]
fn a_wish_for_another_number_of_permits_is_not_passed() {
    let mut rig = Rig::new();
    let mut server = Permitting::new(12);
    let few = rig.crowd_in(8, SEMAPHORE);
    let many = rig.want(5);
    let last = rig.crowd_in(8, SEMAPHORE);
    server.serve(&mut rig);
    assert_eq!(rig.served(&few), 8);
    assert!(rig.pending(many));
    assert_eq!(rig.served(&last), 0);
    assert_eq!(server.free, 4);
}

/// Eight callers. The first three have got permits, and the next three ask at once.
fn three_at_once(rig: &mut Rig) -> (Vec<RequestId>, Vec<Sent>) {
    let ids = rig.crowd_in(8, SEMAPHORE);
    for _ in 0..2 {
        let sent = rig.sent();
        rig.grant(&sent);
    }
    let sent = rig.all_sent();
    assert_eq!(sent.len(), 2);
    rig.grant(&sent[0]);
    let mut at_once = rig.all_sent();
    at_once.insert(0, sent[1].clone());
    assert_eq!(at_once.len(), 3);
    assert_eq!(rig.served(&ids), 3);
    (ids[3..].to_vec(), at_once)
}

#[test]
fn permits_go_to_the_first_caller_whichever_answer_brings_them() {
    for granted in 0..3 {
        let mut rig = Rig::new();
        let (ids, calls) = three_at_once(&mut rig);
        rig.input(Input::Subscribed("n".into()));
        for (at, call) in calls.iter().enumerate() {
            match at == granted {
                true => rig.grant(call),
                false => rig.busy(call, secs(9)),
            }
        }
        let first = rig.granted(ids[0]);
        let owner = asked(&calls[granted]).0;
        assert_eq!((first.owner(), rig.served(&ids[1..])), (owner, 0));
        Permitting::new(4).serve(&mut rig);
        rig.input(Input::Subscribed("n".into()));
        rig.input(Input::Message("n".into()));
        let mut server = Permitting::new(4);
        server.serve(&mut rig);
        assert_eq!(rig.served(&ids[1..]), 4, "{granted} {:?}", rig.engine);
    }
}

#[test]
fn permits_of_a_later_call_go_to_a_caller_whose_call_is_in_flight() {
    let mut rig = Rig::new();
    let (ids, calls) = three_at_once(&mut rig);
    rig.grant(&calls[2]);
    rig.grant(&calls[1]);
    let grants = [rig.granted(ids[0]), rig.granted(ids[1])];
    assert_eq!(grants[0].owner(), asked(&calls[2]).0);
    assert_eq!(grants[1].owner(), asked(&calls[1]).0);
    assert!(rig.pending(ids[2]));
    rig.grant(&calls[0]);
    assert_eq!(rig.granted(ids[2]).owner(), asked(&calls[0]).0);
}

#[test]
fn a_caller_that_gives_up_beside_others_gives_its_permit_back() {
    for given_up in 0..3 {
        let mut rig = Rig::new();
        let (ids, calls) = three_at_once(&mut rig);
        rig.cancel(ids[given_up]);
        assert_eq!(rig.failed(ids[given_up]), ErrorKind::Cancelled);
        for call in &calls {
            rig.grant(call);
        }
        let sent = rig.all_sent();
        let back = sent.iter().filter(|sent| matches!(sent.op, Op::Release(_)));
        assert_eq!(back.map(given_back).collect::<Vec<_>>().len(), 1);
        assert_eq!(rig.served(&ids[..3]), 2);
    }
}

#[test]
fn a_message_between_the_answers_makes_the_next_caller_ask_again() {
    let mut rig = Rig::new();
    // It waited before, so the channel is subscribed.
    let waited = rig.parked(1);
    let ids = rig.crowd_in(8, SEMAPHORE);
    rig.input(Input::Message("n".into()));
    for _ in 0..2 {
        let sent = rig.sent();
        rig.grant(&sent);
    }
    assert!(!rig.pending(waited));
    let calls = rig.all_sent();
    let ids = ids[1..].to_vec();
    assert_eq!(calls.len(), 2);
    rig.input(Input::Message("n".into()));
    rig.grant(&calls[0]);
    rig.all_sent();
    // Its call may have run before the release of which the message tells.
    rig.busy(&calls[1], secs(9));
    let again = rig.sent();
    rig.grant(&again);
    assert_eq!(rig.served(&ids[..2]), 2);
}

#[test]
fn calls_beside_each_other_without_an_answer_are_settled_each() {
    let mut rig = Rig::new();
    let (ids, calls) = three_at_once(&mut rig);
    let owners: Vec<OwnerId> = calls.iter().map(|call| asked(call).0).collect();
    for call in &calls {
        rig.outcome(call, CallOutcome::Unanswered);
    }
    let sent = rig.all_sent();
    let mut left: Vec<OwnerId> = sent.iter().map(|sent| given_back(sent).0).collect();
    left.sort_unstable();
    assert_eq!(left, owners[1..]);
    rig.pass(COPY);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, owners[0], "the head sends its copy again");
    assert_eq!(rig.served(&ids), 0);
}
