//! The scripts of counters against a model of them on a real server: random changes and copies of
//! them, what they publish, foreign data, a full server and a user who may not do everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Commands;

use super::live_tests::{Live, U, V};
use super::names::channel;
use super::*;
use crate::error::ErrorKind;
use crate::support::random::{Random, number};
use crate::tuning::MARKER_LIFE;

const STEPS: u64 = 3000;
/// The most messages of one call.
const MESSAGES: i64 = 8;

fn op(sequence: u64, change: Change) -> Op {
    Op::Change {
        name: "seats".into(),
        writer: 0,
        sequence,
        change,
        place: None,
    }
}

fn trade(given: u32, wanted: &[u32]) -> Change {
    Change::Trade {
        given,
        wanted: wanted.to_vec(),
    }
}

fn read() -> Op {
    Op::Read {
        name: "seats".into(),
    }
}

fn changed(done: i64, left: i64) -> Reply {
    Reply::Changed {
        done,
        left,
        ahead: None,
    }
}

impl Live {
    fn number(&mut self) -> Option<i64> {
        self.look.get("seats").unwrap()
    }
}

/// A counter as the server should have it.
#[derive(Debug, Clone, Default)]
struct Model {
    number: Option<i64>,
    /// The last change of each client, with its answer.
    markers: BTreeMap<&'static str, (u64, Reply)>,
}

impl Model {
    /// The answer, and the payloads that are published.
    fn change(&mut self, uuid: &'static str, sequence: u64, change: &Change) -> (Reply, Vec<i64>) {
        match self.markers.get(uuid) {
            Some((last, reply)) if *last == sequence => return (reply.clone(), Vec::new()),
            Some((last, _)) if *last > sequence => return (Reply::Superseded, Vec::new()),
            _ => {}
        }
        let before = self.number.unwrap_or(0);
        let (mut done, mut left, mut published) = (0, before, Vec::new());
        let tell = |by: i64, left: i64| {
            vec![left; usize::try_from(by.min(left).min(MESSAGES)).unwrap_or(0)]
        };
        match change {
            Change::Trade { given, wanted } => {
                left += i64::from(*given);
                for each in wanted {
                    if i64::from(*each) > left {
                        break;
                    }
                    (left, done) = (left - i64::from(*each), done + 1);
                }
                if *given > 0 || done > 0 {
                    self.number = Some(left);
                }
                published = tell((*given).into(), left);
            }
            Change::SetPermits(number) | Change::SetCount(number) => {
                if self.number.is_none() {
                    (done, left) = (1, i64::from(*number));
                    self.number = Some(left);
                    published = match change {
                        Change::SetCount(_) => vec![1],
                        _ => tell(left, left),
                    };
                }
            }
            Change::AddPermits(by) => {
                left += by;
                if *by != 0 {
                    self.number = Some(left);
                }
                published = tell(*by, left);
            }
            Change::Drain => {
                (done, left) = (before, 0);
                if before != 0 {
                    self.number = Some(0);
                }
            }
            Change::CountDown(by) => {
                done = before.max(0);
                left = (done - i64::from(*by)).max(0);
                if self.number.is_some() {
                    self.number = Some(left).filter(|left| *left > 0);
                }
                published = vec![0; usize::from(done > 0 && left == 0)];
            }
        }
        let reply = changed(done, left);
        self.markers.insert(uuid, (sequence, reply.clone()));
        (reply, published)
    }
}

fn random_change(random: &mut Random, counter: Counter) -> Change {
    let small = |random: &mut Random| u32::try_from(random.below(5)).unwrap();
    match (counter, random.below(6)) {
        (Counter::Latch, 0) => Change::SetCount(1 + small(random)),
        (Counter::Latch, _) => Change::CountDown(1 + small(random)),
        (_, 0) => Change::SetPermits(small(random) * 4),
        (_, 1) => Change::AddPermits(i64::from(small(random)) * 5 - 10),
        (_, 2) => Change::Drain,
        _ => {
            let given = small(random) * 3;
            let wanted = (0..random.below(4)).map(|_| 1 + small(random)).collect();
            Change::Trade { given, wanted }
        }
    }
}

