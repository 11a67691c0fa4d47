//! The awaitable of a coroutine of asyncio: a future of our own, which costs an event loop no turn.
//!
//! It is what asyncio's tasks need of a future and no more; programs never see it. An answer that
//! comes while no task of the loop runs is given to its task at once, by the reader of the queue,
//! instead of by the loop a turn later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::asyncio::{CancelledError, InvalidStateError};
use pyo3::exceptions::{PyBaseException, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use redlatch::embed::{Outcome, Submitted};
use redlatch::{Error, ErrorKind};

use crate::kept::{Kept, intern};
use crate::lock::Lock;
use crate::operation::{Answered, Queue};
use crate::task::{Owner, Unsent, What, awaited_before, awaited_now, warn_unawaited};
use crate::values::{raise, value};

/// The answer to a request, for the one task that awaits it; a coroutine if it is to be sent when
/// it is awaited.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Answer {
    /// How a coroutine is called in what is told about it.
    called: &'static str,
    level: Level,
    sent: OnceLock<Sent>,
    /// How a task knows that it is awaited, and not yielded by mistake.
    awaited: AtomicBool,
    state: Mutex<State>,
}

/// A request that was sent.
pub(crate) struct Sent {
    pub(crate) ticket: u64,
    pub(crate) queue: Py<Queue>,
    /// There is one if the request was sent when it was awaited.
    pub(crate) owner: Option<Owner>,
}

struct State {
    place: Place,
    /// Only one task waits, so there is hardly ever more than one.
    first: Option<Callback>,
    others: Vec<Callback>,
}

/// The callback, and its context.
type Callback = (Py<PyAny>, Option<Py<PyAny>>);

enum Place {
    Unsent(Unsent),
    Waiting,
    Answered(Outcome),
    /// With the message, if there is one.
    Cancelled(Option<Py<PyAny>>),
    Taken,
}

/// The fate of a level or of permits that are granted.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// Their guard answers for them.
    Guarded,
    /// The key keeps the level, or the caller keeps the permits; the task gets true, or false when the time is over.
    Told,
}

impl Level {
    /// Whether the caller gets false for it.
    pub(crate) fn is_no(self, error: &Error) -> bool {
        matches!(self, Level::Told) && error.kind() == ErrorKind::Timeout
    }
}

/// An outcome as Python gets it.
pub(crate) fn value_of(py: Python<'_>, outcome: Outcome, level: Level) -> Answered {
    match (outcome, level) {
        (Outcome::Failed(error), _) if level.is_no(&error) => return false.into_py_any(py),
        (Outcome::Failed(error), _) => return Err(raise(py, &error)),
        // If the handler of a signal raises, the caller never learns of what is granted, and it goes back.
        (Outcome::Granted(guard), Level::Told) => {
            py.check_signals()?;
            guard.detach();
        }
        (Outcome::Taken(permit), Level::Told) => {
            py.check_signals()?;
            permit.forget();
        }
        (Outcome::Open, Level::Told) => {}
        (outcome, _) => return value(py, outcome),
    }
    true.into_py_any(py)
}

/// How what is awaited ends with a value.
fn end_with(py: Python<'_>, value: PyResult<Py<PyAny>>) -> PyErr {
    match value {
        // A flag is no exception and no tuple, so it may stand by itself, which costs no object.
        Ok(value) if value.bind(py).is_exact_instance_of::<PyBool>() => {
            PyStopIteration::new_err(value)
        }
        Ok(value) => PyStopIteration::new_err((value,)),
        Err(error) => error,
    }
}

impl Answer {
    pub(crate) fn sent(sent: Sent, level: Level) -> Self {
        Answer::at(Place::Waiting, OnceLock::from(sent), "Answer", level)
    }

    /// `lock`: that of `redlatch.aio`.
    pub(crate) fn unsent(
        lock: Bound<'_, PyAny>,
        core: Bound<'_, Lock>,
        what: What,
        level: Level,
    ) -> PyResult<Self> {
        let unsent = Unsent::new(lock, core.unbind(), what)?;
        let called = unsent.name();
        Ok(Answer::at(
            Place::Unsent(unsent),
            OnceLock::new(),
            called,
            level,
        ))
    }

