//! The fallbacks, in std and tokio only, for what a system does not have.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::time::Sleep;

use super::clock;
use crate::moment::Moment;
use crate::tuning;

// ---- clock, fork ----

/// For tests: std has no clock that counts suspend.
#[cfg(redlatch_portable)]
pub(crate) fn now() -> Moment {
    use std::sync::LazyLock;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    // As if the machine had started an hour before, so that tests can speak of the past.
    let since = START.elapsed() + Duration::from_secs(3600);
    Moment(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

pub(crate) fn process_id() -> u32 {
    std::process::id()
}

// ---- timer ----

/// After a resume the timer fires this late at most: tokio's clock does not count suspend.
const RECHECK: Duration = Duration::from_secs(1);

/// The part of the timer that the I/O thread and callers share.
#[derive(Default)]
struct Setting {
    at: Option<Moment>,
    /// Wakes the I/O thread, which polled the timer before `at` changed.
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The I/O thread's end of the timer: it tells when the timer has fired.
pub(crate) struct Timer {
    setting: Arc<Mutex<Setting>>,
    sleep: RefCell<Pin<Box<Sleep>>>,
    /// The moment that `sleep` leads to.
    planned: Cell<Option<Moment>>,
}

impl Timer {
    /// Must be called inside a tokio runtime.
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Timer {
            setting: Arc::default(),
            sleep: RefCell::new(Box::pin(tokio::time::sleep(Duration::ZERO))),
            planned: Cell::new(None),
        })
    }

    /// The handle that sets the timer. There may be only one, because it remembers what is set.
    pub(crate) fn alarm(&self) -> Alarm {
        Alarm {
            setting: self.setting.clone(),
            at: None,
        }
    }

    /// Ready when the timer has fired since the last call.
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sleep = self.sleep.borrow_mut();
        loop {
            let mut setting = lock(&self.setting);
            match &mut setting.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            let Some(at) = setting.at else {
                return Poll::Pending;
            };
            let left = clock::now().until(at);
            if left.is_zero() {
                setting.at = None;
                return Poll::Ready(Ok(()));
            }
            drop(setting);
            if self.planned.replace(Some(at)) != Some(at) || sleep.is_elapsed() {
                let end = tokio::time::Instant::now() + left.min(RECHECK);
                sleep.as_mut().reset(end);
            }
            ready!(sleep.as_mut().poll(cx));
        }
    }
}

/// Sets the timer.
pub(crate) struct Alarm {
    setting: Arc<Mutex<Setting>>,
    /// When the timer fires, or has fired without the I/O thread having seen it.
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

    /// Makes the timer fire at `at` or before. An earlier time that was set before stays.
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn set(&mut self, _now: Moment, at: Moment) -> io::Result<()> {
        if self.at.is_some_and(|set| set <= at) {
            return Ok(());
        }
        self.at = Some(at);
        let mut setting = lock(&self.setting);
        setting.at = Some(at);
        let waker = setting.waker.take();
        drop(setting);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

// ---- sleep ----

pub(crate) type EventFd = super::socket_pair::SocketPair<TcpStream>;

/// The longest sleep. No signal ends it, and a flag that is set while a thread begins to sleep may
/// miss that thread.
const SLEEP: Duration = tuning::SIGNAL_CHECK;

/// It belongs to the thread that made it.
pub(crate) struct Sleeper {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Sleeper {
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Sleeper {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Sleeps until it is woken, `stop` is set, or `limit` is over, but not longer than [`SLEEP`].
    /// Returns false if neither has happened.
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn sleep(
        &self,
        stop: Option<&StopFlag>,
        limit: Option<Duration>,
    ) -> io::Result<bool> {
        let _listed = stop.map(|stop| stop.list(&self.thread));
        let end = Instant::now() + limit.unwrap_or(SLEEP).min(SLEEP);
        loop {
            if self.is_woken.swap(false, Ordering::Acquire) || stop.is_some_and(StopFlag::is_set) {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            thread::park_timeout(left);
        }
    }
}

pub(crate) struct StopFlag {
    is_set: AtomicBool,
    /// The threads that sleep until it is set.
    sleeping: Mutex<Vec<Thread>>,
}

impl StopFlag {
    #[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(StopFlag {
            is_set: AtomicBool::new(false),
            sleeping: Mutex::default(),
        })
    }

    /// Does not wait for the lock: a signal handler may have interrupted the thread that has it. A
    /// sleep that is missed ends by its limit.
    pub(crate) fn set(&self) {
        if !self.is_set.swap(true, Ordering::SeqCst)
            && let Ok(sleeping) = self.sleeping.try_lock()
        {
            sleeping.iter().for_each(Thread::unpark);
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    fn list(&self, thread: &Thread) -> Listed<'_> {
        lock(&self.sleeping).push(thread.clone());
        Listed(self)
    }
}

/// The calling thread is in the list of a flag.
struct Listed<'a>(&'a StopFlag);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let (own, mut sleeping) = (thread::current().id(), lock(&self.0.sleeping));
        if let Some(at) = sleeping.iter().position(|thread| thread.id() == own) {
            sleeping.swap_remove(at);
        }
    }
}

// ---- sockets ----

/// On Windows a socket is of no use after a read that timed out.
pub(crate) const HAS_INLINE: bool = cfg!(unix);

/// How late the wait for a reply sees that it is to stop.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// TCP only. An inline connection to a socket in the file system is refused, and calls go through
/// the I/O thread.
pub(crate) struct BlockingSocket(TcpStream);

