//! The life of the engine's thread: gather what has happened, let the engine decide, do what it
//! wants, sleep.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;

use super::calling::Desk;
use super::link::Manner;
use super::machine::{Errand, Machine, State};
use super::net::Net;
use super::timer::Timer;
use super::{Asked, DriverConfig, Letter, News};
use crate::clock;
use crate::engine::{Input, Output};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::{Event, Level};
use crate::gate::{TOGETHER, Together, wake_now};
use crate::moment::Moment;

/// How many letters are taken in before the engine's wishes are carried out: they leave together.
const BATCH: usize = 32;
/// The same while the server has nothing to do, so that it begins soon.
const FIRST: usize = TOGETHER;
/// So many calls are written before more is taken in. In one batch of everything, the client would wait
/// while the server works, and the server while the client works.
const ENOUGH: usize = TOGETHER;
/// How long work that nobody waits for may go on when the last handle is gone.
const ORPHANED: Duration = Duration::from_secs(1);
/// How long a look-up of a host name may keep the thread from ending, or a call that was left, and how long the thread
/// that does it waits for the next one.
const LOOK_UP: Duration = Duration::from_secs(1);

/// What a driver runs on.
pub(super) struct Threads {
    /// Its own thread, and those that look up host names.
    own: Runtime,
    /// The one that waits for a call which its caller has left to us: look-ups that hang may take all the others. There is
    /// one direct connection, so there is one such call at a time.
    late: Runtime,
}

impl Threads {
    pub(super) fn new() -> io::Result<Threads> {
        let own = threads(2).enable_all().build()?;
        Ok(Threads { own, late: threads(1).build()? })
    }

    pub(super) fn timer(&self) -> io::Result<Timer> {
        self.own.block_on(async { Timer::new() })
    }

    /// Where a call is waited for that its caller has left.
    pub(super) fn late(&self) -> &Handle {
        self.late.handle()
    }

    fn end(self) {
        let end = Instant::now() + LOOK_UP;
        for runtime in [self.own, self.late] {
            runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
        }
    }
}

/// A runtime that has so many threads at most for what blocks; they end soon after.
fn threads(most: usize) -> Builder {
    let mut builder = Builder::new_current_thread();
    builder.thread_name("redlatch").thread_keep_alive(LOOK_UP).max_blocking_threads(most);
    builder
}

/// Runs a driver until it has nothing to do any more.
pub(super) fn run(threads: Threads, mut driver: Driver) {
    let served = catch_unwind(AssertUnwindSafe(|| threads.own.block_on(driver.serve())));
    match served {
        Ok(Ok(())) => driver.end(),
        Ok(Err(error)) => driver.break_down(&error.to_string()),
        Err(_) => driver.break_down("it panicked; please report what it printed"),
    }
    drop(driver);
    threads.end();
}

pub(super) struct Driver {
    machine: Arc<Machine>,
    /// Never closed by its senders: a child process that drops its copy of one must not wake us.
    desk: Arc<Desk>,
    inbox: UnboundedReceiver<Letter>,
    timer: Timer,
    /// When it fires, at the latest.
    wakes: Option<Moment>,
    /// It has fired since it was last set.
    fired: bool,
    /// Where a call is waited for that its caller has left.
    late: Handle,
    net: Net,
    letters: Vec<Letter>,
    news: News,
    errands: Vec<Errand>,
    /// Calls since the connections were last left time to write.
    sent: usize,
    /// Nobody can ask for anything any more: when to end at the latest.
    orphaned: Option<Moment>,
    stopped: bool,
}

