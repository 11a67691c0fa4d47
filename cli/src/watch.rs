//! `redlatch watch`: the locks that are held, again and again.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{mem, panic};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, queue, terminal};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use redlatch::Error;
use redlatch::embed::{Inspector, spawn};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use crate::arguments::{Server, Watch};
use crate::failure::{Exit, Failure};
use crate::held::{Held, whole_span};
use crate::metrics::Metrics;
use crate::prometheus::Exporter;
use crate::shown::{cut, shown};
use crate::{connect, ls};

pub(crate) fn watch(server: &Server, arguments: &Watch) -> Result<u8, Failure> {
    // A service may begin before its server: each look connects anew.
    let inspector = match connect::inspector(server) {
        Err(failure) if failure.code == Exit::Unavailable as u8 && serves(arguments) => None,
        inspector => Some(inspector?),
    };
    let mut looker = Looker {
        inspector,
        server,
        pattern: &arguments.pattern,
        history: History::default(),
        metrics: Metrics::new(arguments.per_lock),
        exporter: Exporter::open(arguments)?,
    };
    if arguments.json || !io::stdout().is_terminal() {
        return stream(&mut looker, arguments);
    }
    live(&mut looker, arguments).map(|()| 0)
}

/// Whether others read its metrics.
fn serves(arguments: &Watch) -> bool {
    arguments.prometheus.is_some() || arguments.prometheus_file.is_some()
}

/// Looks at the servers, and connects again after a connection was lost.
struct Looker<'a> {
    server: &'a Server,
    pattern: &'a str,
    inspector: Option<Inspector>,
    history: History,
    metrics: Metrics,
    exporter: Exporter,
}

/// The result of a look.
struct Look {
    locks: Vec<Held>,
    /// The changes since the look before, for people.
    changes: Vec<String>,
}

impl Looker<'_> {
    /// The locks now; else why the servers cannot be reached. The metrics follow.
    fn look(&mut self) -> Result<Result<Look, String>, Failure> {
        let began = Instant::now();
        let found = self.locks()?;
        let now = Instant::now();
        let found = found.map(|locks| {
            let seen = self.history.note(&locks, began, now);
            self.metrics.note(&seen);
            let changes = seen.into_iter().map(|change| change.text).collect();
            Look { locks, changes }
        });
        if self.exporter.is_used() {
            let locks = found.as_ref().ok().map(|look| &look.locks[..]);
            let held_for = |held: &Held| self.history.held_for(held, now);
            let text = self.metrics.as_text(locks, held_for, now - began);
            self.exporter.publish(text)?;
        }
        Ok(found)
    }

    fn locks(&mut self) -> Result<Result<Vec<Held>, String>, Failure> {
        let mut inspector = match self.inspector.take() {
            Some(inspector) => Ok(inspector),
            None => connect::inspector(self.server),
        };
        let locks = match &mut inspector {
            Ok(inspector) => ls::locks(inspector, self.pattern),
            Err(failure) => Err(Failure {
                code: failure.code,
                text: mem::take(&mut failure.text),
            }),
        };
        match locks {
            Ok(locks) => {
                // A server of a quorum that could not be reached may be there at the next look.
                self.inspector = inspector.ok().filter(|known| known.missing() == 0);
                Ok(Ok(locks))
            }
            Err(failure) if failure.code == Exit::Unavailable as u8 => Ok(Err(failure.text)),
            Err(failure) => Err(failure),
        }
    }
}

/// A line for each change, or a JSON object for each look.
fn stream(looker: &mut Looker<'_>, arguments: &Watch) -> Result<u8, Failure> {
    let mut away = None;
    loop {
        match looker.look()? {
            Err(text) => {
                if away.as_ref() != Some(&text) {
                    crate::complain(&text);
                }
                away = Some(text);
            }
            Ok(Look { locks, changes }) => {
                away = None;
                let all: Vec<_> = locks.iter().map(Held::as_json).collect();
                let text = match arguments.json {
                    true => format!("{}\n", json!({ "time_ms": unix_ms(), "locks": all })),
                    false => changes.iter().map(|change| format!("{change}\n")).collect(),
                };
                if !crate::is_read(text.as_bytes())? {
                    return Ok(0);
                }
            }
        }
        if reader_left(arguments.interval) {
            return Ok(0);
        }
    }
}

/// The time, for readers that come later.
fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = time.unwrap_or_default().as_millis();
    u64::try_from(ms).unwrap_or(u64::MAX)
}

