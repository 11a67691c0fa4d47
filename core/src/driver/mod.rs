//! Runs an engine: one thread per client, with a single-threaded runtime, owns the sockets and the
//! timer, and carries inputs to the engine and its outputs to where they belong.
//!
//! The thread never enters an interpreter and never waits for a caller.

mod calling;
mod channels;
mod cluster;
mod connect;
mod direct;
mod ear;
mod gathered;
mod lanes;
mod link;
#[cfg(test)]
mod live_tests;
mod machine;
mod net;
#[cfg(test)]
pub(crate) mod played;
#[cfg(test)]
mod pressure_tests;
mod pubsub;
mod replies;
mod run;
mod sentinel;
mod server_clock;
mod slotmap;
mod timer;
mod tls;
mod traffic;
mod window;

use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use redis::ConnectionInfo;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::engine::{self, Done, Input, Request, RequestId};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Counters, Event, Level, Ring};
use crate::gate::{Gates, Tasks};
use crate::hold::HoldCell;
use crate::maps::Set;
use crate::options::ClusterPubsub;
use crate::owner::Key;
use crate::process;
use crate::url::{Place, Topology};
use crate::wire::Name;

use calling::Desk;
pub(crate) use calling::OwnCall;
pub(crate) use connect::{Address, Manner};
use direct::Direct;
use machine::Machine;
use run::{Driver, Threads};
use traffic::Redirect;

/// Takes the answer to a request.
pub(crate) trait Sink: Send + Sync {
    /// Called exactly once, on the engine's thread or that of a caller; must not block.
    fn answer(&self, result: Result<Done>);
}

/// What the engine's thread can be told.
pub(crate) enum Command {
    /// A request and where its answer goes.
    Request { id: RequestId, request: Request, sink: Arc<dyn Sink> },
    /// Anything else the engine should know.
    Tell(Input),
}

/// The servers of a client.
#[derive(Clone)]
pub(crate) enum Servers {
    Single(Address),
    /// `server`: how to log in at whichever server the sentinels name.
    Sentinel {
        sentinels: Vec<Address>,
        service: String,
        server: Address,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Address>),
}

impl Servers {
    pub(crate) fn new(place: &Place, manner: &Manner) -> Servers {
        let address = |info: ConnectionInfo| Address::new(info, manner.clone());
        match &place.topology {
            Topology::Single => Servers::Single(address(place.server.clone())),
            Topology::Sentinel { hosts, service } => Servers::Sentinel {
                sentinels: hosts.iter().map(|host| address(place.sentinel(host))).collect(),
                service: service.clone(),
                server: address(place.server.clone()),
            },
            Topology::Cluster { hosts } => {
                Servers::Cluster(hosts.iter().map(|host| address(place.server(host))).collect())
            }
        }
    }
}

/// What a driver needs to start.
pub(crate) struct DriverConfig {
    pub(crate) servers: Servers,
    pub(crate) engine: engine::Config,
    pub(crate) tracking: bool,
    pub(crate) pubsub: ClusterPubsub,
    /// Whether blocked callers may do their calls themselves.
    pub(crate) direct: bool,
}

/// What the engine's thread shares with everybody else.
pub(crate) struct Shared {
    pub(crate) uuid: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ring: Ring,
    pub(crate) registry: Registry,
    /// Where callers sleep whose requests have not been read yet.
    pub(crate) gates: Gates,
    /// Whom the engine's thread wakes when it has done everything else.
    pub(crate) tasks: Tasks,
}

impl Shared {
    /// Whether anybody may want events of the level debug, which come with every acquisition.
    fn is_followed(&self) -> bool {
        self.ring.wants(Level::Debug)
            || tracing::level_filters::LevelFilter::current() >= tracing::Level::DEBUG
    }

    /// Tells an event to the program's log and keeps it for the languages that ask for it.
    fn tell(&self, event: Event) {
        let tell = || {
            let (kind, lock) = (event.kind, event.lock.as_deref().unwrap_or_default());
            match event.level {
                Level::Debug => tracing::debug!(target: "redlatch", kind, lock, "{}", event.text),
                Level::Info => tracing::info!(target: "redlatch", kind, lock, "{}", event.text),
                Level::Warn => tracing::warn!(target: "redlatch", kind, lock, "{}", event.text),
            }
            self.ring.push(event);
        };
        // A subscriber of the program that panics has said so itself.
        let _ = catch_unwind(AssertUnwindSafe(tell));
    }
}

