//! The batcher: calls that can be batched, for different locks, share a command.

use std::hash::BuildHasher;
use std::time::Duration;

use super::calls::OutgoingCall;
use crate::maps::Hashing;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{BatchKey, Name};

/// Calls that wait for the end of this turn of the I/O thread.
#[derive(Default)]
pub(super) struct Batcher {
    groups: Vec<Batch>,
    /// A hash of the lock of each call. With many calls, comparing every name for each new call
    /// would be slow.
    locks: Vec<u64>,
    hashing: Hashing,
}

/// Calls for one command.
pub(super) struct Batch {
    pub(super) sort: BatchKey,
    /// When the first call was handed over, and the time limit for all of them: the smallest of the
    /// calls' limits.
    pub(super) sent: Moment,
    pub(super) limit: Duration,
    /// The largest of the calls' limits.
    most: Duration,
    pub(super) sendings: Vec<OutgoingCall>,
}

impl Batcher {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of calls.
    pub(super) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether one of the calls is for this lock. Very rarely a hash collision makes this true for
    /// another lock.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.locks.contains(&self.hashing.hash_one(Some(name)))
    }

    pub(super) fn sendings(&self) -> impl Iterator<Item = &OutgoingCall> {
        self.groups.iter().flat_map(|group| &group.sendings)
    }

    /// Adds a call to a batch with about the same limit. The batch gets the smallest of its limits,
    /// and no call loses more than half of its own. Equal limits would be too strict: the limit of
    /// a release is a part of what remains of its lease, so it differs for each.
    pub(super) fn add(&mut self, now: Moment, sort: BatchKey, sending: OutgoingCall) {
        let fits = |group: &&mut Batch| {
            let left = now.until(group.sent.after(group.limit));
            let (less, more) = (left.min(sending.limit), group.most.max(sending.limit));
            group.sort == sort && more <= less * 2 && group.sendings.len() < tuning::BATCH_LOCKS
        };
        self.locks.push(self.hashing.hash_one(sending.op.name()));
        match self.groups.iter_mut().find(fits) {
            Some(group) => {
                group.limit = group.limit.min(sending.limit);
                group.most = group.most.max(sending.limit);
                // Most batches have a single call, or many.
                if let [_] = group.sendings[..] {
                    group.sendings.reserve_exact(tuning::BATCH_LOCKS - 1);
                }
                group.sendings.push(sending);
            }
            None => {
                let limit = sending.limit;
                self.groups.push(Batch {
                    sort,
                    sent: now,
                    limit,
                    most: limit,
                    sendings: vec![sending],
                });
            }
        }
    }

    /// Takes all batches, in the order of their first calls.
    pub(super) fn take(&mut self) -> Vec<Batch> {
        self.locks.clear();
        std::mem::take(&mut self.groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Form, Op, Publish, Release};

    fn release(call: u64, limit: u64) -> OutgoingCall {
        let name = Name::from(format!("n{call}"));
        let op = Op::Release(Release::of(name, 1, Form::default()));
        OutgoingCall {
            call,
            op: op.into(),
            limit: Duration::from_micros(limit),
            hops: 0,
            asking: false,
        }
    }

    #[test]
    fn it_knows_for_which_locks_its_calls_are() {
        let mut gathered = Batcher::default();
        for call in 1..=50 {
            let sending = release(call, 500_000);
            let name = sending.op.name().expect("one lock").clone();
            let sort = BatchKey::of(&sending.op, Publish::Classic).expect("a plain release");
            assert!(!gathered.has(&name));
            gathered.add(Moment::default(), sort, sending);
            assert!(gathered.has(&name));
        }
        assert_eq!(gathered.len(), 50);
        let groups: Vec<_> = gathered
            .take()
            .iter()
            .map(|group| group.sendings.len())
            .collect();
        assert_eq!(groups, [tuning::BATCH_LOCKS, 50 - tuning::BATCH_LOCKS]);
        assert!(gathered.is_empty() && !gathered.has(&Name::from("n1")));
    }

    /// Gathers releases with these numbers and limits in µs. Returns the size and the limit of each
    /// batch.
    fn groups(gathered: &mut Batcher, releases: &[(u64, u64)]) -> Vec<(usize, u128)> {
        for &(call, limit) in releases {
            let sending = release(call, limit);
            let sort = BatchKey::of(&sending.op, Publish::Classic).expect("a plain release");
            gathered.add(Moment::default(), sort, sending);
        }
        let size = |group: &Batch| (group.sendings.len(), group.limit.as_micros());
        gathered.take().iter().map(size).collect()
    }

    /// If each call had only to fit the last one of a batch, limits could halve again and again
    /// within a batch.
    #[test]
    fn nobody_gets_less_than_half_of_his_time() {
        let mut gathered = Batcher::default();
        assert_eq!(
            groups(
                &mut gathered,
                &[(1, 1_000_000), (2, 500_000), (3, 250_000), (4, 130_000)]
            ),
            [(2, 500_000), (2, 130_000)]
        );

        // The process was stopped in between.
        for (at, call) in [(0, 5), (60_000, 6)] {
            let sending = release(call, 100_000);
            let sort = BatchKey::of(&sending.op, Publish::Classic).expect("a plain release");
            gathered.add(Moment(at), sort, sending);
        }
        assert_eq!(gathered.take().len(), 2);
    }

    /// With leases of less than 10 s, no two releases have equal limits.
    #[test]
    fn those_with_about_the_same_time_go_together_in_the_least_of_it() {
        let mut gathered = Batcher::default();
        assert_eq!(
            groups(
                &mut gathered,
                &[(1, 500_000), (2, 499_990), (3, 500_010), (4, 50_000)]
            ),
            [(3, 499_990), (1, 50_000)]
        );
    }
}
