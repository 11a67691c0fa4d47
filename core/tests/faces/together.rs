//! Calls of many callers that share a command: each has the answer of its own lock.

use std::time::{Duration, Instant};

use redlatch::{AcquireOptions, Client, ClientOptions, ErrorKind, Guard, Operation};

use super::wire_budget::Monitor;
use super::{LIMIT, World, ms, soon};

/// More than one command is for.
const TOGETHER: usize = 60;

fn names() -> Vec<String> {
    (0..TOGETHER).map(|number| format!("n{number}")).collect()
}

/// A client that hears of nothing but the answers to its calls.
async fn untold(world: &World) -> Client {
    let options = ClientOptions::new().tracking(false);
    let client = Client::builder(&world.server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    client
}

/// Runs the operations of all locks at once. The answers are in the same order.
async fn all<T: Send + 'static>(operations: Vec<Operation<T>>) -> Vec<redlatch::Result<T>> {
    let tasks: Vec<_> = operations.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(soon("an answer", task).await.unwrap());
    }
    answers
}

/// Plays rounds until the calls of one have shared commands: those that leave in the same turn do,
/// and on a busy machine a turn may be short.
async fn until_shared(world: &mut World, mut round: impl AsyncFnMut(&mut World)) {
    let start = Instant::now();
    loop {
        let mut monitor = Monitor::new(&world.server);
        round(world).await;
        if monitor
            .until_now(world)
            .iter()
            .any(|line| line.contains("\"n3\"") && line.contains("\"n4\""))
        {
            return;
        }
        assert!(start.elapsed() < LIMIT, "no calls share a command");
    }
}

/// One lock of ten is of another type, and every second of the others is somebody else's.
async fn tries_have_their_own_answers(world: &mut World, client: &Client) {
    let theirs = |number| number % 2 == 1;
    let odd = |number| number % 10 == 4;
    world.command::<String>(&["FLUSHALL"]);
    for (number, name) in names().iter().enumerate() {
        if odd(number) {
            world.command::<String>(&["SET", name, "a string"]);
        } else if theirs(number) {
            world.command::<i64>(&["HSET", name, "somebody:1", "1"]);
        }
    }
    let tries = names()
        .iter()
        .map(|name| client.lock(name).unwrap().try_acquire())
        .collect();
    let mut held: Vec<Guard> = Vec::new();
    for (number, answer) in all(tries).await.into_iter().enumerate() {
        let name = format!("n{number}");
        match answer {
            Ok(Some(guard)) => {
                assert!(!odd(number) && !theirs(number), "{name} is granted");
                assert_eq!(guard.name(), name);
                assert_eq!(
                    world.command::<Vec<String>>(&["HKEYS", &name]),
                    [guard.owner()]
                );
                held.push(guard);
            }
            Ok(None) => assert!(theirs(number), "{name} is refused"),
            Err(error) => {
                assert!(odd(number), "{name}: {error}");
                assert_eq!(error.kind(), ErrorKind::ForeignKind);
            }
        }
    }
    releases_have_their_own_answers(world, held).await;
}

/// Some of them are gone, as nobody has told.
async fn releases_have_their_own_answers(world: &mut World, held: Vec<Guard>) {
    let owners: Vec<_> = held.iter().map(|guard| guard.name().to_owned()).collect();
    let gone = |number| number % 5 == 1;
    for (_, name) in owners
        .iter()
        .enumerate()
        .filter(|(number, _)| gone(*number))
    {
        world.command::<i64>(&["DEL", name]);
    }
    for (number, answer) in all(held.into_iter().map(Guard::release).collect())
        .await
        .into_iter()
        .enumerate()
    {
        let name = &owners[number];
        match answer {
            Ok(()) => assert!(!gone(number), "{name} was deleted"),
            Err(error) => {
                assert!(gone(number), "{name}: {error}");
                assert_eq!(error.kind(), ErrorKind::Lost, "{name}");
            }
        }
        assert_eq!(world.command::<i64>(&["EXISTS", name]), 0, "{name} stays");
    }
}

#[tokio::test]
async fn each_call_of_a_shared_command_has_the_answer_of_its_own_lock() {
    let mut world = World::new().await;
    let client = untold(&world).await;
    until_shared(&mut world, async |world| {
        tries_have_their_own_answers(world, &client).await
    })
    .await;
}

#[tokio::test]
async fn locks_that_are_taken_together_have_the_leases_that_were_asked_for() {
    let mut world = World::new().await;
    let client = untold(&world).await;
    let lease = |number: usize| Duration::from_secs(if number % 3 == 1 { 60 } else { 600 });
    until_shared(&mut world, async |world| {
        let acquire = |(number, name): (usize, &String)| {
            client
                .lock(name)
                .unwrap()
                .acquire_with(AcquireOptions::new().lease(lease(number)))
        };
        let held: Vec<_> = all(names().iter().enumerate().map(acquire).collect())
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for (number, guard) in held.iter().enumerate() {
            let left = ms(world.command(&["PTTL", guard.name()]));
            assert!(
                left <= lease(number) && lease(number) < left + LIMIT,
                "{}: {left:?}",
                guard.name()
            );
        }
        all(held.into_iter().map(Guard::release).collect())
            .await
            .into_iter()
            .for_each(Result::unwrap);
    })
    .await;
}
