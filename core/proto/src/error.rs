//! The error table: every kind of failure, with its number and name in all languages.
//!
//! Error kinds and lost reasons are defined in this file only. Python's exception classes, Node's
//! `code` strings, C's status numbers and `docs/errors.md` are generated from [`ErrorKind::ALL`]
//! and [`LostReason::ALL`], or a test compares them.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

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

            /// The same with the NUL that C wants.
            #[doc(hidden)]
            pub const fn terminated_name(self) -> &'static str {
                match self { $( $name::$variant => concat!($text, "\0"), )+ }
            }

            /// Whether the same call can succeed later without any change by the caller.
            pub const fn retryable(self) -> bool {
                match self { $( $name::$variant => $retryable, )+ }
            }

            /// One sentence for people; `docs/errors.md` has the same text.
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
    /// The kind of a failure. The numbers are part of the C ABI.
    ErrorKind {
        Timeout = 1, "timeout", true, "The lock was not acquired within the wait; nothing stays behind in Redis.";
        Cancelled = 2, "cancelled", true, "The waiting call was cancelled; whatever it may have acquired is released.";
        NotOwner = 3, "not_owner", false, "The caller does not hold this lock.";
        Lost = 4, "lost", false, "The lock was held and can no longer be relied on; the lost reason says why.";
        ForeignKind = 5, "foreign_kind", false, "Another kind of lock, or other data, lies at this name; nothing was changed.";
        WouldDeadlock = 6, "would_deadlock", false, "The caller would wait for itself; nothing was sent to Redis.";
        InvalidArgument = 16, "invalid_argument", false, "An argument or option is not acceptable; nothing was sent to Redis.";
        Closed = 17, "closed", false, "The client is closed.";
        Forked = 18, "forked", false, "The client belongs to the parent process; open a new client in this one.";
        Unavailable = 32, "unavailable", true, "The server did not answer in time or cannot be reached. A wait that ends before any answer ends so too, however short it was: nobody knows whether others have the lock.";
        Auth = 33, "auth", false, "User name, password or certificate are refused: the server's or ours.";
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
        Expired = 1, "expired", false, "The lease ended: it was fixed, or no renewal came in time.";
        Deleted = 2, "deleted", false, "The key was deleted, evicted or flushed.";
        Stolen = 3, "stolen", false, "Somebody else holds the name, or other data lies there.";
        Forced = 4, "forced", false, "The lock was force-released through this client.";
        Unreachable = 5, "unreachable", false, "The server could not be reached until the deadline.";
        Closed = 6, "closed", false, "The client was closed while it was held.";
    }
}

