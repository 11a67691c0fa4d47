//! The simulated world: clients with their engines, clocks and connections, the server, and the
//! time.

mod callers;
mod checks;
mod client;
mod commands;
mod connections;
mod disturbances;
mod events;
mod fair;
mod read_write;
mod semaphore;
mod several;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::callers::{Caller, Deed, kind_of};
use super::network::{Fate, Faults};
use super::permits::{LIMIT, MARGIN_MS, Semaphore};
use super::server::{Lock, Origin, Server, Uuid, names, script_of};
use crate::engine::hold::{Hold, Phase};
use crate::engine::names::Attempt;
use crate::engine::ops::NOBODY;
use crate::engine::timing;
use crate::engine::{
    CallId, CallOutcome, Config, Done, Engine, Inline, Input, LinkId, Output, Request, RequestId,
    Routes, STANDALONE, Target,
};
use crate::error::{Error, ErrorKind, LostReason, Result as Answer};
use crate::event::Counters;
use crate::hold::HoldCell;
use crate::moment::Moment;
use crate::outbox::simulated::{Answered, Moved, Outcomes, Played, Said, Written};
use crate::outbox::wanted::Wanted;
use crate::support::random::Random;
use crate::tuning;
use crate::wire::names::channel_for;
use crate::wire::slots::{SLOTS, slot};
use crate::wire::{Acquire, HandOver, Kind, Name, Op, OwnerId, Release, Reply, Side, Topic};
use client::{Client, Connection, Direct, Renewals};

/// How long callers act before the calm end. In microseconds, like all times here.
const ACTING: u64 = 3_000_000;
/// The most time from the calm until everything is settled.
const SETTLING: u64 = 40_000_000;
const RECHECK: Duration = Duration::from_millis(1000);
const OUTAGE: Duration = Duration::from_millis(2500);
/// The most local hand-overs in a row, and their longest time.
const HANDOVERS: usize = 3;
const RUN: Duration = Duration::from_millis(500);
/// So long that the number of hand-overs is the limit.
const LONG_RUN: Duration = Duration::from_secs(60);
/// The longest outage during which a client is closed, and the earliest that it begins before that.
const LAST_OUTAGE: u64 = 4_500_000;
/// The time between the moments at which the callers of a burst act.
const BURST: u64 = 50_000;
/// How long a channel without waiters stays subscribed.
const LINGER: Duration = Duration::from_millis(300);
/// The longest wait for a free lock while nothing is wrong: a recheck with its jitter, the time
/// until a possible copy is dead, and the way there and back.
const PATIENCE: u64 = 1_100_000 + 250_000 + 10_000;
/// The longest wait for a released lock while every message arrives. It covers the message, a try,
/// and the turns of other clients.
const WOKEN: u64 = 200_000;
/// Per thousand: the chance that the replica has all writes after a command.
const REPLICATED: u64 = 400;
/// How long after a deletion a holder may believe that it holds, while nothing is wrong: a renewal,
/// and one more if the first was lost.
const TOLD: u64 = 300_000;
/// The same where no call is lost: a probe and its answer, behind others.
const TOLD_SOON: u64 = 50_000;
/// The longest pause before an unanswered call is repeated.
const AGAIN: u64 = 250_000;

/// How much later a reader is told: others change its key all the time, so that changes wait for the
/// next renewal. Leases are up to 3 s.
const TOLD_READER: u64 = 1_100_000;
/// How long a hash may live behind the last reader that was alive: a lease. Readers that died with
/// their client are still in it.
const DEAD_READERS: u64 = 3_200_000;

/// How long a lock that no caller wants may stay, while nothing is wrong: until the last copy that
/// may have made it is dead, and a clean-up that had to be repeated.
const GHOST: u64 = 220_000 + 300_000;

