//! Credentials that a function of the program gives, while the server's change.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use redlatch::{ClientBuilder, Credentials, Guard, OptionValue};

use super::support::direct_connection;
use super::*;

/// A server whose user `app` has one password at a time, and what the program knows of it.
struct Rotating {
    server: Server,
    admin: redis::Connection,
    known: Arc<Mutex<String>>,
    /// How often the program was asked.
    asked: Arc<AtomicUsize>,
}

impl Rotating {
    fn new() -> Rotating {
        let server = Server::start();
        let mut rotating = Rotating {
            admin: server.connect(),
            server,
            known: Arc::new(Mutex::new("first".to_owned())),
            asked: Arc::default(),
        };
        rotating.set_password("first");
        rotating
    }

    fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut self.admin)
            .expect("an answer")
    }

    /// The server takes this password only, from now on.
    fn set_password(&mut self, password: &str) {
        let rule = format!(">{password}");
        let user = ["ACL", "SETUSER", "app", "reset", "on", "~*", "&*", "+@all"];
        let _: () = self.command(&[&user[..], &[rule.as_str()]].concat());
    }

    /// Ends all connections of the user.
    fn disconnect(&mut self) {
        let _: u64 = self.command(&["CLIENT", "KILL", "USER", "app"]);
    }

    fn builder(&self) -> ClientBuilder {
        let (known, asked) = (self.known.clone(), self.asked.clone());
        Client::builder(&self.server.url()).credentials(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            Ok(Credentials::new("app", known.lock().unwrap().as_str()))
        })
    }
}

async fn acquired(client: &Client, name: &str) -> Guard {
    let lock = client.lock(name).unwrap();
    soon("the lock", lock.acquire()).await.unwrap()
}

#[tokio::test]
async fn holds_survive_passwords_that_change() {
    for protocol in ["resp3", "resp2"] {
        let mut world = Rotating::new();
        let builder = world
            .builder()
            .option("protocol", OptionValue::Text(protocol));
        let clients: Vec<Client> = (0..3).map(|_| builder.clone().build().unwrap()).collect();
        let mut guards = Vec::new();
        for (client, number) in clients.iter().zip(0..) {
            // Enough pairs for a direct connection.
            for _ in 0..20 {
                let pair = acquired(client, "pairs").await;
                pair.release().await.unwrap();
            }
            guards.push(acquired(client, &format!("held {number}")).await);
        }
        let waiting = clients[1].lock("held 0").unwrap().acquire();
        let waiter = tokio::spawn(waiting);
        for password in ["second", "third"] {
            let connects: Vec<u64> = clients.iter().map(|c| c.stats().connects).collect();
            world.set_password(password);
            *world.known.lock().unwrap() = password.to_owned();
            world.disconnect();
            // A client that speaks RESP2 notices the end of a connection when it uses it.
            for guard in &guards {
                soon("the extension", guard.extend(LIMIT)).await.unwrap();
                guard.check().unwrap();
            }
            // The other connection may have done that, and this one is not used yet.
            for ((client, guard), before) in clients.iter().zip(&guards).zip(connects) {
                let start = Instant::now();
                while client.stats().connects == before {
                    assert!(start.elapsed() < LIMIT, "not connected again");
                    soon("the extension", guard.extend(LIMIT)).await.unwrap();
                }
            }
            let free = acquired(&clients[2], "free").await;
            free.release().await.unwrap();
        }
        guards.remove(0).release().await.unwrap();
        let handed = soon("the waiter", waiter).await.unwrap().unwrap();
        handed.release().await.unwrap();
        for guard in guards {
            guard.release().await.unwrap();
        }
        for client in clients {
            client.close().await.unwrap();
        }
        assert_eq!(world.command::<u64>(&["DBSIZE"]), 0);
    }
}

#[tokio::test]
async fn credentials_that_were_replaced_meanwhile_are_asked_for_again() {
    let mut world = Rotating::new();
    let asked = world.asked.clone();
    // Every first answer is out of date when it arrives.
    let client = Client::builder(&world.server.url())
        .credentials(move || {
            let password = match asked.fetch_add(1, Ordering::SeqCst) % 2 {
                0 => "first",
                _ => "second",
            };
            Ok(Credentials::new("app", password))
        })
        .option("direct", OptionValue::Flag(false))
        .build()
        .unwrap();
    world.set_password("second");
    soon("the server", client.ready()).await.unwrap();
    assert_eq!(world.asked.load(Ordering::SeqCst), 2);
    let guard = acquired(&client, "n").await;
    guard.release().await.unwrap();
    client.close().await.unwrap();
}

