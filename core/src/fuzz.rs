//! `make fuzz`: what comes from outside is taken apart without a panic and refused with a typed
//! error, whatever it is: replies and refusals of a server, URLs, options, names.
//!
//! Inputs are mutations of the corpus in `tests/corpus`; one that is answered in a way not seen
//! before, or reaches code that none has reached before, is mutated further. The second needs a
//! build that counts what is reached, as `make fuzz` makes it; the first serves the other tests.
//!
//! `REDLATCH_FUZZ_SECONDS` for each target, or `REDLATCH_INPUTS` (default 3000),
//! `REDLATCH_FIRST_SEED` (default 0); with `REDLATCH_KEEP` short inputs that reach more are added
//! to the corpus.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test says where"
)]

use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use redlatch_coverage::Coverage;

use crate::error::{ErrorKind, Result};
use crate::options::{LockOptions, OptionValue, all_options};
use crate::support::random::{Random, number};
use crate::wire::names::{channel, name_from_bytes, token_key};
use crate::wire::{Fencing, Form, Kind, Op, Renewal, decode, refusal};
use crate::{AcquireOptions, Client};

/// How long an error's text may be, whatever it was made of.
const LONGEST_TEXT: usize = 1500;
/// Longer inputs are not for the corpus.
const LONGEST_KEPT: usize = 200;
/// Inputs that a random mutation rarely finds by itself.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*1000000000\r\n",
    b"$2147483647\r\n",
    b":-9223372036854775808\r\n",
    b"\x00",
    b"://",
    b"@",
    b"%00",
    b"%",
    b"[",
    b"]",
    b"?",
    b"#",
    b",",
    b"-1",
    b"0",
    b"9223372036854775808",
    b"1e400",
    b"NaN",
    b"ms",
    b"{",
    b"}",
    b"\xff",
    b"\xed\xa0\x80",
    b"=",
];

/// The inputs of a target as the corpus has them: a line each, with escapes for what is no text.
fn corpus(text: &str) -> Vec<Vec<u8>> {
    text.lines().map(unescaped).collect()
}

fn unescaped(line: &str) -> Vec<u8> {
    let mut bytes = line.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match (byte, byte == b'\\') {
            (byte, false) => byte,
            _ => match bytes.next().expect("something after a backslash") {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let digits = [
                        bytes.next().expect("a digit"),
                        bytes.next().expect("a digit"),
                    ];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
        });
    }
    plain
}

fn at(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64 + 1)).unwrap()
}

/// One change, or a few.
fn mutated(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[at(random, corpus.len() - 1)].clone();
    for _ in 0..random.between(1, 4) {
        let place = at(random, bytes.len());
        match random.below(7) {
            0 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
            1 if place < bytes.len() => drop(bytes.remove(place)),
            2 => bytes.insert(place, u8::try_from(random.below(256)).unwrap()),
            3 => bytes.truncate(place),
            4 => {
                let word = random.pick(WORDS);
                drop(bytes.splice(place..place, word.iter().copied()));
            }
            5 => {
                let other = &corpus[at(random, corpus.len() - 1)];
                bytes.extend_from_slice(&other[at(random, other.len())..]);
            }
            _ => {
                let part = bytes[place..].to_vec();
                let times = random.pick(&[1, 2, 50]);
                (0..times).for_each(|_| bytes.extend_from_slice(&part));
            }
        }
        bytes.truncate(5000);
    }
    bytes
}

