//! The calls of the two sides of a read-write lock.

use crate::primitives::facts::Topic;
use crate::primitives::ops::{Draft, Ops, Scripts};
use crate::wire::ids::{Name, OwnerId};
use crate::wire::kind::{Form, Kind};
use crate::wire::names::{timeout_key, writer_mark_key};
use crate::wire::op::{Acquire, Payload, Release, Renewal};
use crate::wire::script::{Script, script};

pub(crate) static READ: Scripts = Scripts {
    acquire: [
        script!(read_write "rw_acquire" Read),
        script!(read_write "rw_acquire" Read mark),
    ],
    release: [script!(read_write "rw_release" Read); 2],
    lower: script!(read_write "rw_lower" Read),
    renew: script!(read_write "rw_renew" Read),
    force: script!(read_write "rw_force" Read),
    inspect: script!(read_write "rw_inspect" Read),
};
pub(crate) static WRITE: Scripts = Scripts {
    acquire: [
        script!(read_write "rw_acquire" Write),
        script!(read_write "rw_acquire" Write mark),
    ],
    release: [
        script!(read_write "rw_release" Write),
        script!(read_write "rw_release" Write mark),
    ],
    lower: script!(read_write "rw_lower" Write),
    renew: script!(read_write "rw_renew" Write),
    force: script!(read_write "rw_force" Write),
    inspect: script!(read_write "rw_inspect" Write),
};
static ACQUIRE_IN_CROWD: &Script = script!(read_write "rw_acquire" Write crowd);
static RELEASE_IN_CROWD: &Script = script!(read_write "rw_release" Write crowd);
static STEAL: &Script = script!(read_write "rw_steal" Write);

pub(crate) struct Sides {
    pub(crate) reads: bool,
}

impl Sides {
    /// Adds the key that keeps the time of a reader.
    fn timeout(&self, name: &Name, form: &Form, owner: OwnerId, call: &mut Draft<'_>) {
        if self.reads {
            call.key(&timeout_key(call.uuid, name, form, owner));
        }
    }
}

impl Ops for Sides {
    fn scripts(&self) -> &'static Scripts {
        if self.reads { &READ } else { &WRITE }
    }

    fn topic(&self) -> Topic {
        Topic::ReadWrite
    }

    fn acquire(&self, op: &Acquire, call: &mut Draft<'_>) -> &'static Script {
        let (under, steal, mark) = match op.payload {
            Payload::Read { under, mark } => (under, false, mark),
            Payload::Write { steal, mark, .. } => (None, steal, mark),
            _ => (None, false, None),
        };
        call.key(&op.name);
        self.timeout(&op.name, &op.form, op.owner, call);
        call.token_key(&op.name, op.fencing);
        if mark.is_some() {
            call.key(&writer_mark_key(&op.name));
        }
        call.begin(op);
        if steal {
            call.timeouts(&op.name);
            call.counter_life(op.fencing);
            return STEAL;
        }
        match (under, mark.filter(|_| !self.reads)) {
            (Some(writer), _) => {
                call.number(u64::from(op.count));
                call.owner(&Form::of(Kind::Write), writer);
            }
            (None, Some(mark)) => {
                call.number(u64::from(op.count));
                call.time(mark);
                call.counter_life(op.fencing);
            }
            (None, None) => call.count_and_counter(op),
        }
        // A crowd has no mark of writers that wait.
        if let Some(place) = op.payload.place().filter(|_| mark.is_none()) {
            call.place(&op.name, place);
            return ACQUIRE_IN_CROWD;
        }
        self.scripts().acquire[usize::from(mark.is_some())]
    }

    fn release(&self, op: &Release, call: &mut Draft<'_>) -> &'static Script {
        call.key(&op.name);
        self.timeout(&op.name, &op.form, op.owner, call);
        if op.unmark {
            call.key(&writer_mark_key(&op.name));
        }
        if op.remaining > 0 {
            call.lower(op);
            call.timeouts(&op.name);
            return self.scripts().lower;
        }
        call.owner(&op.form, op.owner);
        call.channel(Topic::ReadWrite, &op.name);
        call.timeouts(&op.name);
        if let Some(place) = op.place.filter(|_| !op.unmark && !self.reads) {
            call.places(&op.name);
            call.crowd(&op.name, place);
            return RELEASE_IN_CROWD;
        }
        self.scripts().release[usize::from(op.unmark)]
    }

    fn renew(&self, holds: &[Renewal], call: &mut Draft<'_>) -> &'static Script {
        holds.iter().for_each(|hold| call.key(&hold.name));
        for hold in holds {
            self.timeout(&hold.name, &hold.form, hold.owner, call);
        }
        call.renewals(holds);
        self.scripts().renew
    }

    fn more(&self, name: &Name, call: &mut Draft<'_>) {
        call.timeouts(name);
    }
}
