//! The commands on the wire, as MONITOR shows them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlatch::{Client, ClientOptions, Kind, Lock, LockOptions, OptionValue};

use super::{LIMIT, World, eventually, ms, soon};
use crate::support::Server;

/// Sees every command that clients send; what scripts do inside is not counted.
pub(super) struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub(super) fn new(server: &Server) -> Monitor {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The commands up to a mark that the looking connection of `world` sets now.
    pub(super) fn until_now(&mut self, world: &mut World) -> Vec<String> {
        world.command::<String>(&["ECHO", "mark"]);
        let mut seen = Vec::new();
        loop {
            let line = self.line();
            if line.contains("\"ECHO\" \"mark\"") {
                return seen;
            }
            if !line.contains(" lua]") {
                seen.push(line);
            }
        }
    }

    /// The commands by which somebody begins to wait: he tries, subscribes, and tries again.
    async fn until_they_wait(&mut self, world: &mut World) -> Vec<String> {
        let mut began = Vec::new();
        eventually("they wait", || {
            began.extend(sent(&self.until_now(world)));
            began.len() >= 3
        })
        .await;
        began
    }
}

/// Kinds that differ in what lies in Redis, and have to cost the same.
const KINDS: [Kind; 4] = [
    Kind::Reentrant,
    Kind::Simple,
    Kind::RedisSemaphore,
    Kind::Article,
];

/// The tries of a waiter that come by themselves are left to the test that counts them.
const NO_RECHECK: Duration = Duration::from_secs(3600);

/// Without a direct connection: the commands that make one may come at any time.
async fn client(world: &World, recheck: Duration) -> Client {
    let options = ClientOptions::new().recheck(recheck).direct(false);
    let client = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    client
}

/// One that holds, and one that waits.
async fn both(world: &World) -> (Client, Client) {
    (
        client(world, NO_RECHECK).await,
        client(world, NO_RECHECK).await,
    )
}

fn lock(client: &Client, kind: Kind) -> Lock {
    client
        .lock_with("n", LockOptions::new().kind(kind))
        .unwrap()
}

/// A client whose locks are not looked at when they have been held for some milliseconds: none is
/// acquired directly.
fn watched(world: &World) -> Client {
    Client::builder(&world.server.url())
        .option("direct", OptionValue::Flag(false))
        .build()
        .unwrap()
}

#[tokio::test]
async fn an_uncontended_pair_is_two_commands() {
    let mut world = World::new().await;
    let client = watched(&world);
    for kind in KINDS {
        let lock = lock(&client, kind);
        lock.acquire().await.unwrap().release().await.unwrap();
        let mut monitor = Monitor::new(&world.server);
        for _ in 0..5 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        let seen = monitor.until_now(&mut world);
        assert_eq!(seen.len(), 10, "{kind:?}: {seen:#?}");
        assert!(
            seen.iter().all(|line| line.contains("\"EVALSHA\"")),
            "{kind:?}: {seen:#?}"
        );
    }
}

