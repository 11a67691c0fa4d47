//! The exit of the interpreter: no thread may return from a wait after it.
//!
//! Before Python 3.14, a thread that asks for the GIL of a finalized interpreter is killed, which
//! Rust does not survive. So the exit refuses new waits and closes the clients, which ends the
//! waits in flight. The interpreter goes on when the last waiting thread is back in Python. That
//! thread gets SystemExit, which ends it as silently as Python ends daemon threads.

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

/// The number of waiting threads of this process. A forked child starts at zero.
struct Threads {
    pid: u32,
    waiting: usize,
}

fn threads() -> MutexGuard<'static, Threads> {
    // Only `wait_idle` holds this lock without the GIL, so a forked child does not inherit it
    // locked. The module declares that it needs the GIL, so this is true on free-threaded Python as
    // well.
    let mut threads = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    if threads.pid != std::process::id() {
        *threads = Threads {
            pid: std::process::id(),
            waiting: 0,
        };
    }
    threads
}

/// A thread that waits without the GIL.
pub(crate) struct Waiting(());

impl Waiting {
    /// Refuses a wait, on or off the GIL, once the exit has begun.
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

    /// For the time in which Rust calls Python code, where a thread may have to wait for the GIL as
    /// well. The thread that runs the exit is never ended, so it is not counted.
    pub(crate) fn in_python(py: Python<'_>) -> PyResult<Option<Self>> {
        match EXITING.get() {
            Some(main) if *main == thread::current().id() => Ok(None),
            _ => Waiting::begin(py).map(Some),
        }
    }

    /// The exception for a wait that failed.
    pub(crate) fn failed(py: Python<'_>, error: &Error) -> PyErr {
        let exits = EXITING
            .get()
            .is_some_and(|main| *main != thread::current().id());
        if exits && error.kind() == ErrorKind::Closed {
            PySystemExit::new_err(())
        } else {
            raise(py, error)
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut threads = threads();
        threads.waiting = threads.waiting.saturating_sub(1);
        // Notifying is a system call even without a waiter. A waiter in `wait_idle` has begun the
        // exit before.
        if threads.waiting == 0 && EXITING.get().is_some() {
            IDLE.notify_all();
        }
    }
}

/// Whether the interpreter exits.
pub(crate) fn has_begun() -> bool {
    EXITING.get().is_some()
}

/// Refuses all waits from now on.
#[pyfunction]
pub(crate) fn begin_exit(py: Python<'_>) {
    EXITING.get_or_init(|| thread::current().id());
    // Looks up the exception classes now: they cannot be imported any more when the last finalizers
    // run.
    drop(Waiting::refuse_exit(py));
}

/// Blocks until no thread waits any more. The clients have to be closed first.
#[pyfunction]
pub(crate) fn wait_idle(py: Python<'_>) {
    py.detach(|| {
        let mut threads = threads();
        while threads.waiting > 0 {
            threads = IDLE.wait(threads).unwrap_or_else(PoisonError::into_inner);
        }
    });
}
