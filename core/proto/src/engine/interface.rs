//! The interface of the engine: what the driver tells it, what a caller can ask for, and what the
//! engine asks of the driver.

use std::sync::Arc;
use std::time::Duration;

use super::links::{LinkId, Routes};
use crate::error::{Error, LostReason, Result, Thing};
use crate::event::Event;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::wire::{
    Change, Counter, Fencing, Form, Holder, Inspection, Kind, Name, Op, OwnerId, Permits, Reply,
    Special, Topic, names,
};

/// Identifies a request of a caller. The caller's side draws it and never reuses it.
pub type RequestId = u64;
/// Identifies one script call in flight. The engine draws it and never reuses it.
pub type CallId = u64;
/// Identifies one level of a hold. The engine draws it and never reuses it.
pub type LevelId = u64;

/// Everything the driver can tell the engine.
#[derive(Debug)]
pub enum Input {
    /// A caller wants something. The engine answers with exactly one [`Output::Complete`].
    Request { id: RequestId, request: Request },
    /// The caller of this request does not wait any more. Ignored if the request is already
    /// completed.
    Cancel { id: RequestId },
    /// A guard was dropped: release its level. Nobody waits for the outcome.
    Dropped { owner: OwnerId, level: LevelId },
    /// A handle was lost without a release: stop renewing its level, and warn.
    Abandoned { owner: OwnerId, level: LevelId },
    /// This level is no longer tied to a guard. Only its key can release it, so it ends with its
    /// key.
    Detached { owner: OwnerId, level: LevelId },
    /// Permits of a plain semaphore were given back, for example by a guard that was dropped. Nobody
    /// waits for the outcome.
    GivenBack { name: Name, permits: u32 },
    /// The thread or task behind this key has ended: stop renewing its detached levels, and warn.
    KeyEnded(OwnerKey),
    /// The task behind this key will never go on: stop renewing its levels, including those that
    /// have a guard, and warn.
    KeyGone(OwnerKey),
    /// No handle to the client is left, so nobody can release by key any more.
    Orphaned,
    /// The outcome of a call: exactly one per [`Output::Send`].
    Outcome { call: CallId, outcome: CallOutcome },
    /// The answer to a call that went over a connection without client tracking. The server does
    /// not report later changes of the keys that the call read.
    AnsweredUntracked { call: CallId, reply: Reply },
    /// The outcomes of calls that a caller has made as one command.
    Together(Vec<Input>),
    /// A connection was made. Owners drawn from now on carry this last group of their uuid, which
    /// comes fresh from the operating system. Copies of a process that are restored from one
    /// snapshot share no connection, so each gets a group of its own.
    Identity(u64),
    /// The command connection to this server is up, for the first time or again: calls can be sent.
    Up(LinkId),
    /// The command connection to this server is gone, or an attempt to connect failed, for this
    /// reason. The driver keeps trying.
    Down(LinkId, Error),
    /// The server that answers for each name, where there are several. The engine forgets a link
    /// that no name leads to. If a name leads to that link again and it is up, the driver reports
    /// [`Input::Up`] again.
    Routes(Routes),
    /// The channel of this name is subscribed, for the first time or again after a gap.
    Subscribed(Name),
    /// The server does not allow a subscription to the channel of this name. Waiters go on by
    /// recheck.
    Unsubscribable(Name, Error),
    /// A pub/sub message arrived on the channel of this name.
    Message(Name),
    /// Somebody else changed keys that we read (`None`: all keys).
    Invalidated(Option<Vec<Name>>),
}

