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
mod closing;
mod context;
mod counting;
mod crowd;
mod errors;
mod exclusive;
mod expired;
mod hold;
mod holds;
mod interface;
mod lazy_box;
mod levels;
mod links;
mod multi;
mod names;
mod ops;
mod queries;
mod refusals;
mod slab;
#[cfg(test)]
pub mod tests;
mod timers;
mod timing;
mod tracking;
mod turn;
mod view;
mod waiter;
mod watchdog;
mod work;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Counters;
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::names::reader_of;
use crate::wire::{Form, Name, Op, OwnerId, Release, Reply, Topic, first_owner};
use cleanup::{Cleanups, Left};
use closing::Closing;
use context::{Answer, Call, Context, Purpose};
use counting::{Counting, Want};
use errors::refused;
use expired::Expired;
use hold::Phase;
use holds::Holds;
use links::{Outage, Which};
use multi::{Multi, Step};
use names::Names;
use ops::{NOBODY, extension_of};
use queries::{Effect, Queries};
use refusals::Refusals;
use timers::Timer;
use view::View;
use waiter::{Acquisition, Waiter};
use watchdog::{Due, Renewed, Watchdog};

pub use interface::{
    AcquireAll, CallId, CallOutcome, Config, Done, Inline, Input, Lease, LevelId, Output, Part,
    Request, RequestId, Target, Terms,
};
pub use links::{LinkId, Routes, STANDALONE};
pub use multi::in_order;

/// The lock state machine of one client. See the module's documentation.
#[derive(Debug)]
pub struct Engine {
    /// The time, the outputs, the calls and the timers, which every decision needs.
    cx: Context,
    /// Names that a caller of this client holds or waits for.
    names: Names,
    holds: Holds,
    /// Holds that ended as their callers had planned.
    expired: Expired,
    watchdog: Watchdog,
    cleanups: Cleanups,
    refusals: Refusals,
    /// Whether it was told, since the last outage, that releases may not be published.
    untold: bool,
    queries: Queries,
    /// Semaphores without leases, and latches.
    counting: Counting,
    multi: Multi,
    closing: Option<Closing>,
    /// Whether it has ever asked for a place in a crowd. Until then no release looks for one.
    crowded: bool,
    /// The semaphore of which it gave a permit back last while others listened. They would hear of that permit later
    /// than this client, so its next try there asks for a place.
    awaited: Option<Name>,
}

