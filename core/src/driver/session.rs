//! The front door for callers. The engine decides about a message on the calling thread, and a
//! caller may make its call itself on the inline connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::value::Value;

use super::calls::{OutgoingCall, Payload, is_demoted, millis};
use super::inbox::Closed;
use super::inline::{InlineConnection, InlineSlot};
use super::shared_engine::{Effect, EngineState, Own, SharedEngine};
use super::{Message, PendingRequest, Way};
use crate::clock;
use crate::engine::{AcquireAll, CallId, CallOutcome, Inline, Input, Output, Request, RequestId};
use crate::error::Error;
use crate::moment::Moment;
use crate::process;
use crate::sync::MutexGuard;
use crate::sys::StopFlag;
use crate::tuning;
use crate::wire::{self, Reply};

/// The engine, for callers.
pub(super) struct Session {
    pub(super) machine: SharedEngine,
    /// The process in which the I/O thread runs.
    pub(super) pid: u32,
}

/// A call that its caller has sent on the inline connection and now waits for. Dropping it gives
/// the call up.
pub(crate) struct InlineCall {
    session: Arc<Session>,
    id: RequestId,
    way: Way,
    /// How long the caller may wait without looking at signals and at its own time limit.
    patience: Duration,
    /// `None` once the engine knows the outcome.
    under_way: Option<InFlight>,
}

/// A command that the caller makes itself: a call, or those for the parts of a multi lock.
struct InFlight {
    connection: Box<InlineConnection>,
    /// When the engine wanted it.
    sent: Moment,
    /// It was sent with the text of the script (`EVAL`).
    full: bool,
}

/// A thread that lets the engine decide, with what it can do itself.
struct Caller {
    /// Its request, if it waits for one.
    id: Option<RequestId>,
    way: Way,
    /// The inline connection, if the caller has it already.
    connection: Option<Box<InlineConnection>>,
}

impl Caller {
    /// Whether a call that the engine offers to a caller is for this one.
    fn is_offered(&self, inline: Inline) -> bool {
        let suits = match self.way {
            Way::IoThread => false,
            Way::Blocking => true,
            Way::Alone => inline.alone,
        };
        suits && self.id == Some(inline.of)
    }

    /// The connection for a call that the engine offers to a caller, if this caller can make it.
    fn accepts(&mut self, inline: Inline, direct: &InlineSlot) -> Option<Box<InlineConnection>> {
        if !self.is_offered(inline) {
            return None;
        }
        let alone = self.way == Way::Alone;
        let Some(mut connection) = self.connection.take().or_else(|| direct.take(clock::now()))
        else {
            // With client tracking the inline connection would not do.
            if !(alone && inline.tracked) {
                direct.wish();
            }
            return None;
        };
        let fits = direct.is_current(&connection) && !(inline.tracked && connection.is_unseen());
        if fits && (!alone || connection.pace.is_worth_it()) {
            return Some(connection);
        }
        direct.give(connection);
        None
    }
}

impl Session {
    fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    /// Brings a message to the engine: the one way for callers.
    ///
    /// If the engine is free, it decides on this thread. A call that follows may be made inline,
    /// and the returned `InlineCall` waits for its reply. Otherwise the message stays in the inbox,
    /// for the next thread that has the engine.
    ///
    /// # Errors
    /// If the I/O thread has ended. The sink of a request is then dropped uncalled.
    pub(super) fn submit(
        self: &Arc<Self>,
        message: Message,
        way: Way,
    ) -> Result<Option<InlineCall>, Closed> {
        let now = clock::now();
        let Some(state) = self.machine.state_for_caller(now) else {
            return self.machine.inbox.push(message).map(|()| None);
        };
        let (id, patience) = match &message {
            Message::Request(asked) => (Some(asked.id), asked.patience()),
            _ => (None, tuning::INLINE_TICK),
        };
        let caller = Caller {
            id,
            way,
            connection: None,
        };
        let under_way = self.go_on(caller, state, now, message);
        let Some(id) = id.filter(|_| under_way.is_some()) else {
            return Ok(None);
        };
        Ok(Some(InlineCall {
            session: self.clone(),
            id,
            way,
            patience,
            under_way,
        }))
    }

