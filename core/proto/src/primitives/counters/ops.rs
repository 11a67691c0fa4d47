//! The calls of plain semaphores and count-down latches.

use super::change::Change;
use crate::primitives::ops::Draft;
use crate::value::Value;
use crate::wire::codes::{CHANGED, DENIED, PARKED, SUPERSEDED};
use crate::wire::ids::{Name, OwnerId};
use crate::wire::names::marker_key;
use crate::wire::op::Place;
use crate::wire::reply::Reply;
use crate::wire::script::{Script, script};

static TRADE: &Script = script!(counters "counter_trade" Permits);
static TRADE_IN_CROWD: &Script = script!(counters "counter_trade" Permits crowd);
static SET: &Script = script!(counters "counter_set" Permits);
static COUNT_DOWN: &Script = script!(counters "counter_down" Permits);
static READ: &Script = script!(counters "counter_read" Permits);

/// A change by the client `writer`, whose changes have growing numbers.
pub(crate) fn change(
    name: &Name,
    (writer, sequence): (OwnerId, u64),
    (change, place): (&Change, Option<Place>),
    call: &mut Draft<'_>,
) -> &'static Script {
    call.key(name);
    call.key(&marker_key(call.uuid, change.counter(), name, writer));
    call.not_after();
    call.number(sequence);
    call.channel(change.counter().topic(), name);
    let (word, number) = match change {
        Change::Trade { given, wanted } => {
            call.number(u64::from(*given));
            wanted.iter().for_each(|each| call.number(u64::from(*each)));
            let Some(place) = place else {
                return TRADE;
            };
            call.place(name, place);
            return TRADE_IN_CROWD;
        }
        Change::CountDown(by) => {
            call.number(u64::from(*by));
            return COUNT_DOWN;
        }
        Change::SetPermits(permits) => ("set", i64::from(*permits)),
        Change::AddPermits(permits) => ("add", *permits),
        Change::Drain => ("drain", 0),
        Change::SetCount(count) => ("latch", i64::from(*count)),
    };
    call.add(word);
    call.add(&number.to_string());
    SET
}

pub(crate) fn read(name: &Name, call: &mut Draft<'_>) -> &'static Script {
    call.key(name);
    READ
}

/// The answer to a change, or to a look at a counter. `place`: it was asked for a place.
pub(crate) fn reply((changes, place): (bool, bool), code: i64, details: &[Value]) -> Option<Reply> {
    // Without a word about its place, a client may have it.
    let ahead = place.then_some(1);
    match (code, details) {
        (CHANGED, [done, left]) => changed(done, left, ahead),
        (CHANGED, [done, left, Value::Int(DENIED)]) if changes => {
            Some(Reply::Untold(changed(done, left, ahead)?.into()))
        }
        (PARKED, [done, left, ahead]) if place => {
            changed(done, left, u32::try_from(ahead.int()?).ok())
        }
        (SUPERSEDED, []) if changes => Some(Reply::Superseded),
        _ => None,
    }
}

fn changed(done: &Value, left: &Value, ahead: Option<u32>) -> Option<Reply> {
    Some(Reply::Changed {
        done: done.int()?,
        left: left.int()?,
        ahead,
    })
}
