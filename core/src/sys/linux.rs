//! Linux.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::eventfd::{self, EfdFlags};
use nix::sys::socket::setsockopt;
use nix::time::ClockId;
use nix::{libc, setsockopt_impl, sockopt_impl};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::moment::Moment;

pub(crate) mod exit_signals;
mod process;
mod timer;

use super::unix::time_on;

pub(crate) use super::poll::{BlockingSocket, HAS_INLINE, Sleeper, StopFlag};
pub use super::unix::Uncancelled;
pub(crate) use super::unix::{
    LocalStream, at_exit, connect_local, host_name, is_exhausted, without_signals,
};
pub(crate) use process::id as process_id;
pub(crate) use timer::{Alarm, Timer};

/// `CLOCK_BOOTTIME` exists since Linux 2.6.39.
pub(crate) fn now() -> Moment {
    time_on(ClockId::CLOCK_BOOTTIME)
}

/// An `eventfd`.
pub(crate) struct EventFd(eventfd::EventFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(EventFd(eventfd::EventFd::from_value_and_flags(0, flags)?))
    }

    /// Makes it readable.
    pub(crate) fn notify(&self) {
        // Fails only when the counter is full, and then the descriptor is readable anyway.
        let _ = self.0.write(1);
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // Fails only when it is clear already.
        let _ = self.0.read();
    }

    #[cfg(test)]
    pub(crate) fn is_readable(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    pub(crate) fn as_raw(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn write_quietly(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    SockRef::from(stream).send_with_flags(bytes, libc::MSG_NOSIGNAL)
}

// `nix` has no name for this socket option.
sockopt_impl!(
    LeastToRead,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    i32
);

#[cfg(test)]
pub(crate) const HAS_RECEIVE_MINIMUM: bool = true;

/// [`SO_RCVLOWAT`](https://man7.org/linux/man-pages/man7/socket.7.html) of a socket.
pub(crate) struct ReceiveMinimum(OwnedFd);

impl ReceiveMinimum {
    pub(crate) fn of(stream: &TcpStream) -> Option<Self> {
        stream.as_fd().try_clone_to_owned().ok().map(ReceiveMinimum)
    }

    /// Sets it; false if the system refuses. Bytes that are already in the socket count.
    pub(crate) fn set(&self, bytes: usize) -> bool {
        i32::try_from(bytes).is_ok_and(|bytes| setsockopt(&self.0, LeastToRead, &bytes).is_ok())
    }
}

pub(crate) fn give_up_after(socket: &SockRef<'_>, silence: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(silence))
}
