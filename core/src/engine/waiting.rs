//! First acquisitions: per name a queue, first come first served, whose head alone talks to Redis.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::time::Duration;

use super::asking::foreign;
use super::handing::Run;
use super::holding::{Hold, Phase};
use super::links::Which;
use super::pages::Pages;
use super::rare::Idle;
use super::timers::Timer;
use super::timing::{self, EXPIRY_SLACK, HINT_DELAY, HINTS};
use super::turns::{Channel, Turn};
use super::{Engine, Lease, Outcome, Purpose, Request, RequestId, Terms};
use crate::error::{Error, ErrorKind};
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::{Form, Kind, Layout, Name, Op, OwnerId, Reply};

/// A name that somebody here holds or waits for. There may be a million of them, and most are held once; nothing else is to
/// be said of those.
#[derive(Debug, Default)]
pub(super) enum Queue {
    #[default]
    Idle,
    Held(OwnerId),
    Other(Box<Other>),
}

/// What else a name may be.
#[derive(Debug, Default)]
pub(super) struct Other {
    /// Holds that are not unwound yet.
    holds: Owners,
    waiting: Waiting,
}

impl Queue {
    /// Holds that are not unwound yet.
    pub(super) fn holds(&self) -> &[OwnerId] {
        match self {
            Queue::Idle => &[],
            Queue::Held(owner) => slice::from_ref(owner),
            Queue::Other(other) => &other.holds,
        }
    }

    pub(super) fn add_hold(&mut self, owner: OwnerId) {
        match self {
            Queue::Idle => *self = Queue::Held(owner),
            Queue::Held(_) | Queue::Other(_) => self.other().holds.push(owner),
        }
    }

    pub(super) fn remove_hold(&mut self, owner: OwnerId) {
        match self {
            Queue::Held(only) if *only == owner => *self = Queue::Idle,
            Queue::Other(other) => other.holds.remove(owner),
            Queue::Idle | Queue::Held(_) => {}
        }
    }

    /// Somebody waits no longer.
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

    /// Makes room for whatever is to be said.
    fn other(&mut self) -> &mut Other {
        self.other_in(&mut Rooms::default())
    }

    /// The same in room that was given back, if there is any.
    fn other_in(&mut self, rooms: &mut Rooms) -> &mut Other {
        let holds = match self {
            Queue::Other(other) => return other,
            Queue::Held(owner) => Owners::One(*owner),
            Queue::Idle => Owners::None,
        };
        let mut other = rooms.0.pop().unwrap_or_default();
        other.holds = holds;
        *self = Queue::Other(other);
        self.other_in(rooms)
    }

    /// Nobody waits any more: what is said of who does is forgotten.
    pub(super) fn rest(&mut self, rooms: &mut Rooms) {
        let Queue::Other(other) = self else { return };
        other.waiting.attempt = Attempt::Idle;
        other.waiting.refused = None;
        self.tidy(rooms);
    }

    /// Whether nobody needs the name any more.
    pub(super) fn is_unused(&self) -> bool {
        self.holds().is_empty() && self.waiters.is_empty() && !self.channel.wanted
    }

    /// Gives the room back if it is not needed.
    fn tidy(&mut self, rooms: &mut Rooms) {
        let Queue::Other(other) = self else { return };
        let plain = match other.holds {
            Owners::None => Queue::Idle,
            Owners::One(owner) => Queue::Held(owner),
            Owners::Many(_) => return,
        };
        if other.waiting.is_idle()
            && let Queue::Other(room) = std::mem::replace(self, plain)
        {
            rooms.keep(room);
        }
    }
}

/// Room of names that is not needed at the moment: each acquisition needs it until it is answered.
#[derive(Debug, Default)]
pub(super) struct Rooms(
    // They go from here to a name and back, as they are.
    #[allow(clippy::vec_box)] Vec<Box<Other>>,
);

/// As many as callers are likely to acquire at the same time.
const ROOMS: usize = 64;
/// Where more waited at once, the room is given back to the system.
const QUEUED: usize = 16;

impl Rooms {
    /// Keeps the room of a name of which nothing is to be said any more.
    fn keep(&mut self, room: Box<Other>) {
        if self.0.len() < ROOMS && room.waiting.waiters.capacity() <= QUEUED {
            self.0.push(room);
        }
    }
}

impl Deref for Queue {
    type Target = Waiting;

