//! The scripts of the semaphore against a model of them on a real server: random calls, copies of
//! them, other clients' permits, foreign data, a full server and a user who may not do everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{Commands, Connection};

use super::live_tests::{Live, U, V};
use super::names::{channel, channel_for, permit_queue_keys, taken_key};
use super::*;
use crate::error::LostReason;
use crate::real::eval;
use crate::support;
use crate::support::random::{Random, number};
use crate::tuning::{CROWD_LEFT, PERMIT_MARGIN, PLACE_KEPT};
use crate::value::Value;

/// How many steps a run has when nobody says otherwise.
const STEPS: u64 = 4000;
/// The score of a permit that Redisson keeps without a lease.
const FOR_EVER: u64 = 922_337_203_685_477;
/// The scripts look at no more permits than this whose time is over.
const OVER_AT_ONCE: usize = 100;
/// How long a place is kept, and one whose time was evicted.
const PLACE: u64 = PLACE_KEPT.as_millis() as u64;
const NO_TIME: u64 = 5000;
/// The time of a place that is known when the server is looked at.
const UNKNOWN: u64 = u64::MAX;
/// The most messages of one call.
const MESSAGES: i64 = 8;

type Id = Vec<u8>;

/// The content of the key of the number.
#[derive(Debug, Clone, PartialEq, Default)]
enum Free {
    #[default]
    Missing,
    Number(i64),
    /// A string that is no number, and another type.
    Text(String),
    Other,
}

/// A semaphore as the server should have it.
#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    free: Free,
    /// The ids with the ms until which each is kept. `None`: data of another type.
    taken: Option<BTreeMap<Id, u64>>,
    /// Whether the keys expire.
    free_ends: bool,
    taken_ends: bool,
    /// The owners in the queue with the ms until which each place is kept. `None`: its time was
    /// evicted.
    queue: Vec<(Id, Option<u64>)>,
    queue_till: u64,
    /// The payloads of the messages.
    published: Vec<i64>,
}

/// How an acquisition in fair mode asks.
struct Fair {
    owner: Id,
    /// The earlier owners of the waiter.
    earlier: Vec<Id>,
    queues: bool,
}

/// A full server refuses a first write that needs memory, and nothing behind one that needs none.
struct Memory {
    full: bool,
}

impl Memory {
    fn frees(&mut self) {
        self.full = false;
    }
}

/// The answer that the server has to give. `Refused`: an error because its memory is full.
#[derive(Debug, PartialEq)]
enum Answer {
    Reply(Reply),
    Foreign,
    Refused,
}

fn gone(reason: LostReason) -> Answer {
    Answer::Reply(Reply::Gone(reason))
}

impl Model {
    fn new() -> Model {
        Model {
            taken: Some(BTreeMap::new()),
            ..Model::default()
        }
    }

    /// Number and permits are deleted.
    fn forget(&mut self) {
        (self.free, self.free_ends) = (Free::Missing, false);
        (self.taken, self.taken_ends) = (Some(BTreeMap::new()), false);
    }

    fn ids(&mut self) -> &mut BTreeMap<Id, u64> {
        self.taken.as_mut().unwrap()
    }

    fn number(&self) -> Option<i64> {
        match self.free {
            Free::Number(free) => Some(free),
            _ => None,
        }
    }

    fn add(&mut self, permits: usize) {
        if let Free::Number(free) = &mut self.free {
            *free += i64::try_from(permits).unwrap();
        }
    }

    /// All permits, if they can be counted.
    fn total(&self) -> Option<i64> {
        let taken = self.taken.as_ref()?.len();
        Some(self.number()? + i64::try_from(taken).unwrap())
    }

    fn is_foreign(&self) -> bool {
        matches!(self.free, Free::Text(_) | Free::Other) || self.taken.is_none()
    }

    fn why_gone(&self) -> LostReason {
        if self.free == Free::Missing {
            LostReason::Deleted
        } else {
            LostReason::Stolen
        }
    }

    fn publish(&mut self, times: i64) {
        if let Some(free) = self.number().filter(|free| *free > 0) {
            let times = times.min(MESSAGES);
            (0..times).for_each(|_| self.published.push(free));
        }
    }

    /// A key without members does not exist.
    fn settle(&mut self) {
        if self.taken.as_ref().is_some_and(BTreeMap::is_empty) {
            self.taken_ends = false;
        }
    }

    /// The ids with their times, in the order of the server.
    fn in_order(&self) -> Vec<(u64, Id)> {
        let taken = self.taken.iter().flatten();
        let mut all: Vec<_> = taken.map(|(id, till)| (*till, id.clone())).collect();
        all.sort();
        all
    }

    /// Whether the first in the queue has to ask: there is what it wants, or never will be.
    fn head_asks(&self) -> bool {
        let wants = |owner: &Id| i64::from(wanted(owner));
        let head = self.queue.first().map(|(owner, _)| wants(owner));
        let (Some(wants), Some(free)) = (head, self.number()) else {
            return false;
        };
        free > 0 && (wants <= free || Some(wants) > self.total())
    }

    /// The keys of the queue end with its last place.
    fn run_out(&mut self, now: u64) {
        if now > self.queue_till {
            self.queue.clear();
        }
    }

    fn place_of(&self, owner: &Id) -> Option<usize> {
        self.queue.iter().position(|(other, _)| other == owner)
    }

    /// Drops the places at the head that have run out. Returns whether it did, or `None` when the
    /// server refuses that.
    fn heads(&mut self, me: &Id, now: u64, memory: &mut Memory) -> Option<bool> {
        let mut dropped = false;
        while let Some((owner, due)) = self.queue.first_mut() {
            if owner == me {
                break;
            }
            if due.is_none() && memory.full {
                return None;
            }
            if *due.get_or_insert(now + NO_TIME) > now {
                break;
            }
            memory.frees();
            dropped = true;
            self.queue.remove(0);
        }
        Some(dropped)
    }

