//! Holds whose fixed lease ran out after their caller had left them to end by themselves.
//!
//! Only their re-entry keys can still ask for such holds, and they are told that the hold is lost.
//! Most keys never ask: a thread may leave leases on ever new names to run out. So old ones are
//! forgotten, unless a handle of the lock through which the hold was acquired still exists.

use super::hold::Hold;
use super::holds::Holds;
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

impl Expired {
    /// Records a hold that has run out. Returns the holds to be forgotten.
    pub(super) fn add(
        &mut self,
        owner: OwnerId,
        holds: &Holds,
        has_handle: impl Fn(&Hold) -> bool,
    ) -> Vec<OwnerId> {
        self.owners.push(owner);
        // The threshold doubles with what a sweep keeps, so each entry is visited a few times only.
        if self.owners.len() <= 2 * self.kept.max(tuning::EXPIRED_KEPT) {
            return Vec::new();
        }
        let mut left: Vec<OwnerId> = std::mem::take(&mut self.owners);
        left.retain(|owner| holds.get(owner).is_some_and(|hold| hold.has_run_out()));
        let lately = left.split_off(left.len().saturating_sub(tuning::EXPIRED_KEPT));
        let (asked_for, over): (Vec<OwnerId>, Vec<OwnerId>) = left
            .into_iter()
            .partition(|owner| holds.get(owner).is_some_and(&has_handle));
        self.owners = asked_for;
        self.owners.extend(lately);
        self.kept = self.owners.len();
        over
    }
}
