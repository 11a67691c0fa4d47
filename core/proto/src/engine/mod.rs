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

mod channel;
mod cleanup;
mod context;
mod errors;
mod expired;
mod fairness;
mod handover;
mod hold;
mod hold_ops;
mod holds;
mod interface;
mod invalidations;
mod lazy_box;
mod levels;
mod links;
mod loss;
mod names;
mod queries;
mod slab;
#[cfg(test)]
pub mod tests;
mod timers;
mod timing;
mod turn;
mod waiter;
mod waiters;
mod watchdog;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::event::Counters;
use crate::hold::HoldCell;
use crate::moment::Moment;
use crate::wire::{Form, Op, OwnerId, first_owner};
use cleanup::Cleanups;
use context::{Call, Context, Purpose};
use expired::Expired;
use hold::{Hold, Phase};
use invalidations::Tracking;
use names::{Names, WaitQueue};
use queries::{Closing, NOBODY, Query, extension_of, release_of};
use slab::Slab;
use timers::Timer;
use watchdog::{Due, Flow};

pub use interface::{
    CallId, CallOutcome, Config, Done, Inline, Input, Lease, LevelId, Output, Request, RequestId,
    Target, Terms,
};
pub use links::{LinkId, Routes, STANDALONE};

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
