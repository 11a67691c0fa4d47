//! What callers want of a hold: one command that changes its count or its time is in flight, the
//! others wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::asking::release_of;
use super::holding::{Hold, Phase, unconfirmed};
use super::links::Which;
use super::rare::Idle;
use super::renewing::LOOK;
use super::waiting::{not_replicated, not_sent};
use super::{CallId, Done, Engine, LevelId, Outcome, Output, RequestId, Target, Terms, timing};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::{Fencing, Form, Name, Op, OwnerId, RenewReply, Renewal, Reply};

/// Something to be done for a hold.
#[derive(Debug)]
pub(super) struct Task {
    /// Who is to be answered; nobody if that has happened or nobody asked.
    pub(super) request: Option<RequestId>,
    pub(super) wish: Wish,
    /// When the caller is answered even if the server was not heard.
    answer_by: Option<Moment>,
}

/// What changes the count or the time of a hold.
#[derive(Debug)]
pub(super) enum Wish {
    /// One more level, for a caller with this key.
    Enter { key: Key, terms: Terms, wait: Option<Duration> },
    /// Give back this level; without one, the newest.
    Leave(Option<LevelId>),
    /// Make the lock live at least this long.
    Extend { level: Option<LevelId>, lease: Duration },
    /// Tell the server the count of the levels: a re-entry that nobody wants may have been done.
    Settle,
    /// Hear that the lock was still held when this caller gave it to the next one: its release.
    Passed,
}

impl Wish {
    pub(super) fn is_passed(&self) -> bool {
        matches!(self, Wish::Passed)
    }
}

impl Task {
    /// The moment at which the caller, if there still is one, stops waiting.
    pub(super) fn answer_by(&self) -> Option<Moment> {
        self.answer_by.filter(|_| self.request.is_some())
    }

    /// What is left of a release when its level was given to another caller.
    pub(super) fn passed(self) -> Task {
        Task { wish: Wish::Passed, ..self }
    }

    /// Enters once more, as a caller with this key.
    pub(super) fn is_entry_of(&self, key: Key) -> bool {
        matches!(self.wish, Wish::Enter { key: of, .. } if of == key)
    }

    /// Tries once and does not wait.
    fn once(&self) -> bool {
        matches!(self.wish, Wish::Enter { wait: Some(Duration::ZERO), .. })
    }

    /// Need not be done when nobody asks for it any more.
    fn optional(&self) -> bool {
        matches!(self.wish, Wish::Enter { .. } | Wish::Extend { .. })
    }
}

/// A task that has been started.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) task: Task,
    /// Those before it who passed the lock on: what says that it is done says that they held the lock.
    passed: Vec<Task>,
    op: Arc<Op>,
    limit: Duration,
    call: Option<CallId>,
    begun: Moment,
    /// Copies that may have been done, the one in flight included.
    copies: u32,
    /// Errors in a row that may pass.
    failures: u32,
    retry: Option<Moment>,
}

impl Command {
    pub(super) fn retry(&self) -> Option<Moment> {
        self.retry
    }

    /// The tasks of the callers who passed the lock on, and its own. The level that it gives back is out of its hold:
    /// what is left of that is that the server hears of it.
    pub(super) fn into_tasks(self) -> impl Iterator<Item = Task> {
        let Command { task, passed, .. } = self;
        let wish = if let Wish::Leave(_) = task.wish { Wish::Settle } else { task.wish };
        passed.into_iter().chain([Task { wish, ..task }])
    }

    /// Frees the lock. Its copies may overlap: they harm nobody.
    fn frees(&self) -> bool {
        matches!(*self.op, Op::Release { remaining: 0, .. })
    }

    /// The hand-over that this was has not been done, or not for certain (`unsure`): from now on it is a
    /// release. False if it is not this call.
    pub(super) fn release_instead(&mut self, call: CallId, unsure: bool) -> bool {
        if self.call != Some(call) {
            return false;
        }
        let Op::HandOver { name, owner, form, .. } = &*self.op else {
            return false;
        };
        self.op = Arc::new(release_of(name.clone(), *owner, form.clone()));
        self.call = None;
        self.copies -= u32::from(!unsure);
        true
    }

    /// A lease that nobody renews is not to last longer because the question whether the lock is there comes late.
    fn asks_for_no_more(&mut self, watched: bool) {
        if self.task.wish.is_passed()
            && !watched
            && let Op::Renew { holds } = Arc::make_mut(&mut self.op)
        {
            holds.iter_mut().for_each(|hold| hold.ttl = LOOK);
        }
    }

