//! The modelled server against a real one: the same random commands give the same replies and leave
//! the same keys, so that what holds in the simulation holds with the scripts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{Commands, Connection};

use super::names::{channel, channel_for, learnt_key, queue_keys, token_key, writer_mark_key};
use super::{
    Acquire, Call, Fencing, Form, HandOver, Holder, Inspection, Kind, Layout, LeaseSample, Name,
    Op, OwnerId, Payload, Place, Publish, Release, Renewal, Reply, Seat, Topic, decode,
};
use crate::engine::tests::simulation::server::{Lock, Origin, Server, Uuid};
use crate::real::eval;
use crate::support;
use crate::support::random::{Random, number};

/// How many commands each run sends when nobody says otherwise, and from which seed.
const COMMANDS: u64 = 3000;
/// A lock that ends this close to a command may be gone in one of the two.
const EDGE_MS: u64 = 3;

const UUIDS: [&str; 2] = [
    "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e",
    "11111111-2222-4333-8444-555555555555",
];

/// The owners that call.
const OWNERS: [(Uuid, OwnerId); 4] = [(0, 1), (0, 2), (1, 1), (1, 2)];
/// The places in a crowd that somebody listens for, of three each.
const PLACES: [(Uuid, OwnerId); 4] = [(0, 10), (0, 11), (1, 10), (1, 11)];

struct Both {
    kind: Kind,
    random: Random,
    _server: support::Server,
    scripts: Connection,
    look: Connection,
    model: Server,
    names: [Name; 2],
    /// Messages that the model has published.
    published: usize,
    compared: u64,
    /// When the last lock of the model came to its end.
    ended: u64,
}

impl Both {
    fn new(kind: Kind, seed: u64) -> Both {
        let server = support::Server::start();
        let names = ["a", "b"].map(Name::from);
        let mut model = Server::new();
        for name in &names {
            model
                .subscribers
                .insert((channel(kind.facts().topic, name).into(), 0));
            for (uuid, owner) in OWNERS.into_iter().chain(PLACES) {
                let place = channel_for(&uuid.to_string(), Topic::Place(owner), name);
                model.subscribers.insert((place.into(), 0));
            }
        }
        let (scripts, look) = (server.connect(), server.connect());
        let random = Random(seed);
        Both {
            kind,
            random,
            _server: server,
            scripts,
            look,
            model,
            names,
            published: 0,
            compared: 0,
            ended: 0,
        }
    }

    fn name(&mut self) -> Name {
        let at = usize::try_from(self.random.below(2)).unwrap();
        self.names[at].clone()
    }

    /// The kind of the next command: one of the two sides of a read-write lock.
    fn side(&mut self) -> Kind {
        match self.kind {
            Kind::Write if self.random.chance(600) => Kind::Read,
            kind => kind,
        }
    }

    fn is_shared(&self) -> bool {
        self.kind == Kind::Write
    }

    fn queues(&self) -> bool {
        self.kind == Kind::Fair
    }

    /// Whether this owner has a place in the queue of this name.
    fn has_place(&self, name: &Name, me: (Uuid, OwnerId)) -> bool {
        let places = self.model.queues.get(name);
        places.is_some_and(|places| places.iter().any(|place| place.owner == me))
    }

