//! Multi locks: several names as one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redlatch::{
    AcquireOptions, Client, ErrorKind, Lock, LockOptions, LostReason, OptionValue, ReentryKey,
};

use super::wire_budget::Monitor;
use super::{Random, World, eventually, ms, refusal, soon};

fn multi(client: &Client, names: &[&str]) -> Lock {
    client.multi_lock(names).unwrap()
}

#[tokio::test]
async fn it_has_all_of_its_names_or_none() {
    let mut world = World::new().await;
    let other = world.another().await;
    let all = multi(&world.client, &["c", "a", "b"]);
    let guard = all.acquire().await.unwrap();
    assert_eq!(guard.name(), "a, b, c");
    assert!(guard.is_held() && guard.remaining() > ms(20_000));
    for name in ["a", "b", "c"] {
        let free = other.lock(name).unwrap().try_acquire().await.unwrap();
        assert!(free.is_none(), "{name} is held");
    }
    guard.release().await.unwrap();
    let theirs = other.lock("b").unwrap().acquire().await.unwrap();
    assert!(all.try_acquire().await.unwrap().is_none());
    eventually("only b is left", || {
        world.command::<Vec<String>>(&["KEYS", "*"]) == ["b"]
    })
    .await;
    theirs.release().await.unwrap();
    drop(soon("the names", all.acquire()).await.unwrap());
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn it_waits_for_the_name_that_is_held() {
    let mut world = World::new().await;
    let theirs = world.another().await.lock("b").unwrap();
    let theirs = theirs.acquire().await.unwrap();
    let all = multi(&world.client, &["a", "b", "c"]);
    let waiter = tokio::spawn(async move { all.acquire().await });
    // It keeps the names before the one that it waits for, and gives back those behind.
    eventually("it waits", || {
        let mut names = world.command::<Vec<String>>(&["KEYS", "*"]);
        names.sort();
        world.client.stats().waiting == 1 && names == ["a", "b"]
    })
    .await;
    theirs.release().await.unwrap();
    let guard = soon("the names", waiter).await.unwrap().unwrap();
    assert_eq!(world.command::<u64>(&["DBSIZE"]), 3);
    guard.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

/// Callers that name the same locks in any order would wait for each other if each began with its
/// first name.
#[tokio::test]
async fn callers_with_names_in_any_order_never_wait_for_each_other() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut world = World::new().await;
    let inside: Arc<Mutex<HashMap<&str, usize>>> = Arc::default();
    let mut tasks = Vec::new();
    for nth in 0..3_u64 {
        let client = world.another().await;
        for task in 0..6 {
            let (client, inside) = (client.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let mut random = Random(nth * 100 + task);
                for _ in 0..15 {
                    let first = random.below(4) as usize;
                    let step = [1, 3][random.below(2) as usize];
                    let count = 1 + random.below(3) as usize;
                    let names: Vec<&str> = (0..count)
                        .map(|nth| NAMES[(first + nth * step) % 4])
                        .collect();
                    let guard = multi(&client, &names).acquire().await.unwrap();
                    for name in &names {
                        let before = inside.lock().unwrap().insert(name, nth as usize);
                        assert_eq!(before, None, "somebody else has {name}");
                    }
                    tokio::task::yield_now().await;
                    for name in &names {
                        inside.lock().unwrap().remove(name);
                    }
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        soon("all rounds", task).await.unwrap();
    }
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn free_names_cost_one_command_to_acquire_and_one_to_release() {
    let mut world = World::new().await;
    let client = Client::builder(&world.server.url())
        .option("direct", OptionValue::Flag(false))
        .build()
        .unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let all = multi(&client, &names);
    all.acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::new(&world.server);
    for _ in 0..5 {
        all.acquire().await.unwrap().release().await.unwrap();
    }
    let seen = monitor.until_now(&mut world);
    assert_eq!(seen.len(), 10, "{seen:#?}");
}

#[tokio::test]
async fn a_wait_that_ends_names_the_lock_and_leaves_nothing() {
    let mut world = World::new().await;
    let theirs = world.another().await.lock("b").unwrap();
    let theirs = theirs.acquire().await.unwrap();
    let all = multi(&world.client, &["a", "b"]);
    let error = soon("the end", all.acquire_timeout(ms(100))).await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.kind(), error.lock_name()),
        (ErrorKind::Timeout, Some("a, b"))
    );
    assert!(
        error
            .to_string()
            .starts_with("timeout: multi lock \"a, b\": ")
            && error.message().contains("\"b\""),
        "{error}"
    );
    theirs.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn a_cancelled_wait_leaves_nothing() {
    let mut world = World::new().await;
    let theirs = world.another().await.lock("b").unwrap();
    let theirs = theirs.acquire().await.unwrap();
    let all = multi(&world.client, &["a", "b", "c"]);
    let waiter = tokio::spawn(async move { all.acquire().await });
    eventually("it waits", || world.client.stats().waiting == 1).await;
    waiter.abort();
    eventually("only b is left", || {
        world.client.stats().waiting == 0 && world.command::<Vec<String>>(&["KEYS", "*"]) == ["b"]
    })
    .await;
    theirs.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn the_loss_of_one_name_is_the_loss_of_the_whole() {
    let mut world = World::new().await;
    let guard = multi(&world.client, &["a", "b", "c"])
        .acquire()
        .await
        .unwrap();
    let lost = tokio::spawn(guard.lost());
    assert_eq!(world.command::<u32>(&["DEL", "b"]), 1);
    assert_eq!(soon("the loss", lost).await.unwrap(), LostReason::Deleted);
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    // Its holder may still be at work: nobody else gets the others meanwhile.
    let other = world.another().await.lock("a").unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
    let error = soon("an answer", guard.release()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.lost_reason(), error.lock_name()),
        (ErrorKind::Lost, Some(LostReason::Deleted), Some("a, b, c"))
    );
    eventually("nothing is left", || world.is_clean()).await;
}

/// A name that was acquired before the wait may be lost during it.
#[tokio::test]
async fn a_name_that_is_lost_during_the_wait_is_acquired_anew() {
    let mut world = World::new().await;
    let theirs = world.another().await.lock("b").unwrap();
    let theirs = theirs.acquire().await.unwrap();
    let all = multi(&world.client, &["a", "b"]);
    let waiter = tokio::spawn(async move { all.acquire().await });
    eventually("it waits", || {
        world.client.stats().waiting == 1 && world.command::<u64>(&["DBSIZE"]) == 2
    })
    .await;
    assert_eq!(world.command::<u32>(&["DEL", "a"]), 1);
    eventually("the loss", || world.client.stats().lost == 1).await;
    theirs.release().await.unwrap();
    let guard = soon("the names", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(world.command::<u64>(&["DBSIZE"]), 2);
    guard.release().await.unwrap();
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn its_key_enters_it_again_and_releases_it() {
    let mut world = World::new().await;
    let (all, key) = (multi(&world.client, &["a", "b"]), ReentryKey::Explicit(7));
    let acquire = || all.acquire_with(AcquireOptions::new().key(key));
    let hold = acquire().await.unwrap().detach();
    let inner = acquire().await.unwrap();
    assert!(inner.hold().is_same(&hold));
    assert_eq!((hold.count(), all.hold(key).count()), (2, 2));
    inner.release().await.unwrap();
    assert!(hold.is_held() && all.hold(key).is_held());
    assert!(world.lock("a").hold(key).is_held(), "each of them is held");
    all.release_by(key).await.unwrap();
    assert!(!hold.is_held() && !all.hold(key).is_held());
    assert_eq!(refusal(all.release_by(key)).await, ErrorKind::NotOwner);
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn the_end_of_its_key_ends_its_renewals() {
    let mut world = World::new().await;
    let (all, key) = (multi(&world.client, &["a", "b"]), ReentryKey::new_task());
    let options = AcquireOptions::new().key(key);
    let hold = all.acquire_with(options).await.unwrap().detach();
    world.client.key_ended(key);
    let kinds = |client: &Client| client.events().into_iter().map(|event| event.kind);
    let mut seen = Vec::new();
    eventually("both are abandoned", || {
        seen.extend(kinds(&world.client).filter(|kind| *kind == "abandoned"));
        seen.len() == 2
    })
    .await;
    assert!(hold.is_held(), "until the lease ends");
    for name in ["a", "b"] {
        assert_eq!(world.command::<u32>(&["DEL", name]), 1);
    }
    eventually("nobody has to release it", || {
        !hold.is_held() && world.is_clean()
    })
    .await;
    assert_eq!(refusal(all.release_by(key)).await, ErrorKind::NotOwner);
}

#[tokio::test]
async fn it_is_extended_as_a_whole() {
    let mut world = World::new().await;
    let all = multi(&world.client, &["a", "b"]);
    let guard = all.acquire().await.unwrap();
    guard.extend(ms(100_000)).await.unwrap();
    for name in ["a", "b"] {
        assert!(world.command::<i64>(&["PTTL", name]) > 50_000, "{name}");
    }
    assert!(guard.remaining() > ms(50_000));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn its_locks_may_be_of_any_kind() {
    let mut world = World::new().await;
    let client = &world.client;
    let simple = client.lock_with("simple", LockOptions::new().kind(redlatch::Kind::Simple));
    let fenced = client.lock_with("fenced", LockOptions::new().fencing(true));
    let (simple, fenced) = (simple.unwrap(), fenced.unwrap());
    let prices = client.rw_lock("prices").unwrap();
    let seats = client.semaphore("seats", 2).unwrap();
    let inner = client.multi_lock_of([&simple, &fenced]).unwrap();
    let all = client.multi_lock_of([&inner, prices.read(), seats.as_lock()]);
    let all = all.unwrap();
    assert_eq!(all.name(), "fenced, prices (read), seats, simple");
    let guard = all.acquire().await.unwrap();
    let reader = soon("a reader", prices.read().acquire()).await.unwrap();
    assert!(prices.write().try_acquire().await.unwrap().is_none());
    let seat = seats.try_acquire().await.unwrap().expect("one is left");
    assert!(seats.try_acquire().await.unwrap().is_none());
    let tokens: Vec<Option<u64>> = guard
        .hold()
        .parts()
        .iter()
        .map(|part| part.fencing_token())
        .collect();
    assert!(
        matches!(tokens[..], [Some(_), None, None, None]),
        "{tokens:?}"
    );
    assert_eq!(guard.fencing_token(), None);
    reader.release().await.unwrap();
    seat.release().await.unwrap();
    guard.release().await.unwrap();
    assert!(
        world
            .command::<Vec<String>>(&["KEYS", "*simple*"])
            .is_empty()
    );
}

#[tokio::test]
async fn closing_releases_it_and_tells_its_holder() {
    let mut world = World::new().await;
    let client = world.another().await;
    let guard = multi(&client, &["a", "b"]).acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    client.close().await.unwrap();
    assert_eq!(soon("the loss", lost).await.unwrap(), LostReason::Closed);
    assert_eq!(world.command::<u64>(&["DBSIZE"]), 0);
    assert_eq!(
        refusal(multi(&client, &["a"]).acquire()).await,
        ErrorKind::Closed
    );
}

#[tokio::test]
async fn what_it_cannot_be_is_refused_with_the_remedy() {
    let world = World::new().await;
    let client = &world.client;
    let refused = |made: redlatch::Result<Lock>| {
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.to_string()
    };
    let nothing: [&str; 0] = [];
    assert!(refused(client.multi_lock(nothing)).contains("at least one"));
    let twice = refused(client.multi_lock(["a", "b", "a"]));
    assert!(
        twice.starts_with("invalid_argument: lock \"a\": ") && twice.contains("once"),
        "{twice}"
    );
    let prices = client.rw_lock("a").unwrap();
    let sides = refused(client.multi_lock_of([prices.read(), prices.write()]));
    assert!(sides.contains("twice"), "{sides}");
    let foreign = world.another().await.lock("b").unwrap();
    assert!(refused(client.multi_lock_of([&foreign])).contains("another client"));
    let options = LockOptions::new().kind(redlatch::Kind::Multi);
    assert!(refused(client.lock_with("a", options)).contains("multi_lock"));
    let all = multi(client, &["a", "b"]);
    assert!(refused(all.named("c")).contains("each of its locks"));
    assert_eq!(refusal(all.is_locked()).await, ErrorKind::InvalidArgument);
    assert_eq!(refusal(all.holders()).await, ErrorKind::InvalidArgument);
    assert_eq!(refusal(all.waiters()).await, ErrorKind::InvalidArgument);
    assert_eq!(
        refusal(all.force_release()).await,
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refusal(all.release_token("t")).await,
        ErrorKind::InvalidArgument
    );
    let guard = all.acquire().await.unwrap();
    assert_eq!(refusal(guard.reenter()).await, ErrorKind::InvalidArgument);
    let with_token = all.acquire_with(AcquireOptions::new().token("t"));
    assert_eq!(refusal(with_token).await, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_name_of_another_kind_ends_the_acquisition_and_names_it() {
    let mut world = World::new().await;
    world.command::<String>(&["SET", "b", "a string"]);
    let all = multi(&world.client, &["a", "b"]);
    let error = soon("an answer", all.acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignKind);
    assert!(error.message().starts_with("\"b\": "), "{error}");
    eventually("only b is left", || {
        world.command::<Vec<String>>(&["KEYS", "*"]) == ["b"]
    })
    .await;
}
