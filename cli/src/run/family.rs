//! The command and its descendants. Linux can find and end all of them; elsewhere only the command
//! itself gets the signals.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    With(u8),
    By(Signal),
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

/// Collects the children that have ended, adopted ones too. Returns how `command` ended, if it did.
pub(super) fn reap(command: Pid) -> Option<Ended> {
    let mut ended = None;
    loop {
        let (pid, how) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => {
                (pid, Ended::With(u8::try_from(code).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Ended::By(signal)),
            Err(Errno::EINTR) => continue,
            _ => return ended,
        };
        if pid == command {
            ended = Some(how);
        }
    }
}

/// Sends to the command and all its descendants. A stopped process goes on, so that it can react.
pub(super) fn signal_all(command: Pid, signal: Signal) {
    let mut family = descendants();
    if family.is_empty() {
        family.push(command);
    }
    for pid in family {
        // It may have ended meanwhile.
        let _ = kill(pid, signal);
        let _ = kill(pid, Signal::SIGCONT);
    }
}

pub(super) fn has_descendants() -> bool {
    !descendants().is_empty()
}

/// All descendants of this process that run; zombies do not count.
fn descendants() -> Vec<Pid> {
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
            found.push(Pid::from_raw(child));
            parents.push(child);
        }
    }
    found
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
