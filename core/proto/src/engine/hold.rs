//! One hold: its levels, how long it can be trusted, and when it needs attention.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::interface::{LevelId, RequestId, Terms};
use super::lazy_box::{Idle, LazyBox};
use super::levels::{Level, Levels};
use super::timing;
use super::work::{Command, Task, Work};
use crate::error::LostReason;
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::moment::{Maybe, Moment, Span};
use crate::wire::LeaseSample;

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
    /// The place of this client in a crowd, which ends with this hold.
    pub(super) place: Option<NonZeroU64>,
    /// Counts the looks that found the lock unchanged, after a change of the lock's key. A renewal
    /// without such a look lowers it.
    pub(super) harmless: u8,
    /// Counts such looks after a change of the reader's own time-out key.
    pub(super) own_harmless: u8,
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
    /// A renewal is sent. Returns whether the key was invalidated since the last one.
    pub(super) fn begin(&mut self) -> bool {
        self.in_flight = true;
        (self.unseen, self.put_off, self.alone, self.again) = (false, false, false, false);
        std::mem::take(&mut self.invalidated)
    }

    /// Whether a renewal is in flight or deferred.
    pub(super) fn is_under_way(&self) -> bool {
        self.in_flight || self.put_off
    }
}

impl Hold {
    /// A hold of a first acquisition that was sent at `sent`, without its level. The lock lives for
    /// `ttl`. `unseen`: the server does not report changes of the key.
    pub(super) fn new(
        cell: Arc<HoldCell>,
        terms: Terms,
        sent: Moment,
        ttl: Duration,
        unseen: bool,
    ) -> Hold {
        let learns = cell.kind.facts().learns;
        let look = unseen.then(|| timing::look(sent));
        Hold {
            cell,
            phase: Phase::Held,
            levels: Levels::default(),
            must_end: terms
                .max_hold
                .map(|most| sent.after(timing::trusted(most)))
                .into(),
            lingers: terms.linger,
            place: None,
            harmless: 0,
            own_harmless: 0,
            look: false,
            stale: false,
            began: learns.then(|| Box::new((sent, terms.lease.duration()))),
            longest: terms.first_lease().max(ttl).into(),
            renewal: Renewing {
                due: look.into(),
                unseen,
                ..Renewing::default()
            },
            alarm: Maybe::default(),
            work: LazyBox::default(),
        }
    }

