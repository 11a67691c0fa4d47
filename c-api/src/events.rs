//! The face for event loops: what was started, and what came of it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::{Arc, Weak};

use redlatch::embed::{
    Cancelled, Completion, CompletionQueue, HoldExt, OperationExt, Outcome, Pending,
};
use redlatch::{Error, ErrorKind, Hold, Operation, ReentryKey, Result};

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
    queue: Option<Arc<CompletionQueue>>,
    started: HashMap<u64, Started>,
    /// The holds whose loss would be told.
    watched: HashMap<u64, Watched>,
    last: u64,
}

/// Something under way. Freeing its lock forgets it.
struct Started {
    tag: u64,
    lock: Weak<redlatch_lock>,
    what: What,
    pending: Pending,
}

enum What {
    Acquire {
        owner: u64,
        key: ReentryKey,
    },
    /// For a level that is known here, or for the newest that the engine knows.
    Release {
        key: ReentryKey,
        known: bool,
    },
}

/// A hold that was acquired under a tag. Freeing its lock forgets it.
struct Watched {
    tag: u64,
    lock: Weak<redlatch_lock>,
    hold: Hold,
}

/// So many may be watched before it is looked which of them have ended.
const MANY: usize = 64;

/// Whether this belongs to the lock.
fn is_of(known: &Weak<redlatch_lock>, lock: &Arc<redlatch_lock>) -> bool {
    ptr::eq(known.as_ptr(), Arc::as_ptr(lock))
}

/// One event, as C gets it.
struct Event {
    kind: i32,
    tag: u64,
    result: redlatch_status,
    token: u64,
}

impl Events {
    fn queue(&mut self) -> Result<Arc<CompletionQueue>> {
        if self.queue.is_none() {
            self.queue = Some(CompletionQueue::with_fd()?);
        }
        self.queue
            .clone()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the event queue is gone"))
    }

    pub(crate) fn fd(&mut self) -> Result<RawFd> {
        let fd = self.queue()?.fd().map(|fd| fd.as_raw_fd());
        fd.ok_or_else(|| Error::new(ErrorKind::Internal, "the event queue has no descriptor"))
    }

    /// A tag means one thing at a time, so that cancelling is clear.
    fn refuse_known(&self, tag: u64) -> Result<()> {
        if self.started.values().any(|started| started.tag == tag) {
            let text = format!(
                "tag {tag} is under way already; give another one, or take its event first"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(())
    }

    /// Sends an operation whose answer becomes an event. Nothing can be taken before it is noted,
    /// because that needs `self` too.
    fn start<T>(
        &mut self,
        lock: &Arc<redlatch_lock>,
        tag: u64,
        what: What,
        operation: Operation<T>,
    ) -> Result<()> {
        let queue = self.queue()?;
        self.last += 1;
        let pending = operation.deliver_to(&queue, self.last);
        self.started.insert(
            self.last,
            Started {
                tag,
                lock: Arc::downgrade(lock),
                what,
                pending,
            },
        );
        Ok(())
    }

    /// Cancels an acquisition; false if its event waits or was taken, or there is none of this tag.
    fn cancel(&mut self, lock: &Arc<redlatch_lock>, tag: u64) -> bool {
        let asked =
            |started: &Started| started.tag == tag && matches!(started.what, What::Acquire { .. });
        let found = self
            .started
            .iter()
            .find(|(_, started)| asked(started) && is_of(&started.lock, lock));
        let Some((&id, started)) = found else {
            return false;
        };
        let cancelled = started.pending.cancel() == Cancelled::Yes;
        if cancelled {
            self.started.remove(&id);
        }
        cancelled
    }

    /// Forgets what was started on a lock that is freed, and its losses; what it was granted
    /// meanwhile is released.
    pub(crate) fn forget(&mut self, lock: &Arc<redlatch_lock>) {
        self.watched
            .retain(|_, watched| !is_of(&watched.lock, lock));
        for (id, started) in self
            .started
            .extract_if(|_, started| is_of(&started.lock, lock))
        {
            // A release goes on.
            let asked = matches!(started.what, What::Acquire { .. });
            if asked && started.pending.cancel() == Cancelled::No {
                drop(self.queue.as_ref().and_then(|queue| queue.take(id)));
            }
        }
    }

    /// Has the loss of a hold told under a tag.
    fn watch(
        &mut self,
        queue: &Arc<CompletionQueue>,
        lock: &Arc<redlatch_lock>,
        tag: u64,
        hold: Hold,
    ) {
        if self.watched.len() >= MANY && self.watched.len() == self.watched.capacity() {
            // A hold that ended well tells nobody.
            self.watched.retain(|_, watched| {
                watched.hold.count() > 0 || watched.hold.lost_reason().is_some()
            });
        }
        self.last += 1;
        // Noted first: it may be lost already.
        self.watched.insert(
            self.last,
            Watched {
                tag,
                lock: Arc::downgrade(lock),
                hold: hold.clone(),
            },
        );
        hold.watch_lost(queue, self.last);
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

    /// The event for an answer; `None` if its lock is gone, or another answer is to
    /// come.
    fn event(
        &mut self,
        queue: &Arc<CompletionQueue>,
        Completion {
            tag: id, outcome, ..
        }: Completion,
    ) -> Option<Event> {
        if let Outcome::Lost(reason) = outcome {
            let Watched { tag, lock, .. } = self.watched.remove(&id)?;
            lock.upgrade()?;
            let result = fail(&reason.into());
            return Some(Event {
                kind: REDLATCH_EVENT_LOST,
                tag,
                result,
                token: 0,
            });
        }
        let Started {
            tag, lock, what, ..
        } = self.started.remove(&id)?;
        let lock = lock.upgrade()?;
        match (outcome, what) {
            (Outcome::Granted(guard), What::Acquire { owner, key }) => {
                let (token, begun) = lock.keep(owner, key, guard);
                if let Some(hold) = begun {
                    self.watch(queue, &lock, tag, hold);
                }
                Some(Event {
                    kind: REDLATCH_EVENT_ACQUIRE,
                    tag,
                    result: 0,
                    token,
                })
            }
            // That level was released through another handle of this name: the next one.
            (Outcome::Failed(error), What::Release { key, known: true })
                if error.kind() == ErrorKind::NotOwner =>
            {
                match self.release(&lock, key, tag) {
                    Ok(()) => None,
                    Err(error) => Some(Event {
                        kind: REDLATCH_EVENT_RELEASE,
                        tag,
                        result: fail(&error),
                        token: 0,
                    }),
                }
            }
            (outcome, what) => {
                let kind = match what {
                    What::Acquire { .. } => REDLATCH_EVENT_ACQUIRE,
                    What::Release { .. } => REDLATCH_EVENT_RELEASE,
                };
                let result = if let Outcome::Failed(error) = outcome {
                    fail(&error)
                } else {
                    0
                };
                Some(Event {
                    kind,
                    tag,
                    result,
                    token: 0,
                })
            }
        }
    }

    /// Sends the release of the newest level of a key.
    fn release(&mut self, lock: &Arc<redlatch_lock>, key: ReentryKey, tag: u64) -> Result<()> {
        let (operation, known) = lock.start_release(key);
        self.start(lock, tag, What::Release { key, known }, operation)
    }
}

/// Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
/// with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
/// release it, once that event is taken.
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
        events.start(&lock, tag, What::Acquire { owner, key }, operation)
    })
}

/// Cancels what redlatch_lock_acquire_start() began under this tag. *cancelled true: no event comes
/// and nothing is held. false: it had ended before, and its event tells how; if it was granted,
/// release it.
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
