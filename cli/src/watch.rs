//! `redlatch watch`: the locks that are held, again and again.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, queue, terminal};
use redlatch::embed::Inspector;
use serde_json::json;

use crate::arguments::{Server, Watch};
use crate::failure::{Exit, Failure};
use crate::held::Held;
use crate::{connect, ls};

pub(crate) fn watch(server: &Server, arguments: &Watch) -> Result<u8, Failure> {
    let mut inspector = connect::inspector(server)?;
    if arguments.json || !io::stdout().is_terminal() {
        return stream(&mut inspector, arguments);
    }
    let screen = Screen::enter()?;
    let outcome = live(&mut inspector, arguments);
    // The error is told on the normal screen.
    drop(screen);
    outcome.map(|()| 0)
}

/// One line for each look: an array of JSON objects, or a change for people.
fn stream(inspector: &mut Inspector, arguments: &Watch) -> Result<u8, Failure> {
    let mut history = History::default();
    loop {
        let locks = ls::locks(inspector, &arguments.pattern)?;
        let changes = history.note(&locks, Instant::now());
        let text = match arguments.json {
            true => format!(
                "{}\n",
                json!({ "locks": locks.iter().map(Held::as_json).collect::<Vec<_>>() })
            ),
            false => changes.iter().map(|change| format!("{change}\n")).collect(),
        };
        if !crate::is_read(text.as_bytes())? {
            return Ok(0);
        }
        std::thread::sleep(arguments.interval);
    }
}

/// Shows the table until `q`, Escape or Ctrl-C.
fn live(inspector: &mut Inspector, arguments: &Watch) -> Result<(), Failure> {
    let (mut history, start) = (History::default(), Instant::now());
    loop {
        let now = Instant::now();
        let locks = ls::locks(inspector, &arguments.pattern)?;
        history.note(&locks, now);
        draw(&page(
            &locks,
            &history,
            &arguments.pattern,
            now,
            now - start,
        ))
        .map_err(broken)?;
        if wait(now + arguments.interval).map_err(broken)? {
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

/// The lines of the screen.
fn page(locks: &[Held], history: &History, pattern: &str, now: Instant, since: Duration) -> String {
    let mut rows = ls::table(locks);
    let times = locks
        .iter()
        .flat_map(|held| held.owners.iter().map(move |_| history.held_for(held, now)));
    for (row, time) in rows.iter_mut().skip(1).zip(times) {
        // The time since this owner was first seen stands before the rest of the lease.
        row[3] = format!("{} / {}", whole_seconds(time), row[3]);
    }
    if let Some(head) = rows.first_mut() {
        head[3] = "HELD / ENDS IN".to_owned();
    }
    let Seen {
        taken,
        freed,
        passed,
    } = history.seen;
    format!(
        "redlatch watch {pattern}   {} held   seen in {}: {taken} taken, {freed} freed, {passed} passed on   q quits\n\n{}",
        locks.len(),
        whole_seconds(since),
        ls::lines(&rows)
    )
}

fn whole_seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

/// Replaces the screen by these lines, cut to its size.
fn draw(page: &str) -> io::Result<()> {
    // A terminal over a serial line does not know its size.
    let (width, height) = match terminal::size()? {
        (0, _) | (_, 0) => (80, 24),
        known => known,
    };
    let mut out = io::stdout().lock();
    queue!(out, cursor::MoveTo(0, 0))?;
    for line in page.lines().take(usize::from(height)) {
        let cut: String = line.chars().take(usize::from(width)).collect();
        write!(out, "{cut}")?;
        queue!(
            out,
            Clear(ClearType::UntilNewLine),
            cursor::MoveToNextLine(1)
        )?;
    }
    queue!(out, Clear(ClearType::FromCursorDown))?;
    out.flush()
}

/// The alternate screen without a cursor; dropping it gives the terminal back as it was.
struct Screen;

impl Screen {
    fn enter() -> Result<Self, Failure> {
        terminal::enable_raw_mode().map_err(broken)?;
        let screen = Screen;
        let mut out = io::stdout();
        queue!(out, EnterAlternateScreen, cursor::Hide)
            .and_then(|()| out.flush())
            .map_err(broken)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout();
        // A terminal that is gone cannot be restored.
        let _ = queue!(out, LeaveAlternateScreen, cursor::Show).and_then(|()| out.flush());
        let _ = terminal::disable_raw_mode();
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("cannot use the terminal: {error}"))
}

/// Since when each lock has its owners, as far as it was looked at.
#[derive(Debug, Default)]
struct History {
    since: BTreeMap<String, (Vec<String>, Instant)>,
    seen: Seen,
}

/// Changes between two looks. What happened and was undone in between is not counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    taken: u64,
    freed: u64,
    passed: u64,
}

impl History {
    /// Compares to the look before, and tells the changes.
    fn note(&mut self, locks: &[Held], now: Instant) -> Vec<String> {
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.since);
        for held in locks {
            let owners: Vec<String> = held.owners.iter().map(|owner| owner.name.clone()).collect();
            let since = match before.remove(&held.name) {
                Some((known, since)) if known == owners => since,
                known => {
                    match known {
                        Some(_) => self.seen.passed += 1,
                        None => self.seen.taken += 1,
                    }
                    changes.push(held.as_text());
                    now
                }
            };
            self.since.insert(held.name.clone(), (owners, since));
        }
        for name in before.into_keys() {
            self.seen.freed += 1;
            changes.push(format!("{name} is free"));
        }
        changes
    }

    fn held_for(&self, held: &Held, now: Instant) -> Duration {
        self.since
            .get(&held.name)
            .map_or(Duration::ZERO, |(_, since)| {
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
            waiting: None,
        }
    }

    #[test]
    fn changes_are_told_and_times_are_those_of_an_owner() {
        let (mut history, start) = (History::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            history.note(&[held("a", "x"), held("b", "x")], at(0)).len(),
            2
        );
        assert!(
            history
                .note(&[held("a", "x"), held("b", "x")], at(1))
                .is_empty()
        );
        let changes = history.note(&[held("a", "y")], at(5));
        assert!(changes[0].starts_with("a is held by y"), "{changes:?}");
        assert_eq!(changes[1..], ["b is free"]);
        assert_eq!(
            history.held_for(&held("a", "y"), at(7)),
            Duration::from_secs(2)
        );
        let seen = Seen {
            taken: 2,
            freed: 1,
            passed: 1,
        };
        assert_eq!(history.seen, seen);
    }
}
