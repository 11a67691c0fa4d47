//! The scripts of the simple kinds against a real server: the data they leave, copies, other
//! owners, other data, and what the adaptive lock learns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use redis::Commands;

use super::live_tests::{
    COMMANDS, LEASE, Live, U, V, acquire, acquire_with, force, inspect, is_acquired, of_kind,
    release, renew,
};
use super::*;
use crate::error::{ErrorKind, LostReason};

fn simple(op: &Op) -> Op {
    of_kind(op, Kind::Simple)
}

fn with_token(op: &Op, token: &str) -> Op {
    let mut op = simple(op);
    if let Op::Acquire(Acquire { form, .. }) | Op::Release(Release { form, .. }) = &mut op {
        form.token = Some(token.into());
    }
    op
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

impl Live {
    fn value(&mut self, key: &str) -> Option<String> {
        self.look.get(key).unwrap()
    }

    /// The value of the lock's key, as another program that speaks this protocol would have left it.
    fn held_by_another(&mut self, ms: u64) {
        self.cmd::<String>("SET orders theirs NX PX", &[&ms.to_string()]);
    }

    /// Holds the adaptive lock for `took` when `asked` was asked for; the lease that it got.
    fn works(&mut self, asked: u64, took: u64) -> u64 {
        let taken = self.run(&of_kind(
            &acquire_with(1, secs(asked), Fencing::Off),
            Kind::Adaptive,
        ));
        let Reply::Acquired { ttl, .. } = taken else {
            panic!("{taken:?}")
        };
        self.learns(asked, Duration::from_secs(took));
        u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap()
    }

    /// Releases it.
    fn learns(&mut self, asked: u64, took: Duration) {
        let mut op = of_kind(&release(0), Kind::Adaptive);
        if let Op::Release(Release { lesson, .. }) = &mut op {
            *lesson = Some(LeaseSample {
                asked: secs(asked),
                took,
            });
        }
        assert_eq!(self.run(&op), Reply::Released(0));
        assert_eq!(self.value("orders"), None);
    }
}

#[test]
fn the_data_are_those_that_set_nx_px_leaves() {
    for (kind, owner) in [
        (Kind::Simple, format!("{U}:76")),
        (Kind::RedisPy, format!("{U}:76")),
        (Kind::Article, format!("{}-76", U.replace('-', ""))),
        (Kind::Adaptive, format!("{U}:76")),
    ] {
        let mut live = Live::new();
        assert!(is_acquired(&live.run(&of_kind(&acquire(1), kind))));
        assert_eq!(live.value("orders"), Some(owner.clone()), "{kind:?}");
        assert!((29_000..=30_000).contains(&live.pttl("orders")), "{kind:?}");
        assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 1, "{kind:?}");
        let Some(holder) = live.run(&of_kind(&inspect(), kind)).holder() else {
            panic!("nobody")
        };
        assert_eq!((holder.owner, holder.count), (owner, 1));
        assert_eq!(live.run(&of_kind(&release(0), kind)), Reply::Released(0));
        assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0, "{kind:?}");
    }
}

#[test]
fn a_callers_token_is_the_value() {
    let mut live = Live::new();
    assert!(is_acquired(
        &live.run(&with_token(&acquire(1), "request 7 ü"))
    ));
    assert_eq!(live.value("orders").as_deref(), Some("request 7 ü"));
    assert!(
        is_acquired(&live.run_as(V, &with_token(&acquire(1), "request 7 ü"))),
        "the same owner"
    );
    assert!(matches!(
        live.run(&with_token(&acquire(1), "request 8")),
        Reply::Busy { .. }
    ));
    assert_eq!(
        live.run(&with_token(&release(0), "request 8")),
        Reply::Gone(LostReason::Stolen)
    );
    assert_eq!(
        live.run_as(V, &with_token(&release(0), "request 7 ü")),
        Reply::Released(0)
    );
}

#[test]
fn an_adoption_puts_an_owner_of_its_own_in_the_place_of_a_token() {
    for kind in [Kind::Simple, Kind::RedisPy, Kind::Article, Kind::Adaptive] {
        let mut live = Live::new();
        let adopt = |to| {
            Op::HandOver(HandOver {
                name: "orders".into(),
                owner: 0,
                adopts: Some("job 7".into()),
                to,
                form: Form::of(kind),
                lease: LEASE,
                fencing: Fencing::Off,
                replicas: 0,
            })
        };
        let free = Reply::Gone(LostReason::Deleted);
        assert_eq!(live.run_as(V, &adopt(9)), free, "{kind:?}");
        let mut first = of_kind(&acquire_with(1, secs(1), Fencing::Off), kind);
        if let Op::Acquire(Acquire { form, .. }) = &mut first {
            form.token = Some("job 7".into());
        }
        assert!(is_acquired(&live.run(&first)), "{kind:?}");
        assert!(is_acquired(&live.run_as(V, &adopt(9))), "{kind:?}");
        assert_eq!(live.value("orders"), Some(Form::of(kind).owner(V, 9)));
        assert!((29_000..=30_000).contains(&live.pttl("orders")), "{kind:?}");
        // A copy changes nothing, and the token is worth nothing any more.
        assert!(is_acquired(&live.run_as(V, &adopt(9))), "{kind:?}");
        let gone = Reply::Gone(LostReason::Stolen);
        assert_eq!(live.run(&adopt(10)), gone, "{kind:?}");
        assert_eq!(live.run(&with_token(&release(0), "job 7")), gone);
        assert_eq!(live.value("orders"), Some(Form::of(kind).owner(V, 9)));
    }
}