    /// Whether waiters of the same client have to wait for this hold. With `held`, one that is being
    /// released does not count.
    pub(super) fn blocks(&self, held: bool) -> bool {
        self.phase == Phase::Held || (self.phase == Phase::Releasing && !held)
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
    pub(super) fn is_renewable(&self, now: Moment) -> bool {
        self.watched_lease().is_some() && self.must_end().is_none_or(|end| now < end)
    }

    /// Whether its lock ends on the server by itself, soon after the deadline. Then the watchdog's
    /// lease is the longest ever asked for, and no copy of a request can have made the lock live
    /// longer than the last answer said.
    ///
    /// A fixed lease does not count. Its deadline is the usual end of the hold, and the clean-up
    /// that follows wakes the waiters of other clients.
    pub(super) fn ends_by_itself(&self, now: Moment) -> bool {
        self.phase == Phase::Held
            && self.is_renewable(now)
            && self.watched_lease() == Some(self.longest())
            && !self.cell.kind.facts().learns
            && !self.cell.kind.facts().outlives_owners
            && !self.renewal.in_flight
            && !self.renewal.in_doubt
            && self.work.is_idle()
    }

    /// Whether it ran out here, and its lock may belong to another process by now: one that knows the
    /// token may have extended it. The server cannot tell the two apart, so nothing is released.
    pub(super) fn is_left_to_others(&self) -> bool {
        let ran_out = matches!(
            self.phase,
            Phase::Lost(LostReason::Expired | LostReason::Unreachable)
        );
        ran_out && self.cell.has_value()
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

    /// The server has the count of the levels that are left, by a call for `ttl` that was sent at
    /// `sent`.
    pub(super) fn lowered(&mut self, sent: Moment, ttl: Duration) {
        let planned = self.renewal.due.get();
        self.renewed_at(sent, ttl);
        // As in `shrink`.
        if self.cell.kind.is_shared() {
            self.renew_by(planned);
        }
    }

    /// The server has extended a level by a call for `ttl` that was sent at `sent`.
    pub(super) fn extended(&mut self, level: Option<LevelId>, sent: Moment, ttl: Duration) {
        if let Some(at) = self.position(level) {
            let level = &mut self.levels[at];
            level.end = level.end.max(sent.after(timing::trusted(ttl)));
        }
        self.refresh_deadline();
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
        // A reader may have a look planned: changes are not looked at while it has.
        if self.renewal.due.get().is_some() || self.cell.kind.is_shared() {
            self.renew_by(before);
        }
    }

    /// Has the renewal come no later than this.
    pub(super) fn renew_by(&mut self, latest: Option<Moment>) {
        let due = self.renewal.due.get();
        self.renewal.due = due.into_iter().chain(latest).min().into();
    }

    /// The time between two renewals, if a level is watched.
    pub(super) fn period(&self) -> Option<Duration> {
        let period = if self.cell.kind.facts().learns {
            timing::late_period
        } else {
            timing::period
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
    pub(super) fn is_to_be_renewed(&self, now: Moment) -> bool {
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

    /// Whether it was left to its lease on purpose: nobody renews it, and others have not ended it.
    pub(super) fn is_left_to_its_lease(&self) -> bool {
        let abandoned = self.levels.iter().all(|level| level.abandoned);
        let over = self.lost() == Some(LostReason::Expired) && self.watched_lease().is_none();
        self.lingers && (abandoned || over)
    }

    /// The severity of an event about this hold, which is `usual` for other holds. Few people want
    /// to hear of a hold that was left to its lease on purpose.
    pub(super) fn told_at(&self, usual: EventLevel) -> EventLevel {
        if self.is_left_to_its_lease() {
            EventLevel::Debug
        } else {
            usual
        }
    }

    /// The index of this level. Without one, of the newest that only its key can release: others belong
    /// to guards, or to multi locks. If there is none, of the newest.
    pub(super) fn position(&self, level: Option<LevelId>) -> Option<usize> {
        match level {
            Some(id) => self.levels.iter().position(|level| level.id == id),
            None => {
                let left = self.levels.iter().rposition(|level| level.detached);
                left.or_else(|| self.levels.len().checked_sub(1))
            }
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

    // ---- work for callers ----

    pub(super) fn take_command(&mut self) -> Option<Command> {
        self.work.made()?.command.take()
    }

    /// Takes all tasks, those of the command in flight first.
    pub(super) fn take_tasks(&mut self) -> Vec<Task> {
        let Some(mut work) = self.work.take().filter(|work| !work.is_idle()) else {
            return Vec::new();
        };
        work.command
            .take()
            .into_iter()
            .flat_map(Command::into_tasks)
            .chain(work.todo)
            .collect()
    }

    /// The request that waits for the command in flight.
    pub(super) fn asked_by(&self) -> Option<RequestId> {
        self.work.command.as_ref()?.task.request
    }

    /// The tasks of the command in flight and those that wait behind it.
    pub(super) fn tasks(&self) -> impl Iterator<Item = &Task> {
        let command = self.work.command.iter();
        command
            .flat_map(|command| command.passed.iter().chain([&command.task]))
            .chain(&self.work.todo)
    }

    pub(super) fn tasks_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        let work = self.work.made().into_iter();
        work.flat_map(|work| {
            let command = work.command.iter_mut();
            let under_way =
                command.flat_map(|command| command.passed.iter_mut().chain([&mut command.task]));
            under_way.chain(&mut work.todo)
        })
    }
}
