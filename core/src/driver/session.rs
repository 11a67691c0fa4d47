//! The front door for callers. Where possible, the engine decides about a request on the calling
//! thread, and a blocked caller makes its call itself on the inline connection.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redlatch_proto::value::Value;

use super::calls::{is_demoted, millis};
use super::inline::InlineConnection;
use super::server_clock::ServerClock;
use super::shared_engine::{Effect, Own, SharedEngine, State};
use super::{Completer, Mailbox, Message, PendingRequest, is_engine_thread};
use crate::clock;
use crate::engine::{CallId, CallOutcome, Engine, Input, Output, Request, RequestId, Target};
use crate::moment::Moment;
use crate::process;
use crate::tuning;
use crate::wire::{self, Op};

/// The engine and the mailbox of the I/O thread, for callers.
pub(super) struct Session {
    pub(super) machine: Arc<SharedEngine>,
    pub(super) mailbox: Mailbox,
    /// The process in which the I/O thread runs.
    pub(super) pid: u32,
}

/// A call that its caller has sent on the inline connection and now waits for. Dropping it gives
/// the call up.
pub(crate) struct InlineCall {
    session: Arc<Session>,
    id: RequestId,
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

/// The next call that the engine wants for this request.
struct Next {
    call: CallId,
    op: Arc<Op>,
    limit: Duration,
    /// When the engine wanted it.
    at: Moment,
}

impl Session {
    fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    /// Lets the engine decide about a request on the calling thread. If a call follows and can be
    /// made inline, it is sent, and the returned `InlineCall` waits for its reply. A request that
    /// needs no call is decided at once, as in `pass_on`. A request for the I/O thread stays in
    /// `asked`.
    ///
    /// `alone`: make the call inline only if nobody else uses the client and the reply is expected
    /// soon.
    pub(super) fn request(
        self: &Arc<Self>,
        asked: &mut Option<PendingRequest>,
        alone: bool,
    ) -> Option<InlineCall> {
        let request = &asked.as_ref()?.request;
        if let Some(state) = self.state_for(|engine| engine.needs_no_call(request)) {
            let PendingRequest {
                id,
                request,
                completion,
            } = asked.take()?;
            self.decide_alone(
                state,
                Some((id, completion)),
                Input::Request { id, request },
            );
            return None;
        }
        // Other callers have just sent messages to the I/O thread. This is read without the
        // engine's lock, which the thread may hold.
        if !self.machine.is_up_to_date() {
            return None;
        }
        let Some(mut connection) = self.machine.direct.take(clock::now()) else {
            self.wish(request, alone);
            return None;
        };
        let fits = |state: &MutexGuard<'_, State>| {
            self.machine.direct.is_current(&connection)
                && self.suits(state, request, alone, connection.is_unseen())
                && (!alone || connection.pace.is_worth_it())
        };
        let Some(mut state) = self.machine.state().filter(fits) else {
            self.machine.direct.give(connection);
            return None;
        };
        let patience = match request {
            Request::Acquire {
                wait: Some(wait), ..
            } if !wait.is_zero() => tuning::INLINE_TICK.min(*wait),
            _ => tuning::INLINE_TICK,
        };
        let PendingRequest {
            id,
            request,
            completion,
        } = asked.take()?;
        state.completions.insert(id, completion);
        if let Some(identity) = connection.identity.take() {
            let now = clock::now();
            self.machine.handle(
                &mut state,
                now,
                Input::Identity(identity),
                |effect, left| left.push(effect),
            );
        }
        let under_way = self.go_on(id, Some(connection), state, Input::Request { id, request });
        under_way.map(|call| InlineCall {
            session: self.clone(),
            id,
            patience,
            under_way: Some(call),
        })
    }

    fn suits(&self, state: &State, request: &Request, alone: bool, unseen: bool) -> bool {
        !state.ended
            && self.machine.is_up_to_date()
            && state.engine.suits_caller(request, alone, unseen)
    }

    /// Notes that a caller would have used the inline connection, so that one is made. With
    /// `alone`, only a request that fits counts: callers that come together have no use for the
    /// connection.
    fn wish(&self, request: &Request, alone: bool) {
        if matches!(request, Request::Connect | Request::Close { .. }) {
            return;
        }
        let would = |state: MutexGuard<'_, State>| self.suits(&state, request, alone, true);
        if !alone || self.machine.direct.is_missing() && self.machine.state().is_some_and(would) {
            self.machine.direct.wish();
        }
    }

    /// Handles, on the calling thread, inputs that send no command: a release that hands the lock
    /// to a local waiter, or an acquire that only joins the queue. The I/O thread need not wake for
    /// these, and the calling thread wakes the new holder. Returns every other message, and also
    /// this one if the engine cannot decide now.
    pub(super) fn pass_on(&self, message: Message) -> Option<Message> {
        let needs_no_call = |engine: &Engine| match &message {
            Message::Request(asked) => engine.needs_no_call(&asked.request),
            Message::Tell(Input::Dropped { owner, level }) => engine.passes_on(&Target::Level {
                owner: *owner,
                level: *level,
            }),
            _ => false,
        };
        let Some(state) = self.state_for(needs_no_call) else {
            return Some(message);
        };
        match message {
            Message::Request(PendingRequest {
                id,
                request,
                completion,
            }) => {
                self.decide_alone(
                    state,
                    Some((id, completion)),
                    Input::Request { id, request },
                );
            }
            Message::Tell(input) => self.decide_alone(state, None, input),
            other => return Some(other),
        }
        None
    }

