//! Servers that know nothing of each other, of which most are enough.

use redlatch::{AcquireOptions, Kind, OptionValue, ReentryKey};

use super::support::Server;
use super::*;

/// Starts servers. They are in the order in which clients wait for them.
fn start(count: usize) -> Vec<Server> {
    let mut servers: Vec<Server> = (0..count).map(|_| Server::start()).collect();
    servers.sort_by_key(shown);
    servers
}

fn url(servers: &[Server]) -> String {
    let hosts: Vec<String> = servers.iter().map(shown).collect();
    format!("redis+quorum://{}", hosts.join(","))
}

fn shown(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// A client for which servers that were started now have lost nothing.
async fn of(servers: &[Server]) -> Client {
    client_with(
        &url(servers),
        ClientOptions::new().restart_delay(Duration::ZERO),
    )
    .await
}

/// How many servers have the key.
fn having(servers: &[Server], name: &str) -> u64 {
    let has = |server: &Server| server.ask::<u64>(&format!("EXISTS {name}"));
    servers.iter().map(has).sum()
}

#[tokio::test]
async fn a_lock_is_on_all_servers_and_excludes_others() {
    let servers = start(3);
    let (own, other) = (of(&servers).await, of(&servers).await);
    let (lock, theirs) = (own.lock("q").unwrap(), other.lock("q").unwrap());
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    assert_eq!((guard.name(), having(&servers, "q")), ("q", 3));
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { theirs.acquire().await });
    guard.release().await.unwrap();
    let guard = soon("their lock", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    eventually("nothing is left", || having(&servers, "q") == 0).await;
    own.close().await.unwrap();
}

#[tokio::test]
async fn it_stands_the_death_of_one_server_and_not_of_two() {
    let mut servers = start(3);
    let client = of(&servers).await;
    let lock = client
        .lock_with("q", LockOptions::new().watchdog_lease(ms(1500)))
        .unwrap();
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    servers.remove(1);
    // Longer than the lease: the two that are left were renewed.
    let renewed = || having(&servers, "q") == 2 && client.stats().renewed >= 4;
    eventually("it is renewed", renewed).await;
    assert!(guard.is_held());
    let second = client.lock("second").unwrap();
    let second = soon("another lock", second.acquire()).await.unwrap();
    servers.remove(1);
    let (told, lost) = tokio::sync::oneshot::channel();
    guard.on_lost(move |reason| {
        let _ = told.send(reason);
    });
    let reason = soon("the loss", lost).await.unwrap();
    // As the client has noticed the death of the server or not.
    let reasons = [LostReason::Unreachable, LostReason::Expired];
    assert!(reasons.contains(&reason), "{reason:?}");
    assert!(!guard.is_held());
    let error = soon("the release", guard.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    drop(second);
}

#[tokio::test]
async fn the_loss_of_one_key_is_no_loss_and_that_of_two_is() {
    let servers = start(3);
    let client = Client::builder(&url(&servers))
        .option("restart_delay", OptionValue::Millis(0.0))
        .option("debug_events", OptionValue::Flag(true))
        .build()
        .unwrap();
    let lock = client.lock("q").unwrap();
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    let (told, lost) = tokio::sync::oneshot::channel();
    guard.on_lost(move |reason| {
        let _ = told.send(reason);
    });
    servers[0].ask::<u64>("DEL q");
    let at = format!("q at {}", shown(&servers[0]));
    eventually("the client knows", || {
        let mut events = client.events().into_iter();
        events.any(|event| event.kind == "lost" && event.lock.as_deref() == Some(&at))
    })
    .await;
    guard.check().unwrap();
    assert_eq!(client.stats().lost, 0);
    servers[2].ask::<u64>("DEL q");
    let reason = soon("the loss", lost).await.unwrap();
    assert_eq!(reason, LostReason::Deleted);
    let error = guard.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let at = shown(&servers[2]);
    assert!(error.to_string().contains(&format!("q at {at}")), "{error}");
    assert_eq!(client.stats().lost, 1);
    let mut events = client.events().into_iter();
    assert!(events.any(|event| event.kind == "lost" && event.lock.as_deref() == Some("q")));
    drop(guard);
    eventually("nothing is left", || having(&servers, "q") == 0).await;
}

#[tokio::test]
async fn a_close_does_not_wait_for_a_server_that_is_down() {
    let mut servers = start(3);
    let client = of(&servers).await;
    let guard = soon("the lock", client.lock("q").unwrap().acquire())
        .await
        .unwrap();
    servers.remove(0);
    soon("the end", client.close()).await.unwrap();
    assert_eq!(having(&servers, "q"), 0);
    drop(guard);
}

#[tokio::test]
async fn a_lease_that_outlives_the_delay_of_a_restart_is_refused() {
    let servers = start(3);
    let client = Client::builder(&url(&servers)).build().unwrap();
    let long = LockOptions::new().watchdog_lease(ms(31_000));
    let lock = client.lock_with("q", long).unwrap();
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("restart_delay"), "{error}");
}

#[tokio::test]
async fn a_lock_that_another_has_on_most_servers_is_waited_for() {
    let servers = start(5);
    let client = of(&servers).await;
    // Another library holds it on three of five, by SET NX.
    for server in &servers[1..4] {
        server.ask::<()>("SET q theirs NX PX 60000");
    }
    let simple = LockOptions::new().kind(Kind::Simple);
    let lock = client.lock_with("q", simple).unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    eventually("nothing of the try is left", || having(&servers, "q") == 3).await;
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("it waits", || having(&servers, "q") == 4).await;
    for server in &servers[1..4] {
        server.ask::<u64>("DEL q");
    }
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    assert!(having(&servers, "q") >= 3);
    guard.release().await.unwrap();
    eventually("nothing is left", || having(&servers, "q") == 0).await;
}

#[tokio::test]
async fn too_few_servers_are_an_error_that_names_one() {
    let mut servers = start(3);
    let client = of(&servers).await;
    let url = url(&servers);
    servers.truncate(1);
    let lock = client.lock("q").unwrap();
    let wait = AcquireOptions::new().wait(ms(300));
    let error = soon("the error", lock.acquire_with(wait))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("q at 127.0.0.1:"), "{error}");
    eventually("nothing is left", || having(&servers, "q") == 0).await;
    let error = soon("the error", Client::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_key_enters_again() {
    let servers = start(3);
    let client = of(&servers).await;
    let (lock, key) = (client.lock("q").unwrap(), ReentryKey::new_task());
    let by = || AcquireOptions::new().key(key);
    let first = soon("the lock", lock.acquire_with(by())).await.unwrap();
    let second = soon("a level", lock.acquire_with(by())).await.unwrap();
    assert_eq!(lock.hold(key).count(), 2);
    second.release().await.unwrap();
    assert!(lock.hold(key).is_held());
    first.release().await.unwrap();
    eventually("nothing is left", || having(&servers, "q") == 0).await;
}

#[tokio::test]
async fn a_server_that_was_just_started_has_no_vote() {
    let servers = start(3);
    let client = Client::builder(&url(&servers))
        .option("restart_delay", OptionValue::Text("1h"))
        .build()
        .unwrap();
    let error = soon("the error", client.ready()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("was started"), "{error}");
}

#[tokio::test]
async fn what_a_quorum_has_not_is_refused() {
    let servers = start(3);
    let client = of(&servers).await;
    let refused = [
        client.rw_lock("q").err(),
        client.semaphore("q", 1).err(),
        client.plain_semaphore("q").err(),
        client.latch("q").err(),
        client.multi_lock(["a", "b"]).err(),
        client
            .lock_with("q", LockOptions::new().fencing(true))
            .err(),
        client.lock("q").unwrap().is_locked().await.err(),
        client.lock("q").unwrap().force_release().await.err(),
    ];
    for error in refused {
        let error = error.expect("a refusal");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("quorum"), "{error}");
    }
}
