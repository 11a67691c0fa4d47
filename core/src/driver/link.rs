//! The command connection: made, watched and replaced here, because redis-rs' own manager keeps a
//! connection that has fallen silent.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedSender;

use super::connect::{Address, Backoff, Failure};
use super::server_clock::ServerClock;
use super::{Command, Happening};
use crate::clock;
use crate::engine::{CallId, Input, Outcome};
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::wire::{self, Op};

/// A connection is not given up before it was silent for this long.
const SILENCE: Duration = Duration::from_millis(500);

pub(super) struct Link {
    address: Address,
    tracking: bool,
    uuid: String,
    inbox: UnboundedSender<Command>,
    /// Counts connections, so that news of an old one is not taken for news of this one.
    generation: u64,
    live: Option<Live>,
}

struct Live {
    connection: MultiplexedConnection,
    clock: ServerClock,
    /// Since when something is due and nothing has come.
    waiting_since: Option<Moment>,
    pending: usize,
}

/// What a connection attempt found.
pub(super) struct Made {
    connection: MultiplexedConnection,
    clock: ServerClock,
}

impl Link {
    pub(super) fn new(
        address: Address,
        tracking: bool,
        uuid: String,
        inbox: UnboundedSender<Command>,
    ) -> Self {
        Link { address, tracking, uuid, inbox, generation: 0, live: None }
    }

    /// Begins to connect, and goes on until it succeeds; every failure is told.
    pub(super) fn connect(&mut self) {
        self.live = None;
        self.generation += 1;
        let (generation, inbox) = (self.generation, self.inbox.clone());
        let (mut address, tracking) = (self.address.clone(), self.tracking);
        tokio::spawn(async move {
            let mut backoff = Backoff::default();
            while !inbox.is_closed() {
                backoff.pause().await;
                match make(&address, tracking, generation, &inbox).await {
                    Ok(made) => {
                        let _ = inbox.send(Command::Happened(Happening::Made { generation, made }));
                        return;
                    }
                    Err(Failure::NoResp3) => {
                        address.downgrade();
                        backoff.reset();
                    }
                    Err(Failure::Error(error)) => {
                        let _ = inbox.send(Command::Tell(Input::Down(error)));
                    }
                }
            }
        });
    }

    /// Takes a new connection into use; false if it comes too late.
    pub(super) fn adopt(&mut self, generation: u64, made: Made) -> bool {
        if generation != self.generation {
            return false;
        }
        let Made { connection, clock } = made;
        self.live = Some(Live { connection, clock, waiting_since: None, pending: 0 });
        true
    }

