//! The outbox of a connection: which calls share a command, which wait for the concurrency limiter,
//! and the outcome of each.
//!
//! Like the engine, it has no I/O and no clock. The simulation runs it between the engine and a
//! modelled server, with everything that can happen to a connection. The driver fetches commands
//! with [`next_command`](Outbox::next_command); the outbox reports through `News`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::value::{ServerError, Value};

use super::News;
use super::batcher::{Batch, Batcher};
use super::limiter::ConcurrencyLimiter;
use super::server_clock::ServerClock;
use super::slotmap::{Elsewhere, elsewhere};
use crate::engine::{CallId, CallOutcome, Input, LinkId, STANDALONE};
use crate::error::Error;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{self, BatchKey, Call, Op, Publish, Reply};

/// A call to be sent.
#[derive(Debug)]
pub struct OutgoingCall {
    pub call: CallId,
    pub op: Arc<Op>,
    pub limit: Duration,
    /// How many redirects it has followed.
    pub hops: u8,
    /// To be sent after `ASKING`: the node is importing the slot and refuses other calls for it.
    pub asking: bool,
}

impl OutgoingCall {
    /// The call of an engine's output.
    pub fn of(call: CallId, op: Arc<Op>, limit: Duration) -> OutgoingCall {
        OutgoingCall {
            call,
            op,
            limit,
            hops: 0,
            asking: false,
        }
    }
}

/// A node of a cluster says that another node serves a name. It has not executed the call.
pub struct Redirect {
    pub from: LinkId,
    pub to: Elsewhere,
    /// An `ASK` redirect: it is valid for this call only, because the slot is still moving.
    pub asking: bool,
    /// The call and its deadline, unless the engine already has its outcome.
    pub call: Option<(OutgoingCall, Moment)>,
}

/// The calls of one connection.
pub struct Outbox {
    id: LinkId,
    /// Whether redirects are handed on, to be followed. A redirect refuses the call otherwise.
    follows_redirects: bool,
    publish: Publish,
    clock: ServerClock,
    /// Calls that are sent at the end of this turn of the I/O thread, several in a command.
    gathered: Batcher,
    /// Whether the server accepts batches, as far as is known. A node of a cluster does not: it
    /// serves only some of the locks.
    sharing: bool,
    /// Unanswered commands, oldest first: a server replies in order.
    commands: VecDeque<Command>,
    /// How many of them have been fetched for writing.
    fetched: usize,
    /// How many calls the commands carry.
    under_way: usize,
    /// Holds calls back that would be too much for the server.
    window: ConcurrencyLimiter,
    /// Whether it holds nothing back any more.
    unlimited: bool,
    /// When the server was last heard.
    heard: Moment,
    /// When [`wake`](Outbox::wake) may have work. It may be too early, never too late.
    due: Option<Moment>,
}

/// A command that is to be sent, or is in flight.
pub struct Command {
    pub load: Payload,
    pub not_after: u64,
    sent: Moment,
    pub limit: Duration,
    /// The engine has its outcome. The outbox still waits for the reply: it shows that the server
    /// is alive.
    told: bool,
    /// It carries the source of the script (`EVAL`), not its hash.
    pub full: bool,
}

/// The call or calls of a command.
pub enum Payload {
    Single(OutgoingCall),
    /// Several calls with this batch key.
    Batch(BatchKey, Vec<OutgoingCall>),
}

impl Payload {
    pub fn sendings(&self) -> &[OutgoingCall] {
        match self {
            Payload::Single(sending) => std::slice::from_ref(sending),
            Payload::Batch(_, sendings) => sendings,
        }
    }

    /// The time limit for all of them.
    pub fn limit(&self) -> Duration {
        match self {
            Payload::Single(sending) => sending.limit,
            Payload::Batch(_, sendings) => {
                let limits = sendings.iter().map(|sending| sending.limit);
                limits.min().unwrap_or_default()
            }
        }
    }

