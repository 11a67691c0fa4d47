//! A lock name with its client and options, and the local view of a hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{ClientInner, Running};
use crate::clock;
use crate::completion_queue::Outcome;
use crate::engine::{Request, Target, in_order};
use crate::error::{Error, ErrorKind, LostReason, Result, Thing};
use crate::guard::{Guard, guard, unexpected, unit};
use crate::hold::HoldCell;
use crate::log;
use crate::loss::{self, Watcher};
use crate::operation::Operation;
use crate::options::requests::LockRequests;
use crate::options::{AcquireOptions, LockOptions, check_lease, check_limit};
use crate::owner::ReentryKey;
use crate::wire::{Holder, Inspection, Kind, Name, Permits, names};

/// A lock: a name on a client, with options. Making and cloning it is cheap and does no I/O.
///
/// Every acquisition is a separate owner unless it is made with a [`ReentryKey`]: two tasks that
/// call [`acquire`](Lock::acquire) exclude each other even on one `Lock`.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let lock = client.lock("orders:42")?;
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await?.is_none()); // another owner, although the same `Lock`
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lock {
    client: Arc<ClientInner>,
    pub(crate) name: Name,
    options: Arc<LockOptions>,
    /// The locks of a multi lock, in the order of their names. `None` for any other lock.
    parts: Option<Arc<[Lock]>>,
}

impl Lock {
    pub(crate) fn new(client: Arc<ClientInner>, name: Name, options: Arc<LockOptions>) -> Self {
        Lock {
            client,
            name: options.kind.key(name),
            options,
            parts: None,
        }
    }

    /// The multi lock of these locks.
    ///
    /// # Errors
    /// `invalid_argument`.
    pub(crate) fn multi(client: Arc<ClientInner>, locks: Vec<Lock>) -> Result<Self> {
        client.refuse_quorum("multi lock")?;
        let mut parts: Vec<Lock> = Vec::with_capacity(locks.len());
        for lock in locks {
            if !Arc::ptr_eq(&lock.client, &client) {
                return Err(lock.blamed(Error::of_another_client()));
            }
            match lock.parts {
                Some(inner) => parts.extend(inner.iter().cloned()),
                None => parts.push(lock),
            }
        }
        let (name, parts) = in_order(parts, |lock| (&lock.name, lock.options.kind))?;
        Ok(Lock {
            name,
            options: client.shared(parts[0].options.of_multi_lock()),
            parts: Some(parts.into()),
            client,
        })
    }