/// Waits; `true` as soon as nobody reads standard output any more.
fn reader_left(limit: Duration) -> bool {
    let out = io::stdout();
    // Without an event that is asked for, the kernel still reports a reader that has gone.
    let mut ends = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    matches!(poll(&mut ends, limit), Ok(1))
}

/// Shows the table until `q`, Escape or Ctrl-C.
fn live(looker: &mut Looker<'_>, arguments: &Watch) -> Result<(), Failure> {
    let _screen = Screen::enter()?;
    restore_on_signals()?;
    let start = Instant::now();
    let mut locks = Vec::new();
    loop {
        let now = Instant::now();
        let away = match looker.look()? {
            Ok(look) => {
                locks = look.locks;
                None
            }
            Err(text) => Some(text),
        };
        let history = &looker.history;
        let mut page = page(&locks, history, &arguments.pattern, now, now - start);
        if let Some(text) = away {
            page = format!("{}\n{page}", shown(&text));
        }
        draw(&page).map_err(ended)?;
        if wait(now + arguments.interval).map_err(ended)? {
            return Ok(());
        }
    }
}

/// Waits for the time of the next look, or for a resized terminal; `true` if a key ends the program.
fn wait(until: Instant) -> io::Result<bool> {
    while event::poll(until.saturating_duration_since(Instant::now()))? {
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
                    KeyCode::Char('c' | 'd') if control => return Ok(true),
                    _ => {}
                }
            }
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

/// Has a thread give the terminal back before a signal does what it does to every program. The main
/// thread cannot: crossterm reads on and on from a terminal that is gone.
fn restore_on_signals() -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP]).map_err(broken)?;
    spawn("redlatch-signals", move || {
        for signal in signals.forever() {
            let drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
            leave();
            // A stopped program goes on from here.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            let _ = enter();
            drop(drawing);
        }
    })
    .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    Ok(())
}

/// Held by the thread that writes to the terminal.
static DRAWING: Mutex<()> = Mutex::new(());

/// The lines of the screen.
fn page(locks: &[Held], history: &History, pattern: &str, now: Instant, since: Duration) -> String {
    let mut rows = ls::table(locks);
    let times = locks.iter().flat_map(|held| {
        held.owners
            .iter()
            .map(move |owner| history.owned_for(held, &owner.name, now))
    });
    for (row, time) in rows.iter_mut().skip(1).zip(times) {
        // The time since this owner was first seen stands before the rest of the lease.
        row[3] = format!("{} / {}", whole_span(time), row[3]);
    }
    if let Some(head) = rows.first_mut() {
        head[3] = "HELD / ENDS IN".to_owned();
    }
    let Seen {
        taken,
        freed,
        passed,
        expired,
    } = history.seen;
    let rate = passed as f64 / since.as_secs_f64().max(1.0);
    format!(
        "redlatch watch {}   {} held   seen in {}: {taken} taken, {freed} freed, {passed} passed on ({rate:.1}/s), {expired} expired   q quits\n\n{}",
        shown(pattern),
        locks.len(),
        whole_span(since),
        ls::lines(&rows)
    )
}

/// Replaces the screen by these lines, cut to its size.
fn draw(page: &str) -> io::Result<()> {
    // A terminal over a serial line does not know its size.
    let (width, height) = match terminal::size()? {
        (0, _) | (_, 0) => (80, 24),
        known => known,
    };
    let (width, height) = (usize::from(width), usize::from(height));
    let count = page.lines().count();
    let (whole, more) = match count.checked_sub(height) {
        None | Some(0) => (count, 0),
        Some(more) => (height - 1, more + 1),
    };
    let last = (more > 0).then(|| format!("{more} more lines"));
    let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = io::stdout().lock();
    for (row, line) in page
        .lines()
        .take(whole)
        .map(str::to_owned)
        .chain(last)
        .enumerate()
    {
        let cut = cut(&line, width);
        queue!(
            out,
            cursor::MoveTo(0, u16::try_from(row).unwrap_or(u16::MAX)),
            Clear(ClearType::CurrentLine)
        )?;
        write!(out, "{cut}")?;
    }
    if count < height {
        queue!(
            out,
            cursor::MoveToNextLine(1),
            Clear(ClearType::FromCursorDown)
        )?;
    }
    out.flush()
}

/// The alternate screen without a cursor; dropping it gives the terminal back as it was.
struct Screen;

