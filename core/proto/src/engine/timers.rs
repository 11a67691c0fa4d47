//! Timers: an ordered set with at most one entry for each item, and two lazy queues for holds,
//! which are many.
//!
//! A hold leaves its old entry behind when it is renewed, released or lost. The hold stores the
//! time of its valid entry, and other entries are skipped when they come due. A hold that needs
//! attention later than its entry says is looked at early. So a renewal costs one new entry, and an
//! acquire with its release never searches for one. Holds that are renewed together are due
//! together again and share an entry.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::interface::RequestId;
use super::links::LinkId;
use crate::maps::{Map, SortedMap, SortedSet};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::OwnerId;

/// An item that needs attention at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    Waiter(RequestId),
    Hold(OwnerId),
    PutOff(LinkId),
    Cleanup(OwnerId),
    Query(RequestId),
    /// A caller of a counter.
    Caller(RequestId),
    /// A caller of a multi lock.
    Multi(RequestId),
    /// The counters.
    Counters,
    Outage(LinkId),
    Channels,
    Close,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    due: SortedSet<(Moment, Timer)>,
    armed: Map<Timer, Moment>,
    /// Entries of holds with a due time of their own.
    holds: BinaryHeap<Reverse<(Moment, OwnerId)>>,
    /// Entries of holds that share a due time, and their number.
    together: SortedMap<Moment, VecDeque<OwnerId>>,
    gathered: usize,
}

impl Timers {
    /// Makes `timer` due at `at`; replaces the time it was armed for before.
    pub(super) fn arm(&mut self, timer: Timer, at: Moment) {
        if let Some(before) = self.armed.insert(timer, at) {
            if before == at {
                return;
            }
            self.due.remove(&(before, timer));
        }
        self.due.insert((at, timer), ());
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        if let Some(at) = self.armed.remove(&timer) {
            self.due.remove(&(at, timer));
        }
    }

    pub(super) fn first(&self) -> Option<Moment> {
        self.next().map(|(at, _)| at)
    }

