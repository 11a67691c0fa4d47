//! A cluster: which node serves which slot, one link for each of them, calls that are sent elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::News;
use super::channels::Reach;
use super::connect::{Address, Backoff};
use super::lanes::Lanes;
use super::link::{Manner, Target};
use super::pubsub::Subscriptions;
use super::slotmap::Range;
use super::traffic::{Redirect, Sending};
use crate::clock;
use crate::engine::{CallId, Input, LinkId, NOWHERE, Outcome, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::moment::Moment;
use crate::wire::slots::{SLOTS, slot};
use crate::wire::{self, Name, Publish};

/// How often a call is sent elsewhere before it is left to be tried again.
const MOST_HOPS: u8 = 8;
/// How long the nodes may take to tell the map.
const SURVEY: Duration = Duration::from_secs(1);
/// How many nodes are asked for it at a time.
const ASKED: usize = 3;
/// After each so many maps that did not help the pauses are longer, up to so many times.
const MANY: u32 = 60;
const SLOWER: u32 = 10;
/// How long a node without slots is kept: one that takes slots in is asked many times before it has any.
const LINGER: Duration = Duration::from_secs(60);

/// The nodes of a cluster. Driven from outside as a `Link` is.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    manner: Manner,
    nodes: BTreeMap<LinkId, Node>,
    last_id: LinkId,
    /// Who serves each slot.
    table: Vec<LinkId>,
    /// Who serves any.
    routed: BTreeSet<LinkId>,
    survey: Survey,
    backoff: Backoff,
    /// How often the map that was told did not help.
    vain: u32,
    /// The map has to be asked for, since when this was noticed; of this node, if it knows.
    stale: Option<Option<LinkId>>,
    /// Calls that wait for the connection to the node that serves them.
    held: Vec<Held>,
    /// The messages that go to every node.
    classic: Subscriptions,
    /// Where the channels that are wanted are listened to.
    homes: HashMap<Name, Home>,
    /// What the parts have learnt, before it is sifted.
    news: News,
}

struct Node {
    address: Address,
    link: Lanes,
    /// The messages of its slots.
    shard: Subscriptions,
    /// When it last had slots, or a call.
    used: Moment,
}

struct Held {
    node: LinkId,
    sending: Sending,
    end: Moment,
}