/// Random changes by two clients, with copies of old ones in between, and a key that goes away.
#[test]
fn counters_do_as_their_model_does() {
    let mut live = Live::new();
    let seed = number("SEED").unwrap_or(1);
    for counter in [Counter::Semaphore, Counter::Latch] {
        let mut random = Random(seed);
        let mut listener = live.connect();
        let mut channels = listener.as_pubsub();
        channels
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        channels
            .subscribe(channel(counter.topic(), "seats"))
            .unwrap();
        let mut model = Model::default();
        let mut sent: Vec<(&str, u64, Change)> = Vec::new();
        let _: () = live.cmd("FLUSHALL", &[]);
        for step in 0..STEPS {
            if random.below(40) == 0 {
                let _: () = live.look.del("seats").unwrap();
                model.number = None;
            }
            let (uuid, sequence, change) = match random.below(4) {
                0 if !sent.is_empty() => {
                    let near = random.below(4.min(sent.len() as u64)) as usize;
                    sent[sent.len() - 1 - near].clone()
                }
                _ => {
                    let uuid = if random.below(2) == 0 { U } else { V };
                    (uuid, step + 1, random_change(&mut random, counter))
                }
            };
            sent.push((uuid, sequence, change.clone()));
            let (reply, published) = model.change(uuid, sequence, &change);
            let what = format!("seed {seed}, step {step}: {uuid} {sequence} {change:?}");
            assert_eq!(live.run_as(uuid, &op(sequence, change)), reply, "{what}");
            assert_eq!(live.number(), model.number, "{what}");
            let left = model.number.unwrap_or(0);
            assert_eq!(live.run(&read()), changed(0, left), "{what}");
            for payload in published {
                let message = channels.get_message().expect("a message");
                assert_eq!(message.get_payload(), Ok(payload), "{what}");
            }
        }
        // Nothing else was published.
        let last = channel(counter.topic(), "seats");
        let _: i64 = live.look.publish(&last, "end").unwrap();
        let message = channels.get_message().expect("a message");
        assert_eq!(message.get_payload(), Ok("end".to_owned()));
    }
}

#[test]
fn a_late_copy_is_stale() {
    let mut live = Live::new();
    for change in [trade(3, &[]), Change::SetPermits(4), Change::CountDown(1)] {
        let late = live.try_as(U, &op(1, change), 5);
        assert_eq!(late.unwrap(), Reply::Stale);
    }
    assert_eq!((live.number(), live.cmd("DBSIZE", &[])), (None, 0));
}

#[test]
fn a_time_to_live_stays() {
    let mut live = Live::new();
    let _: () = live.look.pset_ex("seats", 5, 60_000).unwrap();
    let semaphore = [
        trade(2, &[1]),
        Change::AddPermits(3),
        Change::Drain,
        trade(4, &[]),
    ];
    for (at, change) in semaphore.into_iter().enumerate() {
        live.run(&op(at as u64 + 1, change));
        assert!((1..=60_000).contains(&live.pttl("seats")));
    }
    live.run(&op(9, Change::CountDown(1)));
    assert!((1..=60_000).contains(&live.pttl("seats")));
}

#[test]
fn a_marker_goes_away_by_itself() {
    let mut live = Live::new();
    live.run(&op(1, trade(3, &[])));
    let left = live.pttl(&format!("{{seats}}:redlatch:{U}"));
    let life = i64::try_from(MARKER_LIFE.as_millis()).unwrap();
    assert!((life - 60_000..=life).contains(&left), "{left}");
}

#[test]
fn other_data_is_foreign_and_stays() {
    let mut live = Live::new();
    let all = [
        trade(1, &[1]),
        Change::SetPermits(1),
        Change::AddPermits(1),
        Change::Drain,
        Change::SetCount(1),
        Change::CountDown(1),
    ];
    for (put, what) in [
        ("HSET seats owner 1", "hash"),
        ("SET seats 8c8ffe61-5bd3-4d78-a5c0-2d2386af488e:7", "string"),
        ("SET seats 007", "string"),
        ("SET seats 9223372036854775807", "string"),
        ("RPUSH seats 1", "list"),
    ] {
        let _: () = live.cmd("FLUSHALL", &[]);
        let _: redis::Value = live.cmd(put, &[]);
        let before: Vec<u8> = live.cmd("DUMP seats", &[]);
        let foreign = Reply::Foreign(format!("a key of type {what}"));
        let foreign = match what {
            "hash" => Reply::Foreign("a hash, perhaps a lock of another kind,".into()),
            _ => foreign,
        };
        for (at, change) in all.iter().enumerate() {
            let reply = live.run(&op(at as u64 + 1, change.clone()));
            assert_eq!(reply, foreign, "{put}: {change:?}");
        }
        assert_eq!(live.run(&read()), foreign);
        let after: Vec<u8> = live.cmd("DUMP seats", &[]);
        assert_eq!(before, after, "{put}");
    }
}

