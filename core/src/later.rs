//! Whom a blocked caller wakes when it goes to sleep itself, instead of in the middle of what it does.
//!
//! Who is woken may take the processor from the thread that wakes it, or find something taken that this has, as Python's
//! lock: that is two changes of thread where one is enough. For whom the engine's thread wakes, see [`crate::gate`].

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// Those to be woken when what this thread does is done.
    static LATER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Those who were left to be woken, once each. They are when this is dropped.
#[derive(Default)]
pub(crate) struct Later(Vec<Waker>);

impl Later {
    /// Does `work`, and keeps whom it wakes.
    pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (T, Later) {
        let keeping = Keeping(replace(Some(Vec::new())));
        let done = work();
        (done, keeping.end())
    }

    /// Wakes all of them; mostly there is nobody.
    pub(crate) fn wake(&mut self) {
        if !self.0.is_empty() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&mut self) {
        for waker in self.0.drain(..) {
            // What a program does when it is told is its own affair.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.wake();
    }
}

/// The time in which they are kept; with what was kept before it.
struct Keeping(Option<Vec<Waker>>);

impl Keeping {
    fn end(self) -> Later {
        let before = mem::ManuallyDrop::new(self).0.take();
        Later(replace(before).unwrap_or_default())
    }
}

impl Drop for Keeping {
    /// What was done has panicked: nobody is forgotten.
    fn drop(&mut self) {
        drop(Later(replace(self.0.take()).unwrap_or_default()));
    }
}

/// A thread that ends keeps nobody.
fn replace(wakers: Option<Vec<Waker>>) -> Option<Vec<Waker>> {
    LATER.try_with(|later| later.replace(wakers)).ok().flatten()
}

/// Leaves somebody to be woken later; false if he would not be.
pub(crate) fn leave(waker: impl FnOnce() -> Waker) -> bool {
    let note = |later: &RefCell<Option<Vec<Waker>>>| {
        let mut later = later.borrow_mut();
        let Some(wakers) = later.as_mut() else { return false };
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
        Later::of(work).0
    }

    /// Notes who is woken.
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
        let (done, later) = Later::of(|| (1..4).all(|number| leave(|| sleeper(number))));
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
    fn who_keeps_inside_of_another_keeper_wakes_his_own_first() {
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
        keeping(|| [1, 13, 2].into_iter().for_each(|number| assert!(leave(|| sleeper(number)))));
        assert_eq!(woken(), [1, 13, 2]);
    }
}
