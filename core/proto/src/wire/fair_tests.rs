//! The scripts of the fair lock against a real server: the data that Redisson knows, the order, places
//! that run out, the places of Redisson, messages, copies, and a full server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use redis::{Commands, PubSub};

use super::live_tests::{
    LEASE, Live, U, V, acquire, force, inspect, is_acquired, is_near, of_kind, release, renew,
};
use super::names::{queue_keys, token_key};
use super::*;
use crate::error::{ErrorKind, LostReason};
use crate::tuning::PLACE_KEPT;

/// A user for whom the server is as one that does not know LPOS.
const WITHOUT_LPOS: &str = "~* &* +@all -lpos";

/// Asks for the lock, or for a place in its queue.
fn ask(number: OwnerId) -> Op {
    ask_with(number, true, Vec::new())
}

fn ask_with(number: OwnerId, queues: bool, earlier: Vec<OwnerId>) -> Op {
    let mut op = of_kind(&acquire(1), Kind::Fair);
    if let Op::Acquire(Acquire { owner, payload, .. }) = &mut op {
        *owner = number;
        *payload = Payload::Queued(Seat { queues, earlier });
    }
    op
}

/// Asks as a new owner, which takes the place of another one.
fn ask_as(number: OwnerId, was: OwnerId) -> Op {
    ask_with(number, true, vec![was])
}

/// Asks once, without a place.
fn attempt(number: OwnerId) -> Op {
    ask_with(number, false, Vec::new())
}

fn fenced(op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Acquire(Acquire { fencing, .. }) = &mut op {
        *fencing = Fencing::Persistent;
    }
    op
}

/// Ends a hold, or a wait.
fn leave(number: OwnerId) -> Op {
    let mut op = of_kind(&release(0), Kind::Fair);
    if let Op::Release(Release { owner, .. }) = &mut op {
        *owner = number;
    }
    op
}

fn forced() -> Op {
    of_kind(&force(), Kind::Fair)
}

fn is_held(reply: &Reply) -> bool {
    matches!(reply, Reply::Busy { ttl: Some(_) })
}

/// Whether the lock is free, and somebody else is the head of its queue.
fn is_for_head(reply: &Reply) -> bool {
    *reply == Reply::Busy { ttl: None }
}

/// Owner as Redis knows it.
fn field(uuid: &str, owner: OwnerId) -> String {
    Form::default().owner(uuid, owner)
}

fn queue_key() -> String {
    queue_keys("orders")[0].clone()
}

fn times_key() -> String {
    queue_keys("orders")[1].clone()
}

impl Live {
    /// The queue in its order, with short names.
    fn queue(&mut self) -> String {
        let owners: Vec<String> = self.look.lrange(queue_key(), 0, -1).unwrap();
        owners.join(" ").replace(U, "U").replace(V, "V")
    }

    /// The time that this place has left, in ms.
    fn left(&mut self, of: &str) -> Option<i64> {
        let due: Option<f64> = self.look.zscore(times_key(), of).unwrap();
        let now = i64::try_from(self.server_ms()).unwrap();
        due.map(|due| due as i64 - now)
    }

    fn has_left(&mut self, owner: OwnerId, time: Duration) -> bool {
        let left = self.left(&field(U, owner));
        left.is_some_and(|left| is_near(left, time))
    }

    /// Moves the time of a place: so many ms from now.
    fn set_left(&mut self, of: &str, ms: i64) {
        let due = i64::try_from(self.server_ms()).unwrap() + ms;
        let _: i64 = self.look.zadd(times_key(), of, due).unwrap();
    }

    /// The place of this owner runs out.
    fn run_out(&mut self, owner: OwnerId) {
        self.set_left(&field(U, owner), -1);
    }

    /// A waiter as Redisson leaves it.
    fn queued_by_redisson(&mut self, owner: &str, ms: i64) {
        let of = format!("{V}:{owner}");
        let _: i64 = self.look.rpush(queue_key(), &of).unwrap();
        self.set_left(&of, ms);
    }

    /// The first of these owners has the lock, the others wait for it.
    fn with_queue(owners: &[OwnerId]) -> Live {
        let mut live = Live::new();
        live.line_up(owners);
        live
    }

