//! Locks: what is held through a handle, and the calls that wait.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redlatch::embed::{AcquireOptionsExt, ClientExt, GuardExt, LockExt};
use redlatch::{
    AcquireOptions, ErrorKind, Guard, Hold, Holder, Lock, Operation, ReentryKey, Result,
};

use crate::arguments::{Freed, is_null, millis, millis_or};
use crate::calls::{Caller, Slot, User};
use crate::canceller::redlatch_canceller;
use crate::client::redlatch_client;
use crate::events::{
    REDLATCH_EVENT_EXTEND, REDLATCH_EVENT_EXTEND_TOKEN, REDLATCH_EVENT_FORCE_RELEASE,
    REDLATCH_EVENT_IS_LOCKED, REDLATCH_EVENT_RELEASE_TOKEN,
    What::{self, Answer},
};
use crate::exports::exports;
use crate::locked;
use crate::options::redlatch_options;
use crate::status::{redlatch_lost_reason, redlatch_status};

/// wait_ms: as long as it takes.
pub const REDLATCH_FOREVER: i64 = -1;
/// lease_ms: as the lock's options say, by default renewed for as long as it is held.
pub const REDLATCH_LOCK_LEASE: i64 = 0;
/// owner: the calling thread. Any other number is an owner of the program's own choice, for work
/// that changes threads; it re-enters wherever it comes from. redlatch_owner_new() gives one.
pub const REDLATCH_THREAD: u64 = 0;

/// Called once when owner (as it was given to acquire) has lost the lock, with the fencing token of
/// the hold (0: none) and the reason. Called from a thread of the library, one call at a time; it
/// may call anything here, but there REDLATCH_THREAD means that thread. It should return soon:
/// while it runs, no other function of this client is called. Locks are renewed and calls are
/// answered all the same.
pub type redlatch_lost_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, owner: u64, token: u64, reason: redlatch_lost_reason),
>;

type LostFn = unsafe extern "C" fn(*mut c_void, u64, u64, redlatch_lost_reason);

/// A name on a client. May be used from any thread, by several at once.
pub struct redlatch_lock {
    pub(crate) client: Arc<redlatch_client>,
    pub(crate) core: Lock,
    /// The value that the next acquisitions put into Redis.
    token: Mutex<Option<Arc<str>>>,
    /// The permits that the next acquisitions take, if it is a semaphore.
    pub(crate) permits: AtomicU32,
    held: Mutex<Vec<Held>>,
    /// Made when a function is registered: most programs register none, and may have very many
    /// locks.
    lost: OnceLock<Arc<Lost>>,
}

/// One owner's hold, as far as it came about through this handle.
struct Held {
    key: ReentryKey,
    hold: Hold,
    levels: Vec<Guard>,
}

/// The listeners of a loss.
struct Lost {
    slot: Arc<Slot<LostFn>>,
    caller: Caller,
}

impl Lost {
    /// Tells of this hold, which was acquired for `key`. On the engine's thread, which leaves the
    /// call to the thread that calls.
    fn watch(self: &Arc<Self>, key: ReentryKey, hold: &Hold) {
        let (lost, token) = (self.clone(), hold.fencing_token().unwrap_or_default());
        let owner = match key {
            ReentryKey::Explicit(owner) => owner,
            _ => REDLATCH_THREAD,
        };
        hold.on_lost(move |reason| {
            let (slot, reason) = (lost.slot.clone(), reason.number().into());
            lost.caller.later(move || {
                // SAFETY: what is registered is called as the header says.
                slot.call(|told, user| unsafe { told(user, owner, token, reason) });
            });
        });
    }
}

/// How long a wait lasts at most; `None` has no limit.
pub(crate) fn wait_limit(wait_ms: i64) -> Result<Option<Duration>> {
    let constant = (REDLATCH_FOREVER, "REDLATCH_FOREVER");
    millis_or(constant, "wait_ms", wait_ms, "wait")
}

pub(crate) fn key(owner: u64) -> ReentryKey {
    if owner == REDLATCH_THREAD {
        ReentryKey::thread()
    } else {
        ReentryKey::Explicit(owner)
    }
}

impl redlatch_lock {
    pub(crate) fn of(client: &Arc<redlatch_client>, core: Lock) -> Arc<redlatch_lock> {
        Arc::new(redlatch_lock {
            client: client.clone(),
            core,
            token: Mutex::default(),
            held: Mutex::default(),
            lost: OnceLock::new(),
            permits: AtomicU32::new(1),
        })
    }

