//! Levels and their leases, re-entry, release, extension.

use super::*;
use crate::tuning::SELF_WAIT;

/// Releases a level that is not the last one. Returns the remaining count and the TTL that were
/// sent.
fn leave(rig: &mut Rig, grant: &Grant) -> (u32, Duration) {
    let id = rig.release(grant);
    let sent = rig.sent();
    let (_, remaining, ttl) = sent.release();
    rig.reply(&sent, Reply::Kept);
    rig.released(id);
    (remaining, ttl)
}

#[test]
fn re_entry_sets_absolute_counts() {
    let mut rig = Rig::new();
    let first = rig.hold_with("n", KEY, WATCHED);
    let mut others = Vec::new();
    for count in 2..=4 {
        let id = rig.acquire_with("n", KEY, None, WATCHED);
        let sent = rig.sent();
        assert_eq!(sent.acquire(), (first.owner(), count, LEASE));
        rig.grant(&sent);
        others.push(rig.granted(id));
        assert_eq!(first.cell.count(), count);
    }
    for (remaining, grant) in [(3, &others[1]), (2, &first), (1, &others[2])] {
        assert_eq!(leave(&mut rig, grant), (remaining, LEASE));
        assert_eq!(first.cell.count(), remaining);
    }
    rig.free(&others[0]);
    assert_eq!(rig.ended, [first.owner()]);
    rig.nothing_left();
}

#[test]
fn one_command_is_in_flight_and_later_ones_count_from_its_outcome() {
    let mut rig = Rig::new();
    let first = rig.hold_with("n", KEY, WATCHED);
    let second = rig.acquire_with("n", KEY, None, WATCHED);
    let third = rig.acquire_with("n", KEY, None, WATCHED);
    let left = rig.release(&first);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 2);
    // The server refused the second level, so the third caller gets count 2.
    rig.outcome(&sent, refused(ErrorKind::Server, false));
    assert_eq!(rig.failed(second), ErrorKind::Server);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 2);
    rig.grant(&sent);
    rig.granted(third);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 1);
    rig.reply(&sent, Reply::Kept);
    rig.released(left);
}

#[test]
fn a_hold_without_a_token_is_not_entered_for_one() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", KEY, WATCHED);
    let fenced = Terms {
        fencing: Fencing::Persistent,
        ..WATCHED
    };
    let id = rig.acquire_with("n", KEY, None, fenced);
    assert_eq!(rig.failed(id), ErrorKind::InvalidArgument);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn the_deadline_counts_from_when_the_request_was_sent() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let (sent, at) = (rig.sent(), rig.now);
    rig.pass(ms(900));
    rig.grant(&sent);
    let grant = rig.granted(id);
    assert_eq!(grant.cell.deadline(), at.after(ms(29_698)));
}

#[test]
fn a_shorter_lease_on_re_entry_shortens_nothing() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", KEY, WATCHED);
    let deadline = grant.cell.deadline();
    let inner = rig.hold_with("n", KEY, fixed(secs(1)));
    assert_eq!(inner.cell.deadline(), deadline);
    // The lease of the inner level is long over. The outer level is still renewed.
    for _ in 0..3 {
        rig.pass(secs(10));
        let sent = rig.sent();
        assert_eq!(sent.renewal(), [(grant.owner(), LEASE)]);
        rig.keep(&sent);
    }
    assert_eq!(leave(&mut rig, &inner), (1, LEASE));
    assert!(rig.is_held(&grant) && rig.lost.is_empty());
}

#[test]
fn a_longer_fixed_lease_inside_a_watched_one_keeps_both() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, fixed(secs(60)));
    assert_eq!(outer.cell.deadline(), rig.now.after(ms(59_398)));
    rig.pass(secs(10));
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(outer.owner(), LEASE)]);
    rig.keep(&sent);
    assert_eq!(outer.cell.deadline(), rig.now.after(ms(49_398)));
    // After the watched level is released, the fixed level keeps its remaining time plus the drift
    // allowance, and is not renewed.
    let (remaining, ttl) = leave(&mut rig, &outer);
    assert_eq!((remaining, ttl.as_millis()), (1, 49_898));
    rig.pass(ms(49_397));
    rig.nothing_sent();
    assert!(rig.is_held(&inner));
    rig.pass(ms(1));
    assert_eq!(rig.lost, [(inner.owner(), LostReason::Expired)]);
}

