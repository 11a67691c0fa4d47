//! The Python face of redlatch, as small as it can be: it translates calls, values and errors, and
//! decides nothing. What users see is Python, in `python/redlatch/`.
//!
//! Nothing here is called on the engine's thread but what the core itself puts into a queue, so
//! that thread never waits for the interpreter.

mod answer;
mod client;
mod exit;
mod guard;
mod lock;
mod operation;
mod task;
mod values;

use pyo3::prelude::*;

/// The compiled part of `redlatch`; its interface is private and may change at any time.
#[pymodule]
mod _redlatch {
    #[pymodule_export]
    use crate::answer::Answer;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::exit::{begin_exit, wait_idle};
    #[pymodule_export]
    use crate::guard::{Guard, Hold};
    #[pymodule_export]
    use crate::lock::Lock;
    #[pymodule_export]
    use crate::operation::{Queue, next_tag};
    #[pymodule_export]
    use crate::task::Key;
    #[pymodule_export]
    use crate::values::{error_kinds, lost_reasons, options, seconds};

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
