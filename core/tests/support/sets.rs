//! Servers that belong together: a Sentinel set and a cluster of a test's own.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::{ConnectionLike, FromRedisValue};

use super::{Server, program, run, socket_in};

/// How long a set may take to agree on anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The sentinels' name of the service.
pub const SERVICE: &str = "main";
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

    /// `127.0.0.1 port`
    pub fn address(&self) -> String {
        format!("127.0.0.1 {}", self.port())
    }

    /// It does nothing any more, and its connections stay.
    pub fn hang(&self) {
        let pid = Pid::from_raw(self.pid().try_into().expect("a process"));
        kill(pid, Signal::SIGSTOP).expect("it is ours");
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
}

impl SentinelSet {
    /// Starts a set whose members know each other.
    pub fn start() -> SentinelSet {
        let primary = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
        let replica = Server::start_with(&["--repl-diskless-sync-delay", "0"]);
        replica.ask::<()>(&format!("REPLICAOF {}", primary.address()));
        eventually("the replica has its primary", || {
            replica
                .ask::<String>("INFO replication")
                .contains("master_link_status:up")
        });
        let sentinels = (0..3).map(|_| Server::start_sentinel(&primary)).collect();
        let set = SentinelSet {
            sentinels,
            servers: vec![primary, replica],
        };
        eventually("the sentinels know everybody", || {
            set.sentinels.iter().all(knows_all)
        });
        set
    }

    /// `redis+sentinel://hosts/service`
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The place of the primary, as the sentinels that are left agree on it.
    pub fn primary(&self) -> usize {
        let port: Vec<String> =
            self.sentinels[0].ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}"));
        self.servers
            .iter()
            .position(|server| server.port().to_string() == port[1])
            .expect("one of ours")
    }

    /// Has the replica take over while the primary is alive.
    pub fn fail_over(&self) {
        eventually("the sentinels agree to a fail-over", || {
            self.sentinels[0]
                .try_ask::<()>(&format!("SENTINEL FAILOVER {SERVICE}"))
                .is_ok()
        });
    }
}

/// Whether this sentinel knows the other two and the replica, so that they can agree on one.
fn knows_all(sentinel: &Server) -> bool {
    let info: redis::Value = sentinel.ask(&format!("SENTINEL MASTER {SERVICE}"));
    let info: std::collections::HashMap<String, String> =
        redis::from_redis_value(info).expect("pairs");
    info["num-slaves"] == "1" && info["num-other-sentinels"] == "2" && info["flags"] == "master"
}

impl Server {
    /// A sentinel that watches this primary.
    fn start_sentinel(primary: &Server) -> Server {
        let config = format!(
            "bind 127.0.0.1\n\
             sentinel monitor {SERVICE} {} 2\n\
             sentinel down-after-milliseconds {SERVICE} 5000\n\
             sentinel failover-timeout {SERVICE} 10000\n",
            primary.address()
        );
        Server::start_by(&|port, dir| sentinel(port, dir, &config))
    }
}

fn sentinel(port: u16, dir: &Path, config: &str) -> Child {
    let file = dir.join("sentinel.conf");
    let text = format!(
        "port {port}\ndir {}\nunixsocket {}\n{config}",
        dir.display(),
        socket_in(dir).display()
    );
    std::fs::write(&file, text).expect("its configuration");
    run(Command::new(program()).arg(file).arg("--sentinel"))
}

/// A cluster: primaries with the slots spread over them, and as many replicas behind.
pub struct Cluster {
    /// The primaries, then the replica of each, as they began.
    pub nodes: Vec<Server>,
    /// How many primaries there were.
    pub primaries: usize,
}

impl Cluster {
    /// Starts a cluster that takes commands.
    pub fn start(primaries: usize, replicas: bool) -> Cluster {
        let count = if replicas { 2 * primaries } else { primaries };
        let nodes = (0..count).map(|_| Server::start_node()).collect();
        let cluster = Cluster { nodes, primaries };
        cluster.join();
        cluster
    }

    fn join(&self) {
        let first = self.nodes[0].address();
        for (at, node) in self.nodes.iter().enumerate() {
            node.ask::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
            node.ask::<()>(&format!("CLUSTER MEET {first}"));
        }
        for (at, node) in self.nodes[..self.primaries].iter().enumerate() {
            let slots: Vec<String> = self.slots(at).map(|slot| slot.to_string()).collect();
            node.ask::<()>(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        let count = self.nodes.len();
        eventually("every node knows the others", || {
            self.nodes.iter().all(|node| {
                node.ask::<String>("CLUSTER NODES")
                    .matches("connected")
                    .count()
                    == count
            })
        });
        for (at, replica) in self.nodes[self.primaries..].iter().enumerate() {
            let id = self.id(at);
            eventually("a replica follows", || {
                replica
                    .try_ask::<()>(&format!("CLUSTER REPLICATE {id}"))
                    .is_ok()
            });
        }
        eventually("the cluster is up, and its replicas are", || {
            self.nodes.iter().all(|node| {
                node.ask::<String>("CLUSTER INFO")
                    .contains("cluster_state:ok")
            }) && self.nodes[self.primaries..].iter().all(|replica| {
                replica
                    .ask::<String>("INFO replication")
                    .contains("master_link_status:up")
            })
        });
        eventually("everybody knows the replicas", || {
            let replicas = count - self.primaries;
            self.nodes.iter().all(|node| {
                node.ask::<String>("CLUSTER NODES")
                    .matches("slave ")
                    .count()
                    == replicas
            })
        });
    }

    /// The slots that a primary had in the beginning.
    pub fn slots(&self, primary: usize) -> std::ops::Range<u16> {
        let share =
            |at: usize| u16::try_from(usize::from(SLOTS) * at / self.primaries).expect("a slot");
        share(primary)..share(primary + 1)
    }

    /// The name of a node inside the cluster.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].ask("CLUSTER MYID")
    }

    /// `redis+cluster://hosts`
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The slot of a key, as the server computes it.
    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[self.primaries - 1].ask(&format!("CLUSTER KEYSLOT {key}"))
    }

    /// Begins to move a slot: the new node takes it in, the old one gives it away.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.nodes[to].ask::<()>(&format!(
            "CLUSTER SETSLOT {slot} IMPORTING {}",
            self.id(from)
        ));
        self.nodes[from].ask::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to)));
    }

    /// Moves the keys that a slot has now.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        self.migrate(
            &self.nodes[from].ask::<Vec<String>>(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")),
            from,
            to,
        );
    }

    /// Moves these keys.
    pub fn migrate(&self, keys: &[String], from: usize, to: usize) {
        for key in keys {
            self.nodes[from].ask::<redis::Value>(&format!(
                "MIGRATE {} {key} 0 5000",
                self.nodes[to].address()
            ));
        }
    }

    /// The slot belongs to the new node from now on.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let id = self.id(to);
        for node in [to, from]
            .into_iter()
            .chain((0..self.primaries).filter(|node| ![from, to].contains(node)))
        {
            self.nodes[node].ask::<()>(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }
}

impl Server {
    /// A node that belongs to no cluster yet.
    fn start_node() -> Server {
        Server::start_with(&[
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            // A node that has slots serves them, whichever others are gone.
            "--cluster-require-full-coverage",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ])
    }
}
