//! The wire protocol: the only place that knows the names of keys and channels, the Lua sources,
//! the order of arguments and the shape of replies.
//!
//! [`Op`] and [`Reply`] are plain data, so the engine can use them without I/O.

pub mod access;
mod batch;
#[cfg(test)]
mod batch_tests;
mod codes;
#[cfg(test)]
mod counter_tests;
mod decode;
#[cfg(test)]
mod encode;
#[cfg(test)]
mod fair_tests;
mod kind;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod model_tests;
pub mod names;
#[cfg(test)]
mod permit_tests;
mod process;
#[cfg(test)]
mod rw_tests;
mod script;
mod server_error;
pub mod servers;
#[cfg(test)]
mod simple_tests;
pub mod slots;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{LostReason, Thing};
use crate::value::Value;

pub use batch::{BatchKey, decode_many};
pub use decode::decode;
#[cfg(test)]
pub use encode::{encode, encode_many};
pub use kind::Kind;
pub use kind::{Form, Handover, Layout, LeaseSample, Side, Topic, first_owner};
pub use process::Process;
#[cfg(test)]
pub(crate) use script::timeout_key;
pub use script::{Call, ScriptId, is_shardable, slot_of};
pub use server_error::{code_of, refusal};

/// A validated lock name: UTF-8, 1 to 1,024 bytes.
pub type Name = Arc<str>;

/// An owner within its client: the last group of the uuid, and the number after it. Drawn for every
/// first acquisition, never reused.
pub type OwnerId = u64;

/// How a fencing token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fencing {
    /// No token.
    #[default]
    Off,
    /// A token. Its counter key expires 25 hours after its last use, unless the key already has no
    /// expiry.
    Expiring,
    /// A token. Its counter key has no expiry from then on.
    Persistent,
}

/// How a release is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publish {
    /// `PUBLISH`: to every node of a cluster.
    #[default]
    Classic,
    /// `SPUBLISH`: to the subscribers at the node of the lock.
    Sharded,
    /// Both, for subscribers of either sort.
    Both,
}

/// One script call. All are idempotent: any copy may arrive any number of times, late or never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Take the lock (`count` 1 or 0), or set our hold count to `count`. The remaining time becomes
    /// max(remaining, `lease`); an adaptive lock uses what it learnt in place of `lease`. With
    /// `count` 0 no earlier copy can have taken the lock: if it has our owner nevertheless, it is
    /// busy. Carries a not-after.
    Acquire {
        name: Name,
        owner: OwnerId,
        form: Form,
        count: u32,
        lease: Duration,
        fencing: Fencing,
        /// How many replicas have to acknowledge it.
        replicas: u32,
        /// For a reader: the owner of the write lock under which it reads.
        under: Option<OwnerId>,
        /// The earlier owners of its waiter, in a queue. It takes the place of one of them.
        earlier: Vec<OwnerId>,
        /// How many permits a semaphore gets that has none yet. 0: somebody else sets that.
        limit: u32,
        /// Whether it takes a place in the queue of a fair lock or semaphore that it does not get. A
        /// place that it has is kept for [`PLACE_KEPT`](crate::tuning::PLACE_KEPT) from now.
        queues: bool,
        /// Whether it ends the holds of all others first. Only the write side of a read-write lock
        /// can be stolen. A copy that arrives late would rob the next holder, so there is one copy.
        steal: bool,
        /// Whether the mark of waiting writers counts, in a read-write lock. A writer that is refused
        /// sets it for so long. A new reader is refused while it is there.
        mark: Option<Duration>,
        /// The place in the crowd that waits for a lock of [`Handover::Whole`]: it is taken if the
        /// lock is not, and given up with the lock.
        place: Option<Place>,
    },
    /// Replace `owner`, which has the lock, by another owner of ours, `to`, with count 1 and time
    /// `lease`. It is done already if `to` has the lock. Both owners have this form. Carries a
    /// not-after.
    HandOver {
        name: Name,
        owner: OwnerId,
        /// The lock is taken from this token, which any process may have chosen, and not from
        /// `owner`.
        adopts: Option<Arc<str>>,
        to: OwnerId,
        form: Form,
        lease: Duration,
        fencing: Fencing,
        /// As of an acquisition.
        replicas: u32,
    },
    /// Set our hold count to `remaining` with time `ttl`. If `remaining` is 0, free the lock and
    /// publish that. Carries a not-after if `remaining` is not 0.
    Release {
        name: Name,
        owner: OwnerId,
        form: Form,
        remaining: u32,
        ttl: Duration,
        /// The sample that an adaptive lock learns from when it is freed.
        lesson: Option<LeaseSample>,
        /// Whether the mark of a waiting writer goes too, if this owner has set it.
        unmark: bool,
        /// Whether it wakes the first in the crowd, and the place that is given up, which nobody may
        /// have.
        place: Option<OwnerId>,
    },
    /// Give every hold max(remaining, ttl). Never recreates a missing lock. All holds have one
    /// layout. Carries a not-after: a late copy must not keep the lock of a dead owner alive.
    Renew { holds: Vec<Renewal> },
    /// Delete the lock of any owner, and publish that. Carries a not-after: a late copy must not
    /// hit the next holder.
    Force { name: Name, kind: Kind },
    /// Read who has the lock, or who waits for it.
    Inspect {
        name: Name,
        kind: Kind,
        what: Inspection,
    },
    /// Read how many permits a semaphore has, after it was given `limit` permits if that is asked
    /// for. Carries a not-after.
    Count { name: Name, limit: Option<u32> },
    /// Change a counter. Carries a not-after. Copies have one sequence number: the first one that
    /// arrives changes the counter, and the others get its result, as long as the client's marker
    /// lives ([`MARKER_LIFE`](crate::tuning::MARKER_LIFE)).
    Change {
        name: Name,
        /// The identity of the client when the change was first sent. Each has a marker of its own.
        writer: OwnerId,
        /// Grows with each change of this client.
        sequence: u64,
        change: Change,
    },
    /// Read a counter.
    Read { name: Name },
}

