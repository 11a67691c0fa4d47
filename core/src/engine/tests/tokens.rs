//! Simple locks whose value the caller gives.

use super::*;

fn form() -> Form {
    Form { kind: Kind::Simple, token: Some("t".into()) }
}

fn acquire(rig: &mut Rig) -> RequestId {
    let terms = Terms { kind: Kind::Simple, reentrant: false, ..WATCHED };
    rig.request(Request::Acquire {
        name: "n".into(),
        key: Key::Once,
        wait: None,
        terms,
        token: Some("t".into()),
    })
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
    rig.outcome(&sent, Outcome::Unanswered);
    rig.pass(COPY);
    let sent = rig.sent();
    assert_eq!(sent.acquire().1, 1);
    rig.reply(&sent, Reply::Acquired { ttl: LEASE, token: None });
    assert!(matches!(rig.done(id), Done::Granted { .. }));
}

#[test]
fn whoever_knows_the_token_releases_and_extends() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ExtendToken { name: "n".into(), form: form(), lease: LEASE });
    let sent = rig.sent();
    assert_eq!(sent.renewal(), [(0, LEASE)]);
    rig.reply(&sent, Reply::Renewed(vec![RenewReply::Kept]));
    assert!(matches!(rig.done(id), Done::Extended));
    let id = rig.request(Request::ReleaseToken { name: "n".into(), form: form() });
    let sent = rig.sent();
    assert_eq!(sent.release().1, 0);
    rig.reply(&sent, Reply::Released(0));
    assert!(matches!(rig.done(id), Done::Released));
    rig.nothing_left();
}

#[test]
fn a_token_of_nobody_is_not_the_owner_s() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ExtendToken { name: "n".into(), form: form(), lease: LEASE });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)]));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    let id = rig.request(Request::ReleaseToken { name: "n".into(), form: form() });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
}

#[test]
fn what_a_copy_without_an_answer_has_freed_is_released() {
    let mut rig = Rig::new();
    let id = rig.request(Request::ReleaseToken { name: "n".into(), form: form() });
    let sent = rig.sent();
    rig.outcome(&sent, Outcome::Unanswered);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Gone(LostReason::Deleted));
    assert!(matches!(rig.done(id), Done::Released));
}

#[test]
fn a_hold_of_this_client_is_looked_at_when_its_token_was_used() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.request(Request::ReleaseToken { name: "n".into(), form: form() });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Released(0));
    assert_eq!(rig.sent().renewal()[0].0, grant.owner());
}
