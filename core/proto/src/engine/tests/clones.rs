//! Copies of a process from a snapshot: their engines are equal until each makes its own
//! connection.

use super::*;
use crate::tuning;

/// Two engines with the same inputs, and the results.
fn copies<T>(tell: impl Fn(&mut Rig) -> T) -> ([Rig; 2], [T; 2]) {
    let copy = || {
        let mut rig = Rig::offline();
        rig.input(Input::Identity(1));
        rig.input(Input::Up(0));
        let told = tell(&mut rig);
        (rig, told)
    };
    let ((one, told), (other, told_too)) = (copy(), copy());
    ([one, other], [told, told_too])
}

/// The connection breaks, and a new one is made.
fn reconnect(rig: &mut Rig, last_group: u64) {
    rig.input(down());
    rig.input(Input::Identity(last_group));
    rig.input(Input::Up(0));
}

/// Each copy makes its own connection and then runs `act`.
fn part<T>(copies: [Rig; 2], act: impl Fn(&mut Rig) -> T) -> [T; 2] {
    let mut last_group = 0xaaaa;
    copies.map(|mut rig| {
        last_group += 1;
        reconnect(&mut rig, last_group);
        act(&mut rig)
    })
}

/// A caller waits for a lock that another client holds. Returns the owner of its try.
fn wait(rig: &mut Rig) -> OwnerId {
    rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, secs(20));
    sent.acquire().0
}

#[test]
fn copies_do_not_acquire_as_one_owner() {
    let (both, _) = copies(|_| {});
    let [one, other] = part(both, |rig| {
        rig.acquire("n");
        rig.sent().acquire().0
    });
    assert_ne!(one, other);
}

#[test]
fn a_hold_with_an_owner_of_the_last_connection_is_not_passed_on() {
    let mut rig = Rig::offline();
    rig.input(Input::Identity(1));
    rig.input(Input::Up(0));
    let first = rig.acquire("n");
    let second = rig.acquire("n");
    let sent = rig.sent();
    rig.grant(&sent);
    let grant = rig.granted(first);
    rig.input(Input::Identity(2));
    rig.release(&grant);
    assert!(rig.pending(second));
    let (from, to, _) = rig.sent().handover();
    assert_eq!(from, grant.owner());
    assert_ne!(to, grant.owner());
}

#[test]
fn a_caller_who_waits_when_the_copy_is_made_gets_an_owner_of_the_new_connection() {
    let (both, owners) = copies(wait);
    assert_eq!(owners[0], owners[1], "they are copies");
    let [one, other] = part(both, |rig| rig.sent().acquire().0);
    assert_ne!(one, other);
}

#[test]
fn a_lock_that_an_unanswered_try_may_have_taken_is_released() {
    let (both, owners) = copies(|rig| {
        rig.acquire("n");
        let sent = rig.sent();
        rig.outcome(&sent, CallOutcome::Unanswered);
        sent.acquire().0
    });
    let [one, other] = part(both, |rig| {
        rig.pass(COPY);
        let sent = rig.all_sent();
        let [release, acquire] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!((release.release().0, release.release().1), (owners[0], 0));
        acquire.acquire().0
    });
    assert_ne!(one, other);
}

#[test]
fn a_hold_keeps_its_owner_and_goes_to_one_of_the_new_connection() {
    let (both, grants) = copies(|rig| {
        let grant = rig.hold("n");
        rig.acquire("n");
        grant
    });
    let [one, other] = part(both, |rig| {
        let renewal = rig.sent();
        assert_eq!(renewal.renewal()[0].0, grants[0].owner());
        rig.keep(&renewal);
        // The server has not confirmed the hold recently, so there is no optimistic hand-over.
        rig.sleep(tuning::HANDOVER_FRESH);
        rig.release(&grants[0]);
        let (from, to, _) = rig.sent().handover();
        assert_eq!(from, grants[0].owner());
        to
    });
    assert_ne!(one, other);
}

#[test]
fn a_value_that_the_caller_has_chosen_stays() {
    let mut rig = Rig::new();
    let terms = Terms {
        kind: Kind::Simple,
        reentrant: false,
        ..WATCHED
    };
    let (name, token) = (Name::from("n"), Some("mine".into()));
    rig.request(Request::Acquire {
        name,
        key: OwnerKey::Once,
        wait: None,
        terms,
        token,
    });
    let sent = rig.sent();
    rig.busy(&sent, secs(20));
    reconnect(&mut rig, 7);
    assert_eq!(rig.sent().acquire().0, sent.acquire().0);
}
