//! First acquisitions. Each name has a queue, first come, first served. Only its head talks to
//! Redis.

use std::time::Duration;

use super::cleanup::Cleanups;
use super::context::Purpose;
use super::errors::{
    clocks_differ, foreign, not_replicated, not_sent, timeout, token_busy, unanswered, unconnected,
    unheard,
};
use super::hold::{Hold, Phase};
use super::interface::{CallOutcome, RequestId, Terms};
use super::links::Which;
use super::names::{Attempt, WaitQueue, Waiting};
use super::slab::Slab;
use super::timers::Timer;
use super::turn::Run;
use super::waiter::Waiter;
use super::{Engine, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Kind, Layout, Name, OwnerId, Reply};

impl Engine {
    pub(super) fn acquire(
        &mut self,
        id: RequestId,
        name: Name,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
        form: Form,
    ) {
        let enters = |hold: &Hold| match key {
            OwnerKey::Hold(_) => true,
            _ => terms.reentrant && hold.cell.form() == form,
        };
        let mine = self
            .hold_of(&name, key)
            .filter(|owner| !self.forget_run_out(*owner, key));
        if let Some(owner) = mine.filter(|owner| self.holds.get(owner).is_some_and(enters)) {
            return self.enter(id, owner, key, wait, terms);
        }
        if let Some(lost) = mine
            .filter(|_| terms.tied)
            .and_then(|owner| self.lost_to_release(owner))
        {
            // A release by key must never have two holds to choose from. It could free the lock
            // that another caller relies on.
            return self.cx.fail(id, Error::lost_before(&name, lost));
        }
        if wait != Some(Duration::ZERO)
            && mine.is_some_and(|owner| self.never_ends_by_itself(owner))
        {
            let text = "a caller waits for a lock that its own thread, task or key holds: if nobody else releases it, the \
                        wait never ends; release it first, or let the lock be entered again (option reentrant)";
            self.cx.event("self_wait", EventLevel::Warn, &name, text);
        }
        if let OwnerKey::Hold(_) = key {
            return self.cx.fail(
                id,
                Error::new(
                    ErrorKind::NotOwner,
                    "the hold to re-enter has ended; acquire anew",
                )
                .on(&name),
            );
        }
        if wait == Some(Duration::ZERO) {
            if let Some(down) = self.cx.links.error(&name) {
                return self.cx.fail(id, down.on(&name));
            }
            if self.is_taken_here(&name, form.kind) {
                let error = self
                    .unheard_before(&name, form.kind)
                    .unwrap_or_else(|| timeout(&name, wait));
                return self.cx.fail(id, error.on(&name));
            }
        }
        let owner = self.cx.next_owner();
        let queue = self.names.queues.entry(name.clone()).or_default();
        let first = queue.holds().is_empty() && queue.waiters.is_empty();
        let waiting = &mut queue.other_in(&mut self.names.rooms).waiting;
        waiting.waiters.push_back(id);
        waiting.channel.is_used();
        let waiter = Waiter {
            owner,
            key,
            terms,
            form,
            wait,
            // A try has no deadline, unless it waits for its token: it ends with the first answer
            // or at the response limit.
            deadline: wait
                .filter(|wait| !wait.is_zero())
                .map(|wait| self.cx.now.after(wait)),
            retry: None,
            failures: 0,
            error: None,
            stale: false,
            unsettled: None,
            timed: false,
            handed: false,
            answered: false,
            announced: false,
            name: name.clone(),
        };
        self.names.waiters.insert(id, waiter);
        self.arm_waiter(id);
        if !first {
            self.note_holder(&name);
        }
        self.advance(&name);
    }

    /// Why this hold was lost, if its key still has to release it. A lock with a caller's token is
    /// excluded: another program may release it.
    fn lost_to_release(&self, owner: OwnerId) -> Option<LostReason> {
        let hold = self.holds.get(&owner)?;
        hold.lost().filter(|_| !hold.cell.has_value())
    }

    /// Whether only a release ends this hold, because the watchdog renews it.
    fn never_ends_by_itself(&self, owner: OwnerId) -> bool {
        self.holds
            .get(&owner)
            .is_some_and(|hold| hold.levels.iter().any(|level| level.watched().is_some()))
    }

