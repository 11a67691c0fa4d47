//! The network, and what the servers do.

use sha1_smol::Sha1;

use super::Kind;
use super::redis::{Hello, Turn, bulk, ok, push, put, range_of, refusal, slots_of, words_of};
use super::world::{
    END, Event, Links, OUTDATED, PASSWORD, World, channel_of, is_apart, links_of, peer_of,
};
use crate::engine::tests::simulation::server::Origin;
use crate::net::resp::Item;
use crate::net::{Arrival, ConnId, Lost, Opened};
use crate::url::Login;
use crate::value::Value;
use crate::wire::slots::slot;
use crate::wire::{self, BatchKey, Name, Op, Publish, Reply};

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

impl World {
    // ---- the network ----

    pub(super) fn open(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let node = &self.nodes[conn.node];
        if node.refuses > self.now {
            return self.lose(id, "connection refused");
        }
        conn.is_open = true;
        conn.session.has_logged_in = node.password.is_none();
        let (client, identity, peer) = (conn.client, conn.identity, peer_of(conn.node));
        let is_full = node.turns_away.0 > self.now && node.turns_away.1 == Turn::TooMany;
        let full = "ERR max number of clients reached";
        if is_full {
            (conn.up.is_dead, conn.session.turned_away) = (true, Some(full.to_owned()));
            put(&mut conn.down.bytes, &refusal(full), false);
        }
        // The program knows those of the servers, and takes no look at who asks.
        let provided = match node.names {
            Some(_) => Some(PASSWORD.to_owned()),
            None => node.password.clone(),
        };
        let provided = provided.filter(|_| conn.provided);
        let login = provided.map(|password| Login {
            // The program may not have heard of a new one yet.
            password: Some(match !self.is_calm && self.random.chance(200) {
                true => OUTDATED.to_owned(),
                false => password,
            }),
            ..Login::default()
        });
        let opened = Opened {
            identity,
            login,
            peer: Some(peer),
        };
        if is_full {
            self.note_reply(id, &[String::new()], &refusal(full));
        }
        self.tell(client, id, &Arrival::Opened(opened));
    }

    /// Has bytes move on a connection, if there are some.
    pub(super) fn stir(&mut self, id: ConnId) {
        for up in [true, false] {
            let Some(conn) = self.conns.get_mut(&id) else {
                return;
            };
            let pipe = if up { &mut conn.up } else { &mut conn.down };
            if !pipe.moves && !pipe.bytes.is_empty() {
                pipe.moves = true;
                let delay = self.delay();
                self.after(delay, if up { Event::Up(id) } else { Event::Down(id) });
            }
        }
    }