#[test]
fn a_full_server_takes_permits_back_and_counts_down() {
    let mut live = Live::new();
    live.run(&op(1, Change::SetPermits(2)));
    live.run(&op(2, trade(0, &[2])));
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    assert_eq!(live.run(&op(3, trade(2, &[]))), changed(0, 2));
    assert_eq!(live.run(&op(3, trade(2, &[]))), changed(0, 2));
    assert_eq!(live.run(&op(4, Change::CountDown(1))), changed(2, 1));
    assert_eq!(live.number(), Some(1));
}

/// All that the scripts use.
const NEEDED: &str = "+eval +evalsha +time +type +get +set +incrby +decrby +pexpire +del +publish";

fn app(rules: &str) -> Live {
    let keys = "~seats ~{seats}:redlatch:* resetchannels &redisson_*";
    Live::as_user(&format!("{keys} {rules}"))
}

#[test]
fn the_documented_commands_are_enough_for_counters() {
    let mut live = app(NEEDED);
    assert_eq!(live.run(&op(1, Change::SetPermits(2))), changed(1, 2));
    assert_eq!(live.run(&op(2, trade(1, &[1]))), changed(1, 2));
    assert_eq!(live.run(&op(3, Change::AddPermits(1))), changed(0, 3));
    assert_eq!(live.run(&op(4, Change::Drain)), changed(3, 0));
    assert_eq!(live.run(&op(5, Change::CountDown(1))), changed(0, 0));
    assert_eq!(live.run(&op(6, Change::SetCount(2))), changed(1, 2));
    assert_eq!(live.run(&op(7, Change::CountDown(1))), changed(2, 1));
    assert_eq!(live.run(&op(8, Change::CountDown(1))), changed(1, 0));
    assert_eq!(live.run(&read()), changed(0, 0));
}

/// Regression test: waiters looked every few seconds only, and nobody was told.
#[test]
fn a_change_that_may_not_be_published_is_told() {
    let mut live = app(&format!("{NEEDED} -publish"));
    let untold = |done, left| Reply::Untold(changed(done, left).into());
    let changes = [
        (Change::AddPermits(2), untold(0, 2)),
        (trade(1, &[]), untold(0, 3)),
        (trade(0, &[3]), changed(1, 0)),
    ];
    for (at, (change, told)) in (1..).zip(changes) {
        assert_eq!(live.run(&op(at, change)), told);
    }
    let _: () = live.look.set("seats", 1).unwrap();
    assert_eq!(live.run(&op(5, Change::CountDown(1))), untold(1, 0));
}

/// A change that is denied changes nothing, and its marker does not say that it was done.
#[test]
fn a_denied_command_counts_nothing() {
    for missing in ["set", "incrby", "decrby", "del", "get", "pexpire"] {
        for change in [
            trade(1, &[]),
            Change::AddPermits(2),
            Change::CountDown(1),
            Change::CountDown(7),
        ] {
            let mut live = app(&format!("{NEEDED} -{missing}"));
            let _: () = live.look.set("seats", 5).unwrap();
            let op = op(3, change);
            match live.try_as(U, &op, u64::MAX) {
                Err((error, _)) => {
                    assert_eq!(error.kind(), ErrorKind::Denied, "{op:?} without {missing}");
                    assert_eq!(live.number(), Some(5), "{op:?} without {missing}");
                    let again = live.try_as(U, &op, u64::MAX);
                    assert!(again.is_err(), "{op:?} without {missing}: {again:?}");
                }
                Ok(reply) => assert!(matches!(reply, Reply::Changed { .. }), "{reply:?}"),
            }
        }
    }
}