/// A place in a crowd, and whether it takes a free lock although it is not the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub owner: OwnerId,
    pub first: bool,
}

/// A number that is all there is at its name: neither owners nor leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// The permits of a plain semaphore, as Redisson's `RSemaphore`.
    Semaphore,
    /// A count-down latch, as Redisson's `RCountDownLatch`.
    Latch,
}

impl Counter {
    /// The thing that it is for its callers.
    pub fn thing(self) -> Thing {
        match self {
            Counter::Semaphore => Thing::Semaphore,
            Counter::Latch => Thing::Latch,
        }
    }

    /// The channel on which its changes are published.
    pub fn topic(self) -> Topic {
        match self {
            Counter::Semaphore => Topic::Semaphore,
            Counter::Latch => Topic::Latch,
        }
    }
}

/// A change of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Give permits back, and then take some: for one caller after the other, as long as there are
    /// enough for the next one.
    Trade { given: u32, wanted: Vec<u32> },
    /// Give a semaphore so many permits if it has no number yet.
    SetPermits(u32),
    /// Add permits; a negative number takes them away, and the semaphore may get below 0.
    AddPermits(i64),
    /// Take all permits that there are.
    Drain,
    /// Give a latch this count if it has none.
    SetCount(u32),
    /// Count a latch down.
    CountDown(u32),
}

impl Change {
    /// Gives permits back and takes none.
    pub fn give(permits: u32) -> Self {
        Change::Trade {
            given: permits,
            wanted: Vec::new(),
        }
    }

    /// Whether it goes on when its caller leaves: it says what has happened already.
    pub fn is_kept(&self) -> bool {
        matches!(self, Change::Trade { .. } | Change::CountDown(_))
    }

    pub fn counter(&self) -> Counter {
        match self {
            Change::Trade { .. } | Change::SetPermits(_) => Counter::Semaphore,
            Change::AddPermits(_) | Change::Drain => Counter::Semaphore,
            Change::SetCount(_) | Change::CountDown(_) => Counter::Latch,
        }
    }
}

