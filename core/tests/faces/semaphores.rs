//! Semaphores: permits, their number, and what is left of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use redlatch::{
    AcquireOptions, Client, ClientOptions, ErrorKind, Guard, Kind, LockOptions, Permits,
    ReentryKey, Semaphore,
};

use super::{World, eventually, ms, refusal, soon};

impl World {
    fn semaphore(&self, limit: usize) -> Semaphore {
        self.client.semaphore("s", limit).unwrap()
    }

    /// The number of free permits, and of taken ones, as Redis has them.
    fn counts(&mut self) -> (i64, i64) {
        (
            self.command(&["GET", "s"]),
            self.command(&["ZCARD", "{s}:timeout"]),
        )
    }
}

/// A client whose waiters are woken by messages or not at all.
async fn without_recheck(world: &World) -> Client {
    let options = ClientOptions::new().recheck(Duration::from_secs(3600));
    let client = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    client
}

#[tokio::test]
async fn there_are_never_more_owners_than_permits() {
    let mut world = World::new().await;
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for at in 0..12 {
        let client = world.another().await;
        let (semaphore, inside) = (client.semaphore("s", 5).unwrap(), inside.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let permits = 1 + (at + round) % 3;
                let guard = semaphore.acquire_many(permits as usize).await.unwrap();
                let now = inside.fetch_add(permits, Ordering::SeqCst) + permits;
                assert!(now <= 5, "{now} permits are out");
                tokio::task::yield_now().await;
                inside.fetch_sub(permits, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon("all rounds", task).await.unwrap();
    }
    assert_eq!(world.counts(), (5, 0));
}

#[tokio::test]
async fn a_try_takes_what_is_free() {
    let mut world = World::new().await;
    let semaphore = world.semaphore(3);
    let two = semaphore.try_acquire_many(2).await.unwrap().expect("two");
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    let one = semaphore.try_acquire().await.unwrap().expect("the last");
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(world.counts(), (0, 3));
    two.release().await.unwrap();
    assert_eq!(world.counts(), (2, 1));
    drop(one);
    eventually("all are back", || world.counts() == (3, 0)).await;
}

#[tokio::test]
async fn tries_at_the_same_time_do_not_hinder_each_other() {
    let world = World::new().await;
    let semaphore = world.semaphore(8);
    let tries: Vec<_> = (0..16)
        .map(|_| tokio::spawn(semaphore.try_acquire()))
        .collect();
    let mut guards: Vec<Guard> = Vec::new();
    for each in tries {
        guards.extend(soon("an answer", each).await.unwrap().unwrap());
    }
    assert_eq!(guards.len(), 8);
}

#[tokio::test]
async fn a_release_wakes_the_waiters_of_both_clients() {
    let world = World::new().await;
    let (here, there) = (without_recheck(&world).await, without_recheck(&world).await);
    let (own, other) = (
        here.semaphore("s", 2).unwrap(),
        there.semaphore("s", 2).unwrap(),
    );
    let two = own.acquire_many(2).await.unwrap();
    // Each gives its permit back at once: the clients come in any order.
    let take = |semaphore: &Semaphore| {
        let acquired = semaphore.acquire();
        tokio::spawn(async move { acquired.await.unwrap().release().await.unwrap() })
    };
    let mut waiting: Vec<_> = (0..3).map(|_| take(&other)).collect();
    waiting.extend((0..3).map(|_| take(&own)));
    eventually("they wait", || {
        there.stats().waiting == 3 && here.stats().waiting == 3
    })
    .await;
    two.release().await.unwrap();
    for each in waiting {
        soon("a permit", each).await.unwrap();
    }
}

#[tokio::test]
async fn callers_come_in_their_order_whatever_they_want() {
    let world = World::new().await;
    let semaphore = world.semaphore(3);
    let first = semaphore.acquire_many(2).await.unwrap();
    let all = tokio::spawn(semaphore.acquire_many(3));
    eventually("it waits", || world.client.stats().waiting == 1).await;
    let behind = tokio::spawn(semaphore.acquire());
    eventually("both wait", || world.client.stats().waiting == 2).await;
    first.release().await.unwrap();
    let all = soon("all permits", all).await.unwrap().unwrap();
    assert!(!behind.is_finished());
    all.release().await.unwrap();
    drop(soon("one permit", behind).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_dropped_wait_takes_nothing() {
    let mut world = World::new().await;
    let semaphore = world.semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    let waits = tokio::spawn(semaphore.acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;
    waits.abort();
    eventually("it is gone", || world.client.stats().waiting == 0).await;
    let late = semaphore.acquire_with(AcquireOptions::new().wait(ms(50)));
    assert_eq!(refusal(late).await, ErrorKind::Timeout);
    held.release().await.unwrap();
    eventually("it is free", || world.counts() == (1, 0)).await;
}

#[tokio::test]
async fn the_watchdog_keeps_permits_and_a_fixed_lease_ends_them() {
    let mut world = World::new().await;
    let options = LockOptions::new().limit(2).watchdog_lease(ms(1500));
    let semaphore = world.client.semaphore_with("s", options).unwrap();
    let kept = semaphore.acquire_many(2).await.unwrap();
    let before: f64 = world
        .command::<Vec<redis::Value>>(&["ZRANGE", "{s}:timeout", "0", "0", "WITHSCORES"])
        .get(1)
        .and_then(|value| redis::from_redis_value_ref(value).ok())
        .expect("a time");
    let later = |world: &mut World| -> u64 {
        let until = format!("({}", before + 1000.0);
        world.command(&["ZCOUNT", "{s}:timeout", &until, "+inf"])
    };
    eventually("both are renewed", || later(&mut world) == 2).await;
    assert!(kept.is_held());
    kept.release().await.unwrap();

    let fixed = semaphore
        .acquire_with(AcquireOptions::new().lease(ms(100)))
        .await
        .unwrap();
    soon("its end", fixed.lost()).await;
    assert!(!fixed.is_held());
}

#[tokio::test]
async fn permits_of_a_dead_owner_come_back() {
    let mut world = World::new().await;
    // Redisson's id of a permit whose time is over, and one that is kept for ever.
    let _: () = world.command(&["SET", "s", "0"]);
    let _: u64 = world.command(&["ZADD", "{s}:timeout", "5", "0123456789abcdef"]);
    let _: u64 = world.command(&["ZADD", "{s}:timeout", "922337203685477", "fedcba9876543210"]);
    let semaphore = world.semaphore(0);
    let permits = semaphore.permits().await.unwrap();
    assert_eq!((permits.available, permits.limit), (1, 2));
    let guard = semaphore.try_acquire().await.unwrap().expect("that one");
    assert_eq!(world.counts(), (0, 2));
    let holders = semaphore.as_lock().holders().await.unwrap();
    assert_eq!(holders.len(), 2);
    let java = holders.iter().find(|holder| holder.remaining.is_none());
    assert_eq!(
        java.map(|holder| &*holder.owner),
        Some("66656463626139383736353433323130")
    );
    guard.release().await.unwrap();
    assert_eq!(world.counts(), (1, 1));
}

#[tokio::test]
async fn the_number_of_permits_can_change() {
    let world = World::new().await;
    let semaphore = world.semaphore(2);
    assert_eq!(semaphore.permits().await.unwrap(), Permits::default());
    let two = semaphore.acquire_many(2).await.unwrap();
    let waits = tokio::spawn(semaphore.acquire());
    eventually("it waits", || world.client.stats().waiting == 1).await;
    let grown = semaphore.set_permits(3).await.unwrap();
    assert_eq!((grown.available, grown.limit), (1, 3));
    let third = soon("the new one", waits).await.unwrap().unwrap();
    let shrunk = semaphore.set_permits(1).await.unwrap();
    assert_eq!((shrunk.available, shrunk.limit), (-2, 1));
    two.release().await.unwrap();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    third.release().await.unwrap();
    drop(semaphore.try_acquire().await.unwrap().expect("the one"));
}

#[tokio::test]
async fn permits_that_are_taken_back_are_lost() {
    let mut world = World::new().await;
    let options = LockOptions::new().limit(1).watchdog_lease(ms(900));
    let semaphore = world.client.semaphore_with("s", options).unwrap();
    let guard = semaphore.acquire().await.unwrap();
    assert!(semaphore.as_lock().force_release().await.unwrap());
    soon("the loss", guard.lost()).await;
    let lost = [
        guard.check().unwrap_err(),
        guard.extend(ms(900)).await.unwrap_err(),
    ];
    for error in lost {
        let text = error.to_string();
        assert!(
            text.starts_with("lost (forced): semaphore \"s\": "),
            "{text}"
        );
    }
    assert_eq!(world.counts(), (1, 0));
    let guard = semaphore.acquire().await.unwrap();
    let _: u64 = world.command(&["DEL", "s", "{s}:timeout"]);
    soon("the loss", guard.lost()).await;
    drop(guard);
    // The limit comes back with the next caller.
    let guard = semaphore.acquire().await.unwrap();
    assert_eq!(world.counts(), (0, 1));
    guard.release().await.unwrap();
    assert!(!semaphore.as_lock().force_release().await.unwrap());
}

#[tokio::test]
async fn the_client_s_defaults_for_locks_do_not_count() {
    let world = World::new().await;
    let locks = LockOptions::new()
        .fencing(true)
        .fencing_expires(true)
        .reentrant(true)
        .watchdog_lease(ms(900));
    let client = Client::builder(&world.server.url())
        .lock_options(locks)
        .build()
        .unwrap();
    let semaphore = client.semaphore("s", 1).unwrap();
    let options = semaphore.as_lock().options();
    assert_eq!(*options, client.semaphore_options().limit(1));
    let guard = semaphore.acquire().await.unwrap();
    assert_eq!(guard.fencing_token(), None);
    assert!(guard.remaining() <= ms(900), "the others count");
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    for own in [
        client.semaphore_options().fencing(true),
        client.semaphore_options().fencing_expires(true),
        client.semaphore_options().reentrant(true),
    ] {
        let error = client.semaphore_with("s", own).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn a_wait_for_permits_that_nobody_has_set_says_so() {
    let world = World::new().await;
    let semaphore = world.semaphore(0);
    let brief = || AcquireOptions::new().wait(ms(50));
    let error = semaphore.acquire_with(brief()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("has no limit"), "{error}");
    semaphore.set_permits(1).await.unwrap();
    let permit = semaphore.acquire().await.unwrap();
    let limited = world.semaphore(1);
    let error = limited.acquire_with(brief()).await.unwrap_err();
    assert!(!error.to_string().contains("limit"), "{error}");
    permit.release().await.unwrap();
}

#[tokio::test]
async fn wrong_use_is_refused() {
    let mut world = World::new().await;
    let semaphore = world.semaphore(2);
    assert_eq!(
        refusal(semaphore.acquire_many(3)).await,
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refusal(semaphore.acquire_many(0)).await,
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refusal(semaphore.set_permits(1 << 31)).await,
        ErrorKind::InvalidArgument
    );
    for options in [
        LockOptions::new().fencing(true),
        LockOptions::new().reentrant(true),
    ] {
        let error = world.client.semaphore_with("s", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let limit = LockOptions::new().limit(1);
    assert!(world.client.lock_with("s", limit).is_err());
    let many = AcquireOptions::new().permits(2);
    assert_eq!(
        refusal(world.lock("n").acquire_with(many)).await,
        ErrorKind::InvalidArgument
    );

    let key = AcquireOptions::new().key(ReentryKey::Explicit(7));
    let guard = semaphore.acquire_with(key.clone()).await.unwrap();
    assert_eq!(
        refusal(semaphore.acquire_with(key)).await,
        ErrorKind::InvalidArgument
    );
    drop(guard);

    let _: () = world.command(&["SET", "other", "a text"]);
    let other = world.client.semaphore("other", 1).unwrap();
    assert_eq!(refusal(other.acquire()).await, ErrorKind::ForeignKind);
    let lock = world
        .client
        .lock_with("l", LockOptions::new().kind(Kind::Reentrant))
        .unwrap();
    let held = lock.acquire().await.unwrap();
    let same = world.client.semaphore("l", 1).unwrap();
    assert_eq!(refusal(same.acquire()).await, ErrorKind::ForeignKind);
    assert_eq!(refusal(same.permits()).await, ErrorKind::ForeignKind);
    held.release().await.unwrap();
}

/// A semaphore in fair mode, of a client whose waiters are woken by messages or not at all.
async fn fair(world: &World, limit: usize) -> (Client, Semaphore) {
    let client = without_recheck(world).await;
    let options = client.semaphore_options().limit(limit).fair(true);
    let semaphore = client.semaphore_with("s", options).unwrap();
    (client, semaphore)
}

/// Waits until `places` callers have a place in the queue.
async fn in_the_queue(world: &mut World, places: u32) {
    eventually("all have a place", || {
        world.command::<u32>(&["LLEN", "{s}:redlatch:queue"]) == places
    })
    .await;
}

#[tokio::test]
async fn in_fair_mode_the_callers_of_all_clients_come_in_their_order() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 2).await, fair(&world, 2).await);
    let both = own.acquire_many(2).await.unwrap();
    let mut waits = Vec::new();
    for (place, (semaphore, permits)) in (0..).zip([(&other, 2), (&own, 1), (&other, 1)]) {
        waits.push(tokio::spawn(semaphore.acquire_many(permits)));
        in_the_queue(&mut world, place + 1).await;
    }
    let queue = own.as_lock().waiters().await.unwrap();
    let wanted: Vec<u32> = queue.iter().map(|waiter| waiter.count).collect();
    assert_eq!(wanted, [2, 1, 1]);
    assert!(queue.iter().all(|waiter| waiter.process.is_some()));

    both.release().await.unwrap();
    let first = soon("the first", waits.remove(0)).await.unwrap().unwrap();
    assert_eq!(world.counts(), (0, 2));
    first.release().await.unwrap();
    for wait in waits {
        drop(soon("the others", wait).await.unwrap().unwrap());
    }
    eventually("all are back", || world.counts() == (2, 0)).await;
    assert_eq!(own.as_lock().waiters().await.unwrap(), []);

    let error = world.semaphore(2).as_lock().waiters().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("option fair"), "{error}");
}

/// One that wants little waits behind one that wants much, until that one gives up.
#[tokio::test]
async fn in_fair_mode_a_waiter_that_gives_up_wakes_the_next() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 3).await, fair(&world, 3).await);
    let one = own.acquire().await.unwrap();
    let many = tokio::spawn(other.acquire_many(3));
    in_the_queue(&mut world, 1).await;
    // Two are free, and nobody of this client waits: the server refuses a try, for the other's sake.
    assert!(own.try_acquire_many(2).await.unwrap().is_none());
    // A caller without fair mode takes what is free.
    let beside = world.semaphore(3).try_acquire().await.unwrap();
    beside.expect("a free permit").release().await.unwrap();
    let few = tokio::spawn(own.acquire_many(2));
    in_the_queue(&mut world, 2).await;
    assert_eq!(world.counts(), (2, 1));
    many.abort();
    let few = soon("the one behind it", few).await.unwrap().unwrap();
    assert_eq!(world.counts(), (0, 3));
    let left: u32 = world.command(&["EXISTS", "{s}:redlatch:queue", "{s}:redlatch:places"]);
    assert_eq!(left, 0);
    few.release().await.unwrap();
    one.release().await.unwrap();
    assert_eq!(world.counts(), (3, 0));
}

/// Permits do not pass on within a client while others of another one wait.
#[tokio::test]
async fn in_fair_mode_a_release_does_not_pass_permits_on_within_a_client() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 1).await, fair(&world, 1).await);
    let held = own.acquire().await.unwrap();
    let first = tokio::spawn(other.acquire());
    in_the_queue(&mut world, 1).await;
    let second = tokio::spawn(own.acquire());
    in_the_queue(&mut world, 2).await;
    held.release().await.unwrap();
    let first = soon("the first in the queue", first)
        .await
        .unwrap()
        .unwrap();
    assert!(!second.is_finished());
    first.release().await.unwrap();
    drop(soon("the second", second).await.unwrap().unwrap());
}

