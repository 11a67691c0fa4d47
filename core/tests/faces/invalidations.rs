//! A server that tracks more keys than its table has room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, ClientOptions, Guard, LockOptions};

use super::eventually;
use super::support::Server;

const HOLDS: usize = 200;
const LEASE: Duration = Duration::from_secs(6);
/// How often each hold is renewed while commands are counted.
const ROUNDS: u64 = 4;

/// A client with many holds at a server of its own, beside another program that reads keys.
struct Busy {
    server: Server,
    client: Client,
    guards: Vec<Guard>,
    over: Arc<AtomicBool>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Busy {
    async fn start(tracking: bool) -> Busy {
        let server = Server::start_with(&["--tracking-table-max-keys", "100"]);
        let options = ClientOptions::new().tracking(tracking).direct(false);
        let client = Client::builder(&server.url())
            .options(options)
            .build()
            .expect("built");
        let mut guards = Vec::new();
        for number in 0..HOLDS {
            let terms = LockOptions::new().watchdog_lease(LEASE);
            let lock = client
                .lock_with(&format!("n{number}"), terms)
                .expect("a name");
            guards.push(lock.acquire().await.expect("granted"));
        }
        // Before each of its commands the server looks whether its table is too full.
        let (over, mut connection) = (Arc::new(AtomicBool::new(false)), server.connect());
        let until = over.clone();
        let reader = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                redis::cmd("GET")
                    .arg("other")
                    .query::<Option<String>>(&mut connection)
                    .expect("an answer");
            }
        });
        Busy {
            server,
            client,
            guards,
            over,
            reader: Some(reader),
        }
    }

    /// How many commands of locks the server has done, in scripts and outside.
    fn commands(&self) -> u64 {
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.server.connect())
            .expect("an answer");
        let calls = stats.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let of_locks = [
                "eval", "evalsha", "hmget", "pexpire", "pttl", "exists", "time",
            ]
            .contains(&name);
            of_locks.then(|| rest.split(',').next()?.parse::<u64>().ok())?
        });
        calls.sum()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// 200 holds were renewed up to 92,000 times a second.
#[tokio::test]
async fn a_full_tracking_table_costs_at_most_twice_the_commands_and_is_told() {
    let (with, without) = (Busy::start(true).await, Busy::start(false).await);
    // The leases need this many renewals, and the client without tracking makes no more.
    let enough = ROUNDS * HOLDS as u64;
    eventually("holds are renewed", || {
        without.client.stats().renewed >= enough
    })
    .await;
    let (with_tracking, without_tracking) = (with.commands(), without.commands());
    assert!(
        with_tracking <= 2 * without_tracking,
        "{with_tracking} commands, {without_tracking} without"
    );
    let told = with
        .client
        .events()
        .into_iter()
        .filter(|event| event.kind == "tracking_suspended")
        .count();
    assert_eq!((told, with.guards.iter().all(Guard::is_held)), (1, true));
}
