//! Finds the locks of all servers by `SCAN`. It reads only; keys that are no locks are left alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::ErrorKind;
use redlatch::embed::names::{MODE, WRITER, semaphore_of, taken_key};
use redlatch::embed::{Inspector, Value};

use crate::failure::{Exit, Failure};
use crate::held::{Held, Owner};
use crate::pattern;
use crate::reply::{pairs, to};
use crate::shown::shown;

/// How many keys a server looks at for one answer.
const COUNT: &str = "1000";
/// A hash with more fields than this is not read, and no more permits of a semaphore.
const MOST_HOLDERS: u64 = 1024;
/// The place of the first permit that is read: one more than are shown.
const FIRST_PERMIT: &str = "-1025";
const _: () = match i64::from_str_radix(FIRST_PERMIT, 10) {
    Ok(place) => assert!(place.unsigned_abs() == MOST_HOLDERS + 1),
    Err(_) => panic!("no number"),
};
/// The longest owner that a plain key may have, in bytes.
const LONGEST_OWNER: u64 = 128;

/// The answer to PTTL for a key that does not exist.
const GONE: i64 = -2;

/// The cursor at the beginning and at the end.
const END: &str = "0";

/// The locks that were found, and what it took.
pub(crate) struct Scanned {
    /// Sorted by name.
    pub(crate) locks: Vec<Held>,
    /// The number of SCAN commands.
    pub(crate) scans: usize,
    pub(crate) servers: usize,
}

