//! From an [`Op`] to the command that is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use redis::Cmd;

use super::codes::CODES;
use super::names::{channel, learnt_key, token_key};
use super::slots::slot;
use super::{Fencing, Form, Layout, Lesson, Name, Op, Publish, Renewal};
use crate::error::{Error, ErrorKind, Result};

/// A Lua script.
pub(super) struct Script {
    pub(super) name: &'static str,
    source: &'static str,
    layout: Layout,
}

/// Its text, and the hash by which the server knows it.
struct Made {
    text: String,
    sha1: String,
}

thread_local! {
    /// What this thread has made. Not once for the process: a fork while another thread made it would leave the
    /// child waiting for that thread, which it has not got.
    static MADE: RefCell<Vec<(&'static Script, Rc<Made>)>> = const { RefCell::new(Vec::new()) };
}

impl Script {
    fn made(&'static self) -> Rc<Made> {
        let known = |made: &RefCell<Vec<(&'static Script, Rc<Made>)>>| {
            let made = made.borrow();
            made.iter().find(|(script, _)| std::ptr::eq(*script, self)).map(|(_, made)| made.clone())
        };
        if let Some(made) = MADE.try_with(known).ok().flatten() {
            return made;
        }
        let text = assembled(self.source, self.layout);
        let made = Rc::new(Made { sha1: redis::Script::new(&text).get_hash().to_owned(), text });
        // Fails only while the thread ends.
        let _ = MADE.try_with(|all| all.borrow_mut().push((self, made.clone())));
        made
    }
}

macro_rules! scripts {
    ($( $constant:ident = $name:literal $layout:ident; )+) => { $(
        static $constant: Script = Script {
            name: $name,
            source: include_str!(concat!("lua/", $name, ".lua")),
            layout: Layout::$layout,
        };
    )+ };
}

scripts! {
    ACQUIRE = "acquire" Hash;
    HAND_OVER = "handover" Hash;
    RELEASE = "release" Hash;
    LOWER = "lower" Hash;
    RENEW = "renew" Hash;
    FORCE = "force" Hash;
    INSPECT = "inspect" Hash;
    ACQUIRE_PLAIN = "acquire" Plain;
    HAND_OVER_PLAIN = "handover" Plain;
    RELEASE_PLAIN = "release" Plain;
    LOWER_PLAIN = "lower" Plain;
    RENEW_PLAIN = "renew" Plain;
    FORCE_PLAIN = "force" Plain;
    INSPECT_PLAIN = "inspect" Plain;
    ACQUIRE_LEARNING = "acquire" Learning;
    RELEASE_LEARNING = "release" Learning;
}

/// What several scripts have in common.
const SHARED: [(&str, &str); 4] = [
    ("clock", include_str!("lua/clock.lua")),
    ("token", include_str!("lua/token.lua")),
    ("recall", include_str!("lua/recall.lua")),
    ("holder", include_str!("lua/holder.lua")),
];

/// The text of a script for one layout of the data. The server runs all of it from the top for every
/// call, so it has nothing that this layout does not need, and no function that is called once.
///
/// `--# hash plain` begins lines for these layouts, `--# all` lines for every one; `--@ clock` stands for
/// the lines of that file. The codes that occur are defined in front.
fn assembled(text: &str, layout: Layout) -> String {
    let body = lines_for(text, layout);
    let used = |(name, _): &&(&str, i64)| {
        body.split(|char: char| !char.is_ascii_alphanumeric()).any(|word| word == *name)
    };
    let codes: String =
        CODES.iter().filter(used).map(|(name, code)| format!("local {name} = {code}\n")).collect();
    codes + &body
}

fn lines_for(text: &str, layout: Layout) -> String {
    let layout_name = match layout {
        Layout::Hash => "hash",
        Layout::Plain => "plain",
        Layout::Learning => "learning",
    };
    let (mut all, mut wanted) = (String::new(), true);
    for line in text.lines() {
        if let Some(layouts) = line.strip_prefix("--# ") {
            wanted = layouts.split(' ').any(|name| name == "all" || name == layout_name);
        } else if let Some(part) = line.strip_prefix("--@ ").filter(|_| wanted) {
            let shared = SHARED.iter().find(|(name, _)| *name == part).map_or("", |(_, text)| text);
            all += &lines_for(shared, layout);
        } else if wanted {
            all += line;
            all += "\n";
        }
    }
    all
}

/// The script that does `op`.
pub(super) fn script(op: &Op) -> &'static Script {
    use Layout::{Hash, Learning, Plain};
    match (op, op.layout()) {
        (Op::Acquire { .. }, Hash) => &ACQUIRE,
        (Op::HandOver { .. }, Hash) => &HAND_OVER,
        (Op::Release { remaining: 0, .. }, Hash) => &RELEASE,
        (Op::Release { .. }, Hash) => &LOWER,
        (Op::Renew { .. }, Hash) => &RENEW,
        (Op::Force { .. }, Hash) => &FORCE,
        (Op::Inspect { .. }, Hash) => &INSPECT,
        (Op::Acquire { .. }, Plain) => &ACQUIRE_PLAIN,
        // An adaptive lock learns when it is released: the engine hands none over.
        (Op::HandOver { .. }, Plain | Learning) => &HAND_OVER_PLAIN,
        (Op::Release { remaining: 0, .. }, Plain) => &RELEASE_PLAIN,
        (Op::Acquire { .. }, Learning) => &ACQUIRE_LEARNING,
        (Op::Release { remaining: 0, .. }, Learning) => &RELEASE_LEARNING,
        (Op::Release { .. }, Plain | Learning) => &LOWER_PLAIN,
        (Op::Renew { .. }, Plain | Learning) => &RENEW_PLAIN,
        (Op::Force { .. }, Plain | Learning) => &FORCE_PLAIN,
        (Op::Inspect { .. }, Plain | Learning) => &INSPECT_PLAIN,
    }
}