    fn acquire(&self, owner: u64, wait_ms: i64, lease_ms: i64) -> Result<Operation<Guard>> {
        let permits = self.permits.load(Ordering::Relaxed) as usize;
        let mut options = self.terms(owner, lease_ms)?.permits(permits);
        if let Some(wait) = wait_limit(wait_ms)? {
            options = options.wait(wait);
        }
        if let Some(token) = locked(&self.token).clone() {
            options = options.token(token);
        }
        Ok(self.core.acquire_with(options))
    }

    /// Takes over the lock of a token.
    fn adopt(&self, owner: u64, value: &str, lease_ms: i64) -> Result<Operation<Guard>> {
        let options = self.terms(owner, lease_ms)?.adopting(value);
        Ok(self.core.acquire_with(options))
    }

    fn terms(&self, owner: u64, lease_ms: i64) -> Result<AcquireOptions> {
        self.client.refuse_fork()?;
        let options = AcquireOptions::new().key(key(owner)).tied_to_key();
        let constant = (REDLATCH_LOCK_LEASE, "REDLATCH_LOCK_LEASE");
        Ok(match millis_or(constant, "lease_ms", lease_ms, "lease")? {
            Some(lease) => options.lease(lease),
            None => options,
        })
    }

    fn extend(&self, owner: u64, lease_ms: i64) -> Result<Operation<()>> {
        self.client.refuse_fork()?;
        let lease = millis("lease_ms", lease_ms, "lease")?;
        Ok(self.core.extend_by(key(owner), lease))
    }

    /// Keeps a level until it is released or the handle is freed; returns its token, and the hold
    /// if it is a new one here.
    pub(crate) fn keep(&self, key: ReentryKey, guard: Guard) -> (u64, Option<Hold>) {
        let (token, hold) = (guard.fencing_token().unwrap_or_default(), guard.hold());
        let mut held = locked(&self.held);
        // Only the newest hold of a key can be alive.
        held.retain(|held| held.hold.count() > 0 && (held.key != key || held.hold.is_same(&hold)));
        if let Some(held) = held.iter_mut().find(|held| held.key == key) {
            held.levels.push(guard);
            return (token, None);
        }
        // Mostly there is only this one.
        if held.is_empty() {
            held.reserve_exact(1);
        }
        held.push(Held {
            key,
            hold: hold.clone(),
            levels: vec![guard],
        });
        if let Some(lost) = self.lost.get() {
            lost.watch(key, &hold);
        }
        (token, Some(hold))
    }

    /// Has losses told from now on, those of holds that began before included.
    fn tell_losses(&self, caller: Caller) {
        // Held meanwhile, so that each hold is watched once: by this, or when it is kept.
        let held = locked(&self.held);
        let lost = Arc::new(Lost {
            slot: Slot::new(),
            caller,
        });
        if self.lost.set(lost.clone()).is_ok() {
            let living = held.iter().filter(|held| held.hold.lost_reason().is_none());
            living.for_each(|held| lost.watch(held.key, &held.hold));
        }
    }

    /// The release of the newest level of a key, and whether it is known to be of this handle.
    pub(crate) fn release(&self, key: ReentryKey) -> (Operation<()>, bool) {
        let mut held = locked(&self.held);
        let of_key = held.iter_mut().find(|held| held.key == key);
        match of_key.and_then(|held| held.levels.pop()) {
            Some(guard) => (guard.release(), true),
            None => (self.core.release_by(key), false),
        }
    }

    fn hold(&self, owner: u64) -> Hold {
        self.core.hold(key(owner))
    }
}

impl Freed for redlatch_lock {
    fn freed(self: Arc<Self>) {
        if !self.client.core.is_forked()
            && let Some(lost) = self.lost.get()
        {
            lost.slot.set(None, User(ptr::null_mut()));
        }
        self.client.clone().forget(self);
    }
}

impl Drop for redlatch_lock {
    /// Nobody can release these levels through this handle any more.
    fn drop(&mut self) {
        for held in locked(&self.held).drain(..) {
            held.levels.into_iter().for_each(Guard::abandon);
        }
    }
}

