//! `redlatch run`: a command that runs while the lock is held.
//!
//! The main thread starts the command and waits for events: signals, the grant, the loss, the end
//! of a child. The other threads only report them.

mod copies;
mod family;
mod on_lost;
mod refusals;
mod signals;

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use redlatch::embed::{SemaphoreExt, spawn};
use redlatch::{
    AcquireOptions, Canceller, Client, Error, ErrorKind, Guard, Kind, Lock, LostReason,
    OptionValue, ReentryKey, Semaphore,
};

use crate::arguments::{Run, Server};
use crate::failure::{self, Exit, Failure};
use crate::scan::Found;
use crate::starters::STARTERS;
use crate::{complain, connect, scan, who};
use copies::Copies;
use family::{Ended, Family};
pub(crate) use on_lost::OnLost;
use on_lost::Step;
pub(crate) use signals::is_ignored;

/// The variable in which the command finds the fencing token.
const TOKEN: &str = "REDLATCH_FENCING_TOKEN";

/// The main thread waits for these.
#[derive(Debug)]
enum Event {
    Signalled(Signal),
    /// A child process ended, stopped or went on.
    ChildChanged,
    Acquired(Result<Guard, Error>),
    Lost(LostReason),
}

pub(crate) fn run(server: &Server, arguments: &Run) -> Result<u8, Failure> {
    let server = &settled(server, arguments)?;
    let client = connect::client(server)?;
    let lock = lock(server, &client, arguments)?;
    let (sender, events) = mpsc::channel();
    signals::report_to(sender.clone())?;
    // It ends when the lock is acquired, or is not.
    let telling = refusals::tell(server, &client, &lock, arguments);
    // For `--once-per`: one level is for the command, another for the time.
    let key = ReentryKey::new_task();
    let acquired = acquire(&lock, arguments, key, &sender, &events);
    drop(telling);
    let outcome = match acquired {
        Ok(Acquired::Held(guard)) => {
            under_lock(server, guard, &lock, arguments, key, sender, &events)
        }
        Ok(Acquired::Signalled(signal)) => Ok(by_signal(signal as i32)),
        Err(error) if error.kind() == ErrorKind::Timeout => Err(Failure {
            code: arguments.conflict_exit_code,
            text: match arguments.quiet || arguments.conflict_exit_code == 0 {
                true => String::new(),
                false => conflict(server, &client, &lock, arguments, &error),
            },
        }),
        Err(error) if error.kind() == ErrorKind::ForeignKind => {
            Err(Failure::new(Exit::Foreign, foreign(server, &lock, &error)))
        }
        Err(error) => Err(error.into()),
    };
    // Everything is released by now, or has told why not.
    let _ = client.close_within(Duration::ZERO).wait();
    outcome
}

/// With the name of the command as `client_name`, unless that is given: people look for what holds a lock.
/// The file with the URL is read once: it may be a pipe, or be gone when the lock is acquired.
fn settled(server: &Server, arguments: &Run) -> Result<Server, Failure> {
    const LONGEST: usize = 64;
    let mut server = server.clone();
    (server.url, server.url_file) = (Some(connect::url(&server)?), None);
    let program = arguments.command.first().map(Path::new);
    let name = program.and_then(|program| program.file_name()?.to_str());
    // As the option takes it.
    let fits = |char: &char| char.is_ascii_graphic() && *char != ';';
    let name: String = name
        .unwrap_or_default()
        .chars()
        .filter(fits)
        .take(LONGEST)
        .collect();
    if server.given("client_name").is_none() && !name.is_empty() {
        server.options.push(("client_name".to_owned(), name));
    }
    Ok(server)
}

/// Tells why the lock was not acquired, and who holds it now if that can be had.
fn conflict(
    server: &Server,
    client: &Client,
    lock: &Lock,
    arguments: &Run,
    error: &Error,
) -> String {
    tell_permits(lock, arguments.permits);
    let mut text = failure::text(error);
    if let Some(period) = arguments.once_per {
        text = format!(
            "the command runs, or has run in the last {period:?}, under {}",
            lock.name()
        );
    }
    match who::look(server, client, lock) {
        Ok(Found::Held(held)) => format!("{text}; {}", held.as_text()),
        _ => text,
    }
}

/// Tells which option the lock at this name needs, if it is held.
fn foreign(server: &Server, lock: &Lock, error: &Error) -> String {
    let text = failure::text(error);
    let stored = connect::inspector(server)
        .and_then(|mut inspector| scan::lock(&mut inspector, lock.name()));
    let Ok(Found::Held(held)) = stored else {
        return text;
    };
    match Kind::named(held.kind) {
        Some(Kind::Semaphore) => {
            format!("{text}; it is a semaphore: --permits takes one of its permits")
        }
        Some(Kind::Read | Kind::Write) => format!("{text}: --shared or --exclusive"),
        _ => text,
    }
}

