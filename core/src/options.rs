//! The option table: every option with its type, bounds, default and meaning.
//!
//! This file is the only place where options are defined. Python's keyword arguments, Node's
//! option objects, C's `redlatch_options_set` and `docs/options.md` end in [`Options::set`] or are
//! made from [`OPTIONS`].

use std::time::Duration;

use crate::engine::{Lease, Terms};
use crate::error::{Error, Result};
use crate::owner::Key;
use crate::wire::Fencing;

/// Where an option can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// When a client is opened.
    Client,
    /// When a lock is named; a client takes it as the default for its locks.
    Lock,
    /// With each acquisition.
    Acquire,
}

/// What an option's value is.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        /// The largest.
        most: u64,
    },
    /// Printable ASCII without spaces, at most this long.
    Word {
        /// The most characters.
        most: usize,
    },
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct OptionInfo {
    /// The name, in `snake_case`.
    pub name: &'static str,
    /// Where it can be given.
    pub scope: Scope,
    /// What it is.
    pub r#type: Type,
    /// Its default, for people.
    pub default: &'static str,
    /// What it does, in one or two sentences.
    pub doc: &'static str,
}

/// A value as another language gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OptionValue<'a> {
    /// A time in seconds (Python).
    Seconds(f64),
    /// A time in milliseconds, or a whole number (Node, C).
    Millis(f64),
    /// Yes or no.
    Flag(bool),
    /// Text: a word, `true`, `250` (milliseconds or a count), `250ms`, `2.5s`, `10m`, `1h`.
    Text(&'a str),
    /// The default.
    Unset,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The longest wait; beyond a hundred years one waits for ever.
const LONGEST_WAIT: Duration = secs(100 * 365 * 24 * 3600);

/// Declares the options of one struct: fields with their defaults, setters, and rows of the table.
macro_rules! options {
    (
        $(#[$meta:meta])*
        $name:ident in $scope:ident, $rows:ident {
            $( $field:ident: $rust:ty = $default:expr, $shown:literal, $kind:expr, $store:ident, $doc:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $( pub(crate) $field: $rust, )+ }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )+ }
            }
        }

        const $rows: &[OptionInfo] = &[ $( OptionInfo {
            name: stringify!($field), scope: Scope::$scope, r#type: $kind, default: $shown, doc: $doc,
        }, )+ ];

        impl $name {
            /// The options with their defaults.
            pub fn new() -> Self {
                Self::default()
            }

            /// Whether the table has an option of this name here.
            pub fn has(name: &str) -> bool {
                $rows.iter().any(|info| info.name == name)
            }

            /// Sets an option by its name in the table.
            ///
            /// # Errors
            /// `invalid_argument` for an unknown name and for a value that is not acceptable; the
            /// text tells what would be.
            pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
                let before = $name::default();
                match name {
                    $( stringify!($field) => {
                        self.$field = if value == OptionValue::Unset {
                            before.$field
                        } else {
                            $store(&find(name)?, value)?.into()
                        };
                        Ok(())
                    } )+
                    _ => Err(unknown(name, $rows)),
                }
            }
        }
    };
}

options! {
    /// Options of a client.
    ClientOptions in Client, CLIENT {
        connect_timeout: Duration = secs(5), "5 s", Type::Duration { least: ms(10), most: secs(300) }, duration,
            "How long one attempt to connect may take, log-in included.";
        recheck: Duration = secs(5), "5 s", Type::Duration { least: ms(100), most: secs(3600) }, duration,
            "The longest time between two tries of a waiter, should every wake-up be lost. Spread by a tenth.";
        outage: Duration = secs(10), "10 s", Type::Duration { least: Duration::ZERO, most: secs(3600) }, duration,
            "How long callers wait for a server that had been reached and cannot be reached now.";
        close_limit: Duration = secs(5), "5 s", Type::Duration { least: Duration::ZERO, most: secs(600) }, duration,
            "How long closing may take to release what is held.";
        exit_limit: Duration = secs(1), "1 s", Type::Duration { least: Duration::ZERO, most: secs(60) }, duration,
            "The same, when the program ends without closing (Python).";
        tracking: bool = true, "true", Type::Flag, flag,
            "Ask the server to tell when the key of a hold changes, so that a loss is known in milliseconds.";
        client_name: String = "redlatch".to_owned(), "redlatch", Type::Word { most: 64 }, word,
            "The name of the connections in CLIENT LIST.";
        events: usize = 1024, "1024", Type::Count { most: 1_000_000 }, count,
            "How many events are kept for a reader; 0 keeps none.";
        debug_events: bool = false, "false", Type::Flag, flag,
            "Keep events about single locks as well: acquired, waiting, released.";
    }
}