/// Everything a caller can ask for.
#[derive(Debug)]
pub enum Request {
    /// Answer when the server is reached, or with the reason why it cannot be.
    Connect,
    /// Acquire the lock. `wait`: `None` waits for ever, zero tries once. `token`: the value to
    /// store in Redis as the owner; without it the engine draws a fresh owner.
    Acquire {
        name: Name,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
        token: Option<Arc<str>>,
    },
    /// Acquire several locks as one.
    AcquireAll(AcquireAll),
    /// Give back one level.
    Release(Target),
    /// Make the lock live at least `lease` from now.
    Extend { target: Target, lease: Duration },
    /// Free the lock if it has this form's token, no matter which client acquired it.
    ReleaseToken { name: Name, form: Form },
    /// Make the lock live at least `lease` from now if it has this form's token, no matter which
    /// client acquired it.
    ExtendToken {
        name: Name,
        form: Form,
        lease: Duration,
    },
    /// Take over the lock that has this token, no matter which client acquired it. The holder gets an
    /// owner of its own, so nobody who knows the token can release or extend the lock any more.
    Adopt {
        name: Name,
        key: OwnerKey,
        terms: Terms,
        token: Arc<str>,
    },
    /// Delete the lock, no matter which owner holds it.
    Force { name: Name, kind: Kind },
    /// Read who has the lock, or who waits for it.
    Inspect {
        name: Name,
        kind: Kind,
        what: Inspection,
    },
    /// Read how many permits a semaphore has, after it was given `limit` permits if that is asked
    /// for.
    Count { name: Name, limit: Option<u32> },
    /// Take permits of a plain semaphore. `wait` as in `Acquire`.
    Take {
        name: Name,
        permits: u32,
        wait: Option<Duration>,
    },
    /// Wait until a latch is at 0. `wait` as in `Acquire`.
    Await { name: Name, wait: Option<Duration> },
    /// Change a counter. A trade gives permits back and takes none.
    Change { name: Name, change: Change },
    /// Read a counter.
    Read { name: Name, counter: Counter },
    /// Release everything within `limit`, then stop.
    Close { limit: Duration },
}

/// As [`Request::AcquireAll`].
#[derive(Debug)]
pub struct AcquireAll {
    /// It stands for all of the locks.
    pub name: Name,
    /// In the order in which all clients wait for them.
    pub parts: Arc<[Part]>,
    /// How many of them make it held.
    pub needed: usize,
    pub key: OwnerKey,
    /// As of one lock.
    pub wait: Option<Duration>,
    /// Of the kind [`Kind::Multi`] or [`Kind::Quorum`].
    pub terms: Terms,
}

impl Request {
    /// The name and the reason, if what is asked for would share keys with another name.
    pub(super) fn shares_keys(&self) -> Option<(&Name, Error)> {
        let of_kind = |name, kind: Kind| kind.facts().has_more_keys.then_some((name, kind.thing()));
        let (name, thing) = match self {
            Request::Acquire { name, terms, .. } | Request::Adopt { name, terms, .. } => {
                of_kind(name, terms.kind)
            }
            Request::AcquireAll(AcquireAll { parts, .. }) => {
                let mut parts = parts.iter();
                return parts.find_map(|Part { name, terms }| {
                    let (name, thing) = of_kind(name, terms.kind)?;
                    Some((name, names::shared_keys(name, thing)?))
                });
            }
            Request::ReleaseToken { name, form } | Request::ExtendToken { name, form, .. } => {
                of_kind(name, form.kind)
            }
            Request::Force { name, kind } => of_kind(name, *kind),
            Request::Count { name, .. } | Request::Take { name, .. } => {
                Some((name, Thing::Semaphore))
            }
            Request::Change { name, change } => Some((name, change.counter().thing())),
            Request::Connect
            | Request::Release(_)
            | Request::Extend { .. }
            | Request::Inspect { .. }
            | Request::Await { .. }
            | Request::Read { .. }
            | Request::Close { .. } => None,
        }?;
        Some((name, names::shared_keys(name, thing)?))
    }

