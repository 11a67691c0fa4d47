//! Tasks of asyncio as owners of locks, and what they ask for: nothing is sent before it is
//! awaited.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyWeakrefMethods, PyWeakrefReference};
use redlatch::embed::{AcquireOptionsExt, Caller, OperationExt, ReentryKeyExt, Submitted};
use redlatch::{AcquireOptions, Operation};

use crate::answer::Answer;
use crate::client::Client;
use crate::guard::Guard;
use crate::kept::{Kept, intern};
use crate::lock::Lock;
use crate::operation::{Queue, Tag};

/// The re-entry key of a task.
#[pyclass(frozen, subclass, module = "redlatch._redlatch")]
pub(crate) struct Key {
    pub(crate) key: redlatch::ReentryKey,
    prepared: Mutex<Option<Prepared>>,
    /// The task has ended, and its clients were told.
    ended: AtomicBool,
}

/// For the requests of a task with this client nothing has to be prepared any more, while the queue
/// of its loop is there.
struct Prepared {
    client: Py<Client>,
    queue: Py<PyWeakrefReference>,
}

impl Key {
    /// Never held while anything of Python's is called or dropped.
    fn prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of the task's loop, if this client was prepared last.
    fn queue<'py>(
        &self,
        py: Python<'py>,
        client: &Py<Client>,
    ) -> PyResult<Option<Bound<'py, Queue>>> {
        let known = self
            .prepared()
            .as_ref()
            .filter(|known| known.client.is(client))
            .map(|known| known.queue.clone_ref(py));
        known.map_or(Ok(None), |queue| queue.bind(py).upgrade_as::<Queue>())
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// The key that a task has already.
    fn of<'py>(task: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Key>>> {
        static ALL: Kept<Py<PyDict>> = Kept::new();
        let py = task.py();
        let all = ALL.get_or_try_init(py, || {
            let keys = py
                .import(intern!(py, "redlatch._tasks"))?
                .getattr(intern!(py, "Keys"))?;
            Ok::<_, PyErr>(
                keys.getattr(intern!(py, "_of"))?
                    .cast_into::<PyDict>()?
                    .unbind(),
            )
        })?;
        let key = all.bind(py).get_item(task.as_ptr() as usize)?;
        key.map(|key| key.cast_into::<Key>().map_err(PyErr::from))
            .transpose()
    }
}

impl From<redlatch::ReentryKey> for Key {
    fn from(key: redlatch::ReentryKey) -> Self {
        Key {
            key,
            prepared: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }
}

#[pymethods]
impl Key {
    #[new]
    #[pyo3(signature = (_task=None))]
    fn new(_task: Option<&Bound<'_, PyAny>>) -> Self {
        Key::from(redlatch::ReentryKey::new_task())
    }

    /// The client is started, knows when the task ends, and this is the queue of the task's loop.
    fn prepared_for(&self, client: Py<Client>, queue: &Bound<'_, Queue>) -> PyResult<()> {
        let queue = PyWeakrefReference::new(queue.as_any())?.unbind();
        let before = self.prepared().replace(Prepared { client, queue });
        drop(before);
        Ok(())
    }

    /// A key of its own, which ends with the thread or greenlet that calls.
    #[staticmethod]
    fn of_caller(py: Python<'_>) -> PyResult<Self> {
        Ok(Key::from(crate::flow::new_key(
            py,
            crate::flow::greenlet(py)?.as_ref(),
        )?))
    }

    /// A key for a greenlet: the keys of its flows end with it.
    #[staticmethod]
    fn of_greenlet() -> Self {
        Key::from(redlatch::ReentryKey::new_thread())
    }

    /// Whether the task has ended, and its clients were told.
    #[getter]
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(prepared) = self.prepared.try_lock() else {
            return Ok(());
        };
        prepared.as_ref().map_or(Ok(()), |known| {
            visit
                .call(&known.client)
                .and_then(|()| visit.call(&known.queue))
        })
    }
}

/// The thing that a task asks for.
pub(crate) enum What {
    /// With wrong options the error, which is raised when the task awaits it.
    Acquire(PyResult<AcquireOptions>),
    /// Acquires for a block, whose guard answers for the level.
    Enter(PyResult<AcquireOptions>),
    Release,
    /// The level of the guard, when the block ends.
    Leave(Py<Guard>),
}

/// A request that was not sent yet.
pub(crate) struct Unsent {
    /// The lock of `redlatch.aio`.
    lock: Py<PyAny>,
    core: Py<Lock>,
    /// The task that made it. If no task ran then, it is for the one that awaits it.
    task: Option<Py<PyAny>>,
    what: What,
}

