//! Semaphores without leases, and count-down latches.

use std::ffi::c_char;
use std::sync::Arc;

use redlatch::embed::{ClientExt, CountDownLatchExt, PlainSemaphoreExt};
use redlatch::{CountDownLatch, Operation, PlainPermit, PlainSemaphore, Result};

use crate::arguments::Freed;
use crate::canceller::redlatch_canceller;
use crate::client::redlatch_client;
use crate::events::{
    REDLATCH_EVENT_ACQUIRE, REDLATCH_EVENT_NUMBER, REDLATCH_EVENT_OPEN, REDLATCH_EVENT_RELEASE,
    REDLATCH_EVENT_SET,
    What::{Answer, Wait},
};
use crate::exports::exports;
use crate::lock::wait_limit;
use crate::status::redlatch_status;

/// A semaphore without leases: the same as Redisson's RSemaphore with this name. Permits have no
/// owner: any program gives back what any other took, and those of a program that dies never come
/// back. May be used from any thread, by several at once.
pub struct redlatch_plain_semaphore {
    client: Arc<redlatch_client>,
    core: PlainSemaphore,
}

/// A count-down latch: the same as Redisson's RCountDownLatch with this name. May be used from any
/// thread, by several at once.
pub struct redlatch_latch {
    client: Arc<redlatch_client>,
    core: CountDownLatch,
}

impl Freed for redlatch_plain_semaphore {
    fn freed(self: Arc<Self>) {
        self.client.clone().forget(self);
    }
}

impl Freed for redlatch_latch {
    fn freed(self: Arc<Self>) {
        self.client.clone().forget(self);
    }
}

impl redlatch_plain_semaphore {
    fn take(&self, permits: u32, wait_ms: i64) -> Result<Operation<PlainPermit>> {
        let wait = wait_limit(wait_ms)?;
        Ok(PlainSemaphoreExt::take(&self.core, permits as usize, wait))
    }

    fn release(&self, permits: u32) -> Operation<()> {
        self.core.release(permits as usize)
    }
}

