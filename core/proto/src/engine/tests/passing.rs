//! Optimistic hand-over: the server confirmed the hold a moment ago, so the next local waiter gets
//! the lock before the server is asked.

use super::*;
use crate::tuning;

/// A hold that was won while these callers were already waiting.
fn queue<const N: usize>(rig: &mut Rig, terms: Terms) -> (Grant, [RequestId; N]) {
    let first = rig.acquire_with("n", OwnerKey::Once, None, terms);
    let waiters = [(); N].map(|()| rig.acquire_with("n", OwnerKey::Once, None, terms));
    let sent = rig.sent();
    rig.grant(&sent);
    (rig.granted(first), waiters)
}

/// The lock went from the first caller to the second, and the verification is in flight.
fn passed_on(rig: &mut Rig) -> (Grant, RequestId, Grant, Sent) {
    let (first, [second]) = queue(rig, WATCHED);
    let release = rig.release(&first);
    let second = rig.granted(second);
    let question = rig.sent();
    (first, release, second, question)
}

#[test]
fn the_next_caller_has_the_lock_before_the_server_is_asked() {
    let mut rig = Rig::new();
    let (first, release, second, question) = passed_on(&mut rig);
    assert_eq!(question.question(), (first.owner(), LEASE));
    assert!(!rig.is_held(&first) && first.cell.count() == 0);
    assert!(rig.is_held(&second) && second.cell.count() == 1);
    // The release completes only when the server has confirmed that the lock was there.
    assert!(rig.pending(release));
    rig.keep(&question);
    rig.released(release);
    rig.free(&second);
    assert_eq!(rig.counters.snapshot().calls, 3);
    assert_eq!(
        (
            rig.counters.snapshot().acquired,
            rig.counters.snapshot().released
        ),
        (2, 2)
    );
    rig.nothing_left();
}

#[test]
fn a_simple_lock_is_passed_on_behind_the_value_that_nobody_chose() {
    for lease in [WATCHED, fixed(LEASE)] {
        let mut rig = Rig::new();
        let (first, [second]) = queue(
            &mut rig,
            Terms {
                kind: Kind::Simple,
                reentrant: false,
                ..lease
            },
        );
        let release = rig.release(&first);
        let second = rig.granted(second);
        assert_eq!(
            (second.owner(), second.cell.form()),
            (first.owner(), first.cell.form())
        );
        let question = rig.sent();
        assert_eq!(question.question(), (first.owner(), LEASE));
        rig.keep(&question);
        rig.released(release);
        rig.free(&second);
        rig.nothing_left();
    }
}

#[test]
fn a_value_that_a_caller_chose_is_not_passed_on() {
    let mut rig = Rig::new();
    let with_token = |rig: &mut Rig| {
        rig.request(Request::Acquire {
            name: "n".into(),
            key: OwnerKey::Once,
            wait: None,
            terms: Terms {
                kind: Kind::Simple,
                reentrant: false,
                ..WATCHED
            },
            token: Some("t".into()),
        })
    };
    let (first, second) = (with_token(&mut rig), with_token(&mut rig));
    let sent = rig.sent();
    rig.grant(&sent);
    let first = rig.granted(first);
    rig.release(&first);
    assert!(rig.pending(second));
    assert_eq!(rig.sent().release().1, 0);
}

#[test]
fn one_question_is_for_all_who_passed_it_on_before_it() {
    let mut rig = Rig::new();
    let (first, waiters) = queue::<3>(&mut rig, WATCHED);
    let mut releases = vec![rig.release(&first)];
    let question = rig.sent();
    let second = rig.granted(waiters[0]);
    releases.push(rig.release(&second));
    let third = rig.granted(waiters[1]);
    releases.push(rig.release(&third));
    rig.nothing_sent();
    let fourth = rig.granted(waiters[2]);
    rig.keep(&question);
    rig.released(releases[0]);
    assert!(releases[1..].iter().all(|release| rig.pending(*release)));
    let question = rig.sent();
    rig.keep(&question);
    rig.released(releases[1]);
    rig.released(releases[2]);
    rig.free(&fourth);
    rig.nothing_left();
}