    /// The name of the operation, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Connect => "connect",
            Request::Acquire { .. } | Request::AcquireAll(_) => "acquire",
            Request::Release(_) => "release",
            Request::Extend { .. } => "extend",
            Request::ReleaseToken { .. } => "release_token",
            Request::ExtendToken { .. } => "extend_token",
            Request::Adopt { .. } => "adopt",
            Request::Force { .. } => "force_release",
            Request::Inspect {
                what: Inspection::Waiters,
                ..
            } => "waiters",
            Request::Inspect { .. } => "holder",
            Request::Count { limit: None, .. } => "permits",
            Request::Count { .. } => "set_permits",
            Request::Take { .. } => "acquire",
            Request::Await { .. } => "wait",
            Request::Change { change, .. } => match change {
                Change::Trade { .. } => "release",
                Change::SetPermits(_) => "try_set_permits",
                Change::AddPermits(_) => "add_permits",
                Change::Drain => "drain",
                Change::SetCount(_) => "try_set_count",
                Change::CountDown(_) => "count_down",
            },
            Request::Read {
                counter: Counter::Semaphore,
                ..
            } => "available",
            Request::Read { .. } => "count",
            Request::Close { .. } => "close",
        }
    }

    /// The name and the thing that it is about. The caller knows the lock of a level.
    fn subject(&self) -> Option<(&Name, Thing)> {
        Some(match self {
            Request::Acquire { name, terms, .. }
            | Request::AcquireAll(AcquireAll { name, terms, .. })
            | Request::Adopt { name, terms, .. } => (name, terms.kind.thing()),
            Request::Release(Target::Key { name, kind, .. })
            | Request::Extend {
                target: Target::Key { name, kind, .. },
                ..
            }
            | Request::Force { name, kind }
            | Request::Inspect { name, kind, .. } => (name, kind.thing()),
            Request::ReleaseToken { name, form } | Request::ExtendToken { name, form, .. } => {
                (name, form.kind.thing())
            }
            Request::Count { name, .. } | Request::Take { name, .. } => (name, Thing::Semaphore),
            Request::Await { name, .. } => (name, Thing::Latch),
            Request::Change { name, change } => (name, change.counter().thing()),
            Request::Read { name, counter } => (name, counter.thing()),
            Request::Release(Target::Level { .. })
            | Request::Extend {
                target: Target::Level { .. },
                ..
            }
            | Request::Connect
            | Request::Close { .. } => return None,
        })
    }

    /// The thing that it is about, for errors. The hold of a level knows its own.
    pub fn thing(&self) -> Thing {
        self.subject().map_or(Thing::Lock, |(_, thing)| thing)
    }

    /// The error with the name of the lock, if the request knows it.
    pub fn named(&self, error: Error) -> Error {
        match self.subject() {
            Some((name, thing)) => error.on(name).of(thing),
            None => error,
        }
    }
}

/// One of the locks of a multi lock, or the lock on one of the servers of a quorum.
#[derive(Debug, Clone)]
pub struct Part {
    /// The name as it is in Redis.
    pub name: Name,
    pub terms: Terms,
}

/// Selects a level of a hold.
#[derive(Debug, Clone)]
pub enum Target {
    /// This level.
    Level { owner: OwnerId, level: LevelId },
    /// The newest level of the hold that this key has on this name, of the side that `kind` is of.
    Key {
        name: Name,
        key: OwnerKey,
        kind: Kind,
    },
}

/// The terms on which a level is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub kind: Kind,
    /// Whether a key that already holds the lock re-enters it instead of waiting for itself.
    pub reentrant: bool,
    pub lease: Lease,
    pub fencing: Fencing,
    /// The longest time the hold may last from its first acquisition.
    pub max_hold: Option<Duration>,
    /// How many replicas have to acknowledge each acquisition.
    pub replicas: u8,
    /// Whether the hold outlives the client: only a release or the end of its lease ends it.
    pub linger: bool,
    /// Whether the level ends with the thread or task behind its key from the start, as after
    /// [`Input::Detached`].
    pub tied: bool,
    /// The permits that an acquisition takes from a semaphore. 0 for a lock.
    pub permits: u16,
    /// The terms that only some primitives have.
    pub special: Special,
}

/// How long Redis keeps a level if it hears nothing more from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// Renewed every third of this time.
    Watchdog(Duration),
    /// Never renewed.
    Fixed(Duration),
    /// The caller asks for this time. The server chooses the lease from the time that earlier work
    /// took. The watchdog renews it late, usually when 5 s remain.
    Adaptive(Duration),
}

/// The outcome of a script call.
#[derive(Debug, Clone)]
pub enum CallOutcome {
    /// The server answered.
    Answered(Reply),
    /// The server answered with an error. `passing`: the error is transient (loading, busy, a
    /// demoted primary) and means that nothing was done.
    Refused { error: Error, passing: bool },
    /// The call was sent and not answered within its limit, or the connection broke. It may run
    /// until its not-after, which is `limit` after the engine handed it out.
    Unanswered,
    /// The call was not sent and never will be: there is no connection, or the server is
    /// overloaded.
    NotSent,
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Done {
    Connected,
    /// The lock is held. The engine must hear when the level is dropped ([`Input::Dropped`]).
    Granted {
        cell: Arc<HoldCell>,
        level: LevelId,
    },
    Released,
    Extended,
    Forced(bool),
    /// The current holders: of a read lock there may be several.
    Inspected(Vec<Holder>),
    /// The permits of a semaphore.
    Counted(Permits),
    /// These permits of a plain semaphore are taken. If the caller does not want them any more, the
    /// engine must hear [`Input::GivenBack`].
    Taken {
        name: Name,
        permits: u32,
    },
    /// The latch is at 0.
    Open,
    /// Whether a counter was set: it had no number yet.
    Set(bool),
    /// The number of a counter, or how many permits were drained.
    Number(i64),
    /// The names of locks that could not be released in time.
    Closed(Vec<Name>),
}

/// A call that the caller of a request may make itself, on an inline connection. No other call is
/// in flight that this one could share a batch with, and nobody else here waits for the lock.
///
/// The caller of a multi lock is offered the calls for all parts, as outputs of one input. They are for
/// different locks, and can be one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inline {
    /// The request whose caller waits for the call.
    pub of: RequestId,
    /// Nobody else uses the client.
    pub alone: bool,
    /// The call needs a connection with client tracking, where connections have it.
    pub tracked: bool,
}

