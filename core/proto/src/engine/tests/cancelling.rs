//! Callers that stop waiting, in every state.

use super::*;

#[test]
fn a_queued_waiter_goes_without_a_trace() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.acquire("n");
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_waiter_without_a_link_goes_without_a_trace() {
    let mut rig = Rig::offline();
    let id = rig.acquire("n");
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.nothing_left();
    rig.input(Input::Up(0));
    rig.nothing_left();
}

#[test]
fn a_parked_waiter_gives_up_its_subscription() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.subscribed.len(), 1);
    // The subscription is not even confirmed.
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.input(Input::Subscribed("n".into()));
    rig.input(Input::Message("n".into()));
    rig.nothing_left();
}

#[test]
fn a_parked_head_hands_on_to_the_next() {
    let mut rig = Rig::new();
    let (head, next) = (rig.acquire("n"), rig.acquire("n"));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.cancel(head);
    let second = rig.sent();
    assert_ne!(second.acquire().0, sent.acquire().0);
    rig.grant(&second);
    rig.granted(next);
}

/// Cancels a caller while its call is in flight. The next caller waits for the outcome.
fn cancelled_in_flight(rig: &mut Rig) -> (Sent, RequestId) {
    let id = rig.acquire("n");
    let sent = rig.sent();
    let next = rig.acquire("n");
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.nothing_sent();
    // A second cancel causes no second answer.
    rig.cancel(id);
    (sent, next)
}

#[test]
fn a_grant_that_nobody_takes_is_given_back() {
    let mut rig = Rig::new();
    let (sent, next) = cancelled_in_flight(&mut rig);
    rig.grant(&sent);
    let out = rig.all_sent();
    assert_eq!(out[0].release(), (sent.acquire().0, 0, Duration::ZERO));
    rig.reply(&out[0], Reply::Released(0));
    rig.grant(&out[1]);
    let grant = rig.granted(next);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_refusal_that_nobody_takes_needs_no_clean_up() {
    for reply in [
        Reply::Busy { ttl: Some(LEASE) },
        Reply::Stale,
        Reply::Foreign("a list".into()),
    ] {
        let mut rig = Rig::new();
        let (sent, _) = cancelled_in_flight(&mut rig);
        rig.reply(&sent, reply);
        rig.sent().acquire();
    }
}

#[test]
fn no_answer_for_nobody_is_cleaned_up_at_once_and_once_more() {
    let mut rig = Rig::new();
    let (sent, _) = cancelled_in_flight(&mut rig);
    rig.pass(ms(400));
    rig.outcome(&sent, CallOutcome::Unanswered);
    let out = rig.all_sent();
    assert_eq!(out[0].release().0, sent.acquire().0);
    assert_ne!(out[1].acquire().0, sent.acquire().0);
    rig.busy(&out[1], ms(20));
    rig.reply(&out[0], Reply::Gone(LostReason::Deleted));
    rig.pass(COPY - ms(401));
    let tries = rig.all_sent();
    assert!(tries.iter().all(|sent| matches!(sent.op, Op::Acquire(_))));
    rig.pass(ms(1));
    assert_eq!(rig.sent().release().0, sent.acquire().0);
}

#[test]
fn a_call_that_was_never_sent_needs_no_clean_up() {
    let mut rig = Rig::new();
    let (sent, _) = cancelled_in_flight(&mut rig);
    rig.outcome(&sent, CallOutcome::NotSent);
    rig.sent().acquire();
}

#[test]
fn a_wait_that_ends_during_a_retry_pause_is_cleaned_up() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(500)), WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.pass(ms(500));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let first = rig.sent();
    rig.reply(&first, Reply::Gone(LostReason::Deleted));
    rig.pass(COPY - ms(501));
    rig.nothing_sent();
    rig.pass(ms(1));
    let second = rig.sent();
    assert_eq!(second.release(), (sent.acquire().0, 0, Duration::ZERO));
    rig.reply(&second, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn a_wait_that_ends_in_flight_is_answered_in_time() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(100)), WATCHED);
    let sent = rig.sent();
    rig.pass(ms(100));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.grant(&sent);
    rig.sent().release();
}

