//! Semaphores without leases, and count-down latches: a number in Redis, which has no owners.
//!
//! A repeated command would count twice, and the number cannot tell. So each command that changes a
//! counter has a sequence number, and the script notes the last one of each client beside the
//! counter. One command of a counter is in flight at a time. It serves as many callers as it can.
//! A command without an answer is repeated under its number until there is one: then the client
//! knows what it did, and gives back what nobody wants any more.

mod counter;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, CounterKey};
use super::errors::{
    clocks_differ, counter_timeout, counter_unheard, counter_unknown, foreign, goes_on, not_sent,
    unconnected,
};
use super::interface::{CallOutcome, Done, Output, RequestId};
use super::links::Which;
use super::timers::Timer;
use super::turn::Run;
use crate::error::{Error, ErrorKind};
use crate::event::Level as EventLevel;
use crate::maps::{SortedMap, SortedSet};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Change, Counter, Name, Op, OwnerId, Reply};
use counter::{CounterCaller, CounterChannel, CounterCommand, CounterState, Wish};

pub(super) use counter::Want;

/// The counters that callers of this client change or wait for, and those callers.
#[derive(Debug, Default)]
pub(super) struct Counting {
    // Ordered, so that the same inputs give the same outputs.
    counters: SortedMap<CounterKey, CounterState>,
    callers: SortedMap<RequestId, CounterCaller>,
    /// How many of the callers wait for permits or for an open latch.
    waiting: usize,
    /// When each counter needs attention.
    alarms: SortedSet<(Moment, CounterKey)>,
    /// The sequence number that was drawn last.
    sequence: u64,
    /// How many channels are wanted.
    channels: usize,
    closing: bool,
    /// The counters for which something can perhaps be sent.
    ready: VecDeque<CounterKey>,
    /// The places in crowds that this client gives up.
    left: Vec<(Name, OwnerId)>,
}

