//! Local hand-over: one call that releases the lock and acquires it for the client's next caller.

use super::*;
use crate::tuning;

/// A hold, and callers that wait for it.
fn queue<const N: usize>(rig: &mut Rig) -> (Grant, [RequestId; N]) {
    let grant = rig.hold("n");
    let waiters = [(); N].map(|()| rig.acquire("n"));
    rig.nothing_sent();
    (grant, waiters)
}

/// A hand-over in flight: the hold, its release, the waiter and the call.
fn on_the_way(rig: &mut Rig) -> (Grant, RequestId, RequestId, Sent) {
    let (grant, [waiter]) = queue(rig);
    let release = rig.release(&grant);
    let sent = rig.sent();
    (grant, release, waiter, sent)
}

#[test]
fn callers_of_one_client_take_turns_in_their_order_with_one_call_each() {
    let mut rig = Rig::new();
    let (first, waiters) = queue::<3>(&mut rig);
    let mut grant = first;
    for (n, waiter) in waiters.into_iter().enumerate() {
        rig.pass(tuning::HANDOVER_FRESH);
        let release = rig.release(&grant);
        let sent = rig.sent();
        let (from, to, lease) = sent.handover();
        assert_eq!((from, lease, sent.limit), (grant.owner(), LEASE, secs(1)));
        assert!(!rig.is_held(&grant) && rig.pending(release) && rig.pending(waiter));
        rig.pass_on(&sent);
        rig.released(release);
        grant = rig.granted(waiter);
        assert_eq!(
            (grant.owner(), grant.cell.count(), rig.is_held(&grant)),
            (to, 1, true)
        );
        assert!(waiters[n + 1..].iter().all(|later| rig.pending(*later)));
        rig.nothing_sent();
    }
    rig.free(&grant);
    assert_eq!(rig.counters.snapshot().calls, 5);
    rig.nothing_left();
}

#[test]
fn the_new_hold_has_its_own_terms_and_token() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let terms = Terms {
        fencing: Fencing::Expiring,
        ..fixed(secs(3))
    };
    let waiter = rig.acquire_with("n", KEY, None, terms);
    rig.release(&grant);
    let sent = rig.sent();
    assert_eq!((sent.handover().2, sent.limit), (secs(3), ms(300)));
    assert!(matches!(
        sent.op,
        Op::HandOver(HandOver {
            fencing: Fencing::Expiring,
            ..
        })
    ));
    rig.pass(ms(200));
    rig.reply(
        &sent,
        Reply::Acquired {
            ttl: secs(3),
            token: Some(42),
        },
    );
    let grant = rig.granted(waiter);
    assert_eq!(grant.cell.token(), Some(42));
    // The deadline counts from the moment of sending.
    rig.pass(ms(3000 - 200 - 32 - 1));
    assert!(rig.is_held(&grant));
    rig.pass(ms(1));
    assert!(!rig.is_held(&grant));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn others_get_a_chance_after_so_many() {
    let mut rig = Rig::new();
    let (mut grant, waiters) = queue::<5>(&mut rig);
    for waiter in &waiters[..HANDOVERS] {
        rig.pass(tuning::HANDOVER_FRESH);
        rig.release(&grant);
        let sent = rig.sent();
        rig.pass_on(&sent);
        grant = rig.granted(*waiter);
    }
    rig.free(&grant);
    // The count of hand-overs starts again when the lock is won again.
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(waiters[HANDOVERS]);
    rig.pass(tuning::HANDOVER_FRESH);
    rig.release(&grant);
    rig.sent().handover();
}

#[test]
fn others_get_a_chance_after_some_time() {
    let mut rig = Rig::new();
    let (mut grant, waiters) = queue::<3>(&mut rig);
    // The time counts from the first hand-over, not from the acquisition.
    rig.pass(secs(5));
    for waiter in &waiters[..2] {
        rig.release(&grant);
        let sent = rig.sent();
        rig.pass(RUN / 2);
        rig.pass_on(&sent);
        grant = rig.granted(*waiter);
    }
    rig.free(&grant);
}

#[test]
fn zero_turns_it_off() {
    for handovers in [(0, RUN), (HANDOVERS, ms(0))] {
        let mut rig = Rig::new();
        rig.engine.cx.config.handovers = handovers;
        let (grant, [_]) = queue(&mut rig);
        rig.free(&grant);
        rig.sent().acquire();
    }
}

