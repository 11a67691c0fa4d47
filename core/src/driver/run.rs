//! The life of the engine's thread: gather what has happened, let the engine decide, do what it
//! wants, sleep.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::link::Manner;
use super::net::Net;
use super::timer::Timer;
use super::{Completion, DriverConfig, Letter, News, Shared};
use crate::clock;
use crate::engine::{Engine, Input, Output, RequestId};
use crate::error::{Error, ErrorKind, LostReason};
use crate::event::{Event, Level};
use crate::moment::Moment;

/// How many commands are taken in before the engine's wishes are carried out: they leave together.
const BATCH: usize = 256;
/// How long work that nobody waits for may go on when the last handle is gone.
const ORPHANED: Duration = Duration::from_secs(1);
/// How long a look-up of a host name may keep the thread from ending, and how long the thread that
/// does it waits for the next one.
const LOOK_UP: Duration = Duration::from_secs(1);

/// What a driver runs on.
pub(super) fn prepare() -> io::Result<(Runtime, Timer)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // For looking up host names; they end soon after.
        .thread_name("redlatch")
        .thread_keep_alive(LOOK_UP)
        .max_blocking_threads(2)
        .build()?;
    let timer = runtime.block_on(async { Timer::new() })?;
    Ok((runtime, timer))
}

/// Runs a driver until it has nothing to do any more, on a runtime of its own.
pub(super) fn run(runtime: Runtime, mut driver: Driver) {
    let served = catch_unwind(AssertUnwindSafe(|| runtime.block_on(driver.serve())));
    match served {
        Ok(Ok(())) => driver.end(),
        Ok(Err(error)) => driver.break_down(&format!("its timer failed: {error}")),
        Err(_) => driver.break_down("it panicked; please report what it printed"),
    }
    drop(driver);
    runtime.shutdown_timeout(LOOK_UP);
}

pub(super) struct Driver {
    engine: Engine,
    shared: Arc<Shared>,
    /// Never closed by its senders: a child process that drops its copy of one must not wake us.
    inbox: (UnboundedSender<Letter>, UnboundedReceiver<Letter>),
    timer: Timer,
    net: Net,
    completions: HashMap<RequestId, Completion>,
    letters: Vec<Letter>,
    news: News,
    out: Vec<Output>,
    /// Nobody can ask for anything any more: when to end at the latest.
    orphaned: Option<Moment>,
    stopped: bool,
}

impl Driver {
    pub(super) fn new(
        config: DriverConfig,
        shared: Arc<Shared>,
        own: UnboundedSender<Letter>,
        inbox: UnboundedReceiver<Letter>,
        timer: Timer,
    ) -> Self {
        let (tracking, pubsub) = (config.tracking, config.pubsub);
        let manner = Manner { tracking, uuid: shared.uuid.clone(), pubsub };
        Driver {
            engine: Engine::new(config.engine, shared.counters.clone()),
            net: Net::new(config.servers, manner),
            completions: HashMap::new(),
            letters: Vec::new(),
            news: News::default(),
            out: Vec::new(),
            orphaned: None,
            stopped: false,
            shared,
            inbox: (own, inbox),
            timer,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        while !self.stopped {
            poll_fn(|cx| self.gather(cx)).await?;
            if self.is_overdue(clock::now()) {
                // After a pause of the whole process everything looks overdue, while the answers lie
                // in the sockets: let the connections read before anything is given up. The runtime
                // looks at the sockets during the first yield and runs the connections in the second.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if let Poll::Ready(Err(error)) = poll_fn(|cx| Poll::Ready(self.gather(cx))).await {
                    return Err(error);
                }
            }
            self.step()?;
        }
        Ok(())
    }

