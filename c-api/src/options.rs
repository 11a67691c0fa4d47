//! Options by name and value, as text.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use redlatch::embed::{ClientBuilderExt, OptionInfo, Scope, Type, all_options};
use redlatch::{Client, Error, ErrorKind, LockOptions, OptionValue, Result};

use crate::arguments::Freed;
use crate::exports::exports;
use crate::locked;
use crate::status::{name_of, quiet_panics, redlatch_status};

/// A set of options, each a name and a value. May be used from any thread, by several at once, and
/// for any number of clients and locks; later changes do not reach these.
#[derive(Default)]
pub struct redlatch_options {
    /// `None` as value asks for the default.
    set: Mutex<Vec<(String, Option<String>)>>,
}

impl Freed for redlatch_options {}

impl redlatch_options {
    /// Applies every option, if there are some, to whatever takes options.
    fn each(
        options: Option<Arc<Self>>,
        mut apply: impl FnMut(&str, OptionValue<'_>) -> Result<()>,
    ) -> Result<()> {
        let set = options.as_ref().map(|options| locked(&options.set));
        let mut set = set.iter().flat_map(|set| set.iter());
        set.try_for_each(|(name, value)| apply(name, read(name, value.as_deref())))
    }

    /// The client of this URL, or of the environment's, with these options.
    pub(crate) fn client(options: Option<Arc<Self>>, url: Option<&str>) -> Result<Client> {
        quiet_panics();
        let mut builder = url
            .map_or_else(Client::builder_from_env, Client::builder)
            .language("c");
        Self::each(options, |name, value| builder.set(name, value))?;
        builder.build()
    }

    /// The options of a lock: these on top of its client's.
    pub(crate) fn lock(options: Option<Arc<Self>>, mut lock: LockOptions) -> Result<LockOptions> {
        Self::each(options, |name, value| lock.set(name, value))?;
        Ok(lock)
    }
}

/// A value for the core. A number alone is milliseconds, as in every parameter here.
fn read<'a>(name: &str, value: Option<&'a str>) -> OptionValue<'a> {
    let is_time =
        |info: &OptionInfo| info.name == name && matches!(info.r#type, Type::Duration { .. });
    match value {
        None => OptionValue::Unset,
        Some(text) => match text.trim().parse() {
            Ok(number) if f64::is_finite(number) && all_options().any(is_time) => {
                OptionValue::Millis(number)
            }
            _ => OptionValue::Text(text),
        },
    }
}

/// A name that no set of options has: whether it is for a client or a lock is not known yet, and an
/// option of an acquisition is a parameter in C.
fn in_terms_of_c(name: &str, error: Error) -> Error {
    let place = match name {
        "wait" | "wait_ms" => "the parameter wait_ms of redlatch_lock_acquire()",
        "timeout" => {
            "the parameter wait_ms of redlatch_lock_acquire(), or the option connect_timeout"
        }
        "lease_ms" => "the parameter lease_ms of redlatch_lock_acquire(), or the option lease",
        "token" => "redlatch_lock_set_token()",
        "permits" => "redlatch_semaphore_set_take()",
        _ => "",
    };
    if !place.is_empty() {
        let text = format!("there is no option {name:?} of clients or locks; use {place}");
        return Error::new(ErrorKind::InvalidArgument, text);
    }
    let Some(fault) = error.option_fault() else {
        return error;
    };
    let remedy = match fault.suggestion {
        Some(near) => format!("did you mean {near}?"),
        None if fault.lists_names => format!("there are {}", settable().join(", ")),
        // The value is what is wrong, or the text fits C.
        None => return error,
    };
    let text = format!("there is no option {:?}; {remedy}", fault.option);
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The names that a set of options takes.
fn settable() -> Vec<&'static str> {
    all_options()
        .filter(|option| option.scope != Scope::Acquire)
        .map(|option| option.name)
        .collect()
}

exports! {
    /// Makes an empty set of options. Free it with redlatch_options_free().
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    fn redlatch_options_new(options: *mut *mut redlatch_options) {
        options.give(Arc::default())
    }

    /// Sets an option. The table above lists the names and what they mean. Times are "250ms", "2.5s",
    /// "10m" or "1h", a number alone is milliseconds; flags are "true" or "false". NULL as value stands
    /// for the default. An option of a lock that is given to a client is the default of its locks.
    ///
    ///     redlatch_options *options = NULL;
    ///     redlatch_client *client = NULL;
    ///     if (redlatch_options_new(&options) != REDLATCH_OK ||
    ///         redlatch_options_set(options, "watchdog_lease", "10s") != REDLATCH_OK ||
    ///         redlatch_client_open(NULL, options, &client) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///     redlatch_options_free(options);
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: there is no option of this name, the value is not of its type or
    ///   out of its bounds, an argument is NULL (but value), or not UTF-8.
    fn redlatch_options_set(options: *mut redlatch_options, name: *const c_char,
        value: *const c_char) {
        let (name, value) = (name.text()?, value.optional()?);
        // Refused here, where the mistake is, and not only when the options are used.
        Client::builder_from_env()
            .set(name, read(name, value))
            .map_err(|error| in_terms_of_c(name, error))?;
        let mut set = locked(&options.set);
        set.retain(|(known, _)| known != name);
        set.push((name.to_owned(), value.map(str::to_owned)));
        Ok(())
    }

    /// The names of all options there are, one for each index from 0; NULL after the last. The
    /// options of an acquisition, which are parameters in C, come last. Static.
    fn redlatch_options_name(index: usize) -> *const c_char = ptr::null() => {
        static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
        name_of(&NAMES, all_options().map(|option| option.name), index)
    };

    /// Frees a set of options; NULL is allowed.
    free redlatch_options_free(options: *mut redlatch_options);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_of_an_acquisition_has_its_place_in_c() {
        let settable = settable();
        let others: Vec<&str> = all_options()
            .map(|option| option.name)
            .filter(|name| !settable.contains(name))
            .collect();
        assert!(others.len() >= 3, "{others:?}");
        for name in others {
            let error = Client::builder_from_env()
                .set(name, OptionValue::Unset)
                .expect_err("no option of a client");
            let error = in_terms_of_c(name, error);
            assert!(error.message().contains("; use "), "{error}");
        }
    }
}
