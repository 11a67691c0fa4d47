//! Simple locks whose value the caller gives.

use super::*;

fn form() -> Form {
    Form {
        kind: Kind::Simple,
        token: Some("t".into()),
        ..Form::default()
    }
}

fn acquire(rig: &mut Rig) -> RequestId {
    acquire_within(rig, None)
}

fn acquire_within(rig: &mut Rig, wait: Option<Duration>) -> RequestId {
    let terms = Terms {
        kind: Kind::Simple,
        reentrant: false,
        ..WATCHED
    };
    rig.request(Request::Acquire {
        name: "n".into(),
        key: OwnerKey::Once,
        wait,
        terms,
        token: Some("t".into()),
    })
}

fn try_acquire(rig: &mut Rig) -> RequestId {
    acquire_within(rig, Some(Duration::ZERO))
}

fn hold(rig: &mut Rig) -> Grant {
    let id = acquire(rig);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id)
}

/// A try without an answer. Its clean-up has sent its first release, and sends another one when no
/// copy of the try can run any more.
fn unanswered_try(rig: &mut Rig) {
    let id = try_acquire(rig);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
}

/// The clean-up of an unanswered try sends its last release, which is answered.
fn last_release(rig: &mut Rig) {
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.reply(&sent, Reply::Released(0));
}

#[test]
fn a_value_that_lies_there_already_is_somebody_else_s() {
    let mut rig = Rig::new();
    acquire(&mut rig);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 0);
    rig.busy(&sent, secs(1));
    rig.pass(secs(2));
    assert_eq!(rig.sent().acquire().1, 0);
}

#[test]
fn after_a_copy_without_an_answer_it_may_be_ours() {
    let mut rig = Rig::new();
    let id = acquire(&mut rig);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.pass(COPY);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 1);
    rig.reply(
        &sent,
        Reply::Acquired {
            ttl: LEASE,
            token: None,
        },
    );
    assert!(matches!(rig.done(id), Done::Granted { .. }));
}

#[test]
fn the_token_is_enough_to_release_and_extend() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ExtendToken {
        name: "n".into(),
        form: form(),
        lease: LEASE,
    });
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(0, LEASE)]);
    rig.reply(&sent, Reply::Renewed(vec![RenewReply::Kept]));
    assert!(matches!(rig.done(id), Done::Extended));
    let id = rig.request(Request::ReleaseToken {
        name: "n".into(),
        form: form(),
    });
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.reply(&sent, Reply::Released(0));
    assert!(matches!(rig.done(id), Done::Released));
    rig.nothing_left();
}

#[test]
fn a_token_of_nobody_is_not_the_owner_s() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ExtendToken {
        name: "n".into(),
        form: form(),
        lease: LEASE,
    });
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)]),
    );
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    let id = rig.request(Request::ReleaseToken {
        name: "n".into(),
        form: form(),
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
}

#[test]
fn a_lock_freed_by_an_unanswered_copy_is_released() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ReleaseToken {
        name: "n".into(),
        form: form(),
    });
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert!(matches!(rig.done(id), Done::Released));
}

#[test]
fn a_hold_of_this_client_is_looked_at_when_its_token_was_used() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.request(Request::ReleaseToken {
        name: "n".into(),
        form: form(),
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    assert_eq!(rig.sent().renewal()[0].0, grant.owner());
}

#[test]
fn a_token_is_tried_again_after_its_clean_up() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    let id = acquire(&mut rig);
    rig.nothing_sent();
    rig.pass(COPY);
    last_release(&mut rig);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 0);
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.pass(secs(9));
    rig.nothing_sent();
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_try_once_waits_for_the_clean_up_of_its_token() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    rig.pass(ms(500));
    let id = try_acquire(&mut rig);
    rig.nothing_sent();
    rig.pass(COPY - ms(500));
    last_release(&mut rig);
    let sent = rig.sent();
    rig.pass(ms(900));
    assert!(rig.pending(id));
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_try_once_does_not_wait_longer_than_a_call_for_its_token() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    rig.pass(ms(500));
    let id = try_acquire(&mut rig);
    rig.pass(ms(999));
    assert!(rig.pending(id));
    rig.pass(ms(1));
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("this token"), "{error}");
    // The release of the clean-up is in flight.
    last_release(&mut rig);
    rig.nothing_left();
}