    fn deref(&self) -> &Waiting {
        match self {
            Queue::Idle | Queue::Held(_) => Waiting::IDLE,
            Queue::Other(other) => &other.waiting,
        }
    }
}

impl DerefMut for Queue {
    fn deref_mut(&mut self) -> &mut Waiting {
        &mut self.other().waiting
    }
}

/// Mostly one.
#[derive(Debug, Default, Clone)]
pub(super) enum Owners {
    #[default]
    None,
    One(OwnerId),
    // Boxed, since it is so rare and would make all the others larger.
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

/// Who waits for a name, and what is known of others who want it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Waiting {
    /// Callers without a hold, in their order.
    pub(super) waiters: VecDeque<RequestId>,
    pub(super) attempt: Attempt,
    /// How the lock has gone from owner to owner of this client.
    pub(super) run: Run,
    pub(super) channel: Channel,
    pub(super) turn: Turn,
    /// The last try that an invalidation caused.
    hinted: Option<Moment>,
    /// When it was last known that others have the lock, as far as that concerns who waits.
    refused: Option<Moment>,
}

impl Waiting {
    /// Whoever waits now does so because somebody has the lock.
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
        refused: None,
    };

    fn is_idle(&self) -> bool {
        self == Self::IDLE
    }
}

/// What the head of the queue is doing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Nothing: blocked by a hold of this client, or offline.
    #[default]
    Idle,
    /// Its call is on the way. `again`: a wake-up came meanwhile.
    InFlight { again: bool },
    /// Asleep until a wake-up or its timer.
    Parked,
}

/// A caller that waits for its first level.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) name: Name,
    pub(super) key: Key,
    /// Drawn for this acquisition alone; burned if it fails.
    pub(super) owner: OwnerId,
    pub(super) terms: Terms,
    pub(super) form: Form,
    wait: Option<Duration>,
    /// When the wait ends.
    deadline: Option<Moment>,
    /// When the parked head tries again by itself.
    retry: Option<Moment>,
    /// Errors in a row that may pass.
    failures: u32,
    /// The last of them.
    error: Option<Error>,
    /// The not-after of the last copy that got no answer.
    pub(super) unsettled: Option<Moment>,
    /// It is among the timers: most never are.
    timed: bool,
    /// The call in flight is the hand-over from the hold before.
    pub(super) handed: bool,
    /// The caller has its answer; only the outcome of the call in flight is waited for.
    pub(super) answered: bool,
    pub(super) announced: bool,
}

