//! The face for event loops: what was started, and what came of it.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use redlatch::embed::{Cancelled, Completion, CompletionQueue, HoldExt, OperationExt, Outcome};
use redlatch::{Error, ErrorKind, Holder, Lock, Operation, ReentryKey, Result};

use crate::arguments::{Out, is_null, millis, shared, text};
use crate::calls::User;
use crate::client::redlatch_client;
use crate::lock::{HolderFn, key, redlatch_holder_fn, redlatch_lock, tell_holder};
use crate::semaphore::redlatch_permits_fn;
use crate::status::{fail, redlatch_status, status};

/// No event waits.
pub const REDLATCH_EVENT_NONE: i32 = 0;
/// redlatch_lock_acquire_start() or redlatch_plain_semaphore_acquire_start() has ended: result says
/// how.
pub const REDLATCH_EVENT_ACQUIRE: i32 = 1;
/// redlatch_lock_release_start() or redlatch_plain_semaphore_release_start() has ended: result says
/// how.
pub const REDLATCH_EVENT_RELEASE: i32 = 2;
/// A hold that redlatch_lock_acquire_start() began was lost: result is REDLATCH_LOST.
pub const REDLATCH_EVENT_LOST: i32 = 3;
/// redlatch_lock_extend_start() has ended: result says how.
pub const REDLATCH_EVENT_EXTEND: i32 = 4;
/// redlatch_lock_force_release_start() has ended; value is 1 if there was a lock, else 0.
pub const REDLATCH_EVENT_FORCE_RELEASE: i32 = 5;
/// redlatch_lock_is_locked_start() has ended; value is 1 if somebody holds the lock, else 0.
pub const REDLATCH_EVENT_IS_LOCKED: i32 = 6;
/// redlatch_lock_holders_start() or redlatch_lock_waiters_start() has ended; value is their number.
pub const REDLATCH_EVENT_HOLDERS: i32 = 7;
/// redlatch_client_ready_start() has ended: result says how.
pub const REDLATCH_EVENT_READY: i32 = 8;
/// redlatch_client_close_start() has ended: result says how.
pub const REDLATCH_EVENT_CLOSE: i32 = 9;
/// redlatch_lock_release_token_start() has ended: result says how.
pub const REDLATCH_EVENT_RELEASE_TOKEN: i32 = 10;
/// redlatch_lock_extend_token_start() has ended: result says how.
pub const REDLATCH_EVENT_EXTEND_TOKEN: i32 = 11;
/// redlatch_semaphore_permits_start() or redlatch_semaphore_set_permits_start() has ended; value is
/// how many permits are free: cast it to int64_t.
pub const REDLATCH_EVENT_PERMITS: i32 = 12;
/// redlatch_latch_wait_start() has ended: result says how.
pub const REDLATCH_EVENT_OPEN: i32 = 13;
/// redlatch_plain_semaphore_try_set_permits_start() or redlatch_latch_try_set_count_start() has
/// ended; value is 1 if it had no number before, else 0.
pub const REDLATCH_EVENT_SET: i32 = 14;
/// redlatch_plain_semaphore_add_permits_start(), redlatch_plain_semaphore_drain_start(),
/// redlatch_plain_semaphore_available_start(), redlatch_latch_count_down_start() or
/// redlatch_latch_count_start() has ended; value is the number: cast it to int64_t.
pub const REDLATCH_EVENT_NUMBER: i32 = 15;

/// Operations that were started and have not been told yet. The queue exists once somebody wants it.
#[derive(Default)]
pub(crate) struct Events {
    queue: Option<Arc<CompletionQueue<Awaited>>>,
    /// Calls under way, and those whose event was not taken, by their tags.
    known: HashMap<u64, Known>,
    /// The number of what was started last.
    last: u64,
}

/// Something that is known by its tag.
struct Known {
    number: u64,
    ticket: u64,
    handle: Option<Weak<Handle>>,
    is_wait: bool,
}