    fn op(&mut self) -> (Uuid, Op) {
        let uuid = self.random.below(2);
        let (name, kind) = (self.name(), self.side());
        let has_token = kind.facts().takes_tokens && self.random.chance(300);
        let token = has_token.then(|| self.random.pick(&["s", "t"]).into());
        let form = Form {
            kind,
            token,
            ..Form::default()
        };
        let owner = self.random.between(1, 2);
        let lease = if self.random.chance(300) {
            Duration::from_micros(self.random.between(1, 40_000))
        } else {
            Duration::from_millis(self.random.between(1000, 60_000))
        };
        let op = match self.random.below(12) {
            0..4 => {
                // With a token, a first copy says that it cannot be there yet.
                let count = u32::try_from(self.random.between(u64::from(!has_token), 3)).unwrap();
                let reads = kind == Kind::Read;
                let fencing = if reads {
                    Fencing::Off
                } else {
                    fencing_of(&name)
                };
                let under = (reads && self.random.chance(600)).then(|| self.random.between(1, 2));
                let mut was = None;
                // A new owner takes the place of the one before it.
                let queues = self.queues() && self.random.chance(700);
                if queues && !self.has_place(&name, (uuid, owner)) {
                    was = self.random.chance(300).then_some(3 - owner);
                }
                let steal = count < 2 && self.random.chance(200);
                let time = Duration::from_millis(self.random.between(1, 2000));
                let mark = self.random.chance(500).then_some(time);
                let place = Place {
                    owner: self.random.between(10, 12),
                    first: self.random.chance(300),
                };
                let place = (count < 2 && self.random.chance(400)).then_some(place);
                let payload = match kind {
                    Kind::Read => Payload::Read { under, mark },
                    Kind::Write => Payload::Write {
                        steal,
                        mark: mark.filter(|_| !steal),
                        place: place.filter(|_| !steal && mark.is_none()),
                    },
                    Kind::Fair => Payload::Queued(Seat {
                        queues,
                        earlier: was.into_iter().collect(),
                    }),
                    _ => Payload::Whole(place),
                };
                Op::Acquire(Acquire {
                    count,
                    fencing,
                    payload,
                    ..Acquire::of(name, owner, form, lease)
                })
            }
            4..7 => {
                let remaining = u32::try_from(self.random.below(3)).unwrap();
                let unmark = kind == Kind::Write && remaining == 0 && self.random.chance(500);
                let lesson =
                    (kind.layout() == Layout::Learning && self.random.chance(700)).then(|| {
                        LeaseSample {
                            asked: Duration::from_secs(self.random.between(1, 20)),
                            took: Duration::from_secs(self.random.below(15)),
                        }
                    });
                Op::Release(Release {
                    remaining,
                    ttl: lease,
                    lesson,
                    unmark,
                    place: (kind.facts().wakes_crowd && !unmark && self.random.chance(400))
                        .then(|| self.random.between(10, 12)),
                    ..Release::of(name, owner, form)
                })
            }
            7..9 => {
                let holds = self
                    .names
                    .iter()
                    .take(usize::try_from(self.random.between(1, 2)).unwrap());
                let hold = |name: &Name| Renewal {
                    name: name.clone(),
                    owner,
                    form: form.clone(),
                    ttl: lease,
                };
                Op::Renew {
                    holds: holds.map(hold).collect(),
                }
            }
            9..11 if !self.is_shared() && !self.queues() => {
                let (to, fencing, form) =
                    (self.random.between(1, 2), fencing_of(&name), Form::of(kind));
                Op::HandOver(HandOver {
                    name,
                    owner: 3 - to,
                    adopts: None,
                    to,
                    form,
                    lease,
                    fencing,
                    replicas: 0,
                })
            }
            _ if self.random.chance(500) => Op::Force { name, kind },
            _ => Op::Inspect {
                name,
                kind,
                what: Inspection::Owners,
            },
        };
        (uuid, op)
    }

