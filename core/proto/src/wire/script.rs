//! Turns an [`Op`] into the command that is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::codes::CODES;
use super::kind::{is_same_identity, number_of, write_identity};
use super::names::{
    TIMEOUT_SUFFIX, channel_parts, crowd_key, learnt_key, marker_key, permit_queue_keys,
    queue_keys, taken_key, timeout_prefix, token_key, writer_mark_key,
};
use super::slots::slot;
use super::{
    Change, Fencing, Form, Kind, Layout, LeaseSample, Name, Op, OwnerId, Place, Publish, Renewal,
    Topic,
};
use crate::error::{Error, ErrorKind, Result};
use crate::tuning;

/// A Lua script.
pub(super) struct Script {
    pub(super) name: &'static str,
    source: &'static str,
    layout: Layout,
    /// Lines that only some scripts of the layout have: `mark`, about waiting writers, or `crowd`.
    variant: &'static str,
}

/// Identifies a script by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScriptId(*const Script);

/// The source of a script, the hash by which the server knows it, and the first words of its
/// `EVALSHA` on the wire.
struct Made {
    text: String,
    sha1: String,
    evalsha: Vec<u8>,
}

thread_local! {
    /// The scripts this thread has assembled. A cache for the whole process would need a lock: a
    /// fork while another thread holds it would leave the child waiting for a thread that it does
    /// not have.
    static MADE: RefCell<Vec<(&'static Script, Rc<Made>)>> = const { RefCell::new(Vec::new()) };
}

impl Script {
    fn made(&'static self) -> Rc<Made> {
        let known = |made: &RefCell<Vec<(&'static Script, Rc<Made>)>>| {
            let made = made.borrow();
            made.iter()
                .find(|(script, _)| std::ptr::eq(*script, self))
                .map(|(_, made)| made.clone())
        };
        if let Some(made) = MADE.try_with(known).ok().flatten() {
            return made;
        }
        let text = assembled(self.source, self.layout, self.variant);
        let sha1 = sha1_smol::Sha1::from(&text).hexdigest();
        let mut evalsha = Vec::new();
        write_bulk(&mut evalsha, b"EVALSHA");
        write_bulk(&mut evalsha, sha1.as_bytes());
        let made = Rc::new(Made {
            text,
            sha1,
            evalsha,
        });
        // Fails only while the thread ends.
        let _ = MADE.try_with(|all| all.borrow_mut().push((self, made.clone())));
        made
    }
}

/// Copies the lines of a script without comments and indentation, as far as there is room, and
/// returns how many bytes they have. Comments are a third of the text, which every program and every
/// server would keep, and a module for WebAssembly has to be small.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler runs it, and would tell"
)]
const fn bare(source: &[u8], to: &mut [u8]) -> usize {
    let (mut at, mut length) = (0, 0);
    while at < source.len() {
        while at < source.len() && (source[at] == b' ' || source[at] == b'\n') {
            at += 1;
        }
        // `--#` and `--@` are for `lines_for`.
        let skipped = at + 2 < source.len()
            && source[at] == b'-'
            && source[at + 1] == b'-'
            && source[at + 2] == b' ';
        while at < source.len() {
            if !skipped {
                if length < to.len() {
                    to[length] = source[at];
                }
                length += 1;
            }
            at += 1;
            if source[at - 1] == b'\n' {
                break;
            }
        }
    }
    length
}

/// The text of a file in `lua/`.
macro_rules! lua {
    ($name:literal) => {{
        const SOURCE: &[u8] = include_bytes!(concat!("lua/", $name, ".lua"));
        const TEXT: [u8; bare(SOURCE, &mut [])] = {
            let mut text = [0; bare(SOURCE, &mut [])];
            bare(SOURCE, &mut text);
            text
        };
        const {
            match str::from_utf8(&TEXT) {
                Ok(text) => text,
                Err(_) => panic!("a script is no UTF-8"),
            }
        }
    }};
}

