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
use nix::sys::signal::Signal;
use redlatch::Error;
use redlatch::embed::{Inspector, spawn};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use crate::arguments::{Server, Watch};
use crate::failure::{Exit, Failure};
use crate::held::{Held, span, whole_span};
use crate::metrics::Metrics;
use crate::prometheus::Exporter;
use crate::run::is_ignored;
use crate::scan::Scanned;
use crate::shown::{cut, shown};
use crate::{connect, ls};

/// A look that reads many keys takes at most one part in so many of the time.
const SHARE: u32 = 20;

pub(crate) fn watch(server: &Server, arguments: &Watch) -> Result<u8, Failure> {
    let mut looker = Looker {
        // Each look connects if it has to: the server may begin later.
        inspector: None,
        server,
        arguments,
        history: History::default(),
        metrics: Metrics::new(arguments.per_lock),
        exporter: Exporter::open(arguments)?,
    };
    if arguments.json || !io::stdout().is_terminal() {
        return stream(&mut looker);
    }
    live(&mut looker).map(|()| 0)
}

/// Looks at the servers, and connects again after a connection was lost.
struct Looker<'a> {
    server: &'a Server,
    arguments: &'a Watch,
    inspector: Option<Inspector>,
    history: History,
    metrics: Metrics,
    exporter: Exporter,
}

/// The result of a look.
struct Look {
    scanned: Scanned,
    /// The changes since the look before, for people.
    changes: Vec<String>,
    took: Duration,
}

impl Look {
    /// What it took of the servers, for people.
    fn cost(&self) -> String {
        let took = self.took.as_secs_f64();
        match self.scanned.scans {
            1 => format!("1 SCAN in {took:.2} s"),
            scans => format!("{scans} SCANs in {took:.2} s"),
        }
    }

    /// The time until the next look. With more keys than a server reads at once a look costs the
    /// servers much, and else it is the network that takes the time.
    fn pause(&self, interval: Duration) -> Duration {
        match self.scanned.scans > self.scanned.servers {
            true => interval.max(self.took * (SHARE - 1)),
            false => interval,
        }
    }
}

