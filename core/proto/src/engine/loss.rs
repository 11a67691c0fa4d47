//! Losing a hold, and unwinding its levels afterwards.

use super::Engine;
use super::errors::unconfirmed;
use super::hold::{Hold, Phase};
use super::interface::{LevelId, Output};
use super::work::{HoldOp, Task};
use crate::error::{Error, LostReason};
use crate::event::Level as EventLevel;
use crate::wire::{Name, OwnerId};

impl Engine {
    /// Declares the hold lost: its caller cannot rely on it any more. This is final, and its levels
    /// can only be unwound.
    pub(super) fn lose(&mut self, owner: OwnerId, reason: LostReason) {
        let reason = self.seen_from_here(owner, reason);
        let Some(hold) = self.holds.get_mut(&owner).filter(|hold| !hold.is_lost()) else {
            return;
        };
        let ends = matches!(reason, LostReason::Expired | LostReason::Unreachable)
            && hold.ends_by_itself(self.cx.now);
        hold.phase = Phase::Lost(reason);
        hold.renewal = Default::default();
        hold.alarm = Default::default();
        let (cell, ran_out, tasks) = (hold.cell.clone(), hold.has_run_out(), hold.take_tasks());
        self.tell_loss(owner, reason, ends);
        let (anew, over): (Vec<Task>, Vec<Task>) = tasks
            .into_iter()
            .partition(|task| ran_out && task.is_entry_of(cell.key));
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

    /// Tells the holder of the loss, and releases the lock on the server unless it `ends` there by
    /// itself. After an outage many holds are lost at once, and the server needs its time for the
    /// holds that can still be renewed.
    fn tell_loss(&mut self, owner: OwnerId, reason: LostReason, ends: bool) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let (cell, longest, lingers) = (hold.cell.clone(), hold.longest(), hold.lingers);
        let level = hold.told_at(EventLevel::Warn);
        self.cx.counters.lost.add(1);
        self.cx.event(
            "lost",
            level,
            &cell.name,
            format!("lost ({reason}): {}", reason.meaning()),
        );
        // The cell of a hold that is being released refuses: its release reports the loss.
        if cell.set_lost(reason) {
            self.cx.out.push(Output::Lost(cell.clone(), reason));
        }
        // A lock that lingers is left to its lease, because other programs may have extended it.
        if !lingers && !ends {
            self.clean_up(&cell.name, owner, &cell.form(), longest, None);
        }
    }

    /// The reason of a loss as this client knows it. While a force-release of this client is in
    /// flight, a deleted key was deleted by that. A renewal on another connection may report the
    /// deletion before the force-release is answered.
    fn seen_from_here(&self, owner: OwnerId, reason: LostReason) -> LostReason {
        let forced = |hold: &Hold| self.is_forcing(&hold.cell.name);
        match reason {
            LostReason::Deleted if self.holds.get(&owner).is_some_and(forced) => LostReason::Forced,
            other => other,
        }
    }

    /// Answers a task on a lost hold. A release unwinds its level, and every task reports the loss.
    pub(super) fn unwind(&mut self, owner: OwnerId, name: &Name, task: Task, reason: LostReason) {
        let error = match task.wish {
            HoldOp::Leave(level) => self.unwind_level(owner, level).err(),
            HoldOp::Enter { .. } => Some(Error::lost_before(name, reason)),
            // The lock may have been lost after this caller had passed it on.
            HoldOp::Passed if !is_seen(reason) => Some(unconfirmed().on(name)),
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
        if self
            .holds
            .get(&owner)
            .is_some_and(|hold| hold.levels.is_empty())
        {
            self.end_hold(owner);
        }
    }

    /// Removes the levels that no caller can release any more.
    pub(super) fn unwind_abandoned(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.levels.retain(|level| !level.abandoned);
        hold.cell.set_count(hold.count());
        self.end_if_unwound(owner);
    }

    /// A caller of this client has deleted the key. The server sends no invalidation to the client
    /// that made the change. For a hold that is being released, the release reports the loss.
    pub(super) fn lose_forced(&mut self, name: &Name) {
        for owner in self.holds_on(name) {
            if self
                .holds
                .get(&owner)
                .is_some_and(|hold| hold.phase == Phase::Held)
            {
                self.lose(owner, LostReason::Forced);
            }
        }
    }

    /// The holds of this client on a name.
    pub(super) fn holds_on(&self, name: &Name) -> Vec<OwnerId> {
        self.names
            .queues
            .get(name)
            .map(|queue| queue.holds().to_vec())
            .unwrap_or_default()
    }
}

/// Whether the server has said that the lock was gone.
fn is_seen(reason: LostReason) -> bool {
    matches!(
        reason,
        LostReason::Deleted | LostReason::Stolen | LostReason::Forced
    )
}
