//! The lock machine: holds, levels, waiters, renewals and deadlines.
//!
//! It does no I/O, reads no clock and draws no random number. Everything it learns comes in as an
//! [`Input`] with the current [`Moment`]; everything it wants comes out as an [`Output`]. So the
//! same code runs under the driver and in a simulation.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, LostReason, Result};
use crate::event::Event;
use crate::hold::HoldCell;
use crate::owner::Key;
use crate::wire::{Fencing, Holder, Name, Op, OwnerId, Reply};

/// Names a request of a caller; drawn by the caller's side, never reused.
pub(crate) type RequestId = u64;
/// Names one script call in flight; drawn by the engine, never reused.
pub(crate) type CallId = u64;
/// Names one level of a hold; drawn by the engine, never reused.
pub(crate) type LevelId = u64;

/// Everything the engine can be told.
#[derive(Debug)]
pub(crate) enum Input {
    /// A caller wants something; answered by exactly one [`Output::Complete`].
    Request { id: RequestId, request: Request },
    /// The caller of this request does not wait any more. Ignored when it was completed before.
    Cancel { id: RequestId },
    /// A guard was dropped: release its level, nobody waits for the outcome.
    Dropped { owner: OwnerId, level: LevelId },
    /// A handle was lost without release: stop renewing for its level, and warn.
    Abandoned { owner: OwnerId, level: LevelId },
    /// The thread or task behind this key has ended: stop renewing what it still holds, and warn.
    KeyEnded(Key),
    /// What became of a call: exactly one per [`Output::Send`].
    Outcome { call: CallId, outcome: Outcome },
    /// The command connection is up (first time or again): calls can be sent.
    Up,
    /// The command connection is gone, or an attempt to connect failed, for this reason.
    /// The driver goes on trying.
    Down(Error),
    /// The channel of this name is subscribed (first, or again after a gap).
    Subscribed(Name),
    /// The server does not let us subscribe to the channel of this name; waiting goes on by recheck.
    Unsubscribable(Name, Error),
    /// A message came on the channel of this name.
    Message(Name),
    /// Keys that we read were changed by somebody else (`None`: all keys).
    Invalidated(Option<Vec<Name>>),
}

/// What a caller can want.
#[derive(Debug)]
pub(crate) enum Request {
    /// Be told when the server is reached, or why it cannot be.
    Connect,
    /// Hold the lock. `wait`: `None` for ever, zero: try once.
    Acquire { name: Name, key: Key, wait: Option<Duration>, terms: Terms },
    /// Give back one level.
    Release(Target),
    /// Make the lock live at least `lease` from now.
    Extend { target: Target, lease: Duration },
    /// Delete the lock whoever holds it.
    Force { name: Name },
    /// Read who holds it.
    Inspect { name: Name },
    /// Release everything within `limit`, then stop.
    Close { limit: Duration },
}

/// Which level of which hold.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// This level.
    Level { owner: OwnerId, level: LevelId },
    /// The newest level of the hold that this key has on this name.
    Key { name: Name, key: Key },
}

/// How a level is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) lease: Lease,
    pub(crate) fencing: Fencing,
    /// The longest time the hold may last from its first acquisition.
    pub(crate) max_hold: Option<Duration>,
}

/// How long Redis keeps a level without news from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Renewed every third of this time.
    Watchdog(Duration),
    /// Never renewed.
    Fixed(Duration),
}

/// What became of a script call.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The server answered.
    Answered(Reply),
    /// The server answered with an error. `passing`: it may well succeed later (loading, busy, a
    /// demoted primary); such an error means that nothing was done.
    Refused { error: Error, passing: bool },
    /// It was sent and not answered within its limit, or the connection broke: it may run until
    /// its not-after, which is `limit` after it was sent.
    Unanswered,
    /// It was not sent: there is no connection.
    NotSent,
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub(crate) enum Done {
    Connected,
    /// The lock is held; dropping the level must be told to the engine.
    Granted { cell: Arc<HoldCell>, level: LevelId },
    Released,
    Extended,
    Forced(bool),
    Inspected(Option<Holder>),
    /// The names of locks that could not be released in time.
    Closed(Vec<Name>),
}

/// Everything the engine can want.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send this call; report an [`Input::Outcome`] at the latest `limit` from now.
    Send { call: CallId, op: Op, limit: Duration },
    /// Have the channel of this name subscribed, and again after every gap, until told otherwise.
    Subscribe(Name),
    /// The channel of this name is not needed any more.
    Unsubscribe(Name),
    /// Answer the caller.
    Complete { id: RequestId, result: Result<Done> },
    /// A hold with a re-entry key begins: local questions by key find it here.
    Opened(Arc<HoldCell>),
    /// All levels of this hold are unwound; forget it.
    Ended(Arc<HoldCell>),
    /// Tell the watchers of this hold.
    Lost(Arc<HoldCell>, LostReason),
    /// Something worth telling people.
    Event(Event),
    /// Closed: the thread can end.
    Stop,
}

/// What the engine must know once.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The longest time between two tries of a waiter.
    pub(crate) recheck: Duration,
    /// How long a caller waits for a server that cannot be reached, once it had been reached.
    pub(crate) outage: Duration,
    /// Seeds the jitter.
    pub(crate) seed: u64,
}

/// The lock machine of one client.
pub(crate) struct Engine {}

impl Engine {
    pub(crate) fn new(_config: Config, _counters: Arc<crate::event::Counters>) -> Self {
        Engine {}
    }

    /// Takes one input; what it causes is appended to `out`.
    pub(crate) fn handle(&mut self, _now: crate::moment::Moment, _input: Input, _out: &mut Vec<Output>) {}

    /// The next moment at which [`Engine::wake`] must be called, if nothing else happens.
    pub(crate) fn next_wake(&self) -> Option<crate::moment::Moment> {
        None
    }

    /// Does what is due at `now`.
    pub(crate) fn wake(&mut self, _now: crate::moment::Moment, _out: &mut Vec<Output>) {}
}