/// Something that becomes an event. Freeing its handle forgets it.
struct Awaited {
    tag: u64,
    /// Its number among what was started; 0 for a loss.
    number: u64,
    /// None for an operation of the client.
    handle: Option<Weak<Handle>>,
    what: What,
}

/// A lock or a counter, as C has it.
pub(crate) type Handle = dyn Any + Send + Sync;

pub(crate) enum What {
    Acquire {
        owner: u64,
        key: ReentryKey,
    },
    /// The release of a level that is known here, or of the newest that the engine knows.
    Release {
        key: ReentryKey,
        known: bool,
    },
    /// The loss of a hold that was acquired under the tag.
    Loss,
    /// A wait of a counter, which can be cancelled; an event of this kind.
    Wait(i32),
    /// Only its answer counts, which is an event of this kind.
    Answer(i32),
    /// Closing within this time.
    Close(Duration),
    /// The function is called for each holder.
    Holders(HolderFn, User),
    /// The function is called with the numbers of permits, if there is one.
    Permits(redlatch_permits_fn, User),
}

impl Awaited {
    fn new(handle: &Arc<Handle>, tag: u64, what: What) -> Awaited {
        Awaited {
            tag,
            number: 0,
            handle: Some(Arc::downgrade(handle)),
            what,
        }
    }

    /// Whether this is a wait that can be cancelled.
    fn is_wait(&self) -> bool {
        matches!(self.what, What::Acquire { .. } | What::Wait(_))
    }
}

impl Known {
    /// Whether its handle was freed: then its tag is free.
    fn is_gone(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|of| of.strong_count() == 0)
    }
}

fn is_of(known: Option<&Weak<Handle>>, handle: &Arc<Handle>) -> bool {
    known.is_some_and(|of| ptr::addr_eq(of.as_ptr(), Arc::as_ptr(handle)))
}

/// One event, as C gets it.
struct Event {
    kind: i32,
    tag: u64,
    result: redlatch_status,
    value: u64,
    /// To be called once no lock is held.
    call: Option<Call>,
}

/// A call of a function of the program.
type Call = Box<dyn FnOnce()>;

impl Events {
    fn queue(&mut self) -> Result<Arc<CompletionQueue<Awaited>>> {
        let queue = match self.queue.take() {
            Some(queue) => queue,
            None => CompletionQueue::with_fd()?,
        };
        Ok(self.queue.insert(queue).clone())
    }

    pub(crate) fn fd(&mut self) -> Result<i32> {
        let fd = self.queue()?.fd();
        fd.ok_or_else(|| Error::new(ErrorKind::Internal, "the event queue has no descriptor"))
    }

