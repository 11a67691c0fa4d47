//! The limiter and the batcher against a modelled server that is sometimes slow: seed after seed,
//! in virtual time. The connection between them is covered by the live tests.
#![allow(clippy::unwrap_used, reason = "a failed test says where")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::batcher::Batcher;
use super::calls::OutgoingCall;
use super::limiter::ConcurrencyLimiter;
use crate::moment::Moment;
use crate::support::random::{Random, number};
use crate::wire::{Acquire, BatchKey, Fencing, Form, Name, Op, Publish, Release};

/// The number of seeds, unless `REDLATCH_SEEDS` sets another one.
const SEEDS: u64 = 40;
/// The most locks in a command.
const MOST: usize = 32;

/// A command at the server, its calls and their time limit.
struct Command {
    sent: Moment,
    limit: Duration,
    calls: Vec<u64>,
}

struct Pressure {
    random: Random,
    now: Moment,
    window: ConcurrencyLimiter,
    gathered: Batcher,
    server: VecDeque<Command>,
    under_way: usize,
    /// Calls without an outcome: when they were handed over, their limit, and their lock.
    open: BTreeMap<u64, (Moment, Duration, Name)>,
    last: u64,
}

impl Pressure {
    fn new(seed: u64) -> Pressure {
        Pressure {
            random: Random(seed),
            now: Moment(1_000_000),
            window: ConcurrencyLimiter::new(),
            gathered: Batcher::default(),
            server: VecDeque::new(),
            under_way: 0,
            open: BTreeMap::new(),
            last: 0,
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(Duration::from_micros(micros));
    }

    /// A new call, as a link would take it.
    fn call(&mut self) {
        self.last += 1;
        let (call, name) = (self.last, Name::from(format!("n{}", self.random.below(40))));
        let limit = Duration::from_millis(self.random.pick(&[50, 100, 300, 1000]));
        let (owner, form) = (call, Form::default());
        let op = match self.random.below(2) {
            0 => Op::Release(Release::of(name.clone(), owner, form)),
            _ => {
                let (count, lease, fencing, replicas) = (1, limit * 10, Fencing::Off, 0);
                Op::Acquire(Acquire {
                    count,
                    fencing,
                    replicas,
                    ..Acquire::of(name.clone(), owner, form, lease)
                })
            }
        };
        self.open.insert(call, (self.now, limit, name));
        let sending = OutgoingCall {
            call,
            op: op.into(),
            limit,
            hops: 0,
            asking: false,
        };
        if self.window.is_empty() && self.is_open() {
            self.gather(sending);
        } else {
            self.window.push(self.now, sending);
        }
    }

    fn is_open(&self) -> bool {
        self.window
            .is_open(self.under_way + self.gathered.sendings().count())
    }

    fn gather(&mut self, sending: OutgoingCall) {
        let (handed, time, name) = &self.open[&sending.call];
        assert!(
            self.now.after(sending.limit) <= handed.after(*time),
            "more time than it was given"
        );
        assert!(
            sending.limit * 2 >= *time,
            "less than half of its time is left for the server"
        );
        if self.gathered.has(name) {
            self.leave();
        }
        let sort = BatchKey::of(&sending.op, Publish::Classic).unwrap();
        self.gathered.add(self.now, sort, sending);
    }

    /// Sends the batches to the server.
    fn leave(&mut self) {
        for group in self.gathered.take() {
            let calls: Vec<u64> = group.sendings.iter().map(|sending| sending.call).collect();
            let mut names: Vec<&Name> = group
                .sendings
                .iter()
                .filter_map(|sending| sending.op.name())
                .collect();
            names.sort_unstable();
            names.dedup();
            assert!(
                calls.len() <= MOST && names.len() == calls.len(),
                "one command, and a lock twice"
            );
            assert!(
                group
                    .sendings
                    .iter()
                    .all(|sending| group.limit <= sending.limit && sending.limit <= group.limit * 2)
            );
            let sort = |sending: &OutgoingCall| BatchKey::of(&sending.op, Publish::Classic);
            assert!(
                group
                    .sendings
                    .iter()
                    .all(|sending| sort(sending) == Some(group.sort))
            );
            self.under_way += calls.len();
            self.server.push_back(Command {
                sent: group.sent,
                limit: group.limit,
                calls,
            });
        }
    }

    fn answer(&mut self) {
        let Some(Command { sent, limit, calls }) = self.server.pop_front() else {
            return;
        };
        self.under_way -= calls.len();
        self.window.answered(calls.len(), sent, limit, self.now);
        calls
            .iter()
            .for_each(|call| assert!(self.open.remove(call).is_some(), "{call} ends twice"));
        self.go_on();
    }

    fn give_up(&mut self) {
        while let Some(sending) = self.window.overdue(self.now) {
            let (handed, time, _) = self.open.remove(&sending.call).unwrap();
            assert!(
                handed.after(time / 2) <= self.now,
                "given up before half of its time is over"
            );
        }
        assert!(
            self.window.next_wake().is_none_or(|at| at > self.now),
            "nobody is kept for longer than that"
        );
    }

    fn go_on(&mut self) {
        self.give_up();
        while self.is_open()
            && let Some(sending) = self.window.next(self.now)
        {
            self.gather(sending);
        }
    }

    fn run(mut self) {
        let weathers = self.random.between(5, 40);
        for _ in 0..weathers {
            // How long the server takes for a command, and how many calls arrive meanwhile.
            let (slow, rush) = (
                self.random.pick(&[20, 200, 20_000, 400_000]),
                self.random.pick(&[1, 20, 400]),
            );
            let turns = self.random.between(1, 20);
            for _ in 0..turns {
                let come = self.random.below(rush);
                (0..come).for_each(|_| self.call());
                self.leave();
                let took = self.random.between(1, slow);
                self.pass(took);
                self.give_up();
                self.answer();
            }
        }
        while !self.open.is_empty() {
            self.leave();
            self.pass(100);
            self.give_up();
            self.answer();
            assert!(
                !self.server.is_empty() || self.window.is_empty() || !self.gathered.is_empty(),
                "it stands still"
            );
        }
        assert!(self.window.is_empty() && self.gathered.is_empty() && self.under_way == 0);
    }
}

#[test]
fn each_call_leaves_once_in_time_or_is_given_up() {
    (0..number("REDLATCH_SEEDS").unwrap_or(SEEDS)).for_each(|seed| Pressure::new(seed).run());
}
