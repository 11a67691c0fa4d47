//! The command connection: made, watched and replaced here, because redis-rs' own manager keeps a
//! connection that has fallen silent.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join3;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, RedisResult, ServerError, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use super::News;
use super::connect::{Address, Backoff, Connected};
use super::direct::Plan;
use super::gathered::{Gathered, Group};
use super::replies::{self, Replies, Request};
use super::sentinel::Sentinels;
use super::server_clock::ServerClock;
use super::slotmap::{Elsewhere, elsewhere};
use super::window::Window;
use crate::clock;
use crate::engine::{CallId, Input, LinkId, NOWHERE, Outcome};
use crate::error::{Error, Result};
use crate::event::{Event, Level};
use crate::moment::Moment;
use crate::options::ClusterPubsub;
use crate::wire::{self, Name, Op, Publish, Reply, Sort};

/// A connection is not given up before it was silent for this long.
const SILENCE: Duration = Duration::from_millis(500);

/// Whom a link leads to.
#[derive(Clone)]
pub(super) enum Target {
    /// This server.
    Server(Address),
    /// This node of a cluster, which may say that another one serves a name.
    Node(Address),
    /// Whoever is the primary.
    Primary(Rc<Sentinels>),
}

impl Target {
    async fn connect(self, tracking: bool) -> Result<Connected> {
        match self {
            Target::Server(address) => address.commands(tracking).await,
            Target::Node(address) => address.node(tracking).await,
            Target::Primary(sentinels) => sentinels.connect(tracking).await,
        }
    }

    fn late(&self) -> Error {
        match self {
            Target::Server(address) | Target::Node(address) => address.late(),
            Target::Primary(sentinels) => sentinels.late(),
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Target::Server(address) | Target::Node(address) => address.timeout(),
            Target::Primary(sentinels) => sentinels.server().timeout(),
        }
    }
}

/// What all links of a client have in common.
#[derive(Clone)]
pub(super) struct Manner {
    pub(super) tracking: bool,
    pub(super) uuid: String,
    pub(super) pubsub: ClusterPubsub,
}

/// A call to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) call: CallId,
    pub(super) op: Op,
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

/// Keeps one connection to the server and sends calls on it.
///
/// It is driven from outside: [`poll`](Link::poll) when something may have come,
/// [`wake`](Link::wake) when [`next_wake`](Link::next_wake) is reached. What it learns is `News`.
pub(super) struct Link {
    /// What the engine calls it.
    id: LinkId,
    target: Target,
    manner: Manner,
    backoff: Backoff,
    state: State,
    /// How often it was up.
    generation: u64,
    /// Why the server does not track, once that was told.
    untracked: Option<String>,
    /// The policy of eviction, once it was warned of.
    evicts: Option<String>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Connected>>>>;

enum State {
    Resting { until: Moment },
    Connecting { attempt: Attempt, deadline: Moment },
    Up(Box<Live>),
}

/// A connection that was up has to be replaced.
struct Broken {
    /// Why, for people.
    why: String,
    /// The call that found out.
    last: Option<Box<Waiting>>,
}

impl From<String> for Broken {
    fn from(why: String) -> Self {
        Broken { why, last: None }
    }
}

impl Link {
    /// Begins to connect at the first [`poll`](Link::poll).
    pub(super) fn new(id: LinkId, target: Target, manner: Manner) -> Self {
        let state = State::Resting { until: Moment::default() };
        let backoff = Backoff::default();
        let mut link =
            Link { id, target, manner, backoff, state, generation: 0, untracked: None, evicts: None };
        link.rest();
        link
    }

    /// Sends a call, or says at once that it cannot be sent.
    pub(super) fn send(&mut self, now: Moment, sending: Sending, news: &mut News) {
        match &mut self.state {
            State::Up(live) => live.send(now, sending),
            _ => news.tell(Input::Outcome { call: sending.call, outcome: Outcome::NotSent }),
        }
    }

    /// How releases are published at this server, while that is known.
    pub(super) fn publishes(&self) -> Option<Publish> {
        if let State::Up(live) = &self.state { Some(live.publish) } else { None }
    }

    /// A way to ask the server something else.
    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        if let State::Up(live) = &self.state { Some(live.connection.clone()) } else { None }
    }

    /// Which of its connections is the last one.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// How to make the connection for calls of blocked callers that goes with this one.
    pub(super) fn direct(&self) -> Option<Plan> {
        let State::Up(live) = &self.state else { return None };
        live.address.is_plain().then(|| Plan {
            address: live.address.clone(),
            tracked: self.manner.tracking && self.untracked.is_none(),
            publish: live.publish,
            clock: live.clock,
            generation: self.generation,
        })
    }

