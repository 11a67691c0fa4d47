//! Calls that callers do themselves: blocked threads, and for a moment event loops and tasks.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::embed::{
    Caller, Cancelled, ClientExt, CompletionQueue, OperationExt, Outcome, Submitted,
};
use redlatch::{Client, ErrorKind, Guard, LostReason, Operation, OptionValue, Result};

use super::support::{Server, direct_connection};
use super::{LIMIT, ms};

/// A client whose blocked threads have a connection of their own, and a connection to look at the
/// data.
struct Direct {
    server: Server,
    client: Client,
    look: redis::Connection,
}

impl Direct {
    fn new() -> Direct {
        Direct::with(|_| {})
    }

    fn with(prepare: impl FnOnce(&mut redis::Connection)) -> Direct {
        let server = Server::start();
        let mut look = server.connect();
        prepare(&mut look);
        let client = Client::connect(&server.url()).wait().expect("connected");
        Direct {
            server,
            client,
            look,
        }
    }

    /// Makes pairs until the server has had a call on the direct connection: that an answer is
    /// there at once says nothing, since on a busy machine the engine's thread may be done before
    /// the caller has looked.
    fn warm(&mut self) {
        let start = Instant::now();
        while !self.direct().is_some_and(|line| line.contains("cmd=eval")) {
            assert!(start.elapsed() < LIMIT, "no direct connection");
            self.pair("warm");
        }
    }

    fn pair(&self, name: &str) {
        let guard = self
            .client
            .lock(name)
            .expect("a name")
            .acquire()
            .wait()
            .expect("granted");
        guard.release().wait().expect("released");
    }

    /// The lock `n` is deleted, of which its holder is told at once: its lease is thirty seconds,
    /// and it is renewed after ten.
    fn delete_as_somebody_else(&mut self, guard: &Guard) {
        let (told, reason) = mpsc::channel();
        guard.on_lost(move |reason| told.send(reason).expect("still here"));
        let start = Instant::now();
        assert_eq!(self.command::<u64>("DEL n"), 1);
        assert_eq!(
            reason.recv_timeout(LIMIT).expect("told"),
            LostReason::Deleted
        );
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "by a renewal, not at once"
        );
    }

    /// Whether something is renewed long before it is due.
    fn is_renewed_soon(&self, before: u64) -> bool {
        let start = Instant::now();
        while self.client.stats().renewed == before {
            if start.elapsed() > Duration::from_secs(3) {
                return false;
            }
            thread::sleep(ms(1));
        }
        true
    }

    /// Waits until what a call may have left behind is gone.
    fn nothing_is_left(&mut self) {
        until("nothing is left", || {
            self.command::<u64>("DBSIZE") == 0 && self.client.stats().waiting == 0
        });
    }

    fn command<T: redis::FromRedisValue>(&mut self, words: &str) -> T {
        let mut command = redis::Cmd::new();
        words.split(' ').for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.look).expect("an answer")
    }

    /// The line of CLIENT LIST for the direct connection.
    fn direct(&mut self) -> Option<String> {
        direct_connection(&self.command::<String>("CLIENT LIST"))
    }

    fn direct_id(&mut self) -> u64 {
        let line = self.direct().expect("a direct connection");
        let id = line
            .strip_prefix("id=")
            .and_then(|rest| rest.split(' ').next());
        id.and_then(|id| id.parse().ok()).expect("an id")
    }
}

/// Waits until the condition holds, which it has to: nothing tells of it.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(ms(1));
    }
}

/// Runs `act` on a thread of its own and returns its result, which has to come.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    result.recv_timeout(LIMIT).expect("in time")
}

