//! A Redis Cluster: the slot map, one link per node, and redirected calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::News;
use super::calls::{OutgoingCall, Redirect};
use super::channels::Reach;
use super::connect::{Address, pause};
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::server_connections::ServerConnections;
use super::slotmap::Range;
use crate::clock;
use crate::engine::{CallId, CallOutcome, Input, LinkId, Routes, STANDALONE};
use crate::error::{Error, ErrorKind, Result};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::slots::{SLOTS, slot};
use crate::wire::{self, Name, Publish, Topic};
use redlatch_proto::connecting::Backoff;

/// The nodes of a cluster. Driven from outside like a `Link`.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    manner: Manner,
    nodes: BTreeMap<LinkId, Node>,
    last_id: LinkId,
    /// The node of each slot; `STANDALONE` where none is known.
    table: Vec<LinkId>,
    /// The nodes that serve at least one slot.
    routed: BTreeSet<LinkId>,
    survey: Survey,
    backoff: Backoff,
    /// How many maps in a row did not help: a slot had no node, or a node was not connected.
    vain: u32,
    /// Set while the map has to be fetched again. The inner value is a node that probably knows the
    /// new map.
    stale: Option<Option<LinkId>>,
    /// Redirected calls that wait for the connection to their node.
    held: Vec<Held>,
    /// Subscriptions to classic channels (`PUBLISH`), whose messages reach every node.
    classic: Subscriptions,
    /// For each lock whose channel is wanted: where it is subscribed.
    homes: HashMap<Name, Home>,
    /// Reports of the nodes and subscriptions that [`sift`](Cluster::sift) has not handled yet.
    news: News,
}

struct Node {
    address: Address,
    link: ServerConnections,
    /// Subscriptions to the sharded channels (`SPUBLISH`) of its slots.
    shard: Subscriptions,
    /// When the last call was sent to it, or else when it was added.
    used: Moment,
}

struct Held {
    node: LinkId,
    sending: OutgoingCall,
    end: Moment,
}

/// The connections that receive the messages of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Home {
    topic: Topic,
    classic: bool,
    shard: Option<LinkId>,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Vec<Range>>>>>;

