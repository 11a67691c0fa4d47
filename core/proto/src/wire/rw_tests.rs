//! The scripts of the read-write lock against a real server: the data that Redisson leaves and
//! finds, copies, who keeps whom out, the time of each reader, and a full server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use redis::Commands;

use super::live_tests::{
    COMMANDS, LEASE, Live, Tracked, U, V, acquire, force, inspect, is_acquired, is_near, of_kind,
    release, renew,
};
use super::*;
use crate::error::{ErrorKind, LostReason};
use crate::real::eval;

/// The op of a reader: this owner, this lease.
fn reader(op: &Op, owner: OwnerId) -> Op {
    by_owner(&of_kind(op, Kind::Read), owner)
}

fn writer(op: &Op, owner: OwnerId) -> Op {
    by_owner(&of_kind(op, Kind::Write), owner)
}

fn by_owner(op: &Op, number: OwnerId) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Acquire(Acquire { owner, .. }) | Op::Release(Release { owner, .. }) => *owner = number,
        Op::Renew { holds } => holds.iter_mut().for_each(|hold| hold.owner = number),
        _ => {}
    }
    op
}

fn for_lease(op: &Op, time: Duration) -> Op {
    let mut op = op.clone();
    if let Op::Acquire(Acquire { lease, .. }) = &mut op {
        *lease = time;
    }
    op
}

/// A reader that asks while this owner of the same client writes.
fn under(op: &Op, writer: OwnerId) -> Op {
    let mut op = op.clone();
    if let Op::Acquire(Acquire { payload, .. }) = &mut op {
        let (under, mark) = (Some(writer), None);
        *payload = Payload::Read { under, mark };
    }
    op
}

/// An acquire that regards the mark of waiting writers. A writer that is refused sets it for so long.
fn regarding(op: &Op, time: Duration) -> Op {
    let mut op = op.clone();
    if let Op::Acquire(Acquire { form, payload, .. }) = &mut op {
        let (under, mark) = (payload.under(), Some(time));
        *payload = match form.kind {
            Kind::Read => Payload::Read { under, mark },
            _ => Payload::Write {
                steal: false,
                mark,
                place: None,
            },
        };
    }
    op
}

/// The release of a writer that may have a mark.
fn giving_up(owner: OwnerId) -> Op {
    let mut op = writer(&release(0), owner);
    if let Op::Release(Release { unmark, .. }) = &mut op {
        *unmark = true;
    }
    op
}

fn theft(thief: OwnerId) -> Op {
    let mut op = writer(&acquire(1), thief);
    if let Op::Acquire(Acquire { payload, .. }) = &mut op {
        let (steal, mark) = (true, None);
        let place = None;
        *payload = Payload::Write { steal, mark, place };
    }
    op
}

fn timeout_of(uuid: &str, owner: OwnerId) -> String {
    format!("{{orders}}:{uuid}:{owner}:rwlock_timeout:1")
}

fn kept() -> Reply {
    Reply::Renewed(vec![RenewReply::Kept])
}

fn is_busy(reply: &Reply) -> bool {
    matches!(reply, Reply::Busy { ttl: Some(_) })
}

impl Live {
    fn keys(&mut self) -> i64 {
        self.cmd("DBSIZE", &[])
    }

    /// A reader as the acquire script of Redisson leaves it: one time-out key for each level.
    fn read_by_redisson(&mut self, owner: &str, levels: u32, ms: u64) {
        let _: i64 = self.look.hset("orders", "mode", "read").unwrap();
        let field = format!("{V}:{owner}");
        let _: i64 = self.look.hset("orders", &field, levels).unwrap();
        for level in 1..=levels {
            let key = format!("{{orders}}:{field}:rwlock_timeout:{level}");
            self.cmd::<String>("SET", &[&key, "1", "PX", &ms.to_string()]);
        }
        self.cmd::<i64>("PEXPIRE orders", &[&ms.to_string()]);
    }

    fn written_by_redisson(&mut self, owner: &str, ms: u64) {
        let _: i64 = self.look.hset("orders", "mode", "write").unwrap();
        let field = format!("{V}:{owner}:write");
        let _: i64 = self.look.hset("orders", field, 1).unwrap();
        self.cmd::<i64>("PEXPIRE orders", &[&ms.to_string()]);
    }
}

#[test]
fn the_data_are_those_that_redisson_leaves() {
    let mut live = Live::new();
    for owner in [76, 77] {
        assert!(is_acquired(&live.run(&reader(&acquire(1), owner))));
    }
    assert_eq!(live.holds("orders"), "U:76=1 U:77=1 mode=read");
    assert!(is_near(live.pttl("orders"), LEASE));
    for owner in [76, 77] {
        let key = timeout_of(U, owner);
        assert_eq!(live.look.get::<_, String>(&key).unwrap(), "1");
        assert!(is_near(live.pttl(&key), LEASE));
    }
    assert_eq!(live.run(&reader(&release(0), 76)), Reply::Released(0));
    assert_eq!(live.holds("orders"), "U:77=1 mode=read");
    assert_eq!(live.run(&reader(&release(0), 77)), Reply::Released(0));
    assert_eq!(live.keys(), 0);

    assert!(is_acquired(&live.run(&writer(&acquire(1), 1))));
    assert!(is_acquired(&live.run(&writer(&acquire(2), 1))));
    assert_eq!(live.holds("orders"), "U:1:write=2 mode=write");
    assert_eq!(live.run(&writer(&release(1), 1)), Reply::Kept);
    assert_eq!(live.holds("orders"), "U:1:write=1 mode=write");
    assert_eq!(live.run(&writer(&release(0), 1)), Reply::Released(0));
    assert_eq!(live.keys(), 0);
}

