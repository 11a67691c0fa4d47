//! Crowds: many clients that wait for one name.
//!
//! A release wakes everybody who listens. So a waiter with several rivals, as its turns tell, asks for a
//! place in a set beside the lock with its try, and leaves a free lock to the first place there. If others
//! are before it, it listens to the channel of its place alone. A release by one that had a place wakes the
//! first place too. The set tells of no faults: where it is missing or denied, its clients wait as all
//! others do.
//!
//! The first place is told by its own refused try that nobody is before it. It then listens to the lock's
//! channel, because the holder may be a program that knows no places. If it learns so by a look, a release wakes
//! the next one beside it, and it keeps its place. Everybody else is behind one that
//! has a place in hand, who wakes the next. A waiter that leaves gives its place up. At a lock it wakes the next
//! only if it was the first: that one may listen to the lock's channel alone, and would seem to be gone.
//!
//! Permits have several holders, who may all be programs that know no places. So the first places, one more
//! than permits are free, always listen to the semaphore's channel. Whoever takes a permit tells the next
//! ones that they are among the first now (`tell`), and each may take what is not left to those before it.
//! Their releases know nothing of a crowd.

use crate::wire::{OwnerId, Place, Topic};

/// What this client knows of the crowd at a name.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Crowd {
    /// The set cannot be used.
    denied: bool,
    /// The place of this client, whichever of its callers waits. It may not be in the set.
    pub(super) place: Option<OwnerId>,
    /// How many were before it when the server last told, if it may be in the set.
    pub(super) ahead: Option<u32>,
    /// Whether it is told that it is the first, as waiters for permits are.
    pub(super) is_told: bool,
    /// Whether it has been told so, and asks for a place again next time.
    stays: bool,
}

impl Crowd {
    pub(super) const NONE: Crowd = Crowd {
        denied: false,
        place: None,
        ahead: None,
        is_told: false,
        stays: false,
    };

    /// A try was in vain that asked for a place, with so many before it.
    pub(super) fn lost(&mut self, place: OwnerId, ahead: Option<u32>) {
        self.denied = ahead.is_none();
        self.place = ahead.is_some().then_some(place);
        self.ahead = ahead;
    }

    /// Its place is given up.
    pub(super) fn leave(&mut self) {
        *self = Crowd {
            denied: self.denied,
            ..Crowd::NONE
        };
    }

    pub(super) fn is_denied(&self) -> bool {
        self.denied
    }

    /// Its channel cannot be subscribed.
    pub(super) fn deny(&mut self) {
        *self = Crowd {
            denied: true,
            ..Crowd::NONE
        };
    }

    /// It is the first now, so it listens to the channel of the lock.
    pub(super) fn tell(&mut self) {
        (self.ahead, self.stays) = (Some(0), true);
    }

    /// Whether the set may have a place of this client that nobody but itself ends.
    pub(super) fn is_left_behind(&self) -> bool {
        self.is_told && self.ahead.is_some()
    }

    /// Whether a release of this client leaves the turn to the crowd.
    pub(super) fn is_known(&self) -> bool {
        self.place.is_some() || self.stays
    }

    /// Whether it asks for a place, if it has none. `rivals`: several others want the lock.
    pub(super) fn joins(&self, rivals: bool) -> bool {
        self.place.is_none() && !self.denied && (rivals || self.stays)
    }

    /// The place that the next try asks for. `due`: a message was to cause it, and did not. `hears`: the
    /// channel of its place is subscribed. `new`: the place of one that joins.
    pub(super) fn next(&self, due: bool, hears: bool, new: Option<OwnerId>) -> Option<Place> {
        let Some(owner) = self.place else {
            let owner = new?;
            return Some(Place {
                owner,
                first: false,
            });
        };
        let asks = hears || self.ahead == Some(0) || self.is_told;
        asks.then_some(Place { owner, first: due })
    }

    /// This client got the lock, after it had waited for others or not.
    pub(super) fn won(&mut self, waited: bool) {
        if self.is_told {
            *self = Crowd {
                denied: self.denied,
                stays: self.stays && waited,
                ..Crowd::NONE
            };
            return;
        }
        let stays = waited && self.place.is_some() && self.ahead != Some(0);
        if stays {
            self.ahead = None;
        } else {
            self.leave();
        }
    }

    /// Whether somebody is before this client, who will wake it.
    pub(super) fn is_behind(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead > 0)
    }

    /// The channel of its place, unless it is the first.
    pub(super) fn topic(&self) -> Option<Topic> {
        let place = self.place.filter(|_| self.ahead != Some(0));
        place.map(Topic::Place)
    }
}
