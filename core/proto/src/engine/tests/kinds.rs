//! Simple kinds beside the reentrant one: keys that do not re-enter, tokens, and the lease that an
//! adaptive lock learns.

use super::*;
use crate::wire::{LeaseSample, Renewal};

const SIMPLE: Terms = Terms {
    kind: Kind::Simple,
    reentrant: false,
    ..WATCHED
};
const ADAPTIVE: Terms = Terms {
    kind: Kind::Adaptive,
    lease: Lease::Adaptive(LEASE),
    ..WATCHED
};

fn by_key(name: &str) -> Request {
    Request::Release(Target::Key {
        name: name.into(),
        key: KEY,
        kind: Kind::Reentrant,
    })
}

fn with_token(name: &str, token: &str, wait: Option<Duration>) -> Request {
    let token = Some(token.into());
    Request::Acquire {
        name: name.into(),
        key: KEY,
        wait,
        terms: ADAPTIVE,
        token,
    }
}

fn form(sent: &Sent) -> &Form {
    match &sent.op {
        Op::Acquire(Acquire { form, .. }) | Op::Release(Release { form, .. }) => form,
        Op::Renew { holds } => &holds[0].form,
        other => panic!("without a form: {other:?}"),
    }
}

#[test]
fn a_key_waits_for_its_own_simple_lock() {
    let mut rig = Rig::new();
    rig.hold_with("n", KEY, SIMPLE);
    let again = rig.acquire_with("n", KEY, None, SIMPLE);
    let once = rig.acquire_with("n", KEY, Some(Duration::ZERO), SIMPLE);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    rig.nothing_sent();
    let release = rig.request(by_key("n"));
    let sent = rig.sent();
    assert!(matches!(&sent.op, Op::HandOver(HandOver { form, .. }) if form.kind == Kind::Simple));
    rig.pass_on(&sent);
    rig.released(release);
    rig.granted(again);
}

#[test]
fn a_simple_lock_that_may_re_enter_counts_its_levels() {
    let mut rig = Rig::new();
    let terms = Terms {
        reentrant: true,
        ..SIMPLE
    };
    let first = rig.hold_with("n", KEY, terms);
    let second = rig.hold_with("n", KEY, terms);
    assert_eq!((first.owner(), second.cell.count()), (second.owner(), 2));
}

#[test]
fn a_guard_re_enters_a_simple_lock() {
    let mut rig = Rig::new();
    let first = rig.hold_with("n", OwnerKey::Once, SIMPLE);
    let second = rig.hold_with("n", OwnerKey::Hold(first.level), SIMPLE);
    assert_eq!(second.cell.count(), 2);
}

#[test]
fn a_key_takes_a_simple_lock_anew_before_it_unwinds_what_it_lost() {
    let mut rig = Rig::new();
    let lost = rig.hold_with("n", KEY, SIMPLE);
    rig.pass(secs(10));
    let renewal = rig.sent();
    rig.reply(
        &renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(lost.owner(), LostReason::Deleted)]);
    let cleanup = rig.sent();
    rig.reply(&cleanup, Reply::Gone(LostReason::Deleted));
    let held = rig.hold_with("n", KEY, SIMPLE);
    assert!(rig.is_held(&held));

    let release = rig.request(by_key("n"));
    let sent = rig.sent();
    assert_eq!(sent.release().0, held.owner(), "the one that is alive");
    rig.reply(&sent, Reply::Released(0));
    rig.released(release);
    let unwound = rig.request(by_key("n"));
    assert_eq!(rig.lost_by(unwound), LostReason::Deleted);
}

#[test]
fn a_lock_of_another_layout_is_asked_of_the_server() {
    let mut rig = Rig::new();
    rig.hold("n");
    let id = rig.acquire_with("n", OwnerKey::Once, Some(Duration::ZERO), SIMPLE);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Foreign("a key of type hash".into()));
    assert_eq!(rig.failed(id), ErrorKind::ForeignKind);
    let id = rig.acquire_with("m", OwnerKey::Once, None, SIMPLE);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
    let id = rig.acquire_with("m", OwnerKey::Once, Some(Duration::ZERO), ADAPTIVE);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_sent();
}

