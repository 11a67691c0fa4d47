//! The waiters of fair locks and fair semaphores. Redis keeps their queue, so each of them asks for
//! itself, and asks again before its place there runs out. A message tells the head of that queue that
//! the lock is free. Only the first waiter of this client listens for it: those behind it come after
//! it in Redis too.
//!
//! The messages of a semaphore go to everybody, since Redisson and clients that do not queue up
//! publish so. Only the head of the queue listens to them. Whoever takes permits or gives its place up
//! tells the next one that it is the head now. Waiters that want more permits than there are have no place,
//! and listen with the head. Each client asks for its first waiter with a place, and for those before it.

use std::time::Duration;

use super::rules::{Wish, blocking, is_being_left, is_blocked};
use crate::engine::cleanup::Left;
use crate::engine::context::Purpose;
use crate::engine::errors::timeout;
use crate::engine::interface::{CallOutcome, RequestId};
use crate::engine::links::Which;
use crate::engine::waiter::{Ahead, Waiter};
use crate::engine::{Engine, timing};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Name, Op, OwnerId, Reply, Topic};

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
        if held_up || alive || self.is_second_of_key(id, waiter) || self.may_overtake(id, waiter) {
            return;
        }
        let queue = self.names.queues.get(&waiter.name);
        let own = queue.map(|queue| blocking(&self.holds, queue, Wish::of(waiter), true).collect());
        let outdated = self.cx.is_outdated(waiter.call.owner);
        let next = outdated.then(|| self.cx.next_owner());
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        waiter.behind_own = own.unwrap_or_default();
        let mut left = None;
        if let Some(next) = next {
            // The next owner takes the place. Only one of two copies of this process gets it. The calls of
            // several owners may have got lost, so the server gets all of them, until it answers.
            let before = std::mem::replace(&mut waiter.call.owner, next);
            if waiter.has_place() {
                if waiter.earlier.len() >= tuning::FORMER_OWNERS {
                    // The first one had a place for certain.
                    left = Some(waiter.earlier.remove(1));
                }
                waiter.earlier.push(before);
            }
        }
        (waiter.ahead, waiter.asked) = (Ahead::Asking { again: false }, true);
        let op = Op::Acquire(waiter.next_try(self.cx.now, self.cx.config.recheck));
        let (limit, purpose) = (waiter.call.limit, Purpose::Try(id));
        let inline = self.view().inline(&self.cx, &purpose, &op);
        if let Some(waiter) = self.names.waiters.get_mut(&id) {
            waiter.inline = inline.is_some();
        }
        self.cx.send(purpose, op.into(), limit, inline);
        self.names.arm_waiter(&mut self.cx, id);
        if let (Some(owner), Some(waiter)) = (left, self.names.waiters.get(&id)) {
            let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
            self.clean_up(Left::of(&name, owner, &form, lease), None);
        }
    }

    /// Whether the call of this waiter may come before that of the head, which is on another connection.
    /// The order here has to be that of the places: this client listens for its first place alone.
    fn may_overtake(&self, id: RequestId, waiter: &Waiter) -> bool {
        let head = self.names.head(&waiter.name);
        head.is_some_and(|head| head.inline) && !self.names.is_head(&waiter.name, id)
    }

    /// The call of the head has its outcome, so those behind it may ask.
    pub(in crate::engine) fn ask_behind(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let fresh = |id: &&RequestId| {
            let waiter = self.names.waiters.get(id);
            waiter.is_some_and(|waiter| waiter.queues() && waiter.ahead == Ahead::No)
        };
        let ids: Vec<RequestId> = queue.waiters.iter().filter(fresh).copied().collect();
        for id in ids {
            self.ask_for_place(id);
        }
    }

    /// Releases what the earlier owners of a waiter may have got. The server has answered its present
    /// owner, which has the place. Before that, a release would take the place away.
    pub(super) fn leave_as(
        &mut self,
        name: &Name,
        form: &Form,
        lease: Duration,
        earlier: &[OwnerId],
    ) {
        for owner in earlier {
            self.clean_up(Left::of(name, *owner, form, lease), None);
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
                let facts = waiter.form.kind.facts();
                let denied = queue.is_some_and(|queue| queue.crowd.is_denied());
                let hears_all = waiter.is_first || denied || !waiter.is_seated();
                let topic = match (facts.heard_by)(waiter.call.owner) {
                    // It only tells who is the first.
                    Topic::Seat(_) if hears_all => facts.topic,
                    own => own,
                };
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
            CallOutcome::Unanswered if waiter.lines_up_anew() => {
                let expires = timing::copy_expires(sent, waiter.call.limit);
                self.line_up_anew(id, expires);
            }
            CallOutcome::Unanswered => self.unanswered_try(id, sent),
            CallOutcome::Answered(
                Reply::Busy { .. } | Reply::Vain { .. } | Reply::Parked { .. },
            ) if waiter.answered => {
                self.remove_waiter(id, false);
            }
            outcome if waiter.answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Busy { ttl }) => {
                self.place_tried_in_vain(id, ttl, again, true)
            }
            CallOutcome::Answered(Reply::Parked { ttl, ahead }) => {
                waiter.is_first = ahead == 0;
                self.place_tried_in_vain(id, ttl, again, true)
            }
            CallOutcome::Answered(Reply::Vain { ttl }) => {
                self.place_tried_in_vain(id, ttl, again, false)
            }
            outcome => self.not_done(id, outcome, was_stale, |engine| engine.ask_for_place(id)),
        }
    }

    /// The first call of a waiter got no answer. It may have got a place, before those that have theirs since,
    /// and the order here has to be that of the places. So the waiter lines up as another owner.
    fn line_up_anew(&mut self, id: RequestId, expires: Moment) {
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let owner = std::mem::replace(&mut waiter.call.owner, next);
        (waiter.ahead, waiter.unsettled, waiter.asked) = (Ahead::No, None, false);
        let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
        self.clean_up(Left::of(&name, owner, &form, lease), Some(expires));
        self.ask_for_place(id);
    }

    /// Another owner has the lock, for `ttl` unless it renews, or comes before this one. The waiter `has`
    /// its place, or wants more permits than there are and has none.
    fn place_tried_in_vain(
        &mut self,
        id: RequestId,
        ttl: Option<Duration>,
        again: bool,
        has: bool,
    ) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        let name = waiter.name.clone();
        waiter.error = None;
        waiter.unsettled = None;
        if !waiter.earlier.is_empty() {
            let earlier = std::mem::take(&mut waiter.earlier);
            let (form, lease) = (waiter.form.clone(), waiter.lease());
            self.leave_as(&name, &form, lease, &earlier);
        }
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
        let had = waiter.announced;
        if let Some(queue) = self.names.queues.get_mut(&name) {
            queue.note_refusal(self.cx.now);
        }
        if let Some(waiter) = self.names.waiters.get_mut(&id) {
            waiter.announced = has;
        }
        match has {
            true if had => {}
            true => self.names.seat(&name, id),
            false => self.names.unseat(&name, id),
        }
        if has && !had {
            self.cx
                .trace("waiting", &name, || "held elsewhere; waiting".to_owned());
        }
        let at = self.asks_again_at(&name, id, ttl);
        self.names.park(&mut self.cx, id, at);
        if again {
            self.ask_for_place(id);
        }
        self.advance(&name);
        if had && !has {
            // The message that made it ask may have been for the next one.
            self.wake_head(&name);
        }
    }

    /// When a waiter asks again by itself that was refused for `ttl`.
    fn asks_again_at(&mut self, name: &Name, id: RequestId, ttl: Option<Duration>) -> Moment {
        let longest = self.cx.config.recheck.min(tuning::PLACE_ASKED);
        let recheck = self.cx.jitter.spread(longest);
        let passed_by = self.names.passed_by(name, id, ttl.is_none());
        let pause = match ttl {
            Some(ttl) => ttl + tuning::EXPIRY_SLACK,
            // The head takes it, and this waiter has to learn for how long.
            None if passed_by > 0 => {
                let many = 1_u32.checked_shl(passed_by).unwrap_or(u32::MAX);
                tuning::TRANSIENT_BACKOFF.0.saturating_mul(many)
            }
            None => recheck,
        };
        self.cx.now.after(pause.min(recheck))
    }

    /// Something may be free. The first waiter with a place asks. The waiters before it have no place yet,
    /// so one of them may be served first: they ask too. A call that is refused takes the message from
    /// nobody.
    pub(super) fn wake_places(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let mut woken: Vec<RequestId> = Vec::new();
        for id in &queue.waiters {
            let Some(waiter) = self.names.waiters.get(id).filter(|one| one.queues()) else {
                continue;
            };
            woken.push(*id);
            if waiter.is_seated() {
                break;
            }
        }
        if woken.is_empty()
            && let Some(queue) = self.names.queues.get_mut(name)
        {
            queue.has_places = false;
        }
        for id in woken {
            self.ask_for_place(id);
        }
    }

    /// This owner is told that it is the head of the queue. It asks when it hears what is free.
    pub(in crate::engine) fn is_head_now(&mut self, name: &Name, owner: OwnerId) {
        let head = self.names.head(name);
        let id = self
            .names
            .queues
            .get(name)
            .and_then(|queue| queue.waiters.front().copied());
        let (Some(head), Some(id)) = (head.filter(|head| head.call.owner == owner), id) else {
            return;
        };
        if head.is_asking() {
            // The answer may be older than the message.
            return self.ask_for_place(id);
        }
        if let Some(head) = self.names.waiters.get_mut(&id) {
            head.is_first = true;
        }
        self.cx.counters.wakeups.add(1);
        self.advance(name);
    }

    /// Lets all waiters ask whose queue Redis keeps, except the first of this client.
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
