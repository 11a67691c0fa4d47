//! A server that is slow: it is given no more than it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redlatch::LockOptions;
use tokio::task::JoinSet;

use super::support::Server;
use super::{World, ms};

/// So many calls come together, far more than the server does in the time that one of them has.
const TOGETHER: usize = 5000;

/// Lets a server run for a small part of the time.
struct Brake {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Brake {
    fn on(server: &Server) -> Brake {
        let (over, pid) = (
            Arc::new(AtomicBool::new(false)),
            Pid::from_raw(server.pid().cast_signed()),
        );
        let told = over.clone();
        let thread = thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                for (signal, time) in [(Signal::SIGSTOP, ms(95)), (Signal::SIGCONT, ms(5))] {
                    kill(pid, signal).expect("the server lives");
                    thread::sleep(time);
                }
            }
        });
        Brake {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[tokio::test]
async fn calls_that_came_together_at_a_slow_server_were_all_late_and_asked_for_again_for_ever() {
    let mut world = World::new().await;
    let options = LockOptions::new().watchdog_lease(ms(3000));
    let brake = Brake::on(&world.server);
    let mut pairs = JoinSet::new();
    for number in 0..TOGETHER {
        let lock = world
            .client
            .lock_with(&format!("n{number}"), options.clone())
            .expect("a name");
        pairs.spawn(async move {
            let guard = lock.acquire().await.expect("granted");
            // A lease may end meanwhile.
            drop(guard.release().await);
        });
    }
    let all = async {
        while let Some(pair) = pairs.join_next().await {
            pair.expect("no panic");
        }
    };
    tokio::time::timeout(4 * super::LIMIT, all)
        .await
        .expect("the server does nothing but copies");
    drop(brake);
    let stats: String = world.command(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| {
        line.strip_prefix("cmdstat_evalsha:calls=")?
            .split(',')
            .next()
    });
    let calls: usize = calls.expect("calls").parse().expect("a number");
    assert!(
        calls < 3 * 2 * TOGETHER,
        "{calls} calls for {TOGETHER} locks"
    );
}
