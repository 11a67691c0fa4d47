//! First acquisitions. Each name has a queue, first come, first served. Only its head talks to
//! Redis.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::slice;
use std::time::Duration;

use super::cleanup::Cleanups;
use super::fairness::{Channel, Turn};
use super::handover::Run;
use super::holds::{Hold, Phase};
use super::lazy_box::Idle;
use super::links::Which;
use super::queries::foreign;
use super::slab::Slab;
use super::timers::Timer;
use super::timing;
use super::{CallOutcome, Engine, Lease, Purpose, RequestId, Terms};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::key::OwnerKey;
use crate::maps::Map;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Kind, Layout, Name, Op, OwnerId, Reply};

/// A name that a caller of this client holds or waits for. There may be a million names. Most are
/// held once and have no waiters, so they store the owner only.
#[derive(Debug, Default)]
pub(super) enum WaitQueue {
    #[default]
    Idle,
    Held(OwnerId),
    Other(Box<Other>),
}

/// The full state of a name, for everything but a single hold.
#[derive(Debug, Default)]
pub(super) struct Other {
    /// Holds that are not unwound yet.
    holds: Owners,
    waiting: Waiting,
}

impl WaitQueue {
    /// Holds that are not unwound yet.
    pub(super) fn holds(&self) -> &[OwnerId] {
        match self {
            WaitQueue::Idle => &[],
            WaitQueue::Held(owner) => slice::from_ref(owner),
            WaitQueue::Other(other) => &other.holds,
        }
    }

    pub(super) fn add_hold(&mut self, owner: OwnerId) {
        match self {
            WaitQueue::Idle => *self = WaitQueue::Held(owner),
            WaitQueue::Held(_) | WaitQueue::Other(_) => self.other().holds.push(owner),
        }
    }

    pub(super) fn remove_hold(&mut self, owner: OwnerId) {
        match self {
            WaitQueue::Held(only) if *only == owner => *self = WaitQueue::Idle,
            WaitQueue::Other(other) => other.holds.remove(owner),
            WaitQueue::Idle | WaitQueue::Held(_) => {}
        }
    }

    /// Removes a waiter from the queue.
    fn take_out(&mut self, waiter: RequestId) {
        if self.waiters.is_empty() {
            return;
        }
        let waiting: &mut Waiting = self;
        if waiting.waiters.front() == Some(&waiter) {
            waiting.attempt = Attempt::Idle;
            waiting.waiters.pop_front();
        } else {
            waiting.waiters.retain(|other| *other != waiter);
        }
    }

    /// Makes room for the full state.
    fn other(&mut self) -> &mut Other {
        self.other_in(&mut BoxPool::default())
    }

    /// Like `other`, but takes a box from the pool if there is one.
    fn other_in(&mut self, rooms: &mut BoxPool) -> &mut Other {
        let holds = match self {
            WaitQueue::Other(other) => return other,
            WaitQueue::Held(owner) => Owners::One(*owner),
            WaitQueue::Idle => Owners::None,
        };
        let mut other = rooms.0.pop().unwrap_or_default();
        other.holds = holds;
        *self = WaitQueue::Other(other);
        self.other_in(rooms)
    }

    /// Forgets the state of waiters when nobody waits any more.
    pub(super) fn rest(&mut self, rooms: &mut BoxPool) {
        let WaitQueue::Other(other) = self else {
            return;
        };
        other.waiting.attempt = Attempt::Idle;
        other.waiting.refused = None;
        self.tidy(rooms);
    }

    /// Whether nobody needs the name any more.
    pub(super) fn is_unused(&self) -> bool {
        self.holds().is_empty() && self.waiters.is_empty() && !self.channel.wanted
    }

    /// Returns the box to the pool if the name does not need its full state.
    fn tidy(&mut self, rooms: &mut BoxPool) {
        let WaitQueue::Other(other) = self else {
            return;
        };
        let plain = match other.holds {
            Owners::None => WaitQueue::Idle,
            Owners::One(owner) => WaitQueue::Held(owner),
            Owners::Many(_) => return,
        };
        if other.waiting.is_idle()
            && let WaitQueue::Other(room) = std::mem::replace(self, plain)
        {
            rooms.keep(room);
        }
    }
}

/// Spare boxes for the full state of names. Every acquisition needs one until it is answered.
#[derive(Debug, Default)]
pub(super) struct BoxPool(
    // The boxes move between the pool and the names as they are.
    #[allow(clippy::vec_box)] Vec<Box<Other>>,
);

impl BoxPool {
    /// Keeps the box of a name that does not need its full state any more.
    fn keep(&mut self, room: Box<Other>) {
        if self.0.len() < tuning::POOLED_QUEUES
            && room.waiting.waiters.capacity() <= tuning::POOLED_QUEUE_ROOM
        {
            self.0.push(room);
        }
    }
}

impl Deref for WaitQueue {
    type Target = Waiting;

    fn deref(&self) -> &Waiting {
        match self {
            WaitQueue::Idle | WaitQueue::Held(_) => Waiting::IDLE,
            WaitQueue::Other(other) => &other.waiting,
        }
    }
}

impl DerefMut for WaitQueue {
    fn deref_mut(&mut self) -> &mut Waiting {
        &mut self.other().waiting
    }
}

