//! The clients, the network between them and the servers, and what is checked.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::Kind;
use super::redis::{Conn, Conns, Hello, Move, Node, RANGES, words_of};
use super::tools::Tool;
use crate::engine::{CallId, CallOutcome, Input, LinkId};
use crate::moment::Moment;
use crate::net::resp::Item;
use crate::net::{ClusterPubsub, ConnId, Io, Manner, Net, Protocol, Server};
use crate::outbox::News;
use crate::support::random::Random;
use crate::tuning;
use crate::url::{At, Host, Login, Place, Topology};
use crate::wire::names::channel_for;
use crate::wire::{self, Call as Script, Name, Op, Publish, Reply, Topic, servers};

/// When the faults end, when all has to be well again, and when a run ends; in microseconds.
pub(super) const CALM: u64 = 4_000_000;
pub(super) const WELL: u64 = 17_000_000;
pub(super) const END: u64 = 19_500_000;
/// The limit for one attempt to connect.
pub(super) const CONNECT: Duration = Duration::from_millis(500);
/// A server of a quorum has to run for longer than this.
const LEAST_UPTIME: Duration = Duration::from_secs(2);
/// How late a command may be that is refused as late, in microseconds: what a slow network does to
/// the clock of the server that a client knows.
const CLOCK_ERROR: u64 = 400_000;
pub(super) const PASSWORD: &str = "pa55word";
/// The password of the sentinels.
pub(super) const WATCHWORD: &str = "watchw0rd";
/// The one that a program gives when it has not heard of the new one.
pub(super) const OUTDATED: &str = "0utdated";
pub(super) const SERVICE: &str = "main";
/// What a run has done.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub connections: u64,
    pub calls: u64,
    pub answered: u64,
    /// How many connections that have nothing but channels a server has turned away.
    pub turned_away: u64,
}

pub(super) enum Event {
    /// A connection is made, or refused.
    Open(ConnId),
    /// Bytes arrive at the server, or at the client.
    Up(ConnId),
    Down(ConnId),
    /// A client sends a call, or changes what it listens to.
    Call(usize),
    Listen(usize),
    Disturb,
    /// Another program releases a lock on which this client waits.
    Publish(usize),
    /// Another program changes a key of this server.
    Touch(usize, Name),
    /// A sentinel learns of the primary, and announces it.
    Announce(usize, usize, usize),
    /// The former primary knows that it is none.
    Demoted(usize),
    /// A range of slots has moved; a node learns of it.
    Moved,
    Learn(usize, Move),
    /// A tool begins, loses a connection, or has waited for long enough.
    UseTool,
    Spoil(usize),
    Late(usize),
    Calm,
    Check,
}

pub(super) struct Call {
    /// The call as it goes to its server.
    pub(super) op: Op,
    pub(super) sent: u64,
    pub(super) limit: u64,
    /// The answers and refusals of servers.
    pub(super) said: Vec<Reply>,
    pub(super) refused: Vec<String>,
    /// How many copies may be executed, as far as the client can know.
    pub(super) may_run: usize,
    pub(super) was_written: bool,
    /// A server has sent it elsewhere.
    pub(super) redirected: bool,
    /// The connection that the last copy was written to.
    pub(super) conn: ConnId,
    /// The server that it is for, in a quorum.
    pub(super) at: Option<usize>,
    /// It is sent at the calm end.
    pub(super) well: bool,
}

pub(super) struct Client {
    pub(super) net: Net,
    pub(super) uuid: String,
    pub(super) manner: Rc<Manner>,
    pub(super) calls: BTreeMap<CallId, Call>,
    /// The call of each name on the wire.
    pub(super) names: BTreeMap<Name, (CallId, Op)>,
    pub(super) wanted: BTreeSet<Name>,
    pub(super) unconfirmed: BTreeSet<Name>,
    /// How many messages were sent to it and have been heard, by name on the wire; and the
    /// invalidations.
    pub(super) pushed: BTreeMap<String, u64>,
    /// How many confirmations of each channel were sent to it.
    pub(super) confirmed: BTreeMap<String, u64>,
    pub(super) heard: BTreeMap<Name, u64>,
    pub(super) invalidated: BTreeMap<Name, u64>,
    /// The connections that it has not closed, and was not told the end of.
    pub(super) alive: BTreeSet<ConnId>,
    pub(super) generations: Vec<u64>,
    /// The servers that are told as out of reach.
    pub(super) down: BTreeSet<LinkId>,
    pub(super) identity: u64,
}

