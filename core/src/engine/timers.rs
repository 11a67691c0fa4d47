//! What is due when: one ordered set, at most one entry per thing.

use std::collections::BTreeSet;

use super::{LinkId, RequestId};
use crate::maps::Map;
use crate::moment::Moment;
use crate::wire::OwnerId;

/// A thing that wants attention at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    Waiter(RequestId),
    Hold(OwnerId),
    Cleanup(OwnerId),
    Query(RequestId),
    Outage(LinkId),
    Channels,
    Close,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Moment, Timer)>,
    armed: Map<Timer, Moment>,
}

impl Timers {
    /// Makes `timer` due at `at`, and not at the moment it was armed for before.
    pub(super) fn arm(&mut self, timer: Timer, at: Moment) {
        if let Some(before) = self.armed.insert(timer, at) {
            if before == at {
                return;
            }
            self.due.remove(&(before, timer));
        }
        self.due.insert((at, timer));
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        if let Some(at) = self.armed.remove(&timer) {
            self.due.remove(&(at, timer));
        }
    }

    pub(super) fn first(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Timer> {
        let (at, timer) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        self.armed.remove(&timer);
        Some(timer)
    }

    /// The holds that want attention until `end`, soonest first.
    pub(super) fn holds_until(&self, end: Moment) -> impl Iterator<Item = OwnerId> + '_ {
        self.due.iter().take_while(move |(at, _)| *at <= end).filter_map(|(_, timer)| match timer {
            Timer::Hold(owner) => Some(*owner),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_due_once_at_the_moment_it_was_armed_for_last() {
        let mut timers = Timers::default();
        timers.arm(Timer::Hold(1), Moment(10));
        timers.arm(Timer::Hold(1), Moment(30));
        timers.arm(Timer::Waiter(2), Moment(20));
        assert_eq!(timers.first(), Some(Moment(20)));
        assert_eq!(timers.pop_due(Moment(19)), None);
        assert_eq!(timers.pop_due(Moment(40)), Some(Timer::Waiter(2)));
        assert_eq!(timers.pop_due(Moment(40)), Some(Timer::Hold(1)));
        assert_eq!(timers.pop_due(Moment(40)), None);
        assert_eq!(timers.first(), None);
    }

    #[test]
    fn a_disarmed_timer_leaves_nothing() {
        let mut timers = Timers::default();
        timers.arm(Timer::Outage(0), Moment(1));
        timers.disarm(Timer::Outage(0));
        timers.disarm(Timer::Close);
        assert!(timers.due.is_empty() && timers.armed.is_empty());
    }
}
