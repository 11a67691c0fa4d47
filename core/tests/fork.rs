//! A forked child may do one thing with what it inherits: nothing that the parent or Redis could notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use redlatch::embed::{Cancelled, ClientExt, CompletionQueue, OperationExt};
use redlatch::{
    AcquireOptions, Canceller, Client, ErrorKind, Guard, Lock, OptionValue, ReentryKey,
};
use support::Server;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `child` in a forked process; true if it returned true within the limit.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses the memory of other threads only as redlatch promises, allocates by
    // glibc's fork-safe malloc, and leaves without running anybody's exit handlers.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            nix::unistd::alarm::set(u32::try_from(LIMIT.as_secs()).unwrap());
            let passed =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: as above.
            unsafe { nix::libc::_exit(i32::from(!passed)) }
        }
        ForkResult::Parent { child } => {
            matches!(waitpid(child, None).unwrap(), WaitStatus::Exited(_, 0))
        }
    }
}

fn descriptor(queue: &CompletionQueue) -> BorrowedFd<'_> {
    // SAFETY: the queue keeps it open.
    unsafe { BorrowedFd::borrow_raw(queue.fd().unwrap()) }
}

/// The kind of a refusal, told in the child, where a failed assertion would be noise.
fn kind<T>(result: redlatch::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

struct World {
    server: Server,
    client: Client,
    lock: Lock,
}

impl World {
    fn new() -> World {
        let server = Server::start();
        // The parent must send nothing by itself while its commands are counted: with tracking it
        // looks at what its threads have acquired.
        let client = Client::builder(&server.url())
            .option("tracking", OptionValue::Flag(false))
            .build()
            .unwrap();
        client.ready().wait().unwrap();
        let lock = client.lock("n").unwrap();
        World {
            server,
            client,
            lock,
        }
    }

    fn commands_seen(&self) -> u64 {
        let mut look = self.server.connect();
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut look)
            .unwrap();
        let calls = |line: &str| {
            line.split_once("calls=")?
                .1
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        };
        info.lines()
            .filter(|line| line.contains("eval"))
            .filter_map(calls)
            .sum()
    }
}

#[test]
fn a_child_cannot_use_its_parents_client_and_says_so() {
    let world = World::new();
    let guard = world.lock.acquire().wait().unwrap();
    let before = world.commands_seen();
    assert!(in_child(|| {
        let World { client, lock, .. } = &world;
        let forked = Some(ErrorKind::Forked);
        client.is_forked()
            && kind(client.ready().wait()) == forked
            && kind(lock.acquire().wait()) == forked
            && kind(
                lock.acquire()
                    .wait_interruptibly(None, || Ok::<(), ()>(()))
                    .unwrap(),
            ) == forked
            && kind(lock.try_acquire().wait()) == forked
            && kind(lock.holder().wait()) == forked
            && kind(lock.force_release().wait()) == forked
            && kind(client.on_events(|| {})) == forked
            && kind(guard.check()) == forked
            && kind(guard.reenter().wait()) == forked
            && kind(guard.extend(LIMIT).wait()) == forked
            && !guard.is_held()
            && guard.hold_count() == 0
            && client.events().is_empty()
            && client.close().wait().is_ok()
    }));
    assert_eq!(
        world.commands_seen(),
        before,
        "the child has sent something"
    );
    guard.check().unwrap();
    guard.release().wait().unwrap();
    drop(world.lock.acquire().wait().unwrap());
}

