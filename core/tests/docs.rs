//! docs/options.md, docs/errors.md and the rights in docs/security.md are what the tables say, and
//! `REDLATCH_BLESS=1` writes them anew; index.d.ts and docs/events.md are compared, and the servers that the pages name to those
//! that are tested.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use redlatch::embed::{OptionInfo, Part, Scope, Type, all_options, rules};
use redlatch::{AcquireOptions, Client, ErrorKind, Kind, LockOptions, LostReason, Stats};
use support::Server;

/// How the line begins that makes a user of the server.
const USER: &str = "ACL SETUSER app reset on >password";

/// What these parts need, for names that begin with `orders`.
fn access(parts: &[Part]) -> String {
    rules(parts, "orders*").join(" ")
}

/// Locks, with tokens.
const BASE: [Part; 2] = [Part::Lock, Part::Fencing];

fn compare(file: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(file);
    if std::env::var_os("REDLATCH_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{file} is not what the tables say; run this test with REDLATCH_BLESS=1"
    );
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        name + &word[..1].to_uppercase() + &word[1..]
    })
}

// ---- options ----

const OPTIONS: &str = "\
# Options

Generated from `core/src/options.rs`; a test compares them.

| language | names | times | other values |
|---|---|---|---|
| Rust | setters of `ClientOptions`, `LockOptions`, `AcquireOptions` | `Duration` | `bool`, `usize`, text |
| Python | keyword arguments, the same names | seconds, `float` or `int` | `bool`, `int`, `str`; `None` is the default |
| Node.js | properties, the same names in camelCase (`watchdogLease`) | milliseconds, `number` | `boolean`, `number`, `string`; `null` is the default, `undefined` is as not given |
| C | name and value as text, the same names | `\"250ms\"`, `\"2.5s\"`, `\"10m\"`, `\"1h\"`; a bare number is milliseconds | `\"true\"`, `\"false\"`, `\"1024\"` |

A value out of its bounds and an unknown name give the error `invalid_argument`, which names the option, the value and what
is acceptable. A keyword that a Python function does not have (`acquire(wait=3)`) is a `TypeError`.