    /// Gives the engine a message of this caller and makes the call that follows from it.
    fn go_on(
        &self,
        caller: Caller,
        state: MutexGuard<'_, EngineState>,
        now: Moment,
        message: Message,
    ) -> Option<InFlight> {
        let id = caller.id;
        if let Some(mut call) = self.decide(caller, state, now, message) {
            if call.send(&self.machine.shared.uuid) {
                return Some(call);
            }
            // Part of the command may have been sent. The server does nothing with an incomplete
            // command, so the I/O thread may send it.
            let mut state = self.machine.state()?;
            state.own.take_if(|own| Some(own.id) == id);
            call.leave_to(&mut state);
            drop(state);
            self.lose(*call.connection);
        }
        None
    }

    /// Closes the inline connection. The I/O thread makes another one when it is wanted.
    fn lose(&self, connection: InlineConnection) {
        self.machine.direct.lose(connection);
        self.machine.inbox.call();
    }

    /// Lets the engine decide about the messages of the inbox, and then about one of this caller.
    /// Returns what the caller sends itself, if it is all that is to be sent. The first answer is
    /// given here, and the remaining effects are deferred to the I/O thread.
    fn decide(
        &self,
        mut caller: Caller,
        mut state: MutexGuard<'_, EngineState>,
        now: Moment,
        message: Message,
    ) -> Option<InFlight> {
        let machine = &self.machine;
        let (mut next, mut answer, mut events) = (None, None, Vec::new());
        let mut others = false;
        let take = |effect: Effect, left: &mut Vec<Effect>| match effect {
            Effect::Do(Output::Send {
                call,
                op,
                limit,
                inline,
            }) => {
                let sending = OutgoingCall::of(call, op, limit);
                let sending = match (&mut next, inline) {
                    (None, Some(inline)) if !others => {
                        let Some(open) = caller.accepts(inline, &machine.direct) else {
                            others = true;
                            return left.push(by_thread(sending));
                        };
                        next = Some(InFlight::of(open, sending, now));
                        return;
                    }
                    (Some(next), Some(inline)) => match next.join(sending, inline, &caller) {
                        Some(back) => back,
                        None => return,
                    },
                    _ => sending,
                };
                others = true;
                left.push(by_thread(sending));
            }
            Effect::Answer(completion, result) if answer.is_none() => {
                answer = Some((completion, result));
            }
            Effect::Do(Output::Event(event)) if !machine.shared.ring.wants(event.level) => {
                events.push(event);
            }
            other => left.push(other),
        };
        let leave = |effect: Effect, left: &mut Vec<Effect>| left.push(effect);
        let handle = || {
            machine.drain(usize::MAX, &mut state, now, leave);
            machine.bring(&mut state, now, message, take);
        };
        let handled = catch_unwind(AssertUnwindSafe(handle));
        if others && let Some(call) = next.take() {
            call.leave_to(&mut state);
            caller.connection = Some(call.connection);
        }
        if let Some(unused) = caller.connection {
            machine.direct.give(unused);
        }
        if handled.is_err() {
            // The I/O thread reports the panic to everybody.
            state.ended = true;
            state.broken = true;
            drop(state);
            machine.inbox.call();
            return None;
        }
        if let (Some(id), Some(next)) = (caller.id, &next) {
            state.own = Some(Own {
                id,
                end: next.deadline(),
            });
        }
        state.listen(now, next.is_some());
        let call = state.is_left_something(now);
        let waits = next.is_none() && answer.is_none() && state.left.is_empty();
        drop(state);
        // Before the answer is given: its sink may do anything.
        if call {
            machine.inbox.call();
        }
        if waits {
            // The I/O thread makes no call for this caller, so callers that come from now on use
            // another parking group.
            machine.shared.gates.next();
        }
        if let Some((completion, result)) = answer {
            completion.complete(result);
        }
        events
            .into_iter()
            .for_each(|event| machine.shared.tell(event));
        next
    }
}

