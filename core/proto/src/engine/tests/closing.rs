//! Closing a client.

use super::*;

fn close(rig: &mut Rig, limit: Duration) -> RequestId {
    rig.request(Request::Close { limit })
}

fn closed(rig: &mut Rig, id: RequestId) -> Vec<String> {
    match rig.done(id) {
        Done::Closed(names) => names.iter().map(ToString::to_string).collect(),
        other => panic!("not closed: {other:?}"),
    }
}

#[test]
fn closing_an_idle_client_ends_at_once() {
    let mut rig = Rig::offline();
    let id = close(&mut rig, secs(5));
    assert!(closed(&mut rig, id).is_empty() && rig.stopped);
    rig.nothing_left();
    let id = rig.acquire("n");
    assert_eq!(rig.failed(id), ErrorKind::Closed);
    let id = close(&mut rig, secs(5));
    assert!(closed(&mut rig, id).is_empty());
}

#[test]
fn closing_releases_every_hold_and_tells_its_holder() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("a", KEY, WATCHED);
    rig.hold_with("a", KEY, WATCHED);
    let other = rig.hold("b");
    let id = close(&mut rig, secs(5));
    assert_eq!(
        rig.lost,
        [
            (outer.owner(), LostReason::Closed),
            (other.owner(), LostReason::Closed)
        ]
    );
    assert!(!rig.is_held(&outer) && !rig.is_held(&other));
    let sent = rig.all_sent();
    assert!(sent.iter().all(|sent| sent.release().1 == 0) && sent.len() == 2);
    rig.reply(&sent[0], Reply::Released(0));
    assert!(rig.pending(id));
    // A second close waits for the same releases.
    let second = close(&mut rig, ms(1));
    rig.reply(&sent[1], Reply::Released(0));
    assert!(closed(&mut rig, id).is_empty() && closed(&mut rig, second).is_empty());
    assert!(rig.stopped);
    rig.nothing_left();
}

#[test]
fn closing_without_time_leaves_every_hold_to_its_lease_and_names_it() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let (other, waiter) = (rig.hold("m"), rig.acquire("m"));
    let id = close(&mut rig, Duration::ZERO);
    assert_eq!(
        rig.lost,
        [
            (grant.owner(), LostReason::Closed),
            (other.owner(), LostReason::Closed)
        ]
    );
    rig.nothing_sent();
    assert_eq!(closed(&mut rig, id), ["m", "n"]);
    assert_eq!(rig.failed(waiter), ErrorKind::Closed);
    assert!(rig.stopped);
}

#[test]
fn closing_ends_every_wait_and_sends_nothing_for_it() {
    let mut rig = Rig::new();
    let ids = [rig.acquire("n"), rig.acquire("n"), rig.acquire("n")];
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    let question = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    rig.sent();
    let id = close(&mut rig, secs(5));
    for id in ids.into_iter().chain([question]) {
        assert_eq!(rig.failed(id), ErrorKind::Closed);
    }
    rig.nothing_sent();
    assert!(closed(&mut rig, id).is_empty() && rig.subscribed.is_empty());
}

#[test]
fn closing_settles_an_acquire_in_flight() {
    let mut rig = Rig::new();
    let waiting = rig.acquire("n");
    let sent = rig.sent();
    let id = close(&mut rig, secs(5));
    assert_eq!(rig.failed(waiting), ErrorKind::Closed);
    assert!(rig.pending(id));
    rig.grant(&sent);
    let clean = rig.sent();
    rig.reply(&clean, Reply::Released(0));
    assert!(closed(&mut rig, id).is_empty());
    rig.nothing_left();
}

#[test]
fn closing_answers_what_is_wanted_of_a_hold() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, WATCHED);
    let entering = rig.acquire_with("n", KEY, None, WATCHED);
    let entry = rig.sent();
    let leaving = rig.release(&outer);
    let id = close(&mut rig, secs(5));
    assert_eq!(rig.failed(entering), ErrorKind::Closed);
    assert_eq!(rig.failed(leaving), ErrorKind::Closed);
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.grant(&entry);
    rig.nothing_sent();
    rig.reply(&sent, Reply::Released(0));
    assert!(closed(&mut rig, id).is_empty());
    rig.nothing_left();
}

#[test]
fn closing_ends_within_its_limit_and_says_what_it_could_not_release() {
    let mut rig = Rig::new();
    let kept = rig.hold("held");
    let freed = rig.hold("releasing");
    let leaving = rig.release(&freed);
    rig.sent();
    let waiting = rig.acquire("asked");
    rig.sent();
    rig.input(down());
    let id = close(&mut rig, secs(2));
    rig.pass(ms(1999));
    assert!(rig.pending(id) && !rig.stopped);
    rig.pass(ms(1));
    assert_eq!(closed(&mut rig, id), ["asked", "held", "releasing"]);
    assert!(rig.stopped && !rig.is_held(&kept));
    assert_eq!(rig.failed(leaving), ErrorKind::Closed);
    assert_eq!(rig.failed(waiting), ErrorKind::Closed);
}