    /// Takes in a call for another lock, or gives it back if it cannot share the command. As in the
    /// batcher, no call loses more than half of its limit.
    pub fn join(&mut self, sending: OutgoingCall, publish: Publish) -> Option<OutgoingCall> {
        let own = match self {
            Payload::Single(first) => BatchKey::of(&first.op, publish),
            Payload::Batch(sort, _) => Some(*sort),
        };
        let sort = own.filter(|own| BatchKey::of(&sending.op, publish) == Some(*own));
        let limits = || self.sendings().iter().map(|sending| sending.limit);
        let most = limits().fold(sending.limit, Duration::max);
        let fits = most <= self.limit().min(sending.limit) * 2
            && self.sendings().len() < tuning::BATCH_LOCKS;
        let Some(sort) = sort.filter(|_| fits) else {
            return Some(sending);
        };
        match std::mem::replace(self, Payload::Batch(sort, Vec::new())) {
            Payload::Single(first) => *self = Payload::Batch(sort, vec![first, sending]),
            Payload::Batch(_, mut sendings) => {
                sendings.push(sending);
                *self = Payload::Batch(sort, sendings);
            }
        }
        None
    }

    /// The script call for all of them, in the memory of a finished one.
    pub fn call(&self, spare: Option<Call>, uuid: &str, not_after: u64, publish: Publish) -> Call {
        match self {
            Payload::Single(sending) => Call::reusing(spare, &sending.op, uuid, not_after, publish),
            Payload::Batch(sort, sendings) => {
                let ops = sendings.iter().map(|sending| &*sending.op);
                Call::many(*sort, ops, uuid, not_after)
            }
        }
    }
}

impl Command {
    fn new(load: Payload, not_after: u64, sent: Moment, limit: Duration) -> Self {
        Command {
            load,
            not_after,
            sent,
            limit,
            told: false,
            full: false,
        }
    }

    pub fn deadline(&self) -> Moment {
        self.sent.after(self.limit)
    }
}

impl Outbox {
    pub fn new(
        id: LinkId,
        publish: Publish,
        clock: ServerClock,
        window: ConcurrencyLimiter,
        now: Moment,
    ) -> Self {
        Outbox {
            id,
            follows_redirects: false,
            publish,
            clock,
            gathered: Batcher::default(),
            sharing: id == STANDALONE,
            commands: VecDeque::new(),
            fetched: 0,
            under_way: 0,
            window,
            unlimited: false,
            heard: now,
            due: None,
        }
    }

    /// Sets whether redirects are followed. Only the driver of a cluster can follow them.
    pub fn following_redirects(mut self, yes: bool) -> Self {
        self.follows_redirects = yes;
        self
    }

    /// How releases are published at this server.
    pub fn publish(&self) -> Publish {
        self.publish
    }

    pub fn clock(&self) -> ServerClock {
        self.clock
    }

