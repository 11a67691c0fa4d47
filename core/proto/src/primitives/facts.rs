//! The facts that the engine, the outbox and the wire have to know of a primitive.

use std::time::Duration;

use super::payload::{Payload, Seat, Special};
use crate::error::Thing;
use crate::wire::ids::{OwnerId, number_of, write_identity, write_number};

/// All that others have to know of a primitive. It has no default: each primitive states every fact,
/// or takes those of a primitive that it varies.
#[derive(Debug)]
pub struct Facts {
    /// Its name in options.
    pub name: &'static str,
    /// The thing that it is for its callers.
    pub thing: Thing,
    /// How it is stored. Its scripts depend on it.
    pub layout: Layout,
    /// Layouts of one family know each other's locks. To other layouts they are foreign data.
    pub family: Layout,
    /// The layout whose script renews it. Holds for which this is equal can share a renewal.
    pub renewed_as: Layout,
    /// The part of the name that one key holds.
    pub side: Side,
    /// How it goes from one caller of this client to the next.
    pub handover: Handover,
    /// Whether each waiter has a place in a queue that Redis keeps, for which it asks itself.
    pub queues: bool,
    /// Whether a second key keeps the duration of the work. An acquisition gets that as its lease,
    /// which may be longer than it asks for.
    pub learns: bool,
    /// Whether every program that uses this layout publishes its releases.
    pub publishes: bool,
    /// Whether several owners write to the key at a time. A change of the key then says little
    /// about a hold.
    pub is_shared: bool,
    /// Whether other owners may keep the key alive after the lease of one of them. An owner that is
    /// not released then stays.
    pub outlives_owners: bool,
    /// Whether its release wakes the first place in a crowd. It has one owner then.
    pub wakes_crowd: bool,
    /// The channel on which its releases are published. The release of a fair lock goes to the
    /// head's own channel, whose name begins with this one.
    pub topic: Topic,
    /// The channel on which an owner that waits hears that it may be its turn.
    pub heard_by: fn(OwnerId) -> Topic,
    /// Its batches, if several of these locks can share a call.
    pub batch: Option<Shape>,
    /// Whether a re-entry key may re-enter it by default.
    pub reenters: bool,
    /// Why a key that has it or waits for it does not get it once more, if a release by that key could not
    /// tell which of the two it ends.
    pub second_of_key: Option<&'static str>,
    /// Whether a caller can choose the value that is stored for it.
    pub takes_tokens: bool,
    /// Whether it has keys beside its own that Redisson names by the same rules as those of another
    /// name. The counter of fencing tokens is no such key: it does no harm if two locks share one.
    pub has_more_keys: bool,
    /// The beginning of its key. The name follows.
    pub prefix: &'static str,
    /// The time that is stored for a lease: some kinds round it up to whole seconds.
    pub lease: fn(Duration) -> Duration,
    /// Appends the owner as it is stored in Redis.
    pub write_owner: fn(Owner<'_>, &mut Vec<u8>),
    /// The part of an acquisition that only this primitive has.
    pub payload: fn(Ask<'_>) -> Payload,
}

/// What a waiter asks for beside the lock. Each primitive takes its part of it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Whether it tries once and does not wait.
    pub once: bool,
    pub special: Special,
    /// The time of the mark of waiting writers, if this call regards it.
    pub mark: Option<Duration>,
    /// The owner of the write lock under which it reads.
    pub under: Option<OwnerId>,
    /// Its owners before the last connections were made.
    pub earlier: &'a [OwnerId],
}

impl Ask<'_> {
    /// What it asks of a queue that Redis keeps.
    pub fn seat(&self) -> Seat {
        Seat {
            queues: !self.once,
            earlier: self.earlier.to_vec(),
        }
    }
}

/// The data layout of a lock. Its scripts depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// A hash: owners and their hold counts.
    Hash,
    /// A string: the owner.
    Plain,
    /// A string with the owner, and a second key with the learnt duration of the work.
    Learning,
    /// A reader in the hash of a read-write lock. A second key keeps its time.
    Read,
    /// The writer in that hash.
    Write,
    /// A number of free permits, and a second key with the taken ones and their times.
    Permits,
    /// A hash as `Hash`, and the queue of its waiters: a list, and a key with their times.
    Queued,
    /// Permits as `Permits`, and such a queue.
    QueuedPermits,
}

/// The channels that a name has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Topic {
    /// The channel of locks with one holder.
    #[default]
    Lock,
    /// The channel of read-write locks.
    ReadWrite,
    /// The channel of semaphores.
    Semaphore,
    /// The channel of count-down latches.
    Latch,
    /// The channel of this owner, which stands in the queue of a fair lock.
    Place(OwnerId),
    /// The channel of this owner, which stands in the queue of a fair semaphore.
    Seat(OwnerId),
}

/// The part of a name that one key holds at most once. A key may read what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// A lock without sides.
    Whole,
    Read,
    Write,
    /// Several names at once.
    Several,
}

/// How a lock goes from one caller of a client to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// It is released, and the next caller asks the server.
    Never,
    /// The holder is the only one. The hold goes on under the same owner, or one call gives the lock
    /// to the next owner.
    Whole,
    /// There are other holders. The hold goes on under the same owner.
    AmongOthers,
}

/// The locks that can share a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Hash,
    Plain,
}

/// An owner of the client `uuid`, and how many permits it has.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    pub uuid: &'a str,
    pub id: OwnerId,
    pub permits: u16,
}

/// `<uuid>:<number>`, as Redisson's `<uuid>:<thread id>`.
pub fn write_plain(owner: Owner<'_>, out: &mut Vec<u8>) {
    write_identity(owner.uuid, owner.id, out);
    out.push(b':');
    write_number(out, number_of(owner.id));
}

/// `lease` in whole seconds, rounded up.
pub fn whole_seconds(lease: Duration) -> Duration {
    Duration::from_secs(lease.as_millis().div_ceil(1000) as u64)
}
