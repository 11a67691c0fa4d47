//! Waiting: on the calling thread, or through a queue that an event loop drains.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use redlatch::{Cancelled, Delivered, Operation, Outcome};

use crate::exit::Waiting;
use crate::values::{IntoValue, raise};

/// Where an answer goes: a queue and a tag; nowhere means that the calling thread waits for it.
pub(crate) type To<'py> = Option<(PyRef<'py, Queue>, u64)>;

/// Answers for event loops and for the dispatcher; `fd` is readable while some wait.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Queue(pub(crate) Arc<redlatch::Queue>);

#[pymethods]
impl Queue {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        redlatch::Queue::with_fd().map(Queue).map_err(|error| raise(py, &error))
    }

    #[getter]
    fn fd(&self) -> RawFd {
        self.0.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Takes what is there: pairs of a tag and a value or an exception. In a forked child nothing.
    fn drain(&self, py: Python<'_>) -> PyResult<Vec<(u64, Py<PyAny>)>> {
        self.0.drain().into_iter().map(|entry| Ok((entry.tag, entry.outcome.into_value(py)?))).collect()
    }

    /// Makes the descriptor readable without an entry.
    fn wake(&self) {
        self.0.wake();
    }

    /// Drops what is there and what will come; grants among it are released.
    fn close(&self) {
        self.0.close();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// An operation whose answer comes through a queue.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Pending(redlatch::Pending);

#[pymethods]
impl Pending {
    /// Cancels the operation; false when its answer is in the queue already.
    fn cancel(&self) -> bool {
        self.0.cancel() == Cancelled::Yes
    }
}

/// Within what time an answer must be expected for a thread to keep the GIL, or an event loop, while it waits. Who gives it away
/// gets it back after a switch interval (5 ms) when another thread computes; a server nearby answers in less than a twentieth of that.
const PATIENCE: Duration = Duration::from_micros(250);

/// Sends an operation; waits for its answer, after a moment without the GIL, or has it delivered.
pub(crate) fn run<T>(py: Python<'_>, operation: Operation<T>, to: To<'_>) -> PyResult<Py<PyAny>>
where
    T: IntoValue + Send,
{
    if let Some((queue, tag)) = to {
        return match operation.deliver_soon(&queue.0, tag, PATIENCE) {
            Delivered::Now(Outcome::Failed(error)) => Err(raise(py, &error)),
            Delivered::Now(outcome) => outcome.into_value(py),
            Delivered::Later(pending) => Ok(Py::new(py, Pending(pending))?.into_any()),
        };
    }
    wait_for(py, operation)?.map_err(|error| Waiting::failed(py, &error))?.into_value(py)
}

/// Waits on the calling thread, after a moment without the GIL. The outer error is what a signal handler raised, or
/// that nobody may wait any more.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    mut operation: Operation<T>,
) -> PyResult<redlatch::Result<T>> {
    Waiting::refuse_exit(py)?;
    if operation.wait_briefly(PATIENCE) {
        return Ok(operation.wait());
    }
    let interruptible = hears_signals(py)?;
    let waiting = Waiting::begin(py)?;
    let result = if interruptible {
        // One may have come in the moment before.
        py.check_signals()?;
        // The calling thread takes the GIL again only to let Python see a signal; an exception from its
        // handler (KeyboardInterrupt) cancels the operation.
        py.detach(|| operation.wait_interruptibly(|| Python::attach(|py| py.check_signals())))
    } else {
        Ok(py.detach(|| operation.wait()))
    };
    drop(waiting);
    result
}

thread_local! {
    /// Whether the thread hears signals, and the process that it was found out in: in a child it may be another one.
    static HEARS: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Whether it is Python's main thread that calls, the only one whose waiting a signal can end. All others would take
/// the GIL a few times a second for nothing, thousands of them until nobody else gets it.
fn hears_signals(py: Python<'_>) -> PyResult<bool> {
    let process = std::process::id();
    if let Some((_, hears)) = HEARS.get().filter(|(known, _)| *known == process) {
        return Ok(hears);
    }
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    let hears = main.eq(threading.call_method0(intern!(py, "get_ident"))?)?;
    HEARS.set(Some((process, hears)));
    Ok(hears)
}
