//! A hash with the hold count, as Redisson's `RLock`.

use std::convert::identity;

use crate::error::Thing;
use crate::primitives::facts::{Facts, Handover, Layout, Shape, Side, Topic, write_plain};
use crate::primitives::payload::Payload;

pub const FACTS: Facts = Facts {
    name: "reentrant",
    thing: Thing::Lock,
    layout: Layout::Hash,
    family: Layout::Hash,
    renewed_as: Layout::Hash,
    side: Side::Whole,
    handover: Handover::Whole,
    queues: false,
    learns: false,
    publishes: true,
    is_shared: false,
    outlives_owners: false,
    wakes_crowd: true,
    topic: Topic::Lock,
    heard_by: |_| Topic::Lock,
    batch: Some(Shape::Hash),
    reenters: true,
    second_of_key: None,
    takes_tokens: false,
    has_more_keys: false,
    prefix: "",
    lease: identity,
    write_owner: write_plain,
    payload: |_| Payload::Whole(None),
};
