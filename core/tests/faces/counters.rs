//! Plain semaphores and count-down latches.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::embed::{Cancelled, ClientExt, OperationExt};
use redlatch::embed::{CompletionQueue, CountDownLatchExt, Outcome, PlainSemaphoreExt};
use redlatch::{Canceller, Client, ClientOptions, CountDownLatch, ErrorKind, PlainSemaphore};

use super::{World, eventually, ms, soon};

impl World {
    fn seats(&self) -> PlainSemaphore {
        self.client.plain_semaphore("seats").unwrap()
    }

    fn ready(&self) -> CountDownLatch {
        self.client.latch("ready").unwrap()
    }

    fn number(&mut self) -> Option<i64> {
        self.command(&["GET", "seats"])
    }

    async fn waiting(&self, callers: u64) {
        eventually("they wait", || self.client.stats().waiting == callers).await;
    }
}

/// A client whose waiters are woken by messages and invalidations or not at all.
async fn without_recheck(world: &World) -> Client {
    let options = ClientOptions::new().recheck(Duration::from_secs(3600));
    let client = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    client
}

#[tokio::test]
async fn a_semaphore_counts_its_permits() {
    let mut world = World::new().await;
    let seats = world.seats();
    assert_eq!(
        (seats.name(), seats.available().await.unwrap()),
        ("seats", 0)
    );
    assert!(seats.try_acquire().await.unwrap().is_none());
    assert!(seats.try_set_permits(5).await.unwrap());
    assert!(!seats.try_set_permits(9).await.unwrap());
    let two = seats.acquire_many(2).await.unwrap();
    assert_eq!((two.permits(), two.name()), (2, "seats"));
    assert!(seats.try_acquire_many(4).await.unwrap().is_none());
    let three = seats.try_acquire_many(3).await.unwrap().expect("three");
    assert_eq!(world.number(), Some(0));
    two.release().await.unwrap();
    assert_eq!(world.number(), Some(2));
    drop(three);
    eventually("all are back", || world.number() == Some(5)).await;
    assert_eq!(seats.add_permits(-7).await.unwrap(), -2);
    assert_eq!(seats.drain().await.unwrap(), -2);
    assert_eq!(seats.add_permits(4).await.unwrap(), 4);
    assert_eq!(seats.drain().await.unwrap(), 4);
    assert_eq!(seats.available().await.unwrap(), 0);
    seats.release(3).await.unwrap();
    seats.acquire_many(3).await.unwrap().forget();
    assert_eq!(world.number(), Some(0));
}

