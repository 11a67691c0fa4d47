//! The connections of a client: to a single server, to the primary of a Sentinel set-up, to a
//! cluster, or to the servers of a quorum.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::calls::OutgoingCall;
use super::cluster::Cluster;
use super::inline::InlineSlot;
use super::link::{Manner, Target};
use super::quorum::Quorum;
use super::receive_threshold::ReceiveThreshold;
use super::sentinel::Sentinels;
use super::single::{One, Watch};
use super::{DriverConfig, News, Servers};
use crate::engine::{CallId, STANDALONE};
use crate::error::Result;
use crate::moment::Moment;
use crate::wire::{Name, Op, Topic};

/// Driven from outside, as a `Link` is.
pub(super) enum Net {
    One(Box<One>),
    Cluster(Box<Cluster>),
    Quorum(Box<Quorum>),
}

impl Net {
    /// # Errors
    /// `internal`, for servers that redis-rs does not take.
    pub(super) fn new(config: &DriverConfig, uuid: &str, direct: Arc<InlineSlot>) -> Result<Self> {
        let manner = Manner {
            tracking: config.tracking,
            uuid: uuid.to_owned(),
            pubsub: config.pubsub,
        };
        Ok(match Servers::new(&config.place, &config.manner)? {
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
            Servers::Cluster { server, seeds } => {
                Net::Cluster(Box::new(Cluster::new(server, seeds, manner)))
            }
            Servers::Quorum(servers) => Net::Quorum(Box::new(Quorum::new(servers, &manner))),
        })
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
            Net::One(one) => one.threshold(),
            Net::Cluster(_) | Net::Quorum(_) => None,
        }
    }

    /// Whether messages may stay unread in the socket.
    pub(super) fn may_skip(&self) -> bool {
        matches!(self, Net::One(one) if one.may_skip())
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