    /// Queues up. Returns whether it is its turn, whether another's may have come, and whether it wants
    /// more than there is, and its place. `None`: the server refuses that.
    fn queue_up(
        &mut self,
        fair: &Fair,
        wanted: i64,
        now: u64,
        memory: &mut Memory,
    ) -> Option<(bool, bool, bool, Option<usize>)> {
        self.run_out(now);
        let taken = i64::try_from(self.ids().len()).unwrap();
        let all = self.number().map(|free| free + taken);
        let vain = all.is_some_and(|all| all < wanted);
        let enough = self.number().unwrap_or(0) >= wanted;
        let own = self.place_of(&fair.owner);
        let before = || fair.earlier.iter().find_map(|was| self.place_of(was));
        if let Some(at) = own.or_else(before).filter(|_| !fair.earlier.is_empty()) {
            if memory.full {
                return None;
            }
            memory.frees();
            // The time of a new owner is written below.
            let due = own.and_then(|at| self.queue[at].1);
            self.queue[at] = (fair.owner.clone(), due);
            // The times of the others are gone.
            for (owner, due) in &mut self.queue {
                if fair.earlier.contains(owner) {
                    *due = None;
                }
            }
        }
        let earlier_has = |was: &Id| self.ids().contains_key(&[&was[..14], &[0, 0]].concat());
        let turn = fair.earlier.iter().any(earlier_has);
        let dropped = self.heads(&fair.owner, now, memory)?;
        let at = self.place_of(&fair.owner);
        let took = enough && (at == Some(0) || self.queue.is_empty());
        match at {
            Some(at) if took || vain => {
                memory.frees();
                self.queue.remove(at);
            }
            _ if took || vain || !fair.queues => {}
            _ if memory.full => return None,
            at => {
                self.queue_till = now + PLACE;
                let place = (fair.owner.clone(), Some(now + PLACE));
                match at {
                    Some(at) => self.queue[at] = place,
                    None if turn => self.queue.insert(0, place),
                    None => self.queue.push(place),
                }
            }
        }
        let moved = dropped || (took || vain) && at == Some(0);
        let place = self.place_of(&fair.owner).filter(|_| fair.queues);
        Some((took, moved, vain, place))
    }

    fn acquire(
        &mut self,
        ids: &[Id],
        count: u32,
        lease: Duration,
        limit: u32,
        fair: Option<&Fair>,
        (now, full): (u64, bool),
    ) -> Answer {
        if self.is_foreign() {
            return Answer::Foreign;
        }
        let till = now + ms(lease) + ms(PERMIT_MARGIN);
        let won = Answer::Reply(Reply::Acquired {
            ttl: Duration::from_millis(ms(lease)),
            token: None,
        });
        if self.ids().contains_key(&ids[0]) {
            for id in ids {
                let Some(kept) = self.ids().get_mut(id) else {
                    return gone(LostReason::Stolen);
                };
                if *kept < till && full {
                    return Answer::Refused;
                }
                *kept = till.max(*kept);
            }
            return won;
        }
        if count != 1 {
            return gone(self.why_gone());
        }
        let mut over = self.in_order();
        over.retain(|(kept, _)| *kept <= now);
        over.truncate(OVER_AT_ONCE);
        let mut memory = Memory {
            full: full && over.is_empty(),
        };
        let before = self.clone();
        for (_, id) in &over {
            self.ids().remove(id);
        }
        self.add(over.len());
        self.settle();
        let sets = self.free == Free::Missing && limit > 0;
        if sets {
            let taken = i64::try_from(self.ids().len()).unwrap();
            self.free = Free::Number(i64::from(limit) - taken);
            (self.free_ends, self.taken_ends) = (false, false);
            if memory.full {
                *self = before;
                return Answer::Refused;
            }
        }
        let wanted = i64::try_from(ids.len()).unwrap();
        let turn = match fair {
            Some(fair) => self.queue_up(fair, wanted, now, &mut memory),
            None => {
                let enough = self.number().is_some_and(|free| free >= wanted);
                Some((enough, false, false, None))
            }
        };
        let Some((took, moved, vain, place)) = turn else {
            *self = before;
            return Answer::Refused;
        };
        if took {
            if memory.full {
                *self = before;
                return Answer::Refused;
            }
            let had = self.ids().len();
            for id in ids {
                self.ids().insert(id.clone(), till);
            }
            let new = i64::try_from(self.ids().len() - had).unwrap();
            self.free = Free::Number(self.number().unwrap() - new);
            self.taken_ends |= self.free_ends;
        }
        let another = (moved || sets) && fair.is_some() && self.head_asks();
        if !over.is_empty() || another {
            self.publish(1);
        }
        if took {
            return won;
        }
        let first = self.in_order().first().map(|(kept, _)| *kept);
        let ttl = first.filter(|kept| *kept != FOR_EVER);
        let ttl = ttl.map(|kept| Duration::from_millis(kept.saturating_sub(now)));
        let ahead = place.map(|at| u32::try_from(at).unwrap());
        Answer::Reply(match (vain, ahead) {
            (true, _) => Reply::Vain { ttl },
            (false, Some(ahead)) => Reply::Parked { ttl, ahead },
            (false, None) => Reply::Busy { ttl },
        })
    }

    fn release(&mut self, ids: &[Id], fair: Option<&Id>, now: u64) -> Answer {
        let Some(taken) = &mut self.taken else {
            return gone(LostReason::Stolen);
        };
        let back = ids.iter().filter(|id| taken.remove(*id).is_some()).count();
        self.add(back);
        self.settle();
        self.run_out(now);
        let place = fair
            .filter(|_| back == 0)
            .and_then(|owner| self.place_of(owner));
        if let (Some(at), Some(owner)) = (place, fair) {
            self.queue.remove(at);
            if at == 0 {
                self.heads(owner, now, &mut Memory { full: false });
                // The answer does not tell the clock of the server.
                for (_, due) in &mut self.queue {
                    *due = due.map(|due| if due == now + NO_TIME { UNKNOWN } else { due });
                }
                if self.head_asks() {
                    self.publish(1);
                }
            }
        }
        let before = self.published.len();
        self.publish(i64::try_from(back).unwrap());
        if back < ids.len() {
            return gone(self.why_gone());
        }
        let heard = u32::from(self.published.len() > before);
        Answer::Reply(Reply::Released(heard))
    }

