//! The values that cross the border to JavaScript, and their conversions.

use std::error::Error as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use napi::Either;
use napi::bindgen_prelude::{BigInt, Either4, Either6, Null};
use napi_derive::napi;
use redlatch::embed::exit::uninterrupted;
use redlatch::embed::{Outcome, SetOption, Spelling};
use redlatch::{Error, ErrorKind, Event, Hold, LostReason, OptionValue, Result};

use crate::border::Id;

/// The spelling of options and counters.
pub(crate) const SPELLING: Spelling = Spelling::CamelCase;

/// Names of options; absent when there are none.
pub(crate) type Names = Option<Vec<String>>;
/// Their values, in the same order.
pub(crate) type Values = Option<Vec<Value>>;
/// The value of an option; null is the default.
pub(crate) type Value = Either4<f64, bool, String, Null>;
/// The result of a function that can fail. Nothing is thrown across the border.
pub(crate) type Checked<T> = Either<T, Failure>;

/// The result of a call: its id if the answer comes later, the negated id if it is done without a
/// value, or the answer. When answers are drained: the negated id of the only answer, or all of
/// them.
pub(crate) type Asked = Either<Id, Batch>;

/// An error of the core. JavaScript makes its own error of it.
#[napi(object)]
pub struct Failure {
    /// The number of its kind.
    pub kind: u32,
    /// The text, with the name of the lock.
    pub message: String,
    /// The name of the lock.
    pub lock_name: Option<String>,
    /// The number of the lost reason.
    pub reason: Option<u32>,
    /// The error of the system behind it.
    pub cause: Option<Cause>,
    /// Whether the text ends with the names of all options that there are.
    pub lists_options: bool,
}

impl From<redlatch::Error> for Failure {
    fn from(error: redlatch::Error) -> Self {
        let error = error.spelled(|name| SPELLING.of(name));
        Failure {
            lists_options: error.option_fault().is_some_and(|fault| fault.lists_names),
            kind: error.kind().number().into(),
            message: error.named_message(),
            lock_name: error.lock_name().map(str::to_owned),
            reason: error.lost_reason().map(|reason| reason.number().into()),
            cause: error.source().map(Cause::from),
        }
    }
}

/// The error behind an error.
#[napi(object)]
pub struct Cause {
    /// The text.
    pub message: String,
    /// The code that Node.js gives such an error.
    pub code: Option<String>,
}

impl From<&(dyn std::error::Error + 'static)> for Cause {
    fn from(error: &(dyn std::error::Error + 'static)) -> Self {
        let code = error
            .downcast_ref::<io::Error>()
            .and_then(|error| code(error.kind()));
        Cause {
            message: error.to_string(),
            code: code.map(str::to_owned),
        }
    }
}

/// The numbers of systems differ, so the kind tells the code.
fn code(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::ConnectionReset => "ECONNRESET",
        io::ErrorKind::ConnectionAborted => "ECONNABORTED",
        io::ErrorKind::BrokenPipe => "EPIPE",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::NotFound => "ENOENT",
        io::ErrorKind::PermissionDenied => "EACCES",
        _ => return None,
    })
}

/// Runs a function that may fail or panic. Both become a [`Failure`]; neither crosses the border.
pub(crate) fn caught<T>(act: impl FnOnce() -> Result<T>) -> Checked<T> {
    let result = uninterrupted(|| catch_unwind(AssertUnwindSafe(act))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Error::new(
            ErrorKind::Internal,
            format!("a panic in the Node.js binding: {text}"),
        ))
    });
    match result {
        Ok(value) => Either::A(value),
        Err(error) => Either::B(error.into()),
    }
}

/// Converts the value of an option for the core.
pub(crate) fn option(value: &Value) -> OptionValue<'_> {
    match value {
        Either4::A(number) => OptionValue::Millis(*number),
        Either4::B(flag) => OptionValue::Flag(*flag),
        Either4::C(text) => OptionValue::Text(text),
        Either4::D(_) => OptionValue::Unset,
    }
}

/// Sets options one by one.
pub(crate) fn set_all(to: &mut impl SetOption, names: &Names, values: &Values) -> Result<()> {
    let mut all = names.iter().flatten().zip(values.iter().flatten());
    all.try_for_each(|(name, value)| to.set_spelled(SPELLING, name, option(value)))
}

/// A value in a [`Batch`].
type Answer = Either6<bool, BigInt, Vec<Holder>, Vec<String>, Permits, Vec<Part>>;

/// All waiting answers. Each list has the id of a call before its value. A negated id has no value
/// behind it.
#[napi(object)]
#[derive(Default)]
pub struct Batch {
    /// Calls that succeeded, with their values, which may be numbers like the ids.
    pub done: Vec<Either<Id, Answer>>,
    /// Calls that failed.
    pub failed: Option<Vec<Either<Id, Failure>>>,
    /// Holds that were lost, with the number of the reason.
    pub lost: Option<Vec<Id>>,
    /// Clients with events.
    pub eventful: Option<Vec<Id>>,
}

