//! The option table: every option with its type, bounds, default and meaning.
//!
//! This file is the only place where options are defined. Python's keyword arguments, Node's option
//! objects and C's options by name end in `set`. `docs/options.md` is generated from
//! [`all_options`].

// The paths are for bindings-wasm, which compiles this file as well.
#[path = "options/requests.rs"]
pub(crate) mod requests;
#[path = "options/tables.rs"]
mod tables;
#[path = "options/value.rs"]
mod value;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Config, Lease, Terms};
use crate::error::{Error, OptionFault, Piece, Result};
use crate::owner::ReentryKey;
use crate::url::SYNTAX;
use crate::wire::{Fencing, Kind, Side, Special};
use redlatch_proto::event::Level;
use redlatch_proto::{quorum, tuning};

pub use redlatch_proto::net::{ClusterPubsub, Protocol};
pub use tables::tables;
pub use value::{OptionValue, Pem};
use value::{Stored, likeness};

/// The place where an option can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// When a client is opened.
    Client,
    /// When a lock is named. A client also takes it, as the default for its locks.
    Lock,
    /// In each acquisition.
    Acquire,
}

impl Scope {
    /// The thing that has the option, for people.
    pub const fn of(self) -> &'static str {
        match self {
            Scope::Client => "a client",
            Scope::Lock => "a lock",
            Scope::Acquire => "an acquisition",
        }
    }

    /// Whether an option of `scope` can be given here.
    fn takes(self, scope: Scope) -> bool {
        self == scope || (self, scope) == (Scope::Client, Scope::Lock)
    }
}

/// The type and bounds of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// A time, within these bounds.
    Duration {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
    /// Yes or no.
    Flag,
    /// A whole number up to this one.
    Count {
        /// The smallest.
        least: usize,
        /// The largest.
        most: usize,
    },
    /// PEM: the text itself, or the path of a file that contains it.
    Pem,
    /// Printable ASCII without spaces, at most this long.
    Word {
        /// The most characters.
        most: usize,
    },
    /// Text, not empty, at most this long.
    Text {
        /// The most bytes.
        most: usize,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionInfo {
    /// Its name, in `snake_case`.
    pub name: &'static str,
    /// Where it can be given.
    pub scope: Scope,
    /// The type and bounds of its value.
    pub r#type: Type,
    /// Its default, for people.
    pub default: &'static str,
    /// Its effect, in one or two sentences.
    pub doc: &'static str,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn time(least: Duration, most: Duration) -> Type {
    Type::Duration { least, most }
}

const fn count(least: usize, most: usize) -> Type {
    Type::Count { least, most }
}

const HOUR: Duration = secs(3600);
const DAY: Duration = secs(24 * 3600);
const YEAR: Duration = secs(365 * 24 * 3600);

/// Redis' clock and ours may differ by a hundredth of the lease and 2 ms. Below 100 ms little of a
/// lease would remain.
const LEASE: Type = time(ms(100), DAY);

/// A wait of more than a hundred years is a wait without a limit.
const LONGEST_WAIT: Duration = secs(100 * YEAR.as_secs());
const WAIT: Type = time(Duration::ZERO, LONGEST_WAIT);

/// Declares the options of one struct: fields with their defaults, setters, and rows of the table.
///
/// A row is `name(argument of the setter): stored type = default, default and value for people,
/// type, doc;`.
macro_rules! options {
    (
        $(#[$meta:meta])*
        $name:ident in $scope:ident, $rows:ident {
            $( $field:ident($given:ty): $stored:ty = $default:expr, $shown:literal, $value:literal, $type:expr, $doc:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $( pub(crate) $field: $stored, )+ }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )+ }
            }
        }

        const $rows: &[OptionInfo] = &[ $( OptionInfo {
            name: stringify!($field), scope: Scope::$scope, r#type: $type, default: $shown, doc: $doc,
        }, )+ ];

        impl $name {
            /// The options with their defaults.
            pub fn new() -> Self {
                Self::default()
            }

            /// Whether these options include one of this name.
            pub fn has(name: &str) -> bool {
                $rows.iter().any(|info| info.name == name)
            }

            $(
                #[doc = $doc]
                #[doc = concat!("\nTakes ", $value, ". Default: ", $shown, ".")]
                ///
                /// A value out of bounds is refused with `invalid_argument` when the options are
                /// used.
                #[must_use]
                pub fn $field(mut self, value: $given) -> Self {
                    self.$field = value.into();
                    self
                }
            )+

            /// Sets an option by its name in the table; [`OptionValue::Unset`] restores its
            /// default.
            ///
            /// # Errors
            /// `invalid_argument` for an unknown name or an unacceptable value. The text says what
            /// would be acceptable.
            pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
                let mut rows = $rows.iter();
                $(
                    if let Some(info) = rows.next() && info.name == name {
                        self.$field = if value == OptionValue::Unset { $default } else { Stored::read(info, value)? };
                        return Ok(());
                    }
                )+
                Err(unknown(name, Scope::$scope, Spelling::SnakeCase))
            }

            /// Checks the values that the typed setters stored without a check.
            pub(crate) fn validate(&self) -> Result<()> {
                let mut rows = $rows.iter();
                $( rows.next().map_or(Ok(()), |info| self.$field.check(info))?; )+
                Ok(())
            }

            #[cfg(test)]
            fn shown() -> Vec<(&'static OptionInfo, String, &'static str)> {
                let defaults = Self::default();
                let mut rows = $rows.iter();
                let mut shown = Vec::new();
                $( shown.extend(rows.next().map(|info| (info, defaults.$field.shown(), $value))); )+
                shown
            }
        }
    };
}

