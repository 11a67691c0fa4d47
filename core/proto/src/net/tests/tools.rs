//! Tools and inline connections ([`Asking`]) at the same servers: each connects, asks, and is gone.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::Kind;
use super::redis::bulk;
use super::world::{CALM, CONNECT, END, Event, OUTDATED, PASSWORD, SERVICE, WATCHWORD, Way, World};
use crate::connecting;
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::net::{Arrival, Asking, ConnId, Io, Manner, Protocol, Server};
use crate::url::Topology;
use crate::value::Value;
use crate::{quorum, sentinel, wire};

/// What a question is answered when the server refuses it.
const REFUSED: &str = "Unknown PUBSUB subcommand";

/// What a tool is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Primary,
    Keeper,
    Plain,
    Sentinel,
}

pub(super) struct Tool {
    asking: Asking,
    goal: Goal,
    protocol: Protocol,
    /// Until when it waits.
    deadline: u64,
    is_up: bool,
    /// How often it asks.
    rounds: u64,
    /// The answers that it waits for; `None`: the server refuses.
    expected: Vec<Option<Value>>,
    /// The connections that it has not closed, and was not told the end of.
    pub(super) alive: BTreeSet<ConnId>,
    /// How often its program was asked for user and password, for each server.
    given: BTreeMap<usize, u32>,
    /// Why it may fail: the first refusal on each connection, and how connections were lost.
    refusals: BTreeMap<ConnId, Error>,
    losses: Vec<&'static str>,
    /// It begins when all is well.
    well: bool,
}

impl World {
    /// Starts a tool.
    pub(super) fn use_tool(&mut self) {
        let pause = match self.now > CALM {
            true => self.random.between(300_000, 900_000),
            false => self.random.between(10_000, 120_000),
        };
        if self.now < END - 1_000_000 {
            self.after(pause, Event::UseTool);
        }
        self.last_tool += 1;
        let (number, own) = (self.last_tool, &self.clients[0].manner);
        let protocol = match self.kind {
            Kind::Resp2 => self.random.pick(&[Protocol::Auto, Protocol::Resp2]),
            _ => {
                let all = [Protocol::Auto, Protocol::Resp2, Protocol::Resp3];
                self.random.pick(&all)
            }
        };
        let manner = Rc::new(Manner {
            tls: false,
            http: false,
            timeout: CONNECT,
            keep_alive: own.keep_alive,
            least_uptime: own.least_uptime,
            protocol,
            tracking: false,
            provided: own.provided,
            pubsub: own.pubsub,
            name: format!("tool-{number}"),
            uuid: String::new(),
            closing: Cell::new(false),
        });
        let goal = self.random.pick(match self.kind {
            Kind::Sentinel => &[Goal::Primary, Goal::Plain, Goal::Sentinel],
            _ => &[Goal::Primary, Goal::Keeper, Goal::Plain],
        });
        let of_all = match self.kind {
            Kind::Sentinel => 2,
            _ => self.nodes.len(),
        };
        let host = self.nodes[self.random.index(of_all)].host.clone();
        let server = Server::of(&self.place, &manner).at(&host);
        let asking = match (goal, &self.place.topology) {
            (Goal::Sentinel, Topology::Sentinel { hosts, .. }) => {
                let sentinels = Server::sentinels(&self.place, hosts, &manner);
                Asking::plain(sentinels[self.random.index(sentinels.len())].clone())
            }
            (Goal::Primary, _) => Asking::primary(&self.place, &manner),
            (Goal::Keeper, _) => Asking::keeper(server),
            _ => Asking::plain(server),
        };
        let tool = Tool {
            asking,
            goal,
            protocol,
            deadline: 0,
            is_up: false,
            rounds: self.random.below(3),
            expected: Vec::new(),
            alive: BTreeSet::new(),
            given: BTreeMap::new(),
            refusals: BTreeMap::new(),
            losses: Vec::new(),
            // A server of a quorum has to run for some time.
            well: self.now > CALM + 3_000_000 || !self.faults,
        };
        self.note(|| format!("tool {number} begins: {goal:?}, {protocol:?}"));
        self.tools.insert(number, tool);
        self.limit(number);
        if !self.is_calm && self.random.chance(500) {
            let time = self.random.below(12_000);
            self.after(time, Event::Spoil(number));
        }
        self.tool_turn(number, |asking, now, io| asking.begin(now, io));
    }

    /// From now on it waits for as long as an attempt to connect may take.
    fn limit(&mut self, number: usize) {
        let limit = u64::try_from(CONNECT.as_micros()).unwrap();
        self.tools.get_mut(&number).unwrap().deadline = self.now + limit;
        self.after(limit, Event::Late(number));
    }

    /// Cuts one of its connections, or lets it hang.
    pub(super) fn spoil(&mut self, number: usize) {
        let Some(tool) = self.tools.get(&number) else {
            return;
        };
        let alive: Vec<ConnId> = tool.alive.iter().copied().collect();
        if alive.is_empty() {
            return;
        }
        let id = alive[self.random.index(alive.len())];
        if self.random.chance(800) {
            self.cut(id);
        } else {
            self.note(|| format!("{id} hangs"));
            self.conns.get_mut(&id).unwrap().down.is_dead = true;
        }
    }