/// The owners of a name's holds, mostly one.
#[derive(Debug, Default, Clone)]
pub(super) enum Owners {
    #[default]
    None,
    One(OwnerId),
    // Boxed: several owners are rare, and an inline vector would enlarge every name.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<OwnerId>>),
}

impl Owners {
    pub(super) fn push(&mut self, owner: OwnerId) {
        match self {
            Owners::None => *self = Owners::One(owner),
            Owners::One(first) => *self = Owners::Many(Box::new(vec![*first, owner])),
            Owners::Many(all) => all.push(owner),
        }
    }

    pub(super) fn remove(&mut self, owner: OwnerId) {
        match self {
            Owners::One(only) if *only == owner => *self = Owners::None,
            Owners::Many(all) => all.retain(|other| *other != owner),
            Owners::None | Owners::One(_) => {}
        }
    }
}

impl Deref for Owners {
    type Target = [OwnerId];

    fn deref(&self) -> &[OwnerId] {
        match self {
            Owners::None => &[],
            Owners::One(owner) => slice::from_ref(owner),
            Owners::Many(all) => all,
        }
    }
}

/// The waiters of a name, and what is known of other owners that want it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Waiting {
    /// Callers without a hold, in their order.
    pub(super) waiters: VecDeque<RequestId>,
    pub(super) attempt: Attempt,
    /// The streak of local hand-overs.
    pub(super) run: Run,
    pub(super) channel: Channel,
    pub(super) turn: Turn,
    /// When the last try was planned that an invalidation caused.
    hinted: Option<Moment>,
    /// How many tries in vain were caused by invalidations, less the other tries in vain.
    hints: u8,
    /// When somebody else was last known to have the lock, as far as that concerns the present
    /// waiters.
    refused: Option<Moment>,
}

impl Waiting {
    /// Notes that somebody has the lock now, which is why these callers wait.
    pub(super) fn note_refusal(&mut self, now: Moment) {
        if !self.waiters.is_empty() {
            self.refused = Some(now);
        }
    }
}

impl Idle for Waiting {
    const IDLE: &'static Waiting = &Waiting {
        waiters: VecDeque::new(),
        attempt: Attempt::Idle,
        run: Run::NONE,
        channel: Channel::NONE,
        turn: Turn::NONE,
        hinted: None,
        hints: 0,
        refused: None,
    };

    fn is_idle(&self) -> bool {
        self == Self::IDLE
    }
}

/// The state of the head of the queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Nothing: a hold of this client blocks it, or there is no connection.
    #[default]
    Idle,
    /// Its call is in flight. `again`: a wake-up came since it was sent.
    InFlight { again: bool },
    /// Parked until a wake-up or its timer.
    Parked,
}

/// A caller that waits for its first level.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    pub(super) key: OwnerKey,
    /// Drawn for this acquisition only, and retired if the acquisition fails.
    pub(super) owner: OwnerId,
    pub(super) terms: Terms,
    pub(super) form: Form,
    wait: Option<Duration>,
    /// When the wait ends.
    deadline: Option<Moment>,
    /// When the parked head tries again by itself.
    retry: Option<Moment>,
    /// Transient errors in a row.
    failures: u32,
    /// The last transient error.
    error: Option<Error>,
    /// Whether the last copy arrived after its not-after by the server's clock.
    stale: bool,
    /// The not-after of the last copy that got no answer.
    pub(super) unsettled: Option<Moment>,
    /// Whether it has a timer. Most waiters never have one.
    timed: bool,
    /// Whether the call in flight is a hand-over from the previous hold.
    pub(super) handed: bool,
    /// Whether the caller has its answer. The waiter then stays only for the outcome of its call in
    /// flight.
    pub(super) answered: bool,
    pub(super) announced: bool,
}

impl Waiter {
    /// Whether it tries once and does not wait.
    pub(super) fn once(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Whether its wait has ended.
    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|end| end <= now)
    }

    pub(super) fn lease(&self) -> Duration {
        self.terms.first_lease()
    }

    /// How long one copy of its request may stay unanswered.
    pub(super) fn limit(&self) -> Duration {
        timing::limit_with(self.terms.replicas.into(), self.lease())
    }

    /// Until when it leaves the lock to other clients. A caller whose wait ends before that tries
    /// at once.
    fn waits_for_turn(&self, queue: &WaitQueue, now: Moment) -> Option<Moment> {
        let end = queue.turn.of_others(now)?;
        let patient = !self.once() && self.deadline.is_none_or(|last| last > end);
        patient.then_some(end)
    }

    /// The operation that its next try sends.
    fn next_try(&mut self) -> Op {
        self.retry = None;
        self.handed = false;
        // The deadline of a try was for the wait before its call.
        if self.once() {
            self.deadline = None;
        }
        Op::Acquire {
            name: self.name.clone(),
            owner: self.owner,
            form: self.form.clone(),
            count: self.count(),
            lease: self.lease(),
            fencing: self.terms.fencing,
            replicas: self.terms.replicas.into(),
        }
    }

    /// The hold count to ask for. Other clients may use the same token as this caller. So a token
    /// in Redis counts as ours only after a copy without an answer. Before that, the count 0 makes
    /// the server treat the lock as held by another owner.
    fn count(&self) -> u32 {
        u32::from(self.form.token.is_none() || self.unsettled.is_some())
    }
}

impl Terms {
    /// The lease that the first acquisition asks for.
    pub(super) fn first_lease(&self) -> Duration {
        let lease = self.lease.duration();
        self.max_hold.map_or(lease, |most| lease.min(most))
    }
}