    fn line_up(&mut self, owners: &[OwnerId]) {
        assert!(is_acquired(&self.run(&ask(owners[0]))));
        for owner in &owners[1..] {
            assert!(is_held(&self.run(&ask(*owner))));
        }
    }

    /// The lock ends by itself: nobody is told.
    fn expire(&mut self) {
        self.cmd::<i64>("DEL orders", &[]);
    }

    /// The ends of the channels on which this call publishes.
    fn published_by(&mut self, op: &Op) -> (Reply, Vec<String>) {
        let mut connection = self.connect();
        let mut messages: PubSub<'_> = connection.as_pubsub();
        messages.psubscribe("*").unwrap();
        let reply = self.run(op);
        let _: i64 = self.look.publish("end", "").unwrap();
        let mut heard = Vec::new();
        loop {
            let message = messages.get_message().unwrap();
            let channel = message.get_channel_name();
            if channel == "end" {
                return (reply, heard);
            }
            assert_eq!(message.get_payload::<String>().unwrap(), "0");
            let of = channel.strip_prefix("redisson_lock__channel:{orders}:");
            heard.push(of.unwrap().replace(U, "U").replace(V, "V"));
        }
    }
}

#[test]
fn the_data_are_those_that_redisson_knows() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    assert_eq!(live.holds("orders"), "U:1=1");
    let owners: Vec<String> = live
        .look
        .lrange("redisson_lock_queue:{orders}", 0, -1)
        .unwrap();
    assert_eq!(owners, [field(U, 2), field(U, 3)]);
    let times: i64 = live.look.zcard("redisson_lock_timeout:{orders}").unwrap();
    assert_eq!(times, 2);
    assert!(live.has_left(2, PLACE_KEPT) && live.has_left(3, PLACE_KEPT));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 3);
    // A lock that is held is a plain hash.
    let Some(holder) = live.run(&of_kind(&inspect(), Kind::Fair)).holder() else {
        panic!("nobody has it")
    };
    assert_eq!((holder.owner, holder.count), (field(U, 1), 1));
    for owner in [1, 2, 3] {
        assert!(is_acquired(&live.run(&ask(owner))));
        assert_eq!(live.run(&leave(owner)), Reply::Released(0));
    }
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0, "nothing is left");
}

#[test]
fn the_queue_is_read_in_its_order() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.queued_by_redisson("7", 50_000);
    live.run_out(3);
    let keys = live.cmd::<i64>("DBSIZE", &[]);
    let waiters = Op::Inspect {
        name: "orders".into(),
        kind: Kind::Fair,
        what: Inspection::Waiters,
    };
    let Reply::Holders(queue) = live.run(&waiters) else {
        panic!("no queue")
    };
    let owners: Vec<_> = queue.iter().map(|waiter| waiter.owner.clone()).collect();
    assert_eq!(owners, [field(U, 2), field(U, 3), format!("{V}:7")]);
    assert!(queue.iter().all(|waiter| waiter.count == 0));
    let left: Vec<_> = queue
        .iter()
        .map(|waiter| waiter.remaining.unwrap())
        .collect();
    assert!(
        left[0] <= PLACE_KEPT && left[0] > PLACE_KEPT / 2,
        "{left:?}"
    );
    assert_eq!(left[1], Duration::ZERO);
    assert!(left[2] > PLACE_KEPT, "{left:?}");
    // To look changes nothing: the place that has run out still stands there.
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), keys);
    assert_eq!(live.queue(), "U:2 U:3 V:7");
    // A free lock that nobody waits for.
    let mut live = Live::new();
    assert_eq!(live.run(&waiters), Reply::Holders(Vec::new()));
}

#[test]
fn the_time_of_the_holder_is_told() {
    let mut live = Live::with_queue(&[1]);
    live.cmd::<i64>("PEXPIRE orders 20000", &[]);
    let Reply::Busy { ttl: Some(ttl) } = live.run(&ask(2)) else {
        panic!("not busy")
    };
    assert!(ttl <= Duration::from_secs(20) && ttl > Duration::from_secs(19));
    live.cmd::<i64>("PERSIST orders", &[]);
    assert_eq!(live.run(&ask(2)), Reply::Busy { ttl: None });
}

