//! What a caller may ask about its hold without going anywhere: one cell shared by the engine,
//! which writes it, and the guards, which read it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, LostReason};
use crate::moment::Moment;
use crate::owner::Key;
use crate::queue::{Entry, Outcome, Queue};
use crate::wire::{Form, Kind, Name, OwnerId};

/// Called once, on the engine's thread, when the hold is lost. Must not block.
pub(crate) type LostWatcher = Box<dyn FnOnce(LostReason) + Send>;

const LIVE: u8 = 0;
const RELEASED: u8 = u8::MAX;

/// The shared view of one hold.
pub(crate) struct HoldCell {
    pub(crate) name: Name,
    pub(crate) key: Key,
    pub(crate) owner: OwnerId,
    pub(crate) kind: Kind,
    /// The value that its caller wanted; boxed, since most want none.
    value: Option<Box<Arc<str>>>,
    /// The fencing token; 0 when none was asked for.
    token: u64,
    deadline: AtomicU64,
    count: AtomicU32,
    /// [`LIVE`], [`RELEASED`] or the number of a [`LostReason`].
    state: AtomicU8,
    /// The engine does not know of it any more, though nobody has given back what was lost.
    forgotten: AtomicBool,
    /// Made for the first who wants to be told of a loss, or when there is one.
    told: OnceLock<Box<Told>>,
}

/// Who is to be told of a loss.
#[derive(Default)]
struct Told {
    watchers: Mutex<Watchers>,
    /// Wakes the futures that wait for it.
    signal: Notify,
}

/// Seldom more than one, and there may be very many holds.
#[derive(Default)]
struct Watchers {
    first: Option<Watcher>,
    more: Vec<Watcher>,
}

impl Watchers {
    fn push(&mut self, watcher: Watcher) {
        match self.first {
            None => self.first = Some(watcher),
            Some(_) => self.more.push(watcher),
        }
    }
}

/// Whoever is told.
pub(crate) enum Watcher {
    Called(LostWatcher),
    /// Gets the loss as an entry with this tag.
    Queued(Arc<Queue>, u64),
}

impl Watcher {
    fn tell(self, reason: LostReason) {
        match self {
            Watcher::Called(watcher) => watcher(reason),
            Watcher::Queued(queue, tag) => queue.push(Entry { tag, outcome: Outcome::Lost(reason) }),
        }
    }
}

impl HoldCell {
    pub(crate) fn new(name: Name, key: Key, owner: OwnerId, form: Form, token: Option<u64>) -> Self {
        HoldCell {
            name,
            key,
            owner,
            kind: form.kind,
            value: form.token.map(Box::new),
            token: token.unwrap_or(0),
            deadline: AtomicU64::new(0),
            count: AtomicU32::new(0),
            state: AtomicU8::new(LIVE),
            forgotten: AtomicBool::new(false),
            told: OnceLock::new(),
        }
    }

    /// How it stands in Redis.
    pub(crate) fn form(&self) -> Form {
        Form { kind: self.kind, token: self.value.as_deref().cloned() }
    }

    /// Whether its caller wanted a value of its own at the key.
    pub(crate) fn has_value(&self) -> bool {
        self.value.is_some()
    }

    /// The fencing token drawn with the first acquisition.
    pub(crate) fn token(&self) -> Option<u64> {
        (self.token != 0).then_some(self.token)
    }

    /// The moment after which the hold is not trusted any more.
    pub(crate) fn deadline(&self) -> Moment {
        Moment(self.deadline.load(Ordering::Acquire))
    }

    /// How many levels the hold has.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the hold can be relied on at `now`.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.state.load(Ordering::Acquire) == LIVE && now < self.deadline()
    }

    /// Why the hold was lost; a deadline that has passed at `now` counts even before the engine
    /// has noticed it (a paused process must not trust its hold when it continues).
    pub(crate) fn lost(&self, now: Moment) -> Option<LostReason> {
        match self.state.load(Ordering::Acquire) {
            LIVE => (now >= self.deadline()).then_some(LostReason::Expired),
            RELEASED => None,
            reason => LostReason::from_number(reason),
        }
    }

    /// What a guard is told that got this error from an engine: the loss, of which the engine may not know any more.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let forgotten = error.kind() == ErrorKind::NotOwner && self.forgotten.load(Ordering::Acquire);
        let reason = LostReason::from_number(self.state.load(Ordering::Acquire)).filter(|_| forgotten);
        reason.map_or(error, |reason| Error::lost(&self.name, reason))
    }

    // ---- written by the engine only ----

    pub(crate) fn set_deadline(&self, deadline: Moment) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    pub(crate) fn set_count(&self, count: u32) {
        self.count.store(count, Ordering::Release);
    }

    pub(crate) fn set_released(&self) {
        // Most are told so twice.
        if self.state.load(Ordering::Acquire) == LIVE {
            let _ = self.state.compare_exchange(LIVE, RELEASED, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// The engine forgets the hold, which was lost: guards that are still there know by themselves.
    pub(crate) fn set_forgotten(&self) {
        self.forgotten.store(true, Ordering::Release);
    }

    /// Marks the hold lost; `false` if it was released or lost before: the first news stays.
    pub(crate) fn set_lost(&self, reason: LostReason) -> bool {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(LIVE, reason.number(), order, otherwise).is_ok()
    }

    // ---- told of a loss ----

    /// Made by whoever comes first, those who tell included: so that who watches and who tells meet at one lock.
    fn told(&self) -> &Told {
        self.told.get_or_init(Box::default)
    }

    /// Tells `watcher` when the hold is lost, at once if it is lost already.
    /// It is dropped untold when the hold ends by release.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let mut watchers = self.told().watchers.lock().unwrap_or_else(PoisonError::into_inner);
        match self.state.load(Ordering::Acquire) {
            LIVE => watchers.push(watcher),
            RELEASED => {}
            reason => {
                drop(watchers);
                if let Some(reason) = LostReason::from_number(reason) {
                    watcher.tell(reason);
                }
            }
        }
    }

    /// Waits for the loss. Cancel-safe; leaves nothing behind when dropped.
    pub(crate) async fn lost_async(&self) -> LostReason {
        loop {
            // Made before the state is read, so that it hears whatever happens after that.
            let told = self.told().signal.notified();
            let state = self.state.load(Ordering::Acquire);
            if let Some(reason) = LostReason::from_number(state) {
                return reason;
            }
            told.await;
        }
    }

    /// Calls and forgets all watchers. The driver does this after the engine marked the loss.
    pub(crate) fn tell(&self, reason: LostReason) {
        let told = self.told();
        let watchers = std::mem::take(&mut *told.watchers.lock().unwrap_or_else(PoisonError::into_inner));
        told.signal.notify_waiters();
        for watcher in watchers.first.into_iter().chain(watchers.more) {
            // A panic in one must not keep the loss from the others.
            let _ = catch_unwind(AssertUnwindSafe(|| watcher.tell(reason)));
        }
    }
}

impl fmt::Debug for HoldCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({:?} #{} x{})", self.name, self.owner, self.count())
    }
}
