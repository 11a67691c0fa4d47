//! Acquires as fast as it can; `conformance/drivers/README.md` says what it does and writes.
//!
//! Every second caller is a task, the others are threads that block: the same code for both, since
//! a thread's steps are done when they return.

mod plan;
mod record;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use plan::{Plan, Random};
use record::{History, now};
use redlatch::embed::{ClientExt, GuardExt};
use redlatch::{AcquireOptions, Client, Guard, Kind, Operation};
use serde_json::{Value, json};

use crate::Failure;
use crate::usage::Usage;

/// How long threads and descriptors may take to be gone after a client was closed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a caller waits to enter again.
const REENTERING: Duration = Duration::from_secs(2);
/// How often one that holds looks whether it does.
const LOOK: Duration = Duration::from_millis(50);

struct Worker {
    plan: Plan,
    history: History,
    client: Client,
    attempts: AtomicU64,
    granted: AtomicU64,
}

/// One that acquires, a task or a thread.
struct Caller {
    worker: Arc<Worker>,
    number: u64,
    random: Random,
    blocks: bool,
}

/// A hold: what the caller was told of its levels, when it was last called held, and whether
/// it was in the end.
struct Held {
    guard: Guard,
    levels: Vec<Guard>,
    told: u32,
    sure: i64,
    kept: bool,
}

impl Caller {
    async fn run(mut self) -> Result<(), Failure> {
        while now() < self.worker.plan.until {
            self.attempt().await?;
        }
        Ok(())
    }

    /// The result of an operation; a thread waits for it here.
    async fn done<T>(&self, operation: Operation<T>) -> redlatch::Result<T> {
        if self.blocks {
            operation.wait()
        } else {
            operation.await
        }
    }

    async fn pause(&self, time: Duration) {
        if self.blocks {
            std::thread::sleep(time);
        } else {
            tokio::time::sleep(time).await;
        }
    }

    async fn attempt(&mut self) -> Result<(), Failure> {
        let worker = self.worker.clone();
        let (mut name, kind) = worker.plan.name(&mut self.random);
        let options = worker.plan.options();
        let lock = match kind {
            Kind::Read => worker.client.rw_lock_with(&name, options)?.read().clone(),
            Kind::Write => worker.client.rw_lock_with(&name, options)?.write().clone(),
            kind => worker.client.lock_with(&name, options.kind(kind))?,
        };
        if kind == Kind::Read {
            name.push_str("/read");
        }
        let tried = self.random.chance(worker.plan.tries);
        let wait = if tried {
            Duration::ZERO
        } else {
            worker.plan.wait(&mut self.random)
        };
        let mut options = AcquireOptions::new().wait(wait);
        if self.random.chance(worker.plan.fixed) {
            options = options.lease(worker.plan.lease);
        }
        let called = now();
        worker.history.begin(self.number, &name, called)?;
        let result = self.done(lock.acquire_with(options)).await;
        let answered = now();
        worker.attempts.fetch_add(1, Ordering::Relaxed);
        let status = result
            .as_ref()
            .map_or_else(|error| error.kind().name(), |_| "ok");
        let begun = format!(
            "e {} {name} {called} {answered} {status} {}",
            self.number,
            u8::from(tried)
        );
        let Ok(guard) = result else {
            return worker
                .history
                .write(&format!("{begun} - 0 0 0 0 0 0 0 -\n"));
        };
        worker.granted.fetch_add(1, Ordering::Relaxed);
        let token = guard
            .fencing_token()
            .map_or_else(|| "-".to_owned(), |token| token.to_string());
        let tells = (worker.clone(), self.number);
        guard.on_lost(move |reason| tells.0.history.told(tells.1, called, reason.name()));
        let held = self.hold(guard, kind).await;
        let (counted, told, sure, kept) = (
            held.levels.len() + 1,
            held.told,
            held.sure,
            u8::from(held.kept),
        );
        let (until, freed, status) = self.release(held).await;
        let end = format!(
            "{token} {counted} {told} {sure} {kept} {until} {freed} {} {status}",
            now()
        );
        worker.history.write(&format!("{begun} {end}\n"))
    }

