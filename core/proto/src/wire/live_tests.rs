//! Every script against a real server: each branch, copies, refusals, and the data left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::mpsc::Receiver;
use std::time::Duration;

use redis::{Commands, FromRedisValue, PushInfo, PushKind, RedisError, Value};

use super::names::{channel, token_key};
use super::*;
use crate::error::{Error, ErrorKind, LostReason};
use crate::real::{cmd, eval};
use crate::support::Server;
use crate::value::Value as Reading;

/// The owner U:76 of the recorded vectors, and another client V.
pub(super) const U: &str = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";
pub(super) const V: &str = "11111111-2222-4333-8444-555555555555";
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// A server with one connection for the scripts and one for looking.
pub(super) struct Live {
    _server: Server,
    scripts: redis::Connection,
    pub(super) look: redis::Connection,
    /// By what a release is published.
    pub(super) publish: Publish,
}

impl Live {
    pub(super) fn new() -> Live {
        let server = Server::start();
        Live {
            scripts: server.connect(),
            look: server.connect(),
            publish: Publish::Classic,
            _server: server,
        }
    }

    /// One more connection to look.
    pub(super) fn connect(&self) -> redis::Connection {
        self._server.connect()
    }

    /// A connection as a user with these rules.
    pub(super) fn as_user(rules: &str) -> Live {
        let mut live = Live::new();
        let rules: Vec<&str> = rules.split_whitespace().collect();
        live.cmd::<()>("ACL SETUSER app on >secret", &rules);
        let url = live
            ._server
            .url()
            .replace("redis://", "redis://app:secret@");
        live.scripts = live._server.connect_to(&url);
        live
    }

    /// Runs a command on the looking connection.
    pub(super) fn cmd<T: FromRedisValue>(&mut self, words: &str, more: &[&str]) -> T {
        let mut words = words.split_whitespace();
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.arg(more).query(&mut self.look).unwrap()
    }

    /// Runs `op` for the client `uuid`, by hash where the server knows it.
    pub(super) fn try_as(
        &mut self,
        uuid: &str,
        op: &Op,
        not_after: u64,
    ) -> Result<Reply, (Error, bool)> {
        let call = Call::new(op, uuid, not_after, self.publish);
        let value = match cmd(&call, false).query::<Value>(&mut self.scripts) {
            Err(error) if error.code() == Some("NOSCRIPT") => eval(&call, &mut self.scripts),
            answer => answer.map(Into::into),
        }
        .map_err(|error: RedisError| {
            refusal(error.code().unwrap(), error.detail().unwrap_or_default())
        })?;
        // No connection is listed behind the script.
        let value = match op.follow_up(Duration::ZERO) {
            Some(FollowUp::Clients) => Reading::Array(vec![value, Reading::BulkString(Vec::new())]),
            _ => value,
        };
        let before: u64 = 1_700_000_000_000;
        let (server_ms, reply) = decode(op, value).unwrap();
        assert!(
            server_ms.is_none_or(|ms| ms > before),
            "{server_ms:?} is a clock in ms"
        );
        Ok(reply)
    }

    pub(super) fn run(&mut self, op: &Op) -> Reply {
        self.try_as(U, op, u64::MAX).unwrap()
    }

    pub(super) fn run_as(&mut self, uuid: &str, op: &Op) -> Reply {
        self.try_as(uuid, op, u64::MAX).unwrap()
    }

    pub(super) fn refused(&mut self, op: &Op) -> (ErrorKind, bool) {
        let (error, passing) = self.try_as(U, op, u64::MAX).unwrap_err();
        (error.kind(), passing)
    }

    fn hash(&mut self, key: &str) -> Vec<(String, String)> {
        let mut fields: Vec<(String, String)> = self.look.hgetall(key).unwrap();
        fields.sort();
        fields
    }

    /// The fields as `owner=count` of the recorded owners.
    pub(super) fn holds(&mut self, key: &str) -> String {
        let short = |field: String| field.replace(U, "U").replace(V, "V");
        let fields = self
            .hash(key)
            .into_iter()
            .map(|(field, count)| format!("{}={count}", short(field)));
        fields.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn pttl(&mut self, key: &str) -> i64 {
        self.look.pttl(key).unwrap()
    }

    pub(super) fn server_ms(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = self.cmd("TIME", &[]);
        seconds * 1000 + micros / 1000
    }
}

pub(super) fn acquire_with(count: u32, lease: Duration, fencing: Fencing) -> Op {
    Op::Acquire(Acquire {
        count,
        fencing,
        ..Acquire::of("orders".into(), 76, Form::default(), lease)
    })
}

pub(super) fn acquire(count: u32) -> Op {
    acquire_with(count, LEASE, Fencing::Off)
}

pub(super) fn release(remaining: u32) -> Op {
    Op::Release(Release {
        remaining,
        ttl: LEASE,
        ..Release::of("orders".into(), 76, Form::default())
    })
}

pub(super) fn renew(names: &[&str], ttl: Duration) -> Op {
    Op::Renew {
        holds: names
            .iter()
            .map(|name| Renewal {
                name: (*name).into(),
                owner: 76,
                form: Form::default(),
                ttl,
            })
            .collect(),
    }
}

/// The call for a lock of another kind.
pub(super) fn of_kind(op: &Op, kind: Kind) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Acquire(Acquire { form, .. })
        | Op::HandOver(HandOver { form, .. })
        | Op::Release(Release { form, .. }) => form.kind = kind,
        Op::Renew { holds } => holds.iter_mut().for_each(|hold| hold.form.kind = kind),
        Op::Force { kind: old, .. } | Op::Inspect { kind: old, .. } => *old = kind,
        Op::Count { .. } | Op::Change { .. } | Op::Read { .. } => {}
    }
    op
}

