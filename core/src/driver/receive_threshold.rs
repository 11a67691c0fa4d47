//! The receive threshold of a connection's socket: how many bytes have to come before the I/O
//! thread wakes. The kernel calls it
//! [`SO_RCVLOWAT`](https://man7.org/linux/man-pages/man7/socket.7.html).
//!
//! Every client that waits for a lock is told of every release, but only the one whose turn it is
//! has something to do. A client that knows that others come first stays asleep, and leaves their
//! messages in the socket.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpStream;

use crate::sys::ReceiveMinimum;
use crate::tuning;
use crate::wire::{Name, Topic, names};

/// A handle of a connection's socket. Only a thread that holds the engine's lock may change the
/// threshold.
pub(super) struct ReceiveThreshold {
    socket: ReceiveMinimum,
    /// The current threshold in bytes, as the system knows it.
    least: AtomicUsize,
}

impl ReceiveThreshold {
    pub(super) fn of(stream: &TcpStream) -> Option<ReceiveThreshold> {
        Some(ReceiveThreshold {
            socket: ReceiveMinimum::of(stream)?,
            least: AtomicUsize::new(1),
        })
    }

    pub(super) fn is_skipping(&self) -> bool {
        self.least.load(Ordering::Relaxed) > 1
    }

    /// Sets the threshold to the size of `n + 1` messages on the channel of this name, so that the
    /// first `n` do not wake the thread. Other data that comes with them does not wake it either if
    /// it is shorter than one message, such as the invalidation of the key with the first of them.
    /// `None` restores the default of one byte.
    ///
    /// Bytes that are already in the socket count: the system checks at once. The thread also wakes
    /// when the connection ends.
    pub(super) fn skip(&self, skipped: Option<(&Name, u32)>) {
        let size = |name: &Name| least_size(&names::channel(Topic::Lock, name));
        let some = skipped.filter(|(_, messages)| *messages > 0);
        let bytes = some.map_or(1, |(name, messages)| (messages as usize + 1) * size(name));
        let least = bytes.clamp(1, tuning::RECEIVE_THRESHOLD_MOST);
        if least != self.least.load(Ordering::Relaxed) && self.socket.set(least) {
            self.least.store(least, Ordering::Relaxed);
        }
    }
}

/// The smallest size in bytes of a message on this channel, with a payload of one byte.
fn least_size(channel: &str) -> usize {
    let length = channel.len().to_string();
    [
        ">3\r\n$7\r\nmessage\r\n$",
        &length,
        "\r\n",
        channel,
        "\r\n$1\r\n0\r\n",
    ]
    .iter()
    .map(|part| part.len())
    .sum()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// A poll sees the same readiness that would wake the thread.
    fn has_something(stream: &TcpStream) -> bool {
        poll(
            &mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)],
            PollTimeout::ZERO,
        ) == Ok(1)
    }

    #[tokio::test]
    async fn it_wakes_for_the_message_that_is_waited_for_and_not_for_a_little_before() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let stream = TcpStream::connect(listener.local_addr().expect("address"))
            .await
            .expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        let (threshold, name) = (
            ReceiveThreshold::of(&stream).expect("a handle"),
            Name::from("n"),
        );
        let message = least_size(&names::channel(Topic::Lock, &name));
        threshold.skip(Some((&name, 1)));
        // Our own release: the change of the key, and the message.
        server
            .write_all(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nn\r\n")
            .expect("write");
        server.write_all(&vec![0; message]).expect("write");
        assert!(threshold.is_skipping() && !has_something(&stream));
        threshold.skip(None);
        assert!(!threshold.is_skipping() && has_something(&stream));
        threshold.skip(Some((&name, 1)));
        assert!(!has_something(&stream));
        server.write_all(&vec![0; message]).expect("write");
        assert!(has_something(&stream));
        threshold.skip(Some((&name, 0)));
        assert!(!threshold.is_skipping());
    }
}