impl Batch {
    fn done(&mut self, id: Id, value: Answer) {
        self.done.push(Either::A(id));
        self.done.push(Either::B(value));
    }

    pub(crate) fn granted(&mut self, id: Id, token: Option<u64>, parts: Vec<Hold>) {
        if let Some(token) = token {
            self.done(id, Either6::B(BigInt::from(token)));
        } else if parts.is_empty() {
            self.done.push(Either::A(-id));
        } else {
            self.done(id, Either6::F(parts.into_iter().map(Part::from).collect()));
        }
    }

    /// The negated id of the only answer, if that answer has no value.
    pub(crate) fn single(&self) -> Option<Id> {
        match (&self.done[..], &self.failed, &self.lost, &self.eventful) {
            ([Either::A(id)], None, None, None) => Some(*id),
            _ => None,
        }
    }

    pub(crate) fn lost(&mut self, id: Id, reason: LostReason) {
        self.lost
            .get_or_insert_default()
            .extend([id, Id::from(reason.number())]);
    }

    pub(crate) fn answered(&mut self, id: Id, outcome: Outcome) {
        match outcome {
            Outcome::Failed(error) => {
                self.failed
                    .get_or_insert_default()
                    .extend([Either::A(id), Either::B(error.into())]);
            }
            Outcome::Forced(deleted) => self.done(id, Either6::A(deleted)),
            Outcome::Inspected(holders) => {
                let holders = holders.into_iter().map(Holder::from).collect();
                self.done(id, Either6::C(holders));
            }
            Outcome::Closed(names) => self.done(id, Either6::D(names)),
            Outcome::Counted(permits) => self.done(id, Either6::E(permits.into())),
            Outcome::Set(set) => self.done(id, Either6::A(set)),
            Outcome::Number(number) => self.done.extend([Either::A(id), Either::A(number)]),
            _ => self.done.push(Either::A(-id)),
        }
    }
}

/// The hold of one lock of a multi lock.
#[napi(object)]
pub struct Part {
    /// The owner as it is in Redis.
    pub owner: String,
    /// The fencing token.
    pub fencing_token: Option<BigInt>,
}

impl From<Hold> for Part {
    fn from(hold: Hold) -> Self {
        Part {
            owner: hold.owner(),
            fencing_token: hold.fencing_token().map(BigInt::from),
        }
    }
}

/// The permits of a semaphore.
#[napi(object)]
pub struct Permits {
    /// The permits that nobody has; negative when more are taken than there are now.
    pub available: i64,
    /// All of them.
    pub limit: i64,
}

impl From<redlatch::Permits> for Permits {
    fn from(permits: redlatch::Permits) -> Self {
        Permits {
            available: permits.available,
            limit: permits.limit,
        }
    }
}

/// The holder of a lock.
#[napi(object)]
pub struct Holder {
    /// The owner as it is in Redis. Callers of one client that hand the lock over to each other
    /// have the same owner.
    pub owner: String,
    /// Its hold count.
    pub count: u32,
    /// The time until the lock expires without a renewal, in milliseconds.
    pub remaining: Either<f64, Null>,
    pub process: Either<Process, Null>,
}

/// The process of a holder.
#[napi(object)]
pub struct Process {
    pub client_name: String,
    pub language: String,
    pub pid: u32,
    pub host: String,
}

impl From<redlatch::Holder> for Holder {
    fn from(holder: redlatch::Holder) -> Self {
        let remaining = holder.remaining.map(|time| time.as_secs_f64() * 1000.0);
        Holder {
            owner: holder.owner,
            count: holder.count,
            remaining: remaining.map_or(Either::B(Null), Either::A),
            process: holder.process.map_or(Either::B(Null), |of| {
                Either::A(Process {
                    client_name: of.client_name,
                    language: of.language,
                    pid: of.pid,
                    host: of.host,
                })
            }),
        }
    }
}

/// One event.
#[napi(object)]
pub struct EventRow {
    /// The kind of event.
    pub kind: String,
    /// The severity.
    pub level: String,
    /// The name of the lock.
    pub lock_name: Option<String>,
    /// A sentence for people.
    pub text: String,
}

impl From<Event> for EventRow {
    fn from(event: Event) -> Self {
        EventRow {
            kind: event.kind.to_owned(),
            level: format!("{:?}", event.level).to_lowercase(),
            lock_name: event.lock.map(|name| name.to_string()),
            text: event.text,
        }
    }
}

/// One counter.
#[napi(object)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
}

impl From<(&'static str, u64)> for Stat {
    fn from((name, value): (&'static str, u64)) -> Self {
        Stat {
            name: SPELLING.of(name),
            value: value as f64,
        }
    }
}