#[test]
fn a_wait_for_the_clean_up_of_a_token_is_no_timeout() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    let id = acquire_within(&mut rig, Some(ms(100)));
    rig.pass(ms(100));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
}

#[test]
fn others_wait_for_no_token() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    rig.try_acquire("n");
    assert_eq!(rig.sent().acquire().1, 1);
}

#[test]
fn a_grant_that_came_too_late_is_released_before_its_token_is_tried_again() {
    let mut rig = Rig::new();
    let id = acquire(&mut rig);
    let sent = rig.sent();
    rig.sleep(LEASE);
    rig.grant(&sent);
    let release = rig.sent();
    assert_eq!(release.release().1, 0);
    rig.reply(&release, Reply::Released(0));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_token_is_tried_again_after_its_release_is_confirmed() {
    let mut rig = Rig::new();
    let grant = hold(&mut rig);
    let released = rig.release(&grant);
    let sent = rig.sent();
    let id = try_acquire(&mut rig);
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.nothing_sent();
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    rig.released(released);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 0);
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn unwinding_a_lost_hold_spares_the_next_one_with_its_token() {
    let mut rig = Rig::new();
    let lost = hold(&mut rig);
    rig.pass(LEASE / 3);
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    let id = acquire(&mut rig);
    last_release(&mut rig);
    let sent = rig.sent();
    // A try with the token is in flight: its lock must not be released under it.
    rig.input(lost.dropped());
    rig.nothing_sent();
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.nothing_sent();
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_lost_hold_that_is_unwound_later_spares_the_next_one_with_its_token() {
    let mut rig = Rig::new();
    let lost = hold(&mut rig);
    rig.pass(LEASE / 3);
    let sent = rig.sent();
    rig.reply(
        &sent,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    last_release(&mut rig);
    let grant = hold(&mut rig);
    let id = rig.release(&lost);
    assert_eq!(rig.failed(id), ErrorKind::Lost);
    rig.nothing_sent();
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_hold_is_looked_at_when_a_clean_up_by_token_frees_its_name() {
    let mut rig = Rig::new();
    let id = try_acquire(&mut rig);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let cleanup = rig.sent();
    let grant = rig.hold("n");
    rig.reply(&cleanup, Reply::Released(0));
    assert_eq!(rig.sent().renewal()[0].0, grant.owner());
}

/// The lock of a token whose hold here has run out may be another process' by now.
#[test]
fn a_token_that_ran_out_here_is_left_to_others() {
    let mut rig = Rig::new();
    let id = rig.request(Request::Acquire {
        name: "n".into(),
        key: OwnerKey::Once,
        wait: None,
        terms: Terms {
            lease: Lease::Fixed(LEASE),
            reentrant: false,
            kind: Kind::Simple,
            ..WATCHED
        },
        token: Some("t".into()),
    });
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.pass(LEASE);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
    rig.nothing_sent();
    let id = rig.release(&grant);
    assert_eq!(rig.failed(id), ErrorKind::Lost);
    rig.nothing_sent();
    rig.nothing_left();
}

#[test]
fn a_token_that_an_outage_ended_here_is_left_to_others() {
    let mut rig = Rig::new();
    let grant = hold(&mut rig);
    rig.input(down());
    rig.pass(LEASE);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Unreachable)]);
    rig.input(Input::Up(0));
    rig.nothing_sent();
    rig.input(grant.dropped());
    rig.nothing_sent();
    rig.nothing_left();
}

#[test]
fn a_clean_up_by_token_does_not_end_before_its_release_is_answered() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    acquire(&mut rig);
    rig.pass(COPY);
    // The server answers no release in time. Each is answered as late as its limit allows, also
    // the one that is in flight when the lease has ended.
    let (mut open, mut waited, mut tried) = (Some(rig.sent()), 0, false);
    for _ in 0..10_000 {
        rig.pass(ms(5));
        waited += 5;
        for next in rig.all_sent() {
            if matches!(next.op, Op::Acquire(_)) {
                assert!(open.is_none(), "tried beside a release in flight");
                tried = true;
            } else {
                (open, waited) = (Some(next), 0);
            }
        }
        if waited >= 995
            && let Some(late) = open.take()
        {
            rig.outcome(&late, CallOutcome::Unanswered);
        }
    }
    assert!(tried, "the next attempt is tried in the end");
}