impl PendingRequest {
    /// How long the caller of an inline call may wait without looking at its own time limit.
    fn patience(&self) -> Duration {
        match &self.request {
            Request::Acquire {
                wait: Some(wait), ..
            }
            | Request::AcquireAll(AcquireAll {
                wait: Some(wait), ..
            }) if !wait.is_zero() => tuning::INLINE_TICK.min(*wait),
            _ => tuning::INLINE_TICK,
        }
    }
}

impl InlineCall {
    /// Waits until nothing of the call is left to the caller. `go_on` is called after a signal and
    /// when `stop` is readable; with `looks` also a few times a second and when the caller's own
    /// time is over. If it returns false or an error, the call is given up.
    pub(crate) fn wait<E>(
        &mut self,
        looks: bool,
        stop: Option<&StopFlag>,
        mut go_on: impl FnMut() -> Result<bool, E>,
    ) -> Result<(), E> {
        while let Some(call) = &mut self.under_way {
            match call.look(looks.then_some(self.patience), stop) {
                Look::Nothing => {
                    if !go_on()? {
                        self.give_up();
                    }
                    // A signal handler may have forked.
                    self.leave_to_parent();
                }
                Look::Answer(heard, in_order) => self.settle(heard, in_order),
            }
        }
        Ok(())
    }

    /// Waits for one answer after the other while each is expected within `patience`. Signals do
    /// not end the wait. False if there is more to wait for.
    ///
    /// A late answer is waited for until the system's clock has ticked, some milliseconds, and
    /// later calls are not waited for at all. A finer timer would cost as much as the call.
    pub(crate) fn wait_briefly(&mut self, patience: Duration) -> bool {
        let is_quick = |call: &InFlight| call.connection.is_quick(patience);
        self.under_way.as_ref().is_none_or(is_quick) && self.wait_for(patience)
    }

    /// Like `wait_briefly`, for a caller that has others to serve. Whether such a caller waits was
    /// decided when the call was sent.
    pub(crate) fn wait_for(&mut self, patience: Duration) -> bool {
        let Some(end) = self
            .under_way
            .as_ref()
            .map(|call| call.sent.after(patience))
        else {
            return true;
        };
        while let Some(call) = &mut self.under_way {
            if call.sent >= end {
                return false;
            }
            let look = call.look(Some(patience), None);
            let answered = matches!(look, Look::Answer(..));
            call.connection
                .pace
                .learn(answered && call.connection.is_quick(patience));
            match look {
                Look::Nothing => return false,
                Look::Answer(heard, in_order) => self.settle(heard, in_order),
            }
        }
        true
    }

    /// Leaves the rest of the call to the I/O thread.
    pub(crate) fn leave(mut self) {
        // A signal handler may have forked.
        self.leave_to_parent();
        if self.under_way.is_some() {
            let session = self.session.clone();
            // If the thread has ended, the message comes back and is dropped, which gives the call
            // up.
            drop(session.machine.inbox.push(Message::Finish(Box::new(self))));
        }
    }

    #[cfg(test)]
    pub(super) fn under_way(&self) -> Vec<CallId> {
        let calls = self.under_way.iter().flat_map(InFlight::calls);
        calls.map(|sending| sending.call).collect()
    }

