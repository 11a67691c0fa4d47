//! The end of the interpreter: no thread may come back from a wait after it.
//!
//! Before Python 3.14 a thread that asks for the GIL of a dead interpreter is ended by force, which
//! Rust does not survive. So at exit new waits are refused, clients are closed (which ends the waits
//! under way), and the interpreter goes on when the last waiting thread is back in Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use redlatch::{Error, ErrorKind};

use crate::values::raise;

static EXITING: AtomicBool = AtomicBool::new(false);
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
    pub(crate) fn begin(py: Python<'_>) -> PyResult<Self> {
        if EXITING.load(Ordering::Acquire) {
            let text = "the interpreter is exiting; release and close before";
            return Err(raise(py, &Error::new(ErrorKind::Closed, text)));
        }
        threads().waiting += 1;
        Ok(Waiting(()))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut threads = threads();
        threads.waiting = threads.waiting.saturating_sub(1);
        if threads.waiting == 0 {
            IDLE.notify_all();
        }
    }
}

/// Refuses all waits from now on.
#[pyfunction]
pub(crate) fn begin_exit() {
    EXITING.store(true, Ordering::Release);
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