/// Copies of a process that a snapshot made part with the first connection that each of them makes.
#[test]
fn owners_are_others_after_the_direct_connection_was_made_anew() {
    let mut world = Direct::new();
    let owner = |world: &Direct| {
        let guard = world
            .client
            .lock("n")
            .expect("a name")
            .acquire()
            .wait()
            .expect("granted");
        let owner = guard.owner();
        guard.release().wait().expect("released");
        owner
            .split_once(':')
            .expect("a uuid and a number")
            .0
            .to_owned()
    };
    world.warm();
    let before = owner(&world);
    let id = world.direct_id();
    assert_eq!(world.command::<u64>(&format!("CLIENT KILL ID {id}")), 1);
    world.warm();
    assert_ne!(owner(&world), before);
    assert_eq!(
        world.client.stats().connects,
        1,
        "the other connection is the same"
    );
    assert!(owner(&world).starts_with(&world.client.id().expect("started")));
}

#[test]
fn one_thread_after_the_other_uses_one_more_connection() {
    let mut world = Direct::new();
    world.warm();
    let before = world.client.stats().connects;
    for _ in 0..50 {
        world.pair("n");
    }
    let line = world.direct().expect("still there");
    assert!(
        line.contains("name=redlatch") && line.contains("cmd=evalsha"),
        "{line}"
    );
    let list: String = world.command("CLIENT LIST");
    assert_eq!(
        list.lines()
            .filter(|line| line.contains("name=redlatch"))
            .count(),
        2,
        "{list}"
    );
    assert_eq!(world.client.stats().connects, before);
}

#[test]
fn it_can_be_turned_off() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).option("direct", OptionValue::Flag(false));
    let client = builder.build().expect("options");
    let mut world = Direct {
        look: server.connect(),
        server,
        client,
    };
    for _ in 0..50 {
        world.pair("n");
    }
    assert_eq!(world.direct(), None);
}

#[test]
fn opening_and_closing_a_client_are_no_calls_that_would_use_it() {
    let server = Server::start();
    let mut look = server.connect();
    let mut connected = || {
        let info: redis::InfoDict = redis::cmd("INFO")
            .arg("stats")
            .query(&mut look)
            .expect("told");
        info.get::<u64>("total_connections_received")
            .expect("a number")
    };
    let before = connected();
    let client = Client::connect(&server.url()).wait().expect("connected");
    let guard = client
        .lock("n")
        .expect("a name")
        .acquire()
        .wait()
        .expect("granted");
    client.close().wait().expect("closed");
    client.join(LIMIT);
    assert_eq!((connected() - before, guard.is_held()), (1, false));
}

#[test]
fn a_loss_after_an_inline_acquire_is_told_at_once() {
    let mut world = Direct::new();
    world.warm();
    let guard = world
        .client
        .lock("n")
        .expect("a name")
        .acquire()
        .wait()
        .expect("granted");
    world.delete_as_somebody_else(&guard);
    assert_eq!(
        guard.release().wait().expect_err("lost").kind(),
        ErrorKind::Lost
    );
}

#[test]
fn a_lock_that_was_acquired_there_is_told_of_though_the_connection_is_gone() {
    let mut world = Direct::new();
    let begun = Instant::now();
    // It is looked at once, soon, and from then on the server tells.
    let guard = loop {
        assert!(begun.elapsed() < LIMIT, "not looked at");
        world.warm();
        while world.direct().is_none() {
            assert!(begun.elapsed() < LIMIT, "no direct connection");
            world.pair("warm");
        }
        let renewed = world.client.stats().renewed;
        let guard = world
            .client
            .lock("n")
            .expect("a name")
            .acquire()
            .wait()
            .expect("granted");
        let id = world.direct_id();
        assert_eq!(world.command::<u64>(&format!("CLIENT KILL ID {id}")), 1);
        if world.is_renewed_soon(renewed) {
            break guard;
        }
        // On a busy machine it may have been acquired the other way: the server tells already, and
        // nobody looks.
        guard.release().wait().expect("released");
    };
    world.delete_as_somebody_else(&guard);
}

#[test]
fn requests_of_one_thread_stay_in_order() {
    let server = Server::start();
    // On both ways, and from one to the other.
    for client in 0..20 {
        let lock = Client::connect(&server.url())
            .wait()
            .expect("connected")
            .lock("n")
            .expect("a name");
        // A script that the server does not know yet is sent twice, and what comes behind it
        // overtakes it.
        lock.acquire()
            .wait()
            .expect("granted")
            .release()
            .wait()
            .expect("released");
        for round in 0..50 {
            let guard = lock.try_acquire().wait().expect("an answer");
            drop(
                guard.unwrap_or_else(|| panic!("{client}, {round}: dropped before, so it is free")),
            );
        }
    }
}