#[test]
fn the_direct_connection_asks_again_too() {
    let mut world = Rotating::new();
    let (known, asked) = (world.known.clone(), world.asked.clone());
    let client = Client::builder(&world.server.url())
        .credentials(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            // From now on the server takes the second one only, and the first answer is out of date.
            let now = std::mem::replace(&mut *known.lock().unwrap(), "second".to_owned());
            Ok(Credentials::new("app", now))
        })
        .build()
        .unwrap();
    client.ready().wait().unwrap();
    assert_eq!(world.asked.load(Ordering::SeqCst), 1);
    world.set_password("second");
    *world.known.lock().unwrap() = "first".to_owned();
    let lock = client.lock("n").unwrap();
    let start = Instant::now();
    let is_there = |list: String| direct_connection(&list).is_some();
    // Until it listens, the other connection looks the same in that list.
    while world.asked.load(Ordering::SeqCst) < 3 || !is_there(world.command(&["CLIENT", "LIST"])) {
        assert!(start.elapsed() < LIMIT, "no direct connection");
        lock.acquire().wait().unwrap().release().wait().unwrap();
    }
    assert_eq!(world.asked.load(Ordering::SeqCst), 3);
    client.close().wait().unwrap();
}

#[tokio::test]
async fn a_provider_that_is_slow_is_asked_once_and_answers_late() {
    let world = Rotating::new();
    let (release, released) = mpsc::channel::<()>();
    let (released, asked) = (Mutex::new(released), world.asked.clone());
    let client = Client::builder(&world.server.url())
        .credentials(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            // Later calls find the channel closed.
            let _ = released.lock().unwrap().recv_timeout(LIMIT);
            Ok(Credentials::new("app", "first"))
        })
        .option("connect_timeout", OptionValue::Millis(500.0))
        .option("outage", OptionValue::Millis(500.0))
        .option("debug_events", OptionValue::Flag(true))
        .build()
        .unwrap();
    let failed = || {
        let events = client.events();
        let of_attempts = events.iter().filter(|event| event.kind == "disconnected");
        of_attempts.count()
    };
    let error = soon("an answer", client.lock("n").unwrap().acquire()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut attempts = failed();
    eventually("three attempts fail", || {
        attempts += failed();
        attempts >= 3
    })
    .await;
    assert_eq!(world.asked.load(Ordering::SeqCst), 1);
    drop(release);
    soon("it connects", client.ready()).await.unwrap();
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_refused_log_in_names_the_provider_and_no_password() {
    let mut world = Rotating::new();
    world.set_password("other");
    let client = world.builder().build().unwrap();
    let error = soon("an answer", client.ready()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    let text = format!("{error:?}");
    assert!(
        text.contains("check what the credential provider gives") && !text.contains("first"),
        "{text}"
    );
    // Nothing else is needed when the program knows the password at last.
    *world.known.lock().unwrap() = "other".to_owned();
    eventually("it connects", || client.stats().connects > 0).await;
    drop(acquired(&client, "n").await);
    client.close().await.unwrap();
}

/// An error of the program.
#[derive(Debug)]
struct NoToken;

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault is sealed")
    }
}

impl std::error::Error for NoToken {}

/// The error of a client whose provider fails. On a busy machine the outage may be over before it has.
async fn failure(client: &Client) -> redlatch::Error {
    let start = Instant::now();
    loop {
        let error = soon("an answer", client.ready()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        if !error.message().contains("did not answer in time") || start.elapsed() > LIMIT {
            return error;
        }
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_the_source_of_the_error() {
    let world = Rotating::new();
    let outage = |builder: ClientBuilder| builder.option("outage", OptionValue::Millis(200.0));
    let url = world.server.url();
    let failing = outage(Client::builder(&url).credentials(|| Err(NoToken.into())));
    let client = failing.build().unwrap();
    let error = failure(&client).await;
    assert!(error.source().unwrap().is::<NoToken>());
    assert!(!error.to_string().contains("sealed"), "{error}");
    assert!(error.message().contains("failed: the vault is sealed"));
    client.close().await.unwrap();

    let panicking = outage(Client::builder(&url).credentials(|| panic!("no token (on purpose)")));
    let client = panicking.build().unwrap();
    let error = failure(&client).await;
    assert!(error.message().contains("provider panicked"), "{error}");
    client.close().await.unwrap();
}

#[test]
fn a_url_with_a_password_is_refused_beside_a_provider() {
    let builder = Client::builder("redis://:geheim@localhost")
        .credentials(|| Ok(Credentials::password("other")));
    let error = builder.build().expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("give one of both"), "{error}");
}

/// The error of the system, somewhere behind this one.
fn system_error(error: &redlatch::Error) -> &io::Error {
    let source = error.source().expect("a source");
    source.downcast_ref().expect("an error of the system")
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_leaves_the_error_of_the_system() {
    let mut world = World::new().await;
    let client = Client::builder(&world.server.url())
        .option("outage", OptionValue::Millis(200.0))
        .build()
        .unwrap();
    let guard = acquired(&client, "n").await;
    world.server.kill();
    for error in [
        soon("an answer", guard.release()).await.unwrap_err(),
        soon("an answer", client.lock("m").unwrap().acquire())
            .await
            .unwrap_err(),
        soon("an answer", Client::connect(&world.server.url()))
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let cause = system_error(&error);
        assert_eq!(cause.kind(), io::ErrorKind::ConnectionRefused);
        let cause = cause.to_string();
        assert!(!error.to_string().contains(&cause), "{error}");
        assert_eq!(format!("{error:#}").matches(&cause).count(), 1, "{error:#}");
    }
}
