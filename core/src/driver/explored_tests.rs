//! The client as it is, with all that its threads share. [Shuttle](crate::sync) chooses the order of
//! their steps. In place of the connections the I/O thread has a server that gives every call the
//! same reply.

use std::cell::Cell;
use std::convert::Infallible;
use std::mem;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redlatch_proto::value::Value;

use super::calls::{OutgoingCall, Payload};
use super::inline::InlineConnection;
use super::server_clock::ServerClock;
use super::shared_engine::{Effect, EngineState};
use super::*;
use crate::clock;
use crate::completion_queue::{CompletionQueue, Outcome};
use crate::embed::OperationExt;
use crate::engine::{CallOutcome, Output};
use crate::guard::Guard;
use crate::moment::Moment;
use crate::operation::Cancelled;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::thread;
use crate::sync::{explore, unpark};
use crate::sys::{Alarm, BlockingSocket, Timer};
use crate::tuning;
use crate::wake_list::{WakeScope, wake_now};
use crate::wire::{self, Call, Op, Publish};
use crate::{Client, Operation, OptionValue};

/// An acquire is told the server's clock and 30 s, a release how many have heard of it.
const REPLY: &[u8] = b":90000\r\n";
/// A renewal is told the clock and that all is kept.
const RENEWED: &[u8] = b"*2\r\n:60000\r\n:7\r\n";

/// The server: it grants everything.
fn reply(command: &[u8]) -> &'static [u8] {
    fn sha(command: &[u8]) -> Option<&[u8]> {
        let script = command.windows(5).position(|at| at == b"$40\r\n")? + 5;
        command.get(script..script + 40)
    }
    let renewal = Op::Renew { holds: Vec::new() };
    match sha(command) == sha(&written(&renewal)) {
        true => RENEWED,
        false => REPLY,
    }
}

fn written(op: &Op) -> Vec<u8> {
    let mut command = Vec::new();
    Call::new(op, "", 0, Publish::Classic).write_evalsha(&mut command);
    command
}

// Of the system's thread, on which all threads of a test run.
std::thread_local! {
    /// Whether the I/O thread breaks down some time.
    static BREAKS: Cell<bool> = const { Cell::new(false) };
}

/// The life of the I/O thread.
pub(super) fn live(
    _: &DriverConfig,
    session: Arc<Session>,
    begin: impl FnOnce(std::io::Result<()>),
) {
    let timer = Timer::new().expect("a timer");
    session.machine.wreck().alarm = Some(timer.alarm());
    begin(Ok(()));
    let mut driver = Played {
        inputs: vec![Input::Identity(1), Input::Up(0)],
        session: session.clone(),
        called: false,
        sent: Vec::new(),
        effects: Vec::new(),
        threads: Vec::new(),
        orphaned: false,
        stopped: false,
    };
    if driver.serve() {
        run::end(&session);
    } else {
        run::break_down(&session, "of the test");
    }
    for thread in driver.threads {
        thread.join().expect("no panic");
    }
}

/// As [`run`] has it, with the connections away.
struct Played {
    session: Arc<Session>,
    called: bool,
    inputs: Vec<Input>,
    /// The outcomes of the calls under way.
    sent: Vec<Input>,
    effects: Vec<Effect>,
    threads: Vec<JoinHandle<()>>,
    orphaned: bool,
    stopped: bool,
}

impl Played {
    /// False if it breaks down.
    fn serve(&mut self) -> bool {
        let (session, waker) = (self.session.clone(), unpark());
        let machine = &session.machine;
        let mut rounds = 0;
        while !self.stopped {
            if self.threads.is_empty() || machine.direct.is_wanted() {
                self.connect();
            }
            self.called |= machine.inbox.poll_called(&Context::from_waker(&waker));
            self.inputs.append(&mut self.sent);
            if !self.called && self.inputs.is_empty() && !self.fires() {
                thread::park();
                continue;
            }
            if BREAKS.get() && rounds == 3 {
                return false;
            }
            rounds += 1;
            let _together = WakeScope::new(&machine.shared.tasks);
            self.step();
        }
        true
    }

    /// Lets time pass if nothing else is to be done for a while.
    fn fires(&self) -> bool {
        for _ in 0..20 {
            if self.session.machine.inbox.is_called() {
                return false;
            }
            thread::yield_now();
        }
        let mut state = self.session.machine.wreck();
        state.alarm.as_mut().is_some_and(Alarm::fires)
    }

    /// Makes the inline connection.
    fn connect(&mut self) {
        let (connection, server) = connection(0);
        if self.session.machine.direct.made(connection) {
            self.threads.push(thread::spawn(|| server.serve(reply)));
            self.inputs.push(Input::Identity(2));
        }
    }

