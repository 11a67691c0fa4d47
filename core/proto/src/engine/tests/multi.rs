//! Multi locks: what is asked for when, and what is kept.

use super::*;

/// Parts of these names, in their order.
fn parts(names: &[&str]) -> Arc<[Part]> {
    let part = |name: &&str| Part {
        name: (*name).into(),
        terms: WATCHED,
    };
    names.iter().map(part).collect()
}

fn acquire_all(rig: &mut Rig, names: &[&str], key: OwnerKey, wait: Option<Duration>) -> RequestId {
    rig.request(Request::AcquireAll(AcquireAll {
        name: names.join(", ").into(),
        parts: parts(names),
        needed: names.len(),
        key,
        wait,
        terms: Terms {
            kind: Kind::Multi,
            ..WATCHED
        },
    }))
}

/// The names that the calls want to acquire, or release.
fn names(sent: &[Sent]) -> Vec<String> {
    let name = |sent: &Sent| match &sent.op {
        Op::Acquire(Acquire { name, .. }) => format!("+{name}"),
        Op::Release(Release { name, .. }) => format!("-{name}"),
        other => panic!("not expected: {other:?}"),
    };
    sent.iter().map(name).collect()
}

fn busy(rig: &mut Rig, sent: &Sent) {
    rig.busy(sent, secs(20));
}

fn freed(rig: &mut Rig, sent: &Sent) {
    rig.reply(sent, Reply::Released(0));
}

/// A multi lock of these names that is held.
fn held(rig: &mut Rig, names: &[&str], key: OwnerKey) -> Grant {
    let id = acquire_all(rig, names, key, None);
    for sent in rig.all_sent() {
        rig.grant(&sent);
    }
    rig.granted(id)
}

#[test]
fn all_names_are_asked_for_at_once() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b", "c"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    assert_eq!(names(&sent), ["+a", "+b", "+c"]);
    for sent in &sent {
        assert!(rig.pending(id));
        rig.grant(sent);
    }
    let grant = rig.granted(id);
    assert!(rig.is_held(&grant));
    let release = rig.release(&grant);
    assert!(!rig.is_held(&grant));
    let sent = rig.all_sent();
    assert_eq!(names(&sent), ["-a", "-b", "-c"]);
    for sent in &sent {
        assert!(rig.pending(release));
        freed(&mut rig, sent);
    }
    rig.released(release);
    rig.nothing_left();
}

/// They can be one command, so a caller who is alone with its multi lock needs no I/O thread.
#[test]
fn the_calls_for_all_names_are_offered_to_the_caller() {
    let mut rig = Rig::new();
    let inline = |of, alone| {
        let (of, tracked) = (of, false);
        Some(Inline { of, alone, tracked })
    };
    let offers = |rig: &mut Rig| -> Vec<_> {
        let sent = rig.all_sent();
        let offers = sent.iter().map(|sent| sent.inline).collect();
        let outcome = |sent: &Sent| Input::Outcome {
            call: sent.call,
            outcome: CallOutcome::Answered(match sent.op {
                Op::Acquire(_) => Reply::Acquired {
                    ttl: LEASE,
                    token: None,
                },
                _ => Reply::Released(0),
            }),
        };
        rig.input(Input::Together(sent.iter().map(outcome).collect()));
        offers
    };
    let id = acquire_all(&mut rig, &["a", "b", "c"], OwnerKey::Once, None);
    assert_eq!(offers(&mut rig), [inline(id, true); 3]);
    let grant = rig.granted(id);

    // Others use the client, too.
    let id = acquire_all(&mut rig, &["d", "e", "f"], OwnerKey::Once, None);
    assert_eq!(offers(&mut rig), [inline(id, false); 3]);
    let other = rig.granted(id);
    let id = rig.release(&other);
    assert_eq!(offers(&mut rig), [inline(id, false); 3]);
    rig.released(id);

    let id = rig.release(&grant);
    assert_eq!(offers(&mut rig), [inline(id, true); 3]);
    rig.released(id);
    rig.nothing_left();
}

#[test]
fn no_call_for_a_part_is_offered_while_another_is_in_flight() {
    let mut rig = Rig::new();
    rig.acquire("n");
    let first = rig.sent();
    assert!(first.inline.is_some());
    acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    assert!(sent.len() == 2 && sent.iter().all(|sent| sent.inline.is_none()));
}