#[test]
fn hashes_and_strings_are_renewed_by_calls_of_their_own() {
    let mut rig = Rig::new();
    for (name, terms) in [("a", WATCHED), ("b", SIMPLE), ("c", WATCHED), ("d", SIMPLE)] {
        rig.hold_with(name, OwnerKey::Once, terms);
    }
    rig.pass(secs(10));
    let mut names: Vec<Vec<String>> = Vec::new();
    for sent in rig.all_sent() {
        let Op::Renew { holds } = &sent.op else {
            panic!("{sent:?}")
        };
        names.push(
            holds
                .iter()
                .map(|Renewal { name, .. }| name.to_string())
                .collect(),
        );
        rig.keep(&sent);
    }
    names.sort();
    assert_eq!(names, [["a", "c"], ["b", "d"]]);
}

#[test]
fn a_callers_token_goes_with_every_call() {
    let mut rig = Rig::new();
    let token = Some(Arc::from("request"));
    let id = rig.request(with_token("n", "request", None));
    let sent = rig.sent();
    assert_eq!(form(&sent).token, token);
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.pass(secs(25));
    let sent = rig.sent();
    assert_eq!((sent.renewal().len(), &form(&sent).token), (1, &token));
    rig.keep(&sent);
    let id = rig.release(&grant);
    let sent = rig.sent();
    assert_eq!(form(&sent).token, token);
    rig.outcome(&sent, refused(ErrorKind::Server, false));
    assert_eq!(rig.failed(id), ErrorKind::Server);
}

#[test]
fn a_clean_up_has_the_token_and_teaches_nothing() {
    let mut rig = Rig::new();
    let id = rig.request(with_token("n", "request", Some(secs(1))));
    let sent = rig.sent();
    rig.pass(secs(1));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.outcome(&sent, CallOutcome::Unanswered);
    let sent = rig.sent();
    assert_eq!(form(&sent).token.as_deref(), Some("request"));
    assert!(matches!(sent.op, Op::Release(Release { lesson: None, .. })));
}

#[test]
fn one_request_of_a_thread_re_enters_and_another_one_waits() {
    let mut rig = Rig::new();
    // Count 0: for the first acquisition even a key with this value counts as another owner's.
    for count in [0, 2] {
        let id = rig.request(with_token("n", "request", None));
        let sent = rig.sent();
        assert_eq!(sent.acquire().1, count);
        rig.grant(&sent);
        rig.granted(id);
    }
    let other = rig.request(with_token("n", "another", Some(Duration::ZERO)));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(other), ErrorKind::Timeout);
}

/// Grants an adaptive lock, which asked for 30 s, a lease of `got`.
fn adaptive(rig: &mut Rig, got: Duration) -> Grant {
    let id = rig.acquire_with("n", KEY, None, ADAPTIVE);
    let sent = rig.sent();
    assert_eq!(sent.acquire().2, LEASE);
    // The script replies with the time that remains at its end.
    rig.reply(
        &sent,
        Reply::Acquired {
            ttl: got - ms(1),
            token: None,
        },
    );
    rig.granted(id)
}

#[test]
fn an_adaptive_lock_is_renewed_to_its_lease_when_five_seconds_remain() {
    let mut rig = Rig::new();
    let grant = adaptive(&mut rig, secs(50));
    assert_eq!(
        grant.cell.deadline(),
        rig.now.after(timing::trusted(secs(50) - ms(1)))
    );
    rig.pass(secs(45) - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(grant.owner(), secs(50))]);
    rig.keep(&sent);
    rig.pass(secs(45));
    let sent = rig.sent();
    rig.keep(&sent);
    assert!(rig.is_held(&grant));
}

#[test]
fn a_short_adaptive_lock_is_renewed_every_second() {
    let mut rig = Rig::new();
    adaptive(&mut rig, secs(4));
    rig.pass(ms(999));
    rig.nothing_sent();
    rig.pass(ms(1));
    assert_eq!(rig.sent().renewal()[0].1, secs(4));
}

