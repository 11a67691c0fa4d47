//! `redlatch doctor`: whether a server is fit for locks, and what to change.

use std::collections::HashMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use redlatch::embed::{self, Inspector, LockExt, Value, channels, queue};
use redlatch::{AcquireOptions, Client, Error, ErrorKind, Kind, Level, Lock, OptionValue};
use serde_json::json;

use crate::arguments::{Doctor, Server};
use crate::connect;
use crate::failure::{self, Failure};
use crate::reply::{field, pairs, text, to};

/// The exit code if something has to be changed.
const UNFIT: u8 = 1;
/// How long the second client waits for the first one. Where no message comes it looks by itself.
const WAIT: Duration = Duration::from_secs(30);
/// How long it may take until the second client listens.
const LISTENS: Duration = Duration::from_secs(5);
/// The pause between two messages to it.
const LOOK: Duration = Duration::from_millis(10);
/// How long sentinels may take to choose another primary, once they know that the old one is away.
const ELECTION: Duration = Duration::from_secs(5);
/// A server that tracks fewer keys than this tells some holders nothing. Its default is a million.
const FEW_KEYS: u64 = 10_000;

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
    let kind = server.given("kind").and_then(Kind::named);
    let key = kind.unwrap_or_default().key(arguments.name.as_str().into());
    for (node, address) in inspector.nodes().into_iter().enumerate() {
        for (check, (state, text)) in look(&mut inspector, node, &key)? {
            findings.push(Finding {
                server: address.clone(),
                check,
                state,
                text,
            });
        }
    }
    let lease = server.given("watchdog_lease");
    let sentinels = inspector.ask_sentinels().into_iter();
    let sentinels: Vec<_> = sentinels
        .map(|(at, reply)| (at, reply.map(master)))
        .collect();
    let enough = are_enough(sentinels.iter().map(|(_, master)| master));
    for (address, master) in sentinels {
        for (state, text) in sentinel(master, enough, lease) {
            findings.push(Finding {
                server: address.clone(),
                check: "sentinel",
                state,
                text,
            });
        }
    }
    for (check, (state, text)) in play(server, &mut inspector, &arguments.name)? {
        findings.push(Finding {
            server: "a client".to_owned(),
            check,
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
fn look(
    inspector: &mut Inspector,
    node: usize,
    key: &str,
) -> Result<Vec<(&'static str, Opinion)>, Failure> {
    let start = Instant::now();
    let replies = inspector.ask(
        node,
        &[
            vec!["INFO"],
            vec!["TIME"],
            // It tells of changes with RESP3 alone, whatever it takes.
            vec!["HELLO", "3"],
            vec!["CLIENT", "TRACKING", "ON"],
            vec!["CLIENT", "TRACKING", "OFF"],
            vec!["HELLO", "2"],
            vec!["CONFIG", "GET", "appendfsync"],
            vec!["CONFIG", "GET", "tracking-table-max-keys"],
            vec!["ACL", "GETUSER", "default"],
        ],
    )?;
    let round_trip = start.elapsed();
    let [info, time, hello, tracking, _, _, fsync, table, user] = <[_; 9]>::try_from(replies)
        .map_err(|_| {
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
            ("persistence", persistence(&info, setting(fsync))),
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
        tracks(hello.and(tracking).err(), setting(table)),
    ));
    // Most users may not ask for it.
    opinions.extend(user.ok().map(|user| ("access", access(user))));
    opinions.push(("clock", clock(time.ok(), round_trip)));
    opinions.push(("rights", rights(inspector, node, key)?));
    Ok(opinions)
}

/// Commands that locks can do without, and what is lost then. Play shows the others.
const SPARED: [(&str, &str); 3] = [
    (
        "pexpiretime",
        "each acquisition costs a command that is refused",
    ),
    ("exists", "requests of many callers do not share commands"),
    ("mget", "requests of many callers do not share commands"),
];

/// Which of these this user may not use.
fn rights(inspector: &mut Inspector, node: usize, key: &str) -> redlatch::Result<Opinion> {
    let commands = SPARED.map(|(command, _)| vec![command, key]);
    let replies = inspector.ask(node, &commands)?;
    // A server before Redis 7 knows fewer commands, and a node of a cluster may lack the key.
    let refused = |reply: &redlatch::Result<Value>| {
        let error = reply.as_ref().err();
        error.is_some_and(|error| error.kind() == ErrorKind::Denied)
    };
    let (mut rules, mut losses) = (Vec::new(), Vec::<&str>::new());
    for ((command, loss), _) in SPARED
        .iter()
        .zip(replies)
        .filter(|(_, reply)| refused(reply))
    {
        rules.push(format!("+{command}"));
        if !losses.contains(loss) {
            losses.push(loss);
        }
    }
    Ok(match rules.is_empty() {
        true => good("this user may use all commands of locks that are not tried below"),
        false => advice(format!(
            "allow {} to this user (`redlatch acl` prints all rules): {}",
            rules.join(" "),
            losses.join(", and ")
        )),
    })
}

/// What a setting is. `None`: this user may not ask.
fn setting(reply: redlatch::Result<Value>) -> Option<String> {
    let pairs = pairs::<String, String>(reply.ok()?)?;
    pairs.into_iter().next().map(|(_, value)| value)
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version
        .split('.')
        .map(|part| part.parse().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next())
}

fn version(info: &str) -> Opinion {
    // It says Redis 7.2 besides, whatever it is.
    if let Some(version) = field(info, "valkey_version") {
        return match numbers(version) {
            known if known < (8, 1) => problem(format!(
                "Valkey {version} is too old; 8.1 is the first that is tested"
            )),
            _ => good(format!("Valkey {version}")),
        };
    }
    let version = field(info, "redis_version").unwrap_or_default();
    match numbers(version) {
        (0, _) => advice("the server does not tell its version"),
        known if known < (6, 2) => problem(format!(
            "Redis {version} is too old; 6.2 is the first that is tested"
        )),
        (6, _) => advice(format!(
            "Redis {version}; from 7.0 on an acquisition costs one command less"
        )),
        _ => good(format!("Redis {version}")),
    }
}

fn role(info: &str) -> Opinion {
    let replicas: u64 = field(info, "connected_slaves")
        .and_then(|count| count.parse().ok())
        .unwrap_or_default();
    match (field(info, "role"), replicas) {
        (Some("master"), 0) => good("a primary without replicas"),
        (Some("master"), count) => {
            // INFO has this only with `min-replicas-to-write`.
            let stops = field(info, "min_slaves_good_slaves").is_some();
            let goes_on = match stops {
                true => "",
                false => {
                    ". One that is cut off from them goes on granting locks; set min-replicas-to-write 1 and \
                     min-replicas-max-lag 1"
                }
            };
            advice(format!(
                "a primary with replicas ({count}), which lag behind: a fail-over can grant a lock \
                 twice. The option `replicas` makes that rarer, a fencing token makes it harmless{goes_on}"
            ))
        }
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

fn persistence(info: &str, fsync: Option<String>) -> Opinion {
    let Some(appends) = field(info, "aof_enabled") else {
        return advice("the server does not tell whether a restart keeps the locks");
    };
    if appends != "1" {
        return advice(
            "without appendonly a restart forgets who holds what, and grants it again; holders are told `lost`. \
             Set appendonly yes and appendfsync always",
        );
    }
    match fsync.as_deref() {
        Some("always") => good("appendonly with appendfsync always: a crash keeps the locks"),
        Some(other) => advice(format!(
            "appendonly with appendfsync {other}: a restart keeps the locks, but a crash of the machine forgets \
             those of the last {}, and grants them again. appendfsync always keeps them",
            match other {
                "everysec" => "second or two",
                _ => "half minute",
            }
        )),
        None => advice(
            "appendonly: a restart keeps the locks. A crash of the machine keeps them only with appendfsync always; \
             allow +config|get to this user to learn which it is",
        ),
    }
}

/// `refused`: why the server does not track. `most`: of how many keys it tells.
fn tracks(refused: Option<Error>, most: Option<String>) -> Opinion {
    if let Some(error) = refused {
        return advice(format!(
            "a loss is noticed at the next renewal only: {}",
            failure::text(&error)
        ));
    }
    match most.as_deref().map(str::parse) {
        Some(Ok(most @ 1..FEW_KEYS)) => advice(format!(
            "tracking-table-max-keys {most} is little: with more keys the server forgets to tell holders that their \
             lock is gone, and they look anew each time. 1000000 is the default"
        )),
        _ => good("a holder hears at once that its lock is gone"),
    }
}

/// Whether the user that needs no name needs no password either.
fn access(user: Value) -> Opinion {
    let mut fields = pairs::<String, Value>(user).unwrap_or_default().into_iter();
    let flags = fields.find_map(|(name, value)| (name == "flags").then_some(value));
    let flags = flags.and_then(to::<Vec<String>>).unwrap_or_default();
    let has = |wanted: &str| flags.iter().any(|flag| flag == wanted);
    match has("on") && has("nopass") {
        true => advice(
            "anybody who reaches the server can take and free locks: the user default has no password. \
             Set requirepass, or give each program a user of its own (`redlatch acl`)",
        ),
        false => good("the user default needs a password, or is off"),
    }
}

/// What a sentinel knows of the service.
type Master = HashMap<String, String>;

fn master(reply: Value) -> Master {
    pairs(reply).unwrap_or_default().into_iter().collect()
}

fn number(master: &Master, name: &str) -> Option<u64> {
    master.get(name)?.parse().ok()
}

fn is_away(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

/// Whether sentinels that are away leave enough of them to agree on a fail-over: most of all, and the quorum.
fn are_enough<'a>(all: impl Iterator<Item = &'a redlatch::Result<Master>> + Clone) -> bool {
    let away = all.clone().filter_map(|reply| reply.as_ref().err());
    let away = away.filter(|error| is_away(error)).count() as u64;
    let mut known = all.filter_map(|reply| reply.as_ref().ok());
    known.next().is_some_and(|master| {
        let others = number(master, "num-other-sentinels").unwrap_or_default();
        let left = others.saturating_add(1).saturating_sub(away);
        left > away && left >= number(master, "quorum").unwrap_or_default()
    })
}

/// `enough`: whether those that answer are. `lease`: the option `watchdog_lease`.
fn sentinel(master: redlatch::Result<Master>, enough: bool, lease: Option<&str>) -> Vec<Opinion> {
    let master = match master {
        Ok(master) => master,
        Err(error) if is_away(&error) && enough => {
            return vec![advice(format!(
                "the others can do without it, but with few more away no fail-over begins; start it again, or take it \
                 out of the URL: {}",
                failure::text(&error)
            ))];
        }
        Err(error) => return vec![problem(failure::text(&error))],
    };
    let number = |name: &str| number(&master, name);
    let mut opinions = Vec::new();
    let mut options = embed::all_options();
    let default = options.find(|option| option.name == "watchdog_lease");
    let lease = lease.or(default.map(|option| option.default));
    let lease = lease.and_then(|text| embed::read_duration("lease", OptionValue::Text(text)).ok());
    let lease = lease.unwrap_or_default();
    if let Some(down) = number("down-after-milliseconds").map(Duration::from_millis)
        && down + ELECTION >= lease
    {
        opinions.push(problem(format!(
            "a fail-over begins after {} ms (down-after-milliseconds), and locks end by their lease ({} ms) before it is over; set \
             5000, or a longer watchdog_lease",
            down.as_millis(),
            lease.as_millis()
        )));
    }
    let sentinels = number("num-other-sentinels").map(|others| others.saturating_add(1));
    if let Some(few @ ..3) = sentinels {
        opinions.push(advice(format!(
            "{few} sentinels agree on no fail-over when one is away; run at least three"
        )));
    }
    if let Some(few @ ..2) = number("quorum") {
        opinions.push(advice(format!(
            "a quorum of {few} lets a sentinel that is cut off begin a fail-over; set 2"
        )));
    }
    if opinions.is_empty() {
        opinions.push(good("a fail-over is over before locks end"));
    }
    opinions
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
fn play(
    server: &Server,
    inspector: &mut Inspector,
    name: &str,
) -> Result<Vec<(&'static str, Opinion)>, Failure> {
    let (one, two) = (connect::client(server)?, connect::client(server)?);
    let outcome = hand_over(&one, &two, inspector, name);
    let events = [&one, &two].into_iter().flat_map(Client::events);
    let mut told: Vec<_> = events
        // Other rows have these.
        .filter(|event| !["evictable", "unpublishable"].contains(&event.kind))
        .filter(|event| event.level >= Level::Warn)
        .map(|event| match event.kind {
            "unsubscribable" => ("wake-ups", event.text),
            _ => ("lock", event.text),
        })
        .collect();
    told.dedup();
    let is_deaf = told.iter().any(|(check, _)| *check == "wake-ups");
    let mut opinions: Vec<_> = told
        .into_iter()
        .map(|(check, text)| (check, problem(text)))
        .collect();
    for client in [one, two] {
        client.close().wait()?;
    }
    match outcome {
        Err(error) => opinions.push(("lock", problem(denied(&error)))),
        Ok((took, heard)) => {
            opinions.push((
                "lock",
                good(format!(
                    "{name:?} was taken, extended, handed over in {:.0} ms, and released",
                    took.as_secs_f64() * 1000.0
                )),
            ));
            let opinion = match heard {
                Heard::Woke => Some(good("a message woke the client that waited")),
                Heard::Refused(error) => Some(problem(format!(
                    "a release wakes nobody, and clients that wait look by themselves every now and then; allow +publish \
                     and the channel to this user: {}",
                    failure::text(&error)
                ))),
                // The client has told why.
                Heard::Nothing if is_deaf => None,
                Heard::Nothing => Some(problem(
                    "no message woke the client that waited, though it may publish and subscribe; does a proxy stand between?",
                )),
            };
            opinions.extend(opinion.map(|opinion| ("wake-ups", opinion)));
        }
    }
    Ok(opinions)
}

/// The text of an error, with the remedy for a right that is missing.
fn denied(error: &Error) -> String {
    let text = failure::text(error);
    match error.kind() {
        ErrorKind::Denied => format!("{text}; `redlatch acl` prints the rules for names and kinds"),
        _ => text,
    }
}

/// What came of a message on the lock's channel.
enum Heard {
    /// It woke the client that waits.
    Woke,
    /// The server does not let this user publish it.
    Refused(Error),
    Nothing,
}

/// How long it took from the release until the second client had the lock, and whether messages wake
/// it.
fn hand_over(
    one: &Client,
    two: &Client,
    inspector: &mut Inspector,
    name: &str,
) -> redlatch::Result<(Duration, Heard)> {
    let (first, second) = (of(one, name)?, of(two, name)?);
    let semaphore = first.kind() == Kind::Semaphore;
    if semaphore && is_there(inspector, name)? {
        return Err(taken(name));
    }
    let options = AcquireOptions::new().wait(LISTENS);
    // Another doctor may have it for a moment.
    let held = match first.acquire_with(options).wait() {
        Err(error) if error.kind() == ErrorKind::Timeout => return Err(taken(name)),
        held => held?,
    };
    let waits = second.clone();
    let waiter = thread::spawn(move || {
        let got = waits.acquire_with(AcquireOptions::new().wait(WAIT)).wait();
        (got, Instant::now())
    });
    let heard = wake(two, inspector, &second, || waiter.is_finished());
    // The script that renews; nothing else needs the longer lease.
    let extended = held.extend(LISTENS).wait();
    let start = Instant::now();
    let released = held.release().wait();
    let (got, end) = match waiter.join() {
        Ok(got) => got,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    let got = got.and_then(|guard| guard.release().wait());
    if semaphore {
        // Nobody else has a use for its number of permits.
        for node in 0..inspector.nodes().len() {
            inspector.ask(node, &[vec!["DEL", name]])?;
        }
    }
    released.and(got).and(extended)?;
    Ok((end.saturating_duration_since(start), heard?))
}

fn taken(name: &str) -> Error {
    let text = format!("somebody holds {name:?}; give the name of a lock that nobody needs");
    Error::new(ErrorKind::Timeout, text)
}

/// The lock to play with: one that keeps a second client waiting.
fn of(client: &Client, name: &str) -> redlatch::Result<Lock> {
    let options = client.lock_options();
    match client.lock(name).map(|lock| lock.kind())? {
        Kind::Read | Kind::Write => Ok(client.rw_lock(name)?.write().clone()),
        Kind::Semaphore | Kind::FairSemaphore => {
            client.lock_with(name, options.kind(Kind::Semaphore).limit(1))
        }
        _ => client.lock(name),
    }
}

/// Whether a key has this name. A server that does not tell may have it.
fn is_there(inspector: &mut Inspector, name: &str) -> redlatch::Result<bool> {
    let mut is_free = false;
    for node in 0..inspector.nodes().len() {
        let reply = inspector.ask(node, &[vec!["TYPE", name]])?.pop();
        // In a cluster all nodes but one refuse.
        match reply.and_then(Result::ok).and_then(to::<String>) {
            Some(kind) if kind != "none" => return Ok(true),
            answer => is_free |= answer.is_some(),
        }
    }
    Ok(!is_free)
}

/// Publishes on the channel of a lock, as its release does, until that wakes a caller of `client`.
fn wake(
    client: &Client,
    inspector: &mut Inspector,
    lock: &Lock,
    is_over: impl Fn() -> bool,
) -> redlatch::Result<Heard> {
    let end = Instant::now() + LISTENS;
    while Instant::now() < end && !is_over() {
        if let Some(error) = publish(inspector, lock)? {
            return Ok(Heard::Refused(error));
        }
        // A message that comes while the caller asks the server wakes nobody, so there is another one.
        if client.stats().wakeups > 0 {
            return Ok(Heard::Woke);
        }
        thread::sleep(LOOK);
    }
    Ok(Heard::Nothing)
}

/// Publishes to those who wait for this lock. Says why not, if the server refuses it.
fn publish(inspector: &mut Inspector, lock: &Lock) -> redlatch::Result<Option<Error>> {
    let [of_lock, of_sides, of_permits] = channels(lock.name());
    let channel = match lock.kind() {
        Kind::Read | Kind::Write => of_sides,
        Kind::Semaphore | Kind::FairSemaphore => of_permits,
        _ => of_lock,
    };
    let queue = queue(lock.name());
    let verbs: &[&str] = match inspector.topology() {
        // The release publishes there by the one that the server knows.
        "cluster" => &["PUBLISH", "SPUBLISH"],
        _ => &["PUBLISH"],
    };
    let mut refused = None;
    for node in 0..inspector.nodes().len() {
        let mut channels = vec![channel.clone()];
        if lock.kind() == Kind::Fair {
            // Each of them listens to a channel of its own.
            let reply = inspector.ask(node, &[vec!["LRANGE", &*queue, "0", "-1"]])?;
            let owners = reply
                .into_iter()
                .flatten()
                .filter_map(to::<Vec<String>>)
                .flatten();
            channels.extend(owners.map(|owner| format!("{channel}:{owner}")));
        }
        let commands: Vec<Vec<&str>> = verbs
            .iter()
            .flat_map(|verb| {
                channels
                    .iter()
                    .map(|channel| vec![*verb, channel.as_str(), "0"])
            })
            .collect();
        for reply in inspector.ask(node, &commands)? {
            // Another node, or one that does not know the command, refuses for another reason.
            refused = refused.or(reply
                .err()
                .filter(|error| error.kind() == ErrorKind::Denied));
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use redlatch::embed::{Part, rules};

    use super::*;

    #[test]
    fn what_is_spared_is_in_the_table_of_rules() {
        let rules = rules(&[Part::Lock, Part::Since7], "a");
        for (command, _) in SPARED {
            assert!(rules.contains(&format!("+{command}")), "{command}");
        }
    }

    #[test]
    fn a_fail_over_has_to_end_before_the_locks() {
        let master = |down: &str, others: &str| {
            let fields = [
                ("down-after-milliseconds", down),
                ("num-other-sentinels", others),
                ("quorum", "2"),
            ];
            let words = fields.into_iter().flat_map(|(name, value)| [name, value]);
            let words = words.map(|word| Value::BulkString(word.into()));
            Ok(super::master(Value::Array(words.collect())))
        };
        let states = |down, others, lease| {
            let opinions = sentinel(master(down, others), true, lease);
            opinions
                .into_iter()
                .map(|(state, _)| state)
                .collect::<Vec<_>>()
        };
        assert_eq!(states("5000", "2", None), [State::Good]);
        assert_eq!(states("30000", "2", None), [State::Problem]);
        assert_eq!(states("30000", "2", Some("2min")), [State::Good]);
        assert_eq!(states("5000", "2", Some("8s")), [State::Problem]);
        assert_eq!(states("5000", "0", None), [State::Advice]);
    }

    #[test]
    fn valkey_has_versions_of_its_own() {
        let state = |info: &str| version(info).0;
        let valkey = |version: &str| {
            format!("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:{version}\r\n")
        };
        assert_eq!(state(&valkey("7.2.4")), State::Problem);
        assert_eq!(state(&valkey("8.0.2")), State::Problem);
        assert_eq!(state(&valkey("8.1.0")), State::Good);
        assert_eq!(state("redis_version:6.0.16\r\n"), State::Problem);
        assert_eq!(state("redis_version:6.2.14\r\n"), State::Advice);
        assert_eq!(state("redis_version:7.0.15\r\n"), State::Good);
    }
}
