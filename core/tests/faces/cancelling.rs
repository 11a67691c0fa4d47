//! Blocking waits that another thread ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::{Canceller, ErrorKind, Guard, Lock, Result};

use super::{LIMIT, Random, World, eventually, soon};

/// Waits for the lock on a thread of its own.
fn waiting(lock: Lock, canceller: &Canceller) -> thread::JoinHandle<Result<Guard>> {
    let canceller = canceller.clone();
    thread::spawn(move || lock.acquire().wait_cancellable(&canceller))
}

#[tokio::test]
async fn a_canceller_ends_every_wait_that_uses_it_and_leaves_nothing() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    let canceller = Canceller::new().unwrap();
    let threads: Vec<_> = (0..8)
        .map(|_| waiting(world.lock("n"), &canceller))
        .collect();
    eventually("all wait", || world.client.stats().waiting == 8).await;
    assert!(!canceller.is_cancelled());
    canceller.cancel();
    for thread in threads {
        eventually("the wait ends", || thread.is_finished()).await;
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.lock_name()),
            (ErrorKind::Cancelled, Some("n")),
            "{error}"
        );
    }
    assert_eq!(world.client.stats().waiting, 0);
    assert_eq!(world.client.stats().cancelled, 8);
    guard.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn a_wait_with_a_cancelled_canceller_sends_nothing() {
    let world = World::new().await;
    let canceller = Canceller::new().unwrap();
    canceller.cancel();
    canceller.cancel();
    let calls = world.client.stats().calls;
    let error = waiting(world.lock("n"), &canceller)
        .join()
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!(
        (world.client.stats().calls, canceller.is_cancelled()),
        (calls, true)
    );
}

#[tokio::test]
async fn a_wait_that_is_not_cancelled_has_its_answer() {
    let world = World::new().await;
    let canceller = Canceller::new().unwrap();
    let guard = world.lock("n").acquire().await.unwrap();
    let waiter = waiting(world.lock("n"), &canceller);
    eventually("it waits", || world.client.stats().waiting == 1).await;
    guard.release().await.unwrap();
    eventually("it has the lock", || waiter.is_finished()).await;
    let guard = waiter.join().unwrap().unwrap();
    thread::spawn(move || guard.release().wait_cancellable(&canceller))
        .join()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_wait_for_a_server_that_says_nothing_can_be_cancelled() {
    let mut world = World::new().await;
    // Enough pairs for a direct connection, on which a thread waits in another place.
    let lock = world.lock("n");
    let warm = lock.clone();
    let pairs =
        move || (0..50).for_each(|_| warm.acquire().wait().unwrap().release().wait().unwrap());
    thread::spawn(pairs).join().unwrap();
    let server = Pid::from_raw(i32::try_from(world.server.pid()).unwrap());
    kill(server, Signal::SIGSTOP).unwrap();
    let canceller = Canceller::new().unwrap();
    let waiter = waiting(lock, &canceller);
    eventually("it waits", || world.client.stats().waiting == 1).await;
    canceller.cancel();
    eventually("the wait ends", || waiter.is_finished()).await;
    assert_eq!(
        waiter.join().unwrap().unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    kill(server, Signal::SIGCONT).unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn closing_a_client_can_be_cancelled_and_goes_on() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    world.command::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let (client, canceller) = (world.client.clone(), Canceller::new().unwrap());
    let closing = thread::spawn({
        let canceller = canceller.clone();
        move || client.close_within(LIMIT * 10).wait_cancellable(&canceller)
    });
    eventually("it closes", || !guard.is_held()).await;
    canceller.cancel();
    eventually("the wait ends", || closing.is_finished()).await;
    assert_eq!(
        closing.join().unwrap().unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    world.command::<()>(&["CLIENT", "UNPAUSE"]);
    eventually("the lock is released", || {
        world.command::<u64>(&["DBSIZE"]) == 0
    })
    .await;
}

/// A cancelled call leaves nothing, and a granted one counts exactly once, wherever the two
/// meet.
#[tokio::test]
async fn waits_that_are_cancelled_at_random_leave_nothing_and_exclude_each_other() {
    const THREADS: u64 = 4;
    const EACH: u32 = 250;
    let mut world = World::new().await;
    let other = world.another().await;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let (inside, granted, cancelled) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = if number % 2 == 0 {
                &world.client
            } else {
                &other
            };
            let (inside, granted, cancelled) = (&inside, &granted, &cancelled);
            scope.spawn(move || {
                let (lock, mut random) =
                    (client.lock("n").unwrap(), Random(seed * THREADS + number));
                for _ in 0..EACH {
                    let canceller = Canceller::new().unwrap();
                    let pause = random.below(3000);
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            (0..pause * 20).for_each(|_| std::hint::spin_loop());
                            canceller.cancel();
                        });
                        match lock.acquire().wait_cancellable(&canceller) {
                            Ok(guard) => {
                                assert_eq!(
                                    inside.fetch_add(1, Ordering::SeqCst),
                                    0,
                                    "two are inside"
                                );
                                assert_eq!(guard.hold_count(), 1);
                                inside.fetch_sub(1, Ordering::SeqCst);
                                guard.release().wait().unwrap();
                                granted.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                                cancelled.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                    });
                }
            });
        }
    });
    let (granted, cancelled) = (granted.into_inner(), cancelled.into_inner());
    println!("{granted} granted, {cancelled} cancelled");
    assert_eq!(u64::from(granted + cancelled), THREADS * u64::from(EACH));
    eventually("nothing is left", || {
        world.is_clean() && other.stats().holds == 0
    })
    .await;
    drop(soon("the lock", world.lock("n").acquire()).await.unwrap());
}
