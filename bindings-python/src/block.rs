//! The two ends of a `with` block.
//!
//! They are native code, so no signal handler and no limit of recursion comes between a level and
//! what answers for it.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakrefMethods, PyWeakrefReference};
use redlatch::AcquireOptions;
use redlatch::embed::AcquireOptionsExt;

use crate::answer::Level;
use crate::exit::Waiting;
use crate::flow;
use crate::guard::Guard;
use crate::interrupt::Interrupt;
use crate::kept::intern;
use crate::lock::Lock;
use crate::operation::{Canceller, To};
use crate::values::option;

thread_local! {
    /// The block that this thread is about to enter. One that was only looked at, as by `hasattr`,
    /// is gone.
    static ABOUT: RefCell<Option<Py<PyWeakrefReference>>> = const { RefCell::new(None) };
}

/// One `with` block, as its `__exit__`. The interpreter looks that up for each block before it
/// calls `__enter__`, so a block gives back its own level, whichever thread leaves it and however
/// many others share the lock.
#[pyclass(frozen, weakref, module = "redlatch._redlatch")]
pub(crate) struct Block {
    lock: Py<PyAny>,
    /// A task awaits its end.
    awaited: bool,
    grant: Mutex<Option<Py<PyAny>>>,
}

impl Block {
    fn grant(&self) -> std::sync::MutexGuard<'_, Option<Py<PyAny>>> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block of this lock that the calling thread is about to enter; nothing if somebody calls
/// `__enter__` by hand.
fn about_to_enter(lock: &Bound<'_, PyAny>) -> Option<Py<Block>> {
    let py = lock.py();
    let block = ABOUT.with(RefCell::take)?;
    let block = block.bind(py).upgrade()?.cast_into_exact::<Block>().ok()?;
    block.get().lock.is(lock).then(|| block.unbind())
}

/// Notes that a block begins: its grant is given back when it ends. `block`: the one of `begin`.
#[pyfunction]
pub(crate) fn begun(
    lock: &Bound<'_, PyAny>,
    block: Option<&Bound<'_, Block>>,
    grant: Py<PyAny>,
) -> PyResult<()> {
    match block {
        Some(block) => *block.get().grant() = Some(grant),
        None => {
            let _in_python = Waiting::in_python(lock.py())?;
            lock.call_method1(intern!(lock.py(), "_entered_by_hand"), (grant,))?;
        }
    }
    Ok(())
}

/// The block of this lock that the calling thread is about to enter.
#[pyfunction]
pub(crate) fn begin(lock: &Bound<'_, PyAny>) -> Option<Py<Block>> {
    about_to_enter(lock)
}

#[pymethods]
impl Block {
    #[pyo3(signature = (kind=None, error=None, trace=None, /))]
    fn __call__(
        this: &Bound<'_, Self>,
        kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = (kind, trace);
        let in_python = Waiting::in_python(this.py())?;
        let (py, lock) = (this.py(), this.get().lock.bind(this.py()));
        let own = this.get().grant().take();
        let grant = match own {
            Some(grant) => grant.into_bound(py),
            None => lock.call_method0(intern!(py, "_leaving_by_hand"))?,
        };
        match this.get().awaited {
            true => Ok(lock
                .call_method1(intern!(py, "_leaving"), (grant, error))?
                .unbind()),
            false => leave(&grant, error, in_python).map(|()| py.None()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.lock)?;
        let Ok(grant) = self.grant.try_lock() else {
            return Ok(());
        };
        visit.call(&*grant)
    }

    fn __clear__(&self) {
        let grant = self.grant().take();
        drop(grant);
    }
}

/// `__exit__` and `__aexit__` of locks.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Exit {
    awaited: bool,
}

#[pymethods]
impl Exit {
    #[new]
    #[pyo3(signature = (*, awaited))]
    fn new(awaited: bool) -> Self {
        Exit { awaited }
    }