#[test]
fn a_watched_level_inside_a_fixed_one_is_renewed_as_long_as_it_lives() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, fixed(secs(20)));
    rig.pass(secs(5));
    rig.nothing_sent();
    let inner = rig.hold_with("n", KEY, WATCHED);
    for _ in 0..2 {
        rig.pass(secs(10));
        let sent = rig.sent();
        assert_eq!(sent.renewal(), [(outer.owner(), LEASE)]);
        rig.keep(&sent);
    }
    // After 25 s only the inner level keeps the lock alive. When it is released, the outer level
    // has no time left.
    let id = rig.release(&inner);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    assert!(!rig.is_held(&outer));
    assert_eq!(rig.lost, [(outer.owner(), LostReason::Expired)]);
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
    let id = rig.release(&outer);
    assert_eq!(rig.lost_by(id), LostReason::Expired);
}

#[test]
fn a_partial_release_counts_at_once_because_it_may_run_unanswered() {
    let mut rig = Rig::new();
    let short = rig.hold_with("n", KEY, fixed(secs(5)));
    let long = rig.hold_with("n", KEY, fixed(secs(60)));
    let end = rig.now.after(ms(4948));
    let id = rig.release(&long);
    let sent = rig.sent();
    assert!(sent.release().2 < secs(6));
    assert_eq!(short.cell.deadline(), end);
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(secs(5));
    assert_eq!(rig.lost, [(short.owner(), LostReason::Expired)]);
    assert_eq!(rig.lost_by(id), LostReason::Expired);
}

#[test]
fn a_short_watched_level_is_renewed_soon_after_a_long_one_went() {
    let mut rig = Rig::new();
    let short = rig.hold_with("n", KEY, watched(secs(3)));
    let long = rig.hold_with("n", KEY, WATCHED);
    rig.pass(secs(1));
    let sent = rig.sent();
    rig.keep(&sent);
    rig.pass(secs(9));
    // The lease of the short level is over, but the long level has kept the key alive.
    let id = rig.release(&long);
    let sent = rig.sent();
    assert_eq!((sent.release().1, sent.release().2), (1, secs(3)));
    assert!(rig.is_held(&short));
    rig.pass(ms(999));
    rig.nothing_sent();
    rig.pass(ms(1));
    let renewal = rig.sent();
    assert_eq!(renewal.renewal(), [(short.owner(), secs(3))]);
    rig.keep(&renewal);
    rig.reply(&sent, Reply::Kept);
    rig.released(id);
    assert!(rig.is_held(&short));
}

#[test]
fn an_extension_survives_the_release_of_another_level() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    let id = rig.request(Request::Extend {
        target: outer.target(),
        lease: secs(600),
    });
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(outer.owner(), secs(600))]);
    rig.keep(&sent);
    assert!(matches!(rig.done(id), Done::Extended));
    let deadline = rig.now.after(ms(593_998));
    assert_eq!(outer.cell.deadline(), deadline);
    // The TTL sent to Redis must not be shorter than the time that the client trusts.
    let (_, ttl) = leave(&mut rig, &inner);
    assert!(ttl >= secs(599), "{ttl:?}");
    assert_eq!(outer.cell.deadline(), deadline);
}

