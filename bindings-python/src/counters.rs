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
use crate::operation::{Canceller, To, answer_of, deliver, run, told};
use crate::values::{IntoValue, duration, raise, unsigned, whole};

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
    #[pyo3(signature = (permits, wait, to=None))]
    fn take(
        &self,
        py: Python<'_>,
        permits: &Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
        to: To<'_>,
    ) -> PyResult<Py<PyAny>> {
        run(py, self.wish(unsigned("permits", permits)?, wait)?, to)
    }

    /// Takes permits and leaves them to the caller; false when the time is over.
    #[pyo3(signature = (permits, wait, to=None, canceller=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        permits: &Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
        to: To<'_>,
        canceller: Option<&Canceller>,
    ) -> PyResult<Py<PyAny>> {
        let operation = self.wish(unsigned("permits", permits)?, wait)?;
        match to {
            Some(queue) => deliver(&queue, operation, Level::Told),
            None => told(py, operation, canceller, PlainPermit::forget)?.into_value(py),
        }
    }

    #[pyo3(signature = (permits, to=None))]
    fn release(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(
            permits.py(),
            self.0.release(unsigned("permits", permits)?),
            to,
        )
    }

    #[pyo3(signature = (permits, to=None))]
    fn try_set_permits(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(
            permits.py(),
            self.0.try_set_permits(unsigned("permits", permits)?),
            to,
        )
    }

    #[pyo3(signature = (permits, to=None))]
    fn add_permits(&self, permits: &Bound<'_, PyAny>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(
            permits.py(),
            self.0.add_permits(whole("permits", permits)?),
            to,
        )
    }

    #[pyo3(signature = (to=None))]
    fn drain(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.drain(), to)
    }

    #[pyo3(signature = (to=None))]
    fn available(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.available(), to)
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
    #[pyo3(signature = (to=None))]
    fn release(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        self.spend()
            .map_or_else(|| Ok(py.None()), |permit| run(py, permit.release(), to))
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
                let permit = answer_of(py, operation, canceller.as_deref())?;
                Bound::new(py, Permit::new(permit))?
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
            Ok(None) => permit.get().release(py, None).map(drop),
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

    #[pyo3(signature = (count, to=None))]
    fn try_set_count(&self, count: &Bound<'_, PyAny>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(
            count.py(),
            self.0.try_set_count(unsigned("count", count)?),
            to,
        )
    }

    #[pyo3(signature = (by, to=None))]
    fn count_down(&self, py: Python<'_>, by: &Bound<'_, PyAny>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.count_down(unsigned("by", by)?), to)
    }

    #[pyo3(signature = (to=None))]
    fn count(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.count(), to)
    }

    /// Waits until the latch is open; false when the time is over.
    #[pyo3(signature = (wait, to=None, canceller=None))]
    fn wait(
        &self,
        py: Python<'_>,
        wait: &Bound<'_, PyAny>,
        to: To<'_>,
        canceller: Option<&Canceller>,
    ) -> PyResult<Py<PyAny>> {
        let operation = self.0.wait_within(limit(wait)?);
        match to {
            Some(queue) => deliver(&queue, operation, Level::Told),
            None => told(py, operation, canceller, drop)?.into_value(py),
        }
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
