//! The watchdog.

use std::collections::VecDeque;

use super::*;
use crate::tuning;

#[test]
fn a_watched_hold_is_renewed_every_third_of_its_lease() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    for _ in 0..5 {
        rig.pass(secs(10) - ms(1));
        rig.nothing_sent();
        rig.pass(ms(1));
        let (sent, at) = (rig.sent(), rig.now);
        assert_eq!(
            (sent.renewal(), sent.limit),
            (vec![(grant.owner(), LEASE)], secs(1))
        );
        rig.pass(ms(200));
        rig.keep(&sent);
        assert_eq!(grant.cell.deadline(), at.after(ms(29_698)));
        // The next renewal is due a third of a lease after this one was sent.
        rig.now = at;
    }
    assert_eq!(rig.counters.snapshot().renewed, 5);
}

#[test]
fn a_fixed_lease_is_never_renewed() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, fixed(LEASE));
    rig.pass(ms(29_697));
    rig.nothing_sent();
    assert!(rig.is_held(&grant));
    rig.pass(ms(1));
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn many_holds_go_in_few_calls() {
    let mut rig = Rig::new();
    let grants: Vec<Grant> = (0..250).map(|n| rig.hold(&format!("n{n}"))).collect();
    rig.pass(secs(10));
    let sent = rig.all_sent();
    let sizes: Vec<usize> = sent.iter().map(|sent| sent.renewal().len()).collect();
    assert_eq!(sizes, [100, 100, 50]);
    sent.iter().for_each(|sent| rig.keep(sent));
    assert!(
        grants
            .iter()
            .all(|grant| grant.cell.deadline() == rig.now.after(ms(29_698)))
    );
    // One stolen lock does not affect the others.
    rig.pass(secs(10));
    for sent in rig.all_sent() {
        let mut results = vec![RenewReply::Kept; sent.renewal().len()];
        results[0] = RenewReply::Gone(LostReason::Stolen);
        results[1] = RenewReply::Failed;
        rig.reply(&sent, Reply::Renewed(results));
    }
    assert_eq!(rig.lost.len(), 3);
    let deadline = rig.now.after(ms(29_698));
    assert_eq!(
        grants
            .iter()
            .filter(|grant| grant.cell.deadline() == deadline)
            .count(),
        244
    );
}

#[test]
fn holds_that_are_due_soon_go_along() {
    let mut rig = Rig::new();
    for (name, pause) in [("a", 900), ("b", 200), ("c", 0)] {
        rig.hold(name);
        rig.pass(ms(pause));
    }
    rig.pass(ms(8900));
    // The second hold is due 0.9 s later and is renewed with the first. The third, 1.1 s later, is
    // not.
    let sent = rig.sent();
    assert_eq!(sent.renewal().len(), 2);
    rig.keep(&sent);
    rig.pass(ms(1100));
    assert_eq!(rig.sent().renewal().len(), 1);
}

/// However the holds began, after a while only full calls are sent: one for each hundred holds and
/// third of a lease.
#[test]
fn many_holds_that_began_one_by_one_go_in_full_calls() {
    let mut rig = Rig::new();
    for n in 0..1000 {
        rig.hold(&format!("n{n}"));
        rig.pass(ms(if n % 7 == 0 { 43 } else { 3 }));
    }
    let mut renew_for = |time| {
        let end = rig.now.after(time);
        let mut sizes = Vec::new();
        while let Some(at) = rig.engine.next_wake().filter(|at| *at <= end) {
            rig.pass(rig.now.until(at));
            for sent in rig.all_sent() {
                sizes.push(sent.renewal().len());
                rig.keep(&sent);
            }
        }
        rig.pass(rig.now.until(end));
        sizes
    };
    renew_for(secs(20));
    let sizes = renew_for(secs(100));
    assert!((99..=101).contains(&sizes.len()), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size == 100), "{sizes:?}");
}

