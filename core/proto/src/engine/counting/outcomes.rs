//! What the answer to a counter's command means.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::counter::{Command, State, Wish};
use super::{CounterKey, Counting, Want};
use crate::engine::context::Context;
use crate::engine::errors;
use crate::engine::interface::{CallOutcome, Done, RequestId};
use crate::engine::timers::Timer;
use crate::error::{Error, ErrorKind};
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::wire::{Change, Op, Reply};

impl Counting {
    /// The call to be sent for a counter now.
    pub(super) fn next_call(&mut self, cx: &mut Context, key: &CounterKey) -> Option<Arc<Op>> {
        let state = self.counters.get_mut(key)?;
        if !cx.links.is_up(&key.1) {
            return None;
        }
        if state.command.is_none() {
            if state.rest.is_some() {
                return None;
            }
            let (callers, sequence) = (&self.callers, &mut self.sequence);
            state.command = state.next_command(key, callers, cx.first_owner, sequence);
        }
        let command = state.command.as_mut()?;
        let over = command.ends().is_some_and(|end| end <= cx.now);
        if command.in_flight || command.retry.is_some() || over {
            return None;
        }
        (command.in_flight, command.again) = (true, false);
        Some(command.op.clone())
    }

    /// A counter needs attention.
    pub(super) fn due(&mut self, cx: &mut Context, key: &CounterKey) {
        let now = cx.now;
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if is_due(state.retry) {
            (state.retry, state.asleep) = (None, false);
        }
        if is_due(state.rest) {
            state.rest = None;
        }
        let waiting = state.command.as_mut().filter(|command| !command.in_flight);
        let Some(command) = waiting else { return };
        if is_due(command.retry) {
            command.retry = None;
        }
        if is_due(command.ends())
            && let Some(command) = state.command.take()
        {
            self.refuse(cx, key, command, &errors::counter_unknown());
        }
    }