#[test]
fn dropping_and_releasing_in_a_child_is_silent_and_harmless() {
    let world = World::new();
    let key = AcquireOptions::new().key(ReentryKey::Explicit(1));
    let [dropped, released, detached] = ["a", "b", "c"].map(|name| {
        world
            .client
            .lock(name)
            .unwrap()
            .acquire_with(key.clone())
            .wait()
            .unwrap()
    });
    let by_key = world.client.lock("c").unwrap();
    detached.detach();
    let waiting = {
        let guard = world.lock.acquire().wait().unwrap();
        let mut waiting = Box::pin(world.client.lock("n").unwrap().acquire());
        let waker = std::task::Waker::noop();
        assert!(
            waiting
                .as_mut()
                .poll(&mut std::task::Context::from_waker(waker))
                .is_pending()
        );
        (guard, waiting)
    };
    let queue = CompletionQueue::with_fd().unwrap();
    let pending = world
        .client
        .lock("n")
        .unwrap()
        .acquire()
        .deliver_to(&queue, 1);
    let before = world.commands_seen();

    let mut inherited = Some((dropped, released, waiting, queue, pending));
    let passed = in_child(|| {
        let (dropped, released, waiting, queue, pending) = inherited.take().unwrap();
        drop(dropped);
        drop(waiting);
        let no_op = released.release().wait().is_ok()
            && by_key.release_by(ReentryKey::Explicit(1)).wait().is_ok();
        let _ = world.client.ready().deliver_to(&queue, 2);
        let silent = queue.cancel(pending) == Cancelled::No && queue.drain().is_empty();
        drop((queue, pending));
        no_op && silent
    });
    assert!(passed);
    assert_eq!(
        world.commands_seen(),
        before,
        "the child has sent something"
    );

    let (dropped, released, (guard, waiting), queue, pending) = inherited.unwrap();
    for guard in [dropped, released] {
        guard.release().wait().unwrap();
    }
    by_key.release_by(ReentryKey::Explicit(1)).wait().unwrap();
    guard.release().wait().unwrap();
    drop(waiting);
    // The answer that the parent waits for still comes to the parent.
    let mut fds = [PollFd::new(descriptor(&queue), PollFlags::POLLIN)];
    assert_eq!(
        nix::poll::poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()),
        Ok(1)
    );
    assert!(matches!(
        queue.drain()[..],
        [redlatch::embed::Completion { tag: 1, .. }]
    ));
    assert_eq!(queue.cancel(pending), Cancelled::No);
}

/// As `in_child`, in the middle of a wait: the handler of a signal may fork, and both go on where
/// they were. `meanwhile` is done by the parent when the child has ended. Returns
/// the result of the parent's wait.
fn forked_while_waiting(lock: &Lock, meanwhile: impl FnOnce()) -> redlatch::Result<Guard> {
    let (mut child, mut meanwhile) = (None, Some(meanwhile));
    let waited = lock.acquire().wait_interruptibly(None, || {
        if child.is_none() {
            // SAFETY: as above.
            let made = unsafe { fork() }.unwrap();
            match made {
                ForkResult::Child => drop(nix::unistd::alarm::set(10)),
                ForkResult::Parent { child } => {
                    let ended = waitpid(child, None).unwrap();
                    assert!(matches!(ended, WaitStatus::Exited(_, 0)), "{ended:?}");
                    meanwhile.take().into_iter().for_each(|act| act());
                }
            }
            child = Some(made);
        }
        Ok::<(), ()>(())
    });
    let waited = waited.unwrap();
    if let Some(ForkResult::Child) = child {
        // SAFETY: as above.
        unsafe { nix::libc::_exit(i32::from(kind(waited) != Some(ErrorKind::Forked))) }
    }
    assert!(child.is_some(), "nothing was waited for");
    waited
}

/// It waited for ever for an answer that only its parent gets, or took its parent's from their
/// connection.
#[test]
fn a_child_that_is_forked_in_the_middle_of_a_wait_is_told_so_and_leaves_the_answer_to_its_parent() {
    let world = World::new();
    let mut held = Some(world.lock.acquire().wait().unwrap());
    let waited = forked_while_waiting(&world.lock, || drop(held.take()));
    waited.unwrap().release().wait().unwrap();
    // The call of a thread that does it itself.
    let mut look = world.server.connect();
    let mut pairs = 0;
    loop {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut look).unwrap();
        if support::direct_connection(&list).is_some() {
            break;
        }
        assert!(pairs < 10_000, "no direct connection");
        pairs += 1;
        world
            .lock
            .acquire()
            .wait()
            .unwrap()
            .release()
            .wait()
            .unwrap();
    }
    redis::cmd("CLIENT")
        .arg(&["PAUSE", "600", "ALL"])
        .exec(&mut look)
        .unwrap();
    let waited = forked_while_waiting(&world.lock, || {});
    waited.unwrap().release().wait().unwrap();
}