    /// Tells the engine what the caller has heard of its command.
    fn settle(&mut self, heard: Heard, in_order: bool) {
        let Some(mut call) = self.under_way.take() else {
            return;
        };
        // Without a state the engine has panicked, and everybody is told so.
        let Some(mut state) = self.session.machine.state() else {
            return self.session.lose(*call.connection);
        };
        let is_current = self.session.machine.direct.is_current(&call.connection);
        let is_unseen = call.connection.is_unseen();
        let told = |call: CallId, outcome: CallOutcome| match outcome {
            CallOutcome::Answered(reply) if is_current && is_unseen => {
                Input::AnsweredUntracked { call, reply }
            }
            outcome if is_current => Input::Outcome { call, outcome },
            _ => Input::Outcome {
                call,
                outcome: CallOutcome::Unanswered,
            },
        };
        // After a long silence a call may come too late by the server's clock, which this connection has learnt
        // now, and that of the I/O thread has not. The engine repeats a call once.
        let is_stale = |reply: &Reply| matches!(reply, Reply::Stale);
        let input = match (&call.connection.load, heard) {
            (Some(Payload::Single(sending)), Heard::All(CallOutcome::Answered(reply)))
                if self.way == Way::Alone && is_stale(&reply) =>
            {
                state.left.push(call.again(sending));
                Input::Together(Vec::new())
            }
            (Some(Payload::Single(sending)), Heard::All(outcome)) => told(sending.call, outcome),
            (_, Heard::All(outcome)) => {
                let calls = call.calls().iter();
                Input::Together(calls.map(|of| told(of.call, outcome.clone())).collect())
            }
            (_, Heard::Each(replies)) => {
                let calls = call.calls().iter().zip(replies);
                let inputs = calls.filter_map(|(of, reply)| {
                    let Some(reply) = reply.filter(|reply| !is_stale(reply)) else {
                        state.left.push(call.again(of));
                        return None;
                    };
                    Some(told(of.call, CallOutcome::Answered(reply)))
                });
                Input::Together(inputs.collect())
            }
        };
        call.connection.load = None;
        // The I/O thread may have shut the socket down when the answer was already there.
        let is_whole = state.own.take().is_some();
        let mut caller = Caller {
            id: Some(self.id),
            way: self.way,
            connection: None,
        };
        if in_order && is_whole && is_current {
            caller.connection = Some(call.connection);
        } else {
            self.session.lose(*call.connection);
            caller.way = Way::IoThread;
        }
        let input = Message::Tell(input);
        self.under_way = self.session.go_on(caller, state, clock::now(), input);
    }

    /// A forked child forgets the call. The connection, the engine and the locks belong to the
    /// parent, which waits for the call as well.
    fn leave_to_parent(&mut self) {
        if self.under_way.is_some() && self.session.is_forked() {
            std::mem::forget(self.under_way.take());
        }
    }

    fn give_up(&mut self) {
        self.leave_to_parent();
        while self.under_way.is_some() {
            self.settle(Heard::All(CallOutcome::Unanswered), false);
        }
    }
}

impl Drop for InlineCall {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The result of one look at the connection.
enum Look {
    /// No answer yet.
    Nothing,
    /// What was heard, and whether the connection is still usable.
    Answer(Heard, bool),
}

/// What a caller has heard of its command.
enum Heard {
    /// The outcome of all its calls.
    All(CallOutcome),
    /// The reply to each. `None`: the call was not executed and has to be sent alone.
    Each(Vec<Option<Reply>>),
}

fn refused(error: Error, passing: bool) -> CallOutcome {
    CallOutcome::Refused { error, passing }
}

/// Leaves a call to the I/O thread.
fn by_thread(sending: OutgoingCall) -> Effect {
    let OutgoingCall {
        call, op, limit, ..
    } = sending;
    Effect::Do(Output::Send {
        call,
        op,
        limit,
        inline: None,
    })
}

impl InFlight {
    fn of(mut connection: Box<InlineConnection>, sending: OutgoingCall, now: Moment) -> InFlight {
        connection.load = Some(Payload::Single(sending));
        InFlight {
            connection,
            sent: now,
            full: false,
        }
    }

