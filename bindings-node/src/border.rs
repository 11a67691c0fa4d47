//! What one JavaScript environment waits for and holds, and how it is woken.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use napi::Either;
use napi::bindgen_prelude::{Env, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Status, sys};
use redlatch::{Delivered, Error, ErrorKind, Guard, Operation, Outcome, Pending, Queue, Result};

use crate::values::{Asked, Batch};

/// Names a call, the hold it may become, or a client. Counted up, so that JavaScript can have it as a number.
pub(crate) type Id = i64;

/// By a number that is counted up.
type Map<T> = HashMap<Id, T, RandomState>;

/// How long the event loop waits for an answer itself: about as long as other libraries compute for a call.
const PATIENCE: Duration = Duration::from_micros(100);

/// Weak: by itself it keeps no event loop alive.
type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// What other threads see: how to wake the environment.
struct Bell {
    wake: Wake,
    /// Clients with events.
    eventful: Mutex<Vec<Id>>,
}

impl Bell {
    fn ring(&self) {
        // It fails only when the environment is ending, and then there is nobody to tell.
        let _ = self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
    }
}

/// Belongs to the environment's thread.
pub(crate) struct State {
    env: Env,
    bell: Arc<Bell>,
    queue: Arc<Queue>,
    last_id: Cell<Id>,
    /// The calls that JavaScript waits for. An answer that is not among them is dropped, and with it what it grants.
    pending: RefCell<Map<Pending>>,
    /// The holds that JavaScript has; the id is that of the call that acquired it.
    guards: RefCell<Map<Guard>>,
}

impl State {
    pub(crate) fn new(env: Env, drain: Function<(), ()>) -> napi::Result<Rc<State>> {
        let wake =
            drain.build_threadsafe_function::<()>().callee_handled::<false>().weak::<true>().build()?;
        let bell = Arc::new(Bell { wake, eventful: Mutex::default() });
        let ringer = bell.clone();
        let state = Rc::new(State {
            env,
            bell,
            queue: Queue::with_notify(move || ringer.ring()),
            last_id: Cell::new(0),
            pending: RefCell::default(),
            guards: RefCell::default(),
        });
        env.add_env_cleanup_hook(Rc::downgrade(&state), |state| {
            if let Some(state) = state.upgrade() {
                state.end();
            }
        })?;
        Ok(state)
    }

    /// A number that this environment never had.
    pub(crate) fn next_id(&self) -> Id {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// What an engine calls when the client has events.
    pub(crate) fn bell(&self, client: Id) -> impl Fn() + Send + Sync + 'static {
        let bell = self.bell.clone();
        move || {
            bell.eventful.lock().unwrap_or_else(PoisonError::into_inner).push(client);
            bell.ring();
        }
    }

    /// Sends what is asked. Until it is answered the event loop is kept alive.
    pub(crate) fn ask<T>(&self, operation: Operation<T>) -> Asked {
        let id = self.next_id();
        let pending = match operation.deliver_soon(&self.queue, id as u64, PATIENCE) {
            Delivered::Later(pending) => pending,
            Delivered::Now(outcome) => return self.at_once(id, outcome),
        };
        let mut all = self.pending.borrow_mut();
        all.insert(id, pending);
        if all.len() == 1 {
            self.keep_alive(true);
        }
        Either::A(id)
    }

    /// An answer that is there at once. One with nothing to tell goes without an object: those cost more than
    /// the rest of a call.
    fn at_once(&self, id: Id, outcome: Outcome) -> Asked {
        match outcome {
            Outcome::Granted(guard) if guard.fencing_token().is_none() => {
                self.keep(id, guard);
                Either::A(-id)
            }
            Outcome::Connected | Outcome::Released | Outcome::Extended | Outcome::Inspected(None) => {
                Either::A(-id)
            }
            other => {
                let mut batch = Batch::default();
                self.answer(&mut batch, id, other);
                Either::B(batch)
            }
        }
    }

    /// Tells JavaScript of an answer, and keeps a hold for it.
    fn answer(&self, batch: &mut Batch, id: Id, outcome: Outcome) {
        match outcome {
            Outcome::Granted(guard) => {
                batch.granted(id, guard.fencing_token());
                self.keep(id, guard);
            }
            other => batch.answered(id, other),
        }
    }

    fn keep(&self, id: Id, guard: Guard) {
        guard.watch_lost(&self.queue, id as u64);
        self.guards.borrow_mut().insert(id, guard);
    }

    /// Stops waiting for a call.
    pub(crate) fn cancel(&self, id: Id) {
        if let Some(pending) = self.answered(id) {
            pending.cancel();
        }
    }

    /// Takes a call from those that are waited for.
    fn answered(&self, id: Id) -> Option<Pending> {
        let mut all = self.pending.borrow_mut();
        let pending = all.remove(&id)?;
        if all.is_empty() {
            self.keep_alive(false);
        }
        Some(pending)
    }

    /// Takes all that came in; a single answer with nothing to tell without an object, as when it is there at once.
    pub(crate) fn drain(&self) -> Asked {
        let mut batch = Batch::default();
        for entry in self.queue.drain() {
            let id = entry.tag as Id;
            match entry.outcome {
                Outcome::Lost(reason) => batch.lost(id, reason),
                // Cancelled when it was already answered: a grant is released by being dropped.
                unwanted if self.answered(id).is_none() => drop(unwanted),
                other => self.answer(&mut batch, id, other),
            }
        }
        let mut eventful = self.bell.eventful.lock().unwrap_or_else(PoisonError::into_inner);
        batch.eventful = (!eventful.is_empty()).then(|| std::mem::take(&mut *eventful));
        drop(eventful);
        batch.single().map_or(Either::B(batch), Either::A)
    }

    /// Reads something of a hold; `otherwise` when it was released, or when reading panics.
    pub(crate) fn read<T>(&self, hold: Id, otherwise: T, read: impl FnOnce(&Guard) -> T) -> T {
        let value = catch_unwind(AssertUnwindSafe(|| self.guards.borrow().get(&hold).map(read)));
        value.ok().flatten().unwrap_or(otherwise)
    }

    /// Does something with a hold that must not have been released.
    pub(crate) fn held<T>(&self, hold: Id, act: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.guards.borrow().get(&hold).map(act).ok_or_else(released)
    }

    /// Takes the hold from JavaScript.
    pub(crate) fn take(&self, hold: Id) -> Result<Guard> {
        self.guards.borrow_mut().remove(&hold).ok_or_else(released)
    }

    #[allow(unsafe_code)]
    fn keep_alive(&self, yes: bool) {
        self.bell.wake.handle.with_read_aborted(|ended| {
            if ended {
                return;
            }
            // SAFETY: this is the environment's thread (the state never leaves it), and the function was not
            // finalized: that is what `ended` says, and what the lock it is read under keeps so.
            unsafe {
                match yes {
                    true => sys::napi_ref_threadsafe_function(self.env.raw(), self.bell.wake.raw()),
                    false => sys::napi_unref_threadsafe_function(self.env.raw(), self.bell.wake.raw()),
                };
            }
        });
    }

    /// The environment ends, as a worker does that is terminated: nothing is waited for any more, and what is held
    /// ends with its lease, as if the process had died in the middle of its work.
    fn end(&self) {
        for (_, pending) in self.pending.take() {
            pending.cancel();
        }
        self.queue.close();
        for (_, guard) in self.guards.take() {
            guard.abandon();
        }
    }
}

fn released() -> Error {
    Error::new(ErrorKind::NotOwner, "this hold was released; acquire the lock again")
}
