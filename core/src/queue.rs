//! Answers for event loops: a queue that the engine's thread fills and a language's own loop drains.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::gate;
use crate::guard::Guard;
use crate::process;
use crate::series::Series;
use crate::wire::Holder;

/// What became of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The server was reached.
    Connected,
    /// The lock is held. Dropping the guard releases it.
    Granted(Guard),
    /// The level was released.
    Released,
    /// The lock lives longer.
    Extended,
    /// Whether there was a lock to delete.
    Forced(bool),
    /// Who holds the lock.
    Inspected(Option<Holder>),
    /// The client is closed; these locks could not be released in time.
    Closed(Vec<String>),
    /// The operation failed.
    Failed(Error),
    /// A hold that was watched is lost.
    Lost(LostReason),
}

/// One answer, with the tag that was given to the operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The tag of [`Operation::deliver_to`](crate::Operation::deliver_to) or
    /// [`Guard::watch_lost`].
    pub tag: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// Collects answers until an event loop drains them.
///
/// Entries that are never drained release what they grant when the queue is closed or dropped. A
/// queue serves the process that made it; in a forked child it is empty for ever.
pub struct Queue {
    state: Mutex<State>,
    signal: Signal,
    /// The answers in a row that did not need the queue.
    series: Series,
    /// The process that made it. Compared before the lock is taken: a child may have inherited it
    /// locked, and shares the descriptor with its parent.
    pid: u32,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Whoever drains was told of entries and has not been here since, or still is.
    told: bool,
    closed: bool,
}

enum Signal {
    Fd(EventFd),
    Notify(Box<dyn Fn() + Send + Sync>),
}

/// Whether somebody has to be notified of the first entry, once no lock is held.
#[must_use]
pub(crate) struct First<'a>(Option<&'a (dyn Fn() + Send + Sync)>);

impl First<'_> {
    pub(crate) fn notify(self) {
        if let Some(notify) = self.0 {
            notify();
        }
    }
}

impl Queue {
    /// A queue with a descriptor that is readable while entries wait.
    ///
    /// # Errors
    /// `internal` when the system has no descriptor left.
    pub fn with_fd() -> Result<Arc<Queue>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot make an event descriptor: {error}"))
        })?;
        Ok(Self::new(Signal::Fd(fd)))
    }

    /// A queue that calls `notify` when an entry comes into it while it is empty.
    ///
    /// `notify` runs on the engine's thread, on the thread of a caller whose operation cannot be sent, or on that of a caller
    /// who gives back, or asks for, a lock that others wait for. It must not block, nor take a mutex that is held while an
    /// operation is sent or a guard is released or dropped.
    pub fn with_notify(notify: impl Fn() + Send + Sync + 'static) -> Arc<Queue> {
        Self::new(Signal::Notify(Box::new(notify)))
    }

    fn new(signal: Signal) -> Arc<Queue> {
        Arc::new(Queue { state: Mutex::default(), signal, series: Series::new(), pid: process::id() })
    }

    /// The descriptor to poll, for a queue that has one. It belongs to the queue: never read or close it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.signal {
            Signal::Fd(fd) => Some(fd.as_fd()),
            Signal::Notify(_) => None,
        }
    }

    /// Takes all entries, oldest first. Never blocks.
    pub fn drain(&self) -> Vec<Entry> {
        let Some(mut state) = self.state() else { return Vec::new() };
        self.clear(&mut state);
        std::mem::take(&mut state.entries).into()
    }

    /// Takes entries one by one as long as there are any, those included that come in meanwhile, which need no signal then.
    ///
    /// It ends early, so that the loop can serve others, when the loop has been given answers at once for as long as it may
    /// ([`deliver_soon`](crate::Operation::deliver_soon)); if entries are left then, they are signalled again. Never blocks.
    pub fn serve(&self) -> Serving<'_> {
        Serving { queue: self, left: 0, series: Series::new() }
    }

    /// Takes the oldest entry; the descriptor stays readable while there are more. Never blocks.
    pub fn pop(&self) -> Option<Entry> {
        let mut state = self.state()?;
        let entry = state.entries.pop_front();
        if state.entries.is_empty() {
            self.clear(&mut state);
        }
        entry
    }

    /// Takes the entry with this tag out of the queue, if it is there: for an operation that was not cancelled in time, and
    /// whose answer nobody wants. Never blocks.
    pub fn take(&self, tag: u64) -> Option<Entry> {
        let mut state = self.state()?;
        let at = state.entries.iter().position(|entry| entry.tag == tag)?;
        let entry = state.entries.remove(at);
        if state.entries.is_empty() {
            self.clear(&mut state);
        }
        entry
    }

    /// Drops what is there and what will come; grants among it are released.
    pub fn close(&self) {
        let Some(mut state) = self.state() else { return };
        state.closed = true;
        self.clear(&mut state);
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        drop(entries);
    }

    /// Wakes whoever drains although there is no entry: for other news, such as events. Never blocks.
    pub fn wake(&self) {
        if self.is_ours() {
            self.signal().notify();
        }
    }

    /// Which answers come at once; an event loop has one thread.
    pub(crate) fn series(&self) -> &Series {
        &self.series
    }

    pub(crate) fn push(self: &Arc<Self>, entry: Entry) {
        self.enter(entry).notify();
    }

    /// Puts an entry in; the caller notifies when it holds no lock any more. The engine's thread does so when it has
    /// entered all that it has: a loop that is woken by the first takes the processor from it.
    pub(crate) fn enter(self: &Arc<Self>, entry: Entry) -> First<'_> {
        let Some(mut state) = self.state().filter(|state| !state.closed) else { return First(None) };
        state.entries.push_back(entry);
        if std::mem::replace(&mut state.told, true) || gate::leave(self) {
            return First(None);
        }
        self.signal()
    }

    /// Tells of the entries, unless they have been taken meanwhile.
    pub(crate) fn tell(&self) {
        let Some(state) = self.state().filter(|state| !state.entries.is_empty()) else { return };
        let first = self.signal();
        drop(state);
        first.notify();
    }

    fn signal(&self) -> First<'_> {
        match &self.signal {
            Signal::Fd(fd) => {
                // Fails only when the counter is full, and then it is readable.
                let _ = fd.write(1);
                First(None)
            }
            Signal::Notify(notify) => First(Some(&**notify)),
        }
    }

    /// For one who leaves entries behind: a descriptor is readable still.
    fn signal_again(&self) -> First<'_> {
        match &self.signal {
            Signal::Fd(_) => First(None),
            Signal::Notify(notify) => First(Some(&**notify)),
        }
    }

    /// Makes the descriptor unreadable; under the lock, so that it always tells what the queue has.
    fn clear(&self, state: &mut State) {
        state.told = false;
        if let Signal::Fd(fd) = &self.signal {
            // Fails only when it is clear already.
            let _ = fd.read();
        }
    }

    /// The entries; `None` in another process.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.is_ours().then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_ours(&self) -> bool {
        self.pid == process::id()
    }
}

