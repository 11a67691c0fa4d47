//! The modelled Redis: locks with expiry, subscriptions, client tracking, and a replica that lags
//! behind. It does what `wire::Op` and `wire::Reply` document and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::permits::{Crowd, MARGIN_MS, Semaphore};
use super::places::Place;
use super::shared::Shared;
use crate::error::LostReason;
use crate::wire::names::channel_for;
use crate::wire::{
    Acquire, BatchKey, Fencing, Form, HandOver, Holder, Inspection, Kind, Layout, LeaseSample,
    Name, Op, OwnerId, Payload, Release, RenewReply, Renewal, Reply, Seat, Topic, timeout_key,
};

/// A client in the names of its owners: a number in place of the UUID.
pub type Uuid = u64;

/// The connection on which a command came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub uuid: Uuid,
    pub generation: u64,
}

#[derive(Debug, Clone)]
pub struct Lock {
    /// `None`: another library owns the lock.
    pub owner: Option<(Uuid, OwnerId)>,
    pub count: u32,
    /// A reader of a read-write lock, whose time is that of its own key.
    pub reads: bool,
    until_ms: u64,
    /// Until when a reader without a key counts as alive; 0 while it has one.
    unseen_ms: u64,
    /// The number of local hand-overs since the lock was acquired.
    pub handovers: usize,
    /// The expiry on the server that failed, on which the owner relies.
    promised_ms: u64,
    pub token: Option<u64>,
    /// The caller's token, stored as the owner.
    pub value: Option<Arc<str>>,
}

impl Lock {
    pub fn new(owner: Option<(Uuid, OwnerId)>, reads: bool, until_ms: u64) -> Lock {
        Lock {
            owner,
            count: 1,
            reads,
            until_ms,
            unseen_ms: 0,
            promised_ms: if owner.is_some() { until_ms } else { 0 },
            handovers: 0,
            token: None,
            value: None,
        }
    }

    pub fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// The time of a reader's own key, while that exists.
    pub fn key_left(&self, now_ms: u64) -> Option<u64> {
        self.until_ms
            .checked_sub(now_ms)
            .filter(|_| self.until_ms > 0)
    }

    /// Whether a reader's own key exists, and lives as long as the hash, but for what a clock may go
    /// on within a script.
    pub fn is_seen_until(&self, end_ms: u64, now_ms: u64) -> bool {
        self.key_left(now_ms).is_some() && self.until_ms + 10 >= end_ms
    }

    /// How long a reader without a key still counts as alive, at most `most_ms` from the first look.
    pub fn unseen_left(&mut self, now_ms: u64, most_ms: u64) -> u64 {
        if self.unseen_ms == 0 {
            self.unseen_ms = now_ms + most_ms;
        }
        self.unseen_ms.saturating_sub(now_ms)
    }

    /// Its owner has shown that it is alive.
    pub fn is_seen(&mut self, now_ms: u64) {
        if self.key_left(now_ms).is_none() {
            self.unseen_ms = 0;
        }
    }

    /// Whether its owner relies on a longer time than it has.
    pub fn ends_early(&self) -> bool {
        self.until_ms < self.promised_ms
    }

    /// It lives until then. A time that was promised before stays promised.
    pub fn lives_until(&mut self, until_ms: u64) {
        self.until_ms = until_ms;
        self.promised_ms = self.promised_ms.max(until_ms);
    }

    /// Its owner asked for less.
    pub fn shorten(&mut self, until_ms: u64) {
        (self.until_ms, self.promised_ms) = (until_ms, until_ms);
    }

    /// Extends the lock until `until_ms`, if that is longer.
    pub fn prolong(&mut self, until_ms: u64) -> bool {
        let longer = until_ms > self.until_ms;
        self.until_ms = self.until_ms.max(until_ms);
        self.promised_ms = self.promised_ms.max(until_ms);
        longer
    }
}

/// The writers of a lock that have noted that they wait, each until a time in ms.
pub type Mark = BTreeMap<(Uuid, OwnerId), u64>;

/// The data that a replica keeps in a fail-over.
#[derive(Debug, Clone, Default)]
struct Data {
    locks: BTreeMap<Name, Lock>,
    shared: BTreeMap<Name, Shared>,
    marks: BTreeMap<Name, Mark>,
    semaphores: BTreeMap<Name, Semaphore>,
    queues: BTreeMap<Name, Vec<Place>>,
    /// The counters of the fencing tokens.
    tokens: BTreeMap<Name, u64>,
    /// The lease samples learnt by adaptive locks, in seconds.
    learnt: BTreeMap<Name, f64>,
}

/// The claim to be the owner: the same owner, or any caller with the same token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    me: (Uuid, OwnerId),
    token: Option<&'a Arc<str>>,
}

impl Claim<'_> {
    pub(super) fn new(origin: Origin, owner: OwnerId, form: &Form) -> Claim<'_> {
        Claim {
            me: (origin.uuid, owner),
            token: form.token.as_ref(),
        }
    }

    fn has(&self, lock: &Lock) -> bool {
        match self.token {
            Some(token) => lock.value.as_ref() == Some(token),
            None => lock.owner == Some(self.me) && lock.value.is_none(),
        }
    }
}

/// The messages and changes that a command causes.
#[derive(Debug, Default)]
pub struct Effects {
    pub invalidated: Vec<(Origin, Name)>,
    pub published: Vec<(Uuid, Name)>,
    /// The names whose release was published.
    pub released: Vec<Name>,
    /// The owners whose lock was deleted by another client or library.
    pub bereaved: Vec<(Uuid, OwnerId)>,
}

/// Owners for which a replica that takes over has outdated data.
#[derive(Debug, Default)]
pub struct Outdated {
    pub revived: Vec<(Uuid, OwnerId)>,
    /// The values that callers chose for such locks, and their tokens.
    pub valued: Vec<(Name, Arc<str>, u64)>,
    pub miscounted: Vec<(Uuid, OwnerId)>,
}

#[derive(Debug)]
pub struct Server {
    pub locks: BTreeMap<Name, Lock>,
    /// The read-write locks.
    pub shared: BTreeMap<Name, Shared>,
    /// The writers of these that wait. Some of the times are over.
    pub marks: BTreeMap<Name, Mark>,
    pub semaphores: BTreeMap<Name, Semaphore>,
    /// The queues of the fair locks and semaphores.
    pub queues: BTreeMap<Name, Vec<Place>>,
    /// The places of the crowds.
    pub crowds: BTreeMap<Name, Crowd<(Uuid, OwnerId)>>,
    /// The channels and their subscribers.
    pub subscribers: BTreeSet<(Name, Uuid)>,
    trackers: BTreeSet<(Name, Origin)>,
    /// The number of keys for which the table of tracked keys has room, beside the keys of other
    /// programs; and the key to forget next.
    pub room: Option<usize>,
    forgotten: usize,
    /// The counters of the fencing tokens.
    pub tokens: BTreeMap<Name, u64>,
    /// The lease samples learnt by adaptive locks, in seconds.
    pub learnt: BTreeMap<Name, f64>,
    /// The scripts in its cache.
    pub scripts: BTreeSet<(u8, bool)>,
    /// The data of its replica.
    replica: Data,
    /// The difference of its clock to the simulated time, and the clock itself; in microseconds.
    ahead: u64,
    clock: u64,
    effects: Effects,
}