/// How long the number of keys may be as text.
const MOST_DIGITS: usize = 20;

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
    /// Only an acquire, a hand-over, a partial release and a force-release regard it: late copies of
    /// the others do no harm.
    pub(crate) fn new(op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        let args = match op {
            Op::Acquire { owner, form, count, lease, fencing, .. } => {
                let lease = whole_ms(*lease);
                let latest = not_after.saturating_add(lease);
                let mut args = vec![form.owner(uuid, *owner), lease.to_string(), latest.to_string()];
                let counter = counter_life(*fencing);
                // What is usual is left out: each argument costs the server as much as a small command.
                if *count != 1 || counter.is_some() {
                    args.push(count.to_string());
                }
                args.extend(counter);
                args
            }
            Op::HandOver { owner, to, form, lease, fencing, .. } => {
                let [owner, to] = [owner, to].map(|owner| form.owner(uuid, *owner));
                let mut args = vec![owner, to, lease_ms(*lease), not_after.to_string()];
                args.extend(counter_life(*fencing));
                args
            }
            Op::Release { name, owner, form, remaining: 0, lesson, .. } => {
                let mut args = vec![form.owner(uuid, *owner), channel(name)];
                let verbs = verbs(name, publish);
                if verbs != CLASSIC || lesson.is_some() {
                    args.push(verbs.to_owned());
                }
                if let Some(Lesson { asked, took }) = lesson {
                    args.extend([took, asked].map(|time| time.as_secs().to_string()));
                }
                args
            }
            Op::Release { owner, form, remaining, ttl, .. } => {
                vec![form.owner(uuid, *owner), remaining.to_string(), lease_ms(*ttl), not_after.to_string()]
            }
            Op::Renew { holds } => {
                let mut args = Vec::with_capacity(holds.len() + 1);
                args.extend(holds.iter().map(|hold| hold.form.owner(uuid, hold.owner)));
                // Most are renewed for the same time: it is given once.
                let times = if alike(holds) { 1 } else { holds.len() };
                args.extend(holds.iter().take(times).map(|hold| lease_ms(hold.ttl)));
                args
            }
            Op::Force { name, .. } => {
                vec![not_after.to_string(), channel(name), verbs(name, publish).to_owned()]
            }
            Op::Inspect { .. } => Vec::new(),
        };
        Call { script: script(op), keys: keys(op), args }
    }

    pub(crate) fn evalsha(&self) -> Cmd {
        self.with("EVALSHA", &self.script.made().sha1)
    }

    /// The same call with the full text, which also makes the server know the script.
    pub(crate) fn eval(&self) -> Cmd {
        self.with("EVAL", &self.script.made().text)
    }

    fn with(&self, command: &str, script: &str) -> Cmd {
        let bytes =
            self.keys.iter().map(|key| key.len()).chain(self.args.iter().map(String::len)).sum::<usize>();
        let mut cmd = Cmd::with_capacity(
            3 + self.keys.len() + self.args.len(),
            command.len() + script.len() + MOST_DIGITS + bytes,
        );
        cmd.arg(command).arg(script).arg(self.keys.len());
        self.keys.iter().for_each(|key| {
            cmd.arg(&**key);
        });
        cmd.arg(&self.args);
        cmd
    }
}

/// Whether all are renewed for the same time.
fn alike(holds: &[Renewal]) -> bool {
    holds.windows(2).all(|two| two[0].ttl == two[1].ttl)
}

/// How long the fencing counter lives, if a token is wanted.
fn counter_life(fencing: Fencing) -> Option<String> {
    match fencing {
        Fencing::Off => None,
        Fencing::Expiring => Some(COUNTER_EXPIRY.as_millis().to_string()),
        Fencing::Persistent => Some("0".to_owned()),
    }
}

