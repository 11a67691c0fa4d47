//! How those are woken whom the engine's thread has answered: when everything else is done, and together.
//!
//! Woken one by one, each takes the processor from the thread that wakes it, which has to get it back for the next one: two
//! changes of thread for each answer where one is enough, and the server has nothing to do until the thread comes to write.
//! So [`Together`] is told who is to be woken. An event loop gets one signal for all of its answers, the tasks of an
//! executor wake each other ([`Tasks`]), and blocked callers share a [`Gate`], at which one system call wakes them all.
//!
//! Callers whose requests the engine's thread has not read yet share a gate: they will leave in one command, and come back
//! with its answer. Who is woken although his own answer is not there yet, was wrong about the others and goes on alone.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::later;
use crate::queue::Queue;

/// So many calls leave together at least, when there are as many: no more of those who wait for them share a gate.
pub(crate) const TOGETHER: usize = 16;

/// Wakes all who sleep at it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How often it was opened.
    opened: Mutex<u64>,
    changed: Condvar,
}

/// Whoever comes to a gate that was opened more often than this does not sleep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before(u64);

thread_local! {
    /// Whom to wake when what this thread does is done; `None`: at once.
    static LATER: RefCell<Option<Later>> = const { RefCell::new(None) };
}

/// Whom one thread leaves to be woken later.
#[derive(Default)]
struct Later {
    gates: Vec<Arc<Gate>>,
    queues: Vec<Arc<Queue>>,
}

/// Does something with the list of those who are woken later; `None` if nobody is.
fn note<T>(note: impl FnOnce(&mut Later) -> T) -> Option<T> {
    LATER.try_with(|later| later.borrow_mut().as_mut().map(note)).ok().flatten()
}

impl Gate {
    fn opened(&self) -> MutexGuard<'_, u64> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before anybody is told of this sleeper.
    pub(crate) fn before(&self) -> Before {
        Before(*self.opened())
    }

    /// Sleeps until it is opened.
    pub(crate) fn sleep(&self, before: Before) {
        let opened = self.changed.wait_while(self.opened(), |opened| *opened == before.0);
        drop(opened.unwrap_or_else(PoisonError::into_inner));
    }

    fn open(&self) {
        *self.opened() += 1;
        self.changed.notify_all();
    }

    /// Leaves it to be opened later; false if nobody will.
    fn leave(self: &Arc<Self>) -> bool {
        let add = |later: &mut Later| {
            if !later.gates.iter().any(|gate| Arc::ptr_eq(gate, self)) {
                later.gates.push(self.clone());
            }
        };
        note(add).is_some()
    }
}

/// Leaves a queue to be signalled later; false if nobody will.
pub(crate) fn leave(queue: &Arc<Queue>) -> bool {
    note(|later| later.queues.push(queue.clone())).is_some()
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.leave() && !later::leave(|| Waker::from(self.clone())) {
            self.open();
        }
    }
}

/// Tasks that the engine's thread has answered and not woken yet.
///
/// An executor that is woken for the first of them goes to sleep again before it hears of the second. So the first whose
/// turn comes wakes those that are left, on its executor's thread, unless the engine's thread gets to it before.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<VecDeque<Waker>>);

impl Tasks {
    fn left(&self) -> MutexGuard<'_, VecDeque<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a task: later, if the calling thread wakes later whom it wakes.
    pub(crate) fn wake(&self, task: Waker) {
        if note(|_| ()).is_some() {
            self.left().push_back(task);
        } else {
            task.wake();
        }
    }

    /// Wakes those that are left, for one of them whose turn has come.
    pub(crate) fn wake_others(&self) {
        // Whoever has the list wakes them.
        let left = self.0.try_lock().map(|mut left| std::mem::take(&mut *left)).unwrap_or_default();
        left.into_iter().for_each(wake);
    }

    /// Wakes those that nobody else wakes meanwhile.
    fn wake_all(&self) {
        while let Some(task) = { self.left().pop_front() } {
            wake(task);
        }
    }
}

/// Wakes a task. An executor that panics has said so itself, and the others are woken all the same.
fn wake(task: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
}

/// While there is one, its thread wakes nobody; when it is dropped all of them.
pub(crate) struct Together<'a>(&'a Tasks);

impl<'a> Together<'a> {
    /// The thread that has this must not wait for anybody whom it has woken.
    pub(crate) fn new(tasks: &'a Tasks) -> Self {
        let _ = LATER.try_with(|later| later.replace(Some(Later::default())));
        Together(tasks)
    }

