//! The face for event loops: what was started, and what came of it.

use std::ptr;
use std::sync::{Arc, Weak};

use redlatch::embed::{Cancelled, Completion, CompletionQueue, HoldExt, OperationExt, Outcome};
use redlatch::{Error, ErrorKind, Operation, ReentryKey, Result};

use crate::arguments::{Out, shared};
use crate::client::redlatch_client;
use crate::lock::{key, redlatch_lock};
use crate::status::{fail, redlatch_status, status};

/// No event waits.
pub const REDLATCH_EVENT_NONE: i32 = 0;
/// redlatch_lock_acquire_start() has ended: result says how.
pub const REDLATCH_EVENT_ACQUIRE: i32 = 1;
/// redlatch_lock_release_start() has ended: result says how.
pub const REDLATCH_EVENT_RELEASE: i32 = 2;
/// A hold that redlatch_lock_acquire_start() began was lost: result is REDLATCH_LOST.
pub const REDLATCH_EVENT_LOST: i32 = 3;

/// Operations that were started and have not been told yet. The queue exists once somebody wants it.
#[derive(Default)]
pub(crate) struct Events {
    queue: Option<Arc<CompletionQueue<Awaited>>>,
}

/// Something that becomes an event. Freeing its lock forgets it.
struct Awaited {
    tag: u64,
    lock: Weak<redlatch_lock>,
    what: What,
}

enum What {
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
}

impl Awaited {
    fn new(lock: &Arc<redlatch_lock>, tag: u64, what: What) -> Awaited {
        Awaited {
            tag,
            lock: Arc::downgrade(lock),
            what,
        }
    }

    /// Whether this is an acquisition through this lock.
    fn acquires(&self, lock: &Arc<redlatch_lock>) -> bool {
        matches!(self.what, What::Acquire { .. }) && ptr::eq(self.lock.as_ptr(), Arc::as_ptr(lock))
    }
}

/// One event, as C gets it.
struct Event {
    kind: i32,
    tag: u64,
    result: redlatch_status,
    token: u64,
}

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
        let is_known = |known: &Awaited| {
            known.tag == tag && !matches!(known.what, What::Loss) && known.lock.strong_count() > 0
        };
        let unless_known = |known: &Awaited| if is_known(known) { Err(()) } else { Ok(()) };
        self.queue()?.try_each(unless_known).map_err(|()| {
            let text = format!(
                "tag {tag} is under way already; give another one, or take its event first"
            );
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// Sends an operation whose answer becomes an event.
    fn start<T>(&mut self, awaited: Awaited, operation: Operation<T>) -> Result<()> {
        operation.deliver_to(&self.queue()?, awaited);
        Ok(())
    }

    /// Cancels an acquisition; false if its event waits or was taken, or there is none of this tag.
    fn cancel(&mut self, lock: &Arc<redlatch_lock>, tag: u64) -> bool {
        self.queue.as_ref().is_some_and(|queue| {
            let found = queue.find(|known| known.tag == tag && known.acquires(lock));
            found.is_some_and(|ticket| queue.cancel(ticket) == Cancelled::Yes)
        })
    }

    /// Forgets what was started on a lock that is freed; what it was granted meanwhile is released.
    /// A release goes on.
    pub(crate) fn forget(&mut self, lock: &Arc<redlatch_lock>) {
        if let Some(queue) = &self.queue {
            queue.forget_all(|known| known.acquires(lock));
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

    /// The event for an answer; `None` if its lock is gone, or another answer is to come.
    fn event(
        &mut self,
        queue: &Arc<CompletionQueue<Awaited>>,
        Completion {
            tag: known,
            outcome,
            ..
        }: Completion<Awaited>,
    ) -> Option<Event> {
        let (tag, lock) = (known.tag, known.lock.upgrade()?);
        let kind = match known.what {
            What::Acquire { .. } => REDLATCH_EVENT_ACQUIRE,
            What::Release { .. } => REDLATCH_EVENT_RELEASE,
            What::Loss => REDLATCH_EVENT_LOST,
        };
        let (result, token) = match (outcome, known.what) {
            (Outcome::Lost(reason), _) => (fail(&reason.into()), 0),
            (Outcome::Granted(guard), What::Acquire { owner, key }) => {
                let (token, begun) = lock.keep(owner, key, guard);
                if let Some(hold) = begun {
                    hold.watch_lost(queue, Awaited::new(&lock, tag, What::Loss));
                }
                (0, token)
            }
            // That level was released through another handle of this name: the next one.
            (Outcome::Failed(error), What::Release { key, known: true })
                if error.kind() == ErrorKind::NotOwner =>
            {
                (fail(&self.release(&lock, key, tag).err()?), 0)
            }
            (Outcome::Failed(error), _) => (fail(&error), 0),
            _ => (0, 0),
        };
        Some(Event {
            kind,
            tag,
            result,
            token,
        })
    }

    /// Sends the release of the newest level of a key.
    fn release(&mut self, lock: &Arc<redlatch_lock>, key: ReentryKey, tag: u64) -> Result<()> {
        let (operation, known) = lock.start_release(key);
        self.start(
            Awaited::new(lock, tag, What::Release { key, known }),
            operation,
        )
    }
}

/// Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
/// with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
/// release it, once that event is taken.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, an operation with this tag is
///   under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_INTERNAL: the process has no descriptor left.
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
        let mut events = lock.client.events();
        events.refuse_known(tag)?;
        events.start(
            Awaited::new(&lock, tag, What::Acquire { owner, key }),
            operation,
        )
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
        lock.client.refuse_fork()?;
        let cancelled = lock.client.events().cancel(&lock, tag);
        out.put(cancelled);
        Ok(())
    })
}

/// Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE
/// with this tag comes.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - REDLATCH_INTERNAL: the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_lock_release_start(
    lock: *mut redlatch_lock,
    owner: u64,
    tag: u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle.
        let lock = unsafe { shared(lock, "lock") }?;
        lock.client.refuse_fork()?;
        let mut events = lock.client.events();
        // Before the operation is made: dropping it would release as well.
        events.refuse_known(tag)?;
        events.release(&lock, key(owner), tag)
    })
}

/// Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the
/// others, *tag is the one given to ..._start(), *result what became of it (redlatch_last_error()
/// has the text) and *token the fencing token of an acquisition. tag, result and token may be NULL.
///
/// Statuses:
/// - REDLATCH_INVALID_ARGUMENT: client or kind is NULL.
/// - REDLATCH_FORKED: the client belongs to the parent process.
/// - *result can be what redlatch_lock_acquire() or redlatch_lock_release() returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redlatch_client_next_event(
    client: *mut redlatch_client,
    kind: *mut i32,
    tag: *mut u64,
    result: *mut redlatch_status,
    token: *mut u64,
) -> redlatch_status {
    status(|| {
        // SAFETY: the header asks for a live handle and places to write to.
        let (client, kind, tag, result, token) = unsafe {
            let kind = Out::required(kind, "kind")?;
            (
                shared(client, "client")?,
                kind,
                Out::optional(tag),
                Out::optional(result),
                Out::optional(token),
            )
        };
        client.refuse_fork()?;
        let none = Event {
            kind: REDLATCH_EVENT_NONE,
            tag: 0,
            result: 0,
            token: 0,
        };
        let event = client.events().next().unwrap_or(none);
        kind.put(event.kind);
        tag.put(event.tag);
        result.put(event.result);
        token.put(event.token);
        Ok(())
    })
}
