//! One connection for commands or channels, which is made, watched and replaced here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use crate::connecting::{self, Backoff};
use crate::engine::{CallOutcome, Input, LinkId};
use crate::error::Error;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::{Outbox, OutgoingCall};
use crate::outbox::limiter::ConcurrencyLimiter;
use crate::outbox::server_clock::ServerClock;
use crate::outbox::wanted::Wanted;
use crate::sentinel::{self, Search, Service};
use crate::url::{Host, Place};
use crate::value::Value;
use crate::wire::{Name, Publish};

use super::handshake::{Handshake, Purpose, Setup};
use super::io::{Arrival, ConnId, Io};
use super::live::{Expected, Live, Told};
use super::resp::write_command;
use super::server::{Manner, Server};

/// A connection for calls that is up, as a driver needs to know it.
pub struct Calls<'a> {
    pub conn: ConnId,
    /// The server that it leads to, with the user and password that it has taken.
    pub server: &'a Rc<Server>,
    /// The number of this connection: the next one has another.
    pub generation: u64,
    /// The server tells of changes of keys.
    pub tracked: bool,
    pub publish: Publish,
    pub clock: ServerClock,
    /// Messages come on it, and no confirmation of a channel is waited for.
    pub only_messages: bool,
}

/// The server that a link leads to.
pub(crate) enum Target {
    /// One of these. After a failure it is the turn of the next.
    Any(Vec<Rc<Server>>),
    /// The current primary, as the sentinels name it.
    Primary(Rc<Sentinels>),
}

/// The sentinels of a service.
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Rc<Server>>,
    pub(crate) service: RefCell<Service>,
    /// How to log in at the servers of the service. Only host and port are replaced.
    pub(crate) server: Rc<Server>,
}

impl Sentinels {
    pub(crate) fn new(place: &Place, hosts: &[Host], service: &str, server: Rc<Server>) -> Self {
        Sentinels {
            hosts: Server::sentinels(place, hosts, &server.manner),
            service: Service::new(service.to_owned()).into(),
            server,
        }
    }
}

/// Keeps one connection.
pub(crate) struct Link {
    id: LinkId,
    target: Target,
    /// The number of the server whose turn it is.
    turn: usize,
    purpose: Purpose,
    manner: Rc<Manner>,
    backoff: Backoff,
    state: LinkState,
    /// How many connections have been up.
    pub(crate) generation: u64,
    untracked: Option<String>,
    evicts: Option<String>,
    /// An event has told that no messages come.
    silenced: bool,
    /// Answers to questions.
    pub(crate) answers: Vec<Result<Value, Error>>,
    /// The texts of messages, where they are of interest.
    pub(crate) payloads: Option<Vec<String>>,
}

enum LinkState {
    /// It is not wanted.
    Off,
    Resting(Moment),
    Connecting(Box<Connecting>),
    Up(Box<Live>),
}

/// An attempt to connect. A search for a primary has several connections.
struct Connecting {
    attempts: Vec<Handshake>,
    deadline: Moment,
    search: Search,
}

impl Link {
    pub(crate) fn new(id: LinkId, target: Target, purpose: Purpose, manner: Rc<Manner>) -> Self {
        Link {
            id,
            target,
            turn: 0,
            purpose,
            manner,
            backoff: Backoff::default(),
            state: LinkState::Off,
            generation: 0,
            untracked: None,
            evicts: None,
            silenced: false,
            answers: Vec::new(),
            payloads: None,
        }
    }

    /// Connects, unless that was begun before.
    pub(crate) fn begin(&mut self, now: Moment, io: &mut dyn Io) {
        if matches!(self.state, LinkState::Off) {
            self.rest(now, io);
        }
    }

