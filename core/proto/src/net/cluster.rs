//! The connections to the nodes of a Redis Cluster. [`crate::cluster`] decides about them.

use std::rc::Rc;

use crate::cluster::{self, Nodes};
use crate::engine::LinkId;
use crate::error::Result;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::OutgoingCall;
use crate::outbox::wanted::Wanted;
use crate::url::Host;
use crate::value::Value;
use crate::wire::{Name, Publish, Topic};

use super::connections::Connections;
use super::handshake::{Handshake, Purpose, Setup};
use super::io::{Arrival, ConnId, Io};
use super::link::{Link, Target};
use super::server::Server;
use super::subscriptions::Subscriptions;

pub struct Cluster {
    map: cluster::Cluster,
    links: Links,
    /// Reports of the nodes and subscriptions that the map has not handled yet.
    news: News,
}

struct Links {
    /// How to log in at any node. Only host and port are replaced.
    server: Rc<Server>,
    nodes: Vec<Node>,
    /// Subscriptions to classic channels (`PUBLISH`), whose messages reach every node.
    classic: Subscriptions,
    /// Connections that are made to ask for the map, with their places.
    questions: Vec<(Handshake, Host)>,
}

struct Node {
    id: LinkId,
    place: Host,
    connections: Connections,
    /// Subscriptions to the sharded channels (`SPUBLISH`) of its slots.
    shard: Subscriptions,
}

impl Cluster {
    pub(crate) fn new(now: Moment, server: Rc<Server>, seeds: Vec<Host>) -> Self {
        let (manner, timeout) = (&server.manner, server.manner.timeout);
        let addresses = seeds.iter().map(|seed| server.at(seed)).collect();
        Cluster {
            map: cluster::Cluster::new(now, seeds, timeout),
            links: Links {
                nodes: Vec::new(),
                classic: Subscriptions::new(addresses, Purpose::Channels, manner),
                questions: Vec::new(),
                server,
            },
            news: News::default(),
        }
    }

    /// Lets the map decide something.
    fn decide<T>(
        &mut self,
        io: &mut dyn Io,
        act: impl FnOnce(&mut cluster::Cluster, &mut Reach<'_>) -> T,
    ) -> T {
        let links = &mut self.links;
        act(&mut self.map, &mut Reach { links, io })
    }

    pub(crate) fn send(
        &mut self,
        now: Moment,
        sending: OutgoingCall,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        self.decide(io, |map, nodes| map.send(now, sending, nodes, news));
    }

    pub(crate) fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        self.decide(io, |map, nodes| {
            map.subscribe(now, name.clone(), topic, nodes);
        });
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, name: &Name, io: &mut dyn Io) {
        self.decide(io, |map, nodes| map.unsubscribe(now, name, nodes));
    }

    /// Does what follows from the events of the connections.
    pub(crate) fn settle(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        for (place, answer) in self.links.take_answers() {
            self.answer(now, &place, answer, io, news);
        }
        let heard = std::mem::take(&mut self.news);
        self.decide(io, |map, nodes| map.take_news(now, heard, nodes, news));
    }

    /// Takes the answer of the node at this place to the question for the map.
    fn answer(
        &mut self,
        now: Moment,
        place: &Host,
        answer: Result<Value>,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let answer = answer.and_then(|value| cluster::map_of(value, place));
        self.decide(io, |map, nodes| map.take_answer(now, answer, nodes, news));
    }

    pub(crate) fn is_idle(&self) -> bool {
        let is_idle =
            |node: &Node| node.connections.is_idle() || !self.map.routed().contains(&node.id);
        self.map.is_settled() && self.links.nodes.iter().all(is_idle)
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        let links = &self.links;
        links.classic.link.has(conn)
            || links.questions.iter().any(|(one, _)| one.conn == conn)
            || links.nodes.iter().any(|node| node.has(conn))
    }

    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let (links, own) = (&mut self.links, &mut self.news);
        if let Some(node) = links.nodes.iter_mut().find(|node| node.has(conn)) {
            if !node.shard.arrived(now, conn, arrival, io, own) {
                let none = Wanted::default();
                node.connections.arrived(now, conn, arrival, &none, io, own);
            }
        } else if !links.classic.arrived(now, conn, arrival, io, own)
            && let Some(at) = links.questions.iter().position(|(one, _)| one.conn == conn)
        {
            let answer = match links.questions[at].0.arrived(arrival, io) {
                Ok(Setup::Wants) => return,
                Ok(Setup::Done) => Ok(()),
                Err(error) => Err(error),
            };
            let (attempt, place) = links.questions.swap_remove(at);
            io.close(attempt.conn);
            self.answer(now, &place, answer.map(|()| attempt.answer), io, news);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let nodes = self.links.nodes.iter();
        let parts = nodes.flat_map(|node| {
            [
                node.connections.next_wake(&Wanted::default()),
                node.shard.next_wake(),
            ]
        });
        parts
            .chain([self.links.classic.next_wake(), self.map.next_wake()])
            .flatten()
            .min()
    }

