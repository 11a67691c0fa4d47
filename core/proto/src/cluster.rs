//! A Redis Cluster: which node serves which slot, redirected calls, and where channels are
//! subscribed. A driver has the connections ([`Nodes`]).

use std::sync::Arc;
use std::time::Duration;

use crate::connecting::Backoff;
use crate::engine::{CallId, CallOutcome, Input, LinkId, Routes, STANDALONE};
use crate::error::{Error, ErrorKind, Result};
use crate::maps::Map;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::{OutgoingCall, Redirect};
use crate::outbox::slotmap::{self, Range};
use crate::tuning;
use crate::url::Host;
use crate::value::Value;
use crate::wire::slots::{SLOTS, slot};
use crate::wire::{self, Name, Publish, Topic};

/// The command that asks a node for the slot map.
pub const MAP: [&str; 2] = ["CLUSTER", "SLOTS"];

/// The command that shows whether a node has sharded pub/sub. Redisson detects it in the same way.
pub const SHARDED: [&str; 2] = ["PUBSUB", "SHARDNUMSUB"];

/// Whether a node has sharded pub/sub, by its reply to [`SHARDED`]: `Err` has the code of an error.
/// Only servers before Redis 7 do not know the subcommand.
pub fn is_sharded(answer: std::result::Result<(), &str>) -> bool {
    matches!(answer, Ok(()) | Err("NOPERM"))
}

/// Reads the answer to [`MAP`] of the node at this place. Every range of slots has a host then.
///
/// # Errors
/// `unavailable` if there is none.
pub fn map_of(answer: Value, node: &Host) -> Result<Vec<Range>> {
    let mut ranges = slotmap::ranges(answer);
    for range in &mut ranges {
        range.host.get_or_insert_with(|| node.name.clone());
    }
    if ranges.is_empty() {
        let Host { name, port } = node;
        let text = format!("{name}:{port} knows no node of a cluster that has slots");
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    Ok(ranges)
}

/// The place of the node that serves a range.
pub fn node_of(range: Range) -> Host {
    Host {
        name: range.host.unwrap_or_default(),
        port: range.port,
    }
}

/// The connections to the nodes, which a driver has. They are used as `outbox` and `Wanted` say.
pub trait Nodes {
    /// Begins to connect to a node.
    fn add(&mut self, now: Moment, id: LinkId, place: &Host);

    /// Ends the connections to a node.
    fn forget(&mut self, id: LinkId);

    /// How releases are published at a node; `None` while it is not connected.
    fn publishes(&self, id: LinkId) -> Option<Publish>;

    /// Whether a call is in flight at a node.
    fn is_busy(&self, id: LinkId) -> bool;

    fn send(&mut self, now: Moment, id: LinkId, sending: OutgoingCall, news: &mut News);

    /// Subscribes to the channel of a name: at this node to a sharded one, else to a classic one.
    fn subscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic);

    fn unsubscribe(&mut self, now: Moment, node: Option<LinkId>, name: &Name, topic: Topic);

    /// Has the classic channels subscribed at one of these nodes.
    fn follow(&mut self, now: Moment, nodes: &[Host]);

    /// Asks connected nodes for the map. Each answer is told by [`Cluster::take_answer`].
    fn ask_nodes(&mut self, now: Moment, nodes: &[LinkId]);

    /// The same, on connections that are made for it.
    fn ask_hosts(&mut self, now: Moment, hosts: &[Host]);

    /// No answer counts any more. None of them is told by [`Cluster::take_answer`].
    fn stop_asking(&mut self);

    /// A random number, to spread what many clients do at once.
    fn random(&mut self) -> u32;
}

/// The nodes of a cluster, and what is known of them.
pub struct Cluster {
    seeds: Vec<Host>,
    /// How long the nodes may take to send the map.
    limit: Duration,
    nodes: Vec<Node>,
    last_id: LinkId,
    /// The node of each slot; `STANDALONE` where none is known.
    table: Vec<LinkId>,
    /// The nodes that serve at least one slot, in the order of their numbers.
    routed: Vec<LinkId>,
    survey: Survey,
    backoff: Backoff,
    /// How many maps in a row did not help: a slot had no node, or a node was not connected.
    vain: u32,
    /// The last map had holes.
    holey: bool,
    /// Set while the map has to be fetched again. The inner value is a node that probably knows the
    /// new map.
    stale: Option<Option<LinkId>>,
    /// Redirected calls that wait for the connection to their node.
    held: Vec<Held>,
    /// For each lock whose channel is wanted: where it is subscribed.
    homes: Map<Name, Home>,
}

