//! A client: one identity, one engine, started when it is first needed.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::driver::{Command, DriverConfig, Handle, Manner, OwnCall, Registry, Servers, Shared, Sink};
use crate::engine::{Config, Done, Input, RENEWALS, Request, RequestId, Terms};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Counters, Event, Level, Ring, Stats};
use crate::gate::{Gate, Gates, Tasks};
use crate::guard::{Guard, unexpected, unit};
use crate::hold::HoldCell;
use crate::lock::Lock;
use crate::operation::Operation;
use crate::options::{ClientOptions, LockOptions, OptionValue};
use crate::owner::{self, Key};
use crate::process;
use crate::queue::Outcome;
use crate::url;
use crate::wire::{Name, names};

/// Access to Redis under one identity: share one in a whole program. Cheap to clone; clones are the same client.
///
/// Its thread and its connections start with the first request. Close it when done: what is still held
/// is released, and its holders are told. A client that is dropped without `close` ends when its last
/// guard does.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

/// Makes a [`Client`] with options.
#[derive(Clone, Default)]
#[must_use = "a builder does nothing before `build`"]
pub struct ClientBuilder {
    /// None: the environment's.
    url: Option<String>,
    options: ClientOptions,
    locks: LockOptions,
    error: Option<Error>,
}

pub(crate) struct ClientInner {
    servers: Servers,
    options: ClientOptions,
    /// The defaults of its locks.
    locks: Arc<LockOptions>,
    /// The options of the last lock that had others: a program has few kinds of locks, and may have very many of each.
    others: Mutex<Arc<LockOptions>>,
    /// The process that began to start the engine, or [`UNSTARTED`], or [`CLOSED`]. Read before any
    /// lock is taken, since a child may have inherited a lock that nobody will ever open.
    pid: AtomicU32,
    starting: Mutex<()>,
    running: OnceLock<Arc<Running>>,
}

/// No process: the engine has not been started.
const UNSTARTED: u32 = 0;
/// No process: the client was closed before its engine was started.
const CLOSED: u32 = u32::MAX;

/// The engine of a client, once started.
pub(crate) struct Running {
    pid: u32,
    handle: Handle,
    shared: Arc<Shared>,
    last_request: AtomicU64,
    /// A close was asked for.
    closed: AtomicBool,
}

/// How long the channel of a lock stays subscribed when nobody waits any more.
const CHANNEL_LINGER: Duration = Duration::from_millis(200);

impl Client {
    /// Opens a client with default options and waits until the server is reached.
    ///
    /// `url` is `redis://[user:password@]host[:port][/database]` or `unix:///path`; `rediss://` for TLS,
    /// `redis+sentinel://` and `redis+cluster://` for what they say.
    ///
    /// # Errors
    /// `invalid_argument` for a bad URL, `unavailable` when the server cannot be reached, `auth`
    /// when it refuses user name or password.
    ///
    /// # Cancel safety
    /// Dropping the operation ends the client.
    pub fn connect(url: &str) -> Operation<Client> {
        Client::open(Client::builder(url))
    }

    /// As [`connect`](Client::connect), with the URL in the environment variable `REDLATCH_URL`.
    ///
    /// # Errors
    /// `invalid_argument` when there is no such variable, and as [`connect`](Client::connect).
    pub fn from_env() -> Operation<Client> {
        Client::open(Client::builder_from_env())
    }

    fn open(builder: ClientBuilder) -> Operation<Client> {
        match builder.build() {
            Ok(client) => {
                let inner = client.0.clone();
                Operation::new(&inner, Request::Connect, |outcome| unit(outcome).map(|()| client))
            }
            Err(error) => Operation::failed(error),
        }
    }

