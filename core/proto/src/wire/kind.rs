//! Kinds of locks, and how each is stored in Redis.

use std::sync::Arc;
use std::time::Duration;

use super::script::write_number;
use super::{Name, OwnerId};
use crate::error::Thing;

/// The wire protocol of a lock. It excludes every program that uses the same protocol on the same
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// A hash with the hold count, as Redisson's `RLock`.
    #[default]
    Reentrant,
    /// One string key, as `SET name value NX PX lease` leaves it. Every owner has a fresh value.
    /// Only callers of one client that hand the lock over to each other may use the same value in
    /// turn.
    Simple,
    /// The protocol of `Simple`, under the name of redis-py's `Lock`.
    RedisPy,
    /// The protocol of `Simple`, under the name of Node's `redlock`, on one server.
    Redlock,
    /// The protocol of `Simple`, under the name of Go's `redsync`, on one server.
    Redsync,
    /// As the `Mutex` of Node's `redis-semaphore`: the key is `mutex:<name>`.
    RedisSemaphore,
    /// As the `SimpleRedisLock` of the articles: the key is `lock:<name>`, the value
    /// `<32 hex digits>-<number>`, the lease whole seconds.
    Article,
    /// A lock that remembers in the key `<name>_renew` how long the work takes. The lease of the
    /// next acquisition is that time plus 10 s, in whole seconds.
    Adaptive,
    /// The read side of a read-write lock, as Redisson's `RReadWriteLock`: many owners at a time.
    Read,
    /// The write side of the same lock: one owner, and no readers but its own.
    Write,
    /// Permits of a semaphore, as Redisson's `RPermitExpirableSemaphore`: so many owners at a time as
    /// there are permits.
    Semaphore,
    /// The same permits. The waiters that ask so stand in a queue that Redis keeps beside them: first come,
    /// first served. The option `fair` chooses it, not the option `kind`.
    FairSemaphore,
    /// As `Reentrant`, but Redis keeps a queue of the waiters of all programs, as Redisson's `RFairLock`:
    /// first come, first served.
    Fair,
    /// Several locks as one. It has no key of its own: each of its locks is stored by its own kind.
    /// It is not chosen by the option `kind`.
    Multi,
    /// A lock that most of several servers have. Each stores it by the kind that the option names, so
    /// this is not chosen by the option `kind` either.
    Quorum,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// The facts about a layout that decide more than its scripts. No match here has a wildcard, so the
/// compiler asks each of them about a new layout.
impl Layout {
    /// How a lock goes from one caller of this client to the next.
    pub fn handover(self) -> Handover {
        match self {
            Layout::Hash | Layout::Plain => Handover::Whole,
            Layout::Permits => Handover::AmongOthers,
            // It learns from its release.
            Layout::Learning => Handover::Never,
            // Readers do not follow one another. After a writer all readers come at once.
            Layout::Read | Layout::Write => Handover::Never,
            // The next one in the queue may belong to another program.
            Layout::Queued | Layout::QueuedPermits => Handover::Never,
        }
    }

    /// Whether each waiter has a place in a queue that Redis keeps, for which it asks itself.
    pub fn queues(self) -> bool {
        match self {
            Layout::Hash | Layout::Plain | Layout::Learning => false,
            Layout::Read | Layout::Write | Layout::Permits => false,
            Layout::Queued | Layout::QueuedPermits => true,
        }
    }

    /// Whether a second key keeps the duration of the work. An acquisition gets that as its lease,
    /// which may be longer than it asks for.
    pub fn learns(self) -> bool {
        match self {
            Layout::Hash | Layout::Plain | Layout::Read | Layout::Write => false,
            Layout::Permits | Layout::Queued | Layout::QueuedPermits => false,
            Layout::Learning => true,
        }
    }

    /// Whether every program that uses this layout publishes its releases.
    pub fn publishes(self) -> bool {
        match self {
            Layout::Hash | Layout::Queued | Layout::QueuedPermits => true,
            Layout::Read | Layout::Write | Layout::Permits => true,
            Layout::Plain | Layout::Learning => false,
        }
    }

