//! The server in memory: a test decides when a lock is lost and when the server is out of reach.

use std::net::TcpStream;

use redlatch::testing::MemoryServer;
use redlatch::{
    AcquireOptions, Client, ClientOptions, ErrorKind, Kind, LockOptions, LostReason, Protocol,
};

use super::{eventually, ms, soon};
use crate::support::Server;

async fn served() -> (MemoryServer, Client) {
    let server = MemoryServer::start().unwrap();
    let client = Client::connect(server.url()).await.unwrap();
    (server, client)
}

#[tokio::test]
async fn two_clients_wait_for_each_other() {
    let (server, client) = served().await;
    let other = Client::connect(server.url()).await.unwrap();
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    let theirs = other.lock("n").unwrap();
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || other.stats().waiting == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the release", waits).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn the_holder_of_each_kind_is_told_that_its_lock_was_taken_away() {
    let (server, client) = served().await;
    for name in Kind::ALL
        .into_iter()
        .filter(|name| !["read", "write", "semaphore"].contains(name))
    {
        let kind = Kind::named(name).unwrap();
        let lock = client
            .lock_with(name, LockOptions::new().kind(kind))
            .unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(server.take_away(name), "{name}");
        assert_eq!(
            soon(name, guard.lost()).await,
            LostReason::Deleted,
            "{name}"
        );
        assert!(!server.take_away(name), "{name} is gone");
    }
    let permits = client.semaphore("permits", 2).unwrap();
    let guard = permits.acquire().await.unwrap();
    assert!(server.take_away("permits"));
    soon("the loss", guard.lost()).await;
    let sides = client.rw_lock("rw").unwrap();
    for side in [sides.read(), sides.write()] {
        let guard = side.acquire().await.unwrap();
        assert!(server.take_away("rw"));
        soon("the loss", guard.lost()).await;
    }
}

#[tokio::test]
async fn a_lease_runs_out_when_the_clock_is_moved() {
    let (server, client) = served().await;
    let other = Client::connect(server.url()).await.unwrap();
    let options = AcquireOptions::new().lease(ms(600_000));
    let guard = client
        .lock("n")
        .unwrap()
        .acquire_with(options)
        .await
        .unwrap();
    let theirs = other.lock("n").unwrap();
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || other.stats().waiting == 1).await;
    server.advance(ms(599_000));
    assert!(guard.is_held(), "a second is left");
    server.advance(ms(2_000));
    soon("the loss", guard.lost()).await;
    // The other one is told nothing, as by a server whose key has expired, but looks in time.
    let got = soon("the lock", waits).await.unwrap().unwrap();
    got.release().await.unwrap();
    // The clients have the new clock: nothing that they send comes too late.
    drop(
        soon("the lock", client.lock("n").unwrap().acquire())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_watched_lock_is_lost_when_the_clock_passes_its_lease() {
    let (server, client) = served().await;
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    server.advance(ms(31_000));
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Deleted);
}

