//! A holder is told when it can no longer rely on its lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use redlatch::embed::{AcquireOptionsExt, GuardExt};
use redlatch::{AcquireOptions, ErrorKind, Guard, LockOptions, LostReason, ReentryKey};

use super::{LIMIT, World, eventually, ms, refusal, soon};

/// Deletes the key by hand; the holder hears of it long before its next renewal in 10 s.
async fn is_told_of_deletion(world: &mut World, guard: Guard) {
    let lost = tokio::spawn(guard.lost());
    let start = Instant::now();
    assert_eq!(world.command::<u32>(&["DEL", "n"]), 1);
    assert_eq!(soon("the loss", lost).await.unwrap(), LostReason::Deleted);
    assert!(start.elapsed() < ms(9000), "{:?}", start.elapsed());
    assert!(!guard.is_held() && guard.remaining().is_zero());
    let error = guard.check().unwrap_err();
    assert_eq!(
        (error.kind(), error.lost_reason()),
        (ErrorKind::Lost, Some(LostReason::Deleted))
    );
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
}

#[tokio::test]
async fn told_of_a_deletion_after_acquiring() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    is_told_of_deletion(&mut world, guard).await;
}

#[tokio::test]
async fn told_of_a_deletion_after_re_entering() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    is_told_of_deletion(&mut world, inner).await;
    assert_eq!(
        refusal(guard.reenter()).await,
        ErrorKind::Lost,
        "until all levels are unwound"
    );
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
    drop(soon("the lock", world.lock("n").acquire()).await.unwrap());
}

/// The next acquisition by the key failed until what it had left to its lease had been released.
#[tokio::test]
async fn a_fixed_lease_that_was_left_to_run_out_is_acquired_anew() {
    let world = World::new().await;
    let (lock, key) = (world.lock("n"), ReentryKey::Explicit(7));
    let acquire = |lease| lock.acquire_with(AcquireOptions::new().key(key).lease(lease));
    let hold = acquire(ms(200)).await.unwrap().detach();
    eventually("the end of the lease", || !hold.is_held()).await;
    // With a guard it may still be believed to be held.
    let guard = soon("the lock", acquire(ms(200))).await.unwrap();
    eventually("the end of the lease", || !guard.is_held()).await;
    let error = soon("an answer", acquire(ms(200))).await.unwrap_err();
    assert!(
        error.message().contains("has to be released first"),
        "{error}"
    );
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
    soon("the lock", acquire(ms(10_000)))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Its release said `not_owner`, as if somebody had given the level back.
#[tokio::test]
async fn a_guard_that_is_tied_to_its_key_is_told_its_loss_when_the_key_has_acquired_anew() {
    let world = World::new().await;
    let (lock, key) = (world.lock("n"), ReentryKey::Explicit(7));
    let acquire =
        |lease| lock.acquire_with(AcquireOptions::new().key(key).lease(lease).tied_to_key());
    let [mut lost, mut entered] = [
        acquire(ms(200)).await.unwrap(),
        acquire(ms(200)).await.unwrap(),
    ];
    for _ in 0..2 {
        eventually("the end of the lease", || !lost.is_held()).await;
        let held = soon("the lock", acquire(ms(60_000))).await.unwrap();
        assert_eq!(refusal(entered.reenter()).await, ErrorKind::Lost);
        assert_eq!(refusal(lost.extend(ms(60_000))).await, ErrorKind::Lost);
        let error = lost.release().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.lost_reason()),
            (ErrorKind::Lost, Some(LostReason::Expired))
        );
        drop(entered);
        // The new hold has its level, and no more.
        assert!(held.is_held() && held.hold_count() == 1);
        held.release().await.unwrap();
        assert_eq!(refusal(lock.release_by(key)).await, ErrorKind::NotOwner);
        [lost, entered] = [
            acquire(ms(200)).await.unwrap(),
            acquire(ms(200)).await.unwrap(),
        ];
    }
    assert_eq!(
        lock.release_by(key)
            .await
            .map(|()| lock.hold(key).count())
            .unwrap(),
        1
    );
    assert_eq!(
        refusal(entered.release()).await,
        ErrorKind::NotOwner,
        "its key has released the newest level"
    );
    lost.release().await.unwrap();
}

/// A hold of each was kept for as long as the thread lived.
#[tokio::test]
async fn leases_on_ever_new_names_that_were_left_to_run_out_are_forgotten() {
    const NAMES: u64 = 6000;
    let world = World::new().await;
    let key = ReentryKey::Explicit(7);
    let options = || AcquireOptions::new().key(key).lease(ms(100)).tied_to_key();
    let kept = world.lock("kept");
    kept.acquire_with(options()).await.unwrap().detach();
    for number in 1..NAMES {
        world
            .lock(&format!("n{number}"))
            .acquire_with(options())
            .await
            .unwrap()
            .detach();
    }
    eventually("the end of the leases", || {
        world.client.stats().lost == NAMES
    })
    .await;
    assert!(
        world.client.stats().holds < NAMES / 2,
        "{}",
        world.client.stats().holds
    );
    // The owner of the handle is told what it was.
    assert_eq!(kept.hold(key).lost_reason(), Some(LostReason::Expired));
    assert_eq!(refusal(kept.release_by(key)).await, ErrorKind::Lost);
    assert_eq!(
        refusal(world.lock("n5999").release_by(key)).await,
        ErrorKind::Lost
    );
}

#[tokio::test]
async fn told_of_a_deletion_after_a_partial_release() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    guard.reenter().await.unwrap().release().await.unwrap();
    is_told_of_deletion(&mut world, guard).await;
}

