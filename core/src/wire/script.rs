//! From an [`Op`] to the command that is sent.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Cmd;

use super::names::{channel, learnt_key, token_key};
use super::slots::slot;
use super::{Fencing, Form, Layout, Lesson, Name, Op, Publish, Renewal};
use crate::error::{Error, ErrorKind, Result};

/// A Lua script with the hash by which the server knows it.
pub(super) struct Script {
    pub(super) name: &'static str,
    text: &'static str,
    sha1: LazyLock<String>,
}

/// A script is put together from the parts that it needs, the last of which names it.
macro_rules! scripts {
    ($( $constant:ident = $( $part:literal )+ => $name:literal; )+) => { $(
        static $constant: Script = Script {
            name: $name,
            text: concat!(
                $( include_str!(concat!("lua/", $part, ".lua")), )+
                include_str!(concat!("lua/", $name, ".lua"))
            ),
            sha1: LazyLock::new(|| redis::Script::new($constant.text).get_hash().to_owned()),
        };
    )+ };
}

scripts! {
    ACQUIRE = "common" "prolong" "reentrant" => "acquire";
    RELEASE = "common" "prolong" "reentrant" => "release";
    RENEW = "common" "prolong" "reentrant" => "renew";
    FORCE = "common" "prolong" "reentrant" => "force";
    INSPECT = "common" "prolong" "reentrant" => "inspect";
    ACQUIRE_PLAIN = "common" "prolong" "simple" => "acquire";
    RELEASE_PLAIN = "common" "prolong" "simple" => "release";
    RENEW_PLAIN = "common" "prolong" "simple" => "renew";
    FORCE_PLAIN = "common" "prolong" "simple" => "force";
    INSPECT_PLAIN = "common" "prolong" "simple" => "inspect";
    ACQUIRE_LEARNING = "common" "prolong" "simple" "adaptive" => "acquire";
    RELEASE_LEARNING = "common" "prolong" "simple" "adaptive" => "release";
}

/// The script that does `op`.
pub(super) fn script(op: &Op) -> &'static Script {
    use Layout::{Hash, Learning, Plain};
    match (op, op.layout()) {
        (Op::Acquire { .. }, Hash) => &ACQUIRE,
        (Op::Release { .. }, Hash) => &RELEASE,
        (Op::Renew { .. }, Hash) => &RENEW,
        (Op::Force { .. }, Hash) => &FORCE,
        (Op::Inspect { .. }, Hash) => &INSPECT,
        (Op::Acquire { .. }, Plain) => &ACQUIRE_PLAIN,
        (Op::Release { .. }, Plain) => &RELEASE_PLAIN,
        (Op::Acquire { .. }, Learning) => &ACQUIRE_LEARNING,
        (Op::Release { .. }, Learning) => &RELEASE_LEARNING,
        (Op::Renew { .. }, Plain | Learning) => &RENEW_PLAIN,
        (Op::Force { .. }, Plain | Learning) => &FORCE_PLAIN,
        (Op::Inspect { .. }, Plain | Learning) => &INSPECT_PLAIN,
    }
}

/// How long the counter of fencing tokens outlives its last use, unless it is persistent: longer than
/// the longest lease (24 h), so that a copy of a grant finds the token that the first one drew.
const COUNTER_EXPIRY: Duration = Duration::from_secs(25 * 3600);

/// One script call, ready to be written as EVALSHA or, for a server that does not know it, as EVAL.
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<Name>,
    args: Vec<String>,
}

