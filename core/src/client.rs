//! A client: one identity and one engine, which starts with the first request.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

use redlatch_proto::key::OwnerKey;
use redlatch_proto::quorum::{self, Members};

use crate::completion_queue::Outcome;
use crate::credentials::{Credentials, Provider};
use crate::driver::{DriverConfig, Handle, InlineCall, Manner, Registry, Shared, Sink, Way};
use crate::engine::{AcquireAll, Done, Input, Lease, Request, RequestId, Terms};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Counters, Event, Ring, Stats};
use crate::guard::{Guard, PlainPermit, unexpected, unit};
use crate::hold::HoldCell;
use crate::lock::{Lock, RwLock, Semaphore};
use crate::operation::Operation;
use crate::options::{ClientOptions, LockOptions, OptionValue, Scope, SetOption};
use crate::owner::{self, KeyListener, ReentryKey};
use crate::parking::{ParkingGroup, ParkingGroups};
use crate::process;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys;
use crate::url::{self, At, Host, Place, Topology};
use crate::wake_list::DeferredWakers;
use crate::wire::{Kind, Name, Process, names};

/// Access to Redis under one identity. Share one client in the whole program. Cloning is cheap;
/// clones are the same client.
///
/// The I/O thread and the connections start with the first request. Close the client when done: it
/// then releases what is still held, and tells the holders. A client that is dropped without
/// `close` ends when its last guard is dropped. If `main` ends next, as by `?`, the end of the
/// program waits for these releases, for a second at most; on Windows it does not.
///
/// # Examples
/// ```no_run
/// # async fn example() -> redlatch::Result<()> {
/// let client = redlatch::Client::connect("redis://localhost").await?;
/// let same = client.clone(); // for another task: the same connections, the same I/O thread
/// tokio::spawn(async move { same.lock("reports")?.acquire().await?.release().await });
/// client.close().await?; // releases what is still held
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(pub(crate) Arc<ClientInner>);

/// Makes a [`Client`] with options.
///
/// # Examples
/// ```no_run
/// # async fn example() -> redlatch::Result<()> {
/// use redlatch::{Client, OptionValue};
///
/// let client = Client::builder_from_env() // REDLATCH_URL
///     .option("outage", OptionValue::Text("3s")) // as a configuration file has it
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "a builder does nothing before `build`"]
pub struct ClientBuilder {
    /// `None` reads the URL from the environment.
    url: Option<String>,
    pub(crate) options: ClientOptions,
    locks: LockOptions,
    error: Option<Error>,
    /// Shown in the names of the connections; `None` for Rust.
    language: Option<&'static str>,
    provider: Option<Provider>,
}

pub(crate) struct ClientInner {
    place: Place,
    manner: Manner,
    /// The servers of a quorum.
    pub(crate) quorum: Option<quorum::Members>,
    language: &'static str,
    pub(crate) options: ClientOptions,
    /// The default options of this client's locks.
    locks: Arc<LockOptions>,
    /// The last lock options that differed from the defaults. A program has few sets of options but
    /// may have very many locks, so locks with equal options share them.
    others: Mutex<Arc<LockOptions>>,
    /// The process that began to start the engine, or [`UNSTARTED`], or [`CLOSED`]. Read before any
    /// lock is taken: a forked child may have inherited a mutex that no thread will ever unlock.
    pid: AtomicU32,
    starting: Mutex<()>,
    running: OnceLock<Arc<Running>>,
}

// A panic of the program leaves nothing half changed: its code runs only in callbacks, which are
// caught, and a mutex is used on as if it were not poisoned.
impl UnwindSafe for ClientInner {}
impl RefUnwindSafe for ClientInner {}
impl UnwindSafe for Running {}
impl RefUnwindSafe for Running {}

/// In place of a process id: the engine has not been started.
const UNSTARTED: u32 = 0;
/// In place of a process id: the client was closed before its engine was started.
const CLOSED: u32 = u32::MAX;

