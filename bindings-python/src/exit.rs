//! The end of the interpreter: no thread may come back from a wait after it.
//!
//! Before Python 3.14 a thread that asks for the GIL of a dead interpreter is ended by force, which
//! Rust does not survive. So at exit new waits are refused, clients are closed (which ends the waits
//! under way), and the interpreter goes on when the last waiting thread is back in Python. There it
//! gets SystemExit, which ends it as silently as Python ends daemon threads.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use redlatch::{Error, ErrorKind};

use crate::values::raise;

/// The thread that runs the exit, once it has begun.
static EXITING: OnceLock<ThreadId> = OnceLock::new();
static WAITING: Mutex<Threads> = Mutex::new(Threads { pid: 0, waiting: 0 });
static IDLE: Condvar = Condvar::new();

/// How many threads of this process wait; a child starts anew.
struct Threads {
    pid: u32,
    waiting: usize,
}

fn threads() -> MutexGuard<'static, Threads> {
    // Never held without the GIL but in `wait_idle`, so a child does not inherit it locked.
    let mut threads = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    if threads.pid != std::process::id() {
        *threads = Threads { pid: std::process::id(), waiting: 0 };
    }
    threads
}

/// A thread that waits without the GIL.
pub(crate) struct Waiting(());

impl Waiting {
    /// Refuses a wait, with the GIL or without, once the exit has begun.
    pub(crate) fn refuse_exit(py: Python<'_>) -> PyResult<()> {
        if EXITING.get().is_none() {
            return Ok(());
        }
        let text = "the interpreter is exiting; release and close before";
        Err(Waiting::failed(py, &Error::new(ErrorKind::Closed, text)))
    }

    pub(crate) fn begin(py: Python<'_>) -> PyResult<Self> {
        Waiting::refuse_exit(py)?;
        threads().waiting += 1;
        Ok(Waiting(()))
    }

    /// The exception for a wait that failed.
    pub(crate) fn failed(py: Python<'_>, error: &Error) -> PyErr {
        let exits = EXITING.get().is_some_and(|main| *main != thread::current().id());
        if exits && error.kind() == ErrorKind::Closed { PySystemExit::new_err(()) } else { raise(py, error) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut threads = threads();
        threads.waiting = threads.waiting.saturating_sub(1);
        // A word to nobody is a system call as well. Who waits for it has begun the exit before.
        if threads.waiting == 0 && EXITING.get().is_some() {
            IDLE.notify_all();
        }
    }
}

/// Refuses all waits from now on.
#[pyfunction]
pub(crate) fn begin_exit() {
    EXITING.get_or_init(|| thread::current().id());
}

/// Blocks until no thread waits any more. Clients have to be closed before.
#[pyfunction]
pub(crate) fn wait_idle(py: Python<'_>) {
    py.detach(|| {
        let mut threads = threads();
        while threads.waiting > 0 {
            threads = IDLE.wait(threads).unwrap_or_else(PoisonError::into_inner);
        }
    });
}
