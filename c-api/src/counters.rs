//! Semaphores without leases, and count-down latches.

use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

use redlatch::embed::{ClientExt, CountDownLatchExt, PlainSemaphoreExt};
use redlatch::{Client, CountDownLatch, Operation, PlainPermit, PlainSemaphore, Result};

use crate::arguments::{Out, bytes, counted, handle, optional, shared, taken};
use crate::canceller::{redlatch_canceller, wait};
use crate::client::redlatch_client;
use crate::events::{
    REDLATCH_EVENT_ACQUIRE, REDLATCH_EVENT_NUMBER, REDLATCH_EVENT_OPEN, REDLATCH_EVENT_RELEASE,
    REDLATCH_EVENT_SET, What, start_of,
};
use crate::lock::wait_limit;
use crate::status::{redlatch_status, status};

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

/// Both handles have these parts. Their C functions differ in the operation.
trait Counter: Sized + Send + Sync + 'static {
    type Core;
    /// The parameter that is the handle.
    const NAME: &'static str;
    fn new(client: Arc<redlatch_client>, core: Self::Core) -> Self;
    fn client(&self) -> &Arc<redlatch_client>;
    fn core(&self) -> &Self::Core;
}

impl Counter for redlatch_plain_semaphore {
    type Core = PlainSemaphore;
    const NAME: &'static str = "semaphore";
    fn new(client: Arc<redlatch_client>, core: PlainSemaphore) -> Self {
        Self { client, core }
    }
    fn client(&self) -> &Arc<redlatch_client> {
        &self.client
    }
    fn core(&self) -> &PlainSemaphore {
        &self.core
    }
}

impl Counter for redlatch_latch {
    type Core = CountDownLatch;
    const NAME: &'static str = "latch";
    fn new(client: Arc<redlatch_client>, core: CountDownLatch) -> Self {
        Self { client, core }
    }
    fn client(&self) -> &Arc<redlatch_client> {
        &self.client
    }
    fn core(&self) -> &CountDownLatch {
        &self.core
    }
}

/// Stores a counter for a name that C gives.
///
/// # Safety
/// The client is NULL or a live handle, and the place is NULL or may be written to.
unsafe fn make<C: Counter>(
    client: *mut redlatch_client,
    counter: *mut *mut C,
    core: impl FnOnce(&Client) -> Result<C::Core>,
) -> Result<()> {
    // SAFETY: promised by the caller.
    let (out, client) = unsafe { (Out::handle(counter, C::NAME)?, shared(client, "client")?) };
    let core = core(&client.core)?;
    out.put(handle(Arc::new(C::new(client, core))));
    Ok(())
}

/// Frees a counter and cancels what waits through it.
///
/// # Safety
/// It is NULL or a handle that is not used any more.
unsafe fn free<C: Counter>(counter: *mut C) {
    status(|| {
        // SAFETY: promised by the caller.
        let Some(counter) = (unsafe { taken(counter) }) else {
            return Ok(());
        };
        counter.client().clone().forget(counter);
        Ok(())
    });
}

/// Waits for the operation, and stores its answer.
///
/// # Safety
/// The counter is NULL or a live handle.
unsafe fn ask<C: Counter, T: Send + 'static>(
    counter: *const C,
    out: Result<Out<T>>,
    operation: impl FnOnce(&C::Core) -> Operation<T>,
) -> redlatch_status {
    status(|| {
        // SAFETY: promised by the caller.
        let counter = unsafe { shared(counter, C::NAME) }?;
        let out = out?;
        out.put(operation(counter.core()).wait()?);
        Ok(())
    })
}

/// Waits for the operation, which `canceller` can cancel.
///
/// # Safety
/// Both are NULL or live handles.
unsafe fn wait_for<C: Counter, T: Send + 'static>(
    counter: *const C,
    canceller: *mut redlatch_canceller,
    operation: impl FnOnce(&C::Core) -> Result<Operation<T>>,
    take: impl FnOnce(T),
) -> redlatch_status {
    status(|| {
        // SAFETY: promised by the caller.
        let (counter, canceller) =
            unsafe { (shared(counter, C::NAME)?, optional(canceller, "canceller")?) };
        take(wait(operation(counter.core())?, canceller.as_deref())?);
        Ok(())
    })
}

