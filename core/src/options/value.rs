//! Values of options: read from what other languages give, checked, and shown to people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{ClusterPubsub, OptionInfo, Protocol, Type};
use crate::error::{Error, OptionFault, Piece, Result};
use crate::wire::Kind;

/// A value as another language gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OptionValue<'a> {
    /// A time in seconds, or a whole number (Python).
    Seconds(f64),
    /// A time in milliseconds, or a whole number (Node, C).
    Millis(f64),
    /// Yes or no.
    Flag(bool),
    /// Text: a word, `true`, a count as `250`, a time as `250ms`, `2.5s`, `10m`, `1h`.
    Text(&'a str),
    /// The default.
    Unset,
}

/// The stored form of one row of the table.
pub(super) trait Stored: Sized {
    /// Reads and checks a value, which is not [`OptionValue::Unset`].
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self>;
    /// Checks a value that came as the type itself.
    fn check(&self, _: &OptionInfo) -> Result<()> {
        Ok(())
    }
    /// The value for people.
    #[cfg(test)]
    fn shown(&self) -> String;
}

impl Stored for Duration {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        let (number, unit) = match value {
            OptionValue::Seconds(number) => (number, Unit::Seconds),
            OptionValue::Millis(number) => (number, Unit::Millis),
            OptionValue::Text(text) => parse_time(text).ok_or_else(|| unacceptable(info, value))?,
            OptionValue::Flag(_) | OptionValue::Unset => return Err(unacceptable(info, value)),
        };
        let time = Duration::try_from_secs_f64(unit.seconds(number));
        let time = time.ok().filter(|time| is_within(info, *time));
        time.ok_or_else(|| refuse(info, &format!("{} {}", spelt(number, unit), unit.name())))
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        if is_within(info, *self) {
            Ok(())
        } else {
            Err(refuse(info, &human(*self)))
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        human(*self)
    }
}

impl Stored for bool {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        match value {
            OptionValue::Flag(flag) => Ok(flag),
            OptionValue::Text("true") => Ok(true),
            OptionValue::Text("false") => Ok(false),
            _ => Err(unacceptable(info, value)),
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Stored for usize {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        let count = match value {
            // A number that a usize can hold exactly, whatever its bounds are then.
            OptionValue::Seconds(number) | OptionValue::Millis(number) => {
                Some(number as usize).filter(|count| *count as f64 == number)
            }
            OptionValue::Text(text) => text.trim().parse().ok(),
            OptionValue::Flag(_) | OptionValue::Unset => None,
        };
        let count: usize = count.ok_or_else(|| unacceptable(info, value))?;
        count.check(info).map(|()| count)
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        match info.r#type {
            Type::Count { least, most } if !(least..=most).contains(self) => {
                Err(refuse(info, &self.to_string()))
            }
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Stored for String {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        let text = text_of(info, value)?.to_owned();
        text.check(info).map(|()| text)
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        let Type::Word { most } = info.r#type else {
            return Ok(());
        };
        let fits =
            (1..=most).contains(&self.len()) && self.bytes().all(|byte| byte.is_ascii_graphic());
        if fits {
            Ok(())
        } else {
            Err(unacceptable(info, OptionValue::Text(self)))
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.clone()
    }
}

impl Stored for Arc<str> {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        let text = Arc::from(text_of(info, value)?);
        Stored::check(&text, info).map(|()| text)
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        match info.r#type {
            Type::Text { most } if !(1..=most).contains(&self.len()) => {
                Err(unacceptable(info, OptionValue::Text(self)))
            }
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Options whose values are words.
macro_rules! chosen {
    ($($choice:ty),*) => {$(
        impl Stored for $choice {
            fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
                let choice = <$choice>::named(text_of(info, value)?);
                choice.ok_or_else(|| unacceptable(info, value))
            }

            #[cfg(test)]
            fn shown(&self) -> String {
                self.name().to_owned()
            }
        }
    )*};
}

chosen!(ClusterPubsub, Kind, Protocol);

/// An option that need not be given.
impl<T: Stored> Stored for Option<T> {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        T::read(info, value).map(Some)
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        self.as_ref().map_or(Ok(()), |given| given.check(info))
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.as_ref()
            .map_or_else(|| "none".to_owned(), Stored::shown)
    }
}

/// Certificates or a key: PEM text, or the path of a file of it. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem(String);

impl Pem {
    /// The path, if it is one.
    pub(crate) fn path(&self) -> Option<&str> {
        if self.0.contains("-----BEGIN ") {
            None
        } else {
            Some(&self.0)
        }
    }