impl Counting {
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.callers.contains_key(&id)
    }

    /// How many callers are without an answer.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    #[cfg(test)]
    pub(super) fn tries(&self) -> usize {
        self.counters.values().map(|state| state.tries.len()).sum()
    }

    /// How many callers wait for a counter.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn has_channels(&self) -> bool {
        self.channels > 0
    }

    /// Whether there is a counter of this name.
    pub(super) fn knows(&self, name: &Name) -> bool {
        let counters = [Counter::Semaphore, Counter::Latch];
        counters
            .iter()
            .any(|counter| self.counters.contains_key(&(*counter, name.clone())))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.counters.keys().map(|(_, name)| name.clone())
    }

    pub(super) fn is_settled(&self) -> bool {
        self.counters.values().all(CounterState::is_settled)
    }

    /// The names of the counters with changes that are not done.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &Name> {
        let unsettled = |(_, state): &(&CounterKey, &CounterState)| !state.is_settled();
        self.counters
            .iter()
            .filter(unsettled)
            .map(|((_, name), _)| name)
    }

    /// Whether the command in flight reads its counter.
    pub(super) fn reads(&self, key: &CounterKey) -> bool {
        let command = self
            .counters
            .get(key)
            .and_then(|state| state.command.as_ref());
        command.is_some_and(|command| command.reads())
    }

    /// The caller that the command in flight serves, if it serves only one.
    pub(super) fn sole_caller(&self, key: &CounterKey) -> Option<RequestId> {
        let state = self.counters.get(key)?;
        let mut callers = state.callers_of(state.command.as_ref()?);
        let sole = callers.next().filter(|id| self.has(*id));
        sole.filter(|_| callers.next().is_none())
    }

    fn add(&mut self, cx: &mut Context, id: RequestId, key: &CounterKey, want: Want) {
        let time = if want.once() || !want.waits() {
            Some(patience(cx))
        } else {
            want.wait()
        };
        if let Some(time) = time {
            cx.timers.arm(Timer::Caller(id), cx.now.after(time));
        }
        let key = key.clone();
        let late = false;
        self.waiting += usize::from(want.waits());
        self.callers.insert(id, CounterCaller { key, want, late });
    }

    fn remove(&mut self, cx: &mut Context, id: RequestId) -> Option<CounterCaller> {
        cx.timers.disarm(Timer::Caller(id));
        let caller = self.callers.remove(&id)?;
        self.waiting -= usize::from(caller.want.waits());
        Some(caller)
    }

    /// Ends the wait of a caller. A command that was sent for it goes on; permits that it wins are
    /// given back.
    fn give_up(&mut self, cx: &mut Context, id: RequestId, error: Error) -> Option<CounterKey> {
        let CounterCaller { key, want, .. } = self.remove(cx, id)?;
        if let Some(state) = self.counters.get_mut(&key) {
            state.leave(id, want);
        }
        cx.fail(id, error.on(&key.1));
        Some(key)
    }

    /// Fails the callers that are left when the client ends.
    pub(super) fn fail_all(&mut self, cx: &mut Context) {
        self.waiting = 0;
        for (id, caller) in std::mem::take(&mut self.callers) {
            cx.timers.disarm(Timer::Caller(id));
            cx.fail(id, Error::closed().on(&caller.key.1));
        }
    }

    /// Somebody else changed the key, or the server forgot that we read it. A message follows where
    /// a latch opens, but none where its key was deleted or has expired. A semaphore without its key
    /// has no permits, so its waiters need not look.
    pub(super) fn key_changed(&mut self, cx: &mut Context, name: &Name) {
        let key = (Counter::Latch, name.clone());
        let Some(state) = self.counters.get_mut(&key).filter(|state| state.asleep) else {
            return;
        };
        let rested = state.hinted.map(|last| last.after(tuning::LATCH_LOOK));
        // The look that was planned may have been made sooner, for another reason.
        let at = rested
            .unwrap_or_default()
            .min(cx.now.after(tuning::LATCH_LOOK))
            .max(cx.now.after(tuning::HINT_DELAY));
        if state.retry.is_none_or(|retry| at < retry) {
            (state.retry, state.hinted) = (Some(at), Some(at));
            self.settle(cx, &key);
        }
    }

    // ---- channels and timers ----

    /// Subscribes if somebody has to wait, and forgets a counter that nobody needs any more.
    pub(super) fn settle(&mut self, cx: &mut Context, key: &CounterKey) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let name = &key.1;
        if state.waiters.is_empty() && state.crowd.is_left_behind() {
            let place = state.crowd.place;
            self.left.extend(place.map(|place| (name.clone(), place)));
            state.crowd.leave();
        }
        let topic = state.topic(key.0);
        state.forgotten = match state.waiters.is_empty() && state.streak.has_handed_over() {
            true => state.forgotten.or(Some(cx.now.after(tuning::STREAK_LIFE))),
            false => None,
        };
        if state.waiters.is_empty() {
            (state.asleep, state.retry) = (false, None);
            let linger = if self.closing {
                Duration::ZERO
            } else {
                cx.config.linger
            };
            if let Some(channel) = &mut state.channel {
                let end = *channel.idle_until.get_or_insert(cx.now.after(linger));
                if end <= cx.now || self.closing {
                    self.channels -= 1;
                    let before = channel.topic;
                    state.channel = None;
                    cx.out.push(Output::Unsubscribe(name.clone(), before));
                }
            }
        } else if state.asleep {
            let ahead = state.crowd.ahead.filter(|_| state.crowd.is_behind());
            if state.retry.is_none() {
                // The first place may be that of a client that has ended.
                let gone = state.left.then_some(tuning::CROWD_LEFT);
                state.retry = Some(cx.next_look(cx.config.recheck, gone, ahead));
            }
            let before = state.channel.as_ref().map(|channel| channel.topic);
            if before != Some(topic) {
                match before {
                    Some(before) => cx.out.push(Output::Unsubscribe(name.clone(), before)),
                    None => self.channels += 1,
                }
                cx.out.push(Output::Subscribe(name.clone(), topic));
            }
            state.channel = Some(CounterChannel {
                topic,
                idle_until: None,
            });
        } else {
            state.retry = None;
            if let Some(channel) = &mut state.channel {
                channel.idle_until = None;
            }
        }
        self.arm(cx, key);
    }

    fn arm(&mut self, cx: &mut Context, key: &CounterKey) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let due = state.due().filter(|_| !state.is_unused());
        if state.alarm != due {
            if let Some(before) = std::mem::replace(&mut state.alarm, due) {
                self.alarms.remove(&(before, key.clone()));
            }
            if let Some(at) = due {
                self.alarms.insert((at, key.clone()), ());
            }
        }
        if state.is_unused() {
            self.counters.remove(key);
        }
        match self.alarms.first() {
            Some(((at, _), ())) => cx.timers.arm(Timer::Counters, *at),
            None => cx.timers.disarm(Timer::Counters),
        }
    }
}