macro_rules! scripts {
    ($( $constant:ident = $name:literal $layout:ident $(with $variant:ident)?; )+) => { $(
        pub(super) static $constant: Script = Script {
            name: $name,
            source: lua!($name),
            layout: Layout::$layout,
            variant: scripts!(@ $($variant)?),
        };
    )+ };
    (@) => { "" };
    (@ $variant:ident) => { stringify!($variant) };
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
    ACQUIRE_CROWD = "acquire" Hash with crowd;
    ACQUIRE_CROWD_PLAIN = "acquire" Plain with crowd;
    RELEASE_CROWD = "release" Hash with crowd;
    RELEASE_CROWD_PLAIN = "release" Plain with crowd;
    ACQUIRE_CROWD_LEARNING = "acquire" Learning with crowd;
    RELEASE_CROWD_LEARNING = "release" Learning with crowd;
    ACQUIRE_CROWD_PERMITS = "permit_acquire" Permits with crowd;
    ACQUIRE_MANY = "acquire_many" Hash;
    ACQUIRE_MANY_PLAIN = "acquire_many" Plain;
    RELEASE_MANY = "release_many" Hash;
    RELEASE_MANY_PLAIN = "release_many" Plain;
    ACQUIRE_READ = "rw_acquire" Read;
    ACQUIRE_READ_MARKED = "rw_acquire" Read with mark;
    RELEASE_READ = "rw_release" Read;
    LOWER_READ = "rw_lower" Read;
    RENEW_READ = "rw_renew" Read;
    STEAL = "rw_steal" Write;
    FORCE_READ = "rw_force" Read;
    INSPECT_READ = "rw_inspect" Read;
    ACQUIRE_WRITE = "rw_acquire" Write;
    ACQUIRE_WRITE_MARKED = "rw_acquire" Write with mark;
    RELEASE_WRITE = "rw_release" Write;
    RELEASE_WRITE_MARKED = "rw_release" Write with mark;
    LOWER_WRITE = "rw_lower" Write;
    RENEW_WRITE = "rw_renew" Write;
    FORCE_WRITE = "rw_force" Write;
    INSPECT_WRITE = "rw_inspect" Write;
    ACQUIRE_PERMITS = "permit_acquire" Permits;
    RELEASE_PERMITS = "permit_release" Permits;
    LOWER_PERMITS = "permit_lower" Permits;
    RENEW_PERMITS = "permit_renew" Permits;
    FORCE_PERMITS = "permit_force" Permits;
    INSPECT_PERMITS = "permit_inspect" Permits;
    COUNT_PERMITS = "permit_count" Permits;
    TRADE = "counter_trade" Permits;
    SET_COUNTER = "counter_set" Permits;
    COUNT_DOWN = "counter_down" Permits;
    READ_COUNTER = "counter_read" Permits;
    ACQUIRE_QUEUED = "fair_acquire" Hash;
    RELEASE_QUEUED = "fair_release" Hash;
    FORCE_QUEUED = "fair_force" Hash;
    INSPECT_QUEUED = "fair_inspect" Hash;
    ACQUIRE_QUEUED_PERMITS = "permit_acquire" QueuedPermits;
    RELEASE_QUEUED_PERMITS = "permit_release" QueuedPermits;
    INSPECT_QUEUED_PERMITS = "fair_inspect" QueuedPermits;
}

/// Parts that several scripts share.
const SHARED: [(&str, &str); 21] = [
    ("clock", lua!("clock")),
    ("token", lua!("token")),
    ("recall", lua!("recall")),
    ("holder", lua!("holder")),
    ("readers", lua!("readers")),
    ("timeouts", lua!("timeouts")),
    ("marked", lua!("marked")),
    ("permit_ids", lua!("permit_ids")),
    ("permit_keys", lua!("permit_keys")),
    ("permit_head", lua!("permit_head")),
    ("counter", lua!("counter")),
    ("counter_value", lua!("counter_value")),
    ("counter_mark", lua!("counter_mark")),
    ("counter_marked", lua!("counter_marked")),
    ("crowd_args", lua!("crowd_args")),
    ("crowd_next", lua!("crowd_next")),
    ("crowd_place", lua!("crowd_place")),
    ("fair_place", lua!("fair_place")),
    ("fair_heads", lua!("fair_heads")),
    ("fair_leave", lua!("fair_leave")),
    ("told", lua!("told")),
];

/// The source of a script for one layout. The server runs it from the top for every call, so it
/// contains nothing that this layout does not need, and no function that is called once.
///
/// `--# hash plain` starts lines for these layouts, `--# all` lines for every layout. `--# read-mark` starts
/// lines for this variant of a layout, in which the mark of waiting writers counts. `--@ clock`
/// includes that file. The codes that occur in the source are defined at its top.
fn assembled(text: &str, layout: Layout, variant: &str) -> String {
    let body = lines_for(text, layout, variant);
    let used = |(name, _): &&(&str, i64)| {
        body.split(|char: char| !char.is_ascii_alphanumeric())
            .any(|word| word == *name)
    };
    let codes: String = CODES
        .iter()
        .filter(used)
        .map(|(name, code)| format!("local {name} = {code}\n"))
        .collect();
    codes + &body
}

