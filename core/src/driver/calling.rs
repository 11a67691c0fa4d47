//! Calls that a blocked caller does itself, on the direct connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redis::Value;

use super::direct::{TICK, Wire};
use super::machine::{Errand, Machine, Own, State};
use super::server_clock::ServerClock;
use super::traffic::{is_demoted, millis};
use super::{Asked, Completion, Letter, Post, is_engine_thread};
use crate::clock;
use crate::engine::{CallId, Engine, Input, Outcome, Output, Request, RequestId, Target};
use crate::moment::Moment;
use crate::process;
use crate::wire::{self, Op};

/// What callers need for calls of their own.
pub(super) struct Desk {
    pub(super) machine: Arc<Machine>,
    pub(super) post: Post,
    /// The process that has the engine's thread.
    pub(super) pid: u32,
}

/// A call that its caller has sent itself, and now waits for. Dropping it gives the call up.
pub(crate) struct OwnCall {
    desk: Arc<Desk>,
    id: RequestId,
    /// How long the caller may be deaf to everything else.
    patience: Duration,
    /// There until the engine knows what became of it.
    under_way: Option<UnderWay>,
}

struct UnderWay {
    wire: Box<Wire>,
    call: CallId,
    op: Arc<Op>,
    sent: Moment,
    /// It was sent with the text of the script.
    full: bool,
}

/// The caller's next call, as the engine wants it.
struct Next {
    call: CallId,
    op: Arc<Op>,
    limit: Duration,
    /// When the engine has wanted it.
    at: Moment,
}

impl Desk {
    fn is_forked(&self) -> bool {
        self.pid != process::id()
    }

