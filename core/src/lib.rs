//! One distributed lock over Redis for Rust, Python, Node.js and C. It is wire-compatible with
//! Redisson's `RLock`, so Java services can share it.
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
//! The same on a thread: every call that may go to Redis returns an [`Operation`]. An operation is
//! a future for any runtime, and a thread can [wait for it](Operation::wait) as well.
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
//! - To exclude threads or tasks of one process: no. A [`std::sync::Mutex`] is a thousand times
//!   faster.
//! - To exclude processes, for work that would only be wasted if done twice: yes, as above.
//! - To protect data that two processes must never write at the same time: yes, with
//!   [`fencing`](LockOptions::fencing). A program can be stopped between checking its lock and
//!   writing. Then only a resource that refuses the smaller of two [tokens](Guard::fencing_token)
//!   is safe, with this lock and with any other.
//! - To change data in Redis itself atomically: a transaction or a script is simpler.
//!
//! # Promises
//!
//! - **Exclusion.** At most one owner holds a name, as long as every holder stops when told `lost`.
//!   This assumes one Redis primary that loses no writes, whose clock neither jumps nor drifts
//!   beyond the allowance (a hundredth of the lease and 2 ms), and programs that use the same
//!   [`Kind`] on that name.
//! - **Loss notification.** A holder hears within milliseconds that its key was deleted, evicted,
//!   flushed or forced (with client tracking; without it at the next renewal). It hears at its
//!   [deadline](Guard::deadline) at the latest, even when Redis cannot be reached.
//! - **No ghost holds.** An acquisition that times out, is cancelled or fails leaves nothing
//!   behind. Dropping a future is always allowed; a grant that was not taken is released.
//! - **Exact counts.** Commands may be duplicated, delayed or lost without corrupting a hold count
//!   or affecting another owner.
//! - **No stuck locks.** The lock of a holder that dies is free after at most one lease (30 s by
//!   default).
//! - **Bounded wake-up.** Waiters sleep until a release is published. A lost message costs one
//!   reconnect or one [recheck](ClientOptions::recheck), never a lease.
//! - **No silent shrink.** Re-entering never shortens the remaining time.
//!
//! After a fail-over with asynchronous replication a lock can be granted twice.
//! [`replicas`](LockOptions::replicas) makes that rarer; only a fencing token protects against it.
//!
//! # Owners
//!
//! As with tokio's `Mutex`, every acquisition is a separate owner: two tasks exclude each other
//! even on one [`Lock`]. To enter a lock again, call [`Guard::reenter`] on its guard, or acquire
//! with a [`ReentryKey`] ([`AcquireOptions::key`]). The lock is free when all its levels are
//! released.
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `testing` | no | `testing::MemoryServer`, a server in memory for tests of programs. It compiles Lua, by a C compiler |
//! | `tls` | no | encrypted connections (`rediss://`), by rustls and ring. Without it such a URL is an error that names the feature |
//! | `tracing` | yes | events, and spans of acquisitions, for subscribers of `tracing`. Without it [`Client::events`] has the events |
//!
//! TLS is not a default because ring is compiled by a C compiler, and because most clients of a lock
//! are in one network with their server. Sentinel and Cluster are always there: they are code of
//! this crate, and bring no other.
//!
//! # Threads, runtimes, fork
//!
//! Each client has one thread for its connections, *the I/O thread*. It starts with the first
//! request and renews the leases, so a blocked executor loses no lock. It runs none of your code
//! except callbacks, which must not block. A caller that is alone makes its call on its own thread,
//! over a second, inline connection ([`direct`](ClientOptions::direct)). A task does so in the first
//! poll of its [`Operation`], which then blocks; see there.
//!
//! A [`Canceller`] stops a waiting thread from another thread. Dropping a future cancels it.
//!
//! A forked child cannot use its parent's client: acquiring and checking fail with
//! [`ErrorKind::Forked`], releasing and dropping do nothing. A client that has not started its
//! thread works in every child.
// Files of `sys` need it and say why.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod blocking;
mod canceller;
mod client;
mod completion_queue;
mod counters;
mod credentials;
mod driver;
#[doc(hidden)] // for bindings; it may change in any release
pub mod embed;
#[doc(hidden)] // reached as `embed::exit`
pub mod exit;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod inspector;
mod lock;
mod log;
mod loss;
mod operation;
mod options;
mod owner;
mod parking;
mod primaries;
mod shared_call;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod sync;
mod sys;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
mod tuning;
mod wake_list;
mod yield_budget;

pub use canceller::Canceller;
// The pure part is a separate crate. Its modules keep their names here.
use redlatch_proto::{engine, error, event, hold, maps, moment, url, wire};
use sys::{clock, process};

pub use client::{Client, ClientBuilder};
pub use counters::{CountDownLatch, PlainSemaphore};
pub use credentials::Credentials;
pub use error::{Error, ErrorKind, LostReason, Result};
pub use event::{Event, Level, Stats};
pub use guard::{Guard, PlainPermit};
pub use lock::{Hold, Lock, RwLock, Semaphore};
pub use operation::Operation;
pub use options::{
    AcquireOptions, ClientOptions, ClusterPubsub, LockOptions, OptionValue, Pem, Protocol,
};
pub use owner::ReentryKey;
pub use wire::{Holder, Kind, Permits, Process};