fn lines_for(text: &str, layout: Layout, variant: &str) -> String {
    let layout_name = match layout {
        Layout::Hash => "hash",
        Layout::Plain => "plain",
        Layout::Learning => "learning",
        Layout::Read => "read",
        Layout::Write => "write",
        Layout::Permits => "permits",
        Layout::Queued => "queued",
        Layout::QueuedPermits => "queued_permits",
    };
    let (mut all, mut wanted) = (String::new(), true);
    for line in text.lines() {
        if let Some(layouts) = line.strip_prefix("--# ") {
            let is_of_variant = |name: &str| name.split_once('-') == Some((layout_name, variant));
            wanted = layouts
                .split(' ')
                .any(|name| name == "all" || name == layout_name || is_of_variant(name));
        } else if let Some(part) = line.strip_prefix("--@ ").filter(|_| wanted) {
            let shared = SHARED
                .iter()
                .find(|(name, _)| *name == part)
                .map_or("", |(_, text)| text);
            all += &lines_for(shared, layout, variant);
        } else if wanted {
            all += line;
            all += "\n";
        }
    }
    all
}

/// The script that executes `op`.
pub(super) fn script(op: &Op) -> &'static Script {
    use Layout::{Hash, Learning, Permits, Plain, Queued, QueuedPermits, Read, Write};
    match (op, op.layout()) {
        (Op::Count { .. }, _) => &COUNT_PERMITS,
        (Op::Read { .. }, _) => &READ_COUNTER,
        (Op::Change { change, .. }, _) => match change {
            Change::Trade { .. } => &TRADE,
            Change::CountDown(_) => &COUNT_DOWN,
            Change::SetPermits(_) | Change::AddPermits(_) => &SET_COUNTER,
            Change::Drain | Change::SetCount(_) => &SET_COUNTER,
        },
        (Op::Acquire { place: Some(_), .. }, Permits) => &ACQUIRE_CROWD_PERMITS,
        (Op::Acquire { .. }, Permits) => &ACQUIRE_PERMITS,
        (Op::Release { remaining: 0, .. }, Permits) => &RELEASE_PERMITS,
        (Op::Acquire { .. }, QueuedPermits) => &ACQUIRE_QUEUED_PERMITS,
        (Op::Release { remaining: 0, .. }, QueuedPermits) => &RELEASE_QUEUED_PERMITS,
        (Op::Inspect { .. }, QueuedPermits) => &INSPECT_QUEUED_PERMITS,
        // Permits of a fair semaphore that are taken are as all others (`Layout::held_as`).
        (Op::Release { .. }, Permits | QueuedPermits) => &LOWER_PERMITS,
        (Op::Renew { .. }, Permits | QueuedPermits) => &RENEW_PERMITS,
        (Op::Force { .. }, Permits | QueuedPermits) => &FORCE_PERMITS,
        (Op::Inspect { .. }, Permits) => &INSPECT_PERMITS,
        (Op::Acquire { mark: Some(_), .. }, Read) => &ACQUIRE_READ_MARKED,
        (Op::Acquire { .. }, Read) => &ACQUIRE_READ,
        (Op::Release { remaining: 0, .. }, Read) => &RELEASE_READ,
        (Op::Release { .. }, Read) => &LOWER_READ,
        (Op::Renew { .. }, Read) => &RENEW_READ,
        (Op::Force { .. }, Read) => &FORCE_READ,
        (Op::Inspect { .. }, Read) => &INSPECT_READ,
        (Op::Acquire { steal: true, .. }, Write) => &STEAL,
        (Op::Acquire { mark: Some(_), .. }, Write) => &ACQUIRE_WRITE_MARKED,
        (Op::Acquire { .. }, Write) => &ACQUIRE_WRITE,
        (
            Op::Release {
                remaining: 0,
                unmark: true,
                ..
            },
            Write,
        ) => &RELEASE_WRITE_MARKED,
        (Op::Release { remaining: 0, .. }, Write) => &RELEASE_WRITE,
        (Op::Release { .. }, Write) => &LOWER_WRITE,
        (Op::Renew { .. }, Write) => &RENEW_WRITE,
        (Op::Force { .. }, Write) => &FORCE_WRITE,
        (Op::Inspect { .. }, Write) => &INSPECT_WRITE,
        (Op::Acquire { .. }, Queued) => &ACQUIRE_QUEUED,
        (Op::Release { remaining: 0, .. }, Queued) => &RELEASE_QUEUED,
        (Op::Force { .. }, Queued) => &FORCE_QUEUED,
        (Op::Acquire { place: Some(_), .. }, Hash) => &ACQUIRE_CROWD,
        (Op::Acquire { .. }, Hash) => &ACQUIRE,
        (Op::HandOver { .. }, Hash) => &HAND_OVER,
        (
            Op::Release {
                remaining: 0,
                place: Some(_),
                ..
            },
            Hash,
        ) => &RELEASE_CROWD,
        (Op::Release { remaining: 0, .. }, Hash) => &RELEASE,
        // A fair lock that is held is a hash (`Layout::held_as`).
        (Op::Release { .. }, Hash | Queued) => &LOWER,
        (Op::Renew { .. }, Hash | Queued) => &RENEW,
        (Op::Force { .. }, Hash) => &FORCE,
        (Op::Inspect { .. }, Queued) => &INSPECT_QUEUED,
        (Op::Inspect { .. }, Hash) => &INSPECT,
        (Op::Acquire { place: Some(_), .. }, Plain) => &ACQUIRE_CROWD_PLAIN,
        (Op::Acquire { .. }, Plain) => &ACQUIRE_PLAIN,
        // The engine hands over no lock of the other layouts (`Layout::handover`).
        (Op::HandOver { .. }, Plain | Learning | Read | Write) => &HAND_OVER_PLAIN,
        (Op::HandOver { .. }, Permits | Queued | QueuedPermits) => &HAND_OVER_PLAIN,
        (
            Op::Release {
                remaining: 0,
                place: Some(_),
                ..
            },
            Plain,
        ) => &RELEASE_CROWD_PLAIN,
        (Op::Release { remaining: 0, .. }, Plain) => &RELEASE_PLAIN,
        (Op::Acquire { place: Some(_), .. }, Learning) => &ACQUIRE_CROWD_LEARNING,
        (Op::Acquire { .. }, Learning) => &ACQUIRE_LEARNING,
        (
            Op::Release {
                remaining: 0,
                place: Some(_),
                ..
            },
            Learning,
        ) => &RELEASE_CROWD_LEARNING,
        (Op::Release { remaining: 0, .. }, Learning) => &RELEASE_LEARNING,
        (Op::Release { .. }, Plain | Learning) => &LOWER_PLAIN,
        (Op::Renew { .. }, Plain | Learning) => &RENEW_PLAIN,
        (Op::Force { .. }, Plain | Learning) => &FORCE_PLAIN,
        (Op::Inspect { .. }, Plain | Learning) => &INSPECT_PLAIN,
    }
}