impl ErrorKind {
    /// The name of the exception class in Python and Node.js.
    pub const fn class_name(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "LockTimeoutError",
            ErrorKind::Cancelled => "LockCancelledError",
            ErrorKind::NotOwner => "NotOwnerError",
            ErrorKind::Lost => "LockLostError",
            ErrorKind::ForeignKind => "ForeignKindError",
            ErrorKind::InvalidArgument => "InvalidArgumentError",
            ErrorKind::Closed => "ClosedError",
            ErrorKind::Forked => "ForkedError",
            ErrorKind::Unavailable => "UnavailableError",
            ErrorKind::Auth => "AuthError",
            ErrorKind::Denied => "DeniedError",
            ErrorKind::Server => "ServerError",
            ErrorKind::NotReplicated => "NotReplicatedError",
            ErrorKind::WouldDeadlock => "WouldDeadlockError",
            ErrorKind::NameNotClusterable => "NameNotClusterableError",
            ErrorKind::Internal => "InternalError",
        }
    }

    /// Advice for the caller; `docs/errors.md` has the same text.
    pub const fn advice(self) -> &'static str {
        match self {
            ErrorKind::Timeout => {
                "Do without the lock, try again later, or wait longer. `holder` tells who has it."
            }
            ErrorKind::Cancelled => "Nothing: somebody asked for it.",
            ErrorKind::NotOwner => {
                "Release each acquisition once, with the re-entry key (thread, task or explicit key) that acquired it. To \
                 release it elsewhere, pass on the hold (guard, grant): it can be used on any thread. Another process needs \
                 the token of a simple lock."
            }
            ErrorKind::Lost => {
                "Stop touching what the lock protects, and take back or check what was done since; then acquire anew. \
                 Where that is not enough, have the resource check fencing tokens. A thread, task or key that has not \
                 released what it lost gets this error when it acquires again, because an outer block of it may still \
                 rely on the lock: release each level first. One case needs no release: a fixed lease that ran out, of a \
                 lock that was acquired without a block, guard or grant; just acquire anew."
            }
            ErrorKind::ForeignKind => {
                "Use another name: two kinds of lock, or a lock and data, cannot share one."
            }
            ErrorKind::WouldDeadlock => {
                "Release the read lock before acquiring the write lock, and look again at what was read. Or acquire the \
                 write lock first: its owner may read under it, and keep reading after its release."
            }
            ErrorKind::InvalidArgument => "Correct the argument that the message names.",
            ErrorKind::Closed => "Open a new client; close it only when nobody uses it any more.",
            ErrorKind::Forked => "Open the client in the process that uses it, after the fork.",
            ErrorKind::Unavailable => {
                "Check address and network, and that the server runs. Clients connect again by themselves; \
                 the option `outage` says how long callers wait for that. When the message says that nothing was done, \
                 the server has more to do than it can: try again later, or give it less to do."
            }
            ErrorKind::Auth => {
                "Correct user name and password in the URL, with special characters percent-encoded; with TLS, the \
                 certificate that the message speaks of (`tls_ca`, `tls_cert`, the server's own)."
            }
            ErrorKind::Denied => "Allow this user what the lock needs (`ACL SETUSER`).",
            ErrorKind::Server => {
                "The message repeats what the server said, with a remedy; look into its log."
            }
            ErrorKind::NotReplicated => {
                "Check that the replicas run and follow the primary (`INFO replication`), or ask for fewer by the option `replicas`."
            }
            ErrorKind::NameNotClusterable => {
                "Put the name, or a part of it, in braces: `{orders}:42`. That part decides where all keys of the lock lie."
            }
            ErrorKind::Internal => "Report it, with the message and what led to it.",
        }
    }
}

impl LostReason {
    /// The likely cause and the remedy; `docs/errors.md` has the same text.
    pub const fn advice(self) -> &'static str {
        match self {
            LostReason::Expired => {
                "A fixed lease was too short for the work, `max_hold` was reached, or the process was paused for \
                 longer than the lease. Use the watchdog or a longer lease."
            }
            LostReason::Deleted => {
                "Somebody deleted the key, flushed the database, or the server ran out of memory: its eviction \
                 policy must be `noeviction` where locks live. A restart without persistence forgets locks too."
            }
            LostReason::Stolen => {
                "The key vanished and somebody else acquired it, as after `deleted`, or something that is not a \
                 lock of this kind writes to this name."
            }
            LostReason::Forced => {
                "Some code called `force_release` on this client. Find out which, and why."
            }
            LostReason::Unreachable => {
                "Server or network were down for longer than the lease. A longer `watchdog_lease` bridges longer gaps."
            }
            LostReason::Closed => {
                "Release before closing, or give closing more time (`close_limit`)."
            }
        }
    }
}

/// The thing that a name stands for, as texts call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thing {
    Lock,
    MultiLock,
    Semaphore,
    Latch,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Thing::Lock => "lock",
            Thing::MultiLock => "multi lock",
            Thing::Semaphore => "semaphore",
            Thing::Latch => "latch",
        })
    }
}

/// A failed call: its [kind](ErrorKind), a text for people, and the lock it concerns.
///
/// `{}` prints one line that names the value and the remedy. It leaves out the text of the
/// [`source`](std::error::Error::source), because whoever prints that prints it behind; `{:#}` and
/// `{:?}` have everything in one line. No text ever contains a password.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    lock: Option<Arc<str>>,
    thing: Thing,
    reason: Option<LostReason>,
    operation: Option<&'static str>,
    option: Option<OptionFault>,
    unreleased: Vec<String>,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

// A cause is only read, so that a panic cannot have left it half changed.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

/// An option that cannot be used as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionFault {
    /// The name: the table's, or the given one if the table does not have it.
    pub option: String,
    /// The value for people, if the fault is the value.
    pub value: Option<String>,
    /// The acceptable values for people, if the fault is the value.
    pub allowed: Option<String>,
    /// The option that was probably meant, if the name is unknown.
    pub suggestion: Option<&'static str>,
    /// Whether the text ends with a list of all names that would be acceptable.
    pub lists_names: bool,
    text: Vec<Piece>,
}

