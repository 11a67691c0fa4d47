//! The modelled hash of a read-write lock: one writer, or many readers, or a writer that reads too.
//! Each reader has a key of its own that keeps its time.

use super::server::{Lock, Uuid};
use crate::wire::OwnerId;

/// How long a reader without a key of its own counts as alive: the lease of Redisson's watchdog.
const UNSEEN_MS: u64 = 30_000;

/// A read-write lock that somebody holds.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// The field `mode`: whether there is a writer.
    pub is_written: bool,
    /// When the hash expires.
    pub until_ms: u64,
    /// The other fields, in the order of their entry. A reader's time is that of its key, a writer's
    /// that of the hash.
    pub owners: Vec<Lock>,
}

impl Shared {
    fn at(&self, owner: Option<(Uuid, OwnerId)>, reads: bool) -> Option<usize> {
        let is = |lock: &Lock| lock.owner == owner && lock.reads == reads;
        self.owners.iter().position(is)
    }

    pub fn find(&self, owner: Option<(Uuid, OwnerId)>, reads: bool) -> Option<&Lock> {
        Some(&self.owners[self.at(owner, reads)?])
    }

    /// Takes an owner out, and tells nobody.
    pub fn take(&mut self, owner: Option<(Uuid, OwnerId)>, reads: bool) -> Option<Lock> {
        let at = self.at(owner, reads)?;
        Some(self.owners.remove(at))
    }

    fn find_mut(&mut self, owner: Option<(Uuid, OwnerId)>, reads: bool) -> Option<&mut Lock> {
        let at = self.at(owner, reads)?;
        Some(&mut self.owners[at])
    }

    /// Makes the hash live until `until_ms`. A writer lives for as long.
    fn lives_until(&mut self, until_ms: u64) {
        self.until_ms = until_ms;
        for writer in self.owners.iter_mut().filter(|lock| !lock.reads) {
            writer.lives_until(until_ms);
        }
    }

    /// The longest time of the readers that are left; 0 when all are dead.
    fn longest(&mut self, now_ms: u64) -> u64 {
        let unseen = UNSEEN_MS.min(self.until_ms.saturating_sub(now_ms));
        let readers = || self.owners.iter().filter(|lock| lock.reads);
        let keys = readers().filter_map(|reader| reader.key_left(now_ms));
        if let Some(longest) = keys.max() {
            return longest;
        }
        let readers = self.owners.iter_mut().filter(|lock| lock.reads);
        let times = readers.map(|reader| reader.unseen_left(now_ms, unseen));
        times.max().unwrap_or(0)
    }

    /// After the departure of an owner, the hash lives no longer than those that are left.
    fn shrink(&mut self, now_ms: u64) {
        let longest = self.longest(now_ms);
        if longest == 0 {
            self.owners.clear();
        } else if now_ms + longest < self.until_ms {
            self.lives_until(now_ms + longest);
        }
    }

    /// Adds this owner, or prolongs its time. Returns its lock.
    pub fn enter(&mut self, new: Lock) -> &mut Lock {
        let (owner, reads, until_ms) = (new.owner, new.reads, new.until_ms());
        if self.at(owner, reads).is_none() {
            self.is_written |= !reads;
            self.owners.push(new);
        }
        if reads && let Some(reader) = self.find_mut(owner, reads) {
            reader.prolong(until_ms);
        }
        self.lives_until(self.until_ms.max(until_ms));
        self.find_mut(owner, reads).unwrap()
    }

    /// Whether the owner has the lock. Then it is renewed until `until_ms`; and whether the hash has
    /// changed.
    pub fn renew(
        &mut self,
        owner: Option<(Uuid, OwnerId)>,
        reads: bool,
        now_ms: u64,
        until_ms: u64,
    ) -> Option<bool> {
        let lock = self.find_mut(owner, reads)?;
        let least = if reads {
            lock.is_seen(now_ms);
            lock.prolong(until_ms);
            lock.until_ms()
        } else {
            until_ms
        };
        let grows = least > self.until_ms;
        self.lives_until(self.until_ms.max(least));
        Some(grows)
    }

    /// Sets a lower count, with this time. Whether the owner has the lock.
    pub fn lower(
        &mut self,
        owner: Option<(Uuid, OwnerId)>,
        reads: bool,
        count: u32,
        now_ms: u64,
        until_ms: u64,
    ) -> bool {
        let (end, alone, is_written) = (self.until_ms, self.owners.len() == 1, self.is_written);
        let Some(lock) = self.find_mut(owner, reads) else {
            return false;
        };
        if reads {
            let was_last = !is_written && lock.is_seen_until(end, now_ms);
            lock.shorten(until_ms);
            if was_last || self.until_ms < until_ms {
                let longest = until_ms.max(now_ms + self.longest(now_ms));
                self.lives_until(longest);
            }
            return true;
        }
        lock.count = count;
        let longest = if alone {
            until_ms
        } else {
            until_ms.max(now_ms + self.longest(now_ms))
        };
        self.lives_until(longest);
        if let Some(writer) = self.find_mut(owner, reads) {
            writer.shorten(longest);
        }
        true
    }

    /// Takes an owner out. Returns it, and whether the waiters are told.
    pub fn leave(
        &mut self,
        owner: Option<(Uuid, OwnerId)>,
        reads: bool,
        now_ms: u64,
    ) -> Option<(Lock, bool)> {
        let lock = self.owners.remove(self.at(owner, reads)?);
        if reads {
            if !self.is_written && lock.is_seen_until(self.until_ms, now_ms) {
                self.shrink(now_ms);
            }
            return Some((lock, self.owners.is_empty()));
        }
        self.is_written = false;
        self.shrink(now_ms);
        Some((lock, true))
    }
}
