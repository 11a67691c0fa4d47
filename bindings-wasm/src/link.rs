//! One connection for commands, which is made, watched and replaced here. It follows the rules of
//! `core/src/driver/link.rs`; the bytes come from the host and go to it.

use std::collections::VecDeque;
use std::time::Duration;

use redlatch_proto::connecting::{self, Backoff};
use redlatch_proto::engine::{CallOutcome, Input, LinkId, STANDALONE};
use redlatch_proto::error::Error;
use redlatch_proto::moment::Moment;
use redlatch_proto::outbox::News;
use redlatch_proto::outbox::calls::{Outbox, OutgoingCall, Payload};
use redlatch_proto::outbox::limiter::ConcurrencyLimiter;
use redlatch_proto::outbox::server_clock::ServerClock;
use redlatch_proto::outbox::wanted::Wanted;
use redlatch_proto::tuning;
use redlatch_proto::url::{At, Host, Login};
use redlatch_proto::value::Value;
use redlatch_proto::wire::{self, Name, Publish};

use crate::bytes::{Records, record};
use crate::options::Protocol;
use crate::resp::{Item, Reader, write_command};

pub(crate) type ConnId = u64;

/// Where and how to connect.
pub(crate) struct Server {
    /// The client, for the host.
    pub(crate) client: f64,
    pub(crate) at: At,
    pub(crate) login: Login,
    pub(crate) tls: bool,
    pub(crate) timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) protocol: Protocol,
    pub(crate) tracking: bool,
    pub(crate) name: String,
    pub(crate) uuid: String,
}

/// The way to the host.
pub(crate) struct Io<'a> {
    pub(crate) records: &'a mut Records,
    pub(crate) last_conn: &'a mut ConnId,
    pub(crate) random: &'a mut u64,
}

