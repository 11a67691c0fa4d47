//! Deferred wake-ups of the I/O thread: it wakes the callers that it has answered together, after
//! everything else.
//!
//! A thread that is woken earlier takes the processor from the I/O thread, which has to get it back
//! for the next wake-up. That costs two context switches per answer where one is enough, and the
//! server is idle until the I/O thread writes again. So a [`WakeScope`] collects the wake-ups. An
//! event loop gets one signal for all of its answers. The tasks of an executor wake each other
//! ([`DeferredWakers`]). Blocked callers share a [`ParkingGroup`], which one system call wakes.
//!
//! Callers whose requests the I/O thread has not read yet share a group: their requests will leave
//! in one command and return with its answer. A caller that is woken without its own answer sleeps
//! alone for its next waits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::tuning;
use crate::wake_list;

/// A group of sleeping threads that are woken together, on one condition variable.
#[derive(Debug, Default)]
pub(crate) struct ParkingGroup {
    /// How often the group was woken: its current [`Epoch`].
    opened: Mutex<u64>,
    changed: Condvar,
}

/// How often a group had been woken. A caller does not sleep if the group was woken after its
/// epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch(u64);

/// A completion queue whose event loop is signalled when the scope ends.
pub(crate) trait Deferred: Send + Sync {
    /// Signals the loop, unless it has taken the entries meanwhile.
    fn tell(&self);
}

thread_local! {
    /// The wake-ups that this thread has deferred; `None` if it wakes at once.
    static LATER: RefCell<Option<WakeList>> = const { RefCell::new(None) };
}

/// The deferred wake-ups of one thread.
#[derive(Default)]
struct WakeList {
    gates: Vec<Arc<ParkingGroup>>,
    queues: Vec<Arc<dyn Deferred>>,
}

/// Applies `note` to the deferred wake-ups of this thread; `None` if it wakes at once.
fn note<T>(note: impl FnOnce(&mut WakeList) -> T) -> Option<T> {
    LATER
        .try_with(|later| later.borrow_mut().as_mut().map(note))
        .ok()
        .flatten()
}

impl ParkingGroup {
    fn opened(&self) -> MutexGuard<'_, u64> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current epoch. To be taken before the waker of this sleeper is registered anywhere.
    pub(crate) fn before(&self) -> Epoch {
        Epoch(*self.opened())
    }

    /// Sleeps until the group is woken, or not at all if that has happened since `before`.
    pub(crate) fn sleep(&self, before: Epoch) {
        let opened = self
            .changed
            .wait_while(self.opened(), |opened| *opened == before.0);
        drop(opened.unwrap_or_else(PoisonError::into_inner));
    }

    fn open(&self) {
        *self.opened() += 1;
        self.changed.notify_all();
    }

    /// Defers the wake-up of the group. Returns false if this thread wakes at once.
    fn leave(self: &Arc<Self>) -> bool {
        let add = |later: &mut WakeList| {
            if !later.gates.iter().any(|gate| Arc::ptr_eq(gate, self)) {
                later.gates.push(self.clone());
            }
        };
        note(add).is_some()
    }
}

/// Defers the signal of a queue. Returns false if this thread wakes at once.
pub(crate) fn leave<T: Deferred + 'static>(queue: &Arc<T>) -> bool {
    note(|later| later.queues.push(queue.clone())).is_some()
}

impl Wake for ParkingGroup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.leave() && !wake_list::leave(|| Waker::from(self.clone())) {
            self.open();
        }
    }
}

/// Tasks that the I/O thread has answered and not woken yet.
///
/// An executor that is woken for the first of them goes to sleep again before it hears of the
/// second. So the first task that is polled wakes the others, on its executor's thread, unless the
/// I/O thread does so before.
#[derive(Default)]
pub(crate) struct DeferredWakers(Mutex<VecDeque<Waker>>);

