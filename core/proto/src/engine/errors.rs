//! The texts of errors that the engine makes.

use std::time::Duration;

use super::interface::Request;
use crate::error::{Error, ErrorKind, LostReason};
use crate::wire::{Counter, Inspection, Kind, Name};

/// A try waited in vain for an earlier attempt with the same token.
pub(super) fn token_busy() -> Error {
    let text = "nothing was done: an earlier attempt with this token may still run, or its lock is not released yet; \
                give each attempt a token of its own, or try again later";
    Error::new(ErrorKind::Unavailable, text)
}

/// The call was certainly not done, although there is a connection.
pub(super) fn not_sent() -> Error {
    let text = "nothing was done: the server has more to do than it answers in good time, or the connection was lost \
                just now; try again";
    Error::new(ErrorKind::Unavailable, text)
}

/// The server said twice in a row that a call came after its not-after, although the call used the
/// server's time from the reply before.
pub(super) fn clocks_differ() -> Error {
    let text = "nothing was done: by the server's clock the call came too late, twice in a row; if the address is that of a \
                balancer or proxy, let it lead to one server, or have the servers' clocks agree";
    Error::new(ErrorKind::Unavailable, text)
}

/// Too few replicas have acknowledged an acquisition.
pub(super) fn not_replicated(wanted: u32, got: u32) -> Error {
    let text = format!(
        "{got} of the {wanted} replicas that were asked for acknowledged it in time, and it was rolled back; look whether the \
         replicas follow the primary (INFO replication), or ask for fewer by the option replicas"
    );
    Error::new(ErrorKind::NotReplicated, text)
}

/// There was no connection during the whole wait of a caller.
pub(super) fn unconnected(wait: Option<Duration>) -> Error {
    let wait = wait.unwrap_or_default();
    let text = format!(
        "there was no connection to the server within {wait:?}, so its state is not known; \
         check address and network, that the server answers there, and whether it wants TLS (rediss://) or not"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The server was silent during the whole wait of a caller.
pub(super) fn unheard(wait: Option<Duration>) -> Error {
    let wait = wait.unwrap_or_default();
    let text = format!(
        "the server did not answer within {wait:?}, so its state is not known; look whether the \
         server is overloaded or paused, or wait longer"
    );
    Error::new(ErrorKind::Unavailable, text)
}

pub(super) fn timeout(name: &Name, wait: Option<Duration>) -> Error {
    let text = match wait {
        Some(wait) if !wait.is_zero() => {
            format!("not acquired within {wait:?}; wait longer, or look at who holds it")
        }
        _ => "somebody else holds it or waits for it".to_owned(),
    };
    Error::new(ErrorKind::Timeout, text).on(name)
}

/// The caller has waited for its own hold.
pub(super) fn timeout_by_itself(name: &Name, wait: Duration) -> Error {
    let text = format!(
        "not acquired within {wait:?}, because the thread, task or key that waits holds it; release it first, or let it \
         be entered again (option reentrant)"
    );
    Error::new(ErrorKind::Timeout, text).on(name)
}

/// Of a semaphore whose object has no `limit`.
pub(super) fn timeout_without_limit(name: &Name, wait: Duration) -> Error {
    let text = format!(
        "not acquired within {wait:?}; wait longer, look at who holds it, or give it permits: this object has no limit, \
         so that another one has to set their number"
    );
    Error::new(ErrorKind::Timeout, text).on(name)
}

pub(super) fn unheard_entry(wait: Option<Duration>) -> Error {
    let text = format!(
        "the server did not confirm the re-entry within {:?}; try again",
        wait.unwrap_or_default()
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The call of a command got no answer in time.
pub(super) fn unanswered_command() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server did not answer in time; try again",
    )
}

pub(super) fn unconfirmed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server did not confirm the release; the lock ends with its lease at the latest",
    )
}

pub(super) fn not_of_token(reason: LostReason) -> Error {
    let text = match reason {
        LostReason::Deleted => "nobody holds it",
        _ => "somebody else holds it",
    };
    Error::new(
        ErrorKind::NotOwner,
        format!(
            "{text}, not the owner of this token; give it the token of the acquisition, before its release and before its lease ends"
        ),
    )
}

pub(super) fn foreign(what: &str) -> Error {
    let text = format!("{what} lies at this name; use another name, or the kind that made it");
    Error::new(ErrorKind::ForeignKind, text)
}

/// The call of a try, or of a waiter ahead of it, got no answer in time.
pub(super) fn unanswered() -> Error {
    let text = "the server did not answer in time; try again, or raise the lease";
    Error::new(ErrorKind::Unavailable, text)
}

/// A wait for a counter is over.
pub(super) fn counter_timeout(counter: Counter, wait: Duration) -> Error {
    let text = match counter {
        Counter::Semaphore => format!(
            "no permits within {wait:?}; wait longer, or look whether somebody has died with its permits: add them anew"
        ),
        Counter::Latch => format!("the latch did not get to 0 within {wait:?}; wait longer"),
    };
    Error::new(ErrorKind::Timeout, text)
}

/// The server did not answer a caller that does not wait for others. `kept`: see [`goes_on`].
pub(super) fn counter_unheard(kept: bool) -> Error {
    let text = if kept {
        "the server did not answer in time"
    } else {
        "the server did not answer in time; what was sent may still take effect"
    };
    Error::new(ErrorKind::Unavailable, text)
}

/// The error for a caller whose change goes on without it, if it is `kept`.
pub(super) fn goes_on(error: Error, counter: Counter, kept: bool) -> Error {
    if !kept {
        return error;
    }
    let what = match counter {
        Counter::Semaphore => {
            "the permits are given back as soon as the server takes them, so do not release them again"
        }
        Counter::Latch => {
            "it is counted as soon as the server takes it, so do not count it down again"
        }
    };
    let text = format!("{}; {what}", error.message());
    error.reworded(text)
}

/// The server was out of reach for longer than its marker of our last change lives.
pub(super) fn counter_unknown() -> Error {
    let text = "the server did not answer for minutes, so nobody knows whether the change was made; look at the number";
    Error::new(ErrorKind::Unavailable, text)
}

/// Why the primitive of this request does not do it.
pub(super) fn refused(request: &Request) -> Option<Error> {
    match request {
        Request::Force { kind, name } | Request::Inspect { kind, name, .. }
            if kind.is_several() =>
        {
            Some(Error::invalid(kind.has_no_key()).on(name))
        }
        Request::Acquire { name, terms, .. } if terms.kind.is_several() => {
            let text = match terms.kind {
                Kind::Quorum => {
                    "the lock of a quorum is not entered again by its hold; acquire it once more with the same key"
                }
                _ => {
                    "a multi lock is not entered again by its hold; acquire it once more with the same key"
                }
            };
            Some(Error::invalid(text).on(name))
        }
        Request::Inspect { name, kind, what }
            if *what == Inspection::Waiters && !kind.facts().queues =>
        {
            let text = if kind.takes_permits() {
                "Redis keeps a queue of a semaphore in fair mode only; give it the option fair"
                    .to_owned()
            } else {
                format!(
                    "Redis keeps no queue of a lock of the kind {}; give it the kind fair",
                    kind.name()
                )
            };
            let error = Error::new(ErrorKind::InvalidArgument, text);
            Some(error.on(name).during("waiters"))
        }
        _ => None,
    }
}