/// The number of permits may become less than somebody waits for. That holds nobody up.
#[tokio::test]
async fn in_fair_mode_a_wish_for_more_than_there_are_holds_nobody_up() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 3).await, fair(&world, 3).await);
    let all = own.acquire_many(3).await.unwrap();
    let many = tokio::spawn(other.acquire_many(3));
    in_the_queue(&mut world, 1).await;
    own.set_permits(2).await.unwrap();
    all.release().await.unwrap();
    drop(soon("a wish that can be met", own.acquire()).await.unwrap());
    assert!(!many.is_finished());
    own.set_permits(3).await.unwrap();
    drop(soon("and the other one", many).await.unwrap().unwrap());
    eventually("all are back", || world.counts() == (3, 0)).await;
}

/// Both wait in one client. The message of the release goes to that client once.
#[tokio::test]
async fn in_fair_mode_a_wish_for_more_than_there_are_takes_no_message_from_the_next() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 3).await, fair(&world, 3).await);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(own.acquire().await.unwrap());
    }
    let many = tokio::spawn(other.acquire_many(3));
    in_the_queue(&mut world, 1).await;
    let few = tokio::spawn(other.acquire());
    in_the_queue(&mut world, 2).await;
    own.set_permits(2).await.unwrap();
    taken.pop().unwrap().release().await.unwrap();
    taken.pop().unwrap().release().await.unwrap();
    drop(soon("the one behind it", few).await.unwrap().unwrap());
    assert!(!many.is_finished());
    own.set_permits(3).await.unwrap();
    drop(taken);
    drop(soon("and the other one", many).await.unwrap().unwrap());
}

