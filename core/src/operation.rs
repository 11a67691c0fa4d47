//! One request, four ways to wait for it: `.await`, block, block interruptibly, or have the answer
//! put into a queue.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::client::{ClientInner, Running};
use crate::engine::{Input, Request, RequestId};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::queue::{Entry, Outcome, Queue};

/// Something that may have to go to Redis: nothing is sent before it is waited for.
///
/// It is a future of any runtime: `lock.acquire().await`. Threads call [`wait`](Operation::wait) or
/// [`wait_interruptibly`](Operation::wait_interruptibly), event loops of other languages
/// [`deliver_to`](Operation::deliver_to).
///
/// # Cancel safety
/// Dropping it cancels a request that was sent. An acquisition that was won but not taken is
/// released; a release that was sent goes on; other requests may or may not have taken effect.
#[must_use = "nothing is sent before an operation is awaited or waited for"]
pub struct Operation<T> {
    state: State,
    finish: fn(Outcome) -> Result<T>,
}

enum State {
    /// Known without asking.
    Known(Outcome),
    Unsent(Unsent),
    Sent(Sent),
    Done,
}

struct Unsent {
    client: Arc<ClientInner>,
    request: Request,
    /// The guard whose level the request releases; it releases by itself if nothing is ever sent.
    guard: Option<Guard>,
}

struct Sent {
    running: Arc<Running>,
    id: RequestId,
    slot: Arc<Slot>,
}

/// Where the answer lies until it is taken.
#[derive(Default)]
struct Slot(Mutex<Place>);

#[derive(Default)]
enum Place {
    #[default]
    Waiting,
    /// Somebody is to be woken.
    Polled(Waker),
    /// The answer goes on to a queue.
    Forward(Arc<Queue>, u64),
    Answered(Outcome),
    /// Taken, forwarded or not wanted any more.
    Over,
}

impl Slot {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answer where it is waited for. An answer that nobody wants is dropped outside the
    /// lock, because dropping a guard does something.
    fn answer(&self, outcome: Outcome) {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Over) {
            Place::Waiting | Place::Answered(_) => *place = Place::Answered(outcome),
            Place::Polled(waker) => {
                *place = Place::Answered(outcome);
                drop(place);
                waker.wake();
            }
            // Pushed under the lock: whoever is told `Completed` finds the entry in the queue.
            Place::Forward(queue, tag) => queue.push(Entry { tag, outcome }),
            Place::Over => {
                drop(place);
                drop(outcome);
            }
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Over) {
            Place::Answered(outcome) => Poll::Ready(outcome),
            Place::Over | Place::Forward(..) => Poll::Ready(Outcome::Failed(gone())),
            Place::Waiting | Place::Polled(_) => {
                *place = Place::Polled(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Stops waiting; true if there was no answer yet.
    fn give_up(&self) -> bool {
        let before = std::mem::replace(&mut *self.place(), Place::Over);
        matches!(before, Place::Waiting | Place::Polled(_) | Place::Forward(..))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the answer was taken before")
}

impl Unsent {
    fn send(self) -> Result<Sent> {
        let running = self.client.running()?;
        let slot = Arc::new(Slot::default());
        let (answer, source) = (slot.clone(), running.clone());
        let id =
            running.request(self.request, Box::new(move |result| answer.answer(source.outcome(result))))?;
        if let Some(guard) = self.guard {
            guard.disarm();
        }
        Ok(Sent { running, id, slot })
    }
}

impl Sent {
    /// Cancels unless there is an answer; true if it was cancelled.
    fn cancel(&self) -> bool {
        let cancelled = self.slot.give_up();
        if cancelled {
            self.running.tell(Input::Cancel { id: self.id });
        }
        cancelled
    }
}

impl<T> Operation<T> {
    pub(crate) fn new(client: &Arc<ClientInner>, request: Request, finish: fn(Outcome) -> Result<T>) -> Self {
        let unsent = Unsent { client: client.clone(), request, guard: None };
        Operation { state: State::Unsent(unsent), finish }
    }

    /// An operation that releases the level of `guard`.
    pub(crate) fn releasing(
        client: &Arc<ClientInner>,
        request: Request,
        guard: Guard,
        finish: fn(Outcome) -> Result<T>,
    ) -> Self {
        let unsent = Unsent { client: client.clone(), request, guard: Some(guard) };
        Operation { state: State::Unsent(unsent), finish }
    }

    /// An operation whose outcome needs no question.
    pub(crate) fn known(outcome: Outcome, finish: fn(Outcome) -> Result<T>) -> Self {
        Operation { state: State::Known(outcome), finish }
    }

    pub(crate) fn failed(error: Error, finish: fn(Outcome) -> Result<T>) -> Self {
        Self::known(Outcome::Failed(error), finish)
    }

    /// Sends the request if that has not happened yet.
    fn start(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Unsent(unsent) => match unsent.send() {
                Ok(sent) => State::Sent(sent),
                Err(error) => State::Known(Outcome::Failed(error)),
            },
            other => other,
        };
    }

    fn poll_outcome(&mut self, cx: &Context<'_>) -> Poll<Result<T>> {
        self.start();
        let outcome = match &self.state {
            State::Sent(sent) => match sent.slot.poll(cx) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => return Poll::Pending,
            },
            _ => match std::mem::replace(&mut self.state, State::Done) {
                State::Known(outcome) => outcome,
                _ => Outcome::Failed(gone()),
            },
        };
        self.state = State::Done;
        Poll::Ready((self.finish)(outcome))
    }

    /// Has the answer put into `queue` under `tag`, and returns at once.
    ///
    /// A request that cannot even be sent is answered through the queue as well.
    pub fn deliver_to(mut self, queue: &Arc<Queue>, tag: u64) -> Pending {
        self.start();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Sent(sent) => {
                let mut place = sent.slot.place();
                match std::mem::replace(&mut *place, Place::Over) {
                    Place::Answered(outcome) => queue.push(Entry { tag, outcome }),
                    _ => *place = Place::Forward(queue.clone(), tag),
                }
                drop(place);
                Pending(Some(sent))
            }
            State::Known(outcome) => {
                queue.push(Entry { tag, outcome });
                Pending(None)
            }
            _ => Pending(None),
        }
    }

    /// Cancels what was sent; used by the blocking face when it is interrupted.
    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Poll<Result<T>> {
        self.poll_outcome(&Context::from_waker(waker))
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        self.get_mut().poll_outcome(cx)
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        if let State::Sent(sent) = &self.state {
            sent.cancel();
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Known(_) => "known",
            State::Unsent(_) => "not sent",
            State::Sent(_) => "sent",
            State::Done => "done",
        };
        write!(f, "Operation({state})")
    }
}

/// Whether a cancellation came in time; exactly one of the two happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It did: no entry for this operation comes into the queue.
    Yes,
    /// The operation was answered: its entry is in the queue, or has been drained.
    No,
}

/// An operation whose answer comes through a queue. Dropping it changes nothing.
#[derive(Debug)]
pub struct Pending(Option<Sent>);

impl Pending {
    /// Cancels the operation unless it is answered already. Never blocks.
    pub fn cancel(&self) -> Cancelled {
        match &self.0 {
            Some(sent) if sent.cancel() => Cancelled::Yes,
            _ => Cancelled::No,
        }
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.id)
    }
}