    /// Takes in another call that the same caller is offered, or gives it back if one command
    /// cannot do.
    fn join(
        &mut self,
        sending: OutgoingCall,
        inline: Inline,
        caller: &Caller,
    ) -> Option<OutgoingCall> {
        let connection = &self.connection;
        let suits = caller.is_offered(inline) && !(inline.tracked && connection.is_unseen());
        if !suits || !connection.shares {
            return Some(sending);
        }
        let publish = connection.publish;
        match &mut self.connection.load {
            Some(load) => load.join(sending, publish),
            None => Some(sending),
        }
    }

    /// Sends the command; false if the connection is broken.
    fn send(&mut self, uuid: &str) -> bool {
        let now = self.connection.clock.least(self.sent);
        self.connection
            .call(uuid, now.saturating_add(millis(self.limit())))
    }

    fn calls(&self) -> &[OutgoingCall] {
        let load = self.connection.load.as_ref();
        load.map_or(&[], Payload::sendings)
    }

    fn limit(&self) -> Duration {
        match &self.connection.load {
            Some(load) => load.limit(),
            None => Duration::ZERO,
        }
    }

    fn deadline(&self) -> Moment {
        self.sent.after(self.limit())
    }

    /// A call that the server has not executed, for the I/O thread, in the time that it has left.
    fn again(&self, of: &OutgoingCall) -> Effect {
        let limit = clock::now().until(self.deadline());
        by_thread(OutgoingCall::of(of.call, of.op.clone(), limit))
    }

    /// Leaves all calls to the I/O thread: the server has not executed them.
    fn leave_to(&self, state: &mut EngineState) {
        let calls = self.calls().iter();
        state.left.extend(calls.map(|of| self.again(of)));
    }

    /// Waits for the answer until a signal comes, `stop` is readable or `patience` is over. Without
    /// `patience` there is no time limit.
    fn look(&mut self, patience: Option<Duration>, stop: Option<&StopFlag>) -> Look {
        if stop.is_some_and(|stop| !self.connection.has_input_before(stop, patience)) {
            return Look::Nothing;
        }
        match self.connection.receive(patience) {
            Ok(None) => Look::Nothing,
            Ok(Some((Value::ServerError(error), _)))
                if error.code() == "NOSCRIPT" && !self.full =>
            {
                self.full = true;
                match self.connection.call_with_text() {
                    true => Look::Nothing,
                    false => Look::Answer(Heard::All(CallOutcome::NotSent), false),
                }
            }
            Ok(Some((Value::ServerError(error), _))) => {
                let (error_told, passing) =
                    wire::refusal(error.code(), error.details().unwrap_or_default());
                let heard = match &self.connection.load {
                    // Perhaps a single lock is the cause, or only batches are refused. So each call
                    // is sent alone, and this connection sends no more batches.
                    Some(Payload::Batch(_, calls)) if !passing => {
                        let none = vec![None; calls.len()];
                        self.connection.shares = false;
                        Heard::Each(none)
                    }
                    _ => Heard::All(refused(error_told, passing)),
                };
                Look::Answer(heard, !is_demoted(&error))
            }
            Ok(Some((value, came))) => {
                let error = match &self.connection.load {
                    Some(Payload::Batch(sort, calls)) => {
                        match wire::decode_many(*sort, calls.len(), &value) {
                            Ok((clock, replies)) => {
                                self.connection.learn(clock, came);
                                return Look::Answer(Heard::Each(replies), true);
                            }
                            Err(error) => error,
                        }
                    }
                    Some(Payload::Single(of)) => match wire::decode(&of.op, value) {
                        Ok((clock, reply)) => {
                            self.connection.learn(clock, came);
                            let outcome = CallOutcome::Answered(reply);
                            return Look::Answer(Heard::All(outcome), true);
                        }
                        Err(error) => error,
                    },
                    None => return Look::Answer(Heard::All(CallOutcome::Unanswered), false),
                };
                Look::Answer(Heard::All(refused(error, false)), false)
            }
            Err(_) => Look::Answer(Heard::All(CallOutcome::Unanswered), false),
        }
    }
}
