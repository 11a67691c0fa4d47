//! Losing holds, reporting the loss, and unwinding.

use super::*;

/// A hold of two levels whose key was deleted on the server.
fn lost_twofold(rig: &mut Rig) -> (Grant, Grant) {
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    rig.input(Input::Invalidated(None));
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(outer.owner(), LostReason::Deleted)]);
    (outer, inner)
}

#[test]
fn a_lost_hold_fails_re_entry_until_every_level_is_unwound() {
    let mut rig = Rig::new();
    let (outer, inner) = lost_twofold(&mut rig);
    let clean = rig.sent();
    assert_eq!(clean.release().0, outer.owner());
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));

    let id = rig.acquire_with("n", KEY, None, WATCHED);
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    let id = rig.request(Request::Extend {
        target: inner.target(),
        lease: LEASE,
    });
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    rig.nothing_sent();
    let id = rig.release(&inner);
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    let id = rig.release(&inner);
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    let id = rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: KEY,
        kind: Kind::Reentrant,
    }));
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    assert_eq!(rig.ended, [outer.owner()]);

    // Releasing both levels has sent a compare-and-release. Now the key can acquire anew.
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let sent = rig.all_sent();
    assert_eq!(sent[0].release(), (outer.owner(), 0, Duration::ZERO));
    rig.grant(&sent[1]);
    let grant = rig.granted(id);
    assert_ne!(grant.owner(), outer.owner());
    assert!(rig.is_held(&grant) && !rig.is_held(&outer));
}

/// Like `acquire(lease=...)` in Python or C: there is no guard, and only the key can release the
/// level.
fn left_to_end(rig: &mut Rig, lease: Duration) -> Grant {
    rig.hold_with(
        "n",
        KEY,
        Terms {
            tied: true,
            ..fixed(lease)
        },
    )
}

/// Regression test: the thread's next acquisition failed with `lost` until the thread had released
/// the expired hold.
#[test]
fn a_fixed_lease_that_was_left_to_run_out_is_acquired_anew() {
    let mut rig = Rig::new();
    let first = left_to_end(&mut rig, secs(1));
    left_to_end(&mut rig, secs(2));
    rig.pass(secs(2));
    assert_eq!(rig.lost, [(first.owner(), LostReason::Expired)]);
    let clean = rig.sent();
    assert_eq!(clean.release().0, first.owner());
    let id = rig.acquire_with("n", KEY, Some(Duration::ZERO), WATCHED);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 1, "the count begins anew");
    rig.reply(&clean, Reply::Released(0));
    rig.grant(&sent);
    let second = rig.granted(id);
    assert!(second.owner() != first.owner() && second.cell.count() == 1);
    // The key now owns only the new hold.
    let by_key = || {
        Request::Release(Target::Key {
            name: "n".into(),
            key: KEY,
            kind: Kind::Reentrant,
        })
    };
    let id = rig.request(by_key());
    let sent = rig.sent();
    assert_eq!(sent.release(), (second.owner(), 0, Duration::ZERO));
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
    let id = rig.request(by_key());
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    let id = rig.release(&first);
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    rig.nothing_left();
}

#[test]
fn an_expired_hold_is_lost_at_its_release() {
    let mut rig = Rig::new();
    left_to_end(&mut rig, secs(1));
    rig.pass(secs(1));
    let clean = rig.sent();
    rig.reply(&clean, Reply::Released(0));
    let id = rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: KEY,
        kind: Kind::Reentrant,
    }));
    assert_eq!(rig.lost_by(id), LostReason::Expired);
}

