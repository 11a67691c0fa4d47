//! Pub/sub: one connection for all channels. That for commands, where it takes messages as well (RESP3, one server): then
//! the server tells a waiter in one go that the key has changed and that the lock was released, and wakes it once. Else
//! one of its own, opened when the first channel is wanted.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use super::News;
use super::channels::{Channels, Reach, Said};
use super::connect::{Address, Backoff};
use super::replies::{self, Replies};
use crate::clock;
use crate::engine::Input;
use crate::error::{Error, Result};
use crate::event::{Event, Level};
use crate::moment::Moment;
use crate::wire::{Name, names};

/// A connection on which nothing has come for this long is asked whether it is there. Longer than
/// the usual recheck of a waiter, which covers a lost message just as well.
const IDLE: Duration = Duration::from_secs(6);
/// How long the server may take to confirm.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a connection stays when no channel is wanted.
const LINGER: Duration = Duration::from_secs(60);

/// Keeps the wanted channels subscribed. Driven from outside as a `Link` is.
pub(super) struct Subscriptions {
    /// Servers that tell the same; one of them is listened to. None before any is known.
    addresses: Vec<Address>,
    reach: Reach,
    /// Whose turn it is.
    turn: usize,
    /// The channels that shall be subscribed, and the locks they belong to.
    wanted: HashMap<String, Name>,
    backoff: Backoff,
    state: State,
    /// People know that the connection is down.
    told: bool,
    /// What the messages said, if that is of interest.
    payloads: Option<Vec<String>>,
    /// Messages come on the connection for commands: none is made for them.
    shared: bool,
    /// Which of those it is, while that is up.
    generation: Option<u64>,
    /// Why that one is of no use any more.
    useless: Option<&'static str>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Channels>>>>;

enum State {
    /// Nothing has been wanted for a while, or ever.
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
    pub(super) fn new(addresses: Vec<Address>, reach: Reach) -> Self {
        Subscriptions {
            addresses,
            reach,
            turn: 0,
            wanted: HashMap::new(),
            backoff: Backoff::default(),
            state: State::Closed,
            told: false,
            payloads: None,
            shared: false,
            generation: None,
            useless: None,
        }
    }

    /// The same, keeping what the messages say.
    pub(super) fn with_payloads(self) -> Self {
        Subscriptions { payloads: Some(Vec::new()), ..self }
    }