#[test]
fn a_hold_goes_along_only_if_it_is_due_soon_by_its_own_lease() {
    let mut rig = Rig::new();
    let short = rig.hold_with("s", OwnerKey::Once, watched(secs(3)));
    rig.pass(ms(500));
    rig.hold("n");
    for _ in 0..3 {
        rig.pass(ms(1000));
        if let Some(sent) = rig.all_sent().first() {
            assert_eq!(sent.renewal(), [(short.owner(), secs(3))]);
            rig.keep(sent);
        }
    }
}

#[test]
fn a_failed_renewal_is_repeated_soon_until_the_deadline() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, watched(secs(3)));
    rig.pass(secs(1));
    let mut copies = 0;
    while rig.lost.is_empty() {
        for sent in rig.all_sent() {
            if matches!(sent.op, Op::Renew { .. }) {
                copies += 1;
                rig.outcome(&sent, CallOutcome::Unanswered);
            }
        }
        rig.pass(ms(10));
    }
    assert!((7..=20).contains(&copies), "{copies}");
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Unreachable)]);
    assert_eq!(
        rig.events
            .iter()
            .filter(|kind| **kind == "renewal_failed")
            .count(),
        1
    );
}

#[test]
fn a_short_lease_survives_a_renewal_without_an_answer() {
    for lease in [150, 300, 600, 1000] {
        let mut rig = Rig::new();
        let grant = rig.hold_with("n", OwnerKey::Once, watched(ms(lease)));
        rig.pass(ms(lease) / 3);
        let lost = rig.sent();
        rig.pass(lost.limit);
        rig.outcome(&lost, CallOutcome::Unanswered);
        rig.pass(ms(lease) / 12);
        let again = rig.sent();
        rig.keep(&again);
        rig.pass(ms(lease) / 3);
        assert!(rig.lost.is_empty() && rig.is_held(&grant), "{lease} ms");
    }
}

#[test]
fn a_renewal_that_was_refused_for_other_reasons_is_repeated() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    for bad in [
        refused(ErrorKind::Server, true),
        refused(ErrorKind::Denied, false),
        CallOutcome::NotSent,
        CallOutcome::Answered(Reply::Renewed(Vec::new())),
        CallOutcome::Answered(Reply::Stale),
    ] {
        let sent = rig.sent();
        rig.outcome(&sent, bad);
        rig.pass(ms(250));
    }
    let sent = rig.sent();
    rig.keep(&sent);
    assert!(rig.lost.is_empty() && rig.is_held(&grant));
}

#[test]
fn a_refused_renewal_is_the_loss_of_the_hold() {
    for reason in [LostReason::Deleted, LostReason::Stolen] {
        let mut rig = Rig::new();
        let grant = rig.hold("n");
        rig.pass(secs(10));
        let sent = rig.sent();
        rig.reply(&sent, Reply::Renewed(vec![RenewReply::Gone(reason)]));
        assert_eq!(rig.lost, [(grant.owner(), reason)]);
        assert_eq!(grant.cell.lost(rig.now), Some(reason));
    }
}

#[test]
fn an_invalidation_makes_every_hold_of_the_name_renewed_at_once() {
    let mut rig = Rig::new();
    let renewed = rig.hold("a");
    let kept = rig.hold_with("b", OwnerKey::Once, fixed(LEASE));
    rig.input(Input::Invalidated(Some(vec![
        "a".into(),
        "b".into(),
        "c".into(),
    ])));
    let sent = rig.sent();
    // The fixed lease is only probed. It must not be extended.
    assert_eq!(
        sent.renewal(),
        [(renewed.owner(), LEASE), (kept.owner(), ms(1))]
    );
    let deadline = kept.cell.deadline();
    rig.keep(&sent);
    assert_eq!(kept.cell.deadline(), deadline);
    assert!(rig.lost.is_empty());
    rig.pass(secs(10));
    assert_eq!(rig.sent().renewal().len(), 1);
}

