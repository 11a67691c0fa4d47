//! The processes that started us on behalf of somebody: npm, its shell, and the package's program for Node.js. A
//! signal for one of them may end it without a word to us. Then we end as by SIGTERM, and with us the
//! command.

use std::env;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use redlatch::embed::spawn;

/// The numbers of these processes. `bin/redlatch.js` sets it.
pub(crate) const STARTERS: &str = "REDLATCH_STARTERS";

/// Ends with them. A kernel without pidfds (before Linux 5.3) tells us nothing.
pub(crate) fn end_with_them() {
    let pids = env::var(STARTERS).unwrap_or_default();
    let mut open = Vec::new();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        match pidfd(pid) {
            Ok(process) => open.push(process),
            Err(Errno::ESRCH) => return end(),
            Err(_) => {}
        }
    }
    if open.is_empty() {
        return;
    }
    // Without a thread we go on, as without pidfds.
    let _ = spawn("redlatch-starters", move || {
        let wait = |process| PollFd::new(OwnedFd::as_fd(process), PollFlags::POLLIN);
        let mut all: Vec<PollFd<'_>> = open.iter().map(wait).collect();
        while let Err(Errno::EINTR) = poll(&mut all, PollTimeout::NONE) {}
        end();
    });
}

fn end() {
    let _ = kill(getpid(), Signal::SIGTERM);
}

fn pidfd(pid: libc::pid_t) -> Result<OwnedFd, Errno> {
    // SAFETY: it takes two numbers, and gives a descriptor that nobody else has.
    #[allow(unsafe_code)]
    unsafe {
        let opened = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        Errno::result(opened).map(|fd| OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}
