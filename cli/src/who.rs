//! `redlatch who`: the holder of a lock.

use redlatch::embed::{Inspector, LockExt};
use redlatch::{Client, Error, ErrorKind, Kind, Lock};
use serde_json::json;

use crate::arguments::{Server, Who};
use crate::failure::Failure;
use crate::held::Held;
use crate::processes::Processes;
use crate::scan::Found;
use crate::shown::shown;
use crate::{connect, permits, scan, waiters};

/// The exit code for a lock that nobody holds.
const FREE: u8 = 1;

pub(crate) fn who(server: &Server, arguments: &Who) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let found = look(server, &client, &lock)?;
    client.close().wait()?;
    let name = lock.name();
    let text = match (arguments.json, &found) {
        (true, Found::Held(held)) => held.as_json().to_string(),
        (true, Found::Number(number)) => {
            json!({ "name": name, "held": false, "number": number }).to_string()
        }
        (true, Found::Nothing) => json!({ "name": name, "held": false }).to_string(),
        (false, found) => as_text(name, found),
    };
    crate::print(format!("{text}\n").as_bytes())?;
    Ok(match found {
        Found::Held(_) => 0,
        Found::Number(_) | Found::Nothing => FREE,
    })
}

/// The lock as it is held now, with processes and waiters, or what else its name has.
pub(crate) fn look(server: &Server, client: &Client, lock: &Lock) -> Result<Found, Failure> {
    let mut inspector = connect::inspector(server)?;
    let found = match inspector.needed() {
        1 => stored(&mut inspector, lock)?,
        // It has a key on each server.
        _ => scan::lock(&mut inspector, lock.name())?,
    };
    let Found::Held(mut held) = found else {
        return Ok(found);
    };
    Processes::read(&mut inspector)?.fill(&mut held);
    waiters::fill(&mut inspector, std::slice::from_mut(&mut held))?;
    if held.kind == Kind::Semaphore.name() {
        held.permits = permits::semaphore(client, lock.name())?
            .permits()
            .wait()
            .ok();
    }
    Ok(Found::Held(held))
}

/// The lock of one server, as the client sees it, or as it is stored where that says more.
fn stored(inspector: &mut Inspector, lock: &Lock) -> Result<Found, Failure> {
    Ok(match holder(lock) {
        // The other side may be held.
        Ok(None) if matches!(lock.kind(), Kind::Read | Kind::Write) => {
            scan::lock(inspector, lock.name())?
        }
        // It has many holders, and each of them an end of its own. One is known.
        Ok(Some(known)) if lock.kind() == Kind::Semaphore => {
            let stored = scan::lock(inspector, lock.name());
            match stored {
                Ok(Found::Held(stored)) => Found::Held(stored),
                _ => Found::Held(Held {
                    more: true,
                    ..known
                }),
            }
        }
        // Another kind than was asked for. A read-write lock of Redisson has many holders.
        Err(error) if error.kind() == ErrorKind::ForeignKind => {
            match scan::lock(inspector, lock.name())? {
                Found::Nothing => return Err(error.into()),
                found => found,
            }
        }
        held => held?.map_or(Found::Nothing, Found::Held),
    })
}

/// The lock as it is held now; `None` if it is free. The processes are not known yet.
pub(crate) fn holder(lock: &Lock) -> Result<Option<Held>, Error> {
    let holder = lock.holder().wait()?;
    Ok(holder.map(|holder| Held::new(lock.name(), lock.kind(), holder)))
}

/// One line about a name, for people.
pub(crate) fn as_text(name: &str, found: &Found) -> String {
    let name = shown(name);
    match found {
        Found::Held(held) => held.as_text(),
        Found::Number(number) => format!(
            "{name} is the number {number}: the count of a latch, or the free permits of a semaphore, plain or with none taken"
        ),
        Found::Nothing => format!("{name} is free"),
    }
}