/// How long an expiring fencing counter outlives its last use. It is longer than the longest lease
/// (24 h), so that a repeated acquire finds the token that the first copy drew.
const COUNTER_EXPIRY: Duration = Duration::from_secs(25 * 3600);

/// One script call, ready to be written as `EVALSHA` or, if the server does not know the script, as
/// `EVAL`.
pub struct Call {
    pub(super) script: &'static Script,
    /// The number of words that are keys; the others are arguments.
    pub(super) keys: usize,
    pub(super) words: Words,
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
    pub fn reusing(before: Call, op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        let mut words = before.words;
        words.clear();
        Call::refilled(words, op, uuid, not_after, publish)
    }

    fn refilled(mut words: Words, op: &Op, uuid: &str, not_after: u64, publish: Publish) -> Call {
        each_key(op, uuid, &mut |key| words.add(key));
        let keys = words.count();
        arguments(op, uuid, not_after, publish, &mut words);
        Call {
            script: script(op),
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

    /// Writes the command by the script's hash, in wire format.
    pub fn write_evalsha(&self, out: &mut Vec<u8>) {
        self.write(out, |out| {
            out.extend_from_slice(&self.script.made().evalsha)
        });
    }

    /// Writes the command with the script's source, in wire format.
    pub fn write_eval(&self, out: &mut Vec<u8>) {
        self.write(out, |out| {
            write_bulk(out, b"EVAL");
            write_bulk(out, self.script.made().text.as_bytes());
        });
    }

    fn write(&self, out: &mut Vec<u8>, command: impl FnOnce(&mut Vec<u8>)) {
        out.clear();
        write_head(out, b'*', 3 + self.words.count());
        command(out);
        write_bulk_number(out, self.keys as u64);
        self.words.each(|word| write_bulk(out, word));
    }
}

/// Adds the arguments after the keys.
fn arguments(op: &Op, uuid: &str, not_after: u64, publish: Publish, words: &mut Words) {
    match op {
        Op::Acquire {
            owner,
            form,
            count,
            lease,
            fencing,
            under,
            earlier,
            name,
            limit,
            queues,
            steal,
            mark,
            place,
            ..
        } => {
            let lease = whole_ms(*lease);
            words.owner(form, uuid, *owner);
            words.number(lease);
            words.number(not_after.saturating_add(lease));
            let kept = if *queues {
                whole_ms(tuning::PLACE_KEPT)
            } else {
                0
            };
            if form.kind.takes_permits() {
                words.number(u64::from(*count));
                words.number(u64::from(*limit));
                words.number(whole_ms(tuning::PERMIT_MARGIN));
                words.parts(&channel_parts(Topic::Semaphore, name));
                words.add(verbs(Topic::Semaphore, name, publish));
                if op.layout() == Layout::QueuedPermits {
                    words.number(kept);
                    earlier
                        .iter()
                        .for_each(|owner| words.owner(form, uuid, *owner));
                }
                if let Some(place) = place {
                    crowd_arguments(name, uuid, *place, publish, words);
                }
                return;
            }
            if let (Some(writer), Kind::Read) = (under, form.kind) {
                words.number(u64::from(*count));
                let write = Form::of(Kind::Write);
                return words.owner(&write, uuid, *writer);
            }
            let counter = counter_life(*fencing);
            if *steal {
                words.parts(&timeout_prefix(name));
                return counter.into_iter().for_each(|life| words.number(life));
            }
            if op.layout() == Layout::Queued {
                words.number(kept);
                words.parts(&channel_parts(Topic::Lock, name));
                words.add(verbs(Topic::Lock, name, publish));
                match counter {
                    Some(life) => words.number(life),
                    None => words.add(""),
                }
                return earlier
                    .iter()
                    .for_each(|owner| words.owner(form, uuid, *owner));
            }
            let mark = mark.filter(|_| form.kind == Kind::Write);
            // Common values are left out: each argument costs the server as much as a small
            // command.
            if *count != 1 || counter.is_some() || mark.is_some() {
                words.number(u64::from(*count));
            }
            if let Some(time) = mark {
                words.number(whole_ms(time));
            }
            counter.into_iter().for_each(|life| words.number(life));
            if let Some(place) = place {
                crowd_arguments(name, uuid, *place, publish, words);
            }
        }
        Op::HandOver {
            owner,
            adopts,
            to,
            form,
            lease,
            fencing,
            ..
        } => {
            match adopts {
                Some(token) => words.add(token),
                None => words.owner(form, uuid, *owner),
            }
            words.owner(form, uuid, *to);
            words.number(whole_ms(*lease));
            words.number(not_after);
            counter_life(*fencing)
                .into_iter()
                .for_each(|life| words.number(life));
        }
        Op::Release {
            name,
            owner,
            form,
            remaining: 0,
            lesson,
            place,
            ..
        } => {
            words.owner(form, uuid, *owner);
            let layout = form.kind.layout();
            words.parts(&channel_parts(layout.topic(), name));
            let verbs = verbs(layout.topic(), name, publish);
            if layout.topic() == Topic::ReadWrite {
                words.add(verbs);
                return words.parts(&timeout_prefix(name));
            }
            let usual = verbs == CLASSIC && lesson.is_none();
            if !usual || layout.queues() {
                words.add(verbs);
            }
            if let Some(LeaseSample { asked, took }) = lesson {
                words.number(took.as_secs());
                words.number(asked.as_secs());
            }
            if let Some(place) = place {
                crowd(name, uuid, *place, words);
            }
        }
        Op::Release {
            name,
            owner,
            form,
            remaining,
            ttl,
            ..
        } => {
            words.owner(form, uuid, *owner);
            words.number(u64::from(*remaining));
            words.number(whole_ms(*ttl));
            words.number(not_after);
            match form.kind.layout().topic() {
                Topic::Lock | Topic::Place(_) => {}
                Topic::ReadWrite => words.parts(&timeout_prefix(name)),
                Topic::Semaphore | Topic::Latch => words.number(whole_ms(tuning::PERMIT_MARGIN)),
            }
        }
        Op::Renew { holds } => {
            match holds.as_slice() {
                [_, _, ..] if op.layout() == Layout::Hash => words.owners(uuid, holds),
                _ => holds
                    .iter()
                    .for_each(|hold| words.owner(&hold.form, uuid, hold.owner)),
            }
            // Most batches have one lease for all holds; then it is sent once.
            let times = if alike(holds) { 1 } else { holds.len() };
            holds
                .iter()
                .take(times)
                .for_each(|hold| words.number(whole_ms(hold.ttl)));
            words.number(not_after);
            if op.layout() == Layout::Permits {
                words.number(whole_ms(tuning::PERMIT_MARGIN));
            }
        }
        Op::Force { name, kind } => {
            words.number(not_after);
            words.parts(&channel_parts(kind.layout().topic(), name));
            words.add(verbs(kind.layout().topic(), name, publish));
            if kind.layout().topic() == Topic::ReadWrite {
                words.parts(&timeout_prefix(name));
            }
        }
        Op::Inspect { name, kind, .. } => {
            if kind.layout().topic() == Topic::ReadWrite {
                words.parts(&timeout_prefix(name));
            }
        }
        Op::Count { name, limit } => {
            words.number(not_after);
            words.parts(&channel_parts(Topic::Semaphore, name));
            words.add(verbs(Topic::Semaphore, name, publish));
            limit
                .iter()
                .for_each(|limit| words.number(u64::from(*limit)));
        }
        Op::Change {
            name,
            sequence,
            change,
            ..
        } => {
            let topic = change.counter().topic();
            words.number(not_after);
            words.number(*sequence);
            words.parts(&channel_parts(topic, name));
            words.add(verbs(topic, name, publish));
            change_arguments(change, words);
        }
        Op::Read { .. } => {}
    }
}

/// Adds what an acquisition in a crowd knows of it.
#[cold]
fn crowd_arguments(name: &Name, uuid: &str, place: Place, publish: Publish, words: &mut Words) {
    crowd(name, uuid, place.owner, words);
    words.add(if place.first { "0" } else { "1" });
    words.parts(&channel_parts(Topic::Lock, name));
    words.add(verbs(Topic::Lock, name, publish));
}

/// Adds the set of the places in a crowd, and a place. The set is no key of the call: where a user may
/// not write it, or it has another slot, the call does without it.
fn crowd(name: &Name, uuid: &str, place: OwnerId, words: &mut Words) {
    words.add(&crowd_key(name));
    words.owner(&Form::default(), uuid, place);
}

/// Adds the arguments that only this change has.
fn change_arguments(change: &Change, words: &mut Words) {
    match change {
        Change::Trade { given, wanted } => {
            words.number(u64::from(*given));
            wanted
                .iter()
                .for_each(|each| words.number(u64::from(*each)));
        }
        Change::SetPermits(permits) => {
            words.add("set");
            words.number(u64::from(*permits));
        }
        Change::AddPermits(permits) => {
            words.add("add");
            words.add(&permits.to_string());
        }
        Change::Drain => {
            words.add("drain");
            words.number(0);
        }
        Change::SetCount(count) => {
            words.add("latch");
            words.number(u64::from(*count));
        }
        Change::CountDown(by) => words.number(u64::from(*by)),
    }
}

/// Whether all holds are renewed for the same time.
fn alike(holds: &[Renewal]) -> bool {
    holds.windows(2).all(|two| two[0].ttl == two[1].ttl)
}

/// The words of a command, stored one after the other in one buffer.
#[derive(Default)]
pub(super) struct Words {
    bytes: Vec<u8>,
    /// Where each word ends.
    ends: Vec<usize>,
}

/// The bytes and the words that most calls need.
const USUAL: (usize, usize) = (192, 8);

impl Words {
    /// With room for this many usual calls.
    pub(super) fn for_calls(calls: usize) -> Words {
        Words {
            bytes: Vec::with_capacity(calls * USUAL.0),
            ends: Vec::with_capacity(calls * USUAL.1),
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a word; `write` appends its bytes.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(USUAL.0);
            self.ends.reserve(USUAL.1);
        }
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn add(&mut self, word: &str) {
        self.write(|out| out.extend_from_slice(word.as_bytes()));
    }

    /// Adds one word made of these parts.
    pub(super) fn parts(&mut self, parts: &[&str]) {
        self.write(|out| {
            parts
                .iter()
                .for_each(|part| out.extend_from_slice(part.as_bytes()))
        });
    }

    pub(super) fn number(&mut self, number: u64) {
        self.write(|out| write_number(out, number));
    }

    pub(super) fn owner(&mut self, form: &Form, uuid: &str, owner: OwnerId) {
        self.write(|out| form.write_owner(uuid, owner, out));
    }

    /// Adds two words: the prefix that all these owners share, and the rest of each owner. Most
    /// were drawn one after the other and share a uuid. If not, the prefix is empty.
    fn owners(&mut self, uuid: &str, holds: &[Renewal]) {
        let first = holds.first().map_or(0, |hold| hold.owner);
        let alike = holds.iter().all(|hold| is_same_identity(hold.owner, first));
        self.write(|out| {
            if alike {
                write_identity(uuid, first, out);
                out.push(b':');
            }
        });
        self.write(|out| {
            for hold in holds {
                if !alike {
                    write_identity(uuid, hold.owner, out);
                    out.push(b':');
                }
                write_number(out, number_of(hold.owner));
                out.push(b' ');
            }
        });
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn each(&self, mut each: impl FnMut(&[u8])) {
        let mut begin = 0;
        for end in &self.ends {
            each(&self.bytes[begin..*end]);
            begin = *end;
        }
    }
}

/// The digits of the largest `u64`.
const MOST_DIGITS: usize = 20;

/// Writes a number in decimal digits.
pub(super) fn write_number(out: &mut Vec<u8>, number: u64) {
    // Short numbers are common.
    if number < 10 {
        return out.push(b'0' + number as u8);
    }
    if number < 100 {
        return out.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]);
    }
    let (mut digits, mut first, mut rest) = ([0; MOST_DIGITS], MOST_DIGITS, number);
    while rest >= 10 {
        first -= 2;
        let two = (rest % 100) as u8;
        (digits[first], digits[first + 1]) = (b'0' + two / 10, b'0' + two % 10);
        rest /= 100;
    }
    if rest > 0 {
        first -= 1;
        digits[first] = b'0' + rest as u8;
    }
    out.extend_from_slice(&digits[first..]);
}

/// Writes the head of a command or a word in RESP: a mark, and the number of words or bytes that
/// follow.
fn write_head(out: &mut Vec<u8>, mark: u8, number: usize) {
    match number {
        0..10 => out.extend_from_slice(&[mark, b'0' + number as u8, b'\r', b'\n']),
        10..100 => {
            let (ten, one) = ((number / 10) as u8, (number % 10) as u8);
            out.extend_from_slice(&[mark, b'0' + ten, b'0' + one, b'\r', b'\n']);
        }
        _ => {
            out.push(mark);
            write_number(out, number as u64);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Writes a word as a RESP bulk string.
fn write_bulk(out: &mut Vec<u8>, word: &[u8]) {
    write_head(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn write_bulk_number(out: &mut Vec<u8>, number: u64) {
    let digits = number.checked_ilog10().unwrap_or_default() + 1;
    write_head(out, b'$', digits as usize);
    write_number(out, number);
    out.extend_from_slice(b"\r\n");
}

/// How long the fencing counter lives, in milliseconds (0: for ever). `None` without fencing.
fn counter_life(fencing: Fencing) -> Option<u64> {
    match fencing {
        Fencing::Off => None,
        Fencing::Expiring => Some(u64::try_from(COUNTER_EXPIRY.as_millis()).unwrap_or(u64::MAX)),
        Fencing::Persistent => Some(0),
    }
}

/// The key that keeps the time of a reader.
pub(crate) fn timeout_key(uuid: &str, name: &str, form: &Form, owner: OwnerId) -> String {
    let prefix = timeout_prefix(name).concat();
    prefix + &form.owner(uuid, owner) + TIMEOUT_SUFFIX
}

/// Visits the keys that the script of `op` of the client `uuid` uses.
fn each_key(op: &Op, uuid: &str, each: &mut impl FnMut(&str)) {
    // The second key of readers and semaphores.
    let second = |name: &Name, form: &Form, owner: OwnerId| match form.kind {
        Kind::Read => Some(timeout_key(uuid, name, form, owner)),
        kind if kind.takes_permits() => Some(taken_key(name)),
        _ => None,
    };
    let queue = |name: &Name| match op.layout() {
        Layout::Queued => Some(queue_keys(name)),
        Layout::QueuedPermits => Some(permit_queue_keys(name)),
        _ => None,
    };
    match op {
        Op::Acquire {
            name,
            owner,
            form,
            fencing,
            ..
        }
        | Op::HandOver {
            name,
            owner,
            form,
            fencing,
            ..
        } => {
            each(name);
            if let Some(key) = second(name, form, *owner) {
                each(&key);
            }
            if *fencing != Fencing::Off {
                each(&token_key(name));
            }
            if form.kind.layout().learns() {
                each(&learnt_key(name));
            }
            queue(name).iter().flatten().for_each(|key| each(key));
            if let Op::Acquire { mark: Some(_), .. } = op {
                each(&writer_mark_key(name));
            }
        }
        Op::Release {
            name,
            owner,
            form,
            unmark,
            ..
        } => {
            each(name);
            if let Some(key) = second(name, form, *owner) {
                each(&key);
            }
            if form.kind.layout().learns() {
                each(&learnt_key(name));
            }
            queue(name).iter().flatten().for_each(|key| each(key));
            if *unmark {
                each(&writer_mark_key(name));
            }
        }
        Op::Renew { holds } => {
            holds.iter().for_each(|hold| each(&hold.name));
            holds
                .iter()
                .filter_map(|hold| second(&hold.name, &hold.form, hold.owner))
                .for_each(|key| each(&key));
        }
        Op::Force { name, kind } | Op::Inspect { name, kind, .. } => {
            each(name);
            if kind.takes_permits() {
                each(&taken_key(name));
            }
            queue(name).iter().flatten().for_each(|key| each(key));
        }
        Op::Count { name, .. } => {
            each(name);
            each(&taken_key(name));
        }
        Op::Change {
            name,
            writer,
            change,
            ..
        } => {
            each(name);
            each(&marker_key(uuid, change.counter(), name, *writer));
        }
        Op::Read { name, .. } => each(name),
    }
}

/// The cluster slot of the keys of `op`.
///
/// # Errors
/// `name_not_clusterable` if the keys have different slots.
pub fn slot_of(op: &Op) -> Result<u16> {
    let mut keys = Vec::new();
    each_key(op, "", &mut |key| keys.push(key.to_owned()));
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

/// The command that publishes a release outside of clusters.
pub(super) const CLASSIC: &str = "PUBLISH";

/// The commands that publish a release. The channel is passed as an argument, not as a key, so that
/// it may have another slot and an ACL need not allow it as a key. With another slot, only
/// `PUBLISH` reaches every subscriber.
pub(super) fn verbs(topic: Topic, name: &Name, publish: Publish) -> &'static str {
    match publish {
        Publish::Sharded if is_shardable(topic, name) => "SPUBLISH",
        Publish::Both if is_shardable(topic, name) => "SPUBLISH PUBLISH",
        _ => CLASSIC,
    }
}

/// Whether the channel has the slot of the lock, as `SPUBLISH` requires.
pub fn is_shardable(topic: Topic, name: &str) -> bool {
    slot(&channel_parts(topic, name).concat()) == slot(name)
}

/// Whole milliseconds, rounded up: the server must hold a lock at least for the lease from which
/// the engine computes its deadline. At least 1, because an expiry of 0 would delete the key.
pub(super) fn whole_ms(lease: Duration) -> u64 {
    let part = u64::from(lease.subsec_micros().div_ceil(1000));
    lease
        .as_secs()
        .saturating_mul(1000)
        .saturating_add(part)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::super::{Inspection, Kind};
    use super::*;
    use crate::real::cmd;

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
            under: None,
            earlier: Vec::new(),
            limit: 0,
            queues: false,
            steal: false,
            mark: None,
            place: None,
        }
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
            let form = Form {
                kind,
                ..Form::default()
            };
            Op::Acquire {
                name: "a}b".into(),
                owner: 7,
                form,
                count: 1,
                lease: Duration::from_secs(1),
                fencing,
                replicas: 0,
                under: None,
                earlier: Vec::new(),
                limit: 0,
                queues: false,
                steal: false,
                mark: None,
                place: None,
            }
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
        let latch = |name: &str| super::verbs(Topic::Latch, &name.into(), Publish::Both);
        assert_eq!(
            (latch("orders"), latch("{eu}:o")),
            ("SPUBLISH PUBLISH", "PUBLISH")
        );
    }

    fn release(remaining: u32) -> Op {
        Op::Release {
            name: "{eu}:o".into(),
            owner: 7,
            form: Form::default(),
            remaining,
            ttl: Duration::ZERO,
            lesson: None,
            unmark: false,
            place: None,
        }
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
            (&ACQUIRE, "HMGET"),
            (&ACQUIRE_PLAIN, "'NX'"),
            (&ACQUIRE_LEARNING, "learnt + 10"),
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
            !ACQUIRE.made().text.contains("'GET', lock")
                && !ACQUIRE_PLAIN.made().text.contains("HSET")
        );
        for script in [
            &ACQUIRE,
            &ACQUIRE_PLAIN,
            &RELEASE,
            &RELEASE_PLAIN,
            &LOWER,
            &RENEW,
            &RENEW_PLAIN,
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
        let length = super::bare(text, &mut bare);
        assert_eq!(
            str::from_utf8(&bare[..length]),
            Ok("local a = 1 -- b\n--@ clock\nif a then\n--# all\nend")
        );
        for script in [&ACQUIRE, &RENEW_PLAIN, &ACQUIRE_READ, &COUNT_PERMITS] {
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
            call = Call::reusing(call, op, UUID, 1_700_000_000_000, Publish::Sharded);
            call.write_evalsha(&mut written);
            assert_eq!(written, cmd(&call, false).get_packed_command(), "{op:?}");
            call.write_eval(&mut written);
            let anew = Call::new(op, UUID, 1_700_000_000_000, Publish::Sharded);
            assert_eq!(written, cmd(&anew, true).get_packed_command(), "{op:?}");
        }
    }
}
