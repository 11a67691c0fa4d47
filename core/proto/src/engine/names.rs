//! The names that callers of this client hold or wait for, and the queue of each.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::channel::Channel;
use super::context::Context;
use super::crowd::Crowd;
use super::hold::{Hold, Phase};
use super::holds::Holds;
use super::interface::{Handovers, Output, RequestId};
use super::lazy_box::Idle;
use super::timers::Timer;
use super::timing;
use super::turn::{Run, Turn};
use super::waiter::Waiter;
use crate::key::OwnerKey;
use crate::maps::{Map, SortedMap, SortedSet};
use crate::moment::Moment;
use crate::primitives::facts::Side;
use crate::tuning;
use crate::wire::{Form, Name, OwnerId, Topic};

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
    pub(super) waiting: Waiting,
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
    pub(super) fn take_out(&mut self, waiter: RequestId) {
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
    pub(super) fn other_in(&mut self, rooms: &mut BoxPool) -> &mut Other {
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
        other.waiting.has_places = false;
        other.waiting.has_readers = false;
        other.waiting.has_tries = false;
        other.waiting.in_a_row = 0;
        if !other.waiting.channel.wanted {
            other.waiting.crowd = Crowd::NONE;
        }
        self.tidy(rooms);
    }

    /// Whether this client hears what is told to its place in a crowd.
    pub(super) fn hears_place(&self) -> bool {
        self.channel.confirmed && self.crowd.topic() == Some(self.channel.topic)
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

impl WaitQueue {
    /// The server confirmed our release of a lock of this kind, or of so many permits. `heard` subscribers,
    /// at least one, got its message. Returns whether others among them have a turn now.
    pub(super) fn give_turn(
        &mut self,
        now: Moment,
        heard: u32,
        released: &Form,
        handovers: Handovers,
    ) -> bool {
        let (kind, permits) = (released.kind, released.permits);
        let own = self.channel.confirmed;
        let messages = match self.channel.topic {
            Topic::Lock => 1,
            // The last one of several readers publishes.
            Topic::ReadWrite => u16::from(!kind.reads()),
            Topic::Semaphore => permits.min(tuning::PERMIT_MESSAGES),
            Topic::Place(_) | Topic::Seat(_) | Topic::Latch => 0,
        };
        if own && messages > 0 {
            let until = now.after(tuning::OWN_MESSAGE);
            self.channel
                .expect(u8::try_from(messages).unwrap_or(u8::MAX), until);
        }
        if self.crowd.is_known() {
            // The next one is told that it is its turn.
            return false;
        }
        let last = self.run.has_handed_over() && self.run.is_over(now, handovers);
        // There may be permits for all, and readers come together.
        let offers = !kind.is_shared() || self.run.has_handed_over() || self.turn.contended;
        if offers && (last || self.turn.needless <= now) {
            let ran = last.then(|| self.run.lasted(now));
            self.turn.given(now, heard - u32::from(own), ran);
        }
        self.turn.of_others(now).is_some()
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
    pub(super) crowd: Crowd,
    /// When the last try was planned that an invalidation caused.
    pub(super) hinted: Option<Moment>,
    /// How many tries in vain were caused by invalidations, less the other tries in vain.
    pub(super) hints: u8,
    /// When somebody else was last known to have the lock, as far as that concerns the present
    /// waiters.
    pub(super) refused: Option<Moment>,
    /// Whether Redis keeps the queue of some of these waiters, or did of waiters that have left.
    pub(super) has_places: bool,
    /// Whether readers wait, or have waited. They need the channel of the lock.
    pub(super) has_readers: bool,
    /// Whether callers try behind the head, or did.
    pub(super) has_tries: bool,
    /// How many permits were granted in a row, without a try in vain.
    pub(super) in_a_row: u16,
}

impl Waiting {
    /// Puts a new caller into the queue. A caller that reads what it writes comes before those that wait
    /// for its write lock.
    pub(super) fn line_up(&mut self, id: RequestId, waiter: &Waiter) {
        match (waiter.under, self.attempt) {
            (None, _) => self.waiters.push_back(id),
            (Some(_), Attempt::Idle) => self.waiters.push_front(id),
            (Some(_), _) => self.waiters.insert(self.waiters.len().min(1), id),
        }
        self.has_places |= waiter.queues();
        self.has_readers |= waiter.form.kind.reads();
        self.has_tries |= waiter.behind;
        self.channel.is_used();
    }

    /// A caller of this client got the lock by a call that was `sent`.
    pub(super) fn granted(&mut self, waiter: &Waiter, sent: Moment, now: Moment, pause: Duration) {
        self.run = if waiter.handed {
            self.run.one_more(sent)
        } else {
            Run::default()
        };
        if !self.waiters.is_empty() {
            self.run.hear(sent);
        }
        self.turn.taken(now, waiter.announced, pause);
        // Permits that one caller got leave others for the next, as far as is known here.
        if waiter.form.kind.takes_permits() {
            self.in_a_row = self.in_a_row.saturating_add(1);
        } else {
            self.note_refusal(now);
        }
    }

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
        crowd: Crowd::NONE,
        hinted: None,
        hints: 0,
        refused: None,
        has_places: false,
        has_readers: false,
        has_tries: false,
        in_a_row: 0,
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

/// The names that callers of this client hold or wait for, and those callers.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) queues: Map<Name, WaitQueue>,
    pub(super) rooms: BoxPool,
    // Ordered, so that the same inputs give the same outputs.
    pub(super) waiters: SortedMap<RequestId, Waiter>,
    /// Names without waiters whose channels are still subscribed, and when to check them.
    pub(super) idle_channels: SortedSet<(Moment, Name)>,
    /// How many channels are wanted.
    pub(super) channels: usize,
}

impl Names {
    /// The hold that `key` has on `name`, unless it is being released. A key may read what it
    /// writes: then it has two, and `side` tells which of them.
    pub(super) fn hold_of(
        &self,
        holds: &Holds,
        name: &Name,
        key: OwnerKey,
        side: Side,
    ) -> Option<OwnerId> {
        let mine = |owner: &OwnerId| {
            let hold = holds.get(owner)?;
            let same = match key {
                OwnerKey::Hold(level) => hold.position(Some(level)).is_some(),
                _ => key != OwnerKey::Once && hold.cell.key == key && hold.cell.kind.side() == side,
            };
            (same && hold.phase != Phase::Releasing).then_some(*owner)
        };
        // A key that does not re-enter may acquire the name again before it has unwound a lost
        // hold. The live hold comes first.
        let owners = self.queues.get(name)?.holds();
        let live = |owner: &OwnerId| {
            holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Held)
        };
        owners
            .iter()
            .filter(|owner| live(owner))
            .find_map(mine)
            .or_else(|| owners.iter().rev().find_map(mine))
    }

    /// Like `hold_of`, but only for holds with a level that only the key can release. Other levels
    /// belong to guards, which another caller may have.
    pub(super) fn left_to(
        &self,
        holds: &Holds,
        name: &Name,
        key: OwnerKey,
        side: Side,
    ) -> Option<OwnerId> {
        let left = |hold: &Hold| {
            hold.cell.key == key
                && hold.cell.kind.side() == side
                && hold.phase != Phase::Releasing
                && hold.levels.iter().any(|level| level.detached)
        };
        let owners = self.queues.get(name)?.holds();
        let find = |live: bool| {
            let fits = |owner: &&OwnerId| {
                holds
                    .get(owner)
                    .is_some_and(|hold| left(hold) && hold.is_lost() != live)
            };
            owners.iter().find(fits).copied()
        };
        find(true).or_else(|| find(false))
    }

    /// The head of a queue.
    pub(super) fn head(&self, name: &Name) -> Option<&Waiter> {
        let id = self.queues.get(name)?.waiters.front()?;
        self.waiters.get(id)
    }

    /// Whether this caller is the head of its queue.
    pub(super) fn is_head(&self, name: &Name, id: RequestId) -> bool {
        let queue = self.queues.get(name);
        queue.is_some_and(|queue| queue.waiters.front() == Some(&id))
    }

    /// The holds of this client on a name.
    pub(super) fn holds_on(&self, name: &Name) -> Vec<OwnerId> {
        self.queues
            .get(name)
            .map(|queue| queue.holds().to_vec())
            .unwrap_or_default()
    }

    pub(super) fn arm_waiter(&mut self, cx: &mut Context, id: RequestId) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        let deadline = waiter.deadline.filter(|_| !waiter.answered);
        let told = waiter.self_wait.filter(|_| !waiter.answered);
        let due = deadline.into_iter().chain(waiter.retry).chain(told).min();
        let timed = std::mem::replace(&mut waiter.timed, due.is_some());
        match due {
            Some(at) => cx.timers.arm(Timer::Waiter(id), at),
            None if timed => cx.timers.disarm(Timer::Waiter(id)),
            None => {}
        }
    }

    /// The call of a waiter has its outcome. Returns the name if others waited for that.
    pub(super) fn inline_ended(&mut self, id: RequestId) -> Option<Name> {
        let waiter = self.waiters.get_mut(&id)?;
        std::mem::take(&mut waiter.inline).then(|| waiter.name.clone())
    }

    /// Takes a waiter out of its queue.
    pub(super) fn take_waiter(&mut self, cx: &mut Context, id: RequestId) -> Option<Waiter> {
        let waiter = self.remove_timed(cx, id)?;
        if let Some(queue) = self.queues.get_mut(&waiter.name) {
            queue.take_out(id);
        }
        Some(waiter)
    }

    /// Removes a waiter and its timer, but leaves its place in the queue.
    pub(super) fn remove_timed(&mut self, cx: &mut Context, id: RequestId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if waiter.timed {
            cx.timers.disarm(Timer::Waiter(id));
        }
        Some(waiter)
    }

    /// A waiter has got its place in the queue on the server, behind all that have one. Waiters
    /// without a place come after it here too.
    pub(super) fn seat(&mut self, name: &Name, id: RequestId) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let waiting: &mut Waiting = queue;
        let order = &mut waiting.waiters;
        let Some(own) = order.iter().position(|other| *other == id) else {
            return;
        };
        order.remove(own);
        let queues = |id: &RequestId| self.waiters.get(id).is_some_and(Waiter::queues);
        let is_seated = |id: &RequestId| self.waiters.get(id).is_some_and(Waiter::is_seated);
        let last = order.iter().rposition(is_seated).map(|at| at + 1);
        let at = last.or_else(|| order.iter().position(queues).filter(|at| *at < own));
        order.insert(at.unwrap_or(own), id);
    }

    /// A waiter wants more permits than there are, and has no place in the queue on the server. It holds
    /// nobody up here either.
    pub(super) fn unseat(&mut self, name: &Name, id: RequestId) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let order = &mut queue.waiters;
        if order.back() != Some(&id) {
            order.retain(|other| *other != id);
            order.push_back(id);
        }
    }

    /// How often in a row this waiter found the lock `free` for the head of the queue on the server. Only
    /// the first place of this client counts: those behind it come after it.
    pub(super) fn passed_by(&mut self, name: &Name, id: RequestId, free: bool) -> u32 {
        let seated = |id: &&RequestId| self.waiters.get(id).is_some_and(Waiter::is_seated);
        let queue = self.queues.get(name);
        let first = queue.and_then(|queue| queue.waiters.iter().find(seated).copied());
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return 0;
        };
        let counts = free && first == Some(id) && !waiter.form.kind.is_shared();
        waiter.passed_by = if counts { waiter.passed_by + 1 } else { 0 };
        waiter.passed_by
    }

    /// Sets what the head does. Returns what it did before.
    pub(super) fn set_attempt(&mut self, name: &Name, attempt: Attempt) -> Attempt {
        let Some(queue) = self.queues.get_mut(name) else {
            return Attempt::Idle;
        };
        let before = queue.attempt;
        // Writing allocates the full state, which a name without waiters does not need.
        if before != attempt {
            queue.attempt = attempt;
        }
        before
    }

    /// Parks the head until `at` or a wake-up.
    pub(super) fn park(&mut self, cx: &mut Context, id: RequestId, at: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        waiter.retry = Some(at);
        let (name, queues) = (waiter.name.clone(), waiter.queues());
        // Where Redis keeps the queue, each waiter is parked by itself.
        if !queues {
            self.set_attempt(&name, Attempt::Parked);
        }
        self.arm_waiter(cx, id);
    }

    /// The head waits until the earlier attempt with its token is over. A try waits for that as
    /// long as for a call.
    #[cold]
    pub(super) fn wait_for_token(&mut self, cx: &mut Context, id: RequestId) {
        let now = cx.now;
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if waiter.once() && waiter.deadline.is_none() {
            waiter.deadline = Some(now.after(waiter.call.limit));
            self.arm_waiter(cx, id);
        }
    }

    /// Somebody else wrote the key, or the server forgot that we read it. A message usually follows
    /// a release, so the head waits [`tuning::HINT_DELAY`] for it. The holder's renewals invalidate
    /// the key too and cause one try per third of a lease. At most [`tuning::HINTED_TRIES_IN_VAIN`]
    /// more of these tries are in vain than of the others.
    pub(super) fn hint(&mut self, cx: &mut Context, name: &Name) {
        let now = cx.now;
        let Some(queue) = self
            .queues
            .get_mut(name)
            .filter(|queue| queue.attempt == Attempt::Parked)
        else {
            return;
        };
        // In a crowd the first one looks.
        if queue.crowd.is_behind() || queue.hints >= tuning::HINTED_TRIES_IN_VAIN {
            return;
        }
        let Some(id) = queue.waiters.front().copied() else {
            return;
        };
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        // The holder of a simple lock may be a program that publishes nothing.
        let rest = if waiter.form.kind.facts().publishes {
            timing::period(waiter.terms.lease.duration())
        } else {
            cx.config.recheck / tuning::HINTED_TRIES
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
            self.arm_waiter(cx, id);
        }
    }

    /// Every name that a caller of this client holds or waits for, sorted to be deterministic.
    pub(super) fn all_names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    // ---- channels ----

    /// Has this channel of a name subscribed. Returns false if it is already.
    pub(super) fn want_channel(&mut self, cx: &mut Context, name: &Name, topic: Topic) -> bool {
        let subscribed = |channel: &Channel| channel.wanted && channel.topic == topic;
        let Some(queue) = self
            .queues
            .get_mut(name)
            .filter(|queue| !subscribed(&queue.channel))
        else {
            return false;
        };
        let Channel {
            wanted,
            topic: before,
            idle_until,
            looked_at,
            ..
        } = queue.channel;
        // The last waiters wanted a lock of another kind.
        if wanted {
            cx.out.push(Output::Unsubscribe(name.clone(), before));
        } else {
            self.channels += 1;
        }
        queue.channel = Channel {
            wanted: true,
            topic,
            idle_until,
            looked_at,
            ..Channel::default()
        };
        cx.out.push(Output::Subscribe(name.clone(), topic));
        true
    }

    fn look_at_channel(&mut self, cx: &mut Context, name: &Name, at: Moment) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.channel.looked_at = Some(at);
            self.idle_channels.insert((at, name.clone()), ());
            self.arm_channels(cx);
        }
    }

    /// Nobody waits any more: gives the channel up if nobody waits again for some time.
    pub(super) fn leave_channel(&mut self, cx: &mut Context, name: &Name, linger: Duration) {
        let now = cx.now;
        let Some(queue) = self
            .queues
            .get_mut(name)
            .filter(|queue| queue.channel.wanted)
        else {
            return;
        };
        if linger.is_zero() {
            return self.give_up_channel(cx, name);
        }
        let end = *queue.channel.idle_until.get_or_insert(now.after(linger));
        if queue.channel.looked_at.is_none() {
            self.look_at_channel(cx, name, end);
        }
    }

    /// Gives up the channels that have been idle for long enough.
    pub(super) fn channels_due(&mut self, cx: &mut Context) {
        while let Some(((at, _), ())) = self.idle_channels.first()
            && *at <= cx.now
            && let Some(((_, name), ())) = self.idle_channels.pop_first()
        {
            let Some(queue) = self.queues.get_mut(&name) else {
                continue;
            };
            queue.channel.looked_at = None;
            match queue.channel.idle_until {
                Some(end) if end <= cx.now => self.give_up_channel(cx, &name),
                // A waiter used the channel meanwhile, and nobody uses it now.
                Some(end) => self.look_at_channel(cx, &name, end),
                None => {}
            }
        }
        self.arm_channels(cx);
    }

    fn give_up_channel(&mut self, cx: &mut Context, name: &Name) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        if let Some(at) = queue.channel.looked_at {
            self.idle_channels.remove(&(at, name.clone()));
        }
        if queue.channel.wanted {
            self.channels -= 1;
        }
        let Channel { topic, .. } = std::mem::take(&mut queue.channel);
        queue.crowd = Crowd::NONE;
        cx.out.push(Output::Unsubscribe(name.clone(), topic));
        self.drop_queue(name);
        self.arm_channels(cx);
    }

    /// Gives up the idle channels of a client that closes.
    pub(super) fn give_up_channels(&mut self, cx: &mut Context) {
        let idle: Vec<Name> = self
            .idle_channels
            .keys()
            .map(|(_, name)| name.clone())
            .collect();
        for name in idle {
            if self
                .queues
                .get(&name)
                .is_some_and(|queue| queue.waiters.is_empty())
            {
                self.give_up_channel(cx, &name);
            }
        }
    }

    /// Forgets a name that nobody needs any more.
    pub(super) fn drop_queue(&mut self, name: &Name) {
        if self.queues.get(name).is_some_and(WaitQueue::is_unused) {
            self.queues.remove(name);
        }
    }

    fn arm_channels(&mut self, cx: &mut Context) {
        match self.idle_channels.first() {
            Some(((at, _), ())) => cx.timers.arm(Timer::Channels, *at),
            None => cx.timers.disarm(Timer::Channels),
        }
    }

    /// Whether a handle of the lock through which this name came still exists.
    pub(super) fn has_handle(&self, cx: &Context, name: &Name) -> bool {
        let queued = self
            .queues
            .get_key_value(name)
            .is_some_and(|(queued, _)| Arc::ptr_eq(queued, name));
        (cx.config.is_shared)(name, 1 + usize::from(queued))
    }
}
