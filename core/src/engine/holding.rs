//! Holds: levels, the one count-changing command in flight, and loss.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::timers::Timer;
use super::{
    CallId, Done, Engine, Lease, LevelId, Outcome, Output, Purpose, RequestId, Target, Terms, timing,
};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::{Name, Op, OwnerId, RenewReply, Renewal, Reply};

/// One owner's possession of a name.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) cell: Arc<HoldCell>,
    pub(super) phase: Phase,
    pub(super) levels: Vec<Level>,
    /// When the hold stops being trusted: the latest end of its levels, within `must_end`.
    pub(super) deadline: Moment,
    /// The end that `max_hold` sets.
    pub(super) must_end: Option<Moment>,
    pub(super) renewal: Renewing,
    command: Option<Command>,
    /// What comes after the command in flight. Counts are computed when a command starts.
    todo: VecDeque<Task>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// The release that frees the lock is on its way.
    Releasing,
    Lost(LostReason),
}

/// One acquisition on a hold.
#[derive(Debug)]
pub(super) struct Level {
    id: LevelId,
    pub(super) lease: Lease,
    /// Until when this level's lease can be trusted, as far as renewed.
    pub(super) end: Moment,
    /// Nobody renews for it any more; it goes with the hold.
    abandoned: bool,
    /// Only its key can release it.
    detached: bool,
}

impl Level {
    /// The lease that the watchdog renews for this level.
    pub(super) fn watched(&self) -> Option<Duration> {
        match self.lease {
            Lease::Watchdog(lease) if !self.abandoned => Some(lease),
            _ => None,
        }
    }
}

/// The state of a hold's renewal.
#[derive(Debug, Default)]
pub(super) struct Renewing {
    /// When the next one is to be sent.
    pub(super) due: Option<Moment>,
    pub(super) in_flight: bool,
    /// Something happened since the one in flight was sent: send another.
    pub(super) again: bool,
    /// The last attempt failed.
    pub(super) failing: bool,
    /// It failed because the server was not heard.
    pub(super) silent: bool,
}

/// A wish that changes the count or the time of a hold.
#[derive(Debug)]
enum Task {
    Enter {
        request: Option<RequestId>,
        terms: Terms,
        until: Option<Moment>,
        once: bool,
    },
    /// Without a level: the newest one.
    Leave {
        request: Option<RequestId>,
        level: Option<LevelId>,
    },
    Extend {
        request: Option<RequestId>,
        level: Option<LevelId>,
        lease: Duration,
    },
}

impl Task {
    fn request(&mut self) -> &mut Option<RequestId> {
        match self {
            Task::Enter { request, .. } | Task::Leave { request, .. } | Task::Extend { request, .. } => {
                request
            }
        }
    }
}

/// A task that has been sent.
#[derive(Debug)]
struct Command {
    task: Task,
    op: Op,
    limit: Duration,
    call: Option<CallId>,
    first_sent: Moment,
    /// The hold could be trusted when the first copy was sent.
    was_trusted: bool,
    copies: u32,
    failures: u32,
    retry: Option<Moment>,
    /// When the caller is answered even if the server was not heard.
    answer_by: Option<Moment>,
}