impl Screen {
    fn enter() -> Result<Self, Failure> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            // On the alternate screen the message of a panic would be lost.
            panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        let screen = Screen;
        enter().map_err(broken)?;
        Ok(screen)
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    let mut out = io::stdout();
    queue!(out, EnterAlternateScreen, cursor::Hide)?;
    out.flush()
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    let mut out = io::stdout();
    // A terminal that is gone cannot be restored.
    let _ = queue!(out, LeaveAlternateScreen, cursor::Show).and_then(|()| out.flush());
    let _ = terminal::disable_raw_mode();
}

/// The terminal cannot be used any more. If it is gone, this program ends as by the hang-up signal,
/// which may come a little later.
fn ended(error: io::Error) -> Failure {
    let input = io::stdin();
    let mut ends = [PollFd::new(input.as_fd(), PollFlags::empty())];
    if matches!(poll(&mut ends, PollTimeout::ZERO), Ok(1)) {
        let _ = signal_hook::low_level::emulate_default_handler(SIGHUP);
    }
    broken(error)
}

fn broken(error: io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("cannot use the terminal: {error}"))
}

/// The server reads its clock once for many commands.
const CLOCK: Duration = Duration::from_millis(100);

/// Since when each lock is held, as far as it was looked at.
#[derive(Debug, Default)]
struct History {
    holds: BTreeMap<String, Hold>,
    seen: Seen,
}

/// The time in which a lock always had an owner that it had at the look before. Readers may come and go in it.
#[derive(Debug)]
struct Hold {
    since: Instant,
    /// Since when each owner has the lock.
    owners: BTreeMap<String, Instant>,
    /// When the lease ends unless it is renewed: not before the one, and not after the other.
    ends: Option<(Instant, Instant)>,
    /// Whether the last two looks saw the same end.
    is_unrenewed: bool,
}

impl Hold {
    /// Whether the lease has run out: nobody renewed it, and its end is over.
    fn has_expired(&self, now: Instant) -> bool {
        self.is_unrenewed
            && self
                .ends
                .is_some_and(|(earliest, _)| earliest <= now + CLOCK)
    }
}

/// Changes between two looks. A change that was undone in between is not counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    taken: u64,
    freed: u64,
    passed: u64,
    expired: u64,
}

/// A change of one lock between two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// A line for people.
    text: String,
    pub(crate) what: What,
    /// How long those had it who have it no more, as far as it was seen.
    pub(crate) had: Option<Duration>,
    /// Whether the lease of those ran out.
    pub(crate) expired: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Taken,
    Freed,
    /// Others have it now.
    Passed,
    /// Readers came or went, and another one stayed: the lock is held on.
    Shared,
}

impl History {
    /// Compares a look, from its begin to now, to the one before, and tells the changes.
    fn note(&mut self, locks: &[Held], began: Instant, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut before = mem::take(&mut self.holds);
        for held in locks {
            let known = before.remove(&held.name);
            let owners = held.owners.iter().map(|owner| {
                let since = known
                    .as_ref()
                    .and_then(|known| known.owners.get(&owner.name));
                (owner.name.clone(), since.copied().unwrap_or(now))
            });
            let owners: BTreeMap<String, Instant> = owners.collect();
            let what = match &known {
                None => Some(What::Taken),
                Some(known) if !owners.keys().any(|name| known.owners.contains_key(name)) => {
                    Some(What::Passed)
                }
                Some(known) => (!known.owners.keys().eq(owners.keys())).then_some(What::Shared),
            };
            match what {
                Some(What::Taken) => self.seen.taken += 1,
                Some(What::Passed) => self.seen.passed += 1,
                _ => {}
            }
            // A hold goes on while one of its owners stays.
            let (stays, ended) = match known {
                Some(known) if what == Some(What::Passed) => (None, Some(known)),
                known => (known, None),
            };
            if let Some(what) = what {
                changes.push(self.change(held.as_text(), what, ended, now));
            }
            let ends = held.remaining.map(|rest| (began + rest, now + rest));
            let is_unrenewed = match stays.as_ref().and_then(|stays| stays.ends).zip(ends) {
                Some(((_, before), (ends, _))) => ends <= before + CLOCK,
                None => false,
            };
            let hold = Hold {
                since: stays.map_or(now, |stays| stays.since),
                owners,
                ends,
                is_unrenewed,
            };
            self.holds.insert(held.name.clone(), hold);
        }
        for (name, hold) in before {
            self.seen.freed += 1;
            let end = if hold.has_expired(now) {
                ": its lease has ended"
            } else {
                ""
            };
            let text = format!("{} is free{end}", shown(&name));
            changes.push(self.change(text, What::Freed, Some(hold), now));
        }
        changes
    }