impl Engine {
    pub fn new(config: Config, counters: Arc<Counters>) -> Self {
        Engine {
            cx: Context::new(config, counters),
            names: Names::default(),
            holds: Holds::default(),
            expired: Expired::default(),
            watchdog: Watchdog::default(),
            cleanups: Cleanups::default(),
            refusals: Refusals::default(),
            untold: false,
            queries: Queries::default(),
            counting: Counting::default(),
            multi: Multi::default(),
            closing: None,
            crowded: false,
            awaited: None,
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
        if self.watchdog.is_hurried() {
            Some(first.map_or(self.cx.now, |at| at.min(self.cx.now)))
        } else {
            first
        }
    }

    /// Does what is due at `now`.
    pub fn wake(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.begin(now, out);
        self.do_due();
        self.watchdog.look_at_hurried(&mut self.cx, &mut self.holds);
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
                    self.holds
                        .read_ahead(others.iter().map(|(_, owner)| *owner));
                    for (at, owner) in others {
                        self.tend(owner, at, &mut renewals);
                    }
                }
                Timer::PutOff(link) => {
                    self.watchdog
                        .put_off_due(&mut self.cx, &mut self.holds, link)
                }
                Timer::Cleanup(owner) => self.cleanup_due(owner),
                Timer::Query(id) => self.queries.due(&mut self.cx, id),
                Timer::Caller(id) => self.counting.caller_due(&mut self.cx, id),
                Timer::Multi(id) => self.multi.due(&mut self.cx, id),
                Timer::Counters => self.counting.counters_due(&mut self.cx),
                Timer::Outage(link) => self.outage_over(link),
                Timer::Channels => self.names.channels_due(&mut self.cx),
                Timer::Close => self.finish_close(),
            }
        }
        if !renewals.owners.is_empty() {
            self.watchdog
                .renew_with_neighbours(&mut self.cx, &mut self.holds, renewals);
        }
    }

    /// Sets whether anybody listens to debug events, which follow single locks.
    pub fn set_listened(&mut self, listened: bool) {
        self.cx.listened = listened;
    }

    /// Whether nothing is left to settle: no hold, no waiter, no clean-up.
    pub fn is_settled(&self) -> bool {
        self.view().is_settled()
    }

    /// Whether changes of counters are to be made that no lease makes up for.
    pub fn owes_counts(&self) -> bool {
        !self.counting.is_settled()
    }

    fn view(&self) -> View<'_> {
        View {
            names: &self.names,
            holds: &self.holds,
            cleanups: &self.cleanups,
            counting: &self.counting,
            multi: &self.multi,
        }
    }

    /// The cells of all holds, for a driver that has to give the holds up.
    pub fn cells(&self) -> Vec<Arc<HoldCell>> {
        let holds = self.holds.values().map(|hold| &hold.cell);
        holds.chain(self.multi.cells()).cloned().collect()
    }

    fn begin(&mut self, now: Moment, out: &mut Vec<Output>) {
        // A moment that comes out of order must not move a deadline back.
        self.cx.now = self.cx.now.max(now);
        self.cx.offered = None;
        std::mem::swap(&mut self.cx.out, out);
    }

    fn end(&mut self, out: &mut Vec<Output>) {
        self.advance_multi();
        self.advance_counters();
        for (left, alive_until) in self.queries.take_left() {
            self.clean_up(left, Some(alive_until));
        }
        let closing = self.closing.as_ref();
        if closing.is_some_and(|closing| closing.is_over(&self.cx, self.view())) {
            self.finish_close();
        }
        self.holds.forget_alarms(&mut self.cx);
        self.holds.tidy_alarms(&mut self.cx);
        self.cx.counters.holds.set(self.holds.len() as u64);
        self.cx
            .counters
            .waiting
            .set((self.names.waiters.len() + self.counting.waiting()) as u64);
        std::mem::swap(&mut self.cx.out, out);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Request { id, request } => self.request(id, request),
            Input::Cancel { id } => self.cancel(id),
            Input::Dropped { owner, level } if self.multi.has(owner) => {
                self.multi.dropped(&mut self.cx, owner, level);
            }
            Input::Dropped { owner, level } => self.leave(None, owner, Some(level)),
            Input::Abandoned { owner, level } if self.multi.has(owner) => {
                self.multi.abandon(&mut self.cx, owner, level);
            }
            Input::Abandoned { owner, level } => self.abandon(owner, level),
            Input::Detached { owner, level } if self.multi.has(owner) => {
                self.multi.detach(owner, level);
            }
            Input::Detached { owner, level } => self.detach(owner, level),
            Input::GivenBack { name, permits } => self.counting.give_back(name, permits),
            Input::KeyEnded(key) => self.abandon_keys(&|of| of.belongs_to(key), false),
            Input::KeyGone(key) => self.abandon_keys(&|of| of == key, true),
            Input::Orphaned => self.abandon_keys(&|_| true, false),
            Input::Outcome { call, outcome } => self.outcome(call, outcome),
            Input::AnsweredUntracked { call, reply } => {
                self.cx.unseen = true;
                self.outcome(call, CallOutcome::Answered(reply));
                self.cx.unseen = false;
            }
            Input::Together(outcomes) => {
                outcomes
                    .into_iter()
                    .for_each(|outcome| self.dispatch(outcome));
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

    /// Stops renewing what only these keys can release. With `guarded`, includes what has a guard.
    fn abandon_keys(&mut self, keys: &dyn Fn(OwnerKey) -> bool, guarded: bool) {
        self.multi.abandon_all(&mut self.cx, keys, guarded);
        self.abandon_all(keys, guarded);
    }

    /// Why this request is not looked at.
    fn objection(&self, request: &Request) -> Option<Error> {
        let counts = |closing: &Closing| match request {
            Request::Close { .. } => true,
            // A change that tells what has happened counts beside a close, too.
            Request::Change { change, .. } => change.is_kept() && !closing.is_done(),
            _ => false,
        };
        if self
            .closing
            .as_ref()
            .is_some_and(|closing| !counts(closing))
        {
            return Some(request.named(Error::closed()));
        }
        match request.shares_keys() {
            Some((name, error)) => Some(request.named(error.on(name))),
            None => refused(request),
        }
    }

    fn request(&mut self, id: RequestId, request: Request) {
        if let Some(error) = self.objection(&request) {
            return self.cx.fail(id, error);
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
                let form = terms.form(token);
                self.acquire(Acquisition {
                    id,
                    name,
                    key,
                    wait,
                    terms,
                    form,
                });
            }
            Request::AcquireAll(wanted) => self.multi.acquire(&mut self.cx, id, wanted),
            Request::Release(target) if self.multi.is_meant(&target) => {
                self.multi.release(&mut self.cx, id, &target);
            }
            Request::Release(target) => self.release(id, &target),
            Request::Extend { target, lease } if self.multi.is_meant(&target) => {
                self.multi.extend(&mut self.cx, id, &target, lease);
            }
            Request::Extend { target, lease } => self.extend(id, &target, lease),
            Request::ReleaseToken { name, form } => {
                self.ask(id, Some(Op::Release(Release::of(name, NOBODY, form))))
            }
            Request::ExtendToken { name, form, lease } => {
                self.ask(id, Some(extension_of(name, NOBODY, form, lease)))
            }
            Request::Adopt {
                name,
                key,
                terms,
                token,
            } => {
                let asked = Acquisition {
                    id,
                    name,
                    key,
                    wait: None,
                    form: Form::of(terms.kind),
                    terms,
                };
                self.adopt(asked, token);
            }
            Request::Force { name, kind } => self.ask(id, Some(Op::Force { name, kind })),
            Request::Inspect { name, kind, what } => {
                self.ask(id, Some(Op::Inspect { name, kind, what }));
            }
            Request::Count { name, limit } => self.ask(id, Some(Op::Count { name, limit })),
            Request::Take {
                name,
                permits,
                wait,
            } => {
                let want = Want::Permits(permits, wait);
                self.counting.wait(&mut self.cx, id, name, want);
            }
            Request::Await { name, wait } => {
                self.counting.wait(&mut self.cx, id, name, Want::Open(wait));
            }
            Request::Change { name, change } => {
                self.counting.change(&mut self.cx, id, name, change)
            }
            Request::Read { name, .. } => self.ask(id, Some(Op::Read { name })),
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
        if self.counting.has(id) {
            self.counting.cancel(&mut self.cx, id);
        } else if self.queries.has(id) {
            self.queries.end(&mut self.cx, id, Err(error()));
        } else if self.multi.has_request(id) {
            self.multi.cancel(&mut self.cx, id, error());
        } else if self
            .closing
            .as_mut()
            .is_some_and(|closing| closing.leave(id))
        {
            self.cx.fail(id, error());
        } else {
            self.cancel_command(id, error());
        }
    }

    fn outcome(&mut self, call: CallId, mut outcome: CallOutcome) {
        // Each call has one outcome. A second one is ignored.
        let Some(Call { purpose, sent }) = self.cx.calls.remove(&call) else {
            return;
        };
        if let CallOutcome::Answered(Reply::Untold(done)) = outcome {
            outcome = CallOutcome::Answered(*done);
            if !std::mem::replace(&mut self.untold, true) {
                let text = "the server does not let this user publish releases, so waiters hear of none and look every \
                            recheck only; give the user +publish (in a cluster +spublish) and the channels of the locks";
                self.cx
                    .link_event("unpublishable", EventLevel::Warn, text.to_owned());
            }
        }
        match &outcome {
            CallOutcome::Unanswered => self.cx.counters.unanswered.add(1),
            CallOutcome::Refused {
                error,
                passing: true,
            } if self.refusals.are_news(self.cx.now, error) => {
                let text = format!("what callers wait for is refused: {}", error.message());
                self.cx.link_event("refused", EventLevel::Warn, text);
            }
            _ => {}
        }
        match purpose {
            Purpose::Try(id) => {
                let inline = self.names.inline_ended(id);
                self.tried(id, sent, outcome);
                if let Some(name) = inline {
                    self.ask_behind(&name);
                }
            }
            Purpose::Command(owner) => self.commanded(owner, call, sent, outcome),
            Purpose::HandOver { from, to } => {
                self.handed_over(from, to, call, Answer { sent, outcome });
            }
            Purpose::Renewal { link, asked } => {
                self.renewed(link, &asked, Answer { sent, outcome });
            }
            Purpose::Cleanup { link, owner } => self.cleaned(link, owner, outcome),
            Purpose::Counter(key) => self.counting.answered(&mut self.cx, &key, sent, outcome),
            Purpose::Query { id, name } => self.answered(id, &name, sent, outcome),
        }
    }

    fn send(&mut self, purpose: Purpose, op: impl Into<Arc<Op>>, limit: Duration) -> CallId {
        let op = op.into();
        let inline = self.view().inline(&self.cx, &purpose, &op);
        self.cx.send(purpose, op, limit, inline)
    }

    /// Does the next steps of multi locks, and gives them the answers about their parts.
    fn advance_multi(&mut self) {
        loop {
            if let Some(step) = self.multi.next_step() {
                self.step(step);
            } else if let Some((asked, result)) = self.cx.parts.pop_front() {
                self.multi.answered(&mut self.cx, asked, result);
            } else {
                return;
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Acquire(asked) => self.acquire(asked),
            Step::Release { asked, target } => self.release(asked, &target),
            Step::Extend {
                asked,
                target,
                lease,
            } => self.extend(asked, &target, lease),
            Step::Cancel { asked } => self.cancel(asked),
            Step::Leave { owner, level } => self.leave(None, owner, Some(level)),
            Step::Abandon { owner, level } => self.abandon(owner, level),
        }
    }

    /// Sends what can be sent for counters.
    fn advance_counters(&mut self) {
        while let Some(key) = self.counting.next_ready() {
            if let Some(op) = self.counting.next_call(&mut self.cx, &key) {
                self.send(Purpose::Counter(key.clone()), op, tuning::PLAIN_LIMIT);
            }
            self.counting.settle(&mut self.cx, &key);
        }
        while let Some((name, place)) = self.counting.next_left() {
            self.give_up_place(name, Some(place));
        }
    }

    // ---- requests that concern no hold ----

    fn ask(&mut self, id: RequestId, op: Option<Op>) {
        self.queries.add(&mut self.cx, id, op, None);
        self.send_query(id);
    }

    fn send_query(&mut self, id: RequestId) {
        if let Some((purpose, op)) = self.queries.next_call(&mut self.cx, id) {
            self.send(purpose, op, tuning::PLAIN_LIMIT);
        }
    }

    fn answered(&mut self, id: RequestId, name: &Name, sent: Moment, outcome: CallOutcome) {
        if let CallOutcome::Answered(Reply::Acquired { ttl, token }) = outcome {
            return self.adopted(id, sent, ttl, token);
        }
        match self.queries.answered(&mut self.cx, id, name, outcome) {
            Effect::None => {}
            Effect::Repeat => self.send_query(id),
            Effect::Forced => {
                let text = "force-released by this client";
                self.cx.event("forced", EventLevel::Info, name, text);
                self.lose_all(name, LostReason::Forced, None);
            }
            Effect::Unsure => self.verify(name),
        }
    }

    /// Asks the server whether the holds on this name are still there.
    fn verify(&mut self, name: &Name) {
        let owners = self.names.holds_on(name);
        self.watchdog
            .renew_now(&mut self.cx, &mut self.holds, owners);
    }

    // ---- renewals ----

    fn renewed(&mut self, link: LinkId, asked: &[(OwnerId, Duration)], answer: Answer) {
        let (cx, holds) = (&mut self.cx, &mut self.holds);
        self.watchdog.worked(cx.now, link, asked.len(), &answer);
        let Renewed { lost, again } = self.watchdog.take_renewed(cx, holds, asked, answer);
        for (owner, reason) in lost {
            self.lose(owner, reason);
            self.watchdog.tracking.look_was_right();
        }
        let cleaning = self.cleanups.is_busy(link);
        let (cx, holds) = (&mut self.cx, &mut self.holds);
        self.watchdog.renew_now(cx, holds, again);
        self.watchdog.renew_put_off(cx, holds, link);
        self.watchdog.forget_flow(link, cleaning);
    }

    /// Handles an invalidation: either the keys of these names were changed, or the server stopped
    /// tracking them (`None`: all names). Holds are probed, and waiters may try.
    pub(super) fn invalidated(&mut self, names: Option<Vec<Name>>) {
        let known = || {
            let mut known = self.names.all_names();
            known.extend(self.counting.names());
            known
        };
        for name in names.unwrap_or_else(known) {
            let (cx, holds) = (&mut self.cx, &mut self.holds);
            for owner in self.names.holds_on(&name) {
                self.watchdog.key_changed(cx, holds, owner, false);
            }
            if let Some(reader) = reader_of(&name) {
                self.watchdog.key_changed(cx, holds, reader, true);
            }
            self.names.hint(&mut self.cx, &name);
            self.counting.key_changed(&mut self.cx, &name);
        }
    }

    // ---- clean-ups ----

    /// Repeats the confirmed releases. Another server, or the same one with older data, may still
    /// have these locks. Waiters would wait for the end of their leases.
    pub(super) fn repeat_releases(&mut self, which: Which<'_>) {
        for old in self.cleanups.take_confirmed(self.cx.now, which) {
            let left = Left::of(&old.name, old.owner, &old.form, old.lease);
            self.clean_up(left, None);
        }
    }

    /// Removes what a waiter may have left at the server.
    fn clean_up_waiter(&mut self, waiter: &Waiter) {
        self.clean_up(waiter.left(), waiter.unsettled);
    }

    /// Releases what an owner may have left. If a copy of its acquire may still run until
    /// `alive_until`, another release follows then.
    fn clean_up(&mut self, mut left: Left, alive_until: Option<Moment>) {
        let place = self.end_place(&left.name, left.owner, left.form.kind);
        left.place = left.place.or(place);
        // The lock with this token, if there is one, belongs to a later attempt.
        let used = |token: &Arc<str>| self.view().is_token_used(&left.name, token);
        if left.form.token.as_ref().is_some_and(used) {
            return;
        }
        let known = self.holds.contains_key(&left.owner);
        self.cleanups.begin(&mut self.cx, left, known, alive_until);
    }

    pub(super) fn cleanup_due(&mut self, owner: OwnerId) {
        if let Some(name) = self.cleanups.due(&mut self.cx, owner) {
            self.advance(&name);
        }
    }

    pub(super) fn cleaned(&mut self, link: LinkId, owner: OwnerId, outcome: CallOutcome) {
        let cleaned = self.cleanups.answered(&mut self.cx, owner, outcome);
        if let Some((name, by_token)) = cleaned.released {
            if by_token {
                // The server cannot tell whose lock it was. A look costs little.
                self.verify(&name);
            }
            // The release is published too, but a waiter of this client need not wait for that.
            self.wake_head(&name);
        }
        if let Some(name) = cleaned.token_free {
            self.advance(&name);
        }
        self.cleanups.send_next(&mut self.cx, link);
        self.watchdog.forget_flow(link, self.cleanups.is_busy(link));
    }

    // ---- channels ----

    /// Whether messages about the releases of others may come.
    pub fn has_channels(&self) -> bool {
        self.names.channels > 0 || self.counting.has_channels()
    }

    /// How many release messages may stay unread in the socket before the I/O thread must wake, and
    /// for which lock. `None`: it must wake for everything. With `elsewhere`, a caller makes its
    /// call on the inline connection.
    pub fn skipped(&self, now: Moment, elsewhere: bool) -> Option<(&Name, u32)> {
        self.view().skipped(&self.cx, now, elsewhere)
    }

    /// Whether there is no hold, no waiter and no call in flight.
    pub fn is_at_rest(&self) -> bool {
        let locks = self.holds.is_empty() && self.names.waiters.is_empty();
        locks && self.cx.calls.is_empty() && self.counting.callers() == 0
    }

    /// A message on the channel of a name: the lock was released.
    pub(super) fn message(&mut self, name: &Name) {
        self.counting.heard(&mut self.cx, name);
        let now = self.cx.now;
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        // Other readers may release a lock while one of ours does. A try in vain is cheap.
        let topic = queue.channel.topic;
        let echoes = matches!(topic, Topic::Lock | Topic::ReadWrite | Topic::Semaphore);
        let on_its_way = |owner| {
            let hold = self.holds.get(owner);
            hold.is_some_and(|hold| hold.phase == Phase::Releasing && !hold.cell.kind.reads())
        };
        if echoes && queue.holds().iter().any(on_its_way) {
            // Nobody else can have released a lock, so this is our own message. Where others have
            // released permits, the end of our hold wakes the head.
            queue.channel.echoed = queue.channel.echoed.saturating_add(1);
            return;
        }
        if !queue.channel.takes(now) {
            queue.turn.passed(now);
        } else if topic != Topic::Semaphore {
            return;
        }
        if let Topic::Seat(owner) = topic {
            return self.is_head_now(name, owner);
        }
        if queue.crowd.is_told && queue.crowd.topic() == Some(topic) {
            return self.first_in_crowd(name);
        }
        if queue.waiters.is_empty() && queue.crowd.topic() == Some(topic) {
            // The release of a hold wakes the next one.
            if queue.holds().is_empty() {
                self.leave_crowd(name);
                self.advance(name);
            }
            return;
        }
        let head = queue
            .waiters
            .front()
            .and_then(|id| self.names.waiters.get(id));
        if head.is_none_or(|head| !head.is_over(now)) && self.wake_head(name) {
            self.cx.counters.wakeups.add(1);
        }
    }

    pub(super) fn subscribed(&mut self, name: &Name) {
        self.counting.wake(name);
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.channel.confirmed = true;
            (queue.channel.echo, queue.channel.echoes) = (None, 0);
            queue.channel.echoed = 0;
        }
        self.wake_head(name);
    }

    // ---- servers ----

    fn link_up(&mut self, id: LinkId) {
        let news = self.cx.links.set_up(self.cx.now, id);
        self.untold &= !news;
        self.cx.timers.disarm(Timer::Outage(id));
        let level = if news {
            EventLevel::Info
        } else {
            EventLevel::Debug
        };
        self.cx
            .link_event("connected", level, "connected".to_owned());
        let routes = self.cx.links.routes.clone();
        self.go_on(&|name| routes.link(name) == id);
    }

    fn link_down(&mut self, id: LinkId, error: Error) {
        let ends = self.cx.now.after(self.cx.config.outage);
        let idle = self.view().is_settled() && self.cx.calls.is_empty();
        let outage = Outage {
            error: &error,
            ends,
            idle,
        };
        let down = self.cx.links.set_down(self.cx.now, id, outage);
        if down.begins_outage {
            self.cx.timers.arm(Timer::Outage(id), ends);
        }
        // Every failed attempt comes here. Only the first one of each kind is reported as a warning.
        let level = if down.news {
            EventLevel::Warn
        } else {
            EventLevel::Debug
        };
        let text = format!("not connected: {error:#}");
        self.cx.link_event("disconnected", level, text);
        let routes = self.cx.links.routes.clone();
        let which = |name: &Name| routes.link(name) == id;
        if down.was_up {
            self.holds.arm_all(&mut self.cx, &which);
        }
        if down.give_up {
            self.fail_for_link(&error, &which);
        } else {
            self.fail_waiters(&error, true, &which);
            self.fail_entries(&error, true, &which);
            self.counting
                .fail_callers(&mut self.cx, &error, true, &which);
        }
    }

    /// The server has been unreachable for longer than callers wait for it.
    pub(super) fn outage_over(&mut self, id: LinkId) {
        let Some(error) = self.cx.links.give_up(id) else {
            return;
        };
        let routes = self.cx.links.routes.clone();
        self.fail_for_link(&error, &|name| routes.link(name) == id);
    }

    /// Ends the waits of all callers that need this link. Holds stay trusted until their deadlines.
    fn fail_for_link(&mut self, error: &Error, which: Which<'_>) {
        self.fail_waiters(error, false, which);
        self.fail_entries(error, false, which);
        self.counting
            .fail_callers(&mut self.cx, error, false, which);
        self.queries.fail(&mut self.cx, error, which);
        if let Some(error) = self.cx.links.error_of_all() {
            self.queries.fail_connects(&mut self.cx, &error);
        }
    }

    /// Other servers serve some names from now on. For these names the engine does the same as
    /// after a reconnect.
    pub(super) fn reroute(&mut self, routes: Routes) {
        let (before, left) = self.cx.links.reroute(self.cx.now, routes.clone());
        for id in left {
            self.cx.timers.disarm(Timer::Outage(id));
        }
        self.go_on(&|name| before.link(name) != routes.link(name));
    }

    /// Continues the work on these names after a reconnect: sends the calls that wait, renews the
    /// holds, which makes the server track their keys, and lets waiters try. Work for a server that
    /// is still unreachable waits. Holds come before clean-ups, because after an outage they may
    /// have little time left.
    fn go_on(&mut self, which: Which<'_>) {
        // The queries whose server can be reached now.
        for id in self.queries.ids() {
            self.send_query(id);
        }
        self.watchdog
            .renew_all(&mut self.cx, &mut self.holds, which);
        self.resume_commands(which);
        self.cleanups.resume(&mut self.cx, which);
        self.repeat_releases(which);
        self.probe_all(which);
        self.ask_tries(which);
        self.ask_for_places(which);
        self.counting.resume(which);
    }

    // ---- closing ----

    fn close(&mut self, id: RequestId, limit: Duration) {
        if let Some(closing) = &mut self.closing {
            return closing.join(&mut self.cx, id);
        }
        self.closing = Some(Closing::new(id));
        self.cx.timers.arm(Timer::Close, self.cx.now.after(limit));
        let error = Error::closed();
        // Their parts are released before the holds are, also those that linger.
        self.multi.give_up_all(&mut self.cx, &error);
        self.advance_multi();
        self.fail_waiters(&error, false, &|_| true);
        self.queries.fail_all(&mut self.cx, &error);
        self.close_holds(!limit.is_zero());
        self.multi.close(&mut self.cx);
        self.names.give_up_channels(&mut self.cx);
        self.counting.close(&mut self.cx, &error);
        if limit.is_zero() {
            self.finish_close();
        }
    }

    fn finish_close(&mut self) {
        self.counting.fail_all(&mut self.cx);
        let view = View {
            names: &self.names,
            holds: &self.holds,
            cleanups: &self.cleanups,
            counting: &self.counting,
            multi: &self.multi,
        };
        if let Some(closing) = &mut self.closing {
            closing.finish(&mut self.cx, view);
        }
    }
}
