//! The pub/sub connection: opened when the first channel is wanted, one for all channels.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::Command;
use super::connect::{Address, Backoff, Failure};
use crate::engine::Input;
use crate::error::{Error, ErrorKind};
use crate::wire::{self, Name, names};

/// A connection on which nothing has come for this long is asked whether it is there.
const IDLE: Duration = Duration::from_secs(5);
/// How long the server may take to confirm.
const PATIENCE: Duration = Duration::from_secs(2);

/// A change of what is wanted.
#[derive(Debug)]
pub(super) enum Want {
    Subscribe(Name),
    Unsubscribe(Name),
}

/// Serves `wants` until their sender is gone.
pub(super) async fn serve(
    mut address: Address,
    mut wants: UnboundedReceiver<Want>,
    inbox: UnboundedSender<Command>,
) {
    let mut wanted = Wanted { names: HashMap::new(), inbox };
    let mut backoff = Backoff::default();
    loop {
        while wanted.names.is_empty() {
            let Some(want) = wants.recv().await else { return };
            wanted.note(want);
        }
        backoff.pause().await;
        match address.pubsub().await {
            Ok(connection) => {
                backoff.reset();
                let (sink, stream) = connection.split();
                if wanted.converse(sink, stream, &mut wants).await.is_none() {
                    return;
                }
            }
            Err(Failure::NoResp3) => address.downgrade(),
            // The command connection tells callers what is wrong; here it only means to try again.
            Err(Failure::Error(_)) => {}
        }
    }
}

/// The channels that shall be subscribed.
struct Wanted {
    names: HashMap<String, Name>,
    inbox: UnboundedSender<Command>,
}

/// Why a conversation ended while somebody may still want channels.
struct Broken;

impl Wanted {
    /// Notes a change; returns the channel if the connection has to be told.
    fn note(&mut self, want: Want) -> Option<Change> {
        match want {
            Want::Subscribe(name) => {
                let channel = names::channel(&name);
                self.names.insert(channel.clone(), name);
                Some(Change::Subscribe(channel))
            }
            Want::Unsubscribe(name) => {
                let channel = names::channel(&name);
                self.names.remove(&channel).map(|_| Change::Unsubscribe(channel))
            }
        }
    }

    fn tell(&self, input: Input) {
        let _ = self.inbox.send(Command::Tell(input));
    }

    /// Keeps one connection in step with what is wanted, until it breaks (`Some`) or nobody can
    /// want anything any more (`None`). Ends as well when nothing was wanted for a while.
    async fn converse(
        &mut self,
        mut sink: PubSubSink,
        mut stream: PubSubStream,
        wants: &mut UnboundedReceiver<Want>,
    ) -> Option<Broken> {
        let all: Vec<String> = self.names.keys().cloned().collect();
        if self.subscribe(&mut sink, all).await.is_err() {
            return Some(Broken);
        }
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                message = stream.next() => {
                    let Some(message) = message else { return Some(Broken) };
                    if let Some(name) = self.names.get(message.get_channel_name()) {
                        self.tell(Input::Message(name.clone()));
                    }
                }
                count = wants.recv_many(&mut batch, 1024) => {
                    if count == 0 {
                        return None;
                    }
                    if self.follow(&mut sink, batch.drain(..)).await.is_err() {
                        return Some(Broken);
                    }
                }
                () = tokio::time::sleep(IDLE) => {
                    if self.names.is_empty() || !is_there(&mut sink).await {
                        return Some(Broken);
                    }
                }
            }
        }
    }

    /// Tells the server about changes, in their order; neighbours of one sort go in one command.
    async fn follow(
        &mut self,
        sink: &mut PubSubSink,
        wants: impl Iterator<Item = Want>,
    ) -> Result<(), Broken> {
        let mut changes: Vec<Change> = wants.filter_map(|want| self.note(want)).collect();
        while !changes.is_empty() {
            let subscribes = matches!(changes[0], Change::Subscribe(_));
            let same = changes
                .iter()
                .take_while(|change| matches!(change, Change::Subscribe(_)) == subscribes)
                .count();
            let channels: Vec<String> = changes.drain(..same).map(Change::channel).collect();
            if subscribes {
                self.subscribe(sink, channels).await?;
            } else {
                confirmed(sink.unsubscribe(&channels)).await?.map_err(|_| Broken)?;
            }
        }
        Ok(())
    }

    /// Subscribes and tells every confirmation. A refusal concerns the channels one by one.
    async fn subscribe(&mut self, sink: &mut PubSubSink, channels: Vec<String>) -> Result<(), Broken> {
        if channels.is_empty() {
            return Ok(());
        }
        match confirmed(sink.subscribe(&channels)).await? {
            Ok(()) => channels.iter().for_each(|channel| self.is_subscribed(channel)),
            Err(error) if error.code().is_none() => return Err(Broken),
            Err(_) => {
                for channel in channels {
                    match confirmed(sink.subscribe(&channel)).await? {
                        Ok(()) => self.is_subscribed(&channel),
                        Err(error) => self.is_refused(&channel, &error),
                    }
                }
            }
        }
        Ok(())
    }

    fn is_subscribed(&self, channel: &str) {
        if let Some(name) = self.names.get(channel) {
            self.tell(Input::Subscribed(name.clone()));
        }
    }

    fn is_refused(&mut self, channel: &str, error: &redis::RedisError) {
        let Some(name) = self.names.remove(channel) else { return };
        let error = match error.code() {
            Some(code) => wire::refusal(code, error.detail().unwrap_or_default()).0,
            None => Error::new(ErrorKind::Unavailable, error.to_string()),
        };
        self.tell(Input::Unsubscribable(name, error));
    }
}

enum Change {
    Subscribe(String),
    Unsubscribe(String),
}

impl Change {
    fn channel(self) -> String {
        match self {
            Change::Subscribe(channel) | Change::Unsubscribe(channel) => channel,
        }
    }
}

/// The confirmation, or [`Broken`] when the server does not answer.
async fn confirmed(
    command: impl Future<Output = redis::RedisResult<()>>,
) -> Result<redis::RedisResult<()>, Broken> {
    tokio::time::timeout(PATIENCE, command).await.map_err(|_| Broken)
}

async fn is_there(sink: &mut PubSubSink) -> bool {
    matches!(tokio::time::timeout(PATIENCE, sink.ping::<redis::Value>()).await, Ok(Ok(_)))
}
