//! The faults, what clients want, and the calm end.

use std::sync::Arc;
use std::time::Duration;

use super::Kind;
use super::redis::{Move, RANGES, Turn, bulk, range_of};
use super::world::{CALM, Call, Event, SERVICE, WELL, World, channel_of, is_apart, links_of};
use crate::outbox::calls::OutgoingCall;
use crate::sentinel::SWITCH;
use crate::value::Value;
use crate::wire::{Acquire, Fencing, Form, Inspection, Kind as LockKind, Name, Op, Topic, servers};

/// The errors of scripts. All of them mean that nothing was done.
const TROUBLES: [&str; 8] = [
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "READONLY You can't write against a read only replica.",
    "NOAUTH Authentication required.",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "ERR the server has something of its own to say",
];

/// How connections are turned away.
const TURNS: [Turn; 5] = [
    Turn::TooMany,
    Turn::Says(TROUBLES[0]),
    Turn::Says(TROUBLES[1]),
    Turn::Denies("HELLO"),
    Turn::Denies("CLIENT"),
];

impl World {
    /// How long bytes are on their way.
    pub(super) fn delay(&mut self) -> u64 {
        if self.random.chance(if self.is_calm { 5 } else { 30 }) {
            self.random.between(5_000, 40_000)
        } else {
            self.random.between(50, 1_500)
        }
    }

    /// The server of a name of a quorum; any other name is as it is.
    fn name_at(&mut self, key: &str) -> Name {
        match self.kind {
            Kind::Quorum => {
                let node = self.random.index(self.nodes.len());
                servers::name_at(key, &self.nodes[node].shown())
            }
            _ => Name::from(key),
        }
    }

    // ---- what clients want ----

    pub(super) fn call(&mut self, number: usize) {
        let pause = match self.now > CALM {
            true => self.random.between(60_000, 300_000),
            false => self.random.between(200, 60_000),
        };
        self.after(pause, Event::Call(number));
        // Several at a time share a command.
        let count = if self.random.chance(200) { 4 } else { 1 };
        let calls: Vec<OutgoingCall> = (0..count).map(|_| self.outgoing(number)).collect();
        self.turn(number, None, |net, now, io, news| {
            calls
                .into_iter()
                .for_each(|call| net.send(now, call, io, news));
        });
    }

    fn outgoing(&mut self, number: usize) -> OutgoingCall {
        self.last_call += 1;
        let (id, key) = (self.last_call, format!("n{}", self.last_call));
        let name = self.name_at(&key);
        let lease = match self.random.below(3) {
            0 => Duration::from_secs(30),
            _ => Duration::from_millis(10_000 + id * 7),
        };
        let acquire = |fencing, replicas| {
            Op::Acquire(Acquire {
                fencing,
                replicas,
                ..Acquire::of(name.clone(), id, Form::default(), lease)
            })
        };
        let inspect = |what| Op::Inspect {
            name: name.clone(),
            kind: LockKind::Reentrant,
            what,
        };
        let op = match self.random.below(10) {
            0..=4 => acquire(Fencing::Off, 0),
            5 => acquire(Fencing::Expiring, 0),
            6 if self.kind != Kind::Quorum => acquire(Fencing::Off, 1),
            7 => inspect(Inspection::Owners),
            8 => inspect(Inspection::Holders),
            _ => Op::Force {
                name: name.clone(),
                kind: LockKind::Reentrant,
            },
        };
        // Another program has it, for a time by which the answer is known.
        if self.random.chance(500) {
            let nodes: Vec<usize> = self.nodes_of(&name);
            for node in nodes {
                let data = &mut self.nodes[node].data;
                data.tick(self.now);
                data.take(&Name::from(key.as_str()), 60_000 + id * 1_000);
            }
        }
        let wire = servers::op_at_server(&op);
        let limit = self.random.between(300, 1000) * 1000;
        let call = Call {
            op: wire.clone(),
            sent: self.now,
            limit,
            said: Vec::new(),
            refused: Vec::new(),
            may_run: 0,
            was_written: false,
            redirected: false,
            conn: 0,
            at: match self.kind {
                Kind::Quorum => self.nodes_of(&name).first().copied(),
                _ => None,
            },
            // Where nothing ever goes wrong, all has to be there soon.
            well: self.now > WELL || !self.faults && self.now > 2_000_000,
        };
        let client = &mut self.clients[number];
        client.calls.insert(id, call);
        client.names.insert(Name::from(key.as_str()), (id, wire));
        self.note(|| format!("client {number} sends call {id} of {name}"));
        OutgoingCall {
            call: id,
            op: Arc::new(op),
            limit: Duration::from_micros(limit),
            hops: 0,
            asking: false,
        }
    }