options! {
    /// Options of a client.
    ClientOptions in Client, CLIENT {
        connect_timeout(Duration): Duration = secs(5), "5 s", "a time from 10 ms to 5 min", time(ms(10), secs(300)),
            "How long one attempt to connect may take, log-in included.";
        recheck(Duration): Duration = secs(5), "5 s", "a time from 100 ms to 1 h", time(ms(100), HOUR),
            "The longest time between two tries of a waiter, should every wake-up be lost. Spread by a tenth.";
        outage(Duration): Duration = secs(10), "10 s", "a time from 0 ms to 1 h", time(Duration::ZERO, HOUR),
            "How long a server that had been reached may be away before callers that acquire, release or close stop waiting for it.";
        restart_delay(Duration): Duration = secs(30), "30 s", "a time from 0 ms to 1 h", time(Duration::ZERO, HOUR),
            "Quorum: how long a server has no vote after its start, because it may have lost its locks. At least the longest lease of all clients; 0 if the servers lose nothing (appendfsync always).";
        handover_limit(usize): usize = 100, "100", "a whole number from 0 to 1000000", count(0, 1_000_000),
            "How often in a row a release hands the lock to the next waiter of the same client; then others get a chance. 0: never.";
        handover_time(Duration): Duration = ms(50), "50 ms", "a time from 0 ms to 1 h", time(Duration::ZERO, HOUR),
            "How long a client may go on handing the lock to its own waiters before others get a chance.";
        close_limit(Duration): Duration = secs(5), "5 s", "a time from 0 ms to 10 min", time(Duration::ZERO, secs(600)),
            "How long closing may take to release what is held; 0 leaves it to its lease.";
        exit_limit(Duration): Duration = secs(1), "1 s", "a time from 0 ms to 1 min", time(Duration::ZERO, secs(60)),
            "The same, when the program ends without closing (Python, Node.js); 0 leaves what is held to its lease. A signal may stop another thread inside malloc: then the process ends after this time, and what is held ends with its lease.";
        tracking(bool): bool = true, "true", "true or false", Type::Flag,
            "Ask the server to tell when the key of a hold changes, so that a loss is known in milliseconds.";
        direct(bool): bool = true, "true", "true or false", Type::Flag,
            "Make a call on the caller's thread, on one more connection, while no other caller uses the client. Not with TLS or a cluster.";
        cluster_pubsub(ClusterPubsub): ClusterPubsub = ClusterPubsub::Auto, "auto", "auto, sharded, classic or both", Type::Choice(&ClusterPubsub::ALL),
            "How releases are published in a cluster: by shard where nodes can (auto), always by shard (sharded), to all nodes (classic), or both ways (both), for mixed fleets.";
        client_name(impl Into<String>): String = "redlatch".to_owned(), "redlatch", "1 to 64 printable ASCII characters without spaces", Type::Word { most: 64 },
            "The first part of the names of the connections in CLIENT LIST. Client id, language, process id and host follow.";
        protocol(Protocol): Protocol = Protocol::Auto, "auto", "auto, resp2 or resp3", Type::Choice(&Protocol::NAMES),
            "The protocol. With RESP2 a loss is noticed at the next renewal only. `auto` is RESP3 where the server knows it.";
        keep_alive(Duration): Duration = secs(5), "5 s", "a time from 1 s to 1 h", time(secs(1), HOUR),
            "After how much silence TCP asks whether the server is still there. Not for Unix sockets.";
        tls_ca(Pem): Option<Pem> = None, "none: those of the system", "PEM text, or the path of a file of it", Type::Pem,
            "The certificates of the authorities that may have signed the server's certificate.";
        tls_cert(Pem): Option<Pem> = None, "none", "PEM text, or the path of a file of it", Type::Pem,
            "The client's certificate, for servers that ask for one, with the intermediate certificates up to its authority.";
        tls_key(Pem): Option<Pem> = None, "none", "PEM text, or the path of a file of it", Type::Pem,
            "The private key of `tls_cert`.";
        events(usize): usize = 1024, "1024", "a whole number from 0 to 1000000", count(0, 1_000_000),
            "How many events are kept for a reader; 0 keeps none.";
        debug_events(bool): bool = false, "false", "true or false", Type::Flag,
            "Keep events about single locks as well: acquired, waiting, released.";
    }
}