/// The first value of the clock. It is large enough for a clock that jumps back again and again.
const FIRST_CLOCK: u64 = 1_000_000_000;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap()
}

impl Server {
    pub fn new() -> Server {
        Server {
            locks: BTreeMap::new(),
            shared: BTreeMap::new(),
            marks: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            queues: BTreeMap::new(),
            crowds: BTreeMap::new(),
            subscribers: BTreeSet::new(),
            trackers: BTreeSet::new(),
            room: None,
            forgotten: 0,
            tokens: BTreeMap::new(),
            learnt: BTreeMap::new(),
            scripts: BTreeSet::new(),
            replica: Data::default(),
            ahead: FIRST_CLOCK,
            clock: FIRST_CLOCK,
            effects: Effects::default(),
        }
    }

    /// Moves the clock on to `time` (microseconds). Removes expired locks.
    pub fn tick(&mut self, time: u64) {
        self.clock = time + self.ahead;
        if self.next_expiry().is_none_or(|at| at > time) {
            return;
        }
        for name in self.over() {
            if self.pass_over(&name, false) {
                continue;
            }
            // It expires early: the last renewals were lost with the server that had them.
            let early = self
                .locks
                .remove(&name)
                .filter(|lock| lock.until_ms < lock.promised_ms);
            self.effects
                .bereaved
                .extend(early.and_then(|lock| lock.owner));
            let readers = self.shared.remove(&name).map(|shared| shared.owners);
            let early = readers.into_iter().flatten();
            self.effects.bereaved.extend(
                early
                    .filter(|lock| lock.until_ms < lock.promised_ms)
                    .filter_map(|lock| lock.owner),
            );
            self.changed(&name, None);
        }
    }

    /// Every lock that somebody has, with its name. A read-write lock may be had by several.
    pub fn held(&self) -> impl Iterator<Item = (&Name, &Lock)> {
        let shared = self.shared.iter();
        let owners =
            shared.flat_map(|(name, shared)| shared.owners.iter().map(move |lock| (name, lock)));
        let semaphores = self.semaphores.iter();
        let permits =
            semaphores.flat_map(|(name, semaphore)| semaphore.live().map(move |lock| (name, lock)));
        self.locks.iter().chain(owners).chain(permits)
    }

    /// The lock of this owner.
    pub fn lock_of(&self, name: &Name, me: (Uuid, OwnerId)) -> Option<&Lock> {
        let is_mine = |lock: &&Lock| lock.owner == Some(me);
        if let Some(semaphore) = self.semaphores.get(name) {
            return semaphore.find(me);
        }
        match self.shared.get(name) {
            Some(shared) => shared.owners.iter().find(is_mine),
            None => self.locks.get(name).filter(is_mine),
        }
    }

    /// How long this lock of the name lives. The hash of a read-write lock may end before the key of
    /// a reader.
    pub fn left(&self, name: &Name, lock: &Lock) -> Duration {
        if self.semaphores.contains_key(name) {
            let end = lock.until_ms.saturating_sub(MARGIN_MS);
            return Duration::from_millis(end.saturating_sub(self.now_ms()));
        }
        let hash = self.shared.get(name).map(|shared| shared.until_ms);
        let end = hash.map_or(lock.until_ms, |hash| hash.min(lock.until_ms));
        Duration::from_millis(end.saturating_sub(self.now_ms()))
    }

    /// The time-out key of a reader is evicted.
    pub fn evict(&mut self, name: &Name, which: usize) {
        let Some(shared) = self.shared.get_mut(name) else {
            return;
        };
        let mut readers = shared.owners.iter_mut().filter(|lock| lock.reads);
        if let Some(reader) = readers.nth(which) {
            reader.until_ms = 0;
        }
    }

    /// Sets the clock to the time of a real server.
    pub fn set_clock(&mut self, ms: u64) {
        self.ahead = 0;
        self.tick(ms * 1000);
    }

    /// The clock jumps, forward or back. Locks that expire by the jump count as deleted.
    pub fn jump(&mut self, ms: i64) {
        self.ahead = self.ahead.saturating_add_signed(ms * 1000);
        self.clock = self.clock.saturating_add_signed(ms * 1000);
        for name in self.over() {
            if !self.pass_over(&name, true) {
                self.delete(&name, None);
            }
        }
    }

    /// The server restarts without its data and without connections.
    pub fn restart(&mut self) {
        let owners: Vec<_> = self.held().filter_map(|(_, lock)| lock.owner).collect();
        self.effects.bereaved.extend(owners);
        self.locks.clear();
        self.shared.clear();
        self.marks.clear();
        self.semaphores.clear();
        self.queues.clear();
        self.crowds.clear();
        self.subscribers.clear();
        self.trackers.clear();
        self.tokens.clear();
        self.learnt.clear();
        self.scripts.clear();
        self.replica = Data::default();
    }

    /// The replica receives everything written so far.
    pub fn replicate(&mut self) {
        let (locks, tokens, learnt) =
            (self.locks.clone(), self.tokens.clone(), self.learnt.clone());
        self.replica = Data {
            locks,
            shared: self.shared.clone(),
            marks: self.marks.clone(),
            semaphores: self.semaphores.clone(),
            queues: self.queues.clone(),
            tokens,
            learnt,
        };
    }

