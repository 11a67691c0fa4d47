//! One client: its engine, its connections, and the calls that wait for an answer.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::engine::{
    CallOutcome, Config, Done, Engine, Input, LevelId, Output, Request, RequestId,
};
use redlatch_proto::error::{Error, ErrorKind, Result, Thing};
use redlatch_proto::event::{Counters, Event, Level, Ring};
use redlatch_proto::hold::HoldCell;
use redlatch_proto::moment::Moment;
use redlatch_proto::outbox::News;
use redlatch_proto::outbox::calls::OutgoingCall;
use redlatch_proto::outbox::wanted::Wanted;
use redlatch_proto::tuning;
use redlatch_proto::url::{Place, Topology};
use redlatch_proto::wire::{Name, Process, names};

use crate::link::{ConnId, Io, Link, Lost, Server, Use};
use crate::options::{ClientOptions, LockOptions};

/// A call and its answer.
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) result: Result<Done>,
}

/// A call that is made.
pub(crate) struct Question {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// The hold that it concerns.
    pub(crate) of: Option<Arc<HoldCell>>,
}

/// A call without an answer.
struct Asked {
    /// The operation, for errors.
    name: &'static str,
    /// The thing that it is about, for errors.
    thing: Thing,
    /// The hold that it concerns.
    of: Option<Arc<HoldCell>>,
}

pub(crate) struct Client {
    pub(crate) options: ClientOptions,
    pub(crate) locks: Rc<LockOptions>,
    server: Server,
    seed: u64,
    pub(crate) running: Option<Box<Running>>,
    /// It was closed before it was used.
    closed: bool,
    /// No handle is left.
    dropped: bool,
}

/// The part of a client that its first use makes.
pub(crate) struct Running {
    engine: Engine,
    counters: Arc<Counters>,
    pub(crate) ring: Arc<Ring>,
    link: Link,
    /// Calls that wait for replicas: `WAIT` blocks all behind it.
    waiting: Link,
    /// Calls that came before that connection was up, with their deadlines.
    held: Vec<(OutgoingCall, Moment)>,
    /// Why that connection is down.
    held_up: Option<Error>,
    /// Pub/sub with RESP2.
    channels: Link,
    wanted: Wanted,
    /// The connection that has the wanted channels.
    subscribed: (bool, u64),
    asked: HashMap<RequestId, Asked>,
    out: Vec<Output>,
    news: News,
    stopped: bool,
    /// No handle is left; when to end at the latest.
    orphaned: Option<Moment>,
}

/// A host that is later than this was blocked.
const LATE: Duration = Duration::from_millis(50);

/// How often one thing may lead to another in one turn. The engine needs a handful.
const MOST_TURNS: usize = 10_000;

/// The length of the part of a uuid that does not change.
const GROUPS: usize = 23;

/// Where a client runs.
pub(crate) struct Program<'a> {
    pub(crate) language: &'a str,
    pub(crate) pid: u32,
    pub(crate) host: &'a str,
}

impl Client {
    /// # Errors
    /// `invalid_argument` for options or servers that cannot be taken.
    pub(crate) fn new(
        id: f64,
        random: [u64; 3],
        program: &Program<'_>,
        place: Place,
        options: ClientOptions,
        locks: LockOptions,
    ) -> Result<Client> {
        options.validate()?;
        locks.validate()?;
        options.check_tls(place.tls)?;
        if place.topology != Topology::Single {
            return Err(Error::invalid(
                "the WebAssembly part of redlatch speaks with one server so far; give it redis://, \
                 or use the native part for Sentinel, Cluster and quorums",
            ));
        }
        let uuid = uuid([random[0], random[1]]);
        let group = uuid.get(..GROUPS).unwrap_or_default();
        let Program {
            language,
            pid,
            host,
        } = *program;
        let name = Process::new(&options.client_name, group, language, pid, host);
        let server = Server {
            client: id,
            at: place.at,
            login: place.server,
            tls: place.tls,
            timeout: options.connect_timeout,
            keep_alive: options.keep_alive,
            protocol: options.protocol,
            tracking: options.tracking,
            name: name.to_string(),
            uuid,
        };
        Ok(Client {
            options,
            locks: Rc::new(locks),
            server,
            seed: random[2],
            running: None,
            closed: false,
            dropped: false,
        })
    }

    /// The part of its owners' names that is the client's.
    pub(crate) fn uuid(&self) -> &str {
        &self.server.uuid
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.server.tls
    }