/// Begins the operation; an event tells its answer.
///
/// # Safety
/// The counter is NULL or a live handle.
unsafe fn start<C: Counter, T>(
    counter: *const C,
    tag: u64,
    what: What,
    operation: impl FnOnce(&C::Core) -> Result<Operation<T>>,
) -> redlatch_status {
    status(|| {
        // SAFETY: promised by the caller.
        let counter = unsafe { shared(counter, C::NAME) }?;
        let operation = operation(counter.core())?;
        start_of(
            counter.client(),
            Some(counter.clone()),
            tag,
            what,
            operation,
        )
    })
}

/// Cancels the wait that was started under this tag.
///
/// # Safety
/// The counter is NULL or a live handle, and the place is NULL or may be written to.
unsafe fn cancel<C: Counter>(counter: *const C, tag: u64, cancelled: *mut bool) -> redlatch_status {
    status(|| {
        // SAFETY: promised by the caller.
        let (counter, out) = unsafe { (shared(counter, C::NAME)?, Out::optional(cancelled)) };
        out.put(counter.client().cancel(counter.clone(), tag)?);
        Ok(())
    })
}

fn take(core: &PlainSemaphore, permits: u32, wait_ms: i64) -> Result<Operation<PlainPermit>> {
    Ok(PlainSemaphoreExt::take(
        core,
        permits as usize,
        wait_limit(wait_ms)?,
    ))
}

/// Makes a plain semaphore; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
/// redlatch_plain_semaphore_free().
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_new(
    client: *mut redlatch_client,
    name: *const c_char,
    semaphore: *mut *mut redlatch_plain_semaphore,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle, a string and a place to write to.
    status(|| unsafe {
        let name = bytes(name, "name");
        make(client, semaphore, |client| {
            client.plain_semaphore_from_bytes(name?)
        })
    })
}

/// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_new_n(
    client: *mut redlatch_client,
    name: *const c_char,
    length: usize,
    semaphore: *mut *mut redlatch_plain_semaphore,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle, that many bytes and a place to write to.
    status(|| unsafe {
        let name = counted(name, length, "name");
        make(client, semaphore, |client| {
            client.plain_semaphore_from_bytes(name?)
        })
    })
}

/// Frees a plain semaphore; NULL is allowed. Does no I/O. Permits that were taken stay taken. A wait
/// on it that was started is cancelled and gives no event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_free(semaphore: *mut redlatch_plain_semaphore) {
    // SAFETY: the header asks for a handle that is not used any more.
    unsafe { free(semaphore) }
}

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
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_acquire(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    wait_ms: i64,
) -> redlatch_status {
    // SAFETY: passed on.
    unsafe {
        redlatch_plain_semaphore_acquire_cancellable(semaphore, permits, wait_ms, ptr::null_mut())
    }
}

/// The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
/// leaves nothing behind, when canceller is cancelled before the permits are taken. canceller may be NULL.
///
/// Statuses:
/// - REDLATCH_CANCELLED: canceller was cancelled.
/// - Those of redlatch_plain_semaphore_acquire(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
///   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
///   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_acquire_cancellable(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    wait_ms: i64,
    canceller: *mut redlatch_canceller,
) -> redlatch_status {
    // SAFETY: the header asks for live handles.
    unsafe {
        wait_for(
            semaphore,
            canceller,
            |core| take(core, permits, wait_ms),
            PlainPermit::forget,
        )
    }
}

/// Begins what redlatch_plain_semaphore_acquire() does and returns at once: an event
/// REDLATCH_EVENT_ACQUIRE with this tag comes, exactly one unless it is cancelled. The permits are taken
/// once that event is taken; if semaphore is freed before, and its client is open, they are given
/// back.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
///   semaphore is NULL. The event says that permits is out of bounds.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_acquire_start(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    wait_ms: i64,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(semaphore, tag, What::Wait(REDLATCH_EVENT_ACQUIRE), |core| {
            take(core, permits, wait_ms)
        })
    }
}

/// Cancels what redlatch_plain_semaphore_acquire_start() began under this tag. *cancelled true: no
/// event comes. false: it had ended before, and its event tells how; if it was granted, the
/// permits are taken: release them.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_acquire_cancel(
    semaphore: *mut redlatch_plain_semaphore,
    tag: u64,
    cancelled: *mut bool,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe { cancel(semaphore, tag, cancelled) }
}

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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_release(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let semaphore = unsafe { shared(semaphore, "semaphore") }?;
        if semaphore.client.core.is_forked() {
            // The parent's permits: nothing to do.
            return Ok(());
        }
        semaphore.core.release(permits as usize).wait()
    })
}

