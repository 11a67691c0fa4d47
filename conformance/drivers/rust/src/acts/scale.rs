//! Ten thousand waiters, a hundred thousand holds, a million names: nothing is left behind, nothing
//! grows.

use std::time::{Duration, Instant};

use redlatch::{Client, Guard};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::act::{Act, Outcome, at_rest, ensure, eventually, ready, renewed, say, say_resources};
use super::ending::works;

pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).build()?)
}

/// All wait for one name and are served one after the other; then all wait again and are cancelled.
pub(crate) fn waiters(act: &Act) -> Outcome {
    let (client, other) = (act.client()?, act.client()?);
    let runtime = runtime()?;
    ready();
    for turn in 0..3 {
        let held = act.lock(&other)?.acquire().wait()?;
        let mut waiting = many(act, &client, &runtime)?;
        held.release().wait()?;
        runtime.block_on(async {
            while let Some(served) = waiting.join_next().await {
                served??;
            }
            Outcome::Ok(())
        })?;
        let held = act.lock(&other)?.acquire().wait()?;
        let mut waiting = many(act, &client, &runtime)?;
        runtime.block_on(waiting.shutdown());
        drop(waiting);
        eventually("cancelled ones wait", || client.stats().waiting == 0)?;
        held.release().wait()?;
        at_rest(&client)?;
        say_resources(if turn == 0 { "before" } else { "after" });
    }
    works(act, &client)
}

fn many(act: &Act, client: &Client, runtime: &Runtime) -> Outcome<JoinSet<redlatch::Result<()>>> {
    let mut waiting = JoinSet::new();
    for _ in 0..act.size {
        let lock = act.lock(client)?;
        waiting.spawn_on(
            async move { lock.acquire().await?.release().await },
            runtime.handle(),
        );
    }
    let all = u64::try_from(act.size)?;
    eventually("not all wait", || client.stats().waiting == all)?;
    Ok(waiting)
}

/// How many are asked for at once.
const AT_ONCE: usize = 500;

/// Acquires them all, many at a time.
pub(crate) fn acquire_all(act: &Act, client: &Client, runtime: &Runtime) -> Outcome<Vec<Guard>> {
    acquire_over(act, client, runtime, Duration::ZERO)
}

/// Acquires them all, spread evenly over `spread`, or in as much time as that takes if it takes
/// longer.
pub(crate) fn acquire_over(
    act: &Act,
    client: &Client,
    runtime: &Runtime,
    spread: Duration,
) -> Outcome<Vec<Guard>> {
    let begun = Instant::now();
    let mut guards: Vec<Guard> = Vec::with_capacity(act.size);
    for first in (0..act.size).step_by(AT_ONCE) {
        let share = first as f64 / act.size as f64;
        std::thread::sleep(spread.mul_f64(share).saturating_sub(begun.elapsed()));
        let mut asked = JoinSet::new();
        for number in first..act.size.min(first + AT_ONCE) {
            let lock = client.lock(&format!("{}:{number}", act.lock))?;
            asked.spawn_on(async move { lock.acquire().await }, runtime.handle());
        }
        while let Some(guard) = runtime.block_on(asked.join_next()) {
            guards.push(guard??);
        }
    }
    Ok(guards)
}

/// Holds them all for several renewals.
pub(crate) fn holds(act: &Act) -> Outcome {
    let client = act.client()?;
    let runtime = runtime()?;
    ready();
    let guards = acquire_all(act, &client, &runtime)?;
    say("held");
    for _ in 0..3 {
        renewed(&client, u64::try_from(act.size)?)?;
    }
    let kept = guards.iter().filter(|guard| guard.is_held()).count();
    ensure(
        kept == act.size && client.stats().lost == 0,
        format!("{kept} of {} are held", act.size),
    )?;
    ready();
    let mut asked = JoinSet::new();
    for guard in guards {
        asked.spawn_on(async move { guard.release().await }, runtime.handle());
        while asked.len() >= AT_ONCE {
            runtime
                .block_on(asked.join_next())
                .transpose()?
                .transpose()?;
        }
    }
    while let Some(released) = runtime.block_on(asked.join_next()) {
        released??;
    }
    works(act, &client)
}

/// Each name is used once. Memory that grows while the second half is used grows with the names.
pub(crate) fn names(act: &Act) -> Outcome {
    let client = act.client()?;
    let runtime = runtime()?;
    ready();
    for number in 0..act.size {
        if number == act.size / 2 {
            settle(&client)?;
            say_resources("before");
        }
        let lock = client.lock(&format!("{}:{number}", act.lock))?;
        runtime.block_on(async { lock.acquire().await?.release().await })?;
    }
    settle(&client)?;
    say_resources("after");
    works(act, &client)
}

fn settle(client: &Client) -> Outcome {
    at_rest(client)?;
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