#[test]
fn a_wait_ends_in_time_though_the_server_does_not_answer() {
    /// When a call with the usual lease is late: before that, nothing but the end of the wait ends
    /// it.
    const LATE: Duration = Duration::from_secs(1);
    let mut world = Direct::new();
    let lock = world.client.lock("n").expect("a name");
    // On a busy machine a thread that is woken may not run before that.
    let ends_in_time = (0..5).any(|_| {
        world.warm();
        world.command::<()>("CLIENT PAUSE 3000 ALL");
        let lock = lock.clone();
        let (waited, kind) = soon(move || {
            let start = Instant::now();
            let error = lock
                .acquire_timeout(ms(200))
                .wait()
                .expect_err("nobody answers");
            (start.elapsed(), error.kind())
        });
        assert!(waited >= ms(200), "{waited:?}");
        assert!(
            matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable),
            "{kind:?}"
        );
        waited < LATE
    });
    assert!(ends_in_time);
    // A lock that it may have acquired is given back.
    world.nothing_is_left();
    world.pair("n");
}

#[test]
fn a_call_that_is_late_closes_the_connection() {
    let mut world = Direct::new();
    world.warm();
    let (id, lock) = (world.direct_id(), world.client.lock("n").expect("a name"));
    // Longer than a call may take.
    world.command::<()>("CLIENT PAUSE 2500 ALL");
    let guard = soon(move || lock.acquire().wait()).expect("granted by the other way");
    let kept = world
        .direct()
        .is_some_and(|line| line.starts_with(&format!("id={id} ")));
    assert!(
        !kept,
        "the late answer would be taken for that of the next call"
    );
    guard.release().wait().expect("released");
    world.nothing_is_left();
}

/// Nobody looks himself whether his call is late: the client's thread has to end the wait, also of
/// one who looks for signals.
#[test]
fn a_call_that_is_late_is_given_up_while_the_server_says_nothing() {
    let ways = [Operation::wait, |operation: Operation<Guard>| {
        let Ok(result) = operation.wait_interruptibly(None, || Ok::<(), Infallible>(()));
        result
    }];
    for way in ways {
        let mut world = Direct::new();
        world.warm();
        let lock = world.client.lock("n").expect("a name");
        world.command::<()>("CLIENT PAUSE 60000 ALL");
        let caller =
            thread::spawn(move || way(lock.acquire()).map(drop).map_err(|error| error.kind()));
        until("the call is given up", || {
            world.client.stats().unanswered > 0
        });
        let client = world.client.clone();
        let closed = soon(move || client.close_within(ms(100)).wait());
        // The server may have granted it.
        assert_eq!(closed.expect_err("not released").unreleased(), ["n"]);
        assert_eq!(
            soon(move || caller.join().expect("no panic")),
            Err(ErrorKind::Closed)
        );
        drop(world.server);
    }
}

#[test]
fn a_check_that_fails_ends_the_wait_and_leaves_nothing() {
    let mut world = Direct::new();
    world.warm();
    let start = Instant::now();
    // On a busy machine the engine's thread may have something to send just then, and makes the
    // call itself.
    loop {
        let (id, lock) = (world.direct_id(), world.client.lock("n").expect("a name"));
        world.command::<()>("CLIENT PAUSE 2000 ALL");
        let stopped = soon(move || {
            lock.acquire()
                .wait_interruptibly(None, || Err::<(), &str>("stop"))
                .err()
        });
        assert_eq!(stopped, Some("stop"));
        let kept = world
            .direct()
            .is_some_and(|line| line.starts_with(&format!("id={id} ")));
        world.nothing_is_left();
        world.pair("n");
        if !kept {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "the late answer would be taken for that of the next call"
        );
        world.warm();
    }
}

