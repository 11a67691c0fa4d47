//! Runs an engine: one thread per client, with a single-threaded runtime, owns the sockets and the
//! timer, and carries inputs to the engine and its outputs to where they belong.
//!
//! The thread never enters an interpreter and never waits for a caller. Everything that happens
//! arrives in one inbox, in order.

mod connect;
mod link;
mod pubsub;
mod server_clock;
mod timer;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use redis::{PushInfo, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock;
use crate::engine::{self, CallId, Done, Engine, Input, Output, Request, RequestId};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::{Counters, Event, Level, Ring};
use crate::hold::HoldCell;
use crate::owner::Key;
use crate::wire::{Name, Op};

pub(crate) use connect::Address;
use link::{Link, Made, Pushed};
use pubsub::Want;
use timer::Timer;

/// Takes the answer to a request. Called exactly once, on the engine's thread; must not block.
pub(crate) type Sink = Box<dyn FnOnce(Result<Done>) + Send>;

/// What the engine's thread can be told.
pub(crate) enum Command {
    /// A request and where its answer goes.
    Request { id: RequestId, request: Request, sink: Sink },
    /// Anything else the engine should know.
    Tell(Input),
    /// News from a connection.
    Happened(Happening),
    /// Nobody can ask for anything any more: end when nothing is left to do.
    Orphaned,
}

/// News from a connection, with the count of the connection it is about.
pub(crate) enum Happening {
    Made { generation: u64, made: Made },
    Push { generation: u64, info: PushInfo },
    Reply { generation: u64, call: CallId, op: Op, limit: Duration, reply: Option<Result<Value, RedisError>> },
}

/// What a driver needs to start.
pub(crate) struct DriverConfig {
    pub(crate) address: Address,
    pub(crate) engine: engine::Config,
    pub(crate) tracking: bool,
}

/// What the engine's thread shares with everybody else.
pub(crate) struct Shared {
    pub(crate) uuid: String,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ring: Ring,
    pub(crate) registry: Registry,
}

/// The holds that have a re-entry key, for questions that are answered without I/O.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<(Name, Key), Arc<HoldCell>>>);

impl Registry {
    fn holds(&self) -> MutexGuard<'_, HashMap<(Name, Key), Arc<HoldCell>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &Name, key: Key) -> Option<Arc<HoldCell>> {
        self.holds().get(&(name.clone(), key)).cloned()
    }

    fn open(&self, cell: Arc<HoldCell>) {
        self.holds().insert((cell.name.clone(), cell.key), cell);
    }

    /// Forgets a hold, unless its key holds the name anew already.
    fn end(&self, cell: &Arc<HoldCell>) {
        let mut holds = self.holds();
        let key = (cell.name.clone(), cell.key);
        if holds.get(&key).is_some_and(|held| Arc::ptr_eq(held, cell)) {
            holds.remove(&key);
        }
    }
}

thread_local! {
    static ENGINE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one that answers requests: it must not wait for an answer.
pub(crate) fn is_engine_thread() -> bool {
    ENGINE.try_with(Cell::get).unwrap_or(false)
}

/// The way to the engine's thread.
pub(crate) struct Handle {
    /// The process that has the thread.
    pid: u32,
    inbox: UnboundedSender<Command>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl Handle {
    /// Starts the thread. It connects at once and goes on trying until it is closed.
    ///
    /// # Errors
    /// `internal` when the system gives no thread, timer or event queue.
    pub(crate) fn start(config: DriverConfig, shared: Arc<Shared>) -> Result<Handle> {
        let (inbox, commands) = unbounded_channel();
        let (end, ended) = mpsc::channel();
        let own = inbox.clone();
        let spawn = || {
            std::thread::Builder::new().name("redlatch".to_owned()).spawn(move || {
                let report = shared.clone();
                if let Err(error) = run(config, shared, own, commands) {
                    report.ring.push(thread_event(&error));
                }
                let _ = end.send(());
            })
        };
        // Signals belong to the threads of the program; a thread inherits the mask of its maker.
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Internal, format!("cannot start the engine's thread: {error}"))
        };
        let before =
            SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(|error| failed(&error))?;
        let spawned = spawn();
        let restored = before.thread_set_mask();
        spawned.map_err(|error| failed(&error))?;
        restored.map_err(|error| failed(&error))?;
        Ok(Handle { pid: std::process::id(), inbox, ended: Mutex::new(ended) })
    }

    /// Hands a command to the thread; false if the thread has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        self.inbox.send(command).is_ok()
    }

    /// Waits until the thread has ended, at most `limit`.
    pub(crate) fn join(&self, limit: Duration) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Ended and told, or ended and gone: both are answers.
        let _ = ended.recv_timeout(limit);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // A word would wake the parent's thread: a child shares its event descriptor.
            return;
        }
        let _ = self.inbox.send(Command::Orphaned);
    }
}

fn thread_event(error: &Error) -> Event {
    Event { kind: "ended", level: Level::Warn, lock: None, text: error.to_string() }
}

/// The life of the thread.
fn run(
    config: DriverConfig,
    shared: Arc<Shared>,
    inbox: UnboundedSender<Command>,
    commands: UnboundedReceiver<Command>,
) -> Result<()> {
    ENGINE.set(true);
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Internal, format!("the engine's thread failed: {error}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let timer = Timer::new().map_err(failed)?;
        let mut driver = Driver::new(config, shared, inbox);
        driver.link.connect();
        let result = driver.serve(commands, timer).await.map_err(failed);
        driver.end();
        result
    })
}