    fn step(&mut self) {
        let session = self.session.clone();
        let machine = &session.machine;
        let now = clock::now();
        let mut state = machine.state().expect("the engine has not panicked");
        self.inform(now, &mut state);
        let take = |effect, _: &mut Vec<Effect>| self.effects.push(effect);
        let more = machine.drain(tuning::INBOX_BATCH, &mut state, now, take);
        if mem::replace(&mut self.called, more) {
            machine.shared.gates.next();
        }
        machine.end_late_call(&mut state, now);
        if state.engine.next_wake().is_some_and(|due| due <= now) {
            machine.wake(&mut state, now, &mut self.effects);
        }
        while !self.effects.is_empty() {
            drop(state);
            for effect in mem::take(&mut self.effects) {
                self.run(effect);
            }
            state = machine.state().expect("the engine has not panicked");
            self.inform(now, &mut state);
        }
        let idle = self.sent.is_empty() && !state.engine.owes_counts();
        self.stopped |= self.orphaned && (idle || state.engine.is_settled());
        if let (Some(wake), Some(alarm)) = (state.next_wake(), &mut state.alarm) {
            alarm.set(now, wake).expect("set");
        }
    }

    fn inform(&mut self, now: Moment, state: &mut EngineState) {
        self.effects.append(&mut state.left);
        let machine = &self.session.machine;
        for input in self.inputs.drain(..) {
            machine.handle(state, now, input, |effect, _| self.effects.push(effect));
        }
        machine.direct.open();
    }

    fn run(&mut self, effect: Effect) {
        let shared = &self.session.machine.shared;
        match effect {
            Effect::Answer(completion, result) => completion.complete(result),
            Effect::Orphaned => self.orphaned = true,
            Effect::Finish(mut call) => self.threads.push(thread::spawn(move || {
                let Ok(()) = call.wait(true, None, || Ok::<_, Infallible>(true));
            })),
            Effect::Do(Output::Send { call, op, .. }) => {
                let value = match &*op {
                    Op::Renew { .. } => Value::Array(vec![Value::Int(60_000), Value::Int(7)]),
                    _ => Value::Int(90_000),
                };
                let (_, reply) = wire::decode(&op, value).expect("such a reply");
                let outcome = CallOutcome::Answered(reply);
                self.sent.push(Input::Outcome { call, outcome });
            }
            Effect::Do(Output::Subscribe(name, _)) => self.inputs.push(Input::Subscribed(name)),
            Effect::Do(Output::Lost(cell, reason)) => {
                wake_now(&shared.tasks);
                cell.tell(reason);
            }
            Effect::Do(Output::Event(event)) => {
                wake_now(&shared.tasks);
                shared.tell(event);
            }
            Effect::Do(Output::Stop) => self.stopped = true,
            Effect::Do(_) => {}
        }
    }
}

fn connection(generation: u64) -> (InlineConnection, crate::sys::ServerEnd) {
    let socket = BlockingSocket::default();
    let server = socket.server();
    let clock = ServerClock::new(60_000, clock::now());
    (InlineConnection::new(socket, clock, generation), server)
}

fn client() -> Client {
    Client::builder("redis://localhost")
        .option("handover_time", OptionValue::Text("1h"))
        .build()
        .expect("no I/O")
}

/// Waits for an operation: thread 0 as an executor does, others as a blocked caller does.
fn wait<T>(thread: u32, operation: Operation<T>) -> Result<T> {
    if thread > 0 {
        return operation.wait();
    }
    let (mut operation, waker) = (pin!(operation), unpark());
    loop {
        match operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}

fn acquire(client: &Client, name: &str) -> Operation<Guard> {
    client.lock(name).expect("a name").acquire()
}

/// Does `work` on so many threads.
fn on_threads<T: Send + 'static>(
    threads: u32,
    work: impl Fn(u32) -> T + Clone + Send + 'static,
) -> Vec<JoinHandle<T>> {
    let start = |number| {
        let work = work.clone();
        thread::spawn(move || work(number))
    };
    (0..threads).map(start).collect()
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    let join = |thread: JoinHandle<T>| thread.join().expect("no panic");
    threads.into_iter().map(join).collect()
}

#[test]
fn every_caller_is_answered() {
    explore(|| {
        let client = client();
        let of_threads = client.clone();
        let work = move |thread: u32| {
            let acquiring = acquire(&of_threads, &thread.to_string());
            let guard = wait(thread, acquiring).expect("granted");
            wait(thread, guard.release()).expect("released");
        };
        join(on_threads(3, work));
        client.close().wait().expect("closed");
    });
}