/// The way to the sockets of the world.
pub(super) struct Way<'a> {
    pub(super) asked: Vec<Asked>,
    pub(super) last_conn: &'a mut ConnId,
    pub(super) random: &'a mut Random,
}

pub(super) enum Asked {
    Connect(ConnId, Host, Option<SocketAddr>, bool),
    Write(ConnId, Vec<u8>),
    Close(ConnId),
}

impl Io for Way<'_> {
    fn connect(&mut self, server: &Server) -> ConnId {
        let At::Tcp(host) = &server.at else {
            panic!("{} is no place of this world", server.at);
        };
        *self.last_conn += 1;
        self.asked.push(Asked::Connect(
            *self.last_conn,
            host.clone(),
            server.peer,
            server.provided,
        ));
        *self.last_conn
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        self.asked.push(Asked::Write(conn, bytes.to_vec()));
    }

    fn close(&mut self, conn: ConnId) {
        self.asked.push(Asked::Close(conn));
    }

    fn random(&mut self) -> u32 {
        self.random.next() as u32
    }
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) queue: BTreeMap<(u64, u64), Event>,
    pub(super) events: u64,
    pub(super) kind: Kind,
    pub(super) faults: bool,
    pub(super) nodes: Vec<Node>,
    /// The primary of the service.
    pub(super) primary: usize,
    /// The node of each range of slots.
    pub(super) owners: [usize; RANGES],
    pub(super) moving: Option<Move>,
    pub(super) conns: Conns,
    pub(super) last_conn: ConnId,
    pub(super) clients: Vec<Client>,
    /// Numbered behind the clients.
    pub(super) tools: BTreeMap<usize, Tool>,
    pub(super) last_tool: usize,
    /// Where clients and tools connect to.
    pub(super) place: Place,
    pub(super) last_call: CallId,
    pub(super) is_calm: bool,
    /// The names of which messages have to come at the end, with how many came before; and the keys
    /// whose changes have to be told.
    pub(super) expected: Vec<(usize, Name, u64)>,
    pub(super) touched: Option<Vec<(usize, Name)>>,
    /// The connections that a client closes in this turn.
    closing: BTreeSet<ConnId>,
    /// How often something was due in a row, at the same time.
    pub(super) spins: usize,
    pub(super) wrong: Option<String>,
    pub(super) is_traced: bool,
    pub(super) trace: Vec<String>,
    pub(super) counts: Counts,
}

