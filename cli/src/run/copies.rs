//! A signal that redlatch gets goes on to the command, unless the command has it already: a terminal, a
//! shell and timeout(1) send to the whole process group, systemd to each process of a unit. To many
//! programs a second SIGTERM means "at once".
//!
//! No process can tell whom a signal was for. So a bystander in our group lets every such signal end it, and
//! another one takes its place: if one ended by the same signal at about the same time, the command has it
//! too. A signal that comes before the next bystander is there goes on: twice is better than not at all.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpgid, getpgrp, getpid};

use super::family::{self, Ended, Family};
use super::signals::FORWARDED;

/// In so long all have it who are to have it. A second one of the same signal is the same until then: timeout(1)
/// sends to redlatch, and then to its group.
const APART: Duration = Duration::from_millis(100);

/// The signals on their way to the command.
pub(super) struct Copies {
    bystander: Option<Bystander>,
    under_way: Vec<Sent>,
    /// Those that ended a bystander: of each signal the last one.
    beside: Vec<Sent>,
}

struct Sent {
    signal: Signal,
    at: Instant,
}

impl Copies {
    /// Call this before the command is started.
    pub(super) fn new() -> Self {
        Copies {
            bystander: Bystander::start(),
            under_way: Vec::new(),
            beside: Vec::new(),
        }
    }

    pub(super) fn came(&mut self, signal: Signal, at: Instant) {
        if self.under_way.iter().all(|sent| sent.signal != signal) {
            self.under_way.push(Sent { signal, at });
        }
    }

    /// A child of ours has ended.
    pub(super) fn ended(&mut self, pid: Pid, how: Ended, family: &mut Family, at: Instant) {
        if self.bystander.as_ref().is_none_or(|one| one.pid != pid) {
            return;
        }
        self.bystander = None;
        // A `sleep` that ends by itself is none that we can use.
        let Ended::By(number) = how else { return };
        self.bystander = Bystander::start();
        family.leave_out(self.bystander.as_ref().map(|one| one.pid));
        if let Ok(signal) = Signal::try_from(number) {
            self.beside.retain(|earlier| earlier.signal != signal);
            self.beside.push(Sent { signal, at });
        }
    }

    /// When to [`go_on`](Copies::go_on).
    pub(super) fn next(&self) -> Option<Instant> {
        self.under_way.iter().map(|sent| sent.at + APART).min()
    }

    /// Sends what is due and what the command does not have.
    pub(super) fn go_on(&mut self, now: Instant, command: Pid) {
        // A command with a process group of its own, such as timeout(1), gets nothing of ours.
        let with_us = getpgid(Some(command)) == Ok(getpgrp());
        let (bystander, beside) = (&self.bystander, &self.beside);
        self.under_way.retain(|sent| {
            if sent.at + APART > now {
                return true;
            }
            let ended = |other: &Sent| other.signal == sent.signal && other.at + APART >= sent.at;
            let got = beside.iter().any(ended)
                // On a busy machine it may still be about to end.
                || bystander.as_ref().is_some_and(|one| one.has(sent.signal));
            if !(with_us && got) {
                let _ = kill(command, sent.signal);
            }
            false
        });
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
        // Nothing else ends or stops it, and SIGQUIT leaves no core.
        let mut blocked = SigSet::all();
        FORWARDED
            .into_iter()
            .for_each(|signal| blocked.remove(signal));
        let prepare = move || {
            setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
            Ok(blocked.thread_block()?)
        };
        // SAFETY: between fork and exec it makes two system calls.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(prepare);
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
