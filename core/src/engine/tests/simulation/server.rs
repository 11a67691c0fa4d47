//! The modelled Redis: locks with their expiry, subscriptions, client tracking. It does what
//! `wire::Op` and `wire::Reply` document and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::LostReason;
use crate::wire::{Fencing, Holder, Name, Op, OwnerId, RenewReply, Reply};

/// A client as the server sees its owners: a number in place of the uuid.
pub(super) type Uuid = u64;

/// Which connection a command came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    pub(super) uuid: Uuid,
    pub(super) generation: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Lock {
    /// Nobody we know: another library.
    pub(super) owner: Option<(Uuid, OwnerId)>,
    pub(super) count: u32,
    until_ms: u64,
    token: Option<u64>,
}

/// What the server says unasked because of a command.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) invalidated: Vec<(Origin, Name)>,
    pub(super) published: Vec<(Uuid, Name)>,
    /// Owners whose lock was deleted by somebody else.
    pub(super) bereaved: Vec<(Uuid, OwnerId)>,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) locks: BTreeMap<Name, Lock>,
    pub(super) subscribers: BTreeSet<(Name, Uuid)>,
    trackers: BTreeSet<(Name, Origin)>,
    last_token: u64,
    now_ms: u64,
    effects: Effects,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap()
}

impl Server {
    /// Lets the clock go on to `now` (microseconds); locks whose time is over are gone.
    pub(super) fn tick(&mut self, now: u64) {
        self.now_ms = now / 1000;
        if self.next_expiry().is_none_or(|at| at > now) {
            return;
        }
        let over: Vec<Name> = self
            .locks
            .iter()
            .filter(|(_, lock)| self.now_ms > lock.until_ms)
            .map(|(name, _)| name.clone())
            .collect();
        for name in over {
            self.locks.remove(&name);
            self.changed(&name, None);
        }
    }