    /// The real server's clock.
    fn clock(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.look).unwrap();
        seconds * 1000 + micros / 1000
    }

    /// Lets the model's clock go on. Whether a lock ends about now: then nobody can tell which of
    /// the two is right.
    fn is_edge_at(&mut self, clock: u64) -> bool {
        let ends = self.ends();
        self.ended = ends
            .iter()
            .copied()
            .filter(|end| *end <= clock)
            .fold(self.ended, u64::max);
        self.model.set_clock(clock);
        ends.iter()
            .chain([&self.ended])
            .any(|end| end.abs_diff(clock) <= EDGE_MS)
    }

    /// When each key of the model ends or has ended.
    fn ends(&self) -> Vec<u64> {
        let locks = self.model.held().map(|(_, lock)| lock.until_ms());
        let hashes = self.model.shared.values().map(|shared| shared.until_ms);
        let marks = self
            .model
            .marks
            .values()
            .flat_map(|mark| mark.values().copied());
        locks.chain(hashes).chain(marks).collect()
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0 => self.stranger(),
            1 => std::thread::sleep(Duration::from_millis(self.random.between(1, 30))),
            _ => self.command(),
        }
        self.compare_keys();
    }

    fn command(&mut self) {
        let (uuid, op) = self.op();
        let not_after = if self.random.chance(50) { 1 } else { u64::MAX };
        let before = self.clock();
        if self.is_edge_at(before) {
            return;
        }
        let call = Call::new(
            &op,
            UUIDS[usize::try_from(uuid).unwrap()],
            not_after,
            Publish::Classic,
        );
        let answer = eval(&call, &mut self.scripts).unwrap();
        let (server_ms, real) = decode(&op, answer).unwrap();
        let server_ms = server_ms.unwrap_or_else(|| self.clock());
        let slow = self.clock() - before > EDGE_MS;
        let surprised = self
            .ends()
            .iter()
            .any(|end| (before..=server_ms).contains(end));
        if self.is_edge_at(server_ms) || surprised || slow {
            // The machine was busy in between: begin anew.
            return self.forget();
        }
        let origin = Origin {
            uuid,
            generation: 1,
        };
        let modelled = self.model.execute(origin, false, &op, not_after);
        self.take_token(&op, &real);
        self.count_published();
        assert!(
            self.same(&modelled, &real),
            "{op:?}: the model says {modelled:?}, the server {real:?}"
        );
        self.compared += 1;
    }

    /// The model knows the clock to the millisecond only; it goes on with the token that was drawn.
    fn take_token(&mut self, op: &Op, real: &Reply) {
        if let (
            Op::Acquire(Acquire { name, .. }) | Op::HandOver(HandOver { name, .. }),
            Reply::Acquired {
                token: Some(token), ..
            },
        ) = (op, real)
        {
            let known = self
                .model
                .tokens
                .insert(name.clone(), *token)
                .unwrap_or_default();
            assert!(
                known.abs_diff(*token) <= 1000,
                "the model drew {known}, the server {token}"
            );
            let shared = self.model.shared.get_mut(name);
            let writers = shared.into_iter().flat_map(|shared| &mut shared.owners);
            let writer = writers.filter(|lock| !lock.reads);
            for lock in self.model.locks.get_mut(name).into_iter().chain(writer) {
                lock.token = Some(*token);
            }
        }
    }

    /// Somebody deletes a key, or another library takes the lock or gives it back.
    fn stranger(&mut self) {
        let name = self.name();
        let clock = self.clock();
        if self.is_edge_at(clock) {
            return;
        }
        if self.queues() && self.random.chance(500) {
            self.run_out(&name);
        } else if self.random.chance(500) {
            self.model.delete(&name, None);
            let _: () = self.look.del(&*name).unwrap();
            self.delete_timeouts(&name);
        } else if self.is_shared() {
            self.take_side(&name, clock);
        } else if !self.model.locks.contains_key(&name) {
            self.model.take(&name, 5000);
            match self.kind.layout() {
                Layout::Hash | Layout::Queued => {
                    self.look.hset::<_, _, _, ()>(&*name, "other:1", 1).unwrap()
                }
                _ => self.look.set::<_, _, ()>(&*name, "other:1").unwrap(),
            }
            let _: () = self
                .look
                .pexpire_at(&*name, i64::try_from(clock).unwrap() + 5000)
                .unwrap();
        }
        self.model.take_effects();
    }

    /// The place of an owner runs out.
    fn run_out(&mut self, name: &Name) {
        let places = self.model.queues.get_mut(name).into_iter().flatten();
        let places: Vec<_> = places.collect();
        if places.is_empty() {
            return;
        }
        let which = self.random.index(places.len());
        for place in places.into_iter().skip(which).take(1) {
            place.due_ms = 1;
            let owner = field_of(place.owner);
            let _: i64 = self.look.zadd(&queue_keys(name)[1], owner, 1).unwrap();
        }
    }

    /// Another library takes one side of a read-write lock, or the server evicts a key.
    fn take_side(&mut self, name: &Name, clock: u64) {
        let which = usize::try_from(self.random.below(3)).unwrap();
        if self.random.chance(400) {
            let readers = self
                .model
                .shared
                .get(name)
                .map(|shared| shared.owners.clone());
            let mut readers = readers.into_iter().flatten().filter(|lock| lock.reads);
            if let Some(reader) = readers.nth(which) {
                let _: () = self.look.del(timeout_key(name, &reader)).unwrap();
                self.model.evict(name, which);
            }
            return;
        }
        let reads = which > 0;
        let has = |model: &Server| {
            let shared = model.shared.get(name);
            shared.is_some_and(|shared| shared.find(None, reads).is_some())
        };
        let before = has(&self.model);
        self.model.take_side(name, reads, 5000);
        if before || !has(&self.model) {
            return;
        }
        let (field, mode) = if reads {
            ("other:1", "read")
        } else {
            ("other:1:write", "write")
        };
        let fields = [("mode", mode), (field, "1")];
        let _: () = self.look.hset_multiple(&**name, &fields).unwrap();
        if reads {
            let key = timeout_key(name, &Lock::new(None, true, 0));
            let _: () = self.look.set(&key, 1).unwrap();
            let end = i64::try_from(clock).unwrap() + 5000;
            let _: () = self.look.pexpire_at(&key, end).unwrap();
        }
        let end = i64::try_from(self.model.shared[name].until_ms).unwrap();
        let _: () = self.look.pexpire_at(&**name, end).unwrap();
    }

    /// Deletes the time-out keys of all readers, and the mark of waiting writers.
    fn delete_timeouts(&mut self, name: &Name) {
        // The places of a crowd have the same beginning.
        self.model.crowds.remove(name);
        self.model.marks.remove(name);
        let keys: Vec<String> = self.look.keys(format!("{{{name}}}:*")).unwrap();
        for key in keys {
            let _: () = self.look.del(key).unwrap();
        }
    }

    /// Both lose everything but the tokens and what was learnt.
    fn forget(&mut self) {
        for name in self.names.clone() {
            self.model.delete(&name, None);
            let _: () = self.look.del(&*name).unwrap();
            self.delete_timeouts(&name);
            let _: () = self.look.del(&queue_keys(&name)).unwrap();
            self.model.queues.remove(&name);
        }
        // The last command may have published.
        self.model.take_effects();
        let keys: Vec<String> = self.names.iter().map(|name| token_key(name)).collect();
        for (name, key) in self.names.iter().zip(keys) {
            match self.look.get::<_, Option<u64>>(key).unwrap() {
                Some(token) => drop(self.model.tokens.insert(name.clone(), token)),
                None => drop(self.model.tokens.remove(name)),
            }
        }
        for name in self.names.clone() {
            match self.learnt(&name) {
                Some(learnt) => drop(self.model.learnt.insert(name, learnt)),
                None => drop(self.model.learnt.remove(&name)),
            }
        }
        self.published = usize::MAX;
    }

    fn count_published(&mut self) {
        self.published = self
            .published
            .saturating_add(self.model.take_effects().published.len());
    }

    /// The same locks with the same owners, counts and times, and the same counters.
    fn compare_keys(&mut self) {
        let clock = self.clock();
        if self.is_edge_at(clock) {
            return;
        }
        for name in self.names.clone() {
            let found = self.found(&name);
            let ttl: i64 = self.look.pttl(&*name).unwrap();
            let late = self.clock();
            if self.is_edge_at(late) || late - clock > EDGE_MS {
                return;
            }
            let locks = self.model.held().filter(|(of, _)| **of == name);
            let expected = locks.map(|(_, lock)| (self.field_of(lock), self.count(lock.count)));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{name}");
            let lock = self.model.locks.get(&name).map(Lock::until_ms);
            let end = lock.or(self.model.shared.get(&name).map(|shared| shared.until_ms));
            let now = self.model.now_ms();
            let left = end.map_or(-2, |end| i64::try_from(end.saturating_sub(now)).unwrap());
            assert!(
                left.abs_diff(ttl) <= EDGE_MS * 2,
                "{name} lives {ttl} ms, in the model {left}"
            );
            if self.is_shared() {
                self.compare_timeouts(&name);
                self.compare_mark(&name);
            }
            self.compare_queue(&name);
            let token: Option<u64> = self.look.get(token_key(&name)).unwrap();
            assert_eq!(
                token,
                self.model.tokens.get(&name).copied(),
                "the counter of {name}"
            );
            let (learnt, expected) = (self.learnt(&name), self.model.learnt.get(&name).copied());
            let near = learnt.unwrap_or_default() - expected.unwrap_or_default();
            assert!(
                learnt.is_some() == expected.is_some() && near.abs() < 1e-6,
                "{name} learnt {learnt:?}, in the model {expected:?}"
            );
        }
    }

    /// The same places with the same times.
    fn compare_queue(&mut self, name: &Name) {
        let [queue, times] = queue_keys(name);
        let found: Vec<String> = self.look.lrange(queue, 0, -1).unwrap();
        let mut times: BTreeMap<String, f64> = self.look.zrange_withscores(times, 0, -1).unwrap();
        let places = self.model.queues.get(name).cloned().unwrap_or_default();
        let expected: Vec<String> = places.iter().map(|place| field_of(place.owner)).collect();
        assert_eq!(found, expected, "the queue of {name}");
        for place in places {
            let due = times.remove(&field_of(place.owner)).unwrap_or_default() as u64;
            assert!(
                due.abs_diff(place.due_ms) <= EDGE_MS,
                "{place:?} ends at {due}"
            );
        }
        assert!(times.is_empty(), "times without a place: {times:?}");
    }

    /// The mode, and the same times of all readers.
    fn compare_timeouts(&mut self, name: &Name) {
        let Some(shared) = self.model.shared.get(name).cloned() else {
            return;
        };
        let mode: Option<String> = self.look.hget(&**name, "mode").unwrap();
        let expected = if shared.is_written { "write" } else { "read" };
        let clock = self.clock();
        if self.is_edge_at(clock) || !self.model.shared.contains_key(name) {
            return;
        }
        assert_eq!(mode.as_deref(), Some(expected), "{name}: {shared:?}");
        for reader in shared.owners.iter().filter(|lock| lock.reads) {
            let before = self.clock();
            let ttl: i64 = self.look.pttl(timeout_key(name, reader)).unwrap();
            let clock = self.clock();
            if self.is_edge_at(clock) || clock - before > EDGE_MS {
                return;
            }
            let left = reader
                .key_left(clock)
                .map_or(-2, |left| i64::try_from(left).unwrap());
            assert!(
                left.abs_diff(ttl) <= EDGE_MS * 2,
                "the key of {reader:?} lives {ttl} ms, in the model {left}"
            );
        }
    }

    /// The same writers wait, and for as long. The mark ends no earlier than the last of them.
    fn compare_mark(&mut self, name: &Name) {
        let key = writer_mark_key(name);
        let clock = self.clock();
        if self.is_edge_at(clock) {
            return;
        }
        let (real, ttl): (Vec<(String, u64)>, i64) = redis::pipe()
            .zrangebyscore_withscores(&key, clock, "+inf")
            .pttl(&key)
            .query(&mut self.look)
            .unwrap();
        let late = self.clock();
        if self.is_edge_at(late) || late - clock > EDGE_MS {
            return;
        }
        let real: BTreeMap<String, u64> = real.into_iter().collect();
        let named = |(owner, end_ms)| (field_of(owner) + ":write", end_ms);
        let expected: BTreeMap<String, u64> = self.model.marked(name).map(named).collect();
        assert!(
            real.keys().eq(expected.keys()),
            "the mark of {name}: {real:?}, in the model {expected:?}"
        );
        for (owner, end_ms) in &expected {
            let off = end_ms.abs_diff(real[owner]);
            assert!(off <= EDGE_MS * 2, "{owner} waits {off} ms longer or less");
        }
        let last = self
            .model
            .marked_until(name)
            .map_or(0, |end_ms| end_ms - late);
        let is_long_enough = |ttl: u64| ttl + EDGE_MS * 2 >= last;
        assert!(last == 0 || u64::try_from(ttl).is_ok_and(is_long_enough));
    }

    /// The lease that an adaptive lock has learnt.
    fn learnt(&mut self, name: &Name) -> Option<f64> {
        self.look.get(learnt_key(name)).unwrap()
    }
}