#[test]
fn the_lock_goes_round_in_the_order_of_arrival() {
    let mut live = Live::with_queue(&[1, 2, 3, 4]);
    // To ask again moves nobody.
    for owner in [4, 3, 2] {
        live.run(&ask(owner));
    }
    assert_eq!(live.queue(), "U:2 U:3 U:4");
    for (owner, next) in [(1, 2), (2, 3), (3, 4)] {
        let (reply, heard) = live.published_by(&leave(owner));
        assert_eq!(
            (reply, heard),
            (Reply::Released(1), vec![format!("U:{next}")])
        );
        for other in (1..=4).filter(|other| *other != next) {
            assert!(!is_acquired(&live.run(&attempt(other))), "{other} barges");
        }
        assert!(is_acquired(&live.run(&ask(next))));
    }
    assert_eq!(live.queue(), "");
}

#[test]
fn a_try_takes_no_place_and_overtakes_nobody() {
    let mut live = Live::with_queue(&[1]);
    assert!(is_held(&live.run(&attempt(2))));
    assert_eq!(live.queue(), "");
    live.run(&ask(3));
    live.run(&leave(1));
    assert!(is_for_head(&live.run(&attempt(2))));
    assert_eq!(live.queue(), "U:3");
    live.run(&leave(3));
    assert!(is_acquired(&live.run(&attempt(2))));
}

#[test]
fn copies_change_nothing() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    for owner in [1, 2, 3] {
        live.run(&ask(owner));
    }
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("U:1=1", "U:2 U:3")
    );
    let late = live.server_ms() - 1;
    for op in [ask(1), ask(2), ask(4), attempt(4), ask_as(5, 2), forced()] {
        assert_eq!(live.try_as(U, &op, late).unwrap(), Reply::Stale, "{op:?}");
    }
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("U:1=1", "U:2 U:3")
    );
    // A late copy of a grant, after the end, is held off by those that wait.
    live.run(&leave(1));
    assert!(is_for_head(&live.run(&attempt(1))));
    for _ in 0..2 {
        assert!(is_acquired(&live.run(&ask(2))));
    }
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("U:2=1", "U:3")
    );
    for _ in 0..2 {
        assert_eq!(live.run(&leave(1)), Reply::Gone(LostReason::Stolen));
    }
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("U:2=1", "U:3")
    );
}

#[test]
fn a_place_is_given_up_once() {
    let mut live = Live::with_queue(&[1, 2, 3, 4]);
    for _ in 0..2 {
        let (reply, heard) = live.published_by(&leave(3));
        assert_eq!((reply, heard), (Reply::Gone(LostReason::Stolen), vec![]));
        assert_eq!(live.queue(), "U:2 U:4");
        assert_eq!(live.left(&field(U, 3)), None);
        assert!(live.has_left(2, PLACE_KEPT) && live.has_left(4, PLACE_KEPT));
    }
}

#[test]
fn the_end_of_the_head_wakes_the_next_one_of_a_free_lock() {
    let mut live = Live::with_queue(&[1, 2, 3, 4]);
    live.expire();
    let (reply, heard) = live.published_by(&leave(2));
    assert_eq!(reply, Reply::Gone(LostReason::Deleted));
    assert_eq!(heard, ["U:3"]);
    // The one behind it is not told by an end behind it.
    let (_, heard) = live.published_by(&leave(4));
    assert_eq!(heard, ["U:3"], "the head only");
    assert!(is_acquired(&live.run(&ask(3))));
}

#[test]
fn the_end_of_a_place_of_a_held_lock_wakes_nobody() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    let (_, heard) = live.published_by(&leave(2));
    assert!(heard.is_empty(), "{heard:?}");
    let (_, heard) = live.published_by(&leave(1));
    assert_eq!(heard, ["U:3"]);
}

#[test]
fn a_place_is_dropped_when_its_time_is_over() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.expire();
    live.run_out(2);
    assert!(is_acquired(&live.run(&ask(3))));
    assert_eq!((live.queue().as_str(), live.left(&field(U, 2))), ("", None));
}