pub(super) fn force() -> Op {
    Op::Force {
        name: "orders".into(),
        kind: Kind::Reentrant,
    }
}

pub(super) fn inspect() -> Op {
    Op::Inspect {
        name: "orders".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    }
}

pub(super) fn is_near(ttl: i64, expected: Duration) -> bool {
    let expected = expected.as_millis() as i64;
    (expected - 20_000.min(expected / 2)..=expected).contains(&ttl)
}

fn token_of(reply: Reply) -> u64 {
    match reply {
        Reply::Acquired {
            token: Some(token), ..
        } => token,
        other => panic!("no token: {other:?}"),
    }
}

pub(super) fn is_acquired(reply: &Reply) -> bool {
    matches!(reply, Reply::Acquired { .. })
}

/// A lock of Redisson: what its acquire script leaves.
fn held_by_redisson(live: &mut Live, ttl: u64) {
    let owner = Form::default().owner(V, 12);
    let _: i64 = live.look.hincr("orders", owner, 1).unwrap();
    live.cmd::<()>("PEXPIRE orders", &[&ttl.to_string()]);
}

// ---- the recorded vectors of Redisson: the same data after the same steps ----

#[test]
fn the_data_are_those_that_redisson_leaves() {
    let mut live = Live::new();
    assert!(is_acquired(&live.run(&acquire(1))));
    assert_eq!(live.hash("orders"), [(format!("{U}:76"), "1".to_owned())]);
    assert!(is_near(live.pttl("orders"), LEASE));
    assert!(is_acquired(&live.run(&acquire(2))));
    assert_eq!(live.holds("orders"), "U:76=2");

    let other = Op::Acquire(Acquire::of("orders".into(), 12, Form::default(), LEASE));
    let Reply::Busy { ttl: Some(ttl) } = live.run_as(V, &other) else {
        panic!("not busy")
    };
    assert!(is_near(ttl.as_millis() as i64, LEASE));
    assert_eq!(
        live.run(&renew(&["orders"], LEASE)),
        Reply::Renewed(vec![RenewReply::Kept])
    );

    let mut subscriber = live._server.connect();
    let mut messages = subscriber.as_pubsub();
    messages
        .subscribe("redisson_lock__channel:{orders}")
        .unwrap();
    assert_eq!(live.run(&release(1)), Reply::Kept);
    assert_eq!(live.holds("orders"), "U:76=1");
    assert_eq!(live.run(&release(0)), Reply::Released(1));
    assert!(!live.look.exists::<_, bool>("orders").unwrap());
    assert_eq!(
        messages
            .get_message()
            .unwrap()
            .get_payload::<String>()
            .unwrap(),
        "0"
    );
    assert_eq!(live.run(&release(0)), Reply::Gone(LostReason::Deleted));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);
}

#[test]
fn a_count_stays_what_hincrby_would_have_written() {
    let mut live = Live::new();
    live.run(&acquire(1));
    live.run(&acquire(2));
    assert_eq!(
        live.look
            .hincr::<_, _, _, i64>("orders", Form::default().owner(U, 76), 1)
            .unwrap(),
        3
    );
}

#[test]
fn a_lock_of_redisson_is_busy_and_can_be_inspected_and_forced() {
    let mut live = Live::new();
    held_by_redisson(&mut live, 30_000);
    assert!(matches!(
        live.run(&acquire(1)),
        Reply::Busy { ttl: Some(_) }
    ));
    let Some(holder) = live.run(&inspect()).holder() else {
        panic!("nobody")
    };
    assert_eq!(
        (holder.owner, holder.count),
        (Form::default().owner(V, 12), 1)
    );
    assert!(holder.remaining.is_some_and(|ttl| ttl <= LEASE));
    assert_eq!(live.run(&release(0)), Reply::Gone(LostReason::Stolen));
    assert_eq!(live.holds("orders"), "V:12=1");
    assert_eq!(live.run(&force()), Reply::Forced(true));
    assert_eq!(live.run(&force()), Reply::Forced(false));
    assert_eq!(live.run(&inspect()), Reply::Holders(Vec::new()));
}

// ---- copies ----

