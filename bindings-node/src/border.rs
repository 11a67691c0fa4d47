//! The state of one JavaScript environment: its pending calls and holds, and the function that
//! wakes it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use napi::Either;
use napi::bindgen_prelude::{Env, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Status, sys};
use redlatch::embed::exit::{self, Part};
use redlatch::embed::{Caller, CompletionQueue, GuardExt, OperationExt, Outcome, Submitted};
use redlatch::{Client, Error, ErrorKind, Guard, Operation, Result};

use crate::values::{Asked, Batch};

/// The id of a call, of the hold it may become, or of a client. It is counted up, so that it fits a
/// JavaScript number.
pub(crate) type Id = i64;

/// Values by id.
type Map<T> = HashMap<Id, T, RandomState>;

/// A weak function: by itself it keeps no event loop alive.
type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// The part that other threads see. It wakes the environment.
struct Bell {
    wake: Wake,
    /// The environment is ending and must not be woken.
    ended: AtomicBool,
    /// The ids of clients with events.
    eventful: Mutex<Vec<Id>>,
}

impl Bell {
    fn ring(&self) {
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        // The call fails only when the environment is ending, and then no code waits for it.
        let _ = self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
    }
}

/// Belongs to the environment's thread and never leaves it.
pub(crate) struct State {
    env: Env,
    /// The clients of this environment.
    part: Part,
    bell: Arc<Bell>,
    /// The ids of calls are its tickets.
    queue: Arc<CompletionQueue<Id>>,
    /// Whether the event loop is kept alive.
    alive: Cell<bool>,
    /// The holds that JavaScript has, by the id of the call that acquired them.
    guards: RefCell<Map<Guard>>,
}

impl State {
    pub(crate) fn new(env: Env, drain: Function<(), ()>) -> napi::Result<Rc<State>> {
        let wake = drain
            .build_threadsafe_function::<()>()
            .callee_handled::<false>()
            .weak::<true>()
            .build()?;
        let bell = Arc::new(Bell {
            wake,
            ended: AtomicBool::new(false),
            eventful: Mutex::default(),
        });
        let ringer = bell.clone();
        let state = Rc::new(State {
            env,
            part: Part::new(),
            bell,
            queue: CompletionQueue::with_notify(move || ringer.ring()),
            alive: Cell::new(false),
            guards: RefCell::default(),
        });
        env.add_env_cleanup_hook(Rc::downgrade(&state), |state| {
            if let Some(state) = state.upgrade() {
                state.end();
            }
        })?;
        Ok(state)
    }

    /// Makes the end of this environment or of the process release the client's holds.
    pub(crate) fn add(&self, client: &Client) {
        exit::watch_signals();
        self.part.add(client);
    }

    /// An id that this environment has not used before.
    pub(crate) fn next_id(&self) -> Id {
        self.queue.next_ticket() as Id
    }