#[test]
fn several_dead_ones_are_dropped_at_once() {
    let mut live = Live::with_queue(&[1, 2, 3, 4, 5]);
    live.expire();
    (2..5).for_each(|owner| live.run_out(owner));
    assert!(is_acquired(&live.run(&ask(5))));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 1);

    let mut live = Live::with_queue(&[1, 2, 3, 4, 5]);
    (2..4).for_each(|owner| live.run_out(owner));
    let (_, heard) = live.published_by(&leave(1));
    assert_eq!(
        (live.queue().as_str(), heard),
        ("U:4 U:5", vec!["U:4".to_owned()])
    );
    // The call that drops them tells the one that comes then.
    live.run_out(4);
    let (reply, heard) = live.published_by(&attempt(6));
    assert!(is_for_head(&reply));
    assert_eq!(
        (live.queue().as_str(), heard),
        ("U:5", vec!["U:5".to_owned()])
    );
}

/// The times of dead ones do not add up.
#[test]
fn every_place_runs_out_as_long_after_its_last_ask() {
    let mut live = Live::with_queue(&[1, 2, 3, 4, 5]);
    for owner in 2..=5 {
        assert!(live.has_left(owner, PLACE_KEPT), "{owner}");
        live.set_left(&field(U, owner), 4000);
    }
    live.run(&ask(4));
    assert!(live.has_left(4, PLACE_KEPT));
    assert!(live.has_left(3, Duration::from_secs(4)));
    assert_eq!(live.queue(), "U:2 U:3 U:4 U:5");
}

#[test]
fn the_own_place_never_runs_out_while_it_asks() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.run_out(2);
    assert!(is_held(&live.run(&ask(2))));
    assert_eq!(live.queue(), "U:2 U:3");
    assert!(live.has_left(2, PLACE_KEPT));
    live.run_out(2);
    live.expire();
    assert!(is_acquired(&live.run(&ask(2))));
}

#[test]
fn a_head_without_a_time_gets_one() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.expire();
    live.cmd::<i64>("DEL", &[&times_key()]);
    assert!(is_for_head(&live.run(&ask(3))));
    assert_eq!(live.queue(), "U:2 U:3");
    assert!(live.has_left(2, Duration::from_secs(5)));
    assert!(live.has_left(3, PLACE_KEPT));
    live.run_out(2);
    assert!(is_acquired(&live.run(&ask(3))));
}

#[test]
fn times_without_a_queue_keep_nobody_out() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.cmd::<i64>("DEL", &[&queue_key()]);
    assert!(is_held(&live.run(&ask(3))), "it lines up anew");
    assert!(is_held(&live.run(&ask(2))));
    assert_eq!(live.queue(), "U:3 U:2");
    live.cmd::<i64>("DEL", &[&queue_key()]);
    live.expire();
    assert!(is_acquired(&live.run(&ask(4))));
}

#[test]
fn places_behind_redisson_last_as_long_as_its_waiters() {
    let mut live = Live::with_queue(&[1]);
    live.queued_by_redisson("9", 300_000);
    live.run(&ask(2));
    assert!(live.has_left(2, PLACE_KEPT + Duration::from_secs(300)));
    // No more in a chain of ours, however often they ask.
    for owner in [3, 4, 2, 3, 4] {
        live.run(&ask(owner));
        assert!(
            live.has_left(owner, PLACE_KEPT + Duration::from_secs(300)),
            "{owner}"
        );
    }

    let mut live = Live::with_queue(&[1]);
    live.queued_by_redisson("8", 300_000);
    live.queued_by_redisson("9", 600_000);
    for owner in [2, 3, 2, 3] {
        live.run(&ask(owner));
        assert!(
            live.has_left(owner, PLACE_KEPT + Duration::from_secs(600)),
            "{owner}"
        );
    }
    // Without a limit, its time is years away.
    live.queued_by_redisson("7", 9_000_000_000_000_000);
    live.run(&ask(4));
    assert!(live.has_left(4, PLACE_KEPT + Duration::from_secs(24 * 3600)));
}

/// Redisson drops a dead place and publishes nothing.
#[test]
fn each_that_finds_the_lock_free_wakes_a_head_that_nobody_told() {
    let mut live = Live::with_queue(&[1, 2, 3, 4]);
    let (_, heard) = live.published_by(&ask(3));
    assert!(heard.is_empty(), "the lock is held");
    live.expire();
    let (reply, heard) = live.published_by(&ask(3));
    assert!(is_for_head(&reply));
    assert_eq!(heard, ["U:2"]);
    for other in [ask(4), attempt(5)] {
        let (reply, heard) = live.published_by(&other);
        assert!(is_for_head(&reply) && heard == ["U:2"], "{heard:?}");
    }
}

