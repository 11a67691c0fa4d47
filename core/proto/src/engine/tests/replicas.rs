//! Acquisitions that replicas have to acknowledge.

use super::*;

const TWO: Terms = Terms {
    replicas: 2,
    ..WATCHED
};
const ONE_CAME: Reply = Reply::NotReplicated { got: 1 };

fn replicas(sent: &Sent) -> u32 {
    sent.op.replicas()
}

#[test]
fn they_have_as_long_as_the_server() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", KEY, None, TWO);
    let sent = rig.sent();
    assert_eq!((replicas(&sent), sent.limit), (2, secs(2)));
    rig.grant(&sent);
    rig.granted(id);
    // A re-entry waits for replicas as well. Renewals and releases do not.
    let id = rig.acquire_with("n", KEY, None, TWO);
    let sent = rig.sent();
    assert_eq!((replicas(&sent), sent.limit), (2, secs(2)));
    rig.grant(&sent);
    let grant = rig.granted(id);
    rig.pass(secs(10));
    let sent = rig.sent();
    assert_eq!((replicas(&sent), sent.limit), (0, secs(1)));
    rig.keep(&sent);
    rig.release(&grant);
    assert_eq!(replicas(&rig.sent()), 0);
}

#[test]
fn without_them_a_first_acquisition_is_given_back() {
    let mut rig = Rig::new();
    for wait in [None, Some(Duration::ZERO), Some(secs(60))] {
        let id = rig.acquire_with("n", OwnerKey::Once, wait, TWO);
        let next = rig.acquire("n");
        let sent = rig.sent();
        rig.reply(&sent, ONE_CAME);
        let error = rig.error(id);
        assert_eq!(error.kind(), ErrorKind::NotReplicated);
        assert!(error.message().contains("1 of the 2 replicas"), "{error}");
        let sent = {
            let all = rig.all_sent();
            assert_eq!(all[0].release(), (sent.acquire().0, 0, Duration::ZERO));
            rig.reply(&all[0], Reply::Released(0));
            // The waiter behind it tries next.
            all[1].clone()
        };
        rig.grant(&sent);
        let grant = rig.granted(next);
        rig.free(&grant);
        rig.nothing_left();
    }
}

#[test]
fn without_them_a_re_entry_is_taken_back_and_the_hold_stays() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", KEY, WATCHED);
    let id = rig.acquire_with("n", KEY, None, TWO);
    let sent = rig.sent();
    rig.reply(&sent, ONE_CAME);
    assert_eq!(rig.failed(id), ErrorKind::NotReplicated);
    let settle = rig.sent();
    assert_eq!(settle.release().1, 1, "the count as it was");
    rig.reply(&settle, Reply::Kept);
    assert!(rig.is_held(&grant) && grant.cell.count() == 1);
    rig.free(&grant);
    rig.nothing_left();
}

#[test]
fn one_whose_caller_has_gone_is_given_back() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, None, TWO);
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.reply(&sent, ONE_CAME);
    let release = rig.sent();
    assert_eq!(release.release(), (sent.acquire().0, 0, Duration::ZERO));
    rig.reply(&release, Reply::Released(0));
    rig.nothing_left();
}

#[test]
fn a_copy_without_an_answer_may_run_for_all_of_its_time() {
    let mut rig = Rig::new();
    rig.acquire_with("n", OwnerKey::Once, None, TWO);
    let first = rig.sent();
    rig.pass(secs(2));
    rig.outcome(&first, CallOutcome::Unanswered);
    rig.pass(ms(21));
    rig.nothing_sent();
    // The not-after counts on the server's clock: 2 s and drift.
    rig.pass(ms(1));
    assert_eq!(rig.sent().acquire(), first.acquire());
}
