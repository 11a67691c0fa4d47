//! `redlatch doctor`: whether a server is fit for locks, and what to change.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use redis::Value;
use redlatch::embed::Inspector;
use redlatch::{AcquireOptions, Client, Error, ErrorKind, Level, Lock};
use serde_json::json;

use crate::arguments::{Doctor, Server};
use crate::failure::{self, Failure};
use crate::reply::{field, text, to};
use crate::{connect, waiters};

/// The exit code if something has to be changed.
const UNFIT: u8 = 1;
/// How long the second client waits for the first one. Where no message comes it looks by itself.
const WAIT: Duration = Duration::from_secs(30);
/// How long it may take until the second client listens.
const LISTENS: Duration = Duration::from_secs(5);
/// How often the count of listeners is asked for.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    /// It works, and could work better.
    Advice,
    /// Locks do not work, or promise less.
    Problem,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Good => "good",
            State::Advice => "advice",
            State::Problem => "problem",
        })
    }
}

struct Finding {
    server: String,
    check: &'static str,
    state: State,
    text: String,
}

pub(crate) fn doctor(server: &Server, arguments: &Doctor) -> Result<u8, Failure> {
    let mut inspector = connect::inspector(server)?;
    let mut findings = Vec::new();
    for (node, address) in inspector.nodes().into_iter().enumerate() {
        for (check, (state, text)) in look(&mut inspector, node)? {
            findings.push(Finding {
                server: address.clone(),
                check,
                state,
                text,
            });
        }
    }
    for (state, text) in play(server, &mut inspector, &arguments.name)? {
        findings.push(Finding {
            server: "a client".to_owned(),
            check: "lock",
            state,
            text,
        });
    }
    let shown: String = match arguments.json {
        true => {
            let all: Vec<serde_json::Value> = findings
                .iter()
                .map(|finding| {
                    json!({
                        "server": finding.server,
                        "check": finding.check,
                        "state": finding.state.to_string(),
                        "text": finding.text,
                    })
                })
                .collect();
            format!("{}\n", serde_json::Value::from(all))
        }
        false => as_text(&findings),
    };
    crate::print(shown.as_bytes())?;
    let unfit = findings
        .iter()
        .any(|finding| finding.state == State::Problem);
    Ok(if unfit { UNFIT } else { 0 })
}

fn as_text(findings: &[Finding]) -> String {
    let mut shown = String::new();
    let mut last = "";
    for Finding {
        server,
        check,
        state,
        text,
    } in findings
    {
        if server != last {
            shown.push_str(&format!("{server}\n"));
            last = server;
        }
        shown.push_str(&format!("  {state:7}  {check:11}  {text}\n"));
    }
    shown
}

type Opinion = (State, String);

fn good(text: impl Into<String>) -> Opinion {
    (State::Good, text.into())
}

fn advice(text: impl Into<String>) -> Opinion {
    (State::Advice, text.into())
}

fn problem(text: impl Into<String>) -> Opinion {
    (State::Problem, text.into())
}

/// Looks at one server.
fn look(inspector: &mut Inspector, node: usize) -> Result<Vec<(&'static str, Opinion)>, Failure> {
    let start = Instant::now();
    let replies = inspector.ask(
        node,
        &[
            vec!["INFO"],
            vec!["TIME"],
            vec!["CLIENT", "TRACKING", "ON"],
            vec!["CLIENT", "TRACKING", "OFF"],
        ],
    )?;
    let round_trip = start.elapsed();
    let [info, time, tracking, _] = <[_; 4]>::try_from(replies).map_err(|_| {
        Failure::new(
            failure::Exit::Internal,
            "a server answers fewer commands than it was asked",
        )
    })?;
    let mut opinions = match info.map(text) {
        Ok(info) => vec![
            ("version", version(&info)),
            ("role", role(&info)),
            ("memory", memory(&info)),
            ("persistence", persistence(&info)),
        ],
        Err(error) => vec![(
            "info",
            problem(format!(
                "not to be had, so that nothing is known of version, memory and replicas; allow +info to this user: {}",
                failure::text(&error)
            )),
        )],
    };
    opinions.push((
        "tracking",
        match tracking {
            Ok(_) => good("a holder hears at once that its lock is gone"),
            Err(error) => advice(format!(
                "a loss is noticed at the next renewal only: {}",
                failure::text(&error)
            )),
        },
    ));
    opinions.push(("clock", clock(time.ok(), round_trip)));
    Ok(opinions)
}