    /// Sends a request. The answer comes out of [`Client::turn`], or is here already.
    pub(crate) fn ask(
        &mut self,
        now: Moment,
        Question { id, request, of }: Question,
        io: &mut Io<'_>,
        notify: impl Fn() + Send + Sync + 'static,
        answers: &mut Vec<Answer>,
    ) {
        let closing = matches!(request, Request::Close { .. });
        let (name, thing) = (request.name(), request.thing());
        if self.running.is_none() && (closing || self.closed) {
            self.closed = true;
            let result = if closing {
                Ok(Done::Closed(Vec::new()))
            } else {
                Err(request.named(Error::closed()).during(name))
            };
            return answers.push(Answer { id, result });
        }
        let (options, seed) = (&self.options, self.seed);
        let running = self.running.get_or_insert_with(|| {
            let running = Running::start(options, seed);
            running.ring.set_notify(Box::new(notify));
            Box::new(running)
        });
        if running.stopped {
            let result = if closing {
                Ok(Done::Closed(Vec::new()))
            } else {
                Err(request.named(Error::closed()).during(name))
            };
            return answers.push(Answer { id, result });
        }
        running.link.closing |= closing;
        running.asked.insert(id, Asked { name, thing, of });
        running.link.begin(now, &self.server, io);
        running.tell(now, Input::Request { id, request });
        self.follow(now, io, answers);
    }

    /// Tells the engine something that needs no answer.
    pub(crate) fn tell(
        &mut self,
        now: Moment,
        input: Input,
        io: &mut Io<'_>,
        answers: &mut Vec<Answer>,
    ) {
        if let Some(running) = &mut self.running {
            running.tell(now, input);
            self.follow(now, io, answers);
        }
    }

    /// Stops waiting for a call. True if it had no answer yet.
    pub(crate) fn cancel(
        &mut self,
        now: Moment,
        id: RequestId,
        io: &mut Io<'_>,
        answers: &mut Vec<Answer>,
    ) -> bool {
        let Some(running) = &mut self.running else {
            return false;
        };
        if running.asked.remove(&id).is_none() {
            return false;
        }
        self.tell(now, Input::Cancel { id }, io, answers);
        true
    }

    /// No handle is left.
    pub(crate) fn orphan(&mut self, now: Moment, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        self.dropped = true;
        if let Some(running) = &mut self.running {
            running.orphaned = Some(now.after(tuning::ORPHAN_LIMIT));
        }
        self.tell(now, Input::Orphaned, io, answers);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Whether nothing is left to be done for it.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.stopped)
    }

    pub(crate) fn has_conn(&self, conn: ConnId) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.links().iter().any(|link| link.has(conn)))
    }

    pub(crate) fn opened(&mut self, conn: ConnId, identity: u64, io: &mut Io<'_>) {
        if let Some(running) = &mut self.running
            && let Some(link) = running.link_of(conn)
        {
            link.opened(identity, &self.server, io);
        }
    }

    pub(crate) fn received(
        &mut self,
        now: Moment,
        conn: ConnId,
        bytes: &[u8],
        io: &mut Io<'_>,
        answers: &mut Vec<Answer>,
    ) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.with_link(conn, |link, wanted, news| {
            link.received(now, bytes, wanted, &self.server, io, news);
        });
        self.follow(now, io, answers);
    }

    pub(crate) fn closed(
        &mut self,
        now: Moment,
        conn: ConnId,
        why: &Lost<'_>,
        io: &mut Io<'_>,
        answers: &mut Vec<Answer>,
    ) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.with_link(conn, |link, _, news| {
            link.closed(now, why, &self.server, io, news);
        });
        self.follow(now, io, answers);
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let running = self.running.as_ref().filter(|running| !running.stopped)?;
        let links = running.links().map(|link| link.next_wake(&running.wanted));
        let orphaned = running.orphaned.filter(|_| running.asked.is_empty());
        links
            .into_iter()
            .chain([running.engine.next_wake(), orphaned])
            .flatten()
            .chain(running.held.iter().map(|(_, end)| *end))
            .min()
    }

    /// Does what is due, and all that follows from it.
    pub(crate) fn wake(&mut self, now: Moment, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        self.turn(now, true, io, answers);
    }

    /// Does what follows from an input. Overdue work waits for the host's timer, which comes after
    /// all input that has arrived: the host was blocked, and an answer may lie in a socket.
    fn follow(&mut self, now: Moment, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        let is_late = self.next_wake().is_some_and(|due| due.after(LATE) <= now);
        self.turn(now, !is_late, io, answers);
    }

    fn turn(&mut self, now: Moment, wakes: bool, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let server = &self.server;
        // One thing leads to another, and all of it ends soon. A fault must not hang the host.
        for _ in 0..MOST_TURNS {
            if running.stopped {
                return;
            }
            if wakes {
                running.wake_links(now, server, io);
            }
            running.keep_channels(now, server, io);
            running.take_news(now);
            if wakes && running.engine.next_wake().is_some_and(|due| due <= now) {
                running.engine.wake(now, &mut running.out);
            }
            if running.out.is_empty() && running.news.is_empty() {
                break;
            }
            for output in std::mem::take(&mut running.out) {
                running.carry_out(now, output, server, io, answers);
            }
        }
        let over = running.orphaned.is_some_and(|latest| latest <= now);
        // A caller may still wait for an answer.
        let is_unused = running.orphaned.is_some() && running.asked.is_empty();
        if is_unused && (over || running.engine.is_settled()) {
            running.stop(io);
        }
    }

    /// Writes what is to be written.
    pub(crate) fn flush(&mut self, now: Moment, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        loop {
            let Some(running) = &mut self.running else {
                return;
            };
            let Running {
                link,
                waiting,
                channels,
                news,
                ..
            } = &mut **running;
            for link in [link, waiting, channels] {
                link.flush(now, &self.server, io, news);
            }
            // Calls that waited too long were given up.
            if news.is_empty() {
                return;
            }
            self.follow(now, io, answers);
        }
    }

    /// The program ends: nobody will hear an answer, so nothing waits for one any more.
    pub(crate) fn end(&mut self, now: Moment, io: &mut Io<'_>, answers: &mut Vec<Answer>) {
        if let Some(running) = &mut self.running {
            running.link.write_all();
        }
        self.flush(now, io, answers);
    }

    pub(crate) fn stats(&self) -> Vec<(&'static str, u64)> {
        let Some(running) = &self.running else {
            return Counters::default().snapshot().entries();
        };
        running.counters.events_dropped.set(running.ring.dropped());
        running.counters.snapshot().entries()
    }
}

