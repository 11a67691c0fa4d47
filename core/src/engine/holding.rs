//! Holds: their levels, how long they can be trusted, and what is due for them.

use std::sync::Arc;
use std::time::Duration;

use super::commanding::{Command, Task, Work};
use super::levels::{Level, Levels};
use super::links::Which;
use super::pages::Pages;
use super::rare::{Idle, Rare};
use super::renewing::Due;
use super::waiting::Waiter;
use super::{Done, Engine, LevelId, Output, RequestId, Terms, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::moment::{Maybe, Moment, Span};
use crate::owner::Key;
use crate::wire::{Layout, Lesson, Name, OwnerId};

/// One owner's possession of a name. A program may have a million of them, so what is rare has room of its own.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) cell: Arc<HoldCell>,
    pub(super) phase: Phase,
    pub(super) levels: Levels,
    /// The end that `max_hold` sets.
    pub(super) must_end: Maybe,
    /// Only a release or its lease ends it.
    pub(super) lingers: bool,
    /// When the first acquisition was sent, and the lease that it asked for; only of what learns from that.
    began: Option<Box<(Moment, Duration)>>,
    /// The longest time that was ever asked for: nothing of this hold is in Redis that long after
    /// the last command.
    longest: Span,
    pub(super) renewal: Renewing,
    /// When it is looked at: the entry of the timers that counts.
    pub(super) alarm: Maybe,
    /// What callers want of it.
    pub(super) work: Rare<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// The release that frees the lock is on its way; the hold is not relied on any more.
    Releasing,
    Lost(LostReason),
}

/// The state of a hold's renewal.
#[derive(Debug, Default)]
pub(super) struct Renewing {
    /// When the next one is to be sent.
    pub(super) due: Maybe,
    pub(super) in_flight: bool,
    /// The server was not asked yet to tell of changes: the hold is looked at soon after it began.
    pub(super) unseen: bool,
    /// It waits until other renewals are answered.
    pub(super) put_off: bool,
    /// The next one goes in a call of its own.
    pub(super) alone: bool,
    /// Something happened since the one in flight was sent: send another.
    pub(super) again: bool,
    /// The last attempt failed.
    pub(super) failing: bool,
    /// It failed because the server was not heard.
    pub(super) silent: bool,
}

impl Renewing {
    /// Whether one is under way, or will be as soon as others are answered.
    pub(super) fn is_under_way(&self) -> bool {
        self.in_flight || self.put_off
    }
}

impl Hold {
    /// Whether waiters of the same client have to wait for this hold. A try goes right behind the
    /// release that frees the lock: it would be refused here although the lock is as good as free.
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