#[test]
fn a_key_takes_permits_while_its_last_wait_is_in_flight() {
    let permits = Terms {
        kind: Kind::Semaphore,
        reentrant: false,
        permits: 1,
        special: Special {
            limit: 1,
            ..Special::NONE
        },
        ..WATCHED
    };
    let mut rig = Rig::new();
    let late = rig.acquire_with("n", KEY, Some(ms(100)), permits);
    let sent = rig.sent();
    rig.pass(ms(100));
    assert_eq!(rig.failed(late), ErrorKind::Unavailable);
    let again = rig.acquire_with("n", KEY, None, permits);
    assert!(rig.pending(again));
    rig.grant(&sent);
    let [given_back, second] = <[Sent; 2]>::try_from(rig.all_sent()).unwrap();
    assert_eq!(given_back.release().0, sent.acquire().0);
    assert_ne!(second.acquire().0, sent.acquire().0);
    rig.reply(&given_back, Reply::Released(0));
    rig.grant(&second);
    rig.granted(again);
}

#[test]
fn a_grant_at_the_very_end_of_the_wait_is_too_late() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(100)), WATCHED);
    let sent = rig.sent();
    rig.sleep(ms(100));
    rig.grant(&sent);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.sent().release();
}

#[test]
fn a_cancel_after_the_grant_is_ignored() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.grant(&sent);
    rig.cancel(id);
    let grant = rig.granted(id);
    assert!(rig.is_held(&grant));
    rig.nothing_sent();
}

// ---- re-entry ----

#[test]
fn a_queued_re_entry_is_not_sent_any_more() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    rig.request(Request::Extend {
        target: outer.target(),
        lease: LEASE,
    });
    let extension = rig.sent();
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.keep(&extension);
    rig.nothing_sent();
}

#[test]
fn a_re_entry_without_a_link_is_not_sent_any_more() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    rig.input(down());
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    rig.cancel(id);
    rig.input(Input::Up(0));
    let renewal = rig.sent();
    rig.keep(&renewal);
    rig.free(&outer);
}

/// The cancelled re-entry may have been counted on the server. The count is settled to one level.
fn settled(rig: &mut Rig, outer: &Grant) {
    let settle = rig.sent();
    assert_eq!(settle.release(), (outer.owner(), 1, LEASE));
    rig.reply(&settle, Reply::Kept);
    assert!(rig.is_held(outer) && outer.cell.count() == 1);
    rig.free(outer);
    rig.nothing_left();
}

#[test]
fn a_re_entry_that_nobody_takes_is_undone() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.grant(&sent);
    settled(&mut rig, &outer);
}

#[test]
fn a_re_entry_without_an_answer_is_undone_when_its_copy_is_dead() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.pass(COPY - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    settled(&mut rig, &outer);
}

#[test]
fn a_re_entry_has_its_time_and_then_is_undone() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, Some(ms(300)), WATCHED);
    let sent = rig.sent();
    rig.pass(ms(300));
    // This is not a timeout: no other owner can have the lock.
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.grant(&sent);
    settled(&mut rig, &outer);
}

#[test]
fn a_queued_re_entry_has_its_time_as_well() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    rig.request(Request::Extend {
        target: outer.target(),
        lease: LEASE,
    });
    let extension = rig.sent();
    let id = rig.acquire_with("n", KEY, Some(ms(300)), WATCHED);
    rig.pass(ms(300));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.keep(&extension);
    rig.nothing_sent();
}

#[test]
fn a_re_entry_that_tries_once_fails_without_an_answer() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let first = rig.acquire_with("n", KEY, Some(Duration::ZERO), WATCHED);
    let queued = rig.acquire_with("n", KEY, Some(Duration::ZERO), WATCHED);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(first), ErrorKind::Unavailable);
    assert_eq!(rig.failed(queued), ErrorKind::Unavailable);
    rig.pass(COPY);
    settled(&mut rig, &outer);
}

// ---- other callers ----

#[test]
fn a_release_goes_on_without_its_caller() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.release(&grant);
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn an_extension_is_not_repeated_without_its_caller() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let id = rig.request(Request::Extend {
        target: grant.target(),
        lease: LEASE,
    });
    let sent = rig.sent();
    rig.cancel(id);
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.pass(secs(5));
    rig.nothing_sent();
    rig.free(&grant);
}

#[test]
fn a_question_ends_when_its_caller_goes() {
    let mut rig = Rig::new();
    let id = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.reply(&sent, Reply::Holders(Vec::new()));
    rig.nothing_left();
}