options! {
    /// Options of a lock; a client takes them as defaults for its locks.
    LockOptions in Lock, LOCK {
        lease: Option<Duration> = None, "none: the watchdog renews", LEASE, duration,
            "A fixed lease: the lock ends by itself after this time and is never renewed.";
        watchdog_lease: Duration = secs(30), "30 s", LEASE, duration,
            "The lease that the watchdog renews every third of it, for as long as the lock is held.";
        fencing: bool = false, "false", Type::Flag, flag,
            "Draw a fencing token with every first acquisition: a number that grows and grows.";
        fencing_persist: bool = false, "false", Type::Flag, flag,
            "Keep the counter of the tokens for ever, instead of 25 hours after its last use. Implies `fencing`.";
        max_hold: Option<Duration> = None, "none", Type::Duration { least: ms(100), most: secs(365 * 24 * 3600) }, duration,
            "The longest time a hold may last, renewed or not.";
    }
}

const LEASE: Type = Type::Duration { least: ms(100), most: secs(24 * 3600) };

/// Options of one acquisition.
const ACQUIRE: &[OptionInfo] = &[
    OptionInfo {
        name: "wait",
        scope: Scope::Acquire,
        r#type: Type::Duration { least: Duration::ZERO, most: LONGEST_WAIT },
        default: "none: for ever",
        doc: "How long to wait for the lock; 0 tries once.",
    },
    OptionInfo {
        name: "lease",
        scope: Scope::Acquire,
        r#type: LEASE,
        default: "the lock's",
        doc: "A fixed lease for this acquisition, in place of the lock's lease or its watchdog.",
    },
];

/// Every option there is.
pub fn all_options() -> impl Iterator<Item = &'static OptionInfo> {
    CLIENT.iter().chain(LOCK).chain(ACQUIRE)
}

/// How one acquisition is made; see [`Lock::acquire_with`](crate::Lock::acquire_with).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireOptions {
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) key: Key,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        AcquireOptions { wait: None, lease: None, key: Key::Once }
    }
}

impl AcquireOptions {
    /// Waits for ever, with the lock's lease, as an owner of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits at most this long; zero tries once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Holds with a fixed lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Acquires as the owner behind this key: if it holds the lock already, it enters once more.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets `wait` or `lease` by name.
    ///
    /// # Errors
    /// `invalid_argument`, as [`LockOptions::set`].
    pub fn set(&mut self, name: &str, value: OptionValue<'_>) -> Result<()> {
        let info = ACQUIRE.iter().find(|info| info.name == name).ok_or_else(|| unknown(name, ACQUIRE))?;
        let value = if value == OptionValue::Unset { None } else { Some(duration(info, value)?) };
        match name {
            "wait" => self.wait = value,
            _ => self.lease = value,
        }
        Ok(())
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let checked = [("wait", self.wait), ("lease", self.lease)];
        for (info, (_, value)) in ACQUIRE.iter().zip(checked) {
            if let Some(value) = value {
                within(info, value, value.as_secs_f64() * 1000.0, "ms")?;
            }
        }
        Ok(())
    }
}

impl ClientOptions {
    pub(crate) fn validate(&self) -> Result<()> {
        let times = [
            ("connect_timeout", self.connect_timeout),
            ("recheck", self.recheck),
            ("outage", self.outage),
            ("close_limit", self.close_limit),
            ("exit_limit", self.exit_limit),
        ];
        for (name, value) in times {
            in_bounds(name, value)?;
        }
        word(&find("client_name")?, OptionValue::Text(&self.client_name)).map(drop)
    }
}

