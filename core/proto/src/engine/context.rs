//! The context of every object of the engine: the data for its decisions, and the outputs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::interface::{CallId, CallOutcome, Config, Done, Inline, Output, RequestId, Terms};
use super::links::{LinkId, Links};
use super::timers::Timers;
use super::timing;
use super::timing::Jitter;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Level as EventLevel;
use crate::event::{Counters, Event};
use crate::maps::SmallMap;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Counter, Name, Op, OwnerId};

/// Why a call was sent, which says how to read its outcome.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The head of a queue tries for a first acquisition.
    Try(RequestId),
    /// The command in flight of a hold: re-entry, release or extension.
    Command(OwnerId),
    /// The call that releases a hold and gives its lock to the head of the queue.
    HandOver { from: OwnerId, to: RequestId },
    /// A renewal of these holds by these times, in the order of the request.
    Renewal {
        link: LinkId,
        asked: Vec<(OwnerId, Duration)>,
    },
    /// A clean-up release.
    Cleanup { link: LinkId, owner: OwnerId },
    /// The command in flight of a counter.
    Counter(CounterKey),
    /// A force-release or an inspection.
    Query { id: RequestId, name: Name },
}

/// A counter of a client.
pub(super) type CounterKey = (Counter, Name);

/// Something that the server has granted: after the call of `sent` the lock lives for `ttl`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) terms: Terms,
    pub(super) sent: Moment,
    pub(super) ttl: Duration,
}

/// The outcome of a call, and when that was sent.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) sent: Moment,
    pub(super) outcome: CallOutcome,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) purpose: Purpose,
    pub(super) sent: Moment,
}

impl Call {
    /// Whether this waiter tries by it.
    pub(super) fn is_try_of(&self, waiter: RequestId) -> bool {
        matches!(self.purpose, Purpose::Try(of) if of == waiter)
    }
}

/// Marks a request that the engine makes to itself, for a part of a multi lock.
pub(super) const IS_PART: RequestId = 1 << 63;

/// The time, the outputs, the calls in flight, the timers and the links.
///
/// A method of a hold, a waiter or a clean-up that has to send or to answer takes this, and not the
/// whole engine.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: Config,
    pub(super) counters: Arc<Counters>,
    /// Whether anybody listens to debug events, which come with every acquisition.
    pub(super) listened: bool,
    pub(super) jitter: Jitter,
    /// The moment of the current input.
    pub(super) now: Moment,
    /// The outputs of the current input so far.
    pub(super) out: Vec<Output>,
    /// The current input is an answer from a connection without client tracking, so the server does
    /// not report later changes of the key.
    pub(super) unseen: bool,
    last_id: u64,
    /// Owners have a counter of their own. Consecutive owners lie together in `holds`, so looking
    /// them up stays fast.
    pub(super) last_owner: OwnerId,
    /// Owners before this one were drawn before the last connection was made.
    pub(super) first_owner: OwnerId,
    pub(super) links: Links,
    pub(super) calls: SmallMap<CallId, Call>,
    /// The caller that the calls of this input were offered to, and how many.
    pub(super) offered: Option<(RequestId, usize)>,
    /// The answers about parts of multi locks.
    pub(super) parts: VecDeque<(RequestId, Result<Done>)>,
    /// The hold on which a request waits that re-enters, releases or extends it.
    pub(super) callers: SmallMap<RequestId, OwnerId>,
    pub(super) timers: Timers,
}