#[test]
fn copies_change_nothing() {
    let mut live = Live::new();
    for count in [1, 2] {
        for _ in 0..3 {
            assert!(is_acquired(&live.run(&acquire(count))));
            assert_eq!(live.holds("orders"), format!("U:76={count}"));
        }
    }
    for _ in 0..3 {
        assert_eq!(live.run(&release(1)), Reply::Kept);
        assert_eq!(live.holds("orders"), "U:76=1");
    }
    assert_eq!(live.run(&release(0)), Reply::Released(0));
    held_by_redisson(&mut live, 30_000);
    for _ in 0..3 {
        assert_eq!(live.run(&release(0)), Reply::Gone(LostReason::Stolen));
        assert_eq!(live.run(&release(1)), Reply::Gone(LostReason::Stolen));
        assert_eq!(live.holds("orders"), "V:12=1");
    }
}

#[test]
fn a_command_after_its_not_after_does_nothing() {
    let mut live = Live::new();
    let now = live.server_ms();
    let late = |live: &mut Live, op: &Op| live.try_as(U, op, now - 1).unwrap();
    assert_eq!(late(&mut live, &acquire(1)), Reply::Stale);
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);
    assert!(is_acquired(
        &live.try_as(U, &acquire(1), now + 60_000).unwrap()
    ));
    live.run(&acquire(2));
    assert_eq!(late(&mut live, &acquire(3)), Reply::Stale);
    assert_eq!(late(&mut live, &release(1)), Reply::Stale);
    assert_eq!(late(&mut live, &force()), Reply::Stale);
    assert_eq!(
        late(&mut live, &renew(&["orders"], LEASE * 2)),
        Reply::Stale
    );
    assert_eq!(live.holds("orders"), "U:76=2");
    assert!(is_near(live.pttl("orders"), LEASE));
    // A copy of these that comes late is harmless and useful.
    assert!(late(&mut live, &inspect()).holder().is_some());
    assert_eq!(late(&mut live, &release(0)), Reply::Released(0));
}

// ---- time that remains ----

#[test]
fn reentry_and_renewal_never_shorten_what_remains() {
    let mut live = Live::new();
    live.run(&acquire(1));
    live.run(&acquire_with(2, Duration::from_secs(1), Fencing::Off));
    assert!(is_near(live.pttl("orders"), LEASE));
    live.run(&renew(&["orders"], Duration::from_secs(1)));
    assert!(is_near(live.pttl("orders"), LEASE));
    live.run(&renew(&["orders"], LEASE * 2));
    assert!(is_near(live.pttl("orders"), LEASE * 2));
    let Reply::Acquired { ttl, .. } = live.run(&acquire_with(3, LEASE * 3, Fencing::Off)) else {
        panic!()
    };
    assert!(is_near(ttl.as_millis() as i64, LEASE * 3));
}

#[test]
fn a_partial_release_sets_the_time_of_the_remaining_levels() {
    let mut live = Live::new();
    live.run(&acquire_with(1, LEASE * 10, Fencing::Off));
    live.run(&acquire(2));
    assert!(is_near(live.pttl("orders"), LEASE * 10));
    assert_eq!(live.run(&release(1)), Reply::Kept);
    assert!(is_near(live.pttl("orders"), LEASE));
}

#[test]
fn a_key_without_expiry_is_told_and_healed() {
    let mut live = Live::new();
    held_by_redisson(&mut live, 30_000);
    live.cmd::<()>("PERSIST orders", &[]);
    assert_eq!(live.run(&acquire(1)), Reply::Busy { ttl: None });
    let Some(holder) = live.run(&inspect()).holder() else {
        panic!("nobody")
    };
    assert_eq!(holder.remaining, None);
    live.cmd::<()>("DEL orders", &[]);
    for heal in [
        acquire(1),
        acquire(2),
        renew(&["orders"], LEASE),
        release(1),
    ] {
        live.run(&acquire(1));
        live.cmd::<()>("PERSIST orders", &[]);
        live.run(&heal);
        assert!(is_near(live.pttl("orders"), LEASE), "{heal:?}");
    }
}

// ---- gone ----

#[test]
fn a_hold_that_is_gone_is_not_made_again() {
    let mut live = Live::new();
    let deleted = Reply::Gone(LostReason::Deleted);
    assert_eq!(live.run(&acquire(2)), deleted);
    assert_eq!(live.run(&release(1)), deleted);
    assert_eq!(live.run(&release(0)), deleted);
    assert_eq!(
        live.run(&renew(&["orders"], LEASE)),
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)])
    );
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);

    held_by_redisson(&mut live, 30_000);
    let stolen = Reply::Gone(LostReason::Stolen);
    assert_eq!(live.run(&acquire(2)), stolen);
    assert_eq!(live.run(&release(1)), stolen);
    assert_eq!(
        live.run(&renew(&["orders"], LEASE)),
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)])
    );
    assert_eq!(live.holds("orders"), "V:12=1");
}