    /// Begins a client with options. Without [`ready`](Client::ready), a client that was built
    /// connects when it is first used.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder { url: Some(url.to_owned()), ..ClientBuilder::default() }
    }

    /// Begins a client whose URL is in the environment variable `REDLATCH_URL` when it is built.
    pub fn builder_from_env() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Waits until the server is reached; tells why it cannot be.
    ///
    /// # Errors
    /// `unavailable`, `auth`, `denied`, `closed`, `forked`.
    ///
    /// # Cancel safety
    /// Dropping the operation changes nothing; the client goes on trying to connect.
    pub fn ready(&self) -> Operation<()> {
        Operation::new(&self.0, Request::Connect, unit)
    }

    /// The lock of this name, with the client's options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    pub fn lock(&self, name: &str) -> Result<Lock> {
        Ok(Lock::new(self.0.clone(), names::name(name)?, self.0.locks.clone()))
    }

    /// The lock of this name, with options of its own. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a bad name or an option out of bounds.
    pub fn lock_with(&self, name: &str, options: LockOptions) -> Result<Lock> {
        options.validate()?;
        Ok(Lock::new(self.0.clone(), names::name(name)?, self.0.shared(options)))
    }

    /// The lock of a name that may not be text. No I/O.
    ///
    /// # Errors
    /// As [`lock_with`](Client::lock_with), and for bytes that are not UTF-8.
    pub fn lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Lock> {
        options.validate()?;
        Ok(Lock::new(self.0.clone(), names::name_from_bytes(name)?, self.0.shared(options)))
    }

    /// The options that this client's locks have by default.
    pub fn lock_options(&self) -> LockOptions {
        (*self.0.locks).clone()
    }

    /// The client's random UUID, the first part of its owners; starts the engine.
    ///
    /// # Errors
    /// `forked`, `internal`.
    pub fn id(&self) -> Result<String> {
        Ok(self.0.running()?.shared.uuid.clone())
    }

    /// What the client has done so far.
    pub fn stats(&self) -> Stats {
        let Some(running) = self.0.started() else { return Stats::default() };
        // Counted under the ring's own lock; the snapshot shows it with the others.
        running.shared.counters.events_dropped.set(running.shared.ring.dropped());
        running.shared.counters.snapshot()
    }

    /// Takes the events that happened since the last call, oldest first. A child process has none.
    pub fn events(&self) -> Vec<Event> {
        let own = self.0.started().filter(|running| !running.is_forked());
        own.map(|running| running.shared.ring.drain()).unwrap_or_default()
    }

    /// Calls `notify` on the engine's thread when events wait to be taken. It must not block (while it does, calls
    /// wait, and what is held is not renewed), and must not take them itself.
    ///
    /// # Errors
    /// `forked`, `closed`, `internal`: it starts the engine.
    pub fn on_events(&self, notify: impl Fn() + Send + Sync + 'static) -> Result<()> {
        self.0.running()?.shared.ring.set_notify(Box::new(notify));
        Ok(())
    }

    /// The thread or task behind `key` has ended: what it still holds without a guard is not
    /// renewed any more.
    pub fn key_ended(&self, key: Key) {
        if let Some(running) = self.0.started() {
            running.tell(Input::KeyEnded(key));
        }
    }

    /// The option `close_limit`.
    pub fn close_limit(&self) -> Duration {
        self.0.options.close_limit
    }

    /// Closes within the option `close_limit`; see [`close_within`](Client::close_within).
    pub fn close(&self) -> Operation<Vec<String>> {
        self.close_within(self.0.options.close_limit)
    }

    /// Closes within the option `exit_limit`; for languages that close when the program ends.
    pub fn close_at_exit(&self) -> Operation<Vec<String>> {
        self.close_within(self.0.options.exit_limit)
    }

    /// Releases what is held, ends what waits, and stops. Holders are told `lost` (`closed`). Closing twice is no
    /// error.
    ///
    /// Returns the names of the locks that could not be released within `limit`: they end with their leases. A limit of
    /// zero releases none of them.
    ///
    /// # Cancel safety
    /// Once sent, closing goes on by itself.
    pub fn close_within(&self, limit: Duration) -> Operation<Vec<String>> {
        let finish = |outcome| match outcome {
            Outcome::Closed(names) => Ok(names),
            Outcome::Failed(error) if error.kind() == ErrorKind::Closed => Ok(Vec::new()),
            Outcome::Failed(error) => Err(error),
            other => Err(unexpected(&other)),
        };
        match self.0.close_unstarted() {
            true => Operation::known(Outcome::Closed(Vec::new()), finish),
            false => Operation::new(&self.0, Request::Close { limit }, finish),
        }
    }

    /// Waits until the engine's thread has ended after a close, at most `limit`.
    pub fn join(&self, limit: Duration) {
        if let Some(running) = self.0.started().filter(|running| !running.is_forked()) {
            running.handle.join(limit);
        }
    }

    /// Whether the client was closed, or is being closed.
    pub fn is_closed(&self) -> bool {
        self.0.pid.load(Ordering::Acquire) == CLOSED
            || self.0.started().is_some_and(|running| running.closed.load(Ordering::Acquire))
    }

    /// Whether this client belongs to the parent of this process.
    pub fn is_forked(&self) -> bool {
        self.0.is_forked()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.0.running.get().map_or("not started", |running| &running.shared.uuid);
        write!(f, "Client({id})")
    }
}

