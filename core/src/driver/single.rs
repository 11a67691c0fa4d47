//! The connections to one server at a time: calls, subscriptions, and the inline connection.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use super::News;
use super::calls::OutgoingCall;
use super::channels::Reach;
use super::connect::Address;
use super::inline::{InlineConnector, InlineSlot};
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::receive_threshold::ReceiveThreshold;
use super::sentinel::Sentinels;
use super::server_connections::ServerConnections;
use crate::engine::{Input, LinkId};
use crate::moment::Moment;
use crate::wire::{Name, Topic};
use redlatch_proto::sentinel::SWITCH;

/// The connections to a server, or to one server at a time.
pub(super) struct One {
    link: ServerConnections,
    subscriptions: Subscriptions,
    watch: Option<Watch>,
    /// The slot of the inline connection.
    direct: Arc<InlineSlot>,
    maker: InlineConnector,
}

impl One {
    pub(super) fn new(
        id: LinkId,
        target: Target,
        addresses: Vec<Address>,
        watch: Option<Watch>,
        manner: Manner,
        direct: Arc<InlineSlot>,
    ) -> Self {
        let subscriptions = Subscriptions::new(addresses, Reach::Classic, &manner.uuid);
        let link = ServerConnections::new(id, target, manner);
        One {
            link,
            subscriptions,
            watch,
            direct,
            maker: InlineConnector::default(),
        }
    }

    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        self.link.send(now, sending, news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        self.subscriptions.subscribe(now, name, topic);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        self.subscriptions.unsubscribe(now, name, topic);
    }

    /// The receive threshold of the command connection.
    pub(super) fn threshold(&self) -> Option<&Arc<ReceiveThreshold>> {
        self.link.plain().threshold()
    }

    /// Whether messages may stay unread in the socket. They may if they share the command
    /// connection and no subscription waits for its confirmation.
    pub(super) fn may_skip(&self) -> bool {
        self.subscriptions.is_shared() && !self.subscriptions.is_asking()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.link.is_idle()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        if self.watch.as_mut().is_some_and(|watch| watch.poll(cx)) {
            self.link
                .leave("leads to a primary that was replaced", news);
        }
        self.link.poll(cx, news);
        self.listen(news);
        self.subscriptions.poll(cx, news);
        self.heed(news);
        let link = self.link.plain();
        let (generation, plan) = (link.generation(), || link.direct());
        self.maker.poll(cx, &self.direct, generation, plan, news);
    }

    /// Has pub/sub messages come from the server that calls go to: on the same connection if it can
    /// bring them, otherwise on a separate one.
    fn listen(&mut self, news: &mut News) {
        let link = self.link.plain();
        let Some(server) = link.server() else {
            return self.subscriptions.unshare(news);
        };
        if let Some((server, connection)) = link.listening() {
            self.subscriptions
                .share(link.generation(), server, connection, news);
            return self.subscriptions.pass(self.link.take_messages());
        }
        self.subscriptions.unshare(news);
        self.subscriptions.keep_apart();
        if !self.subscriptions.follows(server) {
            self.subscriptions.follow(vec![server.clone()]);
        }
    }

    /// Replaces the command connection if it is to bring messages and does not.
    fn heed(&mut self, news: &mut News) {
        if let Some(why) = self.subscriptions.complaint() {
            self.link.leave(why, news);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let watch = self.watch.as_ref().and_then(Watch::next_wake);
        [self.link.next_wake(), self.subscriptions.next_wake(), watch]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.link.wake(now, news);
        // On a shared connection, a reply to a call also shows the subscriptions that the server is
        // there.
        if let Some(at) = self
            .link
            .plain()
            .vouches(now)
            .filter(|_| self.subscriptions.is_shared())
        {
            self.subscriptions.vouch(at);
        }
        self.subscriptions.wake(now, news);
        self.heed(news);
        if let Some(watch) = &mut self.watch {
            watch.wake(now);
        }
    }
}

/// Listens to a sentinel for announcements of a new primary.
pub(super) struct Watch {
    sentinels: Rc<Sentinels>,
    listener: Subscriptions,
    /// Reports of the listener. The engine does not need them.
    news: News,
    listening: bool,
}

impl Watch {
    pub(super) fn new(sentinels: Rc<Sentinels>) -> Self {
        // Sentinels have no locks.
        let listener =
            Subscriptions::new(sentinels.hosts.clone(), Reach::Classic, "").with_payloads();
        Watch {
            sentinels,
            listener,
            news: News::default(),
            listening: false,
        }
    }

    /// Reads all announcements that have arrived. Returns true if the primary has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.listener.poll(cx, &mut self.news);
        self.news.events.clear();
        if self
            .news
            .inputs
            .drain(..)
            .any(|input| matches!(input, Input::Subscribed(_)))
        {
            // Announcements before this subscription may have been missed, so no server is ruled
            // out any more.
            self.sentinels.service.borrow_mut().trust_all();
        }
        let told = self.listener.take_payloads();
        let mut service = self.sentinels.service.borrow_mut();
        told.iter().filter(|text| service.heed(text)).count() > 0
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        // The first wake starts the subscription, so it is due at once.
        if self.listening {
            self.listener.next_wake()
        } else {
            Some(Moment::default())
        }
    }

    pub(super) fn wake(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.listening, true) {
            self.listener
                .subscribe_to(now, SWITCH.to_owned(), Name::from(SWITCH));
        }
        self.listener.wake(now, &mut self.news);
    }
}