#[test]
fn a_writer_keeps_everybody_out_and_readers_keep_writers_out() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    assert!(is_busy(&live.run(&writer(&acquire(1), 2))));
    assert!(is_acquired(&live.run_as(V, &reader(&acquire(1), 1))));
    live.run(&reader(&release(0), 1));
    assert!(is_busy(&live.run(&writer(&acquire(1), 2))), "V reads");
    live.run_as(V, &reader(&release(0), 1));
    assert!(is_acquired(&live.run(&writer(&acquire(1), 2))));
    assert!(is_busy(&live.run_as(V, &writer(&acquire(1), 2))));
    assert!(is_busy(&live.run_as(V, &reader(&acquire(1), 3))));
    assert!(is_busy(&live.run(&reader(&acquire(1), 3))));
    assert_eq!(live.holds("orders"), "U:2:write=1 mode=write");
    assert_eq!(live.keys(), 1, "a refused reader leaves no time-out key");
}

#[test]
fn readers_and_writers_of_redisson_count() {
    let mut live = Live::new();
    live.read_by_redisson("9", 2, 30_000);
    assert!(is_busy(&live.run(&writer(&acquire(1), 1))));
    assert!(is_acquired(&live.run(&reader(&acquire(1), 2))));
    assert_eq!(live.holds("orders"), "V:9=2 U:2=1 mode=read");
    let Reply::Holders(holders) = live.run(&of_kind(&inspect(), Kind::Read)) else {
        panic!("no holders")
    };
    let mut found: Vec<_> = holders.iter().map(|one| (&*one.owner, one.count)).collect();
    found.sort();
    assert_eq!(found, [(&*format!("{V}:9"), 2), (&*format!("{U}:2"), 1)]);
    assert_eq!(
        live.run(&of_kind(&inspect(), Kind::Write)),
        Reply::Holders(Vec::new())
    );
    live.cmd::<()>("DEL orders", &[]);
    live.written_by_redisson("9", 30_000);
    assert!(is_busy(&live.run(&reader(&acquire(1), 3))));
    let Some(holder) = live.run(&of_kind(&inspect(), Kind::Write)).holder() else {
        panic!("nobody writes")
    };
    assert_eq!((holder.owner, holder.count), (format!("{V}:9:write"), 1));
}

#[test]
fn a_writer_reads_what_it_writes_and_goes_on_reading() {
    let mut live = Live::new();
    live.run(&writer(&acquire(1), 1));
    assert!(is_busy(&live.run(&under(&reader(&acquire(1), 2), 9))));
    assert!(is_acquired(&live.run(&under(&reader(&acquire(1), 2), 1))));
    assert_eq!(live.holds("orders"), "U:1:write=1 U:2=1 mode=write");
    // A reader that leaves early leaves the writer alone.
    live.run(&under(&reader(&acquire(1), 3), 1));
    assert_eq!(live.run(&reader(&release(0), 3)), Reply::Released(0));
    assert_eq!(live.holds("orders"), "U:1:write=1 U:2=1 mode=write");

    let mut subscriber = live.connect();
    let mut messages = subscriber.as_pubsub();
    messages.subscribe("redisson_rwlock:{orders}").unwrap();
    let mut next = || {
        let message = messages.get_message().unwrap();
        message.get_payload::<String>().unwrap()
    };
    // Readers of others sleep: Redisson does not tell them of this.
    assert_eq!(live.run(&writer(&release(0), 1)), Reply::Released(1));
    assert_eq!(next(), "1");
    assert_eq!(live.holds("orders"), "U:2=1 mode=read");
    assert!(is_acquired(&live.run_as(V, &reader(&acquire(1), 1))));
    assert!(is_busy(&live.run(&writer(&acquire(1), 4))));
    live.run_as(V, &reader(&release(0), 1));
    assert_eq!(live.run(&reader(&release(0), 2)), Reply::Released(1));
    assert_eq!(next(), "0");
    assert_eq!(live.keys(), 0);
}

#[test]
fn copies_change_nothing() {
    let mut live = Live::new();
    for _ in 0..3 {
        assert!(is_acquired(&live.run(&reader(&acquire(1), 1))));
        assert_eq!(live.holds("orders"), "U:1=1 mode=read");
    }
    live.run(&reader(&acquire(1), 2));
    assert_eq!(live.run(&reader(&release(0), 1)), Reply::Released(0));
    for _ in 0..3 {
        let again = live.run(&reader(&release(0), 1));
        assert_eq!(again, Reply::Gone(LostReason::Stolen));
        assert_eq!(live.holds("orders"), "U:2=1 mode=read");
    }
    live.run(&reader(&release(0), 2));
    assert_eq!(
        live.run(&reader(&release(0), 2)),
        Reply::Gone(LostReason::Deleted)
    );
    for count in [1, 2] {
        for _ in 0..3 {
            assert!(is_acquired(&live.run(&writer(&acquire(count), 1))));
        }
    }
    assert_eq!(live.holds("orders"), "U:1:write=2 mode=write");
    let late = live.server_ms() - 1;
    let mine = renew(&["orders"], LEASE * 2);
    for op in [
        writer(&acquire(3), 1),
        writer(&release(1), 1),
        writer(&mine, 1),
        reader(&acquire(1), 2),
        reader(&release(1), 2),
        reader(&mine, 2),
        of_kind(&force(), Kind::Write),
        of_kind(&force(), Kind::Read),
    ] {
        assert_eq!(live.try_as(U, &op, late).unwrap(), Reply::Stale, "{op:?}");
    }
    assert_eq!(live.holds("orders"), "U:1:write=2 mode=write");
    assert!(is_near(live.pttl("orders"), LEASE));
}

