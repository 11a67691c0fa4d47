//! What a caller may ask about its hold without going anywhere: one cell shared by the engine,
//! which writes it, and the guards, which read it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Who is to be told of a loss; mostly nobody or one.
    watcher: Mutex<Option<Box<Watcher>>>,
}

/// Whoever is told.
pub(crate) enum Watcher {
    Called(LostWatcher),
    /// Gets the loss as an entry with this tag.
    Queued(Arc<Queue>, u64),
    /// Wakes the futures that wait for it.
    Woken(Arc<Notify>),
    /// In the order in which they came.
    Several(Vec<Watcher>),
}

impl Watcher {
    fn and(self, next: Watcher) -> Watcher {
        match self {
            Watcher::Several(mut all) => {
                all.push(next);
                Watcher::Several(all)
            }
            first => Watcher::Several(vec![first, next]),
        }
    }

    /// What wakes futures, if some have waited.
    fn signal(&self) -> Option<&Arc<Notify>> {
        match self {
            Watcher::Woken(signal) => Some(signal),
            Watcher::Several(all) => all.iter().find_map(Watcher::signal),
            Watcher::Called(_) | Watcher::Queued(..) => None,
        }
    }

    fn tell(self, reason: LostReason) {
        match self {
            Watcher::Called(watcher) => watcher(reason),
            Watcher::Queued(queue, tag) => queue.push(Entry { tag, outcome: Outcome::Lost(reason) }),
            Watcher::Woken(signal) => signal.notify_waiters(),
            Watcher::Several(all) => {
                for watcher in all {
                    // A panic in one must not keep the loss from the others.
                    let _ = catch_unwind(AssertUnwindSafe(|| watcher.tell(reason)));
                }
            }
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
            watcher: Mutex::default(),
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

    fn watcher(&self) -> MutexGuard<'_, Option<Box<Watcher>>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells `watcher` when the hold is lost, at once if it is lost already.
    /// It is dropped untold when the hold ends by release.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let mut before = self.watcher();
        match self.state.load(Ordering::Acquire) {
            LIVE => add(&mut before, watcher),
            RELEASED => {}
            reason => {
                drop(before);
                if let Some(reason) = LostReason::from_number(reason) {
                    watcher.tell(reason);
                }
            }
        }
    }

    /// Waits for the loss. Cancel-safe.
    pub(crate) async fn lost_async(&self) -> LostReason {
        let signal = self.signal();
        loop {
            // Made before the state is read, so that it hears whatever happens after that.
            let told = signal.notified();
            let state = self.state.load(Ordering::Acquire);
            if let Some(reason) = LostReason::from_number(state) {
                return reason;
            }
            told.await;
        }
    }

    /// What wakes the futures that wait for the loss: one for all of them, so that those which are dropped leave nothing behind.
    fn signal(&self) -> Arc<Notify> {
        let mut watcher = self.watcher();
        if let Some(signal) = watcher.as_ref().and_then(|watcher| watcher.signal()) {
            return signal.clone();
        }
        let signal = Arc::new(Notify::new());
        add(&mut watcher, Watcher::Woken(signal.clone()));
        signal
    }

    /// Tells all watchers and forgets them. The driver does this after the engine marked the loss.
    pub(crate) fn tell(&self, reason: LostReason) {
        let watcher = self.watcher().take();
        if let Some(watcher) = watcher {
            let _ = catch_unwind(AssertUnwindSafe(|| watcher.tell(reason)));
        }
    }
}

fn add(watcher: &mut Option<Box<Watcher>>, next: Watcher) {
    *watcher = Some(match watcher.take() {
        None => Box::new(next),
        Some(before) => Box::new(before.and(next)),
    });
}

impl fmt::Debug for HoldCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({:?} #{} x{})", self.name, self.owner, self.count())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn cell() -> HoldCell {
        HoldCell::new("n".into(), Key::Once, 1, Form::default(), None)
    }

    /// How many are to be told.
    fn watchers(cell: &HoldCell) -> usize {
        match cell.watcher().as_deref() {
            None => 0,
            Some(Watcher::Several(all)) => all.len(),
            Some(_) => 1,
        }
    }

    #[test]
    fn all_who_watch_are_told_once_in_their_order() {
        let (cell, queue, (told, heard)) = (cell(), Queue::with_notify(|| {}), mpsc::channel());
        let note = |number: u8| {
            let told = told.clone();
            Watcher::Called(Box::new(move |_| told.send(number).expect("somebody listens")))
        };
        cell.watch(note(1));
        cell.watch(Watcher::Called(Box::new(|_| panic!("a watcher that panics harms no other"))));
        cell.watch(Watcher::Queued(queue.clone(), 7));
        cell.watch(note(2));
        let mut lost = pin!(cell.lost_async());
        let mut context = Context::from_waker(Waker::noop());
        assert!(lost.as_mut().poll(&mut context).is_pending());
        assert!(cell.set_lost(LostReason::Deleted));
        for _ in 0..2 {
            cell.tell(LostReason::Deleted);
        }
        assert_eq!(lost.as_mut().poll(&mut context), Poll::Ready(LostReason::Deleted));
        cell.watch(note(3));
        assert_eq!(heard.try_iter().collect::<Vec<u8>>(), [1, 2, 3]);
        assert!(matches!(queue.drain()[..], [Entry { tag: 7, outcome: Outcome::Lost(LostReason::Deleted) }]));
    }

    #[test]
    fn futures_that_are_dropped_leave_one_watcher_behind_at_most() {
        let cell = cell();
        for others in 0..3 {
            for _ in 0..10 {
                assert!(pin!(cell.lost_async()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            assert_eq!(watchers(&cell), 1 + others);
            cell.watch(Watcher::Called(Box::new(|_| {})));
        }
    }
}