#[test]
fn an_extension_does_not_make_a_fixed_lease_renewed() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, fixed(secs(5)));
    rig.request(Request::Extend {
        target: grant.target(),
        lease: secs(9),
    });
    let sent = rig.sent();
    rig.keep(&sent);
    rig.pass(ms(8907));
    rig.nothing_sent();
    assert!(rig.is_held(&grant));
    rig.pass(ms(1));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn an_extension_is_repeated_until_its_caller_has_waited_long_enough() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Extend {
        target: grant.target(),
        lease: secs(600),
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Renewed(vec![RenewReply::Failed]));
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    let left = rig.release(&grant);
    rig.input(down());
    rig.pass(OUTAGE);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    // The release behind the extension fails at the same time.
    assert_eq!(rig.failed(left), ErrorKind::Unavailable);
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.reply(&sent, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn a_level_is_released_once() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    let (first, second) = (rig.release(&inner), rig.release(&inner));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Kept);
    rig.released(first);
    assert_eq!(rig.failed(second), ErrorKind::NotOwner);
    let third = rig.release(&inner);
    assert_eq!(rig.failed(third), ErrorKind::NotOwner);
    assert!(rig.is_held(&outer));
    rig.free(&outer);
    let fourth = rig.release(&outer);
    assert_eq!(rig.failed(fourth), ErrorKind::NotOwner);
}

#[test]
fn a_second_release_of_the_last_level_waits_for_the_first() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let (first, second) = (rig.release(&grant), rig.release(&grant));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.released(first);
    assert_eq!(rig.failed(second), ErrorKind::NotOwner);
    rig.nothing_left();
}

#[test]
fn a_key_releases_its_newest_level() {
    let mut rig = Rig::new();
    rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    let by_key = || {
        Request::Release(Target::Key {
            name: "n".into(),
            key: KEY,
            kind: Kind::Reentrant,
        })
    };
    let id = rig.request(by_key());
    let sent = rig.sent();
    assert_eq!(sent.release().1, 1);
    rig.reply(&sent, Reply::Kept);
    rig.released(id);
    let again = rig.release(&inner);
    assert_eq!(rig.failed(again), ErrorKind::NotOwner);
    let id = rig.request(by_key());
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
    let id = rig.request(by_key());
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    rig.nothing_left();
}

#[test]
fn a_release_by_key_never_takes_the_level_of_a_cancelled_re_entry() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let gone = rig.acquire_with("n", KEY, None, WATCHED);
    let entry = rig.sent();
    rig.cancel(gone);
    let left = rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: KEY,
        kind: Kind::Reentrant,
    }));
    rig.grant(&entry);
    // The server has count 2. It is corrected first.
    let settle = rig.sent();
    assert_eq!(settle.release().1, 1);
    rig.reply(&settle, Reply::Kept);
    let free = rig.sent();
    assert_eq!(free.release().1, 0);
    rig.reply(&free, Reply::Released(0));
    rig.released(left);
    assert!(!rig.is_held(&outer));
    rig.nothing_left();
}

#[test]
fn a_hold_is_not_relied_on_from_the_moment_its_release_is_sent() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.release(&grant);
    assert!(!rig.is_held(&grant));
    assert_eq!(grant.cell.lost(rig.now), None);
}

#[test]
fn re_entry_behind_the_release_of_the_lock_is_an_acquisition_of_its_own() {
    let mut rig = Rig::new();
    let old = rig.hold_with("n", KEY, WATCHED);
    let left = rig.release(&old);
    let release = rig.sent();
    let id = rig.acquire_with("n", KEY, Some(secs(5)), WATCHED);
    rig.nothing_sent();
    rig.reply(&release, Reply::Released(0));
    rig.released(left);
    let sent = rig.sent();
    assert_ne!(sent.acquire().0, old.owner());
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.free(&grant);
    assert_eq!(rig.ended, [old.owner(), grant.owner()]);
}

