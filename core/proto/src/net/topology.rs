//! The connections of a client: to one server, to the primary of a Sentinel set-up, to a cluster, or to the
//! servers of a quorum.

use std::rc::Rc;

use crate::engine::{Input, STANDALONE};
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::OutgoingCall;
use crate::url::{Place, Topology};
use crate::wire::{Name, Topic};

use super::cluster::Cluster;
use super::io::{Arrival, ConnId, Io};
use super::link::{Calls, Link, Sentinels};
use super::one::One;
use super::quorum::Quorum;
use super::server::{Manner, Server};

pub enum Net {
    One(Box<One>),
    Cluster(Box<Cluster>),
    Quorum(Box<Quorum>),
}

/// The same for all of them.
macro_rules! each {
    ($of:ident, $net:ident => $does:expr) => {
        match $of {
            Net::One($net) => $does,
            Net::Cluster($net) => $does,
            Net::Quorum($net) => $does,
        }
    };
}

impl Net {
    pub fn new(now: Moment, place: &Place, manner: &Rc<Manner>) -> Self {
        let server = Server::of(place, manner);
        match &place.topology {
            Topology::Sentinel { hosts, service } => {
                let sentinels = Sentinels::new(place, hosts, service, server);
                Net::One(Box::new(One::primary(Rc::new(sentinels))))
            }
            Topology::Cluster { hosts } => {
                Net::Cluster(Box::new(Cluster::new(now, server, hosts.clone())))
            }
            Topology::Quorum { hosts } => {
                let servers = hosts.iter().map(|host| server.at(host));
                Net::Quorum(Box::new(Quorum::new(servers)))
            }
            Topology::Single => Net::One(Box::new(One::server(STANDALONE, server))),
        }
    }

    /// The input that the engine needs before any other.
    pub fn first(&self) -> Option<Input> {
        match self {
            Net::One(_) | Net::Cluster(_) => None,
            Net::Quorum(quorum) => Some(Input::Routes(quorum.routes())),
        }
    }

    /// Connects, unless that was begun before.
    pub fn begin(&mut self, now: Moment, io: &mut dyn Io) {
        match self {
            Net::One(one) => one.begin(now, io),
            // It does what is due at once.
            Net::Cluster(_) => {}
            Net::Quorum(quorum) => quorum.begin(now, io),
        }
    }

    pub fn send(&mut self, now: Moment, sending: OutgoingCall, io: &mut dyn Io, news: &mut News) {
        each!(self, net => net.send(now, sending, io, news))
    }

    pub fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        each!(self, net => net.subscribe(now, name, topic, io))
    }

    pub fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        match self {
            Net::One(one) => one.unsubscribe(now, name, topic),
            Net::Cluster(cluster) => cluster.unsubscribe(now, name, io),
            Net::Quorum(quorum) => quorum.unsubscribe(now, name, topic),
        }
    }

    /// Does what follows from the events of the connections.
    pub fn settle(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        each!(self, net => net.settle(now, io, news))
    }

    /// The connection for the calls of a client that has one server, while it is up.
    pub fn calls(&self) -> Option<Calls<'_>> {
        match self {
            Net::One(one) => one.calls(),
            Net::Cluster(_) | Net::Quorum(_) => None,
        }
    }

    /// Whether everything is connected and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        each!(self, net => net.is_idle())
    }

    pub fn has(&self, conn: ConnId) -> bool {
        each!(self, net => net.has(conn))
    }

    /// Takes in an event of a connection.
    pub fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        each!(self, net => net.arrived(now, conn, arrival, io, news))
    }

    pub fn next_wake(&self) -> Option<Moment> {
        each!(self, net => net.next_wake())
    }

    pub fn wake(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        each!(self, net => net.wake(now, io, news))
    }

    pub(crate) fn each_link(&mut self, act: &mut dyn FnMut(&mut Link)) {
        each!(self, net => net.each_link(act))
    }

    /// Writes all that is to be written, at the end of a turn.
    pub fn flush(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        self.each_link(&mut |link| link.flush(now, io, news));
    }

    /// From now on calls are written, however many have no answer yet.
    pub fn write_all(&mut self) {
        self.each_link(&mut Link::write_all);
    }

    /// Closes all connections for good.
    pub fn end(&mut self, io: &mut dyn Io) {
        self.each_link(&mut |link| link.end(io));
        if let Net::Cluster(cluster) = self {
            cluster.end(io);
        }
    }
}