#[test]
fn a_token_waits_for_a_release_that_is_in_flight_at_the_deadline() {
    let mut rig = Rig::new();
    let grant = hold(&mut rig);
    rig.release(&grant);
    let mut open = rig.sent();
    // Copies of the release get no answer until the deadline. The last one is in flight then, and
    // a clean-up begins beside it.
    let cleanup = 'deadline: loop {
        for _ in 0..95 {
            rig.pass(ms(10));
            if let Some(next) = rig.all_sent().into_iter().next() {
                break 'deadline next;
            }
        }
        rig.outcome(&open, CallOutcome::Unanswered);
        rig.pass(ms(250));
        open = rig.sent();
    };
    let id = acquire(&mut rig);
    rig.reply(&cleanup, Reply::Gone(LostReason::Deleted));
    rig.nothing_sent();
    // The old copy may run until its limit. Another release follows then, and after it the try.
    rig.pass(COPY);
    let again = rig.sent();
    assert!(matches!(again.op, Op::Release(_)), "{:?}", again.op);
    rig.reply(&again, Reply::Gone(LostReason::Deleted));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_caller_behind_a_busy_token_is_not_told_of_a_holder() {
    let mut rig = Rig::new();
    unanswered_try(&mut rig);
    acquire(&mut rig);
    rig.nothing_sent();
    let id = rig.try_acquire("n");
    assert_eq!(rig.error(id).kind(), ErrorKind::Unavailable);
    let terms = Terms {
        kind: Kind::Simple,
        reentrant: false,
        ..WATCHED
    };
    let id = rig.request(Request::Acquire {
        name: "n".into(),
        key: OwnerKey::Once,
        wait: Some(ms(100)),
        terms,
        token: None,
    });
    rig.pass(ms(100));
    assert_eq!(rig.error(id).kind(), ErrorKind::Unavailable);
}

// ---- adoption ----

fn simple_terms() -> Terms {
    Terms {
        kind: Kind::Simple,
        reentrant: false,
        ..WATCHED
    }
}

fn adopt_as(rig: &mut Rig, key: OwnerKey) -> RequestId {
    rig.request(Request::Adopt {
        name: "n".into(),
        key,
        terms: simple_terms(),
        token: "t".into(),
    })
}

fn adopt(rig: &mut Rig) -> RequestId {
    adopt_as(rig, OwnerKey::Once)
}

/// The new owner of an adoption.
fn adoption(sent: &Sent) -> OwnerId {
    let Op::HandOver(HandOver { adopts, to, .. }) = &sent.op else {
        panic!("no adoption: {:?}", sent.op)
    };
    assert_eq!(adopts.as_deref(), Some("t"));
    *to
}