    fn lower(&mut self, ids: &[Id], ttl: Duration, now: u64) -> Answer {
        let why = self.why_gone();
        let Some(taken) = &mut self.taken else {
            return gone(LostReason::Stolen);
        };
        if !ids.iter().all(|id| taken.contains_key(id)) {
            return gone(why);
        }
        let till = now + ms(ttl) + ms(PERMIT_MARGIN);
        for id in ids {
            taken.insert(id.clone(), till);
        }
        Answer::Reply(Reply::Kept)
    }

    fn renew(&mut self, ids: &[Id], ttl: Duration, now: u64) -> RenewReply {
        let why = self.why_gone();
        let Some(taken) = &mut self.taken else {
            return RenewReply::Gone(LostReason::Stolen);
        };
        let till = now + ms(ttl) + ms(PERMIT_MARGIN);
        let mut all = true;
        for id in ids {
            match taken.get_mut(id) {
                Some(kept) => *kept = till.max(*kept),
                None => all = false,
            }
        }
        if all {
            RenewReply::Kept
        } else {
            RenewReply::Gone(why)
        }
    }

    fn force(&mut self) -> Answer {
        if self.is_foreign() {
            return Answer::Foreign;
        }
        let back = self.ids().len();
        self.ids().clear();
        self.add(back);
        self.settle();
        self.publish(i64::try_from(back).unwrap());
        Answer::Reply(Reply::Forced(back > 0))
    }

    fn count(&mut self, wanted: Option<u32>, (now, full): (u64, bool)) -> Answer {
        if self.is_foreign() {
            return Answer::Foreign;
        }
        if wanted.is_some() && full {
            return Answer::Refused;
        }
        let taken = i64::try_from(self.ids().len()).unwrap();
        let over = self.ids().values().filter(|kept| **kept <= now).count();
        if let Some(wanted) = wanted {
            let before = self.number().unwrap_or(0);
            if self.free == Free::Missing {
                (self.free_ends, self.taken_ends) = (false, false);
            }
            let free = i64::from(wanted) - taken;
            self.free = Free::Number(free);
            if free != before {
                self.publish((free - before).max(1));
            }
        }
        let (mut available, mut limit) = (0, 0);
        if let Some(free) = self.number() {
            (available, limit) = (free + i64::try_from(over).unwrap(), free + taken);
        }
        Answer::Reply(Reply::Counted(Permits { available, limit }))
    }

    fn waiters(&mut self, now: u64) -> Answer {
        self.run_out(now);
        let waiter = |(owner, due): &(Id, Option<u64>)| Holder {
            owner: [&owner[..14], &[0, 0]]
                .concat()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            count: wanted(owner).into(),
            remaining: Some(Duration::from_millis(
                due.unwrap_or(now).saturating_sub(now),
            )),
            process: None,
        };
        Answer::Reply(Reply::Holders(self.queue.iter().map(waiter).collect()))
    }

    fn inspect(&self, now: u64) -> Answer {
        if self.is_foreign() {
            return Answer::Foreign;
        }
        let mut holders: Vec<(Id, Holder)> = Vec::new();
        for (kept, id) in self.in_order().into_iter().filter(|(kept, _)| *kept > now) {
            let owner = id[..14].to_vec();
            let at = holders.iter().position(|(known, _)| *known == owner);
            let at = at.unwrap_or_else(|| {
                let holder = Holder {
                    owner: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                    count: 0,
                    remaining: None,
                    process: None,
                };
                holders.push((owner, holder));
                holders.len() - 1
            });
            let holder = &mut holders[at].1;
            holder.count += 1;
            let left = Some(kept).filter(|kept| *kept != FOR_EVER);
            holder.remaining = left.map(|kept| Duration::from_millis(kept - now));
        }
        let holders = holders.into_iter().map(|(_, holder)| holder).collect();
        Answer::Reply(Reply::Holders(holders))
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap()
}

fn semaphore(permits: u16) -> Form {
    Form {
        permits,
        ..Form::of(Kind::Semaphore)
    }
}

fn fair_semaphore(permits: u16) -> Form {
    Form {
        permits,
        ..Form::of(Kind::FairSemaphore)
    }
}

/// An owner as it stands in the queue.
fn place(uuid: &str, owner: OwnerId, permits: u16) -> Id {
    let mut id = ids_of(uuid, owner, 1).remove(0);
    id.truncate(14);
    id.extend([permits >> 7, permits & 0x7f].map(|digit| digit as u8));
    id
}

/// How many permits an owner in the queue wants.
fn wanted(owner: &Id) -> u16 {
    u16::from(owner[14]) * 128 + u16::from(owner[15])
}

/// The ids of an owner.
fn ids_of(uuid: &str, owner: OwnerId, permits: u16) -> Vec<Id> {
    let hex = semaphore(permits).owner(uuid, owner);
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let prefix: Id = (0..14).map(byte).collect();
    (0..permits)
        .map(|at| [&prefix[..], &at.to_be_bytes()[..]].concat())
        .collect()
}

/// The sorts of answers that a run has to see.
const SORTS: [&str; 8] = [
    "acquired", "busy", "gone", "released", "kept", "renewed", "foreign", "other",
];

fn name_of(answer: &Answer) -> &'static str {
    match answer {
        Answer::Reply(Reply::Acquired { .. }) => "acquired",
        Answer::Reply(Reply::Busy { .. }) => "busy",
        Answer::Reply(Reply::Vain { .. }) => "vain",
        Answer::Reply(Reply::Gone(_)) => "gone",
        Answer::Reply(Reply::Released(_)) => "released",
        Answer::Reply(Reply::Kept) => "kept",
        Answer::Reply(Reply::Renewed(each)) if each.contains(&RenewReply::Kept) => "renewed",
        Answer::Foreign => "foreign",
        _ => "other",
    }
}

