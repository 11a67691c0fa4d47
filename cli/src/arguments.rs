//! The command line.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use redlatch::{AcquireOptions, Kind, OptionValue, embed};

use crate::acl::COUNTERS;
use crate::failure;
use crate::run::OnLost;

pub(crate) const CODES: &str = "\
Exit codes: that of the command, or 128 + n if signal n ended it.
  64  wrong usage                     75  not acquired in time (or as -E says)
  65  other data lie at the name      76  lost while the command ran
  69  server away or failing          77  refused: password, certificate, ACL
  70  a fault in redlatch            126  the command cannot be run
                                     127  the command is not found
`redlatch explain 77` says what to do.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  redlatch run nightly -- ./backup.sh
  redlatch run -n -E 0 report ./report.sh            nothing to do while another one runs
  redlatch run --wait 30s --fencing orders:42 ./migrate.sh
  redlatch run --permits 4 thumbnails ./make.sh      at most four at a time
  redlatch run -o kind=fair deploy ./deploy.sh       one after the other as they came
  redlatch run -q --once-per 1h nightly ./job.sh     from the cron of several machines";

/// A distributed lock over Redis for scripts: shared with Rust, Python, Node.js, C and Redisson.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version, after_help = CODES)]
pub(crate) struct Arguments {
    #[command(flatten, next_help_heading = "Server and library")]
    pub(crate) server: Server,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How to reach the server.
#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// redis://, rediss://, redis+sentinel://, redis+cluster://, redis+quorum:// or unix://. All
    /// users of the machine see a command line: a password belongs into the variable REDLATCH_URL,
    /// which is read without this option, or into --url-file.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file whose first line is the URL.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) url_file: Option<PathBuf>,
    /// An option of the client or the lock: -o watchdog_lease=1min, or -o kind=fair for a lock that
    /// serves callers in the order in which they came. `redlatch explain watchdog_lease` tells what it does.
    #[arg(short, long = "option", global = true, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) options: Vec<(String, String)>,
}

impl Server {
    /// The value of an option of the client or the lock.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        let mut options = self.options.iter().rev();
        let value = options.find(|(given, _)| given == name);
        value.map(|(_, value)| &**value)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock.
    ///
    /// The lock is renewed for as long as the command runs, and released when it has ended. Signals
    /// that redlatch gets go to the command.
    #[command(after_help = CODES, after_long_help = format!("{EXAMPLES}\n\n{CODES}"))]
    Run(Run),
    /// Show who holds a lock. Exit code 0: it is held; 1: it is free.
    Who(Who),
    /// List the locks that are held, with their holders.
    ///
    /// It looks at every key of the servers (SCAN), which takes a while where there are many. A plain
    /// key counts as a lock if its value is one that redlatch writes.
    Ls(Ls),
    /// Show the locks that are held, again and again. `q` ends it.
    ///
    /// The pattern chooses the locks. Arrow and page keys scroll. Without a terminal it prints a line for
    /// each change.
    Watch(Watch),
    /// Look whether the servers are fit for locks, and say what to change. Exit code 0: fit; 1: not.
    ///
    /// It takes the lock NAME, hands it from one client to another, and releases it.
    Doctor(Doctor),
    /// Print what a user of the server has to be allowed (ACL), for redis-cli or an ACL file.
    ///
    /// Nothing is asked of a server; the URL, if there is one, says whether it is a cluster or behind
    /// sentinels. Options count: -o fencing=true, -o fair=true, -o writer_preference=1min.
    Acl(Acl),
    /// Delete a lock that somebody holds. The holder is told that it is lost.
    Free(Free),
    /// Show how many permits a semaphore has, or give it so many.
    ///
    /// Permits that are taken stay taken. A plain semaphore and a latch are numbers too, and the server
    /// cannot tell them from a semaphore whose permits are free.
    Permits(Permits),
    /// Tell what an exit code, an error or an option means, and what to do about it.
    Explain(Explain),
    /// Check that the server can be reached. It prints one line, or says why not.
    Ping,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
    /// Print the version.
    Version,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Wait at most this long for the lock: 500ms, 30s, 10min. Without it: without a limit.
    #[arg(short, long, value_name = "TIME", value_parser = |text: &str| checked("wait", text))]
    pub(crate) wait: Option<String>,
    /// Do not wait: end at once if somebody holds the lock.
    #[arg(short = 'n', long, visible_alias = "nonblock", conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// The exit code if the lock is not acquired in time. With 0 nothing is said about it.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
    /// Say nothing when somebody else has the lock.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// A fixed lease. It is not renewed: the lock, and with it the command, ends after this time.
    #[arg(short, long, value_name = "TIME", value_parser = |text: &str| checked("lease", text))]
    pub(crate) lease: Option<String>,
    /// Once in this time, for the cron of several machines. When the command has succeeded, the lock
    /// stays until a minute (at most a tenth of TIME) before the time is over, counted from its
    /// acquisition. When it has failed, the lock is released, and another machine may run it. Without
    /// --wait it ends at once if somebody has run it or runs it.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["lease", "shared", "permits"], value_parser = period)]
    pub(crate) once_per: Option<Duration>,
    /// Draw a fencing token. The command finds it in $REDLATCH_FENCING_TOKEN.
    #[arg(long)]
    pub(crate) fencing: bool,
    /// Take the read side of the read-write lock NAME: beside all others that do.
    #[arg(short, long, conflicts_with = "fencing")]
    pub(crate) shared: bool,
    /// Take the write side of the read-write lock NAME: alone. Without this and `--shared` NAME is
    /// a lock without sides, which those with `--shared` do not see.
    #[arg(short = 'x', long, conflicts_with = "shared")]
    pub(crate) exclusive: bool,
    /// Take a permit of the semaphore NAME: at most so many commands run at a time. The first one gives
    /// the semaphore its number of permits; a number that is there already stays, until `redlatch
    /// permits` changes it.
    #[arg(short, long, value_name = "LIMIT", conflicts_with_all = ["shared", "exclusive", "fencing"],
        value_parser = permits)]
    pub(crate) permits: Option<u32>,
    /// Signals that the command gets when the lock is lost (hup, int, quit, term, usr1, usr2,
    /// kill), and pauses between them; or `ignore`. Its child processes get the signals too.
    #[arg(long, value_name = "STEPS", default_value = "term,10s,kill")]
    pub(crate) on_lost: OnLost,
    /// The name of the lock.
    pub(crate) name: String,
    /// The command and its arguments. A `--` before it is optional.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Who {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock.
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Print an array of JSON objects.
    #[arg(long)]
    pub(crate) json: bool,
    /// Names with * and ?, as KEYS of Redis takes them.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Print a JSON object for each look.
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve metrics for Prometheus at this address: http://ADDRESS/metrics. `:9121` is for the
    /// machine itself, 0.0.0.0:9121 for all networks: names of locks may tell something.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) prometheus: Option<SocketAddr>,
    /// Write the same metrics to a file after each look, for the textfile collector of
    /// node_exporter. Its name ends in .prom.
    #[arg(long, value_name = "FILE", value_parser = prom)]
    pub(crate) prometheus_file: Option<PathBuf>,
    /// Give each lock metrics of its own: how long it is held, and how many wait. At most 1000
    /// locks have them.
    #[arg(long)]
    pub(crate) per_lock: bool,
    /// The time between two looks. It is longer if a look takes more than a SCAN of each server: 19 times as
    /// long as the look.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Names with * and ?, as KEYS of Redis takes them.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print an array of JSON objects.
    #[arg(long)]
    pub(crate) json: bool,
    /// A lock that nobody needs. Its name has to be allowed to this user.
    #[arg(default_value = "redlatch:doctor")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Acl {
    /// The kind of the locks, as in -o kind; or plain-semaphore, or latch. It can be given several
    /// times.
    #[arg(long = "kind", value_name = "KIND", value_parser = kind)]
    pub(crate) kinds: Vec<String>,
    /// The user. Write a password of your own in place of `password`.
    #[arg(long, value_name = "USER", default_value = "app")]
    pub(crate) user: String,
    /// A line for the server's ACL file, in place of a command for redis-cli.
    #[arg(long)]
    pub(crate) file: bool,
    /// For a server before Redis 7.0, which does not know all rules.
    #[arg(long)]
    pub(crate) redis_6: bool,
    /// For the nodes of a cluster.
    #[arg(long)]
    pub(crate) cluster: bool,
    /// For servers behind sentinels.
    #[arg(long)]
    pub(crate) sentinel: bool,
    /// Also what this program needs to show locks: who, ls, watch, free.
    #[arg(long)]
    pub(crate) tool: bool,
    /// The names of the locks, with * and ?. Names with braces need a pattern that has them.
    #[arg(value_name = "PATTERN")]
    pub(crate) names: String,
}