#[test]
fn a_renewal_recreates_no_owner_but_its_time_out_key() {
    let mut live = Live::new();
    let mine = renew(&["orders"], LEASE);
    for kind in [Kind::Read, Kind::Write] {
        assert_eq!(
            live.run(&of_kind(&mine, kind)),
            Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)])
        );
    }
    assert_eq!(live.keys(), 0);
    live.run(&reader(&acquire(1), 1));
    assert_eq!(
        live.run(&reader(&mine, 2)),
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)])
    );
    // Redisson 3.44 to 3.52 renews the hash and not the keys; a server may evict one.
    let key = timeout_of(U, 1);
    live.cmd::<i64>("DEL", &[&key]);
    live.cmd::<i64>("PEXPIRE orders 1000", &[]);
    assert_eq!(live.run(&reader(&mine, 1)), kept());
    assert!(is_near(live.pttl("orders"), LEASE));
    assert!(is_near(live.pttl(&key), LEASE));
    // It never shortens what a longer lease asked for. The time of the others is not its own.
    live.run(&reader(&for_lease(&acquire(1), LEASE * 10), 3));
    let Reply::Acquired { ttl, .. } = live.run(&reader(&acquire(2), 1)) else {
        panic!("it is a level more");
    };
    assert!(ttl <= LEASE && is_near(live.pttl(&key), LEASE), "{ttl:?}");
    assert_eq!(live.run(&reader(&mine, 1)), kept());
    assert!(is_near(live.pttl("orders"), LEASE * 10));
    assert!(is_near(live.pttl(&key), LEASE));
}

#[test]
fn the_hash_lives_for_as_long_as_the_longest_reader_that_is_left() {
    let mut live = Live::new();
    live.run(&reader(&for_lease(&acquire(1), LEASE * 10), 1));
    live.run(&reader(&for_lease(&acquire(1), LEASE), 2));
    live.run(&reader(&for_lease(&acquire(1), LEASE * 2), 3));
    assert!(is_near(live.pttl("orders"), LEASE * 10));
    // The end of one that was not the longest changes nothing.
    live.run(&reader(&release(0), 2));
    assert!(is_near(live.pttl("orders"), LEASE * 10));
    live.run(&reader(&release(0), 1));
    assert!(is_near(live.pttl("orders"), LEASE * 2));
    // Dead readers keep a writer out for their own time, not for that of a longer one.
    live.read_by_redisson("9", 2, 600_000);
    live.cmd::<i64>("PEXPIRE", &[&timeout_of(U, 3), "100"]);
    live.run(&reader(&release(0), 3));
    assert!(is_near(live.pttl("orders"), Duration::from_millis(600_000)));
}

#[test]
fn readers_whose_keys_are_gone_may_be_alive_for_a_lease() {
    let mut live = Live::new();
    live.read_by_redisson("9", 1, 600_000);
    live.run(&reader(&for_lease(&acquire(1), LEASE * 40), 1));
    live.cmd::<i64>("DEL", &[&format!("{{orders}}:{V}:9:rwlock_timeout:1")]);
    assert_eq!(live.run(&reader(&release(0), 1)), Reply::Released(0));
    assert_eq!(live.holds("orders"), "V:9=1 mode=read");
    assert!(is_near(live.pttl("orders"), Duration::from_secs(30)));
}

/// Readers that come and go beside a dead one do not prolong its time.
#[test]
fn a_dead_reader_keeps_writers_out_for_a_bounded_time() {
    let mut live = Live::new();
    let mark = format!("{{orders}}:{V}:9:rwlock_timeout:0");
    live.read_by_redisson("9", 1, 600_000);
    live.cmd::<i64>("DEL", &[&format!("{{orders}}:{V}:9:rwlock_timeout:1")]);
    let come_and_go = |live: &mut Live, owner| {
        live.run(&reader(&for_lease(&acquire(1), LEASE * 40), owner));
        live.run(&reader(&release(0), owner))
    };
    assert_eq!(come_and_go(&mut live, 1), Reply::Released(0));
    let first: u64 = live.look.get(&mark).unwrap();
    assert!(live.pttl(&mark) > 30_000);
    assert_eq!(come_and_go(&mut live, 2), Reply::Released(0));
    assert_eq!(live.look.get::<_, u64>(&mark).unwrap(), first);
    assert!(is_near(live.pttl("orders"), LEASE));

    // A renewal shows that it is alive.
    let mut op = renew(&["orders"], LEASE);
    if let Op::Renew { holds } = &mut op {
        (holds[0].owner, holds[0].form.kind) = (9, Kind::Read);
    }
    assert_eq!(live.run_as(V, &op), kept());
    assert!(!live.look.exists::<_, bool>(&mark).unwrap());

    // Its time is over.
    live.cmd::<i64>("DEL", &[&format!("{{orders}}:{V}:9:rwlock_timeout:1")]);
    let past = (live.server_ms() - 1).to_string();
    live.cmd::<String>("SET", &[&mark, &past]);
    assert_eq!(come_and_go(&mut live, 3), Reply::Released(0));
    assert_eq!(live.keys(), 0);
}