#[tokio::test]
async fn callers_of_many_clients_share_permits() {
    let mut world = World::new().await;
    world.seats().try_set_permits(5).await.unwrap();
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for at in 0..12 {
        let client = without_recheck(&world).await;
        let (seats, inside) = (client.plain_semaphore("seats").unwrap(), inside.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let permits = 1 + (at + round) % 3;
                let permit = seats.acquire_many(permits as usize).await.unwrap();
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                assert!(now <= 5, "{now} permits are out");
                tokio::task::yield_now().await;
                inside.fetch_sub(permits, Ordering::SeqCst);
                permit.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon("all rounds", task).await.unwrap();
    }
    assert_eq!(world.number(), Some(5));
}

#[tokio::test]
async fn waiters_of_a_client_come_in_their_order() {
    let mut world = World::new().await;
    let seats = world.seats();
    let first = tokio::spawn(seats.acquire_many(3));
    world.waiting(1).await;
    let second = tokio::spawn(seats.acquire());
    world.waiting(2).await;
    // Another waits, and this one would fit.
    assert!(seats.try_acquire().await.unwrap().is_none());
    let _: i64 = world.command(&["INCRBY", "seats", "2"]);
    let _: i64 = world.command(&["PUBLISH", "redisson_sc:{seats}", "2"]);
    seats.release(1).await.unwrap();
    let first = soon("the first", first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    first.release().await.unwrap();
    drop(soon("the second", second).await.unwrap().unwrap());
    eventually("all are back", || world.number() == Some(3)).await;
}

#[tokio::test]
async fn a_wait_ends_by_time_by_cancelling_or_by_closing() {
    let mut world = World::new().await;
    let seats = world.seats();
    let error = seats.acquire_timeout(ms(50)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Timeout, Some("seats"))
    );
    assert!(
        error
            .to_string()
            .starts_with("timeout: semaphore \"seats\": ")
    );
    let error = world.ready().wait_within(Some(Duration::ZERO)).await;
    assert!(error.is_ok(), "a latch without a count is open");

    let canceller = Canceller::new().unwrap();
    let (waiter, cancels) = (seats.clone(), canceller.clone());
    let blocked = thread::spawn(move || waiter.acquire().wait_cancellable(&cancels));
    world.waiting(1).await;
    canceller.cancel();
    eventually("it is cancelled", || blocked.is_finished()).await;
    let error = blocked.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let dropped = tokio::spawn(seats.acquire());
    world.waiting(1).await;
    dropped.abort();
    world.waiting(0).await;

    let waiter = tokio::spawn(seats.acquire());
    world.waiting(1).await;
    world.client.close().await.unwrap();
    let error = soon("it is told", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = seats.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(world.number(), None);
}

/// The server is stopped, takes the permits when it goes on, and nobody wants them any more.
#[tokio::test]
async fn permits_that_a_cancelled_wait_has_won_are_given_back() {
    let mut world = World::without_direct().await;
    let seats = world.seats();
    seats.try_set_permits(3).await.unwrap();
    let server = Pid::from_raw(world.server.pid().cast_signed());
    kill(server, Signal::SIGSTOP).unwrap();
    let calls = world.client.stats().calls;
    let waiter = tokio::spawn(seats.acquire_many(2));
    eventually("it is sent", || world.client.stats().calls > calls).await;
    waiter.abort();
    world.waiting(0).await;
    kill(server, Signal::SIGCONT).unwrap();
    eventually("it is given back", || {
        let events: Option<String> = world.command(&["CONFIG", "RESETSTAT"]);
        events.is_some() && world.number() == Some(3)
    })
    .await;
    assert_eq!(seats.drain().await.unwrap(), 3);
}

#[tokio::test]
async fn closing_gives_back_no_permits_of_callers() {
    let mut world = World::new().await;
    let seats = world.seats();
    seats.try_set_permits(3).await.unwrap();
    let kept = seats.acquire().await.unwrap();
    let dropped = seats.acquire().await.unwrap();
    drop(dropped);
    world.client.close().await.unwrap();
    assert_eq!(world.number(), Some(2));
    drop(kept);
}

/// After each count-down all connections break, and nothing is counted twice or not at all.
#[tokio::test]
async fn lost_replies_neither_lose_nor_double_a_count() {
    const CALLERS: usize = 8;
    const EACH: usize = 40;
    let mut world = World::new().await;
    let latch = world.ready();
    latch.try_set_count(CALLERS * EACH + 1).await.unwrap();
    world.seats().try_set_permits(3).await.unwrap();
    let mut tasks = Vec::new();
    let (counted, mut progress) = tokio::sync::mpsc::unbounded_channel();
    for at in 0..CALLERS {
        let client = if at % 2 == 0 {
            world.client.clone()
        } else {
            world.another().await
        };
        let (latch, seats) = (
            client.latch("ready").unwrap(),
            client.plain_semaphore("seats").unwrap(),
        );
        let counted = counted.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let permit = seats.acquire().await.unwrap();
                latch.count_down(1).await.unwrap();
                let _ = counted.send(());
                permit.release().await.unwrap();
            }
        }));
    }
    drop(counted);
    while progress.recv().await.is_some() {
        let _: i64 = world.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(latch.count().await.unwrap(), 1);
    assert_eq!(world.number(), Some(3));
}

#[tokio::test]
async fn a_latch_opens_for_all_at_zero() {
    let world = World::new().await;
    let latch = world.ready();
    assert!(latch.try_set_count(3).await.unwrap());
    assert!(!latch.try_set_count(5).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 3);
    let other = without_recheck(&world).await;
    let far = other.latch("ready").unwrap();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(tokio::spawn(latch.wait()));
        waiters.push(tokio::spawn(far.wait()));
    }
    world.waiting(3).await;
    eventually("the others wait", || other.stats().waiting == 3).await;
    let error = far.wait_timeout(ms(50)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Timeout, Some("ready"))
    );
    assert!(error.to_string().starts_with("timeout: latch \"ready\": "));
    assert_eq!(latch.count_down(1).await.unwrap(), 2);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(far.count_down(5).await.unwrap(), 0);
    for waiter in waiters {
        soon("it opens", waiter).await.unwrap().unwrap();
    }
    latch.wait().wait().unwrap();
    assert_eq!(far.count_down(1).await.unwrap(), 0);
    assert!(latch.try_set_count(1).await.unwrap());
}