impl ClientBuilder {
    /// Sets the client's options.
    pub fn options(mut self, options: ClientOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets what the client's locks have by default.
    pub fn lock_options(mut self, options: LockOptions) -> Self {
        self.locks = options;
        self
    }

    /// Sets an option of the client or a default of its locks by name; a refusal is told by `build`.
    pub fn option(mut self, name: &str, value: OptionValue<'_>) -> Self {
        if let Err(error) = self.set(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Sets an option of the client or a default of its locks by name.
    ///
    /// # Errors
    /// `invalid_argument` for an unknown name and for a value that is not acceptable.
    pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        if LockOptions::has(name) { self.locks.set(name, value) } else { self.options.set(name, value) }
    }

    /// Makes the client. No I/O: the engine starts with the first request.
    ///
    /// # Errors
    /// `invalid_argument` for a bad URL or option.
    pub fn build(self) -> Result<Client> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.options.validate()?;
        self.locks.validate()?;
        let place = self.url.as_deref().map_or_else(url::from_env, url::parse)?;
        let servers = Servers::new(&place, &Manner::new(&self.options, place.tls)?);
        Ok(Client(Arc::new(ClientInner::new(servers, self.options, Arc::new(self.locks)))))
    }
}

impl ClientInner {
    fn new(servers: Servers, options: ClientOptions, locks: Arc<LockOptions>) -> Self {
        ClientInner {
            servers,
            options,
            others: Mutex::new(locks.clone()),
            locks,
            pid: AtomicU32::new(UNSTARTED),
            starting: Mutex::new(()),
            running: OnceLock::new(),
        }
    }

    /// These options, in one place with those of other locks if they are the same.
    fn shared(&self, options: LockOptions) -> Arc<LockOptions> {
        if options == *self.locks {
            return self.locks.clone();
        }
        // A child may have inherited it closed; then they are not shared.
        let Ok(mut others) = self.others.try_lock() else { return Arc::new(options) };
        if **others != options {
            *others = Arc::new(options);
        }
        others.clone()
    }

    pub(crate) fn is_forked(&self) -> bool {
        let pid = self.pid.load(Ordering::Acquire);
        pid != UNSTARTED && pid != CLOSED && pid != process::id()
    }

    /// The engine if it was started.
    pub(crate) fn started(&self) -> Option<Arc<Running>> {
        self.running.get().cloned()
    }

    /// Closes a client that has nothing to close: it was never started, or belongs to the parent.
    fn close_unstarted(&self) -> bool {
        let closed = self.pid.compare_exchange(UNSTARTED, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        matches!(closed, Ok(_) | Err(CLOSED)) || self.is_forked()
    }

    /// The engine, started if need be.
    pub(crate) fn running(self: &Arc<Self>) -> Result<Arc<Running>> {
        if self.is_forked() {
            return Err(forked());
        }
        if let Some(running) = self.running.get() {
            return Ok(running.clone());
        }
        let own = process::id();
        if self.pid.compare_exchange(UNSTARTED, own, Ordering::AcqRel, Ordering::Acquire) == Err(CLOSED) {
            return Err(closed());
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = self.running.get() {
            return Ok(running.clone());
        }
        let running = Arc::new(Running::start(self)?);
        Ok(self.running.get_or_init(|| running).clone())
    }
}

impl Running {
    /// Where a caller sleeps whose request was sent just now.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        self.shared.gates.current()
    }

    /// Tasks that are woken when the engine's thread has done everything else.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.shared.tasks
    }