    // Only TLS reads it.
    #[allow(dead_code)]
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Pem {
    fn from(text: &str) -> Self {
        Pem(text.to_owned())
    }
}

impl From<String> for Pem {
    fn from(text: String) -> Self {
        Pem(text)
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({:?})", self.path().unwrap_or("***"))
    }
}

impl Stored for Option<Pem> {
    fn read(info: &OptionInfo, value: OptionValue<'_>) -> Result<Self> {
        let pem = Some(Pem::from(text_of(info, value)?));
        pem.check(info).map(|()| pem)
    }

    fn check(&self, info: &OptionInfo) -> Result<()> {
        let is_path =
            |path: &str| !path.is_empty() && path.len() < 4096 && !path.contains(['\0', '\n']);
        match self.as_ref().and_then(Pem::path) {
            Some(path) if !is_path(path) => Err(refuse(info, "neither a path nor PEM")),
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    fn shown(&self) -> String {
        self.as_ref().map_or("none", |_| "given").to_owned()
    }
}

/// A unit of time that a caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Millis,
    Seconds,
    Minutes,
    Hours,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Millis => "ms",
            Unit::Seconds => "s",
            Unit::Minutes => "min",
            Unit::Hours => "h",
        }
    }

    /// Divides rather than multiplies by a fraction: a bound given in milliseconds is met exactly.
    fn seconds(self, number: f64) -> f64 {
        match self {
            Unit::Millis => number / 1000.0,
            Unit::Seconds => number,
            Unit::Minutes => number * 60.0,
            Unit::Hours => number * 3600.0,
        }
    }
}

/// `250ms` are milliseconds, `2.5s` seconds, `10m` minutes, `1h` hours. Only 0 needs no unit: some
/// programs count in seconds, others in milliseconds.
fn parse_time(text: &str) -> Option<(f64, Unit)> {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" if bare_number(text) == Some(0.0) => Unit::Millis,
        "ms" => Unit::Millis,
        "s" => Unit::Seconds,
        "m" | "min" => Unit::Minutes,
        "h" => Unit::Hours,
        _ => return None,
    };
    Some((number.trim_end().parse().ok()?, unit))
}

/// The number of a text that is nothing else.
fn bare_number(text: &str) -> Option<f64> {
    text.trim()
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

fn is_within(info: &OptionInfo, time: Duration) -> bool {
    match info.r#type {
        Type::Duration { least, most } => (least..=most).contains(&time),
        _ => true,
    }
}

/// A number as the language writes it that counts in this unit: Python in seconds, Node.js in
/// milliseconds.
fn spelt(number: f64, unit: Unit) -> String {
    let shown = number.to_string();
    match unit {
        Unit::Seconds => shown.to_ascii_lowercase(),
        _ => shown.replace("inf", "Infinity"),
    }
}

fn text_of<'a>(info: &OptionInfo, value: OptionValue<'a>) -> Result<&'a str> {
    match value {
        OptionValue::Text(text) => Ok(text),
        _ => Err(unacceptable(info, value)),
    }
}

/// A value of the wrong type or form.
fn unacceptable(info: &OptionInfo, value: OptionValue<'_>) -> Error {
    let shown = match value {
        OptionValue::Seconds(number) | OptionValue::Millis(number) => number.to_string(),
        OptionValue::Flag(flag) => flag.to_string(),
        OptionValue::Text(text) => format!("{:?}", text.chars().take(64).collect::<String>()),
        OptionValue::Unset => "not given".to_owned(),
    };
    match (info.r#type, value) {
        (Type::Duration { .. }, OptionValue::Text(text)) => {
            let lack = bare_number(text).map_or("", |_| " without a unit");
            refuse_with(
                info,
                &format!("{shown}{lack}"),
                ", such as 250ms, 30s, 5m or 1h",
            )
        }
        _ => refuse(info, &shown),
    }
}