/// The number becomes smaller while permits are free, and the first one waits for more.
#[tokio::test]
async fn in_fair_mode_fewer_permits_are_the_turn_of_the_next() {
    let mut world = World::new().await;
    let ((_here, own), (_there, other)) = (fair(&world, 4).await, fair(&world, 4).await);
    let held = own.acquire().await.unwrap();
    let many = tokio::spawn(other.acquire_many(4));
    in_the_queue(&mut world, 1).await;
    let few = tokio::spawn(own.acquire());
    in_the_queue(&mut world, 2).await;
    own.set_permits(3).await.unwrap();
    drop(soon("the next one", few).await.unwrap().unwrap());
    many.abort();
    held.release().await.unwrap();
}

#[tokio::test]
async fn the_kind_of_a_fair_semaphore_is_no_option() {
    let world = World::new().await;
    let client = without_recheck(&world).await;
    let options = client.lock_options().kind(Kind::FairSemaphore);
    let error = client.lock_with("s", options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("option fair"), "{error}");
}

#[test]
fn in_fair_mode_threads_come_in_their_order() {
    use crate::support::sets::eventually;

    let server = crate::support::Server::start();
    let client = Client::builder(&server.url()).build().unwrap();
    let options = client.semaphore_options().limit(1).fair(true);
    let semaphore = client.semaphore_with("s", options).unwrap();
    let held = semaphore.acquire().wait().unwrap();
    let order = Arc::new(AtomicI64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let (own, order) = (semaphore.clone(), order.clone());
            let thread = std::thread::spawn(move || {
                let permit = own.acquire().wait().unwrap();
                assert_eq!(order.fetch_add(1, Ordering::SeqCst), at);
                permit.release().wait().unwrap();
            });
            let places = || semaphore.as_lock().waiters().wait().unwrap().len() as i64;
            eventually("it has a place", || places() > at);
            thread
        })
        .collect();
    held.release().wait().unwrap();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    client.close().wait().unwrap();
}
