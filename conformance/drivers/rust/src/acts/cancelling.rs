//! Cancelling at every step and at many instants; re-entry and release at once.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use redlatch::{Client, Guard, Lock, Operation};

use super::act::{Act, Outcome, PATIENCE, at_rest, ensure, eventually, ready, say};
use super::ending::works;

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls at most so many times, each but the first after a wake-up; `None` if it is not ready by
/// then.
fn poll_times<T>(
    mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    times: usize,
) -> Option<T> {
    let waker = Arc::new(Unpark(thread::current())).into();
    for turn in 0..times {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        if turn + 1 < times {
            thread::park_timeout(PATIENCE);
        }
    }
    None
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// All that can be done with a lock, with many places to stop at.
async fn everything(lock: &Lock) -> redlatch::Result<()> {
    let guard = lock.acquire().await?;
    let inner = guard.reenter().await?;
    guard.extend(Duration::from_secs(20)).await?;
    lock.holder().await?;
    inner.release().await?;
    guard.release().await?;
    drop(lock.try_acquire().await?);
    lock.acquire_timeout(PATIENCE).await?.release().await
}

/// The future is dropped after its first poll, after its second, and so on until it ends before
/// that.
pub(crate) fn steps(act: &Act) -> Outcome {
    let (client, other) = (act.client()?, act.client()?);
    let (lock, others) = (act.lock(&client)?, act.lock(&other)?);
    ready();
    let mut dropped = 0;
    for contended in [false, true] {
        for times in 0.. {
            let holding = if contended {
                Some(others.acquire_timeout(PATIENCE).wait()?)
            } else {
                None
            };
            let mut future = Box::pin(everything(&lock));
            let mut ended = poll_times(future.as_mut(), times.min(1));
            // The operations that were to wait do so now.
            drop(holding);
            if ended.is_none() {
                ended = poll_times(future.as_mut(), times.saturating_sub(1));
            }
            drop(future);
            let free = lock.acquire_timeout(PATIENCE).wait()?;
            ensure(
                free.hold_count() == 1,
                format!("dropped after poll {times}: the count is another one"),
            )?;
            free.release().wait()?;
            if let Some(ended) = ended {
                ended?;
                break;
            }
            dropped += 1;
        }
    }
    ensure(
        dropped > 8,
        format!("there were only {dropped} places to stop at"),
    )?;
    at_rest(&client)?;
    say(&format!("dropped {dropped}"));
    works(act, &client)
}

/// The future is dropped some time after it was sent, from nothing to longer than it takes.
pub(crate) fn instants(act: &Act) -> Outcome {
    let (client, other) = (act.client()?, act.client()?);
    let (lock, others) = (act.lock(&client)?, act.lock(&other)?);
    ready();
    let (mut granted, mut cancelled) = (0, 0);
    for turn in 0..act.size {
        let holding = if turn % 2 == 1 {
            Some(others.acquire_timeout(PATIENCE).wait()?)
        } else {
            None
        };
        let taken = {
            let mut future = pin!(lock.acquire());
            let early = poll_times(future.as_mut(), 1);
            drop(holding);
            spin(longest(act) * u32::try_from(turn)? / u32::try_from(act.size)?);
            early.or_else(|| poll_times(future, 1))
        };
        match taken {
            Some(guard) => {
                granted += 1;
                guard?.release().wait()?;
            }
            None => cancelled += 1,
        }
    }
    say(&format!("granted {granted} cancelled {cancelled}"));
    ensure(granted + cancelled == act.size, "an answer is missing")?;
    works(act, &client)
}

/// The longest pause before a cancellation: an acquisition is over by then, now and then.
fn longest(act: &Act) -> Duration {
    act.lease / 400
}

/// An acquisition that was begun and has not been answered, and how many there were before. On a
/// busy machine the answer may be there before the thread goes on: then once more.
fn on_its_way(client: &Client, lock: &Lock) -> Outcome<(u64, Pin<Box<Operation<Guard>>>)> {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = client.stats().acquired;
        let mut future = Box::pin(lock.acquire());
        match poll_times(future.as_mut(), 1) {
            None => return Ok((before, future)),
            Some(guard) => guard?.release().wait()?,
        }
        ensure(Instant::now() < end, "it is always ready at once")?;
    }
}

/// The future is dropped when the lock is won and nobody has taken it yet.
pub(crate) fn granted(act: &Act) -> Outcome {
    let client = act.client()?;
    let lock = act.lock(&client)?;
    ready();
    for _ in 0..act.size {
        let (before, future) = on_its_way(&client, &lock)?;
        eventually("it is not granted", || client.stats().acquired > before)?;
        drop(future);
        at_rest(&client)?;
        eventually("the lock stays", || {
            matches!(lock.holder().wait(), Ok(None))
        })?;
    }
    works(act, &client)
}

/// One level is released while the next one is being acquired.
pub(crate) fn race(act: &Act) -> Outcome {
    let client = act.client()?;
    let lock = act.lock(&client)?;
    ready();
    let mut entered = 0;
    for turn in 0..act.size {
        let guard = lock.acquire_timeout(PATIENCE).wait()?;
        let (inner, released) = at_once(&guard, turn)?;
        match inner {
            Ok(inner) => {
                entered += 1;
                released?;
                settled(&client, &lock, &inner)?;
                inner.release().wait()?;
            }
            // The release was first: then there is nothing to enter again.
            Err(error) if error.kind() == redlatch::ErrorKind::NotOwner => released?,
            Err(error) => return Err(error.into()),
        }
        drop(guard);
        eventually("the lock stays", || {
            matches!(lock.holder().wait(), Ok(None))
        })?;
    }
    say(&format!("entered {entered}"));
    works(act, &client)
}

/// Re-enters on one thread and gives the first level back on another.
fn at_once(guard: &Guard, turn: usize) -> Outcome<(redlatch::Result<Guard>, redlatch::Result<()>)> {
    let second = guard.reenter().wait()?;
    let late = Duration::from_micros(u64::try_from(turn % 20)? * 10);
    thread::scope(|scope| {
        let entering = scope.spawn(move || {
            spin(late);
            guard.reenter().wait()
        });
        spin(Duration::from_micros(100));
        let released = second.release().wait();
        let inner = entering.join().map_err(|_| "the other thread panicked")?;
        Ok((inner, released))
    })
}

/// Both sides count the two levels that are left.
fn settled(client: &Client, lock: &Lock, inner: &Guard) -> Outcome {
    let here = inner.hold_count();
    let there = lock.holder().wait()?.map_or(0, |holder| holder.count);
    ensure(
        here == 2 && there == 2,
        format!("the client counts {here}, the server {there}, and not 2"),
    )?;
    ensure(client.stats().holds == 1, "there is more than one hold")
}
