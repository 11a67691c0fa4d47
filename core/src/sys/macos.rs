//! macOS. Experimental: it is compiled and linked, and no test runs there.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::time::ClockId;

mod timer;

use super::unix::time_on;
use crate::moment::Moment;

pub(crate) use super::poll::{BlockingSocket, HAS_INLINE, Sleeper, StopFlag};
pub(crate) use super::portable::{ReceiveMinimum, exit_signals, give_up_after, process_id};
pub(crate) type EventFd = super::socket_pair::SocketPair<UnixStream>;
pub use super::unix::Uncancelled;
pub(crate) use super::unix::{
    LocalStream, at_exit, connect_local, host_name, is_exhausted, without_signals,
};
pub(crate) use timer::{Alarm, Timer};

/// `CLOCK_MONOTONIC_RAW` is `mach_continuous_time` in nanoseconds, which counts sleep. It exists
/// since macOS 10.12.
pub(crate) fn now() -> Moment {
    time_on(ClockId::from_raw(libc::CLOCK_MONOTONIC_RAW))
}

/// The standard library sets `SO_NOSIGPIPE` on every socket.
pub(super) fn write_quietly(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    stream.write(bytes)
}
