//! A guard: one level of a hold, released when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Running;
use crate::completion_queue::Outcome;
use crate::engine::{Input, Lease, LevelId, Request, Target, Terms};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::hold::HoldCell;
use crate::lock::Hold;
use crate::moment::Span;
use crate::operation::Operation;
use crate::options::check_lease;
use crate::wire::{Change, Fencing, Kind, Name, Special};
use redlatch_proto::key::OwnerKey;
use redlatch_proto::quorum;

/// A held lock. Dropping it releases the lock in the background, without blocking and without
/// reporting whether that worked. [`release`](Guard::release) reports it.
///
/// A guard can be sent to another thread or task and dropped there. In a forked child it has no
/// effect, because it belongs to the parent.
///
/// # Examples
/// ```no_run
/// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
/// let guard = lock.acquire().await?;
/// println!("token {:?}, good for {:?}", guard.fencing_token(), guard.remaining());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "if unused, the lock is released at once"]
pub struct Guard(Option<Armed>);

struct Armed {
    running: Arc<Running>,
    cell: Arc<HoldCell>,
    level: LevelId,
    /// How the level is held, so that re-entering uses the same terms.
    repeated: Repeated,
}

/// The part of the terms that a re-entry on the same terms repeats.
#[derive(Clone, Copy)]
struct Repeated {
    lease: Span,
    mode: Mode,
    tied: bool,
    replicas: u8,
}

#[derive(Clone, Copy)]
enum Mode {
    Watchdog,
    Fixed,
    Adaptive,
}

impl Repeated {
    fn of(terms: &Terms) -> Repeated {
        let (mode, lease) = match terms.lease {
            Lease::Watchdog(lease) => (Mode::Watchdog, lease),
            Lease::Fixed(lease) => (Mode::Fixed, lease),
            Lease::Adaptive(lease) => (Mode::Adaptive, lease),
        };
        Repeated {
            lease: lease.into(),
            mode,
            tied: terms.tied,
            replicas: terms.replicas,
        }
    }

    /// The terms for re-entering the hold. The fields set to constants have no meaning for a
    /// re-entry.
    fn terms(self, kind: Kind) -> Terms {
        let lease = match self.mode {
            Mode::Watchdog => Lease::Watchdog,
            Mode::Fixed => Lease::Fixed,
            Mode::Adaptive => Lease::Adaptive,
        };
        Terms {
            kind,
            reentrant: true,
            lease: lease(self.lease.into()),
            fencing: Fencing::Off,
            max_hold: None,
            replicas: self.replicas,
            linger: false,
            tied: self.tied,
            permits: 0,
            special: Special::NONE,
        }
    }
}

impl Armed {
    /// Ties the level to its key, unless it was acquired that way.
    pub(crate) fn tie(&self) {
        if !self.repeated.tied {
            self.running.tell(Input::Detached {
                owner: self.cell.owner,
                level: self.level,
            });
        }
    }
}

impl Guard {
    pub(crate) fn new(
        running: Arc<Running>,
        cell: Arc<HoldCell>,
        level: LevelId,
        terms: &Terms,
    ) -> Self {
        Guard(Some(Armed {
            running,
            cell,
            level,
            repeated: Repeated::of(terms),
        }))
    }

    /// Takes the level out of the guard without releasing it; the caller becomes responsible for
    /// it.
    pub(crate) fn disarm(mut self) -> Option<(Arc<Running>, Arc<HoldCell>, LevelId)> {
        self.0.take().map(
            |Armed {
                 running,
                 cell,
                 level,
                 ..
             }| (running, cell, level),
        )
    }

