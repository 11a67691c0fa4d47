//! Answers for event loops: a queue that the engine's thread fills and a language's own loop drains.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::guard::Guard;
use crate::series::Series;
use crate::wire::Holder;

/// What became of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The server was reached.
    Connected,
    /// The lock is held. Dropping the guard releases it.
    Granted(Guard),
    /// The level was released.
    Released,
    /// The lock lives longer.
    Extended,
    /// Whether there was a lock to delete.
    Forced(bool),
    /// Who holds the lock.
    Inspected(Option<Holder>),
    /// The client is closed; these locks could not be released in time.
    Closed(Vec<String>),
    /// The operation failed.
    Failed(Error),
    /// A hold that was watched is lost.
    Lost(LostReason),
}

/// One answer, with the tag that was given to the operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The tag of [`Operation::deliver_to`](crate::Operation::deliver_to) or
    /// [`Guard::watch_lost`].
    pub tag: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// Collects answers until an event loop drains them.
///
/// Entries that are never drained release what they grant when the queue is closed or dropped. A
/// queue serves the process that made it; in a forked child it is empty for ever.
pub struct Queue {
    state: Mutex<State>,
    signal: Signal,
    /// The answers in a row that did not need the queue.
    series: Series,
    /// The process that made it. Compared before the lock is taken: a child may have inherited it
    /// locked, and shares the descriptor with its parent.
    pid: u32,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    closed: bool,
}

enum Signal {
    Fd(EventFd),
    Notify(Box<dyn Fn() + Send + Sync>),
}

/// Whether somebody has to be notified of the first entry, once no lock is held.
#[must_use]
pub(crate) struct First<'a>(Option<&'a (dyn Fn() + Send + Sync)>);

impl First<'_> {
    pub(crate) fn notify(self) {
        if let Some(notify) = self.0 {
            notify();
        }
    }
}

impl Queue {
    /// A queue with a descriptor that is readable while entries wait.
    ///
    /// # Errors
    /// `internal` when the system has no descriptor left.
    pub fn with_fd() -> Result<Arc<Queue>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot make an event descriptor: {error}"))
        })?;
        Ok(Self::new(Signal::Fd(fd)))
    }

    /// A queue that calls `notify` when it was empty and is not any more: on the engine's thread, on the calling thread of
    /// an operation that cannot be sent, or on that of somebody who gives a lock back that is waited for. It must not
    /// block, nor take a lock that is held while a guard is released or dropped.
    pub fn with_notify(notify: impl Fn() + Send + Sync + 'static) -> Arc<Queue> {
        Self::new(Signal::Notify(Box::new(notify)))
    }

    fn new(signal: Signal) -> Arc<Queue> {
        Arc::new(Queue { state: Mutex::default(), signal, series: Series::new(), pid: std::process::id() })
    }

    /// The descriptor to poll, for a queue that has one. It belongs to the queue: never read or close it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.signal {
            Signal::Fd(fd) => Some(fd.as_fd()),
            Signal::Notify(_) => None,
        }
    }

    /// Takes all entries, oldest first. Never blocks.
    pub fn drain(&self) -> Vec<Entry> {
        let Some(mut state) = self.state() else { return Vec::new() };
        self.clear();
        std::mem::take(&mut state.entries).into()
    }

    /// Takes the oldest entry; the descriptor stays readable while there are more. Never blocks.
    pub fn pop(&self) -> Option<Entry> {
        let mut state = self.state()?;
        let entry = state.entries.pop_front();
        if state.entries.is_empty() {
            self.clear();
        }
        entry
    }

    /// Drops what is there and what will come; grants among it are released.
    pub fn close(&self) {
        let Some(mut state) = self.state() else { return };
        state.closed = true;
        self.clear();
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        drop(entries);
    }

    /// Wakes whoever drains although there is no entry: for other news, such as events. Never blocks.
    pub fn wake(&self) {
        if self.is_ours() {
            self.signal().notify();
        }
    }

    /// Which answers come at once; an event loop has one thread.
    pub(crate) fn series(&self) -> &Series {
        &self.series
    }

    pub(crate) fn push(&self, entry: Entry) {
        self.enter(entry).notify();
    }

    /// Puts an entry in; the caller notifies when it holds no lock any more.
    pub(crate) fn enter(&self, entry: Entry) -> First<'_> {
        let Some(mut state) = self.state().filter(|state| !state.closed) else { return First(None) };
        state.entries.push_back(entry);
        if state.entries.len() > 1 {
            return First(None);
        }
        self.signal()
    }

    fn signal(&self) -> First<'_> {
        match &self.signal {
            Signal::Fd(fd) => {
                // Fails only when the counter is full, and then it is readable.
                let _ = fd.write(1);
                First(None)
            }
            Signal::Notify(notify) => First(Some(&**notify)),
        }
    }

    /// Makes the descriptor unreadable; under the lock, so that it always tells what the queue has.
    fn clear(&self) {
        if let Signal::Fd(fd) = &self.signal {
            // Fails only when it is clear already.
            let _ = fd.read();
        }
    }

    /// The entries; `None` in another process.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.is_ours().then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} waiting)", self.state().map_or(0, |state| state.entries.len()))
    }
}