    /// Whether the connection is up and nothing is under way on it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(&self.state, State::Up(live) if live.is_idle())
    }

    /// Whether something is under way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.state, State::Up(live) if !live.is_idle())
    }

    /// The server that the connection leads to, while it is up.
    pub(super) fn server(&self) -> Option<&Address> {
        if let State::Up(live) = &self.state { Some(&live.address) } else { None }
    }

    /// The server is not the one that is wanted any more.
    pub(super) fn leave(&mut self, why: &str, news: &mut News) {
        match self.state {
            State::Up(_) => self.down(Broken::from(why.to_owned()), news),
            State::Connecting { .. } | State::Resting { .. } => self.connect(clock::now()),
        }
    }

    /// Takes in everything that has come.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        loop {
            match &mut self.state {
                State::Resting { .. } => return,
                State::Connecting { attempt, .. } => match attempt.as_mut().poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(connected)) => self.up(connected, news),
                    Poll::Ready(Err(error)) => self.failed(error, news),
                },
                State::Up(live) => match live.poll(cx, news) {
                    Ok(()) => return,
                    Err(broken) => self.down(broken, news),
                },
            }
        }
    }

    /// When [`wake`](Link::wake) has to be called, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match &self.state {
            State::Resting { until } => Some(*until),
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Up(live) => live.due,
        }
    }

    /// Does what is due at `now`.
    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        if self.next_wake().is_none_or(|due| now < due) {
            return;
        }
        match &mut self.state {
            State::Resting { .. } => self.connect(now),
            State::Connecting { .. } => self.failed(self.target.late(), news),
            State::Up(live) => {
                if let Err(broken) = live.wake(now, news) {
                    self.down(broken, news);
                }
            }
        }
    }

    fn connect(&mut self, now: Moment) {
        let attempt = Box::pin(self.target.clone().connect(self.manner.tracking));
        self.state = State::Connecting { attempt, deadline: now.after(self.target.timeout()) };
    }

    fn up(&mut self, connected: Connected, news: &mut News) {
        if let Some(why) = &connected.untracked
            && self.untracked.as_ref() != Some(why)
        {
            let text =
                format!("losses are noticed at renewals only, because the server does not track: {why}");
            news.events.push(Event { kind: "untracked", level: Level::Debug, lock: None, text });
        }
        self.untracked.clone_from(&connected.untracked);
        if let Some(policy) = connected.evicts.clone()
            && self.evicts.as_ref() != Some(&policy)
        {
            let text = format!(
                "{}: the server may take locks away when its memory is full (maxmemory-policy {policy}); set it \
                 to noeviction, or keep locks on a server of their own",
                connected.address.shown()
            );
            news.events.push(Event { kind: "evictable", level: Level::Warn, lock: None, text });
            self.evicts = Some(policy);
        }
        self.state = State::Up(Box::new(Live::new(self.id, &self.manner, connected)));
        self.generation += 1;
        news.connects += 1;
        news.tell(Input::Up(self.id));
    }

    fn failed(&mut self, error: Error, news: &mut News) {
        news.tell(Input::Down(self.id, error));
        self.rest();
    }

    fn down(&mut self, Broken { why, last }: Broken, news: &mut News) {
        let Some(live) = self.take_live() else { return };
        news.tell(Input::Down(self.id, live.address.broken(&why)));
        self.backoff.ended(live.since.until(clock::now()));
        let last = last.map(|waiting| (*waiting, true));
        for (waiting, begun) in last.into_iter().chain(live.replies.abandon()) {
            tell(&waiting, || if begun { Outcome::Unanswered } else { Outcome::NotSent }, news);
        }
        for sending in live.gathered.sendings().chain(live.window.sendings()) {
            news.tell(Input::Outcome { call: sending.call, outcome: Outcome::NotSent });
        }
        self.rest();
    }

    fn take_live(&mut self) -> Option<Live> {
        match std::mem::replace(&mut self.state, State::Resting { until: Moment::default() }) {
            State::Up(live) => Some(*live),
            _ => None,
        }
    }

    /// Waits for the turn of the next attempt; when that is now, begins it.
    fn rest(&mut self) {
        let now = clock::now();
        match self.backoff.pause() {
            Duration::ZERO => self.connect(now),
            pause => self.state = State::Resting { until: now.after(pause) },
        }
    }
}

