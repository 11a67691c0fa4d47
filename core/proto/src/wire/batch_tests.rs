//! Several locks in one call against the same, one by one, on a real server: the same replies, the
//! same keys, the same messages, whatever lies at the names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use redis::{Commands, Connection, PushKind, Value};

use super::Topic;
use super::live_tests::{LEASE, U, V};
use super::names::channel;
use super::{
    Acquire, BatchKey, Call, Form, Kind, Layout, Name, Op, Publish, Release, Reply, decode,
    decode_many, refusal,
};
use crate::error::ErrorKind;
use crate::real::eval;
use crate::support::Server;
use crate::support::random::{Random, number};

/// How often the property is looked at when nobody says otherwise.
const ROUNDS: u64 = 300;
const NAMES: usize = 6;
/// How far apart the two may be on a busy machine.
const APART: Duration = Duration::from_secs(5);

fn acquire(kind: Kind, name: &Name, owner: u64, lease: Duration) -> Op {
    let form = Form::of(kind);
    let name = name.clone();
    Op::Acquire(Acquire::of(name, owner, form, lease))
}

fn release(kind: Kind, name: &Name, owner: u64) -> Op {
    let form = Form::of(kind);
    Op::Release(Release::of(name.clone(), owner, form))
}

fn alone(server: &mut Connection, op: &Op, not_after: u64) -> Result<Reply, ErrorKind> {
    match eval(&Call::new(op, U, not_after, Publish::Classic), server) {
        Ok(value) => Ok(decode(op, value).unwrap().1),
        Err(error) => Err(
            refusal(error.code().unwrap(), error.detail().unwrap_or_default())
                .0
                .kind(),
        ),
    }
}

/// Does all in one call. `None`: nothing was done for this one.
fn together(
    server: &mut Connection,
    ops: &[Op],
    not_after: u64,
) -> Result<Vec<Option<Reply>>, ErrorKind> {
    let sort = BatchKey::of(&ops[0], Publish::Classic).unwrap();
    assert!(
        ops.iter()
            .all(|op| BatchKey::of(op, Publish::Classic) == Some(sort))
    );
    match eval(&Call::many(sort, ops.iter(), U, not_after), server) {
        Ok(value) => {
            let (server_ms, replies) = decode_many(sort, ops.len(), &value).unwrap();
            let before = 1_700_000_000_000;
            assert!(
                server_ms.is_none_or(|ms| ms > before),
                "{server_ms:?} is a clock in ms"
            );
            Ok(replies)
        }
        Err(error) => Err(
            refusal(error.code().unwrap(), error.detail().unwrap_or_default())
                .0
                .kind(),
        ),
    }
}

/// Two databases with the same in them: in one the calls are done together, in the other one by
/// one.
struct Both {
    kind: Kind,
    random: Random,
    together: Connection,
    alone: Connection,
    names: Vec<Name>,
    /// How many of the answers were given together.
    shared: usize,
}

impl Both {
    fn each(&mut self, words: &[&str]) {
        for server in [&mut self.together, &mut self.alone] {
            let _: Value = redis::cmd(words[0]).arg(&words[1..]).query(server).unwrap();
        }
    }

    /// Something or nothing at each name.
    fn lay(&mut self) {
        self.each(&["FLUSHDB"]);
        let mine = Form::of(self.kind).owner(U, 1);
        let other = Form::of(self.kind).owner(V, 1);
        let free_only = self.random.chance(300);
        for name in self.names.clone() {
            let owner = if self.random.chance(500) {
                &mine
            } else {
                &other
            };
            let at = if free_only { 99 } else { self.random.below(14) };
            match at {
                0..4 if self.kind.layout() == Layout::Hash => {
                    self.each(&["HSET", &name, owner, "1"])
                }
                0..4 => self.each(&["SET", &name, owner]),
                4 => self.each(&["SET", &name, "x"]),
                5 => self.each(&["RPUSH", &name, "x"]),
                6 => self.each(&["HSET", &name, "mode", "read", owner, "1"]),
                7 => self.each(&["HSET", &name, &mine, "1", &other, "1"]),
                8 => self.each(&["HSET", &name, "x:1", "many", "x:2", "1"]),
                _ => {}
            }
            if self.random.chance(800) {
                let ms = self.random.pick(&["100000", "40000", "9000"]);
                self.each(&["PEXPIRE", &name, ms]);
            }
        }
    }

    fn ops(&mut self) -> Vec<Op> {
        let (kind, acquires) = (self.kind, self.random.chance(500));
        let count = usize::try_from(self.random.between(1, self.names.len() as u64)).unwrap();
        let op = |name| {
            if acquires {
                acquire(kind, name, 1, LEASE)
            } else {
                release(kind, name, 1)
            }
        };
        self.names.iter().take(count).map(op).collect()
    }