#[test]
fn one_bad_key_does_not_hinder_the_renewal_of_the_others() {
    let mut live = Live::new();
    for name in ["a", "c", "d"] {
        let op = Op::Acquire(Acquire::of(
            name.into(),
            76,
            Form::default(),
            Duration::from_secs(5),
        ));
        live.run(&op);
    }
    live.cmd::<()>("SET b string", &[]);
    live.cmd::<()>("HSET e x:1 1", &[]);
    let gone = RenewReply::Gone;
    let expected = vec![
        RenewReply::Kept,
        gone(LostReason::Stolen),
        RenewReply::Kept,
        gone(LostReason::Deleted),
        gone(LostReason::Stolen),
        RenewReply::Kept,
    ];
    assert_eq!(
        live.run(&renew(&["a", "b", "c", "nothing", "e", "d"], LEASE)),
        Reply::Renewed(expected)
    );
    for name in ["a", "c", "d"] {
        assert!(is_near(live.pttl(name), LEASE), "{name}");
    }
}

#[test]
fn a_renewal_is_for_owners_of_several_connections() {
    let mut live = Live::new();
    let owners = [
        first_owner(0xaa) + 1,
        first_owner(0xaa) + 2,
        first_owner(0xbb) + 1,
    ];
    for (name, owner) in ["a", "b", "c"].into_iter().zip(owners) {
        let Op::Acquire(Acquire {
            form,
            count,
            lease,
            fencing,
            replicas,
            ..
        }) = acquire(1)
        else {
            panic!()
        };
        live.run(&Op::Acquire(Acquire {
            count,
            fencing,
            replicas,
            ..Acquire::of(name.into(), owner, form, lease)
        }));
        live.cmd::<()>("PEXPIRE", &[name, "5000"]);
    }
    let renewal = |picked: &[usize]| Op::Renew {
        holds: picked
            .iter()
            .map(|at| Renewal {
                name: ["a", "b", "c"][*at].into(),
                owner: owners[*at],
                form: Form::default(),
                ttl: LEASE,
            })
            .collect(),
    };
    for picked in [&[0, 1][..], &[0, 1, 2], &[2]] {
        assert_eq!(
            live.run(&renewal(picked)),
            Reply::Renewed(vec![RenewReply::Kept; picked.len()])
        );
    }
    for name in ["a", "b", "c"] {
        assert!(is_near(live.pttl(name), LEASE), "{name}");
    }
    let mut wrong = renewal(&[0, 2]);
    if let Op::Renew { holds } = &mut wrong {
        holds[1].owner = owners[0];
    }
    let stolen = RenewReply::Gone(LostReason::Stolen);
    assert_eq!(
        live.run(&wrong),
        Reply::Renewed(vec![RenewReply::Kept, stolen])
    );
}

// ---- other things at the name ----

#[test]
fn a_renewal_shortens_nothing_and_leaves_no_lock_without_an_end() {
    let mut live = Live::new();
    for kind in [Kind::Reentrant, Kind::Simple, Kind::Adaptive] {
        live.run(&of_kind(&acquire(1), kind));
        live.cmd::<()>("PEXPIRE orders", &["500000"]);
        let renewal = of_kind(&renew(&["orders"], LEASE), kind);
        assert_eq!(live.run(&renewal), Reply::Renewed(vec![RenewReply::Kept]));
        assert!(
            is_near(live.pttl("orders"), Duration::from_secs(500)),
            "{kind:?}"
        );
        live.cmd::<()>("PERSIST orders", &[]);
        assert_eq!(live.run(&renewal), Reply::Renewed(vec![RenewReply::Kept]));
        assert!(is_near(live.pttl("orders"), LEASE), "{kind:?}");
        live.cmd::<()>("DEL orders", &[]);
    }
}

#[test]
fn each_lock_of_a_renewal_gets_its_own_time() {
    let mut live = Live::new();
    let mut holds = Vec::new();
    for (name, seconds) in [("a", 100), ("b", 200)] {
        live.cmd::<()>(&format!("HSET {name}"), &[&format!("{U}:76"), "1"]);
        live.cmd::<()>(&format!("PEXPIRE {name}"), &["5000"]);
        let ttl = Duration::from_secs(seconds);
        holds.push(Renewal {
            name: name.into(),
            owner: 76,
            form: Form::default(),
            ttl,
        });
    }
    assert_eq!(
        live.run(&Op::Renew { holds }),
        Reply::Renewed(vec![RenewReply::Kept; 2])
    );
    assert!(is_near(live.pttl("a"), Duration::from_secs(100)));
    assert!(is_near(live.pttl("b"), Duration::from_secs(200)));
}

