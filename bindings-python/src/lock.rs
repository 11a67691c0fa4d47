//! A lock.

use pyo3::prelude::*;
use redlatch::embed::{AcquireOptionsExt, LockExt, SemaphoreExt};
use redlatch::{AcquireOptions, Kind, ReentryKey, Semaphore};

use crate::answer::{Answer, Level};
use crate::client::Client;
use crate::flow;
use crate::guard::{Guard, Hold};
use crate::operation::{Canceller, To, answer_of, run, told};
use crate::task::{Key, Unsent, What};
use crate::values::{AS_UTF8, IntoValue, count, duration, option, text};

/// The given key, or that of the flow that runs now.
fn key(py: Python<'_>, key: Option<&Key>) -> PyResult<redlatch::ReentryKey> {
    key.map_or_else(|| flow::current(py), |key| Ok(key.key))
}

fn options(
    wait: &Bound<'_, PyAny>,
    lease: &Bound<'_, PyAny>,
    token: &Bound<'_, PyAny>,
    permits: Option<&Bound<'_, PyAny>>,
) -> PyResult<AcquireOptions> {
    let mut options = AcquireOptions::new();
    let given = [("wait", wait), ("lease", lease), ("token", token)];
    for (name, value) in given
        .into_iter()
        .chain(permits.map(|permits| ("permits", permits)))
    {
        if !value.is_none() {
            option(name, value, &mut |name, value| options.set(name, value))?;
        }
    }
    Ok(options)
}

fn adoption(lease: &Bound<'_, PyAny>, token: &Bound<'_, PyAny>) -> PyResult<AcquireOptions> {
    let none = token.py().None().into_bound(token.py());
    Ok(options(&none, lease, &none, None)?.adopting(text(token, TOKEN, AS_UTF8)?))
}

const TOKEN: &str = "token of the lock";

/// A lock of the core.
#[pyclass(frozen, module = "redlatch._redlatch")]
pub(crate) struct Lock {
    pub(crate) core: redlatch::Lock,
    pub(crate) client: Py<Client>,
}

impl Lock {
    /// The key of an acquisition by this caller. Permits of a semaphore belong to nobody: whoever has
    /// the guard gives them back.
    pub(crate) fn key_for(&self, caller: ReentryKey) -> ReentryKey {
        match self.core.kind() {
            Kind::Semaphore => ReentryKey::Once,
            _ => caller,
        }
    }
}

#[pymethods]
impl Lock {
    #[getter]
    fn name(&self) -> &str {
        self.core.name()
    }

    /// The names of a multi lock, in the order in which it waits for them.
    fn names(&self) -> Vec<&str> {
        self.core.parts().iter().map(|part| part.name()).collect()
    }

    /// `tied`: the level ends with the key's thread, task or greenlet, whoever has the guard.
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    /// `adopts`: takes over the lock that has the token.
    #[pyo3(signature = (key, wait, lease, token, tied, to=None, canceller=None, permits=None, adopts=false))]
    fn acquire(
        &self,
        py: Python<'_>,
        key: Option<&Key>,
        wait: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
        tied: bool,
        to: To<'_>,
        canceller: Option<&Canceller>,
        permits: Option<&Bound<'_, PyAny>>,
        adopts: bool,
    ) -> PyResult<Py<PyAny>> {
        let caller = match key {
            None if tied => flow::acquiring(py)?,
            key => self::key(py, key)?,
        };
        let mut options = match adopts {
            true => adoption(lease, token)?,
            false => options(wait, lease, token, permits)?,
        }
        .caller(self.key_for(caller));
        if tied {
            options = options.tied_to_key();
        }
        match to {
            None => answer_of(py, self.core.acquire_with(options), canceller)?.into_value(py),
            to => run(py, self.core.acquire_with(options), to),
        }
    }

    /// Acquires for the calling thread, which then answers for the level itself; false when the
    /// time is over.
    #[pyo3(signature = (wait, lease, token, canceller=None))]
    fn acquire_here(
        &self,
        py: Python<'_>,
        wait: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
        canceller: Option<&Canceller>,
    ) -> PyResult<bool> {
        let options = options(wait, lease, token, None)?
            .caller(flow::acquiring(py)?)
            .tied_to_key();
        let operation = self.core.acquire_with(options);
        told(py, operation, canceller, |guard| drop(guard.detach()))
    }