    fn round(&mut self) {
        self.lay();
        let ops = self.ops();
        let not_after = if self.random.chance(50) {
            1
        } else {
            u64::MAX >> 12
        };
        let replies = together(&mut self.together, &ops, not_after).unwrap();
        for (op, reply) in ops.iter().zip(replies) {
            self.shared += usize::from(reply.is_some());
            let reply = reply.map_or_else(|| alone(&mut self.together, op, not_after), Ok);
            let expected = alone(&mut self.alone, op, not_after);
            assert!(
                same(&reply, &expected),
                "{op:?}: together {reply:?}, alone {expected:?}"
            );
        }
        for name in self.names.clone() {
            let look = |server: &mut Connection| {
                let dump: Option<Vec<u8>> = redis::cmd("DUMP").arg(&*name).query(server).unwrap();
                (dump, server.pttl::<_, i64>(&*name).unwrap())
            };
            let (mine, expected) = (look(&mut self.together), look(&mut self.alone));
            assert_eq!(mine.0, expected.0, "{name} after {ops:?}");
            assert!(
                (mine.1 < 0) == (expected.1 < 0)
                    && mine.1.abs_diff(expected.1) < APART.as_millis() as u64
            );
        }
    }
}

fn same(one: &Result<Reply, ErrorKind>, other: &Result<Reply, ErrorKind>) -> bool {
    match (one, other) {
        (
            Ok(Reply::Acquired {
                ttl: a,
                token: None,
            }),
            Ok(Reply::Acquired {
                ttl: b,
                token: None,
            }),
        )
        | (Ok(Reply::Busy { ttl: Some(a) }), Ok(Reply::Busy { ttl: Some(b) })) => {
            a.abs_diff(*b) < APART
        }
        _ => one == other,
    }
}

#[test]
fn several_locks_in_one_call_are_as_one_by_one() {
    // Names with braces of their own have other channels.
    for (kind, begin) in [
        (Kind::Reentrant, "n"),
        (Kind::Simple, "n"),
        (Kind::Simple, "{n}"),
    ] {
        let server = Server::start();
        let names: Vec<Name> = (0..NAMES).map(|at| format!("{begin}{at}").into()).collect();
        let random = Random(number("REDLATCH_SEED").unwrap_or(1));
        let alone = server.connect_to(&format!("{}1", server.url()));
        let mut listener = server.connect();
        let mut channels = listener.as_pubsub();
        channels.psubscribe("*").unwrap();
        let mut both = Both {
            kind,
            random,
            together: server.connect(),
            alone,
            names,
            shared: 0,
        };
        let rounds = number("REDLATCH_ROUNDS").unwrap_or(ROUNDS);
        let mut heard = std::collections::BTreeMap::<String, usize>::new();
        for _ in 0..rounds {
            both.round();
            let _: () = both.alone.publish("end", "").unwrap();
            loop {
                let name = channels
                    .get_message()
                    .unwrap()
                    .get_channel_name()
                    .to_owned();
                if name == "end" {
                    break;
                }
                *heard.entry(name).or_default() += 1;
            }
            assert!(
                heard.values().all(|count| count % 2 == 0),
                "as often in both: {heard:?}"
            );
        }
        assert!(
            both.names
                .iter()
                .all(|name| heard.contains_key(&channel(Topic::Lock, name))),
            "{heard:?}"
        );
        // Otherwise nothing was compared.
        assert!(
            both.shared as u64 > rounds,
            "{} answers for {rounds} rounds",
            both.shared
        );
    }
}

fn three(kind: Kind) -> [Name; 3] {
    ["a", "b", "c"].map(|name| kind.key(name.into()))
}

fn acquires(kind: Kind) -> Vec<Op> {
    three(kind)
        .iter()
        .map(|name| acquire(kind, name, 1, LEASE))
        .collect()
}

fn releases(kind: Kind) -> Vec<Op> {
    three(kind)
        .iter()
        .map(|name| release(kind, name, 1))
        .collect()
}

const TAKEN: Option<Reply> = Some(Reply::Acquired {
    ttl: LEASE,
    token: None,
});

/// A connection of a user with these rules, and one of everything's master.
fn as_user(server: &Server, rules: &str) -> (Connection, Connection) {
    let mut master = server.connect();
    let words: Vec<&str> = "SETUSER app on >secret"
        .split(' ')
        .chain(rules.split_whitespace())
        .collect();
    let _: () = redis::cmd("ACL").arg(words).query(&mut master).unwrap();
    let user = server.connect_to(&server.url().replace("redis://", "redis://app:secret@"));
    (user, master)
}

#[test]
fn one_lock_that_is_refused_hinders_no_other() {
    for kind in [Kind::Reentrant, Kind::Simple] {
        let server = Server::start();
        let mut live = server.connect();
        let _: () = live.rpush("b", "x").unwrap();
        assert_eq!(
            together(&mut live, &acquires(kind), u64::MAX >> 12),
            Ok(vec![TAKEN, None, TAKEN])
        );
        let freed = Some(Reply::Released(0));
        assert_eq!(
            together(&mut live, &releases(kind), 0),
            Ok(vec![freed.clone(), None, freed])
        );
        assert_eq!(
            redis::cmd("KEYS")
                .arg("*")
                .query::<Vec<String>>(&mut live)
                .unwrap(),
            ["b"]
        );
    }
}

