//! Defers the wake-ups of a blocked caller until it goes to sleep itself.
//!
//! An earlier wake-up costs an extra context switch: the woken thread preempts the caller, or
//! blocks on a lock that the caller holds, such as Python's GIL. For the wake-ups of the I/O
//! thread, see [`crate::parking`].

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// The wake-ups that this thread has deferred; `None` if it wakes at once.
    static LATER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Deferred wake-ups, each waker once. They are made when the list is dropped.
#[derive(Default)]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    /// Does `work` and collects the wake-ups that it makes.
    pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (T, WakeList) {
        let keeping = Keeping(replace(Some(Vec::new())));
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
        for waker in self.0.drain(..) {
            // A waker may run code of the program. A panic there must not keep the others from
            // being woken.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A scope that collects wake-ups. It keeps the list of the scope around it.
struct Keeping(Option<Vec<Waker>>);

impl Keeping {
    fn end(self) -> WakeList {
        let before = mem::ManuallyDrop::new(self).0.take();
        WakeList(replace(before).unwrap_or_default())
    }
}

impl Drop for Keeping {
    /// The work has panicked: makes the wake-ups that were collected.
    fn drop(&mut self) {
        drop(WakeList(replace(self.0.take()).unwrap_or_default()));
    }
}

/// Exchanges the list of this thread. A thread that is ending has none.
fn replace(wakers: Option<Vec<Waker>>) -> Option<Vec<Waker>> {
    LATER.try_with(|later| later.replace(wakers)).ok().flatten()
}

/// Defers a wake-up. Returns false if this thread does not collect them.
pub(crate) fn leave(waker: impl FnOnce() -> Waker) -> bool {
    let note = |later: &RefCell<Option<Vec<Waker>>>| {
        let mut later = later.borrow_mut();
        let Some(wakers) = later.as_mut() else {
            return false;
        };
        let waker = waker();
        if !wakers.iter().any(|kept| kept.will_wake(&waker)) {
            wakers.push(waker);
        }
        true
    };
    LATER.try_with(note).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

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
        let (done, later) = WakeList::of(|| (1..4).all(|number| leave(|| sleeper(number))));
        assert!(done && woken().is_empty());
        assert!(!leave(|| sleeper(4)), "nobody keeps them any more");
        drop(later);
        assert_eq!(woken(), [1, 2, 3]);
    }

    #[test]
    fn the_same_one_is_woken_once() {
        let (sleeper, woken) = sleepers();
        let waker = sleeper(1);
        keeping(|| (0..3).for_each(|_| assert!(leave(|| waker.clone()))));
        assert_eq!(woken(), [1]);
    }

    #[test]
    fn a_nested_wake_list_wakes_its_own_first() {
        let (sleeper, woken) = sleepers();
        keeping(|| {
            leave(|| sleeper(1));
            keeping(|| leave(|| sleeper(2)));
            assert_eq!(woken(), [2]);
            leave(|| sleeper(3));
        });
        assert_eq!(woken(), [2, 1, 3]);
    }

    #[test]
    fn one_who_panics_keeps_nobody_else_asleep() {
        let (sleeper, woken) = sleepers();
        keeping(|| {
            [1, 13, 2]
                .into_iter()
                .for_each(|number| assert!(leave(|| sleeper(number))))
        });
        assert_eq!(woken(), [1, 13, 2]);
    }
}