    /// A tag means one thing at a time, so that cancelling is clear.
    fn refuse_known(&mut self, tag: u64) -> Result<()> {
        if self.known.get(&tag).is_none_or(Known::is_gone) {
            return Ok(());
        }
        let text =
            format!("tag {tag} is under way already; give another one, or take its event first");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Sends an operation whose answer becomes an event.
    fn start<T>(&mut self, mut awaited: Awaited, operation: Operation<T>) -> Result<()> {
        let queue = self.queue()?;
        self.last += 1;
        awaited.number = self.last;
        let (tag, handle, is_wait) = (awaited.tag, awaited.handle.clone(), awaited.is_wait());
        let known = Known {
            number: awaited.number,
            ticket: operation.deliver_to(&queue, awaited),
            handle,
            is_wait,
        };
        self.known.insert(tag, known);
        Ok(())
    }

    /// Frees a tag, unless it means something newer by now.
    fn free(&mut self, tag: u64, number: u64) {
        if self
            .known
            .get(&tag)
            .is_some_and(|known| known.number == number)
        {
            self.known.remove(&tag);
        }
    }

    /// Cancels a wait; false if its event waits or was taken, or there is none of this tag.
    pub(crate) fn cancel(&mut self, handle: &Arc<Handle>, tag: u64) -> bool {
        let (Some(queue), Some(known)) = (&self.queue, self.known.get(&tag)) else {
            return false;
        };
        let cancelled = known.is_wait
            && is_of(known.handle.as_ref(), handle)
            && queue.cancel(known.ticket) == Cancelled::Yes;
        if cancelled {
            self.known.remove(&tag);
        }
        cancelled
    }

    /// Forgets the waits of a handle that is freed; what they were granted meanwhile is released. A
    /// release goes on.
    pub(crate) fn forget(&mut self, handle: &Arc<Handle>) {
        let Some(queue) = self.queue.clone() else {
            return;
        };
        let mut forgotten = Vec::new();
        queue.forget_all(|known| {
            let is_its = known.is_wait() && is_of(known.handle.as_ref(), handle);
            if is_its {
                forgotten.push((known.tag, known.number));
            }
            is_its
        });
        for (tag, number) in forgotten {
            self.free(tag, number);
        }
    }

    /// The oldest event, if one waits.
    fn next(&mut self) -> Option<Event> {
        let queue = self.queue.clone()?;
        loop {
            if let Some(event) = self.event(&queue, queue.pop()?) {
                return Some(event);
            }
        }
    }

    /// The event for an answer; `None` if its handle is gone, or another answer is to come.
    fn event(
        &mut self,
        queue: &Arc<CompletionQueue<Awaited>>,
        Completion {
            tag: known,
            outcome,
            ..
        }: Completion<Awaited>,
    ) -> Option<Event> {
        let tag = known.tag;
        self.free(tag, known.number);
        let lock = match known.handle {
            Some(of) => of.upgrade()?.downcast::<redlatch_lock>().ok(),
            None => None,
        };
        let kind = match known.what {
            What::Acquire { .. } => REDLATCH_EVENT_ACQUIRE,
            What::Release { .. } => REDLATCH_EVENT_RELEASE,
            What::Loss => REDLATCH_EVENT_LOST,
            What::Wait(kind) | What::Answer(kind) => kind,
            What::Close(_) => REDLATCH_EVENT_CLOSE,
            What::Holders(..) => REDLATCH_EVENT_HOLDERS,
            What::Permits(..) => REDLATCH_EVENT_PERMITS,
        };
        let mut call: Option<Call> = None;
        let (result, value) = match (outcome, known.what, lock) {
            (Outcome::Lost(reason), ..) => (fail(&reason.into()), 0),
            (Outcome::Granted(guard), What::Acquire { owner, key }, Some(lock)) => {
                let (token, begun) = lock.keep(owner, key, guard);
                if let Some(hold) = begun {
                    let handle: Arc<Handle> = lock;
                    hold.watch_lost(queue, Awaited::new(&handle, tag, What::Loss));
                }
                (0, token)
            }
            // That level was released through another handle of this name: the next one.
            (Outcome::Failed(error), What::Release { key, known: true }, Some(lock))
                if error.kind() == ErrorKind::NotOwner =>
            {
                (fail(&self.release(&lock, key, tag).err()?), 0)
            }
            // Closing again is no error.
            (Outcome::Failed(error), What::Close(_), _) if error.kind() == ErrorKind::Closed => {
                (0, 0)
            }
            (Outcome::Failed(error), ..) => (fail(&error), 0),
            (Outcome::Forced(deleted), ..) => (0, deleted.into()),
            (Outcome::Closed(left), What::Close(limit), _) => {
                let failed = Error::check_released(left, limit).err();
                (failed.map_or(0, |error| fail(&error)), 0)
            }
            (Outcome::Inspected(holders), what, _) => {
                let count = holders.len() as u64;
                if let What::Holders(function, User(user)) = what {
                    call = Some(Box::new(move || {
                        // SAFETY: the header asks for a function that can be called with user.
                        let tell = |holder| unsafe { tell_holder(holder, function, user) };
                        holders.iter().for_each(tell);
                    }));
                    (0, count)
                } else {
                    (0, (count > 0).into())
                }
            }
            (Outcome::Counted(permits), What::Permits(function, User(user)), _) => {
                if let Some(function) = function {
                    // SAFETY: as above.
                    let tell = move || unsafe { function(user, permits.available, permits.limit) };
                    call = Some(Box::new(tell));
                }
                (0, permits.available.cast_unsigned())
            }
            // From here on the program has the permits, and gives them back by their number.
            (Outcome::Taken(permit), ..) => {
                permit.forget();
                (0, 0)
            }
            (Outcome::Set(set), ..) => (0, set.into()),
            (Outcome::Number(number), ..) => (0, number.cast_unsigned()),
            _ => (0, 0),
        };
        Some(Event {
            kind,
            tag,
            result,
            value,
            call,
        })
    }

    /// Sends the release of the newest level of a key.
    fn release(&mut self, lock: &Arc<redlatch_lock>, key: ReentryKey, tag: u64) -> Result<()> {
        let (operation, known) = lock.start_release(key);
        let handle: Arc<Handle> = lock.clone();
        self.start(
            Awaited::new(&handle, tag, What::Release { key, known }),
            operation,
        )
    }
}

/// Starts an operation of a lock whose answer is all that counts.
fn start<T>(
    lock: &Arc<redlatch_lock>,
    tag: u64,
    what: What,
    operation: Operation<T>,
) -> Result<()> {
    start_of(&lock.client, Some(lock.clone()), tag, what, operation)
}

/// Starts an operation of a handle, or of the client itself.
pub(crate) fn start_of<T>(
    client: &redlatch_client,
    handle: Option<Arc<Handle>>,
    tag: u64,
    what: What,
    operation: Operation<T>,
) -> Result<()> {
    let handle = handle.as_ref().map(Arc::downgrade);
    let awaited = Awaited {
        tag,
        number: 0,
        handle,
        what,
    };
    events_for(client, tag)?.start(awaited, operation)
}

/// The events of the client, if the tag is free.
fn events_for(client: &redlatch_client, tag: u64) -> Result<MutexGuard<'_, Events>> {
    client.refuse_fork()?;
    let mut events = client.events();
    events.refuse_known(tag)?;
    Ok(events)
}

/// Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
/// with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
/// release it, once that event is taken.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, an operation with this tag is
///   under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_acquire_start(
    lock: *mut redlatch_lock,
    owner: u64,
    wait_ms: i64,
    lease_ms: i64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        let key = key(owner);
        let operation = lock.acquire(key, wait_ms, lease_ms)?;
        let what = What::Acquire { owner, key };
        start(&lock, tag, what, operation)
    })
}

/// Begins what redlatch_lock_adopt() does and returns at once: an event REDLATCH_EVENT_ACQUIRE with
/// this tag comes, as after redlatch_lock_acquire_start(), which redlatch_lock_acquire_cancel()
/// cancels too.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: lease_ms is out of bounds, value is no UTF-8, an operation with this
///   tag is under way, or an argument is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_INTERNAL: the process has no descriptor left.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_adopt_start(
    lock: *mut redlatch_lock,
    owner: u64,
    value: *const c_char,
    lease_ms: i64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and for a string.
        let (lock, value) = unsafe { (shared(lock, "lock")?, text(value, "value")?) };
        let key = key(owner);
        let operation = lock.adopt(key, value, lease_ms)?;
        let what = What::Acquire { owner, key };
        start(&lock, tag, what, operation)
    })
}

/// Cancels what redlatch_lock_acquire_start() began under this tag. *cancelled true: no event comes
/// and nothing is held. false: it had ended before, and its event tells how; if it was granted,
/// release it.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_acquire_cancel(
    lock: *mut redlatch_lock,
    tag: u64,
    cancelled: *mut bool,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and a place to write to.
        let (lock, out) = unsafe { (shared(lock, "lock")?, Out::optional(cancelled)) };
        out.put(lock.client.cancel(lock.clone(), tag)?);
        Ok(())
    })
}

/// Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE
/// with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_release_start(
    lock: *mut redlatch_lock,
    owner: u64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        // Before the operation is made: dropping it would release as well.
        events_for(&lock.client, tag)?.release(&lock, key(owner), tag)
    })
}

