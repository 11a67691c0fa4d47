//! First acquisitions: order, tries, wake-ups, retries.

use super::*;

#[test]
fn an_uncontended_pair_is_two_calls_and_leaves_nothing() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    let (_, count, lease) = sent.acquire();
    assert_eq!((count, lease, sent.limit), (1, LEASE, secs(1)));
    rig.grant(&sent);
    let grant = rig.granted(id);
    assert!(rig.is_held(&grant) && grant.cell.count() == 1);

    let id = rig.release(&grant);
    let sent = rig.sent();
    assert_eq!(sent.release(), (grant.owner(), 0, Duration::ZERO));
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
    assert_eq!(rig.counters.snapshot().calls, 2);
    rig.nothing_left();
}

#[test]
fn a_call_may_be_inline_while_no_other_is_in_flight() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    let inline = |of, alone| {
        Some(Inline {
            of,
            alone,
            tracked: false,
        })
    };
    assert_eq!(sent.inline, inline(id, true));
    let other = rig.acquire("other");
    let behind = rig.sent();
    assert_eq!(behind.inline, None, "an acquisition is in flight");
    rig.grant(&sent);
    rig.grant(&behind);
    let (grant, held) = (rig.granted(id), rig.granted(other));
    let id = rig.release(&grant);
    let sent = rig.sent();
    assert_eq!(sent.inline, inline(id, false), "another lock is held");
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
    let id = rig.release(&held);
    let sent = rig.sent();
    assert_eq!(sent.inline, inline(id, true));
    rig.reply(&sent, Reply::Released(0));
    rig.released(id);
}

#[test]
fn callers_are_served_in_their_order_and_only_the_first_talks() {
    let mut rig = Rig::new();
    let ids = [rig.acquire("n"), rig.acquire("n"), rig.acquire("n")];
    rig.engine.cx.config.handovers.0 = 0;
    for (n, id) in ids.into_iter().enumerate() {
        let sent = rig.sent();
        rig.grant(&sent);
        let grant = rig.granted(id);
        assert!(ids[n + 1..].iter().all(|later| rig.pending(*later)));
        rig.nothing_sent();
        rig.free(&grant);
    }
    rig.nothing_left();
}

#[test]
fn names_do_not_wait_for_each_other() {
    let mut rig = Rig::new();
    rig.acquire("a");
    rig.acquire("b");
    assert_eq!(rig.all_sent().len(), 2);
}

#[test]
fn a_try_does_not_pass_those_who_hold_or_wait() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let early = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(early), ErrorKind::Timeout);
    let waits = rig.acquire("n");
    rig.release(&grant);
    let handover = rig.sent();
    // The hand-over gives the lock to a caller that came earlier.
    rig.pass(ms(1));
    let late = rig.try_acquire("n");
    rig.nothing_sent();
    rig.pass_on(&handover);
    rig.granted(waits);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(late), ErrorKind::Timeout);
}

/// Regression test: a try was refused from memory while a hold of its client seemed to live, although
/// others had deleted its key.
#[test]
fn a_try_asks_the_server_although_its_own_client_holds() {
    let kind = |kind| Terms { kind, ..WATCHED };
    let mut cases = [
        Kind::Reentrant,
        Kind::Simple,
        Kind::Fair,
        Kind::Write,
        Kind::Read,
    ]
    .map(|one| (kind(one), kind(one)))
    .to_vec();
    cases[4].0 = kind(Kind::Write);
    for (holds, tries) in cases {
        let mut rig = Rig::new();
        let stale = rig.hold_with("n", OwnerKey::Once, holds);
        let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), tries);
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        assert_eq!(rig.failed(id), ErrorKind::Timeout);
        assert!(rig.is_held(&stale));
        let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), tries);
        let sent = rig.sent();
        rig.grant(&sent);
        rig.granted(id);
        if tries.kind == Kind::Read {
            let looks = rig.all_sent();
            assert_eq!(looks[1].renewal()[0].0, stale.owner());
            let gone = vec![RenewReply::Gone(LostReason::Deleted)];
            rig.reply(&looks[1], Reply::Renewed(gone));
        }
        assert_eq!(rig.lost, [(stale.owner(), LostReason::Deleted)]);
    }
}

