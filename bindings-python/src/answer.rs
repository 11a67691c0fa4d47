//! What a coroutine of asyncio awaits: a future of our own, which costs an event loop no turn.
//!
//! It is what asyncio's tasks need of a future and no more; programs never see it. An answer that comes while no task of
//! the loop runs is given to its task at once, by the reader of the queue, instead of by the loop a turn later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::asyncio::{CancelledError, InvalidStateError};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use redlatch::{Outcome, Pending};

use crate::guard::Hold;
use crate::operation::Queue;
use crate::values::{IntoValue, raise};

/// The answer to a request that was sent, for the one task that awaits it.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Answer {
    tag: u64,
    queue: Py<Queue>,
    pending: Pending,
    level: Level,
    /// How a task knows that it is awaited, and not yielded by mistake.
    awaited: AtomicBool,
    state: Mutex<State>,
}

struct State {
    place: Place,
    callbacks: Callbacks,
}

/// Whom to call, and in which context.
type Callbacks = Vec<(Py<PyAny>, Option<Py<PyAny>>)>;

enum Place {
    Waiting,
    Answered(Outcome),
    /// With the message, if there is one.
    Cancelled(Option<Py<PyAny>>),
    Taken,
}

/// What becomes of a level that is granted.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// Its guard answers for it.
    Guarded,
    /// It is left to its key; the task gets the hold, or nothing, which costs an object less.
    Left { hold: bool },
}

/// What Python gets of an outcome.
pub(crate) fn value_of(py: Python<'_>, outcome: Outcome, level: Level) -> PyResult<Py<PyAny>> {
    match (outcome, level) {
        (Outcome::Failed(error), _) => Err(raise(py, &error)),
        (Outcome::Granted(guard), Level::Left { hold }) => {
            let left = guard.detach();
            if hold { Ok(Py::new(py, Hold(left))?.into_any()) } else { Ok(py.None()) }
        }
        (outcome, _) => outcome.into_value(py),
    }
}

impl Answer {
    pub(crate) fn new(tag: u64, queue: Py<Queue>, pending: Pending, level: Level) -> Self {
        let state = State { place: Place::Waiting, callbacks: Vec::new() };
        Answer { tag, queue, pending, level, awaited: AtomicBool::new(false), state: Mutex::new(state) }
    }

    pub(crate) fn cancel_request(&self) {
        self.pending.cancel();
    }

    /// Never held while anything of Python's is called or dropped.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait, if it has not ended, and returns whom to call.
    fn end(&self, end: Place) -> Option<Callbacks> {
        let mut state = self.state();
        if !matches!(state.place, Place::Waiting) {
            // Dropped when the lock is not held any more: a lock that was won is released.
            drop(state);
            drop(end);
            return None;
        }
        state.place = end;
        Some(std::mem::take(&mut state.callbacks))
    }
}

/// The answer is there. `here`: no task of the loop runs, and this one is called at once.
pub(crate) fn complete(answer: &Bound<'_, Answer>, outcome: Outcome, here: bool) -> PyResult<()> {
    let mut result = Ok(());
    for (callback, context) in answer.get().end(Place::Answered(outcome)).into_iter().flatten() {
        let called = match context {
            Some(context) if here => {
                context.call_method1(answer.py(), intern!(answer.py(), "run"), (callback, answer)).map(drop)
            }
            context => call_later(answer, callback, context),
        };
        result = result.and(called);
    }
    result
}

/// Has the loop call it in its next turn.
fn call_later(answer: &Bound<'_, Answer>, callback: Py<PyAny>, context: Option<Py<PyAny>>) -> PyResult<()> {
    let py = answer.py();
    let with = PyDict::new(py);
    with.set_item(intern!(py, "context"), context)?;
    let each_loop = answer.get().queue.get().event_loop(py)?;
    each_loop.call_method(intern!(py, "call_soon"), (callback, answer), Some(&with)).map(drop)
}

#[pymethods]
impl Answer {
    fn __await__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(this: &Bound<'_, Self>) -> PyResult<Option<Py<Self>>> {
        let (py, own) = (this.py(), this.get());
        let mut state = own.state();
        let place = std::mem::replace(&mut state.place, Place::Taken);
        if matches!(place, Place::Waiting) {
            state.place = place;
            own.awaited.store(true, Ordering::Relaxed);
            return Ok(Some(this.clone().unbind()));
        }
        drop(state);
        Err(match place {
            Place::Answered(outcome) => match value_of(py, outcome, own.level) {
                // The end without a value needs no exception.
                Ok(value) if value.is_none(py) => return Ok(None),
                Ok(value) => PyStopIteration::new_err((value,)),
                Err(error) => error,
            },
            Place::Cancelled(message) => cancelled(message),
            Place::Waiting | Place::Taken => PyRuntimeError::new_err("it was awaited before"),
        })
    }

    /// Nobody waits for it any more: it is cancelled, or what it has won is released.
    fn forget(&self) {
        if self.queue.get().forget(self.tag) {
            self.pending.cancel();
        }
        let place = std::mem::replace(&mut self.state().place, Place::Taken);
        drop(place);
    }

    // ---- what tasks need ----

    #[getter(_asyncio_future_blocking)]
    fn awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    fn get_loop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.queue.get().event_loop(py)
    }

    fn done(&self) -> bool {
        !matches!(self.state().place, Place::Waiting)
    }

    fn cancelled(&self) -> bool {
        matches!(self.state().place, Place::Cancelled(_))
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(this: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let Some(callbacks) = this.get().end(Place::Cancelled(msg)) else { return Ok(false) };
        for (callback, context) in callbacks {
            call_later(this, callback, context)?;
        }
        Ok(true)
    }

    /// Asked by the task that is woken. The value itself it has when it goes on.
    fn result(&self, py: Python<'_>) -> PyResult<()> {
        match &self.state().place {
            Place::Waiting => Err(InvalidStateError::new_err("there is no answer yet")),
            Place::Cancelled(message) => {
                Err(cancelled(message.as_ref().map(|message| message.clone_ref(py))))
            }
            Place::Answered(_) | Place::Taken => Ok(()),
        }
    }

    #[pyo3(signature = (callback, *, context=None))]
    fn add_done_callback(
        this: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut state = this.get().state();
        if matches!(state.place, Place::Waiting) {
            state.callbacks.push((callback, context));
            return Ok(());
        }
        drop(state);
        call_later(this, callback, context)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queue)?;
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        if let Place::Cancelled(message) = &state.place {
            visit.call(message)?;
        }
        for (callback, context) in &state.callbacks {
            visit.call(callback)?;
            visit.call(context)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let callbacks = std::mem::take(&mut self.state().callbacks);
        drop(callbacks);
    }
}

fn cancelled(message: Option<Py<PyAny>>) -> PyErr {
    message.map_or_else(|| CancelledError::new_err(()), |message| CancelledError::new_err((message,)))
}
