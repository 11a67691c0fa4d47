//! A timer on the clock that counts suspend: after a resume it fires at once if it is due.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::moment::Moment;

/// A timer descriptor as tokio wants to see it.
struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

pub(super) struct Timer {
    fd: AsyncFd<Descriptor>,
    armed: Option<Moment>,
}

impl Timer {
    /// Must be called inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let fd = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Ok(Timer { fd: AsyncFd::with_interest(Descriptor(fd), Interest::READABLE)?, armed: None })
    }

    /// Makes the timer fire at `at`, or a little before: a time that was armed earlier stays, and
    /// whoever is woken too early arms again. That saves a system call for most requests.
    pub(super) fn arm(&mut self, now: Moment, at: Option<Moment>) -> io::Result<()> {
        let Some(at) = at else { return Ok(()) };
        if self.armed.is_some_and(|armed| armed <= at) {
            return Ok(());
        }
        // Zero would disarm it.
        let wait = now.until(at).max(Duration::from_micros(1));
        let when = Expiration::OneShot(TimeSpec::from_duration(wait));
        self.fd.get_ref().0.set(when, TimerSetTimeFlags::empty())?;
        self.armed = Some(at);
        Ok(())
    }

    /// Waits until the timer fires. Cancel-safe.
    pub(super) async fn fired(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut count = [0; 8];
            match nix::unistd::read(self.fd.get_ref().0.as_fd(), &mut count) {
                Ok(_) => {
                    self.armed = None;
                    return Ok(());
                }
                Err(nix::Error::EAGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn it_fires_at_its_moment_and_not_before() {
        let mut timer = Timer::new().expect("timerfd");
        let due = clock::now().after(Duration::from_millis(20));
        timer.arm(clock::now(), Some(due.after(Duration::from_secs(3600)))).expect("arm");
        timer.arm(clock::now(), Some(due)).expect("arm earlier");
        timer.arm(clock::now(), Some(due.after(Duration::from_secs(9)))).expect("later changes nothing");
        timer.fired().await.expect("fired");
        assert!(clock::now() >= due);
    }
}
