//! The simulated world: clients with their engines, clocks and connections, the server, and the
//! time.

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
use crate::wire::{Acquire, HandOver, Kind, Name, Op, OwnerId, Release, Reply, Topic};

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

/// A program with one engine. A new one takes its place when it dies.
struct Client {
    uuid: Uuid,
    engine: Engine,
    /// Its clock: its advance for each million of the server's, and its offset.
    rate: u64,
    ahead: u64,
    /// The process is stopped until then.
    stopped_until: u64,
    tracks: bool,
    /// The sizes of the shipping outbox, if the connections use it: it holds calls back and batches
    /// them. Otherwise every call is sent at once, alone.
    sizes: Option<(usize, usize)>,
    /// The connections to one server, or to two parts of it like the nodes of a cluster. The last
    /// one may be the inline connection.
    connections: Vec<Connection>,
    parts: usize,
    /// The state of the inline connection, while there is one.
    direct: Option<Direct>,
    /// The generation of the newest connection.
    last_generation: u64,
    /// The connection of each name.
    routes: Vec<usize>,
    /// The calls in flight and their connections.
    calls: BTreeMap<CallId, usize>,
    /// The channels to subscribe, and the arrival of the last change.
    channels: BTreeMap<Name, Topic>,
    /// The names behind each channel.
    wanted: Wanted,
    last_subscription: u64,
    callers: Vec<Caller>,
    asked: BTreeMap<RequestId, usize>,
    /// Until when each reader stands back for writers that wait, since it has asked.
    stand_back: BTreeMap<RequestId, Moment>,
    last_request: RequestId,
    cells: Vec<Arc<HoldCell>>,
    renewals: Renewals,
    /// The servers that it was told are out of reach, and since when.
    away: BTreeMap<LinkId, Moment>,
    /// The longest lease that was asked for each owner, and the longest limit of these calls.
    leases: BTreeMap<OwnerId, (Duration, Duration)>,
    /// Since when callers have let go of what these owners hold, and nothing confirms it.
    let_go: BTreeMap<OwnerId, Moment>,
    closing: bool,
    closed: bool,
    /// The locks that closing named because it could not release them. Its process ends with them.
    unreleased: Vec<Name>,
}

/// The renewals of a client, and the last renewal of each hold.
#[derive(Default)]
struct Renewals {
    last: BTreeMap<OwnerId, Moment>,
    planned: u64,
    /// Renewals that came sooner than leases need them.
    extra: u64,
    /// Requests: each may cause one or two probes.
    requests: u64,
    /// The most holds at one time.
    holds: u64,
}

impl Renewals {
    /// The most renewals beyond those that leases need: as many again, probes after each request,
    /// two for each hold, and what an engine may spend before it adapts.
    fn allowed(&self) -> u64 {
        self.planned + 2 * self.requests + 2 * self.holds + 16
    }
}

/// The inline connection: callers make calls on it themselves, one at a time, beside the calls of
/// the I/O thread.
#[derive(Default)]
struct Direct {
    /// The generation of the command connection with which it ends.
    belongs_to: u64,
    /// The request that uses it at the moment, and the call in flight.
    user: Option<RequestId>,
    /// The user makes its call inline only if nobody else uses the client.
    polite: bool,
    call: Option<CallId>,
}

/// A connection for commands.
struct Connection {
    up: bool,
    /// Its number among all connections of its client.
    generation: u64,
    /// The last known server clock in ms, and our clock at that moment.
    server_clock: (u64, Moment),
    /// The arrival of its last request and its last reply: both directions keep their order.
    last_arrival: (u64, u64),
    /// Its outbox, if the connection uses one.
    traffic: Option<Played>,
    /// A turn of the outbox is scheduled.
    turning: bool,
    /// `deaf`: nothing more arrives at the server. `mute`: nothing more arrives from it.
    deaf: bool,
    mute: bool,
}

impl Connection {
    fn new() -> Connection {
        Connection {
            up: false,
            generation: 0,
            server_clock: (0, Moment::default()),
            last_arrival: (0, 0),
            traffic: None,
            turning: false,
            deaf: false,
            mute: false,
        }
    }

    /// The not-after of a copy that is sent now: a lower bound of the server's clock, whatever the
    /// difference in speed, plus the limit.
    fn not_after(&self, now: Moment, limit: Duration) -> u64 {
        let (server_ms, heard) = self.server_clock;
        let since = heard.until(now) * 99 / 100;
        server_ms + u64::try_from((since + limit).as_millis()).unwrap()
    }
}

impl Client {
    fn local(&self, time: u64) -> Moment {
        Moment(self.ahead + time * self.rate / 1_000_000)
    }

    /// The first time at which the client's clock shows `moment`.
    fn time_at(&self, moment: Moment) -> u64 {
        (moment.0.saturating_sub(self.ahead) * 1_000_000).div_ceil(self.rate)
    }

    fn origin(&self, connection: usize) -> Origin {
        Origin {
            uuid: self.uuid,
            generation: self.connections[connection].generation,
        }
    }

    /// The connection of `origin`, if it still exists.
    fn connection(&self, origin: Origin) -> Option<usize> {
        (0..self.connections.len()).find(|at| self.origin(*at) == origin)
    }

    /// The engine's id of a connection.
    fn link(&self, connection: usize) -> LinkId {
        if self.is_split() {
            LinkId::try_from(connection).unwrap() + 1
        } else {
            STANDALONE
        }
    }

    /// Gives names of one slot the same connection.
    fn join_slots(&mut self, names: &[Name]) {
        for at in 1..names.len() {
            if let Some(same) = (0..at).find(|before| slot(&names[*before]) == slot(&names[at])) {
                self.routes[at] = self.routes[same];
            }
        }
    }

    fn is_split(&self) -> bool {
        self.parts > 1
    }

    /// Notes what the client is told about its servers. It forgets a server without names.
    fn hears(&mut self, now: Moment, input: &Input) {
        match input {
            Input::Down(link, _) => drop(self.away.entry(*link).or_insert(now)),
            Input::Up(link) => drop(self.away.remove(link)),
            Input::Routes(_) => {
                let of_names = self.routes.iter().map(|at| self.link(*at));
                let kept: BTreeSet<LinkId> = of_names.chain([self.link(0)]).collect();
                self.away.retain(|link, _| kept.contains(link));
            }
            _ => {}
        }
    }

    /// How long the server of this name has been out of reach, as far as the client knows.
    fn outage(&self, names: &[Name], name: &Name, now: Moment) -> Option<Duration> {
        let at = names.iter().position(|known| known == name)?;
        let since = self.away.get(&self.link(self.routes[at]))?;
        Some(since.until(now))
    }

    /// Whether closing may leave this lock to its lease: its server is out of reach, and has been
    /// for as long as callers wait, or a release of this lock has waited for it that long.
    fn may_leave(&self, names: &[Name], name: &Name, now: Moment) -> bool {
        let releases = self.let_go.iter().any(|(owner, since)| {
            let hold = self.engine.holds.get(owner);
            hold.is_some_and(|hold| hold.cell.name == *name) && since.until(now) >= OUTAGE
        });
        self.outage(names, name, now)
            .is_some_and(|outage| outage >= OUTAGE || releases)
    }

    /// Notes the leases that a call asks for.
    fn asks(&mut self, op: &Op, limit: Duration) {
        let asked: Vec<(OwnerId, Duration)> = match op {
            Op::Acquire(Acquire { owner, lease, .. }) => vec![(*owner, *lease)],
            Op::HandOver(HandOver { to, lease, .. }) => vec![(*to, *lease)],
            Op::Release(Release { owner, ttl, .. }) => vec![(*owner, *ttl)],
            Op::Renew { holds } => holds.iter().map(|hold| (hold.owner, hold.ttl)).collect(),
            Op::Force { .. } | Op::Inspect { .. } | Op::Count { .. } => Vec::new(),
            Op::Change { .. } | Op::Read { .. } => Vec::new(),
        };
        for (owner, lease) in asked {
            let longest = self.leases.entry(owner).or_default();
            *longest = (longest.0.max(lease), longest.1.max(limit));
        }
    }

    /// How long a lock may live on the server that is left to expire because its hold ended at the
    /// deadline. That counts from the sending of the last request that was answered. The server
    /// counts from the moment at which it ran the request, which is within its limit. Both clocks
    /// may differ by the drift, for which the deadline has an allowance.
    fn ends_soon(&self, owner: OwnerId) -> Duration {
        let (lease, limit) = self.leases.get(&owner).copied().unwrap_or_default();
        limit + timing::drift(limit) + 2 * timing::drift(lease)
    }

