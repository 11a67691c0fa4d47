//! The connections of a client: to a single server, to the primary of a Sentinel set-up, to a
//! cluster, or to the servers of a quorum.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::calls::OutgoingCall;
use super::channels::Reach;
use super::cluster::Cluster;
use super::connect::Address;
use super::inline::{InlineConnector, InlineSlot};
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::quorum::Quorum;
use super::receive_threshold::ReceiveThreshold;
use super::sentinel::{Sentinels, Watch};
use super::server_connections::ServerConnections;
use super::{News, Servers};
use crate::engine::{CallId, LinkId, STANDALONE};
use crate::moment::Moment;
use crate::wire::{Name, Op, Topic};

/// Driven from outside, as a `Link` is.
pub(super) enum Net {
    One(Box<One>),
    Cluster(Box<Cluster>),
    Quorum(Box<Quorum>),
}

/// The connections to a server, or to one server at a time.
pub(super) struct One {
    link: ServerConnections,
    subscriptions: Subscriptions,
    watch: Option<Watch>,
    /// The slot of the inline connection.
    direct: Arc<InlineSlot>,
    maker: InlineConnector,
}

impl Net {
    pub(super) fn new(servers: Servers, manner: Manner, direct: Arc<InlineSlot>) -> Self {
        match servers {
            Servers::Single(address) => {
                let addresses = vec![address.clone()];
                Net::One(Box::new(One::new(
                    STANDALONE,
                    Target::Server(address),
                    addresses,
                    None,
                    manner,
                    direct,
                )))
            }
            Servers::Sentinel {
                sentinels,
                service,
                server,
            } => {
                let sentinels = Rc::new(Sentinels::new(sentinels, service, server));
                let watch = Watch::new(sentinels.clone());
                // Pub/sub messages come from the primary, once it is known.
                Net::One(Box::new(One::new(
                    STANDALONE,
                    Target::Primary(sentinels),
                    Vec::new(),
                    Some(watch),
                    manner,
                    direct,
                )))
            }
            Servers::Cluster(seeds) => Net::Cluster(Box::new(Cluster::new(seeds, manner))),
            Servers::Quorum(servers) => Net::Quorum(Box::new(Quorum::new(servers, &manner))),
        }
    }

    pub(super) fn send(
        &mut self,
        now: Moment,
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
        news: &mut News,
    ) {
        let sending = OutgoingCall {
            call,
            op,
            limit,
            hops: 0,
            asking: false,
        };
        match self {
            Net::One(one) => one.send(now, sending, news),
            Net::Cluster(cluster) => cluster.send(now, sending, news),
            Net::Quorum(quorum) => quorum.send(now, sending, news),
        }
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        match self {
            Net::One(one) => one.subscribe(now, name, topic),
            Net::Cluster(cluster) => cluster.subscribe(now, name, topic),
            Net::Quorum(quorum) => quorum.subscribe(now, &name, topic),
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        match self {
            Net::One(one) => one.unsubscribe(now, name, topic),
            Net::Cluster(cluster) => cluster.unsubscribe(now, name),
            Net::Quorum(quorum) => quorum.unsubscribe(now, name, topic),
        }
    }

    /// The receive threshold of the command connection.
    pub(super) fn threshold(&self) -> Option<&Arc<ReceiveThreshold>> {
        match self {
            Net::One(one) => one.link.plain().threshold(),
            Net::Cluster(_) | Net::Quorum(_) => None,
        }
    }

    /// Whether messages may stay unread in the socket. They may if they share the command
    /// connection and no subscription waits for its confirmation.
    pub(super) fn may_skip(&self) -> bool {
        let Net::One(one) = self else { return false };
        one.subscriptions.is_shared() && !one.subscriptions.is_asking()
    }

    /// Whether everything is connected and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Net::One(one) => one.is_idle(),
            Net::Cluster(cluster) => cluster.is_idle(),
            Net::Quorum(quorum) => quorum.is_idle(),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        match self {
            Net::One(one) => one.poll(cx, news),
            Net::Cluster(cluster) => cluster.poll(cx, news),
            Net::Quorum(quorum) => quorum.poll(cx, news),
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self {
            Net::One(one) => one.next_wake(),
            Net::Cluster(cluster) => cluster.next_wake(),
            Net::Quorum(quorum) => quorum.next_wake(),
        }
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        match self {
            Net::One(one) => one.wake(now, news),
            Net::Cluster(cluster) => cluster.wake(now, news),
            Net::Quorum(quorum) => quorum.wake(now, news),
        }
    }
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
        self.maker.poll(cx, &self.direct, self.link.plain(), news);
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
