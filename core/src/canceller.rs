//! Ends blocking waits from another thread.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::process;
use crate::sys::StopFlag;

/// Ends blocking waits from another thread, or from a signal handler.
///
/// A thread passes it to [`Operation::wait_cancellable`](crate::Operation::wait_cancellable).
/// Another thread calls [`cancel`](Canceller::cancel), and the wait returns
/// [`ErrorKind::Cancelled`]. Clones share one state, and any number of waits can use it at the same
/// time. A canceller is used once: after `cancel`, each wait with it ends at once.
///
/// Asynchronous code does not need it: dropping an operation cancels it.
///
/// ```no_run
/// # fn example() -> redlatch::Result<()> {
/// # let client = redlatch::Client::connect("redis://localhost").wait()?;
/// use redlatch::{Canceller, ErrorKind};
///
/// let canceller = Canceller::new()?;
/// let worker = std::thread::spawn({
///     let (lock, canceller) = (client.lock("orders:42")?, canceller.clone());
///     move || match lock.acquire().wait_cancellable(&canceller) {
///         Err(error) if error.kind() == ErrorKind::Cancelled => {} // stop: nothing stays behind in Redis
///         other => drop(other), // do the work
///     }
/// });
/// canceller.cancel();
/// # worker.join().ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Canceller(Arc<CancelState>);

struct CancelState {
    cancelled: StopFlag,
    /// A child shares the flag's descriptor with its parent, but not the rest of it.
    pid: u32,
}

impl Canceller {
    /// Makes a canceller. It keeps one file descriptor until its last clone is dropped.
    ///
    /// # Errors
    /// `unavailable` when the process or the system has no file descriptor left.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> redlatch::Result<()> {
    /// let canceller = redlatch::Canceller::new()?;
    /// assert!(!canceller.is_cancelled());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Result<Canceller> {
        let cancelled = StopFlag::new().map_err(|error| {
            Error::exhausted(
                "cannot make a canceller, which needs a file descriptor",
                &error,
            )
        })?;
        Ok(Canceller(Arc::new(CancelState {
            cancelled,
            pid: process::id(),
        })))
    }

    /// Ends all waits that use this canceller, now and later. Calling it again changes nothing.
    ///
    /// It takes no lock, allocates nothing and does not block, so a signal handler may call it. In
    /// a process that was forked after [`new`](Canceller::new) it does nothing.
    pub fn cancel(&self) {
        if self.0.pid == process::id() {
            self.0.cancelled.set();
        }
    }

    /// Whether [`cancel`](Canceller::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_set()
    }

    /// Ends the sleep of a thread.
    pub(crate) fn flag(&self) -> &StopFlag {
        &self.0.cancelled
    }

    /// A parent's `cancel` would make the child's descriptor readable without setting its flag.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.0.pid == process::id() {
            return Ok(());
        }
        let text = "this canceller was made before fork(); make a new one in this process";
        Err(Error::new(ErrorKind::Forked, text))
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_cancelled() {
            "cancelled"
        } else {
            "not cancelled"
        };
        write!(f, "Canceller({state})")
    }
}