/// The server refuses the call as a whole: each lock has to be asked for alone then.
#[test]
fn a_call_with_a_key_that_is_not_allowed_does_nothing() {
    for kind in [Kind::Reentrant, Kind::Simple] {
        let server = Server::start();
        let (mut user, mut master) = as_user(&server, "~a ~c &* +@all");
        assert_eq!(
            together(&mut user, &acquires(kind), u64::MAX >> 12),
            Err(ErrorKind::Denied)
        );
        assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut master).unwrap(), 0);
        together(&mut master, &acquires(kind), u64::MAX >> 12).unwrap();
        assert_eq!(
            together(&mut user, &releases(kind), 0),
            Err(ErrorKind::Denied)
        );
        assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut master).unwrap(), 3);
    }
}

/// Whatever command is denied, no lock stays that does not expire, and none is said to be taken
/// that is not.
#[test]
fn a_command_that_is_not_allowed_leaves_nothing_behind() {
    for kind in [Kind::Reentrant, Kind::Simple] {
        for missing in [
            "time", "exists", "hset", "set", "pexpire", "pttl", "hdel", "mget", "get", "del",
            "publish",
        ] {
            let server = Server::start();
            let (mut user, mut master) = as_user(&server, &format!("~* &* +@all -{missing}"));
            let taken =
                together(&mut user, &acquires(kind), u64::MAX >> 12).unwrap_or(vec![None; 3]);
            for (name, taken) in three(kind).iter().zip(&taken) {
                let ttl: i64 = master.pttl(&**name).unwrap();
                assert_eq!(
                    (ttl > 0, ttl == -2),
                    (taken.is_some(), taken.is_none()),
                    "{missing} {name} {ttl}"
                );
            }
            together(&mut master, &acquires(kind), u64::MAX >> 12).unwrap();
            let freed = together(&mut user, &releases(kind), 0).unwrap_or(vec![None; 3]);
            for (name, freed) in three(kind).iter().zip(&freed) {
                assert_eq!(
                    master.exists::<_, bool>(&**name).unwrap(),
                    freed.is_none(),
                    "{missing} {name}"
                );
                let untold = matches!(freed, Some(Reply::Untold(_)));
                assert_eq!(untold, missing == "publish", "{missing} {name} {freed:?}");
            }
        }
    }
}

#[test]
fn a_full_server_frees_locks_and_takes_none() {
    let server = Server::start();
    let mut live = server.connect();
    let full = |live: &mut Connection, memory: &str| {
        let _: () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", memory])
            .query(live)
            .unwrap();
    };
    for kind in [Kind::Reentrant, Kind::Simple] {
        full(&mut live, "1");
        assert_eq!(
            together(&mut live, &acquires(kind), u64::MAX >> 12),
            Ok(vec![None; 3])
        );
        full(&mut live, "0");
        assert_eq!(
            together(&mut live, &acquires(kind), u64::MAX >> 12),
            Ok(vec![TAKEN; 3])
        );
        full(&mut live, "1");
        assert_eq!(
            together(&mut live, &releases(kind), 0),
            Ok(vec![Some(Reply::Released(0)); 3])
        );
        assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut live).unwrap(), 0);
    }
}

/// Deletions of all of them are told, of those that are somebody else's as well: their waiters try
/// again then.
#[test]
fn every_lock_of_a_call_is_tracked() {
    for kind in [Kind::Reentrant, Kind::Simple] {
        let server = Server::start();
        let mut live = server.connect_to(&format!("{}?protocol=resp3", server.url()));
        let (sender, pushes) = std::sync::mpsc::channel();
        live.set_push_sender(sender);
        let _: () = redis::cmd("CLIENT")
            .arg(&["TRACKING", "ON", "NOLOOP"])
            .query(&mut live)
            .unwrap();
        let mut other = server.connect();
        for busy in [false, true] {
            if busy {
                alone(
                    &mut other,
                    &acquire(kind, &"b".into(), 9, LEASE),
                    u64::MAX >> 12,
                )
                .unwrap();
            }
            let replies = together(&mut live, &acquires(kind), u64::MAX >> 12).unwrap();
            assert_eq!(
                matches!(replies[1], Some(Reply::Busy { .. })),
                busy,
                "{replies:?}"
            );
            for name in three(kind) {
                let _: () = other.del(&*name).unwrap();
            }
            let _: String = redis::cmd("PING").query(&mut live).unwrap();
            let told = pushes
                .try_iter()
                .filter(|push| push.kind == PushKind::Invalidate)
                .count();
            assert_eq!(told, 3, "{kind:?} {busy}");
        }
    }
}
