//! Operations that callers want on a hold. One command that changes its count or its lease is in
//! flight, and the others wait behind it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::context::Granted;
use crate::engine::errors::{
    clocks_differ, not_replicated, not_sent, unanswered_command, unconfirmed, unheard_entry,
};
use crate::engine::hold::{Hold, Phase};
use crate::engine::interface::{CallId, CallOutcome, Done, LevelId, Output, RequestId, Target};
use crate::engine::lazy_box::Idle;
use crate::engine::links::Which;
use crate::engine::ops::extension_of;
use crate::engine::waiter::Acquisition;
use crate::engine::work::{Command, Entry, HoldOp, Task};
use crate::engine::{Engine, NOBODY, timing};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Acquire, Fencing, Form, Name, Op, OwnerId, Release, RenewReply, Reply};

impl Engine {
    // ---- operations ----

    /// Re-entry: one more level on a hold.
    pub(in crate::engine) fn enter(&mut self, id: RequestId, owner: OwnerId, entry: Entry) {
        let hold = self.holds.get(&owner);
        let lacks = |hold: &&Hold| hold.phase == Phase::Held && hold.cell.token().is_none();
        if let Some(hold) = hold.filter(lacks)
            && entry.terms.fencing != Fencing::Off
        {
            let error = Error::without_token().on(&hold.cell.name);
            return self.cx.fail(id, error);
        }
        let wait = entry.wait.filter(|wait| !wait.is_zero());
        let task = Task {
            request: Some(id),
            answer_by: wait.map(|wait| self.cx.now.after(wait)),
            wish: HoldOp::Enter(entry),
        };
        let down = self.holds.error(&self.cx, owner).filter(|_| task.once());
        self.wish(owner, task);
        if let Some(down) = down {
            self.fail_entry_tries(owner, &down);
        }
    }

    pub(in crate::engine) fn release(&mut self, id: RequestId, target: &Target) {
        match self.target(target) {
            Ok((owner, level)) => self.leave(Some(id), owner, level),
            Err(error) => self.cx.fail(id, error),
        }
    }

    pub(in crate::engine) fn leave(
        &mut self,
        request: Option<RequestId>,
        owner: OwnerId,
        level: Option<LevelId>,
    ) {
        let answer_by = Some(self.answer_by(owner));
        self.wish(
            owner,
            Task {
                request,
                wish: HoldOp::Leave(level),
                answer_by,
            },
        );
    }

    pub(in crate::engine) fn extend(&mut self, id: RequestId, target: &Target, lease: Duration) {
        match self.target(target) {
            Ok((owner, level)) => {
                let answer_by = Some(self.answer_by(owner));
                self.wish(
                    owner,
                    Task {
                        request: Some(id),
                        wish: HoldOp::Extend { level, lease },
                        answer_by,
                    },
                );
            }
            Err(error) => self.cx.fail(id, error),
        }
    }

    /// The latest moment at which the caller of a release or an extension is answered. All calls
    /// during one outage share its end.
    fn answer_by(&self, owner: OwnerId) -> Moment {
        let ends = self
            .holds
            .get(&owner)
            .and_then(|hold| self.cx.links.outage_ends(&hold.cell.name));
        ends.map_or_else(
            || self.cx.now.after(self.cx.config.outage),
            |ends| ends.max(self.cx.now),
        )
    }

    pub(in crate::engine) fn target(&self, target: &Target) -> Result<(OwnerId, Option<LevelId>)> {
        match target {
            Target::Level { owner, level } => Ok((*owner, Some(*level))),
            Target::Key { name, key, kind } => {
                let not_owner = || Error::not_held().on(name);
                let side = kind.side();
                let target = self
                    .names
                    .left_to(&self.holds, name, *key, side)
                    .or_else(|| self.names.hold_of(&self.holds, name, *key, side));
                target.map(|owner| (owner, None)).ok_or_else(not_owner)
            }
        }
    }