    /// Tells a tool of an event of its connection.
    pub(super) fn tell_tool(&mut self, number: usize, id: ConnId, arrival: &Arrival<'_>) {
        let conn = self.conns.get(&id).filter(|conn| conn.provided);
        let asked_for = conn.map(|conn| conn.node);
        if let Some(tool) = self.tools.get_mut(&number) {
            match arrival {
                Arrival::Opened(_) => {
                    if let Some(node) = asked_for {
                        *tool.given.entry(node).or_default() += 1;
                    }
                }
                Arrival::Closed(lost) => {
                    tool.alive.remove(&id);
                    // The texts of a world are literals.
                    let all = [
                        "connection refused",
                        "connection reset",
                        "closed by the server",
                    ];
                    tool.losses
                        .extend(all.into_iter().find(|why| *why == lost.text));
                }
                _ => {}
            }
        }
        self.tool_turn(number, |asking, now, io| {
            asking.arrived(now, id, arrival, io);
        });
    }

    /// Lets a tool do something, and what follows from it, as a driver does.
    fn tool_turn(&mut self, number: usize, act: impl FnOnce(&mut Asking, Moment, &mut dyn Io)) {
        let Some(tool) = self.tools.get_mut(&number) else {
            return;
        };
        let now = Moment(self.now);
        let mut way = Way {
            asked: Vec::new(),
            last_conn: &mut self.last_conn,
            random: &mut self.random,
        };
        act(&mut tool.asking, now, &mut way);
        tool.asking.flush(now, &mut way);
        for one in way.asked {
            self.carry_out(number, one);
        }
        self.look_at(number);
    }

    /// Checks a tool after a step, and has it go on.
    fn look_at(&mut self, number: usize) {
        let tool = &self.tools[&number];
        if let Some(error) = tool.asking.failure().cloned() {
            self.check_failure(number, &error);
            return self.finish(number);
        }
        if tool.asking.server().is_none() {
            return self.check_waiting(number);
        }
        if !tool.is_up {
            self.check_set_up(number);
            self.tools.get_mut(&number).unwrap().is_up = true;
        } else if tool.asking.answered() < tool.expected.len() {
            return self.check_waiting(number);
        } else {
            self.check_answers(number);
        }
        let tool = self.tools.get_mut(&number).unwrap();
        if tool.rounds == 0 || self.wrong.is_some() {
            return self.finish(number);
        }
        tool.rounds -= 1;
        let mut asked = Vec::new();
        tool.expected.clear();
        for _ in 0..=self.random.below(3) {
            if self.random.chance(200) {
                asked.push(["PUBSUB".to_owned(), "NONE".to_owned()]);
                tool.expected.push(None);
            } else {
                let length = self.random.below(200) as usize;
                let text = format!("{number} {}", "x".repeat(length));
                tool.expected.push(Some(bulk(&text)));
                asked.push(["ECHO".to_owned(), text]);
            }
        }
        self.limit(number);
        self.tool_turn(number, |asking, _, _| {
            asked.iter().for_each(|words| asking.ask(words));
        });
    }

    /// It has no connections any more.
    fn finish(&mut self, number: usize) {
        let tool = self.tools.remove(&number).unwrap();
        self.note(|| format!("tool {number} is done"));
        tool.alive.into_iter().for_each(|id| self.end(id));
    }

    /// The driver does not wait any longer.
    pub(super) fn late(&mut self, number: usize) {
        let Some(tool) = self.tools.get(&number) else {
            return;
        };
        if tool.deadline > self.now {
            return;
        }
        let (well, error) = (tool.well, tool.asking.late());
        match error {
            Some(error) if error.kind() == ErrorKind::Unavailable => {
                self.check_secrets(number, &error);
            }
            other => self.fail(format!("tool {number} is late, and says {other:?}")),
        }
        if well {
            self.fail(format!("tool {number} is late, though all is well"));
        }
        self.note(|| format!("tool {number} is late"));
        self.finish(number);
    }

    // ---- what is checked ----

    /// Something has to be under way, or nothing will ever end its waiting.
    fn check_waiting(&mut self, number: usize) {
        let alive = self.tools[&number].alive.iter();
        let mut conns = alive.filter_map(|id| self.conns.get(id));
        let is_under_way = conns.any(|conn| {
            let pipes = [&conn.up, &conn.down];
            !conn.is_open
                || pipes
                    .iter()
                    .any(|pipe| pipe.is_dead || !pipe.bytes.is_empty())
        });
        if !is_under_way {
            self.fail(format!("tool {number} waits, and nothing is under way"));
        }
    }

    fn check_secrets(&mut self, number: usize, error: &Error) {
        let shown = format!("{error:?}{error}");
        let secrets = [PASSWORD, WATCHWORD, OUTDATED];
        if secrets.iter().any(|secret| shown.contains(secret)) {
            self.fail(format!("tool {number}: an error has a password: {shown}"));
        }
    }

