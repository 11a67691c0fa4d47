//! A name on a client, and the local view of a hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{ClientInner, Running};
use crate::clock;
use crate::engine::{Request, Target};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::guard::{Guard, guard, unexpected, unit};
use crate::hold::{HoldCell, Watcher};
use crate::operation::Operation;
use crate::options::{AcquireOptions, LockOptions, check_lease};
use crate::owner::Key;
use crate::queue::{Outcome, Queue};
use crate::wire::{Form, Holder, Name, names};

/// A lock: a name on a client, with options. Cheap to make and to clone; making it does no I/O.
///
/// Every acquisition is an owner of its own unless it is made with a [`Key`]: two tasks that call
/// [`acquire`](Lock::acquire) exclude each other even on one `Lock`.
#[derive(Clone)]
pub struct Lock {
    client: Arc<ClientInner>,
    name: Name,
    options: Arc<LockOptions>,
}

impl Lock {
    pub(crate) fn new(client: Arc<ClientInner>, name: Name, options: Arc<LockOptions>) -> Self {
        Lock { client, name: options.kind.key(name), options }
    }

    /// The lock of another name, with the same options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    pub fn named(&self, name: &str) -> Result<Lock> {
        Ok(Lock::new(self.client.clone(), names::name(name)?, self.options.clone()))
    }

    /// The name, as it stands in Redis: some kinds put a word before the name that was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options that it was made with.
    pub fn options(&self) -> &LockOptions {
        &self.options
    }

    /// Waits for the lock and holds it.
    ///
    /// # Errors
    /// `foreign_kind` when something else lies at the name, `unavailable` when the server cannot be
    /// reached for longer than the option `outage`, `auth`, `denied`, `closed`, `forked`.
    ///
    /// # Cancel safety
    /// Dropping the operation leaves the queue; a lock that was won meanwhile is released.
    pub fn acquire(&self) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new())
    }

    /// Takes the lock if it is free, without waiting for whoever holds it.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire). A lock that is held is no error but `None`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    pub fn try_acquire(&self) -> Operation<Option<Guard>> {
        self.acquire_as(AcquireOptions::new().wait(Duration::ZERO), |outcome| match outcome {
            Outcome::Failed(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            other => guard(other).map(Some),
        })
    }

    /// Waits for the lock at most this long.
    ///
    /// # Errors
    /// `timeout` when the time is over, else as [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    pub fn acquire_timeout(&self, wait: Duration) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new().wait(wait))
    }

    /// Waits for the lock with a wait, a lease or a re-entry key of its own.
    ///
    /// # Errors
    /// `timeout` when the wait is over, `lost` when the key's hold was lost and is not unwound,
    /// `invalid_argument` for options out of bounds, else as [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    pub fn acquire_with(&self, options: AcquireOptions) -> Operation<Guard> {
        self.acquire_as(options, guard)
    }

    fn acquire_as<T>(
        &self,
        options: AcquireOptions,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        if let Err(error) = options.validate_for(self.options.kind) {
            return Operation::failed(error.on(&self.name));
        }
        let request = Request::Acquire {
            name: self.name.clone(),
            key: options.key,
            wait: options.wait,
            terms: self.options.terms(&options),
            token: options.token,
        };
        let span = tracing::debug_span!(target: "redlatch", "acquire", lock = &*self.name);
        self.ask(request, finish).in_span(span)
    }

    /// Gives back the newest level that `key` holds.
    ///
    /// # Errors
    /// `not_owner` when the key does not hold the lock, `lost` when it had been lost, `unavailable`
    /// when the server did not confirm, `closed`. In a forked child nothing happens, without an error.
    ///
    /// # Cancel safety
    /// A release that was sent goes on.
    pub fn release_by(&self, key: Key) -> Operation<()> {
        self.ask(Request::Release(self.target(key)), unit)
    }

    /// Makes the lock that `key` holds live at least `lease` from now.
    ///
    /// # Errors
    /// `not_owner`, `lost`, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent goes on.
    pub fn extend_by(&self, key: Key, lease: Duration) -> Operation<()> {
        match check_lease(lease) {
            Ok(()) => self.ask(Request::Extend { target: self.target(key), lease }, unit),
            Err(error) => Operation::failed(error.on(&self.name)),
        }
    }

    fn inspection(&self) -> Request {
        Request::Inspect { name: self.name.clone(), kind: self.options.kind }
    }

    /// Frees the lock if `token` is its value, in whatever process it was acquired: for work that is
    /// passed on with its lock. Simple kinds only.
    ///
    /// Choose the token when you acquire ([`AcquireOptions::token`]): a value that the client chose itself may stand
    /// for several of its callers, one after the other.
    ///
    /// # Errors
    /// `not_owner` when the lock is free or has another value, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// A release that was sent may or may not happen.
    pub fn release_token(&self, token: &str) -> Operation<()> {
        match self.form(token) {
            Ok(form) => self.ask(Request::ReleaseToken { name: self.name.clone(), form }, unit),
            Err(error) => Operation::failed(error.on(&self.name)),
        }
    }

    /// Makes the lock live at least `lease` from now if `token` is its value, in whatever process it was
    /// acquired. Simple kinds only.
    ///
    /// # Errors
    /// `not_owner` when the lock is free or has another value, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent may or may not happen.
    pub fn extend_token(&self, token: &str, lease: Duration) -> Operation<()> {
        let form = check_lease(lease).and_then(|()| self.form(token));
        match form {
            Ok(form) => self.ask(Request::ExtendToken { name: self.name.clone(), form, lease }, unit),
            Err(error) => Operation::failed(error.on(&self.name)),
        }
    }

    /// How a hold with this token stands in Redis.
    fn form(&self, token: &str) -> Result<Form> {
        AcquireOptions::new().token(token).validate_for(self.options.kind)?;
        Ok(Form { kind: self.options.kind, token: Some(token.into()) })
    }

    fn target(&self, key: Key) -> Target {
        Target::Key { name: self.name.clone(), key }
    }

    /// The local view of the hold that `key` has on this name. No I/O.
    pub fn hold(&self, key: Key) -> Hold {
        let view = self.client.started().and_then(|running| {
            let cell = running.cell(&self.name, key)?;
            Some((cell, running))
        });
        Hold { name: Some(self.name.clone()), view }
    }

    /// Whether anybody holds the lock, as Redis sees it now.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable` and the like.
    pub fn is_locked(&self) -> Operation<bool> {
        self.ask(self.inspection(), |outcome| holder(outcome).map(|holder| holder.is_some()))
    }

    /// Who holds the lock, as Redis sees it now.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable` and the like.
    pub fn holder(&self) -> Operation<Option<Holder>> {
        self.ask(self.inspection(), holder)
    }

    /// Deletes the lock, whoever holds it, and wakes the waiters. Holders of this client are told at
    /// once, others as soon as their client hears of it. Returns whether there was a lock.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable`. It is not repeated by itself, because a second one could hit the next
    /// holder.
    ///
    /// # Cancel safety
    /// A force-release that was sent may or may not happen.
    pub fn force_release(&self) -> Operation<bool> {
        self.ask(Request::Force { name: self.name.clone(), kind: self.options.kind }, |outcome| match outcome
        {
            Outcome::Forced(deleted) => Ok(deleted),
            Outcome::Failed(error) => Err(error),
            other => Err(unexpected(&other)),
        })
    }

    fn ask<T>(
        &self,
        request: Request,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        Operation::new(&self.client, request, finish)
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock({:?})", self.name)
    }
}

