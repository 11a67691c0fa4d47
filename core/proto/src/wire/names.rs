//! Lock names, and the keys and channels derived from them (Redisson's rules).

use super::ids::{Name, OwnerId, first_owner, write_identity};
use super::kind::{Form, Kind};
use crate::error::{Error, Result, Thing};
use crate::primitives::counters::change::Counter;
use crate::primitives::facts::Topic;
use crate::primitives::semaphore::facts::seat;

/// The longest lock name, in bytes.
const LONGEST: usize = 1024;

/// Checks a lock name: 1 to 1,024 bytes.
pub fn name(text: &str) -> Result<Name> {
    match text.len() {
        0 => Err(Error::invalid(
            "the lock name is empty; give it 1 to 1,024 bytes of UTF-8",
        )),
        1..=LONGEST => Ok(Name::from(text)),
        long => Err(Error::invalid(format!(
            "the lock name has {long} bytes; give it 1 to 1,024 bytes"
        ))),
    }
}

/// Checks a lock name that may not be valid UTF-8.
pub fn name_from_bytes(bytes: &[u8]) -> Result<Name> {
    match std::str::from_utf8(bytes) {
        Ok(text) => name(text),
        Err(error) => {
            let at = error.valid_up_to();
            Err(Error::invalid(format!(
                "the lock name is not UTF-8 from byte {at} on; encode it as UTF-8"
            )))
        }
    }
}

/// `prefix:{name}`, or `prefix:name` if the name contains `{`. For well-formed names the slot is
/// that of the lock.
fn prefixed<'a>(prefix: &'a str, name: &'a str) -> [&'a str; 4] {
    if name.contains('{') {
        [prefix, ":", name, ""]
    } else {
        [prefix, ":{", name, "}"]
    }
}

/// Another name that Redisson's rules give the same keys: `x` for `{x}`. All keys but that of the name
/// itself come from `{x}` in both.
fn namesake(name: &str) -> Option<&str> {
    let inner = name.strip_prefix('{')?.strip_suffix('}')?;
    (!inner.is_empty() && !inner.contains('{')).then_some(inner)
}

/// Why a lock, semaphore or latch (`thing`) cannot have this name, if it needs keys beside the one
/// that is named so.
pub(crate) fn shared_keys(name: &str, thing: Thing) -> Option<Error> {
    let inner = namesake(name)?;
    Some(Error::invalid(format!(
        "a {thing} with this name would share keys with one named {inner:?}, as Redis has further keys of both under \
         {name:?}; name it {inner:?}, which is in the same slot of a cluster, or put a word before or behind the braces"
    )))
}

/// The channel on which a release is published.
pub fn channel(topic: Topic, name: &str) -> String {
    channel_parts(topic, name).concat()
}

/// The channel that the client `uuid` has to subscribe to.
pub fn channel_for(uuid: &str, topic: Topic, name: &str) -> String {
    let channel = channel(topic, name);
    match topic {
        Topic::Place(owner) => channel + ":" + &Form::default().owner(uuid, owner),
        Topic::Seat(owner) => channel + ":" + &seat(uuid, owner),
        Topic::Lock | Topic::ReadWrite | Topic::Semaphore | Topic::Latch => channel,
    }
}

/// The parts of the channel's name without the owner, for callers that write it to a buffer.
pub(crate) fn channel_parts(topic: Topic, name: &str) -> [&str; 4] {
    let prefix = match topic {
        Topic::Lock | Topic::Place(_) => "redisson_lock__channel",
        Topic::ReadWrite => "redisson_rwlock",
        Topic::Semaphore | Topic::Seat(_) => "redisson_sc",
        // Redisson puts braces around every name here, also around one that has some.
        Topic::Latch => return ["redisson_countdownlatch__channel__", "{", name, "}"],
    };
    prefixed(prefix, name)
}