    /// Takes in all that has happened. Ready when there is something to do.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fired = match self.timer.poll_fired(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => false,
        };
        let _ = self.inbox.1.poll_recv_many(cx, &mut self.letters, BATCH);
        self.net.poll(cx, &mut self.news);
        let something = fired || !self.letters.is_empty() || !self.news.is_empty();
        if something || self.timer.is_late_for(self.due()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Whether a connection may have to give something up.
    fn is_overdue(&self, now: Moment) -> bool {
        self.net.next_wake().is_some_and(|due| due <= now)
    }

    /// When something has to be done, if nothing else happens.
    fn due(&self) -> Option<Moment> {
        let due = [self.engine.next_wake(), self.net.next_wake()];
        due.into_iter().flatten().chain(self.orphaned).min()
    }

    /// Lets the engine know everything, does everything it wants, and sets the timer.
    fn step(&mut self) -> io::Result<()> {
        let now = clock::now();
        self.net.wake(now, &mut self.news);
        self.inform(now);
        let mut letters = std::mem::take(&mut self.letters);
        letters.drain(..).for_each(|letter| self.read(now, letter));
        self.letters = letters;
        if self.engine.next_wake().is_some_and(|due| due <= now) {
            self.engine.wake(now, &mut self.out);
        }
        // What is done can be news again: a call that cannot be sent.
        while !self.out.is_empty() {
            let mut out = std::mem::take(&mut self.out);
            out.drain(..).for_each(|output| self.output(now, output));
            self.out = out;
            self.inform(now);
        }
        self.end_if_orphaned(now);
        self.timer.arm(now, self.due())
    }

    fn inform(&mut self, now: Moment) {
        let mut news = std::mem::take(&mut self.news);
        self.shared.counters.connects.add(std::mem::take(&mut news.connects));
        news.events.drain(..).for_each(|event| self.event(event));
        news.inputs.drain(..).for_each(|input| self.engine.handle(now, input, &mut self.out));
        self.news = news;
    }

    fn read(&mut self, now: Moment, letter: Letter) {
        let input = match letter {
            Letter::Request { id, request, completion } => {
                self.completions.insert(id, completion);
                Input::Request { id, request }
            }
            Letter::Tell(input) => input,
            Letter::Orphaned => {
                self.orphaned = Some(now.after(ORPHANED));
                Input::Orphaned
            }
        };
        self.engine.handle(now, input, &mut self.out);
    }

    fn output(&mut self, now: Moment, output: Output) {
        match output {
            Output::Send { call, op, limit } => self.net.send(now, call, op, limit, &mut self.news),
            Output::Subscribe(name) => self.net.subscribe(now, name),
            Output::Unsubscribe(name) => self.net.unsubscribe(now, &name),
            Output::Complete { id, result } => {
                if let Some(completion) = self.completions.remove(&id) {
                    completion.complete(result);
                }
            }
            Output::Opened(cell) => self.shared.registry.open(cell),
            Output::Ended(cell) => self.shared.registry.end(&cell),
            Output::Lost(cell, reason) => cell.tell(reason),
            Output::Event(event) => self.event(event),
            Output::Stop => self.stopped = true,
        }
    }

    /// Tells an event to the program's log and keeps it for the languages that ask for it.
    fn event(&self, event: Event) {
        let tell = || {
            let (kind, lock) = (event.kind, event.lock.as_deref().unwrap_or_default());
            match event.level {
                Level::Debug => tracing::debug!(target: "redlatch", kind, lock, "{}", event.text),
                Level::Info => tracing::info!(target: "redlatch", kind, lock, "{}", event.text),
                Level::Warn => tracing::warn!(target: "redlatch", kind, lock, "{}", event.text),
            }
            self.shared.ring.push(event);
        };
        // A subscriber of the program that panics has said so itself.
        let _ = catch_unwind(AssertUnwindSafe(tell));
    }

    /// Nobody is left to ask or to be told: what is under way may finish, if that does not take long.
    fn end_if_orphaned(&mut self, now: Moment) {
        let Some(latest) = self.orphaned else { return };
        let finished = self.engine.is_settled() || self.net.is_idle() && self.out.is_empty();
        self.stopped |= finished || latest <= now;
    }

    /// Whatever was sent too late is told so.
    fn end(&mut self) {
        self.inbox.1.close();
        while let Ok(letter) = self.inbox.1.try_recv() {
            if let Letter::Request { completion, .. } = letter {
                completion
                    .complete(Err(Error::new(ErrorKind::Closed, "the client is closed; open a new one")));
            }
        }
    }

    /// The thread cannot go on: nobody may wait for it or trust what it held.
    fn break_down(&mut self, why: &str) {
        let text = format!("the engine's thread ended: {why}");
        self.event(Event { kind: "ended", level: Level::Warn, lock: None, text });
        for cell in self.engine.cells() {
            cell.set_lost(LostReason::Unreachable);
            cell.tell(LostReason::Unreachable);
        }
        // Their sinks answer `internal` when they are dropped.
        self.inbox.1.close();
        self.completions.clear();
    }
}
