//! A completion queue: the I/O thread fills it, the event loop of another language drains it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::error::{Error, LostReason, Result};
use crate::guard::{Guard, PlainPermit};
use crate::loss::Watcher;
use crate::maps::Map;
use crate::operation::{Cancelled, Pending};
use crate::process;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::EventFd;
use crate::wake_list;
use crate::wire::{Holder, Permits};
use crate::yield_budget::YieldBudget;

/// The result of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The server was reached.
    Connected,
    /// The lock is held. Dropping the guard releases it.
    Granted(Guard),
    /// The level was released.
    Released,
    /// The lease was extended.
    Extended,
    /// Whether there was a lock to delete.
    Forced(bool),
    /// The holder of the lock, if there is one.
    Inspected(Vec<Holder>),
    /// The permits of a semaphore.
    Counted(Permits),
    /// Permits of a plain semaphore are taken. Dropping the permit gives them back.
    Taken(PlainPermit),
    /// The latch is at 0.
    Open,
    /// Whether a counter was set: it had no number yet.
    Set(bool),
    /// The number of a counter, or how many permits were drained.
    Number(i64),
    /// The client is closed. These locks could not be released in time.
    Closed(Vec<String>),
    /// The operation failed.
    Failed(Error),
    /// A watched hold was lost.
    Lost(LostReason),
}

/// One answer, with the caller's own word for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion<T = u64> {
    /// The tag given to [`deliver_to`](crate::embed::OperationExt::deliver_to) or
    /// [`watch_lost`](crate::embed::GuardExt::watch_lost).
    pub tag: T,
    /// The result of the operation, or the loss of a watched hold.
    pub outcome: Outcome,
}

/// Collects answers until an event loop drains them. Keeps the caller's word for each, its tag:
/// the promise or the future that waits, for example.
///
/// The queue drops a tag that is not drained on the thread that closes it, cancels its operation or
/// sends on a closed queue. Some tags can be dropped on any thread: those of losses, with the last
/// view of the hold or when the queue is closed, and those in a queue that nobody has closed.
///
/// When the queue is closed or dropped, the locks that were granted by entries still in it are
/// released. A queue serves the process that made it; in a forked child it is always empty.
pub struct CompletionQueue<T = u64> {
    state: Mutex<QueueState<T>>,
    signal: Signal,
    /// The budget of answers that do not go through the queue.
    series: YieldBudget,
    /// The ticket that was drawn last.
    last: AtomicU64,
    /// The process that made it. Compared before the lock is taken: a forked child may have
    /// inherited the lock in its locked state, and it shares the descriptor with its parent.
    pid: u32,
}

struct QueueState<T> {
    /// The operations without an answer, by their tickets.
    asked: Map<u64, (T, Pending)>,
    entries: VecDeque<Entry<T>>,
    /// The event loop was signalled and has not drained the queue since, or is still draining it.
    told: bool,
    closed: bool,
}

impl<T> QueueState<T> {
    /// All tags.
    fn tags(&self) -> impl Iterator<Item = &T> {
        let asked = self.asked.values().map(|(tag, _)| tag);
        asked.chain(self.entries.iter().map(|(_, entry)| &entry.tag))
    }
}

/// An answer and its ticket; a loss has the ticket 0.
type Entry<T> = (u64, Completion<T>);

enum Signal {
    Fd(EventFd),
    Notify(Box<dyn Fn() + Send + Sync>),
}

/// The queue of an operation, whatever its tags are.
pub(crate) trait Answers: Send + Sync {
    /// Puts the answer in. To be [finished](Entered::finish) once the caller holds no lock.
    fn answered(self: Arc<Self>, ticket: u64, outcome: Outcome) -> Entered;
    fn notify(&self);
}

/// The rest of an entry into a queue: a signal, and what is dropped.
#[must_use]
#[derive(Default)]
pub(crate) struct Entered {
    signal: Option<Arc<dyn Answers>>,
    /// An answer that nobody wants: dropping it may release a lock.
    unwanted: Option<Outcome>,
    pending: Option<Pending>,
    /// The queue itself. Dropping the last reference to it drops its entries.
    queue: Option<Arc<dyn Answers>>,
}

impl Entered {
    pub(crate) fn finish(self) {
        if let Some(queue) = self.signal {
            queue.notify();
        }
        drop((self.unwanted, self.pending, self.queue));
    }
}

