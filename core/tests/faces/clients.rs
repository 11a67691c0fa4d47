//! Closing, dropping, threads that end, and what a client tells about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use redlatch::embed::{ClientExt, GuardExt};
use redlatch::{AcquireOptions, Client, ErrorKind, Kind, LockOptions, LostReason, ReentryKey};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{LIMIT, World, eventually, ms, refusal, soon};

#[tokio::test]
async fn closing_releases_what_is_held_and_ends_what_waits() {
    let mut world = World::new().await;
    let other = world.another().await;
    let foreign = other.lock("foreign").unwrap().acquire().await.unwrap();
    let guard = world.lock("n").acquire().await.unwrap();
    let waiter = tokio::spawn(world.lock("foreign").acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;

    assert!(!world.client.is_closed());
    soon("closed", world.client.close()).await.unwrap();
    assert!(world.client.is_closed());
    world.client.join(LIMIT);
    assert_eq!(
        soon("an answer", waiter).await.unwrap().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(world.command::<u32>(&["EXISTS", "n"]), 0);
    assert!(!guard.is_held());
    let lock = world.lock("n");
    for closed in [
        guard.release().await.unwrap_err(),
        lock.acquire().await.unwrap_err(),
        lock.is_locked().await.unwrap_err(),
    ] {
        assert_eq!(closed.kind(), ErrorKind::Closed);
        assert_eq!(closed.lock_name(), Some("n"), "{closed}");
        assert!(closed.message().contains("open a new one"), "{closed}");
    }
    assert_eq!(refusal(world.client.ready()).await, ErrorKind::Closed);
    soon("closed", world.client.close()).await.unwrap();
    drop(foreign);
}

#[tokio::test]
async fn a_key_is_told_that_its_client_was_closed() {
    let world = World::new().await;
    let (key, other) = (ReentryKey::new_task(), ReentryKey::new_task());
    let lock = world.lock("n");
    let options = AcquireOptions::new().key(key);
    let guard = soon("n", lock.acquire_with(options)).await.unwrap();
    guard.detach();
    soon("closed", world.client.close()).await.unwrap();
    assert_eq!(lock.hold(key).lost_reason(), Some(LostReason::Closed));
    let error = lock.hold(key).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let error = lock.hold(other).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
}

#[tokio::test]
async fn closing_keeps_its_limit_when_the_server_is_gone() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    world.server.kill();
    let start = Instant::now();
    let error = soon("closed", world.client.close_within(ms(300)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.operation(), Some("close"));
    assert_eq!(error.unreleased(), ["n"]);
    let text = error.to_string();
    assert!(
        text.contains("within 300ms: \"n\". A lock ends with its lease"),
        "{text}"
    );
    // The option `outage` would let it wait for 10 s.
    assert!(start.elapsed() < ms(9000), "{:?}", start.elapsed());
    assert_eq!(guard.lost_reason(), Some(LostReason::Closed));
}

#[tokio::test]
async fn a_server_that_is_no_redis_is_told_in_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let web = tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        }
    });
    let client = Client::builder(&format!("redis://{address}"))
        .build()
        .unwrap();
    let error = soon("an answer", client.ready()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        format!("{error:#}"),
        format!(
            "unavailable: cannot reach {address}: something answers there, but not as Redis does; \
             does it want TLS (rediss://)?"
        )
    );
    web.abort();
}

#[tokio::test]
async fn a_client_ends_with_its_last_guard() {
    let mut world = World::new().await;
    let client = Client::builder(&world.server.url())
        .option("client_name", redlatch::OptionValue::Text("short-lived"))
        .build()
        .unwrap();
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    drop(client);
    let mut connected = || {
        world
            .command::<String>(&["CLIENT", "LIST"])
            .contains("name=short-lived")
    };
    assert!(connected() && guard.is_held());
    // A guard works without its client.
    let inner = guard.reenter().await.unwrap();
    guard.release().await.unwrap();
    assert!(inner.is_held());
    drop(inner);
    eventually("it disconnects", || !connected()).await;
    assert_eq!(world.command::<u32>(&["EXISTS", "n"]), 0);
}