/// The shortest silence after which a connection counts as broken.
const SILENCE: u64 = 500_000;
/// How much later than its limit a call may end: the time is checked after each step, and both are
/// rounded.
const ROUNDING: u64 = 2_000;
/// The server's time for a lock in microseconds, if it takes any.
const PACES: [u64; 6] = [0, 0, 3, 30, 300, 2000];
/// Transient errors; and lasting ones, for which a lock or its user may be the cause.
const PASSING: [&str; 6] = [
    "BUSY Redis is busy running a script.",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Redis is configured to save RDB snapshots",
    "NOREPLICAS Not enough good replicas to write.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "READONLY You can't write against a read only replica.",
];
const LASTING: [&str; 3] = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM User has no permissions to run the 'evalsha' command",
    "ERR unknown command",
];
const DENIED: &str = "NOPERM No permissions to access a key";
const ELSEWHERE: [&str; 2] = ["MOVED 7 127.0.0.1:7001", "ASK 7 127.0.0.1:7001"];

/// The extra time for copies of an adaptive lock's commands: its leases are whole seconds.
const LATER: u64 = 1_000_000;
/// The names of a run. Each begins with its kind.
const NAMES: [&[&str]; 10] = [
    // Releases of both are published on one channel.
    &["reentrant", "{reentrant}"],
    &["reentrant"],
    &["simple"],
    &["adaptive"],
    &["reentrant", "simple"],
    &["reentrant", "adaptive"],
    &["reentrant", "simple", "adaptive"],
    &["rw"],
    // Messages of both come on one channel.
    &["rw", "{rw}"],
    &["rw", "reentrant"],
];
/// The names of one run in so many. The others are as they were before there were semaphores.
const SEMAPHORES: [&[&str]; 3] = [
    &["semaphore"],
    &["semaphore", "{semaphore}"],
    &["semaphore", "reentrant"],
];
const SEMAPHORES_EVERY: u64 = 7;
/// The same for fair locks. The names `a` and `{a}` would share a queue, as in Redisson.
const QUEUES: [&[&str]; 3] = [&["fair"], &["fair", "fair2"], &["fair", "reentrant"]];
const QUEUES_EVERY: u64 = 5;
/// The names of fair semaphores: `turns` and `turns2` have queues of their own, `semaphore` has none.
const TURNS: [&[&str]; 3] = [&["turns"], &["turns", "turns2"], &["turns", "semaphore"]];
const TURNS_EVERY: u64 = 6;

/// The time that must remain of a renewed lock. An adaptive lock is renewed late, and its lease is
/// in whole seconds: a re-entry can make it a second longer than the remaining time.
fn least(name: &Name, lease: Duration) -> Duration {
    if kind_of(name) == Kind::Adaptive {
        lease / 8
    } else {
        lease / 2
    }
}

/// A channel as a client subscribes to it.
fn channel_of(uuid: Uuid, topic: Topic, name: &Name) -> Name {
    channel_for(&uuid.to_string(), topic, name).into()
}

/// The channel that a name has: all its locks are of one sort.
fn topic_of(name: &Name) -> Topic {
    kind_of(name).facts().topic
}

/// The time allowed for a lock of this name.
fn allowed(usual: u64, name: &Name) -> u64 {
    usual
        + if kind_of(name) == Kind::Adaptive {
            LATER
        } else {
            0
        }
}

