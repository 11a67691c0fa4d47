//! The calls of a semaphore whose permits have owners and leases.

use crate::primitives::facts::Topic;
use crate::primitives::fair::ops::{earlier, kept};
use crate::primitives::ops::{Draft, Ops, Scripts};
use crate::tuning;
use crate::wire::ids::Name;
use crate::wire::names::{permit_queue_keys, taken_key};
use crate::wire::op::{Acquire, Inspection, Release, Renewal};
use crate::wire::script::{Script, script};

static SCRIPTS: Scripts = Scripts {
    acquire: [
        script!(semaphore "permit_acquire" Permits),
        script!(semaphore "permit_acquire" Permits crowd),
    ],
    release: [script!(semaphore "permit_release" Permits); 2],
    lower: script!(semaphore "permit_lower" Permits),
    renew: script!(semaphore "permit_renew" Permits),
    force: script!(semaphore "permit_force" Permits),
    inspect: script!(semaphore "permit_inspect" Permits),
};
/// In fair mode. Permits that are taken are as all others.
static QUEUED: Scripts = Scripts {
    acquire: [script!(semaphore "permit_acquire" QueuedPermits); 2],
    release: [script!(semaphore "permit_release" QueuedPermits); 2],
    ..SCRIPTS
};
static WAITERS: &Script = script!(fair "fair_inspect" QueuedPermits);
pub(crate) static COUNT: &Script = script!(semaphore "permit_count" Permits);

pub(crate) struct Semaphore {
    pub(crate) fair: bool,
}

impl Semaphore {
    /// Adds the keys of the queue, if the call is one of a waiter in it.
    fn queue(&self, waits: bool, name: &Name, call: &mut Draft<'_>) -> &'static Scripts {
        if !self.fair || !waits {
            return &SCRIPTS;
        }
        permit_queue_keys(name).iter().for_each(|key| call.key(key));
        &QUEUED
    }
}

impl Ops for Semaphore {
    fn scripts(&self) -> &'static Scripts {
        &SCRIPTS
    }

    fn topic(&self) -> Topic {
        Topic::Semaphore
    }

    fn keys(&self, name: &Name, call: &mut Draft<'_>) {
        call.key(name);
        call.key(&taken_key(name));
    }

    fn acquire(&self, op: &Acquire, call: &mut Draft<'_>) -> &'static Script {
        self.keys(&op.name, call);
        call.token_key(&op.name, op.fencing);
        let scripts = self.queue(op.count <= 1, &op.name, call);
        call.begin(op);
        call.number(u64::from(op.count));
        call.number(u64::from(op.payload.limit()));
        call.time(tuning::PERMIT_MARGIN);
        call.channel(Topic::Semaphore, &op.name);
        if self.fair && op.count <= 1 {
            let seat = op.payload.seat();
            kept(seat, call);
            earlier(op, seat, call);
        }
        let Some(place) = op.payload.place() else {
            return scripts.acquire[0];
        };
        call.place(&op.name, place);
        scripts.acquire[1]
    }

    fn release(&self, op: &Release, call: &mut Draft<'_>) -> &'static Script {
        self.keys(&op.name, call);
        if op.remaining > 0 {
            call.lower(op);
            call.time(tuning::PERMIT_MARGIN);
            return SCRIPTS.lower;
        }
        let scripts = self.queue(true, &op.name, call);
        call.owner(&op.form, op.owner);
        match self.fair {
            true => call.channel(Topic::Semaphore, &op.name),
            false => call.usual_channel(Topic::Semaphore, op),
        }
        scripts.release[0]
    }

    fn renew(&self, holds: &[Renewal], call: &mut Draft<'_>) -> &'static Script {
        holds.iter().for_each(|hold| call.key(&hold.name));
        for hold in holds {
            call.key(&taken_key(&hold.name));
        }
        call.renewals(holds);
        call.time(tuning::PERMIT_MARGIN);
        SCRIPTS.renew
    }

    fn inspect(&self, name: &Name, what: Inspection, call: &mut Draft<'_>) -> &'static Script {
        self.keys(name, call);
        self.queue(what == Inspection::Waiters, name, call);
        match what {
            Inspection::Waiters if self.fair => WAITERS,
            _ => SCRIPTS.inspect,
        }
    }
}

/// How many permits there are.
pub(crate) fn count(name: &Name, limit: Option<u32>, call: &mut Draft<'_>) -> &'static Script {
    Semaphore { fair: false }.force(name, call);
    if let Some(limit) = limit {
        call.number(u64::from(limit));
    }
    COUNT
}