    /// Lets the engine decide about a request, and sends the call that follows if that can be done here: then it is the
    /// caller's to wait for. What needs no call is decided at once, as in a letter. What has to go the other way is left where it is.
    /// `alone`: only if nobody else uses the client, and the answer can be expected soon.
    pub(super) fn request(self: &Arc<Self>, asked: &mut Option<Asked>, alone: bool) -> Option<OwnCall> {
        let request = &asked.as_ref()?.request;
        if let Some(state) = self.state_for(|engine| engine.needs_no_call(request)) {
            let Asked { id, request, completion } = asked.take()?;
            self.decide_alone(state, Some((id, completion)), Input::Request { id, request });
            return None;
        }
        // Where others have just asked the thread as well: seen without a lock that it may have.
        if !self.machine.is_up_to_date() {
            return None;
        }
        let Some(mut wire) = self.machine.direct.take(clock::now()) else {
            self.wish(request, alone);
            return None;
        };
        let fits = |state: &MutexGuard<'_, State>| {
            self.machine.direct.is_current(&wire)
                && self.suits(state, request, alone, wire.is_unseen())
                && (!alone || wire.pace.is_worth_it())
        };
        let Some(mut state) = self.machine.state().filter(fits) else {
            self.machine.direct.give(wire);
            return None;
        };
        let patience = match request {
            Request::Acquire { wait: Some(wait), .. } if !wait.is_zero() => TICK.min(*wait),
            _ => TICK,
        };
        let Asked { id, request, completion } = asked.take()?;
        state.completions.insert(id, completion);
        let under_way = self.go_on(id, Some(wire), state, Input::Request { id, request });
        under_way.map(|call| OwnCall { desk: self.clone(), id, patience, under_way: Some(call) })
    }

    fn suits(&self, state: &State, request: &Request, alone: bool, unseen: bool) -> bool {
        !state.ended && self.machine.is_up_to_date() && state.engine.suits_caller(request, alone, unseen)
    }

    /// Notes that a caller would have used the connection. Of those who do it only while they are alone, many that come
    /// together have no use for one.
    fn wish(&self, request: &Request, alone: bool) {
        if matches!(request, Request::Connect | Request::Close { .. }) {
            return;
        }
        let would = |state: MutexGuard<'_, State>| self.suits(&state, request, alone, true);
        if !alone || self.machine.direct.is_missing() && self.machine.state().is_some_and(would) {
            self.machine.direct.wish();
        }
    }

    /// Has the engine decide at once about what needs no call, for which its thread would have to be woken: a lock that is
    /// given back goes to the next caller, who is woken by the calling thread, and who asks for one that others wait for
    /// stands in line behind them. A letter of something else, or that cannot be brought here, comes back.
    pub(super) fn pass_on(&self, letter: Letter) -> Option<Letter> {
        let needs_no_call = |engine: &Engine| match &letter {
            Letter::Request(asked) => engine.needs_no_call(&asked.request),
            Letter::Tell(Input::Dropped { owner, level }) => {
                engine.passes_on(&Target::Level { owner: *owner, level: *level })
            }
            _ => false,
        };
        let Some(state) = self.state_for(needs_no_call) else {
            return Some(letter);
        };
        match letter {
            Letter::Request(Asked { id, request, completion }) => {
                self.decide_alone(state, Some((id, completion)), Input::Request { id, request });
            }
            Letter::Tell(input) => self.decide_alone(state, None, input),
            other => return Some(other),
        }
        None
    }

    /// Lets the engine decide about what needs no call.
    fn decide_alone(
        &self,
        mut state: MutexGuard<'_, State>,
        answer_to: Option<(RequestId, Completion)>,
        input: Input,
    ) {
        if let Some((id, completion)) = answer_to {
            state.completions.insert(id, completion);
        }
        self.decide(None, false, state, input);
        // The thread has nothing to read of it: it is not answered together with what others ask now.
        self.machine.shared.gates.next();
    }

    /// The state, if the engine can decide at once about something that needs no call.
    fn state_for(&self, needs_no_call: impl FnOnce(&Engine) -> bool) -> Option<MutexGuard<'_, State>> {
        let fits = |state: &MutexGuard<'_, State>| {
            !state.ended && self.machine.is_up_to_date() && needs_no_call(&state.engine)
        };
        let somebody = self.machine.shared.counters.waiting.get() > 0 || self.machine.listens();
        let may = somebody && !is_engine_thread();
        may.then(|| self.machine.state_if_free()).flatten().filter(fits)
    }

    /// Tells the engine something about a request and does what it wants, up to the next wait.
    fn go_on(
        &self,
        id: RequestId,
        mut wire: Option<Box<Wire>>,
        state: MutexGuard<'_, State>,
        input: Input,
    ) -> Option<UnderWay> {
        let mut next = self.decide(Some(id), wire.is_some(), state, input);
        loop {
            let (mut open, Next { call, op, limit, at: sent }) = match (wire.take(), next) {
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
                return Some(UnderWay { wire: open, call, op, sent, full: false });
            }
            self.lose(*open);
            // A part of it may have been sent, and a part does nothing.
            let mut state = self.machine.state()?;
            state.own.take_if(|own| own.id == id);
            next = self.decide(Some(id), false, state, Input::Outcome { call, outcome: Outcome::NotSent });
        }
    }

    /// Closes the connection. The thread makes another one when it is wanted.
    fn lose(&self, wire: Wire) {
        self.machine.direct.lose(wire);
        self.post.send(Letter::Look);
    }

    /// Lets the engine decide, and sees to it that everything is done but the caller's next call, which is
    /// returned if he can do it. The answer to this request is given here; without one, the first that there is.
    fn decide(
        &self,
        id: Option<RequestId>,
        can_call: bool,
        mut state: MutexGuard<'_, State>,
        input: Input,
    ) -> Option<Next> {
        let (mut next, mut answer, mut events) = (None, None, Vec::new());
        let now = clock::now();
        let errand = |errand: Errand, left: &mut Vec<Errand>| match errand {
            Errand::Do(Output::Send { call, op, limit, of }) if can_call && of == id => {
                next = Some(Next { call, op, limit, at: now });
            }
            Errand::Answer(of, completion, result) if answer.is_none() && id.is_none_or(|id| of == id) => {
                answer = Some((completion, result));
            }
            Errand::Do(Output::Event(event)) if !self.machine.shared.ring.wants(event.level) => {
                events.push(event);
            }
            other => left.push(other),
        };
        let handle = || self.machine.handle(&mut state, now, input, errand);
        if catch_unwind(AssertUnwindSafe(handle)).is_err() {
            // The thread tells everybody.
            state.ended = true;
            state.broken = true;
            drop(state);
            self.post.send(Letter::Look);
            return None;
        }
        if let (Some(id), Some(next)) = (id, &next) {
            state.own = Some(Own { id, end: now.after(next.limit) });
        }
        state.listen(now, next.is_some());
        let look = state.is_left_something(now);
        drop(state);
        // First: whoever is answered may do anything.
        if look {
            self.post.send(Letter::Look);
        }
        if let Some((completion, result)) = answer {
            completion.complete(result);
        }
        events.into_iter().for_each(|event| self.machine.shared.tell(event));
        next
    }
}

impl OwnCall {
    /// Waits until nothing of it is left to be done here. `go_on` is asked a few times a second, when a signal
    /// came, and when the caller's own time is over; if it says no, or fails, the call is given up.
    pub(crate) fn wait<E>(&mut self, go_on: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
        self.wait_looking(true, go_on)
    }

    /// The same for who has nothing to look at while the thread does not say that it is over: `go_on` is asked when a
    /// signal came.
    pub(crate) fn wait_deaf<E>(&mut self, go_on: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
        self.wait_looking(false, go_on)
    }