#[test]
fn re_entry_that_was_queued_when_the_lock_went_is_an_acquisition_of_its_own() {
    let mut rig = Rig::new();
    let old = rig.hold_with("n", KEY, WATCHED);
    rig.request(Request::Extend {
        target: old.target(),
        lease: LEASE,
    });
    let extension = rig.sent();
    rig.release(&old);
    let id = rig.acquire_with("n", KEY, Some(secs(5)), WATCHED);
    let reentered = rig.acquire_with("n", OwnerKey::Hold(old.level), None, WATCHED);
    rig.keep(&extension);
    let release = rig.sent();
    assert_eq!(release.release().1, 0);
    rig.reply(&release, Reply::Released(0));
    assert_eq!(rig.failed(reentered), ErrorKind::NotOwner);
    let sent = rig.sent();
    assert_ne!(sent.acquire().0, old.owner());
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_hold_itself_is_a_key() {
    let mut rig = Rig::new();
    let outer = rig.hold("n");
    let inner = rig.hold_with("n", OwnerKey::Hold(outer.level), WATCHED);
    assert!(Arc::ptr_eq(&outer.cell, &inner.cell) && outer.cell.count() == 2);
    // The key fails for another name, and for a hold that has ended.
    let id = rig.acquire_with("m", OwnerKey::Hold(outer.level), None, WATCHED);
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    assert_eq!(leave(&mut rig, &inner).0, 1);
    rig.free(&outer);
    let id = rig.acquire_with("n", OwnerKey::Hold(outer.level), None, WATCHED);
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    rig.nothing_left();
}

#[test]
fn max_hold_bounds_a_hold_however_it_is_renewed() {
    let mut rig = Rig::new();
    let most = Terms {
        max_hold: Some(secs(35)),
        ..WATCHED
    };
    let start = rig.now;
    let grant = rig.hold_with("n", KEY, most);
    let end = start.after(ms(34_648));
    for _ in 0..3 {
        rig.pass(secs(10));
        let sent = rig.sent();
        // Redis keeps the key until this end plus the drift allowance, and not longer than was
        // asked for.
        let ttl = sent.renewal()[0].1;
        assert!(
            rig.now.after(ttl) >= end && rig.now.after(ttl) <= start.after(secs(41)),
            "{ttl:?}"
        );
        rig.keep(&sent);
        assert!(grant.cell.deadline() <= end);
    }
    rig.hold_with("n", KEY, fixed(secs(600)));
    assert_eq!(grant.cell.deadline(), end);
    rig.pass(rig.now.until(end));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn max_hold_bounds_the_first_lease() {
    let mut rig = Rig::new();
    let id = rig.acquire_with(
        "n",
        OwnerKey::Once,
        None,
        Terms {
            max_hold: Some(secs(2)),
            ..WATCHED
        },
    );
    let sent = rig.sent();
    assert_eq!(sent.acquire().2, secs(2));
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.pass(ms(1977));
    assert!(rig.is_held(&grant));
    rig.nothing_sent();
    rig.pass(ms(1));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn the_server_refusing_a_partial_release_does_not_matter() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    let id = rig.release(&inner);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Server, false));
    rig.released(id);
    assert_eq!(outer.cell.count(), 1);
    rig.free(&outer);
}

#[test]
fn the_server_refusing_to_free_the_lock_is_told() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Denied, false));
    assert_eq!(rig.failed(id), ErrorKind::Denied);
    rig.nothing_left();
}

#[test]
fn a_refused_re_entry_whose_first_copy_may_have_run_is_settled() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.pass(COPY);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Server, false));
    assert_eq!(rig.failed(id), ErrorKind::Server);
    assert_eq!(rig.sent().release(), (outer.owner(), 1, LEASE));
}

#[test]
fn a_release_is_repeated_soon_and_gone_on_a_repeat_means_released() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    for _ in 0..4 {
        let sent = rig.sent();
        rig.outcome(&sent, CallOutcome::Unanswered);
        rig.pass(ms(99));
        rig.nothing_sent();
        rig.pass(ms(152));
    }
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    rig.released(id);
    rig.nothing_left();
}