#[test]
fn a_burst_of_tries_asks_twice() {
    let mut rig = Rig::new();
    rig.hold("n");
    let first = rig.try_acquire("n");
    let sent = rig.sent();
    rig.pass(ms(1));
    let others: Vec<RequestId> = (0..9).map(|_| rig.try_acquire("n")).collect();
    rig.nothing_sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(first), ErrorKind::Timeout);
    // The answer was to a call that was sent before they came.
    assert!(others.iter().all(|id| rig.pending(*id)));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    for id in others {
        assert_eq!(rig.failed(id), ErrorKind::Timeout);
    }
    rig.nothing_sent();
}

#[test]
fn the_first_waiter_asks_for_those_that_try_behind_it() {
    for kind in [Kind::Reentrant, Kind::Fair] {
        let terms = Terms { kind, ..WATCHED };
        let mut rig = Rig::new();
        let first = rig.acquire_with("n", OwnerKey::Once, None, terms);
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        let (owner, ..) = sent.acquire();
        for granted in [false, true] {
            let tries = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), terms);
            let sent = rig.sent();
            assert_eq!(sent.acquire().0, owner, "nobody passes it");
            if granted {
                rig.grant(&sent);
                rig.granted(first);
                let sent = rig.sent();
                rig.busy(&sent, LEASE);
            } else {
                rig.busy(&sent, LEASE);
            }
            assert_eq!(rig.failed(tries), ErrorKind::Timeout);
            rig.nothing_sent();
        }
    }
}

/// The hold of their client keeps a waiter from asking, until somebody tries behind it.
#[test]
fn a_try_behind_a_waiter_finds_a_hold_gone_that_others_have_deleted() {
    let mut rig = Rig::new();
    let stale = rig.hold("n");
    let waits = rig.acquire("n");
    rig.nothing_sent();
    let tries = rig.try_acquire("n");
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(waits);
    assert_eq!(rig.lost, [(stale.owner(), LostReason::Deleted)]);
    // It asks once more, as the lock that was lost is being cleaned up.
    for _ in 0..2 {
        let mut sent = rig.all_sent();
        sent.retain(|sent| matches!(sent.op, Op::Acquire(_)));
        rig.busy(&sent[0], LEASE);
    }
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
}

/// Regression test: what the first waiter was told once was told to all that tried behind it, as long as
/// their client held the lock.
#[test]
fn a_try_asks_again_when_the_first_waiter_stands_back_no_more() {
    let mut rig = Rig::new();
    rig.hold("n");
    rig.acquire("n");
    let early = rig.try_acquire("n");
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(early), ErrorKind::Unavailable);
    rig.pass(ms(5000));
    rig.nothing_sent();
    let late = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(late), ErrorKind::Timeout);
}

/// Regression test: the time at which the waiter would have asked again came during the hand-over. The
/// waiter then gave up as if nothing were in flight, and the lock stayed for its lease.
#[test]
fn a_hand_over_to_a_waiter_that_has_asked_before_is_given_back() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let waits = rig.acquire("n");
    let tries = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
    rig.release(&grant);
    let handover = rig.sent();
    rig.pass(ms(6000));
    rig.nothing_sent();
    rig.cancel(waits);
    rig.pass_on(&handover);
    assert!(matches!(rig.sent().op, Op::Release(_)));
}

#[test]
fn a_try_behind_waiters_leaves_a_hand_over_as_it_was() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let waits = rig.acquire("n");
    let tries = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
    rig.release(&grant);
    let sent = rig.sent();
    rig.pass_on(&sent);
    rig.granted(waits);
}

/// Regression test: the try failed with `timeout`, as if the lock were held, although the waiter
/// ahead of it could not reach the server either.
#[test]
fn a_try_beside_who_waits_for_a_server_that_is_not_heard_says_so() {
    let mut rig = Rig::new();
    let waits = rig.acquire("n");
    let sent = rig.sent();
    let early = rig.try_acquire("n");
    assert!(rig.pending(early), "its answer is not late yet");
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(early), ErrorKind::Unavailable);
    let late = rig.try_acquire("n");
    let error = rig.error(late);
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Unavailable, Some("n"))
    );
    rig.pass(ms(1100));
    let again = rig.sent();
    let late = rig.try_acquire("n");
    assert_eq!(rig.failed(late), ErrorKind::Unavailable);
    rig.outcome(&again, refused(ErrorKind::Server, true));
    let loading = rig.try_acquire("n");
    assert_eq!(rig.failed(loading), ErrorKind::Server);
    rig.pass(ms(600));
    let again = rig.sent();
    rig.busy(&again, ms(1000));
    let had = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, ms(1000));
    assert_eq!(rig.failed(had), ErrorKind::Timeout);
    rig.cancel(waits);
}