    fn at(place: Place, sent: OnceLock<Sent>, called: &'static str, level: Level) -> Self {
        let state = State {
            place,
            first: None,
            others: Vec::new(),
        };
        Answer {
            called,
            level,
            sent,
            awaited: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Never held while anything of Python's is called or dropped.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait, if it has not ended, and returns whom to call.
    fn end(&self, end: Place) -> Option<impl Iterator<Item = Callback> + use<>> {
        let mut state = self.state();
        if !matches!(state.place, Place::Waiting) {
            // Dropped when the lock is not held any more: a lock that was won is released.
            drop(state);
            drop(end);
            return None;
        }
        state.place = end;
        Some(
            state
                .first
                .take()
                .into_iter()
                .chain(std::mem::take(&mut state.others)),
        )
    }

    /// Sends what was not sent, and waits if there is no answer at once.
    fn begin(this: &Bound<'_, Self>, unsent: Unsent) -> PyResult<Option<Py<Self>>> {
        let (py, own) = (this.py(), this.get());
        unsent.refuse_as_whole_task(this)?;
        let (queue, owner, delivered) = unsent.send(this)?;
        match delivered {
            Submitted::Ready(outcome) => own.finish(py, outcome, Some(&owner)),
            Submitted::Queued(ticket) => {
                let sent = Sent {
                    ticket,
                    queue: queue.unbind(),
                    owner: Some(owner),
                };
                // It is sent once: whoever finds it unsent takes it.
                let _ = own.sent.set(sent);
                own.state().place = Place::Waiting;
                own.wait(this)
            }
        }
    }

    fn wait(&self, this: &Bound<'_, Self>) -> PyResult<Option<Py<Self>>> {
        self.awaited.store(true, Ordering::Relaxed);
        Ok(Some(this.clone().unbind()))
    }

    fn finish(
        &self,
        py: Python<'_>,
        outcome: Outcome,
        owner: Option<&Owner>,
    ) -> PyResult<Option<Py<Self>>> {
        let granted = matches!(outcome, Outcome::Granted(_));
        match value_of(py, outcome, self.level) {
            // The end without a value needs no exception.
            Ok(value) if value.is_none(py) => Ok(None),
            value => {
                if let Some(owner) = owner.filter(|_| granted) {
                    owner.granted();
                }
                Err(end_with(py, value))
            }
        }
    }

    fn queue(&self) -> PyResult<&Queue> {
        let sent = self
            .sent
            .get()
            .ok_or_else(|| InvalidStateError::new_err("it was not sent"))?;
        Ok(sent.queue.get())
    }
}

/// The answer is there. `here`: no task of the loop runs, and this one is called at once.
pub(crate) fn complete(answer: &Bound<'_, Answer>, outcome: Outcome, here: bool) -> PyResult<()> {
    let mut result = Ok(());
    for (callback, context) in answer
        .get()
        .end(Place::Answered(outcome))
        .into_iter()
        .flatten()
    {
        let called = match context {
            Some(context) if here => run_in(answer, context, callback),
            context => call_later(answer, callback, context),
        };
        result = result.and(called);
    }
    result
}

/// Calls it in its context. The method is looked up once for all of them.
fn run_in(answer: &Bound<'_, Answer>, context: Py<PyAny>, callback: Py<PyAny>) -> PyResult<()> {
    static RUN: Kept<Py<PyAny>> = Kept::new();
    let py = answer.py();
    let run = RUN.get_or_try_init(py, || {
        let class = py
            .import(intern!(py, "contextvars"))?
            .getattr(intern!(py, "Context"))?;
        Ok::<_, PyErr>(class.getattr(intern!(py, "run"))?.unbind())
    })?;
    match answer.get().queue()?.done() {
        Some(done) => run.bind(py).call1((context, callback, done)).map(drop),
        None => run.bind(py).call1((context, callback, answer)).map(drop),
    }
}

/// Has the loop call it in its next turn.
fn call_later(
    answer: &Bound<'_, Answer>,
    callback: Py<PyAny>,
    context: Option<Py<PyAny>>,
) -> PyResult<()> {
    let py = answer.py();
    let with = PyDict::new(py);
    with.set_item(intern!(py, "context"), context)?;
    let each_loop = answer.get().queue()?.event_loop(py)?;
    each_loop
        .call_method(intern!(py, "call_soon"), (callback, answer), Some(&with))
        .map(drop)
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
        match std::mem::replace(&mut state.place, Place::Taken) {
            Place::Waiting => {
                state.place = Place::Waiting;
                let awaited = state.first.is_some();
                drop(state);
                // A second task would end the wait of the first when it is cancelled.
                if awaited {
                    Err(awaited_now())
                } else {
                    own.wait(this)
                }
            }
            place => {
                drop(state);
                match place {
                    Place::Unsent(unsent) => Answer::begin(this, unsent),
                    Place::Answered(outcome) => own.finish(
                        py,
                        outcome,
                        own.sent.get().and_then(|sent| sent.owner.as_ref()),
                    ),
                    Place::Cancelled(message) => Err(cancelled(message)),
                    Place::Waiting | Place::Taken => Err(awaited_before()),
                }
            }
        }
    }

    /// Nobody waits for it any more: it is cancelled, or what it has won is released.
    fn forget(&self) {
        if let Some(sent) = self.sent.get() {
            sent.queue.get().queue.forget(sent.ticket);
        }
        let place = std::mem::replace(&mut self.state().place, Place::Taken);
        drop(place);
    }

    // ---- what coroutines have ----

    #[pyo3(signature = (_value, /))]
    fn send(this: &Bound<'_, Self>, _value: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let ended = || end_with(this.py(), Ok(this.py().None()));
        Answer::__next__(this)?.ok_or_else(ended)
    }

    #[pyo3(signature = (error, value=None, trace=None, /))]
    fn throw(
        &self,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        trace: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.forget();
        let py = error.py();
        let raised = match value.filter(|value| !value.is_none()) {
            _ if error.is_instance_of::<PyBaseException>() => error,
            Some(value) if value.is_instance_of::<PyBaseException>() => value,
            Some(value) => error.call1((value,))?,
            None => error.call0()?,
        };
        if let Some(trace) = trace.filter(|trace| !trace.is_none()) {
            raised.call_method1(intern!(py, "with_traceback"), (trace,))?;
        }
        Err(PyErr::from_value(raised))
    }

    fn close(&self) {
        self.forget();
    }

    #[getter(__name__)]
    fn name(&self) -> &'static str {
        self.qualified_name().rsplit('.').next().unwrap_or_default()
    }