impl LockOptions {
    /// See the table: a fixed lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// See the table: the lease that the watchdog renews.
    #[must_use]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = lease;
        self
    }

    /// See the table: draw fencing tokens.
    #[must_use]
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.fencing = fencing;
        self
    }

    /// See the table: keep the counter of fencing tokens for ever.
    #[must_use]
    pub fn fencing_persist(mut self, persist: bool) -> Self {
        self.fencing_persist = persist;
        self
    }

    /// See the table: the longest time a hold may last.
    #[must_use]
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        in_bounds("watchdog_lease", self.watchdog_lease)?;
        if let Some(lease) = self.lease {
            in_bounds("lease", lease)?;
        }
        self.max_hold.map_or(Ok(()), |most| in_bounds("max_hold", most))
    }

    /// How an acquisition with these options is held.
    pub(crate) fn terms(&self, acquire: &AcquireOptions) -> Terms {
        let fixed = acquire.lease.or(self.lease).map(Lease::Fixed);
        Terms {
            lease: fixed.unwrap_or(Lease::Watchdog(self.watchdog_lease)),
            fencing: match (self.fencing, self.fencing_persist) {
                (_, true) => Fencing::Persistent,
                (true, false) => Fencing::Expiring,
                (false, false) => Fencing::Off,
            },
            max_hold: self.max_hold,
        }
    }
}

/// Checks a time given for `extend`, by the bounds of a lease.
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    in_bounds("lease", lease)
}

/// Reads a time in another language's unit, by the row of that option.
///
/// # Errors
/// `invalid_argument` when the option is unknown or the value is out of its bounds.
pub fn read_duration(option: &str, value: OptionValue<'_>) -> Result<Duration> {
    duration(&find(option)?, value)
}

fn find(name: &str) -> Result<OptionInfo> {
    all_options().find(|info| info.name == name).copied().ok_or_else(|| unknown(name, LOCK))
}

fn unknown(name: &str, rows: &[OptionInfo]) -> Error {
    let known: Vec<&str> = rows.iter().map(|info| info.name).collect();
    Error::invalid(format!("there is no option {name:?} here; there are {}", known.join(", ")))
}

fn in_bounds(name: &str, value: Duration) -> Result<()> {
    within(&find(name)?, value, value.as_secs_f64() * 1000.0, "ms").map(drop)
}

/// Checks a time against the bounds of its row; `shown` and `unit` are how the caller wrote it.
fn within(info: &OptionInfo, value: Duration, shown: f64, unit: &str) -> Result<Duration> {
    match info.r#type {
        Type::Duration { least, most } if !(least..=most).contains(&value) => {
            Err(out_of_bounds(info, shown, unit))
        }
        _ => Ok(value),
    }
}

fn out_of_bounds(info: &OptionInfo, shown: f64, unit: &str) -> Error {
    let Type::Duration { least, most } = info.r#type else { return wrong_type(info, "a time") };
    Error::invalid(format!("{} is {shown} {unit}; give it {least:?} to {most:?}", info.name))
}

fn wrong_type(info: &OptionInfo, given: &str) -> Error {
    let wanted = match info.r#type {
        Type::Duration { .. } => "a time",
        Type::Flag => "true or false",
        Type::Count { .. } => "a whole number",
        Type::Word { .. } => "a word of printable ASCII without spaces",
    };
    Error::invalid(format!("{} is {given}; give it {wanted}", info.name))
}

fn duration(info: &OptionInfo, value: OptionValue<'_>) -> Result<Duration> {
    let (number, unit, scale) = match value {
        OptionValue::Seconds(number) => (number, "s", 1.0),
        OptionValue::Millis(number) => (number, "ms", 0.001),
        OptionValue::Text(text) => parse_time(text).ok_or_else(|| wrong_type(info, &format!("{text:?}")))?,
        OptionValue::Flag(flag) => return Err(wrong_type(info, &flag.to_string())),
        OptionValue::Unset => return Err(wrong_type(info, "nothing")),
    };
    let time = Duration::try_from_secs_f64(number * scale).map_err(|_| out_of_bounds(info, number, unit))?;
    within(info, time, number, unit)
}

/// `250` and `250ms` are milliseconds, `2.5s` seconds, `10m` minutes, `1h` hours.
fn parse_time(text: &str) -> Option<(f64, &'static str, f64)> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (unit, scale) = match &text[digits.len()..] {
        "" | "ms" => ("ms", 0.001),
        "s" => ("s", 1.0),
        "m" => ("m", 60.0),
        "h" => ("h", 3600.0),
        _ => return None,
    };
    Some((digits.trim_end().parse().ok()?, unit, scale))
}