struct Node {
    id: LinkId,
    place: Host,
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

enum Survey {
    Idle,
    Resting {
        until: Moment,
    },
    Asking {
        deadline: Moment,
        /// How many answers are to come.
        left: usize,
        failure: Option<Error>,
        /// The map that has the most slots.
        best: Option<Vec<Range>>,
    },
}

/// How many slots a map has a node for.
fn covered(ranges: &[Range]) -> usize {
    let mut slots = vec![false; usize::from(SLOTS)];
    for Range { first, last, .. } in ranges {
        slots[usize::from(*first)..=usize::from(*last)].fill(true);
    }
    slots.iter().filter(|slot| **slot).count()
}

impl Cluster {
    /// `timeout`: how long one attempt to connect may take. Asks for the map at the first
    /// [`wake`](Cluster::wake).
    pub fn new(now: Moment, seeds: Vec<Host>, timeout: Duration) -> Self {
        Cluster {
            seeds,
            limit: timeout.min(tuning::CLUSTER_MAP_LIMIT),
            nodes: Vec::new(),
            last_id: STANDALONE,
            table: vec![STANDALONE; usize::from(SLOTS)],
            routed: Vec::new(),
            survey: Survey::Resting { until: now },
            backoff: Backoff::default(),
            vain: 0,
            holey: false,
            stale: Some(None),
            held: Vec::new(),
            homes: Map::default(),
        }
    }

    // ---- calls ----

    pub fn send(
        &mut self,
        now: Moment,
        sending: OutgoingCall,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) {
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
        let id = self.table[usize::from(slot)];
        match self.node(id) {
            Some(node) => {
                node.used = now;
                nodes.send(now, id, sending, news);
            }
            None => not_sent(sending.call, news),
        }
    }

    /// Follows a redirect (`MOVED` or `ASK`): sends the call to the named node, in what is left of
    /// its time.
    fn redirect(
        &mut self,
        now: Moment,
        redirect: Redirect,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) {
        let Redirect {
            from,
            to,
            asking,
            call,
        } = redirect;
        let host = to
            .host
            .or_else(|| self.node(from).map(|node| node.place.name.clone()));
        let Some(name) = host else {
            return call
                .into_iter()
                .for_each(|(sending, _)| not_sent(sending.call, news));
        };
        let place = Host {
            name,
            port: to.port,
        };
        let node = self.node_at(now, place, nodes);
        if !asking {
            self.note_stale(Some(node));
            let mut table = self.table.clone();
            table[usize::from(to.slot)] = node;
            self.route(now, table, nodes, news);
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
        self.send_held(now, nodes, news);
    }

    /// Sends the held calls whose node is connected now, and gives up those whose time is over.
    fn send_held(&mut self, now: Moment, nodes: &mut impl Nodes, news: &mut News) {
        for Held { node, sending, end } in std::mem::take(&mut self.held) {
            match self.node(node).filter(|_| now < end) {
                Some(known) if nodes.publishes(node).is_some() => {
                    known.used = now;
                    let limit = now.until(end);
                    nodes.send(now, node, OutgoingCall { limit, ..sending }, news);
                }
                Some(_) => self.held.push(Held { node, sending, end }),
                // A redirected call has not been executed by any node.
                None => not_sent(sending.call, news),
            }
        }
    }

    // ---- nodes and slots ----

    fn node(&mut self, id: LinkId) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id == id)
    }

    /// The node at this place. Adds it if it is new.
    fn node_at(&mut self, now: Moment, place: Host, nodes: &mut impl Nodes) -> LinkId {
        if let Some(known) = self.nodes.iter().find(|node| node.place == place) {
            return known.id;
        }
        self.last_id += 1;
        nodes.add(now, self.last_id, &place);
        self.nodes.push(Node {
            id: self.last_id,
            place,
            used: now,
        });
        self.last_id
    }

    /// The nodes that serve at least one slot.
    pub fn routed(&self) -> &[LinkId] {
        &self.routed
    }

    /// Sets which node serves which slot, and tells the engine.
    fn route(&mut self, now: Moment, table: Vec<LinkId>, nodes: &mut impl Nodes, news: &mut News) {
        if table == self.table {
            return;
        }
        let mut routed = table.clone();
        routed.sort_unstable();
        routed.dedup();
        routed.retain(|id| *id != STANDALONE);
        let before = std::mem::replace(&mut self.routed, routed);
        news.tell(Input::Routes(Routes::by_slot(Arc::from(table.as_slice()))));
        self.table = table;
        // These nodes are new to the engine. It has to be told which of them are already connected.
        for id in self.routed.iter().filter(|id| !before.contains(id)) {
            if nodes.publishes(*id).is_some() {
                news.tell(Input::Up(*id));
            }
        }
        self.settle_homes(now, nodes);
    }

