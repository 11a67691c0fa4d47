//! The connections to one server at a time: to the server of the URL, or to the primary that
//! sentinels name.

use std::rc::Rc;

use crate::engine::{Input, LinkId, STANDALONE};
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::OutgoingCall;
use crate::sentinel::SWITCH;
use crate::wire::{Name, Topic};

use super::connections::Connections;
use super::handshake::Purpose;
use super::io::{Arrival, ConnId, Io};
use super::link::{Calls, Link, Sentinels, Target};
use super::server::Server;
use super::subscriptions::Subscriptions;

pub struct One {
    connections: Connections,
    subscriptions: Subscriptions,
    /// The generation of the connection for calls that has the channels.
    subscribed: u64,
    watch: Option<Watch>,
}

/// Listens to a sentinel for announcements of a new primary.
struct Watch {
    sentinels: Rc<Sentinels>,
    listener: Subscriptions,
    /// Reports of the listener. The engine does not need them.
    news: News,
}

impl One {
    pub(crate) fn server(id: LinkId, server: Rc<Server>) -> Self {
        let manner = &server.manner;
        let servers = || vec![server.clone()];
        let target = Target::Any(servers());
        One {
            connections: Connections::new(id, target, Purpose::Commands, manner),
            subscriptions: Subscriptions::new(servers(), Purpose::Channels, manner),
            subscribed: 0,
            watch: None,
        }
    }

    pub(crate) fn primary(sentinels: Rc<Sentinels>) -> Self {
        let manner = &sentinels.server.manner;
        let target = Target::Primary(sentinels.clone());
        let hosts = sentinels.hosts.clone();
        let mut listener = Subscriptions::new(hosts, Purpose::Channels, manner);
        listener.link.payloads = Some(Vec::new());
        listener.wanted.add(SWITCH, Name::from(SWITCH));
        One {
            connections: Connections::new(STANDALONE, target, Purpose::Primary, manner),
            // Messages come from the primary, once it is known.
            subscriptions: Subscriptions::new(Vec::new(), Purpose::Channels, manner),
            subscribed: 0,
            watch: Some(Watch {
                sentinels: sentinels.clone(),
                listener,
                news: News::default(),
            }),
        }
    }

    /// Connects, unless that was begun before.
    pub(crate) fn begin(&mut self, now: Moment, io: &mut dyn Io) {
        self.connections.plain.begin(now, io);
        if let Some(watch) = &mut self.watch {
            watch.listener.keep(now, io);
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Moment,
        sending: OutgoingCall,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        self.connections.send(now, sending, io, news);
    }

    pub(crate) fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        let channel = self.subscriptions.add(name, topic);
        self.listen(now, io);
        let link = self.listening();
        link.subscribe(now, &channel, Some(name.clone()));
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        if let Some(channel) = self.subscriptions.remove(name, topic) {
            self.listening().unsubscribe(now, &channel);
        }
    }

    fn listening(&mut self) -> &mut Link {
        if self.connections.plain.pushes() {
            &mut self.connections.plain
        } else {
            &mut self.subscriptions.link
        }
    }

    /// Has the wanted channels subscribed at the server that calls go to: on the same connection if
    /// it can push messages, else on one of their own.
    fn listen(&mut self, now: Moment, io: &mut dyn Io) {
        let (plain, subscriptions) = (&mut self.connections.plain, &mut self.subscriptions);
        let Some(server) = plain.server() else {
            return;
        };
        // Waiters look by themselves over HTTP.
        if server.manner.http {
            return;
        }
        if !plain.pushes() {
            return subscriptions.follow(now, vec![server.clone()], io);
        }
        subscriptions.link.end(io);
        if self.subscribed != plain.generation {
            self.subscribed = plain.generation;
            for channel in subscriptions.wanted.channels() {
                plain.subscribe(now, channel, None);
            }
        }
    }

    /// Does what follows from the events of the connections.
    pub(crate) fn settle(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        if self.watch.as_mut().is_some_and(Watch::has_news) {
            let why = "leads to a primary that was replaced";
            let wanted = &self.subscriptions.wanted;
            self.connections.leave(now, why, wanted, io, news);
        }
        self.listen(now, io);
    }

    /// The connection for calls, while it is up.
    pub(crate) fn calls(&self) -> Option<Calls<'_>> {
        self.connections.plain.calls()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.connections.is_idle()
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        let watch = self.watch.as_ref();
        self.connections.has(conn)
            || self.subscriptions.link.has(conn)
            || watch.is_some_and(|watch| watch.listener.link.has(conn))
    }

    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let (subscriptions, watch) = (&mut self.subscriptions, &mut self.watch);
        if self.connections.has(conn) {
            let wanted = &subscriptions.wanted;
            self.connections
                .arrived(now, conn, arrival, wanted, io, news);
        } else if !subscriptions.arrived(now, conn, arrival, io, news)
            && let Some(watch) = watch
        {
            let (listener, news) = (&mut watch.listener, &mut watch.news);
            listener.arrived(now, conn, arrival, io, news);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let watch = self.watch.as_ref();
        let wanted = &self.subscriptions.wanted;
        [
            self.connections.next_wake(wanted),
            self.subscriptions.next_wake(),
            watch.and_then(|watch| watch.listener.next_wake()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(crate) fn wake(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        let wanted = &self.subscriptions.wanted;
        self.connections.wake(now, wanted, io, news);
        let (link, wanted) = (&mut self.subscriptions.link, &self.subscriptions.wanted);
        link.wake(now, wanted, io, news);
        if let Some(watch) = &mut self.watch {
            watch.listener.wake(now, io, &mut watch.news);
        }
    }

    pub(crate) fn each_link(&mut self, act: &mut dyn FnMut(&mut Link)) {
        self.connections.links().into_iter().for_each(&mut *act);
        act(&mut self.subscriptions.link);
        if let Some(watch) = &mut self.watch {
            act(&mut watch.listener.link);
        }
    }
}

impl Watch {
    /// Reads all announcements that have arrived. Returns true if the primary has changed.
    fn has_news(&mut self) -> bool {
        let mut service = self.sentinels.service.borrow_mut();
        let heard = std::mem::take(&mut self.news).inputs;
        if heard
            .iter()
            .any(|input| matches!(input, Input::Subscribed(_)))
        {
            // Announcements before this subscription may have been missed.
            service.trust_all();
        }
        let told = self.listener.link.payloads.as_mut();
        let told = told.map(std::mem::take).unwrap_or_default();
        told.iter().filter(|text| service.heed(text)).count() > 0
    }
}
