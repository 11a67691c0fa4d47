//! A client of the simulation, and its connections.

use super::*;

/// A program with one engine. A new one takes its place when it dies.
pub(super) struct Client {
    pub(super) uuid: Uuid,
    pub(super) engine: Engine,
    /// Its clock: its advance for each million of the server's, and its offset.
    pub(super) rate: u64,
    pub(super) ahead: u64,
    /// The process is stopped until then.
    pub(super) stopped_until: u64,
    pub(super) tracks: bool,
    /// The sizes of the shipping outbox, if the connections use it: it holds calls back and batches
    /// them. Otherwise every call is sent at once, alone.
    pub(super) sizes: Option<(usize, usize)>,
    /// The connections to one server, or to two parts of it like the nodes of a cluster. The last
    /// one may be the inline connection.
    pub(super) connections: Vec<Connection>,
    pub(super) parts: usize,
    /// The state of the inline connection, while there is one.
    pub(super) direct: Option<Direct>,
    /// The generation of the newest connection.
    pub(super) last_generation: u64,
    /// The connection of each name.
    pub(super) routes: Vec<usize>,
    /// The calls in flight and their connections.
    pub(super) calls: BTreeMap<CallId, usize>,
    /// The channels to subscribe, and the arrival of the last change.
    pub(super) channels: BTreeMap<Name, Topic>,
    /// The names behind each channel.
    pub(super) wanted: Wanted,
    pub(super) last_subscription: u64,
    pub(super) callers: Vec<Caller>,
    pub(super) asked: BTreeMap<RequestId, usize>,
    /// Until when each reader stands back for writers that wait, since it has asked.
    pub(super) stand_back: BTreeMap<RequestId, Moment>,
    pub(super) last_request: RequestId,
    pub(super) cells: Vec<Arc<HoldCell>>,
    pub(super) renewals: Renewals,
    /// The servers that it was told are out of reach, and since when.
    pub(super) away: BTreeMap<LinkId, Moment>,
    /// The longest lease that was asked for each owner, and the longest limit of these calls.
    pub(super) leases: BTreeMap<OwnerId, (Duration, Duration)>,
    /// Since when callers have let go of what these owners hold, and nothing confirms it.
    pub(super) let_go: BTreeMap<OwnerId, Moment>,
    pub(super) closing: bool,
    pub(super) closed: bool,
    /// The locks that closing named because it could not release them. Its process ends with them.
    pub(super) unreleased: Vec<Name>,
}

/// The renewals of a client, and the last renewal of each hold that it has or had.
#[derive(Default)]
pub(super) struct Renewals {
    pub(super) last: BTreeMap<OwnerId, Moment>,
    pub(super) planned: u64,
    /// Renewals that came sooner than leases need them.
    pub(super) extra: u64,
    /// Requests: each may cause one or two probes.
    pub(super) requests: u64,
}

impl Renewals {
    /// The most renewals beyond those that leases need: as many again, probes after each request,
    /// two for each hold, and what an engine may spend before it adapts.
    pub(super) fn allowed(&self) -> u64 {
        self.planned + 2 * self.requests + 2 * self.last.len() as u64 + 16
    }
}

/// The inline connection: callers make calls on it themselves, one at a time, beside the calls of
/// the I/O thread.
#[derive(Default)]
pub(super) struct Direct {
    /// The generation of the command connection with which it ends.
    pub(super) belongs_to: u64,
    /// The request that uses it at the moment, and the call in flight.
    pub(super) user: Option<RequestId>,
    /// The user makes its call inline only if nobody else uses the client.
    pub(super) polite: bool,
    /// The calls in flight, and what is known of those before them: they are one command.
    pub(super) calls: Vec<CallId>,
    pub(super) heard: Vec<Input>,
}

/// A connection for commands.
pub(super) struct Connection {
    pub(super) up: bool,
    /// Its number among all connections of its client.
    pub(super) generation: u64,
    /// The last known server clock in ms, and our clock at that moment.
    pub(super) server_clock: (u64, Moment),
    /// The arrival of its last request and its last reply: both directions keep their order.
    pub(super) last_arrival: (u64, u64),
    /// Its outbox, if the connection uses one.
    pub(super) traffic: Option<Played>,
    /// A turn of the outbox is scheduled.
    pub(super) turning: bool,
    /// `deaf`: nothing more arrives at the server. `mute`: nothing more arrives from it.
    pub(super) deaf: bool,
    pub(super) mute: bool,
}

