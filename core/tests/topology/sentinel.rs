//! A service that sentinels watch.

use super::support::sets::SentinelSet;
use super::*;

const CALLERS: usize = 4;

fn names() -> Vec<String> {
    (0..5).map(|at| format!("contended:{at}")).collect()
}

/// Locks are taken, held and waited for while `change` gives the service another primary.
async fn survives(change: impl FnOnce(&mut SentinelSet)) {
    let mut set = SentinelSet::start();
    let clients = [client(&set.url()).await, client(&set.url()).await];
    let (round, tasks) = Round::start(&clients, &names(), CALLERS);
    let holds = take(&clients[0], "held", 50).await;
    round.goes_on(100).await;

    let start = Instant::now();
    change(&mut set);
    eventually("another primary", || set.servers[1].is_primary()).await;
    let promoted = start.elapsed();
    round.goes_on(1).await;
    println!(
        "promoted after {promoted:?}, the next grant after {:?}",
        start.elapsed()
    );
    round.goes_on(200).await;
    let lost = kept_or_told(&holds, |guard| has(&set.servers[1], guard)).await;
    println!("{lost} of {} holds were lost, and told", holds.len());
    round.end(tasks).await;

    assert_eq!(round.overlaps.load(Ordering::SeqCst), 0);
    for guard in holds {
        let known = guard.lost_reason().is_some();
        let released = soon("a release", guard.release()).await;
        assert_eq!(released.is_err(), known, "{released:?}");
    }
    eventually("nothing is left", || {
        set.servers[1].ask::<u64>("DBSIZE") == 0
    })
    .await;
}

/// It leads to whoever is the primary, and to the next one after a fail-over.
#[tokio::test(flavor = "multi_thread")]
async fn threads_have_a_direct_connection_to_the_primary() {
    let set = SentinelSet::start();
    let client = client(&set.url()).await;
    let lock = client.lock("n").unwrap();
    let has_served = |server: &support::Server| {
        // The sentinels cut the connections of a server whose role they change.
        let list = server.try_ask::<String>("CLIENT LIST");
        let line = list.as_deref().ok().and_then(support::direct_connection);
        line.is_some_and(|line| line.contains("cmd=evalsha"))
    };
    // While the primary is replaced an acquisition may fail, and a hold may be lost.
    let pair = || drop(lock.acquire().wait().map(|guard| guard.release().wait()));
    let serves = |server: &support::Server| {
        tokio::task::block_in_place(pair);
        has_served(server)
    };
    eventually("calls that go to the first primary", || {
        serves(&set.servers[0])
    })
    .await;
    set.fail_over();
    eventually("calls that go to the next one", || serves(&set.servers[1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_is_followed() {
    survives(|set| set.fail_over()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_primary_is_survived() {
    survives(|set| set.servers[0].kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_hangs_is_left() {
    survives(|set| set.servers[0].hang()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_whose_locks_did_not_survive_are_told() {
    let mut set = SentinelSet::start();
    let client = client(&set.url()).await;
    let kept = take(&client, "kept", 20).await;
    eventually("the replica has them", || {
        set.servers[1].ask::<u64>("DBSIZE") == 20
    })
    .await;
    set.servers[0].cut_replicas_off();
    let late = take(&client, "late", 20).await;
    set.servers[0].kill();
    for guard in &late {
        // Long before the next renewal, which was due after 20 s.
        assert_eq!(
            soon("the loss", guard.lost()).await,
            LostReason::Deleted,
            "{}",
            guard.name()
        );
    }
    assert!(kept.iter().all(Guard::is_held));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_come_from_the_new_primary() {
    let set = SentinelSet::start();
    // Nothing but a message can wake the waiter.
    let options = ClientOptions::new()
        .recheck(Duration::from_secs(3600))
        .tracking(false);
    let (holder, waiter) = (
        client(&set.url()).await,
        client_with(&set.url(), options).await,
    );
    let guard = soon("the lock", holder.lock("n").unwrap().acquire())
        .await
        .unwrap();
    let waiting = tokio::spawn(waiter.lock("n").unwrap().acquire());
    let listened = |server: &support::Server| {
        server
            .ask::<Vec<String>>("PUBSUB CHANNELS redisson_lock__channel:*")
            .len()
            == 1
    };
    eventually("it waits", || listened(&set.servers[0])).await;
    set.fail_over();
    eventually("it listens to the new primary", || {
        set.servers[1].is_primary() && listened(&set.servers[1])
    })
    .await;
    soon("the release", guard.release()).await.unwrap();
    drop(soon("the waiter", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows_is_told() {
    let set = SentinelSet::start();
    let url = set.url().replace("/redlatch", "/mian");
    let error = soon("an answer", Client::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.message().contains("\"mian\"") && error.message().contains("sentinel monitor"),
        "{error}"
    );
}

#[tokio::test]
async fn sentinels_that_cannot_be_reached_are_told() {
    let error = soon(
        "an answer",
        Client::connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main"),
    )
    .await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.message().contains("127.0.0.1:") && error.message().contains("\"main\""),
        "{error}"
    );
}

#[tokio::test]
async fn one_sentinel_that_is_left_will_do() {
    let mut set = SentinelSet::start();
    let url = set.url();
    set.sentinels[0].kill();
    set.sentinels[1].kill();
    let client = client(&url).await;
    drop(
        soon("the lock", client.lock("n").unwrap().acquire())
            .await
            .unwrap(),
    );
}

/// A lock that the replica has acknowledged is there when it is the primary; then nobody is left to ask.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_lock_survives_the_primary() {
    let mut set = SentinelSet::start();
    let client = client(&set.url()).await;
    let options = LockOptions::new().replicas(1).watchdog_lease(ms(60_000));
    let mut guards = Vec::new();
    for name in names() {
        let lock = client.lock_with(&name, options.clone()).unwrap();
        guards.push(soon("acknowledged", lock.acquire()).await.expect("granted"));
    }
    set.servers[0].kill();
    let after = client.lock_with("after", options).unwrap();
    let error = soon("an answer of the new primary", after.acquire())
        .await
        .expect_err("nobody acknowledges");
    assert_eq!(error.kind(), ErrorKind::NotReplicated);
    for guard in guards {
        guard.check().expect("still held");
        soon("an answer", guard.release()).await.expect("released");
    }
}

/// A release that only the old primary has heard of does not keep the lock from anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_not_replicated_is_repeated() {
    let mut set = SentinelSet::start();
    let (client, another) = (client(&set.url()).await, client(&set.url()).await);
    let options = LockOptions::new().lease(Duration::from_secs(3600));
    let guard = client
        .lock_with("n", options.clone())
        .unwrap()
        .acquire()
        .await
        .unwrap();
    eventually("the replica has it", || {
        set.servers[1].ask::<u64>("EXISTS n") == 1
    })
    .await;
    set.servers[0].cut_replicas_off();
    guard.release().await.expect("the primary has confirmed it");
    set.servers[0].kill();
    let guard = soon(
        "it is free",
        another.lock_with("n", options).unwrap().acquire(),
    )
    .await
    .unwrap();
    assert!(set.servers[1].is_primary() && guard.is_held());
}