#[test]
fn the_release_that_frees_the_lock_answers_all_who_passed_it_on() {
    let mut rig = Rig::new();
    let (first, waiters) = queue::<3>(&mut rig, WATCHED);
    let mut releases = vec![rig.release(&first)];
    let question = rig.sent();
    let mut grant = first;
    for waiter in waiters {
        grant = rig.granted(waiter);
        releases.push(rig.release(&grant));
    }
    rig.keep(&question);
    let last = rig.sent();
    assert_eq!(last.release(), (grant.owner(), 0, Duration::ZERO));
    rig.reply(&last, Reply::Released(0));
    releases
        .into_iter()
        .for_each(|release| rig.released(release));
    rig.nothing_left();
}

#[test]
fn others_get_a_chance_after_so_many_that_were_passed_on() {
    let mut rig = Rig::new();
    let (mut grant, waiters) = queue::<5>(&mut rig, WATCHED);
    for waiter in &waiters[..HANDOVERS] {
        rig.release(&grant);
        grant = rig.granted(*waiter);
    }
    let question = rig.sent();
    let last = rig.release(&grant);
    rig.keep(&question);
    let free = rig.sent();
    assert_eq!(free.release().1, 0);
    rig.reply(&free, Reply::Released(0));
    rig.released(last);
    let sent = rig.sent();
    assert_ne!(sent.acquire().0, grant.owner());
}

#[test]
fn everybody_is_told_when_the_lock_was_not_there_to_be_passed_on() {
    for reason in [LostReason::Deleted, LostReason::Stolen] {
        let mut rig = Rig::new();
        let (first, waiters) = queue::<2>(&mut rig, WATCHED);
        let releases = [rig.release(&first), {
            let second = rig.granted(waiters[0]);
            rig.release(&second)
        }];
        let third = rig.granted(waiters[1]);
        let question = rig.sent();
        rig.reply(&question, Reply::Renewed(vec![RenewReply::Gone(reason)]));
        releases
            .into_iter()
            .for_each(|release| assert_eq!(rig.lost_by(release), reason));
        assert_eq!(rig.lost, [(third.owner(), reason)]);
        assert!(!rig.is_held(&third));
        // Only the last caller still had a level to give back.
        let unwound = rig.release(&third);
        assert_eq!(rig.lost_by(unwound), reason);
        for sent in rig.all_sent() {
            assert_eq!(sent.release().0, first.owner());
            rig.reply(&sent, Reply::Gone(reason));
        }
        rig.nothing_left();
    }
}

#[test]
fn a_renewal_that_finds_the_lock_gone_tells_who_passed_it_on() {
    let mut rig = Rig::new();
    let (_, release, second, question) = passed_on(&mut rig);
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    let renewal = rig.sent();
    rig.reply(
        &renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost_by(release), LostReason::Deleted);
    assert_eq!(rig.lost, [(second.owner(), LostReason::Deleted)]);
    rig.keep(&question);
    assert!(rig.completed.is_empty());
}

#[test]
fn the_server_is_asked_again_when_it_does_not_answer() {
    for outcome in [
        CallOutcome::Unanswered,
        CallOutcome::NotSent,
        refused(ErrorKind::Unavailable, true),
        CallOutcome::Answered(Reply::Renewed(vec![RenewReply::Failed])),
    ] {
        let mut rig = Rig::new();
        let (first, release, second, question) = passed_on(&mut rig);
        rig.outcome(&question, outcome);
        rig.pass(secs(1));
        assert!(rig.pending(release) && rig.is_held(&second));
        let question = rig.sent();
        assert_eq!(question.question().0, first.owner());
        rig.keep(&question);
        rig.released(release);
        rig.free(&second);
        rig.nothing_left();
    }
}

