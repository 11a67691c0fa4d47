//! Holds: their levels, how long they can be trusted, and when they need attention.

use std::sync::Arc;
use std::time::Duration;

use super::errors::unconfirmed;
use super::hold::{Hold, Phase};
use super::interface::{Done, LevelId, Output, RequestId, Terms};
use super::lazy_box::Idle;
use super::levels::Level;
use super::links::Which;
use super::slab::Slab;
use super::waiter::Waiter;
use super::watchdog::Due;
use super::{Engine, timing};
use crate::error::{Error, LostReason};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::{Maybe, Moment};
use crate::tuning;
use crate::wire::{Name, OwnerId};

impl Engine {
    /// The hold that `key` has on `name`, unless it is being released.
    pub(super) fn hold_of(&self, name: &Name, key: OwnerKey) -> Option<OwnerId> {
        let mine = |owner: &OwnerId| {
            let hold = self.holds.get(owner)?;
            let same = match key {
                OwnerKey::Hold(level) => hold.position(Some(level)).is_some(),
                _ => key != OwnerKey::Once && hold.cell.key == key,
            };
            (same && hold.phase != Phase::Releasing).then_some(*owner)
        };
        // A key that does not re-enter may acquire the name again before it has unwound a lost
        // hold. The live hold comes first.
        let holds = self.names.queues.get(name)?.holds();
        let live = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Held)
        };
        holds
            .iter()
            .filter(|owner| live(owner))
            .find_map(mine)
            .or_else(|| holds.iter().rev().find_map(mine))
    }

    /// Like `hold_of`, but only for holds with a level that only the key can release. Other levels
    /// belong to guards, which another caller may have.
    pub(super) fn left_to(&self, name: &Name, key: OwnerKey) -> Option<OwnerId> {
        let left = |hold: &Hold| {
            hold.cell.key == key
                && hold.phase != Phase::Releasing
                && hold.levels.iter().any(|level| level.detached)
        };
        let holds = self.names.queues.get(name)?.holds();
        let find = |live: bool| {
            let fits = |owner: &&OwnerId| {
                self.holds
                    .get(owner)
                    .is_some_and(|hold| left(hold) && hold.is_lost() != live)
            };
            holds.iter().find(fits).copied()
        };
        find(true).or_else(|| find(false))
    }

    /// Makes a hold of a first acquisition that has succeeded. The lock lives for `ttl`.
    pub(super) fn open_hold(
        &mut self,
        id: RequestId,
        waiter: Waiter,
        sent: Moment,
        ttl: Duration,
        token: Option<u64>,
    ) {
        let Waiter {
            name,
            key,
            owner,
            terms,
            form,
            ..
        } = waiter;
        let cell = Arc::new(HoldCell::new(name, key, owner, form, token));
        let hold = Hold::new(cell.clone(), terms, sent, ttl, self.cx.unseen);
        self.holds.insert(owner, hold);
        if key != OwnerKey::Once {
            self.cx.out.push(Output::Opened(cell));
        }
        self.add_level(id, owner, terms, sent, ttl);
        if self.cx.links.may_have_moved(sent)
            && let Some(hold) = self.holds.get_mut(&owner)
        {
            hold.look = true;
            self.hurried.push(owner);
        }
    }

    /// Adds a level that the server has granted, and gives it to its caller. The request was sent
    /// at `sent`, and after it the lock lives for `ttl`.
    pub(super) fn add_level(
        &mut self,
        id: RequestId,
        owner: OwnerId,
        terms: Terms,
        sent: Moment,
        ttl: Duration,
    ) {
        let level = self.cx.next_id();
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (lease, sure) = terms.lease.granted(ttl);
        let end = sent.after(timing::trusted(sure));
        hold.asked_for(lease.duration());
        hold.levels.push(Level::new(level, lease, end, terms.tied));
        hold.cell.set_count(hold.count());
        hold.refresh_deadline();
        // The planned look may come later than the new level needs its first renewal.
        if hold.renewal.due.get().is_none() || hold.look {
            hold.plan_renewal(sent);
        }
        let cell = hold.cell.clone();
        self.arm_hold(owner);
        self.cx.counters.acquired.add(1);
        self.cx.trace("acquired", &cell.name, || {
            format!("acquired by {owner} with hold count {}", cell.count())
        });
        self.cx.complete(id, Done::Granted { cell, level });
    }

    /// Removes a hold that has ended, and lets the next waiter on.
    pub(super) fn end_hold(&mut self, owner: OwnerId) {
        let Some(mut hold) = self.holds.remove(&owner) else {
            return;
        };
        hold.cell.set_count(0);
        hold.cell.set_released();
        self.done_anyway(1, tuning::RENEWAL_CALL_WORK);
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
        self.advance(name);
    }

    // ---- abandoned levels ----

    pub(super) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Some(at) = hold.position(Some(level)) {
            hold.levels[at].detached = true;
            self.note_run_out(owner);
        }
    }

    /// Stops renewing a level whose handle was lost without a release.
    pub(super) fn abandon(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(at) = hold.position(Some(level)) else {
            return;
        };
        hold.levels[at].abandoned = true;
        // The planned renewal stays if a level remains that may need it, or if nobody would report
        // a loss. That is so if the server never tracked the key, if the last renewal failed, or if
        // the key was invalidated.
        let watched = !hold.renewal.unseen && !hold.renewal.failing && !hold.look;
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
            self.arm_hold(owner);
        }
    }

    /// Stops renewing the levels that only these keys can release. With `guarded`, includes the
    /// levels that have a guard.
    pub(super) fn abandon_all(&mut self, keys: impl Fn(OwnerKey) -> bool, guarded: bool) {
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

    // ---- servers ----

    /// The holds on these names, in the order of their numbers, so that the same inputs give the
    /// same outputs.
    pub(super) fn owners(&self, which: Which<'_>) -> Vec<OwnerId> {
        let of_names = self.holds.iter().filter(|(_, hold)| which(&hold.cell.name));
        let mut owners: Vec<OwnerId> = of_names.map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        owners
    }

    /// The holds on these names that have work for a caller. Few holds have, so the names of the
    /// others are not compared.
    pub(super) fn busy_owners(&self, which: Which<'_>) -> Vec<OwnerId> {
        let busy = self
            .holds
            .iter()
            .filter(|(_, hold)| !hold.work.is_idle() && which(&hold.cell.name));
        let mut owners: Vec<OwnerId> = busy.map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        owners
    }

    pub(super) fn is_up_for(&self, owner: OwnerId) -> bool {
        self.holds
            .get(&owner)
            .is_some_and(|hold| self.cx.links.is_up(&hold.cell.name))
    }

    pub(super) fn error_for(&self, owner: OwnerId) -> Option<Error> {
        self.cx.links.error(&self.holds.get(&owner)?.cell.name)
    }

    // ---- time ----

    pub(super) fn arm_holds(&mut self, which: Which<'_>) {
        for owner in self.owners(which) {
            self.arm_hold(owner);
        }
    }

    /// Arms the one timer of a hold for the first thing that is due.
    pub(super) fn arm_hold(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let up = self.cx.links.is_up(&hold.cell.name);
        if let Some(at) = hold.set_alarm(self.cx.now, up) {
            self.cx.timers.push_hold(at, owner);
        }
    }

    /// Drops outdated alarms in front of the first that counts.
    pub(super) fn forget_alarms(&mut self) {
        while let Some((at, owner)) = self.cx.timers.first_hold() {
            if has_alarm(&self.holds, owner, at) {
                break;
            }
            self.cx.timers.pop_hold();
        }
    }

    /// Drops all outdated alarms if they outnumber the others.
    pub(super) fn tidy_alarms(&mut self) {
        let holds = &self.holds;
        self.cx
            .timers
            .tidy_holds(holds.len(), |at, owner| has_alarm(holds, owner, at));
    }

    /// Handles the alarm of a hold that was set for `at`. Adds the hold to `renewals` if it is to
    /// be renewed.
    pub(super) fn tend(&mut self, owner: OwnerId, at: Moment, renewals: &mut Due) {
        let now = self.cx.now;
        let Some(hold) = alarmed(&mut self.holds, owner, at) else {
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
        let up = self.is_up_for(owner);
        match self.holds.get(&owner) {
            Some(hold) if hold.is_to_be_renewed(now) && up => renewals.add(owner, hold),
            _ => self.arm_hold(owner),
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
                self.answer(task.request, Err(unconfirmed().on(name)));
            }
        }
        self.clean_up(name, owner, &cell.form(), longest, alive);
        self.leave_behind(owner);
    }

    /// The release that frees the lock has ended.
    pub(super) fn leave_behind(&mut self, owner: OwnerId) {
        match self.holds.get(&owner) {
            // The remaining levels had no time left when the last level with time was released.
            Some(hold) if !hold.levels.is_empty() => self.lose(owner, LostReason::Expired),
            _ => self.end_hold(owner),
        }
    }
}

fn has_alarm(holds: &Slab<Hold>, owner: OwnerId, at: Moment) -> bool {
    holds
        .get(&owner)
        .is_some_and(|hold| hold.alarm.get() == Some(at))
}

/// The hold whose alarm is at `at`. Clears the alarm. `None` if the alarm is outdated.
pub(super) fn alarmed(holds: &mut Slab<Hold>, owner: OwnerId, at: Moment) -> Option<&mut Hold> {
    let hold = holds.get_mut(&owner)?;
    let counts = hold.alarm.get() == Some(at);
    if counts {
        hold.alarm = Maybe::default();
    }
    counts.then_some(hold)
}
