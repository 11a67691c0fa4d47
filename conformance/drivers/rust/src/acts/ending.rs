//! Programs that fork, exit, or lose a part of themselves while they hold and wait.

use std::panic::AssertUnwindSafe;
use std::thread;
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork as fork_process};
use redlatch::embed::{CompletionQueue, OperationExt};
use redlatch::{AcquireOptions, Client, ErrorKind, Guard, ReentryKey};
use tokio::runtime;

use super::act::{Act, Outcome, ensure, eventually, ready, renewed, say};

/// Runs `child` in a forked process and gives what it says.
fn in_child(child: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: the child uses the memory of other threads only as redlatch promises, allocates by
    // glibc's fork-safe malloc, and leaves without running anybody's exit handlers.
    match unsafe { fork_process() }? {
        ForkResult::Child => {
            nix::unistd::alarm::set(60);
            let passed = match std::panic::catch_unwind(AssertUnwindSafe(child)) {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    say(&format!("child {error}"));
                    false
                }
                Err(_) => false,
            };
            // SAFETY: as above.
            unsafe { nix::libc::_exit(i32::from(!passed)) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None)?;
            ensure(
                matches!(ended, WaitStatus::Exited(_, 0)),
                format!("the child ended so: {ended:?}"),
            )
        }
    }
}

pub(crate) fn fork(act: &Act) -> Outcome {
    let client = act.client()?;
    let (lock, busy) = (act.lock(&client)?, act.busy(&client)?);
    let [kept, dropped, released] =
        ["", ":dropped", ":released"].map(|end| client.lock(&format!("{}{end}", act.lock)));
    let [kept, dropped, released]: [Guard; 3] = [
        kept?.acquire().wait()?,
        dropped?.acquire().wait()?,
        released?.acquire().wait()?,
    ];
    let queue = CompletionQueue::with_fd()?;
    let waiting = busy.acquire().deliver_to(&queue, 1);
    eventually("nobody waits", || client.stats().waiting == 1)?;

    let mut inherited = Some((dropped, released));
    in_child(|| {
        let (dropped, released) = inherited.take().ok_or("nothing is inherited")?;
        let forked = |error: Option<redlatch::Error>| {
            error.map(|error| error.kind()) == Some(ErrorKind::Forked)
        };
        ensure(
            forked(lock.acquire().wait().err()),
            "acquire does not say that it is forked",
        )?;
        ensure(
            forked(kept.check().err()),
            "check does not say that it is forked",
        )?;
        ensure(!kept.is_held(), "the child believes that it holds")?;
        drop(dropped);
        ensure(
            released.release().wait().is_ok(),
            "release in the child is not silent",
        )?;
        let own = act.client()?;
        ensure(
            act.lock(&own)?.try_acquire().wait()?.is_none(),
            "the child took what its parent holds",
        )?;
        own.lock(&format!("{}:child", act.lock))?
            .acquire()
            .wait()?
            .release()
            .wait()?;
        own.close().wait()?;
        Ok(())
    })?;

    ready();
    renewed(&client, 3)?;
    let (dropped, released) = inherited.ok_or("moved only in the child")?;
    for guard in [kept, dropped, released] {
        guard.check()?;
        ensure(guard.hold_count() == 1, "the count is another one")?;
        guard.release().wait()?;
    }
    let mut entries = Vec::new();
    eventually("what the parent waits for does not come", || {
        entries = queue.drain();
        !entries.is_empty()
    })?;
    drop((entries, waiting));
    client.close().wait()?;
    Ok(())
}

pub(crate) fn exit(act: &Act) -> Outcome {
    let client = act.client()?;
    let held = act.lock(&client)?.acquire().wait()?;
    let queue = CompletionQueue::with_fd()?;
    let waiting = act.busy(&client)?.acquire().deliver_to(&queue, 1);
    let thread_busy = act.busy(&client)?;
    drop(thread::spawn(move || thread_busy.acquire().wait()));
    eventually("nobody waits", || client.stats().waiting == 2)?;
    ready();
    match act.name.as_str() {
        "exit-exit" => std::process::exit(3),
        "exit-panic" => std::panic::resume_unwind(Box::new("on purpose")),
        _ => drop((held, waiting)),
    }
    Ok(())
}

