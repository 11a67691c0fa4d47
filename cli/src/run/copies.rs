//! A signal that redlatch gets goes on to the command, unless the command has it already: a terminal, a
//! shell and timeout(1) send to the whole process group, systemd to each process of a unit. To many
//! programs a second SIGTERM means "at once".
//!
//! No process can tell whom a signal was for. So a bystander in our group keeps every signal pending: if it
//! got one too, the command did.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpgid, getpgrp, getpid};

use super::family::{self, Family};

/// In so long all have it who are to have it.
const APART: Duration = Duration::from_millis(100);

/// The signals on their way to the command.
pub(super) struct Copies {
    bystander: Option<Bystander>,
    under_way: Vec<Copy>,
}

/// Until it is gone, the same signal is the same.
struct Copy {
    signal: Signal,
    /// The command has it, from us or from others.
    arrived: bool,
    /// When the bystander is looked at: to decide, and then for one that came late.
    due: Instant,
}

impl Copies {
    /// Call this before the command is started.
    pub(super) fn new() -> Self {
        Copies {
            bystander: Bystander::start(),
            under_way: Vec::new(),
        }
    }

    pub(super) fn came(&mut self, signal: Signal, now: Instant) {
        if self.under_way.iter().all(|copy| copy.signal != signal) {
            self.under_way.push(Copy {
                signal,
                arrived: false,
                due: now + APART,
            });
        }
    }

    /// When to [`go_on`](Copies::go_on).
    pub(super) fn next(&self) -> Option<Instant> {
        self.under_way.iter().map(|copy| copy.due).min()
    }

    /// Sends what is due and what the command does not have.
    pub(super) fn go_on(&mut self, now: Instant, command: Pid, family: &mut Family) {
        // A command with a process group of its own, such as timeout(1), gets nothing of ours.
        let beside = getpgid(Some(command)) == Ok(getpgrp());
        let bystander = &self.bystander;
        let got = |signal| bystander.as_ref().is_some_and(|one| one.has(signal));
        let mut used = false;
        self.under_way.retain_mut(|copy| {
            if copy.due > now {
                return true;
            }
            if copy.arrived {
                used |= got(copy.signal);
                return false;
            }
            if !(beside && got(copy.signal)) {
                let _ = kill(command, copy.signal);
            }
            (copy.arrived, copy.due) = (true, now + APART);
            true
        });
        if used {
            // It keeps what it has, so the next signal needs another one. That is there before the old one goes.
            let next = Bystander::start();
            family.leave_out(next.as_ref().map(|one| one.pid));
            for copy in &mut self.under_way {
                copy.arrived |= beside && got(copy.signal);
            }
            self.bystander = next;
        }
    }
}

/// `sleep`, and no copy of us: pkill(1), pidof(8) and start-stop-daemon(8) would find that too, and a signal for
/// redlatch would look like one for all. Without a `sleep` all signals go on.
struct Bystander {
    pid: Pid,
}

impl Bystander {
    fn start() -> Option<Self> {
        let mut command = Command::new("sleep");
        command
            .arg(i32::MAX.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        family::end_with_parent(&mut command, Signal::SIGKILL);
        let block = || Ok(SigSet::all().thread_block()?);
        // SAFETY: between fork and exec it makes one system call.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(block);
        }
        let child = command.spawn().ok()?;
        let pid = i32::try_from(child.id()).ok()?;
        Some(Bystander {
            pid: Pid::from_raw(pid),
        })
    }

    fn has(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        family::mask(&status, "ShdPnd:") >> (signal as i32 - 1) & 1 == 1
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        // If somebody else has ended it, its number may be another's.
        if family::parent(self.pid) == Some(getpid()) {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}
