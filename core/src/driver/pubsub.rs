//! Pub/sub: one connection for all channels.
//!
//! With RESP3 and a single server it is the command connection. The server then sends the
//! invalidation of the key and the release message together, which wakes the I/O thread once.
//! Otherwise it is a connection of its own, opened when the first channel is wanted.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::News;
use super::channels::{Channels, Reach, Said};
use super::connect::{Address, pause};
use super::replies::{self, Replies};
use crate::clock;
use crate::engine::Input;
use crate::error::{Error, Result};
use crate::moment::Moment;
use crate::wire::{Name, Topic, names};
use redlatch_proto::connecting::{self, Backoff};
use redlatch_proto::outbox::wanted::Wanted;
use redlatch_proto::tuning;

/// Keeps the wanted channels subscribed. Driven from outside like a `Link`.
pub(super) struct Subscriptions {
    /// The client's, which is a part of its waiters' channels.
    uuid: String,
    /// Servers that send the same messages; one of them is subscribed to. Empty until one is known.
    addresses: Vec<Address>,
    reach: Reach,
    /// The index of the server whose turn it is.
    turn: usize,
    /// The channels to subscribe, and the locks they belong to.
    wanted: Wanted,
    backoff: Backoff,
    state: State,
    /// Whether an event has reported that messages are missing.
    told: bool,
    /// The texts of the messages, if they are of interest.
    payloads: Option<Vec<String>>,
    /// Messages arrive on the command connection, so no other one is made.
    shared: bool,
    /// The generation of that command connection, while it is up.
    generation: Option<u64>,
    /// Why the command connection has to be replaced, if it brings no messages any more.
    useless: Option<&'static str>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Channels>>>>;

enum State {
    /// No connection: no channel is wanted, no server is known, or the shared command connection is
    /// down.
    Closed,
    Resting {
        until: Moment,
    },
    Connecting {
        address: Box<Address>,
        attempt: Attempt,
        deadline: Moment,
    },
    Up(Box<Live>),
}

impl Subscriptions {
    pub(super) fn new(addresses: Vec<Address>, reach: Reach, uuid: &str) -> Self {
        Subscriptions {
            uuid: uuid.to_owned(),
            addresses,
            reach,
            turn: 0,
            wanted: Wanted::default(),
            backoff: Backoff::default(),
            state: State::Closed,
            told: false,
            payloads: None,
            shared: false,
            generation: None,
            useless: None,
        }
    }

    /// The same, but keeps the texts of the messages.
    pub(super) fn with_payloads(self) -> Self {
        Subscriptions {
            payloads: Some(Vec::new()),
            ..self
        }
    }

    pub(super) fn take_payloads(&mut self) -> Vec<String> {
        self.payloads
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Subscribes at one of these servers from now on.
    pub(super) fn follow(&mut self, addresses: Vec<Address>) {
        let stays = self
            .address()
            .is_some_and(|now| addresses.iter().any(|address| address.is_same(now)));
        if let Some(place) = self
            .address()
            .and_then(|now| addresses.iter().position(|at| at.is_same(now)))
        {
            self.turn = place;
        }
        self.addresses = addresses;
        if !stays {
            self.backoff = Backoff::default();
            self.state = State::Closed;
            if !self.wanted.is_empty() {
                self.rest();
            }
        }
    }

    /// Subscribes on the command connection from now on, as long as it is of this generation.
    pub(super) fn share(
        &mut self,
        generation: u64,
        address: &Address,
        connection: &MultiplexedConnection,
        news: &mut News,
    ) {
        if self.generation != Some(generation) {
            self.unshare(news);
            (self.shared, self.generation) = (true, Some(generation));
            self.up(
                address.clone(),
                Channels::Shared(connection.clone(), VecDeque::new()),
            );
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.generation.is_some()
    }

    /// Whether the server still has to confirm a command.
    pub(super) fn is_asking(&self) -> bool {
        matches!(&self.state, State::Up(live) if !live.asked.is_empty())
    }

    /// The command connection carries no pub/sub messages: makes a connection of its own if a
    /// channel is wanted.
    pub(super) fn keep_apart(&mut self) {
        if std::mem::take(&mut self.shared) && !self.wanted.is_empty() {
            self.rest();
        }
    }

    /// The command connection is gone. If messages arrived on it, they will arrive on the next one.
    pub(super) fn unshare(&mut self, news: &mut News) {
        if self.generation.take().is_some() {
            let State::Up(live) = std::mem::replace(&mut self.state, State::Closed) else {
                return;
            };
            if !self.wanted.is_empty() {
                self.tell_gap(&live.address.broken("is gone"), news);
            }
        }
    }

    /// Takes the messages that arrived on the command connection.
    pub(super) fn pass(&mut self, messages: impl Iterator<Item = Said>) {
        if let State::Up(live) = &mut self.state
            && let Channels::Shared(_, passed) = &mut live.channels
        {
            passed.extend(messages);
        }
    }

    /// Notes that the server was alive at this moment.
    pub(super) fn vouch(&mut self, at: Moment) {
        if let State::Up(live) = &mut self.state {
            live.heard = live.heard.max(at);
        }
    }

    /// Takes the reason why the command connection has to be replaced, if there is one.
    pub(super) fn complaint(&mut self) -> Option<&'static str> {
        self.useless.take()
    }

    /// Whether this is the server that is subscribed to, or will be.
    pub(super) fn follows(&self, address: &Address) -> bool {
        self.address()
            .is_some_and(|followed| followed.is_same(address))
    }

    fn address(&self) -> Option<&Address> {
        self.addresses.get(self.turn % self.addresses.len().max(1))
    }

    /// Subscribes to this channel of `name`, and again after every gap, until it is no longer
    /// wanted.
    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        let channel = names::channel_for(&self.uuid, topic, &name);
        self.subscribe_to(now, channel, name);
    }