    /// The replica takes over with its data and without connections. Returns the owners for which
    /// its data is outdated: a lock that they had released, or another count.
    pub fn fail_over(&mut self) -> Outdated {
        let Data {
            mut locks,
            mut shared,
            marks,
            mut semaphores,
            queues,
            tokens,
            learnt,
        } = self.replica.clone();
        let mut outdated = Outdated::default();
        let live = |(name, semaphore)| Semaphore::live_mut(semaphore).map(move |lock| (name, lock));
        let there =
            locks
                .iter_mut()
                .chain(shared.iter_mut().flat_map(|(name, shared)| {
                    shared.owners.iter_mut().map(move |lock| (name, lock))
                }))
                .chain(semaphores.iter_mut().flat_map(live));
        let mut stay = Vec::new();
        for (name, lock) in there {
            let known = match lock.owner {
                Some(me) => self.lock_of(name, me),
                None => self.locks.get(name).filter(|known| known.owner.is_none()),
            };
            match known {
                Some(known) => lock.promised_ms = known.promised_ms.max(lock.promised_ms),
                None => {
                    outdated.revived.extend(lock.owner);
                    let valued = lock.value.clone().zip(lock.token);
                    outdated
                        .valued
                        .extend(valued.map(|(value, token)| (name.clone(), value, token)));
                }
            }
            let miscounted = known.is_some_and(|known| known.count != lock.count);
            outdated
                .miscounted
                .extend(lock.owner.filter(|_| miscounted));
            stay.extend(lock.owner);
        }
        // Places that were given up. They run out.
        let is_new = |(name, place): &(&Name, &Place)| {
            let known = self.queues.get(*name);
            !known.is_some_and(|known| known.iter().any(|other| other.owner == place.owner))
        };
        let places = queues
            .iter()
            .flat_map(|(name, all)| all.iter().map(move |one| (name, one)));
        outdated
            .revived
            .extend(places.filter(is_new).map(|(_, place)| place.owner));
        let owners = self.held().filter_map(|(_, lock)| lock.owner);
        let gone: Vec<_> = owners.filter(|owner| !stay.contains(owner)).collect();
        self.effects.bereaved.extend(gone);
        (self.shared, self.semaphores, self.queues) = (shared, semaphores, queues);
        (self.locks, self.marks) = (locks, marks);
        (self.tokens, self.learnt) = (tokens, learnt);
        self.subscribers.clear();
        self.trackers.clear();
        self.scripts.clear();
        outdated
    }

    fn over(&self) -> Vec<Name> {
        let now_ms = self.now_ms();
        let over = self.ends().filter(|(_, until_ms)| now_ms > *until_ms);
        over.map(|(name, _)| name.clone()).collect()
    }

    /// When each key ends.
    fn ends(&self) -> impl Iterator<Item = (&Name, u64)> {
        let locks = self.locks.iter().map(|(name, lock)| (name, lock.until_ms));
        let shared = self.shared.iter();
        // A permit is over at the time that it is kept until, not behind it.
        let permits = self.semaphores.iter().flat_map(|(name, semaphore)| {
            let live = semaphore.live();
            live.map(move |lock| (name, lock.until_ms.saturating_sub(1)))
        });
        locks
            .chain(shared.map(|(name, shared)| (name, shared.until_ms)))
            .chain(permits)
    }

    /// The clock at this time, if it does not jump before.
    pub fn clock_at(&self, time: u64) -> u64 {
        (time + self.ahead) / 1000
    }

    /// The simulated time, in microseconds, however the clock jumps.
    pub fn time(&self) -> u64 {
        self.clock.saturating_sub(self.ahead)
    }

