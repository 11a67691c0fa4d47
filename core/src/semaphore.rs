//! A semaphore: a lock that several owners may have at a time.

use std::time::Duration;

use crate::completion_queue::Outcome;
use crate::engine::Request;
use crate::error::ErrorKind;
use crate::guard::{Guard, guard, unexpected};
use crate::lock::Lock;
use crate::operation::Operation;
use crate::options::{AcquireOptions, check_limit};
use crate::wire::Permits;

/// A semaphore: so many owners at a time as it has permits. It is the same semaphore as the
/// `RPermitExpirableSemaphore` of Redisson with this name. Making and cloning it is cheap and does
/// no I/O.
///
/// A permit has a lease like a lock, and the watchdog renews it while it is held. The permits of a
/// program that dies are free again after its lease and 2 s. The 2 s are for Redisson, which takes
/// permits back by the clocks of its own machines.
///
/// The first acquisition gives the semaphore its permits: as many as the option `limit` says. A
/// number that is there already stays, until [`set_permits`](Semaphore::set_permits) changes it.
/// Without a limit, others set it.
///
/// Callers of one client come in their order, whatever number of permits each of them wants.
/// Clients do not wait for each other.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let gpus = client.semaphore("gpu", 5)?;
///
/// let permit = gpus.acquire().await?; // at most five at once, over all programs
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    pub(crate) lock: Lock,
}

impl Semaphore {
    /// The name, as it is in Redis.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// The semaphore as a [`Lock`] of the kind [`Semaphore`](crate::Kind::Semaphore), for what locks
    /// and semaphores share: [`holders`](Lock::holders), or
    /// [`force_release`](Lock::force_release), which gives all permits back.
    pub fn as_lock(&self) -> &Lock {
        &self.lock
    }

    /// Takes one permit, and waits for it without a limit. Dropping the guard gives it back.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]: a wait that is dropped leaves no permit behind, and loses its place.
    pub fn acquire(&self) -> Operation<Guard> {
        self.lock.acquire()
    }

    /// Takes so many permits at once, 1 to 1,000, and waits for them without a limit. Dropping the
    /// guard gives all of them back.
    ///
    /// # Errors
    /// `invalid_argument` for more permits than the limit, else as [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub fn acquire_many(&self, permits: usize) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new().permits(permits))
    }

    /// Takes one permit if one is free and nobody of this client waits; else `None`.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub fn try_acquire(&self) -> Operation<Option<Guard>> {
        self.lock.try_acquire()
    }

    /// Takes so many permits at once, 1 to 1,000, if they are free and nobody of this client waits;
    /// else `None`.
    ///
    /// # Errors
    /// `invalid_argument` for more permits than the limit, else as [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub fn try_acquire_many(&self, permits: usize) -> Operation<Option<Guard>> {
        let options = AcquireOptions::new().wait(Duration::ZERO).permits(permits);
        self.lock.acquire_as(options, |outcome| match outcome {
            Outcome::Failed(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            other => guard(other).map(Some),
        })
    }

    /// Takes permits with a wait, a lease, or a number for this acquisition.
    ///
    /// A [`ReentryKey`](crate::ReentryKey) holds permits of one acquisition at a time, so that a
    /// release by the key is clear.
    ///
    /// # Errors
    /// `timeout` when the wait is over, `invalid_argument` for options out of bounds or a key that
    /// has permits already, else as [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    pub fn acquire_with(&self, options: AcquireOptions) -> Operation<Guard> {
        self.lock.acquire_with(options)
    }

    /// How many permits there are, and how many of them are free. They may change at any time.
    ///
    /// # Errors
    /// `foreign_kind` when the name has other data, `unavailable`, `closed`.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub fn permits(&self) -> Operation<Permits> {
        self.count(None)
    }

    /// Gives the semaphore so many permits, 0 to 2,147,483,647, whatever it had before. Permits that
    /// are held stay held: when there are fewer than that, callers wait until enough are given back.
    ///
    /// # Errors
    /// `invalid_argument`, else as [`permits`](Semaphore::permits).
    ///
    /// # Cancel safety
    /// A change that was sent may or may not take effect.
    pub fn set_permits(&self, limit: usize) -> Operation<Permits> {
        match check_limit(limit) {
            Ok(()) => self.count(Some(limit)),
            Err(error) => Operation::failed(error.on(&self.lock.name)),
        }
    }

    fn count(&self, limit: Option<usize>) -> Operation<Permits> {
        let name = self.lock.name.clone();
        let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        self.lock
            .ask(Request::Count { name, limit }, |outcome| match outcome {
                Outcome::Counted(permits) => Ok(permits),
                Outcome::Failed(error) => Err(error),
                other => Err(unexpected(&other)),
            })
    }
}