/// A piece of the text of an [`OptionFault`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text that is the same in every language.
    Words(Cow<'static, str>),
    /// The name of an option, which languages spell in their own way.
    Name(&'static str),
}

impl From<&'static str> for Piece {
    fn from(words: &'static str) -> Self {
        Piece::Words(words.into())
    }
}

impl From<String> for Piece {
    fn from(words: String) -> Self {
        Piece::Words(words.into())
    }
}

impl OptionFault {
    /// A fault of the option `option`, with a text for people.
    pub fn new(option: impl Into<String>, text: impl Into<Vec<Piece>>) -> Self {
        OptionFault {
            option: option.into(),
            value: None,
            allowed: None,
            suggestion: None,
            lists_names: false,
            text: text.into(),
        }
    }

    fn text<S: AsRef<str>>(&self, spell: impl Fn(&'static str) -> S) -> String {
        let mut text = String::new();
        for piece in &self.text {
            match piece {
                Piece::Words(words) => text += words,
                Piece::Name(name) => text += spell(name).as_ref(),
            }
        }
        text
    }
}

impl From<OptionFault> for Error {
    fn from(fault: OptionFault) -> Self {
        let mut error = Error::invalid(fault.text(|name| name));
        error.0.option = Some(fault);
        error
    }
}

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error. `message` should name the offending value and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            lock: None,
            thing: Thing::Lock,
            reason: None,
            operation: None,
            option: None,
            unreleased: Vec::new(),
            cause: None,
        }))
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// The error for what the system refuses for now: a descriptor, a thread.
    pub fn exhausted(what: &str, why: &dyn fmt::Display) -> Self {
        let text = format!(
            "{what}: {why}; raise the limits of the process (ulimit -n, -u), or use less of them"
        );
        Self::new(ErrorKind::Unavailable, text)
    }

    #[doc(hidden)]
    pub fn lost(lock: &Arc<str>, reason: LostReason) -> Self {
        Self::from(reason).on(lock)
    }

    /// The loss, for a re-entry key that acquires the lock again before it has released the lost
    /// levels.
    #[doc(hidden)]
    pub fn lost_before(lock: &Arc<str>, reason: LostReason) -> Self {
        let mut error = Self::lost(lock, reason);
        error.0.message = format!(
            "{} What was lost has to be released first, each level of it (by its guard, or leaving its block, or by \
             key); then acquire anew",
            reason.meaning()
        );
        error
    }

    /// The client is closed, or was closed while the caller waited.
    #[doc(hidden)]
    pub fn closed() -> Self {
        let text =
            "the client is closed; open a new one, and close it only when nobody uses it any more";
        Self::new(ErrorKind::Closed, text)
    }

    /// The caller reads, and asks for the write side of the same lock.
    #[doc(hidden)]
    pub fn upgrade() -> Self {
        let text = "the caller has the read lock and would wait for itself: release the read lock first, or acquire the \
                    write lock before the read lock";
        Self::new(ErrorKind::WouldDeadlock, text)
    }

    /// The error for an acquisition by a hold that it cannot enter: the hold has ended, or it `is_live` and
    /// of another side.
    #[doc(hidden)]
    #[must_use]
    pub fn not_entered(is_live: bool) -> Self {
        if is_live {
            let text = "the hold to re-enter is of the other side of this read-write lock; enter it on the side that it is \
                        of, or acquire both sides with the same key";
            return Self::invalid(text);
        }
        let text = "the hold to re-enter has ended; acquire anew";
        Self::new(ErrorKind::NotOwner, text)
    }

    /// The error of a caller that asks for a fencing token, and has the lock without one.
    #[must_use]
    #[doc(hidden)]
    pub fn without_token() -> Self {
        Self::invalid(
            "fencing is true, and this caller has the lock already, without a token; acquire it with fencing the first time",
        )
    }

    /// The error about one of the locks of a multi lock, which its text names.
    #[must_use]
    #[doc(hidden)]
    pub fn of_part(self, part: &str) -> Self {
        let text = format!("{part:?}: {}", self.message());
        self.reworded(text)
    }

    /// A multi lock was to be made of a lock of another client.
    #[doc(hidden)]
    pub fn of_another_client() -> Self {
        let text = "this lock is of another client; make each lock of a multi lock by the client that makes the multi lock";
        Self::new(ErrorKind::InvalidArgument, text)
    }

    /// The caller has no hold on the lock.
    #[doc(hidden)]
    pub fn not_held() -> Self {
        let text = "the caller does not hold this lock; release, extend or check it with the thread, task or key that \
                    acquired it, before its release and before that thread or task ends; to release it elsewhere, pass on \
                    the hold (guard, grant), or a token";
        Self::new(ErrorKind::NotOwner, text)
    }

    /// `what` (a level, a hold) has been released already.
    #[doc(hidden)]
    pub fn released_before(what: &str) -> Self {
        Self::new(
            ErrorKind::NotOwner,
            format!("this {what} was released before; release each acquisition once"),
        )
    }

    /// The error of a client that has closed, unless it has released everything: `names` are the
    /// locks that it could not release within `limit`.
    ///
    /// # Errors
    /// `unavailable`, with the names.
    #[doc(hidden)]
    pub fn check_released(names: Vec<String>, limit: Duration) -> Result<()> {
        let Some((first, others)) = names.split_first() else {
            return Ok(());
        };
        let within = if limit.is_zero() {
            String::new()
        } else {
            format!(" within {limit:?}")
        };
        let mut text =
            format!("the client is closed, and could not release these{within}: {first:?}");
        for name in others {
            text += &format!(", {name:?}");
        }
        text += ". A lock ends with its lease, and permits of a plain semaphore stay taken; release them before closing, or close while the server can be reached";
        let mut error = Self::new(ErrorKind::Unavailable, text).during("close");
        error.0.unreleased = names;
        Err(error)
    }

    /// Adds the error behind this one. The message already has its text, after a colon.
    #[must_use]
    #[doc(hidden)]
    pub fn caused_by(mut self, cause: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.cause = Some(cause);
        self
    }

    /// The error behind this one, for another error about the same failure.
    #[doc(hidden)]
    pub fn cause(&self) -> Option<Arc<dyn StdError + Send + Sync>> {
        self.0.cause.clone()
    }

    /// The same failure in other words, which have the message of this one in them.
    #[must_use]
    #[doc(hidden)]
    pub fn reworded(mut self, message: String) -> Self {
        if let Some(fault) = &mut self.0.option
            && let Some((before, behind)) = message.split_once(&self.0.message)
        {
            fault.text.insert(0, before.to_owned().into());
            fault.text.push(behind.to_owned().into());
        }
        self.0.message = message;
        self
    }

    /// An error that is about no option, but has names of options in its text.
    #[must_use]
    #[doc(hidden)]
    pub fn with_names(kind: ErrorKind, text: Vec<Piece>) -> Self {
        let mut error = Self::from(OptionFault::new("", text));
        error.0.kind = kind;
        error
    }

    /// Adds the name of the lock that the error concerns.
    #[doc(hidden)]
    pub fn on(mut self, lock: &Arc<str>) -> Self {
        self.0.lock = Some(lock.clone());
        self
    }

    /// Says what its name stands for, if that is no lock.
    #[must_use]
    #[doc(hidden)]
    pub fn of(mut self, thing: Thing) -> Self {
        self.0.thing = thing;
        self
    }

    /// Adds the name of the operation that failed.
    #[must_use]
    #[doc(hidden)]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = Some(operation);
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The whole text, without the kind and the name of the lock.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The whole text with the name of what it concerns, without the kind.
    #[doc(hidden)]
    pub fn named_message(&self) -> String {
        match self.subject() {
            Some(subject) => format!("{subject}: {}", self.message()),
            None => self.message().to_owned(),
        }
    }

    /// As `semaphore "gpu"`.
    fn subject(&self) -> Option<String> {
        let name = self.0.lock.as_deref()?;
        Some(format!("{} {name:?}", self.0.thing))
    }

    /// The name of the lock, semaphore or latch that the error concerns, if it concerns one.
    pub fn lock_name(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// Why the hold was lost; only for [`ErrorKind::Lost`].
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.reason
    }

    /// The operation that failed, such as `acquire` or `force_release`. `None` if the arguments were
    /// refused before there was one.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The names that closing a client could not release. A lock ends with its lease; permits of a
    /// plain semaphore stay taken.
    pub fn unreleased(&self) -> &[String] {
        &self.0.unreleased
    }

    /// The option that cannot be used, if the error is about one.
    pub fn option_fault(&self) -> Option<&OptionFault> {
        let fault = self.0.option.as_ref();
        fault.filter(|fault| !fault.option.is_empty())
    }

    /// The same error with the names of options in another spelling, for other languages.
    #[must_use]
    #[doc(hidden)]
    pub fn spelled<S: AsRef<str>>(mut self, spell: impl Fn(&'static str) -> S) -> Self {
        if let Some(fault) = &self.0.option {
            self.0.message = fault.text(spell);
        }
        self
    }
}

