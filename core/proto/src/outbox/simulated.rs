//! A connection in the simulation: the outbox that ships, in virtual time, checked after every
//! step.
//!
//! - Each call has one outcome, in time, and it is the one that the server gave for this call.
//! - An error that may concern a single lock is not reported to the other calls of its batch. Any
//!   other error is reported to all of them.
//! - A call that may have been executed is not reported as not sent, and is not sent again.
//! - No call is sent without time left.
//! - No more calls are in flight than the limiter allows. Each place is free again when its call
//!   has ended, and no call waits while a place is free.
//! - Waiting calls are served in order: least time first, held locks before new ones. Calls for one
//!   lock that do not wait keep their order.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test says where"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::News;
use super::calls::{Command, Outbox, OutgoingCall, Payload, Redirect};
use super::limiter::ConcurrencyLimiter;
use super::server_clock::ServerClock;
use crate::engine::{CallId, CallOutcome, Input, LinkId, STANDALONE};
use crate::moment::Moment;
use crate::wire::{self, BatchKey, Name, Op, Publish, Reply};

/// The most locks in a command.
const MOST: usize = 32;

/// The longest turn of the I/O thread. The limit of a command counts from its first call.
const TURN: Duration = Duration::from_millis(1);

/// A connection that is up.
pub struct Played {
    traffic: Outbox,
    /// Calls without an outcome, and their deadlines.
    open: BTreeMap<CallId, Open>,
    ends: BTreeSet<(Moment, CallId)>,
    /// Commands that were written and not answered.
    written: VecDeque<u64>,
    calls: u64,
    commands: u64,
    wrong: Option<String>,
}

/// A call without an outcome.
struct Open {
    /// Its number among all calls.
    number: u64,
    handed: Moment,
    limit: Duration,
    name: Option<Name>,
    /// An acquisition: calls for held locks do not wait behind it.
    is_new: bool,
    /// The limiter has held it back.
    waited: bool,
    /// It was written at least once.
    sent: bool,
    /// The server may be executing it, as far as the outbox can know.
    may_run: bool,
}

impl Open {
    /// The key that orders waiting calls.
    fn turn(&self) -> (bool, Moment, u64) {
        (self.is_new, self.handed.after(self.limit / 2), self.number)
    }
}

/// A command on its way to the server.
#[derive(Debug, Clone)]
pub struct Written {
    number: u64,
    pub sort: Option<BatchKey>,
    pub calls: Vec<(CallId, Arc<Op>)>,
    pub not_after: u64,
    pub deadline: Moment,
    /// Its limit when it was handed over, which may have been long before it is written.
    pub limit: Duration,
    /// It carries the source of its script.
    pub full: bool,
}

/// The modelled server's answer to a command.
#[derive(Debug, Clone)]
pub enum Said {
    /// A result for each call. `None`: the call was not executed and has to be sent alone.
    Done(Vec<Option<Reply>>),
    /// The command arrived too late for all of its calls.
    Late,
    /// The command was not executed, because of this error.
    Error(&'static str),
}

/// A call that another server has to execute, within `limit`.
pub struct Moved {
    pub call: CallId,
    pub op: Arc<Op>,
    pub limit: Duration,
    pub asking: bool,
}

/// The consequences of a reply.
pub struct Answered {
    pub written: Vec<Written>,
    pub outcomes: Outcomes,
    pub moved: Vec<Moved>,
    /// The server is no primary.
    pub demoted: bool,
}

pub type Outcomes = Vec<(CallId, CallOutcome)>;

impl Played {
    /// `link` is the engine's number for the server. `sizes` has the limiter's initial and least
    /// limit.
    pub fn new(link: LinkId, sizes: (usize, usize), server_ms: u64, now: Moment) -> Played {
        let window = ConcurrencyLimiter::of_size(sizes.0, sizes.1);
        let clock = ServerClock::new(server_ms, now);
        let traffic = Outbox::new(link, Publish::Classic, clock, window, now);
        Played {
            traffic: traffic.following_redirects(link != STANDALONE),
            open: BTreeMap::new(),
            ends: BTreeSet::new(),
            written: VecDeque::new(),
            calls: 0,
            commands: 0,
            wrong: None,
        }
    }

