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
    rig.request(Request::AcquireAll {
        name: names.join(", ").into(),
        parts: parts(names),
        key,
        wait,
        terms: Terms {
            kind: Kind::Multi,
            ..WATCHED
        },
    })
}

/// The names that the calls want to acquire, or release.
fn names(sent: &[Sent]) -> Vec<String> {
    let name = |sent: &Sent| match &sent.op {
        Op::Acquire { name, .. } => format!("+{name}"),
        Op::Release { name, .. } => format!("-{name}"),
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
    // It asks for b once more, as one that waits, and gives back d. It does not ask for c.
    let next = rig.all_sent();
    assert_eq!(names(&next), ["+b", "-d"]);
    freed(&mut rig, &next[1]);
    rig.grant(&next[0]);
    let next = rig.all_sent();
    assert_eq!(names(&next), ["+c", "+d"]);
    rig.grant(&next[0]);
    assert!(rig.pending(id));
    rig.grant(&next[1]);
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
    assert_eq!(names(&[release.clone()]), ["-b"]);
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
    assert_eq!(names(&[waits.clone()]), ["+a"]);
    rig.grant(&waits);
    let last = rig.sent();
    busy(&mut rig, &last);
    let waits = rig.sent();
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
    assert_eq!(names(&[release.clone()]), ["-a"]);
    freed(&mut rig, &release);
    rig.grant(&sent[1]);
    let release = rig.sent();
    assert_eq!(names(&[release.clone()]), ["-b"]);
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
        .filter(|sent| matches!(sent.op, Op::Acquire { .. }));
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