fn version(info: &str) -> Opinion {
    let redis = field(info, "redis_version").unwrap_or_default();
    let name = match field(info, "valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {redis}"),
    };
    let mut numbers = redis
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or_default());
    match (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    ) {
        (0, _) => advice("the server does not tell its version"),
        known if known < (6, 2) => problem(format!(
            "{name} is too old; 6.2 is the first that is tested"
        )),
        (6, _) => advice(format!(
            "{name}; from 7.0 on an acquisition costs one command less"
        )),
        _ => good(name),
    }
}

fn role(info: &str) -> Opinion {
    let replicas: u64 = field(info, "connected_slaves")
        .and_then(|count| count.parse().ok())
        .unwrap_or_default();
    match (field(info, "role"), replicas) {
        (Some("master"), 0) => good("a primary without replicas"),
        (Some("master"), count) => advice(format!(
            "a primary with replicas ({count}), which lag behind: a fail-over can grant a lock \
             twice. The option `replicas` makes that rarer, a fencing token makes it harmless"
        )),
        (Some(other), _) => problem(format!("the server is a {other}; locks need the primary")),
        (None, _) => advice("the server does not tell its role"),
    }
}

fn memory(info: &str) -> Opinion {
    let most = field(info, "maxmemory").unwrap_or_default();
    match field(info, "maxmemory_policy").unwrap_or_default() {
        "noeviction" => good("no key is evicted"),
        policy if most == "0" || most.is_empty() => {
            good(format!("no limit, so no key is evicted (policy {policy})"))
        }
        policy => problem(format!(
            "with maxmemory-policy {policy} the server evicts locks when its memory is full; \
             set noeviction, or use a server of its own for locks"
        )),
    }
}

fn persistence(info: &str) -> Opinion {
    match field(info, "aof_enabled") {
        Some("1") => good("appendonly: a restart keeps the locks"),
        Some(_) => {
            advice("without appendonly a restart forgets who holds what; holders are told `lost`")
        }
        None => advice("the server does not tell whether a restart keeps the locks"),
    }
}

/// The server's clock beside that of this machine. Nothing depends on it; people compare logs.
fn clock(time: Option<Value>, round_trip: Duration) -> Opinion {
    let Some((seconds, micros)) = time.and_then(to::<(u64, u64)>) else {
        return problem("TIME is refused; allow it to this user (ACL SETUSER)");
    };
    let theirs = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    let ours = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    good(format!(
        "{:.1} s from that of this machine, answers in {:.1} ms",
        theirs.abs_diff(ours).as_secs_f64(),
        round_trip.as_secs_f64() * 1000.0
    ))
}

/// Hands a lock from one client to another. This uses every right that a program with these options
/// needs.
fn play(server: &Server, inspector: &mut Inspector, name: &str) -> Result<Vec<Opinion>, Failure> {
    let (one, two) = (connect::client(server)?, connect::client(server)?);
    let outcome = hand_over(&one, &two, inspector, name);
    let events = [&one, &two].into_iter().flat_map(Client::events);
    let mut texts: Vec<String> = events
        .filter(|event| event.level >= Level::Warn)
        .map(|event| event.text)
        .collect();
    texts.dedup();
    let mut opinions: Vec<Opinion> = texts.into_iter().map(problem).collect();
    for client in [one, two] {
        client.close().wait()?;
    }
    match outcome {
        Err(error) => opinions.push(problem(failure::text(&error))),
        Ok(0) => opinions.push(advice(format!(
            "{name:?} was handed over, but no message woke the waiter"
        ))),
        Ok(_) => opinions.push(good(format!(
            "{name:?} was taken, handed over by a message, and released"
        ))),
    }
    Ok(opinions)
}

/// How many messages woke the second client.
fn hand_over(
    one: &Client,
    two: &Client,
    inspector: &mut Inspector,
    name: &str,
) -> redlatch::Result<u64> {
    let acquire = |lock: Lock| lock.acquire_with(AcquireOptions::new().wait(WAIT)).wait();
    let options = AcquireOptions::new().wait(LISTENS);
    // Another doctor may have it for a moment.
    let first = match one.lock(name)?.acquire_with(options).wait() {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            let text =
                format!("somebody holds {name:?}; give the name of a lock that nobody needs");
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        first => first?,
    };
    let second = two.lock(name)?;
    let waiter = thread::spawn(move || acquire(second));
    let end = Instant::now() + LISTENS;
    // The server tells a subscriber that it listens, and nobody else: the count has to be asked for again and again.
    while Instant::now() < end
        && !waiter.is_finished()
        && waiters::count(inspector, &[name])?
            .iter()
            .all(|waiting| waiting.number == Some(0))
    {
        thread::sleep(LOOK);
    }
    first.release().wait()?;
    match waiter.join() {
        Ok(second) => second?.release().wait()?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(two.stats().wakeups)
}