#[test]
fn a_waiter_of_redisson_comes_in_its_turn() {
    let mut live = Live::with_queue(&[1]);
    live.queued_by_redisson("9", 300_000);
    live.run(&ask(2));
    let (_, heard) = live.published_by(&leave(1));
    assert_eq!(heard, ["V:9"]);
    assert!(is_for_head(&live.run(&ask(2))));
    assert!(is_acquired(&live.run_as(V, &ask(9))));
    assert_eq!(live.queue(), "U:2");
}

/// After a reconnect. Another copy of the process may ask with the same owner before.
#[test]
fn the_next_owner_of_a_waiter_has_its_place() {
    for rules in ["~* &* +@all", WITHOUT_LPOS] {
        let mut live = Live::as_user(rules);
        live.line_up(&[1, 2, 3, 4]);
        assert!(is_held(&live.run(&ask_as(7, 3))));
        assert_eq!(live.queue(), "U:2 U:7 U:4");
        assert_eq!(live.left(&field(U, 3)), None);
        assert!(live.has_left(7, PLACE_KEPT));
        // A copy of the process comes second: it lines up anew.
        assert!(is_held(&live.run(&ask_as(8, 3))));
        // A copy of the call that handed the place over changes nothing.
        assert!(is_held(&live.run(&ask_as(7, 3))));
        assert_eq!(live.queue(), "U:2 U:7 U:4 U:8");
        live.run(&leave(3));
        assert_eq!(live.queue(), "U:2 U:7 U:4 U:8");
        live.expire();
        assert!(is_acquired(&live.run(&ask_as(9, 2))));
        assert_eq!(live.queue(), "U:7 U:4 U:8");
    }
}

/// Regression test: the waiter lined up behind those that its client has behind it, so that the client
/// heard no message for the head of the queue.
#[test]
fn a_waiter_whose_earlier_owner_has_the_lock_comes_first_again() {
    for rules in ["~* &* +@all", WITHOUT_LPOS] {
        let mut live = Live::as_user(rules);
        live.line_up(&[1, 2, 3]);
        assert!(is_held(&live.run(&ask_as(7, 1))));
        assert_eq!(live.queue(), "U:7 U:2 U:3");
        assert!(live.has_left(7, PLACE_KEPT));
        live.run(&leave(1));
        assert!(is_acquired(&live.run(&ask(7))));
    }
}

#[test]
fn a_server_without_lpos_keeps_the_order() {
    let mut live = Live::as_user(WITHOUT_LPOS);
    live.line_up(&[1, 2, 3, 4]);
    for owner in [4, 2, 3] {
        assert!(is_held(&live.run(&ask(owner))));
    }
    assert_eq!(live.queue(), "U:2 U:3 U:4");
    live.run(&leave(3));
    assert_eq!(live.queue(), "U:2 U:4");
    live.expire();
    let (_, heard) = live.published_by(&ask(4));
    assert_eq!(heard, ["U:2"]);
    assert!(is_acquired(&live.run(&ask(2))));
}

#[test]
fn a_full_server_frees_the_lock_and_places() {
    let mut live = Live::with_queue(&[1, 2, 3, 4]);
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<i64>("ZREM", &[&times_key(), &field(U, 2)]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    assert_eq!(live.refused(&ask(5)), (ErrorKind::Server, false));
    live.run(&leave(3));
    assert_eq!(live.queue(), "U:2 U:4");
    let mine = renew(&["orders"], LEASE * 2);
    assert!(matches!(
        live.run(&of_kind(&mine, Kind::Fair)),
        Reply::Renewed(_)
    ));
    // The head gets a time beside.
    let (reply, heard) = live.published_by(&leave(1));
    assert_eq!((reply, heard), (Reply::Released(1), vec!["U:2".to_owned()]));
    let (reply, heard) = live.published_by(&leave(2));
    assert_eq!(reply, Reply::Gone(LostReason::Deleted));
    assert_eq!(
        (live.queue().as_str(), heard),
        ("U:4", vec!["U:4".to_owned()])
    );
    live.run(&leave(4));
    assert_eq!(live.cmd::<i64>("DBSIZE", &[]), 0);
}

#[test]
fn force_frees_the_lock_and_wakes_the_head() {
    let mut live = Live::with_queue(&[1, 2, 3]);
    live.run_out(2);
    let (reply, heard) = live.published_by(&forced());
    assert_eq!(
        (reply, heard),
        (Reply::Forced(true), vec!["U:3".to_owned()])
    );
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("", "U:3")
    );
    assert_eq!(live.run(&forced()), Reply::Forced(false));
    assert_eq!(live.queue(), "U:3");
    assert!(is_acquired(&live.run(&ask(3))));
}