    /// A new block, if it is looked up on a lock. `ExitStack` looks it up on the class, calls it
    /// with the lock, and enters by hand: a block that somebody keeps is not the one that begins.
    fn __get__(
        this: Py<Self>,
        py: Python<'_>,
        lock: Option<Py<PyAny>>,
        _class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let Some(lock) = lock.filter(|lock| !lock.is_none(py)) else {
            let before = ABOUT.with(RefCell::take);
            drop(before);
            return Ok(this.into_any());
        };
        let block = Bound::new(
            py,
            Block {
                lock,
                awaited: this.get().awaited,
                grant: Mutex::default(),
            },
        )?;
        let about_to = PyWeakrefReference::new(block.as_any())?.unbind();
        let before = ABOUT.with(|about| about.replace(Some(about_to)));
        drop(before);
        Ok(block.into_any().unbind())
    }

    #[pyo3(signature = (lock, kind=None, error=None, trace=None, /))]
    fn __call__(
        &self,
        lock: Py<PyAny>,
        kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        trace: Option<&Bound<'_, PyAny>>,
        py: Python<'_>,
    ) -> PyResult<Py<PyAny>> {
        let block = Bound::new(
            py,
            Block {
                lock,
                awaited: self.awaited,
                grant: Mutex::default(),
            },
        )?;
        Block::__call__(&block, kind, error, trace)
    }
}

/// `__enter__` of the lock for threads.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Enter;

#[pymethods]
impl Enter {
    #[new]
    fn new() -> Self {
        Enter
    }

    fn __get__(
        this: Py<Self>,
        py: Python<'_>,
        lock: Option<Py<PyAny>>,
        _class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        match lock.filter(|lock| !lock.is_none(py)) {
            Some(lock) => Ok(Py::new(py, Entering(lock))?.into_any()),
            None => Ok(this.into_any()),
        }
    }

    fn __call__<'py>(&self, lock: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        enter(lock)
    }
}

/// The same, of one lock.
#[pyclass(frozen, module = "redlatch._redlatch")]
struct Entering(Py<PyAny>);

