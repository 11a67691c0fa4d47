//! `redlatch ls`: the locks that are held.

use redlatch::embed::Inspector;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::arguments::{Ls, Server};
use crate::failure::Failure;
use crate::held::{Held, span};
use crate::processes::Processes;
use crate::scan::Scanned;
use crate::shown::{end, shown};
use crate::{connect, scan, waiters};

pub(crate) fn ls(server: &Server, arguments: &Ls) -> Result<u8, Failure> {
    let Scanned { locks, .. } = locks(&mut connect::inspector(server)?, &arguments.pattern)?;
    let text = match arguments.json {
        true => {
            let all: Vec<Value> = locks.iter().map(Held::as_json).collect();
            format!("{}\n", Value::from(all))
        }
        false => {
            let lines = lines(table(&locks), usize::MAX);
            lines.iter().map(|line| format!("{line}\n")).collect()
        }
    };
    crate::print(text.as_bytes())
}

/// The locks whose names fit the pattern, with processes and waiters.
pub(crate) fn locks(inspector: &mut Inspector, pattern: &str) -> Result<Scanned, Failure> {
    let mut scanned = scan::locks(inspector, pattern)?;
    let processes = Processes::read(inspector)?;
    for held in &mut scanned.locks {
        processes.fill(held);
    }
    waiters::fill(inspector, &mut scanned.locks)?;
    Ok(scanned)
}

const COLUMNS: usize = 5;
/// Before this column `watch` has one of its own.
pub(crate) const ENDS_IN: usize = 2;

/// A head line, and one line for each holder.
pub(crate) fn table(locks: &[Held]) -> Vec<Vec<String>> {
    let head: [&str; COLUMNS] = ["NAME", "KIND", "ENDS IN", "WAITING", "HOLDER"];
    let rows = locks.iter().flat_map(|held| {
        let end = held.remaining.map_or_else(|| "never".to_owned(), span);
        let waiting = held
            .waiting
            .map_or_else(|| "?".to_owned(), |count| count.to_string());
        held.brief_holders().map(move |holder| {
            let kind = held.kind.to_owned();
            vec![
                shown(&held.name),
                kind,
                end.clone(),
                waiting.clone(),
                holder,
            ]
        })
    });
    let head = head.map(str::to_owned).to_vec();
    std::iter::once(head).chain(rows).collect()
}

/// The shortest part of a name that a line is left with.
const SHORTEST_NAME: usize = 16;

/// The rows in columns. Of a name that is too long for this width its end is shown.
pub(crate) fn lines(mut rows: Vec<Vec<String>>, width: usize) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width_of = |rows: &[Vec<String>], column: usize| {
        let widths = rows.iter().map(|row| row[column].width());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width_of(&rows, column)).collect();
    let whole = widths
        .iter()
        .map(|width| width + 2)
        .sum::<usize>()
        .saturating_sub(2);
    if let (Some(names), Some(excess)) = (widths.first(), whole.checked_sub(width)) {
        let room = names.saturating_sub(excess).max(SHORTEST_NAME);
        for row in &mut rows {
            row[0] = end(&row[0], room);
        }
    }
    let widths: Vec<usize> = (0..columns).map(|column| width_of(&rows, column)).collect();
    let line = |row: &Vec<String>| {
        let cells = std::iter::zip(row, &widths)
            .map(|(cell, width)| format!("{cell}{:1$}", "", width - cell.width()));
        cells
            .collect::<Vec<String>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_them() {
        let row = |name: &str, holder: &str| vec![name.to_owned(), holder.to_owned()];
        let rows = || vec![row("注文", "x"), row("a", "xy")];
        assert_eq!(lines(rows(), 8), ["注文  x", "a     xy"]);
        assert_eq!(
            lines(rows(), 7),
            lines(rows(), 8),
            "a short name stays whole"
        );
        let long = |width| lines(vec![row(&"orders:42".repeat(3), "x")], width);
        assert_eq!(long(30), [format!("{}  x", "orders:42".repeat(3))]);
        assert_eq!(long(23), ["…2orders:42orders:42  x"]);
    }
}
