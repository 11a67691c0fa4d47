//! Waiting: on the calling thread, or through a queue that an event loop drains.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use redlatch::Operation;
use redlatch::embed::{Caller, Completion, CompletionQueue, OperationExt, Outcome, Submitted};

use crate::answer::{Answer, Level, Sent, complete, value_of};
use crate::exit::Waiting;
use crate::flow;
use crate::kept::intern;
use crate::values::raise;

/// Where an answer goes: the queue of an event loop; with None the calling thread waits for it.
pub(crate) struct To<'py> {
    py: Python<'py>,
    queue: Option<Bound<'py, Queue>>,
}

/// A value for Python.
pub(crate) type Answered = PyResult<Py<PyAny>>;

impl<'py> FromPyObject<'_, 'py> for To<'py> {
    type Error = PyErr;

    fn extract(to: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let queue = to.extract()?;
        Ok(To { py: to.py(), queue })
    }
}

impl<'py> To<'py> {
    /// The calling thread waits.
    pub(crate) fn thread(py: Python<'py>) -> Self {
        To { py, queue: None }
    }

    /// Sends an operation; waits for its answer, after a moment without the GIL, or has it delivered.
    pub(crate) fn run<T>(self, operation: Operation<T>) -> Answered {
        self.answer(operation, None, Level::Guarded)
    }

    /// The same for what is granted. The canceller ends the wait of a thread.
    pub(crate) fn answer<T>(
        self,
        operation: Operation<T>,
        canceller: Option<&Canceller>,
        level: Level,
    ) -> Answered {
        let py = self.py;
        if let Some(queue) = self.queue {
            return deliver(&queue, operation, level);
        }
        match wait_for(py, operation.untyped(), canceller)?.unwrap_or_else(Outcome::Failed) {
            Outcome::Failed(error) if !level.is_no(&error) => Err(Waiting::failed(py, &error)),
            outcome => value_of(py, outcome, level),
        }
    }
}

/// Answers for event loops and for the dispatcher; `fd` is readable while some wait.
#[pyclass(frozen, weakref, module = "redlatch._redlatch")]
pub(crate) struct Queue {
    pub(crate) queue: Arc<CompletionQueue<Tag>>,
    /// Its tasks wait for the answers.
    event_loop: Option<Py<PyAny>>,
    /// A future that is done. A task that is told of one asks it for its result, and of one of
    /// asyncio's own it need not call a method.
    done: Option<Py<PyAny>>,
}

/// The receiver of an entry of a queue.
pub(crate) enum Tag {
    /// A task that waits for it.
    Task(Py<Answer>),
    /// Python code, which knows this number.
    Told(u64),
    /// There was no memory for a task's future.
    Nobody,
}

/// Ends waits of other threads.
#[pyclass(frozen, module = "redlatch")]
pub(crate) struct Canceller(pub(crate) redlatch::Canceller);

#[pymethods]
impl Canceller {
    /// Ends the waits that it is given to: `lock.acquire(canceller=canceller)` and
    /// `client.lock(name, canceller=canceller)`.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Canceller(
            redlatch::Canceller::new().map_err(|error| raise(py, &error))?,
        ))
    }

    /// Ends all waits that use it, now and later, from any thread or signal handler; they raise
    /// LockCancelledError. A lock that is held stays held. Calling it again changes nothing.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether cancel() was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    fn __repr__(&self) -> String {
        format!("<redlatch.{:?}>", self.0)
    }
}

/// Draws a number for [`Tag::Told`].
#[pyfunction]
pub(crate) fn next_tag() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Queue {
    pub(crate) fn event_loop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let known = self.event_loop.as_ref().map(|known| known.bind(py).clone());
        known.ok_or_else(|| PyRuntimeError::new_err("this queue belongs to no event loop"))
    }

    /// A task is given this for an answer that has come.
    pub(crate) fn done(&self) -> Option<&Py<PyAny>> {
        self.done.as_ref()
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (event_loop=None))]
    fn new(py: Python<'_>, event_loop: Option<Py<PyAny>>) -> PyResult<Self> {
        let queue = CompletionQueue::with_fd().map_err(|error| raise(py, &error))?;
        let done = event_loop
            .as_ref()
            .map(|event_loop| done_future(event_loop.bind(py)))
            .transpose()?;
        Ok(Queue {
            queue,
            event_loop,
            done,
        })
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.queue.fd().unwrap_or(-1)
    }

    /// Takes what is there for Python code: the numbers. In a forked child nothing.
    fn drain(&self) -> Vec<u64> {
        let number = |entry: Completion<Tag>| match entry.tag {
            Tag::Told(number) => Some(number),
            Tag::Task(_) | Tag::Nobody => None,
        };
        self.queue.drain().into_iter().filter_map(number).collect()
    }

    /// Gives the answers to the tasks that wait for them; the numbers of the other entries are
    /// appended to `others`. `here`: no task of the loop runs now, so those who wait go on at once, and
    /// whoever gets an answer meanwhile as well.
    fn settle(&self, here: bool, others: &Bound<'_, PyList>) -> PyResult<()> {
        let mut result = Ok(());
        for entry in self.queue.serve() {
            let told = match entry.tag {
                // An exception of one of them ends the loop, as `KeyboardInterrupt` does. The
                // others go on when it runs again.
                Tag::Task(answer) => complete(
                    answer.bind(others.py()),
                    entry.outcome,
                    here && result.is_ok(),
                ),
                Tag::Told(number) => others.append(number),
                Tag::Nobody => Ok(()),
            };
            result = result.and(told);
        }
        result
    }

    /// The loop is closed: cancels what its tasks wait for, and drops what is there and what will
    /// come.
    fn give_up(&self) {
        self.queue.close();
    }

    /// Makes the descriptor readable without an entry.
    fn wake(&self) {
        self.queue.wake();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.done)?;
        self.queue.try_each(|tag| match tag {
            Tag::Task(answer) => visit.call(answer),
            Tag::Told(_) | Tag::Nobody => Ok(()),
        })
    }

    fn __clear__(&self) {
        self.queue.close();
    }
}