    pub fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.gathered.is_empty() && self.window.is_empty()
    }

    /// Whether the limiter holds calls back.
    pub fn keeps_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    /// Sends a call if the limiter admits it. Otherwise the call waits.
    pub fn send(&mut self, now: Moment, sending: OutgoingCall) {
        if self.window.is_empty() && self.is_open() {
            return self.gather(now, sending);
        }
        self.window.push(now, sending);
        self.window
            .next_wake()
            .into_iter()
            .for_each(|at| self.wake_by(at));
    }

    /// From now on no call waits for the answers to others: the program ends, and nobody hears them.
    pub fn write_all(&mut self) {
        self.unlimited = true;
    }

    fn is_open(&self) -> bool {
        self.unlimited || self.window.is_open(self.under_way + self.gathered.len())
    }

    /// Sends calls that the limiter held back. Returns whether there were any.
    pub fn go_on(&mut self, now: Moment, news: &mut News) -> bool {
        let mut begun = false;
        self.give_up_overdue(now, news);
        while self.is_open()
            && let Some(sending) = self.window.next(now)
        {
            self.gather(now, sending);
            begun = true;
        }
        begun
    }

    /// Gives up calls that have waited too long. They were certainly not executed.
    fn give_up_overdue(&mut self, now: Moment, news: &mut News) {
        while let Some(sending) = self.window.overdue(now) {
            tell_undone(&sending, news);
        }
    }

    /// Gives up commands that reached their deadline before they were written: certainly not
    /// executed either.
    fn give_up_unwritten(&mut self, now: Moment, news: &mut News) {
        let unwritten = self.commands.split_off(self.fetched);
        for command in unwritten {
            if now < command.deadline() {
                self.commands.push_back(command);
                continue;
            }
            let sendings = command.load.sendings();
            self.under_way -= sendings.len();
            sendings
                .iter()
                .for_each(|sending| tell_undone(sending, news));
        }
    }

    fn gather(&mut self, now: Moment, sending: OutgoingCall) {
        self.wake_by(now.after(sending.limit));
        // Calls for one lock keep the order of the engine: the batched ones become commands first.
        if sending.op.name().is_none_or(|name| self.gathered.has(name)) {
            self.send_gathered();
        }
        let sort =
            BatchKey::of(&sending.op, self.publish).filter(|_| self.sharing && !sending.asking);
        match sort {
            Some(sort) => self.gathered.add(now, sort, sending),
            None => self.send_alone(now, sending),
        }
    }

    fn send_alone(&mut self, now: Moment, sending: OutgoingCall) {
        let (not_after, limit) = (self.not_after(now, sending.limit), sending.limit);
        self.push(Command::new(
            Payload::Single(sending),
            not_after,
            now,
            limit,
        ));
    }

    /// The not-after of a call that is sent now: its deadline on the server's clock.
    fn not_after(&self, now: Moment, limit: Duration) -> u64 {
        self.clock.least(now).saturating_add(millis(limit))
    }

    fn push(&mut self, command: Command) {
        self.under_way += command.load.sendings().len();
        self.commands.push_back(command);
    }

    /// Turns the batched calls into commands.
    pub fn send_gathered(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        for Batch {
            sort,
            sent,
            limit,
            mut sendings,
            ..
        } in self.gathered.take()
        {
            if sendings.len() == 1 {
                sendings
                    .drain(..)
                    .for_each(|sending| self.send_alone(sent, sending));
            } else {
                let not_after = self.not_after(sent, limit);
                self.push(Command::new(
                    Payload::Batch(sort, sendings),
                    not_after,
                    sent,
                    limit,
                ));
            }
        }
    }

    /// The number of commands that are to be written now.
    pub fn to_be_fetched(&self) -> usize {
        self.commands.len() - self.fetched
    }

    /// The next command to be written. It counts as sent from now on.
    pub fn next_command(&mut self) -> Option<&Command> {
        let command = self.commands.get(self.fetched)?;
        self.fetched += 1;
        Some(command)
    }

    /// Sends calls again, each in a command of its own, in the time they have left. The server has
    /// not executed them.
    fn send_again(
        &mut self,
        sendings: impl IntoIterator<Item = OutgoingCall>,
        deadline: Moment,
        news: &mut News,
    ) {
        let now = self.heard;
        for sending in sendings {
            if now < deadline {
                self.send_alone(
                    now,
                    OutgoingCall {
                        limit: now.until(deadline),
                        ..sending
                    },
                );
            } else {
                tell_undone(&sending, news);
            }
        }
    }

    fn wake_by(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Records that the server is alive.
    pub fn heard(&mut self, now: Moment) {
        self.heard = now;
    }

    /// When the server was last heard.
    pub fn last_heard(&self) -> Moment {
        self.heard
    }

    /// Handles the reply to the oldest fetched command. Returns true if the reply says that the
    /// server is no primary.
    pub fn replied(&mut self, now: Moment, value: Value, news: &mut News) -> bool {
        self.heard(now);
        let Some(command) = self.commands.pop_front() else {
            return false;
        };
        self.fetched = self.fetched.saturating_sub(1);
        let calls = command.load.sendings().len();
        self.under_way -= calls;
        self.window
            .answered(calls, command.sent, command.limit, now);
        let value = match &command.load {
            Payload::Single(call) => match call.op.follow_up(call.limit) {
                Some(follow_up) => follow_up.settled(value),
                None => value,
            },
            Payload::Batch(..) => value,
        };
        let Value::ServerError(error) = value else {
            self.answered(command, value, news);
            return false;
        };
        if error.code() == "NOSCRIPT" && !command.full {
            self.send_script(now, command, news);
            return false;
        }
        if let Some(to) = self.redirect(&error) {
            self.redirected(command, to, news);
            return false;
        }
        // The script ran, and the server has become a replica during the `WAIT` behind it.
        if error.code() == "UNBLOCKED" {
            tell(&command, || CallOutcome::Unanswered, news);
            return false;
        }
        let deadline = command.deadline();
        let (refusal, passing) = wire::refusal(error.code(), error.details().unwrap_or_default());
        match command.load {
            // The server has not executed the batch. Perhaps a single lock is the cause, or an ACL
            // denies a command that only batch scripts use. So each call is sent alone and gets its
            // own reply, and this connection sends no more batches.
            Payload::Batch(_, sendings) if !passing && !command.told => {
                self.sharing = false;
                self.send_again(sendings, deadline, news);
            }
            _ => tell(
                &command,
                || CallOutcome::Refused {
                    error: refusal.clone(),
                    passing,
                },
                news,
            ),
        }
        is_demoted(&error)
    }

    /// The server does not know the script: it gets the source.
    fn send_script(&mut self, now: Moment, mut command: Command, news: &mut News) {
        if now < command.deadline() {
            command.full = true;
            self.push(command);
        } else if !command.told {
            let sendings = command.load.sendings();
            sendings
                .iter()
                .for_each(|sending| tell_undone(sending, news));
        }
    }

    /// The server sends a command on to another node.
    fn redirected(&mut self, command: Command, to: (Elsewhere, bool), news: &mut News) {
        let (deadline, from, (to, asking)) = (command.deadline(), self.id, to);
        match command.load {
            Payload::Single(sending) => {
                let call = (!command.told).then_some((sending, deadline));
                news.redirects.push(Redirect {
                    from,
                    to,
                    asking,
                    call,
                });
            }
            // Nodes of clusters get no batches. If one did, it has not executed the batch.
            Payload::Batch(_, sendings) if !command.told => {
                self.send_again(sendings, deadline, news)
            }
            Payload::Batch(..) => {}
        }
    }

    /// Handles the reply of a script.
    fn answered(&mut self, command: Command, value: Value, news: &mut News) {
        let not_understood = |error: Error| {
            move || CallOutcome::Refused {
                error: error.clone(),
                passing: false,
            }
        };
        match &command.load {
            Payload::Single(sending) => match wire::decode(&sending.op, value) {
                Ok((server_ms, reply)) => {
                    self.learn(server_ms);
                    if !command.told {
                        news.tell(Input::Outcome {
                            call: sending.call,
                            outcome: CallOutcome::Answered(reply),
                        });
                    }
                }
                Err(error) => tell(&command, not_understood(error), news),
            },
            Payload::Batch(sort, sendings) => {
                match wire::decode_many(*sort, sendings.len(), &value) {
                    Ok((server_ms, replies)) => {
                        self.learn(server_ms);
                        self.answered_many(command, replies, news);
                    }
                    Err(error) => tell(&command, not_understood(error), news),
                }
            }
        }
    }

    /// Handles the result of each lock in a batch. A lock without a result is sent again alone.
    fn answered_many(&mut self, command: Command, replies: Vec<Option<Reply>>, news: &mut News) {
        let deadline = command.deadline();
        if command.told {
            return;
        }
        let Payload::Batch(_, sendings) = command.load else {
            return;
        };
        for (sending, reply) in sendings.into_iter().zip(replies) {
            match reply {
                Some(reply) => {
                    news.tell(Input::Outcome {
                        call: sending.call,
                        outcome: CallOutcome::Answered(reply),
                    });
                }
                None => self.send_again([sending], deadline, news),
            }
        }
    }

    fn learn(&mut self, server_ms: Option<u64>) {
        if let Some(server_ms) = server_ms {
            self.clock = ServerClock::new(server_ms, self.heard);
        }
    }

    /// The target of a redirect, and whether it is an `ASK`.
    fn redirect(&self, error: &ServerError) -> Option<(Elsewhere, bool)> {
        let asking = match error.code() {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let to = elsewhere(error.details()?).filter(|_| self.follows_redirects)?;
        Some((to, asking))
    }

    /// When [`wake`](Outbox::wake) has to be called, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        self.due
    }

    /// Gives up calls that have reached their deadline.
    ///
    /// # Errors
    /// How long the connection has been silent, if that is too long.
    pub fn wake(&mut self, now: Moment, news: &mut News) -> Result<(), Duration> {
        self.due = None;
        // Batched calls become commands, so that `due` covers their deadlines too.
        self.send_gathered();
        self.give_up_overdue(now, news);
        self.give_up_unwritten(now, news);
        for command in &mut self.commands {
            if command.deadline() <= now {
                tell(command, || CallOutcome::Unanswered, news);
                command.told = true;
            }
        }
        let heard = self.heard;
        let silent = |command: &Command| {
            heard
                .max(command.sent)
                .after(tuning::SILENCE.max(command.limit * 2))
        };
        let too_long = self.commands.iter().map(silent).min();
        if too_long.is_some_and(|at| at <= now) {
            return Err(heard.until(now));
        }
        let deadlines = self
            .commands
            .iter()
            .filter(|command| !command.told)
            .map(Command::deadline);
        self.due = deadlines
            .chain(too_long)
            .chain(self.window.next_wake())
            .min();
        Ok(())
    }

    /// Ends everything because the connection broke. Commands that were fetched may have been
    /// executed; all other calls certainly were not.
    pub fn broken(self, news: &mut News) {
        for (at, command) in self.commands.iter().enumerate() {
            let begun = at < self.fetched;
            tell(
                command,
                || {
                    if begun {
                        CallOutcome::Unanswered
                    } else {
                        CallOutcome::NotSent
                    }
                },
                news,
            );
        }
        for sending in self.gathered.sendings().chain(self.window.sendings()) {
            news.tell(Input::Outcome {
                call: sending.call,
                outcome: CallOutcome::NotSent,
            });
        }
    }
}

