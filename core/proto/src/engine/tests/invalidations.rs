//! Invalidations: which holds they renew, and how often.

use super::*;

/// How often a hold of the usual lease is renewed.
const PERIOD: Duration = Duration::from_secs(10);

fn names(count: usize) -> Vec<Name> {
    (0..count).map(|n| Name::from(format!("n{n}"))).collect()
}

fn changed(name: &Name) -> Input {
    Input::Invalidated(Some(vec![name.clone()]))
}

fn holding(count: usize) -> (Rig, Vec<Name>) {
    let mut rig = Rig::new();
    let names = names(count);
    for name in &names {
        rig.hold(name);
        rig.pass(ms(1));
    }
    (rig, names)
}

/// A server whose table of tracked keys is full: each renewal makes it forget another key. Returns
/// the number of renewals.
fn storm(rig: &mut Rig, names: &[Name], time: Duration) -> usize {
    let end = rig.now.after(time);
    let (mut renewed, mut next) = (0, 0);
    rig.input(changed(&names[0]));
    while rig.now < end {
        for sent in rig.all_sent() {
            renewed += sent.renewal().len();
            rig.keep(&sent);
            next += 1;
            rig.input(changed(&names[next % names.len()]));
        }
        rig.pass(ms(1));
    }
    renewed
}

/// Lets time pass. The server answers, and invalidates nothing.
fn calm(rig: &mut Rig, time: Duration) {
    let end = rig.now.after(time);
    while rig.now < end {
        rig.all_sent().iter().for_each(|sent| rig.keep(sent));
        rig.pass(ms(100));
    }
}

#[test]
fn a_server_that_tracks_too_many_keys_gets_at_most_twice_the_renewals() {
    for count in [1, 10, 200, 2000] {
        let (mut rig, names) = holding(count);
        let renewed = storm(&mut rig, &names, PERIOD * 30);
        let planned = count * 30;
        assert!(
            renewed >= planned - count && renewed <= 2 * planned,
            "{renewed} of {planned}"
        );
        assert!(rig.lost.is_empty());
        let told = rig
            .events
            .iter()
            .filter(|kind| **kind == "tracking_suspended")
            .count();
        assert!(
            told <= 1 && !rig.events.contains(&"tracking_resumed"),
            "{:?}",
            rig.events
        );
        assert_eq!(told == 1, count > 1, "{:?}", rig.events);
    }
}

#[test]
fn after_a_storm_changes_are_looked_at_at_once_again() {
    let (mut rig, names) = holding(200);
    storm(&mut rig, &names, PERIOD * 2);
    rig.events.clear();
    rig.all_sent().iter().for_each(|sent| rig.keep(sent));
    rig.input(changed(&names[7]));
    rig.nothing_sent();
    calm(&mut rig, PERIOD * 10);
    assert_eq!(rig.events, ["tracking_resumed"]);
    rig.all_sent().iter().for_each(|sent| rig.keep(sent));
    rig.input(changed(&names[7]));
    assert_eq!(rig.sent().renewal().len(), 1);
}

#[test]
fn each_loss_is_found_at_once_however_many_there_are() {
    let (mut rig, names) = holding(1000);
    for name in &names {
        rig.input(changed(name));
        let look = rig.sent();
        rig.reply(
            &look,
            Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
        );
        let clean_up = rig.sent();
        rig.reply(&clean_up, Reply::Gone(LostReason::Deleted));
    }
    assert_eq!(
        (rig.lost.len(), rig.events.contains(&"tracking_suspended")),
        (1000, false)
    );
}

#[test]
fn all_keys_at_once_are_looked_at_at_once() {
    let (mut rig, _) = holding(1000);
    rig.input(Input::Invalidated(None));
    let looks: usize = rig.all_sent().iter().map(|sent| sent.renewal().len()).sum();
    assert_eq!(looks, 1000);
}

#[test]
fn a_key_that_is_changed_all_the_time_is_looked_at_less_and_less_often_and_the_others_at_once() {
    let (mut rig, names) = holding(20);
    let mut looks = Vec::new();
    let begin = rig.now;
    while rig.now < begin.after(secs(9)) {
        rig.input(changed(&names[0]));
        for sent in rig.all_sent() {
            looks.push(begin.until(rig.now));
            rig.keep(&sent);
        }
        rig.pass(ms(1));
    }
    assert!(looks.len() <= 11, "{looks:?}");
    let rests: Vec<Duration> = looks.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(rests.windows(2).all(|two| two[0] < two[1]), "{rests:?}");
    rig.input(changed(&names[1]));
    assert_eq!(rig.sent().renewal().len(), 1);
    assert!(!rig.events.contains(&"tracking_suspended"));
}

#[test]
fn a_fixed_lease_is_looked_at_again_after_invalidations_that_meant_nothing() {
    let mut rig = Rig::new();
    rig.hold_with("n", OwnerKey::Once, fixed(secs(60)));
    for rest in [0, 10, 20, 40] {
        rig.input(changed(&"n".into()));
        rig.pass(ms(rest));
        let look = rig.sent();
        rig.keep(&look);
    }
    rig.pass(secs(10));
    rig.nothing_sent();
}

