//! Semaphores without leases, and count-down latches: a number in Redis, which has no owners.
//!
//! A repeated command would count twice, and the number cannot tell. So each command that changes a
//! counter has a sequence number, and the script notes the last one of each client beside the
//! counter. One command of a counter is in flight at a time. It serves as many callers as it can.
//! A command without an answer is repeated under its number until there is one: then the client
//! knows what it did, and gives back what nobody wants any more.

mod counter;
mod outcomes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Engine;
use super::context::{Context, Purpose};
use super::errors;
use super::interface::{CallOutcome, Output, RequestId};
use super::links::Which;
use super::timers::Timer;
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Change, Counter, Name};
use counter::{State, Wish};

/// A counter of a client.
pub(super) type CounterKey = (Counter, Name);

/// The counters that callers of this client change or wait for, and those callers.
#[derive(Debug, Default)]
pub(super) struct Counting {
    // Ordered, so that the same inputs give the same outputs.
    counters: BTreeMap<CounterKey, State>,
    callers: BTreeMap<RequestId, Caller>,
    /// When each counter needs attention.
    alarms: BTreeSet<(Moment, CounterKey)>,
    /// The sequence number that was drawn last.
    sequence: u64,
    /// How many channels are wanted.
    channels: usize,
    closing: bool,
}

/// A caller without an answer.
#[derive(Debug)]
struct Caller {
    key: CounterKey,
    want: Want,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// So many permits. `None` waits for ever, zero tries once.
    Permits(u32, Option<Duration>),
    /// An open latch.
    Open(Option<Duration>),
    /// A change. `kept`: it goes on when its caller leaves, because it gives permits back.
    Change { kept: bool },
}

impl Want {
    fn waits(self) -> bool {
        !matches!(self, Want::Change { .. })
    }

    /// Whether it tries once and does not wait.
    fn once(self) -> bool {
        matches!(self, Want::Permits(_, wait) | Want::Open(wait) if wait == Some(Duration::ZERO))
    }

    fn wait(self) -> Option<Duration> {
        match self {
            Want::Permits(_, wait) | Want::Open(wait) => wait,
            Want::Change { .. } => None,
        }
    }
}

impl Counting {
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.callers.contains_key(&id)
    }

    /// How many callers are without an answer.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// How many callers wait for a counter.
    pub(super) fn waiting(&self) -> usize {
        let waiters = self.counters.values().map(|state| state.waiters.len());
        waiters.sum()
    }

    pub(super) fn has_channels(&self) -> bool {
        self.channels > 0
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.counters.keys().map(|(_, name)| name.clone())
    }

    pub(super) fn is_settled(&self) -> bool {
        self.counters.values().all(State::is_settled)
    }

    /// The names of the counters with changes that are not done.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = &Name> {
        let unsettled = |(_, state): &(&CounterKey, &State)| !state.is_settled();
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
        let command = self.counters.get(key)?.command.as_ref()?;
        let mut callers = command.callers();
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
        self.callers.insert(id, Caller { key, want });
    }

    fn remove(&mut self, cx: &mut Context, id: RequestId) -> Option<Caller> {
        cx.timers.disarm(Timer::Caller(id));
        self.callers.remove(&id)
    }

    /// Ends the wait of a caller. What was sent for it goes on; what it wins is given back.
    fn give_up(&mut self, cx: &mut Context, id: RequestId, error: Error) -> Option<CounterKey> {
        let Caller { key, want } = self.remove(cx, id)?;
        if let Some(state) = self.counters.get_mut(&key) {
            state.leave(id, want);
        }
        cx.fail(id, error.on(&key.1));
        Some(key)
    }

    /// Fails the callers that are left when the client ends.
    pub(super) fn fail_all(&mut self, cx: &mut Context) {
        for id in std::mem::take(&mut self.callers).into_keys() {
            cx.timers.disarm(Timer::Caller(id));
            cx.fail(id, Error::new(ErrorKind::Closed, "the client was closed"));
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
        let at = rested
            .unwrap_or_default()
            .max(cx.now.after(tuning::HINT_DELAY));
        if state.retry.is_none_or(|retry| at < retry) {
            (state.retry, state.hinted) = (Some(at), Some(at));
            self.settle(cx, &key);
        }
    }

    // ---- channels and timers ----

    /// Subscribes if somebody has to wait, and forgets a counter that nobody needs any more.
    fn settle(&mut self, cx: &mut Context, key: &CounterKey) {
        let Some(state) = self.counters.get_mut(key) else {
            return;
        };
        let (topic, name) = (key.0.topic(), &key.1);
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
                    state.channel = None;
                    self.channels -= 1;
                    cx.out.push(Output::Unsubscribe(name.clone(), topic));
                }
            }
        } else if state.asleep {
            let recheck = cx.config.recheck;
            let jitter = &mut cx.jitter;
            let now = cx.now;
            state
                .retry
                .get_or_insert_with(|| now.after(jitter.spread(recheck)));
            if state.channel.is_none() {
                self.channels += 1;
                cx.out.push(Output::Subscribe(name.clone(), topic));
            }
            state.channel.get_or_insert_default().idle_until = None;
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
            self.alarms.extend(due.map(|at| (at, key.clone())));
        }
        if state.is_unused() {
            self.counters.remove(key);
        }
        match self.alarms.first() {
            Some((at, _)) => cx.timers.arm(Timer::Counters, *at),
            None => cx.timers.disarm(Timer::Counters),
        }
    }
}