    /// The locks of a multi lock, in the order in which it waits for them. Empty for any other lock.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let both = client.multi_lock(["account:7", "account:3"])?;
    /// let names: Vec<&str> = both.parts().iter().map(|lock| lock.name()).collect();
    /// assert_eq!(names, ["account:3", "account:7"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn parts(&self) -> &[Lock] {
        self.parts.as_deref().unwrap_or_default()
    }

    /// A lock of another name with the same options. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long, and for a multi lock.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// let other = lock.named("orders:43")?; // the same options
    /// # Ok(())
    /// # }
    /// ```
    pub fn named(&self, name: &str) -> Result<Lock> {
        if self.parts.is_some() {
            return Err(self.blamed(Error::invalid(Kind::Multi.has_no_key())));
        }
        Ok(Lock::new(
            self.client.clone(),
            names::name(name)?,
            self.options.clone(),
        ))
    }

    /// The name as it is in Redis: some kinds put a prefix before the given name. A multi lock has the
    /// names of its locks here, in their order, with commas.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options of this lock.
    pub fn options(&self) -> &LockOptions {
        &self.options
    }

    /// Waits for the lock and acquires it.
    ///
    /// # Errors
    /// `foreign_kind` when something other than such a lock is stored under the name, `unavailable`
    /// when the server cannot be reached for longer than the option `outage`, `auth`, `denied`,
    /// `closed`, `forked`.
    ///
    /// # Cancel safety
    /// Dropping the operation leaves the queue. A lock that was won meanwhile is released.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// let guard = lock.acquire().await?;
    /// // Only one holder is here.
    /// guard.release().await?; // or drop it
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new())
    }

    /// Acquires the lock if it is free, without waiting for its holder.
    ///
    /// `None` is what the server says: after this call began, somebody else had the lock, or came before
    /// it in the queue. That counts also where this client itself seems to hold the lock, whose key others
    /// may have deleted. A server that does not answer is `unavailable`, never `None`.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire). A lock that is held gives `None`, not an error.
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// match lock.try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else does it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self) -> Operation<Option<Guard>> {
        self.acquire_as(AcquireOptions::new().wait(Duration::ZERO), tried)
    }

    /// Waits for the lock at most `wait`.
    ///
    /// # Errors
    /// `timeout` when the time is over, else as [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::ErrorKind;
    /// use std::time::Duration;
    ///
    /// match lock.acquire_timeout(Duration::from_secs(2)).await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(error) if error.kind() == ErrorKind::Timeout => println!("try again later"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_timeout(&self, wait: Duration) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new().wait(wait))
    }

    /// Acquires the lock with a wait, a lease or a re-entry key for this acquisition.
    ///
    /// # Errors
    /// `timeout` when the wait is over, `lost` when the key's hold was lost and its levels are not
    /// all released yet, `invalid_argument` for options out of bounds, else as
    /// [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::AcquireOptions;
    /// use std::time::Duration;
    ///
    /// let options = AcquireOptions::new()
    ///     .wait(Duration::from_secs(2))
    ///     .lease(Duration::from_secs(30)); // fixed: not renewed
    /// let guard = lock.acquire_with(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_with(&self, options: AcquireOptions) -> Operation<Guard> {
        self.acquire_as(options, guard)
    }

    /// The error with the name of this lock or semaphore.
    pub(crate) fn blamed(&self, error: Error) -> Error {
        self.requests().blamed(error)
    }

    /// How its hold is found.
    pub(crate) fn wire_kind(&self) -> Kind {
        self.requests().kind()
    }

    pub(crate) fn requests(&self) -> LockRequests<'_> {
        LockRequests {
            name: &self.name,
            options: &self.options,
            quorum: self.client.quorum_rules(),
        }
    }

    pub(crate) fn acquire_as<T: 'static>(
        &self,
        options: AcquireOptions,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        let multi = self.parts.as_deref().map(|parts| {
            let parts = parts.iter();
            parts.map(|lock| (&lock.name, &*lock.options)).collect()
        });
        let request = match self.requests().acquire(options, multi) {
            Ok(request) => request,
            Err(error) => return Operation::failed(error),
        };
        self.ask(Ok(request), finish)
            .in_span(log::acquisition(&self.name))
    }

    /// Releases the newest level that `key` holds.
    ///
    /// # Errors
    /// `not_owner` when the key does not hold the lock, `lost` when the hold was lost before,
    /// `unavailable` when the server did not confirm, `closed`. In a forked child this does nothing
    /// and succeeds.
    ///
    /// # Cancel safety
    /// A release that was sent continues.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, ReentryKey};
    ///
    /// let key = ReentryKey::new_task();
    /// lock.acquire_with(AcquireOptions::new().key(key)).await?.detach();
    /// lock.release_by(key).await?; // from anywhere that knows the key
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_by(&self, key: ReentryKey) -> Operation<()> {
        self.ask(Ok(Request::Release(self.target(key))), unit)
    }

    /// Extends the lock that `key` holds, so that it lives at least `lease` from now.
    ///
    /// # Errors
    /// `not_owner`, `lost`, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent continues.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock, key: redlatch::ReentryKey) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// lock.extend_by(key, Duration::from_secs(60)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend_by(&self, key: ReentryKey, lease: Duration) -> Operation<()> {
        let checked = check_lease(lease).and_then(|()| self.requests().check_lease(lease));
        let target = self.target(key);
        let request = checked.map(|()| Request::Extend { target, lease });
        self.ask(request.map_err(|error| self.blamed(error)), unit)
    }

    /// Takes over the lock if `token` is its value, whichever process acquired it. This is for work
    /// that is passed on to another process together with its lock. Simple kinds only.
    ///
    /// The guard is like any other: the lock is renewed, a loss is told, and dropping the guard
    /// releases it. The lock has another value from then on. So the token is worth nothing any more,
    /// and the process that acquired with it can neither release nor extend the lock: it is told that
    /// its hold was lost (`stolen`), if it still relies on it. Two processes with the same token
    /// cannot both take over.
    ///
    /// Until then the lock belongs to the process that acquired it. With
    /// [`linger`](crate::LockOptions::linger) it outlives that process for the rest of its lease.
    ///
    /// # Errors
    /// `not_owner` when the lock is free or has another value, `invalid_argument`, else as
    /// [`acquire`](Lock::acquire).
    ///
    /// # Cancel safety
    /// A lock that was taken over meanwhile is released.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, Kind, LockOptions};
    ///
    /// // One process acquires with a token of its own, and puts it into the job ...
    /// let lock = client.lock_with("job", LockOptions::new().kind(Kind::Simple).linger(true))?;
    /// let guard = lock.acquire_with(AcquireOptions::new().token("run-7f3a")).await?;
    /// guard.detach();
    ///
    /// // ... and the one that gets the job holds the lock.
    /// let guard = lock.adopt("run-7f3a").await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn adopt(&self, token: &str) -> Operation<Guard> {
        self.adopt_with(token, AcquireOptions::new())
    }

    /// Takes over the lock with a lease or a re-entry key for this hold. It waits for nobody, so a
    /// wait is refused.
    ///
    /// # Errors
    /// As [`adopt`](Lock::adopt).
    ///
    /// # Cancel safety
    /// As [`adopt`](Lock::adopt).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::AcquireOptions;
    /// use std::time::Duration;
    ///
    /// let options = AcquireOptions::new().lease(Duration::from_secs(60)); // fixed: not renewed
    /// let guard = lock.adopt_with("run-7f3a", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn adopt_with(&self, token: &str, options: AcquireOptions) -> Operation<Guard> {
        self.acquire_with(options.adopts(token))
    }

    /// Frees the lock if `token` is its value, whichever process acquired it. This is for work that
    /// is passed on to another process together with its lock. Simple kinds only.
    ///
    /// Choose the token when you acquire ([`AcquireOptions::token`]): a value chosen by the client
    /// may stand for several of its callers, one after the other.
    ///
    /// # Errors
    /// `not_owner` when the lock is free or has another value, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// A release that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, Kind, LockOptions};
    ///
    /// // One process acquires with a token that it hands on ...
    /// let lock = client.lock_with("job", LockOptions::new().kind(Kind::Simple).linger(true))?;
    /// let guard = lock.acquire_with(AcquireOptions::new().token("run-7f3a")).await?;
    /// guard.detach();
    ///
    /// // ... and another one releases with it.
    /// lock.release_token("run-7f3a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_token(&self, token: &str) -> Operation<()> {
        self.ask(self.requests().by_token(token, None), unit)
    }

    /// Extends the lock, so that it lives at least `lease` from now, if `token` is its value,
    /// whichever process acquired it. Simple kinds only.
    ///
    /// # Errors
    /// `not_owner` when the lock is free or has another value, `invalid_argument`, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// // The token came from another process, with the work.
    /// lock.extend_token("6f1c", Duration::from_secs(60)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend_token(&self, token: &str, lease: Duration) -> Operation<()> {
        let checked = check_lease(lease).map_err(|error| self.blamed(error));
        let request = checked.and_then(|()| self.requests().by_token(token, Some(lease)));
        self.ask(request, unit)
    }

    fn target(&self, key: ReentryKey) -> Target {
        Target::Key {
            name: self.name.clone(),
            key: key.into(),
            kind: self.wire_kind(),
        }
    }

    /// The local view of the hold that `key` has on this name. No I/O.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::ReentryKey;
    ///
    /// let hold = lock.hold(ReentryKey::thread());
    /// if hold.is_held() {
    ///     println!("good for {:?}", hold.remaining());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, key: ReentryKey) -> Hold {
        let view = self.client.started().and_then(|running| {
            let cell = running.cell(&self.name, key.into(), self.wire_kind())?;
            Some((cell, running))
        });
        Hold {
            name: Some((self.name.clone(), self.wire_kind().thing())),
            view,
        }
    }

    /// Whether the lock is held, as Redis sees it now.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable` and the other errors of a connection.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// if lock.is_locked().await? {
    ///     println!("somebody has it"); // or had: it may have changed by now
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_locked(&self) -> Operation<bool> {
        self.inspect(Inspection::Owners, |outcome| {
            holders(outcome).map(|holders| !holders.is_empty())
        })
    }

    /// The current holder of the lock, as Redis sees it now; of a read lock any of them. Its process
    /// comes from `CLIENT LIST`, which takes the server about a microsecond for each of its
    /// connections: [`is_locked`](Lock::is_locked) does without.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable` and the other errors of a connection.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// if let Some(holder) = lock.holder().await? {
    ///     let host = holder.process.map(|process| process.host);
    ///     println!("{} has it, on {host:?}", holder.owner);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder(&self) -> Operation<Option<Holder>> {
        self.inspect(Inspection::Holders, |outcome| {
            holders(outcome).map(|holders| holders.into_iter().next())
        })
    }

    /// All current holders of the lock, as Redis sees them now: of a read lock there may be
    /// several.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable` and the other errors of a connection.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// for holder in lock.holders().await? {
    ///     println!("{} has it {} times", holder.owner, holder.count);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn holders(&self) -> Operation<Vec<Holder>> {
        self.inspect(Inspection::Holders, holders)
    }

    pub(crate) fn owners_only(&self) -> Operation<Vec<Holder>> {
        self.inspect(Inspection::Owners, holders)
    }

    /// The waiters of a fair lock or semaphore, in the order in which they are served: its length is
    /// the length of the queue, its index a position. Waiters of all programs stand there, Redisson's
    /// `RFairLock` included. `count` is the number of permits that it wants, 0 of a lock; `remaining` is how long the place is kept if the waiter
    /// does not ask again, and 0 for the place of a dead one that nobody has cleared yet.
    ///
    /// # Errors
    /// `invalid_argument` if the kind of the lock is not [`Kind::Fair`](crate::Kind::Fair), nor the
    /// option `fair` of the semaphore set: no other keeps its queue in Redis. `unavailable` and the other errors of a connection.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// let queue = lock.waiters().await?;
    /// println!("{} wait, the first is {:?}", queue.len(), queue.first());
    /// # Ok(())
    /// # }
    /// ```
    pub fn waiters(&self) -> Operation<Vec<Holder>> {
        self.inspect(Inspection::Waiters, holders)
    }

    /// Deletes the lock, regardless of its holder, and wakes the waiters. Holders of this client
    /// are told at once, holders of other clients as soon as their client notices. Returns whether
    /// there was a lock.
    ///
    /// # Errors
    /// `foreign_kind`, `unavailable`. The client does not repeat it, because a repetition could hit
    /// the next holder.
    ///
    /// # Cancel safety
    /// A force-release that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// if lock.force_release().await? {
    ///     eprintln!("freed; its holder is told that it lost the lock");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn force_release(&self) -> Operation<bool> {
        self.ask(Ok(self.requests().force()), |outcome| match outcome {
            Outcome::Forced(deleted) => Ok(deleted),
            Outcome::Failed(error) => Err(error),
            other => Err(unexpected(&other)),
        })
    }

    fn inspect<T>(
        &self,
        what: Inspection,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        self.ask(Ok(self.requests().inspect(what)), finish)
    }

    fn ask<T>(
        &self,
        request: Result<Request>,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        Operation::of(&self.client, request, finish)
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock({:?})", self.name)
    }
}

