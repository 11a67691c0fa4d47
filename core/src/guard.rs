//! A level of a hold, as something that can be dropped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Running;
use crate::engine::{Input, Lease, LevelId, Request, Target, Terms};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::hold::HoldCell;
use crate::lock::Hold;
use crate::moment::Span;
use crate::operation::Operation;
use crate::options::{AcquireOptions, LockOptions, check_lease};
use crate::owner::Key;
use crate::queue::{Outcome, Queue};
use crate::wire::{Fencing, Kind};

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
    /// How the level is held; re-entering does the same.
    manner: Manner,
}

/// What a re-entry on the same terms needs to know of them: the rest is the hold's.
#[derive(Clone, Copy)]
struct Manner {
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

impl Manner {
    fn of(terms: &Terms) -> Manner {
        let (mode, lease) = match terms.lease {
            Lease::Watchdog(lease) => (Mode::Watchdog, lease),
            Lease::Fixed(lease) => (Mode::Fixed, lease),
            Lease::Adaptive(lease) => (Mode::Adaptive, lease),
        };
        Manner { lease: lease.into(), mode, tied: terms.tied, replicas: terms.replicas }
    }

    /// Terms of a re-entry by hold, to which the others have no meaning.
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
        }
    }
}

impl Armed {
    /// Ties the level to its key, unless it was acquired so.
    fn tie(&self) {
        if !self.manner.tied {
            self.running.tell(Input::Detached { owner: self.cell.owner, level: self.level });
        }
    }
}

impl Guard {
    pub(crate) fn new(running: Arc<Running>, cell: Arc<HoldCell>, level: LevelId, terms: &Terms) -> Self {
        Guard(Some(Armed { running, cell, level, manner: Manner::of(terms) }))
    }

    /// Forgets the level without releasing it: somebody else answers for it now.
    pub(crate) fn disarm(mut self) -> Option<(Arc<Running>, Arc<HoldCell>, LevelId)> {
        self.0.take().map(|Armed { running, cell, level, .. }| (running, cell, level))
    }