/// The entries of a [`Queue`], one after the other; see [`Queue::serve`].
///
/// What was not served yet stays in the queue: a loop inside the loop finds it there.
pub struct Serving<'a> {
    queue: &'a Queue,
    /// So many were there when it was last looked whether there is time for more.
    left: usize,
    /// How long this has lasted.
    series: Series,
}

impl Iterator for Serving<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let mut state = self.queue.state()?;
        if self.left == 0 && self.series.may_go_on() {
            self.left = state.entries.len();
        }
        self.left = self.left.checked_sub(1)?;
        state.entries.pop_front()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.queue.state() else { return };
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

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} waiting)", self.state().map_or(0, |state| state.entries.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Tasks, Together};
    use std::sync::atomic::{AtomicU32, Ordering};

    fn put(queue: &Arc<Queue>, tag: u64) {
        queue.push(Entry { tag, outcome: Outcome::Connected });
    }

    fn tags(entries: impl IntoIterator<Item = Entry>) -> Vec<u64> {
        entries.into_iter().map(|entry| entry.tag).collect()
    }

    fn counted() -> (Arc<Queue>, Arc<AtomicU32>) {
        let told = Arc::new(AtomicU32::new(0));
        let counter = told.clone();
        let count = move || {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        (Queue::with_notify(count), told)
    }

    #[test]
    fn what_nobody_wants_is_taken_from_among_the_others() {
        let (queue, told) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        assert_eq!(queue.take(2).map(|entry| entry.tag), Some(2));
        assert!(queue.take(2).is_none());
        assert_eq!(tags(queue.drain()), [1, 3]);
        put(&queue, 4);
        assert_eq!(queue.take(4).map(|entry| entry.tag), Some(4));
        put(&queue, 5);
        assert_eq!(told.load(Ordering::SeqCst), 3, "an empty queue has told of nothing");
    }

    #[test]
    fn what_comes_while_others_are_served_is_served_as_well_and_needs_no_signal() {
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
        assert_eq!((told.load(Ordering::SeqCst), tags(queue.drain())), (2, vec![11]));
    }

    #[test]
    fn what_is_entered_together_is_told_at_the_end_and_only_if_it_is_still_there() {
        let ((queue, told), tasks) = (counted(), Tasks::default());
        let told = || told.load(Ordering::SeqCst);
        let together = Together::new(&tasks);
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        assert_eq!((told(), together.has_any()), (0, true));
        drop(together);
        assert_eq!((told(), tags(queue.drain())), (1, vec![1, 2, 3]));

        let together = Together::new(&tasks);
        put(&queue, 4);
        assert_eq!(tags(queue.drain()), [4]);
        drop(together);
        assert_eq!(told(), 1, "nothing is left");
        put(&queue, 5);
        assert_eq!(told(), 2);
    }

    #[test]
    fn who_serves_inside_of_serving_finds_the_others() {
        let (queue, _) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(1));
        assert_eq!(tags(queue.serve()), [2, 3]);
        assert!(serving.next().is_none());
    }

    #[test]
    fn who_is_served_for_ever_leaves_the_loop_to_others() {
        let (queue, told) = counted();
        put(&queue, 0);
        let mut last = 0;
        for entry in queue.serve() {
            last = entry.tag;
            put(&queue, last + 1);
        }
        assert!(last > 1, "and not after the first one");
        assert_eq!((told.load(Ordering::SeqCst), tags(queue.drain())), (2, vec![last + 1]));
    }

    #[test]
    fn what_was_taken_and_not_served_comes_first_the_next_time() {
        let (queue, told) = counted();
        [1, 2, 3].into_iter().for_each(|tag| put(&queue, tag));
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(1));
        put(&queue, 4);
        drop(serving);
        assert_eq!((told.load(Ordering::SeqCst), tags(queue.drain())), (2, vec![2, 3, 4]));
        put(&queue, 5);
        let mut serving = queue.serve();
        assert_eq!(serving.next().map(|entry| entry.tag), Some(5));
        queue.close();
        drop(serving);
        assert!(tags(queue.drain()).is_empty());
    }
}
