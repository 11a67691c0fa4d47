//! Answers for event loops: a queue that the engine's thread fills and a language's own loop drains.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::guard::Guard;
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
/// Entries that are never drained release what they grant when the queue is dropped.
pub struct Queue {
    state: Mutex<State>,
    signal: Signal,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    closed: bool,
}

enum Signal {
    Fd(EventFd),
    Notify(Box<dyn Fn() + Send + Sync>),
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
        Ok(Arc::new(Queue { state: Mutex::default(), signal: Signal::Fd(fd) }))
    }

    /// A queue that calls `notify` on the engine's thread when the first entry comes. It must not block.
    pub fn with_notify(notify: impl Fn() + Send + Sync + 'static) -> Arc<Queue> {
        Arc::new(Queue { state: Mutex::default(), signal: Signal::Notify(Box::new(notify)) })
    }

    /// The descriptor to poll, for a queue that has one. It belongs to the queue: never read or close it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.signal {
            Signal::Fd(fd) => Some(fd.as_fd()),
            Signal::Notify(_) => None,
        }
    }

    /// Takes all entries. Never blocks.
    pub fn drain(&self) -> Vec<Entry> {
        let mut state = self.state();
        if let Signal::Fd(fd) = &self.signal {
            // Fails only when it is clear already.
            let _ = fd.read();
        }
        std::mem::take(&mut state.entries)
    }

    /// Drops what is there and what will come; grants among it are released.
    pub fn close(&self) {
        let entries = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.entries)
        };
        drop(entries);
    }

    pub(crate) fn push(&self, entry: Entry) {
        let mut state = self.state();
        if state.closed {
            drop(state);
            return drop(entry);
        }
        state.entries.push(entry);
        if state.entries.len() == 1 {
            match &self.signal {
                // Fails only when the counter is full, and then it is readable.
                Signal::Fd(fd) => drop(fd.write(1)),
                Signal::Notify(notify) => notify(),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} waiting)", self.state().entries.len())
    }
}