    /// So much is asked for now.
    pub(super) fn asked_for(&mut self, time: Duration) {
        self.longest = self.longest.max(time.into());
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.levels.len()).unwrap_or(u32::MAX)
    }

    /// It was lost by nothing but the end of its fixed lease, which its key has left to itself.
    pub(super) fn has_run_out(&self) -> bool {
        self.phase == Phase::Lost(LostReason::Expired) && self.levels.iter().all(Level::is_left_to_end)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    /// The lease the watchdog renews with: the longest of the levels that are watched.
    pub(super) fn watched_lease(&self) -> Option<Duration> {
        match &self.levels {
            Levels::One(level) => level.watched(),
            levels => levels.iter().filter_map(Level::watched).max(),
        }
    }

    /// The longest time that a level was asked for.
    pub(super) fn longest_lease(&self) -> Duration {
        self.levels.iter().map(Level::lease).max().unwrap_or_default()
    }

    /// How long the key must live for the levels as they are; zero when the time of all is over.
    pub(super) fn time_needed(&self, now: Moment) -> Duration {
        let time = self.levels.iter().map(|level| level.needs(now)).max();
        self.capped(time.unwrap_or_default(), now)
    }

    /// `lease`, but not longer than the hold may last.
    pub(super) fn capped(&self, lease: Duration, now: Moment) -> Duration {
        self.must_end().map_or(lease, |end| lease.min(timing::lasting(now.until(end))))
    }

    /// When the hold stops being trusted: the latest end of its levels, within `must_end`.
    pub(super) fn deadline(&self) -> Moment {
        self.cell.deadline()
    }

    /// Sets the deadline from the levels.
    pub(super) fn refresh_deadline(&mut self) {
        if let Some(end) = self.levels.iter().map(|level| level.end).max() {
            self.cell.set_deadline(self.must_end().map_or(end, |must| end.min(must)));
        }
    }

    /// Counts a request for `ttl` that was sent at `sent` and succeeded. A level that came after
    /// it was sent gains no more than was asked for.
    pub(super) fn renewed_at(&mut self, sent: Moment, ttl: Duration) {
        for level in self.levels.iter_mut() {
            if let Some(lease) = level.watched() {
                level.end = level.end.max(sent.after(timing::trusted(lease.min(ttl))));
            }
        }
        self.refresh_deadline();
        self.plan_renewal(sent);
    }

    /// A level was taken out, and the release that says so is about to be sent. It may run at once
    /// and never be answered, so the time of the levels that stay counts from now.
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
        let due = self.renewal.due.get().map(|at| before.map_or(at, |before| at.min(before)));
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

    /// Plans the next renewal after one that was sent at `sent`, if a level is watched. A look stays planned.
    pub(super) fn plan_renewal(&mut self, sent: Moment) {
        if self.renewal.unseen && self.renewal.due.get().is_some() {
            return;
        }
        let next = self.period().map(|period| sent.after(period));
        self.renewal.due = next.filter(|at| self.must_end().is_none_or(|end| *at < end)).into();
    }

    // ---- when it is looked at ----

    /// Whether its renewal is due and not under way.
    fn is_to_be_renewed(&self, now: Moment) -> bool {
        self.renewal.due.get().is_some_and(|at| at <= now) && !self.renewal.is_under_way()
    }

    /// The first moment at which something is to be done for it; nothing of what was lost. `up`: its server is reached.
    fn first_due(&self, now: Moment, up: bool) -> Option<Moment> {
        if self.is_lost() {
            return None;
        }
        // The one after the one that is under way is looked forward to already: then its answer changes nothing.
        let comes = |at: &Moment| up && (!self.renewal.is_under_way() || *at > now);
        let renewal = self.renewal.due.get().filter(comes);
        let first = renewal.map_or(self.deadline(), |at| at.min(self.deadline()));
        if self.work.is_idle() {
            return Some(first);
        }
        let retry = self.work.command.as_ref().and_then(Command::retry).filter(|_| up);
        let answer = self.tasks().filter_map(Task::answer_by).min();
        Some([retry, answer].into_iter().flatten().fold(first, Moment::min))
    }

    /// Sets its alarm for the first thing that is due; the moment if that needs an entry among the timers, which it
    /// has if it is looked at before anyway.
    pub(super) fn set_alarm(&mut self, now: Moment, up: bool) -> Option<Moment> {
        let first = self.first_due(now, up);
        if first.is_some() && self.alarm.get().is_some_and(|at| Some(at) <= first) {
            return None;
        }
        self.alarm = first.into();
        first
    }

    /// What an adaptive lock learns when it is freed now.
    pub(super) fn lesson(&self, now: Moment) -> Option<Lesson> {
        let (began, asked) = **self.began.as_ref()?;
        Some(Lesson { asked, took: began.until(now) })
    }

    /// The level of an event that is `usual` for others: of what is left to its lease on purpose, few
    /// want to hear.
    pub(super) fn told_at(&self, usual: EventLevel) -> EventLevel {
        if self.lingers && self.levels.iter().all(|level| level.abandoned) {
            EventLevel::Debug
        } else {
            usual
        }
    }

    /// Where this level is; without one, the newest.
    pub(super) fn position(&self, level: Option<LevelId>) -> Option<usize> {
        match level {
            Some(id) => self.levels.iter().position(|level| level.id == id),
            None => self.levels.len().checked_sub(1),
        }
    }

    /// Takes this level out, or without one the newest; `false` if it is not there.
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
    /// The hold that `key` has on `name`, unless it is on its way out.
    pub(super) fn hold_of(&self, name: &Name, key: Key) -> Option<OwnerId> {
        let mine = |owner: &OwnerId| {
            let hold = self.holds.get(owner)?;
            let same = match key {
                Key::Hold(level) => hold.position(Some(level)).is_some(),
                _ => key != Key::Once && hold.cell.key == key,
            };
            (same && hold.phase != Phase::Releasing).then_some(*owner)
        };
        // A key that does not re-enter may hold the name anew while it has not unwound what it lost.
        let holds = self.queues.get(name)?.holds();
        let live = |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| hold.phase == Phase::Held);
        holds.iter().filter(|owner| live(owner)).find_map(mine).or_else(|| holds.iter().rev().find_map(mine))
    }

    /// A first acquisition has succeeded; the lock lives for `ttl`.
    pub(super) fn open_hold(
        &mut self,
        id: RequestId,
        waiter: Waiter,
        sent: Moment,
        ttl: Duration,
        token: Option<u64>,
    ) {
        let Waiter { name, key, owner, terms, form, .. } = waiter;
        let learns = form.kind.layout() == Layout::Learning;
        let cell = Arc::new(HoldCell::new(name, key, owner, form, token));
        let look = self.unseen.then(|| timing::look(sent));
        let renewal = Renewing { due: look.into(), unseen: self.unseen, ..Renewing::default() };
        let hold = Hold {
            cell: cell.clone(),
            phase: Phase::Held,
            levels: Levels::default(),
            must_end: terms.max_hold.map(|most| sent.after(timing::trusted(most))).into(),
            lingers: terms.linger,
            began: learns.then(|| Box::new((sent, terms.lease.duration()))),
            longest: terms.first_lease().max(ttl).into(),
            renewal,
            alarm: Maybe::default(),
            work: Rare::default(),
        };
        self.holds.insert(owner, hold);
        if key != Key::Once {
            self.out.push(Output::Opened(cell));
        }
        self.add_level(id, owner, terms, sent, ttl);
        if self.links.may_have_moved(sent) {
            self.hurried.push(owner);
        }
    }

    /// Adds a level that the server has granted, by a request that was sent at `sent` and after which
    /// the lock lives for `ttl`, and gives it to its caller.
    pub(super) fn add_level(
        &mut self,
        id: RequestId,
        owner: OwnerId,
        terms: Terms,
        sent: Moment,
        ttl: Duration,
    ) {
        let level = self.next_id();
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (lease, sure) = terms.lease.granted(ttl);
        let end = sent.after(timing::trusted(sure));
        hold.asked_for(lease.duration());
        hold.levels.push(Level::new(level, lease, end, terms.tied));
        hold.cell.set_count(hold.count());
        hold.refresh_deadline();
        if hold.renewal.due.get().is_none() {
            hold.plan_renewal(sent);
        }
        let cell = hold.cell.clone();
        self.arm_hold(owner);
        self.counters.acquired.add(1);
        self.trace("acquired", &cell.name, || {
            format!("acquired by {owner} with hold count {}", cell.count())
        });
        self.complete(id, Done::Granted { cell, level });
    }

    /// Takes a hold that is over out of everything and lets the next waiter on.
    pub(super) fn end_hold(&mut self, owner: OwnerId) {
        let Some(mut hold) = self.holds.remove(&owner) else {
            return;
        };
        hold.cell.set_count(0);
        hold.cell.set_released();
        let tasks = hold.take_tasks();
        let cell = hold.cell;
        let name = &cell.name;
        if cell.key != Key::Once {
            self.out.push(Output::Ended(cell.clone()));
        }
        if let Some(queue) = self.queues.get_mut(name) {
            queue.remove_hold(owner);
            // Most are alone: there is nobody to be let on.
            if tasks.is_empty() && queue.is_unused() {
                queue.rest(&mut self.rooms);
                self.queues.remove(name);
                return;
            }
        }
        for task in tasks {
            self.outlive(name, &cell.form(), task);
        }
        self.advance(name);
    }

    // ---- levels whose holder has gone ----

    pub(super) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Some(at) = hold.position(Some(level)) {
            hold.levels[at].detached = true;
            self.note_run_out(owner);
        }
    }

    /// Stops renewing for a level whose handle was lost without release.
    pub(super) fn abandon(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(at) = hold.position(Some(level)) else {
            return;
        };
        hold.levels[at].abandoned = true;
        // A level that stays may still have to be looked at, and a hold whose loss nobody would tell us of: the server does
        // not watch its key, or does not any more and was not heard since.
        let watched = !hold.renewal.unseen && !hold.renewal.failing;
        if hold.levels.iter().all(|level| level.abandoned) && watched {
            hold.renewal.due = Maybe::default();
        }
        let (name, lost) = (hold.cell.name.clone(), hold.is_lost());
        let level = hold.told_at(EventLevel::Warn);
        let text = "a hold was left without release; it is not renewed any more and ends with its lease";
        self.event("abandoned", level, &name, text);
        if lost {
            self.unwind_abandoned(owner);
        } else {
            self.arm_hold(owner);
        }
    }

    /// Stops renewing for the levels that only these keys could release.
    pub(super) fn abandon_detached(&mut self, keys: impl Fn(Key) -> bool) {
        let of_keys = self.holds.iter().filter(|(_, hold)| keys(hold.cell.key));
        let mut orphans: Vec<(OwnerId, LevelId)> = of_keys
            .flat_map(|(owner, hold)| hold.levels.iter().map(move |level| (owner, level)))
            .filter(|(_, level)| level.detached && !level.abandoned)
            .map(|(owner, level)| (owner, level.id))
            .collect();
        orphans.sort_unstable();
        for (owner, level) in orphans {
            self.abandon(owner, level);
        }
    }

    // ---- the servers of holds ----

    /// The holds on these names, oldest first.
    pub(super) fn owners(&self, which: Which<'_>) -> Vec<OwnerId> {
        let of_names = self.holds.iter().filter(|(_, hold)| which(&hold.cell.name));
        let mut owners: Vec<OwnerId> = of_names.map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        owners
    }

    pub(super) fn is_up_for(&self, owner: OwnerId) -> bool {
        self.holds.get(&owner).is_some_and(|hold| self.links.is_up(&hold.cell.name))
    }

    pub(super) fn error_for(&self, owner: OwnerId) -> Option<Error> {
        self.links.error(&self.holds.get(&owner)?.cell.name)
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
        let up = self.links.is_up(&hold.cell.name);
        if let Some(at) = hold.set_alarm(self.now, up) {
            self.timers.push_hold(at, owner);
        }
    }

    /// Forgets alarms that were left behind, up to the first that counts.
    pub(super) fn forget_alarms(&mut self) {
        while let Some((at, owner)) = self.timers.first_hold() {
            if has_alarm(&self.holds, owner, at) {
                break;
            }
            self.timers.pop_hold();
        }
    }

    /// Forgets alarms that were left behind, if those are most of all.
    pub(super) fn tidy_alarms(&mut self) {
        let holds = &self.holds;
        self.timers.tidy_holds(holds.len(), |at, owner| has_alarm(holds, owner, at));
    }

    /// Does what is due for a hold that wanted to be looked at at this moment; `renewals` gets it if it is to be renewed.
    pub(super) fn tend(&mut self, owner: OwnerId, at: Moment, renewals: &mut Due) {
        let now = self.now;
        let Some(hold) = alarmed(&mut self.holds, owner, at) else {
            return;
        };
        if hold.deadline() <= now {
            return self.deadline_passed(owner);
        }
        let busy = !hold.work.is_idle();
        if !busy && hold.is_to_be_renewed(now) && self.links.is_up(&hold.cell.name) {
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
        // Only a hold that should have been renewed ends because the server was not heard.
        let renewable = hold.watched_lease().is_some() && hold.must_end().is_none_or(|end| self.now < end);
        let unheard = hold.renewal.silent || !self.links.is_up(&hold.cell.name);
        let reason = if renewable && unheard { LostReason::Unreachable } else { LostReason::Expired };
        self.lose(owner, reason);
    }

    /// The lock was not freed for certain before the deadline. A renewal without an answer may have
    /// made the key live longer than that, so the release goes on without its caller.
    fn release_unconfirmed(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (cell, longest) = (hold.cell.clone(), hold.longest());
        let name = &cell.name;
        if let Some(command) = hold.take_command() {
            for task in command.into_tasks() {
                self.answer(task.request, Err(unconfirmed().on(name)));
            }
        }
        self.clean_up(name, owner, &cell.form(), longest, None);
        self.leave_behind(owner);
    }

    /// The release that frees the lock is over.
    pub(super) fn leave_behind(&mut self, owner: OwnerId) {
        match self.holds.get(&owner) {
            // Levels that had no time left when the last one with time was released.
            Some(hold) if !hold.levels.is_empty() => self.lose(owner, LostReason::Expired),
            _ => self.end_hold(owner),
        }
    }
}

fn has_alarm(holds: &Pages<Hold>, owner: OwnerId, at: Moment) -> bool {
    holds.get(&owner).is_some_and(|hold| hold.alarm.get() == Some(at))
}

/// The hold whose alarm this is. It has none then.
pub(super) fn alarmed(holds: &mut Pages<Hold>, owner: OwnerId, at: Moment) -> Option<&mut Hold> {
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