    /// Sends a call; its outcome comes through the inbox.
    pub(super) fn send(&mut self, call: CallId, op: Op, limit: Duration) {
        let now = clock::now();
        let Some(live) = &mut self.live else {
            let _ = self.inbox.send(Command::Tell(Input::Outcome { call, outcome: Outcome::NotSent }));
            return;
        };
        live.pending += 1;
        live.waiting_since.get_or_insert(now);
        let not_after =
            live.clock.least(now).saturating_add(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let script = wire::Call::new(&op, &self.uuid, not_after);
        let (connection, inbox, generation) = (live.connection.clone(), self.inbox.clone(), self.generation);
        tokio::spawn(async move {
            let reply = tokio::time::timeout(limit, run(connection, script)).await;
            let _ = inbox.send(Command::Happened(Happening::Reply {
                generation,
                call,
                op,
                limit,
                reply: reply.ok(),
            }));
        });
    }

    /// Turns a reply (`None`: there was none in time) into an outcome, and learns from it about
    /// the connection. The second value is true when the connection has to be replaced.
    pub(super) fn settle(
        &mut self,
        generation: u64,
        op: &Op,
        limit: Duration,
        reply: Option<Result<Value, redis::RedisError>>,
    ) -> (Outcome, bool) {
        let current = generation == self.generation;
        let live = self.live.as_mut().filter(|_| current);
        match reply {
            None => {
                let now = clock::now();
                let silent = live.is_some_and(|live| {
                    live.pending -= 1;
                    live.waiting_since.is_some_and(|since| since.until(now) >= SILENCE.max(limit * 2))
                });
                (Outcome::Unanswered, silent)
            }
            Some(Ok(value)) => {
                let decoded = wire::decode(op, value);
                if let Some(live) = live {
                    live.answered();
                    if let Ok((server_ms, _)) = &decoded {
                        live.clock = ServerClock::new(*server_ms, clock::now());
                    }
                }
                match decoded {
                    Ok((_, reply)) => (Outcome::Answered(reply), false),
                    Err(error) => (Outcome::Refused { error, passing: false }, false),
                }
            }
            Some(Err(error)) => match error.code() {
                Some(code) => {
                    if let Some(live) = live {
                        live.answered();
                    }
                    let (refusal, passing) = wire::refusal(code, error.detail().unwrap_or_default());
                    (Outcome::Refused { error: refusal, passing }, false)
                }
                // The connection broke: whether the call ran is not known.
                None => (Outcome::Unanswered, current && self.live.is_some()),
            },
        }
    }

    /// What the server said unasked. `None` for news of an old connection.
    pub(super) fn pushed(&mut self, generation: u64, push: PushInfo) -> Option<Pushed> {
        let live = self.live.as_mut().filter(|_| generation == self.generation)?;
        match push.kind {
            PushKind::Disconnection => Some(Pushed::Disconnected),
            PushKind::Invalidate => {
                live.heard();
                Some(Pushed::Invalidated(invalidated(push.data)))
            }
            _ => None,
        }
    }

    /// Why the engine hears that the link is down.
    pub(super) fn broken(&self) -> Error {
        Error::new(ErrorKind::Unavailable, "the connection to the server broke; connecting again")
    }
}

impl Live {
    fn answered(&mut self) {
        self.pending = self.pending.saturating_sub(1);
        self.heard();
    }

    fn heard(&mut self) {
        self.waiting_since = (self.pending > 0).then(clock::now);
    }
}

/// News from the server that concerns the engine.
pub(super) enum Pushed {
    Disconnected,
    /// These keys, or all.
    Invalidated(Option<Vec<wire::Name>>),
}

fn invalidated(data: Vec<Value>) -> Option<Vec<wire::Name>> {
    let Some(Value::Array(keys)) = data.into_iter().next() else { return None };
    let name = |key: &Value| match key {
        Value::BulkString(bytes) => wire::names::name_from_bytes(bytes).ok(),
        _ => None,
    };
    Some(keys.iter().filter_map(name).collect())
}

async fn make(
    address: &Address,
    tracking: bool,
    generation: u64,
    inbox: &UnboundedSender<Command>,
) -> Result<Made, Failure> {
    let news = inbox.clone();
    let push = move |info: PushInfo| news.send(Command::Happened(Happening::Push { generation, info }));
    let mut connection = address.commands(push).await?;
    if tracking && address.speaks_resp3() {
        // Denied or unknown: losses are then noticed at the next renewal.
        let _: Result<Value, _> =
            redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP").query_async(&mut connection).await;
    }
    let time = redis::cmd("TIME").query_async::<(u64, u64)>(&mut connection).await;
    let (seconds, micros) = time.map_err(|error| address.explain(&error))?;
    Ok(Made { connection, clock: ServerClock::new(seconds * 1000 + micros / 1000, clock::now()) })
}

/// One call: by hash, and with the full text once if the server does not know the script.
async fn run(mut connection: MultiplexedConnection, script: wire::Call) -> Result<Value, redis::RedisError> {
    match send(&mut connection, &script.evalsha()).await {
        Err(error) if error.code() == Some("NOSCRIPT") => send(&mut connection, &script.eval()).await,
        result => result,
    }
}

/// An error reply is a value to redis-rs here, and an error to us.
async fn send(
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
) -> Result<Value, redis::RedisError> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}
