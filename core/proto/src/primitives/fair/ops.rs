//! The calls of a fair lock. Once it is held it is a hash like any other.

use crate::primitives::facts::Topic;
use crate::primitives::ops::{Draft, Ops, Scripts, counter_life};
use crate::primitives::reentrant::ops as held;
use crate::tuning;
use crate::wire::ids::Name;
use crate::wire::names::queue_keys;
use crate::wire::op::{Acquire, Inspection, Release, Renewal, Seat};
use crate::wire::script::{Script, script};

static SCRIPTS: Scripts = Scripts {
    acquire: [script!(fair "fair_acquire" Hash); 2],
    release: [script!(fair "fair_release" Hash); 2],
    force: script!(fair "fair_force" Hash),
    inspect: script!(fair "fair_inspect" Hash),
    ..held::SCRIPTS
};

pub(crate) struct Fair;

impl Ops for Fair {
    fn scripts(&self) -> &'static Scripts {
        &SCRIPTS
    }

    fn topic(&self) -> Topic {
        Topic::Lock
    }

    fn keys(&self, name: &Name, call: &mut Draft<'_>) {
        call.key(name);
        queue_keys(name).iter().for_each(|key| call.key(key));
    }

    fn acquire(&self, op: &Acquire, call: &mut Draft<'_>) -> &'static Script {
        if op.count > 1 {
            return held::OPS.acquire(op, call);
        }
        call.key(&op.name);
        call.token_key(&op.name, op.fencing);
        queue_keys(&op.name).iter().for_each(|key| call.key(key));
        call.begin(op);
        let seat = op.payload.seat();
        kept(seat, call);
        call.channel(Topic::Lock, &op.name);
        match counter_life(op.fencing) {
            Some(life) => call.number(life),
            None => call.add(""),
        }
        earlier(op, seat, call);
        SCRIPTS.acquire[0]
    }

    fn release(&self, op: &Release, call: &mut Draft<'_>) -> &'static Script {
        if op.remaining > 0 {
            return held::OPS.release(op, call);
        }
        self.keys(&op.name, call);
        call.owner(&op.form, op.owner);
        call.channel(Topic::Lock, &op.name);
        SCRIPTS.release[0]
    }

    fn renew(&self, holds: &[Renewal], call: &mut Draft<'_>) -> &'static Script {
        held::renew(holds, call)
    }

    fn inspect(&self, name: &Name, what: Inspection, call: &mut Draft<'_>) -> &'static Script {
        if what != Inspection::Waiters {
            return held::OPS.inspect(name, what, call);
        }
        self.keys(name, call);
        SCRIPTS.inspect
    }
}

/// Adds how long a place is kept. 0: none is taken.
pub(crate) fn kept(seat: Option<&Seat>, call: &mut Draft<'_>) {
    match seat {
        Some(Seat { queues: true, .. }) => call.time(tuning::PLACE_KEPT),
        _ => call.number(0),
    }
}

/// Adds the earlier owners of a waiter.
pub(crate) fn earlier(op: &Acquire, seat: Option<&Seat>, call: &mut Draft<'_>) {
    for owner in seat.iter().flat_map(|seat| &seat.earlier) {
        call.owner(&op.form, *owner);
    }
}
