//! Requests under way on one connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use redis::{RedisResult, Value};

/// A request that can be sent, and its reply.
pub(super) type Request = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

/// Polled once and then left alone until it is the oldest: tokio's budget must not make that one poll end
/// early, before the connection has the request.
pub(super) fn request(request: impl Future<Output = RedisResult<Value>> + 'static) -> Request {
    Box::pin(tokio::task::unconstrained(request))
}

/// What waits for a reply, oldest first. `T` tells what the reply is for.
///
/// A server answers in the order of the requests, so only the oldest one is ever looked at: there is
/// no task, no timer and no wake-up per request.
pub(super) struct Replies<T> {
    waiting: VecDeque<Waiting<T>>,
    /// How many of them the connection has got. The others follow, in order, at the next poll.
    begun: usize,
}

struct Waiting<T> {
    what: T,
    request: Request,
    /// The result of a request that failed as soon as it was begun.
    early: Option<RedisResult<Value>>,
}

impl<T> Replies<T> {
    pub(super) fn new() -> Self {
        Replies { waiting: VecDeque::new(), begun: 0 }
    }

    pub(super) fn push(&mut self, what: T, request: Request) {
        self.waiting.push_back(Waiting { what, request, early: None });
    }

    /// Hands new requests to the connection and returns the next reply.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(T, RedisResult<Value>)> {
        while let Some(new) = self.waiting.get_mut(self.begun) {
            self.begun += 1;
            if let Poll::Ready(result) = new.request.as_mut().poll(cx) {
                new.early = Some(result);
            }
        }
        let Some(oldest) = self.waiting.front_mut() else { return Poll::Pending };
        let result = match oldest.early.take() {
            Some(result) => result,
            None => ready!(oldest.request.as_mut().poll(cx)),
        };
        self.begun -= 1;
        match self.waiting.pop_front() {
            Some(done) => Poll::Ready((done.what, result)),
            None => Poll::Pending,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<&T> {
        self.waiting.front().map(|waiting| &waiting.what)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::FutureExt;
    use futures_util::future::{pending, ready};
    use tokio::sync::oneshot;

    use super::*;

    fn next<T>(replies: &mut Replies<T>) -> Poll<(T, RedisResult<Value>)> {
        replies.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn replies_come_in_the_order_of_the_requests() {
        let mut replies = Replies::new();
        let (first, answer) = oneshot::channel();
        replies.push(1, request(answer.map(|value| Ok(Value::Int(value.unwrap_or_default())))));
        replies.push(2, request(ready(Ok(Value::Int(20)))));
        assert!(next(&mut replies).is_pending());
        replies.push(3, request(pending()));
        first.send(10).expect("still wanted");
        assert_eq!(next(&mut replies), Poll::Ready((1, Ok(Value::Int(10)))));
        assert_eq!(next(&mut replies), Poll::Ready((2, Ok(Value::Int(20)))));
        assert!(next(&mut replies).is_pending());
    }
}
