//! The pub/sub connection: opened when the first channel is wanted, one for all channels.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{RedisResult, Value};

use super::News;
use super::connect::{Address, Backoff};
use super::replies::Replies;
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
    address: Address,
    /// The channels that shall be subscribed, and the locks they belong to.
    wanted: HashMap<String, Name>,
    backoff: Backoff,
    state: State,
    /// People know that the connection is down.
    told: bool,
}

type Attempt = Pin<Box<dyn Future<Output = Result<PubSub>>>>;

enum State {
    /// Nothing has been wanted for a while, or ever.
    Closed,
    Resting {
        until: Moment,
    },
    Connecting {
        attempt: Attempt,
        deadline: Moment,
    },
    Up(Box<Live>),
}

impl Subscriptions {
    pub(super) fn new(address: Address) -> Self {
        Subscriptions {
            address,
            wanted: HashMap::new(),
            backoff: Backoff::default(),
            state: State::Closed,
            told: false,
        }
    }

    /// Has the channel of `name` subscribed, again after every gap, until it is not wanted any more.
    pub(super) fn subscribe(&mut self, now: Moment, name: Name) {
        let channel = names::channel(&name);
        self.wanted.insert(channel.clone(), name);
        match &mut self.state {
            State::Closed => self.rest(),
            State::Up(live) => live.subscribe(now, channel),
            State::Resting { .. } | State::Connecting { .. } => {}
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
                State::Connecting { attempt, .. } => match attempt.as_mut().poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(connection)) => self.up(connection),
                    Poll::Ready(Err(error)) => self.failed(&error, news),
                },
                State::Up(live) => match live.poll(cx, &self.address, &self.wanted, news) {
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
            State::Up(live) => Some(live.due(self.wanted.is_empty())),
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
            State::Connecting { .. } => self.failed(&self.address.late(), news),
            State::Up(live) if !live.asked.is_empty() => {
                let error = self.address.broken("for pub/sub has fallen silent");
                self.down(&error, news);
            }
            State::Up(_) if self.wanted.is_empty() => self.state = State::Closed,
            State::Up(live) => live.ping(now),
        }
    }

    fn connect(&mut self, now: Moment) {
        let attempt = Box::pin(self.address.clone().pubsub());
        self.state = State::Connecting { attempt, deadline: now.after(self.address.timeout()) };
    }

    fn up(&mut self, connection: PubSub) {
        let now = clock::now();
        let mut live = Live::new(now, connection);
        for channel in self.wanted.keys() {
            live.subscribe(now, channel.clone());
        }
        self.state = State::Up(Box::new(live));
    }

    fn down(&mut self, error: &Error, news: &mut News) {
        if let State::Up(live) = &self.state {
            self.backoff.ended(live.since.until(clock::now()));
        }
        self.failed(error, news);
    }

    /// Tries again. Waiters go on by their recheck meanwhile.
    fn failed(&mut self, error: &Error, news: &mut News) {
        if !std::mem::replace(&mut self.told, true) {
            let text = format!("no wake-ups for now, waiters look by themselves: {error}");
            news.events.push(Event { kind: "unsubscribed", level: Level::Info, lock: None, text });
        }
        self.rest();
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
    sink: PubSubSink,
    stream: PubSubStream,
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
    fn new(now: Moment, connection: PubSub) -> Self {
        let (sink, stream) = connection.split();
        Live { sink, stream, asked: Replies::new(), since: now, heard: now }
    }

    // One command for each channel, so that a refusal concerns that channel alone; they still leave
    // in one write. The server confirms in order, so that changes of mind end as they were meant.

    fn subscribe(&mut self, now: Moment, channel: String) {
        let mut sink = self.sink.clone();
        let name = channel.clone();
        self.ask(now, What::Subscribe(channel), async move { done(sink.subscribe(name).await) });
    }

    fn unsubscribe(&mut self, now: Moment, channel: String) {
        let mut sink = self.sink.clone();
        self.ask(now, What::Unsubscribe, async move { done(sink.unsubscribe(channel).await) });
    }

    fn ping(&mut self, now: Moment) {
        let mut sink = self.sink.clone();
        self.ask(now, What::Ping, async move { sink.ping().await });
    }

    fn ask(&mut self, at: Moment, what: What, request: impl Future<Output = RedisResult<Value>> + 'static) {
        self.asked.push(Asked { what, at }, request);
    }

    /// When the connection has to be looked after.
    fn due(&self, unwanted: bool) -> Moment {
        match self.asked.oldest() {
            Some(asked) => self.heard.max(asked.at).after(PATIENCE),
            None if unwanted => self.heard.after(LINGER),
            None => self.heard.after(IDLE),
        }
    }

    /// Takes in confirmations and messages. True if something came.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        address: &Address,
        wanted: &HashMap<String, Name>,
        news: &mut News,
    ) -> Result<bool> {
        let mut heard = false;
        while let Poll::Ready((asked, result)) = self.asked.poll(cx) {
            match result {
                Err(error) if error.code().is_none() => return Err(address.broken("for pub/sub broke")),
                result => confirmed(&asked.what, result, address, wanted, news),
            }
            heard = true;
        }
        while let Poll::Ready(message) = self.stream.poll_next_unpin(cx) {
            let Some(message) = message else { return Err(address.broken("for pub/sub was closed")) };
            if let Some(name) = wanted.get(message.get_channel_name()) {
                news.tell(Input::Message(name.clone()));
            }
            heard = true;
        }
        if heard {
            self.heard = clock::now();
        }
        Ok(heard)
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

fn done(result: RedisResult<()>) -> RedisResult<Value> {
    result.map(|()| Value::Okay)
}
