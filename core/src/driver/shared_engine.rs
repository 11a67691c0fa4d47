//! The engine behind a mutex, with everything that belongs to it. The I/O thread shares it with
//! callers.
//!
//! Both drain the inbox and let the engine decide while they hold the lock, and carry out effects
//! after they have released it. A caller may make its own call; every other effect of its request is
//! deferred to the I/O thread.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::inbox::Inbox;
use super::inline::InlineSlot;
use super::receive_threshold::ReceiveThreshold;
use super::{Completer, InlineCall, Message, PendingRequest, Shared, is_engine_thread};
use crate::engine::{self, Done, Engine, Input, Output, RequestId};
use crate::error::Result;
use crate::maps::SmallMap;
use crate::moment::Moment;
use crate::sync::{Mutex, MutexGuard};
use crate::sys::Alarm;

/// The engine, shared by the I/O thread and the callers.
pub(super) struct SharedEngine {
    pub(super) shared: Arc<Shared>,
    /// The inline connection.
    pub(super) direct: Arc<InlineSlot>,
    /// Messages that came while somebody else had the lock.
    pub(super) inbox: Inbox,
    state: Mutex<EngineState>,
}

/// The state that the mutex protects.
pub(super) struct EngineState {
    pub(super) engine: Engine,
    /// The sinks of the requests that have no answer yet.
    pub(super) completions: SmallMap<RequestId, Completer>,
    /// The inline call in flight.
    pub(super) own: Option<Own>,
    /// Effects that callers have deferred to the I/O thread.
    pub(super) left: Vec<Effect>,
    /// Sets when the I/O thread wakes if nothing else happens. Callers use it to make the thread
    /// wake earlier. `None` without a thread.
    pub(super) alarm: Option<Alarm>,
    /// The receive threshold of the socket, if messages may stay unread in it.
    pub(super) threshold: Option<Arc<ReceiveThreshold>>,
    /// The I/O thread carries out nothing any more.
    pub(super) ended: bool,
    /// The engine has panicked.
    pub(super) broken: bool,
    /// An empty buffer that keeps its memory.
    out: Vec<Output>,
    /// Messages from the inbox that are about to be handled. A message may be an inline call, which
    /// takes the lock when it is dropped. So a panic of the engine leaves them here: nothing is
    /// dropped while the lock is held.
    messages: VecDeque<Message>,
}

/// An inline call whose caller waits for the reply, maybe without looking at anything else.
pub(super) struct Own {
    /// The request that the call is for.
    pub(super) id: RequestId,
    /// The deadline of the call.
    pub(super) end: Moment,
}

/// Something to carry out without the lock.
pub(super) enum Effect {
    Answer(Completer, Result<Done>),
    /// A call that its caller no longer waits for.
    Finish(Box<InlineCall>),
    /// No handle is left to ask for anything.
    Orphaned,
    Do(Output),
}

impl EngineState {
    /// When the I/O thread has to wake if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        let (due, late) = (
            self.engine.next_wake(),
            self.own.as_ref().map(|own| own.end),
        );
        due.into_iter().chain(late).min()
    }

    /// Whether the I/O thread has to be woken now: effects are deferred to it, or its timer could
    /// not be set.
    pub(super) fn is_left_something(&mut self, now: Moment) -> bool {
        // With the timer set, the thread need not wake now.
        !self.left.is_empty()
            || self.next_wake().is_some_and(|wake| {
                self.alarm
                    .as_mut()
                    .is_none_or(|alarm| alarm.set(now, wake).is_err())
            })
    }

    /// Adjusts the receive threshold: messages that need not wake the I/O thread stay in the
    /// socket, all others wake it. `call`: a caller's inline call is in flight. The thread itself
    /// sets the threshold at the end of each of its rounds.
    pub(super) fn listen(&self, now: Moment, call: bool) {
        let listens = |_: &&Arc<ReceiveThreshold>| self.engine.has_channels();
        let Some(threshold) = self.threshold.as_ref().filter(listens) else {
            return;
        };
        // If something is due, the thread may be about to read the socket.
        let due = self.engine.next_wake().is_some_and(|due| due <= now);
        match self.engine.skipped(now, call) {
            Some(skipped) if !due => threshold.skip(Some(skipped)),
            None if threshold.is_skipping() && !self.engine.is_at_rest() => threshold.skip(None),
            _ => {}
        }
    }
}

impl SharedEngine {
    pub(super) fn new(
        config: engine::Config,
        shared: Arc<Shared>,
        direct: Arc<InlineSlot>,
    ) -> SharedEngine {
        let state = EngineState {
            engine: Engine::new(config, shared.counters.clone()),
            completions: SmallMap::default(),
            own: None,
            left: Vec::new(),
            alarm: None,
            threshold: None,
            ended: false,
            broken: false,
            out: Vec::new(),
            messages: VecDeque::new(),
        };
        SharedEngine {
            shared,
            direct,
            inbox: Inbox::default(),
            state: Mutex::new(state),
        }
    }

