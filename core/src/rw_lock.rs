//! Both sides of a read-write lock.

use crate::lock::Lock;

/// A read-write lock: many readers or one writer. It is the same lock as the `RReadWriteLock` of
/// Redisson with this name. Making and cloning it is cheap and does no I/O.
///
/// Each side is a [`Lock`] with everything that a lock has: tries, waits, leases, the watchdog,
/// guards that tell a loss. They are the kinds [`Read`](crate::Kind::Read) and
/// [`Write`](crate::Kind::Write).
///
/// A caller with a [`ReentryKey`](crate::ReentryKey) that has the write side may take the read side
/// too, and keep it when it releases the write side. The other way round it would wait for itself:
/// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock).
///
/// Callers of one client come in their order: readers that wait behind a writer let it go first.
/// Between clients no writer comes before readers, as with Redisson.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let prices = client.rw_lock("prices")?;
///
/// let reader = prices.read().acquire().await?; // beside other readers
/// reader.release().await?;
///
/// let writer = prices.write().acquire().await?; // alone
/// writer.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock {
    pub(crate) read: Lock,
    pub(crate) write: Lock,
}

impl RwLock {
    /// The name, as it is in Redis.
    pub fn name(&self) -> &str {
        self.write.name()
    }

    /// The side that many may have at a time.
    pub fn read(&self) -> &Lock {
        &self.read
    }

    /// The side that one may have, while nobody else has the other.
    pub fn write(&self) -> &Lock {
        &self.write
    }
}
