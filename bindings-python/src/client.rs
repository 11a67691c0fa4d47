//! A client.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use redlatch::embed::{ClientBuilderExt, ClientExt, LockExt, OperationExt};
use redlatch::{Kind, Level};

use crate::counters::{Latch, PlainSemaphore};
use crate::kept::intern;
use crate::lock::Lock;
use crate::operation::{Queue, Tag, To, run};
use crate::task::Key;
use crate::values::{AS_UTF8, LOCK_KEYWORDS, each_option, invalid, raise, text};

/// The remedy for a URL that is none. Users of other locks give a client of redis-py.
fn url_remedy(given: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    Ok(
        match given.hasattr(intern!(given.py(), "execute_command"))? {
            true => "write Client.from_redis(client) for a client of redis-py",
            false => "give it as a str",
        },
    )
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

    /// `semaphore`: a lock of that kind; only those can have it.
    #[pyo3(signature = (name, options, semaphore=false))]
    fn lock(
        this: Bound<'_, Self>,
        name: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        semaphore: bool,
    ) -> PyResult<Lock> {
        let name = text(name, "name of the lock", AS_UTF8)?;
        let client = &this.get().0;
        let mut locks = match semaphore {
            true => client.semaphore_options(),
            false => client.lock_options(),
        };
        each_option(options, LOCK_KEYWORDS, |name, value| locks.set(name, value))?;
        let made = match semaphore {
            true => client
                .semaphore_with(name, locks)
                .map(|made| made.as_lock().clone()),
            false => client.lock_with(name, locks),
        };
        let core = made.map_err(|error| raise(options.py(), &error))?;
        if core.kind() == Kind::Semaphore && !semaphore {
            let text = "kind is \"semaphore\", which is no lock here; make it by client.semaphore(name, limit=5)";
            return Err(invalid(options.py(), text.to_owned()));
        }
        Ok(Lock {
            core,
            client: this.unbind(),
        })
    }

    /// The locks are of this client.
    fn multi_lock(this: Bound<'_, Self>, locks: Vec<PyRef<'_, Lock>>) -> PyResult<Lock> {
        let made = this
            .get()
            .0
            .multi_lock_of(locks.iter().map(|lock| &lock.core));
        Ok(Lock {
            core: made.map_err(|error| raise(this.py(), &error))?,
            client: this.unbind(),
        })
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

    #[pyo3(signature = (to=None))]
    fn connect(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.ready(), to)
    }

    #[pyo3(signature = (to=None))]
    fn close(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.0.close_naming(), to)
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