/// How long a caller that does not wait for others may be without an answer.
fn patience(cx: &Context) -> Duration {
    cx.config.outage.max(tuning::PLAIN_LIMIT)
}

impl Engine {
    // ---- requests ----

    pub(super) fn take_permits(
        &mut self,
        id: RequestId,
        name: Name,
        permits: u32,
        wait: Option<Duration>,
    ) {
        let key = (Counter::Semaphore, name);
        self.wait_for_counter(id, key, Want::Permits(permits, wait));
    }

    pub(super) fn await_latch(&mut self, id: RequestId, name: Name, wait: Option<Duration>) {
        self.wait_for_counter(id, (Counter::Latch, name), Want::Open(wait));
    }

    fn wait_for_counter(&mut self, id: RequestId, key: CounterKey, want: Want) {
        let error = self.cx.links.error(&key.1).filter(|_| want.once());
        if let Some(down) = error {
            return self.cx.fail(id, down.on(&key.1));
        }
        let state = self.counting.counters.entry(key.clone()).or_default();
        if want.once() && key.0 == Counter::Semaphore && state.asleep {
            let text = "other callers of this client wait for permits, and go first";
            let error = Error::new(ErrorKind::Timeout, text);
            return self.cx.fail(id, error.on(&key.1));
        }
        state.waiters.push_back(id);
        // Those that know that the latch is closed need no answer again. The new one does.
        if key.0 == Counter::Latch {
            state.wake();
        }
        self.counting.add(&mut self.cx, id, &key, want);
        self.advance_counter(&key);
    }

    pub(super) fn change_counter(&mut self, id: RequestId, name: Name, change: Change) {
        let key = (change.counter(), name);
        let kept = matches!(change, Change::Trade { .. });
        self.counting
            .add(&mut self.cx, id, &key, Want::Change { kept });
        let request = Some(id);
        self.add_wish(&key, Wish { request, change });
    }

    pub(super) fn give_back_permits(&mut self, name: Name, permits: u32) {
        let change = Change::Trade {
            given: permits,
            wanted: Vec::new(),
        };
        let request = None;
        self.add_wish(&(Counter::Semaphore, name), Wish { request, change });
    }

    fn add_wish(&mut self, key: &CounterKey, wish: Wish) {
        let state = self.counting.counters.entry(key.clone()).or_default();
        state.wishes.push_back(wish);
        self.advance_counter(key);
    }

    pub(super) fn cancel_caller(&mut self, id: RequestId) {
        let waits = self.counting.callers.get(&id).map(|caller| caller.want);
        let text = match waits {
            Some(Want::Permits(..)) => "the wait was cancelled; permits that it won are given back",
            Some(Want::Open(_)) => "the wait was cancelled",
            Some(Want::Change { kept: true }) => {
                "cancelled; the permits are given back all the same"
            }
            _ => "cancelled; what was sent may have taken effect",
        };
        self.end_caller(id, Error::new(ErrorKind::Cancelled, text));
    }

