//! A timer of a `kqueue` of its own, on the clock that counts sleep. After a resume it fires at
//! once if it is due.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{NOTE_MACH_CONTINUOUS_TIME, NOTE_USECONDS, timespec};
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};

use crate::sys::fd_timer::{self, TimerFd};

pub(crate) type Timer = fd_timer::Timer<Descriptor>;
pub(crate) type Alarm = fd_timer::Alarm<Descriptor>;

const NO_WAIT: Option<timespec> = Some(timespec {
    tv_sec: 0,
    tv_nsec: 0,
});

pub(crate) struct Descriptor(Kqueue);

impl TimerFd for Descriptor {
    fn new() -> nix::Result<Self> {
        Kqueue::new().map(Descriptor)
    }

    fn set(&self, wait: Duration) -> nix::Result<()> {
        let wait = isize::try_from(wait.as_micros()).unwrap_or(isize::MAX);
        let once = EvFlags::EV_ADD | EvFlags::EV_ONESHOT;
        // `nix` has no names for these.
        let unit = FilterFlag::from_bits_retain(NOTE_USECONDS | NOTE_MACH_CONTINUOUS_TIME);
        let timer = KEvent::new(0, EventFilter::EVFILT_TIMER, once, unit, wait, 0);
        // Without room for an event it takes none out of the queue.
        self.0.kevent(&[timer], &mut [], NO_WAIT).map(drop)
    }

    fn take_expiry(&self) -> nix::Result<()> {
        let (flags, none) = (EvFlags::empty(), FilterFlag::empty());
        let mut fired = [KEvent::new(0, EventFilter::EVFILT_TIMER, flags, none, 0, 0)];
        match self.0.kevent(&[], &mut fired, NO_WAIT)? {
            0 => Err(Errno::EAGAIN),
            _ => Ok(()),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