#[test]
fn a_child_can_neither_use_nor_cancel_the_canceller_of_its_parent() {
    let world = World::new();
    let guard = world.lock.acquire().wait().unwrap();
    let canceller = Canceller::new().unwrap();
    let url = world.server.url();
    assert!(in_child(|| {
        let own = Client::connect(&url).wait().unwrap();
        let refused = kind(
            own.lock("other")
                .unwrap()
                .acquire()
                .wait_cancellable(&canceller),
        );
        canceller.cancel();
        refused == Some(ErrorKind::Forked)
            && !canceller.is_cancelled()
            && own.close().wait().is_ok()
    }));
    let waiter = std::thread::spawn({
        let (lock, canceller) = (world.lock.clone(), canceller.clone());
        move || lock.acquire().wait_cancellable(&canceller).map(drop)
    });
    drop(guard);
    waiter.join().unwrap().unwrap();
}

#[test]
fn a_child_works_with_a_client_of_its_own() {
    let world = World::new();
    let guard = world.lock.acquire().wait().unwrap();
    let (url, queue) = (world.server.url(), CompletionQueue::with_fd().unwrap());
    assert!(in_child(|| {
        let own = Client::connect(&url).wait().unwrap();
        // Nothing comes into a queue of the parent, whose descriptor it shares.
        let _ = own.ready().deliver_to(&queue, 1);
        let _ = own.lock("third").unwrap().acquire().deliver_to(&queue, 2);
        let busy = own
            .lock("n")
            .unwrap()
            .try_acquire()
            .wait()
            .unwrap()
            .is_none();
        let free = own
            .lock("other")
            .unwrap()
            .acquire()
            .wait_interruptibly(None, || Ok::<(), ()>(()))
            .unwrap();
        busy && free.unwrap().release().wait().is_ok()
            && own.close().wait().is_ok()
            && queue.drain().is_empty()
    }));
    let mut fds = [PollFd::new(descriptor(&queue), PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut fds, PollTimeout::ZERO), Ok(0));
    guard.release().wait().unwrap();
}

#[test]
fn a_client_that_was_never_started_works_in_every_child() {
    let server = Server::start();
    let client = Client::builder(&server.url()).build().unwrap();
    let lock = client.lock("n").unwrap();
    let round = || {
        let guard: Guard = lock.acquire().wait().unwrap();
        let owner = guard.owner();
        guard.release().wait().unwrap();
        owner
    };
    // Three generations, each of which starts it.
    assert!(in_child(|| {
        let grandchild = in_child(|| {
            round();
            true
        });
        grandchild
            && !client.is_forked()
            && !round().is_empty()
            && !in_child(|| lock.acquire().wait().is_ok())
    }));
    assert!(!client.is_forked());
    assert!(round().starts_with(&client.id().unwrap()));
}

/// Counted in a child, whose descriptors nobody else opens or closes.
#[test]
fn a_closed_client_whose_handles_live_on_keeps_no_descriptors() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let server = Server::start();
    assert!(in_child(|| {
        let before = descriptors();
        let rounds: Vec<_> = (0..3)
            .map(|_| {
                let client = Client::connect(&server.url()).wait().unwrap();
                let lock = client.lock("n").unwrap();
                // Twice: the second time the connection for blocked callers may be there.
                lock.acquire().wait().unwrap().release().wait().unwrap();
                let guard = lock.acquire().wait().unwrap();
                let opened = descriptors() > before;
                client.close().wait().unwrap();
                client.join(LIMIT);
                (client, lock, guard, opened)
            })
            .collect();
        rounds.iter().all(|(.., opened)| *opened) && descriptors() == before
    }));
}

#[test]
fn forks_while_others_work_never_hang() {
    let world = World::new();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (lock, stop) = (world.client.lock(&format!("n{}", n % 2)).unwrap(), &stop);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    lock.acquire().wait().unwrap().release().wait().unwrap();
                }
            });
        }
        let start = Instant::now();
        let guard = world.lock.acquire().wait().unwrap();
        let mut rounds = 0;
        while rounds < 50 && start.elapsed() < LIMIT {
            assert!(in_child(|| {
                world.client.is_forked()
                    && kind(world.lock.acquire().wait()) == Some(ErrorKind::Forked)
                    && !guard.is_held()
                    && !world.lock.hold(ReentryKey::Explicit(1)).is_held()
                    && world.client.events().is_empty()
            }));
            rounds += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        guard.release().wait().unwrap();
        assert!(rounds > 5);
    });
}
