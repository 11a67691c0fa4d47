//! A lock.

use pyo3::prelude::*;
use redlatch::embed::{AcquireOptionsExt, LockExt, SemaphoreExt};
use redlatch::{AcquireOptions, Kind, ReentryKey, Semaphore};

use crate::answer::{Answer, Level};
use crate::client::Client;
use crate::flow;
use crate::guard::{Guard, Hold};
use crate::operation::{Answered, Canceller, To};
use crate::task::{Key, What};
use crate::values::{AS_UTF8, count, duration, option, raise, text};

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
    /// A lock that this client made.
    pub(crate) fn of(
        client: &Bound<'_, Client>,
        made: redlatch::Result<redlatch::Lock>,
    ) -> PyResult<Self> {
        Ok(Lock {
            core: made.map_err(|error| raise(client.py(), &error))?,
            client: client.clone().unbind(),
        })
    }

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

    /// Whether several callers can hold it at a time.
    #[getter]
    fn shared(&self) -> bool {
        self.core.is_shared()
    }

    /// The names of a multi lock, in the order in which it waits for them.
    fn names(&self) -> Vec<&str> {
        self.core.parts().iter().map(|part| part.name()).collect()
    }

    /// `tied`: the level ends with the key's thread, task or greenlet, whoever has the guard.
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    /// `adopts`: takes over the lock that has the token.
    #[pyo3(signature = (key, wait, lease, token, tied, to, canceller=None, permits=None, adopts=false))]
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
    ) -> Answered {
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
        to.answer(self.core.acquire_with(options), canceller, Level::Guarded)
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
    ) -> Answered {
        let options = options(wait, lease, token, None)?
            .caller(flow::acquiring(py)?)
            .tied_to_key();
        let operation = self.core.acquire_with(options);
        To::thread(py).answer(operation, canceller, Level::Told)
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
        Answer::unsent(lock, this, what, Level::Told)
    }

    /// A task awaits this when a block of it begins: the guard of its level.
    fn entering(
        this: Bound<'_, Self>,
        lock: Bound<'_, PyAny>,
        wait: &Bound<'_, PyAny>,
    ) -> PyResult<Answer> {
        let none = this.py().None().into_bound(this.py());
        let what = What::Enter(options(wait, &none, &none, None));
        Answer::unsent(lock, this, what, Level::Guarded)
    }

    /// A task awaits this when the block ends.
    fn leaving(
        this: Bound<'_, Self>,
        lock: Bound<'_, PyAny>,
        guard: Py<Guard>,
    ) -> PyResult<Answer> {
        Answer::unsent(lock, this, What::Leave(guard), Level::Guarded)
    }

    /// A task awaits this to give back its newest level.
    fn releasing(this: Bound<'_, Self>, lock: Bound<'_, PyAny>) -> PyResult<Answer> {
        Answer::unsent(lock, this, What::Release, Level::Told)
    }

    fn release(&self, py: Python<'_>, key: Option<&Key>, to: To<'_>) -> Answered {
        to.run(self.core.release_by(self::key(py, key)?))
    }

    fn extend(&self, key: Option<&Key>, lease: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        let lease_time = duration("lease", lease)?;
        to.run(self.core.extend_by(self::key(lease.py(), key)?, lease_time))
    }

    fn release_token(&self, token: &Bound<'_, PyAny>, to: To<'_>) -> Answered {
        to.run(self.core.release_token(text(token, TOKEN, AS_UTF8)?))
    }

    fn extend_token(
        &self,
        token: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        to: To<'_>,
    ) -> Answered {
        let (lease, token) = (duration("lease", lease)?, text(token, TOKEN, AS_UTF8)?);
        to.run(self.core.extend_token(token, lease))
    }

    /// The holders without their processes.
    fn owners(&self, to: To<'_>) -> Answered {
        to.run(self.core.owners())
    }

    fn holders(&self, to: To<'_>) -> Answered {
        to.run(self.core.holders())
    }

    fn waiters(&self, to: To<'_>) -> Answered {
        to.run(self.core.waiters())
    }

    fn force_release(&self, to: To<'_>) -> Answered {
        to.run(self.core.force_release())
    }

    /// How many permits the semaphore has; after it was given `limit` permits, if that is asked for.
    fn permits(&self, limit: Option<&Bound<'_, PyAny>>, to: To<'_>) -> Answered {
        let semaphore = Semaphore::of_lock(self.core.clone());
        to.run(match limit {
            Some(limit) => semaphore.set_permits(count("limit", limit)?),
            None => semaphore.permits(),
        })
    }

    /// The hold that the key has on this name.
    fn hold(&self, py: Python<'_>, key: Option<&Key>) -> PyResult<Hold> {
        Ok(Hold(self.core.hold(self::key(py, key)?)))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.core)
    }
}