#[test]
fn other_kinds_are_told_and_left_alone() {
    let mut live = Live::new();
    let foreign = |what: &str| Reply::Foreign(what.into());
    for (make, what) in [
        ("SET orders x", "a key of type string"),
        ("RPUSH orders x", "a key of type list"),
        ("SADD orders x", "a key of type set"),
        ("ZADD orders 1 x", "a key of type zset"),
        ("XADD orders * f v", "a key of type stream"),
        ("HSET orders mode read x:1 1", "a read-write lock"),
        (
            "HSET orders name Ann city Ulm",
            "a hash, perhaps a lock of another kind,",
        ),
    ] {
        live.cmd::<()>("DEL orders", &[]);
        live.cmd::<()>(make, &[]);
        let before: Vec<u8> = live.cmd("DUMP orders", &[]);
        assert_eq!(live.run(&acquire(1)), foreign(what));
        assert_eq!(live.run(&inspect()), foreign(what));
        assert_eq!(live.run(&force()), foreign(what));
        assert_eq!(live.run(&release(0)), Reply::Gone(LostReason::Stolen));
        assert_eq!(live.run(&release(1)), Reply::Gone(LostReason::Stolen));
        assert_eq!(
            live.run(&renew(&["orders"], LEASE)),
            Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)])
        );
        assert_eq!(live.cmd::<Vec<u8>>("DUMP orders", &[]), before, "{what}");
    }
}

#[test]
fn a_field_that_is_no_number() {
    let mut live = Live::new();
    let mine = Form::default().owner(U, 76);
    let _: i64 = live.look.hset("orders", &mine, "x").unwrap();
    assert!(is_acquired(&live.run(&acquire(1))));
    assert_eq!(live.holds("orders"), "U:76=1");
    live.cmd::<()>("DEL orders", &[]);
    live.cmd::<()>("HSET orders x:1 many", &[]);
    assert_eq!(live.run(&acquire(1)), Reply::Busy { ttl: None });
    assert_eq!(
        live.run(&force()),
        Reply::Foreign("a hash, perhaps a lock of another kind,".into())
    );
}

/// Redisson's read and write locks take a name that is held as a reentrant lock.
#[test]
fn a_read_write_lock_that_breaks_in_is_noticed_and_keeps_its_fields() {
    let mut live = Live::new();
    live.run(&acquire(1));
    live.cmd::<()>("HSET orders mode read y:2 1", &[]);
    assert!(matches!(live.run(&acquire(2)), Reply::Foreign(_)));
    assert_eq!(live.run(&release(1)), Reply::Gone(LostReason::Stolen));
    assert_eq!(
        live.run(&renew(&["orders"], LEASE)),
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)])
    );
    assert_eq!(live.run(&release(0)), Reply::Released(0));
    assert_eq!(live.holds("orders"), "mode=read y:2=1");
}

#[test]
fn a_count_beyond_32_bits_is_shown_as_the_largest() {
    let mut live = Live::new();
    live.cmd::<()>("HSET orders x:1 99999999999", &[]);
    let Some(holder) = live.run(&inspect()).holder() else {
        panic!("nobody")
    };
    assert_eq!(holder.count, u32::MAX);
}

#[test]
fn odd_names_work_as_well() {
    let mut live = Live::new();
    for name in ["a{b", "{}x", "a}b{c}", "naïve ☂ \r\n\0 'x'"] {
        let mut subscriber = live._server.connect();
        let mut messages = subscriber.as_pubsub();
        messages.subscribe(channel(Topic::Lock, name)).unwrap();
        let name: Name = name.into();
        let take = Op::Acquire(Acquire {
            fencing: Fencing::Expiring,
            ..Acquire::of(name.clone(), 76, Form::default(), LEASE)
        });
        assert!(is_acquired(&live.run(&take)));
        let free = Op::Release(Release {
            ttl: LEASE,
            ..Release::of(name.clone(), 76, Form::default())
        });
        assert_eq!(live.run(&free), Reply::Released(1));
        assert_eq!(
            messages
                .get_message()
                .unwrap()
                .get_payload::<String>()
                .unwrap(),
            "0"
        );
    }
}

// ---- fencing ----

#[test]
fn tokens_grow_with_every_first_grant_and_follow_the_clock() {
    let mut live = Live::new();
    let take = acquire_with(1, LEASE, Fencing::Expiring);
    let mut last = live.server_ms() * 1000 - 1;
    for _ in 0..5 {
        let token = token_of(live.run(&take));
        assert!(token > last, "{token} after {last}");
        last = token;
        for _ in 0..3 {
            assert_eq!(
                token_of(live.run(&take)),
                token,
                "a copy gets the same token"
            );
        }
        // Re-entry draws none.
        let again = acquire_with(2, LEASE, Fencing::Expiring);
        assert!(matches!(
            live.run(&again),
            Reply::Acquired { token: None, .. }
        ));
        live.run(&release(0));
    }
    let counter = token_key("orders");
    assert_eq!(
        live.look.get::<_, String>(&counter).unwrap(),
        last.to_string()
    );
    assert!(is_near(live.pttl(&counter), Duration::from_secs(25 * 3600)));
    // A busy try draws nothing.
    live.run_as(V, &take);
    let before: u64 = live.look.get(&counter).unwrap();
    assert!(matches!(live.run(&take), Reply::Busy { .. }));
    assert_eq!(live.look.get::<_, u64>(&counter).unwrap(), before);
}

