//! First acquisitions. Each name has a queue, first come, first served. Only its head talks to
//! Redis.

use std::num::NonZeroU64;
use std::time::Duration;

use super::rules::{
    Wish, blocking, comes_behind, is_being_left, is_blocked, is_had, is_read_only, is_token_busy,
    late_waiter, unheard_before,
};
use crate::engine::cleanup::Left;
use crate::engine::context::{Granted, Purpose};
use crate::engine::crowd::Crowd;
use crate::engine::errors::{
    clocks_differ, foreign, not_replicated, not_sent, timeout, unanswered,
};
use crate::engine::hold::{Hold, Phase};
use crate::engine::interface::{CallOutcome, RequestId, Terms};
use crate::engine::links::Which;
use crate::engine::names::{Attempt, WaitQueue, Waiting};
use crate::engine::turn::Run;
use crate::engine::waiter::{Ahead, Waiter};
use crate::engine::{Engine, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::key::OwnerKey;
use crate::maps::{SortedMap, SortedSet};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Kind, Name, Op, OwnerId, Reply, Topic};

impl Engine {
    pub(in crate::engine) fn acquire(
        &mut self,
        id: RequestId,
        name: Name,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
        form: Form,
    ) {
        if terms.steal {
            return self.steal(id, name, terms, form);
        }
        let enters = |hold: &Hold| match key {
            OwnerKey::Hold(_) => hold.cell.kind.side() == form.kind.side(),
            // A reader never waits for itself.
            _ => (terms.reentrant || form.kind.reads()) && hold.cell.form() == form,
        };
        let mine = self
            .names
            .hold_of(&self.holds, &name, key, form.kind)
            .filter(|owner| !self.forget_run_out(*owner, key));
        if let Some(owner) = mine.filter(|owner| self.holds.get(owner).is_some_and(enters)) {
            return self.enter(id, owner, key, wait, terms);
        }
        if let Some(lost) = mine
            .filter(|_| terms.tied)
            .and_then(|owner| self.holds.lost_to_release(owner))
        {
            // A release by key must never have two holds to choose from. It could free the lock
            // that another caller relies on.
            return self.cx.fail(id, Error::lost_before(&name, lost));
        }
        if form.kind.takes_permits() && key != OwnerKey::Once && !matches!(key, OwnerKey::Hold(_)) {
            // A waiter that has its answer only stays until its call is settled.
            let waits =
                |waiter: &Waiter| waiter.key == key && waiter.name == name && !waiter.answered;
            if mine.is_some() || self.names.waiters.iter().any(|(_, waiter)| waits(waiter)) {
                // A release by this key could not tell which permits it gives back.
                let text = "this key has permits of the semaphore, or waits for some; release those first, acquire several \
                            at once, or use another key";
                let error = Error::new(ErrorKind::InvalidArgument, text);
                return self.cx.fail(id, error.on(&name));
            }
        }
        let waits_for_itself = wait != Some(Duration::ZERO)
            && !form.kind.reads()
            && mine.is_some_and(|owner| self.holds.never_ends_by_itself(owner));
        if let OwnerKey::Hold(_) = key {
            let is_live = mine.is_some_and(|owner| self.holds.is_held(owner));
            let error = if is_live {
                let text = "the hold to re-enter is of the other side of this read-write lock; enter it on the side that it is \
                            of, or acquire both sides with the same key";
                Error::new(ErrorKind::InvalidArgument, text)
            } else {
                let text = "the hold to re-enter has ended; acquire anew";
                Error::new(ErrorKind::NotOwner, text)
            };
            return self.cx.fail(id, error.on(&name));
        }
        let wish = Wish {
            kind: form.kind,
            under: self.writes(&name, key, form.kind),
        };
        if form.kind == Kind::Write && self.reads(&name, key) {
            return self.cx.fail(id, Error::upgrade().on(&name));
        }
        // A reader that tries does not fail because another reader waits, nor one that wants permits
        // because another's try is in flight.
        let joins = form.kind.is_shared().then_some(key);
        let once = wait == Some(Duration::ZERO);
        let behind = once && comes_behind(self.view(), &name, wish, joins);
        if once && let Some(down) = self.cx.links.error(&name) {
            return self.cx.fail(id, down.on(&name));
        }
        if behind {
            // The head of those that want permits may want more than this one. Its refusal says little.
            let before = || form.kind.takes_permits().then(|| timeout(&name, wait));
            if let Some(error) = unheard_before(self.view(), &name).or_else(before) {
                return self.cx.fail(id, error.on(&name));
            }
        }
        let queues = form.kind.facts().queues;
        let owner = self.cx.next_owner();
        let queue = self.names.queues.entry(name.clone()).or_default();
        let first = queue.holds().is_empty() && queue.waiters.is_empty();
        let waiting = &mut queue.other_in(&mut self.names.rooms).waiting;
        // A caller that reads what it writes comes before those that wait for its write lock.
        match (wish.under, waiting.attempt) {
            (None, _) => waiting.waiters.push_back(id),
            (Some(_), Attempt::Idle) => waiting.waiters.push_front(id),
            (Some(_), _) => waiting.waiters.insert(waiting.waiters.len().min(1), id),
        }
        waiting.has_places |= queues;
        waiting.has_readers |= form.kind.reads();
        let has_place = form.kind.reads() && waiting.crowd.ahead.is_some();
        waiting.has_tries |= behind;
        waiting.channel.is_used();
        let limit = self
            .cx
            .limit_with(terms.replicas.into(), terms.first_lease());
        let stands_back = terms.writer_preference.map(|most| self.cx.now.after(most));
        let waiter = Waiter {
            wait,
            behind,
            since: self.cx.now,
            // A try has no deadline, unless it waits for its token: it ends with the first answer
            // or at the response limit.
            deadline: wait
                .filter(|wait| !wait.is_zero())
                .map(|wait| self.cx.now.after(wait)),
            under: wish.under,
            self_wait: waits_for_itself.then(|| self.cx.now.after(tuning::SELF_WAIT)),
            // A writer that waited for its own reader would wait for ever.
            stands_back: stands_back.filter(|_| form.kind.reads() && wish.under.is_none()),
            ..Waiter::new(name.clone(), key, owner, terms, form, limit)
        };
        self.names.waiters.insert(id, waiter);
        self.names.arm_waiter(&mut self.cx, id);
        if has_place {
            self.leave_crowd(&name);
            self.names
                .want_channel(&mut self.cx, &name, Topic::ReadWrite);
        }
        if !first {
            self.note_holder(&name);
            if wish.kind == Kind::Read && self.head_stands_back(&name) {
                self.let_earlier_reader_first(&name);
            }
        }
        self.advance(&name);
        if behind {
            return self.ask_for_tries(&name);
        }
        let joins = once && joins.is_some();
        if self.names.is_head(&name, id) || !self.cx.links.is_up(&name) {
            return;
        }
        if queues {
            self.ask_for_place(id);
        } else if joins {
            self.ask_ahead(id);
        }
    }