/// While it waits it holds nothing behind the name that it waits for: others may hold that and wait
/// for what it has.
#[test]
fn what_lies_behind_a_refused_name_is_given_back() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b", "c", "d"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.grant(&sent[3]);
    busy(&mut rig, &sent[2]);
    rig.nothing_sent();
    busy(&mut rig, &sent[1]);
    // It gives back d, and asks for b once more, as one that waits. Then it waits for c.
    let next = rig.all_sent();
    assert_eq!(names(&next), ["-d", "+b"]);
    freed(&mut rig, &next[0]);
    rig.grant(&next[1]);
    for name in ["+c", "+d"] {
        assert!(rig.pending(id));
        let next = rig.sent();
        assert_eq!(names(std::slice::from_ref(&next)), [name]);
        rig.grant(&next);
    }
    let grant = rig.granted(id);
    let all: Vec<&str> = grant.cell.parts().iter().map(|part| &*part.name).collect();
    assert_eq!(all, ["a", "b", "c", "d"]);
}

#[test]
fn a_try_that_is_refused_gives_everything_back() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, Some(Duration::ZERO));
    let sent = rig.all_sent();
    rig.grant(&sent[1]);
    busy(&mut rig, &sent[0]);
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("\"a\""), "{error}");
    let release = rig.sent();
    assert_eq!(names(std::slice::from_ref(&release)), ["-b"]);
    freed(&mut rig, &release);
    rig.nothing_left();
}

#[test]
fn a_wait_ends_in_time_also_between_two_names() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, Some(secs(3)));
    let sent = rig.all_sent();
    busy(&mut rig, &sent[0]);
    busy(&mut rig, &sent[1]);
    rig.pass(secs(1));
    let waits = rig.sent();
    assert_eq!(names(std::slice::from_ref(&waits)), ["+a"]);
    rig.grant(&waits);
    let waits = rig.sent();
    assert_eq!(names(std::slice::from_ref(&waits)), ["+b"]);
    busy(&mut rig, &waits);
    rig.pass(ms(1999));
    assert!(rig.pending(id));
    rig.pass(ms(1));
    let error = rig.error(id);
    assert!(
        error.message().contains("within 3s") && error.message().contains("\"b\""),
        "{error}"
    );
}

/// A copy that was sent before the caller gave up may still be granted.
#[test]
fn what_is_granted_after_a_cancel_is_released() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.cancel(id);
    assert_eq!(rig.error(id).kind(), ErrorKind::Cancelled);
    let release = rig.sent();
    assert_eq!(names(std::slice::from_ref(&release)), ["-a"]);
    freed(&mut rig, &release);
    rig.grant(&sent[1]);
    let release = rig.sent();
    assert_eq!(names(std::slice::from_ref(&release)), ["-b"]);
    freed(&mut rig, &release);
    rig.nothing_left();
}

/// A name of another kind, a refusal by the server: waiting would not help.
#[test]
fn an_error_of_one_name_ends_the_acquisition() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    rig.reply(&sent[1], Reply::Foreign("a string".into()));
    assert!(rig.pending(id));
    rig.grant(&sent[0]);
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::ForeignKind);
    assert!(error.message().starts_with("\"b\": "), "{error}");
    assert_eq!(names(&[rig.sent()]), ["-a"]);
}

/// A lock waits for a server that is out of reach for a moment; so does a multi lock.
#[test]
fn a_try_without_an_answer_is_no_end_for_one_that_waits() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.outcome(&sent[1], CallOutcome::NotSent);
    assert!(rig.pending(id));
    let again = rig.all_sent();
    let acquires = again
        .iter()
        .filter(|sent| matches!(sent.op, Op::Acquire(_)));
    let acquires: Vec<Sent> = acquires.cloned().collect();
    assert_eq!(names(&acquires), ["+b"]);
    rig.grant(&acquires[0]);
    let grant = rig.granted(id);
    assert!(rig.is_held(&grant));
}

#[test]
fn a_level_of_a_key_that_holds_it_is_a_level_of_each_part() {
    let mut rig = Rig::new();
    let first = held(&mut rig, &["a", "b"], KEY);
    let second = held(&mut rig, &["a", "b"], KEY);
    assert!(Arc::ptr_eq(&first.cell, &second.cell));
    assert_eq!(first.cell.count(), 2);
    assert!(first.cell.parts().iter().all(|part| part.count() == 2));
    let key = Target::Key {
        name: "a, b".into(),
        key: KEY,
        kind: Kind::Multi,
    };
    for left in [1, 0] {
        let release = rig.request(Request::Release(key.clone()));
        for sent in rig.all_sent() {
            assert_eq!(sent.release().1, left);
            match left {
                0 => freed(&mut rig, &sent),
                _ => rig.reply(&sent, Reply::Kept),
            }
        }
        rig.released(release);
        assert_eq!(rig.is_held(&first), left > 0);
    }
    let release = rig.request(Request::Release(key));
    assert_eq!(rig.error(release).kind(), ErrorKind::NotOwner);
    rig.nothing_left();
}

