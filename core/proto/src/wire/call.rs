//! Turns an [`Op`] into the command that is sent.

use super::ids::{MOST_DIGITS, write_number};
use super::kind::Kind;
use super::op::Op;
use super::publish::Publish;
use super::script::Script;
use super::slots::slot;
use super::words::{Words, write_bulk, write_bulk_number, write_head};
use crate::error::{Error, ErrorKind, Result};
use crate::primitives::facts::Layout;
use crate::primitives::fair::ops::Fair;
use crate::primitives::ops::{Draft, Ops};
use crate::primitives::read_write::ops::Sides;
use crate::primitives::semaphore::ops::Semaphore;
use crate::primitives::{counters, reentrant, semaphore, simple};

/// The primitive that writes the calls for a layout.
fn ops(kind: Kind) -> &'static dyn Ops {
    match kind.layout() {
        Layout::Hash => &reentrant::ops::OPS,
        Layout::Plain => &simple::ops::OPS,
        Layout::Learning => &simple::ops::ADAPTIVE,
        Layout::Read => &Sides { reads: true },
        Layout::Write => &Sides { reads: false },
        Layout::Permits => &Semaphore { fair: false },
        Layout::Queued => &Fair,
        Layout::QueuedPermits => &Semaphore { fair: true },
    }
}