    /// Whether its process has ended and has left locks behind.
    fn has_ended(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Whether it has left this lock behind.
    fn has_left(&self, name: &Name) -> bool {
        self.unreleased.contains(name)
    }

    /// The index of the inline connection.
    fn at_direct(&self) -> usize {
        self.parts
    }

    /// Whether this call is made by a caller on the inline connection.
    fn is_own(&self, call: CallId) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.call == Some(call))
    }

    /// The wake-up of its engine, while the process runs.
    fn engine_wake(&self) -> Option<Moment> {
        self.engine.next_wake().filter(|_| !self.has_ended())
    }

    /// The earliest wake-up of its outboxes.
    fn next_wake(&self) -> Option<Moment> {
        self.connections
            .iter()
            .filter_map(|connection| connection.traffic.as_ref()?.next_wake())
            .min()
    }

    /// The routes as the engine gets them.
    fn routes(&self, names: &[Name]) -> Routes {
        let mut table = vec![self.link(0); usize::from(SLOTS)];
        for (name, connection) in names.iter().zip(&self.routes) {
            table[usize::from(slot(name))] = self.link(*connection);
        }
        Routes::by_slot(table.into())
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
            replicated: BTreeSet::new(),
            releases: BTreeMap::new(),
            asked_at: BTreeMap::new(),
            passed: BTreeMap::new(),
            won: BTreeMap::new(),
            jumped: BTreeSet::new(),
            has_jumped: false,
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

    // ---- events ----

    fn place_of(&self, uuid: Uuid) -> Option<usize> {
        self.clients.iter().position(|client| client.uuid == uuid)
    }

    fn happen(&mut self, event: Event) {
        // Events for a stopped process wait until it continues.
        let place = match &event {
            Event::Input(uuid, _)
            | Event::Message(uuid, _)
            | Event::Limit(uuid, _)
            | Event::Told(uuid, ..) => self.place_of(*uuid),
            Event::Reply { origin, .. } | Event::Invalidate(origin, _) => {
                self.place_of(origin.uuid)
            }
            Event::Said { origin, .. } | Event::Turn(origin) | Event::Cut(origin) => {
                self.place_of(origin.uuid)
            }
            Event::Connect(place, _) | Event::Act(place, _) | Event::GiveBack(place, _) => {
                Some(*place)
            }
            Event::Rush(place) => Some(*place),
            _ => None,
        };
        if let Some(until) = place.map(|place| self.clients[place].stopped_until)
            && until > self.time
        {
            return self.at(until, event);
        }
        match event {
            Event::Input(uuid, input) => self.input(uuid, input),
            Event::Request(copy) => self.request(&copy),
            Event::Reply {
                origin,
                call,
                server_ms,
                outcome,
            } => self.reply(origin, call, server_ms, outcome),
            Event::Invalidate(origin, name) => self.invalidated(origin, name),
            Event::Command(command) => self.command(*command),
            Event::Serve => self.serve(),
            Event::Said {
                origin,
                to,
                server_ms,
                said,
            } => self.said(origin, &to, server_ms, &said),
            Event::Turn(origin) => self.turn(origin),
            Event::Told(uuid, call, outcome) => self.outcome(uuid, call, outcome),
            Event::Cut(origin) => self.cut(origin),
            Event::Rush(place) => self.rush(place),
            Event::Pace => self.change_pace(),
            Event::Limit(uuid, call) => self.outcome(uuid, call, CallOutcome::Unanswered),
            Event::Connect(place, connection) => self.connect(place, connection),
            Event::Subscribe(uuid, name, topic) => self.subscribe(uuid, name, topic),
            Event::Unsubscribe(uuid, name, topic) => {
                self.server
                    .subscribers
                    .remove(&(channel_of(uuid, topic, &name), uuid));
            }
            Event::Message(uuid, channel) => self.message(uuid, &channel),
            Event::Act(place, caller) => self.act(place, caller),
            Event::GiveBack(place, caller) => self.give_back(place, caller),
            Event::Disturb => self.disturb(),
            Event::Stranger => self.stranger(),
        }
    }

    fn input(&mut self, uuid: Uuid, input: Input) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if client.has_ended() {
            return;
        }
        let now = client.local(self.time);
        client.hears(now, &input);
        self.note(|| format!("{uuid} < {input:?}"));
        let mut out = Vec::new();
        self.clients[place].engine.handle(now, input, &mut out);
        self.outputs(place, out);
    }

    fn wake(&mut self, place: usize) {
        self.wake_traffic(place);
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        if client.engine_wake().is_none_or(|due| due > now) {
            return;
        }
        let mut out = Vec::new();
        client.engine.wake(now, &mut out);
        self.outputs(place, out);
    }

    fn outputs(&mut self, place: usize, out: Vec<Output>) {
        let uuid = self.clients[place].uuid;
        // While a caller waits for its call, everything else is sent by the I/O thread.
        let waits = self.clients[place]
            .direct
            .as_ref()
            .is_some_and(|direct| direct.call.is_some());
        for output in out {
            if !matches!(output, Output::Event(_)) {
                self.note(|| format!("{uuid} > {output:?}"));
            }
            match output {
                Output::Send {
                    call,
                    op,
                    limit,
                    inline,
                } => {
                    self.note_renewals(place, &op);
                    self.clients[place].asks(&op, limit);
                    self.check_mark_of(place, &op);
                    if let Op::Acquire(op) = &*op
                        && op.payload.under().is_some()
                    {
                        self.under.insert((uuid, op.owner));
                    }
                    let connection =
                        self.connection_for(place, inline.filter(|_| !waits), call, &op);
                    self.send(place, connection, call, op, limit);
                }
                Output::Subscribe(name, topic) => {
                    let client = &mut self.clients[place];
                    let before = client.channels.insert(name.clone(), topic);
                    assert_eq!(before, None, "subscribed twice");
                    let channel = channel_of(uuid, topic, &name);
                    client.wanted.add(&channel, name.clone());
                    self.change_channel(place, Event::Subscribe(uuid, name, topic));
                }
                Output::Unsubscribe(name, topic) => {
                    let client = &mut self.clients[place];
                    let before = client.channels.remove(&name);
                    assert_eq!(before, Some(topic), "not subscribed");
                    let channel = channel_of(uuid, topic, &name);
                    if client.wanted.remove(&channel, &name) {
                        self.change_channel(place, Event::Unsubscribe(uuid, name, topic));
                    }
                }
                Output::Complete { id, result } => self.completed(place, id, result),
                Output::Lost(cell, reason) => {
                    if is_left_to_others(&cell, reason) {
                        self.excused.insert((uuid, cell.owner));
                    }
                    self.lost(&cell, reason);
                }
                Output::Ended(cell) => {
                    if cell.is_held(self.clients[place].local(self.time)) {
                        self.fail(format!("{cell:?} ended and is held"));
                    }
                }
                Output::Opened(_) | Output::Event(_) => {}
                Output::Stop => self.clients[place].closed = true,
            }
        }
        self.give_back_direct(place);
    }

    /// Counts the renewals that leases need, and the others.
    fn note_renewals(&mut self, place: usize, op: &Op) {
        let Op::Renew { holds } = op else { return };
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        for renewal in holds {
            let hold = client.engine.holds.get(&renewal.owner);
            let period = hold.and_then(|hold| hold.period());
            let last = client.renewals.last.insert(renewal.owner, now);
            match (last, period) {
                // A neighbour in the same call may be renewed a tenth of its period early.
                (Some(last), Some(period)) if last.until(now) >= period * 4 / 5 => {
                    client.renewals.planned += 1
                }
                _ => client.renewals.extra += 1,
            }
        }
        client.renewals.holds = client.renewals.holds.max(client.engine.holds.len() as u64);
    }

    // ---- the command connection ----

    fn send(
        &mut self,
        place: usize,
        connection: usize,
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
    ) {
        let delay = self.delay();
        let client = &mut self.clients[place];
        let (uuid, origin) = (client.uuid, client.origin(connection));
        if !client.connections[connection].up {
            let input = Input::Outcome {
                call,
                outcome: CallOutcome::NotSent,
            };
            return self.later(delay.min(5000), Event::Input(uuid, input));
        }
        client.calls.insert(call, connection);
        let now = client.local(self.time);
        if let Some(traffic) = &mut client.connections[connection].traffic {
            traffic.send(now, call, op, limit, false);
            return self.turn_soon(place, connection);
        }
        let not_after = client.connections[connection].not_after(now, limit);
        let limit_at = client.time_at(now.after(limit));
        let arrival = (self.time + delay).max(client.connections[connection].last_arrival.0);
        self.at(limit_at, Event::Limit(uuid, call));
        let fate = self.faults.fate(&mut self.random);
        if fate != Fate::Arrives {
            self.trouble(limit_at);
        }
        let expires = limit_at + u64::try_from(timing::drift(limit).as_micros()).unwrap();
        let copy = Copied {
            origin,
            call,
            op,
            not_after,
            expires,
            answered: false,
            doubled: false,
        };
        if self.clients[place].is_own(call) && self.random.chance(self.faults.interruption) {
            return self.interrupt(limit_at, copy);
        }
        let answered = Copied {
            answered: true,
            ..copy.clone()
        };
        match fate {
            Fate::Never => {}
            Fate::Arrives => self.arrives(place, connection, arrival, answered),
            Fate::Unanswered => self.arrives(place, connection, arrival, copy),
            Fate::Late => {
                for _ in 0..self.random.between(1, 2) {
                    self.arrives_late(copy.clone());
                }
            }
            Fate::Twice => {
                self.arrives(place, connection, arrival, answered);
                let double = Copied {
                    doubled: true,
                    ..copy
                };
                if self.random.chance(500) {
                    self.arrives(place, connection, arrival, double);
                } else {
                    self.arrives_late(double);
                }
            }
        }
    }

    /// The connection for an operation, whose names are all on one server. A caller that has the
    /// inline connection sends on it.
    fn connection_for(
        &mut self,
        place: usize,
        inline: Option<Inline>,
        call: CallId,
        op: &Op,
    ) -> usize {
        let client = &mut self.clients[place];
        let at_direct = client.at_direct();
        let suits = |direct: &&mut Direct| {
            inline.is_some_and(|inline| {
                direct.user == Some(inline.of)
                    && (inline.alone || !direct.polite)
                    && !(inline.tracked && client.tracks)
            })
        };
        if let Some(direct) = client.direct.as_mut().filter(suits) {
            assert!(direct.call.is_none(), "two calls at once for one caller");
            direct.call = Some(call);
            return at_direct;
        }
        // The first of the names with the same slot.
        let of = |name: &Name| {
            self.names
                .iter()
                .position(|known| slot(known) == slot(name))
                .unwrap()
        };
        let mut places = names(op).into_iter().map(|name| of(&name));
        let first = places.next().unwrap();
        assert!(
            !client.is_split() || places.all(|at| at == first),
            "{op:?} is for names of two slots"
        );
        client.routes[first]
    }

    /// Schedules the arrival of a request. The requests of a connection keep their order.
    fn arrives(&mut self, place: usize, connection: usize, arrival: u64, copy: Copied) {
        self.clients[place].connections[connection].last_arrival.0 = arrival;
        self.at(arrival, Event::Request(Box::new(copy)));
    }

    fn arrives_late(&mut self, copy: Copied) {
        let delay = self.random.between(1000, 3_000_000);
        self.trouble(self.time + delay);
        self.later(delay, Event::Request(Box::new(copy)));
    }

    fn request(&mut self, copy: &Copied) {
        let Copied { origin, call, .. } = *copy;
        let outcome = if names(&copy.op)
            .iter()
            .any(|name| Some(name) == self.denied.as_ref())
        {
            CallOutcome::Refused {
                error: Error::new(ErrorKind::Denied, DENIED),
                passing: false,
            }
        } else if self.random.chance(self.faults.refusal) {
            self.trouble(self.time);
            let error = Error::new(ErrorKind::Server, "refused");
            let passing = !matches!(*copy.op, Op::Acquire(_)) || self.random.chance(700);
            CallOutcome::Refused { error, passing }
        } else {
            CallOutcome::Answered(self.execute(copy))
        };
        self.note_done(copy, &outcome);
        if copy.answered {
            let event = Event::Reply {
                origin,
                call,
                server_ms: self.server.now_ms(),
                outcome,
            };
            self.answer(origin, event);
        }
    }

    /// Runs a call on the server.
    fn execute(&mut self, copy: &Copied) -> Reply {
        let Copied {
            origin,
            ref op,
            not_after,
            ..
        } = *copy;
        let tracks = |client: &Client| {
            client.tracks
                && client
                    .connection(origin)
                    .is_some_and(|connection| connection != client.at_direct())
        };
        let tracks = self.clients.iter().any(tracks);
        let before = self.handed_over(op);
        let victim = self.victim_of(copy);
        let own = self.freed_by_token(copy);
        let reply = self.server.execute(origin, tracks, op, not_after);
        if let (Some(own), Reply::Released(_)) = (own, &reply) {
            self.own_copies.insert(own);
        }
        if let (Some(victim), Reply::Released(_)) = (victim, &reply) {
            self.fail(format!("{op:?} of {} frees {victim:?}", origin.uuid));
        }
        // A copy made by the network came when its owner had gone. Its place runs out.
        if let (Op::Acquire(op), Reply::Busy { .. }, true) = (&**op, &reply, copy.doubled)
            && op.payload.seat().is_some_and(|seat| seat.queues)
        {
            self.excused.insert((origin.uuid, op.owner));
        }
        // A copy made by the network did the hand-over, although its client may have been told that
        // it was not done. To the client the lock is newly acquired.
        if copy.doubled && self.handed_over(op) > before {
            op.name()
                .and_then(|name| self.server.locks.get_mut(name))
                .into_iter()
                .for_each(|lock| lock.handovers = 0);
        }
        match reply {
            // It is done, but no replica acknowledges it.
            Reply::Acquired { .. }
                if op.replicas() > 0 && self.random.chance(self.faults.alone) =>
            {
                self.trouble(self.time);
                Reply::NotReplicated { got: 0 }
            }
            reply => reply,
        }
    }

    /// The owner of this client whose lock a release by token would free.
    fn freed_by_token(&self, copy: &Copied) -> Option<(Uuid, OwnerId)> {
        let Op::Release(Release { name, form, .. }) = &*copy.op else {
            return None;
        };
        let lock = self.server.locks.get(name)?;
        let frees = form.token.is_some() && lock.value == form.token;
        lock.owner
            .filter(|(uuid, _)| frees && *uuid == copy.origin.uuid)
    }

    /// The hold of this client with the same token that a release of another attempt would free. A
    /// copy that runs after its call had its outcome is excused: only another token helps there.
    fn victim_of(&self, copy: &Copied) -> Option<Arc<HoldCell>> {
        let Op::Release(Release {
            name,
            owner,
            form,
            remaining: 0,
            ..
        }) = &*copy.op
        else {
            return None;
        };
        let client = &self.clients[self.place_of(copy.origin.uuid)?];
        let on_time = !copy.doubled && client.calls.contains_key(&copy.call);
        let lock = self.server.locks.get(name)?;
        let freed = lock.value.is_some() && lock.value == form.token && on_time;
        let (_, victim) = lock
            .owner
            .filter(|(uuid, _)| freed && *uuid == client.uuid)?;
        let now = client.local(self.time);
        let mut others = client
            .cells
            .iter()
            .filter(|cell| ![NOBODY, cell.owner].contains(owner) && cell.is_held(now));
        others.find(|cell| cell.owner == victim).cloned()
    }

    /// The number of local hand-overs of the lock of a hand-over call.
    fn handed_over(&self, op: &Op) -> usize {
        let Op::HandOver(HandOver { name, .. }) = op else {
            return 0;
        };
        self.server.locks.get(name).map_or(0, |lock| lock.handovers)
    }

    /// Records the consequences of a call that the server has run.
    fn note_done(&mut self, copy: &Copied, outcome: &CallOutcome) {
        let Copied { origin, ref op, .. } = *copy;
        let acknowledged =
            op.replicas() > 0 && matches!(outcome, CallOutcome::Answered(Reply::Acquired { .. }));
        if self.faults.failovers && (acknowledged || self.random.chance(REPLICATED)) {
            self.server.replicate();
        }
        self.note(|| format!("S {} {op:?}: {outcome:?}", origin.uuid));
        self.spread_effects();
        self.note_extensions(op);
        self.note_excuses(copy, outcome);
    }

    /// Excuses what the engine cannot know: a copy that the network made of an answered request,
    /// and a copy that runs too late because the server's clock went back.
    fn note_excuses(&mut self, copy: &Copied, outcome: &CallOutcome) {
        let uuid = copy.origin.uuid;
        let (owner, shrinks) = match (&*copy.op, outcome) {
            (Op::Renew { holds }, _) => {
                let late = self.has_jumped && self.time > copy.expires;
                let owners = holds.iter().filter(|_| late).map(|hold| (uuid, hold.owner));
                return self.jumped.extend(owners);
            }
            (
                _,
                CallOutcome::Answered(
                    Reply::Acquired { .. } | Reply::NotReplicated { .. } | Reply::Kept,
                ),
            ) => match *copy.op {
                Op::Acquire(Acquire { owner, .. }) | Op::HandOver(HandOver { to: owner, .. }) => {
                    (owner, false)
                }
                Op::Release(Release { owner, .. }) => (owner, true),
                _ => return,
            },
            _ => return,
        };
        let me = (uuid, owner);
        if copy.doubled {
            self.excused.insert(me);
        }
        // It may shorten a lease that was acquired since.
        if self.time > copy.expires || (copy.doubled && shrinks) {
            self.jumped.insert(me);
        }
    }

    /// Excuses extensions by token, of which the owner hears nothing.
    fn note_extensions(&mut self, op: &Op) {
        let Op::Renew { holds } = op else {
            return;
        };
        let by_token = holds.iter().filter(|hold| hold.owner == NOBODY);
        let owners = by_token.filter_map(|hold| self.server.locks.get(&hold.name)?.owner);
        self.excused.extend(owners);
    }

    /// Sends something to a client on its command connection, in order.
    fn answer(&mut self, origin: Origin, event: Event) {
        let delay = self.delay();
        let Some(place) = self.place_of(origin.uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if let Some(connection) = client
            .connection(origin)
            .filter(|at| !client.connections[*at].mute)
        {
            let last = &mut client.connections[connection].last_arrival.1;
            let arrival = (self.time + delay).max(*last);
            *last = arrival;
            self.at(arrival, event);
        }
    }

    fn reply(&mut self, origin: Origin, call: CallId, server_ms: u64, outcome: CallOutcome) {
        let Some(place) = self.place_of(origin.uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if let Some(connection) = client.connection(origin) {
            client.connections[connection].server_clock = (server_ms, client.local(self.time));
            self.outcome(origin.uuid, call, outcome);
        }
    }

    fn outcome(&mut self, uuid: Uuid, call: CallId, outcome: CallOutcome) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        if self.clients[place].calls.remove(&call).is_none() {
            return;
        }
        // A call with a late answer is repeated after a pause.
        if matches!(outcome, CallOutcome::Unanswered | CallOutcome::NotSent) {
            self.trouble(self.time + AGAIN);
        }
        let client = &mut self.clients[place];
        if client.is_own(call) {
            // A late or interrupted call closes the inline connection.
            match (
                &mut client.direct,
                matches!(outcome, CallOutcome::Unanswered),
            ) {
                (Some(direct), false) => direct.call = None,
                _ => self.close_direct(place),
            }
            // Reads on the inline connection are not covered by client tracking.
            if let (CallOutcome::Answered(reply), true) = (&outcome, self.clients[place].tracks) {
                return self.input(
                    uuid,
                    Input::AnsweredUntracked {
                        call,
                        reply: reply.clone(),
                    },
                );
            }
        }
        self.input(uuid, Input::Outcome { call, outcome });
    }

    // ---- the outbox of a connection, as it ships ----

    /// Schedules a turn of the I/O thread for this connection, after its other work.
    fn turn_soon(&mut self, place: usize, connection: usize) {
        let delay = self.random.below(200);
        let client = &mut self.clients[place];
        if !std::mem::replace(&mut client.connections[connection].turning, true) {
            let origin = client.origin(connection);
            self.later(delay, Event::Turn(origin));
        }
    }

    /// The connection of `origin`, if it still exists and uses an outbox.
    fn traffic_of(&mut self, origin: Origin) -> Option<(usize, usize)> {
        let place = self.place_of(origin.uuid)?;
        let connection = self.clients[place].connection(origin)?;
        self.clients[place].connections[connection]
            .traffic
            .as_ref()
            .map(|_| (place, connection))
    }

    fn with_traffic<T>(
        &mut self,
        (place, connection): (usize, usize),
        act: impl FnOnce(&mut Played, Moment) -> T,
    ) -> T {
        let client = &mut self.clients[place];
        let (uuid, now) = (client.uuid, client.local(self.time));
        let traffic = client.connections[connection].traffic.as_mut().unwrap();
        let done = act(traffic, now);
        if let Some(wrong) = traffic.wrong() {
            self.fail(format!("{uuid}: {wrong}"));
        }
        done
    }

    fn turn(&mut self, origin: Origin) {
        let Some(at) = self.traffic_of(origin) else {
            return;
        };
        self.clients[at.0].connections[at.1].turning = false;
        let (written, outcomes) = self.with_traffic(at, Played::turn);
        written
            .into_iter()
            .for_each(|written| self.write(at, written));
        self.tell(origin.uuid, outcomes);
    }

    fn tell(&mut self, uuid: Uuid, outcomes: Outcomes) {
        outcomes
            .into_iter()
            .for_each(|(call, outcome)| self.outcome(uuid, call, outcome));
    }

    /// Sends a command. A loss on a connection takes everything behind it along.
    fn write(&mut self, (place, connection): (usize, usize), written: Written) {
        let delay = self.delay();
        if !written.full {
            self.check_not_after(place, &written);
            let calls = written.calls.len() as u64;
            self.counts.calls += calls;
            self.counts.shared += if written.sort.is_some() { calls } else { 0 };
        }
        let client = &self.clients[place];
        let (origin, now) = (client.origin(connection), client.local(self.time));
        let (ends, limit) = (
            client.time_at(written.deadline),
            now.until(written.deadline),
        );
        let expires = ends + micros(timing::drift(limit));
        self.note(|| format!("{} writes {written:?}", origin.uuid));
        let fate = self.faults.fate(&mut self.random);
        let command = Shared {
            origin,
            written,
            expires,
            answered: true,
            doubled: false,
        };
        let late = match fate {
            Fate::Arrives => 0,
            Fate::Twice => {
                self.trouble(ends);
                let double = Shared {
                    answered: false,
                    doubled: true,
                    ..command.clone()
                };
                let delay = self.random.between(1000, 3_000_000);
                self.trouble(self.time + delay);
                self.later(delay, Event::Command(Box::new(double)));
                0
            }
            // Most delays only hold up the commands behind.
            _ if self.random.chance(750) => self.random.between(0, 2 * micros(limit)),
            _ => {
                self.stall(origin, fate, &command);
                0
            }
        };
        let state = &mut self.clients[place].connections[connection];
        let arrival = (self.time + delay + late).max(state.last_arrival.0);
        let (deaf, answered) = (state.deaf, !state.mute);
        state.last_arrival.0 = arrival;
        if deaf || !answered || late > 0 {
            self.trouble(ends.max(arrival));
        }
        if !deaf {
            self.at(
                arrival,
                Event::Command(Box::new(Shared {
                    answered,
                    ..command
                })),
            );
        }
    }

    /// Stops all traffic on a connection. It is cut soon, or found to be silent.
    fn stall(&mut self, origin: Origin, fate: Fate, command: &Shared) {
        let Some((place, connection)) = self.traffic_of(origin) else {
            return;
        };
        let limit = command.expires.saturating_sub(self.time);
        self.trouble(self.time + SILENCE.max(3 * limit));
        let state = &mut self.clients[place].connections[connection];
        state.mute = true;
        state.deaf |= fate != Fate::Unanswered;
        if fate == Fate::Late {
            let delay = self.random.between(1000, 3_000_000);
            self.trouble(self.time + delay);
            self.later(
                delay,
                Event::Command(Box::new(Shared {
                    answered: false,
                    ..command.clone()
                })),
            );
        }
        if self.random.chance(500) {
            let delay = self.random.between(0, 2 * limit);
            self.later(delay, Event::Cut(origin));
        }
    }

    /// Checks that the server's clock ends a command no later than the client's clock. A command
    /// that was held up for longer than its time is already stale, and the server refuses it.
    fn check_not_after(&mut self, place: usize, written: &Written) {
        let client = &self.clients[place];
        // The clocks may have drifted apart since the call was handed to the outbox.
        let end = client.time_at(written.deadline) + micros(timing::drift(written.limit));
        let latest = self.server.clock_at(end);
        let is_stale = written.not_after < self.server.clock_at(self.time);
        if written.not_after > latest && !is_stale && !self.has_jumped {
            self.fail(format!("{written:?} may be done after {latest}"));
        }
    }

    fn cut(&mut self, origin: Origin) {
        if let Some((place, connection)) = self.traffic_of(origin) {
            self.disconnect(place, connection);
        }
    }

    /// Breaks a connection. Its last command may or may not have been written.
    fn break_traffic(&mut self, uuid: Uuid, mut traffic: Played) {
        let client = self.clients.iter().find(|client| client.uuid == uuid);
        let now = client.map_or(Moment::default(), |client| client.local(self.time));
        let mut outcomes = if self.random.chance(500) {
            traffic.turn(now).1
        } else {
            Outcomes::new()
        };
        let (others, wrong) = traffic.broken();
        outcomes.extend(others);
        wrong
            .into_iter()
            .for_each(|wrong| self.fail(format!("{uuid}: {wrong}")));
        for (call, outcome) in outcomes {
            self.later(0, Event::Told(uuid, call, outcome));
        }
    }

    fn invalidated(&mut self, origin: Origin, name: Name) {
        if let Some(at) = self.traffic_of(origin) {
            self.with_traffic(at, Played::heard);
        }
        self.input(origin.uuid, Input::Invalidated(Some(vec![name])));
    }

    fn wake_traffic(&mut self, place: usize) {
        for connection in 0..self.clients[place].connections.len() {
            let origin = self.clients[place].origin(connection);
            let Some(at) = self.traffic_of(origin) else {
                continue;
            };
            let (outcomes, silent) = self.with_traffic(at, Played::wake);
            self.tell(origin.uuid, outcomes);
            if silent {
                self.note(|| format!("{} finds {connection} silent", origin.uuid));
                self.disconnect(place, connection);
            } else {
                self.turn_soon(place, connection);
            }
        }
    }

    // ---- commands at the server ----

    /// Queues a command. The server runs one command at a time.
    fn command(&mut self, command: Shared) {
        self.queue.push_back(command);
        if self.queue.len() == 1 {
            self.take_next();
        }
    }

    fn take_next(&mut self) {
        let Some(next) = self.queue.front() else {
            return;
        };
        let takes = self.pace * next.written.calls.len() as u64;
        if self.pace > 30 {
            self.trouble(self.time + takes);
        }
        if takes == 0 {
            self.serve()
        } else {
            self.later(takes, Event::Serve)
        }
    }

    fn serve(&mut self) {
        let Some(command) = self.queue.pop_front() else {
            return;
        };
        let said = self.answer_to(&command);
        let Shared {
            origin,
            written,
            answered,
            ..
        } = command;
        self.note(|| format!("S says {said:?} to {written:?}"));
        if answered {
            let (to, server_ms) = (Box::new(written), self.server.now_ms());
            self.answer(
                origin,
                Event::Said {
                    origin,
                    to,
                    server_ms,
                    said,
                },
            );
        }
        self.take_next();
    }

    fn answer_to(&mut self, command: &Shared) -> Said {
        let Written {
            sort,
            calls,
            full,
            not_after,
            ..
        } = &command.written;
        let (script, is_many) = (script_of(&calls[0].1, *sort), sort.is_some());
        if !full && !self.server.scripts.contains(&script) {
            return Said::Error("NOSCRIPT No matching script. Please use EVAL.");
        }
        if calls.iter().any(|(_, op)| {
            names(op)
                .iter()
                .any(|name| Some(name) == self.denied.as_ref())
        }) {
            return Said::Error(DENIED);
        }
        if self.random.chance(self.faults.refusal) {
            return Said::Error(self.refusal(command));
        }
        self.server.scripts.insert(script);
        let is_acquire = matches!(*calls[0].1, Op::Acquire(_));
        if is_many && is_acquire && self.server.now_ms() > *not_after {
            return Said::Late;
        }
        let replies = calls
            .iter()
            .map(|(call, op)| self.reply_to(command, *call, op, is_many))
            .collect();
        self.spread_effects();
        Said::Done(replies)
    }

    /// An error for a command that the server refuses. A single call that changes or frees a lock
    /// gets only transient errors.
    fn refusal(&mut self, command: &Shared) -> &'static str {
        self.trouble(self.time + AGAIN);
        let Written { sort, calls, .. } = &command.written;
        let place = self.place_of(command.origin.uuid);
        let is_split = place.is_some_and(|place| self.clients[place].is_split());
        if is_split && self.random.chance(300) {
            return self.random.pick(&ELSEWHERE);
        }
        let may_last = sort.is_some() || matches!(*calls[0].1, Op::Acquire(_));
        if may_last && self.random.chance(400) {
            self.random.pick(&LASTING)
        } else {
            self.random.pick(&PASSING)
        }
    }

    /// The reply to one call of a command. A script for several locks does not handle every case.
    fn reply_to(
        &mut self,
        command: &Shared,
        call: CallId,
        op: &Arc<Op>,
        is_many: bool,
    ) -> Option<Reply> {
        let Shared {
            origin,
            ref written,
            expires,
            doubled,
            ..
        } = *command;
        if is_many && (self.server.is_odd(origin, op) || self.random.chance(self.faults.refusal)) {
            return None;
        }
        let (op, not_after) = (op.clone(), written.not_after);
        let copy = Copied {
            origin,
            call,
            op,
            not_after,
            expires,
            answered: false,
            doubled,
        };
        let reply = self.execute(&copy);
        self.note_done(&copy, &CallOutcome::Answered(reply.clone()));
        Some(reply)
    }

    fn said(&mut self, origin: Origin, to: &Written, server_ms: u64, said: &Said) {
        let Some(at) = self.traffic_of(origin) else {
            return;
        };
        let Answered {
            written,
            outcomes,
            moved,
            demoted,
        } = self.with_traffic(at, |traffic, now| traffic.replied(now, to, server_ms, said));
        written
            .into_iter()
            .for_each(|written| self.write(at, written));
        self.tell(origin.uuid, outcomes);
        moved.into_iter().for_each(|moved| self.send_on(at, moved));
        // The connection may have been replaced meanwhile.
        if self.traffic_of(origin).is_some() {
            if demoted {
                self.disconnect(at.0, at.1)
            } else {
                self.turn_soon(at.0, at.1)
            }
        }
    }

    /// Sends a call to another part of the server, with the rest of its time limit.
    fn send_on(
        &mut self,
        (place, connection): (usize, usize),
        Moved {
            call,
            op,
            limit,
            asking,
        }: Moved,
    ) {
        let to = (connection + 1) % self.clients[place].parts;
        let uuid = self.clients[place].uuid;
        if limit.is_zero() || self.clients[place].connections[to].traffic.is_none() {
            return self.outcome(uuid, call, CallOutcome::NotSent);
        }
        self.clients[place].calls.insert(call, to);
        self.with_traffic((place, to), |traffic, now| {
            traffic.send(now, call, op, limit, asking)
        });
        self.turn_soon(place, to);
    }

    /// Changes the server's speed, and sometimes makes it lose its scripts.
    fn change_pace(&mut self) {
        let pause = self.random.between(10_000, 600_000);
        self.later(pause, Event::Pace);
        if self.faults.slow > 0 && self.crowded {
            self.pace = self.random.pick(&PACES);
        }
        if self.faults.tenants {
            self.server.room = Some(self.random.pick(&[0, 1, 1, 2]));
            self.server.forget_tracked();
            self.spread_effects();
        }
        if self.random.chance(300) {
            self.note(|| "the server forgets the scripts".to_owned());
            self.server.scripts.clear();
        }
    }

    // ---- the inline connection ----

    /// A caller takes the inline connection for its request, in case the engine offers it a call.
    fn take_direct(&mut self, place: usize, id: RequestId) {
        let (wanted, polite) = (self.random.chance(800), self.random.chance(300));
        let direct = self.clients[place].direct.as_mut();
        if let Some(direct) = direct.filter(|direct| wanted && direct.user.is_none()) {
            (direct.user, direct.polite) = (Some(id), polite);
        }
    }

    /// A signal, or the end of the caller's wait, interrupts a long call. The server still runs it
    /// later.
    fn interrupt(&mut self, limit_at: u64, copy: Copied) {
        self.trouble(limit_at);
        let at = self.random.between(self.time, limit_at);
        self.at(at, Event::Limit(copy.origin.uuid, copy.call));
        let arrival = self.random.between(at, limit_at);
        self.at(arrival, Event::Request(Box::new(copy)));
    }

    /// Gives the inline connection back when its user waits for nothing more.
    fn give_back_direct(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let generation = client.connections[0].generation;
        let Some(direct) = client
            .direct
            .as_mut()
            .filter(|direct| direct.call.is_none())
        else {
            return;
        };
        direct.user = None;
        if direct.belongs_to != generation {
            self.close_direct(place);
        }
    }

    fn close_direct(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if client.direct.take().is_some() {
            // No client receives what still arrives on it.
            let at = client.at_direct();
            client.connections[at] = Connection::new();
            self.make_direct(place);
        }
    }

    /// Schedules a new inline connection. There is none with several servers.
    fn make_direct(&mut self, place: usize) {
        let client = &self.clients[place];
        if !client.is_split() {
            let at = client.at_direct();
            let delay = self.random.between(100, 20_000);
            self.later(delay, Event::Connect(place, at));
        }
    }

    fn spread_effects(&mut self) {
        let effects = self.server.take_effects();
        for (uuid, owner) in effects.bereaved {
            self.bereaved.insert((uuid, owner), self.time);
        }
        for (origin, name) in effects.invalidated {
            self.answer(origin, Event::Invalidate(origin, name));
        }
        for (uuid, name) in effects.published {
            // The waiters have to manage without this message.
            if self.random.chance(self.faults.lost_message) {
                continue;
            }
            let delay = self.delay();
            self.later(delay, Event::Message(uuid, name));
        }
        for name in effects.released {
            self.released.insert(name, self.time);
        }
    }

    fn message(&mut self, uuid: Uuid, channel: &Name) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        for name in self.clients[place].wanted.names(channel).to_vec() {
            self.input(uuid, Input::Message(name));
        }
    }

    fn connect(&mut self, place: usize, connection: usize) {
        let server_ms = self.server.now_ms();
        self.trouble(self.time);
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        let is_direct = connection == client.at_direct();
        if client.connections[connection].up
            || client.closed
            || is_direct && !client.connections[0].up
        {
            return;
        }
        client.last_generation += 1;
        let (generation, server_clock) = (client.last_generation, (server_ms, now));
        let sizes = client.sizes.filter(|_| !is_direct);
        let traffic =
            sizes.map(|sizes| Played::new(client.link(connection), sizes, server_ms, now));
        client.connections[connection] = Connection {
            up: true,
            generation,
            server_clock,
            traffic,
            ..Connection::new()
        };
        if is_direct {
            let belongs_to = client.connections[0].generation;
            client.direct = Some(Direct {
                belongs_to,
                ..Direct::default()
            });
            let uuid = client.uuid;
            return self.input(uuid, Input::Identity(generation));
        }
        let (uuid, link) = (client.uuid, client.link(connection));
        // An inline connection of the last generation is closed when its user is done with it.
        self.give_back_direct(place);
        self.make_direct(place);
        self.input(uuid, Input::Identity(generation));
        self.input(uuid, Input::Up(link));
    }

    /// The connection breaks. The fate of the calls on it is unknown.
    fn disconnect(&mut self, place: usize, connection: usize) {
        self.disconnect_for(place, connection, None);
    }

    /// The same, for this long.
    fn disconnect_for(&mut self, place: usize, connection: usize, away: Option<u64>) {
        let client = &mut self.clients[place];
        if !client.connections[connection].up {
            return;
        }
        if connection == client.at_direct() {
            return self.break_direct(place);
        }
        client.connections[connection].up = false;
        let traffic = client.connections[connection].traffic.take();
        let (origin, uuid, link) = (
            client.origin(connection),
            client.uuid,
            client.link(connection),
        );
        let on_it = client.calls.iter().filter(|(_, at)| **at == connection);
        let calls: Vec<CallId> = on_it.map(|(call, _)| *call).collect();
        self.server.disconnected(origin);
        // Some of what was on its way still arrives.
        let random = &mut self.random;
        self.events.retain(|_, event| match event {
            Event::Request(copy) if copy.origin == origin => random.chance(500),
            Event::Command(copy) if copy.origin == origin => random.chance(500),
            Event::Reply { origin: of, .. } | Event::Invalidate(of, _) => *of != origin,
            _ => true,
        });
        let gone = || {
            Input::Down(
                link,
                Error::new(ErrorKind::Unavailable, "the connection broke"),
            )
        };
        self.later(0, Event::Input(uuid, gone()));
        match traffic {
            Some(traffic) => self.break_traffic(uuid, traffic),
            None => {
                for call in calls {
                    let delay = self.random.between(0, 50_000);
                    self.later(delay, Event::Limit(uuid, call));
                }
            }
        }
        let away = away.unwrap_or_else(|| {
            let most = if self.random.chance(100) {
                4_000_000
            } else {
                800_000
            };
            self.random.between(1000, most)
        });
        if self.random.chance(300) {
            self.later(away / 2, Event::Input(uuid, gone()));
        }
        self.later(away, Event::Connect(place, connection));
        self.trouble(self.time + away);
    }

    /// The inline connection breaks. A caller that waits on it notices, otherwise its next user
    /// does.
    fn break_direct(&mut self, place: usize) {
        let client = &self.clients[place];
        let uuid = client.uuid;
        if let Some(call) = client.direct.as_ref().and_then(|direct| direct.call) {
            self.at(self.time, Event::Limit(uuid, call));
        }
    }

    /// All connections break.
    fn disconnect_all(&mut self, place: usize) {
        for connection in 0..self.clients[place].connections.len() {
            self.disconnect(place, connection);
        }
    }

    fn tell_routes(&mut self, place: usize) {
        let client = &self.clients[place];
        let (uuid, routes) = (client.uuid, client.routes(&self.names));
        self.input(uuid, Input::Routes(routes));
        // Links with new ids have to be reported as up.
        let client = &self.clients[place];
        let up = (0..client.parts).filter(|at| client.connections[*at].up);
        let up: Vec<LinkId> = up.map(|at| client.link(at)).collect();
        up.into_iter()
            .for_each(|link| self.input(uuid, Input::Up(link)));
    }

    /// Moves a name to another part of the server.
    fn reroute(&mut self, place: usize) {
        let name = self.random.index(self.names.len());
        let client = &mut self.clients[place];
        client.routes[name] = (client.routes[name] + 1) % client.parts;
        client.join_slots(&self.names);
        if client.is_split() && !client.closed {
            self.tell_routes(place);
        }
    }

    // ---- the pub/sub connection ----

    /// Schedules a subscription change. The changes reach the server in order.
    fn change_channel(&mut self, place: usize, event: Event) {
        let delay = self.delay();
        let client = &mut self.clients[place];
        client.last_subscription = (self.time + delay).max(client.last_subscription);
        let at = client.last_subscription;
        self.at(at, event);
    }

    fn subscribe(&mut self, uuid: Uuid, name: Name, topic: Topic) {
        self.server
            .subscribers
            .insert((channel_of(uuid, topic, &name), uuid));
        let delay = self.delay();
        self.later(delay, Event::Input(uuid, Input::Subscribed(name)));
    }

    /// The connection breaks and is made again. Messages in between are lost.
    fn interrupt_channels(&mut self, place: usize) {
        let uuid = self.clients[place].uuid;
        self.server
            .subscribers
            .retain(|(_, subscriber)| *subscriber != uuid);
        self.events
            .retain(|_, event| !matches!(event, Event::Subscribe(of, ..) if *of == uuid));
        let gap = self.random.between(1000, 1_000_000);
        self.trouble(self.time + gap);
        for (name, topic) in self.clients[place].channels.clone() {
            self.clients[place].last_subscription = self.time + gap;
            self.later(gap, Event::Subscribe(uuid, name, topic));
        }
    }

    // ---- callers ----

    /// Many callers act at the same moment.
    fn rush(&mut self, place: usize) {
        let pause = self.random.between(1000, 100_000);
        self.later(pause, Event::Rush(place));
        let count = self.clients[place].callers.len();
        let (first, many) = (
            self.random.index(count),
            self.random.pick(&[1, 8, 64]).min(count),
        );
        (first..first + many).for_each(|caller| self.act_once(place, caller % count));
    }

    fn act(&mut self, place: usize, caller: usize) {
        let pause = self
            .random
            .between(1000, if self.hurried { 20_000 } else { 250_000 });
        let next = self.time + pause;
        let next = if self.bursts {
            next.next_multiple_of(BURST)
        } else {
            next
        };
        self.at(next, Event::Act(place, caller));
        self.act_once(place, caller);
    }

    fn act_once(&mut self, place: usize, caller: usize) {
        self.last_uuid += 1;
        let value = |(name, lock): (&Name, &Lock)| Some((name.clone(), lock.value.clone()?));
        let token = self.server.locks.iter().find_map(value);
        let (random, names) = (&mut self.random, &self.names);
        let deed = self.clients[place].callers[caller].deed(random, names, self.last_uuid, token);
        self.do_deed(place, caller, deed);
    }

    fn give_back(&mut self, place: usize, caller: usize) {
        let deed = self.clients[place].callers[caller].give_back(&mut self.random);
        self.do_deed(place, caller, deed);
    }

    fn do_deed(&mut self, place: usize, caller: usize, deed: Deed) {
        let uuid = self.clients[place].uuid;
        match deed {
            Deed::Ask(request) => drop(self.ask(place, caller, request)),
            Deed::Tell(input) => self.input(uuid, input),
            Deed::Nothing => {}
        }
    }

    fn ask(&mut self, place: usize, caller: usize, request: Request) -> RequestId {
        let client = &mut self.clients[place];
        client.last_request += 1;
        let id = client.last_request;
        client.asked.insert(id, caller);
        client.renewals.requests += 1;
        client.callers[caller].asked.push(id);
        let uuid = client.uuid;
        if let Request::Acquire {
            name, key, terms, ..
        } = &request
        {
            let engine = &client.engine;
            let has = |kind| {
                let hold = engine.names.hold_of(&engine.holds, name, *key, kind);
                hold.is_some()
            };
            if has(Kind::Write) || terms.kind == Kind::Read && has(Kind::Read) {
                self.reentering.insert((uuid, id));
            }
        }
        if matches!(&request, Request::Acquire { .. }) {
            self.asked_at.insert((uuid, id), self.time);
        }
        if matches!(&request, Request::Acquire { terms, .. } if terms.replicas > 0) {
            self.wants_replica.insert((uuid, id));
        }
        if matches!(&request, Request::Acquire { wait, .. } if *wait != Some(Duration::ZERO)) {
            self.patient.insert((uuid, id));
        }
        if let Request::Acquire {
            name, wait, terms, ..
        } = &request
        {
            let queues = terms.kind.takes_permits() || terms.kind == Kind::Fair;
            if *wait == Some(Duration::ZERO) && !terms.steal && !queues && self.is_free(name) {
                self.free_tries.insert((uuid, id), name.clone());
            }
        }
        self.take_direct(place, id);
        let released = match &request {
            Request::Release(Target::Level { owner, .. }) => Some((uuid, *owner)),
            _ => None,
        };
        let before = released.and_then(|hold| self.passed.get(&hold).copied());
        self.input(uuid, Input::Request { id, request });
        if let Some((_, owner)) = released.filter(|hold| self.passed.get(hold).copied() != before) {
            self.releases.insert((uuid, id), (owner, self.time));
        }
        id
    }

    fn completed(&mut self, place: usize, id: RequestId, result: Answer<Done>) {
        let client = &mut self.clients[place];
        client.stand_back.remove(&id);
        let Some(at) = client.asked.remove(&id) else {
            return self.fail(format!("request {id} was answered twice, or never made"));
        };
        let (uuid, now) = (client.uuid, client.local(self.time));
        let caller = &mut client.callers[at];
        caller.asked.retain(|asked| *asked != id);
        let release = self.releases.remove(&(uuid, id));
        let asked_at = self.asked_at.remove(&(uuid, id)).unwrap_or_default();
        let free_try = self.free_tries.remove(&(uuid, id));
        match result {
            Ok(Done::Granted { cell, level }) if cell.kind.is_several() => {
                caller.granted(cell.clone(), level);
                self.granted_all(place, &cell);
                if self.hurried {
                    let pause = self.random.between(10, 3000);
                    self.later(pause, Event::GiveBack(place, at));
                }
            }
            Ok(Done::Granted { cell, level }) => {
                caller.granted(cell.clone(), level);
                client.renewals.last.entry(cell.owner).or_insert(now);
                if !client.cells.iter().any(|known| Arc::ptr_eq(known, &cell)) {
                    // A writer that asks to read waits for no other writer, also when it has lost its
                    // lock while its call was in flight.
                    let is_writer = self.under.contains(&(uuid, cell.owner));
                    // A re-entry whose hold ends meanwhile goes to the end of the queue.
                    let waits = |writer: &RequestId| !self.reentering.contains(&(uuid, *writer));
                    let overtaken = client.engine.overtaken(id, &cell).filter(waits);
                    // It may enter the hold that a multi lock of its key has as a part, or had.
                    let reenters = self.reentering.contains(&(uuid, id));
                    let is_first = cell.count() == 1 && !reenters;
                    if let Some(writer) = overtaken.filter(|_| !is_writer && is_first) {
                        let text = format!("{cell:?} of {id} overtakes the writer {writer}");
                        self.wrong.get_or_insert(text);
                    }
                    let patient = self.patient.contains(&(uuid, id));
                    if let Some(before) = client.engine.before(id, &cell).filter(|_| patient) {
                        let text = format!("{cell:?} of {id} overtakes {before}");
                        self.wrong.get_or_insert(text);
                    }
                    if caller_before(client, &cell) {
                        *self.passed.entry((uuid, cell.owner)).or_default() += 1;
                    } else {
                        self.won.insert((uuid, cell.owner), self.time);
                    }
                    client.cells.push(cell.clone());
                    self.check_order(&cell, asked_at);
                    if self.wants_replica.contains(&(uuid, id)) {
                        self.replicated.insert((uuid, cell.owner));
                    }
                    self.check_token(uuid, &cell);
                }
                if !cell.is_held(now) {
                    self.fail(format!("{cell:?} was granted and is not held"));
                }
                if self.hurried {
                    let pause = self.random.between(10, 3000);
                    self.later(pause, Event::GiveBack(place, at));
                }
            }
            Ok(Done::Released) => self.check_release(uuid, release),
            Ok(Done::Closed(names)) => self.closed(place, names),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Internal => self.fail(error.to_string()),
            Err(error) if error.kind() == ErrorKind::Timeout => {
                if let Some(name) = free_try.filter(|name| self.is_free(name)) {
                    self.fail(format!("{id} of {uuid} was refused {name}, which was free"));
                }
            }
            Err(_) => {}
        }
    }

    /// A caller in fair mode was granted what it asked for at this time. The owners that had a place by
    /// then came before it, and have it no more.
    fn check_order(&mut self, cell: &HoldCell, asked_at: u64) {
        if cell.kind != Kind::FairSemaphore {
            return;
        }
        let now_ms = self.server.now_ms();
        let queue = self.server.queues.get(&cell.name);
        let overtaken = queue.into_iter().flatten().find(|place| {
            // A replica that takes over may bring a place back.
            let waits = place.since < asked_at && place.due_ms > now_ms;
            waits && !self.revived.contains(&place.owner)
        });
        if let Some(place) = overtaken {
            let text = format!("{cell:?}, asked for at {asked_at}, overtakes {place:?}");
            self.wrong.get_or_insert(text);
        }
    }

    /// A multi lock was granted: its caller relies on each part.
    fn granted_all(&mut self, place: usize, cell: &Arc<HoldCell>) {
        let client = &mut self.clients[place];
        let (uuid, now) = (client.uuid, client.local(self.time));
        if cell.parts().is_empty() || !cell.is_held(now) {
            return self.fail(format!("{cell:?} was granted and is not held"));
        }
        self.counts.together += 1;
        for part in cell.parts() {
            let client = &mut self.clients[place];
            client.renewals.last.entry(part.owner).or_insert(now);
            if client.cells.iter().any(|known| Arc::ptr_eq(known, part)) {
                continue;
            }
            if caller_before(client, part) {
                *self.passed.entry((uuid, part.owner)).or_default() += 1;
            } else {
                self.won.insert((uuid, part.owner), self.time);
            }
            client.cells.push(part.clone());
            self.check_token(uuid, part);
        }
    }

    /// Checks what closing could not release: what the server refuses, and what it waited for in
    /// vain. The process ends with these locks, as one that dies.
    fn closed(&mut self, place: usize, mut unreleased: Vec<Name>) {
        unreleased.retain(|name| Some(name) != self.denied.as_ref());
        let client = &self.clients[place];
        let now = client.local(self.time);
        let early: Vec<&Name> = unreleased
            .iter()
            .filter(|name| !client.may_leave(&self.names, name, now))
            .collect();
        if !early.is_empty() {
            return self.fail(format!("not released: {early:?}"));
        }
        if !unreleased.is_empty() {
            self.note_legacies(place);
            self.clients[place].unreleased = unreleased;
        }
    }

    /// Checks that a release after a hand-over is not confirmed if the lock was gone before. The
    /// effect of an unanswered copy cannot be known.
    fn check_release(&mut self, uuid: Uuid, release: Option<(OwnerId, u64)>) {
        let Some((owner, asked)) = release.filter(|(_, asked)| self.disturbed < *asked) else {
            return;
        };
        let won = self.won.get(&(uuid, owner)).copied().unwrap_or_default();
        if let Some(gone) = self
            .bereaved
            .get(&(uuid, owner))
            .filter(|gone| (won..asked).contains(*gone))
        {
            let text = format!(
                "{uuid} was told that {owner} was released, which was gone {} us before",
                asked - gone
            );
            self.fail(text);
        }
    }

    /// Checks that tokens grow from grant to grant, except for grants known to be void.
    fn check_token(&mut self, uuid: Uuid, cell: &Arc<HoldCell>) {
        let Some(token) = cell.token() else {
            return;
        };
        let highest = self.highest_token.entry(cell.name.clone()).or_default();
        if token <= *highest && !self.bereaved.contains_key(&(uuid, cell.owner)) {
            let text = format!("{cell:?}: token {token} after {highest}");
            return self.fail(text);
        }
        *highest = token.max(*highest);
    }

    /// Checks the reason of a loss: without faults and strangers only three reasons are possible.
    fn lost(&mut self, cell: &Arc<HoldCell>, reason: LostReason) {
        let usual = matches!(
            reason,
            LostReason::Expired | LostReason::Forced | LostReason::Closed
        );
        let is_it = |owner: OwnerId| {
            owner == cell.owner || cell.parts().iter().any(|part| part.owner == owner)
        };
        let place = self.clients.iter().position(|client| {
            let mut wholes = client.callers.iter().flat_map(Caller::wholes);
            wholes.any(|whole| Arc::ptr_eq(whole, cell))
        });
        if let Some(now) = place.map(|place| self.clients[place].local(self.time)) {
            let held = cell.parts().iter().filter(|part| part.is_held(now));
            if held.count() >= cell.needed() {
                self.fail(format!("{cell:?} is lost and has enough parts"));
            }
        }
        let by_force = self.bereaved.keys().any(|(_, owner)| is_it(*owner));
        if !usual && !by_force && self.disturbed == 0 {
            self.fail(format!("{cell:?} was lost: {reason}"));
        }
    }

    // ---- disturbances ----

    fn disturb(&mut self) {
        let pause = self.random.between(1000, 2 * self.faults.disturbance);
        self.later(pause, Event::Disturb);
        self.trouble(self.time);
        let place = usize::try_from(self.random.below(self.clients.len() as u64)).unwrap();
        if self.faults.jumps && self.random.chance(200) {
            return self.jump();
        }
        if self.faults.restarts && self.random.chance(100) {
            return self.restart_server();
        }
        if self.faults.failovers && self.random.chance(200) {
            return self.fail_over();
        }
        match self.random.below(10) {
            0..4 => {
                let connection = self.random.index(self.clients[place].connections.len());
                self.disconnect(place, connection);
            }
            4..6 => self.interrupt_channels(place),
            6 => {
                let stop = self.random.between(1000, 2_500_000);
                // One stop at a time, so that events that wait for the end of a stop keep their
                // order.
                if self.clients[place].stopped_until <= self.time {
                    self.clients[place].stopped_until = self.time + stop;
                }
                self.trouble(self.time + stop);
                self.note(|| format!("{place} is stopped for {stop} us"));
            }
            7 => self.restart(place),
            _ => self.reroute(place),
        }
    }

    /// A process dies, and a new one takes its place.
    fn restart(&mut self, place: usize) {
        let client = &self.clients[place];
        let uuid = client.uuid;
        let origins: Vec<Origin> = (0..client.connections.len())
            .map(|at| client.origin(at))
            .collect();
        self.note(|| format!("{uuid} dies"));
        self.note_legacies(place);
        origins
            .into_iter()
            .for_each(|origin| self.server.disconnected(origin));
        self.server
            .subscribers
            .retain(|(_, subscriber)| *subscriber != uuid);
        self.events.retain(|_, event| match event {
            Event::Act(of, _)
            | Event::GiveBack(of, _)
            | Event::Connect(of, _)
            | Event::Rush(of) => *of != place,
            Event::Subscribe(of, ..) => *of != uuid,
            _ => true,
        });
        self.clients[place] = self.new_client();
        self.start(place);
    }

    /// Records the locks of a dying client. Each may stay for its longest lease after the last
    /// moment at which that lease may be set; an adaptive lock for the lease that the server has
    /// learnt.
    fn note_legacies(&mut self, place: usize) {
        let client = &self.clients[place];
        let holds = client
            .engine
            .holds
            .iter()
            .filter(|(_, hold)| kind_of(&hold.cell.name) != Kind::Adaptive);
        let end = |hold: &Hold| {
            // A call that waits for replicas has twice the time.
            let (longest, limit) = (
                hold.longest(),
                timing::limit(hold.longest(), Duration::ZERO) * 2,
            );
            let (others, margin) = match topic_of(&hold.cell.name) {
                Topic::Lock | Topic::Place(_) => (0, 0),
                Topic::ReadWrite => (DEAD_READERS, 0),
                Topic::Semaphore => (0, MARGIN_MS * 1000),
                Topic::Latch => panic!("a latch has no holds"),
            };
            let lives = longest + limit + timing::drift(longest);
            self.time + margin + micros(lives).max(others)
        };
        self.legacies
            .extend(holds.map(|(owner, hold)| ((client.uuid, owner), end(hold))));
    }

    /// The server restarts without its data.
    fn restart_server(&mut self) {
        self.note(|| "the server starts again, empty".to_owned());
        self.server.restart();
        self.has_forgotten = true;
        self.forget_tokens();
        self.leave_server();
    }

    /// A replica without the last writes takes over. The next command corrects what it brings back,
    /// or it ends with its lease.
    fn fail_over(&mut self) {
        let outdated = self.server.fail_over();
        self.note(|| format!("a replica takes over, which is wrong about {outdated:?}"));
        self.excused.extend(outdated.miscounted);
        let told = |(uuid, owner): &(Uuid, OwnerId)| {
            let client = self.clients.iter().find(|client| client.uuid == *uuid);
            client.is_some_and(|client| {
                client
                    .engine
                    .tells_of_release(*owner, client.local(self.time))
            })
        };
        let (told, others): (Vec<_>, Vec<_>) = outdated.revived.into_iter().partition(told);
        self.revived.extend(told);
        self.excused.extend(others);
        // So does the mark of a writer that was let in since.
        let is_in = |(uuid, owner): &(Uuid, OwnerId)| {
            let client = self.clients.iter().find(|client| client.uuid == *uuid);
            client.is_some_and(|client| client.engine.holds.contains_key(owner))
        };
        let marks = self.server.marks.keys();
        let marked = marks.flat_map(|name| self.server.marked(name).map(|(me, _)| me));
        let marked: Vec<_> = marked.filter(is_in).collect();
        self.excused.extend(marked);
        self.leave_server();
        self.check_replicated();
    }

    /// Checks that a lock acknowledged by a replica is not lost.
    fn check_replicated(&mut self) {
        let mut wrong = None;
        for client in &self.clients {
            let now = client.local(self.time);
            for cell in client.cells.iter().filter(|cell| cell.is_held(now)) {
                let me = (client.uuid, cell.owner);
                if self.replicated.contains(&me) && self.bereaved.get(&me) == Some(&self.time) {
                    wrong = Some(format!(
                        "{cell:?} is lost with its server, though a replica had it"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// Another server answers. Everything on its way to the old one is lost.
    fn leave_server(&mut self) {
        self.events.retain(|_, event| {
            !matches!(event, Event::Request(_) | Event::Command(_) | Event::Serve)
        });
        self.queue.clear();
        for place in 0..self.clients.len() {
            self.disconnect_all(place);
            self.interrupt_channels(place);
        }
        self.spread_effects();
    }

    /// The server's clock jumps. The jump is small enough to wait for the locks that live longer
    /// because of it.
    fn jump(&mut self) {
        let ms = self.random.between(1, 3000).cast_signed() * self.random.pick(&[-1, 1]);
        self.note(|| format!("the server's clock jumps by {ms} ms"));
        self.has_jumped |= ms < 0;
        self.forget_tokens();
        self.jumped
            .extend(self.server.held().filter_map(|(_, lock)| lock.owner));
        self.server.jump(ms);
        self.trouble(self.time + 3_000_000);
        self.spread_effects();
    }

    /// Tokens grow across the loss of their counters only if the clock does not go back.
    fn forget_tokens(&mut self) {
        if self.has_jumped && self.has_forgotten {
            self.highest_token.clear();
        }
    }

    /// Another library or a person changes a key.
    fn stranger(&mut self) {
        let pause = self.random.between(1000, 1_500_000);
        self.later(pause, Event::Stranger);
        let name = self.names[usize::try_from(self.random.below(self.names.len() as u64)).unwrap()]
            .clone();
        let kind = self.random.below(6);
        self.note(|| format!("a stranger does {kind} to {name}"));
        match kind {
            _ if topic_of(&name) == Topic::Semaphore => {
                if kind == 0 && self.random.chance(500) {
                    self.server.delete(&name, None);
                } else {
                    let ms = self.random.between(1, 1500);
                    self.server.stranger_at_semaphore(&name, kind, ms);
                }
            }
            0 => drop(self.server.delete(&name, None)),
            1..4 if topic_of(&name) == Topic::ReadWrite => {
                let (ms, reads) = (self.random.between(1, 1500), self.random.chance(500));
                self.server.take_side(&name, reads, ms);
            }
            1..4 => {
                let ms = self.random.between(1, 1500);
                self.server.take(&name, ms);
            }
            4 if topic_of(&name) == Topic::ReadWrite => {
                self.trouble(self.time);
                self.server.evict(&name, self.random.index(4));
            }
            _ => self.server.give_back(&name),
        }
        self.spread_effects();
    }

    // ---- the end ----

    /// Ends all faults. Some clients are closed, a few of them during an outage; in the others
    /// every caller leaves.
    fn calm_down(&mut self) {
        self.note(|| "calm".to_owned());
        let breaks = self.faults.disturbance > 0 || self.faults.loses_calls();
        self.faults = Faults::NONE;
        let goes_on = |event: &Event| {
            !matches!(
                event,
                Event::Act(..) | Event::Rush(_) | Event::Disturb | Event::Stranger | Event::Pace
            )
        };
        self.events.retain(|_, event| goes_on(event));
        self.pace = 0;
        // Disconnected or stopped clients recover by themselves.
        let end = self.time + 5_000_000;
        let closing: Vec<bool> = self
            .clients
            .iter()
            .map(|_| self.random.chance(500))
            .collect();
        if breaks && self.random.chance(300) {
            let before = self.random.between(0, LAST_OUTAGE);
            self.run_calmly(end - before);
            let closing = (0..closing.len()).filter(|place| closing[*place]);
            closing.for_each(|place| self.begin_last_outage(place));
        }
        self.run_calmly(end);
        for (place, closes) in closing.into_iter().enumerate() {
            if closes {
                self.clients[place].closing = true;
                self.ask(
                    place,
                    0,
                    Request::Close {
                        limit: Duration::from_secs(10),
                    },
                );
            } else {
                self.all_go(place);
            }
        }
    }

    fn run_calmly(&mut self, end: u64) {
        self.run_until(end).map_err(|wrong| self.fail(wrong)).ok();
    }

    /// The servers of a client that is about to close are out of reach. Some of its callers have
    /// just released their locks.
    fn begin_last_outage(&mut self, place: usize) {
        for caller in 0..self.clients[place].callers.len() {
            if self.random.chance(300) {
                self.give_back(place, caller);
            }
        }
        for connection in 0..self.clients[place].connections.len() {
            let away = self.random.between(1000, LAST_OUTAGE);
            self.disconnect_for(place, connection, Some(away));
        }
    }

    fn all_go(&mut self, place: usize) {
        let uuid = self.clients[place].uuid;
        let asked: Vec<RequestId> = self.clients[place].asked.keys().copied().collect();
        for id in asked {
            self.input(uuid, Input::Cancel { id });
        }
        for caller in 0..self.clients[place].callers.len() {
            for (owner, level) in std::mem::take(&mut self.clients[place].callers[caller].granted) {
                self.input(uuid, Input::Dropped { owner, level });
            }
        }
    }

    // ---- checks ----

    fn fail(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_holds();
        self.check_wholes();
        self.check_counts();
        self.check_sides();
        self.check_permits();
        self.check_ghosts();
        self.check_places();
        self.check_marks();
        self.check_waiters();
        self.check_tries();
        self.check_renewals();
        self.check_turns();
        self.check_calls();
        self.check_looks();
        self.check_closing();
        match self.wrong.take() {
            Some(wrong) => {
                self.note(|| wrong.clone());
                Err(wrong)
            }
            None => Ok(()),
        }
    }

    /// Whether nobody has this lock, and no writer keeps readers back.
    fn is_free(&self, name: &Name) -> bool {
        let server = &self.server;
        let has = server.locks.contains_key(name) || server.shared.contains_key(name);
        !has && server.marked_until(name).is_none()
    }

    /// Looks which tries have seen their lock taken.
    fn check_tries(&mut self) {
        let mut tries = std::mem::take(&mut self.free_tries);
        tries.retain(|_, name| self.is_free(name));
        self.free_tries = tries;
    }

    /// Every lock that a client reports as held is held on the server.
    fn check_holds(&mut self) {
        let mut wrong = None;
        for client in &mut self.clients {
            let now = client.local(self.time);
            let let_go = &mut client.let_go;
            client.cells.retain(|cell| {
                let is_kept = cell.is_held(now) || cell.count() > 0;
                if !is_kept {
                    let_go.entry(cell.owner).or_insert(now);
                }
                is_kept
            });
            let holds = &client.engine.holds;
            let_go.retain(|owner, _| {
                let hold = holds.get(owner);
                hold.is_some_and(|hold| hold.tasks().next().is_some())
            });
            for cell in client.cells.iter().filter(|cell| cell.is_held(now)) {
                let me = (client.uuid, cell.owner);
                let lock = self.server.lock_of(&cell.name, me);
                if lock.is_some() || self.jumped.contains(&me) {
                    continue;
                }
                match self.bereaved.get(&me) {
                    None => {
                        wrong = Some(format!(
                            "{} calls {cell:?} held; the server has {:?} {:?}",
                            client.uuid,
                            self.server.locks.get(&cell.name),
                            self.server.shared.get(&cell.name)
                        ))
                    }
                    Some(since)
                        if client.tracks
                            && !self.tenants
                            && !self.own_copies.contains(&me)
                            && (!cell.kind.takes_permits()
                                || client.engine.renewed_lease(cell.owner).is_some())
                            && self.time
                                > *since.max(&self.disturbed)
                                    + allowed(self.told_within, &cell.name)
                                    + if cell.kind.is_shared() {
                                        TOLD_READER
                                    } else {
                                        0
                                    }
                                    // Two renewals in a row came too late.
                                    + if holds.get(&cell.owner).is_some_and(|hold| hold.stale) {
                                        AGAIN
                                    } else {
                                        0
                                    } =>
                    {
                        wrong = Some(format!("{} was not told of {cell:?}", client.uuid));
                    }
                    Some(_) => {}
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// A multi lock with a lost part, or a quorum with too many of them, is told to be lost.
    fn check_wholes(&mut self) {
        let mut wrong = None;
        let callers = self.clients.iter().flat_map(|client| &client.callers);
        for cell in callers.flat_map(Caller::wholes) {
            let live = cell.parts().iter();
            let live = live.filter(|part| part.told_lost().is_none()).count();
            if live < cell.needed() && cell.told_lost().is_none() {
                wrong = Some(format!("{cell:?} has lost too many parts and is not lost"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// Beside a writer there are only readers of its own client, and of its own key.
    fn check_sides(&mut self) {
        let mut wrong = None;
        for (name, shared) in &self.server.shared {
            let writers = || shared.owners.iter().filter(|lock| !lock.reads);
            let uuid = |lock: &Lock| lock.owner.map(|(uuid, _)| uuid);
            let of_one = shared
                .owners
                .iter()
                .all(|lock| uuid(lock) == uuid(&shared.owners[0]));
            let writes = writers().count();
            if writes > 1 || shared.is_written != (writes == 1) || (writes == 1 && !of_one) {
                wrong = Some(format!("{name}: {shared:?}"));
            }
            let Some((uuid, writer)) = writers().next().and_then(|lock| lock.owner) else {
                continue;
            };
            let Some(client) = self.clients.iter().find(|client| client.uuid == uuid) else {
                continue;
            };
            let now = client.local(self.time);
            let held = |owner: OwnerId| {
                client
                    .cells
                    .iter()
                    .find(|cell| cell.owner == owner && cell.is_held(now))
            };
            let readers = shared
                .owners
                .iter()
                .filter(|lock| lock.reads)
                .filter_map(|lock| held(lock.owner?.1));
            let key = held(writer).map(|cell| cell.key);
            for reader in readers {
                if key.is_some_and(|key| key != reader.key) && !self.is_excused((uuid, writer)) {
                    wrong = Some(format!("{reader:?} is beside the writer {writer}"));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No more permits are out than there are: by the record of the server, and as holders believe
    /// who have not lost them to a fail-over, to a jump of the clock or to somebody else.
    fn check_permits(&mut self) {
        let (mut wrong, limit) = (None, i64::from(LIMIT));
        for (name, semaphore) in &self.server.semaphores {
            let Semaphore { free, taken } = semaphore;
            let sum = semaphore.sum();
            if free.is_some_and(|free| free < 0 || free + sum != limit) || sum > limit {
                wrong = Some(format!("{name}: {free:?} are free beside {taken:?}"));
            }
            let mut believed = Vec::new();
            for client in &self.clients {
                let now = client.local(self.time);
                let held = client.cells.iter().filter(|cell| {
                    let me = (client.uuid, cell.owner);
                    let excused = self.bereaved.contains_key(&me) || self.jumped.contains(&me);
                    cell.name == *name && cell.is_held(now) && !excused
                });
                believed.extend(held.map(|cell| (client.uuid, cell)));
            }
            let permits = believed
                .iter()
                .map(|(_, cell)| i64::from(cell.form().permits));
            if permits.sum::<i64>() > limit {
                wrong = Some(format!("{name}: too many are out: {believed:?}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// The server's count is the number of levels.
    fn check_counts(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner.filter(|me| !self.is_excused(*me)) else {
                continue;
            };
            let client = self.clients.iter().find(|client| client.uuid == uuid);
            match client.and_then(|client| client.engine.settled_count(owner)) {
                Some(count) if count != lock.count => {
                    wrong = Some(format!("{name}: {lock:?} has {count} levels"));
                }
                _ => {}
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    fn is_excused(&self, me: (Uuid, OwnerId)) -> bool {
        self.excused.contains(&me) || self.jumped.contains(&me)
    }

    /// While nothing is wrong, the watchdog never lets a lock come near its expiry.
    fn check_renewals(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner.filter(|me| !self.jumped.contains(me)) else {
                continue;
            };
            let client = self.clients.iter().find(|client| client.uuid == uuid);
            let Some(lease) = client.and_then(|client| client.engine.renewed_lease(owner)) else {
                continue;
            };
            let calm = self.time.saturating_sub(self.disturbed)
                > u64::try_from(lease.as_micros()).unwrap();
            if calm && self.server.left(name, lock) < least(name, lease) {
                wrong = Some(format!("{name}: {lock:?} is not renewed in time"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client hands a lock to its own waiters for longer than allowed.
    fn check_turns(&mut self) {
        let passed = |lock: &Lock| {
            lock.owner
                .and_then(|me| self.passed.get(&me))
                .copied()
                .unwrap_or(0)
        };
        let greedy = self
            .server
            .locks
            .iter()
            .find(|(_, lock)| lock.handovers + passed(lock) > HANDOVERS);
        let wrong = greedy.map(|(name, lock)| format!("{name}: {lock:?} is not given to others"));
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// While the only problem is that the server tracks too many keys, there are about as many
    /// renewals as leases need.
    fn check_looks(&mut self) {
        let few = |client: &&Client| client.renewals.extra > client.renewals.allowed();
        let Some(client) = self.clients.iter().find(few).filter(|_| self.tenants) else {
            return;
        };
        let Renewals {
            planned,
            extra,
            requests,
            holds,
            ..
        } = client.renewals;
        let text = format!(
            "{extra} looks beside {planned} renewals of {holds} holds, with {requests} requests"
        );
        let uuid = client.uuid;
        self.fail(format!("{uuid}: {text}"));
    }

    /// Every call has its outcome in time.
    fn check_calls(&mut self) {
        let mut wrong = None;
        for client in &self.clients {
            let running = self.time.saturating_sub(ROUNDING);
            if client.stopped_until >= running {
                continue;
            }
            let now = client.local(running);
            let traffic = client
                .connections
                .iter()
                .filter_map(|connection| connection.traffic.as_ref());
            if let Some(call) = traffic.filter_map(|traffic| traffic.overdue(now)).next() {
                wrong = Some(format!(
                    "{}: {call} has no outcome in its time",
                    client.uuid
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client goes on closing when callers have waited long enough for all that is left.
    fn check_closing(&mut self) {
        let running = self.time.saturating_sub(ROUNDING);
        let mut wrong = None;
        let closing = |client: &&Client| client.closing && !client.closed;
        for client in self.clients.iter().filter(closing) {
            let now = client.local(running);
            let left = client.engine.unsettled();
            let waited = |name: &Name| {
                let outage = client.outage(&self.names, name, now);
                outage.is_some_and(|outage| outage >= OUTAGE)
            };
            if client.calls.is_empty() && left.iter().all(|name| waited(name)) {
                wrong = Some(format!("{} closes and waits for {left:?}", client.uuid));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// The engine knows every lock of its client on the server. Locks that no caller wants are gone
    /// soon.
    fn check_ghosts(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner else {
                continue;
            };
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let Some(client) = self.clients.iter().find(lives) else {
                let others = self.server.shared.get(name).map(|shared| &shared.owners);
                let lives_on = |other: &Lock| {
                    other.owner.is_none_or(|(uuid, _)| {
                        self.clients.iter().any(|client| client.uuid == uuid)
                    })
                };
                if others.is_some_and(|others| others.iter().any(lives_on)) {
                    let end = self.legacies.entry((uuid, owner)).or_default();
                    *end = (*end).max(self.time + DEAD_READERS);
                }
                let over = self
                    .legacies
                    .get(&(uuid, owner))
                    .is_some_and(|end| self.time > *end);
                if over && !self.is_excused((uuid, owner)) {
                    wrong = Some(format!("{name}: {lock:?} lives on, whose owner has died"));
                }
                continue;
            };
            let is_ghost = !client.engine.wants(owner);
            if !is_ghost || self.is_excused((uuid, owner)) {
                continue;
            }
            let ends = self.server.left(name, lock) <= client.ends_soon(owner);
            let known = client.engine.cleanups.is_for(owner)
                || if topic_of(name) == Topic::Semaphore {
                    ends
                } else {
                    self.server.ttl(lock) <= client.ends_soon(owner)
                };
            if !known && !self.revived.contains(&(uuid, owner)) {
                wrong = Some(format!("{name}: {lock:?} is forgotten"));
            }
            let since = *self.ghosts.entry((uuid, owner)).or_insert(self.time);
            // Permits that end by themselves are kept for the margin.
            let margin = if topic_of(name) == Topic::Semaphore && ends {
                MARGIN_MS * 1000
            } else {
                0
            };
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) + margin {
                wrong = Some(format!("{name}: {lock:?} stays since {since}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// Nobody stays in a queue who does not wait any more.
    fn check_places(&mut self) {
        let mut wrong = None;
        let now_ms = self.server.now_ms();
        let places = self.server.queues.iter();
        for (name, place) in places.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
            let (uuid, owner) = place.owner;
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let client = self.clients.iter().find(lives);
            let is_ghost = client.is_some_and(|client| !client.engine.wants(owner));
            // A clock that goes back runs copies that should be stale.
            let excused = self.has_jumped
                || self.is_excused(place.owner)
                || self.revived.contains(&place.owner);
            if !is_ghost || place.due_ms <= now_ms || excused {
                continue;
            }
            let since = *self.ghosts.entry(place.owner).or_insert(self.time);
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) {
                wrong = Some(format!("{name}: {place:?} stays since {since}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// A reader regards the mark of waiting writers for as long as its option says, and no longer.
    fn check_mark_of(&mut self, place: usize, op: &Op) {
        let Op::Acquire(Acquire {
            owner,
            form,
            payload,
            ..
        }) = op
        else {
            return;
        };
        let Some(most) = payload.mark() else { return };
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        let waiters = &client.engine.names.waiters;
        let waiter = waiters.iter().find(|(_, one)| one.owner == *owner);
        // Its caller may have its answer by now.
        let Some((id, waiter)) = waiter.filter(|_| form.kind == Kind::Read) else {
            return;
        };
        // A mark of a writer may be shorter.
        let most = waiter.terms.writer_preference.unwrap_or(most);
        // It counts from the call, or from before that.
        let end = *client.stand_back.entry(*id).or_insert(now.after(most));
        if end <= now {
            self.fail(format!("{op:?} stands back after {end:?}"));
        }
    }

    /// No mark stays of a writer that does not wait any more.
    fn check_marks(&mut self) {
        let mut wrong = None;
        let marks = self.server.marks.keys();
        let marks = marks.flat_map(|name| {
            let owners = self.server.marked(name);
            owners.map(move |(owner, end_ms)| (name, owner, end_ms))
        });
        for (name, me, end_ms) in marks {
            let (uuid, owner) = me;
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let client = self.clients.iter().find(lives);
            let excused = self.has_jumped || self.is_excused(me);
            if client.is_none_or(|client| client.engine.wants(owner)) || excused {
                continue;
            }
            let since = *self.ghosts.entry(me).or_insert(self.time);
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) {
                wrong = Some(format!(
                    "{name}: the mark of {me:?} until {end_ms} stays since {since}"
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client waits for a free lock.
    fn check_waiters(&mut self) {
        let mut stuck = None;
        for (place, client) in self.clients.iter().enumerate() {
            for (at, name) in self.names.iter().enumerate() {
                let since = &mut self.waits[place * self.names.len() + at];
                let waits = client
                    .engine
                    .waits_for(name)
                    .filter(|_| !client.has_ended());
                let now = client.local(self.time);
                let is_taken = |(id, kind, permits): (RequestId, Kind, i64)| {
                    let queue = self.server.queues.get(name);
                    let head = queue.and_then(|queue| queue.first());
                    let head = head.filter(|head| head.due_ms > self.server.now_ms());
                    let of_other = head.is_some_and(|head| {
                        head.owner.0 != client.uuid || !client.engine.wants(head.owner.1)
                    });
                    if kind.takes_permits() {
                        let semaphore = self.server.semaphores.get(name);
                        let wanted = match head.filter(|_| kind == Kind::FairSemaphore) {
                            Some(_) if of_other => return true,
                            Some(head) => permits.max(head.many),
                            None => permits,
                        };
                        return semaphore.is_some_and(|one| one.available() < wanted);
                    }
                    let shared = self.server.shared.get(name);
                    let end = client.stand_back.get(&id).filter(|_| kind == Kind::Read);
                    let stands_back = end.is_some_and(|end| *end > now);
                    of_other
                        || stands_back && self.server.marked_until(name).is_some()
                        || self.server.locks.contains_key(name)
                        || shared.is_some_and(|shared| kind == Kind::Write || shared.is_written)
                };
                let Some(waits) = waits.filter(|waits| !is_taken(*waits)) else {
                    *since = None;
                    continue;
                };
                // In a queue of permits, several may be free for one after the other. Each of them hears of its
                // turn by a message or looks by itself.
                let (head, fair) = (waits.0, waits.1 == Kind::FairSemaphore);
                let is_over = |(_, before, _): &(u64, RequestId, Option<u64>)| {
                    fair && *before != head && !client.engine.names.waiters.contains_key(before)
                };
                *since = since.filter(|one| !is_over(one));
                let queues = matches!(waits.1, Kind::Fair | Kind::FairSemaphore);
                let (since, _, told) = since.get_or_insert((self.time, head, None));
                // A queue on the server is told again by each call while the lock is free. The first time
                // counts.
                let last = self.released.get(name).copied();
                let last = last.filter(|at| *at == *since || queues && *at > *since);
                *told = told.or(last.filter(|_| self.heard));
                let (since, told) = (*since, *told);
                let end = match told {
                    Some(at) => at.max(self.disturbed) + WOKEN,
                    None => since.max(self.disturbed) + allowed(PATIENCE, name),
                };
                if self.time > end {
                    stuck = Some(format!(
                        "{} waits for {name}, which is free since {since}",
                        client.uuid
                    ));
                }
            }
        }
        stuck.into_iter().for_each(|wrong| self.fail(wrong));
    }

    fn check_end(&mut self) -> Result<(), String> {
        if self.server.held().next().is_some() || !self.server.subscribers.is_empty() {
            return Err(format!("left on the server: {:?}", self.server));
        }
        for client in &self.clients {
            let Client {
                uuid,
                engine,
                asked,
                calls,
                channels,
                ..
            } = client;
            let traffic = client
                .connections
                .iter()
                .filter_map(|connection| connection.traffic.as_ref());
            if !traffic.clone().all(Played::is_idle) {
                return Err(format!("calls are left on a connection of {uuid}"));
            }
            let is_clear = client.has_ended() || engine.is_clear();
            if !asked.is_empty() || !calls.is_empty() || !channels.is_empty() || !is_clear {
                return Err(format!(
                    "left in {uuid}: {asked:?} {calls:?} {channels:?} {engine:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Engine {
    /// The server's count for a hold without a call in flight: its levels, or 1 for a reader.
    fn settled_count(&self, owner: OwnerId) -> Option<u32> {
        let hold = self.holds.get(&owner)?;
        let count = if hold.cell.kind.is_shared() {
            1
        } else {
            hold.count()
        };
        (hold.tasks().next().is_none() && hold.phase == Phase::Held).then_some(count)
    }

    /// The watchdog's lease of a hold without a fixed end.
    fn renewed_lease(&self, owner: OwnerId) -> Option<Duration> {
        let hold: &Hold = self.holds.get(&owner)?;
        let lasting = hold.phase == Phase::Held && hold.must_end().is_none();
        hold.watched_lease().filter(|_| lasting)
    }

    /// Whether a new server would be told again that this owner released its lock.
    fn tells_of_release(&self, owner: OwnerId, now: Moment) -> bool {
        self.cleanups
            .confirmed()
            .any(|kept| kept.is_of(owner) && kept.counts(now))
    }

    /// Whether this owner holds the lock or tries to acquire it.
    fn wants(&self, owner: OwnerId) -> bool {
        let tries = self
            .names
            .waiters
            .values()
            .any(|waiter| waiter.owner == owner || waiter.earlier.contains(&owner));
        tries
            || self.queries.adopts_as(owner)
            || self
                .holds
                .get(&owner)
                .is_some_and(|hold| !matches!(hold.phase, Phase::Lost(_)))
    }

    /// The first waiter of the name, its kind, and the permits that it wants, unless a hold of this client is in its way.
    fn waits_for(&self, name: &Name) -> Option<(RequestId, Kind, i64)> {
        let queue = self.names.queues.get(name)?;
        let id = *queue.waiters.front()?;
        let head = self.names.waiters.get(&id)?;
        let blocks = |hold: &Hold| {
            hold.blocks(false)
                && (hold.cell.kind.excludes(head.form.kind) || !head.form.kind.is_shared())
                && Some(hold.cell.owner) != head.under
        };
        let blocked = queue.holds().iter().any(|owner| blocks(&self.holds[owner]));
        (!blocked).then_some((id, head.form.kind, head.form.permits.into()))
    }

    /// A caller that waits for permits of this semaphore and asked before this request. The head may
    /// be passed by one that wants as many while its own call is in flight.
    fn before(&self, id: RequestId, cell: &HoldCell) -> Option<RequestId> {
        if cell.kind != Kind::Semaphore {
            return None;
        }
        let queue = self.names.queues.get(&cell.name)?;
        let asks = |other: &RequestId| {
            let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
            let is_head = queue.waiters.front() == Some(other);
            in_flight && is_head && self.names.waiters[other].form == cell.form()
        };
        let waits = |other: &RequestId| {
            let waiter = &self.names.waiters[other];
            *other < id && !waiter.answered && !waiter.queues()
        };
        let mut before = queue.waiters.iter().copied().filter(waits);
        before.find(|other| !asks(other))
    }

    /// A writer that waits for this name and asked before this request, unless the reader has the
    /// write lock itself.
    fn overtaken(&self, id: RequestId, cell: &HoldCell) -> Option<RequestId> {
        let is_own = |owner: &OwnerId| {
            let hold = &self.holds[owner];
            hold.cell.key == cell.key && hold.cell.kind == Kind::Write
        };
        let queue = self.names.queues.get(&cell.name)?;
        if cell.kind != Kind::Read || queue.holds().iter().any(is_own) {
            return None;
        }
        let waits = |writer: &RequestId| {
            let waiter = &self.names.waiters[writer];
            waiter.form.kind == Kind::Write && !waiter.answered && *writer < id
        };
        queue.waiters.iter().copied().find(waits)
    }

    /// The locks of all that is left to settle.
    fn unsettled(&self) -> Vec<&Name> {
        let holds = self.holds.values().map(|hold| &hold.cell.name);
        let waiters = self.names.waiters.values().map(|waiter| &waiter.name);
        let cleanups = self.cleanups.iter().map(|cleanup| &cleanup.name);
        holds.chain(waiters).chain(cleanups).collect()
    }

    /// Whether the engine is empty.
    fn is_clear(&self) -> bool {
        let empty =
            self.names.queues.is_empty() && self.queries.is_empty() && self.cx.callers.is_empty();
        let empty = empty && self.multi.is_empty();
        empty && self.is_settled() && self.cx.calls.is_empty() && self.next_wake().is_none()
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