    /// Fails if the guard belongs to the parent of this process.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        self.0
            .as_ref()
            .map_or(Ok(()), |armed| armed.running.refuse_fork())
    }

    /// The local view of the hold. It stays readable after the release.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// let hold = guard.hold();
    /// tokio::spawn(async move { println!("lost: {}", hold.lost().await) });
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self) -> Hold {
        // Only the methods that consume a guard disarm it.
        self.0
            .as_ref()
            .map_or(Hold::NONE, |armed| Hold::of(&armed.cell, &armed.running))
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |armed| &armed.cell.name)
    }

    /// The owner as it is in Redis: `<uuid>:<number>`. Callers of one client that hand the lock
    /// over to each other within a few milliseconds have the same owner.
    pub fn owner(&self) -> String {
        self.hold().owner()
    }

    /// Whether the caller can rely on the lock now. Local, from a clock that includes the time in
    /// suspend (`CLOCK_BOOTTIME`).
    pub fn is_held(&self) -> bool {
        self.hold().is_held()
    }

    /// Like [`is_held`](Guard::is_held), as an error to pass on with `?`.
    ///
    /// # Errors
    /// `lost` with the reason; `not_owner` when the level was released by its key; `forked` in a
    /// child process.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// for _page in 0..100 {
    ///     guard.check()?; // no round trip
    ///     // Write one page.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.hold().check()
    }

    /// How long the caller can rely on the lock if nothing more is heard from Redis; zero once
    /// lost.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// if guard.remaining() < Duration::from_secs(1) {
    ///     return Ok(()); // too short for the next step
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// The instant until which the caller can rely on the lock if nothing more is heard from Redis.
    ///
    /// Each renewal moves it forward. The client uses a clock that includes the time in suspend.
    /// `Instant` does not include it, so ask again after a suspend.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How many levels the hold has.
    pub fn hold_count(&self) -> u32 {
        self.hold().count()
    }

    /// The fencing token, if the lock uses fencing.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// use redlatch::LockOptions;
    ///
    /// let lock = client.lock_with("account:7", LockOptions::new().fencing(true))?;
    /// let guard = lock.acquire().await?;
    /// if let Some(token) = guard.fencing_token() {
    ///     // update account set balance = $1, fence = $2 where id = 7 and fence < $2
    ///     println!("fence = {token}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<u64> {
        // Most locks have no token, in a forked child as well, so this is checked first.
        self.0.as_ref()?.cell.token()?;
        self.hold().fencing_token()
    }

    /// Why the lock was lost, if it was.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// if let Some(reason) = guard.lost_reason() {
    ///     eprintln!("lost: {}", reason.advice());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.hold().lost_reason()
    }

    /// Waits until the lock is lost. Never completes if it is never lost. The future borrows
    /// nothing, so it can be spawned.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect. A later call reports a loss that happened meanwhile.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// tokio::select! {
    ///     reason = guard.lost() => eprintln!("stop: {reason}"),
    ///     () = work() => guard.release().await?,
    /// }
    /// # async fn work() {}
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        self.hold().lost()
    }

    /// Calls `watcher` once when the lock is lost, on the I/O thread. If the lock is lost already,
    /// calls it at once, on the calling thread. The callback should signal something and return:
    /// while it blocks, the client does nothing else, so calls wait and holds are not renewed.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let stopper = stop.clone();
    /// guard.on_lost(move |_reason| stopper.store(true, Ordering::Relaxed));
    /// while !stop.load(Ordering::Relaxed) {
    ///     // The next step of the work.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(&self, watcher: impl FnOnce(LostReason) + Send + 'static) {
        self.hold().on_lost(watcher);
    }

    /// Releases this level. The lock is free when its last level is released.
    ///
    /// # Errors
    /// `lost` when the lock had been lost before; `not_owner` when its key released the level;
    /// `unavailable` when the server did not confirm before it had been out of reach for the option
    /// `outage` (the lock then ends with its lease at the latest); `closed`. In a forked child this
    /// does nothing and succeeds.
    ///
    /// # Cancel safety
    /// Dropping the operation, sent or not, still releases the level, but does not report whether
    /// that worked.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// if let Err(error) = guard.release().await {
    ///     eprintln!("the work may have overlapped with another holder: {error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(self) -> Operation<()> {
        let Some(armed) = &self.0 else {
            return Operation::known(Outcome::Released, unit);
        };
        let target = Target::Level {
            owner: armed.cell.owner,
            level: armed.level,
        };
        Operation::releasing(Request::Release(target), self, unit)
    }

    /// Enters the lock once more, as the same owner and on the same terms as this guard.
    ///
    /// # Errors
    /// `lost` when the hold is lost, `not_owner` when it was released, `unavailable`. A multi lock
    /// answers `invalid_argument`: acquire it once more with its key.
    ///
    /// # Cancel safety
    /// Dropping the operation leaves the hold as it was.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// let inner = guard.reenter().await?; // two levels
    /// inner.release().await?;
    /// guard.release().await?; // free
    /// # Ok(())
    /// # }
    /// ```
    pub fn reenter(&self) -> Operation<Guard> {
        match &self.0 {
            Some(armed) => self.reenter_on(armed.repeated.terms(armed.cell.kind), None),
            None => Operation::failed(spent()),
        }
    }

    /// See [`GuardExt::parts`](crate::embed::GuardExt::parts).
    pub(crate) fn part_holds(&self) -> Vec<Hold> {
        let Some(Armed { cell, running, .. }) = &self.0 else {
            return Vec::new();
        };
        let parts = cell.parts().iter();
        parts.map(|part| Hold::of(part, running)).collect()
    }

    pub(crate) fn reenter_on(&self, terms: Terms, wait: Option<Duration>) -> Operation<Guard> {
        let Some(armed) = &self.0 else {
            return Operation::failed(spent());
        };
        let own = armed.cell.kind;
        let terms = Terms {
            // The options of a lock of a quorum have the kind that it has on each server.
            kind: if own.is_several() { own } else { terms.kind },
            // The new guard alone is responsible for its level.
            tied: false,
            ..terms
        };
        let (name, key) = (armed.cell.name.clone(), OwnerKey::Hold(armed.level));
        let request = Request::Acquire {
            name,
            key,
            wait,
            terms,
            token: None,
        };
        Operation::on_hold(&armed.running, request, &armed.cell, guard)
    }

    /// Extends the lock, so that it lives at least `lease` from now. Never shortens it, and does
    /// not change whether it is renewed.
    ///
    /// # Errors
    /// `lost`, `invalid_argument` for a lease out of bounds, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent continues.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(guard: redlatch::Guard) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// guard.extend(Duration::from_secs(120)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend(&self, lease: Duration) -> Operation<()> {
        let Some(armed) = &self.0 else {
            return Operation::failed(spent());
        };
        let delay = armed.running.restart_delay.unwrap_or_default();
        if let Err(error) = check_lease(lease).and_then(|()| quorum::check_lease(lease, delay)) {
            return Operation::failed(armed.cell.named(error));
        }
        let target = Target::Level {
            owner: armed.cell.owner,
            level: armed.level,
        };
        let request = Request::Extend { target, lease };
        Operation::on_hold(&armed.running, request, &armed.cell, unit)
    }

    /// Gives up the guard and keeps the level. From now on only its key releases it
    /// ([`Lock::release_by`](crate::Lock::release_by)), and it ends with the key's thread or task.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, ReentryKey};
    ///
    /// let key = ReentryKey::new_task();
    /// let hold = lock.acquire_with(AcquireOptions::new().key(key)).await?.detach();
    /// hold.check()?;
    /// lock.release_by(key).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn detach(mut self) -> Hold {
        let hold = self.hold();
        if let Some(armed) = self.0.take() {
            armed.tie();
        }
        hold
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(armed) = self.0.take() else { return };
        if armed.running.is_forked() {
            // All of this is the parent's. Even dropping it could wake the parent's thread.
            return std::mem::forget(armed);
        }
        armed.running.tell(Input::Dropped {
            owner: armed.cell.owner,
            level: armed.level,
        });
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Guard({:?}, {}held)",
            self.name(),
            if self.is_held() { "" } else { "not " }
        )
    }
}