#[test]
fn gone_at_the_first_release_means_lost() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    // The call was not sent, so the next copy is the first one.
    rig.outcome(&sent, CallOutcome::NotSent);
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Stolen));
    assert_eq!(rig.lost_by(id), LostReason::Stolen);
    assert_eq!(rig.counters.snapshot().lost, 1);
    // In every case the client makes sure that nothing of this owner remains.
    let clean = rig.sent();
    rig.reply(&clean, Reply::Gone(LostReason::Stolen));
    rig.nothing_left();
}

#[test]
fn gone_after_a_copy_that_did_nothing_means_lost() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    // The server restarted without its data.
    rig.outcome(&sent, refused(ErrorKind::Server, true));
    rig.pass(ms(500));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert_eq!(rig.lost_by(id), LostReason::Deleted);
}

#[test]
fn a_release_that_is_not_confirmed_is_told_after_a_while_and_goes_on() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.input(down());
    let id = rig.release(&grant);
    rig.pass(OUTAGE);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.input(Input::Up(0));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn a_release_that_is_not_confirmed_goes_on_after_the_deadline_without_its_caller() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, fixed(secs(4)));
    rig.input(down());
    let id = rig.release(&grant);
    rig.pass(secs(4));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    assert!(rig.lost.is_empty());
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(sent.release(), (grant.owner(), 0, Duration::ZERO));
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_waiting_release_goes_out_when_the_link_comes_back() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.input(Input::Up(0));
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
}

#[test]
fn copies_that_change_a_count_never_overlap() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let first = rig.sent();
    rig.outcome(&first, CallOutcome::Unanswered);
    rig.input(down());
    rig.input(Input::Up(0));
    let renewal = rig.sent();
    rig.keep(&renewal);
    rig.pass(COPY - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let second = rig.sent();
    assert_eq!(second.op, first.op);
    rig.reply(&second, Reply::Stale);
    let third = rig.sent();
    assert_eq!(third.op, first.op);
    rig.grant(&third);
    let inner = rig.granted(id);

    let left = rig.release(&inner);
    let first = rig.sent();
    rig.outcome(&first, CallOutcome::Unanswered);
    rig.pass(COPY - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let second = rig.sent();
    assert_eq!(second.op, first.op);
    rig.reply(&second, Reply::Kept);
    rig.released(left);
    assert!(rig.is_held(&outer));
}

#[test]
fn errors_that_may_pass_are_waited_for() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Server, true));
    rig.nothing_sent();
    rig.pass(ms(500));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
}

#[test]
fn a_dropped_guard_releases_its_level_in_the_background() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, WATCHED);
    rig.input(outer.dropped());
    let sent = rig.sent();
    assert_eq!(sent.release().1, 1);
    rig.reply(&sent, Reply::Kept);
    rig.input(inner.dropped());
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.input(inner.dropped());
    rig.nothing_left();
}

#[test]
fn a_handle_left_without_release_is_not_renewed_any_more() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", KEY, WATCHED);
    rig.input(grant.abandoned());
    assert!(rig.events.contains(&"abandoned"));
    rig.pass(ms(29_697));
    rig.nothing_sent();
    assert!(rig.is_held(&grant));
    rig.pass(ms(1));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
    // No caller can unwind this level, so the hold ends at once.
    assert_eq!(rig.ended, [grant.owner()]);
    let clean = rig.sent();
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_key_that_ends_takes_its_detached_levels_along_and_no_others() {
    let mut rig = Rig::new();
    let guarded = rig.hold_with("a", KEY, WATCHED);
    let detached = rig.hold_with("b", KEY, WATCHED);
    let other = rig.hold_with("c", OwnerKey::Thread(2), WATCHED);
    rig.input(detached.detached());
    rig.input(other.detached());
    rig.input(Input::KeyEnded(KEY));
    rig.pass(secs(10));
    let renewed: Vec<OwnerId> = rig
        .all_sent()
        .iter()
        .flat_map(Sent::renewal)
        .map(|(owner, _)| owner)
        .collect();
    assert_eq!(renewed, [guarded.owner(), other.owner()]);
}