    fn start(client: &Arc<ClientInner>) -> Result<Running> {
        let (options, random) = (&client.options, uuid::Uuid::new_v4());
        let shared = Arc::new(Shared {
            uuid: random.to_string(),
            counters: Arc::new(Counters::default()),
            ring: Ring::new(options.events, if options.debug_events { Level::Debug } else { Level::Info }),
            registry: Registry::default(),
            gates: Gates::default(),
            tasks: Tasks::default(),
        });
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let config = DriverConfig {
            servers: client.servers.clone(),
            engine: Config {
                recheck: options.recheck,
                outage: options.outage,
                handovers: (options.handover_limit, options.handover_time),
                linger: CHANNEL_LINGER,
                renewals: RENEWALS,
                seed,
            },
            tracking: options.tracking,
            pubsub: options.cluster_pubsub,
            direct: options.direct,
        };
        Ok(Running {
            pid: process::id(),
            handle: Handle::start(config, shared.clone())?,
            shared,
            last_request: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.shared.uuid
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.is_forked() { Err(forked()) } else { Ok(()) }
    }

    pub(crate) fn cell(&self, name: &Name, key: Key) -> Option<Arc<HoldCell>> {
        // In a child the registry's lock may be held for ever.
        if self.is_forked() { None } else { self.shared.registry.get(name, key) }
    }

    /// Sends a request; `sink` gets the answer, exactly once. Not for a child: see
    /// [`ClientInner::running`].
    pub(crate) fn request(self: &Arc<Self>, request: Request, sink: Arc<dyn Sink>) -> Result<RequestId> {
        let id = self.prepare(&request);
        if self.handle.send(Command::Request { id, request, sink }) { Ok(id) } else { Err(self.ended()) }
    }

    /// The same for a caller that blocks: it gets the call that it is to do itself, if there is one. `alone`:
    /// only if nobody else uses the client and that is done within that time, as it seems.
    pub(crate) fn request_blocking(
        self: &Arc<Self>,
        request: Request,
        sink: Arc<dyn Sink>,
        alone: bool,
    ) -> Result<(RequestId, Option<OwnCall>)> {
        let id = self.prepare(&request);
        let call = self.handle.request(id, request, sink, alone).map_err(|()| self.ended())?;
        Ok((id, call))
    }

    fn prepare(self: &Arc<Self>, request: &Request) -> RequestId {
        if let Request::Acquire { key: key @ Key::Thread(_), .. } = request {
            owner::note_thread(*key, self);
        }
        if let Request::Close { .. } = request {
            self.closed.store(true, Ordering::Release);
        }
        self.last_request.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a caller hears whom the engine's thread cannot answer any more.
    pub(crate) fn ended(&self) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return closed();
        }
        Error::new(ErrorKind::Internal, "the engine's thread ended before it could answer")
    }

    /// Tells the engine something that needs no answer. In a child and after the end: nothing.
    pub(crate) fn tell(&self, input: Input) {
        if !self.is_forked() {
            let _ = self.handle.send(Command::Tell(input));
        }
    }

    /// Wraps the engine's answer, so that a grant that is dropped anywhere is released.
    /// `terms` are those of an acquisition.
    pub(crate) fn outcome(self: &Arc<Self>, result: Result<Done>, terms: Option<&Terms>) -> Outcome {
        match result {
            Ok(Done::Granted { cell, level }) => match terms {
                Some(terms) => Outcome::Granted(Guard::new(self.clone(), cell, level, terms)),
                None => {
                    Outcome::Failed(Error::new(ErrorKind::Internal, "granted without having been asked for"))
                }
            },
            Ok(Done::Connected) => Outcome::Connected,
            Ok(Done::Released) => Outcome::Released,
            Ok(Done::Extended) => Outcome::Extended,
            Ok(Done::Forced(deleted)) => Outcome::Forced(deleted),
            Ok(Done::Inspected(holder)) => Outcome::Inspected(holder),
            Ok(Done::Closed(names)) => Outcome::Closed(names.iter().map(ToString::to_string).collect()),
            Err(error) => Outcome::Failed(error),
        }
    }
}

fn forked() -> Error {
    Error::new(ErrorKind::Forked, "this client was opened before fork(); open a new client in this process")
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed; open a new one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_was_never_used_closes_without_an_engine() {
        let client = Client::builder("redis://127.0.0.1:1").build().expect("no I/O");
        assert!(!client.is_closed());
        assert_eq!(client.close().wait().expect("closed"), Vec::<String>::new());
        assert!(client.is_closed() && client.0.started().is_none());
        let error = client.lock("n").expect("a name").acquire().wait().expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }

    #[test]
    fn a_lock_of_another_name_has_the_same_options() {
        let client = Client::builder("redis://localhost").build().expect("no I/O");
        let mut options = client.lock_options();
        options.set("watchdog_lease", OptionValue::Seconds(7.0)).expect("an option");
        let lock = client.lock_with("one", options).expect("a name");
        let other = lock.named("other").expect("a name");
        assert_eq!((other.name(), other.options() == lock.options()), ("other", true));
        assert_eq!(lock.named("").expect_err("no name").kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn options_are_refused_by_build() {
        let builder = Client::builder("redis://localhost");
        let error =
            builder.clone().option("leese", OptionValue::Flag(true)).build().expect_err("unknown option");
        assert!(error.to_string().contains("leese"), "{error}");
        assert!(builder.clone().option("lease", OptionValue::Seconds(-1.0)).build().is_err());
        assert!(builder.option("watchdog_lease", OptionValue::Seconds(1.0)).build().is_ok());
    }
}