    /// When the next item is due.
    fn next(&self) -> Option<(Moment, Timer)> {
        let hold = self
            .first_hold()
            .map(|(at, owner)| (at, Timer::Hold(owner)));
        if self.due.is_empty() {
            return hold;
        }
        self.due
            .keys()
            .next()
            .copied()
            .into_iter()
            .chain(hold)
            .min()
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<(Moment, Timer)> {
        let (at, timer) = self.next().filter(|(at, _)| *at <= now)?;
        if let Timer::Hold(_) = timer {
            self.pop_hold();
        } else {
            self.due.pop_first();
            self.armed.remove(&timer);
        }
        Some((at, timer))
    }

    // ---- holds ----

    /// Adds an entry for a hold. The caller stores `at` as the hold's alarm; the entry is valid as
    /// long as they match.
    pub(super) fn push_hold(&mut self, at: Moment, owner: OwnerId) {
        self.holds.push(Reverse((at, owner)));
    }

    /// Adds entries for many holds. Neighbours in `alarms` often have the same time and then share
    /// an entry.
    pub(super) fn push_holds(&mut self, alarms: &[(Moment, OwnerId)]) {
        for same in alarms.chunk_by(|one, next| one.0 == next.0) {
            if let [(at, owner)] = same {
                self.push_hold(*at, *owner);
            } else {
                self.together
                    .or_default(same[0].0)
                    .extend(same.iter().map(|(_, owner)| *owner));
                self.gathered += same.len();
            }
        }
    }

    pub(super) fn first_hold(&self) -> Option<(Moment, OwnerId)> {
        let single = self.holds.peek().map(|Reverse(first)| *first);
        if self.together.is_empty() {
            return single;
        }
        let shared = self
            .together
            .first()
            .and_then(|(at, owners)| Some((*at, *owners.front()?)));
        single.into_iter().chain(shared).min()
    }

    /// Removes the first entry.
    pub(super) fn pop_hold(&mut self) {
        let first = self.first_hold();
        if self.holds.peek().map(|Reverse(single)| *single) == first {
            self.holds.pop();
        } else if let Some((_, owners)) = self.together.first_mut() {
            owners.pop_front();
            self.gathered -= 1;
            if owners.is_empty() {
                self.together.pop_first();
            }
        }
    }

    /// Removes and returns the first entries that are due until `end`, at most `most`.
    pub(super) fn pop_holds(&mut self, end: Moment, most: usize) -> Vec<(Moment, OwnerId)> {
        let mut popped = Vec::new();
        while popped.len() < most
            && let Some(first) = self.first_hold().filter(|(at, _)| *at <= end)
        {
            let single = self.holds.peek().map(|Reverse(single)| *single);
            if single == Some(first) {
                self.holds.pop();
                popped.push(first);
            } else {
                self.pop_together(single, most - popped.len(), &mut popped);
            }
        }
        popped
    }

    /// Removes entries from the first shared slot, as long as they come before `single`.
    fn pop_together(
        &mut self,
        single: Option<(Moment, OwnerId)>,
        most: usize,
        popped: &mut Vec<(Moment, OwnerId)>,
    ) {
        let Some((&at, owners)) = self.together.first_mut() else {
            return;
        };
        let first = |owner: &&OwnerId| single.is_none_or(|single| (at, **owner) < single);
        let count = owners.iter().take(most).take_while(first).count();
        popped.extend(owners.drain(..count).map(|owner| (at, owner)));
        self.gathered -= count;
        if owners.is_empty() {
            self.together.pop_first();
        }
    }

    /// Drops stale entries when they are more than half of all, given the number of holds. Also
    /// gives back memory of the heap, which is large while most holds still have an entry of their
    /// own.
    pub(super) fn tidy_holds(&mut self, holds: usize, counts: impl Fn(Moment, OwnerId) -> bool) {
        if self.holds.len() + self.gathered > 2 * holds + tuning::STALE_TIMERS {
            self.holds
                .retain(|Reverse((at, owner))| counts(*at, *owner));
            self.together.retain(|at, owners| {
                owners.retain(|owner| counts(*at, *owner));
                !owners.is_empty()
            });
            self.gathered = self.together.values().map(VecDeque::len).sum();
        }
        if self.holds.capacity() > 4 * (self.holds.len() + tuning::STALE_TIMERS) {
            self.holds.shrink_to(2 * self.holds.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_due_once_at_the_moment_it_was_armed_for_last() {
        let mut timers = Timers::default();
        timers.arm(Timer::Query(1), Moment(10));
        timers.arm(Timer::Query(1), Moment(30));
        timers.arm(Timer::Waiter(2), Moment(20));
        assert_eq!(timers.first(), Some(Moment(20)));
        assert_eq!(timers.pop_due(Moment(19)), None);
        assert_eq!(
            timers.pop_due(Moment(40)),
            Some((Moment(20), Timer::Waiter(2)))
        );
        assert_eq!(
            timers.pop_due(Moment(40)),
            Some((Moment(30), Timer::Query(1)))
        );
        assert_eq!(timers.pop_due(Moment(40)), None);
        assert_eq!(timers.first(), None);
    }

    #[test]
    fn holds_come_in_their_turn_among_the_others() {
        let mut timers = Timers::default();
        timers.push_hold(Moment(30), 1);
        timers.push_hold(Moment(10), 2);
        timers.arm(Timer::Waiter(3), Moment(20));
        let due: Vec<Timer> =
            std::iter::from_fn(|| timers.pop_due(Moment(40)).map(|(_, timer)| timer)).collect();
        assert_eq!(due, [Timer::Hold(2), Timer::Waiter(3), Timer::Hold(1)]);
    }

    #[test]
    fn entries_that_do_not_count_are_forgotten_when_they_are_many() {
        let mut timers = Timers::default();
        for at in 0..200 {
            timers.push_hold(Moment(at), 7);
        }
        timers.tidy_holds(100, |_, _| false);
        assert_eq!(timers.holds.len(), 200);
        timers.tidy_holds(1, |at, _| at == Moment(9));
        assert_eq!((timers.holds.len(), timers.first()), (1, Some(Moment(9))));
    }

    #[test]
    fn holds_that_share_a_moment_come_one_by_one_among_the_others() {
        let mut timers = Timers::default();
        timers.push_holds(&[
            (Moment(20), 5),
            (Moment(20), 4),
            (Moment(10), 9),
            (Moment(30), 6),
            (Moment(30), 7),
        ]);
        timers.push_hold(Moment(25), 8);
        assert_eq!(
            (
                timers.pop_holds(Moment(9), 9),
                timers.pop_holds(Moment(29), 0)
            ),
            (vec![], vec![])
        );
        assert_eq!(
            timers.pop_holds(Moment(29), 2),
            [(Moment(10), 9), (Moment(20), 5)]
        );
        timers.push_hold(Moment(30), 6);
        assert_eq!(
            timers.pop_holds(Moment(29), 9),
            [(Moment(20), 4), (Moment(25), 8)]
        );
        assert_eq!(
            (timers.pop_holds(Moment(30), 2), timers.gathered),
            (vec![(Moment(30), 6); 2], 1)
        );
        timers.push_holds(&[(Moment(40), 1); 100]);
        timers.tidy_holds(2, |at, owner| (at, owner) == (Moment(30), 7));
        assert_eq!(
            (timers.first_hold(), timers.gathered),
            (Some((Moment(30), 7)), 1)
        );
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