/// Regression test: a thread that let leases on ever new names expire kept a lost hold for each,
/// for as long as it lived.
#[test]
fn an_old_expired_hold_without_a_handle_is_forgotten() {
    let mut rig = Rig::new();
    let terms = Terms {
        tied: true,
        ..fixed(ms(10))
    };
    let run_out = |rig: &mut Rig, name: &Name| {
        let request = Request::Acquire {
            name: name.clone(),
            key: KEY,
            wait: None,
            terms,
            token: None,
        };
        let id = rig.request(request);
        let sent = rig.sent();
        rig.grant(&sent);
        let grant = rig.granted(id);
        rig.pass(ms(10));
        let clean = rig.sent();
        rig.reply(&clean, Reply::Gone(LostReason::Deleted));
        grant
    };
    let name = |number: usize| Name::from(format!("n{number}"));
    let release = |name: &str| {
        Request::Release(Target::Key {
            name: name.into(),
            key: KEY,
            kind: Kind::Reentrant,
        })
    };
    let handle = name(0);
    let first = run_out(&mut rig, &handle);
    (1..10_000).for_each(|number| drop(run_out(&mut rig, &name(number))));
    assert!(
        rig.counters.snapshot().holds < 4000,
        "{}",
        rig.counters.snapshot().holds
    );
    assert_eq!(
        rig.ended.len(),
        10_000 - usize::try_from(rig.counters.snapshot().holds).expect("few")
    );
    // A release still reports the loss for a name with a handle, and for recent losses.
    for known in [0, 9_500, 9_999] {
        let id = rig.request(release(&name(known)));
        assert_eq!(rig.lost_by(id), LostReason::Expired, "{known}");
    }
    let id = rig.request(release(&name(1)));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    assert!(rig.ended.contains(&first.owner()), "unwound");
}

#[test]
fn a_re_entry_that_comes_as_a_fixed_lease_runs_out_becomes_an_acquisition() {
    let mut rig = Rig::new();
    let first = left_to_end(&mut rig, secs(1));
    rig.pass(ms(980));
    let ids = [0, 1].map(|_| rig.acquire_with("n", KEY, None, WATCHED));
    let entry = rig.sent();
    assert_eq!(entry.acquire().1, 2);
    rig.pass(ms(20));
    let sent = rig.all_sent();
    assert_eq!(sent[0].release().0, first.owner());
    let (owner, count, _) = sent[1].acquire();
    assert!(owner != first.owner() && count == 1);
    rig.reply(&entry, Reply::Gone(LostReason::Deleted));
    rig.grant(&sent[1]);
    assert_eq!(rig.granted(ids[0]).owner(), owner);
    let entry = rig.sent();
    assert_eq!(entry.acquire().1, 2);
    rig.grant(&entry);
    assert_eq!(rig.granted(ids[1]).owner(), owner);
}

/// A caller with a guard, or with a level that was to be renewed, may still believe that it holds
/// the lock.
#[test]
fn a_lost_hold_must_be_released_before_it_is_acquired_anew() {
    let guarded: &dyn Fn(&mut Rig) -> Grant = &|rig| rig.hold_with("n", KEY, fixed(secs(1)));
    let renewed: &dyn Fn(&mut Rig) -> Grant = &|rig| {
        let max_hold = Some(secs(1));
        rig.hold_with(
            "n",
            KEY,
            Terms {
                tied: true,
                max_hold,
                ..WATCHED
            },
        )
    };
    for hold in [guarded, renewed] {
        let mut rig = Rig::new();
        let grant = hold(&mut rig);
        rig.pass(secs(1));
        rig.all_sent();
        assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
        let id = rig.acquire_with("n", KEY, None, WATCHED);
        let error = rig.error(id);
        assert_eq!(
            (error.kind(), error.lost_reason()),
            (ErrorKind::Lost, Some(LostReason::Expired))
        );
        assert!(
            error.message().contains("has to be released first"),
            "{error}"
        );
        let id = rig.release(&grant);
        assert_eq!(rig.lost_by(id), LostReason::Expired);
        rig.acquire_with("n", KEY, None, WATCHED);
        assert_eq!(rig.all_sent().len(), 1);
    }
    // A lock that was deleted or stolen has not simply expired.
    let mut rig = Rig::new();
    left_to_end(&mut rig, LEASE);
    rig.input(Input::Invalidated(None));
    let look = rig.sent();
    rig.reply(
        &look,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
}

#[test]
fn waiters_go_on_when_a_hold_of_this_client_is_lost() {
    let mut rig = Rig::new();
    rig.hold("n");
    let id = rig.acquire("n");
    rig.pass(secs(10));
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)]),
    );
    let sent = rig.all_sent();
    sent[0].release();
    rig.grant(&sent[1]);
    rig.granted(id);
}

