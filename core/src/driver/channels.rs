//! One pub/sub connection: classic, sharded, or shared with the commands.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{Cmd, FromRedisValue, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use super::connect::Address;
use crate::error::Result;

/// Which kind of pub/sub messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// `PUBLISH`: messages reach every node.
    Classic,
    /// `SPUBLISH`: messages reach the node of the slot only.
    Sharded,
}

pub(super) enum Channels {
    Classic(PubSubSink, Box<PubSubStream>),
    Sharded(MultiplexedConnection, UnboundedReceiver<PushInfo>),
    /// The command connection. Its link passes the pub/sub messages on.
    Shared(MultiplexedConnection, VecDeque<Said>),
}

/// A push message of the server.
pub(super) enum Said {
    Message {
        channel: String,
        payload: String,
    },
    /// A channel is no longer subscribed. If no command asked for that, its slot has moved.
    Unsubscribed(String),
    Nothing,
}

/// The reply that confirms a command.
type Confirmation = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

impl Channels {
    pub(super) async fn connect(address: Address, reach: Reach) -> Result<Channels> {
        match reach {
            Reach::Classic => {
                let (sink, stream) = address.pubsub().await?.split();
                Ok(Channels::Classic(sink, Box::new(stream)))
            }
            Reach::Sharded => address
                .shard()
                .await
                .map(|(connection, pushes)| Channels::Sharded(connection, pushes)),
        }
    }

    pub(super) fn subscribe(&self, channel: String) -> Confirmation {
        match self {
            Channels::Classic(sink, _) => {
                let mut sink = sink.clone();
                Box::pin(async move { done(sink.subscribe(channel).await) })
            }
            Channels::Sharded(connection, _) => ask(connection, &["SSUBSCRIBE", &channel]),
            Channels::Shared(connection, _) => ask(connection, &["SUBSCRIBE", &channel]),
        }
    }

    pub(super) fn unsubscribe(&self, channel: String) -> Confirmation {
        match self {
            Channels::Classic(sink, _) => {
                let mut sink = sink.clone();
                Box::pin(async move { done(sink.unsubscribe(channel).await) })
            }
            Channels::Sharded(connection, _) => ask(connection, &["SUNSUBSCRIBE", &channel]),
            Channels::Shared(connection, _) => ask(connection, &["UNSUBSCRIBE", &channel]),
        }
    }

    pub(super) fn ping(&self) -> Confirmation {
        match self {
            Channels::Classic(sink, _) => {
                let mut sink = sink.clone();
                Box::pin(async move { sink.ping().await })
            }
            Channels::Sharded(connection, _) | Channels::Shared(connection, _) => {
                ask(connection, &["PING"])
            }
        }
    }

    /// The next push message; `None` when the connection is closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Said>> {
        match self {
            Channels::Classic(_, stream) => {
                let message = ready!(stream.poll_next_unpin(cx));
                Poll::Ready(message.map(|message| Said::Message {
                    channel: message.get_channel_name().to_owned(),
                    payload: message.get_payload().unwrap_or_default(),
                }))
            }
            Channels::Sharded(_, pushes) => {
                Poll::Ready(ready!(pushes.poll_recv(cx)).and_then(said))
            }
            // No waker is needed: the caller that passes messages on polls next.
            Channels::Shared(_, passed) => passed
                .pop_front()
                .map_or(Poll::Pending, |said| Poll::Ready(Some(said))),
        }
    }
}

/// Reads a push message. `None` means that the connection is closed.
pub(super) fn said(push: PushInfo) -> Option<Said> {
    let mut words = push
        .data
        .into_iter()
        .map(|value| String::from_redis_value(value).unwrap_or_default());
    let mut word = || words.next().unwrap_or_default();
    match push.kind {
        PushKind::Disconnection => None,
        PushKind::Message | PushKind::SMessage => Some(Said::Message {
            channel: word(),
            payload: word(),
        }),
        PushKind::SUnsubscribe => Some(Said::Unsubscribed(word())),
        _ => Some(Said::Nothing),
    }
}

fn ask(connection: &MultiplexedConnection, words: &[&str]) -> Confirmation {
    let mut connection = connection.clone();
    let mut command = Cmd::new();
    command.arg(words);
    Box::pin(async move {
        connection
            .send_packed_command(&command)
            .await?
            .extract_error()
    })
}

fn done(result: RedisResult<()>) -> RedisResult<Value> {
    result.map(|()| Value::Okay)
}