    /// Takes a lock from all that have it. The thief is not in the queue: it waits for nobody, and
    /// nobody waits for its call.
    fn steal(&mut self, id: RequestId, name: Name, terms: Terms, form: Form) {
        if form.kind != Kind::Write {
            let text =
                "only the write side of a read-write lock can be stolen; force-release others";
            let error = Error::new(ErrorKind::InvalidArgument, text);
            return self.cx.fail(id, error.on(&name));
        }
        if let Some(down) = self.cx.links.error(&name) {
            return self.cx.fail(id, down.on(&name));
        }
        let owner = self.cx.next_owner();
        let limit = self
            .cx
            .limit_with(terms.replicas.into(), terms.first_lease());
        let thief = Waiter {
            wait: Some(Duration::ZERO),
            ..Waiter::new(name.clone(), OwnerKey::Once, owner, terms, form, limit)
        };
        self.names.waiters.insert(id, thief);
        if self.cx.links.is_up(&name) {
            self.ask_ahead(id);
        }
    }

    /// The outcome of a theft. It has one copy: a second one could rob the next holder. Without an
    /// answer, the owner that may have the lock now is released. A theft without an answer, or one
    /// that the server stopped halfway, may have robbed this client: its holds are looked at.
    fn stole(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome, was_stale: bool) {
        let Some(thief) = self.names.waiters.get_mut(&id) else {
            return;
        };
        thief.ahead = Ahead::No;
        let (name, owner, answered) = (thief.name.clone(), thief.owner, thief.answered);
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
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.end_waiter(id, clocks_differ(), false);
            }
            // The server did nothing, and the driver has learnt its clock.
            CallOutcome::Answered(Reply::Stale) => self.ask_ahead(id),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let wanted = thief.terms.replicas.into();
                self.end_waiter(id, not_replicated(wanted, got), true);
            }
            CallOutcome::NotSent => self.end_waiter(id, not_sent(), false),
            outcome => self.end_try(id, outcome),
        }
        if robbed {
            self.lose_all(&name, LostReason::Stolen, Some(owner));
        } else if !untouched {
            self.verify(&name);
        }
    }

    /// Sends the tries of readers that waited for their server behind other readers, and thefts.
    pub(in crate::engine) fn ask_tries(&mut self, which: Which<'_>) {
        let picked = self.names.waiters.iter().filter(|(id, waiter)| {
            let beside = waiter.form.kind.is_shared() || waiter.terms.steal;
            let tries = waiter.once() && beside && !waiter.behind && which(&waiter.name);
            tries && self.cx.links.is_up(&waiter.name) && !self.names.is_head(&waiter.name, **id)
        });
        let ids: Vec<RequestId> = picked.map(|(id, _)| *id).collect();
        for id in ids {
            self.ask_ahead(id);
        }
    }

    /// The owner of the write lock that this key has while it asks to read.
    fn writes(&self, name: &Name, key: OwnerKey, kind: Kind) -> Option<OwnerId> {
        let asks = kind == Kind::Read && key != OwnerKey::Once;
        let writer = asks.then(|| self.names.hold_of(&self.holds, name, key, Kind::Write))??;
        let is_writer = |hold: &Hold| hold.phase == Phase::Held && hold.cell.kind == Kind::Write;
        self.holds
            .get(&writer)
            .is_some_and(is_writer)
            .then_some(writer)
    }

    /// Whether this key reads, so that it would wait for itself if it asked to write.
    fn reads(&self, name: &Name, key: OwnerKey) -> bool {
        self.names
            .hold_of(&self.holds, name, key, Kind::Read)
            .is_some_and(|reader| self.holds.is_held(reader))
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
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        let Some(&id) = queue.waiters.front() else {
            if queue.crowd.is_left_behind() {
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
                let ends = self.closing.is_some() || (matches!(topic, Topic::Place(_)) && !crowd);
                let linger = if ends {
                    Duration::ZERO
                } else {
                    self.cx.config.linger
                };
                self.names.leave_channel(&mut self.cx, name, linger);
            } else if queue.is_unused() {
                self.names.queues.remove(name);
            }
            return;
        };
        let Some(head) = self.names.waiters.get(&id) else {
            return;
        };
        if head.queues() {
            return self.advance_place(name, id);
        }
        let writes = |writer: OwnerId| {
            let hold = self.holds.get(&writer);
            hold.is_some_and(|hold| hold.phase == Phase::Held)
        };
        let idle = queue.attempt == Attempt::Idle && !head.is_asking();
        if idle && head.under.is_some_and(|writer| !writes(writer)) {
            return self.put_reader_back(name, id);
        }
        let reads = head.form.kind.reads() && queue.waiters.len() > 1;
        // A hold of this client may have been deleted by others. So it refuses no try: the server does.
        let tries = head.once() || has_tries(&self.names.waiters, queue);
        let blocked = !tries && is_blocked(&self.holds, queue, Wish::of(head), false);
        // A writer asks now and then while this client reads: its call leaves the mark for which readers
        // of other clients stand back.
        let marks = || head.marks_now(self.cx.now) && is_read_only(&self.holds, queue);
        let free = queue.attempt == Attempt::Idle
            && (!blocked || marks())
            && self.closing.is_none()
            && self.cx.links.is_up(name);
        if !free {
            if reads {
                self.let_readers_in(name);
            }
            return;
        }
        if head.is_asking() {
            // It asked before it was the head, and so did those behind it.
            queue.attempt = Attempt::InFlight { again: false };
            return;
        }
        if is_token_busy(&self.holds, &self.cleanups, head, queue) {
            self.end_tries(name, self.cx.now, &unanswered());
            return self.names.wait_for_token(&mut self.cx, id);
        }
        let turn = head.waits_for_turn(&queue.turn, self.cx.now);
        if let Some(end) = turn.filter(|_| !tries) {
            return self.names.park(&mut self.cx, id, end);
        }
        let behind_own = blocking(&self.holds, queue, Wish::of(head), true).collect();
        queue.attempt = Attempt::InFlight { again: false };
        self.renew_owner(id);
        let (Some(head), Some(queue)) = (
            self.names.waiters.get_mut(&id),
            self.names.queues.get_mut(name),
        ) else {
            return;
        };
        let mut op = head.next_try(self.cx.now, self.cx.config.recheck);
        let due = std::mem::take(&mut head.due);
        let mut left = false;
        if self.crowded || queue.turn.has_rivals() {
            let crowds = head.crowds_in(queue);
            left = !crowds && queue.crowd.is_left_behind();
            if let Op::Acquire(op) = &mut op
                // A try is refused by a holder only, not by those that come first.
                && !tries
                && crowds
            {
                let joins = queue.crowd.joins(queue.turn.has_rivals());
                let new = joins.then(|| self.cx.next_owner());
                let place = queue.crowd.next(due, queue.hears_place(), new);
                op.payload.stand_at(place);
                head.in_crowd = place.map(|place| place.owner);
                if place.is_some() {
                    self.crowded = true;
                    queue.crowd.is_told = !head.form.kind.facts().wakes_crowd;
                }
            }
        }
        head.behind_own = behind_own;
        let limit = head.limit;
        self.send(Purpose::Try(id), op, limit);
        self.names.arm_waiter(&mut self.cx, id);
        if left {
            self.leave_crowd(name);
        }
        if reads {
            self.let_readers_in(name);
        }
    }

    /// This reader stands at the front because it reads under its own write lock. That has ended
    /// before it could ask, so it goes back to its place.
    #[cold]
    fn put_reader_back(&mut self, name: &Name, id: RequestId) {
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
    fn let_readers_in(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let is_read = |owner: &OwnerId| {
            let hold = self.holds.get(owner);
            hold.is_some_and(|hold| hold.phase == Phase::Held && hold.cell.kind == Kind::Read)
        };
        if self.closing.is_some() || !self.cx.links.is_up(name) {
            return;
        }
        let mut reads = None;
        let mut keys: Vec<OwnerKey> = Vec::new();
        let mut asking: Vec<RequestId> = Vec::new();
        let front = queue.waiters.iter().take(tuning::READERS_AHEAD);
        for (at, id) in front.enumerate() {
            let Some(waiter) = self
                .names
                .waiters
                .get(id)
                .filter(|waiter| waiter.form.kind == Kind::Read)
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
    fn head_stands_back(&self, name: &Name) -> bool {
        let parked = self.names.queues.get(name);
        let parked = parked.filter(|queue| queue.attempt == Attempt::Parked);
        let head = parked.and_then(|queue| self.names.waiters.get(queue.waiters.front()?));
        head.is_some_and(|head| head.stands_back.is_some_and(|end| end > self.cx.now))
    }

    /// The head is a reader that stands back for writers of other clients. If another reader at the
    /// front does so for a shorter time, or not at all, it becomes the head. Returns whether another one did.
    fn let_earlier_reader_first(&mut self, name: &Name) -> bool {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return false;
        };
        let waiters = &self.names.waiters;
        let front = queue.waiters.iter().take(tuning::READERS_AHEAD).enumerate();
        let mut keys: Vec<OwnerKey> = Vec::new();
        let mut first = None;
        for (at, id) in front {
            let reads = |waiter: &&Waiter| waiter.form.kind == Kind::Read;
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

    /// Sends the call of a reader that is not the head of its queue, unless that was done. A key has
    /// one hold of a side: its second reader enters the hold that the first one gets.
    fn ask_ahead(&mut self, id: RequestId) {
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
        let limit = waiter.limit;
        self.send(Purpose::Try(id), op, limit);
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

    /// The outcome for a reader that asked before it was the head and did not get the lock. It asks
    /// again when it is the head.
    fn tried_ahead(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let next = self.cx.next_owner();
        // As for the head (`try_refused`): the holder may be this client.
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
            CallOutcome::Unanswered => {
                let expires = timing::copy_expires(sent, waiter.limit);
                if ends {
                    waiter.unsettled = Some(expires);
                    let error = self.cx.links.error(&name).unwrap_or_else(unanswered);
                    return self.end_waiter(id, error, true);
                }
                let (form, lease) = (waiter.form.clone(), waiter.lease());
                let owner = std::mem::replace(&mut waiter.owner, next);
                self.clean_up(Left::of(&name, owner, &form, lease), Some(expires));
            }
            CallOutcome::Answered(Reply::Busy { .. }) if leaving => {
                waiter.failures = 1;
                waiter.ahead = Ahead::No;
                self.ask_ahead(id);
            }
            CallOutcome::Answered(Reply::Busy { .. }) if ends => {
                let error = timeout(&name, Some(Duration::ZERO));
                self.end_waiter(id, error, false);
            }
            CallOutcome::NotSent | CallOutcome::Refused { passing: true, .. } if ends => {
                self.end_waiter(id, not_sent(), false);
            }
            CallOutcome::Answered(Reply::Busy { .. } | Reply::Stale)
            | CallOutcome::NotSent
            | CallOutcome::Refused { passing: true, .. } => self.advance(&name),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let error = not_replicated(waiter.terms.replicas.into(), got);
                self.end_waiter(id, error, true);
            }
            outcome => self.end_try(id, outcome),
        }
    }

    /// Gives a waiter an owner of the last connection. If the previous owner may have left something,
    /// that is cleaned up. A token that the caller chose stays.
    pub(in crate::engine) fn renew_owner(&mut self, id: RequestId) {
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
        let unsettled = waiter.unsettled.take();
        let marked = std::mem::take(&mut waiter.marked);
        let left = Left {
            name: waiter.name.clone(),
            owner: std::mem::replace(&mut waiter.owner, next),
            form: waiter.form.clone(),
            lease: waiter.lease(),
            marked,
            place: None,
        };
        if unsettled.is_some() || marked {
            self.clean_up(left, unsettled);
        }
    }

    /// The timer of a waiter: its wait is over, or its retry is due.
    pub(in crate::engine) fn waiter_due(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let (name, now) = (waiter.name.clone(), self.cx.now);
        let is_over = !waiter.answered && waiter.is_over(now);
        let told = waiter.self_wait.take_if(|at| is_over || *at <= now);
        if told.is_some() && !waiter.answered {
            let (key, kind) = (waiter.key, waiter.form.kind);
            self.tell_self_wait(&name, key, kind);
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

    fn tell_self_wait(&mut self, name: &Name, key: OwnerKey, kind: Kind) {
        let mine = self.names.hold_of(&self.holds, name, key, kind);
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

    // ---- tries behind others ----

    /// Lets the head ask for those that try behind it. Its answer tells them whether somebody has the
    /// lock. A call that was sent before they came does not, so another one follows it.
    fn ask_for_tries(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        if !has_tries(&self.names.waiters, queue) {
            if queue.has_tries {
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
    fn end_tries(&mut self, name: &Name, sent: Moment, error: &Error) {
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
        let was_stale = std::mem::replace(&mut waiter.stale, is_stale);
        if waiter.terms.steal {
            return self.stole(id, sent, outcome, was_stale);
        }
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
        if waiter.queues() {
            return self.place_tried(id, sent, outcome, was_stale);
        }
        let asked = waiter.is_asking();
        waiter.ahead = Ahead::No;
        if asked && !self.names.is_head(&name, id) {
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

    /// Notes what the outcome of the head's call tells of the crowd. Returns whether it hears the channel of
    /// its place, and did not ask for that place: nobody may wake it there.
    fn note_crowd(&mut self, id: RequestId, name: &Name, outcome: &CallOutcome) -> bool {
        let head = self.names.waiters.get_mut(&id);
        let asked = head.and_then(|head| head.in_crowd.take());
        let Some(queue) = self.names.queues.get_mut(name) else {
            return false;
        };
        let Some(place) = asked else {
            return queue.hears_place();
        };
        match outcome {
            CallOutcome::Answered(Reply::Parked { ahead, .. }) => {
                queue.crowd.lost(place, Some(*ahead));
            }
            CallOutcome::Answered(Reply::Busy { .. }) => queue.crowd.lost(place, None),
            // It may have its place.
            CallOutcome::Unanswered => {
                let ahead = queue.crowd.ahead.unwrap_or(1);
                queue.crowd.lost(place, Some(ahead));
            }
            _ => {}
        }
        false
    }

    /// The last outcome for a waiter whose caller has its answer, or gets an error now.
    pub(super) fn end_try(&mut self, id: RequestId, outcome: CallOutcome) {
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
    fn unanswered_try(&mut self, id: RequestId, sent: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let expires = timing::copy_expires(sent, waiter.limit);
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
            let again = waiter.recheck(self.cx.config.recheck);
            waiter.retry = Some(self.cx.now.after(again));
            self.names.arm_waiter(&mut self.cx, id);
            return self.advance(name);
        }
        let announced = std::mem::replace(&mut waiter.announced, true);
        let (stands_back, longest) = (waiter.stands_back, waiter.recheck(self.cx.config.recheck));
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
        let crowds = queue.is_some_and(|queue| waiter.crowds_in(queue));
        let crowd = queue.map(|queue| &queue.crowd);
        let crowd = crowd.filter(|_| crowds);
        let ahead = crowd.filter(|crowd| crowd.is_behind());
        let ahead = ahead.and_then(|crowd| crowd.ahead);
        let topic = crowd
            .and_then(Crowd::topic)
            .unwrap_or(waiter.form.kind.facts().topic);
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

    /// The head has acquired the lock. It becomes a hold.
    fn won(&mut self, id: RequestId, sent: Moment, (ttl, token): (Duration, Option<u64>)) {
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
        // A thief of this client has the lock, or has had it: answers on two connections may come in
        // another order than the server gave them.
        let mut others: Vec<OwnerId> = match waiter.terms.steal {
            true => Vec::new(),
            false => blocking(&self.holds, queue, Wish::of(&waiter), true).collect(),
        };
        let in_doubt = !others.is_empty();
        // The server says of those that blocked it when its call was sent that they are gone.
        let is_gone =
            |owner: &OwnerId| !waiter.form.kind.is_shared() && waiter.behind_own.contains(owner);
        let gone: Vec<OwnerId> = others.extract_if(.., |owner| is_gone(owner)).collect();
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
        let (mut place, mut left) = (None, false);
        // A reader leaves the place in the crowd to the writers of its client.
        if self.crowded && !waiter.form.kind.reads() {
            place = waiting.crowd.place.filter(|_| !waiting.crowd.is_told);
            // It may have its place still, if it did not ask for it.
            left = waiter.in_crowd.is_none() && waiting.crowd.is_left_behind();
            if !left {
                waiting.crowd.won(waiter.announced || waiter.handed);
            }
            if waiter.handed {
                let from = queue.holds().iter().filter_map(|from| self.holds.get(from));
                let from = from.into_iter().find_map(|from| from.place);
                place = place.or(from.map(NonZeroU64::get));
            }
        }
        let waiting: &mut Waiting = queue;
        // Permits that one caller got leave others for the next, as far as is known here.
        if !waiter.form.kind.takes_permits() {
            waiting.note_refusal(self.cx.now);
        }
        if waiting.waiters.is_empty() && !waiting.channel.wanted && !in_doubt {
            // The common case: nobody else waits, so there is no waiter to look for.
            queue.rest(&mut self.names.rooms);
            let owner = waiter.owner;
            let terms = waiter.terms;
            self.open_hold(id, waiter, Granted { terms, sent, ttl }, token);
            if place.is_some() {
                self.note_place(owner, place);
            }
            return;
        }
        if left {
            self.leave_crowd(&waiter.name);
        }
        let (name, key, owner, form) = (
            waiter.name.clone(),
            waiter.key,
            waiter.owner,
            waiter.form.clone(),
        );
        let again = waiter.ahead == Ahead::Asking { again: true };
        let terms = waiter.terms;
        self.open_hold(id, waiter, Granted { terms, sent, ttl }, token);
        if place.is_some() {
            self.note_place(owner, place);
        }
        for other in gone {
            self.lose(other, LostReason::Deleted);
        }
        if !others.is_empty() {
            self.verify(&name);
        }
        self.adopt_waiters(&name, key, owner, &form);
        // A reader that won ahead of the head changes nothing for the others.
        if was_head {
            if form.kind == Kind::Read {
                self.let_readers_ask_again(&name);
            }
            self.advance(&name);
        }
        // A message that came during its call may have been for the next one: permits that one caller
        // gets leave others.
        if was_head && again && form.kind.takes_permits() {
            self.wake_head(&name);
        }
    }

    fn note_place(&mut self, owner: OwnerId, place: Option<OwnerId>) {
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.place = place.and_then(NonZeroU64::new);
        }
    }

    /// Readers behind the head have asked in vain, as they stood back for a writer. Now the head reads.
    fn let_readers_ask_again(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        for id in queue.waiters.iter().take(tuning::READERS_AHEAD) {
            let waiter = self.names.waiters.get_mut(id);
            if let Some(waiter) = waiter.filter(|waiter| waiter.ahead == Ahead::InVain) {
                waiter.ahead = Ahead::No;
            }
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
        let burned = std::mem::replace(&mut waiter.owner, next);
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
        let enters = |waiter: &Waiter| {
            let reenters = waiter.terms.reentrant || form.kind.reads();
            waiter.key == key && reenters && waiter.form == *form
        };
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
            let left = waiter
                .deadline
                .map(|end| self.cx.now.until(end))
                .or(waiter.wait);
            self.enter(id, owner, key, left, waiter.terms);
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
            Attempt::InFlight { .. } => queue.attempt = Attempt::InFlight { again: true },
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
        let in_crowd = queue.filter(|queue| queue.crowd.topic() == Some(queue.channel.topic));
        if let Some(queue) = in_crowd {
            // A user may be allowed the channel of the lock alone.
            let head = queue.waiters.front();
            let head = head.and_then(|id| self.names.waiters.get(id));
            let topic = head.map_or(Topic::Lock, |head| head.form.kind.facts().topic);
            self.leave_crowd(name);
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
}

/// Whether callers try behind the head of this queue.
fn has_tries(waiters: &SortedMap<RequestId, Waiter>, queue: &WaitQueue) -> bool {
    let tries = |id: &RequestId| waiters.get(id).is_some_and(Waiter::is_to_be_told);
    queue.has_tries && queue.waiters.iter().skip(1).any(tries)
}
