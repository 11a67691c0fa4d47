//! A hash as that of a re-entrant lock, and the queue of its waiters, as Redisson's `RFairLock`.

use std::convert::identity;

use crate::error::Thing;
use crate::primitives::facts::{Facts, Handover, Layout, Side, Topic, write_plain};
use crate::primitives::payload::Payload;

pub const FACTS: Facts = Facts {
    name: "fair",
    thing: Thing::Lock,
    layout: Layout::Queued,
    family: Layout::Hash,
    renewed_as: Layout::Hash,
    side: Side::Whole,
    // The next one in the queue may belong to another program.
    handover: Handover::Never,
    queues: true,
    learns: false,
    publishes: true,
    is_shared: false,
    outlives_owners: false,
    wakes_crowd: false,
    topic: Topic::Lock,
    heard_by: Topic::Place,
    batch: None,
    reenters: true,
    second_of_key: None,
    takes_tokens: false,
    has_more_keys: true,
    prefix: "",
    lease: identity,
    write_owner: write_plain,
    payload: |ask| Payload::Queued(ask.seat()),
};
