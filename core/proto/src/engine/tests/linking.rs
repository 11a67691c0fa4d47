//! The link: coming up, going down, staying away.

use std::collections::VecDeque;

use super::*;
use crate::engine::{LinkId, Routes};
use crate::tuning;
use crate::wire::slots::{SLOTS, slot};

#[test]
fn callers_wait_for_the_first_connection() {
    let mut rig = Rig::offline();
    let ids = [rig.acquire("a"), rig.try_acquire("b")];
    let connect = rig.request(Request::Connect);
    rig.pass(ms(700));
    rig.nothing_sent();
    rig.input(Input::Up(0));
    assert!(matches!(rig.done(connect), Done::Connected));
    for (sent, id) in rig.all_sent().iter().zip(ids) {
        rig.grant(sent);
        rig.granted(id);
    }
    let connect = rig.request(Request::Connect);
    assert!(matches!(rig.done(connect), Done::Connected));
}

#[test]
fn a_server_that_was_never_reached_fails_everybody_at_once() {
    let mut rig = Rig::offline();
    let ids = [
        rig.acquire("a"),
        rig.acquire("a"),
        rig.try_acquire("b"),
        rig.request(Request::Connect),
        rig.request(Request::Inspect {
            name: "c".into(),
            kind: Kind::Reentrant,
            what: Inspection::Owners,
        }),
    ];
    rig.input(down());
    for id in ids {
        assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    }
    rig.nothing_left();
    // Later callers hear from the next attempt.
    let id = rig.acquire("a");
    assert!(rig.pending(id));
    rig.input(down());
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
}

#[test]
fn a_wrong_password_ends_every_wait_at_once() {
    let mut rig = Rig::new();
    rig.hold("n");
    let id = rig.acquire("n");
    rig.input(Input::Down(
        0,
        Error::new(ErrorKind::Auth, "the password was changed"),
    ));
    assert_eq!(rig.failed(id), ErrorKind::Auth);
}

/// The server may be in the middle of a replacement, for example by one with fewer databases.
#[test]
fn an_address_that_fits_no_more_ends_no_wait_of_a_client_that_was_connected() {
    let mut rig = Rig::new();
    let id = rig.acquire("n");
    rig.input(Input::Down(0, Error::invalid("no such database")));
    assert!(rig.pending(id));
}

#[test]
fn a_short_outage_costs_waiters_nothing_but_time() {
    let mut rig = Rig::new();
    let (waiting, tried) = (rig.acquire("a"), rig.try_acquire("b"));
    let sent = rig.all_sent();
    sent.iter()
        .for_each(|sent| rig.outcome(sent, CallOutcome::Unanswered));
    assert_eq!(rig.failed(tried), ErrorKind::Unavailable);
    rig.all_sent();
    rig.input(down());
    let tried = rig.try_acquire("c");
    assert_eq!(rig.failed(tried), ErrorKind::Unavailable);
    rig.pass(OUTAGE - ms(1));
    assert!(rig.pending(waiting));
    rig.input(Input::Up(0));
    let sent = rig.all_sent();
    assert!(
        sent.iter()
            .any(|sent| matches!(&sent.op, Op::Acquire(Acquire { name, .. }) if &**name == "a"))
    );
}

/// Regression test: a user without the right to publish woke no waiter, and nobody was told.
#[test]
fn a_release_that_may_not_be_published_is_told_once_in_an_outage() {
    let mut rig = Rig::new();
    let other = rig.hold("m");
    for told in 1..3 {
        for _ in 0..2 {
            let grant = rig.hold("n");
            let id = rig.release(&grant);
            let sent = rig.sent();
            rig.reply(&sent, Reply::Untold(Reply::Released(0).into()));
            rig.released(id);
        }
        let events = rig
            .alarms
            .iter()
            .filter(|(kind, _)| *kind == "unpublishable");
        assert_eq!(events.count(), told);
        rig.input(down());
        rig.input(Input::Up(0));
        rig.all_sent();
    }
    assert!(rig.is_held(&other));
}

