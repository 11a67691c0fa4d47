//! Acquisitions that replicas have to acknowledge, on a real primary with real replicas.

use redlatch::{AcquireOptions, Client, ErrorKind, Kind, Lock, LockOptions, ReentryKey};

use super::wire_budget::Monitor;
use super::{World, eventually, ms, refusal, soon};
use crate::support::Server;

/// A world whose server has replicas that follow.
async fn with_replicas(count: usize) -> (World, Vec<Server>) {
    let mut world = World::without_direct().await;
    let port = world.server.port().to_string();
    let replicas: Vec<Server> = (0..count)
        .map(|_| {
            let args = [
                "--replicaof",
                "127.0.0.1",
                &port,
                "--repl-diskless-sync-delay",
                "0",
            ];
            Server::start_with(&args)
        })
        .collect();
    eventually("they follow", || {
        let info: String = world.command(&["INFO", "replication"]);
        info.matches("state=online").count() == count
    })
    .await;
    (world, replicas)
}

fn lock(client: &Client, replicas: usize) -> Lock {
    client
        .lock_with("n", LockOptions::new().replicas(replicas))
        .unwrap()
}

#[tokio::test]
async fn a_lock_is_on_the_replicas_when_it_is_granted() {
    let (mut world, replicas) = with_replicas(2).await;
    for kind in [Kind::Reentrant, Kind::Simple] {
        let options = LockOptions::new().kind(kind).replicas(2).fencing(true);
        let lock = world.client.lock_with("n", options).unwrap();
        for _ in 0..20 {
            let guard = soon("granted", lock.acquire()).await.unwrap();
            for replica in &replicas {
                let found: i64 = redis::cmd("EXISTS")
                    .arg("n")
                    .query(&mut replica.connect())
                    .unwrap();
                assert_eq!(found, 1, "{kind:?}");
            }
            let inner = soon("entered", guard.reenter()).await.unwrap();
            assert_eq!(inner.hold_count(), 2);
            inner.release().await.unwrap();
            guard.release().await.unwrap();
        }
    }
    let keys: Vec<String> = world.command(&["KEYS", "n"]);
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn too_few_replicas_are_an_error_that_leaves_nothing() {
    let (mut world, _replicas) = with_replicas(1).await;
    let lock = lock(&world.client, 2);
    // The server does not know the script of the first one.
    for wait in [Some(ms(0)), None, Some(ms(60_000))] {
        // It has a fifth of that, and the replicas the half of it: with less, a busy machine was
        // too late for a single try.
        let mut options = AcquireOptions::new().lease(ms(10_000));
        if let Some(wait) = wait {
            options = options.wait(wait);
        }
        let error = soon("an answer", lock.acquire_with(options))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated);
        assert!(error.message().contains("of the 2 replicas"), "{error}");
        eventually("nothing is left", || world.is_clean()).await;
    }
}

#[tokio::test]
async fn a_re_entry_that_is_not_replicated_leaves_the_count_as_it_was() {
    let (mut world, _replicas) = with_replicas(1).await;
    let key = || AcquireOptions::new().key(ReentryKey::Explicit(1));
    let guard = lock(&world.client, 1).acquire_with(key()).await.unwrap();
    assert_eq!(
        refusal(lock(&world.client, 2).acquire_with(key())).await,
        ErrorKind::NotReplicated
    );
    let counts = || AcquireOptions::new().key(ReentryKey::Explicit(1));
    eventually("the count is 1", || {
        world.command::<Vec<String>>(&["HVALS", "n"]) == ["1"]
    })
    .await;
    let again = lock(&world.client, 1).acquire_with(counts()).await.unwrap();
    assert_eq!((again.hold_count(), guard.is_held()), (2, true));
    again.release().await.unwrap();
    guard.release().await.unwrap();
    assert!(world.is_clean());
}

#[tokio::test]
async fn a_replica_that_hangs_delays_nobody_else() {
    let (mut world, replicas) = with_replicas(1).await;
    let replicated = lock(&world.client, 1);
    soon("warm", replicated.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let pid = i32::try_from(replicas[0].pid()).unwrap();
    let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    signal(nix::sys::signal::Signal::SIGSTOP);
    let other = world.lock("m");
    // A busy machine may not run the other caller before the wait for the replica is over. If that
    // wait held others up, no try would succeed.
    let mut tries = 0;
    loop {
        tries += 1;
        let waiting = tokio::spawn(replicated.acquire());
        eventually("it is on its way", || {
            world.command::<i64>(&["EXISTS", "n"]) == 1 || waiting.is_finished()
        })
        .await;
        let guard = soon("others go on", other.acquire()).await.unwrap();
        soon("others go on", guard.release()).await.unwrap();
        let delayed = waiting.is_finished();
        let error = soon("it is answered", waiting).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated);
        if !delayed {
            break;
        }
        assert!(tries < 20, "others waited for the replica {tries} times");
    }
    signal(nix::sys::signal::Signal::SIGCONT);
    soon("again", replicated.acquire_with(AcquireOptions::new()))
        .await
        .map(drop)
        .ok();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn it_is_really_off_by_default() {
    let (mut world, _replicas) = with_replicas(1).await;
    let clients = |world: &mut World| {
        let list: String = world.command(&["CLIENT", "LIST", "TYPE", "normal"]);
        list.lines()
            .filter(|line| line.contains("name=redlatch"))
            .count()
    };
    world
        .lock("n")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let before = clients(&mut world);
    let mut monitor = Monitor::new(&world.server);
    world
        .lock("n")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let seen = monitor.until_now(&mut world);
    let ours: Vec<&String> = seen
        .iter()
        .filter(|line| line.contains("EVALSHA") || line.contains("WAIT"))
        .collect();
    assert_eq!(ours.len(), 2, "{seen:#?}");
    assert_eq!(clients(&mut world), before);
    // On: one connection more, for all locks, and one command more for each acquisition.
    for _ in 0..3 {
        lock(&world.client, 1)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(clients(&mut world), before + 1);
    let waits: Vec<String> = monitor.until_now(&mut world);
    assert_eq!(
        waits
            .iter()
            .filter(|line| line.contains("\"WAIT\" \"1\""))
            .count(),
        3,
        "{waits:#?}"
    );
}

/// Such acquisitions have a connection of their own. The server has no place for it, and the others
/// are in good order.
#[tokio::test]
async fn a_connection_that_is_refused_is_told_as_what_it_is() {
    let (mut world, _replicas) = with_replicas(1).await;
    world.command::<String>(&["CONFIG", "SET", "maxclients", "1"]);
    let lock = lock(&world.client, 1);
    for wait in [ms(0), ms(3000)] {
        let error = soon("refused", lock.acquire_timeout(wait))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let text = error.message();
        assert!(
            text.contains("max number of clients") && text.contains("raise maxclients"),
            "{error}"
        );
    }
    world.command::<String>(&["CONFIG", "SET", "maxclients", "100"]);
    soon("granted", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}
