//! A timer on the clock that counts suspend: after a resume it fires at once if it is due.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::moment::Moment;

/// A timer descriptor as tokio wants to see it.
struct Descriptor(Arc<TimerFd>);

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
        let fd = Descriptor(Arc::new(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?));
        #[allow(
            deprecated,
            reason = "its successor is unsafe, to be promised that the descriptor stays open"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Timer { fd, armed: None })
    }

    /// Makes the timer fire at `at`, or a little before: a time that was armed earlier stays, and
    /// whoever is woken too early arms again. That saves a system call for most requests.
    pub(super) fn arm(&mut self, now: Moment, at: Option<Moment>) -> io::Result<()> {
        let Some(at) = at.filter(|_| self.is_late_for(at)) else { return Ok(()) };
        set(&self.fd.get_ref().0, now, at)?;
        self.armed = Some(at);
        Ok(())
    }

    /// For others who want it to fire earlier.
    pub(super) fn alarm(&self) -> Alarm {
        Alarm(self.fd.get_ref().0.clone())
    }

    /// When it fires.
    pub(super) fn armed(&self) -> Option<Moment> {
        self.armed
    }

    /// Whether it would fire only after `at`.
    pub(super) fn is_late_for(&self, at: Option<Moment>) -> bool {
        at.is_some_and(|at| self.armed.is_none_or(|armed| at < armed))
    }

    /// Ready when the timer has fired since the last call.
    pub(super) fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.fd.poll_read_ready(cx))?;
            let mut count = [0; 8];
            match nix::unistd::read(self.fd.get_ref().0.as_fd(), &mut count) {
                Ok(_) => {
                    // It fires once: the next poll need not ask whether there is more.
                    ready.clear_ready();
                    self.armed = None;
                    return Poll::Ready(Ok(()));
                }
                Err(nix::Error::EAGAIN) => ready.clear_ready(),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

/// Makes a timer fire earlier. Its thread learns of that when it fires; until then it may arm it anew, but not for later.
pub(super) struct Alarm(Arc<TimerFd>);

impl Alarm {
    pub(super) fn set(&self, now: Moment, at: Moment) -> io::Result<()> {
        set(&self.0, now, at)
    }
}

fn set(timer: &TimerFd, now: Moment, at: Moment) -> io::Result<()> {
    // Zero would disarm it.
    let wait = now.until(at).max(Duration::from_micros(1));
    Ok(timer.set(Expiration::OneShot(TimeSpec::from_duration(wait)), TimerSetTimeFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn it_fires_at_its_moment_and_not_before() {
        let mut timer = Timer::new().expect("timerfd");
        let due = clock::now().after(Duration::from_millis(20));
        timer.arm(clock::now(), Some(due.after(Duration::from_secs(3600)))).expect("arm");
        timer.arm(clock::now(), Some(due)).expect("arm earlier");
        timer.arm(clock::now(), Some(due.after(Duration::from_secs(9)))).expect("later changes nothing");
        poll_fn(|cx| timer.poll_fired(cx)).await.expect("fired");
        assert!(clock::now() >= due);
    }

    #[tokio::test]
    async fn others_make_it_fire_earlier_and_it_is_armed_anew_then() {
        let mut timer = Timer::new().expect("timerfd");
        let (alarm, now) = (timer.alarm(), clock::now());
        timer.arm(now, Some(now.after(Duration::from_secs(3600)))).expect("arm");
        for _ in 0..2 {
            let due = clock::now().after(Duration::from_millis(20));
            alarm.set(clock::now(), due).expect("arm earlier");
            poll_fn(|cx| timer.poll_fired(cx)).await.expect("fired");
            assert!(clock::now() >= due && timer.armed().is_none());
        }
    }
}
