//! `redlatch free`: deletes a lock whoever holds it.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::arguments::{Free, Server};
use crate::failure::{Exit, Failure};
use crate::{connect, who};

/// The exit code when the answer is no.
const DECLINED: u8 = 1;

pub(crate) fn free(server: &Server, arguments: &Free) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let held = who::holder(&lock)?;
    let state = who::as_text(lock.name(), held.as_ref());
    if held.is_some() && !arguments.yes && !confirmed(&state)? {
        crate::complain("nothing was changed");
        return Ok(DECLINED);
    }
    let deleted = lock.force_release().wait()?;
    client.close().wait()?;
    let text = match deleted {
        true => format!("{} was deleted; before, {state}\n", lock.name()),
        false => format!("{} is free; nothing was changed\n", lock.name()),
    };
    crate::print(text.as_bytes())
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