    /// Nobody wants its effect, and no effect has to be undone.
    fn is_pointless(&self) -> bool {
        let harmless = self.copies == 0 || matches!(self.task.wish, Wish::Extend { .. });
        self.task.request.is_none() && self.task.optional() && harmless
    }

    /// A re-entry that nobody wants, of which a copy may have been done.
    fn is_unwanted_entry(&self) -> bool {
        self.task.request.is_none() && matches!(self.task.wish, Wish::Enter { .. })
    }
}

/// What callers want of a hold, in their order.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) command: Option<Command>,
    /// What comes after the command in flight. Counts are computed when a command starts.
    pub(super) todo: VecDeque<Task>,
}

impl Idle for Work {
    const IDLE: &'static Work = &Work { command: None, todo: VecDeque::new() };

    fn is_idle(&self) -> bool {
        self.command.is_none() && self.todo.is_empty()
    }
}

impl Hold {
    pub(super) fn take_command(&mut self) -> Option<Command> {
        self.work.made()?.command.take()
    }

    /// Takes all that was wanted, the task of the command in flight first.
    pub(super) fn take_tasks(&mut self) -> Vec<Task> {
        let Some(mut work) = self.work.take().filter(|work| !work.is_idle()) else {
            return Vec::new();
        };
        work.command.take().into_iter().flat_map(Command::into_tasks).chain(work.todo).collect()
    }

    /// Who waits for the command in flight.
    pub(super) fn asked_by(&self) -> Option<RequestId> {
        self.work.command.as_ref()?.task.request
    }

    /// The command in flight and what waits behind it.
    pub(super) fn tasks(&self) -> impl Iterator<Item = &Task> {
        let command = self.work.command.iter();
        command.flat_map(|command| command.passed.iter().chain([&command.task])).chain(&self.work.todo)
    }

    fn tasks_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        let work = self.work.made().into_iter();
        work.flat_map(|work| {
            let command = work.command.iter_mut();
            let under_way = command.flat_map(|command| command.passed.iter_mut().chain([&mut command.task]));
            under_way.chain(&mut work.todo)
        })
    }
}

impl Engine {
    // ---- wishes ----

    /// Re-entry: one more level on a hold.
    pub(super) fn enter(
        &mut self,
        id: RequestId,
        owner: OwnerId,
        key: Key,
        wait: Option<Duration>,
        terms: Terms,
    ) {
        let answer_by = wait.filter(|wait| !wait.is_zero()).map(|wait| self.now.after(wait));
        let task = Task { request: Some(id), wish: Wish::Enter { key, terms, wait }, answer_by };
        let down = self.error_for(owner).filter(|_| task.once());
        self.wish(owner, task);
        if let Some(down) = down {
            self.fail_entry_tries(owner, &down);
        }
    }

    pub(super) fn release(&mut self, id: RequestId, target: &Target) {
        match self.target(target) {
            Ok((owner, level)) => self.leave(Some(id), owner, level),
            Err(error) => self.fail(id, error),
        }
    }

    pub(super) fn leave(&mut self, request: Option<RequestId>, owner: OwnerId, level: Option<LevelId>) {
        let answer_by = Some(self.now.after(self.config.outage));
        self.wish(owner, Task { request, wish: Wish::Leave(level), answer_by });
    }

    pub(super) fn extend(&mut self, id: RequestId, target: &Target, lease: Duration) {
        let answer_by = Some(self.now.after(self.config.outage));
        match self.target(target) {
            Ok((owner, level)) => {
                self.wish(owner, Task { request: Some(id), wish: Wish::Extend { level, lease }, answer_by });
            }
            Err(error) => self.fail(id, error),
        }
    }

    pub(super) fn target(&self, target: &Target) -> Result<(OwnerId, Option<LevelId>)> {
        match target {
            Target::Level { owner, level } => Ok((*owner, Some(*level))),
            Target::Key { name, key } => {
                let not_owner = || Error::not_held().on(name);
                self.hold_of(name, *key).map(|owner| (owner, None)).ok_or_else(not_owner)
            }
        }
    }

