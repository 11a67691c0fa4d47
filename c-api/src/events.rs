//! The face for event loops: what was started, and what came of it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::{Arc, Weak};

use redlatch::{Cancelled, Entry, Error, ErrorKind, Key, Operation, Outcome, Pending, Queue, Result};

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

/// What was started and has not been told yet. The queue exists once somebody wants it.
#[derive(Default)]
pub(crate) struct Events {
    queue: Option<Arc<Queue>>,
    started: HashMap<u64, Started>,
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
    Acquire { owner: u64, key: Key },
    Release,
}

/// One event, as C gets it.
struct Event {
    kind: i32,
    tag: u64,
    result: redlatch_status,
    token: u64,
}

impl Events {
    fn queue(&mut self) -> Result<Arc<Queue>> {
        if self.queue.is_none() {
            self.queue = Some(Queue::with_fd()?);
        }
        self.queue.clone().ok_or_else(|| Error::new(ErrorKind::Internal, "the event queue is gone"))
    }

    pub(crate) fn fd(&mut self) -> Result<RawFd> {
        let fd = self.queue()?.fd().map(|fd| fd.as_raw_fd());
        fd.ok_or_else(|| Error::new(ErrorKind::Internal, "the event queue has no descriptor"))
    }

    /// A tag means one thing at a time, so that cancelling is clear.
    fn refuse_known(&self, tag: u64) -> Result<()> {
        if self.started.values().any(|started| started.tag == tag) {
            let text = format!("tag {tag} is under way already; give another one, or take its event first");
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
        self.started.insert(self.last, Started { tag, lock: Arc::downgrade(lock), what, pending });
        Ok(())
    }

    /// Cancels an acquisition; false if its event waits or was taken, or there is none of this tag.
    fn cancel(&mut self, lock: &Arc<redlatch_lock>, tag: u64) -> bool {
        let of_lock = |started: &Started| ptr::eq(started.lock.as_ptr(), Arc::as_ptr(lock));
        let asked = |started: &Started| started.tag == tag && matches!(started.what, What::Acquire { .. });
        let found = self.started.iter().find(|(_, started)| asked(started) && of_lock(started));
        let Some((&id, started)) = found else { return false };
        let cancelled = started.pending.cancel() == Cancelled::Yes;
        if cancelled {
            self.started.remove(&id);
        }
        cancelled
    }

    /// Forgets what was started on a lock that is freed; a grant among it is released when its entry
    /// comes up.
    pub(crate) fn forget(&mut self, lock: &Arc<redlatch_lock>) {
        self.started.retain(|_, started| {
            let other = !ptr::eq(started.lock.as_ptr(), Arc::as_ptr(lock));
            if !other && matches!(started.what, What::Acquire { .. }) {
                started.pending.cancel();
            }
            other
        });
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

    /// What an answer means to the program; `None` if its lock is gone.
    fn event(&mut self, queue: &Arc<Queue>, Entry { tag, outcome, .. }: Entry) -> Option<Event> {
        if let Outcome::Lost(reason) = outcome {
            let result = fail(&reason.into());
            return Some(Event { kind: REDLATCH_EVENT_LOST, tag, result, token: 0 });
        }
        let Started { tag, lock, what, .. } = self.started.remove(&tag)?;
        let lock = lock.upgrade()?;
        let kind = match what {
            What::Acquire { .. } => REDLATCH_EVENT_ACQUIRE,
            What::Release => REDLATCH_EVENT_RELEASE,
        };
        let mut event = Event { kind, tag, result: 0, token: 0 };
        match (outcome, what) {
            (Outcome::Granted(guard), What::Acquire { owner, key }) => {
                let (token, begun) = lock.keep(owner, key, guard);
                event.token = token;
                if let Some(hold) = begun {
                    hold.watch_lost(queue, tag);
                }
            }
            (Outcome::Failed(error), _) => event.result = fail(&error),
            _ => {}
        }
        Some(event)
    }
}

/// Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE with this
/// tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can release it, once
/// that event is taken.
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

/// Cancels what redlatch_lock_acquire_start() began under this tag. *cancelled true: no event comes and
/// nothing is held. false: it had ended before, and its event tells how; if it was granted, release it.
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

/// Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE with this
/// tag comes.
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
        let operation = lock.start_release(key(owner));
        events.start(&lock, tag, What::Release, operation)
    })
}

/// Takes the oldest event; *kind is REDLATCH_EVENT_NONE if none waits. Never blocks. For the others, *tag
/// is the one given to ..._start(), *result what became of it (redlatch_last_error() has the text) and
/// *token the fencing token of an acquisition. tag, result and token may be NULL.
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
            (shared(client, "client")?, kind, Out::optional(tag), Out::optional(result), Out::optional(token))
        };
        client.refuse_fork()?;
        let none = Event { kind: REDLATCH_EVENT_NONE, tag: 0, result: 0, token: 0 };
        let event = client.events().next().unwrap_or(none);
        kind.put(event.kind);
        tag.put(event.tag);
        result.put(event.result);
        token.put(event.token);
        Ok(())
    })
}
