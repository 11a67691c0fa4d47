//! The connections of a client, whatever the servers are.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::channels::Reach;
use super::cluster::Cluster;
use super::connect::Address;
use super::direct::{Direct, Maker};
use super::ear::Ear;
use super::lanes::Lanes;
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::sentinel::{Sentinels, Watch};
use super::traffic::Sending;
use super::{News, Servers};
use crate::engine::{CallId, NOWHERE};
use crate::moment::Moment;
use crate::wire::{Name, Op};

/// Driven from outside as a `Link` is.
pub(super) enum Net {
    One(Box<One>),
    Cluster(Box<Cluster>),
}

/// Everything that leads to one server at a time.
pub(super) struct One {
    link: Lanes,
    subscriptions: Subscriptions,
    watch: Option<Watch>,
    /// For callers that do their calls themselves.
    direct: Arc<Direct>,
    maker: Maker,
}

impl Net {
    pub(super) fn new(servers: Servers, manner: Manner, direct: Arc<Direct>) -> Self {
        match servers {
            Servers::Single(address) => {
                let addresses = vec![address.clone()];
                Net::One(Box::new(One::new(Target::Server(address), addresses, None, manner, direct)))
            }
            Servers::Sentinel { sentinels, service, server } => {
                let sentinels = Rc::new(Sentinels::new(sentinels, service, server));
                let watch = Watch::new(sentinels.clone());
                // Messages come from the primary, once it is known.
                Net::One(Box::new(One::new(
                    Target::Primary(sentinels),
                    Vec::new(),
                    Some(watch),
                    manner,
                    direct,
                )))
            }
            Servers::Cluster(seeds) => Net::Cluster(Box::new(Cluster::new(seeds, manner))),
        }
    }

    pub(super) fn send(&mut self, now: Moment, call: CallId, op: Arc<Op>, limit: Duration, news: &mut News) {
        let sending = Sending { call, op, limit, hops: 0, asking: false };
        match self {
            Net::One(one) => one.link.send(now, sending, news),
            Net::Cluster(cluster) => cluster.send(now, sending, news),
        }
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name) {
        match self {
            Net::One(one) => one.subscriptions.subscribe(now, name),
            Net::Cluster(cluster) => cluster.subscribe(now, name),
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        match self {
            Net::One(one) => one.subscriptions.unsubscribe(now, name),
            Net::Cluster(cluster) => cluster.unsubscribe(now, name),
        }
    }

    /// What says how many messages may wait in the socket for the next one, where they may.
    pub(super) fn ear(&self) -> Option<&Arc<Ear>> {
        let Net::One(one) = self else { return None };
        let ear = one.link.plain().ear()?;
        let may = one.subscriptions.is_shared() && !one.subscriptions.is_asking();
        if !may {
            ear.skip(None);
        }
        Some(ear).filter(|_| may)
    }

    /// Whether everything is connected and nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Net::One(one) => one.link.is_idle(),
            Net::Cluster(cluster) => cluster.is_idle(),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        match self {
            Net::One(one) => one.poll(cx, news),
            Net::Cluster(cluster) => cluster.poll(cx, news),
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self {
            Net::One(one) => one.next_wake(),
            Net::Cluster(cluster) => cluster.next_wake(),
        }
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        match self {
            Net::One(one) => one.wake(now, news),
            Net::Cluster(cluster) => cluster.wake(now, news),
        }
    }
}

impl One {
    fn new(
        target: Target,
        addresses: Vec<Address>,
        watch: Option<Watch>,
        manner: Manner,
        direct: Arc<Direct>,
    ) -> Self {
        let subscriptions = Subscriptions::new(addresses, Reach::Classic);
        let link = Lanes::new(NOWHERE, target, manner);
        One { link, subscriptions, watch, direct, maker: Maker::default() }
    }

    fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        if self.watch.as_mut().is_some_and(|watch| watch.poll(cx)) {
            self.link.leave("leads to a primary that was replaced", news);
        }
        self.link.poll(cx, news);
        self.listen(news);
        self.subscriptions.poll(cx, news);
        self.heed(news);
        self.maker.poll(cx, &self.direct, self.link.plain());
    }

    /// Has messages come from the server that is asked, on the same connection if that takes them.
    fn listen(&mut self, news: &mut News) {
        let link = self.link.plain();
        let Some(server) = link.server() else { return self.subscriptions.unshare(news) };
        if let Some((server, connection)) = link.listening() {
            self.subscriptions.share(link.generation(), server, connection, news);
            return self.subscriptions.pass(self.link.take_messages());
        }
        self.subscriptions.unshare(news);
        self.subscriptions.keep_apart();
        if !self.subscriptions.follows(server) {
            self.subscriptions.follow(vec![server.clone()]);
        }
    }

    /// A connection that brings no messages is as good as none.
    fn heed(&mut self, news: &mut News) {
        if let Some(why) = self.subscriptions.complaint() {
            self.link.leave(why, news);
        }
    }

    fn next_wake(&self) -> Option<Moment> {
        let watch = self.watch.as_ref().and_then(Watch::next_wake);
        [self.link.next_wake(), self.subscriptions.next_wake(), watch].into_iter().flatten().min()
    }

    fn wake(&mut self, now: Moment, news: &mut News) {
        self.link.wake(now, news);
        // On the same connection, what is said of one thing shows that the server is there for the other.
        if let Some(at) = self.link.plain().vouches(now).filter(|_| self.subscriptions.is_shared()) {
            self.subscriptions.vouch(at);
        }
        self.subscriptions.wake(now, news);
        self.heed(news);
        if let Some(watch) = &mut self.watch {
            watch.wake(now);
        }
    }
}
