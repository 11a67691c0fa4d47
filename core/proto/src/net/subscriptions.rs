//! The wanted channels, and a connection of their own for them.

use std::rc::Rc;

use crate::engine::STANDALONE;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::wanted::Wanted;
use crate::wire::{Name, Topic, names};

use super::handshake::Purpose;
use super::io::{Arrival, ConnId, Io};
use super::link::{Link, Target};
use super::server::{Manner, Server};

/// Keeps the wanted channels subscribed at one of several servers that send the same messages.
pub(crate) struct Subscriptions {
    pub(crate) link: Link,
    pub(crate) wanted: Wanted,
    manner: Rc<Manner>,
    /// The generation of the connection that has the channels.
    subscribed: u64,
}

impl Subscriptions {
    pub(crate) fn new(servers: Vec<Rc<Server>>, purpose: Purpose, manner: &Rc<Manner>) -> Self {
        Subscriptions {
            link: Link::new(STANDALONE, Target::Any(servers), purpose, manner.clone()),
            wanted: Wanted::default(),
            manner: manner.clone(),
            subscribed: 0,
        }
    }

    /// Records that a lock needs its channel. Returns the channel.
    pub(crate) fn add(&mut self, name: &Name, topic: Topic) -> String {
        let channel = names::channel_for(&self.manner.uuid, topic, name);
        self.wanted.add(&channel, name.clone());
        channel
    }

    /// Records that a lock does not need its channel any more. Returns the channel if no lock does.
    pub(crate) fn remove(&mut self, name: &Name, topic: Topic) -> Option<String> {
        let channel = names::channel_for(&self.manner.uuid, topic, name);
        self.wanted.remove(&channel, name).then_some(channel)
    }

    pub(crate) fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        let channel = self.add(name, topic);
        self.keep(now, io);
        self.link.subscribe(now, &channel, Some(name.clone()));
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        if let Some(channel) = self.remove(name, topic) {
            self.link.unsubscribe(now, &channel);
        }
    }

    /// Listens at one of these servers from now on.
    pub(crate) fn follow(&mut self, now: Moment, servers: Vec<Rc<Server>>, io: &mut dyn Io) {
        self.link.follow(servers, io);
        self.keep(now, io);
    }

    /// Connects if a channel is wanted, and subscribes on a new connection.
    pub(crate) fn keep(&mut self, now: Moment, io: &mut dyn Io) {
        if !self.wanted.is_empty() {
            self.link.begin(now, io);
        }
        if self.link.is_up() && self.subscribed != self.link.generation {
            self.subscribed = self.link.generation;
            for channel in self.wanted.channels() {
                self.link.subscribe(now, channel, None);
            }
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.link.next_wake(&self.wanted)
    }

    pub(crate) fn wake(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        self.link.wake(now, &self.wanted, io, news);
        self.keep(now, io);
    }

    /// Takes in an event, if it is about the connection. False if it is not.
    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
        news: &mut News,
    ) -> bool {
        let own = self.link.has(conn);
        if own {
            self.link
                .arrived(now, conn, arrival, &self.wanted, io, news);
            self.keep(now, io);
        }
        own
    }
}