    /// The first violation.
    pub fn wrong(&mut self) -> Option<String> {
        self.wrong.take()
    }

    pub fn is_idle(&self) -> bool {
        self.traffic.is_idle() && self.open.is_empty()
    }

    pub fn next_wake(&self) -> Option<Moment> {
        self.traffic.next_wake()
    }

    /// A call that should have ended before.
    pub fn overdue(&self, now: Moment) -> Option<CallId> {
        self.ends
            .first()
            .filter(|(end, _)| *end < now)
            .map(|(_, call)| *call)
    }

    pub fn send(&mut self, now: Moment, call: CallId, op: Arc<Op>, limit: Duration, asking: bool) {
        self.calls += 1;
        let (name, is_new) = (op.name().cloned(), matches!(*op, Op::Acquire(_)));
        let (places, waiting) = (self.traffic.places().0, self.traffic.waiting().count());
        self.traffic.send(
            now,
            OutgoingCall {
                call,
                op,
                limit,
                hops: 0,
                asking,
            },
        );
        let waited = self.traffic.waiting().count() > waiting;
        let open = Open {
            number: self.calls,
            handed: now,
            limit,
            name,
            is_new,
            waited,
            sent: false,
            may_run: false,
        };
        self.ends.insert((now.after(limit), call));
        if self.open.insert(call, open).is_some() {
            self.fail(format!("{call} is sent again before it has ended"));
        }
        self.check(places);
    }

    /// A turn of the I/O thread for this connection: returns the commands to write and the calls
    /// that were given up.
    pub fn turn(&mut self, now: Moment) -> (Vec<Written>, Outcomes) {
        let (mut commands, mut news, places) =
            (Vec::new(), News::default(), self.traffic.places().0);
        loop {
            self.traffic.send_gathered();
            self.write(&mut commands);
            if !self.traffic.keeps_waiting() || !self.traffic.go_on(now, &mut news) {
                break;
            }
        }
        let outcomes = self.given_up(now, news);
        self.check(places);
        let (taken, (size, _)) = self.traffic.places();
        if self.traffic.keeps_waiting() && taken < size {
            self.fail(format!(
                "calls wait, though {taken} of {size} are under way"
            ));
        }
        (commands, outcomes)
    }

    fn write(&mut self, commands: &mut Vec<Written>) {
        while let Some(command) = self.traffic.next_command() {
            self.commands += 1;
            let written = written(self.commands, command);
            self.written.push_back(written.number);
            self.check_written(&written);
            commands.push(written);
        }
    }

    fn check_written(&mut self, written: &Written) {
        let mut wrong = None;
        let names: BTreeSet<&Name> = written
            .calls
            .iter()
            .filter_map(|(_, op)| op.name())
            .collect();
        if written.calls.len() > MOST || written.sort.is_some() && names.len() < written.calls.len()
        {
            wrong = Some("is too much for one command".to_owned());
        }
        for (call, _) in &written.calls {
            match self.open.get_mut(call) {
                None => wrong = Some(format!("has {call}, which has ended")),
                Some(open) if open.may_run => {
                    wrong = Some(format!("has {call}, which is under way"))
                }
                Some(open) => (open.sent, open.may_run) = (true, true),
            }
            wrong = wrong.or_else(|| self.overtaken_by(*call));
        }
        wrong
            .into_iter()
            .for_each(|wrong| self.fail(format!("{written:?} {wrong}")));
    }

    /// A call that was handed over before this one and should have been sent before it.
    fn overtaken_by(&self, call: CallId) -> Option<String> {
        let mine = &self.open[&call];
        let earlier = |open: &Open| open.number < mine.number && !open.sent;
        let waits = self.traffic.waiting().find(|other| {
            let other = &self.open[other];
            earlier(other) && other.turn() < mine.turn()
        });
        let same = self.open.iter().find(|(_, other)| {
            earlier(other) && !other.waited && other.name.is_some() && other.name == mine.name
        });
        waits
            .or(same.map(|(other, _)| *other))
            .map(|other| format!("overtakes {other} with {call}"))
    }