impl Io<'_> {
    pub(crate) fn connect(&mut self, server: &Server) -> ConnId {
        *self.last_conn += 1;
        let (host, port) = match &server.at {
            At::Tcp(Host { name, port }) => (name, *port),
            At::Unix(path) => (path, 0),
        };
        self.records
            .byte(record::CONNECT)
            .number(*self.last_conn as f64)
            .number(server.client)
            .byte(u8::from(server.tls))
            .text(host)
            .number(port.into())
            .number(server.keep_alive.as_secs_f64() * 1000.0);
        *self.last_conn
    }

    pub(crate) fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        if !bytes.is_empty() {
            let records = self.records.byte(record::WRITE).number(conn as f64);
            records.bytes(bytes);
        }
    }

    pub(crate) fn close(&mut self, conn: ConnId) {
        self.records.byte(record::CLOSE).number(conn as f64);
    }

    /// A random number for the jitter of pauses (SplitMix64).
    fn random(&mut self) -> u32 {
        *self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u32
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Use {
    Commands,
    /// Pub/sub with RESP2, which needs a connection of its own.
    Channels,
}

/// Keeps one connection to the server.
pub(crate) struct Link {
    usage: Use,
    backoff: Backoff,
    state: State,
    /// How many connections have been up.
    pub(crate) generation: u64,
    untracked: Option<String>,
    evicts: Option<String>,
    /// An event has told that no messages come.
    silenced: bool,
    /// The client is being closed, and its host may end before it hears that a script is unknown.
    pub(crate) closing: bool,
}

enum State {
    /// It is not wanted.
    Off,
    Resting(Moment),
    Connecting(Box<Attempt>),
    Up(Box<Live>),
}

/// A connection that is being set up.
struct Attempt {
    conn: ConnId,
    resp3: bool,
    deadline: Moment,
    reader: Reader,
    /// The commands without a reply.
    steps: VecDeque<Step>,
    /// The last group of the uuids of owners.
    identity: u64,
    untracked: Option<String>,
    evicts: Option<String>,
    time: Option<u64>,
}

#[derive(Clone, Copy)]
enum Step {
    Hello,
    Auth,
    Select,
    Name,
    Track,
    Memory,
    Time,
}

/// A connection that is up.
struct Live {
    conn: ConnId,
    resp3: bool,
    reader: Reader,
    traffic: Outbox,
    /// The purposes of the next replies, oldest first.
    expected: VecDeque<Expected>,
    /// The answer to the script of a call that another command follows.
    answer: Option<Value>,
    /// The scripts that were called on this connection.
    called: Vec<wire::ScriptId>,
    since: Moment,
    /// When the server was last heard, for pub/sub.
    heard: Moment,
    /// Bytes to be written.
    out: Vec<u8>,
}

enum Expected {
    Call { is_followed: bool },
    FollowUp,
    Subscribed(String, Option<Name>, Moment),
    Unsubscribed(Moment),
    Pong(Moment),
}

impl Expected {
    /// When a command of pub/sub was sent.
    fn asked(&self) -> Option<Moment> {
        match self {
            Expected::Subscribed(_, _, at) | Expected::Unsubscribed(at) | Expected::Pong(at) => {
                Some(*at)
            }
            Expected::Call { .. } | Expected::FollowUp => None,
        }
    }
}

impl Link {
    pub(crate) fn new(usage: Use) -> Self {
        Link {
            usage,
            backoff: Backoff::default(),
            state: State::Off,
            generation: 0,
            untracked: None,
            evicts: None,
            silenced: false,
            closing: false,
        }
    }

    const ID: LinkId = STANDALONE;

    /// Connects, unless that was begun before.
    pub(crate) fn begin(&mut self, now: Moment, server: &Server, io: &mut Io<'_>) {
        if matches!(self.state, State::Off) {
            self.rest(now, server, io);
        }
    }

    /// Closes the connection for good.
    pub(crate) fn end(&mut self, io: &mut Io<'_>) {
        if let Some(conn) = self.conn() {
            io.close(conn);
        }
        self.state = State::Off;
    }

    fn conn(&self) -> Option<ConnId> {
        match &self.state {
            State::Connecting(attempt) => Some(attempt.conn),
            State::Up(live) => Some(live.conn),
            State::Off | State::Resting(_) => None,
        }
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.conn() == Some(conn)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    fn live(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            State::Up(live) => Some(live),
            _ => None,
        }
    }

    /// Whether it is up and the server can push messages on it.
    pub(crate) fn pushes(&self) -> bool {
        matches!(&self.state, State::Up(live) if live.resp3)
    }

    pub(crate) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        match self.live() {
            Some(live) => live.traffic.send(now, sending),
            None => news.tell(Input::Outcome {
                call: sending.call,
                outcome: CallOutcome::NotSent,
            }),
        }
    }

    // ---- what the host tells ----

    /// The connection is open: logs in.
    pub(crate) fn opened(&mut self, identity: u64, server: &Server, io: &mut Io<'_>) {
        let State::Connecting(attempt) = &mut self.state else {
            return;
        };
        attempt.identity = identity & 0xffff_ffff_ffff;
        let bytes = attempt.hail(self.usage, server);
        io.write(attempt.conn, &bytes);
    }

    /// Bytes have arrived.
    pub(crate) fn received(
        &mut self,
        now: Moment,
        bytes: &[u8],
        wanted: &Wanted,
        server: &Server,
        io: &mut Io<'_>,
        news: &mut News,
    ) {
        match &mut self.state {
            State::Connecting(attempt) => attempt.reader.add(bytes),
            State::Up(live) => live.reader.add(bytes),
            State::Off | State::Resting(_) => return,
        }
        loop {
            match &mut self.state {
                State::Connecting(attempt) => match attempt.read(server) {
                    Ok(Setup::Wants) => return,
                    Ok(Setup::Older) => return self.connect(now, false, server, io),
                    Ok(Setup::Done) => self.up(now, server, news),
                    Err(error) => return self.failed(now, error, server, io, news),
                },
                State::Up(live) => match live.read(now, wanted, server, news) {
                    Ok(heard) => {
                        self.silenced &= !heard;
                        return;
                    }
                    Err(why) => return self.down(now, &why, server, io, news),
                },
                State::Off | State::Resting(_) => return,
            }
        }
    }

    /// The connection was closed, or could not be made.
    pub(crate) fn closed(
        &mut self,
        now: Moment,
        why: &Lost<'_>,
        server: &Server,
        io: &mut Io<'_>,
        news: &mut News,
    ) {
        match &self.state {
            State::Connecting(_) => {
                let shown = server.at.to_string();
                let error = match why.tls {
                    Some(fault) => fault.error(&shown, why.text),
                    None => connecting::unreachable(&shown, why.text, false),
                };
                self.failed(now, error, server, io, news);
            }
            State::Up(_) => self.down(now, &format!("broke ({})", why.text), server, io, news),
            State::Off | State::Resting(_) => {}
        }
    }

    // ---- time ----

    /// When [`wake`](Link::wake) has to be called, if nothing else happens.
    pub(crate) fn next_wake(&self, wanted: &Wanted) -> Option<Moment> {
        match &self.state {
            State::Off => None,
            State::Resting(until) => Some(*until),
            State::Connecting(attempt) => Some(attempt.deadline),
            State::Up(live) => {
                let listening = self
                    .listens()
                    .then(|| live.listening_due(wanted.is_empty()));
                [live.traffic.next_wake(), listening.flatten()]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    /// Whether messages of pub/sub come on this connection.
    fn listens(&self) -> bool {
        self.usage == Use::Channels || self.pushes()
    }

    /// Does what is due.
    pub(crate) fn wake(
        &mut self,
        now: Moment,
        wanted: &Wanted,
        server: &Server,
        io: &mut Io<'_>,
        news: &mut News,
    ) {
        if self.next_wake(wanted).is_none_or(|due| now < due) {
            return;
        }
        let listens = self.listens();
        match &mut self.state {
            State::Off => {}
            State::Resting(_) if self.usage == Use::Channels && wanted.is_empty() => self.end(io),
            State::Resting(_) => self.connect(now, server.protocol != Protocol::Resp2, server, io),
            State::Connecting(_) => {
                let error = connecting::late(&server.at.to_string(), server.tls, server.timeout);
                self.failed(now, error, server, io, news);
            }
            State::Up(live) => {
                if live.traffic.next_wake().is_some_and(|due| due <= now)
                    && let Err(silent) = live.traffic.wake(now, news)
                {
                    let why = format!("has been silent for {silent:?}");
                    return self.down(now, &why, server, io, news);
                }
                if !listens
                    || live
                        .listening_due(wanted.is_empty())
                        .is_none_or(|due| now < due)
                {
                    return;
                }
                if live.oldest_asked().is_some() {
                    let why = "for pub/sub has fallen silent";
                    self.down(now, why, server, io, news);
                } else if wanted.is_empty() {
                    self.end(io);
                } else {
                    write_command(&mut live.out, &["PING"]);
                    live.expected.push_back(Expected::Pong(now));
                }
            }
        }
    }

    // ---- states ----

    fn connect(&mut self, now: Moment, resp3: bool, server: &Server, io: &mut Io<'_>) {
        if let Some(conn) = self.conn() {
            io.close(conn);
        }
        let deadline = match &self.state {
            // The second attempt, with the older protocol.
            State::Connecting(attempt) => attempt.deadline,
            _ => now.after(server.timeout),
        };
        let conn = io.connect(server);
        self.state = State::Connecting(Box::new(Attempt {
            conn,
            resp3: resp3 && self.usage == Use::Commands,
            deadline,
            reader: Reader::default(),
            steps: VecDeque::new(),
            identity: 0,
            untracked: None,
            evicts: None,
            time: None,
        }));
    }

    fn up(&mut self, now: Moment, server: &Server, news: &mut News) {
        let State::Connecting(attempt) = std::mem::replace(&mut self.state, State::Off) else {
            return;
        };
        if self.usage == Use::Commands {
            if let Some(why) = &attempt.untracked
                && self.untracked.as_ref() != Some(why)
            {
                news.events.push(connecting::untracked(why));
            }
            self.untracked.clone_from(&attempt.untracked);
            if let Some(policy) = &attempt.evicts
                && self.evicts.as_ref() != Some(policy)
            {
                let shown = server.at.to_string();
                news.events.push(connecting::evictable(&shown, policy));
                self.evicts = Some(policy.clone());
            }
            news.connects += 1;
            news.tell(Input::Identity(attempt.identity));
            news.tell(Input::Up(Self::ID));
        }
        self.generation += 1;
        self.state = State::Up(Box::new(Live {
            conn: attempt.conn,
            resp3: attempt.resp3,
            reader: attempt.reader,
            traffic: Outbox::new(
                Self::ID,
                Publish::Classic,
                ServerClock::new(attempt.time.unwrap_or_default(), now),
                ConcurrencyLimiter::new(),
                now,
            ),
            expected: VecDeque::new(),
            answer: None,
            called: Vec::new(),
            since: now,
            heard: now,
            out: Vec::new(),
        }));
    }

    fn failed(
        &mut self,
        now: Moment,
        error: Error,
        server: &Server,
        io: &mut Io<'_>,
        news: &mut News,
    ) {
        self.tell_down(error, news);
        self.rest(now, server, io);
    }

    fn tell_down(&mut self, error: Error, news: &mut News) {
        match self.usage {
            Use::Commands => news.tell(Input::Down(Self::ID, error)),
            Use::Channels if !std::mem::replace(&mut self.silenced, true) => {
                news.events.push(connecting::unsubscribed(&error));
            }
            Use::Channels => {}
        }
    }

    pub(crate) fn down(
        &mut self,
        now: Moment,
        why: &str,
        server: &Server,
        io: &mut Io<'_>,
        news: &mut News,
    ) {
        let State::Up(live) = std::mem::replace(&mut self.state, State::Off) else {
            return;
        };
        io.close(live.conn);
        self.tell_down(connecting::broken(&server.at.to_string(), why), news);
        self.backoff.ended(live.since.until(now));
        live.traffic.broken(news);
        self.rest(now, server, io);
    }

    /// Waits before the next attempt to connect, or begins it at once.
    fn rest(&mut self, now: Moment, server: &Server, io: &mut Io<'_>) {
        if let Some(conn) = self.conn() {
            io.close(conn);
        }
        self.state = State::Off;
        match self.backoff.pause(io.random()) {
            Duration::ZERO => self.connect(now, server.protocol != Protocol::Resp2, server, io),
            pause => self.state = State::Resting(now.after(pause)),
        }
    }

    // ---- channels ----

    /// Subscribes to a channel: for one lock, or for all that use it.
    pub(crate) fn subscribe(&mut self, now: Moment, channel: &str, name: Option<Name>) {
        if let Some(live) = self.live() {
            write_command(&mut live.out, &["SUBSCRIBE", channel]);
            let expected = Expected::Subscribed(channel.to_owned(), name, now);
            live.expected.push_back(expected);
        }
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, channel: &str) {
        if let Some(live) = self.live() {
            write_command(&mut live.out, &["UNSUBSCRIBE", channel]);
            live.expected.push_back(Expected::Unsubscribed(now));
        }
    }

    // ---- writing ----

    /// From now on calls are written, however many have no answer yet.
    pub(crate) fn write_all(&mut self) {
        if let Some(live) = self.live() {
            live.traffic.write_all();
        }
    }

    /// Writes all that is to be written.
    pub(crate) fn flush(&mut self, now: Moment, server: &Server, io: &mut Io<'_>, news: &mut News) {
        let closing = self.closing;
        if let Some(live) = self.live() {
            live.write(&server.uuid, closing);
            while live.traffic.keeps_waiting() && live.traffic.go_on(now, news) {
                live.write(&server.uuid, closing);
            }
            io.write(live.conn, &live.out);
            live.out.clear();
            live.out.shrink_to(1 << 16);
        }
    }
}

/// Why a connection is gone, as the host tells.
pub(crate) struct Lost<'a> {
    pub(crate) text: &'a str,
    pub(crate) tls: Option<connecting::TlsFault>,
}

/// How far the set-up of a connection is.
enum Setup {
    /// More replies are to come.
    Wants,
    /// The server knows only RESP2.
    Older,
    Done,
}

impl Attempt {
    /// All commands that set the connection up, in one write.
    fn hail(&mut self, usage: Use, server: &Server) -> Vec<u8> {
        let Login {
            user,
            password,
            database,
        } = &server.login;
        let mut out = Vec::new();
        let steps = &mut self.steps;
        let mut add = |step: Step, words: &[&str]| {
            write_command(&mut out, words);
            steps.push_back(step);
        };
        let user = user.as_deref();
        match (self.resp3, password) {
            (true, Some(password)) => {
                let user = user.unwrap_or("default");
                add(Step::Hello, &["HELLO", "3", "AUTH", user, password]);
            }
            (true, None) => add(Step::Hello, &["HELLO", "3"]),
            (false, Some(password)) => match user {
                Some(user) => add(Step::Auth, &["AUTH", user, password]),
                None => add(Step::Auth, &["AUTH", password]),
            },
            (false, None) => {}
        }
        if *database != 0 {
            add(Step::Select, &["SELECT", &database.to_string()]);
        }
        add(Step::Name, &["CLIENT", "SETNAME", &server.name]);
        if usage == Use::Commands {
            if server.tracking && self.resp3 {
                add(Step::Track, &["CLIENT", "TRACKING", "ON", "NOLOOP"]);
            } else if server.tracking {
                self.untracked = Some(connecting::RESP2_ONLY.to_owned());
            }
            add(Step::Memory, &["INFO", "memory"]);
            add(Step::Time, &["TIME"]);
        }
        out
    }

    fn read(&mut self, server: &Server) -> Result<Setup, Error> {
        let shown = || server.at.to_string();
        while let Some(step) = self.steps.front().copied() {
            let item = self
                .reader
                .next()
                .map_err(|why| connecting::unreachable(&shown(), why, !server.tls))?;
            let value = match item {
                None => return Ok(Setup::Wants),
                Some(Item::Push(_)) => continue,
                Some(Item::Reply(value)) => value,
            };
            self.steps.pop_front();
            let Value::ServerError(error) = &value else {
                match (step, &value) {
                    (Step::Memory, Value::BulkString(text)) => {
                        self.evicts = connecting::evicts(&String::from_utf8_lossy(text));
                    }
                    (Step::Time, _) => {
                        let why = "it does not tell its time";
                        let told = time(&value);
                        self.time =
                            Some(told.ok_or_else(|| {
                                connecting::unreachable(&shown(), why, !server.tls)
                            })?);
                    }
                    _ => {}
                }
                continue;
            };
            let (code, details) = (error.code(), error.details());
            let detail = details.unwrap_or_default();
            let refused = || connecting::refused(&shown(), code, detail);
            let turned_away = || wire::refusal(code, detail).1;
            match step {
                Step::Hello => {
                    let with_password = server.login.password.is_some();
                    if server.protocol == Protocol::Auto
                        && connecting::refuses_hello(code, details, with_password)
                    {
                        return Ok(Setup::Older);
                    }
                    return Err(refused());
                }
                Step::Auth if !turned_away() => {
                    return Err(connecting::log_in_refused(&shown(), false));
                }
                Step::Auth | Step::Select | Step::Time => return Err(refused()),
                Step::Name if turned_away() => return Err(refused()),
                Step::Track => self.untracked = Some(refused().message().to_owned()),
                Step::Name | Step::Memory => {}
            }
        }
        Ok(Setup::Done)
    }
}

/// The reply to `TIME`, in milliseconds.
fn time(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let part = |at: usize| match parts.get(at)? {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    Some(connecting::millis_of((part(0)?, part(1)?)))
}

impl Live {
    fn oldest_asked(&self) -> Option<Moment> {
        self.expected.iter().find_map(Expected::asked)
    }

    /// Whether the next reply is for a command of pub/sub.
    fn asks_next(&self) -> bool {
        let next = self.expected.front();
        next.is_some_and(|next| next.asked().is_some())
    }

    /// When pub/sub needs attention: a confirmation is late, a ping is due, or a connection for
    /// channels alone has none.
    fn listening_due(&self, unwanted: bool) -> Option<Moment> {
        // A reply to a call also shows that the server is there.
        let heard = self.heard.max(self.traffic.last_heard());
        match self.oldest_asked() {
            Some(at) => Some(heard.max(at).after(tuning::PUBSUB_CONFIRM)),
            None if unwanted => (!self.resp3).then(|| heard.after(tuning::PUBSUB_LINGER)),
            None => Some(heard.after(tuning::PUBSUB_IDLE)),
        }
    }

    /// Takes in all that has arrived. True if something of pub/sub did.
    fn read(
        &mut self,
        now: Moment,
        wanted: &Wanted,
        server: &Server,
        news: &mut News,
    ) -> Result<bool, String> {
        let (mut heard, mut demoted) = (false, false);
        while let Some(item) = self.reader.next().map_err(|why| format!("broke ({why})"))? {
            match item {
                Item::Push(words) => heard |= self.pushed(now, words, wanted, server, news),
                // With RESP2 a connection with channels gets nothing but messages and confirmations.
                Item::Reply(Value::Array(words))
                    if self
                        .expected
                        .front()
                        .is_none_or(|next| next.asked().is_some())
                        && !self.resp3 =>
                {
                    heard |= self.pushed(now, words, wanted, server, news);
                }
                Item::Reply(value) => demoted |= self.replied(now, value, wanted, server, news),
            }
        }
        if heard {
            self.heard = now;
        }
        if demoted {
            return Err("leads to a replica".to_owned());
        }
        Ok(heard)
    }

    fn replied(
        &mut self,
        now: Moment,
        value: Value,
        wanted: &Wanted,
        server: &Server,
        news: &mut News,
    ) -> bool {
        match self.expected.pop_front() {
            Some(Expected::Call { is_followed: false }) => self.traffic.replied(now, value, news),
            Some(Expected::Call { is_followed: true }) => {
                self.answer = Some(value);
                false
            }
            Some(Expected::FollowUp) => {
                let answer = self.answer.take().unwrap_or(Value::Nil);
                self.traffic
                    .replied(now, Value::Array(vec![answer, value]), news)
            }
            Some(Expected::Subscribed(channel, of, _)) => {
                let error = match &value {
                    Value::ServerError(error) => Some(connecting::refused(
                        &server.at.to_string(),
                        error.code(),
                        error.details().unwrap_or_default(),
                    )),
                    _ => None,
                };
                confirmed(&channel, of.as_ref(), error.as_ref(), wanted, news);
                self.heard = now;
                false
            }
            Some(Expected::Unsubscribed(_) | Expected::Pong(_)) => {
                self.heard = now;
                false
            }
            None => false,
        }
    }

    /// Handles a push message. True if it belongs to pub/sub.
    fn pushed(
        &mut self,
        now: Moment,
        words: Vec<Value>,
        wanted: &Wanted,
        server: &Server,
        news: &mut News,
    ) -> bool {
        self.traffic.heard(now);
        let mut words = words.into_iter();
        let kind = text(words.next());
        match kind.as_str() {
            "invalidate" => {
                if let Some(names) = invalidated(words.next()) {
                    news.tell(Input::Invalidated(names));
                }
                return false;
            }
            "message" => {
                let channel = text(words.next());
                let names = wanted.names(&channel).iter().cloned();
                news.inputs.extend(names.map(Input::Message));
            }
            // They confirm commands, in the order of these.
            "subscribe" | "unsubscribe" | "pong" if self.asks_next() => {
                self.replied(now, Value::Nil, wanted, server, news);
            }
            _ => {}
        }
        true
    }

    /// Encodes the commands that the outbox wants to be written.
    fn write(&mut self, uuid: &str, closing: bool) {
        self.traffic.send_gathered();
        let publish = self.traffic.publish();
        let mut command_bytes = Vec::new();
        loop {
            let others_follow = self.traffic.to_be_fetched() > 1;
            let Some(command) = self.traffic.next_command() else {
                break;
            };
            let sendings = command.load.sendings();
            let waits = sendings.iter().any(|sending| sending.op.replicas() > 0);
            let call = match &command.load {
                Payload::Single(sending) => {
                    wire::Call::new(&sending.op, uuid, command.not_after, publish)
                }
                Payload::Batch(sort, sendings) => {
                    let ops = sendings.iter().map(|sending| &*sending.op);
                    wire::Call::many(*sort, ops, uuid, command.not_after)
                }
            };
            let first = !self.called.contains(&call.id());
            if first {
                self.called.push(call.id());
            }
            // A server that does not know the script would refuse all calls that leave together.
            if command.full || first && (others_follow || waits || closing) {
                call.write_eval(&mut command_bytes);
            } else {
                call.write_evalsha(&mut command_bytes);
            }
            self.out.extend_from_slice(&command_bytes);
            let follow_up = match sendings {
                [sending] => sending.op.follow_up(sending.limit),
                _ => None,
            };
            let is_followed = follow_up.is_some();
            self.expected.push_back(Expected::Call { is_followed });
            if let Some(follow_up) = follow_up {
                let words = follow_up.words();
                let words: Vec<&str> = words.iter().map(|word| &**word).collect();
                write_command(&mut self.out, &words);
                self.expected.push_back(Expected::FollowUp);
            }
        }
    }
}

/// Tells the locks of a channel that it is subscribed, or why it cannot be.
fn confirmed(
    channel: &str,
    of: Option<&Name>,
    error: Option<&Error>,
    wanted: &Wanted,
    news: &mut News,
) {
    let names = wanted.names(channel).iter();
    for name in names.filter(|name| of.is_none_or(|of| of == *name)) {
        news.tell(match error {
            None => Input::Subscribed(name.clone()),
            Some(error) => Input::Unsubscribable(name.clone(), error.clone()),
        });
    }
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Some(Value::SimpleString(text)) => text,
        _ => String::new(),
    }
}

/// The locks among the invalidated keys (inside `None`: all keys, as after `FLUSHALL`). The outer
/// `None`: there is no lock among them.
fn invalidated(keys: Option<Value>) -> Option<Option<Vec<Name>>> {
    let Some(Value::Array(keys)) = keys else {
        return Some(None);
    };
    let name = |key: &Value| match key {
        Value::BulkString(bytes) => wire::names::name_from_bytes(bytes).ok(),
        _ => None,
    };
    let names: Vec<Name> = keys.iter().filter_map(name).collect();
    (!names.is_empty()).then_some(Some(names))
}
