//! Who acquires: re-entry keys and the numbers they are made of.

use std::sync::atomic::{AtomicU64, Ordering};

/// What makes two acquisitions one owner inside a client. Never sent to Redis.
///
/// Two acquisitions of the same name with equal keys are one hold with two levels. The default is
/// [`Key::Once`]: every acquisition is an owner of its own, as with tokio's `Mutex`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Key {
    /// A new owner for every acquisition: never re-enters.
    Once,
    /// The thread with this number; see [`Key::thread`].
    Thread(u64),
    /// The task (of an event loop) with this number; see [`Key::new_task`].
    Task(u64),
    /// A number that the caller gave: a request, a job, a coroutine.
    Explicit(u64),
    /// The hold with this owner number itself (`Guard::reenter`).
    #[doc(hidden)]
    Hold(u64),
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static THREAD: u64 = next();
}

impl Key {
    /// The key of the calling thread: a number that is never reused, unlike the ids of the system.
    ///
    /// While thread-local data is being destroyed there is no such number any more; then the key
    /// is one of its own.
    pub fn thread() -> Key {
        THREAD.try_with(|number| Key::Thread(*number)).unwrap_or_else(|_| Key::Thread(next()))
    }

    /// A key for a new task; the caller keeps it with the task.
    pub fn new_task() -> Key {
        Key::Task(next())
    }
}
