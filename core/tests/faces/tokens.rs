//! Locks that outlive whoever acquired them: tokens that are passed on, and holds that linger.

use super::*;
use redlatch::{AcquireOptions, Kind, LockOptions};

fn simple() -> LockOptions {
    LockOptions::new().kind(Kind::Simple)
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_token_is_enough_to_extend_and_release() {
    let mut world = World::new().await;
    let lock = world.client.lock_with("n", simple().lease(MINUTE)).unwrap();
    let guard = lock
        .acquire_with(AcquireOptions::new().token("job 7"))
        .await
        .unwrap();
    assert_eq!(world.command::<String>(&["GET", "n"]), "job 7");
    let another = world.another().await;
    let there = another.lock_with("n", simple()).unwrap();
    assert_eq!(
        there.release_token("job 8").await.unwrap_err().kind(),
        ErrorKind::NotOwner
    );
    assert_eq!(
        there
            .extend_token("job 8", 2 * MINUTE)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotOwner
    );
    there.extend_token("job 7", 2 * MINUTE).await.unwrap();
    assert!(world.command::<u64>(&["PTTL", "n"]) > 60_000);
    there.release_token("job 7").await.unwrap();
    assert!(!world.command::<bool>(&["EXISTS", "n"]));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(
        there.release_token("job 7").await.unwrap_err().kind(),
        ErrorKind::NotOwner
    );
    another.close().await.unwrap();
}

#[tokio::test]
async fn an_adopted_lock_outlives_the_guard_that_handed_it_on() {
    let mut world = World::new().await;
    let lock = world.client.lock_with("n", simple()).unwrap();
    let options = AcquireOptions::new()
        .token("job 7")
        .lease(Duration::from_millis(500));
    let guard = lock.acquire_with(options).await.unwrap();
    let another = world.another().await;
    let there = another.lock_with("n", simple()).unwrap();
    let error = there.adopt("job 8").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
    let adopted = there.adopt("job 7").await.unwrap();
    guard.hold().lost().await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let error = lock.adopt("job 7").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
    let waits = AcquireOptions::new().wait(MINUTE);
    let error = lock.adopt_with("job 7", waits).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(adopted.is_held());
    assert!(world.command::<u64>(&["PTTL", "n"]) > 20_000);
    adopted.release().await.unwrap();
    assert!(world.is_clean());
    another.close().await.unwrap();
}

#[tokio::test]
async fn one_token_is_not_granted_twice() {
    let world = World::new().await;
    let another = world.another().await;
    let options = AcquireOptions::new().token("host").wait(Duration::ZERO);
    let guard = world
        .client
        .lock_with("n", simple())
        .unwrap()
        .acquire_with(options.clone())
        .await
        .unwrap();
    let error = another
        .lock_with("n", simple())
        .unwrap()
        .acquire_with(options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    guard.release().await.unwrap();
    another.close().await.unwrap();
}

#[tokio::test]
async fn a_reentrant_lock_has_no_tokens() {
    let world = World::new().await;
    let error = world.lock("n").release_token("t").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = world.lock("n").extend_token("t", MINUTE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_lingering_hold_outlives_its_client() {
    let mut world = World::new().await;
    let another = world.another().await;
    for (name, options) in [("lingers", simple().linger(true)), ("ends", simple())] {
        let lock = another.lock_with(name, options.lease(MINUTE)).unwrap();
        lock.acquire().await.unwrap().detach();
    }
    another.close().await.unwrap();
    assert!(!world.command::<bool>(&["EXISTS", "ends"]));
    assert!(world.command::<u64>(&["PTTL", "lingers"]) > 50_000);
}

#[tokio::test]
async fn a_lingering_hold_is_released_like_any_other() {
    let mut world = World::new().await;
    let lock = world
        .client
        .lock_with("n", simple().linger(true).lease(MINUTE))
        .unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(!world.command::<bool>(&["EXISTS", "n"]));
    // A guard that is dropped is one nobody wants, and a grant that nobody took as well.
    drop(lock.acquire().await.unwrap());
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(world.is_clean());
}