#[test]
fn a_try_goes_right_behind_the_release_that_frees_the_lock() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.input(grant.dropped());
    let release = rig.sent();
    let id = rig.try_acquire("n");
    let sent = rig.sent();
    rig.reply(&release, Reply::Released(0));
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_try_waits_for_the_call_of_a_caller_that_has_gone() {
    let mut rig = Rig::new();
    let gone = rig.acquire("n");
    let first = rig.sent();
    rig.cancel(gone);
    let id = rig.try_acquire("n");
    rig.nothing_sent();
    rig.grant(&first);
    // The grant is released, and the try follows directly behind.
    let sent = rig.all_sent();
    assert_eq!(sent[0].release().0, first.acquire().0);
    rig.grant(&sent[1]);
    rig.granted(id);
}

#[test]
fn a_try_is_one_call_without_a_subscription() {
    let mut rig = Rig::new();
    let id = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_left();
}

#[test]
fn a_try_without_an_answer_fails_and_is_cleaned_up() {
    let mut rig = Rig::new();
    let id = rig.try_acquire("n");
    let sent = rig.sent();
    rig.pass(secs(1));
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    assert_eq!(rig.sent().release(), (sent.acquire().0, 0, Duration::ZERO));
}

#[test]
fn a_held_lock_is_subscribed_and_tried_again_once_that_is_confirmed() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let first = rig.sent();
    rig.busy(&first, LEASE);
    assert_eq!(*rig.subscribed, [Name::from("n")]);
    rig.nothing_sent();
    rig.input(Input::Subscribed("n".into()));
    let second = rig.sent();
    assert_eq!(second.acquire(), first.acquire());
    rig.busy(&second, LEASE);
    rig.nothing_sent();
    rig.input(Input::Message("n".into()));
    let third = rig.sent();
    rig.grant(&third);
    rig.granted(id);
    assert!(rig.subscribed.is_empty());
}

/// A waiter that found the lock held, has subscribed and sleeps.
fn parked(rig: &mut Rig, ttl: Duration) -> RequestId {
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, ttl);
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.busy(&sent, ttl);
    rig.nothing_sent();
    id
}

#[test]
fn messages_during_a_call_bring_one_more_try() {
    let mut rig = Rig::new();
    parked(&mut rig, LEASE);
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    rig.input(Input::Message("n".into()));
    rig.input(Input::Message("n".into()));
    rig.nothing_sent();
    rig.busy(&sent, LEASE);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.nothing_sent();
}

#[test]
fn a_gap_in_the_subscription_brings_a_try() {
    let mut rig = Rig::new();
    parked(&mut rig, LEASE);
    rig.input(Input::Subscribed("n".into()));
    rig.sent().acquire();
}

#[test]
fn a_waiter_looks_again_at_the_recheck_and_never_later() {
    let mut rig = Rig::new();
    parked(&mut rig, LEASE);
    for _ in 0..20 {
        rig.pass(ms(4499));
        rig.nothing_sent();
        rig.pass(ms(1002));
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
    }
}

#[test]
fn a_waiter_looks_again_when_the_holders_time_is_over() {
    let mut rig = Rig::new();
    parked(&mut rig, ms(700));
    rig.pass(ms(701));
    rig.nothing_sent();
    rig.pass(ms(1));
    rig.sent().acquire();
}

#[test]
fn a_key_without_an_expiry_is_looked_at_every_recheck() {
    let mut rig = Rig::new();
    rig.acquire("n");
    let sent = rig.sent();
    rig.reply(&sent, Reply::Busy { ttl: None });
    rig.pass(ms(5501));
    rig.sent().acquire();
}

#[test]
fn an_invalidation_waits_for_the_message_that_follows_it() {
    let mut rig = Rig::new();
    parked(&mut rig, LEASE);
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.nothing_sent();
    rig.pass(ms(5));
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.pass(secs(1));
    rig.nothing_sent();
}