    /// The current clock, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock / 1000
    }

    /// The time at which the next lock ends, in microseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.ends()
            .map(|(_, until_ms)| ((until_ms + 1) * 1000).saturating_sub(self.ahead))
            .min()
    }

    pub fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    pub fn ttl(&self, lock: &Lock) -> Duration {
        Duration::from_millis(lock.until_ms.saturating_sub(self.now_ms()))
    }

    /// Invalidates the key for every connection that tracks it, except `by`.
    pub(super) fn changed(&mut self, name: &Name, by: Option<Origin>) {
        let told: Vec<Origin> = self
            .trackers
            .iter()
            .filter(|(tracked, _)| tracked == name)
            .map(|(_, origin)| *origin)
            .collect();
        for origin in told {
            self.trackers.remove(&(name.clone(), origin));
            if by != Some(origin) {
                self.effects.invalidated.push((origin, name.clone()));
            }
        }
    }

    /// Publishes a release. Returns the number of receivers.
    pub fn publish(&mut self, topic: Topic, name: &Name) -> u32 {
        self.publish_to(0, topic, name)
    }

    /// Publishes to the channel of a place of this client, if it is one.
    pub(super) fn publish_to(&mut self, uuid: Uuid, topic: Topic, name: &Name) -> u32 {
        self.effects.released.push(name.clone());
        let of_name = channel_for(&uuid.to_string(), topic, name);
        let from = (Name::from(of_name.as_str()), 0);
        let to = self.subscribers.range(from..);
        let to = to.take_while(|(channel, _)| **channel == *of_name);
        let to: Vec<(Uuid, Name)> = to.map(|(channel, uuid)| (*uuid, channel.clone())).collect();
        let heard = u32::try_from(to.len()).unwrap();
        self.effects.published.extend(to);
        heard
    }

    /// Deletes the key.
    pub fn delete(&mut self, name: &Name, by: Option<Origin>) -> bool {
        let shared = self.shared.remove(name).map(|shared| shared.owners);
        let gone: Vec<Lock> = self
            .locks
            .remove(name)
            .into_iter()
            .chain(shared.into_iter().flatten())
            .chain(
                self.semaphores
                    .remove(name)
                    .into_iter()
                    .flat_map(Semaphore::into_live),
            )
            .collect();
        if gone.is_empty() {
            return false;
        }
        self.effects
            .bereaved
            .extend(gone.iter().filter_map(|lock| lock.owner));
        self.changed(name, by);
        true
    }

    /// Another library takes one side of a read-write lock, if it can.
    pub fn take_side(&mut self, name: &Name, reads: bool, ms: u64) {
        let until_ms = self.now_ms() + ms;
        let free = self
            .shared
            .get(name)
            .is_none_or(|shared| reads && !shared.is_written && shared.find(None, true).is_none());
        if free {
            let shared = self.shared.entry(name.clone()).or_default();
            shared.enter(Lock::new(None, reads, until_ms));
            self.changed(name, None);
        }
    }

    /// Another library takes the lock if it is free.
    pub fn take(&mut self, name: &Name, ms: u64) {
        if !self.locks.contains_key(name) {
            let lock = Lock::new(None, false, self.now_ms() + ms);
            self.locks.insert(name.clone(), lock);
            self.changed(name, None);
        }
    }

    /// Another library releases the lock if it has it.
    pub fn give_back(&mut self, name: &Name) {
        if self
            .locks
            .get(name)
            .is_some_and(|lock| lock.owner.is_none())
        {
            self.locks.remove(name);
            self.changed(name, None);
            self.publish(Topic::Lock, name);
        }
        for reads in [true, false] {
            self.leave(None, name, None, reads);
        }
    }

    /// The connection is closed. Its tracking ends with it.
    pub fn disconnected(&mut self, origin: Origin) {
        self.trackers.retain(|(_, tracker)| *tracker != origin);
    }

    /// Whether a command for several locks leaves this lock to a single command.
    pub fn is_odd(&self, origin: Origin, op: &Op) -> bool {
        let (Op::Acquire(Acquire {
            name, owner, form, ..
        })
        | Op::Release(Release {
            name, owner, form, ..
        })) = op
        else {
            return true;
        };
        let is_own = self
            .locks
            .get(name)
            .map(|lock| Claim::new(origin, *owner, form).has(lock));
        if matches!(op, Op::Acquire(_)) {
            is_own == Some(true)
        } else {
            is_own != Some(true)
        }
    }

    /// Runs a command. `track`: its connection uses client tracking.
    pub fn execute(&mut self, origin: Origin, track: bool, op: &Op, not_after_ms: u64) -> Reply {
        let late = self.now_ms() > not_after_ms;
        let reply = match op {
            Op::Acquire(_) | Op::HandOver(_) | Op::Renew { .. } | Op::Force { .. } if late => {
                Reply::Stale
            }
            Op::Release(Release { remaining: 1.., .. }) | Op::Count { .. } if late => Reply::Stale,
            Op::Change { .. } if late => Reply::Stale,
            op if is_of_semaphore(op) => self.permits(origin, op),
            Op::Acquire(Acquire {
                name,
                owner,
                form,
                count,
                lease,
                fencing,
                payload,
                ..
            }) if is_read_write(form.kind) => {
                let me = (origin.uuid, *owner);
                let under = payload.under().map(|writer| (origin.uuid, writer));
                let mark = &payload.mark();
                let fencing = *fencing != Fencing::Off;
                if payload.steals() {
                    self.rob(origin, name, me, *lease);
                }
                let place = payload.place();
                let place = place.map(|place| ((origin.uuid, place.owner), place.first));
                if let Some(ahead) = place.and_then(|place| self.lets_first(name, place)) {
                    return Reply::Parked { ttl: None, ahead };
                }
                let reply = self.enter(
                    origin,
                    name,
                    (me, form.kind == Kind::Read),
                    under,
                    *count,
                    (*lease, *mark),
                    fencing,
                );
                match place {
                    Some((place, due)) => self.in_crowd(name, place, due, reply),
                    None => reply,
                }
            }
            Op::Release(Release {
                name,
                owner,
                form,
                remaining,
                ttl,
                unmark,
                place,
                ..
            }) if is_read_write(form.kind) => {
                let before = self.effects.published.len();
                let (me, reads) = (Some((origin.uuid, *owner)), form.kind == Kind::Read);
                assert!(
                    !reads || place.is_none(),
                    "a reader has no place in a crowd"
                );
                let mark = self.marks.get_mut(name).filter(|_| *unmark);
                let was_there = mark.is_some_and(|mark| mark.remove(&me.unwrap()).is_some());
                if was_there && self.marked_until(name).is_none() {
                    self.publish(Topic::ReadWrite, name);
                }
                let reply = match *remaining {
                    0 => self.leave(Some(origin), name, me, reads),
                    left => self.lower(origin, name, (me, reads), left, *ttl),
                };
                if let (0, Some(place)) = (*remaining, place.filter(|_| !unmark)) {
                    self.leave_crowd(name, (origin.uuid, place), before);
                }
                reply
            }
            Op::Force { name, kind } if is_read_write(*kind) => {
                let reads = *kind == Kind::Read;
                let has_it = self
                    .shared
                    .get(name)
                    .is_some_and(|shared| shared.is_written != reads);
                if has_it {
                    self.end_readers(origin, name);
                    self.delete(name, Some(origin));
                    self.publish(Topic::ReadWrite, name);
                }
                Reply::Forced(has_it)
            }
            Op::Inspect { name, kind, .. } if is_read_write(*kind) => {
                let reads = *kind == Kind::Read;
                let owners = self
                    .shared
                    .get(name)
                    .map(|shared| (&shared.owners, shared.until_ms));
                let holder = |(lock, end_ms): (&Lock, u64)| {
                    // A reader without a key lives for as long as the hash.
                    let left = lock
                        .key_left(self.now_ms())
                        .unwrap_or(end_ms - self.now_ms());
                    Holder {
                        owner: format!("{:?}", lock.owner),
                        count: lock.count,
                        remaining: Some(Duration::from_millis(left)),
                        process: None,
                    }
                };
                let owners = owners
                    .into_iter()
                    .flat_map(|(owners, end_ms)| owners.iter().map(move |lock| (lock, end_ms)));
                let side = owners.filter(|(lock, _)| lock.reads == reads);
                Reply::Holders(side.map(holder).collect())
            }
            Op::Acquire(Acquire {
                name,
                owner,
                form,
                count: 0..=1,
                lease,
                fencing,
                payload: Payload::Queued(Seat { queues, earlier }),
                ..
            }) if form.kind == Kind::Fair => {
                let owners = (*owner, earlier.as_slice());
                self.queue_up(origin, name, owners, *lease, *fencing, *queues)
            }
            Op::Release(Release {
                name,
                owner,
                form,
                remaining: 0,
                ..
            }) if form.kind == Kind::Fair => self.step_out(origin, name, *owner),
            Op::Acquire(Acquire {
                name,
                owner,
                form,
                count,
                lease,
                fencing,
                payload,
                ..
            }) => {
                let place = payload.place();
                let place = place.map(|place| ((origin.uuid, place.owner), place.first));
                if let Some(ahead) = place.and_then(|place| self.lets_first(name, place)) {
                    return Reply::Parked { ttl: None, ahead };
                }
                let reply = self.acquire(
                    origin,
                    name,
                    Claim::new(origin, *owner, form),
                    *count,
                    self.lease(name, form, *lease),
                    *fencing,
                );
                match place {
                    Some((place, due)) => self.in_crowd(name, place, due, reply),
                    None => reply,
                }
            }
            Op::HandOver(HandOver {
                name,
                owner,
                adopts,
                to,
                lease,
                fencing,
                ..
            }) => self.hand_over(
                origin,
                name,
                ([*owner, *to], adopts.as_ref()),
                *lease,
                *fencing,
            ),
            Op::Release(Release {
                name,
                owner,
                form,
                remaining,
                ttl,
                lesson,
                place,
                ..
            }) => {
                let before = self.effects.published.len();
                let reply = self.release(
                    origin,
                    name,
                    Claim::new(origin, *owner, form),
                    *remaining,
                    *ttl,
                );
                if let (Reply::Released(_), Some(lesson)) = (&reply, lesson) {
                    self.learn(name, *lesson);
                }
                if let (0, Some(place)) = (remaining, place) {
                    let own = (origin.uuid, *place);
                    let is_hash = form.kind.layout() == Layout::Hash;
                    let keeps = is_hash && matches!(reply, Reply::Gone(_));
                    let crowd = self.crowds.get_mut(name).filter(|_| keeps);
                    let behind =
                        |crowd: &&mut Crowd<_>| crowd.left(own) > 0 && crowd.places.contains(&own);
                    let is_behind = crowd.as_ref().is_some_and(behind);
                    let has_told = crowd.as_ref().is_some_and(|crowd| crowd.has_told());
                    if crowd.is_some_and(|crowd| crowd.leave(own)) {
                        self.tell_crowd(name, 0);
                    } else if !is_behind && !has_told {
                        self.leave_crowd(name, own, before);
                    }
                }
                reply
            }
            Op::Renew { holds } => {
                let renew = |hold: &Renewal| {
                    if is_read_write(hold.form.kind) {
                        let reads = hold.form.kind == Kind::Read;
                        return self.renew_side(origin, &hold.name, (hold.owner, reads), hold.ttl);
                    }
                    self.renew(
                        origin,
                        &hold.name,
                        Claim::new(origin, hold.owner, &hold.form),
                        hold.ttl,
                    )
                };
                Reply::Renewed(holds.iter().map(renew).collect())
            }
            Op::Force { name, kind } => {
                let deleted = self.delete(name, Some(origin));
                if deleted && *kind == Kind::Fair {
                    self.tell_queue(name);
                } else if deleted {
                    self.publish(Topic::Lock, name);
                }
                Reply::Forced(deleted)
            }
            Op::Count { .. } => panic!("only semaphores are counted"),
            Op::Change { .. } | Op::Read { .. } => panic!("no counters here"),
            Op::Inspect {
                name,
                what: Inspection::Waiters,
                ..
            } => self.waiters(name),
            Op::Inspect { name, .. } => {
                let holder = |lock: &Lock| Holder {
                    owner: format!("{:?}", lock.owner),
                    count: lock.count,
                    remaining: Some(self.ttl(lock)),
                    process: None,
                };
                Reply::Holders(self.locks.get(name).map(holder).into_iter().collect())
            }
        };
        // Every script ends with a read of its keys, so that they are tracked.
        // Scripts of semaphores do not: what they write is not tracked.
        if track && (!is_of_semaphore(op) || matches!(op, Op::Acquire(_))) {
            let keys = names(op).into_iter().chain(reader_keys(origin.uuid, op));
            self.trackers.extend(keys.map(|name| (name, origin)));
            self.forget_tracked();
        }
        reply
    }

    /// Removes keys from a table of tracked keys that is too full, before the next command of any
    /// client. Their trackers get an invalidation.
    pub fn forget_tracked(&mut self) {
        let Some(room) = self.room else { return };
        let mut tracked: Vec<Name> = self.trackers.iter().map(|(name, _)| name.clone()).collect();
        tracked.dedup();
        while tracked.len() > room {
            self.forgotten += 1;
            let name = tracked.remove(self.forgotten % tracked.len());
            self.changed(&name, None);
        }
    }

    /// How many are before this place, if one of them gets the free lock.
    fn lets_first(
        &mut self,
        name: &Name,
        ((uuid, owner), first): ((Uuid, OwnerId), bool),
    ) -> Option<u32> {
        if first || self.locks.contains_key(name) || self.shared.contains_key(name) {
            return None;
        }
        let crowd = self.crowds.get(name)?;
        crowd
            .first((uuid, owner))
            .filter(|first| *first != (uuid, owner))?;
        let (woken, _) = self.wake_crowd(name, (uuid, owner));
        woken.then(|| self.park(name, (uuid, owner), first))
    }

    /// The reply to an acquisition that asked for this place: it has it, or it and the first one are over.
    fn in_crowd(&mut self, name: &Name, place: (Uuid, OwnerId), due: bool, reply: Reply) -> Reply {
        match reply {
            Reply::Busy { ttl } => Reply::Parked {
                ttl,
                ahead: self.park(name, place, due),
            },
            Reply::Acquired { .. } => {
                let crowd = self.crowds.entry(name.clone()).or_default();
                let first = crowd.first(place);
                for gone in first.into_iter().chain([place]) {
                    crowd.leave(gone);
                }
                reply
            }
            reply => reply,
        }
    }

    /// Gives a client its place in a crowd. Returns how many are before it.
    pub fn park(&mut self, name: &Name, place: (Uuid, OwnerId), due: bool) -> u32 {
        let now = self.clock;
        let crowd = self.crowds.entry(name.clone()).or_default();
        crowd.park(place, due, now)
    }

    /// Tells the first places of those that wait for permits, of which so many are free.
    pub fn tell_crowd(&mut self, name: &Name, free: i64) {
        let now = self.clock;
        if let Some(mut crowd) = self.crowds.remove(name) {
            let mut hears = |(uuid, place)| self.publish_to(uuid, Topic::Place(place), name) > 0;
            crowd.tell(free, now, &mut hears);
            self.crowds.insert(name.clone(), crowd);
        }
    }

    /// A release gives this place up and wakes the next one, which hears of it before others do of all that
    /// was published since `before`, unless one was told that it is the first.
    fn leave_crowd(&mut self, name: &Name, own: (Uuid, OwnerId), before: usize) {
        let told = self.effects.published.len() - before;
        if let Some(crowd) = self.crowds.get_mut(name) {
            crowd.leave(own);
        }
        let (_, has_first) = self.wake_crowd(name, own);
        if !has_first {
            self.effects.published[before..].rotate_left(told);
        }
    }

    /// Wakes the first place that somebody listens for, unless it is this one. Returns whether it did, and
    /// whether another one was told that it is the first.
    fn wake_crowd(&mut self, name: &Name, own: (Uuid, OwnerId)) -> (bool, bool) {
        let now = self.clock;
        let Some(mut crowd) = self.crowds.remove(name) else {
            return (false, false);
        };
        let hears = |(uuid, place)| self.publish_to(uuid, Topic::Place(place), name) > 0;
        let woken = crowd.wake(own, now, hears);
        self.crowds.insert(name.clone(), crowd);
        woken
    }

    pub(super) fn acquire(
        &mut self,
        origin: Origin,
        name: &Name,
        claim: Claim<'_>,
        count: u32,
        lease: Duration,
        fencing: Fencing,
    ) -> Reply {
        let until_ms = self.now_ms() + millis(lease);
        match self.locks.get_mut(name) {
            None if count > 1 => return Reply::Gone(LostReason::Deleted),
            None => {
                let token = (fencing != Fencing::Off).then(|| self.draw_token(name));
                let (owner, value) = (Some(claim.me), claim.token.cloned());
                let lock = Lock {
                    owner,
                    count: count.max(1),
                    reads: false,
                    until_ms,
                    unseen_ms: 0,
                    promised_ms: until_ms,
                    handovers: 0,
                    token,
                    value,
                };
                self.locks.insert(name.clone(), lock);
            }
            Some(lock) if claim.has(lock) && count > 0 => {
                // The value is the same, whichever attempt with the token left it.
                lock.owner = Some(claim.me);
                lock.count = count;
                lock.prolong(until_ms);
            }
            Some(_) if count > 1 => return Reply::Gone(LostReason::Stolen),
            Some(lock) => {
                let ttl = lock.until_ms.saturating_sub(self.now_ms());
                return Reply::Busy {
                    ttl: Some(Duration::from_millis(ttl)),
                };
            }
        }
        self.changed(name, Some(origin));
        let lock = &self.locks[name];
        Reply::Acquired {
            ttl: self.ttl(lock),
            token: lock.token.filter(|_| count < 2),
        }
    }

    /// The lease of a lock. An adaptive lock chooses its own.
    fn lease(&self, name: &Name, form: &Form, asked: Duration) -> Duration {
        let learnt = self
            .learnt
            .get(name)
            .filter(|_| form.kind.layout() == Layout::Learning);
        learnt.map_or(asked, |learnt| {
            Duration::from_secs((learnt + 10.0).floor() as u64)
        })
    }

    /// Learns from a long work time, unless it is well within the requested lease.
    fn learn(&mut self, name: &Name, lesson: LeaseSample) {
        let (took, asked) = (lesson.took.as_secs() as f64, lesson.asked.as_secs() as f64);
        if took <= 0.0 {
            return;
        }
        let learnt = self.learnt.get(name);
        let average = learnt.map_or(took, |learnt| (learnt * 8.0 + took * 2.0) / 10.0);
        if average > asked - 5.0 || (learnt.is_some() && average == asked - 5.0) {
            self.learnt.insert(name.clone(), average);
        } else {
            self.learnt.remove(name);
        }
    }

    fn hand_over(
        &mut self,
        origin: Origin,
        name: &Name,
        (owners, adopts): ([OwnerId; 2], Option<&Arc<str>>),
        lease: Duration,
        fencing: Fencing,
    ) -> Reply {
        let [from, to] = owners.map(|owner| Some((origin.uuid, owner)));
        let until_ms = self.now_ms() + millis(lease);
        match self.locks.get_mut(name) {
            None => return Reply::Gone(LostReason::Deleted),
            Some(lock) if lock.owner == to && lock.value.is_none() => drop(lock.prolong(until_ms)),
            Some(lock) if adopts.is_some() && lock.value.as_ref() != adopts => {
                return Reply::Gone(LostReason::Stolen);
            }
            Some(lock) if adopts.is_none() && (lock.owner != from || lock.value.is_some()) => {
                return Reply::Gone(LostReason::Stolen);
            }
            Some(lock) => {
                let handovers = match adopts {
                    Some(_) => {
                        self.effects.bereaved.extend(lock.owner);
                        0
                    }
                    None => lock.handovers + 1,
                };
                let token = (fencing != Fencing::Off).then(|| self.draw_token(name));
                let (count, promised_ms, value) = (1, until_ms, None);
                let lock = Lock {
                    owner: to,
                    count,
                    reads: false,
                    until_ms,
                    unseen_ms: 0,
                    promised_ms,
                    handovers,
                    token,
                    value,
                };
                self.locks.insert(name.clone(), lock);
            }
        }
        self.changed(name, Some(origin));
        let lock = &self.locks[name];
        Reply::Acquired {
            ttl: self.ttl(lock),
            token: lock.token,
        }
    }

    /// The token is at least the clock in microseconds, so that tokens grow across a restart
    /// without data.
    fn draw_token(&mut self, name: &Name) -> u64 {
        let previous = self.tokens.entry(name.clone()).or_default();
        *previous = self.clock.max(*previous + 1);
        *previous
    }

    fn release(
        &mut self,
        origin: Origin,
        name: &Name,
        claim: Claim<'_>,
        remaining: u32,
        ttl: Duration,
    ) -> Reply {
        let until_ms = self.now_ms() + millis(ttl);
        match self.locks.get_mut(name) {
            None => return Reply::Gone(LostReason::Deleted),
            Some(lock) if !claim.has(lock) => return Reply::Gone(LostReason::Stolen),
            Some(lock) if remaining > 0 => {
                lock.count = remaining;
                (lock.until_ms, lock.promised_ms) = (until_ms, until_ms);
                self.changed(name, Some(origin));
                return Reply::Kept;
            }
            Some(lock) => {
                // A caller that knew the token released it.
                self.effects
                    .bereaved
                    .extend(lock.owner.filter(|owner| *owner != claim.me));
            }
        }
        self.locks.remove(name);
        self.changed(name, Some(origin));
        Reply::Released(self.publish(Topic::Lock, name))
    }

    fn renew(
        &mut self,
        origin: Origin,
        name: &Name,
        claim: Claim<'_>,
        ttl: Duration,
    ) -> RenewReply {
        let until_ms = self.now_ms() + millis(ttl);
        match self.locks.get_mut(name) {
            None => RenewReply::Gone(LostReason::Deleted),
            Some(lock) if !claim.has(lock) => RenewReply::Gone(LostReason::Stolen),
            Some(lock) => {
                if lock.prolong(until_ms) {
                    self.changed(name, Some(origin));
                }
                RenewReply::Kept
            }
        }
    }
}

