//! For bindings to other languages. A program in Rust needs nothing of this, and it may change in
//! any release.
//!
//! A binding gets its answers through a [`CompletionQueue`], names options as text
//! ([`all_options`]) and learns from here when a thread of its language waits inline ([`Caller`]).
//! It holds no default, no waiting time and no name of a key of its own.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

pub use crate::completion_queue::{Completion, CompletionQueue, Outcome, Serving};
pub use crate::error::OptionFault;
pub use crate::exit;
pub use crate::inspector::Inspector;
pub use crate::operation::{Caller, Cancelled, Submitted};
pub use crate::options::{
    OptionInfo, Scope, SetOption, Spelling, Type, all_options, meant, read_count, read_duration,
    tables,
};
pub use crate::sys::Uncancelled;
pub use redlatch_proto::glob;
pub use redlatch_proto::url::each_of_quorum;
pub use redlatch_proto::value::Value;
pub use redlatch_proto::wire::access::{Part, rules};
pub use redlatch_proto::wire::names;

use crate::canceller::Canceller;
use crate::client::{Client, ClientBuilder};
use crate::counters::{CountDownLatch, PlainSemaphore, taken};
use crate::engine::Input;
use crate::error::Result;
use crate::guard::{Guard, PlainPermit};
use crate::lock::{Hold, Lock, RwLock, Semaphore};
use crate::loss;
use crate::operation::Operation;
use crate::options::{AcquireOptions, LockOptions};
use crate::owner::ReentryKey;
use crate::sys::without_signals;
use crate::wire::{Holder, Kind, Topic};

/// The channels on which releases of locks with this name are published: of one holder, of the
/// read-write lock, and of the semaphore.
pub fn channels(name: &str) -> [String; 3] {
    [Topic::Lock, Topic::ReadWrite, Topic::Semaphore].map(|topic| names::channel(topic, name))
}

/// The key of the list of those who wait for a fair lock of this name.
pub fn queue(name: &str) -> String {
    let [queue, _] = names::queue_keys(name);
    queue
}

/// Starts a thread that no signal interrupts: signals belong to the threads of the program.
///
/// # Errors
/// The error of the system.
pub fn spawn(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name(name.to_owned()).spawn(life))?
}

/// Methods of [`ClientBuilder`] for bindings.
pub trait ClientBuilderExt: Sized {
    /// The language of the program, for the [names of the connections](crate::Process).
    #[must_use]
    fn language(self, language: &'static str) -> Self;

    /// Connects to every primary in order to look at them, on this thread.
    ///
    /// # Errors
    /// As [`build`](ClientBuilder::build) and [`Client::ready`].
    fn inspect(self) -> Result<Inspector>;
}

impl ClientBuilderExt for ClientBuilder {
    fn language(self, language: &'static str) -> Self {
        self.in_language(language)
    }

    fn inspect(self) -> Result<Inspector> {
        let (place, manner) = self.place()?;
        Inspector::connect(place, manner)
    }
}

/// Methods of [`Client`] for bindings.
pub trait ClientExt: Sized {
    /// The lock of a name given as bytes, which may not be valid text. No I/O.
    ///
    /// # Errors
    /// As [`lock_with`](Client::lock_with), and for bytes that are not UTF-8.
    fn lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Lock>;

    /// The read-write lock of a name given as bytes. No I/O.
    ///
    /// # Errors
    /// As [`lock_from_bytes`](ClientExt::lock_from_bytes).
    fn rw_lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<RwLock>;

    /// The semaphore of a name given as bytes. No I/O.
    ///
    /// # Errors
    /// As [`lock_from_bytes`](ClientExt::lock_from_bytes).
    fn semaphore_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Semaphore>;

    /// The plain semaphore of a name given as bytes. No I/O.
    ///
    /// # Errors
    /// For bytes that are not UTF-8, or not 1 to 1,024.
    fn plain_semaphore_from_bytes(&self, name: &[u8]) -> Result<PlainSemaphore>;

    /// The latch of a name given as bytes. No I/O.
    ///
    /// # Errors
    /// As [`plain_semaphore_from_bytes`](ClientExt::plain_semaphore_from_bytes).
    fn latch_from_bytes(&self, name: &[u8]) -> Result<CountDownLatch>;

    /// Reports that the task behind `key` will never run again, for example because its event loop
    /// was closed. None of its levels is renewed any more, not even those with a guard.
    fn key_gone(&self, key: ReentryKey);

    /// The value of the option `close_limit`.
    fn close_limit(&self) -> Duration;

    /// Closes within the time of the option `close_limit`, and gives the names of what could not be
    /// released, for languages in which that is no error.
    fn close_naming(&self) -> Operation<Vec<String>>;

