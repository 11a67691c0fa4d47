//! The file that a program writes.

use std::fs::File;
use std::io::Write;

use nix::time::{ClockId, clock_gettime};

use crate::Failure;

/// CLOCK_MONOTONIC in nanoseconds, which all processes share.
pub(crate) fn now() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// Lines that are in the file at once, whole: what a killed program did is known.
pub(crate) struct History(File);

impl History {
    pub(crate) fn create(path: &str) -> Result<History, Failure> {
        Ok(History(
            File::options().create_new(true).append(true).open(path)?,
        ))
    }

    pub(crate) fn write(&self, line: &str) -> Result<(), Failure> {
        Ok((&self.0).write_all(line.as_bytes())?)
    }

    pub(crate) fn begin(&self, caller: u64, name: &str, called: i64) -> Result<(), Failure> {
        self.write(&format!("b {caller} {name} {called}\n"))
    }

    /// A hold was lost. A line that cannot be written is missed by whoever checks.
    pub(crate) fn told(&self, caller: u64, called: i64, reason: &str) {
        drop(self.write(&format!("l {caller} {called} {} {reason}\n", now())));
    }
}
