//! Batches: several locks of several callers in one script call, because the call costs more than
//! the work for a lock.
//!
//! Only plain cases are batched. The script does nothing for a lock that needs more, or for which
//! the server refuses a command. It names those locks, and each of them gets a call of its own.

use std::time::Duration;

use crate::value::Value;

use super::call::Call;
use super::codes::{ALONE, TAKEN};
use super::decode::{not_understood, released};
use super::ids::Name;
use super::names::channel_parts;
use super::op::{Acquire, Fencing, Op, Release};
use super::publish::{CLASSIC, Publish, verbs};
use super::reply::Reply;
use super::script::Script;
use super::words::{Words, whole_ms};
use crate::error::Result;
use crate::primitives::facts::{Shape, Topic};
use crate::primitives::{reentrant, simple};

/// Calls with equal keys and different locks can share a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKey {
    /// Acquires with a lease of this many ms.
    Acquire(Shape, u64),
    /// Releases that free their lock.
    Release(Shape, Spelling),
}

/// How a channel name follows from the name of a lock. A batch states it once for all its locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// With braces around the name.
    Braced,
    /// The name itself contains a brace.
    Own,
}

impl Spelling {
    fn of(name: &Name) -> Spelling {
        if name.contains('{') {
            Spelling::Own
        } else {
            Spelling::Braced
        }
    }
}

impl BatchKey {
    /// The batch key of `op`, if it can be batched.
    pub fn of(op: &Op, publish: Publish) -> Option<BatchKey> {
        match op {
            Op::Acquire(Acquire {
                form,
                count: 1,
                lease,
                fencing: Fencing::Off,
                replicas: 0,
                payload,
                ..
            }) if payload.place().is_none() => Some(BatchKey::Acquire(
                form.kind.facts().batch?,
                whole_ms(*lease),
            )),
            Op::Release(Release {
                name,
                form,
                remaining: 0,
                lesson: None,
                unmark: false,
                place: None,
                ..
            }) => {
                let shape = form.kind.facts().batch?;
                let usual = verbs(Topic::Lock, name, publish) == CLASSIC;
                usual.then(|| BatchKey::Release(shape, Spelling::of(name)))
            }
            _ => None,
        }
    }

    fn script(self) -> &'static Script {
        match self {
            BatchKey::Acquire(Shape::Hash, _) => reentrant::ops::ACQUIRE_MANY,
            BatchKey::Acquire(Shape::Plain, _) => simple::ops::ACQUIRE_MANY,
            BatchKey::Release(Shape::Hash, _) => reentrant::ops::RELEASE_MANY,
            BatchKey::Release(Shape::Plain, _) => simple::ops::RELEASE_MANY,
        }
    }
}

impl Call {
    /// One call for all of `ops`, which have this key and are for different locks. `not_after` as
    /// in [`Call::new`].
    pub fn many<'a>(
        sort: BatchKey,
        ops: impl Iterator<Item = &'a Op> + Clone,
        uuid: &str,
        not_after: u64,
    ) -> Call {
        let mut words = Words::for_calls(ops.clone().count());
        ops.clone()
            .filter_map(Op::name)
            .for_each(|name| words.add(name));
        let keys = words.count();
        match (sort, ops.clone().find_map(Op::name)) {
            (BatchKey::Acquire(_, lease), _) => {
                words.number(lease);
                words.number(not_after);
            }
            (BatchKey::Release(..), name) => {
                let [prefix, before, _, behind] =
                    channel_parts(Topic::Lock, name.map_or("", |name| name));
                words.parts(&[prefix, before]);
                words.add(behind);
            }
        }
        for op in ops {
            if let Op::Acquire(Acquire { owner, form, .. })
            | Op::Release(Release { owner, form, .. }) = op
            {
                words.owner(form, uuid, *owner);
            }
        }
        Call {
            script: sort.script(),
            keys,
            words,
        }
    }
}

/// Decodes the answer to a batch for `count` locks: the server's clock, and the result for each
/// lock. `None`: nothing was done for that lock, and it needs a call of its own.
///
/// # Errors
/// `server` if none of our scripts gives such an answer.
pub fn decode_many(
    sort: BatchKey,
    count: usize,
    value: &Value,
) -> Result<(Option<u64>, Vec<Option<Reply>>)> {
    read(sort, count, value).ok_or_else(|| not_understood(sort.script(), value))
}

