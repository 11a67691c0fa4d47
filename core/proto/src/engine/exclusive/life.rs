//! The life of a hold: its begin, its levels, its loss and its end.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::cleanup::Left;
use crate::engine::context::Granted;
use crate::engine::errors::unconfirmed;
use crate::engine::hold::{Hold, Phase};
use crate::engine::interface::{LevelId, Output, RequestId};
use crate::engine::lazy_box::Idle;
use crate::engine::waiter::Waiter;
use crate::engine::watchdog::Due;
use crate::engine::work::{HoldOp, Task};
use crate::error::{Error, LostReason};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::{Maybe, Moment};
use crate::tuning;
use crate::wire::{Kind, Name, OwnerId};

impl Engine {
    /// Makes a hold of a first acquisition that has succeeded.
    pub(in crate::engine) fn open_hold(
        &mut self,
        id: RequestId,
        waiter: Waiter,
        granted: Granted,
        token: Option<u64>,
    ) {
        let Granted { terms, sent, ttl } = granted;
        let owner = waiter.call.owner;
        let Waiter {
            name, key, form, ..
        } = waiter;
        let cell = Arc::new(HoldCell::new(name, key, owner, form, token));
        let hold = Hold::new(cell.clone(), terms, sent, ttl, self.cx.unseen);
        self.holds.insert(owner, hold);
        if key != OwnerKey::Once {
            self.cx.out.push(Output::Opened(cell));
        }
        self.holds.add_level(&mut self.cx, id, owner, granted);
        if self.cx.links.may_have_moved(sent) {
            self.watchdog.hurry(&mut self.holds, owner);
        }
    }

