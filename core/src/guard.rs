//! A level of a hold, as something that can be dropped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Running;
use crate::clock;
use crate::engine::{Input, LevelId, Request, Target};
use crate::error::{Error, LostReason, Result};
use crate::hold::HoldCell;
use crate::lock::Hold;
use crate::operation::Operation;
use crate::options::{AcquireOptions, LockOptions, check_lease};
use crate::owner::Key;
use crate::queue::{Entry, Outcome, Queue};

/// A held lock. Dropping it releases the lock in the background, without blocking and without
/// telling whether that worked; [`release`](Guard::release) tells.
///
/// A guard can be sent to another thread or task and dropped there. In a forked child it is
/// powerless: it belongs to the parent.
#[must_use = "if unused, the lock is released at once"]
pub struct Guard(Option<Armed>);

struct Armed {
    running: Arc<Running>,
    cell: Arc<HoldCell>,
    level: LevelId,
}

impl Guard {
    pub(crate) fn new(running: Arc<Running>, cell: Arc<HoldCell>, level: LevelId) -> Self {
        Guard(Some(Armed { running, cell, level }))
    }

    /// Forgets the level without releasing it: somebody else answers for it now.
    pub(crate) fn disarm(mut self) -> Option<(Arc<Running>, Arc<HoldCell>, LevelId)> {
        self.0.take().map(|Armed { running, cell, level }| (running, cell, level))
    }

    /// The local view of the hold; it stays readable after the release.
    pub fn hold(&self) -> Hold {
        // A guard is disarmed only by the methods that consume it.
        Hold::new(self.0.as_ref().map(|armed| (armed.cell.clone(), armed.running.clone())))
    }