#[test]
fn a_count_of_any_size_keeps_the_server_busy_for_a_moment_only() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    let field = format!("{V}:9");
    let _: i64 = live.look.hset("orders", &field, 1_000_000).unwrap();
    live.cmd::<()>("CONFIG RESETSTAT", &[]);
    assert!(matches!(
        live.run(&of_kind(&inspect(), Kind::Read)),
        Reply::Holders(holders) if holders.len() == 2
    ));
    assert_eq!(live.run(&reader(&release(0), 1)), Reply::Released(0));
    let stats: String = live.cmd("INFO commandstats", &[]);
    let (_, calls) = stats.split_once("cmdstat_pttl:calls=").unwrap();
    let calls: u64 = calls.split(',').next().unwrap().parse().unwrap();
    assert!(calls < 5000, "{calls}");
}

#[test]
fn only_its_own_side_is_forced() {
    let mut live = Live::new();
    for (mine, theirs) in [(Kind::Read, Kind::Write), (Kind::Write, Kind::Read)] {
        assert_eq!(live.run(&of_kind(&force(), mine)), Reply::Forced(false));
        live.run(&of_kind(&acquire(1), mine));
        assert_eq!(live.run(&of_kind(&force(), theirs)), Reply::Forced(false));
        assert_eq!(live.run(&of_kind(&force(), mine)), Reply::Forced(true));
        assert!(!live.look.exists::<_, bool>("orders").unwrap());
    }
}

#[test]
fn other_kinds_are_told_and_left_alone() {
    let mut live = Live::new();
    let sides = [Kind::Read, Kind::Write];
    let is_foreign = |reply: Reply| matches!(reply, Reply::Foreign(_));
    live.run(&acquire(1));
    for kind in sides {
        assert!(is_foreign(live.run(&of_kind(&acquire(1), kind))));
        assert!(is_foreign(live.run(&of_kind(&inspect(), kind))));
        assert!(is_foreign(live.run(&of_kind(&force(), kind))));
    }
    assert_eq!(live.holds("orders"), "U:76=1");
    live.run(&release(0));
    live.cmd::<String>("SET orders theirs", &[]);
    for kind in sides {
        assert!(is_foreign(live.run(&of_kind(&acquire(1), kind))));
        assert_eq!(
            live.run(&of_kind(&release(0), kind)),
            Reply::Gone(LostReason::Stolen)
        );
    }
    assert_eq!(live.look.get::<_, String>("orders").unwrap(), "theirs");
    live.cmd::<()>("DEL orders", &[]);
    live.cmd::<i64>("HSET orders mode dark user ada", &[]);
    for kind in sides {
        assert!(is_foreign(live.run(&of_kind(&acquire(1), kind))));
        assert!(is_foreign(live.run(&of_kind(&inspect(), kind))));
        assert!(is_foreign(live.run(&of_kind(&force(), kind))));
    }
    assert_eq!(live.holds("orders"), "mode=dark user=ada");
    assert_eq!(live.pttl("orders"), -1);
    live.cmd::<()>("DEL orders", &[]);
    for kind in sides {
        live.run(&of_kind(&acquire(1), kind));
        assert!(is_foreign(live.run(&acquire(1))), "a plain lock");
        live.run(&of_kind(&release(0), kind));
    }
    assert_eq!(live.keys(), 0);
}

#[test]
fn the_writer_draws_a_token_that_grows() {
    let mut live = Live::new();
    let mut drawn = 0;
    for _ in 0..3 {
        let mut op = writer(&acquire(1), 1);
        if let Op::Acquire(Acquire { fencing, .. }) = &mut op {
            *fencing = Fencing::Persistent;
        }
        let Reply::Acquired {
            token: Some(token), ..
        } = live.run(&op)
        else {
            panic!("no token")
        };
        assert!(token > drawn);
        drawn = token;
        live.run(&writer(&release(0), 1));
    }
}

#[test]
fn a_full_server_takes_releases_and_the_downgrade() {
    let mut live = Live::new();
    live.run(&writer(&acquire(1), 1));
    live.run(&writer(&acquire(2), 1));
    live.run(&under(&reader(&acquire(1), 2), 1));
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    assert_eq!(
        live.refused(&under(&reader(&acquire(1), 3), 1)),
        (ErrorKind::Server, false)
    );
    assert_eq!(live.run(&writer(&release(1), 1)), Reply::Kept);
    assert_eq!(live.run(&writer(&release(0), 1)), Reply::Released(0));
    assert_eq!(live.holds("orders"), "U:2=1 mode=read");
    assert_eq!(live.run(&reader(&release(0), 2)), Reply::Released(0));
    assert_eq!(live.keys(), 0);
}

/// Regression test: a full server refused renewals of readers, so that they lost their lock.
#[test]
fn a_full_server_renews_both_sides() {
    for side in [reader, writer] {
        for gone in [false, true] {
            let mut live = Live::new();
            live.run(&side(&acquire(1), 1));
            if gone {
                live.cmd::<i64>(
                    "DEL",
                    &[&timeout_key(U, "orders", &Form::of(Kind::Read), 1)],
                );
            }
            live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
            live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
            assert_eq!(
                live.run(&side(&renew(&["orders"], LEASE * 2), 1)),
                Reply::Renewed(vec![RenewReply::Kept])
            );
            assert!(is_near(live.pttl("orders"), LEASE * 2));
            assert_eq!(live.run(&side(&release(0), 1)), Reply::Released(0));
            assert_eq!(live.keys(), 0);
        }
    }
}

