//! The public faces against a real server, promise by promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod cancelling;
mod clients;
mod counters;
mod credentials;
mod direct;
mod input;
mod invalidations;
mod kinds;
mod locking;
mod losing;
mod memory_server;
mod multi;
mod reading;
mod refusals;
mod replicas;
mod semaphores;
mod slow;
mod tls;
mod together;
mod tokens;
mod traits;
mod ways_to_wait;
mod wire_budget;
mod wrong_uses;

use std::time::{Duration, Instant};

use redlatch::{Client, ClientOptions, ErrorKind, Lock, Operation};
use support::Server;

/// How long a busy machine may take for something that takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// A server, one client of it, and a connection to look at the data.
struct World {
    server: Server,
    client: Client,
    look: redis::Connection,
}

impl World {
    async fn new() -> World {
        let server = Server::start();
        let client = Client::connect(&server.url()).await.expect("connected");
        let look = server.connect();
        World {
            server,
            client,
            look,
        }
    }

    /// A world whose client makes no direct connection: where commands or connections are counted,
    /// as it is made at some time.
    async fn without_direct() -> World {
        let mut world = World::new().await;
        let options = ClientOptions::new().direct(false);
        world.client = Client::builder(&world.server.url())
            .options(options)
            .build()
            .expect("built");
        world.client.ready().await.expect("connected");
        world
    }

    /// Another client of the same server.
    async fn another(&self) -> Client {
        Client::connect(&self.server.url())
            .await
            .expect("connected")
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a name")
    }

    /// Runs a command on the looking connection.
    fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.look).expect("an answer")
    }

    /// No key, no subscription, no hold and no waiter is left.
    fn is_clean(&mut self) -> bool {
        let stats = self.client.stats();
        stats.holds == 0
            && stats.waiting == 0
            && self.command::<u64>(&["DBSIZE"]) == 0
            && self
                .command::<Vec<String>>(&["PUBSUB", "CHANNELS"])
                .is_empty()
    }
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Fails the test instead of letting it hang.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}

async fn refusal<T: std::fmt::Debug>(operation: Operation<T>) -> ErrorKind {
    soon("an answer", operation)
        .await
        .expect_err("refused")
        .kind()
}

/// Small reproducible random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