    fn with<T>(&self, read: impl FnOnce(&Armed) -> T, otherwise: T) -> T {
        self.0.as_ref().map_or(otherwise, read)
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |armed| &armed.cell.name)
    }

    /// The owner as it stands in Redis: `<client uuid>:<number>`.
    pub fn owner(&self) -> String {
        self.hold().owner()
    }

    /// Whether the lock can be relied on now. Local, from a clock that counts suspend.
    pub fn is_held(&self) -> bool {
        self.hold().is_held()
    }

    /// Like [`is_held`](Guard::is_held), as an error to be passed on with `?`.
    ///
    /// # Errors
    /// `lost` with the reason; `forked` in a child process.
    pub fn check(&self) -> Result<()> {
        self.hold().check()
    }

    /// How long the lock can be relied on if nothing more is heard from Redis; zero once lost.
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// The instant until which the lock can be relied on if nothing more is heard from Redis.
    ///
    /// The promise itself is kept on a clock that counts suspend; `Instant` does not, so after a
    /// suspend ask again.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How many levels the hold has.
    pub fn hold_count(&self) -> u32 {
        self.hold().count()
    }

    /// The fencing token, if the lock draws them.
    pub fn fencing_token(&self) -> Option<u64> {
        self.hold().fencing_token()
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.hold().lost_reason()
    }

    /// Waits until the lock is lost; for ever if it never is.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; calling again tells a loss that came meanwhile.
    pub async fn lost(&self) -> LostReason {
        match &self.0 {
            Some(armed) => armed.cell.lost_async().await,
            None => std::future::pending().await,
        }
    }

    /// Calls `watcher` once when the lock is lost, on the engine's thread: signal something and return.
    pub fn on_lost(&self, watcher: impl FnOnce(LostReason) + Send + 'static) {
        if let Some(armed) = &self.0 {
            armed.cell.watch(Box::new(watcher));
        }
    }

    /// Puts [`Outcome::Lost`] into `queue` under `tag` when the lock is lost.
    pub fn watch_lost(&self, queue: &Arc<Queue>, tag: u64) {
        let queue = queue.clone();
        self.on_lost(move |reason| queue.push(Entry { tag, outcome: Outcome::Lost(reason) }));
    }

    /// Gives back this level; the lock is free when the last level is.
    ///
    /// Dropping the operation releases all the same, but does not tell.
    ///
    /// # Errors
    /// `lost` when the lock had been lost before; `unavailable` when the server did not confirm
    /// (the lock then ends with its lease at the latest).
    pub fn release(self) -> Operation<()> {
        let Some(armed) = &self.0 else { return Operation::known(Outcome::Released, unit) };
        // What a child inherits is the parent's: nothing to do, nothing to tell.
        if armed.running.is_forked() {
            return Operation::known(Outcome::Released, unit);
        }
        let target = Target::Level { owner: armed.cell.owner, level: armed.level };
        let client = armed.running.client();
        Operation::releasing(&client, Request::Release(target), self, unit)
    }

    /// Holds the lock once more, as the same owner; with the watchdog if this guard's hold is
    /// new to leases, or as `options` say.
    ///
    /// # Errors
    /// `lost` when the hold is lost, `not_owner` when it was released.
    pub fn reenter(&self) -> Operation<Guard> {
        self.reenter_with(&LockOptions::default(), AcquireOptions::new())
    }

    /// Like [`reenter`](Guard::reenter), with a lease or wait of its own.
    pub fn reenter_with(&self, lock: &LockOptions, acquire: AcquireOptions) -> Operation<Guard> {
        let Some(armed) = &self.0 else {
            return Operation::failed(Error::invalid("the guard is spent"), guard);
        };
        if let Err(error) = acquire.validate().and_then(|()| lock.validate()) {
            return Operation::failed(error, guard);
        }
        let request = Request::Acquire {
            name: armed.cell.name.clone(),
            key: Key::Hold(armed.cell.owner),
            wait: acquire.wait,
            terms: lock.terms(&acquire),
        };
        Operation::new(&armed.running.client(), request, guard)
    }

    /// Makes the lock live at least `lease` from now; never shortens it, and does not change
    /// whether it is renewed.
    ///
    /// # Errors
    /// `lost`, `invalid_argument` for a lease out of bounds, `unavailable`.
    pub fn extend(&self, lease: Duration) -> Operation<()> {
        let Some(armed) = &self.0 else {
            return Operation::failed(Error::invalid("the guard is spent"), unit);
        };
        if let Err(error) = check_lease(lease) {
            return Operation::failed(error, unit);
        }
        let target = Target::Level { owner: armed.cell.owner, level: armed.level };
        Operation::new(&armed.running.client(), Request::Extend { target, lease }, unit)
    }

    /// Gives up the guard and keeps the level: from now on only its key releases it
    /// ([`Lock::release_by`](crate::Lock::release_by)), and it ends with its thread or task.
    pub fn detach(self) -> Hold {
        let hold = self.hold();
        if let Some((running, cell, level)) = self.disarm() {
            running.tell(Input::Detached { owner: cell.owner, level });
        }
        hold
    }

    /// For a handle that was garbage-collected without release: the level is not renewed any more,
    /// ends with its lease, and an event warns.
    pub fn abandon(self) {
        if let Some((running, cell, level)) = self.disarm() {
            running.tell(Input::Abandoned { owner: cell.owner, level });
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(armed) = self.0.take() else { return };
        if armed.running.is_forked() {
            // Everything in here is the parent's; even dropping it could wake the parent's thread.
            return std::mem::forget(armed);
        }
        armed.running.tell(Input::Dropped { owner: armed.cell.owner, level: armed.level });
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Guard({:?}, {}held)",
            self.name(),
            if self.with(|_| self.is_held(), false) { "" } else { "not " }
        )
    }
}

pub(crate) fn unit(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Failed(error) => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn guard(outcome: Outcome) -> Result<Guard> {
    match outcome {
        Outcome::Granted(guard) => Ok(guard),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn unexpected(outcome: &Outcome) -> Error {
    Error::new(crate::error::ErrorKind::Internal, format!("an answer to another question: {outcome:?}"))
}
