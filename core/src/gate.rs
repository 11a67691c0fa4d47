//! Where blocked callers sleep that are likely to be answered together, so that one system call wakes them all.
//!
//! Woken one by one, each sleeper takes the processor from the thread that wakes it, which has to get it back for the
//! next one: two changes of thread for each answer where one is enough. So callers whose requests the engine's thread
//! has not read yet share a gate: they will leave in one command, and come back with its answer. Who is woken although
//! his own answer is not there yet, was wrong about the others and goes on alone.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

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
    /// The gates to be opened when what this thread does is done.
    static LATER: RefCell<Option<Vec<Arc<Gate>>>> = const { RefCell::new(None) };
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
        let note = |later: &RefCell<Option<Vec<Arc<Gate>>>>| {
            let mut later = later.borrow_mut();
            let Some(gates) = later.as_mut() else { return false };
            if !gates.iter().any(|gate| Arc::ptr_eq(gate, self)) {
                gates.push(self.clone());
            }
            true
        };
        LATER.try_with(note).unwrap_or(false)
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.leave() {
            self.open();
        }
    }
}

/// Opens what was left to be opened, whatever has happened meanwhile.
struct Opening;

impl Drop for Opening {
    fn drop(&mut self) {
        wake_now();
        let _ = LATER.try_with(RefCell::take);
    }
}

/// Wakes at once whoever is to be woken later.
pub(crate) fn wake_now() {
    let take = |later: &RefCell<Option<Vec<Arc<Gate>>>>| later.borrow_mut().as_mut().map(std::mem::take);
    let gates = LATER.try_with(take).ok().flatten().unwrap_or_default();
    gates.iter().for_each(|gate| gate.open());
}

/// Does `work`; whoever is woken by it at a gate is woken when it is done. It must not wait for any of them.
pub(crate) fn wake_together<T>(work: impl FnOnce() -> T) -> T {
    let _ = LATER.try_with(|later| later.replace(Some(Vec::new())));
    let _opening = Opening;
    work()
}

/// The gate for callers that come now.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<Arc<Gate>>);

impl Gates {
    fn last(&self) -> MutexGuard<'_, Arc<Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Arc<Gate> {
        self.last().clone()
    }

    /// Those who come from now on have another one.
    pub(crate) fn next(&self) {
        let mut last = self.last();
        // Nobody has come.
        if Arc::strong_count(&last) > 1 {
            *last = Arc::default();
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
            wake_together(|| (0..20).for_each(|_| Waker::from(gate.clone()).wake()));
        });
        assert_eq!(*gate.opened(), 1);
    }

    #[test]
    fn nobody_is_forgotten_when_what_woke_him_panics() {
        let gate = Arc::new(Gate::default());
        let before = gate.before();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            wake_together(|| {
                Waker::from(gate.clone()).wake();
                assert_eq!(*gate.opened(), 0, "later");
                panic!("of the test");
            })
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
        wake_together(|| {
            Waker::from(gate.clone()).wake();
            wake_now();
            gate.sleep(before);
            Waker::from(gate.clone()).wake();
            assert_eq!(*gate.opened(), 1, "later again");
        });
        assert_eq!(*gate.opened(), 2);
    }

    #[test]
    fn a_wake_up_before_the_sleep_is_not_missed() {
        for _ in 0..3000 {
            let gate = Arc::new(Gate::default());
            let before = gate.before();
            thread::scope(|scope| {
                let waker = Waker::from(gate.clone());
                scope.spawn(move || wake_together(|| waker.wake()));
                gate.sleep(before);
            });
        }
    }

    #[test]
    fn who_comes_after_others_were_read_has_another_gate() {
        let gates = Gates::default();
        let first = gates.current();
        assert!(Arc::ptr_eq(&first, &gates.current()));
        gates.next();
        assert!(!Arc::ptr_eq(&first, &gates.current()));
    }
}