    #[getter(__qualname__)]
    fn qualified_name(&self) -> &'static str {
        self.called
    }

    // ---- what tasks need ----

    #[getter(_asyncio_future_blocking)]
    fn awaited(&self) -> Option<bool> {
        // A coroutine until it is sent: nobody who asks for a future may take it for one.
        self.sent
            .get()
            .map(|_| self.awaited.load(Ordering::Relaxed))
    }

    #[setter(_asyncio_future_blocking)]
    fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// In place of the method `get_loop`, for which a task would have to make an object: the older
    /// of the two ways to say it.
    #[getter(_loop)]
    fn event_loop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.queue()?.event_loop(py)
    }

    fn done(&self) -> bool {
        !matches!(self.state().place, Place::Waiting | Place::Unsent(_))
    }

    fn cancelled(&self) -> bool {
        matches!(self.state().place, Place::Cancelled(_))
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(this: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let Some(callbacks) = this.get().end(Place::Cancelled(msg)) else {
            return Ok(false);
        };
        for (callback, context) in callbacks {
            call_later(this, callback, context)?;
        }
        Ok(true)
    }

    /// Asked by the task that is woken. The value itself it has when it goes on.
    fn result(&self, py: Python<'_>) -> PyResult<()> {
        match &self.state().place {
            Place::Waiting | Place::Unsent(_) => {
                Err(InvalidStateError::new_err("there is no answer yet"))
            }
            Place::Cancelled(message) => Err(cancelled(
                message.as_ref().map(|message| message.clone_ref(py)),
            )),
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
            match &mut state.first {
                Some(_) => state.others.push((callback, context)),
                first => *first = Some((callback, context)),
            }
            return Ok(());
        }
        drop(state);
        call_later(this, callback, context)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(sent) = self.sent.get() {
            visit.call(&sent.queue)?;
        }
        let Ok(state) = self.state.try_lock() else {
            return Ok(());
        };
        match &state.place {
            Place::Cancelled(message) => visit.call(message)?,
            Place::Unsent(unsent) => unsent
                .references()
                .into_iter()
                .flatten()
                .try_for_each(|each| visit.call(each))?,
            _ => {}
        }
        for (callback, context) in state.first.iter().chain(&state.others) {
            visit.call(callback)?;
            visit.call(context)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let mut state = self.state();
        let callbacks = (state.first.take(), std::mem::take(&mut state.others));
        drop(state);
        drop(callbacks);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(state.place, Place::Unsent(_)) {
            warn_unawaited(self.called);
        }
    }
}

fn cancelled(message: Option<Py<PyAny>>) -> PyErr {
    message.map_or_else(
        || CancelledError::new_err(()),
        |message| CancelledError::new_err((message,)),
    )
}