fn refuse(info: &OptionInfo, shown: &str) -> Error {
    refuse_with(info, shown, "")
}

/// The same, with more about how a value is written.
fn refuse_with(info: &OptionInfo, shown: &str, form: &str) -> Error {
    let text = format!(" is {shown}; give it {}{form}", info.r#type);
    let mut fault = OptionFault::new(info.name, [Piece::Name(info.name), text.into()]);
    fault.value = Some(shown.to_owned());
    fault.allowed = Some(info.r#type.to_string());
    fault.into()
}

impl std::fmt::Display for Type {
    /// The acceptable values, for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Type::Duration { least, most } => {
                write!(f, "a time from {} to {}", human(*least), human(*most))
            }
            Type::Flag => f.write_str("true or false"),
            Type::Count { least, most } => write!(f, "a whole number from {least} to {most}"),
            Type::Pem => f.write_str("PEM text, or the path of a file of it"),
            Type::Word { most } => {
                write!(f, "1 to {most} printable ASCII characters without spaces")
            }
            Type::Text { most } => write!(f, "1 to {most} bytes of text"),
            Type::Choice(words) => match words.split_last() {
                Some((last, [])) => f.write_str(last),
                Some((last, others)) => write!(f, "{} or {last}", others.join(", ")),
                None => Ok(()),
            },
        }
    }
}

/// A time for people, in the largest unit that shows it exactly: `100 ms`, `24 h`, `365 days`.
fn human(time: Duration) -> String {
    const UNITS: [(&str, u64); 5] = [
        ("years", 365 * 86_400_000),
        ("days", 86_400_000),
        ("h", 3_600_000),
        ("min", 60_000),
        ("s", 1000),
    ];
    let Ok(ms) = u64::try_from(time.as_millis()) else {
        return format!("{} s", time.as_secs());
    };
    if Duration::from_millis(ms) != time {
        return format!("{} ms", time.as_secs_f64() * 1000.0);
    }
    // "2 days", but "24 h", and "100 years", but "365 days".
    let fits = |(name, size): &&(&str, u64)| {
        ms > 0 && ms % size == 0 && (ms > *size || !matches!(*name, "days" | "years"))
    };
    match UNITS.iter().find(fits) {
        Some((name, size)) => format!("{} {name}", ms / size),
        None => format!("{ms} ms"),
    }
}

/// Whether `given` is a misspelling of `known`: few letters differ, case and underscores aside.
pub(super) fn likeness(given: &str, known: &str) -> bool {
    let bare = |name: &str| -> Vec<char> {
        name.chars()
            .take(64)
            .filter(|c| *c != '_' && *c != '-')
            .map(|c| c.to_ascii_lowercase())
            .collect()
    };
    let (given, known) = (bare(given), bare(known));
    distance(&given, &known) <= known.len() / 4
}

