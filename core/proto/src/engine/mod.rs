//! The lock state machine: holds, levels, waiters, renewals and deadlines.
//!
//! The engine does no I/O, reads no clock and draws no random number. It learns everything from an
//! [`Input`] with the current [`Moment`], and it asks for everything by an [`Output`]. So the same
//! code runs under the driver and in a simulation.
//!
//! Three rules hold everywhere:
//! - A request counts against us when it is sent, and for us when it is answered. A deadline
//!   shrinks before a release goes out, and it grows only by time that was asked for and confirmed.
//! - Due timers run before an input, so an input that arrives late finds its deadline already
//!   handled.
//! - A copy of a command without an answer may run until its not-after. The engine repeats nothing
//!   that changes a count before that. An owner that nobody needs any more is released at once, and
//!   again after the not-after.

mod cleanup;
mod context;
mod expired;
mod fairness;
mod handover;
mod hold_ops;
mod holds;
mod invalidations;
mod lazy_box;
mod levels;
mod links;
mod loss;
mod queries;
mod slab;
#[cfg(test)]
pub mod tests;
mod timers;
mod timing;
mod waiters;
mod watchdog;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::{Counters, Event};
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::wire::{Fencing, Form, Holder, Kind, Name, Op, OwnerId, Reply, first_owner};

use cleanup::Cleanups;
use context::{Call, Context, Purpose};
use expired::Expired;
use holds::{Hold, Phase};
use invalidations::Tracking;
pub use links::{LinkId, Routes, STANDALONE};
use queries::{Closing, NOBODY, Query, extension_of, release_of};
use slab::Slab;
use timers::Timer;
use waiters::{Names, WaitQueue};
use watchdog::{Due, Flow};

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
    /// Delete the lock, no matter which owner holds it.
    Force { name: Name, kind: Kind },
    /// Read the current holder.
    Inspect { name: Name, kind: Kind },
    /// Release everything within `limit`, then stop.
    Close { limit: Duration },
}

impl Request {
    /// The name of the operation, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Connect => "connect",
            Request::Acquire { .. } => "acquire",
            Request::Release(_) => "release",
            Request::Extend { .. } => "extend",
            Request::ReleaseToken { .. } => "release_token",
            Request::ExtendToken { .. } => "extend_token",
            Request::Force { .. } => "force_release",
            Request::Inspect { .. } => "holder",
            Request::Close { .. } => "close",
        }
    }
}

/// Selects a level of a hold.
#[derive(Debug, Clone)]
pub enum Target {
    /// This level.
    Level { owner: OwnerId, level: LevelId },
    /// The newest level of the hold that this key has on this name.
    Key { name: Name, key: OwnerKey },
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
#[derive(Debug)]
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
    Inspected(Option<Holder>),
    /// The names of locks that could not be released in time.
    Closed(Vec<Name>),
}

/// A call that the caller of a request may make itself, on an inline connection. No other call is
/// in flight that this one could share a batch with, and nobody else here waits for the lock.
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
    /// Subscribe to the channel of this name, and again after every gap, until
    /// [`Output::Unsubscribe`].
    Subscribe(Name),
    /// The channel of this name is not needed any more.
    Unsubscribe(Name),
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

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest time between two tries of a waiter.
    pub recheck: Duration,
    /// How long a caller waits for an unreachable server that was reached before.
    pub outage: Duration,
    /// How many times in a row, and for how long, a lock may go from one owner of this client to
    /// the next before other clients get a chance.
    pub handovers: (usize, Duration),
    /// How long a channel stays subscribed after the last waiter has gone. A caller that had to
    /// wait often waits again.
    pub linger: Duration,
    /// How many full renewal calls may be in flight per server. Smaller calls count by their work.
    pub renewals: usize,
    /// The seed of the jitter.
    pub seed: u64,
    /// Whether somebody besides the engine has this `Arc`, given how many references the engine has
    /// itself. That is a lock handle, through which a caller can still learn that its hold was
    /// lost.
    pub is_shared: fn(&Name, usize) -> bool,
}

/// The lock state machine of one client. See the module's documentation.
#[derive(Debug)]
pub struct Engine {
    /// The time, the outputs, the calls and the timers, which every decision needs.
    cx: Context,
    /// Names that a caller of this client holds or waits for.
    names: Names,
    /// There may be very many holds, and each is looked up often. Code that iterates over them
    /// sorts them.
    holds: Slab<Hold>,
    run_out: Expired,
    /// Holds whose keys were changed. Each key comes in an invalidation of its own, so the engine
    /// renews these holds only when all pending inputs are handled. That takes few calls.
    hurried: Vec<OwnerId>,
    // Ordered, so that the same inputs give the same outputs.
    flows: BTreeMap<LinkId, Flow>,
    cleanups: Cleanups,
    queries: BTreeMap<RequestId, Query>,
    tracking: Tracking,
    closing: Option<Closing>,
}

