//! Who acquires: re-entry keys and the numbers they are made of.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::client::Running;
use crate::engine::Input;

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
    /// The hold that has this level itself (`Guard::reenter`).
    #[doc(hidden)]
    Hold(u64),
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a thread leaves behind: its number, and the engines that know it.
struct Thread {
    number: u64,
    engines: RefCell<Vec<Weak<Running>>>,
}

impl Drop for Thread {
    /// The thread ends: what it holds without a guard is nobody's any more.
    fn drop(&mut self) {
        for engine in self.engines.take() {
            if let Some(engine) = engine.upgrade() {
                engine.tell(Input::KeyEnded(Key::Thread(self.number)));
            }
        }
    }
}

thread_local! {
    static THREAD: Thread = Thread { number: next(), engines: RefCell::default() };
}

/// Remembers that the calling thread acquires under its key, so that its end can be told.
pub(crate) fn note_thread(key: Key, engine: &Arc<Running>) {
    // Fails only while the thread ends, and then there is nothing to remember.
    let _ = THREAD.try_with(|thread| {
        let mut engines = thread.engines.borrow_mut();
        let known = engines.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(engine)));
        if key == Key::Thread(thread.number) && !known {
            engines.retain(|known| known.strong_count() > 0);
            engines.push(Arc::downgrade(engine));
        }
    });
}

impl Key {
    /// The key of the calling thread: a number that is never used again, unlike the system's ids.
    ///
    /// While the thread's local data is being destroyed this number is gone; the key is a fresh one then.
    pub fn thread() -> Key {
        THREAD.try_with(|thread| Key::Thread(thread.number)).unwrap_or_else(|_| Key::Thread(next()))
    }

    /// A key for a new task; the caller keeps it with the task.
    pub fn new_task() -> Key {
        Key::Task(next())
    }
}