    /// The servers that have this name.
    fn nodes_of(&self, name: &Name) -> Vec<usize> {
        let (key, server) = servers::key_and_server(name);
        match self.kind {
            Kind::Cluster => vec![self.owners[range_of(key)]],
            Kind::Quorum => {
                let nodes = self.nodes.iter();
                let own = nodes.map(|node| Some(node.shown()) == server.map(str::to_owned));
                own.enumerate()
                    .filter_map(|(at, own)| own.then_some(at))
                    .collect()
            }
            _ => vec![self.primary],
        }
    }

    pub(super) fn listen(&mut self, number: usize) {
        let pause = self.random.between(5_000, 250_000);
        if self.now < CALM {
            self.after(pause, Event::Listen(number));
        }
        let key = format!("w{}", self.random.below(6));
        let name = self.name_at(&key);
        let client = &mut self.clients[number];
        if client.wanted.remove(&name) {
            client.unconfirmed.remove(&name);
            self.note(|| format!("client {number} does not want {name}"));
            self.turn(number, None, |net, now, io, _| {
                net.unsubscribe(now, &name, Topic::Lock, io);
            });
        } else {
            client.wanted.insert(name.clone());
            client.unconfirmed.insert(name.clone());
            self.note(|| format!("client {number} wants {name}"));
            self.turn(number, None, |net, now, io, _| {
                net.subscribe(now, &name, Topic::Lock, io);
            });
        }
    }

    // ---- faults ----

    pub(super) fn disturb(&mut self) {
        if self.now >= CALM {
            return;
        }
        let pause = self.random.between(10_000, 300_000);
        self.after(pause, Event::Disturb);
        let node = self.random.index(self.nodes.len());
        let until = self.now + self.random.between(20_000, 900_000);
        let conns: Vec<u64> = self.conns.keys().copied().collect();
        let conn = (!conns.is_empty()).then(|| conns[self.random.index(conns.len())]);
        match (self.random.below(14), conn) {
            (0..=2, Some(id)) => self.cut(id),
            (3, Some(id)) => {
                self.note(|| format!("{id} hangs"));
                let both = self.random.chance(500);
                let conn = self.conns.get_mut(&id).unwrap();
                // A server whose packets are not acknowledged stops to send: the other way round is no fault
                // that a network has.
                (conn.down.is_dead, conn.up.is_dead) = (true, conn.up.is_dead || both);
            }
            (4, _) => {
                self.note(|| format!("{node} refuses connections"));
                self.nodes[node].refuses = until;
            }
            (5, _) => {
                self.note(|| format!("{node} ignores connections"));
                self.nodes[node].ignores = until;
            }
            (6, _) => self.restart(node),
            (7, _) => {
                let trouble = self.random.pick(&TROUBLES);
                self.note(|| format!("{node} says {trouble}"));
                self.nodes[node].trouble = (until, trouble);
            }
            (8, _) => {
                let own = self.nodes[node].own_password.clone();
                let other =
                    (own.is_none() || self.random.chance(700)).then(|| "another".to_owned());
                let is_own = self.nodes[node].password == own;
                let password = if is_own { other } else { own };
                self.note(|| format!("{node} has the password {password:?}"));
                self.nodes[node].password = password;
                self.cut_channels(node);
            }
            (9, _) => {
                self.note(|| format!("{node} forgets its scripts"));
                self.nodes[node].scripts.clear();
            }
            (10 | 11, _) => {
                let turn = self.random.pick(&TURNS);
                self.note(|| format!("{node} turns away: {turn:?}"));
                self.nodes[node].turns_away = (until, turn);
                self.cut_channels(node);
            }
            (12.., _) if self.kind == Kind::Sentinel => self.fail_over(),
            (12.., _) if self.kind == Kind::Cluster => self.begin_move(),
            (12.., _) => self.restart(node),
            _ => {}
        }
    }

