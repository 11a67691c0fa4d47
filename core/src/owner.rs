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

/// The engines to tell when the thread ends.
struct Engines(RefCell<Vec<Weak<dyn KeyListener>>>);

impl Drop for Engines {
    /// The thread ends. Holds that it acquired without a guard have no owner any more, so the
    /// engines are told.
    fn drop(&mut self) {
        for engine in self.0.take() {
            if let Some(engine) = engine.upgrade() {
                engine.key_ended(OwnerKey::Thread(number()));
            }
        }
    }
}

thread_local! {
    /// The number of the thread; 0 until it is drawn. Without a destructor it stays readable until
    /// the thread is really gone: handlers of `atexit` and destructors of `pthread_key_create` run
    /// after those of Rust.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// How many flows the thread has had.
    static FLOWS: Cell<u32> = const { Cell::new(0) };
    static ENGINES: Engines = const { Engines(RefCell::new(Vec::new())) };
}

/// The number of the calling thread.
fn number() -> u64 {
    let known = NUMBER.get();
    if known != 0 {
        return known;
    }
    let drawn = next();
    NUMBER.set(drawn);
    drawn
}

/// Remembers the engine if `key` belongs to the calling thread, so that the engine can be told when
/// the thread ends. Returns `false` if it belongs to a thread whose end was told already: nobody
/// will tell what becomes of what it acquires now.
pub(crate) fn note_thread<T: KeyListener + 'static>(key: OwnerKey, engine: &Arc<T>) -> bool {
    if !key.belongs_to(OwnerKey::Thread(number())) {
        return true;
    }
    let note = |of_thread: &Engines| {
        let mut engines = of_thread.0.borrow_mut();
        let known = engines
            .iter()
            .any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(engine)));
        if !known {
            engines.retain(|known| known.strong_count() > 0);
            let engine: Weak<T> = Arc::downgrade(engine);
            engines.push(engine);
        }
    };
    ENGINES.try_with(note).is_ok()
}

impl ReentryKey {
    /// The key of the calling thread: a number that is never used again, unlike the system's thread
    /// ids.
    ///
    /// It is the same one until the thread is gone, also in handlers that run at the end of a thread
    /// or of the program. After the thread-local data was destroyed, a hold that the thread acquires
    /// without a guard is not renewed.
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
        ReentryKey::Thread(number())
    }

    /// See [`new_flow`](crate::embed::ReentryKeyExt::new_flow).
    pub(crate) fn flow_of_this_thread() -> ReentryKey {
        let nth = FLOWS.get();
        FLOWS.set(nth.wrapping_add(1));
        ReentryKey::Flow {
            thread: number(),
            nth,
        }
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