#[test]
fn closing_says_what_the_server_did_not_let_it_release() {
    let mut rig = Rig::new();
    rig.hold("n");
    let id = close(&mut rig, secs(5));
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Denied, false));
    assert_eq!(closed(&mut rig, id), ["n"]);
}

#[test]
fn closing_forgets_lost_holds_and_waits_for_their_clean_up() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", KEY, WATCHED);
    rig.input(Input::Invalidated(None));
    let look = rig.sent();
    rig.reply(
        &look,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    let clean = rig.sent();
    let id = close(&mut rig, secs(5));
    assert_eq!(rig.ended, [grant.owner()]);
    assert!(rig.pending(id));
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
    assert!(closed(&mut rig, id).is_empty());
}

#[test]
fn a_lingering_hold_is_left_to_its_lease() {
    let mut rig = Rig::new();
    let lingering = Terms {
        linger: true,
        ..fixed(LEASE)
    };
    let kept = rig.hold_with("kept", OwnerKey::Once, lingering);
    let released = rig.hold_with("released", OwnerKey::Once, lingering);
    rig.release(&released);
    let sent = rig.sent();
    let id = close(&mut rig, secs(5));
    assert_eq!(rig.lost, [(kept.owner(), LostReason::Closed)]);
    // Closing waits only for the release that was already in flight.
    assert!(rig.all_sent().is_empty() && rig.pending(id));
    rig.reply(&sent, Reply::Released(0));
    assert!(closed(&mut rig, id).is_empty() && rig.stopped);
    rig.nothing_left();
}

#[test]
fn closing_ends_with_a_release_that_leaves_an_expired_level() {
    for answer in [
        CallOutcome::Answered(Reply::Released(0)),
        CallOutcome::Answered(Reply::Gone(LostReason::Deleted)),
        refused(ErrorKind::Denied, false),
    ] {
        let mut rig = Rig::new();
        let expired = rig.hold_with("n", KEY, fixed(secs(3)));
        let watched = rig.hold_with("n", KEY, WATCHED);
        rig.pass(secs(4));
        // The fixed lease is over, and the release of the other level frees the lock.
        rig.release(&watched);
        let release = rig.sent();
        assert_eq!(release.release().1, 0);
        let id = close(&mut rig, secs(600));
        assert!(rig.pending(id));
        let is_refused = matches!(answer, CallOutcome::Refused { .. });
        rig.outcome(&release, answer);
        for clean in rig.all_sent() {
            rig.reply(&clean, Reply::Gone(LostReason::Deleted));
        }
        assert_eq!(closed(&mut rig, id).len(), usize::from(is_refused));
        assert_eq!(rig.lost, [(expired.owner(), LostReason::Expired)]);
        assert!(rig.stopped);
        rig.nothing_left();
    }
}

#[test]
fn closing_does_not_wait_for_a_server_that_a_release_has_waited_for() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let other = rig.hold("m");
    let leaving = rig.release(&grant);
    let sent = rig.sent();
    rig.pass(secs(1));
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(OUTAGE - secs(1) - ms(1));
    assert!(rig.pending(leaving));
    rig.pass(ms(1));
    let error = rig.error(leaving);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("outage (10s)"), "{error}");
    assert!(
        error.message().contains("cannot reach the server"),
        "{error}"
    );
    // The other lock was not waited for yet, and the outage began a second after the unanswered
    // release.
    let id = close(&mut rig, secs(600));
    rig.pass(secs(1) - ms(1));
    assert!(rig.pending(id));
    rig.pass(ms(1));
    assert_eq!(closed(&mut rig, id), ["m", "n"]);
    assert!(rig.stopped && !rig.is_held(&other));
}

#[test]
fn closing_does_not_wait_once_more_for_one_lock() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    let leaving = rig.release(&grant);
    let sent = rig.sent();
    rig.pass(secs(1));
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(OUTAGE - secs(1));
    assert_eq!(rig.failed(leaving), ErrorKind::Unavailable);
    let id = close(&mut rig, secs(600));
    assert_eq!(closed(&mut rig, id), ["n"]);
}

#[test]
fn an_outage_is_waited_for_once_by_whatever_is_released() {
    let mut rig = Rig::new();
    let (one, other) = (rig.hold("a"), rig.hold("b"));
    rig.input(down());
    rig.pass(secs(4));
    let first = rig.release(&one);
    rig.pass(OUTAGE - secs(4) - ms(1));
    assert!(rig.pending(first));
    rig.pass(ms(1));
    assert_eq!(rig.failed(first), ErrorKind::Unavailable);
    let second = rig.release(&other);
    assert_eq!(rig.failed(second), ErrorKind::Unavailable, "at once");
    // Both releases are repeated when the server is back.
    rig.input(Input::Up(0));
    let freed = rig
        .all_sent()
        .iter()
        .filter(|sent| matches!(sent.op, Op::Release(_)))
        .count();
    assert_eq!(freed, 2);
}
