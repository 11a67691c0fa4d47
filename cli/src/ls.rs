//! `redlatch ls`: the locks that are held.

use redlatch::embed::Inspector;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::arguments::{Ls, Server};
use crate::failure::Failure;
use crate::held::{Held, span};
use crate::processes::Processes;
use crate::shown::shown;
use crate::{connect, scan, waiters};

pub(crate) fn ls(server: &Server, arguments: &Ls) -> Result<u8, Failure> {
    let locks = locks(&mut connect::inspector(server)?, &arguments.pattern)?;
    let text = match arguments.json {
        true => {
            let all: Vec<Value> = locks.iter().map(Held::as_json).collect();
            format!("{}\n", Value::from(all))
        }
        false => lines(&table(&locks)),
    };
    crate::print(text.as_bytes())
}

/// The locks whose names fit the pattern, with processes and waiters.
pub(crate) fn locks(inspector: &mut Inspector, pattern: &str) -> Result<Vec<Held>, Failure> {
    let mut locks = scan::locks(inspector, pattern)?;
    let processes = Processes::read(inspector)?;
    for held in &mut locks {
        processes.fill(held);
    }
    waiters::fill(inspector, &mut locks)?;
    Ok(locks)
}

const COLUMNS: usize = 6;
pub(crate) type Row = [String; COLUMNS];

/// A head line, and one line for each holder.
pub(crate) fn table(locks: &[Held]) -> Vec<Row> {
    let head = ["NAME", "KIND", "LEVELS", "ENDS IN", "WAITING", "HOLDER"].map(str::to_owned);
    let rows = locks.iter().flat_map(|held| {
        let end = held.remaining.map_or_else(|| "never".to_owned(), span);
        let waiting = held
            .waiting
            .map_or_else(|| "?".to_owned(), |count| count.to_string());
        held.owners.iter().map(move |owner| {
            [
                shown(&held.name),
                held.kind.to_owned(),
                owner.levels.to_string(),
                end.clone(),
                waiting.clone(),
                owner.as_text(),
            ]
        })
    });
    std::iter::once(head).chain(rows).collect()
}

/// The rows in columns. The last column is as wide as it is.
pub(crate) fn lines(rows: &[Row]) -> String {
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].width());
        widths.max().unwrap_or_default()
    };
    let widths: [usize; COLUMNS - 1] = std::array::from_fn(width);
    let line = |row: &Row| {
        let cells: Vec<String> = std::iter::zip(row, widths)
            .map(|(cell, width)| format!("{cell}{:1$}", "", width - cell.width()))
            .collect();
        format!("{}  {}\n", cells.join("  "), row[COLUMNS - 1])
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_them() {
        let row = |name: &str| -> Row { [name, "k", "1", "-", "0", "x"].map(str::to_owned) };
        let text = lines(&[row("注文"), row("a")]);
        assert_eq!(text, "注文  k  1  -  0  x\na     k  1  -  0  x\n");
    }
}