/// Feeds a target with the corpus and with mutations. It returns what kind of answer an input got,
/// and panics where the answer is wrong.
fn fuzz(name: &str, text: &str, target: impl Fn(&[u8]) -> String) {
    let mut inputs = corpus(text);
    let mut answers = HashSet::new();
    let coverage = RefCell::new(Coverage::new());
    let run = |input: &[u8]| {
        coverage.borrow().begin();
        let answer = catch_unwind(AssertUnwindSafe(|| target(input)))
            .unwrap_or_else(|_| panic!("{name}: this input breaks it: {}", input.escape_ascii()));
        (answer, coverage.borrow_mut().end())
    };
    for input in &inputs {
        answers.insert(run(input).0);
    }
    let (known, reached) = (inputs.len(), coverage.borrow().edges());
    let mut random = Random(number("REDLATCH_FIRST_SEED").unwrap_or(0));
    let seconds = number("REDLATCH_FUZZ_SECONDS").map(Duration::from_secs);
    let most = number("REDLATCH_INPUTS").unwrap_or(if seconds.is_some() { u64::MAX } else { 3000 });
    let (begun, mut count) = (Instant::now(), 0);
    while count < most && seconds.is_none_or(|seconds| begun.elapsed() < seconds) {
        count += 1;
        let input = mutated(&mut random, &inputs);
        let (answer, reaches_more) = run(&input);
        if answers.insert(answer) | reaches_more {
            inputs.push(input);
        }
    }
    let edges = coverage.borrow().edges();
    println!(
        "fuzz {name}: inputs={count} answers={} edges={edges} of_corpus={reached}",
        answers.len()
    );
    if std::env::var_os("REDLATCH_KEEP").is_some() && coverage.borrow().is_on() {
        keep(name, &inputs, known, &target);
    }
}

/// Adds to the corpus of a target, if it has one, the shortest inputs that together reach what all
/// reach.
fn keep(name: &str, inputs: &[Vec<u8>], known: usize, target: impl Fn(&[u8]) -> String) {
    let path = format!("{}/tests/corpus/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let Ok(mut lines) = std::fs::read_to_string(&path) else {
        return;
    };
    let mut found: Vec<&Vec<u8>> = inputs[known..]
        .iter()
        .filter(|input| input.len() <= LONGEST_KEPT)
        .collect();
    found.sort_by_key(|input| input.len());
    let mut coverage = Coverage::new();
    for (at, input) in inputs[..known].iter().chain(found).enumerate() {
        let before = coverage.edges();
        coverage.begin();
        target(input);
        coverage.end();
        if at >= known && !input.is_empty() && coverage.edges() > before {
            lines += &format!("{}\n", input.escape_ascii());
        }
    }
    std::fs::write(path, lines).unwrap();
}

/// The shape of an answer: without what is copied from the input.
fn shape<T>(result: &Result<T>, allowed: &[ErrorKind]) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => {
            assert!(allowed.contains(&error.kind()), "{error}");
            assert!(
                error.message().len() < LONGEST_TEXT,
                "{} bytes of text",
                error.message().len()
            );
            // The text between quotes is the input.
            let ours = error.message().split('"').step_by(2).flat_map(str::chars);
            ours.filter(char::is_ascii_lowercase).take(60).collect()
        }
    }
}

fn ops() -> Vec<Op> {
    let (name, ttl, kind) = (|| "n".into(), Duration::from_secs(30), Kind::Reentrant);
    let form = || Form { kind, token: None };
    let release = |remaining| Op::Release {
        name: name(),
        owner: 7,
        form: form(),
        remaining,
        ttl,
        lesson: None,
    };
    let fencing = Fencing::Persistent;
    vec![
        Op::Acquire {
            name: name(),
            owner: 7,
            form: form(),
            count: 1,
            lease: ttl,
            fencing,
            replicas: 0,
        },
        Op::Acquire {
            name: name(),
            owner: 7,
            form: form(),
            count: 1,
            lease: ttl,
            fencing,
            replicas: 2,
        },
        release(0),
        release(1),
        Op::Renew {
            holds: vec![
                Renewal {
                    name: name(),
                    owner: 7,
                    form: form(),
                    ttl
                };
                2
            ],
        },
        Op::Force { name: name(), kind },
        Op::Inspect { name: name(), kind },
    ]
}

