//! The driver of an engine. One I/O thread per client, with a single-threaded runtime, owns the
//! sockets and the timer. It gives the engine its inputs and carries out its outputs.
//!
//! The I/O thread never enters an interpreter and never waits for a caller.

mod asking;
mod connect;
#[cfg(test)]
#[cfg(shuttle)]
mod explored_tests;
mod finishing;
mod inbox;
mod inline;
mod io;
#[cfg(test)]
#[cfg(not(shuttle))]
mod live_tests;
// Its test runs in the tests' build, which has TLS.
#[cfg(any(test, not(feature = "tls")))]
#[cfg_attr(feature = "tls", allow(dead_code))]
mod no_tls;
mod receive_threshold;
mod run;
mod session;
mod shared_engine;
mod sockets;
mod tcp;
#[cfg(feature = "tls")]
mod tls;

use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::engine::{self, Done, Input, Request, RequestId};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::{Counters, Event, Level, Ring};
use redlatch_proto::key::OwnerKey;
use redlatch_proto::outbox::{News, calls, server_clock};

use crate::hold::HoldCell;
use crate::log;
use crate::maps::Set;
use crate::options::ClusterPubsub;
use crate::parking::ParkingGroups;
use crate::process;
use crate::sync::thread::{Builder, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard, mpsc, thread_local};
use crate::sys::{HAS_INLINE, without_signals};
use crate::url::Place;
use crate::wake_list::DeferredWakers;
use crate::wire::{Kind, Name, Side};

pub(crate) use asking::Asking;
pub(crate) use connect::Manner;
#[cfg(all(test, shuttle))]
use explored_tests::live;
use finishing::Finishing;
use inbox::Closed;
use inline::InlineSlot;
#[cfg(not(feature = "tls"))]
use no_tls as tls;
#[cfg(not(all(test, shuttle)))]
use run::live;
pub(crate) use session::InlineCall;
use session::Session;
use shared_engine::SharedEngine;

/// Receives the answer to a request.
pub(crate) trait Sink: Send + Sync {
    /// Called exactly once, on the I/O thread or on the thread of a caller. Must not block.
    fn answer(&self, result: Result<Done>);
}

/// How the caller of a request takes part in its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It does not: the I/O thread makes the call.
    IoThread,
    /// It makes the call inline if nothing else is in flight: it blocks for the answer anyway.
    Blocking,
    /// It makes the call inline if nobody else uses the client and the answer can be expected soon.
    Alone,
}

/// The settings with which a driver starts.
pub(crate) struct DriverConfig {
    pub(crate) place: Place,
    pub(crate) manner: Manner,
    pub(crate) engine: engine::Config,
    pub(crate) tracking: bool,
    pub(crate) pubsub: ClusterPubsub,
    /// Whether blocked callers may make their calls on the inline connection.
    pub(crate) direct: bool,
}

/// The state that the I/O thread shares with the rest of the client.
pub(crate) struct Shared {
    /// Its last group does not occur in owners: [`Input::Identity`] replaces it.
    pub(crate) uuid: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ring: Ring,
    pub(crate) registry: Registry,
    /// Where callers park until the I/O thread has read their requests and answered them.
    pub(crate) gates: ParkingGroups,
    /// Tasks that the I/O thread wakes after it has done everything else.
    pub(crate) tasks: DeferredWakers,
}

impl Shared {
    /// Whether anybody may want events of level debug, which come with every acquisition.
    fn is_followed(&self) -> bool {
        self.ring.wants(Level::Debug) || log::wants_debug()
    }

    /// Logs an event, and keeps it for the bindings that ask for it.
    fn tell(&self, event: Event) {
        let tell = || {
            log::tell(&event);
            self.ring.push(event);
        };
        // A panic of the program's subscriber has been reported by its panic hook.
        let _ = catch_unwind(AssertUnwindSafe(tell));
    }
}

/// The holds that have a re-entry key, to answer questions about them without I/O.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Set<Entry>>);

impl Registry {
    fn holds(&self) -> MutexGuard<'_, Set<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &Name, key: OwnerKey, kind: Kind) -> Option<Arc<HoldCell>> {
        let wanted: &dyn Keyed = &(&**name, key, kind.side());
        self.holds().get(wanted).map(|entry| entry.0.clone())
    }

    fn open(&self, cell: Arc<HoldCell>) {
        self.holds().replace(Entry(cell));
    }

    /// Removes a hold, unless a newer hold of the same name and key has replaced it. One that ended
    /// because the client closed stays, as there is no newer one: its key can still ask why it is
    /// not held.
    fn end(&self, cell: &Arc<HoldCell>) {
        if cell.told_lost() == Some(LostReason::Closed) {
            return;
        }
        let mut holds = self.holds();
        let entry = Entry(cell.clone());
        if holds
            .get(&entry)
            .is_some_and(|held| Arc::ptr_eq(&held.0, cell))
        {
            holds.remove(&entry);
        }
    }
}

/// A hold, hashed by its name, its key and its side of the lock. It has eight bytes, because a table may have a million
/// entries.
struct Entry(Arc<HoldCell>);

