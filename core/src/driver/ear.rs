//! How much has to have come on a connection before it wakes its thread.
//!
//! All who wait for a lock are told of every release, and only the one whose turn it is has something to do. Whoever knows
//! that others are first leaves what is said to them in the socket, asleep.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};
use tokio::net::TcpStream;

// An option of sockets that nix has no name for.
sockopt_impl!(LeastToRead, SetOnly, libc::SOL_SOCKET, libc::SO_RCVLOWAT, i32);

/// More than this may be more than the socket can keep.
const MOST: usize = 2048;

/// A handle of the socket of a connection.
pub(super) struct Ear {
    socket: OwnedFd,
    /// What the system knows.
    least: usize,
}

impl Ear {
    pub(super) fn of(stream: &TcpStream) -> Option<Ear> {
        Some(Ear { socket: stream.as_fd().try_clone_to_owned().ok()?, least: 1 })
    }

    pub(super) fn is_skipping(&self) -> bool {
        self.least > 1
    }

    /// Wakes the thread when so many bytes have come that it has not read, or the connection ends. What is there already
    /// counts: the system looks at once.
    pub(super) fn wake_at(&mut self, bytes: usize) {
        let least = bytes.clamp(1, MOST);
        if least != self.least
            && let Ok(value) = i32::try_from(least)
            && setsockopt(&self.socket, LeastToRead, &value).is_ok()
        {
            self.least = least;
        }
    }
}
