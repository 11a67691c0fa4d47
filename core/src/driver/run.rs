//! The loop of the I/O thread: gather what has happened, let the engine decide, carry out its
//! effects, sleep.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, SendError, Sender};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::consume_budget;

use super::io::Net;
use super::session::{InlineCall, Session};
use super::shared_engine::{Effect, EngineState};
use super::{DriverConfig, Message, News, PendingRequest};
use crate::clock;
use crate::engine::{Done, Output, Request};
use crate::error::{Error, LostReason};
use crate::event::{Event, Level};
use crate::moment::Moment;
use crate::shared_call;
use crate::sync::MutexGuard;
use crate::sys::Timer;
use crate::tuning;
use crate::wake_list::{WakeScope, wake_now};

/// The runtime of the I/O thread. It has no other threads: nothing blocks on it.
pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The thread that waits for a call that its caller has left. One is enough: there is one inline
/// connection, so there is one such call at a time. It ends when it was idle for some time.
#[derive(Default)]
pub(super) struct LateCalls(Option<(Sender<Box<InlineCall>>, JoinHandle<()>)>);

impl LateCalls {
    /// Has the thread wait for the call. If there is none and the system gives none, the call is
    /// given up: the engine settles its outcome.
    pub(super) fn wait(&mut self, mut call: Box<InlineCall>) {
        if let Some((calls, _)) = &self.0 {
            match calls.send(call) {
                Ok(()) => return,
                Err(SendError(back)) => call = back,
            }
        }
        let (sender, calls) = mpsc::channel::<Box<InlineCall>>();
        let life = move || {
            while let Ok(mut call) = calls.recv_timeout(tuning::LATE_THREAD_IDLE) {
                let Ok(()) = call.wait(true, None, || Ok::<_, Infallible>(true));
            }
        };
        if let Ok(thread) = shared_call::start(life) {
            // It cannot have ended yet.
            let _ = sender.send(call);
            self.0 = Some((sender, thread));
        }
    }