    /// Whether several owners write to the key at a time. A change of the key then says little
    /// about a hold.
    pub fn is_shared(self) -> bool {
        match self {
            Layout::Read | Layout::Permits | Layout::QueuedPermits => true,
            Layout::Hash | Layout::Plain | Layout::Learning | Layout::Write => false,
            Layout::Queued => false,
        }
    }

    /// Whether other owners may keep the key alive after the lease of one of them. An owner that is
    /// not released then stays.
    pub fn outlives_owners(self) -> bool {
        match self {
            Layout::Read | Layout::Write => true,
            Layout::Hash | Layout::Plain | Layout::Learning | Layout::Queued => false,
            // Each permit has a time of its own.
            Layout::Permits | Layout::QueuedPermits => false,
        }
    }

    /// The channel on which its releases are published. The release of a fair lock goes to the
    /// head's own channel, whose name begins with this one.
    pub fn topic(self) -> Topic {
        match self {
            Layout::Hash | Layout::Plain | Layout::Learning | Layout::Queued => Topic::Lock,
            Layout::Read | Layout::Write => Topic::ReadWrite,
            Layout::Permits | Layout::QueuedPermits => Topic::Semaphore,
        }
    }

    /// Whether the release of a lock wakes the first place in a crowd. It has one owner then.
    pub fn wakes_crowd(self) -> bool {
        matches!(self, Layout::Hash | Layout::Plain | Layout::Learning)
    }

    /// The channel on which an owner that waits hears that it may be its turn.
    pub fn heard_by(self, owner: OwnerId) -> Topic {
        match self {
            Layout::Queued => Topic::Place(owner),
            Layout::Hash | Layout::Plain | Layout::Learning => self.topic(),
            Layout::Read | Layout::Write => self.topic(),
            // Redisson and clients that do not queue up publish there only.
            Layout::Permits | Layout::QueuedPermits => self.topic(),
        }
    }

    /// The layout whose script renews it. Holds for which this is equal can share a renewal.
    pub fn renewed_as(self) -> Layout {
        match self {
            Layout::Hash | Layout::Queued => Layout::Hash,
            Layout::Plain | Layout::Learning => Layout::Plain,
            Layout::Read => Layout::Read,
            Layout::Write => Layout::Write,
            Layout::Permits | Layout::QueuedPermits => Layout::Permits,
        }
    }

    /// The layout of a lock that is held. Its holder stands in no queue any more.
    pub(super) fn held_as(self) -> Layout {
        match self {
            Layout::Queued => Layout::Hash,
            Layout::QueuedPermits => Layout::Permits,
            Layout::Hash | Layout::Plain | Layout::Learning => self,
            Layout::Read | Layout::Write | Layout::Permits => self,
        }
    }

    /// Layouts of one family know each other's locks. To other layouts they are foreign data.
    fn family(self) -> Layout {
        match self {
            Layout::Hash | Layout::Queued => Layout::Hash,
            Layout::Plain | Layout::Learning => Layout::Plain,
            Layout::Read | Layout::Write => Layout::Write,
            Layout::Permits | Layout::QueuedPermits => Layout::Permits,
        }
    }
}

/// Every kind with its name in options.
const NAMES: [(Kind, &str); 12] = [
    (Kind::Reentrant, "reentrant"),
    (Kind::Simple, "simple"),
    (Kind::RedisPy, "redis-py"),
    (Kind::Redlock, "redlock"),
    (Kind::Redsync, "redsync"),
    (Kind::RedisSemaphore, "redis-semaphore"),
    (Kind::Article, "article"),
    (Kind::Adaptive, "adaptive"),
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Semaphore, "semaphore"),
    (Kind::Fair, "fair"),
];

impl Kind {
    /// The names of all kinds.
    pub const ALL: [&str; NAMES.len()] = {
        let mut all = [""; NAMES.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = NAMES[at].1;
            at += 1;
        }
        all
    };

