//! `redlatch permits`: the number of permits of a semaphore.

use redlatch::embed::SemaphoreExt;
use redlatch::{Client, Kind, Semaphore};
use serde_json::json;

use crate::arguments::{Permits, Server};
use crate::connect;
use crate::failure::Failure;
use crate::held::{as_json, of_all};
use crate::shown::shown;

pub(crate) fn permits(server: &Server, arguments: &Permits) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let semaphore = semaphore(&client, &arguments.name)?;
    let permits = match arguments.number {
        Some(number) => semaphore.set_permits(number).wait()?,
        None => semaphore.permits().wait()?,
    };
    client.close().wait()?;
    let name = semaphore.name();
    let text = match arguments.json {
        true => json!({ "name": name, "permits": as_json(permits) }).to_string(),
        false => format!("{} of {} are taken", of_all(permits), shown(name)),
    };
    crate::print(format!("{text}\n").as_bytes())
}

/// The semaphore of this name. Its number of permits stays.
pub(crate) fn semaphore(client: &Client, name: &str) -> redlatch::Result<Semaphore> {
    let options = client.lock_options().kind(Kind::Semaphore);
    client.lock_with(name, options).map(Semaphore::of_lock)
}
