//! The server ends connections, and answers clients that wait.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlatch_testing::MemoryServer;

const LIMIT: Duration = Duration::from_secs(30);

struct Peer(BufReader<TcpStream>);

impl Peer {
    fn of(server: &MemoryServer) -> Peer {
        let address = server.url().trim_start_matches("redis://");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Peer(BufReader::new(stream))
    }

    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads until this line.
    fn until(&mut self, wanted: &str) {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "the end came before {wanted}");
            if line == wanted {
                return;
            }
        }
    }

    fn ends(&mut self) {
        match self.0.read(&mut [0]) {
            Ok(size) => assert_eq!(size, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn a_paused_server_ends_its_connections_at_once() {
    let server = MemoryServer::start().unwrap();
    let (mut silent, mut asks) = (Peer::of(&server), Peer::of(&server));
    for peer in [&mut silent, &mut asks] {
        peer.say("PING\r\n");
        peer.until("+PONG");
    }
    server.pause();
    asks.say("PING\r\n");
    server.disconnect();
    silent.ends();
    asks.ends();
}

#[test]
fn a_client_that_reads_nothing_is_disconnected_too() {
    let server = MemoryServer::start().unwrap();
    let (mut slow, mut looks) = (Peer::of(&server), Peer::of(&server));
    let size = 8 << 20;
    slow.say(&format!(
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n${size}\r\n{}\r\n",
        "x".repeat(size)
    ));
    slow.until("+OK");
    // More than what the system keeps for it.
    slow.say(&"GET a\r\n".repeat(16));
    slow.until(&format!("${size}"));
    server.disconnect();
    looks.ends();
    let since = Instant::now();
    loop {
        let mut looks = Peer::of(&server);
        looks.say("INFO clients\r\n");
        looks.until("# Clients");
        if looks.line() == "connected_clients:1" {
            return;
        }
        assert!(since.elapsed() < LIMIT, "the slow client is still there");
    }
}

#[test]
fn the_last_reply_comes_before_the_end() {
    let server = MemoryServer::start().unwrap();
    let mut peer = Peer::of(&server);
    peer.say("ECHO a\r\nQUIT\r\n");
    for wanted in ["$1", "a", "+OK", ""] {
        assert_eq!(peer.line(), wanted);
    }
}

#[test]
fn a_client_that_waits_for_replicas_hears_of_changes() {
    let server = MemoryServer::start().unwrap();
    let mut waits = Peer::of(&server);
    waits.say("HELLO 3\r\nCLIENT TRACKING ON\r\nGET k\r\nWAIT 1 0\r\n");
    // Its earlier commands are answered when the wait begins.
    waits.until("_");
    server.empty();
    waits.until("invalidate");
}

#[test]
fn the_time_and_the_data_have_one_clock() {
    let server = MemoryServer::start().unwrap();
    let mut peer = Peer::of(&server);
    let script = "local a = redis.call('TIME') \
                  for _ = 1, 1000 do \
                  local b = redis.call('TIME') \
                  if a[1] ~= b[1] or a[2] ~= b[2] then return 0 end \
                  end \
                  return 1";
    peer.say(&format!(
        "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
        script.len()
    ));
    peer.until(":1");
}