/// The last handle is dropped while the last holder may still release.
#[test]
fn a_lock_goes_from_one_holder_to_the_next() {
    explore(|| {
        let (client, holders) = (client(), Arc::new(AtomicU32::new(0)));
        let work = move |thread| {
            let guard = wait(thread, acquire(&client, "one")).expect("granted");
            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
            holders.fetch_sub(1, Ordering::SeqCst);
            match thread {
                1 => drop(guard),
                _ => wait(thread, guard.release()).expect("released"),
            }
        };
        join(on_threads(3, work));
    });
}

#[test]
fn closing_answers_all_who_wait() {
    explore(|| {
        let client = client();
        let of_threads = client.clone();
        let work = move |thread| match wait(thread, acquire(&of_threads, "one")) {
            Ok(guard) => drop(guard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
        };
        let callers = on_threads(2, work);
        client.close().wait().expect("closed");
        join(callers);
        let late = acquire(&client, "one").wait().expect_err("closed");
        assert_eq!(late.kind(), ErrorKind::Closed);
    });
}

#[test]
fn the_end_of_the_io_thread_answers_all_who_wait() {
    BREAKS.set(true);
    explore(|| {
        let client = client();
        let work = move |thread| {
            for name in ["one", "two"] {
                if let Err(error) = wait(thread, acquire(&client, name)) {
                    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
                }
            }
        };
        join(on_threads(3, work));
    });
}

#[test]
fn an_acquisition_that_is_given_up_leaves_nothing() {
    explore(|| {
        let client = client();
        let of_threads = client.clone();
        let work = move |thread| {
            let acquiring = acquire(&of_threads, "one");
            if thread == 0 {
                // It is dropped while the answer may be on its way.
                let _ = pin!(acquiring).poll(&mut Context::from_waker(&unpark()));
            } else {
                drop(wait(thread, acquiring).expect("granted"));
            }
        };
        join(on_threads(2, work));
        drop(acquire(&client, "one").wait().expect("it is free"));
    });
}

#[test]
fn an_answer_comes_through_the_queue_or_was_cancelled() {
    explore(|| {
        let (client, me) = (client(), thread::current());
        let queue = CompletionQueue::<u32>::with_notify(move || me.unpark());
        let deliver = |name| acquire(&client, name).deliver_to(&queue, 0);
        let tickets = ["one", "two"].map(deliver);
        let (canceller, cancelled) = (queue.clone(), Arc::new(AtomicU32::new(0)));
        let counted = cancelled.clone();
        let cancelling = thread::spawn(move || {
            if canceller.cancel(tickets[0]) == Cancelled::Yes {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            canceller.wake();
        });
        let mut answers = 0;
        while answers + cancelled.load(Ordering::SeqCst) < 2 {
            let mut some = false;
            for entry in queue.serve() {
                assert!(matches!(entry.outcome, Outcome::Granted(_)), "{entry:?}");
                answers += 1;
                some = true;
            }
            if !some {
                thread::park();
            }
        }
        cancelling.join().expect("no panic");
        assert_eq!(answers + cancelled.load(Ordering::SeqCst), 2);
        assert!(queue.is_idle());
        drop(acquire(&client, "one").wait().expect("it is free"));
    });
}

/// Its server never answers: only the I/O thread ends the waits.
#[test]
fn the_inline_connection_has_one_user_and_is_never_an_old_one() {
    explore(|| {
        let slot = Arc::new(InlineSlot::new(true));
        let (connection, _server) = connection(0);
        assert!(slot.made(connection));
        slot.open();
        let (users, renewed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let (of_threads, at_least) = (slot.clone(), renewed.clone());
        let work = move |thread| {
            for _ in 0..2 {
                let least = at_least.load(Ordering::SeqCst);
                let Some(mut connection) = of_threads.take(clock::now()) else {
                    continue;
                };
                assert_eq!(users.fetch_add(1, Ordering::SeqCst), 0);
                assert!(connection.generation >= least, "it is an old one");
                users.fetch_sub(1, Ordering::SeqCst);
                if thread == 0 {
                    // It was offered no call.
                    of_threads.give(connection);
                    continue;
                }
                let op = Arc::new(Op::Read { name: "n".into() });
                let call = OutgoingCall::of(1, op, Duration::from_secs(1));
                connection.load = Some(Payload::Single(call));
                if connection.call("uuid", 0) {
                    assert!(connection.receive(None).is_err(), "there is no answer");
                }
                of_threads.lose(*connection);
            }
        };
        let callers = on_threads(2, work.clone());
        slot.renew(1);
        renewed.store(1, Ordering::SeqCst);
        join(callers);
        let (connection, _server) = self::connection(1);
        assert!(slot.made(connection), "there is none");
        slot.open();
        let callers = on_threads(2, work);
        slot.end();
        join(callers);
        assert!(slot.take(clock::now()).is_none());
    });
}