/// The downgrade looks at the readers. One of Redisson that does not renew its key gets a mark.
#[test]
fn a_full_server_lowers_the_count_of_a_writer_beside_readers() {
    let mut live = Live::new();
    live.run(&writer(&acquire(1), 1));
    live.run(&writer(&acquire(2), 1));
    live.run(&under(&reader(&acquire(1), 2), 1));
    live.cmd::<i64>(
        "DEL",
        &[&timeout_key(U, "orders", &Form::of(Kind::Read), 2)],
    );
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    assert_eq!(live.run(&writer(&release(1), 1)), Reply::Kept);
    assert_eq!(live.holds("orders"), "U:1:write=1 U:2=1 mode=write");
}

/// The server tracks a key that is read, also one that is gone, until it changes.
#[test]
fn the_release_of_a_lost_reader_leaves_nothing_for_the_server_to_track() {
    let Tracked { mut live, .. } = Tracked::new();
    let mut lost = |owner| {
        live.run(&reader(&acquire(1), owner));
        live.run_as(V, &of_kind(&force(), Kind::Read));
        let reply = live.run(&reader(&release(0), owner));
        assert_eq!(reply, Reply::Gone(LostReason::Deleted));
        let stats: String = live.cmd("INFO stats", &[]);
        stats
            .lines()
            .find_map(|line| line.strip_prefix("tracking_total_keys:")?.parse().ok())
            .unwrap()
    };
    let first: u64 = lost(1);
    for owner in 2..10 {
        assert_eq!(lost(owner), first);
    }
}

#[test]
fn the_documented_commands_are_enough_for_both_sides() {
    let mut live = Live::as_user(&format!(
        "~orders ~{{orders}}:*:rwlock_timeout:* ~{{orders}}:redlatch:writer ~redisson_lock_token:* resetchannels &redisson_rwlock:* {COMMANDS} +zadd +zrem +zrange"
    ));
    let mine = renew(&["orders"], LEASE * 2);
    assert!(is_acquired(&live.run(&writer(&acquire(1), 1))));
    assert!(is_acquired(&live.run(&writer(&acquire(2), 1))));
    assert!(is_acquired(&live.run(&under(&reader(&acquire(1), 2), 1))));
    assert!(is_busy(&live.run_as(V, &reader(&acquire(1), 3))));
    assert!(is_busy(&live.run_as(V, &writer(&acquire(1), 3))));
    assert!(is_busy(
        &live.run_as(V, &regarding(&writer(&acquire(1), 3), MOST))
    ));
    let reads = regarding(&reader(&acquire(1), 4), MOST);
    assert!(is_busy(&live.run_as(V, &reads)));
    let given_up = Reply::Gone(LostReason::Stolen);
    assert_eq!(live.run_as(V, &giving_up(3)), given_up);
    assert_eq!(live.run(&writer(&mine, 1)), kept());
    assert_eq!(live.run(&reader(&mine, 2)), kept());
    for kind in [Kind::Read, Kind::Write] {
        assert!(live.run(&of_kind(&inspect(), kind)).holder().is_some());
    }
    assert_eq!(live.run(&writer(&release(1), 1)), Reply::Kept);
    assert_eq!(live.run(&writer(&release(0), 1)), Reply::Released(0));
    assert_eq!(live.run(&reader(&release(0), 2)), Reply::Released(0));
    assert_eq!(
        live.run(&reader(&release(0), 2)),
        Reply::Gone(LostReason::Deleted)
    );
    for kind in [Kind::Read, Kind::Write] {
        assert!(is_acquired(&live.run(&of_kind(&acquire(1), kind))));
        assert_eq!(live.run(&of_kind(&force(), kind)), Reply::Forced(true));
    }
}

#[test]
fn many_readers_of_many_names_are_renewed_by_one_call() {
    let mut live = Live::new();
    let names: Vec<String> = (0..50).map(|at| format!("n{at}")).collect();
    let renewal = |owner, name: &String| Renewal {
        name: name.as_str().into(),
        owner,
        form: Form::of(Kind::Read),
        ttl: LEASE,
    };
    let holds: Vec<Renewal> = names.iter().map(|name| renewal(1, name)).collect();
    for name in &names[1..] {
        let mut op = reader(&for_lease(&acquire(1), Duration::from_secs(2)), 1);
        if let Op::Acquire(Acquire { name: of, .. }) = &mut op {
            *of = name.as_str().into();
        }
        live.run(&op);
    }
    let Reply::Renewed(each) = live.run(&Op::Renew { holds }) else {
        panic!("not renewed")
    };
    assert_eq!(each[0], RenewReply::Gone(LostReason::Deleted));
    assert!(each[1..].iter().all(|one| *one == RenewReply::Kept));
    for name in &names[1..] {
        assert!(is_near(live.pttl(name), LEASE));
        let key = format!("{{{name}}}:{U}:1:rwlock_timeout:1");
        assert!(is_near(live.pttl(&key), LEASE));
    }
}

#[test]
fn time_out_keys_lie_in_the_slot_of_the_lock() {
    for name in ["orders", "{eu}:orders", "a{b}c", "ö"] {
        let mut op = reader(&acquire(1), 1);
        if let Op::Acquire(Acquire { name: of, .. }) = &mut op {
            *of = name.into();
        }
        assert_eq!(slot_of(&op).unwrap(), slots::slot(name), "{name}");
    }
}