    fn end_caller(&mut self, id: RequestId, error: Error) {
        if let Some(key) = self.counting.give_up(&mut self.cx, id, error) {
            self.advance_counter(&key);
        }
    }

    // ---- going on ----

    /// Sends what can be sent for a counter.
    pub(super) fn advance_counter(&mut self, key: &CounterKey) {
        if let Some(op) = self.counting.next_call(&mut self.cx, key) {
            self.send(Purpose::Counter(key.clone()), op, tuning::PLAIN_LIMIT);
        }
        self.counting.settle(&mut self.cx, key);
    }

    pub(super) fn counter_answered(
        &mut self,
        key: &CounterKey,
        sent: Moment,
        outcome: CallOutcome,
    ) {
        self.counting.answered(&mut self.cx, key, sent, outcome);
        self.advance_counter(key);
    }

    /// A message on a channel of this name, or its subscription, which may have missed some.
    pub(super) fn wake_counters(&mut self, name: &Name) {
        for counter in [Counter::Semaphore, Counter::Latch] {
            let key = (counter, name.clone());
            if let Some(state) = self.counting.counters.get_mut(&key) {
                state.wake();
                self.advance_counter(&key);
            }
        }
    }

    pub(super) fn counters_due(&mut self) {
        let now = self.cx.now;
        while let Some((at, key)) = self.counting.alarms.first().cloned() {
            if at > now {
                break;
            }
            self.counting.due(&mut self.cx, &key);
            self.advance_counter(&key);
        }
    }

    /// The time of a caller is over.
    pub(super) fn caller_due(&mut self, id: RequestId) {
        let Some(Caller { key, want }) = self.counting.callers.get(&id) else {
            return;
        };
        let down = self.cx.links.error(&key.1);
        let silent = self
            .counting
            .counters
            .get(key)
            .is_some_and(State::is_unanswered);
        let error = match (down, want.wait()) {
            (None, Some(wait)) if !silent && !wait.is_zero() => {
                errors::counter_timeout(key.0, wait)
            }
            (Some(down), _) => down,
            (None, _) => errors::counter_unheard(*want == Want::Change { kept: true }),
        };
        self.end_caller(id, error);
    }

    /// Ends callers with `error`: those that try once, or all.
    pub(super) fn fail_callers(&mut self, error: &Error, only_tries: bool, which: Which<'_>) {
        let picked = self
            .counting
            .callers
            .iter()
            .filter(|(_, caller)| (!only_tries || caller.want.once()) && which(&caller.key.1));
        let ids: Vec<RequestId> = picked.map(|(id, _)| *id).collect();
        for id in ids {
            self.end_caller(id, error.clone());
        }
    }

    /// Goes on after a reconnect.
    pub(super) fn resume_counters(&mut self, which: Which<'_>) {
        let keys = self.counting.counters.keys();
        let keys: Vec<CounterKey> = keys.filter(|(_, name)| which(name)).cloned().collect();
        for key in keys {
            if let Some(state) = self.counting.counters.get_mut(&key) {
                state.resume();
            }
            self.advance_counter(&key);
        }
    }

    /// The client closes: nobody waits any more, and permits that are being given back, or that
    /// nobody took, go back.
    pub(super) fn close_counters(&mut self, error: &Error) {
        self.counting.closing = true;
        let stays = |id: &RequestId, caller: &Caller| {
            let state = self.counting.counters.get(&caller.key);
            let sent = state.is_some_and(|state| state.is_sent(*id));
            caller.want == (Want::Change { kept: true }) || sent && !caller.want.waits()
        };
        let callers = self.counting.callers.iter();
        let ids: Vec<RequestId> = callers
            .filter(|(id, caller)| !stays(id, caller))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.end_caller(id, error.clone());
        }
        let keys: Vec<CounterKey> = self.counting.counters.keys().cloned().collect();
        keys.iter()
            .for_each(|key| self.counting.settle(&mut self.cx, key));
    }
}