    /// Removes a hold that has ended, and lets the next waiter on.
    pub(in crate::engine) fn end_hold(&mut self, owner: OwnerId) {
        let Some(mut hold) = self.holds.remove(&owner) else {
            return;
        };
        hold.cell.set_count(0);
        hold.cell.set_released();
        let left = self.holds.len();
        self.watchdog
            .tracking
            .done_anyway(&mut self.cx, left, 1, tuning::RENEWAL_CALL_WORK);
        let tasks = hold.take_tasks();
        let cell = hold.cell;
        let name = &cell.name;
        if cell.key != OwnerKey::Once {
            self.cx.out.push(Output::Ended(cell.clone()));
        }
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.remove_hold(owner);
            // The common case: nobody waits for the name.
            if tasks.is_empty() && queue.is_unused() {
                queue.rest(&mut self.names.rooms);
                self.names.queues.remove(name);
                return;
            }
        }
        for task in tasks {
            self.outlive(name, &cell.form(), task);
        }
        self.wake_refused(&cell);
        self.advance(name);
    }

    /// The server refused the waiters of a semaphore, those of a fair lock and, before a theft, writers. The
    /// end of this hold may be what they wait for.
    fn wake_refused(&mut self, cell: &HoldCell) {
        let head = self.names.head(&cell.name);
        let refused = cell.kind.takes_permits() || cell.kind == Kind::Write;
        if refused || head.is_some_and(Waiter::queues) {
            self.wake_head(&cell.name);
        }
    }

    // ---- abandoned levels ----

    pub(in crate::engine) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Some(at) = hold.position(Some(level)) {
            hold.levels[at].detached = true;
            self.note_run_out(owner);
        }
    }

    /// Stops renewing a level whose handle was lost without a release.
    pub(in crate::engine) fn abandon(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let at = hold.position(Some(level));
        let Some(at) = at.filter(|at| !hold.levels[*at].abandoned) else {
            return;
        };
        hold.levels[at].abandoned = true;
        // The planned renewal stays if a level remains that may need it, or if nobody would report
        // a loss. That is so if the server never tracked the key, if the last renewal failed, or if
        // the key was invalidated.
        let looks = hold.look || hold.renewal.invalidated;
        let watched = !hold.renewal.unseen && !hold.renewal.failing && !looks;
        if hold.levels.iter().all(|level| level.abandoned) && watched {
            hold.renewal.due = Maybe::default();
        }
        let (name, lost) = (hold.cell.name.clone(), hold.is_lost());
        let level = hold.told_at(EventLevel::Warn);
        let text =
            "a hold was left without release; it is not renewed any more and ends with its lease";
        self.cx.event("abandoned", level, &name, text);
        if lost {
            self.unwind_abandoned(owner);
        } else {
            self.holds.arm(&mut self.cx, owner);
        }
    }

    /// Stops renewing the levels that only these keys can release. With `guarded`, includes the
    /// levels that have a guard.
    pub(in crate::engine) fn abandon_all(
        &mut self,
        keys: &dyn Fn(OwnerKey) -> bool,
        guarded: bool,
    ) {
        let of_keys = self.holds.iter().filter(|(_, hold)| keys(hold.cell.key));
        let mut orphans: Vec<(OwnerId, LevelId)> = of_keys
            .flat_map(|(owner, hold)| hold.levels.iter().map(move |level| (owner, level)))
            .filter(|(_, level)| (level.detached || guarded) && !level.abandoned)
            .map(|(owner, level)| (owner, level.id))
            .collect();
        orphans.sort_unstable();
        for (owner, level) in orphans {
            self.abandon(owner, level);
        }
    }

    // ---- time ----

    /// Handles the alarm of a hold that was set for `at`. Adds the hold to `renewals` if it is to
    /// be renewed.
    pub(in crate::engine) fn tend(&mut self, owner: OwnerId, at: Moment, renewals: &mut Due) {
        let now = self.cx.now;
        let Some(hold) = self.holds.alarmed(owner, at) else {
            return;
        };
        if hold.deadline() <= now {
            return self.deadline_passed(owner);
        }
        let busy = !hold.work.is_idle();
        if !busy && hold.is_to_be_renewed(now) && self.cx.links.is_up(&hold.cell.name) {
            return renewals.add(owner, hold);
        }
        if busy {
            self.answer_late(owner);
            self.retry_if_due(owner);
        }
        let up = self.holds.is_up(&self.cx, owner);
        match self.holds.get(&owner) {
            Some(hold) if hold.is_to_be_renewed(now) && up => renewals.add(owner, hold),
            _ => self.holds.arm(&mut self.cx, owner),
        }
    }

    fn deadline_passed(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        if hold.phase == Phase::Releasing {
            return self.release_unconfirmed(owner);
        }
        // An unreachable server is the reason only for a hold that should have been renewed.
        let renewable = hold.is_renewable(self.cx.now);
        let unheard = hold.renewal.silent || !self.cx.links.is_up(&hold.cell.name);
        let reason = if renewable && unheard {
            LostReason::Unreachable
        } else {
            LostReason::Expired
        };
        self.lose(owner, reason);
    }

    /// The release was not confirmed before the deadline. A renewal without an answer may have made
    /// the key live longer than that, so the release goes on without its caller.
    fn release_unconfirmed(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (cell, longest) = (hold.cell.clone(), hold.longest());
        let name = &cell.name;
        let mut alive = None;
        if let Some(command) = hold.take_command() {
            alive = command
                .alive_until(self.cx.now)
                .filter(|_| cell.has_value());
            for task in command.into_tasks() {
                self.cx.answer(task.request, Err(unconfirmed().on(name)));
            }
        }
        self.clean_up(Left::of(name, owner, &cell.form(), longest), alive);
        self.leave_behind(owner);
    }

    /// The release that frees the lock has ended.
    pub(in crate::engine) fn leave_behind(&mut self, owner: OwnerId) {
        match self.holds.get(&owner) {
            // The remaining levels had no time left when the last level with time was released.
            Some(hold) if !hold.levels.is_empty() => {
                let cell = hold.cell.clone();
                self.lose(owner, LostReason::Expired);
                self.wake_refused(&cell);
            }
            _ => self.end_hold(owner),
        }
    }

    // ---- loss ----

    /// Declares the hold lost: its caller cannot rely on it any more. This is final, and its levels
    /// can only be unwound.
    pub(in crate::engine) fn lose(&mut self, owner: OwnerId, reason: LostReason) {
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
        let (cell, longest) = (hold.cell.clone(), hold.longest());
        let stays = hold.lingers || hold.is_left_to_others();
        let of_quorum = self.multi.is_of_quorum(owner);
        let level = match of_quorum {
            true => EventLevel::Debug,
            false => hold.told_at(EventLevel::Warn),
        };
        if !of_quorum && !hold.is_left_to_its_lease() {
            self.cx.counters.lost.add(1);
        }
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
        self.multi.part_lost(&mut self.cx, owner, reason);
        // A lock that lingers is left to its lease, because other programs may have extended it.
        if !stays && !ends {
            self.clean_up(Left::of(&cell.name, owner, &cell.form(), longest), None);
        }
    }

    /// The reason of a loss as this client knows it. While a force-release of this client is in
    /// flight, a deleted key was deleted by that. A renewal on another connection may report the
    /// deletion before the force-release is answered.
    fn seen_from_here(&self, owner: OwnerId, reason: LostReason) -> LostReason {
        let forced = |hold: &Hold| self.queries.is_forcing(&hold.cell.name);
        match reason {
            LostReason::Deleted if self.holds.get(&owner).is_some_and(forced) => LostReason::Forced,
            other => other,
        }
    }

    /// Answers a task on a lost hold. A release unwinds its level, and every task reports the loss.
    pub(in crate::engine) fn unwind(
        &mut self,
        owner: OwnerId,
        name: &Name,
        task: Task,
        reason: LostReason,
    ) {
        let error = match task.wish {
            HoldOp::Leave(level) => self.unwind_level(owner, level).err(),
            HoldOp::Enter(_) => Some(Error::lost_before(name, reason)),
            // The lock may have been lost after this caller had passed it on.
            HoldOp::Passed if !is_seen(reason) => Some(unconfirmed().on(name)),
            _ => None,
        };
        let error = error.unwrap_or_else(|| Error::lost(name, reason));
        self.cx.answer(task.request, Err(error));
        self.end_if_unwound(owner);
    }

    fn unwind_level(&mut self, owner: OwnerId, level: Option<LevelId>) -> Result<(), Error> {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return Ok(());
        };
        let (cell, longest) = (hold.cell.clone(), hold.longest());
        let stays = hold.is_left_to_others();
        if !hold.take_out(level) {
            return Err(Error::released_before("level").on(&cell.name));
        }
        if stays {
            return Ok(());
        }
        self.clean_up(Left::of(&cell.name, owner, &cell.form(), longest), None);
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
    pub(in crate::engine) fn unwind_abandoned(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.levels.retain(|level| !level.abandoned);
        hold.cell.set_count(hold.count());
        self.end_if_unwound(owner);
    }

    /// A caller of this client has deleted the key, or stolen the lock as the owner `but`. The server
    /// sends no invalidation to the client that made the change. For a hold that is being released,
    /// the release reports the loss.
    pub(in crate::engine) fn lose_all(
        &mut self,
        name: &Name,
        reason: LostReason,
        but: Option<OwnerId>,
    ) {
        for owner in self.names.holds_on(name) {
            let is_held = |hold: &Hold| hold.phase == Phase::Held;
            if Some(owner) != but && self.holds.get(&owner).is_some_and(is_held) {
                self.lose(owner, reason);
            }
        }
    }

    // ---- holds that have run out ----

    /// Records the hold if it has run out.
    fn note_run_out(&mut self, owner: OwnerId) {
        if !self.holds.get(&owner).is_some_and(Hold::has_run_out) {
            return;
        }
        let has_handle = |hold: &Hold| self.names.has_handle(&self.cx, &hold.cell.name);
        let forgotten = self.expired.add(owner, &self.holds, has_handle);
        forgotten.into_iter().for_each(|owner| self.forget(owner));
    }

    /// Forgets the hold if it has run out and belongs to `key`, which is about to acquire anew.
    /// Guards of the old hold can still ask what became of it.
    pub(in crate::engine) fn forget_run_out(&mut self, owner: OwnerId, key: OwnerKey) -> bool {
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

/// Whether the server has said that the lock was gone.
fn is_seen(reason: LostReason) -> bool {
    matches!(
        reason,
        LostReason::Deleted | LostReason::Stolen | LostReason::Forced
    )
}