impl<T: Send + 'static> CompletionQueue<T> {
    /// A queue with a descriptor that is readable while entries wait. On Windows it is a socket.
    ///
    /// # Errors
    /// `unavailable` when the system has no descriptor left.
    pub fn with_fd() -> Result<Arc<Self>> {
        let fd = EventFd::new()
            .map_err(|error| Error::exhausted("cannot make an event descriptor", &error))?;
        Ok(Self::new(Signal::Fd(fd)))
    }

    /// A queue that calls `notify` when an entry comes into it while it is empty.
    ///
    /// `notify` runs on the I/O thread, or on the thread of a caller that sends an operation or
    /// releases or drops a guard. It must not block, nor take a mutex that is held while a caller
    /// does so.
    pub fn with_notify(notify: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Self::new(Signal::Notify(Box::new(notify)))
    }

    fn new(signal: Signal) -> Arc<Self> {
        let state = QueueState {
            asked: Map::default(),
            entries: VecDeque::new(),
            told: false,
            closed: false,
        };
        Arc::new(CompletionQueue {
            state: Mutex::new(state),
            signal,
            series: YieldBudget::new(),
            last: AtomicU64::new(0),
            pid: process::id(),
        })
    }

    /// The descriptor to poll, for a queue that has one. It belongs to the queue: never read or
    /// close it.
    pub fn fd(&self) -> Option<i32> {
        match &self.signal {
            Signal::Fd(fd) => Some(fd.as_raw()),
            Signal::Notify(_) => None,
        }
    }

    /// Draws a ticket: the number of an operation, which no other one of this queue has.
    pub fn next_ticket(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes all entries, oldest first. Never blocks.
    pub fn drain(&self) -> Vec<Completion<T>> {
        let Some(mut state) = self.state() else {
            return Vec::new();
        };
        self.clear(&mut state);
        let entries = std::mem::take(&mut state.entries);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Takes entries one by one, including those that arrive while draining. These need no signal.
    ///
    /// It ends early, so that the event loop can serve others, when the loop has spent its budget
    /// of answers in a row (as in [`deliver_soon`](crate::embed::OperationExt::deliver_soon)). If
    /// entries are left then, the queue is signalled again. Never blocks.
    pub fn serve(&self) -> Serving<'_, T> {
        Serving {
            queue: self,
            left: 0,
            series: YieldBudget::new(),
        }
    }

    /// Takes the oldest entry; the descriptor stays readable while there are more. Never blocks.
    pub fn pop(&self) -> Option<Completion<T>> {
        let mut state = self.state()?;
        let entry = state.entries.pop_front();
        if state.entries.is_empty() {
            self.clear(&mut state);
        }
        entry.map(|(_, entry)| entry)
    }

    /// Cancels the operation with this ticket, unless it is answered already. Never blocks.
    pub fn cancel(&self, ticket: u64) -> Cancelled {
        let asked = self
            .state()
            .and_then(|mut state| state.asked.remove(&ticket));
        match asked {
            Some((_, pending)) => {
                pending.cancel();
                Cancelled::Yes
            }
            None => Cancelled::No,
        }
    }

    /// Cancels the operation with this ticket, or drops its entry if it is answered already.
    /// Never blocks.
    pub fn forget(&self, ticket: u64) {
        if self.cancel(ticket) == Cancelled::Yes {
            return;
        }
        let Some(mut state) = self.state() else {
            return;
        };
        let at = state.entries.iter().position(|(known, _)| *known == ticket);
        let entry = at.and_then(|at| state.entries.remove(at));
        // Without an entry the signal may be one of other news.
        if entry.is_some() && state.entries.is_empty() {
            self.clear(&mut state);
        }
        drop(state);
        drop(entry);
    }

    /// Calls `visit` for the tag of every operation without an answer and of every entry, until it
    /// fails. `visit` must not use the queue.
    ///
    /// # Errors
    /// The error of `visit`.
    pub fn try_each<E>(
        &self,
        visit: impl FnMut(&T) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        match self.state() {
            Some(state) => state.tags().try_for_each(visit),
            None => Ok(()),
        }
    }

    /// Whether no operation is without an answer, and no entry waits.
    pub fn is_idle(&self) -> bool {
        self.state()
            .is_none_or(|state| state.asked.is_empty() && state.entries.is_empty())
    }

    /// Cancels all operations, and drops all entries, present and future. Locks that they have
    /// granted are released.
    pub fn close(&self) {
        let Some(mut state) = self.state() else {
            return;
        };
        state.closed = true;
        self.clear(&mut state);
        let entries = std::mem::take(&mut state.entries);
        let asked = std::mem::take(&mut state.asked);
        drop(state);
        drop(entries);
        for (_, pending) in asked.into_values() {
            pending.cancel();
        }
    }

    /// Signals the event loop without an entry: for other news, such as events. Never blocks.
    pub fn wake(&self) {
        if self.is_ours() && self.signal() {
            self.notify();
        }
    }

    /// The budget of inline answers of the event loop, which has one thread.
    pub(crate) fn series(&self) -> &YieldBudget {
        &self.series
    }

    /// A listener that puts the loss of a hold in, under `tag`.
    pub(crate) fn watcher(self: &Arc<Self>, tag: T) -> Watcher {
        let queue = self.clone();
        Watcher::Called(Box::new(move |reason| {
            queue.push(0, tag, Outcome::Lost(reason));
        }))
    }

    /// Notes an operation that was sent.
    pub(crate) fn expect(&self, ticket: u64, tag: T, pending: Pending) {
        let Some(mut state) = self.state() else {
            return;
        };
        if state.closed {
            drop(state);
            pending.cancel();
            return;
        }
        state.asked.insert(ticket, (tag, pending));
    }

    /// Puts in an entry that no operation was noted for.
    pub(crate) fn push(self: &Arc<Self>, ticket: u64, tag: T, outcome: Outcome) {
        if let Some(state) = self.state() {
            self.enter(state, ticket, Completion { tag, outcome })
                .finish();
        }
    }

    /// Puts an entry in. The caller notifies when it holds no lock any more. The I/O thread
    /// notifies after it has entered all answers that it has, because a loop that is woken by the
    /// first takes the processor from it.
    fn enter(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, QueueState<T>>,
        ticket: u64,
        entry: Completion<T>,
    ) -> Entered {
        if state.closed {
            // Parameters are dropped in reverse order: the tag would be dropped under the lock.
            drop(state);
            return Entered {
                unwanted: Some(entry.outcome),
                ..Entered::default()
            };
        }
        state.entries.push_back((ticket, entry));
        let told = std::mem::replace(&mut state.told, true) || wake_list::leave(self);
        Entered {
            signal: (!told && self.signal()).then(|| self.clone() as Arc<dyn Answers>),
            ..Entered::default()
        }
    }

    /// Makes the descriptor readable. Returns true if there is a callback to be called instead.
    fn signal(&self) -> bool {
        match &self.signal {
            Signal::Fd(fd) => {
                fd.notify();
                false
            }
            Signal::Notify(_) => true,
        }
    }
}