/// Only the repeated probe can find the loss: client tracking reports a key only once.
#[test]
fn an_invalidated_hold_is_probed_until_answered_even_if_abandoned() {
    let mut rig = Rig::new();
    let grant = rig.hold("a");
    rig.input(Input::Invalidated(Some(vec!["a".into()])));
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.input(grant.abandoned());
    rig.pass(ms(250));
    let again = rig.sent();
    assert_eq!(
        again.renewal(),
        [(grant.owner(), ms(1))],
        "its time must not grow"
    );
    rig.reply(
        &again,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost.len(), 1);
}

#[test]
fn an_invalidation_of_everything_is_for_every_hold() {
    let mut rig = Rig::new();
    (0..150).for_each(|n| drop(rig.hold(&format!("n{n}"))));
    rig.input(Input::Invalidated(None));
    assert_eq!(rig.all_sent().len(), 2);
}

#[test]
fn invalidations_during_a_renewal_bring_one_more() {
    let mut rig = Rig::new();
    (0..50).for_each(|n| drop(rig.hold(&format!("n{n}"))));
    rig.input(Input::Invalidated(None));
    let first = rig.sent();
    rig.input(Input::Invalidated(None));
    rig.input(Input::Invalidated(None));
    rig.nothing_sent();
    rig.keep(&first);
    // The holds were just renewed, so they pause before the next renewal.
    rig.pass(ms(10));
    let second = rig.sent();
    assert_eq!(second.renewal().len(), 50);
    rig.keep(&second);
    rig.nothing_sent();
}

#[test]
fn a_level_gains_nothing_from_a_renewal_that_did_not_ask_for_it() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, fixed(secs(60)));
    let id = rig.acquire_with("n", KEY, None, WATCHED);
    let (entry, entered_at) = (rig.sent(), rig.now);
    rig.pass(ms(900));
    rig.input(Input::Invalidated(None));
    let look = rig.sent();
    rig.grant(&entry);
    let inner = rig.granted(id);
    rig.keep(&look);
    let levels = &rig.engine.holds[&outer.owner()].levels;
    assert_eq!(
        (levels[1].id, levels[1].end),
        (inner.level, entered_at.after(ms(29_698)))
    );
}

#[test]
fn a_renewal_that_is_answered_after_the_deadline_revives_nothing() {
    let mut rig = Rig::new();
    let grant = rig.hold_with("n", OwnerKey::Once, watched(ms(500)));
    rig.pass(ms(167));
    let sent = rig.sent();
    rig.sleep(ms(400));
    assert!(!rig.is_held(&grant));
    rig.keep(&sent);
    assert_eq!(rig.lost, [(grant.owner(), LostReason::Expired)]);
}

#[test]
fn a_renewal_never_speaks_for_a_hold_on_its_way_out() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let renewal = rig.sent();
    let id = rig.release(&grant);
    let release = rig.sent();
    rig.reply(
        &renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    rig.input(Input::Invalidated(None));
    rig.nothing_sent();
    rig.reply(&release, Reply::Released(0));
    rig.released(id);
    assert!(rig.lost.is_empty());
    rig.nothing_left();
}

#[test]
fn nothing_is_renewed_after_a_release() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.free(&grant);
    rig.pass(secs(60));
    rig.nothing_left();
}

#[test]
fn a_server_is_never_given_more_renewals_than_it_answers() {
    let mut rig = Rig::new();
    let held = 30 * tuning::RENEWALS_IN_FLIGHT;
    // Each call has a hundred names. All holds are due at once and need many more calls than may be
    // in flight.
    for number in 0..held * 10 {
        rig.hold_with(&format!("n{number}"), OwnerKey::Once, WATCHED);
    }
    rig.pass(secs(10));
    let first = rig.all_sent();
    assert_eq!(first.len(), tuning::RENEWALS_IN_FLIGHT);
    // Without an answer nothing more is sent, even if more holds come due.
    rig.pass(ms(500));
    assert!(rig.all_sent().is_empty());
    let mut renewed = 0;
    let mut under_way: VecDeque<Sent> = first.into();
    while let Some(sent) = under_way.pop_front() {
        let results = vec![RenewReply::Kept; sent.renewal().len()];
        renewed += results.len();
        rig.reply(&sent, Reply::Renewed(results));
        under_way.extend(rig.all_sent());
        assert!(under_way.len() <= tuning::RENEWALS_IN_FLIGHT);
    }
    assert_eq!(renewed, held * 10, "each once");
}