    /// Lets the engine decide about an input that needs no call.
    fn decide_alone(
        &self,
        mut state: MutexGuard<'_, State>,
        answer_to: Option<(RequestId, Completer)>,
        input: Input,
    ) {
        if let Some((id, completion)) = answer_to {
            state.completions.insert(id, completion);
        }
        self.decide(None, false, state, input);
        // The I/O thread does not read this request, so callers that come from now on use another
        // parking group.
        self.machine.shared.gates.next();
    }

    /// The state, if the engine is free and up to date, and the input needs no call.
    fn state_for(
        &self,
        needs_no_call: impl FnOnce(&Engine) -> bool,
    ) -> Option<MutexGuard<'_, State>> {
        let fits = |state: &MutexGuard<'_, State>| {
            !state.ended && self.machine.is_up_to_date() && needs_no_call(&state.engine)
        };
        let somebody = self.machine.shared.counters.waiting.get() > 0 || self.machine.listens();
        let may = somebody && !is_engine_thread();
        may.then(|| self.machine.state_if_free())
            .flatten()
            .filter(fits)
    }

    /// Gives the engine an input of this request and does what it wants, up to the next wait.
    fn go_on(
        &self,
        id: RequestId,
        mut connection: Option<Box<InlineConnection>>,
        state: MutexGuard<'_, State>,
        input: Input,
    ) -> Option<InFlight> {
        let mut next = self.decide(Some(id), connection.is_some(), state, input);
        loop {
            let (
                mut open,
                Next {
                    call,
                    op,
                    limit,
                    at: sent,
                },
            ) = match (connection.take(), next) {
                (Some(open), Some(next)) => (open, next),
                (open, _) => {
                    if let Some(open) = open {
                        self.machine.direct.give(open);
                    }
                    return None;
                }
            };
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
            state.own.take_if(|own| own.id == id);
            next = self.decide(
                Some(id),
                false,
                state,
                Input::Outcome {
                    call,
                    outcome: CallOutcome::NotSent,
                },
            );
        }
    }

    /// Closes the inline connection. The I/O thread makes another one when it is wanted.
    fn lose(&self, connection: InlineConnection) {
        self.machine.direct.lose(connection);
        self.mailbox.send(Message::Wake);
    }

    /// Lets the engine decide. Returns the next call of the request `id` if the caller can make it.
    /// The answer to this request is given here (without an `id`, the first answer), and the
    /// remaining effects are deferred to the I/O thread.
    fn decide(
        &self,
        id: Option<RequestId>,
        can_call: bool,
        mut state: MutexGuard<'_, State>,
        input: Input,
    ) -> Option<Next> {
        let (mut next, mut answer, mut events) = (None, None, Vec::new());
        let now = clock::now();
        let take = |effect: Effect, left: &mut Vec<Effect>| match effect {
            Effect::Do(Output::Send {
                call,
                op,
                limit,
                of,
            }) if can_call && of == id => {
                next = Some(Next {
                    call,
                    op,
                    limit,
                    at: now,
                });
            }
            Effect::Answer(of, completion, result)
                if answer.is_none() && id.is_none_or(|id| of == id) =>
            {
                answer = Some((completion, result));
            }
            Effect::Do(Output::Event(event)) if !self.machine.shared.ring.wants(event.level) => {
                events.push(event);
            }
            other => left.push(other),
        };
        let handle = || self.machine.handle(&mut state, now, input, take);
        if catch_unwind(AssertUnwindSafe(handle)).is_err() {
            // The I/O thread reports the panic to everybody.
            state.ended = true;
            state.broken = true;
            drop(state);
            self.mailbox.send(Message::Wake);
            return None;
        }
        if let (Some(id), Some(next)) = (id, &next) {
            state.own = Some(Own {
                id,
                end: now.after(next.limit),
            });
        }
        state.listen(now, next.is_some());
        let look = state.is_left_something(now);
        drop(state);
        // Before the answer is given: its sink may do anything.
        if look {
            self.mailbox.send(Message::Wake);
        }
        if let Some((completion, result)) = answer {
            completion.complete(result);
        }
        events
            .into_iter()
            .for_each(|event| self.machine.shared.tell(event));
        next
    }
}

impl InlineCall {
    /// Waits until nothing of the call is left to the caller. `go_on` is called after a signal and
    /// when `stop` is readable; with `looks` also a few times a second and when the caller's own
    /// time is over. If it returns false or an error, the call is given up.
    pub(crate) fn wait<E>(
        &mut self,
        looks: bool,
        stop: Option<BorrowedFd<'_>>,
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
    pub(crate) fn leave(self) {
        if self.under_way.is_some() {
            let session = self.session.clone();
            // If the thread has ended, the message comes back and is dropped, which gives the call
            // up.
            drop(session.mailbox.send(Message::Finish(Box::new(self))));
        }
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
        let connection = if in_order && is_whole && is_current {
            Some(connection)
        } else {
            self.session.lose(*connection);
            None
        };
        self.under_way = self.session.go_on(self.id, connection, state, input);
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
    fn look(&mut self, patience: Option<Duration>, stop: Option<BorrowedFd<'_>>) -> Look {
        if stop.is_some_and(|stop| !self.connection.is_readable_before(stop, patience)) {
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