/// A holder of a lock, as Redis has it.
#[repr(C)]
#[derive(Debug)]
pub struct redlatch_holder {
    /// A text that only equality makes sense of.
    pub owner: *const c_char,
    /// Its hold count.
    pub count: u32,
    /// The process id, 0 if the process is not known. Containers number their processes separately.
    pub pid: u32,
    /// How long the lock lives without a renewal, -1 if it has no expiry.
    pub remaining_ms: i64,
    /// The option client_name of its client; NULL if the process is not known, like the two below:
    /// for a holder that is not of redlatch (Redisson names no process), one with a token of its
    /// own, one that is no longer connected, and where the server refuses CLIENT LIST.
    pub client_name: *const c_char,
    /// "c", "python", "node", "rust" or "cli".
    pub language: *const c_char,
    /// The name of the machine or container, "" if it cannot be told.
    pub host: *const c_char,
}

/// Called for each holder of a lock. Its texts are valid during the call.
pub type redlatch_holder_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, holder: *const redlatch_holder)>;

/// Asks, and calls a function of the program for each of the answer.
fn tell_all(
    lock: &redlatch_lock,
    function: redlatch_holder_fn,
    user: User,
    question: fn(&Lock) -> Operation<Vec<Holder>>,
) -> Result<()> {
    let function = function.ok_or_else(|| is_null("function"))?;
    for holder in question(&lock.core).wait()? {
        // SAFETY: the header asks for a function that can be called with user.
        unsafe { tell_holder(&holder, function, user) };
    }
    Ok(())
}

/// In milliseconds.
fn remaining(holder: &Holder) -> i64 {
    holder.remaining.map_or(-1, |time| time.as_millis() as i64)
}

pub(crate) type HolderFn = unsafe extern "C" fn(*mut c_void, *const redlatch_holder);

/// Calls a function of the program for a holder.
///
/// # Safety
/// The function can be called with `user`.
pub(crate) unsafe fn tell_holder(holder: &Holder, function: HolderFn, User(user): User) {
    // A NUL cannot be in the middle of a text of C.
    let text = |text: &str| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    let owner = text(&holder.owner);
    let process = holder.process.as_ref();
    let texts = process.map(|of| [&of.client_name, &of.language, &of.host].map(|of| text(of)));
    let pointers = texts.as_ref().map_or([ptr::null(); 3], |texts| {
        texts.each_ref().map(|text| text.as_ptr())
    });
    let [client_name, language, host] = pointers;
    let told = redlatch_holder {
        owner: owner.as_ptr(),
        count: holder.count,
        pid: process.map_or(0, |of| of.pid),
        remaining_ms: remaining(holder),
        client_name,
        language,
        host,
    };
    // SAFETY: promised by the caller.
    unsafe { function(user, &raw const told) };
}

