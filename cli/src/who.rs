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

pub(crate) fn who(server: &Server, arguments: &Who) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let held = look(server, &lock)?;
    client.close().wait()?;
    let text = match (arguments.json, &held) {
        (true, Some(held)) => held.as_json().to_string(),
        (true, None) => json!({ "name": lock.name(), "held": false }).to_string(),
        (false, _) => as_text(lock.name(), held.as_ref()),
    };
    crate::print(format!("{text}\n").as_bytes())?;
    Ok(if held.is_some() { 0 } else { FREE })
}

/// The lock as it is held now, with processes and waiters; `None` if it is free.
pub(crate) fn look(server: &Server, lock: &Lock) -> Result<Option<Held>, Failure> {
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
                None if scan::is_semaphore(&mut inspector, lock.name())? => None,
                None => return Err(error.into()),
            }
        }
        held => held?,
    };
    let Some(mut held) = held else {
        return Ok(None);
    };
    Processes::read(&mut inspector)?.fill(&mut held);
    waiters::fill(&mut inspector, std::slice::from_mut(&mut held))?;
    Ok(Some(held))
}

/// The lock as it is held now; `None` if it is free. The processes are not known yet.
pub(crate) fn holder(lock: &Lock) -> Result<Option<Held>, Error> {
    let holder = lock.holder().wait()?;
    Ok(holder.map(|holder| Held::new(lock.name(), lock.kind(), holder)))
}

/// One line about a lock, for people.
pub(crate) fn as_text(name: &str, held: Option<&Held>) -> String {
    held.map_or_else(|| format!("{} is free", shown(name)), Held::as_text)
}