    /// Some bytes of a pipe arrive: any number of them.
    fn some(&mut self, id: ConnId, up: bool) -> Vec<u8> {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Vec::new();
        };
        let pipe = if up { &mut conn.up } else { &mut conn.down };
        pipe.moves = false;
        let all = pipe.bytes.len();
        let count = match self.random.below(10) {
            _ if all < 2 => all,
            0 => 1,
            1 | 2 => 1 + self.random.index(all),
            _ => all,
        };
        pipe.bytes.drain(..count).collect()
    }

    pub(super) fn arrive_at_server(&mut self, id: ConnId) {
        let bytes = self.some(id, true);
        self.serve(id, &bytes);
        self.stir(id);
    }

    pub(super) fn arrive_at_client(&mut self, id: ConnId) {
        let bytes = self.some(id, false);
        self.stir(id);
        let Some(conn) = self.conns.get(&id).filter(|_| !bytes.is_empty()) else {
            return;
        };
        let (client, turned_away) = (conn.client, conn.session.turned_away.is_some());
        let (links, is_apart) = match self.clients.get_mut(client) {
            Some(client) => (links_of(&mut client.net), is_apart(&mut client.net, id)),
            None => (Links::new(), false),
        };
        self.tell(client, id, &Arrival::Bytes(&bytes));
        let Some(conn) = self.conns.get(&id) else {
            if turned_away && client < self.clients.len() {
                self.counts.turned_away += u64::from(is_apart);
                self.check_others(client, &links);
            }
            return;
        };
        if turned_away && conn.up.is_dead && conn.down.bytes.is_empty() {
            self.lose(id, "closed by the server");
        }
    }

    /// Checks that a client which is turned away keeps the connections that it has.
    fn check_others(&mut self, client: usize, before: &Links) {
        let alive = &self.clients[client].alive;
        let mut others = before.iter().filter_map(|(_, conn, ..)| *conn);
        if let Some(other) = others.find(|other| !alive.contains(other)) {
            self.fail(format!("{other} ends because another one is turned away"));
        }
    }

    /// Cuts a connection, before or after the server has read all of it.
    pub(super) fn cut(&mut self, id: ConnId) {
        if self.random.chance(500) {
            self.serve_all(id);
        }
        // Part of the answer may arrive.
        if self.random.chance(500) {
            self.arrive_at_client(id);
        }
        self.lose(id, "connection reset");
    }

    /// The client hears that the connection has gone.
    fn lose(&mut self, id: ConnId, why: &'static str) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let client = conn.client;
        self.note(|| format!("{id}: {why}"));
        self.end(id);
        let lost = Lost {
            text: why,
            ..Lost::default()
        };
        self.tell(client, id, &Arrival::Closed(lost));
    }

    /// Tells a client or a tool of an event of its connection.
    fn tell(&mut self, number: usize, id: ConnId, arrival: &Arrival<'_>) {
        let gone = matches!(arrival, Arrival::Closed(_)).then_some(id);
        match self.clients.get_mut(number) {
            None => self.tell_tool(number, id, arrival),
            Some(client) => {
                if gone.is_some() {
                    client.alive.remove(&id);
                }
                self.turn(number, gone, |net, now, io, news| {
                    net.arrived(now, id, arrival, io, news);
                });
            }
        }
    }

    /// Nothing is left of a connection. The channels that it had are not subscribed any more.
    pub(super) fn end(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let channels: Vec<String> = conn.session.channels.keys().cloned().collect();
        let (node, client) = (conn.node, conn.client);
        for channel in channels {
            self.unconfirm(id, &channel);
        }
        self.conns.remove(&id);
        self.nodes[node].data.disconnected(Origin {
            uuid: client as u64,
            generation: id,
        });
    }

    /// The client has to hear again that this channel is subscribed.
    pub(super) fn unconfirm(&mut self, id: ConnId, channel: &str) {
        let client = &mut self.clients[self.conns[&id].client];
        let node = &self.nodes[self.conns[&id].node];
        let is_own = |name: &&Name| {
            let server = wire::servers::key_and_server(name).1;
            channel_of(name) == channel && server.is_none_or(|server| server == node.shown())
        };
        let names: Vec<Name> = client.wanted.iter().filter(is_own).cloned().collect();
        client.unconfirmed.extend(names);
    }

    // ---- messages ----

    pub(super) fn push(&mut self, id: ConnId, values: &[Value]) {
        let conn = self.conns.get_mut(&id).unwrap();
        if !conn.down.is_dead {
            push(&mut conn.down.bytes, values, conn.session.resp3);
            self.stir(id);
        }
    }

    /// Sends a message to the subscribers at these nodes.
    pub(super) fn send_message(
        &mut self,
        channel: &str,
        text: &str,
        sharded: bool,
        at: impl Fn(usize) -> bool,
    ) {
        let conns = self.conns.iter();
        let ids = conns.filter(|(_, conn)| {
            at(conn.node) && conn.session.channels.get(channel) == Some(&sharded)
        });
        let ids: Vec<ConnId> = ids.map(|(id, _)| *id).collect();
        for id in ids {
            let client = &mut self.clients[self.conns[&id].client];
            *client.pushed.entry(channel.to_owned()).or_default() += 1;
            let kind = if sharded { "smessage" } else { "message" };
            self.push(id, &[bulk(kind), bulk(channel), bulk(text)]);
        }
    }

    /// Another program releases the lock of this name. It publishes in both ways.
    pub(super) fn publish(&mut self, name: &Name) {
        let (channel, server) = (channel_of(name), wire::servers::key_and_server(name).1);
        self.note(|| format!("a message on {channel}"));
        let nodes = self.nodes.iter();
        let own = nodes.map(|node| server.is_none_or(|server| server == node.shown()));
        let own: Vec<bool> = own.collect();
        // A replica gets the messages of its primary.
        self.send_message(&channel, "0", false, |node| own[node]);
        if self.kind == Kind::Cluster {
            let owner = self.owners[range_of(&channel)];
            self.send_message(&channel, "0", true, |node| node == owner);
        }
    }

    /// Another program deletes a key.
    pub(super) fn touch(&mut self, node: usize, name: &Name) {
        let data = &mut self.nodes[node].data;
        data.tick(self.now);
        data.delete(name, None);
        self.effects(node);
    }

    /// Tells the connections that track what has changed.
    fn effects(&mut self, node: usize) {
        let effects = self.nodes[node].data.take_effects();
        for (origin, name) in effects.invalidated {
            let id = origin.generation;
            let Some(conn) = self.conns.get(&id).filter(|conn| conn.session.tracks) else {
                continue;
            };
            let (number, is_dead) = (conn.client, conn.down.is_dead);
            let client = &mut self.clients[number];
            *client.invalidated.entry(name.clone()).or_default() += 1;
            if self.now < END - 1_000_000
                && let Some(touched) = self.touched.as_mut().filter(|_| !is_dead)
            {
                touched.push((number, name.clone()));
            }
            let keys = Value::Array(vec![bulk(&name)]);
            self.push(id, &[bulk("invalidate"), keys]);
        }
    }

    // ---- commands ----

    /// The server reads all that is on its way to it.
    pub(super) fn serve_all(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            let bytes = std::mem::take(&mut conn.up.bytes);
            self.serve(id, &bytes);
        }
    }

    fn serve(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.session.reader.add(bytes);
        while let Some(conn) = self.conns.get_mut(&id)
            && let Some(Item::Reply(value)) = conn.session.reader.next().unwrap()
        {
            let words = words_of(value);
            self.note(|| format!("{id}: {}", shown(&words)));
            let reply = self.command(id, &words);
            if let Some(reply) = &reply {
                self.note_reply(id, &words, reply);
            }
            let Some(conn) = self.conns.get_mut(&id) else {
                return;
            };
            let reply = reply.filter(|_| !conn.down.is_dead);
            if let Some(reply) = reply {
                put(&mut conn.down.bytes, &reply, conn.session.resp3);
                self.stir(id);
            }
        }
    }

    /// Runs a command. Returns its answer; those of pub/sub are pushed.
    fn command(&mut self, id: ConnId, words: &[String]) -> Option<Value> {
        let conn = self.conns.get_mut(&id).unwrap();
        let (number, client, session) = (conn.node, conn.client, &mut conn.session);
        let node = &mut self.nodes[number];
        node.data.tick(self.now);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let asking = std::mem::take(&mut session.asking);
        let turn = Some(node.turns_away.1).filter(|_| node.turns_away.0 > self.now);
        let turned_away = &mut session.turned_away;
        let mut away = |text: &str| {
            *turned_away = Some(text.to_owned());
            refusal(text)
        };
        if node.names.is_some() && words.contains(&PASSWORD) {
            self.fail(format!(
                "{id}: a sentinel is told the password of the servers"
            ));
            return None;
        }
        let is_of_channels = words[0].contains("SUBSCRIBE") || words[0] == "PING";
        if !session.resp3 && !session.channels.is_empty() && !is_of_channels {
            self.fail(format!("{id}: {} among channels, with RESP2", words[0]));
            return None;
        }
        Some(match words.as_slice() {
            ["HELLO", ..] if node.hello == Hello::Unknown => {
                let said = words[1..].join("' '");
                let text =
                    format!("ERR unknown command 'HELLO', with args beginning with: '{said}'");
                refusal(&text)
            }
            ["HELLO", ..] if node.hello == Hello::NoProto => {
                refusal("NOPROTO unsupported protocol version")
            }
            ["HELLO", ..] if turn == Some(Turn::Denies("HELLO")) => {
                away("NOPERM User default has no permissions to run the 'hello' command")
            }
            ["HELLO", "3", "AUTH", "default", password] => {
                if node.password.as_deref().is_some_and(|own| own != *password) {
                    return Some(away(WRONG));
                }
                (session.resp3, session.has_logged_in) = (true, true);
                Value::Other(String::new())
            }
            ["HELLO", "3"] if !session.has_logged_in => away(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used",
            ),
            ["HELLO", "3"] => {
                session.resp3 = true;
                Value::Other(String::new())
            }
            ["AUTH", password] => match node.password.as_deref() {
                Some(own) if own == *password => {
                    session.has_logged_in = true;
                    ok()
                }
                Some(_) => away(WRONG),
                // It harms nobody.
                None => refusal("ERR AUTH <password> called without any password configured"),
            },
            _ if !session.has_logged_in => away("NOAUTH Authentication required."),
            _ if turn.and_then(Turn::says).is_some()
                && !session.is_named
                && !session.is_restricted =>
            {
                away(turn.and_then(Turn::says).unwrap())
            }
            ["SELECT", database] => {
                session.database = database.parse().unwrap();
                ok()
            }
            ["CLIENT", "SETNAME" | "TRACKING", ..]
                if session.is_restricted || turn == Some(Turn::Denies("CLIENT")) =>
            {
                session.is_restricted = true;
                refusal("NOPERM User default has no permissions to run this command")
            }
            ["CLIENT", "SETNAME", _] => {
                session.is_named = true;
                ok()
            }
            ["CLIENT", "TRACKING", "ON", "NOLOOP"] => {
                session.tracks = true;
                ok()
            }
            ["CLIENT", "LIST"] => bulk("id=3 addr=127.0.0.1:5 name=client\n"),
            ["INFO", "memory"] => {
                bulk("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
            }
            ["INFO", "server"] => {
                let uptime = (self.now - node.started) / 1_000_000;
                // The servers were there before the clients.
                let uptime = if node.started == 0 {
                    uptime + 100
                } else {
                    uptime
                };
                session.told_uptime = Some(uptime);
                bulk(&format!("# Server\r\nuptime_in_seconds:{uptime}\r\n"))
            }
            ["TIME"] => {
                let ms = node.data.now_ms();
                let micros = ms % 1000 * 1000;
                Value::Array(vec![
                    bulk(&(ms / 1000).to_string()),
                    bulk(&micros.to_string()),
                ])
            }
            ["ROLE"] => {
                session.told_primary = node.says_primary;
                let role = if node.says_primary { "master" } else { "slave" };
                Value::Array(vec![bulk(role), Value::Int(0), Value::Array(Vec::new())])
            }
            ["PING"] if session.resp3 || session.channels.is_empty() => {
                Value::SimpleString("PONG".to_owned())
            }
            ["PING"] => {
                self.push(id, &[bulk("pong"), bulk("")]);
                return None;
            }
            ["WAIT", ..] => Value::Int(1),
            ["ASKING"] => {
                session.asking = true;
                ok()
            }
            ["PUBSUB", "SHARDNUMSUB"] if node.sharded => Value::Array(Vec::new()),
            ["PUBSUB", ..] => refusal("ERR Unknown PUBSUB subcommand or wrong number of arguments"),
            ["CLUSTER", "SLOTS"] => self.map_of(number),
            ["ECHO", text] => bulk(text),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => match node.names {
                Some(primary) => {
                    let host = &self.nodes[primary].host;
                    Value::Array(vec![bulk(&host.name), bulk(&host.port.to_string())])
                }
                None => refusal("ERR unknown command 'SENTINEL', with args beginning with:"),
            },
            ["SUBSCRIBE" | "SSUBSCRIBE", channel] => {
                let sharded = words[0] == "SSUBSCRIBE";
                let range = range_of(channel);
                if sharded && self.owners[range] != number {
                    return Some(self.elsewhere("MOVED", channel, self.owners[range]));
                }
                session.channels.insert((*channel).to_owned(), sharded);
                let confirmed = &mut self.clients[client].confirmed;
                *confirmed.entry((*channel).to_owned()).or_default() += 1;
                let count = i64::try_from(session.channels.len()).unwrap();
                let kind = words[0].to_lowercase();
                self.push(id, &[bulk(&kind), bulk(channel), Value::Int(count)]);
                return None;
            }
            ["UNSUBSCRIBE" | "SUNSUBSCRIBE", channel] => {
                session.channels.remove(*channel);
                let count = i64::try_from(session.channels.len()).unwrap();
                let kind = words[0].to_lowercase();
                self.push(id, &[bulk(&kind), bulk(channel), Value::Int(count)]);
                return None;
            }
            ["EVAL" | "EVALSHA", ..] => {
                let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
                return self.script(id, &words, asking);
            }
            other => {
                self.fail(format!("{id}: {other:?} is no command that is known"));
                return None;
            }
        })
    }

    /// The slot map, as this node knows it.
    fn map_of(&mut self, number: usize) -> Value {
        let map = self.nodes[number].map.unwrap();
        let row = |(range, owner): (usize, &usize)| {
            let (first, last) = slots_of(range);
            let host = &self.nodes[*owner].host;
            // A node may not know its own address.
            let name = if *owner == number && self.now.is_multiple_of(3) {
                ""
            } else {
                &host.name
            };
            Value::Array(vec![
                Value::Int(i64::try_from(first).unwrap()),
                Value::Int(i64::try_from(last).unwrap()),
                Value::Array(vec![bulk(name), Value::Int(host.port.into()), bulk("id")]),
            ])
        };
        Value::Array(map.iter().enumerate().map(row).collect())
    }

    fn elsewhere(&self, word: &str, key: &str, to: usize) -> Value {
        let slot = slot(key);
        refusal(&format!("{word} {slot} {}", self.nodes[to].shown()))
    }

    // ---- scripts ----

    fn script(&mut self, id: ConnId, words: &[String], asking: bool) -> Option<Value> {
        let conn = &self.conns[&id];
        let (number, client) = (conn.node, conn.client);
        let (calls, is_shared) = self.calls_of(client, words);
        let count: usize = words[2].parse().unwrap();
        let keys = &words[3..3 + count];
        let refused = |world: &mut World, text: &str| {
            for call in &calls {
                if let Some(call) = world.clients[client].calls.get_mut(call) {
                    call.may_run = 0;
                    call.redirected |= text.starts_with("MOVED") || text.starts_with("ASK");
                    call.refused.push(text.to_owned());
                }
            }
            Some(refusal(text))
        };
        if self.kind == Kind::Cluster {
            let range = range_of(&keys[0]);
            if keys.iter().any(|key| slot(key) != slot(&keys[0])) {
                self.fail(format!("{id}: {keys:?} are not of one slot"));
                return None;
            }
            let owner = self.owners[range];
            let moving = self.moving.filter(|moving| moving.range == range);
            let to = moving.map(|moving| moving.to);
            let place = |to: usize| format!("{} {}", slot(&keys[0]), self.nodes[to].shown());
            if owner == number
                && let Some(to) = to
            {
                let text = format!("ASK {}", place(to));
                return refused(self, &text);
            }
            if owner != number && !(asking && to == Some(number)) {
                let text = format!("MOVED {}", place(owner));
                return refused(self, &text);
            }
        }
        let node = &mut self.nodes[number];
        let hash = match words[0].as_str() {
            "EVAL" => Sha1::from(&words[1]).hexdigest(),
            _ => words[1].clone(),
        };
        if words[0] == "EVAL" {
            node.scripts.insert(hash);
        } else if !node.scripts.contains(&hash) {
            return refused(self, "NOSCRIPT No matching script. Please use EVAL.");
        }
        if node.trouble.0 > self.now {
            let trouble = node.trouble.1;
            return refused(self, trouble);
        }
        if !node.is_primary {
            return refused(
                self,
                "READONLY You can't write against a read only replica.",
            );
        }
        Some(self.execute(id, words, &calls, is_shared))
    }

    fn execute(&mut self, id: ConnId, words: &[String], calls: &[u64], is_shared: bool) -> Value {
        let conn = &self.conns[&id];
        let (number, client, tracks) = (conn.node, conn.client, conn.session.tracks);
        let count: usize = words[2].parse().unwrap();
        let arguments = &words[3 + count..];
        let names = &self.clients[client].names;
        let ops: Vec<Op> = words[3..3 + count]
            .iter()
            .filter_map(|key| names.get(&Name::from(key.as_str())))
            .map(|(_, op)| op.clone())
            .take(calls.len())
            .collect();
        let number_at = |at: usize| arguments[at].parse::<u64>().unwrap();
        let not_after = match &ops[0] {
            Op::Acquire(_) if is_shared => number_at(1),
            Op::Acquire(_) => number_at(2).saturating_sub(number_at(1)),
            _ => u64::MAX,
        };
        let origin = Origin {
            uuid: client as u64,
            generation: id,
        };
        let data = &mut self.nodes[number].data;
        let now_ms = data.now_ms();
        let mut replies = Vec::new();
        for (call, op) in calls.iter().zip(&ops) {
            let is_odd = is_shared && data.is_odd(origin, op);
            let reply = (!is_odd).then(|| data.execute(origin, tracks, op, not_after));
            if let Some(open) = self.clients[client].calls.get_mut(call) {
                if open.at.is_some_and(|at| at != number) {
                    let wrong = format!("call {call} is for another server than {number}");
                    self.wrong.get_or_insert(wrong);
                }
                match &reply {
                    Some(reply) => open.said.push(reply.clone()),
                    None => open.may_run = 0,
                }
                let over = data.clock_at(open.sent + open.limit);
                if not_after != u64::MAX && not_after > over + 1 {
                    let wrong = format!("call {call} may run until {not_after}, behind {over}");
                    self.wrong.get_or_insert(wrong);
                }
                if reply == Some(Reply::Stale) && now_ms < over.saturating_sub(400) {
                    let wrong = format!("call {call} is refused as late, at {now_ms} of {over}");
                    self.wrong.get_or_insert(wrong);
                }
            }
            replies.push(reply);
        }
        self.effects(number);
        for op in &ops {
            if self.random.chance(200)
                && let Some(name) = op.name()
            {
                let delay = self.random.between(1_000, 400_000);
                self.after(delay, Event::Touch(number, name.clone()));
            }
        }
        if is_shared {
            let sort = BatchKey::of(&ops[0], Publish::Classic).unwrap();
            if replies.contains(&Some(Reply::Stale)) {
                replies.clear();
            }
            return wire::encode_many(sort, now_ms, &replies);
        }
        let value = wire::encode(&ops[0], now_ms, replies[0].as_ref().unwrap());
        match (ops[0].follow_up(std::time::Duration::ZERO), value) {
            (Some(_), Value::Array(both)) => both.into_iter().next().unwrap(),
            (_, value) => value,
        }
    }
}

fn shown(words: &[String]) -> String {
    let words: Vec<&str> = words
        .iter()
        .map(|word| &word[..word.len().min(60)])
        .collect();
    if words[0] == "EVAL" {
        format!("EVAL ... {}", words[2..].join(" "))
    } else {
        words.join(" ")
    }
}