    fn wait_looking<E>(&mut self, looks: bool, mut go_on: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
        while let Some(call) = &mut self.under_way {
            match call.look(looks.then_some(self.patience)) {
                Look::Nothing => {
                    if !go_on()? {
                        self.give_up();
                    }
                    // The handler of a signal may have forked.
                    self.leave_to_parent();
                }
                Look::Answer(outcome, in_order) => self.settle(outcome, in_order),
            }
        }
        Ok(())
    }

    /// Waits for one answer after the other while each can be expected within `patience`, without regard to signals;
    /// false if there is more to wait for. One that is late all the same is waited for until the system's clock has
    /// ticked, some milliseconds, and the next ones not at all: a finer timer costs as much as the call.
    pub(crate) fn wait_briefly(&mut self, patience: Duration) -> bool {
        let is_quick = |call: &UnderWay| call.wire.is_quick(patience);
        self.under_way.as_ref().is_none_or(is_quick) && self.wait_for(patience)
    }

    /// The same for a caller who has others to serve: whether he is to wait was decided when the call was sent.
    pub(crate) fn wait_for(&mut self, patience: Duration) -> bool {
        let Some(end) = self.under_way.as_ref().map(|call| call.sent.after(patience)) else { return true };
        while let Some(call) = &mut self.under_way {
            if call.sent >= end {
                return false;
            }
            let look = call.look(Some(patience));
            let answered = matches!(look, Look::Answer(..));
            call.wire.pace.learn(answered && call.wire.is_quick(patience));
            match look {
                Look::Nothing => return false,
                Look::Answer(outcome, in_order) => self.settle(outcome, in_order),
            }
        }
        true
    }

    /// Has the thread wait for what is left of it.
    pub(crate) fn leave(self) {
        if self.under_way.is_some() {
            let post = self.desk.clone();
            // If the thread has ended, it comes back and is given up.
            drop(post.post.send(Letter::Finish(Box::new(self))));
        }
    }

    /// Tells the engine what became of the call.
    fn settle(&mut self, outcome: Outcome, in_order: bool) {
        let Some(UnderWay { wire, call, .. }) = self.under_way.take() else { return };
        // Without a state the engine has panicked, and everybody is told so.
        let Some(mut state) = self.desk.machine.state() else { return self.desk.lose(*wire) };
        let is_current = self.desk.machine.direct.is_current(&wire);
        let input = match outcome {
            Outcome::Answered(reply) if is_current && wire.is_unseen() => {
                Input::AnsweredUnseen { call, reply }
            }
            outcome if is_current => Input::Outcome { call, outcome },
            _ => Input::Outcome { call, outcome: Outcome::Unanswered },
        };
        // It may have been cut short when the answer was there already.
        let is_whole = state.own.take().is_some();
        let wire = if in_order && is_whole && is_current {
            Some(wire)
        } else {
            self.desk.lose(*wire);
            None
        };
        self.under_way = self.desk.go_on(self.id, wire, state, input);
    }

    /// A child has come along into the wait: connection, engine and locks are its parent's, who waits as well.
    fn leave_to_parent(&mut self) {
        if self.under_way.is_some() && self.desk.is_forked() {
            std::mem::forget(self.under_way.take());
        }
    }

    fn give_up(&mut self) {
        self.leave_to_parent();
        while self.under_way.is_some() {
            self.settle(Outcome::Unanswered, false);
        }
    }
}

impl Drop for OwnCall {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// What a look at the connection has shown.
enum Look {
    /// No answer yet.
    Nothing,
    /// What became of the call, and whether the connection can be used further.
    Answer(Outcome, bool),
}

impl UnderWay {
    fn look(&mut self, patience: Option<Duration>) -> Look {
        match self.wire.receive(patience) {
            Ok(None) => Look::Nothing,
            Ok(Some((Value::ServerError(error), _))) if error.code() == "NOSCRIPT" && !self.full => {
                self.full = true;
                match self.wire.call_with_text() {
                    true => Look::Nothing,
                    false => Look::Answer(Outcome::NotSent, false),
                }
            }
            Ok(Some((Value::ServerError(error), _))) => {
                let (refusal, passing) = wire::refusal(error.code(), error.details().unwrap_or_default());
                Look::Answer(Outcome::Refused { error: refusal, passing }, !is_demoted(&error))
            }
            Ok(Some((value, came))) => match wire::decode(&self.op, value) {
                Ok((server_ms, reply)) => {
                    if let Some(server_ms) = server_ms {
                        self.wire.clock = ServerClock::new(server_ms, came);
                    }
                    Look::Answer(Outcome::Answered(reply), true)
                }
                Err(error) => Look::Answer(Outcome::Refused { error, passing: false }, false),
            },
            Err(_) => Look::Answer(Outcome::Unanswered, false),
        }
    }
}