impl Lease {
    pub(super) fn duration(self) -> Duration {
        match self {
            Lease::Watchdog(lease) | Lease::Fixed(lease) | Lease::Adaptive(lease) => lease,
        }
    }

    /// The lease that was granted if the lock lives for `ttl` now, and the time that is certain.
    /// The script of an adaptive lock chooses the lease itself, in whole seconds.
    pub(super) fn granted(self, ttl: Duration) -> (Lease, Duration) {
        match self {
            Lease::Adaptive(_) => {
                let seconds = u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
                (Lease::Adaptive(Duration::from_secs(seconds)), ttl)
            }
            Lease::Watchdog(lease) | Lease::Fixed(lease) => (self, lease),
        }
    }
}

/// The names that callers of this client hold or wait for, and those callers.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) queues: Map<Name, WaitQueue>,
    pub(super) rooms: BoxPool,
    // Ordered, so that the same inputs give the same outputs.
    pub(super) waiters: BTreeMap<RequestId, Waiter>,
    /// Names without waiters whose channels are still subscribed, and when to check them.
    pub(super) idle_channels: BTreeSet<(Moment, Name)>,
    /// How many channels are wanted.
    pub(super) channels: usize,
}

impl Engine {
    pub(super) fn acquire(
        &mut self,
        id: RequestId,
        name: Name,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
        form: Form,
    ) {
        let enters = |hold: &Hold| match key {
            OwnerKey::Hold(_) => true,
            _ => terms.reentrant && hold.cell.form() == form,
        };
        let mine = self
            .hold_of(&name, key)
            .filter(|owner| !self.forget_run_out(*owner, key));
        if let Some(owner) = mine.filter(|owner| self.holds.get(owner).is_some_and(enters)) {
            return self.enter(id, owner, key, wait, terms);
        }
        if let Some(lost) = mine
            .filter(|_| terms.tied)
            .and_then(|owner| self.lost_to_release(owner))
        {
            // A release by key must never have two holds to choose from. It could free the lock
            // that another caller relies on.
            return self.cx.fail(id, Error::lost_before(&name, lost));
        }
        if wait != Some(Duration::ZERO)
            && mine.is_some_and(|owner| self.never_ends_by_itself(owner))
        {
            let text = "a caller waits for a lock that its own thread, task or key holds: if nobody else releases it, the \
                        wait never ends; release it first, or let the lock be entered again (option reentrant)";
            self.cx.event("self_wait", EventLevel::Warn, &name, text);
        }
        if let OwnerKey::Hold(_) = key {
            return self.cx.fail(
                id,
                Error::new(
                    ErrorKind::NotOwner,
                    "the hold to re-enter has ended; acquire anew",
                )
                .on(&name),
            );
        }
        if wait == Some(Duration::ZERO) {
            if let Some(down) = self.cx.links.error(&name) {
                return self.cx.fail(id, down.on(&name));
            }
            if self.is_taken_here(&name, form.kind) {
                let error = self
                    .unheard_before(&name, form.kind)
                    .unwrap_or_else(|| timeout(&name, wait));
                return self.cx.fail(id, error.on(&name));
            }
        }
        let owner = self.cx.next_owner();
        let queue = self.names.queues.entry(name.clone()).or_default();
        let first = queue.holds().is_empty() && queue.waiters.is_empty();
        let waiting = &mut queue.other_in(&mut self.names.rooms).waiting;
        waiting.waiters.push_back(id);
        waiting.channel.is_used();
        let waiter = Waiter {
            owner,
            key,
            terms,
            form,
            wait,
            // A try has no deadline, unless it waits for its token: it ends with the first answer
            // or at the response limit.
            deadline: wait
                .filter(|wait| !wait.is_zero())
                .map(|wait| self.cx.now.after(wait)),
            retry: None,
            failures: 0,
            error: None,
            stale: false,
            unsettled: None,
            timed: false,
            handed: false,
            answered: false,
            announced: false,
            name: name.clone(),
        };
        self.names.waiters.insert(id, waiter);
        self.arm_waiter(id);
        if !first {
            self.note_holder(&name);
        }
        self.advance(&name);
    }

    /// Why this hold was lost, if its key still has to release it. A lock with a caller's token is
    /// excluded: another program may release it.
    fn lost_to_release(&self, owner: OwnerId) -> Option<LostReason> {
        let hold = self.holds.get(&owner)?;
        hold.lost().filter(|_| !hold.cell.has_value())
    }

    /// Whether only a release ends this hold, because the watchdog renews it.
    fn never_ends_by_itself(&self, owner: OwnerId) -> bool {
        self.holds
            .get(&owner)
            .is_some_and(|hold| hold.levels.iter().any(|level| level.watched().is_some()))
    }

    /// Notes for the present waiters that somebody has the lock, if that is known.
    fn note_holder(&mut self, name: &Name) {
        if self.is_had(name)
            && let Some(queue) = self.names.queues.get_mut(name)
        {
            queue.note_refusal(self.cx.now);
        }
    }