impl Hold {
    /// Whether waiters of the same client have to wait for this hold.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Releasing)
    }

    /// The lease the watchdog renews with: the longest of the levels that are watched.
    pub(super) fn watched_lease(&self) -> Option<Duration> {
        self.levels.iter().filter_map(Level::watched).max()
    }

    /// Sets the deadline from the levels.
    pub(super) fn refresh_deadline(&mut self) {
        let end = self.levels.iter().map(|level| level.end).max().unwrap_or(self.deadline);
        self.deadline = self.must_end.map_or(end, |must| end.min(must));
        self.cell.set_deadline(self.deadline);
    }

    /// Counts a request for `lease` that was sent at `sent` and succeeded for the watched levels.
    pub(super) fn renewed_at(&mut self, sent: Moment) {
        for level in &mut self.levels {
            if let Some(lease) = level.watched() {
                level.end = level.end.max(sent.after(timing::trusted(lease)));
            }
        }
        self.refresh_deadline();
        self.plan_renewal(sent);
    }

    /// Plans the next renewal a third of the lease after `sent`, if a level is watched.
    fn plan_renewal(&mut self, sent: Moment) {
        let next = self.watched_lease().map(|lease| sent.after(timing::period(lease)));
        self.renewal.due = next.filter(|at| self.must_end.is_none_or(|end| *at < end));
    }

    /// How long the lock must live when `except` is gone: the longest remaining time of the others.
    fn time_without(&self, except: LevelId, now: Moment) -> Duration {
        let others = self.levels.iter().filter(|level| level.id != except);
        let time = others.map(|level| level.watched().unwrap_or_else(|| now.until(level.end))).max();
        self.capped(time.unwrap_or_default(), now)
    }

    /// `lease`, but not longer than the hold may last.
    pub(super) fn capped(&self, lease: Duration, now: Moment) -> Duration {
        self.must_end.map_or(lease, |end| lease.min(now.until(end)))
    }

    fn position(&self, level: Option<LevelId>) -> Option<usize> {
        match level {
            Some(id) => self.levels.iter().position(|level| level.id == id),
            None => self.levels.len().checked_sub(1),
        }
    }

    fn remove_level(&mut self, level: LevelId) {
        self.levels.retain(|other| other.id != level);
        self.cell.set_count(u32::try_from(self.levels.len()).unwrap_or(u32::MAX));
    }
}