    /// Closes the connection for good.
    pub(crate) fn end(&mut self, io: &mut dyn Io) {
        match std::mem::replace(&mut self.state, LinkState::Off) {
            LinkState::Connecting(connecting) => {
                for attempt in connecting.attempts {
                    io.close(attempt.conn);
                }
            }
            LinkState::Up(live) => io.close(live.conn),
            LinkState::Off | LinkState::Resting(_) => {}
        }
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        match &self.state {
            LinkState::Connecting(connecting) => {
                connecting.attempts.iter().any(|one| one.conn == conn)
            }
            LinkState::Up(live) => live.conn == conn,
            LinkState::Off | LinkState::Resting(_) => false,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_))
    }

    fn up(&self) -> Option<&Live> {
        match &self.state {
            LinkState::Up(live) => Some(live),
            _ => None,
        }
    }

    fn live(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            LinkState::Up(live) => Some(live),
            _ => None,
        }
    }

    /// Whether it is up and the server can push messages on it.
    pub(crate) fn pushes(&self) -> bool {
        self.up().is_some_and(|live| live.resp3)
    }

    /// How releases are published at this server; `None` while it is not connected.
    pub(crate) fn publishes(&self) -> Option<Publish> {
        self.up().map(|live| live.traffic.publish())
    }

    pub(crate) fn calls(&self) -> Option<Calls<'_>> {
        let live = self.up()?;
        Some(Calls {
            conn: live.conn,
            server: &live.server,
            generation: self.generation,
            tracked: self.manner.tracking && self.untracked.is_none(),
            publish: live.traffic.publish(),
            clock: live.traffic.clock(),
            only_messages: live.resp3 && live.oldest_asked().is_none(),
        })
    }

    /// Whether a call is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.up().is_some_and(|live| !live.traffic.is_idle())
    }

    /// The server that the connection leads to, while it is up.
    pub(crate) fn server(&self) -> Option<&Rc<Server>> {
        self.up().map(|live| &live.server)
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

    /// Asks the server something else.
    pub(crate) fn ask(&mut self, words: &[impl AsRef<[u8]>]) {
        if let Some(live) = self.live() {
            write_command(&mut live.out, words);
            live.expected.push_back(Expected::Question);
        }
    }

    /// The answers to questions are of no interest any more.
    pub(crate) fn stop_asking(&mut self) {
        self.answers.clear();
        if let Some(live) = self.live() {
            for expected in &mut live.expected {
                if let Expected::Question = expected {
                    *expected = Expected::Nothing;
                }
            }
        }
    }

    /// The next connection leads to this server.
    pub(crate) fn lead_to(&mut self, server: Rc<Server>) {
        self.target = Target::Any(vec![server]);
    }

    /// Leads to one of these servers from now on. A connection to another one ends.
    pub(crate) fn follow(&mut self, servers: Vec<Rc<Server>>, io: &mut dyn Io) {
        let Target::Any(before) = &self.target else {
            return;
        };
        let own = before.get(self.turn % before.len().max(1));
        let own = own.and_then(|own| servers.iter().position(|server| server.is_same(own)));
        self.target = Target::Any(servers);
        if let Some(turn) = own {
            self.turn = turn;
        } else {
            self.end(io);
            self.backoff = Backoff::default();
        }
    }

    // ---- what arrives ----

    /// Takes in an event of one of its connections.
    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        match &mut self.state {
            LinkState::Connecting(connecting) => {
                let mut attempts = connecting.attempts.iter_mut();
                let Some(at) = attempts.position(|attempt| attempt.conn == conn) else {
                    return;
                };
                match connecting.attempts[at].arrived(arrival, io) {
                    Ok(Setup::Wants) => {}
                    Ok(Setup::Done) => {
                        let attempt = connecting.attempts.swap_remove(at);
                        self.set_up(now, attempt, wanted, io, news);
                    }
                    Err(error) => {
                        let attempt = connecting.attempts.swap_remove(at);
                        io.close(attempt.conn);
                        self.not_set_up(now, &attempt, error, io, news);
                    }
                }
            }
            LinkState::Up(live) => match arrival {
                Arrival::Opened(_) => {}
                Arrival::Bytes(bytes) => {
                    live.reader.add(bytes);
                    self.read(now, wanted, io, news);
                }
                Arrival::Closed(why) => {
                    let error = why.broken(&live.server);
                    self.down(now, error, wanted, io, news);
                }
            },
            LinkState::Off | LinkState::Resting(_) => {}
        }
    }

    fn read(&mut self, now: Moment, wanted: &Wanted, io: &mut dyn Io, news: &mut News) {
        let LinkState::Up(live) = &mut self.state else {
            return;
        };
        let mut told = Told {
            wanted,
            answers: &mut self.answers,
            payloads: &mut self.payloads,
            news,
        };
        match live.read(now, &mut told) {
            Ok(heard) => self.silenced &= !heard,
            Err(error) => self.down(now, error, wanted, io, news),
        }
    }

    /// A connection is set up: it is the one that was wanted, or a sentinel has answered on it.
    fn set_up(
        &mut self,
        now: Moment,
        attempt: Handshake,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let Purpose::Question(_) = attempt.purpose else {
            self.end(io);
            self.connected(now, attempt, news);
            // More may have arrived together with the last reply.
            return self.read(now, wanted, io, news);
        };
        io.close(attempt.conn);
        let answer = sentinel::primary_of(&attempt.server.shown(), &attempt.answer);
        if let (Target::Primary(sentinels), LinkState::Connecting(connecting)) =
            (&self.target, &mut self.state)
        {
            let service = sentinels.service.borrow();
            if let Some(place) = connecting.search.named(&service, answer) {
                let server = sentinels.server.at(&place);
                let attempt = Handshake::begin(server, self.purpose.clone(), io);
                connecting.attempts.push(attempt);
            }
        }
        self.look_on(now, io, news);
    }

    fn not_set_up(
        &mut self,
        now: Moment,
        attempt: &Handshake,
        error: Error,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let (Target::Primary(sentinels), LinkState::Connecting(connecting)) =
            (&self.target, &mut self.state)
        else {
            return self.failed(now, error, io, news);
        };
        if let Purpose::Question(_) = attempt.purpose {
            let service = sentinels.service.borrow();
            connecting.search.named(&service, Err(error));
        } else {
            connecting.search.failed(error);
        }
        self.look_on(now, io, news);
    }

    /// Gives up the search for the primary if nobody is left to be asked.
    fn look_on(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        if let (Target::Primary(sentinels), LinkState::Connecting(connecting)) =
            (&self.target, &mut self.state)
            && connecting.attempts.is_empty()
        {
            let search = std::mem::take(&mut connecting.search);
            let error = search.not_found(&sentinels.service.borrow());
            self.failed(now, error, io, news);
        }
    }

    // ---- time ----

    /// When [`wake`](Link::wake) has to be called, if nothing else happens.
    pub(crate) fn next_wake(&self, wanted: &Wanted) -> Option<Moment> {
        match &self.state {
            LinkState::Off => None,
            LinkState::Resting(until) => Some(*until),
            LinkState::Connecting(connecting) => Some(connecting.deadline),
            LinkState::Up(live) => {
                let listening = live
                    .listens()
                    .then(|| live.listening_due(wanted.is_empty()));
                [live.traffic.next_wake(), listening.flatten()]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    /// Does what is due.
    pub(crate) fn wake(&mut self, now: Moment, wanted: &Wanted, io: &mut dyn Io, news: &mut News) {
        if self.next_wake(wanted).is_none_or(|due| now < due) {
            return;
        }
        match &mut self.state {
            LinkState::Off => {}
            LinkState::Resting(_) if !self.purpose.is_commands() && wanted.is_empty() => {
                self.end(io)
            }
            LinkState::Resting(_) => self.connect(now, io),
            LinkState::Connecting(_) => {
                if let Some(error) = self.late() {
                    self.failed(now, error, io, news);
                }
            }
            LinkState::Up(live) => {
                if live.traffic.next_wake().is_some_and(|due| due <= now)
                    && let Err(silent) = live.traffic.wake(now, news)
                {
                    let error = live
                        .server
                        .broken(&format!("has been silent for {silent:?}"));
                    return self.down(now, error, wanted, io, news);
                }
                if !live.listens()
                    || live
                        .listening_due(wanted.is_empty())
                        .is_none_or(|due| now < due)
                {
                    return;
                }
                if live.oldest_asked().is_some() {
                    let error = live.server.broken("for pub/sub has fallen silent");
                    self.down(now, error, wanted, io, news);
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

    /// The server whose turn it is. The sentinels of a service have no turn.
    fn next_server(&self) -> Option<&Rc<Server>> {
        match &self.target {
            Target::Any(servers) => servers.get(self.turn % servers.len().max(1)),
            Target::Primary(_) => None,
        }
    }

    /// The error for an attempt that took too long.
    pub(crate) fn late(&self) -> Option<Error> {
        match &self.target {
            Target::Primary(sentinels) => {
                Some(sentinels.service.borrow().late(self.manner.timeout))
            }
            Target::Any(_) => self.next_server().map(|server| server.late()),
        }
    }

    fn connect(&mut self, now: Moment, io: &mut dyn Io) {
        self.end(io);
        let attempts: Vec<Handshake> = match &self.target {
            Target::Primary(sentinels) => {
                let purpose = Purpose::question(&sentinels.service.borrow().question());
                let hosts = sentinels.hosts.iter();
                hosts
                    .map(|host| Handshake::begin(host.clone(), purpose.clone(), io))
                    .collect()
            }
            Target::Any(_) => {
                let server = self.next_server().cloned();
                server
                    .map(|server| Handshake::begin(server, self.purpose.clone(), io))
                    .into_iter()
                    .collect()
            }
        };
        // Without a server it stays off, until it knows one.
        if !attempts.is_empty() {
            self.state = LinkState::Connecting(Box::new(Connecting {
                attempts,
                deadline: now.after(self.manner.timeout),
                search: Search::default(),
            }));
        }
    }

    fn connected(&mut self, now: Moment, attempt: Handshake, news: &mut News) {
        if let Target::Primary(sentinels) = &self.target {
            sentinels.service.borrow_mut().trust_all();
        }
        if self.purpose.is_commands() {
            if let Some(why) = &attempt.untracked
                && self.untracked.as_ref() != Some(why)
            {
                news.events.push(connecting::untracked(why));
            }
            self.untracked.clone_from(&attempt.untracked);
            if self.manner.http {
                self.tell_gap(&connecting::HTTP_ONLY, news);
            }
            if let Some(policy) = &attempt.evicts
                && self.evicts.as_ref() != Some(policy)
            {
                let shown = attempt.server.shown();
                news.events.push(connecting::evictable(&shown, policy));
                self.evicts = Some(policy.clone());
            }
            news.connects += 1;
            news.tell(Input::Identity(attempt.identity));
            news.tell(Input::Up(self.id));
        }
        self.generation += 1;
        let publish = match attempt.purpose {
            Purpose::Node => self.manner.pubsub.publish(attempt.sharded),
            _ => Publish::Classic,
        };
        let traffic = Outbox::new(
            self.id,
            publish,
            ServerClock::new(attempt.time.unwrap_or_default(), now),
            ConcurrencyLimiter::new(),
            now,
        );
        self.state = LinkState::Up(Box::new(Live {
            conn: attempt.conn,
            server: attempt.server,
            resp3: attempt.resp3,
            apart: self.purpose.is_channels(),
            words: match self.purpose {
                Purpose::Shards => ["SSUBSCRIBE", "SUNSUBSCRIBE"],
                _ => ["SUBSCRIBE", "UNSUBSCRIBE"],
            },
            reader: attempt.reader,
            traffic: traffic.following_redirects(attempt.purpose == Purpose::Node),
            expected: VecDeque::new(),
            answer: None,
            spare: None,
            called: Vec::new(),
            since: now,
            demoted: false,
            heard: now,
            out: Vec::new(),
        }));
    }

    fn failed(&mut self, now: Moment, error: Error, io: &mut dyn Io, news: &mut News) {
        self.tell_down(error, news);
        self.next_turn(now, io);
    }

    fn next_turn(&mut self, now: Moment, io: &mut dyn Io) {
        self.turn = self.turn.wrapping_add(1);
        self.rest(now, io);
    }

    fn tell_down(&mut self, error: Error, news: &mut News) {
        if self.purpose.is_channels() {
            self.tell_gap(&error, news);
        } else {
            news.tell(Input::Down(self.id, error));
        }
    }

    /// No messages come for now.
    fn tell_gap(&mut self, error: &dyn Display, news: &mut News) {
        if !std::mem::replace(&mut self.silenced, true) {
            news.events.push(connecting::unsubscribed(error));
        }
    }

    fn down(
        &mut self,
        now: Moment,
        error: Error,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let LinkState::Up(live) = std::mem::replace(&mut self.state, LinkState::Off) else {
            return;
        };
        io.close(live.conn);
        if live.demoted
            && let (Some(server), Some(peer)) = (self.next_server(), live.server.peer)
        {
            server.shun(peer);
        }
        for expected in &live.expected {
            if let Expected::Question = expected {
                self.answers.push(Err(error.clone()));
            }
        }
        self.backoff.ended(live.since.until(now));
        if live.listens() && !wanted.is_empty() {
            self.tell_gap(&error, news);
        }
        // The engine takes the outcomes of calls for those of a connection that is down.
        self.tell_down(error, news);
        live.traffic.broken(news);
        self.next_turn(now, io);
    }

    /// Leaves the server, because it is no longer the one that is wanted.
    pub(crate) fn leave(
        &mut self,
        now: Moment,
        why: &str,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        match &self.state {
            LinkState::Up(live) => {
                let error = live.server.broken(why);
                self.down(now, error, wanted, io, news);
            }
            LinkState::Connecting(_) | LinkState::Resting(_) => self.connect(now, io),
            LinkState::Off => {}
        }
    }

    /// Waits before the next attempt to connect, or begins it at once.
    fn rest(&mut self, now: Moment, io: &mut dyn Io) {
        self.end(io);
        match self.backoff.pause(io.random()) {
            Duration::ZERO => self.connect(now, io),
            pause => self.state = LinkState::Resting(now.after(pause)),
        }
    }

    // ---- channels ----

    /// Subscribes to a channel: for one lock, or for all that use it.
    pub(crate) fn subscribe(&mut self, now: Moment, channel: &str, name: Option<Name>) {
        if let Some(live) = self.live() {
            write_command(&mut live.out, &[live.words[0], channel]);
            let expected = Expected::Subscribed(channel.to_owned(), name, now);
            live.expected.push_back(expected);
        }
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, channel: &str) {
        if let Some(live) = self.live() {
            write_command(&mut live.out, &[live.words[1], channel]);
            let expected = Expected::Unsubscribed(channel.to_owned(), now);
            live.expected.push_back(expected);
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
    pub(crate) fn flush(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        if let Some(live) = self.live() {
            live.write();
            while live.traffic.keeps_waiting() && live.traffic.go_on(now, news) {
                live.write();
            }
            if !live.out.is_empty() {
                io.write(live.conn, &live.out);
            }
            live.out.clear();
            live.out.shrink_to(1 << 16);
        }
    }
}

/// A view for the simulation.
#[cfg(test)]
impl Link {
    /// Its number, its connection while it is up, and whether calls go over it.
    pub(crate) fn played(&self) -> (LinkId, Option<ConnId>, bool) {
        let conn = self.up().map(|live| live.conn);
        (self.id, conn, self.purpose.is_commands())
    }
}
