//! The modelled Redis: locks with expiry, subscriptions, client tracking, and a replica that lags
//! behind. It does what `wire::Op` and `wire::Reply` document and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::error::LostReason;
use crate::wire::names::channel;
use crate::wire::{
    BatchKey, Fencing, Form, Holder, Layout, LeaseSample, Name, Op, OwnerId, RenewReply, Renewal,
    Reply, Topic,
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
    until_ms: u64,
    /// The number of local hand-overs since the lock was acquired.
    pub handovers: usize,
    /// The expiry on the server that failed, on which the owner relies.
    promised_ms: u64,
    pub token: Option<u64>,
    /// The caller's token, stored as the owner.
    pub value: Option<Arc<str>>,
}

impl Lock {
    /// Extends the lock until `until_ms`, if that is longer.
    fn prolong(&mut self, until_ms: u64) -> bool {
        let longer = until_ms > self.until_ms;
        self.until_ms = self.until_ms.max(until_ms);
        self.promised_ms = self.promised_ms.max(until_ms);
        longer
    }
}

/// The data that a replica keeps in a fail-over.
#[derive(Debug, Clone, Default)]
struct Data {
    locks: BTreeMap<Name, Lock>,
    /// The counters of the fencing tokens.
    tokens: BTreeMap<Name, u64>,
    /// The lease samples learnt by adaptive locks, in seconds.
    learnt: BTreeMap<Name, f64>,
}

/// The claim to be the owner: the same owner, or any caller with the same token.
#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    me: (Uuid, OwnerId),
    token: Option<&'a Arc<str>>,
}

impl Claim<'_> {
    fn new(origin: Origin, owner: OwnerId, form: &Form) -> Claim<'_> {
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
    pub miscounted: Vec<(Uuid, OwnerId)>,
}