/// How long a caller that does not wait for others may be without an answer.
fn patience(cx: &Context) -> Duration {
    cx.config.outage.max(tuning::PLAIN_LIMIT)
}

impl Counting {
    // ---- requests ----

    /// Waits for permits, or for an open latch.
    pub(super) fn wait(&mut self, cx: &mut Context, id: RequestId, name: Name, want: Want) {
        let counter = match want {
            Want::Open(_) => Counter::Latch,
            _ => Counter::Semaphore,
        };
        let key = (counter, name);
        let error = cx.links.error(&key.1).filter(|_| want.once());
        if let Some(down) = error {
            return cx.fail(id, down.on(&key.1));
        }
        let state = self.counters.or_default(key.clone());
        if want.once() && key.0 == Counter::Semaphore && state.asleep {
            let text = "other callers of this client wait for permits, and go first";
            let error = Error::new(ErrorKind::Timeout, text);
            return cx.fail(id, error.on(&key.1));
        }
        state.waiters.push_back(id);
        if state.command.is_some() {
            state.joined.insert(id, ());
        }
        if want.once() {
            state.tries.push(id);
        }
        // The new waiter needs an answer. The others know already that the latch is closed.
        if key.0 == Counter::Latch {
            state.wake();
        }
        self.add(cx, id, &key, want);
        self.ready.push_back(key);
    }

    pub(super) fn change(&mut self, cx: &mut Context, id: RequestId, name: Name, change: Change) {
        let key = (change.counter(), name);
        let kept = change.is_kept();
        self.add(cx, id, &key, Want::Change { kept });
        let request = Some(id);
        self.add_wish(&key, Wish { request, change });
    }

    pub(super) fn give_back(&mut self, name: Name, permits: u32) {
        let (request, change) = (None, Change::give(permits));
        self.add_wish(&(Counter::Semaphore, name), Wish { request, change });
    }

    fn add_wish(&mut self, key: &CounterKey, wish: Wish) {
        let state = self.counters.or_default(key.clone());
        state.wishes.push_back(wish);
        self.ready.push_back(key.clone());
    }

    pub(super) fn cancel(&mut self, cx: &mut Context, id: RequestId) {
        let Some(CounterCaller { key, want, .. }) = self.callers.get(&id) else {
            return;
        };
        let (text, kept) = match want {
            Want::Permits(..) => (
                "the wait was cancelled; permits that it won are given back",
                false,
            ),
            Want::Open(_) => ("the wait was cancelled", false),
            Want::Change { kept: true } => ("cancelled", true),
            Want::Change { .. } => ("cancelled; what was sent may have taken effect", false),
        };
        let error = goes_on(Error::new(ErrorKind::Cancelled, text), key.0, kept);
        self.end_caller(cx, id, error);
    }

    fn end_caller(&mut self, cx: &mut Context, id: RequestId, error: Error) {
        let key = self.give_up(cx, id, error);
        self.ready.extend(key);
    }

    // ---- going on ----

    /// A counter for which something can perhaps be sent.
    pub(super) fn next_ready(&mut self) -> Option<CounterKey> {
        self.ready.pop_front()
    }