    /// Hands the server's answer to the outbox. Answers come in the order of the commands.
    pub fn replied(&mut self, now: Moment, to: &Written, server_ms: u64, said: &Said) -> Answered {
        assert_eq!(
            self.written.pop_front(),
            Some(to.number),
            "answers keep their order"
        );
        self.note_undone(to, said);
        let (mut news, places) = (News::default(), self.traffic.places().0);
        let demoted = self
            .traffic
            .replied(now, value(to, server_ms, said), &mut news);
        let moved = std::mem::take(&mut news.redirects)
            .into_iter()
            .filter_map(|to| self.moved(now, to))
            .collect();
        let outcomes = self.taken(news);
        for (call, outcome) in &outcomes {
            if !is_own(to, said, *call, outcome) {
                self.fail(format!(
                    "{call} is told {outcome:?} when the server says {said:?} to {to:?}"
                ));
            }
        }
        // The driver writes the commands that follow from a reply before it reads the next reply.
        let mut written = Vec::new();
        self.write(&mut written);
        // Commands with other calls may have missed their deadline while the process was stopped.
        // The server refuses those by their not-after.
        let again =
            |written: &&Written| to.calls.iter().any(|(call, _)| *call == written.calls[0].0);
        if let Some(late) = written
            .iter()
            .filter(again)
            .find(|written| written.deadline <= now)
        {
            self.fail(format!("{late:?} has no time left"));
        }
        self.check(places);
        Answered {
            written,
            outcomes,
            moved,
            demoted,
        }
    }

    /// Notes the calls that were certainly not executed: they may be sent again.
    fn note_undone(&mut self, to: &Written, said: &Said) {
        for (at, (call, _)) in to.calls.iter().enumerate() {
            let done = matches!(said, Said::Done(replies) if replies[at].is_some());
            if let Some(open) = self.open.get_mut(call) {
                open.may_run &= done;
            }
        }
    }

    fn moved(&mut self, now: Moment, Redirect { asking, call, .. }: Redirect) -> Option<Moved> {
        let (sending, end) = call?;
        self.end(sending.call);
        Some(Moved {
            call: sending.call,
            op: sending.op,
            limit: now.until(end),
            asking,
        })
    }

    /// The server sent something that is no reply.
    pub fn heard(&mut self, now: Moment) {
        self.traffic.heard(now);
    }

    /// Runs what is due. Returns true if the connection has been silent for too long.
    pub fn wake(&mut self, now: Moment) -> (Outcomes, bool) {
        if self.next_wake().is_none_or(|due| now < due) {
            return (Outcomes::new(), false);
        }
        let (mut news, places) = (News::default(), self.traffic.places().0);
        let silent = self.traffic.wake(now, &mut news).is_err();
        let outcomes = self.given_up(now, news);
        self.check(places);
        if !silent && self.next_wake().is_some_and(|due| due <= now) {
            self.fail("what is due stays due".to_owned());
        }
        (outcomes, silent)
    }

    /// Breaks the connection.
    pub fn broken(mut self) -> (Outcomes, Option<String>) {
        let mut news = News::default();
        let window = ConcurrencyLimiter::of_size(1, 1);
        let empty = Outbox::new(
            0,
            Publish::Classic,
            ServerClock::new(0, Moment(0)),
            window,
            Moment(0),
        );
        std::mem::replace(&mut self.traffic, empty).broken(&mut news);
        let outcomes = self.taken(news);
        if let Some(call) = self.open.keys().next() {
            self.fail(format!("{call} is not told that the connection is gone"));
        }
        (outcomes, self.wrong)
    }

    /// The calls that were given up for lack of time. Half of their limit must have passed.
    fn given_up(&mut self, now: Moment, news: News) -> Outcomes {
        for input in &news.inputs {
            if let Input::Outcome { call, .. } = input
                && self
                    .open
                    .get(call)
                    .is_some_and(|open| now.after(TURN) < open.handed.after(open.limit / 2))
            {
                self.fail(format!(
                    "{call} was given up before half of its time was over"
                ));
            }
        }
        self.taken(news)
    }