    /// Subscribes to a channel that belongs to no lock; its messages are reported with `name`.
    pub(super) fn subscribe_to(&mut self, now: Moment, channel: String, name: Name) {
        self.wanted.add(&channel, name.clone());
        match &mut self.state {
            State::Closed if !self.shared => self.rest(),
            // Another lock may use the channel already. The server then confirms it once more, for
            // this lock.
            State::Up(live) => live.subscribe(now, channel, Some(name)),
            State::Closed | State::Resting { .. } | State::Connecting { .. } => {}
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        let channel = names::channel_for(&self.uuid, topic, name);
        if self.wanted.remove(&channel, name)
            && let State::Up(live) = &mut self.state
        {
            live.unsubscribe(now, channel);
        }
    }

    /// Reads everything that has arrived.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        loop {
            match &mut self.state {
                State::Closed | State::Resting { .. } => return,
                State::Connecting {
                    address, attempt, ..
                } => match attempt.as_mut().poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(channels)) => {
                        let address = (**address).clone();
                        self.up(address, channels);
                    }
                    Poll::Ready(Err(error)) => self.failed(&error, news),
                },
                State::Up(live) => match live.poll(cx, &self.wanted, &mut self.payloads, news) {
                    Ok(heard) => {
                        self.told &= !heard;
                        return;
                    }
                    Err(error) => self.down(&error, news),
                },
            }
        }
    }

    /// When [`wake`](Subscriptions::wake) has to be called, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match &self.state {
            State::Closed => None,
            State::Resting { until } => Some(*until),
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Up(live) => live.due(self.wanted.is_empty(), self.shared),
        }
    }

    /// Does what is due at `now`.
    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        if self.next_wake().is_none_or(|due| now < due) {
            return;
        }
        match &mut self.state {
            State::Closed => {}
            State::Resting { .. } if self.wanted.is_empty() => self.state = State::Closed,
            State::Resting { .. } => self.connect(now),
            State::Connecting { address, .. } => {
                let error = address.late();
                self.failed(&error, news);
            }
            State::Up(live) if !live.asked.is_empty() => {
                let error = live.address.broken("for pub/sub has fallen silent");
                self.down(&error, news);
            }
            State::Up(_) if self.wanted.is_empty() => self.state = State::Closed,
            State::Up(live) => live.ping(now),
        }
    }

    fn connect(&mut self, now: Moment) {
        let Some(address) = self.address().cloned() else {
            // No server is known yet. `follow` continues.
            self.state = State::Closed;
            return;
        };
        let (attempt, deadline) = (
            Box::pin(Channels::connect(address.clone(), self.reach)),
            now.after(address.timeout()),
        );
        self.state = State::Connecting {
            address: Box::new(address),
            attempt,
            deadline,
        };
    }

    fn up(&mut self, address: Address, channels: Channels) {
        let now = clock::now();
        let mut live = Live::new(now, address, channels);
        for channel in self.wanted.channels() {
            live.subscribe(now, channel.clone(), None);
        }
        self.state = State::Up(Box::new(live));
    }

    fn down(&mut self, error: &Error, news: &mut News) {
        if self.shared {
            self.useless = Some("brings no messages any more");
            return self.unshare(news);
        }
        if let State::Up(live) = &self.state {
            self.backoff.ended(live.since.until(clock::now()));
        }
        self.failed(error, news);
    }

    /// Reports the gap and tries the next server. Meanwhile waiters depend on their recheck.
    fn failed(&mut self, error: &Error, news: &mut News) {
        self.tell_gap(error, news);
        self.turn = self.turn.wrapping_add(1);
        self.rest();
    }

    fn tell_gap(&mut self, error: &Error, news: &mut News) {
        if !std::mem::replace(&mut self.told, true) {
            news.events.push(connecting::unsubscribed(error));
        }
    }

    /// Schedules the next attempt. Starts it at once if there is no pause.
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
    channels: Channels,
    asked: Replies<Asked>,
    since: Moment,
    /// When the server was last heard.
    heard: Moment,
}