fn holder(outcome: Outcome) -> Result<Option<Holder>> {
    match outcome {
        Outcome::Inspected(holder) => Ok(holder),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}

/// What can be known about a hold without I/O. The clock that it goes by counts the time in suspend.
#[derive(Clone)]
pub struct Hold {
    /// Of the lock, for who holds nothing.
    name: Option<Name>,
    view: Option<(Arc<HoldCell>, Arc<Running>)>,
}

impl Hold {
    /// That of a guard.
    pub(crate) fn of(cell: &Arc<HoldCell>, running: &Arc<Running>) -> Self {
        Hold { name: None, view: Some((cell.clone(), running.clone())) }
    }

    /// None at all.
    pub(crate) const NONE: Hold = Hold { name: None, view: None };

    /// The hold, unless it is the parent's: in a child even its locks must not be touched.
    fn cell(&self) -> Option<&Arc<HoldCell>> {
        self.view.as_ref().filter(|(_, running)| !running.is_forked()).map(|(cell, _)| cell)
    }

    /// Whether both are views of the same hold. Owners do not tell that: those who passed the lock on to each other within a
    /// moment have the same one.
    pub fn is_same(&self, other: &Hold) -> bool {
        matches!((&self.view, &other.view), (Some((own, _)), Some((cell, _))) if Arc::ptr_eq(own, cell))
    }

    /// Whether the lock can be relied on now.
    pub fn is_held(&self) -> bool {
        self.cell().is_some_and(|cell| cell.is_held(clock::now()))
    }

    /// The same as an error.
    ///
    /// # Errors
    /// `lost` with the reason, `not_owner` when there is no hold or it was released, `forked` in a
    /// child process.
    pub fn check(&self) -> Result<()> {
        if let Some((_, running)) = &self.view {
            running.refuse_fork()?;
        }
        let not_held = |name: Option<&Name>| match name {
            Some(name) => Error::not_held().on(name),
            None => Error::not_held(),
        };
        let cell = self.cell().ok_or_else(|| not_held(self.name.as_ref()))?;
        let now = clock::now();
        match cell.lost(now) {
            Some(reason) => Err(Error::lost(&cell.name, reason)),
            None if cell.is_held(now) => Ok(()),
            None => Err(not_held(Some(&cell.name))),
        }
    }

    /// How long the lock can be relied on if nothing more is heard from Redis; zero once lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::now();
        self.cell().filter(|cell| cell.is_held(now)).map_or(Duration::ZERO, |cell| now.until(cell.deadline()))
    }

    /// How many levels the hold has; zero when there is none.
    pub fn count(&self) -> u32 {
        self.cell().map_or(0, |cell| cell.count())
    }

    /// The fencing token, if the lock draws them.
    pub fn fencing_token(&self) -> Option<u64> {
        self.cell().and_then(|cell| cell.token())
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.cell().and_then(|cell| cell.lost(clock::now()))
    }

    /// The instant until which the lock can be relied on if nothing more is heard from Redis; now,
    /// when it is not held. See [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Waits until the lock is lost; for ever if there is no hold or it is never lost.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; calling again tells a loss that came meanwhile.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let cell = self.cell().cloned();
        async move {
            match cell {
                Some(cell) => cell.lost_async().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Calls `watcher` once when the lock is lost, on the engine's thread: signal something and
    /// return. While it blocks, nothing of this client goes on: calls wait, and what is held is not
    /// renewed. If it is lost already, `watcher` is called at once, on the calling thread.
    pub fn on_lost(&self, watcher: impl FnOnce(LostReason) + Send + 'static) {
        if let Some(cell) = self.cell() {
            cell.watch(Watcher::Called(Box::new(watcher)));
        }
    }

    /// Puts [`Outcome::Lost`] into `queue` under `tag` when the lock is lost.
    pub fn watch_lost(&self, queue: &Arc<Queue>, tag: u64) {
        if let Some(cell) = self.cell() {
            cell.watch(Watcher::Queued(queue.clone(), tag));
        }
    }

    /// The owner as it stands in Redis; empty when there is no hold. See [`Guard::owner`].
    pub fn owner(&self) -> String {
        match &self.view {
            Some((cell, running)) => cell.form().owner(running.uuid(), cell.owner),
            None => String::new(),
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({}held x{})", if self.is_held() { "" } else { "not " }, self.count())
    }
}