impl Waiter {
    /// Tries once and does not wait.
    pub(super) fn once(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Whether its caller gets no lock any more.
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

    /// Until when it leaves the lock to others. One whose time is shorter than that tries at once.
    fn waits_for_turn(&self, queue: &Queue, now: Moment) -> Option<Moment> {
        let end = queue.turn.of_others(now)?;
        let patient = !self.once() && self.deadline.is_none_or(|last| last > end);
        patient.then_some(end)
    }

    /// What its next try asks for.
    fn next_try(&mut self) -> Op {
        self.retry = None;
        self.handed = false;
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

    /// The count to ask for. Others may hold with the value that the caller gave: only after a copy
    /// without an answer is it taken for ours.
    fn count(&self) -> u32 {
        u32::from(self.form.token.is_none() || self.unsettled.is_some())
    }
}

impl Terms {
    /// What the first request asks for.
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

    /// What was granted when the lock lives for `ttl` now, and the time that is sure. The script of an
    /// adaptive lock decides by itself, in whole seconds.
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

impl Engine {
    pub(super) fn acquire(
        &mut self,
        id: RequestId,
        name: Name,
        key: Key,
        wait: Option<Duration>,
        terms: Terms,
        form: Form,
    ) {
        let enters = |hold: &Hold| match key {
            Key::Hold(_) => true,
            _ => terms.reentrant && hold.cell.form() == form,
        };
        let mine = self.hold_of(&name, key).filter(|owner| !self.forget_run_out(*owner, key));
        if let Some(owner) = mine.filter(|owner| self.holds.get(owner).is_some_and(enters)) {
            return self.enter(id, owner, key, wait, terms);
        }
        if let Key::Hold(_) = key {
            return self.fail(
                id,
                Error::new(ErrorKind::NotOwner, "the hold to re-enter has ended; acquire anew").on(&name),
            );
        }
        if wait == Some(Duration::ZERO) {
            if let Some(down) = self.links.error(&name) {
                return self.fail(id, down.on(&name));
            }
            if self.is_taken_here(&name, form.kind) {
                let error = self.unheard_before(&name, form.kind).unwrap_or_else(|| timeout(&name, wait));
                return self.fail(id, error.on(&name));
            }
        }
        let owner = self.next_owner();
        let queue = self.queues.entry(name.clone()).or_default();
        let first = queue.holds().is_empty() && queue.waiters.is_empty();
        let waiting = &mut queue.other_in(&mut self.rooms).waiting;
        waiting.waiters.push_back(id);
        waiting.channel.is_used();
        let waiter = Waiter {
            owner,
            key,
            terms,
            form,
            wait,
            // A try has no time of its own: it ends with the first answer or the response limit.
            deadline: wait.filter(|wait| !wait.is_zero()).map(|wait| self.now.after(wait)),
            retry: None,
            failures: 0,
            error: None,
            unsettled: None,
            timed: false,
            handed: false,
            answered: false,
            announced: false,
            name: name.clone(),
        };
        self.waiters.insert(id, waiter);
        self.arm_waiter(id);
        if !first {
            self.note_holder(&name);
        }
        self.advance(&name);
    }

    /// Keeps in mind for who waits now that somebody has the lock, if that is known.
    fn note_holder(&mut self, name: &Name) {
        if self.is_had(name)
            && let Some(queue) = self.queues.get_mut(name)
        {
            queue.note_refusal(self.now);
        }
    }

    /// Whether a hold of this client is in the way, or the head sleeps since it was refused.
    fn is_had(&self, name: &Name) -> bool {
        let head = |queue: &Queue| queue.waiters.front().and_then(|id| self.waiters.get(id));
        self.queues.get(name).is_some_and(|queue| {
            head(queue).is_some_and(|head| {
                let refused = head.announced && head.failures == 0 && head.unsettled.is_none();
                (queue.attempt == Attempt::Parked && refused)
                    || is_blocked(&self.holds, queue, head.form.kind, false)
            })
        })
    }

    /// Whether nothing is sent for this request: it passes a lock on to who waits here, or stands in line behind others of
    /// this client.
    pub(crate) fn needs_no_call(&self, request: &Request) -> bool {
        match request {
            Request::Release(target) => self.passes_on(target),
            request => self.lines_up(request) || self.leaves_to_others(request),
        }
    }

    fn lines_up(&self, request: &Request) -> bool {
        let Request::Acquire { name, key, wait, .. } = request else {
            return false;
        };
        let waits = *wait != Some(Duration::ZERO) && !matches!(key, Key::Hold(_));
        waits && self.queues.get(name).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Whether somebody of this client holds the name or waits for it: a try never barges past them.
    fn is_taken_here(&self, name: &Name, kind: Kind) -> bool {
        let Some(queue) = self.queues.get(name) else {
            return false;
        };
        // One that has its answer only keeps the place until its call is settled.
        let waits = |id: &RequestId| self.waiters.get(id).is_some_and(|waiter| !waiter.answered);
        queue.waiters.iter().any(waits) || is_blocked(&self.holds, queue, kind, true)
    }

    /// What keeps those waiting who are before a try, if that is the server: they may not get the lock, and nobody may have it.
    fn unheard_before(&self, name: &Name, kind: Kind) -> Option<Error> {
        let queue = self.queues.get(name).filter(|queue| !is_blocked(&self.holds, queue, kind, true))?;
        let head = self.waiters.get(queue.waiters.front()?)?;
        head.error.clone().or_else(|| head.unsettled.map(|_| unanswered()))
    }

    /// Lets the head of a queue do what it can; drops a queue that nobody needs.
    pub(super) fn advance(&mut self, name: &Name) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let Some(&id) = queue.waiters.front() else {
            // Nobody waits for the name any more.
            queue.rest(&mut self.rooms);
            if queue.channel.wanted {
                self.leave_channel(name);
            } else if queue.is_unused() {
                self.queues.remove(name);
            }
            return;
        };
        let Some(head) = self.waiters.get_mut(&id) else {
            return;
        };
        let free = queue.attempt == Attempt::Idle
            && !is_blocked(&self.holds, queue, head.form.kind, head.once())
            && self.closing.is_none()
            && self.links.is_up(name);
        if !free {
            return;
        }
        if let Some(end) = head.waits_for_turn(queue, self.now) {
            return self.park(id, end);
        }
        queue.attempt = Attempt::InFlight { again: false };
        let (op, limit) = (head.next_try(), head.limit());
        self.send(Purpose::Try(id), op, limit);
        self.arm_waiter(id);
    }

    /// Notes what the head does; what it did before.
    pub(super) fn set_attempt(&mut self, name: &Name, attempt: Attempt) -> Attempt {
        let Some(queue) = self.queues.get_mut(name) else {
            return Attempt::Idle;
        };
        let before = queue.attempt;
        // Where nobody waits, nothing is said of that.
        if before != attempt {
            queue.attempt = attempt;
        }
        before
    }

    pub(super) fn arm_waiter(&mut self, id: RequestId) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let deadline = waiter.deadline.filter(|_| !waiter.answered);
        let due = deadline.into_iter().chain(waiter.retry).min();
        let timed = std::mem::replace(&mut waiter.timed, due.is_some());
        match due {
            Some(at) => self.timers.arm(Timer::Waiter(id), at),
            None if timed => self.timers.disarm(Timer::Waiter(id)),
            None => {}
        }
    }

    /// The timer of a waiter: its wait is over, or its retry is due.
    pub(super) fn waiter_due(&mut self, id: RequestId) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let name = waiter.name.clone();
        if !waiter.answered && waiter.is_over(self.now) {
            let error = self.late_waiter(id).on(&name);
            return self.give_up(id, error);
        }
        if waiter.retry.is_some_and(|at| at <= self.now) {
            waiter.retry = None;
            self.set_attempt(&name, Attempt::Idle);
            self.advance(&name);
        }
        self.arm_waiter(id);
    }

    /// Why the time of a waiter was not enough: somebody has the lock, if anything was heard of that in its time. Where
    /// nothing can be or was heard, nobody may have it, and a program that does without must not take that for work
    /// that others do.
    fn late_waiter(&self, id: RequestId) -> Error {
        let Some(waiter) = self.waiters.get(&id) else {
            return unheard(None);
        };
        if let Some(down) = self.links.error(&waiter.name) {
            return down;
        }
        let queue = self.queues.get(&waiter.name);
        let refused = queue.and_then(|queue| queue.refused);
        let began = waiter.deadline.zip(waiter.wait).map(|(end, wait)| end.before(wait));
        if refused.is_some_and(|at| Some(at) >= began) || self.is_had(&waiter.name) {
            return timeout(&waiter.name, waiter.wait);
        }
        // A connection or an answer that is not late yet says nothing of the server.
        let late =
            |head: &Waiter| head.unsettled.is_some() || waiter.wait.is_some_and(|wait| wait >= head.limit());
        let head = queue.and_then(|queue| self.waiters.get(queue.waiters.front()?));
        if let Some(error) = head.and_then(|head| head.error.clone()) {
            return error;
        }
        match head {
            Some(head) if !late(head) => timeout(&waiter.name, waiter.wait),
            _ if !self.links.is_up(&waiter.name) => unconnected(waiter.wait),
            _ => unheard(waiter.wait),
        }
    }

    /// Answers a waiter with an error. If its call is on the way, the place at the head is kept
    /// until the outcome is known.
    pub(super) fn give_up(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if waiter.answered {
            return;
        }
        waiter.answered = true;
        let name = waiter.name.clone();
        self.fail(id, error);
        let queue = self.queues.get(&name);
        let on_the_way = queue.is_some_and(|queue| {
            queue.waiters.front() == Some(&id) && matches!(queue.attempt, Attempt::InFlight { .. })
        });
        if on_the_way {
            self.arm_waiter(id);
        } else {
            self.remove_waiter(id, false);
        }
    }

    /// Takes a waiter out of its queue and lets the next one on. What it may have acquired is
    /// released: by calls without an answer, or by others if `clean` says so.
    pub(super) fn remove_waiter(&mut self, id: RequestId, clean: bool) {
        let Some(waiter) = self.take_waiter(id) else {
            return;
        };
        if clean || waiter.unsettled.is_some() {
            self.clean_up(&waiter.name, waiter.owner, &waiter.form, waiter.lease(), waiter.unsettled);
        }
        self.advance(&waiter.name);
    }

    /// The outcome of the head's call.
    pub(super) fn tried(&mut self, id: RequestId, sent: Moment, outcome: Outcome) {
        let Some(waiter) = self.waiters.get(&id) else {
            return;
        };
        if let (Outcome::Answered(Reply::Acquired { ttl, token }), false) = (&outcome, waiter.answered) {
            return self.won(id, sent, (*ttl, *token));
        }
        let (name, answered, wanted) = (waiter.name.clone(), waiter.answered, waiter.terms.replicas.into());
        let before = self.set_attempt(&name, Attempt::Idle);
        let again = before == Attempt::InFlight { again: true };
        match outcome {
            Outcome::Unanswered => self.unanswered_try(id, sent),
            outcome if answered => self.end_try(id, outcome),
            Outcome::Answered(Reply::Busy { ttl }) => self.busy(id, &name, ttl, again),
            // The server has seen the call and did nothing. The driver has learnt the server's
            // clock from the reply, so a stale copy can go again at once.
            Outcome::Answered(Reply::Stale) => self.advance(&name),
            Outcome::Refused { error, passing: true } => self.refused_for_now(id, error),
            Outcome::NotSent => self.not_sent(id),
            Outcome::Answered(Reply::NotReplicated { got }) => {
                let error = not_replicated(wanted, got);
                self.end_waiter(id, error, true);
            }
            outcome => self.end_try(id, outcome),
        }
    }

    /// The last outcome for a waiter whose caller has gone, or gets an error now.
    fn end_try(&mut self, id: RequestId, outcome: Outcome) {
        let (error, clean) = match outcome {
            Outcome::Answered(Reply::Foreign(what)) => (foreign(&what), false),
            Outcome::Refused { error, passing } => {
                // A script that was stopped halfway may have left our field behind.
                let halfway = !matches!(error.kind(), ErrorKind::ForeignKind | ErrorKind::Auth);
                (error, halfway && !passing)
            }
            outcome => {
                let text = format!("unexpected outcome of an acquire: {outcome:?}");
                let nothing_done = matches!(
                    outcome,
                    Outcome::NotSent | Outcome::Answered(Reply::Busy { .. } | Reply::Stale)
                );
                (Error::new(ErrorKind::Internal, text), !nothing_done)
            }
        };
        self.end_waiter(id, error, clean);
    }

    /// Answers a waiter, if that has not happened, and takes it out.
    fn end_waiter(&mut self, id: RequestId, error: Error, clean: bool) {
        if let Some(waiter) = self.waiters.get_mut(&id).filter(|waiter| !waiter.answered) {
            waiter.answered = true;
            let error = error.on(&waiter.name);
            self.fail(id, error);
        }
        self.remove_waiter(id, clean);
    }

    /// Nobody knows whether the call ran. It cannot run after its not-after, so that is when the
    /// next copy may start: then at most one copy is alive at any time.
    fn unanswered_try(&mut self, id: RequestId, sent: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let expires = timing::copy_expires(sent, waiter.limit());
        waiter.unsettled = Some(expires);
        if waiter.answered {
            return self.remove_waiter(id, false);
        }
        if waiter.once() {
            let error = self.links.error(&waiter.name).unwrap_or_else(unanswered);
            return self.end_waiter(id, error, true);
        }
        self.park(id, expires.max(self.now));
    }

    /// Without a link, `link_up` lets the head try again.
    fn not_sent(&mut self, id: RequestId) {
        if self.waiters.get(&id).is_some_and(|waiter| self.links.is_up(&waiter.name)) {
            self.refused_for_now(id, not_sent());
        }
    }

    fn refused_for_now(&mut self, id: RequestId, error: Error) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() {
            return self.end_waiter(id, error, false);
        }
        waiter.failures += 1;
        waiter.error = Some(error);
        let pause = self.jitter.backoff(waiter.failures);
        self.park(id, self.now.after(pause));
    }

