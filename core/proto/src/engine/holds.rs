//! Holds: their levels, how long they can be trusted, and when they need attention.

use std::sync::Arc;
use std::time::Duration;

use super::hold_ops::{Command, Task, Work};
use super::lazy_box::{Idle, LazyBox};
use super::levels::{Level, Levels};
use super::links::Which;
use super::slab::Slab;
use super::waiters::Waiter;
use super::watchdog::Due;
use super::{Done, Engine, LevelId, Output, RequestId, Terms, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::{Maybe, Moment, Span};
use crate::tuning;
use crate::wire::{Layout, LeaseSample, Name, OwnerId};

/// One owner's lock on a name. A program may have a million holds, so rare state is boxed.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) cell: Arc<HoldCell>,
    pub(super) phase: Phase,
    pub(super) levels: Levels,
    /// The end that `max_hold` sets.
    pub(super) must_end: Maybe,
    /// Whether only a release or the end of its lease ends it.
    pub(super) lingers: bool,
    /// How many looks caused by invalidations found the lock unchanged, less the renewals since
    /// without one.
    pub(super) harmless: u8,
    /// Whether the next renewal is a look: it comes early, to check the lock after an invalidation.
    pub(super) look: bool,
    /// Whether its last renewal arrived after its not-after by the server's clock.
    pub(super) stale: bool,
    /// When the first acquisition was sent, and the lease that it asked for. Only an adaptive lock
    /// has it, which learns from it.
    began: Option<Box<(Moment, Duration)>>,
    /// The longest lease ever asked for. Nothing of this hold is left in Redis that long after the
    /// last command.
    longest: Span,
    pub(super) renewal: Renewing,
    /// The moment of the timer entry that counts. Other entries of this hold are outdated.
    pub(super) alarm: Maybe,
    /// The operations that callers want on it.
    pub(super) work: LazyBox<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// The release that frees the lock is in flight. Nobody may rely on the hold any more.
    Releasing,
    Lost(LostReason),
}

/// The state of a hold's renewal.
#[derive(Debug, Default)]
pub(super) struct Renewing {
    /// When the next renewal is to be sent.
    pub(super) due: Maybe,
    pub(super) in_flight: bool,
    /// The lock was acquired without client tracking, so the engine looks at it soon after the hold
    /// began.
    pub(super) unseen: bool,
    /// It is deferred until other renewals are answered.
    pub(super) put_off: bool,
    /// The next renewal goes in a call of its own.
    pub(super) alone: bool,
    /// Something happened since the renewal in flight was sent, so another one follows.
    pub(super) again: bool,
    /// The last attempt failed.
    pub(super) failing: bool,
    /// The last attempt failed because the server was not reached or did not answer.
    pub(super) silent: bool,
    /// The server has invalidated the key since the last renewal was sent.
    pub(super) invalidated: bool,
    /// The lock may live longer than its deadline says: a renewal or a command without an answer
    /// may have run, or the answer came after a reader had seen the deadline pass.
    pub(super) in_doubt: bool,
}

impl Renewing {
    /// Whether a renewal is in flight or deferred.
    pub(super) fn is_under_way(&self) -> bool {
        self.in_flight || self.put_off
    }
}

impl Hold {
    /// Whether waiters of the same client have to wait for this hold. A try (`once`) does not wait
    /// for a release in flight, but goes right behind it. A refusal here would be wrong: the lock
    /// is as good as free.
    pub(super) fn blocks(&self, once: bool) -> bool {
        self.phase == Phase::Held || (self.phase == Phase::Releasing && !once)
    }

    /// The end that `max_hold` sets.
    pub(super) fn must_end(&self) -> Option<Moment> {
        self.must_end.get()
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest.into()
    }