impl World {
    pub(super) fn new(seed: u64, kind: Kind, faults: bool, is_traced: bool) -> World {
        let mut random = Random(seed ^ (kind as u64) << 56 ^ u64::from(faults) << 55);
        let count = match kind {
            Kind::Resp3 | Kind::Resp2 => 1,
            Kind::Sentinel => 5,
            Kind::Cluster | Kind::Quorum => 3,
        };
        let mut nodes: Vec<Node> = (0..count).map(Node::new).collect();
        let password = random.chance(500).then(|| PASSWORD.to_owned());
        let watchword = random.chance(500).then(|| WATCHWORD.to_owned());
        let (sharded, old) = (random.chance(700), random.chance(500));
        for (number, node) in nodes.iter_mut().enumerate() {
            node.data
                .jump(i64::try_from(random.below(5_000_000)).unwrap());
            node.password.clone_from(&password);
            node.sharded = sharded;
            match kind {
                Kind::Resp2 if old => node.hello = random.pick(&[Hello::NoProto, Hello::Unknown]),
                Kind::Sentinel if number > 1 => {
                    node.names = Some(0);
                    node.password.clone_from(&watchword);
                }
                Kind::Sentinel => {
                    node.is_primary = number == 0;
                    node.says_primary = number == 0;
                }
                Kind::Cluster => node.map = Some([0, 1, 2, 0]),
                _ => {}
            }
            node.own_password.clone_from(&node.password);
        }
        let hosts = |from: usize| nodes[from..].iter().map(|node| node.host.clone()).collect();
        let topology = match kind {
            Kind::Resp3 | Kind::Resp2 => Topology::Single,
            Kind::Sentinel => Topology::Sentinel {
                hosts: hosts(2),
                service: SERVICE.to_owned(),
            },
            Kind::Cluster => Topology::Cluster { hosts: hosts(0) },
            Kind::Quorum => Topology::Quorum { hosts: hosts(0) },
        };
        // The program may provide it instead.
        let provided = password.is_some() && random.chance(300);
        let login = Login {
            user: None,
            password: password.filter(|_| !provided),
            database: if kind == Kind::Resp3 { 3 } else { 0 },
        };
        let place = Place {
            topology,
            at: At::Tcp(nodes[0].host.clone()),
            server: login,
            sentinel: Login {
                password: watchword,
                ..Login::default()
            },
            tls: false,
            http: false,
        };
        let protocol = match kind {
            Kind::Resp2 if !old => Protocol::Resp2,
            Kind::Resp3 if random.chance(500) => Protocol::Resp3,
            Kind::Sentinel if random.chance(300) => Protocol::Resp2,
            _ => Protocol::Auto,
        };
        let pubsub = random.pick(&[
            ClusterPubsub::Auto,
            ClusterPubsub::Classic,
            ClusterPubsub::Both,
        ]);
        let now = 1_000_000;
        let mut clients = Vec::new();
        for number in 0..2 {
            let manner = Rc::new(Manner {
                tls: false,
                http: false,
                timeout: CONNECT,
                keep_alive: Duration::ZERO,
                least_uptime: match kind {
                    Kind::Quorum => LEAST_UPTIME,
                    _ => Duration::ZERO,
                },
                protocol,
                tracking: random.chance(700),
                provided,
                pubsub,
                name: format!("client-{number}"),
                uuid: number.to_string(),
                closing: Cell::new(false),
            });
            clients.push(Client {
                net: Net::new(Moment(now), &place, &manner),
                uuid: number.to_string(),
                manner,
                calls: BTreeMap::new(),
                names: BTreeMap::new(),
                wanted: BTreeSet::new(),
                unconfirmed: BTreeSet::new(),
                pushed: BTreeMap::new(),
                confirmed: BTreeMap::new(),
                heard: BTreeMap::new(),
                invalidated: BTreeMap::new(),
                alive: BTreeSet::new(),
                generations: Vec::new(),
                down: BTreeSet::new(),
                identity: 0,
            });
        }
        World {
            random,
            now,
            queue: BTreeMap::new(),
            events: 0,
            kind,
            faults,
            nodes,
            primary: 0,
            owners: [0, 1, 2, 0],
            moving: None,
            conns: Conns::new(),
            last_conn: 0,
            last_tool: clients.len(),
            clients,
            tools: BTreeMap::new(),
            place,
            last_call: 0,
            is_calm: !faults,
            expected: Vec::new(),
            touched: None,
            closing: BTreeSet::new(),
            spins: 0,
            wrong: None,
            is_traced,
            trace: Vec::new(),
            counts: Counts::default(),
        }
    }

    // ---- time ----

    pub(super) fn after(&mut self, micros: u64, event: Event) {
        self.events += 1;
        self.queue.insert((self.now + micros, self.events), event);
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.is_traced {
            let line = format!("{:>9.3} {}", self.now as f64 / 1000.0, text());
            self.trace.push(line);
        }
    }

    pub(super) fn fail(&mut self, wrong: String) {
        self.note(|| format!("WRONG: {wrong}"));
        self.wrong.get_or_insert(wrong);
    }

