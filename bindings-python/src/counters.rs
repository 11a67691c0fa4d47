//! Semaphores without leases, and count-down latches.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use redlatch::embed::{CountDownLatchExt, PlainSemaphoreExt};
use redlatch::{CountDownLatch, Error, ErrorKind, Operation, PlainPermit};

use crate::answer::Level;
use crate::block::{after, release_in};
use crate::exit::Waiting;
use crate::flow;
use crate::kept::intern;
use crate::operation::{Answered, Canceller, To};
use crate::values::{duration, raise, unsigned, whole};

/// A plain semaphore of the core.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct PlainSemaphore(pub(crate) redlatch::PlainSemaphore);

impl PlainSemaphore {
    fn wish(&self, permits: usize, wait: &Bound<'_, PyAny>) -> PyResult<Operation<PlainPermit>> {
        Ok(PlainSemaphoreExt::take(&self.0, permits, limit(wait)?))
    }
}

/// How long to wait; nothing for ever.
fn limit(wait: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    let limited = !wait.is_none();
    limited.then(|| duration("wait", wait)).transpose()
}

#[pymethods]
impl PlainSemaphore {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Takes permits, which have an object that gives them back.
    fn take(&self, permits: &Bound<'_, PyAny>, wait: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.wish(unsigned("permits", permits)?, wait)?)
    }

    /// Takes permits and leaves them to the caller; false when the time is over.
    #[pyo3(signature = (permits, wait, to, canceller=None))]
    fn acquire(
        &self,
        permits: &Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
        to: To<'_>,
        canceller: Option<&Canceller>,
    ) -> Answered {
        let operation = self.wish(unsigned("permits", permits)?, wait)?;
        to.answer(operation, canceller, Level::Told)
    }

    fn release(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.0.release(unsigned("permits", permits)?))
    }

    fn try_set_permits(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.0.try_set_permits(unsigned("permits", permits)?))
    }

    fn add_permits(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.0.add_permits(whole("permits", permits)?))
    }

    fn drain(&self, to: To<'_>) -> Answered {
        to.run(self.0.drain())
    }

    fn available(&self, to: To<'_>) -> Answered {
        to.run(self.0.available())
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Permits of a plain semaphore. When the object goes away they are given back, unless they were
/// forgotten before.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Permit(Mutex<Option<PlainPermit>>);

impl Permit {
    pub(crate) fn new(permit: PlainPermit) -> Self {
        Permit(Mutex::new(Some(permit)))
    }

    fn spend(&self) -> Option<PlainPermit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Permit {
    /// Gives the permits back. Does nothing if that was done before.
    fn release(&self, py: Python<'_>, to: To<'_>) -> Answered {
        self.spend()
            .map_or_else(|| Ok(py.None()), |permit| to.run(permit.release()))
    }

    /// Leaves the permits to the caller.
    fn forget(&self) {
        if let Some(permit) = self.spend() {
            permit.forget();
        }
    }

    /// Gives the permits back without waiting. Does nothing if that was done before.
    fn let_go(&self) {
        drop(self.spend());
    }
}

/// The two ends of a `with` block of a plain semaphore, which is a subclass. They are native code, so
/// no signal handler comes between a permit and what gives it back.
///
/// One permit is as good as another: a block gives back any one that a block of the same object took.
#[pyclass(frozen, subclass, module = "redlatch._redlatch")]
pub(crate) struct PlainBlocks;

#[pymethods]
impl PlainBlocks {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(_arguments: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        PlainBlocks
    }

    fn __enter__(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let mut in_python = Waiting::in_python(py)?;
        this.getattr(intern!(py, "_client"))?
            .call_method0(intern!(py, "_start"))?;
        let core = this
            .getattr(intern!(py, "_core"))?
            .cast_into::<PlainSemaphore>()?;
        let wait = this.getattr(intern!(py, "_timeout"))?;
        let canceller = this.getattr(intern!(py, "_canceller"))?;
        let permit = match flow::hub(py)? {
            None => {
                let canceller = canceller.extract::<Option<PyRef<'_, Canceller>>>()?;
                let operation = core.get().wish(1, &wait)?;
                let permit =
                    To::thread(py).answer(operation, canceller.as_deref(), Level::Guarded)?;
                permit.into_bound(py).cast_into::<Permit>()?
            }
            Some(hub) => {
                // Other greenlets run meanwhile, for which no exit waits.
                in_python.take();
                hub.call_method1(intern!(py, "take"), (core, wait, canceller))?
                    .cast_into::<Permit>()?
            }
        };
        let begun = py
            .check_signals()
            .and_then(|()| entered(this)?.append(&permit));
        if begun.is_err() {
            // The exception may refer to the permit.
            permit.get().let_go();
        }
        begun
    }

    #[pyo3(signature = (kind=None, error=None, trace=None, /))]
    fn __exit__(
        this: &Bound<'_, Self>,
        kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (kind, trace);
        let py = this.py();
        let mut in_python = Waiting::in_python(py)?;
        let entered = entered(this)?;
        if entered.is_empty() {
            let text = "this semaphore was not entered with a `with` block";
            return Err(raise(py, &Error::new(ErrorKind::NotOwner, text)));
        }
        let permit = entered
            .call_method0(intern!(py, "pop"))?
            .cast_into::<Permit>()?;
        let released = match flow::hub(py) {
            Ok(None) => permit.get().release(py, To::thread(py)).map(drop),
            Ok(Some(hub)) => release_in(&hub, &permit, &mut in_python),
            // This is the hub itself, which cannot wait.
            Err(error) => Err(error),
        };
        // Also if it was not sent, because a signal handler raised.
        permit.get().let_go();
        released.or_else(|failure| after(py, error, failure))
    }
}

/// The permits of the blocks that were entered and not left.
fn entered<'py>(semaphore: &Bound<'py, PlainBlocks>) -> PyResult<Bound<'py, PyList>> {
    let entered = semaphore.getattr(intern!(semaphore.py(), "_entered"))?;
    Ok(entered.cast_into::<PyList>()?)
}

/// A latch of the core.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Latch(pub(crate) CountDownLatch);

#[pymethods]
impl Latch {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    fn try_set_count(&self, count: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.0.try_set_count(unsigned("count", count)?))
    }

    fn count_down(&self, by: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.0.count_down(unsigned("by", by)?))
    }

    fn count(&self, to: To<'_>) -> Answered {
        to.run(self.0.count())
    }

    /// Waits until the latch is open; false when the time is over.
    #[pyo3(signature = (wait, to, canceller=None))]
    fn wait(&self, wait: &Bound<'_, PyAny>, to: To<'_>, canceller: Option<&Canceller>) -> Answered {
        to.answer(self.0.wait_within(limit(wait)?), canceller, Level::Told)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