    /// A message on a channel of this name.
    pub(super) fn heard(&mut self, cx: &mut Context, name: &Name) {
        if self.counters.is_empty() {
            return;
        }
        let key = (Counter::Semaphore, name.clone());
        if let Some(state) = self
            .counters
            .get_mut(&key)
            .filter(|state| !state.waiters.is_empty())
        {
            state.heard = state.heard.saturating_add(1);
            if state.asleep && state.hears_place() {
                // It is the first now. It tries when it hears the channel of the semaphore.
                state.crowd.tell();
                return self.settle(cx, &key);
            }
        }
        self.wake(name);
    }

    /// The channel of this name cannot be subscribed. Returns whether there is another one: a user may be
    /// allowed the channel of the semaphore alone.
    pub(super) fn leave_crowd(&mut self, cx: &mut Context, name: &Name) -> bool {
        let key = (Counter::Semaphore, name.clone());
        let state = self.counters.get_mut(&key);
        let Some(state) = state.filter(|state| state.hears_place()) else {
            return false;
        };
        let place = state.crowd.place.map(|place| (name.clone(), place));
        self.left.extend(place);
        state.crowd.deny();
        self.settle(cx, &key);
        self.ready.push_back(key);
        true
    }

    /// A place in a crowd that is given up.
    pub(super) fn next_left(&mut self) -> Option<(Name, OwnerId)> {
        self.left.pop()
    }

    /// A message on a channel of this name, or its subscription, which may have missed some.
    pub(super) fn wake(&mut self, name: &Name) {
        if self.counters.is_empty() {
            return;
        }
        for counter in [Counter::Semaphore, Counter::Latch] {
            let key = (counter, name.clone());
            if let Some(state) = self.counters.get_mut(&key) {
                state.wake();
                self.ready.push_back(key);
            }
        }
    }

    pub(super) fn counters_due(&mut self, cx: &mut Context) {
        while let Some(((at, key), ())) = self.alarms.pop_first() {
            if at > cx.now {
                self.alarms.insert((at, key), ());
                break;
            }
            if let Some(state) = self.counters.get_mut(&key) {
                state.alarm = None;
            }
            self.due(cx, &key);
            self.ready.push_back(key);
        }
    }

    /// The time of a caller is over.
    pub(super) fn caller_due(&mut self, cx: &mut Context, id: RequestId) {
        let Some(CounterCaller { key, want, late }) = self.callers.get_mut(&id) else {
            return;
        };
        let state = self.counters.get(key);
        let is_sent = state.is_some_and(|state| state.is_sent(id, *want));
        let is_unsettled = state.is_some_and(CounterState::is_unsettled);
        let refused = state.and_then(|state| state.refused.clone());
        let kept = *want == Want::Change { kept: true };
        let error = match (cx.links.error(&key.1), want.wait()) {
            (Some(down), _) => goes_on(down, key.0, kept),
            // A server that was not heard may have permits.
            (None, _) if !cx.links.is_up(&key.1) => goes_on(unconnected(want.wait()), key.0, kept),
            (None, Some(wait)) if !wait.is_zero() && !is_unsettled => match refused {
                Some(error) => error,
                None if is_sent && !*late => {
                    *late = true;
                    if let Some(state) = self.counters.get_mut(key) {
                        state.tries.push(id);
                    }
                    let end = cx.now.after(tuning::PLAIN_LIMIT);
                    return cx.timers.arm(Timer::Caller(id), end);
                }
                None if is_sent => counter_unheard(false),
                None => counter_timeout(key.0, wait),
            },
            (None, _) => goes_on(
                refused.unwrap_or_else(|| counter_unheard(kept)),
                key.0,
                kept,
            ),
        };
        self.end_caller(cx, id, error);
    }

    /// Ends callers with `error`: those that try once, or all.
    pub(super) fn fail_callers(
        &mut self,
        cx: &mut Context,
        error: &Error,
        only_tries: bool,
        which: Which<'_>,
    ) {
        let picked = self
            .callers
            .iter()
            .filter(|(_, caller)| (!only_tries || caller.want.once()) && which(&caller.key.1));
        let ids: Vec<RequestId> = picked.map(|(id, _)| *id).collect();
        for id in ids {
            let caller = self.callers.get(&id);
            let kept = caller.filter(|caller| caller.want == Want::Change { kept: true });
            let error = match kept {
                Some(caller) => goes_on(error.clone(), caller.key.0, true),
                None => error.clone(),
            };
            self.end_caller(cx, id, error);
        }
    }