#[test]
fn a_look_that_waits_is_not_forgotten_when_the_hold_is_abandoned() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    for _ in 0..2 {
        rig.all_sent().iter().for_each(|sent| rig.keep(sent));
        rig.input(changed(&"n".into()));
    }
    rig.nothing_sent();
    rig.input(grant.abandoned());
    rig.pass(ms(10));
    assert_eq!(rig.sent().renewal().len(), 1);
}

#[test]
fn a_waiter_tries_because_of_invalidations_hardly_more_often_than_without() {
    let mut rig = Rig::new();
    rig.acquire_with("n", OwnerKey::Once, None, watched(secs(3)));
    let (mut tries, begin) = (0, rig.now);
    let lease = secs(3);
    while rig.now < begin.after(secs(300)) {
        for sent in rig.all_sent() {
            tries += 1;
            rig.busy(&sent, lease);
        }
        rig.input(changed(&"n".into()));
        rig.pass(ms(5));
    }
    // Without invalidations it would try every three seconds.
    assert!((100..=204).contains(&tries), "{tries}");
}

// ---- a server whose clock differs from the clock in its replies ----

fn stale(rig: &mut Rig, sent: &Sent) {
    rig.reply(sent, Reply::Stale);
}

/// How often a call is sent within ten seconds while the server's clock says that each copy is too
/// late.
fn copies(rig: &mut Rig) -> usize {
    let (mut copies, end) = (0, rig.now.after(secs(10)));
    while rig.now < end {
        for sent in rig.all_sent() {
            copies += 1;
            stale(rig, &sent);
        }
        rig.pass(ms(1));
    }
    copies
}

#[test]
fn a_waiter_pauses_when_the_server_says_twice_that_it_comes_too_late() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    let first = rig.sent();
    stale(&mut rig, &first);
    // The clock in the reply is usually enough to correct the next copy.
    let second = rig.sent();
    stale(&mut rig, &second);
    rig.nothing_sent();
    assert!((10..60).contains(&copies(&mut rig)) && rig.pending(id));
    let id = rig.acquire_with("m", OwnerKey::Once, Some(ms(300)), WATCHED);
    copies(&mut rig);
    let error = rig.error(id);
    assert!(
        error.kind() == ErrorKind::Unavailable && error.message().contains("clock"),
        "{error}"
    );
}

#[test]
fn a_single_try_ends_when_the_server_says_twice_that_it_comes_too_late() {
    let mut rig = Rig::new();
    let id = rig.try_acquire("n");
    assert_eq!(copies(&mut rig), 2);
    let error = rig.error(id);
    assert!(
        error.kind() == ErrorKind::Unavailable && error.message().contains("clock"),
        "{error}"
    );
    rig.nothing_left();
}

#[test]
fn renewals_pause_when_the_server_says_twice_that_they_come_too_late() {
    let mut rig = Rig::new();
    rig.hold("n");
    rig.pass(secs(10));
    assert!((10..110).contains(&copies(&mut rig)));
    let sent = rig.all_sent().pop();
    assert!(sent.is_none() && rig.events.contains(&"renewal_failed"));
    rig.pass(ms(250));
    let sent = rig.sent();
    rig.keep(&sent);
    // The counter starts again: a single late copy is repeated at once.
    rig.pass(secs(10));
    let sent = rig.sent();
    stale(&mut rig, &sent);
    let sent = rig.sent();
    rig.keep(&sent);
}

#[test]
fn a_re_entry_pauses_when_the_server_says_twice_that_it_comes_too_late() {
    let mut rig = Rig::new();
    rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    assert!((10..60).contains(&copies(&mut rig)) && rig.pending(id));
    let sent = loop {
        let is_entry = |sent: &Sent| matches!(sent.op, Op::Acquire(_));
        if let Some(sent) = rig.all_sent().into_iter().find(is_entry) {
            break sent;
        }
        rig.pass(ms(10));
    };
    rig.grant(&sent);
    assert_eq!(rig.granted(id).cell.count(), 2);
}

#[test]
fn a_force_release_ends_when_the_server_says_twice_that_it_comes_too_late() {
    let mut rig = Rig::new();
    let id = rig.request(Request::Force {
        name: "n".into(),
        kind: Kind::Reentrant,
    });
    assert_eq!(
        (copies(&mut rig), rig.failed(id)),
        (2, ErrorKind::Unavailable)
    );
}

// ---- a reported loss stays ----

#[test]
fn a_hold_that_its_holder_saw_expire_is_not_brought_back_by_a_renewal() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let renewal = rig.sent();
    // The I/O thread checked the clock earlier and does not run now. The holder checks later and
    // sees the hold expire.
    rig.sleep(secs(10));
    assert_eq!(
        grant.cell.lost(grant.cell.deadline()),
        Some(LostReason::Expired)
    );
    rig.keep(&renewal);
    assert_eq!(grant.cell.lost(rig.now), Some(LostReason::Expired));
    assert!(!rig.is_held(&grant));
    rig.pass(secs(10));
    assert!(
        !rig.is_held(&grant) && rig.lost == [(grant.owner(), LostReason::Expired)],
        "{:?}",
        rig.lost
    );
}