impl<T> CompletionQueue<T> {
    /// Calls the callback, if there is one.
    fn notify(&self) {
        if let Signal::Notify(notify) = &self.signal {
            notify();
        }
    }

    /// Makes the descriptor unreadable. The lock is held, so that the descriptor always matches the
    /// queue.
    fn clear(&self, state: &mut QueueState<T>) {
        state.told = false;
        if let Signal::Fd(fd) = &self.signal {
            fd.clear();
        }
    }

    /// The entries; `None` in a forked child.
    fn state(&self) -> Option<MutexGuard<'_, QueueState<T>>> {
        self.is_ours()
            .then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_ours(&self) -> bool {
        self.pid == process::id()
    }
}

impl<T: Send + 'static> Answers for CompletionQueue<T> {
    fn answered(self: Arc<Self>, ticket: u64, outcome: Outcome) -> Entered {
        let entered = {
            let asked = self.state().and_then(|mut state| {
                let (tag, pending) = state.asked.remove(&ticket)?;
                Some((state, tag, pending))
            });
            match asked {
                Some((state, tag, pending)) => Entered {
                    pending: Some(pending),
                    ..self.enter(state, ticket, Completion { tag, outcome })
                },
                None => Entered {
                    unwanted: Some(outcome),
                    ..Entered::default()
                },
            }
        };
        Entered {
            queue: Some(self),
            ..entered
        }
    }

    fn notify(&self) {
        self.notify();
    }
}

impl<T: Send + 'static> wake_list::Deferred for CompletionQueue<T> {
    fn tell(&self) {
        let Some(state) = self.state().filter(|state| !state.entries.is_empty()) else {
            return;
        };
        let notify = self.signal();
        drop(state);
        if notify {
            self.notify();
        }
    }
}

