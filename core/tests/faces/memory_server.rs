//! The server in memory: a test decides when a lock is lost and when the server is out of reach.

use std::net::TcpStream;

use redlatch::testing::MemoryServer;
use redlatch::{
    AcquireOptions, Client, ClientOptions, ErrorKind, Kind, LockOptions, LostReason, Protocol,
};

use super::{eventually, ms, soon};

async fn served() -> (MemoryServer, Client) {
    let server = MemoryServer::start().unwrap();
    let client = Client::connect(server.url()).await.unwrap();
    (server, client)
}

#[tokio::test]
async fn two_clients_wait_for_each_other() {
    let (server, client) = served().await;
    let other = Client::connect(server.url()).await.unwrap();
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    let theirs = other.lock("n").unwrap();
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || other.stats().waiting == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the release", waits).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn the_holder_of_each_kind_is_told_that_its_lock_was_taken_away() {
    let (server, client) = served().await;
    for name in Kind::ALL
        .into_iter()
        .filter(|name| !["read", "write", "semaphore"].contains(name))
    {
        let kind = Kind::named(name).unwrap();
        let lock = client
            .lock_with(name, LockOptions::new().kind(kind))
            .unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(server.take_away(name), "{name}");
        assert_eq!(
            soon(name, guard.lost()).await,
            LostReason::Deleted,
            "{name}"
        );
        assert!(!server.take_away(name), "{name} is gone");
    }
    let permits = client.semaphore("permits", 2).unwrap();
    let guard = permits.acquire().await.unwrap();
    assert!(server.take_away("permits"));
    soon("the loss", guard.lost()).await;
    let sides = client.rw_lock("rw").unwrap();
    for side in [sides.read(), sides.write()] {
        let guard = side.acquire().await.unwrap();
        assert!(server.take_away("rw"));
        soon("the loss", guard.lost()).await;
    }
}

#[tokio::test]
async fn a_lease_runs_out_when_the_clock_is_moved() {
    let (server, client) = served().await;
    let other = Client::connect(server.url()).await.unwrap();
    let options = AcquireOptions::new().lease(ms(600_000));
    let guard = client
        .lock("n")
        .unwrap()
        .acquire_with(options)
        .await
        .unwrap();
    let theirs = other.lock("n").unwrap();
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || other.stats().waiting == 1).await;
    server.advance(ms(599_000));
    assert!(guard.is_held(), "a second is left");
    server.advance(ms(2_000));
    soon("the loss", guard.lost()).await;
    // The other one is told nothing, as by a server whose key has expired, but looks in time.
    let got = soon("the lock", waits).await.unwrap().unwrap();
    got.release().await.unwrap();
    // The clients have the new clock: nothing that they send comes too late.
    drop(
        soon("the lock", client.lock("n").unwrap().acquire())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_watched_lock_is_lost_when_the_clock_passes_its_lease() {
    let (server, client) = served().await;
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    server.advance(ms(31_000));
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Deleted);
}

#[tokio::test]
async fn a_paused_server_is_unavailable_until_it_is_resumed() {
    let server = MemoryServer::start().unwrap();
    let options = ClientOptions::new()
        .connect_timeout(ms(200))
        .outage(ms(300));
    let client = Client::builder(server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    server.pause();
    let refused = soon("an answer", client.lock("n").unwrap().acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    // What concerns the server itself is possible meanwhile.
    server.empty();
    server.resume();
    let lock = client.lock("n").unwrap();
    let guard = soon(
        "the lock",
        lock.acquire_with(AcquireOptions::new().wait(ms(20_000))),
    )
    .await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hold_outlives_its_connection() {
    let (server, client) = served().await;
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    let before = client.stats().connects;
    server.disconnect();
    eventually("a new connection", || client.stats().connects > before).await;
    assert!(guard.is_held());
    soon("the release", guard.release()).await.unwrap();
}

#[tokio::test]
async fn all_locks_are_lost_when_the_server_is_emptied() {
    let (server, client) = served().await;
    let guards = [
        client.lock("a").unwrap().acquire().await.unwrap(),
        client.lock("b").unwrap().acquire().await.unwrap(),
    ];
    server.empty();
    for guard in guards {
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Deleted);
    }
}

#[tokio::test]
async fn an_older_protocol_does_as_well() {
    let server = MemoryServer::start().unwrap();
    let options = ClientOptions::new().protocol(Protocol::Resp2);
    let first = Client::builder(server.url())
        .options(options.clone())
        .build()
        .unwrap();
    let second = Client::builder(server.url())
        .options(options)
        .build()
        .unwrap();
    let guard = first.lock("n").unwrap().acquire().await.unwrap();
    let theirs = second.lock("n").unwrap();
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || second.stats().waiting == 1).await;
    guard.release().await.unwrap();
    drop(soon("the release", waits).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_command_that_it_lacks_is_named() {
    let server = MemoryServer::start().unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let refused = redis::cmd("BITCOUNT")
        .arg("n")
        .query::<i64>(&mut connection)
        .unwrap_err();
    assert!(refused.to_string().contains("'BITCOUNT'"), "{refused}");
}

#[test]
fn it_ends_with_its_value() {
    let server = MemoryServer::start().unwrap();
    let address = server.url().trim_start_matches("redis://").to_owned();
    drop(TcpStream::connect(&address).unwrap());
    drop(server);
    TcpStream::connect(&address).unwrap_err();
}
