//! Requests in flight on one connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use redis::{RedisResult, Value};

/// Converts a reply of redis-rs to the type of the outbox.
pub(crate) fn value(reply: Value) -> redlatch_proto::value::Value {
    use redlatch_proto::value::{ServerError, Value as Reply};
    match reply {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::BulkString(bytes),
        Value::SimpleString(text) => Reply::SimpleString(text),
        Value::VerbatimString { text, .. } => Reply::BulkString(text.into_bytes()),
        Value::Okay => Reply::SimpleString("OK".to_owned()),
        Value::Array(values) => Reply::Array(values.into_iter().map(value).collect()),
        Value::ServerError(error) => Reply::ServerError(ServerError::new(
            error.code(),
            error.details().map(str::to_owned),
        )),
        other => Reply::Other(format!("{other:?}")),
    }
}

/// A request and its reply. The first poll sends it.
pub(super) type Request = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

/// Wraps a request for [`Replies`], which polls it once, and again only when it is the oldest. It
/// is exempt from tokio's cooperative budget, so that the first poll always hands it to the
/// connection.
pub(super) fn request(request: impl Future<Output = RedisResult<Value>> + 'static) -> Request {
    Box::pin(tokio::task::unconstrained(request))
}

/// Requests that wait for a reply, oldest first. `T` says what the reply is for.
///
/// A server replies in the order of the requests, so only the oldest one is polled. There is no
/// task, timer or wake-up per request.
pub(super) struct Replies<T> {
    waiting: VecDeque<Waiting<T>>,
    /// How many of them were handed to the connection. The others follow, in order, at the next
    /// poll.
    begun: usize,
}

struct Waiting<T> {
    what: T,
    request: Request,
    /// The result of a request that failed at its first poll.
    early: Option<RedisResult<Value>>,
}

impl<T> Replies<T> {
    pub(super) fn new() -> Self {
        Replies {
            waiting: VecDeque::new(),
            begun: 0,
        }
    }

    pub(super) fn push(&mut self, what: T, request: Request) {
        self.waiting.push_back(Waiting {
            what,
            request,
            early: None,
        });
    }

    /// Hands new requests to the connection and returns the next reply.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(T, RedisResult<Value>)> {
        while let Some(new) = self.waiting.get_mut(self.begun) {
            self.begun += 1;
            if let Poll::Ready(result) = new.request.as_mut().poll(cx) {
                new.early = Some(result);
            }
        }
        let Some(oldest) = self.waiting.front_mut() else {
            return Poll::Pending;
        };
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
        replies.push(
            1,
            request(answer.map(|value| Ok(Value::Int(value.unwrap_or_default())))),
        );
        replies.push(2, request(ready(Ok(Value::Int(20)))));
        assert!(next(&mut replies).is_pending());
        replies.push(3, request(pending()));
        first.send(10).expect("still wanted");
        assert_eq!(next(&mut replies), Poll::Ready((1, Ok(Value::Int(10)))));
        assert_eq!(next(&mut replies), Poll::Ready((2, Ok(Value::Int(20)))));
        assert!(next(&mut replies).is_pending());
    }
}