    /// Whether somebody is to be woken.
    pub(crate) fn has_any(&self) -> bool {
        let sleepers = |later: &mut Later| !later.gates.is_empty() || !later.queues.is_empty();
        note(sleepers).unwrap_or(false) || !self.0.left().is_empty()
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        wake_now(self.0);
        let _ = LATER.try_with(RefCell::take);
    }
}

/// Wakes at once whoever the calling thread has left to be woken later.
pub(crate) fn wake_now(tasks: &Tasks) {
    // Sleepers among them are left at their gates.
    tasks.wake_all();
    let Later { gates, queues } = note(std::mem::take).unwrap_or_default();
    queues.iter().for_each(|queue| queue.tell());
    gates.iter().for_each(|gate| gate.open());
}

/// The gate for callers that come now.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    gate: Arc<Gate>,
    /// How many have come.
    callers: usize,
}

impl Gates {
    fn last(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Arc<Gate> {
        let mut last = self.last();
        if last.callers >= TOGETHER {
            *last = Current::default();
        }
        last.callers += 1;
        last.gate.clone()
    }

    /// Those who come from now on have another one.
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
        let (gate, asleep) = (&Arc::new(Gate::default()), &AtomicU32::new(0));
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
            let tasks = Tasks::default();
            let _together = Together::new(&tasks);
            (0..20).for_each(|_| Waker::from(gate.clone()).wake());
        });
        assert_eq!(*gate.opened(), 1);
    }

    #[test]
    fn nobody_is_forgotten_when_what_woke_him_panics() {
        let gate = Arc::new(Gate::default());
        let before = gate.before();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let tasks = Tasks::default();
            let _together = Together::new(&tasks);
            Waker::from(gate.clone()).wake();
            assert_eq!(*gate.opened(), 0, "later");
            panic!("of the test");
        }));
        assert!(panicked.is_err());
        gate.sleep(before);
        // Outside, at once.
        Waker::from(gate.clone()).wake();
        assert_eq!(*gate.opened(), 2);
    }

    #[test]
    fn who_cannot_wait_for_the_end_wakes_the_others_at_once() {
        let gate = Arc::new(Gate::default());
        let before = gate.before();
        let tasks = Tasks::default();
        let together = Together::new(&tasks);
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
            let gate = Arc::new(Gate::default());
            let before = gate.before();
            thread::scope(|scope| {
                let waker = Waker::from(gate.clone());
                scope.spawn(move || {
                    let tasks = Tasks::default();
                    let _together = Together::new(&tasks);
                    waker.wake();
                });
                gate.sleep(before);
            });
        }
    }

    /// A task that counts how often it is woken, and panics then if it is to.
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
        std::array::from_fn(|_| Arc::new(Task { woken: AtomicU32::new(0), panics }))
    }

    fn woken(tasks: &[Arc<Task>]) -> Vec<u32> {
        tasks.iter().map(|task| task.woken.load(Ordering::SeqCst)).collect()
    }

    #[test]
    fn tasks_are_woken_at_the_end_each_of_them_once_whatever_their_executors_do() {
        for panics in [false, true] {
            let (left, tasks) = (Tasks::default(), some_tasks(panics));
            let together = Together::new(&left);
            assert!(!together.has_any());
            tasks.iter().for_each(|task| left.wake(task.clone().into()));
            assert_eq!((together.has_any(), woken(&tasks)), (true, vec![0; 3]));
            drop(together);
            assert_eq!(woken(&tasks), [1; 3]);
        }
        let ([task, ..], left) = (some_tasks(false), Tasks::default());
        left.wake(task.clone().into());
        assert_eq!(woken(&[task]), [1], "outside, at once");
    }

    #[test]
    fn the_first_task_whose_turn_comes_wakes_the_others() {
        let (left, tasks) = (Tasks::default(), some_tasks(false));
        let together = Together::new(&left);
        tasks.iter().for_each(|task| left.wake(task.clone().into()));
        thread::scope(|scope| scope.spawn(|| left.wake_others()).join()).expect("no panic");
        assert_eq!((together.has_any(), woken(&tasks)), (false, vec![1; 3]));
        drop(together);
        assert_eq!(woken(&tasks), [1; 3], "and nobody else does");
    }

    #[test]
    fn who_comes_after_others_were_read_has_another_gate() {
        let gates = Gates::default();
        let first = gates.current();
        assert!(Arc::ptr_eq(&first, &gates.current()));
        gates.next();
        let next = gates.current();
        assert!(!Arc::ptr_eq(&first, &next));
        // Nor do those who come when as many have come as leave together.
        assert!((2..TOGETHER).all(|_| Arc::ptr_eq(&next, &gates.current())));
        let last = gates.current();
        assert!(Arc::ptr_eq(&next, &last) && !Arc::ptr_eq(&last, &gates.current()));
    }
}