/// Reports a call that was not executed and has no time left. An inspection counts as unanswered,
/// so the engine repeats it: it changes nothing, so there is nothing to be in doubt about.
fn tell_undone(sending: &OutgoingCall, news: &mut News) {
    let outcome = match *sending.op {
        Op::Inspect { .. } => CallOutcome::Unanswered,
        _ => CallOutcome::NotSent,
    };
    news.tell(Input::Outcome {
        call: sending.call,
        outcome,
    });
}

/// Reports an outcome for every call of a command, unless that was done before.
fn tell(command: &Command, outcome: impl Fn() -> CallOutcome, news: &mut News) {
    if !command.told {
        for sending in command.load.sendings() {
            news.tell(Input::Outcome {
                call: sending.call,
                outcome: outcome(),
            });
        }
    }
}

/// Whether the server refuses writes because it is a replica.
pub fn is_demoted(error: &ServerError) -> bool {
    wire::code_of(error.code(), error.details().unwrap_or_default()) == "READONLY"
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Views for the simulation, which checks them after every step.
#[cfg(test)]
impl Outbox {
    /// Every call without an outcome, in whatever state.
    pub fn open(&self) -> impl Iterator<Item = CallId> {
        let commands = self.commands.iter().filter(|command| !command.told);
        let under_way = commands.flat_map(|command| command.load.sendings());
        under_way
            .chain(self.gathered.sendings())
            .chain(self.window.sendings())
            .map(|sending| sending.call)
    }

    /// The calls that the limiter holds back.
    pub fn waiting(&self) -> impl Iterator<Item = CallId> {
        self.window.sendings().map(|sending| sending.call)
    }

    /// How many calls are in flight: by the counter, and by counting.
    pub fn under_way(&self) -> (usize, usize) {
        (
            self.under_way,
            self.commands
                .iter()
                .map(|command| command.load.sendings().len())
                .sum(),
        )
    }

    /// How many calls count against the limit, and the limiter's current and least size.
    pub fn places(&self) -> (usize, (usize, usize)) {
        (self.under_way + self.gathered.len(), self.window.sizes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Acquire, Form, Inspection, Kind, Name};

    const LIMIT: Duration = Duration::from_millis(200);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn traffic() -> Outbox {
        let clock = ServerClock::new(5000, at(0));
        Outbox::new(
            STANDALONE,
            Publish::Classic,
            clock,
            ConcurrencyLimiter::new(),
            at(0),
        )
    }

    fn acquire(call: CallId) -> OutgoingCall {
        let op = Op::Acquire(Acquire::of(
            Name::from(format!("n{call}")),
            call,
            Form::default(),
            LIMIT * 10,
        ));
        OutgoingCall {
            call,
            op: op.into(),
            limit: LIMIT,
            hops: 0,
            asking: false,
        }
    }

    fn inspect(call: CallId) -> OutgoingCall {
        let op = Op::Inspect {
            name: Name::from("n"),
            kind: Kind::Reentrant,
            what: Inspection::Owners,
        };
        OutgoingCall {
            op: op.into(),
            ..acquire(call)
        }
    }

    /// The calls of each command to be written now, and whether it carries the source of its
    /// script.
    fn fetched(traffic: &mut Outbox) -> Vec<(Vec<CallId>, bool)> {
        traffic.send_gathered();
        let mut commands = Vec::new();
        while let Some(Command { load, full, .. }) = traffic.next_command() {
            commands.push((
                load.sendings().iter().map(|sending| sending.call).collect(),
                *full,
            ));
        }
        commands
    }

    fn outcomes(news: News) -> Vec<String> {
        let shown = |input| match input {
            Input::Outcome {
                call,
                outcome: CallOutcome::Answered(_),
            } => format!("{call} answered"),
            Input::Outcome {
                call,
                outcome: CallOutcome::Refused { .. },
            } => format!("{call} refused"),
            Input::Outcome { call, outcome } => format!("{call} {outcome:?}"),
            other => format!("{other:?}"),
        };
        news.inputs.into_iter().map(shown).collect()
    }

    fn error(text: &str) -> Value {
        crate::real::parsed(text.as_bytes())
    }

    #[test]
    fn calls_of_one_sort_and_about_the_same_time_are_one_command() {
        let limited = |call, ms| OutgoingCall {
            limit: Duration::from_millis(ms),
            ..acquire(call)
        };
        let mut load = Payload::Single(limited(1, 200));
        assert!(load.join(inspect(2), Publish::Classic).is_some());
        assert!(load.join(limited(3, 120), Publish::Classic).is_none());
        // Neither would the first one keep half of its time, nor this one.
        assert!(load.join(limited(4, 90), Publish::Classic).is_some());
        assert!(load.join(limited(5, 250), Publish::Classic).is_some());
        assert!(matches!(load, Payload::Batch(..)));
        let limits = (load.limit(), load.sendings().len());
        assert_eq!(limits, (Duration::from_millis(120), 2));
        let joined = (6..100).take_while(|call| {
            let back = load.join(limited(*call, 200), Publish::Classic);
            back.is_none()
        });
        assert_eq!(joined.count(), tuning::BATCH_LOCKS - 2);
    }

    #[test]
    fn a_written_call_is_in_doubt_when_the_connection_breaks() {
        let (mut traffic, mut news) = (traffic(), News::default());
        traffic.send(at(0), inspect(1));
        assert_eq!(fetched(&mut traffic), [(vec![1], false)]);
        traffic.send(at(1), inspect(2));
        traffic.send(at(1), acquire(3));
        traffic.broken(&mut news);
        assert_eq!(outcomes(news), ["1 Unanswered", "2 NotSent", "3 NotSent"]);
    }

    #[test]
    fn a_script_that_is_not_known_is_sent_once_with_its_text_for_all() {
        let (mut traffic, mut news) = (traffic(), News::default());
        (1..=3).for_each(|call| traffic.send(at(0), acquire(call)));
        assert_eq!(fetched(&mut traffic), [(vec![1, 2, 3], false)]);
        assert!(!traffic.replied(at(1), error("-NOSCRIPT no such script\r\n"), &mut news));
        assert_eq!(fetched(&mut traffic), [(vec![1, 2, 3], true)]);
        // Even the source was not accepted, so the batch script may be the cause.
        traffic.replied(at(2), error("-NOSCRIPT never\r\n"), &mut news);
        assert_eq!(
            fetched(&mut traffic),
            [(vec![1], false), (vec![2], false), (vec![3], false)]
        );
        assert!(news.inputs.is_empty());
    }

    #[test]
    fn a_wait_for_replicas_that_a_fail_over_ends_is_in_doubt() {
        let (mut traffic, mut news) = (traffic(), News::default());
        traffic.send(at(0), inspect(1));
        assert_eq!(fetched(&mut traffic), [(vec![1], false)]);
        let text = "-UNBLOCKED force unblock from blocking operation, instance state changed\r\n";
        assert!(!traffic.replied(at(1), error(text), &mut news));
        assert_eq!(outcomes(news), ["1 Unanswered"]);
    }

    /// The servers of a quorum have link numbers, as nodes have. Nothing follows their redirects.
    #[test]
    fn a_redirect_refuses_the_call_unless_redirects_are_followed() {
        for link in [STANDALONE, 1] {
            for refused in [true, false] {
                let clock = ServerClock::new(5000, at(0));
                let limiter = ConcurrencyLimiter::new();
                let traffic = Outbox::new(link, Publish::Classic, clock, limiter, at(0));
                let mut traffic = traffic.following_redirects(!refused);
                let mut news = News::default();
                traffic.send(at(0), inspect(1));
                assert_eq!(fetched(&mut traffic), [(vec![1], false)]);
                traffic.replied(at(1), error("-MOVED 1 h:7001\r\n"), &mut news);
                assert_eq!(news.redirects.len(), usize::from(!refused));
                let told: &[&str] = if refused { &["1 refused"] } else { &[] };
                assert_eq!(outcomes(news), told);
            }
        }
    }

    /// This happens when the whole process was paused. A late copy would only delay the calls after
    /// it.
    #[test]
    fn an_undone_call_without_time_is_not_repeated() {
        for refusal in ["-NOSCRIPT no such script\r\n", "-OOM no memory\r\n"] {
            let (mut traffic, mut news) = (traffic(), News::default());
            (1..=2).for_each(|call| traffic.send(at(0), acquire(call)));
            assert_eq!(fetched(&mut traffic), [(vec![1, 2], false)]);
            traffic.replied(at(200), error(refusal), &mut news);
            assert!(fetched(&mut traffic).is_empty() && traffic.is_idle());
            assert_eq!(outcomes(news), ["1 NotSent", "2 NotSent"]);
        }
    }

    /// This happens when a redirect has used up the time.
    #[test]
    fn a_call_without_time_is_not_written() {
        let (mut traffic, mut news) = (traffic(), News::default());
        (1..=2).for_each(|call| traffic.send(at(0), acquire(call)));
        assert_eq!(traffic.wake(at(200), &mut news), Ok(()));
        assert_eq!(outcomes(news), ["1 NotSent", "2 NotSent"]);
        assert!(fetched(&mut traffic).is_empty() && traffic.is_idle());
    }

    #[test]
    fn each_is_done_alone_when_all_are_refused_and_told_when_that_passes() {
        let (mut traffic, mut news) = (traffic(), News::default());
        (1..=2).for_each(|call| traffic.send(at(0), acquire(call)));
        assert_eq!(fetched(&mut traffic), [(vec![1, 2], false)]);
        traffic.replied(at(1), error("-BUSY a script runs\r\n"), &mut news);
        assert_eq!(
            outcomes(std::mem::take(&mut news)),
            ["1 refused", "2 refused"]
        );
        (3..=4).for_each(|call| traffic.send(at(2), acquire(call)));
        assert_eq!(fetched(&mut traffic), [(vec![3, 4], false)]);
        traffic.replied(at(3), error("-OOM no memory\r\n"), &mut news);
        assert_eq!(fetched(&mut traffic), [(vec![3], false), (vec![4], false)]);
        assert!(news.inputs.is_empty());
        // The error of a replica is distinguished from other refusals.
        assert!(traffic.replied(at(4), error("-READONLY a replica\r\n"), &mut news));
        assert_eq!(outcomes(news), ["3 refused"]);
    }

    #[test]
    fn a_reply_that_comes_too_late_is_waited_for_and_tells_nobody() {
        let (mut traffic, mut news) = (traffic(), News::default());
        (1..=2).for_each(|call| traffic.send(at(0), acquire(call)));
        fetched(&mut traffic);
        assert_eq!(traffic.next_wake(), Some(at(200)));
        assert_eq!(traffic.wake(at(200), &mut news), Ok(()));
        assert_eq!(
            outcomes(std::mem::take(&mut news)),
            ["1 Unanswered", "2 Unanswered"]
        );
        assert!(!traffic.is_idle());
        traffic.replied(at(201), error("-NOSCRIPT no such script\r\n"), &mut news);
        assert!(traffic.is_idle() && news.inputs.is_empty() && fetched(&mut traffic).is_empty());
    }

    #[test]
    fn a_connection_is_silent_when_nothing_comes_for_half_a_second() {
        let (mut traffic, mut news) = (traffic(), News::default());
        traffic.send(at(0), inspect(1));
        fetched(&mut traffic);
        traffic.heard(at(100));
        assert_eq!(traffic.wake(at(599), &mut news), Ok(()));
        assert_eq!(traffic.next_wake(), Some(at(600)));
        assert_eq!(
            traffic.wake(at(600), &mut news),
            Err(Duration::from_millis(500))
        );
    }
}