    /// Takes the lock. The wait is short, because nobody does I/O under it. `None` after a panic of
    /// the engine, whose state cannot be trusted.
    pub(super) fn state(&self) -> Option<MutexGuard<'_, EngineState>> {
        self.state.lock().ok().filter(|state| !state.broken)
    }

    /// Takes the lock for a caller that brings a message, if the engine can decide now.
    ///
    /// Another thread may have the lock, or even this one: the engine drops what callers have given
    /// it, guards included. If the I/O thread was called, it decides about all that comes until it
    /// looks: their calls share commands, and the engine's data stay in one processor's cache. If
    /// something is due, the I/O thread has to read the sockets first.
    pub(super) fn state_for_caller(&self, now: Moment) -> Option<MutexGuard<'_, EngineState>> {
        if self.inbox.is_called() || is_engine_thread() {
            return None;
        }
        let state = self.state.try_lock().ok()?;
        let due = state.engine.next_wake().is_some_and(|due| due <= now);
        (!state.broken && !state.ended && !due).then_some(state)
    }

    /// The state even after a panic, to tell everybody that it is over.
    pub(super) fn wreck(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the engine messages of the inbox, at most `most`. Returns whether more are left.
    /// `take` gets each effect, and the list in which it can defer the effect to the I/O thread.
    pub(super) fn drain(
        &self,
        most: usize,
        state: &mut EngineState,
        now: Moment,
        mut take: impl FnMut(Effect, &mut Vec<Effect>),
    ) -> bool {
        let more = self.inbox.take(most, &mut state.messages);
        while let Some(message) = state.messages.pop_front() {
            self.bring(state, now, message, &mut take);
        }
        more
    }

    /// The end of the I/O thread: nobody carries out effects any more. Returns the messages that
    /// nobody has handled, and the effects that were deferred. They are to be dropped without the
    /// lock.
    ///
    /// The inbox is closed under the lock, because a caller that still finishes an inline call
    /// drains it.
    pub(super) fn end(&self, state: &mut EngineState) -> (VecDeque<Message>, Vec<Effect>) {
        state.ended = true;
        let mut messages = std::mem::take(&mut state.messages);
        messages.append(&mut self.inbox.close());
        // Callers may keep the state long after this. Its descriptors are closed together with the
        // thread's.
        (state.alarm, state.threshold) = (None, None);
        (messages, std::mem::take(&mut state.left))
    }

    /// Gives the engine one message.
    pub(super) fn bring(
        &self,
        state: &mut EngineState,
        now: Moment,
        message: Message,
        mut take: impl FnMut(Effect, &mut Vec<Effect>),
    ) {
        let input = match message {
            Message::Request(PendingRequest {
                id,
                request,
                completion,
            }) => {
                state.completions.insert(id, completion);
                Input::Request { id, request }
            }
            Message::Tell(input) => input,
            Message::Finish(call) => return take(Effect::Finish(call), &mut state.left),
            Message::Orphaned => {
                take(Effect::Orphaned, &mut state.left);
                Input::Orphaned
            }
        };
        self.handle(state, now, input, take);
    }

    /// Gives the engine one input.
    pub(super) fn handle(
        &self,
        state: &mut EngineState,
        now: Moment,
        input: Input,
        take: impl FnMut(Effect, &mut Vec<Effect>),
    ) {
        state.engine.set_listened(self.shared.is_followed());
        state.engine.handle(now, input, &mut state.out);
        self.sort(state, take);
    }

    /// Aborts an inline call whose deadline has passed. Its caller then reports the outcome as
    /// unknown.
    pub(super) fn end_late_call(&self, state: &mut EngineState, now: Moment) {
        if state.own.take_if(|own| own.end <= now).is_some() {
            self.direct.cut_short();
        }
    }

    /// Lets the engine do what is due.
    pub(super) fn wake(&self, state: &mut EngineState, now: Moment, effects: &mut Vec<Effect>) {
        state.engine.wake(now, &mut state.out);
        self.sort(state, |effect, _| effects.push(effect));
    }

    /// Turns outputs into effects. The registry of holds is updated here, under the lock: two
    /// threads that carry out effects at the same time could do it in the wrong order.
    fn sort(&self, state: &mut EngineState, mut take: impl FnMut(Effect, &mut Vec<Effect>)) {
        for output in state.out.drain(..) {
            match output {
                Output::Opened(cell) => self.shared.registry.open(cell),
                Output::Ended(cell) => self.shared.registry.end(&cell),
                Output::Complete { id, result } => {
                    // The caller still waits for a call that no longer matters.
                    if state.own.take_if(|own| own.id == id).is_some() {
                        self.direct.cut_short();
                    }
                    if let Some(completion) = state.completions.remove(&id) {
                        take(Effect::Answer(completion, result), &mut state.left);
                    }
                }
                output => take(Effect::Do(output), &mut state.left),
            }
        }
    }
}