#[test]
fn a_level_that_stays_is_not_handed_over() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    rig.acquire("n");
    rig.release(&inner);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 1);
    rig.reply(&sent, Reply::Kept);
    rig.release(&outer);
    rig.sent().handover();
}

#[test]
fn a_release_and_an_acquire_that_no_hand_over_can_express_go_apart() {
    let simple = Terms {
        kind: Kind::Simple,
        reentrant: false,
        ..WATCHED
    };
    let adaptive = Terms {
        kind: Kind::Adaptive,
        lease: Lease::Adaptive(LEASE),
        ..WATCHED
    };
    for (holds, waits) in [
        (
            WATCHED,
            Terms {
                replicas: 1,
                ..WATCHED
            },
        ),
        (adaptive, adaptive),
        (
            simple,
            Terms {
                kind: Kind::RedisPy,
                ..simple
            },
        ),
        (
            Terms {
                linger: true,
                ..WATCHED
            },
            WATCHED,
        ),
    ] {
        let mut rig = Rig::new();
        let grant = rig.hold_with("n", OwnerKey::Once, holds);
        let waiter = rig.acquire_with("n", OwnerKey::Once, None, waits);
        rig.free(&grant);
        let sent = rig.sent();
        rig.grant(&sent);
        rig.granted(waiter);
    }
}

#[test]
fn a_token_of_the_caller_goes_apart() {
    let mut rig = Rig::new();
    let token = || Some(Arc::from("t"));
    let ask = |token| Request::Acquire {
        name: "n".into(),
        key: OwnerKey::Once,
        wait: None,
        terms: WATCHED,
        token,
    };
    let first = rig.request(ask(token()));
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(first);
    let [second, third] = [token(), None].map(|token| rig.request(ask(token)));
    rig.free(&grant);
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(second);
    rig.free(&grant);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(third);
}

#[test]
fn a_hand_over_of_a_lost_hold_is_told_as_for_a_release() {
    for reply in [
        Reply::Gone(LostReason::Deleted),
        Reply::Stale,
        Reply::Foreign("a counter".into()),
    ] {
        let mut rig = Rig::new();
        let (grant, release, waiter, sent) = on_the_way(&mut rig);
        rig.reply(&sent, reply);
        let plain = rig.sent();
        assert_eq!(plain.release(), (grant.owner(), 0, Duration::ZERO));
        rig.reply(&plain, Reply::Gone(LostReason::Deleted));
        assert_eq!(rig.lost_by(release), LostReason::Deleted);
        // The waiter got nothing, so it can keep its owner.
        let next = rig
            .all_sent()
            .into_iter()
            .find(|sent| matches!(sent.op, Op::Acquire(_)))
            .unwrap();
        assert_eq!(next.acquire().0, sent.handover().1);
        rig.grant(&next);
        rig.granted(waiter);
    }
}