options! {
    /// Options of a lock; a client takes them as defaults for its locks.
    LockOptions in Lock, LOCK {
        kind(Kind): Kind = Kind::Reentrant, "reentrant", "reentrant, simple, redis-py, redlock, redsync, redis-semaphore, article, adaptive, read, write, semaphore or fair", Type::Choice(&Kind::ALL),
            "The wire protocol: that of Redisson's lock, of the simple lock, or of a program that has one.";
        reentrant(bool): Option<bool> = None,
            "none: true for the kinds reentrant, fair, adaptive, read and write, with a key that the caller names; else false", "true or false", Type::Flag,
            "Whether a caller that holds the lock enters once more, instead of waiting for itself.";
        lease(Duration): Option<Duration> = None, "none: the watchdog renews", "a time from 100 ms to 24 h", LEASE,
            "A fixed lease: the lock ends by itself after this time and is never renewed.";
        watchdog_lease(Duration): Duration = secs(30), "30 s", "a time from 100 ms to 24 h", LEASE,
            "The lease that the watchdog renews, every third of it, for as long as the lock is held.";
        fencing(bool): bool = false, "false", "true or false", Type::Flag,
            "Draw a fencing token with every first acquisition: a number that only grows, also together with Redisson's `RFencedLock`. Its counter stays in Redis for ever.";
        fencing_expires(bool): bool = false, "false", "true or false", Type::Flag,
            "Draw fencing tokens from a counter that expires 25 hours after its last use, unless it has no expiry already. Not for names that Java locks with `RFencedLock`: its tokens would begin at 1 again. Implies `fencing`.";
        max_hold(Duration): Option<Duration> = None, "none", "a time from 100 ms to 365 days", time(ms(100), YEAR),
            "The longest time a hold may last, renewed or not.";
        replicas(usize): usize = 0, "0", "a whole number from 0 to 100", count(0, 100),
            "How many replicas must acknowledge an acquisition (WAIT); with fewer it is rolled back and fails.";
        linger(bool): bool = false, "false", "true or false", Type::Flag,
            "The lock outlives the client and the program: only a release or its lease ends it. For a job once an hour, say.";
        writer_preference(Duration): Duration = Duration::ZERO, "0 ms", "a time from 0 ms to 1 min", time(Duration::ZERO, secs(60)),
            "Read-write lock: how long new readers let a waiting writer go first, in all clients that have this option. 0: not at all.";
        limit(usize): usize = 0, "0: others set it", "a whole number from 0 to 2147483647", count(0, LIMIT_MOST),
            "How many permits a semaphore gets, if it has none yet.";
        fair(bool): bool = false, "false", "true or false", Type::Flag,
            "Serve the callers of a semaphore that have this option in their order, over all programs. Redisson and callers without it can overtake them. A lock has the kind `fair` for that.";
    }
}

impl ClientOptions {
    /// The settings of the engine. A call has at least `least_limit` to be answered.
    pub(crate) fn engine(&self, least_limit: Duration, seed: u64) -> Config {
        Config {
            recheck: self.recheck,
            outage: self.outage,
            handovers: (self.handover_limit, self.handover_time),
            linger: tuning::CHANNEL_LINGER,
            least_limit,
            renewals: tuning::RENEWALS_IN_FLIGHT,
            seed,
            is_shared: |name, own| Arc::strong_count(name) > own,
        }
    }

    /// Events of this level and above are kept.
    pub(crate) fn least_level(&self) -> Level {
        if self.debug_events {
            Level::Debug
        } else {
            Level::Info
        }
    }

    /// Checks that the options of TLS go with each other and with the URL. Their files are not
    /// read.
    pub(crate) fn check_tls(&self, encrypted: bool) -> Result<()> {
        let fault = |option: &'static str, text: &[Piece]| {
            let text = [&[Piece::Name(option)], text].concat();
            Err(OptionFault::new(option, text).into())
        };
        let given = [
            ("tls_ca", &self.tls_ca),
            ("tls_cert", &self.tls_cert),
            ("tls_key", &self.tls_key),
        ];
        let unused = given
            .into_iter()
            .find(|(_, pem)| pem.is_some() && !encrypted);
        if let Some((name, _)) = unused {
            let text = " is given, but the URL does not ask for TLS; let it begin with rediss";
            return fault(name, &[text.into()]);
        }
        let (alone, other) = match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => ("tls_cert", "tls_key"),
            (None, Some(_)) => ("tls_key", "tls_cert"),
            _ => return Ok(()),
        };
        let text = [
            " is given without ".into(),
            Piece::Name(other),
            "; give both".into(),
        ];
        fault(alone, &text)
    }
}

/// The most permits that a semaphore may have, and that one acquisition may take.
const LIMIT_MOST: usize = i32::MAX as usize;
const PERMITS_MOST: usize = 1000;

/// Options of one acquisition: `wait`, `lease`, `token` and `permits`, in this order.
const ACQUIRE: &[OptionInfo; 4] = &[
    OptionInfo {
        name: "wait",
        scope: Scope::Acquire,
        r#type: WAIT,
        default: "none: for ever",
        doc: "How long to wait for the lock; 0 tries once.",
    },
    OptionInfo {
        name: "lease",
        scope: Scope::Acquire,
        r#type: LEASE,
        default: "none: as the lock",
        doc: "A fixed lease for this acquisition, in place of the lock's lease or its watchdog.",
    },
    OptionInfo {
        name: "token",
        scope: Scope::Acquire,
        r#type: Type::Text { most: 512 },
        default: "none: a fresh one",
        doc: "The value that a simple lock's key gets. Give each attempt a token of its own, in every process. A program that knows it can release and extend the lock.",
    },
    OptionInfo {
        name: "permits",
        scope: Scope::Acquire,
        r#type: count(1, PERMITS_MOST),
        default: "1",
        doc: "How many permits of a semaphore to take at once.",
    },
];

