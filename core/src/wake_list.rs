//! All deferred wake-ups.
//!
//! A thread that is woken early takes the processor from the one that wakes it, or blocks on a lock
//! that this one has, such as Python's GIL. That costs two context switches where one is enough. So
//! two kinds of threads collect wake-ups and make them later:
//!
//! - A blocked caller makes them when it goes to sleep itself ([`WakeList`]).
//! - The I/O thread makes them when it has written everything ([`WakeScope`]); the server would be
//!   idle meanwhile. An event loop gets one signal for all of its answers. The tasks of an executor
//!   wake each other ([`DeferredWakers`]). Blocked callers share a
//!   [`ParkingGroup`](crate::parking::ParkingGroup), which one system call wakes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use crate::sync::{Mutex, MutexGuard, thread_local};

/// The thread's way to make wake-ups.
#[derive(Default)]
enum Scope {
    #[default]
    AtOnce,
    /// A caller that will block collects them.
    Caller(Vec<Waker>),
    /// The I/O thread collects those of queues and parking groups.
    IoThread(Vec<Arc<dyn Deferred>>),
}

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope::AtOnce) };
}

/// Applies `note` to the scope of this thread. A thread that is ending has none.
fn note<T: Default>(note: impl FnOnce(&mut Scope) -> T) -> T {
    SCOPE
        .try_with(|scope| note(&mut scope.borrow_mut()))
        .unwrap_or_default()
}

/// Wakes all at once: a parking group, or the event loop of a completion queue.
pub(crate) trait Deferred: Send + Sync {
    /// Wakes them, unless there is no need any more.
    fn tell(&self);
}

/// Defers a wake-up on the I/O thread. Returns false if this thread wakes at once.
pub(crate) fn leave<T: Deferred + 'static>(what: &Arc<T>) -> bool {
    note(|scope| {
        let Scope::IoThread(later) = scope else {
            return false;
        };
        let same = |kept: &Arc<dyn Deferred>| Arc::as_ptr(kept).addr() == Arc::as_ptr(what).addr();
        if !later.iter().any(same) {
            later.push(what.clone());
        }
        true
    })
}

/// Defers the wake-up of a thread by a blocked caller. Returns false if this thread does not
/// collect them.
pub(crate) fn leave_waker(waker: impl FnOnce() -> Waker) -> bool {
    note(|scope| {
        let Scope::Caller(wakers) = scope else {
            return false;
        };
        let waker = waker();
        if !wakers.iter().any(|kept| kept.will_wake(&waker)) {
            wakers.push(waker);
        }
        true
    })
}

/// Wakes a thread or a task. A waker may run code of the program, which has reported a panic
/// itself. It must not keep the others from being woken.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