#[test]
fn a_brief_wait_has_the_answer_or_leaves_it_to_the_wait_that_follows() {
    let mut world = Direct::new();
    world.warm();
    let lock = world.client.lock("n").expect("a name");
    world.command::<()>("CLIENT PAUSE 300 ALL");
    let mut operation = lock.acquire();
    assert!(!operation.wait_briefly(Caller::with_patience(ms(1))));
    operation
        .wait()
        .expect("granted once the server goes on")
        .release()
        .wait()
        .expect("released");
}

/// The outcome of the next entry in the queue.
fn entry(queue: &CompletionQueue) -> Outcome {
    let start = Instant::now();
    loop {
        if let Some(entry) = queue.pop() {
            return entry.outcome;
        }
        assert!(start.elapsed() < LIMIT, "nothing comes");
        thread::sleep(ms(1));
    }
}

#[test]
fn an_event_loop_has_answers_at_once_and_its_turn_now_and_then() {
    let mut world = Direct::new();
    world.warm();
    let (queue, lock) = (
        CompletionQueue::with_fd().expect("a queue"),
        world.client.lock("n").expect("a name"),
    );
    let (start, mut in_a_row, mut turns) = (Instant::now(), 0, 0);
    let mut first = start;
    // On a busy machine a turn may also come from an answer that is late.
    while turns < 5 {
        assert!(start.elapsed() < LIMIT, "{turns} turns of others");
        let asked = Instant::now();
        let outcome = match lock
            .acquire()
            .deliver_soon(&queue, Caller::with_patience(LIMIT), |_| 1)
        {
            Submitted::Ready(outcome) => {
                if in_a_row == 0 {
                    first = Instant::now();
                }
                in_a_row += 1;
                outcome
            }
            Submitted::Queued(_) => {
                turns += u32::from(in_a_row > 0);
                in_a_row = 0;
                entry(&queue)
            }
        };
        // The row began before `first`, so a quick machine may have many answers within its
        // millisecond. The engine counts whole microseconds.
        let lasts = asked.saturating_duration_since(first);
        assert!(
            in_a_row <= 16 || lasts <= Duration::from_micros(1001),
            "the loop serves nobody else for {lasts:?}"
        );
        let Outcome::Granted(guard) = outcome else {
            panic!("{outcome:?}")
        };
        guard.release().wait().expect("released");
    }
}

#[test]
fn an_event_loop_does_not_wait_while_others_use_the_client() {
    let mut world = Direct::new();
    world.warm();
    let held = ["a", "b"].map(|name| {
        world
            .client
            .lock(name)
            .expect("a name")
            .acquire()
            .wait()
            .expect("granted")
    });
    let (queue, lock) = (
        CompletionQueue::with_fd().expect("a queue"),
        world.client.lock("n").expect("a name"),
    );
    assert!(matches!(
        lock.acquire()
            .deliver_soon(&queue, Caller::with_patience(LIMIT), |_| 1),
        Submitted::Queued(_)
    ));
    assert!(matches!(entry(&queue), Outcome::Granted(_)));
    drop(held);
}

#[test]
fn an_event_loop_leaves_a_call_that_takes_long_to_others() {
    let mut world = Direct::new();
    world.warm();
    let (queue, lock) = (
        CompletionQueue::with_fd().expect("a queue"),
        world.client.lock("n").expect("a name"),
    );
    world.command::<()>("CLIENT PAUSE 300 ALL");
    let kept = lock
        .acquire()
        .deliver_soon(&queue, Caller::with_patience(ms(1)), |_| 1);
    let cancelled = lock
        .acquire()
        .deliver_soon(&queue, Caller::with_patience(ms(1)), |_| 2);
    let (Submitted::Queued(_kept), Submitted::Queued(cancelled)) = (kept, cancelled) else {
        panic!("nobody can have answered")
    };
    assert_eq!(queue.cancel(cancelled), Cancelled::Yes);
    let Outcome::Granted(guard) = entry(&queue) else {
        panic!("the first one is granted")
    };
    guard.release().wait().expect("released");
    assert_eq!(world.command::<u64>("DBSIZE"), 0);
    assert!(queue.pop().is_none());
}

