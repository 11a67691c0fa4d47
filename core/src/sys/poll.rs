//! Waiting with `poll(2)`: a thread sleeps on descriptors, so that an event, a cancellation and a
//! signal all end the same wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::system::{EventFd, write_quietly};

pub(crate) const HAS_INLINE: bool = true;

pub(crate) struct Sleeper(EventFd);

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        EventFd::new().map(Sleeper)
    }

    pub(crate) fn wake(&self) {
        self.0.notify();
    }

    /// Sleeps until it is woken, `stop` is set, a signal comes, or `limit` is over. Returns false
    /// after a signal and after `limit`.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn sleep(
        &self,
        stop: Option<&StopFlag>,
        limit: Option<Duration>,
    ) -> io::Result<bool> {
        let own = readable(self.0.as_fd());
        let limit = timeout(limit);
        let woken = match stop {
            Some(stop) => poll(&mut [own, readable(stop.fd.as_fd())], limit),
            None => poll(&mut [own], limit),
        };
        match woken {
            Ok(0) | Err(Errno::EINTR) => Ok(false),
            Ok(_) => {
                self.0.clear();
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) struct StopFlag {
    is_set: AtomicBool,
    /// Readable once set. Nothing reads it, so it stays readable for every wait.
    fd: EventFd,
}

impl StopFlag {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(StopFlag {
            is_set: AtomicBool::new(false),
            fd: EventFd::new()?,
        })
    }

    /// Takes no lock, allocates nothing and does not block.
    pub(crate) fn set(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.fd.notify();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

pub(crate) enum BlockingSocket {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl BlockingSocket {
    pub(crate) fn local(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(BlockingSocket::Local(stream))
    }

    pub(crate) fn set_write_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            BlockingSocket::Tcp(tcp) => tcp.set_write_timeout(Some(limit)),
            BlockingSocket::Local(local) => local.set_write_timeout(Some(limit)),
        }
    }

    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            BlockingSocket::Tcp(tcp) => tcp.set_read_timeout(limit),
            BlockingSocket::Local(local) => local.set_read_timeout(limit),
        }
    }

    /// Shuts the socket down. A thread that reads from it gets the end of the stream.
    pub(crate) fn shut_down(&self) {
        // This fails only if the connection is broken already.
        let _ = match self {
            BlockingSocket::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            BlockingSocket::Local(local) => local.shutdown(Shutdown::Both),
        };
    }

    /// Writes without raising `SIGPIPE`. The signal would end a C program whose server has gone,
    /// because this runs on the program's thread. Before Rust 1.90 the standard library avoids it
    /// for TCP only.
    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            BlockingSocket::Tcp(tcp) => (&mut &*tcp).write_all(bytes),
            BlockingSocket::Local(local) => Quiet(local).write_all(bytes),
        }
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingSocket::Tcp(tcp) => (&mut &*tcp).read(buffer),
            BlockingSocket::Local(local) => (&mut &*local).read(buffer),
        }
    }

    /// Whether something can be read already: bytes, or the end of the stream.
    pub(crate) fn has_input(&self) -> bool {
        poll(&mut [readable(self.as_fd())], PollTimeout::ZERO) == Ok(1)
    }

    /// Waits until something can be read. False if only `stop` is set, if `limit` is over, or if a
    /// signal came.
    pub(crate) fn has_input_before(&self, stop: &StopFlag, limit: Option<Duration>) -> bool {
        let mut fds = [readable(self.as_fd()), readable(stop.fd.as_fd())];
        match poll(&mut fds, timeout(limit)) {
            Ok(_) => fds[0].any() == Some(true),
            Err(Errno::EINTR) => false,
            // Reading from the connection shows what is wrong with it.
            Err(_) => true,
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            BlockingSocket::Tcp(tcp) => tcp.as_fd(),
            BlockingSocket::Local(local) => local.as_fd(),
        }
    }
}

impl From<TcpStream> for BlockingSocket {
    fn from(tcp: TcpStream) -> Self {
        BlockingSocket::Tcp(tcp)
    }
}

struct Quiet<'a>(&'a UnixStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_quietly(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

/// At least a millisecond, because zero does not wait.
fn timeout(limit: Option<Duration>) -> PollTimeout {
    limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::signal::{SigSet, Signal};

    use super::*;
    use crate::clock;

    /// The signals that wait for this thread, as bits.
    fn pending() -> u64 {
        let status =
            std::fs::read_to_string("/proc/thread-self/status").expect("the state of this thread");
        let signals = status
            .lines()
            .find_map(|line| line.strip_prefix("SigPnd:"))
            .expect("signals");
        u64::from_str_radix(signals.trim(), 16).expect("a number")
    }

    /// A C program was ended by that.
    #[test]
    fn a_server_that_has_gone_raises_no_signal() {
        let mut pipe = SigSet::empty();
        pipe.add(Signal::SIGPIPE);
        pipe.thread_block().expect("blocked");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        drop(listener.accept().expect("accepted"));
        let (local, gone) = UnixStream::pair().expect("a pair");
        drop(gone);
        for stream in [BlockingSocket::Local(local), BlockingSocket::from(tcp)] {
            // The first bytes may be on their way before anybody knows.
            let end = clock::now().after(Duration::from_secs(30));
            while stream.write_all(b"PING\r\n").is_ok() {
                assert!(clock::now() < end, "it has gone");
            }
            assert_eq!(pending() & 1 << (Signal::SIGPIPE as u32 - 1), 0);
        }
    }
}