    /// The kind with this name.
    pub fn named(text: &str) -> Option<Kind> {
        NAMES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(kind, _)| *kind)
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        let not_chosen = match self {
            Kind::FairSemaphore => return Kind::Semaphore.name(),
            Kind::Quorum => "quorum",
            _ => "multi",
        };
        NAMES
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or(not_chosen, |(_, name)| name)
    }

    /// The thing that it is for its callers.
    pub fn thing(self) -> Thing {
        match self {
            Kind::Semaphore | Kind::FairSemaphore => Thing::Semaphore,
            Kind::Multi => Thing::MultiLock,
            _ => Thing::Lock,
        }
    }

    /// Whether a re-entry key may re-enter a lock of this kind by default.
    pub fn reenters(self) -> bool {
        matches!(
            self,
            Kind::Reentrant | Kind::Fair | Kind::Adaptive | Kind::Read | Kind::Write
        ) || self.is_several()
    }

    /// Whether it has keys beside its own that Redisson names by the same rules as those of another
    /// name. The counter of fencing tokens is no such key: it does no harm if two locks share one.
    pub fn has_more_keys(self) -> bool {
        self.takes_permits() || matches!(self, Kind::Read | Kind::Write | Kind::Fair)
    }

    /// Whether its owners have permits of a semaphore.
    pub fn takes_permits(self) -> bool {
        matches!(self, Kind::Semaphore | Kind::FairSemaphore)
    }

    /// Whether it is made of several holds, and stands in Redis by those alone.
    pub fn is_several(self) -> bool {
        matches!(self, Kind::Multi | Kind::Quorum)
    }

    /// Why a lock that is made of several holds is refused what only a lock with one key has.
    pub fn has_no_key(self) -> &'static str {
        match self {
            Kind::Quorum => {
                "the lock of a quorum has a key on each server; ask each of them, by a client of its own"
            }
            _ => "a multi lock has no key of its own; ask each of its locks",
        }
    }

    /// Whether a caller can choose the value that is stored for it.
    pub fn takes_tokens(self) -> bool {
        !matches!(
            self,
            Kind::Reentrant | Kind::Fair | Kind::Read | Kind::Write
        ) && !self.takes_permits()
            && !self.is_several()
    }

    /// Whether it is the read side of a read-write lock.
    pub fn reads(self) -> bool {
        self.layout() == Layout::Read
    }

    /// Whether an owner of this kind may hold the name together with other owners of it.
    pub fn is_shared(self) -> bool {
        self.layout().is_shared()
    }

    pub fn side(self) -> Side {
        if self.is_several() {
            return Side::Several;
        }
        match self.layout() {
            Layout::Hash | Layout::Plain | Layout::Learning => Side::Whole,
            Layout::Permits | Layout::Queued | Layout::QueuedPermits => Side::Whole,
            Layout::Read => Side::Read,
            Layout::Write => Side::Write,
        }
    }

    pub fn layout(self) -> Layout {
        match self {
            Kind::Reentrant => Layout::Hash,
            Kind::Adaptive => Layout::Learning,
            Kind::Read => Layout::Read,
            Kind::Write => Layout::Write,
            Kind::Semaphore => Layout::Permits,
            Kind::FairSemaphore => Layout::QueuedPermits,
            Kind::Fair => Layout::Queued,
            _ => Layout::Plain,
        }
    }

    /// Whether a lock of the kind `other` at the same key keeps one of this kind out. If not, both
    /// read, or it counts as foreign data.
    pub fn excludes(self, other: Kind) -> bool {
        let (own, other) = (self.layout(), other.layout());
        own.family() == other.family() && !(own.is_shared() && other.is_shared())
    }

    /// The Redis key of the lock `name`.
    pub fn key(self, name: Name) -> Name {
        match self {
            Kind::RedisSemaphore => format!("mutex:{name}").into(),
            Kind::Article => format!("lock:{name}").into(),
            _ => name,
        }
    }

    /// `lease` as this kind stores it: some kinds round it up to whole seconds.
    pub fn lease(self, lease: Duration) -> Duration {
        match self {
            Kind::Article | Kind::Adaptive => {
                Duration::from_secs(lease.as_millis().div_ceil(1000) as u64)
            }
            _ => lease,
        }
    }
}

