//! Conversions of values and errors between Rust and Python.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use redlatch::embed::{Outcome, Scope, Type, all_options, meant, read_count, read_duration};
use redlatch::{Error, ErrorKind, LostReason, OptionValue};

use crate::counters::Permit;
use crate::guard::Guard;
use crate::kept::Kept;
use crate::operation::Answered;

/// Converts the core's error into the exception of its kind in `redlatch.exceptions`.
///
/// This runs no Python code. A daemon thread may get here while the interpreter exits, and a thread
/// that gives up the GIL then is killed in the middle of Rust code.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).map_or_else(|failure| failure, PyErr::from_value)
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static CLASSES: Kept<Py<PyDict>> = Kept::new();
    let classes = CLASSES.get_or_try_init(py, || {
        let exceptions = py.import("redlatch.exceptions")?;
        let classes = exceptions.getattr("BY_KIND")?.cast_into::<PyDict>()?;
        Ok::<_, PyErr>(classes.unbind())
    })?;
    let class = classes.bind(py).as_any().get_item(error.kind().name())?;
    let value = class.call1((format!("{error:#}"),))?;
    value.setattr("lock_name", error.lock_name())?;
    if let Some(reason) = error.lost_reason() {
        value.setattr("reason", reason.name())?;
    }
    Ok(value)
}

/// The error for an unacceptable argument.
pub(crate) fn invalid(py: Python<'_>, text: String) -> PyErr {
    raise(py, &Error::new(ErrorKind::InvalidArgument, text))
}

/// The remedy for text that is none.
pub(crate) const AS_UTF8: &str = "give it as a str that can be encoded as UTF-8";

/// Text that Rust can hold. `what` and `remedy` describe the error for anything else.
pub(crate) fn text<'a>(value: &'a Bound<'_, PyAny>, what: &str, remedy: &str) -> PyResult<&'a str> {
    value
        .cast::<PyString>()
        .ok()
        .and_then(|text| text.to_str().ok())
        .ok_or_else(|| {
            invalid(
                value.py(),
                format!("the {what} is {}; {remedy}", shown(value)),
            )
        })
}

/// A short form of a value, for people. Never fails.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value
        .repr()
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default();
    if text.chars().count() <= 80 {
        text
    } else {
        format!("{}...", text.chars().take(80).collect::<String>())
    }
}

/// The keywords of a lock beside its options.
pub(crate) const LOCK_KEYWORDS: &[&str] = &[
    "timeout",
    "on_lost",
    "canceller",
    "interrupt_on_lost",
    "cancel_on_lost",
];