impl Server {
    /// Takes one side of a read-write lock, or sets the count of its owner.
    #[allow(clippy::too_many_arguments, reason = "as many as the script has")]
    fn enter(
        &mut self,
        origin: Origin,
        name: &Name,
        (me, reads): ((Uuid, OwnerId), bool),
        under: Option<(Uuid, OwnerId)>,
        count: u32,
        (lease, mark): (Duration, Option<Duration>),
        fencing: bool,
    ) -> Reply {
        let now_ms = self.now_ms();
        let shared = self.shared.get(name);
        let held = shared.is_some_and(|shared| shared.find(Some(me), reads).is_some());
        if !held && count > 1 {
            return Reply::Gone(why_gone(shared));
        }
        let is_barred = |shared: &Shared| {
            let reads_under = under.is_some() && shared.find(under, false).is_some();
            !reads || (shared.is_written && !reads_under)
        };
        if let Some(shared) = shared.filter(|shared| !held && is_barred(shared)) {
            let left = Duration::from_millis(shared.until_ms.saturating_sub(now_ms));
            if let Some(time) = mark.filter(|_| !reads) {
                let mark = self.marks.entry(name.clone()).or_default();
                mark.insert(me, now_ms + millis(time));
            }
            return Reply::Busy { ttl: Some(left) };
        }
        let stands_back = reads && !held && mark.is_some();
        if let Some(end_ms) = self.marked_until(name).filter(|_| stands_back) {
            let left = Duration::from_millis(end_ms - now_ms);
            return Reply::Busy { ttl: Some(left) };
        }
        if let Some(waiting) = self
            .marks
            .get_mut(name)
            .filter(|_| !reads && mark.is_some())
        {
            waiting.remove(&me);
        }
        let drawn = (!held && fencing && !reads).then(|| self.draw_token(name));
        let shared = self.shared.entry(name.clone()).or_default();
        let lock = shared.enter(Lock::new(Some(me), reads, now_ms + millis(lease)));
        if !reads {
            lock.count = count;
        }
        lock.token = drawn.or(lock.token);
        let token = lock.token.filter(|_| count < 2);
        // A reader has a time of its own.
        let end_ms = if reads {
            lock.until_ms
        } else {
            shared.until_ms
        };
        let ttl = Duration::from_millis(end_ms - now_ms);
        self.changed(name, Some(origin));
        Reply::Acquired { ttl, token }
    }