/// A connection that is up.
struct Live {
    id: LinkId,
    address: Address,
    uuid: String,
    publish: Publish,
    connection: MultiplexedConnection,
    pushes: Option<UnboundedReceiver<PushInfo>>,
    clock: ServerClock,
    /// What is sent at the next poll, several calls in one command.
    gathered: Gathered,
    /// Whether the server takes such commands, as far as is known. It serves all locks: nodes of clusters do not.
    sharing: bool,
    replies: Replies<Waiting>,
    /// How many calls those are.
    under_way: usize,
    /// A call that was written, for its memory.
    spare: Option<wire::Call>,
    /// What would be too much for the server.
    window: Window,
    since: Moment,
    /// When something came last.
    heard: Moment,
    /// Nothing has to be done before; it may be too early, never too late.
    due: Option<Moment>,
}

/// A command under way.
struct Waiting {
    load: Load,
    not_after: u64,
    sent: Moment,
    limit: Duration,
    /// The engine has its outcome. The reply is still waited for: it shows that the server lives.
    told: bool,
    /// It was sent with the text of the script.
    full: bool,
}

/// What a command does.
enum Load {
    One(Sending),
    /// Several calls of this sort.
    Many(Sort, Vec<Sending>),
}

impl Load {
    fn sendings(&self) -> &[Sending] {
        match self {
            Load::One(sending) => std::slice::from_ref(sending),
            Load::Many(_, sendings) => sendings,
        }
    }
}

impl Waiting {
    fn deadline(&self) -> Moment {
        self.sent.after(self.limit)
    }

    /// The call that was sent, made once more: hardly any needs to be, and many may be under way.
    fn script(&self, uuid: &str, publish: Publish) -> wire::Call {
        match &self.load {
            Load::One(sending) => wire::Call::new(&sending.op, uuid, self.not_after, publish),
            Load::Many(sort, sendings) => {
                wire::Call::many(*sort, sendings.iter().map(|sending| &sending.op), uuid, self.not_after)
            }
        }
    }
}

impl Live {
    fn new(id: LinkId, manner: &Manner, connected: Connected) -> Self {
        let Connected { address, connection, pushes, clock, sharded, .. } = connected;
        let now = clock::now();
        Live {
            id,
            address,
            uuid: manner.uuid.clone(),
            publish: manner.pubsub.publish(sharded),
            connection,
            pushes,
            clock,
            gathered: Gathered::default(),
            sharing: id == NOWHERE,
            replies: Replies::new(),
            under_way: 0,
            spare: None,
            window: Window::new(),
            since: now,
            heard: now,
            due: None,
        }
    }

    fn is_idle(&self) -> bool {
        self.replies.is_empty() && self.gathered.is_empty() && self.window.is_empty()
    }