/// The keys that a script uses.
fn keys(op: &Op) -> Vec<Name> {
    match op {
        Op::Acquire { name, form, fencing, .. } | Op::HandOver { name, form, fencing, .. } => {
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

/// How a release is published outside of clusters.
const CLASSIC: &str = "PUBLISH";

/// By which commands a release is published. The channel is an argument and no key: then it may lie in
/// another slot, and an ACL need not allow it as a key. From there, only classic messages reach everybody.
fn verbs(name: &Name, publish: Publish) -> &'static str {
    match publish {
        Publish::Sharded if is_shardable(name) => "SPUBLISH",
        Publish::Both if is_shardable(name) => "SPUBLISH PUBLISH",
        _ => CLASSIC,
    }
}

/// Whether the channel lies with the lock.
pub(crate) fn is_shardable(name: &str) -> bool {
    slot(&channel(name)) == slot(name)
}

/// Whole milliseconds, rounded up: the server never holds a lock for less than the time from which
/// the engine computes its deadline. At least 1, because an expiry of 0 would delete the key.
pub(super) fn whole_ms(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros().div_ceil(1000).max(1)).unwrap_or(u64::MAX)
}

fn lease_ms(lease: Duration) -> String {
    whole_ms(lease).to_string()
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
        assert_eq!(call.args, [&*format!("{UUID}:7"), "30001", "30100"]);
        let call = Call::new(&acquire(Fencing::Expiring), UUID, 99, Publish::Classic);
        assert_eq!(keys(&call), ["orders", "redisson_lock_token:{orders}"]);
        assert_eq!(call.args[3..], ["1", "90000000"]);
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
        let verbs = |name: &str, publish| verbs(&name.into(), publish);
        assert_eq!(verbs("orders", Publish::Sharded), "SPUBLISH");
        assert_eq!(verbs("orders", Publish::Both), "SPUBLISH PUBLISH");
        assert_eq!(verbs("orders", Publish::Classic), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Sharded), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Both), "PUBLISH");
    }

    fn release(remaining: u32) -> Op {
        Op::Release {
            name: "{eu}:o".into(),
            owner: 7,
            form: Form::default(),
            remaining,
            ttl: Duration::ZERO,
            lesson: None,
        }
    }

    #[test]
    fn a_release_has_the_channel_and_verbs_only_where_they_are_unusual() {
        let args = |publish| Call::new(&release(0), UUID, 5, publish).args[1..].to_vec();
        assert_eq!(args(Publish::Classic), ["redisson_lock__channel:{eu}:o"]);
        assert_eq!(args(Publish::Sharded), ["redisson_lock__channel:{eu}:o", "SPUBLISH"]);
    }

    #[test]
    fn a_lower_count_comes_with_a_time_that_is_never_zero() {
        let call = Call::new(&release(2), UUID, 5, Publish::Classic);
        assert_eq!((call.script.name, &call.args[1..]), ("lower", &["2", "1", "5"].map(str::to_owned)[..]));
    }

    /// A call costs the server every line, every table and every function that its script makes.
    #[test]
    fn a_script_has_what_its_layout_needs_and_nothing_else() {
        for (script, layout) in
            [(&ACQUIRE, "HMGET"), (&ACQUIRE_PLAIN, "'NX'"), (&ACQUIRE_LEARNING, "learnt + 10")]
        {
            assert!(script.made().text.contains(layout), "{}", script.made().text);
            assert!(
                script.made().text.contains("local ACQUIRED = 1\n")
                    && !script.made().text.contains("RELEASED")
            );
            assert!(
                !script.made().text.contains("--#") && !script.made().text.contains("--@"),
                "{}",
                script.made().text
            );
        }
        assert!(!ACQUIRE.made().text.contains("'GET', lock") && !ACQUIRE_PLAIN.made().text.contains("HSET"));
        for script in [&ACQUIRE, &ACQUIRE_PLAIN, &RELEASE, &RELEASE_PLAIN, &LOWER, &RENEW, &RENEW_PLAIN] {
            assert!(!script.made().text.contains("function"), "{}", script.made().text);
        }
    }

    #[test]
    fn a_renewal_gives_the_time_once_if_it_is_the_same_for_all() {
        let hold = |name: &str, owner, seconds| Renewal {
            name: name.into(),
            owner,
            form: Form::default(),
            ttl: Duration::from_secs(seconds),
        };
        let call = |holds| Call::new(&Op::Renew { holds }, "u", 0, Publish::Classic);
        let same = call(vec![hold("a", 1, 3), hold("b", 2, 3), hold("c", 3, 3)]);
        assert_eq!(keys(&same), ["a", "b", "c"]);
        assert_eq!(same.args, ["u:1", "u:2", "u:3", "3000"]);
        assert_eq!(call(vec![hold("a", 1, 3), hold("b", 2, 4)]).args, ["u:1", "u:2", "3000", "4000"]);
        assert_eq!(call(vec![hold("a", 1, 3)]).args, ["u:1", "3000"]);
    }

    #[test]
    fn a_call_goes_by_hash_or_by_text() {
        let call =
            Call::new(&Op::Inspect { name: "o".into(), kind: Kind::Reentrant }, UUID, 0, Publish::Classic);
        let packed = |cmd: Cmd| String::from_utf8_lossy(&cmd.get_packed_command()).into_owned();
        assert_eq!(call.script.made().sha1.len(), 40);
        assert!(packed(call.evalsha()).contains(&*call.script.made().sha1));
        assert!(packed(call.eval()).contains("Reads who holds the lock."));
    }
}