    pub(super) fn run(&mut self) -> Result<Counts, String> {
        for client in 0..self.clients.len() {
            self.turn(client, None, |net, now, io, _| net.begin(now, io));
            // One that calls nothing hears of moved slots by its channels alone.
            if client == 0 || self.kind != Kind::Cluster || self.random.chance(500) {
                self.after(3_000, Event::Call(client));
            }
            self.after(2_000, Event::Listen(client));
            self.after(50_000, Event::Publish(client));
        }
        self.after(4_000, Event::UseTool);
        if self.faults {
            self.after(30_000, Event::Disturb);
        }
        self.after(CALM, Event::Calm);
        self.after(WELL, Event::Check);
        while self.now < END && self.wrong.is_none() {
            let due = (0..self.clients.len())
                .filter_map(|client| Some((self.clients[client].net.next_wake()?, client)))
                .min();
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            match (due, next) {
                (Some((due, client)), next) if next.is_none_or(|at| due.0 <= at) => {
                    self.spins = if due.0 <= self.now { self.spins + 1 } else { 0 };
                    if self.spins > 100 {
                        self.fail(format!("client {client}: what is due stays due"));
                    }
                    self.now = self.now.max(due.0);
                    self.turn(client, None, |_, _, _, _| {});
                }
                (_, Some(_)) => {
                    let ((at, _), event) = self.queue.pop_first().unwrap();
                    self.now = self.now.max(at);
                    self.happen(event);
                }
                _ => break,
            }
        }
        if self.wrong.is_none() {
            self.check_end();
        }
        self.counts.connections = self.last_conn;
        self.counts.calls = self.last_call;
        self.wrong.clone().map_or(Ok(self.counts), Err)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open(id) => self.open(id),
            Event::Up(id) => self.arrive_at_server(id),
            Event::Down(id) => self.arrive_at_client(id),
            Event::Call(client) => self.call(client),
            Event::Listen(client) => self.listen(client),
            Event::Publish(client) => {
                let wanted: Vec<Name> = self.clients[client].wanted.iter().cloned().collect();
                if !wanted.is_empty() {
                    let name = wanted[self.random.index(wanted.len())].clone();
                    self.publish(&name);
                }
                let pause = self.random.between(20_000, 300_000);
                self.after(pause, Event::Publish(client));
            }
            Event::Touch(node, name) => self.touch(node, &name),
            Event::Disturb => self.disturb(),
            Event::Announce(sentinel, from, to) => self.announce(sentinel, from, to),
            // It may be the primary again.
            Event::Demoted(node) => self.nodes[node].says_primary = node == self.primary,
            Event::Moved => self.moved(),
            Event::Learn(node, Move { range, to }) => {
                if let Some(map) = &mut self.nodes[node].map {
                    map[range] = to;
                }
            }
            Event::UseTool => self.use_tool(),
            Event::Spoil(tool) => self.spoil(tool),
            Event::Late(tool) => self.late(tool),
            Event::Calm => self.calm(),
            Event::Check => self.expect_all(),
        }
    }

    // ---- a client's turn ----

    /// Lets a client do something, and all that follows from it, as a driver does.
    pub(super) fn turn(
        &mut self,
        number: usize,
        gone: Option<ConnId>,
        act: impl FnOnce(&mut Net, Moment, &mut dyn Io, &mut News),
    ) {
        let (now, mut news, mut told) = (Moment(self.now), News::default(), Vec::new());
        let client = &mut self.clients[number];
        let mut way = Way {
            asked: Vec::new(),
            last_conn: &mut self.last_conn,
            random: &mut self.random,
        };
        act(&mut client.net, now, &mut way, &mut news);
        let mut rounds = 0;
        loop {
            client.net.wake(now, &mut way, &mut news);
            client.net.settle(now, &mut way, &mut news);
            let mut heard = std::mem::take(&mut news);
            let mut events = heard.events.iter();
            let has_secret = events.any(|event| event.text.contains(PASSWORD));
            if !heard.is_empty() {
                told.append(&mut heard.inputs);
            } else {
                client.net.flush(now, &mut way, &mut news);
                if news.is_empty() {
                    break;
                }
            }
            rounds += 1;
            if rounds > 1000 || has_secret {
                let wrong = format!("an event has the password, or {rounds} rounds do not end");
                return self.fail(wrong);
            }
        }
        let asked = way.asked;
        let closed = |one: &Asked| match one {
            Asked::Close(id) => Some(*id),
            _ => None,
        };
        self.closing = asked.iter().filter_map(closed).collect();
        for input in told {
            self.told(number, input);
        }
        if let Some(conn) = gone {
            self.check_told(number, conn);
        }
        for one in asked {
            self.carry_out(number, one);
        }
        self.check(number);
    }

    /// The connections that a client or a tool has not closed, and was not told the end of.
    fn alive(&mut self, number: usize) -> &mut BTreeSet<ConnId> {
        match self.tools.get_mut(&number) {
            Some(tool) => &mut tool.alive,
            None => &mut self.clients[number].alive,
        }
    }

    pub(super) fn carry_out(&mut self, number: usize, asked: Asked) {
        match asked {
            Asked::Connect(id, host, peer, provided) => {
                let node = self.nodes.iter().position(|node| node.host == host);
                let Some(node) = node else {
                    return self.fail(format!("{host:?} is no server"));
                };
                if peer.is_some_and(|peer| peer != peer_of(node)) {
                    return self.fail(format!("{peer:?} is not the address of {host:?}"));
                }
                self.note(|| format!("client {number} connects {id} to {node}"));
                let identity = self.random.next() & 0xffff_ffff_ffff;
                let conn = Conn::new(number, node, identity, provided);
                self.conns.insert(id, conn);
                self.alive(number).insert(id);
                let delay = self.delay();
                if self.nodes[node].ignores <= self.now {
                    self.after(delay, Event::Open(id));
                }
            }
            Asked::Write(id, bytes) => self.written(number, id, &bytes),
            Asked::Close(id) => {
                self.alive(number).remove(&id);
                if let Some(conn) = self.conns.get(&id) {
                    if conn.is_open && self.random.chance(700) {
                        self.serve_all(id);
                    }
                    self.note(|| format!("client {number} closes {id}"));
                    self.end(id);
                }
            }
        }
    }

    /// A client writes: notes which calls are under way.
    fn written(&mut self, number: usize, id: ConnId, bytes: &[u8]) {
        if !self.alive(number).contains(&id) {
            return self.fail(format!("{id} is written to after its end"));
        }
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.written.add(bytes);
        let mut commands = Vec::new();
        while let Some(Item::Reply(value)) = conn.written.next().unwrap() {
            commands.push(words_of(value));
        }
        for words in commands {
            if !words[0].starts_with("EVAL") {
                continue;
            }
            for call in self.calls_of(number, &words).0 {
                let open = self.clients[number].calls.get_mut(&call);
                match open {
                    None => self.fail(format!("call {call} is written after its outcome")),
                    Some(open) if open.may_run > 0 => {
                        self.fail(format!(
                            "call {call} is written, and may be executed already"
                        ));
                    }
                    Some(open) => {
                        (open.may_run, open.was_written, open.conn) = (1, true, id);
                        open.redirected = false;
                        let conn = self.conns.get_mut(&id).unwrap();
                        conn.calls.insert(call);
                        if conn.down.is_dead {
                            // That an idle connection hangs is known only when calls are lost on it.
                            let silence =
                                tuning::SILENCE.max(Duration::from_micros(open.limit) * 2);
                            let silence = u64::try_from(silence.as_micros()).unwrap();
                            let ends_by = conn.ends_by.unwrap_or(u64::MAX).min(self.now + silence);
                            conn.ends_by = Some(ends_by);
                            open.well &= self.now > ends_by;
                        }
                    }
                }
            }
        }
        let conn = self.conns.get_mut(&id).unwrap();
        if !conn.up.is_dead {
            conn.up.bytes.extend_from_slice(bytes);
        }
        self.stir(id);
    }

    /// The calls of a command, and whether they share it.
    pub(super) fn calls_of(&mut self, number: usize, words: &[String]) -> (Vec<CallId>, bool) {
        let keys: usize = words[2].parse().unwrap();
        let keys = &words[3..3 + keys];
        let client = &self.clients[number];
        let same = |(_, op): &&(CallId, Op)| {
            let script = Script::new(op, &client.uuid, 0, Publish::Classic);
            let own = script.command(
                words[0] == "EVAL",
                |_, _| Vec::new(),
                |all, word| {
                    all.push(String::from_utf8(word.to_vec()).unwrap());
                },
            );
            own[1] == words[1] && own[2] == words[2] && own[3..3 + keys.len()] == *keys
        };
        let own = |key: &String| client.names.get(&Name::from(key.as_str()));
        if let Some((call, _)) = own(&keys[0]).filter(same) {
            return (vec![*call], false);
        }
        let calls: Option<Vec<CallId>> = keys.iter().map(|key| Some(own(key)?.0)).collect();
        match calls {
            Some(calls) => (calls, true),
            None => {
                self.fail(format!("{keys:?} are of no call"));
                (Vec::new(), false)
            }
        }
    }

    // ---- what a client is told ----

    fn told(&mut self, number: usize, input: Input) {
        self.note(|| format!("client {number} is told {}", shown(&input)));
        let client = &mut self.clients[number];
        match input {
            Input::Identity(identity) => {
                client.identity = identity;
                let mut own = self.conns.values().filter(|conn| conn.client == number);
                if !own.any(|conn| conn.identity == identity) {
                    self.fail(format!("{identity} is the number of no connection"));
                }
            }
            Input::Up(link) => {
                client.down.remove(&link);
                let links = links_of(&mut client.net);
                let conn = links
                    .iter()
                    .find(|(of, _, is_calls, _)| *of == link && *is_calls);
                let conn = conn.and_then(|(_, conn, ..)| *conn);
                let conn = conn.and_then(|conn| self.conns.get(&conn));
                if conn.is_some_and(|conn| conn.identity != client.identity)
                    && self.kind != Kind::Cluster
                {
                    self.fail(format!("the identity is not of the connection of {link}"));
                }
            }
            Input::Down(link, error) => {
                client.down.insert(link);
                if format!("{error:?}{error}").contains(PASSWORD) {
                    self.fail("an error has the password".to_owned());
                }
            }
            Input::Outcome { call, outcome } => self.ended(number, call, &outcome),
            Input::Subscribed(name) => {
                client.unconfirmed.remove(&name);
                let confirmed = client.confirmed.get_mut(&channel_of(&name));
                let is_confirmed = confirmed.is_some_and(|count| {
                    let some = *count > 0;
                    *count = count.saturating_sub(1);
                    some
                });
                if !client.wanted.contains(&name) || !is_confirmed {
                    self.fail(format!(
                        "{name} is not wanted, or the server has confirmed nothing"
                    ));
                }
            }
            Input::Unsubscribable(name, error) => {
                self.fail(format!("{name} cannot be subscribed: {error}"));
            }
            Input::Message(name) => {
                let heard = client.heard.entry(name.clone()).or_default();
                *heard += 1;
                let heard = *heard;
                let channel = channel_of(&name);
                let pushed = client.pushed.get(&channel).copied().unwrap_or_default();
                if heard > pushed || !client.wanted.contains(&name) {
                    self.fail(format!("{name} has message {heard} of {pushed}"));
                }
            }
            Input::Invalidated(names) => {
                for name in names.into_iter().flatten() {
                    let key = Name::from(servers::key_and_server(&name).0);
                    match client.invalidated.get_mut(&key) {
                        Some(count) if *count > 0 => *count -= 1,
                        _ => return self.fail(format!("{name} was not changed")),
                    }
                    if let Some(touched) = &mut self.touched {
                        touched.retain(|one| *one != (number, key.clone()));
                    }
                }
            }
            // Others may be connected again without a word.
            Input::Routes(routes) => client.down.retain(|link| routes.leads_to(*link)),
            other => self.fail(format!("{other:?} comes from no connection")),
        }
    }

    fn ended(&mut self, number: usize, id: CallId, outcome: &CallOutcome) {
        let Some(call) = self.clients[number].calls.remove(&id) else {
            return self.fail(format!("call {id} has a second outcome, {outcome:?}"));
        };
        // A command that several calls share has the limit of one of them.
        let over = self.now >= call.sent + call.limit / 2;
        let is_alive = self.clients[number].alive.contains(&call.conn);
        let is_gone = call.was_written && (!is_alive || self.closing.contains(&call.conn));
        let wrong = match outcome {
            CallOutcome::Answered(reply) => {
                self.counts.answered += 1;
                let late =
                    *reply == Reply::Stale && self.now + CLOCK_ERROR < call.sent + call.limit;
                (!call.said.contains(reply) || late)
                    .then_some("not what a server said, or too soon")
            }
            CallOutcome::Refused { error, passing } => {
                let is_own = call.refused.iter().any(|said| {
                    let (code, details) = said.split_once(' ').unwrap();
                    let (expected, may_pass) = wire::refusal(code, details);
                    *passing == may_pass && expected.to_string() == error.to_string()
                });
                // The connection for calls that wait for replicas tells why it is not there.
                let by_client =
                    call.op.replicas() > 0 || error.message().contains("one to another");
                if format!("{error:?}{error}").contains(PASSWORD) {
                    Some("an error with the password")
                } else {
                    (!is_own && !by_client).then_some("a refusal of nobody")
                }
            }
            CallOutcome::Unanswered => {
                let inspects = matches!(call.op, Op::Inspect { .. });
                let why = "unanswered, for no reason";
                (!inspects && !call.was_written || !over && !is_gone).then_some(why)
            }
            CallOutcome::NotSent => {
                (call.may_run > 0 || !call.said.is_empty()).then_some("not sent, but it was")
            }
        };
        if let Some(wrong) = wrong {
            return self.fail(format!("call {id} is told {outcome:?}: {wrong}"));
        }
        if call.well && !matches!(outcome, CallOutcome::Answered(_)) {
            self.fail(format!("call {id} is told {outcome:?}, though all is well"));
        }
    }

    /// Checks that the calls of a connection that has gone are told so.
    fn check_told(&mut self, number: usize, gone: ConnId) {
        let mut calls = self.clients[number].calls.iter();
        let waits =
            calls.find(|(_, call)| call.conn == gone && call.may_run > 0 && !call.redirected);
        if let Some((id, _)) = waits {
            self.fail(format!("call {id} is not told that {gone} has gone"));
        }
    }

    /// Checks a client after a step.
    fn check(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let mut wrong = None;
        if let Some(conn) = client.alive.iter().find(|conn| !client.net.has(**conn)) {
            wrong = Some(format!("{conn} is open, and forgotten"));
        }
        let late = |call: &&CallId| {
            let call = &client.calls[*call];
            call.sent + call.limit < self.now
        };
        if let Some(call) = client.calls.keys().find(late) {
            wrong = Some(format!("call {call} is overdue"));
        }
        let links = links_of(&mut client.net);
        for at in client.down.iter().copied() {
            // The first one of a server is for most calls.
            let conn = links.iter().find(|(of, _, calls, _)| *of == at && *calls);
            if conn.is_some_and(|(_, conn, ..)| conn.is_some()) {
                wrong = Some(format!("{at} is told as out of reach, and is connected"));
            }
        }
        if self.kind != Kind::Cluster {
            let generations: Vec<u64> = links.iter().map(|(.., at)| *at).collect();
            let before = std::mem::replace(&mut client.generations, generations.clone());
            if before
                .iter()
                .zip(&generations)
                .any(|(before, now)| before > now)
            {
                wrong = Some(format!("generations go back: {before:?}, {generations:?}"));
            }
        }
        for (_, conn, is_calls, _) in links {
            let Some((id, conn)) = conn.and_then(|id| Some((id, self.conns.get(&id)?))) else {
                continue;
            };
            let session = &conn.session;
            let manner = &self.clients[number].manner;
            let tracks = manner.tracking && session.resp3;
            let is_ready = (session.is_named || session.is_restricted)
                && (!is_calls || session.tracks == (tracks && !session.is_restricted))
                && (self.kind != Kind::Resp3 || session.database == 3)
                && (self.kind != Kind::Sentinel || !is_calls || session.told_primary)
                && (manner.least_uptime.is_zero()
                    || !is_calls
                    || session.told_uptime > Some(manner.least_uptime.as_secs()));
            if !is_ready && !conn.up.is_dead || !session.has_logged_in {
                wrong = Some(format!("{id} is used, and not ready"));
            }
        }
        if let Some(wrong) = wrong {
            self.fail(format!("client {number}: {wrong}"));
        }
    }
}

/// The address that connections to a server lead to.
pub(super) fn peer_of(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node).unwrap()], 6379))
}

/// Each link of a client: its number, its connection, whether it is the one for most calls of its
/// server, and its generation.
pub(super) type Links = Vec<(LinkId, Option<ConnId>, bool, u64)>;

pub(super) fn links_of(net: &mut Net) -> Links {
    let mut links = Vec::new();
    net.each_link(&mut |link| {
        let (id, conn, is_calls) = link.played();
        links.push((id, conn, is_calls, link.generation));
    });
    links
}

/// Whether a connection has nothing but channels, or will have nothing else.
pub(super) fn is_apart(net: &mut Net, conn: ConnId) -> bool {
    let mut is_apart = false;
    net.each_link(&mut |link| is_apart |= link.has(conn) && !link.played().2);
    is_apart
}

/// The channel of a name, as the server has it.
pub(super) fn channel_of(name: &Name) -> String {
    channel_for("0", Topic::Lock, servers::key_and_server(name).0)
}

fn shown(input: &Input) -> String {
    match input {
        Input::Routes(_) => "routes".to_owned(),
        Input::Down(link, error) => format!("{link} is down: {error}"),
        other => format!("{other:?}"),
    }
}