impl DeferredWakers {
    fn left(&self) -> MutexGuard<'_, VecDeque<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a task. The wake-up is deferred if the calling thread is in a [`WakeScope`].
    pub(crate) fn wake(&self, task: Waker) {
        if note(|_| ()).is_some() {
            self.left().push_back(task);
        } else {
            task.wake();
        }
    }

    /// Makes the deferred wake-ups, for a task that is being polled.
    pub(crate) fn wake_others(&self) {
        // A thread that has locked the list makes these wake-ups itself.
        let left = self
            .0
            .try_lock()
            .map(|mut left| std::mem::take(&mut *left))
            .unwrap_or_default();
        left.into_iter().for_each(wake);
    }

    /// Makes the deferred wake-ups that no other thread makes meanwhile.
    fn wake_all(&self) {
        while let Some(task) = { self.left().pop_front() } {
            wake(task);
        }
    }
}

/// Wakes a task. An executor that panics has reported it, and must not keep the other tasks from
/// being woken.
fn wake(task: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
}

/// Defers all wake-ups of its thread until it is dropped.
pub(crate) struct WakeScope<'a>(&'a DeferredWakers);

impl<'a> WakeScope<'a> {
    /// The thread must not wait for a thread or task whose wake-up it has deferred.
    pub(crate) fn new(tasks: &'a DeferredWakers) -> Self {
        let _ = LATER.try_with(|later| later.replace(Some(WakeList::default())));
        WakeScope(tasks)
    }

    /// Whether there are deferred wake-ups.
    pub(crate) fn has_any(&self) -> bool {
        let sleepers = |later: &mut WakeList| !later.gates.is_empty() || !later.queues.is_empty();
        note(sleepers).unwrap_or(false) || !self.0.left().is_empty()
    }
}

impl Drop for WakeScope<'_> {
    fn drop(&mut self) {
        wake_now(self.0);
        let _ = LATER.try_with(RefCell::take);
    }
}

/// Makes the deferred wake-ups of the calling thread at once.
pub(crate) fn wake_now(tasks: &DeferredWakers) {
    // For sleeping threads among them this only defers the wake-up of their groups, so the groups
    // come last.
    tasks.wake_all();
    let WakeList { gates, queues } = note(std::mem::take).unwrap_or_default();
    queues.iter().for_each(|queue| queue.tell());
    gates.iter().for_each(|gate| gate.open());
}

/// The current parking group, which new callers join.
#[derive(Debug, Default)]
pub(crate) struct ParkingGroups(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    gate: Arc<ParkingGroup>,
    /// How many callers have joined.
    callers: usize,
}

