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

// Where the thread is. The loss may be told before it is inside.
const BEFORE: u8 = 0;
const TOLD: u8 = 1;
const INSIDE: u8 = 2;
const RAISED: u8 = 3;
const LEFT: u8 = 4;

impl Interrupt {
    fn change(&self, from: u8, to: u8) -> bool {
        let order = Ordering::SeqCst;
        self.state.compare_exchange(from, to, order, order).is_ok()
    }

    /// Begins the block, in whose body the exception comes from now on. Whether it did: not if the
    /// loss was told before.
    pub(crate) fn enter(&self) -> bool {
        self.change(BEFORE, INSIDE)
    }

    /// Ends the block. Whether `error`, with which it is left, is the one that was raised here.
    pub(crate) fn leave(&self, error: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> bool {
        let raised = self.state.swap(LEFT, Ordering::SeqCst) == RAISED;
        let ours = |error: &Bound<'_, PyAny>| error.is_instance(self.error.bind(py));
        let interrupted = raised && error.is_some_and(|error| ours(error).unwrap_or(false));
        if raised && !interrupted {
            // If it fails, the level is given back all the same, which tells the loss.
            let _ = self.take_back.call0(py);
        }
        interrupted
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
            state: AtomicU8::new(BEFORE),
        }
    }

    #[pyo3(signature = (_lost))]
    fn __call__(&self, py: Python<'_>, _lost: &Bound<'_, PyAny>) -> PyResult<()> {
        if !self.change(BEFORE, TOLD) && self.change(INSIDE, RAISED) {
            self.raise_.call0(py)?;
            // Garbage may be collected before the call, and its finalizers let the thread leave.
            if self.state.load(Ordering::SeqCst) == LEFT {
                self.take_back.call0(py)?;
            }
        }
        Ok(())
    }
}
