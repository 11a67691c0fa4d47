//! What goes to Redis and what comes back: the only place that knows key and channel names, Lua
//! texts, argument orders and the shape of replies.
//!
//! [`Op`] and [`Reply`] are plain data, so that the engine can speak of them without doing I/O.

mod codes;
mod decode;
#[cfg(test)]
mod encode;
mod kind;
#[cfg(test)]
mod live_tests;
mod many;
#[cfg(test)]
mod many_tests;
#[cfg(test)]
mod model_tests;
pub(crate) mod names;
mod refusal;
mod script;
#[cfg(test)]
mod simple_tests;
pub(crate) mod slots;

use std::sync::Arc;
use std::time::Duration;

use crate::error::LostReason;

pub(crate) use decode::decode;
#[cfg(test)]
pub(crate) use encode::{encode, encode_many};
pub use kind::Kind;
pub(crate) use kind::{Form, Layout, Lesson};
pub(crate) use many::{Sort, decode_many};
pub(crate) use refusal::refusal;
pub(crate) use script::{Call, ScriptId, is_shardable, slot_of};

/// A validated lock name: UTF-8, 1 to 1,024 bytes.
pub(crate) type Name = Arc<str>;

/// The number behind the client's uuid in an owner: drawn for every first acquisition, never reused.
pub(crate) type OwnerId = u64;

/// How a fencing token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fencing {
    /// No token.
    #[default]
    Off,
    /// A token whose counter key expires 25 hours after its last use.
    Expiring,
    /// A token whose counter key stays for ever.
    Persistent,
}

/// How a release is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Publish {
    /// To every node of a cluster.
    #[default]
    Classic,
    /// To whoever listens at the node of the lock.
    Sharded,
    /// Both, for listeners of both sorts.
    Both,
}

/// One script call. All are idempotent: any copy may arrive any number of times, late or never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// Take the lock (`count` 1, or 0 if no copy can have taken it before: then even our owner there
    /// is somebody else) or set our hold count to `count`; remaining time becomes max(remaining,
    /// `lease`), where an adaptive lock puts what it learnt in place of `lease`.
    /// Carries a not-after.
    Acquire {
        name: Name,
        owner: OwnerId,
        form: Form,
        count: u32,
        lease: Duration,
        fencing: Fencing,
        /// How many replicas have to acknowledge it.
        replicas: u32,
    },
    /// Put another owner of ours, `to`, with count 1 and time `lease`, in the place of `owner`, who has
    /// the lock; done already if `to` has it. Both have this form. Carries a not-after.
    HandOver { name: Name, owner: OwnerId, to: OwnerId, form: Form, lease: Duration, fencing: Fencing },
    /// Set our hold count to `remaining` with time `ttl`, or free the lock and publish when it is 0.
    /// Carries a not-after when `remaining` is not 0.
    Release {
        name: Name,
        owner: OwnerId,
        form: Form,
        remaining: u32,
        ttl: Duration,
        /// What an adaptive lock learns when it is freed.
        lesson: Option<Lesson>,
    },
    /// Give every hold max(remaining, ttl); never recreates what is gone. All are of one layout. Carries a
    /// not-after: a late copy must not let the lock of somebody who has died live on.
    Renew { holds: Vec<Renewal> },
    /// Delete the lock whoever holds it, and publish. Carries a not-after: a late copy must not hit
    /// the next holder.
    Force { name: Name, kind: Kind },
    /// Read who holds the lock.
    Inspect { name: Name, kind: Kind },
}

impl Op {
    /// The lock, if it is one.
    pub(crate) fn name(&self) -> Option<&Name> {
        match self {
            Op::Acquire { name, .. }
            | Op::HandOver { name, .. }
            | Op::Release { name, .. }
            | Op::Force { name, .. }
            | Op::Inspect { name, .. } => Some(name),
            Op::Renew { holds } => match &holds[..] {
                [Renewal { name, .. }] => Some(name),
                _ => None,
            },
        }
    }

    /// How many replicas have to acknowledge what it writes.
    pub(crate) fn replicas(&self) -> u32 {
        if let Op::Acquire { replicas, .. } = self { *replicas } else { 0 }
    }

    /// How the data looks that the call works on.
    fn layout(&self) -> Layout {
        match self {
            Op::Acquire { form, .. } | Op::HandOver { form, .. } | Op::Release { form, .. } => {
                form.kind.layout()
            }
            Op::Renew { holds } => holds.first().map_or(Layout::Hash, |hold| hold.form.kind.layout()),
            Op::Force { kind, .. } | Op::Inspect { kind, .. } => kind.layout(),
        }
    }
}

/// One hold of an [`Op::Renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) name: Name,
    pub(crate) owner: OwnerId,
    pub(crate) form: Form,
    pub(crate) ttl: Duration,
}

/// The decoded answer to an [`Op`], without the server's clock (the driver keeps that).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// We hold the lock with the asked count. `ttl` is what remains on the server now.
    Acquired { ttl: Duration, token: Option<u64> },
    /// We hold the lock with the asked count, but only so many replicas acknowledged it in time.
    NotReplicated { got: u32 },
    /// Another owner holds it, for `ttl` (`None`: the key has no expiry).
    Busy { ttl: Option<Duration> },
    /// Re-entry: our field is gone.
    Gone(LostReason),
    /// Other data, or another kind of lock, lies at the name: what it is, for people.
    Foreign(String),
    /// This copy came after its not-after; nothing was done.
    Stale,
    /// The lock was ours and is free now; so many listeners were told. In a cluster without sharded
    /// channels, that is those of one node.
    Released(u32),
    /// The lock is ours with the lower count.
    Kept,
    /// One result per hold of the request, in order.
    Renewed(Vec<RenewReply>),
    /// Whether there was a lock to delete.
    Forced(bool),
    /// Who holds it, if anybody does.
    Holder(Option<Holder>),
}

/// What happened to one hold of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RenewReply {
    /// Renewed.
    Kept,
    /// Not ours any more.
    Gone(LostReason),
    /// The server refused the commands for this key; try again.
    Failed,
}

/// Who holds a lock, as Redis tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The owner as it stands in Redis: of our clients `<client uuid>:<number>`, unless the kind of
    /// the lock or the caller's token says otherwise.
    pub owner: String,
    /// Its hold count; 1 for a simple lock, whose holder counts for itself.
    pub count: u32,
    /// How long the lock lives without a renewal; `None` if the key has no expiry.
    pub remaining: Option<Duration>,
}
