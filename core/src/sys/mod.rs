//! The system layer: everything that differs between operating systems, behind one interface. No
//! other file of the core asks which system it is compiled for.
//!
//! Each system has a file that puts the interface together. `linux.rs` uses what Linux is best at.
//! `macos.rs` and `windows.rs` have what no library gives them, and take the rest from
//! `portable.rs`, which needs std and tokio only. `unix.rs`, `poll.rs` and
//! `fd_timer.rs` are shared.
//!
//! `RUSTFLAGS='--cfg redlatch_portable'` compiles the fallbacks on Linux or macOS, so that
//! `make test-portable` runs what Windows runs. Such a build is for tests: its clock does not
//! count suspend.

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!(
    "redlatch runs on Linux, and experimentally on macOS and Windows: another system needs a clock that counts \
     suspend, in core/src/sys/"
);

#[cfg(all(unix, not(redlatch_portable)))]
mod fd_timer;
#[cfg(all(target_os = "linux", not(redlatch_portable)))]
mod linux;
#[cfg(all(target_os = "macos", not(redlatch_portable)))]
mod macos;
#[cfg(all(unix, not(redlatch_portable)))]
mod poll;
// Its tests run in every build.
#[cfg(any(test, redlatch_portable, not(target_os = "linux")))]
#[cfg_attr(not(redlatch_portable), allow(dead_code))]
mod portable;
#[cfg(test)]
#[cfg(shuttle)]
mod simulated;
#[cfg(any(test, redlatch_portable, not(target_os = "linux")))]
mod socket_pair;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(all(target_os = "linux", not(redlatch_portable)))]
use linux as system;
#[cfg(all(target_os = "macos", not(redlatch_portable)))]
use macos as system;
#[cfg(windows)]
use windows as system;
#[cfg(all(unix, redlatch_portable))]
mod system {
    pub(crate) use super::portable::*;
    pub use super::unix::Uncancelled;
    pub(crate) use super::unix::{
        LocalStream, at_exit, connect_local, host_name, is_exhausted, without_signals,
    };
}

// What tells the time, or waits for another program.
#[cfg(all(test, shuttle))]
use simulated as waiting;
#[cfg(all(test, shuttle))]
pub(crate) use simulated::ServerEnd;
#[cfg(not(all(test, shuttle)))]
use system as waiting;

/// The clock for leases and deadlines.
pub(crate) mod clock {
    /// The time since the machine started. It counts suspend, because a lease goes on meanwhile.
    pub(crate) use super::waiting::now;
}

/// Fork detection.
pub(crate) mod process {
    /// The id of this process. Every operation compares it, because a forked child must not use
    /// what belongs to its parent.
    pub(crate) use super::system::process_id as id;
}

/// The I/O thread's timer on that clock, and the handle by which callers make it fire earlier.
pub(crate) use waiting::{Alarm, Timer};

/// Runs a function with all signals blocked. A new thread inherits the mask of its creator, and
/// signals belong to the threads of the program.
pub(crate) use system::without_signals;

/// A descriptor that an event loop can poll: on Windows a socket.
pub(crate) use system::EventFd;

/// Wakes a thread that sleeps until another thread wakes it, or until a signal comes. A plain
/// `park` does not end for signals.
pub(crate) use system::Sleeper;

/// Ends the sleep of any number of threads for good. A signal handler may set it.
pub(crate) use system::StopFlag;

/// The socket of the inline connection: a thread that waits for a reply can be stopped.
/// `HAS_INLINE` says whether the system lets a socket be used after a read that timed out.
pub(crate) use system::HAS_INLINE;
pub(crate) use waiting::BlockingSocket;

/// The name of the machine, for the names of connections.
pub(crate) use system::host_name;

/// Whether an error means that this process or system has no more to give, for now.
pub(crate) use system::is_exhausted;

/// A socket in the file system, for `unix://`.
pub(crate) use system::{LocalStream, connect_local};

/// The receive threshold of a socket: the kernel keeps a few messages back, so that the I/O thread
/// sleeps on. `None` where that is not known to work; only speed depends on it.
pub(crate) use system::ReceiveMinimum;

#[cfg(test)]
pub(crate) use system::HAS_RECEIVE_MINIMUM;

/// How long the kernel waits for a silent peer. Elsewhere the link notices the silence itself.
pub(crate) use system::give_up_after;

/// Keeps a thread of a C program from being cancelled.
pub use system::Uncancelled;

/// Registers a function that `exit()` calls; false if the system stops all threads before.
pub(crate) use system::at_exit;

/// Signals that end the process while it holds locks.
pub(crate) use system::exit_signals;

#[cfg(test)]
mod timer_tests;

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn the_clock_never_goes_back() {
        let first = clock::now();
        assert!((0..1000).map(|_| clock::now()).is_sorted());
        assert!(clock::now() >= first && first.0 > 0);
    }
}