fn done_future(event_loop: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = event_loop.py();
    let with = PyDict::new(py);
    with.set_item(intern!(py, "loop"), event_loop)?;
    let future = py
        .import(intern!(py, "asyncio"))?
        .getattr(intern!(py, "Future"))?
        .call((), Some(&with))?;
    future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    Ok(future.unbind())
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Sends an operation for a task: its answer, or what the task has to await for it.
fn deliver<T>(queue: &Bound<'_, Queue>, operation: Operation<T>, level: Level) -> Answered {
    let (py, mut waits) = (queue.py(), None);
    let tag = |ticket| {
        let sent = Sent {
            ticket,
            queue: queue.clone().unbind(),
            owner: None,
        };
        let answer = waits.insert(Py::new(py, Answer::sent(sent, level)));
        match answer {
            Ok(answer) => Tag::Task(answer.clone_ref(py)),
            Err(_) => Tag::Nobody,
        }
    };
    match operation.deliver_soon(&queue.get().queue, Caller::INTERPRETER, tag) {
        Submitted::Ready(outcome) => value_of(py, outcome, level),
        Submitted::Queued(_) => waits.map_or_else(|| Ok(py.None()), |made| Ok(made?.into_any())),
    }
}

/// Waits on the calling thread, after a moment without the GIL. The outer error is what a signal
/// handler raised, or that nobody may wait any more.
fn wait_for(
    py: Python<'_>,
    mut operation: Operation<Outcome>,
    canceller: Option<&Canceller>,
) -> PyResult<redlatch::Result<Outcome>> {
    Waiting::refuse_exit(py)?;
    let canceller = canceller.map(|canceller| &canceller.0);
    // With a canceller that was used before, nothing may be sent.
    if !canceller.is_some_and(redlatch::Canceller::is_cancelled)
        && operation.wait_briefly(Caller::INTERPRETER)
    {
        return Ok(operation.wait());
    }
    let interruptible = hears_signals(py)?;
    let waiting = Waiting::begin(py)?;
    let result = if interruptible {
        // One may have come in the moment before.
        py.check_signals()?;
        let mut stops_a_loop = flow::event_loop_runs(py)?;
        // The calling thread takes the GIL again only to let Python see a signal; an exception from
        // its handler (KeyboardInterrupt) cancels the operation.
        py.detach(|| {
            operation.wait_interruptibly(canceller, || {
                Python::attach(|py| {
                    if std::mem::take(&mut stops_a_loop) {
                        warn_of_the_loop(py)?;
                    }
                    py.check_signals()
                })
            })
        })
    } else {
        Ok(py.detach(|| match canceller {
            Some(canceller) => operation.wait_cancellable(canceller),
            None => operation.wait(),
        }))
    };
    drop(waiting);
    result
}

/// A wait for a lock that a task of the same loop holds would never end, and nothing else says why.
fn warn_of_the_loop(py: Python<'_>) -> PyResult<()> {
    let category = py.get_type::<pyo3::exceptions::PyRuntimeWarning>();
    let text = c"a call of redlatch.Client waits on the thread of a running event loop, whose tasks stand still meanwhile; \
                 in async code use redlatch.aio.Client, or asyncio.to_thread";
    PyErr::warn(py, &category, text, 2)
}

thread_local! {
    /// Whether the thread hears signals, and the process that it was found out in: in a child it
    /// may be another one.
    static HEARS: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Whether it is Python's main thread that calls, the only one whose waiting a signal can end. All
/// others would take the GIL a few times a second for nothing, thousands of them until nobody else
/// gets it.
fn hears_signals(py: Python<'_>) -> PyResult<bool> {
    let process = std::process::id();
    if let Some((_, hears)) = HEARS.get().filter(|(known, _)| *known == process) {
        return Ok(hears);
    }
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading
        .call_method0(intern!(py, "main_thread"))?
        .getattr(intern!(py, "ident"))?;
    let hears = main.eq(threading.call_method0(intern!(py, "get_ident"))?)?;
    HEARS.set(Some((process, hears)));
    Ok(hears)
}
