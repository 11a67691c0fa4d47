//! Encodes answers as our scripts give them, for the simulation: the inverse of `decode`.

use std::time::Duration;

use crate::value::Value;

use super::codes::{
    ACQUIRED, ALONE, BUSY, CHANGED, COUNTED, FORCED, FOREIGN, GONE, HOLDER, KEPT, PARKED, RELEASED,
    RENEWED, STALE, SUPERSEDED, TAKEN, VAIN,
};
use super::words::whole_ms;
use super::{
    Acquire, BatchKey, Fencing, FollowUp, HandOver, Op, OwnerId, Payload, Permits, Release,
    RenewReply, Reply,
};

/// What tests look at.
impl Payload {
    pub fn mark(&self) -> Option<Duration> {
        match self {
            Payload::Read { mark, .. } | Payload::Write { mark, .. } => *mark,
            _ => None,
        }
    }

    pub fn under(&self) -> Option<OwnerId> {
        match self {
            Payload::Read { under, .. } => *under,
            _ => None,
        }
    }

    pub fn steals(&self) -> bool {
        matches!(self, Payload::Write { steal: true, .. })
    }
}

/// The answer to the script of `op`.
pub fn encode(op: &Op, server_ms: u64, reply: &Reply) -> Value {
    let asked = match op.follow_up(Duration::ZERO) {
        None => return answer(op, server_ms, reply),
        Some(FollowUp::Clients) => {
            let list = Value::BulkString(Vec::new());
            return Value::Array(vec![answer(op, server_ms, reply), list]);
        }
        Some(FollowUp::Wait { replicas, .. }) => replicas,
    };
    let (reply, got) = match (reply, op) {
        (Reply::NotReplicated { got }, Op::Acquire(Acquire { lease, .. })) => (
            Reply::Acquired {
                ttl: *lease,
                token: None,
            },
            *got,
        ),
        (reply, _) => (reply.clone(), asked),
    };
    Value::Array(vec![answer(op, server_ms, &reply), Value::Int(got.into())])
}

fn answer(op: &Op, server_ms: u64, reply: &Reply) -> Value {
    let now = int(server_ms);
    let long = |code, details: Vec<Value>| {
        Value::Array([vec![now.clone(), Value::Int(code)], details].concat())
    };
    match (op, reply) {
        (
            Op::Acquire(Acquire {
                lease,
                fencing: Fencing::Off,
                count: 1,
                ..
            })
            | Op::HandOver(HandOver {
                lease,
                fencing: Fencing::Off,
                ..
            }),
            Reply::Acquired { ttl, token: None },
        ) if ttl.as_millis() == whole_ms(*lease).into() => int(server_ms + whole_ms(*lease)),
        (_, Reply::Acquired { ttl, token }) => {
            let token = token.map(|token| token.to_string()).unwrap_or_default();
            long(
                ACQUIRED,
                vec![millis(*ttl), Value::BulkString(token.into())],
            )
        }
        (_, Reply::Busy { ttl }) => long(BUSY, vec![ttl.map_or(Value::Int(-1), millis)]),
        (_, Reply::Vain { ttl }) => long(VAIN, vec![ttl.map_or(Value::Int(-1), millis)]),
        (_, Reply::Parked { ttl, ahead }) => long(
            PARKED,
            vec![
                ttl.map_or(Value::Int(-1), millis),
                Value::Int((*ahead).into()),
            ],
        ),
        (Op::Release(Release { remaining: 0, .. }), Reply::Gone(why)) => Value::Array(vec![
            Value::Int(0),
            Value::Int(GONE),
            Value::Int(why.number().into()),
        ]),
        (_, Reply::Gone(why)) => long(GONE, vec![Value::Int(why.number().into())]),
        (_, Reply::Foreign(what)) => long(FOREIGN, vec![Value::BulkString(what.as_bytes().into())]),
        (_, Reply::Stale) => long(STALE, vec![]),
        (_, Reply::Released(heard)) => Value::Int(RELEASED + i64::from(*heard)),
        (_, Reply::Kept) => long(KEPT, vec![]),
        (_, Reply::Renewed(holds)) if holds.iter().all(|hold| *hold == RenewReply::Kept) => {
            long(RENEWED, vec![])
        }
        (_, Reply::Renewed(holds)) => long(RENEWED, holds.iter().map(renewal).collect()),
        (_, Reply::Forced(deleted)) => long(FORCED, vec![Value::Int((*deleted).into())]),
        (_, Reply::Holders(holders)) => {
            let each = holders.iter().flat_map(|holder| {
                [
                    Value::BulkString(holder.owner.clone().into()),
                    Value::BulkString(holder.count.to_string().into()),
                    holder.remaining.map_or(Value::Int(-1), millis),
                ]
            });
            long(HOLDER, each.collect())
        }
        (_, Reply::Counted(Permits { available, limit })) => {
            long(COUNTED, vec![Value::Int(*available), Value::Int(*limit)])
        }
        (_, Reply::Changed { done, left, ahead }) => {
            let code = if ahead.is_some() { PARKED } else { CHANGED };
            let ahead = ahead.map(|ahead| Value::Int(ahead.into()));
            let numbers = [Value::Int(*done), Value::Int(*left)];
            long(code, numbers.into_iter().chain(ahead).collect())
        }
        (_, Reply::Superseded) => long(SUPERSEDED, vec![]),
        (_, Reply::NotReplicated { .. } | Reply::Untold(_)) => panic!("{op:?} is not for models"),
    }
}

/// The answer to a batch: a reply for each lock, or `None` if the lock has to be handled alone. An
/// empty slice means that the batch arrived too late.
pub fn encode_many(sort: BatchKey, server_ms: u64, replies: &[Option<Reply>]) -> Value {
    let acquires = matches!(sort, BatchKey::Acquire(..));
    let usual = |reply: &Option<Reply>| match reply {
        Some(Reply::Acquired { .. }) => acquires,
        Some(Reply::Released(0)) => !acquires,
        _ => false,
    };
    if !replies.is_empty() && replies.iter().all(usual) {
        return if acquires {
            int(server_ms)
        } else {
            Value::Int(0)
        };
    }
    let clock = acquires.then(|| int(server_ms));
    let one = |reply: &Option<Reply>| match reply {
        None => Value::Int(ALONE),
        Some(Reply::Acquired { .. }) => Value::Int(TAKEN),
        Some(Reply::Busy { ttl }) => ttl.map_or(Value::Int(-1), millis),
        Some(Reply::Released(heard)) => Value::Int((*heard).into()),
        Some(other) => panic!("{other:?} is told alone"),
    };
    Value::Array(clock.into_iter().chain(replies.iter().map(one)).collect())
}

fn renewal(hold: &RenewReply) -> Value {
    Value::Int(match hold {
        RenewReply::Kept => 0,
        RenewReply::Failed => 1,
        RenewReply::Gone(why) => why.number().into(),
    })
}

fn int(number: u64) -> Value {
    Value::Int(number.cast_signed())
}

fn millis(time: Duration) -> Value {
    Value::Int(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