    /// Lets the head sleep until `at` or a wake-up.
    fn park(&mut self, id: RequestId, at: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        waiter.retry = Some(at);
        let name = waiter.name.clone();
        self.set_attempt(&name, Attempt::Parked);
        self.arm_waiter(id);
    }

    /// Somebody else holds the lock, for `ttl` unless renewed.
    fn busy(&mut self, id: RequestId, name: &Name, ttl: Option<Duration>, again: bool) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let first = std::mem::take(&mut waiter.failures) == 0;
        waiter.error = None;
        waiter.unsettled = None;
        if waiter.once() {
            return self.try_refused(id, name, first);
        }
        let announced = std::mem::replace(&mut waiter.announced, true);
        if let Some(queue) = self.queues.get_mut(name) {
            queue.note_refusal(self.now);
            queue.turn.refused(self.now);
        }
        if !announced {
            self.trace("waiting", name, || "held elsewhere; waiting".to_owned());
        }
        // Confirmation brings the next try, which closes the gap between this reply and the
        // subscription; the timer below covers a channel that is never confirmed.
        if !self.want_channel(name) && again {
            return self.advance(name);
        }
        let recheck = self.jitter.spread(self.config.recheck);
        let pause = ttl.map_or(recheck, |ttl| recheck.min(ttl + EXPIRY_SLACK));
        let end = self.now.after(pause);
        self.park(id, if self.unseen { end.min(timing::look(self.now)) } else { end });
    }

    /// Whether a release of ours is on its way.
    fn is_being_left(&self, name: &Name) -> bool {
        let leaves =
            |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| hold.phase == Phase::Releasing);
        self.queues.get(name).is_some_and(|queue| queue.holds().iter().any(leaves))
            || self.cleanups.values().any(|cleanup| cleanup.name == *name)
    }

    /// Somebody else has it. Perhaps that is we: a release whose script the server does not know is sent once more,
    /// and the `first` try that was sent behind it has overtaken it. Another one comes behind it for certain.
    fn try_refused(&mut self, id: RequestId, name: &Name, first: bool) {
        let leaving = first && self.is_being_left(name);
        match self.waiters.get_mut(&id).filter(|_| leaving) {
            Some(waiter) => {
                waiter.failures = 1;
                self.advance(name);
            }
            None => self.end_waiter(id, timeout(name, Some(Duration::ZERO)), false),
        }
    }

    /// The head holds the lock: it becomes a hold.
    fn won(&mut self, id: RequestId, sent: Moment, (ttl, token): (Duration, Option<u64>)) {
        let Some(waiter) = self.waiters.get(&id) else {
            return;
        };
        if sent.after(timing::trusted(waiter.lease().min(ttl))) <= self.now {
            return self.won_too_late(id);
        }
        let Some(waiter) = self.remove_timed(id) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&waiter.name) else {
            return;
        };
        queue.take_out(id);
        queue.add_hold(waiter.owner);
        let waiting: &mut Waiting = queue;
        waiting.run = if waiter.handed { waiting.run.one_more(sent) } else { Run::default() };
        if !waiting.waiters.is_empty() {
            waiting.run.hear(sent);
        }
        waiting.turn.taken(self.now, waiter.announced, self.config.handovers.1);
        waiting.note_refusal(self.now);
        if waiting.waiters.is_empty() && !waiting.channel.wanted {
            // Most are alone: nobody is to be looked for.
            queue.rest(&mut self.rooms);
            return self.open_hold(id, waiter, sent, ttl, token);
        }
        let (name, key, owner, form) = (waiter.name.clone(), waiter.key, waiter.owner, waiter.form.clone());
        self.open_hold(id, waiter, sent, ttl, token);
        self.adopt_waiters(&name, key, owner, &form);
        self.advance(&name);
    }

    /// Takes a waiter out of its queue.
    pub(super) fn take_waiter(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.remove_timed(id)?;
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.take_out(id);
        }
        Some(waiter)
    }

    /// Takes a waiter out of everything but its queue.
    fn remove_timed(&mut self, id: RequestId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if waiter.timed {
            self.timers.disarm(Timer::Waiter(id));
        }
        Some(waiter)
    }

    /// The answer came when the lease could not be trusted any more: give it back and, if there
    /// is time, begin anew with a new owner.
    fn won_too_late(&mut self, id: RequestId) {
        let next = self.next_owner();
        let Some(waiter) = self.waiters.get_mut(&id) else {
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
    pub(super) fn adopt_waiters(&mut self, name: &Name, key: Key, owner: OwnerId, form: &Form) {
        if key == Key::Once {
            return;
        }
        let Some(queue) = self.queues.get(name) else {
            return;
        };
        let enters = |waiter: &Waiter| waiter.key == key && waiter.terms.reentrant && waiter.form == *form;
        let same =
            |id: &RequestId| self.waiters.get(id).is_some_and(|waiter| enters(waiter) && !waiter.answered);
        let adopted: Vec<RequestId> = queue.waiters.iter().copied().filter(same).collect();
        for id in adopted {
            let Some(waiter) = self.take_waiter(id) else {
                continue;
            };
            let left = waiter.deadline.map(|end| self.now.until(end)).or(waiter.wait);
            self.enter(id, owner, key, left, waiter.terms);
        }
    }

    // ---- wake-ups ----

    /// The head tries now, or once more when its call on the way comes back refused.
    pub(super) fn wake_head(&mut self, name: &Name) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        match queue.attempt {
            Attempt::Idle => {}
            Attempt::InFlight { .. } => queue.attempt = Attempt::InFlight { again: true },
            Attempt::Parked => {
                // A copy without an answer may still be alive; its successor must not overtake it.
                let head = queue.waiters.front().copied();
                let alive = head.and_then(|id| self.waiters.get(&id)).and_then(|waiter| waiter.unsettled);
                if alive.is_none_or(|expires| expires <= self.now) {
                    queue.attempt = Attempt::Idle;
                    self.counters.wakeups.add(1);
                    self.advance(name);
                }
            }
        }
    }

    /// Waiting goes on by the holder's time and by recheck alone.
    pub(super) fn unsubscribable(&mut self, name: &Name, error: &Error) {
        if self.queues.contains_key(name) {
            let text =
                format!("cannot subscribe, so waiters look every {:?} only: {error}", self.config.recheck);
            self.event("unsubscribable", EventLevel::Warn, name, text);
        }
    }

    /// The key was written by somebody else: released, or renewed. A release is followed by a
    /// message, so the head waits for that a little; renewals cause one try per third of a lease.
    pub(super) fn hint(&mut self, name: &Name) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name).filter(|queue| queue.attempt == Attempt::Parked) else {
            return;
        };
        let Some(id) = queue.waiters.front().copied() else {
            return;
        };
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        // Who holds a simple lock may be a program that publishes nothing.
        let rest = match waiter.form.kind.layout() {
            Layout::Hash => timing::period(waiter.terms.lease.duration()),
            Layout::Plain | Layout::Learning => self.config.recheck / HINTS,
        };
        let rested = queue.hinted.map(|last| last.after(rest));
        let at = rested.unwrap_or_default().max(now.after(HINT_DELAY));
        // A copy without an answer may be alive until the retry that is planned.
        if waiter.unsettled.is_none() && waiter.retry.is_none_or(|retry| at < retry) {
            waiter.retry = Some(at);
            queue.hinted = Some(at);
            self.arm_waiter(id);
        }
    }

    /// Every name that somebody here holds or waits for, in an order that only depends on them.
    pub(super) fn all_names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// After a reconnect every head looks again.
    pub(super) fn probe_all(&mut self, which: Which<'_>) {
        for name in self.all_names().iter().filter(|name| which(name)) {
            self.wake_head(name);
            self.advance(name);
        }
    }

    /// Ends waiters with `error`: those that try once, or all.
    pub(super) fn fail_waiters(&mut self, error: &Error, only_tries: bool, which: Which<'_>) {
        let picked =
            self.waiters.iter().filter(|(_, waiter)| (!only_tries || waiter.once()) && which(&waiter.name));
        let ids: Vec<(RequestId, Name)> = picked.map(|(id, waiter)| (*id, waiter.name.clone())).collect();
        for (id, name) in ids {
            self.give_up(id, error.clone().on(&name));
        }
    }
}

/// Whether a hold of this client keeps the others waiting; its end is known here first. To a lock
/// of another layout it is foreign data, of which the server tells.
fn is_blocked(holds: &Pages<Hold>, queue: &Queue, kind: Kind, once: bool) -> bool {
    let blocks = |hold: &Hold| hold.blocks(once) && hold.cell.kind.excludes(kind);
    queue.holds().iter().any(|owner| holds.get(owner).is_some_and(&blocks))
}

/// The call was certainly not done, though there is a connection.
pub(super) fn not_sent() -> Error {
    let text = "nothing was done: the server has more to do than it answers in good time, or the connection was lost \
                just now; try again";
    Error::new(ErrorKind::Unavailable, text)
}

/// The call of a try, or of who waits before it, was not answered in its time.
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

/// There was nobody to be asked in the whole time of a caller.
fn unconnected(wait: Option<Duration>) -> Error {
    let wait = wait.unwrap_or_default();
    let text = format!(
        "there was no connection to the server within {wait:?}, so nobody knows whether somebody holds the lock; \
         check address and network, that the server answers there, and whether it wants TLS (rediss://) or not"
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// Nothing was heard in the whole time of a caller.
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
