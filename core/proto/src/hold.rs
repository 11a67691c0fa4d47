//! The state of a hold that callers can read without asking the engine: a cell of atomics that the
//! engine writes and the guards read.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::wire::{Form, Kind, Name, OwnerId};

/// Is called once when a hold is lost. Must not block.
pub trait LossListener: Any + Send {
    fn lost(self: Box<Self>, reason: LostReason);
}

/// The listener of a hold. It is boxed twice so that the cell of a hold without one has a single
/// word for it.
pub type Listener = Option<Box<Box<dyn LossListener>>>;

const LIVE: u8 = 0;
const RELEASED: u8 = u8::MAX;
/// This bit of the deadline is set when a reader has observed that the deadline has passed.
const PASSED: u64 = 1 << 63;

/// Few holds have one of these.
enum Rare {
    /// The caller's own token at the key.
    Token(Arc<str>),
    Parts(Parts),
}

/// The holds of a lock that is made of several.
struct Parts {
    /// In the order of their names.
    holds: Box<[Arc<HoldCell>]>,
    /// How many of them have to be held.
    needed: usize,
    /// The one whose loss ended it.
    blamed: OnceLock<OwnerId>,
}

/// The shared view of one hold.
pub struct HoldCell {
    pub name: Name,
    pub key: OwnerKey,
    pub owner: OwnerId,
    pub kind: Kind,
    /// The permits that it has of a semaphore.
    permits: u16,
    /// Boxed, because most holds have neither.
    rare: Option<Box<Rare>>,
    /// The fencing token; 0 if none was asked for.
    token: u64,
    /// In microseconds, as a [`Moment`]. Once the bit [`PASSED`] is set, it no longer changes.
    deadline: AtomicU64,
    count: AtomicU32,
    /// [`LIVE`], [`RELEASED`] or the number of a [`LostReason`].
    state: AtomicU8,
    /// The engine has forgotten this lost hold although its levels were never released.
    forgotten: AtomicBool,
    /// The listener for a loss, if there is one.
    listener: Mutex<Listener>,
}

impl HoldCell {
    pub fn new(name: Name, key: OwnerKey, owner: OwnerId, form: Form, token: Option<u64>) -> Self {
        HoldCell {
            name,
            key,
            owner,
            kind: form.kind,
            permits: form.permits,
            rare: form.token.map(|token| Box::new(Rare::Token(token))),
            token: token.unwrap_or(0),
            deadline: AtomicU64::new(0),
            count: AtomicU32::new(0),
            state: AtomicU8::new(LIVE),
            forgotten: AtomicBool::new(false),
            listener: Mutex::default(),
        }
    }

    /// The hold of a multi lock or of a quorum. It is held while at least `needed` of `holds` are.
    pub fn of_parts(
        name: Name,
        key: OwnerKey,
        owner: OwnerId,
        (kind, needed): (Kind, usize),
        holds: Box<[Arc<HoldCell>]>,
    ) -> Self {
        let form = Form {
            kind,
            ..Form::default()
        };
        let parts = Parts {
            holds,
            needed,
            blamed: OnceLock::new(),
        };
        HoldCell {
            rare: Some(Box::new(Rare::Parts(parts))),
            ..HoldCell::new(name, key, owner, form, None)
        }
    }

    /// The holds of a multi lock, in the order of its names. Empty for any other lock.
    pub fn parts(&self) -> &[Arc<HoldCell>] {
        self.several().map_or(&[], |parts| &parts.holds)
    }

    fn several(&self) -> Option<&Parts> {
        match self.rare.as_deref() {
            Some(Rare::Parts(parts)) => Some(parts),
            _ => None,
        }
    }

    fn value(&self) -> Option<&Arc<str>> {
        match self.rare.as_deref() {
            Some(Rare::Token(token)) => Some(token),
            _ => None,
        }
    }

    /// How the hold is stored in Redis.
    pub fn form(&self) -> Form {
        Form {
            kind: self.kind,
            token: self.value().cloned(),
            permits: self.permits,
        }
    }