exports! {
    /// Makes a lock; does no I/O. name is 1 to 1,024 bytes of UTF-8. options may be NULL; they are
    /// added to those that the client was opened with. Free it with redlatch_lock_free().
    ///
    ///     redlatch_lock *order = NULL;
    ///     if (redlatch_lock_new(client, "order:42", NULL, &order) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
    ///   lock or contradicts another, or an argument is NULL (but options).
    #[must_use]
    make redlatch_lock_new(client: *mut redlatch_client, name, options: *const redlatch_options,
        lock: *mut *mut redlatch_lock) {
        let options = redlatch_options::lock(options, client.core.lock_options())?;
        let core = client.core.lock_from_bytes(name, options)?;
        lock.give(redlatch_lock::of(&client, core))
    }

    /// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
    ///   lock or contradicts another, or an argument is NULL (but options).
    #[must_use]
    counted redlatch_lock_new_n;

    /// Makes both sides of a read-write lock: many owners may have *read at a time, or one has *write.
    /// It is the same lock as the RReadWriteLock of Redisson with this name. Each side is a lock, to be
    /// freed with redlatch_lock_free(). name and options are as for redlatch_lock_new(); the option kind
    /// is refused, unless it is the client's or the default; fencing is for the writer. Does no I/O.
    ///
    /// An owner that has the write side may acquire the read side too, and keep it when it releases the
    /// write side. The other way round it would wait for itself: REDLATCH_WOULD_DEADLOCK.
    ///
    ///     redlatch_lock *read = NULL, *write = NULL;
    ///     if (redlatch_rw_lock_new(client, "config", NULL, &read, &write) != REDLATCH_OK ||
    ///         redlatch_lock_acquire(read, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     else
    ///         redlatch_lock_release(read, REDLATCH_THREAD); // after reading
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
    ///   lock or contradicts another, or an argument is NULL (but options).
    #[must_use]
    make redlatch_rw_lock_new(client: *mut redlatch_client, name, options: *const redlatch_options,
        read: *mut *mut redlatch_lock, write: *mut *mut redlatch_lock) {
        let options = redlatch_options::lock(options, client.core.lock_options())?;
        let sides = client.core.rw_lock_from_bytes(name, options)?;
        read.give(redlatch_lock::of(&client, sides.read().clone()))?;
        write.give(redlatch_lock::of(&client, sides.write().clone()))
    }

    /// As above, for a name of length bytes. The name needs no final NUL, and may contain some.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the name is empty, too long or not UTF-8, an option is none of a
    ///   lock or contradicts another, or an argument is NULL (but options).
    #[must_use]
    counted redlatch_rw_lock_new_n;

    /// Makes a multi lock of count locks of this client: an owner has all of them, or none. They may be of
    /// any kind, in any order; each name once. A semaphore gives one permit. The multi lock keeps what it needs
    /// of them, so each may be freed before it. It is a lock for all functions here, and is freed with
    /// redlatch_lock_free(). Does no I/O.
    ///
    /// Every client waits for names in the same order, so no two callers wait for each other. While it
    /// waits, it keeps the names before the one that it waits for. The loss of one is the loss of the whole;
    /// the others stay held until the release. Its fencing token is 0: each lock has the owner's.
    ///
    /// It has no key of its own: what asks Redis about a lock (redlatch_lock_is_locked(),
    /// redlatch_lock_holders(), redlatch_lock_waiters(), redlatch_lock_force_release()) or takes a token is
    /// refused with REDLATCH_INVALID_ARGUMENT. Ask each of its locks.
    ///
    ///     redlatch_lock *accounts[2] = {NULL, NULL}, *both = NULL;
    ///     if (redlatch_lock_new(client, "account:1", NULL, &accounts[0]) != REDLATCH_OK ||
    ///         redlatch_lock_new(client, "account:2", NULL, &accounts[1]) != REDLATCH_OK ||
    ///         redlatch_multi_lock_new(client, accounts, 2, &both) != REDLATCH_OK ||
    ///         redlatch_lock_acquire(both, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     else
    ///         redlatch_lock_release(both, REDLATCH_THREAD); // after the work
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: count is 0, a name is given twice, a lock is of another client, or an
    ///   argument or one of the locks is NULL.
    #[must_use]
    fn redlatch_multi_lock_new(client: *mut redlatch_client, locks: *const *mut redlatch_lock,
        count: usize, lock: *mut *mut redlatch_lock) {
        let locks = locks.all(count)?;
        let core = client.core.multi_lock_of(locks.iter().map(|lock| &lock.core))?;
        lock.give(redlatch_lock::of(&client, core))
    }

    /// Frees a lock; NULL is allowed. Does no I/O. A hold through it is not released but
    /// not renewed any more either, so that it ends with its lease; an event warns. An operation on it
    /// is cancelled and gives no event. When this returns, no call of its lost function is running,
    /// unless that function is the caller.
    free redlatch_lock_free(lock: *mut redlatch_lock);

    /// Holds the lock for owner; if owner holds it already, once more. wait_ms 0 tries once,
    /// REDLATCH_FOREVER waits as long as it takes; REDLATCH_TIMEOUT leaves nothing behind. lease_ms is
    /// REDLATCH_LOCK_LEASE or a lease that is never renewed. *token, unless token is NULL, is the
    /// fencing token, 0 without the option fencing. Give back every level with redlatch_lock_release().
    ///
    ///     redlatch_status status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL);
    ///     if (status == REDLATCH_OK)
    ///         redlatch_lock_release(lock, REDLATCH_THREAD); // after the work
    ///     else if (status == REDLATCH_TIMEOUT)
    ///         puts("others have had it for five seconds");
    ///     else
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_TIMEOUT: wait_ms is over, and others have the lock.
    /// - REDLATCH_LOST: owner lost this lock and has not released each level of it ("Lost" at the top).
    ///   Trying again does not help; redlatch_lock_release() does.
    /// - REDLATCH_WOULD_DEADLOCK: owner has the read side and asks for the write side.
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_NOT_REPLICATED: with the option replicas, too few of them acknowledged.
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, or lock is NULL.
    /// - SERVER
    #[must_use]
    wait redlatch_lock_acquire(lock: *mut redlatch_lock, owner: u64, wait_ms: i64, lease_ms: i64;
        token: *mut u64)
        = What::Acquire(key(owner)), lock.acquire(owner, wait_ms, lease_ms)?
        => |guard| token.put(lock.keep(key(owner), guard).0);

    /// The same, and the wait can be ended from another thread: it returns REDLATCH_CANCELLED, which
    /// leaves nothing behind, when canceller is cancelled before the lock is acquired. canceller may be
    /// NULL.
    ///
    /// Statuses:
    /// - REDLATCH_CANCELLED: canceller was cancelled.
    /// - Those of redlatch_lock_acquire(): REDLATCH_TIMEOUT, REDLATCH_LOST, REDLATCH_WOULD_DEADLOCK,
    ///   REDLATCH_FOREIGN_KIND, REDLATCH_NOT_REPLICATED, REDLATCH_INVALID_ARGUMENT, REDLATCH_CLOSED,
    ///   REDLATCH_FORKED, REDLATCH_UNAVAILABLE, REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER,
    ///   REDLATCH_NAME_NOT_CLUSTERABLE.
    #[must_use]
    cancellable redlatch_lock_acquire_cancellable;

    /// Begins what redlatch_lock_acquire() does and returns at once: an event REDLATCH_EVENT_ACQUIRE
    /// with this tag comes, exactly one unless it is cancelled. The lock counts as held, and owner can
    /// release it, once that event is taken.
    ///
    ///     uint64_t owner = redlatch_owner_new(); // and the tag, by which the event is known
    ///     if (redlatch_lock_acquire_start(lock, owner, 5000, REDLATCH_LOCK_LEASE, owner) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms or lease_ms is out of bounds, an operation with this tag is
    ///   under way, or lock is NULL.
    /// - STARTED
    #[must_use]
    start redlatch_lock_acquire_start;

    /// Cancels what redlatch_lock_acquire_start() began under this tag. cancelled may be NULL. *cancelled true: no event comes
    /// and nothing is held. false: it had ended before, and its event tells how; if it was granted,
    /// release it.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    cancel redlatch_lock_acquire_cancel;

    /// The value that a simple lock's key gets when it is acquired through this handle from now on, in
    /// place of a fresh one; NULL: a fresh one. Give each attempt a token of its own, in every process.
    /// A program that knows it can release and extend the lock.
    ///
    ///     redlatch_options *options = NULL;
    ///     redlatch_lock *job = NULL; // another program calls redlatch_lock_adopt(job, owner, "request 7", ...)
    ///     if (redlatch_options_new(&options) != REDLATCH_OK ||
    ///         redlatch_options_set(options, "kind", "simple") != REDLATCH_OK ||
    ///         redlatch_lock_new(client, "job:42", options, &job) != REDLATCH_OK ||
    ///         redlatch_lock_set_token(job, "request 7") != REDLATCH_OK ||
    ///         redlatch_lock_acquire(job, REDLATCH_THREAD, 5000, 60000, NULL) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     redlatch_options_free(options);
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: locks of this kind have no token (reentrant, and both sides of a
    ///   read-write lock), token is not 1 to 512 bytes of UTF-8, or lock is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    fn redlatch_lock_set_token(lock: *mut redlatch_lock, token: *const c_char) {
        let token = token.optional()?;
        lock.client.refuse_fork()?;
        // Refused here, where the mistake is, and not only when the lock is acquired.
        token.map_or(Ok(()), |token| lock.core.check_token(token))?;
        *locked(&lock.token) = token.map(Arc::from);
        Ok(())
    }

    /// Gives back the newest level of owner. After fork() the child may call it for the
    /// parent's hold; it does nothing.
    ///
    /// Statuses:
    /// - REDLATCH_LOST: the lock was lost before; the level is given back all the same.
    /// - REDLATCH_NOT_OWNER: owner does not hold the lock.
    /// - REDLATCH_UNAVAILABLE: the server was out of reach for as long as the option outage says; the
    ///   lock ends with its lease.
    /// - REDLATCH_CLOSED: the client is closed; closing has released the lock, or it ends with its
    ///   lease.
    /// - REDLATCH_AUTH, REDLATCH_DENIED, REDLATCH_SERVER, REDLATCH_NAME_NOT_CLUSTERABLE:
    ///   "Statuses of the server" at the top; the lock ends with its lease.
    /// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
    fn redlatch_lock_release(lock: *mut redlatch_lock, owner: u64) {
        // After a fork there is nothing to do: it is the parent's hold.
        while !lock.client.core.is_forked() {
            let (release, known) = lock.release(key(owner));
            match release.wait() {
                // That level was released through another handle of this name: the next one.
                Err(error) if known && error.kind() == ErrorKind::NotOwner => {}
                done => return done,
            }
        }
        Ok(())
    }

    /// Begins what redlatch_lock_release() does and returns at once: an event REDLATCH_EVENT_RELEASE
    /// with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
    /// - STARTED
    fn redlatch_lock_release_start(lock: *mut redlatch_lock, owner: u64, tag: u64) {
        lock.client.start_release(&lock, key(owner), tag)
    }

    /// Makes the lock live at least lease_ms from now; never shortens it, and does not change whether
    /// it is renewed.
    ///
    /// Statuses:
    /// - REDLATCH_LOST: the lock was lost before.
    /// - REDLATCH_NOT_OWNER: owner does not hold the lock.
    /// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or lock is NULL.
    /// - SERVER
    ask redlatch_lock_extend(lock: *mut redlatch_lock, owner: u64, lease_ms: i64)
        = Answer(REDLATCH_EVENT_EXTEND), lock.extend(owner, lease_ms)?;

    /// Begins what redlatch_lock_extend() does and returns at once: an event REDLATCH_EVENT_EXTEND with
    /// this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, an operation with this tag is
    ///   under way, or lock is NULL.
    /// - STARTED
    start redlatch_lock_extend_start;

    /// Frees the lock if token is its value, in whatever process it was acquired: for work that is
    /// passed on with its lock. Simple kinds only.
    ///
    /// Statuses:
    /// - REDLATCH_NOT_OWNER: the lock is free, or has another value.
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_INVALID_ARGUMENT: locks of this kind have no token, token is not 1 to 512 bytes of
    ///   UTF-8, or an argument is NULL.
    /// - SERVER
    ask redlatch_lock_release_token(lock: *mut redlatch_lock, token: *const c_char)
        = Answer(REDLATCH_EVENT_RELEASE_TOKEN), lock.core.release_token(token.text()?);

    /// Begins what redlatch_lock_release_token() does and returns at once: an event
    /// REDLATCH_EVENT_RELEASE_TOKEN with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, token is not UTF-8, or an
    ///   argument is NULL. The event says that locks of this kind have no token.
    /// - STARTED
    start redlatch_lock_release_token_start;

    /// Takes over the lock if value is its value, whichever process acquired it: owner holds it then, as
    /// after redlatch_lock_acquire(). The value is worth nothing any more: whoever acquired with it can
    /// neither release nor extend the lock, and is told that it is lost. Simple kinds only. lease_ms is
    /// REDLATCH_LOCK_LEASE or a lease that is never renewed. *token, unless token is NULL, is the fencing
    /// token, 0 without the option fencing.
    ///
    /// Statuses:
    /// - REDLATCH_NOT_OWNER: the lock is free, or has another value.
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_NOT_REPLICATED: with the option replicas, too few of them acknowledged.
    /// - REDLATCH_INVALID_ARGUMENT: owner has the lock already, lease_ms is out of bounds, or as for
    ///   redlatch_lock_release_token().
    /// - SERVER
    #[must_use]
    fn redlatch_lock_adopt(lock: *mut redlatch_lock, owner: u64, value: *const c_char,
        lease_ms: i64, token: *mut u64) {
        let guard = lock.adopt(owner, value.text()?, lease_ms)?.wait()?;
        token.put(lock.keep(key(owner), guard).0);
        Ok(())
    }

    /// Begins what redlatch_lock_adopt() does and returns at once: an event REDLATCH_EVENT_ACQUIRE with
    /// this tag comes, as after redlatch_lock_acquire_start(), which redlatch_lock_acquire_cancel()
    /// cancels too.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: lease_ms is out of bounds, value is no UTF-8, an operation with this
    ///   tag is under way, or an argument is NULL.
    /// - STARTED
    #[must_use]
    fn redlatch_lock_adopt_start(lock: *mut redlatch_lock, owner: u64, value: *const c_char,
        lease_ms: i64, tag: u64) {
        let what = What::Acquire(key(owner));
        lock.client.start(&lock, tag, what, || lock.adopt(owner, value.text()?, lease_ms))
    }

    /// Makes the lock live at least lease_ms from now if token is its value; as
    /// redlatch_lock_release_token.
    ///
    /// Statuses:
    /// - REDLATCH_NOT_OWNER: the lock is free, or has another value.
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or as for
    ///   redlatch_lock_release_token().
    /// - SERVER
    ask redlatch_lock_extend_token(lock: *mut redlatch_lock, token: *const c_char, lease_ms: i64)
        = Answer(REDLATCH_EVENT_EXTEND_TOKEN),
        lock.core.extend_token(token.text()?, millis("lease_ms", lease_ms, "lease")?);

    /// Begins what redlatch_lock_extend_token() does and returns at once: an event
    /// REDLATCH_EVENT_EXTEND_TOKEN with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: lease_ms is not 100 ms to 24 hours, or as for
    ///   redlatch_lock_release_token_start().
    /// - STARTED
    start redlatch_lock_extend_token_start;

    /// Deletes the lock whoever holds it, and wakes who waits. *deleted, unless deleted is NULL:
    /// whether there was one.
    ///
    ///     bool deleted = false;
    ///     if (redlatch_lock_force_release(lock, &deleted) == REDLATCH_OK && deleted)
    ///         puts("somebody held it");
    ///
    /// Statuses:
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name; it stays.
    /// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
    /// - SERVER
    ask redlatch_lock_force_release(lock: *mut redlatch_lock; optional deleted: *mut bool)
        = Answer(REDLATCH_EVENT_FORCE_RELEASE), lock.core.force_release();

    /// Begins what redlatch_lock_force_release() does and returns at once: an event
    /// REDLATCH_EVENT_FORCE_RELEASE with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
    /// - STARTED
    start redlatch_lock_force_release_start;

    /// Whether anybody holds the lock now; asks Redis.
    ///
    /// Statuses:
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - SERVER
    ask redlatch_lock_is_locked(lock: *mut redlatch_lock; needed locked: *mut bool)
        = Answer(REDLATCH_EVENT_IS_LOCKED), lock.core.is_locked();

    /// Begins what redlatch_lock_is_locked() does and returns at once: an event
    /// REDLATCH_EVENT_IS_LOCKED with this tag comes.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock is NULL.
    /// - STARTED
    start redlatch_lock_is_locked_start;

    /// Asks Redis for the holder of the lock, one of them if it is a read lock. owner receives a text
    /// that only equality makes sense of, "" if the lock is free; size is the size of that buffer. A
    /// text that does not fit with its final NUL is refused, not cut: 64 bytes are enough for holders
    /// of the kind reentrant, 513 for tokens, and redlatch_lock_holders() needs no buffer. *count is the hold count,
    /// *remaining_ms how long the lock lives without a renewal, -1 if it has no expiry. Each of the
    /// three may be NULL.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: the text does not fit into size bytes, or lock is NULL.
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - SERVER
    fn redlatch_lock_holder(lock: *mut redlatch_lock, owner: *mut c_char, size: usize,
        count: *mut u32, remaining_ms: *mut i64) {
        let holder = lock.core.holder().wait()?;
        let holder = holder.as_ref();
        owner.put_text(holder.map_or("", |holder| &holder.owner), size)?;
        count.put(holder.map_or(0, |holder| holder.count));
        remaining_ms.put(holder.map_or(0, remaining));
        Ok(())
    }

    /// Asks Redis for all holders of the lock (of a read lock there may be several), and calls function
    /// with user for each, before it returns and on this thread. Their processes come from CLIENT LIST,
    /// which takes the server about a microsecond for each of its connections.
    ///
    ///     static void show(void *file, const redlatch_holder *holder)
    ///     {
    ///         fprintf((FILE *)file, "process %u on %s\n", (unsigned)holder->pid, holder->host != NULL ? holder->host : "?");
    ///     }
    ///
    ///     if (redlatch_lock_holders(lock, show, stdout) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_FOREIGN_KIND: another kind of lock, or other data, lies at the name.
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - SERVER
    fn redlatch_lock_holders(lock: *mut redlatch_lock, function: redlatch_holder_fn,
        user: *mut c_void) {
        tell_all(&lock, function, user, Lock::holders)
    }

    /// Begins what redlatch_lock_holders() does and returns at once: an event REDLATCH_EVENT_HOLDERS
    /// with this tag comes. redlatch_client_next_event() calls function with user for each holder
    /// before it returns that event.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
    ///   NULL.
    /// - STARTED
    fn redlatch_lock_holders_start(lock: *mut redlatch_lock, function: redlatch_holder_fn,
        user: *mut c_void, tag: u64) {
        let function = function.ok_or_else(|| is_null("function"))?;
        lock.client.start(&lock, tag, What::Holders(function, user), || Ok(lock.core.holders()))
    }

    /// Asks Redis for the queue of a fair lock or semaphore, and calls function with user for each waiter, in
    /// the order in which they are served, those of other programs included; as redlatch_lock_holders() does.
    /// count is how many permits it wants, 0 of a lock; remaining_ms is how long the place is kept if its
    /// waiter does not ask again.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: Redis keeps no queue for a lock of this kind, or a semaphore without fair; or
    ///   an argument is NULL.
    /// - SERVER
    fn redlatch_lock_waiters(lock: *mut redlatch_lock, function: redlatch_holder_fn,
        user: *mut c_void) {
        tell_all(&lock, function, user, Lock::waiters)
    }

    /// Begins what redlatch_lock_waiters() does and returns at once: an event REDLATCH_EVENT_HOLDERS
    /// with this tag comes, as for redlatch_lock_holders_start().
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or lock or function is
    ///   NULL. The event says that the lock is not of the kind fair.
    /// - STARTED
    fn redlatch_lock_waiters_start(lock: *mut redlatch_lock, function: redlatch_holder_fn,
        user: *mut c_void, tag: u64) {
        let function = function.ok_or_else(|| is_null("function"))?;
        lock.client.start(&lock, tag, What::Holders(function, user), || Ok(lock.core.waiters()))
    }

    /// Whether owner can rely on the lock now. Like the following ones it answers at once, from a clock
    /// that counts suspend, and has false or 0 for a failure.
    fn redlatch_lock_is_held(lock: *const redlatch_lock, owner: u64) -> bool = false
        => lock.hold(owner).is_held();

    /// The same with the reason.
    ///
    ///     if (redlatch_lock_check(lock, REDLATCH_THREAD) == REDLATCH_LOST) // before each write that needs the lock
    ///         fprintf(stderr, "%s\n", redlatch_lost_reason_name(redlatch_last_lost_reason()));
    ///
    /// Statuses:
    /// - REDLATCH_LOST: owner has lost the lock; redlatch_last_lost_reason() says why.
    /// - REDLATCH_NOT_OWNER: owner does not hold the lock.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    /// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
    fn redlatch_lock_check(lock: *const redlatch_lock, owner: u64) {
        lock.client.refuse_fork()?;
        lock.hold(owner).check()
    }

    /// How long owner can rely on the lock if nothing more is heard from Redis; 0 once it is lost.
    fn redlatch_lock_remaining_ms(lock: *const redlatch_lock, owner: u64) -> i64 = 0
        => lock.hold(owner).remaining().as_millis() as i64;

    /// How many levels owner has.
    fn redlatch_lock_hold_count(lock: *const redlatch_lock, owner: u64) -> u32 = 0
        => lock.hold(owner).count();

    /// The fencing token of owner's hold; 0 without a hold and without the option fencing.
    fn redlatch_lock_fencing_token(lock: *const redlatch_lock, owner: u64) -> u64 = 0 => {
        // A view that was taken while the hold ended still knows its token.
        let hold = lock.hold(owner);
        hold.fencing_token().filter(|_| hold.count() > 0).unwrap_or_default()
    };

    /// Registers told, to be called with user once for every hold that is lost, those that began before
    /// included; NULL stops it. When this returns, the function before is not running and will not be
    /// called again, unless it is that function that calls this.
    ///
    ///     static void lost(void *work, uint64_t owner, uint64_t token, redlatch_lost_reason reason)
    ///     {
    ///         (void)owner, (void)token, (void)reason;
    ///         redlatch_canceller_cancel((redlatch_canceller *)work); // the work asks redlatch_canceller_is_cancelled()
    ///     }
    ///
    ///     if (redlatch_lock_on_lost(lock, lost, canceller) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: lock is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    /// - REDLATCH_INTERNAL: the thread that calls cannot be started.
    fn redlatch_lock_on_lost(lock: *mut redlatch_lock, told: redlatch_lost_fn, user: *mut c_void) {
        lock.client.refuse_fork()?;
        if told.is_some() && lock.lost.get().is_none() {
            lock.tell_losses(lock.client.caller()?);
        }
        if let Some(lost) = lock.lost.get() {
            lost.slot.set(told, user);
        }
        Ok(())
    }
}

/// A number for owner that no call of this function in this process gives again, for languages
/// whose work changes threads. It is 2^48 or more and below 2^53, so that it does not meet the
/// numbers that a program counts itself, and a floating-point number can hold it.
///
///     uint64_t owner = redlatch_owner_new(); // of this goroutine, fiber or request
///     if (redlatch_lock_acquire(lock, owner, 5000, REDLATCH_LOCK_LEASE, NULL) == REDLATCH_OK)
///         redlatch_lock_release(lock, owner); // from whatever thread
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_owner_new() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 48);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