/// The beginning of the time-out keys of all readers of a name; the owner follows.
pub(crate) fn timeout_prefix(name: &str) -> [&str; 3] {
    if name.contains('{') {
        ["", name, ":"]
    } else {
        ["{", name, "}:"]
    }
}

/// The key of the taken permits of a semaphore.
pub fn taken_key(name: &str) -> String {
    timeout_prefix(name).concat() + "timeout"
}

/// The semaphore whose taken permits a key of this name keeps.
pub fn semaphore_of(key: &str) -> Option<String> {
    let name = key.strip_suffix(":timeout")?;
    let name = namesake(name).unwrap_or(name);
    (taken_key(name) == key).then(|| name.to_owned())
}

/// The field with the mode of a read-write lock.
pub const MODE: &str = "mode";

/// What the owner that writes ends with in the hash of such a lock.
pub const WRITER: &str = ":write";

/// The keys that say who has a lock or semaphore of this name, whatever its kind.
pub fn held_keys(name: &str) -> Vec<String> {
    let kinds = Kind::ALL.into_iter().filter_map(Kind::named);
    let locks = kinds.map(|kind| kind.key(name.into()).to_string());
    let mut keys: Vec<String> = locks.chain([taken_key(name)]).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The key in which the client of this writer notes its last change of a counter. A semaphore and a
/// latch of one name have a command each in flight, and so a key each.
pub(crate) fn marker_key(uuid: &str, counter: Counter, name: &str, writer: OwnerId) -> String {
    let mut key = timeout_prefix(name).concat().into_bytes();
    key.extend_from_slice(match counter {
        Counter::Semaphore => b"redlatch:",
        Counter::Latch => b"redlatch:latch:",
    });
    write_identity(uuid, writer, &mut key);
    String::from_utf8_lossy(&key).into_owned()
}

/// The key in which a writer that waits notes itself. New readers stand back while it is there.
pub(crate) fn writer_mark_key(name: &str) -> String {
    timeout_prefix(name).concat() + "redlatch:writer"
}

/// The set of the places in a crowd. The names `a` and `{a}` have one each.
pub fn crowd_key(name: &str) -> String {
    let braces = if name.contains('{') { "{}" } else { "" };
    timeout_prefix(name).concat() + "redlatch:crowd" + braces
}

/// How a time-out key goes on after the owner. Each of our owners has one.
pub(crate) const TIMEOUT_SUFFIX: &str = ":rwlock_timeout:1";

/// The key that keeps the time of a reader.
pub(crate) fn timeout_key(uuid: &str, name: &str, form: &Form, owner: OwnerId) -> String {
    let prefix = timeout_prefix(name).concat();
    prefix + &form.owner(uuid, owner) + TIMEOUT_SUFFIX
}

/// The owner that has this time-out key, if it is one of ours. The owner of another client has
/// another last group of its uuid.
pub(crate) fn reader_of(key: &str) -> Option<OwnerId> {
    const DIGITS: usize = 12;
    let (uuid, number) = key.strip_suffix(TIMEOUT_SUFFIX)?.rsplit_once(':')?;
    let group = uuid.get(uuid.len().checked_sub(DIGITS)?..)?;
    let group = u64::from_str_radix(group, 16).ok()?;
    let number: OwnerId = number.parse().ok()?;
    (number < first_owner(1)).then(|| first_owner(group) + number)
}

/// The keys of the queue of a fair lock: its owners in their order, and their times.
pub fn queue_keys(name: &str) -> [String; 2] {
    ["redisson_lock_queue", "redisson_lock_timeout"].map(|prefix| prefixed(prefix, name).concat())
}

/// The keys of the queue of a fair semaphore: its owners in their order, and their times. Redisson has
/// no fair semaphore, so these keys are named as our other keys are.
pub fn permit_queue_keys(name: &str) -> [String; 2] {
    ["redlatch:queue", "redlatch:places"].map(|suffix| timeout_prefix(name).concat() + suffix)
}

/// The key of the fencing counter.
pub fn token_key(name: &str) -> String {
    prefixed("redisson_lock_token", name).concat()
}

/// The key in which an adaptive lock keeps the learnt duration of the work.
pub fn learnt_key(name: &str) -> String {
    format!("{name}_renew")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn derived_names_follow_redisson() {
        let lock = |name| channel(Topic::Lock, name);
        assert_eq!(lock("orders"), "redisson_lock__channel:{orders}");
        assert_eq!(lock("{eu}:orders"), "redisson_lock__channel:{eu}:orders");
        assert_eq!(lock("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(
            channel(Topic::ReadWrite, "orders"),
            "redisson_rwlock:{orders}"
        );
        assert_eq!(channel(Topic::Semaphore, "orders"), "redisson_sc:{orders}");
        let place = channel_for("u", Topic::Place(7), "orders");
        assert_eq!(place, "redisson_lock__channel:{orders}:u:7");
        let uuid = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";
        let seat = channel_for(uuid, Topic::Seat(7), "orders");
        assert_eq!(seat.len(), "redisson_sc:{orders}:".len() + 28);
        let keys = ["redisson_lock_queue:a{b}", "redisson_lock_timeout:a{b}"];
        assert_eq!(queue_keys("a{b}"), keys);
        let keys = ["{o}:redlatch:queue", "{o}:redlatch:places"];
        assert_eq!(permit_queue_keys("o"), keys);
        assert_eq!(taken_key("orders"), "{orders}:timeout");
        assert_eq!(taken_key("a{b}c"), "a{b}c:timeout");
        for name in ["s", "a{b}c", "a:timeout"] {
            assert_eq!(semaphore_of(&taken_key(name)).as_deref(), Some(name));
        }
        assert_eq!(semaphore_of("s:timeout"), None);
        let latch = |name| channel(Topic::Latch, name);
        assert_eq!(latch("o"), "redisson_countdownlatch__channel__{o}");
        assert_eq!(latch("a{b}"), "redisson_countdownlatch__channel__{a{b}}");
        let uuid = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";
        assert_eq!(
            marker_key(uuid, Counter::Semaphore, "o", 0xabcd << 16),
            "{o}:redlatch:8c8ffe61-5bd3-4d78-a5c0-00000000abcd"
        );
        assert_eq!(
            marker_key(uuid, Counter::Latch, "a{b}", 0),
            format!("a{{b}}:redlatch:latch:{uuid}")
        );
        assert_eq!(writer_mark_key("orders"), "{orders}:redlatch:writer");
        assert_eq!(timeout_prefix("orders").concat(), "{orders}:");
        assert_eq!(timeout_prefix("a{b}c").concat(), "a{b}c:");
        assert_eq!(token_key("orders"), "redisson_lock_token:{orders}");
    }

    #[test]
    fn names_that_share_keys_are_told_apart() {
        let names = [
            "x", "{x}", "a{x}", "{x}a", "{{x}}", "{}", "x}", "{x}}", "{x", "}", "{", "{x}{y}",
        ];
        for one in names {
            for other in names.into_iter().filter(|other| *other != one) {
                let same = timeout_prefix(one).concat() == timeout_prefix(other).concat();
                let refused = [one, other].map(|name| shared_keys(name, Thing::Lock).is_some());
                assert!(!same || refused.contains(&true), "{one} {other}");
            }
        }
        for good in ["x", "a{x}", "{x}a", "{{x}}", "{}", "{x}{y}"] {
            assert!(shared_keys(good, Thing::Lock).is_none(), "{good}");
        }
    }

    #[test]
    fn names_have_bounds() {
        assert!(name("ö").is_ok() && name(&"x".repeat(1024)).is_ok());
        for bad in ["", &"x".repeat(1025)] {
            assert_eq!(
                name(bad).map_err(|error| error.kind()),
                Err(ErrorKind::InvalidArgument)
            );
        }
        let error = name_from_bytes(b"ab\xff").expect_err("not UTF-8");
        assert!(error.to_string().contains("byte 2"), "{error}");
    }
}