#[test]
fn a_token_is_never_below_one_that_redisson_or_a_faster_clock_drew() {
    let mut live = Live::new();
    let counter = token_key("orders");
    let take = acquire_with(1, LEASE, Fencing::Persistent);
    let ahead = (live.server_ms() + 3_600_000) * 1000;
    live.cmd::<()>("SET", &[&counter, &ahead.to_string()]);
    assert_eq!(token_of(live.run(&take)), ahead + 1);
    assert_eq!(
        live.pttl(&counter),
        -1,
        "a persistent counter does not expire"
    );
    live.run(&release(0));
    assert_eq!(live.look.incr::<_, _, u64>(&counter, 1).unwrap(), ahead + 2);
    assert_eq!(token_of(live.run(&take)), ahead + 3);
    live.run(&release(0));
    live.cmd::<()>("SET", &[&counter, "5"]);
    assert!(token_of(live.run(&take)) > 5);
}

/// Redisson increments the counter and leaves its expiry as it is: at its end Redisson would begin
/// at 1.
#[test]
fn a_counter_without_an_expiry_never_gets_one() {
    let mut live = Live::new();
    let counter = token_key("orders");
    let mut last = live.look.incr::<_, _, u64>(&counter, 1).unwrap();
    for fencing in [Fencing::Expiring, Fencing::Persistent, Fencing::Expiring] {
        for kind in [Kind::Reentrant, Kind::Simple] {
            let form = Form::of(kind);
            let (name, lease) = (Name::from("orders"), LEASE);
            let Op::Acquire(Acquire {
                owner,
                count,
                replicas,
                ..
            }) = acquire_with(1, lease, fencing)
            else {
                panic!()
            };
            let take = Op::Acquire(Acquire {
                count,
                fencing,
                replicas,
                ..Acquire::of(name.clone(), owner, form.clone(), lease)
            });
            let hand_over = Op::HandOver(HandOver {
                name: name.clone(),
                owner,
                adopts: None,
                to: 77,
                form: form.clone(),
                lease,
                fencing,
                replicas: 0,
            });
            for op in [take, hand_over] {
                let token = token_of(live.run(&op));
                assert!(token > last, "{token} after {last}");
                assert_eq!(live.pttl(&counter), -1, "{op:?}");
                last = live.look.incr::<_, _, u64>(&counter, 1).unwrap();
                assert_eq!(last, token + 1, "the next one of Redisson");
            }
            live.cmd::<()>("DEL", &["orders"]);
        }
    }
}

#[test]
fn a_persistent_counter_loses_its_expiry_and_a_new_one_has_none() {
    let mut live = Live::new();
    let counter = token_key("orders");
    let take = acquire_with(1, LEASE, Fencing::Persistent);
    let first = token_of(live.run(&take));
    assert_eq!(live.pttl(&counter), -1, "a new one");
    live.run(&release(0));
    live.cmd::<()>("PEXPIRE", &[&counter, "90000000"]);
    assert!(token_of(live.run(&take)) > first);
    assert_eq!(live.pttl(&counter), -1, "one with an expiry");
}

#[test]
fn a_copy_whose_counter_is_gone_draws_a_new_token() {
    let mut live = Live::new();
    let take = acquire_with(1, LEASE, Fencing::Expiring);
    let first = token_of(live.run(&take));
    live.cmd::<()>("DEL", &[&token_key("orders")]);
    assert!(token_of(live.run(&take)) > first);
}

#[test]
fn a_counter_that_cannot_count_is_refused_before_anything_is_taken() {
    let mut live = Live::new();
    let counter = token_key("orders");
    let take = acquire_with(1, LEASE, Fencing::Expiring);
    for bad in ["x", "", "1.5", "nan", "inf", "9007199254740991"] {
        live.cmd::<()>("SET", &[&counter, bad]);
        assert!(matches!(live.run(&take), Reply::Foreign(_)), "{bad}");
        assert_eq!(live.holds("orders"), "");
    }
    live.cmd::<()>("DEL", &[&counter]);
    live.cmd::<()>("RPUSH", &[&counter, "x"]);
    assert_eq!(live.refused(&take), (ErrorKind::ForeignKind, false));
    assert_eq!(live.holds("orders"), "");
}

// ---- refusals of the server ----

pub(super) const COMMANDS: &str = "+eval +evalsha +time +type +hmget +hlen +hgetall +pttl +hset +hdel +pexpire +del +get +set +publish";