#[tokio::test]
async fn a_holder_has_its_process() {
    let mut world = World::new().await;
    let holding = |kind: Kind| LockOptions::new().kind(kind);
    for kind in [Kind::Reentrant, Kind::Simple, Kind::Article, Kind::Write] {
        let guard = world
            .client
            .lock_with("n", holding(kind))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        // Another client asks, on connections of its own.
        let client = Client::builder(&world.server.url()).build().unwrap();
        let lock = client.lock_with("n", holding(kind)).unwrap();
        let holder = lock.holder().await.unwrap().expect("held");
        assert_eq!(holder.owner, guard.owner());
        let process = holder.process.expect("its connection has a name");
        assert_eq!(process.id, world.client.id().unwrap());
        let parts = (&process.client_name[..], &process.language[..], process.pid);
        assert_eq!(parts, ("redlatch", "rust", std::process::id()), "{kind:?}");
        assert!(!process.host.is_empty());
        assert!(lock.is_locked().await.unwrap());
        guard.release().await.unwrap();
        assert_eq!(lock.holder().await.unwrap(), None);
        client.close().await.unwrap();
    }
    // Nobody knows the process of an owner that Redisson wrote.
    world.command::<u32>(&["HSET", "n", "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e:1", "1"]);
    let holder = world.lock("n").holder().await.unwrap().expect("held");
    assert_eq!((holder.count, holder.process), (1, None));
}

#[tokio::test]
async fn the_queue_of_a_fair_lock_can_be_asked() {
    let mut world = World::new().await;
    let fair = || LockOptions::new().kind(Kind::Fair);
    let lock = world.client.lock_with("n", fair()).unwrap();
    let other = Client::builder(&world.server.url()).build().unwrap();
    let theirs = other.lock_with("n", fair()).unwrap();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(theirs.waiters().await.unwrap(), []);

    let mut waits = Vec::new();
    for (position, lock) in [&theirs, &lock].into_iter().enumerate() {
        let waiter = lock.clone();
        waits.push(tokio::spawn(async move { waiter.acquire().await }));
        while lock.waiters().await.unwrap().len() == position {}
    }
    let queue = lock.waiters().await.unwrap();
    let clients: Vec<_> = queue
        .iter()
        .map(|waiter| waiter.process.as_ref().expect("it is connected").id.clone())
        .collect();
    assert_eq!(clients, [other.id().unwrap(), world.client.id().unwrap()]);
    assert!(
        queue.iter().all(|waiter| waiter.count == 0
            && waiter.remaining.is_some_and(|left| !left.is_zero()))
    );

    guard.release().await.unwrap();
    let second = waits.remove(0).await.unwrap().unwrap();
    assert_eq!(lock.waiters().await.unwrap().len(), 1);
    second.release().await.unwrap();
    let third = waits.remove(0).await.unwrap().unwrap();
    assert_eq!(lock.waiters().await.unwrap(), []);
    third.release().await.unwrap();
    // Waiters of Redisson stand in the same queue; which process they are, it does not say.
    let redisson = "8c8ffe61-5bd3-4d78-a5c0-2d2386af488e:1";
    world.command::<u32>(&["RPUSH", "redisson_lock_queue:{n}", redisson]);
    let queue = lock.waiters().await.unwrap();
    assert_eq!((&*queue[0].owner, &queue[0].process), (redisson, &None));

    let error = world.lock("n").waiters().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains("reentrant; give it the kind fair"), "{text}");
    other.close().await.unwrap();
}

#[tokio::test]
async fn a_server_that_lists_no_connections_tells_the_holder() {
    let mut world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    world.command::<String>(&["ACL", "SETUSER", "default", "-client|list"]);
    let lock = world.lock("n");
    let holder = lock.holder().await.unwrap().expect("held");
    assert_eq!((holder.owner, holder.process), (guard.owner(), None));
    world.command::<String>(&["ACL", "SETUSER", "default", "+client|list"]);
    // The script is not known there any more: both commands are sent again.
    world.command::<String>(&["SCRIPT", "FLUSH"]);
    let holder = lock.holder().await.unwrap().expect("held");
    assert!(holder.process.is_some());
}