/// The entries of a [`CompletionQueue`], one after the other; see [`CompletionQueue::serve`].
///
/// Entries that were not served yet stay in the queue, where a nested event loop finds them.
pub struct Serving<'a, T = u64> {
    queue: &'a CompletionQueue<T>,
    /// How many entries may be taken before the budget is checked again.
    left: usize,
    /// The budget of this draining.
    series: YieldBudget,
}

impl<T> Iterator for Serving<'_, T> {
    type Item = Completion<T>;

    fn next(&mut self) -> Option<Completion<T>> {
        let mut state = self.queue.state()?;
        if self.left == 0 && self.series.has_remaining() {
            self.left = state.entries.len();
        }
        self.left = self.left.checked_sub(1)?;
        state.entries.pop_front().map(|(_, entry)| entry)
    }
}

impl<T> Drop for Serving<'_, T> {
    fn drop(&mut self) {
        let Some(mut state) = self.queue.state() else {
            return;
        };
        if state.entries.is_empty() {
            self.queue.clear(&mut state);
            return;
        }
        drop(state);
        // A descriptor is still readable.
        self.queue.notify();
    }
}

impl<T> fmt::Debug for Serving<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({:?})", self.queue)
    }
}

impl<T> fmt::Debug for CompletionQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CompletionQueue({} waiting)",
            self.state().map_or(0, |state| state.entries.len())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake_list::{DeferredWakers, WakeScope};
    use std::sync::Weak;
    use std::sync::atomic::AtomicU32;

    fn put(queue: &Arc<CompletionQueue>, tag: u64) {
        queue.push(tag, tag, Outcome::Connected);
    }

    fn tags(entries: impl IntoIterator<Item = Completion>) -> Vec<u64> {
        entries.into_iter().map(|entry| entry.tag).collect()
    }

    fn counted() -> (Arc<CompletionQueue>, Arc<AtomicU32>) {
        let told = Arc::new(AtomicU32::new(0));
        let counter = told.clone();
        let count = move || {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        (CompletionQueue::with_notify(count), told)
    }

    #[test]
    fn an_unwanted_entry_is_taken_from_the_middle() {
        let (queue, told) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        [2, 2].into_iter().for_each(|ticket| queue.forget(ticket));
        assert_eq!(tags(queue.drain()), [1, 3]);
        put(&queue, 4);
        queue.forget(4);
        put(&queue, 5);
        assert_eq!(
            told.load(Ordering::SeqCst),
            3,
            "an empty queue has told of nothing"
        );
    }

    /// A tag that says when it is dropped while its queue is locked.
    struct Watchful(Weak<CompletionQueue<Watchful>>, Arc<AtomicU32>);

    impl Drop for Watchful {
        fn drop(&mut self) {
            let queue = self.0.upgrade();
            if queue.is_some_and(|queue| queue.state.try_lock().is_err()) {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn no_tag_is_dropped_under_the_lock() {
        let queue = CompletionQueue::with_notify(|| {});
        let locked = Arc::new(AtomicU32::new(0));
        let put = |ticket| {
            let tag = Watchful(Arc::downgrade(&queue), locked.clone());
            queue.push(ticket, tag, Outcome::Connected);
        };
        (1..4).for_each(put);
        queue.forget(1);
        drop(queue.pop());
        queue.forget(3);
        put(4);
        queue.close();
        put(5);
        assert_eq!(locked.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn forgetting_an_unknown_ticket_keeps_the_signal() -> Result<()> {
        let queue: Arc<CompletionQueue> = CompletionQueue::with_fd()?;
        let Signal::Fd(fd) = &queue.signal else {
            unreachable!("it has a descriptor")
        };
        queue.wake();
        queue.forget(7);
        assert!(fd.is_readable());
        Ok(())
    }

    #[test]
    fn entries_that_arrive_while_draining_need_no_signal() {
        let (queue, told) = counted();
        put(&queue, 1);
        let mut serving = queue.serve();
        for tag in 1..10 {
            assert_eq!(serving.next().map(|entry| entry.tag), Some(tag));
            put(&queue, tag + 1);
        }
        assert_eq!(tags(&mut serving), [10]);
        drop(serving);
        assert_eq!(told.load(Ordering::SeqCst), 1);
        put(&queue, 11);
        assert_eq!(
            (told.load(Ordering::SeqCst), tags(queue.drain())),
            (2, vec![11])
        );
    }

    #[test]
    fn entries_pushed_together_signal_once_if_they_are_still_there() {
        let ((queue, told), tasks) = (counted(), DeferredWakers::default());
        let told = || told.load(Ordering::SeqCst);
        let together = WakeScope::new(&tasks);
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        assert_eq!((told(), together.has_any()), (0, true));
        drop(together);
        assert_eq!((told(), tags(queue.drain())), (1, vec![1, 2, 3]));

        let together = WakeScope::new(&tasks);
        put(&queue, 4);
        assert_eq!(tags(queue.drain()), [4]);
        drop(together);
        assert_eq!(told(), 1, "nothing is left");
        put(&queue, 5);
        assert_eq!(told(), 2);
    }

    #[test]
    fn a_nested_drain_finds_the_other_entries() {
        let (queue, _) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(1));
        assert_eq!(tags(queue.serve()), [2, 3]);
        assert!(serving.next().is_none());
    }

    #[test]
    fn an_endless_drain_yields_to_the_loop() {
        let (queue, told) = counted();
        put(&queue, 0);
        let mut last = 0;
        for entry in queue.serve() {
            last = entry.tag;
            put(&queue, last + 1);
        }
        assert!(last > 1, "and not after the first one");
        assert_eq!(
            (told.load(Ordering::SeqCst), tags(queue.drain())),
            (2, vec![last + 1])
        );
    }

    #[test]
    fn an_undelivered_entry_comes_first_next_time() {
        let (queue, told) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(1));
        put(&queue, 4);
        drop(serving);
        assert_eq!(
            (told.load(Ordering::SeqCst), tags(queue.drain())),
            (2, vec![2, 3, 4])
        );
        put(&queue, 5);
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(5));
        queue.close();
        drop(serving);
        assert!(tags(queue.drain()).is_empty());
    }
}

#[cfg(test)]
mod explored {
    use super::*;
    use crate::sync::{explore, thread};
    use crate::wake_list::{DeferredWakers, WakeScope};

    /// A queue for this thread, which is unparked for its entries.
    fn queue<T: Send + 'static>() -> Arc<CompletionQueue<T>> {
        let me = thread::current();
        CompletionQueue::with_notify(move || me.unpark())
    }

    /// Two threads push two entries each, one of them as the I/O thread does. The loop takes entries
    /// once for each signal.
    fn push_and_take(take: fn(&CompletionQueue) -> usize) {
        explore(move || {
            let queue = queue();
            let writer = |together: bool| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let tasks = DeferredWakers::default();
                    let _together = together.then(|| WakeScope::new(&tasks));
                    for tag in [1, 2] {
                        queue.push(tag, tag, Outcome::Connected);
                    }
                })
            };
            let writers = [true, false].map(writer);
            let mut got = 0;
            while got < 4 {
                thread::park();
                got += take(&queue);
            }
            for writer in writers {
                writer.join().expect("no panic");
            }
            assert!(got == 4 && queue.is_idle());
        });
    }

    #[test]
    fn a_loop_that_serves_after_each_signal_gets_all() {
        push_and_take(|queue| queue.serve().count());
    }

    #[test]
    fn a_loop_that_drains_after_each_signal_gets_all() {
        push_and_take(|queue| queue.drain().len());
    }

    #[test]
    fn a_loop_that_pops_all_after_each_signal_gets_all() {
        push_and_take(|queue| std::iter::from_fn(|| queue.pop()).count());
    }

    #[test]
    fn nothing_stays_in_a_queue_that_was_closed_meanwhile() {
        explore(|| {
            let (queue, tag) = (queue(), Arc::new(()));
            let writer = |_| {
                let (queue, tag) = (queue.clone(), tag.clone());
                thread::spawn(move || {
                    for ticket in [1, 2] {
                        queue.push(ticket, tag.clone(), Outcome::Connected);
                    }
                })
            };
            let writers = [1, 2].map(writer);
            let got = queue.pop().into_iter().count();
            queue.close();
            for writer in writers {
                writer.join().expect("no panic");
            }
            assert!(got < 2 && queue.is_idle());
            assert_eq!(Arc::strong_count(&tag), 1, "each tag is dropped");
        });
    }
}