    /// Sends a call, if that is not too much for the server; else it waits for its turn.
    fn send(&mut self, now: Moment, sending: Sending) {
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
    fn go_on(&mut self, news: &mut News) -> bool {
        if self.window.is_empty() {
            return false;
        }
        let (now, mut begun) = (clock::now(), false);
        self.give_up_overdue(now, news);
        while self.is_open()
            && let Some(sending) = self.window.next(now)
        {
            self.gather(now, sending);
            begun = true;
        }
        begun
    }

    /// What has waited for too long was certainly not done. A question, of which nothing can be in doubt, is
    /// asked once more.
    fn give_up_overdue(&mut self, now: Moment, news: &mut News) {
        while let Some(sending) = self.window.overdue(now) {
            let outcome = match sending.op {
                Op::Inspect { .. } => Outcome::Unanswered,
                _ => Outcome::NotSent,
            };
            news.tell(Input::Outcome { call: sending.call, outcome });
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
        let not_after = self.clock.least(now).saturating_add(millis(sending.limit));
        let script = match self.spare.take() {
            Some(before) => wire::Call::reusing(before, &sending.op, &self.uuid, not_after, self.publish),
            None => wire::Call::new(&sending.op, &self.uuid, not_after, self.publish),
        };
        let request = request(&self.connection, script.evalsha(), &sending);
        self.spare = Some(script);
        let limit = sending.limit;
        let load = Load::One(sending);
        self.push(Waiting { load, not_after, sent: now, limit, told: false, full: false }, request);
    }

    fn push(&mut self, waiting: Waiting, request: Request) {
        self.under_way += waiting.load.sendings().len();
        self.replies.push(waiting, request);
    }

    /// Sends what has come together.
    fn send_gathered(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        for Group { sort, sent, limit, mut sendings, .. } in self.gathered.take() {
            if sendings.len() == 1 {
                sendings.drain(..).for_each(|sending| self.send_alone(sent, sending));
                continue;
            }
            let not_after = self.clock.least(sent).saturating_add(millis(limit));
            let ops = sendings.iter().map(|sending| &sending.op);
            let script = wire::Call::many(sort, ops, &self.uuid, not_after);
            let request = plain(&self.connection, script.evalsha());
            let load = Load::Many(sort, sendings);
            self.push(Waiting { load, not_after, sent, limit, told: false, full: false }, request);
        }
    }

    /// Nothing was done for these calls: what is left of their time, they have alone.
    fn send_again(&mut self, sendings: impl IntoIterator<Item = Sending>, deadline: Moment) {
        let now = clock::now();
        let limit = now.until(deadline);
        sendings.into_iter().for_each(|sending| self.send_alone(now, Sending { limit, ..sending }));
    }

    fn wake_by(&mut self, at: Moment) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Takes in replies and pushes.
    fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) -> Result<(), Broken> {
        let mut demoted = false;
        loop {
            self.send_gathered();
            while let Poll::Ready((waiting, result)) = self.replies.poll(cx) {
                match result {
                    Ok(value) => demoted |= self.replied(waiting, value, news),
                    Err(error) => {
                        let why = format!("broke ({error})");
                        return Err(Broken { why, last: Some(Box::new(waiting)) });
                    }
                }
            }
            // What was begun now has to be polled once, too.
            if !self.go_on(news) {
                break;
            }
        }
        self.poll_pushes(cx, news)?;
        // The address may lead to the new primary by now.
        if demoted { Err(Broken::from("leads to a replica".to_owned())) } else { Ok(()) }
    }

    /// Takes in a reply. True if it says that this is no primary.
    fn replied(&mut self, mut waiting: Waiting, value: Value, news: &mut News) -> bool {
        self.heard = clock::now();
        let calls = waiting.load.sendings().len();
        self.under_way -= calls;
        self.window.answered(calls, waiting.sent, waiting.limit, self.heard);
        let Value::ServerError(error) = value else {
            self.answered(waiting, value, news);
            return false;
        };
        if error.code() == "NOSCRIPT" && !waiting.full {
            if !waiting.told {
                waiting.full = true;
                let script = waiting.script(&self.uuid, self.publish);
                let request = match &waiting.load {
                    Load::One(sending) => request(&self.connection, script.eval(), sending),
                    Load::Many(..) => plain(&self.connection, script.eval()),
                };
                self.push(waiting, request);
            }
            return false;
        }
        let deadline = waiting.deadline();
        if let Some((to, asking)) = self.redirect(&error) {
            let from = self.id;
            match waiting.load {
                Load::One(sending) => {
                    let call = (!waiting.told).then_some((sending, deadline));
                    news.redirects.push(Redirect { from, to, asking, call });
                }
                // Nodes of clusters get none; if they did, nothing was done.
                Load::Many(_, sendings) => self.send_again(sendings, deadline),
            }
            return false;
        }
        let (refusal, passing) = wire::refusal(error.code(), error.details().unwrap_or_default());
        match waiting.load {
            // It has done nothing. Perhaps one lock is to blame, or the user may not do what only such a script
            // does: each gets the answer that it gets alone, and there are no more of them on this connection.
            Load::Many(_, sendings) if !passing && !waiting.told => {
                self.sharing = false;
                self.send_again(sendings, deadline);
            }
            _ => tell(&waiting, || Outcome::Refused { error: refusal.clone(), passing }, news),
        }
        is_demoted(&error)
    }

    /// Takes in the answer of a script.
    fn answered(&mut self, waiting: Waiting, value: Value, news: &mut News) {
        let not_understood = |error: Error| move || Outcome::Refused { error: error.clone(), passing: false };
        match &waiting.load {
            Load::One(sending) => match wire::decode(&sending.op, value) {
                Ok((server_ms, reply)) => {
                    self.learn(server_ms);
                    if !waiting.told {
                        news.tell(Input::Outcome { call: sending.call, outcome: Outcome::Answered(reply) });
                    }
                }
                Err(error) => tell(&waiting, not_understood(error), news),
            },
            Load::Many(sort, sendings) => match wire::decode_many(*sort, sendings.len(), &value) {
                Ok((server_ms, replies)) => {
                    self.learn(server_ms);
                    self.answered_many(waiting, replies, news);
                }
                Err(error) => tell(&waiting, not_understood(error), news),
            },
        }
    }

    /// Each lock has its own answer, or has to be seen to alone.
    fn answered_many(&mut self, waiting: Waiting, replies: Vec<Option<Reply>>, news: &mut News) {
        let deadline = waiting.deadline();
        if waiting.told {
            return;
        }
        let Load::Many(_, sendings) = waiting.load else { return };
        for (sending, reply) in sendings.into_iter().zip(replies) {
            match reply {
                Some(reply) => {
                    news.tell(Input::Outcome { call: sending.call, outcome: Outcome::Answered(reply) });
                }
                None => self.send_again([sending], deadline),
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

    fn poll_pushes(&mut self, cx: &mut Context<'_>, news: &mut News) -> Result<(), Broken> {
        let Some(pushes) = &mut self.pushes else { return Ok(()) };
        while let Poll::Ready(push) = pushes.poll_recv(cx) {
            match push {
                None | Some(PushInfo { kind: PushKind::Disconnection, .. }) => {
                    return Err(Broken::from("was closed".to_owned()));
                }
                Some(PushInfo { kind: PushKind::Invalidate, data }) => {
                    self.heard = clock::now();
                    if let Some(names) = invalidated(data) {
                        news.tell(Input::Invalidated(names));
                    }
                }
                Some(_) => self.heard = clock::now(),
            }
        }
        Ok(())
    }

    /// Gives up calls whose time is over, and the connection if it has been silent for too long.
    fn wake(&mut self, now: Moment, news: &mut News) -> Result<(), Broken> {
        self.due = None;
        self.give_up_overdue(now, news);
        for waiting in self.replies.iter_mut() {
            if waiting.deadline() <= now {
                tell(waiting, || Outcome::Unanswered, news);
                waiting.told = true;
            }
        }
        let heard = self.heard;
        let silent = |waiting: &Waiting| heard.max(waiting.sent).after(SILENCE.max(waiting.limit * 2));
        let too_long = self.replies.iter().map(silent).min();
        if too_long.is_some_and(|at| at <= now) {
            return Err(Broken::from(format!("has been silent for {:?}", heard.until(now))));
        }
        let deadlines = self.replies.iter().filter(|waiting| !waiting.told).map(Waiting::deadline);
        self.due = deadlines.chain(too_long).chain(self.window.next_wake()).min();
        Ok(())
    }
}

/// The call with what has to stand right before and behind it: all is handed over in one go. Behind it
/// is the question how many replicas have it; then there are two answers in an array.
fn request(connection: &MultiplexedConnection, command: Cmd, sending: &Sending) -> Request {
    if !sending.asking && sending.op.replicas() == 0 {
        return plain(connection, command);
    }
    let mut lanes = [connection.clone(), connection.clone(), connection.clone()];
    let before = sending.asking.then(|| redis::cmd("ASKING"));
    let behind = wait(sending);
    replies::request(async move {
        let [first, second, third] = &mut lanes;
        let (_, answer, acknowledged) = join3(
            optional(first, before.as_ref()),
            second.send_packed_command(&command),
            optional(third, behind.as_ref()),
        )
        .await;
        Ok(match (answer?, acknowledged?) {
            (refusal @ Value::ServerError(_), _) | (_, Some(refusal @ Value::ServerError(_))) => refusal,
            (answer, Some(acknowledged)) => Value::Array(vec![answer, acknowledged]),
            (answer, None) => answer,
        })
    })
}

/// A command and nothing else.
fn plain(connection: &MultiplexedConnection, command: Cmd) -> Request {
    let mut lane = connection.clone();
    replies::request(async move { lane.send_packed_command(&command).await })
}

/// Waits for replicas for half of the time that the call has.
fn wait(sending: &Sending) -> Option<Cmd> {
    let replicas = sending.op.replicas();
    let mut command = redis::cmd("WAIT");
    command.arg(replicas).arg(millis(sending.limit / 2).max(1));
    (replicas > 0).then_some(command)
}

async fn optional(
    connection: &mut MultiplexedConnection,
    command: Option<&Cmd>,
) -> RedisResult<Option<Value>> {
    match command {
        Some(command) => connection.send_packed_command(command).await.map(Some),
        None => Ok(None),
    }
}

/// Every call has one outcome; all that were done in one command have the same.
fn tell(waiting: &Waiting, outcome: impl Fn() -> Outcome, news: &mut News) {
    if !waiting.told {
        for sending in waiting.load.sendings() {
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

/// The locks among the changed keys (inside `None`: all keys); `None` if there is no lock among them.
fn invalidated(data: Vec<Value>) -> Option<Option<Vec<Name>>> {
    let Some(Value::Array(keys)) = data.into_iter().next() else { return Some(None) };
    let name = |key: &Value| match key {
        Value::BulkString(bytes) => wire::names::name_from_bytes(bytes).ok(),
        _ => None,
    };
    let names: Vec<Name> = keys.iter().filter_map(name).collect();
    (!names.is_empty()).then_some(Some(names))
}
