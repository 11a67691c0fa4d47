//! Bad input is refused by a typed error that names the value, and nothing is sent.

use std::time::Duration;

use redlatch::embed::ClientExt;
use redlatch::{AcquireOptions, Client, ErrorKind, LockOptions, OptionValue};

use super::{World, eventually, ms, refusal, soon};

#[tokio::test]
async fn bad_names_and_times_are_refused_before_anything_is_sent() {
    let world = World::new().await;
    let calls = world.client.stats().calls;
    let long = "x".repeat(1025);
    for bad in [&b""[..], long.as_bytes(), b"ab\xff"] {
        let error = world
            .client
            .lock_from_bytes(bad, LockOptions::new())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let lock = world.lock("n");
    let cases = [
        AcquireOptions::new().lease(ms(99)),
        AcquireOptions::new().lease(Duration::MAX),
    ];
    for bad in cases {
        assert_eq!(
            refusal(lock.acquire_with(bad)).await,
            ErrorKind::InvalidArgument
        );
    }
    assert!(
        world
            .client
            .lock_with("n", LockOptions::new().watchdog_lease(Duration::ZERO))
            .is_err()
    );
    let mut options = LockOptions::new();
    for (name, value) in [
        ("leese", OptionValue::Seconds(1.0)),
        ("lease", OptionValue::Seconds(-1.0)),
        ("lease", OptionValue::Millis(f64::NAN)),
        ("fencing", OptionValue::Text("perhaps")),
    ] {
        let error = options.set(name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(name), "{error}");
    }
    assert_eq!(world.client.stats().calls, calls);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(
        refusal(guard.extend(ms(1))).await,
        ErrorKind::InvalidArgument
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("redis://:geheim@{free}/");
    let error = soon("an answer", Client::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.to_string().contains("geheim"), "{error}");
    let lock = Client::builder(&url).build().unwrap().lock("n").unwrap();
    assert_eq!(refusal(lock.acquire()).await, ErrorKind::Unavailable);
    assert_eq!(refusal(lock.try_acquire()).await, ErrorKind::Unavailable);
    assert_eq!(refusal(lock.holder()).await, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_wrong_password_is_told_as_such() {
    let mut world = World::new().await;
    world.command::<String>(&["CONFIG", "SET", "requirepass", "right"]);
    let url = world.server.url().replace("redis://", "redis://:geheim@");
    let error = soon("an answer", Client::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert!(!error.to_string().contains("geheim"), "{error}");
    let error = soon("an answer", Client::connect(&world.server.url()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth);
}

#[tokio::test]
async fn a_url_that_does_not_fit_the_server_is_not_to_be_tried_again() {
    let world = World::new().await;
    let port = world.server.port();
    for (url, word) in [
        (format!("redis://127.0.0.1:{port}/99"), "database"),
        (
            format!("redis+cluster://127.0.0.1:{port}"),
            "no node of a cluster",
        ),
        (
            format!("redis+sentinel://127.0.0.1:{port}/main"),
            "no sentinel",
        ),
    ] {
        let error = soon("an answer", Client::connect(&url)).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.kind().retryable()),
            (ErrorKind::InvalidArgument, false),
            "{error}"
        );
        assert!(error.message().contains(word), "{error}");
    }
}

#[tokio::test]
async fn other_data_at_the_name_is_not_touched() {
    let mut world = World::new().await;
    world.command::<String>(&["SET", "n", "precious"]);
    let lock = world.lock("n");
    assert_eq!(refusal(lock.acquire()).await, ErrorKind::ForeignKind);
    assert_eq!(refusal(lock.try_acquire()).await, ErrorKind::ForeignKind);
    assert_eq!(refusal(lock.holder()).await, ErrorKind::ForeignKind);
    assert_eq!(refusal(lock.force_release()).await, ErrorKind::ForeignKind);
    assert_eq!(world.command::<String>(&["GET", "n"]), "precious");
    world.command::<u32>(&["DEL", "n"]);
    eventually("nothing is left", || world.is_clean()).await;
}