impl Running {
    fn start(options: &ClientOptions, seed: u64) -> Running {
        let counters = Arc::new(Counters::default());
        let least = if options.debug_events {
            Level::Debug
        } else {
            Level::Info
        };
        let ring = Arc::new(Ring::new(options.events, least));
        let config = Config {
            recheck: options.recheck,
            outage: options.outage,
            handovers: (options.handover_limit, options.handover_time),
            linger: tuning::CHANNEL_LINGER,
            renewals: tuning::RENEWALS_IN_FLIGHT,
            seed,
            is_shared: |name, own| Arc::strong_count(name) > own,
        };
        let mut engine = Engine::new(config, counters.clone());
        engine.set_listened(ring.wants(Level::Debug));
        Running {
            engine,
            counters,
            ring,
            link: Link::new(Use::Commands),
            waiting: Link::new(Use::Commands),
            held: Vec::new(),
            held_up: None,
            channels: Link::new(Use::Channels),
            wanted: Wanted::default(),
            subscribed: (false, 0),
            asked: HashMap::new(),
            out: Vec::new(),
            news: News::default(),
            stopped: false,
            orphaned: None,
        }
    }

    fn tell(&mut self, now: Moment, input: Input) {
        self.engine.handle(now, input, &mut self.out);
    }

    fn links(&self) -> [&Link; 3] {
        [&self.link, &self.waiting, &self.channels]
    }

    fn link_of(&mut self, conn: ConnId) -> Option<&mut Link> {
        [&mut self.link, &mut self.waiting, &mut self.channels]
            .into_iter()
            .find(|link| link.has(conn))
    }

    /// Lets the link with this connection do something.
    fn with_link(&mut self, conn: ConnId, act: impl FnOnce(&mut Link, &Wanted, &mut News)) {
        if self.waiting.has(conn) {
            let mut heard = News::default();
            act(&mut self.waiting, &self.wanted, &mut heard);
            self.heard_apart(heard);
        } else if self.link.has(conn) {
            act(&mut self.link, &self.wanted, &mut self.news);
        } else if self.channels.has(conn) {
            act(&mut self.channels, &self.wanted, &mut self.news);
        }
    }

    /// Takes news of the connection for calls that wait for replicas. The engine does not hear
    /// whether it is up or down.
    fn heard_apart(&mut self, heard: News) {
        self.news.connects += heard.connects;
        for input in heard.inputs {
            match input {
                Input::Up(_) => self.held_up = None,
                Input::Down(_, error) => self.held_up = Some(error),
                // The owners of a client carry the identity of its connection for commands.
                Input::Identity(_) => {}
                input => self.news.tell(input),
            }
        }
    }

    fn wake_links(&mut self, now: Moment, server: &Server, io: &mut Io<'_>) {
        let (wanted, news) = (&self.wanted, &mut self.news);
        self.link.wake(now, wanted, server, io, news);
        self.channels.wake(now, wanted, server, io, news);
        let mut heard = News::default();
        self.waiting.wake(now, wanted, server, io, &mut heard);
        self.heard_apart(heard);
        self.send_held(now);
    }

