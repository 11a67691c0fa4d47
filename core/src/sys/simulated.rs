//! What tests with `--cfg shuttle` have in place of the system: a socket on which Shuttle's threads
//! can wait, and a clock on which time passes when the I/O thread sleeps for a short time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::StopFlag;
use crate::moment::Moment;
use crate::sync::thread::{self, Thread};
use crate::sync::{Condvar, Mutex, MutexGuard};

// Of the system's thread, on which all threads of a test run.
std::thread_local! {
    static NOW: Cell<Moment> = const { Cell::new(Moment(3_600_000_000)) };
}

/// A call may take a second. Longer waits end by something else: no renewal becomes due.
const SHORT: Duration = Duration::from_millis(1500);

pub(crate) fn now() -> Moment {
    NOW.get()
}

/// It wakes the thread that has made it.
pub(crate) struct Timer(Thread);

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer(thread::current()))
    }

    pub(crate) fn alarm(&self) -> Alarm {
        Alarm(None, self.0.clone())
    }

    pub(crate) fn poll_fired(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

pub(crate) struct Alarm(Option<Moment>, Thread);

impl Alarm {
    pub(crate) fn at(&self) -> Option<Moment> {
        self.0
    }

    pub(crate) fn has_fired(&mut self) {
        self.0 = None;
    }

    pub(crate) fn set(&mut self, now: Moment, at: Moment) -> io::Result<()> {
        if self.0.is_none_or(|set| at < set) {
            self.0 = Some(at);
            if now.until(at) < SHORT {
                self.1.unpark();
            }
        }
        Ok(())
    }

    /// Lets the time pass until it fires, if that is soon.
    pub(crate) fn fires(&mut self) -> bool {
        let soon = self.0.filter(|at| now().until(*at) < SHORT);
        if let Some(at) = soon {
            NOW.set(now().max(at));
            self.0 = None;
        }
        soon.is_some()
    }
}

/// The client's end of the inline connection.
#[derive(Default)]
pub(crate) struct BlockingSocket(Arc<Wire>);

/// The server's end.
pub(crate) struct ServerEnd(Arc<Wire>);

#[derive(Default)]
struct Wire {
    bytes: Mutex<Bytes>,
    changed: Condvar,
}

#[derive(Default)]
struct Bytes {
    /// What the server has not read.
    commands: VecDeque<Vec<u8>>,
    /// What the client has not read.
    replies: VecDeque<u8>,
    shut: bool,
}

impl Wire {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something, or until the connection is shut.
    fn wait(&self, is_there: impl Fn(&Bytes) -> bool) -> MutexGuard<'_, Bytes> {
        let nothing = |bytes: &mut Bytes| !bytes.shut && !is_there(bytes);
        let waited = self.changed.wait_while(self.bytes(), nothing);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockingSocket {
    pub(crate) fn local<S>(_: S) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn server(&self) -> ServerEnd {
        ServerEnd(self.0.clone())
    }

    pub(crate) fn set_write_timeout(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn shut_down(&self) {
        self.0.bytes().shut = true;
        self.0.changed.notify_all();
    }

    /// Each call writes one command.
    pub(crate) fn write_all(&self, command: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.bytes();
        if bytes.shut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        bytes.commands.push_back(command.to_owned());
        drop(bytes);
        self.0.changed.notify_all();
        Ok(())
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.0.wait(|bytes| !bytes.replies.is_empty());
        let read = buffer.len().min(bytes.replies.len());
        for (to, from) in buffer.iter_mut().zip(bytes.replies.drain(..read)) {
            *to = from;
        }
        Ok(read)
    }

    pub(crate) fn has_input(&self) -> bool {
        let bytes = self.0.bytes();
        bytes.shut || !bytes.replies.is_empty()
    }

    pub(crate) fn has_input_before(&self, _: &StopFlag, _: Option<Duration>) -> bool {
        drop(self.0.wait(|bytes| !bytes.replies.is_empty()));
        true
    }
}

impl Drop for BlockingSocket {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl From<TcpStream> for BlockingSocket {
    fn from(_: TcpStream) -> Self {
        BlockingSocket::default()
    }
}

impl ServerEnd {
    /// Answers every command, until the connection is shut.
    pub(crate) fn serve(self, reply: impl Fn(&[u8]) -> &'static [u8]) {
        loop {
            let mut bytes = self.0.wait(|bytes| !bytes.commands.is_empty());
            let Some(command) = bytes.commands.pop_front() else {
                return;
            };
            bytes.replies.extend(reply(&command));
            drop(bytes);
            self.0.changed.notify_all();
        }
    }
}
