//! A descriptor for event loops, for a Unix without `eventfd`: a pair of sockets, in std only.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A byte that is written at one end makes the other end readable.
pub(crate) struct SocketPair {
    reader: UnixStream,
    writer: UnixStream,
}

impl SocketPair {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(SocketPair { reader, writer })
    }

    /// Makes it readable.
    pub(crate) fn notify(&self) {
        // Fails only when the buffer is full, and then the other end is readable anyway.
        let _ = (&self.writer).write(&[1]);
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        let mut buffer = [0; 64];
        while (&self.reader)
            .read(&mut buffer)
            .is_ok_and(|read| read == buffer.len())
        {}
    }

    pub(crate) fn as_raw(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::SocketPair;

    #[test]
    fn it_is_readable_from_a_notice_until_it_is_cleared() {
        let pair = SocketPair::new().expect("a pair");
        assert!(pair.as_raw() >= 0);
        let is_readable = || {
            let mut fds = [PollFd::new(pair.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO) == Ok(1)
        };
        assert!(!is_readable());
        // More notices than the buffer takes.
        for notices in [1, 64, 100_000] {
            (0..notices).for_each(|_| pair.notify());
            assert!(is_readable());
            pair.clear();
            assert!(!is_readable());
        }
    }
}
