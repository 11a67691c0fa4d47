//! Many holds while the server stands still: which of them are lost, and which of those nobody
//! could have saved.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;
use tokio::runtime::Runtime;

use super::act::{Act, Outcome, at_rest, ensure, eventually, ready, renewed, say};
use super::scale::{acquire_all, acquire_over, runtime};

/// How often the program looks at its counters. The engine's thread needs the processor more.
const LOOK: Duration = Duration::from_millis(10);

/// Acquires `size` locks and says `held`. A line on stdin says that all connections were closed;
/// the time from the first new one until all holds are renewed is that of one renewal of
/// everything. The locks are released and acquired again, spread over the time between two
/// renewals, and it says `ready` when all have been renewed. A line says that the server is
/// stopped, the next one for how many microseconds it was. Prints what became of the holds.
pub(crate) fn outage(act: &Act) -> Outcome {
    let (client, runtime) = (act.client()?, runtime()?);
    let size = u64::try_from(act.size)?;
    let pass = pass(act, &client, &runtime, size)?;

    let guards = acquire_over(act, &client, &runtime, act.lease / 3)?;
    let told = Arc::new(AtomicU64::new(0));
    for guard in &guards {
        let told = told.clone();
        guard.on_lost(move |_| {
            told.fetch_add(1, Ordering::Relaxed);
        });
    }
    renewed(&client, 2 * size)?;
    ensure(
        client.stats().lost == 0,
        "locks are lost before anything has happened",
    )?;
    ready();

    let stopped = Instant::now();
    let before = client.stats();
    let ends: Vec<Instant> = guards
        .iter()
        .map(|guard| stopped + guard.remaining())
        .collect();
    say("noted");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let (back, length) = (Instant::now(), Duration::from_micros(line.trim().parse()?));

    let settled = || {
        let now = client.stats();
        now.renewed - before.renewed + now.lost - before.lost >= size
    };
    // A renewal moves the end on by more than clocks are rounded by.
    let live_on = || {
        let now = Instant::now();
        let moved = |end: &Instant, left: Duration| now + left > *end + Duration::from_millis(100);
        guards
            .iter()
            .zip(&ends)
            .all(|(guard, end)| !guard.is_held() || moved(end, guard.remaining()))
    };
    eventually("the holds are neither renewed nor lost", || {
        thread::sleep(LOOK);
        settled() && live_on()
    })?;
    let took = back.elapsed();

    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let doomed = |length: Duration| ends.iter().filter(|end| **end < stopped + length).count();
    eventually("a loss is not told", || {
        usize::try_from(told.load(Ordering::Relaxed)) == Ok(lost)
    })?;
    say(&format!(
        "lost={lost} ended={} unavoidable={} pass={} millis={}",
        doomed(length),
        doomed(length + pass),
        pass.as_millis(),
        took.as_millis()
    ));
    guards.into_iter().for_each(|guard| drop(guard.detach()));
    Ok(())
}

/// How long one renewal of everything takes while nothing is wrong.
fn pass(act: &Act, client: &Client, runtime: &Runtime, size: u64) -> Outcome<Duration> {
    let guards = acquire_all(act, client, runtime)?;
    renewed(client, size)?;
    let before = client.stats();
    say("held");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut begun = None;
    eventually("the holds are not renewed", || {
        let now = client.stats();
        if now.connects > before.connects {
            begun.get_or_insert_with(Instant::now);
        }
        now.renewed >= before.renewed + size
    })?;
    let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
    ensure(
        client.stats().lost == 0,
        "locks are lost before anything has happened",
    )?;
    drop(guards);
    at_rest(client)?;
    Ok(took)
}