    /// Goes on after a reconnect.
    pub(super) fn resume(&mut self, which: Which<'_>) {
        let keys = self.counters.keys();
        let keys: Vec<CounterKey> = keys.filter(|(_, name)| which(name)).cloned().collect();
        for key in keys {
            if let Some(state) = self.counters.get_mut(&key) {
                state.resume();
            }
            self.ready.push_back(key);
        }
    }

    /// The client closes: nobody waits any more, and permits that are being given back, or that
    /// nobody took, go back.
    pub(super) fn close(&mut self, cx: &mut Context, error: &Error) {
        self.closing = true;
        let stays = |id: &RequestId, caller: &CounterCaller| {
            let is_sent = |state: &CounterState| state.is_sent(*id, caller.want);
            caller.want == Want::Change { kept: true }
                || !caller.want.waits() && self.counters.get(&caller.key).is_some_and(is_sent)
        };
        let callers = self.callers.iter();
        let ids: Vec<RequestId> = callers
            .filter(|(id, caller)| !stays(id, caller))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.end_caller(cx, id, error.clone());
        }
        self.ready.extend(self.counters.keys().cloned());
    }
}

/// The next command of a counter, and the effects of its answer.
impl Counting {
    /// The call to be sent for a counter now.
    pub(super) fn next_call(&mut self, cx: &mut Context, key: &CounterKey) -> Option<Arc<Op>> {
        if !cx.links.is_up(&key.1) {
            return None;
        }
        let state = self.counters.get(key)?;
        if state.command.is_none() {
            if state.rest.is_some() {
                return None;
            }
            self.pass_on(cx, key);
            let (callers, sequence) = (&self.callers, &mut self.sequence);
            let state = self.counters.get_mut(key)?;
            state.command = state.next_command(key, callers, cx, sequence);
            if state.line_up(callers, cx) {
                let place = state.crowd.place;
                self.left.extend(place.map(|place| (key.1.clone(), place)));
                state.crowd.leave();
            }
        }
        let state = self.counters.get_mut(key)?;
        let command = state.command.as_mut()?;
        let over = command.ends().is_some_and(|end| end <= cx.now);
        if command.in_flight || command.retry.is_some() || over {
            return None;
        }
        command.in_flight = true;
        // The answer to a repeated copy is as old as the first one: a wake-up since then still counts.
        command.again &= command.unsettled.is_some();
        Some(command.op.clone())
    }

    /// Passes permits that callers of this client give back on to its first waiters. The number on
    /// the server is the same before and after, so the server is not asked, unless the number is
    /// below 0: then it takes the permits. Another client may have made it so since it was told, so
    /// it is trusted for no longer than a waiter waits to look again.
    fn pass_on(&mut self, cx: &mut Context, key: &CounterKey) {
        while let Some(state) = self.counters.get_mut(key)
            && !state.streak.is_over(cx.now, cx.config.handovers)
            && cx.now < state.not_below_until
            && let Some((id, permits)) = state.first(&self.callers)
            && let Some(wish) = state.wishes.front_mut()
            && let Some(rest) = wish.given().and_then(|given| given.checked_sub(permits))
        {
            state.streak = state.streak.one_more(cx.now);
            wish.change = Change::give(rest);
            let giver = wish.request.filter(|_| rest == 0);
            if rest == 0 {
                state.wishes.pop_front();
            }
            self.serve(cx, key, id, permits);
            if let Some(giver) = giver {
                self.complete(cx, giver, Done::Released);
            }
            let Some(state) = self.counters.get_mut(key) else {
                return;
            };
            // The server may have enough for one that wants less than the one that was refused.
            let next = state.first(&self.callers);
            if next.is_some_and(|(_, wanted)| wanted < permits) {
                state.wake();
            }
        }
    }