#[test]
fn a_thief_has_the_lock_alone() {
    let mut live = Live::new();
    for held_by in 0..4 {
        match held_by {
            0 => {}
            1 => {
                live.run(&reader(&acquire(1), 1));
                live.read_by_redisson("8", 3, 90_000);
            }
            2 => {
                live.run_as(V, &writer(&acquire(1), 1));
                live.run_as(V, &under(&reader(&acquire(1), 2), 1));
            }
            _ => live.written_by_redisson("8", 90_000),
        }
        for _ in 0..2 {
            assert!(is_acquired(&live.run(&theft(9))));
            assert_eq!(live.holds("orders"), "U:9:write=1 mode=write");
            assert!(is_near(live.pttl("orders"), LEASE));
            assert_eq!(live.keys(), 1, "no time-out key is left");
        }
        for op in [writer(&acquire(1), 3), reader(&acquire(1), 3)] {
            assert!(is_busy(&live.run_as(V, &op)));
        }
        // The victims can do it no harm.
        let gone = Reply::Gone(LostReason::Stolen);
        assert_eq!(live.run(&reader(&release(0), 1)), gone);
        assert_eq!(live.run_as(V, &writer(&release(0), 1)), gone);
        let kept = live.run_as(V, &writer(&renew(&["orders"], LEASE), 1));
        assert_eq!(
            kept,
            Reply::Renewed(vec![RenewReply::Gone(LostReason::Stolen)])
        );
        assert_eq!(live.holds("orders"), "U:9:write=1 mode=write");
        assert!(
            is_acquired(&live.run_as(V, &theft(9))),
            "a thief is robbed, too"
        );
        assert_eq!(live.run_as(V, &writer(&release(0), 9)), Reply::Released(0));
        assert_eq!(live.keys(), 0);
    }
}

#[test]
fn a_theft_that_comes_late_or_finds_other_data_changes_nothing() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    let late = live.server_ms() - 1;
    assert_eq!(live.try_as(V, &theft(9), late).unwrap(), Reply::Stale);
    assert_eq!(live.holds("orders"), "U:1=1 mode=read");
    for command in ["SET orders 1", "HSET orders field 1"] {
        live.cmd::<()>("DEL orders", &[]);
        live.cmd::<redis::Value>(command, &[]);
        assert!(
            matches!(live.run(&theft(9)), Reply::Foreign(_)),
            "{command}"
        );
    }
}

#[test]
fn a_thief_draws_a_later_token() {
    let mut live = Live::new();
    let fenced = |op: &Op| {
        let mut op = op.clone();
        if let Op::Acquire(Acquire { fencing, .. }) = &mut op {
            *fencing = Fencing::Persistent;
        }
        op
    };
    let mut draw = |op: &Op| match live.run(&fenced(op)) {
        Reply::Acquired { token, .. } => token.unwrap(),
        other => panic!("{other:?}"),
    };
    let tokens = [
        draw(&writer(&acquire(1), 1)),
        draw(&theft(2)),
        draw(&theft(3)),
    ];
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(draw(&theft(3)), tokens[2], "another copy");
}

/// The lock changes with every reader that comes or goes, and says little to the others.
#[test]
fn a_reader_is_told_by_a_key_of_its_own_that_others_have_ended_it() {
    let longer = renew(&["orders"], LEASE * 2);
    let steps: [&[Op]; 4] = [
        &[acquire(1)],
        &[acquire(1), acquire(1)],
        &[acquire(1), longer.clone()],
        &[acquire(1), longer, release(1)],
    ];
    for ops in steps {
        for end in [theft(9), of_kind(&force(), Kind::Read)] {
            let mut tracked = Tracked::new();
            for op in ops {
                tracked.live.run(&reader(op, 1));
            }
            assert!(!tracked.hears(&timeout_of(U, 1)), "its own writes");
            let call = Call::new(&end, V, u64::MAX, Publish::Classic);
            eval(&call, &mut tracked.live.look).unwrap();
            assert!(tracked.hears(&timeout_of(U, 1)), "{ops:?}");
        }
    }
}

const MARK: &str = "{orders}:redlatch:writer";
const MOST: Duration = Duration::from_secs(2);

/// The writers that the mark names, the one with the nearest deadline first.
fn marked(live: &mut Live) -> Vec<String> {
    live.look.zrange(MARK, 0, -1).unwrap()
}

#[test]
fn new_readers_stand_back_for_a_writer_that_waits() {
    let mut live = Live::new();
    assert!(is_acquired(&live.run(&reader(&acquire(1), 1))));
    assert!(is_busy(
        &live.run_as(V, &regarding(&writer(&acquire(1), 2), MOST))
    ));
    assert_eq!(marked(&mut live), [format!("{V}:2:write")]);
    assert!(is_near(live.pttl(MARK), MOST));
    let new = regarding(&reader(&acquire(1), 3), MOST);
    let Reply::Busy { ttl: Some(left) } = live.run(&new) else {
        panic!("it came in");
    };
    assert!(
        left <= MOST && left > MOST / 2,
        "{left:?}: as long as the mark"
    );
    assert_eq!(live.look.exists::<_, i64>(timeout_of(U, 3)).unwrap(), 0);
    // One that has the lock is not new, nor does one stand back that knows nothing of it.
    assert!(is_acquired(
        &live.run(&regarding(&reader(&acquire(1), 1), MOST))
    ));
    assert!(is_acquired(&live.run(&reader(&acquire(1), 4))));
    assert_eq!(live.holds("orders"), "U:1=1 U:4=1 mode=read");
    // The lock is free, and the writer comes first.
    live.run(&reader(&release(0), 4));
    live.run(&reader(&release(0), 1));
    assert!(is_busy(&live.run(&new)));
    assert!(is_acquired(
        &live.run_as(V, &regarding(&writer(&acquire(1), 2), MOST))
    ));
    assert_eq!(live.look.exists::<_, i64>(MARK).unwrap(), 0);
    live.run_as(V, &writer(&release(0), 2));
    assert!(is_acquired(&live.run(&new)));
}