#[test]
fn the_documented_commands_are_enough() {
    let mut live = Live::as_user(&format!(
        "~orders ~redisson_lock_token:* resetchannels &redisson_lock__channel:* {COMMANDS}"
    ));
    assert!(is_acquired(&live.run(&acquire_with(
        1,
        LEASE,
        Fencing::Expiring
    ))));
    assert!(is_acquired(&live.run(&acquire(2))));
    assert!(matches!(live.run_as(V, &acquire(1)), Reply::Busy { .. }));
    assert_eq!(
        live.run(&renew(&["orders"], LEASE * 2)),
        Reply::Renewed(vec![RenewReply::Kept])
    );
    assert!(live.run(&inspect()).holder().is_some());
    assert_eq!(live.run(&release(1)), Reply::Kept);
    let mut subscriber = live._server.connect();
    let mut messages = subscriber.as_pubsub();
    messages.subscribe(channel(Topic::Lock, "orders")).unwrap();
    assert_eq!(live.run(&release(0)), Reply::Released(1));
    live.run(&acquire(1));
    assert_eq!(live.run(&force()), Reply::Forced(true));
    for _ in 0..2 {
        assert_eq!(
            messages
                .get_message()
                .unwrap()
                .get_payload::<String>()
                .unwrap(),
            "0"
        );
    }
    let other = Op::Inspect {
        name: "elsewhere".into(),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    };
    assert_eq!(live.refused(&other), (ErrorKind::Denied, false));
}

/// Without the right to set an expiry, a lock would stay for ever.
#[test]
fn an_acquire_whose_expiry_is_refused_is_undone() {
    for missing in ["pexpire", "pttl"] {
        let mut live = Live::as_user(&format!("~* &* {COMMANDS} -{missing}"));
        assert_eq!(live.refused(&acquire(1)), (ErrorKind::Denied, false));
        assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0, "{missing}");
        // A re-entry gives back the count that it found.
        let mine = Form::default().owner(U, 76);
        let _: i64 = live.look.hset("orders", &mine, "4").unwrap();
        assert_eq!(live.refused(&acquire(5)), (ErrorKind::Denied, false));
        assert_eq!(live.holds("orders"), "U:76=4", "{missing}");
        assert_eq!(
            live.refused(&renew(&["orders"], LEASE)),
            (ErrorKind::Denied, false)
        );
    }
}

#[test]
fn a_release_succeeds_without_the_right_to_publish() {
    let mut live = Live::as_user(&format!("~* resetchannels {COMMANDS}"));
    let untold = |reply: Reply| Reply::Untold(reply.into());
    for kind in [
        Kind::Reentrant,
        Kind::Simple,
        Kind::Adaptive,
        Kind::Read,
        Kind::Write,
    ] {
        live.run(&of_kind(&acquire(1), kind));
        let released = live.run(&of_kind(&release(0), kind));
        assert_eq!(released, untold(Reply::Released(0)), "{kind:?}");
    }
    live.run(&acquire(1));
    assert_eq!(live.run(&force()), Reply::Forced(true));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);
}

/// Regression test: the last command alone counted, so a user of a cluster without `+spublish` was told nothing. An old
/// server, which lacks that command, refuses nobody.
#[test]
fn each_command_that_may_not_publish_counts() {
    for missing in ["publish", "spublish", "none"] {
        let mut live = Live::as_user("~* &* +@all");
        live.publish = Publish::Both;
        let known = live.cmd::<Vec<Value>>("COMMAND INFO", &[missing]);
        let is_missing = known != [Value::Nil];
        if is_missing {
            live.cmd::<()>("ACL SETUSER app", &[&format!("-{missing}")]);
        }
        let is_told = |reply: Reply| matches!(reply, Reply::Untold(_));
        for kind in [Kind::Reentrant, Kind::Read, Kind::Write] {
            live.run(&of_kind(&acquire(1), kind));
            let released = live.run(&of_kind(&release(0), kind));
            assert_eq!(is_told(released), is_missing, "{kind:?} without {missing}");
        }
        let change = Op::Change {
            name: "seats".into(),
            writer: 0,
            sequence: 1,
            change: Change::AddPermits(1),
            place: None,
        };
        assert_eq!(is_told(live.run(&change)), is_missing, "without {missing}");
    }
}

#[test]
fn a_denied_count_is_no_success() {
    let mut live = Live::as_user(&format!("~* &* {COMMANDS} -hset"));
    let mine = Form::default().owner(U, 76);
    let _: i64 = live.look.hset("orders", &mine, "2").unwrap();
    assert_eq!(live.refused(&release(1)), (ErrorKind::Denied, false));
    assert_eq!(live.run(&release(0)), Reply::Released(0));
}

#[test]
fn a_full_server_takes_releases_and_renewals_but_no_new_locks() {
    let mut live = Live::new();
    live.run(&acquire(1));
    live.run(&acquire(2));
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    let other = Op::Acquire(Acquire {
        fencing: Fencing::Expiring,
        ..Acquire::of("new".into(), 1, Form::default(), LEASE)
    });
    let (error, passing) = live.try_as(U, &other, u64::MAX).unwrap_err();
    assert_eq!((error.kind(), passing), (ErrorKind::Server, false));
    assert!(error.message().contains("maxmemory"), "{error}");
    assert_eq!(live.refused(&acquire(3)), (ErrorKind::Server, false));
    assert_eq!(
        live.run(&renew(&["orders"], LEASE * 2)),
        Reply::Renewed(vec![RenewReply::Kept])
    );
    assert!(is_near(live.pttl("orders"), LEASE * 2));
    assert_eq!(live.run(&release(1)), Reply::Kept);
    assert!(is_near(live.pttl("orders"), LEASE));
    assert_eq!(live.run(&release(0)), Reply::Released(0));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);
}

