//! Permits of a semaphore, as Redisson's `RPermitExpirableSemaphore`. Each has a time of its own.

use std::convert::identity;

use crate::error::Thing;
use crate::primitives::facts::{Facts, Handover, Layout, Side, Topic};
use crate::primitives::payload::Payload;
use crate::wire::ids::{OwnerId, first_owner, number_of, write_identity};

pub const FACTS: Facts = Facts {
    name: "semaphore",
    thing: Thing::Semaphore,
    layout: Layout::Permits,
    family: Layout::Permits,
    renewed_as: Layout::Permits,
    side: Side::Whole,
    handover: Handover::AmongOthers,
    queues: false,
    learns: false,
    publishes: true,
    is_shared: true,
    // Each permit has a time of its own.
    outlives_owners: false,
    wakes_crowd: false,
    topic: Topic::Semaphore,
    // Redisson and clients that do not queue up publish there only.
    heard_by: |_| Topic::Semaphore,
    batch: None,
    reenters: false,
    second_of_key: Some(
        "this key has permits of the semaphore, or waits for some; release those first, acquire several at once, or use \
         another key",
    ),
    takes_tokens: false,
    has_more_keys: true,
    prefix: "",
    lease: identity,
    // The beginning of the ids, and how many there are.
    write_owner: |owner, out| {
        out.extend_from_slice(&permit_ids(owner.uuid, owner.id));
        out.extend_from_slice(&sevens(owner.permits.into())[6..]);
    },
    payload: |ask| Payload::Permits(ask.special.limit, None),
};

/// Waiters that ask for it stand in a queue that Redis keeps beside the permits.
pub const FAIR: Facts = Facts {
    layout: Layout::QueuedPermits,
    // The next one in the queue may belong to another program.
    handover: Handover::Never,
    queues: true,
    heard_by: Topic::Seat,
    payload: |ask| Payload::QueuedPermits(ask.special.limit, ask.seat()),
    ..FACTS
};

/// The first id of an owner's permits, as Redisson shows ids: in hex.
pub fn first_id(uuid: &str, owner: OwnerId) -> String {
    seat(uuid, owner) + "0000"
}

/// What the channel of an owner in the queue ends with: what all its ids begin with, in hex.
pub fn seat(uuid: &str, owner: OwnerId) -> String {
    let ids = permit_ids(uuid, owner);
    ids.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The low bits of a number, seven in each byte: so they are text, which JSON carries.
fn sevens(number: u64) -> [u8; 8] {
    std::array::from_fn(|at| (number >> (7 * (7 - at)) & 0x7f) as u8)
}

/// The beginning of the ids of an owner's permits: 6 bytes of the uuid that all owners of the client
/// share, then the low bits of the owner.
fn permit_ids(uuid: &str, owner: OwnerId) -> [u8; 14] {
    let mut text = Vec::with_capacity(uuid.len());
    write_identity(uuid, owner, &mut text);
    let digits = text
        .iter()
        .filter_map(|byte| char::from(*byte).to_digit(16).map(|digit| digit as u8));
    let digits: Vec<u8> = digits.collect();
    let (bytes, _) = digits.as_chunks::<2>();
    let bytes = bytes.iter().map(|[high, low]| high << 4 | low);
    // The last group of the uuid is the owner's.
    let group = bytes.clone().skip(10);
    let group = group.fold(0, |group, byte| group << 8 | u64::from(byte));
    let owner = sevens(first_owner(group) | number_of(owner));
    let mut ids = [0; 14];
    let picked = bytes.take(6).chain(owner);
    ids.iter_mut().zip(picked).for_each(|(id, byte)| *id = byte);
    ids
}
