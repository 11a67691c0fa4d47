//! `redlatch free`: deletes a lock whoever holds it.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use redlatch::embed::LockExt;
use redlatch::{Client, Error, Kind, Lock};
use serde_json::json;

use crate::arguments::{Free, Server};
use crate::failure::{self, Exit, Failure};
use crate::held::Held;
use crate::scan::Found;
use crate::{connect, scan, who};

/// The exit code when the answer is no.
const DECLINED: u8 = 1;

pub(crate) fn free(server: &Server, arguments: &Free) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let asked_for = client.lock(&arguments.name)?;
    let mut found = who::look(server, &client, &asked_for)?;
    refuse_data(&found)?;
    while let Found::Held(asked) = &found
        && !arguments.yes
    {
        if !confirmed(&asked.as_text())? {
            crate::complain("nothing was changed");
            return Ok(DECLINED);
        }
        // The answer is about the holders that were shown.
        let now = who::look(server, &client, &asked_for)?;
        if matches!(&now, Found::Held(now) if now.holders() == asked.holders()) {
            break;
        }
        found = now;
    }
    let deleted = match &found {
        Found::Held(held) => delete(server, held)?,
        Found::Number(_) | Found::Nothing => false,
    };
    client.close().wait()?;
    let name = &arguments.name;
    let (before, now) = match found {
        Found::Held(held) => (deleted.then_some(held), Found::Nothing),
        now => (None, now),
    };
    let text = match (arguments.json, before) {
        (true, before) => {
            let mut told = json!({
                "name": name,
                "deleted": deleted,
                "before": before.as_ref().map(Held::as_json),
            });
            if let Found::Number(number) = now {
                told["number"] = number.into();
            }
            told.to_string()
        }
        (false, Some(held)) => format!("deleted. Before: {}", held.as_text()),
        (false, None) => format!("{}; nothing was changed", who::as_text(name, &now)),
    };
    crate::print(format!("{text}\n").as_bytes())
}

/// Deletes it. A few servers of a quorum may be away: without most of them the lock is not held.
fn delete(server: &Server, held: &Held) -> Result<bool, Failure> {
    let clients = connect::clients_of_each(server)?;
    let spare = (clients.len() - 1) / 2;
    let (mut deleted, mut failed) = (false, Vec::new());
    for client in &clients {
        let gone = client
            .lock(&held.name)
            .and_then(|lock| as_stored(client, lock, held))
            .and_then(|lock| lock.force_release().wait());
        match gone {
            Ok(was_there) => deleted |= was_there,
            Err(error) => failed.push(error),
        }
        // All that was sent is answered.
        let _ = client.close_within(Duration::ZERO).wait();
    }
    if failed.len() <= spare {
        failed
            .iter()
            .for_each(|error| crate::complain(&failure::text(error)));
        return Ok(deleted);
    }
    Err(failed.remove(0).into())
}

/// The lock with the kind that it has on the server: the kind decides which clients are woken.
fn as_stored(client: &Client, asked_for: Lock, held: &Held) -> Result<Lock, Error> {
    let kind = match Kind::named(held.kind) {
        None => return Ok(asked_for),
        Some(kind) if kind == asked_for.kind() => return Ok(asked_for),
        // It is listed by its key.
        Some(Kind::Article) => Kind::Simple,
        Some(kind) => kind,
    };
    client.lock_with(asked_for.name(), client.lock_options().kind(kind))
}

/// A hash of one field, or a text, may be data. A lock has an expiry, or an owner of a known form.
///
/// # Errors
/// The key looks like no lock.
fn refuse_data(found: &Found) -> Result<(), Failure> {
    let is_data = |held: &Held| {
        let mut owners = held.owners.iter();
        held.remaining.is_none() && !owners.all(|owner| scan::is_known_owner(&owner.name))
    };
    match found {
        Found::Held(held) if is_data(held) => Err(Failure::new(
            Exit::Foreign,
            format!(
                "{}, and looks like no lock: it has no expiry, and its owner is none of redlatch's or Redisson's",
                held.as_text()
            ),
        )),
        _ => Ok(()),
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
