//! `redlatch who`: the holder of a lock.

use std::time::Duration;

use redlatch::Holder;
use serde_json::json;

use crate::arguments::{Server, Who};
use crate::connect;
use crate::failure::Failure;

/// The exit code for a lock that nobody holds.
const FREE: u8 = 1;

pub(crate) fn who(server: &Server, arguments: &Who) -> Result<u8, Failure> {
    let client = connect::client(server)?;
    let lock = client.lock(&arguments.name)?;
    let holder = lock.holder().wait()?;
    let text = match arguments.json {
        true => as_json(lock.name(), holder.as_ref()),
        false => as_text(lock.name(), holder.as_ref()),
    };
    client.close().wait()?;
    crate::print(format!("{text}\n").as_bytes())?;
    Ok(if holder.is_some() { 0 } else { FREE })
}

/// One line about a lock, for people.
pub(crate) fn as_text(name: &str, holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return format!("{name} is free");
    };
    let levels = match holder.count {
        1 => String::new(),
        count => format!(", {count} levels"),
    };
    let end = match holder.remaining {
        Some(time) => format!("ends in {} unless it is renewed", seconds(time)),
        None => "never ends by itself".to_owned(),
    };
    format!("{name} is held by {}{levels}, {end}", holder.owner)
}

fn as_json(name: &str, holder: Option<&Holder>) -> String {
    let value = match holder {
        None => json!({ "name": name, "held": false }),
        Some(holder) => json!({
            "name": name,
            "held": true,
            "owner": holder.owner,
            "levels": holder.count,
            "remaining_ms": holder.remaining.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }),
    };
    value.to_string()
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
