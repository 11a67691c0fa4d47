//! One string key, as `SET name value NX PX lease` leaves it. Every owner has a fresh value. Other
//! libraries write the same under names and values of their own.

use std::convert::identity;

use crate::error::Thing;
use crate::primitives::facts::{
    Facts, Handover, Layout, Owner, Shape, Side, Topic, whole_seconds, write_plain,
};
use crate::primitives::payload::Payload;
use crate::wire::ids::{number_of, write_identity, write_number};

pub const FACTS: Facts = Facts {
    name: "simple",
    thing: Thing::Lock,
    layout: Layout::Plain,
    family: Layout::Plain,
    renewed_as: Layout::Plain,
    side: Side::Whole,
    handover: Handover::Whole,
    queues: false,
    learns: false,
    publishes: false,
    is_shared: false,
    outlives_owners: false,
    wakes_crowd: true,
    topic: Topic::Lock,
    heard_by: |_| Topic::Lock,
    batch: Some(Shape::Plain),
    reenters: false,
    second_of_key: None,
    takes_tokens: true,
    has_more_keys: false,
    prefix: "",
    lease: identity,
    write_owner: write_plain,
    payload: |_| Payload::Whole(None),
};

pub const REDIS_PY: Facts = Facts {
    name: "redis-py",
    ..FACTS
};

pub const REDLOCK: Facts = Facts {
    name: "redlock",
    ..FACTS
};

pub const REDSYNC: Facts = Facts {
    name: "redsync",
    ..FACTS
};

pub const REDIS_SEMAPHORE: Facts = Facts {
    name: "redis-semaphore",
    prefix: "mutex:",
    ..FACTS
};

pub const ARTICLE: Facts = Facts {
    name: "article",
    prefix: "lock:",
    lease: whole_seconds,
    write_owner: write_hex,
    ..FACTS
};

pub const ADAPTIVE: Facts = Facts {
    name: "adaptive",
    layout: Layout::Learning,
    // It learns from its release.
    handover: Handover::Never,
    learns: true,
    batch: None,
    reenters: true,
    lease: whole_seconds,
    ..FACTS
};

/// `<32 hex digits>-<number>`.
fn write_hex(owner: Owner<'_>, out: &mut Vec<u8>) {
    let from = out.len();
    write_identity(owner.uuid, owner.id, out);
    let mut at = 0;
    out.retain(|byte| {
        at += 1;
        at <= from || *byte != b'-'
    });
    out.push(b'-');
    write_number(out, number_of(owner.id));
}
