//! The decoded answers of the scripts.

use std::time::Duration;

use super::process::Process;
use crate::error::LostReason;

/// The decoded answer to an [`Op`](super::Op), without the server's clock (the outbox keeps that).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// We hold the lock with the requested count. `ttl` is what remains on the server now.
    Acquired { ttl: Duration, token: Option<u64> },
    /// We hold the lock with the requested count, but only `got` replicas acknowledged it in time.
    NotReplicated { got: u32 },
    /// Another owner holds the lock, for `ttl` (`None`: the key has no expiry).
    Busy { ttl: Option<Duration> },
    /// There are fewer permits than were asked for, so the waiter has no place in the queue. `ttl` as
    /// of [`Reply::Busy`].
    Vain { ttl: Option<Duration> },
    /// Another owner has the lock, as in [`Reply::Busy`], or comes first. So many are before this
    /// place in the crowd.
    Parked { ttl: Option<Duration>, ahead: u32 },
    /// Our field or value is gone, so we do not hold the lock.
    Gone(LostReason),
    /// Other data, or another kind of lock, is stored at the name. The text describes it for
    /// people.
    Foreign(String),
    /// This copy arrived after its not-after. Nothing was done.
    Stale,
    /// The lock was ours and is free now. The number is how many subscribers were told. In a
    /// cluster without sharded channels, it covers one node only.
    Released(u32),
    /// It was done, but the server does not let this user tell waiters of it.
    Untold(Box<Reply>),
    /// The lock is ours with the lower count.
    Kept,
    /// One result per hold of the request, in order.
    Renewed(Vec<RenewReply>),
    /// Whether there was a lock to delete.
    Forced(bool),
    /// The current holders: of a read lock there may be several.
    Holders(Vec<Holder>),
    /// The permits of a semaphore.
    Counted(Permits),
    /// The counter was changed, now or by an earlier copy. `done`: how many callers of a trade were
    /// served, whether the counter was set (1 or 0), how many permits were drained, or the count
    /// before it was counted down. `left`: its number then, which is also the answer to
    /// [`Op::Read`](super::Op::Read).
    Changed {
        done: i64,
        left: i64,
        /// How many places are before the one that was asked for, if the client has it. The answer to a copy
        /// cannot tell: there may be one.
        ahead: Option<u32>,
    },
    /// A later change of this client arrived before this copy. Nothing was done.
    Superseded,
}

/// How many permits a semaphore has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Permits {
    /// The permits that nobody has. Negative when the semaphore was given fewer permits than are taken.
    pub available: i64,
    /// All of them, taken ones included. 0 if nobody has set the number yet.
    pub limit: i64,
}

#[cfg(test)]
impl Reply {
    /// The holder of a lock that has one.
    pub fn holder(self) -> Option<Holder> {
        match self {
            Reply::Holders(mut holders) if holders.len() == 1 => holders.pop(),
            _ => None,
        }
    }
}

/// The result for one hold of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewReply {
    /// Renewed.
    Kept,
    /// No longer ours.
    Gone(LostReason),
    /// The server refused the commands for this key. Try again.
    Failed,
}

/// The holder of a lock, as Redis reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner as it is stored in Redis. For our clients it is `<uuid>:<number>`, unless the kind
    /// of the lock or the caller's token says otherwise.
    pub owner: String,
    /// Its hold count. Always 1 for a simple lock: its holder counts levels in its own process.
    pub count: u32,
    /// How long the lock lives without a renewal. `None` if the key has no expiry.
    pub remaining: Option<Duration>,
    /// The process, by the name of its connections. `None` for owners that are not of redlatch
    /// (Redisson names no process), for tokens of the caller's own, for processes that are no
    /// longer connected, and where the server refuses `CLIENT LIST`.
    pub process: Option<Process>,
}
