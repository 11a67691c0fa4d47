//! The same operations for threads.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::driver;
use crate::error::{Error, ErrorKind, Result};
use crate::later;
use crate::operation::Operation;
use crate::process;

/// How late a signal can be noticed that came just before the thread went to sleep, in milliseconds.
const SIGNAL_CHECK: u16 = 250;
/// A thread that was woken together with others in vain sleeps alone for its next waits: as long as it waits for
/// locks that others have, it would be again.
const IN_VAIN: u8 = 32;

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        if !later::leave(|| Waker::from(self.clone())) {
            self.0.unpark();
        }
    }
}

fn unpark() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Wakes a thread that sleeps in `poll(2)`.
struct Alarm {
    fd: EventFd,
    /// A child shares the descriptor with its parent and needs one of its own.
    pid: u32,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if !later::leave(|| Waker::from(self.clone())) {
            // Fails only when the counter is full, and then the sleeper wakes as well.
            let _ = self.fd.write(1);
        }
    }
}

impl Alarm {
    fn new() -> std::result::Result<Arc<Alarm>, Errno> {
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Alarm { fd, pid: process::id() }))
    }

    /// The alarm of the calling thread, kept for its next wait.
    fn of_thread() -> std::result::Result<Arc<Alarm>, Errno> {
        let kept = ALARM.try_with(|alarm| alarm.borrow().clone()).ok().flatten();
        if let Some(alarm) = kept.filter(|alarm| alarm.pid == process::id()) {
            return Ok(alarm);
        }
        let alarm = Alarm::new()?;
        // Fails only while the thread ends; then there is no next wait.
        let _ = ALARM.try_with(|kept| kept.replace(Some(alarm.clone())));
        Ok(alarm)
    }

    /// Sleeps until it rings or a signal comes; false if `check` has to be called.
    fn sleep(&self) -> std::result::Result<bool, Errno> {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, PollTimeout::from(SIGNAL_CHECK)) {
            Ok(0) | Err(Errno::EINTR) => Ok(false),
            Ok(_) => {
                // Fails only when it is clear already.
                let _ = self.fd.read();
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

thread_local! {
    static UNPARK: Waker = unpark();
    /// So many more times the thread sleeps alone.
    static ALONE: Cell<u8> = const { Cell::new(0) };
    static ALARM: RefCell<Option<Arc<Alarm>>> = const { RefCell::new(None) };
}

impl<T> Operation<T> {
    /// Blocks the calling thread until the answer is there.
    ///
    /// Inside asynchronous code use `.await`: a blocked executor thread serves nobody else, and if
    /// the holder of the lock runs on it, nobody ever.
    ///
    /// # Errors
    /// Those of the operation; `invalid_argument` inside a callback of redlatch, whose thread is the
    /// one that would have to answer.
    pub fn wait(mut self) -> Result<T> {
        refuse_engine_thread()?;
        self.do_own_deaf();
        if let Some(result) = self.result().or_else(|| self.wait_together()) {
            return result;
        }
        let waker = UNPARK.try_with(Waker::clone).unwrap_or_else(|_| unpark());
        loop {
            match self.poll_with(&waker) {
                Poll::Ready(result) => return result,
                Poll::Pending => {
                    self.wake_others();
                    thread::park();
                }
            }
        }
    }

    /// Sleeps with others who are likely to be answered at the same time, if the answer is not there yet. Nothing if they
    /// were answered and this one was not.
    fn wait_together(&mut self) -> Option<Result<T>> {
        let alone = ALONE.try_with(|alone| alone.replace(alone.get().saturating_sub(1))).unwrap_or(1);
        let gate = self.gate().filter(|_| alone == 0)?;
        let (before, waker) = (gate.before(), Waker::from(gate.clone()));
        for asleep in [false, true] {
            match self.poll_with(&waker) {
                Poll::Ready(result) => return Some(result),
                Poll::Pending if asleep => {}
                Poll::Pending => {
                    self.wake_others();
                    gate.sleep(before);
                }
            }
        }
        let _ = ALONE.try_with(|alone| alone.set(IN_VAIN));
        None
    }

    /// Sends the request and waits at most `patience` for the answer, if the calling thread can do the call
    /// itself; else it does not wait. True if a wait that follows will not block.
    ///
    /// For languages whose lock it takes longer to give away than to wait: Python.
    pub fn wait_briefly(&mut self, patience: Duration) -> bool {
        // The wait that follows tells what is wrong with the thread.
        driver::is_engine_thread() || self.do_own_briefly(patience)
    }

    /// Blocks like [`wait`](Operation::wait), but calls `check` when a signal has interrupted the
    /// sleep, and a few times a second. When `check` fails, the operation is cancelled: an
    /// acquisition that was won meanwhile is released.
    ///
    /// The calls by time are there for a signal that arrives between a check and the sleep; it is
    /// noticed a quarter of a second later.
    ///
    /// # Errors
    /// The outer error is the one of `check`, the inner one that of the operation.
    pub fn wait_interruptibly<E>(
        mut self,
        mut check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E> {
        if let Err(error) = refuse_engine_thread() {
            return Ok(Err(error));
        }
        self.do_own(&mut check)?;
        self.refuse_fork();
        if let Some(result) = self.result() {
            return Ok(result);
        }
        let alarm = match Alarm::of_thread() {
            Ok(alarm) => alarm,
            Err(error) => return Ok(Err(no_descriptor(error))),
        };
        let waker = Waker::from(alarm.clone());
        loop {
            if let Poll::Ready(result) = self.poll_with(&waker) {
                return Ok(result);
            }
            self.wake_others();
            match alarm.sleep() {
                Ok(true) => {}
                Ok(false) => {
                    check()?;
                    // It runs the handlers of signals, and those may fork.
                    self.refuse_fork();
                }
                Err(error) => return Ok(Err(no_descriptor(error))),
            }
        }
    }
}

fn refuse_engine_thread() -> Result<()> {
    if !driver::is_engine_thread() {
        return Ok(());
    }
    let text = "a callback of redlatch cannot wait for an operation: it runs on the thread that would \
                answer; hand the work to another thread";
    Err(Error::invalid(text))
}

fn no_descriptor(error: Errno) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot sleep on an event descriptor: {error}"))
}