    /// The callback for a client's events.
    pub(crate) fn bell(&self, client: Id) -> impl Fn() + Send + Sync + 'static {
        let bell = self.bell.clone();
        move || {
            bell.eventful
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(client);
            bell.ring();
        }
    }

    /// Sends an operation. Keeps the event loop alive until it is answered.
    pub(crate) fn ask<T>(&self, operation: Operation<T>) -> Asked {
        let as_id = |ticket| ticket as Id;
        match operation.deliver_soon(&self.queue, Caller::EVENT_LOOP, as_id) {
            Submitted::Queued(ticket) => {
                self.keep_alive(true);
                Either::A(as_id(ticket))
            }
            Submitted::Ready(outcome) => self.at_once(self.next_id(), outcome),
        }
    }

    /// An answer without waiting. If it carries no value it is passed as a number, because an
    /// object costs more than the rest of a call.
    fn at_once(&self, id: Id, outcome: Outcome) -> Asked {
        match outcome {
            Outcome::Granted(guard)
                if guard.fencing_token().is_none() && guard.parts().is_empty() =>
            {
                self.keep(id, guard);
                Either::A(-id)
            }
            Outcome::Connected | Outcome::Released | Outcome::Extended | Outcome::Open => {
                Either::A(-id)
            }
            Outcome::Taken(permit) => {
                permit.forget();
                Either::A(-id)
            }
            other => {
                let mut batch = Batch::default();
                self.answer(&mut batch, id, other);
                Either::B(batch)
            }
        }
    }

    /// Adds an answer to the batch for JavaScript, and keeps the hold that it grants.
    fn answer(&self, batch: &mut Batch, id: Id, outcome: Outcome) {
        match outcome {
            Outcome::Granted(guard) => {
                batch.granted(id, guard.fencing_token(), guard.parts());
                self.keep(id, guard);
            }
            // Its object in JavaScript gives the permits back by their number, as any caller may.
            Outcome::Taken(permit) => {
                permit.forget();
                batch.granted(id, None, Vec::new());
            }
            other => batch.answered(id, other),
        }
    }

    fn keep(&self, id: Id, guard: Guard) {
        guard.watch_lost(&self.queue, id);
        self.guards.borrow_mut().insert(id, guard);
    }

    /// Stops waiting for a call. A lock that it may have won is released.
    pub(crate) fn cancel(&self, id: Id) {
        self.queue.forget(id as u64);
        self.keep_alive(!self.queue.is_idle());
    }

    /// Takes all answers that have arrived. A single answer without a value is passed as a number,
    /// as in `at_once`.
    pub(crate) fn drain(&self) -> Asked {
        let mut batch = Batch::default();
        for entry in self.queue.drain() {
            match entry.outcome {
                Outcome::Lost(reason) => batch.lost(entry.tag, reason),
                other => self.answer(&mut batch, entry.tag, other),
            }
        }
        self.keep_alive(!self.queue.is_idle());
        let mut eventful = self
            .bell
            .eventful
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        batch.eventful = (!eventful.is_empty()).then(|| std::mem::take(&mut *eventful));
        drop(eventful);
        batch.single().map_or(Either::B(batch), Either::A)
    }

    /// Reads something of a hold. Returns `otherwise` if it was released, or if reading panics.
    pub(crate) fn read<T>(&self, hold: Id, otherwise: T, read: impl FnOnce(&Guard) -> T) -> T {
        let read = || {
            catch_unwind(AssertUnwindSafe(|| {
                self.guards.borrow().get(&hold).map(read)
            }))
        };
        exit::uninterrupted(read)
            .ok()
            .flatten()
            .unwrap_or(otherwise)
    }

    /// Does something with a hold that must not have been released yet.
    pub(crate) fn held<T>(&self, hold: Id, act: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.guards
            .borrow()
            .get(&hold)
            .map(act)
            .ok_or_else(released)
    }

    /// Takes the hold away from JavaScript.
    pub(crate) fn take(&self, hold: Id) -> Result<Guard> {
        self.guards.borrow_mut().remove(&hold).ok_or_else(released)
    }

    #[allow(unsafe_code)]
    fn keep_alive(&self, yes: bool) {
        if self.alive.replace(yes) == yes {
            return;
        }
        self.bell.wake.handle.with_read_aborted(|ended| {
            if ended {
                return;
            }
            // SAFETY: this is the environment's thread, because the state never leaves it. The
            // function is not finalized: `ended` says so, and the lock under which it is read keeps
            // it true.
            unsafe {
                match yes {
                    true => sys::napi_ref_threadsafe_function(self.env.raw(), self.bell.wake.raw()),
                    false => {
                        sys::napi_unref_threadsafe_function(self.env.raw(), self.bell.wake.raw())
                    }
                };
            }
        });
    }

    /// The environment ends, for example a worker that is terminated. It runs no JavaScript any
    /// more, and its calls are cancelled. Its holds are released within the option `exit_limit`;
    /// the leases end the rest.
    pub(crate) fn end(&self) {
        self.bell.ended.store(true, Ordering::Release);
        self.queue.close();
        self.part.end();
        for (_, guard) in self.guards.take() {
            guard.abandon();
        }
    }
}

fn released() -> Error {
    Error::new(
        ErrorKind::NotOwner,
        "this hold was released; acquire it again",
    )
}
