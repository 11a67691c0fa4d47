//! Clients that count together in virtual time, with a network that loses, delays and doubles what
//! they send. At the end the number is exact by the server's own record.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::support::random::{Random, number};
use crate::wire::Change;

const CLIENTS: usize = 3;
const PERMITS: i64 = 5;
const COUNT: i64 = 1_000_000;
/// How long everything goes wrong.
const CHAOS: Duration = secs_const(40);

const fn secs_const(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

enum Event {
    /// A copy of a call gets to the server. `answers`: its reply is not lost.
    Arrives {
        client: usize,
        sent: Sent,
        until: Moment,
        answers: bool,
    },
    Answer(usize, CallId, Reply),
    Late(usize, CallId),
    Message(usize, Name),
    Subscribed(usize, Name),
    Down(usize),
    Up(usize),
    Act,
}

/// The server: two numbers, and the marker of each identity of each client.
#[derive(Default)]
struct Store {
    numbers: BTreeMap<Name, i64>,
    markers: BTreeMap<(usize, OwnerId, Name), (u64, Reply)>,
    published: Vec<Name>,
}

impl Store {
    fn run(&mut self, client: usize, op: &Op) -> Reply {
        let (name, writer, sequence, change) = match op {
            Op::Read { name, .. } => {
                let left = self.numbers.get(name).copied().unwrap_or(0);
                return Reply::Changed { done: 0, left };
            }
            Op::Change {
                name,
                writer,
                sequence,
                change,
            } => (name, *writer, *sequence, change),
            other => panic!("no counter: {other:?}"),
        };
        let marker = (client, writer, name.clone());
        match self.markers.get(&marker) {
            Some((last, reply)) if *last == sequence => return reply.clone(),
            Some((last, _)) if *last > sequence => return Reply::Superseded,
            _ => {}
        }
        let before = self.numbers.get(name).copied().unwrap_or(0);
        let (mut done, mut left) = (0, before);
        match change {
            Change::Trade { given, wanted } => {
                left += i64::from(*given);
                for each in wanted {
                    if i64::from(*each) > left {
                        break;
                    }
                    (left, done) = (left - i64::from(*each), done + 1);
                }
                if *given > 0 && left > 0 {
                    self.published.push(name.clone());
                }
            }
            Change::CountDown(by) => {
                done = before;
                left = (before - i64::from(*by)).max(0);
                if before > 0 && left == 0 {
                    self.published.push(name.clone());
                }
            }
            other => panic!("not asked for: {other:?}"),
        }
        assert!(left >= 0, "never below 0");
        self.numbers.insert(name.clone(), left);
        let reply = Reply::Changed { done, left };
        self.markers.insert(marker, (sequence, reply.clone()));
        reply
    }
}

struct World {
    random: Random,
    now: Moment,
    rigs: Vec<Rig>,
    up: [bool; CLIENTS],
    store: Store,
    events: BTreeMap<(Moment, u64), Event>,
    last: u64,
    /// Calls without an outcome.
    open: BTreeSet<(usize, CallId)>,
    listens: BTreeSet<(usize, Name)>,
    /// Callers that wait for permits or an open latch, and those that count down, with the number.
    waits: BTreeSet<(usize, RequestId)>,
    gives: BTreeSet<(usize, RequestId)>,
    downs: BTreeMap<(usize, RequestId), i64>,
    held: Vec<(usize, u32)>,
    counted: i64,
    calm: bool,
    identity: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rigs: Vec<Rig> = (0..CLIENTS).map(|_| Rig::new()).collect();
        for (at, rig) in rigs.iter_mut().enumerate() {
            rig.input(Input::Identity(1 + at as u64));
        }
        let now = rigs[0].now;
        let mut store = Store::default();
        store.numbers.insert("s".into(), PERMITS);
        store.numbers.insert("l".into(), COUNT);
        let mut world = World {
            random: Random(seed),
            now,
            rigs,
            up: [true; CLIENTS],
            store,
            events: BTreeMap::new(),
            last: 0,
            open: BTreeSet::new(),
            listens: BTreeSet::new(),
            waits: BTreeSet::new(),
            gives: BTreeSet::new(),
            downs: BTreeMap::new(),
            held: Vec::new(),
            counted: 0,
            calm: false,
            identity: 100,
        };
        world.plan(ms(1), Event::Act);
        world
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.last += 1;
        let at = self.now.after(after);
        self.events.insert((at, self.last), event);
    }

    fn some(&mut self, most: u64) -> Duration {
        ms(self.random.below(most + 1))
    }

    /// Does what is due next, and returns false when that is after `end`.
    fn step(&mut self, end: Moment) -> bool {
        let wakes = self.rigs.iter().filter_map(|rig| rig.engine.next_wake());
        let wake = wakes.min();
        let event = self.events.keys().next().map(|(at, _)| *at);
        let Some(at) = wake.into_iter().chain(event).min().filter(|at| *at <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(at);
        for rig in &mut self.rigs {
            rig.now = self.now;
            if rig.engine.next_wake().is_some_and(|at| at <= rig.now) {
                rig.wake();
            }
        }
        if event.is_some_and(|at| at <= self.now)
            && let Some((_, event)) = self.events.pop_first()
        {
            self.happen(event);
        }
        (0..CLIENTS).for_each(|client| self.look_at(client));
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives {
                client,
                sent,
                until,
                answers,
            } => {
                let reply = if self.now > until && !matches!(sent.op, Op::Read { .. }) {
                    Reply::Stale
                } else {
                    self.store.run(client, &sent.op)
                };
                for name in std::mem::take(&mut self.store.published) {
                    for other in 0..CLIENTS {
                        if self.listens.contains(&(other, name.clone())) {
                            let late = self.some(30);
                            self.plan(late, Event::Message(other, name.clone()));
                        }
                    }
                }
                if answers {
                    let late = self.some(if self.calm { 2 } else { 400 });
                    self.plan(late, Event::Answer(client, sent.call, reply));
                }
            }
            Event::Answer(client, call, reply) => {
                if self.open.remove(&(client, call)) {
                    let outcome = CallOutcome::Answered(reply);
                    self.rigs[client].input(Input::Outcome { call, outcome });
                }
            }
            Event::Late(client, call) => {
                if self.open.remove(&(client, call)) {
                    let outcome = CallOutcome::Unanswered;
                    self.rigs[client].input(Input::Outcome { call, outcome });
                }
            }
            Event::Message(client, name) => {
                if self.up[client] && self.listens.contains(&(client, name.clone())) {
                    self.rigs[client].input(Input::Message(name));
                }
            }
            Event::Subscribed(client, name) => {
                if self.up[client] && self.rigs[client].subscribed.contains(&name) {
                    self.listens.insert((client, name.clone()));
                    self.rigs[client].input(Input::Subscribed(name));
                }
            }
            Event::Down(client) => self.cut(client),
            Event::Up(client) => self.mend(client),
            Event::Act => self.act(),
        }
    }

    fn cut(&mut self, client: usize) {
        if !std::mem::replace(&mut self.up[client], false) {
            return;
        }
        self.listens.retain(|(other, _)| *other != client);
        self.rigs[client].input(down());
        let open = self.open.iter().filter(|(other, _)| *other == client);
        for (_, call) in open.copied().collect::<Vec<_>>() {
            self.open.remove(&(client, call));
            let outcome = CallOutcome::Unanswered;
            self.rigs[client].input(Input::Outcome { call, outcome });
        }
        let outage = self.some(3000);
        self.plan(outage, Event::Up(client));
    }

    fn mend(&mut self, client: usize) {
        if std::mem::replace(&mut self.up[client], true) {
            return;
        }
        self.identity += 1;
        self.rigs[client].input(Input::Identity(self.identity));
        self.rigs[client].input(Input::Up(0));
        for name in self.rigs[client].subscribed.clone() {
            self.plan(ms(1), Event::Subscribed(client, name));
        }
    }

    /// Sends what a client sent, and takes the answers of its callers.
    fn look_at(&mut self, client: usize) {
        for sent in self.rigs[client].all_sent() {
            assert!(self.up[client], "nothing is sent without a connection");
            self.open.insert((client, sent.call));
            self.plan(sent.limit, Event::Late(client, sent.call));
            let until = self.now.after(sent.limit);
            let copies = if self.calm { 1 } else { self.random.below(3) };
            for _ in 0..copies {
                let slow = self.random.chance(200) && !self.calm;
                let late = self.some(if slow { 3000 } else { 5 });
                let answers = self.calm || self.random.chance(700);
                let sent = sent.clone();
                self.plan(
                    late,
                    Event::Arrives {
                        client,
                        sent,
                        until,
                        answers,
                    },
                );
            }
        }
        let rig = &self.rigs[client];
        let wanted: Vec<Name> = rig.subscribed.clone();
        self.listens
            .retain(|(other, name)| *other != client || wanted.contains(name));
        for name in wanted {
            if self.up[client] && !self.listens.contains(&(client, name.clone())) {
                self.plan(ms(1), Event::Subscribed(client, name));
            }
        }
        for (id, result) in std::mem::take(&mut self.rigs[client].completed) {
            let key = (client, id);
            match (result, self.downs.remove(&key)) {
                (Ok(Done::Taken { permits, .. }), _) => self.held.push((client, permits)),
                (Ok(Done::Number(_)), Some(by)) => self.counted += by,
                (Err(error), Some(by)) => {
                    assert!(error.message().contains("it is counted"), "{error}");
                    self.counted += by;
                }
                _ => {}
            }
            self.waits.remove(&key);
            self.gives.remove(&key);
        }
    }

    fn request(&mut self, client: usize, request: Request) -> (usize, RequestId) {
        (client, self.rigs[client].request(request))
    }

    fn act(&mut self) {
        if self.calm {
            return;
        }
        let client = self.random.index(CLIENTS);
        match self.random.below(12) {
            0..=3 => {
                let permits = 1 + u32::try_from(self.random.below(PERMITS as u64)).unwrap();
                let wait = match self.random.below(3) {
                    0 => None,
                    1 => Some(Duration::ZERO),
                    _ => Some(self.some(3000)),
                };
                let name = "s".into();
                let request = Request::Take {
                    name,
                    permits,
                    wait,
                };
                let key = self.request(client, request);
                self.waits.insert(key);
            }
            4..=6 if !self.held.is_empty() => {
                let at = self.random.index(self.held.len());
                self.give(at);
            }
            7 | 8 => {
                let by = 1 + self.random.below(3);
                let change = Change::CountDown(u32::try_from(by).unwrap());
                let name = "l".into();
                let key = self.request(client, Request::Change { name, change });
                self.downs.insert(key, i64::try_from(by).unwrap());
            }
            9 if !self.waits.is_empty() => {
                let at = self.random.index(self.waits.len());
                let (client, id) = self.waits.iter().nth(at).copied().unwrap();
                self.rigs[client].cancel(id);
            }
            10 if self.random.chance(200) => self.plan(ms(0), Event::Down(client)),
            _ => {}
        }
        let next = self.some(60);
        self.plan(next, Event::Act);
    }

    /// Gives the permits of a caller back: by a call, or by a guard that is dropped.
    fn give(&mut self, at: usize) {
        let (client, permits) = self.held.swap_remove(at);
        let name = "s".into();
        if self.random.below(2) == 0 {
            return self.rigs[client].input(Input::GivenBack { name, permits });
        }
        let change = Change::Trade {
            given: permits,
            wanted: Vec::new(),
        };
        let key = self.request(client, Request::Change { name, change });
        self.gives.insert(key);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now.after(time);
        for rig in &mut self.rigs {
            rig.now = self.now;
        }
        (0..CLIENTS).for_each(|client| self.look_at(client));
        while self.step(end) {}
    }

    fn number(&self, name: &str) -> i64 {
        self.store.numbers[name]
    }

    fn held(&self) -> i64 {
        self.held
            .iter()
            .map(|(_, permits)| i64::from(*permits))
            .sum()
    }
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    world.run(CHAOS);
    world.calm = true;
    (0..CLIENTS).for_each(|client| world.mend(client));
    // Copies on their way arrive, and calls without an answer are repeated.
    world.run(secs(6));
    let what = format!("seed {seed}");
    assert_eq!(world.number("s") + world.held(), PERMITS, "{what}: permits");
    assert!(world.downs.is_empty() && world.gives.is_empty(), "{what}");
    assert_eq!(COUNT - world.number("l"), world.counted, "{what}: count");
    // A caller that waits is served when others give back, without a recheck.
    for rig in &mut world.rigs {
        rig.engine.cx.config.recheck = secs(3600);
    }
    for _ in 0..1000 {
        if world.held.is_empty() {
            break;
        }
        world.give(0);
        world.run(ms(200));
    }
    assert!(world.waits.is_empty(), "{what}: asleep: {:?}", world.waits);
    assert_eq!(world.number("s"), PERMITS, "{what}: permits at the end");
    // The latch opens for those who wait.
    for client in 0..CLIENTS {
        let name = "l".into();
        let key = world.request(client, Request::Await { name, wait: None });
        world.waits.insert(key);
    }
    world.run(secs(1));
    assert_eq!(world.waits.len(), CLIENTS, "{what}");
    let change = Change::CountDown(u32::try_from(COUNT).unwrap());
    let name = "l".into();
    let _ = world.request(0, Request::Change { name, change });
    world.run(ms(200));
    assert!(world.waits.is_empty(), "{what}: the latch is open");
    for rig in &world.rigs {
        assert!(rig.engine.is_settled(), "{what}: {:?}", rig.engine);
    }
}

#[test]
fn counts_are_exact_whatever_the_network_does() {
    if let Some(seed) = number("SEED") {
        return play(seed);
    }
    let seeds = number("SEEDS").unwrap_or(150);
    (1..=seeds).for_each(play);
}