impl Op {
    /// The lock, if the call is for a single one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Op::Acquire { name, .. }
            | Op::HandOver { name, .. }
            | Op::Release { name, .. }
            | Op::Force { name, .. }
            | Op::Inspect { name, .. }
            | Op::Count { name, .. }
            | Op::Change { name, .. }
            | Op::Read { name, .. } => Some(name),
            Op::Renew { holds } => match &holds[..] {
                [Renewal { name, .. }] => Some(name),
                _ => None,
            },
        }
    }

    /// How many replicas have to acknowledge its write.
    pub fn replicas(&self) -> u32 {
        match self {
            Op::Acquire { replicas, .. } | Op::HandOver { replicas, .. } => *replicas,
            _ => 0,
        }
    }

    /// The command that is sent right behind the script, and whose answer belongs to the reply.
    /// `limit` is the time that the call has.
    pub fn follow_up(&self, limit: Duration) -> Option<FollowUp> {
        match self {
            Op::Acquire { replicas: 1.., .. } | Op::HandOver { replicas: 1.., .. } => {
                Some(FollowUp::Wait {
                    replicas: self.replicas(),
                    limit: limit / 2,
                })
            }
            Op::Inspect {
                what: Inspection::Holders | Inspection::Waiters,
                ..
            } => Some(FollowUp::Clients),
            _ => None,
        }
    }

    /// The data layout that the call works on.
    fn layout(&self) -> Layout {
        match self {
            Op::Acquire {
                form, count: 2.., ..
            }
            | Op::Release {
                form,
                remaining: 1..,
                ..
            } => form.kind.layout().held_as(),
            Op::Acquire { form, .. } | Op::HandOver { form, .. } | Op::Release { form, .. } => {
                form.kind.layout()
            }
            Op::Renew { holds } => holds
                .first()
                .map_or(Layout::Hash, |hold| hold.form.kind.layout().held_as()),
            Op::Inspect {
                kind,
                what: Inspection::Waiters,
                ..
            } => kind.layout(),
            Op::Inspect { kind, .. } => kind.layout().held_as(),
            // The message of a semaphore goes to all that wait.
            Op::Force { kind, .. } if kind.takes_permits() => Layout::Permits,
            Op::Force { kind, .. } => kind.layout(),
            Op::Count { .. } => Layout::Permits,
            // The scripts of counters have no layouts.
            Op::Change { .. } | Op::Read { .. } => Layout::Permits,
        }
    }
}

/// Selects what is read of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspection {
    /// Its holders, without their processes.
    Owners,
    /// Its holders, and which processes they are.
    Holders,
    /// The waiters in its queue in Redis, in order, and which processes they are. The kind is one
    /// that has such a queue (`Layout::queues`).
    Waiters,
}

/// A command that belongs to a call, as scripts may not run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowUp {
    /// Wait until so many replicas have the write.
    Wait { replicas: u32, limit: Duration },
    /// List the connections of the server.
    Clients,
}

impl FollowUp {
    /// The words of the command.
    pub fn words(self) -> Vec<String> {
        match self {
            FollowUp::Wait { replicas, limit } => {
                // Without a limit, 0, it waits for ever.
                let limit = limit.as_millis().max(1).to_string();
                vec!["WAIT".to_owned(), replicas.to_string(), limit]
            }
            FollowUp::Clients => vec!["CLIENT".to_owned(), "LIST".to_owned()],
        }
    }

    /// The answers to script and command, or the one that refuses the call. A server may refuse to
    /// list its connections: then holders are told without their processes.
    pub(crate) fn settled(self, mut answers: Value) -> Value {
        if let Value::Array(both) = &mut answers {
            let counted = match self {
                FollowUp::Wait { .. } => 2,
                FollowUp::Clients => 1,
            };
            let is_refusal = |answer: &Value| matches!(answer, Value::ServerError(_));
            if let Some(at) = both.iter().take(counted).position(is_refusal) {
                return both.swap_remove(at);
            }
        }
        answers
    }
}

/// One hold of an [`Op::Renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    pub name: Name,
    pub owner: OwnerId,
    pub form: Form,
    pub ttl: Duration,
}

/// The decoded answer to an [`Op`], without the server's clock (the outbox keeps that).
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
    /// [`Op::Read`].
    Changed { done: i64, left: i64 },
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