/// The model, the server, and what happens to both.
struct Both {
    random: Random,
    server: support::Server,
    scripts: Connection,
    look: Connection,
    names: [Name; 2],
    models: [Model; 2],
    full: bool,
    /// How often each sort of answer came, and whether the server was full then.
    seen: BTreeMap<(&'static str, bool), u64>,
}

impl Both {
    fn new(seed: u64) -> Both {
        let server = support::Server::start();
        Both {
            random: Random(seed),
            scripts: server.connect(),
            look: server.connect(),
            server,
            names: ["a", "{b}c"].map(Name::from),
            models: [Model::new(), Model::new()],
            full: false,
            seen: BTreeMap::new(),
        }
    }

    fn lease(&mut self) -> Duration {
        Duration::from_micros(self.random.between(1, 60_000_000))
    }

    /// How many permits an owner has. It never changes.
    fn permits_of(owner: OwnerId) -> u16 {
        [1, 2, 3, 130][usize::try_from(owner % 4).unwrap()]
    }

    /// An owner, mostly one that has permits.
    fn owner(&mut self, name: &Name) -> (&'static str, OwnerId) {
        let any = (self.random.pick(&[U, V]), self.random.between(1, 8));
        let at = self.names.iter().position(|known| known == name).unwrap();
        let taken = self.models[at].taken.clone().unwrap_or_default();
        let all = [U, V]
            .into_iter()
            .flat_map(|uuid| (1..=8).map(move |owner| (uuid, owner)));
        let has = |(uuid, owner): &(&str, OwnerId)| taken.contains_key(&ids_of(uuid, *owner, 1)[0]);
        let holders: Vec<_> = all.filter(has).collect();
        if holders.is_empty() || self.random.chance(300) {
            any
        } else {
            self.random.pick(&holders)
        }
    }

    fn op(&mut self, name: &Name) -> (&'static str, Op) {
        let op = self.random.below(30);
        let (uuid, owner) = if op < 12 && self.random.chance(700) {
            (self.random.pick(&[U, V]), self.random.between(1, 8))
        } else {
            self.owner(name)
        };
        // Callers in fair mode and others share the permits.
        let form = match self.random.chance(500) {
            true => semaphore(Both::permits_of(owner)),
            false => fair_semaphore(Both::permits_of(owner)),
        };
        let kind = form.kind;
        let (name, lease) = (name.clone(), self.lease());
        let op = match op {
            0..12 => {
                let count = u32::try_from(self.random.pick(&[1, 1, 1, 1, 2, 3])).unwrap();
                let earlier = (0..self.random.pick(&[0, 0, 0, 0, 1, 2]))
                    .map(|_| self.random.between(1, 8))
                    .collect();
                let limit = u32::try_from(self.random.pick(&[0, 5, 5, 400])).unwrap();
                let queues = self.random.chance(700);
                let payload = match kind {
                    Kind::Semaphore => Payload::Permits(limit, None),
                    _ => Payload::QueuedPermits(limit, Seat { queues, earlier }),
                };
                Op::Acquire(Acquire {
                    count,
                    payload,
                    ..Acquire::of(name, owner, form, lease)
                })
            }
            12..20 => Op::Release(Release {
                remaining: u32::try_from(self.random.pick(&[0, 0, 0, 1, 2])).unwrap(),
                ttl: lease,
                ..Release::of(name, owner, form)
            }),
            20..26 => {
                let alike = self.random.chance(500);
                let mut holds = Vec::new();
                for name in self.names.clone() {
                    let other = self.owner(&name);
                    let owner = if other.0 == uuid { other.1 } else { owner };
                    let ttl = if alike { lease } else { self.lease() };
                    holds.push(Renewal {
                        name,
                        owner,
                        form: semaphore(Both::permits_of(owner)),
                        ttl,
                    });
                }
                holds.truncate(usize::try_from(self.random.between(1, 2)).unwrap());
                Op::Renew { holds }
            }
            26 if self.random.chance(300) => Op::Force { name, kind },
            26 | 27 => Op::Inspect {
                name,
                kind,
                what: match kind {
                    Kind::FairSemaphore if self.random.chance(500) => Inspection::Waiters,
                    _ => Inspection::Owners,
                },
            },
            _ => Op::Count {
                name,
                limit: [None, Some(0), Some(3), Some(150), Some((1 << 31) - 1)]
                    [self.random.index(5)],
            },
        };
        (uuid, op)
    }

    /// The model's answer to it.
    fn modelled(&mut self, uuid: &str, op: &Op, now: u64, late: bool) -> Answer {
        let (names, full) = (self.names.clone(), self.full);
        let at = |name: &Name| names.iter().position(|known| known == name).unwrap();
        let frees = matches!(op, Op::Release(Release { remaining: 0, .. }));
        if late && !frees && !matches!(op, Op::Inspect { .. }) {
            return Answer::Reply(Reply::Stale);
        }
        match op {
            Op::Acquire(Acquire {
                name,
                owner,
                form,
                count,
                lease,
                payload,
                ..
            }) => {
                let (ids, limit) = (ids_of(uuid, *owner, form.permits), payload.limit());
                let seat = payload.seat().cloned().unwrap_or_default();
                let earlier = seat.earlier.iter();
                let fair = Fair {
                    owner: place(uuid, *owner, form.permits),
                    earlier: earlier.map(|was| place(uuid, *was, form.permits)).collect(),
                    queues: seat.queues,
                };
                let fair = (form.kind == Kind::FairSemaphore).then_some(&fair);
                self.models[at(name)].acquire(&ids, *count, *lease, limit, fair, (now, full))
            }
            Op::Release(Release {
                name,
                owner,
                form,
                remaining,
                ttl,
                ..
            }) => {
                let (ids, model) = (
                    ids_of(uuid, *owner, form.permits),
                    &mut self.models[at(name)],
                );
                let place = place(uuid, *owner, form.permits);
                let fair = (form.kind == Kind::FairSemaphore).then_some(&place);
                match remaining {
                    0 => model.release(&ids, fair, now),
                    _ => model.lower(&ids, *ttl, now),
                }
            }
            Op::Renew { holds } => {
                let mut replies = Vec::new();
                for hold in holds {
                    let ids = ids_of(uuid, hold.owner, hold.form.permits);
                    replies.push(self.models[at(&hold.name)].renew(&ids, hold.ttl, now));
                }
                Answer::Reply(Reply::Renewed(replies))
            }
            Op::Force { name, .. } => self.models[at(name)].force(),
            Op::Count { name, limit } => self.models[at(name)].count(*limit, (now, full)),
            Op::Inspect {
                name,
                what: Inspection::Waiters,
                ..
            } => self.models[at(name)].waiters(now),
            Op::Inspect { name, .. } => self.models[at(name)].inspect(now),
            Op::HandOver(_) => panic!("permits are not handed over"),
            Op::Change { .. } | Op::Read { .. } => panic!("no counters here"),
        }
    }