fn read(sort: BatchKey, count: usize, value: &Value) -> Option<(Option<u64>, Vec<Option<Reply>>)> {
    let items = match value {
        Value::Int(number) => return read_short(sort, count, *number),
        Value::Array(items) => items,
        _ => return None,
    };
    match sort {
        BatchKey::Acquire(_, lease) => {
            let (clock, results) = items.split_first()?;
            let clock = u64::try_from(clock.int()?).ok()?;
            if results.is_empty() {
                return Some((Some(clock), vec![Some(Reply::Stale); count]));
            }
            Some((
                Some(clock),
                each(results, count, |number| taken(number, lease))?,
            ))
        }
        BatchKey::Release(..) => Some((None, each(items, count, freed)?)),
    }
}

/// Reads the common results, a single number as for one lock: all are taken, or all are freed and
/// no subscriber was told.
fn read_short(
    sort: BatchKey,
    count: usize,
    number: i64,
) -> Option<(Option<u64>, Vec<Option<Reply>>)> {
    let (clock, reply) = match sort {
        BatchKey::Acquire(_, lease) => (Some(u64::try_from(number).ok()?), taken(TAKEN, lease)?),
        BatchKey::Release(..) => (None, (number == 0).then_some(Reply::Released(0))?),
    };
    Some((clock, vec![Some(reply); count]))
}

fn each(
    results: &[Value],
    count: usize,
    reply: impl Fn(i64) -> Option<Reply>,
) -> Option<Vec<Option<Reply>>> {
    let one = |result: &Value| match result.int()? {
        ALONE => Some(None),
        number => reply(number).map(Some),
    };
    (results.len() == count).then(|| results.iter().map(one).collect())?
}

fn taken(number: i64, lease: u64) -> Option<Reply> {
    match number {
        TAKEN => Some(Reply::Acquired {
            ttl: Duration::from_millis(lease),
            token: None,
        }),
        -1 => Some(Reply::Busy { ttl: None }),
        ttl => Some(Reply::Busy {
            ttl: Some(Duration::from_millis(u64::try_from(ttl).ok()?)),
        }),
    }
}

fn freed(number: i64) -> Option<Reply> {
    released(number)
}

#[cfg(test)]
mod tests {
    use super::super::codes::DENIED;
    use super::super::{Form, Kind, LeaseSample};
    use super::*;
    use crate::error::ErrorKind;

    fn acquire(name: &str) -> Op {
        Op::Acquire(Acquire::of(
            name.into(),
            7,
            Form::default(),
            Duration::from_secs(3),
        ))
    }

    fn release(name: &str) -> Op {
        Op::Release(Release::of(name.into(), 7, Form::default()))
    }

    fn sort(op: &Op) -> Option<BatchKey> {
        BatchKey::of(op, Publish::Classic)
    }

    fn changed(mut op: Op, change: impl Fn(&mut Op)) -> Op {
        change(&mut op);
        op
    }

