//! Holds that ended with a fixed lease which their key had left to itself.
//!
//! Only their keys can ask for them any more, and are told that they are lost. Most keys never ask: a thread may leave
//! leases on ever new names to run out. What ran out long ago is forgotten, then, where nobody has the handle any more
//! through which it was acquired.

use std::sync::Arc;

use super::Engine;
use super::holding::Hold;
use crate::owner::Key;
use crate::wire::OwnerId;

/// So many are not long ago.
const LATELY: usize = 1024;

/// Which holds have run out.
#[derive(Debug, Default)]
pub(super) struct RunOut {
    /// Oldest first. Some are unwound.
    owners: Vec<OwnerId>,
    /// How many there were when it was last looked which can be forgotten.
    kept: usize,
}

impl Engine {
    /// The hold may be one that has run out.
    pub(super) fn note_run_out(&mut self, owner: OwnerId) {
        if !self.holds.get(&owner).is_some_and(|hold| hold.has_run_out()) {
            return;
        }
        self.run_out.owners.push(owner);
        // So that each is looked at a few times only, however many there are.
        if self.run_out.owners.len() > 2 * self.run_out.kept.max(LATELY) {
            self.forget_long_ago();
        }
    }

    fn forget_long_ago(&mut self) {
        let mut left: Vec<OwnerId> = std::mem::take(&mut self.run_out.owners);
        left.retain(|owner| self.holds.get(owner).is_some_and(|hold| hold.has_run_out()));
        let lately = left.split_off(left.len().saturating_sub(LATELY));
        let (asked_for, over): (Vec<OwnerId>, Vec<OwnerId>) = left
            .into_iter()
            .partition(|owner| self.holds.get(owner).is_some_and(|hold| self.has_handle(hold)));
        over.into_iter().for_each(|owner| self.forget(owner));
        self.run_out.owners = asked_for;
        self.run_out.owners.extend(lately);
        self.run_out.kept = self.run_out.owners.len();
    }

    /// Whether somebody else has the name of this hold: the handle through which it was acquired has that very one.
    fn has_handle(&self, hold: &Hold) -> bool {
        let name = &hold.cell.name;
        let queued = self.queues.get_key_value(name).is_some_and(|(queued, _)| Arc::ptr_eq(queued, name));
        Arc::strong_count(name) > 1 + usize::from(queued)
    }

    /// The key of a hold that has run out acquires anew: what it had is over, and only guards can ask for it.
    pub(super) fn forget_run_out(&mut self, owner: OwnerId, key: Key) -> bool {
        let over = self.holds.get(&owner).is_some_and(|hold| hold.has_run_out() && hold.cell.key == key);
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