#[test]
fn renewals_that_were_put_off_are_sent_over_the_next_connection() {
    let mut rig = Rig::new();
    let held = tuning::RENEWALS_IN_FLIGHT * 100 + 50;
    for number in 0..held {
        rig.hold_with(&format!("n{number}"), OwnerKey::Once, WATCHED);
    }
    rig.pass(secs(10));
    let lost = rig.all_sent();
    rig.input(down());
    for sent in &lost {
        rig.outcome(sent, CallOutcome::Unanswered);
    }
    assert!(rig.all_sent().is_empty());
    rig.input(Input::Up(STANDALONE));
    let mut renewed = 0;
    let mut under_way: VecDeque<Sent> = rig.all_sent().into();
    while let Some(sent) = under_way.pop_front() {
        let results = vec![RenewReply::Kept; sent.renewal().len()];
        renewed += results.len();
        rig.reply(&sent, Reply::Renewed(results));
        under_way.extend(rig.all_sent());
    }
    assert_eq!(renewed, held);
}

/// Regression test: deferred renewals were served in their order of arrival, so a lease of 3 s
/// waited behind all leases of 30 s.
#[test]
fn the_deferred_renewal_with_the_least_time_goes_first() {
    let mut rig = Rig::new();
    for number in 0..tuning::RENEWALS_IN_FLIGHT * 100 + 500 {
        rig.hold_with(&format!("n{number}"), OwnerKey::Once, WATCHED);
    }
    let short = rig.hold_with("short", OwnerKey::Once, watched(secs(3)));
    rig.input(Input::Invalidated(None));
    let mut under_way: VecDeque<Sent> = rig.all_sent().into();
    assert!(under_way[0].renewal().contains(&(short.owner(), secs(3))));
    // Later it is put off as well, behind all that have more time.
    let first = under_way.pop_front().expect("sent");
    rig.keep(&first);
    rig.pass(secs(1));
    under_way.extend(rig.all_sent());
    let next = under_way.pop_front().expect("sent");
    rig.keep(&next);
    assert!(rig.sent().renewal().contains(&(short.owner(), secs(3))));
}

#[test]
fn a_deferred_hold_is_lost_at_its_own_deadline() {
    let mut rig = Rig::new();
    for number in 0..tuning::RENEWALS_IN_FLIGHT * 100 {
        rig.hold_with(&format!("n{number}"), OwnerKey::Once, WATCHED);
    }
    let others: Vec<Grant> = (0..250)
        .map(|number| {
            rig.pass(ms(1));
            rig.hold_with(&format!("m{number}"), OwnerKey::Once, WATCHED)
        })
        .collect();
    rig.pass(secs(10));
    assert_eq!(rig.all_sent().len(), tuning::RENEWALS_IN_FLIGHT);
    // The server answers nothing.
    for hold in &others {
        let deadline = hold.cell.deadline();
        rig.pass(rig.now.until(deadline) - ms(1));
        assert!(rig.is_held(hold) && rig.lost.iter().all(|(owner, _)| *owner != hold.owner()));
        rig.pass(ms(1));
        assert!(
            rig.lost.iter().any(|(owner, _)| *owner == hold.owner()),
            "nobody was told at {deadline:?}"
        );
    }
}

