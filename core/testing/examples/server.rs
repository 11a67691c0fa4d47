//! The in-memory server as a program of its own, with the arguments of `redis-server` with which the
//! suites of redlatch start theirs: `scripts/test --server memory`.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::process::exit;

use redlatch_testing::MemoryServer;

fn main() -> std::io::Result<()> {
    let (mut port, mut socket) = (6379, String::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--version" => {
                println!("redlatch server v={}", env!("CARGO_PKG_VERSION"));
                return Ok(());
            }
            "--port" => port = value().parse().unwrap_or(port),
            "--unixsocket" => socket = value(),
            // It keeps nothing, and listens on the loopback only.
            "--bind" | "--save" | "--appendonly" | "--dir" => drop(value()),
            other => {
                eprintln!("the in-memory server has no option {other}");
                exit(1);
            }
        }
    }
    // One that was killed has left it there.
    let _ = std::fs::remove_file(&socket);
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let _server = MemoryServer::start_on(tcp, UnixListener::bind(socket)?)?;
    loop {
        std::thread::park();
    }
}
