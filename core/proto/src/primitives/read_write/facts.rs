//! The two sides of a read-write lock, as Redisson's `RReadWriteLock`. They share a hash.

use std::convert::identity;

use crate::error::Thing;
use crate::primitives::facts::{Facts, Handover, Layout, Side, Topic, write_plain};
use crate::primitives::payload::Payload;
use crate::wire::names::WRITER;

pub const WRITE: Facts = Facts {
    name: "write",
    thing: Thing::Lock,
    layout: Layout::Write,
    family: Layout::Write,
    renewed_as: Layout::Write,
    side: Side::Write,
    // Readers do not follow one another. After a writer all readers come at once.
    handover: Handover::Never,
    queues: false,
    learns: false,
    publishes: true,
    is_shared: false,
    outlives_owners: true,
    wakes_crowd: true,
    topic: Topic::ReadWrite,
    heard_by: |_| Topic::ReadWrite,
    batch: None,
    reenters: true,
    second_of_key: None,
    takes_tokens: false,
    has_more_keys: true,
    prefix: "",
    lease: identity,
    write_owner: |owner, out| {
        write_plain(owner, out);
        out.extend_from_slice(WRITER.as_bytes());
    },
    payload: |ask| Payload::Write {
        steal: ask.special.steal,
        mark: ask.mark,
        place: None,
    },
};

pub const READ: Facts = Facts {
    name: "read",
    layout: Layout::Read,
    renewed_as: Layout::Read,
    side: Side::Read,
    is_shared: true,
    wakes_crowd: false,
    write_owner: write_plain,
    payload: |ask| Payload::Read {
        under: ask.under,
        mark: ask.mark,
    },
    ..WRITE
};