/// Permits of a `PlainSemaphore`. Dropping it gives them back in the
/// background. [`release`](PlainPermit::release) reports whether that worked.
///
/// It has no lease: the permits of a program that dies never come back. Nor do those that a caller
/// still has when [`Client::close`](crate::Client::close) ends: give them back before. In a forked
/// child it has no effect, because it belongs to the parent.
///
/// # Examples
/// ```no_run
/// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
/// let permit = seats.acquire().await?;
/// permit.release().await?; // or drop it
/// # Ok(())
/// # }
/// ```
#[must_use = "if unused, the permits are given back at once"]
pub struct PlainPermit(Option<Taken>);

pub(crate) struct Taken {
    pub(crate) running: Arc<Running>,
    name: Name,
    permits: u32,
}

impl PlainPermit {
    pub(crate) fn new(running: Arc<Running>, name: Name, permits: u32) -> Self {
        PlainPermit(Some(Taken {
            running,
            name,
            permits,
        }))
    }

    /// The name of the semaphore.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |taken| &taken.name)
    }

    /// How many permits it has.
    pub fn permits(&self) -> usize {
        self.0.as_ref().map_or(0, |taken| taken.permits as usize)
    }

    /// Gives the permits back.
    ///
    /// # Errors
    /// `unavailable` when the server did not confirm within the option `outage`: the permits are
    /// given back as soon as it answers, so do not release them again. `foreign_kind`, `closed`. In a
    /// forked child this does nothing and succeeds.
    ///
    /// # Cancel safety
    /// Dropping the operation, sent or not, still gives the permits back.
    pub fn release(self) -> Operation<()> {
        let Some(taken) = &self.0 else {
            return Operation::known(Outcome::Released, unit);
        };
        let request = Request::Change {
            name: taken.name.clone(),
            change: Change::give(taken.permits),
        };
        Operation::giving_back(request, self, unit)
    }

    /// Keeps the permits taken without a guard, as
    /// [`SemaphorePermit::forget`](https://docs.rs/tokio/latest/tokio/sync/struct.SemaphorePermit.html)
    /// of tokio. `PlainSemaphore::release` gives such permits back,
    /// in this program or in another one.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// seats.acquire_many(2).await?.forget();
    /// seats.release(2).await?; // later, elsewhere
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(mut self) {
        let _ = self.disarm();
    }

    /// Takes the permits out without giving them back.
    pub(crate) fn disarm(&mut self) -> Option<Taken> {
        let taken = self.0.take()?;
        if taken.running.is_forked() {
            // All of this is the parent's. Even dropping it could wake the parent's thread.
            std::mem::forget(taken);
            return None;
        }
        Some(taken)
    }

    /// Fails if it belongs to the parent of this process.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        self.0
            .as_ref()
            .map_or(Ok(()), |taken| taken.running.refuse_fork())
    }
}

impl Drop for PlainPermit {
    fn drop(&mut self) {
        let Some(taken) = self.disarm() else { return };
        taken.running.tell(Input::GivenBack {
            name: taken.name.clone(),
            permits: taken.permits,
        });
    }
}

impl fmt::Debug for PlainPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlainPermit({:?}, {})", self.name(), self.permits())
    }
}

/// Unreachable: the methods that disarm a guard consume it.
pub(crate) fn spent() -> Error {
    Error::new(ErrorKind::Internal, "this guard has given its level away")
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
    Error::new(
        ErrorKind::Internal,
        format!("an answer to another question: {outcome:?}"),
    )
}
