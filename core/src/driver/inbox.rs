//! The inbox of the engine: messages that came while somebody else had the engine's lock, or while
//! the I/O thread was about to take it. The next one to have the lock drains it, before anything of
//! its own.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;
use std::task::Context;

use super::Message;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{AtomicWaker, Mutex, MutexGuard};

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

#[cfg(test)]
mod explored {
    use std::sync::Arc;

    use super::*;
    use crate::engine::Input;
    use crate::sync::{explore, thread, unpark};

    /// Two callers bring two messages each. The I/O thread takes `most`, and ends.
    fn bring_and_take(most: usize) {
        explore(move || {
            let inbox = Arc::new(Inbox::default());
            let caller = |_| {
                let inbox = inbox.clone();
                let bring = move || inbox.push(Message::Tell(Input::Orphaned)).is_ok();
                thread::spawn(move || (0..2).filter(|_| bring()).count())
            };
            let callers = [1, 2].map(caller);
            let waker = unpark();
            let mut taken = VecDeque::new();
            while taken.len() < most {
                if !inbox.poll_called(&Context::from_waker(&waker)) {
                    thread::park();
                    continue;
                }
                while taken.len() < most && inbox.take(1, &mut taken) {}
            }
            let left = inbox.close();
            assert!(inbox.push(Message::Tell(Input::Orphaned)).is_err());
            let brought: usize = callers
                .into_iter()
                .map(|caller| caller.join().expect("no panic"))
                .sum();
            assert_eq!(brought, taken.len() + left.len());
            assert!(inbox.close().is_empty(), "it was closed");
        });
    }

    #[test]
    fn the_io_thread_sleeps_over_no_message() {
        bring_and_take(4);
    }

    #[test]
    fn a_message_is_refused_or_returned_when_the_inbox_is_closed() {
        bring_and_take(2);
    }
}
