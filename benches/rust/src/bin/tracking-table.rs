//! The commands that client tracking costs a server. Its table of tracked keys is too small, exactly
//! full, or large enough.
//!
//! ```text
//! . scripts/env.sh && cargo run --release -p redlatch-bench --bin tracking-table
//! ```
//!
//! Two clients hold the same number of locks, one with tracking and one without, each at a server
//! of its own. Beside each of them another program reads keys in a loop and has them tracked, as a
//! client-side cache does. Commands of locks are counted while the client without tracking renews
//! each lock three times. Ends with `tracking: rows=N worst=N.NN`, the most commands with tracking
//! for one without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program that measures ends when something is wrong"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redlatch::{Client, ClientOptions, Guard, LockOptions};

const HOLDS: usize = 200;
const LEASE: Duration = Duration::from_secs(3);
const ROUNDS: u64 = 3;
/// The size of the table, and how many keys the other program has tracked.
const ROWS: [(&str, usize, usize); 4] = [
    ("100", 100, 100),
    ("1,000,000", 1_000_000, 100),
    ("exactly full", 20_000, 20_000 - HOLDS),
    ("5 % too small", 20_000, 21_000 - HOLDS),
];
/// The commands of locks, in scripts and outside.
const COUNTED: [&str; 7] = [
    "eval", "evalsha", "hmget", "pexpire", "pttl", "exists", "time",
];

struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Server {
    fn start(table: usize) -> Server {
        let program =
            std::env::var_os("REDLATCH_SERVER_BIN").expect("REDLATCH_SERVER_BIN names a server");
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let dir = std::env::temp_dir().join(format!("redlatch-tracking-{port}"));
        std::fs::create_dir_all(&dir).unwrap();
        let child = Command::new(program)
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .args(["--tracking-table-max-keys", &table.to_string(), "--dir"])
            .arg(&dir)
            .stdout(Stdio::null())
            .spawn()
            .expect("the server runs");
        let server = Server { child, port, dir };
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap())
    }

    fn info(&self, section: &str) -> String {
        let mut connection = self.connect();
        send(&mut connection, &["INFO", section]);
        let mut size = String::new();
        connection.read_line(&mut size).unwrap();
        let mut text = vec![0; size[1..].trim().parse().unwrap()];
        connection.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn commands(&self) -> u64 {
        let info = self.info("commandstats");
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            COUNTED
                .contains(&name)
                .then(|| rest.split(',').next()?.parse::<u64>().ok())?
        });
        calls.sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn send(connection: &mut BufReader<TcpStream>, words: &[&str]) {
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    let text = format!("*{}\r\n{}", words.len(), words.concat());
    connection.get_mut().write_all(text.as_bytes()).unwrap();
}

/// Reads keys that do not exist, a hundred at a time, and has them tracked. Invalidations come in
/// between.
fn read_keys(connection: &mut BufReader<TcpStream>, keys: usize) {
    let all: Vec<usize> = (0..keys).collect();
    for some in all.chunks(100) {
        let text: String = some
            .iter()
            .map(|key| format!("*2\r\n$3\r\nGET\r\n$9\r\no{key:08}\r\n"))
            .collect();
        connection.get_mut().write_all(text.as_bytes()).unwrap();
        let mut answers = 0;
        let mut line = String::new();
        while answers < some.len() {
            line.clear();
            assert!(
                connection.read_line(&mut line).unwrap() > 0,
                "the server is there"
            );
            answers += usize::from(line == "_\r\n");
        }
    }
}

struct Side {
    server: Server,
    client: Client,
    guards: Vec<Guard>,
    over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Side {
    fn start(table: usize, others: usize, tracking: bool) -> Side {
        let server = Server::start(table);
        let mut connection = server.connect();
        send(&mut connection, &["HELLO", "3"]);
        send(&mut connection, &["CLIENT", "TRACKING", "ON"]);
        read_keys(&mut connection, others);
        let options = ClientOptions::new().tracking(tracking).direct(false);
        let url = format!("redis://127.0.0.1:{}/", server.port);
        let client = Client::builder(&url).options(options).build().unwrap();
        let terms = || LockOptions::new().watchdog_lease(LEASE);
        let acquire = |at| {
            client
                .lock_with(&format!("n{at}"), terms())
                .unwrap()
                .acquire()
                .wait()
                .unwrap()
        };
        let guards = (0..HOLDS).map(acquire).collect();
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let reader = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                read_keys(&mut connection, others);
            }
        });
        Side {
            server,
            client,
            guards,
            over,
            reader: Some(reader),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

fn main() {
    println!(
        "| table | tracked by others | commands/s without tracking | with | renewals/s without | with | held |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut worst: f64 = 0.0;
    for (name, table, others) in ROWS {
        let sides = [false, true].map(|tracking| Side::start(table, others, tracking));
        let counts = || {
            sides
                .each_ref()
                .map(|side| (side.server.commands(), side.client.stats().renewed))
        };
        let (start, before) = (Instant::now(), counts());
        while sides[0].client.stats().renewed < before[0].1 + ROUNDS * HOLDS as u64 {
            thread::sleep(Duration::from_millis(5));
        }
        let (took, after) = (start.elapsed().as_secs_f64(), counts());
        let [without, with] =
            [0, 1].map(|at| (after[at].0 - before[at].0, after[at].1 - before[at].1));
        let held = sides[1]
            .guards
            .iter()
            .filter(|guard| guard.is_held())
            .count();
        let rate = |count: u64| (count as f64 / took).round();
        println!(
            "| {name} | {others} | {} | {} | {} | {} | {held} |",
            rate(without.0),
            rate(with.0),
            rate(without.1),
            rate(with.1)
        );
        worst = worst.max(with.0 as f64 / without.0 as f64);
    }
    println!("tracking: rows={} worst={worst:.2}", ROWS.len());
}
