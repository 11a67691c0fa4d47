//! The timer of a system whose timers are descriptors. Callers set it from their own threads
//! without waking the I/O thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::errno::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::moment::Moment;

/// A one-shot timer of the system, on the clock that counts suspend.
pub(crate) trait TimerFd: AsFd + Sized {
    fn new() -> nix::Result<Self>;

    /// Makes it fire once, after `wait`, and forget what was set before.
    fn set(&self, wait: Duration) -> nix::Result<()>;

    /// `EAGAIN` if it has not fired since the last call.
    fn take_expiry(&self) -> nix::Result<()>;
}

/// The system's timer, as tokio's `AsyncFd` needs it.
struct Descriptor<T>(Arc<T>);

impl<T: TimerFd> AsRawFd for Descriptor<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The I/O thread's end of the timer: it tells when the timer has fired.
pub(crate) struct Timer<T: TimerFd>(AsyncFd<Descriptor<T>>);

impl<T: TimerFd> Timer<T> {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = Descriptor(Arc::new(T::new()?));
        #[allow(
            deprecated,
            reason = "its successor is unsafe, to be promised that the descriptor stays open"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Timer(fd))
    }

    /// The handle that sets the timer. There may be only one, because it remembers what is set.
    pub(crate) fn alarm(&self) -> Alarm<T> {
        Alarm {
            timer: self.0.get_ref().0.clone(),
            at: None,
        }
    }

    /// Ready when the timer has fired since the last call.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            match self.0.get_ref().0.take_expiry() {
                Ok(()) => {
                    // The timer is one-shot, so there is nothing more to read.
                    ready.clear_ready();
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

/// Sets the timer. It is part of the engine's state, so a caller can make the timer fire earlier
/// without waking the I/O thread.
pub(crate) struct Alarm<T> {
    timer: Arc<T>,
    /// When the timer fires, or has fired without the I/O thread having seen it. Until the thread
    /// has seen it, the timer must not be set to a later time: that would clear the expiry, and the
    /// thread would miss all that is due.
    at: Option<Moment>,
}

impl<T: TimerFd> Alarm<T> {
    /// When the timer fires.
    pub(crate) fn at(&self) -> Option<Moment> {
        self.at
    }

    /// The I/O thread has seen the timer fire.
    pub(crate) fn has_fired(&mut self) {
        self.at = None;
    }

    /// Makes the timer fire at `at` or before. An earlier time that was set before stays; the
    /// thread that it wakes sets the timer again. That saves a system call for most requests.
    pub(crate) fn set(&mut self, now: Moment, at: Moment) -> io::Result<()> {
        if self.at.is_some_and(|set| set <= at) {
            return Ok(());
        }
        // Zero would disarm the timer of Linux.
        self.timer
            .set(now.until(at).max(Duration::from_micros(1)))?;
        self.at = Some(at);
        Ok(())
    }
}