    /// Closes within the time of the option `exit_limit`, for languages that close clients when the
    /// program ends.
    fn close_at_exit(&self) -> Operation<()>;

    /// Waits until the I/O thread has ended after a close, at most `limit`.
    fn join(&self, limit: Duration);

    /// Whether this client belongs to the parent of this process.
    fn is_forked(&self) -> bool;
}

/// Methods of [`Semaphore`] for bindings.
pub trait SemaphoreExt: Sized {
    /// The semaphore behind a lock of the kind [`Semaphore`](Kind::Semaphore).
    fn of_lock(lock: Lock) -> Self;

    /// Checks how many permits an acquisition is to take.
    ///
    /// # Errors
    /// `invalid_argument`.
    fn check_permits(&self, permits: usize) -> Result<()>;
}

impl SemaphoreExt for Semaphore {
    fn of_lock(lock: Lock) -> Self {
        Semaphore { lock }
    }

    fn check_permits(&self, permits: usize) -> Result<()> {
        AcquireOptions::new()
            .permits(permits)
            .validate_for(self.lock.options())
            .map_err(|error| self.lock.blamed(error))
    }
}

impl ClientExt for Client {
    fn lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Lock> {
        let options = self.0.checked(options)?;
        Ok(Lock::new(
            self.0.clone(),
            names::name_from_bytes(name)?,
            options,
        ))
    }

    fn rw_lock_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<RwLock> {
        let [read, write] = options.sides(self.lock_options().kind)?;
        Ok(RwLock {
            read: self.lock_from_bytes(name, read)?,
            write: self.lock_from_bytes(name, write)?,
        })
    }

    fn semaphore_from_bytes(&self, name: &[u8], options: LockOptions) -> Result<Semaphore> {
        let lock = self.lock_from_bytes(name, options.kind(Kind::Semaphore))?;
        Ok(Semaphore { lock })
    }

    fn plain_semaphore_from_bytes(&self, name: &[u8]) -> Result<PlainSemaphore> {
        self.0.refuse_quorum("plain semaphore")?;
        Ok(PlainSemaphore::new(
            self.0.clone(),
            names::name_from_bytes(name)?,
        ))
    }

    fn latch_from_bytes(&self, name: &[u8]) -> Result<CountDownLatch> {
        self.0.refuse_quorum("latch")?;
        Ok(CountDownLatch::new(
            self.0.clone(),
            names::name_from_bytes(name)?,
        ))
    }

    fn key_gone(&self, key: ReentryKey) {
        if let Some(running) = self.0.started() {
            running.tell(Input::KeyGone(key.into()));
        }
    }

    fn close_limit(&self) -> Duration {
        self.0.options.close_limit
    }

    fn close_naming(&self) -> Operation<Vec<String>> {
        self.closing(self.close_limit(), Ok)
    }

    fn close_at_exit(&self) -> Operation<()> {
        self.close_within(self.exit_limit())
    }

    fn join(&self, limit: Duration) {
        if let Some(running) = self.0.started().filter(|running| !running.is_forked()) {
            running.handle.join(limit);
        }
    }

    fn is_forked(&self) -> bool {
        self.0.is_forked()
    }
}

/// Methods of [`PlainSemaphore`] for bindings.
pub trait PlainSemaphoreExt: Sized {
    /// Takes so many permits. `wait`: `None` waits for ever, zero tries once. Permits that were not
    /// granted in time are an error of the kind `timeout`.
    ///
    /// The answer is [`Outcome::Taken`]. A language whose callers give permits back by number calls
    /// [`forget`](PlainPermit::forget) on the permit, and later
    /// [`release`](PlainSemaphore::release).
    ///
    /// # Errors
    /// As [`acquire_many_timeout`](PlainSemaphore::acquire_many_timeout).
    fn take(&self, permits: usize, wait: Option<Duration>) -> Operation<PlainPermit>;
}

impl PlainSemaphoreExt for PlainSemaphore {
    fn take(&self, permits: usize, wait: Option<Duration>) -> Operation<PlainPermit> {
        self.take(permits, wait, taken)
    }
}

/// Methods of [`CountDownLatch`] for bindings.
pub trait CountDownLatchExt: Sized {
    /// Waits until the count is 0. `wait`: `None` waits for ever, zero looks once. A count that does
    /// not get to 0 in time is an error of the kind `timeout`. The answer is [`Outcome::Open`].
    ///
    /// # Errors
    /// As [`wait_timeout`](CountDownLatch::wait_timeout).
    fn wait_within(&self, wait: Option<Duration>) -> Operation<()>;
}

impl CountDownLatchExt for CountDownLatch {
    fn wait_within(&self, wait: Option<Duration>) -> Operation<()> {
        self.wait_for(wait)
    }
}

/// Methods of [`Lock`] for bindings.
pub trait LockExt: Sized {
    /// The option `kind`.
    fn kind(&self) -> Kind;