    /// The writers that have noted that they wait, and until when that counts.
    pub fn marked(&self, name: &Name) -> impl Iterator<Item = ((Uuid, OwnerId), u64)> {
        let all = self.marks.get(name).into_iter().flatten();
        let now_ms = self.now_ms();
        all.map(|(owner, end_ms)| (*owner, *end_ms))
            .filter(move |(_, end_ms)| *end_ms > now_ms)
    }

    /// Until when new readers stand back.
    pub fn marked_until(&self, name: &Name) -> Option<u64> {
        self.marked(name).map(|(_, end_ms)| end_ms).max()
    }

    /// All others lose the lock. The thief has it already if this is another copy.
    fn rob(&mut self, origin: Origin, name: &Name, me: (Uuid, OwnerId), lease: Duration) {
        self.end_readers(origin, name);
        let until_ms = self.now_ms() + millis(lease);
        let shared = self.shared.get_mut(name);
        let own = shared.and_then(|shared| shared.take(Some(me), false));
        self.delete(name, Some(origin));
        if let Some(own) = own {
            let shared = self.shared.entry(name.clone()).or_default();
            shared.enter(Lock::new(Some(me), false, until_ms)).token = own.token;
        }
    }

    /// Deletes the time-out keys of all readers, which their clients track.
    fn end_readers(&mut self, origin: Origin, name: &Name) {
        let shared = self.shared.get(name);
        let owners = shared.iter().flat_map(|shared| &shared.owners);
        let readers: Vec<_> = owners
            .filter(|lock| lock.reads)
            .filter_map(|lock| lock.owner)
            .collect();
        for (uuid, owner) in readers {
            self.changed(&reader_key(uuid, name, owner), Some(origin));
        }
    }