impl Context {
    pub(super) fn new(config: Config, counters: Arc<Counters>) -> Self {
        Context {
            jitter: Jitter::new(config.seed),
            config,
            counters,
            listened: true,
            now: Moment::default(),
            out: Vec::new(),
            unseen: false,
            last_id: 0,
            last_owner: 0,
            first_owner: 0,
            links: Links::default(),
            calls: SmallMap::default(),
            offered: None,
            parts: VecDeque::new(),
            callers: SmallMap::default(),
            timers: Timers::default(),
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn next_owner(&mut self) -> OwnerId {
        self.last_owner = self.last_owner.wrapping_add(1);
        self.last_owner
    }

    /// When a waiter looks again: after `recheck`, or where what it waits for `ends`. In a crowd it looks
    /// later, for each one `ahead` of it, and soon enough to keep the places there.
    pub(super) fn next_look(
        &mut self,
        recheck: Duration,
        ends: Option<Duration>,
        ahead: Option<u32>,
    ) -> Moment {
        let recheck = self.jitter.spread(recheck);
        let pause = ends.map_or(recheck, |ends| recheck.min(ends));
        let end = self.now.after(pause);
        let Some(ahead) = ahead else { return end };
        let end = end.after(self.jitter.in_crowd(ahead));
        end.min(self.now.after(tuning::CROWD_KEPT / 2))
    }

    /// Whether an owner was drawn before the last connection was made. A copy of this process may
    /// have the same one.
    pub(super) fn is_outdated(&self, owner: OwnerId) -> bool {
        owner.wrapping_sub(self.first_owner) > self.last_owner.wrapping_sub(self.first_owner)
    }

    /// How long one copy of a request may stay unanswered.
    pub(super) fn limit(&self, lease: Duration) -> Duration {
        timing::limit(lease, self.config.least_limit)
    }

    /// How long one copy of an acquisition may stay unanswered. If replicas have to acknowledge it, they
    /// get as much time as the server.
    pub(super) fn limit_with(&self, replicas: u32, lease: Duration) -> Duration {
        if replicas == 0 {
            self.limit(lease)
        } else {
            self.limit(lease) * 2
        }
    }

    /// Whether no call is in flight but those that this caller was offered just now.
    pub(super) fn is_free_for(&self, of: RequestId) -> bool {
        match self.offered {
            Some((to, calls)) => to == of && calls == self.calls.len(),
            None => self.calls.is_empty(),
        }
    }

    /// Sends a call. `inline`: a caller may make it itself.
    pub(super) fn send(
        &mut self,
        purpose: Purpose,
        op: Arc<Op>,
        limit: Duration,
        inline: Option<Inline>,
    ) -> CallId {
        let call = self.next_id();
        self.counters.calls.add(1);
        let sent = self.now;
        self.calls.insert(call, Call { purpose, sent });
        if let Some(Inline { of, .. }) = inline {
            let before = self.offered.map_or(0, |(_, calls)| calls);
            self.offered = Some((of, before + 1));
        }
        self.out.push(Output::Send {
            call,
            op,
            limit,
            inline,
        });
        call
    }

    pub(super) fn complete(&mut self, id: RequestId, done: Done) {
        self.callers.remove(&id);
        self.give(id, Ok(done));
    }

    pub(super) fn fail(&mut self, id: RequestId, error: Error) {
        self.callers.remove(&id);
        match error.kind() {
            _ if id & IS_PART != 0 => {}
            ErrorKind::Timeout => self.counters.timeouts.add(1),
            ErrorKind::Cancelled => self.counters.cancelled.add(1),
            _ => {}
        }
        self.give(id, Err(error));
    }

    fn give(&mut self, id: RequestId, result: Result<Done>) {
        if id & IS_PART == 0 {
            self.out.push(Output::Complete { id, result });
        } else {
            self.parts.push_back((id, result));
        }
    }

    /// Answers a caller, if there is one.
    pub(super) fn answer(&mut self, request: Option<RequestId>, result: Result<Done>) {
        match (request, result) {
            (Some(id), Ok(done)) => self.complete(id, done),
            (Some(id), Err(error)) => self.fail(id, error),
            (None, _) => {}
        }
    }

    /// A debug event about a single lock. Its text is made only if somebody listens.
    pub(super) fn trace(&mut self, kind: &'static str, lock: &Name, text: impl FnOnce() -> String) {
        if self.listened {
            self.event(kind, EventLevel::Debug, lock, text());
        }
    }

    pub(super) fn event(
        &mut self,
        kind: &'static str,
        level: EventLevel,
        lock: &Name,
        text: impl Into<String>,
    ) {
        self.out.push(Output::Event(Event {
            kind,
            level,
            lock: Some(lock.clone()),
            text: text.into(),
        }));
    }

    /// An event about a server or the client.
    pub(super) fn link_event(&mut self, kind: &'static str, level: EventLevel, text: String) {
        self.out.push(Output::Event(Event {
            kind,
            level,
            lock: None,
            text,
        }));
    }
}