    /// Whether a hold of this client blocks the queue, or the head is parked because the server
    /// refused it.
    fn is_had(&self, name: &Name) -> bool {
        let head = |queue: &WaitQueue| {
            queue
                .waiters
                .front()
                .and_then(|id| self.names.waiters.get(id))
        };
        self.names.queues.get(name).is_some_and(|queue| {
            head(queue).is_some_and(|head| {
                let refused = head.announced && head.failures == 0 && head.unsettled.is_none();
                (queue.attempt == Attempt::Parked && refused)
                    || is_blocked(&self.holds, queue, head.form.kind, false)
            })
        })
    }

    /// Whether a caller of this client holds the name or waits for it. A try never barges past
    /// those.
    fn is_taken_here(&self, name: &Name, kind: Kind) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        // A waiter that has its answer only keeps its place until its call is settled.
        let waits = |id: &RequestId| {
            self.names
                .waiters
                .get(id)
                .is_some_and(|waiter| !waiter.answered)
        };
        queue.waiters.iter().any(waits) || is_blocked(&self.holds, queue, kind, true)
    }

    /// The server error that currently blocks the head of the queue, if any. A try behind it must
    /// report this error, because the lock may be free.
    fn unheard_before(&self, name: &Name, kind: Kind) -> Option<Error> {
        let queue = self
            .names
            .queues
            .get(name)
            .filter(|queue| !is_blocked(&self.holds, queue, kind, true))?;
        let head = self.names.waiters.get(queue.waiters.front()?)?;
        let is_busy = is_token_busy(&self.holds, &self.cleanups, (name, queue), &head.form);
        head.error
            .clone()
            .or_else(|| (is_busy || head.unsettled.is_some()).then(unanswered))
    }

    /// Lets the head of a queue do what it can. Drops a queue that nobody needs.
    pub(super) fn advance(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        let Some(&id) = queue.waiters.front() else {
            queue.rest(&mut self.names.rooms);
            if queue.channel.wanted {
                self.leave_channel(name);
            } else if queue.is_unused() {
                self.names.queues.remove(name);
            }
            return;
        };
        let Some(head) = self.names.waiters.get(&id) else {
            return;
        };
        let free = queue.attempt == Attempt::Idle
            && !is_blocked(&self.holds, queue, head.form.kind, head.once())
            && self.closing.is_none()
            && self.cx.links.is_up(name);
        if !free {
            return;
        }
        if is_token_busy(&self.holds, &self.cleanups, (name, queue), &head.form) {
            return self.wait_for_token(id);
        }
        if let Some(end) = head.waits_for_turn(queue, self.cx.now) {
            return self.park(id, end);
        }
        queue.attempt = Attempt::InFlight { again: false };
        self.renew_owner(id);
        let Some(head) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let (op, limit) = (head.next_try(), head.limit());
        self.send(Purpose::Try(id), op, limit);
        self.arm_waiter(id);
    }

    /// The head waits until the earlier attempt with its token is over. A try waits for that as
    /// long as for a call.
    #[cold]
    fn wait_for_token(&mut self, id: RequestId) {
        let now = self.cx.now;
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() && waiter.deadline.is_none() {
            waiter.deadline = Some(now.after(waiter.limit()));
            self.arm_waiter(id);
        }
    }

    /// Whether a hold on this name, or the head's call in flight, has this token.
    pub(super) fn is_token_used(&self, name: &Name, token: &str) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        let holds = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Held && hold.cell.has_token(token))
        };
        let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
        let head = queue.waiters.front().filter(|_| in_flight);
        let tries = |id: &RequestId| {
            let of_head = self
                .names
                .waiters
                .get(id)
                .and_then(|head| head.form.token.as_deref());
            of_head == Some(token)
        };
        queue.holds().iter().any(holds) || head.is_some_and(tries)
    }

    /// Gives a waiter an owner of the last connection. If a copy for the previous owner got no
    /// answer, that owner is cleaned up. A token that the caller chose stays.
    pub(super) fn renew_owner(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if !self.cx.is_outdated(waiter.owner) || waiter.form.token.is_some() {
            return;
        }
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut waiter.owner, next);
        if let Some(expired) = waiter.unsettled.take() {
            let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
            self.clean_up(&name, before, &form, lease, Some(expired));
        }
    }

    /// Sets what the head does. Returns what it did before.
    pub(super) fn set_attempt(&mut self, name: &Name, attempt: Attempt) -> Attempt {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return Attempt::Idle;
        };
        let before = queue.attempt;
        // Writing allocates the full state, which a name without waiters does not need.
        if before != attempt {
            queue.attempt = attempt;
        }
        before
    }

    pub(super) fn arm_waiter(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let deadline = waiter.deadline.filter(|_| !waiter.answered);
        let due = deadline.into_iter().chain(waiter.retry).min();
        let timed = std::mem::replace(&mut waiter.timed, due.is_some());
        match due {
            Some(at) => self.cx.timers.arm(Timer::Waiter(id), at),
            None if timed => self.cx.timers.disarm(Timer::Waiter(id)),
            None => {}
        }
    }

    /// The timer of a waiter: its wait is over, or its retry is due.
    pub(super) fn waiter_due(&mut self, id: RequestId) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let name = waiter.name.clone();
        if !waiter.answered && waiter.is_over(self.cx.now) {
            let error = self.late_waiter(id).on(&name);
            return self.give_up(id, error);
        }
        if waiter.retry.is_some_and(|at| at <= self.cx.now) {
            waiter.retry = None;
            self.set_attempt(&name, Attempt::Idle);
            self.advance(&name);
        }
        self.arm_waiter(id);
    }

    /// Why the wait of this caller was not enough. The error is a timeout if anything in that time
    /// showed that somebody has the lock. If the server was unreachable or silent, the lock may be
    /// free. A program that skips its work on a timeout must not mistake that for another worker.
    fn late_waiter(&self, id: RequestId) -> Error {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return unheard(None);
        };
        if let Some(down) = self.cx.links.error(&waiter.name) {
            return down;
        }
        let queue = self.names.queues.get(&waiter.name);
        let refused = queue.and_then(|queue| queue.refused);
        let began = waiter
            .deadline
            .zip(waiter.wait)
            .map(|(end, wait)| end.before(wait));
        let is_refused = refused.is_some_and(|at| Some(at) >= began);
        // An earlier attempt with the head's token may have the lock, or nobody.
        let head = queue.and_then(|queue| self.names.waiters.get(queue.waiters.front()?));
        let is_busy = queue.zip(head).is_some_and(|(queue, head)| {
            is_token_busy(
                &self.holds,
                &self.cleanups,
                (&waiter.name, queue),
                &head.form,
            )
        });
        if !is_refused && is_busy {
            return match head {
                Some(head) if head.form.token == waiter.form.token => token_busy(),
                _ => unheard(waiter.wait),
            };
        }
        if is_refused || self.is_had(&waiter.name) {
            return timeout(&waiter.name, waiter.wait);
        }
        // A connection or an answer that is not late yet says nothing about the server.
        let late = |head: &Waiter| {
            head.unsettled.is_some() || waiter.wait.is_some_and(|wait| wait >= head.limit())
        };
        if let Some(error) = head.and_then(|head| head.error.clone()) {
            return error;
        }
        match head {
            Some(head) if !late(head) => timeout(&waiter.name, waiter.wait),
            _ if !self.cx.links.is_up(&waiter.name) => unconnected(waiter.wait),
            _ => unheard(waiter.wait),
        }
    }

    /// Answers a waiter with an error. If its call is in flight, the waiter keeps its place at the
    /// head until the outcome is known.
    pub(super) fn give_up(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.answered {
            return;
        }
        waiter.answered = true;
        let name = waiter.name.clone();
        self.cx.fail(id, error);
        let queue = self.names.queues.get(&name);
        let on_the_way = queue.is_some_and(|queue| {
            queue.waiters.front() == Some(&id) && matches!(queue.attempt, Attempt::InFlight { .. })
        });
        if on_the_way {
            self.arm_waiter(id);
        } else {
            self.remove_waiter(id, false);
        }
    }

    /// Takes a waiter out of its queue and lets the next one on. Cleans up what the waiter may have
    /// acquired if a copy got no answer, or if `clean` is set.
    pub(super) fn remove_waiter(&mut self, id: RequestId, clean: bool) {
        let Some(waiter) = self.take_waiter(id) else {
            return;
        };
        if clean || waiter.unsettled.is_some() {
            self.clean_up(
                &waiter.name,
                waiter.owner,
                &waiter.form,
                waiter.lease(),
                waiter.unsettled,
            );
        }
        self.advance(&waiter.name);
    }

    /// The outcome of the head's call.
    pub(super) fn tried(&mut self, id: RequestId, sent: Moment, outcome: CallOutcome) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
        let was_stale = std::mem::replace(&mut waiter.stale, is_stale);
        if let (CallOutcome::Answered(Reply::Acquired { ttl, token }), false) =
            (&outcome, waiter.answered)
        {
            return self.won(id, sent, (*ttl, *token));
        }
        let (name, answered, wanted) = (
            waiter.name.clone(),
            waiter.answered,
            waiter.terms.replicas.into(),
        );
        let before = self.set_attempt(&name, Attempt::Idle);
        let again = before == Attempt::InFlight { again: true };
        match outcome {
            CallOutcome::Unanswered => self.unanswered_try(id, sent),
            outcome if answered => self.end_try(id, outcome),
            CallOutcome::Answered(Reply::Busy { ttl }) => self.busy(id, &name, ttl, again),
            // The server has seen the call and did nothing. The driver has learnt the server's
            // clock from the reply, so a stale call can be repeated at once. Two stale replies in a
            // row mean that this does not help.
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.refused_for_now(id, clocks_differ())
            }
            CallOutcome::Answered(Reply::Stale) => self.advance(&name),
            CallOutcome::Refused {
                error,
                passing: true,
            } => self.refused_for_now(id, error),
            CallOutcome::NotSent => self.not_sent(id),
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let error = not_replicated(wanted, got);
                self.end_waiter(id, error, true);
            }
            outcome => self.end_try(id, outcome),
        }
    }

    /// The last outcome for a waiter whose caller has its answer, or gets an error now.
    fn end_try(&mut self, id: RequestId, outcome: CallOutcome) {
        let (error, clean) = match outcome {
            CallOutcome::Answered(Reply::Foreign(what)) => (foreign(&what), false),
            CallOutcome::Refused { error, passing } => {
                // A script that was stopped halfway may have left our field behind.
                let halfway = !matches!(error.kind(), ErrorKind::ForeignKind | ErrorKind::Auth);
                (error, halfway && !passing)
            }
            outcome => {
                let text = format!("unexpected outcome of an acquire: {outcome:?}");
                let nothing_done = matches!(
                    outcome,
                    CallOutcome::NotSent | CallOutcome::Answered(Reply::Busy { .. } | Reply::Stale)
                );
                (Error::new(ErrorKind::Internal, text), !nothing_done)
            }
        };
        self.end_waiter(id, error, clean);
    }

    /// Answers a waiter that has no answer yet, and takes it out.
    fn end_waiter(&mut self, id: RequestId, error: Error, clean: bool) {
        if let Some(waiter) = self
            .names
            .waiters
            .get_mut(&id)
            .filter(|waiter| !waiter.answered)
        {
            waiter.answered = true;
            let error = error.on(&waiter.name);
            self.cx.fail(id, error);
        }
        self.remove_waiter(id, clean);
    }

    /// It is unknown whether the call ran. It cannot run after its not-after, so the next copy
    /// starts then. At most one copy is alive at any time.
    fn unanswered_try(&mut self, id: RequestId, sent: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let expires = timing::copy_expires(sent, waiter.limit());
        waiter.unsettled = Some(expires);
        if waiter.answered {
            return self.remove_waiter(id, false);
        }
        if waiter.once() {
            let error = self.cx.links.error(&waiter.name).unwrap_or_else(unanswered);
            return self.end_waiter(id, error, true);
        }
        self.park(id, expires.max(self.cx.now));
    }

    /// The call was not sent. Without a link, `link_up` lets the head try again.
    fn not_sent(&mut self, id: RequestId) {
        if self
            .names
            .waiters
            .get(&id)
            .is_some_and(|waiter| self.cx.links.is_up(&waiter.name))
        {
            self.refused_for_now(id, not_sent());
        }
    }

    fn refused_for_now(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            return self.end_waiter(id, error, false);
        }
        waiter.failures += 1;
        waiter.error = Some(error);
        let pause = self.cx.jitter.backoff(waiter.failures);
        self.park(id, self.cx.now.after(pause));
    }

    /// Parks the head until `at` or a wake-up.
    fn park(&mut self, id: RequestId, at: Moment) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        waiter.retry = Some(at);
        let name = waiter.name.clone();
        self.set_attempt(&name, Attempt::Parked);
        self.arm_waiter(id);
    }

    /// Another owner holds the lock, for `ttl` unless it renews.
    fn busy(&mut self, id: RequestId, name: &Name, ttl: Option<Duration>, again: bool) {
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        waiter.error = None;
        waiter.unsettled = None;
        if waiter.once() {
            return self.try_refused(id, name, first);
        }
        let announced = std::mem::replace(&mut waiter.announced, true);
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.note_refusal(self.cx.now);
            queue.turn.refused(self.cx.now);
            queue.hints = queue.hints.saturating_sub(1);
        }
        if !announced {
            self.cx
                .trace("waiting", name, || "held elsewhere; waiting".to_owned());
        }
        // The confirmation of the subscription causes the next try, which closes the gap between
        // this reply and the subscription. The timer below covers a channel that is never
        // confirmed.
        if !self.want_channel(name) && again {
            return self.advance(name);
        }
        let recheck = self.cx.jitter.spread(self.cx.config.recheck);
        let pause = ttl.map_or(recheck, |ttl| recheck.min(ttl + tuning::EXPIRY_SLACK));
        let end = self.cx.now.after(pause);
        self.park(
            id,
            if self.cx.unseen {
                end.min(timing::look(self.cx.now))
            } else {
                end
            },
        );
    }

    /// Whether this client is releasing this lock.
    fn is_being_left(&self, name: &Name) -> bool {
        let leaves = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Releasing)
        };
        self.names
            .queues
            .get(name)
            .is_some_and(|queue| queue.holds().iter().any(leaves))
            || self.cleanups.iter().any(|cleanup| cleanup.name == *name)
    }

    /// A try found the lock held. The holder may be this client: if the server does not know the
    /// script of a release, the release is sent again, and the `first` try that was sent behind it
    /// overtakes it. A second try certainly comes after the release.
    fn try_refused(&mut self, id: RequestId, name: &Name, first: bool) {
        let leaving = first && self.is_being_left(name);
        match self.names.waiters.get_mut(&id).filter(|_| leaving) {
            Some(waiter) => {
                waiter.failures = 1;
                self.advance(name);
            }
            None => self.end_waiter(id, timeout(name, Some(Duration::ZERO)), false),
        }
    }

    /// The head has acquired the lock. It becomes a hold.
    fn won(&mut self, id: RequestId, sent: Moment, (ttl, token): (Duration, Option<u64>)) {
        let Some(waiter) = self.names.waiters.get(&id) else {
            return;
        };
        if sent.after(timing::trusted(waiter.lease().min(ttl))) <= self.cx.now {
            return self.won_too_late(id);
        }
        let Some(waiter) = self.remove_timed(id) else {
            return;
        };
        let Some(queue) = self.names.queues.get_mut(&waiter.name) else {
            return;
        };
        queue.take_out(id);
        queue.add_hold(waiter.owner);
        let waiting: &mut Waiting = queue;
        waiting.run = if waiter.handed {
            waiting.run.one_more(sent)
        } else {
            Run::default()
        };
        if !waiting.waiters.is_empty() {
            waiting.run.hear(sent);
        }
        waiting
            .turn
            .taken(self.cx.now, waiter.announced, self.cx.config.handovers.1);
        waiting.note_refusal(self.cx.now);
        if waiting.waiters.is_empty() && !waiting.channel.wanted {
            // The common case: nobody else waits, so there is no waiter to look for.
            queue.rest(&mut self.names.rooms);
            return self.open_hold(id, waiter, sent, ttl, token);
        }
        let (name, key, owner, form) = (
            waiter.name.clone(),
            waiter.key,
            waiter.owner,
            waiter.form.clone(),
        );
        self.open_hold(id, waiter, sent, ttl, token);
        self.adopt_waiters(&name, key, owner, &form);
        self.advance(&name);
    }

    /// Takes a waiter out of its queue.
    pub(super) fn take_waiter(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.remove_timed(id)?;
        if let Some(queue) = self.names.queues.get_mut(&waiter.name) {
            queue.take_out(id);
        }
        Some(waiter)
    }

    /// Removes a waiter and its timer, but leaves its place in the queue.
    fn remove_timed(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.names.waiters.remove(&id)?;
        if waiter.timed {
            self.cx.timers.disarm(Timer::Waiter(id));
        }
        Some(waiter)
    }

    /// The answer came when the lease could not be trusted any more. Gives the lock back and,
    /// unless the caller tries only once, starts again with a new owner.
    fn won_too_late(&mut self, id: RequestId) {
        let next = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            let text = "the answer came after the lease could be trusted; raise the lease";
            return self.end_waiter(id, Error::new(ErrorKind::Unavailable, text), true);
        }
        let (name, form, lease) = (waiter.name.clone(), waiter.form.clone(), waiter.lease());
        let burned = std::mem::replace(&mut waiter.owner, next);
        let unsettled = waiter.unsettled.take();
        self.set_attempt(&name, Attempt::Idle);
        self.clean_up(&name, burned, &form, lease, unsettled);
        self.advance(&name);
    }

    /// Waiters with the key of the new hold re-enter it instead of waiting for its end.
    pub(super) fn adopt_waiters(
        &mut self,
        name: &Name,
        key: OwnerKey,
        owner: OwnerId,
        form: &Form,
    ) {
        if key == OwnerKey::Once {
            return;
        }
        let Some(queue) = self.names.queues.get(name) else {
            return;
        };
        let enters =
            |waiter: &Waiter| waiter.key == key && waiter.terms.reentrant && waiter.form == *form;
        let same = |id: &RequestId| {
            self.names
                .waiters
                .get(id)
                .is_some_and(|waiter| enters(waiter) && !waiter.answered)
        };
        let adopted: Vec<RequestId> = queue.waiters.iter().copied().filter(same).collect();
        for id in adopted {
            let Some(waiter) = self.take_waiter(id) else {
                continue;
            };
            let left = waiter
                .deadline
                .map(|end| self.cx.now.until(end))
                .or(waiter.wait);
            self.enter(id, owner, key, left, waiter.terms);
        }
    }

    // ---- wake-ups ----

    /// The head tries now. If its call is in flight, it tries once more after a refusal.
    pub(super) fn wake_head(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        match queue.attempt {
            Attempt::Idle => {}
            Attempt::InFlight { .. } => queue.attempt = Attempt::InFlight { again: true },
            Attempt::Parked => {
                // A copy without an answer may still be alive. The next one must not overtake it.
                let head = queue.waiters.front().copied();
                let alive = head
                    .and_then(|id| self.names.waiters.get(&id))
                    .and_then(|waiter| waiter.unsettled);
                if alive.is_none_or(|expires| expires <= self.cx.now) {
                    queue.attempt = Attempt::Idle;
                    self.cx.counters.wakeups.add(1);
                    self.advance(name);
                }
            }
        }
    }

    /// The channel cannot be subscribed. Waiters still try when the holder's lease ends and at each
    /// recheck.
    pub(super) fn unsubscribable(&mut self, name: &Name, error: &Error) {
        if self.names.queues.contains_key(name) {
            let text = format!(
                "cannot subscribe, so waiters look every {:?} only: {error}",
                self.cx.config.recheck
            );
            self.cx
                .event("unsubscribable", EventLevel::Warn, name, text);
        }
    }

    /// Somebody else wrote the key, or the server forgot that we read it. A message usually follows
    /// a release, so the head waits [`tuning::HINT_DELAY`] for it. The holder's renewals invalidate
    /// the key too and cause one try per third of a lease. At most [`tuning::HINTED_TRIES_IN_VAIN`]
    /// more of these tries are in vain than of the others.
    pub(super) fn hint(&mut self, name: &Name) {
        let now = self.cx.now;
        let Some(queue) = self
            .names
            .queues
            .get_mut(name)
            .filter(|queue| queue.attempt == Attempt::Parked)
        else {
            return;
        };
        if queue.hints >= tuning::HINTED_TRIES_IN_VAIN {
            return;
        }
        let Some(id) = queue.waiters.front().copied() else {
            return;
        };
        let Some(waiter) = self.names.waiters.get_mut(&id) else {
            return;
        };
        // The holder of a simple lock may be a program that publishes nothing.
        let rest = match waiter.form.kind.layout() {
            Layout::Hash => timing::period(waiter.terms.lease.duration()),
            Layout::Plain | Layout::Learning => self.cx.config.recheck / tuning::HINTED_TRIES,
        };
        let rested = queue.hinted.map(|last| last.after(rest));
        let at = rested
            .unwrap_or_default()
            .max(now.after(tuning::HINT_DELAY));
        // A copy without an answer may be alive until the planned retry.
        if waiter.unsettled.is_none() && waiter.retry.is_none_or(|retry| at < retry) {
            waiter.retry = Some(at);
            queue.hinted = Some(at);
            queue.hints += 2;
            self.arm_waiter(id);
        }
    }

    /// Every name that a caller of this client holds or waits for, sorted to be deterministic.
    pub(super) fn all_names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.names.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// After a reconnect every head looks again. Most names may have a hold and no waiter: those
    /// are passed over before they are sorted.
    pub(super) fn probe_all(&mut self, which: Which<'_>) {
        let is_of_use = |queue: &WaitQueue| {
            !queue.waiters.is_empty() || queue.attempt != Attempt::Idle || queue.channel.wanted
        };
        let probed = self
            .names
            .queues
            .iter()
            .filter(|(name, queue)| is_of_use(queue) && which(name));
        let mut names: Vec<Name> = probed.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        for name in &names {
            self.wake_head(name);
            self.advance(name);
        }
    }

    /// Ends waiters with `error`: those that try once, or all.
    pub(super) fn fail_waiters(&mut self, error: &Error, only_tries: bool, which: Which<'_>) {
        let picked = self
            .names
            .waiters
            .iter()
            .filter(|(_, waiter)| (!only_tries || waiter.once()) && which(&waiter.name));
        let ids: Vec<(RequestId, Name)> = picked
            .map(|(id, waiter)| (*id, waiter.name.clone()))
            .collect();
        for (id, name) in ids {
            self.give_up(id, error.clone().on(&name));
        }
    }
}