impl Engine {
    pub fn new(config: Config, counters: Arc<Counters>) -> Self {
        Engine {
            cx: Context::new(config, counters),
            names: Names::default(),
            holds: Slab::default(),
            run_out: Expired::default(),
            hurried: Vec::new(),
            flows: BTreeMap::new(),
            cleanups: Cleanups::default(),
            queries: BTreeMap::new(),
            tracking: Tracking::default(),
            closing: None,
        }
    }

    /// Handles one input and appends its outputs to `out`.
    pub fn handle(&mut self, now: Moment, input: Input, out: &mut Vec<Output>) {
        self.begin(now, out);
        // Due timers run first: an input that arrives at or after a deadline is too late, even if
        // nobody woke the engine in between. Messages and invalidations are the exception. They
        // report what other clients did, and several may arrive late. The engine handles all of
        // them before it decides that the turn of the others is over.
        if !matches!(input, Input::Message(_) | Input::Invalidated(_)) {
            self.do_due();
        }
        self.dispatch(input);
        self.end(out);
    }

    /// The next moment at which [`Engine::wake`] must be called, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        let first = self.cx.timers.first();
        if self.hurried.is_empty() {
            first
        } else {
            Some(first.map_or(self.cx.now, |at| at.min(self.cx.now)))
        }
    }

    /// Does what is due at `now`.
    pub fn wake(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.begin(now, out);
        self.do_due();
        self.look_at_hurried();
        self.end(out);
    }

    fn do_due(&mut self) {
        let (mut renewals, mut done) = (Due::default(), 0_u64);
        while let Some((at, timer)) = self.cx.timers.pop_due(self.cx.now) {
            done += 1;
            // A timer that re-arms itself for the current moment would be due for ever.
            debug_assert!(done < 10_000_000, "time stands still: {timer:?}");
            match timer {
                Timer::Waiter(id) => self.waiter_due(id),
                Timer::Hold(owner) => {
                    self.tend(owner, at, &mut renewals);
                    let others = self.cx.timers.pop_holds(at, usize::MAX);
                    self.read_ahead(others.iter().map(|(_, owner)| *owner));
                    for (at, owner) in others {
                        self.tend(owner, at, &mut renewals);
                    }
                }
                Timer::PutOff(link) => self.put_off_due(link),
                Timer::Cleanup(owner) => self.cleanup_due(owner),
                Timer::Query(id) => self.query_due(id),
                Timer::Outage(link) => self.outage_over(link),
                Timer::Channels => self.channels_due(),
                Timer::Close => self.finish_close(),
            }
        }
        if !renewals.owners.is_empty() {
            self.renew_with_neighbours(renewals);
        }
    }

    /// How the caller that waits for this call may make it itself, if it may.
    fn inline(&self, purpose: &Purpose, op: &Op) -> Option<Inline> {
        if !self.cx.calls.is_empty() || matches!(op, Op::Acquire { replicas: 1.., .. }) {
            return None;
        }
        let (of, behind) = match purpose {
            Purpose::Try(id) => (*id, 1),
            Purpose::Query { id, .. } => (*id, 0),
            Purpose::Command(owner) => (self.holds.get(owner)?.asked_by()?, 0),
            // A hand-over serves two callers, the others none.
            Purpose::HandOver { .. } | Purpose::Renewal { .. } | Purpose::Cleanup { .. } => {
                return None;
            }
        };
        let queue = self.names.queues.get(op.name()?);
        if queue.is_some_and(|queue| queue.waiters.len() > behind) {
            return None;
        }
        Some(Inline {
            of,
            alone: self.names.waiters.len() <= behind && self.holds.len() <= 1,
            tracked: queue.is_some_and(|queue| self.needs_tracking(purpose, op, queue)),
        })
    }

    /// Whether a call needs the connection with client tracking. An acquisition that may have to
    /// wait must learn of changes. A write without tracking to a key that the server tracks for us
    /// would come back as a change by somebody else. The release that frees a lock is harmless.
    fn needs_tracking(&self, purpose: &Purpose, op: &Op, queue: &WaitQueue) -> bool {
        let hold = |owner: &OwnerId| self.holds.get(owner);
        if let Purpose::Command(owner) = purpose
            && hold(owner).is_some_and(|hold| hold.phase == Phase::Releasing)
        {
            return false;
        }
        let tracked = |owner: &OwnerId| hold(owner).is_some_and(|hold| !hold.renewal.unseen);
        let may_wait = matches!(op, Op::Acquire { .. }) && queue.channel.wanted;
        may_wait || queue.holds().iter().any(tracked)
    }

    /// Sets whether anybody listens to debug events, which follow single locks.
    pub fn set_listened(&mut self, listened: bool) {
        self.cx.listened = listened;
    }

    /// Whether nothing is left to settle: no hold, no waiter, no clean-up.
    pub fn is_settled(&self) -> bool {
        self.holds.is_empty() && self.names.waiters.is_empty() && self.cleanups.is_empty()
    }

    /// The cells of all holds, for a driver that has to give the holds up.
    pub fn cells(&self) -> Vec<Arc<HoldCell>> {
        self.holds.values().map(|hold| hold.cell.clone()).collect()
    }

    fn begin(&mut self, now: Moment, out: &mut Vec<Output>) {
        // A moment that comes out of order must not move a deadline back.
        self.cx.now = self.cx.now.max(now);
        std::mem::swap(&mut self.cx.out, out);
    }

    fn end(&mut self, out: &mut Vec<Output>) {
        if self.closing.is_some() {
            self.close_if_settled();
        }
        self.forget_alarms();
        self.tidy_alarms();
        self.cx.counters.holds.set(self.holds.len() as u64);
        self.cx
            .counters
            .waiting
            .set(self.names.waiters.len() as u64);
        std::mem::swap(&mut self.cx.out, out);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Request { id, request } => self.request(id, request),
            Input::Cancel { id } => self.cancel(id),
            Input::Dropped { owner, level } => self.leave(None, owner, Some(level)),
            Input::Abandoned { owner, level } => self.abandon(owner, level),
            Input::Detached { owner, level } => self.detach(owner, level),
            Input::KeyEnded(key) => self.abandon_all(|of| of.belongs_to(key), false),
            Input::KeyGone(key) => self.abandon_all(|of| of == key, true),
            Input::Orphaned => self.abandon_all(|_| true, false),
            Input::Outcome { call, outcome } => self.outcome(call, outcome),
            Input::AnsweredUntracked { call, reply } => {
                self.cx.unseen = true;
                self.outcome(call, CallOutcome::Answered(reply));
                self.cx.unseen = false;
            }
            Input::Identity(last_group) => {
                self.cx.first_owner = first_owner(last_group);
                self.cx.last_owner = self.cx.first_owner;
            }
            Input::Up(link) => self.link_up(link),
            Input::Down(link, error) => self.link_down(link, error),
            Input::Routes(routes) => self.reroute(routes),
            Input::Subscribed(name) => self.subscribed(&name),
            Input::Unsubscribable(name, error) => self.unsubscribable(&name, &error),
            Input::Message(name) => self.message(&name),
            Input::Invalidated(names) => self.invalidated(names),
        }
    }

    fn request(&mut self, id: RequestId, request: Request) {
        if self.closing.is_some() {
            return match request {
                Request::Close { limit } => self.close(id, limit),
                _ => self.cx.fail(
                    id,
                    Error::new(ErrorKind::Closed, "the client is closed; open a new one"),
                ),
            };
        }
        match request {
            Request::Connect => self.ask(id, None),
            Request::Acquire {
                name,
                key,
                wait,
                terms,
                token,
            } => {
                let form = Form {
                    kind: terms.kind,
                    token,
                };
                self.acquire(id, name, key, wait, terms, form);
            }
            Request::Release(target) => self.release(id, &target),
            Request::Extend { target, lease } => self.extend(id, &target, lease),
            Request::ReleaseToken { name, form } => {
                self.ask(id, Some(release_of(name, NOBODY, form)))
            }
            Request::ExtendToken { name, form, lease } => {
                self.ask(id, Some(extension_of(name, form, lease)))
            }
            Request::Force { name, kind } => self.ask(id, Some(Op::Force { name, kind })),
            Request::Inspect { name, kind } => self.ask(id, Some(Op::Inspect { name, kind })),
            Request::Close { limit } => self.close(id, limit),
        }
    }

    fn cancel(&mut self, id: RequestId) {
        let error = |text: &str| Error::new(ErrorKind::Cancelled, text);
        if let Some(waiter) = self.names.waiters.get(&id) {
            let text = "the wait was cancelled; nothing stays behind in Redis";
            return self.give_up(id, error(text).on(&waiter.name));
        }
        let text = "the wait was cancelled; a release goes on, and what else was sent may have taken effect";
        let error = || error(text);
        if self.queries.contains_key(&id) {
            self.end_query(id, Err(error()));
        } else if self.stops_closing(id) {
            self.cx.fail(id, error());
        } else {
            self.cancel_command(id, error());
        }
    }

    fn outcome(&mut self, call: CallId, outcome: CallOutcome) {
        // Each call has one outcome. A second one is ignored.
        let Some(Call { purpose, sent }) = self.cx.calls.remove(&call) else {
            return;
        };
        if matches!(outcome, CallOutcome::Unanswered) {
            self.cx.counters.unanswered.add(1);
        }
        match purpose {
            Purpose::Try(id) => self.tried(id, sent, outcome),
            Purpose::Command(owner) => self.commanded(owner, call, sent, outcome),
            Purpose::HandOver { from, to } => self.handed_over(from, to, call, sent, outcome),
            Purpose::Renewal { link, asked } => self.renewed(link, &asked, sent, outcome),
            Purpose::Cleanup { link, owner } => self.cleaned(link, owner, outcome),
            Purpose::Query { id, name } => self.answered(id, &name, outcome),
        }
    }

    fn send(&mut self, purpose: Purpose, op: impl Into<Arc<Op>>, limit: Duration) -> CallId {
        let op = op.into();
        let inline = self.inline(&purpose, &op);
        self.cx.send(purpose, op, limit, inline)
    }
}
