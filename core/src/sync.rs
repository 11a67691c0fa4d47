//! The types by which threads share something. In tests that are compiled with `--cfg shuttle` they
//! are those of [Shuttle](https://docs.rs/shuttle): it runs a test again and again, and chooses at
//! each call of them which thread goes on.

#[cfg(not(all(test, shuttle)))]
pub(crate) use futures_util::task::AtomicWaker;
#[cfg(not(all(test, shuttle)))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread, thread_local,
};

#[cfg(all(test, shuttle))]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread, thread_local,
};

/// What that of futures-util does, in steps that Shuttle knows.
#[cfg(all(test, shuttle))]
#[derive(Default)]
pub(crate) struct AtomicWaker(Mutex<Option<std::task::Waker>>);

#[cfg(all(test, shuttle))]
impl AtomicWaker {
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        *self.0.lock().expect("no panic") = Some(waker.clone());
    }

    pub(crate) fn take(&self) -> Option<std::task::Waker> {
        self.0.lock().expect("no panic").take()
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }
}

/// A waker that unparks the calling thread.
#[cfg(test)]
pub(crate) fn unpark() -> std::task::Waker {
    struct Unpark(thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    std::sync::Arc::new(Unpark(thread::current())).into()
}

/// Runs a test of threads many times. Its threads are those of [`thread`].
#[cfg(all(test, not(shuttle)))]
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    (0..300).for_each(|_| test());
}

/// Runs a test of threads under many schedules: half of them are random, and the other half have few
/// switches at random places
/// ([PCT](https://www.microsoft.com/en-us/research/publication/a-randomized-scheduler-with-probabilistic-guarantees-of-finding-bugs/)).
/// A schedule that fails is printed, and `REDLATCH_SCHEDULE` replays it.
#[cfg(all(test, shuttle))]
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
    use shuttle::{Config, Runner};

    /// The most points at which PCT takes the turn from a thread that could go on.
    const SWITCHES: usize = 4;

    let number = |variable: &str| std::env::var(variable).ok()?.parse::<usize>().ok();
    let schedules = number("REDLATCH_SCHEDULES").unwrap_or(2000);
    let seed = number("REDLATCH_SEED").unwrap_or(0) as u64;
    let mut config = Config::new();
    // The engine runs on it, not optimised.
    config.stack_size = 1 << 19;
    config.silence_warnings = true;
    let test = std::sync::Arc::new(test);
    let again = || {
        let test = test.clone();
        move || test()
    };
    if let Ok(schedule) = std::env::var("REDLATCH_SCHEDULE") {
        Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(again());
        return;
    }
    let random = RandomScheduler::new_from_seed(seed, schedules / 2);
    let few = PctScheduler::new_from_seed(seed, SWITCHES, schedules - schedules / 2);
    let done =
        Runner::new(random, config.clone()).run(again()) + Runner::new(few, config).run(again());
    println!("explored {done} schedules");
}
