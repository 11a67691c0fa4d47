//! The modelled semaphore: the number of free permits, and the owners of taken ones with their times.

use std::time::Duration;

use super::server::{Lock, Uuid};
use crate::error::LostReason;
use crate::tuning::{CROWD_FIRST, CROWD_LEFT, PERMIT_MARGIN};
use crate::wire::{OwnerId, Permits, Reply};

/// The lease in whole milliseconds.
fn whole(lease: Duration) -> (u64, Duration) {
    let ms = u64::try_from(lease.as_micros().div_ceil(1000)).unwrap();
    (ms, Duration::from_millis(ms))
}

/// The places of a crowd, as the server has them: those that have been told that they are the first come first.
#[derive(Debug, Clone)]
pub struct Crowd<Who> {
    pub places: Vec<Who>,
    /// When each of those was told, in us.
    told: Vec<u64>,
}

impl<Who> Default for Crowd<Who> {
    fn default() -> Self {
        let (places, told) = (vec![], vec![]);
        Crowd { places, told }
    }
}

impl<Who: Copy + PartialEq> Crowd<Who> {
    /// Whether one has been told that it is among the first.
    pub fn has_told(&self) -> bool {
        !self.told.is_empty()
    }

    fn at(&self, who: Who) -> Option<usize> {
        self.places.iter().position(|other| *other == who)
    }

    /// So many permits are left to those before this one.
    pub fn left(&self, who: Who) -> i64 {
        i64::try_from(self.at(who).unwrap_or(self.places.len())).unwrap()
    }

    fn take(&mut self, who: Who) -> u32 {
        if self.at(who).is_none() {
            self.places.push(who);
        }
        u32::try_from(self.at(who).unwrap()).unwrap()
    }

    /// Gives somebody its place at a lock. Returns how many are before it. The first one is told that it is, if
    /// it looks because its time is over (`due`).
    pub fn park(&mut self, who: Who, due: bool, now: u64) -> u32 {
        let ahead = self.take(who);
        if ahead == 0 && due {
            self.tells(who, now);
        }
        ahead
    }

    /// Gives somebody its place among those that wait for permits, of which so many are free.
    pub fn stand(&mut self, who: Who, free: i64, now: u64) -> u32 {
        let ahead = self.take(who);
        let was = (ahead as usize) < self.told.len();
        let is_first = !was && i64::from(ahead) <= free.max(0);
        if is_first {
            self.tells(who, now);
        }
        if was || is_first { 0 } else { ahead }
    }

    fn tells(&mut self, who: Who, now: u64) {
        self.leave(who);
        self.places.insert(self.told.len(), who);
        self.told.push(now);
    }

    /// Gives a place up. Returns whether it had been told.
    pub fn leave(&mut self, who: Who) -> bool {
        let at = self.at(who);
        let is_told = at.is_some_and(|at| at < self.told.len());
        if let Some(at) = at {
            self.places.remove(at);
        }
        if let Some(at) = at.filter(|_| is_told) {
            self.told.remove(at);
        }
        is_told
    }

    /// This one has permits, of which so many were free. `due`: it left none to others.
    pub fn served(&mut self, who: Who, due: bool, free: i64, now: u64) {
        self.leave(who);
        let late = now.saturating_sub(u64::try_from(CROWD_LEFT.as_micros()).unwrap());
        let late = self.told.iter().filter(|told| **told <= late).count();
        let gone = if due {
            late.min(usize::try_from(free).unwrap())
        } else {
            0
        };
        self.places.drain(..gone);
        self.told.drain(..gone);
    }

    /// Tells the next ones, as long as no more have been told than permits are free.
    pub fn tell(&mut self, free: i64, now: u64, mut hears: impl FnMut(Who) -> bool) {
        while self.told.len() as i64 <= free
            && let Some(next) = self.places.get(self.told.len()).copied()
        {
            if hears(next) {
                self.tells(next, now);
            } else {
                self.leave(next);
            }
        }
    }

    /// The first place that a message of its own wakes, unless this one was told that it is the first.
    pub fn first(&self, own: Who) -> Option<Who> {
        let told = !self.told.is_empty() && self.places.first() != Some(&own);
        self.places.get(usize::from(told)).copied()
    }