/// Polls once, as an executor does it first.
fn poll<T>(operation: &mut Operation<T>) -> Poll<Result<T>> {
    Pin::new(operation).poll(&mut Context::from_waker(Waker::noop()))
}

/// The tasks that an executor polls again, once for each time.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Nobody may care any more.
        let _ = self.0.send(());
    }
}

/// Runs an operation as an executor does, which polls it again when it is woken and not before: its
/// result, and whether that was there at once.
fn run<T>(mut operation: Operation<T>) -> (Result<T>, bool) {
    let (woken, is_woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(woken)));
    let mut at_once = true;
    loop {
        if let Poll::Ready(result) = Pin::new(&mut operation).poll(&mut Context::from_waker(&waker))
        {
            return (result, at_once);
        }
        at_once = false;
        is_woken.recv_timeout(LIMIT).expect("it is woken");
    }
}

#[test]
fn a_task_that_is_alone_has_answers_at_once_and_lets_others_run_now_and_then() {
    let mut world = Direct::new();
    world.warm();
    let lock = world.client.lock("n").expect("a name");
    let (start, mut seen_at_once, mut turns) = (Instant::now(), false, 0);
    // On a busy machine a turn may also come from an answer that is late.
    while turns < 5 {
        assert!(start.elapsed() < LIMIT, "{turns} turns of others");
        let (granted, at_once) = run(lock.acquire());
        turns += u32::from(!at_once && seen_at_once);
        seen_at_once |= at_once;
        granted
            .expect("granted")
            .release()
            .wait()
            .expect("released");
    }
    assert_eq!(world.command::<u64>("DBSIZE"), 0);
}

#[test]
fn a_task_does_not_wait_while_others_use_the_client() {
    let mut world = Direct::new();
    world.warm();
    let _held = ["a", "b"].map(|name| {
        world
            .client
            .lock(name)
            .expect("a name")
            .acquire()
            .wait()
            .expect("granted")
    });
    let mut operation = world.client.lock("n").expect("a name").acquire();
    assert!(poll(&mut operation).is_pending());
    operation
        .wait()
        .expect("granted")
        .release()
        .wait()
        .expect("released");
}

#[test]
fn a_task_does_not_wait_for_a_server_that_is_slow_and_may_leave() {
    let mut world = Direct::new();
    world.warm();
    let lock = world.client.lock("n").expect("a name");
    world.command::<()>("CLIENT PAUSE 500 ALL");
    let (mut kept, mut left) = (lock.acquire(), lock.acquire());
    assert!(poll(&mut kept).is_pending() && poll(&mut left).is_pending());
    drop(left);
    kept.wait()
        .expect("granted")
        .release()
        .wait()
        .expect("released");
    world.nothing_is_left();
}

#[test]
fn closing_ends_a_call_that_a_thread_does_itself() {
    let mut world = Direct::new();
    world.warm();
    let lock = world.client.lock("n").expect("a name");
    world.command::<()>("CLIENT PAUSE 60000 ALL");
    let caller = thread::spawn(move || {
        lock.acquire()
            .wait()
            .map(drop)
            .map_err(|error| error.kind())
    });
    while world.client.stats().waiting == 0 {
        thread::yield_now();
    }
    let client = world.client.clone();
    let closed = soon(move || client.close_within(ms(100)).wait());
    // Once it is sent, the server may have granted it.
    if let Err(error) = closed {
        assert_eq!(error.unreleased(), ["n"]);
    }
    assert_eq!(
        soon(move || caller.join().expect("no panic")),
        Err(ErrorKind::Closed)
    );
    assert_eq!(
        world
            .client
            .lock("m")
            .expect("a name")
            .acquire()
            .wait()
            .expect_err("closed")
            .kind(),
        ErrorKind::Closed
    );
    drop(world.server);
}