#[test]
fn invalidations_cause_a_try_per_third_of_a_lease_and_none_is_forgotten() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, None, watched(secs(3)));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.pass(ms(10));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    // The holder renews, and then deletes its key without publishing.
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.pass(ms(999));
    rig.nothing_sent();
    rig.pass(ms(1));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn waiters_behind_a_hold_of_this_client_send_nothing_until_its_end() {
    let mut rig = Rig::new();
    rig.engine.cx.config.handovers.0 = 0;
    let grant = rig.hold("n");
    let (second, third) = (rig.acquire("n"), rig.acquire("n"));
    rig.input(Input::Message("n".into()));
    rig.input(Input::Subscribed("n".into()));
    rig.pass(ms(9900));
    rig.nothing_sent();
    let id = rig.release(&grant);
    let release = rig.sent();
    release.release();
    rig.nothing_sent();
    rig.reply(&release, Reply::Released(0));
    rig.released(id);
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(second);
    assert!(rig.pending(third) && rig.subscribed.is_empty());
    rig.input(grant.dropped());
}

#[test]
fn waiters_with_the_key_of_a_new_hold_re_enter_it_past_the_others() {
    let mut rig = Rig::new();
    let first = rig.acquire_with("n", KEY, None, WATCHED);
    let other = rig.acquire("n");
    let again = rig.acquire_with("n", KEY, Some(secs(7)), WATCHED);
    let sent = rig.sent();
    rig.grant(&sent);
    let outer = rig.granted(first);
    let entry = rig.sent();
    assert_eq!(entry.acquire(), (outer.owner(), 2, LEASE));
    rig.grant(&entry);
    let inner = rig.granted(again);
    assert!(Arc::ptr_eq(&outer.cell, &inner.cell) && rig.pending(other));
}

#[test]
fn an_unanswered_try_is_repeated_as_the_same_owner_when_the_first_copy_is_dead() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let first = rig.sent();
    // The connection broke at once. The copy may still be on its way.
    rig.outcome(&first, CallOutcome::Unanswered);
    rig.input(Input::Message("n".into()));
    rig.input(Input::Subscribed("n".into()));
    rig.input(Input::Invalidated(None));
    rig.input(Input::Up(0));
    rig.pass(COPY - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let second = rig.sent();
    assert_eq!(second.acquire(), first.acquire());
    rig.grant(&second);
    rig.granted(id);
    rig.nothing_sent();
}

#[test]
fn a_stale_copy_is_repeated_at_once() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let first = rig.sent();
    rig.reply(&first, Reply::Stale);
    let second = rig.sent();
    assert_eq!(second.acquire(), first.acquire());
    rig.grant(&second);
    rig.granted(id);
}

#[test]
fn errors_that_may_pass_are_waited_for_and_others_end_the_wait() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    for _ in 0..5 {
        let sent = rig.sent();
        rig.outcome(&sent, refused(ErrorKind::Server, true));
        rig.nothing_sent();
        rig.pass(ms(500));
    }
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Denied, false));
    assert_eq!(rig.error(id).lock_name(), Some("n"));
    // A script that was denied halfway may have left something behind.
    let clean = rig.sent();
    assert_eq!(clean.release().0, sent.acquire().0);
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_caller_that_has_gone_is_cleaned_up_after_an_error_as_well() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.cancel(id);
    rig.outcome(&sent, refused(ErrorKind::Denied, false));
    assert_eq!(rig.sent().release().0, sent.acquire().0);
}

#[test]
fn a_foreign_key_ends_the_wait_and_nothing_is_cleaned_up() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.reply(&sent, Reply::Foreign("a string".into()));
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::ForeignKind);
    assert!(error.to_string().contains("a string lies at this name"));
    rig.nothing_left();
}

#[test]
fn a_reply_that_makes_no_sense_is_reported_and_cleaned_up() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.reply(&sent, Reply::Kept);
    assert_eq!(rig.failed(id), ErrorKind::Internal);
    rig.sent().release();
}

#[test]
fn a_grant_that_comes_too_late_is_given_back_and_asked_for_as_a_new_owner() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, None, fixed(ms(100)));
    let first = rig.sent();
    rig.sleep(ms(97));
    rig.grant(&first);
    let sent = rig.all_sent();
    assert_eq!(sent[0].release().0, first.acquire().0);
    assert_ne!(sent[1].acquire().0, first.acquire().0);
    rig.grant(&sent[1]);
    assert_eq!(rig.granted(id).owner(), sent[1].acquire().0);
}