/// Calls `set` for every entry of `options`, read by the option table. `keywords` are what may have
/// been meant beside options.
pub(crate) fn each_option(
    options: &Bound<'_, PyDict>,
    keywords: &[&str],
    mut set: impl FnMut(&str, OptionValue<'_>) -> redlatch::Result<()>,
) -> PyResult<()> {
    for (name, value) in options {
        let name = text(&name, "name of an option", "give it as a keyword")?;
        if ["wait", "blocking_timeout", "acquire_timeout"].contains(&name) {
            // The core's `wait` is called `timeout` here, as in Python's own locks.
            let text = format!(
                "{name:?} is no option here; how long to wait is called timeout, in seconds: of a lock, and of \
                 acquire(timeout=...)"
            );
            return Err(invalid(options.py(), text));
        }
        if all_options().all(|info| info.name != name)
            && let Some(near) = meant(name, keywords.iter().copied())
        {
            let text = if near == name {
                format!(
                    "{name:?} is not taken here; cancel_on_lost is for locks of redlatch.aio, canceller and interrupt_on_lost \
                     are for those of redlatch.Client"
                )
            } else {
                format!("{name:?} is no option of a lock; did you mean {near}?")
            };
            return Err(invalid(options.py(), text));
        }
        option(name, &value, &mut set)?;
    }
    Ok(())
}

/// Calls `set` for one option. Text is accepted only where a word is expected: "250" is not a time
/// in seconds.
pub(crate) fn option(
    name: &str,
    value: &Bound<'_, PyAny>,
    set: &mut impl FnMut(&str, OptionValue<'_>) -> redlatch::Result<()>,
) -> PyResult<()> {
    let wants_word = || {
        let is_word = |of| {
            matches!(
                of,
                Type::Word { .. } | Type::Text { .. } | Type::Choice(_) | Type::Pem
            )
        };
        all_options().all(|info| info.name != name || is_word(info.r#type))
    };
    let is_known = all_options().any(|info| info.name == name);
    let done = if value.is_none() || !is_known {
        set(name, OptionValue::Unset)
    } else if let Ok(flag) = value.cast::<PyBool>() {
        set(name, OptionValue::Flag(flag.is_true()))
    } else if let Ok(number) = value.extract::<f64>() {
        set(name, OptionValue::Seconds(number))
    } else if value.is_instance_of::<PyString>() && wants_word() {
        set(
            name,
            OptionValue::Text(text(value, name, "give it printable ASCII")?),
        )
    } else {
        let of = all_options()
            .find(|info| info.name == name)
            .map(|info| info.r#type);
        let remedy = match of {
            Some(of @ Type::Duration { .. }) => format!("{of}, as a number of seconds"),
            Some(of) => of.to_string(),
            None => String::new(), // the name was refused above
        };
        return Err(invalid(
            value.py(),
            format!("{name} is {}; give it {remedy}", shown(value)),
        ));
    };
    done.map_err(|error| raise(value.py(), &error))
}

/// Reads and checks a time in seconds, by the row of the option `name`; `called` is what its errors
/// call it.
#[pyfunction]
#[pyo3(signature = (name, value, called=None))]
pub(crate) fn seconds(name: &str, value: &Bound<'_, PyAny>, called: Option<&str>) -> PyResult<f64> {
    time(name, value, called).map(|time| time.as_secs_f64())
}

pub(crate) fn duration(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    time(name, value, None)
}

/// Reads and checks a whole number, by the row of the option `name`.
pub(crate) fn count(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let mut count = 0;
    option(name, value, &mut |name, value| {
        count = read_count(name, value)?;
        Ok(())
    })?;
    Ok(count)
}

/// Reads a whole number, whose bounds the core checks; `called` is what its errors call it.
pub(crate) fn whole(called: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    number(called, value, "give it a whole number")
}

/// Reads a whole number that is not negative, whose other bounds the core checks.
pub(crate) fn unsigned(called: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    number(called, value, "give it a whole number that is not negative")
}

pub(crate) fn number<'py, T: FromPyObjectOwned<'py>>(
    called: &str,
    value: &Bound<'py, PyAny>,
    remedy: &str,
) -> PyResult<T> {
    let number = value.extract::<T>().ok();
    number
        .filter(|_| !value.is_instance_of::<PyBool>())
        .ok_or_else(|| {
            invalid(
                value.py(),
                format!("{called} is {}; {remedy}", shown(value)),
            )
        })
}

pub(crate) fn time(
    name: &str,
    value: &Bound<'_, PyAny>,
    called: Option<&str>,
) -> PyResult<Duration> {
    let mut time = Duration::ZERO;
    option(name, value, &mut |name, value| {
        time = read_duration(name, value)
            .map_err(|error| error.spelled(|name| called.unwrap_or(name)))?;
        Ok(())
    })?;
    Ok(time)
}

/// Every kind of error: number, name, whether a retry can help, meaning.
#[pyfunction]
pub(crate) fn error_kinds() -> Vec<(u8, &'static str, bool, &'static str)> {
    let row = |kind: &ErrorKind| (kind.number(), kind.name(), kind.retryable(), kind.meaning());
    ErrorKind::ALL.iter().map(row).collect()
}

/// Keeps the first classes that it is given, and gives them to each further import of the package.
#[pyfunction]
pub(crate) fn keep_errors<'py>(classes: &Bound<'py, PyDict>) -> Bound<'py, PyDict> {
    static FIRST: Kept<Py<PyDict>> = Kept::new();
    let (py, made) = (classes.py(), || classes.clone().unbind());
    FIRST.get_or_init(py, made).bind(py).clone()
}

/// Every reason for a loss: number, name, meaning.
#[pyfunction]
pub(crate) fn lost_reasons() -> Vec<(u8, &'static str, &'static str)> {
    LostReason::ALL
        .iter()
        .map(|reason| (reason.number(), reason.name(), reason.meaning()))
        .collect()
}

/// Every option: name, scope, type, largest value (seconds, count or length), default, meaning.
#[pyfunction]
pub(crate) fn options() -> Vec<(
    &'static str,
    &'static str,
    &'static str,
    f64,
    &'static str,
    &'static str,
)> {
    let rows = all_options().map(|info| {
        let scope = match info.scope {
            Scope::Client => "client",
            Scope::Lock => "lock",
            _ => "acquire",
        };
        let (kind, most) = match info.r#type {
            Type::Duration { most, .. } => ("float", most.as_secs_f64()),
            Type::Count { most, .. } => ("int", most as f64),
            Type::Word { most } | Type::Text { most } => ("str", most as f64),
            Type::Pem => ("str", 0.0),
            Type::Choice(words) => ("Literal", words.len() as f64),
            _ => ("bool", 1.0),
        };
        (info.name, scope, kind, most, info.default, info.doc)
    });
    rows.collect()
}

/// The result of an operation, as a Python value.
pub(crate) fn value(py: Python<'_>, outcome: Outcome) -> Answered {
    match outcome {
        Outcome::Granted(guard) => Guard::new(guard).into_py_any(py),
        Outcome::Taken(permit) => Permit::new(permit).into_py_any(py),
        Outcome::Forced(flag) | Outcome::Set(flag) => flag.into_py_any(py),
        Outcome::Counted(permits) => (permits.available, permits.limit).into_py_any(py),
        Outcome::Number(number) => number.into_py_any(py),
        Outcome::Closed(names) => names.into_py_any(py),
        Outcome::Inspected(holders) => {
            let row = |holder: redlatch::Holder| {
                let remaining = holder.remaining.map(|remaining| remaining.as_secs_f64());
                let process = holder
                    .process
                    .map(|of| (of.client_name, of.language, of.pid, of.host));
                (holder.owner, holder.count, remaining, process)
            };
            let rows: Vec<_> = holders.into_iter().map(row).collect();
            rows.into_py_any(py)
        }
        _ => Ok(py.None()),
    }
}