fn flag(info: &OptionInfo, value: OptionValue<'_>) -> Result<bool> {
    match value {
        OptionValue::Flag(flag) => Ok(flag),
        OptionValue::Text("true") => Ok(true),
        OptionValue::Text("false") => Ok(false),
        other => Err(wrong_type(info, &format!("{other:?}"))),
    }
}

fn count(info: &OptionInfo, value: OptionValue<'_>) -> Result<usize> {
    let number = match value {
        OptionValue::Seconds(number) | OptionValue::Millis(number) => Some(number),
        OptionValue::Text(text) => text.trim().parse().ok(),
        OptionValue::Flag(_) | OptionValue::Unset => None,
    };
    let Type::Count { most } = info.r#type else { return Err(wrong_type(info, "a number")) };
    let number = number.ok_or_else(|| wrong_type(info, &format!("{value:?}")))?;
    if number.fract() != 0.0 || !(0.0..=most as f64).contains(&number) {
        return Err(Error::invalid(format!(
            "{} is {number}; give it a whole number from 0 to {most}",
            info.name
        )));
    }
    Ok(number as usize)
}

fn word(info: &OptionInfo, value: OptionValue<'_>) -> Result<String> {
    let (OptionValue::Text(text), Type::Word { most }) = (value, info.r#type) else {
        return Err(wrong_type(info, "no text"));
    };
    if text.is_empty() || text.len() > most || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let text = format!(
            "{} is {text:?}; give it 1 to {most} printable ASCII characters without spaces",
            info.name
        );
        return Err(Error::invalid(text));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, value: OptionValue<'_>) -> String {
        LockOptions::new().set(name, value).expect_err("refused").to_string()
    }

    #[test]
    fn every_unit_means_the_same_time() {
        for value in [
            OptionValue::Seconds(2.5),
            OptionValue::Millis(2500.0),
            OptionValue::Text("2500"),
            OptionValue::Text("2500ms"),
            OptionValue::Text("2.5s"),
        ] {
            let mut options = LockOptions::new();
            options.set("lease", value).expect("accepted");
            assert_eq!(options.lease, Some(ms(2500)));
            options.set("lease", OptionValue::Unset).expect("unset");
            assert_eq!(options.lease, None);
        }
    }

    #[test]
    fn a_bad_time_is_refused_by_name_value_and_bounds() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.05, 90_000.0, 1e300] {
            let text = refused("lease", OptionValue::Seconds(bad));
            assert!(text.contains("lease") && text.contains("100ms"), "{text}");
        }
        assert!(refused("lease", OptionValue::Text("soon")).contains("soon"));
        assert!(refused("lease", OptionValue::Flag(true)).contains("a time"));
        assert!(refused("fencing", OptionValue::Millis(1.0)).contains("true or false"));
        assert!(refused("leese", OptionValue::Flag(true)).contains("lease, watchdog_lease"));
    }

    #[test]
    fn typed_setters_have_the_same_bounds() {
        assert!(LockOptions::new().lease(ms(99)).validate().is_err());
        assert!(LockOptions::new().max_hold(secs(400 * 24 * 3600)).validate().is_err());
        assert!(AcquireOptions::new().lease(ms(1)).validate().is_err());
        assert!(AcquireOptions::new().wait(Duration::MAX).validate().is_err());
        let client = ClientOptions { client_name: "two words".into(), ..ClientOptions::default() };
        assert!(client.validate().is_err());
    }

    #[test]
    fn counts_and_words_are_checked() {
        let mut client = ClientOptions::new();
        assert!(client.set("events", OptionValue::Millis(1.5)).is_err());
        assert!(client.set("events", OptionValue::Text("7")).is_ok());
        assert!(client.set("client_name", OptionValue::Text("a b")).is_err());
        assert_eq!(client.events, 7);
    }

    #[test]
    fn a_lease_of_the_acquisition_comes_first() {
        let lock = LockOptions::new().lease(secs(9)).fencing_persist(true);
        assert_eq!(lock.terms(&AcquireOptions::new()).lease, Lease::Fixed(secs(9)));
        assert_eq!(lock.terms(&AcquireOptions::new().lease(secs(2))).lease, Lease::Fixed(secs(2)));
        assert_eq!(lock.terms(&AcquireOptions::new()).fencing, Fencing::Persistent);
        let watched = LockOptions::new().terms(&AcquireOptions::new());
        assert_eq!((watched.lease, watched.fencing), (Lease::Watchdog(secs(30)), Fencing::Off));
    }
}