#[test]
fn tries_in_flight_fail_when_the_link_goes_down() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("h", KEY, WATCHED);
    let tried = rig.try_acquire("n");
    let entering = rig.acquire_with("h", KEY, Some(Duration::ZERO), WATCHED);
    let sent = rig.all_sent();
    rig.input(down());
    assert_eq!(rig.failed(tried), ErrorKind::Unavailable);
    assert_eq!(rig.failed(entering), ErrorKind::Unavailable);
    let late = rig.acquire_with("h", KEY, Some(Duration::ZERO), WATCHED);
    assert_eq!(rig.failed(late), ErrorKind::Unavailable);
    sent.iter()
        .for_each(|sent| rig.outcome(sent, CallOutcome::Unanswered));
    rig.pass(secs(2));
    rig.input(Input::Up(0));
    let ops: Vec<Op> = rig.all_sent().into_iter().map(|sent| sent.op).collect();
    // Everything that may have been done is undone: the count is settled and the try is cleaned up.
    let is_release = |op: &&Op| matches!(op, Op::Release(_));
    assert_eq!(ops.iter().filter(is_release).count(), 2, "{ops:?}");
    assert_eq!(outer.cell.count(), 1);
}

#[test]
fn a_long_outage_ends_every_wait() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("h", KEY, fixed(secs(600)));
    let (waiting, entering) = (rig.acquire("n"), rig.acquire_with("h", KEY, None, WATCHED));
    let asked = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    let sent = rig.all_sent();
    rig.input(down());
    sent.iter()
        .for_each(|sent| rig.outcome(sent, CallOutcome::NotSent));
    rig.pass(OUTAGE);
    for id in [waiting, entering, asked] {
        assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    }
    // New callers hear from the next attempt to connect.
    let id = rig.acquire("n");
    assert!(rig.pending(id));
    rig.input(down());
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    assert!(rig.is_held(&outer));
    rig.input(Input::Up(0));
    let id = rig.acquire("n");
    let sent = rig.all_sent();
    rig.grant(sent.last().expect("the acquire"));
    rig.granted(id);
}

#[test]
fn a_reconnect_looks_at_every_hold_and_every_waited_name() {
    let mut rig = Rig::new();
    let renewed = rig.hold("a");
    let kept = rig.hold_with("b", OwnerKey::Once, fixed(LEASE));
    rig.acquire("c");
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.acquire("a");
    rig.input(down());
    rig.pass(secs(1));
    rig.input(Input::Up(0));
    let sent = rig.all_sent();
    assert_eq!(
        sent[0].renewal(),
        [(renewed.owner(), LEASE), (kept.owner(), ms(1))]
    );
    assert!(matches!(&sent[1].op, Op::Acquire(Acquire { name, .. }) if &**name == "c"));
    assert_eq!(sent.len(), 2);
    rig.reply(
        &sent[0],
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted); 2]),
    );
    assert_eq!(rig.lost.len(), 2);
}

#[test]
fn outcomes_of_the_old_connection_may_come_after_the_new_one_is_up() {
    let mut rig = Rig::new();
    let held = rig.hold("h");
    rig.pass(secs(10));
    let renewal = rig.sent();
    let id = rig.acquire("n");
    let sent = rig.sent();
    rig.input(down());
    rig.input(Input::Up(0));
    rig.nothing_sent();
    // The new connection tracks no keys yet, so the hold is renewed without a pause.
    rig.outcome(&renewal, CallOutcome::Unanswered);
    let again = rig.sent();
    rig.keep(&again);
    rig.outcome(&sent, CallOutcome::NotSent);
    rig.pass(ms(500));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
    assert!(rig.is_held(&held));
}

#[test]
fn questions_are_asked_again_and_answered() {
    let mut rig = Rig::new();
    let holder = Holder {
        owner: "u:1".into(),
        count: 2,
        remaining: Some(LEASE),
        process: None,
    };
    let id = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Stale);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Holders(vec![holder.clone()]));
    assert!(matches!(rig.done(id), Done::Inspected(found) if found == [holder]));

    let id = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    let sent = rig.sent();
    rig.reply(&sent, Reply::Foreign("a set".into()));
    assert_eq!(rig.error(id).lock_name(), Some("n"));

    let id = rig.request(Request::Inspect {
        name: "n".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    });
    for _ in 0..10 {
        let sent = rig.sent();
        rig.pass(secs(1));
        rig.outcome(&sent, CallOutcome::Unanswered);
    }
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.nothing_left();
}