    #[test]
    fn only_the_plain_cases_go_together() {
        assert_eq!(
            sort(&acquire("a")),
            Some(BatchKey::Acquire(Shape::Hash, 3000))
        );
        assert_eq!(
            sort(&release("a")),
            Some(BatchKey::Release(Shape::Hash, Spelling::Braced))
        );
        assert_eq!(
            sort(&release("{a}")),
            Some(BatchKey::Release(Shape::Hash, Spelling::Own))
        );
        let kind = |kind| {
            move |op: &mut Op| match op {
                Op::Acquire(Acquire { form, .. }) | Op::Release(Release { form, .. }) => {
                    form.kind = kind
                }
                _ => {}
            }
        };
        assert_eq!(
            sort(&changed(acquire("a"), kind(Kind::Article))),
            Some(BatchKey::Acquire(Shape::Plain, 3000))
        );
        type Change<'a> = &'a dyn Fn(&mut Op);
        let odd: [(Op, Change<'_>); 7] = [
            (acquire("a"), &kind(Kind::Adaptive)),
            (release("a"), &kind(Kind::Adaptive)),
            (acquire("a"), &|op| {
                if let Op::Acquire(Acquire { count, .. }) = op {
                    *count = 0
                }
            }),
            (acquire("a"), &|op| {
                if let Op::Acquire(Acquire { fencing, .. }) = op {
                    *fencing = Fencing::Expiring
                }
            }),
            (acquire("a"), &|op| {
                if let Op::Acquire(Acquire { replicas, .. }) = op {
                    *replicas = 1
                }
            }),
            (release("a"), &|op| {
                if let Op::Release(Release { remaining, .. }) = op {
                    *remaining = 1
                }
            }),
            (release("a"), &|op| {
                if let Op::Release(Release { lesson, .. }) = op {
                    *lesson = Some(LeaseSample {
                        asked: Duration::ZERO,
                        took: Duration::ZERO,
                    });
                }
            }),
        ];
        for (op, change) in odd {
            let op = changed(op, change);
            assert_eq!(sort(&op), None, "{op:?}");
        }
        assert_eq!(BatchKey::of(&release("a"), Publish::Sharded), None);
    }

    #[test]
    fn every_answer_is_read_and_no_other() {
        let acquires = BatchKey::Acquire(Shape::Hash, 3000);
        let ints =
            |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        let read = |sort, numbers: &[i64]| decode_many(sort, 2, &ints(numbers)).ok();
        let lease = Duration::from_secs(3);
        assert_eq!(
            read(acquires, &[5, TAKEN, ALONE]),
            Some((
                Some(5),
                vec![
                    Some(Reply::Acquired {
                        ttl: lease,
                        token: None
                    }),
                    None
                ]
            ))
        );
        assert_eq!(
            read(acquires, &[5, -1, 7]),
            Some((
                Some(5),
                vec![
                    Some(Reply::Busy { ttl: None }),
                    Some(Reply::Busy {
                        ttl: Some(Duration::from_millis(7))
                    })
                ]
            ))
        );
        assert_eq!(
            read(acquires, &[5]),
            Some((Some(5), vec![Some(Reply::Stale), Some(Reply::Stale)]))
        );
        let releases = BatchKey::Release(Shape::Plain, Spelling::Braced);
        let short = |sort, number| decode_many(sort, 2, &Value::Int(number)).ok();
        let all = vec![
            Some(Reply::Acquired {
                ttl: lease,
                token: None
            });
            2
        ];
        assert_eq!(short(acquires, 5), Some((Some(5), all)));
        assert_eq!(
            short(releases, 0),
            Some((None, vec![Some(Reply::Released(0)); 2]))
        );
        assert_eq!((short(acquires, -5), short(releases, 1)), (None, None));
        assert_eq!(
            read(releases, &[3, ALONE]),
            Some((None, vec![Some(Reply::Released(3)), None]))
        );
        let untold = Reply::Untold(Reply::Released(0).into());
        assert_eq!(
            read(releases, &[DENIED, 0]),
            Some((None, vec![Some(untold), Some(Reply::Released(0))]))
        );
        for (sort, numbers) in [
            (acquires, &[][..]),
            (acquires, &[5, TAKEN]),
            (acquires, &[5, TAKEN, TAKEN, TAKEN]),
            (acquires, &[5, TAKEN, -2]),
            (acquires, &[-5, TAKEN, TAKEN]),
            (releases, &[0]),
            (releases, &[0, -1]),
            (releases, &[0, 1 << 40]),
        ] {
            assert_eq!(read(sort, numbers), None, "{sort:?} {numbers:?}");
        }
        let error = decode_many(acquires, 1, &Value::SimpleString("OK".to_owned()))
            .expect_err("no answer of ours");
        assert_eq!(error.kind(), ErrorKind::Server);
        assert!(error.message().contains("acquire_many"), "{error}");
    }

    #[test]
    fn a_call_has_each_owner_and_once_what_is_the_same_for_all() {
        let words = |sort, ops: [Op; 2]| {
            let (call, mut words) = (Call::many(sort, ops.iter(), "u", 99), Vec::new());
            call.words
                .each(|word| words.push(String::from_utf8_lossy(word).into_owned()));
            assert_eq!(
                (call.keys, &words[..2]),
                (
                    2,
                    &[ops[0].name(), ops[1].name()].map(|name| name.unwrap().to_string())[..]
                )
            );
            words[2..].join(" ")
        };
        let acquires = [acquire("a"), acquire("b")];
        assert_eq!(
            words(BatchKey::Acquire(Shape::Hash, 3000), acquires),
            "3000 99 u:7 u:7"
        );
        let releases = |sort, names: [&str; 2]| {
            words(BatchKey::Release(Shape::Hash, sort), names.map(release))
        };
        assert_eq!(
            releases(Spelling::Braced, ["a", "b"]),
            "redisson_lock__channel:{ } u:7 u:7"
        );
        assert_eq!(
            releases(Spelling::Own, ["{a}", "{b}"]),
            "redisson_lock__channel:  u:7 u:7"
        );
    }
}