impl ParkingGroups {
    fn last(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Arc<ParkingGroup> {
        let mut last = self.last();
        if last.callers >= tuning::PARKING_GROUP {
            *last = Current::default();
        }
        last.callers += 1;
        last.gate.clone()
    }

    /// Starts another group for new callers.
    pub(crate) fn next(&self) {
        let mut last = self.last();
        if last.callers > 0 {
            *last = Current::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Waker;
    use std::thread;

    #[test]
    fn all_at_a_gate_are_woken_by_one_opening() {
        let (gate, asleep) = (&Arc::new(ParkingGroup::default()), &AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..20 {
                let before = gate.before();
                scope.spawn(move || {
                    asleep.fetch_add(1, Ordering::SeqCst);
                    gate.sleep(before);
                });
            }
            while asleep.load(Ordering::SeqCst) < 20 {
                thread::yield_now();
            }
            let tasks = DeferredWakers::default();
            let _together = WakeScope::new(&tasks);
            (0..20).for_each(|_| Waker::from(gate.clone()).wake());
        });
        assert_eq!(*gate.opened(), 1);
    }

    #[test]
    fn nobody_is_forgotten_when_what_woke_him_panics() {
        let gate = Arc::new(ParkingGroup::default());
        let before = gate.before();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let tasks = DeferredWakers::default();
            let _together = WakeScope::new(&tasks);
            Waker::from(gate.clone()).wake();
            assert_eq!(*gate.opened(), 0, "later");
            panic!("of the test");
        }));
        assert!(panicked.is_err());
        gate.sleep(before);
        // Outside of a scope, at once.
        Waker::from(gate.clone()).wake();
        assert_eq!(*gate.opened(), 2);
    }

    #[test]
    fn a_thread_that_cannot_defer_wakes_at_once() {
        let gate = Arc::new(ParkingGroup::default());
        let before = gate.before();
        let tasks = DeferredWakers::default();
        let together = WakeScope::new(&tasks);
        Waker::from(gate.clone()).wake();
        assert!(together.has_any());
        wake_now(&tasks);
        assert!(!together.has_any());
        gate.sleep(before);
        Waker::from(gate.clone()).wake();
        assert_eq!(*gate.opened(), 1, "later again");
        drop(together);
        assert_eq!(*gate.opened(), 2);
    }

    #[test]
    fn a_wake_up_before_the_sleep_is_not_missed() {
        for _ in 0..3000 {
            let gate = Arc::new(ParkingGroup::default());
            let before = gate.before();
            thread::scope(|scope| {
                let waker = Waker::from(gate.clone());
                scope.spawn(move || {
                    let tasks = DeferredWakers::default();
                    let _together = WakeScope::new(&tasks);
                    waker.wake();
                });
                gate.sleep(before);
            });
        }
    }

    /// A task that counts its wake-ups, and panics then if `panics`.
    struct Task {
        woken: AtomicU32,
        panics: bool,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "of the test");
        }
    }

    fn some_tasks(panics: bool) -> [Arc<Task>; 3] {
        std::array::from_fn(|_| {
            Arc::new(Task {
                woken: AtomicU32::new(0),
                panics,
            })
        })
    }

    fn woken(tasks: &[Arc<Task>]) -> Vec<u32> {
        tasks
            .iter()
            .map(|task| task.woken.load(Ordering::SeqCst))
            .collect()
    }

    #[test]
    fn tasks_are_woken_at_the_end_each_of_them_once_whatever_their_executors_do() {
        for panics in [false, true] {
            let (left, tasks) = (DeferredWakers::default(), some_tasks(panics));
            let together = WakeScope::new(&left);
            assert!(!together.has_any());
            tasks.iter().for_each(|task| left.wake(task.clone().into()));
            assert_eq!((together.has_any(), woken(&tasks)), (true, vec![0; 3]));
            drop(together);
            assert_eq!(woken(&tasks), [1; 3]);
        }
        let ([task, ..], left) = (some_tasks(false), DeferredWakers::default());
        left.wake(task.clone().into());
        assert_eq!(woken(&[task]), [1], "outside, at once");
    }

    #[test]
    fn the_first_task_whose_turn_comes_wakes_the_others() {
        let (left, tasks) = (DeferredWakers::default(), some_tasks(false));
        let together = WakeScope::new(&left);
        tasks.iter().for_each(|task| left.wake(task.clone().into()));
        thread::scope(|scope| scope.spawn(|| left.wake_others()).join()).expect("no panic");
        assert_eq!((together.has_any(), woken(&tasks)), (false, vec![1; 3]));
        drop(together);
        assert_eq!(woken(&tasks), [1; 3], "and nobody else does");
    }

    #[test]
    fn a_caller_after_a_batch_parks_in_another_group() {
        let gates = ParkingGroups::default();
        let first = gates.current();
        assert!(Arc::ptr_eq(&first, &gates.current()));
        gates.next();
        let next = gates.current();
        assert!(!Arc::ptr_eq(&first, &next));
        // A full group is followed by another one, too.
        assert!((2..tuning::PARKING_GROUP).all(|_| Arc::ptr_eq(&next, &gates.current())));
        let last = gates.current();
        assert!(Arc::ptr_eq(&next, &last) && !Arc::ptr_eq(&last, &gates.current()));
    }
}