    /// Whether several callers can hold it at a time, as permits and the read side.
    fn is_shared(&self) -> bool;

    /// Like [`holders`](Lock::holders), without their processes: one command less, and the server
    /// lists no connections.
    ///
    /// # Errors
    /// As [`holders`](Lock::holders).
    fn owners(&self) -> Operation<Vec<Holder>>;

    /// Whether an acquisition of this lock can have this token.
    ///
    /// # Errors
    /// `invalid_argument` for a lock of a kind that has no tokens, and for a token out of bounds.
    fn check_token(&self, token: &str) -> Result<()>;
}

impl LockExt for Lock {
    fn kind(&self) -> Kind {
        self.options().kind
    }

    fn is_shared(&self) -> bool {
        match self.parts() {
            [] => self.wire_kind().is_shared(),
            parts => parts.iter().all(Self::is_shared),
        }
    }

    fn owners(&self) -> Operation<Vec<Holder>> {
        self.owners_only()
    }

    fn check_token(&self, token: &str) -> Result<()> {
        self.requests().form(token).map(drop)
    }
}

/// Methods of [`Guard`] for bindings.
pub trait GuardExt: Sized {
    /// Puts [`Outcome::Lost`] into `queue` under `tag` when the lock is lost. A hold that ends by a
    /// release keeps `tag` until its last view is dropped.
    fn watch_lost<T: Send + 'static>(&self, queue: &Arc<CompletionQueue<T>>, tag: T);

    /// Like [`reenter`](Guard::reenter), with other options. Mixing leases never shortens the
    /// remaining time, and the lock is renewed while any of its levels needs it. The key in
    /// `acquire` is ignored.
    ///
    /// # Errors
    /// As [`reenter`](Guard::reenter), and `invalid_argument` for options out of bounds.
    fn reenter_with(&self, lock: &LockOptions, acquire: AcquireOptions) -> Operation<Guard>;

    /// As [`Hold::parts`], for what costs nothing with any other lock.
    fn parts(&self) -> Vec<Hold>;

    /// For a handle that was garbage-collected without a release. The level is not renewed any more
    /// and ends with its lease, and an event warns about it.
    fn abandon(self);
}

impl GuardExt for Guard {
    fn watch_lost<T: Send + 'static>(&self, queue: &Arc<CompletionQueue<T>>, tag: T) {
        self.hold().watch_lost(queue, tag);
    }

    fn reenter_with(&self, lock: &LockOptions, acquire: AcquireOptions) -> Operation<Guard> {
        match acquire.validate_for(lock).and_then(|()| lock.validate()) {
            Ok(()) => self.reenter_on(lock.terms(&acquire), acquire.wait),
            Err(error) => Operation::failed(error),
        }
    }

    fn parts(&self) -> Vec<Hold> {
        self.part_holds()
    }

    fn abandon(self) {
        if let Some((running, cell, level)) = self.disarm() {
            running.tell(Input::Abandoned {
                owner: cell.owner,
                level,
            });
        }
    }
}

/// Methods of [`Hold`] for bindings.
pub trait HoldExt: Sized {
    /// Puts [`Outcome::Lost`] into `queue` under `tag` when the lock is lost. A hold that ends by a
    /// release keeps `tag` until its last view is dropped.
    fn watch_lost<T: Send + 'static>(&self, queue: &Arc<CompletionQueue<T>>, tag: T);
}

impl HoldExt for Hold {
    fn watch_lost<T: Send + 'static>(&self, queue: &Arc<CompletionQueue<T>>, tag: T) {
        if let Some(cell) = self.cell() {
            loss::watch(cell, queue.watcher(tag));
        }
    }
}

/// Methods of [`ReentryKey`] for bindings.
pub trait ReentryKeyExt: Sized {
    /// A key for a new flow of the calling thread. A flow is one of several things that the thread
    /// does in turn, such as a request that a thread pool serves. The caller keeps the key with the
    /// flow. It ends with the thread.
    fn new_flow() -> ReentryKey;

    /// A key for what is like a thread and is none of the system's, as a greenlet. The caller keeps
    /// it, makes keys for its flows ([`ReentryKey::Flow`] with its number), and tells its end with
    /// [`Client::key_ended`](crate::Client::key_ended).
    fn new_thread() -> ReentryKey;
}

impl ReentryKeyExt for ReentryKey {
    fn new_flow() -> ReentryKey {
        ReentryKey::flow_of_this_thread()
    }

    fn new_thread() -> ReentryKey {
        ReentryKey::like_a_thread()
    }
}