#[test]
fn the_loss_of_a_part_is_told_once_and_the_others_stay() {
    let mut rig = Rig::new();
    let grant = held(&mut rig, &["a", "b", "c"], OwnerKey::Once);
    rig.input(Input::Invalidated(Some(vec!["b".into(), "c".into()])));
    let look = rig.sent();
    let gone = vec![RenewReply::Gone(LostReason::Deleted); look.renewal().len()];
    rig.reply(&look, Reply::Renewed(gone));
    let told = rig.lost.iter().filter(|(owner, _)| *owner == grant.owner());
    assert_eq!(told.count(), 1);
    assert!(!rig.is_held(&grant));
    let [a, ..] = grant.cell.parts() else {
        panic!("it has parts");
    };
    assert!(a.is_held(rig.now), "its holder may still be at work");
}

fn tied(key: OwnerKey, lease: Lease) -> (OwnerKey, Terms) {
    let terms = Terms {
        kind: Kind::Multi,
        tied: true,
        lease,
        ..WATCHED
    };
    (key, terms)
}

/// Acquires for a key that answers for it itself, as a thread does.
fn acquire_tied(rig: &mut Rig, names: &[&str], lease: Lease) -> RequestId {
    let (key, terms) = tied(KEY, lease);
    let part = |part: &Part| Part {
        terms: Terms {
            lease,
            ..part.terms
        },
        ..part.clone()
    };
    rig.request(Request::AcquireAll(AcquireAll {
        name: names.join(", ").into(),
        parts: parts(names).iter().map(part).collect(),
        needed: names.len(),
        key,
        wait: None,
        terms,
    }))
}

/// A lock says after the outage that the server cannot be reached. So does a multi lock that waits.
#[test]
fn an_outage_ends_the_wait() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    busy(&mut rig, &sent[1]);
    rig.input(down());
    assert!(rig.pending(id));
    rig.pass(OUTAGE);
    assert_eq!(rig.error(id).kind(), ErrorKind::Unavailable);
}

#[test]
fn a_server_that_was_never_reached_is_told_soon() {
    let mut rig = Rig::offline();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, None);
    assert!(rig.pending(id));
    // The first attempt to connect ends the tries, the next one the wait.
    rig.input(down());
    rig.input(down());
    assert_eq!(rig.error(id).kind(), ErrorKind::Unavailable);
}

#[test]
fn a_silent_server_does_not_stretch_the_wait() {
    let mut rig = Rig::new();
    let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, Some(ms(200)));
    assert_eq!(rig.all_sent().len(), 2);
    rig.pass(ms(199));
    assert!(rig.pending(id));
    rig.pass(ms(1));
    assert_eq!(rig.error(id).kind(), ErrorKind::Unavailable);
}

/// Such as that of a server that is being made a replica.
#[test]
fn a_refusal_that_passes_ends_no_wait() {
    let waits = [None, Some(Duration::ZERO)];
    for wait in waits {
        let mut rig = Rig::new();
        let id = acquire_all(&mut rig, &["a", "b"], OwnerKey::Once, wait);
        let sent = rig.all_sent();
        rig.grant(&sent[0]);
        rig.outcome(&sent[1], refused(ErrorKind::Server, true));
        if wait.is_some() {
            assert_eq!(rig.error(id).kind(), ErrorKind::Server);
            continue;
        }
        assert!(rig.pending(id));
        let waits = rig.sent();
        assert_eq!(names(std::slice::from_ref(&waits)), ["+b"]);
        rig.grant(&waits);
        assert_eq!(rig.granted(id).cell.parts().len(), 2);
    }
}

#[test]
fn a_quorum_outlasts_refusals_that_pass() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    for sent in &sent[1..] {
        rig.outcome(sent, refused(ErrorKind::Server, true));
    }
    let end = rig.now.after(4 * tuning::QUORUM_LOOK);
    while rig.now < end {
        for sent in rig.all_sent() {
            rig.outcome(&sent, refused(ErrorKind::Server, true));
        }
        rig.pass(ms(10));
    }
    assert!(rig.pending(id));
}