#[test]
fn threads_that_come_together_exclude_each_other() {
    let mut world = Direct::new();
    world.warm();
    let inside = std::sync::atomic::AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lock = world.client.lock("n").expect("a name");
                for _ in 0..100 {
                    let guard = lock.acquire().wait().expect("granted");
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().wait().expect("released");
                }
            });
        }
    });
    assert_eq!(world.command::<u64>("DBSIZE"), 0);
}

#[test]
fn a_server_that_refuses_it_is_served_the_other_way_and_seldom_asked_again() {
    // The connection that looks and the one for commands are as many as it wants.
    let few = |look: &mut redis::Connection| {
        let start = Instant::now();
        // The program that started the server has looked at it.
        while redis::cmd("CLIENT")
            .arg("LIST")
            .query::<String>(look)
            .expect("listed")
            .lines()
            .count()
            > 1
        {
            assert!(start.elapsed() < LIMIT, "it stays connected");
        }
        redis::cmd("CONFIG")
            .arg(&["SET", "maxclients", "2"])
            .query::<()>(look)
            .expect("set");
    };
    let mut world = Direct::with(few);
    let refused = |world: &mut Direct| {
        let stats: String = world.command("INFO stats");
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("rejected_connections:"));
        count
            .and_then(|count| count.parse::<u32>().ok())
            .expect("a number")
    };
    let start = Instant::now();
    while refused(&mut world) == 0 {
        assert!(start.elapsed() < LIMIT, "it is not asked for");
        world.pair("n");
    }
    // Every call would have used it. One that was lost would be made anew within a second.
    let start = Instant::now();
    while start.elapsed() < ms(2500) {
        world.pair("n");
    }
    let stats = world.client.stats();
    assert_eq!(
        (refused(&mut world), stats.unanswered, stats.connects),
        (1, 0, 1)
    );
    assert_eq!(world.direct(), None);
}

#[test]
fn a_lock_that_is_held_for_a_moment_only_is_not_looked_at() {
    let mut world = Direct::new();
    world.warm();
    let before = world.client.stats().calls;
    let start = Instant::now();
    for _ in 0..200 {
        world.pair("n");
    }
    let looks = world.client.stats().calls - before - 400;
    // On a machine that stands still for so long now and then, a hold may get old.
    assert!(
        u128::from(looks) <= start.elapsed().as_millis() / 10,
        "{looks} looks"
    );
}

#[test]
fn a_lock_that_the_server_watches_is_entered_again_without_a_word_to_us() {
    let mut world = Direct::new();
    world.warm();
    let lock = world.client.lock("n").expect("a name");
    let guard = lock.acquire().wait().expect("granted");
    until("it is renewed", || world.client.stats().renewed > 0);
    let calls = world.client.stats().calls;
    for _ in 0..5 {
        guard
            .reenter()
            .wait()
            .expect("entered")
            .release()
            .wait()
            .expect("released");
    }
    thread::sleep(ms(30));
    assert_eq!(
        world.client.stats().calls - calls,
        10,
        "what we change ourselves is no news"
    );
    guard.release().wait().expect("released");
    assert_eq!(world.command::<u64>("DBSIZE"), 0);
}

#[test]
fn a_guard_that_goes_with_the_watcher_of_another_one_is_released() {
    let mut world = Direct::new();
    world.warm();
    let [first, other] = ["n", "m"].map(|name| world.client.lock(name).expect("a name"));
    let (held, kept) = (
        first.acquire().wait().expect("granted"),
        other.acquire().wait().expect("granted"),
    );
    held.on_lost(move |_| drop(kept));
    // Somebody waits for another lock: who gives one back looks for waiters.
    let busy = world.client.lock("x").expect("a name");
    let guard = busy.acquire().wait().expect("granted");
    let waiter = thread::spawn({
        let busy = busy.clone();
        move || busy.acquire().wait().map(drop)
    });
    until("somebody waits", || world.client.stats().waiting == 1);
    soon(move || held.release().wait()).expect("released");
    soon(move || other.acquire().wait().map(drop)).expect("free again");
    soon(move || guard.release().wait()).expect("released");
    soon(move || waiter.join())
        .expect("joined")
        .expect("granted");
}
