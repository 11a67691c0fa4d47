//! What comes and goes on a connection that is up.

use std::collections::VecDeque;
use std::rc::Rc;

use super::io::ConnId;
use super::resp::{Item, Reader, write_command};
use super::server::Server;
use crate::connecting;
use crate::engine::Input;
use crate::error::Error;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::Outbox;
use crate::outbox::wanted::Wanted;
use crate::tuning;
use crate::value::Value;
use crate::wire::{self, Name};

/// A connection that is up.
pub(super) struct Live {
    pub(super) conn: ConnId,
    pub(super) server: Rc<Server>,
    pub(super) resp3: bool,
    /// It has nothing but channels.
    pub(super) apart: bool,
    /// The commands that subscribe and unsubscribe.
    pub(super) words: [&'static str; 2],
    pub(super) reader: Reader,
    pub(super) traffic: Outbox,
    /// The purposes of the next replies, oldest first.
    pub(super) expected: VecDeque<Expected>,
    /// The answer to the script of a call that another command follows.
    pub(super) answer: Option<Value>,
    /// A call that was written. Its memory is reused.
    pub(super) spare: Option<wire::Call>,
    /// The scripts that were called on this connection.
    pub(super) called: Vec<wire::ScriptId>,
    pub(super) since: Moment,
    /// The server is a replica.
    pub(super) demoted: bool,
    /// When the server was last heard, for pub/sub.
    pub(super) heard: Moment,
    /// Bytes to be written.
    pub(super) out: Vec<u8>,
}

/// Receives the reports of a connection that is up.
pub(super) struct Told<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) answers: &'a mut Vec<Result<Value, Error>>,
    pub(super) payloads: &'a mut Option<Vec<String>>,
    pub(super) news: &'a mut News,
}

pub(super) enum Expected {
    Call {
        is_followed: bool,
    },
    FollowUp,
    /// The reply is of no interest.
    Nothing,
    Question,
    Subscribed(String, Option<Name>, Moment),
    Unsubscribed(String, Moment),
    Pong(Moment),
}

impl Expected {
    /// When a command of pub/sub was sent.
    fn asked(&self) -> Option<Moment> {
        match self {
            Expected::Subscribed(_, _, at) | Expected::Unsubscribed(_, at) | Expected::Pong(at) => {
                Some(*at)
            }
            _ => None,
        }
    }
}

impl Live {
    /// Whether messages of pub/sub come on this connection.
    pub(super) fn listens(&self) -> bool {
        self.apart || self.resp3
    }

    pub(super) fn oldest_asked(&self) -> Option<Moment> {
        self.expected.iter().find_map(Expected::asked)
    }

    /// Whether the next reply is for a command of pub/sub.
    fn asks_next(&self) -> bool {
        let next = self.expected.front();
        next.is_some_and(|next| next.asked().is_some())
    }

    /// When pub/sub needs attention: a confirmation is late, a ping is due, or a connection for
    /// channels alone has none.
    pub(super) fn listening_due(&self, unwanted: bool) -> Option<Moment> {
        // A reply to a call also shows that the server is there.
        let heard = self.heard.max(self.traffic.last_heard());
        match self.oldest_asked() {
            Some(at) => Some(heard.max(at).after(tuning::PUBSUB_CONFIRM)),
            None if unwanted => self.apart.then(|| heard.after(tuning::PUBSUB_LINGER)),
            None => Some(heard.after(tuning::PUBSUB_IDLE)),
        }
    }

    /// Takes in all that has arrived. True if something of pub/sub did.
    pub(super) fn read(&mut self, now: Moment, told: &mut Told<'_>) -> Result<bool, Error> {
        let (mut heard, mut demoted) = (false, false);
        while let Some(item) = self.next_item()? {
            match item {
                Item::Push(words) => heard |= self.pushed(now, words, told)?,
                // With RESP2 a connection with channels gets nothing but messages and confirmations.
                Item::Reply(Value::Array(words))
                    if self.apart
                        && !self.resp3
                        && (self.expected.is_empty() || self.asks_next()) =>
                {
                    heard |= self.pushed(now, words, told)?;
                }
                Item::Reply(value) => demoted |= self.replied(now, value, told)?,
            }
        }
        if heard {
            self.heard = now;
        }
        if demoted {
            // The same address may lead to the new primary by now.
            self.demoted = true;
            return Err(connecting::demoted(&self.server.shown()));
        }
        Ok(heard)
    }

    /// A connection for sharded channels is of no use any more.
    fn moved(&self, told: &mut Told<'_>) -> Error {
        told.news.slot_moved = true;
        let why = "for pub/sub belongs to a node that has lost a slot";
        self.server.broken(why)
    }

    fn next_item(&mut self) -> Result<Option<Item>, Error> {
        let next = self.reader.next();
        next.map_err(|why| self.server.broken(&format!("broke: {why}")))
    }