#[test]
fn everybody_who_wants_something_of_a_lost_hold_is_answered() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let ids = [
        rig.acquire_with("n", KEY, None, WATCHED),
        rig.release(&outer),
        rig.acquire_with("n", KEY, None, WATCHED),
        rig.request(Request::Extend {
            target: outer.target(),
            lease: LEASE,
        }),
    ];
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    for id in ids {
        assert_eq!(rig.lost_by(id), LostReason::Deleted);
    }
    let clean = rig.sent();
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_partial_release_in_flight_is_unwound_by_the_loss() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    let id = rig.release(&inner);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    let id = rig.release(&outer);
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
    assert_eq!(rig.ended, [outer.owner()]);
}

#[test]
fn a_hold_ends_at_its_deadline_without_any_network() {
    let mut rig = Rig::new();
    let renewed = rig.hold("a");
    let kept = rig.hold_with("b", OwnerKey::Once, fixed(LEASE));
    rig.input(down());
    rig.pass(ms(29_697));
    assert!(rig.is_held(&renewed) && rig.is_held(&kept) && rig.lost.is_empty());
    rig.pass(ms(1));
    // Only one of them would have been renewed, so the reasons differ.
    rig.lost.sort_unstable_by_key(|(owner, _)| *owner);
    let expected = [
        (renewed.owner(), LostReason::Unreachable),
        (kept.owner(), LostReason::Expired),
    ];
    assert_eq!(rig.lost, expected);
}

/// Regression test: each loss sent a release, to a server that had other locks to renew.
#[test]
fn a_renewed_hold_that_ends_at_its_deadline_is_left_to_end_on_the_server() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let renewal = rig.sent();
    rig.keep(&renewal);
    rig.input(down());
    rig.pass(LEASE);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Unreachable)]);
    rig.input(Input::Up(0));
    rig.nothing_sent();
}

/// Nobody trusts the renewed lease, so the lock must not last for it.
#[test]
fn a_hold_that_was_renewed_after_its_deadline_was_seen_is_released() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let renewal = rig.sent();
    rig.sleep(secs(15));
    rig.outcome(&renewal, CallOutcome::NotSent);
    rig.pass(ms(250));
    let renewal = rig.sent();
    // The holder reads its clock after the engine has read it for the answer.
    assert!(!grant.cell.is_held(grant.cell.deadline()));
    rig.keep(&renewal);
    rig.pass(secs(5));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
    assert_eq!(rig.sent().release().0, grant.owner());
}

/// The unanswered renewal may have extended the lock by another lease.
#[test]
fn a_hold_that_ends_at_its_deadline_is_released_if_a_renewal_was_not_answered() {
    for is_told in [false, true] {
        let mut rig = Rig::new();
        let grant = rig.hold("n");
        rig.pass(secs(10));
        let renewal = rig.sent();
        if is_told {
            rig.outcome(&renewal, CallOutcome::Unanswered);
        }
        rig.input(down());
        rig.pass(LEASE);
        assert_eq!(rig.lost, [(grant.owner(), LostReason::Unreachable)]);
        rig.input(Input::Up(0));
        assert_eq!(rig.sent().release().0, grant.owner());
    }
    // An unanswered extension may have been done as well.
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.request(Request::Extend {
        target: grant.target(),
        lease: LEASE * 2,
    });
    let extension = rig.sent();
    rig.outcome(&extension, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(LEASE);
    rig.input(Input::Up(0));
    assert_eq!(rig.sent().release().0, grant.owner());
}

#[test]
fn a_process_that_was_stopped_trusts_nothing_when_it_goes_on() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let renewal = rig.sent();
    rig.sleep(secs(60));
    assert_eq!(grant.cell.lost(rig.now), Some(LostReason::Expired));
    // The engine checks the deadline before it handles any input.
    rig.keep(&renewal);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn forcing_a_lock_tells_the_holds_of_this_client() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let waiting = rig.acquire("n");
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Forced(true));
    assert!(matches!(rig.done(id), Done::Forced(true)));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Forced)]);
    let sent = rig.all_sent();
    sent[0].release();
    rig.grant(&sent[1]);
    rig.granted(waiting);
}