#[derive(Debug)]
enum Event {
    /// An input reaches an engine.
    Input(Uuid, Input),
    /// A request reaches the server.
    Request(Box<Copied>),
    /// An invalidation reaches a client on this connection.
    Invalidate(Origin, Name),
    /// A reply reaches a client.
    Reply {
        origin: Origin,
        call: CallId,
        server_ms: u64,
        outcome: CallOutcome,
    },
    /// A command with one or several calls reaches the server.
    Command(Box<Shared>),
    /// The server has finished a command and takes the next one.
    Serve,
    /// The reply to a command reaches a client.
    Said {
        origin: Origin,
        to: Box<Written>,
        server_ms: u64,
        said: Said,
    },
    /// The I/O thread has time for a connection.
    Turn(Origin),
    /// An engine hears the outcome of a call whose connection broke.
    Told(Uuid, CallId, CallOutcome),
    /// A connection breaks, if it still exists.
    Cut(Origin),
    /// The time limit of a call is over.
    Limit(Uuid, CallId),
    Connect(usize, usize),
    /// A subscription, or its end, reaches the server.
    Subscribe(Uuid, Name, Topic),
    Unsubscribe(Uuid, Name, Topic),
    /// A pub/sub message on this channel reaches a client.
    Message(Uuid, Name),
    Act(usize, usize),
    /// Many callers act at the same moment.
    Rush(usize),
    /// The server changes its speed, or loses its scripts.
    Pace,
    /// A quick caller releases its locks.
    GiveBack(usize, usize),
    Disturb,
    Stranger,
}

/// One copy of a call on its way.
#[derive(Debug, Clone)]
struct Copied {
    origin: Origin,
    call: CallId,
    op: Arc<Op>,
    /// The not-after in the call, and the simulated time that it stands for.
    not_after: u64,
    expires: u64,
    /// The reply is sent back.
    answered: bool,
    /// The network made this copy, and the engine does not know of it.
    doubled: bool,
}

/// The size of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub steps: u64,
    /// Calls that went through an outbox, and how many of them were batched.
    pub calls: u64,
    pub shared: u64,
    /// Multi locks that were granted.
    pub together: u64,
}

/// One copy of a command on its way.
#[derive(Debug, Clone)]
struct Shared {
    origin: Origin,
    written: Written,
    expires: u64,
    answered: bool,
    doubled: bool,
}

