//! How much has to have come on a connection before it wakes its thread.
//!
//! All who wait for a lock are told of every release, and only the one whose turn it is has something to do. Whoever knows
//! that others are first leaves what is said to them in the socket, asleep.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::setsockopt;
use nix::{libc, setsockopt_impl, sockopt_impl};
use tokio::net::TcpStream;

use super::channels;
use crate::wire::{Name, names};

// An option of sockets that nix has no name for.
sockopt_impl!(LeastToRead, SetOnly, libc::SOL_SOCKET, libc::SO_RCVLOWAT, i32);

/// More than this may be more than the socket can keep.
const MOST: usize = 2048;

/// A handle of the socket of a connection. Who changes what it lets through has the engine's state.
pub(super) struct Ear {
    socket: OwnedFd,
    /// What the system knows.
    least: AtomicUsize,
}

impl Ear {
    pub(super) fn of(stream: &TcpStream) -> Option<Ear> {
        Some(Ear { socket: stream.as_fd().try_clone_to_owned().ok()?, least: AtomicUsize::new(1) })
    }

    pub(super) fn is_skipping(&self) -> bool {
        self.least.load(Ordering::Relaxed) > 1
    }

    /// Wakes the thread when so many messages on the channel of a name have come that it has not read, and one more; or
    /// less of something else than that one would be, as the key that has changed with the first of them. `None`: whatever
    /// comes. What is there already counts: the system looks at once. It wakes when the connection ends, too.
    pub(super) fn skip(&self, skipped: Option<(&Name, u32)>) {
        let size = |name: &Name| channels::least_size(&names::channel(name));
        let some = skipped.filter(|(_, messages)| *messages > 0);
        let bytes = some.map_or(1, |(name, messages)| (messages as usize + 1) * size(name));
        let least = bytes.clamp(1, MOST);
        if least != self.least.load(Ordering::Relaxed)
            && let Ok(value) = i32::try_from(least)
            && setsockopt(&self.socket, LeastToRead, &value).is_ok()
        {
            self.least.store(least, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// What the thread would be woken by is what a poll sees.
    fn has_something(stream: &TcpStream) -> bool {
        poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[tokio::test]
    async fn it_wakes_for_the_message_that_is_waited_for_and_not_for_a_little_before() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let stream = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        let (ear, name) = (Ear::of(&stream).expect("a handle"), Name::from("n"));
        let message = channels::least_size(&names::channel(&name));
        ear.skip(Some((&name, 1)));
        // Our own release: the change of the key, and the message.
        server.write_all(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nn\r\n").expect("write");
        server.write_all(&vec![0; message]).expect("write");
        assert!(ear.is_skipping() && !has_something(&stream));
        ear.skip(None);
        assert!(!ear.is_skipping() && has_something(&stream));
        ear.skip(Some((&name, 1)));
        assert!(!has_something(&stream));
        server.write_all(&vec![0; message]).expect("write");
        assert!(has_something(&stream));
        ear.skip(Some((&name, 0)));
        assert!(!ear.is_skipping());
    }
}