    /// Sends a call, once or twice, on time or late.
    fn call(&mut self, name: &Name) {
        let (uuid, op) = self.op(name);
        let late = self.random.chance(50);
        let not_after = if late { self.clock() - 1 } else { u64::MAX };
        for _ in 0..self.random.pick(&[1, 1, 1, 2]) {
            let call = Call::new(&op, uuid, not_after, Publish::Classic);
            let before = self.models.clone();
            let real = eval(&call, &mut self.scripts);
            let (now, real) = match real {
                Ok(value) if op.follow_up(Duration::ZERO).is_some() => {
                    let both = vec![value, Value::BulkString(Vec::new())];
                    decode(&op, Value::Array(both)).unwrap()
                }
                Ok(value) => decode(&op, value).unwrap(),
                Err(error) => {
                    assert!(error.to_string().contains("maxmemory"), "{op:?}: {error}");
                    let now = self.clock();
                    let expected = self.modelled(uuid, &op, now, late);
                    // A call that is refused at its first writing has changed nothing.
                    assert_eq!(expected, Answer::Refused, "{op:?} at {now}: {before:?}");
                    assert_eq!(self.models, before);
                    continue;
                }
            };
            // Some answers have no clock.
            let clock = now.unwrap_or_else(|| self.clock());
            let expected = self.modelled(uuid, &op, clock, late);
            let real = match real {
                Reply::Foreign(_) => Answer::Foreign,
                reply => Answer::Reply(reply),
            };
            *self.seen.entry((name_of(&real), self.full)).or_default() += 1;
            assert_eq!(real, expected, "{op:?} at {now:?}: {before:?}");
            let sets = matches!(op, Op::Count { limit: Some(_), .. });
            for (before, model) in before.iter().zip(&self.models) {
                if let Some(total) = before.total().filter(|_| !sets) {
                    assert_eq!(model.total(), Some(total), "{op:?}: {before:?}");
                }
            }
        }
    }

    /// Somebody else changes a key.
    fn stranger(&mut self, at: usize) {
        let (name, taken) = (self.names[at].to_string(), taken_key(&self.names[at]));
        let now = self.clock();
        let random = &mut self.random;
        let [queue, times] = permit_queue_keys(&name);
        let (look, model) = (&mut self.look, &mut self.models[at]);
        match random.below(11) {
            // Waiters have died, or their times were evicted.
            9 => {
                for (owner, due) in &mut model.queue {
                    if random.chance(500) {
                        let over = now - random.between(0, 5);
                        let _: () = look.zadd(&times, &*owner, over).unwrap();
                        *due = Some(over);
                    } else if random.chance(200) {
                        let _: () = look.zrem(&times, &*owner).unwrap();
                        *due = None;
                    }
                }
            }
            10 if random.chance(200) => {
                let _: () = look.del(&[&queue, &times]).unwrap();
                model.queue.clear();
            }
            // The count is deleted, or evicted.
            0 => {
                let _: () = look.del(&name).unwrap();
                (model.free, model.free_ends) = (Free::Missing, false);
            }
            1 => {
                let _: () = look.del(&[&name, &taken]).unwrap();
                model.forget();
            }
            // The time of some permits is over, or those of a dead program lie there.
            2 | 3 if model.taken.is_some() => {
                for id in model.in_order().into_iter().map(|(_, id)| id) {
                    if random.chance(500) {
                        let over = now - random.between(0, 5);
                        let _: () = look.zadd(&taken, &id, over).unwrap();
                        model.ids().insert(id, over);
                    }
                }
            }
            // Redisson takes a permit: an id of our length or of its older one, with a lease or
            // without.
            4 | 5 if model.number().is_some_and(|free| free > 0) && model.taken.is_some() => {
                let length = random.pick(&[16, 32]);
                let id: Id = (0..length).map(|_| random.below(256) as u8).collect();
                let till = random.pick(&[now + 5000, FOR_EVER]);
                let _: () = look.zadd(&taken, &id, till).unwrap();
                let _: () = look.decr(&name, 1).unwrap();
                model.ids().insert(id, till);
                model.free = Free::Number(model.number().unwrap() - 1);
            }
            // Its clock is fast: it takes back a permit of ours.
            6 if model.number().is_some() => {
                let all = model.in_order();
                if !all.is_empty() {
                    let (_, id) = all[random.index(all.len())].clone();
                    let _: () = look.zrem(&taken, &id).unwrap();
                    let _: () = look.incr(&name, 1).unwrap();
                    model.ids().remove(&id);
                    model.add(1);
                    model.settle();
                }
            }
            7 if model.free != Free::Missing => {
                let _: () = look.pexpire(&name, 600_000).unwrap();
                model.free_ends = true;
            }
            8 => self.write_foreign_data(at),
            _ => {}
        }
    }