/// Everything the engine can ask of the driver.
#[derive(Debug)]
pub enum Output {
    /// Send this call, and report an [`Input::Outcome`] at most `limit` from now. If the call
    /// carries a not-after, it is a lower bound of the server's current time plus `limit`.
    /// `inline`: a caller may make the call itself.
    Send {
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
        inline: Option<Inline>,
    },
    /// Subscribe to this channel of the name, and again after every gap, until
    /// [`Output::Unsubscribe`].
    Subscribe(Name, Topic),
    /// This channel of the name is not needed any more.
    Unsubscribe(Name, Topic),
    /// Answer the caller.
    Complete { id: RequestId, result: Result<Done> },
    /// A hold with a re-entry key begins. Local questions by key are answered from this cell.
    Opened(Arc<HoldCell>),
    /// All levels of this hold are unwound. Forget it, but not a newer hold of the same key.
    Ended(Arc<HoldCell>),
    /// Tell the listeners of this hold. Not sent for a hold that is being released: its release
    /// reports the loss.
    Lost(Arc<HoldCell>, LostReason),
    /// An event for people to read.
    Event(Event),
    /// The client is closed: the I/O thread can end.
    Stop,
}

/// How many hand-overs in a row, and in how long a time.
pub(super) type Handovers = (usize, Duration);

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest time between two tries of a waiter.
    pub recheck: Duration,
    /// How long a caller waits for an unreachable server that was reached before.
    pub outage: Duration,
    /// How many times in a row, and for how long, a lock may go from one owner of this client to
    /// the next before other clients get a chance.
    pub handovers: Handovers,
    /// How long a channel stays subscribed after the last waiter has gone. A caller that had to
    /// wait often waits again.
    pub linger: Duration,
    /// A call has at least so long to be answered, or a quarter of its lease if that is less.
    pub least_limit: Duration,
    /// How many full renewal calls may be in flight per server. Smaller calls count by their work.
    pub renewals: usize,
    /// The seed of the jitter.
    pub seed: u64,
    /// Whether somebody besides the engine has this `Arc`, given how many references the engine has
    /// itself. That is a lock handle, through which a caller can still learn that its hold was
    /// lost.
    pub is_shared: fn(&Name, usize) -> bool,
}

impl Terms {
    /// The lease that the first acquisition asks for.
    pub(super) fn first_lease(&self) -> Duration {
        let lease = self.lease.duration();
        self.max_hold.map_or(lease, |most| lease.min(most))
    }

    /// How such a hold is stored, with the caller's own value as its owner or with one that is drawn.
    pub(super) fn form(&self, token: Option<Arc<str>>) -> Form {
        Form {
            kind: self.kind,
            token,
            permits: self.permits,
        }
    }

    /// Whether a key that has the lock enters it again. A reader never waits for itself.
    pub(super) fn reenters(&self) -> bool {
        self.reentrant || self.kind.reads()
    }
}

impl Lease {
    pub fn duration(self) -> Duration {
        match self {
            Lease::Watchdog(lease) | Lease::Fixed(lease) | Lease::Adaptive(lease) => lease,
        }
    }

    /// The lease that was granted if the lock lives for `ttl` now, and the time that is certain.
    /// The script of an adaptive lock chooses the lease itself, in whole seconds.
    pub(super) fn granted(self, ttl: Duration) -> (Lease, Duration) {
        match self {
            Lease::Adaptive(_) => {
                let seconds = u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
                (Lease::Adaptive(Duration::from_secs(seconds)), ttl)
            }
            Lease::Watchdog(lease) | Lease::Fixed(lease) => (self, lease),
        }
    }
}
