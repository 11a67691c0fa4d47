//! Simple kinds on a real server, beside programs that use plain commands.

use std::time::Instant;

use redlatch::{
    AcquireOptions, Client, ClientOptions, ErrorKind, Kind, Lock, LockOptions, ReentryKey,
};

use super::wire_budget::Monitor;
use super::{LIMIT, World, eventually, ms, refusal, soon};

fn lock(client: &Client, kind: Kind) -> Lock {
    client
        .lock_with("n", LockOptions::new().kind(kind))
        .unwrap()
}

#[tokio::test]
async fn the_data_in_redis_are_those_of_the_other_program() {
    let mut world = World::new().await;
    for (kind, key) in [
        (Kind::Simple, "n"),
        (Kind::RedisPy, "n"),
        (Kind::Redlock, "n"),
        (Kind::Redsync, "n"),
        (Kind::RedisSemaphore, "mutex:n"),
        (Kind::Article, "lock:n"),
        (Kind::Adaptive, "n"),
    ] {
        let lock = lock(&world.client, kind);
        assert_eq!(lock.name(), key);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(
            world.command::<String>(&["GET", key]),
            guard.owner(),
            "{kind:?}"
        );
        let holder = lock.holder().await.unwrap().expect("held");
        assert_eq!((holder.owner, holder.count), (guard.owner(), 1));
        assert!(
            holder.remaining.is_some_and(|time| time > ms(20_000)),
            "{kind:?}"
        );
        let refused: Option<String> = world.command(&["SET", key, "theirs", "NX", "PX", "1000"]);
        assert_eq!(refused, None, "{kind:?}");
        guard.release().await.unwrap();
        assert!(world.is_clean(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_foreign_holder_is_waited_for_and_its_release_is_noticed() {
    let mut world = World::new().await;
    let lock = lock(&world.client, Kind::Simple);
    world.command::<String>(&["SET", "n", "theirs", "NX", "PX", "3600000"]);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(lock.acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;
    let start = Instant::now();
    world.command::<i64>(&["DEL", "n"]);
    // By the invalidation of the key; the holder's time would be an hour.
    let guard = soon("woken", waiter).await.unwrap().unwrap();
    assert!(start.elapsed() < LIMIT);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_holder_that_died_is_waited_for_until_its_time_is_over() {
    let mut world = World::new().await;
    let client = Client::builder(&world.server.url())
        .options(ClientOptions::new().tracking(false))
        .build()
        .unwrap();
    let lock = lock(&client, Kind::Simple);
    world.command::<String>(&["SET", "n", "theirs", "NX", "PX", "700"]);
    let start = Instant::now();
    let guard = soon("its end", lock.acquire()).await.unwrap();
    assert!(start.elapsed() >= ms(600), "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_late_release_never_deletes_the_next_holders_lock() {
    let mut world = World::new().await;
    let lock = lock(&world.client, Kind::Simple);
    let guard = lock
        .acquire_with(AcquireOptions::new().lease(ms(100)))
        .await
        .unwrap();
    eventually("its end", || {
        world.command::<Option<String>>(&["GET", "n"]).is_none()
    })
    .await;
    world.command::<String>(&["SET", "n", "theirs", "NX", "PX", "3600000"]);
    assert_eq!(refusal(guard.release()).await, ErrorKind::Lost);
    assert_eq!(world.command::<String>(&["GET", "n"]), "theirs");
}

#[tokio::test]
async fn a_deleted_key_is_told_in_milliseconds() {
    let mut world = World::new().await;
    let guard = lock(&world.client, Kind::Simple).acquire().await.unwrap();
    world.command::<i64>(&["DEL", "n"]);
    let reason = soon("the loss", guard.lost()).await;
    assert_eq!(reason.name(), "deleted");
}

#[tokio::test]
async fn the_watchdog_renews_a_simple_lock() {
    let mut world = World::new().await;
    let options = LockOptions::new()
        .kind(Kind::Article)
        .watchdog_lease(ms(1500));
    let guard = world
        .client
        .lock_with("n", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    // Whole seconds, in this kind.
    assert!((1500..=2000).contains(&world.command::<i64>(&["PTTL", "lock:n"])));
    eventually("renewals", || world.client.stats().renewed >= 4).await;
    assert!(guard.is_held());
    assert!(world.command::<i64>(&["PTTL", "lock:n"]) > 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_token_of_the_caller_stands_at_the_key() {
    let mut world = World::new().await;
    let simple = lock(&world.client, Kind::Simple);
    let guard = simple
        .acquire_with(AcquireOptions::new().token("request-7"))
        .await
        .unwrap();
    assert_eq!(world.command::<String>(&["GET", "n"]), "request-7");
    assert_eq!(guard.owner(), "request-7");
    let once = AcquireOptions::new().token("request-7").wait(ms(0));
    assert_eq!(
        refusal(simple.acquire_with(once)).await,
        ErrorKind::Timeout,
        "they exclude each other here"
    );
    guard.release().await.unwrap();
    let reentrant = world.lock("m");
    let error = refusal(reentrant.acquire_with(AcquireOptions::new().token("x"))).await;
    assert_eq!(error, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_thread_re_enters_only_where_it_is_meant_to() {
    let world = World::new().await;
    let enters = |options: LockOptions| {
        let lock = world.client.lock_with("n", options).unwrap();
        async move {
            let key = AcquireOptions::new()
                .key(ReentryKey::Explicit(1))
                .wait(ms(0));
            let guard = lock.acquire_with(key.clone()).await.unwrap();
            let again = lock.acquire_with(key).await;
            let entered = again.is_ok();
            drop(again);
            guard.release().await.ok();
            soon("free", async { while lock.is_locked().await.unwrap() {} }).await;
            entered
        }
    };
    assert!(enters(LockOptions::new()).await);
    assert!(!enters(LockOptions::new().reentrant(false)).await);
    assert!(!enters(LockOptions::new().kind(Kind::Simple)).await);
    assert!(enters(LockOptions::new().kind(Kind::Simple).reentrant(true)).await);
    assert!(enters(LockOptions::new().kind(Kind::Adaptive)).await);
}

#[tokio::test]
async fn kinds_do_not_mix_at_one_name() {
    let mut world = World::new().await;
    let held = lock(&world.client, Kind::Simple).acquire().await.unwrap();
    let other = world.another().await;
    for client in [&world.client, &other] {
        let reentrant = lock(client, Kind::Reentrant);
        assert_eq!(refusal(reentrant.acquire()).await, ErrorKind::ForeignKind);
        assert_eq!(refusal(reentrant.is_locked()).await, ErrorKind::ForeignKind);
        assert_eq!(
            refusal(reentrant.force_release()).await,
            ErrorKind::ForeignKind
        );
    }
    assert!(held.is_held() && world.command::<i64>(&["EXISTS", "n"]) == 1);
    held.release().await.unwrap();
    let held = lock(&other, Kind::Reentrant).acquire().await.unwrap();
    assert_eq!(
        refusal(lock(&world.client, Kind::Adaptive).acquire()).await,
        ErrorKind::ForeignKind
    );
    held.release().await.unwrap();
}

/// The whole of an adaptive lock, in seconds that a test can wait for.
#[tokio::test]
async fn an_adaptive_lock_takes_the_time_that_the_work_took() {
    let mut world = World::new().await;
    let options = LockOptions::new().kind(Kind::Adaptive).lease(ms(5000));
    let lock = world.client.lock_with("n", options).unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!((4000..=5000).contains(&world.command::<i64>(&["PTTL", "n"])));
    eventually("more than a second", || {
        guard.remaining() < ms(3800) || world.client.stats().renewed > 0
    })
    .await;
    eventually("a renewal to the full lease", || {
        world.client.stats().renewed > 0
    })
    .await;
    guard.release().await.unwrap();
    let took: u64 = world
        .command::<String>(&["GET", "n_renew"])
        .parse()
        .unwrap();
    assert!(took >= 1, "{took}");
    let guard = lock.acquire().await.unwrap();
    let (got, most) = (
        world.command::<i64>(&["PTTL", "n"]),
        (i64::try_from(took).unwrap() + 10) * 1000,
    );
    assert!(
        (most - 1000..=most).contains(&got),
        "{got} after {took} s of work"
    );
    assert!(guard.remaining() > ms(8000));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_simple_pair_is_two_commands_and_a_foreign_holder_costs_few() {
    let mut world = World::without_direct().await;
    let lock = lock(&world.client, Kind::Simple);
    lock.acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::new(&world.server);
    for _ in 0..5 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let seen = monitor.until_now(&mut world);
    assert_eq!(seen.len(), 10, "{seen:#?}");

    // A try, a subscription, a try; then one in 5 s, and one when the key is deleted.
    world.command::<String>(&["SET", "n", "theirs", "NX", "PX", "3600000"]);
    monitor.until_now(&mut world);
    let waiter = tokio::spawn(lock.acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;
    world.command::<i64>(&["DEL", "n"]);
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    let ours = |line: &&String| !line.contains("\"DEL\"");
    let seen = monitor.until_now(&mut world);
    let count = seen.iter().filter(ours).count();
    assert!((1..=5).contains(&count), "{seen:#?}");
    guard.release().await.unwrap();
}
