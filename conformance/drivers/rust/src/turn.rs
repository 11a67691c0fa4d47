//! A turn; `conformance/drivers/README.md` says what it does and tells.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use redlatch::embed::GuardExt;
use redlatch::{AcquireOptions, Client, Error, Guard, Kind, Lock, Operation, ReentryKey};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::serve::{Reply, failed, lock_of, millis, ok, permits, status, text};

/// How often one that holds looks whether it does.
const LOOK: Duration = Duration::from_millis(50);

/// CLOCK_MONOTONIC in nanoseconds, which all processes share.
fn now() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// A turn of a task, or of a thread that is blocked: the same code for both, since a thread's steps are done when they
/// return.
pub(crate) async fn turn(client: &Client, request: &Value) -> Result<Reply, Error> {
    let lock = match text(request, "kind") {
        "simple" => client.lock_with(
            text(request, "lock"),
            client.lock_options().kind(Kind::Simple),
        )?,
        _ => lock_of(client, request)?,
    };
    let turn = Turn {
        client: client.clone(),
        request: request.clone(),
        blocks: request["blocked"].as_bool() == Some(true),
        key: ReentryKey::new_task(),
    };
    if !turn.blocks {
        return Ok(turn.play(lock).await);
    }
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || drop(tell.send(run_here(turn.play(lock)))));
    // Without a reply a step of the thread has waited, or panicked.
    Ok(told.await.ok().flatten().unwrap_or_else(|| status("error")))
}

/// Runs what never waits for anything but in its own thread.
fn run_here<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

struct Turn {
    client: Client,
    request: Value,
    blocks: bool,
    key: ReentryKey,
}

impl Turn {
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

    fn millis(&self, field: &str) -> Option<Duration> {
        millis(&self.request, field)
    }

    async fn play(self, lock: Lock) -> Reply {
        let mut options = permits(&self.request, AcquireOptions::new().key(self.key));
        options = options.wait(self.millis("wait_ms").unwrap_or_default());
        if let Some(lease) = self.millis("lease_ms") {
            options = options.lease(lease);
        }
        let called = now();
        let result = self.done(lock.acquire_with(options)).await;
        let answered = now();
        let mut reply = match result {
            Ok(guard) => self.hold(&lock, guard, called).await,
            Err(error) => failed(&error),
        };
        reply.insert("called".to_owned(), json!(called));
        reply.insert("answered".to_owned(), json!(answered));
        reply
    }

    /// Does what holders do, and gives all levels back.
    async fn hold(&self, lock: &Lock, guard: Guard, called: i64) -> Reply {
        let who = text(&self.request, "as").to_owned();
        guard.on_lost(move |reason| {
            let told = json!({"told": reason.name(), "as": who, "called": called, "at": now()});
            println!("{told}");
        });
        let mut levels = Vec::new();
        if let Some(wait) = self.millis("reenter_ms") {
            let options = AcquireOptions::new().wait(wait);
            let again = if self.request["multi"].is_null() {
                guard.reenter_with(&self.client.lock_options(), options)
            } else {
                lock.acquire_with(options.key(self.key))
            };
            levels.extend(self.done(again).await.ok());
        }
        if let Some(longer) = self.millis("extend_ms") {
            // A refusal is the loss that the release will tell.
            drop(self.done(guard.extend(longer)).await);
        }
        let (token, count, counted) = (guard.fencing_token(), guard.hold_count(), levels.len() + 1);
        let mut rest = self.millis("rest_ms").unwrap_or_default();
        let mut sure = 0;
        let kept = loop {
            let at = now();
            let kept = guard.is_held();
            if kept {
                sure = at;
            }
            if rest.is_zero() {
                break kept;
            }
            let part = rest.min(LOOK);
            self.pause(part).await;
            rest -= part;
        };
        for level in levels {
            drop(self.done(level.release()).await);
        }
        let freed = now();
        let until = match i64::try_from(guard.remaining().as_nanos()) {
            Ok(0) | Err(_) => 0,
            Ok(remaining) => freed + remaining,
        };
        let result = self.done(guard.release()).await;
        let release = result.map_or_else(|error| error.kind().name(), |()| "ok");
        let held = json!({"token": token, "levels": counted, "count": count, "sure": sure, "kept": kept,
            "until": until, "freed": freed, "done": now(), "release": release});
        let mut reply = ok();
        reply.extend(held.as_object().cloned().unwrap_or_default());
        reply
    }
}