#[test]
fn the_server_is_asked_when_the_link_is_back() {
    let mut rig = Rig::new();
    let (_, release, second, question) = passed_on(&mut rig);
    rig.input(down());
    rig.outcome(&question, CallOutcome::NotSent);
    rig.nothing_sent();
    rig.input(Input::Up(0));
    for sent in rig.all_sent() {
        rig.keep(&sent);
    }
    rig.released(release);
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn a_server_that_refuses_says_so_to_who_passed_the_lock_on() {
    let mut rig = Rig::new();
    let (_, release, second, question) = passed_on(&mut rig);
    rig.outcome(&question, refused(ErrorKind::Denied, false));
    assert_eq!(rig.failed(release), ErrorKind::Denied);
    assert!(rig.is_held(&second));
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn without_the_server_nobody_is_told_that_it_was_released() {
    let mut rig = Rig::new();
    let (_, release, second, question) = passed_on(&mut rig);
    rig.input(down());
    rig.outcome(&question, CallOutcome::Unanswered);
    rig.pass(OUTAGE);
    assert_eq!(rig.failed(release), ErrorKind::Unavailable);
    assert!(rig.is_held(&second));
    rig.pass(LEASE);
    assert_eq!(rig.lost, [(second.owner(), LostReason::Unreachable)]);
}

#[test]
fn a_deadline_that_passes_says_nothing_of_who_passed_the_lock_on_before() {
    let mut rig = Rig::new();
    let (first, [second]) = queue(&mut rig, fixed(ms(300)));
    let release = rig.release(&first);
    let second = rig.granted(second);
    let question = rig.sent();
    rig.outcome(&question, CallOutcome::NotSent);
    rig.input(down());
    rig.pass(ms(300));
    assert_eq!(rig.failed(release), ErrorKind::Unavailable);
    assert_eq!(rig.lost, [(second.owner(), LostReason::Expired)]);
}

#[test]
fn the_next_caller_relies_on_what_the_server_has_said() {
    let mut rig = Rig::new();
    let begun = rig.now;
    let (first, [second]) = queue(&mut rig, fixed(secs(10)));
    let trusted = ms(10_000 - 102);
    rig.pass(ms(4));
    rig.release(&first);
    let second = rig.granted(second);
    assert_eq!(second.cell.deadline(), begun.after(trusted));
    let question = rig.sent();
    rig.pass(ms(4));
    rig.keep(&question);
    assert_eq!(second.cell.deadline(), begun.after(ms(4)).after(trusted));
    // The lease is fixed, so it is not renewed.
    rig.pass(secs(9));
    rig.nothing_sent();
    rig.pass(secs(1));
    assert_eq!(rig.lost, [(second.owner(), LostReason::Expired)]);
}

#[test]
fn the_watchdog_is_that_of_the_next_caller() {
    let mut rig = Rig::new();
    let first = rig.acquire_with("n", OwnerKey::Once, None, fixed(LEASE));
    let second = rig.acquire("n");
    let sent = rig.sent();
    rig.grant(&sent);
    let first = rig.granted(first);
    rig.nothing_sent();
    rig.release(&first);
    let second = rig.granted(second);
    let question = rig.sent();
    rig.keep(&question);
    rig.pass(LEASE / 3);
    assert_eq!(rig.sent().renewal(), [(second.owner(), LEASE)]);
}

#[test]
fn the_longest_time_counts_from_when_it_was_passed_on() {
    let mut rig = Rig::new();
    let terms = Terms {
        max_hold: Some(LEASE),
        ..WATCHED
    };
    let (first, [second]) = queue(&mut rig, terms);
    rig.pass(ms(3));
    let passed = rig.now;
    rig.release(&first);
    let second = rig.granted(second);
    let question = rig.sent();
    rig.keep(&question);
    rig.pass(LEASE / 2);
    for sent in rig.all_sent() {
        rig.keep(&sent);
    }
    assert_eq!(second.cell.deadline(), passed.after(timing::trusted(LEASE)));
}

#[test]
fn a_caller_that_passed_the_lock_on_cannot_touch_it() {
    let mut rig = Rig::new();
    let (first, release, second, question) = passed_on(&mut rig);
    let again = rig.release(&first);
    rig.keep(&question);
    rig.released(release);
    assert_eq!(rig.failed(again), ErrorKind::NotOwner);
    let entered = rig.acquire_with("n", OwnerKey::Hold(first.level), None, WATCHED);
    assert_eq!(rig.failed(entered), ErrorKind::NotOwner);
    rig.input(first.dropped());
    rig.input(first.abandoned());
    rig.input(first.detached());
    assert!(rig.is_held(&second) && second.cell.count() == 1);
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn a_key_goes_with_its_caller() {
    let mut rig = Rig::new();
    let keys = [OwnerKey::Thread(1), OwnerKey::Thread(2)];
    let [first, second] = keys.map(|key| rig.acquire_with("n", key, None, WATCHED));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(first);
    rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: keys[0],
        kind: Kind::Reentrant,
    }));
    assert_eq!(rig.ended.len(), 1);
    let question = rig.sent();
    rig.keep(&question);
    // The first caller waits like any other. The second one re-enters.
    let waits = rig.acquire_with("n", keys[0], None, WATCHED);
    rig.nothing_sent();
    let inner = rig.hold_with("n", keys[1], WATCHED);
    let outer = rig.granted(second);
    assert!(Arc::ptr_eq(&inner.cell, &outer.cell) && outer.cell.count() == 2);
    assert!(rig.pending(waits));
}

