//! The error table: every kind of failure, with its number and name in all languages.
//!
//! This file is the only place where error kinds and lost reasons are defined. Python's exception
//! classes, Node's `code` strings, C's status numbers and `docs/errors.md` are made from
//! [`ErrorKind::ALL`] and [`LostReason::ALL`], or compared to them by a test.

use std::fmt;
use std::sync::Arc;

/// Builds an enum whose variants carry a stable number, a name and a meaning.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $variant:ident = $number:literal, $text:literal, $retryable:literal, $meaning:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $name {
            $( #[doc = $meaning] $variant = $number, )+
        }

        impl $name {
            /// Every value, in the order of the table.
            pub const ALL: &'static [$name] = &[ $( $name::$variant, )+ ];

            /// The stable number: never reused, never 0 (0 is success in C).
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The value with this number, if there is one.
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.number() == number)
            }

            /// The name used in every language, in `snake_case`.
            pub const fn name(self) -> &'static str {
                match self { $( $name::$variant => $text, )+ }
            }

            /// Whether trying the same call again later can succeed without changing anything.
            pub const fn retryable(self) -> bool {
                match self { $( $name::$variant => $retryable, )+ }
            }

            /// One sentence for people; the same text stands in `docs/errors.md`.
            pub const fn meaning(self) -> &'static str {
                match self { $( $name::$variant => $meaning, )+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

table! {
    /// What went wrong. Numbers are part of the C ABI.
    ErrorKind {
        Timeout = 1, "timeout", true, "The lock was not acquired within the wait; nothing stays behind in Redis.";
        Cancelled = 2, "cancelled", true, "The waiting call was cancelled; whatever it may have acquired is released.";
        NotOwner = 3, "not_owner", false, "The caller does not hold this lock.";
        Lost = 4, "lost", false, "The lock was held and can no longer be relied on; the lost reason says why.";
        ForeignKind = 5, "foreign_kind", false, "Another kind of lock, or other data, lies at this name; nothing was changed.";
        InvalidArgument = 16, "invalid_argument", false, "An argument or option is not acceptable; nothing was sent to Redis.";
        Closed = 17, "closed", false, "The client is closed.";
        Forked = 18, "forked", false, "The client belongs to the parent process; open a new client in this one.";
        Unavailable = 32, "unavailable", true, "The server did not answer in time or cannot be reached.";
        Auth = 33, "auth", false, "The server refused the user name or password.";
        Denied = 34, "denied", false, "The server's access rules (ACL) do not allow a command this lock needs.";
        Server = 35, "server", true, "The server answered with an error.";
        NotReplicated = 36, "not_replicated", true, "Fewer replicas than asked for acknowledged the lock; it was rolled back.";
        NameNotClusterable = 37, "name_not_clusterable", false, "The keys of this lock fall into different slots of a cluster.";
        Internal = 99, "internal", false, "A fault in redlatch itself; please report it.";
    }
}

table! {
    /// Why a hold was lost. Final for that hold.
    LostReason {
        Expired = 1, "expired", false, "The lease ended before it was renewed.";
        Deleted = 2, "deleted", false, "The key was deleted, evicted or flushed.";
        Stolen = 3, "stolen", false, "Somebody else holds the name, or other data lies there.";
        Forced = 4, "forced", false, "The lock was force-released through this client.";
        Unreachable = 5, "unreachable", false, "The server could not be reached until the deadline.";
        Closed = 6, "closed", false, "The client was closed while the lock was held.";
    }
}

/// A failed call: its [kind](ErrorKind), a text for people, and the lock it concerns.
///
/// `{}` prints one line that names the value and the remedy. No text ever contains a password.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    lock: Option<Arc<str>>,
    reason: Option<LostReason>,
}

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error; `message` names the value and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), lock: None, reason: None }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn lost(lock: &Arc<str>, reason: LostReason) -> Self {
        let mut error = Self::new(ErrorKind::Lost, reason.meaning()).on(lock);
        error.0.reason = Some(reason);
        error
    }

    /// The same error, naming the lock it concerns.
    pub(crate) fn on(mut self, lock: &Arc<str>) -> Self {
        self.0.lock = Some(lock.clone());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The text without kind and lock name.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The lock the error concerns, if it concerns one.
    pub fn lock_name(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Why the hold was lost; only for [`ErrorKind::Lost`].
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.reason
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        if let Some(reason) = self.0.reason {
            write!(f, " ({reason})")?;
        }
        if let Some(lock) = &self.0.lock {
            write!(f, ": lock {lock:?}")?;
        }
        write!(f, ": {}", self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_never_zero() {
        let mut numbers: Vec<u8> = ErrorKind::ALL.iter().map(|kind| kind.number()).collect();
        let mut names: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        names.sort_unstable();
        names.dedup();
        assert_eq!((numbers.len(), names.len()), (ErrorKind::ALL.len(), ErrorKind::ALL.len()));
        assert!(!numbers.contains(&0));
    }

    #[test]
    fn an_error_prints_kind_reason_lock_and_text() {
        let error = Error::lost(&Arc::from("orders:42"), LostReason::Deleted);
        assert_eq!(
            error.to_string(),
            "lost (deleted): lock \"orders:42\": The key was deleted, evicted or flushed."
        );
    }
}