    fn wish(&mut self, owner: OwnerId, task: Task) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            let error = Error::released_before("hold");
            return self.cx.answer(task.request, Err(error));
        };
        if let Phase::Lost(reason) = hold.phase {
            let name = hold.cell.name.clone();
            return self.unwind(owner, &name, task, reason);
        }
        if let Some(id) = task.request {
            self.cx.callers.insert(id, owner);
        }
        if let Some((to, heard)) = self.takes_at_once(owner, &task.wish) {
            return self.pass_on(owner, to, heard, task);
        }
        self.add_task(owner, task);
    }

    /// Starts a task, or puts it behind the command in flight.
    pub(in crate::engine) fn add_task(&mut self, owner: OwnerId, task: Task) {
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
        self.holds.arm(&mut self.cx, owner);
    }

    /// Starts a task, together with the releases before it that passed the lock on. Returns true if
    /// it was started. Otherwise its caller hears why it cannot be done any more.
    fn try_task(&mut self, owner: OwnerId, task: Task, passed: &mut Vec<Task>) -> bool {
        match self.plan(owner, &task.wish) {
            Ok(op) => {
                self.start(owner, task, std::mem::take(passed), op);
                true
            }
            Err(error) => {
                self.cx.answer(task.request, Err(error));
                false
            }
        }
    }

    /// Whether the next task of this hold also shows that the callers before it had the lock.
    fn goes_with_next(&self, owner: OwnerId) -> bool {
        let next = self
            .holds
            .get(&owner)
            .and_then(|hold| Some((hold, hold.work.todo.front()?)));
        next.is_some_and(|(hold, next)| match next.wish {
            HoldOp::Passed => true,
            HoldOp::Leave(level) => hold.position(level).is_some(),
            _ => false,
        })
    }

    fn next_task(&mut self, owner: OwnerId) -> Option<Task> {
        let hold = self
            .holds
            .get_mut(&owner)
            .filter(|hold| hold.work.command.is_none())?;
        hold.work.made()?.todo.pop_front()
    }

    /// The command to send for a wish, given the present levels.
    fn plan(&mut self, owner: OwnerId, wish: &HoldOp) -> Result<Op> {
        let now = self.cx.now;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return Err(Error::new(ErrorKind::NotOwner, "this hold has ended"));
        };
        let (name, form) = (hold.cell.name.clone(), hold.cell.form());
        let released = || Error::released_before("level").on(&name);
        match wish {
            HoldOp::Enter(Entry { terms, .. }) => {
                let lease = hold.capped(terms.lease.duration(), now);
                let count = hold.count().saturating_add(1);
                Ok(Op::Acquire(Acquire {
                    count,
                    replicas: terms.replicas.into(),
                    ..Acquire::of(name, owner, form, lease)
                }))
            }
            HoldOp::Leave(level) if hold.take_out(*level) => {
                let op = self.give_back(owner, name, form);
                Ok(self.hand_over(owner).unwrap_or(op))
            }
            HoldOp::Leave(_) => Err(released()),
            HoldOp::Extend { level, lease } => {
                hold.position(*level).ok_or_else(released)?;
                Ok(extension_of(name, owner, form, hold.capped(*lease, now)))
            }
            HoldOp::Passed => {
                let ttl = hold.capped(hold.longest_lease(), now);
                Ok(extension_of(name, owner, form, ttl))
            }
            HoldOp::Settle => Ok(Op::Release(Release {
                remaining: hold.count(),
                ttl: hold.time_needed(now),
                ..Release::of(name, owner, form)
            })),
        }
    }

    /// The release that follows from the remaining levels: of one level, or of the lock.
    fn give_back(&mut self, owner: OwnerId, name: Name, form: Form) -> Op {
        let now = self.cx.now;
        let mut op = Release::of(name, owner, form);
        if let Some(hold) = self.holds.get_mut(&owner) {
            op.ttl = hold.time_needed(now);
            if op.ttl.is_zero() {
                op.lesson = hold.lesson(now);
                self.begin_release(owner);
            } else {
                op.remaining = hold.count();
                hold.shrink(now);
            }
        }
        Op::Release(op)
    }

    /// From here on nobody may rely on the hold: the server may free the lock at any moment.
    fn begin_release(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.phase = Phase::Releasing;
        hold.renewal = Default::default();
        // Levels without time of their own lose the hold, which the released level kept alive.
        let orphaned = !hold.levels.is_empty() && hold.cell.set_lost(LostReason::Expired);
        hold.cell.set_released();
        if orphaned {
            self.cx
                .out
                .push(Output::Lost(hold.cell.clone(), LostReason::Expired));
            self.multi
                .part_lost(&mut self.cx, owner, LostReason::Expired);
        }
    }

    fn start(&mut self, owner: OwnerId, task: Task, passed: Vec<Task>, op: Op) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let time = op
            .lease()
            .unwrap_or_else(|| self.cx.now.until(hold.deadline()));
        hold.asked_for(time);
        let limit = self.cx.limit_with(op.replicas(), time);
        hold.work.command = Some(Command {
            task,
            passed,
            op: Arc::new(op),
            limit,
            begun: self.cx.now,
            call: None,
            copies: 0,
            failures: 0,
            stale: false,
            retry: None,
        });
        self.send_command(owner);
    }

    pub(in crate::engine) fn command_of(&mut self, owner: OwnerId) -> Option<&mut Command> {
        self.holds.get_mut(&owner)?.work.made()?.command.as_mut()
    }

    /// A command that is about to free the lock also frees the place that its owner has in a crowd.
    #[cold]
    fn release_place(&mut self, owner: OwnerId) {
        let command = self.command_of(owner);
        let command = command.filter(|command| command.call.is_none());
        let Some(Op::Release(Release {
            name,
            form,
            remaining: 0,
            place,
            ..
        })) = command.map(|command| &*command.op)
        else {
            return;
        };
        let (name, kind, was_sent) = (name.clone(), form.kind, place.is_some());
        let ended = self.end_place(&name, owner, kind);
        // Another copy would take it from a later waiter.
        let ended = if was_sent { Some(NOBODY) } else { ended };
        if ended.is_some()
            && let Some(command) = self.command_of(owner)
            && let Op::Release(Release { place, .. }) = Arc::make_mut(&mut command.op)
        {
            *place = ended;
        }
    }

    /// Sends a copy of the command. Without a connection the command waits for `link_up`.
    pub(in crate::engine) fn send_command(&mut self, owner: OwnerId) {
        let (now, up) = (self.cx.now, self.holds.is_up(&self.cx, owner));
        if up && self.crowded {
            self.release_place(owner);
        }
        let watched = self
            .holds
            .get(&owner)
            .is_some_and(|hold| hold.watched_lease().is_some());
        let Some(command) = self
            .command_of(owner)
            .filter(|command| command.call.is_none())
        else {
            return;
        };
        if command.is_unwanted_entry() {
            return self.settle_count(owner);
        }
        command.retry = None;
        if now >= command.begun.after(tuning::HANDOVER_FRESH) {
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
        self.holds.arm(&mut self.cx, owner);
    }

    /// Corrects the count on the server before anything else is done.
    fn settle_count(&mut self, owner: OwnerId) {
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.work.command = None;
            hold.work.todo.push_front(Task {
                request: None,
                wish: HoldOp::Settle,
                answer_by: None,
            });
        }
        self.start_next(owner);
    }

    /// Sends the command again at `at`. `None`: when the link comes up.
    fn retry_command(&mut self, owner: OwnerId, at: Option<Moment>) {
        if let Some(command) = self.command_of(owner) {
            command.retry = at;
        }
        self.drop_pointless(owner);
        self.holds.arm(&mut self.cx, owner);
    }

    /// Drops a command that waits to be sent although no caller wants it.
    fn drop_pointless(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let waits = |command: &mut Command| command.call.is_none() && command.is_pointless();
        if hold
            .work
            .made()
            .and_then(|work| work.command.take_if(waits))
            .is_some()
        {
            self.start_next(owner);
        }
    }

    pub(in crate::engine) fn retry_if_due(&mut self, owner: OwnerId) {
        let (now, up) = (self.cx.now, self.holds.is_up(&self.cx, owner));
        let due = |command: &mut Command| command.retry.is_some_and(|at| at <= now);
        if up && self.command_of(owner).is_some_and(due) {
            self.send_command(owner);
        }
    }

    /// Continues the commands that wait for the server, after a reconnect.
    pub(in crate::engine) fn resume_commands(&mut self, which: Which<'_>) {
        for owner in self.holds.busy_owners(which) {
            // One that has a moment for its next copy keeps it: an earlier copy may be alive.
            let now = self.cx.now;
            if self
                .command_of(owner)
                .is_some_and(|command| command.retry.is_none_or(|at| at <= now))
            {
                self.send_command(owner);
            }
            self.holds.arm(&mut self.cx, owner);
        }
    }

    // ---- outcomes ----

    /// The outcome of a hold's command.
    pub(in crate::engine) fn commanded(
        &mut self,
        owner: OwnerId,
        call: CallId,
        sent: Moment,
        outcome: CallOutcome,
    ) {
        // The hold may have given up this command. Then its outcome does not matter.
        let Some(command) = self
            .command_of(owner)
            .filter(|command| command.call == Some(call))
        else {
            return;
        };
        command.call = None;
        let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
        let was_stale = std::mem::replace(&mut command.stale, is_stale);
        match outcome {
            CallOutcome::Answered(Reply::Stale) => self.command_stale(owner, was_stale),
            CallOutcome::Answered(reply) => self.settle_command(owner, sent, reply),
            outcome => self.not_commanded(owner, sent, outcome),
        }
    }

    /// The command arrived after its not-after and was not done. It is repeated at once. If the
    /// repeat is too late as well, the next one follows after a pause.
    #[cold]
    fn command_stale(&mut self, owner: OwnerId, was_stale: bool) {
        if was_stale {
            return self.not_commanded(
                owner,
                self.cx.now,
                CallOutcome::Refused {
                    error: clocks_differ(),
                    passing: true,
                },
            );
        }
        if let Some(command) = self.command_of(owner) {
            command.copies -= 1;
        }
        self.send_command(owner);
    }

    /// The command was not done, or its outcome is unknown.
    #[cold]
    fn not_commanded(&mut self, owner: OwnerId, sent: Moment, outcome: CallOutcome) {
        let (now, up) = (self.cx.now, self.holds.is_up(&self.cx, owner));
        let pause = self.cx.jitter.retry();
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.renewal.in_doubt |= matches!(
                outcome,
                CallOutcome::Unanswered | CallOutcome::Refused { passing: false, .. }
            );
        }
        let Some(command) = self.command_of(owner) else {
            return;
        };
        match outcome {
            CallOutcome::Answered(_) => {}
            CallOutcome::NotSent => {
                command.copies -= 1;
                // The pause is for this command only. If it is dropped, the next one starts at
                // once.
                command.retry = up.then(|| now.after(pause));
                // Without a connection, `link_down` tells the callers why.
                if up {
                    self.fail_entry_tries(owner, &not_sent());
                }
                self.drop_pointless(owner);
                self.holds.arm(&mut self.cx, owner);
            }
            CallOutcome::Unanswered => {
                // Copies that change a count never overlap.
                let expired = timing::copy_expires(sent, command.limit).max(now);
                let soon = command.frees() || command.task.wish.is_passed();
                command.retry = Some(if soon { now.after(pause) } else { expired });
                self.fail_entry_tries(owner, &unanswered_command());
                self.drop_pointless(owner);
                self.holds.arm(&mut self.cx, owner);
            }
            CallOutcome::Refused {
                error,
                passing: true,
            } => {
                command.copies -= 1;
                command.failures += 1;
                let failures = command.failures;
                let at = now.after(self.cx.jitter.backoff(failures));
                if let Some(command) = self.command_of(owner) {
                    command.retry = Some(at);
                }
                // These callers go first. A command that is dropped may start one of their calls.
                self.fail_entry_tries(owner, &error);
                self.drop_pointless(owner);
                self.holds.arm(&mut self.cx, owner);
            }
            CallOutcome::Refused { error, .. } => self.refuse_command(owner, error),
        }
    }

    /// The server refuses the command. A lock that cannot be freed is left to its lease. A release
    /// of one of several levels needs no consent, since later counts are absolute.
    fn refuse_command(&mut self, owner: OwnerId, error: Error) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let (name, freeing) = (hold.cell.name.clone(), hold.phase == Phase::Releasing);
        let Some(Command {
            task,
            passed,
            copies,
            ..
        }) = hold.take_command()
        else {
            return;
        };
        for task in passed {
            self.cx.answer(task.request, Err(error.clone().on(&name)));
        }
        match task.wish {
            HoldOp::Leave(_) if freeing => {
                self.cx.answer(task.request, Err(error.on(&name)));
                if let Some(closing) = &mut self.closing {
                    closing.refused.push(name.clone());
                }
                return self.leave_behind(owner);
            }
            HoldOp::Leave(_) => self.left(task.request),
            // An earlier copy may have run.
            HoldOp::Enter(_) if copies > 1 => {
                self.cx.answer(task.request, Err(error.on(&name)));
                return self.settle_count(owner);
            }
            _ => self.cx.answer(task.request, Err(error.on(&name))),
        }
        self.start_next(owner);
    }

    /// The server did the command, or it reports that the hold is gone.
    fn settle_command(&mut self, owner: OwnerId, sent: Moment, reply: Reply) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(mut command) = hold.take_command() else {
            return;
        };
        if let (HoldOp::Extend { .. } | HoldOp::Passed, Reply::Renewed(results)) =
            (&command.task.wish, &reply)
            && let [RenewReply::Kept | RenewReply::Failed] = results[..]
        {
            let kept = *results == [RenewReply::Kept];
            return self.settle_renewal(owner, sent, command, kept);
        }
        let passed = std::mem::take(&mut command.passed);
        let request = command.task.request;
        match (&command.task.wish, reply) {
            (HoldOp::Enter(Entry { terms, .. }), Reply::Acquired { ttl, .. }) => {
                let terms = *terms;
                self.entered(request, owner, Granted { terms, sent, ttl });
            }
            (HoldOp::Enter(Entry { terms, .. }), Reply::NotReplicated { got }) => {
                let name = hold.cell.name.clone();
                let error = not_replicated(terms.replicas.into(), got).on(&name);
                self.cx.answer(request, Err(error));
                self.settle_count(owner);
            }
            (HoldOp::Leave(_) | HoldOp::Settle, Reply::Kept) => {
                hold.lowered(sent, command.op.lease().unwrap_or_default());
                if matches!(command.task.wish, HoldOp::Leave(_)) {
                    self.left(request);
                }
                self.start_next(owner);
            }
            (HoldOp::Leave(_), Reply::Released(heard)) => {
                if heard > 0 {
                    self.turn_of_others(owner, heard);
                }
                self.freed(owner, request);
            }
            // Our first copy must have freed the lock: nobody else can touch our field while the
            // hold is valid, and a release ends at the deadline.
            (HoldOp::Leave(_), Reply::Gone(_)) if command.copies > 1 && command.frees() => {
                // The lock may have been gone before these callers passed it on.
                let name = hold.cell.name.clone();
                for task in passed {
                    self.cx.answer(task.request, Err(unconfirmed().on(&name)));
                }
                return self.freed(owner, request);
            }
            (_, reply) => {
                let reason = loss_in(&reply);
                let name = hold.cell.name.clone();
                for request in passed.iter().map(|task| task.request).chain([request]) {
                    self.cx.answer(request, Err(Error::lost(&name, reason)));
                }
                return self.lose(owner, reason);
            }
        }
        passed.into_iter().for_each(|task| self.left(task.request));
    }

    /// The server renewed the lease as the command wanted, or (`kept` is false) failed to.
    fn settle_renewal(&mut self, owner: OwnerId, sent: Moment, command: Command, kept: bool) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if !kept {
            hold.work.command = Some(command);
            let pause = self.cx.jitter.retry();
            return self.retry_command(owner, Some(self.cx.now.after(pause)));
        }
        let (request, ttl) = (command.task.request, command.op.lease().unwrap_or_default());
        if let HoldOp::Extend { level, .. } = command.task.wish {
            hold.extended(level, sent, ttl);
            self.cx.answer(request, Ok(Done::Extended));
        } else {
            self.heard_of_passing(owner, sent, ttl);
            self.left(request);
        }
        self.start_next(owner);
        for task in command.passed {
            self.left(task.request);
        }
    }

    /// The server freed the lock, and `heard` clients, at least one, got the message.
    fn turn_of_others(&mut self, owner: OwnerId, heard: u32) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let (name, facts) = (&hold.cell.name, hold.cell.kind.facts());
        let handovers = self.cx.config.handovers;
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        if hold.cell.kind.takes_permits() && heard > u32::from(queue.channel.confirmed) {
            self.awaited = Some(name.clone());
        }
        if queue.give_turn(self.cx.now, heard, &hold.cell.form(), handovers)
            && !(queue.channel.wanted || facts.queues)
        {
            // It has never been refused, and would take the lock again before they hear of it.
            self.names.want_channel(&mut self.cx, name, facts.topic);
        }
    }

    /// A re-entry was granted. It is undone if no caller wants it any more.
    fn entered(&mut self, request: Option<RequestId>, owner: OwnerId, granted: Granted) {
        match request {
            Some(id) => {
                self.holds.add_level(&mut self.cx, id, owner, granted);
                self.start_next(owner);
            }
            None => self.settle_count(owner),
        }
    }

    /// Counts a released level and answers its caller.
    pub(in crate::engine) fn left(&mut self, request: Option<RequestId>) {
        self.cx.counters.released.add(1);
        self.cx.answer(request, Ok(Done::Released));
    }

    /// The lock is free. Ends the hold.
    fn freed(&mut self, owner: OwnerId, request: Option<RequestId>) {
        if self.cx.listened
            && let Some(hold) = self.holds.get(&owner)
        {
            let name = hold.cell.name.clone();
            self.cx
                .trace("released", &name, || format!("released by {owner}"));
        }
        if let Some(hold) = self.holds.get(&owner) {
            self.cleanups.keep(self.cx.now, hold);
        }
        self.left(request);
        self.leave_behind(owner);
    }

    /// A task that came too late for its hold. A re-entry becomes a first acquisition, unless it
    /// was meant for this very hold.
    pub(in crate::engine) fn outlive(&mut self, name: &Name, form: &Form, task: Task) {
        let Some(id) = task.request else {
            return;
        };
        match task.wish {
            HoldOp::Enter(Entry { key, terms, wait })
                if !matches!(key, OwnerKey::Hold(_)) && self.closing.is_none() =>
            {
                self.cx.callers.remove(&id);
                let left = task.answer_by.map(|end| self.cx.now.until(end));
                self.acquire(Acquisition {
                    id,
                    name: name.clone(),
                    key,
                    wait: left.or(wait),
                    terms,
                    form: form.clone(),
                });
            }
            HoldOp::Passed => self.cx.fail(id, unconfirmed().on(name)),
            _ => self.cx.fail(
                id,
                Error::new(ErrorKind::NotOwner, "this hold has ended").on(name),
            ),
        }
    }

    // ---- callers that stop waiting ----

    /// Cancels a caller of an operation on a hold. A re-entry that succeeds later is undone. A
    /// release goes on.
    pub(in crate::engine) fn cancel_command(&mut self, id: RequestId, error: Error) {
        if let Some(owner) = self.cx.callers.get(&id).copied() {
            self.answer_early(owner, id, error);
        }
    }

    /// Answers a caller before its task is done. The task goes on only if it must.
    fn answer_early(&mut self, owner: OwnerId, id: RequestId, error: Error) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let name = hold.cell.name.clone();
        for task in hold.tasks_mut().filter(|task| task.request == Some(id)) {
            task.request = None;
        }
        if let Some(work) = hold.work.made() {
            work.todo
                .retain(|task| task.request.is_some() || !task.optional());
        }
        self.cx.fail(id, error.on(&name));
        self.drop_pointless(owner);
        self.holds.arm(&mut self.cx, owner);
    }

    /// Answers the callers of a hold whose time is over.
    pub(in crate::engine) fn answer_late(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let due = |task: &&Task| task.answer_by().is_some_and(|at| at <= self.cx.now);
        let late: Vec<(RequestId, Error)> = hold
            .tasks()
            .filter(due)
            .filter_map(|task| Some((task.request?, self.late_error(&hold.cell.name, &task.wish))))
            .collect();
        for (id, error) in late {
            self.answer_early(owner, id, error);
        }
    }

    fn late_error(&self, name: &Name, wish: &HoldOp) -> Error {
        match wish {
            // The key holds the lock already, so only the server can be the reason.
            HoldOp::Enter(Entry { wait, .. }) => self
                .cx
                .links
                .error(name)
                .unwrap_or_else(|| unheard_entry(*wait))
                .on(name),
            HoldOp::Leave(_) | HoldOp::Settle | HoldOp::Passed => self.late(
                "release",
                name,
                "the release goes on, and the lock ends with its lease at the latest",
            ),
            HoldOp::Extend { .. } => self.late("extension", name, "try again"),
        }
    }

    /// The server did not confirm this operation for as long as callers wait for it.
    fn late(&self, what: &str, name: &Name, remedy: &str) -> Error {
        let down = self.cx.links.error(name);
        let why = down
            .as_ref()
            .map(|down| format!(" ({})", down.message()))
            .unwrap_or_default();
        let text = format!(
            "the server did not confirm the {what}{why}, and the option outage ({:?}) bounds the wait for it; {remedy}",
            self.cx.config.outage
        );
        let error = Error::new(ErrorKind::Unavailable, text);
        match down.and_then(|down| down.cause()) {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }

    /// Ends the re-entries of a hold that try only once.
    fn fail_entry_tries(&mut self, owner: OwnerId, error: &Error) {
        self.fail_entries_of(owner, error, &Task::once);
    }

    fn fail_entries_of(&mut self, owner: OwnerId, error: &Error, which: &dyn Fn(&Task) -> bool) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        let entries = hold
            .tasks()
            .filter(|task| matches!(task.wish, HoldOp::Enter(_)) && which(task));
        let ids: Vec<RequestId> = entries.filter_map(|task| task.request).collect();
        // The last one first: when the first one ends, the next command starts. It must not be one
        // of these.
        for id in ids.into_iter().rev() {
            self.answer_early(owner, id, error.clone());
        }
    }

    /// Ends re-entries that wait for an unreachable server: those that try once, or all.
    pub(in crate::engine) fn fail_entries(
        &mut self,
        error: &Error,
        only_tries: bool,
        which: Which<'_>,
    ) {
        for owner in self.holds.busy_owners(which) {
            self.fail_entries_of(owner, error, &|task| !only_tries || task.once());
        }
    }

    // ---- closing ----

    /// Gives up every hold because the client closes. The holders are told, and with `release` the
    /// locks are released.
    pub(in crate::engine) fn close_holds(&mut self, release: bool) {
        for owner in self.holds.owners(&|_| true) {
            self.close_hold(owner, release);
        }
    }

    fn close_hold(&mut self, owner: OwnerId, release: bool) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        match hold.phase {
            Phase::Lost(_) => return self.end_hold(owner),
            Phase::Releasing => {
                // Levels whose time is over outlive the release. Nobody can release them any more.
                hold.levels
                    .iter_mut()
                    .for_each(|level| level.abandoned = true);
                return;
            }
            Phase::Held => {}
        }
        let cell = hold.cell.clone();
        let leaves = |task: &Task| matches!(task.wish, HoldOp::Leave(_));
        let stays = hold.lingers && !hold.tasks().any(leaves);
        hold.levels.clear();
        // The release of the hold also answers the callers that passed the lock on.
        let (passed, others): (Vec<Task>, Vec<Task>) = hold
            .take_tasks()
            .into_iter()
            .partition(|task| task.wish.is_passed() && !stays);
        for task in others {
            let error = Error::closed().on(&cell.name);
            self.cx.answer(task.request, Err(error));
        }
        if cell.set_lost(LostReason::Closed) {
            self.cx
                .out
                .push(Output::Lost(cell.clone(), LostReason::Closed));
            self.multi
                .part_lost(&mut self.cx, owner, LostReason::Closed);
        }
        if stays {
            return self.end_hold(owner);
        }
        if !release {
            // The lock ends with its lease, and the answer to the close request names it.
            return;
        }
        let op = self.give_back(owner, cell.name.clone(), cell.form());
        self.start(
            owner,
            Task {
                request: None,
                wish: HoldOp::Leave(None),
                answer_by: None,
            },
            passed,
            op,
        );
    }
}

/// Why the hold is lost. The reply says that it is gone, or no hold of ours can get such a reply.
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
