//! The targets of `make fuzz`: whatever comes from outside is taken apart without a panic, and
//! refused with a typed error of bounded length.
//!
//! `core/fuzz` gives them to libFuzzer. The tests here give them its seeds, `core/fuzz/seeds`: one
//! input a line, escaped as by [`u8::escape_ascii`].
#![allow(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a target panics where an answer is wrong: that is how a fuzzer sees it"
)]

use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::options::{LockOptions, OptionValue};
use crate::wire::names::{channel, name_from_bytes, token_key};
use crate::wire::{
    Acquire, Fencing, Form, Inspection, Kind, Op, Release, Renewal, Topic, decode, refusal,
};
use crate::{AcquireOptions, Client};
use redlatch_proto::net::{Item, Reader};

/// How long an error's text may be, whatever it was made of.
const LONGEST_TEXT: usize = 1500;

/// Panics if this is an error of another kind, or one whose text grows with its input.
fn check<T>(result: &Result<T>, allowed: &[ErrorKind]) {
    if let Err(error) = result {
        assert!(allowed.contains(&error.kind()), "{error}");
        let length = error.message().len();
        assert!(length < LONGEST_TEXT, "{length} bytes of text");
    }
}

fn ops() -> Vec<Op> {
    let (name, ttl, kind) = (|| "n".into(), Duration::from_secs(30), Kind::Reentrant);
    let form = || Form::of(kind);
    let acquire = |replicas| {
        Op::Acquire(Acquire {
            fencing: Fencing::Persistent,
            replicas,
            ..Acquire::of(name(), 7, form(), ttl)
        })
    };
    let release = |remaining| {
        Op::Release(Release {
            remaining,
            ttl,
            ..Release::of(name(), 7, form())
        })
    };
    let renewal = || Renewal {
        name: name(),
        owner: 7,
        form: form(),
        ttl,
    };
    vec![
        acquire(0),
        acquire(2),
        release(0),
        release(1),
        Op::Renew {
            holds: vec![renewal(), renewal()],
        },
        Op::Force { name: name(), kind },
        Op::Inspect {
            name: name(),
            kind,
            what: Inspection::Holders,
        },
    ]
}

/// What is read of these pieces, and whether the next bytes are refused.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Item>, bool) {
    let (mut reader, mut items) = (Reader::default(), Vec::new());
    for piece in pieces {
        reader.add(piece);
        loop {
            match reader.next() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(_) => return (items, true),
            }
        }
    }
    (items, false)
}

/// Replies of the server, to each of our commands. They are the same in whatever pieces they arrive.
pub fn replies(input: &[u8]) {
    let whole = read([input]);
    assert_eq!(read(input.chunks(1)), whole);
    let sum = input.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    let (first, rest) = input.split_at(sum % input.len().max(1));
    assert_eq!(read([first, rest]), whole);
    for item in whole.0 {
        if let Item::Reply(value) = item {
            for op in ops() {
                check(&decode(&op, value.clone()), &[ErrorKind::Server]);
            }
        }
    }
}

/// An error that the server answers with.
pub fn refusals(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
    // A parser of the protocol gives no code longer than a line, and none is read beyond a few words.
    let code: String = code.chars().take(100).collect();
    let (error, _) = refusal(&code, detail);
    assert!(error.message().len() < LONGEST_TEXT);
}

/// A URL. Building a client connects to nothing.
pub fn urls(input: &[u8]) {
    let built = Client::builder(&String::from_utf8_lossy(input)).build();
    check(
        &built,
        &[ErrorKind::InvalidArgument, ErrorKind::Unavailable],
    );
}

/// A part of a password: no refused URL shows it.
pub fn passwords(input: &[u8]) {
    let text = String::from_utf8_lossy(input).replace(['@', '/', '\\', ':', '?', '#'], "");
    let refused = Client::builder(&format!("redis://app:QQ{text}ZZ@host:port")).build();
    if let Err(error) = &refused {
        assert!(!error.to_string().contains("QQ"), "{error}");
    }
    check(&refused, &[ErrorKind::InvalidArgument]);
}

/// An option and its value, with `=` between them.
pub fn options(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (name, value) = text.split_once('=').unwrap_or((&text, ""));
    let number = value.parse().unwrap_or(f64::NAN);
    for value in [
        OptionValue::Text(value),
        OptionValue::Seconds(number),
        OptionValue::Millis(number),
    ] {
        let (mut lock, mut acquire) = (LockOptions::new(), AcquireOptions::new());
        check(&lock.set(name, value), &[ErrorKind::InvalidArgument]);
        check(&acquire.set(name, value), &[ErrorKind::InvalidArgument]);
    }
}

/// The name of a lock.
pub fn names(input: &[u8]) {
    let result = name_from_bytes(input);
    if let Ok(name) = &result {
        assert!((1..=1024).contains(&name.len()));
        assert_eq!(name.as_bytes(), input);
        assert_ne!(channel(Topic::Lock, name), token_key(name));
        assert!(channel(Topic::Lock, name).contains(&**name) && token_key(name).contains(&**name));
    }
    check(&result, &[ErrorKind::InvalidArgument]);
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The bytes that [`u8::escape_ascii`] has written.
    fn unescaped(line: &str) -> Vec<u8> {
        let mut bytes = line.bytes();
        std::iter::from_fn(|| {
            let byte = bytes.next()?;
            if byte != b'\\' {
                return Some(byte);
            }
            Some(match bytes.next()? {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            })
        })
        .collect()
    }

    #[test]
    fn seeds_are_read_as_they_are_written() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&bytes.escape_ascii().to_string()), bytes);
    }

    /// A target, its name, and the lines of its seeds.
    type Target = (&'static str, fn(&[u8]), &'static str);

    #[test]
    fn no_seed_breaks_its_target() {
        let urls = include_str!("../fuzz/seeds/urls.txt");
        let targets: [Target; 6] = [
            (
                "replies",
                super::replies,
                include_str!("../fuzz/seeds/replies.txt"),
            ),
            (
                "refusals",
                super::refusals,
                include_str!("../fuzz/seeds/refusals.txt"),
            ),
            ("urls", super::urls, urls),
            ("passwords", super::passwords, urls),
            (
                "options",
                super::options,
                include_str!("../fuzz/seeds/options.txt"),
            ),
            (
                "names",
                super::names,
                include_str!("../fuzz/seeds/names.txt"),
            ),
        ];
        for (name, target, seeds) in targets {
            for line in seeds.lines() {
                let input = unescaped(line);
                let run = catch_unwind(AssertUnwindSafe(|| target(&input)));
                assert!(run.is_ok(), "{name}: {line} breaks it");
            }
        }
    }
}