/// A read-write lock: many readers or one writer. It is the same lock as the `RReadWriteLock` of
/// Redisson with this name. Making and cloning it is cheap and does no I/O.
///
/// Each side is a [`Lock`] with everything that a lock has: tries, waits, leases, the watchdog,
/// guards that tell a loss. They are the kinds [`Read`](crate::Kind::Read) and
/// [`Write`](crate::Kind::Write).
///
/// A caller with a [`ReentryKey`](crate::ReentryKey) that has the write side may take the read side
/// too, and keep it when it releases the write side. The other way round it would wait for itself:
/// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock).
///
/// Callers of one client come in their order: readers that wait behind a writer let it go first.
/// Between clients no writer comes before readers, as with Redisson.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let prices = client.rw_lock("prices")?;
///
/// let reader = prices.read().acquire().await?; // beside other readers
/// reader.release().await?;
///
/// let writer = prices.write().acquire().await?; // alone
/// writer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    pub(crate) read: Lock,
    pub(crate) write: Lock,
}

impl RwLock {
    /// The name, as it is in Redis.
    pub fn name(&self) -> &str {
        self.write.name()
    }

    /// The side that many may have at a time.
    pub fn read(&self) -> &Lock {
        &self.read
    }

    /// The side that one may have, while nobody else has the other.
    pub fn write(&self) -> &Lock {
        &self.write
    }
}

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
/// Between clients there is no order.
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
    /// and semaphores share: [`holders`](Lock::holders), [`waiters`](Lock::waiters) in fair mode, or
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
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(semaphore: redlatch::Semaphore) -> redlatch::Result<()> {
    /// let permit = semaphore.acquire().await?;
    /// permit.release().await?; // or drop it
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(semaphore: redlatch::Semaphore) -> redlatch::Result<()> {
    /// let three = semaphore.acquire_many(3).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_many(&self, permits: usize) -> Operation<Guard> {
        self.acquire_with(AcquireOptions::new().permits(permits))
    }

    /// Takes one permit if one is free and no caller of this client waits; else `None`. With the option
    /// `fair` no caller of any client may wait in fair mode.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Semaphore::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(semaphore: redlatch::Semaphore) -> redlatch::Result<()> {
    /// if let Some(permit) = semaphore.try_acquire().await? {
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
        self.lock.acquire_as(options, tried)
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
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(semaphore: redlatch::Semaphore) -> redlatch::Result<()> {
    /// let permits = semaphore.permits().await?;
    /// println!("{} of {} are free", permits.available, permits.limit);
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(semaphore: redlatch::Semaphore) -> redlatch::Result<()> {
    /// semaphore.set_permits(10).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_permits(&self, limit: usize) -> Operation<Permits> {
        match check_limit(limit) {
            Ok(()) => self.count(Some(limit)),
            Err(error) => Operation::failed(self.lock.blamed(error)),
        }
    }

    fn count(&self, limit: Option<usize>) -> Operation<Permits> {
        let request = self.lock.requests().count(limit);
        self.lock.ask(Ok(request), |outcome| match outcome {
            Outcome::Counted(permits) => Ok(permits),
            Outcome::Failed(error) => Err(error),
            other => Err(unexpected(&other)),
        })
    }
}

/// Nothing, if others have the lock.
fn tried(outcome: Outcome) -> Result<Option<Guard>> {
    match outcome {
        Outcome::Failed(error) if error.kind() == ErrorKind::Timeout => Ok(None),
        other => guard(other).map(Some),
    }
}

fn holders(outcome: Outcome) -> Result<Vec<Holder>> {
    match outcome {
        Outcome::Inspected(holders) => Ok(holders),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}

/// A view of a hold without I/O. Its clock includes the time in suspend
/// (`CLOCK_BOOTTIME`).
///
/// # Examples
/// ```no_run
/// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
/// let hold = guard.hold(); // for another task: it says how things stand, and releases nothing
/// println!("{} levels, good for {:?}", hold.count(), hold.remaining());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hold {
    /// The name of the lock or semaphore, for errors when there is no hold.
    name: Option<(Name, Thing)>,
    view: Option<(Arc<HoldCell>, Arc<Running>)>,
}

impl Hold {
    /// The view of a guard's hold.
    pub(crate) fn of(cell: &Arc<HoldCell>, running: &Arc<Running>) -> Self {
        Hold {
            name: None,
            view: Some((cell.clone(), running.clone())),
        }
    }

    /// The view of no hold.
    pub(crate) const NONE: Hold = Hold {
        name: None,
        view: None,
    };

    /// The hold, unless it belongs to the parent process: a forked child must not touch even its
    /// locks.
    pub(crate) fn cell(&self) -> Option<&Arc<HoldCell>> {
        self.view
            .as_ref()
            .filter(|(_, running)| !running.is_forked())
            .map(|(cell, _)| cell)
    }

    /// Whether both are views of the same hold. Comparing owners is not enough: callers that hand
    /// the lock over to each other within a moment have the same owner.
    pub fn is_same(&self, other: &Hold) -> bool {
        matches!((&self.view, &other.view), (Some((own, _)), Some((cell, _))) if Arc::ptr_eq(own, cell))
    }

    /// Whether the caller can rely on the lock now.
    pub fn is_held(&self) -> bool {
        self.cell().is_some_and(|cell| cell.is_held(clock::now()))
    }

    /// Like [`is_held`](Hold::is_held), as an error.
    ///
    /// # Errors
    /// `lost` with the reason, `not_owner` when there is no hold or it was released, `forked` in a
    /// child process.
    pub fn check(&self) -> Result<()> {
        if let Some((_, running)) = &self.view {
            running.refuse_fork()?;
        }
        match (self.cell(), &self.name) {
            (Some(cell), _) => cell.check(clock::now()),
            (None, Some((name, thing))) => Err(Error::not_held().on(name).of(*thing)),
            (None, None) => Err(Error::not_held()),
        }
    }

    /// How long the caller can rely on the lock if nothing more is heard from Redis; zero once
    /// lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::now();
        self.cell()
            .filter(|cell| cell.is_held(now))
            .map_or(Duration::ZERO, |cell| now.until(cell.deadline()))
    }

    /// The name of the lock; empty when there is no hold.
    pub fn name(&self) -> &str {
        match (&self.view, &self.name) {
            (Some((cell, _)), _) => &cell.name,
            (None, Some((name, _))) => name,
            (None, None) => "",
        }
    }

    /// The holds of a multi lock, in the order of its names: each has an owner and, with fencing, a
    /// token of its own. Empty for any other lock.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// # let both = client.multi_lock(["account:3", "account:7"])?;
    /// let guard = both.acquire().await?;
    /// for part in guard.hold().parts() {
    ///     println!("{}: {:?}", part.name(), part.fencing_token());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn parts(&self) -> Vec<Hold> {
        let Some((cell, running)) = &self.view else {
            return Vec::new();
        };
        let parts = cell.parts().iter();
        parts.map(|part| Hold::of(part, running)).collect()
    }

    /// How many levels the hold has; zero when there is none.
    pub fn count(&self) -> u32 {
        self.cell().map_or(0, |cell| cell.count())
    }

    /// The fencing token, if the lock uses fencing.
    pub fn fencing_token(&self) -> Option<u64> {
        self.cell().and_then(|cell| cell.token())
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.cell().and_then(|cell| cell.lost(clock::now()))
    }

    /// The instant until which the caller can rely on the lock if nothing more is heard from Redis.
    /// Now, when the lock is not held. See [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Waits until the lock is lost. Never completes if there is no hold or it is never lost.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect. A later call reports a loss that happened meanwhile.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let cell = self.cell().cloned();
        async move {
            match cell {
                Some(cell) => loss::lost(&cell).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Calls `watcher` once when the lock is lost, on the I/O thread. If the lock is lost already,
    /// calls it at once, on the calling thread. The callback should signal something and return:
    /// while it blocks, the client does nothing else, so calls wait and holds are not renewed.
    pub fn on_lost(&self, watcher: impl FnOnce(LostReason) + Send + 'static) {
        if let Some(cell) = self.cell() {
            loss::watch(cell, Watcher::Called(Box::new(watcher)));
        }
    }

    /// The owner as it is in Redis; empty when there is no hold. See [`Guard::owner`]. A multi lock has
    /// the owners of its [`parts`](Hold::parts) here, with commas.
    pub fn owner(&self) -> String {
        let view = self.view.as_ref();
        let owner = view.map(|(cell, running)| cell.owner_name(running.uuid()));
        owner.unwrap_or_default()
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Hold({}held x{})",
            if self.is_held() { "" } else { "not " },
            self.count()
        )
    }
}