impl Unsent {
    pub(crate) fn new(lock: Bound<'_, PyAny>, core: Py<Lock>, what: What) -> PyResult<Unsent> {
        let task = current_task(lock.py())?.map(Bound::unbind);
        Ok(Unsent {
            lock: lock.unbind(),
            core,
            task,
            what,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.what {
            What::Acquire(_) | What::Enter(_) => "Lock.acquire",
            What::Release | What::Leave(_) => "Lock.release",
        }
    }

    /// Sends it for `this`: the queue through which the answer comes, and its ticket or the answer.
    pub(crate) fn send<'py>(
        self,
        this: &Bound<'py, Answer>,
    ) -> PyResult<(Bound<'py, Queue>, Owner, Submitted)> {
        let (py, core) = (this.py(), self.core.get());
        let known = match &self.task {
            Some(task) => Key::of(task.bind(py))?,
            None => None,
        };
        let queue = known
            .as_ref()
            .map_or(Ok(None), |key| key.get().queue(py, &core.client))?;
        let (key, queue) = match (known, queue) {
            (Some(key), Some(queue)) => (key, queue),
            _ => self.prepare(py)?,
        };
        let (owner, key) = (key.get().key, key.unbind());
        let delivered = match self.what {
            What::Acquire(options) => {
                let options = options?.caller(owner).tied_to_key();
                send(core.core.acquire_with(options), &queue, this)
            }
            What::Enter(options) => {
                let options = options?.caller(core.key_for(owner));
                send(core.core.acquire_with(options), &queue, this)
            }
            What::Leave(guard) => send(guard.get().take(py)?.release(), &queue, this),
            What::Release => send(core.core.release_by(owner), &queue, this),
        };
        let lock = self.core;
        Ok((queue, Owner { key, lock }, delivered))
    }

    /// A task that does nothing but acquire ends with the lock held: refused. One that was made
    /// within a task is that task's.
    pub(crate) fn refuse_as_whole_task(&self, this: &Bound<'_, Answer>) -> PyResult<()> {
        let py = this.py();
        if self.task.is_some() || !matches!(self.what, What::Acquire(_)) {
            return Ok(());
        }
        let Some(task) = current_task(py)? else {
            return Ok(());
        };
        if !task.call_method0(intern!(py, "get_coro"))?.is(this) {
            return Ok(());
        }
        let error = py
            .import(intern!(py, "redlatch._tasks"))?
            .getattr(intern!(py, "only_acquires"))?;
        Err(PyErr::from_value(
            error.call1((self.core.get().core.name(),))?,
        ))
    }

    #[cold]
    fn prepare<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, Key>, Bound<'py, Queue>)> {
        let (key, queue) = self
            .lock
            .bind(py)
            .call_method1(intern!(py, "_prepare"), (&self.task,))?
            .extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()?;
        Ok((key.cast_into::<Key>()?, queue.cast_into::<Queue>()?))
    }

    pub(crate) fn references(&self) -> [Option<&Py<PyAny>>; 2] {
        [Some(&self.lock), self.task.as_ref()]
    }
}

fn send<T>(
    operation: Operation<T>,
    queue: &Bound<'_, Queue>,
    answer: &Bound<'_, Answer>,
) -> Submitted {
    let tag = |_| Tag::Task(answer.clone().unbind());
    operation.deliver_soon(&queue.get().queue, Caller::INTERPRETER, tag)
}

/// The owner of a request that was sent.
pub(crate) struct Owner {
    key: Py<Key>,
    lock: Py<Lock>,
}

impl Owner {
    /// A level that a task gets when it has ended is nobody's: its clients were told before they
    /// had granted it.
    pub(crate) fn granted(&self) {
        let key = self.key.get();
        if key.ended() {
            self.lock.get().client.get().key_ended(key);
        }
    }
}

/// The task that runs now, if one does.
pub(crate) fn current_task(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let asyncio = Asyncio::of(py)?;
    let event_loop = asyncio.running_loop.bind(py).call0()?;
    if event_loop.is_none() {
        return Ok(None);
    }
    match &asyncio.tasks {
        Some(tasks) => tasks.bind(py).get_item(event_loop),
        None => Ok(Some(asyncio.current_task.bind(py).call1((event_loop,))?)
            .filter(|task| !task.is_none())),
    }
}

struct Asyncio {
    running_loop: Py<PyAny>,
    current_task: Py<PyAny>,
    /// The tasks that run, by their loops: until Python 3.11 `current_task` is not in C, and looks
    /// here.
    tasks: Option<Py<PyDict>>,
}

impl Asyncio {
    fn of(py: Python<'_>) -> PyResult<&Self> {
        static ASYNCIO: Kept<Asyncio> = Kept::new();
        ASYNCIO.get_or_try_init(py, || Asyncio::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let asyncio = py.import(intern!(py, "asyncio"))?;
        let tasks = asyncio.getattr(intern!(py, "tasks"))?;
        let tasks = tasks.getattr(intern!(py, "_current_tasks")).ok();
        let tasks = tasks
            .filter(|_| py.version_info() < (3, 12))
            .and_then(|tasks| tasks.cast_into::<PyDict>().ok());
        Ok(Asyncio {
            running_loop: asyncio.getattr(intern!(py, "_get_running_loop"))?.unbind(),
            current_task: asyncio.getattr(intern!(py, "current_task"))?.unbind(),
            tasks: tasks.map(Bound::unbind),
        })
    }
}

/// A request that nobody awaited is a mistake, and told as Python tells it.
pub(crate) fn warn_unawaited(name: &str) {
    let _ = Python::try_attach(|py| {
        let raised = PyErr::take(py);
        let text = std::ffi::CString::new(format!("coroutine '{name}' was never awaited"))
            .unwrap_or_default();
        let category = py.get_type::<pyo3::exceptions::PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &text, 1) {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}

/// As Python says it of a coroutine.
pub(crate) fn awaited_before() -> PyErr {
    PyRuntimeError::new_err("cannot reuse already awaited coroutine")
}

/// As Python says it of a coroutine.
pub(crate) fn awaited_now() -> PyErr {
    PyRuntimeError::new_err("coroutine is being awaited already")
}
