//! The waiters of fair locks. Redis keeps their queue, so each of them asks for itself, and asks
//! again before its place there runs out. A message tells the head of that queue that the lock is
//! free. Only the first waiter of this client listens for it: those behind it come after it in Redis
//! too.

use std::time::Duration;

use super::rules::{Wish, is_being_left, is_blocked};
use crate::engine::context::Purpose;
use crate::engine::errors::{clocks_differ, not_replicated, timeout, unanswered};
use crate::engine::interface::{CallOutcome, RequestId};
use crate::engine::links::Which;
use crate::engine::waiter::Ahead;
use crate::engine::{Engine, timing};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Name, OwnerId, Reply, Topic};

impl Engine {
    /// Sends a call of this waiter. If one is in flight, another follows when that is refused.
    pub(in crate::engine) fn ask_for_place(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        let held_up = self.closing.is_some() || !self.cx.links.is_up(&waiter.name);
        // A copy without an answer may still be alive. The next one must not overtake it.
        let alive = waiter.unsettled.is_some_and(|end| end > self.cx.now);
        if waiter.is_asking() || waiter.answered {
            if let Some(waiter) = self.names.waiters.get_mut(&id) {
                waiter.ask_again();
            }
            return;
        }
        if held_up || alive || self.is_second_of_key(id, waiter) {
            return;
        }
        let outdated = self.cx.is_outdated(waiter.owner);
        let next = outdated.then(|| self.cx.next_owner());
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let mut left = None;
        if let Some(next) = next {
            // The next owner takes the place. Only one of two copies of this process gets it.
            let before = std::mem::replace(&mut waiter.owner, next);
            if waiter.has_place() {
                left = waiter.was.replace(before);
            }
        }
        (waiter.ahead, waiter.asked) = (Ahead::Asking { again: false }, true);
        let op = waiter.next_try(self.cx.now, self.cx.config.recheck);
        let limit = waiter.limit();
        self.send(Purpose::Try(id), op, limit);
        self.names.arm_waiter(&mut self.cx, id);
        self.leave_as(id, left);
    }

    /// Releases what an earlier owner of this waiter may have. Until its place has gone to the next
    /// one, that would take the place away.
    fn leave_as(&mut self, id: RequestId, was: Option<OwnerId>) {
        if let (Some(owner), Some(waiter)) = (was, self.names.waiters.get(&id)) {
            let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
            self.clean_up(&name, owner, &form, lease, None);
        }
    }

    /// Lets the first waiter of this client ask, and then listen for its turn. While this client has
    /// the lock itself, it hears of the release anyway.
    pub(in crate::engine) fn advance_place(&mut self, name: &Name, id: RequestId) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        let queue = self.names.queues.get(name);
        let blocked =
            queue.is_some_and(|queue| is_blocked(&self.holds, queue, Wish::of(waiter), false));
        match waiter.ahead {
            Ahead::No => self.ask_for_place(id),
            Ahead::InVain if !blocked && waiter.has_place() => {
                // The confirmation of the subscription causes the next call, which closes the gap
                // between the answer to the last one and the subscription.
                let topic = Topic::Place(waiter.owner);
                self.names.want_channel(&mut self.cx, name, topic);
            }
            Ahead::InVain | Ahead::Asking { .. } => {}
        }
    }

    /// The outcome of a waiter's call. A grant does not come here.
    pub(in crate::engine) fn place_tried(
        &mut self,
        id: RequestId,
        sent: Moment,
        outcome: CallOutcome,
        was_stale: bool,
    ) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let asked = std::mem::replace(&mut waiter.ahead, Ahead::InVain);
        let again = asked == Ahead::Asking { again: true };
        match outcome {
            CallOutcome::Unanswered => {
                let expires = timing::copy_expires(sent, waiter.limit());
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
            CallOutcome::Answered(Reply::Busy { .. }) if waiter.answered => {
                self.remove_waiter(id, false);
            }
            outcome if waiter.answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Busy { ttl }) => self.place_taken(id, ttl, again),
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.refused_for_now(id, clocks_differ())
            }
            CallOutcome::Answered(Reply::Stale) => self.ask_for_place(id),
            CallOutcome::Refused {
                error,
                passing: true,
            } => self.refused_for_now(id, error),
            CallOutcome::NotSent => self.not_sent(id),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let error = not_replicated(waiter.terms.replicas.into(), got);
                self.end_waiter(id, error, true);
            }
            outcome => self.end_try(id, outcome),
        }
    }

    /// The waiter has its place. Another owner has the lock, for `ttl` unless it renews, or comes
    /// before this one.
    fn place_taken(&mut self, id: RequestId, ttl: Option<Duration>, again: bool) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        let name = waiter.name.clone();
        waiter.error = None;
        waiter.unsettled = None;
        let was = waiter.was.take();
        self.leave_as(id, was);
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if waiter.once() {
            // As for other tries (`try_refused`): the holder may be this client.
            if first && is_being_left(self.view(), &name) {
                if let Some(waiter) = self.names.waiters.get_mut(&id) {
                    waiter.failures = 1;
                }
                return self.ask_for_place(id);
            }
            let error = timeout(&name, Some(Duration::ZERO));
            return self.end_waiter(id, error, false);
        }
        let announced = waiter.announced;
        if let Some(queue) = self.names.queues.get_mut(&name) {
            queue.note_refusal(self.cx.now);
        }
        if !announced {
            self.names.seat(&name, id);
            if let Some(waiter) = self.names.waiters.get_mut(&id) {
                waiter.announced = true;
            }
            self.cx
                .trace("waiting", &name, || "held elsewhere; waiting".to_owned());
        }
        let longest = self.cx.config.recheck.min(tuning::PLACE_ASKED);
        let recheck = self.cx.jitter.spread(longest);
        let pause = ttl.map_or(recheck, |ttl| recheck.min(ttl + tuning::EXPIRY_SLACK));
        let at = self.cx.now.after(pause);
        self.names.park(&mut self.cx, id, at);
        if again {
            self.ask_for_place(id);
        }
        self.advance(&name);
    }

    /// Lets all waiters for fair locks ask that are not the first of this client.
    pub(in crate::engine) fn ask_for_places(&mut self, which: Which<'_>) {
        let picked = self.names.waiters.iter().filter(|(id, waiter)| {
            let queues = waiter.queues() && which(&waiter.name);
            queues && !self.names.is_head(&waiter.name, **id)
        });
        let ids: Vec<RequestId> = picked.map(|(id, _)| *id).collect();
        for id in ids {
            self.ask_for_place(id);
        }
    }
}