#[test]
fn an_adopted_lock_is_renewed_and_released_by_an_owner_of_its_own() {
    let mut rig = Rig::new();
    let id = adopt(&mut rig);
    let sent = rig.sent();
    let owner = adoption(&sent);
    rig.pass_on(&sent);
    let grant = rig.granted(id);
    assert_eq!(grant.owner(), owner);
    rig.pass(LEASE / 3);
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(owner, LEASE)]);
    rig.reply(&sent, Reply::Renewed(vec![RenewReply::Kept]));
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn a_token_without_a_lock_is_not_adopted() {
    for reason in [LostReason::Deleted, LostReason::Stolen] {
        let mut rig = Rig::new();
        let id = adopt(&mut rig);
        let sent = rig.sent();
        rig.reply(&sent, Reply::Gone(reason));
        assert_eq!(rig.failed(id), ErrorKind::NotOwner);
        rig.nothing_left();
    }
}

#[test]
fn a_hold_of_this_client_is_lost_when_its_token_is_adopted() {
    let mut rig = Rig::new();
    let grant = hold(&mut rig);
    let id = adopt(&mut rig);
    let sent = rig.sent();
    rig.pass_on(&sent);
    let adopted = rig.granted(id);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Stolen)]);
    let release = rig.sent();
    rig.reply(&release, Reply::Gone(LostReason::Stolen));
    rig.input(grant.dropped());
    let release = rig.sent();
    rig.reply(&release, Reply::Gone(LostReason::Stolen));
    rig.free(&adopted);
    rig.nothing_left();
}

#[test]
fn a_copy_of_an_adoption_without_an_answer_is_repeated_as_the_same_owner() {
    let mut rig = Rig::new();
    let id = adopt(&mut rig);
    let sent = rig.sent();
    let owner = adoption(&sent);
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.input(Input::Identity(7));
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(adoption(&sent), owner);
    rig.pass_on(&sent);
    rig.granted(id);
}

#[test]
fn an_adoption_that_was_not_sent_gets_an_owner_of_the_new_connection() {
    let mut rig = Rig::offline();
    adopt(&mut rig);
    rig.nothing_sent();
    rig.input(Input::Identity(7));
    rig.input(Input::Up(0));
    let owner = adoption(&rig.sent());
    assert!(!rig.engine.cx.is_outdated(owner));
}

#[test]
fn a_lock_that_was_adopted_for_nobody_is_released() {
    let mut rig = Rig::new();
    let id = adopt(&mut rig);
    let sent = rig.sent();
    let owner = adoption(&sent);
    rig.input(Input::Cancel { id });
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    let first = rig.sent();
    assert_eq!(first.release().0, owner);
    rig.reply(&first, Reply::Gone(LostReason::Stolen));
    rig.pass_on(&sent);
    rig.nothing_sent();
    rig.pass(COPY);
    let last = rig.sent();
    assert_eq!(last.release().0, owner);
    rig.reply(&last, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn an_adoption_that_is_answered_too_late_is_released() {
    let mut rig = Rig::new();
    let id = adopt(&mut rig);
    let sent = rig.sent();
    rig.sleep(LEASE);
    rig.pass_on(&sent);
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let release = rig.sent();
    assert_eq!(release.release().0, adoption(&sent));
    rig.reply(&release, Reply::Released(0));
}

#[test]
fn too_few_replicas_undo_an_adoption() {
    let mut rig = Rig::new();
    let id = rig.request(Request::Adopt {
        name: "n".into(),
        key: OwnerKey::Once,
        terms: Terms {
            replicas: 1,
            ..simple_terms()
        },
        token: "t".into(),
    });
    let sent = rig.sent();
    assert_eq!(sent.op.replicas(), 1);
    rig.reply(&sent, Reply::NotReplicated { got: 0 });
    assert_eq!(rig.failed(id), ErrorKind::NotReplicated);
    assert_eq!(rig.sent().release().0, adoption(&sent));
}

#[test]
fn a_key_that_has_the_lock_adopts_no_other_hold() {
    let mut rig = Rig::new();
    let first = adopt_as(&mut rig, KEY);
    let sent = rig.sent();
    rig.pass_on(&sent);
    rig.granted(first);
    let second = adopt_as(&mut rig, KEY);
    rig.nothing_sent();
    assert_eq!(rig.failed(second), ErrorKind::InvalidArgument);
}