/// The holds that have a re-entry key, for questions that are answered without I/O.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Set<Entry>>);

impl Registry {
    fn holds(&self) -> MutexGuard<'_, Set<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &Name, key: Key) -> Option<Arc<HoldCell>> {
        let wanted: &dyn Keyed = &(&**name, key);
        self.holds().get(wanted).map(|entry| entry.0.clone())
    }

    fn open(&self, cell: Arc<HoldCell>) {
        self.holds().replace(Entry(cell));
    }

    /// Forgets a hold, unless its key holds the name anew already.
    fn end(&self, cell: &Arc<HoldCell>) {
        let mut holds = self.holds();
        let entry = Entry(cell.clone());
        if holds.get(&entry).is_some_and(|held| Arc::ptr_eq(&held.0, cell)) {
            holds.remove(&entry);
        }
    }
}

/// A hold, known by its name and key: eight bytes, of which a table may have a million.
struct Entry(Arc<HoldCell>);

/// What an entry is found by.
trait Keyed {
    fn id(&self) -> (&str, Key);
}

impl Keyed for Entry {
    fn id(&self) -> (&str, Key) {
        (&self.0.name, self.0.key)
    }
}

impl Keyed for (&str, Key) {
    fn id(&self) -> (&str, Key) {
        *self
    }
}

impl Hash for dyn Keyed + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl PartialEq for dyn Keyed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for dyn Keyed + '_ {}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Entry {}

impl<'a> Borrow<dyn Keyed + 'a> for Entry {
    fn borrow(&self) -> &(dyn Keyed + 'a) {
        self
    }
}

