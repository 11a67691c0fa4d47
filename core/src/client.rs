//! A client: one identity, one engine, started when it is first needed.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::driver::{Address, Command, DriverConfig, Handle, Registry, Shared, Sink};
use crate::engine::{Config, Done, Input, Request, RequestId};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Counters, Event, Level, Ring, Stats};
use crate::guard::{Guard, unexpected, unit};
use crate::hold::HoldCell;
use crate::lock::Lock;
use crate::operation::Operation;
use crate::options::{ClientOptions, LockOptions, OptionValue};
use crate::owner::{self, Key};
use crate::queue::Outcome;
use crate::url;
use crate::wire::{Name, names};

/// A connection to Redis under one identity. Cheap to clone; clones are the same client.
///
/// Its thread and its connections start with the first request. Close it when done: whatever is
/// still held is released and the holders are told. A client that is dropped without `close` ends
/// when its last guard does.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

/// Makes a [`Client`] with options.
#[derive(Clone)]
#[must_use = "a builder does nothing before `build`"]
pub struct ClientBuilder {
    url: String,
    options: ClientOptions,
    locks: LockOptions,
    error: Option<Error>,
}

pub(crate) struct ClientInner {
    address: Address,
    options: ClientOptions,
    locks: LockOptions,
    /// The process that began to start the engine; 0 before. Read before any lock is taken, since
    /// a child may have inherited a lock that nobody will ever open.
    pid: AtomicU32,
    starting: Mutex<()>,
    running: OnceLock<Arc<Running>>,
}

/// The engine of a client, once started.
pub(crate) struct Running {
    client: Weak<ClientInner>,
    /// What is needed to speak for the client when the last handle to it is gone.
    parts: (Address, ClientOptions, LockOptions),
    pid: u32,
    handle: Handle,
    shared: Arc<Shared>,
    last_request: AtomicU64,
}

impl Client {
    /// Opens a client and waits until the server is reached.
    ///
    /// # Errors
    /// `invalid_argument` for a bad URL, `unavailable` when the server cannot be reached, `auth`
    /// when it refuses user name or password.
    pub async fn connect(url: &str) -> Result<Client> {
        let client = Client::builder(url).build()?;
        client.ready().await?;
        Ok(client)
    }

    /// Begins a client with options.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            options: ClientOptions::new(),
            locks: LockOptions::new(),
            error: None,
        }
    }

    /// Waits until the server is reached; tells why it cannot be.
    ///
    /// # Errors
    /// `unavailable`, `auth`, `denied`, `closed`, `forked`.
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
        Ok(Lock::new(self.0.clone(), names::name(name)?, options))
    }

    /// The lock of a name that may not be text. No I/O.
    ///
    /// # Errors
    /// As [`lock_with`](Client::lock_with), and for bytes that are not UTF-8.
    pub fn lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Lock> {
        options.validate()?;
        Ok(Lock::new(self.0.clone(), names::name_from_bytes(name)?, options))
    }

    /// The options that this client's locks have by default.
    pub fn lock_options(&self) -> LockOptions {
        self.0.locks.clone()
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
        running.shared.counters.events_dropped.set(running.shared.ring.dropped());
        running.shared.counters.snapshot()
    }

    /// Takes the events that happened since the last call, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.0.started().map(|running| running.shared.ring.drain()).unwrap_or_default()
    }

    /// Has `notify` called on the engine's thread when events wait to be taken. Must not block.
    ///
    /// # Errors
    /// `forked`, `internal`: it starts the engine.
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

    /// Closes within the option `close_limit`; see [`close_within`](Client::close_within).
    pub fn close(&self) -> Operation<Vec<String>> {
        self.close_within(self.0.options.close_limit)
    }

    /// Closes within the option `exit_limit`; for languages that close when the program ends.
    pub fn close_at_exit(&self) -> Operation<Vec<String>> {
        self.close_within(self.0.options.exit_limit)
    }

    /// Releases what is held, ends what waits, and stops; returns the names of locks that could not
    /// be released within `limit` (they end with their leases). Holders are told `lost` (`closed`).
    /// Closing twice is no error.
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
        match self.0.begin_close() {
            true => Operation::new(&self.0, Request::Close { limit }, finish),
            false => Operation::known(Outcome::Closed(Vec::new()), finish),
        }
    }

    /// Waits until the engine's thread has ended after a close, at most `limit`.
    pub fn join(&self, limit: Duration) {
        if let Some(running) = self.0.started().filter(|running| !running.is_forked()) {
            running.handle.join(limit);
        }
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
        let info = url::parse(&self.url)?;
        let address = Address::new(info, self.options.connect_timeout, self.options.client_name.clone());
        Ok(Client(Arc::new(ClientInner::new(address, self.options, self.locks))))
    }
}

