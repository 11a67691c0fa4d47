//! Decodes the server's answer into a [`Reply`].

use std::time::Duration;

use super::call::Call;
use super::codes::{
    ACQUIRED, BUSY, COUNTED, DELETED, DENIED, FORCED, FOREIGN, GONE, HOLDER, KEPT, PARKED,
    RELEASED, RENEWED, STALE, STOLEN, VAIN,
};
use super::op::{Acquire, Fencing, FollowUp, HandOver, Op, Release};
use super::process::Process;
use super::publish::Publish;
use super::reply::{Holder, Permits, RenewReply, Reply};
use super::script::Script;
use super::words::whole_ms;
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::primitives::counters;
use crate::value::Value;

/// Decodes the answer to `op`: the server's clock in ms when the script ran, if the answer has it,
/// and the result.
///
/// # Errors
/// `server` if none of our scripts gives such an answer.
pub fn decode(op: &Op, value: Value) -> Result<(Option<u64>, Reply)> {
    let reply = match op.follow_up(Duration::ZERO) {
        None => read(op, &value),
        Some(follow_up) => read_both(op, follow_up, &value),
    };
    let script = || Call::new(op, "", 0, Publish::Classic).script;
    reply.ok_or_else(|| not_understood(script(), &value))
}

/// The error for an answer that the script does not give.
pub(super) fn not_understood(script: &Script, value: &Value) -> Error {
    let text = format!(
        "the server's answer to the script {} cannot be understood: {}; is there a proxy that changes answers?",
        script.name,
        shortened(value),
    );
    Error::new(ErrorKind::Server, text)
}

fn read(op: &Op, value: &Value) -> Option<(Option<u64>, Reply)> {
    match value {
        Value::Int(number) => read_short(op, *number),
        Value::Array(items) => read_long(op, items),
        _ => None,
    }
}

/// Reads a common result, which is a single number: an array would cost the server ten times as
/// much.
fn read_short(op: &Op, number: i64) -> Option<(Option<u64>, Reply)> {
    match op {
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
        }) => {
            let lease = whole_ms(*lease);
            let clock = u64::try_from(number).ok()?.checked_sub(lease)?;
            Some((
                Some(clock),
                Reply::Acquired {
                    ttl: Duration::from_millis(lease),
                    token: None,
                },
            ))
        }
        Op::Release(Release { remaining: 0, .. }) => {
            Some((None, released(number.checked_sub(RELEASED)?)?))
        }
        _ => None,
    }
}

/// The answer to a release that so many have heard of.
pub(super) fn released(heard: i64) -> Option<Reply> {
    if heard == DENIED {
        return Some(Reply::Untold(Reply::Released(0).into()));
    }
    Some(Reply::Released(u32::try_from(heard).ok()?))
}

fn read_long(op: &Op, items: &[Value]) -> Option<(Option<u64>, Reply)> {
    let [clock, code, details @ ..] = items else {
        return None;
    };
    let clock = u64::try_from(clock.int()?).ok()?;
    let reply = match (code.int()?, details) {
        (STALE, []) if has_not_after(op) => Reply::Stale,
        (FOREIGN, [what]) if !matches!(op, Op::Release(_) | Op::Renew { .. }) => {
            Reply::Foreign(foreign(&what.text()?))
        }
        (code, details) => told(op, code, details)?,
    };
    Some(((clock > 0).then_some(clock), reply))
}

/// Whether a late copy of it does nothing.
fn has_not_after(op: &Op) -> bool {
    match op {
        Op::Release(op) => op.remaining > 0,
        Op::Inspect { .. } | Op::Read { .. } => false,
        _ => true,
    }
}

