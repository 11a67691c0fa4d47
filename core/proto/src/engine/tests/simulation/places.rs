//! The fair locks and fair semaphores of the modelled Redis: the queue of each, and the commands that
//! know it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::permits::Semaphore;
use super::server::{Claim, Lock, Origin, Server, Uuid};
use crate::error::LostReason;
use crate::tuning::PLACE_KEPT;
use crate::wire::{Fencing, Form, Holder, Kind, Name, OwnerId, Reply, Topic};

/// A place in the queue of a fair lock or semaphore.
#[derive(Debug, Clone)]
pub struct Place {
    pub owner: (Uuid, OwnerId),
    /// How many permits it wants; 0 of a lock.
    pub many: i64,
    /// When it runs out.
    pub due_ms: u64,
    /// The simulated time at which it was taken.
    pub since: u64,
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
            count: u32::try_from(place.many).unwrap(),
            remaining: Some(Duration::from_millis(
                place.due_ms.saturating_sub(self.now_ms()),
            )),
            process: None,
        };
        let queue = self.queues.get(name).into_iter().flatten();
        Reply::Holders(queue.map(waiter).collect())
    }

    /// Where an owner stands.
    fn place_of(&self, name: &Name, me: (Uuid, OwnerId)) -> Option<usize> {
        let queue = self.queues.get(name)?;
        queue.iter().position(|place| place.owner == me)
    }

    /// Takes a place, or keeps it. With `turn` a new one is the first.
    fn keep_place(&mut self, name: &Name, me: (Uuid, OwnerId), many: i64, turn: bool) {
        let (due_ms, since) = (self.now_ms() + KEPT_MS, self.time());
        let at = self.place_of(name, me);
        let queue = self.queues.entry(name.clone()).or_default();
        match at {
            Some(at) => queue[at].due_ms = due_ms,
            None => {
                let place = Place {
                    owner: me,
                    many,
                    due_ms,
                    since,
                };
                let at = if turn { 0 } else { queue.len() };
                queue.insert(at, place);
            }
        }
    }

    /// Gives up a place. Returns whether it was the first.
    fn leave_place(&mut self, name: &Name, me: (Uuid, OwnerId)) -> bool {
        let at = self.place_of(name, me);
        if let (Some(at), Some(queue)) = (at, self.queues.get_mut(name)) {
            queue.remove(at);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        at == Some(0)
    }

    /// Tells the head of the queue of a semaphore that it is. Returns whether all are told of what is free.
    fn tell_seat(&mut self, name: &Name) -> bool {
        let head = self.queues.get(name).map(|queue| queue[0].owner);
        let Some((uuid, owner)) = head else {
            return false;
        };
        let heard = self.publish_to(uuid, Topic::Seat(owner), name);
        let free = self.semaphores.get(name).and_then(|one| one.free);
        heard == 0 && free.is_some_and(|free| self.has_enough(name, free))
    }

    fn tell_head(&mut self, name: &Name, (uuid, owner): (Uuid, OwnerId)) -> u32 {
        self.publish_to(uuid, Topic::Place(owner), name)
    }

    /// A call for a first acquisition.
    pub fn queue_up(
        &mut self,
        origin: Origin,
        name: &Name,
        (owner, was): (OwnerId, &[OwnerId]),
        lease: Duration,
        fencing: Fencing,
        queues: bool,
    ) -> Reply {
        let me = (origin.uuid, owner);
        for was in was {
            self.take_place(name, (me.0, *was), me);
        }
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
        let had = |was: &OwnerId| holder.is_some_and(|lock| lock.owner == Some((me.0, *was)));
        let turn = was.iter().any(had);
        if queues {
            self.keep_place(name, me, 0, turn);
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

    /// A call for the permits of a fair semaphore. Returns the reply, and whether all are told.
    pub fn queue_for_permits(
        &mut self,
        name: &Name,
        (me, was): ((Uuid, OwnerId), &[OwnerId]),
        many: i64,
        (count, limit): (u32, u32),
        lease: Duration,
        queues: bool,
    ) -> (Reply, bool) {
        let now_ms = self.now_ms();
        let semaphore = self.semaphores.entry(name.clone()).or_default();
        if let Some(reply) = semaphore.again(me, count, lease, now_ms) {
            return (reply, false);
        }
        let (back, sets) = semaphore.refill(limit);
        let (free, all) = (semaphore.free, semaphore.sum());
        let vain = free.is_some_and(|free| free + all < many);
        let enough = free.unwrap_or(0) >= many;
        for was in was {
            self.take_place(name, (me.0, *was), me);
        }
        let first = |queues: &BTreeMap<Name, Vec<Place>>| Some(queues.get(name)?[0].owner);
        let before = first(&self.queues);
        let head = self.heads(name, Some(me));
        let mut moved = sets || head != before;
        let semaphore = self.semaphores.entry(name.clone()).or_default();
        let turn = was.iter().any(|was| semaphore.has(me.0, *was));
        let took = enough && head.is_none_or(|head| head == me);
        if took || vain {
            moved |= self.leave_place(name, me);
        } else if queues {
            self.keep_place(name, me, many, turn);
        }
        let at = self.place_of(name, me);
        let semaphore = self.semaphores.entry(name.clone()).or_default();
        let reply = if took {
            semaphore.take_for(me, many, lease, now_ms)
        } else {
            semaphore.busy(now_ms, vain)
        };
        let reply = match (reply, at) {
            (Reply::Busy { ttl }, Some(at)) if queues => Reply::Parked {
                ttl,
                ahead: u32::try_from(at).unwrap(),
            },
            (reply, _) => reply,
        };
        let free = semaphore.free.unwrap_or(0);
        let tells = moved && self.tell_seat(name);
        (reply, free > 0 && (back || tells))
    }

    /// Whether the first in the queue has to ask: so many free permits are enough for it, or it wants more
    /// than there are and leaves its place to the next one.
    fn has_enough(&self, name: &Name, free: i64) -> bool {
        let head = self.queues.get(name).and_then(|queue| queue.first());
        let all = free + self.semaphores.get(name).map_or(0, Semaphore::sum);
        head.is_some_and(|head| free > 0 && (head.many <= free || head.many > all))
    }

    /// The end of a wait for the permits of a fair semaphore. Returns whether all are told.
    pub fn leave_semaphore(&mut self, name: &Name, me: (Uuid, OwnerId)) -> bool {
        if !self.leave_place(name, me) {
            return false;
        }
        self.heads(name, None);
        self.tell_seat(name)
    }

    /// The lock was deleted by force.
    pub fn tell_queue(&mut self, name: &Name) {
        if let Some(head) = self.heads(name, None) {
            self.tell_head(name, head);
        }
    }
}
