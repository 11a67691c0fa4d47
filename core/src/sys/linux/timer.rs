//! A timer (`timerfd`) on `CLOCK_BOOTTIME`, which counts suspend. After a resume it fires at once
//! if it is due.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, ClockId, Expiration, TimerFlags, TimerSetTimeFlags};

use crate::sys::fd_timer::{self, TimerFd};

pub(crate) type Timer = fd_timer::Timer<Descriptor>;
pub(crate) type Alarm = fd_timer::Alarm<Descriptor>;

pub(crate) struct Descriptor(timerfd::TimerFd);

impl TimerFd for Descriptor {
    fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        timerfd::TimerFd::new(ClockId::CLOCK_BOOTTIME, flags).map(Descriptor)
    }

    fn set(&self, wait: Duration) -> nix::Result<()> {
        let wait = Expiration::OneShot(TimeSpec::from_duration(wait));
        self.0.set(wait, TimerSetTimeFlags::empty())
    }

    fn take_expiry(&self) -> nix::Result<()> {
        let mut count = [0; 8];
        nix::unistd::read(&self.0, &mut count).map(drop)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