#[test]
fn clients_have_markers_of_their_own() {
    let mut live = Live::new();
    assert_eq!(live.run(&op(5, trade(1, &[]))), changed(0, 1));
    assert_eq!(live.run_as(V, &op(5, trade(1, &[]))), changed(0, 2));
    let newer = Op::Change {
        name: "seats".into(),
        writer: 7 << 16,
        sequence: 5,
        change: trade(1, &[]),
        place: None,
    };
    assert_eq!(live.run(&newer), changed(0, 3));
    assert_eq!(live.run(&op(4, trade(1, &[]))), Reply::Superseded);
    assert_eq!(live.number(), Some(3));
}

/// A trade of a client with this place in the crowd.
fn in_crowd(sequence: u64, place: OwnerId, first: bool) -> Op {
    let mut op = op(sequence, trade(0, &[1]));
    if let Op::Change { place: own, .. } = &mut op {
        *own = Some(Place {
            owner: place,
            first,
        });
    }
    op
}

fn parked(left: i64, ahead: Option<u32>) -> Reply {
    let done = 0;
    Reply::Changed { done, left, ahead }
}

/// The answer to a trade that took a permit says nothing of a place.
fn taken(left: i64) -> Reply {
    let (done, ahead) = (1, Some(1));
    Reply::Changed { done, left, ahead }
}

#[test]
fn a_trade_in_a_crowd_leaves_what_is_free_to_the_first_place() {
    let mut live = Live::new();
    let places =
        |live: &mut Live| -> Vec<String> { live.cmd("ZRANGE {seats}:redlatch:crowd 0 -1", &[]) };
    live.run(&op(1, trade(1, &[])));
    assert_eq!(live.run(&in_crowd(2, 1, false)), taken(0));
    assert_eq!(live.run(&in_crowd(3, 2, false)), parked(0, Some(0)));
    // A copy cannot tell of its place.
    assert_eq!(live.run(&in_crowd(3, 2, false)), parked(0, Some(1)));
    assert_eq!(live.run(&in_crowd(4, 3, false)), parked(0, Some(1)));
    assert_eq!(live.run(&in_crowd(5, 4, false)), parked(0, Some(2)));
    live.run(&op(6, trade(1, &[])));
    assert_eq!(live.run(&in_crowd(7, 4, false)), parked(1, Some(2)));
    // One more than permits are free has been told.
    assert_eq!(live.run(&in_crowd(8, 3, false)), parked(1, Some(0)));
    // Nobody listens at the next place, so it is gone.
    assert_eq!(live.run(&in_crowd(9, 2, false)), taken(0));
    assert_eq!(places(&mut live).len(), 2);
    live.run(&op(10, trade(1, &[])));
    assert_eq!(live.run(&in_crowd(11, 3, false)), taken(0));
    assert_eq!(places(&mut live).len(), 0);
    // Its first place was to hear of a permit, and did not come in time.
    assert_eq!(live.run(&in_crowd(12, 4, false)), parked(0, Some(0)));
    live.run(&op(13, trade(1, &[])));
    let first = places(&mut live);
    assert_eq!(live.run(&in_crowd(14, 5, true)), taken(0));
    assert_eq!(places(&mut live), first);
    live.run(&op(15, trade(1, &[])));
    let late = -3_000_000_000_000_000_i64;
    live.cmd::<()>(
        &format!("ZADD {{seats}}:redlatch:crowd XX {late} {}", first[0]),
        &[],
    );
    assert_eq!(live.run(&in_crowd(16, 5, true)), taken(0));
    assert_eq!(places(&mut live).len(), 0);
}

#[test]
fn what_a_client_in_a_crowd_gives_it_may_take_itself() {
    let mut live = Live::new();
    assert_eq!(live.run(&in_crowd(1, 1, false)), parked(0, Some(0)));
    let mut both = in_crowd(2, 2, false);
    if let Op::Change { change, .. } = &mut both {
        *change = trade(1, &[1, 1]);
    }
    let (done, left, ahead) = (1, 0, Some(1));
    assert_eq!(live.run(&both), Reply::Changed { done, left, ahead });
}

#[test]
fn a_fault_of_the_crowd_takes_no_permit_of_a_plain_semaphore_away() {
    let mut live = Live::new();
    live.cmd::<()>("SET {seats}:redlatch:crowd other", &[]);
    live.run(&op(1, trade(1, &[])));
    assert_eq!(live.run(&in_crowd(2, 1, false)), taken(0));
    assert_eq!(live.run(&in_crowd(3, 1, false)), parked(0, None));
}