impl Both {
    /// Owners and counts at the key of a lock; what a string does not tell is 1.
    fn found(&mut self, name: &Name) -> Vec<(String, u32)> {
        match self.kind.layout() {
            Layout::Hash | Layout::Queued => self.look.hgetall(&**name).unwrap(),
            Layout::Read | Layout::Write => {
                let fields: Vec<(String, String)> = self.look.hgetall(&**name).unwrap();
                let owners = fields.into_iter().filter(|(field, _)| field != "mode");
                owners
                    .map(|(owner, count)| (owner, count.parse().unwrap()))
                    .collect()
            }
            _ => self
                .look
                .get::<_, Option<String>>(&**name)
                .unwrap()
                .map(|owner| (owner, 1))
                .into_iter()
                .collect(),
        }
    }

    /// How the owner of a lock is written.
    fn field_of(&self, lock: &Lock) -> String {
        let side = if self.is_shared() && !lock.reads {
            ":write"
        } else {
            ""
        };
        owner_of(lock) + side
    }

    /// The count that the key shows.
    fn count(&self, count: u32) -> u32 {
        if matches!(self.kind.layout(), Layout::Hash | Layout::Queued) || self.is_shared() {
            count
        } else {
            1
        }
    }

    /// Replies are the same but for what a script may take on a busy machine, a token that is the
    /// clock, and how an owner is written.
    fn same(&self, modelled: &Reply, real: &Reply) -> bool {
        let near = |a: Duration, b: Duration| a.abs_diff(b) <= Duration::from_millis(EDGE_MS);
        match (modelled, real) {
            (Reply::Acquired { ttl: a, token: x }, Reply::Acquired { ttl: b, token: y }) => {
                near(*a, *b) && x.is_some() == y.is_some()
            }
            (Reply::Busy { ttl: Some(a) }, Reply::Busy { ttl: Some(b) }) => near(*a, *b),
            (Reply::Holders(a), Reply::Holders(b)) => {
                let same = |(a, b): (&Holder, &Holder)| {
                    let (Some(x), Some(y)) = (a.remaining, b.remaining) else {
                        return false;
                    };
                    self.count(a.count) == b.count && near(x, y)
                };
                a.len() == b.len() && a.iter().zip(b).all(same)
            }
            _ => modelled == real,
        }
    }
}