pub(super) struct World {
    random: Random,
    faults: Faults,
    time: u64,
    events: BTreeMap<(u64, u64), Event>,
    last_event: u64,
    last_uuid: Uuid,
    names: Vec<Name>,
    /// Callers are many and quick, so that optimistic hand-overs happen.
    hurried: bool,
    /// Callers act at the same moments, so that their calls overtake each other.
    bursts: bool,
    /// The callers are a crowd that acts at the same moments, and there are many locks.
    crowded: bool,
    /// The server denies all access to this name.
    denied: Option<Name>,
    clients: Vec<Client>,
    server: Server,
    /// The server's time for a lock, and the commands in its queue.
    pace: u64,
    queue: VecDeque<Shared>,
    /// Owners whose lock was deleted by others, and the time of that.
    bereaved: BTreeMap<(Uuid, OwnerId), u64>,
    /// Owners whose lock a release by token of their own client has freed. Client tracking does not
    /// report that: they hear of it at the next renewal, or at their deadline.
    own_copies: BTreeSet<(Uuid, OwnerId)>,
    /// The readers that asked under their own write lock.
    under: BTreeSet<(Uuid, OwnerId)>,
    /// Locks of dead clients, and the latest time at which each must be gone.
    legacies: BTreeMap<(Uuid, OwnerId), u64>,
    /// The latest time of trouble: until then the timing checks make allowances.
    disturbed: u64,
    /// The time since which a client waits for a free lock, its caller that waits, and when that was told, for each client and
    /// name.
    waits: Vec<Option<(u64, RequestId, Option<u64>)>>,
    highest_token: BTreeMap<Name, u64>,
    /// The time since which no caller wants the lock of an owner.
    ghosts: BTreeMap<(Uuid, OwnerId), u64>,
    /// Locks that an extension by token keeps alive, or with a count spoilt by a copy that the
    /// network made. The next command corrects them, and they end with their lease.
    excused: BTreeSet<(Uuid, OwnerId)>,
    /// Locks that a replica brings back although their release was confirmed. Their client will
    /// release them again.
    revived: BTreeSet<(Uuid, OwnerId)>,
    /// Requests that wait for replicas, and the owners that were granted one.
    wants_replica: BTreeSet<(Uuid, RequestId)>,
    /// Acquisitions that wait.
    patient: BTreeSet<(Uuid, RequestId)>,
    /// Those that try, while their lock has been free since they were asked for.
    free_tries: BTreeMap<(Uuid, RequestId), Name>,
    /// Acquisitions by a key that had the write lock when it asked.
    reentering: BTreeSet<(Uuid, RequestId)>,
    /// The holds that some caller has entered.
    entered: BTreeSet<(Uuid, OwnerId)>,
    replicated: BTreeSet<(Uuid, OwnerId)>,
    /// Releases in flight after an optimistic hand-over: the owner, and the time of the request.
    releases: BTreeMap<(Uuid, RequestId), (OwnerId, u64)>,
    /// When each acquisition was asked for.
    asked_at: BTreeMap<(Uuid, RequestId), u64>,
    /// The number of optimistic hand-overs behind an owner.
    passed: BTreeMap<(Uuid, OwnerId), usize>,
    /// The time at which an owner was granted its lock.
    won: BTreeMap<(Uuid, OwnerId), u64>,
    /// Owners affected by a jump of the server's clock. Nothing is promised for them.
    jumped: BTreeSet<(Uuid, OwnerId)>,
    /// Whether the server's clock went back, and whether the server lost its data.
    has_jumped: bool,
    /// The locks with values of their callers and their tokens, which replicas that took over brought back.
    brought_back: BTreeSet<(Name, Arc<str>, u64)>,
    has_forgotten: bool,
    /// The last release of each lock, and whether every waiter hears of it.
    released: BTreeMap<Name, u64>,
    heard: bool,
    /// The longest time until a loss is reported.
    told_within: u64,
    /// The server may forget that it tracks a key. Then the next renewal finds a loss.
    tenants: bool,
    counts: Counts,
    wrong: Option<String>,
    traced: bool,
    pub(super) trace: Vec<String>,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults, traced: bool) -> World {
        let mut random = Random(seed);
        let crowded = faults.crowd || random.chance(30);
        let count = if crowded {
            random.between(1, 2)
        } else {
            random.between(2, 4)
        };
        let sort = match seed {
            seed if seed % SEMAPHORES_EVERY == 3 => Kind::Semaphore,
            seed if seed % QUEUES_EVERY == 1 => Kind::Fair,
            seed if seed % TURNS_EVERY == 2 => Kind::FairSemaphore,
            _ => Kind::Reentrant,
        };
        let names = if crowded {
            crowd_of_names(&mut random, sort)
        } else {
            few_names(&mut random, sort)
        };
        let heard = faults.lost_message == 0 && faults.disturbance == 0 && !faults.loses_calls();
        let queues = matches!(sort, Kind::Fair | Kind::FairSemaphore);
        let bursts = queues && random.chance(500);
        let denied =
            (crowded && faults.refusal > 0 && random.chance(300)).then(|| names[0].clone());
        let mut world = World {
            faults,
            time: 1_000_000,
            events: BTreeMap::new(),
            last_event: 0,
            last_uuid: 0,
            names,
            hurried: crowded || random.chance(70),
            crowded,
            bursts,
            denied,
            clients: Vec::new(),
            server: Server::new(),
            pace: 0,
            queue: VecDeque::new(),
            bereaved: BTreeMap::new(),
            own_copies: BTreeSet::new(),
            under: BTreeSet::new(),
            legacies: BTreeMap::new(),
            disturbed: 0,
            waits: Vec::new(),
            highest_token: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            excused: BTreeSet::new(),
            revived: BTreeSet::new(),
            wants_replica: BTreeSet::new(),
            patient: BTreeSet::new(),
            free_tries: BTreeMap::new(),
            reentering: BTreeSet::new(),
            entered: BTreeSet::new(),
            replicated: BTreeSet::new(),
            releases: BTreeMap::new(),
            asked_at: BTreeMap::new(),
            passed: BTreeMap::new(),
            won: BTreeMap::new(),
            jumped: BTreeSet::new(),
            has_jumped: false,
            brought_back: BTreeSet::new(),
            has_forgotten: false,
            tenants: faults.tenants,
            released: BTreeMap::new(),
            heard,
            told_within: if faults.loses_calls() {
                TOLD
            } else {
                TOLD_SOON
            },
            counts: Counts::default(),
            wrong: None,
            traced,
            trace: Vec::new(),
            random,
        };
        world.waits = vec![None; usize::try_from(count).unwrap() * world.names.len()];
        for place in 0..usize::try_from(count).unwrap() {
            let client = world.new_client();
            world.clients.push(client);
            world.start(place);
        }
        if world.faults.disturbance > 0 {
            world.later(world.faults.disturbance, Event::Disturb);
        }
        if world.faults.strangers {
            world.later(500_000, Event::Stranger);
        }
        world.later(300_000, Event::Pace);
        world
    }

    fn new_client(&mut self) -> Client {
        self.last_uuid += 1;
        let random = &mut self.random;
        let handovers = (
            random.pick(&[0, HANDOVERS, HANDOVERS]),
            random.pick(&[RUN, LONG_RUN]),
        );
        let linger = random.pick(&[Duration::ZERO, LINGER]);
        let renewals = random.pick(&[1, 2, tuning::RENEWALS_IN_FLIGHT]);
        let config = Config {
            recheck: RECHECK,
            outage: OUTAGE,
            handovers,
            linger,
            least_limit: Duration::ZERO,
            renewals,
            seed: random.next(),
            is_shared: |name, own| Arc::strong_count(name) > own,
        };
        let most = if self.hurried || self.bursts { 8 } else { 3 };
        let most = if self.crowded {
            random.pick(&[16, 64])
        } else {
            random.between(1, most)
        };
        let sizes = random.pick(&[(4, 2), (8, 4), (16, 8), (512, 256)]);
        let sizes = (self.crowded || random.chance(500)).then_some(sizes);
        let callers = (1..=most)
            .map(|key| Caller::new(key, self.hurried))
            .collect();
        let parts = if random.chance(if self.crowded { 100 } else { 400 }) {
            2
        } else {
            1
        };
        // The inline connection exists only with a single server.
        let connections = parts + usize::from(parts == 1);
        Client {
            uuid: self.last_uuid,
            engine: Engine::new(config, Arc::new(Counters::default())),
            // Two clocks differ by less than the allowed hundredth.
            rate: random.between(992_000, 1_008_000),
            ahead: random.below(100_000_000),
            stopped_until: 0,
            tracks: random.chance(700),
            sizes,
            connections: (0..connections).map(|_| Connection::new()).collect(),
            parts,
            direct: None,
            last_generation: 0,
            routes: (0..self.names.len()).map(|_| random.index(parts)).collect(),
            calls: BTreeMap::new(),
            channels: BTreeMap::new(),
            wanted: Wanted::default(),
            last_subscription: 0,
            callers,
            asked: BTreeMap::new(),
            stand_back: BTreeMap::new(),
            last_request: 0,
            cells: Vec::new(),
            renewals: Renewals::default(),
            away: BTreeMap::new(),
            leases: BTreeMap::new(),
            let_go: BTreeMap::new(),
            closing: false,
            closed: false,
            unreleased: Vec::new(),
        }
    }

    /// Starts a client: it connects, and its callers act.
    fn start(&mut self, place: usize) {
        let names = &self.names;
        self.clients[place].join_slots(names);
        if self.clients[place].is_split() {
            self.tell_routes(place);
        }
        for connection in 0..self.clients[place].parts {
            let delay = self.random.between(100, 20_000);
            self.later(delay, Event::Connect(place, connection));
        }
        if self.crowded {
            return self.later(1000, Event::Rush(place));
        }
        for caller in 0..self.clients[place].callers.len() {
            self.later(1000, Event::Act(place, caller));
        }
    }

    // ---- time ----

    pub(super) fn run(&mut self) -> Result<Counts, String> {
        let end = self.time + ACTING;
        self.run_until(end)?;
        self.calm_down();
        self.run_until(end + SETTLING)?;
        self.check_end()?;
        Ok(self.counts)
    }

    fn run_until(&mut self, end: u64) -> Result<(), String> {
        loop {
            let event = self.events.first_key_value().map(|((time, _), _)| *time);
            let wake = self.next_wake();
            let next = [event, wake.map(|(time, _)| time), self.server.next_expiry()];
            let Some(time) = next.into_iter().flatten().min().filter(|time| *time <= end) else {
                self.time = end;
                return Ok(());
            };
            self.time = self.time.max(time);
            self.server.tick(self.time);
            self.spread_effects();
            if event == Some(time) {
                if let Some((_, event)) = self.events.pop_first() {
                    self.happen(event);
                }
            } else if let Some((_, place)) = wake.filter(|(at, _)| *at == time) {
                self.wake(place);
            }
            self.counts.steps += 1;
            self.check()?;
        }
    }

    fn next_wake(&self) -> Option<(u64, usize)> {
        let wakes = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(place, client)| {
                let wakes = [client.engine_wake(), client.next_wake()];
                let at = client.time_at(wakes.into_iter().flatten().min()?);
                Some((at.max(client.stopped_until).max(self.time), place))
            });
        wakes.min()
    }

    fn later(&mut self, delay: u64, event: Event) {
        self.at(self.time + delay, event);
    }

    fn at(&mut self, time: u64, event: Event) {
        self.last_event += 1;
        self.events.insert((time, self.last_event), event);
    }

    fn delay(&mut self) -> u64 {
        let delay = self.faults.delay(&mut self.random);
        if delay > 10_000 {
            self.trouble(self.time + delay);
        }
        delay
    }

    /// Records trouble until this time.
    fn trouble(&mut self, until: u64) {
        self.disturbed = self.disturbed.max(until);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.traced {
            self.trace
                .push(format!("{:>9.3} {}", self.time as f64 / 1000.0, text()));
        }
    }
}