    /// Wakes the first place, unless it is this one. Those that were told lately come by themselves. Returns
    /// whether one was woken, and whether there are such.
    pub fn wake(&mut self, own: Who, now: u64, mut hears: impl FnMut(Who) -> bool) -> (bool, bool) {
        let lasts = u64::try_from(CROWD_FIRST.as_micros()).unwrap();
        let mut at = 0;
        while let Some(first) = self.places.get(at).copied().filter(|first| *first != own) {
            let told = self.told.get(at).copied();
            if told.is_some_and(|told| now.saturating_sub(told) < lasts) {
                at += 1;
                continue;
            }
            if hears(first) {
                return (true, at > 0);
            }
            self.leave(first);
        }
        (false, at > 0)
    }
}

/// How many permits each semaphore of a simulation has.
pub const LIMIT: u32 = 3;
/// How long the server keeps a permit beyond its lease.
pub const MARGIN_MS: u64 = PERMIT_MARGIN.as_millis() as u64;

/// The permits that an owner took at once.
#[derive(Debug, Clone)]
pub struct Taken {
    pub lock: Lock,
    pub many: i64,
    /// Its time is over. It stays until somebody takes permits.
    pub is_over: bool,
}

/// A semaphore of which something is stored.
#[derive(Debug, Clone, Default)]
pub struct Semaphore {
    /// `None`: nobody has set it yet, or it was deleted.
    pub free: Option<i64>,
    pub taken: Vec<Taken>,
}

impl Semaphore {
    fn at(&self, owner: Option<(Uuid, OwnerId)>) -> Option<usize> {
        self.taken.iter().position(|one| one.lock.owner == owner)
    }

    /// The permits of this owner whose time is not over.
    pub fn find(&self, owner: (Uuid, OwnerId)) -> Option<&Lock> {
        let one = &self.taken[self.at(Some(owner))?];
        (!one.is_over).then_some(&one.lock)
    }

    pub fn live(&self) -> impl Iterator<Item = &Lock> {
        let live = self.taken.iter().filter(|one| !one.is_over);
        live.map(|one| &one.lock)
    }

    pub fn live_mut(&mut self) -> impl Iterator<Item = &mut Lock> {
        let live = self.taken.iter_mut().filter(|one| !one.is_over);
        live.map(|one| &mut one.lock)
    }

    pub fn into_live(self) -> impl Iterator<Item = Lock> {
        let live = self.taken.into_iter().filter(|one| !one.is_over);
        live.map(|one| one.lock)
    }

    /// Whether this owner has permits.
    pub fn has(&self, uuid: Uuid, owner: OwnerId) -> bool {
        self.at(Some((uuid, owner))).is_some()
    }

    /// All that are taken, by the record of the server.
    pub fn sum(&self) -> i64 {
        self.taken.iter().map(|one| one.many).sum()
    }

    /// How many an acquisition can take that sets the number if nobody did.
    pub fn available(&self) -> i64 {
        let over = self.taken.iter().filter(|one| one.is_over);
        let free = self.free.unwrap_or(i64::from(LIMIT) - self.sum());
        free + over.map(|one| one.many).sum::<i64>()
    }

    /// The permits whose time is over. Returns the owners to whom more was promised, or with `all`
    /// every owner.
    pub fn pass_over(&mut self, now_ms: u64, all: bool) -> Vec<(Uuid, OwnerId)> {
        let mut bereaved = Vec::new();
        for one in &mut self.taken {
            if !one.is_over && one.lock.until_ms() <= now_ms {
                one.is_over = true;
                let early = all || one.lock.ends_early();
                bereaved.extend(one.lock.owner.filter(|_| early));
            }
        }
        bereaved
    }

    fn add(&mut self, many: i64) {
        if let Some(free) = &mut self.free {
            *free += many;
        }
    }

    fn why_gone(&self) -> LostReason {
        self.free
            .map_or(LostReason::Deleted, |_| LostReason::Stolen)
    }

    /// Takes permits for an owner, except for those that are left to others. Returns the reply, and whether others are told
    /// of free permits.
    pub fn acquire(
        &mut self,
        me: (Uuid, OwnerId),
        many: i64,
        (limit, left): (u32, i64),
        lease: Duration,
        now_ms: u64,
    ) -> (Reply, bool) {
        let (back, _) = self.refill(limit);
        let enough = self.free.is_some_and(|free| free >= many);
        let is_left = self.free.is_some_and(|free| free < many + left);
        let reply = match (enough, is_left) {
            (true, false) => self.take_for(me, many, lease, now_ms),
            (true, true) => Reply::Busy {
                ttl: Some(CROWD_LEFT),
            },
            (false, _) => self.busy(now_ms, false),
        };
        let tells = back && self.free.is_some_and(|free| free > 0);
        (reply, tells)
    }

