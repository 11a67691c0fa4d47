//! First acquisitions, from the request to the call. Each name has a queue, first come, first served. Only
//! its head talks to Redis, except for readers beside other readers, callers behind one that got permits, and
//! writers that steal the lock.

use std::time::Duration;

use super::rules::{
    Wish, blocking, comes_behind, is_being_left, is_blocked, is_had, is_read_only, is_token_busy,
    unheard_before,
};
use crate::engine::cleanup::Left;
use crate::engine::context::Purpose;
use crate::engine::errors::{not_sent, timeout, unanswered};
use crate::engine::hold::Phase;
use crate::engine::interface::{CallOutcome, RequestId};
use crate::engine::links::Which;
use crate::engine::names::{Attempt, WaitQueue};
use crate::engine::waiter::{Acquisition, Ahead, Waiter};
use crate::engine::{Engine, timing};
use crate::error::{Error, LostReason};
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::primitives::facts::Side;
use crate::tuning;
use crate::wire::{Name, Op, OwnerId, Reply, Topic};

impl Engine {
    pub(in crate::engine) fn acquire(&mut self, asked: Acquisition) {
        if asked.terms.special.steal {
            return self.steal(asked);
        }
        let (id, name, key) = (asked.id, &asked.name, asked.key);
        let mine = self
            .names
            .hold_of(&self.holds, name, key, asked.form.kind.side())
            .filter(|owner| !self.forget_run_out(*owner, key));
        let enters = |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| asked.enters(hold));
        if let Some(owner) = mine.filter(enters) {
            return self.enter(id, owner, asked.entry());
        }
        let under = self.writer_of(&asked);
        let behind = asked.once() && comes_behind(self.view(), &asked, under);
        let refusal = self.refusal(&asked, mine);
        if let Some(error) = refusal.or_else(|| self.refusal_of_try(&asked, behind)) {
            return self.cx.fail(id, error.on(name));
        }
        let for_itself = asked.wait != Some(Duration::ZERO)
            && !asked.form.kind.reads()
            && mine.is_some_and(|owner| self.holds.never_ends_by_itself(owner));
        let mut waiter = Waiter {
            behind,
            under,
            self_wait: for_itself.then(|| self.cx.now.after(tuning::SELF_WAIT)),
            ..self.waiter(asked)
        };
        if under.is_none() && waiter.form.kind.reads() {
            // A writer that waited for its own reader would wait for ever.
            let preference = waiter.terms.special.writer_preference;
            waiter.stands_back = preference.map(|most| self.cx.now.after(most));
        }
        self.line_up(id, waiter);
    }

    /// A waiter with an owner of its own.
    pub(super) fn waiter(&mut self, asked: Acquisition) -> Waiter {
        let owner = self.cx.next_owner();
        let terms = &asked.terms;
        let limit = self
            .cx
            .limit_with(terms.replicas.into(), terms.first_lease());
        // A try has no deadline, unless it waits for its token: it ends with the first answer
        // or at the response limit.
        let wait = asked.wait.filter(|wait| !wait.is_zero());
        Waiter {
            since: self.cx.now,
            deadline: wait.map(|wait| self.cx.now.after(wait)),
            ..Waiter::new(asked, owner, limit)
        }
    }

    /// Why this key cannot acquire the name. `mine`: the hold of this side that it has.
    fn refusal(&self, asked: &Acquisition, mine: Option<OwnerId>) -> Option<Error> {
        let lost = mine.filter(|_| asked.terms.tied);
        if let Some(lost) = lost.and_then(|owner| self.holds.lost_to_release(owner)) {
            // A release by key must never have two holds to choose from. It could free the lock
            // that another caller relies on.
            return Some(Error::lost_before(&asked.name, lost));
        }
        if let OwnerKey::Hold(_) = asked.key {
            let is_live = mine.is_some_and(|owner| self.holds.is_held(owner));
            return Some(Error::not_entered(is_live));
        }
        let kind = asked.form.kind;
        let second = kind.facts().second_of_key;
        if let Some(text) = second.filter(|_| asked.key != OwnerKey::Once)
            && (mine.is_some() || self.waits(asked))
        {
            return Some(Error::invalid(text));
        }
        let reader = || {
            let (name, key) = (&asked.name, asked.key);
            let reader = self.names.hold_of(&self.holds, name, key, Side::Read)?;
            self.holds.is_held(reader).then(Error::upgrade)
        };
        kind.writes().then(reader)?
    }

    /// Why this caller does not even try. A reader that tries does not fail because another reader waits,
    /// nor one that wants permits because another's try is in flight.
    fn refusal_of_try(&self, asked: &Acquisition, behind: bool) -> Option<Error> {
        let down = || self.cx.links.error(&asked.name);
        let unheard = || unheard_before(self.view(), &asked.name).filter(|_| behind);
        // The head of those that want permits may want more than this one. Its refusal says little.
        let permits = behind && asked.form.kind.takes_permits();
        let refused = || permits.then(|| timeout(&asked.name, asked.wait));
        asked
            .once()
            .then(|| down().or_else(unheard).or_else(refused))?
    }

    /// Whether a caller with this key waits for the name.
    fn waits(&self, asked: &Acquisition) -> bool {
        // A waiter that has its answer only stays until its call is settled.
        let waits = |waiter: &Waiter| {
            waiter.key == asked.key && waiter.name == asked.name && !waiter.answered
        };
        self.names.waiters.iter().any(|(_, waiter)| waits(waiter))
    }

    /// The owner of the write lock that this key has while it asks to read.
    fn writer_of(&self, asked: &Acquisition) -> Option<OwnerId> {
        let (name, key) = (&asked.name, asked.key);
        let writer = || self.names.hold_of(&self.holds, name, key, Side::Write);
        let writer = asked.form.kind.reads().then(writer)??;
        self.holds.is_held(writer).then_some(writer)
    }

    /// Puts a caller into the queue of its name, and lets it ask if it need not wait for those before it.
    fn line_up(&mut self, id: RequestId, waiter: Waiter) {
        let (name, kind) = (waiter.name.clone(), waiter.form.kind);
        let (once, behind) = (waiter.once(), waiter.behind);
        let queue = self.names.queues.entry(name.clone()).or_default();
        let first = queue.holds().is_empty() && queue.waiters.is_empty();
        let waiting = &mut queue.other_in(&mut self.names.rooms).waiting;
        waiting.line_up(id, &waiter);
        let has_place = kind.reads() && waiting.crowd.ahead.is_some();
        self.names.waiters.insert(id, waiter);
        self.names.arm_waiter(&mut self.cx, id);
        if has_place {
            self.leave_crowd(&name);
            self.names
                .want_channel(&mut self.cx, &name, Topic::ReadWrite);
        }
        if !first {
            self.note_holder(&name);
            if kind.reads() && self.head_stands_back(&name) {
                self.let_earlier_reader_first(&name);
            }
        }
        self.advance(&name);
        if behind {
            return self.ask_for_tries(&name);
        }
        if self.names.is_head(&name, id) || !self.cx.links.is_up(&name) {
            return;
        }
        if kind.facts().queues {
            self.ask_for_place(id);
        } else if once && kind.is_shared() {
            self.ask_ahead(id);
        }
    }

    /// Notes for the present waiters that somebody has the lock, if that is known.
    fn note_holder(&mut self, name: &Name) {
        if is_had(self.view(), name)
            && let Some(queue) = self.names.queues.get_mut(name)
        {
            queue.note_refusal(self.cx.now);
        }
    }

    /// Lets the head of a queue do what it can. Drops a queue that nobody needs.
    pub(in crate::engine) fn advance(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let Some(&id) = queue.waiters.front() else {
            return self.rest(name);
        };
        let Some(head) = self.names.waiters.get(&id) else {
            return;
        };
        if head.queues() {
            return self.advance_place(name, id);
        }
        let idle = queue.attempt == Attempt::Idle;
        let ended = |writer: OwnerId| !self.holds.is_held(writer);
        if idle && !head.is_asking() && head.under.is_some_and(ended) {
            return self.put_reader_back(name, id);
        }
        let several = queue.waiters.len() > 1;
        let reads = head.form.kind.reads() && several;
        let takes_on = queue.in_a_row > 1 && several;
        // A hold of this client may have been deleted by others. So it refuses no try: the server does.
        let tries = head.once() || self.has_tries(queue);
        let blocked = !tries && is_blocked(&self.holds, queue, Wish::of(head), false);
        // A writer asks now and then while this client reads: its call leaves the mark for which readers
        // of other clients stand back.
        let marks = || head.marks_now(self.cx.now) && is_read_only(&self.holds, queue);
        let free =
            idle && (!blocked || marks()) && self.closing.is_none() && self.cx.links.is_up(name);
        if (!free || self.try_head(name, id, tries)) && reads {
            self.let_readers_in(name);
        }
        if takes_on {
            self.take_more(name);
        }
    }

    /// Nobody waits for this name any more.
    fn rest(&mut self, name: &Name) {
        let left = |queue: &WaitQueue| queue.crowd.is_left_behind();
        if self.names.queues.get(name).is_some_and(left) {
            self.leave_crowd(name);
        }
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        queue.rest(&mut self.names.rooms);
        if queue.channel.wanted {
            // Nobody gets the place of another one, but in a crowd it is that of the client.
            let topic = queue.channel.topic;
            let crowd = queue.crowd.place.map(Topic::Place) == Some(topic);
            let of_one = matches!(topic, Topic::Place(_) | Topic::Seat(_));
            let ends = self.closing.is_some() || (of_one && !crowd);
            let linger = if ends {
                Duration::ZERO
            } else {
                self.cx.config.linger
            };
            self.names.leave_channel(&mut self.cx, name, linger);
        } else if queue.is_unused() {
            self.names.queues.remove(name);
        }
    }

    /// Sends the call of the head, which nothing keeps from it but the turn of others. `tries`: others that
    /// try wait for its answer. Returns whether it was sent.
    fn try_head(&mut self, name: &Name, id: RequestId, tries: bool) -> bool {
        let (Some(head), Some(queue)) =
            (self.names.waiters.get(&id), self.names.queues.get_mut(name))
        else {
            return false;
        };
        if head.is_asking() {
            // It asked before it was the head, and so did those behind it.
            let again = head.ahead == Ahead::Asking { again: true };
            queue.attempt = Attempt::InFlight { again };
            return false;
        }
        if is_token_busy(&self.holds, &self.cleanups, head, queue) {
            self.end_tries(name, self.cx.now, &unanswered());
            self.names.wait_for_token(&mut self.cx, id);
            return false;
        }
        let turn = head.waits_for_turn(&queue.turn, self.cx.now);
        if let Some(end) = turn.filter(|_| !tries) {
            self.names.park(&mut self.cx, id, end);
            return false;
        }
        let behind_own = blocking(&self.holds, queue, Wish::of(head), true).collect();
        queue.attempt = Attempt::InFlight { again: false };
        let crowds = self.crowded || self.awaited.is_some() || queue.turn.has_rivals();
        if self.cx.is_outdated(head.call.owner) {
            self.renew_owner(id);
        }
        let Some(head) = self.names.waiters.get_mut(&id) else {
            return false;
        };
        head.behind_own = behind_own;
        head.due &= crowds;
        let limit = head.call.limit;
        let mut op = head.next_try(self.cx.now, self.cx.config.recheck);
        // A try is refused by a holder only, not by those that come first.
        let leaves = crowds && self.stand_in_crowd(id, &mut op, !tries);
        self.send(Purpose::Try(id), Op::Acquire(op), limit);
        self.names.arm_waiter(&mut self.cx, id);
        if leaves {
            self.leave_crowd(name);
        }
        true
    }

    /// Gives a waiter an owner of the last connection. If the previous owner may have left something,
    /// that is cleaned up. A token that the caller chose stays.
    pub(in crate::engine) fn renew_owner(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if !self.cx.is_outdated(waiter.call.owner) || waiter.form.token.is_some() {
            return;
        }
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let (left, unsettled) = (waiter.left(), waiter.unsettled.take());
        (waiter.call.owner, waiter.marked) = (next, false);
        if unsettled.is_some() || left.marked {
            self.clean_up(left, unsettled);
        }
    }

    // ---- permits ----

    /// The server granted permits in a row. So as many of the next callers ask at once, if they want the same.
    /// The calls that are in vain then are not more than the grants before them.
    fn take_more(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let may = self.closing.is_none() && self.cx.links.is_up(name);
        let to_others = queue.turn.of_others(self.cx.now).is_some() || queue.crowd.is_known();
        let Some(head) = self.names.head(name).filter(|_| may && !to_others) else {
            return;
        };
        let most = usize::from(queue.in_a_row).min(tuning::ASKING_AHEAD);
        let behind = queue.waiters.iter().take(most).skip(1);
        let behind = behind.map_while(|id| Some((*id, self.names.waiters.get(id)?)));
        let alike = behind.take_while(|(_, waiter)| waiter.wants_as(head));
        let idle = |waiter: &Waiter| {
            !waiter.is_asking() && !waiter.answered && !waiter.once() && waiter.unsettled.is_none()
        };
        let next = alike.filter(|(_, waiter)| idle(waiter));
        let next: Vec<RequestId> = next.map(|(id, _)| id).collect();
        for id in next {
            if let Some(waiter) = self.names.waiters.get_mut(&id) {
                waiter.ahead = Ahead::No;
            }
            self.ask_ahead(id);
        }
    }

    /// The caller that gets the permits of this one's call: the first that wants the same. It may have been
    /// refused just before. Its call is this one's now, if it is in flight.
    pub(super) fn first_alike(&mut self, id: RequestId) -> RequestId {
        let waiter = self.names.waiters.get(&id);
        let asked = |waiter: &&Waiter| {
            waiter.is_asking() && waiter.form.kind.takes_permits() && !waiter.queues()
        };
        let Some(waiter) = waiter.filter(asked).filter(|waiter| !waiter.once()) else {
            return id;
        };
        let Some(queue) = self.names.queues.get(&waiter.name) else {
            return id;
        };
        let alike = |other: &Waiter| {
            // A copy without an answer may have got permits for it.
            let open = other.unsettled.is_none() && !other.inline && !other.answered;
            other.wants_as(waiter) && open && !other.once()
        };
        let before = queue.waiters.iter().take_while(|other| **other != id);
        let first = before
            .copied()
            .find(|other| self.names.waiters.get(other).is_some_and(alike));
        let Some(first) = first else {
            return id;
        };
        let of_head = (queue.waiters.front() == Some(&first)).then_some(queue.attempt);
        let mut calls = self.cx.calls.iter();
        let call = calls.find_map(|(call, of)| of.is_try_of(first).then_some(*call));
        drop(calls);
        if let Some(call) = call.and_then(|call| self.cx.calls.get_mut(&call)) {
            call.purpose = Purpose::Try(id);
        }
        let waiters = &mut self.names.waiters;
        let Some(mut later) = waiters.remove(&id) else {
            return id;
        };
        if let Some(earlier) = waiters.get_mut(&first) {
            let again = of_head == Some(Attempt::InFlight { again: true })
                || earlier.ahead == Ahead::Asking { again: true };
            later.ahead = call.map_or(Ahead::InVain, |_| Ahead::Asking { again });
            std::mem::swap(&mut later.call, &mut earlier.call);
        }
        waiters.insert(id, later);
        first
    }

    // ---- readers ----

    /// This reader stands at the front because it reads under its own write lock. That has ended
    /// before it could ask, so it goes back to its place.
    #[cold]
    pub(super) fn put_reader_back(&mut self, name: &Name, id: RequestId) {
        if let Some(head) = self.names.waiters.get_mut(&id) {
            head.under = None;
        }
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.waiters.pop_front();
            // Others at the front may read under that lock too, and have to go back themselves.
            let before = queue.waiters.iter().rposition(|earlier| *earlier < id);
            queue.waiters.insert(before.map_or(0, |at| at + 1), id);
        }
        self.advance(name);
    }

    /// While this client reads, the readers at the front of the queue all ask at once: nobody keeps
    /// them out. A writer among them has its turn before those behind it. A reader that tries once
    /// asks in any case, because readers before it do not take the lock away from it.
    pub(super) fn let_readers_in(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let is_read = |owner: &OwnerId| {
            let hold = self.holds.get(owner);
            hold.is_some_and(|hold| hold.phase == Phase::Held && hold.cell.kind.reads())
        };
        if self.closing.is_some() || !self.cx.links.is_up(name) {
            return;
        }
        let mut reads = None;
        let mut keys: Vec<OwnerKey> = Vec::new();
        let mut asking: Vec<RequestId> = Vec::new();
        let front = queue.waiters.iter().take(tuning::ASKING_AHEAD);
        for (at, id) in front.enumerate() {
            let Some(waiter) = self
                .names
                .waiters
                .get(id)
                .filter(|waiter| waiter.form.kind.reads())
            else {
                break;
            };
            // The next one of a key enters the hold that the first one gets.
            let alone = waiter.key == OwnerKey::Once || !keys.contains(&waiter.key);
            keys.push(waiter.key);
            let fresh = waiter.ahead == Ahead::No && !waiter.answered && waiter.unsettled.is_none();
            if at == 0 || !alone || !fresh {
                continue;
            }
            let reads = *reads.get_or_insert_with(|| queue.holds().iter().any(is_read));
            let blocked = is_blocked(&self.holds, queue, Wish::of(waiter), false);
            if waiter.once() || (reads && !blocked) {
                asking.push(*id);
            }
        }
        for id in asking {
            self.ask_ahead(id);
        }
    }

    /// Whether the head is a reader that was refused and may be standing back for writers.
    pub(super) fn head_stands_back(&self, name: &Name) -> bool {
        let parked = self.names.queues.get(name);
        let parked = parked.filter(|queue| queue.attempt == Attempt::Parked);
        let head = parked.and_then(|queue| self.names.waiters.get(queue.waiters.front()?));
        head.is_some_and(|head| head.stands_back.is_some_and(|end| end > self.cx.now))
    }

    /// The head is a reader that stands back for writers of other clients. If another reader at the
    /// front does so for a shorter time, or not at all, it becomes the head. Returns whether another one did.
    pub(super) fn let_earlier_reader_first(&mut self, name: &Name) -> bool {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return false;
        };
        let waiters = &self.names.waiters;
        let front = queue.waiters.iter().take(tuning::ASKING_AHEAD).enumerate();
        let mut keys: Vec<OwnerKey> = Vec::new();
        let mut first = None;
        for (at, id) in front {
            let reads = |waiter: &&Waiter| waiter.form.kind.reads();
            let Some(waiter) = waiters.get(id).filter(reads) else {
                break;
            };
            // The next one of a key enters the hold that the first one gets.
            let alone = waiter.key == OwnerKey::Once || !keys.contains(&waiter.key);
            keys.push(waiter.key);
            let waits = !waiter.answered && !waiter.is_asking() && waiter.unsettled.is_none();
            let end = waiter.stands_back;
            if alone && waits && first.is_none_or(|(_, earliest)| end < earliest) {
                first = Some((at, end));
            } else if at == 0 {
                // A copy of the head may still be alive.
                return false;
            }
        }
        let Some((at, _)) = first.filter(|(at, _)| *at > 0) else {
            return false;
        };
        let head = queue.waiters.front().copied();
        if let Some(id) = queue.waiters.remove(at) {
            queue.waiters.push_front(id);
        }
        queue.attempt = Attempt::Idle;
        if let Some(id) = head {
            if let Some(waiter) = self.names.waiters.get_mut(&id) {
                waiter.retry = None;
            }
            self.names.arm_waiter(&mut self.cx, id);
        }
        true
    }

    /// Readers behind the head have asked in vain, as they stood back for a writer. Now the head reads.
    pub(super) fn let_readers_ask_again(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        for id in queue.waiters.iter().take(tuning::ASKING_AHEAD) {
            let waiter = self.names.waiters.get_mut(id);
            if let Some(waiter) = waiter.filter(|waiter| waiter.ahead == Ahead::InVain) {
                waiter.ahead = Ahead::No;
            }
        }
    }

    /// Sends the call of a reader that is not the head of its queue, unless that was done. A key has
    /// one hold of a side: its second reader enters the hold that the first one gets.
    pub(super) fn ask_ahead(&mut self, id: RequestId) {
        let asks =
            |waiter: &Waiter| waiter.ahead == Ahead::No && !self.is_second_of_key(id, waiter);
        if !self.names.waiters.get(&id).is_some_and(asks) {
            return;
        }
        self.renew_owner(id);
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        waiter.ahead = Ahead::Asking { again: false };
        let op = waiter.next_try(self.cx.now, self.cx.config.recheck);
        let limit = waiter.call.limit;
        self.send(Purpose::Try(id), Op::Acquire(op), limit);
        self.names.arm_waiter(&mut self.cx, id);
    }

    /// Whether another caller with the key of this one waits before it.
    pub(super) fn is_second_of_key(&self, id: RequestId, waiter: &Waiter) -> bool {
        let Some(queue) = self
            .names
            .queues
            .get(&waiter.name)
            .filter(|_| waiter.key != OwnerKey::Once)
        else {
            return false;
        };
        let before = queue.waiters.iter().take_while(|other| **other != id);
        before
            .filter_map(|other| self.names.waiters.get(other))
            .any(|other| other.key == waiter.key)
    }

    /// Sends the tries of readers that waited for their server behind other readers, and thefts.
    pub(in crate::engine) fn ask_tries(&mut self, which: Which<'_>) {
        let picked = self.names.waiters.iter().filter(|(id, waiter)| {
            let beside = waiter.form.kind.is_shared() || waiter.terms.special.steal;
            let tries = waiter.once() && beside && !waiter.behind && which(&waiter.name);
            tries && self.cx.links.is_up(&waiter.name) && !self.names.is_head(&waiter.name, **id)
        });
        let ids: Vec<RequestId> = picked.map(|(id, _)| *id).collect();
        for id in ids {
            self.ask_ahead(id);
        }
    }

    /// The outcome for a reader that asked before it was the head and did not get the lock. It asks
    /// again when it is the head.
    pub(super) fn tried_ahead(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let next = self.cx.next_owner();
        // As for the head (`try_refused`): the lock may be held by another caller of this client.
        let again = |waiter: &Waiter| {
            let first = waiter.once() && !waiter.answered && waiter.failures == 0;
            first && is_being_left(self.view(), &waiter.name)
        };
        let leaving = self.names.waiters.get(&id).is_some_and(again);
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        waiter.ahead = Ahead::InVain;
        let (name, ends) = (waiter.name.clone(), waiter.answered || waiter.once());
        match outcome {
            CallOutcome::Unanswered if ends => self.unanswered_try(id, sent),
            CallOutcome::Unanswered => {
                let expires = timing::copy_expires(sent, waiter.call.limit);
                let (form, lease) = (waiter.form.clone(), waiter.lease());
                let owner = std::mem::replace(&mut waiter.call.owner, next);
                self.clean_up(Left::of(&name, owner, &form, lease), Some(expires));
            }
            CallOutcome::Answered(Reply::Busy { .. } | Reply::Parked { .. }) if leaving => {
                waiter.failures = 1;
                waiter.ahead = Ahead::No;
                self.ask_ahead(id);
            }
            CallOutcome::Answered(Reply::Busy { .. } | Reply::Parked { .. }) if ends => {
                let error = timeout(&name, Some(Duration::ZERO));
                self.end_waiter(id, error, false);
            }
            CallOutcome::NotSent | CallOutcome::Refused { passing: true, .. } if ends => {
                self.end_waiter(id, not_sent(), false);
            }
            CallOutcome::Answered(Reply::Busy { .. } | Reply::Parked { .. } | Reply::Stale)
            | CallOutcome::NotSent
            | CallOutcome::Refused { passing: true, .. } => self.advance(&name),
            outcome => self.end_try(id, outcome),
        }
    }

    // ---- theft ----

    /// Takes a lock from all that have it. The thief is not in the queue: it waits for nobody, and
    /// nobody waits for its call.
    pub(super) fn steal(&mut self, asked: Acquisition) {
        let (id, name) = (asked.id, asked.name.clone());
        if !asked.form.kind.writes() {
            let text =
                "only the write side of a read-write lock can be stolen; force-release others";
            return self.cx.fail(id, Error::invalid(text).on(&name));
        }
        if let Some(down) = self.cx.links.error(&name) {
            return self.cx.fail(id, down.on(&name));
        }
        let thief = self.waiter(Acquisition {
            key: OwnerKey::Once,
            wait: Some(Duration::ZERO),
            ..asked
        });
        self.names.waiters.insert(id, thief);
        if self.cx.links.is_up(&name) {
            self.ask_ahead(id);
        }
    }

    /// The outcome of a theft. It has one copy: a second one could rob the next holder. Without an
    /// answer, the owner that may have the lock now is released. A theft without an answer, or one
    /// that the server stopped halfway, may have robbed this client: its holds are looked at.
    pub(super) fn stole(
        &mut self,
        id: RequestId,
        sent: Moment,
        outcome: CallOutcome,
        was_stale: bool,
    ) {
        let Some(thief) = self.names.waiters.get_mut(&id) else {
            return;
        };
        thief.ahead = Ahead::No;
        let (name, owner, answered) = (thief.name.clone(), thief.call.owner, thief.answered);
        let robbed = matches!(
            outcome,
            CallOutcome::Answered(Reply::Acquired { .. } | Reply::NotReplicated { .. })
        );
        let untouched = matches!(
            outcome,
            CallOutcome::NotSent
                | CallOutcome::Refused { passing: true, .. }
                | CallOutcome::Answered(Reply::Stale | Reply::Foreign(_))
        );
        match outcome {
            CallOutcome::Unanswered => self.unanswered_try(id, sent),
            outcome if answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Acquired { ttl, token }) => {
                self.names.queues.entry(name.clone()).or_default();
                self.won(id, sent, (ttl, token));
            }
            outcome => self.not_done(id, outcome, was_stale, |engine| engine.ask_ahead(id)),
        }
        if robbed {
            self.lose_all(&name, LostReason::Stolen, Some(owner));
        } else if !untouched {
            self.verify(&name);
        }
    }
}