fn lock(server: &Server, client: &Client, arguments: &Run) -> Result<Lock, Failure> {
    let mut options = client.lock_options();
    let side = match arguments {
        Run { shared: true, .. } => Some(("--shared", Kind::Read)),
        Run {
            exclusive: true, ..
        } => Some(("--exclusive", Kind::Write)),
        Run {
            permits: Some(_), ..
        } => Some(("--permits", Kind::Semaphore)),
        _ => None,
    };
    match (side, server.given("kind")) {
        (Some((word, kind)), Some(given)) if given != kind.name() => {
            return Err(Failure::new(
                Exit::Usage,
                format!(
                    "{word} is for locks of the kind {}, and -o kind={given} names another; leave one of the two out",
                    kind.name()
                ),
            ));
        }
        // It would wait until somebody else gives the semaphore its number of permits.
        (None, Some("semaphore")) if server.given("limit").is_none() => {
            return Err(Failure::new(
                Exit::Usage,
                "a semaphore needs its number of permits; use --permits 4 in place of -o kind=semaphore",
            ));
        }
        _ => {}
    }
    if let Some((_, kind)) = side {
        options = options.kind(kind);
    }
    if let Some(limit) = arguments.permits {
        options = options.limit(limit as usize);
    }
    if arguments.fencing {
        options = options.fencing(true);
    }
    if server.given("linger") == Some("true") {
        return Err(Failure::new(
            Exit::Usage,
            "a lock does not outlive its command; use --once-per TIME in place of -o linger=true",
        ));
    }
    if arguments.once_per.is_some() {
        let kind = server.given("kind").unwrap_or(Kind::Reentrant.name());
        if ![Kind::Reentrant, Kind::Fair, Kind::Write]
            .map(Kind::name)
            .contains(&kind)
        {
            return Err(Failure::new(
                Exit::Usage,
                format!(
                    "--once-per takes the lock twice, for the command and for the time, and -o kind={kind} names a kind \
                     that cannot be; leave one of the two out"
                ),
            ));
        }
        options = options.linger(true).reentrant(true);
    }
    Ok(client.lock_with(&arguments.name, options)?)
}

/// How the wait for the lock ended without an error.
enum Acquired {
    Held(Guard),
    /// A signal ended the wait.
    Signalled(Signal),
}

/// How long `--once-per` keeps the lock. The next start of cron may come a little early.
fn kept(period: Duration) -> Duration {
    period - (period / 10).min(Duration::from_secs(60))
}

fn acquire(
    lock: &Lock,
    arguments: &Run,
    key: ReentryKey,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<Acquired, Error> {
    let mut options = AcquireOptions::new();
    if let Some(wait) = &arguments.wait {
        options.set("wait", OptionValue::Text(wait))?;
    } else if arguments.no_wait || arguments.once_per.is_some() {
        options = options.wait(Duration::ZERO);
    }
    if let Some(period) = arguments.once_per {
        options = options.lease(kept(period)).key(key);
    }
    if let Some(lease) = &arguments.lease {
        options.set("lease", OptionValue::Text(lease))?;
    }
    let canceller = Canceller::new()?;
    let (ours, answers, lock) = (canceller.clone(), sender.clone(), lock.clone());
    spawn("redlatch-acquire", move || {
        let outcome = lock.acquire_with(options).wait_cancellable(&ours);
        // The main thread waits for this event.
        let _ = answers.send(Event::Acquired(outcome));
    })
    .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    let mut signalled = None;
    for event in events {
        match (event, signalled) {
            (Event::Signalled(signal), _) => {
                signalled.get_or_insert(signal);
                canceller.cancel();
            }
            // A grant that came before the cancellation is released by its guard.
            (Event::Acquired(Ok(guard)), Some(signal)) => {
                let _ = guard.release().wait();
                return Ok(Acquired::Signalled(signal));
            }
            (Event::Acquired(Err(error)), Some(signal)) if error.kind() == ErrorKind::Cancelled => {
                return Ok(Acquired::Signalled(signal));
            }
            (Event::Acquired(outcome), _) => return outcome.map(Acquired::Held),
            (Event::ChildChanged | Event::Lost(_), _) => {}
        }
    }
    unreachable!("`sender` keeps the channel open")
}

/// Runs the command, releases the lock, and says with which code to exit.
fn under_lock(
    server: &Server,
    guard: Guard,
    lock: &Lock,
    arguments: &Run,
    key: ReentryKey,
    sender: Sender<Event>,
    events: &Receiver<Event>,
) -> Result<u8, Failure> {
    tell_permits(lock, arguments.permits);
    let (guard, stays) = match arguments.once_per {
        None => (guard, None),
        // This level is renewed, and the other one says when the lock ends after it.
        Some(_) => match lock.acquire_with(AcquireOptions::new().key(key)).wait() {
            Ok(inner) => (inner, Some(guard)),
            Err(error) => {
                release(guard, lock);
                return Err(error.into());
            }
        },
    };
    let copies = Copies::new();
    let family = Family::new();
    let command = match start(server, &guard, arguments) {
        Ok(command) => command,
        Err(failure) => {
            release(guard, lock);
            stays.map(|guard| release(guard, lock));
            return Err(failure);
        }
    };
    let lost = sender.clone();
    guard.on_lost(move |reason| {
        // The main thread may have gone on to the end.
        let _ = lost.send(Event::Lost(reason));
    });
    let ended = supervise(command, family, copies, lock, arguments, events);
    drop(sender);
    let code = match ended {
        Ended::With(code) => code,
        Ended::By(signal) => by_signal(signal),
    };
    let failure = release(guard, lock);
    if let Some(stays) = stays {
        stay(stays, code, lock);
    }
    match failure {
        // The command may have run without the lock for a while: its own code does not count.
        Some(ErrorKind::Lost) if !arguments.on_lost.ignores() => Ok(Exit::Lost as u8),
        _ => Ok(code),
    }
}

/// The number of a semaphore that is there stays, which may be another one than this command says. It is
/// told once: while the command waits, or at the end of the wait.
fn tell_permits(lock: &Lock, limit: Option<u32>) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let Some(limit) = limit else { return };
    if let Ok(there) = Semaphore::of_lock(lock.clone()).permits().wait()
        && there.limit != i64::from(limit)
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        let name = lock.name();
        complain(&format!(
            "the semaphore {name} has {} permits already, and --permits {limit} does not change that; `redlatch permits {name} \
             {limit}` does",
            there.limit
        ));
    }
}