    /// Cuts the connections to a server that have nothing but channels.
    fn cut_channels(&mut self, node: usize) {
        let conns: Vec<(u64, usize)> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.node == node)
            .map(|(id, conn)| (*id, conn.client))
            .collect();
        for (id, number) in conns {
            let client = self.clients.get_mut(number);
            let is_apart = client.is_some_and(|client| is_apart(&mut client.net, id));
            if is_apart && self.random.chance(700) {
                self.cut(id);
            }
        }
    }

    /// The server starts anew, without its data and its scripts.
    fn restart(&mut self, node: usize) {
        self.note(|| format!("{node} restarts"));
        let ids = self.conns.iter().filter(|(_, conn)| conn.node == node);
        let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        let server = &mut self.nodes[node];
        server.data.restart();
        server.scripts.clear();
        server.started = self.now;
        if self.random.chance(500) {
            let until = self.now + self.random.between(10_000, 300_000);
            self.nodes[node].trouble = (until, TROUBLES[0]);
        }
        for id in ids {
            self.cut(id);
        }
    }

    fn fail_over(&mut self) {
        let (from, to) = (self.primary, 1 - self.primary);
        self.note(|| format!("{to} takes over from {from}"));
        self.primary = to;
        (self.nodes[from].is_primary, self.nodes[to].is_primary) = (false, true);
        self.nodes[to].says_primary = true;
        // It may not know yet.
        let late = self.random.below(400_000);
        self.after(late, Event::Demoted(from));
        for sentinel in 2..self.nodes.len() {
            let late = self.random.below(700_000);
            self.after(late, Event::Announce(sentinel, from, to));
        }
        if self.random.chance(500) {
            let ids = self.conns.iter().filter(|(_, conn)| conn.node == from);
            let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
            ids.into_iter().for_each(|id| self.cut(id));
        }
    }

    pub(super) fn announce(&mut self, sentinel: usize, from: usize, to: usize) {
        // Another fail-over may have come in between.
        if to != self.primary {
            return;
        }
        self.note(|| format!("sentinel {sentinel} names {to}"));
        self.nodes[sentinel].names = Some(to);
        let [from, to] = [from, to].map(|node| self.nodes[node].host.clone());
        let text = format!(
            "{SERVICE} {} {} {} {}",
            from.name, from.port, to.name, to.port
        );
        self.send_message(SWITCH, &text, false, |node| node == sentinel);
    }

    fn begin_move(&mut self) {
        if self.moving.is_some() {
            return;
        }
        let range = self.random.index(RANGES);
        let to = (self.owners[range] + 1 + self.random.index(2)) % 3;
        self.note(|| format!("range {range} moves to {to}"));
        self.moving = Some(Move { range, to });
        let time = self.random.between(1_000, 600_000);
        self.after(time, Event::Moved);
    }

    pub(super) fn moved(&mut self) {
        let Some(Move { range, to }) = self.moving.take() else {
            return;
        };
        let from = std::mem::replace(&mut self.owners[range], to);
        self.note(|| format!("range {range} is at {to} now, from {from}"));
        for node in 0..self.nodes.len() {
            if node == from || node == to {
                self.nodes[node].map.as_mut().unwrap()[range] = to;
            } else {
                let late = self.random.below(500_000);
                self.after(late, Event::Learn(node, Move { range, to }));
            }
        }
        // Its subscribers there are told that this is over.
        let lost = |channel: &String| range_of(channel) == range;
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            let conn = self.conns.get_mut(&id).unwrap();
            if conn.node != from {
                continue;
            }
            let channels = conn.session.channels.iter();
            let gone = channels.filter(|(channel, sharded)| **sharded && lost(channel));
            let gone: Vec<String> = gone.map(|(channel, _)| channel.clone()).collect();
            for channel in gone {
                self.conns
                    .get_mut(&id)
                    .unwrap()
                    .session
                    .channels
                    .remove(&channel);
                self.unconfirm(id, &channel);
                self.push(id, &[bulk("sunsubscribe"), bulk(&channel), Value::Int(0)]);
            }
        }
    }

    // ---- the calm end ----

    pub(super) fn calm(&mut self) {
        self.note(|| "all is well again".to_owned());
        self.is_calm = true;
        self.moved();
        for node in 0..self.nodes.len() {
            let server = &mut self.nodes[node];
            (server.refuses, server.ignores, server.trouble) = (0, 0, (0, ""));
            server.turns_away.0 = 0;
            server.password.clone_from(&server.own_password);
            if self.faults {
                // What a connection for calls has logged in with may be of no use any more.
                self.cut_channels(node);
            }
            let server = &mut self.nodes[node];
            if server.map.is_some() {
                server.map = Some(self.owners);
            }
            if self.kind == Kind::Sentinel && node < 2 {
                server.says_primary = node == self.primary;
            } else if self.kind == Kind::Sentinel && server.names != Some(self.primary) {
                self.announce(node, 1 - self.primary, self.primary);
            }
        }
    }

    /// From now on everything has to arrive.
    pub(super) fn expect_all(&mut self) {
        for number in 0..self.clients.len() {
            let wanted: Vec<Name> = self.clients[number].wanted.iter().cloned().collect();
            for name in wanted {
                let heard = self.clients[number].heard.get(&name).copied();
                self.expected
                    .push((number, name, heard.unwrap_or_default()));
            }
        }
        let names: Vec<Name> = self
            .expected
            .iter()
            .map(|(_, name, _)| name.clone())
            .collect();
        for name in names {
            self.publish(&name);
        }
        self.touched = Some(Vec::new());
    }

    pub(super) fn check_end(&mut self) {
        let mut wrong = Vec::new();
        for (number, name, before) in &self.expected {
            let heard = self.clients[*number].heard.get(name).copied();
            if heard.unwrap_or_default() <= *before {
                wrong.push(format!("client {number} does not hear of {name}"));
            }
        }
        for (number, name) in self.touched.iter().flatten() {
            wrong.push(format!(
                "client {number} is not told that {name} has changed"
            ));
        }
        for (number, client) in self.clients.iter_mut().enumerate() {
            if let Some(name) = client.unconfirmed.first() {
                wrong.push(format!("client {number}: {name} is not confirmed"));
            }
            let links = links_of(&mut client.net);
            let up = links.iter().filter(|(_, conn, ..)| conn.is_some()).count();
            if up != client.alive.len() {
                let open = client.alive.len();
                wrong.push(format!(
                    "client {number} has {open} connections, of which {up} are up"
                ));
            }
            // A node of a cluster that has no slots any more may be forgotten.
            if self.kind != Kind::Cluster && !client.down.is_empty() {
                wrong.push(format!("client {number} is not connected"));
            }
            let channels = |name: &Name| channel_of(name);
            let wanted: Vec<String> = client.wanted.iter().map(channels).collect();
            for conn in self.conns.values().filter(|conn| conn.client == number) {
                let mut own = conn.session.channels.keys();
                if let Some(other) = own.find(|own| **own != SWITCH && !wanted.contains(own)) {
                    wrong.push(format!(
                        "client {number} listens to {other}, and does not want it"
                    ));
                }
            }
        }
        if let Some(wrong) = wrong.into_iter().next() {
            self.fail(wrong);
        }
    }
}