    fn check_failure(&mut self, number: usize, error: &Error) {
        self.note(|| format!("tool {number} fails: {error}"));
        self.check_secrets(number, error);
        let tool = &self.tools[&number];
        let (kind, said) = (error.kind(), error.message());
        let of_service = format!("service {SERVICE:?}: ");
        let own = said.strip_prefix(&*of_service).unwrap_or(said);
        let is_own = |refusal: &Error| refusal.kind() == kind && refusal.message() == own;
        let is_lost = |why: &&str| kind == ErrorKind::Unavailable && said.contains(*why);
        let is_right = tool.refusals.values().any(is_own) || tool.losses.iter().any(is_lost);
        // A program may have a new password by then.
        let mut given = tool.given.values();
        let is_early = said.contains("credential provider") && !given.any(|times| *times > 1);
        let wrong = match () {
            () if !is_right => "fails for no reason",
            () if is_early => "fails without asking for the password again",
            () if tool.well => "fails, though all is well",
            () if !tool.alive.is_empty() => "fails and stays connected",
            () if tool.given.values().any(|times| *times > 3) => "asks for a password too often",
            () => return,
        };
        self.fail(format!("tool {number} {wrong}: {error}"));
    }

    fn check_set_up(&mut self, number: usize) {
        let tool = &self.tools[&number];
        let alive: Vec<ConnId> = tool.alive.iter().copied().collect();
        let conn = match alive.as_slice() {
            [id] => &self.conns[id],
            _ => return self.fail(format!("tool {number} has the connections {alive:?}")),
        };
        let session = &conn.session;
        let is_commands = matches!(tool.goal, Goal::Primary | Goal::Keeper);
        let least = self.clients[0].manner.least_uptime;
        let resp3 = match tool.protocol {
            _ if !is_commands => Some(false),
            Protocol::Resp2 => Some(false),
            Protocol::Resp3 => Some(true),
            Protocol::Auto => None,
        };
        let shown = tool.asking.server().map(|server| server.shown());
        let is_ready = session.has_logged_in
            && (session.is_named || session.is_restricted)
            && (self.kind != Kind::Resp3 || session.database == 3)
            && (self.kind != Kind::Sentinel || !is_commands || session.told_primary)
            && (least.is_zero() || !is_commands || session.told_uptime > Some(least.as_secs()))
            && resp3.is_none_or(|resp3| session.resp3 == resp3)
            && shown == Some(self.nodes[conn.node].shown());
        if !is_ready {
            self.fail(format!("tool {number} is connected, and not ready"));
        }
    }

    fn check_answers(&mut self, number: usize) {
        let tool = self.tools.get_mut(&number).unwrap();
        let answers = tool.asking.take_answers();
        let is_right = answers.len() == tool.expected.len()
            && answers.iter().zip(&tool.expected).all(|both| match both {
                (Ok(value), Some(expected)) => value == expected,
                (Err(error), None) => error.message().contains(REFUSED),
                _ => false,
            });
        if !is_right {
            self.fail(format!("tool {number} is answered {answers:?}"));
        }
    }

    /// Notes what a server says to a tool that may be why it fails.
    pub(super) fn note_reply(&mut self, id: ConnId, words: &[String], reply: &Value) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (node, is_provided) = (&self.nodes[conn.node], conn.provided);
        let (shown, least) = (node.shown(), self.clients[0].manner.least_uptime);
        let Some(tool) = self.tools.get_mut(&conn.client) else {
            return;
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let refused = match (words.as_slice(), reply) {
            (["ROLE"], Value::Array(_)) => sentinel::check_role(&shown, reply).err(),
            (["INFO", "server"], Value::BulkString(text)) => {
                quorum::check_uptime(&shown, &String::from_utf8_lossy(text), least).err()
            }
            (_, Value::ServerError(error)) => {
                let (code, detail) = (error.code(), error.details().unwrap_or_default());
                let passing = wire::refusal(code, detail).1;
                let of_log_in = Some(connecting::log_in_refused(&shown, is_provided));
                let is_old = code == "NOPROTO" || detail.starts_with("unknown command");
                match words.as_slice() {
                    ["HELLO", ..] if is_old && tool.protocol == Protocol::Auto => None,
                    ["HELLO", ..] if is_provided && ["WRONGPASS", "NOAUTH"].contains(&code) => {
                        of_log_in
                    }
                    ["AUTH", ..] if detail.contains("without any password") => None,
                    ["AUTH", ..] if !passing => of_log_in,
                    ["CLIENT", ..] if code != "NOAUTH" && !passing => None,
                    ["INFO", "memory"] | ["PUBSUB", ..] | ["ECHO", _] => None,
                    _ => Some(connecting::refused(&shown, code, detail)),
                }
            }
            _ => None,
        };
        if let Some(error) = refused {
            tool.refusals.entry(id).or_insert(error);
        }
    }
}
