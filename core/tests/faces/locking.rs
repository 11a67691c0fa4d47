//! Acquiring, re-entering, releasing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlatch::embed::GuardExt;
use redlatch::{AcquireOptions, Client, ClientOptions, ErrorKind, LockOptions, ReentryKey};

use super::{World, eventually, ms, refusal, soon};

#[tokio::test]
async fn at_most_one_owner_among_clients_and_tasks() {
    let world = World::new().await;
    let (inside, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = world.another().await;
        for _ in 0..4 {
            let (lock, inside, done) = (client.lock("n").unwrap(), inside.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = lock.acquire().await.unwrap();
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "somebody else is inside"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }
    for task in tasks {
        soon("all rounds", task).await.unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 160);
}

#[tokio::test]
async fn a_try_takes_a_free_lock_and_never_waits() {
    let world = World::new().await;
    let (lock, other) = (world.lock("n"), world.another().await.lock("n").unwrap());
    let guard = lock.try_acquire().await.unwrap().expect("free");
    assert!(
        lock.try_acquire().await.unwrap().is_none(),
        "held by this client"
    );
    assert!(
        other.try_acquire().await.unwrap().is_none(),
        "held by another client"
    );
    guard.release().await.unwrap();
    assert!(other.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_wait_ends_in_time_and_leaves_nothing() {
    let mut world = World::new().await;
    let other = world.another().await;
    let guard = other.lock("n").unwrap().acquire().await.unwrap();
    let start = Instant::now();
    let error = soon(
        "the end of the wait",
        world.lock("n").acquire_timeout(ms(200)),
    )
    .await
    .unwrap_err();
    assert!(start.elapsed() >= ms(200));
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Timeout, Some("n"))
    );
    guard.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn a_guard_enters_again_and_levels_are_released_in_any_order() {
    let world = World::new().await;
    let lock = world.lock("n");
    let first = lock.acquire().await.unwrap();
    let second = first.reenter().await.unwrap();
    let third = second.reenter().await.unwrap();
    assert_eq!((first.hold_count(), third.hold_count()), (3, 3));
    assert_eq!(first.owner(), third.owner());
    let holder = lock.holder().await.unwrap().expect("held");
    assert_eq!((holder.owner, holder.count), (first.owner(), 3));

    first.release().await.unwrap();
    third.release().await.unwrap();
    assert!(second.is_held() && second.hold_count() == 1 && lock.is_locked().await.unwrap());
    second.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test]
async fn a_guard_enters_again_on_its_own_terms() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().lease(ms(900)))
        .unwrap();
    let first = lock.acquire().await.unwrap();
    let second = first.reenter().await.unwrap();
    // Neither level is renewed.
    assert!(first.remaining() <= ms(900) && second.remaining() <= ms(900));
    assert_eq!(
        soon("the end of the lease", second.lost()).await,
        redlatch::LostReason::Expired
    );
    drop((first, second));
    let watched = soon("the lock", world.lock("n").acquire()).await.unwrap();
    let fixed = watched
        .reenter_with(&LockOptions::new(), AcquireOptions::new().lease(ms(500)))
        .await
        .unwrap();
    assert!(fixed.remaining() > ms(20_000), "re-entering never shortens");
}

#[tokio::test]
async fn an_error_names_the_operation_that_failed() {
    let world = World::new().await;
    let lock = world.lock("n");
    let key = ReentryKey::Explicit(7);
    let failed = |error: redlatch::Error| error.operation();
    let _held = lock.acquire().await.unwrap();
    assert_eq!(
        failed(lock.acquire_timeout(ms(1)).await.unwrap_err()),
        Some("acquire")
    );
    assert_eq!(
        failed(lock.release_by(key).await.unwrap_err()),
        Some("release")
    );
    world.client.close().await.unwrap();
    assert_eq!(failed(lock.holder().await.unwrap_err()), Some("holder"));
}

#[tokio::test]
async fn one_key_is_one_owner() {
    let world = World::new().await;
    let lock = world.lock("n");
    let as_owner = |key| AcquireOptions::new().key(key);
    let (mine, other) = (ReentryKey::Explicit(7), ReentryKey::new_task());
    let first = lock.acquire_with(as_owner(mine)).await.unwrap();
    let second = lock.acquire_with(as_owner(mine)).await.unwrap();
    assert_eq!(lock.hold(mine).count(), 2);
    assert!(lock.hold(mine).is_held() && !lock.hold(other).is_held());
    assert_eq!(
        refusal(lock.acquire_with(as_owner(other).wait(ms(50)))).await,
        ErrorKind::Timeout
    );
    assert_eq!(refusal(lock.release_by(other)).await, ErrorKind::NotOwner);
    assert_eq!(
        refusal(lock.extend_by(other, ms(1000))).await,
        ErrorKind::NotOwner
    );

    first.detach();
    second.detach();
    lock.extend_by(mine, ms(60_000)).await.unwrap();
    assert!(lock.hold(mine).remaining() > ms(50_000));
    lock.release_by(mine).await.unwrap();
    assert_eq!(lock.hold(mine).count(), 1);
    lock.release_by(mine).await.unwrap();
    assert_eq!(refusal(lock.release_by(mine)).await, ErrorKind::NotOwner);
    assert!(lock.acquire_with(as_owner(other)).await.is_ok());
}

#[tokio::test]
async fn a_level_that_its_key_released_is_not_owned_by_its_guard() {
    let world = World::new().await;
    let lock = world.lock("n");
    let key = ReentryKey::Explicit(1);
    let guard = lock
        .acquire_with(AcquireOptions::new().key(key))
        .await
        .unwrap();
    lock.release_by(key).await.unwrap();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::NotOwner);
    assert_eq!(refusal(guard.release()).await, ErrorKind::NotOwner);
}

