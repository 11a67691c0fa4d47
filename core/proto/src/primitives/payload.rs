//! The part of an acquisition that only its primitive has.

use std::time::Duration;

use crate::wire::ids::OwnerId;

/// The terms of an acquisition that only some primitives have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    /// How many permits the semaphore gets if it has none yet; 0 to leave that to others.
    pub limit: u32,
    /// Whether it takes the lock from all that have it and comes before all that wait. That is a
    /// try of the write side of a read-write lock, as an owner of its own.
    pub steal: bool,
    /// How long a reader of a read-write lock stands back for writers of other clients that wait,
    /// and how long one call of a waiting writer keeps new readers back.
    pub writer_preference: Option<Duration>,
}

impl Special {
    pub const NONE: Special = Special {
        limit: 0,
        steal: false,
        writer_preference: None,
    };
}

/// The part of an acquisition that only its primitive has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A lock with one holder. Its place in the crowd that waits is taken if the lock is not, and
    /// given up with the lock.
    Whole(Option<Place>),
    /// The read side of a read-write lock.
    Read {
        /// The owner of the write lock under which it reads.
        under: Option<OwnerId>,
        /// The mark of waiting writers counts: it is refused while that is there.
        mark: Option<Duration>,
    },
    /// The write side.
    Write {
        /// Whether it ends the holds of all others first. A copy that arrives late would rob the next
        /// holder, so there is one copy.
        steal: bool,
        /// If it is refused, it sets the mark of waiting writers for so long.
        mark: Option<Duration>,
        /// As of a lock with one holder. Nobody in a crowd sets that mark.
        place: Option<Place>,
    },
    /// A fair lock.
    Queued(Seat),
    /// Permits of a semaphore that gets so many if it has none yet. 0: somebody else sets that.
    Permits(u32, Option<Place>),
    /// The same in fair mode.
    QueuedPermits(u32, Seat),
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Whole(None)
    }
}

impl Payload {
    pub fn place(&self) -> Option<Place> {
        match self {
            Payload::Whole(place) | Payload::Write { place, .. } | Payload::Permits(_, place) => {
                *place
            }
            _ => None,
        }
    }

    /// Whether the server may tell how many waiters are before it.
    pub(crate) fn waits_in_line(&self) -> bool {
        self.place().is_some() || matches!(self, Payload::QueuedPermits(..))
    }

    /// Gives it this place, if its primitive has crowds.
    pub fn stand_at(&mut self, at: Option<Place>) {
        if let Payload::Whole(place) | Payload::Write { place, .. } | Payload::Permits(_, place) =
            self
        {
            *place = at;
        }
    }

    pub fn seat(&self) -> Option<&Seat> {
        match self {
            Payload::Queued(seat) | Payload::QueuedPermits(_, seat) => Some(seat),
            _ => None,
        }
    }

    pub fn limit(&self) -> u32 {
        match self {
            Payload::Permits(limit, _) | Payload::QueuedPermits(limit, _) => *limit,
            _ => 0,
        }
    }
}

/// What a waiter of a queue that Redis keeps asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seat {
    /// Whether it takes a place if it does not get the lock. A place that it has is kept for
    /// [`PLACE_KEPT`](crate::tuning::PLACE_KEPT) from now.
    pub queues: bool,
    /// Its earlier owners. It takes the place of one of them.
    pub earlier: Vec<OwnerId>,
}

/// A place in a crowd, and whether it takes a free lock although it is not the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub owner: OwnerId,
    pub first: bool,
}