    /// A task awaits this to acquire, for itself: true, or false when the time is over. `lock`:
    /// that of `redlatch.aio`.
    fn acquiring(
        this: Bound<'_, Self>,
        lock: Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
    ) -> PyResult<Answer> {
        let what = What::Acquire(options(wait, lease, token, None));
        Ok(Answer::unsent(
            Unsent::new(lock, this.unbind(), what)?,
            Level::Told,
        ))
    }

    /// A task awaits this when a block of it begins: the guard of its level.
    fn entering(
        this: Bound<'_, Self>,
        lock: Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
    ) -> PyResult<Answer> {
        let none = this.py().None().into_bound(this.py());
        let what = What::Enter(options(wait, &none, &none, None));
        Ok(Answer::unsent(
            Unsent::new(lock, this.unbind(), what)?,
            Level::Guarded,
        ))
    }

    /// A task awaits this when the block ends.
    fn leaving(
        this: Bound<'_, Self>,
        lock: Bound<'_, PyAny>,
        guard: Py<Guard>,
    ) -> PyResult<Answer> {
        Ok(Answer::unsent(
            Unsent::new(lock, this.unbind(), What::Leave(guard))?,
            Level::Guarded,
        ))
    }

    /// A task awaits this to give back its newest level.
    fn releasing(this: Bound<'_, Self>, lock: Bound<'_, PyAny>) -> PyResult<Answer> {
        Ok(Answer::unsent(
            Unsent::new(lock, this.unbind(), What::Release)?,
            Level::Told,
        ))
    }

    #[pyo3(signature = (key, to=None))]
    fn release(&self, py: Python<'_>, key: Option<&Key>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.core.release_by(self::key(py, key)?), to)
    }

    #[pyo3(signature = (key, lease, to=None))]
    fn extend(
        &self,
        py: Python<'_>,
        key: Option<&Key>,
        lease: &Bound<'_, PyAny>,
        to: To<'_>,
    ) -> PyResult<Py<PyAny>> {
        let lease = duration("lease", lease)?;
        run(py, self.core.extend_by(self::key(py, key)?, lease), to)
    }

    #[pyo3(signature = (token, to=None))]
    fn release_token(
        &self,
        py: Python<'_>,
        token: &Bound<'_, PyAny>,
        to: To<'_>,
    ) -> PyResult<Py<PyAny>> {
        run(
            py,
            self.core.release_token(text(token, TOKEN, AS_UTF8)?),
            to,
        )
    }

    #[pyo3(signature = (token, lease, to=None))]
    fn extend_token(
        &self,
        py: Python<'_>,
        token: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        to: To<'_>,
    ) -> PyResult<Py<PyAny>> {
        let lease = duration("lease", lease)?;
        run(
            py,
            self.core.extend_token(text(token, TOKEN, AS_UTF8)?, lease),
            to,
        )
    }

    /// The holders without their processes.
    #[pyo3(signature = (to=None))]
    fn owners(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.core.owners(), to)
    }

    #[pyo3(signature = (to=None))]
    fn holders(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.core.holders(), to)
    }

    #[pyo3(signature = (to=None))]
    fn waiters(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.core.waiters(), to)
    }

    #[pyo3(signature = (to=None))]
    fn force_release(&self, py: Python<'_>, to: To<'_>) -> PyResult<Py<PyAny>> {
        run(py, self.core.force_release(), to)
    }

    /// How many permits the semaphore has; after it was given `limit` permits, if that is asked for.
    #[pyo3(signature = (limit=None, to=None))]
    fn permits(
        &self,
        py: Python<'_>,
        limit: Option<&Bound<'_, PyAny>>,
        to: To<'_>,
    ) -> PyResult<Py<PyAny>> {
        let semaphore = Semaphore::of_lock(self.core.clone());
        let operation = match limit {
            Some(limit) => semaphore.set_permits(count("limit", limit)?),
            None => semaphore.permits(),
        };
        run(py, operation, to)
    }

    /// The hold that the key has on this name.
    fn hold(&self, py: Python<'_>, key: Option<&Key>) -> PyResult<Hold> {
        Ok(Hold(self.core.hold(self::key(py, key)?)))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.core)
    }
}