    /// Sends the calls that were held, with the rest of their time.
    fn send_held(&mut self, now: Moment) {
        for (sending, end) in std::mem::take(&mut self.held) {
            if end <= now {
                let outcome = match &self.held_up {
                    Some(error) => CallOutcome::Refused {
                        passing: !matches!(error.kind(), ErrorKind::Auth | ErrorKind::Denied),
                        error: error.clone(),
                    },
                    None => CallOutcome::NotSent,
                };
                self.news.tell(Input::Outcome {
                    call: sending.call,
                    outcome,
                });
            } else if self.waiting.is_up() {
                let sending = OutgoingCall {
                    limit: now.until(end),
                    ..sending
                };
                self.waiting.send(now, sending, &mut self.news);
            } else {
                self.held.push((sending, end));
            }
        }
    }

    /// Has the wanted channels subscribed: on the connection for commands if it can push messages,
    /// else on one of their own.
    fn keep_channels(&mut self, now: Moment, server: &Server, io: &mut Io<'_>) {
        let shared = self.link.pushes();
        let apart = !shared && self.link.is_up();
        if shared {
            self.channels.end(io);
        } else if apart && !self.wanted.is_empty() {
            self.channels.begin(now, server, io);
        }
        let link = if shared {
            &mut self.link
        } else {
            &mut self.channels
        };
        if link.is_up() && self.subscribed != (shared, link.generation) {
            self.subscribed = (shared, link.generation);
            for channel in self.wanted.channels() {
                link.subscribe(now, channel, None);
            }
        }
    }

    fn listening(&mut self) -> &mut Link {
        if self.link.pushes() {
            &mut self.link
        } else {
            &mut self.channels
        }
    }

    fn take_news(&mut self, now: Moment) {
        let mut news = std::mem::take(&mut self.news);
        self.counters.connects.add(news.connects);
        news.events.drain(..).for_each(|event| self.event(event));
        for input in news.inputs.drain(..) {
            self.tell(now, input);
        }
    }

    fn event(&self, event: Event) {
        self.ring.push(event);
    }

    fn carry_out(
        &mut self,
        now: Moment,
        output: Output,
        server: &Server,
        io: &mut Io<'_>,
        answers: &mut Vec<Answer>,
    ) {
        match output {
            Output::Send {
                call, op, limit, ..
            } => {
                let sending = OutgoingCall {
                    call,
                    op,
                    limit,
                    hops: 0,
                    asking: false,
                };
                if sending.op.replicas() == 0 || !self.link.is_up() {
                    self.link.send(now, sending, &mut self.news);
                } else {
                    self.held.push((sending, now.after(limit)));
                    self.waiting.begin(now, server, io);
                    self.send_held(now);
                }
            }
            Output::Subscribe(name, topic) => {
                let channel = names::channel_for(&server.uuid, topic, &name);
                self.wanted.add(&channel, name.clone());
                self.keep_channels(now, server, io);
                self.listening().subscribe(now, &channel, Some(name));
            }
            Output::Unsubscribe(name, topic) => {
                let channel = names::channel_for(&server.uuid, topic, &name);
                if self.wanted.remove(&channel, &name) {
                    self.listening().unsubscribe(now, &channel);
                }
            }
            Output::Complete { id, result } => self.complete(now, id, result, answers),
            Output::Lost(cell, reason) => cell.tell(reason),
            Output::Event(event) => self.event(event),
            Output::Stop => self.stop(io),
            // They serve questions by key, which no host asks.
            Output::Opened(_) | Output::Ended(_) => {}
        }
    }

    fn complete(
        &mut self,
        now: Moment,
        id: RequestId,
        result: Result<Done>,
        answers: &mut Vec<Answer>,
    ) {
        let Some(Asked { name, thing, of }) = self.asked.remove(&id) else {
            // It was cancelled, and nobody has what it won.
            match result {
                Ok(Done::Granted { cell, level }) => self.drop_level(now, &cell, level),
                Ok(Done::Taken { name, permits }) => {
                    self.tell(now, Input::GivenBack { name, permits });
                }
                _ => {}
            }
            return;
        };
        let result = result.map_err(|error| {
            let error = match &of {
                Some(cell) => cell.explain(error),
                None => error.of(thing),
            };
            error.during(name)
        });
        answers.push(Answer { id, result });
    }

    pub(crate) fn drop_level(&mut self, now: Moment, cell: &HoldCell, level: LevelId) {
        let owner = cell.owner;
        self.tell(now, Input::Dropped { owner, level });
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.stopped = true;
        for link in [&mut self.link, &mut self.waiting, &mut self.channels] {
            link.end(io);
        }
    }
}

/// A uuid of version 4.
fn uuid([high, low]: [u64; 2]) -> String {
    let high = high & !0xf000 | 0x4000;
    let low = low & !(3 << 62) | 1 << 63;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// The name of a lock, checked.
pub(crate) fn lock_name(options: &LockOptions, name: &str) -> Result<Name> {
    Ok(options.kind.key(names::name(name)?))
}
