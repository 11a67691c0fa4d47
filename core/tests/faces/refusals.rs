//! Refusals of a server, provoked for real: what passes is waited for, the rest is told with its
//! remedy.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use redlatch::{Error, Guard, LockOptions, Protocol};
use tokio::task::JoinHandle;

use super::*;

impl World {
    fn set(&mut self, name: &str, value: &str) {
        self.command::<String>(&["CONFIG", "SET", name, value]);
    }

    /// Makes a replica of it, or a primary again.
    fn replica_of(&mut self, host: &str, port: &str) {
        self.command::<String>(&["REPLICAOF", host, port]);
    }

    /// Asks until the server refuses with this code.
    async fn refused_with(&self, code: &str) -> Error {
        // A lock that is taken just before the server begins to refuse cannot be released: it ends
        // soon.
        let lock = self
            .client
            .lock_with("asked", LockOptions::new().lease(ms(200)))
            .unwrap();
        let asking = async {
            loop {
                match lock.try_acquire().await {
                    Err(error) if error.message().contains(code) => return error,
                    Ok(Some(guard)) => drop(guard.release().await),
                    _ => {}
                }
                tokio::time::sleep(ms(5)).await;
            }
        };
        soon(code, asking).await
    }

    /// A single try is refused with this code; who waits is still waiting after another refusal.
    async fn waits_for_the_end_of(&self, code: &str) -> JoinHandle<redlatch::Result<Guard>> {
        let error = self.refused_with(code).await;
        assert_eq!(error.kind(), ErrorKind::Server, "{error}");
        assert!(error.kind().retryable());
        let calls = self.client.stats().calls;
        let waiting = tokio::spawn(self.lock("n").acquire_timeout(LIMIT));
        eventually("it has tried", || self.client.stats().calls > calls + 1).await;
        assert!(!waiting.is_finished());
        waiting
    }
}