    fn taken(&mut self, news: News) -> Outcomes {
        let mut outcomes = Outcomes::new();
        for input in news.inputs {
            let Input::Outcome { call, outcome } = input else {
                panic!("{input:?} comes from no call")
            };
            match self.end(call) {
                None => self.fail(format!(
                    "{call} has two outcomes, the second is {outcome:?}"
                )),
                Some(open) if open.may_run && matches!(outcome, CallOutcome::NotSent) => {
                    self.fail(format!("{call} is told that it was not sent"));
                }
                Some(_) => {}
            }
            outcomes.push((call, outcome));
        }
        outcomes
    }

    fn end(&mut self, call: CallId) -> Option<Open> {
        let open = self.open.remove(&call)?;
        self.ends.remove(&(open.handed.after(open.limit), call));
        Some(open)
    }

    fn fail(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    /// Checks the counters after a step. `before`: how many places were taken before it.
    fn check(&mut self, before: usize) {
        let (taken, (size, least)) = self.traffic.places();
        let (counted, under_way) = self.traffic.under_way();
        let known = self
            .traffic
            .open()
            .filter(|call| self.open.contains_key(call))
            .count();
        if taken > before.max(size) || size < least {
            self.fail(format!(
                "{taken} calls are under way, of {size}; {before} were before, {least} is least"
            ));
        }
        if counted != under_way {
            self.fail(format!(
                "{counted} calls are counted, {under_way} are under way"
            ));
        }
        if known != self.open.len() || known != self.traffic.open().count() {
            self.fail(format!("of {} calls {known} are known", self.open.len()));
        }
    }
}

fn written(number: u64, command: &Command) -> Written {
    let sort = if let Payload::Batch(sort, _) = &command.load {
        Some(*sort)
    } else {
        None
    };
    let calls = command
        .load
        .sendings()
        .iter()
        .map(|sending| (sending.call, sending.op.clone()))
        .collect();
    let (not_after, deadline, limit, full) = (
        command.not_after,
        command.deadline(),
        command.limit,
        command.full,
    );
    Written {
        number,
        sort,
        calls,
        not_after,
        deadline,
        limit,
        full,
    }
}

/// The answer as the server encodes it.
fn value(to: &Written, server_ms: u64, said: &Said) -> crate::value::Value {
    match (said, to.sort) {
        (Said::Error(text), _) => crate::real::parsed(format!("-{text}\r\n").as_bytes()),
        (Said::Late, Some(sort)) => wire::encode_many(sort, server_ms, &[]),
        (Said::Done(replies), Some(sort)) => wire::encode_many(sort, server_ms, replies),
        (Said::Done(replies), None) => {
            wire::encode(&to.calls[0].1, server_ms, replies[0].as_ref().unwrap())
        }
        (Said::Late, None) => panic!("{to:?} has an answer of its own"),
    }
}

/// Whether `outcome` is what the server answered to this call.
fn is_own(to: &Written, said: &Said, call: CallId, outcome: &CallOutcome) -> bool {
    let Some(at) = to.calls.iter().position(|(one, _)| *one == call) else {
        return false;
    };
    match (said, outcome) {
        (Said::Done(replies), CallOutcome::Answered(reply)) => replies[at].as_ref() == Some(reply),
        (Said::Late, CallOutcome::Answered(reply)) => *reply == Reply::Stale,
        (Said::Error(text), CallOutcome::Refused { error, passing }) => {
            let (code, details) = text.split_once(' ').unwrap();
            let (expected, may_pass) = wire::refusal(code, details);
            (*passing, error.to_string()) == (may_pass, expected.to_string())
                && (may_pass || to.sort.is_none())
        }
        // The call was not executed, and there is no time for another copy.
        (Said::Error(_), CallOutcome::NotSent | CallOutcome::Unanswered) => true,
        (Said::Done(replies), CallOutcome::NotSent | CallOutcome::Unanswered) => {
            replies[at].is_none()
        }
        _ => false,
    }
}