enum Survey {
    Idle,
    Resting { until: Moment },
    Asking { attempt: Attempt, deadline: Moment },
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, manner: Manner) -> Self {
        Cluster {
            classic: Subscriptions::new(seeds.clone(), Reach::Classic, &manner.uuid),
            seeds,
            manner,
            nodes: BTreeMap::new(),
            last_id: STANDALONE,
            table: vec![STANDALONE; usize::from(SLOTS)],
            routed: BTreeSet::new(),
            survey: Survey::Resting {
                until: Moment::default(),
            },
            backoff: Backoff::default(),
            vain: 0,
            stale: Some(None),
            held: Vec::new(),
            homes: HashMap::new(),
            news: News::default(),
        }
    }

    // ---- calls ----

    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        let slot = match wire::slot_of(&sending.op) {
            Ok(slot) => slot,
            Err(error) => {
                let outcome = CallOutcome::Refused {
                    error,
                    passing: false,
                };
                return news.tell(Input::Outcome {
                    call: sending.call,
                    outcome,
                });
            }
        };
        match self.nodes.get_mut(&self.table[usize::from(slot)]) {
            Some(node) => {
                node.used = now;
                node.link.send(now, sending, news);
            }
            None => not_sent(sending.call, news),
        }
    }

    /// Follows a redirect (`MOVED` or `ASK`): sends the call to the named node, in what is left of
    /// its time.
    fn redirect(&mut self, now: Moment, redirect: Redirect, news: &mut News) {
        let Redirect {
            from,
            to,
            asking,
            call,
        } = redirect;
        let host = to.host.or_else(|| self.nodes.get(&from)?.address.host());
        let Some(address) = host.and_then(|host| Some(self.any_address()?.at(&host, to.port)))
        else {
            return call
                .into_iter()
                .for_each(|(sending, _)| not_sent(sending.call, news));
        };
        let node = self.node_at(&address);
        if !asking {
            self.note_stale(Some(node));
            let mut table = self.table.clone();
            table[usize::from(to.slot)] = node;
            self.route(table, news);
        }
        let Some((sending, end)) = call else { return };
        let hops = sending.hops + 1;
        if hops > tuning::CLUSTER_HOPS {
            let text = "the nodes of the cluster send the call from one to another; try again";
            let error = Error::new(ErrorKind::Server, text);
            let outcome = CallOutcome::Refused {
                error,
                passing: true,
            };
            return news.tell(Input::Outcome {
                call: sending.call,
                outcome,
            });
        }
        self.held.push(Held {
            node,
            sending: OutgoingCall {
                hops,
                asking,
                ..sending
            },
            end,
        });
        self.send_held(now, news);
    }

    /// Sends the held calls whose node is connected now, and gives up those whose time is over.
    fn send_held(&mut self, now: Moment, news: &mut News) {
        for Held { node, sending, end } in std::mem::take(&mut self.held) {
            let link = self.nodes.get_mut(&node).filter(|_| now < end);
            match link {
                Some(node) if node.link.server().is_some() => {
                    node.used = now;
                    node.link.send(
                        now,
                        OutgoingCall {
                            limit: now.until(end),
                            ..sending
                        },
                        news,
                    );
                }
                Some(_) => self.held.push(Held { node, sending, end }),
                // A redirected call has not been executed by any node.
                None => not_sent(sending.call, news),
            }
        }
    }

    // ---- nodes and slots ----

    fn any_address(&self) -> Option<&Address> {
        self.seeds.first()
    }

    /// The node at this address. Adds it if it is new.
    fn node_at(&mut self, address: &Address) -> LinkId {
        let known = self
            .nodes
            .iter()
            .find(|(_, node)| node.address.is_same(address));
        if let Some((id, _)) = known {
            return *id;
        }
        self.last_id += 1;
        let node = Node {
            address: address.clone(),
            link: ServerConnections::new(
                self.last_id,
                Target::Node(address.clone()),
                self.manner.clone(),
            ),
            shard: Subscriptions::new(vec![address.clone()], Reach::Sharded, &self.manner.uuid),
            used: clock::now(),
        };
        self.nodes.insert(self.last_id, node);
        self.last_id
    }

    /// Sets which node serves which slot, and tells the engine.
    fn route(&mut self, table: Vec<LinkId>, news: &mut News) {
        if table == self.table {
            return;
        }
        let before = std::mem::take(&mut self.routed);
        self.routed = table
            .iter()
            .copied()
            .filter(|id| *id != STANDALONE)
            .collect();
        news.tell(Input::Routes(Routes::by_slot(Arc::from(table.as_slice()))));
        self.table = table;
        // These nodes are new to the engine. It has to be told which of them are already connected.
        for id in self.routed.difference(&before) {
            if self
                .nodes
                .get(id)
                .is_some_and(|node| node.link.server().is_some())
            {
                news.tell(Input::Up(*id));
            }
        }
        self.settle_homes(clock::now());
    }

    /// Applies a slot map.
    fn take_map(&mut self, ranges: Vec<Range>, news: &mut News) {
        let mut table = vec![STANDALONE; usize::from(SLOTS)];
        for range in ranges {
            let Some(address) = self.any_address() else {
                continue;
            };
            let address = address.at(&range.host.unwrap_or_default(), range.port);
            let node = self.node_at(&address);
            table[usize::from(range.first)..=usize::from(range.last)].fill(node);
        }
        let uncovered = table.contains(&STANDALONE);
        self.route(table, news);
        let nodes: Vec<Address> = self
            .routed
            .iter()
            .filter_map(|id| Some(self.nodes.get(id)?.address.clone()))
            .collect();
        self.classic.follow(nodes);
        if uncovered {
            let text =
                "no node of the cluster serves the slot of this name; is the cluster complete?";
            news.tell(Input::Down(
                STANDALONE,
                Error::new(ErrorKind::Unavailable, text),
            ));
        }
        self.stale = (uncovered || !self.all_up()).then_some(None);
    }

    fn all_up(&self) -> bool {
        self.routed.iter().all(|id| {
            self.nodes
                .get(id)
                .is_some_and(|node| node.link.server().is_some())
        })
    }

    /// Forgets nodes that have no slot and no call. A connected node is kept for
    /// [`tuning::CLUSTER_NODE_LINGER`] after its last call.
    fn forget_nodes(&mut self, now: Moment) {
        let (routed, held) = (&self.routed, &self.held);
        self.nodes.retain(|id, node| {
            let waits = held.iter().any(|held| held.node == *id) || node.link.is_busy();
            let lingers =
                node.link.server().is_some() && now < node.used.after(tuning::CLUSTER_NODE_LINGER);
            routed.contains(id) || waits || lingers
        });
    }

    // ---- the map ----

    fn note_stale(&mut self, hint: Option<LinkId>) {
        if !matches!(self.survey, Survey::Asking { .. }) || self.stale.is_none() {
            self.stale = Some(hint);
        }
    }

    /// Fetches the map when it is stale, with growing pauses while that does not help.
    fn survey(&mut self, now: Moment) {
        match self.survey {
            Survey::Idle if self.stale.is_none() => {}
            Survey::Idle => match pause(&mut self.backoff) {
                Duration::ZERO => self.ask_for_map(now),
                // A node may stay away for ever. The map is then fetched less often than during a
                // fail-over.
                pause => {
                    let pause = pause
                        * (1 + self.vain / tuning::CLUSTER_MAP_ROUNDS)
                            .min(tuning::CLUSTER_MAP_SLOWEST);
                    self.survey = Survey::Resting {
                        until: now.after(pause),
                    };
                }
            },
            Survey::Resting { until } if until <= now => self.ask_for_map(now),
            Survey::Resting { .. } | Survey::Asking { .. } => {}
        }
    }

    /// Fetches the map from the node that probably knows it. Without such a hint, asks up to
    /// [`tuning::CLUSTER_MAP_NODES`] connected nodes. If none of these is connected, asks every
    /// known address. The first good answer counts.
    fn ask_for_map(&mut self, now: Moment) {
        let hint = self.stale.flatten().and_then(|id| self.nodes.get(&id));
        let hinted = hint.filter(|node| node.link.server().is_some()).into_iter();
        let up = self
            .nodes
            .values()
            .filter(|node| node.link.server().is_some());
        let mut asked: Vec<Attempt> = Vec::new();
        let live: Vec<&Node> = if hint.is_some() {
            hinted.collect()
        } else {
            up.collect()
        };
        let turn = usize::from(uuid::Uuid::new_v4().as_bytes()[0]);
        for node in live
            .iter()
            .cycle()
            .skip(turn % live.len().max(1))
            .take(live.len().min(tuning::CLUSTER_MAP_NODES))
        {
            if let Some(connection) = node.link.connection() {
                asked.push(Box::pin(node.address.clone().ask_for_slots_on(connection)));
            }
        }
        if asked.is_empty() {
            let known = self
                .nodes
                .values()
                .map(|node| &node.address)
                .chain(&self.seeds);
            asked.extend(
                known.map(|address| -> Attempt { Box::pin(address.clone().ask_for_slots()) }),
            );
        }
        // The hint is used only once.
        self.stale = Some(None);
        let limit = self
            .any_address()
            .map_or(tuning::CLUSTER_MAP_LIMIT, Address::timeout);
        self.survey = Survey::Asking {
            attempt: Box::pin(first(asked)),
            deadline: now.after(limit.min(tuning::CLUSTER_MAP_LIMIT)),
        };
    }

    fn surveyed(&mut self, result: Result<Vec<Range>>, news: &mut News) {
        self.survey = Survey::Idle;
        match result {
            Ok(ranges) => {
                self.take_map(ranges, news);
                self.vain += 1;
                if self.stale.is_none() {
                    (self.backoff, self.vain) = (Backoff::default(), 0);
                }
            }
            Err(error) => {
                self.stale = Some(None);
                // Only names without a node need this error. The others hear of the connection of
                // their node.
                if self.table.contains(&STANDALONE) {
                    news.tell(Input::Down(STANDALONE, error));
                }
            }
        }
    }

    fn late(&self) -> Error {
        let text = "no node of the cluster answered in time; do the nodes in the URL run?";
        Error::new(ErrorKind::Unavailable, text)
    }

    // ---- pub/sub ----

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        self.homes.entry(name.clone()).or_default().topic = topic;
        self.settle_home(now, &name);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        if let Some(home) = self.homes.remove(name) {
            self.leave_home(now, name, home, Home::default());
        }
    }

    /// Where the channel of a name has to be subscribed. `None` while its node is unknown or not
    /// connected: the subscriptions then stay as they are.
    fn home_of(&self, name: &Name, topic: Topic) -> Option<Home> {
        let id = self.table[usize::from(slot(name))];
        let publish = self.nodes.get(&id)?.link.publishes()?;
        let shardable = wire::is_shardable(topic, name);
        Some(Home {
            topic,
            classic: publish != Publish::Sharded || !shardable,
            shard: Some(id).filter(|_| publish != Publish::Classic && shardable),
        })
    }

    fn settle_home(&mut self, now: Moment, name: &Name) {
        let Some(old) = self.homes.get(name).copied() else {
            return;
        };
        let Some(new) = self.home_of(name, old.topic) else {
            return;
        };
        if new == old {
            return;
        }
        self.homes.insert(name.clone(), new);
        self.leave_home(now, name, old, new);
        if new.classic && !old.classic {
            self.classic.subscribe(now, name.clone(), new.topic);
        }
        let shard = new
            .shard
            .filter(|id| old.shard != Some(*id))
            .and_then(|id| self.nodes.get_mut(&id));
        if let Some(node) = shard {
            node.shard.subscribe(now, name.clone(), new.topic);
        }
    }

    /// Unsubscribes where the new home does not need it.
    fn leave_home(&mut self, now: Moment, name: &Name, old: Home, new: Home) {
        if old.classic && !new.classic {
            self.classic.unsubscribe(now, name, old.topic);
        }
        if let Some(node) = old
            .shard
            .filter(|id| new.shard != Some(*id))
            .and_then(|id| self.nodes.get_mut(&id))
        {
            node.shard.unsubscribe(now, name, old.topic);
        }
    }

    /// Moves every subscription to where its messages are published now.
    fn settle_homes(&mut self, now: Moment) {
        let names: Vec<Name> = self.homes.keys().cloned().collect();
        names.iter().for_each(|name| self.settle_home(now, name));
    }

    // ---- driving ----

    /// Whether every node that serves a slot is connected and no call is held or in flight.
    pub(super) fn is_idle(&self) -> bool {
        let routed = self.nodes.iter().filter(|(id, _)| self.routed.contains(id));
        !self.routed.is_empty()
            && self.held.is_empty()
            && routed
                .map(|(_, node)| &node.link)
                .all(ServerConnections::is_idle)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        loop {
            for node in self.nodes.values_mut() {
                node.link.poll(cx, &mut self.news);
                node.shard.poll(cx, &mut self.news);
            }
            self.classic.poll(cx, &mut self.news);
            if let Survey::Asking { attempt, .. } = &mut self.survey
                && let Poll::Ready(result) = attempt.as_mut().poll(cx)
            {
                self.surveyed(result, news);
            }
            // A connection or survey that was started now has to be polled once, to register its
            // waker.
            if !self.sift(clock::now(), news) {
                return;
            }
        }
    }

    /// Forwards inputs to the engine, and handles redirects and connection changes. Returns true if
    /// that started something that has to be polled.
    fn sift(&mut self, now: Moment, news: &mut News) -> bool {
        let heard = std::mem::take(&mut self.news);
        let mut begun = !heard.redirects.is_empty();
        news.connects += heard.connects;
        news.events.extend(heard.events);
        heard
            .redirects
            .into_iter()
            .for_each(|redirect| self.redirect(now, redirect, news));
        for input in heard.inputs {
            match input {
                Input::Up(id) => {
                    begun = true;
                    self.connected(now, id, news);
                }
                Input::Down(id, error) => {
                    self.note_stale(None);
                    if self.routed.contains(&id) {
                        news.tell(Input::Down(id, error));
                    }
                }
                input => news.tell(input),
            }
        }
        let (asking, nodes) = (
            matches!(self.survey, Survey::Asking { .. }),
            self.nodes.len(),
        );
        self.survey(now);
        self.forget_nodes(now);
        begun || asking != matches!(self.survey, Survey::Asking { .. }) || nodes < self.nodes.len()
    }

    fn connected(&mut self, now: Moment, id: LinkId, news: &mut News) {
        if self.routed.contains(&id) {
            news.tell(Input::Up(id));
        }
        self.send_held(now, news);
        self.settle_homes(now);
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let parts = self
            .nodes
            .values()
            .flat_map(|node| [node.link.next_wake(), node.shard.next_wake()]);
        let survey = match &self.survey {
            Survey::Idle => self.stale.map(|_| Moment::default()),
            Survey::Resting { until } => Some(*until),
            Survey::Asking { deadline, .. } => Some(*deadline),
        };
        let held = self.held.iter().map(|held| held.end);
        parts
            .chain([self.classic.next_wake(), survey])
            .flatten()
            .chain(held)
            .min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        for node in self.nodes.values_mut() {
            node.link.wake(now, &mut self.news);
            node.shard.wake(now, &mut self.news);
        }
        self.classic.wake(now, &mut self.news);
        if matches!(&self.survey, Survey::Asking { deadline, .. } if *deadline <= now) {
            self.surveyed(Err(self.late()), news);
        }
        self.send_held(now, news);
        self.sift(now, news);
    }
}

fn not_sent(call: CallId, news: &mut News) {
    news.tell(Input::Outcome {
        call,
        outcome: CallOutcome::NotSent,
    });
}

/// The first good answer, or the first error if all fail.
async fn first(asked: Vec<Attempt>) -> Result<Vec<Range>> {
    let mut asked: FuturesUnordered<Attempt> = asked.into_iter().collect();
    let mut failure = None;
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(ranges) => return Ok(ranges),
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    let none = || Error::new(ErrorKind::Unavailable, "no node of the cluster is known");
    Err(failure.unwrap_or_else(none))
}