    /// Other data comes to one of the keys.
    fn write_foreign_data(&mut self, at: usize) {
        let (name, taken) = (self.names[at].to_string(), taken_key(&self.names[at]));
        let (look, model) = (&mut self.look, &mut self.models[at]);
        let _: () = look.del(&[&name, &taken]).unwrap();
        model.forget();
        let texts = [
            "",
            "theirs",
            "007",
            "-0",
            "1.5",
            "99999999999999999999",
            " 1",
        ];
        match self.random.below(3) {
            0 => {
                let text = self.random.pick(&texts);
                let _: () = look.set(&name, text).unwrap();
                model.free = Free::Text(text.to_owned());
            }
            1 => {
                let _: () = look.hset(&name, "mode", "write").unwrap();
                model.free = Free::Other;
            }
            _ => {
                let _: () = look.set(&taken, "5").unwrap();
                let _: () = look.set(&name, 3).unwrap();
                (model.free, model.taken) = (Free::Number(3), None);
            }
        }
        // Most of it goes again.
        if self.random.chance(700) {
            let _: () = look.del(&[&name, &taken]).unwrap();
            model.forget();
        }
    }

    fn clock(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.look).unwrap();
        seconds * 1000 + micros / 1000
    }

    fn step(&mut self) {
        let at = self.random.index(2);
        if self.random.chance(20) {
            self.fill(!self.full);
        }
        if self.random.chance(150) && !self.full {
            self.stranger(at);
        } else {
            self.call(&self.names[at].clone());
        }
        self.compare();
    }

    /// The memory of the server is full, or not any more.
    fn fill(&mut self, full: bool) {
        self.full = full;
        let bytes = if full { "1" } else { "0" };
        let _: () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut self.look)
            .unwrap();
    }

    /// The keys are those of the model.
    fn compare(&mut self) {
        let now = self.clock();
        for (name, model) in self.names.iter().zip(&mut self.models) {
            let taken = taken_key(name);
            let look = &mut self.look;
            let [queue, times] = permit_queue_keys(name);
            let owners: Vec<Id> = look.lrange(&queue, 0, -1).unwrap();
            if owners.is_empty() {
                model.run_out(now);
            }
            let expected = model.queue.iter().map(|(owner, _)| owner);
            assert!(owners.iter().eq(expected), "{name}: {owners:?}: {model:?}");
            for (owner, due) in &mut model.queue {
                let score: Option<u64> = look.zscore(&times, &*owner).unwrap();
                if *due == Some(UNKNOWN) {
                    assert!(score <= Some(now + NO_TIME), "{name}: {score:?}");
                    *due = score;
                }
                assert_eq!(score, *due, "{name}: {owner:?}");
            }
            if !owners.is_empty() {
                let left: i64 = look.pttl(&queue).unwrap();
                assert!((-2..=PLACE as i64).contains(&left) && left != -1, "{left}");
            }
            let left: i64 = look.pttl(&times).unwrap();
            assert_ne!(left, -1, "{name}: the times end with the places");
            let kinds = [&**name, &taken].map(|key| {
                let kind: String = redis::cmd("TYPE").arg(key).query(look).unwrap();
                kind
            });
            let free = match &*kinds[0] {
                "none" => Free::Missing,
                "string" => {
                    let text: String = look.get(&**name).unwrap();
                    let number: Option<i64> = text.parse().ok();
                    match number.filter(|number| number.to_string() == text) {
                        Some(number) => Free::Number(number),
                        None => Free::Text(text),
                    }
                }
                _ => Free::Other,
            };
            assert_eq!(free, model.free, "{name}");
            if kinds[1] == "none" || kinds[1] == "zset" {
                let all: Vec<(Id, u64)> = look.zrange_withscores(&taken, 0, -1).unwrap();
                let all = all.into_iter().collect();
                assert_eq!(Some(all), model.taken, "{name}");
            } else {
                assert_eq!(None, model.taken, "{name}");
            }
            let ends = [&**name, &taken].map(|key| look.pttl::<_, i64>(key).unwrap() > 0);
            assert_eq!(ends, [model.free_ends, model.taken_ends], "{name}");
        }
    }
}

#[test]
fn the_scripts_do_what_their_model_does() {
    let seed = number("REDLATCH_SEED").unwrap_or(1);
    let mut both = Both::new(seed);
    let mut listener = both.server.connect();
    let mut channels = listener.as_pubsub();
    for name in &both.names {
        channels.subscribe(channel(Topic::Semaphore, name)).unwrap();
    }
    channels.subscribe("end").unwrap();
    let steps = number("REDLATCH_COMMANDS").unwrap_or(STEPS);
    for step in 0..steps {
        both.step();
        if step % 50 == 0 || step + 1 == steps {
            both.fill(false);
            let _: () = both.look.publish("end", "").unwrap();
            let mut heard = [Vec::new(), Vec::new()];
            loop {
                let message = channels.get_message().unwrap();
                let of =
                    |name: &Name| *message.get_channel_name() == channel(Topic::Semaphore, name);
                let Some(at) = both.names.iter().position(of) else {
                    break;
                };
                heard[at].push(message.get_payload::<i64>().unwrap());
            }
            for (heard, model) in heard.iter().zip(&mut both.models) {
                assert_eq!(*heard, std::mem::take(&mut model.published));
            }
        }
    }
    println!("{:?}", both.seen);
    for (sort, full) in SORTS
        .iter()
        .flat_map(|sort| [(*sort, false), (*sort, true)])
    {
        let count = both.seen.get(&(sort, full)).copied().unwrap_or(0);
        assert!(
            count > steps / 1000,
            "{sort} came {count} times, full: {full}"
        );
    }
}

/// All that the scripts use.
const NEEDED: &str = "+eval +evalsha +time +type +get +set +incrby +zscore +zadd +zrem +zcard +zcount +zrange +zrangebyscore \
                      +pttl +pexpire +persist +exists +del +publish";