#[tokio::test]
async fn a_paused_server_is_unavailable_until_it_is_resumed() {
    let server = MemoryServer::start().unwrap();
    let options = ClientOptions::new()
        .connect_timeout(ms(200))
        .outage(ms(300));
    let client = Client::builder(server.url())
        .options(options)
        .build()
        .unwrap();
    client.ready().await.unwrap();
    server.pause();
    let refused = soon("an answer", client.lock("n").unwrap().acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    // The test itself reaches the server meanwhile.
    server.empty();
    server.resume();
    let lock = client.lock("n").unwrap();
    let guard = soon(
        "the lock",
        lock.acquire_with(AcquireOptions::new().wait(ms(20_000))),
    )
    .await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hold_outlives_its_connection() {
    let (server, client) = served().await;
    let guard = client.lock("n").unwrap().acquire().await.unwrap();
    let before = client.stats().connects;
    server.disconnect();
    eventually("a new connection", || client.stats().connects > before).await;
    assert!(guard.is_held());
    soon("the release", guard.release()).await.unwrap();
}

#[tokio::test]
async fn all_locks_are_lost_when_the_server_is_emptied() {
    let (server, client) = served().await;
    let guards = [
        client.lock("a").unwrap().acquire().await.unwrap(),
        client.lock("b").unwrap().acquire().await.unwrap(),
    ];
    server.empty();
    for guard in guards {
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Deleted);
    }
}

#[tokio::test]
async fn an_older_protocol_does_as_well() {
    let server = MemoryServer::start().unwrap();
    let options = ClientOptions::new().protocol(Protocol::Resp2);
    let first = Client::builder(server.url())
        .options(options.clone())
        .build()
        .unwrap();
    let second = Client::builder(server.url())
        .options(options)
        .build()
        .unwrap();
    let guard = first.lock("n").unwrap().acquire().await.unwrap();
    let theirs = second.lock("n").unwrap();
    let waits = tokio::spawn(theirs.acquire().into_future());
    eventually("the other waits", || second.stats().waiting == 1).await;
    guard.release().await.unwrap();
    drop(soon("the release", waits).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_command_that_it_lacks_is_named() {
    let server = MemoryServer::start().unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let refused = redis::cmd("BITCOUNT")
        .arg("n")
        .query::<i64>(&mut connection)
        .unwrap_err();
    assert!(refused.to_string().contains("'BITCOUNT'"), "{refused}");
}

/// Commands and scripts, one a line; words that have blanks stand in `|`.
const TALK: &str = "\
SET a 1
SET a 2 NX
SET a 2 XX GET
SET a x PX 0
SET a x NX XX
SET a x EX 5 PX 5
SET a x KEEPTTL PX 5
GET a
INCRBY a 5
INCRBY a 9223372036854775807
DECRBY a 3
INCRBY a x
STRLEN a
MGET a b
SET a 01
INCR a
PTTL a
PEXPIRE b 10
PEXPIRE a 100000 GT
PEXPIRE a 100000 XX
PEXPIRE a 100000 NX
PEXPIRE a 100000 NX
TTL a
PERSIST a
PERSIST a
PEXPIREAT a 9223372036854775807
PEXPIRETIME a
PERSIST a
PEXPIRE a -1
EXISTS a a b
HSET h f 1 g 2
HSET h f 3 i
HGET h f
HMGET h g nothing f
HGETALL h
HLEN h
HINCRBY h f 4
HEXISTS h f
HDEL h f nothing
TYPE h
GET h
LPUSH h x
ZADD h 1 x
RPUSH l a b c b
LRANGE l 0 -1
LRANGE l -2 100
LRANGE l 5 1
LINDEX l -1
LINDEX l 9
LPOS l b
LPOS l x
LSET l 1 z
LSET l 9 z
LREM l -1 b
LPOP l
LPOP l 0
RPOP l 2
LPOP l 2
LPOP l -1
RPUSH l a b c
LPOP l 2
LLEN l
ZADD z 2 b 1 a 1.5 c
ZADD z XX CH 3 a 4 d
ZADD z GT 1 a
ZADD z x a
ZSCORE z c
ZSCORE z nothing
ZRANGE z 0 -1
ZRANGE z 0 -1 WITHSCORES
ZRANGE nothing 0 -1 WITHSCORES
ZRANGEBYSCORE z 1 2 WITHSCORES
ZRANGEBYSCORE z (1.5 +inf
ZRANGEBYSCORE z -inf 9 LIMIT 1 1
ZCOUNT z 2 (3
ZCOUNT z x 3
ZREM z a nothing
ZCARD z
DEL h l z nothing
KEYS [a
KEYS *[]
KEYS [^]
KEYS [b-]
KEYS [z-a]
KEYS *a*
KEYS **
DBSIZE
GET
SELECT 99
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
SCRIPT EXISTS ffffffffffffffffffffffffffffffffffffffff
EVAL |return {1, 2.9, 'x', true, false, {ok='fine'}, 3, nil, 4}| 0
EVAL |return redis.call('SET', KEYS[1], ARGV[1])| 1 a 1.50
EVAL |return redis.call('GET', 'nothing') == false| 0
EVAL |return type(redis.pcall('HGET', KEYS[1], 'f').err)| 1 a
EVAL |return redis.pcall('HGET', KEYS[1], 'f')| 1 a
EVAL |return redis.call('HGET', KEYS[1], 'f')| 1 a
EVAL |return redis.call('NOTHING')| 0
EVAL |return redis.call('GET')| 0
EVAL |return redis.call('GET', {})| 0
EVAL |return redis.error_reply('MY error')| 0
EVAL |return redis.status_reply('fine')| 0
EVAL |return redis.sha1hex('')| 0
EVAL |redis.call('INCRBY', KEYS[1], 2^40); return redis.call('GET', KEYS[1])| 1 c
EVAL |redis.call('HSET', KEYS[1], 'f', 1.5, 'g', 10); return redis.call('HGETALL', KEYS[1])| 1 h
EVAL |redis.call('ZADD', KEYS[1], 1.5, 'a'); return {redis.call('ZSCORE', KEYS[1], 'a'), redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')}| 1 z
EVAL |return 1 + nil| 0
EVAL |return nothing| 0
EVAL |x = 1| 0
EVAL |return 1 +| 0
EVAL |return redis.status_reply('a\\r\\n+b')| 0
EVAL |return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')| 1 z
EVAL |return #KEYS + #ARGV| 2 a b c
EVAL |return 1| 3 a
EVAL |return 1| x
EVAL |return tostring(dofile) .. tostring(loadfile)| 0
EVAL |return string.format('%.14g %d %s', 1/3, 7, ARGV[1])| 0 x
PUBLISH c x
CLIENT GETNAME
CLIENT SETNAME |a b|
CLIENT TRACKING ON
RESET";

/// The texts of errors are other ones in each server; what a client reads is their code.
fn told(answer: redis::RedisResult<redis::Value>) -> String {
    match answer.and_then(redis::Value::extract_error) {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("refused: {:?}", error.code()),
    }
}

#[test]
fn it_answers_as_a_real_server_does() {
    let real = Server::start();
    let memory = MemoryServer::start().unwrap();
    let mut differences = Vec::new();
    for protocol in ["resp2", "resp3"] {
        let [mut real, mut memory] =
            [real.url().as_str(), &format!("{}/", memory.url())].map(|url| {
                let client = redis::Client::open(format!("{url}?protocol={protocol}")).unwrap();
                client.get_connection().unwrap()
            });
        let _: () = redis::cmd("FLUSHALL").query(&mut real).unwrap();
        let _: () = redis::cmd("FLUSHALL").query(&mut memory).unwrap();
        for line in TALK.lines() {
            let mut command = redis::Cmd::new();
            for (number, part) in line.split('|').enumerate() {
                if number % 2 == 1 {
                    command.arg(part);
                } else {
                    command.arg(part.split_whitespace().collect::<Vec<_>>());
                }
            }
            let (theirs, ours) = (
                told(command.query(&mut real)),
                told(command.query(&mut memory)),
            );
            if ours != theirs {
                differences.push(format!("{protocol}: {line}: {ours}, and not {theirs}"));
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[cfg(target_os = "linux")]
#[test]
fn no_signal_is_delivered_to_its_thread() {
    let server = MemoryServer::start().unwrap();
    server.empty(); // the thread has done something, so it has its name
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
    };
    let of_servers = statuses.filter(|status| {
        // The kernel keeps 15 characters of the name.
        field(status, "Name:").is_some_and(|name| name == "redlatch-testin")
    });
    let masks: Vec<String> = of_servers
        .filter_map(|status| field(&status, "SigBlk:"))
        .collect();
    let blocks = |mask: &String| u64::from_str_radix(mask, 16).unwrap() & 1 << 1 != 0; // SIGINT
    assert!(!masks.is_empty() && masks.iter().all(blocks), "{masks:?}");
}

#[test]
fn it_ends_with_its_value() {
    let server = MemoryServer::start().unwrap();
    let address = server.url().trim_start_matches("redis://").to_owned();
    drop(TcpStream::connect(&address).unwrap());
    drop(server);
    TcpStream::connect(&address).unwrap_err();
}