#[test]
fn an_adaptive_lock_tells_what_was_asked_for_and_how_long_it_took() {
    let mut rig = Rig::new();
    let first = adaptive(&mut rig, secs(50));
    let second = {
        let id = rig.acquire_with("n", KEY, None, ADAPTIVE);
        let sent = rig.sent();
        rig.grant(&sent);
        rig.granted(id)
    };
    rig.pass(secs(40));
    let id = rig.release(&second);
    let sent = rig.sent();
    assert!(
        matches!(
            sent.op,
            Op::Release(Release {
                remaining: 1,
                lesson: None,
                unmark: false,
                place: None,
                ..
            })
        ),
        "{sent:?}"
    );
    rig.reply(&sent, Reply::Kept);
    rig.released(id);
    rig.release(&first);
    let sent = rig.sent();
    let lesson = Some(LeaseSample {
        asked: LEASE,
        took: secs(40),
    });
    assert!(
        matches!(&sent.op, Op::Release(Release { remaining: 0, lesson: told, .. }) if *told == lesson),
        "{sent:?}"
    );
}

#[test]
fn an_adaptive_lock_is_not_renewed_when_its_thread_has_ended() {
    let mut rig = Rig::new();
    let grant = adaptive(&mut rig, secs(30));
    rig.input(grant.detached());
    rig.input(Input::KeyEnded(KEY));
    rig.pass(secs(29));
    rig.nothing_sent();
    rig.pass(secs(2));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn writes_of_a_stranger_cause_few_tries_and_no_wait_for_a_third_of_a_lease() {
    let mut rig = Rig::new();
    rig.acquire_with("n", OwnerKey::Once, None, SIMPLE);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    let mut tries = 0;
    for _ in 0..1000 {
        rig.input(Input::Invalidated(Some(vec!["n".into()])));
        rig.pass(ms(5));
        for sent in rig.all_sent() {
            tries += 1;
            rig.busy(&sent, LEASE);
        }
    }
    // In 5 s: one try at once, then one every 250 ms until there are eight more than without
    // invalidations.
    assert!((8..=9).contains(&tries), "{tries}");
}

/// The server stays away for longer than the requested lease. The lock is released nevertheless.
fn is_given_back_late(rig: &mut Rig, sent: &Sent) {
    rig.pass(LEASE * 3);
    rig.input(Input::Up(0));
    let clean = rig.sent();
    assert_eq!(clean.release(), (sent.acquire().0, 0, Duration::ZERO));
    rig.reply(&clean, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn an_unanswered_adaptive_acquire_is_cleaned_up_for_its_longest_lease() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, None, ADAPTIVE);
    let sent = rig.sent();
    rig.input(down());
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.cancel(id);
    rig.failed(id);
    // The server may have chosen a learnt lease, and no reply said so.
    is_given_back_late(&mut rig, &sent);
}

#[test]
fn an_unreplicated_adaptive_acquire_is_cleaned_up_for_its_longest_lease() {
    let mut rig = Rig::new();
    let id = rig.acquire_with(
        "n",
        OwnerKey::Once,
        None,
        Terms {
            replicas: 1,
            ..ADAPTIVE
        },
    );
    let sent = rig.sent();
    rig.reply(&sent, Reply::NotReplicated { got: 0 });
    assert_eq!(rig.failed(id), ErrorKind::NotReplicated);
    let clean = rig.sent();
    rig.input(down());
    rig.outcome(&clean, CallOutcome::Unanswered);
    is_given_back_late(&mut rig, &sent);
}

/// Regression test: permits of `gpu` that had expired were counted into `{gpu}`.
#[test]
fn a_name_that_would_share_keys_with_another_is_refused() {
    let mut rig = Rig::new();
    let semaphore = Terms {
        kind: Kind::Semaphore,
        reentrant: false,
        special: Special {
            limit: 2,
            ..Special::NONE
        },
        ..WATCHED
    };
    let kinds = [Kind::Read, Kind::Write, Kind::Fair].map(|kind| Terms { kind, ..WATCHED });
    for terms in kinds.into_iter().chain([semaphore]) {
        let id = rig.acquire_with("{gpu}", OwnerKey::Once, None, terms);
        let error = rig.error(id);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("name it \"gpu\""), "{error}");
    }
    let name = || Name::from("{gpu}");
    for request in [
        Request::Force {
            name: name(),
            kind: Kind::Semaphore,
        },
        Request::Count {
            name: name(),
            limit: Some(2),
        },
        Request::Take {
            name: name(),
            permits: 1,
            wait: None,
        },
    ] {
        let id = rig.request(request);
        assert_eq!(rig.failed(id), ErrorKind::InvalidArgument);
    }
    rig.nothing_sent();
    rig.acquire("{gpu}");
    rig.sent().acquire();
}