#[tokio::test]
async fn a_dropped_guard_releases() {
    let world = World::new().await;
    let lock = world.lock("n");
    drop(lock.acquire().await.unwrap());
    soon("the release", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // An operation that was never sent, or not waited for, releases as well.
    drop(lock.acquire().await.unwrap().release());
    let guard = soon("the release", lock.acquire()).await.unwrap();
    let mut release = Box::pin(guard.release());
    let waker = std::task::Waker::noop();
    let _ = release
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker));
    drop(release);
    drop(soon("the release", lock.acquire()).await.unwrap());
}

#[tokio::test]
async fn a_released_lock_wakes_a_waiter_of_another_client() {
    let world = World::new().await;
    // Without a wake-up it would try again after an hour.
    let options = ClientOptions::new().recheck(Duration::from_secs(3600));
    let other = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    other.ready().await.unwrap();
    let lock = world.lock("n");
    for round in 1..=5 {
        let guard = lock.acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("n").unwrap().acquire());
        // Its first try, and the one when its subscription is there.
        eventually("it sleeps", || {
            other.stats().waiting == 1 && other.stats().calls >= 3 * round - 1
        })
        .await;
        guard.release().await.unwrap();
        soon("the lock", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// Redisson tells of the releases of both on the same channel, and one of the waiters did not hear
/// of its own.
#[tokio::test]
async fn waiters_for_names_that_share_a_channel_are_each_woken_by_its_message() {
    let world = World::new().await;
    // Only a message can wake them: no recheck, no end of a lease, no tracking.
    let hour = std::time::Duration::from_secs(3600);
    let options = redlatch::ClientOptions::new()
        .recheck(hour)
        .tracking(false)
        .direct(false);
    let other = redlatch::Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    for names in [["a", "{a}"], ["{a}", "a"]] {
        let before = other.stats().calls;
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for (at, name) in names.into_iter().enumerate() {
            let options = redlatch::AcquireOptions::new().lease(hour);
            guards.push(world.lock(name).acquire_with(options).await.unwrap());
            waiters.push(tokio::spawn(other.lock(name).unwrap().acquire()));
            eventually("it waits", || other.stats().waiting == 1 + at as u64).await;
        }
        // Their first tries, and those when their subscription is there: the last round may have
        // left that.
        eventually("they sleep", || other.stats().calls >= before + 2).await;
        eventually("they listen", || {
            other.stats().calls >= before + 4 || before > 0
        })
        .await;
        for (guard, waiter) in guards.into_iter().zip(waiters) {
            guard.release().await.unwrap();
            soon("the lock", waiter)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn waiters_of_a_client_are_served_in_their_order() {
    let world = World::new().await;
    let lock = world.lock("n");
    let guard = lock.acquire().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..10 {
        let (lock, order) = (lock.clone(), order.clone());
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        eventually("it waits", || world.client.stats().waiting == number + 1).await;
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        soon("its turn", waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn fencing_tokens_grow() {
    let world = World::new().await;
    let options = LockOptions::new().fencing(true);
    let (here, there) = (
        world.client.lock_with("n", options.clone()).unwrap(),
        world.another().await.lock_with("n", options).unwrap(),
    );
    let mut last = 0;
    for lock in [&here, &there, &here, &there] {
        let guard = lock.acquire().await.unwrap();
        let token = guard.fencing_token().expect("asked for");
        assert!(token > last, "{token} after {last}");
        let again = guard.reenter().await.unwrap();
        assert_eq!(
            again.fencing_token(),
            Some(token),
            "a token belongs to the hold"
        );
        again.release().await.unwrap();
        guard.release().await.unwrap();
        last = token;
    }
    assert_eq!(
        world.lock("n").acquire().await.unwrap().fencing_token(),
        None
    );
}

#[tokio::test]
async fn extending_moves_the_end_and_never_back() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().lease(ms(5000)))
        .unwrap();
    let guard = lock.acquire().await.unwrap();
    guard.extend(ms(60_000)).await.unwrap();
    assert!(guard.remaining() > ms(50_000));
    assert!(guard.deadline() > Instant::now() + ms(50_000));
    guard.extend(ms(1000)).await.unwrap();
    assert!(guard.remaining() > ms(50_000));
    let left = lock
        .holder()
        .await
        .unwrap()
        .expect("held")
        .remaining
        .expect("an expiry");
    assert!(left > ms(50_000), "{left:?}");
}

#[tokio::test]
async fn the_watchdog_keeps_a_lock_for_many_leases() {
    let world = World::new().await;
    let other = world.another().await.lock("n").unwrap();
    let guard = world
        .client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(5000)))
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(11_000) {
        assert!(other.try_acquire().await.unwrap().is_none());
        guard.check().unwrap();
        tokio::time::sleep(ms(50)).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_ends_at_its_longest_time() {
    let world = World::new().await;
    let options = LockOptions::new()
        .watchdog_lease(ms(1000))
        .max_hold(ms(1500));
    let guard = world
        .client
        .lock_with("n", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let start = Instant::now();
    soon("the end", guard.lost()).await;
    assert!(
        start.elapsed() > ms(1000),
        "renewed until then: {:?}",
        start.elapsed()
    );
    drop(
        soon(
            "the lock",
            world.another().await.lock("n").unwrap().acquire(),
        )
        .await
        .unwrap(),
    );
}
