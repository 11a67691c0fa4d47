//! Clean-up releases: compare-and-release calls for owners that were given up.

use super::*;
use crate::engine::timing;

/// An owner that was given up, with a copy of its acquire that may still run. Returns the acquire
/// and the clean-up.
fn ghost(rig: &mut Rig) -> (Sent, Sent) {
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.cancel(id);
    rig.failed(id);
    let clean = rig.sent();
    assert_eq!(clean.release(), (sent.acquire().0, 0, Duration::ZERO));
    (sent, clean)
}

#[test]
fn a_clean_up_is_sent_at_once_and_again_when_the_copy_is_dead() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    rig.reply(&clean, Reply::Released(0));
    rig.pass(COPY - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let again = rig.sent();
    assert_eq!(again.op, clean.op);
    rig.reply(&again, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn an_answer_to_an_early_clean_up_does_not_count_when_it_is_late() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    rig.pass(COPY);
    rig.nothing_sent();
    rig.reply(&clean, Reply::Gone(LostReason::Deleted));
    rig.pass(ms(1));
    let again = rig.sent();
    rig.reply(&again, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_clean_up_is_repeated_until_the_lease_is_over() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    let mut last = clean;
    for outcome in [
        CallOutcome::Unanswered,
        CallOutcome::NotSent,
        refused(ErrorKind::Server, true),
    ] {
        rig.outcome(&last, outcome);
        rig.pass(ms(250));
        last = rig.sent();
    }
    rig.outcome(&last, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(LEASE + secs(3));
    rig.nothing_left();
}

#[test]
fn a_clean_up_waits_for_the_link() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    rig.input(down());
    rig.outcome(&clean, CallOutcome::Unanswered);
    rig.pass(secs(8));
    rig.nothing_sent();
    rig.input(Input::Up(0));
    let again = rig.sent();
    rig.reply(&again, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn a_clean_up_that_the_server_denies_is_given_up() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    rig.pass(COPY);
    rig.outcome(&clean, refused(ErrorKind::Denied, false));
    rig.pass(ms(250));
    let again = rig.sent();
    rig.outcome(&again, refused(ErrorKind::Denied, false));
    rig.nothing_left();
}

#[test]
fn a_clean_up_that_freed_the_lock_wakes_the_waiters_of_this_client() {
    let mut rig = Rig::new();
    let (_, clean) = ghost(&mut rig);
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.reply(&clean, Reply::Released(0));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_lost_hold_is_cleaned_up_for_as_long_as_any_command_of_it_may_have_asked() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.request(Request::Extend {
        target: grant.target(),
        lease: secs(600),
    });
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(down());
    rig.pass(ms(29_698));
    assert_eq!(rig.lost.len(), 1);
    rig.pass(secs(500));
    rig.input(Input::Up(0));
    assert_eq!(rig.sent().release().0, grant.owner());
}

/// A call sent right before the loss may still run at the end of its time, and then set a whole
/// lease.
#[test]
fn a_clean_up_of_a_lost_lock_outlives_every_call_of_its_owner() {
    for replicas in [0, 2] {
        let mut rig = Rig::new();
        rig.hold_with("n", KEY, WATCHED);
        rig.acquire_with(
            "n",
            KEY,
            None,
            Terms {
                replicas,
                ..WATCHED
            },
        );
        let entry = rig.sent();
        let end = timing::copy_expires(rig.now, entry.limit).after(LEASE);
        let forced = rig.request(Request::Force {
            name: "n".into(),
            kind: Kind::Reentrant,
        });
        let force = rig.sent();
        rig.reply(&force, Reply::Forced(true));
        assert!(matches!(rig.done(forced), Done::Forced(true)));
        assert_eq!(rig.lost.len(), 1);
        let clean = rig.sent();
        rig.outcome(&entry, CallOutcome::Unanswered);
        rig.outcome(&clean, CallOutcome::Unanswered);
        rig.input(down());
        rig.pass(rig.now.until(end) - ms(1));
        rig.input(Input::Up(0));
        assert_eq!(
            rig.sent().release().0,
            entry.acquire().0,
            "with {replicas} replicas"
        );
    }
}

/// After a fail-over the new server may still have a lock whose release the old server had
/// confirmed.
#[test]
fn confirmed_releases_are_repeated_after_a_reconnect() {
    let mut rig = Rig::new();
    let first = rig.hold("a");
    rig.free(&first);
    rig.pass(secs(29));
    let second = rig.hold_with("b", OwnerKey::Once, fixed(secs(3600)));
    rig.free(&second);
    let third = rig.request(Request::Acquire {
        name: "c".into(),
        key: OwnerKey::Once,
        wait: None,
        terms: Terms {
            kind: Kind::Simple,
            reentrant: false,
            ..WATCHED
        },
        token: Some("t".into()),
    });
    let sent = rig.sent();
    rig.grant(&sent);
    let third = rig.granted(third);
    rig.free(&third);
    rig.pass(secs(2));
    rig.input(down());
    rig.nothing_sent();
    rig.input(Input::Up(0));
    // The first lease is over. The token of the third may belong to another owner by now.
    let sent = rig.sent();
    assert_eq!(sent.release(), (second.owner(), 0, Duration::ZERO));
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
    // They are repeated only once.
    rig.input(down());
    rig.input(Input::Up(0));
    rig.nothing_sent();
}

#[test]
fn few_confirmed_releases_are_kept() {
    let mut rig = Rig::new();
    let terms = fixed(secs(3600));
    for at in 0..3000 {
        let grant = rig.hold_with(&format!("n{at}"), OwnerKey::Once, terms);
        rig.free(&grant);
    }
    rig.input(down());
    rig.input(Input::Up(0));
    let mut repeated = 0;
    loop {
        let sent = rig.all_sent();
        if sent.is_empty() {
            break;
        }
        repeated += sent.len();
        sent.iter()
            .for_each(|sent| rig.reply(sent, Reply::Gone(LostReason::Deleted)));
    }
    assert_eq!(repeated, 1024);
    rig.nothing_left();
}

/// Regression test: all of them were sent at once, before every renewal.
#[test]
fn clean_ups_wait_for_the_answers_to_others_and_go_after_renewals() {
    let mut rig = Rig::new();
    let terms = fixed(secs(3600));
    for at in 0..100 {
        let grant = rig.hold_with(&format!("n{at}"), OwnerKey::Once, terms);
        rig.free(&grant);
    }
    let kept = rig.hold("kept");
    rig.input(down());
    rig.input(Input::Up(0));
    let first = rig.all_sent();
    assert_eq!(first[0].renewal()[0].0, kept.owner());
    assert_eq!(first.len(), 1 + 64);
    rig.reply(&first[1], Reply::Gone(LostReason::Deleted));
    let next = rig.sent();
    // Clean-ups that wait when the connection breaks are sent once on the next one.
    rig.input(down());
    for sent in first[2..].iter().chain([&next]) {
        rig.outcome(sent, CallOutcome::NotSent);
    }
    rig.outcome(&first[0], CallOutcome::NotSent);
    rig.nothing_sent();
    rig.input(Input::Up(0));
    let mut left: Vec<OwnerId> = Vec::new();
    loop {
        let sent = rig.all_sent();
        if sent.is_empty() {
            break;
        }
        for sent in &sent {
            if let Op::Release(Release { owner, .. }) = &sent.op {
                left.push(*owner);
                rig.reply(sent, Reply::Released(0));
            } else {
                rig.keep(sent);
            }
        }
    }
    left.sort_unstable();
    left.dedup();
    assert_eq!(left.len(), 99);
}

#[test]
fn old_confirmed_releases_are_forgotten() {
    let mut rig = Rig::new();
    let terms = fixed(secs(3600));
    let grant = rig.hold_with("a", OwnerKey::Once, terms);
    rig.free(&grant);
    rig.pass(secs(60));
    rig.input(down());
    rig.input(Input::Up(0));
    rig.nothing_sent();
}
