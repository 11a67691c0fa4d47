//! Semaphores: what they have beside what every lock has.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use redlatch::embed::{ClientExt, LockExt, SemaphoreExt};
use redlatch::{Error, ErrorKind, Kind, OptionValue, Result, Semaphore};

use crate::calls::User;
use crate::client::redlatch_client;
use crate::events::What;
use crate::exports::exports;
use crate::lock::redlatch_lock;
use crate::options::redlatch_options;
use crate::status::redlatch_status;

/// Called with the numbers of permits of a semaphore: those that are free, and all, taken ones
/// included, as redlatch_semaphore_permits() stores them.
pub type redlatch_permits_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, available: i64, limit: i64)>;

impl redlatch_lock {
    /// The semaphore of the core, if this is one.
    fn as_semaphore(&self) -> Result<Semaphore> {
        self.client.refuse_fork()?;
        match self.core.kind() {
            Kind::Semaphore => Ok(Semaphore::of_lock(self.core.clone())),
            kind => {
                let text = format!(
                    "semaphore is a lock of the kind {}; give it one of redlatch_semaphore_new()",
                    kind.name()
                );
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }
}

exports! {
    /// Makes a semaphore: so many owners at a time as it has permits. It is the same semaphore as
    /// Redisson's RPermitExpirableSemaphore with this name. It is a lock for all functions here, and is
    /// freed with redlatch_lock_free(): acquiring takes permits, releasing gives them back, and a permit
    /// is renewed and lost as a lock is. An owner has the permits of one acquisition at a time. A program
    /// that dies gives its permits back after their lease and 2 s.
    ///
    /// The first acquisition gives the semaphore limit permits; a number that is there already stays.
    /// With 0, others set it. name and options are as for redlatch_lock_new(); the option kind does not
    /// count, nor do fencing, fencing_expires and reentrant of the client. Does no I/O.
    ///
    ///     redlatch_lock *gpus = NULL;
    ///     if (redlatch_semaphore_new(client, "gpus", 4, NULL, &gpus) != REDLATCH_OK ||
    ///         redlatch_lock_acquire(gpus, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     else
    ///         redlatch_lock_release(gpus, REDLATCH_THREAD); // after the work
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, limit is above 2147483647,
    ///   an option is none of a lock or means nothing for a semaphore (fencing, reentrant), or an
    ///   argument is NULL (but options).
    #[must_use]
    make redlatch_semaphore_new(client: *mut redlatch_client, name, limit: u32,
        options: *const redlatch_options, semaphore: *mut *mut redlatch_lock) {
        let mut options = redlatch_options::lock(options, client.core.semaphore_options())?;
        options.set("limit", OptionValue::Millis(limit.into()))?;
        let core = client.core.semaphore_from_bytes(name, options)?;
        semaphore.give(redlatch_lock::of(&client, core.as_lock().clone()))
    }

    /// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, limit is above 2147483647,
    ///   an option is none of a lock or means nothing for a semaphore (fencing, reentrant), or an
    ///   argument is NULL (but options).
    #[must_use]
    counted redlatch_semaphore_new_n;

    /// Sets how many permits each later acquisition through this handle takes at once, 1 to 1000;
    /// without it, 1. They are given back together. Does no I/O.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: permits is 0, above 1000 or above the limit that the semaphore was
    ///   made with, or it is no semaphore.
    /// - REDLATCH_FORKED: the semaphore belongs to the parent of this process.
    #[must_use]
    fn redlatch_semaphore_set_take(semaphore: *mut redlatch_lock, permits: u32) {
        semaphore.as_semaphore()?.check_permits(permits as usize)?;
        semaphore.permits.store(permits, Ordering::Relaxed);
        Ok(())
    }

    /// Reads how many permits are free, and how many there are, taken ones included. Both places may be
    /// NULL. *available is negative when the semaphore was given fewer permits than are taken; *limit is
    /// 0 when nobody has set it yet.
    ///
    /// Statuses:
    /// - SERVER
    /// - REDLATCH_FOREIGN_KIND: the name has other data.
    /// - REDLATCH_INVALID_ARGUMENT: it is no semaphore, or it is NULL.
    #[must_use]
    fn redlatch_semaphore_permits(semaphore: *const redlatch_lock, available: *mut i64,
        limit: *mut i64) {
        let permits = semaphore.as_semaphore()?.permits().wait()?;
        available.put(permits.available);
        limit.put(permits.limit);
        Ok(())
    }

    /// Begins what redlatch_semaphore_permits() does and returns at once: an event
    /// REDLATCH_EVENT_PERMITS with this tag comes. redlatch_client_next_event() calls function, unless it
    /// is NULL, with user and both numbers before it returns that event.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
    ///   NULL.
    /// - STARTED
    fn redlatch_semaphore_permits_start(semaphore: *mut redlatch_lock,
        function: redlatch_permits_fn, user: *mut c_void, tag: u64) {
        let of_core = semaphore.as_semaphore()?;
        let what = What::Permits(function, user);
        semaphore.client.start(&semaphore, tag, what, || Ok(of_core.permits()))
    }

    /// Gives the semaphore so many permits, 0 to 2147483647, whatever it had before. Permits that are
    /// taken stay taken: when there are fewer than that, callers wait until enough are given back.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: limit is above 2147483647, it is no semaphore, or it is NULL.
    /// - REDLATCH_FOREIGN_KIND: the name has other data.
    /// - SERVER
    #[must_use]
    ask redlatch_semaphore_set_permits(semaphore: *mut redlatch_lock, limit: u32)
        = What::Permits(None, User(ptr::null_mut())),
        semaphore.as_semaphore()?.set_permits(limit as usize);

    /// Begins what redlatch_semaphore_set_permits() does and returns at once: an event
    /// REDLATCH_EVENT_PERMITS with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
    ///   NULL. The event says that limit is above 2147483647.
    /// - STARTED
    start redlatch_semaphore_set_permits_start;
}
