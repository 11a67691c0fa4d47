//! Thefts: a caller takes a read-write lock from all that have it.

use super::*;
use crate::wire::timeout_key;

const READ: Terms = Terms {
    kind: Kind::Read,
    ..WATCHED
};
const WRITE: Terms = Terms {
    kind: Kind::Write,
    ..WATCHED
};
const THEFT: Terms = Terms {
    special: Special {
        steal: true,
        ..Special::NONE
    },
    ..WRITE
};
const UUID: &str = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";

impl Rig {
    /// An engine whose owners have a last group of the uuid of their own, as after a connection.
    fn connected() -> Rig {
        let mut rig = Rig::new();
        rig.input(Input::Identity(0xabc));
        rig
    }

    fn wants(&mut self, terms: Terms) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, terms)
    }

    fn has(&mut self, terms: Terms) -> Grant {
        self.hold_with("n", OwnerKey::Once, terms)
    }

    /// The time-out key of this reader was changed by others.
    fn reader_changed(&mut self, reader: &Grant) {
        let key = timeout_key(UUID, "n", &reader.cell.form(), reader.owner());
        self.input(Input::Invalidated(Some(vec![key.into()])));
    }
}

fn steals(sent: &Sent) -> bool {
    matches!(&sent.op, Op::Acquire(op) if op.payload.steals())
}

#[test]
fn a_theft_ends_the_holds_of_this_client_and_passes_its_waiters() {
    for terms in [READ, WRITE] {
        let mut rig = Rig::new();
        let victim = rig.has(terms);
        let waiter = rig.wants(WRITE);
        rig.nothing_sent();
        let theft = rig.wants(THEFT);
        let sent = rig.sent();
        assert!(steals(&sent));
        assert!(rig.is_held(&victim), "nobody knows yet whether it succeeds");
        rig.grant(&sent);
        assert_eq!(rig.lost, [(victim.owner(), LostReason::Stolen)]);
        let thief = rig.granted(theft);
        assert!(rig.is_held(&thief) && rig.pending(waiter));
        // The victim's owner is given back; the waiter waits for the thief.
        let cleanup = rig.sent();
        assert_eq!(cleanup.release().0, victim.owner());
        rig.reply(&cleanup, Reply::Gone(LostReason::Stolen));
        rig.release(&victim);
        rig.all_sent();
        rig.free(&thief);
        let next = rig.sent();
        assert!(!steals(&next));
        rig.grant(&next);
        rig.granted(waiter);
    }
}

/// The server refused the waiter before the theft.
#[test]
fn the_release_of_a_thief_wakes_a_waiter_of_its_client() {
    for early in [true, false] {
        let mut rig = Rig::new();
        let waiter = rig.wants(WRITE);
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        rig.input(Input::Subscribed("n".into()));
        let sent = rig.sent();
        rig.busy(&sent, LEASE);
        let theft = rig.wants(THEFT);
        let sent = rig.sent();
        rig.grant(&sent);
        let thief = rig.granted(theft);
        rig.release(&thief);
        let sent = rig.sent();
        if early {
            rig.input(Input::Message("n".into()));
        }
        rig.reply(&sent, Reply::Released(1));
        let next = rig.sent();
        if !early {
            rig.input(Input::Message("n".into()));
        }
        rig.grant(&next);
        rig.granted(waiter);
    }
}

#[test]
fn a_later_thief_robs_an_earlier_one() {
    let mut rig = Rig::new();
    let (first, second) = (rig.wants(THEFT), rig.wants(THEFT));
    for sent in rig.all_sent() {
        rig.grant(&sent);
    }
    let (first, second) = (rig.granted(first), rig.granted(second));
    assert!(!rig.is_held(&first) && rig.is_held(&second));
    assert_eq!(rig.lost, [(first.owner(), LostReason::Stolen)]);
}