/// Every option, in the order of the table.
pub fn all_options() -> impl Iterator<Item = &'static OptionInfo> {
    CLIENT.iter().chain(LOCK).chain(ACQUIRE)
}

/// Options of one acquisition; see [`Lock::acquire_with`](crate::Lock::acquire_with).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireOptions {
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) key: ReentryKey,
    pub(crate) token: Option<Arc<str>>,
    pub(crate) permits: usize,
    pub(crate) tied: bool,
    /// The key identifies the caller, which did not ask to re-enter. See
    /// [`caller`](AcquireOptions::caller).
    pub(crate) caller: bool,
    pub(crate) steal: bool,
    /// The token is that of a lock that another caller has, and that is taken over.
    pub(crate) adopts: bool,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        AcquireOptions {
            wait: None,
            lease: None,
            key: ReentryKey::Once,
            token: None,
            permits: 1,
            tied: false,
            caller: false,
            steal: false,
            adopts: false,
        }
    }
}

impl AcquireOptions {
    /// Waits without a limit, uses the lock's lease, and acquires as a separate owner.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits at most this long; zero tries once. More than a hundred years, such as `Duration::MAX`,
    /// is no limit.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = (wait <= LONGEST_WAIT).then_some(wait);
        self
    }

    /// Acquires with a fixed lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Acquires as the owner behind this key: if it holds the lock already, it re-enters.
    #[must_use]
    pub fn key(mut self, key: ReentryKey) -> Self {
        self.key = key;
        self.caller = false;
        self
    }

    /// Stores this value at the key of a simple lock, instead of one chosen by the client: the id
    /// of the attempt, for example.
    ///
    /// Any process that knows the value can [take over](crate::Lock::adopt),
    /// [release](crate::Lock::release_token) and [extend](crate::Lock::extend_token) the lock. If the key has this value already, the lock
    /// counts as held by another owner: no two acquisitions succeed with the same value.
    ///
    /// Give each attempt a value of its own, also across processes: a request that is tried again
    /// needs a new one. The value alone tells Redis whose lock it is. A call that a failed attempt
    /// sent may arrive late, and then it counts for the attempt that has the value now. If the same
    /// client uses a value again, it first waits until the release or the clean-up of the earlier
    /// attempt is answered. An attempt without a wait fails with
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if that takes too long. Other clients do not
    /// know of the earlier attempt.
    #[must_use]
    pub fn token(mut self, token: impl Into<Arc<str>>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Takes over the lock that has this token.
    pub(crate) fn adopts(self, token: &str) -> Self {
        AcquireOptions {
            adopts: true,
            ..self.token(token)
        }
    }

    /// Takes so many permits of a semaphore at once, 1 to 1,000.
    #[must_use]
    pub fn permits(mut self, permits: usize) -> Self {
        self.permits = permits;
        self
    }

    /// Sets `wait`, `lease`, `token` or `permits` by name.
    ///
    /// # Errors
    /// `invalid_argument`, as [`LockOptions::set`].
    pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        fn given<T: Stored>(info: &OptionInfo, value: OptionValue<'_>) -> Result<Option<T>> {
            if value == OptionValue::Unset {
                Ok(None)
            } else {
                T::read(info, value).map(Some)
            }
        }
        let [wait, lease, token, permits] = ACQUIRE;
        match name {
            "wait" => self.wait = given(wait, value)?,
            "lease" => self.lease = given(lease, value)?,
            "token" => self.token = given(token, value)?,
            "permits" => self.permits = given(permits, value)?.unwrap_or(1),
            _ => return Err(unknown(name, Scope::Acquire, Spelling::SnakeCase)),
        }
        Ok(())
    }

    /// Checks the values that the typed setters stored without a check, for a lock of this kind.
    pub(crate) fn validate_for(&self, lock: &LockOptions) -> Result<()> {
        let kind = lock.kind;
        let [wait, lease, token, permits] = ACQUIRE;
        self.wait.check(wait)?;
        self.lease.check(lease)?;
        self.token.check(token)?;
        self.permits.check(permits)?;
        if let Some(wait) = self.wait.filter(|_| self.adopts) {
            let text = format!(
                "wait is {wait:?}, but a token is adopted at once or not at all; leave it out"
            );
            return Err(Error::invalid(text));
        }
        if self.permits > 1 && kind != Kind::Semaphore {
            let text = format!(
                "permits is {}, but a lock of the kind {} has none; use a semaphore",
                self.permits,
                kind.name()
            );
            return Err(Error::invalid(text));
        }
        if self.permits > lock.limit && lock.limit > 0 {
            let text = format!(
                "permits is {0}, but this semaphore was made with a limit of {1}; make it with a limit of at least {0}",
                self.permits, lock.limit
            );
            return Err(Error::invalid(text));
        }
        if self.token.is_some() && kind == Kind::Multi {
            let text = "token is given, but a multi lock takes none; acquire its locks singly";
            return Err(Error::invalid(text));
        }
        if self.token.is_some() && !kind.facts().takes_tokens {
            let text = format!(
                "token is given, but a lock of the kind {} has none; give the lock the kind simple",
                kind.name()
            );
            return Err(Error::invalid(text));
        }
        Ok(())
    }
}

