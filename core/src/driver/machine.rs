//! The engine with what belongs to it: for the thread of the engine, and for callers that do a call of
//! their own on the direct connection.
//!
//! Both let the engine decide under one lock and do what it wants when they have let go of it. A
//! caller does its own calls; whatever else its request has caused is left to the thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::direct::Direct;
use super::ear::Ear;
use super::timer::Alarm;
use super::{Completion, OwnCall, Shared};
use crate::engine::{self, Done, Engine, Input, Output, RequestId};
use crate::error::Result;
use crate::maps::Few;
use crate::moment::Moment;

/// Shared by the thread of the engine and the callers.
pub(super) struct Machine {
    pub(super) shared: Arc<Shared>,
    /// By which calls go that callers do themselves.
    pub(super) direct: Arc<Direct>,
    state: Mutex<State>,
    /// Letters to the thread that the engine has not been told of.
    unread: AtomicUsize,
    /// Others may tell of releases: there is a channel.
    listens: AtomicBool,
}

/// What only one of them may touch at a time.
pub(super) struct State {
    pub(super) engine: Engine,
    /// Whom the answers of the engine are for.
    pub(super) completions: Few<RequestId, Completion>,
    /// The call that a caller does himself.
    pub(super) own: Option<Own>,
    /// What callers have left to the thread.
    pub(super) left: Vec<Errand>,
    /// When the thread wakes if nothing happens, and what makes it wake earlier; there while there is the thread.
    pub(super) alarm: Option<Alarm>,
    /// How much has to have come before messages wake it, where that can be said.
    pub(super) ear: Option<Arc<Ear>>,
    /// The thread does nothing any more.
    pub(super) ended: bool,
    /// The engine has panicked.
    pub(super) broken: bool,
    out: Vec<Output>,
}

/// A call on the direct connection whose caller waits for its answer, maybe without looking at anything else.
pub(super) struct Own {
    /// The request that it is for.
    pub(super) id: RequestId,
    /// When it is late.
    pub(super) end: Moment,
}

/// Something to be done that needs no lock.
pub(super) enum Errand {
    Answer(RequestId, Completion, Result<Done>),
    /// A call that its caller does not wait for any longer.
    Finish(Box<OwnCall>),
    Do(Output),
}

impl State {
    /// When the thread is to wake, if nothing else happens.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        let (due, late) = (self.engine.next_wake(), self.own.as_ref().map(|own| own.end));
        due.into_iter().chain(late).min()
    }

    /// Whether there is something for the thread that it will not see in time by itself.
    pub(super) fn is_left_something(&mut self, now: Moment) -> bool {
        let mut left = !self.left.is_empty();
        if let Some(wake) = self.next_wake() {
            // The thread need not wake for that now.
            left |= self.alarm.as_mut().is_none_or(|alarm| alarm.set(now, wake).is_err());
        }
        left
    }

    /// Leaves messages in the socket that need not wake the thread, and has it woken by others; `call`: a caller's own
    /// one is under way. The thread itself says so after all that it does.
    pub(super) fn listen(&self, now: Moment, call: bool) {
        let Some(ear) = self.ear.as_ref().filter(|_| self.engine.has_channels()) else { return };
        // Where something is due, the thread may be about to look what has come.
        let due = self.engine.next_wake().is_some_and(|due| due <= now);
        match self.engine.skipped(now, call) {
            Some(skipped) if !due => ear.skip(Some(skipped)),
            None if ear.is_skipping() && !self.engine.is_at_rest() => ear.skip(None),
            _ => {}
        }
    }
}

impl Machine {
    pub(super) fn new(config: engine::Config, shared: Arc<Shared>, direct: Arc<Direct>) -> Machine {
        let state = State {
            engine: Engine::new(config, shared.counters.clone()),
            completions: Few::default(),
            own: None,
            left: Vec::new(),
            alarm: None,
            ear: None,
            ended: false,
            broken: false,
            out: Vec::new(),
        };
        Machine {
            shared,
            direct,
            state: Mutex::new(state),
            unread: AtomicUsize::new(0),
            listens: AtomicBool::new(false),
        }
    }

    /// Waits for its turn, which comes soon: nobody does I/O meanwhile. `None` after a panic of the engine,
    /// whose state nobody can trust.
    pub(super) fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock().ok().filter(|state| !state.broken)
    }

    /// The state if nobody has it: a caller who drops something may have it already, since the engine drops what callers
    /// have given it, guards included.
    pub(super) fn state_if_free(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok().filter(|state| !state.broken)
    }

    /// The state after a panic, to tell everybody that it is over.
    pub(super) fn wreck(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one input; `errand` gets what is to be done, and where it can be left to the thread.
    pub(super) fn handle(
        &self,
        state: &mut State,
        now: Moment,
        input: Input,
        errand: impl FnMut(Errand, &mut Vec<Errand>),
    ) {
        state.engine.set_listened(self.shared.is_followed());
        state.engine.handle(now, input, &mut state.out);
        let listens = state.engine.has_channels();
        if self.listens() != listens {
            self.listens.store(listens, Ordering::Relaxed);
        }
        self.sort(state, errand);
    }

    /// Has a caller wait no longer for a call of its own that is late: the engine is told by him that nobody knows what
    /// became of it.
    pub(super) fn end_late_call(&self, state: &mut State, now: Moment) {
        if state.own.take_if(|own| own.end <= now).is_some() {
            self.direct.cut_short();
        }
    }

    /// Does what is due.
    pub(super) fn wake(&self, state: &mut State, now: Moment, errands: &mut Vec<Errand>) {
        state.engine.wake(now, &mut state.out);
        self.sort(state, |errand, _| errands.push(errand));
    }

    /// Makes errands of outputs. Whom a hold belongs to is written down here, so that two who do errands at
    /// the same time cannot do that in the wrong order.
    fn sort(&self, state: &mut State, mut errand: impl FnMut(Errand, &mut Vec<Errand>)) {
        for output in state.out.drain(..) {
            match output {
                Output::Opened(cell) => self.shared.registry.open(cell),
                Output::Ended(cell) => self.shared.registry.end(&cell),
                Output::Complete { id, result } => {
                    // Its caller still waits for a call that does not matter any more.
                    if state.own.take_if(|own| own.id == id).is_some() {
                        self.direct.cut_short();
                    }
                    if let Some(completion) = state.completions.remove(&id) {
                        errand(Errand::Answer(id, completion, result), &mut state.left);
                    }
                }
                output => errand(Errand::Do(output), &mut state.left),
            }
        }
    }

    /// Whether there may be something to leave to others: seen without a lock.
    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// A letter is on its way.
    pub(super) fn posted(&self) {
        self.unread.fetch_add(1, Ordering::AcqRel);
    }

    /// The engine has been told of so many letters.
    pub(super) fn read(&self, letters: usize) {
        self.unread.fetch_sub(letters, Ordering::AcqRel);
    }

    /// Whether the engine knows everything that was sent to it. The calling thread's own letters count
    /// for certain, so that what one thread asks for stays in order.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.unread.load(Ordering::Acquire) == 0
    }
}