#[test]
fn a_lock_of_another_program_is_busy_and_never_touched() {
    let mut live = Live::new();
    live.held_by_another(30_000);
    let Reply::Busy { ttl: Some(ttl) } = live.run(&simple(&acquire(1))) else {
        panic!("not busy")
    };
    assert!((secs(29)..=secs(30)).contains(&ttl), "{ttl:?}");
    assert_eq!(
        live.run(&simple(&acquire(2))),
        Reply::Gone(LostReason::Stolen)
    );
    for remaining in [0, 1] {
        assert_eq!(
            live.run(&simple(&release(remaining))),
            Reply::Gone(LostReason::Stolen)
        );
    }
    let stolen = Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)]);
    assert_eq!(live.run(&simple(&renew(&["orders"], LEASE * 2))), stolen);
    assert_eq!(live.value("orders").as_deref(), Some("theirs"));
    assert!(live.pttl("orders") <= 30_000);
    assert_eq!(live.run(&simple(&force())), Reply::Forced(true));
    assert_eq!(live.run(&simple(&inspect())), Reply::Holders(Vec::new()));
}

#[test]
fn copies_of_a_simple_lock_change_nothing() {
    let mut live = Live::new();
    for _ in 0..3 {
        assert!(is_acquired(&live.run(&simple(&acquire(1)))));
    }
    assert!(is_acquired(&live.run(&simple(&acquire(2)))));
    for _ in 0..2 {
        assert_eq!(live.run(&simple(&release(1))), Reply::Kept);
    }
    assert_eq!(live.run(&simple(&release(0))), Reply::Released(0));
    assert_eq!(
        live.run(&simple(&release(0))),
        Reply::Gone(LostReason::Deleted)
    );
    assert_eq!(
        live.run(&simple(&acquire(2))),
        Reply::Gone(LostReason::Deleted)
    );
    let gone = Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]);
    assert_eq!(live.run(&simple(&renew(&["orders"], LEASE))), gone);
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0, "nothing is recreated");
    live.run_as(V, &simple(&acquire(1)));
    assert_eq!(
        live.run(&simple(&release(0))),
        Reply::Gone(LostReason::Stolen),
        "a late copy"
    );
    assert_eq!(live.value("orders"), Some(format!("{V}:76")));
}

#[test]
fn the_remaining_time_shrinks_only_by_a_release() {
    let mut live = Live::new();
    live.run(&simple(&acquire(1)));
    live.run(&simple(&acquire_with(2, secs(1), Fencing::Off)));
    assert!(live.pttl("orders") > 29_000);
    live.run(&simple(&renew(&["orders"], secs(60))));
    assert!((59_000..=60_000).contains(&live.pttl("orders")));
    live.run(&simple(&release(1)));
    assert!((29_000..=30_000).contains(&live.pttl("orders")));
    live.cmd::<i64>("PERSIST orders", &[]);
    live.run(&simple(&renew(&["orders"], LEASE)));
    assert!(
        (29_000..=30_000).contains(&live.pttl("orders")),
        "one without an end is healed"
    );
}

#[test]
fn other_data_are_foreign_and_left_alone() {
    let mut live = Live::new();
    for make in ["HSET orders f v", "RPUSH orders x", "SADD orders x"] {
        live.cmd::<i64>(make, &[]);
        for op in [acquire(1), force(), inspect()] {
            assert!(
                matches!(live.run(&simple(&op)), Reply::Foreign(_)),
                "{make} {op:?}"
            );
        }
        assert_eq!(
            live.run(&simple(&release(0))),
            Reply::Gone(LostReason::Stolen),
            "{make}"
        );
        live.cmd::<i64>("DEL orders", &[]);
    }
    // And to a reentrant lock, a simple one.
    live.held_by_another(30_000);
    assert_eq!(
        live.run(&acquire(1)),
        Reply::Foreign("a key of type string".into())
    );
    assert_eq!(live.value("orders").as_deref(), Some("theirs"));
}