    /// Notes for the present waiters that somebody has the lock, if that is known.
    fn note_holder(&mut self, name: &Name) {
        if self.is_had(name)
            && let Some(queue) = self.names.queues.get_mut(name)
        {
            queue.note_refusal(self.cx.now);
        }
    }

    /// Whether a hold of this client blocks the queue, or the head is parked because the server
    /// refused it.
    fn is_had(&self, name: &Name) -> bool {
        let head = |queue: &WaitQueue| {
            queue
                .waiters
                .front()
                .and_then(|id| self.names.waiters.get(id))
        };
        self.names.queues.get(name).is_some_and(|queue| {
            head(queue).is_some_and(|head| {
                let refused = head.announced && head.failures == 0 && head.unsettled.is_none();
                (queue.attempt == Attempt::Parked && refused)
                    || is_blocked(&self.holds, queue, head.form.kind, false)
            })
        })
    }

    /// Whether a caller of this client holds the name or waits for it. A try never barges past
    /// those.
    fn is_taken_here(&self, name: &Name, kind: Kind) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        // A waiter that has its answer only keeps its place until its call is settled.
        let waits = |id: &RequestId| {
            self.names
                .waiters
                .get(id)
                .is_some_and(|waiter| !waiter.answered)
        };
        queue.waiters.iter().any(waits) || is_blocked(&self.holds, queue, kind, true)
    }

    /// The server error that currently blocks the head of the queue, if any. A try behind it must
    /// report this error, because the lock may be free.
    fn unheard_before(&self, name: &Name, kind: Kind) -> Option<Error> {
        let queue = self
            .names
            .queues
            .get(name)
            .filter(|queue| !is_blocked(&self.holds, queue, kind, true))?;
        let head = self.names.waiters.get(queue.waiters.front()?)?;
        let is_busy = is_token_busy(&self.holds, &self.cleanups, (name, queue), &head.form);
        head.error
            .clone()
            .or_else(|| (is_busy || head.unsettled.is_some()).then(unanswered))
    }

    /// Lets the head of a queue do what it can. Drops a queue that nobody needs.
    pub(super) fn advance(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        let Some(&id) = queue.waiters.front() else {
            queue.rest(&mut self.names.rooms);
            if queue.channel.wanted {
                self.leave_channel(name);
            } else if queue.is_unused() {
                self.names.queues.remove(name);
            }
            return;
        };
        let Some(head) = self.names.waiters.get(&id) else {
            return;
        };
        let free = queue.attempt == Attempt::Idle
            && !is_blocked(&self.holds, queue, head.form.kind, head.once())
            && self.closing.is_none()
            && self.cx.links.is_up(name);
        if !free {
            return;
        }
        if is_token_busy(&self.holds, &self.cleanups, (name, queue), &head.form) {
            return self.wait_for_token(id);
        }
        if let Some(end) = head.waits_for_turn(queue, self.cx.now) {
            return self.park(id, end);
        }
        queue.attempt = Attempt::InFlight { again: false };
        self.renew_owner(id);
        let Some(head) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let (op, limit) = (head.next_try(), head.limit());
        self.send(Purpose::Try(id), op, limit);
        self.arm_waiter(id);
    }

    /// The head waits until the earlier attempt with its token is over. A try waits for that as
    /// long as for a call.
    #[cold]
    fn wait_for_token(&mut self, id: RequestId) {
        let now = self.cx.now;
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() && waiter.deadline.is_none() {
            waiter.deadline = Some(now.after(waiter.limit()));
            self.arm_waiter(id);
        }
    }

    /// Whether a hold on this name, or the head's call in flight, has this token.
    pub(super) fn is_token_used(&self, name: &Name, token: &str) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        let holds = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Held && hold.cell.has_token(token))
        };
        let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
        let head = queue.waiters.front().filter(|_| in_flight);
        let tries = |id: &RequestId| {
            let of_head = self
                .names
                .waiters
                .get(id)
                .and_then(|head| head.form.token.as_deref());
            of_head == Some(token)
        };
        queue.holds().iter().any(holds) || head.is_some_and(tries)
    }

    /// Gives a waiter an owner of the last connection. If a copy for the previous owner got no
    /// answer, that owner is cleaned up. A token that the caller chose stays.
    pub(super) fn renew_owner(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if !self.cx.is_outdated(waiter.owner) || waiter.form.token.is_some() {
            return;
        }
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut waiter.owner, next);
        if let Some(expired) = waiter.unsettled.take() {
            let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
            self.clean_up(&name, before, &form, lease, Some(expired));
        }
    }

    /// Sets what the head does. Returns what it did before.
    pub(super) fn set_attempt(&mut self, name: &Name, attempt: Attempt) -> Attempt {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return Attempt::Idle;
        };
        let before = queue.attempt;
        // Writing allocates the full state, which a name without waiters does not need.
        if before != attempt {
            queue.attempt = attempt;
        }
        before
    }

    pub(super) fn arm_waiter(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let deadline = waiter.deadline.filter(|_| !waiter.answered);
        let due = deadline.into_iter().chain(waiter.retry).min();
        let timed = std::mem::replace(&mut waiter.timed, due.is_some());
        match due {
            Some(at) => self.cx.timers.arm(Timer::Waiter(id), at),
            None if timed => self.cx.timers.disarm(Timer::Waiter(id)),
            None => {}
        }
    }

    /// The timer of a waiter: its wait is over, or its retry is due.
    pub(super) fn waiter_due(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let name = waiter.name.clone();
        if !waiter.answered && waiter.is_over(self.cx.now) {
            let error = self.late_waiter(id).on(&name);
            return self.give_up(id, error);
        }
        if waiter.retry.is_some_and(|at| at <= self.cx.now) {
            waiter.retry = None;
            self.set_attempt(&name, Attempt::Idle);
            self.advance(&name);
        }
        self.arm_waiter(id);
    }

    /// Why the wait of this caller was not enough. The error is a timeout if anything in that time
    /// showed that somebody has the lock. If the server was unreachable or silent, the lock may be
    /// free. A program that skips its work on a timeout must not mistake that for another worker.
    fn late_waiter(&self, id: RequestId) -> Error {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return unheard(None);
        };
        if let Some(down) = self.cx.links.error(&waiter.name) {
            return down;
        }
        let queue = self.names.queues.get(&waiter.name);
        let refused = queue.and_then(|queue| queue.refused);
        let began = waiter
            .deadline
            .zip(waiter.wait)
            .map(|(end, wait)| end.before(wait));
        let is_refused = refused.is_some_and(|at| Some(at) >= began);
        // An earlier attempt with the head's token may have the lock, or nobody.
        let head = queue.and_then(|queue| self.names.waiters.get(queue.waiters.front()?));
        let is_busy = queue.zip(head).is_some_and(|(queue, head)| {
            is_token_busy(
                &self.holds,
                &self.cleanups,
                (&waiter.name, queue),
                &head.form,
            )
        });
        if !is_refused && is_busy {
            return match head {
                Some(head) if head.form.token == waiter.form.token => token_busy(),
                _ => unheard(waiter.wait),
            };
        }
        if is_refused || self.is_had(&waiter.name) {
            return timeout(&waiter.name, waiter.wait);
        }
        // A connection or an answer that is not late yet says nothing about the server.
        let late = |head: &Waiter| {
            head.unsettled.is_some() || waiter.wait.is_some_and(|wait| wait >= head.limit())
        };
        if let Some(error) = head.and_then(|head| head.error.clone()) {
            return error;
        }
        match head {
            Some(head) if !late(head) => timeout(&waiter.name, waiter.wait),
            _ if !self.cx.links.is_up(&waiter.name) => unconnected(waiter.wait),
            _ => unheard(waiter.wait),
        }
    }

    /// Answers a waiter with an error. If its call is in flight, the waiter keeps its place at the
    /// head until the outcome is known.
    pub(super) fn give_up(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.answered {
            return;
        }
        waiter.answered = true;
        let name = waiter.name.clone();
        self.cx.fail(id, error);
        let queue = self.names.queues.get(&name);
        let on_the_way = queue.is_some_and(|queue| {
            queue.waiters.front() == Some(&id) && matches!(queue.attempt, Attempt::InFlight { .. })
        });
        if on_the_way {
            self.arm_waiter(id);
        } else {
            self.remove_waiter(id, false);
        }
    }

    /// Takes a waiter out of its queue and lets the next one on. Cleans up what the waiter may have
    /// acquired if a copy got no answer, or if `clean` is set.
    pub(super) fn remove_waiter(&mut self, id: RequestId, clean: bool) {
        let Some(waiter) = self.take_waiter(id) else {
            return;
        };
        if clean || waiter.unsettled.is_some() {
            self.clean_up(
                &waiter.name,
                waiter.owner,
                &waiter.form,
                waiter.lease(),
                waiter.unsettled,
            );
        }
        self.advance(&waiter.name);
    }

    /// The outcome of the head's call.
    pub(super) fn tried(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
        let was_stale = std::mem::replace(&mut waiter.stale, is_stale);
        if let (CallOutcome::Answered(Reply::Acquired { ttl, token }), false) =
            (&outcome, waiter.answered)
        {
            return self.won(id, sent, (*ttl, *token));
        }
        let (name, answered, wanted) = (
            waiter.name.clone(),
            waiter.answered,
            waiter.terms.replicas.into(),
        );
        let before = self.set_attempt(&name, Attempt::Idle);
        let again = before == Attempt::InFlight { again: true };
        match outcome {
            CallOutcome::Unanswered => self.unanswered_try(id, sent),
            outcome if answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Busy { ttl }) => self.busy(id, &name, ttl, again),
            // The server has seen the call and did nothing. The driver has learnt the server's
            // clock from the reply, so a stale call can be repeated at once. Two stale replies in a
            // row mean that this does not help.
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.refused_for_now(id, clocks_differ())
            }
            CallOutcome::Answered(Reply::Stale) => self.advance(&name),
            CallOutcome::Refused {
                error,
                passing: true,
            } => self.refused_for_now(id, error),
            CallOutcome::NotSent => self.not_sent(id),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let error = not_replicated(wanted, got);
                self.end_waiter(id, error, true);
            }
            outcome => self.end_try(id, outcome),
        }
    }

    /// The last outcome for a waiter whose caller has its answer, or gets an error now.
    fn end_try(&mut self, id: RequestId, outcome: CallOutcome) {
        let (error, clean) = match outcome {
            CallOutcome::Answered(Reply::Foreign(what)) => (foreign(&what), false),
            CallOutcome::Refused { error, passing } => {
                // A script that was stopped halfway may have left our field behind.
                let halfway = !matches!(error.kind(), ErrorKind::ForeignKind | ErrorKind::Auth);
                (error, halfway && !passing)
            }
            outcome => {
                let text = format!("unexpected outcome of an acquire: {outcome:?}");
                let nothing_done = matches!(
                    outcome,
                    CallOutcome::NotSent | CallOutcome::Answered(Reply::Busy { .. } | Reply::Stale)
                );
                (Error::new(ErrorKind::Internal, text), !nothing_done)
            }
        };
        self.end_waiter(id, error, clean);
    }

    /// Answers a waiter that has no answer yet, and takes it out.
    fn end_waiter(&mut self, id: RequestId, error: Error, clean: bool) {
        if let Some(waiter) = self
            .names
            .waiters
            .get_mut(&id)
            .filter(|waiter| !waiter.answered)
        {
            waiter.answered = true;
            let error = error.on(&waiter.name);
            self.cx.fail(id, error);
        }
        self.remove_waiter(id, clean);
    }

    /// It is unknown whether the call ran. It cannot run after its not-after, so the next copy
    /// starts then. At most one copy is alive at any time.
    fn unanswered_try(&mut self, id: RequestId, sent: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let expires = timing::copy_expires(sent, waiter.limit());
        waiter.unsettled = Some(expires);
        if waiter.answered {
            return self.remove_waiter(id, false);
        }
        if waiter.once() {
            let error = self.cx.links.error(&waiter.name).unwrap_or_else(unanswered);
            return self.end_waiter(id, error, true);
        }
        self.park(id, expires.max(self.cx.now));
    }

    /// The call was not sent. Without a link, `link_up` lets the head try again.
    fn not_sent(&mut self, id: RequestId) {
        if self
            .names
            .waiters
            .get(&id)
            .is_some_and(|waiter| self.cx.links.is_up(&waiter.name))
        {
            self.refused_for_now(id, not_sent());
        }
    }

    fn refused_for_now(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            return self.end_waiter(id, error, false);
        }
        waiter.failures += 1;
        waiter.error = Some(error);
        let pause = self.cx.jitter.backoff(waiter.failures);
        self.park(id, self.cx.now.after(pause));
    }

    /// Parks the head until `at` or a wake-up.
    fn park(&mut self, id: RequestId, at: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        waiter.retry = Some(at);
        let name = waiter.name.clone();
        self.set_attempt(&name, Attempt::Parked);
        self.arm_waiter(id);
    }

    /// Another owner holds the lock, for `ttl` unless it renews.
    fn busy(&mut self, id: RequestId, name: &Name, ttl: Option<Duration>, again: bool) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        waiter.error = None;
        waiter.unsettled = None;
        if waiter.once() {
            return self.try_refused(id, name, first);
        }
        let announced = std::mem::replace(&mut waiter.announced, true);
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.note_refusal(self.cx.now);
            queue.turn.refused(self.cx.now);
            queue.hints = queue.hints.saturating_sub(1);
        }
        if !announced {
            self.cx
                .trace("waiting", name, || "held elsewhere; waiting".to_owned());
        }
        // The confirmation of the subscription causes the next try, which closes the gap between
        // this reply and the subscription. The timer below covers a channel that is never
        // confirmed.
        if !self.want_channel(name) && again {
            return self.advance(name);
        }
        let recheck = self.cx.jitter.spread(self.cx.config.recheck);
        let pause = ttl.map_or(recheck, |ttl| recheck.min(ttl + tuning::EXPIRY_SLACK));
        let end = self.cx.now.after(pause);
        self.park(
            id,
            if self.cx.unseen {
                end.min(timing::look(self.cx.now))
            } else {
                end
            },
        );
    }

    /// Whether this client is releasing this lock.
    fn is_being_left(&self, name: &Name) -> bool {
        let leaves = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Releasing)
        };
        self.names
            .queues
            .get(name)
            .is_some_and(|queue| queue.holds().iter().any(leaves))
            || self.cleanups.iter().any(|cleanup| cleanup.name == *name)
    }

    /// A try found the lock held. The holder may be this client: if the server does not know the
    /// script of a release, the release is sent again, and the `first` try that was sent behind it
    /// overtakes it. A second try certainly comes after the release.
    fn try_refused(&mut self, id: RequestId, name: &Name, first: bool) {
        let leaving = first && self.is_being_left(name);
        match self.names.waiters.get_mut(&id).filter(|_| leaving) {
            Some(waiter) => {
                waiter.failures = 1;
                self.advance(name);
            }
            None => self.end_waiter(id, timeout(name, Some(Duration::ZERO)), false),
        }
    }

    /// The head has acquired the lock. It becomes a hold.
    fn won(&mut self, id: RequestId, sent: Moment, (ttl, token): (Duration, Option<u64>)) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if sent.after(timing::trusted(waiter.lease().min(ttl))) <= self.cx.now {
            return self.won_too_late(id);
        }
        let Some(waiter) = self.remove_timed(id) else {
            return;
        };
        let Some(queue) = self.names.queues.get_mut(&waiter.name) else {
            return;
        };
        queue.take_out(id);
        queue.add_hold(waiter.owner);
        let waiting: &mut Waiting = queue;
        waiting.run = if waiter.handed {
            waiting.run.one_more(sent)
        } else {
            Run::default()
        };
        if !waiting.waiters.is_empty() {
            waiting.run.hear(sent);
        }
        waiting
            .turn
            .taken(self.cx.now, waiter.announced, self.cx.config.handovers.1);
        waiting.note_refusal(self.cx.now);
        if waiting.waiters.is_empty() && !waiting.channel.wanted {
            // The common case: nobody else waits, so there is no waiter to look for.
            queue.rest(&mut self.names.rooms);
            return self.open_hold(id, waiter, sent, ttl, token);
        }
        let (name, key, owner, form) = (
            waiter.name.clone(),
            waiter.key,
            waiter.owner,
            waiter.form.clone(),
        );
        self.open_hold(id, waiter, sent, ttl, token);
        self.adopt_waiters(&name, key, owner, &form);
        self.advance(&name);
    }

    /// Takes a waiter out of its queue.
    pub(super) fn take_waiter(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.remove_timed(id)?;
        if let Some(queue) = self.names.queues.get_mut(&waiter.name) {
            queue.take_out(id);
        }
        Some(waiter)
    }

    /// Removes a waiter and its timer, but leaves its place in the queue.
    fn remove_timed(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.names.waiters.remove(&id)?;
        if waiter.timed {
            self.cx.timers.disarm(Timer::Waiter(id));
        }
        Some(waiter)
    }

    /// The answer came when the lease could not be trusted any more. Gives the lock back and,
    /// unless the caller tries only once, starts again with a new owner.
    fn won_too_late(&mut self, id: RequestId) {
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            let text = "the answer came after the lease could be trusted; raise the lease";
            return self.end_waiter(id, Error::new(ErrorKind::Unavailable, text), true);
        }
        let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
        let burned = std::mem::replace(&mut waiter.owner, next);
        let unsettled = waiter.unsettled.take();
        self.set_attempt(&name, Attempt::Idle);
        self.clean_up(&name, burned, &form, lease, unsettled);
        self.advance(&name);
    }

    /// Waiters with the key of the new hold re-enter it instead of waiting for its end.
    pub(super) fn adopt_waiters(
        &mut self,
        name: &Name,
        key: OwnerKey,
        owner: OwnerId,
        form: &Form,
    ) {
        if key == OwnerKey::Once {
            return;
        }
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let enters =
            |waiter: &Waiter| waiter.key == key && waiter.terms.reentrant && waiter.form == *form;
        let same = |id: &RequestId| {
            self.names
                .waiters
                .get(id)
                .is_some_and(|waiter| enters(waiter) && !waiter.answered)
        };
        let adopted: Vec<RequestId> = queue.waiters.iter().copied().filter(same).collect();
        for id in adopted {
            let Some(waiter) = self.take_waiter(id) else {
                continue;
            };
            let left = waiter
                .deadline
                .map(|end| self.cx.now.until(end))
                .or(waiter.wait);
            self.enter(id, owner, key, left, waiter.terms);
        }
    }

    // ---- wake-ups ----

    /// The head tries now. If its call is in flight, it tries once more after a refusal.
    pub(super) fn wake_head(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        match queue.attempt {
            Attempt::Idle => {}
            Attempt::InFlight { .. } => queue.attempt = Attempt::InFlight { again: true },
            Attempt::Parked => {
                // A copy without an answer may still be alive. The next one must not overtake it.
                let head = queue.waiters.front().copied();
                let alive = head
                    .and_then(|id| self.names.waiters.get(&id))
                    .and_then(|waiter| waiter.unsettled);
                if alive.is_none_or(|expires| expires <= self.cx.now) {
                    queue.attempt = Attempt::Idle;
                    self.cx.counters.wakeups.add(1);
                    self.advance(name);
                }
            }
        }
    }

    /// The channel cannot be subscribed. Waiters still try when the holder's lease ends and at each
    /// recheck.
    pub(super) fn unsubscribable(&mut self, name: &Name, error: &Error) {
        if self.names.queues.contains_key(name) {
            let text = format!(
                "cannot subscribe, so waiters look every {:?} only: {error}",
                self.cx.config.recheck
            );
            self.cx
                .event("unsubscribable", EventLevel::Warn, name, text);
        }
    }

    /// Somebody else wrote the key, or the server forgot that we read it. A message usually follows
    /// a release, so the head waits [`tuning::HINT_DELAY`] for it. The holder's renewals invalidate
    /// the key too and cause one try per third of a lease. At most [`tuning::HINTED_TRIES_IN_VAIN`]
    /// more of these tries are in vain than of the others.
    pub(super) fn hint(&mut self, name: &Name) {
        let now = self.cx.now;
        let Some(queue) = self
            .names
            .queues
            .get_mut(name)
            .filter(|queue| queue.attempt == Attempt::Parked)
        else {
            return;
        };
        if queue.hints >= tuning::HINTED_TRIES_IN_VAIN {
            return;
        }
        let Some(id) = queue.waiters.front().copied() else {
            return;
        };
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        // The holder of a simple lock may be a program that publishes nothing.
        let rest = match waiter.form.kind.layout() {
            Layout::Hash => timing::period(waiter.terms.lease.duration()),
            Layout::Plain | Layout::Learning => self.cx.config.recheck / tuning::HINTED_TRIES,
        };
        let rested = queue.hinted.map(|last| last.after(rest));
        let at = rested
            .unwrap_or_default()
            .max(now.after(tuning::HINT_DELAY));
        // A copy without an answer may be alive until the planned retry.
        if waiter.unsettled.is_none() && waiter.retry.is_none_or(|retry| at < retry) {
            waiter.retry = Some(at);
            queue.hinted = Some(at);
            queue.hints += 2;
            self.arm_waiter(id);
        }
    }

    /// Every name that a caller of this client holds or waits for, sorted to be deterministic.
    pub(super) fn all_names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.names.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// After a reconnect every head looks again. Most names may have a hold and no waiter: those
    /// are passed over before they are sorted.
    pub(super) fn probe_all(&mut self, which: Which<'_>) {
        let is_of_use = |queue: &WaitQueue| {
            !queue.waiters.is_empty() || queue.attempt != Attempt::Idle || queue.channel.wanted
        };
        let probed = self
            .names
            .queues
            .iter()
            .filter(|(name, queue)| is_of_use(queue) && which(name));
        let mut names: Vec<Name> = probed.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        for name in &names {
            self.wake_head(name);
            self.advance(name);
        }
    }

    /// Ends waiters with `error`: those that try once, or all.
    pub(super) fn fail_waiters(&mut self, error: &Error, only_tries: bool, which: Which<'_>) {
        let picked = self
            .names
            .waiters
            .iter()
            .filter(|(_, waiter)| (!only_tries || waiter.once()) && which(&waiter.name));
        let ids: Vec<(RequestId, Name)> = picked
            .map(|(id, waiter)| (*id, waiter.name.clone()))
            .collect();
        for (id, name) in ids {
            self.give_up(id, error.clone().on(&name));
        }
    }
}

/// Whether a hold of this client blocks the waiters. The engine hears first when that hold ends.
/// For a lock of another layout the hold is foreign data, which the server reports.
fn is_blocked(holds: &Slab<Hold>, queue: &WaitQueue, kind: Kind, once: bool) -> bool {
    let blocks = |hold: &Hold| hold.blocks(once) && hold.cell.kind.excludes(kind);
    queue
        .holds()
        .iter()
        .any(|owner| holds.get(owner).is_some_and(&blocks))
}

/// Whether an earlier attempt with the token of this form may still free the name: its lock is
/// being released, or it is cleaned up. The value at the key does not tell the attempts apart, so a
/// try has to wait. If it were granted, a late release of the earlier attempt would free its lock.
fn is_token_busy(
    holds: &Slab<Hold>,
    cleanups: &Cleanups,
    (name, queue): (&Name, &WaitQueue),
    form: &Form,
) -> bool {
    let Some(token) = &form.token else {
        return false;
    };
    let releases = |hold: &Hold| hold.phase == Phase::Releasing && hold.cell.has_token(token);
    let leaves = |owner: &OwnerId| holds.get(owner).is_some_and(releases);
    queue.holds().iter().any(leaves) || cleanups.releases(name, token)
}
