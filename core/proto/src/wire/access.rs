//! What a server's user has to be allowed (ACL), for locks whose names match a pattern.

use super::kind::Kind;
use super::names::{
    channel, crowd_key, held_keys, learnt_key, permit_queue_keys, queue_keys, taken_key,
    timeout_prefix, token_key, writer_mark_key,
};
use crate::primitives::facts::{Layout, Topic};

/// A part of what programs do. Each needs rules besides those of [`Lock`](Part::Lock).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Every client, whatever it does.
    Lock,
    /// The counter of fencing tokens.
    Fencing,
    /// The places of a crowd. Without them, all its clients are woken by each release.
    Crowd,
    Fair,
    ReadWrite,
    /// The mark of a writer that waits.
    WriterPreference,
    Adaptive,
    Semaphore,
    FairSemaphore,
    /// Plain semaphores and latches.
    Counter,
    /// Commands that Redis has from 7.0 on.
    Since7,
    Sentinel,
    Cluster,
    /// A cluster of servers before Redis 7.0.
    ClusterBefore7,
    /// The program `redlatch`, to show locks.
    Tool,
}

impl Part {
    /// What locks of this kind need besides.
    pub fn of(kind: Kind) -> &'static [Part] {
        match kind.layout() {
            Layout::Hash | Layout::Plain => &[Part::Crowd],
            Layout::Learning => &[Part::Adaptive, Part::Crowd],
            Layout::Read | Layout::Write => &[Part::ReadWrite, Part::Crowd],
            Layout::Permits => &[Part::Semaphore, Part::Crowd],
            Layout::Queued => &[Part::Fair],
            Layout::QueuedPermits => &[Part::Semaphore, Part::FairSemaphore],
        }
    }

    /// The keys, for names that match this pattern.
    pub fn keys(self, names: &str) -> Vec<String> {
        let own = |suffix: &str| timeout_prefix(names).concat() + suffix;
        let keys = match self {
            Part::Lock => vec![names.to_owned()],
            Part::Fencing => vec![token_key(names)],
            Part::Crowd => vec![crowd_key(names)],
            Part::Fair => queue_keys(names).into(),
            Part::ReadWrite => vec![own("*:rwlock_timeout:*")],
            Part::WriterPreference => vec![writer_mark_key(names)],
            Part::Adaptive => vec![learnt_key(names)],
            Part::Semaphore => vec![taken_key(names)],
            Part::FairSemaphore => permit_queue_keys(names).into(),
            Part::Counter => vec![own("redlatch:*")],
            // It looks for locks of all kinds.
            Part::Tool => [held_keys(names), queue_keys(names).into()].concat(),
            Part::Since7 | Part::Sentinel | Part::Cluster | Part::ClusterBefore7 => vec![],
        };
        keys.into_iter().map(shortened).collect()
    }

    /// The channels, for names that match this pattern.
    pub fn channels(self, names: &str) -> Vec<String> {
        let of = |topic| channel(topic, names);
        let channels = match self {
            Part::Lock => vec![of(Topic::Lock)],
            Part::Crowd | Part::Fair => vec![of(Topic::Lock) + ":*"],
            Part::ReadWrite => vec![of(Topic::ReadWrite)],
            Part::Semaphore => vec![of(Topic::Semaphore)],
            Part::FairSemaphore => vec![of(Topic::Semaphore) + ":*"],
            Part::Counter => vec![of(Topic::Semaphore), of(Topic::Latch)],
            Part::Fencing | Part::WriterPreference | Part::Adaptive => vec![],
            Part::Since7 | Part::Sentinel | Part::Cluster | Part::ClusterBefore7 | Part::Tool => {
                vec![]
            }
        };
        channels.into_iter().map(shortened).collect()
    }

    /// The commands, as `ACL SETUSER` takes them.
    pub fn commands(self) -> &'static str {
        match self {
            Part::Lock => {
                "+eval +evalsha +time +type +hmget +hlen +hgetall +pttl +hset +hdel +pexpire +del +get +set \
                 +publish +subscribe +unsubscribe +ping +select +info +wait +client|setname +client|tracking \
                 +exists +mget"
            }
            Part::Fencing | Part::Adaptive => "",
            Part::Crowd => "+zadd +zrem +zrange +zrank +zcount",
            Part::Fair => {
                "+lindex +lpos +lrange +lpush +rpush +lpop +lrem +lset +zscore +zadd +zrem"
            }
            Part::ReadWrite => "",
            Part::WriterPreference => "+zadd +zrem +zrange",
            Part::Semaphore => {
                "+zadd +zrem +zscore +zrange +zrangebyscore +zcard +zcount +incrby +persist"
            }
            Part::FairSemaphore => "+lindex +lpos +lrange +lpush +rpush +lpop +lrem +lset",
            Part::Counter => "+get +set +incrby +decrby",
            Part::Since7 => "+pexpiretime",
            Part::Sentinel => "+role",
            Part::Cluster => {
                "+cluster|slots +asking +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe"
            }
            Part::ClusterBefore7 => "+cluster +asking +pubsub",
            Part::Tool => {
                "+info +client|list +pubsub|numsub +scan +type +hlen +strlen +hkeys +hgetall +get +pttl +zrange +time \
                 +llen"
            }
        }
    }
}

/// Everything in these parts once: keys, channels, commands.
pub fn rules(parts: &[Part], names: &str) -> Vec<String> {
    let keys = parts.iter().flat_map(|part| part.keys(names));
    let channels = parts.iter().flat_map(|part| part.channels(names));
    let commands = parts.iter().flat_map(|part| part.commands().split(' '));
    let mut rules: Vec<String> = Vec::new();
    let all = keys
        .map(|key| format!("~{key}"))
        .chain(channels.map(|channel| format!("&{channel}")))
        .chain(commands.map(str::to_owned));
    for rule in all.filter(|rule| !rule.is_empty()) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

/// `*` matches a brace behind it as well.
fn shortened(pattern: String) -> String {
    pattern.replace("*}", "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_follow_the_names_of_keys() {
        let rules = |parts: &[Part], names| {
            let rules = rules(parts, names);
            let patterns = rules.into_iter().filter(|rule| !rule.starts_with('+'));
            patterns.collect::<Vec<_>>().join(" ")
        };
        let two = [Part::Lock, Part::Fencing];
        assert_eq!(
            rules(&two, "orders*"),
            "~orders* ~redisson_lock_token:{orders* &redisson_lock__channel:{orders*"
        );
        assert_eq!(
            rules(&two, "{eu}:*"),
            "~{eu}:* ~redisson_lock_token:{eu}:* &redisson_lock__channel:{eu}:*"
        );
        assert_eq!(
            rules(&[Part::Fair, Part::ReadWrite], "a"),
            "~redisson_lock_queue:{a} ~redisson_lock_timeout:{a} ~{a}:*:rwlock_timeout:* \
             &redisson_lock__channel:{a}:* &redisson_rwlock:{a}"
        );
    }

    #[test]
    fn a_rule_is_there_once() {
        let rules = rules(&[Part::Lock, Part::Counter, Part::Lock], "a");
        let times = |wanted| rules.iter().filter(|rule| *rule == wanted).count();
        assert_eq!((times("+get"), times("~a")), (1, 1));
    }
}
