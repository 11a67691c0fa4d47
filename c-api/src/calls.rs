//! Calls into the program: one thread per client that makes them, one at a time.
//!
//! The engine's thread must never wait, so it only leaves a job here.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use redlatch::embed::{Uncancelled, spawn};
use redlatch::{Error, Result};

use crate::locked;

thread_local! {
    /// The slot whose function this thread is in.
    static CALLING: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// The value that C gave and gets back.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: it is only handed back; the header says that this happens on another thread.
unsafe impl Send for User {}

/// A function of the program, if one is registered.
pub(crate) struct Slot<F> {
    state: Mutex<State<F>>,
    idle: Condvar,
}

struct State<F> {
    function: Option<(F, User)>,
    running: bool,
}

impl<F: Copy> Slot<F> {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            function: None,
            running: false,
        };
        Arc::new(Slot {
            state: Mutex::new(state),
            idle: Condvar::new(),
        })
    }

    /// Registers another function, or none. Afterwards the former one is not running, unless it is
    /// the caller itself.
    pub(crate) fn set(&self, function: Option<F>, user: User) {
        let mut state = locked(&self.state);
        state.function = function.map(|function| (function, user));
        while state.running && CALLING.get() != ptr::from_ref(self).cast() {
            state = self
                .idle
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        locked(&self.state).function.is_some()
    }

    /// Calls the function, if there is one; without a lock, so that it may call us.
    pub(crate) fn call(&self, call: impl FnOnce(F, *mut c_void)) {
        let mut state = locked(&self.state);
        let Some((function, User(user))) = state.function else {
            return;
        };
        state.running = true;
        drop(state);
        CALLING.set(ptr::from_ref(self).cast());
        call(function, user);
        CALLING.set(ptr::null());
        locked(&self.state).running = false;
        self.idle.notify_all();
    }
}

/// Something to be done on the thread; `None` ends it.
type Job = Option<Box<dyn FnOnce() + Send>>;

/// The way to the thread, for the engine and for everybody.
#[derive(Clone)]
pub(crate) struct Caller(Sender<Job>);

impl Caller {
    /// Has a job done. Never blocks.
    pub(crate) fn later(&self, job: impl FnOnce() + Send + 'static) {
        // Nobody is left to be called if the thread has ended.
        let _ = self.0.send(Some(Box::new(job)));
    }
}

/// The thread that calls. Dropping ends it after the jobs that wait.
pub(crate) struct Calls {
    caller: Caller,
    thread: Option<JoinHandle<()>>,
}

impl Calls {
    pub(crate) fn start() -> Result<Calls> {
        let (jobs, waiting) = channel();
        let thread = spawn("redlatch-calls", move || work(&waiting))
            .map_err(|error| Error::exhausted("cannot start the thread that calls", &error))?;
        Ok(Calls {
            caller: Caller(jobs),
            thread: Some(thread),
        })
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller.clone()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = self.caller.0.send(None);
        // A function of the program may be what frees the client: its thread cannot wait for
        // itself.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(other) {
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<Job>) {
    // A function of the program knows this thread, and could cancel it.
    let _uncancelled = Uncancelled::new();
    while let Ok(Some(job)) = jobs.recv() {
        // A fault in one job must not end the others.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}
