//! The calls that the engine makes, as plain data.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{Name, OwnerId};
use super::kind::{Form, Kind};
use crate::primitives::counters::change::Change;
pub use crate::primitives::payload::{Payload, Place, Seat, Special};
use crate::value::Value;

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

/// One script call. All are idempotent: any copy may arrive any number of times, late or never.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Take the lock (`count` 1 or 0), or set our hold count to `count`. The remaining time becomes
    /// max(remaining, `lease`); an adaptive lock uses what it learnt in place of `lease`. With
    /// `count` 0 no earlier copy can have taken the lock: if it has our owner nevertheless, it is
    /// busy. Carries a not-after.
    Acquire(Acquire),
    /// Replace `owner`, which has the lock, by another owner of ours, `to`, with count 1 and time
    /// `lease`. It is done already if `to` has the lock. Both owners have this form. Carries a
    /// not-after.
    HandOver(HandOver),
    /// Set our hold count to `remaining` with time `ttl`. If `remaining` is 0, free the lock and
    /// publish that. Carries a not-after if `remaining` is not 0.
    Release(Release),
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
        /// The place in the crowd of a client that takes permits: it is taken if there are not enough.
        place: Option<Place>,
    },
    /// Read a counter.
    Read { name: Name },
}

/// As [`Op::Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    pub name: Name,
    pub owner: OwnerId,
    pub form: Form,
    pub count: u32,
    pub lease: Duration,
    pub fencing: Fencing,
    /// How many replicas have to acknowledge it.
    pub replicas: u32,
    /// The part that only its primitive has.
    pub payload: Payload,
}

impl Acquire {
    /// The first acquisition of a lock, without anything that only some have.
    pub fn of(name: Name, owner: OwnerId, form: Form, lease: Duration) -> Acquire {
        Acquire {
            name,
            owner,
            form,
            count: 1,
            lease,
            fencing: Fencing::Off,
            replicas: 0,
            payload: Payload::default(),
        }
    }
}

/// As [`Op::HandOver`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    pub name: Name,
    pub owner: OwnerId,
    /// The lock is taken from this token, which any process may have chosen, and not from
    /// `owner`.
    pub adopts: Option<Arc<str>>,
    pub to: OwnerId,
    pub form: Form,
    pub lease: Duration,
    pub fencing: Fencing,
    /// As of an acquisition.
    pub replicas: u32,
}

/// As [`Op::Release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub name: Name,
    pub owner: OwnerId,
    pub form: Form,
    pub remaining: u32,
    pub ttl: Duration,
    /// The sample that an adaptive lock learns from when it is freed.
    pub lesson: Option<LeaseSample>,
    /// Whether the mark of a waiting writer goes too, if this owner has set it.
    pub unmark: bool,
    /// Whether it wakes the first in the crowd, and the place that is given up, which nobody may
    /// have.
    pub place: Option<OwnerId>,
}

impl Release {
    /// The release that frees the lock if it has this owner and form.
    pub fn of(name: Name, owner: OwnerId, form: Form) -> Release {
        Release {
            name,
            owner,
            form,
            remaining: 0,
            ttl: Duration::ZERO,
            lesson: None,
            unmark: false,
            place: None,
        }
    }
}

/// The sample that an adaptive lock learns from when it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSample {
    /// The lease that was asked for.
    pub asked: Duration,
    /// How long the lock was held.
    pub took: Duration,
}

impl Op {
    /// The lock, if the call is for a single one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Op::Acquire(Acquire { name, .. })
            | Op::HandOver(HandOver { name, .. })
            | Op::Release(Release { name, .. })
            | Op::Force { name, .. }
            | Op::Inspect { name, .. }
            | Op::Count { name, .. }
            | Op::Change { name, .. }
            | Op::Read { name } => Some(name),
            Op::Renew { holds } => match &holds[..] {
                [Renewal { name, .. }] => Some(name),
                _ => None,
            },
        }
    }

    /// The same call for other names.
    pub fn renamed(mut self, new: fn(&Name) -> Name) -> Op {
        match &mut self {
            Op::Acquire(Acquire { name, .. })
            | Op::HandOver(HandOver { name, .. })
            | Op::Release(Release { name, .. })
            | Op::Force { name, .. }
            | Op::Inspect { name, .. }
            | Op::Count { name, .. }
            | Op::Change { name, .. }
            | Op::Read { name } => *name = new(name),
            Op::Renew { holds } => holds
                .iter_mut()
                .for_each(|hold| hold.name = new(&hold.name)),
        }
        self
    }

    /// The lease that it asks for. A release that frees the lock asks for none.
    pub fn lease(&self) -> Option<Duration> {
        match self {
            Op::Acquire(Acquire { lease, .. }) | Op::HandOver(HandOver { lease, .. }) => {
                Some(*lease)
            }
            Op::Release(Release { ttl, remaining, .. }) => Some(*ttl).filter(|_| *remaining > 0),
            Op::Renew { holds } => holds.first().map(|hold| hold.ttl),
            Op::Force { .. } | Op::Inspect { .. } | Op::Count { .. } => None,
            Op::Change { .. } | Op::Read { .. } => None,
        }
    }

    /// How many replicas have to acknowledge its write.
    pub fn replicas(&self) -> u32 {
        match self {
            Op::Acquire(Acquire { replicas, .. }) | Op::HandOver(HandOver { replicas, .. }) => {
                *replicas
            }
            _ => 0,
        }
    }

    /// The command that is sent right behind the script, and whose answer belongs to the reply.
    /// `limit` is the time that the call has.
    pub fn follow_up(&self, limit: Duration) -> Option<FollowUp> {
        let lists = |what| matches!(what, Inspection::Holders | Inspection::Waiters);
        match (self, self.replicas()) {
            (Op::Inspect { what, .. }, _) => lists(*what).then_some(FollowUp::Clients),
            (_, 0) => None,
            (_, replicas) => Some(FollowUp::Wait {
                replicas,
                limit: limit / 2,
            }),
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
    /// that has such a queue (`Facts::queues`).
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
