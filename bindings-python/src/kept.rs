//! Values that are made at their first use and kept for the life of the process.
//!
//! PyO3's `PyOnceLock`, and with it `pyo3::intern!`, give up the GIL with the value half made. Another
//! thread can fork then. Its child inherits a cell that is being filled by a thread which the child
//! does not have, and waits for that thread for ever.

use std::convert::Infallible;
use std::sync::OnceLock;

use pyo3::prelude::*;

/// A value that is made at its first use. No lock is held while it is being made, so several
/// threads may make it; the first result stays. It is stored without giving up the GIL, and a
/// thread that forks from Python has the GIL: a child finds the cell empty or full.
pub(crate) struct Kept<T>(OnceLock<T>);

impl<T> Kept<T> {
    pub(crate) const fn new() -> Self {
        Kept(OnceLock::new())
    }

    pub(crate) fn get_or_init(&self, py: Python<'_>, make: impl FnOnce() -> T) -> &T {
        let Ok(kept) = self.get_or_try_init(py, || Ok::<_, Infallible>(make()));
        kept
    }

    pub(crate) fn get_or_try_init<E>(
        &self,
        _py: Python<'_>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        if let Some(kept) = self.0.get() {
            return Ok(kept);
        }
        let made = make()?;
        Ok(self.0.get_or_init(|| made))
    }
}

/// A literal as a Python string, which is made once.
macro_rules! intern {
    ($py:expr, $text:literal) => {{
        static TEXT: $crate::kept::Kept<pyo3::Py<pyo3::types::PyString>> =
            $crate::kept::Kept::new();
        TEXT.get_or_init($py, || pyo3::types::PyString::intern($py, $text).unbind())
            .bind($py)
    }};
}
pub(crate) use intern;