/// The error for a loss: [`ErrorKind::Lost`] with this reason, without the name of a lock.
impl From<LostReason> for Error {
    fn from(reason: LostReason) -> Self {
        let text = format!(
            "{} Stop what it protects, look at what was done since, then acquire anew",
            reason.meaning()
        );
        let mut error = Self::new(ErrorKind::Lost, text);
        error.0.reason = Some(reason);
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        if let Some(reason) = self.0.reason {
            write!(f, " ({reason})")?;
        }
        if let Some(subject) = self.subject() {
            write!(f, ": {subject}")?;
        }
        match &self.0.cause {
            Some(cause) if !f.alternate() => {
                let brief = self.0.message.replacen(&format!(": {cause}"), "", 1);
                write!(f, ": {brief}")
            }
            _ => write!(f, ": {}", self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self:#})")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let cause = self.0.cause.as_deref()?;
        Some(cause)
    }
}

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
        assert_eq!(
            (numbers.len(), names.len()),
            (ErrorKind::ALL.len(), ErrorKind::ALL.len())
        );
        assert!(!numbers.contains(&0));
    }

    #[test]
    fn class_names_are_unique() {
        let mut names: Vec<&str> = ErrorKind::ALL
            .iter()
            .map(|kind| kind.class_name())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn a_caller_that_does_not_hold_is_told_the_remedy() {
        assert!(
            Error::not_held()
                .message()
                .contains("; release, extend or check it with the thread, task or key")
        );
        assert!(
            Error::released_before("level")
                .message()
                .ends_with("; release each acquisition once")
        );
    }

    #[test]
    fn names_of_options_are_spelled_as_a_language_wants() {
        let text = [
            "tls_key".into(),
            " goes with ".into(),
            Piece::Name("tls_cert"),
        ];
        let error = Error::from(OptionFault::new("tls_key", text)).spelled(str::to_uppercase);
        assert_eq!(error.message(), "tls_key goes with TLS_CERT");
        let other = Error::invalid("tls_key").spelled(str::to_uppercase);
        assert_eq!(other.message(), "tls_key");
        let text = vec!["give ".into(), Piece::Name("tls_ca")];
        let mentioned = Error::with_names(ErrorKind::Auth, text);
        let longer = format!("service s: {}; try again", mentioned.message());
        let mentioned = mentioned.reworded(longer).spelled(str::to_uppercase);
        assert_eq!(mentioned.message(), "service s: give TLS_CA; try again");
        assert_eq!(
            (mentioned.kind(), mentioned.option_fault()),
            (ErrorKind::Auth, None)
        );
    }

    #[test]
    fn a_cause_is_printed_once() {
        let refused = std::io::Error::from_raw_os_error(111);
        let cause = refused.to_string();
        let error = Error::new(
            ErrorKind::Unavailable,
            format!("cannot reach here: {cause}; is it on?"),
        )
        .caused_by(Arc::new(refused));
        assert_eq!(
            error.to_string(),
            "unavailable: cannot reach here; is it on?"
        );
        let whole = format!("unavailable: cannot reach here: {cause}; is it on?");
        assert_eq!(format!("{error:#}"), whole);
        assert_eq!(format!("{error:?}"), format!("Error({whole})"));
        let source = error.source().and_then(|source| source.downcast_ref());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(111));
        let longer = error
            .clone()
            .reworded(format!("service s: {}", error.message()));
        assert_eq!(
            longer.to_string(),
            "unavailable: service s: cannot reach here; is it on?"
        );
        assert!(longer.source().is_some());
    }

    #[test]
    fn an_error_prints_kind_reason_lock_and_text() {
        let error = Error::lost(&Arc::from("orders:42"), LostReason::Deleted);
        assert_eq!(
            error.to_string(),
            "lost (deleted): lock \"orders:42\": The key was deleted, evicted or flushed. Stop what it protects, look at what \
             was done since, then acquire anew"
        );
        let error = Error::closed().on(&Arc::from("gpu")).of(Thing::Semaphore);
        assert!(
            error
                .to_string()
                .starts_with("closed: semaphore \"gpu\": the client")
        );
        assert!(
            error
                .named_message()
                .starts_with("semaphore \"gpu\": the client")
        );
    }
}
