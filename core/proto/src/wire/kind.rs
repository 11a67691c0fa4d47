//! Kinds of locks, and how each is stored in Redis.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{Name, OwnerId};
use crate::error::Thing;
use crate::primitives::facts::{Facts, Layout, Owner, Side};
use crate::primitives::{fair, read_write, reentrant, semaphore, several, simple};

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

/// The kinds that the option `kind` chooses.
const CHOSEN: [Kind; 12] = [
    Kind::Reentrant,
    Kind::Simple,
    Kind::RedisPy,
    Kind::Redlock,
    Kind::Redsync,
    Kind::RedisSemaphore,
    Kind::Article,
    Kind::Adaptive,
    Kind::Read,
    Kind::Write,
    Kind::Semaphore,
    Kind::Fair,
];

impl Kind {
    /// The names of all kinds.
    pub const ALL: [&str; CHOSEN.len()] = {
        let mut all = [""; CHOSEN.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = CHOSEN[at].facts().name;
            at += 1;
        }
        all
    };

    /// The facts that its primitive states.
    pub const fn facts(self) -> &'static Facts {
        match self {
            Kind::Reentrant => &reentrant::facts::FACTS,
            Kind::Simple => &simple::facts::FACTS,
            Kind::RedisPy => &simple::facts::REDIS_PY,
            Kind::Redlock => &simple::facts::REDLOCK,
            Kind::Redsync => &simple::facts::REDSYNC,
            Kind::RedisSemaphore => &simple::facts::REDIS_SEMAPHORE,
            Kind::Article => &simple::facts::ARTICLE,
            Kind::Adaptive => &simple::facts::ADAPTIVE,
            Kind::Read => &read_write::facts::READ,
            Kind::Write => &read_write::facts::WRITE,
            Kind::Semaphore => &semaphore::facts::FACTS,
            Kind::FairSemaphore => &semaphore::facts::FAIR,
            Kind::Fair => &fair::facts::FACTS,
            Kind::Multi => &several::facts::MULTI,
            Kind::Quorum => &several::facts::QUORUM,
        }
    }

    /// The kind with this name.
    pub fn named(text: &str) -> Option<Kind> {
        CHOSEN.into_iter().find(|kind| kind.name() == text)
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The thing that it is for its callers.
    pub fn thing(self) -> Thing {
        self.facts().thing
    }

    pub fn layout(self) -> Layout {
        self.facts().layout
    }

    pub fn side(self) -> Side {
        self.facts().side
    }

    /// Whether its owners have permits of a semaphore.
    pub fn takes_permits(self) -> bool {
        self.thing() == Thing::Semaphore
    }

    /// Whether it is made of several holds, and stands in Redis by those alone.
    pub fn is_several(self) -> bool {
        self.side() == Side::Several
    }

    /// Whether it is the read side of a read-write lock.
    pub fn reads(self) -> bool {
        self.side() == Side::Read
    }

    /// Whether it is the write side of that lock.
    pub fn writes(self) -> bool {
        self.side() == Side::Write
    }

    /// Whether an owner of this kind may hold the name together with other owners of it.
    pub fn is_shared(self) -> bool {
        self.facts().is_shared
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

    /// Whether a lock of the kind `other` at the same key keeps one of this kind out. If not, both
    /// read, or it counts as foreign data.
    pub fn excludes(self, other: Kind) -> bool {
        let (own, other) = (self.facts(), other.facts());
        own.family == other.family && !(own.is_shared && other.is_shared)
    }

    /// The Redis key of the lock `name`.
    pub fn key(self, name: Name) -> Name {
        match self.facts().prefix {
            "" => name,
            prefix => format!("{prefix}{name}").into(),
        }
    }

    /// `lease` as this kind stores it.
    pub fn lease(self, lease: Duration) -> Duration {
        (self.facts().lease)(lease)
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
        let facts = self.kind.facts();
        facts.wakes_crowd || facts.layout == Layout::Permits && self.permits == 1
    }

    /// The owner as it is stored in Redis, for the client `uuid`.
    pub fn owner(&self, uuid: &str, owner: OwnerId) -> String {
        if self.kind.takes_permits() {
            return semaphore::facts::first_id(uuid, owner);
        }
        let mut text = Vec::new();
        self.write_owner(uuid, owner, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Appends the owner to `out`.
    pub(crate) fn write_owner(&self, uuid: &str, id: OwnerId, out: &mut Vec<u8>) {
        match &self.token {
            Some(token) => out.extend_from_slice(token.as_bytes()),
            None => {
                let permits = self.permits;
                (self.kind.facts().write_owner)(Owner { uuid, id, permits }, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::first_owner;
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        for (kind, name) in CHOSEN.into_iter().zip(Kind::ALL) {
            assert_eq!((Kind::named(name), kind.name()), (Some(kind), name));
        }
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
        let next = first + first_owner(1);
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