/// One lock with tokens, one without.
fn fencing_of(name: &Name) -> Fencing {
    if &**name == "a" {
        Fencing::Persistent
    } else {
        Fencing::Off
    }
}

/// The key that keeps a reader's time.
fn timeout_key(name: &Name, lock: &Lock) -> String {
    format!("{{{name}}}:{}:rwlock_timeout:1", owner_of(lock))
}

fn field_of((uuid, owner): (Uuid, OwnerId)) -> String {
    format!("{}:{owner}", UUIDS[usize::try_from(uuid).unwrap()])
}

fn owner_of(lock: &Lock) -> String {
    match lock.owner {
        Some(_) if lock.value.is_some() => lock.value.iter().map(ToString::to_string).collect(),
        Some(owner) => field_of(owner),
        None => "other:1".to_owned(),
    }
}

#[test]
fn the_modelled_scripts_do_what_the_real_ones_do() {
    compare(Kind::Reentrant);
}

#[test]
fn the_modelled_scripts_do_what_the_real_ones_of_a_simple_lock_do() {
    compare(Kind::Simple);
}

#[test]
fn the_modelled_scripts_do_what_the_real_ones_of_an_adaptive_lock_do() {
    compare(Kind::Adaptive);
}

#[test]
fn the_modelled_scripts_do_what_the_real_ones_of_a_read_write_lock_do() {
    compare(Kind::Write);
}