    fn replied(&mut self, now: Moment, value: Value, told: &mut Told<'_>) -> Result<bool, Error> {
        match self.expected.pop_front() {
            Some(Expected::Call { is_followed: false }) => {
                return Ok(self.traffic.replied(now, value, told.news));
            }
            Some(Expected::Call { is_followed: true }) => self.answer = Some(value),
            Some(Expected::FollowUp) => {
                let answer = self.answer.take().unwrap_or(Value::Nil);
                let both = Value::Array(vec![answer, value]);
                return Ok(self.traffic.replied(now, both, told.news));
            }
            Some(Expected::Question) => {
                self.traffic.heard(now);
                let answer = match value {
                    Value::ServerError(error) => Err(self.server.refused(&error)),
                    value => Ok(value),
                };
                told.answers.push(answer);
            }
            Some(Expected::Subscribed(channel, of, _)) => {
                self.heard = now;
                let error = match &value {
                    Value::ServerError(error) if error.code() == "MOVED" => {
                        return Err(self.moved(told));
                    }
                    Value::ServerError(error) => Some(self.server.refused(error)),
                    _ => None,
                };
                confirmed(&channel, of.as_ref(), error.as_ref(), told);
            }
            Some(Expected::Unsubscribed(..) | Expected::Pong(_)) => self.heard = now,
            Some(Expected::Nothing) | None => {}
        }
        Ok(false)
    }

    /// Handles a push message. True if it belongs to pub/sub.
    fn pushed(
        &mut self,
        now: Moment,
        words: Vec<Value>,
        told: &mut Told<'_>,
    ) -> Result<bool, Error> {
        self.traffic.heard(now);
        let mut words = words.into_iter();
        let kind = text(words.next());
        match kind.as_str() {
            "invalidate" => {
                if let Some(names) = invalidated(words.next()) {
                    told.news.tell(Input::Invalidated(names));
                }
                return Ok(false);
            }
            "message" | "smessage" => {
                let channel = text(words.next());
                let names = told.wanted.names(&channel).iter().cloned();
                told.news.inputs.extend(names.map(Input::Message));
                if let Some(payloads) = told.payloads {
                    payloads.push(text(words.next()));
                }
            }
            // It may come unasked, because the slot has moved.
            "sunsubscribe" => {
                let channel = text(words.next());
                match self.expected.front() {
                    Some(Expected::Unsubscribed(asked, _)) if *asked == channel => {
                        self.replied(now, Value::Nil, told)?;
                    }
                    _ if told.wanted.contains(&channel) => return Err(self.moved(told)),
                    _ => {}
                }
            }
            // They confirm commands, in the order of these.
            "subscribe" | "ssubscribe" | "unsubscribe" | "pong" if self.asks_next() => {
                self.replied(now, Value::Nil, told)?;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Encodes the commands that the outbox wants to be written.
    pub(super) fn write(&mut self) {
        let manner = &self.server.manner;
        let (uuid, closing) = (&manner.uuid, manner.closing.get());
        self.traffic.send_gathered();
        let publish = self.traffic.publish();
        loop {
            let others_follow = self.traffic.to_be_fetched() > 1;
            let Some(command) = self.traffic.next_command() else {
                break;
            };
            let sendings = command.load.sendings();
            let waits = sendings.iter().any(|sending| sending.op.replicas() > 0);
            let spare = self.spare.take();
            let call = command.load.call(spare, uuid, command.not_after, publish);
            let first = !self.called.contains(&call.id());
            if first {
                self.called.push(call.id());
            }
            if sendings.iter().any(|sending| sending.asking) {
                write_command(&mut self.out, &["ASKING"]);
                self.expected.push_back(Expected::Nothing);
            }
            // A server that does not know the script would refuse all calls that leave together.
            if command.full || first && (others_follow || waits || closing) {
                call.write_eval(&mut self.out);
            } else {
                call.write_evalsha(&mut self.out);
            }
            self.spare = Some(call);
            let follow_up = match sendings {
                [sending] => sending.op.follow_up(sending.limit),
                _ => None,
            };
            let is_followed = follow_up.is_some();
            self.expected.push_back(Expected::Call { is_followed });
            if let Some(follow_up) = follow_up {
                let words = follow_up.words();
                let words: Vec<&str> = words.iter().map(|word| &**word).collect();
                write_command(&mut self.out, &words);
                self.expected.push_back(Expected::FollowUp);
            }
        }
    }
}

/// Tells the locks of a channel that it is subscribed, or why it cannot be.
fn confirmed(channel: &str, of: Option<&Name>, error: Option<&Error>, told: &mut Told<'_>) {
    let names = told.wanted.names(channel).iter();
    for name in names.filter(|name| of.is_none_or(|of| of == *name)) {
        told.news.tell(match error {
            None => Input::Subscribed(name.clone()),
            Some(error) => Input::Unsubscribable(name.clone(), error.clone()),
        });
    }
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Some(Value::SimpleString(text)) => text,
        _ => String::new(),
    }
}

/// The locks among the invalidated keys (inside `None`: all keys, as after `FLUSHALL`). The outer
/// `None`: there is no lock among them.
fn invalidated(keys: Option<Value>) -> Option<Option<Vec<Name>>> {
    let Some(Value::Array(keys)) = keys else {
        return Some(None);
    };
    let name = |key: &Value| match key {
        Value::BulkString(bytes) => wire::names::name_from_bytes(bytes).ok(),
        _ => None,
    };
    let names: Vec<Name> = keys.iter().filter_map(name).collect();
    (!names.is_empty()).then_some(Some(names))
}
