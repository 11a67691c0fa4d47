//! The command connection. It is made, watched and replaced here, because the connection manager of
//! redis-rs keeps a connection that has fallen silent.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join3;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, RedisResult, Value};

use super::News;
use super::calls::{Outbox, OutgoingCall, Payload};
use super::channels::{self, Said};
use super::connect::{Address, Connected, Pushes, fresh_identity, pause};
use super::inline::Plan;
use super::receive_threshold::ReceiveThreshold;
use super::replies::{self, Replies, Request};
use super::sentinel::Sentinels;
use crate::clock;
use crate::engine::{CallOutcome, Input, LinkId};
use crate::error::{Error, Result};
use crate::moment::Moment;
use crate::options::ClusterPubsub;
use crate::wire::{self, Name, Publish};
use redlatch_proto::connecting::{self, Backoff};
use redlatch_proto::outbox::limiter::ConcurrencyLimiter;

/// The server that a link leads to.
#[derive(Clone)]
pub(super) enum Target {
    /// This server.
    Server(Address),
    /// This node of a cluster. It may redirect to another node.
    Node(Address),
    /// The current primary, as the sentinels name it.
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

    /// The server that a connection of this target leads to.
    pub(super) fn at(&self, server: &Address) -> Target {
        match self {
            Target::Node(_) => Target::Node(server.clone()),
            Target::Server(_) | Target::Primary(_) => Target::Server(server.clone()),
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Target::Server(address) | Target::Node(address) => address.timeout(),
            Target::Primary(sentinels) => sentinels.server().timeout(),
        }
    }
}

/// The settings that all links of a client share.
#[derive(Clone)]
pub(super) struct Manner {
    pub(super) tracking: bool,
    pub(super) uuid: String,
    pub(super) pubsub: ClusterPubsub,
}

/// Keeps one connection to the server and sends calls on it.
///
/// It is driven from outside: [`poll`](Link::poll) when something may have come,
/// [`wake`](Link::wake) when [`next_wake`](Link::next_wake) is reached. It reports what it learns
/// as `News`.
pub(super) struct Link {
    /// How the engine refers to this link.
    id: LinkId,
    target: Target,
    manner: Manner,
    backoff: Backoff,
    state: State,
    /// How many connections have been up.
    generation: u64,
    /// Why there is no client tracking, once that was reported.
    untracked: Option<String>,
    /// The eviction policy (`maxmemory-policy`), once a warning about it was given.
    evicts: Option<String>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Connected>>>>;

enum State {
    Resting { until: Moment },
    Connecting { attempt: Attempt, deadline: Moment },
    Up(Box<Live>),
}

impl Link {
    /// Begins to connect at the first [`poll`](Link::poll).
    pub(super) fn new(id: LinkId, target: Target, manner: Manner) -> Self {
        let state = State::Resting {
            until: Moment::default(),
        };
        let backoff = Backoff::default();
        let mut link = Link {
            id,
            target,
            manner,
            backoff,
            state,
            generation: 0,
            untracked: None,
            evicts: None,
        };
        link.rest();
        link
    }

    /// Sends a call, or reports at once that it cannot be sent.
    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        match &mut self.state {
            State::Up(live) => live.traffic.send(now, sending),
            _ => news.tell(Input::Outcome {
                call: sending.call,
                outcome: CallOutcome::NotSent,
            }),
        }
    }

    /// How releases are published at this server; `None` while it is not connected.
    pub(super) fn publishes(&self) -> Option<Publish> {
        if let State::Up(live) = &self.state {
            Some(live.traffic.publish())
        } else {
            None
        }
    }