#[test]
fn a_mark_ends_by_itself() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    live.run(&regarding(&writer(&acquire(1), 2), MOST));
    let new = regarding(&reader(&acquire(1), 3), MOST);
    assert!(is_busy(&live.run(&new)));
    // Its client has died, and time goes on.
    let last = live.look.zadd(MARK, format!("{U}:2:write"), 1);
    assert_eq!(last, Ok(0));
    assert!(is_acquired(&live.run(&new)));
}

#[test]
fn each_writer_has_a_mark_of_its_own() {
    let mut live = Live::new();
    let (long, short) = (MOST, MOST / 2);
    let mut subscriber = live.connect();
    let mut messages = subscriber.as_pubsub();
    messages.subscribe("redisson_rwlock:{orders}").unwrap();
    live.run(&reader(&acquire(1), 1));
    let new = regarding(&reader(&acquire(1), 9), MOST);
    let left = |live: &mut Live| match live.run(&new) {
        Reply::Busy { ttl: Some(left) } => left,
        other => panic!("it came in: {other:?}"),
    };
    assert!(is_busy(
        &live.run(&regarding(&writer(&acquire(1), 2), long))
    ));
    // A shorter one that comes later does not shorten the time, and takes only its own away.
    let second = regarding(&writer(&acquire(1), 3), short);
    assert!(is_busy(&live.run_as(V, &second)));
    assert!(left(&mut live) > short);
    live.run_as(V, &giving_up(3));
    assert!(left(&mut live) > short);
    assert_eq!(marked(&mut live), [format!("{U}:2:write")]);
    // So does a grant, and the mark ends with the last that it names.
    assert!(is_busy(&live.run_as(V, &second)));
    live.run(&reader(&release(0), 1));
    assert!(is_acquired(
        &live.run(&regarding(&writer(&acquire(1), 2), long))
    ));
    assert_eq!(marked(&mut live), [format!("{V}:3:write")]);
    assert_eq!(live.run(&writer(&release(0), 2)), Reply::Released(1));
    assert!(left(&mut live) <= short);
    assert!(is_near(live.pttl(MARK), short));
    live.run_as(V, &giving_up(3));
    let _: i64 = live
        .look
        .publish("redisson_rwlock:{orders}", "end")
        .unwrap();
    let mut heard = Vec::new();
    while heard.last().is_none_or(|last| last != "end") {
        let message = messages.get_message().unwrap();
        heard.push(message.get_payload::<String>().unwrap());
    }
    // Each release of the lock, and the last writer that gave up.
    assert_eq!(heard, ["0", "1", "1", "end"]);
    assert_eq!(live.keys(), 0);
}

#[test]
fn a_writer_that_has_died_keeps_no_place_in_the_mark() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    for owner in 2..5 {
        live.run(&regarding(&writer(&acquire(1), owner), MOST));
    }
    // Time goes on for two of them.
    for owner in 2..4 {
        let member = format!("{U}:{owner}:write");
        let _: i64 = live.look.zadd(MARK, member, owner).unwrap();
    }
    for _ in 0..2 {
        live.run(&regarding(&writer(&acquire(1), 4), MOST));
    }
    assert_eq!(marked(&mut live), [format!("{U}:4:write")]);
    // Marks that are over keep nobody back, whatever time the key has.
    let _: i64 = live.look.zadd(MARK, format!("{U}:4:write"), 4).unwrap();
    assert!(is_acquired(
        &live.run(&regarding(&reader(&acquire(1), 9), MOST))
    ));
    assert!(!live.look.exists::<_, bool>(MARK).unwrap());
}