/// The deferred wake-ups of a caller, each waker once. They are made when the list is dropped.
#[derive(Default)]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    /// Does `work` and collects the wake-ups that it makes.
    pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (T, WakeList) {
        let mut keeping = Keeping(Some(replace(Scope::Caller(Vec::new()))));
        let done = work();
        (done, keeping.end())
    }

    /// Makes all wake-ups. Mostly there are none.
    pub(crate) fn wake(&mut self) {
        if !self.0.is_empty() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&mut self) {
        self.0.drain(..).for_each(wake);
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A scope that collects wake-ups. It keeps the scope around it.
struct Keeping(Option<Scope>);

impl Keeping {
    fn end(&mut self) -> WakeList {
        match self.0.take().map(replace) {
            Some(Scope::Caller(wakers)) => WakeList(wakers),
            _ => WakeList::default(),
        }
    }
}

impl Drop for Keeping {
    /// If the work has panicked, this makes the wake-ups that were collected.
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Exchanges the scope of this thread.
fn replace(scope: Scope) -> Scope {
    note(|kept| mem::replace(kept, scope))
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
        if note(|scope| matches!(scope, Scope::IoThread(_))) {
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

/// Defers all wake-ups of its thread until it is dropped.
pub(crate) struct WakeScope<'a>(&'a DeferredWakers);

impl<'a> WakeScope<'a> {
    /// The thread must not wait for a thread or task whose wake-up it has deferred.
    pub(crate) fn new(tasks: &'a DeferredWakers) -> Self {
        replace(Scope::IoThread(Vec::new()));
        WakeScope(tasks)
    }

    /// Whether there are deferred wake-ups.
    pub(crate) fn has_any(&self) -> bool {
        note(|scope| matches!(scope, Scope::IoThread(later) if !later.is_empty()))
            || !self.0.left().is_empty()
    }
}

impl Drop for WakeScope<'_> {
    fn drop(&mut self) {
        wake_now(self.0);
        replace(Scope::AtOnce);
    }
}

/// Makes the deferred wake-ups of the I/O thread at once.
pub(crate) fn wake_now(tasks: &DeferredWakers) {
    let take = |scope: &mut Scope| match scope {
        Scope::IoThread(later) => mem::take(later),
        _ => Vec::new(),
    };
    loop {
        // For a sleeping thread this only defers the wake-up of its parking group, so the groups
        // come last.
        tasks.wake_all();
        let later = note(take);
        if later.is_empty() {
            return;
        }
        // The callback of a queue may put something into another one, whose signal is deferred.
        later.iter().for_each(|waiting| waiting.tell());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::thread;

    fn keeping<T>(work: impl FnOnce() -> T) -> T {
        WakeList::of(work).0
    }

    /// Records the order of the wake-ups.
    struct Noted(u32, Arc<Mutex<Vec<u32>>>);

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("noted").push(self.0);
            assert_ne!(self.0, 13, "of the test");
        }
    }

    fn sleepers() -> (impl Fn(u32) -> Waker, impl Fn() -> Vec<u32>) {
        let woken = Arc::new(Mutex::new(Vec::new()));
        let noted = woken.clone();
        let sleeper = move |number| Waker::from(Arc::new(Noted(number, noted.clone())));
        (sleeper, move || woken.lock().expect("noted").clone())
    }

    #[test]
    fn those_who_are_kept_are_woken_in_order_when_the_keeper_is_dropped() {
        let (sleeper, woken) = sleepers();
        let (done, later) = WakeList::of(|| (1..4).all(|number| leave_waker(|| sleeper(number))));
        assert!(done && woken().is_empty());
        assert!(!leave_waker(|| sleeper(4)), "nobody keeps them any more");
        drop(later);
        assert_eq!(woken(), [1, 2, 3]);
    }

    #[test]
    fn the_same_one_is_woken_once() {
        let (sleeper, woken) = sleepers();
        let waker = sleeper(1);
        keeping(|| (0..3).for_each(|_| assert!(leave_waker(|| waker.clone()))));
        assert_eq!(woken(), [1]);
    }

    #[test]
    fn a_nested_wake_list_wakes_its_own_first() {
        let (sleeper, woken) = sleepers();
        keeping(|| {
            leave_waker(|| sleeper(1));
            keeping(|| leave_waker(|| sleeper(2)));
            assert_eq!(woken(), [2]);
            leave_waker(|| sleeper(3));
        });
        assert_eq!(woken(), [2, 1, 3]);
    }

    #[test]
    fn one_who_panics_keeps_nobody_else_asleep() {
        let (sleeper, woken) = sleepers();
        keeping(|| {
            [1, 13, 2]
                .into_iter()
                .for_each(|number| assert!(leave_waker(|| sleeper(number))))
        });
        assert_eq!(woken(), [1, 13, 2]);
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

    /// Wakes the next one when it is told.
    struct Chain(Option<Arc<Chain>>, AtomicU32);

    impl Deferred for Chain {
        fn tell(&self) {
            self.1.fetch_add(1, Ordering::SeqCst);
            assert!(self.0.as_ref().is_none_or(leave), "in a scope");
        }
    }

    #[test]
    fn a_wake_up_during_the_last_ones_is_made_too() {
        let last = Arc::new(Chain(None, AtomicU32::new(0)));
        let first = Arc::new(Chain(Some(last.clone()), AtomicU32::new(0)));
        let left = DeferredWakers::default();
        let together = WakeScope::new(&left);
        assert!(leave(&first));
        drop(together);
        assert_eq!(last.1.load(Ordering::SeqCst), 1);
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
}

#[cfg(test)]
mod explored {
    use std::task::Wake;

    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::sync::explore;
    use crate::sync::thread::{self, Thread};

    struct Task {
        is_woken: Arc<AtomicBool>,
        thread: Thread,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }

    #[test]
    fn tasks_that_wake_each_other_leave_nobody_asleep() {
        explore(|| {
            let left = Arc::new(DeferredWakers::default());
            let task = |_| {
                let (is_woken, left) = (Arc::new(AtomicBool::new(false)), left.clone());
                let flag = is_woken.clone();
                let task = thread::spawn(move || {
                    while !flag.load(Ordering::Acquire) {
                        thread::park();
                    }
                    left.wake_others();
                });
                (task, is_woken)
            };
            let tasks: Vec<_> = (0..3).map(task).collect();
            let together = WakeScope::new(&left);
            for (task, is_woken) in &tasks {
                let (thread, is_woken) = (task.thread().clone(), is_woken.clone());
                left.wake(Waker::from(Arc::new(Task { is_woken, thread })));
            }
            drop(together);
            for (task, _) in tasks {
                task.join().expect("no panic");
            }
        });
    }
}