    fn lower(
        &mut self,
        origin: Origin,
        name: &Name,
        (me, reads): (Option<(Uuid, OwnerId)>, bool),
        count: u32,
        ttl: Duration,
    ) -> Reply {
        let (now_ms, until_ms) = (self.now_ms(), self.now_ms() + millis(ttl));
        let shared = self.shared.get_mut(name);
        if !shared.is_some_and(|shared| shared.lower(me, reads, count, now_ms, until_ms)) {
            return Reply::Gone(why_gone(self.shared.get(name)));
        }
        self.changed(name, Some(origin));
        Reply::Kept
    }

    /// An owner leaves its side. The last reader tells the waiters, and every writer.
    fn leave(
        &mut self,
        by: Option<Origin>,
        name: &Name,
        me: Option<(Uuid, OwnerId)>,
        reads: bool,
    ) -> Reply {
        let now_ms = self.now_ms();
        let left = self
            .shared
            .get_mut(name)
            .and_then(|shared| shared.leave(me, reads, now_ms));
        let Some((_, tells)) = left else {
            return Reply::Gone(why_gone(self.shared.get(name)));
        };
        if let Some((uuid, owner)) = me.filter(|_| reads) {
            self.changed(&reader_key(uuid, name, owner), by);
        }
        self.shared.retain(|_, shared| !shared.owners.is_empty());
        self.changed(name, by);
        let heard = if tells {
            self.publish(Topic::ReadWrite, name)
        } else {
            0
        };
        Reply::Released(heard)
    }

    fn renew_side(
        &mut self,
        origin: Origin,
        name: &Name,
        (owner, reads): (OwnerId, bool),
        ttl: Duration,
    ) -> RenewReply {
        let (me, now_ms) = (Some((origin.uuid, owner)), self.now_ms());
        let shared = self.shared.get_mut(name);
        match shared.and_then(|shared| shared.renew(me, reads, now_ms, now_ms + millis(ttl))) {
            None => RenewReply::Gone(why_gone(self.shared.get(name))),
            Some(changes) => {
                if changes {
                    self.changed(name, Some(origin));
                }
                RenewReply::Kept
            }
        }
    }
}

impl Server {
    /// The permits of this name whose time is over. Whether it is a semaphore.
    fn pass_over(&mut self, name: &Name, all: bool) -> bool {
        let now_ms = self.now_ms();
        let Some(semaphore) = self.semaphores.get_mut(name) else {
            return false;
        };
        self.effects
            .bereaved
            .extend(semaphore.pass_over(now_ms, all));
        true
    }