impl LockOptions {
    /// The options of both sides of a read-write lock, to read and to write. The kind may be that of
    /// the client's locks, `own`, from which these options come.
    ///
    /// # Errors
    /// `invalid_argument` for a kind, which both sides have of their own.
    pub(crate) fn sides(self, own: Kind) -> Result<[LockOptions; 2]> {
        if self.kind != own && self.kind != Kind::default() {
            let text = format!(
                "kind is {:?}; leave it out: a read-write lock has its own",
                self.kind.name()
            );
            return Err(Error::invalid(text));
        }
        let read = LockOptions {
            kind: Kind::Read,
            // A reader changes nothing that would have to refuse an older holder.
            fencing: false,
            fencing_expires: false,
            ..self.clone()
        };
        let write = LockOptions {
            kind: Kind::Write,
            ..self
        };
        Ok([read, write])
    }

    /// These, as defaults of semaphores: without those options for which `validate_kind` refuses a
    /// semaphore. A client has them for its locks.
    pub(crate) fn of_semaphores(self) -> LockOptions {
        LockOptions {
            kind: Kind::Semaphore,
            reentrant: None,
            fencing: false,
            fencing_expires: false,
            ..self
        }
    }

    /// The options of a multi lock whose first lock has these.
    pub(crate) fn of_multi_lock(&self) -> LockOptions {
        LockOptions {
            kind: Kind::Multi,
            limit: 0,
            fair: false,
            ..self.clone()
        }
    }

    /// Checks what only some kinds of lock have. `own`: the client's defaults, which may have a
    /// `writer_preference` for its read-write locks: that is no mistake in another lock.
    pub(crate) fn validate_kind(&self, own: &LockOptions) -> Result<()> {
        if self.kind == Kind::Multi {
            let text = "kind is \"multi\", which is made of locks; make it by multi_lock";
            return Err(Error::invalid(text));
        }
        if self.kind == Kind::FairSemaphore {
            let text = "kind is a fair semaphore, which is a mode of semaphores; make a semaphore with the option fair";
            return Err(Error::invalid(text));
        }
        if self.kind == Kind::Read && (self.fencing || self.fencing_expires) {
            let text = "fencing is true, but a reader changes nothing and draws no token; leave it out for the kind read";
            return Err(Error::invalid(text));
        }
        if self.kind == Kind::Semaphore && (self.fencing || self.fencing_expires) {
            let text = "fencing is true, but permits have no order that a token could tell; leave it out for the kind semaphore";
            return Err(Error::invalid(text));
        }
        if self.kind == Kind::Semaphore && self.reentrant == Some(true) {
            let text = "reentrant is true, but each acquisition of a semaphore takes permits of its own; leave it out for the kind semaphore";
            return Err(Error::invalid(text));
        }
        let is_given = self.writer_preference != own.writer_preference;
        if is_given && !self.writer_preference.is_zero() && self.kind.side() == Side::Whole {
            let text = format!(
                " is {:?}, but a lock of the kind {} has no writers; use a read-write lock",
                self.writer_preference,
                self.kind.name()
            );
            let text = vec![Piece::Name("writer_preference"), text.into()];
            return Err(OptionFault::new("writer_preference", text).into());
        }
        if self.kind != Kind::Semaphore && self.limit > 0 {
            let text = format!(
                "limit is {}, but a lock of the kind {} has no permits; use a semaphore",
                self.limit,
                self.kind.name()
            );
            return Err(Error::invalid(text));
        }
        if self.kind != Kind::Semaphore && self.fair {
            let text = format!(
                "fair is true, but only semaphores have it, and this is a lock of the kind {}; leave it out, and give a \
                 lock the kind fair",
                self.kind.name()
            );
            return Err(Error::invalid(text));
        }
        Ok(())
    }

    /// Checks what a quorum has not.
    pub(crate) fn validate_for_quorum(&self) -> Result<()> {
        quorum::check_lock(self.kind, self.fencing || self.fencing_expires)
    }

    /// The kind as the wire has it.
    pub(crate) fn wire_kind(&self) -> Kind {
        match self.kind {
            Kind::Semaphore if self.fair => Kind::FairSemaphore,
            kind => kind,
        }
    }

    /// The terms of an acquisition with these options.
    pub(crate) fn terms(&self, acquire: &AcquireOptions) -> Terms {
        let fixed = acquire.lease.or(self.lease);
        let lease = self.kind.lease(fixed.unwrap_or(self.watchdog_lease));
        Terms {
            kind: self.wire_kind(),
            reentrant: self
                .reentrant
                .unwrap_or(!acquire.caller && self.kind.facts().reenters),
            lease: match fixed {
                _ if self.kind == Kind::Adaptive => Lease::Adaptive(lease),
                Some(_) => Lease::Fixed(lease),
                None => Lease::Watchdog(lease),
            },
            fencing: match (self.fencing, self.fencing_expires) {
                (_, true) => Fencing::Expiring,
                (true, false) => Fencing::Persistent,
                (false, false) => Fencing::Off,
            },
            max_hold: self.max_hold,
            replicas: u8::try_from(self.replicas).unwrap_or(u8::MAX),
            linger: self.linger,
            tied: acquire.tied,
            permits: match self.kind {
                Kind::Semaphore => u16::try_from(acquire.permits).unwrap_or(u16::MAX),
                _ => 0,
            },
            special: Special {
                limit: u32::try_from(self.limit).unwrap_or(u32::MAX),
                steal: acquire.steal,
                writer_preference: Some(self.writer_preference).filter(|time| !time.is_zero()),
            },
        }
    }
}