thread_local! {
    static ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one that answers requests: it must not wait for an answer.
pub(crate) fn is_engine_thread() -> bool {
    ENGINE.try_with(Cell::get).unwrap_or(false)
}

/// The way to the engine's thread. When it is dropped, the thread finishes what is under way, for a
/// second at most, and ends.
pub(crate) struct Handle {
    /// The process that has the thread.
    pid: u32,
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<Ended>,
}

impl Handle {
    /// Starts the thread. It connects at once and goes on trying until it is closed.
    ///
    /// # Errors
    /// `unavailable` when the system gives no thread, timer or event queue.
    pub(crate) fn start(config: DriverConfig, shared: Arc<Shared>) -> Result<Handle> {
        let (inbox, letters) = unbounded_channel();
        let direct = Arc::new(Direct::new(config.direct));
        let machine = Arc::new(Machine::new(config.engine.clone(), shared, direct));
        let post = Post { inbox, machine: machine.clone() };
        let desk = Arc::new(Desk { machine, post, pid: process::id() });
        let ended = Arc::new(Ended::default());
        let (end, own) = (EndGuard(ended.clone()), desk.clone());
        let (ready, is_ready) = mpsc::channel();
        let life = move || {
            let _end = end;
            ENGINE.set(true);
            // Made here, because a runtime must not be dropped on a thread of another one.
            match Threads::new().and_then(|threads| Ok((threads.timer()?, threads))) {
                Ok((timer, threads)) => {
                    let driver = Driver::new(config, own, letters, timer, threads.late().clone());
                    let _ = ready.send(Ok(()));
                    run::run(threads, driver);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        let thread = without_signals(|| std::thread::Builder::new().name("redlatch".to_owned()).spawn(life))
            .map_err(|error| not_started(&error))?
            .map_err(|error| not_started(&error))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Handle { pid: process::id(), desk, thread: Mutex::new(Some(thread)), ended }),
            Ok(Err(error)) => Err(not_started(&error)),
            Err(_) => Err(not_started(&"it panicked")),
        }
    }

    /// Hands a command to the thread. False if the thread has ended; a sink is dropped uncalled then.
    pub(crate) fn send(&self, command: Command) -> bool {
        let letter = match command {
            Command::Request { id, request, sink } => {
                Letter::Request(Asked { id, request, completion: Completion(Some(sink)) })
            }
            Command::Tell(input) => Letter::Tell(input),
        };
        self.desk.pass_on(letter).is_none_or(|letter| self.post(letter))
    }

    /// False if the thread has ended; the sink of a request is dropped uncalled then.
    fn post(&self, letter: Letter) -> bool {
        match self.desk.post.send(letter) {
            None => true,
            Some(refused) => {
                if let Letter::Request(Asked { mut completion, .. }) = refused {
                    completion.0 = None;
                }
                false
            }
        }
    }

    /// Hands over a request whose caller blocks: he gets the call that follows from it if he is to do it
    /// himself; with `alone` only if nobody else uses the client and it seems to be done soon.
    /// `Err` if the thread has ended; the sink is dropped uncalled then.
    pub(crate) fn request(
        &self,
        id: RequestId,
        request: Request,
        sink: Arc<dyn Sink>,
        alone: bool,
    ) -> std::result::Result<Option<OwnCall>, ()> {
        let mut asked = Some(Asked { id, request, completion: Completion(Some(sink)) });
        let call = self.desk.request(&mut asked, alone);
        let done = asked.is_none_or(|asked| self.post(Letter::Request(asked)));
        if done { Ok(call) } else { Err(()) }
    }

    /// Waits until the thread has ended, at most `limit`. An engine's thread does not wait.
    pub(crate) fn join(&self, limit: Duration) {
        if is_engine_thread() || !self.ended.wait(limit) {
            return;
        }
        // It has nothing left to do but to vanish, and with it its thread-local data: a library that
        // holds our code may be unloaded next.
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.pid == process::id() {
            self.desk.post.send(Letter::Orphaned);
        } else {
            // A word would wake the parent's thread, since a child shares its event descriptor; and
            // there is no such thread here.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn not_started(why: &dyn std::fmt::Display) -> Error {
    let text = format!("cannot start the engine's thread: {why}; raise the limits of the process");
    Error::new(ErrorKind::Unavailable, text)
}

/// Runs `make` while all signals are blocked: they belong to the threads of the program, and a new
/// thread inherits the mask of its maker.
fn without_signals<T>(make: impl FnOnce() -> T) -> nix::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let made = make();
    before.thread_set_mask()?;
    Ok(made)
}

/// Whether the thread has ended.
#[derive(Default)]
struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// True if it has ended within `limit`.
    fn wait(&self, limit: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Tells the end of the thread, also when it ends by a panic.
struct EndGuard(Arc<Ended>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

/// A command on its way. Its sink is called even if nobody reads it any more.
enum Letter {
    Request(Asked),
    Tell(Input),
    /// Somebody has left something to be done.
    Look,
    /// The caller of this does not wait for it any longer.
    Finish(Box<OwnCall>),
    /// The handle is gone.
    Orphaned,
}

/// A request, and who is to be answered.
struct Asked {
    id: RequestId,
    request: Request,
    completion: Completion,
}

impl Letter {
    /// Whether it is to tell the engine something.
    fn is_news(&self) -> bool {
        !matches!(self, Letter::Look)
    }
}

/// The way of letters to the engine's thread.
struct Post {
    inbox: UnboundedSender<Letter>,
    machine: Arc<Machine>,
}

impl Post {
    /// Returns the letter if the thread has ended.
    fn send(&self, letter: Letter) -> Option<Letter> {
        if letter.is_news() {
            self.machine.posted();
        }
        self.inbox.send(letter).err().map(|refused| refused.0)
    }
}

/// A sink that answers even when it is dropped.
struct Completion(Option<Arc<dyn Sink>>);

impl Completion {
    fn complete(mut self, result: Result<Done>) {
        self.call(result);
    }

    /// Calls the sink; a panic in it stays there.
    fn call(&mut self, result: Result<Done>) {
        if let Some(sink) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| sink.answer(result)));
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // Most have been called: no error is made for those.
        if self.0.is_some() {
            let text = "the engine's thread ended before it could answer";
            self.call(Err(Error::new(ErrorKind::Internal, text)));
        }
    }
}

/// What the connections have learnt.
#[derive(Default)]
struct News {
    inputs: Vec<Input>,
    events: Vec<Event>,
    /// Connections made.
    connects: u64,
    /// What nodes of a cluster do not serve.
    redirects: Vec<Redirect>,
}

impl News {
    fn tell(&mut self, input: Input) {
        self.inputs.push(input);
    }

    fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.events.is_empty()
    }
}