/// The calls that change something, for the owner 1, who wants two permits.
fn changes() -> Vec<Op> {
    let (name, form): (Name, Form) = ("orders".into(), semaphore(2));
    let release = |remaining| {
        Op::Release(Release {
            remaining,
            ttl: Duration::from_secs(9),
            ..Release::of(name.clone(), 1, form.clone())
        })
    };
    vec![
        acquire_two(1, 3),
        release(1),
        Op::Renew {
            holds: vec![Renewal {
                name: name.clone(),
                owner: 1,
                form: form.clone(),
                ttl: Duration::from_secs(20),
            }],
        },
        Op::Count {
            name: name.clone(),
            limit: Some(5),
        },
        release(0),
        Op::Force {
            name: name.clone(),
            kind: Kind::Semaphore,
        },
    ]
}

/// The only permit in a crowd, for an owner with the place of the same number.
fn acquire_in_crowd(owner: OwnerId, first: bool) -> Op {
    let mut op = acquire_two(owner, 1);
    if let Op::Acquire(Acquire { form, payload, .. }) = &mut op {
        form.permits = 1;
        payload.stand_at(Some(Place { owner, first }));
    }
    op
}

#[test]
fn who_takes_a_permit_in_fair_mode_tells_the_next_head() {
    let mut live = Live::new();
    let acquire = |owner| {
        let mut op = acquire_two(owner, 1);
        if let Op::Acquire(Acquire { form, payload, .. }) = &mut op {
            *form = fair_semaphore(1);
            let queues = true;
            let seat = Seat {
                queues,
                earlier: vec![],
            };
            *payload = Payload::QueuedPermits(1, seat);
        }
        op
    };
    let release = |owner| Op::Release(Release::of("orders".into(), owner, fair_semaphore(1)));
    let is_taken = |reply: Reply| matches!(reply, Reply::Acquired { .. });
    assert!(is_taken(live.run(&acquire(1))));
    for (owner, at) in [(2, 0), (3, 1), (4, 2), (3, 1)] {
        let reply = live.run(&acquire(owner));
        assert!(
            matches!(reply, Reply::Parked { ahead, .. } if ahead == at),
            "{reply:?}"
        );
    }
    let mut messages = live.connect();
    let mut messages = messages.as_pubsub();
    messages
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let of = |owner| channel_for(U, Topic::Seat(owner), "orders");
    let all = channel(Topic::Semaphore, "orders");
    messages
        .subscribe(&[of(3), of(4), all.clone()][..])
        .unwrap();
    let mut heard = || {
        messages
            .get_message()
            .unwrap()
            .get_channel_name()
            .to_owned()
    };
    // The head hears the release, and tells the next one when it takes the permit.
    assert_eq!(live.run(&release(1)), Reply::Released(1));
    assert_eq!(heard(), all);
    assert!(is_taken(live.run(&acquire(2))));
    assert_eq!(heard(), of(3));
    // So does one that gives its place up.
    assert!(matches!(live.run(&release(3)), Reply::Gone(_)));
    assert_eq!(heard(), of(4));
}

#[test]
fn a_permit_is_left_to_the_first_place_and_its_taker_tells_the_next_one() {
    let mut live = Live::new();
    let parked = |reply: Reply| match reply {
        Reply::Parked { ahead, .. } => ahead,
        other => panic!("{other:?}"),
    };
    let is_taken = |reply: Reply| matches!(reply, Reply::Acquired { .. });
    assert!(is_taken(live.run(&acquire_in_crowd(1, false))));
    for (owner, ahead) in [(2, 0), (3, 1), (4, 2), (3, 1)] {
        assert_eq!(parked(live.run(&acquire_in_crowd(owner, false))), ahead);
    }
    // The third one listens, the fourth one is gone.
    let mut messages = live.connect();
    let mut messages = messages.as_pubsub();
    let limit = Some(Duration::from_secs(20));
    messages.set_read_timeout(limit).unwrap();
    let of = |owner| channel_for(U, Topic::Place(owner), "orders");
    for owner in [3, 5] {
        messages.subscribe(of(owner)).unwrap();
    }
    let release = |owner| Op::Release(Release::of("orders".into(), owner, semaphore(1)));
    assert_eq!(live.run(&release(1)), Reply::Released(0));
    let left = live.run(&acquire_in_crowd(5, false));
    let ttl = Some(CROWD_LEFT);
    assert_eq!(left, Reply::Parked { ttl, ahead: 3 });
    assert!(is_taken(live.run(&acquire_in_crowd(2, false))));
    assert_eq!(messages.get_message().unwrap().get_channel_name(), of(3));
    // A copy of the call says the same, and tells nobody.
    assert!(is_taken(live.run(&acquire_in_crowd(2, false))));
    // One that was woken by its own timer does not leave it to the first, which loses its place if it was told long ago.
    assert_eq!(live.run(&release(2)), Reply::Released(0));
    let places =
        |live: &mut Live| -> Vec<String> { live.cmd("ZRANGE {orders}:redlatch:crowd 0 -1", &[]) };
    assert!(is_taken(live.run(&acquire_in_crowd(6, true))));
    assert_eq!(places(&mut live), [3, 4, 5].map(|own| format!("{U}:{own}")));
    assert_eq!(live.run(&release(6)), Reply::Released(0));
    let late = format!("ZADD {{orders}}:redlatch:crowd XX -3000000000000000 {U}:3");
    live.cmd::<()>(&late, &[]);
    assert!(is_taken(live.run(&acquire_in_crowd(6, true))));
    assert_eq!(messages.get_message().unwrap().get_channel_name(), of(5));
    assert_eq!(places(&mut live), [format!("{U}:5")]);
}