    /// Another copy of the call that took the permits, or another level of their owner.
    pub fn again(
        &mut self,
        me: (Uuid, OwnerId),
        count: u32,
        lease: Duration,
        now_ms: u64,
    ) -> Option<Reply> {
        let (lease_ms, ttl) = whole(lease);
        if let Some(at) = self.at(Some(me)) {
            self.taken[at].lock.prolong(now_ms + lease_ms + MARGIN_MS);
            self.taken[at].is_over = false;
            return Some(Reply::Acquired { ttl, token: None });
        }
        (count != 1).then(|| Reply::Gone(self.why_gone()))
    }

    /// Takes permits back whose time is over, and sets the number if nobody did. Returns whether it
    /// did the one and the other.
    pub fn refill(&mut self, limit: u32) -> (bool, bool) {
        let before = self.sum();
        self.taken.retain(|one| !one.is_over);
        let back = before - self.sum();
        self.add(back);
        let sets = limit > 0 && self.free.is_none();
        if sets {
            self.free = Some(i64::from(limit) - self.sum());
        }
        (back > 0, sets)
    }

    pub fn take_for(
        &mut self,
        me: (Uuid, OwnerId),
        many: i64,
        lease: Duration,
        now_ms: u64,
    ) -> Reply {
        let (lease_ms, ttl) = whole(lease);
        self.add(-many);
        self.insert(Some(me), many, now_ms + lease_ms + MARGIN_MS);
        Reply::Acquired { ttl, token: None }
    }

    pub fn busy(&self, now_ms: u64, vain: bool) -> Reply {
        let first = self.taken.iter().map(|one| one.lock.until_ms()).min();
        let ttl = first.map(|end| Duration::from_millis(end.saturating_sub(now_ms)));
        match vain {
            true => Reply::Vain { ttl },
            false => Reply::Busy { ttl },
        }
    }

    fn insert(&mut self, owner: Option<(Uuid, OwnerId)>, many: i64, until_ms: u64) {
        self.taken.push(Taken {
            lock: Lock::new(owner, true, until_ms),
            many,
            is_over: false,
        });
    }

    /// Redisson takes a permit, if one is free.
    pub fn take(&mut self, until_ms: u64) -> bool {
        let free = self.free.is_some_and(|free| free > 0);
        if free {
            self.add(-1);
            self.insert(None, 1, until_ms);
        }
        free
    }

    /// Gives the permits of an owner back. Returns whether it had any, and whether others are told.
    pub fn release(&mut self, owner: Option<(Uuid, OwnerId)>) -> Option<bool> {
        let gone = self.taken.remove(self.at(owner)?);
        self.add(gone.many);
        Some(self.free.is_some_and(|free| free > 0))
    }

    /// Why the owner has no permits.
    pub fn gone(&self) -> Reply {
        Reply::Gone(self.why_gone())
    }

    /// Lets the owner keep its permits for so long, or with `longer` at least for so long.
    pub fn keep(
        &mut self,
        owner: (Uuid, OwnerId),
        ttl: Duration,
        now_ms: u64,
        longer: bool,
    ) -> Result<(), LostReason> {
        let Some(at) = self.at(Some(owner)) else {
            return Err(self.why_gone());
        };
        let ttl_ms = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap();
        let (one, till) = (&mut self.taken[at], now_ms + ttl_ms + MARGIN_MS);
        if longer {
            one.lock.prolong(till);
        } else {
            one.lock.shorten(till);
        }
        one.is_over = one.lock.until_ms() <= now_ms;
        Ok(())
    }

    /// Gives all permits back.
    pub fn force(&mut self) -> bool {
        let back = self.sum();
        self.taken.clear();
        self.add(back);
        back > 0
    }

    /// The number of permits, after it was set.
    pub fn count(&mut self, limit: Option<u32>) -> Reply {
        if let Some(limit) = limit {
            self.free = Some(i64::from(limit) - self.sum());
        }
        let Some(free) = self.free else {
            return Reply::Counted(Permits::default());
        };
        Reply::Counted(Permits {
            available: self.available(),
            limit: free + self.sum(),
        })
    }
}
