//! The face for event loops: what was started, and what came of it.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use redlatch::embed::{Cancelled, Completion, CompletionQueue, HoldExt, OperationExt, Outcome};
use redlatch::{Error, ErrorKind, Operation, ReentryKey, Result};

use crate::calls::User;
use crate::client::redlatch_client;
use crate::exports::exports;
use crate::lock::{HolderFn, redlatch_lock, tell_holder};
use crate::semaphore::redlatch_permits_fn;
use crate::status::{fail, redlatch_status};

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
    /// The waits among them: the addresses of their handles, and their tags.
    waits: BTreeSet<(usize, u64)>,
}

/// Something that is known by its tag.
struct Known {
    ticket: u64,
    handle: Weak<Handle>,
}

/// Something that becomes an event. Freeing its handle forgets it.
struct Awaited {
    tag: u64,
    handle: Weak<Handle>,
    what: What,
}

/// A lock, a counter or a client, as C has it.
pub(crate) type Handle = dyn Any + Send + Sync;

pub(crate) enum What {
    Acquire(ReentryKey),
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
            handle: Arc::downgrade(handle),
            what,
        }
    }

    /// Whether this is a wait that can be cancelled.
    fn is_wait(&self) -> bool {
        matches!(self.what, What::Acquire(_) | What::Wait(_))
    }
}

/// The address is that of one handle for as long as something knows it.
fn address(handle: *const Handle) -> usize {
    handle.cast::<()>().addr()
}

/// One event, as C gets it.
#[derive(Default)]
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
        let known = self.known.get(&tag);
        // The tags of a handle that was freed are free.
        if known.is_none_or(|known| known.handle.strong_count() == 0) {
            return Ok(());
        }
        let text =
            format!("tag {tag} is under way already; give another one, or take its event first");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Sends an operation whose answer becomes an event.
    fn start<T>(&mut self, awaited: Awaited, operation: Operation<T>) -> Result<()> {
        let queue = self.queue()?;
        let (tag, handle) = (awaited.tag, awaited.handle.clone());
        if awaited.is_wait() {
            self.waits.insert((address(handle.as_ptr()), tag));
        }
        let ticket = operation.deliver_to(&queue, awaited);
        self.known.insert(tag, Known { ticket, handle });
        Ok(())
    }

    /// Frees a tag, if it still means something of this handle.
    fn free(&mut self, tag: u64, handle: *const Handle) {
        self.waits.remove(&(address(handle), tag));
        let known = self.known.get(&tag).map(|known| known.handle.as_ptr());
        if known.is_some_and(|known| address(known) == address(handle)) {
            self.known.remove(&tag);
        }
    }

    /// Cancels a wait; false if its event waits or was taken, or there is none of this tag.
    pub(crate) fn cancel(&mut self, handle: &Arc<Handle>, tag: u64) -> bool {
        let handle = Arc::as_ptr(handle);
        let (Some(queue), Some(known)) = (&self.queue, self.known.get(&tag)) else {
            return false;
        };
        let cancelled = self.waits.contains(&(address(handle), tag))
            && queue.cancel(known.ticket) == Cancelled::Yes;
        if cancelled {
            self.free(tag, handle);
        }
        cancelled
    }

    /// Forgets the waits of a handle that is freed; what they were granted meanwhile is released. A
    /// release goes on.
    pub(crate) fn forget(&mut self, handle: &Arc<Handle>) {
        let of = address(Arc::as_ptr(handle));
        let waits = self.waits.range((of, 0)..=(of, u64::MAX));
        let tags: Vec<u64> = waits.map(|(_, tag)| *tag).collect();
        for tag in tags {
            if let (Some(queue), Some(known)) = (&self.queue, self.known.get(&tag)) {
                queue.forget(known.ticket);
            }
            self.free(tag, Arc::as_ptr(handle));
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
        // When a loss comes, the tag may mean something newer.
        if !matches!(known.what, What::Loss) {
            self.free(tag, known.handle.as_ptr());
        }
        let lock = known.handle.upgrade()?.downcast::<redlatch_lock>().ok();
        let kind = match known.what {
            What::Acquire(_) => REDLATCH_EVENT_ACQUIRE,
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
            (Outcome::Granted(guard), What::Acquire(key), Some(lock)) => {
                let (token, begun) = lock.keep(key, guard);
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
                if let What::Holders(function, user) = what {
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
        let (operation, known) = lock.release(key);
        let handle: Arc<Handle> = lock.clone();
        self.start(
            Awaited::new(&handle, tag, What::Release { key, known }),
            operation,
        )
    }
}

impl redlatch_client {
    /// Starts an operation of a handle, which may be the client itself.
    pub(crate) fn start<T>(
        &self,
        handle: &Arc<impl Any + Send + Sync>,
        tag: u64,
        what: What,
        operation: impl FnOnce() -> Result<Operation<T>>,
    ) -> Result<()> {
        let mut events = self.events_for(tag)?;
        // Not before: dropping a release would release, and making that of a close closes.
        let operation = operation()?;
        let handle: Arc<Handle> = handle.clone();
        events.start(Awaited::new(&handle, tag, what), operation)
    }

    /// Starts the release of the newest level of a key.
    pub(crate) fn start_release(
        &self,
        lock: &Arc<redlatch_lock>,
        key: ReentryKey,
        tag: u64,
    ) -> Result<()> {
        self.events_for(tag)?.release(lock, key, tag)
    }

    /// The events, if the tag is free.
    fn events_for(&self, tag: u64) -> Result<MutexGuard<'_, Events>> {
        self.refuse_fork()?;
        let mut events = self.events();
        events.refuse_known(tag)?;
        Ok(events)
    }

    /// Cancels the wait that was started through this handle under this tag; whether it was one.
    pub(crate) fn cancel(&self, handle: &Arc<impl Any + Send + Sync>, tag: u64) -> Result<bool> {
        self.refuse_fork()?;
        let handle: Arc<Handle> = handle.clone();
        Ok(self.events().cancel(&handle, tag))
    }
}

exports! {
    /// Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the
    /// others, *tag is the one given to ..._start(), *result what became of it (redlatch_last_error()
    /// has the text) and *value the fencing token of an acquisition, or what the kind says. tag, result
    /// and value may be NULL.
    ///
    ///     int32_t kind = REDLATCH_EVENT_NONE;
    ///     uint64_t tag = 0;
    ///     redlatch_status result = REDLATCH_OK;
    ///     while (redlatch_client_next_event(client, &kind, &tag, &result, NULL) == REDLATCH_OK &&
    ///            kind != REDLATCH_EVENT_NONE)
    ///         if (result != REDLATCH_OK)
    ///             fprintf(stderr, "call %llu: %s\n", (unsigned long long)tag, redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: client or kind is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    /// - *result can be what the function without _start returns, and REDLATCH_LOST for
    ///   REDLATCH_EVENT_LOST.
    fn redlatch_client_next_event(client: *mut redlatch_client, kind: *mut i32, tag: *mut u64,
        result: *mut redlatch_status, value: *mut u64) {
        kind.needed()?;
        client.refuse_fork()?;
        let mut event = client.events().next().unwrap_or_default();
        if let Some(call) = event.call.take() {
            call();
        }
        kind.put(event.kind);
        tag.put(event.tag);
        result.put(event.result);
        value.put(event.value);
        Ok(())
    }
}