/// The engine of a client, once started.
pub(crate) struct Running {
    pid: u32,
    pub(crate) handle: Handle,
    shared: Arc<Shared>,
    last_request: AtomicU64,
    /// Whether closing was requested.
    closed: AtomicBool,
    /// In a quorum, the option `restart_delay`.
    pub(crate) restart_delay: Option<Duration>,
}

/// The length of the first four groups of a UUID.
const GROUPS: usize = 23;

impl Client {
    /// Opens a client with default options and waits until the server is reached.
    ///
    /// `url` is `redis://[user:password@]host[:port][/database]` or `unix:///path`. The schemes
    /// `rediss://`, `redis+sentinel://` and `redis+cluster://` select TLS, Sentinel and Cluster.
    ///
    /// # Errors
    /// `invalid_argument` for a bad URL, `unavailable` when the server cannot be reached, `auth`
    /// when it refuses user name or password.
    ///
    /// # Cancel safety
    /// Dropping the operation ends the client.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// use redlatch::{Client, ErrorKind};
    ///
    /// match Client::connect("rediss://app:secret@redis.example:6380/2").await {
    ///     Ok(client) => client.close().await?,
    ///     Err(error) if error.kind() == ErrorKind::Auth => eprintln!("user or password: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(url: &str) -> Operation<Client> {
        Client::open(Client::builder(url))
    }

    /// As [`connect`](Client::connect), with the URL in the environment variable `REDLATCH_URL`.
    ///
    /// # Errors
    /// `invalid_argument` when there is no such variable, and as [`connect`](Client::connect).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// let client = redlatch::Client::from_env().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Operation<Client> {
        Client::open(Client::builder_from_env())
    }

    fn open(builder: ClientBuilder) -> Operation<Client> {
        match builder.build() {
            Ok(client) => {
                let inner = client.0.clone();
                Operation::new(&inner, Request::Connect, |outcome| {
                    unit(outcome).map(|()| client)
                })
            }
            Err(error) => Operation::failed(error),
        }
    }

    /// Begins a client with options. The client connects with its first request, or with
    /// [`ready`](Client::ready).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// use redlatch::{Client, ClientOptions, LockOptions};
    /// use std::time::Duration;
    ///
    /// let client = Client::builder("redis://localhost")
    ///     .options(ClientOptions::new().outage(Duration::from_secs(3)))
    ///     .lock_options(LockOptions::new().watchdog_lease(Duration::from_secs(60)))
    ///     .build()?; // connects with the first request
    /// client.ready().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: Some(url.to_owned()),
            ..ClientBuilder::default()
        }
    }

    /// Begins a client whose URL is read from the environment variable `REDLATCH_URL` when it is
    /// built.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// let client = redlatch::Client::builder_from_env().build()?; // no I/O yet
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder_from_env() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Waits until the server is reached, or reports why it cannot be reached.
    ///
    /// # Errors
    /// `unavailable`, `auth`, `denied`, `closed`, `forked`.
    ///
    /// # Cancel safety
    /// Dropping the operation changes nothing; the client goes on trying to connect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// let client = redlatch::Client::builder("redis://localhost").build()?;
    /// client.ready().await?; // without it the first call connects
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self) -> Operation<()> {
        Operation::new(&self.0, Request::Connect, unit)
    }

    /// The lock of this name, with the client's options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let lock = client.lock("orders:42")?;
    /// let guard = lock.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: &str) -> Result<Lock> {
        Ok(Lock::new(
            self.0.clone(),
            names::name(name)?,
            self.0.locks.clone(),
        ))
    }

    /// The lock of this name, with its own options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a bad name or an option out of bounds.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use redlatch::LockOptions;
    /// use std::time::Duration;
    ///
    /// let lock = client.lock_with("report", LockOptions::new().lease(Duration::from_secs(600)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_with(&self, name: &str, options: LockOptions) -> Result<Lock> {
        let options = self.0.checked(options)?;
        Ok(Lock::new(self.0.clone(), names::name(name)?, options))
    }

    /// A read-write lock with the client's default options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let prices = client.rw_lock("prices")?;
    /// let reading = prices.read().acquire().await?; // beside other readers
    /// reading.release().await?;
    /// let writing = prices.write().acquire().await?; // alone
    /// # Ok(())
    /// # }
    /// ```
    pub fn rw_lock(&self, name: &str) -> Result<RwLock> {
        self.rw_lock_with(name, self.lock_options())
    }

    /// A read-write lock with its own options. A kind that is neither the client's nor the default is
    /// refused. Fencing tokens are for the writer. No I/O.
    ///
    /// # Errors
    /// `invalid_argument`, as [`lock_with`](Client::lock_with).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use redlatch::LockOptions;
    /// use std::time::Duration;
    ///
    /// let options = LockOptions::new().watchdog_lease(Duration::from_secs(60));
    /// let prices = client.rw_lock_with("prices", options)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rw_lock_with(&self, name: &str, options: LockOptions) -> Result<RwLock> {
        let [read, write] = options.sides(self.0.locks.kind)?;
        Ok(RwLock {
            read: self.lock_with(name, read)?,
            write: self.lock_with(name, write)?,
        })
    }

    /// Several locks as one, with the client's default options: all of these names, or none of them.
    /// No I/O.
    ///
    /// Give the names in any order: every client waits for them in the same order, so no two callers
    /// wait for each other. An acquisition of free names takes one round trip on one server, for up
    /// to 32 of them. While it waits, it keeps the names before the one that it waits for. The loss of
    /// one is the loss of the whole.
    ///
    /// # Errors
    /// `invalid_argument` for no name, a name given twice, or a name that is not 1 to 1,024 bytes long.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let both = client.multi_lock(["account:7", "account:3"])?;
    /// let guard = both.acquire().await?;
    /// // Nobody else touches one of the two.
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi_lock<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<Lock> {
        let locks = names.into_iter().map(|name| self.lock(name.as_ref()));
        Lock::multi(self.0.clone(), locks.collect::<Result<_>>()?)
    }

    /// Several locks as one, each of its own kind and options: locks, sides of read-write locks,
    /// semaphores ([`Semaphore::as_lock`]), even multi locks. No I/O.
    ///
    /// # Errors
    /// `invalid_argument`, as [`multi_lock`](Client::multi_lock), and for a lock of another client.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let (prices, order) = (client.rw_lock("prices")?, client.lock("orders:42")?);
    /// let both = client.multi_lock_of([prices.read(), &order])?;
    /// let guard = both.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi_lock_of<'a>(&self, locks: impl IntoIterator<Item = &'a Lock>) -> Result<Lock> {
        Lock::multi(self.0.clone(), locks.into_iter().cloned().collect())
    }

    /// A semaphore that gets `limit` permits when it has none yet; with 0, others set that. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long, or a limit above
    /// 2,147,483,647.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let uploads = client.semaphore("uploads", 5)?; // five at a time, in all programs
    /// let permit = uploads.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: &str, limit: usize) -> Result<Semaphore> {
        self.semaphore_with(name, self.semaphore_options().limit(limit))
    }

    /// A semaphore with its own options. Their kind does not count. No I/O.
    ///
    /// # Errors
    /// `invalid_argument`, as [`lock_with`](Client::lock_with), and for options that mean nothing
    /// for a semaphore: begin with [`semaphore_options`](Client::semaphore_options).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// let options = client.semaphore_options().watchdog_lease(Duration::from_secs(60));
    /// let uploads = client.semaphore_with("uploads", options.limit(5))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore_with(&self, name: &str, options: LockOptions) -> Result<Semaphore> {
        let lock = self.lock_with(name, options.kind(Kind::Semaphore))?;
        Ok(Semaphore { lock })
    }

    /// The default options of this client's locks.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let lock = client.lock_with("orders:42", client.lock_options().fencing(true))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_options(&self) -> LockOptions {
        (*self.0.locks).clone()
    }

    /// The default options of this client's semaphores: those of its locks, without the options that
    /// mean nothing for a semaphore.
    pub fn semaphore_options(&self) -> LockOptions {
        self.lock_options().of_semaphores()
    }

    /// The common prefix of this client's owners: the first four groups of a random UUID. Starts
    /// the engine.
    ///
    /// The last group is drawn anew for each connection, so that copies of the process (from a
    /// snapshot) do not acquire as one owner. Copies share this prefix if the client was started
    /// before the snapshot was taken.
    ///
    /// # Errors
    /// `forked`, `internal`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// // Each owner of this client in Redis begins with it.
    /// println!("{}", client.id()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> Result<String> {
        let running = self.0.running()?;
        Ok(running
            .shared
            .uuid
            .get(..GROUPS)
            .unwrap_or_default()
            .to_owned())
    }

    /// The counters of what the client has done so far.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let stats = client.stats();
    /// println!("{} held, {} waiting, {} lost", stats.holds, stats.waiting, stats.lost);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let Some(running) = self.0.started() else {
            return Stats::default();
        };
        // The ring counts its dropped events under its own lock; the snapshot needs them as a
        // counter.
        running
            .shared
            .counters
            .events_dropped
            .set(running.shared.ring.dropped());
        running.shared.counters.snapshot()
    }

    /// Takes the events since the last call, oldest first. In a forked child there are none.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// for event in client.events() {
    ///     println!("{}: {}", event.kind, event.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> Vec<Event> {
        let own = self.0.started().filter(|running| !running.is_forked());
        own.map(|running| running.shared.ring.drain())
            .unwrap_or_default()
    }

    /// Calls `notify` on the I/O thread when events are ready to be taken. The callback must not
    /// take them itself, and must not block: meanwhile calls wait and holds are not renewed.
    ///
    /// # Errors
    /// `forked`, `closed`, `internal`, because it starts the engine.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let (more, events) = std::sync::mpsc::channel();
    /// client.on_events(move || drop(more.send(())))?;
    /// while events.recv().is_ok() {
    ///     for event in client.events() {
    ///         println!("{}: {}", event.kind, event.text);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_events(&self, notify: impl Fn() + Send + Sync + 'static) -> Result<()> {
        self.0.running()?.shared.ring.set_notify(Box::new(notify));
        Ok(())
    }

    /// Reports that the thread or task behind `key` has ended. The levels that it holds without a
    /// guard are not renewed any more.
    pub fn key_ended(&self, key: ReentryKey) {
        if let Some(running) = self.0.started() {
            running.tell(Input::KeyEnded(key.into()));
        }
    }

    /// Closes within the time of the option `close_limit`; see
    /// [`close_within`](Client::close_within).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// if let Err(error) = client.close().await {
    ///     for name in error.unreleased() {
    ///         eprintln!("{name} could not be released; it ends with its lease");
    ///     }
    ///     return Err(error);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) -> Operation<()> {
        self.close_within(self.0.options.close_limit)
    }

    /// Releases what is held, ends all waits, and stops the I/O thread. Holders are told `lost`
    /// (`closed`). Closing twice is no error. A limit of zero releases nothing.
    ///
    /// # Errors
    /// `unavailable` when something could not be released within `limit`;
    /// [`unreleased`](Error::unreleased) has the names. A lock ends with its lease; permits of a
    /// plain semaphore stay taken. The client is closed all the same.
    ///
    /// # Cancel safety
    /// Once sent, closing goes on by itself.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// client.close_within(Duration::from_millis(500)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_within(&self, limit: Duration) -> Operation<()> {
        self.closing(limit, move |names| Error::check_released(names, limit))
    }

    /// Closes, and says what comes of the names of what could not be released.
    pub(crate) fn closing<T: 'static>(
        &self,
        limit: Duration,
        judge: impl FnOnce(Vec<String>) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        let finish = move |outcome| match outcome {
            Outcome::Closed(names) => judge(names),
            Outcome::Failed(error) if error.kind() == ErrorKind::Closed => judge(Vec::new()),
            Outcome::Failed(error) => Err(error),
            other => Err(unexpected(&other)),
        };
        match self.0.close_unstarted() {
            true => Operation::known(Outcome::Closed(Vec::new()), finish),
            false => Operation::new(&self.0, Request::Close { limit }, finish),
        }
    }

    /// The value of the option `exit_limit`.
    pub(crate) fn exit_limit(&self) -> Duration {
        self.0.options.exit_limit
    }

    /// A reference that does not keep the client alive.
    pub(crate) fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.0))
    }

    /// Whether the I/O thread has ended or never started.
    pub(crate) fn has_ended(&self) -> bool {
        self.0
            .started()
            .is_none_or(|running| running.handle.has_ended())
    }

    /// Whether the client was closed, or is being closed.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// client.close().await?;
    /// assert!(client.is_closed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.pid.load(Ordering::Acquire) == CLOSED
            || self
                .0
                .started()
                .is_some_and(|running| running.closed.load(Ordering::Acquire))
    }
}