/// Begins what redlatch_plain_semaphore_release() does and returns at once: an event
/// REDLATCH_EVENT_RELEASE with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
///   permits is out of bounds, the event says.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_release_start(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(
            semaphore,
            tag,
            What::Answer(REDLATCH_EVENT_RELEASE),
            |core| Ok(core.release(permits as usize)),
        )
    }
}

/// Gives the semaphore so many permits if it has no number yet. *set, unless set is NULL, tells
/// whether it did.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: permits is above 2147483647, or semaphore is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_try_set_permits(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    set: *mut bool,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe {
        ask(semaphore, Ok(Out::optional(set)), |core| {
            core.try_set_permits(permits as usize)
        })
    }
}

/// Begins what redlatch_plain_semaphore_try_set_permits() does and returns at once: an event
/// REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
///   permits is out of bounds, the event says.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_try_set_permits_start(
    semaphore: *mut redlatch_plain_semaphore,
    permits: u32,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(semaphore, tag, What::Answer(REDLATCH_EVENT_SET), |core| {
            Ok(core.try_set_permits(permits as usize))
        })
    }
}

/// Adds permits, or takes some away if permits is negative; it does not wait for them, so the number
/// may get below 0. *now, unless now is NULL, is the new number. The time to live of the key stays as
/// it is.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: permits is beyond 2147483647 either way, or semaphore is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_add_permits(
    semaphore: *mut redlatch_plain_semaphore,
    permits: i64,
    now: *mut i64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe {
        ask(semaphore, Ok(Out::optional(now)), |core| {
            core.add_permits(permits)
        })
    }
}

/// Begins what redlatch_plain_semaphore_add_permits() does and returns at once: an event
/// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
/// to int64_t.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL. That
///   permits is out of bounds, the event says.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_add_permits_start(
    semaphore: *mut redlatch_plain_semaphore,
    permits: i64,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(
            semaphore,
            tag,
            What::Answer(REDLATCH_EVENT_NUMBER),
            |core| Ok(core.add_permits(permits)),
        )
    }
}

/// Takes all permits that there are. *drained, unless drained is NULL, is how many; a number below 0
/// becomes 0 and is told, as by drainPermits() of Redisson.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: semaphore is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_drain(
    semaphore: *mut redlatch_plain_semaphore,
    drained: *mut i64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe { ask(semaphore, Ok(Out::optional(drained)), |core| core.drain()) }
}

/// Begins what redlatch_plain_semaphore_drain() does and returns at once: an event
/// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
/// to int64_t.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_drain_start(
    semaphore: *mut redlatch_plain_semaphore,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(
            semaphore,
            tag,
            What::Answer(REDLATCH_EVENT_NUMBER),
            |core| Ok(core.drain()),
        )
    }
}

/// Reads how many permits there are. It may change at any time.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_available(
    semaphore: *const redlatch_plain_semaphore,
    available: *mut i64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe {
        ask(
            semaphore,
            Out::required(available, "available"),
            PlainSemaphore::available,
        )
    }
}

/// Begins what redlatch_plain_semaphore_available() does and returns at once: an event
/// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
/// to int64_t.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or semaphore is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_plain_semaphore_available_start(
    semaphore: *mut redlatch_plain_semaphore,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(
            semaphore,
            tag,
            What::Answer(REDLATCH_EVENT_NUMBER),
            |core| Ok(core.available()),
        )
    }
}

/// Makes a latch; does no I/O. name is 1 to 1,024 bytes of UTF-8. Free it with
/// redlatch_latch_free().
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_new(
    client: *mut redlatch_client,
    name: *const c_char,
    latch: *mut *mut redlatch_latch,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle, a string and a place to write to.
    status(|| unsafe {
        let name = bytes(name, "name");
        make(client, latch, |client| client.latch_from_bytes(name?))
    })
}

/// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, or an argument is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_new_n(
    client: *mut redlatch_client,
    name: *const c_char,
    length: usize,
    latch: *mut *mut redlatch_latch,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle, that many bytes and a place to write to.
    status(|| unsafe {
        let name = counted(name, length, "name");
        make(client, latch, |client| client.latch_from_bytes(name?))
    })
}

/// Frees a latch; NULL is allowed. Does no I/O. A wait on it that was started is cancelled and gives
/// no event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_free(latch: *mut redlatch_latch) {
    // SAFETY: the header asks for a handle that is not used any more.
    unsafe { free(latch) }
}