#[pymethods]
impl Entering {
    fn __call__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        enter(self.0.bind(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

/// Acquires for a block; the grant.
fn enter<'py>(lock: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = lock.py();
    let mut in_python = Waiting::in_python(py)?;
    let block = about_to_enter(lock);
    let client = lock.getattr(intern!(py, "_client"))?;
    if !client.getattr(intern!(py, "_started"))?.is_truthy()? {
        client.call_method0(intern!(py, "_start"))?;
    }
    let core = lock.getattr(intern!(py, "_core"))?.cast_into::<Lock>()?;
    let wait = lock.getattr(intern!(py, "_timeout"))?;
    let canceller = lock.getattr(intern!(py, "_canceller"))?;
    let guard = match flow::hub(py)? {
        None => acquire_on_thread(&core, &wait, &canceller)?,
        // Python code runs here, and an exception of a signal handler may come in it. The level is
        // released when that exception, which may refer to the guard, is gone.
        Some(hub) => {
            // Other greenlets run meanwhile, for which no exit waits.
            in_python.take();
            let none = py.None();
            hub.call_method1(
                intern!(py, "acquire"),
                (core, wait, &none, &none, false, canceller),
            )?
            .cast_into::<Guard>()?
        }
    };
    let begun = lock
        .call_method1(intern!(py, "_grant"), (&guard,))
        .and_then(|grant| {
            begun(
                lock,
                block.as_ref().map(|block| block.bind(py)),
                grant.clone().unbind(),
            )?;
            if let Ok(interrupt) = interrupt_of(&grant)?.cast::<Interrupt>()
                && !interrupt.get().enter()
            {
                // The exception could come before the body, where no end of a block replaces it.
                lock.call_method1(intern!(py, "_forget_by_hand"), (&grant,))?;
                grant.call_method0(intern!(py, "check"))?;
            }
            Ok(grant)
        });
    if begun.is_err() {
        // A signal handler raised, the recursion limit was reached, or the lock is lost already:
        // the block does not begin.
        guard.get().let_go();
    }
    begun
}

fn acquire_on_thread<'py>(
    core: &Bound<'py, Lock>,
    wait: &Bound<'py, PyAny>,
    canceller: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, Guard>> {
    let py = core.py();
    let mut options = AcquireOptions::new().caller(core.get().key_for(flow::current(py)?));
    if !wait.is_none() {
        option("wait", wait, &mut |name, value| options.set(name, value))?;
    }
    let canceller = canceller.extract::<Option<PyRef<'_, Canceller>>>()?;
    let operation = core.get().core.acquire_with(options);
    let guard = To::thread(py).answer(operation, canceller.as_deref(), Level::Guarded)?;
    Ok(guard.into_bound(py).cast_into::<Guard>()?)
}

fn interrupt_of<'py>(grant: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    grant.getattr(intern!(grant.py(), "_interrupt"))
}

/// Gives the level of a block back; nothing if its grant was released before, or if it is the one
/// of a parent process.
fn leave(
    grant: &Bound<'_, PyAny>,
    error: Option<&Bound<'_, PyAny>>,
    mut in_python: Option<Waiting>,
) -> PyResult<()> {
    let py = grant.py();
    if grant.is_none() {
        return Ok(());
    }
    let guard = grant.getattr(intern!(py, "_guard"))?.cast_into::<Guard>()?;
    let tags = grant
        .getattr(intern!(py, "_tags"))?
        .cast_into::<PyTuple>()?;
    let interrupted = match interrupt_of(grant)?.cast::<Interrupt>() {
        Ok(interrupt) => interrupt.get().leave(error, py),
        Err(_) => false,
    };
    let Some(level) = guard.get().spend() else {
        // It was released before, and the block is told of the loss all the same.
        if interrupted {
            grant.call_method0(intern!(py, "check"))?;
        }
        return Ok(());
    };
    let released = match flow::hub(py) {
        Ok(None) => To::thread(py).run(level.release()).map(drop),
        Ok(Some(hub)) => {
            let level = Bound::new(py, Guard::new(level))?;
            let released = release_in(&hub, &level, &mut in_python);
            // Also if it was not sent, because a signal handler raised.
            level.get().let_go();
            released
        }
        // This is the hub itself, which cannot wait: the level is let go.
        Err(error) => Err(error),
    };
    let forgotten = match tags.is_empty() {
        true => Ok(()),
        false => grant.call_method0(intern!(py, "_forget")).map(drop),
    };
    let Err(failure) = released else {
        return forgotten;
    };
    if interrupted && let Some(error) = error {
        // Where the thread was interrupted.
        failure.set_cause(py, Some(PyErr::from_value(error.clone())));
        return Err(failure);
    }
    after(py, error, failure)
}

/// Gives back what a block of a greenlet took, and lets its hub wait for the answer.
pub(crate) fn release_in(
    hub: &Bound<'_, PyAny>,
    taken: &Bound<'_, PyAny>,
    in_python: &mut Option<Waiting>,
) -> PyResult<()> {
    // Other greenlets run meanwhile, for which no exit waits.
    in_python.take();
    let release = taken.getattr(intern!(taken.py(), "release"))?;
    hub.call_method1(intern!(taken.py(), "ask"), (release,))
        .map(drop)
}

/// The end of a block whose release failed. An exception that is on its way already goes first, with
/// a note of the failure. A signal handler's goes before both.
pub(crate) fn after(
    py: Python<'_>,
    error: Option<&Bound<'_, PyAny>>,
    failure: PyErr,
) -> PyResult<()> {
    let Some(error) = error else {
        return Err(failure);
    };
    let base = py.import(intern!(py, "redlatch._base"))?;
    match base
        .call_method1(intern!(py, "noted"), (error, failure.value(py)))?
        .is_truthy()?
    {
        true => Ok(()),
        false => Err(failure),
    }
}
