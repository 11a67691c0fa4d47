//! One distributed lock over Redis, the same in Rust, Python, Node.js and C, and the same lock that
//! Java services take with Redisson's `RLock`.
//!
//! ```no_run
//! # async fn example() -> redlatch::Result<()> {
//! let client = redlatch::Client::connect("redis://localhost").await?;
//! let lock = client.lock("orders:42")?; // a name, no I/O
//!
//! let guard = lock.acquire().await?; // waits; renewed while it is held
//! tokio::select! {
//!     reason = guard.lost() => eprintln!("stop: {reason}"),
//!     () = work() => guard.release().await?, // or drop it, which releases in the background
//! }
//! client.close().await?;
//! # Ok(())
//! # }
//! # async fn work() {}
//! ```
//!
//! The same on a thread: every call that may go to Redis returns an [`Operation`], which is a future
//! for any runtime, and can also be [waited for](Operation::wait) on a thread.
//!
//! ```no_run
//! # fn example() -> redlatch::Result<()> {
//! # use redlatch::{Client, LockOptions};
//! # use std::time::Duration;
//! let client = Client::connect("redis://localhost").wait()?;
//! let lock = client.lock_with("orders:42", LockOptions::new().fencing(true))?;
//! if let Some(guard) = lock.try_acquire().wait()? {
//!     println!("token {:?}, good for {:?}", guard.fencing_token(), guard.remaining());
//!     guard.check()?; // local, no round trip
//!     guard.release().wait()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Do you need this lock?
//!
//! - To exclude threads or tasks of one process: no. A [`std::sync::Mutex`] is a thousand times faster.
//! - To exclude processes, for work that a second execution would only waste: yes, as above.
//! - To protect data that must never be written by two: yes, with [`fencing`](LockOptions::fencing).
//!   A program can be stopped between looking at its lock and writing; then only a resource that
//!   refuses the smaller of two [tokens](Guard::fencing_token) is safe, with this lock and with any other.
//! - To do one thing atomically to data that lies in Redis itself: a transaction or a script is simpler.
//!
//! # What is promised
//!
//! - **Exclusion.** At most one owner holds a name, as long as every holder stops when told `lost`. This
//!   assumes one Redis primary that loses no writes and whose clock neither jumps nor drifts beyond the
//!   allowance (a hundredth of the lease and 2 ms), and programs that use the same [`Kind`] on that name.
//! - **Told.** A holder hears within milliseconds that its key was deleted, evicted, flushed or forced (with
//!   client tracking; without it at the next renewal), and at its [deadline](Guard::deadline) at the latest,
//!   even with Redis out of reach.
//! - **No ghost holds.** An acquisition that times out, is cancelled or fails leaves nothing behind.
//!   Dropping a future is always allowed; a grant that was not taken is released.
//! - **Exact counts.** Any copy of a command that a client sends may arrive late, again or never: no count
//!   becomes wrong, and no other owner is touched.
//! - **No stuck locks.** The lock of a holder that dies is free after at most one lease (30 s by default).
//! - **Bounded wake-up.** Waiters sleep until a release is published; a lost message costs one reconnect or one
//!   [recheck](ClientOptions::recheck), never a lease.
//! - **No silent shrink.** Re-entering never shortens what remains.
//!
//! After a fail-over with asynchronous replication a lock can be granted twice;
//! [`replicas`](LockOptions::replicas) makes that rarer, and only a fencing token helps against it.
//!
//! # Owners
//!
//! As with tokio's `Mutex`, every acquisition is an owner of its own: two tasks exclude each other even
//! on one [`Lock`]. To hold a lock once more, ask its guard ([`Guard::reenter`]) or acquire with a
//! [`Key`] ([`AcquireOptions::key`]); the lock is free when all its levels are released.
//!
//! # Threads, runtimes, fork
//!
//! Each client has one thread for its connections, *the engine's thread*. It starts with the first request, renews
//! the leases, and runs no code of yours except callbacks, which must not block. So a blocked executor loses no
//! lock. A caller that is alone makes its call on its own thread, over a second connection
//! ([`direct`](ClientOptions::direct)).
//!
//! A forked child cannot use its parent's client: acquiring and checking fail with
//! [`ErrorKind::Forked`], releasing and dropping do nothing. A client that has not started its thread
//! works in every child.
// One module says why it needs it.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("redlatch is for Linux so far: its engine needs timerfd and a clock that counts suspend");

mod blocking;
#[cfg(test)]
mod campaign;
mod client;
mod clock;
mod driver;
mod engine;
mod error;
mod event;
#[cfg(test)]
mod fuzz;
mod gate;
mod guard;
mod hold;
mod later;
mod lock;
mod maps;
mod moment;
mod operation;
mod options;
mod owner;
mod process;
mod queue;
mod series;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod url;
mod wire;

pub use client::{Client, ClientBuilder};
pub use error::{Error, ErrorKind, LostReason, Result};
pub use event::{Event, Level, Stats};
pub use guard::Guard;
pub use lock::{Hold, Lock};
pub use operation::{Cancelled, Delivered, Operation, Pending};
pub use options::{
    AcquireOptions, ClientOptions, ClusterPubsub, LockOptions, OptionInfo, OptionValue, Pem, Protocol, Scope,
    Type, all_options, read_duration,
};
pub use owner::Key;
pub use queue::{Entry, Outcome, Queue, Serving};
pub use wire::{Holder, Kind};
