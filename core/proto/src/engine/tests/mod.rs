//! Unit tests of the engine, state by state: inputs go in by hand, time is a number, and outputs
//! are checked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test says where"
)]

mod cancelling;
mod clones;
mod closing;
mod counting;
mod counting_world;
mod crowds;
mod handing;
mod holding;
mod invalidations;
mod kinds;
mod linking;
mod losing;
mod multi;
mod passing;
mod permits;
mod preferring;
mod queueing;
mod reading;
mod renewing;
mod replicas;
mod settling;
pub mod simulation;
mod stealing;
mod tokens;
mod turns;
mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::Counters;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{
    Acquire, Fencing, Form, HandOver, Holder, Inspection, Kind, Name, Op, OwnerId, Release,
    RenewReply, Reply, Special, Topic,
};

const LEASE: Duration = Duration::from_secs(30);
const WATCHED: Terms = Terms {
    permits: 0,
    special: Special::NONE,
    kind: Kind::Reentrant,
    reentrant: true,
    lease: Lease::Watchdog(LEASE),
    fencing: Fencing::Off,
    max_hold: None,
    replicas: 0,
    linger: false,
    tied: false,
};
const RECHECK: Duration = Duration::from_secs(5);
const OUTAGE: Duration = Duration::from_secs(10);
/// The most hand-overs in a row, and their longest time, before other clients get a chance.
const HANDOVERS: usize = 3;
const RUN: Duration = Duration::from_millis(100);
/// How long a copy of a request with the usual lease may run: its limit of 1 s, plus drift.
const COPY: Duration = Duration::from_millis(1012);
/// The key of most re-entering callers.
const KEY: OwnerKey = OwnerKey::Thread(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn fixed(lease: Duration) -> Terms {
    Terms {
        lease: Lease::Fixed(lease),
        ..WATCHED
    }
}

fn watched(lease: Duration) -> Terms {
    Terms {
        lease: Lease::Watchdog(lease),
        ..WATCHED
    }
}

fn down() -> Input {
    Input::Down(
        0,
        Error::new(ErrorKind::Unavailable, "cannot reach the server"),
    )
}

fn refused(kind: ErrorKind, passing: bool) -> CallOutcome {
    CallOutcome::Refused {
        error: Error::new(kind, "the server said no"),
        passing,
    }
}

/// A call that the engine sent.
#[derive(Debug, Clone)]
struct Sent {
    call: CallId,
    op: Op,
    limit: Duration,
    inline: Option<Inline>,
}

impl Sent {
    /// The acquire's owner, count and lease.
    fn acquire(&self) -> (OwnerId, u32, Duration) {
        match &self.op {
            Op::Acquire(Acquire {
                owner,
                count,
                lease,
                ..
            }) => (*owner, *count, *lease),
            other => panic!("not an acquire: {other:?}"),
        }
    }

    /// The owners of a hand-over, before and after, and the lease.
    fn handover(&self) -> (OwnerId, OwnerId, Duration) {
        match &self.op {
            Op::HandOver(HandOver {
                owner, to, lease, ..
            }) => (*owner, *to, *lease),
            other => panic!("not a hand-over: {other:?}"),
        }
    }

    /// The release's owner, remaining count and time.
    fn release(&self) -> (OwnerId, u32, Duration) {
        match &self.op {
            Op::Release(Release {
                owner,
                remaining,
                ttl,
                ..
            }) => (*owner, *remaining, *ttl),
            other => panic!("not a release: {other:?}"),
        }
    }

    /// The owner and TTL of the renewal that verifies an optimistic hand-over.
    fn question(&self) -> (OwnerId, Duration) {
        let holds = self.renewal();
        assert_eq!(holds.len(), 1, "{holds:?}");
        holds[0]
    }

    /// The owners and times of a renewal.
    fn renewal(&self) -> Vec<(OwnerId, Duration)> {
        match &self.op {
            Op::Renew { holds } => holds.iter().map(|hold| (hold.owner, hold.ttl)).collect(),
            other => panic!("not a renewal: {other:?}"),
        }
    }
}

/// A granted level.
#[derive(Debug, Clone)]
struct Grant {
    cell: Arc<HoldCell>,
    level: LevelId,
}

impl Grant {
    fn owner(&self) -> OwnerId {
        self.cell.owner
    }

    fn target(&self) -> Target {
        Target::Level {
            owner: self.owner(),
            level: self.level,
        }
    }

    fn dropped(&self) -> Input {
        Input::Dropped {
            owner: self.owner(),
            level: self.level,
        }
    }

    fn detached(&self) -> Input {
        Input::Detached {
            owner: self.owner(),
            level: self.level,
        }
    }

    fn abandoned(&self) -> Input {
        Input::Abandoned {
            owner: self.owner(),
            level: self.level,
        }
    }
}

/// An engine with a clock, and the outputs that the test has not checked yet.
struct Rig {
    engine: Engine,
    counters: Arc<Counters>,
    now: Moment,
    last_request: RequestId,
    sent: Vec<Sent>,
    completed: HashMap<RequestId, Result<Done>>,
    lost: Vec<(OwnerId, LostReason)>,
    ended: Vec<OwnerId>,
    events: Vec<&'static str>,
    /// The events above debug, with their texts.
    alarms: Vec<(&'static str, String)>,
    /// The names whose channels the engine wants subscribed.
    subscribed: Vec<Name>,
    /// Which of its channels is subscribed.
    topics: BTreeMap<Name, Topic>,
    /// The channel that was subscribed last.
    topic: Topic,
    stopped: bool,
}

impl Rig {
    /// An engine whose link is up.
    fn new() -> Rig {
        let mut rig = Rig::offline();
        rig.input(Input::Up(0));
        rig
    }

    /// An engine whose link has not been up yet.
    fn offline() -> Rig {
        let counters = Arc::new(Counters::default());
        let config = Config {
            recheck: RECHECK,
            outage: OUTAGE,
            handovers: (HANDOVERS, RUN),
            linger: ms(0),
            least_limit: Duration::ZERO,
            renewals: tuning::RENEWALS_IN_FLIGHT,
            seed: 1,
            is_shared: |name, own| Arc::strong_count(name) > own,
        };
        Rig {
            engine: Engine::new(config, counters.clone()),
            counters,
            now: Moment(1_000_000),
            last_request: 0,
            sent: Vec::new(),
            completed: HashMap::new(),
            lost: Vec::new(),
            ended: Vec::new(),
            events: Vec::new(),
            alarms: Vec::new(),
            subscribed: Vec::new(),
            topics: BTreeMap::new(),
            topic: Topic::default(),
            stopped: false,
        }
    }

    // ---- in ----

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &mut out);
        self.look_at(out);
        // The driver does the same.
        if self.engine.next_wake().is_some_and(|at| at <= self.now) {
            self.wake();
        }
    }

    fn request(&mut self, request: Request) -> RequestId {
        self.last_request += 1;
        let id = self.last_request;
        self.input(Input::Request { id, request });
        id
    }

    fn acquire_with(
        &mut self,
        name: &str,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
    ) -> RequestId {
        self.request(Request::Acquire {
            name: name.into(),
            key,
            wait,
            terms,
            token: None,
        })
    }

    /// Acquires without a time limit, as a new owner, with a renewed hold.
    fn acquire(&mut self, name: &str) -> RequestId {
        self.acquire_with(name, OwnerKey::Once, None, WATCHED)
    }

    fn try_acquire(&mut self, name: &str) -> RequestId {
        self.acquire_with(name, OwnerKey::Once, Some(Duration::ZERO), WATCHED)
    }

    fn release(&mut self, grant: &Grant) -> RequestId {
        self.request(Request::Release(grant.target()))
    }

    fn cancel(&mut self, id: RequestId) {
        self.input(Input::Cancel { id });
    }

    fn outcome(&mut self, sent: &Sent, outcome: CallOutcome) {
        self.input(Input::Outcome {
            call: sent.call,
            outcome,
        });
    }

    fn reply(&mut self, sent: &Sent, reply: Reply) {
        self.outcome(sent, CallOutcome::Answered(reply));
    }

    /// The server grants the acquire.
    fn grant(&mut self, sent: &Sent) {
        let (_, _, ttl) = sent.acquire();
        self.reply(sent, Reply::Acquired { ttl, token: None });
    }

    /// The server does the hand-over.
    fn pass_on(&mut self, sent: &Sent) {
        let (_, _, ttl) = sent.handover();
        self.reply(sent, Reply::Acquired { ttl, token: None });
    }

    fn busy(&mut self, sent: &Sent, ttl: Duration) {
        self.reply(sent, Reply::Busy { ttl: Some(ttl) });
    }

    /// The server confirms the renewal for all its holds.
    fn keep(&mut self, sent: &Sent) {
        self.reply(
            sent,
            Reply::Renewed(vec![RenewReply::Kept; sent.renewal().len()]),
        );
    }

    // ---- time ----

    /// Lets time pass. The engine is woken whenever it wants to be.
    fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(at) = self.engine.next_wake().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.wake();
        }
        self.now = end;
    }

    /// Lets time pass without waking the engine, like a stopped process.
    fn sleep(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    fn wake(&mut self) {
        let mut out = Vec::new();
        self.engine.wake(self.now, &mut out);
        self.look_at(out);
    }

    // ---- out ----

    fn look_at(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send {
                    call,
                    op,
                    limit,
                    inline,
                } => self.sent.push(Sent {
                    call,
                    op: (*op).clone(),
                    limit,
                    inline,
                }),
                Output::Subscribe(name, topic) => {
                    self.topic = topic;
                    assert!(!self.subscribed.contains(&name), "subscribed twice: {name}");
                    self.topics.insert(name.clone(), topic);
                    self.subscribed.push(name);
                }
                Output::Unsubscribe(name, _) => {
                    assert!(self.subscribed.contains(&name), "not subscribed: {name}");
                    self.topics.remove(&name);
                    self.subscribed.retain(|other| *other != name);
                }
                Output::Complete { id, result } => {
                    assert!(
                        self.completed.insert(id, result).is_none(),
                        "request {id} completed twice"
                    );
                }
                Output::Opened(cell) => assert_ne!(cell.key, OwnerKey::Once),
                Output::Ended(cell) => self.ended.push(cell.owner),
                Output::Lost(cell, reason) => self.lost.push((cell.owner, reason)),
                Output::Event(event) => {
                    self.events.push(event.kind);
                    if event.level != EventLevel::Debug {
                        self.alarms.push((event.kind, event.text));
                    }
                }
                Output::Stop => self.stopped = true,
            }
        }
    }

    /// All sent calls that the test has not taken yet.
    fn all_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    /// The only call that was sent.
    fn sent(&mut self) -> Sent {
        let mut sent = self.all_sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn nothing_sent(&self) {
        assert!(self.sent.is_empty(), "{:?}", self.sent);
    }

    fn pending(&self, id: RequestId) -> bool {
        !self.completed.contains_key(&id)
    }

    fn done(&mut self, id: RequestId) -> Done {
        let result = self.completed.remove(&id).expect("completed");
        result.unwrap_or_else(|error| panic!("request {id}: {error}"))
    }

    fn granted(&mut self, id: RequestId) -> Grant {
        match self.done(id) {
            Done::Granted { cell, level } => Grant { cell, level },
            other => panic!("not granted: {other:?}"),
        }
    }

    fn released(&mut self, id: RequestId) {
        assert!(matches!(self.done(id), Done::Released));
    }

    fn error(&mut self, id: RequestId) -> Error {
        let result = self.completed.remove(&id).expect("completed");
        result.expect_err("failed")
    }

    fn failed(&mut self, id: RequestId) -> ErrorKind {
        self.error(id).kind()
    }

    fn lost_by(&mut self, id: RequestId) -> LostReason {
        let error = self.error(id);
        assert_eq!(error.kind(), ErrorKind::Lost);
        error.lost_reason().expect("a reason")
    }

    fn is_held(&self, grant: &Grant) -> bool {
        grant.cell.is_held(self.now)
    }

    // ---- shortcuts ----

    /// Acquires as a new owner.
    fn hold(&mut self, name: &str) -> Grant {
        self.hold_with(name, OwnerKey::Once, WATCHED)
    }

    /// Acquires or re-enters without a competitor.
    fn hold_with(&mut self, name: &str, key: OwnerKey, terms: Terms) -> Grant {
        let id = self.acquire_with(name, key, None, terms);
        let sent = self.sent();
        self.grant(&sent);
        self.granted(id)
    }

    /// Releases a level, which must be the last one.
    fn free(&mut self, grant: &Grant) {
        let id = self.release(grant);
        let sent = self.sent();
        assert_eq!(sent.release().1, 0);
        self.reply(&sent, Reply::Released(0));
        self.released(id);
    }

    /// Asserts that the engine is empty: no queue, hold, clean-up, timer or call.
    fn nothing_left(&self) {
        let engine = &self.engine;
        assert!(engine.is_settled(), "{engine:?}");
        assert!(
            engine.names.queues.is_empty() && engine.queries.is_empty(),
            "{engine:?}"
        );
        assert!(engine.multi.is_empty(), "{engine:?}");
        assert!(
            engine.cx.calls.is_empty() && engine.cx.callers.is_empty(),
            "{engine:?}"
        );
        assert_eq!(engine.next_wake(), None, "{engine:?}");
        assert!(self.subscribed.is_empty() && self.sent.is_empty());
    }
}
