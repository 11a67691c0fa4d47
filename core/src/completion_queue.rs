//! A completion queue: the I/O thread fills it, the event loop of another language drains it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::guard::Guard;
use crate::loss::LossQueue;
use crate::parking;
use crate::process;
use crate::wire::Holder;
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
    Inspected(Option<Holder>),
    /// The client is closed. These locks could not be released in time.
    Closed(Vec<String>),
    /// The operation failed.
    Failed(Error),
    /// A watched hold was lost.
    Lost(LostReason),
}

/// One answer, with the tag that was given to the operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The tag of [`deliver_to`](crate::embed::OperationExt::deliver_to) or
    /// [`watch_lost`](crate::embed::GuardExt::watch_lost).
    pub tag: u64,
    /// The result of the operation, or the loss of a watched hold.
    pub outcome: Outcome,
}

/// Collects answers until an event loop drains them.
///
/// When the queue is closed or dropped, the locks that were granted by entries still in it are
/// released. A queue serves the process that made it; in a forked child it is always empty.
pub struct CompletionQueue {
    state: Mutex<State>,
    signal: Signal,
    /// The budget of answers that do not go through the queue.
    series: YieldBudget,
    /// The process that made it. Compared before the lock is taken: a forked child may have
    /// inherited the lock in its locked state, and it shares the descriptor with its parent.
    pid: u32,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Completion>,
    /// The event loop was signalled and has not drained the queue since, or is still draining it.
    told: bool,
    closed: bool,
}

enum Signal {
    Fd(EventFd),
    Notify(Box<dyn Fn() + Send + Sync>),
}

/// A notification of the first entry, to be made once no lock is held.
#[must_use]
pub(crate) struct First<'a>(Option<&'a (dyn Fn() + Send + Sync)>);

impl First<'_> {
    pub(crate) fn notify(self) {
        if let Some(notify) = self.0 {
            notify();
        }
    }
}

impl CompletionQueue {
    /// A queue with a descriptor that is readable while entries wait.
    ///
    /// # Errors
    /// `internal` when the system has no descriptor left.
    pub fn with_fd() -> Result<Arc<CompletionQueue>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags).map_err(|error| {
            Error::new(
                ErrorKind::Internal,
                format!("cannot make an event descriptor: {error}"),
            )
        })?;
        Ok(Self::new(Signal::Fd(fd)))
    }

    /// A queue that calls `notify` when an entry comes into it while it is empty.
    ///
    /// `notify` runs on the I/O thread, or on the thread of a caller: one whose operation cannot be
    /// sent, or one that releases or asks for a lock that others wait for. It must not block, nor
    /// take a mutex that is held while an operation is sent or a guard is released or dropped.
    pub fn with_notify(notify: impl Fn() + Send + Sync + 'static) -> Arc<CompletionQueue> {
        Self::new(Signal::Notify(Box::new(notify)))
    }

    fn new(signal: Signal) -> Arc<CompletionQueue> {
        Arc::new(CompletionQueue {
            state: Mutex::default(),
            signal,
            series: YieldBudget::new(),
            pid: process::id(),
        })
    }

    /// The descriptor to poll, for a queue that has one. It belongs to the queue: never read or
    /// close it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.signal {
            Signal::Fd(fd) => Some(fd.as_fd()),
            Signal::Notify(_) => None,
        }
    }

    /// Takes all entries, oldest first. Never blocks.
    pub fn drain(&self) -> Vec<Completion> {
        let Some(mut state) = self.state() else {
            return Vec::new();
        };
        self.clear(&mut state);
        std::mem::take(&mut state.entries).into()
    }

    /// Takes entries one by one, including those that arrive while draining. These need no signal.
    ///
    /// It ends early, so that the event loop can serve others, when the loop has spent its budget
    /// of answers in a row (as in [`deliver_soon`](crate::embed::OperationExt::deliver_soon)). If
    /// entries are left then, the queue is signalled again. Never blocks.
    pub fn serve(&self) -> Serving<'_> {
        Serving {
            queue: self,
            left: 0,
            series: YieldBudget::new(),
        }
    }

    /// Takes the oldest entry; the descriptor stays readable while there are more. Never blocks.
    pub fn pop(&self) -> Option<Completion> {
        let mut state = self.state()?;
        let entry = state.entries.pop_front();
        if state.entries.is_empty() {
            self.clear(&mut state);
        }
        entry
    }

    /// Takes the entry with this tag out of the queue, if it is there: for an operation whose
    /// cancellation came too late and whose answer is not wanted. Never blocks.
    pub fn take(&self, tag: u64) -> Option<Completion> {
        let mut state = self.state()?;
        let at = state.entries.iter().position(|entry| entry.tag == tag)?;
        let entry = state.entries.remove(at);
        if state.entries.is_empty() {
            self.clear(&mut state);
        }
        entry
    }

    /// Drops all entries, present and future. Locks that they have granted are released.
    pub fn close(&self) {
        let Some(mut state) = self.state() else {
            return;
        };
        state.closed = true;
        self.clear(&mut state);
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        drop(entries);
    }

    /// Signals the event loop without an entry: for other news, such as events. Never blocks.
    pub fn wake(&self) {
        if self.is_ours() {
            self.signal().notify();
        }
    }

    /// The budget of inline answers of the event loop, which has one thread.
    pub(crate) fn series(&self) -> &YieldBudget {
        &self.series
    }

    pub(crate) fn push(self: &Arc<Self>, entry: Completion) {
        self.enter(entry).notify();
    }

    /// Puts an entry in. The caller notifies when it holds no lock any more. The I/O thread
    /// notifies after it has entered all answers that it has, because a loop that is woken by the
    /// first takes the processor from it.
    pub(crate) fn enter(self: &Arc<Self>, entry: Completion) -> First<'_> {
        let Some(mut state) = self.state().filter(|state| !state.closed) else {
            return First(None);
        };
        state.entries.push_back(entry);
        if std::mem::replace(&mut state.told, true) || parking::leave(self) {
            return First(None);
        }
        self.signal()
    }

    fn signal(&self) -> First<'_> {
        match &self.signal {
            Signal::Fd(fd) => {
                // Fails only when the counter is full, and then the descriptor is readable anyway.
                let _ = fd.write(1);
                First(None)
            }
            Signal::Notify(notify) => First(Some(&**notify)),
        }
    }

    /// Signals entries that were left behind. A descriptor is still readable, so only a callback
    /// has to be called.
    fn signal_again(&self) -> First<'_> {
        match &self.signal {
            Signal::Fd(_) => First(None),
            Signal::Notify(notify) => First(Some(&**notify)),
        }
    }

    /// Makes the descriptor unreadable. The lock is held, so that the descriptor always matches the
    /// queue.
    fn clear(&self, state: &mut State) {
        state.told = false;
        if let Signal::Fd(fd) = &self.signal {
            // Fails only when it is clear already.
            let _ = fd.read();
        }
    }

    /// The entries; `None` in a forked child.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.is_ours()
            .then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_ours(&self) -> bool {
        self.pid == process::id()
    }
}