struct Driver {
    engine: Engine,
    shared: Arc<Shared>,
    sinks: HashMap<RequestId, Completion>,
    link: Link,
    wants: UnboundedSender<Want>,
    out: Vec<Output>,
    orphaned: bool,
    stopped: bool,
}

impl Driver {
    fn new(config: DriverConfig, shared: Arc<Shared>, inbox: UnboundedSender<Command>) -> Self {
        let (wants, wanted) = unbounded_channel();
        tokio::spawn(pubsub::serve(config.address.clone(), wanted, inbox.clone()));
        Driver {
            engine: Engine::new(config.engine, shared.counters.clone()),
            sinks: HashMap::new(),
            link: Link::new(config.address, config.tracking, shared.uuid.clone(), inbox),
            wants,
            out: Vec::new(),
            orphaned: false,
            stopped: false,
            shared,
        }
    }

    async fn serve(
        &mut self,
        mut commands: UnboundedReceiver<Command>,
        mut timer: Timer,
    ) -> std::io::Result<()> {
        let mut batch = Vec::new();
        while !self.stopped {
            timer.arm(clock::now(), self.engine.next_wake())?;
            tokio::select! {
                biased;
                _ = commands.recv_many(&mut batch, 256) => {
                    for command in batch.drain(..) {
                        self.command(command);
                    }
                }
                fired = timer.fired() => {
                    fired?;
                    self.drive(|engine, out| engine.wake(clock::now(), out));
                }
            }
            // Nobody is left to ask or to be told: what is under way is all there is.
            if self.orphaned && self.engine.is_settled() {
                break;
            }
        }
        Ok(())
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Request { id, request, sink } => {
                self.sinks.insert(id, Completion(Some(sink)));
                self.input(Input::Request { id, request });
            }
            Command::Tell(input) => self.input(input),
            Command::Happened(Happening::Made { generation, made }) => {
                if self.link.adopt(generation, made) {
                    self.shared.counters.connects.add(1);
                    self.input(Input::Up);
                }
            }
            Command::Happened(Happening::Push { generation, info }) => {
                match self.link.pushed(generation, info) {
                    Some(Pushed::Disconnected) => self.reconnect(),
                    Some(Pushed::Invalidated(names)) => self.input(Input::Invalidated(names)),
                    None => {}
                }
            }
            Command::Happened(Happening::Reply { generation, call, op, limit, reply }) => {
                let (outcome, broken) = self.link.settle(generation, &op, limit, reply);
                self.input(Input::Outcome { call, outcome });
                if broken {
                    self.reconnect();
                }
            }
            Command::Orphaned => {
                self.orphaned = true;
                self.input(Input::Orphaned);
            }
        }
    }

    fn reconnect(&mut self) {
        let error = self.link.broken();
        self.link.connect();
        self.input(Input::Down(error));
    }

    fn input(&mut self, input: Input) {
        self.drive(|engine, out| engine.handle(clock::now(), input, out));
    }

    /// Runs the engine and does what it wants.
    fn drive(&mut self, step: impl FnOnce(&mut Engine, &mut Vec<Output>)) {
        let mut out = std::mem::take(&mut self.out);
        if catch_unwind(AssertUnwindSafe(|| step(&mut self.engine, &mut out))).is_err() {
            return self.broke_down();
        }
        for output in out.drain(..) {
            self.output(output);
        }
        self.out = out;
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Send { call, op, limit } => self.link.send(call, op, limit),
            Output::Subscribe(name) => self.want(Want::Subscribe(name)),
            Output::Unsubscribe(name) => self.want(Want::Unsubscribe(name)),
            Output::Complete { id, result } => {
                if let Some(completion) = self.sinks.remove(&id) {
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

    fn want(&self, want: Want) {
        // The task that serves them ends only with this sender.
        let _ = self.wants.send(want);
    }

    fn event(&self, event: Event) {
        let lock = event.lock.as_deref().unwrap_or_default();
        match event.level {
            Level::Debug => tracing::debug!(target: "redlatch", kind = event.kind, lock, "{}", event.text),
            Level::Info => tracing::info!(target: "redlatch", kind = event.kind, lock, "{}", event.text),
            Level::Warn => tracing::warn!(target: "redlatch", kind = event.kind, lock, "{}", event.text),
        }
        self.shared.ring.push(event);
    }

    /// The engine has panicked: nobody may wait for it or trust what it held.
    fn broke_down(&mut self) {
        for cell in self.engine.cells() {
            cell.set_lost(LostReason::Unreachable);
            cell.tell(LostReason::Unreachable);
        }
        self.stopped = true;
    }

    /// Whoever still waits is told that nobody answers any more.
    fn end(&mut self) {
        for (_, completion) in self.sinks.drain() {
            drop(completion);
        }
    }
}

/// A sink that answers even when it is dropped.
struct Completion(Option<Sink>);

impl Completion {
    fn complete(mut self, result: Result<Done>) {
        self.call(result);
    }

    fn call(&mut self, result: Result<Done>) {
        if let Some(sink) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| sink(result)));
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.call(Err(Error::new(ErrorKind::Internal, "the engine's thread ended before it could answer")));
    }
}