#[test]
fn a_try_that_is_granted_too_late_fails() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(Duration::ZERO), fixed(ms(100)));
    let first = rig.sent();
    rig.sleep(ms(97));
    rig.grant(&first);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    assert_eq!(rig.sent().release().0, first.acquire().0);
}

#[test]
fn waiting_goes_on_where_subscribing_is_denied() {
    let mut rig = Rig::new();
    rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    let denied = Error::new(ErrorKind::Denied, "no channels for you");
    rig.input(Input::Unsubscribable("n".into(), denied));
    assert!(rig.events.contains(&"unsubscribable"));
    rig.pass(ms(5501));
    rig.sent().acquire();
}

#[test]
fn a_wait_ends_in_time_in_every_place_of_the_queue() {
    let mut rig = Rig::new();
    let head = rig.acquire("n");
    let sent = rig.sent();
    let behind = rig.acquire_with("n", OwnerKey::Once, Some(ms(300)), WATCHED);
    rig.pass(ms(299));
    assert!(rig.pending(behind));
    rig.pass(ms(1));
    let error = rig.error(behind);
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Unavailable, Some("n"))
    );
    rig.grant(&sent);
    rig.granted(head);
    rig.nothing_sent();
}

// ---- the error of a wait that was not long enough ----

fn waits(rig: &mut Rig, wait: Duration) -> RequestId {
    rig.acquire_with("n", OwnerKey::Once, Some(wait), WATCHED)
}

#[test]
fn a_wait_without_a_connection_does_not_say_that_somebody_has_the_lock() {
    let mut rig = Rig::offline();
    let ids = [waits(&mut rig, secs(1)), waits(&mut rig, secs(1))];
    let short = waits(&mut rig, ms(300));
    rig.pass(ms(300));
    assert_eq!(rig.failed(short), ErrorKind::Unavailable);
    rig.pass(ms(700));
    for id in ids {
        let error = rig.error(id);
        assert_eq!(
            (error.kind(), error.lock_name()),
            (ErrorKind::Unavailable, Some("n"))
        );
        assert!(
            error
                .message()
                .contains("no connection to the server within 1s"),
            "{error}"
        );
    }
    rig.nothing_left();
}

/// Regression test: a server that hung answered "others have it" to waits below a second.
#[test]
fn a_short_wait_without_an_answer_does_not_say_that_somebody_has_the_lock() {
    let permits = Terms {
        kind: Kind::Semaphore,
        reentrant: false,
        special: Special {
            limit: 1,
            ..Special::NONE
        },
        ..WATCHED
    };
    let kinds =
        [Kind::Simple, Kind::Fair, Kind::Read, Kind::Write].map(|kind| Terms { kind, ..WATCHED });
    for terms in kinds.into_iter().chain([WATCHED, permits]) {
        let mut rig = Rig::new();
        let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(20)), terms);
        rig.sent().acquire();
        rig.pass(ms(20));
        assert_eq!(rig.failed(id), ErrorKind::Unavailable, "{:?}", terms.kind);
    }
}

#[test]
fn a_wait_that_was_refused_in_its_time_is_a_timeout_whatever_comes_after() {
    let mut rig = Rig::new();
    let id = waits(&mut rig, ms(900));
    let sent = rig.sent();
    rig.busy(&sent, ms(100));
    rig.pass(ms(200));
    // The next try gets no answer.
    rig.sent().acquire();
    rig.pass(ms(700));
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
}

#[test]
fn an_answer_to_the_head_counts_for_the_whole_queue() {
    let mut rig = Rig::new();
    waits(&mut rig, secs(10));
    let behind = waits(&mut rig, ms(300));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.pass(ms(300));
    assert_eq!(rig.failed(behind), ErrorKind::Timeout);
    let later = waits(&mut rig, ms(300));
    rig.pass(ms(300));
    assert_eq!(rig.failed(later), ErrorKind::Timeout);
}

#[test]
fn a_message_before_the_wait_does_not_count() {
    let mut rig = Rig::new();
    let head = waits(&mut rig, secs(10));
    let sent = rig.sent();
    rig.busy(&sent, ms(100));
    rig.pass(ms(200));
    let again = rig.sent();
    let late = waits(&mut rig, secs(1));
    let short = waits(&mut rig, ms(300));
    rig.pass(ms(300));
    assert_eq!(rig.failed(short), ErrorKind::Unavailable);
    rig.pass(ms(700));
    assert_eq!(rig.failed(late), ErrorKind::Unavailable);
    rig.grant(&again);
    rig.granted(head);
}