    /// Notes that a request for this time is about to be sent.
    pub(super) fn asked_for(&mut self, time: Duration) {
        self.longest = self.longest.max(time.into());
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.levels.len()).unwrap_or(u32::MAX)
    }

    /// Whether it was lost only because its fixed lease ended, and its key had left it to that
    /// lease.
    pub(super) fn has_run_out(&self) -> bool {
        self.phase == Phase::Lost(LostReason::Expired)
            && self.levels.iter().all(Level::is_left_to_end)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Why it was lost, if it was.
    pub(super) fn lost(&self) -> Option<LostReason> {
        if let Phase::Lost(reason) = self.phase {
            Some(reason)
        } else {
            None
        }
    }

    /// The lease that the watchdog renews: the longest of the watched levels.
    pub(super) fn watched_lease(&self) -> Option<Duration> {
        match &self.levels {
            Levels::One(level) => level.watched(),
            levels => levels.iter().filter_map(Level::watched).max(),
        }
    }

    /// Whether its renewal is deferred until other renewals are answered.
    pub(super) fn is_put_off(&self) -> bool {
        self.phase == Phase::Held && self.renewal.put_off
    }

    /// Whether the watchdog would have renewed it if the server had answered.
    fn is_renewable(&self, now: Moment) -> bool {
        self.watched_lease().is_some() && self.must_end().is_none_or(|end| now < end)
    }

    /// Whether its lock ends on the server by itself, soon after the deadline. Then the watchdog's
    /// lease is the longest ever asked for, and no copy of a request can have made the lock live
    /// longer than the last answer said.
    ///
    /// A fixed lease does not count. Its deadline is the usual end of the hold, and the clean-up
    /// that follows wakes the waiters of other clients. A caller's token does not count either: the
    /// next attempt with the token could find the rest of this lock and take it for its own.
    pub(super) fn ends_by_itself(&self, now: Moment) -> bool {
        self.phase == Phase::Held
            && self.is_renewable(now)
            && self.watched_lease() == Some(self.longest())
            && self.cell.kind.layout() != Layout::Learning
            && !self.cell.has_value()
            && !self.renewal.in_flight
            && !self.renewal.in_doubt
            && self.work.is_idle()
    }

    /// The longest lease of its levels.
    pub(super) fn longest_lease(&self) -> Duration {
        self.levels
            .iter()
            .map(Level::lease)
            .max()
            .unwrap_or_default()
    }

    /// How long the key must live for the present levels. Zero if the time of all of them is over.
    pub(super) fn time_needed(&self, now: Moment) -> Duration {
        let time = self.levels.iter().map(|level| level.needs(now)).max();
        self.capped(time.unwrap_or_default(), now)
    }

    /// `lease`, but not longer than the hold may last.
    pub(super) fn capped(&self, lease: Duration, now: Moment) -> Duration {
        self.must_end()
            .map_or(lease, |end| lease.min(timing::lasting(now.until(end))))
    }

    /// Until when the hold is trusted: the latest end of its levels, but not after `must_end`.
    pub(super) fn deadline(&self) -> Moment {
        self.cell.deadline()
    }

    /// Sets the deadline from the levels. If a reader has seen the deadline pass, it stays. The key
    /// may live longer than that, by the lease that was just confirmed.
    pub(super) fn refresh_deadline(&mut self) {
        if let Some(end) = self.levels.iter().map(|level| level.end).max() {
            let end = self.must_end().map_or(end, |must| end.min(must));
            self.renewal.in_doubt |= !self.cell.set_deadline(end);
        }
    }

    /// Counts a successful request for `ttl` that was sent at `sent`. A level that was added after
    /// `sent` gains no more than the request asked for.
    pub(super) fn renewed_at(&mut self, sent: Moment, ttl: Duration) {
        for level in self.levels.iter_mut() {
            if let Some(lease) = level.watched() {
                level.end = level.end.max(sent.after(timing::trusted(lease.min(ttl))));
            }
        }
        self.refresh_deadline();
        self.plan_renewal(sent);
    }

    /// A level was taken out, and the release that reports it is about to be sent. The server may
    /// run it at once and the answer may be lost, so the time of the remaining levels counts from
    /// now.
    pub(super) fn shrink(&mut self, now: Moment) {
        let known = self.deadline();
        for level in self.levels.iter_mut() {
            if let Some(lease) = level.watched() {
                level.end = level.end.max(known.min(now.after(timing::trusted(lease))));
            }
        }
        self.refresh_deadline();
        let before = self.renewal.due.get();
        self.plan_renewal(now);
        let due = self
            .renewal
            .due
            .get()
            .map(|at| before.map_or(at, |before| at.min(before)));
        self.renewal.due = due.into();
    }

    /// The time between two renewals, if a level is watched.
    pub(super) fn period(&self) -> Option<Duration> {
        let period = match self.cell.kind.layout() {
            Layout::Learning => timing::late_period,
            Layout::Hash | Layout::Plain => timing::period,
        };
        self.watched_lease().map(period)
    }

    /// Plans the renewal after one that was sent at `sent`, if a level is watched. A planned look
    /// keeps its moment.
    pub(super) fn plan_renewal(&mut self, sent: Moment) {
        if self.renewal.unseen && self.renewal.due.get().is_some() {
            return;
        }
        let next = self.period().map(|period| sent.after(period));
        let next = next.filter(|at| self.must_end().is_none_or(|end| *at < end));
        let look = self.renewal.due.get().filter(|_| self.look);
        self.renewal.due = look.into_iter().chain(next).min().into();
    }

    // ---- alarm ----

    /// Whether its renewal is due and neither in flight nor deferred.
    fn is_to_be_renewed(&self, now: Moment) -> bool {
        self.renewal.due.get().is_some_and(|at| at <= now) && !self.renewal.is_under_way()
    }

    /// The next moment at which the hold needs attention. `None` for a lost hold. `up`: its server
    /// is reachable.
    fn first_due(&self, now: Moment, up: bool) -> Option<Moment> {
        if self.is_lost() {
            return None;
        }
        // While a renewal is in flight, the next one already counts. So the answer need not move
        // the alarm.
        let comes = |at: &Moment| up && (!self.renewal.is_under_way() || *at > now);
        let renewal = self.renewal.due.get().filter(comes);
        let first = renewal.map_or(self.deadline(), |at| at.min(self.deadline()));
        if self.work.is_idle() {
            return Some(first);
        }
        let retry = self
            .work
            .command
            .as_ref()
            .and_then(Command::retry)
            .filter(|_| up);
        let answer = self.tasks().filter_map(Task::answer_by).min();
        Some(
            [retry, answer]
                .into_iter()
                .flatten()
                .fold(first, Moment::min),
        )
    }

    /// Sets the alarm to the next moment at which the hold needs attention. Returns that moment if
    /// it needs a timer entry. It needs none if an earlier alarm is set.
    pub(super) fn set_alarm(&mut self, now: Moment, up: bool) -> Option<Moment> {
        let first = self.first_due(now, up);
        if first.is_some() && self.alarm.get().is_some_and(|at| Some(at) <= first) {
            return None;
        }
        self.alarm = first.into();
        first
    }

    /// The sample that an adaptive lock learns if it is released now.
    pub(super) fn lesson(&self, now: Moment) -> Option<LeaseSample> {
        let (began, asked) = **self.began.as_ref()?;
        Some(LeaseSample {
            asked,
            took: began.until(now),
        })
    }

    /// The severity of an event about this hold, which is `usual` for other holds. Few people want
    /// to hear of a hold that was left to its lease on purpose.
    pub(super) fn told_at(&self, usual: EventLevel) -> EventLevel {
        if self.lingers && self.levels.iter().all(|level| level.abandoned) {
            EventLevel::Debug
        } else {
            usual
        }
    }

    /// The index of this level; without one, of the newest.
    pub(super) fn position(&self, level: Option<LevelId>) -> Option<usize> {
        match level {
            Some(id) => self.levels.iter().position(|level| level.id == id),
            None => self.levels.len().checked_sub(1),
        }
    }

    /// Removes this level, or the newest one without it. Returns `false` if there is none.
    pub(super) fn take_out(&mut self, level: Option<LevelId>) -> bool {
        let Some(at) = self.position(level) else {
            return false;
        };
        self.levels.remove(at);
        self.cell.set_count(self.count());
        true
    }
}

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
        let learns = form.kind.layout() == Layout::Learning;
        let cell = Arc::new(HoldCell::new(name, key, owner, form, token));
        let look = self.cx.unseen.then(|| timing::look(sent));
        let renewal = Renewing {
            due: look.into(),
            unseen: self.cx.unseen,
            ..Renewing::default()
        };
        let hold = Hold {
            cell: cell.clone(),
            phase: Phase::Held,
            levels: Levels::default(),
            must_end: terms
                .max_hold
                .map(|most| sent.after(timing::trusted(most)))
                .into(),
            lingers: terms.linger,
            harmless: 0,
            look: false,
            stale: false,
            began: learns.then(|| Box::new((sent, terms.lease.duration()))),
            longest: terms.first_lease().max(ttl).into(),
            renewal,
            alarm: Maybe::default(),
            work: LazyBox::default(),
        };
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

pub(super) fn unconfirmed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server did not confirm the release; the lock ends with its lease at the latest",
    )
}