impl BlockingSocket {
    pub(crate) fn local<S>(_: S) -> io::Result<Self> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn set_write_timeout(&self, limit: Duration) -> io::Result<()> {
        self.0.set_write_timeout(Some(limit))
    }

    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(limit)
    }

    /// Shuts the socket down. A thread that reads from it gets the end of the stream.
    pub(crate) fn shut_down(&self) {
        // This fails only if the connection is broken already.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&mut &self.0).write_all(bytes)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &self.0).read(buffer)
    }

    /// Whether something can be read already: bytes, or the end of the stream.
    pub(crate) fn has_input(&self) -> bool {
        let nothing = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
        let peeked = self
            .0
            .set_nonblocking(true)
            .and_then(|()| self.0.peek(&mut [0]));
        // If the socket cannot be set back, the next read says so.
        let _ = self.0.set_nonblocking(false);
        !peeked.is_err_and(nothing)
    }

    /// Waits until something can be read. False if `stop` is set or `limit` is over before.
    pub(crate) fn has_input_before(&self, stop: &StopFlag, limit: Option<Duration>) -> bool {
        let (end, before) = (
            limit.map(|limit| Instant::now() + limit),
            self.0.read_timeout().unwrap_or_default(),
        );
        let found = loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if stop.is_set() || left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            let tick = left.unwrap_or(STOP_CHECK).min(STOP_CHECK);
            let _ = self
                .0
                .set_read_timeout(Some(tick.max(Duration::from_millis(1))));
            match self.0.peek(&mut [0]) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                // Reading from the connection shows what is wrong with it.
                _ => break true,
            }
        };
        let _ = self.0.set_read_timeout(before);
        found
    }
}

impl From<TcpStream> for BlockingSocket {
    fn from(tcp: TcpStream) -> Self {
        BlockingSocket(tcp)
    }
}

#[cfg(test)]
pub(crate) const HAS_RECEIVE_MINIMUM: bool = false;

/// Every message wakes the I/O thread.
pub(crate) struct ReceiveMinimum(Infallible);

impl ReceiveMinimum {
    pub(crate) fn of(_: &tokio::net::TcpStream) -> Option<Self> {
        None
    }

    pub(crate) fn set(&self, _: usize) -> bool {
        match self.0 {}
    }
}

#[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
pub(crate) fn give_up_after(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Ok(())
}

// ---- signals ----

/// A signal has the effect that it has without us: locks end with their leases.
pub(crate) mod exit_signals {
    pub(crate) fn begin() {}

    pub(crate) fn register_thread() {}

    pub(crate) fn forget_thread() {}

    pub(crate) fn hears(_: &str, _: bool) {}

    pub(crate) fn allow(_: i32) {}

    pub(crate) fn watch(_: fn()) {}

    pub(crate) fn uninterrupted<T>(call: impl FnOnce() -> T) -> T {
        call()
    }

    pub(crate) fn end() {}
}

// In a portable build they are the system's.
#[cfg(all(test, not(redlatch_portable)))]
#[path = "timer_tests.rs"]
#[allow(clippy::duplicate_mod, reason = "both timers have the same tests")]
mod timer_tests;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Sleeps without a limit on another thread until `end` ends that.
    fn is_ended_by(end: impl FnOnce(&Sleeper, &StopFlag)) -> bool {
        let stop = Arc::new(StopFlag::new().expect("a flag"));
        let (made, is_made) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let own = stop.clone();
        let life = move || {
            let sleeper = Arc::new(Sleeper::new().expect("a sleeper"));
            made.send(sleeper.clone()).expect("wanted");
            while !sleeper.sleep(Some(&own), None).expect("slept") {}
            ended.send(lock(&own.sleeping).is_empty()).expect("wanted");
        };
        let thread = thread::spawn(life);
        let sleeper = is_made.recv().expect("made");
        assert!(has_ended.try_recv().is_err());
        end(&sleeper, &stop);
        let left_the_list = has_ended.recv_timeout(LIMIT);
        left_the_list == Ok(true) && thread.join().is_ok()
    }

    #[test]
    fn a_wake_up_and_a_flag_end_a_sleep() {
        assert!(is_ended_by(|sleeper, _| sleeper.wake()));
        assert!(is_ended_by(|_, stop| stop.set()));
        // As in a signal handler that interrupted the thread with the lock.
        assert!(is_ended_by(|_, stop| {
            let _held = lock(&stop.sleeping);
            stop.set();
        }));
    }

    #[test]
    fn a_sleep_without_news_ends_by_its_limit() {
        let sleeper = Sleeper::new().expect("a sleeper");
        let limit = Some(Duration::from_millis(1));
        assert!(!sleeper.sleep(None, limit).expect("slept"));
        assert!(!sleeper.sleep(None, None).expect("slept"));
        sleeper.wake();
        assert!(sleeper.sleep(None, limit).expect("slept"));
        assert!(!sleeper.sleep(None, limit).expect("slept"));
    }

    #[test]
    fn a_socket_tells_whether_something_has_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let socket = BlockingSocket::from(TcpStream::connect(address).expect("connected"));
        let (mut server, _) = listener.accept().expect("accepted");
        let stop = StopFlag::new().expect("a flag");
        let patience = Some(Duration::from_millis(7));
        socket.set_read_timeout(patience).expect("set");
        // The system rounds it.
        let timeout = socket.0.read_timeout().expect("known");
        assert!(!socket.has_input() && !socket.has_input_before(&stop, patience));
        server.write_all(b"+").expect("written");
        assert!(socket.has_input_before(&stop, None) && socket.has_input());
        let mut buffer = [0; 8];
        assert_eq!(socket.read(&mut buffer).expect("read"), 1);
        stop.set();
        assert!(!socket.has_input_before(&stop, None));
        assert_eq!(socket.0.read_timeout().expect("known"), timeout);
        drop(server);
        assert!(socket.has_input_before(&StopFlag::new().expect("a flag"), None));
    }
}
