//! The owner of a call on a thread: the flow that makes it.
//!
//! A flow is one line of execution: what a thread, a task or a greenlet does in one context. Its
//! key lies in a context variable, so a copy of the context carries it along. It is valid only
//! where it was made, because a copy of a context also goes to other threads and tasks.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyWeakrefMethods, PyWeakrefReference};
use redlatch::ReentryKey;
use redlatch::embed::ReentryKeyExt;

use crate::exit;
use crate::kept::{Kept, intern};
use crate::task::{self, current_task};

/// The flows that a context knows, the newest last.
///
/// Several flows may run in one context in turn: tasks that were given the same one, a greenlet
/// that was given that of its driver, or threads. Each finds its own key here.
#[pyclass(frozen, module = "redlatch._redlatch")]
struct Flows(Vec<Arc<Flow>>);

/// The key of a flow, and where it was made.
struct Flow {
    key: ReentryKey,
    thread: Weak<()>,
    /// The tasks and the greenlet, if the thread runs several things in turn.
    within: [Option<Py<PyWeakrefReference>>; 3],
    /// It acquired what ends with it.
    acquired: AtomicBool,
}

impl Flow {
    fn is_here(&self, py: Python<'_>, thread: *const (), within: &Within<'_>) -> bool {
        let same =
            |(made, now): (&Option<Py<PyWeakrefReference>>, &Option<Bound<'_, PyAny>>)| match (
                made, now,
            ) {
                (None, None) => true,
                (Some(made), Some(now)) => made.bind(py).upgrade().is_some_and(|made| made.is(now)),
                _ => false,
            };
        self.thread.as_ptr() == thread && self.within.iter().zip(within).all(same)
    }

    /// Whether its thread, and its task or greenlet, are still there.
    fn is_alive(&self, py: Python<'_>) -> bool {
        let mut within = self.within.iter().flatten();
        self.thread.strong_count() > 0 && within.all(|made| made.bind(py).upgrade().is_some())
    }

    /// Nobody can act for this flow any more: the clients are told, as at the end of a thread.
    fn end(&self) {
        if !self.acquired.swap(false, Ordering::Relaxed) || exit::has_begun() {
            return;
        }
        Python::try_attach(|py| {
            let raised = PyErr::take(py);
            let key = task::Key::from(self.key);
            let told = green(py).and_then(|green| green.call_method1(intern!(py, "_end"), (key,)));
            if let Err(error) = told {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

impl Drop for Flow {
    /// The last copy of its context is gone, so no call can be of this flow.
    fn drop(&mut self) {
        self.end();
    }
}

/// A task calls this when it is done. Somebody may keep the task, and with it the context.
#[pyclass(frozen, module = "redlatch._redlatch")]
struct FlowEnd(Weak<Flow>);

#[pymethods]
impl FlowEnd {
    fn __call__(&self, _task: &Bound<'_, PyAny>) {
        if let Some(flow) = self.0.upgrade() {
            flow.end();
        }
    }
}

thread_local! {
    /// Stands for the thread, and ends with it.
    static THREAD: Arc<()> = Arc::default();
}

type Within<'py> = [Option<Bound<'py, PyAny>>; 3];

/// Makes what `current` needs, when the module is imported: the last finalizers of an interpreter
/// cannot import anything.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    variable(py).and(modules(py)).map(drop)
}

fn modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    static MODULES: Kept<Py<PyDict>> = Kept::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py
            .import(intern!(py, "sys"))?
            .getattr(intern!(py, "modules"))?;
        Ok::<_, PyErr>(modules.cast_into::<PyDict>()?.unbind())
    })?;
    Ok(modules.bind(py))
}

/// The methods of the context variable. They are kept, because looking them up costs as much as
/// calling them.
struct Variable {
    get: Py<PyAny>,
    set: Py<PyAny>,
}

fn variable(py: Python<'_>) -> PyResult<&Variable> {
    static VARIABLE: Kept<Variable> = Kept::new();
    VARIABLE.get_or_try_init(py, || {
        let class = py
            .import(intern!(py, "contextvars"))?
            .getattr(intern!(py, "ContextVar"))?;
        let with = PyDict::new(py);
        with.set_item(intern!(py, "default"), py.None())?;
        let variable = class.call(("redlatch_flow",), Some(&with))?;
        let method = |name| Ok::<_, PyErr>(variable.getattr(name)?.unbind());
        Ok(Variable {
            get: method(intern!(py, "get"))?,
            set: method(intern!(py, "set"))?,
        })
    })
}

/// The key of the flow that runs now.
pub(crate) fn current(py: Python<'_>) -> PyResult<ReentryKey> {
    Ok(here(py)?.key)
}

