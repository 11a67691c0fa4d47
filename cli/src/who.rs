//! `redlatch who`: the holder of a lock.

use redlatch::embed::LockExt;
use redlatch::{Error, ErrorKind, Kind, Lock};
use serde_json::json;

use crate::arguments::{Server, Who};
use crate::failure::Failure;
use crate::held::Held;
use crate::processes::Processes;
use crate::shown::shown;
use crate::{connect, scan, waiters};

/// The exit code for a lock that nobody holds.
const FREE: u8 = 1;

/// A lock that is not held, for people: its name comes before it.
const IS_FREE: &str = "is free";
/// A plain semaphore, a latch, and a semaphore whose permits are all free look alike.
const IS_NUMBER: &str = "is a number: the permits of a semaphore, or the count of a latch";

pub(crate) fn who(server: &Server, arguments: &Who) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let found = find(server, &lock)?;
    client.close().wait()?;
    let text = match (arguments.json, &found) {
        (true, Ok(held)) => held.as_json().to_string(),
        (true, Err(_)) => json!({ "name": lock.name(), "held": false }).to_string(),
        (false, Ok(held)) => held.as_text(),
        (false, Err(state)) => format!("{} {state}", shown(lock.name())),
    };
    crate::print(format!("{text}\n").as_bytes())?;
    Ok(if found.is_ok() { 0 } else { FREE })
}

/// The lock as it is held now, with processes and waiters; `None` if it is free.
pub(crate) fn look(server: &Server, lock: &Lock) -> Result<Option<Held>, Failure> {
    Ok(find(server, lock)?.ok())
}

/// As [`look`], and how it is if it is not held.
fn find(server: &Server, lock: &Lock) -> Result<Result<Held, &'static str>, Failure> {
    let mut inspector = connect::inspector(server)?;
    let held = match holder(lock) {
        // The other side may be held.
        Ok(None) if matches!(lock.kind(), Kind::Read | Kind::Write) => {
            scan::lock(&mut inspector, lock.name())?
        }
        // It has many holders, and each of them an end of its own. One is known.
        Ok(Some(known)) if lock.kind() == Kind::Semaphore => {
            let stored = scan::lock(&mut inspector, lock.name());
            Some(stored.ok().flatten().unwrap_or(Held {
                more: true,
                ..known
            }))
        }
        // Another kind than was asked for. A read-write lock of Redisson has many holders.
        Err(error) if error.kind() == ErrorKind::ForeignKind => {
            match scan::lock(&mut inspector, lock.name())? {
                Some(stored) => Some(stored),
                None if scan::is_semaphore(&mut inspector, lock.name())? => {
                    return Ok(Err(IS_NUMBER));
                }
                None => return Err(error.into()),
            }
        }
        held => held?,
    };
    let Some(mut held) = held else {
        return Ok(Err(IS_FREE));
    };
    Processes::read(&mut inspector)?.fill(&mut held);
    waiters::fill(&mut inspector, std::slice::from_mut(&mut held))?;
    Ok(Ok(held))
}

/// The lock as it is held now; `None` if it is free. The processes are not known yet.
pub(crate) fn holder(lock: &Lock) -> Result<Option<Held>, Error> {
    let holder = lock.holder().wait()?;
    Ok(holder.map(|holder| Held::new(lock.name(), lock.kind(), holder)))
}

/// One line about a lock, for people.
pub(crate) fn as_text(name: &str, held: Option<&Held>) -> String {
    held.map_or_else(|| format!("{} {IS_FREE}", shown(name)), Held::as_text)
}