    pub(crate) fn wake(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        let none = Wanted::default();
        for node in &mut self.links.nodes {
            node.connections.wake(now, &none, io, &mut self.news);
            node.shard.wake(now, io, &mut self.news);
        }
        self.links.classic.wake(now, io, &mut self.news);
        self.decide(io, |map, nodes| map.wake(now, nodes, news));
    }

    pub(crate) fn each_link(&mut self, act: &mut dyn FnMut(&mut Link)) {
        for node in &mut self.links.nodes {
            node.each_link(act);
        }
        act(&mut self.links.classic.link);
    }

    /// Closes what is no link.
    pub(crate) fn end(&mut self, io: &mut dyn Io) {
        let links = &mut self.links;
        Reach { links, io }.stop_asking();
    }
}

impl Node {
    fn has(&self, conn: ConnId) -> bool {
        self.connections.has(conn) || self.shard.link.has(conn)
    }

    fn each_link(&mut self, act: &mut dyn FnMut(&mut Link)) {
        self.connections.links().into_iter().for_each(&mut *act);
        act(&mut self.shard.link);
    }
}

impl Links {
    /// The answers of connected nodes to the question for the map.
    fn take_answers(&mut self) -> Vec<(Host, Result<Value>)> {
        let mut taken = Vec::new();
        for node in &mut self.nodes {
            for answer in node.connections.plain.answers.drain(..) {
                taken.push((node.place.clone(), answer));
            }
        }
        taken
    }
}

/// The connections, and the way to the sockets.
struct Reach<'a> {
    links: &'a mut Links,
    io: &'a mut dyn Io,
}

impl Reach<'_> {
    fn node(&mut self, id: LinkId) -> Option<&mut Node> {
        self.links.nodes.iter_mut().find(|node| node.id == id)
    }
}

impl Nodes for Reach<'_> {
    fn add(&mut self, now: Moment, id: LinkId, place: &Host) {
        let server = self.links.server.at(place);
        let manner = &server.manner;
        let target = Target::Any(vec![server.clone()]);
        let mut node = Node {
            id,
            place: place.clone(),
            connections: Connections::new(id, target, Purpose::Node, manner),
            shard: Subscriptions::new(vec![server.clone()], Purpose::Shards, manner),
        };
        node.connections.plain.begin(now, self.io);
        self.links.nodes.push(node);
    }

    fn forget(&mut self, id: LinkId) {
        let io = &mut *self.io;
        self.links.nodes.retain_mut(|node| {
            if node.id == id {
                node.each_link(&mut |link| link.end(io));
            }
            node.id != id
        });
    }

    fn publishes(&self, id: LinkId) -> Option<Publish> {
        let node = self.links.nodes.iter().find(|node| node.id == id)?;
        node.connections.plain.publishes()
    }

    fn is_busy(&self, id: LinkId) -> bool {
        let mut nodes = self.links.nodes.iter();
        nodes.any(|node| node.id == id && node.connections.is_busy())
    }

    fn send(&mut self, now: Moment, id: LinkId, sending: OutgoingCall, news: &mut News) {
        let nodes = &mut self.links.nodes;
        if let Some(node) = nodes.iter_mut().find(|node| node.id == id) {
            node.connections.send(now, sending, self.io, news);
        }
    }

    fn subscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic) {
        let Links { nodes, classic, .. } = &mut *self.links;
        let subscriptions = match node {
            None => Some(classic),
            Some(id) => {
                let mut nodes = nodes.iter_mut();
                nodes.find(|node| node.id == id).map(|node| &mut node.shard)
            }
        };
        if let Some(subscriptions) = subscriptions {
            subscriptions.subscribe(now, name, topic, self.io);
        }
    }

    fn unsubscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic) {
        match node {
            None => self.links.classic.unsubscribe(now, name, topic),
            Some(id) => {
                if let Some(node) = self.node(id) {
                    node.shard.unsubscribe(now, name, topic);
                }
            }
        }
    }

    fn follow(&mut self, now: Moment, nodes: &[Host]) {
        let servers = nodes.iter().map(|place| self.links.server.at(place));
        let servers = servers.collect();
        self.links.classic.follow(now, servers, self.io);
    }

    fn ask_nodes(&mut self, _: Moment, nodes: &[LinkId]) {
        for id in nodes {
            if let Some(node) = self.node(*id) {
                node.connections.plain.ask(&cluster::MAP);
            }
        }
    }

    fn ask_hosts(&mut self, _: Moment, hosts: &[Host]) {
        for host in hosts {
            let server = self.links.server.at(host);
            let attempt = Handshake::begin(server, Purpose::question(&cluster::MAP), self.io);
            self.links.questions.push((attempt, host.clone()));
        }
    }

    fn stop_asking(&mut self) {
        for node in &mut self.links.nodes {
            node.connections.plain.stop_asking();
        }
        for (attempt, _) in self.links.questions.drain(..) {
            self.io.close(attempt.conn);
        }
    }

    fn random(&mut self) -> u32 {
        self.io.random()
    }
}