    /// The owner as it is in Redis, of a client with this uuid; those of all parts, with commas.
    pub fn owner_name(&self, uuid: &str) -> String {
        match self.parts() {
            [] => self.form().owner(uuid, self.owner),
            parts => {
                let owners = parts.iter().map(|part| part.owner_name(uuid));
                owners.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Whether the caller chose a token of its own for the key.
    pub fn has_value(&self) -> bool {
        self.value().is_some()
    }

    /// Whether the caller chose this token for the key.
    pub fn has_token(&self, token: &str) -> bool {
        self.value().is_some_and(|value| **value == *token)
    }

    /// The fencing token drawn with the first acquisition.
    pub fn token(&self) -> Option<u64> {
        (self.token != 0).then_some(self.token)
    }

    /// The moment after which the hold is no longer trusted.
    pub fn deadline(&self) -> Moment {
        let own = || Moment(self.deadline.load(Ordering::Acquire) & !PASSED);
        let of_parts = |parts: &Parts| {
            let live = |part: &&Arc<HoldCell>| part.told_lost().is_none();
            let live = parts.holds.iter().filter(live);
            let mut deadlines: Vec<Moment> = live.map(|part| part.deadline()).collect();
            deadlines.sort_unstable();
            // At this moment the number of live parts falls below `needed`.
            let at = deadlines.len().checked_sub(parts.needed)?;
            deadlines.get(at).copied()
        };
        match self.several() {
            Some(parts) => of_parts(parts).unwrap_or_default(),
            None => own(),
        }
    }

    /// The number of levels.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the hold can be relied on at `now`.
    pub fn is_held(&self, now: Moment) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
            && match self.several() {
                None => !self.has_passed(now),
                Some(parts) => parts.are_held(now),
            }
    }

    /// Whether the deadline has passed at `now`. Once a reader has observed that, it stays so: the
    /// engine may be about to confirm a renewal with an older reading of the clock, and that must
    /// not revive the hold.
    fn has_passed(&self, now: Moment) -> bool {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        while deadline & PASSED == 0 {
            if now.0 < deadline {
                return false;
            }
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
            match self
                .deadline
                .compare_exchange(deadline, deadline | PASSED, order, otherwise)
            {
                Ok(_) => return true,
                Err(moved) => deadline = moved,
            }
        }
        true
    }

    /// Why the hold was lost. A deadline that has passed at `now` counts before the engine has
    /// noticed it: a process that was paused must not trust its hold when it continues.
    pub fn lost(&self, now: Moment) -> Option<LostReason> {
        match self.state.load(Ordering::Acquire) {
            LIVE => match self.several() {
                None => self.has_passed(now).then_some(LostReason::Expired),
                Some(parts) if parts.are_held(now) => None,
                Some(parts) => parts.last_lost(now).and_then(|part| part.lost(now)),
            },
            RELEASED => None,
            reason => LostReason::from_number(reason),
        }
    }

    /// Whether the hold can be relied on at `now`, as an error.
    ///
    /// # Errors
    /// `lost`, or `not_owner` after its release.
    pub fn check(&self, now: Moment) -> Result<()> {
        match self.lost(now) {
            Some(reason) => {
                let error = Error::from(reason);
                Err(self.named(match self.lost_part(now) {
                    Some(part) => error.of_part(&part.name),
                    None => error,
                }))
            }
            None if self.is_held(now) => Ok(()),
            None => Err(self.named(Error::not_held())),
        }
    }

    /// The part of a multi lock whose loss was told, or that is lost.
    fn lost_part(&self, now: Moment) -> Option<&HoldCell> {
        let parts = self.several()?;
        match parts.blamed.get() {
            Some(owner) => parts.holds.iter().find(|part| part.owner == *owner),
            None => parts.last_lost(now),
        }
        .map(|part| &**part)
    }

    /// Adds the name of the lock or semaphore.
    pub fn named(&self, error: Error) -> Error {
        error.on(&self.name).of(self.kind.thing())
    }

    /// As [`named`](HoldCell::named). Turns `not_owner` into the loss if the engine has already forgotten
    /// that this hold was lost.
    pub fn explain(&self, error: Error) -> Error {
        let forgotten =
            error.kind() == ErrorKind::NotOwner && self.forgotten.load(Ordering::Acquire);
        let reason =
            LostReason::from_number(self.state.load(Ordering::Acquire)).filter(|_| forgotten);
        self.named(reason.map_or(error, Error::from))
    }

    // ---- written by the engine only ----

    /// Moves the deadline. Returns `false` if a reader has observed that it had passed: then it
    /// stays.
    pub fn set_deadline(&self, deadline: Moment) -> bool {
        let next = deadline.0.min(!PASSED);
        let moved = |before| (before & PASSED == 0).then_some(next);
        self.deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, moved)
            .is_ok()
    }

    pub fn set_count(&self, count: u32) {
        self.count.store(count, Ordering::Release);
    }

    pub fn set_released(&self) {
        // Most holds are marked twice, and a load is cheaper than an exchange that fails.
        if self.state.load(Ordering::Acquire) == LIVE {
            let _ =
                self.state
                    .compare_exchange(LIVE, RELEASED, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Marks a lost hold that the engine forgets. Its guards then report the loss by themselves.
    pub fn set_forgotten(&self) {
        self.forgotten.store(true, Ordering::Release);
    }

    /// Notes the part of a multi lock whose loss ended it, if none did before.
    pub fn blame(&self, part: OwnerId) {
        if let Some(parts) = self.several() {
            let _ = parts.blamed.set(part);
        }
    }

    /// How many parts of a multi lock have to be held. 0 for any other lock.
    pub fn needed(&self) -> usize {
        self.several().map_or(0, |parts| parts.needed)
    }

    /// Marks the hold lost. Returns `false` if it was released or lost before: the first reason
    /// stays.
    pub fn set_lost(&self, reason: LostReason) -> bool {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        self.state
            .compare_exchange(LIVE, reason.number(), order, otherwise)
            .is_ok()
    }

    // ---- listening for a loss ----

    fn listener(&self) -> MutexGuard<'_, Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the listener. Once the hold has ended, `change` is not called.
    ///
    /// # Errors
    /// How the hold has ended: the reason if it was lost, `None` if it was released.
    pub fn listen(&self, change: impl FnOnce(&mut Listener)) -> Result<(), Option<LostReason>> {
        let mut listener = self.listener();
        match self.state.load(Ordering::Acquire) {
            LIVE => {
                change(&mut listener);
                Ok(())
            }
            RELEASED => Err(None),
            reason => Err(LostReason::from_number(reason)),
        }
    }

    /// Why the hold was lost, as far as the engine has noticed.
    pub fn told_lost(&self) -> Option<LostReason> {
        LostReason::from_number(self.state.load(Ordering::Acquire))
    }

    /// Calls the listener, once. The driver does this after the engine has marked the loss.
    pub fn tell(&self, reason: LostReason) {
        let listener = self.listener().take();
        if let Some(listener) = listener {
            let _ = catch_unwind(AssertUnwindSafe(|| listener.lost(reason)));
        }
    }
}

impl Parts {
    /// Whether enough of them are held at `now`.
    fn are_held(&self, now: Moment) -> bool {
        let held = self.holds.iter().filter(|part| part.is_held(now));
        held.count() >= self.needed
    }

    /// The part whose loss ended the whole, as far as that can be told: of those that are lost, the one that
    /// would have lived longest.
    fn last_lost(&self, now: Moment) -> Option<&Arc<HoldCell>> {
        let lost = self.holds.iter().filter(|part| part.lost(now).is_some());
        lost.max_by_key(|part| part.deadline())
    }
}

impl fmt::Debug for HoldCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({:?} #{} x{})", self.name, self.owner, self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_seen_to_have_passed_stays() {
        let cell = HoldCell::new("n".into(), OwnerKey::Once, 1, Form::default(), None);
        assert!(cell.set_deadline(Moment(100)));
        assert!(cell.is_held(Moment(99)) && cell.lost(Moment(99)).is_none());
        assert!(cell.set_deadline(Moment(200)));
        assert_eq!(cell.lost(Moment(200)), Some(LostReason::Expired));
        assert!(!cell.set_deadline(Moment(300)));
        assert_eq!(
            (cell.lost(Moment(150)), cell.deadline()),
            (Some(LostReason::Expired), Moment(200))
        );
        assert!(!cell.is_held(Moment(150)));
    }

    #[test]
    fn a_multi_lock_is_held_while_each_part_is() {
        let part = |name: &str, deadline| {
            let cell = HoldCell::new(name.into(), OwnerKey::Once, 1, Form::default(), None);
            assert!(cell.set_deadline(Moment(deadline)));
            Arc::new(cell)
        };
        let (a, b) = (part("a", 100), part("b", 50));
        let parts = Box::new([a.clone(), b.clone()]);
        let cell = HoldCell::of_parts("a, b".into(), OwnerKey::Once, 2, (Kind::Multi, 2), parts);
        assert_eq!(cell.deadline(), Moment(50));
        assert!(cell.is_held(Moment(49)) && cell.lost(Moment(49)).is_none());
        assert!(b.set_deadline(Moment(200)));
        assert!(cell.is_held(Moment(99)));
        assert_eq!(cell.lost(Moment(100)), Some(LostReason::Expired));
        let (a, b) = (part("a", 100), part("b", 100));
        let cell = HoldCell::of_parts(
            "a, b".into(),
            OwnerKey::Once,
            2,
            (Kind::Multi, 2),
            Box::new([a, b.clone()]),
        );
        assert!(b.set_lost(LostReason::Deleted));
        assert!(!cell.is_held(Moment(1)));
        assert_eq!(cell.lost(Moment(1)), Some(LostReason::Deleted));
    }

    #[test]
    fn a_quorum_is_held_while_most_parts_are() {
        let part = |owner, deadline| {
            let cell = HoldCell::new("n".into(), OwnerKey::Once, owner, Form::default(), None);
            assert!(cell.set_deadline(Moment(deadline)));
            Arc::new(cell)
        };
        let (a, b, c) = (part(1, 100), part(2, 50), part(3, 70));
        let parts = Box::new([a.clone(), b.clone(), c.clone()]);
        let cell = HoldCell::of_parts("n".into(), OwnerKey::Once, 4, (Kind::Quorum, 2), parts);
        assert_eq!(cell.deadline(), Moment(70));
        assert!(cell.is_held(Moment(69)) && cell.lost(Moment(69)).is_none());
        assert_eq!(cell.lost(Moment(70)), Some(LostReason::Expired));
        let (a, c) = (part(1, 100), part(3, 70));
        let parts = Box::new([a.clone(), part(2, 50), c]);
        let cell = HoldCell::of_parts("n".into(), OwnerKey::Once, 4, (Kind::Quorum, 2), parts);
        assert!(a.set_lost(LostReason::Deleted));
        assert_eq!(cell.deadline(), Moment(50));
        assert!(cell.is_held(Moment(49)) && !cell.is_held(Moment(50)));
    }
}