/// Whether a hold of this client blocks the waiters. The engine hears first when that hold ends.
/// For a lock of another layout the hold is foreign data, which the server reports.
fn is_blocked(holds: &Slab<Hold>, queue: &WaitQueue, kind: Kind, once: bool) -> bool {
    let blocks = |hold: &Hold| hold.blocks(once) && hold.cell.kind.excludes(kind);
    queue
        .holds()
        .iter()
        .any(|owner| holds.get(owner).is_some_and(&blocks))
}

/// Whether an earlier attempt with the token of this form may still free the name: its lock is
/// being released, or it is cleaned up. The value at the key does not tell the attempts apart, so a
/// try has to wait. If it were granted, a late release of the earlier attempt would free its lock.
fn is_token_busy(
    holds: &Slab<Hold>,
    cleanups: &Cleanups,
    (name, queue): (&Name, &WaitQueue),
    form: &Form,
) -> bool {
    let Some(token) = &form.token else {
        return false;
    };
    let releases = |hold: &Hold| hold.phase == Phase::Releasing && hold.cell.has_token(token);
    let leaves = |owner: &OwnerId| holds.get(owner).is_some_and(releases);
    queue.holds().iter().any(leaves) || cleanups.releases(name, token)
}

/// A try waited in vain for an earlier attempt with the same token.
fn token_busy() -> Error {
    let text = "nothing was done: an earlier attempt with this token may still run, or its lock is not released yet; \
                give each attempt a token of its own, or try again later";
    Error::new(ErrorKind::Unavailable, text)
}