#[test]
fn without_an_answer_both_owners_are_settled() {
    let mut rig = Rig::new();
    let (grant, release, waiter, sent) = on_the_way(&mut rig);
    let (from, to, _) = sent.handover();
    rig.pass(secs(1));
    rig.outcome(&sent, CallOutcome::Unanswered);
    let calls = rig.all_sent();
    // The order matters: once the first owner is gone, no copy of the hand-over can create the
    // second.
    assert_eq!(
        calls
            .iter()
            .map(|sent| sent.release().0)
            .collect::<Vec<_>>(),
        [from, to]
    );
    assert_eq!(from, grant.owner());
    // The hand-over had been done.
    rig.reply(&calls[0], Reply::Gone(LostReason::Stolen));
    rig.released(release);
    let next = rig.sent();
    assert!(![from, to].contains(&next.acquire().0));
    rig.reply(&calls[1], Reply::Released(0));
    rig.grant(&next);
    let grant = rig.granted(waiter);
    // The copy is dead by now. Its possible effect is released once more.
    rig.pass(COPY);
    let last = rig.sent();
    assert_eq!(last.release().0, to);
    rig.reply(&last, Reply::Gone(LostReason::Stolen));
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_refusal_leaves_the_plain_way() {
    for passing in [true, false] {
        let mut rig = Rig::new();
        let (_, release, waiter, sent) = on_the_way(&mut rig);
        rig.outcome(&sent, refused(ErrorKind::Server, passing));
        let calls = rig.all_sent();
        // A script that was stopped halfway may have left the next owner behind.
        assert_eq!(calls.len(), if passing { 1 } else { 2 });
        assert_eq!(calls[0].release().0, sent.handover().0);
        rig.reply(&calls[0], Reply::Released(0));
        rig.released(release);
        let next = rig.sent();
        assert_eq!(next.acquire().0 == sent.handover().1, passing);
        rig.grant(&next);
        rig.granted(waiter);
    }
}

#[test]
fn a_lock_handed_to_a_gone_caller_goes_to_the_next() {
    let mut rig = Rig::new();
    let (grant, [gone, next]) = queue(&mut rig);
    let release = rig.release(&grant);
    let sent = rig.sent();
    rig.cancel(gone);
    assert_eq!(rig.failed(gone), ErrorKind::Cancelled);
    rig.nothing_sent();
    rig.pass_on(&sent);
    rig.released(release);
    let calls = rig.all_sent();
    assert_eq!(calls[0].release(), (sent.handover().1, 0, Duration::ZERO));
    rig.reply(&calls[0], Reply::Released(0));
    rig.grant(&calls[1]);
    let grant = rig.granted(next);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_caller_that_has_gone_leaves_nothing_of_a_hand_over_without_an_answer() {
    let mut rig = Rig::new();
    let (_, release, gone, sent) = on_the_way(&mut rig);
    rig.cancel(gone);
    rig.completed.clear();
    rig.pass(secs(1));
    rig.outcome(&sent, CallOutcome::Unanswered);
    let calls = rig.all_sent();
    rig.reply(&calls[0], Reply::Released(0));
    rig.released(release);
    rig.reply(&calls[1], Reply::Gone(LostReason::Deleted));
    rig.pass(COPY);
    let last = rig.sent();
    assert_eq!(last.release().0, sent.handover().1);
    rig.reply(&last, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn an_answer_that_comes_too_late_to_be_trusted_is_given_back() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let waiter = rig.acquire_with("n", OwnerKey::Once, None, watched(ms(200)));
    let release = rig.release(&grant);
    let sent = rig.sent();
    rig.sleep(ms(200));
    rig.pass_on(&sent);
    rig.released(release);
    let calls = rig.all_sent();
    assert_eq!(calls[0].release().0, sent.handover().1);
    assert_ne!(calls[1].acquire().0, sent.handover().1);
    rig.grant(&calls[1]);
    rig.granted(waiter);
}

#[test]
fn the_link_breaks_while_a_hand_over_is_on_its_way() {
    let mut rig = Rig::new();
    let (_, release, waiter, sent) = on_the_way(&mut rig);
    let (from, to, _) = sent.handover();
    rig.input(down());
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.nothing_sent();
    rig.input(Input::Up(0));
    let calls = rig.all_sent();
    assert_eq!(
        calls
            .iter()
            .map(|sent| sent.release().0)
            .collect::<Vec<_>>(),
        [from, to]
    );
    rig.reply(&calls[0], Reply::Released(0));
    rig.released(release);
    let next = rig.sent();
    rig.grant(&next);
    rig.granted(waiter);
}

#[test]
fn after_a_reconnect_the_owner_before_is_released_once_more() {
    let mut rig = Rig::new();
    let (_, _, waiter, sent) = on_the_way(&mut rig);
    rig.pass_on(&sent);
    rig.granted(waiter);
    rig.input(down());
    rig.input(Input::Up(0));
    // A new primary may have missed the hand-over.
    let calls = rig.all_sent();
    assert_eq!(calls[0].renewal()[0].0, sent.handover().1);
    assert_eq!(calls[1].release().0, sent.handover().0);
}

#[test]
fn the_hold_ends_while_its_hand_over_has_no_answer() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, fixed(ms(150)));
    let waiter = rig.acquire("n");
    rig.pass(ms(80));
    let release = rig.release(&grant);
    let sent = rig.sent();
    rig.pass(ms(70));
    assert_eq!(rig.failed(release), ErrorKind::Unavailable);
    rig.sent().release();
    rig.pass_on(&sent);
    rig.granted(waiter);
}

#[test]
fn closing_gives_back_what_is_handed_over() {
    let mut rig = Rig::new();
    let (_, release, waiter, sent) = on_the_way(&mut rig);
    let close = rig.request(Request::Close { limit: secs(5) });
    assert_eq!(rig.failed(waiter), ErrorKind::Closed);
    rig.pass_on(&sent);
    rig.released(release);
    assert!(rig.pending(close));
    let last = rig.sent();
    assert_eq!(last.release().0, sent.handover().1);
    rig.reply(&last, Reply::Released(0));
    assert!(matches!(rig.done(close), Done::Closed(names) if names.is_empty()));
    assert!(rig.stopped);
}
