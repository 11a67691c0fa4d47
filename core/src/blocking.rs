//! Blocking waits: the same operations for threads.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use crate::canceller::Canceller;
use crate::driver;
use crate::error::{Error, ErrorKind, Result};
use crate::operation::Operation;
use crate::process;
use crate::sync::thread::{self, Thread};
use crate::sync::thread_local;
use crate::sys::Sleeper;
use crate::tuning;
use crate::wake_list;

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        if !wake_list::leave_waker(|| Waker::from(self.clone())) {
            self.0.unpark();
        }
    }
}

fn unpark() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Wakes a thread whose sleep a signal can end.
struct Alarm {
    sleeper: Sleeper,
    /// A forked child shares the sleeper's descriptor with its parent and needs one of its own.
    pid: u32,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if !wake_list::leave_waker(|| Waker::from(self.clone())) {
            self.sleeper.wake();
        }
    }
}

impl Alarm {
    fn new() -> io::Result<Arc<Alarm>> {
        Ok(Arc::new(Alarm {
            sleeper: Sleeper::new()?,
            pid: process::id(),
        }))
    }

    /// The alarm of the calling thread, kept for its next waits.
    fn of_thread() -> io::Result<Arc<Alarm>> {
        let kept = ALARM
            .try_with(|alarm| alarm.borrow().clone())
            .ok()
            .flatten();
        if let Some(alarm) = kept.filter(|alarm| alarm.pid == process::id()) {
            return Ok(alarm);
        }
        let alarm = Alarm::new()?;
        // Fails only while the thread ends; then there is no next wait.
        let _ = ALARM.try_with(|kept| kept.replace(Some(alarm.clone())));
        Ok(alarm)
    }
}

thread_local! {
    static UNPARK: Waker = unpark();
    /// How many more waits this thread sleeps alone.
    static ALONE: Cell<u8> = const { Cell::new(0) };
    static ALARM: RefCell<Option<Arc<Alarm>>> = const { RefCell::new(None) };
}

impl<T> Operation<T> {
    /// Blocks the calling thread until the answer is there.
    ///
    /// Inside asynchronous code use `.await`. A blocked executor thread serves no other task. If
    /// the holder of the lock runs on that thread, the wait never ends.
    ///
    /// # Errors
    /// The errors of the operation. `invalid_argument` inside a callback of redlatch, because the
    /// callback runs on the thread that would have to answer.
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

    /// Parks with other callers that are likely to be answered at the same time, if the answer is
    /// not there yet. Returns `None` if this thread has to sleep alone: it does for now, or its
    /// group was woken without its answer.
    fn wait_together(&mut self) -> Option<Result<T>> {
        let alone = ALONE
            .try_with(|alone| alone.replace(alone.get().saturating_sub(1)))
            .unwrap_or(1);
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
        let _ = ALONE.try_with(|alone| alone.set(tuning::WAITS_ALONE));
        None
    }

    /// See [`OperationExt::wait_briefly`](crate::embed::OperationExt::wait_briefly).
    pub(crate) fn try_inline(&mut self, patience: Duration) -> bool {
        // On the I/O thread, the wait that follows returns the error.
        driver::is_engine_thread() || self.do_own_briefly(patience)
    }

    /// Blocks like [`wait`](Operation::wait) until the answer is there, or until another thread
    /// cancels `canceller`.
    ///
    /// An answer that is there before the cancellation is returned. A cancelled acquisition leaves
    /// nothing in Redis. The thread keeps one file descriptor for its next waits.
    ///
    /// # Errors
    /// The errors of the operation. `cancelled` after a cancel. `forked` for a canceller that was
    /// made before a fork. `invalid_argument` inside a callback of redlatch.
    pub fn wait_cancellable(self, canceller: &Canceller) -> Result<T> {
        let Ok(result) = self.wait_looking(Some(canceller), None, || Ok::<(), Infallible>(()));
        result
    }

    /// See [`OperationExt::wait_interruptibly`](crate::embed::OperationExt::wait_interruptibly).
    pub(crate) fn wait_checking<E>(
        self,
        canceller: Option<&Canceller>,
        check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E> {
        self.wait_looking(canceller, Some(tuning::SIGNAL_CHECK), check)
    }

    /// Blocks. Calls `check` after every signal and after every `pause`.
    fn wait_looking<E>(
        mut self,
        canceller: Option<&Canceller>,
        pause: Option<Duration>,
        mut check: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Result<T>, E> {
        let begin =
            refuse_engine_thread().and_then(|()| canceller.map_or(Ok(()), Canceller::refuse_fork));
        if let Err(error) = begin {
            return Ok(Err(error));
        }
        let mut canceller = canceller;
        if canceller.is_some_and(Canceller::is_cancelled) && self.is_unsent() {
            let text = "the wait was cancelled before it began; nothing was sent to Redis";
            return Ok(Err(Error::new(ErrorKind::Cancelled, text)));
        }
        self.do_own(canceller, pause.is_some(), &mut check)?;
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
            // The engine answers a cancelled request at once, with the grant if that came first.
            // The descriptor of the canceller stays readable, so from now on only the answer is
            // waited for.
            if canceller
                .take_if(|canceller| canceller.is_cancelled())
                .is_some()
            {
                self.ask_to_cancel();
                continue;
            }
            self.wake_others();
            match alarm.sleeper.sleep(canceller.map(Canceller::flag), pause) {
                Ok(true) => {}
                Ok(false) => {
                    check()?;
                    // `check` may run signal handlers, and those may fork.
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

fn no_descriptor(error: io::Error) -> Error {
    Error::exhausted("cannot sleep on an event descriptor", &error)
}