async fn holding_is_one_command_for_each_third_of_the_lease(kind: Kind) {
    let mut world = World::new().await;
    let options = LockOptions::new().kind(kind).watchdog_lease(ms(6000));
    let guard = world
        .client
        .lock_with("n", options)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let renewed = |world: &World| world.client.stats().renewed;
    let unanswered = |world: &World| world.client.stats().unanswered;
    eventually("its script is known", || renewed(&world) > 0).await;
    let (mut monitor, start) = (Monitor::new(&world.server), Instant::now());
    let (before, repeated) = (renewed(&world), unanswered(&world));
    eventually("it is renewed", || renewed(&world) >= before + 4).await;
    let seen = monitor.until_now(&mut world);
    // A renewal that a busy machine did not answer in time is repeated.
    let repeated = u128::from(unanswered(&world) - repeated);
    let most = 1 + start.elapsed().as_millis() / 2000 + repeated;
    // The answer of one may have come after it was seen no more.
    assert!(
        (3..=most).contains(&(seen.len() as u128)),
        "{most}, not {seen:#?}"
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn holding_a_reentrant_lock_is_one_command_for_each_third_of_the_lease() {
    holding_is_one_command_for_each_third_of_the_lease(Kind::Reentrant).await;
}

#[tokio::test]
async fn holding_a_simple_lock_is_one_command_for_each_third_of_the_lease() {
    holding_is_one_command_for_each_third_of_the_lease(Kind::Simple).await;
}

#[tokio::test]
async fn a_fixed_lease_costs_nothing_while_it_lasts() {
    let mut world = World::new().await;
    for kind in [Kind::Reentrant, Kind::Simple] {
        let options = LockOptions::new()
            .kind(kind)
            .lease(ms(60_000))
            .watchdog_lease(ms(300));
        let guard = watched(&world)
            .lock_with("n", options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let mut monitor = Monitor::new(&world.server);
        tokio::time::sleep(ms(1000)).await;
        for _ in 0..100 {
            guard.check().unwrap();
        }
        let seen = monitor.until_now(&mut world);
        assert!(seen.is_empty(), "{kind:?}: {seen:#?}");
        guard.release().await.unwrap();
    }
}

/// Ten waiters of one client, and whoever holds: they send nothing until it is released.
async fn waiters_send_nothing_while_they_wait(kind: Kind) {
    let mut world = World::new().await;
    let (holder, waiting) = both(&world).await;
    let guard = lock(&holder, kind).acquire().await.unwrap();
    let mut monitor = Monitor::new(&world.server);
    let waiters: Vec<_> = (0..10)
        .map(|_| tokio::spawn(lock(&waiting, kind).acquire()))
        .collect();
    eventually("all wait", || waiting.stats().waiting == 10).await;
    monitor.until_they_wait(&mut world).await;
    tokio::time::sleep(ms(3000)).await;
    let seen = monitor.until_now(&mut world);
    assert!(seen.is_empty(), "{seen:#?}");
    guard.release().await.unwrap();
    for waiter in waiters {
        soon("its turn", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    eventually("nothing is left", || world.is_clean()).await;
}

#[tokio::test]
async fn waiters_of_a_reentrant_lock_send_nothing_while_they_wait() {
    waiters_send_nothing_while_they_wait(Kind::Reentrant).await;
}

#[tokio::test]
async fn waiters_of_a_simple_lock_send_nothing_while_they_wait() {
    waiters_send_nothing_while_they_wait(Kind::Simple).await;
}

#[tokio::test]
async fn to_wait_is_two_tries_and_a_subscription_for_a_whole_client() {
    let mut world = World::new().await;
    for kind in [Kind::Reentrant, Kind::Simple] {
        let (holder, waiting) = both(&world).await;
        let guard = lock(&holder, kind).acquire().await.unwrap();
        let mut monitor = Monitor::new(&world.server);
        let waiters: Vec<_> = (0..10)
            .map(|_| tokio::spawn(lock(&waiting, kind).acquire()))
            .collect();
        eventually("all wait", || waiting.stats().waiting == 10).await;
        let began = monitor.until_they_wait(&mut world).await;
        // Messages come on the connection that there is.
        assert_eq!(began, ["EVALSHA", "SUBSCRIBE", "EVALSHA"], "{kind:?}");
        waiters.iter().for_each(|waiter| waiter.abort());
        eventually("nobody is subscribed", || {
            world
                .command::<Vec<String>>(&["PUBSUB", "CHANNELS"])
                .is_empty()
        })
        .await;
        // The next one in the queue may have tried, in between.
        let ended = sent(&monitor.until_now(&mut world));
        assert_eq!(
            ended.last().map(String::as_str),
            Some("UNSUBSCRIBE"),
            "{kind:?}: {ended:?}"
        );
        guard.release().await.unwrap();
    }
}

/// The commands by name, without those of the looking connection.
fn sent(seen: &[String]) -> Vec<String> {
    let names = seen.iter().filter_map(|line| line.split('"').nth(1));
    names
        .filter(|name| *name != "PUBSUB")
        .map(str::to_owned)
        .collect()
}

/// The commands of a waiter while `release` ends a lock that is not ours, and until it has the lock.
async fn woken_by(release: &[&str]) -> Vec<String> {
    let mut world = World::new().await;
    let waiting = client(&world, NO_RECHECK).await;
    // So that all scripts are known.
    lock(&waiting, Kind::Simple)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    world.command::<()>(&["SET", "n", "theirs", "PX", "600000"]);
    let mut monitor = Monitor::new(&world.server);
    let waiter = tokio::spawn(lock(&waiting, Kind::Simple).acquire());
    monitor.until_they_wait(&mut world).await;
    tokio::time::sleep(ms(1000)).await;
    let seen = monitor.until_now(&mut world);
    assert!(seen.is_empty(), "while it waits: {seen:#?}");
    world.command::<()>(release);
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    let seen = monitor.until_now(&mut world);
    guard.release().await.unwrap();
    seen.into_iter()
        .filter(|line| !line.contains(&format!("\"{}\"", release[0])))
        .collect()
}

#[tokio::test]
async fn a_foreign_release_costs_its_waiter_one_try() {
    let seen = woken_by(&["DEL", "n"]).await;
    let tries = seen
        .iter()
        .filter(|line| line.contains("\"EVALSHA\""))
        .count();
    assert_eq!(tries, 1, "{seen:#?}");
}

#[tokio::test]
async fn the_end_of_a_foreign_lease_costs_its_waiter_a_few_tries() {
    let seen = woken_by(&["PEXPIRE", "n", "700"]).await;
    let tries = seen
        .iter()
        .filter(|line| line.contains("\"EVALSHA\""))
        .count();
    // One as the lease was changed, one at its end, and one more if the two clocks disagree about
    // that.
    assert!((2..=3).contains(&tries), "{seen:#?}");
}

#[tokio::test]
async fn without_any_word_a_waiter_tries_once_for_each_recheck() {
    let mut world = World::new().await;
    let waiting = client(&world, ms(300)).await;
    lock(&waiting, Kind::Simple)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    world.command::<()>(&["SET", "n", "theirs"]);
    let waiter = tokio::spawn(lock(&waiting, Kind::Simple).acquire());
    eventually("it waits", || waiting.stats().waiting == 1).await;
    let (mut monitor, start) = (Monitor::new(&world.server), Instant::now());
    tokio::time::sleep(ms(3000)).await;
    let seen = monitor.until_now(&mut world);
    // Spread by a tenth; the first two are its own try and the one when its subscription is there.
    // A try that a busy machine did not answer in time is repeated.
    let repeated = u128::from(waiting.stats().unanswered);
    let most = 2 + start.elapsed().as_millis() / 270 + repeated;
    let tries = seen
        .iter()
        .filter(|line| line.contains("\"EVALSHA\""))
        .count();
    assert!(
        (3..=most).contains(&(tries as u128)),
        "{most}, not {seen:#?}"
    );
    world.command::<()>(&["DEL", "n"]);
    soon("its turn", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}