    pub(super) fn answered(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        sent: Moment,
        outcome: CallOutcome,
    ) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let Some(mut command) = state.command.take() else {
            return;
        };
        command.in_flight = false;
        let was_stale = std::mem::take(&mut state.stale);
        match outcome {
            CallOutcome::Answered(Reply::Changed { done, left }) => {
                state.failures = 0;
                self.changed(cx, key, command, done, left);
            }
            CallOutcome::Answered(Reply::Foreign(what)) => {
                self.refuse(cx, key, command, &errors::foreign(&what));
            }
            // The server did nothing. Its reply has taught the outbox the server's clock.
            CallOutcome::Answered(Reply::Stale) if !was_stale => {
                state.stale = true;
                self.put_back(cx, key, command, None);
            }
            CallOutcome::Answered(Reply::Stale) if command.unsettled.is_none() => {
                self.refuse(cx, key, command, &errors::clocks_differ());
            }
            CallOutcome::Answered(other) if !matches!(other, Reply::Stale) => {
                let text = format!("unexpected reply: {other:?}");
                let error = Error::new(ErrorKind::Internal, text);
                self.refuse(cx, key, command, &error);
            }
            CallOutcome::Refused {
                error,
                passing: false,
            } => self.refuse(cx, key, command, &error),
            CallOutcome::Answered(_) | CallOutcome::Refused { .. } => {
                state.failures += 1;
                let at = cx.now.after(cx.jitter.backoff(state.failures));
                self.put_back(cx, key, command, Some(at));
            }
            CallOutcome::NotSent if !cx.links.is_up(&key.1) => {
                self.put_back(cx, key, command, None);
            }
            CallOutcome::NotSent => {
                state.failures += 1;
                let at = cx.now.after(cx.jitter.backoff(state.failures));
                if command.unsettled.is_none() {
                    self.refuse_hasty(cx, &command, &errors::not_sent());
                }
                self.put_back(cx, key, command, Some(at));
            }
            // A read changes nothing, and may be repeated at any time.
            CallOutcome::Unanswered if command.reads() => self.put_back(cx, key, command, None),
            CallOutcome::Unanswered => {
                command.unsettled.get_or_insert(sent);
                self.put_back(cx, key, command, None);
            }
        }
    }

    /// The command is sent again at `at`. If no copy of it can have been executed, its parts go
    /// back to where they came from.
    fn put_back(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        mut command: Command,
        at: Option<Moment>,
    ) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if command.unsettled.is_some() {
            command.retry = at;
            let over = command.ends().is_some_and(|end| end <= cx.now);
            if over {
                return self.refuse(cx, key, command, &errors::counter_unknown());
            }
            state.command = Some(command);
            return;
        }
        state.rest = at;
        for mut wish in command.wishes.into_iter().rev() {
            wish.request = wish.request.filter(|id| self.callers.contains_key(id));
            if wish.request.is_some() || wish.is_kept() {
                state.wishes.push_front(wish);
            }
        }
    }

    /// Fails the callers of a command that do not wait: they can decide what to do. Permits that are
    /// given back are the engine's to give back.
    fn refuse_hasty(&mut self, cx: &mut Context, command: &Command, error: &Error) {
        for id in command.callers() {
            let want = self.callers.get(&id).map(|caller| caller.want);
            let hasty = |want: Want| want.once() || want == Want::Change { kept: false };
            if want.is_some_and(hasty) {
                self.give_up(cx, id, error.clone());
            }
        }
    }

    /// The command was not done and never will be, or nobody can know.
    fn refuse(&mut self, cx: &mut Context, key: &CounterKey, command: Command, error: &Error) {
        for wish in &command.wishes {
            let answered = wish
                .request
                .is_some_and(|id| self.callers.contains_key(&id));
            if !answered && let Change::Trade { given, .. } = wish.change {
                let text = format!("{given} permits could not be given back: {error:#}");
                cx.event("permits_lost", EventLevel::Warn, &key.1, text);
            }
        }
        for id in command.callers() {
            self.give_up(cx, id, error.clone());
        }
        if let Some(state) = self.counters.get_mut(key) {
            state.asleep = false;
        }
    }

    fn changed(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        command: Command,
        done: i64,
        left: i64,
    ) {
        let change = match &*command.op {
            Op::Change { change, .. } => change.clone(),
            _ => return self.looked(cx, key, &command, left),
        };
        let (served, mut before) = (usize::try_from(done).unwrap_or(0), done);
        for wish in command.wishes {
            let answer = match wish.change {
                Change::Trade { .. } => Done::Released,
                Change::SetPermits(_) | Change::SetCount(_) => Done::Set(done != 0),
                Change::AddPermits(_) => Done::Number(left),
                Change::Drain => Done::Number(done),
                Change::CountDown(by) => {
                    before = (before - i64::from(by)).max(0);
                    Done::Number(before)
                }
            };
            if let Some(id) = wish.request {
                self.complete(cx, id, answer);
            }
        }
        if !matches!(change, Change::Trade { .. }) {
            // More permits, or an open latch, wake those who wait here too.
            if let Some(state) = self.counters.get_mut(key) {
                state.wake();
            }
            return;
        }
        for (id, permits) in command.waiters.iter().take(served) {
            self.serve(cx, key, *id, *permits);
        }
        let refused = command.waiters.get(served..).unwrap_or_default();
        self.refuse_tries(cx, refused);
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let first = refused.first().map(|(id, _)| id);
        // If the first one that was refused is gone, the one behind it may want less.
        state.asleep = first.is_some() && state.waiters.front() == first && !command.again;
    }

    /// The permits of this caller are taken. If it has left, they go back.
    fn serve(&mut self, cx: &mut Context, key: &CounterKey, id: RequestId, permits: u32) {
        let name = key.1.clone();
        if self.complete(cx, id, Done::Taken { name, permits }) {
            return;
        }
        if let Some(state) = self.counters.get_mut(key) {
            let change = Change::Trade {
                given: permits,
                wanted: Vec::new(),
            };
            state.wishes.push_front(Wish {
                request: None,
                change,
            });
        }
    }

    /// A latch was read.
    fn looked(&mut self, cx: &mut Context, key: &CounterKey, command: &Command, left: i64) {
        if left <= 0 {
            for (id, _) in &command.waiters {
                self.complete(cx, *id, Done::Open);
            }
        } else {
            self.refuse_tries(cx, &command.waiters);
        }
        if let Some(state) = self.counters.get_mut(key) {
            state.asleep = left > 0 && !command.again;
        }
    }

    /// Fails those who do not wait.
    fn refuse_tries(&mut self, cx: &mut Context, refused: &[(RequestId, u32)]) {
        for (id, _) in refused {
            let Some(want) = self.callers.get(id).map(|caller| caller.want) else {
                continue;
            };
            if want.once() {
                let text = match want {
                    Want::Open(_) => "the latch is not at 0",
                    _ => "there are not enough permits now",
                };
                self.give_up(cx, *id, Error::new(ErrorKind::Timeout, text));
            }
        }
    }

    /// Answers a caller. Returns false if it has left.
    fn complete(&mut self, cx: &mut Context, id: RequestId, done: Done) -> bool {
        let Entry::Occupied(caller) = self.callers.entry(id) else {
            return false;
        };
        let caller = caller.remove();
        cx.timers.disarm(Timer::Caller(id));
        if caller.want.waits()
            && let Some(state) = self.counters.get_mut(&caller.key)
        {
            take_out(state, id);
        }
        cx.complete(id, done);
        true
    }
}

/// Takes a waiter out of its queue. It is usually the first one.
fn take_out(state: &mut State, id: RequestId) {
    if state.waiters.front() == Some(&id) {
        state.waiters.pop_front();
    } else {
        state.waiters.retain(|waiter| *waiter != id);
    }
}