/// Begins what redlatch_lock_extend() does and returns at once: an event REDLATCH_EVENT_EXTEND with
/// this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, an operation with this tag is
///   under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_extend_start(
    lock: *mut redlatch_lock,
    owner: u64,
    lease_ms: i64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        let lease = millis("lease_ms", lease_ms, "lease")?;
        let what = What::Answer(REDLATCH_EVENT_EXTEND);
        start(&lock, tag, what, lock.core.extend_by(key(owner), lease))
    })
}

/// Begins what redlatch_lock_force_release() does and returns at once: an event
/// REDLATCH_EVENT_FORCE_RELEASE with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_force_release_start(
    lock: *mut redlatch_lock,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        let what = What::Answer(REDLATCH_EVENT_FORCE_RELEASE);
        start(&lock, tag, what, lock.core.force_release())
    })
}

/// Begins what redlatch_lock_is_locked() does and returns at once: an event
/// REDLATCH_EVENT_IS_LOCKED with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_is_locked_start(
    lock: *mut redlatch_lock,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        let what = What::Answer(REDLATCH_EVENT_IS_LOCKED);
        start(&lock, tag, what, lock.core.is_locked())
    })
}

/// Begins what redlatch_lock_waiters() does and returns at once: an event REDLATCH_EVENT_HOLDERS
/// with this tag comes, as for redlatch_lock_holders_start().
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
///   NULL. The event says that the lock is not of the kind fair.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_waiters_start(
    lock: *mut redlatch_lock,
    function: redlatch_holder_fn,
    user: *mut c_void,
    tag: u64,
) -> redlatch_status {
    // SAFETY: as the header asks.
    unsafe { start_telling(lock, function, user, tag, Lock::waiters) }
}

/// Begins what redlatch_lock_holders() does and returns at once: an event REDLATCH_EVENT_HOLDERS
/// with this tag comes. redlatch_client_next_event() calls function with user for each holder
/// before it returns that event.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
///   NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_holders_start(
    lock: *mut redlatch_lock,
    function: redlatch_holder_fn,
    user: *mut c_void,
    tag: u64,
) -> redlatch_status {
    // SAFETY: as the header asks.
    unsafe { start_telling(lock, function, user, tag, Lock::holders) }
}

/// Begins to ask; the event calls a function of the program for each of the answer.
///
/// # Safety
/// `lock` is a live handle; the function can be called with `user` when the event is read.
unsafe fn start_telling(
    lock: *mut redlatch_lock,
    function: redlatch_holder_fn,
    user: *mut c_void,
    tag: u64,
    question: fn(&Lock) -> Operation<Vec<Holder>>,
) -> redlatch_status {
    status(|| {
        // SAFETY: as the caller promises.
        let lock = unsafe { shared(lock, "lock") }?;
        let function = function.ok_or_else(|| is_null("function"))?;
        start(
            &lock,
            tag,
            What::Holders(function, User(user)),
            question(&lock.core),
        )
    })
}

/// Begins what redlatch_lock_release_token() does and returns at once: an event
/// REDLATCH_EVENT_RELEASE_TOKEN with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, token is not UTF-8, or an
///   argument is NULL. The event says that locks of this kind have no token.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_release_token_start(
    lock: *mut redlatch_lock,
    token: *const c_char,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and for a string.
        let (lock, token) = unsafe { (shared(lock, "lock")?, text(token, "token")?) };
        let what = What::Answer(REDLATCH_EVENT_RELEASE_TOKEN);
        start(&lock, tag, what, lock.core.release_token(token))
    })
}

/// Begins what redlatch_lock_extend_token() does and returns at once: an event
/// REDLATCH_EVENT_EXTEND_TOKEN with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or as for
///   redlatch_lock_release_token_start().
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_extend_token_start(
    lock: *mut redlatch_lock,
    token: *const c_char,
    lease_ms: i64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and for a string.
        let (lock, token) = unsafe { (shared(lock, "lock")?, text(token, "token")?) };
        let lease = millis("lease_ms", lease_ms, "lease")?;
        let what = What::Answer(REDLATCH_EVENT_EXTEND_TOKEN);
        start(&lock, tag, what, lock.core.extend_token(token, lease))
    })
}