#[derive(Debug)]
pub struct Server {
    pub locks: BTreeMap<Name, Lock>,
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
            // It expires early: the last renewals were lost with the server that had them.
            let early = self
                .locks
                .remove(&name)
                .filter(|lock| lock.until_ms < lock.promised_ms);
            self.effects
                .bereaved
                .extend(early.and_then(|lock| lock.owner));
            self.changed(&name, None);
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
            self.delete(&name, None);
        }
    }

    /// The server restarts without its data and without connections.
    pub fn restart(&mut self) {
        self.effects
            .bereaved
            .extend(self.locks.values().filter_map(|lock| lock.owner));
        self.locks.clear();
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
            tokens,
            learnt,
        };
    }

    /// The replica takes over with its data and without connections. Returns the owners for which
    /// its data is outdated: a lock that they had released, or another count.
    pub fn fail_over(&mut self) -> Outdated {
        let Data {
            mut locks,
            tokens,
            learnt,
        } = self.replica.clone();
        let mut outdated = Outdated::default();
        for (name, lock) in &mut locks {
            match self
                .locks
                .get(name)
                .filter(|known| known.owner == lock.owner)
            {
                Some(known) => lock.promised_ms = known.promised_ms.max(lock.promised_ms),
                None => outdated.revived.extend(lock.owner),
            }
            outdated.miscounted.extend(lock.owner.filter(|_| {
                self.locks
                    .get(name)
                    .is_some_and(|known| known.count != lock.count)
            }));
        }
        let stays = |name: &Name, lock: &Lock| {
            locks
                .get(name)
                .is_some_and(|there| there.owner == lock.owner)
        };
        let gone = self.locks.iter().filter(|(name, lock)| !stays(name, lock));
        self.effects
            .bereaved
            .extend(gone.filter_map(|(_, lock)| lock.owner));
        (self.locks, self.tokens, self.learnt) = (locks, tokens, learnt);
        self.subscribers.clear();
        self.trackers.clear();
        self.scripts.clear();
        outdated
    }

    fn over(&self) -> Vec<Name> {
        let over = self
            .locks
            .iter()
            .filter(|(_, lock)| self.now_ms() > lock.until_ms);
        over.map(|(name, _)| name.clone()).collect()
    }

    /// The clock at this time, if it does not jump before.
    pub fn clock_at(&self, time: u64) -> u64 {
        (time + self.ahead) / 1000
    }

    /// The current clock, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock / 1000
    }

    /// The time at which the next lock ends, in microseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.locks
            .values()
            .map(|lock| ((lock.until_ms + 1) * 1000).saturating_sub(self.ahead))
            .min()
    }

    pub fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    pub fn ttl(&self, lock: &Lock) -> Duration {
        Duration::from_millis(lock.until_ms.saturating_sub(self.now_ms()))
    }

    /// Invalidates the key for every connection that tracks it, except `by`.
    fn changed(&mut self, name: &Name, by: Option<Origin>) {
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
    fn publish(&mut self, name: &Name) -> u32 {
        self.effects.released.push(name.clone());
        let of_name = channel(Topic::Lock, name);
        let to = self
            .subscribers
            .iter()
            .filter(|(channel, _)| **channel == *of_name);
        let to: Vec<(Uuid, Name)> = to.map(|(channel, uuid)| (*uuid, channel.clone())).collect();
        let heard = u32::try_from(to.len()).unwrap();
        self.effects.published.extend(to);
        heard
    }

    /// Deletes the key.
    pub fn delete(&mut self, name: &Name, by: Option<Origin>) -> bool {
        let Some(lock) = self.locks.remove(name) else {
            return false;
        };
        self.effects.bereaved.extend(lock.owner);
        self.changed(name, by);
        true
    }

    /// Another library takes the lock if it is free.
    pub fn take(&mut self, name: &Name, ms: u64) {
        if !self.locks.contains_key(name) {
            let until_ms = self.now_ms() + ms;
            let lock = Lock {
                owner: None,
                count: 1,
                until_ms,
                promised_ms: 0,
                handovers: 0,
                token: None,
                value: None,
            };
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
            self.publish(name);
        }
    }

    /// The connection is closed. Its tracking ends with it.
    pub fn disconnected(&mut self, origin: Origin) {
        self.trackers.retain(|(_, tracker)| *tracker != origin);
    }

    /// Whether a command for several locks leaves this lock to a single command.
    pub fn is_odd(&self, origin: Origin, op: &Op) -> bool {
        let (Op::Acquire {
            name, owner, form, ..
        }
        | Op::Release {
            name, owner, form, ..
        }) = op
        else {
            return true;
        };
        let is_own = self
            .locks
            .get(name)
            .map(|lock| Claim::new(origin, *owner, form).has(lock));
        if matches!(op, Op::Acquire { .. }) {
            is_own == Some(true)
        } else {
            is_own != Some(true)
        }
    }

    /// Runs a command. `track`: its connection uses client tracking.
    pub fn execute(&mut self, origin: Origin, track: bool, op: &Op, not_after_ms: u64) -> Reply {
        let late = self.now_ms() > not_after_ms;
        let reply = match op {
            Op::Acquire { .. } | Op::HandOver { .. } | Op::Renew { .. } | Op::Force { .. }
                if late =>
            {
                Reply::Stale
            }
            Op::Release { remaining: 1.., .. } if late => Reply::Stale,
            Op::Acquire {
                name,
                owner,
                form,
                count,
                lease,
                fencing,
                ..
            } => self.acquire(
                origin,
                name,
                Claim::new(origin, *owner, form),
                *count,
                self.lease(name, form, *lease),
                *fencing,
            ),
            Op::HandOver {
                name,
                owner,
                to,
                lease,
                fencing,
                ..
            } => self.hand_over(origin, name, [*owner, *to], *lease, *fencing),
            Op::Release {
                name,
                owner,
                form,
                remaining,
                ttl,
                lesson,
            } => {
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
                reply
            }
            Op::Renew { holds } => {
                let renew = |hold: &Renewal| {
                    self.renew(
                        origin,
                        &hold.name,
                        Claim::new(origin, hold.owner, &hold.form),
                        hold.ttl,
                    )
                };
                Reply::Renewed(holds.iter().map(renew).collect())
            }
            Op::Force { name, .. } => {
                let deleted = self.delete(name, Some(origin));
                if deleted {
                    self.publish(name);
                }
                Reply::Forced(deleted)
            }
            Op::Inspect { name, .. } => {
                let holder = |lock: &Lock| Holder {
                    owner: format!("{:?}", lock.owner),
                    count: lock.count,
                    remaining: Some(self.ttl(lock)),
                };
                Reply::Holders(self.locks.get(name).map(holder).into_iter().collect())
            }
        };
        // Every script ends with a read of its keys, so that they are tracked.
        if track {
            self.trackers
                .extend(names(op).into_iter().map(|name| (name, origin)));
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

    fn acquire(
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
                    until_ms,
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
        owners: [OwnerId; 2],
        lease: Duration,
        fencing: Fencing,
    ) -> Reply {
        let [from, to] = owners.map(|owner| Some((origin.uuid, owner)));
        let until_ms = self.now_ms() + millis(lease);
        match self.locks.get_mut(name) {
            None => return Reply::Gone(LostReason::Deleted),
            Some(lock) if lock.owner == to && lock.value.is_none() => drop(lock.prolong(until_ms)),
            Some(lock) if lock.owner != from || lock.value.is_some() => {
                return Reply::Gone(LostReason::Stolen);
            }
            Some(lock) => {
                let handovers = lock.handovers + 1;
                let token = (fencing != Fencing::Off).then(|| self.draw_token(name));
                let (count, promised_ms, value) = (1, until_ms, None);
                let lock = Lock {
                    owner: to,
                    count,
                    until_ms,
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
        Reply::Released(self.publish(name))
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

pub(super) fn names(op: &Op) -> Vec<Name> {
    match op {
        Op::Acquire { name, .. }
        | Op::HandOver { name, .. }
        | Op::Release { name, .. }
        | Op::Force { name, .. }
        | Op::Inspect { name, .. } => {
            vec![name.clone()]
        }
        Op::Renew { holds } => holds.iter().map(|hold| hold.name.clone()).collect(),
    }
}

/// The script for this call, alone or shared with others.
pub(super) fn script_of(op: &Op, sort: Option<BatchKey>) -> (u8, bool) {
    let script = match op {
        Op::Acquire { .. } => 0,
        Op::HandOver { .. } => 1,
        Op::Release { .. } => 2,
        Op::Renew { .. } => 3,
        Op::Force { .. } => 4,
        Op::Inspect { .. } => 5,
    };
    (script, sort.is_some())
}