/// Refers to a client without keeping it alive.
pub(crate) struct WeakClient(Weak<ClientInner>);

impl WeakClient {
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(Client)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self
            .0
            .running
            .get()
            .map_or("not started", |running| &running.shared.uuid);
        write!(f, "Client({id})")
    }
}

impl ClientBuilder {
    /// Sets the client's options.
    pub fn options(mut self, options: ClientOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the default options of the client's locks.
    pub fn lock_options(mut self, options: LockOptions) -> Self {
        self.locks = options;
        self
    }

    /// Sets an option of the client, or a default of its locks, by name. `build` reports an error.
    pub fn option(mut self, name: &str, value: OptionValue<'_>) -> Self {
        if let Err(error) = self.set(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Sets an option of the client, or a default of its locks, by name.
    ///
    /// # Errors
    /// `invalid_argument` for an unknown name or an unacceptable value.
    pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        if LockOptions::has(name) {
            self.locks.set(name, value)
        } else {
            self.options.set(name, value)
        }
    }

    /// Asks `provider` for user name and password, in place of the URL: for passwords and tokens that
    /// change.
    ///
    /// It is asked before a connection of this client is made, so also after a connection was lost,
    /// and once more when the server refuses what it gave. It runs on a thread of its own, and may
    /// block. A client asks for one answer at a time, and all its connections that wait share that
    /// answer. An attempt to connect waits for the
    /// [`connect_timeout`](ClientOptions::connect_timeout) in all. A call that takes longer goes on,
    /// and the next attempt waits for the same call: let it end by itself, because no other call
    /// begins before. Each client that is built from a clone of this builder asks for itself.
    ///
    /// While it fails the server counts as unreachable: holds stay until their deadlines, and it is
    /// asked again. Sentinels log in with the URL's `sentinel_user` and `sentinel_password`.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// use redlatch::{Client, Credentials};
    ///
    /// let client = Client::builder("redis://localhost")
    ///     .credentials(|| {
    ///         let token = std::fs::read_to_string("/run/secrets/redis")?;
    ///         Ok(Credentials::new("app", token.trim()))
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials<F>(mut self, provider: F) -> Self
    where
        F: Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    {
        self.provider = Some(Provider::new(provider));
        self
    }

    /// Makes the client. No I/O: the I/O thread starts with the first request.
    ///
    /// # Errors
    /// `invalid_argument` for a bad URL or option.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// use redlatch::{Client, ErrorKind};
    ///
    /// let error = Client::builder("http://localhost").build().err();
    /// assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::InvalidArgument));
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<Client> {
        let (place, mut manner) = self.place()?;
        let quorum = match &place.topology {
            Topology::Quorum { hosts } => {
                manner = manner.for_quorum(&self.options);
                self.locks.validate_for_quorum()?;
                let shown = |host: &Host| At::Tcp(host.clone()).to_string();
                Some(Members::new(hosts.iter().map(shown)))
            }
            _ => None,
        };
        let locks = Arc::new(self.locks);
        Ok(Client(Arc::new(ClientInner {
            place,
            manner,
            quorum,
            language: self.language.unwrap_or("rust"),
            options: self.options,
            others: Mutex::new(locks.clone()),
            locks,
            pid: AtomicU32::new(UNSTARTED),
            starting: Mutex::new(()),
            running: OnceLock::new(),
        })))
    }

    /// Sets the language that the names of the connections show.
    pub(crate) fn in_language(mut self, language: &'static str) -> Self {
        self.language = Some(language);
        self
    }

    /// The servers and how to connect to them, if every option is acceptable.
    pub(crate) fn place(&self) -> Result<(Place, Manner)> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.options.validate()?;
        self.locks.validate()?;
        let place = match self.url.as_deref() {
            Some(given) => url::parse_for_sockets(given),
            None => url::from_env(
                std::env::var(url::VARIABLE).ok().as_deref(),
                url::parse_for_sockets,
            ),
        }?;
        let logs_in = place.server.user.is_some() || place.server.password.is_some();
        if self.provider.is_some() && logs_in {
            let text = "the URL has a user name or password, and there is a credential provider; give one of both";
            return Err(Error::invalid(text));
        }
        let manner = Manner::new(&self.options, place.tls, self.provider.clone())?;
        Ok((place, manner))
    }
}

impl SetOption for ClientBuilder {
    const SCOPE: Scope = Scope::Client;

