//! A timer (`timerfd`) on `CLOCK_BOOTTIME`, which counts suspend. After a resume it fires at once
//! if it is due.
//!
//! Kernels before 3.15, and some of containers, have no such timer, though they have the clock. There
//! it is on `CLOCK_MONOTONIC`, and fires once a second until it is due, so that after a resume it is
//! late by a second at most.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, ClockId, Expiration, TimerFlags, TimerSetTimeFlags};

use crate::sys::fd_timer::{self, TimerFd};

pub(crate) type Timer = fd_timer::Timer<Descriptor>;
pub(crate) type Alarm = fd_timer::Alarm<Descriptor>;

pub(crate) struct Descriptor {
    timer: timerfd::TimerFd,
    /// The longest time that may be set.
    longest: Duration,
}

const FLAGS: TimerFlags = TimerFlags::TFD_NONBLOCK.union(TimerFlags::TFD_CLOEXEC);

impl Descriptor {
    /// The timer, or one on the other clock where the kernel has no such one.
    fn or_another(timer: nix::Result<timerfd::TimerFd>) -> nix::Result<Descriptor> {
        let (timer, longest) = match timer {
            Err(Errno::EINVAL) => {
                let timer = timerfd::TimerFd::new(ClockId::CLOCK_MONOTONIC, FLAGS)?;
                (timer, Duration::from_secs(1))
            }
            timer => (timer?, Duration::MAX),
        };
        Ok(Descriptor { timer, longest })
    }
}

impl TimerFd for Descriptor {
    fn new() -> nix::Result<Self> {
        Descriptor::or_another(timerfd::TimerFd::new(ClockId::CLOCK_BOOTTIME, FLAGS))
    }

    fn set(&self, wait: Duration) -> nix::Result<()> {
        let wait = wait.min(self.longest);
        let wait = Expiration::OneShot(TimeSpec::from_duration(wait));
        self.timer.set(wait, TimerSetTimeFlags::empty())
    }

    fn take_expiry(&self) -> nix::Result<()> {
        let mut count = [0; 8];
        nix::unistd::read(&self.timer, &mut count).map(drop)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `timerfd_create` of a kernel before 3.15 answers `EINVAL`.
    #[test]
    fn a_kernel_without_timers_on_the_clock_of_leases_has_another() {
        let timer = Descriptor::or_another(Err(Errno::EINVAL)).expect("a timer");
        let left = |timer: &Descriptor| match timer.timer.get() {
            Ok(Some(Expiration::OneShot(left))) => Duration::from(left),
            other => panic!("{other:?}"),
        };
        timer.set(Duration::from_secs(3600)).expect("set");
        assert!(
            left(&timer) <= Duration::from_secs(1),
            "it looks once a second"
        );
        timer.set(Duration::from_millis(1)).expect("set");
        assert!(matches!(timer.timer.wait(), Ok(()) | Err(Errno::EAGAIN)));
        let timer = Descriptor::new().expect("a timer");
        timer.set(Duration::from_secs(3600)).expect("set");
        assert!(left(&timer) > Duration::from_secs(3000));
        assert_eq!(
            Descriptor::or_another(Err(Errno::EMFILE)).err(),
            Some(Errno::EMFILE)
        );
    }
}