/// Methods of [`AcquireOptions`] for bindings.
pub trait AcquireOptionsExt: Sized {
    /// Acquires for the caller behind this key, without asking to re-enter. The level belongs to
    /// the key, but only the lock's option `reentrant` lets the key enter again. For languages in
    /// which every call is made by some thread or task.
    #[must_use]
    fn caller(self, key: ReentryKey) -> Self;

    /// Ties the level to its key from the start. When the key's thread or task has ended, the level
    /// is not renewed any more, even if the guard still exists.
    #[must_use]
    fn tied_to_key(self) -> Self;

    /// Takes the write side of a read-write lock from all that have the lock, before all that wait
    /// for it, as a separate owner. Their holds are lost; waiters go on waiting. A theft without an
    /// answer fails with `unavailable` and is given back: a second one could rob the next holder.
    #[must_use]
    fn stealing(self) -> Self;

    /// Takes over the lock that has this token, as [`adopt`](crate::Lock::adopt) does.
    #[must_use]
    fn adopting(self, token: &str) -> Self;
}

impl AcquireOptionsExt for AcquireOptions {
    fn caller(mut self, key: ReentryKey) -> Self {
        self.key = key;
        self.caller = true;
        self
    }

    fn tied_to_key(mut self) -> Self {
        self.tied = true;
        self
    }

    fn stealing(mut self) -> Self {
        self.steal = true;
        self
    }

    fn adopting(self, token: &str) -> Self {
        self.adopts(token)
    }
}

/// Methods of [`Operation`] for bindings.
pub trait OperationExt<T>: Sized {
    /// The same operation with the answer that a queue gets. A failure may be the outcome or the
    /// error.
    fn untyped(self) -> Operation<Outcome>;

    /// Has the answer put into `queue` under `tag`, and returns the ticket of the operation at
    /// once: by it the queue can [cancel](CompletionQueue::cancel) it.
    ///
    /// A request that cannot be sent is answered through the queue as well. An acquisition that was
    /// not granted, also by [`try_acquire`](crate::Lock::try_acquire), comes as [`Outcome::Failed`]
    /// with the kind `timeout`.
    fn deliver_to<W: Send + 'static>(self, queue: &Arc<CompletionQueue<W>>, tag: W) -> u64;

    /// Like [`deliver_to`](Operation::deliver_to), for a call on the thread of an event loop: the
    /// answer may be there at once. Else `tag` makes the tag for a ticket.
    ///
    /// While nobody else uses the client and the server has lately answered fast enough for this
    /// `caller`, the calling thread makes the call inline and waits for the answer. That takes less
    /// time than waking a loop twice. If the answer is late for once, the thread waits until the
    /// next tick of the system's clock, some milliseconds. After a few such answers in a row that
    /// have taken a millisecond or more, one comes through the queue, so that the loop can serve
    /// others.
    fn deliver_soon<W: Send + 'static>(
        self,
        queue: &Arc<CompletionQueue<W>>,
        caller: Caller,
        tag: impl FnOnce(u64) -> W,
    ) -> Submitted;

    /// Sends the request. If the calling thread can make the call itself, waits for the answer as
    /// long as `caller` may, else not at all. Returns true if a wait that
    /// follows will not block.
    ///
    /// It is for languages with a global lock that takes longer to give away than a short wait
    /// lasts: Python.
    fn wait_briefly(&mut self, caller: Caller) -> bool;

    /// Blocks like [`wait`](Operation::wait), but calls `check` when a signal has interrupted the
    /// sleep, and a few times a second. If `check` fails, the operation is cancelled, and an
    /// acquisition that was granted meanwhile is released. A `canceller` ends the wait as in
    /// [`wait_cancellable`](Operation::wait_cancellable).
    ///
    /// The regular calls cover a signal that arrives between a check and the sleep. It is noticed
    /// at most a quarter of a second later.
    ///
    /// # Errors
    /// The outer error is the one of `check`, the inner one that of the operation.
    fn wait_interruptibly<E>(
        self,
        canceller: Option<&Canceller>,
        check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E>;
}

impl<T> OperationExt<T> for Operation<T> {
    fn untyped(self) -> Operation<Outcome> {
        self.finished_by(Ok)
    }

    fn deliver_to<W: Send + 'static>(self, queue: &Arc<CompletionQueue<W>>, tag: W) -> u64 {
        self.send_to(queue, tag)
    }

    fn deliver_soon<W: Send + 'static>(
        self,
        queue: &Arc<CompletionQueue<W>>,
        caller: Caller,
        tag: impl FnOnce(u64) -> W,
    ) -> Submitted {
        self.answer_or_send_to(queue, caller, tag)
    }

    fn wait_briefly(&mut self, caller: Caller) -> bool {
        self.try_inline(caller.patience)
    }

    fn wait_interruptibly<E>(
        self,
        canceller: Option<&Canceller>,
        check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E> {
        self.wait_checking(canceller, check)
    }
}