/// It would wait for its own parts.
#[test]
fn a_key_that_has_lost_it_has_to_release_it_first() {
    let mut rig = Rig::new();
    let id = acquire_tied(&mut rig, &["a", "b"], Lease::Watchdog(LEASE));
    for sent in rig.all_sent() {
        rig.grant(&sent);
    }
    let grant = rig.granted(id);
    rig.input(Input::Invalidated(Some(vec!["b".into()])));
    let look = rig.sent();
    let gone = vec![RenewReply::Gone(LostReason::Deleted); look.renewal().len()];
    rig.reply(&look, Reply::Renewed(gone));
    let again = acquire_tied(&mut rig, &["a", "b"], Lease::Watchdog(LEASE));
    let error = rig.error(again);
    assert_eq!(error.lost_reason(), Some(LostReason::Deleted));
    assert!(error.message().contains("released first"), "{error}");
    let release = rig.release(&grant);
    for sent in rig.all_sent() {
        if matches!(sent.op, Op::Release(_)) {
            freed(&mut rig, &sent);
        }
    }
    assert_eq!(rig.lost_by(release), LostReason::Deleted);
}

/// Grants each acquisition and confirms each release.
fn answer_all(rig: &mut Rig) {
    for sent in rig.all_sent() {
        match sent.op {
            Op::Acquire(_) => rig.grant(&sent),
            _ => freed(rig, &sent),
        }
    }
}

/// As a lock: its key need not release what it left to its lease.
#[test]
fn a_fixed_lease_that_has_run_out_is_no_hindrance_and_is_forgotten() {
    let mut rig = Rig::new();
    for round in 0..=tuning::EXPIRED_KEPT + 10 {
        let name = format!("n{round}");
        let id = acquire_tied(&mut rig, &[&name], Lease::Fixed(secs(1)));
        answer_all(&mut rig);
        let grant = rig.granted(id);
        rig.pass(secs(2));
        assert!(!rig.is_held(&grant));
        answer_all(&mut rig);
    }
    assert_eq!(
        rig.engine.multi.cells().count(),
        tuning::EXPIRED_KEPT,
        "old ones are forgotten"
    );
    let last = format!("n{}", tuning::EXPIRED_KEPT + 10);
    let id = acquire_tied(&mut rig, &[&last], Lease::Fixed(secs(1)));
    answer_all(&mut rig);
    assert!(rig.granted(id).cell.is_held(rig.now));
}

#[test]
fn fixed_leases_begin_when_all_names_are_there() {
    let mut rig = Rig::new();
    let lease = Lease::Fixed(secs(10));
    let id = acquire_tied(&mut rig, &["a", "b"], lease);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    busy(&mut rig, &sent[1]);
    let waits = rig.sent();
    busy(&mut rig, &waits);
    rig.pass(secs(4));
    rig.input(Input::Message("b".into()));
    let again = rig.sent();
    rig.grant(&again);
    assert!(rig.pending(id));
    for sent in rig.all_sent() {
        assert_eq!(sent.renewal()[0].1, secs(10));
        rig.keep(&sent);
    }
    let grant = rig.granted(id);
    rig.pass(secs(9));
    assert!(rig.is_held(&grant));
}

/// Its parts would outlive the client, and nobody would know of them.
#[test]
fn a_close_gives_back_parts_that_linger() {
    let mut rig = Rig::new();
    let lingering = |part: &Part| Part {
        terms: Terms {
            linger: true,
            ..part.terms
        },
        ..part.clone()
    };
    let id = rig.request(Request::AcquireAll(AcquireAll {
        name: "a, b".into(),
        parts: parts(&["a", "b"]).iter().map(lingering).collect(),
        needed: 2,
        key: OwnerKey::Once,
        wait: None,
        terms: Terms {
            kind: Kind::Multi,
            linger: true,
            ..WATCHED
        },
    }));
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    busy(&mut rig, &sent[1]);
    let waits = rig.sent();
    busy(&mut rig, &waits);
    rig.request(Request::Close { limit: secs(1) });
    assert_eq!(rig.error(id).kind(), ErrorKind::Closed);
    assert_eq!(names(&[rig.sent()]), ["-a"]);
}