/// An answer that only some operations have.
fn told(op: &Op, code: i64, details: &[Value]) -> Option<Reply> {
    match op {
        Op::Acquire(op) => acquired(code, details).or_else(|| waiting(op, code, details)),
        Op::HandOver(_) => acquired(code, details),
        Op::Release(op) => match (code, details) {
            (KEPT, []) if op.remaining > 0 => Some(Reply::Kept),
            _ => not_ours(code, details),
        },
        Op::Renew { holds } => renewed(holds.len(), code, details),
        Op::Force { .. } => match (code, details) {
            (FORCED, [deleted]) => Some(Reply::Forced(deleted.int()? != 0)),
            _ => None,
        },
        Op::Inspect { .. } => match (code, details.as_chunks()) {
            (HOLDER, (each, [])) => Some(Reply::Holders(
                each.iter().map(holder).collect::<Option<_>>()?,
            )),
            _ => None,
        },
        Op::Count { .. } => match (code, details) {
            (COUNTED, [available, limit]) => Some(Reply::Counted(Permits {
                available: available.int()?,
                limit: limit.int()?,
            })),
            _ => None,
        },
        Op::Change { place, .. } => counters::ops::reply((true, place.is_some()), code, details),
        Op::Read { .. } => counters::ops::reply((false, false), code, details),
    }
}

fn acquired(code: i64, details: &[Value]) -> Option<Reply> {
    match (code, details) {
        (ACQUIRED, [ttl, token]) => Some(Reply::Acquired {
            ttl: remaining(ttl)?.unwrap_or_default(),
            token: self::token(token)?,
        }),
        _ => not_ours(code, details),
    }
}

fn not_ours(code: i64, details: &[Value]) -> Option<Reply> {
    match (code, details) {
        (GONE, [why]) => gone(why.int()?).map(Reply::Gone),
        _ => None,
    }
}

/// Why an acquisition has to wait.
fn waiting(op: &Acquire, code: i64, details: &[Value]) -> Option<Reply> {
    let [ttl, more @ ..] = details else {
        return None;
    };
    let ttl = remaining(ttl)?;
    match (code, more) {
        (BUSY, []) => Some(Reply::Busy { ttl }),
        (VAIN, []) => Some(Reply::Vain { ttl }),
        (PARKED, [ahead]) if op.payload.waits_in_line() => Some(Reply::Parked {
            ttl,
            ahead: u32::try_from(ahead.int()?).ok()?,
        }),
        _ => None,
    }
}

fn renewed(holds: usize, code: i64, details: &[Value]) -> Option<Reply> {
    match (code, details) {
        (RENEWED, []) => Some(Reply::Renewed(vec![RenewReply::Kept; holds])),
        (RENEWED, results) if results.len() == holds => Some(Reply::Renewed(
            results.iter().map(renewal).collect::<Option<_>>()?,
        )),
        _ => None,
    }
}

fn holder([owner, count, ttl]: &[Value; 3]) -> Option<Holder> {
    Some(Holder {
        owner: owner.text()?,
        count: count.text()?.parse().unwrap_or(u32::MAX),
        remaining: remaining(ttl)?,
        process: None,
    })
}

/// Reads the script's answer and that to the command behind it.
fn read_both(op: &Op, follow_up: FollowUp, value: &Value) -> Option<(Option<u64>, Reply)> {
    let Value::Array(both) = value else {
        return None;
    };
    let [answer, own] = both.as_slice() else {
        return None;
    };
    let (clock, mut reply) = read(op, answer)?;
    match (follow_up, &mut reply) {
        (FollowUp::Wait { replicas, .. }, reply) => {
            let got = u32::try_from(own.int()?).ok()?;
            if matches!(reply, Reply::Acquired { .. }) && got < replicas {
                *reply = Reply::NotReplicated { got };
            }
        }
        (FollowUp::Clients, Reply::Holders(holders)) => {
            fill_in(holders, &own.text().unwrap_or_default());
        }
        (FollowUp::Clients, _) => {}
    }
    Some((clock, reply))
}

/// Fills in the processes of holders, by an answer to `CLIENT LIST`: a line for each connection.
/// Copies of one process, from a snapshot, have one id: then nobody can tell which of them it is.
fn fill_in(holders: &mut [Holder], list: &str) {
    let names = list.split('\n').filter_map(|line| {
        line.split(' ')
            .find_map(|field| field.strip_prefix("name="))
    });
    let mut has_copies = vec![false; holders.len()];
    for process in names.filter_map(Process::parse) {
        for (holder, has_copies) in holders.iter_mut().zip(&mut has_copies) {
            if process.draws(&holder.owner) && !*has_copies {
                *has_copies = holder
                    .process
                    .as_ref()
                    .is_some_and(|known| *known != process);
                holder.process = (!*has_copies).then(|| process.clone());
            }
        }
    }
}