/// The caller that waited through a refusal gets the lock.
async fn acquired(waiting: JoinHandle<redlatch::Result<Guard>>) {
    soon("the lock", waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_server_that_runs_a_script_is_waited_for() {
    let mut world = World::new().await;
    world.set("lua-time-limit", "20");
    let mut stream = TcpStream::connect(("127.0.0.1", world.server.port())).unwrap();
    stream
        .write_all(b"EVAL \"while true do end\" 0\r\n")
        .unwrap();
    let waiting = world.waits_for_the_end_of("BUSY").await;
    world.command::<String>(&["SCRIPT", "KILL"]);
    acquired(waiting).await;
}

#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_the_primary() {
    let mut world = World::new().await;
    // Nobody is there: it stays a replica that serves what it has.
    world.replica_of("127.0.0.1", "1");
    let waiting = world.waits_for_the_end_of("READONLY").await;
    world.replica_of("NO", "ONE");
    acquired(waiting).await;

    world.set("replica-serve-stale-data", "no");
    world.replica_of("127.0.0.1", "1");
    let waiting = world.waits_for_the_end_of("MASTERDOWN").await;
    world.replica_of("NO", "ONE");
    acquired(waiting).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_for() {
    let mut world = World::new().await;
    let primary = Server::start();
    let fill = "for i = 1, 5000 do redis.call('SET', 'key' .. i, i) end";
    redis::cmd("EVAL")
        .arg(fill)
        .arg(0)
        .exec(&mut primary.connect())
        .unwrap();
    // It has to load what a primary sends, and takes its time.
    let often: redis::RedisResult<()> = redis::cmd("CONFIG")
        .arg(&["SET", "loading-process-events-interval-bytes", "1024"])
        .exec(&mut world.look);
    if often.is_err() {
        // Redis 6 answers nobody while it loads so little.
        return;
    }
    world.set("key-load-delay", "2000");
    world.replica_of("127.0.0.1", &primary.port().to_string());
    let waiting = world.waits_for_the_end_of("LOADING").await;
    world.set("key-load-delay", "0");
    let mut admin = world.server.connect();
    let is_over = || {
        redis::cmd("REPLICAOF")
            .arg(&["NO", "ONE"])
            .exec(&mut admin)
            .is_ok()
    };
    eventually("all is loaded", is_over).await;
    acquired(waiting).await;
}

#[tokio::test]
async fn a_server_that_may_not_write_is_waited_for() {
    let mut world = World::new().await;
    world.set("min-replicas-to-write", "1");
    let waiting = world.waits_for_the_end_of("NOREPLICAS").await;
    world.set("min-replicas-to-write", "0");
    acquired(waiting).await;

    // A snapshot that cannot be written, because its folder is gone.
    world.set("save", "3600 1");
    let (_, folder): (String, String) = world.command(&["CONFIG", "GET", "dir"]);
    fs::remove_dir_all(folder).unwrap();
    world.command::<redis::Value>(&["BGSAVE"]);
    let waiting = world.waits_for_the_end_of("MISCONF").await;
    world.set("stop-writes-on-bgsave-error", "no");
    acquired(waiting).await;
}

#[tokio::test]
async fn a_full_server_is_told_at_once() {
    let mut world = World::new().await;
    let guard = world.lock("held").acquire().await.unwrap();
    world.set("maxmemory", "1");
    let lock = world.lock("n");
    for refused in [
        soon("an answer", lock.acquire()).await.err(),
        lock.try_acquire().await.err(),
    ] {
        let error = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::Server, "{error}");
        assert!(
            error.message().contains("OOM") && error.message().contains("raise maxmemory"),
            "{error}"
        );
    }
    // A command that frees memory is not refused.
    soon("the release", guard.release()).await.unwrap();
    world.set("maxmemory", "0");
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_is_told_at_once() {
    let mut world = World::new().await;
    world.command::<String>(&[
        "ACL", "SETUSER", "app", "on", ">geheim", "~n", "+ping", "+time",
    ]);
    let url = world
        .server
        .url()
        .replace("redis://", "redis://app:geheim@");
    let client = soon("the server", Client::connect(&url)).await.unwrap();
    let error = soon("an answer", client.lock("n").unwrap().acquire())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        error.message().contains("NOPERM") && error.message().contains("ACL"),
        "{error}"
    );
    world.command::<String>(&["ACL", "SETUSER", "app", "+@all"]);
    // Another key than those of the user.
    let error = soon("an answer", client.lock("m").unwrap().acquire())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    soon("the lock", client.lock("n").unwrap().acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_told_and_tried_again() {
    let mut world = World::new().await;
    world.set("maxclients", "2");
    let url = world.server.url();
    for protocol in [Protocol::Auto, Protocol::Resp2, Protocol::Resp3] {
        let options = ClientOptions::new().protocol(protocol);
        let client = Client::builder(&url).options(options).build().unwrap();
        let error = soon("the refusal", client.ready()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let text = error.message();
        assert!(
            text.contains("max number of clients") && text.contains("raise maxclients"),
            "{error}"
        );
        client.close().await.unwrap();
    }
    world.set("maxclients", "100");
    soon("the server", Client::connect(&url)).await.unwrap();
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let mut world = World::new().await;
    world.command::<String>(&["SCRIPT", "FLUSH"]);
    let guard = soon("the lock", world.lock("n").acquire()).await.unwrap();
    world.command::<String>(&["SCRIPT", "FLUSH"]);
    soon("the release", guard.release()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_warned_about_once() {
    let mut world = World::new().await;
    let url = world.server.url();
    let warnings = |client: &Client| {
        let events = client.events();
        events
            .into_iter()
            .filter(|event| event.kind == "evictable")
            .map(|event| event.text)
            .collect::<Vec<_>>()
    };
    assert!(warnings(&world.client).is_empty());
    for (policy, memory, expected) in [
        ("allkeys-lru", "100mb", 1),
        ("volatile-ttl", "100mb", 1),
        ("noeviction", "100mb", 0),
        ("allkeys-lru", "0", 0),
    ] {
        world.set("maxmemory-policy", policy);
        world.set("maxmemory", memory);
        let client = soon("the server", Client::connect(&url)).await.unwrap();
        let told = warnings(&client);
        assert_eq!(told.len(), expected, "{policy} {memory}: {told:?}");
        assert!(
            told.iter()
                .all(|text| text.contains(policy) && text.contains("noeviction")),
            "{told:?}"
        );
        // Not again with the next connection.
        world.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        eventually("it is connected again", || client.stats().connects == 2).await;
        soon("the lock", client.lock("n").unwrap().acquire())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(warnings(&client).is_empty());
    }
}

/// Longer than a test waits for anything.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn releases_and_close_wait_for_one_outage_once() {
    let mut world = World::new().await;
    let options = ClientOptions::new().outage(ms(500)).close_limit(LONG);
    let client = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    let guards = [
        soon("the lock", client.lock("a").unwrap().acquire())
            .await
            .unwrap(),
        soon("the lock", client.lock("b").unwrap().acquire())
            .await
            .unwrap(),
    ];
    world.server.kill();
    for guard in guards {
        let error = soon("an answer", guard.release()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("option outage (500ms)"), "{error}");
    }
    let error = soon("closed", client.close()).await.unwrap_err();
    assert_eq!(error.unreleased(), ["a", "b"]);
}
