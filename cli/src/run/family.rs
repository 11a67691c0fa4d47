//! The command and its descendants. Linux can find and end all of them; elsewhere only the command
//! itself gets the signals.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    With(u8),
    /// The number of the signal.
    By(i32),
}

/// Makes orphans of the command our children, so that they are found after a loss.
pub(super) fn adopt_orphans() {
    // Without it descendants are found as long as their parents live.
    let _ = prctl::set_child_subreaper(true);
}

/// Has the kernel send `signal` to the command when we are killed. The parent is the thread that
/// starts it, so the main thread has to.
pub(super) fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let hook = move || {
        prctl::set_pdeathsig(signal)?;
        // The parent may have ended before the kernel knew.
        match getppid() == parent {
            true => Ok(()),
            false => Err(Errno::ESRCH.into()),
        }
    };
    // SAFETY: between fork and exec `hook` makes two system calls; it allocates nothing and takes
    // no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(hook);
    }
}

/// Collects the children that have ended, adopted ones too.
pub(super) fn reap() -> Vec<(Pid, Ended)> {
    let mut gone = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: it writes one number. nix cannot tell of a real-time signal.
        #[allow(unsafe_code)]
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid <= 0 {
            match Errno::last() {
                Errno::EINTR if pid < 0 => continue,
                _ => return gone,
            }
        }
        let status = ExitStatus::from_raw(status);
        let code = status.code().unwrap_or_default();
        let how = match status.signal() {
            Some(signal) => Ended::By(signal),
            None => Ended::With(u8::try_from(code).unwrap_or(u8::MAX)),
        };
        gone.push((Pid::from_raw(pid), how));
    }
}

/// How often SIGKILL looks for processes that have been started since its last look.
const LOOKS: usize = 1000;

/// The command with all its descendants.
pub(super) struct Family {
    /// Children that we had before: a shell may start them and then become redlatch.
    others: Vec<Pid>,
}

impl Family {
    /// Call this before the command is started.
    pub(super) fn new() -> Self {
        Family {
            others: descendants(&[]),
        }
    }

    /// A process that is started later, and is none of the command's.
    pub(super) fn leave_out(&mut self, pid: Option<Pid>) {
        self.others.extend(pid);
    }

    /// Sends to all of them. A stopped process goes on, so that it can react. `command`: the process
    /// of the command, if it runs.
    pub(super) fn signal(&self, command: Option<Pid>, signal: Signal) {
        let mut family = descendants(&self.others);
        if family.is_empty() {
            family.extend(command);
        }
        let mut signalled = HashSet::new();
        for _ in 0..LOOKS {
            for pid in family {
                // It may have ended meanwhile.
                let _ = kill(pid, signal);
                let _ = kill(pid, Signal::SIGCONT);
                signalled.insert(pid);
            }
            // After another signal, what a process starts is its way to end.
            if signal != Signal::SIGKILL {
                return;
            }
            family = descendants(&self.others);
            family.retain(|pid| !signalled.contains(pid));
            if family.is_empty() {
                return;
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        descendants(&self.others).is_empty()
    }
}

/// All descendants of this process that run, without these and theirs; zombies do not count.
fn descendants(without: &[Pid]) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw()];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if without.contains(&Pid::from_raw(child)) {
                continue;
            }
            found.push(Pid::from_raw(child));
            parents.push(child);
        }
    }
    found
}

/// The parent of a process that runs.
pub(super) fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    parent_of(&stat).map(Pid::from_raw)
}

/// A set of signals in the text of proc(5)'s `status`.
pub(super) fn mask(status: &str, name: &str) -> u64 {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// The parent's id in a line of proc(5)'s `stat`, unless the process is a zombie. The name of the
/// program stands in parentheses and may have any character.
fn parent_of(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    match rest.split(' ').collect::<Vec<_>>()[..] {
        [state, parent, ..] if state != "Z" => parent.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_hard_name_has_a_parent() {
        assert_eq!(parent_of("17 (a) S 9 (b) R) S 42 17 1 0"), Some(42));
    }

    #[test]
    fn a_zombie_has_none() {
        assert_eq!(parent_of("17 (sh) Z 42 17 1 0"), None);
    }
}