/// Nothing is published when a key is deleted.
#[tokio::test]
async fn a_latch_opens_when_its_key_goes_away() {
    let mut world = World::new().await;
    world.ready().try_set_count(3).await.unwrap();
    let client = without_recheck(&world).await;
    let latch = client.latch("ready").unwrap();
    for end in ["DEL", "UNLINK"] {
        world.ready().try_set_count(3).await.unwrap();
        let waiter = tokio::spawn(latch.wait());
        eventually("it waits", || client.stats().waiting == 1).await;
        eventually("it listens", || {
            let rows: Vec<(String, i64)> = world.command(&[
                "PUBSUB",
                "NUMSUB",
                "redisson_countdownlatch__channel__{ready}",
            ]);
            rows[0].1 == 1
        })
        .await;
        let _: i64 = world.command(&[end, "ready"]);
        soon("it opens", waiter).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn other_data_and_bad_numbers_are_refused() {
    let mut world = World::new().await;
    let guard = world.lock("seats").acquire().await.unwrap();
    let (seats, latch) = (world.seats(), world.client.latch("seats").unwrap());
    for error in [
        seats.acquire().await.unwrap_err(),
        seats.release(1).await.unwrap_err(),
        seats.drain().await.unwrap_err(),
        latch.wait().await.unwrap_err(),
        latch.count_down(1).await.unwrap_err(),
        latch.try_set_count(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ForeignKind, "{error}");
        assert!(error.to_string().contains("use another name"), "{error}");
    }
    assert!(guard.is_held());
    for error in [
        seats.acquire_many(0).await.unwrap_err(),
        seats.acquire_many(1 << 31).await.unwrap_err(),
        seats.add_permits(1 << 31).await.unwrap_err(),
        latch.try_set_count(0).await.unwrap_err(),
        latch.count_down(0).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("2147483647"), "{error}");
    }
    assert!(world.client.latch("").is_err());
    let none: Option<String> = world.command(&["GET", "none"]);
    assert_eq!(none, None);
}

#[tokio::test]
async fn an_event_loop_gets_counters_through_its_queue() {
    let mut world = World::new().await;
    let queue = CompletionQueue::with_fd().unwrap();
    let seats = world.client.plain_semaphore_from_bytes(b"seats").unwrap();
    let latch = world.client.latch_from_bytes(b"ready").unwrap();
    assert!(world.client.latch_from_bytes(b"\xff").is_err());
    let answer = async |what: &str| {
        let mut found = None;
        eventually(what, || {
            found = queue.pop();
            found.is_some()
        })
        .await;
        found.unwrap()
    };
    seats.try_set_permits(2).deliver_to(&queue, 1);
    assert!(matches!(answer("set").await.outcome, Outcome::Set(true)));
    PlainSemaphoreExt::take(&seats, 2, None).deliver_to(&queue, 2);
    let Outcome::Taken(permit) = answer("taken").await.outcome else {
        panic!("not taken");
    };
    permit.forget();
    PlainSemaphoreExt::take(&seats, 1, Some(Duration::ZERO)).deliver_to(&queue, 3);
    let Outcome::Failed(error) = answer("a try in vain").await.outcome else {
        panic!("taken");
    };
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let ticket = PlainSemaphoreExt::take(&seats, 1, None).deliver_to(&queue, 4);
    world.waiting(1).await;
    assert_eq!(queue.cancel(ticket), Cancelled::Yes);
    seats.release(2).deliver_to(&queue, 5);
    assert!(matches!(
        answer("released").await.outcome,
        Outcome::Released
    ));
    seats.available().deliver_to(&queue, 6);
    assert!(matches!(answer("read").await.outcome, Outcome::Number(2)));
    latch.wait_within(None).deliver_to(&queue, 7);
    assert!(matches!(answer("open").await.outcome, Outcome::Open));
    // An answer that is not drained is given back.
    PlainSemaphoreExt::take(&seats, 2, None).deliver_to(&queue, 8);
    eventually("it is taken", || world.number() == Some(0)).await;
    queue.close();
    eventually("it is given back", || world.number() == Some(2)).await;
}