#[test]
fn a_token_is_drawn_once_and_told_again() {
    let mut live = Live::new();
    let token_of = |reply: Reply| match reply {
        Reply::Acquired {
            token: Some(token), ..
        } => token,
        other => panic!("no token: {other:?}"),
    };
    let first = token_of(live.run(&fenced(&ask(1))));
    assert_eq!(token_of(live.run(&fenced(&ask(1)))), first);
    assert!(is_held(&live.run(&fenced(&ask(2)))));
    assert_eq!(live.look.get::<_, u64>(token_key("orders")).unwrap(), first);
    assert_eq!(live.queue(), "U:2");
    live.run(&leave(1));
    assert!(is_for_head(&live.run(&fenced(&attempt(3)))));
    let second = token_of(live.run(&fenced(&ask(2))));
    assert!(second > first);
    assert_eq!(token_of(live.run(&fenced(&ask(2)))), second);
}

#[test]
fn foreign_data_are_told_and_left_alone() {
    let setups: [(&str, &[&str]); 4] = [
        ("SET", &["orders", "x"]),
        ("RPUSH", &["orders", "x"]),
        ("HSET", &["orders", "mode", "read", "x", "1"]),
        ("HSET", &["orders", "x", "1", "y", "1"]),
    ];
    for (what, (command, words)) in ["string", "list", "rwlock", "hash"].iter().zip(setups) {
        let mut live = Live::new();
        live.cmd::<redis::Value>(command, words);
        for op in [ask(1), attempt(1), fenced(&ask(1)), forced()] {
            let reply = live.run(&op);
            assert!(
                matches!(reply, Reply::Foreign(_)),
                "{what}: {op:?}: {reply:?}"
            );
        }
        assert_eq!(
            live.run(&leave(1)),
            Reply::Gone(LostReason::Stolen),
            "{what}"
        );
        assert_eq!(
            live.cmd::<i64>("DBSIZE", &[]),
            1,
            "{what}: no place is taken"
        );
    }
}

#[test]
fn a_level_more_and_a_renewal_are_those_of_a_hash() {
    let mut live = Live::with_queue(&[76, 2]);
    assert!(is_acquired(&live.run(&of_kind(&acquire(2), Kind::Fair))));
    assert_eq!(live.holds("orders"), "U:76=2");
    assert_eq!(live.run(&of_kind(&release(1), Kind::Fair)), Reply::Kept);
    assert_eq!(
        (live.holds("orders").as_str(), live.queue().as_str()),
        ("U:76=1", "U:2")
    );
    let mine = of_kind(&renew(&["orders"], LEASE * 2), Kind::Fair);
    assert_eq!(live.run(&mine), Reply::Renewed(vec![RenewReply::Kept]));
    assert!(is_near(live.pttl("orders"), LEASE * 2));
    // A copy of the first call does not shorten it.
    live.run(&ask(76));
    assert!(is_near(live.pttl("orders"), LEASE * 2));
}

#[test]
fn the_keys_lie_in_the_slot_of_the_lock() {
    for name in ["orders", "{eu}:orders", "ö"] {
        for mut op in [ask(1), leave(1), forced()] {
            let (Op::Acquire(Acquire { name: of, .. })
            | Op::Release(Release { name: of, .. })
            | Op::Force { name: of, .. }) = &mut op
            else {
                panic!("another call")
            };
            *of = name.into();
            assert_eq!(slot_of(&op).unwrap(), slots::slot(name), "{op:?}");
        }
    }
}