    /// Runs a command for semaphores.
    fn permits(&mut self, origin: Origin, op: &Op) -> Reply {
        let now_ms = self.now_ms();
        if let Op::Renew { holds } = op {
            let renew = |hold: &Renewal| {
                let me = (origin.uuid, hold.owner);
                let semaphore = self.semaphores.entry(hold.name.clone()).or_default();
                match semaphore.keep(me, hold.ttl, now_ms, true) {
                    Ok(()) => RenewReply::Kept,
                    Err(reason) => RenewReply::Gone(reason),
                }
            };
            return Reply::Renewed(holds.iter().map(renew).collect());
        }
        let name = op.name().unwrap().clone();
        let semaphore = self.semaphores.entry(name.clone()).or_default();
        let free = semaphore.free;
        let (reply, tells) = match op {
            Op::Acquire(Acquire {
                owner,
                form,
                count: count @ ..=1,
                lease,
                payload: Payload::QueuedPermits(limit, Seat { queues, earlier }),
                ..
            }) if form.kind == Kind::FairSemaphore => self.queue_for_permits(
                &name,
                ((origin.uuid, *owner), earlier.as_slice()),
                form.permits.into(),
                (*count, *limit),
                *lease,
                *queues,
            ),
            Op::Acquire(Acquire {
                owner,
                form,
                count,
                lease,
                payload,
                ..
            }) => {
                let (limit, place) = (payload.limit(), payload.place());
                let (me, many) = ((origin.uuid, *owner), form.permits.into());
                let crowd = self.crowds.get(&name);
                let waits = place.filter(|place| !place.first).zip(crowd);
                let left = waits.map_or(0, |(place, crowd)| crowd.left((origin.uuid, place.owner)));
                let again = semaphore.again(me, *count, *lease, now_ms);
                let is_copy = again.is_some();
                let (reply, tells) = match again {
                    Some(reply) => (reply, false),
                    None => semaphore.acquire(me, many, (limit, left), *lease, now_ms),
                };
                let free = semaphore.free.unwrap_or(0);
                match place.filter(|_| !is_copy) {
                    Some(place) => {
                        let own = (origin.uuid, place.owner);
                        let crowd = self.crowds.entry(name.clone()).or_default();
                        let reply = match reply {
                            Reply::Busy { ttl } => Reply::Parked {
                                ttl,
                                ahead: crowd.stand(own, free, self.clock),
                            },
                            reply => reply,
                        };
                        if matches!(reply, Reply::Acquired { .. }) {
                            crowd.served(own, place.first, free + many, self.clock);
                            self.tell_crowd(&name, free);
                        }
                        (reply, tells)
                    }
                    None => (reply, tells),
                }
            }
            Op::Release(Release {
                owner,
                form,
                remaining,
                ttl,
                ..
            }) => {
                let me = (origin.uuid, *owner);
                if *remaining > 0 {
                    return match semaphore.keep(me, *ttl, now_ms, false) {
                        Ok(()) => Reply::Kept,
                        Err(_) => semaphore.gone(),
                    };
                }
                match semaphore.release(Some(me)) {
                    Some(tells) => (Reply::Released(0), tells),
                    None => {
                        let gone = semaphore.gone();
                        let fair = form.kind == Kind::FairSemaphore;
                        (gone, fair && self.leave_semaphore(&name, me))
                    }
                }
            }
            Op::Force { .. } => {
                let gone: Vec<_> = semaphore.live().filter_map(|lock| lock.owner).collect();
                let back = semaphore.force();
                let tells = back && semaphore.free.is_some_and(|free| free > 0);
                self.effects.bereaved.extend(gone);
                (Reply::Forced(back), tells)
            }
            Op::Count { limit, .. } => {
                let reply = semaphore.count(*limit);
                let changed = semaphore.free != free && limit.is_some();
                (reply, changed && semaphore.free > Some(0))
            }
            Op::Inspect {
                what: Inspection::Waiters,
                ..
            } => (self.waiters(&name), false),
            _ => {
                let holder = |lock: &Lock| Holder {
                    owner: format!("{:?}", lock.owner),
                    count: 1,
                    remaining: Some(Duration::from_millis(lock.until_ms - now_ms)),
                    process: None,
                };
                let holders = semaphore.live().map(holder).collect();
                (Reply::Holders(holders), false)
            }
        };
        if semaphore_changed(&self.semaphores, &name, free) {
            self.changed(&name, Some(origin));
        }
        let heard = if tells {
            self.publish(Topic::Semaphore, &name)
        } else {
            0
        };
        match reply {
            Reply::Released(_) => Reply::Released(heard),
            other => other,
        }
    }

    /// Redisson does something with a permit.
    pub fn stranger_at_semaphore(&mut self, name: &Name, deed: u64, ms: u64) {
        let until_ms = self.now_ms() + ms;
        let Some(semaphore) = self.semaphores.get_mut(name) else {
            return;
        };
        let free = semaphore.free;
        let tells = match deed {
            // The number is evicted.
            0 => {
                semaphore.free = None;
                false
            }
            1..4 => {
                semaphore.take(until_ms);
                false
            }
            // Its clock is fast: it takes a permit of others back.
            4 => {
                let first = semaphore.live().next().and_then(|lock| lock.owner);
                self.effects.bereaved.extend(first);
                first.is_some() && semaphore.release(first) == Some(true)
            }
            _ => semaphore.release(None) == Some(true),
        };
        if semaphore_changed(&self.semaphores, name, free) {
            self.changed(name, None);
        }
        if tells {
            self.publish(Topic::Semaphore, name);
        }
    }
}

/// Whether the number of free permits is another than before.
fn semaphore_changed(all: &BTreeMap<Name, Semaphore>, name: &Name, before: Option<i64>) -> bool {
    all.get(name)
        .is_some_and(|semaphore| semaphore.free != before)
}

/// Whether the command is for semaphores.
fn is_of_semaphore(op: &Op) -> bool {
    let kind = match op {
        Op::Acquire(Acquire { form, .. })
        | Op::HandOver(HandOver { form, .. })
        | Op::Release(Release { form, .. }) => form.kind,
        Op::Renew { holds } => holds[0].form.kind,
        Op::Force { kind, .. } | Op::Inspect { kind, .. } => *kind,
        Op::Count { .. } => Kind::Semaphore,
        Op::Change { .. } | Op::Read { .. } => return false,
    };
    kind.takes_permits()
}

fn is_read_write(kind: Kind) -> bool {
    kind.facts().topic == Topic::ReadWrite
}

/// The time-out key of a reader.
fn reader_key(uuid: Uuid, name: &Name, owner: OwnerId) -> Name {
    timeout_key(&uuid.to_string(), name, &Form::of(Kind::Read), owner).into()
}

/// The time-out keys that a command of this client reads.
fn reader_keys(uuid: Uuid, op: &Op) -> Vec<Name> {
    match op {
        Op::Acquire(Acquire {
            name, owner, form, ..
        })
        | Op::Release(Release {
            name,
            owner,
            form,
            remaining: 1..,
            ..
        }) if form.kind == Kind::Read => vec![reader_key(uuid, name, *owner)],
        Op::Renew { holds } => {
            let readers = holds.iter().filter(|hold| hold.form.kind == Kind::Read);
            readers
                .map(|hold| reader_key(uuid, &hold.name, hold.owner))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Why an owner does not have the lock any more.
fn why_gone(shared: Option<&Shared>) -> LostReason {
    shared.map_or(LostReason::Deleted, |_| LostReason::Stolen)
}

pub(super) fn names(op: &Op) -> Vec<Name> {
    match op {
        Op::Renew { holds } => holds.iter().map(|hold| hold.name.clone()).collect(),
        op => op.name().into_iter().cloned().collect(),
    }
}

/// The script for this call, alone or shared with others.
pub(super) fn script_of(op: &Op, sort: Option<BatchKey>) -> (u8, bool) {
    let script = match op {
        Op::Acquire(_) => 0,
        Op::HandOver(_) => 1,
        Op::Release(_) => 2,
        Op::Renew { .. } => 3,
        Op::Force { .. } => 4,
        Op::Inspect { .. } => 5,
        Op::Count { .. } => 6,
        Op::Change { .. } => 7,
        Op::Read { .. } => 8,
    };
    (script, sort.is_some())
}
