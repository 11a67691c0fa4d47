//! What is sent on a connection, and what becomes of it: which calls share a command, which wait until the server has
//! answered others, and what each of them is told in the end.
//!
//! A machine without I/O and without a clock, as the engine is: the simulation plays it between the two, with
//! everything that can happen to a connection. Its commands are fetched with [`next_command`](Traffic::next_command);
//! what it has to say is `News`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use super::News;
use super::gathered::{Gathered, Group};
use super::server_clock::ServerClock;
use super::slotmap::{Elsewhere, elsewhere};
use super::window::Window;
use crate::engine::{CallId, Input, LinkId, NOWHERE, Outcome};
use crate::error::Error;
use crate::moment::Moment;
use crate::wire::{self, Op, Publish, Reply, Sort};

/// A connection is not given up before it was silent for this long.
const SILENCE: Duration = Duration::from_millis(500);

/// A call to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) call: CallId,
    pub(super) op: Arc<Op>,
    pub(super) limit: Duration,
    /// How often it was sent elsewhere.
    pub(super) hops: u8,
    /// The node is to serve it although the slot is only on its way there.
    pub(super) asking: bool,
}

/// A node says that another one serves a name; it has done nothing.
pub(super) struct Redirect {
    pub(super) from: LinkId,
    pub(super) to: Elsewhere,
    /// Only for this once: the slot is on its way.
    pub(super) asking: bool,
    /// The call and when its time is over, if that is not over yet.
    pub(super) call: Option<(Sending, Moment)>,
}

/// The calls of one connection.
pub(super) struct Traffic {
    id: LinkId,
    publish: Publish,
    clock: ServerClock,
    /// What is sent at the end of this turn of the engine's thread, several calls in one command.
    gathered: Gathered,
    /// Whether the server takes such commands, as far as is known. It serves all locks: nodes of clusters do not.
    sharing: bool,
    /// Commands without an answer, oldest first: a server answers in their order.
    commands: VecDeque<Command>,
    /// How many of them have been fetched.
    fetched: usize,
    /// How many calls they are for.
    under_way: usize,
    /// What would be too much for the server.
    window: Window,
    /// When something came last.
    heard: Moment,
    /// Nothing has to be done before; it may be too early, never too late.
    due: Option<Moment>,
}

/// A command to be sent, or under way.
pub(super) struct Command {
    pub(super) load: Load,
    pub(super) not_after: u64,
    sent: Moment,
    pub(super) limit: Duration,
    /// The engine has its outcome. The reply is still waited for: it shows that the server lives.
    told: bool,
    /// It is sent with the text of the script.
    pub(super) full: bool,
}

/// What a command does.
pub(super) enum Load {
    One(Sending),
    /// Several calls of this sort.
    Many(Sort, Vec<Sending>),
}

impl Load {
    pub(super) fn sendings(&self) -> &[Sending] {
        match self {
            Load::One(sending) => std::slice::from_ref(sending),
            Load::Many(_, sendings) => sendings,
        }
    }
}

impl Command {
    fn new(load: Load, not_after: u64, sent: Moment, limit: Duration) -> Self {
        Command { load, not_after, sent, limit, told: false, full: false }
    }

    pub(super) fn deadline(&self) -> Moment {
        self.sent.after(self.limit)
    }
}

impl Traffic {
    pub(super) fn new(id: LinkId, publish: Publish, clock: ServerClock, window: Window, now: Moment) -> Self {
        Traffic {
            id,
            publish,
            clock,
            gathered: Gathered::default(),
            sharing: id == NOWHERE,
            commands: VecDeque::new(),
            fetched: 0,
            under_way: 0,
            window,
            heard: now,
            due: None,
        }
    }

    /// How releases are published at this server.
    pub(super) fn publish(&self) -> Publish {
        self.publish
    }

    pub(super) fn clock(&self) -> ServerClock {
        self.clock
    }