#[test]
fn a_wait_behind_a_hold_of_the_same_client_is_a_timeout_also_when_its_release_is_not_answered() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let ids = [waits(&mut rig, ms(300)), waits(&mut rig, ms(600))];
    rig.pass(ms(300));
    assert_eq!(rig.failed(ids[0]), ErrorKind::Timeout);
    rig.release(&grant);
    rig.all_sent();
    rig.pass(ms(300));
    assert_eq!(rig.failed(ids[1]), ErrorKind::Timeout);
}

#[test]
fn one_process_keeps_the_lock_and_the_others_wait() {
    let mut rig = Rig::new();
    let first = waits(&mut rig, secs(10));
    let sent = rig.sent();
    let behind = waits(&mut rig, ms(300));
    rig.grant(&sent);
    let grant = rig.granted(first);
    rig.pass(ms(100));
    rig.release(&grant);
    let handover = rig.sent();
    rig.outcome(&handover, CallOutcome::Unanswered);
    let sent = rig.all_sent();
    rig.reply(&sent[0], Reply::Released(0));
    // No hold blocks the queue any more, and the next try is not answered.
    rig.pass(ms(200));
    assert_eq!(rig.failed(behind), ErrorKind::Timeout);
}

#[test]
fn a_wait_in_which_the_server_only_said_no_ends_with_what_it_said() {
    let mut rig = Rig::new();
    let id = waits(&mut rig, ms(40));
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Server, true));
    rig.pass(ms(40));
    assert_eq!(rig.failed(id), ErrorKind::Server);
    let id = waits(&mut rig, ms(40));
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    rig.pass(ms(40));
    assert!(rig.error(id).message().contains("nothing was done"));
}

#[test]
fn an_outcome_that_nobody_expects_changes_nothing() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.grant(&sent);
    rig.input(Input::Outcome {
        call: 4711,
        outcome: CallOutcome::Unanswered,
    });
    assert!(rig.pending(id));
    rig.nothing_sent();
}

#[test]
fn the_token_of_the_first_grant_is_kept() {
    let mut rig = Rig::new();
    let terms = Terms {
        fencing: Fencing::Expiring,
        ..WATCHED
    };
    let id = rig.acquire_with("n", KEY, None, terms);
    let sent = rig.sent();
    assert!(matches!(
        sent.op,
        Op::Acquire(Acquire {
            fencing: Fencing::Expiring,
            ..
        })
    ));
    rig.reply(
        &sent,
        Reply::Acquired {
            ttl: LEASE,
            token: Some(42),
        },
    );
    assert_eq!(rig.granted(id).cell.token(), Some(42));
    let id = rig.acquire_with("n", KEY, None, terms);
    let sent = rig.sent();
    assert!(matches!(
        sent.op,
        Op::Acquire(Acquire {
            fencing: Fencing::Off,
            ..
        })
    ));
    rig.grant(&sent);
    assert_eq!(rig.granted(id).cell.token(), Some(42));
}

#[test]
fn a_call_that_was_not_sent_though_the_link_is_up_is_sent_again() {
    let mut rig = Rig::new();
    let (id, tried) = (rig.acquire("n"), rig.try_acquire("m"));
    for sent in rig.all_sent() {
        rig.outcome(&sent, CallOutcome::NotSent);
    }
    assert_eq!(rig.failed(tried), ErrorKind::Unavailable);
    rig.pass(ms(500));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

/// After a fail-over the server knows no script. A release that must be sent again with its text
/// arrives after a try that was sent later, and the try would be refused although the lock is
/// nearly free.
#[test]
fn a_try_that_has_overtaken_our_own_release_is_sent_once_more() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let left = rig.release(&grant);
    let release = rig.sent();
    let id = rig.try_acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    let again = rig.sent();
    rig.reply(&release, Reply::Released(0));
    rig.released(left);
    rig.grant(&again);
    let second = rig.granted(id);
    // The try is repeated once, whatever the outcome of the release.
    rig.release(&second);
    rig.all_sent();
    let id = rig.try_acquire("n");
    for _ in 0..2 {
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
    }
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_sent();
}