/// A thread ends that holds without a guard.
pub(crate) fn owner_ends(act: &Act) -> Outcome {
    let client = act.client()?;
    let lock = act.lock(&client)?;
    let ended = thread::spawn(move || -> Outcome {
        let guard = lock
            .acquire_with(AcquireOptions::new().key(ReentryKey::thread()))
            .wait()?;
        drop(guard.detach());
        ready();
        Ok(())
    });
    ended.join().map_err(|_| "the thread panicked")??;
    say("ended");
    works(act, &client)
}

/// A runtime ends with tasks that hold and wait; a guard outside of it lives on.
pub(crate) fn runtime_ends(act: &Act) -> Outcome {
    let client = act.client()?;
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    let inside = client.lock(&format!("{}:inside", act.lock))?;
    let (busy, outside) = (act.busy(&client)?, act.lock(&client)?);
    let outside = runtime.block_on(async move { outside.acquire().await })?;
    let held = inside.clone();
    drop(runtime.spawn(async move {
        let guard = held.acquire().await;
        std::future::pending::<()>().await;
        drop(guard);
    }));
    drop(runtime.spawn(async move { busy.acquire().await }));
    eventually("nobody holds and waits", || {
        client.stats().waiting == 1 && client.stats().holds == 2
    })?;
    ready();
    runtime.shutdown_timeout(Duration::from_secs(30));
    eventually("the waiter of a runtime that has ended waits", || {
        client.stats().waiting == 0
    })?;
    // A guard of a task was dropped with it.
    inside.acquire().wait()?.release().wait()?;
    renewed(&client, 3)?;
    outside.check()?;
    drop(outside);
    works(act, &client)
}

/// A guard is dropped on a plain thread, in a runtime of one thread, during a panic, at the end of
/// a thread.
pub(crate) fn dropped_anywhere(act: &Act) -> Outcome {
    thread_local! { static LAST: std::cell::RefCell<Option<Guard>> = const { std::cell::RefCell::new(None) }; }
    let client = act.client()?;
    let lock = act.lock(&client)?;
    ready();
    let guard = lock.acquire().wait()?;
    thread::spawn(move || drop(guard))
        .join()
        .map_err(|_| "dropping panicked on a thread")?;
    let single = runtime::Builder::new_current_thread().build()?;
    single.block_on(async { lock.acquire().await.map(drop) })?;
    let guard = single.block_on(async { lock.acquire().await })?;
    drop(single);
    drop(guard);
    let guard = lock.acquire().wait()?;
    let unwound = thread::spawn(move || {
        let _held = guard;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    ensure(unwound.join().is_err(), "it did not panic")?;
    let guard = lock.acquire().wait()?;
    let kept = thread::spawn(move || LAST.with(|last| *last.borrow_mut() = Some(guard)));
    kept.join()
        .map_err(|_| "dropping panicked at the end of a thread")?;
    works(act, &client)
}

/// A runtime of one thread does nothing for three leases.
pub(crate) fn blocked(act: &Act) -> Outcome {
    let client = act.client()?;
    let lock = act.lock(&client)?;
    let runtime = runtime::Builder::new_current_thread().build()?;
    let checked: Outcome = runtime.block_on(async {
        let guard = lock.acquire().await?;
        ready();
        thread::sleep(3 * act.lease);
        guard.check()?;
        ready();
        guard.release().await?;
        Ok(())
    });
    checked?;
    ensure(client.stats().lost == 0, "something was lost")?;
    works(act, &client)
}

/// The same client goes on as if nothing had happened.
pub(crate) fn works(act: &Act, client: &Client) -> Outcome {
    let guard = act
        .lock(client)?
        .acquire_timeout(super::act::PATIENCE)
        .wait()?;
    ensure(guard.hold_count() == 1, "the count is another one")?;
    guard.release().wait()?;
    super::act::at_rest(client)?;
    say("done");
    client.close().wait()?;
    Ok(())
}