/// Regression test: others had deleted a lock, a try got it, and a thief robbed the try. The answer of the
/// thief came first, and its good hold was given up.
#[test]
fn a_try_takes_nothing_from_who_came_after_its_call() {
    let mut rig = Rig::new();
    let stale = rig.has(WRITE);
    let tries = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), WRITE);
    let first = rig.sent();
    let robs = rig.wants(THEFT);
    let second = rig.sent();
    rig.grant(&second);
    let thief = rig.granted(robs);
    rig.all_sent();
    rig.grant(&first);
    let robbed = rig.granted(tries);
    assert!(rig.is_held(&thief));
    assert_eq!(rig.lost, [(stale.owner(), LostReason::Stolen)]);
    // One of the two is gone, and the server says which.
    let looks = rig.all_sent();
    let asked = |grant: &Grant| {
        let mut asked = looks.iter().flat_map(|look| look.renewal());
        asked.any(|(owner, _)| owner == grant.owner())
    };
    assert!(asked(&thief) && asked(&robbed));
}

#[test]
fn a_theft_without_an_answer_is_given_back_and_not_repeated() {
    let mut rig = Rig::new();
    let victim = rig.has(WRITE);
    let theft = rig.wants(THEFT);
    let sent = rig.sent();
    let (owner, ..) = sent.acquire();
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.failed(theft), ErrorKind::Unavailable);
    let (releases, looks): (Vec<Sent>, Vec<Sent>) = rig
        .all_sent()
        .into_iter()
        .partition(|sent| matches!(sent.op, Op::Release(_)));
    assert_eq!(
        releases
            .iter()
            .map(|sent| sent.release().0)
            .collect::<Vec<_>>(),
        [owner]
    );
    // It may have robbed this client.
    assert_eq!(looks[0].question().0, victim.owner());
    rig.reply(&releases[0], Reply::Released(0));
    let gone = vec![RenewReply::Gone(LostReason::Deleted)];
    rig.reply(&looks[0], Reply::Renewed(gone));
    assert_eq!(rig.lost, [(victim.owner(), LostReason::Deleted)]);
    rig.all_sent();
    // Its copy may run until its not-after.
    rig.pass(COPY);
    assert!(rig.all_sent().iter().any(|sent| sent.release().0 == owner));
}

/// No time passes: a third of the lease is too late for a victim whose lock is gone already.
#[test]
fn a_theft_that_the_server_stops_halfway_makes_this_client_look_at_once() {
    for kind in [ErrorKind::Auth, ErrorKind::Internal] {
        let mut rig = Rig::new();
        let victim = rig.has(WRITE);
        let theft = rig.wants(THEFT);
        let sent = rig.sent();
        rig.outcome(&sent, refused(kind, false));
        assert_eq!(rig.failed(theft), kind);
        let all = rig.all_sent();
        let look = all
            .iter()
            .find(|sent| matches!(sent.op, Op::Renew { .. }))
            .expect("a look");
        assert_eq!(look.question().0, victim.owner());
        let gone = vec![RenewReply::Gone(LostReason::Deleted)];
        rig.reply(look, Reply::Renewed(gone));
        assert_eq!(rig.lost, [(victim.owner(), LostReason::Deleted)]);
    }
}

#[test]
fn a_theft_that_did_nothing_looks_at_nothing() {
    let nothing_done = [
        CallOutcome::NotSent,
        CallOutcome::Answered(Reply::Foreign("lock".into())),
        refused(ErrorKind::Unavailable, true),
    ];
    for outcome in nothing_done {
        let mut rig = Rig::new();
        let victim = rig.has(WRITE);
        let theft = rig.wants(THEFT);
        let sent = rig.sent();
        rig.outcome(&sent, outcome);
        rig.failed(theft);
        rig.nothing_sent();
        assert!(rig.is_held(&victim));
    }
}

#[test]
fn a_cancelled_theft_that_succeeds_is_given_back_and_told() {
    let mut rig = Rig::new();
    let victim = rig.has(READ);
    let theft = rig.wants(THEFT);
    let sent = rig.sent();
    rig.cancel(theft);
    assert_eq!(rig.failed(theft), ErrorKind::Cancelled);
    rig.grant(&sent);
    assert_eq!(rig.lost, [(victim.owner(), LostReason::Stolen)]);
    let freed: Vec<OwnerId> = rig.all_sent().iter().map(|sent| sent.release().0).collect();
    assert!(freed.contains(&sent.acquire().0), "{freed:?}");
}