/// The name, the key and the side by which an entry is found. A key may read what it writes.
trait Keyed {
    fn id(&self) -> (&str, OwnerKey, Side);
}

impl Keyed for Entry {
    fn id(&self) -> (&str, OwnerKey, Side) {
        (&self.0.name, self.0.key, self.0.kind.side())
    }
}

impl Keyed for (&str, OwnerKey, Side) {
    fn id(&self) -> (&str, OwnerKey, Side) {
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

/// Whether the calling thread is an I/O thread. It must not wait for an answer, because it gives
/// the answers.
pub(crate) fn is_engine_thread() -> bool {
    ENGINE.try_with(Cell::get).unwrap_or(false)
}

/// A handle of the I/O thread. When it is dropped, the thread finishes what is in flight, for at
/// most one second, and ends.
pub(crate) struct Handle {
    /// The process in which the thread runs.
    pid: u32,
    session: Arc<Session>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<Ended>,
}

impl Handle {
    /// Starts the thread. It connects at once and keeps trying until it is closed.
    ///
    /// # Errors
    /// `unavailable` when the system gives no thread, timer or event queue.
    pub(crate) fn start(config: DriverConfig, shared: Arc<Shared>) -> Result<Handle> {
        let direct = Arc::new(InlineSlot::new(config.direct && HAS_INLINE));
        let session = Arc::new(Session {
            machine: SharedEngine::new(config.engine.clone(), shared, direct),
            pid: process::id(),
        });
        let ended = Arc::new(Ended::default());
        let (end, own) = (EndGuard(ended.clone()), session.clone());
        let (ready, is_ready) = mpsc::channel();
        let life = move || {
            let _end = end;
            ENGINE.with(|own| own.set(true));
            live(&config, own, |started| drop(ready.send(started)));
        };
        let thread = without_signals(|| Builder::new().name("redlatch".to_owned()).spawn(life))
            .map_err(|error| not_started(&error))?
            .map_err(|error| not_started(&error))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Handle {
                pid: process::id(),
                session,
                thread: Mutex::new(Some(thread)),
                ended,
            }),
            Ok(Err(error)) => Err(not_started(&error)),
            Err(_) => Err(not_started(&"it panicked")),
        }
    }

    /// Submits a request. Returns the call that follows from it if the caller has to make that call
    /// itself.
    ///
    /// # Errors
    /// If the thread has ended. The sink is then dropped uncalled.
    pub(crate) fn request(
        &self,
        id: RequestId,
        request: Request,
        sink: Arc<dyn Sink>,
        way: Way,
    ) -> std::result::Result<Option<InlineCall>, Closed> {
        let asked = Message::Request(PendingRequest {
            id,
            request,
            completion: Completer(Some(sink)),
        });
        self.session.submit(asked, way)
    }

    /// Tells the engine something that needs no answer. Does nothing if the thread has ended.
    pub(crate) fn tell(&self, input: Input) {
        drop(self.session.submit(Message::Tell(input), Way::IoThread));
    }

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.wait(Duration::ZERO)
    }

    /// Waits for the end of the thread, at most for `limit`. On an I/O thread it returns at once.
    pub(crate) fn join(&self, limit: Duration) {
        if is_engine_thread() || !self.ended.wait(limit) {
            return;
        }
        // Only the destructors of the thread-local data are left. Wait for them as well, because a
        // library that contains our code may be unloaded next.
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.pid == process::id() {
            drop(self.session.machine.inbox.push(Message::Orphaned));
            self.ended.finishing.begin();
        } else {
            // This is a forked child, which shares the event descriptor with its parent: a message
            // would wake the parent's thread. The thread itself does not exist here.
            std::mem::forget(
                self.thread
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
        }
    }
}

fn not_started(why: &dyn std::fmt::Display) -> Error {
    Error::exhausted("cannot start the engine's thread", why)
}

/// Whether the thread has ended.
#[derive(Default)]
struct Ended {
    finishing: Finishing,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for the end of the thread, at most for `limit`. True if it has ended.
    fn wait(&self, limit: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(ended, limit, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Reports the end of the thread when it is dropped, also after a panic.
struct EndGuard(Arc<Ended>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
        self.0.finishing.end();
    }
}

/// A message to the engine. The sink of a request is called even if nobody reads the message.
enum Message {
    Request(PendingRequest),
    Tell(Input),
    /// The caller no longer waits for this call: the I/O thread finishes it.
    Finish(Box<InlineCall>),
    /// The [`Handle`] was dropped.
    Orphaned,
}

/// A request, and the sink for its answer.
struct PendingRequest {
    id: RequestId,
    request: Request,
    completion: Completer,
}

/// A sink that gets an answer even when it is dropped.
struct Completer(Option<Arc<dyn Sink>>);

impl Completer {
    fn complete(mut self, result: Result<Done>) {
        self.call(result);
    }

    /// Calls the sink, and catches a panic in it.
    fn call(&mut self, result: Result<Done>) {
        if let Some(sink) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| sink.answer(result)));
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        // Usually the sink has been called already. Then no error is made.
        if self.0.is_some() {
            let text = "the engine's thread ended before it could answer";
            self.call(Err(Error::new(ErrorKind::Internal, text)));
        }
    }
}
