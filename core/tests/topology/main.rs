//! The public face against Sentinel sets and clusters, while they change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod quorum;
mod sentinel;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, ClientOptions, ClusterPubsub, ErrorKind, Guard, LockOptions, LostReason};

/// How long a busy machine may take for anything here.
const LIMIT: Duration = Duration::from_secs(90);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client that waits out a fail-over.
async fn client(url: &str) -> Client {
    client_with(url, ClientOptions::new()).await
}

async fn client_with(url: &str, options: ClientOptions) -> Client {
    let options = options.outage(LIMIT).connect_timeout(ms(3000));
    let client = Client::builder(url)
        .options(options)
        .build()
        .expect("a client");
    soon("the servers", client.ready())
        .await
        .expect("connected");
    client
}

/// Fails the test instead of letting it hang.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Callers that take locks in turn, and notice when two of them believe to hold the same one.
#[derive(Default)]
struct Round {
    /// How many hold each name, as far as they know.
    inside: Vec<AtomicU32>,
    entered: AtomicU64,
    lost: AtomicU64,
    overlaps: AtomicU64,
    over: AtomicU32,
}

impl Round {
    /// Has `callers` of each client take each of the names again and again, until it is over.
    fn start(
        clients: &[Client],
        names: &[String],
        callers: usize,
    ) -> (Arc<Round>, Vec<tokio::task::JoinHandle<()>>) {
        let round = Round {
            inside: names.iter().map(|_| AtomicU32::new(0)).collect(),
            ..Round::default()
        };
        let round = Arc::new(round);
        let mut tasks = Vec::new();
        for client in clients {
            for (at, name) in names.iter().enumerate() {
                for _ in 0..callers {
                    let lock = client
                        .lock_with(name, LockOptions::new().watchdog_lease(ms(20_000)))
                        .unwrap();
                    let round = round.clone();
                    tasks.push(tokio::spawn(async move {
                        while round.over.load(Ordering::SeqCst) == 0 {
                            let guard = lock.acquire().await.expect("every waiter is served");
                            round.hold(at, &guard).await;
                            match guard.release().await {
                                Ok(()) => {}
                                Err(error) if error.kind() == ErrorKind::Lost => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }));
                }
            }
        }
        (round, tasks)
    }

    async fn hold(&self, at: usize, guard: &Guard) {
        let others = self.inside[at].fetch_add(1, Ordering::SeqCst);
        if others > 0 && guard.is_held() {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let told = tokio::time::timeout(ms(3), guard.lost()).await.is_ok();
        if told {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
        self.inside[at].fetch_sub(1, Ordering::SeqCst);
        self.entered.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for this many more grants.
    async fn goes_on(&self, grants: u64) {
        let from = self.entered.load(Ordering::SeqCst);
        eventually("the round goes on", || {
            self.entered.load(Ordering::SeqCst) >= from + grants
        })
        .await;
    }

    /// Ends it; every caller comes back.
    async fn end(&self, tasks: Vec<tokio::task::JoinHandle<()>>) {
        self.over.store(1, Ordering::SeqCst);
        for task in tasks {
            soon("a caller", task).await.expect("no caller fails");
        }
    }
}

/// Takes so many locks that nobody else wants.
async fn take(client: &Client, what: &str, count: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for at in 0..count {
        let lock = client
            .lock_with(
                &format!("{what}:{at}"),
                LockOptions::new().watchdog_lease(ms(60_000)),
            )
            .unwrap();
        guards.push(soon("a lock", lock.acquire()).await.unwrap());
    }
    guards
}

/// Every hold is either there, or its holder is told before its next renewal is due. Returns how
/// many were lost.
async fn kept_or_told(holds: &[Guard], is_there: impl Fn(&Guard) -> bool) -> usize {
    let mut lost = 0;
    for guard in holds.iter().filter(|guard| !is_there(guard)) {
        let start = Instant::now();
        soon("the holder is told", guard.lost()).await;
        assert!(
            start.elapsed() < ms(15_000),
            "told after {:?}",
            start.elapsed()
        );
        lost += 1;
    }
    lost
}

/// Whether this server has the hold.
fn has(server: &support::Server, guard: &Guard) -> bool {
    server.ask::<u32>(&format!("HEXISTS {} {}", guard.name(), guard.owner())) == 1
}
