//! A guard, which holds one level, and the local view of a hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use redlatch::embed::{GuardExt, HoldExt};
use redlatch::{Error, LostReason};

use crate::operation::{Answered, Queue, Tag, To};
use crate::values::{duration, raise};

/// A guard of the core.
///
/// Until `keep` is called, dropping it releases the level: the guard has not reached its caller
/// yet. After that the garbage collector must not release a lock on which somebody may rely. So the
/// level is abandoned: it ends with its lease, and an event warns.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Guard {
    guard: Mutex<Option<redlatch::Guard>>,
    hold: redlatch::Hold,
    kept: AtomicBool,
}

impl Guard {
    pub(crate) fn new(guard: redlatch::Guard) -> Self {
        let hold = guard.hold();
        Guard {
            guard: Mutex::new(Some(guard)),
            hold,
            kept: AtomicBool::new(false),
        }
    }

    /// Takes the guard for its only release.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<redlatch::Guard> {
        self.spend().ok_or_else(|| released(py))
    }

    /// Like `take`, but gives `None` if the guard was taken before.
    pub(crate) fn spend(&self) -> Option<redlatch::Guard> {
        self.with(Option::take)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Option<redlatch::Guard>) -> T) -> T {
        act(&mut self.guard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Guard {
    /// Notes that the guard has reached its caller.
    fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    fn hold(&self) -> Hold {
        Hold(self.hold.clone())
    }

    fn release(&self, py: Python<'_>, to: To<'_>) -> Answered {
        to.run(self.take(py)?.release())
    }

    fn extend(&self, lease: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        let time = duration("lease", lease)?;
        let operation = self.with(|guard| guard.as_ref().map(|guard| guard.extend(time)));
        to.run(operation.ok_or_else(|| released(lease.py()))?)
    }

    /// Releases the level without waiting. Does nothing if the guard was taken before.
    pub(crate) fn let_go(&self) {
        drop(self.with(Option::take));
    }

    /// Leaves the level to its key.
    fn detach(&self) {
        if let Some(guard) = self.with(Option::take) {
            guard.detach();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let kept = self.kept.load(Ordering::Acquire);
        if let Some(guard) = self.with(Option::take).filter(|_| kept) {
            guard.abandon();
        }
    }
}

fn released(py: Python<'_>) -> PyErr {
    raise(py, &Error::released_before("grant"))
}

/// A hold as it is known without I/O.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Hold(pub(crate) redlatch::Hold);

#[pymethods]
impl Hold {
    /// Puts the number into the queue when the lock is lost.
    fn watch_lost(&self, queue: &Queue, tag: u64) {
        self.0.watch_lost(&queue.queue, Tag::Told(tag));
    }

    /// Whether both are views of the same hold.
    fn is_same(&self, other: &Hold) -> bool {
        self.0.is_same(&other.0)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.check().map_err(|error| raise(py, &error))
    }

    #[getter]
    fn held(&self) -> bool {
        self.0.is_held()
    }

    #[getter]
    fn remaining(&self) -> f64 {
        self.0.remaining().as_secs_f64()
    }

    #[getter]
    fn count(&self) -> u32 {
        self.0.count()
    }

    #[getter]
    fn fencing_token(&self) -> Option<u64> {
        self.0.fencing_token()
    }

    #[getter]
    fn lost_reason(&self) -> Option<&'static str> {
        self.0.lost_reason().map(LostReason::name)
    }

    #[getter]
    fn owner(&self) -> String {
        self.0.owner()
    }

    /// The names of a multi lock, each with its owner and fencing token.
    fn parts(&self) -> Vec<(String, String, Option<u64>)> {
        let parts = self.0.parts();
        let row = |part: &redlatch::Hold| {
            let (name, owner) = (part.name().to_owned(), part.owner());
            (name, owner, part.fencing_token())
        };
        parts.iter().map(row).collect()
    }
}
