//! The file that a program writes, and what it measures of itself.

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

/// What the process has now; memory in kilobytes.
pub(crate) struct Usage {
    pub(crate) memory: u64,
    pub(crate) threads: u64,
    pub(crate) files: u64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
                .unwrap_or(0)
        };
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        Usage {
            memory: field("VmRSS:"),
            threads: field("Threads:"),
            files,
        }
    }
}
