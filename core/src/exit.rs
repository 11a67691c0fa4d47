//! The end of the process: the locks that its clients hold are released as its last act, within the
//! option `exit_limit`.
//!
//! A lock must not be free while the program that held it still runs. So nothing happens before
//!
//! - `exit()` calls its handlers: Node.js has run its last line of JavaScript by then, and has
//!   ended its worker threads and its thread pool;
//! - every other thread is stopped, when a signal with the default disposition ends the process
//!   (`sys/linux/exit_signals.rs`).

use std::mem;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::Instant;

use crate::client::{Client, WeakClient};
use crate::completion_queue::CompletionQueue;
use crate::process;
use crate::sys::{at_exit, exit_signals};

/// The process in which the exit handler is active. In a forked child it is not.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Whether the system calls us at the exit. If not, the end of a part waits for its clients.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// The clients of a part of the program that ends as a whole: the main thread of Node.js, or a
/// worker thread.
pub struct Part(u64);

/// All clients of the process that were registered.
static TABLE: Mutex<Table> = Mutex::new(Table {
    open: Vec::new(),
    ending: Vec::new(),
});

struct Table {
    open: Vec<(u64, WeakClient)>,
    /// Clients that are being closed, because their part has ended.
    ending: Vec<Client>,
}

fn table() -> MutexGuard<'static, Table> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    table.open.retain(|(_, client)| client.is_alive());
    table.ending.retain(|client| !client.has_ended());
    table
}

impl Part {
    /// A part without clients. The calling thread runs the part and ends it.
    #[allow(clippy::new_without_default, reason = "it registers a handler")]
    pub fn new() -> Part {
        static HANDLER: Once = Once::new();
        static LAST: AtomicU64 = AtomicU64::new(0);
        HANDLER.call_once(|| {
            PROCESS.store(process::id(), Ordering::Relaxed);
            exit_signals::begin();
            // The handler stays mapped, because Node.js never unloads a library that has threads.
            IS_CALLED.store(at_exit(on_exit), Ordering::Relaxed);
        });
        exit_signals::register_thread();
        Part(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a client, which is closed at the end of the part or of the process. Does not keep
    /// it alive.
    pub fn add(&self, client: &Client) {
        let limit = i32::try_from(client.exit_limit().as_millis()).unwrap_or(i32::MAX);
        exit_signals::allow(limit);
        table().open.push((self.0, client.downgrade()));
    }

    /// Begins to close the clients of this part, and does not wait: the process may live on. If the
    /// process ends now, it waits for them. Where the system does not call us then, this waits.
    pub fn end(&self) {
        exit_signals::forget_thread();
        let queue = CompletionQueue::with_notify(|| {});
        let mut table = table();
        let (own, others) = mem::take(&mut table.open)
            .into_iter()
            .partition(|(part, _)| *part == self.0);
        table.open = others;
        let own: Vec<(u64, WeakClient)> = own;
        let clients: Vec<Client> = own
            .iter()
            .filter_map(|(_, client)| client.upgrade())
            .filter(is_to_be_closed)
            .collect();
        for client in &clients {
            let _ = client.close_within(client.exit_limit()).send_to(&queue, 0);
            table.ending.push(client.clone());
        }
        drop(table);
        if !IS_CALLED.load(Ordering::Relaxed) {
            close(&clients);
        }
    }
}

/// The process ends without `exit()`, as Bun's does: the end of a part waits for its clients.
pub fn is_not_called() {
    IS_CALLED.store(false, Ordering::Relaxed);
}

fn is_to_be_closed(client: &Client) -> bool {
    !client.exit_limit().is_zero() && !client.0.is_forked()
}

fn close_all() {
    let clients: Vec<Client> = {
        let table = table();
        let open = table.open.iter().filter_map(|(_, client)| client.upgrade());
        open.chain(table.ending.iter().cloned())
            .filter(is_to_be_closed)
            .collect()
    };
    close(&clients);
}

/// Closes these clients at the same time, each within its own limit, and waits for them.
fn close(clients: &[Client]) {
    let limit = clients
        .iter()
        .map(Client::exit_limit)
        .max()
        .unwrap_or_default();
    let end = Instant::now() + limit;
    let (ring, rung) = mpsc::channel();
    let queue = CompletionQueue::with_notify(move || {
        let _ = ring.send(());
    });
    for (client, tag) in clients.iter().zip(0..) {
        let _ = client
            .close_within(client.exit_limit())
            .send_to(&queue, tag);
    }
    let mut left = clients.len();
    loop {
        left = left.saturating_sub(queue.drain().len());
        if left == 0
            || rung
                .recv_timeout(end.saturating_duration_since(Instant::now()))
                .is_err()
        {
            return;
        }
    }
}

extern "C" fn on_exit() {
    // A forked child inherits the handler but not the threads, and its copy of the table may be
    // locked for ever.
    if process::id() != PROCESS.load(Ordering::Relaxed) {
        return;
    }
    // From here on, another signal ends the process at once.
    exit_signals::end();
    let _ = catch_unwind(close_all);
}

/// Releases all held locks when a signal that the program does not handle ends the process (SIGINT,
/// SIGTERM, SIGHUP, SIGUSR2), on systems where that can be done. To be called on the main thread;
/// elsewhere it does nothing. Call it again when the program stops handling one of them.
pub fn watch_signals() {
    exit_signals::watch(close_all);
}

/// The runtime has one handler for the listeners of a signal and for its default action, as Deno's:
/// the program listens to this signal, or does not. For one that is never named here, a handler that
/// replaces ours is the program's.
pub fn hears(signal: &str, heard: bool) {
    exit_signals::hears(signal, heard);
}

/// Runs `call` without being stopped by the signal handlers, because the call may hold a mutex that
/// closing needs. A signal that comes meanwhile takes effect at its end.
pub fn uninterrupted<T>(call: impl FnOnce() -> T) -> T {
    exit_signals::uninterrupted(call)
}