/// Leaves the lock to its lease if the command has succeeded.
fn stay(guard: Guard, code: u8, lock: &Lock) {
    if code == 0 && !guard.remaining().is_zero() {
        guard.detach();
        return;
    }
    if code != 0 && guard.is_held() {
        complain(&format!(
            "the command failed with exit code {code}, so {} is released, and another machine may run it",
            lock.name()
        ));
    }
    release(guard, lock);
}

/// The code that a shell reports for a process that this signal ended.
fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

fn start(server: &Server, guard: &Guard, arguments: &Run) -> Result<Pid, Failure> {
    let [program, words @ ..] = &arguments.command[..] else {
        return Err(Failure::new(Exit::Usage, "no command is given"));
    };
    let mut command = Command::new(program);
    command.args(words);
    match guard.fencing_token() {
        Some(token) => command.env(TOKEN, token.to_string()),
        // The command may be inside another `redlatch run`. The token of that lock does not guard this one.
        None => command.env_remove(TOKEN),
    };
    // However it was given.
    command.env("REDLATCH_URL", connect::url(server)?);
    command.env_remove(STARTERS);
    if let Some(signal) = arguments.on_lost.last_signal() {
        family::adopt_orphans();
        family::end_with_parent(&mut command, signal);
    }
    let spawned = command.spawn().map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::CannotRun,
        };
        Failure::new(exit, format!("cannot run {}: {error}", program.display()))
    })?;
    // The number fits: the kernel's process ids are `pid_t`.
    Ok(Pid::from_raw(
        i32::try_from(spawned.id()).unwrap_or_default(),
    ))
}

/// Waits for the end of the command. After a loss it carries out the steps of `--on-lost` until the
/// command and all its descendants have ended.
fn supervise(
    command: Pid,
    mut family: Family,
    mut copies: Copies,
    lock: &Lock,
    arguments: &Run,
    events: &Receiver<Event>,
) -> Ended {
    let mut ended = None;
    let mut lost = false;
    let mut steps = arguments.on_lost.steps().iter();
    let mut next_step: Option<Instant> = None;
    loop {
        if let Some(ended) = ended
            && !(lost && next_step.is_some() && !family.is_empty())
        {
            return ended;
        }
        // A command that has ended gets nothing.
        let copy = copies.next().filter(|_| ended.is_none());
        let wake = copy.into_iter().chain(next_step).min();
        let event = match wake {
            Some(time) => events.recv_timeout(time.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let now = Instant::now();
        match event {
            Ok(Event::Acquired(_)) => {}
            Ok(Event::Signalled(signal)) => copies.came(signal, now),
            Ok(Event::ChildChanged) => {
                for (pid, how) in family::reap() {
                    match pid == command {
                        true => ended = Some(how),
                        false => copies.ended(pid, how, &mut family, now),
                    }
                }
            }
            Ok(Event::Lost(reason)) => {
                complain(&format!("the lock {} is lost: {reason}", lock.name()));
                lost = true;
                next_step = (!arguments.on_lost.ignores()).then(Instant::now);
            }
            Err(_) if next_step.is_none_or(|time| time > now) => {
                if ended.is_none() {
                    copies.go_on(now, command);
                }
            }
            Err(_) => {
                next_step = steps.next().map(|step| match step {
                    Step::Signal(signal) => {
                        complain(&format!("sending {signal} to the command"));
                        family.signal(ended.is_none().then_some(command), *signal);
                        Instant::now()
                    }
                    Step::Pause(time) => Instant::now() + *time,
                });
            }
        }
    }
}

/// Releases, and reports on standard error what went wrong.
fn release(guard: Guard, lock: &Lock) -> Option<ErrorKind> {
    let error = guard.release().wait().err()?;
    match error.kind() {
        // Told when it happened.
        ErrorKind::Lost => {}
        _ => complain(&format!(
            "{} may stay locked until its lease ends: {}",
            lock.name(),
            error.message()
        )),
    }
    Some(error.kind())
}