/// The key has the lock singly as well: its level of that, not the part, is what it gives back.
#[test]
fn a_release_by_key_leaves_the_part_to_its_multi_lock() {
    let mut rig = Rig::new();
    let single = rig.hold_with(
        "a",
        KEY,
        Terms {
            tied: true,
            ..WATCHED
        },
    );
    let both = held(&mut rig, &["a", "b"], KEY);
    let key = Target::Key {
        name: "a".into(),
        key: KEY,
        kind: Kind::Reentrant,
    };
    let release = rig.request(Request::Release(key));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Kept);
    rig.released(release);
    assert!(rig.is_held(&both) && single.cell.count() == 1);
    let release = rig.release(&both);
    for sent in rig.all_sent() {
        freed(&mut rig, &sent);
    }
    rig.released(release);
    rig.nothing_left();
}

/// One round for each refused name, not for each name behind it.
#[test]
fn names_that_were_refused_are_waited_for_one_after_the_other() {
    let mut rig = Rig::new();
    let all: Vec<String> = (0..30).map(|number| format!("n{number:02}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let id = acquire_all(&mut rig, &all, OwnerKey::Once, None);
    let sent = rig.all_sent();
    sent.iter().for_each(|sent| busy(&mut rig, sent));
    let mut calls = sent.len();
    while rig.pending(id) {
        let waits = rig.sent();
        calls += 1;
        rig.grant(&waits);
    }
    assert_eq!(calls, 2 * all.len());
}

#[test]
fn the_name_of_the_whole_is_of_these_locks_alone() {
    let name = |locks: &[(&str, Kind)]| {
        let locks = locks.iter().map(|(name, kind)| (Name::from(*name), *kind));
        let (name, _) = in_order(locks.collect(), |(name, kind)| (name, *kind)).expect("a name");
        name.to_string()
    };
    let plain = Kind::Reentrant;
    assert_eq!(name(&[("y", plain), ("x", plain)]), "x, y");
    assert_eq!(name(&[("x, y", plain)]), "\"x, y\"");
    assert_eq!(name(&[("p", Kind::Read), ("q", plain)]), "p (read), q");
    assert_eq!(name(&[("p", Kind::Write), ("q", plain)]), "p (write), q");
    assert_eq!(name(&[("p (read)", plain)]), "\"p (read)\"");
}

// ---- quorums ----

const SERVERS: [&str; 3] = ["q at a:1", "q at b:1", "q at c:1"];

fn acquire_most(rig: &mut Rig, wait: Option<Duration>) -> RequestId {
    rig.request(Request::AcquireAll(AcquireAll {
        name: "q".into(),
        parts: parts(&SERVERS),
        needed: 2,
        key: OwnerKey::Once,
        wait,
        terms: Terms {
            kind: Kind::Quorum,
            ..WATCHED
        },
    }))
}

#[test]
fn most_servers_are_enough() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, Some(Duration::ZERO));
    let sent = rig.all_sent();
    assert_eq!(names(&sent), ["+q at a:1", "+q at b:1", "+q at c:1"]);
    busy(&mut rig, &sent[0]);
    rig.grant(&sent[1]);
    assert!(rig.pending(id));
    rig.grant(&sent[2]);
    let cell = rig.granted(id).cell;
    assert_eq!((cell.kind, cell.parts().len()), (Kind::Quorum, 2));
    assert!(cell.is_held(rig.now));
}

#[test]
fn a_try_without_most_servers_leaves_nothing() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, Some(Duration::ZERO));
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    busy(&mut rig, &sent[1]);
    busy(&mut rig, &sent[2]);
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(names(&[rig.sent()]), ["-q at a:1"]);
}

/// A server that refuses for good answers at once: a wait for it would go round without end.
#[test]
fn a_quorum_waits_where_a_wait_can_help() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    rig.reply(&sent[0], Reply::Foreign("list".into()));
    busy(&mut rig, &sent[1]);
    busy(&mut rig, &sent[2]);
    let waits = rig.sent();
    assert_eq!(names(std::slice::from_ref(&waits)), ["+q at b:1"]);
    busy(&mut rig, &waits);
    assert!(rig.pending(id));
}

#[test]
fn servers_that_refuse_for_good_end_the_wait() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    rig.reply(&sent[0], Reply::Foreign("list".into()));
    rig.reply(&sent[1], Reply::Foreign("list".into()));
    rig.grant(&sent[2]);
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::ForeignKind);
    assert_eq!(names(&[rig.sent()]), ["-q at c:1"]);
}

