//! A quorum, as far as every driver does the same: what it refuses, the parts of its locks, and which
//! servers have a vote. A driver has the connections.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Input, Part, Terms};
use crate::error::{Error, ErrorKind, Result};
use crate::outbox::News;
use crate::wire::servers::{majority, name_at};
use crate::wire::{Kind, Layout, Name};

/// The servers of a quorum, as they stand in names, in the order in which all clients wait for them.
#[derive(Debug, Clone)]
pub struct Members(Arc<[Arc<str>]>);

impl Members {
    /// The servers with these addresses. A URL may name them in any order. Clients that wait in two orders
    /// could wait in a circle.
    pub fn new(shown: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<Arc<str>> = shown.into_iter().map(Arc::from).collect();
        all.sort_unstable();
        Members(all.into())
    }

    /// The locks that the lock of this name is made of, and how many of them make it held.
    pub fn parts(&self, name: &str, terms: Terms) -> (Arc<[Part]>, usize) {
        let part = |server: &Arc<str>| Part {
            name: name_at(name, server),
            terms,
        };
        (self.0.iter().map(part).collect(), majority(self.0.len()))
    }
}

/// Passes on what a server reports, with the names that the engine knows.
pub fn pass_on(heard: News, server: &str, news: &mut News) {
    news.connects += heard.connects;
    news.events.extend(heard.events);
    let name = |key: Name| name_at(&key, server);
    for input in heard.inputs {
        news.tell(match input {
            Input::Subscribed(key) => Input::Subscribed(name(key)),
            Input::Unsubscribable(key, error) => Input::Unsubscribable(name(key), error),
            Input::Message(key) => Input::Message(name(key)),
            Input::Invalidated(Some(keys)) => {
                Input::Invalidated(Some(keys.into_iter().map(name).collect()))
            }
            other => other,
        });
    }
}

/// The error for something else than a lock.
pub fn has_no(what: &str) -> Error {
    Error::invalid(format!(
        "the URL names a quorum, which has locks alone, and no {what}; make a client of one of its servers"
    ))
}

/// Checks what is asked of a lock.
///
/// # Errors
/// `invalid_argument` for what needs one server that has everything.
pub fn check_lock(kind: Kind, fencing: bool) -> Result<()> {
    let text = if fencing {
        "fencing is true, but the servers of a quorum do not count together; leave it out"
            .to_owned()
    } else {
        match kind.layout() {
            Layout::Hash | Layout::Plain => return Ok(()),
            Layout::Read | Layout::Write => return Err(has_no("read-write lock")),
            Layout::Permits | Layout::QueuedPermits => return Err(has_no("semaphore")),
            Layout::Learning | Layout::Queued => format!(
                "kind is {:?}, which needs a server that has everything; a quorum takes reentrant, simple and the \
                 kinds of other libraries that are simple locks",
                kind.name()
            ),
        }
    };
    Err(Error::invalid(text))
}

/// The error for a given token: it would stand for one key of several.
pub fn takes_no_token() -> Error {
    Error::invalid("token is given, but the lock of a quorum takes none; leave it out")
}

/// Refuses a lease that a server may have forgotten when it has a vote again, `delay` after its start.
///
/// # Errors
/// `invalid_argument`.
pub fn check_lease(lease: Duration, delay: Duration) -> Result<()> {
    if delay.is_zero() || lease <= delay {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a lease of {lease:?} is longer than restart_delay, {delay:?}: a server that was restarted could vote for a second \
         owner; give the client a restart_delay of at least {lease:?}, on all clients"
    )))
}

/// The question to a server for how long it runs.
pub const INFO: [&str; 2] = ["INFO", "server"];

/// Refuses a server that has not run for long, by its answer to [`INFO`]. It may have lost the keys of locks
/// whose holders count on its vote.
///
/// # Errors
/// `unavailable`.
pub fn check_uptime(addr: &str, info: &str, least: Duration) -> Result<()> {
    let why = match uptime(info) {
        // The server counts whole seconds of its clock, so it may have run for almost one less.
        Some(runs) if runs > least => return Ok(()),
        Some(runs) => format!(
            "was started {} s ago and may have lost its locks; it has a vote when it has run for more than {least:?} (the \
             option restart_delay)",
            runs.as_secs()
        ),
        None => "does not tell how long it runs (INFO server), and may have lost its locks; set the option \
                 restart_delay to 0 if it loses nothing"
            .to_owned(),
    };
    let text = format!("the server {addr} {why}");
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// How long a server runs. It counts whole seconds.
fn uptime(info: &str) -> Option<Duration> {
    let mut lines = info.lines();
    let seconds = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_vote_when_it_has_run_for_longer_than_the_delay() {
        let checked = |info: &str, least| {
            let checked = check_uptime("h:1", info, Duration::from_secs(least));
            checked.map_err(|error| (error.kind(), error.message().to_owned()))
        };
        let told = |seconds| format!("# Server\r\nuptime_in_seconds:{seconds}\r\nhz:10\r\n");
        assert_eq!(checked(&told(31), 30), Ok(()));
        let (kind, text) = checked(&told(30), 30).expect_err("it may have run for 29.1 s");
        assert_eq!(kind, ErrorKind::Unavailable);
        assert!(
            text.starts_with("the server h:1 was started 30 s ago"),
            "{text}"
        );
        for info in ["", "uptime_in_seconds:soon", "xuptime_in_seconds:99"] {
            let (_, text) = checked(info, 30).expect_err(info);
            assert!(text.contains("does not tell how long it runs"), "{text}");
        }
    }

    #[test]
    fn all_clients_wait_for_the_servers_in_one_order() {
        let urls = [["b:1", "a:1", "c:1"], ["c:1", "b:1", "a:1"]];
        for url in urls {
            let members = Members::new(url.map(str::to_owned));
            let all: Vec<&str> = members.0.iter().map(|server| &**server).collect();
            assert_eq!(all, ["a:1", "b:1", "c:1"]);
        }
    }

    #[test]
    fn a_lease_may_be_as_long_as_the_delay() {
        let lease = Duration::from_secs(30);
        assert!(check_lease(lease, lease).is_ok());
        assert!(check_lease(lease, Duration::ZERO).is_ok());
        assert!(check_lease(lease, Duration::from_secs(29)).is_err());
    }

    #[test]
    fn a_quorum_takes_locks_of_one_key() {
        for kind in [Kind::Reentrant, Kind::Simple, Kind::Redlock, Kind::Article] {
            assert!(check_lock(kind, false).is_ok(), "{kind:?}");
            assert!(check_lock(kind, true).is_err(), "{kind:?}");
        }
        let other = [
            Kind::Fair,
            Kind::Adaptive,
            Kind::Read,
            Kind::Write,
            Kind::Semaphore,
            Kind::FairSemaphore,
        ];
        for kind in other {
            assert!(check_lock(kind, false).is_err(), "{kind:?}");
        }
    }
}
