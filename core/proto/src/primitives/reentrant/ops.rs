//! The calls of a lock with one owner: a hash, or a string.

use crate::primitives::facts::Topic;
use crate::primitives::ops::{Draft, Ops, Scripts};
use crate::wire::ids::Name;
use crate::wire::names::learnt_key;
use crate::wire::op::{Acquire, HandOver, LeaseSample, Release, Renewal};
use crate::wire::script::{Script, script};

pub(crate) static SCRIPTS: Scripts = Scripts {
    acquire: [
        script!(reentrant "acquire" Hash),
        script!(reentrant "acquire" Hash crowd),
    ],
    release: [
        script!(reentrant "release" Hash),
        script!(reentrant "release" Hash crowd),
    ],
    lower: script!(reentrant "lower" Hash),
    renew: script!(reentrant "renew" Hash),
    force: script!(reentrant "force" Hash),
    inspect: script!(reentrant "inspect" Hash),
};
pub(crate) static ACQUIRE_MANY: &Script = script!(reentrant "acquire_many" Hash);
pub(crate) static RELEASE_MANY: &Script = script!(reentrant "release_many" Hash);
pub(crate) static HAND_OVER: &Script = script!(reentrant "handover" Hash);

pub(crate) const OPS: Lock = Lock {
    scripts: &SCRIPTS,
    learns: false,
};

pub(crate) struct Lock {
    pub(crate) scripts: &'static Scripts,
    /// Whether a second key keeps the learnt duration of the work.
    pub(crate) learns: bool,
}

impl Lock {
    fn learnt_key(&self, name: &Name, call: &mut Draft<'_>) {
        if self.learns {
            call.key(&learnt_key(name));
        }
    }
}

impl Ops for Lock {
    fn scripts(&self) -> &'static Scripts {
        self.scripts
    }

    fn topic(&self) -> Topic {
        Topic::Lock
    }

    fn acquire(&self, op: &Acquire, call: &mut Draft<'_>) -> &'static Script {
        call.key(&op.name);
        call.token_key(&op.name, op.fencing);
        self.learnt_key(&op.name, call);
        call.begin(op);
        call.count_and_counter(op);
        let [alone, in_crowd] = self.scripts.acquire;
        let Some(place) = op.payload.place() else {
            return alone;
        };
        call.place(&op.name, place);
        in_crowd
    }

    fn release(&self, op: &Release, call: &mut Draft<'_>) -> &'static Script {
        call.key(&op.name);
        self.learnt_key(&op.name, call);
        if op.remaining > 0 {
            call.lower(op);
            return self.scripts.lower;
        }
        call.owner(&op.form, op.owner);
        call.usual_channel(Topic::Lock, op);
        if let Some(LeaseSample { asked, took }) = op.lesson {
            call.number(took.as_secs());
            call.number(asked.as_secs());
        }
        let [alone, in_crowd] = self.scripts.release;
        let Some(place) = op.place else {
            return alone;
        };
        call.crowd(&op.name, place);
        in_crowd
    }
}

/// Several holds of hashes say once what their owners share.
pub(crate) fn renew(holds: &[Renewal], call: &mut Draft<'_>) -> &'static Script {
    let [_, _, ..] = holds else {
        return OPS.renew(holds, call);
    };
    holds.iter().for_each(|hold| call.key(&hold.name));
    call.words.owners(call.uuid, holds);
    call.times(holds);
    SCRIPTS.renew
}

/// The arguments of a hand-over.
pub(crate) fn hand_over(op: &HandOver, call: &mut Draft<'_>) {
    call.key(&op.name);
    call.token_key(&op.name, op.fencing);
    match &op.adopts {
        Some(token) => call.add(token),
        None => call.owner(&op.form, op.owner),
    }
    call.owner(&op.form, op.to);
    call.time(op.lease);
    call.not_after();
    call.counter_life(op.fencing);
}