/// All locks whose names fit the pattern.
pub(crate) fn locks(inspector: &mut Inspector, pattern: &str) -> Result<Scanned, Failure> {
    let (mut found, mut scans) = (Vec::new(), 0);
    let of_keys = pattern::of_keys(pattern);
    let servers = inspector.nodes().len();
    for node in 0..servers {
        let mut here = Vec::new();
        let mut cursor = END.to_owned();
        loop {
            let (following, mut keys) = next(inspector, node, &of_keys, &cursor)?;
            scans += 1;
            keys.retain(|key| {
                let of_permits =
                    semaphore_of(key).is_some_and(|name| pattern::fits(pattern, &name));
                of_permits || pattern::fits(pattern, key)
            });
            here.extend(read(inspector, node, keys)?);
            cursor = following;
            if cursor == END {
                break;
            }
        }
        // SCAN may name a key twice.
        here.sort_by(|one: &Held, other| one.name.cmp(&other.name));
        here.dedup_by(|one, other| one.name == other.name);
        found.append(&mut here);
    }
    // A key with permits may fit where its semaphore does not.
    found.retain(|held| pattern::fits(pattern, &held.name));
    let mut found = of_most(inspector, found)?;
    // A key that moves from one node of a cluster to another is seen at both.
    found.sort_by(|one: &Held, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    Ok(Scanned {
        locks: found,
        scans,
        servers,
    })
}

/// The locks of a quorum that are held, or may be: most of its servers have them, or could have them, with the servers that
/// cannot be reached. A lock that fewer have belongs to a caller that waits, or is what is left of a hold. Without a quorum every
/// lock that was found is held.
fn of_most(inspector: &Inspector, found: Vec<Held>) -> Result<Vec<Held>, Failure> {
    let (needed, there) = (inspector.needed(), inspector.nodes().len());
    if needed == 1 {
        return Ok(found);
    }
    if there < needed {
        return Err(Failure::new(
            Exit::Unavailable,
            format!(
                "only {there} of the servers of the quorum can be reached, and it takes {needed} to hold a lock"
            ),
        ));
    }
    let mut by_name: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for held in found {
        by_name.entry(held.name.clone()).or_default().push(held);
    }
    let all = by_name.into_values();
    let seen = needed - inspector.missing();
    Ok(all.filter_map(|parts| whole(parts, needed, seen)).collect())
}

/// The lock of a quorum that these servers have, if `seen` of them are enough. Its owner differs from server to server,
/// and all its owners belong to one client. With other libraries nobody can tell which owners are one.
fn whole(parts: Vec<Held>, needed: usize, seen: usize) -> Option<Held> {
    // Servers that cannot be reached may have more parts.
    let more = parts.len() < needed;
    let enough = if more { seen } else { needed };
    let mut by_client: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for held in parts {
        let client = held.owners.first().map(|owner| client_of(&owner.name));
        let client = client.unwrap_or_default().to_owned();
        by_client.entry(client).or_default().push(held);
    }
    let is_alone = more && by_client.len() == 1;
    let one = by_client
        .iter()
        .find(|(_, parts)| is_alone || parts.len() >= needed);
    let one = one.map(|(client, _)| client.clone());
    let mut parts: Vec<Held> = match &one {
        Some(client) => by_client.remove(client)?,
        None => by_client.into_values().flatten().collect(),
    };
    // It ends when too few are left.
    parts.sort_by_key(|held| Reverse(held.remaining.unwrap_or(Duration::MAX)));
    let remaining = parts.get(enough.checked_sub(1)?)?.remaining;
    let mut owners: Vec<Owner> = parts.iter().flat_map(|held| held.owners.clone()).collect();
    if let Some(client) = one {
        let levels = owners.iter().map(|owner| owner.levels).max()?;
        owners = vec![Owner::new(client, levels)];
    }
    let first = parts.into_iter().next()?;
    Some(Held {
        owners,
        remaining,
        more,
        ..first
    })
}

/// The id of the client in an owner, which begins with it.
fn client_of(owner: &str) -> &str {
    match owner.rsplit_once('-') {
        Some((client, _)) if is_owner(owner) => client,
        _ => owner,
    }
}

/// A lock that is held, or what else a name has.
pub(crate) enum Found {
    Held(Held),
    /// A plain semaphore, a latch, and a semaphore whose permits are all free look alike.
    Number(i64),
    Nothing,
}

/// The lock of this name as it is stored, whatever its kind.
///
/// # Errors
/// Also if servers of a quorum cannot be reached that decide whether it is held.
pub(crate) fn lock(inspector: &mut Inspector, name: &str) -> Result<Found, Failure> {
    if let Some(held) = at(inspector, name)? {
        return Ok(Found::Held(held));
    }
    // The rights of a user without semaphores do not reach the other key.
    let Some(number) = number(inspector, name)? else {
        return Ok(Found::Nothing);
    };
    Ok(at(inspector, &taken_key(name))?.map_or(Found::Number(number), Found::Held))
}

/// The lock that this key keeps.
fn at(inspector: &mut Inspector, key: &str) -> Result<Option<Held>, Failure> {
    let mut found = Vec::new();
    for node in 0..inspector.nodes().len() {
        // The other nodes of a cluster refuse the key.
        found.append(&mut read(inspector, node, vec![key.to_owned()])?);
    }
    let (parts, missing) = (found.len(), inspector.missing());
    let held = of_most(inspector, found)?.pop();
    if parts < inspector.needed() && parts + missing >= inspector.needed() {
        let text = format!(
            "{}: {parts} of the servers of the quorum have it, and {missing} cannot be reached; it may be held",
            shown(key)
        );
        return Err(Failure::new(Exit::Unavailable, text));
    }
    Ok(held)
}

/// The number at this name, such as that of the free permits of a semaphore.
fn number(inspector: &mut Inspector, name: &str) -> Result<Option<i64>, Failure> {
    for node in 0..inspector.nodes().len() {
        // The other nodes of a cluster refuse the key.
        let free = ask_each(inspector, node, vec![name], |name| vec!["GET", name])?;
        let free = free.into_iter().find_map(|(_, reply)| to::<String>(reply?));
        if let Some(number) = free.and_then(|free| free.parse().ok()) {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

type Key = String;

/// The next cursor and the keys of one answer. A name that is not UTF-8 is none of a lock's.
fn next(
    inspector: &mut Inspector,
    node: usize,
    pattern: &str,
    cursor: &str,
) -> Result<(String, Vec<Key>), Failure> {
    let scan = vec!["SCAN", cursor, "MATCH", pattern, "COUNT", COUNT];
    let reply = inspector.ask(node, &[scan])?.pop().transpose()?;
    let (cursor, keys) = reply
        .and_then(to::<(String, Vec<Value>)>)
        .unwrap_or_else(|| (END.to_owned(), Vec::new()));
    Ok((cursor, keys.into_iter().filter_map(to::<Key>).collect()))
}

/// How a lock may be stored, with the commands that read its size and its content.
#[derive(Debug, Clone, Copy)]
struct Stored {
    kind: &'static str,
    size: &'static str,
    most: u64,
    content: &'static str,
}

const STORED: [Stored; 2] = [
    Stored {
        kind: "hash",
        size: "HLEN",
        most: MOST_HOLDERS,
        content: "HGETALL",
    },
    Stored {
        kind: "string",
        size: "STRLEN",
        most: LONGEST_OWNER,
        content: "GET",
    },
];

/// Reads those of the keys that are locks: type first, then size, then content, so that big data of
/// others is not fetched.
fn read(inspector: &mut Inspector, node: usize, keys: Vec<Key>) -> Result<Vec<Held>, Failure> {
    let types = ask_each(inspector, node, keys, |key| vec!["TYPE", key])?;
    let (sets, types): (Vec<_>, Vec<_>) = types.into_iter().partition(|(key, reply)| {
        let kind = reply.clone().and_then(to::<String>);
        kind.as_deref() == Some("zset") && semaphore_of(key).is_some()
    });
    let semaphores = semaphores(
        inspector,
        node,
        sets.into_iter().map(|(key, _)| key).collect(),
    )?;
    let stored = types.into_iter().filter_map(|(key, reply)| {
        let kind: String = to(reply?)?;
        let stored = STORED.iter().find(|stored| stored.kind == kind)?;
        Some((key, stored))
    });
    let sizes = ask_each(inspector, node, stored.collect(), |(key, stored)| {
        vec![stored.size, key]
    })?;
    let small = sizes
        .into_iter()
        .filter(|((_, stored), reply)| {
            let size = reply.clone().and_then(to::<u64>);
            size.is_some_and(|size| size <= stored.most)
        })
        .map(|(asked, _)| asked);
    let (hashes, texts): (Vec<_>, Vec<_>) = small.partition(|(_, stored)| stored.kind == "hash");
    // The values of a field may be big, so the names come first.
    let names = ask_each(inspector, node, hashes, |(key, _)| vec!["HKEYS", key])?;
    let locks = names.into_iter().filter(|(_, names)| {
        let names = names.clone().and_then(to::<Vec<String>>);
        names.is_some_and(|names| names.iter().all(|name| is_field(name)))
    });
    let wanted = locks.map(|(asked, _)| asked).chain(texts).collect();
    let contents = ask_each(inspector, node, wanted, |(key, stored)| {
        vec![stored.content, key]
    })?;
    let times = ask_each(inspector, node, contents, |((key, _), _)| vec!["PTTL", key])?;
    let locks = times
        .into_iter()
        .filter_map(|(((key, _), content), time)| held(key, to(time?)?, content?));
    Ok(locks.chain(semaphores).collect())
}

/// Reads those of these sorted sets that are taken permits.
fn semaphores(
    inspector: &mut Inspector,
    node: usize,
    keys: Vec<Key>,
) -> Result<Vec<Held>, Failure> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let time = inspector.ask(node, &[vec!["TIME"]])?.pop().transpose()?;
    let now = time.and_then(to::<(u64, u64)>);
    let now = now.map_or(0, |(seconds, micros)| seconds * 1000 + micros / 1000);
    // Permits whose time is over may lie there too. They come first, so the reply is cut there.
    let sets = ask_each(inspector, node, keys, |key| {
        vec!["ZRANGE", key, FIRST_PERMIT, "-1", "WITHSCORES"]
    })?;
    let permits = sets.into_iter().filter_map(|(key, reply)| {
        let ids = pairs::<Vec<u8>, f64>(reply?)?;
        semaphore(semaphore_of(&key)?, now, ids)
    });
    Ok(permits.collect())
}

/// The semaphore that has these taken permits, unless the time of all of them is over. There may be
/// more if there are more than [`MOST_HOLDERS`].
fn semaphore(name: String, now: u64, ids: Vec<(Vec<u8>, f64)>) -> Option<Held> {
    let (mut owners, mut ends): (Vec<Owner>, f64) = (Vec::new(), 0.0);
    let taken: Vec<_> = ids.iter().filter(|(_, end)| *end > now as f64).collect();
    let more = taken.len() as u64 > MOST_HOLDERS;
    for (id, end) in taken {
        // Redisson up to 3.16 writes 32 digits. The permits of one of our owners differ in the last 2 bytes.
        let [begin @ .., _, _] = <&[u8; 16]>::try_from(id.as_slice()).ok()?;
        ends = ends.max(*end);
        let begin: String = begin.iter().map(|byte| format!("{byte:02x}")).collect();
        match owners
            .iter_mut()
            .find(|owner| owner.name.starts_with(&begin))
        {
            Some(owner) => owner.levels += 1,
            None => {
                let name = id.iter().map(|byte| format!("{byte:02x}")).collect();
                owners.push(Owner::new(name, 1));
            }
        }
    }
    owners.sort_by(|one, other| one.name.cmp(&other.name));
    (!owners.is_empty()).then(|| Held {
        name,
        kind: "semaphore",
        owners,
        // Redisson keeps a permit without a lease until a time like this.
        remaining: (ends < 9e14).then(|| Duration::from_millis(ends as u64 - now)),
        more,
        waiting: None,
        permits: None,
    })
}

/// Sends a command for each of these, and gives back the reply with it. A key may change its type, or
/// move to another node, between two commands: then there is no reply.
fn ask_each<T>(
    inspector: &mut Inspector,
    node: usize,
    asked: Vec<T>,
    command: impl Fn(&T) -> Vec<&str>,
) -> Result<Vec<(T, Option<Value>)>, Failure> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let commands: Vec<Vec<&str>> = asked.iter().map(command).collect();
    let replies = inspector.ask(node, &commands)?;
    // A missing right would make the list shorter without a word.
    let replies = replies.into_iter().map(|reply| match reply {
        Err(error) if error.kind() == ErrorKind::Denied => Err(error),
        reply => Ok(reply.ok()),
    });
    let replies = replies.collect::<redlatch::Result<Vec<Option<Value>>>>()?;
    Ok(std::iter::zip(asked, replies).collect())
}

/// The lock that these contents are, if they are one.
fn held(name: String, remaining: i64, content: Value) -> Option<Held> {
    let (kind, owners) = match content {
        Value::BulkString(owner) => {
            let owner = String::from_utf8(owner).ok()?;
            let kind = if is_owner(&owner) {
                "simple"
            } else if is_article_owner(&owner) {
                "article"
            } else {
                return None;
            };
            (kind, vec![Owner::new(owner, 1)])
        }
        fields => hash(pairs(fields)?)?,
    };
    if remaining == GONE {
        return None;
    }
    let remaining = u64::try_from(remaining).ok().map(Duration::from_millis);
    Some(Held {
        name,
        kind,
        owners,
        remaining,
        more: false,
        waiting: None,
        permits: None,
    })
}

/// The owners that the fields of a hash name, if it is a lock.
fn hash(fields: Vec<(String, String)>) -> Option<(&'static str, Vec<Owner>)> {
    let mode = fields.iter().find(|(field, _)| field == MODE);
    let kind = match mode.map(|(_, mode)| mode.as_str()) {
        None if fields.len() == 1 => "reentrant",
        Some("read") => "read",
        Some("write") => "write",
        _ => return None,
    };
    let mut owners = fields
        .iter()
        .filter(|(field, _)| field != MODE)
        .map(|(field, count)| {
            let owner = match kind {
                "reentrant" => field,
                _ => field.strip_suffix(WRITER).unwrap_or(field),
            };
            is_owner(owner).then_some(())?;
            Some(Owner::new(field.clone(), count.parse().ok()?))
        })
        .collect::<Option<Vec<Owner>>>()?;
    owners.sort_by(|one, other| one.name.cmp(&other.name));
    (!owners.is_empty()).then_some((kind, owners))
}

/// Whether a hash with this field may be a lock.
fn is_field(name: &str) -> bool {
    name == MODE || is_owner(name.strip_suffix(WRITER).unwrap_or(name))
}

/// Whether redlatch or Redisson may have written this owner.
pub(crate) fn is_known_owner(text: &str) -> bool {
    is_owner(text) || is_article_owner(text)
}

/// `<uuid>:<number>`, as redlatch and Redisson write owners.
fn is_owner(text: &str) -> bool {
    let groups = |uuid: &str| {
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12] && hex(&uuid.replace('-', ""))
    };
    text.split_once(':')
        .is_some_and(|(uuid, number)| groups(uuid) && is_number(number))
}

/// `<32 hex digits>-<number>`.
fn is_article_owner(text: &str) -> bool {
    text.split_once('-')
        .is_some_and(|(uuid, number)| uuid.len() == 32 && hex(uuid) && is_number(number))
}

fn hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e";

    fn fields(fields: &[(&str, &str)]) -> Option<(&'static str, Vec<Owner>)> {
        let owned = |(field, value): &(&str, &str)| ((*field).to_owned(), (*value).to_owned());
        hash(fields.iter().map(owned).collect())
    }

    #[test]
    fn a_lock_is_known_by_its_owners() {
        let owner = format!("{UUID}:17");
        let (kind, owners) = fields(&[(&owner, "2")]).expect("a lock");
        assert_eq!(
            (kind, owners),
            ("reentrant", vec![Owner::new(owner.clone(), 2)])
        );
        let other = format!("{UUID}:18");
        let (kind, owners) =
            fields(&[(&other, "1"), ("mode", "read"), (&owner, "1")]).expect("readers");
        assert_eq!((kind, owners.len()), ("read", 2));
        let writer = format!("{owner}:write");
        assert_eq!(
            fields(&[("mode", "write"), (&writer, "1")])
                .expect("a writer")
                .0,
            "write"
        );
    }

    #[test]
    fn permits_are_shown_by_their_owners() {
        let id = |last: [u8; 2]| [&[7; 14][..], &last].concat();
        let ids = vec![
            (id([0, 0]), 9000.0),
            (id([0, 1]), 9000.0),
            (vec![9; 16], 8000.0),
            (vec![1; 16], 900.0),
        ];
        let held = semaphore("s".to_owned(), 1000, ids).expect("two owners");
        let owners: Vec<(&str, u32)> = held
            .owners
            .iter()
            .map(|owner| (&*owner.name, owner.levels))
            .collect();
        let (ours, other) = (format!("{}0000", "07".repeat(14)), "09".repeat(16));
        assert_eq!(owners, [(&*ours, 2), (&*other, 1)]);
        assert_eq!(held.remaining, Some(Duration::from_secs(8)));
        assert_eq!(
            semaphore("s".to_owned(), 1000, vec![(b"a".to_vec(), 9e9)]),
            None
        );
    }

    #[test]
    fn a_lock_that_has_ended_is_not_shown() {
        let content = || Value::BulkString(format!("{UUID}:17").into_bytes());
        let lock = |remaining| held("n".to_owned(), remaining, content());
        assert_eq!(lock(GONE), None);
        assert_eq!(lock(-1).expect("a lock").remaining, None);
        let remaining = Some(Duration::from_millis(5));
        assert_eq!(lock(5).expect("a lock").remaining, remaining);
    }

    #[test]
    fn other_data_are_no_locks() {
        let owner = format!("{UUID}:17");
        assert_eq!(fields(&[]), None);
        assert_eq!(fields(&[("mode", "read")]), None);
        assert_eq!(fields(&[("mode", "turbo"), (&owner, "1")]), None);
        assert_eq!(fields(&[(&owner, "many")]), None);
        assert_eq!(fields(&[(&owner, "1"), ("price", "3")]), None);
        assert_eq!(fields(&[(&owner, "1"), (&format!("{UUID}:18"), "1")]), None);
        for text in [
            "",
            ":",
            "name:1",
            UUID,
            &format!("{UUID}:"),
            &format!("{UUID}:x"),
            &format!("{owner}:write"),
        ] {
            assert!(!is_owner(text), "{text}");
        }
        assert!(
            is_article_owner(&format!("{}-5", UUID.replace('-', ""))) && !is_article_owner(&owner)
        );
    }
}