#[test]
fn a_level_that_was_acquired_tied_ends_with_its_key() {
    let mut rig = Rig::new();
    let free = rig.hold_with("a", KEY, WATCHED);
    rig.hold_with(
        "b",
        KEY,
        Terms {
            tied: true,
            ..WATCHED
        },
    );
    rig.input(Input::KeyEnded(KEY));
    rig.pass(secs(10));
    let renewed: Vec<OwnerId> = rig
        .all_sent()
        .iter()
        .flat_map(Sent::renewal)
        .map(|(owner, _)| owner)
        .collect();
    assert_eq!(renewed, [free.owner()]);
}

#[test]
fn without_a_client_detached_levels_end_with_their_leases() {
    let mut rig = Rig::new();
    let detached = [
        rig.hold_with("a", KEY, WATCHED),
        rig.hold_with("b", OwnerKey::Thread(2), WATCHED),
    ];
    for grant in &detached {
        rig.input(grant.detached());
    }
    rig.input(Input::Orphaned);
    rig.pass(secs(29));
    assert!(rig.all_sent().iter().all(|sent| sent.renewal().is_empty()));
    rig.pass(secs(2));
    assert!(
        detached
            .iter()
            .all(|grant| grant.cell.lost(rig.now).is_some())
    );
}

#[test]
fn an_abandoned_level_does_not_stop_the_renewal_of_another() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let inner = rig.hold_with("n", KEY, watched(secs(3)));
    rig.input(outer.abandoned());
    rig.pass(secs(10));
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(inner.owner(), secs(3))]);
}

#[test]
fn a_clock_that_goes_back_moves_no_deadline() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let deadline = grant.cell.deadline();
    rig.now = Moment(5);
    let inner = rig.hold_with("n", OwnerKey::Hold(grant.level), WATCHED);
    assert!(inner.cell.deadline() >= deadline);
}

/// Regression test: the call was repeated for as long as the server was overloaded.
#[test]
fn a_try_to_re_enter_that_cannot_be_sent_ends_as_any_other_try() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, Some(Duration::ZERO), WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    let error = rig.error(id);
    assert!(
        error.kind() == ErrorKind::Unavailable && error.message().starts_with("nothing was done"),
        "{error}"
    );
    rig.pass(secs(1));
    rig.nothing_sent();
    rig.free(&outer);
    // The call of a caller with a wait is still repeated.
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, Some(secs(5)), WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    rig.pass(ms(250));
    let again = rig.sent();
    rig.grant(&again);
    assert_eq!(rig.granted(id).owner(), outer.owner());
}

/// Regression test: the next command of the hold inherited the pause. It was due again and again at
/// the end of the pause, and the I/O thread looped for ever.
#[test]
fn a_try_to_re_enter_that_is_refused_for_now_ends_as_any_other_try() {
    let busy = || refused(ErrorKind::Server, true);
    let late = || CallOutcome::Answered(Reply::Stale);
    for outcomes in [vec![busy()], vec![late(), late()]] {
        let mut rig = Rig::new();
        let grant = rig.hold_with("n", KEY, WATCHED);
        let id = rig.acquire_with("n", KEY, Some(ms(0)), WATCHED);
        let behind = rig.acquire_with("n", KEY, Some(ms(0)), WATCHED);
        let patient = rig.acquire_with("n", KEY, None, WATCHED);
        for outcome in outcomes {
            let sent = rig.sent();
            assert!(rig.pending(id));
            rig.outcome(&sent, outcome);
        }
        for id in [id, behind] {
            let kind = rig.failed(id);
            assert!(matches!(kind, ErrorKind::Server | ErrorKind::Unavailable));
        }
        // Nothing was done, so nothing is to be undone.
        let sent = rig.sent();
        assert_eq!(sent.acquire().1, 2);
        rig.grant(&sent);
        rig.granted(patient);
        assert_eq!(grant.cell.count(), 2);
    }
}