impl Engine {
    /// The hold that `key` has on `name`, unless it is on its way out.
    pub(super) fn hold_of(&self, name: &Name, key: Key) -> Option<OwnerId> {
        let usable =
            |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| hold.phase != Phase::Releasing);
        match key {
            Key::Once => None,
            Key::Hold(owner) => Some(owner).filter(usable),
            _ => {
                let queue = self.queues.get(name)?;
                let mine = |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| hold.cell.key == key);
                queue.holds.iter().copied().filter(usable).find(mine)
            }
        }
    }

    /// A first acquisition has succeeded.
    #[allow(clippy::too_many_arguments, reason = "all facts of one grant, used once")]
    pub(super) fn open_hold(
        &mut self,
        request: RequestId,
        name: Name,
        key: Key,
        owner: OwnerId,
        terms: Terms,
        sent: Moment,
        token: Option<u64>,
    ) {
        let cell = Arc::new(HoldCell::new(name, key, owner, token));
        let hold = Hold {
            cell: cell.clone(),
            phase: Phase::Held,
            levels: Vec::with_capacity(1),
            deadline: Moment::default(),
            must_end: terms.max_hold.map(|most| sent.after(timing::trusted(most))),
            renewal: Renewing::default(),
            command: None,
            todo: VecDeque::new(),
        };
        self.holds.insert(owner, hold);
        if key != Key::Once {
            self.out.push(Output::Opened(cell));
        }
        self.add_level(Some(request), owner, terms.lease, sent);
    }

    /// Adds a level that the server has granted and gives it to its caller; releases it if the
    /// caller has gone.
    fn add_level(&mut self, request: Option<RequestId>, owner: OwnerId, lease: Lease, sent: Moment) {
        let level = self.next_id();
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let end = sent.after(timing::trusted(lease.duration()));
        hold.levels.push(Level { id: level, lease, end, abandoned: false, detached: false });
        hold.cell.set_count(u32::try_from(hold.levels.len()).unwrap_or(u32::MAX));
        // The request gave the key its time for every level, so it counts as their renewal.
        hold.refresh_deadline();
        if hold.renewal.due.is_none() || hold.levels.len() == 1 {
            hold.plan_renewal(sent);
        }
        let cell = hold.cell.clone();
        self.arm_hold(owner);
        match request {
            Some(id) => {
                self.counters.acquired.add(1);
                let text = format!("acquired by {} with hold count {}", owner, cell.count());
                self.event("acquired", EventLevel::Debug, &cell.name, text);
                self.complete(id, Done::Granted { cell, level });
            }
            // Before anything else: a release by key that waits must find the caller's level on top.
            None => {
                if let Some(hold) = self.holds.get_mut(&owner) {
                    hold.todo.push_front(Task::Leave { request: None, level: Some(level) });
                }
            }
        }
    }

    // ---- wishes ----

    /// Re-entry: one more level on a hold.
    pub(super) fn enter(&mut self, id: RequestId, owner: OwnerId, wait: Option<Duration>, terms: Terms) {
        let until = wait.filter(|wait| !wait.is_zero()).map(|wait| self.now.after(wait));
        let once = wait == Some(Duration::ZERO);
        self.wish(owner, Task::Enter { request: Some(id), terms, until, once });
    }

    pub(super) fn release(&mut self, id: RequestId, target: &Target) {
        match self.target(target) {
            Ok((owner, level)) => self.leave(Some(id), owner, level),
            Err(error) => self.fail(id, error),
        }
    }

    pub(super) fn leave(&mut self, request: Option<RequestId>, owner: OwnerId, level: Option<LevelId>) {
        if self.holds.contains_key(&owner) {
            self.wish(owner, Task::Leave { request, level });
        } else if let Some(id) = request {
            self.fail(id, Error::new(ErrorKind::NotOwner, "this hold was released before"));
        }
    }

    pub(super) fn extend(&mut self, id: RequestId, target: &Target, lease: Duration) {
        match self.target(target) {
            Ok((owner, level)) => self.wish(owner, Task::Extend { request: Some(id), level, lease }),
            Err(error) => self.fail(id, error),
        }
    }

    fn target(&self, target: &Target) -> Result<(OwnerId, Option<LevelId>), Error> {
        match target {
            Target::Level { owner, level } => Ok((*owner, Some(*level))),
            Target::Key { name, key } => {
                let not_owner =
                    || Error::new(ErrorKind::NotOwner, "the caller does not hold this lock").on(name);
                self.hold_of(name, *key).map(|owner| (owner, None)).ok_or_else(not_owner)
            }
        }
    }

    fn wish(&mut self, owner: OwnerId, mut task: Task) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            if let Some(id) = task.request().take() {
                self.fail(id, Error::new(ErrorKind::NotOwner, "this hold has ended"));
            }
            return;
        };
        if let Phase::Lost(reason) = hold.phase {
            return self.unwind(owner, task, reason);
        }
        if let Some(id) = *task.request() {
            self.callers.insert(id, owner);
        }
        hold.todo.push_back(task);
        self.start_next(owner);
    }

    /// Starts the next task of a hold if none is in flight.
    fn start_next(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if hold.command.is_some() {
            return;
        }
        let Some(mut task) = hold.todo.pop_front() else {
            return self.arm_hold(owner);
        };
        match self.plan(owner, &task) {
            Ok((op, limit)) => self.start(owner, task, op, limit),
            Err(error) => {
                if let Some(id) = task.request().take() {
                    self.fail(id, error);
                }
                self.start_next(owner);
            }
        }
    }

    /// What to send for a task, given the levels as they are now.
    fn plan(&mut self, owner: OwnerId, task: &Task) -> Result<(Op, Duration), Error> {
        let now = self.now;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return Err(Error::new(ErrorKind::NotOwner, "this hold has ended"));
        };
        let name = hold.cell.name.clone();
        let released = || Error::new(ErrorKind::NotOwner, "this level was released before").on(&name);
        let count = u32::try_from(hold.levels.len()).unwrap_or(u32::MAX);
        if hold.phase == Phase::Releasing {
            return Err(released());
        }
        match task {
            Task::Enter { terms, .. } => {
                let lease = hold.capped(terms.lease.duration(), now);
                let fencing = crate::wire::Fencing::Off;
                let op = Op::Acquire { name, owner, count: count.saturating_add(1), lease, fencing };
                Ok((op, timing::limit(lease)))
            }
            Task::Leave { level, .. } => {
                let level = hold.position(*level).map(|at| hold.levels[at].id).ok_or_else(released)?;
                let ttl = hold.time_without(level, now);
                // The time of what would remain is over already: then nothing remains.
                let remaining = if ttl.is_zero() { 0 } else { count - 1 };
                if remaining == 0 {
                    hold.phase = Phase::Releasing;
                    hold.renewal = Renewing::default();
                }
                let limit = timing::limit(if remaining == 0 { now.until(hold.deadline) } else { ttl });
                Ok((Op::Release { name, owner, remaining, ttl }, limit))
            }
            Task::Extend { level, lease, .. } => {
                hold.position(*level).ok_or_else(released)?;
                let ttl = hold.capped(*lease, now);
                Ok((Op::Renew { holds: vec![Renewal { name, owner, ttl }] }, timing::limit(*lease)))
            }
        }
    }

    fn start(&mut self, owner: OwnerId, task: Task, op: Op, limit: Duration) {
        let answer_by = match &task {
            Task::Enter { until, .. } => *until,
            Task::Leave { .. } | Task::Extend { .. } => Some(self.now.after(self.config.outage)),
        };
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.command = Some(Command {
            task,
            op,
            limit,
            call: None,
            first_sent: self.now,
            was_trusted: self.now < hold.deadline,
            copies: 0,
            failures: 0,
            retry: None,
            answer_by,
        });
        self.send_command(owner);
    }

    /// Sends a copy of the command; without a connection it waits for `link_up`.
    fn send_command(&mut self, owner: OwnerId) {
        let up = self.link.up;
        let Some(command) = self.holds.get_mut(&owner).and_then(|hold| hold.command.as_mut()) else {
            return;
        };
        command.retry = None;
        if up && command.call.is_none() {
            command.copies += 1;
            let (op, limit) = (command.op.clone(), command.limit);
            let call = self.send(Purpose::Command(owner), op, limit);
            if let Some(command) = self.holds.get_mut(&owner).and_then(|hold| hold.command.as_mut()) {
                command.call = Some(call);
            }
        }
        self.arm_hold(owner);
    }

    /// The outcome of a hold's command.
    pub(super) fn commanded(&mut self, owner: OwnerId, call: CallId, sent: Moment, outcome: Outcome) {
        let now = self.now;
        let pause = self.jitter.retry();
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(command) = hold.command.as_mut().filter(|command| command.call == Some(call)) else {
            return;
        };
        command.call = None;
        let frees = matches!(command.op, Op::Release { remaining: 0, .. });
        match outcome {
            Outcome::Answered(Reply::Stale) => self.send_command(owner),
            Outcome::Answered(reply) => self.settle_command(owner, sent, reply),
            Outcome::NotSent => {
                command.copies -= 1;
                // Without a link, `link_up` sends it.
                command.retry = self.link.up.then(|| now.after(pause));
                self.arm_hold(owner);
            }
            Outcome::Unanswered => {
                if let Task::Enter { once: true, request, .. } = &mut command.task
                    && let Some(id) = request.take()
                {
                    let name = hold.cell.name.clone();
                    self.fail(id, unanswered().on(&name));
                }
                let Some(command) = self.holds.get_mut(&owner).and_then(|hold| hold.command.as_mut()) else {
                    return;
                };
                // Copies that change a count never overlap; a full release harms nobody twice.
                let expires = sent.after(command.limit);
                command.retry = Some(if frees { now.after(pause) } else { expires.max(now) });
                self.arm_hold(owner);
            }
            Outcome::Refused { passing: true, .. } => {
                command.failures += 1;
                let failures = command.failures;
                let pause = self.jitter.backoff(failures);
                if let Some(command) = self.holds.get_mut(&owner).and_then(|hold| hold.command.as_mut()) {
                    command.retry = Some(now.after(pause));
                }
                self.arm_hold(owner);
            }
            Outcome::Refused { error, .. } => self.refuse_command(owner, error),
        }
    }

    /// The server will not do it: the caller is told. A lock that cannot be freed is left to its lease.
    fn refuse_command(&mut self, owner: OwnerId, error: Error) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let name = hold.cell.name.clone();
        let Some(mut command) = hold.command.take() else {
            return;
        };
        if let Some(id) = command.task.request().take() {
            self.fail(id, error.on(&name));
        }
        if matches!(command.op, Op::Release { remaining: 0, .. }) {
            return self.end_hold(owner);
        }
        if let (Task::Leave { level, .. }, Some(hold)) = (&command.task, self.holds.get_mut(&owner)) {
            if let Some(at) = hold.position(*level) {
                let id = hold.levels[at].id;
                hold.remove_level(id);
            }
        }
        self.start_next(owner);
    }

    /// The server has done the command, or says that the hold is gone.
    fn settle_command(&mut self, owner: OwnerId, sent: Moment, reply: Reply) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let Some(mut command) = hold.command.take() else {
            return;
        };
        let request = command.task.request().take();
        match (&command.task, reply) {
            (Task::Enter { terms, .. }, Reply::Acquired { .. }) => {
                self.add_level(request, owner, terms.lease, sent);
                self.start_next(owner);
            }
            (Task::Leave { level, .. }, Reply::Kept) => self.left(owner, *level, request, sent),
            (Task::Leave { .. }, Reply::Released) => self.freed(owner, request),
            // Our first copy must have done it: nobody else can touch our field while the hold is valid.
            (Task::Leave { .. }, Reply::Gone(_))
                if command.copies > 1 && command.was_trusted && hold.phase == Phase::Releasing =>
            {
                self.freed(owner, request);
            }
            (Task::Extend { level, lease, .. }, Reply::Renewed(results)) if results == [RenewReply::Kept] => {
                let at = hold.position(*level);
                if let Some(level) = at.and_then(|at| hold.levels.get_mut(at)) {
                    level.end = level.end.max(sent.after(timing::trusted(*lease)));
                }
                hold.refresh_deadline();
                if let Some(id) = request {
                    self.complete(id, Done::Extended);
                }
                self.start_next(owner);
            }
            (Task::Extend { .. }, Reply::Renewed(results)) if results == [RenewReply::Failed] => {
                *command.task.request() = request;
                command.retry = Some(self.now.after(self.jitter.retry()));
                hold.command = Some(command);
                self.arm_hold(owner);
            }
            (_, reply) => {
                let reason = match reply {
                    Reply::Gone(reason) => reason,
                    Reply::Renewed(results) => match results.first() {
                        Some(RenewReply::Gone(reason)) => *reason,
                        _ => LostReason::Stolen,
                    },
                    _ => LostReason::Stolen,
                };
                *command.task.request() = request;
                hold.command = Some(command);
                self.lose(owner, reason);
            }
        }
    }

    /// One level less; the hold goes on.
    fn left(&mut self, owner: OwnerId, level: Option<LevelId>, request: Option<RequestId>, sent: Moment) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Some(at) = hold.position(level) {
            let id = hold.levels[at].id;
            hold.remove_level(id);
        }
        hold.renewed_at(sent);
        self.counters.released.add(1);
        if let Some(id) = request {
            self.complete(id, Done::Released);
        }
        self.start_next(owner);
    }

    /// The lock is free.
    fn freed(&mut self, owner: OwnerId, request: Option<RequestId>) {
        self.counters.released.add(1);
        if let Some(hold) = self.holds.get(&owner) {
            let name = hold.cell.name.clone();
            self.event("released", EventLevel::Debug, &name, format!("released by {owner}"));
        }
        if let Some(id) = request {
            self.complete(id, Done::Released);
        }
        self.end_hold(owner);
    }

    /// Takes a hold that is over out of everything and lets the next waiter on.
    pub(super) fn end_hold(&mut self, owner: OwnerId) {
        let Some(mut hold) = self.holds.remove(&owner) else {
            return;
        };
        self.timers.disarm(Timer::Hold(owner));
        hold.cell.set_count(0);
        hold.cell.set_released();
        let (name, key) = (hold.cell.name.clone(), hold.cell.key);
        let command = hold.command.take();
        let tasks: Vec<Task> =
            command.map(|command| command.task).into_iter().chain(hold.todo.drain(..)).collect();
        if hold.cell.key != Key::Once {
            self.out.push(Output::Ended(hold.cell));
        }
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.holds.retain(|other| *other != owner);
        }
        for task in tasks {
            self.outlive(&name, key, task);
        }
        self.advance(&name);
    }

    /// A task that came too late for its hold: a re-entry becomes an acquisition of its own.
    fn outlive(&mut self, name: &Name, key: Key, mut task: Task) {
        let Some(id) = task.request().take() else {
            return;
        };
        match task {
            Task::Enter { terms, until, once, .. }
                if !matches!(key, Key::Hold(_) | Key::Once) && self.closing.is_none() =>
            {
                let left = until.map(|end| self.now.until(end));
                self.callers.remove(&id);
                self.acquire(id, name.clone(), key, if once { Some(Duration::ZERO) } else { left }, terms);
            }
            _ => self.fail(id, Error::new(ErrorKind::NotOwner, "this hold has ended").on(name)),
        }
    }

    // ---- loss ----

    /// The hold can no longer be relied on. Final: its levels can only be unwound.
    pub(super) fn lose(&mut self, owner: OwnerId, reason: LostReason) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if matches!(hold.phase, Phase::Lost(_)) {
            return;
        }
        hold.phase = Phase::Lost(reason);
        hold.renewal = Renewing::default();
        let cell = hold.cell.clone();
        let lease = hold.levels.iter().map(|level| level.lease.duration()).max().unwrap_or_default();
        let command = hold.command.take();
        let tasks: Vec<Task> =
            command.map(|command| command.task).into_iter().chain(hold.todo.drain(..)).collect();
        self.timers.disarm(Timer::Hold(owner));
        self.counters.lost.add(1);
        cell.set_lost(reason);
        self.event("lost", EventLevel::Warn, &cell.name, format!("lost by {owner}: {}", reason.meaning()));
        self.out.push(Output::Lost(cell.clone(), reason));
        self.clean_up(&cell.name, owner, lease, None);
        for task in tasks {
            self.unwind(owner, task, reason);
        }
        self.unwind_abandoned(owner);
        self.advance(&cell.name);
    }

    /// A task on a lost hold: releasing unwinds a level, and everything reports the loss.
    fn unwind(&mut self, owner: OwnerId, mut task: Task, reason: LostReason) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let name = hold.cell.name.clone();
        let request = task.request().take();
        let mut error = Error::lost(&name, reason);
        if let Task::Leave { level, .. } = task {
            match hold.position(level) {
                Some(at) => {
                    let id = hold.levels[at].id;
                    let lease = hold.levels[at].lease.duration();
                    hold.remove_level(id);
                    self.clean_up(&name, owner, lease, None);
                }
                None => error = Error::new(ErrorKind::NotOwner, "this level was released before").on(&name),
            }
        }
        if let Some(id) = request {
            self.fail(id, error);
        }
        self.end_if_unwound(owner);
    }

    fn end_if_unwound(&mut self, owner: OwnerId) {
        if self.holds.get(&owner).is_some_and(|hold| hold.levels.is_empty()) {
            self.end_hold(owner);
        }
    }

    /// Levels that nobody can release any more go when the hold is lost.
    fn unwind_abandoned(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let gone: Vec<LevelId> =
            hold.levels.iter().filter(|level| level.abandoned).map(|level| level.id).collect();
        for level in gone {
            hold.remove_level(level);
        }
        self.end_if_unwound(owner);
    }

    // ---- levels whose holder has gone ----

    pub(super) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Some(at) = hold.position(Some(level)) {
            hold.levels[at].detached = true;
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
        if hold.watched_lease().is_none() {
            hold.renewal.due = None;
        }
        let (name, lost) = (hold.cell.name.clone(), matches!(hold.phase, Phase::Lost(_)));
        let text = "a hold was left without release; it is not renewed any more and ends with its lease";
        self.event("abandoned", EventLevel::Warn, &name, text);
        if lost {
            self.unwind_abandoned(owner);
        } else {
            self.arm_hold(owner);
        }
    }

    pub(super) fn key_ended(&mut self, key: Key) {
        let of_key = self.holds.iter().filter(|(_, hold)| hold.cell.key == key);
        let orphans: Vec<(OwnerId, LevelId)> = of_key
            .flat_map(|(owner, hold)| hold.levels.iter().map(move |level| (*owner, level)))
            .filter(|(_, level)| level.detached && !level.abandoned)
            .map(|(owner, level)| (owner, level.id))
            .collect();
        for (owner, level) in orphans {
            self.abandon(owner, level);
        }
    }

    /// Cancels a caller that waits for a hold's command: a re-entry that succeeds later is undone,
    /// a release or an extension goes on.
    pub(super) fn cancel_command(&mut self, id: RequestId, error: Error) {
        let Some(hold) = self.callers.get(&id).and_then(|owner| self.holds.get_mut(owner)) else {
            return;
        };
        let tasks = hold.command.iter_mut().map(|command| &mut command.task).chain(&mut hold.todo);
        tasks.map(Task::request).filter(|request| **request == Some(id)).for_each(|request| *request = None);
        // A re-entry that has not been sent is not wanted any more.
        hold.todo.retain(|task| !matches!(task, Task::Enter { request: None, .. }));
        self.fail(id, error);
    }

    // ---- time ----

    /// Arms the one timer of a hold for the first thing that is due.
    pub(super) fn arm_hold(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        if matches!(hold.phase, Phase::Lost(_)) {
            return self.timers.disarm(Timer::Hold(owner));
        }
        let renewal = hold.renewal.due.filter(|_| !hold.renewal.in_flight && self.link.up);
        let command = hold.command.as_ref();
        let waiting = command.and_then(|command| command.answer_by);
        let retry = command.and_then(|command| command.retry).filter(|_| self.link.up);
        let first = [renewal, waiting, retry].into_iter().flatten().fold(hold.deadline, Moment::min);
        self.timers.arm(Timer::Hold(owner), first);
    }

    /// Does what is due for a hold; returns it if it is to be renewed.
    pub(super) fn tend(&mut self, owner: OwnerId) -> Option<OwnerId> {
        let hold = self.holds.get(&owner)?;
        if hold.deadline <= self.now {
            self.deadline_passed(owner);
            return None;
        }
        self.answer_late_command(owner);
        let command = self.holds.get(&owner)?.command.as_ref();
        if command.and_then(|command| command.retry).is_some_and(|at| at <= self.now) && self.link.up {
            self.send_command(owner);
        }
        let hold = self.holds.get(&owner)?;
        let due =
            hold.renewal.due.is_some_and(|at| at <= self.now) && !hold.renewal.in_flight && self.link.up;
        if !due {
            self.arm_hold(owner);
        }
        due.then_some(owner)
    }

    fn deadline_passed(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner) else {
            return;
        };
        if hold.phase == Phase::Releasing {
            // The lease has ended on the server as well: the lock is free, one way or the other.
            if let Some(mut command) = self.holds.get_mut(&owner).and_then(|hold| hold.command.take()) {
                let name = self.holds.get(&owner).map(|hold| hold.cell.name.clone());
                if let (Some(id), Some(name)) = (command.task.request().take(), name) {
                    self.fail(id, unconfirmed().on(&name));
                }
            }
            return self.end_hold(owner);
        }
        let reason =
            if hold.renewal.silent || !self.link.up { LostReason::Unreachable } else { LostReason::Expired };
        self.lose(owner, reason);
    }

    /// Answers a caller whose command the server has not answered for too long; the command goes on.
    fn answer_late_command(&mut self, owner: OwnerId) {
        let now = self.now;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        let name = hold.cell.name.clone();
        let Some(command) =
            hold.command.as_mut().filter(|command| command.answer_by.is_some_and(|at| at <= now))
        else {
            return;
        };
        command.answer_by = None;
        let error = match command.task {
            Task::Enter { .. } => unanswered(),
            Task::Leave { .. } => unconfirmed(),
            Task::Extend { .. } => {
                Error::new(ErrorKind::Unavailable, "the server did not confirm the extension")
            }
        };
        if let Some(id) = command.task.request().take() {
            self.fail(id, error.on(&name));
        }
    }

    /// After a reconnect, commands that wait for the server go on.
    pub(super) fn resume_commands(&mut self) {
        let owners: Vec<OwnerId> = self.holds.keys().copied().collect();
        for owner in owners {
            let command = self.holds.get(&owner).and_then(|hold| hold.command.as_ref());
            if command.is_some_and(|command| command.call.is_none() && command.retry.is_none()) {
                self.send_command(owner);
            } else {
                self.arm_hold(owner);
            }
        }
    }

    /// Gives up every hold because the client closes: the holders are told, the locks released.
    pub(super) fn close_holds(&mut self) {
        let owners: Vec<OwnerId> = self.holds.keys().copied().collect();
        for owner in owners {
            self.close_hold(owner);
        }
    }

    fn close_hold(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        if let Phase::Lost(_) = hold.phase {
            return self.end_hold(owner);
        }
        if hold.phase == Phase::Releasing {
            return;
        }
        let cell = hold.cell.clone();
        let command = hold.command.take();
        let tasks: Vec<Task> =
            command.map(|command| command.task).into_iter().chain(hold.todo.drain(..)).collect();
        for mut task in tasks {
            if let Some(id) = task.request().take() {
                self.fail(id, Error::new(ErrorKind::Closed, "the client was closed").on(&cell.name));
            }
        }
        cell.set_lost(LostReason::Closed);
        self.out.push(Output::Lost(cell, LostReason::Closed));
        if let Some(hold) = self.holds.get_mut(&owner) {
            hold.levels.truncate(1);
        }
        self.wish(owner, Task::Leave { request: None, level: None });
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the server did not answer in time; try again")
}

fn unconfirmed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server did not confirm the release; the lock ends with its lease at the latest",
    )
}