#[derive(Debug, Args)]
pub(crate) struct Free {
    /// Really delete it, whoever holds it.
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Do not ask first.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the lock.
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Permits {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The name of the semaphore.
    pub(crate) name: String,
    /// So many permits it has from now on, taken ones included.
    #[arg(value_name = "NUMBER")]
    pub(crate) number: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// An exit code (64 to 77), an error such as `denied`, the reason of a loss, or an option.
    #[arg(value_name = "CODE")]
    pub(crate) word: String,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("it is NAME=VALUE, such as outage=3s".to_owned()),
    }
}

fn kind(text: &str) -> Result<String, String> {
    let all = Kind::ALL.iter().chain(&COUNTERS);
    match all.clone().any(|known| *known == text) {
        true => Ok(text.to_owned()),
        false => {
            let all: Vec<&str> = all.copied().collect();
            Err(format!("it is one of {}", all.join(", ")))
        }
    }
}

fn permits(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (1..=i32::MAX.unsigned_abs()).contains(&number) => Ok(number),
        _ => Err("it is the number of commands that may run at a time, such as 4".to_owned()),
    }
}

/// A time that the library accepts for this option of an acquisition. The text is kept: the library
/// is the one place that reads it.
fn checked(option: &str, text: &str) -> Result<String, String> {
    AcquireOptions::new()
        .set(option, OptionValue::Text(text))
        .map(|()| text.to_owned())
        .map_err(|error| failure::text(&error))
}

/// The time for `--once-per`. The lock is kept by a lease of that length.
fn period(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_secs(1);
    match embed::read_duration("lease", OptionValue::Text(text)) {
        Ok(time) if time >= SHORTEST => Ok(time),
        _ => Err("it is a time with a unit, from 1s to 24h, such as 1h".to_owned()),
    }
}

/// An address to listen at. A port alone is one of the machine itself.
fn address(text: &str) -> Result<SocketAddr, String> {
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    whole.parse().map_err(|_| {
        "it is an address with a port, such as :9121, 0.0.0.0:9121 or [::1]:9121".to_owned()
    })
}

/// The collector reads no other files.
fn prom(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    match path.extension().is_some_and(|end| end == "prom") {
        true => Ok(path.to_owned()),
        false => Err("node_exporter reads files whose names end in .prom".to_owned()),
    }
}

/// A time between two looks. Each look reads every key of the servers.
fn interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(100);
    match embed::read_duration("wait", OptionValue::Text(text)) {
        Ok(time) if time >= SHORTEST => Ok(time),
        _ => Err("it is a time with a unit, of at least 100ms, such as 2s".to_owned()),
    }
}