    /// A counter needs attention.
    fn due(&mut self, cx: &mut Context, key: &CounterKey) {
        let now = cx.now;
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if is_due(state.retry) {
            (state.retry, state.asleep, state.unheard) = (None, false, true);
        }
        if is_due(state.rest) {
            state.rest = None;
        }
        if is_due(state.forgotten) {
            (state.forgotten, state.streak) = (None, Run::default());
        }
        let waiting = state.command.as_mut().filter(|command| !command.in_flight);
        let Some(command) = waiting else { return };
        if is_due(command.retry) {
            command.retry = None;
        }
        if is_due(command.ends())
            && let Some(command) = state.command.take()
        {
            self.lose_track(cx, key, command);
        }
    }

    pub(super) fn answered(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        sent: Moment,
        outcome: CallOutcome,
    ) {
        self.ready.push_back(key.clone());
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let Some(mut command) = state.command.take() else {
            return;
        };
        command.in_flight = false;
        let was_stale = std::mem::take(&mut state.stale);
        state.tries.retain(|id| self.callers.contains_key(id));
        match outcome {
            CallOutcome::Answered(Reply::Changed { done, left, ahead }) => {
                (state.failures, state.refused, state.left) = (0, None, false);
                let left_since = state.placed(&command, done, left, ahead);
                self.left
                    .extend(left_since.map(|place| (key.1.clone(), place)));
                self.changed(cx, key, &command, Told { sent, done, left });
            }
            CallOutcome::Answered(Reply::Foreign(what)) => {
                self.refuse(cx, key, command, &foreign(&what));
            }
            // The server did nothing. Its reply has taught the outbox the server's clock.
            CallOutcome::Answered(Reply::Stale) if !was_stale => {
                state.stale = true;
                self.put_back(cx, key, command, None);
            }
            CallOutcome::Answered(Reply::Stale) if command.unsettled.is_none() => {
                self.refuse(cx, key, command, &clocks_differ());
            }
            CallOutcome::Answered(other) if !matches!(other, Reply::Stale) => {
                let text = format!("unexpected reply: {other:?}");
                let error = Error::new(ErrorKind::Internal, text);
                self.refuse(cx, key, command, &error);
            }
            // An earlier copy may have been executed: only an answer tells.
            CallOutcome::Refused {
                error,
                passing: false,
            } if command.unsettled.is_none() => self.refuse(cx, key, command, &error),
            CallOutcome::Unanswered => {
                // A read changes nothing, and may be repeated at any time.
                if !command.reads() {
                    command.unsettled.get_or_insert(sent);
                }
                self.put_back(cx, key, command, None);
            }
            outcome => self.not_done(cx, key, command, outcome),
        }
    }

    /// The command was not done, or an earlier copy of it may have been.
    fn not_done(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        command: CounterCommand,
        outcome: CallOutcome,
    ) {
        let not_sent_now = matches!(outcome, CallOutcome::NotSent);
        if not_sent_now && !cx.links.is_up(&key.1) {
            return self.put_back(cx, key, command, None);
        }
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if let CallOutcome::Refused { error, .. } = outcome {
            state.refused = Some(error);
        }
        let at = state.back_off(cx);
        if not_sent_now && command.unsettled.is_none() {
            self.refuse_hasty(cx, key, &command, &not_sent());
        }
        self.put_back(cx, key, command, Some(at));
    }

