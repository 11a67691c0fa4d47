//! Ending a wait from another thread.

use std::sync::Arc;

use redlatch::embed::Uncancelled;
use redlatch::{Canceller, Operation, Result};

use crate::arguments::Freed;
use crate::exports::exports;
use crate::status::redlatch_status;

/// Ends waits from another thread. One canceller serves any number of waits, at the same time too.
/// It is used once: after redlatch_canceller_cancel() each wait with it ends at once.
pub struct redlatch_canceller {
    core: Canceller,
}

impl Freed for redlatch_canceller {}

/// Waits for an operation, until it is cancelled if there is a canceller.
pub(crate) fn wait<T>(
    operation: Operation<T>,
    canceller: Option<Arc<redlatch_canceller>>,
) -> Result<T> {
    match canceller {
        Some(canceller) => operation.wait_cancellable(&canceller.core),
        None => operation.wait(),
    }
}

exports! {
    /// Makes a canceller, which keeps one file descriptor. Free it with redlatch_canceller_free().
    ///
    ///     redlatch_canceller *canceller = NULL; // a signal handler may call redlatch_canceller_cancel(canceller)
    ///     if (redlatch_canceller_new(&canceller) != REDLATCH_OK ||
    ///         redlatch_lock_acquire_cancellable(lock, REDLATCH_THREAD, REDLATCH_FOREVER, REDLATCH_LOCK_LEASE,
    ///                                           canceller, NULL) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - REDLATCH_UNAVAILABLE: there is no descriptor left.
    #[must_use]
    fn redlatch_canceller_new(canceller: *mut *mut redlatch_canceller) {
        canceller.give(Arc::new(redlatch_canceller { core: Canceller::new()? }))
    }

    /// Whether redlatch_canceller_cancel() was called: for work in steps that is to stop as well.
    fn redlatch_canceller_is_cancelled(canceller: *const redlatch_canceller) -> bool = false
        => canceller.core.is_cancelled();

    /// Frees a canceller; NULL is allowed. Waits that use it go on, and nothing can cancel them any
    /// more.
    free redlatch_canceller_free(canceller: *mut redlatch_canceller);
}

/// Ends all waits with this canceller, now and later: they return REDLATCH_CANCELLED, unless they
/// have their lock already. NULL is allowed. Any thread may call it, and a signal handler too: it
/// takes no lock, allocates nothing, does not block and leaves errno as it is. In a process that
/// was forked after redlatch_canceller_new() it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_canceller_cancel(canceller: *const redlatch_canceller) {
    // Without `status`, whose thread-local data may have to be allocated.
    let _uncancelled = Uncancelled::new();
    // SAFETY: the header asks for a live handle.
    if let Some(canceller) = unsafe { canceller.as_ref() } {
        canceller.core.cancel();
    }
}