impl Connection {
    pub(super) fn new() -> Connection {
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
    pub(super) fn not_after(&self, now: Moment, limit: Duration) -> u64 {
        let (server_ms, heard) = self.server_clock;
        let since = heard.until(now) * 99 / 100;
        server_ms + u64::try_from((since + limit).as_millis()).unwrap()
    }
}

impl Client {
    pub(super) fn local(&self, time: u64) -> Moment {
        Moment(self.ahead + time * self.rate / 1_000_000)
    }

    /// The first time at which the client's clock shows `moment`.
    pub(super) fn time_at(&self, moment: Moment) -> u64 {
        (moment.0.saturating_sub(self.ahead) * 1_000_000).div_ceil(self.rate)
    }

    pub(super) fn origin(&self, connection: usize) -> Origin {
        Origin {
            uuid: self.uuid,
            generation: self.connections[connection].generation,
        }
    }

    /// The connection of `origin`, if it still exists.
    pub(super) fn connection(&self, origin: Origin) -> Option<usize> {
        (0..self.connections.len()).find(|at| self.origin(*at) == origin)
    }

    /// The engine's id of a connection.
    pub(super) fn link(&self, connection: usize) -> LinkId {
        if self.is_split() {
            LinkId::try_from(connection).unwrap() + 1
        } else {
            STANDALONE
        }
    }

    /// Gives names of one slot the same connection.
    pub(super) fn join_slots(&mut self, names: &[Name]) {
        for at in 1..names.len() {
            if let Some(same) = (0..at).find(|before| slot(&names[*before]) == slot(&names[at])) {
                self.routes[at] = self.routes[same];
            }
        }
    }

    pub(super) fn is_split(&self) -> bool {
        self.parts > 1
    }

    /// Notes what the client is told about its servers. It forgets a server without names.
    pub(super) fn hears(&mut self, now: Moment, input: &Input) {
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
    pub(super) fn outage(&self, names: &[Name], name: &Name, now: Moment) -> Option<Duration> {
        let at = names.iter().position(|known| known == name)?;
        let since = self.away.get(&self.link(self.routes[at]))?;
        Some(since.until(now))
    }

    /// Whether closing may leave this lock to its lease: its server is out of reach, and has been
    /// for as long as callers wait, or a release of this lock has waited for it that long.
    pub(super) fn may_leave(&self, names: &[Name], name: &Name, now: Moment) -> bool {
        let releases = self.let_go.iter().any(|(owner, since)| {
            let hold = self.engine.holds.get(owner);
            hold.is_some_and(|hold| hold.cell.name == *name) && since.until(now) >= OUTAGE
        });
        self.outage(names, name, now)
            .is_some_and(|outage| outage >= OUTAGE || releases)
    }

    /// Notes the leases that a call asks for.
    pub(super) fn asks(&mut self, op: &Op, limit: Duration) {
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
    pub(super) fn ends_soon(&self, owner: OwnerId) -> Duration {
        let (lease, limit) = self.leases.get(&owner).copied().unwrap_or_default();
        limit + timing::drift(limit) + 2 * timing::drift(lease)
    }

    /// Whether its process has ended and has left locks behind.
    pub(super) fn has_ended(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Whether it has left this lock behind.
    pub(super) fn has_left(&self, name: &Name) -> bool {
        self.unreleased.contains(name)
    }

    /// The index of the inline connection.
    pub(super) fn at_direct(&self) -> usize {
        self.parts
    }

    /// Whether this call is made by a caller on the inline connection.
    pub(super) fn is_own(&self, call: CallId) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.calls.contains(&call))
    }

    /// The wake-up of its engine, while the process runs.
    pub(super) fn engine_wake(&self) -> Option<Moment> {
        self.engine.next_wake().filter(|_| !self.has_ended())
    }

    /// The earliest wake-up of its outboxes.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.connections
            .iter()
            .filter_map(|connection| connection.traffic.as_ref()?.next_wake())
            .min()
    }

    /// The routes as the engine gets them.
    pub(super) fn routes(&self, names: &[Name]) -> Routes {
        let mut table = vec![self.link(0); usize::from(SLOTS)];
        for (name, connection) in names.iter().zip(&self.routes) {
            table[usize::from(slot(name))] = self.link(*connection);
        }
        Routes::by_slot(table.into())
    }
}