#[test]
fn as_many_places_are_told_as_permits_are_free_and_one_more() {
    let mut live = Live::new();
    let acquire = |owner| {
        let mut op = acquire_in_crowd(owner, false);
        if let Op::Acquire(Acquire { payload, .. }) = &mut op {
            *payload = Payload::Permits(3, None);
            payload.stand_at(Some(Place {
                owner,
                first: false,
            }));
        }
        op
    };
    let release = |owner| Op::Release(Release::of("orders".into(), owner, semaphore(1)));
    let is_taken = |reply: &Reply| matches!(reply, Reply::Acquired { .. });
    for owner in 1..=3 {
        assert!(is_taken(&live.run(&acquire(owner))));
    }
    let mut messages = live.connect();
    let mut messages = messages.as_pubsub();
    let limit = Some(Duration::from_secs(20));
    messages.set_read_timeout(limit).unwrap();
    let of = |owner| channel_for(U, Topic::Place(owner), "orders");
    for owner in 5..=8 {
        messages.subscribe(of(owner)).unwrap();
    }
    for owner in 4..=8 {
        let ahead = u32::try_from(owner - 4).unwrap();
        let reply = live.run(&acquire(owner));
        assert!(
            matches!(reply, Reply::Parked { ahead: at, .. } if at == ahead),
            "{reply:?}"
        );
    }
    for owner in 1..=3 {
        assert_eq!(live.run(&release(owner)), Reply::Released(0));
    }
    // Two permits are left.
    assert!(is_taken(&live.run(&acquire(4))));
    for owner in 5..=7 {
        let told = messages.get_message().unwrap();
        assert_eq!(told.get_channel_name(), of(owner));
    }
    // The first two get them, in any order.
    assert!(!is_taken(&live.run(&acquire(7))));
    assert!(is_taken(&live.run(&acquire(6))));
    assert!(is_taken(&live.run(&acquire(5))));
    // A waiter that has been told and leaves tells the next one.
    let place = 7;
    let leaves = Op::Release(Release {
        place: Some(place),
        ..Release::of("orders".into(), 99, Form::default())
    });
    assert!(matches!(live.run(&leaves), Reply::Gone(_)));
    assert_eq!(messages.get_message().unwrap().get_channel_name(), of(8));
}

#[test]
fn a_fault_of_the_crowd_takes_no_permit_away() {
    let mut live = Live::new();
    live.cmd::<()>("SET {orders}:redlatch:crowd other", &[]);
    assert!(matches!(
        live.run(&acquire_in_crowd(1, false)),
        Reply::Acquired { .. }
    ));
    assert!(matches!(
        live.run(&acquire_in_crowd(2, false)),
        Reply::Busy { .. }
    ));
}

fn acquire_two(owner: OwnerId, limit: u32) -> Op {
    Op::Acquire(Acquire {
        payload: Payload::Permits(limit, None),
        ..Acquire::of("orders".into(), owner, semaphore(2), Duration::from_secs(5))
    })
}

impl Live {
    fn permits(&mut self) -> (i64, i64) {
        (
            self.look.get("orders").unwrap(),
            self.look.zcard("{orders}:timeout").unwrap(),
        )
    }
}

/// A permit is free or taken, whatever a user may not do.
#[test]
fn a_denied_command_loses_no_permit() {
    let keys = "~orders ~{orders}:timeout resetchannels &redisson_sc:*";
    for missing in NEEDED.split_whitespace().skip(2) {
        let missing = &missing[1..];
        for (at, op) in changes().iter().enumerate() {
            for over in [0, 2] {
                let mut live = Live::as_user(&format!("{keys} {NEEDED} -{missing}"));
                let _: () = live.look.set("orders", 4).unwrap();
                for owner in [1, 2] {
                    // The owner of the call has its permits, unless it asks for them.
                    let ids = ids_of(U, owner, 2);
                    let till = if owner == 2 && over > 0 { 5 } else { FOR_EVER };
                    for id in ids.iter().filter(|_| at > 0 || owner == 2) {
                        let _: () = live.look.zadd("{orders}:timeout", id, till).unwrap();
                    }
                }
                let (free, taken) = live.permits();
                let done = live.try_as(U, op, u64::MAX);
                let (after, still) = live.permits();
                let what = format!("{op:?} without {missing}: {done:?}");
                if matches!(op, Op::Release(Release { remaining: 0, .. })) && missing == "publish" {
                    assert!(matches!(done, Ok(Reply::Untold(_))), "{what}");
                }
                if !matches!(op, Op::Count { .. }) {
                    assert_eq!(after + still, free + taken, "{what}");
                }
                if at == 0 && done.is_err() {
                    let id = &ids_of(U, 1, 2)[0];
                    let score: Option<f64> = live.look.zscore("{orders}:timeout", id).unwrap();
                    assert_eq!(score, None, "{what}");
                }
            }
        }
    }
}

#[test]
fn the_documented_commands_are_enough_for_semaphores() {
    let keys = "~orders ~{orders}:timeout resetchannels &redisson_sc:*";
    let mut live = Live::as_user(&format!("{keys} {NEEDED}"));
    for op in changes() {
        live.run(&op);
        assert!(matches!(
            live.run_as(V, &acquire_two(1, 3)),
            Reply::Acquired { .. } | Reply::Busy { .. }
        ));
        assert!(matches!(
            live.run(&Op::Inspect {
                name: "orders".into(),
                kind: Kind::Semaphore,
                what: Inspection::Owners
            }),
            Reply::Holders(_)
        ));
    }
    assert_eq!(live.permits(), (3, 2));
}

/// Regression test: a full server refused renewals of permits, so that their holders lost them.
#[test]
fn a_full_server_keeps_permits_and_takes_them_back() {
    let mut live = Live::new();
    live.run(&acquire_two(1, 3));
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    let changes = changes();
    assert_eq!(live.run(&changes[1]), Reply::Kept);
    assert_eq!(
        live.run(&changes[2]),
        Reply::Renewed(vec![RenewReply::Kept])
    );
    assert_eq!(live.permits(), (1, 2));
    assert!(live.try_as(U, &changes[3], u64::MAX).is_err());
    assert_eq!(live.run(&changes[4]), Reply::Released(0));
    assert!(live.try_as(U, &acquire_two(2, 3), u64::MAX).is_err());
    assert_eq!(live.permits(), (3, 0));
}