/// Whether the client has had a caller behind this owner before.
fn caller_before(client: &Client, cell: &HoldCell) -> bool {
    client.cells.iter().any(|known| known.owner == cell.owner)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

fn few_names(random: &mut Random, sort: Kind) -> Vec<Name> {
    let names = match sort {
        Kind::Semaphore => random.pick(&SEMAPHORES),
        Kind::Fair => random.pick(&QUEUES),
        Kind::FairSemaphore => random.pick(&TURNS),
        _ => random.pick(&NAMES),
    };
    names.iter().map(|name| Name::from(*name)).collect()
}

/// Many locks, most of them reentrant.
fn crowd_of_names(random: &mut Random, sort: Kind) -> Vec<Name> {
    let count = random.between(8, 40);
    let name = |at| {
        if at % 8 == 5 {
            format!("rw{at}")
        } else if sort == Kind::Semaphore && at % 4 == 2 {
            format!("semaphore{at}")
        } else if sort == Kind::Fair && at % 4 == 2 {
            format!("fair{at}")
        } else if sort == Kind::FairSemaphore && at % 4 == 2 {
            format!("turns{at}")
        } else if at % 4 == 3 {
            format!("simple{at}")
        } else {
            format!("reentrant{at}")
        }
    };
    (0..count).map(|at| Name::from(name(at))).collect()
}

/// Whether a hold that was lost for this reason leaves its lock to those who know its token.
fn is_left_to_others(cell: &HoldCell, reason: LostReason) -> bool {
    let ran_out = matches!(reason, LostReason::Expired | LostReason::Unreachable);
    ran_out && cell.has_value()
}
