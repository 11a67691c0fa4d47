//! One client: its engine, its connections, and the calls that wait for an answer.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::engine::{Done, Engine, Input, Output, Request, RequestId};
use redlatch_proto::error::{Error, Result, Thing};
use redlatch_proto::event::{Counters, Level, Ring};
use redlatch_proto::hold::HoldCell;
use redlatch_proto::maps::SortedMap;
use redlatch_proto::moment::Moment;
use redlatch_proto::net::{Arrival, ConnId, Manner, Net, Protocol};
use redlatch_proto::outbox::News;
use redlatch_proto::outbox::calls::OutgoingCall;
use redlatch_proto::quorum::{self, Members};
use redlatch_proto::tuning;
use redlatch_proto::url::{At, Host, Place, Topology};
use redlatch_proto::wire::{Name, Process, names};

use crate::io::{Answer, Way};
use crate::options::requests::LockRequests;
use crate::options::{ClientOptions, LockOptions};

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
    place: Place,
    /// The servers of a quorum.
    quorum: Option<Members>,
    manner: Rc<Manner>,
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
    net: Net,
    asked: SortedMap<RequestId, Asked>,
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
        random: [u64; 3],
        program: &Program<'_>,
        place: Place,
        options: ClientOptions,
        locks: LockOptions,
    ) -> Result<Client> {
        options.validate()?;
        locks.validate()?;
        options.check_tls(place.tls)?;
        let quorum = match &place.topology {
            Topology::Quorum { hosts } => {
                locks.validate_for_quorum()?;
                let shown = |host: &Host| At::Tcp(host.clone()).to_string();
                Some(Members::new(hosts.iter().map(shown)))
            }
            _ => None,
        };
        let protocol = match options.protocol {
            Protocol::Resp3 if place.http => {
                return Err(Error::invalid(
                    "protocol is resp3, which HTTP does not have; leave it out",
                ));
            }
            _ if place.http => Protocol::Resp2,
            protocol => protocol,
        };
        // The ids of permits begin with these bytes, and JSON carries text only.
        let text = if place.http {
            0x7f7f_7f7f_7f7f_ffff
        } else {
            u64::MAX
        };
        let uuid = uuid([random[0] & text, random[1]]);
        let group = uuid.get(..GROUPS).unwrap_or_default();
        let Program {
            language,
            pid,
            host,
        } = *program;
        let name = Process::new(&options.client_name, group, language, pid, host);
        let manner = Rc::new(Manner {
            tls: place.tls,
            http: place.http,
            timeout: options.connect_timeout,
            keep_alive: options.keep_alive,
            least_uptime: match quorum {
                Some(_) => options.restart_delay,
                None => Duration::ZERO,
            },
            protocol,
            tracking: options.tracking,
            provided: false,
            pubsub: options.cluster_pubsub,
            name: name.to_string(),
            uuid,
            closing: Cell::new(false),
        });
        Ok(Client {
            options,
            locks: Rc::new(locks),
            place,
            quorum,
            manner,
            seed: random[2],
            running: None,
            closed: false,
            dropped: false,
        })
    }

    /// Refuses replicas over HTTP. Each command may take another connection there, and `WAIT` tells
    /// of its own.
    pub(crate) fn check_replicas(&self, options: &LockOptions) -> Result<()> {
        if options.replicas == 0 || !self.manner.http {
            return Ok(());
        }
        Err(Error::invalid(
            "replicas is given, and HTTP tells nothing of them; leave it out",
        ))
    }

    /// Checks what a quorum has not.
    pub(crate) fn check_for_quorum(&self, options: &LockOptions) -> Result<()> {
        match self.quorum {
            None => Ok(()),
            Some(_) => options.validate_for_quorum(),
        }
    }

    /// Refuses what only a client of one set of data has.
    pub(crate) fn refuse_quorum(&self, what: &str) -> Result<()> {
        match self.quorum {
            None => Ok(()),
            Some(_) => Err(quorum::has_no(what)),
        }
    }

    /// The servers of its quorum, and their `restart_delay`.
    pub(crate) fn quorum_rules(&self) -> Option<(&Members, Duration)> {
        Some((self.quorum.as_ref()?, self.options.restart_delay))
    }

    /// A lock of this client, as its requests name it.
    pub(crate) fn requests<'a>(
        &'a self,
        name: &'a Name,
        options: &'a LockOptions,
    ) -> LockRequests<'a> {
        LockRequests {
            name,
            options,
            quorum: self.quorum_rules(),
        }
    }

    /// The part of its owners' names that is the client's.
    pub(crate) fn uuid(&self) -> &str {
        &self.manner.uuid
    }

    /// The name of how connections are made, for the host.
    pub(crate) fn scheme(&self) -> &'static str {
        match (self.manner.http, self.manner.tls) {
            (true, true) => "https",
            (true, false) => "http",
            (false, true) => "tls",
            (false, false) => "",
        }
    }

    /// Sends a request. The answer comes out of [`Client::turn`], or is here already.
    pub(crate) fn ask(
        &mut self,
        Question { id, request, of }: Question,
        notify: impl Fn() + Send + Sync + 'static,
        way: &mut Way<'_>,
    ) {
        let closing = matches!(request, Request::Close { .. });
        let (name, thing) = (request.name(), request.thing());
        let has_ended = match &self.running {
            Some(running) => running.stopped,
            None => closing || self.closed,
        };
        if has_ended {
            self.closed = true;
            let result = if closing {
                Ok(Done::Closed(Vec::new()))
            } else {
                Err(request.named(Error::closed()).during(name))
            };
            return way.out.answers.push(Answer { id, result });
        }
        let (options, seed) = (&self.options, self.seed);
        let (place, manner) = (&self.place, &self.manner);
        let running = self.running.get_or_insert_with(|| {
            let net = Net::new(way.now, place, manner);
            let first = net.first();
            let mut running = Running::start(options, seed, net, manner.http);
            if let Some(input) = first {
                running.tell(way.now, input);
            }
            running.ring.set_notify(Box::new(notify));
            Box::new(running)
        });
        if closing {
            manner.closing.set(true);
        }
        running.asked.insert(id, Asked { name, thing, of });
        running.net.begin(way.now, way);
        self.tell(Input::Request { id, request }, way);
    }

    /// Tells the engine something, and does what follows.
    pub(crate) fn tell(&mut self, input: Input, way: &mut Way<'_>) {
        if let Some(running) = &mut self.running {
            running.tell(way.now, input);
            self.follow(way);
        }
    }

    /// Stops waiting for a call that has no answer yet.
    pub(crate) fn cancel(&mut self, id: RequestId, way: &mut Way<'_>) {
        let running = self.running.as_mut();
        if running.is_some_and(|running| running.asked.remove(&id).is_some()) {
            self.tell(Input::Cancel { id }, way);
        }
    }

    /// No handle is left.
    pub(crate) fn orphan(&mut self, way: &mut Way<'_>) {
        self.dropped = true;
        if let Some(running) = &mut self.running {
            running.orphaned = Some(way.now.after(tuning::ORPHAN_LIMIT));
        }
        self.tell(Input::Orphaned, way);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Whether nothing is left to be done for it.
    pub(crate) fn has_ended(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.stopped)
    }

    pub(crate) fn has_conn(&self, conn: ConnId) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.net.has(conn))
    }

    /// Takes in an event of a connection.
    pub(crate) fn arrived(&mut self, conn: ConnId, arrival: &Arrival<'_>, way: &mut Way<'_>) {
        if let Some(running) = &mut self.running {
            let Running { net, news, .. } = &mut **running;
            net.arrived(way.now, conn, arrival, way, news);
            self.follow(way);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let running = self.running.as_ref().filter(|running| !running.stopped)?;
        let orphaned = running.orphaned.filter(|_| running.asked.is_empty());
        [
            running.net.next_wake(),
            running.engine.next_wake(),
            orphaned,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.next_wake().is_some_and(|at| at <= now)
    }

    /// Does what is due, and all that follows from it.
    pub(crate) fn wake(&mut self, way: &mut Way<'_>) {
        self.turn(true, way);
    }

    /// Does what follows from an input. Overdue work waits for the host's timer, which comes after
    /// all input that has arrived: the host was blocked, and an answer may lie in a socket.
    fn follow(&mut self, way: &mut Way<'_>) {
        let due = self.next_wake();
        let is_late = due.is_some_and(|due| due.after(LATE) <= way.now);
        self.turn(!is_late, way);
    }

    fn turn(&mut self, wakes: bool, way: &mut Way<'_>) {
        let now = way.now;
        let Some(running) = &mut self.running else {
            return;
        };
        // One thing leads to another, and all of it ends soon. A fault must not hang the host.
        for _ in 0..MOST_TURNS {
            if running.stopped {
                return;
            }
            let Running { net, news, .. } = &mut **running;
            if wakes {
                net.wake(now, way, news);
            }
            net.settle(now, way, news);
            running.take_news(now);
            if wakes && running.engine.next_wake().is_some_and(|due| due <= now) {
                running.engine.wake(now, &mut running.out);
            }
            if running.out.is_empty() && running.news.is_empty() {
                break;
            }
            for output in std::mem::take(&mut running.out) {
                running.carry_out(output, way);
            }
        }
        let over = running.orphaned.is_some_and(|latest| latest <= now);
        // A caller may still wait for an answer.
        let is_unused = running.orphaned.is_some() && running.asked.is_empty();
        if is_unused && (over || running.engine.is_settled()) {
            running.stop(way);
        }
    }

    /// Writes what is to be written.
    pub(crate) fn flush(&mut self, way: &mut Way<'_>) {
        loop {
            let Some(running) = &mut self.running else {
                return;
            };
            let Running { net, news, .. } = &mut **running;
            net.flush(way.now, way, news);
            // Calls that waited too long were given up.
            if news.is_empty() {
                return;
            }
            self.follow(way);
        }
    }

    /// The program ends: nobody will hear an answer, so nothing waits for one any more.
    pub(crate) fn end(&mut self, way: &mut Way<'_>) {
        if let Some(running) = &mut self.running {
            running.net.write_all();
        }
        self.flush(way);
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
    fn start(options: &ClientOptions, seed: u64, net: Net, http: bool) -> Running {
        let counters = Arc::new(Counters::default());
        let ring = Arc::new(Ring::new(options.events, options.least_level()));
        let least_limit = if http {
            tuning::HTTP_LIMIT
        } else {
            Duration::ZERO
        };
        let config = options.engine(least_limit, seed);
        let mut engine = Engine::new(config, counters.clone());
        engine.set_listened(ring.wants(Level::Debug));
        Running {
            engine,
            counters,
            ring,
            net,
            asked: SortedMap::default(),
            out: Vec::new(),
            news: News::default(),
            stopped: false,
            orphaned: None,
        }
    }

    fn tell(&mut self, now: Moment, input: Input) {
        self.engine.handle(now, input, &mut self.out);
    }

    fn take_news(&mut self, now: Moment) {
        let mut news = std::mem::take(&mut self.news);
        self.counters.connects.add(news.connects);
        let events = news.events.drain(..);
        events.for_each(|event| self.ring.push(event));
        for input in news.inputs.drain(..) {
            self.tell(now, input);
        }
    }

    fn carry_out(&mut self, output: Output, way: &mut Way<'_>) {
        let now = way.now;
        match output {
            Output::Send {
                call, op, limit, ..
            } => {
                let sending = OutgoingCall::of(call, op, limit);
                self.net.send(now, sending, way, &mut self.news);
            }
            Output::Subscribe(name, topic) => self.net.subscribe(now, &name, topic, way),
            Output::Unsubscribe(name, topic) => self.net.unsubscribe(now, &name, topic, way),
            Output::Complete { id, result } => self.complete(id, result, way),
            Output::Lost(cell, reason) => cell.tell(reason),
            Output::Event(event) => self.ring.push(event),
            Output::Stop => self.stop(way),
            // They serve questions by key, which no host asks.
            Output::Opened(_) | Output::Ended(_) => {}
        }
    }

    fn complete(&mut self, id: RequestId, result: Result<Done>, way: &mut Way<'_>) {
        let Some(Asked { name, thing, of }) = self.asked.remove(&id) else {
            // It was cancelled, and nobody has what it won.
            let input = match result {
                Ok(Done::Granted { cell, level }) => Input::Dropped {
                    owner: cell.owner,
                    level,
                },
                Ok(Done::Taken { name, permits }) => Input::GivenBack { name, permits },
                _ => return,
            };
            return self.tell(way.now, input);
        };
        let result = result.map_err(|error| {
            let error = match &of {
                Some(cell) => cell.explain(error),
                None => error.of(thing),
            };
            error.during(name)
        });
        way.out.answers.push(Answer { id, result });
    }

    fn stop(&mut self, way: &mut Way<'_>) {
        self.stopped = true;
        self.net.end(way);
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