    pub(super) fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.gathered.is_empty() && self.window.is_empty()
    }

    /// Whether calls wait until others are answered.
    pub(super) fn keeps_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    /// Sends a call, if that is not too much for the server; else it waits for its turn.
    pub(super) fn send(&mut self, now: Moment, sending: Sending) {
        if self.window.is_empty() && self.is_open() {
            return self.gather(now, sending);
        }
        self.window.push(now, sending);
        self.window.next_wake().into_iter().for_each(|at| self.wake_by(at));
    }

    fn is_open(&self) -> bool {
        self.window.is_open(self.under_way + self.gathered.len())
    }

    /// Sends what has waited for answers to others; true if there was any.
    pub(super) fn go_on(&mut self, now: Moment, news: &mut News) -> bool {
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

    /// What has waited for too long was certainly not done.
    fn give_up_overdue(&mut self, now: Moment, news: &mut News) {
        while let Some(sending) = self.window.overdue(now) {
            tell_undone(&sending, news);
        }
    }

    /// Nor was what has no time left before it could be written.
    fn give_up_unwritten(&mut self, now: Moment, news: &mut News) {
        let unwritten = self.commands.split_off(self.fetched);
        for command in unwritten {
            if now < command.deadline() {
                self.commands.push_back(command);
                continue;
            }
            let sendings = command.load.sendings();
            self.under_way -= sendings.len();
            sendings.iter().for_each(|sending| tell_undone(sending, news));
        }
    }

    fn gather(&mut self, now: Moment, sending: Sending) {
        self.wake_by(now.after(sending.limit));
        // What is for one lock goes in the order of the engine.
        if sending.op.name().is_none_or(|name| self.gathered.has(name)) {
            self.send_gathered();
        }
        let sort = Sort::of(&sending.op, self.publish).filter(|_| self.sharing && !sending.asking);
        match sort {
            Some(sort) => self.gathered.add(now, sort, sending),
            None => self.send_alone(now, sending),
        }
    }

    fn send_alone(&mut self, now: Moment, sending: Sending) {
        let (not_after, limit) = (self.not_after(now, sending.limit), sending.limit);
        self.push(Command::new(Load::One(sending), not_after, now, limit));
    }

    /// By the server's clock, when a call that is sent now has no time any more.
    fn not_after(&self, now: Moment, limit: Duration) -> u64 {
        self.clock.least(now).saturating_add(millis(limit))
    }

    fn push(&mut self, command: Command) {
        self.under_way += command.load.sendings().len();
        self.commands.push_back(command);
    }

    /// Sends what has come together.
    pub(super) fn send_gathered(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        for Group { sort, sent, limit, mut sendings, .. } in self.gathered.take() {
            if sendings.len() == 1 {
                sendings.drain(..).for_each(|sending| self.send_alone(sent, sending));
            } else {
                let not_after = self.not_after(sent, limit);
                self.push(Command::new(Load::Many(sort, sendings), not_after, sent, limit));
            }
        }
    }

    /// How many commands are to be written now.
    pub(super) fn to_be_fetched(&self) -> usize {
        self.commands.len() - self.fetched
    }

    /// The next command to be written. It counts as sent from now on.
    pub(super) fn next_command(&mut self) -> Option<&Command> {
        let command = self.commands.get(self.fetched)?;
        self.fetched += 1;
        Some(command)
    }

    /// Nothing was done for these calls: what is left of their time, they have alone.
    fn send_again(&mut self, sendings: impl IntoIterator<Item = Sending>, deadline: Moment, news: &mut News) {
        let now = self.heard;
        for sending in sendings {
            if now < deadline {
                self.send_alone(now, Sending { limit: now.until(deadline), ..sending });
            } else {
                tell_undone(&sending, news);
            }
        }
    }

    fn wake_by(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The server lives.
    pub(super) fn heard(&mut self, now: Moment) {
        self.heard = now;
    }

    /// When something came last.
    pub(super) fn last_heard(&self) -> Moment {
        self.heard
    }

    /// Takes in the reply to the oldest command that was fetched. True if it says that this is no primary.
    pub(super) fn replied(&mut self, now: Moment, value: Value, news: &mut News) -> bool {
        self.heard(now);
        let Some(mut command) = self.commands.pop_front() else { return false };
        self.fetched = self.fetched.saturating_sub(1);
        let calls = command.load.sendings().len();
        self.under_way -= calls;
        self.window.answered(calls, command.sent, command.limit, now);
        let Value::ServerError(error) = value else {
            self.answered(command, value, news);
            return false;
        };
        if error.code() == "NOSCRIPT" && !command.full {
            if now < command.deadline() {
                command.full = true;
                self.push(command);
            } else if !command.told {
                command.load.sendings().iter().for_each(|sending| tell_undone(sending, news));
            }
            return false;
        }
        let deadline = command.deadline();
        if let Some((to, asking)) = self.redirect(&error) {
            let from = self.id;
            match command.load {
                Load::One(sending) => {
                    let call = (!command.told).then_some((sending, deadline));
                    news.redirects.push(Redirect { from, to, asking, call });
                }
                // Nodes of clusters get none; if they did, nothing was done.
                Load::Many(_, sendings) if !command.told => self.send_again(sendings, deadline, news),
                Load::Many(..) => {}
            }
            return false;
        }
        let (refusal, passing) = wire::refusal(error.code(), error.details().unwrap_or_default());
        match command.load {
            // It has done nothing. Perhaps one lock is to blame, or the user may not do what only such a script
            // does: each gets the answer that it gets alone, and there are no more of them on this connection.
            Load::Many(_, sendings) if !passing && !command.told => {
                self.sharing = false;
                self.send_again(sendings, deadline, news);
            }
            _ => tell(&command, || Outcome::Refused { error: refusal.clone(), passing }, news),
        }
        is_demoted(&error)
    }

    /// Takes in the answer of a script.
    fn answered(&mut self, command: Command, value: Value, news: &mut News) {
        let not_understood = |error: Error| move || Outcome::Refused { error: error.clone(), passing: false };
        match &command.load {
            Load::One(sending) => match wire::decode(&sending.op, value) {
                Ok((server_ms, reply)) => {
                    self.learn(server_ms);
                    if !command.told {
                        news.tell(Input::Outcome { call: sending.call, outcome: Outcome::Answered(reply) });
                    }
                }
                Err(error) => tell(&command, not_understood(error), news),
            },
            Load::Many(sort, sendings) => match wire::decode_many(*sort, sendings.len(), &value) {
                Ok((server_ms, replies)) => {
                    self.learn(server_ms);
                    self.answered_many(command, replies, news);
                }
                Err(error) => tell(&command, not_understood(error), news),
            },
        }
    }

    /// Each lock has its own answer, or has to be seen to alone.
    fn answered_many(&mut self, command: Command, replies: Vec<Option<Reply>>, news: &mut News) {
        let deadline = command.deadline();
        if command.told {
            return;
        }
        let Load::Many(_, sendings) = command.load else { return };
        for (sending, reply) in sendings.into_iter().zip(replies) {
            match reply {
                Some(reply) => {
                    news.tell(Input::Outcome { call: sending.call, outcome: Outcome::Answered(reply) });
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

    /// Where a node of a cluster sends us.
    fn redirect(&self, error: &ServerError) -> Option<(Elsewhere, bool)> {
        let asking = match error.code() {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let to = elsewhere(error.details()?).filter(|_| self.id != NOWHERE)?;
        Some((to, asking))
    }

    /// When [`wake`](Traffic::wake) has to be called, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.due
    }

    /// Gives up calls whose time is over.
    ///
    /// # Errors
    /// For how long the connection has been silent, if that is too long.
    pub(super) fn wake(&mut self, now: Moment, news: &mut News) -> Result<(), Duration> {
        self.due = None;
        // Their time counts from now on as well.
        self.send_gathered();
        self.give_up_overdue(now, news);
        self.give_up_unwritten(now, news);
        for command in &mut self.commands {
            if command.deadline() <= now {
                tell(command, || Outcome::Unanswered, news);
                command.told = true;
            }
        }
        let heard = self.heard;
        let silent = |command: &Command| heard.max(command.sent).after(SILENCE.max(command.limit * 2));
        let too_long = self.commands.iter().map(silent).min();
        if too_long.is_some_and(|at| at <= now) {
            return Err(heard.until(now));
        }
        let deadlines = self.commands.iter().filter(|command| !command.told).map(Command::deadline);
        self.due = deadlines.chain(too_long).chain(self.window.next_wake()).min();
        Ok(())
    }

    /// The connection is gone. What was fetched may have been done; everything else was certainly not.
    pub(super) fn broken(self, news: &mut News) {
        for (at, command) in self.commands.iter().enumerate() {
            let begun = at < self.fetched;
            tell(command, || if begun { Outcome::Unanswered } else { Outcome::NotSent }, news);
        }
        for sending in self.gathered.sendings().chain(self.window.sendings()) {
            news.tell(Input::Outcome { call: sending.call, outcome: Outcome::NotSent });
        }
    }
}

/// Nothing was done, and there is no time left for it. A question, of which nothing can be in doubt, is asked once more.
fn tell_undone(sending: &Sending, news: &mut News) {
    let outcome = match *sending.op {
        Op::Inspect { .. } => Outcome::Unanswered,
        _ => Outcome::NotSent,
    };
    news.tell(Input::Outcome { call: sending.call, outcome });
}

/// Every call has one outcome; all that were done in one command have the same.
fn tell(command: &Command, outcome: impl Fn() -> Outcome, news: &mut News) {
    if !command.told {
        for sending in command.load.sendings() {
            news.tell(Input::Outcome { call: sending.call, outcome: outcome() });
        }
    }
}

/// Whether the server does not take writes because it is a replica.
pub(super) fn is_demoted(error: &ServerError) -> bool {
    // Inside a script, servers before Redis 7 say it in the text of an ERR.
    error.code() == "READONLY" || error.details().is_some_and(|detail| detail.contains("-READONLY"))
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the simulation looks at after every step.
#[cfg(test)]
impl Traffic {
    /// Every call that has no outcome yet, in whatever state it is.
    pub(super) fn open(&self) -> impl Iterator<Item = CallId> {
        let commands = self.commands.iter().filter(|command| !command.told);
        let under_way = commands.flat_map(|command| command.load.sendings());
        under_way.chain(self.gathered.sendings()).chain(self.window.sendings()).map(|sending| sending.call)
    }

    /// The calls that wait until others are answered.
    pub(super) fn waiting(&self) -> impl Iterator<Item = CallId> {
        self.window.sendings().map(|sending| sending.call)
    }

    /// How many calls are with the server as it is counted, and as it is.
    pub(super) fn under_way(&self) -> (usize, usize) {
        (self.under_way, self.commands.iter().map(|command| command.load.sendings().len()).sum())
    }

    /// How many calls take up a place, and how many places there are.
    pub(super) fn places(&self) -> (usize, (usize, usize)) {
        (self.under_way + self.gathered.len(), self.window.sizes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fencing, Form, Kind, Name};

    const LIMIT: Duration = Duration::from_millis(200);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn traffic() -> Traffic {
        let clock = ServerClock::new(5000, at(0));
        Traffic::new(NOWHERE, Publish::Classic, clock, Window::new(), at(0))
    }

    fn acquire(call: CallId) -> Sending {
        let op = Op::Acquire {
            name: Name::from(format!("n{call}")),
            owner: call,
            form: Form::default(),
            count: 1,
            lease: LIMIT * 10,
            fencing: Fencing::Off,
            replicas: 0,
        };
        Sending { call, op: op.into(), limit: LIMIT, hops: 0, asking: false }
    }

    fn inspect(call: CallId) -> Sending {
        let op = Op::Inspect { name: Name::from("n"), kind: Kind::Reentrant };
        Sending { op: op.into(), ..acquire(call) }
    }

    /// The calls of each command that is to be written now, and whether it has the text of its script.
    fn fetched(traffic: &mut Traffic) -> Vec<(Vec<CallId>, bool)> {
        traffic.send_gathered();
        let mut commands = Vec::new();
        while let Some(Command { load, full, .. }) = traffic.next_command() {
            commands.push((load.sendings().iter().map(|sending| sending.call).collect(), *full));
        }
        commands
    }

    fn outcomes(news: News) -> Vec<String> {
        let shown = |input| match input {
            Input::Outcome { call, outcome: Outcome::Answered(_) } => format!("{call} answered"),
            Input::Outcome { call, outcome: Outcome::Refused { .. } } => format!("{call} refused"),
            Input::Outcome { call, outcome } => format!("{call} {outcome:?}"),
            other => format!("{other:?}"),
        };
        news.inputs.into_iter().map(shown).collect()
    }

    fn error(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).expect("an error is a reply")
    }

    #[test]
    fn what_was_written_may_have_been_done_when_the_connection_breaks() {
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
        // Not even that was understood: perhaps it is what several share.
        traffic.replied(at(2), error("-NOSCRIPT never\r\n"), &mut news);
        assert_eq!(fetched(&mut traffic), [(vec![1], false), (vec![2], false), (vec![3], false)]);
        assert!(news.inputs.is_empty());
    }

    /// After a pause of the whole process, say. It could do nothing but hold up what came after it.
    #[test]
    fn what_was_not_done_is_not_sent_again_when_its_time_is_over() {
        for refusal in ["-NOSCRIPT no such script\r\n", "-OOM no memory\r\n"] {
            let (mut traffic, mut news) = (traffic(), News::default());
            (1..=2).for_each(|call| traffic.send(at(0), acquire(call)));
            assert_eq!(fetched(&mut traffic), [(vec![1, 2], false)]);
            traffic.replied(at(200), error(refusal), &mut news);
            assert!(fetched(&mut traffic).is_empty() && traffic.is_idle());
            assert_eq!(outcomes(news), ["1 NotSent", "2 NotSent"]);
        }
    }

    /// A redirect had left it no time, say.
    #[test]
    fn what_had_no_time_before_it_was_written_was_told_and_written_all_the_same() {
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
        assert_eq!(outcomes(std::mem::take(&mut news)), ["1 refused", "2 refused"]);
        (3..=4).for_each(|call| traffic.send(at(2), acquire(call)));
        assert_eq!(fetched(&mut traffic), [(vec![3, 4], false)]);
        traffic.replied(at(3), error("-OOM no memory\r\n"), &mut news);
        assert_eq!(fetched(&mut traffic), [(vec![3], false), (vec![4], false)]);
        assert!(news.inputs.is_empty());
        // A replica is told apart from others that refuse.
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
        assert_eq!(outcomes(std::mem::take(&mut news)), ["1 Unanswered", "2 Unanswered"]);
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
        assert_eq!(traffic.wake(at(600), &mut news), Err(Duration::from_millis(500)));
    }
}