/// A blocking caller and a renewal use two connections, so their answers have no order.
#[test]
fn a_renewal_that_tells_before_the_answer_to_our_force_tells_that_it_was_forced() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let force = rig.sent();
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    let renewal = rig.sent();
    rig.reply(
        &renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Forced)]);
    rig.reply(&force, Reply::Forced(true));
    assert!(matches!(rig.done(id), Done::Forced(true)));
}

#[test]
fn forcing_a_lock_tells_the_holds_even_if_the_caller_has_gone() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.reply(&sent, Reply::Forced(true));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Forced)]);
}

#[test]
fn a_force_without_an_answer_is_not_repeated_but_our_holds_are_looked_at() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let look = rig.sent();
    rig.reply(
        &look,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Deleted)]);
}

/// Regression test: the error said that the server did not answer in time, which left open whether
/// the lock was freed.
#[test]
fn a_force_that_was_not_sent_says_that_nothing_was_done() {
    let mut rig = Rig::new();
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    let error = rig.error(id);
    assert!(
        error.kind().retryable() && error.message().starts_with("nothing was done"),
        "{error}"
    );
    rig.nothing_left();
}

#[test]
fn forcing_a_free_lock_harms_nobody() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Forced(false));
    assert!(matches!(rig.done(id), Done::Forced(false)));
    assert!(rig.is_held(&grant));
}

#[test]
fn a_hold_on_its_way_out_is_not_lost_by_a_force() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let left = rig.release(&grant);
    let release = rig.sent();
    rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    let force = rig.sent();
    rig.reply(&force, Reply::Forced(true));
    assert!(rig.lost.is_empty());
    rig.reply(&release, Reply::Released(0));
    rig.released(left);
}

#[test]
fn the_abandoned_levels_of_a_lost_hold_go_by_themselves() {
    let mut rig = Rig::new();
    let (outer, inner) = lost_twofold(&mut rig);
    rig.input(inner.abandoned());
    assert!(rig.ended.is_empty());
    rig.input(outer.abandoned());
    assert_eq!(rig.ended, [outer.owner()]);
}

#[test]
fn a_watcher_is_told_once_with_the_first_reason() {
    let mut rig = Rig::new();
    let (outer, _) = lost_twofold(&mut rig);
    rig.pass(secs(60));
    rig.request(Request::Close { limit: secs(1) });
    assert_eq!(rig.lost, [(outer.owner(), LostReason::Deleted)]);
    assert_eq!(rig.counters.snapshot().lost, 1);
}

#[test]
fn a_lingering_hold_ends_with_its_lease_without_a_command() {
    let mut rig = Rig::new();
    let grant = rig.hold_with(
        "n",
        OwnerKey::Once,
        Terms {
            linger: true,
            ..fixed(LEASE)
        },
    );
    rig.input(grant.abandoned());
    let waiter = rig.acquire("n");
    assert!(rig.is_held(&grant) && rig.all_sent().is_empty());
    rig.pass(LEASE);
    // The local waiter tries. There is no clean-up.
    let (owner, ..) = rig.sent().acquire();
    assert!(rig.all_sent().is_empty() && owner != grant.owner() && rig.pending(waiter));
}

/// Regression test: the end of a lease that a program had left on purpose counted as a loss.
#[test]
fn a_lingering_hold_that_ends_with_its_lease_is_no_loss_to_count() {
    let lingering = |linger| Terms {
        linger,
        ..fixed(LEASE)
    };
    for (linger, lost) in [(true, 0), (false, 1)] {
        let mut rig = Rig::new();
        rig.hold_with("n", OwnerKey::Once, lingering(linger));
        rig.pass(LEASE);
        assert_eq!(rig.lost.len(), 1);
        assert_eq!(rig.counters.snapshot().lost, lost);
    }
}
