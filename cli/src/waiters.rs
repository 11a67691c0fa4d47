//! How many clients wait for a lock. A waiter listens to the channel on which the release is published. A
//! waiter of a fair lock also stands in its queue.

use redlatch::Kind;
use redlatch::embed::{Inspector, Value, channels, queue};

use crate::held::Held;
use crate::reply::to;

/// The waiters of a lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// `None` if the server does not tell.
    pub(crate) number: Option<u64>,
    /// They stand in the queue of a fair lock.
    pub(crate) queue: bool,
}

/// Fills in who waits for these locks.
pub(crate) fn fill(inspector: &mut Inspector, locks: &mut [Held]) -> redlatch::Result<()> {
    let names: Vec<&str> = locks.iter().map(|held| held.name.as_str()).collect();
    let counts = count(inspector, &names)?;
    for (held, waiting) in locks.iter_mut().zip(counts) {
        held.waiting = waiting.number;
        // Only its queue tells a fair lock from a re-entrant one.
        if waiting.queue && held.kind == Kind::Reentrant.name() {
            held.kind = Kind::Fair.name();
        }
    }
    Ok(())
}

/// How many names are asked for at a time. The server answers one command for all channels of these, and serves
/// nobody meanwhile.
const AT_A_TIME: usize = 1000;

/// The number of waiting clients for each of these locks; `None` if the server does not tell. A
/// client that has waited listens a little longer, and other programs may listen too, so a number
/// may be too high.
///
/// Sharded channels, which a server before Redis 7 does not know, are asked for in a cluster only.
pub(crate) fn count(inspector: &mut Inspector, names: &[&str]) -> redlatch::Result<Vec<Waiting>> {
    let mut counts = Vec::with_capacity(names.len());
    for some in names.chunks(AT_A_TIME) {
        counts.extend(count_some(inspector, some)?);
    }
    Ok(counts)
}

fn count_some(inspector: &mut Inspector, names: &[&str]) -> redlatch::Result<Vec<Waiting>> {
    let mut counts = vec![Waiting::default(); names.len()];
    let each: Vec<[String; 3]> = names.iter().map(|name| channels(name)).collect();
    let kinds: &[&str] = match inspector.topology() {
        "cluster" => &["NUMSUB", "SHARDNUMSUB"],
        _ => &["NUMSUB"],
    };
    let command = |kind: &&'static str| {
        let words = ["PUBSUB", kind].into_iter();
        let channels = each.as_flattened().iter().map(String::as_str);
        words.chain(channels).collect()
    };
    let queues: Vec<String> = names.iter().map(|name| queue(name)).collect();
    let lengths = queues.iter().map(|queue| vec!["LLEN", &**queue]);
    let commands: Vec<Vec<&str>> = kinds.iter().map(command).chain(lengths).collect();
    for node in 0..inspector.nodes().len() {
        let mut replies = inspector.ask(node, &commands)?;
        // Only the node that has a queue answers with its length.
        for (at, length) in replies.split_off(kinds.len()).into_iter().enumerate() {
            let length = length.ok().and_then(to::<u64>).unwrap_or(0);
            if let Some(count) = counts.get_mut(at).filter(|_| length > 0) {
                count.queue = true;
                count.number = Some(count.number.unwrap_or(0).saturating_add(length));
            }
        }
        for reply in replies {
            let reply = reply.ok().and_then(to::<Vec<Value>>).unwrap_or_default();
            // Channels and numbers in turn, in the order in which they were asked for.
            let numbers = reply.into_iter().skip(1).step_by(2).map(to::<u64>);
            for (at, number) in numbers.enumerate() {
                // A name has one kind of lock, so nobody waits on its other channels.
                if let Some(count) = counts.get_mut(at / 3) {
                    let number = number.unwrap_or(0);
                    count.number = Some(count.number.unwrap_or(0).saturating_add(number));
                }
            }
        }
    }
    Ok(counts)
}
