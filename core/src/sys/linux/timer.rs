//! A timer (`timerfd`) on `CLOCK_BOOTTIME`, which counts suspend. After a resume it fires at once
//! if it is due.

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

/// The `timerfd`, as tokio's `AsyncFd` needs it.
struct Descriptor(Arc<TimerFd>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The I/O thread's end of the timer: it tells when the timer has fired.
pub(crate) struct Timer(AsyncFd<Descriptor>);

impl Timer {
    /// Must be called inside a tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let fd = Descriptor(Arc::new(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?));
        #[allow(
            deprecated,
            reason = "its successor is unsafe, to be promised that the descriptor stays open"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Timer(fd))
    }

    /// The handle that sets the timer. There may be only one, because it remembers what is set.
    pub(crate) fn alarm(&self) -> Alarm {
        Alarm {
            timer: self.0.get_ref().0.clone(),
            at: None,
        }
    }

    /// Ready when the timer has fired since the last call.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let mut count = [0; 8];
            match nix::unistd::read(self.0.get_ref().0.as_fd(), &mut count) {
                Ok(_) => {
                    // The timer is one-shot, so there is nothing more to read.
                    ready.clear_ready();
                    return Poll::Ready(Ok(()));
                }
                Err(nix::Error::EAGAIN) => ready.clear_ready(),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

/// Sets the timer. It is part of the engine's state, so a caller can make the timer fire earlier
/// without waking the I/O thread.
pub(crate) struct Alarm {
    timer: Arc<TimerFd>,
    /// When the timer fires, or has fired without the I/O thread having seen it. Until the thread
    /// has seen it, the timer must not be set to a later time: that would clear the expiry, and the
    /// thread would miss all that is due.
    at: Option<Moment>,
}

impl Alarm {
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
        // Zero would disarm the timer.
        let wait = now.until(at).max(Duration::from_micros(1));
        self.timer.set(
            Expiration::OneShot(TimeSpec::from_duration(wait)),
            TimerSetTimeFlags::empty(),
        )?;
        self.at = Some(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use nix::poll::{PollFd, PollFlags, PollTimeout};

    use super::*;
    use crate::sys::clock;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn it_fires_at_the_earliest_moment_that_was_set_and_not_before() {
        let timer = Timer::new().expect("timerfd");
        let (mut alarm, now) = (timer.alarm(), clock::now());
        let due = now.after(Duration::from_millis(20));
        alarm.set(now, due.after(HOUR)).expect("set");
        alarm.set(now, due).expect("set earlier");
        alarm
            .set(now, due.after(Duration::from_secs(9)))
            .expect("later changes nothing");
        assert_eq!(alarm.at(), Some(due));
        poll_fn(|cx| timer.poll_fired(cx)).await.expect("fired");
        assert!(clock::now() >= due);
    }

    #[tokio::test]
    async fn once_the_thread_has_seen_it_fire_it_is_set_for_nothing() {
        let timer = Timer::new().expect("timerfd");
        let mut alarm = timer.alarm();
        for _ in 0..2 {
            let now = clock::now();
            let due = now.after(Duration::from_millis(20));
            alarm.set(now, now.after(HOUR)).expect("set");
            alarm.set(now, due).expect("set earlier");
            poll_fn(|cx| timer.poll_fired(cx)).await.expect("fired");
            alarm.has_fired();
            assert!(due <= clock::now());
        }
    }

    #[tokio::test]
    async fn setting_a_fired_timer_keeps_its_expiry() {
        let timer = Timer::new().expect("timerfd");
        let (mut alarm, now) = (timer.alarm(), clock::now());
        alarm
            .set(now, now.after(Duration::from_millis(1)))
            .expect("set");
        let mut fired = [PollFd::new(timer.0.get_ref().0.as_fd(), PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fired, PollTimeout::NONE), Ok(1));
        alarm.set(clock::now(), now.after(HOUR)).expect("set");
        let seen =
            tokio::time::timeout(Duration::from_secs(30), poll_fn(|cx| timer.poll_fired(cx)));
        seen.await.expect("the thread sees it").expect("fired");
    }
}
