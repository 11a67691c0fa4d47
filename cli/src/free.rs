//! `redlatch free`: deletes a lock whoever holds it.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::arguments::{Free, Server};
use crate::failure::{Exit, Failure};
use crate::held::Held;
use crate::{connect, scan, who};

/// The exit code when the answer is no.
const DECLINED: u8 = 1;

pub(crate) fn free(server: &Server, arguments: &Free) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let mut held = who::holder(&lock)?;
    refuse_data(held.as_ref())?;
    while let Some(asked) = held.as_ref().filter(|_| !arguments.yes) {
        if !confirmed(&asked.as_text())? {
            crate::complain("nothing was changed");
            return Ok(DECLINED);
        }
        // The answer is about the holder that was shown.
        let now = who::holder(&lock)?;
        if now.as_ref().map(|now| &now.owners) == Some(&asked.owners) {
            break;
        }
        held = now;
    }
    let state = who::as_text(lock.name(), held.as_ref());
    let deleted = lock.force_release().wait()?;
    client.close().wait()?;
    let text = match deleted {
        true => format!("deleted. Before: {state}\n"),
        false => format!("{}; nothing was changed\n", who::as_text(lock.name(), None)),
    };
    crate::print(text.as_bytes())
}

/// A hash of one field, or a text, may be data. A lock has an expiry, or an owner of a known form.
///
/// # Errors
/// The key looks like no lock.
fn refuse_data(held: Option<&Held>) -> Result<(), Failure> {
    let is_data = |held: &&Held| {
        let mut owners = held.owners.iter();
        held.remaining.is_none() && !owners.all(|owner| scan::is_known_owner(&owner.name))
    };
    match held.filter(is_data) {
        Some(held) => Err(Failure::new(
            Exit::Foreign,
            format!(
                "{}, and looks like no lock: it has no expiry, and its owner is none of redlatch's or Redisson's",
                held.as_text()
            ),
        )),
        None => Ok(()),
    }
}

/// Asks on the terminal.
///
/// # Errors
/// `--yes` is missing, and there is nobody to ask.
fn confirmed(state: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(
            Exit::Usage,
            format!("{state}; standard input is no terminal, so say --yes to delete it"),
        ));
    }
    let mut answer = String::new();
    let asked = write!(
        io::stderr(),
        "{state}.\nIts holder may still be at work. Delete it? [y/N] "
    )
    .and_then(|()| io::stdin().lock().read_line(&mut answer));
    Ok(asked.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
