//! What kinds of locks there are, and how each stands in Redis.

use std::sync::Arc;
use std::time::Duration;

use super::script::write_number;
use super::{Name, OwnerId};

/// The wire protocol of a lock: it excludes the programs that use the same one on its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// A hash with the hold count, as Redisson's `RLock`.
    #[default]
    Reentrant,
    /// One string key, as `SET name value NX PX lease` leaves it. The value is fresh for every owner; callers of one client
    /// that pass the lock on to each other may have the same, one after the other.
    Simple,
    /// The same under the name of redis-py's `Lock`.
    RedisPy,
    /// The same under the name of Node's `redlock`, on one server.
    Redlock,
    /// The same under the name of Go's `redsync`, on one server.
    Redsync,
    /// As Node's `redis-semaphore` `Mutex`: the key is `mutex:<name>`.
    RedisSemaphore,
    /// As the articles' `SimpleRedisLock`: the key is `lock:<name>`, the value
    /// `<32 hex digits>-<number>`, the lease whole seconds.
    Article,
    /// The lock that remembers how long the work takes, in the key `<name>_renew`: the lease of the next
    /// acquisition is that and 10 s. Whole seconds.
    Adaptive,
}

/// How the data of a lock looks, which is what its scripts depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A hash: owners and their hold counts.
    Hash,
    /// A string: the owner.
    Plain,
    /// A string, and beside it what was learnt about the work.
    Learning,
}

/// Every kind with its name in options.
const NAMES: [(Kind, &str); 8] = [
    (Kind::Reentrant, "reentrant"),
    (Kind::Simple, "simple"),
    (Kind::RedisPy, "redis-py"),
    (Kind::Redlock, "redlock"),
    (Kind::Redsync, "redsync"),
    (Kind::RedisSemaphore, "redis-semaphore"),
    (Kind::Article, "article"),
    (Kind::Adaptive, "adaptive"),
];

impl Kind {
    /// The names of all kinds.
    pub(crate) const ALL: [&str; NAMES.len()] = {
        let mut all = [""; NAMES.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = NAMES[at].1;
            at += 1;
        }
        all
    };

    /// The kind of this name.
    pub(crate) fn named(text: &str) -> Option<Kind> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Whether one of its keys may re-enter unless told otherwise.
    pub(crate) fn reenters(self) -> bool {
        matches!(self, Kind::Reentrant | Kind::Adaptive)
    }

    pub(crate) fn layout(self) -> Layout {
        match self {
            Kind::Reentrant => Layout::Hash,
            Kind::Adaptive => Layout::Learning,
            _ => Layout::Plain,
        }
    }

    /// Whether a lock of the other kind at the same key excludes one of this kind. If not, other data
    /// lies there.
    pub(crate) fn excludes(self, other: Kind) -> bool {
        (self.layout() == Layout::Hash) == (other.layout() == Layout::Hash)
    }

    /// The key of the lock that people call `name`.
    pub(crate) fn key(self, name: Name) -> Name {
        match self {
            Kind::RedisSemaphore => format!("mutex:{name}").into(),
            Kind::Article => format!("lock:{name}").into(),
            _ => name,
        }
    }

    /// `lease` as this kind writes it.
    pub(crate) fn lease(self, lease: Duration) -> Duration {
        match self {
            Kind::Article | Kind::Adaptive => Duration::from_secs(lease.as_millis().div_ceil(1000) as u64),
            _ => lease,
        }
    }
}

/// How a hold stands in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    /// The value that the caller wants, in place of one made of client and owner.
    pub(crate) token: Option<Arc<str>>,
}

impl Form {
    /// The owner as it stands in Redis.
    pub(crate) fn owner(&self, uuid: &str, owner: OwnerId) -> String {
        let mut text = Vec::new();
        self.write_owner(uuid, owner, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Writes that to the end of `out`.
    pub(super) fn write_owner(&self, uuid: &str, owner: OwnerId, out: &mut Vec<u8>) {
        match (&self.token, self.kind) {
            (Some(token), _) => out.extend_from_slice(token.as_bytes()),
            (None, Kind::Article) => {
                out.extend(uuid.bytes().filter(|byte| *byte != b'-'));
                out.push(b'-');
                write_number(out, owner);
            }
            (None, _) => {
                out.extend_from_slice(uuid.as_bytes());
                out.push(b':');
                write_number(out, owner);
            }
        }
    }
}

/// What an adaptive lock learns when it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lesson {
    /// The lease that was asked for.
    pub(crate) asked: Duration,
    /// How long the lock was held.
    pub(crate) took: Duration,
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
        let owner = |kind| Form { kind, token: None }.owner(uuid, 7);
        assert_eq!(owner(Kind::Reentrant), format!("{uuid}:7"));
        assert_eq!(owner(Kind::Simple), format!("{uuid}:7"));
        assert_eq!(owner(Kind::Article), "8c8ffe615bd34d78a5c02d2386af488e-7");
        assert_eq!(Form { kind: Kind::Simple, token: Some("t".into()) }.owner(uuid, 7), "t");
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
    fn only_hashes_and_strings_are_foreign_to_each_other() {
        assert!(Kind::Simple.excludes(Kind::Adaptive) && Kind::Article.excludes(Kind::RedisPy));
        assert!(Kind::Reentrant.excludes(Kind::Reentrant) && !Kind::Reentrant.excludes(Kind::Simple));
        assert!(!Kind::Adaptive.excludes(Kind::Reentrant));
    }

    #[test]
    fn whole_seconds_are_rounded_up() {
        let lease = Duration::from_millis(2001);
        assert_eq!(Kind::Article.lease(lease), Duration::from_secs(3));
        assert_eq!(Kind::Adaptive.lease(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(Kind::Simple.lease(lease), lease);
    }
}