impl Driver {
    pub(super) fn new(
        config: DriverConfig,
        desk: Arc<Desk>,
        inbox: UnboundedReceiver<Letter>,
        timer: Timer,
        late: Handle,
    ) -> Self {
        let (tracking, pubsub) = (config.tracking, config.pubsub);
        if let Some(mut state) = desk.machine.state() {
            state.alarm = Some(timer.alarm());
        }
        let manner = Manner { tracking, uuid: desk.machine.shared.uuid.clone(), pubsub };
        Driver {
            machine: desk.machine.clone(),
            net: Net::new(config.servers, manner, desk.machine.direct.clone()),
            desk,
            inbox,
            timer,
            wakes: None,
            fired: false,
            late,
            letters: Vec::new(),
            news: News::default(),
            errands: Vec::new(),
            sent: 0,
            orphaned: None,
            stopped: false,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        let machine = self.machine.clone();
        while !self.stopped {
            poll_fn(|cx| self.gather(cx)).await?;
            let now = clock::now();
            let overdue = self.is_overdue(now);
            if self.has_to_listen(now, overdue) || overdue {
                // After a pause of the whole process everything looks overdue, while the answers lie
                // in the sockets, as messages do that could wait: let the connections read before anything is given up
                // or tried. The runtime
                // looks at the sockets during the first yield and runs the connections in the second.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if let Poll::Ready(Err(error)) = poll_fn(|cx| Poll::Ready(self.gather(cx))).await {
                    return Err(error);
                }
            }
            // On a busy machine whoever is woken takes the processor from us: first everything is on its way.
            let together = Together::new(&machine.shared.tasks);
            self.step()?;
            let last = together.has_any() || self.inbox.is_empty();
            if self.sent >= ENOUGH || self.sent > 0 && last {
                self.sent = 0;
                self.write().await;
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Lets the connections write what they were given, while more may wait to be taken in.
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
        let most = if self.net.is_idle() { FIRST } else { BATCH };
        let _ = self.inbox.poll_recv_many(cx, &mut self.letters, most);
        self.fired |= fired;
        let something = self.fired || !self.letters.is_empty() || !self.news.is_empty();
        // The engine's own time can change in `step` only, or somebody writes a letter.
        let is_due = |due: Moment| self.wakes.is_none_or(|wakes| due < wakes);
        if something || self.net.next_wake().is_some_and(is_due) {
            Poll::Ready(Ok(()))
        } else {
            // Everything is written before the thread sleeps.
            self.sent = 0;
            Poll::Pending
        }
    }

    /// Whether a connection may have to give something up.
    fn is_overdue(&self, now: Moment) -> bool {
        self.net.next_wake().is_some_and(|due| due <= now)
    }

    /// Whether the time of the engine or of a connection (`overdue`) has come while something may lie in the socket that is to
    /// be heard before: messages, or an answer that was late and is shorter than they are.
    fn has_to_listen(&self, now: Moment, overdue: bool) -> bool {
        let Some(ear) = self.net.ear().filter(|ear| ear.is_skipping()) else { return false };
        let due =
            |state: &MutexGuard<'_, State>| overdue || state.engine.next_wake().is_some_and(|due| due <= now);
        let state = self.machine.state().filter(due);
        if state.is_some() {
            ear.skip(None);
        }
        state.is_some()
    }

    /// Has the connection wake the thread for what the engine has to know.
    fn listen(&self, now: Moment, state: &mut State) {
        let ear = self.net.ear();
        if let Some(ear) = ear {
            ear.skip(state.engine.skipped(now, false));
        }
        if state.ear.as_ref().map(Arc::as_ptr) != ear.map(Arc::as_ptr) {
            state.ear = ear.cloned();
        }
    }

    /// Lets the engine know everything, and does everything it wants.
    fn step(&mut self) -> io::Result<()> {
        let machine = self.machine.clone();
        let now = clock::now();
        self.net.wake(now, &mut self.news);
        let mut state = machine.state().ok_or_else(panicked)?;
        self.inform(now, &mut state);
        self.read(now, &mut state);
        machine.end_late_call(&mut state, now);
        if state.engine.next_wake().is_some_and(|due| due <= now) {
            machine.wake(&mut state, now, &mut self.errands);
        }
        // What is done can be news again: a call that cannot be sent.
        while !self.errands.is_empty() {
            drop(state);
            let mut errands = std::mem::take(&mut self.errands);
            errands.drain(..).for_each(|errand| self.run(now, errand));
            self.errands = errands;
            state = machine.state().ok_or_else(panicked)?;
            self.inform(now, &mut state);
        }
        self.end_if_orphaned(now, &state);
        Ok(())
    }

    /// Says when the thread is to be woken. What was asked for is on its way before, where nothing more is to be taken in: to
    /// set a timer can cost as much as a call.
    fn settle(&mut self) -> io::Result<()> {
        let machine = self.machine.clone();
        let mut state = machine.state().ok_or_else(panicked)?;
        let now = clock::now();
        self.listen(now, &mut state);
        // What callers count on stays, though what it was for may be over: else each of their calls would wake the
        // thread to set the timer anew.
        let wakes = [state.next_wake(), self.net.next_wake(), self.orphaned];
        let Some(alarm) = &mut state.alarm else { return Ok(()) };
        if std::mem::take(&mut self.fired) {
            alarm.has_fired();
        }
        if let Some(due) = wakes.into_iter().flatten().min() {
            alarm.set(now, due)?;
        }
        self.wakes = alarm.at();
        Ok(())
    }

    /// Tells the engine what the connections have learnt, and takes over what callers have left.
    fn inform(&mut self, now: Moment, state: &mut State) {
        self.errands.append(&mut state.left);
        let mut news = std::mem::take(&mut self.news);
        self.machine.shared.counters.connects.add(std::mem::take(&mut news.connects));
        news.events.drain(..).for_each(|event| self.machine.shared.tell(event));
        for input in news.inputs.drain(..) {
            self.machine.handle(state, now, input, |errand, _| self.errands.push(errand));
        }
        self.news = news;
    }

    /// Tells the engine what the letters say.
    fn read(&mut self, now: Moment, state: &mut State) {
        let mut letters = std::mem::take(&mut self.letters);
        let news = letters.iter().filter(|letter| letter.is_news()).count();
        for letter in letters.drain(..) {
            let input = match letter {
                Letter::Request(Asked { id, request, completion }) => {
                    state.completions.insert(id, completion);
                    Input::Request { id, request }
                }
                Letter::Tell(input) => input,
                Letter::Look => continue,
                Letter::Finish(call) => {
                    self.errands.push(Errand::Finish(call));
                    continue;
                }
                Letter::Orphaned => {
                    self.orphaned = Some(now.after(ORPHANED));
                    Input::Orphaned
                }
            };
            self.machine.handle(state, now, input, |errand, _| self.errands.push(errand));
        }
        self.letters = letters;
        self.machine.read(news);
        if news > 0 {
            self.machine.shared.gates.next();
        }
    }

    fn run(&mut self, now: Moment, errand: Errand) {
        match errand {
            Errand::Answer(_, completion, result) => completion.complete(result),
            // It takes as long as the call's limit at most, and ends with an input.
            Errand::Finish(mut call) => {
                drop(self.late.spawn_blocking(move || call.wait(|| Ok::<_, Infallible>(true))));
            }
            Errand::Do(Output::Send { call, op, limit, .. }) => {
                self.sent += 1;
                self.net.send(now, call, op, limit, &mut self.news);
            }
            Errand::Do(Output::Subscribe(name)) => self.net.subscribe(now, name),
            Errand::Do(Output::Unsubscribe(name)) => self.net.unsubscribe(now, &name),
            // Both may call the program, which may wait for one of its threads.
            Errand::Do(Output::Lost(cell, reason)) => {
                wake_now(&self.machine.shared.tasks);
                cell.tell(reason);
            }
            Errand::Do(Output::Event(event)) => {
                wake_now(&self.machine.shared.tasks);
                self.machine.shared.tell(event);
            }
            Errand::Do(Output::Stop) => self.stopped = true,
            // Done as soon as the engine wanted it.
            Errand::Do(Output::Complete { .. } | Output::Opened(_) | Output::Ended(_)) => {}
        }
    }

    /// Nobody is left to ask or to be told: what is under way may finish, if that does not take long.
    fn end_if_orphaned(&mut self, now: Moment, state: &State) {
        let Some(latest) = self.orphaned else { return };
        let finished = state.engine.is_settled() || self.net.is_idle() && self.errands.is_empty();
        self.stopped |= finished || latest <= now;
    }

    /// Whatever was sent too late is told so.
    fn end(&mut self) {
        let mut state = self.machine.wreck();
        state.ended = true;
        // Callers may keep the state for long after that: its descriptors are closed with the thread's.
        (state.alarm, state.ear) = (None, None);
        let left = std::mem::take(&mut state.left);
        drop(state);
        answer_all(left);
        self.desk.machine.direct.end();
        self.inbox.close();
        while let Ok(letter) = self.inbox.try_recv() {
            if let Letter::Request(Asked { completion, .. }) = letter {
                completion
                    .complete(Err(Error::new(ErrorKind::Closed, "the client is closed; open a new one")));
            }
        }
    }

    /// The thread cannot go on: nobody may wait for it or trust what it held.
    fn break_down(&mut self, why: &str) {
        let text = format!("the engine's thread ended: {why}");
        self.machine.shared.tell(Event { kind: "ended", level: Level::Warn, lock: None, text });
        self.desk.machine.direct.end();
        let mut state = self.machine.wreck();
        state.ended = true;
        // Callers may keep the state for long after that: its descriptors are closed with the thread's.
        (state.alarm, state.ear) = (None, None);
        let (cells, completions) = (state.engine.cells(), std::mem::take(&mut state.completions));
        let left = std::mem::take(&mut state.left);
        drop(state);
        answer_all(left);
        for cell in cells {
            cell.set_lost(LostReason::Unreachable);
            cell.tell(LostReason::Unreachable);
        }
        // Their sinks answer `internal` when they are dropped.
        self.inbox.close();
        drop(completions);
    }
}

/// Gives the answers that callers have left to the thread; the rest is of no use any more.
fn answer_all(left: Vec<Errand>) {
    for errand in left {
        if let Errand::Answer(_, completion, result) = errand {
            completion.complete(result);
        }
    }
}

fn panicked() -> io::Error {
    io::Error::other("the engine panicked; please report what it printed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};

    /// Two look-ups of host names that hung delayed the outcome of a call that its caller had left.
    #[test]
    fn a_call_that_was_left_does_not_wait_for_look_ups_that_hang() {
        let threads = Threads::new().expect("threads");
        let (both_hang, (done, is_done)) = (Arc::new(Barrier::new(3)), mpsc::channel());
        for _ in 0..2 {
            let both_hang = both_hang.clone();
            drop(threads.own.spawn_blocking(move || both_hang.wait()));
        }
        drop(threads.late().spawn_blocking(move || done.send(())));
        let in_time = is_done.recv_timeout(Duration::from_secs(30));
        both_hang.wait();
        threads.end();
        assert!(in_time.is_ok(), "it waits for them");
    }
}