#[test]
fn tokens_for_fencing_grow_over_both_kinds() {
    let mut live = Live::new();
    let mut last = 0;
    for kind in [Kind::Simple, Kind::Reentrant, Kind::Adaptive, Kind::Simple] {
        let first = of_kind(&acquire_with(1, LEASE, Fencing::Expiring), kind);
        let Reply::Acquired {
            token: Some(token), ..
        } = live.run(&first)
        else {
            panic!("no token")
        };
        assert!(token > last, "{kind:?}");
        let Reply::Acquired { token: again, .. } = live.run(&first) else {
            panic!("no copy")
        };
        assert_eq!(again, Some(token), "a copy gets the same");
        assert_eq!(live.run(&of_kind(&release(0), kind)), Reply::Released(0));
        last = token;
    }
}

#[test]
fn the_documented_commands_are_enough_for_simple_kinds() {
    let mut live = Live::as_user(&format!(
        "~orders ~orders_renew ~redisson_lock_token:* resetchannels &redisson_lock__channel:* {COMMANDS}"
    ));
    for kind in [Kind::Simple, Kind::Adaptive] {
        assert!(is_acquired(&live.run(&of_kind(
            &acquire_with(1, LEASE, Fencing::Expiring),
            kind
        ))));
        assert!(matches!(
            live.run_as(V, &of_kind(&acquire(1), kind)),
            Reply::Busy { .. }
        ));
        let kept = Reply::Renewed(vec![RenewReply::Kept]);
        assert_eq!(
            live.run(&of_kind(&renew(&["orders"], LEASE * 2), kind)),
            kept
        );
        assert!(live.run(&of_kind(&inspect(), kind)).holder().is_some());
        assert_eq!(live.run(&of_kind(&release(1), kind)), Reply::Kept);
        assert_eq!(live.run(&of_kind(&force(), kind)), Reply::Forced(true));
    }
}

/// The numbers of the published class: its example, key by key.
#[test]
fn an_adaptive_lock_learns_how_long_the_work_takes() {
    let mut live = Live::new();
    assert_eq!(live.works(30, 40), 30);
    assert_eq!(live.value("orders_renew").as_deref(), Some("40"));
    let day = 24 * 3600 * 1000;
    assert!((day - 10_000..=day).contains(&live.pttl("orders_renew")));
    assert_eq!(live.works(30, 20), 50);
    assert_eq!(live.value("orders_renew").as_deref(), Some("36"));
    assert_eq!(live.works(30, 1), 46);
    assert_eq!(live.value("orders_renew").as_deref(), Some("29"));
    assert_eq!(live.works(30, 1), 39);
    assert_eq!(live.value("orders_renew"), None, "23.4 is well within 30");
    assert_eq!(live.works(30, 25), 30);
    assert_eq!(live.value("orders_renew"), None, "25 as well");
    assert_eq!(live.works(30, 26), 30);
    assert_eq!(live.value("orders_renew").as_deref(), Some("26"));
    assert_eq!(live.works(30, 21), 36);
    assert_eq!(
        live.value("orders_renew").as_deref(),
        Some("25"),
        "an average of asked - 5 is kept"
    );
    assert_eq!(live.works(30, 28), 35);
    assert_eq!(live.value("orders_renew").as_deref(), Some("25.6"));
    assert_eq!(live.works(30, 0), 35, "35.6 in whole seconds");
    assert_eq!(
        live.value("orders_renew").as_deref(),
        Some("25.6"),
        "less than a second teaches nothing"
    );
}

#[test]
fn an_adaptive_lock_learns_once_and_in_whole_seconds() {
    let mut live = Live::new();
    live.run(&of_kind(&acquire(1), Kind::Adaptive));
    live.learns(3, Duration::from_millis(4999));
    assert_eq!(live.value("orders_renew").as_deref(), Some("4"));
    let mut late = of_kind(&release(0), Kind::Adaptive);
    if let Op::Release(Release { lesson, .. }) = &mut late {
        *lesson = Some(LeaseSample {
            asked: secs(3),
            took: secs(400),
        });
    }
    assert_eq!(live.run(&late), Reply::Gone(LostReason::Deleted));
    assert_eq!(live.value("orders_renew").as_deref(), Some("4"));
    // A clean-up release has nothing to tell.
    live.run(&of_kind(&acquire(1), Kind::Adaptive));
    assert_eq!(
        live.run(&of_kind(&release(0), Kind::Adaptive)),
        Reply::Released(0)
    );
    assert_eq!(live.value("orders_renew").as_deref(), Some("4"));
}

#[test]
fn a_value_that_is_no_lease_is_not_learnt() {
    let mut live = Live::new();
    for odd in ["soon", "", "-40", "nan", "inf", "1e300", "86401"] {
        live.cmd::<String>("SET orders_renew", &[odd]);
        assert_eq!(live.works(30, 0), 30, "{odd:?}");
    }
    live.cmd::<i64>("DEL orders_renew", &[]);
    live.cmd::<i64>("RPUSH orders_renew x", &[]);
    assert_eq!(
        live.refused(&of_kind(&acquire(1), Kind::Adaptive)),
        (ErrorKind::ForeignKind, false)
    );
    assert_eq!(live.value("orders"), None);
    // Such data must not keep the lock from being freed.
    live.run(&simple(&acquire(1)));
    live.learns(1, secs(9));
}
