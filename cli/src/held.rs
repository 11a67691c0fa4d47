//! A lock that is held, as `who`, `ls` and `watch` show it.

use std::time::Duration;

use redlatch::{Holder, Kind, Permits, Process, embed};
use serde_json::{Value, json};

use crate::shown::{cut, shown};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    /// More than one for the readers of a read-write lock, and for a semaphore.
    pub(crate) owners: Vec<Owner>,
    /// There may be others, which were not read.
    pub(crate) more: bool,
    /// How long it lives without a renewal. `None` if it has no expiry.
    pub(crate) remaining: Option<Duration>,
    /// How many clients wait, at most; `None` if the server does not tell.
    pub(crate) waiting: Option<u64>,
    /// All permits of a semaphore and the free ones, if they were asked for.
    pub(crate) permits: Option<Permits>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// As it is stored in Redis.
    pub(crate) name: String,
    pub(crate) levels: u32,
    /// The process, if one of redlatch's connections belongs to this owner.
    pub(crate) process: Option<Process>,
}

impl Owner {
    pub(crate) fn new(name: String, levels: u32) -> Self {
        Owner {
            name,
            levels,
            process: None,
        }
    }

    /// The process and the owner, for people.
    pub(crate) fn as_text(&self) -> String {
        match &self.process {
            Some(process) => format!("{} (owner {})", as_text(process), shown(&self.name)),
            None => shown(&self.name),
        }
    }

    /// What people look for first, for a column of a table: the program, or a part of the owner.
    fn brief(&self) -> String {
        let Some(process) = &self.process else {
            return match self.name.rsplit_once(':') {
                Some((id, number)) if is_long(id) => shown(&format!("{}:{number}", begin(id))),
                _ if is_long(&self.name) => shown(&begin(&self.name)),
                _ => shown(&self.name),
            };
        };
        let mut options = embed::all_options();
        // Without a name of its own its language says most.
        let is_default = options
            .any(|option| option.name == "client_name" && option.default == process.client_name);
        let program = match is_default {
            true => &process.language,
            false => &process.client_name,
        };
        shown(&format!(
            "{program} on {}, pid {}",
            process.host, process.pid
        ))
    }

    fn as_json(&self) -> Value {
        json!({
            "owner": self.name,
            "levels": self.levels,
            "client": self.process.as_ref().map(|process| json!({
                "name": process.client_name,
                "id": process.id,
                "language": process.language,
                "pid": process.pid,
                "host": process.host,
            })),
        })
    }
}

/// Whether a table shows only the begin of this id.
fn is_long(id: &str) -> bool {
    id.len() > 20
}

fn begin(id: &str) -> String {
    format!("{}…", cut(id, 8))
}

/// A process, for people.
fn as_text(process: &Process) -> String {
    let Process {
        client_name,
        language,
        pid,
        host,
        ..
    } = process;
    shown(&format!(
        "{client_name}, {language}, process {pid} on {host}"
    ))
}

impl Held {
    pub(crate) fn new(name: &str, kind: Kind, holder: Holder) -> Self {
        Held {
            name: name.to_owned(),
            kind: kind.name(),
            owners: vec![Owner::new(holder.owner, holder.count)],
            more: false,
            remaining: holder.remaining,
            waiting: None,
            permits: None,
        }
    }

    /// The kind without what only those who wait tell, so that it stays the same while it is held.
    pub(crate) fn stored_kind(&self) -> &'static str {
        match Kind::named(self.kind) {
            Some(Kind::Fair) => Kind::Reentrant.name(),
            _ => self.kind,
        }
    }

    /// The owners with their levels. Processes come and go with their connections.
    pub(crate) fn holders(&self) -> Vec<(&str, u32)> {
        let owners = self.owners.iter();
        owners.map(|owner| (&*owner.name, owner.levels)).collect()
    }

    /// Each holder, for a column of a table.
    pub(crate) fn brief_holders(&self) -> impl Iterator<Item = String> {
        let brief = |owner: &Owner| format!("{}{}", owner.brief(), self.levels(owner.levels));
        self.owners.iter().map(brief)
    }

    /// One line, for people.
    pub(crate) fn as_text(&self) -> String {
        let owners: Vec<String> = self
            .owners
            .iter()
            .map(|owner| format!("{}{}", owner.as_text(), self.levels(owner.levels)))
            .collect();
        let end = match self.remaining {
            Some(time) => format!("ends in {} unless it is renewed", span(time)),
            None => "never ends by itself".to_owned(),
        };
        let waiting = match self.waiting {
            None | Some(0) => String::new(),
            Some(1) => "; 1 client waits".to_owned(),
            Some(count) => format!("; {count} clients wait"),
        };
        let more = if self.more { " and perhaps others" } else { "" };
        let owners = owners.join(" and ") + more;
        format!("{} {owners}, {end}{waiting}", self.state())
    }

    /// The kind of lock where that matters to people, and how it stands.
    fn state(&self) -> String {
        let name = shown(&self.name);
        match Kind::named(self.kind) {
            Some(Kind::Read) => format!("the read side of {name} is held by"),
            Some(Kind::Write) => format!("the write side of {name} is held by"),
            Some(Kind::Semaphore) => {
                let permits = match self.permits {
                    Some(permits) => of_all(permits),
                    None => {
                        let taken: u32 = self.owners.iter().map(|owner| owner.levels).sum();
                        format!("{taken} permits")
                    }
                };
                format!("the semaphore {name} has {permits} taken, by")
            }
            _ => format!("{name} is held by"),
        }
    }

    /// The levels of an owner, or its permits, unless it has one.
    fn levels(&self, count: u32) -> String {
        match (count, self.kind == Kind::Semaphore.name()) {
            (1, _) => String::new(),
            (count, true) => format!(", {count} permits"),
            (count, false) => format!(", {count} levels"),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        let owners: Vec<Value> = self.owners.iter().map(Owner::as_json).collect();
        let mut told = json!({
            "name": self.name,
            "held": true,
            "kind": self.kind,
            "remaining_ms": self.remaining.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            "holders": owners,
            "more": self.more,
            "waiting": self.waiting,
        });
        if let Some(permits) = self.permits {
            told["permits"] = as_json(permits);
        }
        told
    }
}

/// How many of how many permits, for people.
pub(crate) fn of_all(permits: Permits) -> String {
    let taken = permits.limit - permits.available;
    format!("{taken} of {} permits", permits.limit)
}

pub(crate) fn as_json(permits: Permits) -> Value {
    json!({ "limit": permits.limit, "taken": permits.limit - permits.available })
}

/// A time for people: tenths of seconds where they matter.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{:.1} s", time.as_secs_f64()),
        _ => whole_span(time),
    }
}

/// A time for people, in whole seconds or more.
pub(crate) fn whole_span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min {} s", seconds % 60),
        7200..172_800 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_is_told_in_two_units() {
        let told = |seconds| span(Duration::from_secs(seconds));
        let all = [28, 119, 120, 7199, 7200, 10_798, 172_800].map(told);
        let wanted = [
            "28.0 s",
            "119.0 s",
            "2 min 0 s",
            "119 min 59 s",
            "2 h 0 min",
            "2 h 59 min",
            "2 d 0 h",
        ];
        assert_eq!(all, wanted);
        assert_eq!(whole_span(Duration::from_millis(28_900)), "28 s");
    }
}