/// Adds the keys and the arguments of `op`, and returns its script.
fn draw_up(op: &Op, call: &mut Draft<'_>) -> &'static Script {
    match op {
        Op::Acquire(op) => ops(op.form.kind).acquire(op, call),
        Op::Release(op) => ops(op.form.kind).release(op, call),
        Op::HandOver(op) => {
            reentrant::ops::hand_over(op, call);
            // The engine hands over no lock of the other layouts (`Facts::handover`).
            match op.form.kind.layout() {
                Layout::Hash => reentrant::ops::HAND_OVER,
                _ => simple::ops::HAND_OVER,
            }
        }
        Op::Renew { holds } => {
            let kind = holds.first().map(|hold| hold.form.kind);
            match kind.unwrap_or_default() {
                Kind::Reentrant => reentrant::ops::renew(holds, call),
                kind => ops(kind).renew(holds, call),
            }
        }
        Op::Force { name, kind } => ops(*kind).force(name, call),
        Op::Inspect { name, kind, what } => ops(*kind).inspect(name, *what, call),
        Op::Count { name, limit } => semaphore::ops::count(name, *limit, call),
        Op::Change {
            name,
            writer,
            sequence,
            change,
            place,
        } => counters::ops::change(name, (*writer, *sequence), (change, *place), call),
        Op::Read { name } => counters::ops::read(name, call),
    }
}

/// Identifies a script by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScriptId(*const Script);

/// One script call, ready to be written as `EVALSHA` or, if the server does not know the script, as
/// `EVAL`.
pub struct Call {
    pub(crate) script: &'static Script,
    /// The number of words that are keys; the others are arguments.
    pub(crate) keys: usize,
    pub(crate) words: Words,
}

impl Call {
    /// The call for `op` by the client `uuid`.
    ///
    /// `not_after` is the last moment, on the server's clock in ms, at which the server may execute
    /// it. Only a release that frees the lock and an inspection ignore it: late copies of those do
    /// no harm.
    pub fn new(op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        Call::refilled(Words::default(), op, uuid, not_after, publish)
    }

    /// The same as [`Call::new`], in the memory of a finished call.
    pub fn reusing(
        before: Option<Call>,
        op: &Op,
        uuid: &str,
        not_after: u64,
        publish: Publish,
    ) -> Call {
        let mut words = before.map_or_else(Words::default, |before| before.words);
        words.clear();
        Call::refilled(words, op, uuid, not_after, publish)
    }

    fn refilled(mut words: Words, op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        let mut draft = Draft {
            uuid,
            not_after,
            publish,
            keys: 0,
            words: &mut words,
        };
        let script = draw_up(op, &mut draft);
        let keys = draft.keys;
        Call {
            script,
            keys,
            words,
        }
    }

    pub fn id(&self) -> ScriptId {
        ScriptId(self.script)
    }

    /// Builds the command word by word: `begin` gets the number of words and about how many bytes
    /// they have, `add` each word.
    ///
    /// `full`: with the source of the script, which also makes the server cache it; otherwise by
    /// its hash.
    pub fn command<T>(
        &self,
        full: bool,
        begin: impl FnOnce(usize, usize) -> T,
        add: impl Fn(&mut T, &[u8]),
    ) -> T {
        let made = self.script.made();
        let (command, script) = if full {
            ("EVAL", &made.text)
        } else {
            ("EVALSHA", &made.sha1)
        };
        let bytes = command.len() + script.len() + MOST_DIGITS + self.words.bytes.len();
        let mut built = begin(3 + self.words.count(), bytes);
        let mut keys = Vec::with_capacity(MOST_DIGITS);
        write_number(&mut keys, self.keys as u64);
        for word in [command.as_bytes(), script.as_bytes(), &keys] {
            add(&mut built, word);
        }
        self.words.each(|word| add(&mut built, word));
        built
    }

    /// Adds the command by the script's hash, in wire format.
    pub fn write_evalsha(&self, out: &mut Vec<u8>) {
        self.write(out, |out| {
            out.extend_from_slice(&self.script.made().evalsha)
        });
    }

    /// Adds the command with the script's source, in wire format.
    pub fn write_eval(&self, out: &mut Vec<u8>) {
        self.write(out, |out| {
            write_bulk(out, b"EVAL");
            write_bulk(out, self.script.made().text.as_bytes());
        });
    }

    fn write(&self, out: &mut Vec<u8>, command: impl FnOnce(&mut Vec<u8>)) {
        write_head(out, b'*', 3 + self.words.count());
        command(out);
        write_bulk_number(out, self.keys as u64);
        self.words.each(|word| write_bulk(out, word));
    }
}

/// The cluster slot of the keys of `op`.
///
/// # Errors
/// `name_not_clusterable` if the keys have different slots.
pub fn slot_of(op: &Op) -> Result<u16> {
    let call = Call::new(op, "", 0, Publish::Classic);
    let mut keys = Vec::with_capacity(call.keys);
    call.words.each(|word| {
        if keys.len() < call.keys {
            keys.push(String::from_utf8_lossy(word).into_owned());
        }
    });
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::publish::verbs;
    use super::super::{Acquire, Fencing, Form, Inspection, Kind, Release, Renewal, Topic};
    use super::*;
    use crate::primitives::{read_write, reentrant, semaphore, simple};
    use crate::real::cmd;

    const UUID: &str = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e";

    fn acquire(fencing: Fencing) -> Op {
        let lease = Duration::from_micros(30_000_001);
        Op::Acquire(Acquire {
            fencing,
            ..Acquire::of("orders".into(), 7, Form::default(), lease)
        })
    }

    fn words(call: &Call) -> Vec<String> {
        let mut words = Vec::new();
        call.words
            .each(|word| words.push(String::from_utf8_lossy(word).into_owned()));
        words
    }

    fn keys(call: &Call) -> Vec<String> {
        words(call)[..call.keys].to_vec()
    }

    fn args(call: &Call) -> Vec<String> {
        words(call)[call.keys..].to_vec()
    }

    #[test]
    fn an_acquire_names_the_counter_only_with_fencing() {
        let call = Call::new(&acquire(Fencing::Off), UUID, 99, Publish::Classic);
        assert_eq!(keys(&call), ["orders"]);
        assert_eq!(args(&call), [&*format!("{UUID}:7"), "30001", "30100"]);
        let call = Call::new(&acquire(Fencing::Expiring), UUID, 99, Publish::Classic);
        assert_eq!(keys(&call), ["orders", "redisson_lock_token:{orders}"]);
        assert_eq!(args(&call)[3..], ["1", "90000000"]);
        assert_eq!(
            args(&Call::new(
                &acquire(Fencing::Persistent),
                UUID,
                99,
                Publish::Classic
            ))[4],
            "0"
        );
    }

    #[test]
    fn keys_of_two_slots_are_refused_with_both() {
        assert_eq!(
            slot_of(&acquire(Fencing::Expiring)).ok(),
            Some(slot("orders"))
        );
        let odd = |kind, fencing| {
            let lease = Duration::from_secs(1);
            Op::Acquire(Acquire {
                fencing,
                ..Acquire::of("a}b".into(), 7, Form::of(kind), lease)
            })
        };
        assert!(slot_of(&odd(Kind::Reentrant, Fencing::Off)).is_ok());
        for (op, key) in [
            (
                odd(Kind::Reentrant, Fencing::Persistent),
                "redisson_lock_token:{a}b}",
            ),
            (odd(Kind::Adaptive, Fencing::Off), "a}b_renew"),
        ] {
            let error = slot_of(&op).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::NameNotClusterable);
            assert!(
                error.message().contains(key) && error.message().contains("a}b"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_release_publishes_where_it_is_heard() {
        let verbs = |name: &str, publish| verbs(Topic::Lock, &name.into(), publish);
        assert_eq!(verbs("orders", Publish::Sharded), "SPUBLISH");
        assert_eq!(verbs("orders", Publish::Both), "SPUBLISH PUBLISH");
        assert_eq!(verbs("orders", Publish::Classic), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Sharded), "PUBLISH");
        assert_eq!(verbs("a}b", Publish::Both), "PUBLISH");
        // Redisson's channel of a latch has braces around every name.
        let latch =
            |name: &str| super::super::publish::verbs(Topic::Latch, &name.into(), Publish::Both);
        assert_eq!(
            (latch("orders"), latch("{eu}:o")),
            ("SPUBLISH PUBLISH", "PUBLISH")
        );
    }

    fn release(remaining: u32) -> Op {
        Op::Release(Release {
            remaining,
            ..Release::of("{eu}:o".into(), 7, Form::default())
        })
    }

    #[test]
    fn a_release_has_the_channel_and_verbs_only_where_they_are_unusual() {
        let args = |publish| args(&Call::new(&release(0), UUID, 5, publish))[1..].to_vec();
        assert_eq!(args(Publish::Classic), ["redisson_lock__channel:{eu}:o"]);
        assert_eq!(
            args(Publish::Sharded),
            ["redisson_lock__channel:{eu}:o", "SPUBLISH"]
        );
    }

    #[test]
    fn a_lower_count_comes_with_a_time_that_is_never_zero() {
        let call = Call::new(&release(2), UUID, 5, Publish::Classic);
        assert_eq!(
            (call.script.name, &args(&call)[1..]),
            ("lower", &["2", "1", "5"].map(str::to_owned)[..])
        );
    }

    /// The server pays for every line, table and function of a script on every call.
    #[test]
    fn a_script_has_what_its_layout_needs_and_nothing_else() {
        for (script, layout) in [
            (reentrant::ops::SCRIPTS.acquire[0], "HMGET"),
            (simple::ops::SCRIPTS.acquire[0], "'NX'"),
            (simple::ops::LEARNING.acquire[0], "learnt + 10"),
        ] {
            assert!(
                script.made().text.contains(layout),
                "{}",
                script.made().text
            );
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
        assert!(
            !reentrant::ops::SCRIPTS.acquire[0]
                .made()
                .text
                .contains("'GET', lock")
                && !simple::ops::SCRIPTS.acquire[0].made().text.contains("HSET")
        );
        for script in [
            reentrant::ops::SCRIPTS.acquire[0],
            simple::ops::SCRIPTS.acquire[0],
            reentrant::ops::SCRIPTS.release[0],
            simple::ops::SCRIPTS.release[0],
            reentrant::ops::SCRIPTS.lower,
            reentrant::ops::SCRIPTS.renew,
            simple::ops::SCRIPTS.renew,
        ] {
            assert!(
                !script.made().text.contains("function"),
                "{}",
                script.made().text
            );
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
        let call = |holds| Call::new(&Op::Renew { holds }, "u", 9, Publish::Classic);
        let same = call(vec![hold("a", 1, 3), hold("b", 2, 3), hold("c", 3, 3)]);
        assert_eq!(keys(&same), ["a", "b", "c"]);
        assert_eq!(args(&same), ["u:", "1 2 3 ", "3000", "9"]);
        assert_eq!(
            args(&call(vec![hold("a", 1, 3), hold("b", 20, 4)])),
            ["u:", "1 20 ", "3000", "4000", "9"]
        );
        assert_eq!(args(&call(vec![hold("a", 1, 3)])), ["u:1", "3000", "9"]);
    }

    #[test]
    fn a_call_goes_by_hash_or_by_text() {
        let call = Call::new(
            &Op::Inspect {
                name: "o".into(),
                kind: Kind::Reentrant,
                what: Inspection::Owners,
            },
            UUID,
            0,
            Publish::Classic,
        );
        let packed =
            |full| String::from_utf8_lossy(&cmd(&call, full).get_packed_command()).into_owned();
        assert_eq!(
            call.script.made().sha1,
            redis::Script::new(&call.script.made().text).get_hash()
        );
        assert!(packed(false).contains(&*call.script.made().sha1));
        assert!(packed(true).contains(&*call.script.made().text));
    }

    #[test]
    fn scripts_have_no_comments_and_no_indentation() {
        let text =
            b"-- a comment\nlocal a = 1 -- b\n\n  --@ clock\n  if a then\n    -- c\n--# all\nend";
        let mut bare = [0; 64];
        let length = super::super::script::bare(text, &mut bare);
        assert_eq!(
            str::from_utf8(&bare[..length]),
            Ok("local a = 1 -- b\n--@ clock\nif a then\n--# all\nend")
        );
        for script in [
            reentrant::ops::SCRIPTS.acquire[0],
            simple::ops::SCRIPTS.renew,
            read_write::ops::READ.acquire[0],
            semaphore::ops::COUNT,
        ] {
            let text = &script.made().text;
            assert!(text.lines().count() > 5, "{text}");
            let bare = |line: &str| line.trim_start() == line && !line.starts_with("--");
            assert!(text.lines().all(bare), "{text}");
        }
    }

    /// Both ways of sending a call produce the same bytes, also in a reused buffer.
    #[test]
    fn a_call_is_written_as_the_command_is() {
        let renewal = |number: u64| Renewal {
            name: format!("{number}").as_str().into(),
            owner: number,
            form: Form::default(),
            ttl: Duration::from_millis(number),
        };
        let many = Op::Renew {
            holds: [0, 9, 10, 99, 100, u64::MAX].map(renewal).into(),
        };
        let ops = [
            acquire(Fencing::Expiring),
            many,
            release(0),
            release(3),
            acquire(Fencing::Off),
        ];
        let (mut call, mut written) = (Call::new(&release(1), UUID, 1, Publish::Both), Vec::new());
        for op in &ops {
            call = Call::reusing(Some(call), op, UUID, 1_700_000_000_000, Publish::Sharded);
            written.clear();
            call.write_evalsha(&mut written);
            assert_eq!(written, cmd(&call, false).get_packed_command(), "{op:?}");
            written.clear();
            call.write_eval(&mut written);
            let anew = Call::new(op, UUID, 1_700_000_000_000, Publish::Sharded);
            assert_eq!(written, cmd(&anew, true).get_packed_command(), "{op:?}");
        }
    }
}
