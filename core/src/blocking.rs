//! The same operations for threads.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, Result};
use crate::operation::Operation;

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes a thread that sleeps in `poll(2)`.
struct Ring(EventFd);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        // Fails only when the counter is full, and then the sleeper wakes as well.
        let _ = self.0.write(1);
    }
}

thread_local! {
    static RING: std::result::Result<Arc<Ring>, Errno> =
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(|fd| Arc::new(Ring(fd)));
}

impl<T> Operation<T> {
    /// Blocks the calling thread until the answer is there.
    ///
    /// Inside asynchronous code use `.await`: a blocked executor thread serves nobody else.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(mut self) -> Result<T> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll_with(&waker) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Blocks like [`wait`](Operation::wait), but calls `check` whenever a signal interrupts the
    /// sleep. When `check` fails, the operation is cancelled: an acquisition that was won meanwhile
    /// is released.
    ///
    /// # Errors
    /// The outer error is the one of `check`, the inner one that of the operation.
    pub fn wait_interruptibly<E>(
        mut self,
        mut check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E> {
        let ring = match RING.try_with(Clone::clone) {
            Ok(Ok(ring)) => ring,
            Ok(Err(error)) => return Ok(Err(no_descriptor(error))),
            // The thread is ending and has no signals to care about any more.
            Err(_) => return Ok(self.wait()),
        };
        let waker = Waker::from(ring.clone());
        loop {
            if let Poll::Ready(result) = self.poll_with(&waker) {
                return Ok(result);
            }
            let mut fds = [PollFd::new(ring.0.as_fd(), PollFlags::POLLIN)];
            match nix::poll::poll(&mut fds, PollTimeout::NONE) {
                // Fails only when it is clear already.
                Ok(_) => drop(ring.0.read()),
                Err(Errno::EINTR) => check()?,
                Err(error) => return Ok(Err(no_descriptor(error))),
            }
        }
    }
}

fn no_descriptor(error: Errno) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot sleep on an event descriptor: {error}"))
}
