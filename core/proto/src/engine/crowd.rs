//! Crowds: many clients that wait for one name.
//!
//! A release wakes everybody who listens. So a waiter with several rivals, as its turns tell, asks for a
//! place in a set beside the lock with its try, and leaves a free lock to the first place there. If others
//! are before it, it listens to the channel of its place alone. A release by one that had a place wakes the
//! first place too. The set tells of no faults: where it is missing or denied, its clients wait as all
//! others do.
//!
//! The first place is told by its own refused try that nobody is before it. It then listens to the lock's
//! channel, because the holder may be a program that knows no places. Everybody else is behind one that
//! has a place in hand, who wakes the next. A waiter that leaves gives its place up, and wakes the next too.

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
}

impl Crowd {
    pub(super) const NONE: Crowd = Crowd {
        denied: false,
        place: None,
        ahead: None,
    };

    /// A try was in vain that asked for a place, with so many before it.
    pub(super) fn lost(&mut self, place: OwnerId, ahead: Option<u32>) {
        self.denied = ahead.is_none();
        self.place = ahead.is_some().then_some(place);
        self.ahead = ahead;
    }

    /// Its channel cannot be subscribed.
    pub(super) fn deny(&mut self) {
        *self = Crowd {
            denied: true,
            ..Crowd::NONE
        };
    }

    /// The place that the next try asks for. `due`: a message was to cause it, and did not. `hears`: the
    /// channel of its place is subscribed. `new`: the place of one that has none, and rivals.
    pub(super) fn next(&self, due: bool, hears: bool, new: Option<OwnerId>) -> Option<Place> {
        let Some(owner) = self.place else {
            let owner = new.filter(|_| !self.denied)?;
            return Some(Place {
                owner,
                first: false,
            });
        };
        let asks = hears || self.ahead == Some(0);
        asks.then_some(Place { owner, first: due })
    }

    /// This client got the lock, after it had waited for others or not.
    pub(super) fn won(&mut self, waited: bool) {
        let stays = waited && self.place.is_some() && self.ahead != Some(0);
        if stays {
            self.ahead = None;
        } else {
            *self = Crowd {
                denied: self.denied,
                ..Crowd::NONE
            };
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