impl Call {
    /// The call for `op` by the client `uuid`.
    ///
    /// `not_after`: the last moment, in the server's milliseconds, at which it may still be done.
    /// Only an acquire, a partial release and a force-release regard it: late copies of the others
    /// do no harm.
    pub(crate) fn new(op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        let args = match op {
            Op::Acquire { owner, form, count, lease, fencing, .. } => {
                let mut args = vec![
                    form.owner(uuid, *owner),
                    count.to_string(),
                    lease_ms(*lease),
                    not_after.to_string(),
                ];
                args.extend(match fencing {
                    Fencing::Off => None,
                    Fencing::Expiring => Some(COUNTER_EXPIRY.as_millis().to_string()),
                    Fencing::Persistent => Some("0".to_owned()),
                });
                args
            }
            Op::Release { name, owner, form, remaining, ttl, lesson } => {
                let [verb, channel] = publication(name, publish);
                let (owner, remaining) = (form.owner(uuid, *owner), remaining.to_string());
                let mut args = vec![owner, remaining, lease_ms(*ttl), not_after.to_string(), verb, channel];
                if let Some(Lesson { asked, took }) = lesson {
                    args.extend([took, asked].map(|time| time.as_secs().to_string()));
                }
                args
            }
            Op::Renew { holds } => {
                let pair = |hold: &Renewal| [hold.form.owner(uuid, hold.owner), lease_ms(hold.ttl)];
                holds.iter().flat_map(pair).collect()
            }
            Op::Force { name, .. } => {
                let [verb, channel] = publication(name, publish);
                vec![not_after.to_string(), verb, channel]
            }
            Op::Inspect { .. } => Vec::new(),
        };
        Call { script: script(op), keys: keys(op), args }
    }

    pub(crate) fn evalsha(&self) -> Cmd {
        self.with("EVALSHA", &self.script.sha1)
    }

    /// The same call with the full text, which also makes the server know the script.
    pub(crate) fn eval(&self) -> Cmd {
        self.with("EVAL", self.script.text)
    }

    fn with(&self, command: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(command);
        cmd.arg(script).arg(self.keys.len());
        self.keys.iter().for_each(|key| {
            cmd.arg(&**key);
        });
        cmd.arg(&self.args);
        cmd
    }
}

/// The keys that a script uses.
fn keys(op: &Op) -> Vec<Name> {
    match op {
        Op::Acquire { name, form, fencing, .. } => {
            let counter = (*fencing != Fencing::Off).then(|| token_key(name).into());
            [Some(name.clone()), counter, learnt(name, form)].into_iter().flatten().collect()
        }
        Op::Release { name, form, .. } => [name.clone()].into_iter().chain(learnt(name, form)).collect(),
        Op::Renew { holds } => holds.iter().map(|hold| hold.name.clone()).collect(),
        Op::Force { name, .. } | Op::Inspect { name, .. } => vec![name.clone()],
    }
}

/// The slot of the keys of `op` in a cluster.
///
/// # Errors
/// `name_not_clusterable` if they have different ones.
pub(crate) fn slot_of(op: &Op) -> Result<u16> {
    let keys = keys(op);
    let mut slots = keys.iter().map(|key| (&**key, slot(key)));
    let (first, at) = slots.next().unwrap_or_default();
    match slots.find(|(_, other)| *other != at) {
        None => Ok(at),
        Some((key, other)) => {
            let text = format!(
                "it needs the keys {first:?} in slot {at} and {key:?} in slot {other}; put the name, or a part of \
                 it, in braces, as in \"{{orders}}:42\""
            );
            Err(Error::new(ErrorKind::NameNotClusterable, text))
        }
    }
}

/// The key in which an adaptive lock keeps what it learnt.
fn learnt(name: &Name, form: &Form) -> Option<Name> {
    (form.kind.layout() == Layout::Learning).then(|| learnt_key(name).into())
}

/// Verbs and channel. The channel is an argument and no key: then it may lie in another slot, and
/// an ACL need not allow it as a key. From there, only classic messages reach everybody.
fn publication(name: &Name, publish: Publish) -> [String; 2] {
    let channel = channel(name);
    let verbs = match publish {
        Publish::Sharded if is_shardable(name) => "SPUBLISH",
        Publish::Both if is_shardable(name) => "SPUBLISH PUBLISH",
        _ => "PUBLISH",
    };
    [verbs.to_owned(), channel]
}

/// Whether the channel lies with the lock.
pub(crate) fn is_shardable(name: &str) -> bool {
    slot(&channel(name)) == slot(name)
}

