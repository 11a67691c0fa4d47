//! Both sides of a read-write lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use redlatch::{
    AcquireOptions, Client, ClientOptions, ErrorKind, Guard, LockOptions, ReentryKey, RwLock,
};

use super::{World, eventually, ms, refusal, soon};

const TASK: ReentryKey = ReentryKey::Explicit(7);

fn by(key: ReentryKey) -> AcquireOptions {
    AcquireOptions::new().key(key)
}

impl World {
    fn rw_lock(&self, name: &str) -> RwLock {
        self.client.rw_lock(name).unwrap()
    }
}

/// A client whose waiters are woken by messages or not at all.
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
async fn a_writer_is_alone_and_readers_are_together() {
    let mut world = World::new().await;
    let inside = Arc::new(AtomicI32::new(0));
    let mut tasks = Vec::new();
    for at in 0..16 {
        let client = world.another().await;
        let (lock, inside) = (client.rw_lock("n").unwrap(), inside.clone());
        tasks.push(tokio::spawn(async move {
            let mut together = 0;
            for round in 0..20 {
                if (at + round) % 4 == 0 {
                    let guard = lock.write().acquire().await.unwrap();
                    assert_eq!(inside.fetch_sub(1000, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_add(1000, Ordering::SeqCst);
                    guard.release().await.unwrap();
                } else {
                    let guard = lock.read().acquire().await.unwrap();
                    let before = inside.fetch_add(1, Ordering::SeqCst);
                    assert!(before >= 0, "a writer is inside");
                    together = together.max(before);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        soon("all rounds", task).await.unwrap();
    }
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn a_release_wakes_those_that_it_lets_in() {
    let mut world = World::new().await;
    let (here, there) = (without_recheck(&world).await, without_recheck(&world).await);
    let (lock, other) = (here.rw_lock("n").unwrap(), there.rw_lock("n").unwrap());
    let writer = lock.write().acquire().await.unwrap();
    let readers: Vec<_> = (0..20)
        .map(|_| tokio::spawn(other.read().acquire()))
        .collect();
    eventually("they wait", || there.stats().waiting == 20).await;
    writer.release().await.unwrap();
    let mut guards: Vec<Guard> = Vec::new();
    for reader in readers {
        guards.push(soon("a reader", reader).await.unwrap().unwrap());
    }
    let writer = tokio::spawn(lock.write().acquire());
    eventually("it waits", || here.stats().waiting == 1).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    drop(soon("the writer", writer).await.unwrap().unwrap());
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn readers_behind_a_waiting_writer_let_it_go_first() {
    let world = World::new().await;
    let lock = world.rw_lock("n");
    let first = lock.read().acquire().await.unwrap();
    let writer = tokio::spawn(lock.write().acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;
    let behind = tokio::spawn(lock.read().acquire());
    eventually("both wait", || world.client.stats().waiting == 2).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    first.release().await.unwrap();
    let writer = soon("the writer", writer).await.unwrap().unwrap();
    assert!(!behind.is_finished());
    writer.release().await.unwrap();
    drop(soon("the reader", behind).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_writer_may_read_and_keep_reading() {
    let world = World::new().await;
    let (lock, other) = (
        world.rw_lock("n"),
        world.another().await.rw_lock("n").unwrap(),
    );
    let writer = lock.write().acquire_with(by(TASK)).await.unwrap();
    let reader = soon("no wait for itself", lock.read().acquire_with(by(TASK)))
        .await
        .unwrap();
    assert!(other.read().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    assert!(reader.is_held());
    let beside = other.read().try_acquire().await.unwrap().expect("a reader");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    assert_eq!(lock.read().holders().await.unwrap().len(), 2);
    beside.release().await.unwrap();
    reader.release().await.unwrap();
    assert!(!lock.read().is_locked().await.unwrap());
}

#[tokio::test]
async fn a_read_release_leaves_the_watchdog_of_the_writer() {
    let world = World::new().await;
    let lock = world
        .client
        .rw_lock_with("n", LockOptions::new().watchdog_lease(ms(500)))
        .unwrap();
    let writer = lock.write().acquire_with(by(TASK)).await.unwrap();
    let reader = lock.read().acquire_with(by(TASK)).await.unwrap();
    reader.release().await.unwrap();
    let renewed = world.client.stats().renewed;
    eventually("it is renewed", || {
        world.client.stats().renewed >= renewed + 3
    })
    .await;
    assert!(writer.is_held());
    writer.release().await.unwrap();
}

#[tokio::test]
async fn a_reader_that_asks_to_write_is_told_what_to_do() {
    let world = World::new().await;
    let lock = world.rw_lock("n");
    let reader = lock.read().acquire_with(by(TASK)).await.unwrap();
    for wait in [Some(Duration::ZERO), None] {
        let mut options = by(TASK);
        if let Some(wait) = wait {
            options = options.wait(wait);
        }
        let error = soon("a refusal", lock.write().acquire_with(options))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
        assert!(error.message().contains("release the read lock first"));
    }
    assert!(reader.is_held());
    reader.release().await.unwrap();
    drop(lock.write().acquire_with(by(TASK)).await.unwrap());
}

#[tokio::test]
async fn the_loss_of_one_reader_is_told_to_it_alone() {
    let mut world = World::new().await;
    let lock = world
        .client
        .rw_lock_with("n", LockOptions::new().watchdog_lease(ms(900)))
        .unwrap();
    let lost = lock.read().acquire().await.unwrap();
    let kept = lock.read().acquire().await.unwrap();
    world.command::<i64>(&["HDEL", "n", &lost.owner()]);
    soon("its loss", lost.lost()).await;
    assert!(kept.is_held());
    assert_eq!(refusal(lost.release()).await, ErrorKind::Lost);
    kept.release().await.unwrap();
}

#[tokio::test]
async fn cancelled_readers_leave_nothing() {
    let mut world = World::new().await;
    let other = world.another().await;
    let lock = world.rw_lock("n");
    for round in 0..50_u64 {
        let writer = other.rw_lock("n").unwrap().write().acquire().await.unwrap();
        let readers: Vec<_> = (0..8)
            .map(|_| tokio::spawn(lock.read().acquire()))
            .collect();
        let release = tokio::spawn(writer.release());
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        for reader in &readers {
            reader.abort();
        }
        for reader in readers {
            drop(reader.await);
        }
        release.await.unwrap().unwrap();
    }
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn plain_locks_and_read_write_locks_refuse_each_other() {
    let world = World::new().await;
    let (lock, sides) = (world.lock("n"), world.rw_lock("n"));
    let guard = lock.acquire().await.unwrap();
    for side in [sides.read(), sides.write()] {
        let error = soon("a refusal", side.acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ForeignKind);
        assert!(error.message().contains("read-write lock"), "{error}");
    }
    guard.release().await.unwrap();
    let guard = sides.read().acquire().await.unwrap();
    assert_eq!(refusal(lock.acquire()).await, ErrorKind::ForeignKind);
    guard.release().await.unwrap();
}

/// A lock whose new readers stand back for waiting writers.
fn preferring(client: &Client, most: Duration) -> RwLock {
    let options = LockOptions::new().writer_preference(most);
    client.rw_lock_with("n", options).unwrap()
}

/// Whether a writer has left its mark.
fn marked(world: &mut World) -> bool {
    world.command(&["EXISTS", "{n}:redlatch:writer"])
}

#[tokio::test]
async fn new_readers_stand_back_for_a_writer_of_another_client() {
    let mut world = World::new().await;
    let (here, there) = (without_recheck(&world).await, without_recheck(&world).await);
    let most = Duration::from_secs(60);
    let (lock, other) = (preferring(&here, most), preferring(&there, most));
    let first = lock.read().acquire().await.unwrap();
    let writing = tokio::spawn(other.write().acquire());
    eventually("the writer waits", || marked(&mut world)).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    // Programs without the option read as before.
    let beside = here.rw_lock("n").unwrap().read().try_acquire().await;
    beside.unwrap().expect("a reader").release().await.unwrap();
    let reading = tokio::spawn(lock.read().acquire());
    eventually("the reader waits", || here.stats().waiting == 1).await;
    first.release().await.unwrap();
    let writer = soon("the writer", writing).await.unwrap().unwrap();
    assert!(!marked(&mut world) && !reading.is_finished());
    writer.release().await.unwrap();
    let reader = soon("the reader", reading).await.unwrap().unwrap();

    // A writer that gives up lets them in.
    let writing = tokio::spawn(other.write().acquire());
    eventually("it waits again", || marked(&mut world)).await;
    let reading = tokio::spawn(lock.read().acquire());
    eventually("a reader waits", || here.stats().waiting == 1).await;
    writing.abort();
    let second = soon("the second reader", reading).await.unwrap().unwrap();
    reader.release().await.unwrap();
    second.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn a_reader_stands_back_for_a_bounded_time() {
    let mut world = World::new().await;
    let (here, there) = (world.another().await, world.another().await);
    let lock = preferring(&here, ms(300));
    let first = lock.read().acquire().await.unwrap();
    let writing = tokio::spawn(
        preferring(&there, Duration::from_secs(60))
            .write()
            .acquire(),
    );
    eventually("the writer waits", || marked(&mut world)).await;
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    let reader = soon("the reader", lock.read().acquire()).await.unwrap();
    assert!(!writing.is_finished() && first.is_held());
    reader.release().await.unwrap();
    first.release().await.unwrap();
    let writer = soon("the writer", writing).await.unwrap().unwrap();
    writer.release().await.unwrap();
}
