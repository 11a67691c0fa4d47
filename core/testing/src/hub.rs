//! All that the connections share: the data, the clock, who is subscribed, and who tracks which key.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::commands::{self, Access, Answer, Data, takes};
use crate::keyspace::{DATABASES, Key, Keyspace};
use crate::resp::Reply;
use redlatch_proto::glob;

pub(crate) type ClientId = u64;

/// The server's clock: that of the machine when it started, and steady from then on.
#[derive(Clone)]
pub(crate) struct Clock {
    start: Instant,
    base: Duration,
    /// By how many ms a test has moved it ahead.
    ahead: Arc<AtomicU64>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock {
            start: Instant::now(),
            base: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            ahead: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        let ahead = Duration::from_millis(self.ahead.load(Ordering::Relaxed));
        self.base + self.start.elapsed() + ahead
    }

    pub(crate) fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        // A hundred years are enough, and leave room for every lease.
        let most = 100 * 365 * 24 * 3600 * 1000;
        let add = |ahead: u64| Some(ahead.saturating_add(ms).min(most));
        let _ = self
            .ahead
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// How pub/sub names one of its kinds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    Classic,
    /// The channels that a pattern fits, of the classic ones.
    Pattern,
    Sharded,
}

impl Reach {
    fn message(self) -> &'static str {
        match self {
            Reach::Classic => "message",
            Reach::Pattern => "pmessage",
            Reach::Sharded => "smessage",
        }
    }

    fn subscribe(self) -> &'static str {
        match self {
            Reach::Classic => "subscribe",
            Reach::Pattern => "psubscribe",
            Reach::Sharded => "ssubscribe",
        }
    }

    fn unsubscribe(self) -> &'static str {
        match self {
            Reach::Classic => "unsubscribe",
            Reach::Pattern => "punsubscribe",
            Reach::Sharded => "sunsubscribe",
        }
    }
}

/// A connection as others see it.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) database: usize,
    pub(crate) resp3: bool,
    pub(crate) tracks: bool,
    /// Its own writes are not reported to it.
    pub(crate) no_loop: bool,
    /// It is shown every command (`MONITOR`).
    pub(crate) monitors: bool,
    pub(crate) addresses: [String; 2],
    pub(crate) since: Instant,
    /// Replies and messages that have to be written.
    pub(crate) out: Vec<u8>,
    /// Messages that its own command has caused: they follow the reply.
    later: Vec<u8>,
    /// Something is in `out`, or it has to be closed.
    pub(crate) wake: Rc<Notify>,
    pub(crate) closing: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) database: usize,
}

pub(crate) struct Hub {
    pub(crate) clock: Clock,
    keyspace: Keyspace,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    tracking: BTreeMap<Key, BTreeSet<ClientId>>,
    channels: BTreeSet<(Reach, Vec<u8>, ClientId)>,
    /// The client whose command runs.
    caller: Caller,
    /// In ms; during a script it stands still.
    now: u64,
    /// The microseconds beyond the ms.
    micros: u64,
    /// An earlier end than before is next.
    pub(crate) sooner: Rc<Notify>,
    pub(crate) paused: bool,
    pub(crate) resumed: Rc<Notify>,
}

impl Hub {
    pub(crate) fn new(clock: Clock) -> Hub {
        Hub {
            clock,
            keyspace: Keyspace::default(),
            clients: BTreeMap::new(),
            next_client: 1,
            tracking: BTreeMap::new(),
            channels: BTreeSet::new(),
            caller: Caller {
                client: 0,
                database: 0,
            },
            now: 0,
            micros: 0,
            sooner: Rc::default(),
            paused: false,
            resumed: Rc::default(),
        }
    }

    // ---- connections ----