    /// Waits for the end of the thread. The socket under its call was shut down.
    fn end(self) {
        if let Some((calls, thread)) = self.0 {
            drop(calls);
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The life of the I/O thread. `begin` is told whether it has what it needs. All of that is made and
/// dropped on this thread, because a runtime must not be dropped on a thread of another runtime.
pub(super) fn live(
    config: &DriverConfig,
    session: Arc<Session>,
    begin: impl FnOnce(io::Result<()>),
) {
    let made = runtime().and_then(|made| Ok((made.block_on(async { Timer::new() })?, made)));
    match made {
        Ok((timer, runtime)) => {
            let driver = Driver::new(config, session, timer);
            begin(Ok(()));
            run(runtime, driver);
        }
        Err(error) => begin(Err(error)),
    }
}

/// Runs a driver until it has nothing to do any more.
fn run(runtime: Runtime, mut driver: Driver) {
    let served = catch_unwind(AssertUnwindSafe(|| runtime.block_on(driver.serve())));
    let session = &driver.session;
    match served {
        Ok(Ok(())) => end(session),
        Ok(Err(error)) => break_down(session, &error.to_string()),
        Err(_) => break_down(session, "it panicked; please report what it printed"),
    }
    std::mem::take(&mut driver.late).end();
}

pub(super) struct Driver {
    session: Arc<Session>,
    timer: Timer,
    /// When the timer fires, at the latest.
    wakes: Option<Moment>,
    /// The timer has fired since it was last set.
    fired: bool,
    late: LateCalls,
    net: Net,
    /// Callers have called this thread.
    called: bool,
    news: News,
    effects: Vec<Effect>,
    /// Calls since the connections last had time to write.
    sent: usize,
    /// No handle is left to ask for anything. When to end at the latest.
    orphaned: Option<Moment>,
    stopped: bool,
}

impl Driver {
    pub(super) fn new(config: &DriverConfig, session: Arc<Session>, timer: Timer) -> Self {
        if let Some(mut state) = session.machine.state() {
            state.alarm = Some(timer.alarm());
        }
        let machine = &session.machine;
        Driver {
            net: Net::new(config, &machine.shared.uuid, machine.direct.clone()),
            session,
            timer,
            wakes: None,
            fired: false,
            late: LateCalls::default(),
            called: false,
            news: News::default(),
            effects: Vec::new(),
            sent: 0,
            orphaned: None,
            stopped: false,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        let session = self.session.clone();
        while !self.stopped {
            // Callers may ask without end. The connections have their turn nevertheless.
            consume_budget().await;
            poll_fn(|cx| self.gather(cx)).await?;
            let now = clock::now();
            let overdue = self.is_overdue(now);
            if self.has_to_listen(now, overdue) || overdue {
                // After a pause of the whole process everything looks overdue, while replies and
                // deferred messages lie in the sockets. Let the connections read before anything is
                // given up or tried. During the first yield the runtime polls the sockets; during
                // the second it runs the connections.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if let Poll::Ready(Err(error)) = poll_fn(|cx| Poll::Ready(self.gather(cx))).await {
                    return Err(error);
                }
            }
            // On a busy machine a woken thread preempts this one, so wake-ups wait until everything
            // is written.
            let together = WakeScope::new(&session.machine.shared.tasks);
            self.step()?;
            let last = together.has_any() || !self.called && !session.machine.inbox.is_called();
            if self.sent >= tuning::CALLS_PER_WRITE || self.sent > 0 && last {
                self.sent = 0;
                self.write().await;
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Lets the connections write what they were given, although callers may have left more.
    async fn write(&mut self) {
        let hand_over = |cx: &mut Context<'_>| {
            self.net.poll(cx, &mut self.news);
            Poll::Ready(())
        };
        poll_fn(hand_over).await;
        tokio::task::yield_now().await;
    }

    /// Takes in all that has happened. Ready when there is something to do.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fired = match self.timer.poll_fired(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => false,
        };
        self.net.poll(cx, &mut self.news);
        self.called |= self.session.machine.inbox.poll_called(cx);
        self.fired |= fired;
        let something = self.fired || self.called || !self.news.is_empty();
        // Only the connections can have an earlier deadline now. The engine's deadline changes in
        // `step`, or with a message.
        let is_due = |due: Moment| self.wakes.is_none_or(|wakes| due < wakes);
        if something || self.net.next_wake().is_some_and(is_due) {
            Poll::Ready(Ok(()))
        } else {
            // Everything is written before the thread sleeps.
            self.sent = 0;
            Poll::Pending
        }
    }

    /// Whether a deadline of a connection has passed.
    fn is_overdue(&self, now: Moment) -> bool {
        self.net.next_wake().is_some_and(|due| due <= now)
    }

    /// Whether the sockets have to be read before deadlines are handled. This is so if the engine
    /// or a connection (`overdue`) is due while the receive threshold may hold something back:
    /// messages, or a late reply that is shorter than they are. If so, the threshold is reset.
    fn has_to_listen(&self, now: Moment, overdue: bool) -> bool {
        let skipping = self
            .net
            .threshold()
            .filter(|threshold| threshold.is_skipping());
        let Some(threshold) = skipping else {
            return false;
        };
        let due = |state: &MutexGuard<'_, EngineState>| {
            overdue || state.engine.next_wake().is_some_and(|due| due <= now)
        };
        let state = self.session.machine.state().filter(due);
        if state.is_some() {
            threshold.skip(None);
        }
        state.is_some()
    }

    /// Sets the receive threshold so that the thread wakes for everything that the engine has to
    /// know.
    fn listen(&self, now: Moment, state: &mut EngineState) {
        let threshold = self.net.threshold();
        let may_skip = self.net.may_skip();
        if let Some(threshold) = threshold {
            let skipped = state.engine.skipped(now, false).filter(|_| may_skip);
            threshold.skip(skipped);
        }
        // Callers change it only while messages may stay unread.
        let for_callers = threshold.filter(|_| may_skip);
        if state.threshold.as_ref().map(Arc::as_ptr) != for_callers.map(Arc::as_ptr) {
            state.threshold = for_callers.cloned();
        }
    }

    /// Gives the engine everything that has happened, and carries out everything it wants.
    fn step(&mut self) -> io::Result<()> {
        let session = self.session.clone();
        let machine = &session.machine;
        let now = clock::now();
        self.net.wake(now, &mut self.news);
        let mut state = machine.state().ok_or_else(panicked)?;
        self.read(now, &mut state);
        machine.end_late_call(&mut state, now);
        if state.engine.next_wake().is_some_and(|due| due <= now) {
            machine.wake(&mut state, now, &mut self.effects);
        }
        // An effect can cause new input, such as a call that cannot be sent.
        while !self.effects.is_empty() {
            drop(state);
            let mut effects = std::mem::take(&mut self.effects);
            effects.drain(..).for_each(|effect| self.run(now, effect));
            self.effects = effects;
            state = machine.state().ok_or_else(panicked)?;
            self.inform(now, &mut state);
        }
        self.end_if_orphaned(now, &state);
        Ok(())
    }

    /// Sets when the thread wakes. Unless more is to be taken in, calls are written before this,
    /// because setting a timer can cost as much as a call.
    fn settle(&mut self) -> io::Result<()> {
        let session = self.session.clone();
        let mut state = session.machine.state().ok_or_else(panicked)?;
        let now = clock::now();
        self.listen(now, &mut state);
        // A time that was set earlier stays set, even if its reason is gone, because callers count
        // on it. Otherwise each of their calls would have to set the timer anew.
        let wakes = [state.next_wake(), self.net.next_wake(), self.orphaned];
        // `flatten().min()` is compiled to a comparison with the bytes of a `None`, whose outcome is then
        // not used. That is correct, but Valgrind reports it in every program.
        let never = Moment(u64::MAX);
        let due = wakes.map(|wake| wake.unwrap_or(never)).into_iter().min();
        let Some(alarm) = &mut state.alarm else {
            return Ok(());
        };
        if std::mem::take(&mut self.fired) {
            alarm.has_fired();
        }
        if let Some(due) = due.filter(|due| *due != never) {
            alarm.set(now, due)?;
        }
        self.wakes = alarm.at();
        Ok(())
    }

    /// Takes over the effects that callers have deferred, and tells the engine what the connections
    /// have learnt.
    fn inform(&mut self, now: Moment, state: &mut EngineState) {
        self.effects.append(&mut state.left);
        let machine = &self.session.machine;
        let mut news = std::mem::take(&mut self.news);
        machine
            .shared
            .counters
            .connects
            .add(std::mem::take(&mut news.connects));
        // Events are told without the engine's lock: a listener may block, and nobody else may have
        // to wait for the engine meanwhile.
        self.effects.extend(
            news.events
                .drain(..)
                .map(|event| Effect::Do(Output::Event(event))),
        );
        for input in news.inputs.drain(..) {
            machine.handle(state, now, input, |effect, _| self.effects.push(effect));
        }
        machine.direct.open();
        self.news = news;
    }

    /// Gives the engine what has happened: first on the connections, then in the inbox.
    fn read(&mut self, now: Moment, state: &mut EngineState) {
        let session = self.session.clone();
        let machine = &session.machine;
        let most = if self.net.is_idle() {
            tuning::INBOX_BATCH_IDLE
        } else {
            tuning::INBOX_BATCH
        };
        self.inform(now, state);
        let take = |effect, _: &mut Vec<Effect>| self.effects.push(effect);
        // The rest comes in the next round, after the connections had time to write.
        let more = machine.drain(most, state, now, take);
        if std::mem::replace(&mut self.called, more) {
            machine.shared.gates.next();
        }
    }

    fn run(&mut self, now: Moment, effect: Effect) {
        match effect {
            Effect::Answer(completion, result) => completion.complete(result),
            Effect::Orphaned => self.orphaned = Some(now.after(tuning::ORPHAN_LIMIT)),
            // This takes at most the time limit of the call, and ends with an input of the engine.
            Effect::Finish(call) => self.late.wait(call),
            Effect::Do(Output::Send {
                call, op, limit, ..
            }) => {
                self.sent += 1;
                self.net.send(now, call, op, limit, &mut self.news);
            }
            Effect::Do(Output::Subscribe(name, topic)) => self.net.subscribe(now, name, topic),
            Effect::Do(Output::Unsubscribe(name, topic)) => {
                self.net.unsubscribe(now, &name, topic);
            }
            // Both may call the program, and that code may wait for one of the program's threads:
            // wake them first.
            Effect::Do(Output::Lost(cell, reason)) => {
                wake_now(&self.session.machine.shared.tasks);
                cell.tell(reason);
            }
            Effect::Do(Output::Event(event)) => {
                wake_now(&self.session.machine.shared.tasks);
                self.session.machine.shared.tell(event);
            }
            Effect::Do(Output::Stop) => self.stopped = true,
            // These were carried out as soon as the engine produced them.
            Effect::Do(Output::Complete { .. } | Output::Opened(_) | Output::Ended(_)) => {}
        }
    }

    /// Without a handle nobody can ask or be told anything: ends the thread when nothing is left in
    /// flight, or when its time is over. Permits without leases are given back even then, if the
    /// server can be reached again soon: nothing else gives them back.
    fn end_if_orphaned(&mut self, now: Moment, state: &EngineState) {
        let Some(latest) = self.orphaned else { return };
        let owes = state.engine.owes_counts();
        let latest = latest.after(if owes {
            tuning::OWED_LIMIT
        } else {
            Duration::ZERO
        });
        let idle = !owes && self.net.is_idle() && self.effects.is_empty();
        let finished = state.engine.is_settled() || idle;
        self.stopped |= finished || latest <= now;
    }
}

/// Ends the thread in good order. Requests that came too late are answered with `closed`.
pub(super) fn end(session: &Session) {
    let machine = &session.machine;
    let mut state = machine.wreck();
    let (messages, left) = machine.end(&mut state);
    drop(state);
    answer_all(left);
    machine.direct.end();
    for message in messages {
        if let Message::Request(PendingRequest {
            request,
            completion,
            ..
        }) = message
        {
            completion.complete(match request {
                // Closing twice is no error.
                Request::Close { .. } => Ok(Done::Closed(Vec::new())),
                other => Err(other.named(Error::closed())),
            });
        }
    }
}

/// The thread cannot go on. Nobody may wait for it any more, or trust the holds that it kept.
pub(super) fn break_down(session: &Session, why: &str) {
    let machine = &session.machine;
    let text = format!("the engine's thread ended: {why}");
    machine
        .shared
        .tell(Event::new("ended", Level::Warn, None, text));
    machine.direct.end();
    let mut state = machine.wreck();
    let (messages, left) = machine.end(&mut state);
    let (cells, completions) = (state.engine.cells(), std::mem::take(&mut state.completions));
    drop(state);
    answer_all(left);
    for cell in cells {
        // A hold that was released or lost before has nobody to tell.
        if cell.set_lost(LostReason::Unreachable) {
            cell.tell(LostReason::Unreachable);
        }
    }
    // Their sinks answer `internal` when they are dropped.
    drop((messages, completions));
}

/// Gives the answers that callers have deferred to the I/O thread. Other effects are of no use any
/// more.
fn answer_all(left: Vec<Effect>) {
    for effect in left {
        if let Effect::Answer(completion, result) = effect {
            completion.complete(result);
        }
    }
}

fn panicked() -> io::Error {
    io::Error::other("the engine panicked; please report what it printed")
}