#[test]
fn waiters_with_the_key_of_the_next_caller_enter_with_it() {
    let mut rig = Rig::new();
    let first = rig.acquire("n");
    let [outer, inner] = [(); 2].map(|()| rig.acquire_with("n", KEY, None, WATCHED));
    let sent = rig.sent();
    rig.grant(&sent);
    let first = rig.granted(first);
    let release = rig.release(&first);
    rig.granted(outer);
    let question = rig.sent();
    rig.keep(&question);
    rig.released(release);
    let sent = rig.sent();
    assert_eq!((sent.acquire().0, sent.acquire().1), (first.owner(), 2));
    rig.grant(&sent);
    rig.granted(inner);
}

#[test]
fn a_release_that_nobody_waits_for_passes_the_lock_on_as_well() {
    let mut rig = Rig::new();
    let (first, [second]) = queue(&mut rig, WATCHED);
    rig.input(first.dropped());
    let second = rig.granted(second);
    let question = rig.sent();
    rig.keep(&question);
    assert_eq!(rig.counters.snapshot().released, 1);
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn a_release_that_is_cancelled_has_passed_the_lock_on() {
    let mut rig = Rig::new();
    let (_, release, second, question) = passed_on(&mut rig);
    rig.cancel(release);
    assert_eq!(rig.failed(release), ErrorKind::Cancelled);
    rig.keep(&question);
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn closing_answers_who_passed_the_lock_on_by_the_release() {
    let mut rig = Rig::new();
    let (first, release, second, question) = passed_on(&mut rig);
    let close = rig.request(Request::Close { limit: secs(5) });
    assert_eq!(rig.lost, [(second.owner(), LostReason::Closed)]);
    rig.keep(&question);
    assert!(rig.pending(release));
    let last = rig.sent();
    assert_eq!(last.release(), (first.owner(), 0, Duration::ZERO));
    rig.reply(&last, Reply::Released(0));
    rig.released(release);
    assert!(matches!(rig.done(close), Done::Closed(names) if names.is_empty()));
}

#[test]
fn it_is_not_passed_on_where_the_server_was_not_heard_lately() {
    let mut rig = Rig::new();
    let (first, [_]) = queue(&mut rig, WATCHED);
    rig.pass(tuning::HANDOVER_FRESH);
    rig.release(&first);
    rig.sent().handover();
}

#[test]
fn it_is_not_passed_on_where_somebody_could_tell() {
    for (holds, waits) in [
        // Only the server can draw a token.
        (
            WATCHED,
            Terms {
                fencing: Fencing::Expiring,
                ..WATCHED
            },
        ),
        // The lease of the first caller would keep the lock for too long.
        (watched(LEASE * 2), WATCHED),
        (fixed(LEASE * 2), fixed(LEASE)),
        // The lease of the first caller is too short.
        (watched(LEASE / 2), WATCHED),
        (
            Terms {
                max_hold: Some(LEASE / 2),
                ..WATCHED
            },
            WATCHED,
        ),
        // The lock would live longer than the next caller may hold it.
        (
            WATCHED,
            Terms {
                max_hold: Some(LEASE / 2),
                ..WATCHED
            },
        ),
    ] {
        let mut rig = Rig::new();
        let first = rig.acquire_with("n", OwnerKey::Once, None, holds);
        rig.acquire_with("n", OwnerKey::Once, None, waits);
        let sent = rig.sent();
        rig.grant(&sent);
        let first = rig.granted(first);
        rig.release(&first);
        rig.sent().handover();
    }
}

#[test]
fn it_is_not_passed_on_while_something_else_is_under_way() {
    let mut rig = Rig::new();
    let (first, [second]) = queue(&mut rig, WATCHED);
    rig.request(Request::Extend {
        target: first.target(),
        lease: LEASE,
    });
    let extension = rig.sent();
    rig.release(&first);
    assert!(rig.pending(second));
    rig.keep(&extension);
    rig.sent().handover();
}

#[test]
fn a_level_that_stays_is_not_passed_on() {
    let mut rig = Rig::new();
    let (outer, [second]) = queue(&mut rig, WATCHED);
    let inner = rig.hold_with("n", OwnerKey::Hold(outer.level), WATCHED);
    rig.release(&inner);
    assert_eq!(rig.sent().release().1, 1);
    assert!(rig.pending(second));
}

#[test]
fn a_lease_that_is_fixed_does_not_last_longer_because_the_server_is_asked_late() {
    let mut rig = Rig::new();
    let (first, [second]) = queue(&mut rig, fixed(LEASE));
    rig.release(&first);
    let second = rig.granted(second);
    let deadline = second.cell.deadline();
    let question = rig.sent();
    rig.outcome(&question, CallOutcome::NotSent);
    rig.pass(secs(1));
    let question = rig.sent();
    assert_eq!(question.question(), (first.owner(), ms(1)));
    rig.keep(&question);
    assert_eq!(second.cell.deadline(), deadline);
}

#[test]
fn a_release_that_may_have_found_nothing_confirms_nobody_who_passed_the_lock_on() {
    let mut rig = Rig::new();
    let (first, [second, third]) = queue(&mut rig, WATCHED);
    rig.release(&first);
    let question = rig.sent();
    let second = rig.granted(second);
    let passed = rig.release(&second);
    let third = rig.granted(third);
    let last = rig.release(&third);
    rig.keep(&question);
    let release = rig.sent();
    rig.outcome(&release, CallOutcome::Unanswered);
    rig.pass(secs(1));
    let again = rig.sent();
    assert_eq!(again.release().1, 0);
    rig.reply(&again, Reply::Gone(LostReason::Deleted));
    rig.released(last);
    assert_eq!(rig.failed(passed), ErrorKind::Unavailable);
}

#[test]
fn the_last_waiter_that_gets_the_lock_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    let waiter = rig.acquire("n");
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    let first = rig.granted(id);
    rig.release(&first);
    rig.granted(waiter);
    assert!(rig.subscribed.is_empty(), "nobody waits any more");
}