    /// Applies a slot map. A slot that it leaves out keeps its node: a node that has forgotten others
    /// says nothing about them.
    fn take_map(
        &mut self,
        now: Moment,
        ranges: Vec<Range>,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) {
        self.holey = covered(&ranges) < usize::from(SLOTS);
        let mut table = self.table.clone();
        for range in ranges {
            let (first, last) = (usize::from(range.first), usize::from(range.last));
            let node = self.node_at(now, node_of(range), nodes);
            table[first..=last].fill(node);
        }
        let uncovered = table.contains(&STANDALONE);
        self.route(now, table, nodes, news);
        let served = self.nodes.iter();
        let served = served.filter(|node| self.routed.contains(&node.id));
        let served: Vec<Host> = served.map(|node| node.place.clone()).collect();
        nodes.follow(now, &served);
        if uncovered {
            let text =
                "no node of the cluster serves the slot of this name; is the cluster complete?";
            news.tell(Input::Down(
                STANDALONE,
                Error::new(ErrorKind::Unavailable, text),
            ));
        }
        let mut routed = self.routed.iter();
        let is_complete = !self.holey && routed.all(|id| nodes.publishes(*id).is_some());
        self.stale = (!is_complete).then_some(None);
    }

    /// Forgets nodes that have no slot and no call. A connected node is kept for
    /// [`tuning::CLUSTER_NODE_LINGER`] after its last call.
    fn forget_nodes(&mut self, now: Moment, nodes: &mut impl Nodes) {
        // Each of them may have to answer.
        if self.is_asking() {
            return;
        }
        let (routed, held) = (&self.routed, &self.held);
        self.nodes.retain(|Node { id, used, .. }| {
            let waits = held.iter().any(|held| held.node == *id) || nodes.is_busy(*id);
            let lingers =
                nodes.publishes(*id).is_some() && now < used.after(tuning::CLUSTER_NODE_LINGER);
            let stays = routed.contains(id) || waits || lingers;
            if !stays {
                nodes.forget(*id);
            }
            stays
        });
    }

    // ---- the map ----

    fn is_asking(&self) -> bool {
        matches!(self.survey, Survey::Asking { .. })
    }

    fn note_stale(&mut self, hint: Option<LinkId>) {
        if !self.is_asking() || self.stale.is_none() {
            self.stale = Some(hint.or(self.stale.flatten()));
        }
    }

