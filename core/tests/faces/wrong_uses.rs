//! A wrong use is told what is wrong, word for word: conformance/wrong_uses.json has the texts of
//! every language. Uses that Rust's types do not allow have a word in its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use redlatch::{
    AcquireOptions, Canceller, Client, ClientOptions, Error, Kind, LockOptions, OptionValue,
    ReentryKey,
};
use serde_json::Value;

use super::{World, ms, soon};

const LANGUAGE: &str = "rust";

/// The uses in this file and the texts that come, by what is wrong.
#[derive(Default)]
struct Told(BTreeMap<&'static str, [String; 2]>);

impl Told {
    fn add(&mut self, wrong: &'static str, code: &str, error: &Error) {
        // Lines break where rustfmt breaks them, and chains then begin with a dot.
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
        let code = code.replace(" .", ".").replace("( ", "(");
        let code = code.replace(", )", ")").replace(" )", ")");
        let old = self.0.insert(wrong, [code, format!("{error:#}")]);
        assert!(old.is_none(), "twice: {wrong}");
    }
}

macro_rules! wrong {
    ($told:ident, $wrong:literal, $use:expr) => {
        let Err(error) = $use else {
            panic!("{}: nothing is wrong", $wrong)
        };
        $told.add($wrong, stringify!($use), &error);
    };
}

#[tokio::test]
async fn every_wrong_use_is_told_what_is_wrong_and_what_to_do() {
    let mut told = Told::default();
    options(&mut told);
    let mut world = World::new().await;
    let url = world.server.url();
    let server = format!("127.0.0.1:{}", world.server.port());
    urls(&mut told, &url);
    soon("the quorum", quorums(&mut told)).await;
    soon("the servers", servers(&mut told, &server)).await;
    values(&mut told, &world.client);
    soon("the locks", locks(&mut told, &mut world)).await;
    soon("the permits", permits(&mut told, &world.client)).await;
    compare(told, &server);
}

fn options(told: &mut Told) {
    let text = OptionValue::Text;
    let mut lock = LockOptions::new();
    let mut acquire = AcquireOptions::new();
    wrong!(
        told,
        "a word that is almost an option",
        lock.set("leese", text("5s"))
    );
    wrong!(
        told,
        "an option as another language spells it",
        lock.set("watchdogLease", text("5s"))
    );
    wrong!(
        told,
        "a misspelt option of an acquisition",
        acquire.set("leese", text("5s"))
    );
    wrong!(
        told,
        "an option of a client for a lock",
        lock.set("outage", text("5s"))
    );
    wrong!(
        told,
        "an option of an acquisition for a lock",
        lock.set("wait", text("5s"))
    );
    wrong!(
        told,
        "a word that is like no option",
        lock.set("zzz", text("5s"))
    );
    wrong!(
        told,
        "a word of another library",
        lock.set("ttl", text("5s"))
    );
    wrong!(
        told,
        "the timeout of other libraries",
        acquire.set("timeout", text("5s"))
    );
    wrong!(told, "a negative time", lock.set("max_hold", text("-2.5s")));
    wrong!(
        told,
        "a time that is no number",
        lock.set("lease", OptionValue::Seconds(f64::NAN))
    );
    wrong!(
        told,
        "a time as a flag",
        lock.set("lease", OptionValue::Flag(true))
    );
    wrong!(told, "a time as a word", lock.set("lease", text("soon")));
    wrong!(
        told,
        "a time of an unknown unit",
        lock.set("lease", text("1d"))
    );
    wrong!(
        told,
        "a time as text without a unit",
        acquire.set("wait", text("5"))
    );
    wrong!(told, "half a replica", lock.set("replicas", text("1.5")));
    wrong!(told, "a flag as a number", lock.set("fencing", text("1")));
    wrong!(told, "a flag as a word", lock.set("fencing", text("yes")));
    wrong!(told, "a kind that is none", lock.set("kind", text("mutex")));
}

fn urls(told: &mut Told, url: &str) {
    let text = OptionValue::Text;
    wrong!(
        told,
        "a misspelt option of a client",
        Client::builder(url)
            .option("conect_timeout", text("5s"))
            .build()
    );
    wrong!(
        told,
        "a protocol that is none",
        Client::builder(url)
            .option("protocol", text("resp4"))
            .build()
    );
    wrong!(
        told,
        "a port beside a URL",
        Client::builder(url).option("port", text("6379")).build()
    );
    wrong!(
        told,
        "a name of the client with a space",
        Client::builder(url)
            .options(ClientOptions::new().client_name("two words"))
            .build()
    );
    wrong!(
        told,
        "a certificate without TLS",
        Client::builder("redis://h")
            .option("tls_ca", text("/ca.pem"))
            .build()
    );
    wrong!(
        told,
        "a certificate without its key",
        Client::builder("rediss://h")
            .option("tls_cert", text("/c.pem"))
            .build()
    );
    wrong!(
        told,
        "a certificate that is not there",
        Client::builder("rediss://h")
            .option("tls_ca", text("/not/there.pem"))
            .build()
    );
    wrong!(
        told,
        "a URL without a scheme",
        Client::builder("localhost:6379").build()
    );
    wrong!(
        told,
        "the URL of something else",
        Client::builder("http://u:secret@h").build()
    );
    wrong!(
        told,
        "a list of URLs",
        Client::builder("redis://a:1,redis://b:2").build()
    );
    wrong!(told, "an empty URL", Client::builder("").build());
    wrong!(
        told,
        "a port that is none",
        Client::builder("redis://h:port").build()
    );
    wrong!(
        told,
        "a port that is too large",
        Client::builder("redis://h:99999").build()
    );
    wrong!(
        told,
        "a database that is none",
        Client::builder("redis://h/name").build()
    );
    wrong!(
        told,
        "a Sentinel without the name of its service",
        Client::builder("redis+sentinel://h").build()
    );
    wrong!(
        told,
        "a quorum of an even number of servers",
        Client::builder("redis+quorum://a,b").build()
    );
    wrong!(
        told,
        "a quorum that names a server twice",
        Client::builder("redis+quorum://a,b,a").build()
    );
}

/// Nobody connects to these servers.
async fn quorums(told: &mut Told) {
    let quorum = Client::builder("redis+quorum://a,b,c").build().unwrap();
    let lock = quorum.lock("n").unwrap();
    wrong!(
        told,
        "a lease in a quorum that outlives restart_delay",
        lock.acquire_with(AcquireOptions::new().lease(Duration::from_secs(60)))
            .await
    );
    wrong!(told, "a read-write lock of a quorum", quorum.rw_lock("n"));
    wrong!(told, "a semaphore of a quorum", quorum.semaphore("n", 3));
    wrong!(told, "a latch of a quorum", quorum.latch("n"));
    wrong!(
        told,
        "a multi lock of a quorum",
        quorum.multi_lock(["m", "n"])
    );
    wrong!(
        told,
        "fencing in a quorum",
        quorum.lock_with("n", LockOptions::new().fencing(true))
    );
    wrong!(
        told,
        "a fair lock of a quorum",
        quorum.lock_with("n", LockOptions::new().kind(Kind::Fair))
    );
    wrong!(
        told,
        "a question about a lock of a quorum",
        lock.is_locked().await
    );
    wrong!(
        told,
        "a lock of a quorum that is forced",
        lock.force_release().await
    );
    wrong!(
        told,
        "a token for a lock of a quorum",
        lock.acquire_with(AcquireOptions::new().token("t")).await
    );
}

async fn servers(told: &mut Told, server: &str) {
    // Bound and not listening: nobody else can answer there.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let nowhere = &format!("redis://{}", bound.local_addr().unwrap());
    wrong!(
        told,
        "a server that is not there",
        Client::connect(nowhere).await
    );
    wrong!(
        told,
        "a server that is no Sentinel",
        Client::connect(&format!("redis+sentinel://{server}/main")).await
    );
    wrong!(
        told,
        "a server that is no cluster",
        Client::connect(&format!("redis+cluster://{server}")).await
    );
    wrong!(
        told,
        "a database that the server does not have",
        Client::connect(&format!("redis://{server}/99")).await
    );
    wrong!(
        told,
        "a password that is wrong",
        Client::connect(&format!("redis://app:wrong@{server}")).await
    );
}

fn values(told: &mut Told, client: &Client) {
    wrong!(
        told,
        "a lease that is too short",
        client.lock_with("n", LockOptions::new().lease(Duration::from_millis(50)))
    );
    wrong!(
        told,
        "a lease that is too long",
        client.lock_with(
            "n",
            LockOptions::new().watchdog_lease(Duration::from_secs(1_000_000))
        )
    );
    wrong!(
        told,
        "a time without an end",
        client.lock_with("n", LockOptions::new().lease(Duration::MAX))
    );
    wrong!(
        told,
        "too many replicas",
        client.lock_with("n", LockOptions::new().replicas(1_000_000))
    );
    wrong!(told, "an empty name", client.lock(""));
    wrong!(
        told,
        "a name that is too long",
        client.lock(&"x".repeat(1025))
    );
    wrong!(
        told,
        "a read-write lock with a kind",
        client.rw_lock_with("n", LockOptions::new().kind(Kind::Simple))
    );
    wrong!(
        told,
        "a reader with fencing",
        client.lock_with("n", LockOptions::new().kind(Kind::Read).fencing(true))
    );
    wrong!(
        told,
        "a limit of a lock",
        client.lock_with("n", LockOptions::new().limit(3))
    );
    wrong!(
        told,
        "a preference for writers of a lock without readers",
        client.lock_with(
            "n",
            LockOptions::new().writer_preference(Duration::from_secs(1))
        )
    );
    wrong!(
        told,
        "a semaphore with fencing",
        client.semaphore_with("s", LockOptions::new().fencing(true))
    );
    wrong!(
        told,
        "a semaphore that is entered again",
        client.semaphore_with("s", LockOptions::new().reentrant(true))
    );
}

async fn locks(told: &mut Told, world: &mut World) {
    let closed = world.another().await;
    closed.close().await.unwrap();
    let lost = world.lock("lost").acquire().await.unwrap();
    let loss = lost.lost();
    world.command::<u32>(&["DEL", "lost"]);
    loss.await;
    world.command::<String>(&["SET", "data", "mine"]);
    let client = &world.client;
    let lock = client.lock("n").unwrap();
    let other = client.lock("other").unwrap().acquire().await.unwrap();
    let held = client.lock("held").unwrap();
    let holder = held.acquire().await.unwrap();
    let key = ReentryKey::Explicit(7);
    let sides = client.rw_lock("sides").unwrap();
    let reading = AcquireOptions::new().key(key);
    let reader = sides.read().acquire_with(reading.clone()).await.unwrap();
    let simple = LockOptions::new().kind(Kind::Simple);
    let simple = client.lock_with("simple", simple).unwrap();
    let cancelled = Canceller::new().unwrap();
    cancelled.cancel();

    wrong!(
        told,
        "a client that is closed",
        closed.lock("n").unwrap().acquire().await
    );
    wrong!(told, "a lock that is lost", lost.check());
    wrong!(told, "a lock that is not held", lock.release_by(key).await);
    wrong!(
        told,
        "a lock that somebody else holds",
        held.acquire_timeout(Duration::from_millis(500)).await
    );
    wrong!(
        told,
        "a canceller that was used before",
        held.acquire().wait_cancellable(&cancelled)
    );
    wrong!(
        told,
        "other data at the name",
        client.lock("data").unwrap().acquire().await
    );
    wrong!(
        told,
        "a lock at the name of another kind",
        client
            .lock_with("held", LockOptions::new().kind(Kind::Simple))
            .unwrap()
            .acquire()
            .await
    );
    wrong!(
        told,
        "a plain semaphore at the name of a lock",
        client.plain_semaphore("held").unwrap().acquire().await
    );
    wrong!(
        told,
        "a latch at the name of a lock",
        client.latch("held").unwrap().wait().await
    );
    wrong!(
        told,
        "the queue of a lock without one",
        lock.waiters().await
    );
    wrong!(
        told,
        "a token of a lock without one",
        lock.release_token("t").await
    );
    wrong!(
        told,
        "a token that the lock does not have",
        simple.release_token("other").await
    );
    wrong!(
        told,
        "an empty token",
        simple.acquire_with(AcquireOptions::new().token("")).await
    );
    wrong!(
        told,
        "a writer that reads already",
        sides
            .write()
            .acquire_with(AcquireOptions::new().key(key))
            .await
    );
    wrong!(
        told,
        "an extension that is too short",
        other.extend(Duration::from_millis(50)).await
    );
    wrong!(
        told,
        "an extension of a lock that is not held",
        lock.extend_by(key, Duration::from_secs(5)).await
    );
    wrong!(
        told,
        "permits of a lock",
        lock.acquire_with(AcquireOptions::new().permits(2)).await
    );
    wrong!(
        told,
        "a replica that is not there",
        client
            .lock_with("n", LockOptions::new().replicas(1))
            .unwrap()
            .acquire()
            .await
    );
    for guard in [other, holder, reader] {
        guard.release().await.unwrap();
    }
}

async fn permits(told: &mut Told, client: &Client) {
    let semaphore = client.semaphore("s", 2).unwrap();
    let plain = client.plain_semaphore("p").unwrap();
    let latch = client.latch("l").unwrap();
    let closed = client.latch("closed").unwrap();
    closed.try_set_count(1).await.unwrap();
    wrong!(told, "no permits at once", semaphore.acquire_many(0).await);
    wrong!(
        told,
        "more permits at once than the limit",
        semaphore.acquire_many(3).await
    );
    wrong!(
        told,
        "more permits at once than one call takes",
        semaphore.acquire_many(1001).await
    );
    wrong!(
        told,
        "more permits than a semaphore has",
        semaphore.set_permits(1 << 31).await
    );
    wrong!(told, "no plain permits", plain.acquire_many(0).await);
    wrong!(told, "a latch with no count", latch.try_set_count(0).await);
    wrong!(told, "a count down by nothing", latch.count_down(0).await);
    wrong!(
        told,
        "a latch that nobody opens",
        closed.wait_timeout(ms(500)).await
    );
}

/// Compares with the table, or writes what came there.
fn compare(mut told: Told, server: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/wrong_uses.json");
    let blessed = env::var_os("REDLATCH_BLESS").is_some();
    let mut rows: Vec<(String, BTreeMap<String, Value>)> =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (what, languages) in &mut rows {
        let column = languages.get(LANGUAGE).cloned();
        let Some([code, text]) = told.0.remove(what.as_str()) else {
            // A word that says why there is no such use.
            let word = column.as_ref().and_then(Value::as_str).unwrap_or_default();
            if word.is_empty() {
                wrong.push(format!("{what}: no use of it in this file"));
            }
            continue;
        };
        let text = text.replace(server, "SERVER");
        // Systems and servers have words of their own.
        let text = other_words(&text, "127.0.0.1:", ';', "NOWHERE: REFUSED");
        let text = other_words(&text, "the server said \"", '"', "the server said \"...");
        let found = Value::from(vec![code, text]);
        if blessed {
            languages.insert(LANGUAGE.to_owned(), found);
        } else if column.as_ref() != Some(&found) {
            wrong.push(format!("{what}: {found}, not {column:?}"));
        }
    }
    wrong.extend(told.0.keys().map(|what| format!("{what}: no such row")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if blessed {
        let text = serde_json::to_string_pretty(&rows).unwrap();
        fs::write(path, text + "\n").unwrap();
    }
}

/// The text with other words from `begin` until `end`.
fn other_words(text: &str, begin: &str, end: char, words: &str) -> String {
    match text.split_once(begin) {
        Some((before, rest)) => {
            let rest = rest.find(end).map_or("", |at| &rest[at..]);
            format!("{before}{words}{rest}")
        }
        None => text.to_owned(),
    }
}