/// The key of the flow that runs now, which acquires without a guard: the level ends with the flow.
pub(crate) fn acquiring(py: Python<'_>) -> PyResult<ReentryKey> {
    let flow = here(py)?;
    if !flow.acquired.swap(true, Ordering::Relaxed)
        && let Some(task) = running_task(py)?
    {
        let end = FlowEnd(Arc::downgrade(&flow));
        task.call_method1(intern!(py, "add_done_callback"), (end,))?;
    }
    Ok(flow.key)
}

/// The flow that runs now. This is the one place that decides what a flow is.
fn here(py: Python<'_>) -> PyResult<Arc<Flow>> {
    let variable = variable(py)?;
    // When the data of a thread is being destroyed, each call of it is a flow of its own.
    let thread = THREAD.try_with(Arc::as_ptr).unwrap_or(ptr::null());
    let within: Within<'_> = [running_task(py)?, trio_task(py)?, greenlet(py)?];
    let known = variable.get.bind(py).call0()?;
    let known = known
        .cast_exact::<Flows>()
        .map_or(&[][..], |flows| &flows.get().0);
    if let Some(flow) = known
        .iter()
        .rev()
        .find(|flow| flow.is_here(py, thread, &within))
    {
        return Ok(flow.clone());
    }
    let key = new_key(py, within[2].as_ref())?;
    let mut made = [None, None, None];
    for (made, now) in made.iter_mut().zip(&within) {
        *made = now
            .as_ref()
            .map(PyWeakrefReference::new)
            .transpose()?
            .map(Bound::unbind);
    }
    // Flows that have ended are removed. Otherwise they would add up.
    let others = known.iter().filter(|flow| flow.is_alive(py)).cloned();
    let flow = Arc::new(Flow {
        key,
        thread: THREAD.try_with(Arc::downgrade).unwrap_or_default(),
        within: made,
        acquired: AtomicBool::new(false),
    });
    let flows = others.chain([flow.clone()]).collect();
    variable.set.bind(py).call1((Flows(flows),))?;
    Ok(flow)
}

/// A key of its own, which ends with the greenlet that runs now, or with the thread.
pub(crate) fn new_key(py: Python<'_>, greenlet: Option<&Bound<'_, PyAny>>) -> PyResult<ReentryKey> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let Some(greenlet) = greenlet else {
        return Ok(ReentryKey::new_flow());
    };
    let of_greenlet = green(py)?.call_method1(intern!(py, "key_of"), (greenlet,))?;
    match of_greenlet.cast_exact::<task::Key>()?.get().key {
        ReentryKey::Thread(thread) => Ok(ReentryKey::Flow {
            thread,
            nth: LAST.fetch_add(1, Ordering::Relaxed),
        }),
        key => Ok(key),
    }
}

/// The module that waits in the hubs of gevent and eventlet.
fn green(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static GREEN: Kept<Py<PyModule>> = Kept::new();
    let green = GREEN.get_or_try_init(py, || {
        py.import(intern!(py, "redlatch._green")).map(Bound::unbind)
    })?;
    Ok(green.bind(py))
}

/// The hub that the calling greenlet waits in. None if the thread itself waits.
pub(crate) fn hub(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    if !modules(py)?.contains(intern!(py, "greenlet"))? {
        return Ok(None);
    }
    let hub = green(py)?.call_method0(intern!(py, "hub_here"))?;
    Ok(Some(hub).filter(|hub| !hub.is_none()))
}

// Each looks whether the program has imported the module. One that it has not imported cannot run
// anything.

fn running_task(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    match modules(py)?.contains(intern!(py, "asyncio"))? {
        true => current_task(py),
        false => Ok(None),
    }
}

/// Whether the calling thread runs an event loop of asyncio, whose tasks stand still while it waits.
pub(crate) fn event_loop_runs(py: Python<'_>) -> PyResult<bool> {
    match modules(py)?.get_item(intern!(py, "asyncio.events"))? {
        Some(events) => Ok(!events
            .call_method0(intern!(py, "_get_running_loop"))?
            .is_none()),
        None => Ok(false),
    }
}

fn trio_task(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(trio) = modules(py)?.get_item(intern!(py, "trio"))? else {
        return Ok(None);
    };
    let lowlevel = trio.getattr(intern!(py, "lowlevel"));
    // Raises outside of a task.
    Ok(lowlevel
        .and_then(|lowlevel| lowlevel.call_method0(intern!(py, "current_task")))
        .ok())
}

/// The greenlet that runs now. The main one of a thread stands for the thread itself, which is one
/// flow whether greenlet is imported before or after its first call.
pub(crate) fn greenlet(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(module) = modules(py)?.get_item(intern!(py, "greenlet"))? else {
        return Ok(None);
    };
    let Ok(current) = module.call_method0(intern!(py, "getcurrent")) else {
        return Ok(None);
    };
    Ok(current
        .getattr(intern!(py, "parent"))
        .is_ok_and(|parent| !parent.is_none())
        .then_some(current))
}