    /// Whether it belongs to this process.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |armed| armed.running.refuse_fork())
    }

    /// The local view of the hold; it stays readable after the release.
    pub fn hold(&self) -> Hold {
        // A guard is disarmed only by the methods that consume it.
        self.0.as_ref().map_or(Hold::NONE, |armed| Hold::of(&armed.cell, &armed.running))
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("", |armed| &armed.cell.name)
    }

    /// The owner as it stands in Redis: `<client uuid>:<number>`. Callers of one client that passed the lock on to each other
    /// within a few milliseconds have the same one.
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
    /// `lost` with the reason; `not_owner` when the level was released by its key; `forked` in a
    /// child process.
    pub fn check(&self) -> Result<()> {
        self.hold().check()
    }

    /// How long the lock can be relied on if nothing more is heard from Redis; zero once lost.
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// The instant until which the lock can be relied on if nothing more is heard from Redis.
    ///
    /// Renewals move it on. The promise is kept by a clock that counts the time in suspend; `Instant` does not count
    /// it, so ask again after a suspend.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How many levels the hold has.
    pub fn hold_count(&self) -> u32 {
        self.hold().count()
    }

    /// The fencing token, if the lock draws them.
    pub fn fencing_token(&self) -> Option<u64> {
        // Most locks draw none, which is so in a child as well.
        self.0.as_ref()?.cell.token()?;
        self.hold().fencing_token()
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.hold().lost_reason()
    }

    /// Waits until the lock is lost; for ever if it never is. The future borrows nothing, so it can
    /// be spawned.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; calling again tells a loss that came meanwhile.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        self.hold().lost()
    }

    /// Calls `watcher` once when the lock is lost, on the engine's thread: signal something and
    /// return. While it blocks, nothing of this client goes on: calls wait, and what is held is not
    /// renewed. If it is lost already, `watcher` is called at once, on the calling thread.
    pub fn on_lost(&self, watcher: impl FnOnce(LostReason) + Send + 'static) {
        self.hold().on_lost(watcher);
    }

    /// Puts [`Outcome::Lost`] into `queue` under `tag` when the lock is lost.
    pub fn watch_lost(&self, queue: &Arc<Queue>, tag: u64) {
        self.hold().watch_lost(queue, tag);
    }

    /// Gives back this level; the lock is free when the last level is.
    ///
    /// # Errors
    /// `lost` when the lock had been lost before; `not_owner` when its key released the level;
    /// `unavailable` when the server did not confirm (the lock then ends with its lease at the
    /// latest); `closed`. In a forked child nothing happens, without an error.
    ///
    /// # Cancel safety
    /// Dropping the operation, sent or not, releases all the same, but does not tell.
    pub fn release(self) -> Operation<()> {
        let Some(armed) = &self.0 else { return Operation::known(Outcome::Released, unit) };
        let target = Target::Level { owner: armed.cell.owner, level: armed.level };
        Operation::releasing(Request::Release(target), self, unit)
    }

    /// Holds the lock once more, as the same owner and on the same terms as this guard.
    ///
    /// # Errors
    /// `lost` when the hold is lost, `not_owner` when it was released, `unavailable`.
    ///
    /// # Cancel safety
    /// Dropping the operation leaves the hold as it was.
    pub fn reenter(&self) -> Operation<Guard> {
        match &self.0 {
            Some(armed) => self.reenter_on(armed.manner.terms(armed.cell.kind), None),
            None => Operation::failed(spent()),
        }
    }

    /// Like [`reenter`](Guard::reenter), on terms of its own. Mixing leases never shortens what
    /// remains, and the lock is renewed while any of its levels is to be. The key of `acquire` has no
    /// meaning here.
    ///
    /// # Errors
    /// As [`reenter`](Guard::reenter), and `invalid_argument` for options out of bounds.
    pub fn reenter_with(&self, lock: &LockOptions, acquire: AcquireOptions) -> Operation<Guard> {
        match acquire.validate_for(lock.kind).and_then(|()| lock.validate()) {
            Ok(()) => self.reenter_on(lock.terms(&acquire), acquire.wait),
            Err(error) => Operation::failed(error),
        }
    }

    fn reenter_on(&self, terms: Terms, wait: Option<Duration>) -> Operation<Guard> {
        let Some(armed) = &self.0 else { return Operation::failed(spent()) };
        // The new guard answers for its level alone.
        let terms = Terms { tied: false, ..terms };
        let (name, key) = (armed.cell.name.clone(), Key::Hold(armed.level));
        let request = Request::Acquire { name, key, wait, terms, token: None };
        Operation::on_hold(&armed.running, request, &armed.cell, guard)
    }

    /// Makes the lock live at least `lease` from now; never shortens it, and does not change
    /// whether it is renewed.
    ///
    /// # Errors
    /// `lost`, `invalid_argument` for a lease out of bounds, `unavailable`.
    ///
    /// # Cancel safety
    /// An extension that was sent goes on.
    pub fn extend(&self, lease: Duration) -> Operation<()> {
        let Some(armed) = &self.0 else {
            return Operation::failed(spent());
        };
        if let Err(error) = check_lease(lease) {
            return Operation::failed(error.on(&armed.cell.name));
        }
        let target = Target::Level { owner: armed.cell.owner, level: armed.level };
        let request = Request::Extend { target, lease };
        Operation::on_hold(&armed.running, request, &armed.cell, unit)
    }

    /// Gives up the guard and keeps the level: from now on only its key releases it
    /// ([`Lock::release_by`](crate::Lock::release_by)), and it ends with its thread or task.
    pub fn detach(mut self) -> Hold {
        let hold = self.hold();
        if let Some(armed) = self.0.take() {
            armed.tie();
        }
        hold
    }

    /// Ties the level to its key as well as to this guard, as
    /// [`AcquireOptions::tied_to_key`] does from the start: when the key's thread or task has ended,
    /// the level is not renewed any more, whoever still has the guard.
    pub fn tie_to_key(&self) {
        if let Some(armed) = &self.0 {
            armed.tie();
        }
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
        write!(f, "Guard({:?}, {}held)", self.name(), if self.is_held() { "" } else { "not " })
    }
}

/// Cannot be seen: the methods that spend a guard consume it.
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
    Error::new(ErrorKind::Internal, format!("an answer to another question: {outcome:?}"))
}
