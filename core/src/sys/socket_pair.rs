//! A descriptor for event loops, for a system without `eventfd`: a pair of sockets, in std only.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
#[cfg(windows)]
use std::os::windows::io::AsRawSocket;
#[cfg(unix)]
use std::os::{
    fd::{AsFd, AsRawFd, BorrowedFd},
    unix::net::UnixStream,
};

/// A byte that is written at one end makes the other end readable.
pub(crate) struct SocketPair<S> {
    reader: S,
    writer: S,
}

#[cfg(unix)]
impl SocketPair<UnixStream> {
    #[cfg_attr(not(target_os = "macos"), allow(dead_code))]
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(SocketPair { reader, writer })
    }
}

impl SocketPair<TcpStream> {
    /// Where std has no pairs: two sockets of the loopback interface.
    #[cfg_attr(not(any(windows, redlatch_portable)), allow(dead_code))]
    pub(crate) fn new() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let writer = TcpStream::connect(listener.local_addr()?)?;
        let own = writer.local_addr()?;
        // Any process of this machine can connect to the port.
        let reader = loop {
            match listener.accept() {
                Ok((reader, peer)) if peer == own => break reader,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        writer.set_nodelay(true)?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(SocketPair { reader, writer })
    }
}

impl<S> SocketPair<S>
where
    for<'a> &'a S: Read + Write,
{
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
}

#[cfg(unix)]
impl<S: AsFd> SocketPair<S> {
    pub(crate) fn as_raw(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Waits a while for a byte that is on its way.
    #[cfg(test)]
    pub(crate) fn is_readable(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, 30_000_u16) == Ok(1)
    }
}

#[cfg(windows)]
impl<S: AsRawSocket> SocketPair<S> {
    /// A handle of the system, even on 64 bits, has no more than 32 that matter.
    pub(crate) fn as_raw(&self) -> i32 {
        i32::try_from(self.reader.as_raw_socket()).unwrap_or(-1)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_clear<S: AsFd>(pair: &SocketPair<S>) -> bool {
        let mut fds = [PollFd::new(pair.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(0)
    }

    fn check<S: AsFd>(pair: &SocketPair<S>, most: u32)
    where
        for<'a> &'a S: Read + Write,
    {
        assert!(pair.as_raw() >= 0);
        assert!(is_clear(pair));
        for notices in [1, most] {
            (0..notices).for_each(|_| pair.notify());
            assert!(pair.is_readable());
            pair.clear();
            assert!(is_clear(pair));
        }
    }

    #[test]
    fn it_is_readable_from_a_notice_until_it_is_cleared() {
        // More notices than the buffer takes.
        check(&SocketPair::<UnixStream>::new().expect("a pair"), 100_000);
        // With more of them some may be on their way after a look.
        check(&SocketPair::<TcpStream>::new().expect("a pair"), 1);
    }

    #[test]
    fn a_full_pair_of_the_loopback_interface_stays_readable() {
        let pair = SocketPair::<TcpStream>::new().expect("a pair");
        while (&pair.writer).write(&[1]).is_ok() {}
        pair.notify();
        assert!(pair.is_readable());
    }
}