#[test]
fn replies_of_any_kind_are_understood_or_refused() {
    let ops = ops();
    fuzz(
        "replies",
        include_str!("../tests/corpus/replies.txt"),
        |input| {
            let Ok(value) = redis::parse_redis_value(input) else {
                return "no reply".to_owned();
            };
            let value = crate::driver::reply(value);
            let answers = ops.iter().map(|op| match decode(op, value.clone()) {
                Ok((_, reply)) => format!("{reply:?}")
                    .chars()
                    .filter(|char| !char.is_ascii_digit())
                    .take(30)
                    .collect(),
                refused => shape(&refused, &[ErrorKind::Server]),
            });
            answers.collect::<Vec<String>>().join(" ")
        },
    );
}

#[test]
fn refusals_of_any_kind_become_errors() {
    fuzz(
        "refusals",
        include_str!("../tests/corpus/refusals.txt"),
        |input| {
            let text = String::from_utf8_lossy(input);
            let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
            // A parser of the protocol gives no code longer than a line, and none is read beyond a
            // few words.
            let code: String = code.chars().take(100).collect();
            let (error, passing) = refusal(&code, detail);
            assert!(error.message().len() < LONGEST_TEXT);
            format!("{:?} {passing}", error.kind())
        },
    );
}

#[test]
fn urls_of_any_kind_are_read_or_refused() {
    fuzz("urls", include_str!("../tests/corpus/urls.txt"), |input| {
        let text = String::from_utf8_lossy(input);
        // Building a client connects to nothing.
        shape(
            &Client::builder(&text).build(),
            &[ErrorKind::InvalidArgument, ErrorKind::Unavailable],
        )
    });
}

#[test]
fn no_refused_url_shows_its_password() {
    fuzz(
        "passwords",
        include_str!("../tests/corpus/urls.txt"),
        |input| {
            let text = String::from_utf8_lossy(input).replace(['@', '/', '\\', ':', '?', '#'], "");
            let url = format!("redis://app:QQ{text}ZZ@host:port");
            let refused = Client::builder(&url).build();
            if let Err(error) = &refused {
                assert!(!error.to_string().contains("QQ"), "{error}");
            }
            shape(&refused, &[ErrorKind::InvalidArgument])
        },
    );
}

#[test]
fn options_of_any_kind_are_read_or_refused() {
    let bounds: Vec<&str> = all_options().map(|info| info.name).collect();
    fuzz(
        "options",
        include_str!("../tests/corpus/options.txt"),
        |input| {
            let text = String::from_utf8_lossy(input);
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            let number = value.parse().unwrap_or(f64::NAN);
            let values = [
                OptionValue::Text(value),
                OptionValue::Seconds(number),
                OptionValue::Millis(number),
            ];
            let answers = values.map(|value| {
                let (mut lock, mut acquire) = (LockOptions::new(), AcquireOptions::new());
                let both = [lock.set(name, value), acquire.set(name, value)];
                both.iter()
                    .map(|result| shape(result, &[ErrorKind::InvalidArgument]))
                    .collect::<String>()
            });
            let known = bounds.contains(&name);
            format!("{known} {answers:?}")
        },
    );
}

#[test]
fn names_of_any_kind_are_taken_or_refused() {
    fuzz(
        "names",
        include_str!("../tests/corpus/names.txt"),
        |input| {
            let result = name_from_bytes(input);
            if let Ok(name) = &result {
                assert!((1..=1024).contains(&name.len()));
                assert_eq!(name.as_bytes(), input);
                assert_ne!(channel(name), token_key(name));
                assert!(channel(name).contains(&**name) && token_key(name).contains(&**name));
            }
            shape(&result, &[ErrorKind::InvalidArgument])
        },
    );
}

#[test]
fn the_corpus_is_read_as_it_is_written() {
    assert_eq!(unescaped(r"a\r\n\x00\\x"), b"a\r\n\x00\\x");
    let inputs = corpus(include_str!("../tests/corpus/replies.txt"));
    assert!(inputs.iter().all(|input| !input.is_empty()));
}
