//! The front door for callers. The engine decides about a message on the calling thread, and a
//! caller may make its call itself on the inline connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redlatch_proto::value::Value;

use super::calls::{is_demoted, millis};
use super::inbox::Closed;
use super::inline::{InlineConnection, InlineSlot};
use super::server_clock::ServerClock;
use super::shared_engine::{Effect, Own, SharedEngine, State};
use super::{Message, PendingRequest, Way};
use crate::clock;
use crate::engine::{CallId, CallOutcome, Inline, Input, Output, Request, RequestId};
use crate::moment::Moment;
use crate::process;
use crate::sys::StopFlag;
use crate::tuning;
use crate::wire::{self, Op};

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

struct InFlight {
    connection: Box<InlineConnection>,
    call: CallId,
    op: Arc<Op>,
    sent: Moment,
    /// It was sent with the text of the script (`EVAL`).
    full: bool,
}

/// A call that the caller makes itself.
struct Next {
    connection: Box<InlineConnection>,
    call: CallId,
    op: Arc<Op>,
    limit: Duration,
    /// When the engine wanted it.
    at: Moment,
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
    /// The connection for a call that the engine offers to a caller, if this caller can make it.
    fn accepts(&mut self, inline: Inline, direct: &InlineSlot) -> Option<Box<InlineConnection>> {
        let alone = self.way == Way::Alone;
        if self.way == Way::IoThread || self.id != Some(inline.of) || alone && !inline.alone {
            return None;
        }
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
        Ok(id.zip(under_way).map(|(id, call)| InlineCall {
            session: self.clone(),
            id,
            way,
            patience,
            under_way: Some(call),
        }))
    }

    /// Gives the engine a message of this caller and makes the call that follows from it.
    fn go_on(
        &self,
        caller: Caller,
        state: MutexGuard<'_, State>,
        now: Moment,
        message: Message,
    ) -> Option<InFlight> {
        let id = caller.id;
        let mut next = self.decide(caller, state, now, message);
        loop {
            let Next {
                connection: mut open,
                call,
                op,
                limit,
                at: sent,
            } = next?;
            let not_after = open.clock.least(sent).saturating_add(millis(limit));
            if open.call(&op, &self.machine.shared.uuid, not_after) {
                return Some(InFlight {
                    connection: open,
                    call,
                    op,
                    sent,
                    full: false,
                });
            }
            self.lose(*open);
            // Part of the command may have been sent. The server does nothing with an incomplete
            // command.
            let mut state = self.machine.state()?;
            state.own.take_if(|own| Some(own.id) == id);
            let outcome = CallOutcome::NotSent;
            let message = Message::Tell(Input::Outcome { call, outcome });
            let broken = Caller {
                id,
                way: Way::IoThread,
                connection: None,
            };
            next = self.decide(broken, state, clock::now(), message);
        }
    }

    /// Closes the inline connection. The I/O thread makes another one when it is wanted.
    fn lose(&self, connection: InlineConnection) {
        self.machine.direct.lose(connection);
        self.machine.inbox.call();
    }

    /// Lets the engine decide about the messages of the inbox, and then about one of this caller.
    /// Returns the next call if the caller makes it. The first answer is given here, and the
    /// remaining effects are deferred to the I/O thread.
    fn decide(
        &self,
        mut caller: Caller,
        mut state: MutexGuard<'_, State>,
        now: Moment,
        message: Message,
    ) -> Option<Next> {
        let machine = &self.machine;
        let (mut next, mut answer, mut events) = (None, None, Vec::new());
        let take = |effect: Effect, left: &mut Vec<Effect>| match effect {
            Effect::Do(Output::Send {
                call,
                op,
                limit,
                inline: Some(inline),
            }) if next.is_none() => match caller.accepts(inline, &machine.direct) {
                Some(connection) => {
                    next = Some(Next {
                        connection,
                        call,
                        op,
                        limit,
                        at: now,
                    });
                }
                None => left.push(Effect::Do(Output::Send {
                    call,
                    op,
                    limit,
                    inline: None,
                })),
            },
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
                end: now.after(next.limit),
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
            | Request::AcquireAll {
                wait: Some(wait), ..
            } if !wait.is_zero() => tuning::INLINE_TICK.min(*wait),
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
                Look::Answer(outcome, in_order) => self.settle(outcome, in_order),
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
                Look::Answer(outcome, in_order) => self.settle(outcome, in_order),
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
    pub(super) fn under_way(&self) -> Option<CallId> {
        Some(self.under_way.as_ref()?.call)
    }

    /// Tells the engine the outcome of the call.
    fn settle(&mut self, outcome: CallOutcome, in_order: bool) {
        let Some(InFlight {
            connection, call, ..
        }) = self.under_way.take()
        else {
            return;
        };
        // Without a state the engine has panicked, and everybody is told so.
        let Some(mut state) = self.session.machine.state() else {
            return self.session.lose(*connection);
        };
        let is_current = self.session.machine.direct.is_current(&connection);
        let input = match outcome {
            CallOutcome::Answered(reply) if is_current && connection.is_unseen() => {
                Input::AnsweredUntracked { call, reply }
            }
            outcome if is_current => Input::Outcome { call, outcome },
            _ => Input::Outcome {
                call,
                outcome: CallOutcome::Unanswered,
            },
        };
        // The I/O thread may have shut the socket down when the answer was already there.
        let is_whole = state.own.take().is_some();
        let mut caller = Caller {
            id: Some(self.id),
            way: self.way,
            connection: None,
        };
        if in_order && is_whole && is_current {
            caller.connection = Some(connection);
        } else {
            self.session.lose(*connection);
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
            self.settle(CallOutcome::Unanswered, false);
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
    /// The outcome of the call, and whether the connection is still usable.
    Answer(CallOutcome, bool),
}

impl InFlight {
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
                    false => Look::Answer(CallOutcome::NotSent, false),
                }
            }
            Ok(Some((Value::ServerError(error), _))) => {
                let (refusal, passing) =
                    wire::refusal(error.code(), error.details().unwrap_or_default());
                Look::Answer(
                    CallOutcome::Refused {
                        error: refusal,
                        passing,
                    },
                    !is_demoted(&error),
                )
            }
            Ok(Some((value, came))) => match wire::decode(&self.op, value) {
                Ok((server_ms, reply)) => {
                    if let Some(server_ms) = server_ms {
                        self.connection.clock = ServerClock::new(server_ms, came);
                    }
                    Look::Answer(CallOutcome::Answered(reply), true)
                }
                Err(error) => Look::Answer(
                    CallOutcome::Refused {
                        error,
                        passing: false,
                    },
                    false,
                ),
            },
            Err(_) => Look::Answer(CallOutcome::Unanswered, false),
        }
    }
}