    /// A handle of the connection, to ask the server something else.
    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        if let State::Up(live) = &self.state {
            Some(live.connection.clone())
        } else {
            None
        }
    }

    /// The connection and the address of its server, if the server can push messages on it.
    pub(super) fn listening(&self) -> Option<(&Address, &MultiplexedConnection)> {
        let State::Up(live) = &self.state else {
            return None;
        };
        live.pushes
            .as_ref()
            .map(|_| (&live.address, &live.connection))
    }

    /// Takes the pub/sub messages that have come.
    pub(super) fn take_messages(&mut self) -> impl Iterator<Item = Said> {
        let State::Up(live) = &mut self.state else {
            return Vec::new().into_iter();
        };
        std::mem::take(&mut live.messages).into_iter()
    }

    /// The receive threshold of the connection's socket.
    pub(super) fn threshold(&self) -> Option<&Arc<ReceiveThreshold>> {
        let State::Up(live) = &self.state else {
            return None;
        };
        live.pushes.as_ref()?.threshold.as_ref()
    }

    /// When the server was last known to be there. While calls are in flight it is `now`, because
    /// their deadlines decide whether the server is there.
    pub(super) fn vouches(&self, now: Moment) -> Option<Moment> {
        let State::Up(live) = &self.state else {
            return None;
        };
        Some(if live.traffic.is_idle() {
            live.traffic.last_heard()
        } else {
            now
        })
    }

    /// The number of the last connection.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// How to make the inline connection that goes with this connection. `None` while it is down,
    /// and with TLS.
    pub(super) fn direct(&self) -> Option<Plan> {
        let State::Up(live) = &self.state else {
            return None;
        };
        live.address.is_plain().then(|| Plan {
            address: live.address.clone(),
            tracked: self.manner.tracking && self.untracked.is_none(),
            publish: live.traffic.publish(),
            clock: live.traffic.clock(),
            generation: self.generation,
        })
    }

    /// Whether the connection is up and nothing is in flight on it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(&self.state, State::Up(live) if live.traffic.is_idle())
    }

    /// Whether a call is in flight.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.state, State::Up(live) if !live.traffic.is_idle())
    }

    /// The server that the connection leads to, while it is up.
    pub(super) fn server(&self) -> Option<&Address> {
        if let State::Up(live) = &self.state {
            Some(&live.address)
        } else {
            None
        }
    }

    /// Leaves the server for this one.
    pub(super) fn leave_for(&mut self, target: Target, why: &str, news: &mut News) {
        self.target = target;
        self.leave(why, news);
    }

    /// Leaves the server, because it is no longer the one that is wanted.
    pub(super) fn leave(&mut self, why: &str, news: &mut News) {
        match &self.state {
            State::Up(live) => {
                let error = live.address.broken(why);
                self.down(error, news);
            }
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
                    Err(error) => self.down(error, news),
                },
            }
        }
    }

    /// When [`wake`](Link::wake) has to be called, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match &self.state {
            State::Resting { until } => Some(*until),
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Up(live) => live.traffic.next_wake(),
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
                if let Err(silent) = live.traffic.wake(now, news) {
                    let error = live
                        .address
                        .broken(&format!("has been silent for {silent:?}"));
                    self.down(error, news);
                }
            }
        }
    }

    fn connect(&mut self, now: Moment) {
        let attempt = Box::pin(self.target.clone().connect(self.manner.tracking));
        self.state = State::Connecting {
            attempt,
            deadline: now.after(self.target.timeout()),
        };
    }

    fn up(&mut self, connected: Connected, news: &mut News) {
        if let Some(why) = &connected.untracked
            && self.untracked.as_ref() != Some(why)
        {
            news.events.push(connecting::untracked(why));
        }
        self.untracked.clone_from(&connected.untracked);
        if let Some(policy) = connected.evicts.clone()
            && self.evicts.as_ref() != Some(&policy)
        {
            news.events
                .push(connecting::evictable(&connected.address.shown(), &policy));
            self.evicts = Some(policy);
        }
        let mut live = Live::new(self.id, &self.manner, connected);
        let is_node = matches!(self.target, Target::Node(_));
        live.traffic = live.traffic.following_redirects(is_node);
        self.state = State::Up(Box::new(live));
        self.generation += 1;
        news.connects += 1;
        news.tell(Input::Identity(fresh_identity()));
        news.tell(Input::Up(self.id));
    }

    fn failed(&mut self, error: Error, news: &mut News) {
        news.tell(Input::Down(self.id, error));
        self.rest();
    }

    fn down(&mut self, error: Error, news: &mut News) {
        let Some(live) = self.take_live() else { return };
        if live.demoted
            && let Target::Server(address) = &mut self.target
        {
            address.shun(&live.address);
        }
        news.tell(Input::Down(self.id, error));
        self.backoff.ended(live.since.until(clock::now()));
        live.traffic.broken(news);
        self.rest();
    }

    fn take_live(&mut self) -> Option<Live> {
        match std::mem::replace(
            &mut self.state,
            State::Resting {
                until: Moment::default(),
            },
        ) {
            State::Up(live) => Some(*live),
            _ => None,
        }
    }

    /// Waits before the next attempt to connect, or begins it at once if the backoff asks for no
    /// pause.
    fn rest(&mut self) {
        let now = clock::now();
        match pause(&mut self.backoff) {
            Duration::ZERO => self.connect(now),
            pause => {
                self.state = State::Resting {
                    until: now.after(pause),
                }
            }
        }
    }
}

