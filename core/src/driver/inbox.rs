//! The inbox of the engine: messages that came while somebody else had the engine's lock, or while
//! the I/O thread was about to take it. The next one to have the lock drains it, before anything of
//! its own.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;

use super::Message;

/// Messages for the engine, and the bell of the I/O thread.
#[derive(Default)]
pub(super) struct Inbox {
    kept: Mutex<Kept>,
    /// The I/O thread was called and has not looked since.
    called: AtomicBool,
    thread: AtomicWaker,
}

/// The I/O thread has ended.
#[derive(Debug)]
pub(crate) struct Closed;

#[derive(Default)]
struct Kept {
    messages: VecDeque<Message>,
    closed: bool,
}

impl Inbox {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message and wakes the I/O thread.
    ///
    /// # Errors
    /// If the thread has ended. The sink of a request is then dropped uncalled.
    pub(super) fn push(&self, message: Message) -> Result<(), Closed> {
        let mut kept = self.kept();
        if kept.closed {
            drop(kept);
            if let Message::Request(mut asked) = message {
                asked.completion.0 = None;
            }
            return Err(Closed);
        }
        kept.messages.push_back(message);
        drop(kept);
        self.call();
        Ok(())
    }

    /// Takes the oldest messages, at most `most`. Returns whether more are left. The caller has the
    /// engine's lock, so the messages of one thread stay in order.
    pub(super) fn take(&self, most: usize, into: &mut VecDeque<Message>) -> bool {
        let mut kept = self.kept();
        let taken = kept.messages.len().min(most);
        into.extend(kept.messages.drain(..taken));
        !kept.messages.is_empty()
    }

    /// Refuses all messages from now on, and returns those that were kept. The waker goes: it keeps
    /// the descriptors of the thread's runtime.
    pub(super) fn close(&self) -> VecDeque<Message> {
        drop(self.thread.take());
        let mut kept = self.kept();
        kept.closed = true;
        mem::take(&mut kept.messages)
    }

    /// Wakes the I/O thread, once until it looks.
    pub(super) fn call(&self) {
        if !self.called.swap(true, Ordering::AcqRel) {
            self.thread.wake();
        }
    }

    /// Whether the I/O thread was called since it looked last. The next call wakes it.
    pub(super) fn poll_called(&self, cx: &Context<'_>) -> bool {
        self.thread.register(cx.waker());
        self.called.swap(false, Ordering::AcqRel)
    }

    /// Whether the I/O thread has been called again.
    pub(super) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// As another thread may have it at a fork.
    #[cfg(test)]
    pub(super) fn locked(&self) -> impl Sized + '_ {
        self.kept()
    }

    #[cfg(test)]
    pub(super) fn has_waker(&self) -> bool {
        self.thread.take().is_some()
    }
}
