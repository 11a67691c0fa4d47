//! The names that callers of this client hold or wait for, and the queue of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::slice;

use super::channel::Channel;
use super::interface::RequestId;
use super::lazy_box::Idle;
use super::turn::{Run, Turn};
use super::waiter::Waiter;
use crate::maps::Map;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Name, OwnerId};

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
    pub(super) hinted: Option<Moment>,
    /// How many tries in vain were caused by invalidations, less the other tries in vain.
    pub(super) hints: u8,
    /// When somebody else was last known to have the lock, as far as that concerns the present
    /// waiters.
    pub(super) refused: Option<Moment>,
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
