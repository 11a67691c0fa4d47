//! How a primitive writes its calls, and the arguments that several have in common.

use std::time::Duration;

use super::facts::Topic;
use crate::wire::ids::{Name, OwnerId};
use crate::wire::kind::Form;
use crate::wire::names::{channel_parts, crowd_key, timeout_prefix, token_key};
use crate::wire::op::{Acquire, Fencing, Inspection, Place, Release, Renewal};
use crate::wire::publish::{CLASSIC, Publish, verbs};
use crate::wire::script::Script;
use crate::wire::words::{Words, whole_ms};

/// The scripts of a primitive with owners.
pub(crate) struct Scripts {
    /// The usual one, and its variant: in a crowd, or with the mark of waiting writers.
    pub(crate) acquire: [&'static Script; 2],
    pub(crate) release: [&'static Script; 2],
    pub(crate) lower: &'static Script,
    pub(crate) renew: &'static Script,
    pub(crate) force: &'static Script,
    pub(crate) inspect: &'static Script,
}

/// The calls of a primitive with owners. Each method adds the keys and the arguments of a call, and
/// returns its script.
pub(crate) trait Ops: Sync {
    fn scripts(&self) -> &'static Scripts;
    fn acquire(&self, op: &Acquire, call: &mut Draft<'_>) -> &'static Script;
    fn release(&self, op: &Release, call: &mut Draft<'_>) -> &'static Script;

    /// The channel on which its releases are published.
    fn topic(&self) -> Topic;

    /// Adds the keys of a call that concerns no owner.
    fn keys(&self, name: &Name, call: &mut Draft<'_>) {
        call.key(name);
    }

    /// Adds what such a call has behind the arguments of all primitives.
    fn more(&self, _: &Name, _: &mut Draft<'_>) {}

    fn renew(&self, holds: &[Renewal], call: &mut Draft<'_>) -> &'static Script {
        holds.iter().for_each(|hold| call.key(&hold.name));
        call.renewals(holds);
        self.scripts().renew
    }

    fn force(&self, name: &Name, call: &mut Draft<'_>) -> &'static Script {
        self.keys(name, call);
        call.forced(self.topic(), name);
        self.more(name, call);
        self.scripts().force
    }

    fn inspect(&self, name: &Name, _: Inspection, call: &mut Draft<'_>) -> &'static Script {
        self.keys(name, call);
        self.more(name, call);
        self.scripts().inspect
    }
}

/// A call that is being written: first its keys, then its arguments.
pub(crate) struct Draft<'a> {
    /// The client.
    pub(crate) uuid: &'a str,
    pub(crate) not_after: u64,
    pub(crate) publish: Publish,
    /// The number of words that are keys.
    pub(crate) keys: usize,
    pub(crate) words: &'a mut Words,
}

impl Draft<'_> {
    pub(crate) fn key(&mut self, key: &str) {
        self.words.add(key);
        self.keys += 1;
    }

    /// Adds the key of the fencing counter, if there is one.
    pub(crate) fn token_key(&mut self, name: &str, fencing: Fencing) {
        if fencing != Fencing::Off {
            self.key(&token_key(name));
        }
    }

    pub(crate) fn add(&mut self, word: &str) {
        self.words.add(word);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.words.number(number);
    }

    pub(crate) fn time(&mut self, time: Duration) {
        self.words.number(whole_ms(time));
    }

    pub(crate) fn not_after(&mut self) {
        self.words.number(self.not_after);
    }

    pub(crate) fn owner(&mut self, form: &Form, owner: OwnerId) {
        self.words.owner(form, self.uuid, owner);
    }

    /// Adds the channel, and the commands that publish on it.
    pub(crate) fn channel(&mut self, topic: Topic, name: &Name) {
        self.words.parts(&channel_parts(topic, name));
        self.add(verbs(topic, name, self.publish));
    }

    /// Adds the beginning of the time-out keys of all readers.
    pub(crate) fn timeouts(&mut self, name: &Name) {
        self.words.parts(&timeout_prefix(name));
    }

    /// Adds the arguments that every acquisition begins with.
    pub(crate) fn begin(&mut self, op: &Acquire) {
        let lease = whole_ms(op.lease);
        self.owner(&op.form, op.owner);
        self.number(lease);
        self.number(self.not_after.saturating_add(lease));
    }

    /// Adds how long the fencing counter lives, if there is one.
    pub(crate) fn counter_life(&mut self, fencing: Fencing) {
        if let Some(life) = counter_life(fencing) {
            self.number(life);
        }
    }

    /// Adds the count and the counter, if they are unusual: each argument costs the server as much as a
    /// small command.
    pub(crate) fn count_and_counter(&mut self, op: &Acquire) {
        if op.count != 1 || op.fencing != Fencing::Off {
            self.number(u64::from(op.count));
        }
        self.counter_life(op.fencing);
    }

    /// Adds the owners of holds, their times, and the not-after.
    pub(crate) fn renewals(&mut self, holds: &[Renewal]) {
        for hold in holds {
            self.owner(&hold.form, hold.owner);
        }
        self.times(holds);
    }

    /// Adds the times of holds, and the not-after. Most batches have one lease for all holds; then it
    /// is sent once.
    pub(crate) fn times(&mut self, holds: &[Renewal]) {
        let alike = holds.windows(2).all(|two| two[0].ttl == two[1].ttl);
        let times = if alike { 1 } else { holds.len() };
        for hold in holds.iter().take(times) {
            self.time(hold.ttl);
        }
        self.not_after();
    }

    /// Adds the arguments that set a lower count.
    pub(crate) fn lower(&mut self, op: &Release) {
        self.owner(&op.form, op.owner);
        self.number(u64::from(op.remaining));
        self.time(op.ttl);
        self.not_after();
    }

    /// Adds the channel of a release, and the commands that publish it, if they are unusual.
    pub(crate) fn usual_channel(&mut self, topic: Topic, op: &Release) {
        self.words.parts(&channel_parts(topic, &op.name));
        let verbs = verbs(topic, &op.name, self.publish);
        if verbs != CLASSIC || op.lesson.is_some() {
            self.add(verbs);
        }
    }

    /// Adds the arguments that delete the lock of any owner.
    pub(crate) fn forced(&mut self, topic: Topic, name: &Name) {
        self.not_after();
        self.channel(topic, name);
    }

    /// Adds what an acquisition in a crowd knows of it.
    #[cold]
    pub(crate) fn place(&mut self, name: &Name, place: Place) {
        self.crowd(name, place.owner);
        self.add(if place.first { "0" } else { "1" });
        self.channel(Topic::Lock, name);
    }

    /// Adds what the channels of the places in a crowd begin with.
    pub(crate) fn places(&mut self, name: &Name) {
        self.words.parts(&channel_parts(Topic::Lock, name));
    }

    /// Adds the set of the places in a crowd, and a place. The set is no key of the call: where a user may
    /// not write it, or it has another slot, the call does without it.
    pub(crate) fn crowd(&mut self, name: &Name, place: OwnerId) {
        self.add(&crowd_key(name));
        self.owner(&Form::default(), place);
    }
}

/// How long an expiring fencing counter outlives its last use. It is longer than the longest lease
/// (24 h), so that a repeated acquire finds the token that the first copy drew.
const COUNTER_EXPIRY: Duration = Duration::from_secs(25 * 3600);

/// How long the fencing counter lives, in milliseconds (0: for ever). `None` without fencing.
pub(crate) fn counter_life(fencing: Fencing) -> Option<u64> {
    match fencing {
        Fencing::Off => None,
        Fencing::Expiring => Some(u64::try_from(COUNTER_EXPIRY.as_millis()).unwrap_or(u64::MAX)),
        Fencing::Persistent => Some(0),
    }
}