/// A PTTL. Negative: the key has no expiry.
fn remaining(value: &Value) -> Option<Option<Duration>> {
    Some(u64::try_from(value.int()?).ok().map(Duration::from_millis))
}

fn token(value: &Value) -> Option<Option<u64>> {
    let text = value.text()?;
    if text.is_empty() {
        Some(None)
    } else {
        text.parse().ok().map(Some)
    }
}

fn gone(number: i64) -> Option<LostReason> {
    match number {
        DELETED => Some(LostReason::Deleted),
        STOLEN => Some(LostReason::Stolen),
        _ => None,
    }
}

fn renewal(value: &Value) -> Option<RenewReply> {
    match value.int()? {
        0 => Some(RenewReply::Kept),
        1 => Some(RenewReply::Failed),
        number => gone(number).map(RenewReply::Gone),
    }
}

fn foreign(what: &str) -> String {
    match what {
        "rwlock" => "a read-write lock".into(),
        "lock" => "a hash that is not a read-write lock".into(),
        "hash" => "a hash, perhaps a lock of another kind,".into(),
        "counter" => "a fencing counter that is not a whole number below 2^53".into(),
        other => format!("a key of type {other}"),
    }
}

/// The beginning of an answer, enough to recognise it, whatever its size.
fn shortened(value: &Value) -> String {
    let all = format!("{value:?}");
    if all.chars().count() <= 80 {
        all
    } else {
        all.chars().take(80).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Form, Inspection, Kind, Renewal};
    use super::*;

    fn acquire() -> Op {
        Op::Acquire(Acquire::of(
            "o".into(),
            1,
            Form::default(),
            Duration::from_secs(1),
        ))
    }

    fn release(remaining: u32) -> Op {
        Op::Release(Release {
            remaining,
            ttl: Duration::from_secs(1),
            ..Release::of("o".into(), 1, Form::default())
        })
    }

    fn renew(count: usize) -> Op {
        let hold = Renewal {
            name: "o".into(),
            owner: 1,
            form: Form::default(),
            ttl: Duration::from_secs(1),
        };
        Op::Renew {
            holds: vec![hold; count],
        }
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn reply(op: &Op, value: &Value) -> Option<Reply> {
        decode(op, value.clone()).ok().map(|(clock, reply)| {
            assert!(matches!(clock, Some(5) | None), "{clock:?}");
            reply
        })
    }

    #[test]
    fn good_replies() {
        let second = Duration::from_secs(1);
        let acquired = |token| {
            Value::Array(vec![
                Value::Int(5),
                Value::Int(1),
                Value::Int(1000),
                bulk(token),
            ])
        };
        let cases = [
            (acquire(), ints(&[5, 0]), Reply::Stale),
            (
                acquire(),
                acquired(""),
                Reply::Acquired {
                    ttl: second,
                    token: None,
                },
            ),
            (acquire(), acquired("9007199254740991"), {
                Reply::Acquired {
                    ttl: second,
                    token: Some(9_007_199_254_740_991),
                }
            }),
            (
                acquire(),
                ints(&[5, 2, 1000]),
                Reply::Busy { ttl: Some(second) },
            ),
            (acquire(), ints(&[5, 2, -1]), Reply::Busy { ttl: None }),
            (
                acquire(),
                ints(&[5, 3, 2]),
                Reply::Gone(LostReason::Deleted),
            ),
            (
                acquire(),
                Value::Array(vec![Value::Int(5), Value::Int(4), bulk("list")]),
                Reply::Foreign("a key of type list".into()),
            ),
            (
                acquire(),
                Value::Int(1005),
                Reply::Acquired {
                    ttl: second,
                    token: None,
                },
            ),
            (release(0), Value::Int(5), Reply::Released(0)),
            (release(0), Value::Int(7), Reply::Released(2)),
            (
                release(0),
                Value::Int(5 + (1 << 31)),
                Reply::Untold(Reply::Released(0).into()),
            ),
            (
                release(0),
                ints(&[0, 3, 3]),
                Reply::Gone(LostReason::Stolen),
            ),
            (release(2), ints(&[5, 6]), Reply::Kept),
            (
                renew(4),
                ints(&[5, 7, 0, 1, 2, 3]),
                Reply::Renewed(vec![
                    RenewReply::Kept,
                    RenewReply::Failed,
                    RenewReply::Gone(LostReason::Deleted),
                    RenewReply::Gone(LostReason::Stolen),
                ]),
            ),
            (
                renew(3),
                ints(&[5, 7]),
                Reply::Renewed(vec![RenewReply::Kept; 3]),
            ),
            (renew(3), ints(&[5, 0]), Reply::Stale),
            (
                Op::Force {
                    name: "o".into(),
                    kind: Kind::Reentrant,
                },
                ints(&[5, 8, 1]),
                Reply::Forced(true),
            ),
            (
                Op::Inspect {
                    name: "o".into(),
                    kind: Kind::Reentrant,
                    what: Inspection::Owners,
                },
                ints(&[5, 9]),
                Reply::Holders(Vec::new()),
            ),
            (
                Op::Inspect {
                    name: "o".into(),
                    kind: Kind::Reentrant,
                    what: Inspection::Owners,
                },
                Value::Array(vec![
                    Value::Int(5),
                    Value::Int(9),
                    bulk("u:1"),
                    bulk("2"),
                    Value::Int(1000),
                ]),
                Reply::Holders(vec![Holder {
                    owner: "u:1".into(),
                    count: 2,
                    remaining: Some(second),
                    process: None,
                }]),
            ),
        ];
        for (op, value, expected) in cases {
            assert_eq!(reply(&op, &value), Some(expected), "{op:?}");
        }
    }

    #[test]
    fn holders_have_the_process_that_a_connection_names() {
        let op = Op::Inspect {
            name: "o".into(),
            kind: Kind::Read,
            what: Inspection::Holders,
        };
        let id = "0b0e6f2a-8d1c-4c7a-9e55";
        let (ours, others) = (format!("{id}-3d2b1a0f9c8e:1"), "u:1");
        let script = Value::Array(vec![
            Value::Int(5),
            Value::Int(9),
            bulk(&ours),
            bulk("1"),
            Value::Int(1000),
            bulk(others),
            bulk("2"),
            Value::Int(-1),
        ]);
        let list =
            format!("id=3 addr=1:2 name=shop;id={id};lang=c;pid=9;host=h age=1\nid=4 name=\n");
        let follow_up = op.follow_up(Duration::ZERO).unwrap();
        let processes = |answer: Value| {
            let both = Value::Array(vec![script.clone(), answer]);
            assert_eq!(follow_up.settled(both.clone()), both);
            let Some(Reply::Holders(holders)) = reply(&op, &both) else {
                panic!("no holders");
            };
            let pids = holders
                .iter()
                .map(|holder| holder.process.as_ref().map(|of| of.pid));
            pids.collect::<Vec<_>>()
        };
        assert_eq!(processes(bulk(&list)), [Some(9), None]);
        // A server may refuse to list its connections.
        let refusal = Value::ServerError(crate::value::ServerError::new("NOPERM", None));
        assert_eq!(processes(refusal.clone()), [None, None]);
        let both = Value::Array(vec![refusal.clone(), bulk(&list)]);
        assert_eq!(follow_up.settled(both), refusal);
    }

    #[test]
    fn copies_of_a_process_cannot_be_told_apart() {
        let id = "0b0e6f2a-8d1c-4c7a-9e55";
        let line = |host: &str| {
            format!("id=7 addr=1:2 name=shop;id={id};lang=c;pid=9;host={host} age=1\n")
        };
        let host = |owner: &str, list: &str| {
            let mut holders = [Holder {
                owner: owner.to_owned(),
                count: 1,
                remaining: None,
                process: None,
            }];
            fill_in(&mut holders, list);
            let [holder] = holders;
            holder.process.map(|process| process.host)
        };
        let owner = format!("{id}-3d2b1a0f9c8e:1");
        let list = line("one") + "id=8 name= age=2\n" + &line("one");
        assert_eq!(host(&owner, &list).as_deref(), Some("one"));
        assert_eq!(host("0b0e6f2b-8d1c-4c7a-9e55-3d2b1a0f9c8e:1", &list), None);
        assert_eq!(host("0b0e6f2a", &list), None);
        assert_eq!(host(&owner, &(list.clone() + &line("two"))), None);
        assert_eq!(host(&owner, &(list + &line("two") + &line("one"))), None);
    }

    #[test]
    fn replicas_are_counted_for_what_was_acquired() {
        let mut op = acquire();
        if let Op::Acquire(Acquire { replicas, .. }) = &mut op {
            *replicas = 2;
        }
        let acquired = Value::Array(vec![
            Value::Int(5),
            Value::Int(1),
            Value::Int(1000),
            bulk(""),
        ]);
        let both = |answer: &Value, got| Value::Array(vec![answer.clone(), Value::Int(got)]);
        for got in [2, 3] {
            let reply = reply(&op, &both(&acquired, got));
            assert_eq!(
                reply,
                Some(Reply::Acquired {
                    ttl: Duration::from_secs(1),
                    token: None
                })
            );
        }
        for got in [0, 1] {
            let expected = Reply::NotReplicated {
                got: u32::try_from(got).expect("small"),
            };
            assert_eq!(reply(&op, &both(&acquired, got)), Some(expected));
        }
        let busy = Reply::Busy {
            ttl: Some(Duration::from_secs(1)),
        };
        assert_eq!(reply(&op, &both(&ints(&[5, 2, 1000]), 0)), Some(busy));
        for bad in [acquired.clone(), both(&acquired, -1), both(&Value::Nil, 2)] {
            assert_eq!(reply(&op, &bad), None);
        }
    }

    #[test]
    fn anything_else_is_a_typed_error() {
        let values = [
            Value::Nil,
            Value::SimpleString("OK".to_owned()),
            Value::Int(1),
            Value::Int(-1),
            Value::Int(i64::MIN),
            bulk("[5, 0]"),
            ints(&[]),
            ints(&[5]),
            ints(&[-5, 0]),
            ints(&[5, 0, 0]),
            ints(&[5, 1]),
            ints(&[5, 1, 1000, 7]),
            ints(&[5, 3, 1]),
            ints(&[5, 3, 99]),
            ints(&[5, 3, 1 << 40]),
            ints(&[5, 4, 4]),
            ints(&[5, 5, 5]),
            ints(&[5, 7, 0, 4]),
            ints(&[5, 7, 0]),
            ints(&[5, 9, 1, 2]),
            ints(&[5, 10]),
            Value::Array(vec![Value::Int(5), Value::Int(1), Value::Int(1), bulk("x")]),
            Value::Array(vec![bulk("5"), Value::Int(0)]),
            Value::Array(vec![Value::Array(vec![Value::Nil; 10_000]); 2]),
        ];
        let ops = [
            acquire(),
            release(0),
            release(1),
            renew(2),
            Op::Force {
                name: "o".into(),
                kind: Kind::Reentrant,
            },
            Op::Inspect {
                name: "o".into(),
                kind: Kind::Reentrant,
                what: Inspection::Owners,
            },
        ];
        for op in &ops {
            for value in &values {
                let error = decode(op, value.clone())
                    .err()
                    .map(|error| (error.kind(), error.message().len() < 300));
                assert_eq!(error, Some((ErrorKind::Server, true)), "{op:?} {value:?}");
            }
        }
    }

    #[test]
    fn an_answer_to_another_operation_is_refused() {
        assert_eq!(reply(&release(1), &Value::Int(5)), None);
        assert_eq!(reply(&release(0), &Value::Int(4)), None);
        assert_eq!(reply(&release(0), &ints(&[5, 6])), None);
        assert_eq!(reply(&release(0), &ints(&[5, 0])), None);
        for (count, fencing) in [(2, Fencing::Off), (1, Fencing::Expiring)] {
            let mut op = acquire();
            if let Op::Acquire(Acquire {
                count: asked,
                fencing: drawn,
                ..
            }) = &mut op
            {
                (*asked, *drawn) = (count, fencing);
            }
            assert_eq!(
                reply(&op, &Value::Int(1005)),
                None,
                "without a token or the time that remains"
            );
        }
        assert_eq!(reply(&renew(3), &ints(&[5, 7, 0])), None);
    }
}
