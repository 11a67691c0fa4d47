//! The tests of every timer: of the system's, and of the fallback.

use std::future::poll_fn;
use std::thread;
use std::time::Duration;

use super::{Timer, clock};

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(20);

/// Waits until the I/O thread sees that the timer has fired.
async fn fires(timer: &Timer) -> bool {
    let fired = poll_fn(|cx| timer.poll_fired(cx));
    let seen = tokio::time::timeout(Duration::from_secs(30), fired).await;
    matches!(seen, Ok(Ok(())))
}

#[tokio::test]
async fn it_fires_at_the_earliest_moment_that_was_set_and_not_before() {
    let timer = Timer::new().expect("a timer");
    let mut alarm = timer.alarm();
    // Once the thread has seen it fire, it is set for nothing.
    for _ in 0..2 {
        let now = clock::now();
        let due = now.after(SOON);
        for at in [due.after(HOUR), due, due.after(SOON)] {
            alarm.set(now, at).expect("set");
        }
        assert_eq!(alarm.at(), Some(due));
        assert!(fires(&timer).await);
        assert!(clock::now() >= due);
        alarm.has_fired();
        assert_eq!(alarm.at(), None);
    }
}

#[tokio::test]
async fn it_fires_once() {
    let timer = Timer::new().expect("a timer");
    let (mut alarm, now) = (timer.alarm(), clock::now());
    alarm.set(now, now.after(SOON)).expect("set");
    assert!(fires(&timer).await);
    let again = poll_fn(|cx| timer.poll_fired(cx));
    assert!(tokio::time::timeout(3 * SOON, again).await.is_err());
}

#[tokio::test]
async fn a_caller_wakes_the_thread_that_sleeps_for_longer() {
    let timer = Timer::new().expect("a timer");
    let (mut alarm, now) = (timer.alarm(), clock::now());
    alarm.set(now, now.after(HOUR)).expect("set");
    let caller = async {
        tokio::task::yield_now().await;
        let earlier = thread::spawn(move || alarm.set(now, now.after(SOON)));
        earlier.join().expect("no panic").expect("set earlier");
    };
    let (fires, ()) = tokio::join!(biased; fires(&timer), caller);
    assert!(fires);
}

#[tokio::test]
async fn setting_a_fired_timer_keeps_its_expiry() {
    let timer = Timer::new().expect("a timer");
    let (mut alarm, now) = (timer.alarm(), clock::now());
    let due = now.after(Duration::from_millis(1));
    alarm.set(now, due).expect("set");
    while clock::now() < due {
        thread::yield_now();
    }
    alarm.set(clock::now(), now.after(HOUR)).expect("set later");
    assert!(fires(&timer).await);
}