/// How a hold is stored in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Form {
    pub kind: Kind,
    /// The caller's own value, in place of the one made of client and owner.
    pub token: Option<Arc<str>>,
    /// The number of permits of a semaphore that it has. 0 for a lock.
    pub permits: u16,
}

impl Form {
    /// A hold of a lock of this kind, with the owner that client and number make.
    pub fn of(kind: Kind) -> Form {
        Form {
            kind,
            ..Form::default()
        }
    }

    /// Whether its waiters have places in a crowd. A wish for several permits has none: it would keep those
    /// out that want what is free.
    pub fn crowds(&self) -> bool {
        let layout = self.kind.layout();
        layout.wakes_crowd() || layout == Layout::Permits && self.permits == 1
    }

    /// The owner as it is stored in Redis, for the client `uuid`.
    pub fn owner(&self, uuid: &str, owner: OwnerId) -> String {
        let mut text = Vec::new();
        if self.kind.takes_permits() {
            // As Redisson shows ids: in hex. It is the first id.
            return permit_ids(uuid, owner)
                .iter()
                .chain(&[0, 0])
                .map(|byte| format!("{byte:02x}"))
                .collect();
        }
        self.write_owner(uuid, owner, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Appends the owner to `out`.
    pub(super) fn write_owner(&self, uuid: &str, owner: OwnerId, out: &mut Vec<u8>) {
        match (&self.token, self.kind) {
            (Some(token), _) => out.extend_from_slice(token.as_bytes()),
            (None, Kind::Article) => {
                let from = out.len();
                write_identity(uuid, owner, out);
                let mut at = 0;
                out.retain(|byte| {
                    at += 1;
                    at <= from || *byte != b'-'
                });
                out.push(b'-');
                write_number(out, number_of(owner));
            }
            // The beginning of the ids, and how many there are.
            (None, Kind::Semaphore | Kind::FairSemaphore) => {
                out.extend_from_slice(&permit_ids(uuid, owner));
                out.extend_from_slice(&sevens(self.permits.into())[6..]);
            }
            (None, kind) => {
                write_identity(uuid, owner, out);
                out.push(b':');
                write_number(out, number_of(owner));
                if kind == Kind::Write {
                    out.extend_from_slice(b":write");
                }
            }
        }
    }
}

/// The low bits of an owner id that are its number. The other bits are the last group of its uuid.
const NUMBER_BITS: u32 = 16;

/// The first owner id with this last group of the uuid, which has 48 bits.
pub fn first_owner(last_group: u64) -> OwnerId {
    last_group << NUMBER_BITS
}

/// The number after the colon.
pub(super) fn number_of(owner: OwnerId) -> u64 {
    owner % first_owner(1)
}

/// Whether both owners have the same uuid.
pub(super) fn is_same_identity(a: OwnerId, b: OwnerId) -> bool {
    a >> NUMBER_BITS == b >> NUMBER_BITS
}

/// Appends the uuid of an owner: that of the client, with the owner's last group in place of the
/// client's. Before the first connection owners have no group of their own, and the client's stays.
pub(super) fn write_identity(uuid: &str, owner: OwnerId, out: &mut Vec<u8>) {
    const DIGITS: usize = 12;
    let group = owner >> NUMBER_BITS;
    let (client, last) = uuid.as_bytes().split_at(uuid.len().saturating_sub(DIGITS));
    out.extend_from_slice(client);
    if group == 0 {
        return out.extend_from_slice(last);
    }
    let digit = |at: usize| b"0123456789abcdef"[(group >> (4 * at) & 15) as usize];
    out.extend((0..DIGITS).rev().map(digit));
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

/// The sample that an adaptive lock learns from when it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSample {
    /// The lease that was asked for.
    pub asked: Duration,
    /// How long the lock was held.
    pub took: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for (kind, name) in NAMES {
            assert_eq!((Kind::named(name), kind.name()), (Some(kind), name));
        }
        assert_eq!(Kind::ALL.len(), NAMES.len());
        assert_eq!(Kind::named("Simple"), None);
    }

    #[test]
    fn keys_and_owners_are_those_of_the_other_side() {
        let uuid = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";
        let owner = |kind| Form::of(kind).owner(uuid, 7);
        assert_eq!(owner(Kind::Reentrant), format!("{uuid}:7"));
        assert_eq!(owner(Kind::Simple), format!("{uuid}:7"));
        assert_eq!(owner(Kind::Read), format!("{uuid}:7"));
        assert_eq!(owner(Kind::Write), format!("{uuid}:7:write"));
        assert_eq!(owner(Kind::Semaphore), "8c8ffe615bd311615574443800070000");
        assert_eq!(owner(Kind::Article), "8c8ffe615bd34d78a5c02d2386af488e-7");
        assert_eq!(
            Form {
                kind: Kind::Simple,
                token: Some("t".into()),
                permits: 0
            }
            .owner(uuid, 7),
            "t"
        );
        for (kind, key) in [
            (Kind::Reentrant, "o"),
            (Kind::RedisPy, "o"),
            (Kind::Adaptive, "o"),
            (Kind::Article, "lock:o"),
            (Kind::RedisSemaphore, "mutex:o"),
        ] {
            assert_eq!(&*kind.key("o".into()), key, "{kind:?}");
        }
    }

    #[test]
    fn an_owner_has_the_last_group_of_its_uuid_and_its_number() {
        let uuid = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";
        let owner = |kind, owner| Form::of(kind).owner(uuid, owner);
        let first = first_owner(0xab_cdef);
        assert_eq!(
            owner(Kind::Reentrant, first + 3),
            "8c8ffe61-5bd3-4d78-a5c0-000000abcdef:3"
        );
        assert_eq!(
            owner(Kind::Article, first + 3),
            "8c8ffe615bd34d78a5c0000000abcdef-3"
        );
        let next = first + (1 << NUMBER_BITS);
        assert_eq!(
            owner(Kind::Reentrant, next),
            "8c8ffe61-5bd3-4d78-a5c0-000000abcdf0:0"
        );
        let last = first_owner(0xffff_ffff_ffff) + 65_535;
        assert_eq!(
            owner(Kind::Simple, last),
            "8c8ffe61-5bd3-4d78-a5c0-ffffffffffff:65535"
        );
    }

    #[test]
    fn only_hashes_and_strings_are_foreign_to_each_other() {
        assert!(Kind::Simple.excludes(Kind::Adaptive) && Kind::Article.excludes(Kind::RedisPy));
        assert!(
            Kind::Reentrant.excludes(Kind::Reentrant) && !Kind::Reentrant.excludes(Kind::Simple)
        );
        assert!(!Kind::Adaptive.excludes(Kind::Reentrant));
        assert!(Kind::Write.excludes(Kind::Read) && Kind::Read.excludes(Kind::Write));
        assert!(Kind::Write.excludes(Kind::Write) && !Kind::Read.excludes(Kind::Read));
        assert!(
            !Kind::Semaphore.excludes(Kind::Semaphore)
                && !Kind::Semaphore.excludes(Kind::Reentrant)
        );
        assert!(!Kind::Write.excludes(Kind::Reentrant) && !Kind::Simple.excludes(Kind::Read));
    }

    #[test]
    fn whole_seconds_are_rounded_up() {
        let lease = Duration::from_millis(2001);
        assert_eq!(Kind::Article.lease(lease), Duration::from_secs(3));
        assert_eq!(
            Kind::Adaptive.lease(Duration::from_secs(3)),
            Duration::from_secs(3)
        );
        assert_eq!(Kind::Simple.lease(lease), lease);
    }
}
