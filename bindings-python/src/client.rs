//! A client.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use redlatch::embed::{ClientBuilderExt, ClientExt, LockExt, OperationExt};
use redlatch::{Kind, Level, LockOptions};

use crate::counters::{Latch, PlainSemaphore};
use crate::kept::intern;
use crate::lock::Lock;
use crate::operation::{Answered, Queue, Tag, To};
use crate::task::Key;
use crate::values::{AS_UTF8, LOCK_KEYWORDS, each_option, invalid, raise, shown, text};

/// The remedy for several names.
const SEVERAL: &str = "give it as a str, or call client.multi_lock(names)";

/// The remedy for a URL that is none. Users of other locks give a client of redis-py.
fn url_remedy(given: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    Ok(
        match given.hasattr(intern!(given.py(), "execute_command"))? {
            true => "write Client.from_redis(client) for a client of redis-py",
            false => "give it as a str",
        },
    )
}

const NAME: &str = "name of the lock";

/// These options over the defaults.
fn with(options: &Bound<'_, PyDict>, mut defaults: LockOptions) -> PyResult<LockOptions> {
    each_option(options, LOCK_KEYWORDS, |name, value| {
        defaults.set(name, value)
    })?;
    Ok(defaults)
}

fn refuse_kind(options: &Bound<'_, PyDict>, what: &str) -> PyResult<()> {
    let Some(kind) = options.get_item(intern!(options.py(), "kind"))? else {
        return Ok(());
    };
    let text = format!("kind is {}; leave it out: {what} has its own", shown(&kind));
    Err(invalid(options.py(), text))
}

/// A client of the core.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Client(redlatch::Client);

#[pymethods]
impl Client {
    #[new]
    fn new(url: Option<&Bound<'_, PyAny>>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut builder = match url {
            Some(url) => redlatch::Client::builder(text(url, "URL", url_remedy(url)?)?),
            None => redlatch::Client::builder_from_env(),
        }
        .language("python");
        each_option(options, &[], |name, value| builder.set(name, value))?;
        Ok(Client(
            builder
                .build()
                .map_err(|error| raise(options.py(), &error))?,
        ))
    }

    fn lock(
        this: Bound<'_, Self>,
        name: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Lock> {
        let several = name.is_instance_of::<PyList>() || name.is_instance_of::<PyTuple>();
        let remedy = if several { SEVERAL } else { AS_UTF8 };
        let (name, client) = (text(name, NAME, remedy)?, &this.get().0);
        let made = client.lock_with(name, with(options, client.lock_options())?);
        let made = Lock::of(&this, made)?;
        if made.core.kind() == Kind::Semaphore {
            let text = "kind is \"semaphore\", which is no lock here; make it by client.semaphore(name, limit=5)";
            return Err(invalid(options.py(), text.to_owned()));
        }
        Ok(made)
    }

    fn semaphore(
        this: Bound<'_, Self>,
        name: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Lock> {
        refuse_kind(options, "a semaphore")?;
        let (name, client) = (text(name, NAME, AS_UTF8)?, &this.get().0);
        let made = client.semaphore_with(name, with(options, client.semaphore_options())?);
        Lock::of(&this, made.map(|made| made.as_lock().clone()))
    }

    /// The sides to read and to write.
    fn rw_lock(
        this: Bound<'_, Self>,
        name: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<(Lock, Lock)> {
        refuse_kind(options, "a read-write lock")?;
        let (name, client) = (text(name, NAME, AS_UTF8)?, &this.get().0);
        let made = client.rw_lock_with(name, with(options, client.lock_options())?);
        let made = made.map_err(|error| raise(this.py(), &error))?;
        Ok((
            Lock::of(&this, Ok(made.read().clone()))?,
            Lock::of(&this, Ok(made.write().clone()))?,
        ))
    }

    /// The locks are of this client.
    fn multi_lock(this: Bound<'_, Self>, locks: Vec<PyRef<'_, Lock>>) -> PyResult<Lock> {
        let parts = locks.iter().map(|lock| &lock.core);
        Lock::of(&this, this.get().0.multi_lock_of(parts))
    }

    fn plain_semaphore(&self, name: &Bound<'_, PyAny>) -> PyResult<PlainSemaphore> {
        let made = self
            .0
            .plain_semaphore(text(name, "name of the semaphore", AS_UTF8)?);
        made.map(PlainSemaphore)
            .map_err(|error| raise(name.py(), &error))
    }

    fn latch(&self, name: &Bound<'_, PyAny>) -> PyResult<Latch> {
        let made = self.0.latch(text(name, "name of the latch", AS_UTF8)?);
        made.map(Latch).map_err(|error| raise(name.py(), &error))
    }

    fn connect(&self, to: To<'_>) -> Answered {
        to.run(self.0.ready())
    }

    fn close(&self, to: To<'_>) -> Answered {
        to.run(self.0.close_naming())
    }

    /// Closes as the interpreter exits. The tag goes into the queue when closing is done.
    fn close_at_exit(&self, queue: &Queue, tag: u64) {
        self.0
            .close_at_exit()
            .deliver_to(&queue.queue, Tag::Told(tag));
    }

    /// Reports that the task with this key has ended.
    pub(crate) fn key_ended(&self, key: &Key) {
        key.end();
        self.0.key_ended(key.key);
    }

    /// Reports that the task with this key will never run again.
    fn key_gone(&self, key: &Key) {
        key.end();
        self.0.key_gone(key.key);
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = PyDict::new(py);
        for (name, value) in self.0.stats().entries() {
            stats.set_item(name, value)?;
        }
        Ok(stats.into_any().unbind())
    }

    /// Starts the engine, and wakes `queue` whenever events wait to be taken.
    fn wake_on_events(&self, py: Python<'_>, queue: &Queue) -> PyResult<()> {
        let queue = queue.queue.clone();
        self.0
            .on_events(move || queue.wake())
            .map_err(|error| raise(py, &error))
    }

    /// Takes the events, as tuples of kind, level (`debug`, `info` or `warning`), lock name and
    /// text.
    fn events(&self) -> Vec<(&'static str, &'static str, Option<String>, String)> {
        let row = |event: redlatch::Event| {
            let level = match event.level {
                Level::Debug => "debug",
                Level::Info => "info",
                _ => "warning",
            };
            (
                event.kind,
                level,
                event.lock.map(|name| name.to_string()),
                event.text,
            )
        };
        self.0.events().into_iter().map(row).collect()
    }

    #[getter]
    fn forked(&self) -> bool {
        self.0.is_forked()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
