//! The connections to the nodes of a Redis Cluster: one link per node. `redlatch_proto::cluster`
//! decides about them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redlatch_proto::cluster::{self, Nodes};

use super::News;
use super::calls::OutgoingCall;
use super::channels::Reach;
use super::connect::{Address, random};
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::server_connections::ServerConnections;
use crate::clock;
use crate::engine::LinkId;
use crate::error::Result;
use crate::moment::Moment;
use crate::url::Host;
use crate::wire::{Name, Publish, Topic};
use redlatch_proto::outbox::slotmap::Range;

/// The nodes of a cluster. Driven from outside like a `Link`.
pub(super) struct Cluster {
    map: cluster::Cluster,
    connections: Connections,
    /// Reports of the nodes and subscriptions that the map has not handled yet.
    news: News,
}

struct Connections {
    /// How to connect and log in at any node. Only host and port are replaced.
    server: Address,
    manner: Manner,
    nodes: BTreeMap<LinkId, Node>,
    /// Subscriptions to classic channels (`PUBLISH`), whose messages reach every node.
    classic: Subscriptions,
    /// Questions for the map.
    asked: FuturesUnordered<Attempt>,
}

struct Node {
    address: Address,
    link: ServerConnections,
    /// Subscriptions to the sharded channels (`SPUBLISH`) of its slots.
    shard: Subscriptions,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Vec<Range>>>>>;

impl Cluster {
    /// `server`: how to log in at the nodes, of which `seeds` are some.
    pub(super) fn new(server: Address, seeds: Vec<Host>, manner: Manner) -> Self {
        let addresses = seeds.iter().map(|seed| server.at(&seed.name, seed.port));
        Cluster {
            connections: Connections {
                nodes: BTreeMap::new(),
                classic: Subscriptions::new(addresses.collect(), Reach::Classic, &manner.uuid),
                asked: FuturesUnordered::new(),
                manner,
                server: server.clone(),
            },
            map: cluster::Cluster::new(clock::now(), seeds, server.timeout()),
            news: News::default(),
        }
    }

    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        self.map.send(now, sending, &mut self.connections, news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        self.map.subscribe(now, name, topic, &mut self.connections);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        self.map.unsubscribe(now, name, &mut self.connections);
    }

    /// Whether every node that serves a slot is connected and no call is held or in flight.
    pub(super) fn is_idle(&self) -> bool {
        let nodes = &self.connections.nodes;
        let is_idle = |id: &LinkId| nodes.get(id).is_some_and(|node| node.link.is_idle());
        self.map.is_settled() && self.map.routed().iter().all(is_idle)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        let (map, connections) = (&mut self.map, &mut self.connections);
        loop {
            let mut begun = false;
            for node in connections.nodes.values_mut() {
                node.link.poll(cx, &mut self.news);
                node.shard.poll(cx, &mut self.news);
            }
            connections.classic.poll(cx, &mut self.news);
            while let Poll::Ready(Some(answer)) = connections.asked.poll_next_unpin(cx) {
                map.take_answer(clock::now(), answer, connections, news);
                begun = true;
            }
            // A connection or question that was started now has to be polled once, to register its
            // waker.
            let heard = std::mem::take(&mut self.news);
            begun |= map.take_news(clock::now(), heard, connections, news);
            if !begun {
                return;
            }
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let nodes = self.connections.nodes.values();
        let parts = nodes.flat_map(|node| [node.link.next_wake(), node.shard.next_wake()]);
        parts
            .chain([self.connections.classic.next_wake(), self.map.next_wake()])
            .flatten()
            .min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        let (map, connections) = (&mut self.map, &mut self.connections);
        for node in connections.nodes.values_mut() {
            node.link.wake(now, &mut self.news);
            node.shard.wake(now, &mut self.news);
        }
        connections.classic.wake(now, &mut self.news);
        map.wake(now, connections, news);
        let heard = std::mem::take(&mut self.news);
        map.take_news(now, heard, connections, news);
    }
}

impl Connections {
    fn address(&self, place: &Host) -> Address {
        self.server.at(&place.name, place.port)
    }

    fn subscriptions(&mut self, node: Option<LinkId>) -> Option<&mut Subscriptions> {
        match node {
            None => Some(&mut self.classic),
            Some(id) => self.nodes.get_mut(&id).map(|node| &mut node.shard),
        }
    }
}

impl Nodes for Connections {
    fn add(&mut self, _: Moment, id: LinkId, place: &Host) {
        let address = self.address(place);
        let (target, manner) = (Target::Node(address.clone()), self.manner.clone());
        let servers = vec![address.clone()];
        let node = Node {
            address,
            link: ServerConnections::new(id, target, manner),
            shard: Subscriptions::new(servers, Reach::Sharded, &self.manner.uuid),
        };
        self.nodes.insert(id, node);
    }

    fn forget(&mut self, id: LinkId) {
        self.nodes.remove(&id);
    }

    fn publishes(&self, id: LinkId) -> Option<Publish> {
        self.nodes.get(&id)?.link.publishes()
    }

    fn is_busy(&self, id: LinkId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.link.is_busy())
    }

    fn send(&mut self, now: Moment, id: LinkId, sending: OutgoingCall, news: &mut News) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.link.send(now, sending, news);
        }
    }

    fn subscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic) {
        if let Some(subscriptions) = self.subscriptions(node) {
            subscriptions.subscribe(now, name.clone(), topic);
        }
    }

    fn unsubscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic) {
        if let Some(subscriptions) = self.subscriptions(node) {
            subscriptions.unsubscribe(now, name, topic);
        }
    }

    fn follow(&mut self, _: Moment, nodes: &[Host]) {
        let addresses = nodes.iter().map(|place| self.address(place)).collect();
        self.classic.follow(addresses);
    }

    fn ask_nodes(&mut self, _: Moment, nodes: &[LinkId]) {
        let nodes = nodes.iter().filter_map(|id| self.nodes.get(id));
        for node in nodes {
            if let Some(connection) = node.link.connection() {
                let address = node.address.clone();
                self.asked
                    .push(Box::pin(address.ask_for_slots_on(connection)));
            }
        }
    }

    fn ask_hosts(&mut self, _: Moment, hosts: &[Host]) {
        for host in hosts {
            let address = self.address(host);
            self.asked.push(Box::pin(address.ask_for_slots()));
        }
    }

    fn stop_asking(&mut self) {
        self.asked = FuturesUnordered::new();
    }

    fn random(&mut self) -> u32 {
        random()
    }
}