    /// Does what holders do.
    async fn hold(&mut self, guard: Guard, kind: Kind) -> Held {
        let worker = self.worker.clone();
        let plan = &worker.plan;
        let mut held = Held {
            guard,
            levels: Vec::new(),
            told: 0,
            sure: 0,
            kept: false,
        };
        if kind != Kind::Simple && self.random.chance(plan.reenter) {
            let again = held
                .guard
                .reenter_with(&plan.options(), AcquireOptions::new().wait(REENTERING));
            held.levels.extend(self.done(again).await.ok());
        }
        if self.random.chance(plan.extend) {
            // A refusal is the loss that the release will tell.
            drop(self.done(held.guard.extend(plan.lease)).await);
        }
        held.told = held.guard.hold_count();
        let mut rest = plan.pause(&mut self.random);
        loop {
            let at = now();
            held.kept = held.guard.is_held();
            if held.kept {
                held.sure = at;
            }
            if rest.is_zero() {
                return held;
            }
            let part = rest.min(LOOK);
            self.pause(part).await;
            rest -= part;
        }
    }

    /// Gives all levels back: until when the last could still be relied on, when it was given back,
    /// and how that ended.
    async fn release(&self, held: Held) -> (i64, i64, &'static str) {
        for level in held.levels {
            drop(self.done(level.release()).await);
        }
        let freed = now();
        let until = match i64::try_from(held.guard.remaining().as_nanos()) {
            Ok(0) | Err(_) => 0,
            Ok(remaining) => freed + remaining,
        };
        let result = self.done(held.guard.release()).await;
        (
            until,
            freed,
            result.map_or_else(|error| error.kind().name(), |()| "ok"),
        )
    }
}

/// Runs what never waits for anything but in its own thread.
fn run_here<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Lets all callers work until the time is over; the memory used in the middle.
async fn work(worker: &Arc<Worker>) -> Result<(u64, u64), Failure> {
    let (mut tasks, mut threads) = (Vec::new(), Vec::new());
    for number in 0..worker.plan.callers {
        let random = Random(worker.plan.seed.wrapping_add(number << 32));
        let caller = Caller {
            worker: worker.clone(),
            number,
            random,
            blocks: number % 2 == 0,
        };
        if caller.blocks {
            threads.push(std::thread::spawn(|| run_here(caller.run())));
        } else {
            tasks.push(tokio::spawn(caller.run()));
        }
    }
    let half = u64::try_from((worker.plan.until - now()).max(0) / 2)?;
    tokio::time::sleep(Duration::from_nanos(half)).await;
    let middle = (Usage::now().memory, worker.attempts.load(Ordering::Relaxed));
    for task in tasks {
        task.await??;
    }
    for thread in threads {
        let ended = thread.join().map_err(|_| "a thread panicked")?;
        ended.ok_or("a thread's step waited")??;
    }
    Ok(middle)
}

/// The parts of a client that are left once it is closed.
async fn left(before: &Usage) -> Usage {
    let mut waited = Duration::ZERO;
    loop {
        let usage = Usage::now();
        if (usage.files <= before.files && usage.threads <= before.threads) || waited > PATIENCE {
            return usage;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        waited += Duration::from_millis(50);
    }
}

#[tokio::main(worker_threads = 2)]
pub(crate) async fn soak(plan: &Value) -> Result<(), Failure> {
    let plan = Plan::new(plan)?;
    let history = History::create(&plan.file)?;
    let before = Usage::now();
    let client = Client::builder(&plan.url)
        .lock_options(plan.options())
        .build()?;
    let worker = Arc::new(Worker {
        plan,
        history,
        client,
        attempts: AtomicU64::new(0),
        granted: AtomicU64::new(0),
    });
    worker.client.ready().await?;
    let (middle_memory, middle_attempts) = work(&worker).await?;
    let memory = Usage::now().memory;
    let stats = worker.client.stats();
    let closed = worker.client.close().await;
    worker.client.join(PATIENCE);
    let after = left(&before).await;
    let attempts = worker.attempts.load(Ordering::Relaxed);
    let report = json!({
        "attempts": attempts,
        "granted": worker.granted.load(Ordering::Relaxed),
        "holds": stats.holds,
        "waiting": stats.waiting,
        "unreleased": closed.map_or_else(|error| error.unreleased().len(), |()| 0),
        "files": after.files.saturating_sub(before.files),
        "threads": after.threads.saturating_sub(before.threads),
        "memory": memory.saturating_sub(middle_memory),
        "since": attempts - middle_attempts,
    });
    println!("{report}");
    Ok(())
}
