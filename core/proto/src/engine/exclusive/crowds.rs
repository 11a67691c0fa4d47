//! The places of this client in crowds: what its calls and their answers do with them.

use std::num::NonZeroU64;

use crate::engine::Engine;
use crate::engine::cleanup::Left;
use crate::engine::interface::{CallOutcome, RequestId};
use crate::engine::names::Waiting;
use crate::engine::ops::NOBODY;
use crate::engine::waiter::Waiter;
use crate::tuning;
use crate::wire::{Acquire, Form, Kind, Name, OwnerId, Reply};

impl Engine {
    /// Lets the next try of the head ask for a place, where there is a crowd and it `may`. Returns whether
    /// it gives up the place that this client has.
    pub(super) fn stand_in_crowd(&mut self, id: RequestId, op: &mut Acquire, may: bool) -> bool {
        let (Some(head), Some(queue)) = (
            self.names.waiters.get_mut(&id),
            self.names.queues.get_mut(&op.name),
        ) else {
            return false;
        };
        let due = std::mem::take(&mut head.due);
        let awaited = self.awaited.take_if(|name| *name == op.name).is_some();
        let rivals = awaited || queue.turn.has_rivals();
        if !self.crowded && !rivals {
            return false;
        }
        if !head.crowds_in(queue) {
            return queue.crowd.is_left_behind();
        }
        if may {
            let joins = queue.crowd.joins(rivals);
            let new = joins.then(|| self.cx.next_owner());
            let place = queue.crowd.next(due, queue.hears_place(), new);
            op.payload.stand_at(place);
            head.call.in_crowd = place.map(|place| place.owner);
            if place.is_some() {
                self.crowded = true;
                queue.crowd.is_told = !head.form.kind.facts().wakes_crowd;
            }
        }
        false
    }

    /// This waiter got the lock. Returns the place that it has in the crowd now, and whether this client
    /// gives its place up.
    pub(super) fn hold_in_crowd(&mut self, waiter: &Waiter) -> (Option<OwnerId>, bool) {
        // A reader leaves the place in the crowd to the writers of its client.
        let counts = self.crowded && !waiter.form.kind.reads();
        let queue = self.names.queues.get_mut(&waiter.name);
        let Some(queue) = queue.filter(|_| counts) else {
            return (None, false);
        };
        let waiting: &mut Waiting = queue;
        let place = waiting.crowd.place.filter(|_| !waiting.crowd.is_told);
        // It may have its place still, if it did not ask for it.
        let leaves = waiter.call.in_crowd.is_none() && waiting.crowd.is_left_behind();
        if !leaves {
            waiting.crowd.won(waiter.announced || waiter.handed);
        }
        let place_of = |owner: &OwnerId| self.holds.get(owner).and_then(|hold| hold.place);
        let before = match waiter.handed {
            true => queue.holds().iter().find_map(place_of),
            false => None,
        };
        (place.or(before.map(NonZeroU64::get)), leaves)
    }

    pub(super) fn note_place(&mut self, owner: OwnerId, place: Option<OwnerId>) {
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.place = place.and_then(NonZeroU64::new);
        }
    }

    /// Notes what the outcome of the head's call tells of the crowd. Returns whether it hears the channel of
    /// its place, and did not ask for that place: nobody may wake it there.
    pub(super) fn note_crowd(&mut self, id: RequestId, name: &Name, outcome: &CallOutcome) -> bool {
        let head = self.names.waiters.get_mut(&id);
        let asked = head.and_then(|head| head.call.in_crowd.take());
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

    /// None of this client's callers waits: its place in the crowd is given up. It has another one when
    /// they come again. Where the lock is free, the next place is told.
    pub(in crate::engine) fn leave_crowd(&mut self, name: &Name) {
        let next = self.cx.next_owner();
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        let place = queue.crowd.place;
        if queue.crowd.is_told {
            queue.crowd.leave();
        } else {
            (queue.crowd.ahead, queue.crowd.place) = (None, place.map(|_| next));
        }
        self.give_up_place(name.clone(), place);
    }

    pub(in crate::engine) fn give_up_place(&mut self, name: Name, place: Option<OwnerId>) {
        let left = Left {
            name,
            owner: self.cx.next_owner(),
            form: Form::default(),
            // The set may have it for so long.
            lease: tuning::CROWD_KEPT,
            marked: false,
            place,
            given_up: true,
        };
        self.clean_up(left, None);
    }

    /// The place in a crowd that ends with the lock of this owner. It ends once: a second release of this owner
    /// would take it from the next waiter of this client. Where this client knows of a crowd, its first one
    /// is woken anyway, as `NOBODY` has a place.
    pub(in crate::engine) fn end_place(
        &mut self,
        name: &Name,
        owner: OwnerId,
        kind: Kind,
    ) -> Option<OwnerId> {
        // A reader leaves the place in the crowd to the writers of its client.
        if !self.crowded || !kind.facts().wakes_crowd {
            return None;
        }
        let queue = self.names.queues.get(name);
        let known = queue.and_then(|queue| queue.crowd.place).map(|_| NOBODY);
        // A waiter has it again, where the hold was lost meanwhile.
        let taken =
            queue.and_then(|queue| queue.crowd.place.filter(|_| queue.crowd.ahead.is_some()));
        let own = self.holds.get_mut(&owner);
        let own = own.and_then(|hold| hold.place.take());
        let own = own.map(NonZeroU64::get);
        own.filter(|own| Some(*own) != taken).or(known)
    }

    /// The place of this client is the first now. It tries when it hears the channel of the name.
    pub(in crate::engine) fn first_in_crowd(&mut self, name: &Name) {
        let queue = self.names.queues.get(name);
        let head = queue.and_then(|queue| queue.waiters.front());
        let head = head.and_then(|id| self.names.waiters.get(id));
        match head.map(|head| &head.form).filter(|form| form.crowds()) {
            Some(form) => {
                let topic = form.kind.facts().topic;
                if let Some(queue) = self.names.queues.get_mut(name) {
                    queue.crowd.tell();
                }
                self.cx.counters.wakeups.add(1);
                self.names.want_channel(&mut self.cx, name, topic);
            }
            None => {
                self.leave_crowd(name);
                self.wake_head(name);
                self.advance(name);
            }
        }
    }
}