If you set only one option, think about `watchdog_lease`, or a fixed `lease`: [which lease?](#which-lease)

";

const OPTIONS_END: &str = "\
The wait is `acquire_timeout` or `AcquireOptions::wait` in Rust, `timeout` in Python (`blocking=False` for a single try), `wait` in
Node.js, the argument `wait_ms` in C. In Python `client.lock(name, timeout=…)` is the wait of its blocks and calls, and
`acquire(timeout=…)` that of one call.

The kinds: [which-lock.md](which-lock.md), [the presets](simple-lock.md#the-presets).

## Which lease?

- **The watchdog** (default): the lock lives as long as its holder works, and at most `watchdog_lease` longer if the
  holder dies. A shorter one frees the locks of dead holders sooner; a longer one bridges longer outages of the server.
- **A fixed `lease`**: the lock ends after this time, whatever its holder does. For work that is worthless afterwards.
  Then a caller without a block, guard or hold of it (`acquire(lease=…)` in Python, any acquisition in C, a detached guard in
  Rust) can acquire anew. With one the caller gets `lost` until that is released.
- **`max_hold`** bounds both, for holders that hang but live.

A client trusts a hold for a hundredth of the lease and 2 ms less than the server keeps it, because their clocks may run at
different speeds. Leases below 1 s leave little time for a retry: they are best effort.
";

fn section(out: &mut String, title: &str, text: &str, scope: Scope) {
    writeln!(out, "## {title}\n\n{text}\n").unwrap();
    writeln!(
        out,
        "| option | value | default | meaning |\n|---|---|---|---|"
    )
    .unwrap();
    for info in all_options().filter(|info| info.scope == scope) {
        let OptionInfo {
            name,
            default,
            doc,
            r#type,
            ..
        } = info;
        let default = match r#type {
            Type::Word { .. } | Type::Choice(_) => format!("`{default}`"),
            _ => (*default).to_owned(),
        };
        let value = r#type.to_string();
        let value = value.trim_start_matches("a time from ");
        let value = value.trim_start_matches("a whole number from ");
        writeln!(out, "| `{name}` | {value} | {default} | {doc} |").unwrap();
    }
    out.push('\n');
}

fn options_page() -> String {
    let mut page = OPTIONS.to_owned();
    section(
        &mut page,
        "Of a client",
        "Given when the client is opened.",
        Scope::Client,
    );
    let text =
        "Given when the lock is named. A client takes them as well, as defaults for its locks.";
    section(&mut page, "Of a lock", text, Scope::Lock);
    section(
        &mut page,
        "Of an acquisition",
        "Given with each acquisition.",
        Scope::Acquire,
    );
    page + OPTIONS_END
}

#[test]
fn options_md_is_what_the_table_says() {
    compare("options.md", &options_page());
}

// ---- the options as Python's type checkers want them ----

const PYTHON: &str = r#""""The core's options as keyword arguments, for type checkers and editors.

Generated from `core/src/options.rs`; a test compares them. The table also holds defaults and bounds and is printed
in docs/options.md. Times are in seconds; None stands for the default.
"""

from __future__ import annotations

from typing import Literal, TypedDict
"#;

/// The Python type of an option's values, and the definition of it if it is a choice of words.
fn python_type(info: &OptionInfo) -> (String, Option<String>) {
    let name = match info.r#type {
        Type::Duration { .. } => "float",
        Type::Flag => "bool",
        Type::Count { .. } => "int",
        Type::Choice(words) => {
            let camel = camel_case(info.name);
            let name = camel[..1].to_uppercase() + &camel[1..];
            let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            let (words, definition) = (words.join(", "), format!("\n{name} = Literal["));
            // The formatter breaks a line of more than 110 characters, and one that is still longer at
            // each word.
            let definition = if 4 + words.len() > 110 {
                let words = words.replace(", ", ",\n    ");
                format!("{definition}\n    {words},\n]\n")
            } else if definition.len() + words.len() > 110 {
                format!("{definition}\n    {words}\n]\n")
            } else {
                format!("{definition}{words}]\n")
            };
            return (name, Some(definition));
        }
        _ => "str",
    };
    (name.to_owned(), None)
}

/// The text in lines of at most 110 characters.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() >= 110 {
            lines.push(format!("{indent}{word}"));
        } else {
            let space = if lines[last] == indent { "" } else { " " };
            write!(lines[last], "{space}{word}").unwrap();
        }
    }
    lines.join("\n") + "\n"
}

fn python_options() -> String {
    let mut page = PYTHON.to_owned();
    page.extend(all_options().filter_map(|info| python_type(info).1));
    for (class, base, doc, scope) in [
        (
            "LockOptions",
            "TypedDict",
            "Options of a lock.",
            Scope::Lock,
        ),
        (
            "ClientOptions",
            "LockOptions",
            "Options of a client; those of a lock are defaults for the locks of this client.",
            Scope::Client,
        ),
    ] {
        write!(
            page,
            "\n\nclass {class}({base}, total=False):\n    \"\"\"{doc}\n\n"
        )
        .unwrap();
        for info in all_options().filter(|info| info.scope == scope) {
            let seconds = match info.r#type {
                Type::Duration { .. } => ", as a number of seconds",
                _ => "",
            };
            let python = |text: &str| text.replace("true", "True").replace("false", "False");
            let value = python(&info.r#type.to_string());
            let default = match info.name {
                "reentrant" => "False".to_owned(), // a caller in Python names no key
                _ => python(info.default),
            };
            let first = format!("{}: {value}{seconds}; default {default}", info.name);
            page += &wrapped(&first, "    ");
            page += &wrapped(info.doc, "        ");
        }
        page += "    \"\"\"\n\n";
        for info in all_options().filter(|info| info.scope == scope) {
            writeln!(page, "    {}: {} | None", info.name, python_type(info).0).unwrap();
        }
    }
    page
}

#[test]
fn the_options_of_python_are_what_the_table_says() {
    compare(
        "../bindings-python/python/redlatch/_options.py",
        &python_options(),
    );
}

/// The text of index.d.ts about an option, on one line.
fn declared<'a>(declarations: &'a str, info: &OptionInfo) -> Option<&'a str> {
    let interface = match info.scope {
        Scope::Client => "export interface ClientOptions ",
        Scope::Lock => "export interface LockDefaults ",
        _ => "export interface TryOptions ", // and AcquireOptions behind it
    };
    let (_, members) = declarations.split_once(interface)?;
    let (before, _) = members.split_once(&format!(" {}?: ", camel_case(info.name)))?;
    before.rsplit_once("/**").map(|(_, comment)| comment)
}

#[test]
fn index_d_ts_has_the_defaults_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings-node/index.d.ts");
    let file = std::fs::read_to_string(path).unwrap();
    let declarations: String = file
        .split_whitespace()
        .filter(|word| *word != "*")
        .flat_map(|word| [word, " "])
        .collect();
    for info in all_options() {
        let comment = declared(&declarations, info)
            .unwrap_or_else(|| panic!("index.d.ts lacks `{}`", info.name));
        let said = comment
            .split_once("Default: ")
            .map(|(_, said)| said.trim_start_matches('`'));
        let wanted = info.default.strip_prefix("none: ").unwrap_or(info.default);
        let silent = info.default.starts_with("none");
        let right = said.map_or(silent, |said| {
            said.strip_prefix(wanted)
                .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        });
        assert!(
            right,
            "index.d.ts on `{}`: {comment:?}, but its default is {}",
            info.name, info.default
        );
    }
}

// ---- errors ----

const REFUSALS: &str = "\
Some of these pass by themselves: a caller that waits for a lock goes on waiting (\"yes\" below), a caller that tries once, or
whose time is over, gets the error. A call that was refused so did nothing in Redis.

| the server said | waits | what helps |
|---|---|---|
| `LOADING` | yes | it loads its data, and will be there soon |
| `BUSY` | yes | somebody's script runs for too long: `SCRIPT KILL` |
| `READONLY`, `MASTERDOWN` | yes | it is a replica: the client connects again, because the address may lead to the primary by then |
| `NOREPLICAS` | yes | `min-replicas-to-write` replicas have to be connected |
| `MISCONF` | yes | it cannot write its snapshot: see its log |
| `CLUSTERDOWN`, `TRYAGAIN` | yes | the cluster recovers, or moves a slot |
| `max number of clients` | yes, once it had been connected | the error is `unavailable`: raise `maxclients`, or close clients |
| `DENIED` | yes, once it had been connected | it is in protected mode: set a password, or let it serve other machines |
| `OOM` | no | raise `maxmemory`, or remove data; releasing works all the same |

| `NOAUTH`, `WRONGPASS` | no | the error is `auth` |
| `NOPERM` | no | the error is `denied` |
| `WRONGTYPE` | no | the error is `foreign_kind` |
| `DB index is out of range`, `cluster support disabled`, that it does not know `SENTINEL` | no | the error is `invalid_argument`: the URL does not fit this server |
| that it does not know `EVAL` or `EVALSHA` | no | the error is `denied`: every lock needs them; allow what `rename-command` has switched off |
| `unknown command`, `syntax error`, `wrong number of arguments for 'auth'` | no | the error is `invalid_argument`: the server is older than Redis 6.2, or keeps commands back |

";

const ERRORS: &str = "\
# Errors

Generated from `core/proto/src/error.rs`; a test compares them.

Every failure has one kind, the same in all languages, with [a remedy](#what-to-do). Its message names the value, the lock and the
remedy, and never a password.

- **Rust**: `Error::kind()`, with `Error::lost_reason()`, `Error::lock_name()` and `source()`: the error of the system or of TLS behind it.
- **Python**: a class of its own below `redlatch.LockError`. Some are also built-in exceptions: `LockTimeoutError` is a
  `TimeoutError`.
- **Node.js**: the same class names below `LockError`. `error.code` is `ERR_REDLATCH_` and the name in capitals, such as
  `ERR_REDLATCH_NOT_OWNER`. `InvalidArgumentError` is a `TypeError`; `instanceof LockError`
  counts it. An `UnavailableError` has the error of the system as its `cause`, if there is one.
- **C**: the number as status, such as `REDLATCH_NOT_OWNER`, 0 for success; `redlatch_last_error()` has the text.

Numbers and names keep their meaning; new kinds may come. *Retryable*: the same call can succeed later.

| number | Rust | Python, Node.js | retryable |
|---|---|---|---|
";

const RIGHTS: &str = "The commands, keys and channels: [the rights of a user](security.md#the-rights-of-a-user).\n\n";

fn errors_page() -> String {
    let mut page = ERRORS.to_owned();
    for kind in ErrorKind::ALL {
        let name = kind.name();
        let retryable = if kind.retryable() { "yes" } else { "no" };
        writeln!(
            page,
            "| {} | [`{kind:?}`](#{name}) | `{}` | {retryable} |",
            kind.number(),
            kind.class_name(),
        )
        .unwrap();
    }
    page += "\n## What to do\n\n";
    for kind in ErrorKind::ALL {
        writeln!(
            page,
            "### {kind}\n\n{}\n\n{}\n",
            kind.meaning(),
            kind.advice()
        )
        .unwrap();
        match kind {
            ErrorKind::Lost => page += &lost_reasons(),
            ErrorKind::Denied => page += RIGHTS,
            ErrorKind::Server => page += REFUSALS,
            _ => {}
        }
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}

fn lost_reasons() -> String {
    let mut table = "| number | reason | meaning | what helps |\n|---|---|---|---|\n".to_owned();
    for reason in LostReason::ALL {
        let (number, meaning, advice) = (reason.number(), reason.meaning(), reason.advice());
        writeln!(table, "| {number} | `{reason}` | {meaning} | {advice} |").unwrap();
    }
    table + "\n"
}

fn rights() -> String {
    let base = access(&BASE).replace(" &", " resetchannels &");
    let [sides, mark] = [Part::ReadWrite, Part::WriterPreference].map(|part| access(&[part]));
    let crowd = access(&[Part::Crowd]);
    let [fair, permits, fair_permits] =
        [Part::Fair, Part::Semaphore, Part::FairSemaphore].map(|part| access(&[part]));
    let [counters, newer, sentinel] =
        [Part::Counter, Part::Since7, Part::Sentinel].map(|part| access(&[part]));
    let [cluster, old_cluster] = [Part::Cluster, Part::ClusterBefore7].map(|part| access(&[part]));
    format!(
        "## The rights of a user\n\n\
         `redlatch acl 'orders*'` [prints these](cli.md) for any pattern of names and `--kind`. For names that begin with `orders`, to be pasted into redis-cli. The second line is for Redis 7 or newer and for Valkey: without it an \
         acquisition costs the server one refused command.\n\n\
         ```\n{USER} {base}\nACL SETUSER app {newer}\n```\n\n\
         Add by `ACL SETUSER app ...`:\n\n\
         - **The kinds `article` and `redis-semaphore`**: write `lock:orders` and `mutex:orders` in place of each `orders` above.\n\
         - **[Crowds](cost.md#a-crowd-at-one-name)**, for locks of the kinds `reentrant`, `simple` and `adaptive`, for writers, and for semaphores: `{crowd}`. Without them each release wakes all waiters.\n\
         - **Read-write locks**: `{sides}`, with `writer_preference` also `{mark}`.\n\
         - **Fair locks**: `{fair}`.\n\
         - **Semaphores**: `{permits}`, with the option `fair` also `{fair_permits}`.\n\
         - **Plain semaphores and latches**: `{counters}`.\n\
         - **Behind sentinels**: `{sentinel}`.\n\
         - **In a cluster**: `{cluster}`; before Redis 7 `{old_cluster}`.\n\
         - **The program `redlatch`**, to show locks: [its own](cli.md#what-it-shows-about-locks).\n\n\
         | may be missing | then |\n|---|---|\n\
         | `+publish`, `+subscribe` | waiters try again every `recheck`; the event `unpublishable` or `unsubscribable` tells |\n\
         | `+client\\|tracking` | a loss is noticed at the next renewal |\n\
         | `+exists`, `+mget` | requests of many callers do not share commands |\n\
         | `+get`, `+set` and the second key pattern, for the default kind | no `fencing` |\n\
         | `+select` | database 0 only |\n\
         | `+info` | no warning when the server may evict locks; no `restart_delay` |\n\
         | `+wait` | no option `replicas` |\n\n"
    )
}

#[test]
fn cli_md_has_what_the_program_needs() {
    let page = include_str!("../../docs/cli.md");
    assert!(page.contains(&format!("`{}`", Part::Tool.commands())));
}

#[test]
fn errors_md_is_what_the_tables_say() {
    compare("errors.md", &errors_page());
}

#[test]
fn security_md_has_the_rights_of_the_table() {
    let wanted = rights();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once("## The rights of a user\n").unwrap();
    let (_, after) = rest.split_once("\n## ").unwrap();
    compare("security.md", &format!("{before}{wanted}## {after}"));
}

/// Makes the user of security.md, who has these parts besides; its URL.
fn make_user(server: &Server, more: &[Part]) -> String {
    make_user_for(server, "orders*", more)
}

fn make_user_for(server: &Server, names: &str, more: &[Part]) -> String {
    let mut admin = server.connect();
    let known: Vec<redis::Value> = redis::cmd("COMMAND")
        .arg(&["INFO", "pexpiretime"])
        .query(&mut admin)
        .unwrap();
    let newer = match known == [redis::Value::Nil] {
        true => &[][..],
        false => &[Part::Since7],
    };
    let rules = rules(&[&BASE, more, newer].concat(), names);
    let user = [
        "SETUSER",
        "app",
        "reset",
        "on",
        ">password",
        "resetchannels",
    ]
    .into_iter()
    .chain(rules.iter().map(String::as_str));
    let _: () = redis::cmd("ACL")
        .arg(user.collect::<Vec<_>>())
        .query(&mut admin)
        .unwrap();
    server.url().replace("redis://", "redis://app:password@") + "1"
}

fn assert_nothing_was_denied(server: &Server) {
    let log: Vec<redis::Value> = redis::cmd("ACL")
        .arg("LOG")
        .query(&mut server.connect())
        .unwrap();
    assert!(log.is_empty(), "denied: {log:?}");
}

#[test]
fn kinds_with_a_prefix_need_it_in_the_rules() {
    for (kind, prefix) in [
        (Kind::Article, "lock:orders"),
        (Kind::RedisSemaphore, "mutex:orders"),
    ] {
        let server = Server::start();
        let client = Client::builder(&make_user_for(&server, &format!("{prefix}*"), &[]))
            .build()
            .unwrap();
        let lock = client
            .lock_with("orders:42", LockOptions::new().kind(kind).fencing(true))
            .unwrap();
        lock.acquire().wait().unwrap().release().wait().unwrap();
        client.close().wait().unwrap();
        assert_nothing_was_denied(&server);
    }
}

#[test]
fn read_write_locks_need_their_rules() {
    let server = Server::start();
    let url = make_user(&server, &[Part::ReadWrite, Part::WriterPreference]);
    let options = LockOptions::new().writer_preference(Duration::from_secs(60));
    let clients = [(); 2].map(|()| Client::builder(&url).build().unwrap());
    let [lock, other] = clients
        .each_ref()
        .map(|client| client.rw_lock_with("orders:42", options.clone()).unwrap());
    let reader = lock.read().acquire().wait().unwrap();
    // A wait in which the server does not answer at all is `unavailable`, so it is long enough for a busy machine.
    let wait = AcquireOptions::new().wait(Duration::from_secs(2));
    let refused = other.write().acquire_with(wait).wait();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Timeout);
    // Another one leaves a mark, and keeps a reader back.
    let more = other.write().acquire();
    let writing = std::thread::spawn(move || more.wait().unwrap());
    let mut admin = server.connect();
    let _: () = redis::cmd("SELECT").arg(1).query(&mut admin).unwrap();
    let mut mark = redis::cmd("EXISTS");
    mark.arg("{orders:42}:redlatch:writer");
    eventually(|| mark.query(&mut admin).unwrap());
    // The first writer's mark may have been there still, and go now.
    eventually(|| lock.read().try_acquire().wait().unwrap().is_none());
    reader.release().wait().unwrap();
    writing.join().unwrap().release().wait().unwrap();
    for client in clients {
        client.close().wait().unwrap();
    }
    assert_nothing_was_denied(&server);
}

fn eventually(mut is: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < limit, "it never comes");
        std::thread::yield_now();
    }
}

/// The queue of the waiters of a fair lock or semaphore.
struct Queue<'a> {
    admin: redis::Connection,
    places: &'a str,
}

impl<'a> Queue<'a> {
    /// A queue that begins with the place of a waiter that has died.
    fn with_a_dead_place(server: &Server, [places, times]: [&'a str; 2]) -> Queue<'a> {
        let mut admin = server.connect();
        let _: () = redis::pipe()
            .cmd("SELECT")
            .arg(1)
            .cmd("RPUSH")
            .arg((places, "dead"))
            .cmd("ZADD")
            .arg((times, 5, "dead"))
            .ignore()
            .query(&mut admin)
            .unwrap();
        Queue { admin, places }
    }

    fn wait_for_places(&mut self, places: u64) {
        let mut length = redis::cmd("LLEN");
        length.arg(self.places);
        eventually(|| length.query::<u64>(&mut self.admin).unwrap() == places);
    }
}

#[test]
fn fair_locks_need_their_rules() {
    let server = Server::start();
    let url = make_user(&server, &[Part::Fair]);
    let client = Client::builder(&url).build().unwrap();
    let fair = LockOptions::new().kind(Kind::Fair).fencing(true);
    let lock = client.lock_with("orders:42", fair).unwrap();
    let guard = lock.acquire().wait().unwrap();
    assert!(guard.fencing_token().is_some());
    guard.reenter().wait().unwrap().release().wait().unwrap();

    let queue = [
        "redisson_lock_queue:{orders:42}",
        "redisson_lock_timeout:{orders:42}",
    ];
    let mut queue = Queue::with_a_dead_place(&server, queue);
    // The first gives up, the second is woken.
    let short = AcquireOptions::new().wait(Duration::from_millis(300));
    assert!(lock.acquire_with(short).wait().is_err());
    queue.wait_for_places(0);
    let more = lock.acquire();
    let waiting = std::thread::spawn(move || more.wait().unwrap());
    queue.wait_for_places(1);
    guard.release().wait().unwrap();
    waiting.join().unwrap().release().wait().unwrap();
    let _guard = lock.acquire().wait().unwrap();
    lock.force_release().wait().unwrap();
    client.close().wait().unwrap();
    assert_nothing_was_denied(&server);
}

#[test]
fn fair_semaphores_need_their_rules() {
    let server = Server::start();
    let url = make_user(&server, &[Part::Semaphore, Part::FairSemaphore]);
    let client = Client::builder(&url).build().unwrap();
    let two = client.semaphore_options().limit(2).fair(true);
    let semaphore = client.semaphore_with("orders:42", two).unwrap();
    let permits = semaphore.acquire_many(2).wait().unwrap();

    let queue = ["{orders:42}:redlatch:queue", "{orders:42}:redlatch:places"];
    let mut queue = Queue::with_a_dead_place(&server, queue);
    // The first gives up, the second is woken.
    let short = AcquireOptions::new().wait(Duration::from_millis(300));
    assert!(semaphore.acquire_with(short).wait().is_err());
    queue.wait_for_places(0);
    let more = semaphore.acquire();
    let waiting = std::thread::spawn(move || more.wait().unwrap());
    queue.wait_for_places(1);
    permits.release().wait().unwrap();
    waiting.join().unwrap().release().wait().unwrap();
    client.close().wait().unwrap();
    assert_nothing_was_denied(&server);
}

#[test]
fn counters_need_their_rules() {
    let server = Server::start();
    let url = make_user(&server, &[Part::Counter]);
    let client = Client::builder(&url).build().unwrap();
    let seats = client.plain_semaphore("orders:42").unwrap();
    assert!(seats.try_set_permits(2).wait().unwrap());
    seats.acquire().wait().unwrap().release().wait().unwrap();
    assert_eq!(seats.drain().wait().unwrap(), 2);
    let latch = client.latch("orders:43").unwrap();
    assert!(latch.try_set_count(2).wait().unwrap());
    for left in [1, 0] {
        assert_eq!(latch.count_down(1).wait().unwrap(), left);
    }
    latch.wait().wait().unwrap();
}

#[test]
fn semaphores_need_their_rules() {
    let server = Server::start();
    let url = make_user(&server, &[Part::Semaphore, Part::Crowd]);
    let client = Client::builder(&url).build().unwrap();
    let two = LockOptions::new()
        .limit(2)
        .watchdog_lease(Duration::from_secs(3));
    let semaphore = client.semaphore_with("orders:42", two).unwrap();
    let permits = semaphore.acquire_many(2).wait().unwrap();
    let renewed = client.stats().renewed;
    while client.stats().renewed == renewed {
        permits.check().unwrap();
        std::thread::yield_now();
    }
    permits.reenter().wait().unwrap().release().wait().unwrap();
    assert!(semaphore.as_lock().is_locked().wait().unwrap());

    // A waiter is woken when there are more permits.
    let more = semaphore.acquire();
    let waiting = std::thread::spawn(move || more.wait().unwrap());
    while client.stats().waiting == 0 {
        assert!(!waiting.is_finished(), "the waiter waits for a permit");
        std::thread::yield_now();
    }
    assert_eq!(semaphore.set_permits(3).wait().unwrap().limit, 3);
    waiting.join().unwrap().release().wait().unwrap();
    permits.release().wait().unwrap();
    assert!(semaphore.try_acquire_many(4).wait().is_err());

    // The time of this permit is over.
    let mut admin = server.connect();
    let stale = ("{orders:42}:timeout", 5, "0123456789abcdef");
    let _: () = redis::cmd("SELECT").arg(1).query(&mut admin).unwrap();
    let _: u64 = redis::cmd("ZADD").arg(stale).query(&mut admin).unwrap();
    let _permit = semaphore.acquire().wait().unwrap();
    semaphore.as_lock().force_release().wait().unwrap();
    client.close().wait().unwrap();
    assert_nothing_was_denied(&server);
}

#[test]
fn the_user_of_security_md_can_do_everything() {
    let server = Server::start();
    let mut admin = server.connect();
    let url = make_user(&server, &[]);
    let client = |url: &str| Client::builder(url).build().unwrap();
    let (mine, other) = (client(&url), client(&url));
    let lock = mine
        .lock_with("orders:42", LockOptions::new().fencing(true))
        .unwrap();
    let guard = lock.acquire().wait().unwrap();
    assert!(guard.fencing_token().is_some());
    guard.reenter().wait().unwrap().release().wait().unwrap();
    guard.extend(Duration::from_secs(60)).wait().unwrap();
    assert!(lock.is_locked().wait().unwrap());

    // A waiter of another client is woken by the message.
    let waiting = std::thread::spawn(move || {
        let guard = other
            .lock("orders:42")
            .unwrap()
            .acquire_with(AcquireOptions::new())
            .wait()
            .unwrap();
        guard.release().wait().unwrap();
        other.close().wait().unwrap();
    });
    let mut numsub = redis::cmd("PUBSUB");
    numsub.arg(&["NUMSUB", "redisson_lock__channel:{orders:42}"]);
    while numsub.query::<(String, u64)>(&mut admin).unwrap().1 == 0 {
        assert!(!waiting.is_finished(), "the waiter waits for the holder");
        std::thread::yield_now();
    }
    guard.release().wait().unwrap();
    waiting.join().unwrap();

    // A deletion is told although the next renewal is far away.
    let guard = lock.acquire().wait().unwrap();
    let (sender, lost) = std::sync::mpsc::channel();
    guard.on_lost(move |reason| sender.send(reason).unwrap());
    let _: () = redis::cmd("FLUSHALL").query(&mut admin).unwrap();
    assert_eq!(
        lost.recv_timeout(Duration::from_secs(8)),
        Ok(LostReason::Deleted)
    );
    drop(guard);
    assert!(!lock.force_release().wait().unwrap());
    mine.close().wait().unwrap();
    assert_nothing_was_denied(&server);
}

// ---- servers ----

/// The oldest `major.minor` of a server in the table of docs/servers.md.
fn oldest(page: &str, server: &str) -> String {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let names = rows.filter_map(|row| row.trim_start_matches('*').strip_prefix(server));
    let versions = names.filter_map(|rest| {
        let mut parts = rest.split(|other: char| !other.is_ascii_digit());
        Some((
            parts.next()?.parse::<u32>().ok()?,
            parts.next()?.parse::<u32>().ok()?,
        ))
    });
    let (major, minor) = versions.min().unwrap();
    format!("{major}.{minor}")
}

#[test]
fn the_pages_name_the_oldest_servers_of_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |page: &str| std::fs::read_to_string(root.join(page)).unwrap();
    let tested = read("docs/servers.md");
    let (redis, valkey) = (oldest(&tested, "Redis "), oldest(&tested, "Valkey "));
    let wanted = format!("Redis {redis} or newer, or Valkey {valkey} or newer");
    for page in [
        "README.md",
        "bindings-python/README.md",
        "bindings-node/README.md",
        "docs/servers.md",
    ] {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&wanted), "{page} does not say {wanted:?}");
    }
}

// ---- words ----

/// What people search the site for.
const SOUGHT: [&str; 17] = [
    "leader election",
    "singleton",
    "cron",
    "kubernetes",
    "systemd",
    "docker",
    "cache stampede",
    "rate limit",
    "runbook",
    "alert",
    "grafana",
    "upgrade",
    "permission denied",
    "faq",
    "elasticache",
    "sidekiq",
    "django",
];

#[test]
fn a_search_for_a_word_of_users_finds_a_page() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let pages: String = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .map(|path| std::fs::read_to_string(path).unwrap().to_lowercase())
        .collect();
    let missing: Vec<_> = SOUGHT
        .iter()
        .filter(|word| !pages.contains(**word))
        .collect();
    assert!(missing.is_empty(), "no page has {missing:?}");
}

// ---- events ----

/// The source files of the library below a folder, without those that only test.
fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .file_stem()
            .unwrap()
            .to_string_lossy()
            .ends_with("tests")
        {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else {
            *found += &std::fs::read_to_string(path).unwrap();
        }
    }
}

#[test]
fn events_md_has_every_kind_of_event() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    ["proto/src/engine", "src/driver"]
        .iter()
        .for_each(|folder| sources(&core.join(folder), &mut code));
    code += &std::fs::read_to_string(core.join("proto/src/connecting.rs")).unwrap();
    let told = [
        ".event(",
        ".link_event(",
        ".trace(",
        "Event { kind: ",
        "Event::new(",
    ];
    let calls = told.iter().flat_map(|call| code.split(call).skip(1));
    // The text may be on the next line.
    let kinds: BTreeSet<&str> = calls
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
        .collect();

    let page = std::fs::read_to_string(core.join("../docs/events.md")).unwrap();
    let (table, _) = page.split_once("| language |").unwrap();
    assert_eq!(first_cells(table), kinds);
}

#[test]
fn events_md_has_every_counter() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/events.md"))
            .unwrap();
    let (_, table) = page.split_once("| counter |").unwrap();
    let counters: BTreeSet<&str> = Stats::default()
        .entries()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(first_cells(table), counters);
}

/// The names in the first cells of a table, some of which have several.
fn first_cells(table: &str) -> BTreeSet<&str> {
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split(','));
    cells.map(|name| name.trim_matches([' ', '`'])).collect()
}