/// A connection that is up.
struct Live {
    address: Address,
    uuid: String,
    connection: MultiplexedConnection,
    pushes: Option<Pushes>,
    /// Pub/sub messages that have come and were not taken yet.
    messages: Vec<Said>,
    traffic: Outbox,
    /// The replies to the written commands, in the same order.
    replies: Replies<()>,
    /// A call that was written. Its memory is reused.
    spare: Option<wire::Call>,
    /// The scripts that were called on this connection.
    called: Vec<wire::ScriptId>,
    since: Moment,
    /// The server is a replica.
    demoted: bool,
}

impl Live {
    fn new(id: LinkId, manner: &Manner, connected: Connected) -> Self {
        let Connected {
            address,
            connection,
            pushes,
            clock,
            sharded,
            ..
        } = connected;
        let now = clock::now();
        Live {
            address,
            uuid: manner.uuid.clone(),
            connection,
            pushes,
            messages: Vec::new(),
            traffic: Outbox::new(
                id,
                manner.pubsub.publish(sharded),
                clock,
                ConcurrencyLimiter::new(),
                now,
            ),
            replies: Replies::new(),
            spare: None,
            called: Vec::new(),
            since: now,
            demoted: false,
        }
    }

    /// Takes in replies and pushes.
    fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) -> Result<()> {
        loop {
            self.traffic.send_gathered();
            while let Poll::Ready(((), result)) = self.poll_replies(cx) {
                let value = result.map_err(|error| self.address.broken_by(&error))?;
                self.demoted |= self
                    .traffic
                    .replied(clock::now(), replies::value(value), news);
            }
            // Calls that are sent now have to be written in this poll as well.
            if !self.traffic.keeps_waiting() || !self.traffic.go_on(clock::now(), news) {
                break;
            }
        }
        self.poll_pushes(cx, news)?;
        // The same address may lead to the new primary by now.
        if self.demoted {
            Err(connecting::demoted(&self.address.shown()))
        } else {
            Ok(())
        }
    }

    /// Writes what is to be sent and polls the next reply. When this returns, every fetched command
    /// is in the hands of the connection.
    fn poll_replies(&mut self, cx: &mut Context<'_>) -> Poll<((), RedisResult<Value>)> {
        let publish = self.traffic.publish();
        loop {
            let others_follow = self.traffic.to_be_fetched() > 1;
            let Some(command) = self.traffic.next_command() else {
                break;
            };
            let (not_after, full) = (command.not_after, command.full);
            // The server would report an unknown script only after `WAIT`, which takes half of the
            // call's time. So the first such call carries the text.
            let waits = command
                .load
                .sendings()
                .iter()
                .any(|sending| sending.op.replicas() > 0);
            let mut text = |script: &wire::Call| {
                let first = is_first(&mut self.called, script.id());
                let full = full || first && (others_follow || waits);
                script.command(full, Cmd::with_capacity, |cmd, word| {
                    cmd.arg(word);
                })
            };
            let request = match &command.load {
                Payload::Single(sending) => {
                    let (op, uuid) = (&sending.op, &self.uuid);
                    let before = self.spare.take();
                    let script = wire::Call::reusing(before, op, uuid, not_after, publish);
                    let request = request(&self.connection, text(&script), sending);
                    self.spare = Some(script);
                    request
                }
                Payload::Batch(sort, sendings) => {
                    let ops = sendings.iter().map(|sending| &*sending.op);
                    plain(
                        &self.connection,
                        text(&wire::Call::many(*sort, ops, &self.uuid, not_after)),
                    )
                }
            };
            self.replies.push((), request);
        }
        self.replies.poll(cx)
    }

    fn poll_pushes(&mut self, cx: &mut Context<'_>, news: &mut News) -> Result<()> {
        let Some(pushes) = &mut self.pushes else {
            return Ok(());
        };
        while let Poll::Ready(push) = pushes.said.poll_recv(cx) {
            match push {
                None
                | Some(PushInfo {
                    kind: PushKind::Disconnection,
                    ..
                }) => {
                    return Err(self.address.broken("was closed"));
                }
                Some(PushInfo {
                    kind: PushKind::Invalidate,
                    data,
                }) => {
                    self.traffic.heard(clock::now());
                    if let Some(names) = invalidated(data) {
                        news.tell(Input::Invalidated(names));
                    }
                }
                Some(push) => {
                    self.traffic.heard(clock::now());
                    self.messages.extend(channels::said(push));
                }
            }
        }
        Ok(())
    }
}