    pub(super) fn take_payloads(&mut self) -> Vec<String> {
        self.payloads.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Listens to these servers from now on.
    pub(super) fn follow(&mut self, addresses: Vec<Address>) {
        let stays = self.address().is_some_and(|now| addresses.iter().any(|address| address.is_same(now)));
        if let Some(place) = self.address().and_then(|now| addresses.iter().position(|at| at.is_same(now))) {
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

    /// Listens on the connection for commands from now on, as long as that is the one of this generation.
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
            self.up(address.clone(), Channels::Shared(connection.clone(), VecDeque::new()));
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.generation.is_some()
    }

    /// Whether the server is to confirm something.
    pub(super) fn is_asking(&self) -> bool {
        matches!(&self.state, State::Up(live) if !live.asked.is_empty())
    }

    /// The connection for commands takes no messages: has one for them.
    pub(super) fn keep_apart(&mut self) {
        if std::mem::take(&mut self.shared) && !self.wanted.is_empty() {
            self.rest();
        }
    }

    /// The connection for commands is gone, if messages came on that; they will come on the next one.
    pub(super) fn unshare(&mut self, news: &mut News) {
        if self.generation.take().is_some() {
            let State::Up(live) = std::mem::replace(&mut self.state, State::Closed) else { return };
            if !self.wanted.is_empty() {
                self.tell_gap(&live.address.broken("is gone"), news);
            }
        }
    }

    /// Messages that came on the connection for commands.
    pub(super) fn pass(&mut self, messages: impl Iterator<Item = Said>) {
        if let State::Up(live) = &mut self.state
            && let Channels::Shared(_, passed) = &mut live.channels
        {
            passed.extend(messages);
        }
    }

    /// The server was there then.
    pub(super) fn vouch(&mut self, at: Moment) {
        if let State::Up(live) = &mut self.state {
            live.heard = live.heard.max(at);
        }
    }

    /// Why the connection for commands has to be replaced, if it has to be.
    pub(super) fn complaint(&mut self) -> Option<&'static str> {
        self.useless.take()
    }

    /// Whether this server is listened to, or will be.
    pub(super) fn follows(&self, address: &Address) -> bool {
        self.address().is_some_and(|followed| followed.is_same(address))
    }

    fn address(&self) -> Option<&Address> {
        self.addresses.get(self.turn % self.addresses.len().max(1))
    }

    /// Has the channel of `name` subscribed, again after every gap, until it is not wanted any more.
    pub(super) fn subscribe(&mut self, now: Moment, name: Name) {
        self.subscribe_to(now, names::channel(&name), name);
    }

    /// The same for a channel that no lock has; `name` is told with its messages.
    pub(super) fn subscribe_to(&mut self, now: Moment, channel: String, name: Name) {
        self.wanted.insert(channel.clone(), name);
        match &mut self.state {
            State::Closed if !self.shared => self.rest(),
            State::Up(live) => live.subscribe(now, channel),
            State::Closed | State::Resting { .. } | State::Connecting { .. } => {}
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        let channel = names::channel(name);
        if self.wanted.remove(&channel).is_some()
            && let State::Up(live) = &mut self.state
        {
            live.unsubscribe(now, channel);
        }
    }

    /// Takes in everything that has come.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        loop {
            match &mut self.state {
                State::Closed | State::Resting { .. } => return,
                State::Connecting { address, attempt, .. } => match attempt.as_mut().poll(cx) {
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
            // `follow` goes on.
            self.state = State::Closed;
            return;
        };
        let (attempt, deadline) =
            (Box::pin(Channels::connect(address.clone(), self.reach)), now.after(address.timeout()));
        self.state = State::Connecting { address: Box::new(address), attempt, deadline };
    }

    fn up(&mut self, address: Address, channels: Channels) {
        let now = clock::now();
        let mut live = Live::new(now, address, channels);
        for channel in self.wanted.keys() {
            live.subscribe(now, channel.clone());
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

    /// Tries again. Waiters go on by their recheck meanwhile.
    fn failed(&mut self, error: &Error, news: &mut News) {
        self.tell_gap(error, news);
        self.turn = self.turn.wrapping_add(1);
        self.rest();
    }

    fn tell_gap(&mut self, error: &Error, news: &mut News) {
        if !std::mem::replace(&mut self.told, true) {
            let text = format!("no wake-ups for now, waiters look by themselves: {error}");
            news.events.push(Event { kind: "unsubscribed", level: Level::Info, lock: None, text });
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
    address: Address,
    channels: Channels,
    asked: Replies<Asked>,
    since: Moment,
    /// When something came last, or was last asked for.
    heard: Moment,
}

/// What the server is to confirm.
struct Asked {
    what: What,
    at: Moment,
}

enum What {
    Subscribe(String),
    Unsubscribe,
    Ping,
}

impl Live {
    fn new(now: Moment, address: Address, channels: Channels) -> Self {
        Live { address, channels, asked: Replies::new(), since: now, heard: now }
    }

    // One command for each channel, so that a refusal concerns that channel alone; they still leave
    // in one write. The server confirms in order, so that changes of mind end as they were meant.

    fn subscribe(&mut self, now: Moment, channel: String) {
        let request = self.channels.subscribe(channel.clone());
        self.ask(now, What::Subscribe(channel), request);
    }

    fn unsubscribe(&mut self, now: Moment, channel: String) {
        let request = self.channels.unsubscribe(channel);
        self.ask(now, What::Unsubscribe, request);
    }

    fn ping(&mut self, now: Moment) {
        let request = self.channels.ping();
        self.ask(now, What::Ping, request);
    }

    fn ask(&mut self, at: Moment, what: What, request: impl Future<Output = RedisResult<Value>> + 'static) {
        self.asked.push(Asked { what, at }, replies::request(request));
    }

    /// When the connection has to be looked after.
    fn due(&self, unwanted: bool, shared: bool) -> Option<Moment> {
        match self.asked.oldest() {
            Some(asked) => Some(self.heard.max(asked.at).after(PATIENCE)),
            None if unwanted => (!shared).then(|| self.heard.after(LINGER)),
            None => Some(self.heard.after(IDLE)),
        }
    }

    /// Takes in confirmations and messages. True if something came.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        wanted: &HashMap<String, Name>,
        payloads: &mut Option<Vec<String>>,
        news: &mut News,
    ) -> Result<bool> {
        let address = &self.address;
        let mut heard = false;
        while let Poll::Ready((asked, result)) = self.asked.poll(cx) {
            match result {
                Err(error) if error.code().is_none() => return Err(address.broken("for pub/sub broke")),
                Err(error) if error.code() == Some("MOVED") => return Err(self.moved()),
                result => confirmed(&asked.what, result, address, wanted, news),
            }
            heard = true;
        }
        while let Poll::Ready(said) = self.channels.poll(cx) {
            match said {
                None => return Err(address.broken("for pub/sub was closed")),
                // The server says so unasked, which the count of confirmations does not survive.
                Some(Said::Unsubscribed(channel)) if wanted.contains_key(&channel) => {
                    return Err(self.moved());
                }
                Some(Said::Message { channel, payload }) => {
                    news.inputs.extend(wanted.get(&channel).cloned().map(Input::Message));
                    payloads.iter_mut().for_each(|payloads| payloads.push(payload.clone()));
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
    fn moved(&self) -> Error {
        self.address.broken("for pub/sub belongs to a node that has lost a slot")
    }
}

/// The server has answered. A refusal can only mean that this user may not listen to this channel.
fn confirmed(
    what: &What,
    result: RedisResult<Value>,
    address: &Address,
    wanted: &HashMap<String, Name>,
    news: &mut News,
) {
    let What::Subscribe(channel) = what else { return };
    let Some(name) = wanted.get(channel) else { return };
    news.tell(match result {
        Ok(_) => Input::Subscribed(name.clone()),
        Err(error) => Input::Unsubscribable(name.clone(), address.explain(&error)),
    });
}