impl ClientInner {
    fn new(address: Address, options: ClientOptions, locks: LockOptions) -> Self {
        ClientInner {
            address,
            options,
            locks,
            pid: AtomicU32::new(0),
            starting: Mutex::new(()),
            running: OnceLock::new(),
        }
    }

    fn is_forked(&self) -> bool {
        let pid = self.pid.load(Ordering::Acquire);
        pid != 0 && pid != std::process::id()
    }

    /// The engine if it was started.
    pub(crate) fn started(&self) -> Option<Arc<Running>> {
        self.running.get().cloned()
    }

    /// Whether there is anything to close; a client that never started has nothing.
    fn begin_close(self: &Arc<Self>) -> bool {
        // A client that is closed before it was ever used must not work afterwards either, so its
        // engine is started to be told.
        !self.is_forked()
    }

    /// The engine, started if need be.
    pub(crate) fn running(self: &Arc<Self>) -> Result<Arc<Running>> {
        if self.is_forked() {
            return Err(forked());
        }
        if let Some(running) = self.running.get() {
            return Ok(running.clone());
        }
        self.pid.store(std::process::id(), Ordering::Release);
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = self.running.get() {
            return Ok(running.clone());
        }
        let running = Arc::new(Running::start(self)?);
        Ok(self.running.get_or_init(|| running).clone())
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        if self.is_forked() {
            // The parent's thread, sockets and locks: leak them rather than touch them.
            std::mem::forget(self.running.take());
        }
    }
}

impl Running {
    fn start(client: &Arc<ClientInner>) -> Result<Running> {
        let (options, random) = (&client.options, uuid::Uuid::new_v4());
        let shared = Arc::new(Shared {
            uuid: random.to_string(),
            counters: Arc::new(Counters::default()),
            ring: Ring::new(options.events, if options.debug_events { Level::Debug } else { Level::Info }),
            registry: Registry::default(),
        });
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let config = DriverConfig {
            address: client.address.clone(),
            engine: Config { recheck: options.recheck, outage: options.outage, seed },
            tracking: options.tracking,
        };
        Ok(Running {
            client: Arc::downgrade(client),
            parts: (client.address.clone(), options.clone(), client.locks.clone()),
            pid: std::process::id(),
            handle: Handle::start(config, shared.clone())?,
            shared,
            last_request: AtomicU64::new(0),
        })
    }

    /// The client this engine belongs to. When the last handle to it is gone and a guard still
    /// works, the guard gets a new handle to the same engine.
    pub(crate) fn client(self: &Arc<Self>) -> Arc<ClientInner> {
        self.client.upgrade().unwrap_or_else(|| {
            let (address, options, locks) = self.parts.clone();
            let inner = ClientInner::new(address, options, locks);
            inner.pid.store(self.pid, Ordering::Release);
            let _ = inner.running.set(self.clone());
            Arc::new(inner)
        })
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.shared.uuid
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.is_forked() { Err(forked()) } else { Ok(()) }
    }

    pub(crate) fn cell(&self, name: &Name, key: Key) -> Option<Arc<HoldCell>> {
        // In a child the registry's lock may be held for ever.
        if self.is_forked() { None } else { self.shared.registry.get(name, key) }
    }

    /// Sends a request; `sink` is called with the answer, exactly once.
    pub(crate) fn request(self: &Arc<Self>, request: Request, sink: Sink) -> Result<RequestId> {
        self.refuse_fork()?;
        if let Request::Acquire { key: key @ Key::Thread(_), .. } = &request {
            owner::note_thread(*key, self);
        }
        let id = self.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        if self.handle.send(Command::Request { id, request, sink }) { Ok(id) } else { Err(closed()) }
    }

    /// Tells the engine something that needs no answer. In a child and after the end: nothing.
    pub(crate) fn tell(&self, input: Input) {
        if !self.is_forked() {
            let _ = self.handle.send(Command::Tell(input));
        }
    }

    /// Wraps the engine's answer, so that a grant that is dropped anywhere is released.
    pub(crate) fn outcome(self: &Arc<Self>, result: Result<Done>) -> Outcome {
        match result {
            Ok(Done::Granted { cell, level }) => Outcome::Granted(Guard::new(self.clone(), cell, level)),
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
    fn options_are_refused_by_build() {
        let builder = Client::builder("redis://localhost");
        let error =
            builder.clone().option("leese", OptionValue::Flag(true)).build().expect_err("unknown option");
        assert!(error.to_string().contains("leese"), "{error}");
        assert!(builder.clone().option("lease", OptionValue::Seconds(-1.0)).build().is_err());
        assert!(builder.option("watchdog_lease", OptionValue::Seconds(1.0)).build().is_ok());
    }
}
