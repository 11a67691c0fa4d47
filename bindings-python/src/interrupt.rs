//! The interruption of a thread whose lock is lost.

use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyType;

/// Raises an exception in a thread that is inside a `with` block: it is called with the loss.
///
/// `raise_` and `take_back` call the interpreter without Python code. The exception comes in the
/// next Python code of the thread, so none may run between the end of the block and `leave`.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Interrupt {
    raise_: Py<PyAny>,
    take_back: Py<PyAny>,
    error: Py<PyType>,
    state: AtomicU8,
}

const INSIDE: u8 = 0;
const RAISED: u8 = 1;
const LEFT: u8 = 2;

impl Interrupt {
    /// Ends the block. Whether `error`, with which it is left, is the one that was raised here.
    pub(crate) fn leave(&self, error: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> PyResult<bool> {
        if self.state.swap(LEFT, Ordering::AcqRel) != RAISED {
            return Ok(false);
        }
        if let Some(error) = error
            && error.is_instance(self.error.bind(py))?
        {
            return Ok(true);
        }
        self.take_back.call0(py)?;
        Ok(false)
    }
}

#[pymethods]
impl Interrupt {
    #[new]
    fn new(raise_: Py<PyAny>, take_back: Py<PyAny>, error: Py<PyType>) -> Self {
        Interrupt {
            raise_,
            take_back,
            error,
            state: AtomicU8::new(INSIDE),
        }
    }

    fn __call__(&self, py: Python<'_>, lost: &Bound<'_, PyAny>) -> PyResult<()> {
        let _ = lost;
        match self
            .state
            .compare_exchange(INSIDE, RAISED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => self.raise_.call0(py).map(drop),
            Err(_) => Ok(()),
        }
    }
}
