//! What callers want of a number that is all there is at its name: neither owners nor leases.

use crate::error::Thing;
use crate::primitives::facts::Topic;

/// A number that is all there is at its name: neither owners nor leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// The permits of a plain semaphore, as Redisson's `RSemaphore`.
    Semaphore,
    /// A count-down latch, as Redisson's `RCountDownLatch`.
    Latch,
}

impl Counter {
    /// The thing that it is for its callers.
    pub fn thing(self) -> Thing {
        match self {
            Counter::Semaphore => Thing::Semaphore,
            Counter::Latch => Thing::Latch,
        }
    }

    /// The channel on which its changes are published.
    pub fn topic(self) -> Topic {
        match self {
            Counter::Semaphore => Topic::Semaphore,
            Counter::Latch => Topic::Latch,
        }
    }
}

/// A change of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Give permits back, and then take some: for one caller after the other, as long as there are
    /// enough for the next one.
    Trade { given: u32, wanted: Vec<u32> },
    /// Give a semaphore so many permits if it has no number yet.
    SetPermits(u32),
    /// Add permits; a negative number takes them away, and the semaphore may get below 0.
    AddPermits(i64),
    /// Take all permits that there are.
    Drain,
    /// Give a latch this count if it has none.
    SetCount(u32),
    /// Count a latch down.
    CountDown(u32),
}

impl Change {
    /// Gives permits back and takes none.
    pub fn give(permits: u32) -> Self {
        Change::Trade {
            given: permits,
            wanted: Vec::new(),
        }
    }

    /// Whether it goes on when its caller leaves: it says what has happened already.
    pub fn is_kept(&self) -> bool {
        matches!(self, Change::Trade { .. } | Change::CountDown(_))
    }

    pub fn counter(&self) -> Counter {
        match self {
            Change::Trade { .. } | Change::SetPermits(_) => Counter::Semaphore,
            Change::AddPermits(_) | Change::Drain => Counter::Semaphore,
            Change::SetCount(_) | Change::CountDown(_) => Counter::Latch,
        }
    }
}
