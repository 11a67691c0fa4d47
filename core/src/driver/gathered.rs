//! Calls that leave together: those of one sort, for different locks, share a command.

use std::time::Duration;

use super::link::Sending;
use crate::moment::Moment;
use crate::wire::{Name, Sort};

/// How many locks a command is for at most. More would save little, and the first of them waits for the answer of
/// the last: a lock takes the server about 3 us.
const MOST: usize = 32;

/// Calls that are waiting for the end of this turn of the engine's thread.
#[derive(Default)]
pub(super) struct Gathered {
    groups: Vec<Group>,
}

/// Calls for one command.
pub(super) struct Group {
    pub(super) sort: Sort,
    /// When the first of them was handed over, and the time that each of them has.
    pub(super) sent: Moment,
    pub(super) limit: Duration,
    pub(super) sendings: Vec<Sending>,
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether one of the calls is for this lock.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.sendings().any(|sending| sending.op.name() == Some(name))
    }

    pub(super) fn sendings(&self) -> impl Iterator<Item = &Sending> {
        self.groups.iter().flat_map(|group| &group.sendings)
    }

    pub(super) fn add(&mut self, now: Moment, sort: Sort, sending: Sending) {
        let fits = |group: &&mut Group| {
            group.sort == sort && group.limit == sending.limit && group.sendings.len() < MOST
        };
        match self.groups.iter_mut().find(fits) {
            Some(group) => group.sendings.push(sending),
            None => {
                let limit = sending.limit;
                self.groups.push(Group { sort, sent: now, limit, sendings: vec![sending] });
            }
        }
    }

    /// All of them, in the order of the first of each group.
    pub(super) fn take(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.groups)
    }
}
