//! A server may refuse the lock for a reason that passes, such as too few replicas. The wait goes
//! on, and a person has to hear of the reason; and of the holder, if the wait is long.

use std::sync::mpsc::{self, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use redlatch::embed::{LockExt, spawn};
use redlatch::{AcquireOptions, Client, ErrorKind, Kind, Lock};

use crate::arguments::{Run, Server};
use crate::scan::Found;
use crate::{complain, connect, who};

/// The pause before the first look, and after one that finds the lock free: in so long a waiter
/// takes it, unless it is refused.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest pause between looks that find the lock held. There may be many who wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// From then on a wait is long.
const LONG: Duration = Duration::from_secs(30);

const LEASE: Duration = Duration::from_secs(1);

/// Tells refusals on standard error for as long as the answer lives, each one once.
/// `--quiet`: not who holds the lock.
pub(super) fn tell(server: &Server, client: &Client, lock: &Lock, arguments: &Run) -> Sender<()> {
    let (alive, ended) = mpsc::channel();
    let (server, client, lock) = (server.clone(), client.clone(), lock.clone());
    let (quiet, mut permits) = (arguments.quiet, arguments.permits);
    // One side of a read-write lock is free only if nobody has the other.
    let sides = match (lock.kind(), client.rw_lock(lock.name())) {
        (Kind::Read | Kind::Write, Ok(sides)) => vec![sides.read().clone(), sides.write().clone()],
        _ => vec![lock.clone()],
    };
    // Without a thread nothing is told; the acquisition needs one too, and says so.
    let _ = spawn("redlatch-refusals", move || {
        let (mut free, mut told, mut pause) = (false, None, PAUSE);
        let (start, mut named) = (Instant::now(), quiet);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            super::tell_permits(&lock, permits.take());
            let is_free = |side: &Lock| matches!(side.is_locked().wait(), Ok(false));
            let was_free = std::mem::replace(&mut free, sides.iter().all(is_free));
            pause = if free {
                PAUSE
            } else {
                LONGEST_PAUSE.min(2 * pause)
            };
            if !named
                && start.elapsed() >= LONG
                && let Ok(Found::Held(held)) = who::look(&server, &client, &lock)
                && ended.try_recv() == Err(TryRecvError::Empty)
            {
                complain(&format!("still waiting: {}", held.as_text()));
                named = true;
            }
            // A lock that somebody holds is refused for that.
            if !(free && was_free) {
                continue;
            }
            let refusal = refusal(&server, &lock);
            if refusal.is_some() && refusal != told && ended.try_recv() == Err(TryRecvError::Empty)
            {
                complain(refusal.as_deref().unwrap_or_default());
                told = refusal;
            }
        }
    });
    alive
}

/// Why the lock is refused to another client, which does not wait; `None` if it is not.
fn refusal(server: &Server, lock: &Lock) -> Option<String> {
    let client = connect::client(server).ok()?;
    let options = client.lock_options().kind(lock.kind());
    let lock = client.lock_with(lock.name(), options).ok()?;
    // If this program is killed meanwhile, it has the lock no longer than that.
    let options = AcquireOptions::new().wait(Duration::ZERO).lease(LEASE);
    let refusal = match lock.acquire_with(options).wait() {
        // It is free after all: it is for those who wait.
        Ok(guard) => {
            let _ = guard.release().wait();
            None
        }
        Err(error) if error.kind() == ErrorKind::Timeout => None,
        Err(error) => Some(format!("still waiting, because {}", error.message())),
    };
    let _ = client.close().wait();
    refusal
}
