//! Re-entry keys, and the numbers they are made of.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use redlatch_proto::key::OwnerKey;

/// Identifies the owner of an acquisition inside a client. Never sent to Redis.
///
/// Two acquisitions of the same name with equal keys are one hold with two levels. The default is
/// [`ReentryKey::Once`]: every acquisition is an owner of its own, as with tokio's `Mutex`.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// use redlatch::{AcquireOptions, LockOptions, ReentryKey};
///
/// // A request of an actor system, say, whose parts know its number.
/// let lock = client.lock_with("orders:42", LockOptions::new().reentrant(true))?;
/// let request = AcquireOptions::new().key(ReentryKey::Explicit(7));
/// let outer = lock.acquire_with(request.clone()).await?;
/// let inner = lock.acquire_with(request).await?; // the same owner: does not wait for itself
/// inner.release().await?;
/// outer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReentryKey {
    /// A new owner for every acquisition: never re-enters.
    Once,
    /// The thread with this number; see [`ReentryKey::thread`].
    Thread(u64),
    /// One of the flows of the thread with this number; see
    /// [`new_flow`](crate::embed::ReentryKeyExt::new_flow).
    Flow {
        /// The number of the thread.
        thread: u64,
        /// The number of the flow among those of its thread.
        nth: u32,
    },
    /// The task (of an event loop) with this number; see [`ReentryKey::new_task`].
    Task(u64),
    /// A number that the caller gave: a request, a job, a coroutine.
    Explicit(u64),
}

impl From<ReentryKey> for OwnerKey {
    fn from(key: ReentryKey) -> OwnerKey {
        match key {
            ReentryKey::Once => OwnerKey::Once,
            ReentryKey::Thread(number) => OwnerKey::Thread(number),
            ReentryKey::Flow { thread, nth } => OwnerKey::Flow { thread, nth },
            ReentryKey::Task(number) => OwnerKey::Task(number),
            ReentryKey::Explicit(number) => OwnerKey::Explicit(number),
        }
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Is told when a thread ends whose key it knows.
pub(crate) trait KeyListener: Send + Sync {
    fn key_ended(&self, key: OwnerKey);
}

/// The data of a thread: its number, and the engines to tell when it ends.
struct Thread {
    number: u64,
    /// How many flows it has had.
    flows: Cell<u32>,
    engines: RefCell<Vec<Weak<dyn KeyListener>>>,
}

impl Drop for Thread {
    /// The thread ends. Holds that it acquired without a guard have no owner any more, so the
    /// engines are told.
    fn drop(&mut self) {
        for engine in self.engines.take() {
            if let Some(engine) = engine.upgrade() {
                engine.key_ended(OwnerKey::Thread(self.number));
            }
        }
    }
}

thread_local! {
    static THREAD: Thread = Thread { number: next(), flows: Cell::default(), engines: RefCell::default() };
}

/// Remembers the engine if `key` belongs to the calling thread, so that the engine can be told when
/// the thread ends.
pub(crate) fn note_thread<T: KeyListener + 'static>(key: OwnerKey, engine: &Arc<T>) {
    // Fails only while the thread ends, and then there is nothing to remember.
    let _ = THREAD.try_with(|thread| {
        let mut engines = thread.engines.borrow_mut();
        let known = engines
            .iter()
            .any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(engine)));
        if key.belongs_to(OwnerKey::Thread(thread.number)) && !known {
            engines.retain(|known| known.strong_count() > 0);
            let engine: Weak<T> = Arc::downgrade(engine);
            engines.push(engine);
        }
    });
}

impl ReentryKey {
    /// The key of the calling thread: a number that is never used again, unlike the system's thread
    /// ids.
    ///
    /// While the thread's local data is being destroyed, that number is gone, and a fresh key is
    /// returned.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, ReentryKey};
    ///
    /// let options = AcquireOptions::new().key(ReentryKey::thread());
    /// let outer = lock.acquire_with(options.clone()).wait()?;
    /// let inner = lock.acquire_with(options).wait()?; // the same thread enters again
    /// # Ok(())
    /// # }
    /// ```
    pub fn thread() -> ReentryKey {
        THREAD
            .try_with(|thread| ReentryKey::Thread(thread.number))
            .unwrap_or_else(|_| ReentryKey::Thread(next()))
    }

    /// See [`new_flow`](crate::embed::ReentryKeyExt::new_flow).
    pub(crate) fn flow_of_this_thread() -> ReentryKey {
        let flow = |thread: &Thread| {
            let nth = thread.flows.get();
            thread.flows.set(nth.wrapping_add(1));
            ReentryKey::Flow {
                thread: thread.number,
                nth,
            }
        };
        THREAD.try_with(flow).unwrap_or_else(|_| ReentryKey::Flow {
            thread: next(),
            nth: 0,
        })
    }

    /// See [`new_thread`](crate::embed::ReentryKeyExt::new_thread).
    pub(crate) fn like_a_thread() -> ReentryKey {
        ReentryKey::Thread(next())
    }

    /// A key for a new task; the caller keeps it with the task.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(lock: redlatch::Lock) -> redlatch::Result<()> {
    /// use redlatch::{AcquireOptions, ReentryKey};
    ///
    /// let key = ReentryKey::new_task();
    /// let outer = lock.acquire_with(AcquireOptions::new().key(key)).await?;
    /// let inner = lock.acquire_with(AcquireOptions::new().key(key)).await?; // the same task enters again
    /// # Ok(())
    /// # }
    /// ```
    pub fn new_task() -> ReentryKey {
        ReentryKey::Task(next())
    }
}