exports! {
    /// Makes a plain semaphore; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
    /// redlatch_plain_semaphore_free().
    ///
    ///     redlatch_plain_semaphore *seats = NULL;
    ///     bool set = false; // by the first program
    ///     if (redlatch_plain_semaphore_new(client, "seats", &seats) != REDLATCH_OK ||
    ///         redlatch_plain_semaphore_try_set_permits(seats, 100, &set) != REDLATCH_OK ||
    ///         redlatch_plain_semaphore_acquire(seats, 2, 5000) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     else
    ///         redlatch_plain_semaphore_release(seats, 2); // by any program
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
    #[must_use]
    make redlatch_plain_semaphore_new(client: *mut redlatch_client, name,
        semaphore: *mut *mut redlatch_plain_semaphore) {
        let core = client.core.plain_semaphore_from_bytes(name)?;
        semaphore.give(Arc::new(redlatch_plain_semaphore { client, core }))
    }

    /// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
    #[must_use]
    counted redlatch_plain_semaphore_new_n;

    /// Frees a plain semaphore; NULL is allowed. Does no I/O. Permits that were taken stay taken. A wait
    /// on it that was started is cancelled and gives no event.
    free redlatch_plain_semaphore_free(semaphore: *mut redlatch_plain_semaphore);

    /// Takes so many permits at once. wait_ms 0 tries once, REDLATCH_FOREVER waits as long as it takes;
    /// REDLATCH_TIMEOUT leaves nothing behind. Callers of one client come in their order. Give the
    /// permits back with redlatch_plain_semaphore_release(): nothing else does, not even the end of the
    /// program.
    ///
    /// Statuses:
    /// - REDLATCH_TIMEOUT: wait_ms is over, and too few permits are free.
    /// - REDLATCH_INVALID_ARGUMENT: permits is not 1 to 2147483647, wait_ms is out of bounds, or semaphore
    ///   is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    #[must_use]
    wait redlatch_plain_semaphore_acquire(semaphore: *mut redlatch_plain_semaphore, permits: u32,
        wait_ms: i64)
        = Wait(REDLATCH_EVENT_ACQUIRE), semaphore.take(permits, wait_ms)? => PlainPermit::forget;

    /// The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
    /// leaves nothing behind, when canceller is cancelled before the permits are taken. canceller may be NULL.
    ///
    /// Statuses:
    /// - REDLATCH_CANCELLED: canceller was cancelled.
    /// - Those of redlatch_plain_semaphore_acquire(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
    ///   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
    ///   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
    #[must_use]
    cancellable redlatch_plain_semaphore_acquire_cancellable;

    /// Begins what redlatch_plain_semaphore_acquire() does and returns at once: an event
    /// REDLATCH_EVENT_ACQUIRE with this tag comes, exactly one unless it is cancelled. The permits are taken
    /// once that event is taken; if semaphore is freed before, and its client is open, they are given
    /// back.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
    ///   semaphore is NULL. The event says that permits is out of bounds.
    /// - STARTED
    #[must_use]
    start redlatch_plain_semaphore_acquire_start;

    /// Cancels what redlatch_plain_semaphore_acquire_start() began under this tag. cancelled may be NULL. *cancelled true: no
    /// event comes. false: it had ended before, and its event tells how; if it was granted, the
    /// permits are taken: release them.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    cancel redlatch_plain_semaphore_acquire_cancel;

    /// Gives so many permits back, whoever took them, in whatever program. Nothing stops a caller that
    /// gives back more than were taken: the semaphore then has more permits than before. After fork() the
    /// child may call it for what the parent took; it does nothing.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: permits is not 1 to 2147483647, or semaphore is NULL.
    /// - REDLATCH_UNAVAILABLE: the server did not confirm within the option outage. The permits are given
    ///   back as soon as it answers: do not release them again.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - REDLATCH_CLOSED, REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER,
    ///   REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
    fn redlatch_plain_semaphore_release(semaphore: *mut redlatch_plain_semaphore, permits: u32) {
        // The parent's permits: nothing to do.
        if semaphore.client.core.is_forked() { Ok(()) } else { semaphore.release(permits).wait() }
    }

    /// Begins what redlatch_plain_semaphore_release() does and returns at once: an event
    /// REDLATCH_EVENT_RELEASE with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
    ///   permits is out of bounds, the event says.
    /// - STARTED
    fn redlatch_plain_semaphore_release_start(semaphore: *mut redlatch_plain_semaphore,
        permits: u32, tag: u64) {
        let what = Answer(REDLATCH_EVENT_RELEASE);
        semaphore.client.start(&semaphore, tag, what, || Ok(semaphore.release(permits)))
    }

    /// Gives the semaphore so many permits if it has no number yet. *set, unless set is NULL, tells
    /// whether it did.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: permits is above 2147483647, or semaphore is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    ask redlatch_plain_semaphore_try_set_permits(semaphore: *mut redlatch_plain_semaphore,
        permits: u32; optional set: *mut bool)
        = Answer(REDLATCH_EVENT_SET), semaphore.core.try_set_permits(permits as usize);

    /// Begins what redlatch_plain_semaphore_try_set_permits() does and returns at once: an event
    /// REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
    ///   permits is out of bounds, the event says.
    /// - STARTED
    start redlatch_plain_semaphore_try_set_permits_start;

    /// Adds permits, or takes some away if permits is negative; it does not wait for them, so the number
    /// may get below 0. *now, unless now is NULL, is the new number. The time to live of the key stays as
    /// it is.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: permits is beyond 2147483647 either way, or semaphore is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    ask redlatch_plain_semaphore_add_permits(semaphore: *mut redlatch_plain_semaphore,
        permits: i64; optional now: *mut i64)
        = Answer(REDLATCH_EVENT_NUMBER), semaphore.core.add_permits(permits);

    /// Begins what redlatch_plain_semaphore_add_permits() does and returns at once: an event
    /// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
    /// to int64_t.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
    ///   permits is out of bounds, the event says.
    /// - STARTED
    start redlatch_plain_semaphore_add_permits_start;

    /// Takes all permits that there are. *drained, unless drained is NULL, is how many; a number below 0
    /// becomes 0 and is told, as by drainPermits() of Redisson.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    ask redlatch_plain_semaphore_drain(semaphore: *mut redlatch_plain_semaphore;
        optional drained: *mut i64)
        = Answer(REDLATCH_EVENT_NUMBER), semaphore.core.drain();

    /// Begins what redlatch_plain_semaphore_drain() does and returns at once: an event
    /// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
    /// to int64_t.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
    /// - STARTED
    start redlatch_plain_semaphore_drain_start;

    /// Reads how many permits there are. It may change at any time.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    #[must_use]
    ask redlatch_plain_semaphore_available(semaphore: *const redlatch_plain_semaphore;
        needed available: *mut i64)
        = Answer(REDLATCH_EVENT_NUMBER), semaphore.core.available();

    /// Begins what redlatch_plain_semaphore_available() does and returns at once: an event
    /// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
    /// to int64_t.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
    /// - STARTED
    start redlatch_plain_semaphore_available_start;

    /// Makes a latch; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
    /// redlatch_latch_free().
    ///
    ///     redlatch_latch *ready = NULL;
    ///     bool set = false; // by the first program
    ///     if (redlatch_latch_new(client, "ready", &ready) != REDLATCH_OK ||
    ///         redlatch_latch_try_set_count(ready, 1, &set) != REDLATCH_OK ||
    ///         redlatch_latch_count_down(ready, 1, NULL) != REDLATCH_OK ||
    ///         redlatch_latch_wait(ready, 5000) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
    #[must_use]
    make redlatch_latch_new(client: *mut redlatch_client, name, latch: *mut *mut redlatch_latch) {
        let core = client.core.latch_from_bytes(name)?;
        latch.give(Arc::new(redlatch_latch { client, core }))
    }

    /// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
    #[must_use]
    counted redlatch_latch_new_n;

    /// Frees a latch; NULL is allowed. Does no I/O. A wait on it that was started is cancelled and gives
    /// no event.
    free redlatch_latch_free(latch: *mut redlatch_latch);

    /// Waits until the count is 0; returns at once if it is 0 or the latch has no count. wait_ms 0 looks
    /// once, REDLATCH_FOREVER waits as long as it takes.
    ///
    /// Statuses:
    /// - REDLATCH_TIMEOUT: wait_ms is over, and the count is above 0.
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, or latch is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    #[must_use]
    wait redlatch_latch_wait(latch: *mut redlatch_latch, wait_ms: i64)
        = Wait(REDLATCH_EVENT_OPEN), latch.core.wait_within(wait_limit(wait_ms)?) => drop;

    /// The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
    /// leaves nothing behind, when canceller is cancelled before the latch is open. canceller may be NULL.
    ///
    /// Statuses:
    /// - REDLATCH_CANCELLED: canceller was cancelled.
    /// - Those of redlatch_latch_wait(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
    ///   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
    ///   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
    #[must_use]
    cancellable redlatch_latch_wait_cancellable;

    /// Begins what redlatch_latch_wait() does and returns at once: an event
    /// REDLATCH_EVENT_OPEN with this tag comes, exactly one unless it is cancelled.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
    ///   latch is NULL.
    /// - STARTED
    #[must_use]
    start redlatch_latch_wait_start;

    /// Cancels what redlatch_latch_wait_start() began under this tag. cancelled may be NULL. *cancelled true: no
    /// event comes. false: it had ended before, and its event tells how.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: latch is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    cancel redlatch_latch_wait_cancel;

    /// Gives the latch this count if it has none. *set, unless set is NULL, tells whether it did.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: count is not 1 to 2147483647, or latch is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    ask redlatch_latch_try_set_count(latch: *mut redlatch_latch, count: u32;
        optional set: *mut bool)
        = Answer(REDLATCH_EVENT_SET), latch.core.try_set_count(count as usize);

    /// Begins what redlatch_latch_try_set_count() does and returns at once: an event
    /// REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
    ///   count is out of bounds, the event says.
    /// - STARTED
    start redlatch_latch_try_set_count_start;

    /// Counts down by that number. *left, unless left is NULL, is what is left. The count does not get
    /// below 0: at 0 the latch is open, and everybody who waits goes on.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: by is not 1 to 2147483647, or latch is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    ask redlatch_latch_count_down(latch: *mut redlatch_latch, by: u32; optional left: *mut i64)
        = Answer(REDLATCH_EVENT_NUMBER), latch.core.count_down(by as usize);

    /// Begins what redlatch_latch_count_down() does and returns at once: an event
    /// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
    /// to int64_t.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
    ///   by is out of bounds, the event says.
    /// - STARTED
    start redlatch_latch_count_down_start;

    /// Reads the count; 0 when the latch is open.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
    /// - SERVER
    #[must_use]
    ask redlatch_latch_count(latch: *const redlatch_latch; needed count: *mut i64)
        = Answer(REDLATCH_EVENT_NUMBER), latch.core.count();

    /// Begins what redlatch_latch_count() does and returns at once: an event
    /// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
    /// to int64_t.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL.
    /// - STARTED
    start redlatch_latch_count_start;
}