#[tokio::test]
async fn nothing_is_renewed_for_a_client_that_nobody_has() {
    let world = World::new().await;
    let client = Client::connect(&world.server.url()).await.unwrap();
    let lock = client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(1000)))
        .unwrap();
    lock.acquire_with(AcquireOptions::new().key(ReentryKey::Explicit(1)))
        .await
        .unwrap()
        .detach();
    drop((client, lock));
    drop(soon("the lock", world.lock("n").acquire()).await.unwrap());
}

#[tokio::test]
async fn a_thread_that_ends_with_a_hold_is_not_renewed() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(5000)))
        .unwrap();
    let of_thread = lock.clone();
    let (key, moved) = std::thread::spawn(move || {
        let key = ReentryKey::thread();
        let options = || AcquireOptions::new().key(key);
        let guard = of_thread.acquire_with(options()).wait().unwrap();
        of_thread.acquire_with(options()).wait().unwrap().detach();
        (key, guard)
    })
    .join()
    .unwrap();
    // A guard that was moved elsewhere lives on.
    assert_eq!(lock.hold(key).count(), 2);
    tokio::time::sleep(ms(6000)).await;
    moved.check().unwrap();
    moved.release().await.unwrap();

    // The thread's own level remains, and nobody renews it.
    drop(
        soon(
            "the end of the lease",
            world.another().await.lock("n").unwrap().acquire(),
        )
        .await
        .unwrap(),
    );
    assert!(
        world
            .client
            .events()
            .iter()
            .any(|event| event.kind == "abandoned")
    );
}

#[tokio::test]
async fn an_abandoned_handle_is_not_renewed() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(1000)))
        .unwrap();
    lock.acquire().await.unwrap().abandon();
    drop(
        soon(
            "the end of the lease",
            world.another().await.lock("n").unwrap().acquire(),
        )
        .await
        .unwrap(),
    );
    eventually("it is forgotten", || world.client.stats().holds == 0).await;
}

#[tokio::test]
async fn a_task_that_ended_is_told_by_its_language() {
    let world = World::new().await;
    let lock = world
        .client
        .lock_with("n", LockOptions::new().watchdog_lease(ms(1000)))
        .unwrap();
    let key = ReentryKey::new_task();
    lock.acquire_with(AcquireOptions::new().key(key))
        .await
        .unwrap()
        .detach();
    world.client.key_ended(key);
    drop(
        soon(
            "the end of the lease",
            world.another().await.lock("n").unwrap().acquire(),
        )
        .await
        .unwrap(),
    );
}

#[tokio::test]
async fn a_client_tells_what_it_does() {
    let world = World::new().await;
    let notified = Arc::new(AtomicU32::new(0));
    let counter = notified.clone();
    let count = move || {
        counter.fetch_add(1, Ordering::SeqCst);
    };
    world.client.on_events(count).unwrap();
    eventually("connected", || {
        world
            .client
            .events()
            .iter()
            .any(|event| event.kind == "connected")
    })
    .await;
    let lock = world.lock("n");
    lock.acquire().await.unwrap().release().await.unwrap();
    lock.force_release().await.unwrap();
    let stats = world.client.stats();
    assert_eq!(
        (stats.acquired, stats.released, stats.connects, stats.holds),
        (1, 1, 1, 0)
    );
    assert!(
        stats
            .entries()
            .iter()
            .any(|(name, value)| *name == "calls" && *value >= 3)
    );
    assert!(notified.load(Ordering::SeqCst) > 0);

    let owner = lock.acquire().await.unwrap().owner();
    assert!(
        owner.starts_with(&format!("{}-", world.client.id().unwrap())),
        "{owner}"
    );
}

/// The release of a dropped guard is not waited for, and `main` may end next.
#[tokio::test]
async fn a_guard_that_is_dropped_at_the_end_of_the_program_is_released() {
    const URL: &str = "REDLATCH_TEST_ENDING";
    if let Ok(url) = std::env::var(URL) {
        let client = Client::connect(&url).await.unwrap();
        let guard = client.lock("n").unwrap().acquire().await.unwrap();
        drop((guard, client));
        std::process::exit(0);
    }
    let mut world = World::new().await;
    for _ in 0..10 {
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "clients::a_guard_that_is_dropped_at_the_end_of_the_program_is_released",
            ])
            .env(URL, world.server.url())
            .output()
            .unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(world.command::<u64>(&["EXISTS", "n"]), 0);
    }
}