    fn change(&mut self, text: String, what: What, ended: Option<Hold>, now: Instant) -> Change {
        let expired = ended.as_ref().is_some_and(|hold| hold.has_expired(now));
        self.seen.expired += u64::from(expired);
        let had = ended.map(|hold| now.saturating_duration_since(hold.since));
        Change {
            text,
            what,
            had,
            expired,
        }
    }

    fn held_for(&self, held: &Held, now: Instant) -> Duration {
        let since = self.holds.get(&held.name).map(|hold| hold.since);
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn owned_for(&self, held: &Held, owner: &str, now: Instant) -> Duration {
        let hold = self.holds.get(&held.name);
        let since = hold.and_then(|hold| hold.owners.get(owner));
        since.map_or(Duration::ZERO, |since| {
            now.saturating_duration_since(*since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::Owner;

    fn held(name: &str, owner: &str) -> Held {
        Held {
            name: name.to_owned(),
            kind: "reentrant",
            owners: vec![Owner::new(owner.to_owned(), 1)],
            remaining: None,
            more: false,
            waiting: None,
            permits: None,
        }
    }

    #[test]
    fn changes_are_told_and_times_are_those_of_an_owner() {
        let (mut history, start) = (History::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            history
                .note(&[held("a", "x"), held("b", "x")], at(0), at(0))
                .len(),
            2
        );
        assert!(
            history
                .note(&[held("a", "x"), held("b", "x")], at(1), at(1))
                .is_empty()
        );
        let changes = history.note(&[held("a", "y")], at(5), at(5));
        assert!(changes[0].text.starts_with("a is held by y"), "{changes:?}");
        assert_eq!(changes[1].text, "b is free");
        let had = Some(Duration::from_secs(5));
        assert_eq!((changes[0].what, changes[0].had), (What::Passed, had));
        assert_eq!((changes[1].what, changes[1].had), (What::Freed, had));
        assert_eq!(
            history.held_for(&held("a", "y"), at(7)),
            Duration::from_secs(2)
        );
        let seen = Seen {
            taken: 2,
            freed: 1,
            passed: 1,
            expired: 0,
        };
        assert_eq!(history.seen, seen);
    }

    #[test]
    fn a_lease_that_nobody_renews_expires() {
        let start = Instant::now();
        let ended = |ends: &[u64]| {
            let mut history = History::default();
            for (look, end) in ends.iter().enumerate() {
                let look = look as u64;
                let remaining = Some(Duration::from_secs(end - look));
                let locks = [Held {
                    remaining,
                    ..held("a", "x")
                }];
                let now = start + Duration::from_secs(look);
                history.note(&locks, now, now);
            }
            let now = start + Duration::from_secs(ends.len() as u64);
            let changes = history.note(&[], now, now);
            (changes[0].expired, changes[0].text.clone())
        };
        assert_eq!(
            ended(&[3, 3, 3]),
            (true, "a is free: its lease has ended".to_owned())
        );
        // It is free before its lease ends; it was renewed; nobody knows whether it was.
        for ends in [&[9, 9, 9][..], &[2, 4], &[1]] {
            assert_eq!(ended(ends), (false, "a is free".to_owned()));
        }
    }

    #[test]
    fn readers_who_come_and_go_pass_nothing_on() {
        let (mut history, start) = (History::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let shared = |owners: &[&str]| {
            let owners = owners
                .iter()
                .map(|owner| Owner::new((*owner).to_owned(), 1));
            let owners = owners.collect();
            Held {
                owners,
                ..held("a", "x")
            }
        };
        history.note(&[shared(&["x"])], at(0), at(0));
        for (owners, second) in [(&["x", "y"][..], 1), (&["y"], 3)] {
            let changes = history.note(&[shared(owners)], at(second), at(second));
            assert_eq!((changes[0].what, changes[0].had), (What::Shared, None));
        }
        assert!(history.note(&[shared(&["y"])], at(4), at(4)).is_empty());
        let (lock, owner) = (
            history.held_for(&shared(&["y"]), at(4)),
            history.owned_for(&shared(&["y"]), "y", at(4)),
        );
        assert_eq!((lock.as_secs(), owner.as_secs()), (4, 3));
        let changes = history.note(&[shared(&["z"])], at(5), at(5));
        let had = Some(Duration::from_secs(5));
        assert_eq!((changes[0].what, changes[0].had), (What::Passed, had));
        assert_eq!((history.seen.taken, history.seen.passed), (1, 1));
    }
}