impl Looker<'_> {
    /// The locks now; else why the servers cannot be reached. The metrics follow.
    fn look(&mut self) -> Result<Result<Look, String>, Failure> {
        let began = Instant::now();
        let found = self.locks()?;
        let now = Instant::now();
        let found = found.map(|scanned| {
            let seen = self.history.note(&scanned.locks, began, now);
            self.metrics.note(&seen);
            Look {
                scanned,
                changes: seen.into_iter().map(|change| change.text).collect(),
                took: now - began,
            }
        });
        if self.exporter.is_used() {
            let locks = found.as_ref().ok().map(|look| &look.scanned.locks[..]);
            let held_for = |held: &Held| self.history.held_for(held, now);
            let text = self.metrics.as_text(locks, held_for, now - began);
            self.exporter.publish(text)?;
        }
        Ok(found)
    }

    fn locks(&mut self) -> Result<Result<Scanned, String>, Failure> {
        let mut inspector = match self.inspector.take() {
            Some(inspector) => Ok(inspector),
            None => connect::inspector(self.server),
        };
        let locks = match &mut inspector {
            Ok(inspector) => ls::locks(inspector, &self.arguments.pattern),
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
fn stream(looker: &mut Looker<'_>) -> Result<u8, Failure> {
    let arguments = looker.arguments;
    if let Some(file) = looker.exporter.file() {
        on_signals(&SIGNALS, move |_| file.remove(), || ())?;
    }
    let (mut away, mut is_slow) = (None, false);
    loop {
        let look = looker.look()?;
        let time = iso(SystemTime::now());
        let (text, pause) = match look {
            Err(text) => {
                let line = match arguments.json {
                    true => format!("{}\n", json!({ "time": time, "error": text })),
                    false => String::new(),
                };
                if away.as_ref() != Some(&text) {
                    crate::complain(&format!("{time} {text}"));
                }
                away = Some(text);
                (line, arguments.interval)
            }
            Ok(look) => {
                away = None;
                let pause = look.pause(arguments.interval);
                if pause > arguments.interval && !mem::replace(&mut is_slow, true) {
                    let (cost, pause) = (look.cost(), whole_span(pause));
                    crate::complain(&format!(
                        "a look takes {cost}, so the next one comes after {pause}"
                    ));
                }
                let text = match arguments.json {
                    true => {
                        let locks: Vec<_> = look.scanned.locks.iter().map(Held::as_json).collect();
                        let took = u64::try_from(look.took.as_millis()).unwrap_or(u64::MAX);
                        let told = json!({
                            "time": time,
                            "scans": look.scanned.scans,
                            "look_ms": took,
                            "locks": locks,
                        });
                        format!("{told}\n")
                    }
                    false => {
                        let changes = look.changes.iter();
                        changes.map(|change| format!("{time} {change}\n")).collect()
                    }
                };
                (text, pause)
            }
        };
        if !crate::is_read(text.as_bytes())? || reader_left(pause) {
            return Ok(0);
        }
    }
}

/// A time in UTC, as ISO 8601 writes it.
fn iso(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (mut days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut month) = (1970, 1);
    loop {
        let length = match month {
            2 => 28 + u64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if days < length {
            break;
        }
        days -= length;
        (year, month) = if month == 12 {
            (year + 1, 1)
        } else {
            (year, month + 1)
        };
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let ms = since.subsec_millis();
    let day = days + 1;
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
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
fn live(looker: &mut Looker<'_>) -> Result<(), Failure> {
    let _screen = Screen::enter()?;
    let file = looker.exporter.file();
    let before = move |signal| {
        // A stopped program goes on.
        if signal != SIGTSTP
            && let Some(file) = &file
        {
            file.remove();
        }
        leave();
    };
    let signals = [&SIGNALS[..], &[SIGTSTP]].concat();
    on_signals(&signals, before, || drop(enter()))?;
    let interval = looker.arguments.interval;
    let start = Instant::now();
    let (mut page, mut top) = (Page::default(), 0);
    loop {
        let now = Instant::now();
        let pause = match looker.look()? {
            Ok(look) => {
                page.away = None;
                page.fill(look, looker, now, now - start);
                page.pause
            }
            Err(text) => {
                page.away = Some(shown(&text));
                interval
            }
        };
        let until = Instant::now() + pause;
        loop {
            let rows = draw(&page, &mut top).map_err(ended)?;
            match wait(until).map_err(ended)? {
                Some(Key::End) => return Ok(()),
                Some(Key::Resized) => {}
                Some(Key::Down(lines)) => top = top.saturating_add(lines.min(rows)),
                Some(Key::Up(lines)) => top = top.saturating_sub(lines.min(rows)),
                Some(Key::First) => top = 0,
                Some(Key::Last) => top = usize::MAX,
                None => break,
            }
        }
    }
}

/// An event of the terminal.
#[derive(Debug, Clone, Copy)]
enum Key {
    End,
    Resized,
    /// By so many lines, at most those of the screen.
    Down(usize),
    Up(usize),
    First,
    Last,
}

/// Waits for an event of the terminal; `None` when it is time for the next look.
fn wait(until: Instant) -> io::Result<Option<Key>> {
    while event::poll(until.saturating_duration_since(Instant::now()))? {
        let key = match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => Key::End,
                    KeyCode::Char('c' | 'd') if control => Key::End,
                    KeyCode::Down | KeyCode::Char('j') => Key::Down(1),
                    KeyCode::Up | KeyCode::Char('k') => Key::Up(1),
                    KeyCode::PageDown | KeyCode::Char(' ') => Key::Down(usize::MAX),
                    KeyCode::PageUp => Key::Up(usize::MAX),
                    KeyCode::Home => Key::First,
                    KeyCode::End => Key::Last,
                    _ => continue,
                }
            }
            Event::Resize(..) => Key::Resized,
            _ => continue,
        };
        return Ok(Some(key));
    }
    Ok(None)
}

/// A signal ends the program.
const SIGNALS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Has a thread do this before a signal does what it does to every program, and that if the program goes
/// on. The main thread cannot: crossterm reads on and on from a terminal that is gone. A signal that is
/// ignored stays ignored, as nohup(1) wants it.
fn on_signals(
    signals: &[i32],
    before: impl Fn(i32) + Send + 'static,
    after: impl Fn() + Send + 'static,
) -> Result<(), Failure> {
    let is_heard = |number: &&i32| !Signal::try_from(**number).is_ok_and(is_ignored);
    let mut signals = Signals::new(signals.iter().filter(is_heard)).map_err(broken)?;
    spawn("redlatch-signals", move || {
        for signal in signals.forever() {
            let drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
            before(signal);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            after();
            drop(drawing);
        }
    })
    .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    Ok(())
}

/// Held by the thread that writes to the terminal.
static DRAWING: Mutex<()> = Mutex::new(());

/// What the screen shows of a look.
#[derive(Default)]
struct Page {
    /// Why the servers cannot be reached, if so.
    away: Option<String>,
    titles: Vec<String>,
    /// The names of the columns, and a row for each holder.
    table: Vec<Vec<String>>,
    /// The time until the next look.
    pause: Duration,
}

impl Page {
    fn fill(&mut self, look: Look, looker: &Looker<'_>, now: Instant, since: Duration) {
        let (arguments, history) = (looker.arguments, &looker.history);
        self.table = ls::table(&look.scanned.locks);
        let times = look.scanned.locks.iter().flat_map(|held| {
            held.owners
                .iter()
                .map(move |owner| history.owned_for(held, &owner.name, now))
        });
        // The time since this owner was first seen stands before the rest of the lease.
        let times = std::iter::once("HELD".to_owned()).chain(times.map(whole_span));
        for (row, time) in self.table.iter_mut().zip(times) {
            row.insert(ls::ENDS_IN, time);
        }
        let Seen {
            taken,
            freed,
            passed,
            expired,
        } = history.seen;
        let rate = passed as f64 / since.as_secs_f64().max(1.0);
        self.pause = look.pause(arguments.interval);
        self.titles = vec![
            format!(
                "redlatch: {} held   a look: {}, every {}   q quits   names: {}",
                look.scanned.locks.len(),
                look.cost(),
                span(self.pause + look.took),
                shown(&arguments.pattern),
            ),
            format!(
                "seen in {}: {taken} taken, {freed} freed, {passed} passed on ({rate:.1}/s), {expired} expired",
                whole_span(since),
            ),
            String::new(),
        ];
    }

    /// The lines that stay on the screen, and those that scroll.
    fn lines(&self, width: usize) -> (Vec<String>, Vec<String>) {
        let mut lines = ls::lines(self.table.clone(), width);
        let rows = lines.split_off(lines.len().min(1));
        let head = self.away.iter().chain(&self.titles).cloned().chain(lines);
        (head.collect(), rows)
    }
}

/// Replaces the screen by this page, cut to its size, with the rows from `top` on. It corrects `top`, and
/// tells how many rows are shown.
fn draw(page: &Page, top: &mut usize) -> io::Result<usize> {
    // A terminal over a serial line does not know its size.
    let (width, height) = match terminal::size()? {
        (0, _) | (_, 0) => (80, 24),
        known => known,
    };
    let (width, height) = (usize::from(width), usize::from(height));
    let (mut lines, rows) = page.lines(width);
    let mut room = height.saturating_sub(lines.len());
    let fits = rows.len() <= room;
    if fits {
        *top = 0;
    } else {
        room = room.saturating_sub(1);
        *top = (*top).min(rows.len() - room);
    }
    let shown: Vec<String> = rows.iter().skip(*top).take(room).cloned().collect();
    let count = shown.len();
    lines.extend(shown);
    if !fits {
        let (first, last) = (*top + 1, *top + count);
        lines.push(format!(
            "rows {first} to {last} of {}: arrow and page keys scroll",
            rows.len()
        ));
    }
    let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = io::stdout().lock();
    for (row, line) in lines.iter().take(height).enumerate() {
        let cut = cut(line, width);
        queue!(
            out,
            cursor::MoveTo(0, u16::try_from(row).unwrap_or(u16::MAX)),
            Clear(ClearType::CurrentLine)
        )?;
        write!(out, "{cut}")?;
    }
    if lines.len() < height {
        queue!(
            out,
            cursor::MoveToNextLine(1),
            Clear(ClearType::FromCursorDown)
        )?;
    }
    out.flush()?;
    Ok(count)
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
    fn a_look_at_many_keys_has_a_small_share_of_the_time() {
        let look = |scans, ms| Look {
            scanned: Scanned {
                locks: Vec::new(),
                scans,
                servers: 2,
            },
            changes: Vec::new(),
            took: Duration::from_millis(ms),
        };
        let interval = Duration::from_secs(1);
        assert_eq!(look(999, 500).pause(interval), Duration::from_millis(9500));
        assert_eq!(look(999, 500).cost(), "999 SCANs in 0.50 s");
        assert_eq!(look(3, 1).pause(interval), interval);
        assert_eq!(look(2, 500).pause(interval), interval, "a slow network");
    }

    #[test]
    fn a_time_is_written_in_utc() {
        let written = |seconds| iso(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds));
        assert_eq!(written(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(written(951_868_799_999), "2000-02-29T23:59:59.999Z");
        assert_eq!(written(951_868_800_000), "2000-03-01T00:00:00.000Z");
        assert_eq!(written(4_133_980_799_000), "2100-12-31T23:59:59.000Z");
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