/// Waits until the count is 0; returns at once if it is 0 or the latch has no count. wait_ms 0 looks
/// once, REDLATCH_FOREVER waits as long as it takes.
///
/// Statuses:
/// - REDLATCH_TIMEOUT: wait_ms is over, and the count is above 0.
/// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, or latch is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_wait(
    latch: *mut redlatch_latch,
    wait_ms: i64,
) -> redlatch_status {
    // SAFETY: passed on.
    unsafe { redlatch_latch_wait_cancellable(latch, wait_ms, ptr::null_mut()) }
}

/// The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
/// leaves nothing behind, when canceller is cancelled before the latch is open. canceller may be NULL.
///
/// Statuses:
/// - REDLATCH_CANCELLED: canceller was cancelled.
/// - Those of redlatch_latch_wait(): REDLATCH_TIMEOUT, REDLATCH_INVALID_ARGUMENT,
///   REDLATCH_FOREIGN_KIND, REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH,
///   REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_wait_cancellable(
    latch: *mut redlatch_latch,
    wait_ms: i64,
    canceller: *mut redlatch_canceller,
) -> redlatch_status {
    // SAFETY: the header asks for live handles.
    unsafe {
        wait_for(
            latch,
            canceller,
            |core| Ok(core.wait_within(wait_limit(wait_ms)?)),
            drop,
        )
    }
}

/// Begins what redlatch_latch_wait() does and returns at once: an event
/// REDLATCH_EVENT_OPEN with this tag comes, exactly one unless it is cancelled.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: wait_ms is out of bounds, an operation with this tag is under way, or
///   latch is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_wait_start(
    latch: *mut redlatch_latch,
    wait_ms: i64,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(latch, tag, What::Wait(REDLATCH_EVENT_OPEN), |core| {
            Ok(core.wait_within(wait_limit(wait_ms)?))
        })
    }
}

/// Cancels what redlatch_latch_wait_start() began under this tag. *cancelled true: no
/// event comes. false: it had ended before, and its event tells how.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: latch is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_wait_cancel(
    latch: *mut redlatch_latch,
    tag: u64,
    cancelled: *mut bool,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe { cancel(latch, tag, cancelled) }
}

/// Gives the latch this count if it has none. *set, unless set is NULL, tells whether it did.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: count is not 1 to 2147483647, or latch is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_try_set_count(
    latch: *mut redlatch_latch,
    count: u32,
    set: *mut bool,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe {
        ask(latch, Ok(Out::optional(set)), |core| {
            core.try_set_count(count as usize)
        })
    }
}

/// Begins what redlatch_latch_try_set_count() does and returns at once: an event
/// REDLATCH_EVENT_SET with this tag comes. Its value is 1 if it did, else 0.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
///   count is out of bounds, the event says.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_try_set_count_start(
    latch: *mut redlatch_latch,
    count: u32,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(latch, tag, What::Answer(REDLATCH_EVENT_SET), |core| {
            Ok(core.try_set_count(count as usize))
        })
    }
}

/// Counts down by that number. *left, unless left is NULL, is what is left. The count does not get
/// below 0: at 0 the latch is open, and everybody who waits goes on.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: by is not 1 to 2147483647, or latch is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_count_down(
    latch: *mut redlatch_latch,
    by: u32,
    left: *mut i64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe {
        ask(latch, Ok(Out::optional(left)), |core| {
            core.count_down(by as usize)
        })
    }
}

/// Begins what redlatch_latch_count_down() does and returns at once: an event
/// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
/// to int64_t.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL. That
///   by is out of bounds, the event says.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_count_down_start(
    latch: *mut redlatch_latch,
    by: u32,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(latch, tag, What::Answer(REDLATCH_EVENT_NUMBER), |core| {
            Ok(core.count_down(by as usize))
        })
    }
}

/// Reads the count; 0 when the latch is open.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
/// - REDLATCH_FOREIGN_KIND: something other than a number is stored under the name.
/// - REDLATCH_CLOSED, REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED,
///   REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE: "Statuses of the server" at the top.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_count(
    latch: *const redlatch_latch,
    count: *mut i64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle and a place to write to.
    unsafe { ask(latch, Out::required(count, "count"), CountDownLatch::count) }
}

/// Begins what redlatch_latch_count() does and returns at once: an event
/// REDLATCH_EVENT_NUMBER with this tag comes. Its value is that number: cast it
/// to int64_t.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or latch is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_latch_count_start(
    latch: *mut redlatch_latch,
    tag: u64,
) -> redlatch_status {
    // SAFETY: the header asks for a live handle.
    unsafe {
        start(latch, tag, What::Answer(REDLATCH_EVENT_NUMBER), |core| {
            Ok(core.count())
        })
    }
}