    fn set_option(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        self.set(name, value)
    }
}

impl ClientInner {
    /// The same options, if they can be used.
    pub(crate) fn checked(&self, options: LockOptions) -> Result<Arc<LockOptions>> {
        options.validate()?;
        options.validate_kind(&self.locks)?;
        if self.quorum.is_some() {
            options.validate_for_quorum()?;
        }
        Ok(self.shared(options))
    }

    /// These options, shared with the locks that have equal ones.
    pub(crate) fn shared(&self, options: LockOptions) -> Arc<LockOptions> {
        if options == *self.locks {
            return self.locks.clone();
        }
        // A forked child may have inherited this mutex locked. Then the options are not shared.
        let Ok(mut others) = self.others.try_lock() else {
            return Arc::new(options);
        };
        if **others != options {
            *others = Arc::new(options);
        }
        others.clone()
    }

    /// The servers of its quorum, and their `restart_delay`.
    pub(crate) fn quorum_rules(&self) -> Option<(&Members, Duration)> {
        Some((self.quorum.as_ref()?, self.options.restart_delay))
    }

    /// Refuses what only a client of one set of data has.
    pub(crate) fn refuse_quorum(&self, what: &str) -> Result<()> {
        match self.quorum {
            None => Ok(()),
            Some(_) => Err(quorum::has_no(what)),
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        let pid = self.pid.load(Ordering::Acquire);
        pid != UNSTARTED && pid != CLOSED && pid != process::id()
    }

    /// The engine if it was started.
    pub(crate) fn started(&self) -> Option<Arc<Running>> {
        self.running.get().cloned()
    }

    /// Closes a client that has nothing to close: it was never started, or belongs to the parent
    /// process. Returns whether this is such a client.
    fn close_unstarted(&self) -> bool {
        let closed =
            self.pid
                .compare_exchange(UNSTARTED, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        matches!(closed, Ok(_) | Err(CLOSED)) || self.is_forked()
    }

    /// The engine; starts it if necessary.
    pub(crate) fn running(self: &Arc<Self>) -> Result<Arc<Running>> {
        if self.is_forked() {
            return Err(forked());
        }
        if let Some(running) = self.running.get() {
            return Ok(running.clone());
        }
        let own = process::id();
        if self
            .pid
            .compare_exchange(UNSTARTED, own, Ordering::AcqRel, Ordering::Acquire)
            == Err(CLOSED)
        {
            return Err(Error::closed());
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
    /// The parking group of callers whose requests are sent now.
    pub(crate) fn gate(&self) -> Arc<ParkingGroup> {
        self.shared.gates.current()
    }

    /// Tasks to wake when the I/O thread has finished its other work.
    pub(crate) fn tasks(&self) -> &DeferredWakers {
        &self.shared.tasks
    }

    fn start(client: &Arc<ClientInner>) -> Result<Running> {
        let (options, uuid) = (&client.options, uuid::Uuid::new_v4().to_string());
        let id = uuid.get(..GROUPS).unwrap_or_default();
        let (name, language) = (&options.client_name, client.language);
        let name = Process::new(name, id, language, process::id(), &sys::host_name());
        let shared = Arc::new(Shared {
            uuid,
            counters: Arc::new(Counters::default()),
            ring: Ring::new(options.events, options.least_level()),
            registry: Registry::default(),
            gates: ParkingGroups::default(),
            tasks: DeferredWakers::default(),
        });
        let seed = uuid::Uuid::new_v4().as_u64_pair().0;
        let config = DriverConfig {
            place: client.place.clone(),
            manner: client.manner.clone().named(&name.to_string()),
            engine: options.engine(Duration::ZERO, seed),
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
            restart_delay: client.quorum.as_ref().map(|_| options.restart_delay),
        })
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.shared.uuid
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.is_forked() {
            Err(forked())
        } else {
            Ok(())
        }
    }

    pub(crate) fn cell(&self, name: &Name, key: OwnerKey, kind: Kind) -> Option<Arc<HoldCell>> {
        // A forked child may have inherited the registry's mutex locked for ever.
        if self.is_forked() {
            None
        } else {
            self.shared.registry.get(name, key, kind)
        }
    }

    /// Submits a request; `sink` gets exactly one answer. Returns the inline call that the caller
    /// has to make itself, if any. Not for a forked child: see [`ClientInner::running`].
    pub(crate) fn request(
        self: &Arc<Self>,
        mut request: Request,
        sink: Arc<dyn Sink>,
        way: Way,
    ) -> Result<(RequestId, Option<InlineCall>)> {
        let id = self.prepare(&mut request);
        // Made before, because the request is gone when the thread turns out to have ended.
        let closed = self.closed.load(Ordering::Acquire);
        let closed = closed.then(|| request.named(Error::closed()));
        let call = self
            .handle
            .request(id, request, sink, way)
            .map_err(|_| closed.unwrap_or_else(|| self.ended()))?;
        Ok((id, call))
    }

    fn prepare(self: &Arc<Self>, request: &mut Request) -> RequestId {
        if let Request::Acquire { key, terms, .. }
        | Request::AcquireAll(AcquireAll { key, terms, .. })
        | Request::Adopt { key, terms, .. } = request
            && let OwnerKey::Thread(_) | OwnerKey::Flow { .. } = key
            && !owner::note_thread(*key, self)
            && terms.tied
        {
            // Without a guard or a thread, a hold that nobody releases would be renewed for ever.
            let fixed = |terms: &mut Terms| terms.lease = Lease::Fixed(terms.lease.duration());
            fixed(terms);
            if let Request::AcquireAll(AcquireAll { parts, .. }) = request {
                let mut all = parts.to_vec();
                all.iter_mut().for_each(|part| fixed(&mut part.terms));
                *parts = all.into();
            }
        }
        if let Request::Close { .. } = request {
            self.closed.store(true, Ordering::Release);
        }
        self.last_request.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The error for a caller that the I/O thread cannot answer any more.
    pub(crate) fn ended(&self) -> Error {
        if self.closed.load(Ordering::Acquire) {
            return Error::closed();
        }
        Error::new(
            ErrorKind::Internal,
            "the engine's thread ended before it could answer",
        )
    }

    /// Tells the engine something that needs no answer. Does nothing in a forked child and after
    /// the end.
    pub(crate) fn tell(&self, input: Input) {
        if !self.is_forked() {
            self.handle.tell(input);
        }
    }

    /// Converts the engine's answer. A grant becomes a guard, so that dropping it anywhere releases
    /// it.
    /// `terms` are the terms of an acquisition.
    pub(crate) fn outcome(
        self: &Arc<Self>,
        result: Result<Done>,
        terms: Option<&Terms>,
    ) -> Outcome {
        match result {
            Ok(Done::Granted { cell, level }) => match terms {
                Some(terms) => Outcome::Granted(Guard::new(self.clone(), cell, level, terms)),
                None => Outcome::Failed(Error::new(
                    ErrorKind::Internal,
                    "granted without having been asked for",
                )),
            },
            Ok(Done::Connected) => Outcome::Connected,
            Ok(Done::Released) => Outcome::Released,
            Ok(Done::Extended) => Outcome::Extended,
            Ok(Done::Forced(deleted)) => Outcome::Forced(deleted),
            Ok(Done::Counted(permits)) => Outcome::Counted(permits),
            Ok(Done::Taken { name, permits }) => {
                Outcome::Taken(PlainPermit::new(self.clone(), name, permits))
            }
            Ok(Done::Open) => Outcome::Open,
            Ok(Done::Set(set)) => Outcome::Set(set),
            Ok(Done::Number(number)) => Outcome::Number(number),
            Ok(Done::Inspected(holders)) => Outcome::Inspected(holders),
            Ok(Done::Closed(names)) => {
                Outcome::Closed(names.iter().map(ToString::to_string).collect())
            }
            Err(error) => Outcome::Failed(error),
        }
    }
}

impl KeyListener for Running {
    fn key_ended(&self, key: OwnerKey) {
        self.tell(Input::KeyEnded(key));
    }
}

fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        "this client was opened before fork(); open a new client in this process",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_was_never_used_closes_without_an_engine() {
        let client = Client::builder("redis://127.0.0.1:1")
            .build()
            .expect("no I/O");
        assert!(!client.is_closed());
        client.close().wait().expect("closed");
        assert!(client.is_closed() && client.0.started().is_none());
        let error = client
            .lock("n")
            .expect("a name")
            .acquire()
            .wait()
            .expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_eq!(error.lock_name(), Some("n"));
    }

    #[test]
    fn a_lock_of_another_name_has_the_same_options() {
        let client = Client::builder("redis://localhost")
            .build()
            .expect("no I/O");
        let mut options = client.lock_options();
        options
            .set("watchdog_lease", OptionValue::Seconds(7.0))
            .expect("an option");
        let lock = client.lock_with("one", options).expect("a name");
        let other = lock.named("other").expect("a name");
        assert_eq!(
            (other.name(), other.options() == lock.options()),
            ("other", true)
        );
        assert_eq!(
            lock.named("").expect_err("no name").kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn options_are_refused_by_build() {
        let builder = Client::builder("redis://localhost");
        let error = builder
            .clone()
            .option("leese", OptionValue::Flag(true))
            .build()
            .expect_err("unknown option");
        assert!(error.to_string().contains("leese"), "{error}");
        assert!(
            builder
                .clone()
                .option("lease", OptionValue::Seconds(-1.0))
                .build()
                .is_err()
        );
        assert!(
            builder
                .option("watchdog_lease", OptionValue::Seconds(1.0))
                .build()
                .is_ok()
        );
    }
}