#[test]
fn failed_attempts_to_connect_are_one_warning() {
    let mut rig = Rig::new();
    (0..5).for_each(|_| rig.input(down()));
    assert_eq!(
        rig.events
            .iter()
            .filter(|kind| **kind == "disconnected")
            .count(),
        5
    );
    rig.input(Input::Up(0));
    assert_eq!(rig.counters.snapshot().holds, 0);
}

/// The kinds of the events above debug since the last look.
fn alarms(rig: &mut Rig) -> Vec<&'static str> {
    let told = std::mem::take(&mut rig.alarms);
    told.into_iter().map(|(kind, _)| kind).collect()
}

/// Servers and proxies cut idle connections: each of them was a warning.
#[test]
fn a_cut_of_an_idle_connection_is_no_news() {
    let mut rig = Rig::new();
    alarms(&mut rig);
    rig.pass(secs(300));
    rig.input(down());
    rig.input(Input::Up(0));
    assert!(alarms(&mut rig).is_empty());
    rig.pass(secs(300));
    rig.input(down());
    rig.input(down());
    rig.input(down());
    rig.input(Input::Up(0));
    assert_eq!(
        alarms(&mut rig),
        ["disconnected", "connected"],
        "it is away"
    );
    rig.hold("n");
    rig.pass(secs(2));
    rig.input(down());
    rig.input(Input::Up(0));
    assert_eq!(
        alarms(&mut rig),
        ["disconnected", "connected"],
        "a hold counts on it"
    );
}

/// Forty warnings in fifteen seconds: the address led to a replica.
#[test]
fn connections_that_end_at_once_are_one_outage_and_each_kind_of_reason_is_told() {
    let mut rig = Rig::new();
    rig.hold("n");
    alarms(&mut rig);
    rig.pass(secs(2));
    let replica = || Input::Down(0, Error::new(ErrorKind::Server, "a replica"));
    for _ in 0..20 {
        rig.input(replica());
        rig.pass(Duration::from_millis(100));
        rig.input(Input::Up(0));
        rig.pass(Duration::from_millis(100));
    }
    assert_eq!(alarms(&mut rig), ["disconnected", "connected"]);
    rig.input(down());
    let refused = || Input::Down(0, Error::new(ErrorKind::Auth, "WRONGPASS"));
    (0..5).for_each(|_| rig.input(refused()));
    assert_eq!(alarms(&mut rig), ["disconnected", "disconnected"]);
    rig.input(Input::Up(0));
    assert_eq!(alarms(&mut rig), ["connected"]);
    rig.pass(secs(2));
    rig.input(refused());
    assert_eq!(alarms(&mut rig), ["disconnected"], "another outage");
}

#[test]
fn a_refusal_that_lasts_is_told_once() {
    let mut rig = Rig::new();
    alarms(&mut rig);
    let text = "the server said \"NOREPLICAS\"";
    rig.acquire("n");
    for _ in 0..10 {
        let sent = rig.sent();
        let outcome = CallOutcome::Refused {
            error: Error::new(ErrorKind::Server, text),
            passing: true,
        };
        rig.outcome(&sent, outcome);
        rig.pass(secs(1));
    }
    let told = std::mem::take(&mut rig.alarms);
    assert!(
        matches!(told.as_slice(), [("refused", said)] if said.contains("NOREPLICAS")),
        "{told:?}"
    );
}

// ---- many servers ----

/// Routes each of these names to the link beside it, and all other names to the first link.
fn routes(links: &[(&str, LinkId)]) -> Input {
    let mut table = vec![links[0].1; usize::from(SLOTS)];
    for (name, link) in links {
        table[usize::from(slot(name))] = *link;
    }
    Input::Routes(Routes::by_slot(table.into()))
}

fn down_at(link: LinkId) -> Input {
    Input::Down(
        link,
        Error::new(ErrorKind::Unavailable, "cannot reach the node"),
    )
}

/// An engine with two nodes that are up: "a" is on the first, "b" on the second.
fn two_nodes() -> Rig {
    let mut rig = Rig::offline();
    rig.input(routes(&[("a", 1), ("b", 2)]));
    rig.input(Input::Up(1));
    rig.input(Input::Up(2));
    rig
}