#[tokio::test]
async fn told_of_a_deletion_after_a_renewal() {
    let mut world = World::new().await;
    let options = LockOptions::new().watchdog_lease(ms(15_000));
    let guard = world
        .client
        .lock_with("n", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    eventually("a renewal", || world.client.stats().renewed > 0).await;
    is_told_of_deletion(&mut world, guard).await;
}

#[tokio::test]
async fn told_of_a_deletion_after_a_reconnect() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    let (connects, renewed) = (world.client.stats().connects, world.client.stats().renewed);
    world.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("it is back", || {
        world.client.stats().connects > connects && world.client.stats().renewed > renewed
    })
    .await;
    guard.check().unwrap();
    is_told_of_deletion(&mut world, guard).await;
}

#[tokio::test]
async fn told_of_a_flush_and_of_another_owner() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    world.command::<String>(&["FLUSHALL"]);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Deleted);
    drop(guard);

    let guard = soon("the lock", world.lock("n").acquire()).await.unwrap();
    let script = "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], 'other:1', 1)";
    world.command::<u32>(&["EVAL", script, "1", "n"]);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Stolen);
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
    assert_eq!(
        world.command::<u32>(&["HGET", "n", "other:1"]),
        1,
        "the other owner is left alone"
    );
}

#[tokio::test]
async fn a_fixed_lease_ends() {
    let world = World::new().await;
    // The lease counts from when it is asked for.
    let start = Instant::now();
    let guard = world
        .client
        .lock_with("n", LockOptions::new().lease(ms(1000)))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    assert_eq!(soon("the end", guard.lost()).await, LostReason::Expired);
    assert!(start.elapsed() > ms(900), "{:?}", start.elapsed());
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
    drop(
        soon(
            "the lock",
            world.another().await.lock("n").unwrap().acquire(),
        )
        .await
        .unwrap(),
    );
}

#[tokio::test]
async fn a_silent_server_is_told_at_the_deadline() {
    let world = World::new().await;
    let options = LockOptions::new().watchdog_lease(ms(5000));
    let guard = world
        .client
        .lock_with("n", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let deadline = guard.deadline();
    let server = nix::unistd::Pid::from_raw(i32::try_from(world.server.pid()).unwrap());
    nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let reason = soon("the loss", guard.lost()).await;
    let told = Instant::now();
    nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGCONT).unwrap();
    assert_eq!(reason, LostReason::Unreachable);
    // A renewal may have moved the deadline on before the server fell silent.
    assert!(told >= deadline, "{:?} early", deadline - told);
    assert!(!guard.is_held());
}

#[tokio::test]
async fn a_force_release_is_told_to_every_holder() {
    let world = World::new().await;
    let (lock, other) = (world.lock("n"), world.another().await.lock("n").unwrap());
    assert!(!lock.force_release().await.unwrap(), "nothing to delete");

    let guard = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Forced);
    drop(guard);

    let guard = soon("the lock", lock.acquire()).await.unwrap();
    let waiter = tokio::spawn(other.acquire());
    assert!(other.force_release().await.unwrap());
    // The waiter of the other client may have it already.
    let reason = soon("the loss", guard.lost()).await;
    assert!(
        matches!(reason, LostReason::Deleted | LostReason::Stolen),
        "{reason}"
    );
    drop(soon("the lock", waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn every_watcher_is_told_whatever_the_others_do() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let count = |told: &Arc<AtomicU32>| {
        let told = told.clone();
        move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        }
    };
    guard.on_lost(count(&told));
    guard.on_lost(|_| panic!("a watcher of the test panics"));
    guard.hold().on_lost(count(&told));
    let queue = redlatch::embed::CompletionQueue::with_fd().unwrap();
    guard.watch_lost(&queue, 5);
    // A callback runs on the thread that would have to answer it.
    let (answer, answered) = mpsc::channel();
    let lock = world.lock("other");
    guard.on_lost(move |_| answer.send(lock.acquire().wait().map(drop)).unwrap());

    world.command::<u32>(&["DEL", "n"]);
    eventually("both are told", || told.load(Ordering::SeqCst) == 2).await;
    let refused = answered.recv_timeout(LIMIT).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let entry = queue.pop().expect("the loss in the queue");
    assert!(
        matches!(
            entry.outcome,
            redlatch::embed::Outcome::Lost(LostReason::Deleted)
        ) && entry.tag == 5
    );

    // Too late to be called by the engine: called at once.
    guard.on_lost(count(&told));
    assert_eq!(told.load(Ordering::SeqCst), 3);
    guard.on_lost(|_| {});
}

#[tokio::test]
async fn a_future_that_outlives_its_guard_is_told_of_the_loss() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(1000)))
        .unwrap();
    let guard = lock.acquire().await.unwrap();
    let (hold, lost, (tell, told)) = (guard.hold(), tokio::spawn(guard.lost()), mpsc::channel());
    guard.on_lost(move |reason| tell.send(reason).unwrap());
    guard.abandon();
    assert!(hold.is_held(), "the lock is not free before its lease ends");
    assert_eq!(soon("the loss", lost).await.unwrap(), LostReason::Expired);
    assert_eq!(told.recv_timeout(LIMIT), Ok(LostReason::Expired));
    assert_eq!(soon("the loss", hold.lost()).await, LostReason::Expired);
    assert_eq!(
        hold.check().unwrap_err().lost_reason(),
        Some(LostReason::Expired)
    );
}