/// Checks a lease given to `extend`, by the bounds of the option `lease`.
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    let [_, info, ..] = ACQUIRE;
    lease.check(info)
}

/// Checks the number of permits of a semaphore, by the bounds of the option `limit`.
pub(crate) fn check_limit(limit: usize) -> Result<()> {
    match LOCK.iter().find(|info| info.name == "limit") {
        Some(info) => limit.check(info),
        None => Ok(()),
    }
}

/// Converts a time from another language's unit, and checks it by the row of the option `option`.
///
/// # Errors
/// `invalid_argument` when there is no such option, or when the value is out of its bounds.
pub fn read_duration(option: &str, value: OptionValue<'_>) -> Result<Duration> {
    match all_options().find(|info| info.name == option) {
        Some(info) => Stored::read(info, value),
        None => Err(unknown(option, Scope::Client, Spelling::SnakeCase)),
    }
}

/// Reads and checks a whole number by the row of the option `option`.
///
/// # Errors
/// `invalid_argument`, as [`read_duration`].
pub fn read_count(option: &str, value: OptionValue<'_>) -> Result<usize> {
    match all_options().find(|info| info.name == option) {
        Some(info) => Stored::read(info, value),
        None => Err(unknown(option, Scope::Client, Spelling::SnakeCase)),
    }
}

/// The spelling of option names in a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// The table's own: `watchdog_lease`.
    SnakeCase,
    /// `watchdogLease`.
    CamelCase,
}

impl Spelling {
    /// The name of an option or a counter in this spelling.
    pub fn of(self, name: &str) -> String {
        self.letters(name).collect()
    }

    fn letters(self, name: &str) -> impl Iterator<Item = char> {
        let mut begins = false;
        name.chars().filter_map(move |letter| match self {
            Spelling::SnakeCase => Some(letter),
            Spelling::CamelCase if letter == '_' => {
                begins = true;
                None
            }
            Spelling::CamelCase if std::mem::take(&mut begins) => Some(letter.to_ascii_uppercase()),
            Spelling::CamelCase => Some(letter),
        })
    }

    /// The option that is spelled like this.
    fn find(self, given: &str) -> Option<&'static OptionInfo> {
        all_options().find(|info| self.letters(info.name).eq(given.chars()))
    }
}

/// The options of a client, a lock or an acquisition, for bindings that have names and values.
pub trait SetOption {
    /// The place of these options.
    const SCOPE: Scope;

    /// Sets one option by its name in the table.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is unknown here, and for an unacceptable value.
    fn set_option(&mut self, name: &str, value: OptionValue<'_>) -> Result<()>;

    /// Sets one option by its name in a language's spelling.
    ///
    /// # Errors
    /// As [`set_option`](SetOption::set_option). The text has the names in that spelling.
    fn set_spelled(
        &mut self,
        spelling: Spelling,
        name: &str,
        value: OptionValue<'_>,
    ) -> Result<()> {
        match spelling.find(name) {
            Some(info) => self.set_option(info.name, value),
            None => Err(unknown(name, Self::SCOPE, spelling)),
        }
        .map_err(|error| error.spelled(|name| spelling.of(name)))
    }
}

impl SetOption for LockOptions {
    const SCOPE: Scope = Scope::Lock;

    fn set_option(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        self.set(name, value)
    }
}

impl SetOption for AcquireOptions {
    const SCOPE: Scope = Scope::Acquire;

    fn set_option(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        self.set(name, value)
    }
}

/// The names that other libraries have for our `lease`.
const LIKE_LEASE: [&str; 6] = [
    "ttl",
    "expire",
    "expires",
    "expiry",
    "expiration",
    "lock_timeout",
];

/// The options of other clients of Redis that our URL holds.
const IN_URL: [&str; 10] = [
    "url", "host", "port", "socket", "path", "db", "database", "user", "username", "password",
];

/// The error for a name that `scope` does not have. Tells whether it is an option of something
/// else, or suggests a similar name, or our name for it.
fn unknown(name: &str, scope: Scope, spelling: Spelling) -> Error {
    let here = || all_options().filter(|info| scope.takes(info.scope));
    let elsewhere = spelling.find(name).filter(|info| !scope.takes(info.scope));
    let suggestion = meant(name, here().map(|info| info.name))
        .filter(|_| elsewhere.is_none())
        .or_else(|| is_any(name, &LIKE_LEASE).then_some("lease"));
    let in_url = scope == Scope::Client && is_any(name, &IN_URL);
    let given: String = name.chars().take(64).collect();
    let mut text = match elsewhere {
        Some(info) => vec!["\"".into(), Piece::Name(info.name), "\"".into()],
        None => vec![format!("{given:?}").into()],
    };
    text.push(format!(" is no option of {}; ", scope.of()).into());
    match (elsewhere, suggestion) {
        (Some(other), _) => text.push(format!("it is an option of {}", other.scope.of()).into()),
        (None, Some(near)) => {
            text.extend(["did you mean ".into(), Piece::Name(near), "?".into()]);
        }
        (None, None) if in_url => text.push(format!("it stands in the URL: {SYNTAX}").into()),
        (None, None) => {
            for (at, info) in here().enumerate() {
                let before = if at == 0 { "there are " } else { ", " };
                text.extend([before.into(), Piece::Name(info.name)]);
            }
        }
    }
    let mut fault = OptionFault::new(given, text);
    fault.suggestion = suggestion;
    fault.lists_names = elsewhere.is_none() && suggestion.is_none() && !in_url;
    fault.into()
}

/// The name that was probably meant, if any is alike.
pub fn meant<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .filter(|known| likeness(given, known))
        .min_by_key(|known| known.len())
}