/// The call was certainly not done, although there is a connection.
pub(super) fn not_sent() -> Error {
    let text = "nothing was done: the server has more to do than it answers in good time, or the connection was lost \
                just now; try again";
    Error::new(ErrorKind::Unavailable, text)
}

/// The server said twice in a row that a call came after its not-after, although the call used the
/// server's time from the reply before.
pub(super) fn clocks_differ() -> Error {
    let text = "nothing was done: by the server's clock the call came too late, twice in a row; if the address is that of a \
                balancer or proxy, let it lead to one server, or have the servers' clocks agree";
    Error::new(ErrorKind::Unavailable, text)
}

/// The call of a try, or of a waiter ahead of it, got no answer in time.
fn unanswered() -> Error {
    let text = "the server did not answer in time; try again, or raise the lease";
    Error::new(ErrorKind::Unavailable, text)
}

/// Too few replicas have acknowledged an acquisition.
pub(super) fn not_replicated(wanted: u32, got: u32) -> Error {
    let text = format!(
        "{got} of the {wanted} replicas that were asked for acknowledged it in time; it was rolled back"
    );
    Error::new(ErrorKind::NotReplicated, text)
}

/// There was no connection during the whole wait of a caller.
fn unconnected(wait: Option<Duration>) -> Error {
    let wait = wait.unwrap_or_default();
    let text = format!(
        "there was no connection to the server within {wait:?}, so nobody knows whether somebody holds the lock; \
         check address and network, that the server answers there, and whether it wants TLS (rediss://) or not"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The server was silent during the whole wait of a caller.
pub(super) fn unheard(wait: Option<Duration>) -> Error {
    let wait = wait.unwrap_or_default();
    let text = format!(
        "the server did not answer within {wait:?}, so nobody knows whether somebody holds the lock; look whether the \
         server is overloaded or paused, or wait longer"
    );
    Error::new(ErrorKind::Unavailable, text)
}

pub(super) fn timeout(name: &Name, wait: Option<Duration>) -> Error {
    let text = match wait {
        Some(wait) if !wait.is_zero() => {
            format!("not acquired within {wait:?}; wait longer, or look at who holds it")
        }
        _ => "somebody else holds it or waits for it".to_owned(),
    };
    Error::new(ErrorKind::Timeout, text).on(name)
}