#[test]
fn a_re_entry_that_was_not_sent_gave_its_pause_to_the_command_behind_it() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let entry = rig.acquire_with("n", KEY, Some(Duration::ZERO), WATCHED);
    let sent = rig.sent();
    let extended = rig.request(Request::Extend {
        target: outer.target(),
        lease: LEASE,
    });
    rig.outcome(&sent, CallOutcome::NotSent);
    assert_eq!(rig.failed(entry), ErrorKind::Unavailable);
    let extension = rig.sent();
    rig.pass(ms(300));
    rig.nothing_sent();
    rig.keep(&extension);
    assert!(matches!(rig.done(extended), Done::Extended));
}

/// The first two flows of a thread, and the thread itself.
const FLOWS: [OwnerKey; 2] = [
    OwnerKey::Flow { thread: 5, nth: 0 },
    OwnerKey::Flow { thread: 5, nth: 1 },
];
const THREAD: OwnerKey = OwnerKey::Thread(5);
/// The terms of a caller that does not ask to re-enter.
const PLAIN: Terms = Terms {
    reentrant: false,
    tied: true,
    ..WATCHED
};

#[test]
fn flows_of_one_thread_exclude_each_other_and_end_with_it() {
    let mut rig = Rig::new();
    let first = rig.hold_with(
        "a",
        FLOWS[0],
        Terms {
            tied: true,
            ..WATCHED
        },
    );
    let once = rig.acquire_with(
        "a",
        FLOWS[1],
        Some(Duration::ZERO),
        Terms {
            tied: true,
            ..WATCHED
        },
    );
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    let other = rig.hold_with("b", OwnerKey::Flow { thread: 6, nth: 0 }, PLAIN);
    rig.input(Input::KeyEnded(THREAD));
    rig.pass(secs(10));
    let renewed: Vec<OwnerId> = rig
        .all_sent()
        .iter()
        .flat_map(Sent::renewal)
        .map(|(owner, _)| owner)
        .collect();
    assert_eq!((renewed, rig.is_held(&first)), (vec![other.owner()], true));
}

#[test]
fn a_key_that_is_gone_takes_its_guarded_levels_along() {
    let mut rig = Rig::new();
    rig.hold_with("a", KEY, WATCHED);
    let other = rig.hold_with("b", OwnerKey::Thread(2), WATCHED);
    rig.input(Input::KeyGone(KEY));
    rig.pass(secs(10));
    let renewed: Vec<OwnerId> = rig
        .all_sent()
        .iter()
        .flat_map(Sent::renewal)
        .map(|(owner, _)| owner)
        .collect();
    assert_eq!(renewed, [other.owner()]);
}

#[test]
fn a_caller_that_waits_for_its_own_hold_is_told_of_in_an_event() {
    let mut rig = Rig::new();
    rig.hold_with("n", FLOWS[0], PLAIN);
    let once = rig.acquire_with("n", FLOWS[0], Some(Duration::ZERO), PLAIN);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    rig.acquire_with("n", FLOWS[1], None, PLAIN);
    assert!(!rig.events.contains(&"self_wait"));
    rig.acquire_with("n", FLOWS[0], None, PLAIN);
    rig.pass(SELF_WAIT);
    assert!(rig.events.contains(&"self_wait"));
}

#[test]
fn a_short_wait_for_its_own_hold_is_told_of_when_it_ends() {
    let mut rig = Rig::new();
    rig.hold_with("n", FLOWS[0], PLAIN);
    let short = rig.acquire_with("n", FLOWS[0], Some(SELF_WAIT / 2), PLAIN);
    rig.pass(SELF_WAIT / 2);
    assert_eq!(rig.failed(short), ErrorKind::Timeout);
    assert!(rig.events.contains(&"self_wait"));
}

