//! The end of the program waits for I/O threads that finish what is in flight: a guard that was
//! dropped at the end of `main` is released. Nothing here locks, so a forked child inherits no lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::process;
use crate::sys::at_exit;

/// As long as a thread takes at most.
const LIMIT: Duration = Duration::from_secs(1);

/// How many threads finish.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// The process in which they run. In a forked child they do not.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Of one thread: its handle was dropped, or it has ended.
#[derive(Default)]
pub(super) struct Finishing(AtomicBool);

impl Finishing {
    /// The handle of the thread was dropped.
    pub(super) fn begin(&self) {
        static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
        if PROCESS.swap(process::id(), Ordering::SeqCst) != process::id() {
            THREADS.store(0, Ordering::SeqCst);
        }
        THREADS.fetch_add(1, Ordering::SeqCst);
        self.end();
        // The C library also calls it before it unloads a library that contains our code.
        if !HAS_HANDLER.swap(true, Ordering::SeqCst) {
            at_exit(wait);
        }
    }

    /// The second of both events ends the wait.
    pub(super) fn end(&self) {
        if self.0.swap(true, Ordering::SeqCst) {
            THREADS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

extern "C" fn wait() {
    let end = Instant::now() + LIMIT;
    while PROCESS.load(Ordering::SeqCst) == process::id()
        && THREADS.load(Ordering::SeqCst) > 0
        && Instant::now() < end
    {
        sleep(Duration::from_millis(1));
    }
}
