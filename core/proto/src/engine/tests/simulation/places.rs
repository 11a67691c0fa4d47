//! The fair locks of the modelled Redis: the queue of each, and the commands that know it.

use std::time::Duration;

use super::server::{Claim, Lock, Origin, Server, Uuid};
use crate::error::LostReason;
use crate::tuning::PLACE_KEPT;
use crate::wire::{Fencing, Form, Holder, Kind, Name, OwnerId, Reply, Topic};

/// A place in the queue of a fair lock.
#[derive(Debug, Clone)]
pub struct Place {
    pub owner: (Uuid, OwnerId),
    /// When it runs out.
    pub due_ms: u64,
}

const KEPT_MS: u64 = PLACE_KEPT.as_millis() as u64;

impl Server {
    /// Drops the places at the head that have run out. Returns the head.
    fn heads(&mut self, name: &Name, me: Option<(Uuid, OwnerId)>) -> Option<(Uuid, OwnerId)> {
        let now_ms = self.now_ms();
        let queue = self.queues.get_mut(name)?;
        while queue
            .first()
            .is_some_and(|place| Some(place.owner) != me && place.due_ms <= now_ms)
        {
            queue.remove(0);
        }
        let head = queue.first().map(|place| place.owner);
        self.queues.retain(|_, queue| !queue.is_empty());
        head
    }

    /// The next owner of a waiter takes its place.
    pub fn take_place(&mut self, name: &Name, was: (Uuid, OwnerId), owner: (Uuid, OwnerId)) {
        let mut places = self.queues.get_mut(name).into_iter().flatten();
        if let Some(place) = places.find(|place| place.owner == was) {
            place.owner = owner;
        }
    }

    /// The queue, in order.
    pub fn waiters(&self, name: &Name) -> Reply {
        let waiter = |place: &Place| Holder {
            owner: format!("{:?}", place.owner),
            count: 0,
            remaining: Some(Duration::from_millis(
                place.due_ms.saturating_sub(self.now_ms()),
            )),
            process: None,
        };
        let queue = self.queues.get(name).into_iter().flatten();
        Reply::Holders(queue.map(waiter).collect())
    }

    /// Gives up a place.
    fn leave_place(&mut self, name: &Name, me: (Uuid, OwnerId)) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        if let Some(at) = queue.iter().position(|place| place.owner == me) {
            queue.remove(at);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    fn tell_head(&mut self, name: &Name, (uuid, owner): (Uuid, OwnerId)) -> u32 {
        self.publish_to(uuid, Topic::Place(owner), name)
    }

    /// A call for a first acquisition.
    pub fn queue_up(
        &mut self,
        origin: Origin,
        name: &Name,
        owner: OwnerId,
        lease: Duration,
        fencing: Fencing,
        queues: bool,
    ) -> Reply {
        let (me, now_ms) = ((origin.uuid, owner), self.now_ms());
        let head = self.heads(name, Some(me));
        let holder = self.locks.get(name);
        let mine = holder.is_some_and(|lock| lock.owner == Some(me));
        let free = holder.is_none();
        // A copy of the first call takes no level away.
        let count = holder.filter(|_| mine).map_or(1, |lock| lock.count);
        if mine || free && head.is_none_or(|head| head == me) {
            self.leave_place(name, me);
            let form = Form::of(Kind::Fair);
            let claim = Claim::new(origin, owner, &form);
            let reply = self.acquire(origin, name, claim, 1, lease, fencing);
            if let Some(lock) = self.locks.get_mut(name) {
                lock.count = count;
            }
            return reply;
        }
        let ttl = holder.map(|lock| self.ttl(lock));
        let places = self.queues.get(name).into_iter().flatten();
        let at = places
            .map(|place| place.owner)
            .position(|owner| owner == me);
        if queues {
            let queue = self.queues.entry(name.clone()).or_default();
            let place = Place {
                owner: me,
                due_ms: now_ms + KEPT_MS,
            };
            match at {
                Some(at) => queue[at] = place,
                None => queue.push(place),
            }
        }
        if let Some(head) = head.filter(|_| free) {
            self.tell_head(name, head);
        }
        Reply::Busy { ttl }
    }

    /// The end of a hold, or of a wait.
    pub fn step_out(&mut self, origin: Origin, name: &Name, owner: OwnerId) -> Reply {
        let me = (origin.uuid, owner);
        let mine = |lock: &Lock| lock.owner == Some(me);
        let freed = self.locks.get(name).is_some_and(mine);
        if freed {
            self.locks.remove(name);
            self.changed(name, Some(origin));
        }
        self.leave_place(name, me);
        let free = !self.locks.contains_key(name);
        let head = if free { self.heads(name, None) } else { None };
        let heard = head.map_or(0, |head| self.tell_head(name, head));
        if freed {
            Reply::Released(heard)
        } else {
            match self.locks.get(name) {
                Some(_) => Reply::Gone(LostReason::Stolen),
                None => Reply::Gone(LostReason::Deleted),
            }
        }
    }

    /// The lock was deleted by force.
    pub fn tell_queue(&mut self, name: &Name) {
        if let Some(head) = self.heads(name, None) {
            self.tell_head(name, head);
        }
    }
}