    pub(crate) fn enter(&mut self, addresses: [String; 2]) -> (ClientId, Rc<Notify>) {
        let (id, wake) = (self.next_client, Rc::new(Notify::new()));
        self.next_client += 1;
        self.clients.insert(
            id,
            Client {
                name: String::new(),
                database: 0,
                resp3: false,
                tracks: false,
                no_loop: false,
                monitors: false,
                addresses,
                since: Instant::now(),
                out: Vec::new(),
                later: Vec::new(),
                wake: wake.clone(),
                closing: false,
            },
        );
        (id, wake)
    }

    pub(crate) fn leave(&mut self, id: ClientId) {
        self.clients.remove(&id);
        self.forget(id);
    }

    /// The client tracks nothing and is subscribed to nothing any more.
    pub(crate) fn forget(&mut self, id: ClientId) {
        self.tracking.retain(|_, clients| {
            clients.remove(&id);
            !clients.is_empty()
        });
        self.channels.retain(|(.., client)| *client != id);
    }

    /// Ends connections: all, or one.
    pub(crate) fn close(&mut self, only: Option<ClientId>) -> usize {
        let mut closed = 0;
        for (id, client) in &mut self.clients {
            if only.is_none_or(|only| only == *id) {
                client.closing = true;
                client.wake.notify_one();
                closed += 1;
            }
        }
        closed
    }

    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.resumed.notify_waiters();
    }

    // ---- one command ----

    /// A command begins: the clock stands still until the next one.
    pub(crate) fn begin(&mut self, client: ClientId) {
        let database = self
            .clients
            .get(&client)
            .map_or(0, |client| client.database);
        self.caller = Caller { client, database };
        self.expire();
    }

    /// Puts the reply before the messages that the command has caused.
    pub(crate) fn end(&mut self, id: ClientId, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            reply.write(&mut client.out, client.resp3);
            client.out.append(&mut client.later);
        }
        self.rest();
    }

    /// No command runs any more, or it only waits: what others cause need not wait for its reply.
    pub(crate) fn rest(&mut self) {
        self.caller.client = 0;
    }

    /// Shows a command to those who monitor; `from`: an address, or `lua`.
    pub(crate) fn show(&mut self, from: &str, words: &[Vec<u8>]) {
        let monitors = self.clients.iter().filter(|(_, client)| client.monitors);
        let ids: Vec<ClientId> = monitors.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let (seconds, micros) = (self.now / 1000, self.now % 1000 * 1000);
        let database = self.caller.database;
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("\"{}\"", quoted(word)))
            .collect();
        let line = format!(
            "{seconds}.{micros:06} [{database} {from}] {}",
            words.join(" ")
        );
        for id in ids {
            self.send(id, &Reply::Status(line.clone().into()));
        }
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    pub(crate) fn time(&self) -> Reply {
        let (seconds, micros) = (self.now / 1000, self.now % 1000 * 1000 + self.micros);
        Reply::Array(vec![
            Reply::bulk(seconds.to_string()),
            Reply::bulk(micros.to_string()),
        ])
    }

    /// Runs a command that a script may call as well; `None` if there is none of this name.
    pub(crate) fn run(&mut self, name: &str, args: &[Vec<u8>]) -> Option<Answer> {
        let count = args.len() + 1;
        let exact = |arity| {
            takes(arity, count)
                .then_some(())
                .ok_or_else(|| wrong_number(name))
        };
        match name {
            "TIME" => return Some(exact(1).map(|()| self.time())),
            "PING" => {
                return Some(exact(-1).map(|()| {
                    args.first()
                        .map_or(Reply::Status("PONG".into()), Reply::bulk)
                }));
            }
            "PUBLISH" | "SPUBLISH" => {
                let reach = if name == "PUBLISH" {
                    Reach::Classic
                } else {
                    Reach::Sharded
                };
                return Some(exact(3).map(|()| self.publish(reach, &args[0], &args[1])));
            }
            _ => {}
        }
        let command = commands::find(name)?;
        if let Err(refusal) = exact(command.arity) {
            return Some(Err(refusal));
        }
        let mut changed = Vec::new();
        let answer = (command.run)(
            &mut Data {
                keyspace: &mut self.keyspace,
                database: self.caller.database,
                now: self.now,
                changed: &mut changed,
            },
            args,
        );
        let client = self.clients.get(&self.caller.client);
        if client.is_some_and(|client| client.tracks) && command.access != Access::Writes {
            for key in command.read(args) {
                self.tracking
                    .entry(key.clone())
                    .or_default()
                    .insert(self.caller.client);
            }
        }
        let writer = self.caller.client;
        for key in changed {
            self.invalidate(&key, Some(writer));
        }
        Some(answer)
    }

    // ---- time ----

    /// Removes the keys that have run out, and reports them.
    pub(crate) fn expire(&mut self) {
        let now = self.clock.now();
        self.now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.micros = u64::from(now.subsec_micros() % 1000);
        while let Some(key) = self.keyspace.take_ended(self.now) {
            self.invalidate(&key, None);
        }
    }

    /// How long until the next key has run out.
    pub(crate) fn next_end(&self) -> Option<Duration> {
        let after = Duration::from_millis(self.keyspace.next_end()?.saturating_add(1));
        Some(after.saturating_sub(self.clock.now()))
    }

    // ---- tracking ----

    /// Reports a key to those that have read it. They have to read it again to hear of the next
    /// change.
    fn invalidate(&mut self, key: &[u8], writer: Option<ClientId>) {
        let message = Reply::Push(vec![
            Reply::bulk("invalidate"),
            Reply::Array(vec![Reply::bulk(key)]),
        ]);
        for id in self.tracking.remove(key).unwrap_or_default() {
            let own = writer == Some(id);
            if self
                .clients
                .get(&id)
                .is_some_and(|client| client.tracks && !(own && client.no_loop))
            {
                self.send(id, &message);
            }
        }
    }

    pub(crate) fn track(&mut self, id: ClientId, tracks: bool, no_loop: bool) {
        if let Some(client) = self.clients.get_mut(&id) {
            (client.tracks, client.no_loop) = (tracks, no_loop);
        }
        if !tracks {
            self.tracking.retain(|_, clients| {
                clients.remove(&id);
                !clients.is_empty()
            });
        }
    }

    // ---- data as a whole ----

    /// Deletes a key in all databases, and says whether there was one.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let there = (0..DATABASES)
            .filter(|database| self.keyspace.remove(*database, key))
            .count()
            > 0;
        if there {
            self.invalidate(key, None);
        }
        there
    }

    /// Deletes all data of one database, or of all.
    pub(crate) fn flush(&mut self, only: Option<usize>) {
        for database in (0..DATABASES).filter(|database| only.is_none_or(|only| only == *database))
        {
            self.keyspace.clear(database);
        }
        self.tracking.clear();
        let tracking = self.clients.iter().filter(|(_, client)| client.tracks);
        let ids: Vec<ClientId> = tracking.map(|(id, _)| *id).collect();
        for id in ids {
            self.send(
                id,
                &Reply::Push(vec![Reply::bulk("invalidate"), Reply::Nil]),
            );
        }
    }

    // ---- pub/sub ----

    /// Returns how many clients have got it.
    pub(crate) fn publish(&mut self, reach: Reach, channel: &[u8], payload: &[u8]) -> Reply {
        let hears = |of: Reach, name: &[u8]| match of {
            Reach::Pattern => reach == Reach::Classic && glob::fits(name, channel),
            _ => of == reach && name == channel,
        };
        let all = self
            .channels
            .iter()
            .filter(|(of, name, _)| hears(*of, name));
        let found: Vec<_> = all.cloned().collect();
        for (of, name, id) in &found {
            let pattern = (*of == Reach::Pattern).then(|| Reply::bulk(name));
            let parts = [
                Some(Reply::bulk(of.message())),
                pattern,
                Some(Reply::bulk(channel)),
                Some(Reply::bulk(payload)),
            ];
            self.send(*id, &Reply::Push(parts.into_iter().flatten().collect()));
        }
        Reply::count(found.len())
    }

    pub(crate) fn subscribe(&mut self, id: ClientId, reach: Reach, channels: &[Vec<u8>]) -> Reply {
        let each = channels.iter().map(|channel| {
            self.channels.insert((reach, channel.clone(), id));
            let count = Reply::count(self.confirmed(id, reach));
            Reply::Push(vec![
                Reply::bulk(reach.subscribe()),
                Reply::bulk(channel),
                count,
            ])
        });
        Reply::Several(each.collect())
    }

    /// Without channels it is all of them.
    pub(crate) fn unsubscribe(
        &mut self,
        id: ClientId,
        reach: Reach,
        channels: &[Vec<u8>],
    ) -> Reply {
        let own = self
            .channels
            .iter()
            .filter(|(of, _, client)| *of == reach && *client == id);
        let mut names: Vec<Reply> = match channels {
            [] => own.map(|(_, name, _)| Reply::bulk(name)).collect(),
            some => some.iter().map(Reply::bulk).collect(),
        };
        if names.is_empty() {
            names.push(Reply::Nil);
        }
        let each = names.into_iter().map(|name| {
            if let Reply::Bulk(channel) = &name {
                self.channels.remove(&(reach, channel.clone(), id));
            }
            let count = Reply::count(self.confirmed(id, reach));
            Reply::Push(vec![Reply::bulk(reach.unsubscribe()), name, count])
        });
        Reply::Several(each.collect())
    }

    /// To how many channels a client is subscribed.
    pub(crate) fn subscriptions(&self, id: ClientId, only: Option<Reach>) -> usize {
        let own = self
            .channels
            .iter()
            .filter(|(of, _, client)| *client == id && only.is_none_or(|only| only == *of));
        own.count()
    }

    /// The number that confirms a subscription: channels and patterns count together.
    fn confirmed(&self, id: ClientId, reach: Reach) -> usize {
        match reach {
            Reach::Sharded => self.subscriptions(id, Some(reach)),
            _ => {
                self.subscriptions(id, Some(Reach::Classic))
                    + self.subscriptions(id, Some(Reach::Pattern))
            }
        }
    }

    /// How many clients are subscribed to each of these channels.
    pub(crate) fn subscribers(&self, reach: Reach, channels: &[Vec<u8>]) -> Reply {
        let count = |channel: &Vec<u8>| {
            let all = self
                .channels
                .iter()
                .filter(|(of, name, _)| *of == reach && name == channel);
            [Reply::bulk(channel), Reply::count(all.count())]
        };
        Reply::Array(channels.iter().flat_map(count).collect())
    }

    /// The channels that somebody is subscribed to.
    pub(crate) fn channels(&self, reach: Reach) -> BTreeSet<&[u8]> {
        let all = self.channels.iter().filter(|(of, ..)| *of == reach);
        all.map(|(_, name, _)| name.as_slice()).collect()
    }

    fn send(&mut self, id: ClientId, message: &Reply) {
        let own = self.caller.client == id;
        if let Some(client) = self.clients.get_mut(&id) {
            let out = if own {
                &mut client.later
            } else {
                &mut client.out
            };
            message.write(out, client.resp3);
            client.wake.notify_one();
        }
    }
}

/// As `MONITOR` shows a word.
fn quoted(word: &[u8]) -> String {
    let plain = |byte: &u8| *byte == b'\'';
    let parts = word
        .split_inclusive(plain)
        .map(|part| match part.split_last() {
            Some((last, rest)) if plain(last) => format!("{}'", rest.escape_ascii()),
            _ => part.escape_ascii().to_string(),
        });
    parts.collect()
}

pub(crate) fn wrong_number(name: &str) -> String {
    format!(
        "ERR wrong number of arguments for '{}' command",
        name.to_lowercase()
    )
}
