//! The exit codes, in one table, and errors that become them.

use std::process::ExitCode;

use redlatch::{Error, ErrorKind};

/// The exit codes of `redlatch` itself, after the BSD's sysexits.h. A command's own code is passed
/// through, and a signal that ended it gives 128 + its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// EX_USAGE: an argument or option is wrong.
    Usage = 64,
    /// EX_DATAERR: something else is stored under the name.
    Foreign = 65,
    /// EX_UNAVAILABLE: the server cannot be reached, or failed.
    Unavailable = 69,
    /// EX_SOFTWARE: a fault in redlatch.
    Internal = 70,
    /// EX_TEMPFAIL: the lock was not acquired within the wait.
    Conflict = 75,
    /// EX_PROTOCOL: the lock was lost while the command ran.
    Lost = 76,
    /// EX_NOPERM: user, password, certificate or access rules.
    Refused = 77,
    /// As env(1): the command was found but cannot be run.
    CannotRun = 126,
    /// As env(1): there is no such command.
    NotFound = 127,
}

impl Exit {
    /// The code for an error of the library.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Timeout => Exit::Conflict,
            ErrorKind::Lost => Exit::Lost,
            ErrorKind::ForeignKind | ErrorKind::NotOwner => Exit::Foreign,
            ErrorKind::InvalidArgument | ErrorKind::NameNotClusterable => Exit::Usage,
            ErrorKind::Auth | ErrorKind::Denied => Exit::Refused,
            ErrorKind::Unavailable | ErrorKind::Server | ErrorKind::NotReplicated => {
                Exit::Unavailable
            }
            _ => Exit::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Ends the program with a line on standard error, unless it is empty.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Failure {
            code: exit as u8,
            text: text.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(Exit::of(error.kind()), text(&error))
    }
}

/// The text of an error for a person at a shell: options as `-o` takes them, no name of its kind.
pub(crate) fn text(error: &Error) -> String {
    error.named_message()
}