/// Whether this is the first call of a script on a connection. It carries the text of the script if
/// others leave with it: a server that does not know the script would refuse all of them, and each
/// would be sent again with the text. It also carries the text if it waits for replicas.
fn is_first(called: &mut Vec<wire::ScriptId>, script: wire::ScriptId) -> bool {
    let first = !called.contains(&script);
    if first {
        called.push(script);
    }
    first
}

/// The call with `ASKING` right before it and its [`FollowUp`] right behind it, where it needs them.
/// All are handed over in one go, so that nothing comes between them. With a follow-up, the reply is
/// an array of both answers.
fn request(connection: &MultiplexedConnection, command: Cmd, sending: &OutgoingCall) -> Request {
    let follow_up = sending.op.follow_up(sending.limit);
    if !sending.asking && follow_up.is_none() {
        return plain(connection, command);
    }
    let mut lanes = [connection.clone(), connection.clone(), connection.clone()];
    let before = sending.asking.then(|| redis::cmd("ASKING"));
    let behind = follow_up.map(|follow_up| {
        let mut command = Cmd::new();
        command.arg(follow_up.words());
        command
    });
    replies::request(async move {
        let [first, second, third] = &mut lanes;
        let (_, answer, own) = join3(
            optional(first, before.as_ref()),
            second.send_packed_command(&command),
            optional(third, behind.as_ref()),
        )
        .await;
        Ok(match (answer?, own?) {
            (answer, Some(own)) => Value::Array(vec![answer, own]),
            (answer, None) => answer,
        })
    })
}

/// A single command.
fn plain(connection: &MultiplexedConnection, command: Cmd) -> Request {
    let mut lane = connection.clone();
    replies::request(async move { lane.send_packed_command(&command).await })
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

/// The locks among the invalidated keys (inside `None`: all keys, as after `FLUSHALL`). The outer
/// `None`: there is no lock among them.
fn invalidated(data: Vec<Value>) -> Option<Option<Vec<Name>>> {
    let Some(Value::Array(keys)) = data.into_iter().next() else {
        return Some(None);
    };
    let name = |key: &Value| match key {
        Value::BulkString(bytes) => wire::names::name_from_bytes(bytes).ok(),
        _ => None,
    };
    let names: Vec<Name> = keys.iter().filter_map(name).collect();
    (!names.is_empty()).then_some(Some(names))
}
