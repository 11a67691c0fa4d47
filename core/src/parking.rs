//! Parking groups: sleeping callers that one system call wakes.
//!
//! Callers whose requests the I/O thread has not read yet share a group: their requests will leave
//! in one command and return with its answer. A caller that is woken without its own answer sleeps
//! alone for its next waits.

use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};

use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::tuning;
use crate::wake_list::{self, Deferred};

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
}

impl Deferred for ParkingGroup {
    fn tell(&self) {
        *self.opened() += 1;
        self.changed.notify_all();
    }
}

impl Wake for ParkingGroup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !wake_list::leave(self) && !wake_list::leave_waker(|| Waker::from(self.clone())) {
            self.tell();
        }
    }
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
    use crate::wake_list::{DeferredWakers, WakeScope, wake_now};
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

#[cfg(test)]
mod explored {
    use super::*;
    use crate::sync::{explore, thread};
    use crate::wake_list::{DeferredWakers, WakeScope};

    #[test]
    fn a_wake_up_before_the_sleep_is_not_missed() {
        explore(|| {
            let gate = Arc::new(ParkingGroup::default());
            let sleeper = |_| {
                let (gate, before) = (gate.clone(), gate.before());
                thread::spawn(move || gate.sleep(before))
            };
            let sleepers: Vec<_> = (0..2).map(sleeper).collect();
            let tasks = DeferredWakers::default();
            let together = WakeScope::new(&tasks);
            Waker::from(gate).wake();
            drop(together);
            for sleeper in sleepers {
                sleeper.join().expect("no panic");
            }
        });
    }
}