impl parking::Deferred for CompletionQueue {
    fn tell(&self) {
        let Some(state) = self.state().filter(|state| !state.entries.is_empty()) else {
            return;
        };
        let first = self.signal();
        drop(state);
        first.notify();
    }
}

impl LossQueue for CompletionQueue {
    fn lost(self: Arc<Self>, tag: u64, reason: LostReason) {
        self.push(Completion {
            tag,
            outcome: Outcome::Lost(reason),
        });
    }
}

/// The entries of a [`CompletionQueue`], one after the other; see [`CompletionQueue::serve`].
///
/// Entries that were not served yet stay in the queue, where a nested event loop finds them.
pub struct Serving<'a> {
    queue: &'a CompletionQueue,
    /// How many entries may be taken before the budget is checked again.
    left: usize,
    /// The budget of this draining.
    series: YieldBudget,
}

impl Iterator for Serving<'_> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let mut state = self.queue.state()?;
        if self.left == 0 && self.series.has_remaining() {
            self.left = state.entries.len();
        }
        self.left = self.left.checked_sub(1)?;
        state.entries.pop_front()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.queue.state() else {
            return;
        };
        if state.entries.is_empty() {
            self.queue.clear(&mut state);
            return;
        }
        let again = self.queue.signal_again();
        drop(state);
        again.notify();
    }
}

impl fmt::Debug for Serving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serving({:?})", self.queue)
    }
}

impl fmt::Debug for CompletionQueue {
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
    use crate::parking::{DeferredWakers, WakeScope};
    use std::sync::atomic::{AtomicU32, Ordering};

    fn put(queue: &Arc<CompletionQueue>, tag: u64) {
        queue.push(Completion {
            tag,
            outcome: Outcome::Connected,
        });
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
        assert_eq!(queue.take(2).map(|entry| entry.tag), Some(2));
        assert!(queue.take(2).is_none());
        assert_eq!(tags(queue.drain()), [1, 3]);
        put(&queue, 4);
        assert_eq!(queue.take(4).map(|entry| entry.tag), Some(4));
        put(&queue, 5);
        assert_eq!(
            told.load(Ordering::SeqCst),
            3,
            "an empty queue has told of nothing"
        );
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
