//! Holds whose fixed lease ran out after their caller had left them to end by themselves.
//!
//! Only their re-entry keys can still ask for such holds, and they are told that the hold is lost.
//! Most keys never ask: a thread may leave leases on ever new names to run out. So old ones are
//! forgotten, unless a handle of the lock through which the hold was acquired still exists.

use std::sync::Arc;

use super::Engine;
use super::hold::Hold;
use crate::key::OwnerKey;
use crate::tuning;
use crate::wire::OwnerId;

/// The holds that have run out.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Oldest first. Some of them may have ended since.
    owners: Vec<OwnerId>,
    /// How many entries the last sweep kept.
    kept: usize,
}

impl Engine {
    /// Records the hold if it has run out.
    pub(super) fn note_run_out(&mut self, owner: OwnerId) {
        if !self
            .holds
            .get(&owner)
            .is_some_and(|hold| hold.has_run_out())
        {
            return;
        }
        self.run_out.owners.push(owner);
        // The threshold doubles with what a sweep keeps, so each entry is visited a few times only.
        if self.run_out.owners.len() > 2 * self.run_out.kept.max(tuning::EXPIRED_KEPT) {
            self.forget_long_ago();
        }
    }

    fn forget_long_ago(&mut self) {
        let mut left: Vec<OwnerId> = std::mem::take(&mut self.run_out.owners);
        left.retain(|owner| self.holds.get(owner).is_some_and(|hold| hold.has_run_out()));
        let lately = left.split_off(left.len().saturating_sub(tuning::EXPIRED_KEPT));
        let (asked_for, over): (Vec<OwnerId>, Vec<OwnerId>) = left.into_iter().partition(|owner| {
            self.holds
                .get(owner)
                .is_some_and(|hold| self.has_handle(hold))
        });
        over.into_iter().for_each(|owner| self.forget(owner));
        self.run_out.owners = asked_for;
        self.run_out.owners.extend(lately);
        self.run_out.kept = self.run_out.owners.len();
    }

    /// Whether a handle of the lock through which this hold was acquired still exists.
    fn has_handle(&self, hold: &Hold) -> bool {
        let name = &hold.cell.name;
        let queued = self
            .names
            .queues
            .get_key_value(name)
            .is_some_and(|(queued, _)| Arc::ptr_eq(queued, name));
        (self.cx.config.is_shared)(name, 1 + usize::from(queued))
    }

    /// Forgets the hold if it has run out and belongs to `key`, which is about to acquire anew.
    /// Guards of the old hold can still ask what became of it.
    pub(super) fn forget_run_out(&mut self, owner: OwnerId, key: OwnerKey) -> bool {
        let over = self
            .holds
            .get(&owner)
            .is_some_and(|hold| hold.has_run_out() && hold.cell.key == key);
        if over {
            self.forget(owner);
        }
        over
    }

    /// Forgets a hold that has run out.
    fn forget(&mut self, owner: OwnerId) {
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.levels.clear();
            hold.cell.set_forgotten();
            self.end_hold(owner);
        }
    }
}