/// Whether a name is one of these, however a language spells it.
fn is_any(name: &str, known: &[&str]) -> bool {
    let bare = |name: &str| name.replace('_', "").to_ascii_lowercase();
    known.iter().any(|known| bare(known) == bare(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn refused(name: &str, value: OptionValue<'_>) -> String {
        let error = LockOptions::new().set(name, value).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn the_defaults_and_values_shown_are_the_true_ones() {
        for (info, default, value) in ClientOptions::shown()
            .into_iter()
            .chain(LockOptions::shown())
        {
            assert_eq!(
                info.default.split(':').next(),
                Some(&*default),
                "{}",
                info.name
            );
            assert_eq!(info.r#type.to_string(), value, "{}", info.name);
        }
    }

    #[test]
    fn the_defaults_are_acceptable() {
        ClientOptions::new().validate().expect("client");
        LockOptions::new().validate().expect("lock");
        AcquireOptions::new()
            .validate_for(&LockOptions::new().kind(Kind::Reentrant))
            .expect("acquire");
    }

    #[test]
    fn names_are_unique_within_what_takes_them() {
        for scope in [Scope::Client, Scope::Lock, Scope::Acquire] {
            let mut names: Vec<&str> = all_options()
                .filter(|info| scope.takes(info.scope))
                .map(|info| info.name)
                .collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{scope:?}");
        }
    }

    #[test]
    fn every_option_can_be_set_by_name_and_unset() {
        for info in all_options() {
            let value = match info.r#type {
                Type::Duration { .. } => OptionValue::Text("50s"),
                Type::Flag => OptionValue::Text("true"),
                Type::Count { .. } => OptionValue::Text("7"),
                Type::Word { .. } | Type::Text { .. } => OptionValue::Text("shop"),
                Type::Pem => OptionValue::Text("/a/file.pem"),
                Type::Choice(words) => OptionValue::Text(words[words.len() - 1]),
            };
            for value in [value, OptionValue::Unset] {
                match info.scope {
                    Scope::Client => ClientOptions::new().set(info.name, value),
                    Scope::Lock => LockOptions::new().set(info.name, value),
                    Scope::Acquire => AcquireOptions::new().set(info.name, value),
                }
                .unwrap_or_else(|error| panic!("{}: {error}", info.name));
            }
        }
    }

    #[test]
    fn setters_by_name_and_by_type_do_the_same() {
        let mut client = ClientOptions::new();
        client
            .set("recheck", OptionValue::Seconds(0.5))
            .expect("accepted");
        client
            .set("client_name", OptionValue::Text("shop"))
            .expect("accepted");
        client
            .set("tracking", OptionValue::Flag(false))
            .expect("accepted");
        client
            .set("events", OptionValue::Millis(7.0))
            .expect("accepted");
        assert_eq!(
            client,
            ClientOptions::new()
                .recheck(ms(500))
                .client_name("shop")
                .tracking(false)
                .events(7)
        );

        let mut lock = LockOptions::new();
        lock.set("lease", OptionValue::Millis(2500.0))
            .expect("accepted");
        assert_eq!(lock, LockOptions::new().lease(ms(2500)));
        lock.set("lease", OptionValue::Unset).expect("accepted");
        assert_eq!(lock, LockOptions::new());
    }

    #[test]
    fn typed_setters_have_the_same_bounds() {
        assert!(LockOptions::new().lease(ms(99)).validate().is_err());
        assert!(LockOptions::new().lease(ms(100)).validate().is_ok());
        assert!(
            LockOptions::new()
                .max_hold(YEAR + ms(1))
                .validate()
                .is_err()
        );
        assert!(
            AcquireOptions::new()
                .lease(ms(1))
                .validate_for(&LockOptions::new().kind(Kind::Simple))
                .is_err()
        );
        assert_eq!(AcquireOptions::new().wait(Duration::MAX).wait, None);
        assert!(
            ClientOptions::new()
                .client_name("two words")
                .validate()
                .is_err()
        );
        assert!(ClientOptions::new().events(1_000_001).validate().is_err());
        assert!(check_lease(ms(99)).is_err());
    }

    #[test]
    fn an_unknown_name_gets_a_hint() {
        let value = OptionValue::Flag(true);
        assert_eq!(
            refused("leese", value),
            "\"leese\" is no option of a lock; did you mean lease?"
        );
        assert_eq!(
            refused("watchdogLease", value),
            "\"watchdogLease\" is no option of a lock; did you mean watchdog_lease?"
        );
        assert_eq!(
            refused("recheck", value),
            "\"recheck\" is no option of a lock; it is an option of a client"
        );
        assert!(refused("x", value).ends_with(
            "there are kind, reentrant, lease, watchdog_lease, fencing, fencing_expires, max_hold, replicas, linger, writer_preference, limit, fair"
        ));
        for foreign in ["ttl", "TTL", "expire", "lockTimeout"] {
            let text = refused(foreign, value);
            assert!(text.ends_with("; did you mean lease?"), "{text}");
        }
        for place in ["host", "PORT", "userName", "password", "db"] {
            let error = ClientOptions::new().set(place, value).expect_err("refused");
            let text = error.message();
            assert!(
                text.contains(" is no option of a client; it stands in the URL: redis://["),
                "{text}"
            );
            assert!(!error.option_fault().expect("an option").lists_names);
            assert!(refused(place, value).contains("; there are "));
        }
        let client = ClientOptions::new()
            .set("watchdog_leas", value)
            .expect_err("refused");
        assert!(
            client.message().ends_with("did you mean watchdog_lease?"),
            "{client}"
        );
        assert!(refused(&"ü".repeat(100_000), value).len() < 400);
    }

    #[test]
    fn an_option_is_known_by_its_name_in_the_spelling_of_a_language() {
        let set = |name: &str| {
            let error = LockOptions::new()
                .set_spelled(Spelling::CamelCase, name, OptionValue::Millis(7.0))
                .expect_err("refused");
            (error.message().to_owned(), error.option_fault().cloned())
        };
        let (text, fault) = set("watchdogLease");
        assert_eq!(
            text,
            "watchdogLease is 7 ms; give it a time from 100 ms to 24 h"
        );
        let fault = fault.expect("an option");
        assert_eq!(fault.option, "watchdog_lease");
        assert_eq!(fault.value.as_deref(), Some("7 ms"));
        assert_eq!(fault.allowed.as_deref(), Some("a time from 100 ms to 24 h"));
        let (text, fault) = set("watchdog_lease");
        assert_eq!(
            text,
            "\"watchdog_lease\" is no option of a lock; did you mean watchdogLease?"
        );
        assert_eq!(fault.expect("an option").suggestion, Some("watchdog_lease"));
        assert_eq!(
            set("connectTimeout").0,
            "\"connectTimeout\" is no option of a lock; it is an option of a client"
        );
        let (text, fault) = set("x_y");
        assert!(
            text.starts_with(
                "\"x_y\" is no option of a lock; there are kind, reentrant, lease, watchdogLease"
            ),
            "{text}"
        );
        assert!(fault.expect("an option").lists_names);
    }

    #[test]
    fn a_token_is_for_simple_kinds() {
        let token = |text: &str| AcquireOptions::new().token(text);
        let error = token("t")
            .validate_for(&LockOptions::new().kind(Kind::Reentrant))
            .expect_err("refused");
        assert!(error.message().contains("kind simple"), "{error}");
        token("t")
            .validate_for(&LockOptions::new().kind(Kind::Adaptive))
            .expect("accepted");
        for bad in ["", &*"x".repeat(513)] {
            assert!(
                token(bad)
                    .validate_for(&LockOptions::new().kind(Kind::Simple))
                    .is_err()
            );
            assert!(
                AcquireOptions::new()
                    .set("token", OptionValue::Text(bad))
                    .is_err()
            );
        }
    }

    #[test]
    fn a_kind_says_how_it_is_held() {
        let terms = |kind| {
            LockOptions::new()
                .kind(kind)
                .lease(ms(2500))
                .terms(&AcquireOptions::new())
        };
        let held = |kind| (terms(kind).lease, terms(kind).reentrant);
        assert_eq!(held(Kind::Reentrant), (Lease::Fixed(ms(2500)), true));
        assert_eq!(held(Kind::Simple), (Lease::Fixed(ms(2500)), false));
        assert_eq!(held(Kind::Article), (Lease::Fixed(secs(3)), false));
        assert_eq!(held(Kind::Adaptive), (Lease::Adaptive(secs(3)), true));
        let plain = LockOptions::new()
            .reentrant(false)
            .terms(&AcquireOptions::new());
        assert!(!plain.reentrant);
        let text = refused("kind", OptionValue::Text("fairest"));
        assert!(
            text.starts_with("kind is \"fairest\"; give it reentrant, simple, redis-py,"),
            "{text}"
        );
    }

    #[test]
    fn a_lease_of_the_acquisition_comes_first() {
        let lock = LockOptions::new().lease(secs(9)).fencing(true);
        assert_eq!(
            lock.terms(&AcquireOptions::new()).lease,
            Lease::Fixed(secs(9))
        );
        assert_eq!(
            lock.terms(&AcquireOptions::new().lease(secs(2))).lease,
            Lease::Fixed(secs(2))
        );
        assert_eq!(
            lock.terms(&AcquireOptions::new()).fencing,
            Fencing::Persistent
        );
        let expiring = LockOptions::new()
            .fencing_expires(true)
            .terms(&AcquireOptions::new());
        assert_eq!(expiring.fencing, Fencing::Expiring);
        let watched = LockOptions::new().terms(&AcquireOptions::new());
        assert_eq!(
            (watched.lease, watched.fencing),
            (Lease::Watchdog(secs(30)), Fencing::Off)
        );
    }
}
