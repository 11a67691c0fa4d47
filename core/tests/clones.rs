//! Copies of a process, as a restored snapshot makes them, do not acquire as one owner.
//!
//! A snapshot of a whole machine cannot be had in a test. The part that matters can: two clients that
//! have drawn the same random numbers and have done the same, whose connections then break. The
//! operating system is made to give the same random bytes by a library that is loaded in front of
//! it, for as long as a file is there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use redlatch::{Client, ClientOptions};
use support::Server;

/// How long a busy machine may take for something that takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);
/// Names the file; set in the process that has the library.
const FIXED: &str = "REDLATCH_TEST_FIXED";

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    const char *file = getenv("REDLATCH_TEST_FIXED");
    if (file == NULL || access(file, F_OK) != 0) return syscall(SYS_getrandom, buffer, length, flags);
    memset(buffer, 0x42, length);
    return (ssize_t)length;
}
"#;

#[test]
fn copies_of_a_process_acquire_as_different_owners() {
    if let Some(file) = std::env::var_os(FIXED) {
        return tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(play(Path::new(&file)));
    }
    let server = Server::start();
    let dir = server.socket().parent().unwrap().to_owned();
    let (source, library, file) = (dir.join("shim.c"), dir.join("shim.so"), dir.join("fixed"));
    std::fs::write(&source, SHIM).unwrap();
    std::fs::write(&file, "").unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    let this = "copies_of_a_process_acquire_as_different_owners";
    let played = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env("LD_PRELOAD", &library)
        .env(FIXED, &file)
        .env("REDLATCH_TEST_URL", server.url())
        .status();
    assert!(played.unwrap().success());
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn copy(url: &str) -> Client {
    // One connection for everything: the answers come in the order of the questions.
    let client = Client::builder(url)
        .options(ClientOptions::new().direct(false))
        .build()
        .unwrap();
    client.ready().await.unwrap();
    client
}

async fn play(file: &Path) {
    let url = std::env::var("REDLATCH_TEST_URL").unwrap();
    let mut look = redis::Client::open(&*url)
        .unwrap()
        .get_connection()
        .unwrap();
    let copies = [copy(&url).await, copy(&url).await];
    assert_eq!(
        copies[0].id().unwrap(),
        copies[1].id().unwrap(),
        "they are copies"
    );
    let mut owners = Vec::new();
    for client in &copies {
        let guard = client.lock("before").unwrap().acquire().await.unwrap();
        owners.push(guard.owner());
        guard.release().await.unwrap();
    }
    assert_eq!(owners[0], owners[1], "they are copies");

    // Both wait for a lock that somebody else has.
    redis::cmd("HSET")
        .arg(&["n", "somebody:1", "1"])
        .exec(&mut look)
        .unwrap();
    let waiting = copies.each_ref().map(|client| {
        let lock = client.lock("n").unwrap();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    });
    eventually("both listen", || {
        let mut ask = redis::cmd("PUBSUB");
        ask.arg(&["NUMSUB", "redisson_lock__channel:{n}"]);
        ask.query::<(String, u64)>(&mut look).unwrap().1 == 2
    })
    .await;

    // The copies go on: with random numbers of their own and without connections. The lock is free.
    std::fs::remove_file(file).unwrap();
    let mut all = redis::pipe();
    all.atomic()
        .cmd("DEL")
        .arg("n")
        .cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    all.cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]);
    all.exec(&mut look).unwrap();
    for client in &copies {
        eventually("connected again", || client.stats().connects >= 2).await;
        // Its try for the lock was sent before, on this connection: it is answered.
        let guard = client.lock("then").unwrap().acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    // A task that was granted something has been woken, and takes its turn before this one goes on.
    tokio::task::yield_now().await;
    let inside = || waiting.iter().filter(|waiter| waiter.is_finished()).count();
    eventually("one has it", || inside() > 0).await;
    assert_eq!(inside(), 1, "both copies hold one lock");

    // The one who has it gives it back, and the other one gets it.
    let [one, other] = waiting;
    let (first, second) = if one.is_finished() {
        (one, other)
    } else {
        (other, one)
    };
    let guard = first.await.unwrap();
    let owner = guard.owner();
    guard.release().await.unwrap();
    assert_ne!(second.await.unwrap().owner(), owner);
}