/// Who can tell the messages on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Home {
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
            classic: Subscriptions::new(seeds.clone(), Reach::Classic),
            seeds,
            manner,
            nodes: BTreeMap::new(),
            last_id: NOWHERE,
            table: vec![NOWHERE; usize::from(SLOTS)],
            routed: BTreeSet::new(),
            survey: Survey::Resting { until: Moment::default() },
            backoff: Backoff::default(),
            vain: 0,
            stale: Some(None),
            held: Vec::new(),
            homes: HashMap::new(),
            news: News::default(),
        }
    }

    // ---- calls ----

    pub(super) fn send(&mut self, now: Moment, sending: Sending, news: &mut News) {
        let slot = match wire::slot_of(&sending.op) {
            Ok(slot) => slot,
            Err(error) => {
                let outcome = Outcome::Refused { error, passing: false };
                return news.tell(Input::Outcome { call: sending.call, outcome });
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

    /// Sends a call to where it was sent on to, in what is left of its time.
    fn redirect(&mut self, now: Moment, redirect: Redirect, news: &mut News) {
        let Redirect { from, to, asking, call } = redirect;
        let host = to.host.or_else(|| self.nodes.get(&from)?.address.host());
        let Some(address) = host.and_then(|host| Some(self.any_address()?.at(&host, to.port))) else {
            return call.into_iter().for_each(|(sending, _)| not_sent(sending.call, news));
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
        if hops > MOST_HOPS {
            let text = "the nodes of the cluster send the call from one to another; try again";
            let error = Error::new(ErrorKind::Server, text);
            let outcome = Outcome::Refused { error, passing: true };
            return news.tell(Input::Outcome { call: sending.call, outcome });
        }
        self.held.push(Held { node, sending: Sending { hops, asking, ..sending }, end });
        self.send_held(now, news);
    }

    /// Sends what waits for a connection that is there now; gives up what has waited for too long.
    fn send_held(&mut self, now: Moment, news: &mut News) {
        for Held { node, sending, end } in std::mem::take(&mut self.held) {
            let link = self.nodes.get_mut(&node).filter(|_| now < end);
            match link {
                Some(node) if node.link.server().is_some() => {
                    node.used = now;
                    node.link.send(now, Sending { limit: now.until(end), ..sending }, news);
                }
                Some(_) => self.held.push(Held { node, sending, end }),
                // It has done nothing anywhere.
                None => not_sent(sending.call, news),
            }
        }
    }

    // ---- nodes and slots ----

    fn any_address(&self) -> Option<&Address> {
        self.seeds.first()
    }

    /// The node at this address, which may be new.
    fn node_at(&mut self, address: &Address) -> LinkId {
        let known = self.nodes.iter().find(|(_, node)| node.address.is_same(address));
        if let Some((id, _)) = known {
            return *id;
        }
        self.last_id += 1;
        let node = Node {
            address: address.clone(),
            link: Lanes::new(self.last_id, Target::Node(address.clone()), self.manner.clone()),
            shard: Subscriptions::new(vec![address.clone()], Reach::Sharded),
            used: clock::now(),
        };
        self.nodes.insert(self.last_id, node);
        self.last_id
    }

    /// Lets the engine know who serves which slot.
    fn route(&mut self, table: Vec<LinkId>, news: &mut News) {
        if table == self.table {
            return;
        }
        let before = std::mem::take(&mut self.routed);
        self.routed = table.iter().copied().filter(|id| *id != NOWHERE).collect();
        news.tell(Input::Routes(Routes::by_slot(Arc::from(table.as_slice()))));
        self.table = table;
        // Nodes that the engine has not heard of and that are connected already.
        for id in self.routed.difference(&before) {
            if self.nodes.get(id).is_some_and(|node| node.link.server().is_some()) {
                news.tell(Input::Up(*id));
            }
        }
        self.settle_homes(clock::now());
    }

    /// Takes over a map.
    fn take_map(&mut self, ranges: Vec<Range>, news: &mut News) {
        let mut table = vec![NOWHERE; usize::from(SLOTS)];
        for range in ranges {
            let Some(address) = self.any_address() else { continue };
            let address = address.at(&range.host.unwrap_or_default(), range.port);
            let node = self.node_at(&address);
            table[usize::from(range.first)..=usize::from(range.last)].fill(node);
        }
        let uncovered = table.contains(&NOWHERE);
        self.route(table, news);
        let nodes: Vec<Address> =
            self.routed.iter().filter_map(|id| Some(self.nodes.get(id)?.address.clone())).collect();
        self.classic.follow(nodes);
        if uncovered {
            let text = "no node of the cluster serves the slot of this name; is the cluster complete?";
            news.tell(Input::Down(NOWHERE, Error::new(ErrorKind::Unavailable, text)));
        }
        self.stale = (uncovered || !self.all_up()).then_some(None);
    }

    fn all_up(&self) -> bool {
        self.routed.iter().all(|id| self.nodes.get(id).is_some_and(|node| node.link.server().is_some()))
    }

    /// Forgets nodes without slots that nobody needs.
    fn forget_nodes(&mut self, now: Moment) {
        let (routed, held) = (&self.routed, &self.held);
        self.nodes.retain(|id, node| {
            let waits = held.iter().any(|held| held.node == *id) || node.link.is_busy();
            let lingers = node.link.server().is_some() && now < node.used.after(LINGER);
            routed.contains(id) || waits || lingers
        });
    }

    // ---- the map ----

    fn note_stale(&mut self, hint: Option<LinkId>) {
        if !matches!(self.survey, Survey::Asking { .. }) || self.stale.is_none() {
            self.stale = Some(hint);
        }
    }

    /// Asks for the map when it is stale, in ever longer intervals while that does not help.
    fn survey(&mut self, now: Moment) {
        match self.survey {
            Survey::Idle if self.stale.is_none() => {}
            Survey::Idle => match self.backoff.pause() {
                Duration::ZERO => self.ask_for_map(now),
                // A node that stays away is no reason to ask for ever as often as during a fail-over.
                pause => {
                    let pause = pause * (1 + self.vain / MANY).min(SLOWER);
                    self.survey = Survey::Resting { until: now.after(pause) };
                }
            },
            Survey::Resting { until } if until <= now => self.ask_for_map(now),
            Survey::Resting { .. } | Survey::Asking { .. } => {}
        }
    }

    /// Asks the node that should know, or some that are connected, or whoever may be there; the first
    /// answer counts.
    fn ask_for_map(&mut self, now: Moment) {
        let hint = self.stale.flatten().and_then(|id| self.nodes.get(&id));
        let hinted = hint.filter(|node| node.link.server().is_some()).into_iter();
        let up = self.nodes.values().filter(|node| node.link.server().is_some());
        let mut asked: Vec<Attempt> = Vec::new();
        let live: Vec<&Node> = if hint.is_some() { hinted.collect() } else { up.collect() };
        let turn = usize::from(uuid::Uuid::new_v4().as_bytes()[0]);
        for node in live.iter().cycle().skip(turn % live.len().max(1)).take(live.len().min(ASKED)) {
            if let Some(connection) = node.link.connection() {
                asked.push(Box::pin(node.address.clone().ask_for_slots_on(connection)));
            }
        }
        if asked.is_empty() {
            let known = self.nodes.values().map(|node| &node.address).chain(&self.seeds);
            asked.extend(known.map(|address| -> Attempt { Box::pin(address.clone().ask_for_slots()) }));
        }
        // The hint has had its chance.
        self.stale = Some(None);
        let limit = self.any_address().map_or(SURVEY, Address::timeout);
        self.survey =
            Survey::Asking { attempt: Box::pin(first(asked)), deadline: now.after(limit.min(SURVEY)) };
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
                // Names that have a node hear of its own connection.
                if self.table.contains(&NOWHERE) {
                    news.tell(Input::Down(NOWHERE, error));
                }
            }
        }
    }

    fn late(&self) -> Error {
        let text = "no node of the cluster answered in time; do the nodes in the URL run?";
        Error::new(ErrorKind::Unavailable, text)
    }

    // ---- pub/sub ----

    pub(super) fn subscribe(&mut self, now: Moment, name: Name) {
        self.homes.entry(name.clone()).or_default();
        self.settle_home(now, &name);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        if let Some(home) = self.homes.remove(name) {
            self.leave_home(now, name, home, Home::default());
        }
    }

    /// Where the channel of a name has to be listened to; as before, if its node cannot be asked.
    fn home_of(&self, name: &Name) -> Option<Home> {
        let id = self.table[usize::from(slot(name))];
        let publish = self.nodes.get(&id)?.link.publishes()?;
        let shardable = wire::is_shardable(name);
        Some(Home {
            classic: publish != Publish::Sharded || !shardable,
            shard: Some(id).filter(|_| publish != Publish::Classic && shardable),
        })
    }

    fn settle_home(&mut self, now: Moment, name: &Name) {
        let (Some(new), Some(old)) = (self.home_of(name), self.homes.get(name).copied()) else { return };
        if new == old {
            return;
        }
        self.homes.insert(name.clone(), new);
        self.leave_home(now, name, old, new);
        if new.classic && !old.classic {
            self.classic.subscribe(now, name.clone());
        }
        let shard = new.shard.filter(|id| old.shard != Some(*id)).and_then(|id| self.nodes.get_mut(&id));
        if let Some(node) = shard {
            node.shard.subscribe(now, name.clone());
        }
    }

    /// Ends what the new home does not need.
    fn leave_home(&mut self, now: Moment, name: &Name, old: Home, new: Home) {
        if old.classic && !new.classic {
            self.classic.unsubscribe(now, name);
        }
        if let Some(node) =
            old.shard.filter(|id| new.shard != Some(*id)).and_then(|id| self.nodes.get_mut(&id))
        {
            node.shard.unsubscribe(now, name);
        }
    }

    /// Every channel is listened to where its messages are published now.
    fn settle_homes(&mut self, now: Moment) {
        let names: Vec<Name> = self.homes.keys().cloned().collect();
        names.iter().for_each(|name| self.settle_home(now, name));
    }

    // ---- driving ----

    /// Whether everything is connected and nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        let routed = self.nodes.iter().filter(|(id, _)| self.routed.contains(id));
        !self.routed.is_empty()
            && self.held.is_empty()
            && routed.map(|(_, node)| &node.link).all(Lanes::is_idle)
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
            // What was begun now has to be polled once, too.
            if !self.sift(clock::now(), news) {
                return;
            }
        }
    }

    /// Passes on what concerns the engine and does what follows from the rest. True if something was
    /// begun by that.
    fn sift(&mut self, now: Moment, news: &mut News) -> bool {
        let heard = std::mem::take(&mut self.news);
        let mut begun = !heard.redirects.is_empty();
        news.connects += heard.connects;
        news.events.extend(heard.events);
        heard.redirects.into_iter().for_each(|redirect| self.redirect(now, redirect, news));
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
        let (asking, nodes) = (matches!(self.survey, Survey::Asking { .. }), self.nodes.len());
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
        let parts = self.nodes.values().flat_map(|node| [node.link.next_wake(), node.shard.next_wake()]);
        let survey = match &self.survey {
            Survey::Idle => self.stale.map(|_| Moment::default()),
            Survey::Resting { until } => Some(*until),
            Survey::Asking { deadline, .. } => Some(*deadline),
        };
        let held = self.held.iter().map(|held| held.end);
        parts.chain([self.classic.next_wake(), survey]).flatten().chain(held).min()
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
    news.tell(Input::Outcome { call, outcome: Outcome::NotSent });
}

/// The first good answer; if there is none, why not.
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