/// A command that the server has to confirm.
struct Asked {
    what: What,
    at: Moment,
}

enum What {
    /// The channel, and the lock that it is for; `None` for all locks of the channel.
    Subscribe(String, Option<Name>),
    Unsubscribe,
    Ping,
}

impl Live {
    fn new(now: Moment, address: Address, channels: Channels) -> Self {
        Live {
            address,
            channels,
            asked: Replies::new(),
            since: now,
            heard: now,
        }
    }

    // Each channel has a command of its own, so that an error reply concerns that channel alone.
    // The commands still leave in one write. The server confirms them in order, so the last of
    // several changes counts.

    fn subscribe(&mut self, now: Moment, channel: String, name: Option<Name>) {
        let request = self.channels.subscribe(channel.clone());
        self.ask(now, What::Subscribe(channel, name), request);
    }

    fn unsubscribe(&mut self, now: Moment, channel: String) {
        let request = self.channels.unsubscribe(channel);
        self.ask(now, What::Unsubscribe, request);
    }

    fn ping(&mut self, now: Moment) {
        let request = self.channels.ping();
        self.ask(now, What::Ping, request);
    }

    fn ask(
        &mut self,
        at: Moment,
        what: What,
        request: impl Future<Output = RedisResult<Value>> + 'static,
    ) {
        self.asked
            .push(Asked { what, at }, replies::request(request));
    }

    /// When the connection needs attention: a confirmation is late, a ping is due, or no channel
    /// was wanted for [`tuning::PUBSUB_LINGER`].
    fn due(&self, unwanted: bool, shared: bool) -> Option<Moment> {
        match self.asked.oldest() {
            Some(asked) => Some(self.heard.max(asked.at).after(tuning::PUBSUB_CONFIRM)),
            None if unwanted => (!shared).then(|| self.heard.after(tuning::PUBSUB_LINGER)),
            None => Some(self.heard.after(tuning::PUBSUB_IDLE)),
        }
    }

    /// Reads confirmations and messages. Returns true if there were any.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        wanted: &Wanted,
        payloads: &mut Option<Vec<String>>,
        news: &mut News,
    ) -> Result<bool> {
        let address = &self.address;
        let mut heard = false;
        while let Poll::Ready((asked, result)) = self.asked.poll(cx) {
            match result {
                Err(error) if error.code().is_none() => {
                    return Err(address.broken("for pub/sub broke"));
                }
                Err(error) if error.code() == Some("MOVED") => return Err(self.moved(news)),
                result => confirmed(&asked.what, result, address, wanted, news),
            }
            heard = true;
        }
        while let Poll::Ready(said) = self.channels.poll(cx) {
            match said {
                None => return Err(address.broken("for pub/sub was closed")),
                // The server has sent this unasked, because the slot has moved. Confirmations can
                // no longer be counted.
                Some(Said::Unsubscribed(channel)) if wanted.contains(&channel) => {
                    return Err(self.moved(news));
                }
                Some(Said::Message { channel, payload }) => {
                    news.inputs
                        .extend(wanted.names(&channel).iter().cloned().map(Input::Message));
                    payloads
                        .iter_mut()
                        .for_each(|payloads| payloads.push(payload.clone()));
                }
                Some(_) => {}
            }
            heard = true;
        }
        if heard {
            self.heard = clock::now();
        }
        Ok(heard)
    }
}

impl Live {
    fn moved(&self, news: &mut News) -> Error {
        news.slot_moved = true;
        self.address
            .broken("for pub/sub belongs to a node that has lost a slot")
    }
}

/// Handles the reply to a command. An error reply can only mean that this user may not subscribe to
/// this channel.
fn confirmed(
    what: &What,
    result: RedisResult<Value>,
    address: &Address,
    wanted: &Wanted,
    news: &mut News,
) {
    let What::Subscribe(channel, of) = what else {
        return;
    };
    for name in wanted
        .names(channel)
        .iter()
        .filter(|name| of.as_ref().is_none_or(|of| of == *name))
    {
        news.tell(match &result {
            Ok(_) => Input::Subscribed(name.clone()),
            Err(error) => Input::Unsubscribable(name.clone(), address.explain(error)),
        });
    }
}