/// The hold's own timer is used for its renewal. Deferred renewals share one timer instead.
#[test]
fn another_request_of_a_deferred_hold_is_answered_in_time() {
    let mut rig = Rig::new();
    for number in 0..tuning::RENEWALS_IN_FLIGHT * 100 {
        rig.hold_with(&format!("n{number}"), OwnerKey::Once, WATCHED);
    }
    rig.pass(ms(1));
    rig.hold_with("x", KEY, WATCHED);
    rig.pass(secs(10) - ms(2));
    let entry = rig.acquire_with("x", KEY, Some(ms(300)), WATCHED);
    rig.sent();
    rig.pass(ms(1));
    assert_eq!(rig.all_sent().len(), tuning::RENEWALS_IN_FLIGHT);
    rig.pass(ms(298));
    assert!(rig.pending(entry));
    rig.pass(ms(1));
    assert_eq!(rig.failed(entry), ErrorKind::Unavailable);
}

#[test]
fn a_renewal_that_the_server_takes_for_late_goes_again_at_once() {
    let mut rig = Rig::new();
    let grant = rig.hold("n");
    rig.pass(secs(10));
    let sent = rig.sent();
    rig.reply(&sent, Reply::Stale);
    let (again, at) = (rig.sent(), rig.now);
    assert_eq!(again.renewal(), [(grant.owner(), LEASE)]);
    rig.keep(&again);
    assert_eq!(grant.cell.deadline(), at.after(ms(29_698)));
    assert!(rig.events.iter().all(|kind| *kind != "renewal_failed"));
}

/// Grants the acquire over the inline connection, whose reads client tracking does not cover.
fn grant_unseen(rig: &mut Rig, sent: &Sent) {
    let (_, _, ttl) = sent.acquire();
    rig.input(Input::AnsweredUntracked {
        call: sent.call,
        reply: Reply::Acquired { ttl, token: None },
    });
}

#[test]
fn untracked_holds_are_probed_soon_and_together() {
    let mut rig = Rig::new();
    let ids = ["a", "b", "c"].map(|name| {
        let id = rig.acquire(name);
        let sent = rig.sent();
        grant_unseen(&mut rig, &sent);
        id
    });
    let [a, b, c] = ids.map(|id| rig.granted(id));
    // One of them is released before the probe.
    rig.release(&c);
    let release = rig.sent();
    rig.reply(&release, Reply::Released(0));
    rig.pass(ms(15));
    let look = rig.sent();
    assert_eq!(look.renewal().len(), 2);
    rig.keep(&look);
    rig.pass(LEASE / 4);
    rig.nothing_sent();
    assert!(a.cell.is_held(rig.now) && b.cell.is_held(rig.now));
}

/// Regression test: an abandoned guard was told of a deletion only at its deadline.
#[test]
fn an_abandoned_hold_is_probed_too() {
    let mut rig = Rig::new();
    let id = rig.acquire("a");
    let sent = rig.sent();
    grant_unseen(&mut rig, &sent);
    let grant = rig.granted(id);
    rig.input(grant.abandoned());
    rig.pass(ms(15));
    let look = rig.sent();
    assert_eq!(
        look.renewal(),
        [(grant.owner(), ms(1))],
        "nobody lets it live longer"
    );
    rig.keep(&look);
    rig.pass(LEASE - ms(320));
    rig.nothing_sent();
    assert!(rig.is_held(&grant));
}

#[test]
fn a_change_before_the_look_is_told_by_it() {
    let mut rig = Rig::new();
    let id = rig.acquire("a");
    let sent = rig.sent();
    grant_unseen(&mut rig, &sent);
    let grant = rig.granted(id);
    rig.pass(ms(15));
    let look = rig.sent();
    rig.reply(
        &look,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    assert_eq!(rig.lost, [(grant.cell.owner, LostReason::Deleted)]);
}

#[test]
fn an_untracked_refusal_is_tried_again_soon() {
    let mut rig = Rig::new();
    rig.acquire("a");
    let sent = rig.sent();
    rig.input(Input::AnsweredUntracked {
        call: sent.call,
        reply: Reply::Busy { ttl: Some(LEASE) },
    });
    rig.pass(ms(15));
    let again = rig.sent();
    rig.busy(&again, LEASE);
    rig.pass(ms(100));
    rig.nothing_sent();
}