#[test]
fn the_modelled_scripts_do_what_the_real_ones_of_a_fair_lock_do() {
    compare(Kind::Fair);
}

fn compare(kind: Kind) {
    let mut both = Both::new(kind, number("REDLATCH_SEED").unwrap_or(1));
    let mut listener = both._server.connect();
    let mut channels = listener.as_pubsub();
    for name in &both.names {
        channels
            .subscribe(channel(kind.facts().topic, name))
            .unwrap();
        for owner in OWNERS.into_iter().chain(PLACES) {
            let place = channel(Topic::Lock, name) + ":" + &field_of(owner);
            channels.subscribe(place).unwrap();
        }
    }
    channels.subscribe("end").unwrap();
    let mut before = both.published;
    let commands = number("REDLATCH_COMMANDS").unwrap_or(COMMANDS);
    let mut heard = 0;
    for _ in 0..commands {
        both.step();
        if both.published == usize::MAX {
            // How many were published is not known: drop what was.
            both.published = 0;
            before = 0;
            heard = 0;
            drain(&mut both.look, &mut channels);
        } else if both.published - before >= 50 {
            heard += drain(&mut both.look, &mut channels);
            before = both.published;
            assert_eq!(heard, both.published, "messages");
        }
    }
    println!("{} commands compared", both.compared);
    assert!(
        both.compared > commands / 3,
        "only {} commands could be compared",
        both.compared
    );
}

/// Reads the messages that were published so far.
fn drain(publisher: &mut Connection, channels: &mut redis::PubSub<'_>) -> usize {
    let _: () = publisher.publish("end", "").unwrap();
    let mut count = 0;
    while channels.get_message().unwrap().get_channel_name() != "end" {
        count += 1;
    }
    count
}