/// Regression test: a task whose grant was being given back was warned, as if it still had the lock.
#[test]
fn a_wait_behind_the_release_of_its_own_hold_is_no_event() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", FLOWS[0], PLAIN);
    rig.input(grant.dropped());
    rig.sent().release();
    rig.acquire_with("n", FLOWS[0], None, PLAIN);
    rig.pass(SELF_WAIT);
    assert!(!rig.events.contains(&"self_wait"));
}

/// Regression test: a task that gave up as it was granted the lock came back before its grant was dropped, and
/// was warned.
#[test]
fn a_wait_for_a_grant_that_its_caller_never_took_is_no_event() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", FLOWS[0], PLAIN);
    rig.acquire_with("n", FLOWS[0], None, PLAIN);
    rig.input(grant.dropped());
    rig.pass(SELF_WAIT);
    assert!(!rig.events.contains(&"self_wait"));
}

#[test]
fn a_wait_for_a_lease_of_its_own_that_ends_by_itself_is_no_event() {
    let mut rig = Rig::new();
    rig.hold_with(
        "n",
        FLOWS[0],
        Terms {
            lease: Lease::Fixed(LEASE),
            ..PLAIN
        },
    );
    rig.acquire_with("n", FLOWS[0], None, PLAIN);
    rig.pass(SELF_WAIT);
    assert!(!rig.events.contains(&"self_wait"));
}

/// The next renewal finds that the hold was deleted.
fn delete(rig: &mut Rig, grant: &Grant) {
    rig.input(Input::Invalidated(None));
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert!(rig.lost.contains(&(grant.owner(), LostReason::Deleted)));
    let clean = rig.sent();
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
}

#[test]
fn a_key_that_answers_for_its_levels_has_to_release_what_it_lost_before_it_acquires_anew() {
    let mut rig = Rig::new();
    let lost = rig.hold_with("n", FLOWS[0], PLAIN);
    delete(&mut rig, &lost);
    let again = rig.acquire_with("n", FLOWS[0], None, PLAIN);
    assert_eq!(rig.lost_by(again), LostReason::Deleted);
    let other = rig.hold_with("n", FLOWS[1], PLAIN);
    let release = rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: FLOWS[0],
        kind: Kind::Reentrant,
    }));
    assert_eq!(rig.lost_by(release), LostReason::Deleted);
    assert!(
        rig.is_held(&other),
        "a late release does not free what another flow holds"
    );
}

#[test]
fn a_release_by_key_means_the_level_that_only_the_key_can_release() {
    let mut rig = Rig::new();
    let lost = rig.hold_with("n", FLOWS[0], PLAIN);
    delete(&mut rig, &lost);
    let guarded = rig.hold_with(
        "n",
        FLOWS[0],
        Terms {
            tied: false,
            ..PLAIN
        },
    );
    let release = rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: FLOWS[0],
        kind: Kind::Reentrant,
    }));
    assert_eq!(rig.lost_by(release), LostReason::Deleted);
    assert!(rig.is_held(&guarded));
}

#[test]
fn a_lock_passed_on_by_its_token_can_be_acquired_anew() {
    let mut rig = Rig::new();
    let terms = Terms {
        kind: Kind::Simple,
        ..PLAIN
    };
    let mut hold = |token: &str| {
        let token = Some(token.into());
        let request = Request::Acquire {
            name: "n".into(),
            key: FLOWS[0],
            wait: None,
            terms,
            token,
        };
        let id = rig.request(request);
        let sent = rig.sent();
        rig.grant(&sent);
        let grant = rig.granted(id);
        let first = rig.lost.is_empty();
        if first {
            delete(&mut rig, &grant);
        }
        (grant, first)
    };
    assert!(hold("job 1").1);
    let (living, first) = hold("job 2");
    assert!(!first && rig.is_held(&living));
    rig.request(Request::Release(Target::Key {
        name: "n".into(),
        key: FLOWS[0],
        kind: Kind::Reentrant,
    }));
    assert_eq!(
        rig.sent().release().0,
        living.owner(),
        "the one that is alive"
    );
}