/// Begins what redlatch_semaphore_permits() does and returns at once: an event
/// REDLATCH_EVENT_PERMITS with this tag comes. redlatch_client_next_event() calls function, unless it
/// is NULL, with user and both numbers before it returns that event.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
///   NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_semaphore_permits_start(
    semaphore: *mut redlatch_lock,
    function: redlatch_permits_fn,
    user: *mut c_void,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(semaphore, "semaphore") }?;
        let semaphore = lock.as_semaphore()?;
        let what = What::Permits(function, User(user));
        start(&lock, tag, what, semaphore.permits())
    })
}

/// Begins what redlatch_semaphore_set_permits() does and returns at once: an event
/// REDLATCH_EVENT_PERMITS with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, it is no semaphore, or it is
///   NULL. The event says that limit is above 2147483647.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_semaphore_set_permits_start(
    semaphore: *mut redlatch_lock,
    limit: u32,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(semaphore, "semaphore") }?;
        let semaphore = lock.as_semaphore()?;
        let what = What::Permits(None, User(ptr::null_mut()));
        start(&lock, tag, what, semaphore.set_permits(limit as usize))
    })
}

/// Connects, if the client has not yet, and returns at once: an event REDLATCH_EVENT_READY with this
/// tag comes when the server was reached, or could not be. For a client of redlatch_client_new(),
/// which connects with its first call in any case.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or client is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_client_ready_start(
    client: *mut redlatch_client,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let client = unsafe { shared(client, "client") }?;
        let what = What::Answer(REDLATCH_EVENT_READY);
        start_of(&client, None, tag, what, client.core.ready())
    })
}

/// Begins what redlatch_client_close() does and returns at once: an event REDLATCH_EVENT_CLOSE with
/// this tag comes, after those of the calls that waited. Its result is REDLATCH_UNAVAILABLE, and the
/// text names the locks, if some could not be released. The thread of the client may end a moment
/// later.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: wait_ms is negative or above 10 minutes, an operation with this tag
///   is under way, or client is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_UNAVAILABLE: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_client_close_start(
    client: *mut redlatch_client,
    wait_ms: i64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let client = unsafe { shared(client, "client") }?;
        let limit = client.limit(wait_ms)?;
        // Before the operation is made: it closes a client that never connected.
        let mut events = events_for(&client, tag)?;
        let (handle, what) = (None, What::Close(limit));
        let operation = client.core.close_within(limit);
        let awaited = Awaited {
            tag,
            number: 0,
            handle,
            what,
        };
        events.start(awaited, operation)
    })
}

/// Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the
/// others, *tag is the one given to ..._start(), *result what became of it (redlatch_last_error()
/// has the text) and *value the fencing token of an acquisition, or what the kind says. tag, result
/// and value may be NULL.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: client or kind is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - *result can be what the function without _start returns, and REDLATCH_LOST for
///   REDLATCH_EVENT_LOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_client_next_event(
    client: *mut redlatch_client,
    kind: *mut i32,
    tag: *mut u64,
    result: *mut redlatch_status,
    value: *mut u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and places to write to.
        let (client, kind, tag, result, value) = unsafe {
            let kind = Out::required(kind, "kind")?;
            (
                shared(client, "client")?,
                kind,
                Out::optional(tag),
                Out::optional(result),
                Out::optional(value),
            )
        };
        client.refuse_fork()?;
        let none = Event {
            kind: REDLATCH_EVENT_NONE,
            tag: 0,
            result: 0,
            value: 0,
            call: None,
        };
        let event = client.events().next().unwrap_or(none);
        if let Some(call) = event.call {
            call();
        }
        kind.put(event.kind);
        tag.put(event.tag);
        result.put(event.result);
        value.put(event.value);
        Ok(())
    })
}
