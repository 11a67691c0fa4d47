//! The Python face of redlatch, as small as it can be: it translates calls, values and errors, and
//! decides nothing. The part that users see is Python, in `python/redlatch/`.
//!
//! Nothing here is called on the engine's thread but what the core itself puts into a queue, so
//! that thread never waits for the interpreter.

mod answer;
mod block;
mod client;
mod counters;
mod exit;
mod flow;
mod guard;
mod interrupt;
mod kept;
mod lock;
mod operation;
mod task;
mod testing;
mod values;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

use crate::kept::Kept;

/// Refuses a second interpreter of the process, as Python does itself from 3.12 on: our classes are
/// the first one's, and the end of either would be taken for that of both.
fn refuse_another_interpreter(py: Python<'_>) -> PyResult<()> {
    // Each has a module of this name; kept, so that none that comes later stands at its address.
    static SYS: Kept<Py<PyModule>> = Kept::new();
    let sys = py.import("sys")?;
    if SYS.get_or_init(py, || sys.clone().unbind()).is(&sys) {
        return Ok(());
    }
    let text = "redlatch was imported by another interpreter of this process and does not support loading in several; \
                use it in one of them, or in a process of its own";
    Err(PyImportError::new_err(text))
}

/// The compiled part of `redlatch`; its interface is private and may change at any time. It relies
/// on the GIL: a fork finds none of its locks held by another thread. A free-threaded interpreter
/// turns its GIL on when it imports this.
#[pymodule(gil_used = true)]
mod _redlatch {
    #[pymodule_export]
    use crate::answer::Answer;
    #[pymodule_export]
    use crate::block::{Block, Enter, Exit, begin, begun};
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::counters::{Latch, Permit, PlainBlocks, PlainSemaphore};
    #[pymodule_export]
    use crate::exit::{begin_exit, wait_idle};
    #[pymodule_export]
    use crate::guard::{Guard, Hold};
    #[pymodule_export]
    use crate::interrupt::Interrupt;
    #[pymodule_export]
    use crate::lock::Lock;
    #[pymodule_export]
    use crate::operation::{Canceller, Queue, next_tag};
    #[pymodule_export]
    use crate::task::Key;
    #[pymodule_export]
    use crate::testing::MemoryServer;
    #[pymodule_export]
    use crate::values::{error_kinds, keep_errors, lost_reasons, options, seconds};

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        super::refuse_another_interpreter(module.py())?;
        super::flow::prepare(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