    fn wish(&mut self, owner: OwnerId, task: Task) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            let error = Error::released_before("hold");
            return self.answer(task.request, Err(error));
        };
        if let Phase::Lost(reason) = hold.phase {
            let name = hold.cell.name.clone();
            return self.unwind(owner, &name, task, reason);
        }
        if let Some(id) = task.request {
            self.callers.insert(id, owner);
        }
        if let Some(to) = self.takes_at_once(owner, &task.wish) {
            return self.pass_on(owner, to, task);
        }
        self.add_task(owner, task);
    }

    /// Starts a task, or puts it behind what is under way.
    pub(super) fn add_task(&mut self, owner: OwnerId, task: Task) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if !hold.work.is_idle() {
            hold.work.todo.push_back(task);
        } else if self.try_task(owner, task, &mut Vec::new()) {
            return;
        }
        self.start_next(owner);
    }

    /// Answers a caller, if there is one.
    pub(super) fn answer(&mut self, request: Option<RequestId>, result: Result<Done>) {
        match (request, result) {
            (Some(id), Ok(done)) => self.complete(id, done),
            (Some(id), Err(error)) => self.fail(id, error),
            (None, _) => {}
        }
    }

    // ---- starting and sending ----

    /// Starts the next task of a hold if none is in flight.
    fn start_next(&mut self, owner: OwnerId) {
        let mut passed = Vec::new();
        while let Some(task) = self.next_task(owner) {
            if task.wish.is_passed() && self.goes_with_next(owner) {
                passed.push(task);
            } else if self.try_task(owner, task, &mut passed) {
                return;
            }
        }
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.work.tidy();
        }
        self.arm_hold(owner);
    }

    /// Starts a task, together with those before it who passed the lock on, or answers that it cannot be done any
    /// more; true if it was started.
    fn try_task(&mut self, owner: OwnerId, task: Task, passed: &mut Vec<Task>) -> bool {
        match self.plan(owner, &task.wish) {
            Ok(op) => {
                self.start(owner, task, std::mem::take(passed), op);
                true
            }
            Err(error) => {
                self.answer(task.request, Err(error));
                false
            }
        }
    }

    /// Whether what comes next for this hold shows as well whether those before had the lock.
    fn goes_with_next(&self, owner: OwnerId) -> bool {
        let next = self.holds.get(&owner).and_then(|hold| Some((hold, hold.work.todo.front()?)));
        next.is_some_and(|(hold, next)| match next.wish {
            Wish::Passed => true,
            Wish::Leave(level) => hold.position(level).is_some(),
            _ => false,
        })
    }

    fn next_task(&mut self, owner: OwnerId) -> Option<Task> {
        let hold = self.holds.get_mut(&owner).filter(|hold| hold.work.command.is_none())?;
        hold.work.made()?.todo.pop_front()
    }

    /// What to send for a wish, given the levels as they are now.
    fn plan(&mut self, owner: OwnerId, wish: &Wish) -> Result<Op> {
        let now = self.now;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return Err(Error::new(ErrorKind::NotOwner, "this hold has ended"));
        };
        let (name, form) = (hold.cell.name.clone(), hold.cell.form());
        let released = || Error::released_before("level").on(&name);
        match wish {
            Wish::Enter { terms, .. } => {
                let lease = hold.capped(terms.lease.duration(), now);
                let count = hold.count().saturating_add(1);
                let (fencing, replicas) = (Fencing::Off, terms.replicas.into());
                Ok(Op::Acquire { name, owner, form, count, lease, fencing, replicas })
            }
            Wish::Leave(level) if hold.take_out(*level) => {
                let op = self.give_back(owner, name, form);
                Ok(self.hand_over(owner).unwrap_or(op))
            }
            Wish::Leave(_) => Err(released()),
            Wish::Extend { level, lease } => {
                hold.position(*level).ok_or_else(released)?;
                let ttl = hold.capped(*lease, now);
                Ok(Op::Renew { holds: vec![Renewal { name, owner, form, ttl }] })
            }
            Wish::Passed => {
                let ttl = hold.capped(hold.longest_lease(), now);
                Ok(Op::Renew { holds: vec![Renewal { name, owner, form, ttl }] })
            }
            Wish::Settle => {
                let (remaining, ttl) = (hold.count(), hold.time_needed(now));
                Ok(Op::Release { name, owner, form, remaining, ttl, lesson: None })
            }
        }
    }

    /// The release that follows from the levels that remain: of one level, or of the lock.
    fn give_back(&mut self, owner: OwnerId, name: Name, form: Form) -> Op {
        let now = self.now;
        let (mut remaining, mut ttl, mut lesson) = (0, Duration::ZERO, None);
        if let Some(hold) = self.holds.get_mut(&owner) {
            ttl = hold.time_needed(now);
            if ttl.is_zero() {
                lesson = hold.lesson(now);
                self.begin_release(owner);
            } else {
                remaining = hold.count();
                hold.shrink(now);
            }
        }
        Op::Release { name, owner, form, remaining, ttl, lesson }
    }

    /// From here on the hold is not relied on: the server may free the lock at any moment.
    fn begin_release(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.phase = Phase::Releasing;
        hold.renewal = Default::default();
        // Levels that had no time of their own any more lose the hold that the released one kept.
        let orphaned = !hold.levels.is_empty() && hold.cell.set_lost(LostReason::Expired);
        hold.cell.set_released();
        if orphaned {
            self.out.push(Output::Lost(hold.cell.clone(), LostReason::Expired));
        }
    }

    fn start(&mut self, owner: OwnerId, task: Task, passed: Vec<Task>, op: Op) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let time = asked(&op).unwrap_or_else(|| self.now.until(hold.deadline()));
        hold.asked_for(time);
        let limit = timing::limit_with(op.replicas(), time);
        hold.work.command = Some(Command {
            task,
            passed,
            op: Arc::new(op),
            limit,
            begun: self.now,
            call: None,
            copies: 0,
            failures: 0,
            retry: None,
        });
        self.send_command(owner);
    }

    pub(super) fn command_of(&mut self, owner: OwnerId) -> Option<&mut Command> {
        self.holds.get_mut(&owner)?.work.made()?.command.as_mut()
    }

    /// Sends a copy of the command; without a connection it waits for `link_up`.
    pub(super) fn send_command(&mut self, owner: OwnerId) {
        let (now, up) = (self.now, self.is_up_for(owner));
        let watched = self.holds.get(&owner).is_some_and(|hold| hold.watched_lease().is_some());
        let Some(command) = self.command_of(owner).filter(|command| command.call.is_none()) else {
            return;
        };
        if command.is_unwanted_entry() {
            return self.settle_count(owner);
        }
        command.retry = None;
        if now >= command.begun.after(timing::FRESH) {
            command.asks_for_no_more(watched);
        }
        if up {
            command.copies += 1;
            let (op, limit) = (command.op.clone(), command.limit);
            let purpose = self.purpose_of(owner, &op);
            let call = self.send(purpose, op, limit);
            if let Some(command) = self.command_of(owner) {
                command.call = Some(call);
            }
        }
        self.arm_hold(owner);
    }

    /// Puts the count right before anything else is done.
    fn settle_count(&mut self, owner: OwnerId) {
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.work.command = None;
            hold.work.todo.push_front(Task { request: None, wish: Wish::Settle, answer_by: None });
        }
        self.start_next(owner);
    }

    /// Sends the command again at `at`, or without a moment when the link comes up.
    fn retry_command(&mut self, owner: OwnerId, at: Option<Moment>) {
        if let Some(command) = self.command_of(owner) {
            command.retry = at;
        }
        self.drop_pointless(owner);
        self.arm_hold(owner);
    }

    /// Drops a command that waits to be sent though nobody wants it.
    fn drop_pointless(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let waits = |command: &mut Command| command.call.is_none() && command.is_pointless();
        if hold.work.made().and_then(|work| work.command.take_if(waits)).is_some() {
            self.start_next(owner);
        }
    }

    pub(super) fn retry_if_due(&mut self, owner: OwnerId) {
        let (now, up) = (self.now, self.is_up_for(owner));
        let due = |command: &mut Command| command.retry.is_some_and(|at| at <= now);
        if up && self.command_of(owner).is_some_and(due) {
            self.send_command(owner);
        }
    }

    /// After a reconnect, commands that wait for the server go on.
    pub(super) fn resume_commands(&mut self, which: Which<'_>) {
        for owner in self.owners(which) {
            // One that has a moment for its next copy keeps it: an earlier copy may be alive.
            let now = self.now;
            if self.command_of(owner).is_some_and(|command| command.retry.is_none_or(|at| at <= now)) {
                self.send_command(owner);
            }
            self.arm_hold(owner);
        }
    }

    // ---- outcomes ----

    /// The outcome of a hold's command.
    pub(super) fn commanded(&mut self, owner: OwnerId, call: CallId, sent: Moment, outcome: Outcome) {
        // A command that its hold has given up is not of interest any more.
        let Some(command) = self.command_of(owner).filter(|command| command.call == Some(call)) else {
            return;
        };
        command.call = None;
        match outcome {
            Outcome::Answered(Reply::Stale) => self.send_command(owner),
            Outcome::Answered(reply) => self.settle_command(owner, sent, reply),
            outcome => self.not_commanded(owner, sent, outcome),
        }
    }

    /// The command was not done, or nobody knows.
    #[cold]
    fn not_commanded(&mut self, owner: OwnerId, sent: Moment, outcome: Outcome) {
        let (now, up) = (self.now, self.is_up_for(owner));
        let pause = self.jitter.retry();
        let Some(command) = self.command_of(owner) else {
            return;
        };
        match outcome {
            Outcome::Answered(_) => {}
            Outcome::NotSent => {
                command.copies -= 1;
                // Of this command: the next one may begin at once.
                command.retry = up.then(|| now.after(pause));
                // Without a connection, `link_down` tells them why.
                if up {
                    self.fail_entry_tries(owner, &not_sent());
                }
                self.drop_pointless(owner);
                self.arm_hold(owner);
            }
            Outcome::Unanswered => {
                // Copies that change a count never overlap.
                let expired = timing::copy_expires(sent, command.limit).max(now);
                let soon = command.frees() || command.task.wish.is_passed();
                command.retry = Some(if soon { now.after(pause) } else { expired });
                self.fail_entry_tries(owner, &unanswered());
                self.drop_pointless(owner);
                self.arm_hold(owner);
            }
            Outcome::Refused { passing: true, .. } => {
                command.copies -= 1;
                command.failures += 1;
                let failures = command.failures;
                let at = now.after(self.jitter.backoff(failures));
                self.retry_command(owner, Some(at));
            }
            Outcome::Refused { error, .. } => self.refuse_command(owner, error),
        }
    }

    /// The server will not do it. A lock that cannot be freed is left to its lease; one level less
    /// needs no consent, since later counts are absolute.
    fn refuse_command(&mut self, owner: OwnerId, error: Error) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (name, freeing) = (hold.cell.name.clone(), hold.phase == Phase::Releasing);
        let Some(Command { task, passed, copies, .. }) = hold.take_command() else {
            return;
        };
        for task in passed {
            self.answer(task.request, Err(error.clone().on(&name)));
        }
        match task.wish {
            Wish::Leave(_) if freeing => {
                self.answer(task.request, Err(error.on(&name)));
                self.not_released(&name);
                return self.leave_behind(owner);
            }
            Wish::Leave(_) => self.left(task.request),
            // An earlier copy may have been done.
            Wish::Enter { .. } if copies > 1 => {
                self.answer(task.request, Err(error.on(&name)));
                return self.settle_count(owner);
            }
            _ => self.answer(task.request, Err(error.on(&name))),
        }
        self.start_next(owner);
    }

    /// The server has done the command, or says that the hold is gone.
    fn settle_command(&mut self, owner: OwnerId, sent: Moment, reply: Reply) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(mut command) = hold.take_command() else {
            return;
        };
        let passed = std::mem::take(&mut command.passed);
        let (request, ttl) = (command.task.request, asked(&command.op).unwrap_or_default());
        match (&command.task.wish, reply) {
            (Wish::Enter { terms, .. }, Reply::Acquired { ttl, .. }) => {
                self.entered(request, owner, *terms, sent, ttl);
            }
            (Wish::Enter { terms, .. }, Reply::NotReplicated { got }) => {
                let name = hold.cell.name.clone();
                let error = not_replicated(terms.replicas.into(), got).on(&name);
                self.answer(request, Err(error));
                self.settle_count(owner);
            }
            (Wish::Leave(_) | Wish::Settle, Reply::Kept) => {
                hold.renewed_at(sent, ttl);
                if matches!(command.task.wish, Wish::Leave(_)) {
                    self.left(request);
                }
                self.start_next(owner);
            }
            (Wish::Leave(_), Reply::Released(heard)) => {
                if let Some(queue) = self.queues.get_mut(&hold.cell.name) {
                    queue.give_turn(self.now, heard, self.config.handovers);
                }
                self.freed(owner, request);
            }
            // Our first copy must have done it: nobody else can touch our field while the hold is
            // valid, and a release ends at the deadline.
            (Wish::Leave(_), Reply::Gone(_)) if command.copies > 1 && command.frees() => {
                // It may have been gone before those passed it on.
                let name = hold.cell.name.clone();
                for task in passed {
                    self.answer(task.request, Err(unconfirmed().on(&name)));
                }
                return self.freed(owner, request);
            }
            (Wish::Extend { level, .. }, Reply::Renewed(results)) if results == [RenewReply::Kept] => {
                if let Some(at) = hold.position(*level) {
                    let level = &mut hold.levels[at];
                    level.end = level.end.max(sent.after(timing::trusted(ttl)));
                }
                hold.refresh_deadline();
                self.answer(request, Ok(Done::Extended));
                self.start_next(owner);
            }
            (Wish::Passed, Reply::Renewed(results)) if results == [RenewReply::Kept] => {
                self.heard_of_passing(owner, sent, ttl);
                self.left(request);
                self.start_next(owner);
            }
            (Wish::Extend { .. } | Wish::Passed, Reply::Renewed(results))
                if results == [RenewReply::Failed] =>
            {
                hold.work.command = Some(Command { passed, ..command });
                let pause = self.jitter.retry();
                return self.retry_command(owner, Some(self.now.after(pause)));
            }
            (_, reply) => {
                let reason = loss_in(&reply);
                let name = hold.cell.name.clone();
                for request in passed.iter().map(|task| task.request).chain([request]) {
                    self.answer(request, Err(Error::lost(&name, reason)));
                }
                return self.lose(owner, reason);
            }
        }
        passed.into_iter().for_each(|task| self.left(task.request));
    }

    /// A re-entry was granted; one that nobody wants any more is undone.
    fn entered(
        &mut self,
        request: Option<RequestId>,
        owner: OwnerId,
        terms: Terms,
        sent: Moment,
        ttl: Duration,
    ) {
        match request {
            Some(id) => {
                self.add_level(id, owner, terms, sent, ttl);
                self.start_next(owner);
            }
            None => self.settle_count(owner),
        }
    }

    /// One level less; the hold goes on.
    fn left(&mut self, request: Option<RequestId>) {
        self.counters.released.add(1);
        self.answer(request, Ok(Done::Released));
    }

    /// The lock is free.
    fn freed(&mut self, owner: OwnerId, request: Option<RequestId>) {
        if self.listened
            && let Some(hold) = self.holds.get(&owner)
        {
            let name = hold.cell.name.clone();
            self.trace("released", &name, || format!("released by {owner}"));
        }
        self.keep_release(owner);
        self.left(request);
        self.leave_behind(owner);
    }

    /// A task that came too late for its hold: a re-entry becomes an acquisition of its own, unless
    /// it was meant for this very hold.
    pub(super) fn outlive(&mut self, name: &Name, form: &Form, task: Task) {
        let Some(id) = task.request else {
            return;
        };
        match task.wish {
            Wish::Enter { key, terms, wait } if !matches!(key, Key::Hold(_)) && self.closing.is_none() => {
                self.callers.remove(&id);
                let left = task.answer_by.map(|end| self.now.until(end)).or(wait);
                self.acquire(id, name.clone(), key, left, terms, form.clone());
            }
            Wish::Passed => self.fail(id, unconfirmed().on(name)),
            _ => self.fail(id, Error::new(ErrorKind::NotOwner, "this hold has ended").on(name)),
        }
    }

    // ---- callers that stop waiting ----

    /// Cancels a caller that waits for something of a hold: a re-entry that succeeds later is
    /// undone, a release goes on.
    pub(super) fn cancel_command(&mut self, id: RequestId, error: Error) {
        if let Some(owner) = self.callers.get(&id).copied() {
            self.answer_early(owner, id, error);
        }
    }

    /// Answers a caller before its task is done. The task goes on only where it must.
    fn answer_early(&mut self, owner: OwnerId, id: RequestId, error: Error) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let name = hold.cell.name.clone();
        for task in hold.tasks_mut().filter(|task| task.request == Some(id)) {
            task.request = None;
        }
        if let Some(work) = hold.work.made() {
            work.todo.retain(|task| task.request.is_some() || !task.optional());
        }
        self.fail(id, error.on(&name));
        self.drop_pointless(owner);
        self.arm_hold(owner);
    }

    /// Answers the callers of a hold that have waited for as long as they want to.
    pub(super) fn answer_late(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let due = |task: &&Task| task.answer_by().is_some_and(|at| at <= self.now);
        let late: Vec<(RequestId, Error)> = hold
            .tasks()
            .filter(due)
            .filter_map(|task| Some((task.request?, self.late_error(&hold.cell.name, &task.wish))))
            .collect();
        for (id, error) in late {
            self.answer_early(owner, id, error);
        }
    }

    fn late_error(&self, name: &Name, wish: &Wish) -> Error {
        match wish {
            // Nobody else is in the way of who holds the lock.
            Wish::Enter { wait, .. } => {
                self.links.error(name).unwrap_or_else(|| unheard_entry(*wait)).on(name)
            }
            Wish::Leave(_) | Wish::Settle | Wish::Passed => unconfirmed(),
            Wish::Extend { .. } => {
                Error::new(ErrorKind::Unavailable, "the server did not confirm the extension; try again")
            }
        }
    }

    /// Ends the re-entries of a hold that do not wait.
    fn fail_entry_tries(&mut self, owner: OwnerId, error: &Error) {
        self.fail_entries_of(owner, error, Task::once);
    }

    fn fail_entries_of(&mut self, owner: OwnerId, error: &Error, which: impl Fn(&Task) -> bool) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let entries = hold.tasks().filter(|task| matches!(task.wish, Wish::Enter { .. }) && which(task));
        let ids: Vec<RequestId> = entries.filter_map(|task| task.request).collect();
        for id in ids {
            self.answer_early(owner, id, error.clone());
        }
    }

    /// Ends re-entries that wait for a server that is away: those that try once, or all.
    pub(super) fn fail_entries(&mut self, error: &Error, only_tries: bool, which: Which<'_>) {
        for owner in self.owners(which) {
            self.fail_entries_of(owner, error, |task| !only_tries || task.once());
        }
    }

    // ---- closing ----

    /// Gives up every hold because the client closes: the holders are told, the locks released if there is time for it.
    pub(super) fn close_holds(&mut self, release: bool) {
        for owner in self.owners(&|_| true) {
            self.close_hold(owner, release);
        }
    }

    fn close_hold(&mut self, owner: OwnerId, release: bool) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        match hold.phase {
            Phase::Lost(_) => return self.end_hold(owner),
            Phase::Releasing => return,
            Phase::Held => {}
        }
        let cell = hold.cell.clone();
        let leaves = |task: &Task| matches!(task.wish, Wish::Leave(_));
        let stays = hold.lingers && !hold.tasks().any(leaves);
        hold.levels.clear();
        // Who has passed the lock on hears of it by its release.
        let (passed, others): (Vec<Task>, Vec<Task>) =
            hold.take_tasks().into_iter().partition(|task| task.wish.is_passed() && !stays);
        for task in others {
            let error = Error::new(ErrorKind::Closed, "the client was closed").on(&cell.name);
            self.answer(task.request, Err(error));
        }
        if cell.set_lost(LostReason::Closed) {
            self.out.push(Output::Lost(cell.clone(), LostReason::Closed));
        }
        if stays {
            return self.end_hold(owner);
        }
        if !release {
            // It ends with its lease, and is named as what was not released.
            return;
        }
        let op = self.give_back(owner, cell.name.clone(), cell.form());
        self.start(owner, Task { request: None, wish: Wish::Leave(None), answer_by: None }, passed, op);
    }
}

/// The time that a command asks for; a release that frees the lock asks for none.
fn asked(op: &Op) -> Option<Duration> {
    match op {
        Op::Acquire { lease, .. } | Op::HandOver { lease, .. } => Some(*lease),
        Op::Release { ttl, remaining, .. } => Some(*ttl).filter(|_| *remaining > 0),
        Op::Renew { holds } => holds.first().map(|hold| hold.ttl),
        Op::Force { .. } | Op::Inspect { .. } => None,
    }
}

/// Why the hold is lost, by a reply that says it is gone, or that no hold of ours can get.
fn loss_in(reply: &Reply) -> LostReason {
    match reply {
        Reply::Gone(reason) => *reason,
        Reply::Renewed(results) => match results.as_slice() {
            [RenewReply::Gone(reason)] => *reason,
            _ => LostReason::Stolen,
        },
        _ => LostReason::Stolen,
    }
}

fn unheard_entry(wait: Option<Duration>) -> Error {
    let text =
        format!("the server did not confirm the re-entry within {:?}; try again", wait.unwrap_or_default());
    Error::new(ErrorKind::Unavailable, text)
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the server did not answer in time; try again")
}