/// Whole milliseconds, rounded up: the server never holds a lock for less than the time from which
/// the engine computes its deadline. At least 1, because an expiry of 0 would delete the key.
fn lease_ms(lease: Duration) -> String {
    lease.as_micros().div_ceil(1000).max(1).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    const UUID: &str = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";

    fn acquire(fencing: Fencing) -> Op {
        let lease = Duration::from_micros(30_000_001);
        Op::Acquire {
            name: "orders".into(),
            owner: 7,
            form: Form::default(),
            count: 1,
            lease,
            fencing,
            replicas: 0,
        }
    }

    fn keys(call: &Call) -> Vec<&str> {
        call.keys.iter().map(|key| &**key).collect()
    }

    #[test]
    fn an_acquire_names_the_counter_only_with_fencing() {
        let call = Call::new(&acquire(Fencing::Off), UUID, 99, Publish::Classic);
        assert_eq!(keys(&call), ["orders"]);
        assert_eq!(call.args, [&*format!("{UUID}:7"), "1", "30001", "99"]);
        let call = Call::new(&acquire(Fencing::Expiring), UUID, 99, Publish::Classic);
        assert_eq!(keys(&call), ["orders", "redisson_lock_token:{orders}"]);
        assert_eq!(call.args[4], "90000000");
        assert_eq!(Call::new(&acquire(Fencing::Persistent), UUID, 99, Publish::Classic).args[4], "0");
    }

    #[test]
    fn keys_of_two_slots_are_refused_with_both() {
        assert_eq!(slot_of(&acquire(Fencing::Expiring)).ok(), Some(slot("orders")));
        let odd = |kind, fencing| {
            let form = Form { kind, ..Form::default() };
            Op::Acquire {
                name: "a}b".into(),
                owner: 7,
                form,
                count: 1,
                lease: Duration::from_secs(1),
                fencing,
                replicas: 0,
            }
        };
        assert!(slot_of(&odd(Kind::Reentrant, Fencing::Off)).is_ok());
        for (op, key) in [
            (odd(Kind::Reentrant, Fencing::Persistent), "redisson_lock_token:{a}b}"),
            (odd(Kind::Adaptive, Fencing::Off), "a}b_renew"),
        ] {
            let error = slot_of(&op).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::NameNotClusterable);
            assert!(error.message().contains(key) && error.message().contains("a}b"), "{error}");
        }
    }

    #[test]
    fn a_release_publishes_where_it_is_heard() {
        let verbs = |name: &str, publish| publication(&name.into(), publish)[0].clone();
        assert_eq!(verbs("orders", Publish::Sharded), "SPUBLISH");
        assert_eq!(verbs("orders", Publish::Both), "SPUBLISH PUBLISH");
        assert_eq!(verbs("orders", Publish::Classic), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Sharded), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Both), "PUBLISH");
    }

    #[test]
    fn a_release_has_verb_and_channel_and_never_a_time_of_zero() {
        let release = Op::Release {
            name: "{eu}:o".into(),
            owner: 7,
            form: Form::default(),
            remaining: 0,
            ttl: Duration::ZERO,
            lesson: None,
        };
        let call = Call::new(&release, UUID, 5, Publish::Classic);
        assert_eq!(call.args[1..], ["0", "1", "5", "PUBLISH", "redisson_lock__channel:{eu}:o"]);
    }

    #[test]
    fn a_renewal_has_two_arguments_per_lock() {
        let hold = |name: &str, owner| Renewal {
            name: name.into(),
            owner,
            form: Form::default(),
            ttl: Duration::from_secs(3),
        };
        let call =
            Call::new(&Op::Renew { holds: vec![hold("a", 1), hold("b", 2)] }, "u", 0, Publish::Classic);
        assert_eq!(keys(&call), ["a", "b"]);
        assert_eq!(call.args, ["u:1", "3000", "u:2", "3000"]);
    }

    #[test]
    fn a_call_goes_by_hash_or_by_text() {
        let call =
            Call::new(&Op::Inspect { name: "o".into(), kind: Kind::Reentrant }, UUID, 0, Publish::Classic);
        let packed = |cmd: Cmd| String::from_utf8_lossy(&cmd.get_packed_command()).into_owned();
        assert_eq!(call.script.sha1.len(), 40);
        assert!(packed(call.evalsha()).contains(&*call.script.sha1));
        assert!(packed(call.eval()).contains("Reads who holds the lock."));
    }
}
