//! Servers that belong together: a Sentinel set and a cluster of a test's own.

use std::time::{Duration, Instant};

use redis::{ConnectionLike, FromRedisValue};
use serde_json::{Value, json};

use super::Server;
use super::starter::Started;

/// How long a set may take to agree on anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The slots of a cluster.
const SLOTS: u16 = 16384;

impl Server {
    /// Runs a command.
    pub fn ask<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_ask(words)
            .unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Runs a command on a server that may be gone, or may refuse.
    pub fn try_ask<T: FromRedisValue>(&self, words: &str) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut command = redis::Cmd::new();
        command.arg(words);
        T::from_redis_value(connection.req_command(&command)?.extract_error()?).map_err(Into::into)
    }

    /// Sends nothing to its replicas any more, while the clients that it has are served.
    pub fn cut_replicas_off(&self) {
        let mut connection = self.connect();
        let mut run = |words: &[&str]| {
            let mut command = redis::Cmd::new();
            command
                .arg(words)
                .query::<redis::Value>(&mut connection)
                .expect("an answer");
        };
        // They cannot log in again.
        run(&["CONFIG", "SET", "requirepass", "nobody knows"]);
        run(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Whether it says that it is the primary.
    pub fn is_primary(&self) -> bool {
        self.try_ask::<String>("INFO replication")
            .is_ok_and(|info| info.contains("role:master"))
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A primary, a replica, and three sentinels that watch them.
pub struct SentinelSet {
    /// They come first, because fields are dropped in this order: a sentinel that outlives its
    /// servers makes a replica of whatever starts at a port that has become free.
    pub sentinels: Vec<Server>,
    /// The first one began as the primary.
    pub servers: Vec<Server>,
    set: Started,
}

impl SentinelSet {
    /// Starts a set whose members know each other.
    pub fn start() -> SentinelSet {
        let set = Started::start("sentinel", &[], json!({"replicas": 1}));
        SentinelSet {
            sentinels: set.servers("sentinels"),
            servers: set.servers("nodes"),
            set,
        }
    }

    /// `redis+sentinel://hosts/service`
    pub fn url(&self) -> String {
        self.set.text("url")
    }

    /// Has the replica take over while the primary is alive.
    pub fn fail_over(&self) {
        self.set.call("failover", &[]);
    }
}

/// A cluster: primaries with the slots spread over them, and as many replicas behind.
pub struct Cluster {
    /// The primaries, then the replica of each, as they began.
    pub nodes: Vec<Server>,
    /// How many primaries there were.
    pub primaries: usize,
    set: Started,
}

impl Cluster {
    /// Starts a cluster that takes commands.
    pub fn start(primaries: usize, replicas: bool) -> Cluster {
        // A node that has slots serves them, whichever others are gone.
        let options = ["--cluster-require-full-coverage", "no"];
        let replicas = if replicas { primaries } else { 0 };
        let with = json!({"primaries": primaries, "replicas": replicas, "node_timeout_ms": 2000});
        let set = Started::start("cluster", &options, with);
        Cluster {
            nodes: set.servers("nodes"),
            primaries,
            set,
        }
    }

    /// The slots that a primary had in the beginning.
    pub fn slots(&self, primary: usize) -> std::ops::Range<u16> {
        let share =
            |at: usize| u16::try_from(usize::from(SLOTS) * at / self.primaries).expect("a slot");
        share(primary)..share(primary + 1)
    }

    /// `redis+cluster://hosts`
    pub fn url(&self) -> String {
        self.set.text("url")
    }

    /// The slot of a key, as the server computes it.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[self.primaries - 1].ask(&format!("CLUSTER KEYSLOT {key}"))
    }

    /// Begins to move a slot: the new node takes it in, the old one gives it away.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.of_slot("begin_move", slot, from, to, &[]);
    }

    /// Moves the keys that a slot has now, or so many of them.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, at_most: Option<u16>) {
        self.of_slot("move_keys", slot, from, to, &[at_most.into()]);
    }

    /// The slot belongs to the new node from now on.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        self.of_slot("end_move", slot, from, to, &[]);
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to, None);
        self.end_move(slot, from, to);
    }

    fn of_slot(&self, method: &str, slot: u16, from: usize, to: usize, more: &[Value]) {
        let server = |at: usize| self.nodes[at].0.0.clone();
        let args = [slot.into(), server(from), server(to)];
        self.set.call(method, &[&args, more].concat());
    }
}