/// Regression test: in a cluster most renewal calls are for one lock. With the limit of full calls,
/// a busy machine could not renew a thousand holds in time.
#[test]
fn small_calls_may_be_many() {
    let mut rig = two_nodes();
    for number in 0..1000 {
        rig.hold(&format!("n{number}"));
    }
    rig.pass(secs(10));
    let first = rig.all_sent();
    assert!(first.iter().all(|sent| sent.renewal().len() < 5));
    assert!((200..500).contains(&first.len()), "{}", first.len());
}

/// A thousand holds at one node, most of them in a slot of their own, each acquired a millisecond
/// after the one before. The connection is new, and all are to be renewed.
fn crowd_at_a_new_connection() -> (Rig, Vec<Grant>) {
    let mut rig = two_nodes();
    let mut held = Vec::new();
    for number in 0..1000 {
        held.push(rig.hold(&format!("n{number}")));
        rig.pass(ms(1));
    }
    rig.input(down_at(1));
    rig.input(Input::Up(1));
    (rig, held)
}

/// The slots were renewed in the order of their numbers: first those of all, then those of each
/// hundred holds that waited.
#[test]
fn in_a_cluster_the_slot_whose_hold_ends_first_is_renewed_first() {
    let (mut rig, held) = crowd_at_a_new_connection();
    let ends: HashMap<OwnerId, Moment> = held
        .iter()
        .map(|grant| (grant.owner(), grant.cell.deadline()))
        .collect();
    let first = |sent: &Sent| {
        sent.renewal()
            .iter()
            .map(|(owner, _)| ends[owner])
            .min()
            .expect("a hold")
    };
    let (mut order, mut renewed) = (Vec::new(), 0);
    let mut under_way: VecDeque<Sent> = rig.all_sent().into();
    while let Some(sent) = under_way.pop_front() {
        order.push(first(&sent));
        renewed += sent.renewal().len();
        rig.keep(&sent);
        under_way.extend(rig.all_sent());
    }
    assert_eq!(renewed, held.len());
    assert!(order.is_sorted(), "{order:?}");
}

/// A hundred were taken out for each call, and all but those of one slot were put off again. With a
/// hundred thousand holds the client did little else, and lost holds while nothing was wrong.
#[test]
fn in_a_cluster_no_more_is_taken_out_than_goes_in_the_next_call() {
    let (mut rig, held) = crowd_at_a_new_connection();
    let slots: HashMap<OwnerId, u16> = held
        .iter()
        .map(|grant| (grant.owner(), slot(&grant.cell.name)))
        .collect();
    let Engine {
        watchdog,
        cx,
        holds,
        ..
    } = &mut rig.engine;
    let next = watchdog.next_put_off(cx, holds, 1, true);
    assert!(
        !next.is_empty() && next.iter().all(|owner| slots[owner] == slots[&next[0]]),
        "{next:?}"
    );
}

#[test]
fn a_node_that_is_away_concerns_only_those_who_need_it() {
    let mut rig = two_nodes();
    let (a, b) = (rig.hold("a"), rig.hold("b"));
    let waiting = [rig.acquire("a"), rig.acquire("b")];
    rig.all_sent();
    rig.input(down_at(1));
    let tries = [rig.try_acquire("a"), rig.try_acquire("{b}2")];
    assert_eq!(rig.failed(tries[0]), ErrorKind::Unavailable);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(tries[1]);
    // The first waiter gives up on its node after the option `outage`. The second one goes on
    // waiting for its lock.
    rig.pass(OUTAGE);
    assert_eq!(rig.failed(waiting[0]), ErrorKind::Unavailable);
    assert!(rig.pending(waiting[1]) && rig.is_held(&a) && rig.is_held(&b));
}

#[test]
fn a_node_that_comes_back_has_its_holds_looked_at_and_no_other() {
    let mut rig = two_nodes();
    let (a, _) = (rig.hold("a"), rig.hold("b"));
    rig.input(down_at(1));
    rig.input(Input::Up(1));
    assert_eq!(
        rig.sent().renewal(),
        [(a.owner(), WATCHED.lease.duration())]
    );
}