    /// When the next lock ends, in microseconds.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.locks.values().map(|lock| (lock.until_ms + 1) * 1000).min()
    }

    pub(super) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    fn ttl(&self, lock: &Lock) -> Duration {
        Duration::from_millis(lock.until_ms.saturating_sub(self.now_ms))
    }

    /// Whoever has read the key, but `by`, is told.
    fn changed(&mut self, name: &Name, by: Option<Origin>) {
        let told: Vec<Origin> =
            self.trackers.iter().filter(|(tracked, _)| tracked == name).map(|(_, origin)| *origin).collect();
        for origin in told {
            self.trackers.remove(&(name.clone(), origin));
            if by != Some(origin) {
                self.effects.invalidated.push((origin, name.clone()));
            }
        }
    }

    fn publish(&mut self, name: &Name) {
        let to = self.subscribers.iter().filter(|(channel, _)| channel == name);
        self.effects.published.extend(to.map(|(channel, uuid)| (*uuid, channel.clone())));
    }

    /// Somebody deletes the key.
    pub(super) fn delete(&mut self, name: &Name, by: Option<Origin>) -> bool {
        let Some(lock) = self.locks.remove(name) else {
            return false;
        };
        self.effects.bereaved.extend(lock.owner);
        self.changed(name, by);
        true
    }

    /// Another library takes the lock, if it is free.
    pub(super) fn take(&mut self, name: &Name, ms: u64) {
        if !self.locks.contains_key(name) {
            let lock = Lock { owner: None, count: 1, until_ms: self.now_ms + ms, token: None };
            self.locks.insert(name.clone(), lock);
            self.changed(name, None);
        }
    }

    /// Another library gives the lock back, if it has it.
    pub(super) fn give_back(&mut self, name: &Name) {
        if self.locks.get(name).is_some_and(|lock| lock.owner.is_none()) {
            self.locks.remove(name);
            self.changed(name, None);
            self.publish(name);
        }
    }

    /// The connection is gone, and with it what it tracked.
    pub(super) fn disconnected(&mut self, origin: Origin) {
        self.trackers.retain(|(_, tracker)| *tracker != origin);
    }

    /// Runs a command. `track`: its connection wants to hear of changes.
    pub(super) fn execute(&mut self, origin: Origin, track: bool, op: &Op, not_after_ms: u64) -> Reply {
        let late = self.now_ms > not_after_ms;
        let reply = match op {
            Op::Acquire { .. } | Op::Force { .. } if late => Reply::Stale,
            Op::Release { remaining: 1.., .. } if late => Reply::Stale,
            Op::Acquire { name, owner, count, lease, fencing } => {
                self.acquire(origin, name, *owner, *count, *lease, *fencing)
            }
            Op::Release { name, owner, remaining, ttl } => {
                self.release(origin, name, *owner, *remaining, *ttl)
            }
            Op::Renew { holds } => {
                let results = holds.iter().map(|hold| self.renew(origin, &hold.name, hold.owner, hold.ttl));
                Reply::Renewed(results.collect())
            }
            Op::Force { name } => {
                let deleted = self.delete(name, Some(origin));
                if deleted {
                    self.publish(name);
                }
                Reply::Forced(deleted)
            }
            Op::Inspect { name } => Reply::Holder(self.locks.get(name).map(|lock| Holder {
                owner: format!("{:?}", lock.owner),
                count: lock.count,
                remaining: Some(self.ttl(lock)),
            })),
        };
        // Every script ends with a read of its keys.
        if track {
            self.trackers.extend(names(op).into_iter().map(|name| (name, origin)));
        }
        reply
    }

    fn acquire(
        &mut self,
        origin: Origin,
        name: &Name,
        owner: OwnerId,
        count: u32,
        lease: Duration,
        fencing: Fencing,
    ) -> Reply {
        let me = Some((origin.uuid, owner));
        let until_ms = self.now_ms + millis(lease);
        match self.locks.get_mut(name) {
            None if count > 1 => return Reply::Gone(LostReason::Deleted),
            None => {
                let token = (fencing != Fencing::Off).then(|| {
                    self.last_token += 1;
                    self.last_token
                });
                self.locks.insert(name.clone(), Lock { owner: me, count, until_ms, token });
            }
            Some(lock) if lock.owner == me => {
                lock.count = count;
                lock.until_ms = lock.until_ms.max(until_ms);
            }
            Some(_) if count > 1 => return Reply::Gone(LostReason::Stolen),
            Some(lock) => {
                let ttl = lock.until_ms.saturating_sub(self.now_ms);
                return Reply::Busy { ttl: Some(Duration::from_millis(ttl)) };
            }
        }
        self.changed(name, Some(origin));
        let lock = &self.locks[name];
        Reply::Acquired { ttl: self.ttl(lock), token: lock.token.filter(|_| count == 1) }
    }

    fn release(
        &mut self,
        origin: Origin,
        name: &Name,
        owner: OwnerId,
        remaining: u32,
        ttl: Duration,
    ) -> Reply {
        match self.locks.get_mut(name) {
            None => return Reply::Gone(LostReason::Deleted),
            Some(lock) if lock.owner != Some((origin.uuid, owner)) => {
                return Reply::Gone(LostReason::Stolen);
            }
            Some(lock) if remaining > 0 => {
                lock.count = remaining;
                lock.until_ms = self.now_ms + millis(ttl);
                self.changed(name, Some(origin));
                return Reply::Kept;
            }
            Some(_) => {}
        }
        self.locks.remove(name);
        self.changed(name, Some(origin));
        self.publish(name);
        Reply::Released
    }

    fn renew(&mut self, origin: Origin, name: &Name, owner: OwnerId, ttl: Duration) -> RenewReply {
        let until_ms = self.now_ms + millis(ttl);
        match self.locks.get_mut(name) {
            None => RenewReply::Gone(LostReason::Deleted),
            Some(lock) if lock.owner != Some((origin.uuid, owner)) => RenewReply::Gone(LostReason::Stolen),
            Some(lock) => {
                if until_ms > lock.until_ms {
                    lock.until_ms = until_ms;
                    self.changed(name, Some(origin));
                }
                RenewReply::Kept
            }
        }
    }
}

fn names(op: &Op) -> Vec<Name> {
    match op {
        Op::Acquire { name, .. } | Op::Release { name, .. } | Op::Force { name } | Op::Inspect { name } => {
            vec![name.clone()]
        }
        Op::Renew { holds } => holds.iter().map(|hold| hold.name.clone()).collect(),
    }
}
