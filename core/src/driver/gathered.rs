//! Calls that leave together: those of one sort, for different locks, share a command.

use std::hash::BuildHasher;
use std::time::Duration;

use super::traffic::Sending;
use crate::maps::Hashing;
use crate::moment::Moment;
use crate::wire::{Name, Sort};

/// How many locks a command is for at most. More would save little, and the first of them waits for the answer of
/// the last: a lock takes the server about 3 us.
const MOST: usize = 32;

/// Calls that are waiting for the end of this turn of the engine's thread.
#[derive(Default)]
pub(super) struct Gathered {
    groups: Vec<Group>,
    /// A hash of the lock of each call: with many calls, a look at all names for each of them is slow.
    locks: Vec<u64>,
    hashing: Hashing,
}

/// Calls for one command.
pub(super) struct Group {
    pub(super) sort: Sort,
    /// When the first of them was handed over, and the time that all of them have.
    pub(super) sent: Moment,
    pub(super) limit: Duration,
    /// What the one of them has that has the most.
    most: Duration,
    pub(super) sendings: Vec<Sending>,
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How many calls there are.
    pub(super) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether one of the calls is for this lock, or perhaps, once in a blue moon, for another one.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.locks.contains(&self.hashing.hash_one(Some(name)))
    }

    pub(super) fn sendings(&self) -> impl Iterator<Item = &Sending> {
        self.groups.iter().flat_map(|group| &group.sendings)
    }

    /// Those with about the same time go together, in the time of the one that has least: a release has a part of
    /// what is left of its lease, and so each another.
    pub(super) fn add(&mut self, now: Moment, sort: Sort, sending: Sending) {
        let fits = |group: &&mut Group| {
            let left = now.until(group.sent.after(group.limit));
            let (less, more) = (left.min(sending.limit), group.most.max(sending.limit));
            group.sort == sort && more <= less * 2 && group.sendings.len() < MOST
        };
        self.locks.push(self.hashing.hash_one(sending.op.name()));
        match self.groups.iter_mut().find(fits) {
            Some(group) => {
                group.limit = group.limit.min(sending.limit);
                group.most = group.most.max(sending.limit);
                // Most are alone, or many.
                if let [_] = group.sendings[..] {
                    group.sendings.reserve_exact(MOST - 1);
                }
                group.sendings.push(sending);
            }
            None => {
                let limit = sending.limit;
                self.groups.push(Group { sort, sent: now, limit, most: limit, sendings: vec![sending] });
            }
        }
    }

    /// All of them, in the order of the first of each group.
    pub(super) fn take(&mut self) -> Vec<Group> {
        self.locks.clear();
        std::mem::take(&mut self.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Form, Op, Publish};

    fn release(call: u64, limit: u64) -> Sending {
        let name = Name::from(format!("n{call}"));
        let op = Op::Release {
            name,
            owner: 1,
            form: Form::default(),
            remaining: 0,
            ttl: Duration::ZERO,
            lesson: None,
        };
        Sending { call, op: op.into(), limit: Duration::from_micros(limit), hops: 0, asking: false }
    }

    #[test]
    fn it_knows_for_which_locks_its_calls_are() {
        let mut gathered = Gathered::default();
        for call in 1..=50 {
            let sending = release(call, 500_000);
            let name = sending.op.name().expect("one lock").clone();
            let sort = Sort::of(&sending.op, Publish::Classic).expect("a plain release");
            assert!(!gathered.has(&name));
            gathered.add(Moment::default(), sort, sending);
            assert!(gathered.has(&name));
        }
        assert_eq!(gathered.len(), 50);
        let groups: Vec<_> = gathered.take().iter().map(|group| group.sendings.len()).collect();
        assert_eq!(groups, [MOST, 50 - MOST]);
        assert!(gathered.is_empty() && !gathered.has(&Name::from("n1")));
    }

    /// One with half of the time after the other, the first had the time of the last.
    #[test]
    fn nobody_gets_less_than_half_of_his_time() {
        let mut gathered = Gathered::default();
        for (call, limit) in [(1, 1_000_000), (2, 500_000), (3, 250_000), (4, 130_000)] {
            let sending = release(call, limit);
            let sort = Sort::of(&sending.op, Publish::Classic).expect("a plain release");
            gathered.add(Moment::default(), sort, sending);
        }
        let groups: Vec<_> =
            gathered.take().iter().map(|group| (group.sendings.len(), group.limit.as_micros())).collect();
        assert_eq!(groups, [(2, 500_000), (2, 130_000)]);

        // The process was stopped in between.
        for (at, call) in [(0, 5), (60_000, 6)] {
            let sending = release(call, 100_000);
            let sort = Sort::of(&sending.op, Publish::Classic).expect("a plain release");
            gathered.add(Moment(at), sort, sending);
        }
        assert_eq!(gathered.take().len(), 2);
    }

    /// With a lease of less than 10 s no two releases had the same time, and each went alone.
    #[test]
    fn those_with_about_the_same_time_go_together_in_the_least_of_it() {
        let mut gathered = Gathered::default();
        for (call, limit) in [(1, 500_000), (2, 499_990), (3, 500_010), (4, 50_000)] {
            let sending = release(call, limit);
            let sort = Sort::of(&sending.op, Publish::Classic).expect("a plain release");
            gathered.add(Moment::default(), sort, sending);
        }
        let groups: Vec<_> =
            gathered.take().iter().map(|group| (group.sendings.len(), group.limit.as_micros())).collect();
        assert_eq!(groups, [(3, 499_990), (1, 50_000)]);
    }
}