    /// Fetches the map when it is stale, with growing pauses while that does not help.
    fn survey(&mut self, now: Moment, nodes: &mut impl Nodes) {
        match self.survey {
            Survey::Idle if self.stale.is_none() => {}
            Survey::Idle => match self.backoff.pause(nodes.random()) {
                Duration::ZERO => self.ask_for_map(now, nodes),
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
            Survey::Resting { until } if until <= now => self.ask_for_map(now, nodes),
            Survey::Resting { .. } | Survey::Asking { .. } => {}
        }
    }

    /// Fetches the map from the node that probably knows it. Without such a hint, asks up to
    /// [`tuning::CLUSTER_MAP_NODES`] connected nodes. If none of these is connected, or the last map
    /// had holes, asks every known address, the seeds too. The first whole map counts; one with holes
    /// only if no other answer comes.
    fn ask_for_map(&mut self, now: Moment, nodes: &mut impl Nodes) {
        let ids = self.nodes.iter().map(|node| node.id);
        // The hint is used only once.
        let hint = self.stale.replace(None).flatten();
        let hint = hint.filter(|hint| self.nodes.iter().any(|node| node.id == *hint));
        let mut live: Vec<LinkId> = ids
            .filter(|id| hint.is_none_or(|hint| hint == *id) && nodes.publishes(*id).is_some())
            .collect();
        if live.is_empty() || self.holey && hint.is_none() {
            let mut hosts: Vec<Host> = self.nodes.iter().map(|node| node.place.clone()).collect();
            for seed in &self.seeds {
                if !hosts.contains(seed) {
                    hosts.push(seed.clone());
                }
            }
            self.await_answers(now, hosts.len());
            return nodes.ask_hosts(now, &hosts);
        }
        let turn = nodes.random() as usize % live.len();
        live.rotate_left(turn);
        live.truncate(tuning::CLUSTER_MAP_NODES);
        self.await_answers(now, live.len());
        nodes.ask_nodes(now, &live);
    }

    fn await_answers(&mut self, now: Moment, left: usize) {
        self.survey = Survey::Asking {
            deadline: now.after(self.limit),
            left,
            failure: None,
            best: None,
        };
    }

    /// Takes an answer to the question for the map. The first whole map counts, else the best one with
    /// holes, or the first error if all fail. [`take_news`](Cluster::take_news) has to follow.
    pub fn take_answer(
        &mut self,
        now: Moment,
        answer: Result<Vec<Range>>,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) {
        let Survey::Asking {
            left,
            failure,
            best,
            ..
        } = &mut self.survey
        else {
            return;
        };
        *left = left.saturating_sub(1);
        match answer {
            Ok(ranges) => {
                let slots = covered(&ranges);
                if slots == usize::from(SLOTS) {
                    *left = 0;
                }
                if best.as_ref().is_none_or(|best| covered(best) < slots) {
                    *best = Some(ranges);
                }
            }
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
        if *left == 0 {
            let failure = failure.take();
            self.conclude(now, failure, nodes, news);
        }
    }

    /// Ends the question with the best map, or with the error if there is none.
    fn conclude(
        &mut self,
        now: Moment,
        failure: Option<Error>,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) {
        let survey = std::mem::replace(&mut self.survey, Survey::Idle);
        nodes.stop_asking();
        let Survey::Asking {
            best: Some(best), ..
        } = survey
        else {
            return self.not_surveyed(failure, news);
        };
        self.take_map(now, best, nodes, news);
        self.vain += 1;
        if self.stale.is_none() {
            (self.backoff, self.vain) = (Backoff::default(), 0);
        }
    }

    fn not_surveyed(&mut self, failure: Option<Error>, news: &mut News) {
        self.stale = Some(None);
        // Only names without a node need this error. The others hear of the connection of their
        // node.
        if let Some(error) = failure
            && self.table.contains(&STANDALONE)
        {
            news.tell(Input::Down(STANDALONE, error));
        }
    }

    // ---- pub/sub ----

    pub fn subscribe(&mut self, now: Moment, name: Name, topic: Topic, nodes: &mut impl Nodes) {
        self.homes.entry(name.clone()).or_default().topic = topic;
        self.settle_home(now, &name, nodes);
    }

    pub fn unsubscribe(&mut self, now: Moment, name: &Name, nodes: &mut impl Nodes) {
        if let Some(home) = self.homes.remove(name) {
            leave_home(now, name, home, Home::default(), nodes);
        }
    }

    /// Where the channel of a name has to be subscribed. `None` while its node is unknown or not
    /// connected: the subscriptions then stay as they are.
    fn home_of(&self, name: &Name, topic: Topic, nodes: &impl Nodes) -> Option<Home> {
        let id = self.table[usize::from(slot(name))];
        let publish = nodes.publishes(id)?;
        let shardable = wire::is_shardable(topic, name);
        Some(Home {
            topic,
            classic: publish != Publish::Sharded || !shardable,
            shard: Some(id).filter(|_| publish != Publish::Classic && shardable),
        })
    }

    fn settle_home(&mut self, now: Moment, name: &Name, nodes: &mut impl Nodes) {
        let Some(old) = self.homes.get(name).copied() else {
            return;
        };
        let Some(new) = self.home_of(name, old.topic, nodes) else {
            return;
        };
        if new == old {
            return;
        }
        self.homes.insert(name.clone(), new);
        leave_home(now, name, old, new, nodes);
        if new.classic && !old.classic {
            nodes.subscribe(now, None, name, new.topic);
        }
        if new.shard.is_some() && new.shard != old.shard {
            nodes.subscribe(now, new.shard, name, new.topic);
        }
    }

    /// Moves every subscription to where its messages are published now.
    fn settle_homes(&mut self, now: Moment, nodes: &mut impl Nodes) {
        let names = self.homes.keys().cloned();
        // A seed of the simulation determines their order as well.
        #[cfg(test)]
        let names = std::collections::BTreeSet::from_iter(names).into_iter();
        let names: Vec<Name> = names.collect();
        for name in &names {
            self.settle_home(now, name, nodes);
        }
    }

    // ---- driving ----

    /// Whether the nodes are known and no call is held.
    pub fn is_settled(&self) -> bool {
        !self.routed.is_empty() && self.held.is_empty()
    }

    /// Forwards the reports of the connections to the engine, and handles redirects and connection
    /// changes. Returns true if that started something.
    pub fn take_news(
        &mut self,
        now: Moment,
        heard: News,
        nodes: &mut impl Nodes,
        news: &mut News,
    ) -> bool {
        let mut begun = !heard.redirects.is_empty();
        // The subscription ends, and no call need go to the slot. So nothing else tells
        // this client that the slot has moved.
        if heard.slot_moved {
            self.note_stale(None);
        }
        news.connects += heard.connects;
        news.events.extend(heard.events);
        for redirect in heard.redirects {
            self.redirect(now, redirect, nodes, news);
        }
        for input in heard.inputs {
            match input {
                Input::Up(id) => {
                    begun = true;
                    if self.routed.contains(&id) {
                        news.tell(Input::Up(id));
                    }
                    self.send_held(now, nodes, news);
                    self.settle_homes(now, nodes);
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
        let was_asking = self.is_asking();
        self.survey(now, nodes);
        self.forget_nodes(now, nodes);
        begun || was_asking != self.is_asking()
    }

    pub fn next_wake(&self) -> Option<Moment> {
        let survey = match &self.survey {
            Survey::Idle => None,
            Survey::Resting { until } => Some(*until),
            Survey::Asking { deadline, .. } => Some(*deadline),
        };
        let held = self.held.iter().map(|held| held.end);
        held.chain(survey).min()
    }

    /// Does what is due. [`take_news`](Cluster::take_news) has to follow.
    pub fn wake(&mut self, now: Moment, nodes: &mut impl Nodes, news: &mut News) {
        if matches!(&self.survey, Survey::Asking { deadline, .. } if *deadline <= now) {
            let text = "no node of the cluster answered in time; do the nodes in the URL run?";
            let failure = Error::new(ErrorKind::Unavailable, text);
            self.conclude(now, Some(failure), nodes, news);
        }
        self.send_held(now, nodes, news);
    }
}

/// Unsubscribes where the new home does not need it.
fn leave_home(now: Moment, name: &Name, old: Home, new: Home, nodes: &mut impl Nodes) {
    if old.classic && !new.classic {
        nodes.unsubscribe(now, None, name, old.topic);
    }
    if old.shard.is_some() && new.shard != old.shard {
        nodes.unsubscribe(now, old.shard, name, old.topic);
    }
}

fn not_sent(call: CallId, news: &mut News) {
    news.tell(Input::Outcome {
        call,
        outcome: CallOutcome::NotSent,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::slotmap::Elsewhere;
    use crate::wire::{Kind, Op};

    /// Nodes that do as they are told, and note it.
    #[derive(Default)]
    struct Noted {
        known: Vec<(LinkId, u16)>,
        up: Vec<LinkId>,
        publish: Publish,
        sent: Vec<(LinkId, CallId, bool)>,
        asked: Vec<String>,
        /// Answers count.
        asking: bool,
        channels: Vec<(Option<LinkId>, Name)>,
    }

    impl Nodes for Noted {
        fn add(&mut self, _: Moment, id: LinkId, place: &Host) {
            self.known.push((id, place.port));
        }

        fn forget(&mut self, id: LinkId) {
            self.known.retain(|(known, _)| *known != id);
        }

        fn publishes(&self, id: LinkId) -> Option<Publish> {
            self.up.contains(&id).then_some(self.publish)
        }

        fn is_busy(&self, _: LinkId) -> bool {
            false
        }

        fn send(&mut self, _: Moment, id: LinkId, sending: OutgoingCall, _: &mut News) {
            self.sent.push((id, sending.call, sending.asking));
        }

        fn subscribe(&mut self, _: Moment, node: Option<LinkId>, name: &Name, _: Topic) {
            self.channels.push((node, name.clone()));
        }

        fn unsubscribe(&mut self, _: Moment, node: Option<LinkId>, name: &Name, _: Topic) {
            let gone = (node, name.clone());
            self.channels.retain(|known| *known != gone);
        }

        fn follow(&mut self, _: Moment, _: &[Host]) {}

        fn ask_nodes(&mut self, _: Moment, nodes: &[LinkId]) {
            self.asked.push(format!("nodes {nodes:?}"));
            self.asking = true;
        }

        fn ask_hosts(&mut self, _: Moment, hosts: &[Host]) {
            let ports: Vec<u16> = hosts.iter().map(|host| host.port).collect();
            self.asked.push(format!("hosts {ports:?}"));
            self.asking = true;
        }

        fn stop_asking(&mut self) {
            self.asking = false;
        }

        fn random(&mut self) -> u32 {
            0
        }
    }

    struct Rig {
        cluster: Cluster,
        nodes: Noted,
        news: News,
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }

    fn host(port: u16) -> Host {
        Host {
            name: "h".to_owned(),
            port,
        }
    }

    /// The first half of the slots at port 1, the others at port 2.
    fn halves() -> Vec<Range> {
        let range = |first, last, port| Range {
            first,
            last,
            host: Some("h".to_owned()),
            port,
        };
        vec![range(0, 8191, 1), range(8192, 16383, 2)]
    }

    fn call(number: CallId, name: &str) -> OutgoingCall {
        OutgoingCall {
            call: number,
            op: Arc::new(Op::Force {
                name: name.into(),
                kind: Kind::Reentrant,
            }),
            limit: SECOND,
            hops: 0,
            asking: false,
        }
    }

    /// A name whose slot is in the first half, and one of the other half.
    fn names() -> [&'static str; 2] {
        assert!(slot("bar") < 8192 && slot("foo") >= 8192);
        ["bar", "foo"]
    }

    impl Rig {
        /// It knows both nodes, and both are connected.
        fn new() -> Rig {
            let mut rig = Rig {
                cluster: Cluster::new(at(0), vec![host(1), host(7)], SECOND),
                nodes: Noted::default(),
                news: News::default(),
            };
            rig.turn(0, News::default());
            assert_eq!(rig.nodes.asked, ["hosts [1, 7]"]);
            rig.answer(1, Ok(halves()));
            rig.ups(&[1, 2]);
            // The nodes were not connected when the first map came, so it is asked for again.
            rig.answer(2, Ok(halves()));
            rig.nodes.asked.clear();
            rig.news = News::default();
            rig
        }

        fn ups(&mut self, ids: &[LinkId]) {
            self.nodes.up.extend(ids);
            let mut heard = News::default();
            ids.iter().for_each(|id| heard.tell(Input::Up(*id)));
            self.turn(2, heard);
        }

        fn turn(&mut self, ms: u64, heard: News) {
            let (nodes, news) = (&mut self.nodes, &mut self.news);
            self.cluster.wake(at(ms), nodes, news);
            self.cluster.take_news(at(ms), heard, nodes, news);
        }

        fn answer(&mut self, ms: u64, answer: Result<Vec<Range>>) {
            let (nodes, news) = (&mut self.nodes, &mut self.news);
            self.cluster.take_answer(at(ms), answer, nodes, news);
        }

        fn send(&mut self, ms: u64, sending: OutgoingCall) {
            let (nodes, news) = (&mut self.nodes, &mut self.news);
            self.cluster.send(at(ms), sending, nodes, news);
        }

        /// Node 1 sends a call for the slot of this name to another port.
        fn redirect(&mut self, ms: u64, name: &str, port: u16, asking: bool, hops: u8) {
            let to = Elsewhere {
                slot: slot(name),
                host: None,
                port,
            };
            let sending = OutgoingCall {
                hops,
                ..call(9, name)
            };
            let heard = News {
                redirects: vec![Redirect {
                    from: 1,
                    to,
                    asking,
                    call: Some((sending, at(ms + 500))),
                }],
                ..News::default()
            };
            self.turn(ms, heard);
        }

        fn told(&mut self) -> Vec<String> {
            let told = std::mem::take(&mut self.news).inputs.into_iter();
            told.map(|input| match input {
                Input::Outcome { call, outcome } => format!("{call} {outcome:?}"),
                Input::Down(id, _) => format!("down {id}"),
                Input::Routes(_) => "routes".to_owned(),
                other => format!("{other:?}"),
            })
            .collect()
        }
    }

    #[test]
    fn calls_go_to_the_node_of_their_slot() {
        let mut rig = Rig::new();
        for (number, name) in (1..).zip(names()) {
            rig.send(3, call(number, name));
        }
        assert_eq!(rig.nodes.sent, [(1, 1, false), (2, 2, false)]);
    }

    #[test]
    fn moved_asks_the_named_node_for_the_map() {
        let (mut rig, [name, _]) = (Rig::new(), names());
        rig.redirect(10, name, 2, false, 0);
        assert_eq!(rig.nodes.asked, ["nodes [2]"]);
    }

    #[test]
    fn a_moved_channel_asks_for_the_map() {
        let mut rig = Rig::new();
        let heard = News {
            slot_moved: true,
            ..News::default()
        };
        rig.turn(10, heard);
        assert_eq!(rig.nodes.asked, ["nodes [1, 2]"]);
    }

    #[test]
    fn moved_to_a_new_node_changes_the_route() {
        let (mut rig, [name, _]) = (Rig::new(), names());
        // Node 1 has told no host: it is its own.
        rig.redirect(10, name, 3, false, 0);
        assert_eq!(rig.nodes.known, [(1, 1), (2, 2), (3, 3)]);
        // Node 3 is not connected yet. Each place is asked once, also a seed that is a node.
        assert_eq!(rig.nodes.asked, ["hosts [1, 2, 3, 7]"]);
        assert_eq!(
            (rig.nodes.sent.len(), rig.told()),
            (0, vec!["routes".to_owned()])
        );
        rig.ups(&[3]);
        assert_eq!(rig.nodes.sent, [(3, 9, false)]);
        rig.send(11, call(1, name));
        assert_eq!(rig.nodes.sent.last(), Some(&(3, 1, false)));
    }

    #[test]
    fn ask_sends_one_call_elsewhere_and_changes_nothing() {
        let (mut rig, [name, _]) = (Rig::new(), names());
        rig.redirect(10, name, 2, true, 0);
        assert_eq!(rig.nodes.sent, [(2, 9, true)]);
        assert!(rig.told().is_empty() && rig.nodes.asked.is_empty());
        rig.send(11, call(1, name));
        assert_eq!(rig.nodes.sent.last(), Some(&(1, 1, false)));
    }

    #[test]
    fn a_call_without_time_or_with_too_many_hops_is_given_up() {
        let (mut rig, [name, _]) = (Rig::new(), names());
        rig.redirect(10, name, 3, true, 0);
        rig.turn(510, News::default());
        assert_eq!(rig.told(), ["9 NotSent"]);
        rig.redirect(600, name, 2, true, tuning::CLUSTER_HOPS);
        let told = rig.told();
        assert!(
            told.len() == 1 && told[0].contains("from one to another"),
            "{told:?}"
        );
        assert!(rig.nodes.sent.is_empty());
    }

    #[test]
    fn the_first_whole_map_counts_and_the_first_error_if_there_is_none() {
        let error = |text: &str| Error::new(ErrorKind::Unavailable, text);
        let mut rig = Rig {
            cluster: Cluster::new(at(0), vec![host(1), host(2)], SECOND),
            nodes: Noted::default(),
            news: News::default(),
        };
        rig.turn(0, News::default());
        rig.answer(1, Err(error("first")));
        assert!(rig.told().is_empty() && rig.nodes.asking);
        rig.answer(1, Err(error("second")));
        assert!(!rig.nodes.asking);
        let [Input::Down(STANDALONE, told)] = rig.news.inputs.as_slice() else {
            panic!("{:?}", rig.told());
        };
        assert_eq!(told.message(), "first");
        rig.news = News::default();
        // It asks again, at once and then after pauses.
        rig.turn(2, News::default());
        assert_eq!(rig.nodes.asked.len(), 2);
        rig.answer(3, Err(error("third")));
        assert!(rig.nodes.asking);
        rig.answer(3, Ok(halves()));
        assert_eq!(rig.told(), ["routes"]);
        assert!(!rig.nodes.asking);
        // It comes too late.
        rig.answer(4, Err(error("fourth")));
        assert!(rig.told().is_empty());
    }

    /// A node that has forgotten the others, and tells only its own slots, made holds at the others
    /// unreachable.
    #[test]
    fn a_map_with_holes_counts_only_if_there_is_no_other() {
        let (mut rig, whole) = (Rig::new(), halves());
        let half = || whole[..1].to_vec();
        rig.cluster.stale = Some(None);
        rig.turn(10, News::default());
        assert_eq!(rig.nodes.asked, ["nodes [1, 2]"]);
        rig.answer(11, Ok(half()));
        assert!(rig.nodes.asking, "another node may have all of it");
        rig.answer(11, Ok(halves()));
        assert!(!rig.nodes.asking && rig.told().is_empty());
        // In the first question as well.
        let mut rig = Rig {
            cluster: Cluster::new(at(0), vec![host(1), host(2)], SECOND),
            nodes: Noted::default(),
            news: News::default(),
        };
        rig.turn(0, News::default());
        rig.answer(1, Ok(half()));
        rig.answer(2, Ok(halves()));
        assert_eq!(rig.told(), ["routes"]);
        assert_eq!(rig.nodes.known, [(1, 1), (2, 2)]);
    }

    #[test]
    fn a_slot_that_no_map_has_keeps_its_node_and_the_seeds_are_asked() {
        let (mut rig, [_, name]) = (Rig::new(), names());
        let half = || halves()[..1].to_vec();
        rig.cluster.stale = Some(None);
        rig.turn(10, News::default());
        rig.answer(11, Ok(half()));
        rig.answer(11, Err(Error::new(ErrorKind::Unavailable, "no answer")));
        rig.turn(12, News::default());
        assert!(rig.told().is_empty(), "nothing has changed");
        rig.send(12, call(1, name));
        assert_eq!(rig.nodes.sent, [(2, 1, false)]);
        assert_eq!(rig.nodes.known, [(1, 1), (2, 2)]);
        let again = rig.cluster.next_wake().expect("it asks again");
        rig.turn(again.0 / 1000 + 1, News::default());
        assert_eq!(rig.nodes.asked, ["nodes [1, 2]", "hosts [1, 2, 7]"]);
        // Silence of the others does not make the holes count either.
        rig.answer(2000, Ok(half()));
        let end = rig.cluster.next_wake().expect("it waits for the others");
        rig.turn(end.0 / 1000 + 1, News::default());
        assert!(rig.told().is_empty());
        rig.answer(2000, Ok(halves()));
        assert!(rig.told().is_empty());
    }

    #[test]
    fn a_first_map_with_holes_is_better_than_none() {
        let mut rig = Rig {
            cluster: Cluster::new(at(0), vec![host(1)], SECOND),
            nodes: Noted::default(),
            news: News::default(),
        };
        rig.turn(0, News::default());
        rig.answer(1, Ok(halves()[..1].to_vec()));
        assert_eq!(rig.told(), ["routes", "down 0"]);
    }

    #[test]
    fn an_incomplete_map_makes_no_turn_late() {
        let mut rig = Rig {
            cluster: Cluster::new(at(0), vec![host(1)], SECOND),
            nodes: Noted::default(),
            news: News::default(),
        };
        rig.turn(0, News::default());
        // Neither node is connected.
        rig.answer(1, Ok(halves()));
        assert_eq!(rig.cluster.next_wake(), None);
        rig.turn(1, News::default());
        assert_eq!(rig.nodes.asked.len(), 2);
    }

    #[test]
    fn silence_ends_a_question_for_the_map() {
        let mut rig = Rig {
            cluster: Cluster::new(at(0), vec![host(1)], SECOND),
            nodes: Noted::default(),
            news: News::default(),
        };
        rig.turn(0, News::default());
        assert_eq!(rig.cluster.next_wake(), Some(at(1000)));
        let (cluster, nodes, news) = (&mut rig.cluster, &mut rig.nodes, &mut rig.news);
        cluster.wake(at(1000), nodes, news);
        assert!(!rig.nodes.asking);
        rig.turn(1000, News::default());
        assert_eq!(rig.told(), ["down 0"]);
        assert_eq!(rig.nodes.asked.len(), 2);
    }

    #[test]
    fn a_channel_follows_its_slot_and_how_its_node_publishes() {
        let (mut rig, [name, _]) = (Rig::new(), names());
        rig.nodes.publish = Publish::Sharded;
        let key = Name::from(name);
        let (topic, nodes) = (Topic::default(), &mut rig.nodes);
        rig.cluster.subscribe(at(3), key.clone(), topic, nodes);
        assert_eq!(rig.nodes.channels, [(Some(1), key.clone())]);
        rig.redirect(10, name, 2, false, 0);
        assert_eq!(rig.nodes.channels, [(Some(2), key.clone())]);
        rig.nodes.publish = Publish::Both;
        rig.ups(&[]);
        rig.turn(
            11,
            News {
                inputs: vec![Input::Up(2)],
                ..News::default()
            },
        );
        assert_eq!(
            rig.nodes.channels,
            [(Some(2), key.clone()), (None, key.clone())]
        );
        rig.cluster.unsubscribe(at(12), &key, &mut rig.nodes);
        assert!(rig.nodes.channels.is_empty());
    }

    #[test]
    fn a_node_without_slots_and_calls_is_forgotten() {
        let mut rig = Rig::new();
        let all = Range {
            last: 16383,
            ..halves().swap_remove(0)
        };
        rig.cluster.stale = Some(None);
        rig.turn(20, News::default());
        assert_eq!(rig.nodes.asked, ["nodes [1, 2]"]);
        rig.answer(21, Ok(vec![all]));
        rig.turn(22, News::default());
        // It is connected, and lingers.
        assert_eq!(rig.nodes.known.len(), 2);
        rig.nodes.up.retain(|id| *id == 1);
        rig.turn(23, News::default());
        assert_eq!(rig.nodes.known, [(1, 1)]);
    }

    #[test]
    fn no_node_is_forgotten_while_the_map_is_asked_for() {
        let mut rig = Rig::new();
        let all = Range {
            last: 16383,
            ..halves().swap_remove(0)
        };
        // Node 2 has lingered long enough.
        let now = 100_000;
        rig.cluster.stale = Some(None);
        rig.turn(now, News::default());
        rig.answer(now, Ok(vec![all.clone()]));
        rig.cluster.stale = Some(None);
        rig.turn(now, News::default());
        assert_eq!((rig.nodes.asking, rig.nodes.known.len()), (true, 2));
        rig.answer(now, Ok(vec![all]));
        rig.turn(now, News::default());
        assert_eq!(rig.nodes.known, [(1, 1)]);
    }

    #[test]
    fn a_node_that_knows_no_other_tells_its_own_host() {
        let row = |host: Value| {
            Value::Array(vec![
                Value::Int(0),
                Value::Int(16383),
                Value::Array(vec![host, Value::Int(7000)]),
            ])
        };
        let map = map_of(Value::Array(vec![row(Value::Nil)]), &host(7000)).expect("a map");
        assert_eq!(
            map.into_iter().map(node_of).collect::<Vec<_>>(),
            [host(7000)]
        );
        let error = map_of(Value::Array(Vec::new()), &host(7000)).expect_err("no map");
        assert!(error.message().contains("h:7000 knows no node"), "{error}");
    }
}