#[test]
fn a_replica_refuses_for_the_time_being() {
    let mut live = Live::new();
    live.run(&acquire(1));
    // Nobody answers at this address: the server stays a replica with the data it has.
    live.cmd::<()>("REPLICAOF 127.0.0.1 1", &[]);
    let passing = (ErrorKind::Server, true);
    assert_eq!(live.refused(&acquire(2)), passing);
    assert_eq!(live.refused(&release(1)), passing);
    assert_eq!(live.refused(&release(0)), passing);
    assert_eq!(
        live.refused(&renew(&["orders"], LEASE * 2)),
        passing,
        "all refused: the reason is told"
    );
    assert_eq!(live.holds("orders"), "U:76=1");
}

// ---- client tracking ----

/// A connection that is told when a key that it has read is changed by somebody else.
pub(super) struct Tracked {
    pub(super) live: Live,
    pushes: Receiver<PushInfo>,
}

impl Tracked {
    pub(super) fn new() -> Tracked {
        let mut live = Live::new();
        live.scripts = live
            ._server
            .connect_to(&format!("{}?protocol=resp3", live._server.url()));
        let (sender, pushes) = std::sync::mpsc::channel();
        live.scripts.set_push_sender(sender);
        let _: () = redis::cmd("CLIENT")
            .arg(&["TRACKING", "ON", "NOLOOP"])
            .query(&mut live.scripts)
            .unwrap();
        Tracked { live, pushes }
    }

    /// Whether somebody else's deletion of the key is told. Pushes are read with the next reply.
    fn is_told(&mut self) -> bool {
        self.live.cmd::<()>("DEL orders", &[]);
        self.hears("orders")
    }

    /// Whether a change of this key by somebody else was told.
    pub(super) fn hears(&mut self, key: &str) -> bool {
        let _: String = redis::cmd("PING").query(&mut self.live.scripts).unwrap();
        let names_it = |push: PushInfo| {
            push.kind == PushKind::Invalidate
                && push.data.first() == Some(&Value::Array(vec![Value::BulkString(key.into())]))
        };
        self.pushes
            .try_iter()
            .filter(|push| push.kind == PushKind::Invalidate)
            .any(names_it)
    }
}

#[test]
fn the_deletion_of_a_key_is_told_after_every_script() {
    let mut tracked = Tracked::new();
    let steps: [&[Op]; 7] = [
        &[acquire(1)],
        &[acquire(1), acquire(1)],
        &[acquire(1), acquire(2)],
        &[acquire(1), renew(&["orders"], LEASE)],
        &[acquire(1), renew(&["orders"], LEASE * 2)],
        &[acquire(1), acquire(2), release(1)],
        &[acquire_with(1, LEASE, Fencing::Expiring)],
    ];
    for (ops, kind) in steps
        .iter()
        .flat_map(|ops| [(ops, Kind::Reentrant), (ops, Kind::Simple)])
    {
        let ops: Vec<Op> = ops.iter().map(|op| of_kind(op, kind)).collect();
        ops.iter().for_each(|op| {
            tracked.live.run(op);
        });
        assert!(tracked.is_told(), "{ops:?}");
    }
    held_by_redisson(&mut tracked.live, 30_000);
    assert!(matches!(tracked.live.run(&acquire(1)), Reply::Busy { .. }));
    assert!(tracked.is_told(), "a busy lock");
    // A waiter of a latch hears of its end by this alone.
    for (sequence, change) in (1..).zip([Change::SetCount(3), Change::CountDown(1)]) {
        if sequence == 2 {
            tracked.live.cmd::<()>("SET orders 3", &[]);
        }
        tracked.live.run(&Op::Change {
            name: "orders".into(),
            writer: 0,
            sequence,
            change: change.clone(),
            place: None,
        });
        assert!(tracked.is_told(), "{change:?}");
    }
}

#[test]
fn our_own_writes_are_not_told() {
    let mut tracked = Tracked::new();
    let ops = [
        acquire(1),
        acquire(2),
        renew(&["orders"], LEASE * 2),
        release(1),
        release(0),
    ];
    for (op, kind) in [Kind::Reentrant, Kind::Simple]
        .iter()
        .flat_map(|kind| ops.iter().zip([*kind; 5]))
    {
        tracked.live.run(&of_kind(op, kind));
    }
    let _: String = redis::cmd("PING").query(&mut tracked.live.scripts).unwrap();
    assert_eq!(
        tracked
            .pushes
            .try_iter()
            .filter(|push| push.kind == PushKind::Invalidate)
            .count(),
        0
    );
}
