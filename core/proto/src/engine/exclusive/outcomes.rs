//! What happens to waiters: the outcomes of their calls up to the grant, their timers and ends, those that
//! try behind them, and what wakes them.

use std::time::Duration;

use super::rules::{Wish, blocking, is_being_left, late_waiter, unheard_before};
use crate::engine::cleanup::Left;
use crate::engine::context::Granted;
use crate::engine::crowd::Crowd;
use crate::engine::errors::{
    clocks_differ, foreign, not_replicated, not_sent, timeout, unanswered,
};
use crate::engine::hold::Hold;
use crate::engine::interface::{CallOutcome, RequestId};
use crate::engine::links::Which;
use crate::engine::names::{Attempt, WaitQueue, Waiting};
use crate::engine::slab::Slab;
use crate::engine::waiter::{Ahead, Waiter};
use crate::engine::work::Entry;
use crate::engine::{Engine, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::key::OwnerKey;
use crate::maps::SortedSet;
use crate::moment::Moment;
use crate::primitives::facts::Side;
use crate::tuning;
use crate::wire::{Form, Kind, Name, OwnerId, Reply, Topic};

impl Engine {
    /// The outcome of a waiter's call. Those that try behind it hear of it, too.
    pub(in crate::engine) fn tried(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let several = self.names.waiters.len() > 1;
        let name = self.names.waiters.get(&id).filter(|_| several);
        let tried = |name: &Name| self.names.queues.get(name).is_some_and(|one| one.has_tries);
        let Some(name) = name.map(|one| one.name.clone()).filter(tried) else {
            return self.tried_alone(id, sent, outcome);
        };
        let told = match &outcome {
            // Without a time, the lock may be free, and left to the first of a crowd.
            CallOutcome::Answered(Reply::Busy { .. } | Reply::Parked { ttl: Some(_), .. }) => {
                Some(timeout(&name, None))
            }
            CallOutcome::Unanswered => Some(unanswered()),
            CallOutcome::Refused {
                error,
                passing: true,
            } => Some(error.clone()),
            _ => None,
        };
        if let Some(error) = told {
            self.end_tries(&name, sent, &error);
        }
        self.tried_alone(id, sent, outcome);
        self.ask_for_tries(&name);
    }

    fn tried_alone(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
        let was_stale = std::mem::replace(&mut waiter.call.stale, is_stale);
        if waiter.terms.special.steal {
            return self.stole(id, sent, outcome, was_stale);
        }
        if let (CallOutcome::Answered(Reply::Acquired { ttl, token }), false) =
            (&outcome, waiter.answered)
        {
            let id = self.first_alike(id);
            return self.won(id, sent, (*ttl, *token));
        }
        let (name, answered) = (waiter.name.clone(), waiter.answered);
        if let Some(queue) = self
            .names
            .queues
            .get_mut(&name)
            .filter(|one| one.in_a_row > 0)
        {
            queue.in_a_row = 0;
        }
        if waiter.queues() {
            return self.place_tried(id, sent, outcome, was_stale);
        }
        let asked = waiter.is_asking();
        waiter.ahead = Ahead::No;
        if asked && !self.names.is_head(&name, id) {
            // It may have the call of the one that was the head, which asked for a place in a crowd.
            self.note_crowd(id, &name, &outcome);
            return self.tried_ahead(id, sent, outcome);
        }
        let unplaced = self.note_crowd(id, &name, &outcome);
        let before = self.names.set_attempt(&name, Attempt::Idle);
        let again = before == Attempt::InFlight { again: true } || unplaced;
        match outcome {
            CallOutcome::Unanswered => self.unanswered_try(id, sent),
            outcome if answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Busy { ttl } | Reply::Parked { ttl, .. }) => {
                self.busy(id, &name, ttl, again);
            }
            outcome => self.not_done(id, outcome, was_stale, |engine| engine.advance(&name)),
        }
    }

    /// The outcome of a try that did nothing, but not because another owner has the lock. `repeat` sends
    /// it again.
    pub(super) fn not_done(
        &mut self,
        id: RequestId,
        outcome: CallOutcome,
        was_stale: bool,
        repeat: impl FnOnce(&mut Self),
    ) {
        match outcome {
            // The server has seen the call and did nothing. The driver has learnt the server's
            // clock from the reply, so a stale call can be repeated at once. Two stale replies in a
            // row mean that this does not help.
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.refused_for_now(id, clocks_differ());
            }
            CallOutcome::Answered(Reply::Stale) => repeat(self),
            CallOutcome::Refused {
                error,
                passing: true,
            } => self.refused_for_now(id, error),
            CallOutcome::NotSent => self.not_sent(id),
            outcome => self.end_try(id, outcome),
        }
    }

    /// The last outcome for a waiter whose caller has its answer, or gets an error now.
    pub(super) fn end_try(&mut self, id: RequestId, outcome: CallOutcome) {
        let (error, clean) = match outcome {
            CallOutcome::Answered(Reply::Foreign(what)) => (foreign(&what), false),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let waiter = self.names.waiters.get(&id);
                let wanted = waiter.map_or(0, |waiter| waiter.terms.replicas.into());
                (not_replicated(wanted, got), true)
            }
            CallOutcome::Refused { error, passing } => {
                // A script that was stopped halfway may have left our field behind.
                let halfway = !matches!(error.kind(), ErrorKind::ForeignKind | ErrorKind::Auth);
                (error, halfway && !passing)
            }
            outcome => {
                let text = format!("unexpected outcome of an acquire: {outcome:?}");
                let nothing_done = matches!(
                    outcome,
                    CallOutcome::NotSent
                        | CallOutcome::Answered(
                            Reply::Busy { .. }
                                | Reply::Parked { .. }
                                | Reply::Vain { .. }
                                | Reply::Stale
                        )
                );
                (Error::new(ErrorKind::Internal, text), !nothing_done)
            }
        };
        self.end_waiter(id, error, clean);
    }

    /// Answers a waiter that has no answer yet, and takes it out.
    pub(super) fn end_waiter(&mut self, id: RequestId, error: Error, clean: bool) {
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
    pub(super) fn unanswered_try(&mut self, id: RequestId, sent: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let expires = timing::copy_expires(sent, waiter.call.limit);
        waiter.unsettled = Some(expires);
        if waiter.answered {
            return self.remove_waiter(id, false);
        }
        if waiter.once() {
            let error = self.cx.links.error(&waiter.name).unwrap_or_else(unanswered);
            return self.end_waiter(id, error, true);
        }
        let at = expires.max(self.cx.now);
        self.names.park(&mut self.cx, id, at);
    }

    /// The call was not sent. Without a link, `link_up` lets the head try again.
    pub(super) fn not_sent(&mut self, id: RequestId) {
        if self
            .names
            .waiters
            .get(&id)
            .is_some_and(|waiter| self.cx.links.is_up(&waiter.name))
        {
            self.refused_for_now(id, not_sent());
        }
    }

    pub(super) fn refused_for_now(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            return self.end_waiter(id, error, false);
        }
        waiter.failures += 1;
        waiter.error = Some(error);
        let pause = self.cx.jitter.backoff(waiter.failures);
        let at = self.cx.now.after(pause);
        self.names.park(&mut self.cx, id, at);
    }

    /// Another owner holds the lock, for `ttl` unless it renews.
    fn busy(&mut self, id: RequestId, name: &Name, ttl: Option<Duration>, again: bool) {
        let recheck = self.cx.config.recheck;
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        waiter.error = None;
        waiter.unsettled = None;
        if waiter.once() {
            return self.try_refused(id, name, first);
        }
        if !waiter.behind_own.is_empty() {
            // The readers of this client refused it, which tells nothing of others. They may have left
            // since.
            waiter.retry = Some(self.cx.now.after(waiter.recheck(recheck)));
            self.names.arm_waiter(&mut self.cx, id);
            return self.advance(name);
        }
        let announced = std::mem::replace(&mut waiter.announced, true);
        let (stands_back, longest) = (waiter.stands_back, waiter.recheck(recheck));
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
        let queue = self.names.queues.get(name);
        let crowd = queue.filter(|queue| waiter.crowds_in(queue));
        let crowd = crowd.map(|queue| &queue.crowd);
        let ahead = crowd.filter(|crowd| crowd.is_behind());
        let ahead = ahead.and_then(|crowd| crowd.ahead);
        let own = waiter.form.kind.facts().topic;
        let topic = crowd.and_then(Crowd::topic).unwrap_or(own);
        if !self.names.want_channel(&mut self.cx, name, topic) && again {
            return self.advance(name);
        }
        let ends = ttl.map(|ttl| ttl + tuning::EXPIRY_SLACK);
        let mut end = self.cx.next_look(longest, ends, ahead);
        if let Some(last) = stands_back.filter(|last| *last > self.cx.now) {
            if self.let_earlier_reader_first(name) {
                return self.advance(name);
            }
            end = end.min(last);
        }
        if self.cx.unseen && ahead.is_none() {
            end = end.min(timing::look(self.cx.now));
        }
        self.names.park(&mut self.cx, id, end);
    }

    /// A try found the lock held. The holder may be this client: if the server does not know the
    /// script of a release, the release is sent again, and the `first` try that was sent behind it
    /// overtakes it. A second try certainly comes after the release.
    fn try_refused(&mut self, id: RequestId, name: &Name, first: bool) {
        let leaving = first && is_being_left(self.view(), name);
        match self.names.waiters.get_mut(&id).filter(|_| leaving) {
            Some(waiter) => {
                waiter.failures = 1;
                self.advance(name);
            }
            None => self.end_waiter(id, timeout(name, Some(Duration::ZERO)), false),
        }
    }

    /// A caller has acquired the lock. It becomes a hold.
    pub(super) fn won(&mut self, id: RequestId, sent: Moment, told: (Duration, Option<u64>)) {
        let (ttl, token) = told;
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if sent.after(timing::trusted(waiter.lease().min(ttl))) <= self.cx.now {
            return self.won_too_late(id);
        }
        let Some(waiter) = self.names.remove_timed(&mut self.cx, id) else {
            return;
        };
        // An earlier owner of this waiter may have got permits too.
        if waiter.form.kind.is_shared() {
            self.leave_as(&waiter.name, &waiter.form, waiter.lease(), &waiter.earlier);
        }
        let Some(queue) = self.names.queues.get_mut(&waiter.name) else {
            return;
        };
        let was_head = queue.waiters.front() == Some(&id);
        let (gone, others) = blocked_by(&self.holds, queue, &waiter);
        let in_doubt = !gone.is_empty() || !others.is_empty();
        queue.take_out(id);
        queue.add_hold(waiter.call.owner);
        let (place, leaves) = self.hold_in_crowd(&waiter);
        let Some(queue) = self.names.queues.get_mut(&waiter.name) else {
            return;
        };
        let waiting: &mut Waiting = queue;
        waiting.granted(&waiter, sent, self.cx.now, self.cx.config.handovers.1);
        // The common case: nobody else waits, so there is no waiter to look for.
        let alone = waiting.waiters.is_empty() && !waiting.channel.wanted && !in_doubt;
        if alone {
            queue.rest(&mut self.names.rooms);
        } else if leaves {
            self.leave_crowd(&waiter.name);
        }
        let again = waiter.ahead == Ahead::Asking { again: true };
        let (owner, terms) = (waiter.call.owner, waiter.terms);
        let others_wait = || (waiter.name.clone(), waiter.key, waiter.form.clone());
        let others_wait = (!alone).then(others_wait);
        self.open_hold(id, waiter, Granted { terms, sent, ttl }, token);
        if place.is_some() {
            self.note_place(owner, place);
        }
        let Some((name, key, form)) = others_wait else {
            return;
        };
        for other in gone {
            self.lose(other, LostReason::Deleted);
        }
        if !others.is_empty() {
            self.verify(&name);
        }
        self.adopt_waiters(&name, key, owner, &form);
        // A reader that won ahead of the head changes nothing for the others.
        if was_head {
            self.head_won(&name, form.kind, again);
        }
    }

    /// The head has the lock, so those behind it may ask. `again`: a message came during its call.
    fn head_won(&mut self, name: &Name, kind: Kind, again: bool) {
        if kind.reads() {
            self.let_readers_ask_again(name);
        }
        self.advance(name);
        // The message may have been for the next one: permits that one caller gets leave others.
        if again && kind.takes_permits() && kind.facts().queues {
            self.wake_head(name);
        }
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
        let burned = std::mem::replace(&mut waiter.call.owner, next);
        let unsettled = waiter.unsettled.take();
        waiter.ahead = Ahead::InVain;
        waiter.announced &= !waiter.queues();
        if self.names.is_head(&name, id) {
            self.names.set_attempt(&name, Attempt::Idle);
        }
        self.clean_up(Left::of(&name, burned, &form, lease), unsettled);
        if form.kind.facts().queues {
            return self.ask_for_place(id);
        }
        self.advance(&name);
    }

    /// Waiters with the key of the new hold re-enter it instead of waiting for its end.
    pub(in crate::engine) fn adopt_waiters(
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
            |waiter: &Waiter| waiter.key == key && waiter.terms.reenters() && waiter.form == *form;
        let same = |id: &RequestId| {
            self.names
                .waiters
                .get(id)
                .is_some_and(|waiter| enters(waiter) && !waiter.answered && !waiter.is_asking())
        };
        let adopted: Vec<RequestId> = queue.waiters.iter().copied().filter(same).collect();
        for id in adopted {
            let Some(waiter) = self.names.take_waiter(&mut self.cx, id) else {
                continue;
            };
            // It asked as an owner of its own, and got no answer, or has a place.
            self.leave_as(&waiter.name, &waiter.form, waiter.lease(), &waiter.earlier);
            if waiter.leaves_something() {
                self.clean_up_waiter(&waiter);
            }
            let left = waiter.deadline.map(|end| self.cx.now.until(end));
            let (wait, terms) = (left.or(waiter.wait), waiter.terms);
            self.enter(id, owner, Entry { key, wait, terms });
        }
    }

    // ---- the ends of waits ----

    /// The timer of a waiter: its wait is over, or its retry is due.
    pub(in crate::engine) fn waiter_due(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let (name, now) = (waiter.name.clone(), self.cx.now);
        let is_over = !waiter.answered && waiter.is_over(now);
        let told = waiter.self_wait.take_if(|at| is_over || *at <= now);
        if told.is_some() && !waiter.answered {
            let (key, side) = (waiter.key, waiter.form.kind.side());
            self.tell_self_wait(&name, key, side);
        }
        if is_over {
            let error = late_waiter(self.view(), &self.cx, id).on(&name);
            return self.give_up(id, error);
        }
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.retry.take_if(|at| *at <= now).is_some() {
            waiter.due = true;
            if waiter.queues() {
                self.ask_for_place(id);
                return self.names.arm_waiter(&mut self.cx, id);
            }
            self.names.set_attempt(&name, Attempt::Idle);
            self.advance(&name);
        }
        self.names.arm_waiter(&mut self.cx, id);
    }

    fn tell_self_wait(&mut self, name: &Name, key: OwnerKey, side: Side) {
        let mine = self.names.hold_of(&self.holds, name, key, side);
        if mine.is_some_and(|owner| self.holds.never_ends_by_itself(owner)) {
            let text = "a caller waits for a lock that its own thread, task or key holds: if nobody else releases it, the \
                        wait never ends; release it first, or let the lock be entered again (option reentrant)";
            self.cx.event("self_wait", EventLevel::Warn, name, text);
        }
    }

    /// Answers a waiter with an error. If its call is in flight, the waiter keeps its place at the
    /// head until the outcome is known.
    pub(in crate::engine) fn give_up(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.answered {
            return;
        }
        waiter.answered = true;
        let (name, is_asking) = (waiter.name.clone(), waiter.is_asking());
        self.cx.fail(id, error);
        let queue = self.names.queues.get(&name);
        let on_the_way = queue.is_some_and(|queue| {
            queue.waiters.front() == Some(&id) && matches!(queue.attempt, Attempt::InFlight { .. })
        }) || is_asking;
        if on_the_way {
            self.names.arm_waiter(&mut self.cx, id);
        } else {
            self.remove_waiter(id, false);
        }
    }

    /// Takes a waiter out of its queue and lets the next one on. Cleans up what the waiter may have
    /// acquired if a copy got no answer, or if `clean` is set.
    pub(in crate::engine) fn remove_waiter(&mut self, id: RequestId, clean: bool) {
        let was_head = |waiter: &Waiter| self.names.is_head(&waiter.name, id);
        let was_head = self.names.waiters.get(&id).is_some_and(was_head);
        let Some(waiter) = self.names.take_waiter(&mut self.cx, id) else {
            return;
        };
        let name = &waiter.name;
        let queue = self.names.queues.get(name);
        let has_place =
            queue.is_some_and(|queue| queue.waiters.is_empty() && queue.crowd.ahead.is_some());
        if has_place {
            self.leave_crowd(name);
        }
        self.leave_as(&waiter.name, &waiter.form, waiter.lease(), &waiter.earlier);
        if clean || waiter.leaves_something() {
            self.clean_up_waiter(&waiter);
        }
        self.advance(name);
        // This waiter may have heard a message that was for the next one. The server sends no other
        // message when a waiter without a place goes.
        if was_head && waiter.queues() && !waiter.is_seated() {
            self.wake_head(name);
        }
    }

    /// Ends waiters with `error`: those that try once, or all.
    pub(in crate::engine) fn fail_waiters(
        &mut self,
        error: &Error,
        only_tries: bool,
        which: Which<'_>,
    ) {
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

    // ---- tries behind others ----

    /// Whether callers try behind the head of this queue.
    pub(super) fn has_tries(&self, queue: &WaitQueue) -> bool {
        let waiters = &self.names.waiters;
        let tries = |id: &RequestId| waiters.get(id).is_some_and(Waiter::is_to_be_told);
        queue.has_tries && queue.waiters.iter().skip(1).any(tries)
    }

    /// Lets the head ask for those that try behind it. Its answer tells them whether somebody has the
    /// lock. A call that was sent before they came does not, so another one follows it.
    pub(super) fn ask_for_tries(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        if !self.has_tries(queue) {
            if let Some(queue) = self.names.queues.get_mut(name).filter(|one| one.has_tries) {
                queue.has_tries = false;
            }
            return;
        }
        let asks = |id: &RequestId| self.names.waiters.get(id).is_some_and(Waiter::is_asking);
        let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
        if in_flight || queue.waiters.iter().any(asks) {
            return;
        }
        match unheard_before(self.view(), name) {
            Some(error) => self.end_tries(name, self.cx.now, &error),
            None => drop(self.wake_head(name)),
        }
    }

    /// Answers those that try behind the head and came before a call for it was `sent`.
    pub(super) fn end_tries(&mut self, name: &Name, sent: Moment, error: &Error) {
        let Some(queue) = self.names.queues.get(name).filter(|queue| queue.has_tries) else {
            return;
        };
        let ids: Vec<RequestId> = queue.waiters.iter().skip(1).copied().collect();
        let mut told = SortedSet::default();
        // As for the head (`try_refused`): the holder may be this client.
        let left = error.kind() == ErrorKind::Timeout && is_being_left(self.view(), name);
        for id in ids {
            let waiter = self.names.waiters.get_mut(&id);
            let Some(waiter) = waiter.filter(|one| one.is_to_be_told() && one.since <= sent) else {
                continue;
            };
            if left && std::mem::replace(&mut waiter.failures, 1) == 0 {
                continue;
            }
            told.insert(id, ());
            self.names.remove_timed(&mut self.cx, id);
            self.cx.fail(id, error.clone().on(name));
        }
        // All places at once: thousands may have tried.
        if let Some(queue) = self.names.queues.get_mut(name).filter(|_| !told.is_empty()) {
            queue.waiters.retain(|id| !told.contains_key(id));
        }
    }

    // ---- wake-ups ----

    /// The head tries now. If its call is in flight, it tries once more after a refusal. Returns whether
    /// a waiter was woken.
    pub(in crate::engine) fn wake_head(&mut self, name: &Name) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        let head = queue.waiters.front().copied();
        if queue.has_places {
            let of_head = head.and_then(|id| self.names.waiters.get(&id));
            let queues = of_head.is_some_and(Waiter::queues);
            self.wake_places(name);
            if queues {
                return true;
            }
        }
        let Some(queue) = self.names.queues.get_mut(name) else {
            return false;
        };
        let of_head = head.and_then(|id| self.names.waiters.get(&id));
        match queue.attempt {
            Attempt::Idle => {}
            Attempt::InFlight { .. } => {
                queue.attempt = Attempt::InFlight { again: true };
                // Those that ask behind it may be the head before they have their answers.
                let permits = of_head.is_some_and(|waiter| waiter.form.kind.takes_permits());
                let asking = queue.waiters.iter().skip(1).take(tuning::ASKING_AHEAD);
                for id in asking.filter(|_| permits) {
                    if let Some(waiter) = self.names.waiters.get_mut(id) {
                        waiter.ask_again();
                    }
                }
            }
            Attempt::Parked => {
                // A copy without an answer may still be alive. The next one must not overtake it.
                let alive = of_head.and_then(|waiter| waiter.unsettled);
                if alive.is_none_or(|expires| expires <= self.cx.now) {
                    queue.attempt = Attempt::Idle;
                    self.advance(name);
                    return true;
                }
            }
        }
        false
    }

    /// The channel cannot be subscribed. Waiters still try when the holder's lease ends and at each
    /// recheck.
    pub(in crate::engine) fn unsubscribable(&mut self, name: &Name, error: &Error) {
        if self.counting.leave_crowd(&mut self.cx, name) {
            return;
        }
        let queue = self.names.queues.get_mut(name);
        let in_crowd = queue.filter(|queue| {
            let topic = queue.channel.topic;
            queue.crowd.topic() == Some(topic) || matches!(topic, Topic::Seat(_))
        });
        if let Some(queue) = in_crowd {
            // A user may be allowed the channel of the lock alone.
            let head = queue.waiters.front();
            let head = head.and_then(|id| self.names.waiters.get(id));
            let topic = head.map_or(Topic::Lock, |head| head.form.kind.facts().topic);
            if queue.crowd.place.is_some() {
                self.leave_crowd(name);
            }
            if let Some(queue) = self.names.queues.get_mut(name) {
                queue.crowd.deny();
            }
            self.names.want_channel(&mut self.cx, name, topic);
            return;
        }
        if self.names.queues.contains_key(name) || self.counting.knows(name) {
            let text = format!(
                "cannot subscribe, so waiters look every {:?} only: {error:#}",
                self.cx.config.recheck
            );
            self.cx
                .event("unsubscribable", EventLevel::Warn, name, text);
        }
    }

    /// After a reconnect every head looks again. Most names may have a hold and no waiter: those
    /// are passed over before they are sorted.
    pub(in crate::engine) fn probe_all(&mut self, which: Which<'_>) {
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
}

/// The holds of this client that block the new owner: those of which the server says that they are gone,
/// and others, of which nobody knows.
fn blocked_by(
    holds: &Slab<Hold>,
    queue: &WaitQueue,
    waiter: &Waiter,
) -> (Vec<OwnerId>, Vec<OwnerId>) {
    // A thief of this client has the lock, or has had it: answers on two connections may come in
    // another order than the server gave them.
    if waiter.terms.special.steal {
        return Default::default();
    }
    let shares = waiter.form.kind.is_shared();
    // The server says so of those that blocked it when its call was sent.
    let is_gone = |owner: &OwnerId| !shares && waiter.behind_own.contains(owner);
    blocking(holds, queue, Wish::of(waiter), true).partition(is_gone)
}
