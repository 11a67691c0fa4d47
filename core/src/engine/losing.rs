//! Losing a hold, and unwinding what was lost.

use super::commanding::{Task, Wish};
use super::holding::{Hold, Phase, unconfirmed};
use super::{Engine, LevelId, Output};
use crate::error::{Error, LostReason};
use crate::event::Level as EventLevel;
use crate::wire::{Name, OwnerId};

impl Engine {
    /// The hold can no longer be relied on. Final: its levels can only be unwound.
    pub(super) fn lose(&mut self, owner: OwnerId, reason: LostReason) {
        let reason = self.seen_from_here(owner, reason);
        let Some(hold) = self.holds.get_mut(&owner).filter(|hold| !hold.is_lost()) else {
            return;
        };
        hold.phase = Phase::Lost(reason);
        hold.renewal = Default::default();
        hold.alarm = Default::default();
        let (cell, ran_out, tasks) = (hold.cell.clone(), hold.has_run_out(), hold.take_tasks());
        self.tell_loss(owner, reason);
        let (anew, over): (Vec<Task>, Vec<Task>) =
            tasks.into_iter().partition(|task| ran_out && task.is_entry_of(cell.key));
        for task in over {
            self.unwind(owner, &cell.name, task, reason);
        }
        self.unwind_abandoned(owner);
        self.advance(&cell.name);
        for task in anew {
            self.outlive(&cell.name, &cell.form(), task);
        }
        self.note_run_out(owner);
    }

    /// Tells those who rely on a hold that it is lost, and the server.
    fn tell_loss(&mut self, owner: OwnerId, reason: LostReason) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let (cell, longest, lingers) = (hold.cell.clone(), hold.longest(), hold.lingers);
        let level = hold.told_at(EventLevel::Warn);
        self.counters.lost.add(1);
        self.event("lost", level, &cell.name, format!("lost ({reason}): {}", reason.meaning()));
        // Nobody relies on a hold that is being released: the release itself reports the loss.
        if cell.set_lost(reason) {
            self.out.push(Output::Lost(cell.clone(), reason));
        }
        // Of a lock that lingers the rest is left to its lease, which others may have extended.
        if !lingers {
            self.clean_up(&cell.name, owner, &cell.form(), longest, None);
        }
    }

    /// What is deleted while a force-release of our own is under way was deleted by that: a renewal on another
    /// connection may tell before its answer comes.
    fn seen_from_here(&self, owner: OwnerId, reason: LostReason) -> LostReason {
        let forced = |hold: &Hold| self.is_forcing(&hold.cell.name);
        match reason {
            LostReason::Deleted if self.holds.get(&owner).is_some_and(forced) => LostReason::Forced,
            other => other,
        }
    }

    /// A task on a lost hold: releasing unwinds a level, and everything reports the loss.
    pub(super) fn unwind(&mut self, owner: OwnerId, name: &Name, task: Task, reason: LostReason) {
        let error = match task.wish {
            Wish::Leave(level) => self.unwind_level(owner, level).err(),
            Wish::Enter { .. } => Some(Error::lost_before(name, reason)),
            // The lock may have been lost after this caller.
            Wish::Passed if !is_seen(reason) => Some(unconfirmed().on(name)),
            _ => None,
        };
        let error = error.unwrap_or_else(|| Error::lost(name, reason));
        self.answer(task.request, Err(error));
        self.end_if_unwound(owner);
    }

    fn unwind_level(&mut self, owner: OwnerId, level: Option<LevelId>) -> Result<(), Error> {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return Ok(());
        };
        let (cell, longest) = (hold.cell.clone(), hold.longest());
        if !hold.take_out(level) {
            return Err(Error::released_before("level").on(&cell.name));
        }
        self.clean_up(&cell.name, owner, &cell.form(), longest, None);
        Ok(())
    }

    fn end_if_unwound(&mut self, owner: OwnerId) {
        if self.holds.get(&owner).is_some_and(|hold| hold.levels.is_empty()) {
            self.end_hold(owner);
        }
    }

    /// Levels that nobody can release any more go when the hold is lost.
    pub(super) fn unwind_abandoned(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.levels.retain(|level| !level.abandoned);
        hold.cell.set_count(hold.count());
        self.end_if_unwound(owner);
    }

    /// Somebody of this client has deleted the key, which the server does not tell us as an
    /// invalidation. A hold on its way out hears it from its own release.
    pub(super) fn lose_forced(&mut self, name: &Name) {
        for owner in self.holds_on(name) {
            if self.holds.get(&owner).is_some_and(|hold| hold.phase == Phase::Held) {
                self.lose(owner, LostReason::Forced);
            }
        }
    }

    /// The holds of this client on a name.
    pub(super) fn holds_on(&self, name: &Name) -> Vec<OwnerId> {
        self.queues.get(name).map(|queue| queue.holds().to_vec()).unwrap_or_default()
    }
}

/// Whether the server has said that the lock was gone.
fn is_seen(reason: LostReason) -> bool {
    matches!(reason, LostReason::Deleted | LostReason::Stolen | LostReason::Forced)
}
