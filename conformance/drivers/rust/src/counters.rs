//! Requests about a plain semaphore or a latch.

use redlatch::{Client, CountDownLatch, Error, PlainSemaphore};
use serde_json::{Value, json};

use crate::serve::{Reply, millis, ok, status, text, wait, with};

pub(crate) async fn perform(client: &Client, request: &Value) -> Result<Reply, Error> {
    let name = text(request, "lock");
    match text(request, "counter") {
        "plain-semaphore" => semaphore(&client.plain_semaphore(name)?, request).await,
        "latch" => latch(&client.latch(name)?, request).await,
        _ => Ok(status("unsupported")),
    }
}

async fn semaphore(semaphore: &PlainSemaphore, request: &Value) -> Result<Reply, Error> {
    let permits = size(request, "permits");
    Ok(match text(request, "op") {
        "acquire" => {
            let acquired = match millis(request, "wait_ms") {
                Some(limit) => semaphore.acquire_many_timeout(permits, limit),
                None => semaphore.acquire_many(permits),
            };
            // Permits have no owner: a request to release gives so many back.
            wait(request, acquired).await?.forget();
            ok()
        }
        "release" => {
            wait(request, semaphore.release(permits)).await?;
            ok()
        }
        "set" => with(
            "value",
            json!(wait(request, semaphore.try_set_permits(permits)).await?),
        ),
        "add" => {
            let added = request["permits"].as_i64().unwrap_or(1);
            wait(request, semaphore.add_permits(added)).await?;
            ok()
        }
        "drain" => with("value", json!(wait(request, semaphore.drain()).await?)),
        "permits" => with("value", json!(wait(request, semaphore.available()).await?)),
        _ => status("unsupported"),
    })
}

async fn latch(latch: &CountDownLatch, request: &Value) -> Result<Reply, Error> {
    let number = size(request, "number");
    Ok(match text(request, "op") {
        "wait" => {
            let opened = match millis(request, "wait_ms") {
                Some(limit) => latch.wait_timeout(limit),
                None => latch.wait(),
            };
            wait(request, opened).await?;
            ok()
        }
        "set" => with(
            "value",
            json!(wait(request, latch.try_set_count(number)).await?),
        ),
        "down" => {
            wait(request, latch.count_down(number)).await?;
            ok()
        }
        "count" => with("value", json!(wait(request, latch.count()).await?)),
        _ => status("unsupported"),
    })
}

/// How many permits or how far; 1 if the request does not say it.
fn size(request: &Value, field: &str) -> usize {
    usize::try_from(request[field].as_u64().unwrap_or(1)).unwrap_or(usize::MAX)
}