#[test]
fn a_quorum_that_waits_looks_at_all_servers_again() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    busy(&mut rig, &sent[1]);
    busy(&mut rig, &sent[2]);
    let waits = rig.sent();
    busy(&mut rig, &waits);
    rig.pass(tuning::QUORUM_LOOK);
    let sent = rig.all_sent();
    assert_eq!(names(&sent), ["+q at b:1", "+q at c:1"]);
    busy(&mut rig, &sent[0]);
    rig.grant(&sent[1]);
    assert_eq!(rig.granted(id).cell.parts().len(), 2);
}

#[test]
fn the_loss_of_most_servers_is_told_and_that_of_fewer_is_not() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    sent.iter().for_each(|sent| rig.grant(sent));
    let cell = rig.granted(id).cell;
    let lose = |rig: &mut Rig, name: &str| {
        rig.input(Input::Invalidated(Some(vec![name.into()])));
        // The clean-up of the part that was lost before may go out beside it.
        let sent = rig.all_sent();
        let look = sent.iter().find(|sent| matches!(sent.op, Op::Renew { .. }));
        let gone = vec![RenewReply::Gone(LostReason::Deleted)];
        rig.reply(look.unwrap(), Reply::Renewed(gone));
    };
    lose(&mut rig, SERVERS[1]);
    assert!(cell.is_held(rig.now) && cell.told_lost().is_none());
    lose(&mut rig, SERVERS[0]);
    assert_eq!(cell.told_lost(), Some(LostReason::Deleted));
    assert!(rig.lost.contains(&(cell.owner, LostReason::Deleted)));
}

#[test]
fn a_release_is_told_when_most_servers_confirm_it() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    for sent in rig.all_sent() {
        rig.grant(&sent);
    }
    let granted = rig.granted(id);
    let release = rig.release(&granted);
    let sent = rig.all_sent();
    assert_eq!(names(&sent), ["-q at a:1", "-q at b:1", "-q at c:1"]);
    freed(&mut rig, &sent[1]);
    assert!(rig.pending(release));
    freed(&mut rig, &sent[2]);
    rig.released(release);
    // The first one answers late, or never.
    freed(&mut rig, &sent[0]);
    rig.nothing_left();
}

/// Two of three were acquired, and one of them is gone: the other one alone is no quorum.
#[test]
fn a_release_tells_the_loss_of_most_servers() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, None);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.grant(&sent[1]);
    busy(&mut rig, &sent[2]);
    let granted = rig.granted(id);
    let release = rig.release(&granted);
    let sent = rig.all_sent();
    freed(&mut rig, &sent[0]);
    assert!(rig.pending(release));
    rig.reply(&sent[1], Reply::Gone(LostReason::Deleted));
    let error = rig.error(release);
    assert_eq!(error.lost_reason(), Some(LostReason::Deleted));
}

#[test]
fn a_quorum_that_is_there_is_granted_when_the_time_is_over() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, Some(ms(200)));
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.grant(&sent[1]);
    assert!(rig.pending(id));
    rig.pass(ms(200));
    assert_eq!(rig.granted(id).cell.parts().len(), 2);
    // The third answers too late: it is given back.
    rig.grant(&sent[2]);
    assert_eq!(names(&[rig.sent()]), ["-q at c:1"]);
}

#[test]
fn a_time_that_is_over_names_the_servers_that_did_not_answer() {
    let mut rig = Rig::new();
    let id = acquire_most(&mut rig, Some(ms(200)));
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.pass(ms(200));
    let error = rig.error(id);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains(SERVERS[1]), "{error}");
}

#[test]
fn a_level_of_a_quorum_joins_the_hold_of_its_key() {
    let mut rig = Rig::new();
    let enter = |rig: &mut Rig| {
        rig.request(Request::AcquireAll(AcquireAll {
            name: "q".into(),
            parts: parts(&SERVERS),
            needed: 2,
            key: KEY,
            wait: None,
            terms: Terms {
                kind: Kind::Quorum,
                ..WATCHED
            },
        }))
    };
    let id = enter(&mut rig);
    let sent = rig.all_sent();
    rig.grant(&sent[0]);
    rig.grant(&sent[1]);
    busy(&mut rig, &sent[2]);
    let first = rig.granted(id);
    let id = enter(&mut rig);
    // It enters again where it is, and asks the third one anew, which is free now.
    for sent in rig.all_sent() {
        rig.grant(&sent);
    }
    let second = rig.granted(id);
    assert!(Arc::ptr_eq(&first.cell, &second.cell));
    assert_eq!((second.cell.count(), second.cell.parts().len()), (2, 2));
    assert_eq!(names(&[rig.sent()]), ["-q at c:1"]);
}