#[test]
fn a_full_server_admits_no_new_reader_that_regards_a_mark() {
    let mut live = Live::new();
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    for op in [
        reader(&acquire(1), 1),
        regarding(&reader(&acquire(1), 2), MOST),
    ] {
        let (error, _) = live.try_as(U, &op, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    }
    assert_eq!(live.keys(), 0);
}

#[test]
fn a_user_who_may_not_mark_is_told() {
    let mut live = Live::as_user(&format!("~* &* {COMMANDS}"));
    live.run(&reader(&acquire(1), 1));
    for op in [regarding(&writer(&acquire(1), 2), MOST), giving_up(2)] {
        let (error, _) = live.try_as(U, &op, u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert_eq!(live.holds("orders"), "U:1=1 mode=read");
}

/// Regression test: the lock was taken, and then the mark could not be removed. The caller got an error, and the
/// release of what it had left failed at the same command.
#[test]
fn a_fault_of_the_mark_takes_no_lock_away() {
    let denied = Live::as_user(&format!("~* &* {COMMANDS}"));
    let mut foreign = Live::new();
    let _: () = foreign.look.set(MARK, "x").unwrap();
    for mut live in [denied, foreign] {
        let taken = live.run(&regarding(&writer(&acquire(1), 2), MOST));
        assert!(matches!(taken, Reply::Acquired { .. }), "{taken:?}");
        assert!(matches!(live.run(&giving_up(2)), Reply::Released(_)));
        assert_eq!(live.holds("orders"), "");
    }
}

#[test]
fn a_writer_takes_away_its_own_mark_and_tells_readers() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    let mut subscriber = live.connect();
    let mut messages = subscriber.as_pubsub();
    messages.subscribe("redisson_rwlock:{orders}").unwrap();
    live.run(&regarding(&writer(&acquire(1), 2), MOST));
    let gone = Reply::Gone(LostReason::Stolen);
    assert_eq!(live.run(&giving_up(9)), gone, "another one");
    assert_eq!(marked(&mut live), [format!("{U}:2:write")]);
    assert_eq!(
        live.run(&writer(&release(0), 2)),
        gone,
        "without the option"
    );
    assert!(live.look.exists::<_, bool>(MARK).unwrap());
    for _ in 0..2 {
        assert_eq!(live.run(&giving_up(2)), gone);
        assert!(!live.look.exists::<_, bool>(MARK).unwrap());
    }
    let _: i64 = live
        .look
        .publish("redisson_rwlock:{orders}", "end")
        .unwrap();
    let mut next = || {
        messages
            .get_message()
            .unwrap()
            .get_payload::<String>()
            .unwrap()
    };
    assert_eq!(
        (next(), next()),
        ("1".to_owned(), "end".to_owned()),
        "told once"
    );
    assert_eq!(live.holds("orders"), "U:1=1 mode=read");

    // It has got the lock meanwhile.
    live.run(&reader(&release(0), 1));
    live.run(&writer(&acquire(1), 2));
    assert_eq!(live.run(&giving_up(2)), Reply::Released(1));
    assert_eq!(live.keys(), 0);
}

#[test]
fn a_waiting_writer_draws_no_token_and_a_granted_one_does() {
    let mut live = Live::new();
    let mut op = regarding(&writer(&acquire(1), 2), MOST);
    if let Op::Acquire(Acquire { fencing, .. }) = &mut op {
        *fencing = Fencing::Persistent;
    }
    live.run(&reader(&acquire(1), 1));
    assert!(is_busy(&live.run(&op)));
    assert!(
        !live
            .look
            .exists::<_, bool>("redisson_lock_token:{orders}")
            .unwrap()
    );
    live.run(&reader(&release(0), 1));
    let Reply::Acquired { token, ttl } = live.run(&op) else {
        panic!("it waits");
    };
    assert!(token.is_some() && ttl <= LEASE);
    assert_eq!(live.cmd::<i64>("TTL redisson_lock_token:{orders}", &[]), -1);
    assert!(!live.look.exists::<_, bool>(MARK).unwrap());
}

#[test]
fn a_full_server_refuses_a_mark_and_nothing_else() {
    let mut live = Live::new();
    live.run(&reader(&acquire(1), 1));
    live.cmd::<()>("CONFIG SET maxmemory-policy noeviction", &[]);
    live.cmd::<()>("CONFIG SET maxmemory 1", &[]);
    assert!(is_busy(
        &live.run(&regarding(&writer(&acquire(1), 2), MOST))
    ));
    assert!(!live.look.exists::<_, bool>(MARK).unwrap());
    assert_eq!(live.run(&giving_up(2)), Reply::Gone(LostReason::Stolen));
    assert_eq!(live.run(&reader(&release(0), 1)), Reply::Released(0));
}

/// The server tracks a key that is read, also one that is not there, until it changes.
#[test]
fn a_mark_that_is_not_there_leaves_nothing_for_the_server_to_track() {
    let Tracked { mut live, .. } = Tracked::new();
    let mut come_and_go = |name: &str| {
        let mut take = regarding(&reader(&acquire(1), 1), MOST);
        let mut leave = reader(&release(0), 1);
        for op in [&mut take, &mut leave] {
            if let Op::Acquire(Acquire { name: of, .. }) | Op::Release(Release { name: of, .. }) =
                op
            {
                *of = name.into();
            }
        }
        assert!(is_acquired(&live.run(&take)));
        assert_eq!(live.run(&leave), Reply::Released(0));
        let stats: String = live.cmd("INFO stats", &[]);
        let mut lines = stats.lines();
        lines.find_map(|line| line.strip_prefix("tracking_total_keys:")?.parse().ok())
    };
    let first: Option<u64> = come_and_go("n0");
    assert!(first.is_some());
    for number in 1..10 {
        assert_eq!(come_and_go(&format!("n{number}")), first);
    }
}

/// The scripts of those who do not use the option are what they were.
#[test]
fn a_mark_costs_nothing_without_the_option() {
    for kind in [Kind::Read, Kind::Write] {
        let call = |op: &Op| Call::new(&of_kind(op, kind), U, 1, Publish::Classic);
        let (plain, marked) = (call(&acquire(1)), call(&regarding(&acquire(1), MOST)));
        assert_ne!(plain.id(), marked.id());
        assert_eq!(plain.keys + 1, marked.keys);
        let text = |call: &Call| {
            String::from_utf8(crate::real::cmd(call, true).get_packed_command()).unwrap()
        };
        assert!(!text(&plain).contains("#KEYS") && !text(&plain).contains("redlatch:writer"));
        assert!(text(&marked).contains("{orders}:redlatch:writer"));
    }
}