#[test]
fn a_name_that_moves_is_renewed_and_tried_at_its_new_node() {
    let mut rig = two_nodes();
    let (a, _) = (rig.hold("a"), rig.hold("b"));
    let waiting = rig.acquire("{b}2");
    let sent = rig.sent();
    rig.busy(&sent, secs(20));
    rig.nothing_sent();
    rig.input(routes(&[("a", 2), ("b", 2)]));
    assert_eq!(rig.sent().renewal()[0].0, a.owner());
    // The engine waits for a node that is not connected yet, and reports no error meanwhile.
    rig.input(routes(&[("a", 2), ("b", 3)]));
    rig.pass(secs(2));
    rig.nothing_sent();
    assert!(rig.pending(waiting));
    rig.input(Input::Up(3));
    let mut sent = rig.all_sent();
    sent.retain(|sent| matches!(sent.op, Op::Acquire(_)));
    rig.grant(&sent[0]);
    rig.granted(waiting);
}

/// Regression test: for a third of its lease, the new node of the name was not asked about the hold
/// and did not track it.
#[test]
fn a_grant_of_a_node_that_lost_the_slot_is_probed_at_once() {
    let mut rig = two_nodes();
    let waits = rig.acquire("a");
    let sent = rig.sent();
    rig.pass(ms(1));
    rig.input(routes(&[("a", 2), ("b", 2)]));
    rig.grant(&sent);
    let grant = rig.granted(waits);
    assert_eq!(
        rig.sent().renewal(),
        [(grant.owner(), WATCHED.lease.duration())]
    );
    rig.pass(ms(1));
    rig.hold("b");
    rig.nothing_sent();
}

#[test]
fn connecting_fails_when_every_node_has_failed() {
    let mut rig = Rig::offline();
    let first = rig.request(Request::Connect);
    rig.input(routes(&[("a", 1), ("b", 2)]));
    rig.input(down_at(1));
    assert!(rig.pending(first));
    rig.input(down_at(2));
    assert_eq!(rig.failed(first), ErrorKind::Unavailable);
    let second = rig.request(Request::Connect);
    rig.input(Input::Up(2));
    assert!(matches!(rig.done(second), Done::Connected));
}

#[test]
fn holds_of_one_slot_are_renewed_together_and_one_by_one_while_it_moves() {
    let mut rig = two_nodes();
    let holds = [rig.hold("{a}1"), rig.hold("{a}2"), rig.hold("b")];
    rig.pass(WATCHED.lease.duration() / 3);
    let sent = rig.all_sent();
    let owners = |sent: &Sent| {
        sent.renewal()
            .iter()
            .map(|(owner, _)| *owner)
            .collect::<Vec<OwnerId>>()
    };
    let mut together: Vec<Vec<OwnerId>> = sent.iter().map(owners).collect();
    together.sort_unstable();
    assert_eq!(
        together,
        [
            vec![holds[0].owner(), holds[1].owner()],
            vec![holds[2].owner()]
        ]
    );
    let both = sent
        .iter()
        .find(|sent| sent.renewal().len() == 2)
        .expect("a call for two");
    rig.outcome(both, refused(ErrorKind::Server, true));
    let alone: Vec<Vec<OwnerId>> = rig.all_sent().iter().map(owners).collect();
    assert_eq!(alone, [vec![holds[0].owner()], vec![holds[1].owner()]]);
}

/// Regression test: when a slot moved while many of its locks were due, one call for each was sent
/// at once.
#[test]
fn one_by_one_a_server_is_given_no_more_than_it_answers_either() {
    let mut rig = two_nodes();
    let held = tuning::RENEWALS_IN_FLIGHT * 100;
    for number in 0..held {
        rig.hold(&format!("{{a}}{number}"));
    }
    rig.pass(WATCHED.lease.duration() / 3);
    let together = rig.all_sent();
    assert_eq!(together.len(), tuning::RENEWALS_IN_FLIGHT);
    for sent in &together {
        rig.outcome(sent, refused(ErrorKind::Server, true));
    }
    let mut under_way = rig.all_sent();
    // A call costs as much as six locks. As many small calls may be in flight as cost the same as
    // the full ones.
    assert!(
        under_way.len() <= tuning::RENEWALS_IN_FLIGHT * 106 / 7 + 1,
        "{} calls at once",
        under_way.len()
    );
    let mut renewed = 0;
    while let Some(sent) = under_way.pop() {
        assert_eq!(sent.renewal().len(), 1);
        renewed += 1;
        rig.keep(&sent);
        under_way.extend(rig.all_sent());
    }
    assert_eq!(renewed, held);
}
