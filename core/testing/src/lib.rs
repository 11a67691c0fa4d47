//! An in-memory server for tests of programs that use redlatch, reached as `redlatch::testing` by the
//! feature `testing` of the crate `redlatch`.
//!
//! It speaks the protocol of Redis on a port of 127.0.0.1, on a thread of its own, and runs the locks'
//! own scripts in Lua 5.1, so a lock means the same as on Redis. It has the commands that redlatch
//! needs, and those with which a test looks at the data. It has no Sentinel, no Cluster, no TLS, no
//! users, no persistence, and it is not made for production.
#![deny(unsafe_code)]

mod commands;
mod hub;
mod keyspace;
mod lua;
mod resp;
mod server;
mod session;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::hub::{Clock, Hub};
use crate::server::{Control, Listeners};

/// A server in memory, on a free port of 127.0.0.1. It ends when it is dropped.
///
/// Any number of clients may use it, also in other processes and in other languages.
pub struct MemoryServer {
    url: String,
    clock: Clock,
    /// Ends a script that runs without end.
    stops: Arc<AtomicBool>,
    controls: Option<UnboundedSender<Control>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// A forked child has no thread of the server.
    process: u32,
}

impl MemoryServer {
    /// Starts a server; it takes connections when this returns.
    ///
    /// # Errors
    /// The system refuses a port or a thread.
    pub fn start() -> io::Result<MemoryServer> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        MemoryServer::on(Listeners {
            tcp,
            #[cfg(unix)]
            local: None,
        })
    }

    /// The same on sockets of the caller's own, for the tests of redlatch.
    ///
    /// # Errors
    /// The system refuses a thread.
    #[cfg(unix)]
    #[doc(hidden)]
    pub fn start_on(
        tcp: TcpListener,
        local: std::os::unix::net::UnixListener,
    ) -> io::Result<MemoryServer> {
        MemoryServer::on(Listeners {
            tcp,
            local: Some(local),
        })
    }

    fn on(listeners: Listeners) -> io::Result<MemoryServer> {
        let url = format!("redis://{}", listeners.tcp.local_addr()?);
        let clock = Clock::new();
        let (controls, received) = unbounded_channel();
        let stops = Arc::new(AtomicBool::new(false));
        let (its_clock, told) = (clock.clone(), stops.clone());
        let thread = server::spawn(move || server::serve(listeners, its_clock, told, received))?;
        Ok(MemoryServer {
            url,
            clock,
            stops,
            controls: Some(controls),
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// The URL for clients: `redis://127.0.0.1:<port>`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Moves the server's clock ahead, so that leases run out without a wait. Holders whose lock has
    /// run out are told `lost`. The clock of the program stays as it is.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.with(Hub::expire);
    }

    /// Deletes the keys of a lock or semaphore of this name, as an operator or an eviction would; its
    /// holders are told `lost`. False if nobody holds it.
    pub fn take_away(&self, name: &str) -> bool {
        let keys = redlatch_proto::wire::names::held_keys(name);
        self.with(move |hub| {
            let gone = keys.iter().filter(|key| hub.delete(key.as_bytes()));
            gone.count() > 0
        })
    }

    /// Deletes all data: every lock is free, and holders are told `lost`.
    pub fn empty(&self) {
        self.with(|hub| hub.flush(None));
    }

    /// From now on the server answers nothing, and connections stay open, as those of a server that
    /// hangs. Leases go on running out.
    pub fn pause(&self) {
        self.with(|hub| hub.pause(true));
    }

    /// The server answers again, also what it was asked meanwhile.
    pub fn resume(&self) {
        self.with(|hub| hub.pause(false));
    }

    /// Ends every connection. Clients may connect again at once.
    pub fn disconnect(&self) {
        self.with(|hub| hub.close(None));
    }

    /// Does something on the server's thread, and waits until it is done.
    fn with<T: Default + Send + 'static>(
        &self,
        act: impl FnOnce(&mut Hub) -> T + Send + 'static,
    ) -> T {
        let (done, is_done) = mpsc::channel();
        let control: Control = Box::new(move |hub| {
            let _ = done.send(act(hub));
        });
        match &self.controls {
            Some(controls)
                if self.process == std::process::id() && controls.send(control).is_ok() =>
            {
                is_done.recv().unwrap_or_default()
            }
            _ => T::default(),
        }
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        let (controls, thread) = (self.controls.take(), self.thread.take());
        if self.process != std::process::id() {
            // Not even to let go of a thread is allowed where that is not.
            std::mem::forget((controls, thread));
            return;
        }
        self.stops.store(true, Ordering::Relaxed);
        drop(controls);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

// A panic of a caller leaves nothing half done: the data are in the hands of the server's thread.
impl UnwindSafe for MemoryServer {}
impl RefUnwindSafe for MemoryServer {}

impl std::fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