#[test]
fn a_late_theft_is_sent_once_more_and_then_refused() {
    let mut rig = Rig::new();
    let theft = rig.wants(THEFT);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Stale);
    let again = rig.sent();
    assert!(steals(&again));
    rig.reply(&again, Reply::Stale);
    assert_eq!(rig.failed(theft), ErrorKind::Unavailable);
    rig.nothing_left();
}

#[test]
fn a_theft_waits_for_the_first_connection() {
    let mut rig = Rig::offline();
    let theft = rig.wants(THEFT);
    rig.nothing_sent();
    rig.input(Input::Up(0));
    let sent = rig.sent();
    rig.grant(&sent);
    let thief = rig.granted(theft);
    rig.free(&thief);
    rig.nothing_left();
}

#[test]
fn only_the_write_side_is_stolen() {
    let mut rig = Rig::new();
    for kind in [Kind::Read, Kind::Reentrant, Kind::Fair] {
        let theft = rig.wants(Terms { kind, ..THEFT });
        let error = rig.error(theft);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    rig.nothing_left();
}

/// The server granted the waiter first, and the thief's answer came first: on another connection.
#[test]
fn a_hold_whose_answer_comes_after_that_of_its_thief_is_looked_at() {
    let mut rig = Rig::new();
    let waiter = rig.wants(WRITE);
    let granted = rig.sent();
    let theft = rig.wants(THEFT);
    let stolen = rig.sent();
    rig.grant(&stolen);
    let thief = rig.granted(theft);
    rig.grant(&granted);
    let victim = rig.granted(waiter);
    let look = rig.sent();
    let asked = look.renewal();
    let gone = |(owner, _): &(OwnerId, Duration)| match *owner == thief.owner() {
        true => RenewReply::Kept,
        false => RenewReply::Gone(LostReason::Stolen),
    };
    rig.reply(&look, Reply::Renewed(asked.iter().map(gone).collect()));
    assert_eq!(rig.lost, [(victim.owner(), LostReason::Stolen)]);
    assert!(rig.is_held(&thief));
}

/// No time passes: what tells it is the invalidation, not a renewal.
#[test]
fn a_reader_whose_own_key_was_changed_is_looked_at_at_once() {
    let mut rig = Rig::connected();
    let reader = rig.has(READ);
    let other = rig.has(READ);
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.nothing_sent();
    rig.reader_changed(&reader);
    let look = rig.sent();
    assert_eq!(look.question().0, reader.owner());
    let gone = vec![RenewReply::Gone(LostReason::Stolen)];
    rig.reply(&look, Reply::Renewed(gone));
    assert_eq!(rig.lost, [(reader.owner(), LostReason::Stolen)]);
    assert!(rig.is_held(&other));
}

#[test]
fn a_reader_whose_own_key_was_changed_during_a_renewal_is_looked_at_once_more() {
    let mut rig = Rig::connected();
    let reader = rig.has(READ);
    rig.pass(secs(10));
    let renewal = rig.sent();
    rig.reader_changed(&reader);
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.nothing_sent();
    rig.keep(&renewal);
    let look = rig.sent();
    assert_eq!(look.question().0, reader.owner());
}

/// A server that tracks too many keys forgets some, and tells that as a change.
#[test]
fn looks_at_a_reader_that_is_unchanged_become_fewer() {
    let mut rig = Rig::connected();
    let reader = rig.has(READ);
    let mut looks = 0;
    for _ in 0..200 {
        rig.reader_changed(&reader);
        for look in rig.all_sent() {
            looks += 1;
            rig.keep(&look);
        }
        rig.pass(ms(10));
    }
    let most = tuning::PROBE_SPARE + 1;
    assert!((2..=most).contains(&looks), "{looks}");
}