    /// The command is sent again at `at`. If no copy of it can have been executed, its parts go
    /// back to where they came from.
    fn put_back(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        mut command: CounterCommand,
        at: Option<Moment>,
    ) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if command.unsettled.is_some() {
            command.retry = at;
            let over = command.ends().is_some_and(|end| end <= cx.now);
            if over {
                return self.lose_track(cx, key, command);
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
    fn refuse_hasty(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        command: &CounterCommand,
        error: &Error,
    ) {
        for (id, ()) in self.callers_of(key, command) {
            let want = self.callers.get(&id).map(|caller| caller.want);
            let hasty = |want: Want| want.once() || want == Want::Change { kept: false };
            if want.is_some_and(hasty) {
                self.give_up(cx, id, error.clone());
            }
        }
    }

    /// The callers of a command that are still there.
    fn callers_of(&self, key: &CounterKey, command: &CounterCommand) -> SortedSet<RequestId> {
        let state = self.counters.get(key);
        let callers = state.map(|state| state.callers_of(command));
        let callers = callers.into_iter().flatten();
        callers.filter(|id| self.has(*id)).collect()
    }

    /// The server refused the command, and no copy of it was done. The callers get the error. A
    /// change that tells what has happened is sent again later, since the refusal may be mended.
    fn refuse(
        &mut self,
        cx: &mut Context,
        key: &CounterKey,
        command: CounterCommand,
        error: &Error,
    ) {
        let is_final = matches!(error.kind(), ErrorKind::ForeignKind | ErrorKind::Internal);
        let told = self.callers_of(key, &command);
        for &id in told.keys() {
            let want = self.callers.get(&id).map(|caller| caller.want);
            let kept = !is_final && want == Some(Want::Change { kept: true });
            self.give_up(cx, id, goes_on(error.clone(), key.0, kept));
        }
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        state.asleep = false;
        let wishes = command.wishes.into_iter().filter(Wish::is_kept);
        if is_final {
            for wish in wishes.filter(|wish| !wish.is_of(&told)) {
                lose(cx, key, &wish, error);
            }
            return;
        }
        let kept: Vec<Wish> = wishes.map(Wish::without_caller).collect();
        if !kept.is_empty() {
            state.rest = Some(state.back_off(cx));
            for wish in kept.into_iter().rev() {
                state.wishes.push_front(wish);
            }
        }
    }

    /// The server was silent for longer than its marker lives: a copy may have been done, or none.
    fn lose_track(&mut self, cx: &mut Context, key: &CounterKey, command: CounterCommand) {
        let error = counter_unknown();
        let told = self.callers_of(key, &command);
        for wish in command.wishes.iter().filter(|wish| !wish.is_of(&told)) {
            lose(cx, key, wish, &error);
        }
        for (_, permits) in command
            .waiters
            .iter()
            .filter(|(id, _)| !told.contains_key(id))
        {
            let text = format!("permits that may have been taken: {permits}: {error:#}");
            cx.event("permits_lost", EventLevel::Warn, &key.1, text);
        }
        for (id, ()) in told {
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
        command: &CounterCommand,
        told: Told,
    ) {
        let Told { sent, done, left } = told;
        let Op::Change { change, .. } = &*command.op else {
            return self.counted(cx, key, command, left);
        };
        self.answer_changes(cx, command, done, left);
        if key.0 == Counter::Latch {
            return self.counted(cx, key, command, left);
        }
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        state.not_below_until = match left {
            ..0 => Moment::default(),
            0.. => command.unsettled.unwrap_or(sent).after(cx.config.recheck),
        };
        let Change::Trade { given, .. } = *change else {
            // More permits wake those who wait here too.
            if left > 0 {
                state.wake();
            }
            return;
        };
        let served = usize::try_from(done).unwrap_or(0);
        if left > 0 || given > 0 && command.waiters.is_empty() {
            state.streak = Run::default();
        } else if given > 0 {
            state.streak = (0..served).fold(state.streak, |streak, _| streak.one_more(sent));
        }
        if served > 0 {
            state.heard = 0;
        }
        for (id, permits) in command.waiters.iter().take(served) {
            self.serve(cx, key, *id, *permits);
        }
        let head = self.first_refused(cx, &command.waiters, served, left);
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        // If that one waits, the tries behind it fail, also those that this command did not have. A
        // message since then is about a later number.
        if head.is_some() && state.waiters.front() == head.as_ref() {
            // The confirmation of another channel causes the next try.
            let moves = state.channel.as_ref().map(|channel| channel.topic);
            let moves = moves.is_some_and(|topic| topic != state.topic(key.0));
            state.asleep = !command.again || moves;
            if state.asleep {
                state.joined.clear();
            }
            self.refuse_tries(cx, key);
        } else {
            state.asleep = false;
        }
    }

    /// Tells the callers of changes what these did.
    fn answer_changes(&mut self, cx: &mut Context, command: &CounterCommand, done: i64, left: i64) {
        let mut before = done;
        for wish in &command.wishes {
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
    }

    /// The first one behind those that were `served` wants more than there is. If it is a try it fails, and
    /// the next one is asked for if it wants less. Returns the one that waits.
    fn first_refused(
        &mut self,
        cx: &mut Context,
        waiters: &[(RequestId, u32)],
        served: usize,
        left: i64,
    ) -> Option<RequestId> {
        for (at, (id, wanted)) in waiters.iter().enumerate().skip(served) {
            if at > served && i64::from(*wanted) <= left {
                return None;
            }
            self.refuse_try(cx, *id);
            if self.has(*id) {
                return Some(*id);
            }
        }
        None
    }

    /// A command told the number of a latch.
    fn counted(&mut self, cx: &mut Context, key: &CounterKey, command: &CounterCommand, left: i64) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        if command.unsettled.is_some() {
            // The number may be that of the first copy, and have changed since: a look follows.
            state.asleep = false;
            return;
        }
        if left > 0 {
            // A change on a connection without client tracking lets the server report nothing.
            let is_tracked = command.reads() || !cx.unseen;
            state.asleep = !command.again && is_tracked;
            return self.refuse_tries(cx, key);
        }
        let (waiters, joined) = (&state.waiters, &state.joined);
        let there = waiters.iter().filter(|id| !joined.contains_key(id));
        for id in there.copied().collect::<Vec<_>>() {
            self.complete(cx, id, Done::Open);
        }
    }

    /// Fails the tries that the command answers. A later try waits for the next command.
    fn refuse_tries(&mut self, cx: &mut Context, key: &CounterKey) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let tries = std::mem::take(&mut state.tries);
        let joined =
            |id: &RequestId| state.joined.contains_key(id) && self.callers.contains_key(id);
        let (later, refused): (Vec<_>, Vec<_>) = tries.into_iter().partition(joined);
        state.tries = later;
        for id in refused {
            self.refuse_try(cx, id);
        }
    }

    /// The permits of this caller are taken. If it has left, they go back.
    fn serve(&mut self, cx: &mut Context, key: &CounterKey, id: RequestId, permits: u32) {
        let name = key.1.clone();
        if self.complete(cx, id, Done::Taken { name, permits }) {
            return;
        }
        if let Some(state) = self.counters.get_mut(key) {
            let (request, change) = (None, Change::give(permits));
            state.wishes.push_front(Wish { request, change });
        }
    }

    /// Fails a caller that does not wait, or not any more.
    fn refuse_try(&mut self, cx: &mut Context, id: RequestId) {
        let Some(CounterCaller { key, want, late }) = self.callers.get(&id) else {
            return;
        };
        let error = match want {
            Want::Open(_) if want.once() => Error::new(ErrorKind::Timeout, "the latch is not at 0"),
            _ if want.once() => Error::new(ErrorKind::Timeout, "there are not enough permits now"),
            _ if *late => counter_timeout(key.0, want.wait().unwrap_or_default()),
            _ => return,
        };
        self.give_up(cx, id, error);
    }

    /// Answers a caller. Returns false if it has left.
    fn complete(&mut self, cx: &mut Context, id: RequestId, done: Done) -> bool {
        let Some(caller) = self.remove(cx, id) else {
            return false;
        };
        if caller.want.waits()
            && let Some(state) = self.counters.get_mut(&caller.key)
        {
            state.take_out(id);
        }
        cx.complete(id, done);
        true
    }
}

/// What the server told of a change.
struct Told {
    sent: Moment,
    done: i64,
    /// The number after it.
    left: i64,
}

/// A change without a caller was not made.
fn lose(cx: &mut Context, key: &CounterKey, wish: &Wish, error: &Error) {
    let what = match wish.change {
        Change::Trade { given, .. } => format!("permits not given back: {given}"),
        Change::CountDown(by) => format!("count not taken down by {by}"),
        _ => return,
    };
    let text = format!("{what}: {error:#}");
    cx.event("permits_lost", EventLevel::Warn, &key.1, text);
}
