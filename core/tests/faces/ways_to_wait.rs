//! One request, four ways to wait for it, and cancelling in each of them.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use redlatch::embed::{Cancelled, ClientExt, CompletionQueue, GuardExt, OperationExt, Outcome};
use redlatch::{AcquireOptions, Client, ErrorKind, Guard, ReentryKey};

use super::{LIMIT, Random, World, eventually, ms, refusal, soon};

#[test]
fn threads_wait_by_blocking() {
    let server = crate::support::Server::start();
    let client = Client::connect(&server.url()).wait().unwrap();
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let lock = client.lock("n").unwrap();
                for _ in 0..20 {
                    let guard = lock.acquire().wait().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().wait().unwrap();
                }
            });
        }
    });
    client.close().wait().unwrap();
    client.join(LIMIT);
}

extern "C" fn ignore(_: i32) {}

#[tokio::test]
async fn a_signal_interrupts_a_blocked_thread() {
    let mut world = World::new().await;
    let action = SigAction::new(
        SigHandler::Handler(ignore),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();

    let guard = world.lock("n").acquire().await.unwrap();
    let (stop, checks) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let thread = std::thread::spawn({
        let (lock, stop, checks) = (world.lock("n"), stop.clone(), checks.clone());
        move || {
            lock.acquire().wait_interruptibly(None, || {
                checks.fetch_add(1, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    Err("interrupted")
                } else {
                    Ok(())
                }
            })
        }
    });
    eventually("it waits", || world.client.stats().waiting == 1).await;
    pthread_kill(thread.as_pthread_t(), Signal::SIGUSR1).unwrap();
    eventually("the signal is noticed", || {
        checks.load(Ordering::SeqCst) > 0
    })
    .await;
    assert!(
        !thread.is_finished(),
        "a check that succeeds goes on waiting"
    );

    stop.store(true, Ordering::SeqCst);
    pthread_kill(thread.as_pthread_t(), Signal::SIGUSR1).unwrap();
    eventually("it ends", || thread.is_finished()).await;
    assert_eq!(thread.join().unwrap().unwrap_err(), "interrupted");
    guard.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn an_interruptible_wait_takes_what_comes() {
    let world = World::new().await;
    let guard = world.lock("n").acquire().await.unwrap();
    let lock = world.lock("n");
    let thread = std::thread::spawn(move || {
        // Twice, so that a ring that was left over from the first is met by the second.
        for _ in 0..2 {
            lock.acquire()
                .wait_interruptibly(None, || Ok::<(), ()>(()))
                .unwrap()
                .unwrap()
                .release()
                .wait()
                .unwrap();
        }
        lock.acquire_with(AcquireOptions::new().lease(ms(1)))
            .wait_interruptibly(None, || Ok::<(), ()>(()))
    });
    eventually("it waits", || world.client.stats().waiting == 1).await;
    guard.release().await.unwrap();
    eventually("it ends", || thread.is_finished()).await;
    let refused = thread.join().unwrap().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

fn is_readable(queue: &CompletionQueue) -> bool {
    // SAFETY: the queue keeps it open.
    let fd = unsafe { BorrowedFd::borrow_raw(queue.fd().unwrap()) };
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

#[tokio::test]
async fn a_queue_is_readable_while_answers_wait() {
    let world = World::new().await;
    let queue = CompletionQueue::with_fd().unwrap();
    assert!(!is_readable(&queue) && queue.drain().is_empty());
    let lock = world.lock("n");
    let _ = lock.acquire().deliver_to(&queue, 1);
    eventually("an answer", || is_readable(&queue)).await;
    let _ = lock.try_acquire().deliver_to(&queue, 2);
    let _ = lock.holder().deliver_to(&queue, 3);
    let _ = world.client.ready().deliver_to(&queue, 4);
    let _ = lock
        .acquire_with(AcquireOptions::new().lease(ms(1)))
        .deliver_to(&queue, 5);

    let mut seen = HashSet::new();
    let mut guards = Vec::new();
    while seen.len() < 5 {
        eventually("an answer", || is_readable(&queue)).await;
        let entry = queue.pop().expect("readable");
        match (entry.tag, entry.outcome) {
            (1, Outcome::Granted(guard)) => guards.push(guard),
            (2, Outcome::Failed(error)) => assert_eq!(error.kind(), ErrorKind::Timeout),
            (3, Outcome::Inspected(holders)) => assert_eq!(holders[0].count, 1),
            (4, Outcome::Connected) => {}
            (5, Outcome::Failed(error)) => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
            other => panic!("{other:?}"),
        }
        seen.insert(entry.tag);
    }
    assert!(!is_readable(&queue) && queue.pop().is_none());

    let _ = guards.remove(0).release().deliver_to(&queue, 6);
    eventually("the answer", || is_readable(&queue)).await;
    assert!(matches!(
        queue.drain()[..],
        [redlatch::embed::Completion {
            tag: 6,
            outcome: Outcome::Released,
            ..
        }]
    ));
    assert!(!is_readable(&queue));

    for tag in [7, 8] {
        let _ = world.client.close().deliver_to(&queue, tag);
        eventually("the answer", || is_readable(&queue)).await;
        let entry = queue.pop().expect("readable");
        assert!(
            matches!(entry.outcome, Outcome::Closed(names) if names.is_empty()),
            "closing twice is no error"
        );
        world.client.join(super::LIMIT);
    }
}

#[tokio::test]
async fn grants_that_nobody_takes_from_a_queue_are_released() {
    let world = World::new().await;
    let lock = world.lock("n");
    let queue = CompletionQueue::with_fd().unwrap();
    let _ = lock.acquire().deliver_to(&queue, 1);
    eventually("an answer", || is_readable(&queue)).await;
    queue.close();
    let _ = lock.acquire().deliver_to(&queue, 2);
    soon("the lock", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    let queue = CompletionQueue::with_fd().unwrap();
    let _ = lock.acquire().deliver_to(&queue, 3);
    eventually("an answer", || is_readable(&queue)).await;
    drop(queue);
    drop(soon("the lock", lock.acquire()).await.unwrap());
}

#[tokio::test]
async fn a_notified_queue_may_be_drained_by_its_callback() {
    let world = World::new().await;
    let own: Arc<Mutex<Option<Arc<CompletionQueue>>>> = Arc::default();
    let seen = Arc::new(AtomicU32::new(0));
    let queue = CompletionQueue::with_notify({
        let (own, seen) = (own.clone(), seen.clone());
        move || {
            if let Some(queue) = &*own.lock().unwrap() {
                seen.fetch_add(
                    u32::try_from(queue.drain().len()).unwrap(),
                    Ordering::SeqCst,
                );
            }
        }
    });
    *own.lock().unwrap() = Some(queue.clone());
    for tag in 0..50 {
        let _ = world
            .lock(&format!("n{tag}"))
            .acquire()
            .deliver_to(&queue, tag);
    }
    eventually("all answers", || seen.load(Ordering::SeqCst) == 50).await;
    own.lock().unwrap().take();
}

#[tokio::test]
async fn a_queued_caller_needs_no_io_thread() {
    let world = World::new().await;
    let (lock, queue) = (world.lock("n"), CompletionQueue::with_notify(|| {}));
    let guard = lock.acquire().await.unwrap();
    let _ = lock.acquire().deliver_to(&queue, 1);
    eventually("one waits", || world.client.stats().waiting == 1).await;

    // A callback on the engine's thread keeps it.
    let (go_on, gone_on) = std::sync::mpsc::channel::<()>();
    let (kept, is_kept) = std::sync::mpsc::channel();
    let gone_on = Mutex::new(gone_on);
    let keeper = CompletionQueue::with_notify(move || {
        kept.send(()).unwrap();
        let _ = gone_on.lock().unwrap().recv_timeout(LIMIT);
    });
    let _ = world.lock("other").holder().deliver_to(&keeper, 1);
    is_kept.recv_timeout(LIMIT).unwrap();
    // This caller's time is over before anything else is due: the thread is told to look at that, which is
    // no news for the next one.
    let _ = lock.acquire_timeout(ms(1)).deliver_to(&queue, 2);
    assert_eq!(world.client.stats().waiting, 2);
    let _ = lock.acquire().deliver_to(&queue, 3);
    assert_eq!(world.client.stats().waiting, 3);
    drop(go_on);

    drop(guard);
    let mut granted = Vec::new();
    while granted.len() < 2 {
        eventually("an answer", || match queue.pop() {
            Some(entry) if entry.tag == 2 => true,
            Some(entry) => {
                assert!(matches!(entry.outcome, Outcome::Granted(_)));
                granted.push(entry.tag);
                true
            }
            None => false,
        })
        .await;
    }
    assert_eq!(granted, [1, 3]);
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_at_once() {
    let world = World::new().await;
    let (lock, queue) = (world.lock("n"), CompletionQueue::with_fd().unwrap());
    let guard = lock.acquire().await.unwrap();
    let task = tokio::spawn(lock.acquire());
    let delivered = lock.acquire().deliver_to(&queue, 1);
    let (stop, blocked) = (Arc::new(AtomicBool::new(false)), lock.acquire());
    let thread = std::thread::spawn({
        let stop = stop.clone();
        move || {
            blocked.wait_interruptibly(None, || {
                if stop.load(Ordering::SeqCst) {
                    Err("stop")
                } else {
                    Ok(())
                }
            })
        }
    });
    eventually("all three wait", || world.client.stats().waiting == 3).await;
    task.abort();
    eventually("the task waits no longer", || {
        world.client.stats().waiting == 2
    })
    .await;
    assert_eq!(queue.cancel(delivered), Cancelled::Yes);
    eventually("the delivery does not either", || {
        world.client.stats().waiting == 1
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    eventually("nor the thread", || world.client.stats().waiting == 0).await;
    assert_eq!(thread.join().unwrap().map(drop), Err("stop"));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_queue_keeps_the_tag_while_it_is_needed() {
    let world = World::new().await;
    let (lock, queue) = (world.lock("n"), CompletionQueue::with_fd().unwrap());
    let guard = lock.acquire().await.unwrap();
    let tags = [1, 2, 3].map(Arc::new);
    let uses = || tags.each_ref().map(Arc::strong_count);
    let tickets = tags
        .each_ref()
        .map(|tag| lock.acquire().deliver_to(&queue, tag.clone()));
    eventually("all three wait", || world.client.stats().waiting == 3).await;
    assert_eq!(uses(), [2, 2, 2]);
    queue.forget(tickets[1]);
    eventually("one was forgotten", || world.client.stats().waiting == 2).await;
    assert_eq!(uses(), [2, 1, 2]);
    guard.release().await.unwrap();
    let granted = loop {
        if let Some(entry) = queue.pop() {
            break entry;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(granted.tag.as_ref(), &1);
    queue.close();
    eventually("nothing waits", || world.client.stats().waiting == 0).await;
    drop(granted.tag);
    assert!(queue.is_idle());
    // A hold drops the tag of its loss when it is released.
    let Outcome::Granted(guard) = granted.outcome else {
        panic!("{:?}", granted.outcome)
    };
    guard.watch_lost(&queue, tags[1].clone());
    assert_eq!(uses(), [1, 2, 1]);
    guard.release().await.unwrap();
    eventually("no tag is kept", || uses() == [1, 1, 1]).await;
}

/// Every request is either cancelled, and then no entry comes, or its entry comes exactly once.
#[tokio::test]
async fn a_cancelled_delivery_never_comes() {
    let mut world = World::new().await;
    let queue = CompletionQueue::with_fd().unwrap();
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let barrier = Barrier::new(THREADS as usize);
    let cancelled: Mutex<HashSet<u64>> = Mutex::default();
    let mut entries = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (client, queue, cancelled, barrier) =
                    (&world.client, &queue, &cancelled, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let mut random = Random(thread + 1);
                    for n in 0..EACH {
                        let tag = thread * EACH + n;
                        let lock = client.lock(&format!("n{}", tag % 50)).unwrap();
                        let pending = lock.acquire().deliver_to(queue, tag);
                        for _ in 0..random.below(3000) {
                            std::hint::spin_loop();
                        }
                        if queue.cancel(pending) == Cancelled::Yes {
                            assert_eq!(queue.cancel(pending), Cancelled::No, "asked twice");
                            cancelled.lock().unwrap().insert(tag);
                        }
                    }
                })
            })
            .collect();
        // Taking the entries lets the next ones have the lock.
        while threads.iter().any(|thread| !thread.is_finished()) {
            entries.extend(queue.drain().into_iter().map(|entry| entry.tag));
            std::thread::yield_now();
        }
    });
    let cancelled = cancelled.into_inner().unwrap();
    let all = (THREADS * EACH) as usize;
    let start = Instant::now();
    while entries.len() < all - cancelled.len() && start.elapsed() < LIMIT {
        entries.extend(queue.drain().into_iter().map(|entry| entry.tag));
        std::thread::yield_now();
    }
    eventually("nothing is left", || world.is_clean()).await;
    entries.extend(queue.drain().into_iter().map(|entry| entry.tag));
    let unique: HashSet<u64> = entries.iter().copied().collect();
    assert_eq!(unique.len(), entries.len(), "an entry came twice");
    assert!(unique.is_disjoint(&cancelled));
    assert_eq!(unique.len() + cancelled.len(), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_random_cancels_leave_nothing() {
    let mut world = World::new().await;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let other = world.another().await;
    let tasks: Vec<_> = (0..20u64)
        .map(|task| {
            let client = if task % 2 == 0 {
                world.client.clone()
            } else {
                other.clone()
            };
            tokio::spawn(async move {
                let mut random = Random(seed * 1000 + task);
                let mut granted = 0;
                for _ in 0..500 {
                    let lock = client.lock(&format!("n{}", random.below(10))).unwrap();
                    let key = if random.below(4) == 0 {
                        ReentryKey::Explicit(random.below(3))
                    } else {
                        ReentryKey::Once
                    };
                    let acquire = lock.acquire_with(AcquireOptions::new().key(key));
                    let patience = std::time::Duration::from_micros(random.below(5000));
                    if let Ok(guard) = tokio::time::timeout(patience, acquire).await {
                        granted += 1;
                        let guard: Guard = guard.unwrap();
                        match random.below(3) {
                            0 => drop(guard),
                            1 => drop(tokio::time::timeout(patience, guard.release()).await),
                            _ => {
                                drop(tokio::time::timeout(patience, guard.reenter()).await);
                            }
                        }
                    }
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += soon("all rounds", task).await.unwrap();
    }
    println!("{granted} of 10000 were granted");
    eventually("nothing is left", || {
        world.is_clean() && other.stats().holds == 0
    })
    .await;
}

#[tokio::test]
async fn a_guard_is_dropped_anywhere() {
    let world = World::new().await;
    let lock = world.lock("n");
    let guard = lock.acquire().await.unwrap();
    // On a thread without a runtime.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    // During a panic.
    let panicked = std::thread::spawn(move || {
        let _guard = guard;
        panic!("of the test");
    });
    assert!(panicked.join().is_err());
    let guard = soon("the lock", lock.acquire()).await.unwrap();
    // When thread-local data is destroyed.
    thread_local!(static KEPT: std::cell::RefCell<Option<Guard>> = const { std::cell::RefCell::new(None) });
    std::thread::spawn(move || KEPT.set(Some(guard)))
        .join()
        .unwrap();
    drop(soon("the lock", lock.acquire()).await.unwrap());
}

#[tokio::test]
async fn an_operation_gives_its_answer_once() {
    let world = World::new().await;
    let mut ready = world.client.ready();
    soon("an answer", &mut ready).await.unwrap();
    assert_eq!(refusal(ready).await, ErrorKind::Internal);
}