/// How many letters have to be changed, added or removed to make one of the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::all_options;
    use super::*;

    fn info(name: &str) -> &'static OptionInfo {
        all_options()
            .find(|info| info.name == name)
            .expect("an option")
    }

    fn refused<T: Stored>(name: &str, value: OptionValue<'_>) -> String {
        let error = T::read(info(name), value).err().expect("refused");
        error.message().to_owned()
    }

    #[test]
    fn every_unit_means_the_same_time() {
        for value in [
            OptionValue::Seconds(2.5),
            OptionValue::Millis(2500.0),
            OptionValue::Text(" 2500ms "),
            OptionValue::Text("2.5s"),
            OptionValue::Text("2.5 s"),
        ] {
            assert_eq!(
                Duration::read(info("lease"), value).ok(),
                Some(Duration::from_millis(2500)),
                "{value:?}"
            );
        }
        for (text, seconds) in [("2m", 120), ("2min", 120), ("1h", 3600)] {
            let time = Duration::read(info("lease"), OptionValue::Text(text));
            assert_eq!(time.ok(), Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn every_bound_is_met_exactly_in_every_unit() {
        for row in all_options() {
            let Type::Duration { least, most } = row.r#type else {
                continue;
            };
            for bound in [least, most] {
                let seconds = bound.as_secs_f64();
                let millis = bound.as_millis() as f64;
                for value in [OptionValue::Seconds(seconds), OptionValue::Millis(millis)] {
                    assert_eq!(
                        Duration::read(row, value).ok(),
                        Some(bound),
                        "{} {value:?}",
                        row.name
                    );
                }
                let text = human(bound).replace("years", "").replace("days", "");
                if text == human(bound) {
                    assert_eq!(
                        Duration::read(row, OptionValue::Text(&text)).ok(),
                        Some(bound),
                        "{text}"
                    );
                }
            }
            assert!(
                Duration::read(row, OptionValue::Millis(most.as_millis() as f64 + 1.0)).is_err()
            );
        }
    }

    #[test]
    fn a_bad_time_is_refused_by_name_value_and_bounds() {
        let refused = refused::<Duration>;
        assert_eq!(
            refused("lease", OptionValue::Seconds(0.05)),
            "lease is 0.05 s; give it a time from 100 ms to 24 h"
        );
        assert_eq!(
            refused("lease", OptionValue::Millis(5.0)),
            "lease is 5 ms; give it a time from 100 ms to 24 h"
        );
        assert_eq!(
            refused("lease", OptionValue::Text("25h")),
            "lease is 25 h; give it a time from 100 ms to 24 h"
        );
        for bad in [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            -1.0,
            -1e-9,
            1e300,
        ] {
            assert!(
                refused("wait", OptionValue::Seconds(bad)).starts_with("wait is "),
                "{bad}"
            );
        }
        for bad in [
            "",
            "s",
            "soon",
            "5 parsecs",
            "1e",
            "nan",
            "inf",
            "-1s",
            "٣s",
            "5s5s",
        ] {
            assert!(
                refused("wait", OptionValue::Text(bad))
                    .contains("give it a time from 0 ms to 100 years"),
                "{bad}"
            );
        }
        let wait = |text| Duration::read(info("wait"), OptionValue::Text(text)).ok();
        assert_eq!(wait(" 0 "), Some(Duration::ZERO));
        for bare in ["5", "2500", "2.5", "-1"] {
            assert_eq!(
                refused("wait", OptionValue::Text(bare)),
                format!(
                    "wait is {bare:?} without a unit; give it a time from 0 ms to 100 years, such as 250ms, 30s, 5m or 1h"
                )
            );
        }
        assert!(
            refused("lease", OptionValue::Flag(true)).starts_with("lease is true; give it a time")
        );
        assert!(refused("lease", OptionValue::Text(&"x".repeat(100_000))).len() < 200);
    }

    #[test]
    fn flags_counts_and_words_are_checked() {
        for bad in [
            OptionValue::Millis(1.0),
            OptionValue::Text("yes"),
            OptionValue::Text(""),
        ] {
            assert!(refused::<bool>("fencing", bad).ends_with("give it true or false"));
        }
        assert_eq!(
            usize::read(info("events"), OptionValue::Text("7")).ok(),
            Some(7)
        );
        for bad in [-1.0, 1.5, 1e6 + 1.0, 1e300, f64::NAN] {
            let text = refused::<usize>("events", OptionValue::Millis(bad));
            assert!(
                text.ends_with("give it a whole number from 0 to 1000000"),
                "{text}"
            );
        }
        for bad in ["", "a b", "ü", "a\n", &"x".repeat(65)] {
            let text = refused::<String>("client_name", OptionValue::Text(bad));
            assert!(
                text.ends_with("give it 1 to 64 printable ASCII characters without spaces"),
                "{text}"
            );
        }
        assert!(
            refused::<String>("client_name", OptionValue::Flag(true))
                .starts_with("client_name is true")
        );
    }

    #[test]
    fn times_for_people() {
        for (ms, shown) in [
            (0, "0 ms"),
            (1500, "1500 ms"),
            (60_000, "1 min"),
            (86_400_000, "24 h"),
            (2 * 86_400_000, "2 days"),
            (365 * 86_400_000, "365 days"),
            (2 * 365 * 86_400_000, "2 years"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), shown);
        }
        assert_eq!(human(Duration::from_micros(1500)), "1.5 ms");
        assert!(human(Duration::MAX).ends_with(" s"));
    }
}
