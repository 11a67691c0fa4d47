//! The connections and the whole driver against real servers, through everything that can happen to
//! a connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm, fork};
use redlatch_proto::net;

use super::inline::InlineSlot;
use super::io::Net;
use super::run::{Driver, LateCalls};
use super::shared_engine::Effect;
use super::tcp::HOSTS;
use super::*;
use crate::clock;
use crate::credentials::{Credentials, Provider};
use crate::engine::{AcquireAll, CallOutcome, Config, Lease, Part, Target, Terms};
use crate::error::LostReason;
use crate::event::Level;
use crate::loss::{Watcher, watch};
use crate::moment::Moment;
use crate::options::{ClientOptions, Protocol};
use crate::parking::ParkingGroups;
use crate::primaries::primaries;
use crate::shared_call::REFUSED;
use crate::support::Server;
use crate::sys::{HAS_RECEIVE_MINIMUM, Timer};
use crate::wire::{
    Acquire, Fencing, Form, Inspection, Kind, Op, Release, Reply, Special, Topic, names,
};

/// How long anything may take on a busy machine before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(30);

fn name(text: &str) -> Name {
    Name::from(text)
}

fn place_by(protocol: Protocol, url: &str) -> (Place, Manner) {
    let options = ClientOptions::new()
        .connect_timeout(LIMIT)
        .client_name("redlatch-test")
        .protocol(protocol);
    let manner = Manner::new(&options, false, None).unwrap();
    (crate::url::parse(url).unwrap(), manner)
}

/// Makes a connection for tools, or one that a thread can block on.
async fn asking(what: &str, url: &str) -> Result<()> {
    asking_by(what, url, None).await
}

/// The same, with the credentials of a program.
async fn asking_by(what: &str, url: &str, provider: Option<Provider>) -> Result<()> {
    let url = match what {
        "primary" => url.replacen("redis", "redis+sentinel", 1) + "main",
        "slots" => url.replacen("redis", "redis+cluster", 1),
        _ => url.to_owned(),
    };
    let (place, mut manner) = place_by(Protocol::Auto, &url);
    manner.provider = provider;
    if matches!(what, "primary" | "slots") {
        return primaries(&place, &manner).await.map(drop);
    }
    let server = net::Server::of(&place, &Rc::new(manner.plain(false)));
    let asking = match what {
        "tools" => net::Asking::keeper(server),
        _ => net::Asking::plain(server),
    };
    let connected = Asking::connect(asking, &manner).await?;
    if what == "inline" {
        connected.into_blocking().unwrap();
    }
    Ok(())
}

fn inspect(text: &str) -> Op {
    Op::Inspect {
        name: name(text),
        kind: Kind::Reentrant,
        what: Inspection::Owners,
    }
}

fn acquire(text: &str) -> Op {
    Op::Acquire(Acquire::of(name(text), 1, Form::default(), LEASE))
}

fn signal(server: &Server, signal: Signal) {
    kill(Pid::from_raw(server.pid().try_into().unwrap()), signal).unwrap();
}

fn command<T: redis::FromRedisValue>(server: &Server, words: &str) -> T {
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut command = redis::Cmd::new();
    command.arg(words).query(&mut server.connect()).unwrap()
}

// ---- driving the connections by hand ----

struct Rig {
    part: Net,
    news: News,
    /// Everything that was told, as text.
    past: Vec<String>,
}

impl Rig {
    fn new(protocol: Protocol, url: &str) -> Self {
        let (zero, level) = (Duration::ZERO, Level::Info);
        let (config, _) = Whole::config(protocol, url, PATIENCE, zero, level, true);
        let direct = Arc::new(InlineSlot::new(false));
        Rig {
            part: Net::new(&config, "uuid", direct),
            news: News::default(),
            past: Vec::new(),
        }
    }

    /// Everything that leads to a server.
    fn link(url: &str) -> Self {
        Rig::new(Protocol::Auto, url)
    }

    /// The same, connected.
    async fn up(url: &str) -> Self {
        Rig::up_by(Protocol::Auto, url).await
    }

    async fn up_by(protocol: Protocol, url: &str) -> Self {
        let mut rig = Rig::new(protocol, url);
        assert!(matches!(rig.next().await, Input::Up(_)), "{:?}", rig.past);
        rig
    }

    /// The same, with RESP2: channels have a connection of their own.
    async fn up_apart(url: &str) -> Self {
        let mut rig = Rig::up_by(Protocol::Resp2, url).await;
        let events: Vec<_> = rig.news.events.drain(..).map(|event| event.kind).collect();
        assert_eq!(events, ["untracked"]);
        rig
    }

    /// The next input, but for the identity that comes with a connection.
    async fn next(&mut self) -> Input {
        let late = clock::now().after(PATIENCE);
        loop {
            if !self.news.inputs.is_empty() {
                let input = self.news.inputs.remove(0);
                self.past.push(format!("{input:?}"));
                if matches!(input, Input::Identity(_)) {
                    continue;
                }
                return input;
            }
            let now = clock::now();
            assert!(now < late, "nothing came; before: {:?}", self.past);
            let due = self.part.next_wake().unwrap_or(late).min(late);
            let (part, news) = (&mut self.part, &mut self.news);
            let came = poll_fn(|cx| {
                part.poll(cx, news);
                let changed = part.next_wake().is_some_and(|at| at < due);
                if news.inputs.is_empty() && !changed {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            });
            let _ = tokio::time::timeout(now.until(due) + Duration::from_millis(1), came).await;
            self.part.wake(clock::now(), &mut self.news);
        }
    }

    /// Lets inputs pass until one fits.
    async fn until<T>(&mut self, fits: impl Fn(Input) -> Option<T>) -> T {
        loop {
            if let Some(found) = fits(self.next().await) {
                return found;
            }
        }
    }

    async fn down(&mut self) -> Error {
        self.until(|input| {
            if let Input::Down(_, error) = input {
                Some(error)
            } else {
                None
            }
        })
        .await
    }

    fn send(&mut self, call: u64, op: Op, limit: Duration) {
        let now = clock::now();
        self.part.send(now, call, op.into(), limit, &mut self.news);
    }

    async fn outcome(&mut self, wanted: u64) -> CallOutcome {
        self.until(|input| match input {
            Input::Outcome { call, outcome } if call == wanted => Some(outcome),
            _ => None,
        })
        .await
    }

    async fn ask(&mut self, call: u64, op: Op) -> CallOutcome {
        self.send(call, op, LIMIT);
        self.outcome(call).await
    }

    fn subscribe(&mut self, text: &str) {
        self.part.subscribe(clock::now(), name(text), Topic::Lock);
    }

    fn unsubscribe(&mut self, text: &str) {
        self.part
            .unsubscribe(clock::now(), &name(text), Topic::Lock);
    }

    async fn subscribed(&mut self, text: &str) {
        self.until(|input| {
            matches!(input, Input::Subscribed(name) if &*name == text).then_some(())
        })
        .await;
    }

    /// Whether a message is heard.
    async fn is_told(&mut self, server: &Server, text: &str) {
        assert_eq!(
            command::<i64>(
                server,
                &format!("PUBLISH {} 0", names::channel(Topic::Lock, text))
            ),
            1
        );
        self.until(|input| matches!(input, Input::Message(name) if &*name == text).then_some(()))
            .await;
    }
}

// ---- a network that fails ----

/// Passes connections on to a server; those that exist can be muted, as by a broken switch, or held
/// up.
struct Proxy {
    port: u16,
    line: Arc<Mutex<Arc<Line>>>,
    accepted: Arc<AtomicUsize>,
    /// How often something has been passed on, in either direction.
    passed: Arc<AtomicUsize>,
}

/// Common to all connections.
#[derive(Default)]
struct Line {
    mute: AtomicBool,
    /// A writer here holds up the bytes of the client.
    held: RwLock<()>,
    /// A writer here holds up the bytes of the server.
    answers: RwLock<()>,
}

impl Proxy {
    fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let line: Arc<Mutex<Arc<Line>>> = Arc::default();
        let (accepted, passed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (lines, count, passes) = (line.clone(), accepted.clone(), passed.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
                    return;
                };
                count.fetch_add(1, Ordering::SeqCst);
                let (client, line) = (client.unwrap(), lines.lock().unwrap().clone());
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                pass(up, down, line.clone(), false, passes.clone());
                pass(server, client, line, true, passes.clone());
            }
        });
        Proxy {
            port,
            line,
            accepted,
            passed,
        }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Nothing passes any more on the connections that exist; new ones work.
    fn mute(&self) {
        self.existing().mute.store(true, Ordering::SeqCst);
    }

    /// The connections that exist: later ones are on another line.
    fn existing(&self) -> Arc<Line> {
        std::mem::take(&mut *self.line.lock().unwrap())
    }
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    line: Arc<Line>,
    answers: bool,
    passed: Arc<AtomicUsize>,
) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(size @ 1..) = from.read(&mut buffer) {
            drop(line.held.read());
            drop(answers.then(|| line.answers.read()));
            if !line.mute.load(Ordering::SeqCst) && to.write_all(&buffer[..size]).is_err() {
                break;
            }
            passed.fetch_add(1, Ordering::SeqCst);
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

// ---- the command connection ----

#[tokio::test]
async fn calls_are_answered_and_unknown_scripts_sent_with_their_text() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    assert!(matches!(
        link.ask(1, inspect("n")).await,
        CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty()
    ));
    command::<()>(&server, "SCRIPT FLUSH");
    assert!(matches!(
        link.ask(2, inspect("n")).await,
        CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty()
    ));
    assert!(matches!(
        link.ask(3, inspect("n")).await,
        CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty()
    ));
    let stats: String = command(&server, "INFO commandstats");
    assert!(
        stats.contains("cmdstat_eval:calls=2,") && stats.contains("cmdstat_evalsha:calls=3,"),
        "{stats}"
    );
    let clients: String = command(&server, "CLIENT LIST");
    assert!(clients.contains("name=redlatch-test "), "{clients}");
}

#[tokio::test]
async fn many_calls_are_answered_in_order() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    // A script that the server does not know goes again, behind others.
    link.ask(5000, inspect("n")).await;
    (0..5000).for_each(|call| link.send(call, inspect("n"), PATIENCE));
    for expected in 0..5000 {
        let input = link.next().await;
        let Input::Outcome {
            call,
            outcome: CallOutcome::Answered(_),
        } = input
        else {
            panic!("{input:?}")
        };
        assert_eq!(call, expected);
    }
    assert!(link.part.is_idle());
}

/// On a connection that is new, as after a restart of the server, when all locks are renewed at
/// once.
#[tokio::test]
async fn calls_that_leave_together_carry_the_script_text_once() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    (0..8).for_each(|call| link.send(call, inspect("n"), PATIENCE));
    for expected in 0..8 {
        let input = link.next().await;
        let Input::Outcome {
            call,
            outcome: CallOutcome::Answered(_),
        } = input
        else {
            panic!("{input:?}")
        };
        assert_eq!(call, expected);
    }
    let stats: String = command(&server, "INFO commandstats");
    assert!(
        stats.contains("cmdstat_eval:calls=1,") && stats.contains("cmdstat_evalsha:calls=7,"),
        "{stats}"
    );
}

fn release(text: &str) -> Op {
    let form = Form::default();
    Op::Release(Release {
        ttl: LEASE,
        ..Release::of(name(text), 1, form)
    })
}

/// How many scripts the server was asked for, by hash and by text, those included that it did not
/// know or allow.
fn scripts(server: &Server) -> usize {
    let stats: String = command(server, "INFO commandstats");
    let counts = |line: &str, what: &str| {
        let (_, rest) = line.split_once(what)?;
        rest.split(',').next()?.trim().parse::<usize>().ok()
    };
    let asked = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"));
    asked
        .flat_map(|line| [counts(line, ":calls="), counts(line, "rejected_calls=")])
        .flatten()
        .sum()
}

impl Rig {
    /// Sends these in one turn; the outcomes in the order of the calls.
    async fn ask_all(&mut self, first: u64, ops: impl IntoIterator<Item = Op>) -> Vec<CallOutcome> {
        let last = ops.into_iter().fold(first, |call, op| {
            self.send(call, op, LIMIT);
            call + 1
        });
        let mut outcomes = std::collections::BTreeMap::new();
        while outcomes.len() < usize::try_from(last - first).unwrap() {
            let Input::Outcome { call, outcome } = self.next().await else {
                continue;
            };
            assert!(
                outcomes.insert(call, outcome).is_none(),
                "one outcome for each: {:?}",
                self.past
            );
        }
        outcomes.into_values().collect()
    }
}

fn is_acquired(outcome: &CallOutcome) -> bool {
    matches!(outcome, CallOutcome::Answered(Reply::Acquired { .. }))
}

fn is_released(outcome: &CallOutcome) -> bool {
    matches!(outcome, CallOutcome::Answered(Reply::Released(0)))
}

#[tokio::test]
async fn calls_that_leave_together_share_a_command() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    let names: Vec<String> = (0..40).map(|at| format!("n{at}")).collect();
    for round in 0..3 {
        let before = scripts(&server);
        // Unknown scripts are sent with their text, in the second round for the second time.
        if round == 1 {
            command::<()>(&server, "SCRIPT FLUSH");
        }
        assert!(
            link.ask_all(round * 100, names.iter().map(|name| acquire(name)))
                .await
                .iter()
                .all(is_acquired)
        );
        assert_eq!(command::<usize>(&server, "DBSIZE"), 40);
        assert!(
            link.ask_all(round * 100, names.iter().map(|name| release(name)))
                .await
                .iter()
                .all(is_released)
        );
        assert_eq!(command::<usize>(&server, "DBSIZE"), 0);
        let commands = scripts(&server) - before;
        assert!(
            commands <= if round < 2 { 12 } else { 6 },
            "{commands} commands for 80 calls"
        );
    }
    assert!(link.part.is_idle());
}

#[tokio::test]
async fn a_call_that_leaves_alone_is_a_single_one() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    let mixed = [acquire("a"), inspect("b"), release("c")];
    let outcomes = link.ask_all(1, mixed).await;
    assert!(is_acquired(&outcomes[0]), "{outcomes:?}");
    assert!(
        matches!(
            outcomes[2],
            CallOutcome::Answered(Reply::Gone(LostReason::Deleted))
        ),
        "{outcomes:?}"
    );
    assert_eq!(
        scripts(&server),
        4,
        "those that others follow with their texts; the last one by hash first"
    );
}

/// The calls for one lock are done in their order, whatever could be done together.
#[tokio::test]
async fn calls_for_one_lock_stay_in_order() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    for round in 0..3 {
        let ops = [
            acquire("a"),
            acquire("b"),
            inspect("a"),
            release("a"),
            release("b"),
            inspect("a"),
            acquire("a"),
        ];
        let outcomes = link
            .ask_all(round * 100, ops.into_iter().chain([release("a")]))
            .await;
        for (at, outcome) in outcomes.iter().enumerate() {
            let right = match at {
                0 | 1 | 6 => is_acquired(outcome),
                2 => {
                    matches!(outcome, CallOutcome::Answered(Reply::Holders(holders)) if !holders.is_empty())
                }
                5 => {
                    matches!(outcome, CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty())
                }
                _ => is_released(outcome),
            };
            assert!(right, "{at}: {outcomes:?}");
        }
    }
}

/// Each call of a shared command has its own outcome: what is odd is asked for alone.
#[tokio::test]
async fn one_odd_lock_does_not_touch_the_others_in_its_command() {
    let server = Server::start();
    command::<()>(&server, "SET b x");
    let mut link = Rig::up(&server.url()).await;
    for round in 0..2 {
        let outcomes = link
            .ask_all(round * 100, ["a", "b", "c"].map(acquire))
            .await;
        assert!(
            is_acquired(&outcomes[0]) && is_acquired(&outcomes[2]),
            "{outcomes:?}"
        );
        assert!(
            matches!(&outcomes[1], CallOutcome::Answered(Reply::Foreign(_))),
            "{outcomes:?}"
        );
        let outcomes = link
            .ask_all(round * 100 + 10, ["a", "b", "c"].map(release))
            .await;
        assert!(
            is_released(&outcomes[0]) && is_released(&outcomes[2]),
            "{outcomes:?}"
        );
        assert!(
            matches!(
                outcomes[1],
                CallOutcome::Answered(Reply::Gone(LostReason::Stolen))
            ),
            "{outcomes:?}"
        );
    }
}

/// The server refuses a command with a key that is not allowed as a whole; only that lock may
/// suffer.
#[tokio::test]
async fn a_lock_that_is_denied_does_not_touch_the_others() {
    let server = Server::start();
    command::<()>(&server, "ACL SETUSER app on >secret +@all &* ~a ~c");
    let mut link = Rig::up(&server.url().replace("redis://", "redis://app:secret@")).await;
    for round in 0..3 {
        let before = scripts(&server);
        let outcomes = link
            .ask_all(round * 100, ["a", "b", "c"].map(acquire))
            .await;
        assert!(
            is_acquired(&outcomes[0]) && is_acquired(&outcomes[2]),
            "{outcomes:?}"
        );
        let CallOutcome::Refused {
            error,
            passing: false,
        } = &outcomes[1]
        else {
            panic!("{outcomes:?}")
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let outcomes = link
            .ask_all(round * 100 + 10, ["a", "c"].map(release))
            .await;
        assert!(outcomes.iter().all(is_released), "{outcomes:?}");
        // Nothing is sent in vain for long.
        let commands = scripts(&server) - before;
        assert!(round < 2 || commands == 5, "{commands} commands");
    }
}

/// A server that has become a replica has done nothing of a command, and is left.
#[tokio::test]
async fn calls_in_a_command_to_a_replica_are_refused_for_the_time_being() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    for (round, ops) in [["a", "b", "c"].map(acquire), ["a", "b", "c"].map(release)]
        .into_iter()
        .enumerate()
    {
        assert!(
            link.ask_all(round as u64 * 100, ["a", "b", "c"].map(acquire))
                .await
                .iter()
                .all(is_acquired)
        );
        // Nobody answers at this address: the server stays a replica with the data it has.
        command::<()>(&server, "REPLICAOF 127.0.0.1 1");
        let outcomes = link.ask_all(round as u64 * 100 + 10, ops).await;
        let refused = |outcome: &CallOutcome| {
            matches!(
                outcome,
                CallOutcome::Refused { passing: true, .. } | CallOutcome::Unanswered
            )
        };
        assert!(outcomes.iter().all(refused), "{outcomes:?}");
        assert!(
            matches!(&outcomes[0], CallOutcome::Refused { .. }),
            "{outcomes:?}"
        );
        link.until(|input| matches!(input, Input::Up(_)).then_some(()))
            .await;
        assert_eq!(command::<usize>(&server, "DBSIZE"), 3, "nothing was done");
        command::<()>(&server, "REPLICAOF NO ONE");
    }
}

#[tokio::test]
async fn calls_in_a_command_on_a_connection_that_breaks_stay_unanswered() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    signal(&server, Signal::SIGSTOP);
    ["a", "b", "c"]
        .into_iter()
        .enumerate()
        .for_each(|(at, name)| link.send(at as u64, acquire(name), PATIENCE));
    let never = tokio::time::timeout(Duration::from_millis(50), link.next()).await;
    assert!(never.is_err(), "{never:?}");
    drop(server);
    assert!(
        matches!(link.next().await, Input::Down(..)),
        "{:?}",
        link.past
    );
    for expected in 0..3 {
        let input = link.next().await;
        assert!(
            matches!(input, Input::Outcome { call, outcome: CallOutcome::Unanswered } if call == expected),
            "{input:?}"
        );
    }
}

#[tokio::test]
async fn calls_in_a_command_that_is_late_are_told_once() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    // The connection is given up when it was silent for twice as long.
    let limit = Duration::from_secs(2);
    signal(&server, Signal::SIGSTOP);
    ["a", "b"]
        .into_iter()
        .enumerate()
        .for_each(|(at, name)| link.send(at as u64, acquire(name), limit));
    for expected in 0..2 {
        let input = link.next().await;
        assert!(
            matches!(input, Input::Outcome { call, outcome: CallOutcome::Unanswered } if call == expected),
            "{input:?}"
        );
    }
    signal(&server, Signal::SIGCONT);
    // The late copies do nothing, as single ones.
    assert!(
        is_acquired(&link.ask(5, acquire("c")).await),
        "{:?}",
        link.past
    );
    assert_eq!(command::<usize>(&server, "DBSIZE"), 1);
    let told = link
        .past
        .iter()
        .filter(|input| input.contains("Outcome {"))
        .count();
    assert_eq!(told, 3, "{:?}", link.past);
}

#[tokio::test]
async fn nothing_is_sent_without_a_connection() {
    let mut link = Rig::link("redis://127.0.0.1:1/");
    assert!(matches!(
        link.ask(1, inspect("n")).await,
        CallOutcome::NotSent
    ));
}

#[tokio::test]
async fn a_closed_port_is_told_with_its_address_and_tried_again() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let mut link = Rig::link(&format!("redis://:geheim@{closed}/"));
    for _ in 0..3 {
        let error = link.down().await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(&closed.to_string()), "{error}");
        assert!(!error.message().contains("geheim"), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_as_such() {
    let server = Server::start_with(&["--requirepass", "right"]);
    for (user, kind) in [
        (":falsch@", ErrorKind::Auth),
        ("eve:falsch@", ErrorKind::Auth),
        ("", ErrorKind::Auth),
    ] {
        let mut link = Rig::link(&server.url().replace("redis://", &format!("redis://{user}")));
        let error = link.down().await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(
            error.message().contains(&server.port().to_string()),
            "{error}"
        );
        assert!(!error.message().contains("falsch"), "{error}");
    }
    Rig::up(&server.url().replace("redis://", "redis://:right@")).await;
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut link = Rig::link(&format!("redis://{}/", listener.local_addr().unwrap()));
    let begun = clock::now();
    let error = link.down().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("no answer"), "{error}");
    assert!(begun.until(clock::now()) >= LIMIT);
}

#[tokio::test]
async fn a_server_that_hangs_up_is_not_asked_in_a_loop() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut link = Rig::link(&format!("redis://{}/", listener.local_addr().unwrap()));
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let begun = clock::now();
    for _ in 0..6 {
        assert_eq!(link.down().await.kind(), ErrorKind::Unavailable);
    }
    // At once, then after 50, 100, 200, 400 and 500 ms, less jitter of up to one half.
    assert!(begun.until(clock::now()) >= Duration::from_millis(625));
}

#[tokio::test]
async fn a_killed_connection_is_made_anew() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    for call in 0..3 {
        command::<i64>(&server, "CLIENT KILL TYPE normal");
        assert_eq!(link.down().await.kind(), ErrorKind::Unavailable);
        link.until(|input| matches!(input, Input::Up(_)).then_some(()))
            .await;
        assert!(matches!(
            link.ask(call, inspect("n")).await,
            CallOutcome::Answered(_)
        ));
    }
}

#[tokio::test]
async fn a_call_on_a_connection_that_breaks_stays_unanswered() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    signal(&server, Signal::SIGSTOP);
    link.send(1, acquire("n"), PATIENCE);
    let never = tokio::time::timeout(Duration::from_millis(50), link.next()).await;
    assert!(never.is_err(), "{never:?}");
    drop(server);
    assert!(
        matches!(link.next().await, Input::Down(..)),
        "{:?}",
        link.past
    );
    assert!(matches!(
        link.next().await,
        Input::Outcome {
            call: 1,
            outcome: CallOutcome::Unanswered
        }
    ));
}

#[tokio::test]
async fn a_silent_connection_is_replaced_by_one_that_works() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let mut link = Rig::up(&proxy.url()).await;
    proxy.mute();
    let limit = Duration::from_millis(300);
    let begun = clock::now();
    link.send(1, acquire("n"), limit);
    assert!(matches!(link.outcome(1).await, CallOutcome::Unanswered));
    assert!(begun.until(clock::now()) >= limit);
    let error = link.down().await;
    assert!(error.message().contains("silent"), "{error}");
    assert!(begun.until(clock::now()) >= limit * 2);
    link.until(|input| matches!(input, Input::Up(_)).then_some(()))
        .await;
    assert!(matches!(
        link.ask(2, inspect("n")).await,
        CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty()
    ));
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_stopped_server_that_goes_on_is_found_again() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    signal(&server, Signal::SIGSTOP);
    link.send(1, inspect("n"), Duration::from_millis(50));
    assert!(link.down().await.message().contains("silent"));
    // The kernel still takes connections for it; they get no answer.
    assert!(link.down().await.message().contains("no answer"));
    signal(&server, Signal::SIGCONT);
    link.until(|input| matches!(input, Input::Up(_)).then_some(()))
        .await;
    assert!(matches!(
        link.ask(2, inspect("n")).await,
        CallOutcome::Answered(_)
    ));
}

#[tokio::test]
async fn a_slow_server_keeps_its_connection() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    signal(&server, Signal::SIGSTOP);
    link.send(1, inspect("n"), LIMIT);
    assert!(matches!(
        link.next().await,
        Input::Outcome {
            call: 1,
            outcome: CallOutcome::Unanswered
        }
    ));
    signal(&server, Signal::SIGCONT);
    // The late reply is heard, not told: the next news is about the next call.
    link.send(2, inspect("n"), PATIENCE);
    let next = link.next().await;
    assert!(
        matches!(
            next,
            Input::Outcome {
                call: 2,
                outcome: CallOutcome::Answered(_)
            }
        ),
        "{next:?}"
    );
}

#[tokio::test]
async fn changes_by_others_are_told() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    let invalidated = |input| {
        if let Input::Invalidated(names) = input {
            Some(names)
        } else {
            None
        }
    };
    assert!(matches!(
        link.ask(1, acquire("n")).await,
        CallOutcome::Answered(Reply::Acquired { .. })
    ));
    command::<i64>(&server, "DEL n");
    assert_eq!(link.until(invalidated).await, Some(vec![name("n")]));
    // Again after a reconnect, and for everything.
    command::<i64>(&server, "CLIENT KILL TYPE normal");
    link.until(|input| matches!(input, Input::Up(_)).then_some(()))
        .await;
    assert!(matches!(
        link.ask(2, acquire("n")).await,
        CallOutcome::Answered(Reply::Acquired { .. })
    ));
    command::<()>(&server, "FLUSHALL");
    assert_eq!(link.until(invalidated).await, None);
}

#[tokio::test]
async fn a_server_that_does_not_track_for_us_will_do() {
    let server = Server::start();
    for (user, denied) in [("tina", "-client +client|setname"), ("nora", "-client")] {
        command::<()>(
            &server,
            &format!("ACL SETUSER {user} on >geheim ~* &* +@all {denied}"),
        );
        let mut link = Rig::up(
            &server
                .url()
                .replace("redis://", &format!("redis://{user}:geheim@")),
        )
        .await;
        assert!(matches!(
            link.ask(1, inspect("n")).await,
            CallOutcome::Answered(Reply::Holders(holders)) if holders.is_empty()
        ));
        let [event] = &link.news.events[..] else {
            panic!("{:?}", link.news.events)
        };
        assert_eq!((event.kind, event.level), ("untracked", Level::Debug));
        // Before Redis 7 the refusal names the command only.
        assert!(
            event.text.contains("NOPERM") && event.text.contains("client"),
            "{}",
            event.text
        );
    }
}

#[tokio::test]
async fn a_server_without_resp3_will_do() {
    let server = Server::start_with(&["--requirepass", "geheim", "--rename-command", "HELLO", ""]);
    let error = Rig::link(&server.url().replace("redis://", "redis://:falsch@"))
        .down()
        .await;
    assert_eq!(error.kind(), ErrorKind::Auth);
    assert!(!error.message().contains("falsch"), "{error}");
    let url = server.url().replace("redis://", "redis://:geheim@");
    let mut link = Rig::up(&url).await;
    assert!(
        link.news.events[0].text.contains("RESP2"),
        "{:?}",
        link.news.events
    );
    assert!(matches!(
        link.ask(1, acquire("n")).await,
        CallOutcome::Answered(Reply::Acquired { .. })
    ));
    // Nobody tells that this connection has gone; the next call finds out.
    let mut other = redis::Client::open(url).unwrap().get_connection().unwrap();
    redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .exec(&mut other)
        .unwrap();
    link.send(2, inspect("n"), PATIENCE);
    assert!(
        matches!(link.next().await, Input::Down(..)),
        "{:?}",
        link.past
    );
    assert!(matches!(
        link.next().await,
        Input::Outcome {
            call: 2,
            outcome: CallOutcome::Unanswered
        }
    ));
    assert!(matches!(link.next().await, Input::Up(_)), "{:?}", link.past);
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_the_time_is_told() {
    let server = Server::start();
    command::<()>(&server, "ACL SETUSER theo on >geheim ~* &* +@all -time");
    let mut link = Rig::link(&server.url().replace("redis://", "redis://theo:geheim@"));
    assert_eq!(link.down().await.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_replica_is_left_to_look_for_the_primary() {
    let server = Server::start();
    let mut link = Rig::up(&server.url()).await;
    command::<()>(&server, "REPLICAOF 127.0.0.1 1");
    let outcome = link.ask(1, acquire("n")).await;
    assert!(
        matches!(outcome, CallOutcome::Refused { passing: true, .. }),
        "{outcome:?}"
    );
    assert!(link.down().await.message().contains("replica"));
    command::<()>(&server, "REPLICAOF NO ONE");
    link.until(|input| matches!(input, Input::Up(_)).then_some(()))
        .await;
    assert!(matches!(
        link.ask(2, acquire("n")).await,
        CallOutcome::Answered(Reply::Acquired { .. })
    ));
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_told() {
    let server = Server::start();
    let error = Rig::link(&format!("{}99", server.url())).down().await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("DB index"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let server = Server::start();
    let mut link = Rig::up(&format!("unix://{}", server.socket().display())).await;
    assert!(matches!(
        link.ask(1, inspect("n")).await,
        CallOutcome::Answered(_)
    ));
}

// ---- the addresses of a host, and a system that has nothing left ----

/// Lets this name lead to these servers.
fn lead(name: &str, servers: &[&Server]) {
    let at = |server: &&Server| (Ipv4Addr::LOCALHOST, server.port()).into();
    let found = servers.iter().map(at).collect();
    HOSTS.lock().unwrap().insert(name.to_owned(), found);
}

/// The look-up of a name panicked where the system had no thread, and ended the client.
#[tokio::test]
async fn a_moment_without_threads_is_an_outage_that_ends() {
    let server = Server::start();
    let by_name = format!("redis://localhost:{}/", server.port());
    let mut link = Rig::up(&by_name).await;
    REFUSED.set(Some(nix::errno::Errno::EAGAIN as i32));
    command::<i64>(&server, "CLIENT KILL TYPE normal");
    link.down().await;
    let error = link.down().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("raise the limits"), "{error}");
    let direct = asking("inline", &server.url()).await;
    assert!(direct.is_ok(), "the direct connection needs no thread");
    REFUSED.set(None);
    link.until(|input| matches!(input, Input::Up(_)).then_some(()))
        .await;
}

#[test]
fn a_call_that_was_left_is_settled_without_a_thread_for_it() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    let (call, answers) = begun_inline(&whole);
    REFUSED.set(Some(nix::errno::Errno::EAGAIN as i32));
    LateCalls::default().wait(Box::new(call));
    REFUSED.set(None);
    granted(answers.recv_timeout(PATIENCE).unwrap());
}

#[tokio::test]
async fn the_next_address_of_a_name_is_tried_where_one_leads_to_a_replica() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    for replica in &servers[..2] {
        command::<()>(replica, "REPLICAOF 127.0.0.1 1");
    }
    lead("headless.test", &servers.iter().collect::<Vec<_>>());
    let mut link = Rig::up("redis://headless.test/").await;
    for call in 0.. {
        match link.ask(call, acquire("n")).await {
            CallOutcome::Answered(Reply::Acquired { .. }) => break,
            outcome => assert!(call < 3, "each is tried once: {outcome:?}"),
        }
        assert!(link.down().await.message().contains("replica"));
        link.until(|input| matches!(input, Input::Up(_)).then_some(()))
            .await;
    }
}

/// A release of a good hold went to a server that never had it.
#[test]
fn all_connections_lead_to_one_server_also_when_the_name_moves() {
    let (server, other) = (Server::start(), Server::start());
    lead("moving.test", &[&server]);
    let whole = Whole::start("redis://moving.test/");
    whole.ask(9_999, Request::Connect).unwrap();
    lead("moving.test", &[&other]);
    let (mut call, answers) = begun_inline(&whole);
    call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
    granted(answers.recv_timeout(PATIENCE).unwrap());
    assert_eq!(command::<i64>(&server, "EXISTS n"), 1);
    let seen: String = command(&other, "CLIENT LIST");
    assert_eq!(seen.lines().count(), 1, "only we ask: {seen}");
}

/// A TLS port, or a proxy that does not know the commands.
#[tokio::test]
async fn a_server_that_closes_when_it_is_spoken_to_is_said_to_do_that() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut link = Rig::link(&format!("redis://{}/", listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let _ = client.unwrap().read(&mut [0]);
        }
    });
    let error = link.down().await;
    let text = error.message();
    assert!(
        text.contains("rediss://") && text.contains("twemproxy"),
        "{text}"
    );
}

// ---- the pub/sub connection ----

#[tokio::test]
async fn messages_come_from_wanted_channels() {
    let server = Server::start();
    let mut part = Rig::up_apart(&server.url()).await;
    for text in ["one", "two"] {
        part.subscribe(text);
        part.subscribed(text).await;
    }
    for text in ["two", "one"] {
        assert_eq!(
            command::<i64>(
                &server,
                &format!("PUBLISH {} 0", names::channel(Topic::Lock, text))
            ),
            1
        );
        let next = part.next().await;
        assert!(
            matches!(&next, Input::Message(name) if &**name == text),
            "{next:?}"
        );
    }
}

/// The later of them took the messages of the earlier one, and when it left, neither was told
/// anything.
#[tokio::test]
async fn names_that_share_a_channel_are_both_told_until_the_last_one_leaves() {
    let server = Server::start();
    let mut part = Rig::up_apart(&server.url()).await;
    let channel = names::channel(Topic::Lock, "a");
    assert_eq!(channel, names::channel(Topic::Lock, "{a}"));
    for text in ["a", "{a}"] {
        part.subscribe(text);
        part.subscribed(text).await;
    }
    assert_eq!(command::<i64>(&server, &format!("PUBLISH {channel} 0")), 1);
    for text in ["a", "{a}"] {
        let next = part.next().await;
        assert!(
            matches!(&next, Input::Message(name) if &**name == text),
            "{next:?}"
        );
    }
    part.unsubscribe("{a}");
    part.subscribe("other");
    part.subscribed("other").await;
    assert_eq!(command::<i64>(&server, &format!("PUBLISH {channel} 0")), 1);
    let next = part.next().await;
    assert!(
        matches!(&next, Input::Message(name) if &**name == "a"),
        "{next:?}"
    );
    part.unsubscribe("a");
    part.subscribe("last");
    part.subscribed("last").await;
    assert_eq!(command::<i64>(&server, &format!("PUBLISH {channel} 0")), 0);
}

/// Also behind a log-in and a database, and by a Unix socket.
#[tokio::test]
async fn the_connection_for_messages_has_the_name_of_the_client() {
    let server = Server::start();
    command::<()>(&server, "ACL SETUSER hans on >geheim ~* &* +@all");
    let url = server.url().replace("redis://", "redis://hans:geheim@");
    for url in [
        server.url(),
        format!("{url}1"),
        format!("unix://{}", server.socket().display()),
    ] {
        let mut part = Rig::up_apart(&url).await;
        part.subscribe("n");
        part.subscribed("n").await;
        let clients: String = command(&server, "CLIENT LIST");
        let listens =
            |line: &&str| line.contains(" sub=1 ") && line.contains(" name=redlatch-test ");
        assert_eq!(
            clients.lines().filter(listens).count(),
            1,
            "{url}: {clients}"
        );
    }
    let wrong = server.url().replace("redis://", "redis://hans:falsch@");
    let error = Rig::new(Protocol::Resp2, &wrong).down().await;
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}

/// On connections that begin with their name it is this command that gets to hear of it.
#[tokio::test]
async fn a_connection_for_which_the_server_has_no_place_is_not_taken_for_one() {
    let server = Server::start();
    let mut looks = server.connect();
    redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", "1"])
        .exec(&mut looks)
        .unwrap();
    for what in ["commands", "tools", "inline"] {
        let refused = match what {
            "commands" => Some(Rig::new(Protocol::Resp2, &server.url()).down().await),
            what => asking(what, &server.url()).await.err(),
        };
        let error = refused.unwrap_or_else(|| panic!("a connection for {what}"));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("maxclients"), "{what}: {error}");
    }
}

/// It says so before it is asked, and is gone.
#[tokio::test]
async fn a_server_that_turns_clients_away_is_heard_however_soon_it_is_gone() {
    let full = (
        "ERR max number of clients reached",
        ErrorKind::Unavailable,
        "raise maxclients",
    );
    let guarded = (
        "DENIED Redis is running in protected mode",
        ErrorKind::Server,
        "set a password there",
    );
    for (said, kind, remedy) in [full, guarded] {
        let server = Saying::start(said);
        let port = server.port;
        for user in ["", ":geheim@"] {
            let url = format!("redis://{user}127.0.0.1:{port}/");
            for protocol in [Protocol::Auto, Protocol::Resp2, Protocol::Resp3] {
                let error = Rig::new(protocol, &url).down().await;
                let about = format!("{url} {protocol:?}: {error}");
                assert_eq!(error.kind(), kind, "{about}");
                let text = error.message();
                assert!(text.contains(said) && text.contains(remedy), "{about}");
            }
            for what in ["tools", "inline", "primary", "slots"] {
                let error = asking(what, &url).await.unwrap_err();
                let about = format!("{url} {what}: {error}");
                assert_eq!(error.kind(), kind, "{about}");
                let text = error.message();
                assert!(text.contains(said) && text.contains(remedy), "{about}");
            }
        }
    }
}

/// A server that says one thing to each client, and hangs up.
struct Saying {
    port: u16,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Saying {
    fn start(said: &'static str) -> Saying {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        // Nobody reads what the client has sent: the end of the connection is a reset.
        let thread = std::thread::spawn(move || {
            while let Ok((mut client, _)) = listener.accept()
                && !ends.load(Ordering::Acquire)
            {
                let _ = client.write_all(format!("-{said}\r\n").as_bytes());
            }
        });
        Saying {
            port,
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Saying {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Gives this password at first, and then another one.
fn provider(first: &'static str, then: &'static str) -> (Provider, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let count = asked.clone();
    let provider = Provider::new(move || {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let password = if number == 0 { first } else { then };
        Ok(Credentials::new("hans", password))
    });
    (provider, asked)
}

/// There may be another password by then.
#[tokio::test]
async fn a_provider_is_asked_again_only_if_the_log_in_is_refused() {
    for (said, times, kind) in [
        (
            "WRONGPASS invalid username-password pair",
            2,
            ErrorKind::Auth,
        ),
        ("NOAUTH Authentication required.", 2, ErrorKind::Auth),
        ("ERR invalid password", 2, ErrorKind::Auth),
        (
            "ERR max number of clients reached",
            1,
            ErrorKind::Unavailable,
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            1,
            ErrorKind::Server,
        ),
    ] {
        let server = Saying::start(said);
        let url = format!("redis://127.0.0.1:{}/", server.port);
        for what in ["tools", "inline", "slots"] {
            for then in ["another", "geheim"] {
                let (provider, asked) = provider("geheim", then);
                let error = asking_by(what, &url, Some(provider)).await.unwrap_err();
                let about = format!("{what}, {then}: {error}");
                assert_eq!(error.kind(), kind, "{about}");
                assert_eq!(asked.load(Ordering::SeqCst), times, "{about}");
                assert!(!format!("{error}{error:?}").contains("geheim"), "{error}");
            }
        }
    }
    let server = Server::start();
    command::<()>(&server, "ACL SETUSER hans on >geheim ~* &* +@all");
    for what in ["tools", "inline"] {
        let (provider, asked) = provider("falsch", "geheim");
        asking_by(what, &server.url(), Some(provider))
            .await
            .unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "{what}");
    }
}

/// With HELLO, which clients send, the server takes it as well.
#[tokio::test]
async fn a_password_that_the_server_does_not_need_harms_nobody() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis://:geheim@");
    let _part = Rig::up_by(Protocol::Resp2, &url).await;
    for what in ["tools", "inline"] {
        asking(what, &url).await.map(drop).unwrap();
    }
}

#[tokio::test]
async fn channels_are_subscribed_again_after_a_gap() {
    let server = Server::start();
    let mut part = Rig::up_apart(&server.url()).await;
    part.subscribe("one");
    part.subscribe("two");
    part.subscribe("gone");
    part.subscribed("gone").await;
    part.unsubscribe("gone");
    for _ in 0..3 {
        command::<i64>(&server, "CLIENT KILL TYPE pubsub");
        let mut names = [part.next().await, part.next().await].map(|input| match input {
            Input::Subscribed(name) => name.to_string(),
            other => panic!("{other:?}"),
        });
        names.sort();
        assert_eq!(names, ["one", "two"]);
    }
    assert_eq!(
        command::<i64>(
            &server,
            &format!("PUBLISH {} 0", names::channel(Topic::Lock, "gone"))
        ),
        0
    );
}

#[tokio::test]
async fn changes_of_mind_end_as_they_were_meant() {
    let server = Server::start();
    let mut part = Rig::up_apart(&server.url()).await;
    for _ in 0..500 {
        part.subscribe("kept");
        part.subscribe("left");
        part.unsubscribe("left");
        part.unsubscribe("kept");
    }
    part.subscribe("kept");
    part.subscribe("last");
    part.subscribed("last").await;
    for (text, receivers) in [("kept", 1), ("left", 0)] {
        assert_eq!(
            command::<i64>(
                &server,
                &format!("PUBLISH {} 0", names::channel(Topic::Lock, text))
            ),
            receivers,
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_channel_that_is_denied_is_told_once_and_harms_no_other() {
    let server = Server::start();
    command::<()>(
        &server,
        &format!(
            "ACL SETUSER hans on >geheim ~* resetchannels &{} +@all",
            names::channel(Topic::Lock, "free")
        ),
    );
    let mut part = Rig::up_apart(&server.url().replace("redis://", "redis://hans:geheim@")).await;
    ["denied", "free"]
        .into_iter()
        .for_each(|text| part.subscribe(text));
    let mut heard = [part.next().await, part.next().await].map(|input| match input {
        Input::Subscribed(name) => format!("{name} subscribed"),
        Input::Unsubscribable(name, error) => format!("{name} {}", error.kind()),
        other => panic!("{other:?}"),
    });
    heard.sort();
    assert_eq!(heard, ["denied denied", "free subscribed"]);
    assert_eq!(
        command::<i64>(
            &server,
            &format!("PUBLISH {} 0", names::channel(Topic::Lock, "free"))
        ),
        1
    );
    assert!(
        matches!(part.next().await, Input::Message(_)),
        "{:?}",
        part.past
    );
}

#[tokio::test]
async fn a_silent_pubsub_connection_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let mut part = Rig::up_apart(&proxy.url()).await;
    part.subscribe("early");
    part.subscribed("early").await;
    // Nothing is asked of it: only the question whether it is there can find out.
    proxy.mute();
    part.subscribed("early").await;
    assert_eq!(part.news.events.len(), 1, "{:?}", part.news.events);
    // Something is asked of it.
    proxy.mute();
    part.subscribe("late");
    part.subscribed("late").await;
    // That for commands is not asked anything.
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 4);
}

// ---- messages on the connection for commands ----

#[tokio::test]
async fn messages_come_on_the_connection_for_commands_if_that_takes_them() {
    for (protocol, connections) in [(Protocol::Auto, 1), (Protocol::Resp2, 2)] {
        let server = Server::start();
        let mut net = Rig::up_by(protocol, &server.url()).await;
        net.subscribe("n");
        net.subscribed("n").await;
        net.is_told(&server, "n").await;
        let clients: String = command(&server, "CLIENT LIST");
        assert_eq!(
            clients.matches(" name=redlatch-test ").count(),
            connections,
            "{clients}"
        );
        net.part.unsubscribe(clock::now(), &name("n"), Topic::Lock);
        net.subscribe("last");
        net.subscribed("last").await;
        assert_eq!(
            command::<i64>(
                &server,
                &format!("PUBLISH {} 0", names::channel(Topic::Lock, "n"))
            ),
            0
        );
    }
}

#[tokio::test]
async fn channels_are_subscribed_again_on_the_next_connection_for_commands() {
    let server = Server::start();
    let mut net = Rig::up(&server.url()).await;
    net.subscribe("n");
    net.subscribed("n").await;
    for _ in 0..3 {
        assert_eq!(command::<i64>(&server, "CLIENT KILL TYPE pubsub"), 1);
        net.down().await;
        // It is wanted from the next one on, and not on one of its own meanwhile.
        net.subscribe("late");
        net.subscribed("n").await;
        net.is_told(&server, "late").await;
        let events: Vec<_> = net.news.events.drain(..).map(|event| event.kind).collect();
        assert_eq!(events, ["unsubscribed"]);
    }
    assert_eq!(
        command::<String>(&server, "CLIENT LIST")
            .matches(" name=redlatch-test ")
            .count(),
        1
    );
}

/// Nobody is woken by messages that are of no use yet; all of them count.
#[tokio::test]
async fn messages_that_may_wait_come_with_the_next_one() {
    let server = Server::start();
    let mut net = Rig::up(&server.url()).await;
    net.subscribe("n");
    net.subscribed("n").await;
    let publish = || {
        command::<i64>(
            &server,
            &format!("PUBLISH {} 0", names::channel(Topic::Lock, "n")),
        )
    };
    for _ in 0..2 {
        net.part
            .threshold()
            .expect("one for both")
            .skip(Some((&name("n"), 2)));
        assert_eq!((publish(), publish()), (1, 1));
        let early = tokio::time::timeout(Duration::from_millis(300), net.next()).await;
        assert!(early.is_err(), "{early:?}");
        publish();
        for _ in 0..3 {
            assert!(
                matches!(net.next().await, Input::Message(_)),
                "{:?}",
                net.past
            );
        }
    }
    // As soon as everything is of use, what has come is heard.
    publish();
    net.part.threshold().expect("one for both").skip(None);
    assert!(
        matches!(net.next().await, Input::Message(_)),
        "{:?}",
        net.past
    );
    // The end of the connection always is.
    net.part
        .threshold()
        .expect("one for both")
        .skip(Some((&name("n"), 9)));
    command::<i64>(&server, "CLIENT KILL TYPE pubsub");
    net.down().await;
    net.subscribed("n").await;
    net.is_told(&server, "n").await;
}

/// That for calls which wait for replicas may lead to a primary that was replaced, and be granted a
/// lock by it.
#[tokio::test]
async fn both_connections_to_a_server_are_made_anew_together() {
    let server = Server::start();
    let mut net = Rig::up(&server.url()).await;
    let mut op = acquire("n");
    if let Op::Acquire(Acquire { replicas, .. }) = &mut op {
        *replicas = 1;
    }
    // There is no replica: half of its time is waited for one.
    net.send(1, op, PATIENCE);
    let clients = loop {
        let clients: String = command(&server, "CLIENT LIST");
        if clients.contains(" cmd=wait ") {
            break clients;
        }
        let _ = tokio::time::timeout(Duration::from_millis(10), net.next()).await;
    };
    let first = clients
        .lines()
        .find(|line| line.contains(" name=redlatch-test "))
        .unwrap();
    let id = first
        .strip_prefix("id=")
        .and_then(|rest| rest.split(' ').next())
        .unwrap();
    command::<i64>(&server, &format!("CLIENT KILL ID {id}"));
    let outcome = net.until(|input| match input {
        Input::Outcome { call: 1, outcome } => Some(outcome),
        _ => None,
    });
    let outcome = tokio::time::timeout(PATIENCE / 4, outcome)
        .await
        .expect("it waits on");
    assert!(matches!(outcome, CallOutcome::Unanswered), "{outcome:?}");
}

#[tokio::test]
async fn a_connection_for_commands_that_brings_no_messages_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let mut net = Rig::up(&proxy.url()).await;
    net.subscribe("early");
    net.subscribed("early").await;
    // Nothing is asked of it: only the question whether it is there can find out.
    proxy.mute();
    net.down().await;
    net.subscribed("early").await;
    // A channel is asked for.
    proxy.mute();
    net.subscribe("late");
    net.down().await;
    net.subscribed("late").await;
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 3);
}

// ---- the whole ----

/// A sink that is a function.
struct Called<F>(Mutex<Option<F>>);

impl<F: FnOnce(Result<Done>) + Send> Sink for Called<F> {
    fn answer(&self, result: Result<Done>) {
        let answer = self.0.lock().unwrap().take().expect("called once");
        answer(result);
    }
}

fn called(answer: impl FnOnce(Result<Done>) + Send + 'static) -> Arc<dyn Sink> {
    Arc::new(Called(Mutex::new(Some(answer))))
}

struct Whole {
    handle: Handle,
    shared: Arc<Shared>,
}

impl Whole {
    fn start(url: &str) -> Whole {
        Whole::start_with(url, Duration::from_secs(5))
    }

    fn start_with(url: &str, recheck: Duration) -> Whole {
        Whole::start_by(url, recheck, Duration::ZERO, Level::Debug)
    }

    fn start_by(url: &str, recheck: Duration, linger: Duration, events: Level) -> Whole {
        Whole::start_as(url, recheck, linger, events, true)
    }

    fn start_as(
        url: &str,
        recheck: Duration,
        linger: Duration,
        events: Level,
        tracking: bool,
    ) -> Whole {
        Whole::start_at(Protocol::Auto, url, recheck, linger, events, tracking)
    }

    fn start_at(
        protocol: Protocol,
        url: &str,
        recheck: Duration,
        linger: Duration,
        events: Level,
        tracking: bool,
    ) -> Whole {
        let (config, shared) = Whole::config(protocol, url, recheck, linger, events, tracking);
        Whole {
            handle: Handle::start(config, shared.clone()).unwrap(),
            shared,
        }
    }

    fn config(
        protocol: Protocol,
        url: &str,
        recheck: Duration,
        linger: Duration,
        events: Level,
        tracking: bool,
    ) -> (DriverConfig, Arc<Shared>) {
        let shared = Arc::new(Shared {
            uuid: uuid::Uuid::new_v4().to_string(),
            counters: Arc::default(),
            ring: Ring::new(100, events),
            registry: Registry::default(),
            gates: ParkingGroups::default(),
            tasks: DeferredWakers::default(),
        });
        let handovers = (32, Duration::from_millis(50));
        let engine = Config {
            recheck,
            outage: Duration::from_secs(5),
            handovers,
            linger,
            least_limit: Duration::ZERO,
            renewals: redlatch_proto::tuning::RENEWALS_IN_FLIGHT,
            seed: 7,
            is_shared: |name, own| Arc::strong_count(name) > own,
        };
        let (place, manner) = place_by(protocol, url);
        let config = DriverConfig {
            place,
            manner,
            engine,
            tracking,
            pubsub: ClusterPubsub::Auto,
            direct: true,
        };
        (config, shared)
    }

    fn send(&self, id: RequestId, request: Request) -> mpsc::Receiver<Result<Done>> {
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        let _ = self.handle.request(id, request, sink, Way::IoThread);
        answers
    }

    /// Leaves a request to the I/O thread, which then calls the sink.
    fn leave(&self, id: RequestId, request: Request, sink: Arc<dyn Sink>) {
        let completion = Completer(Some(sink));
        let asked = PendingRequest {
            id,
            request,
            completion,
        };
        let kept = self
            .handle
            .session
            .machine
            .inbox
            .push(Message::Request(asked));
        assert!(kept.is_ok());
    }

    fn ask(&self, id: RequestId, request: Request) -> Result<Done> {
        self.send(id, request).recv_timeout(PATIENCE).unwrap()
    }

    fn grant(&self, id: RequestId, text: &str) -> (Arc<HoldCell>, u64) {
        granted(self.ask(id, request(text)))
    }

    /// The same by the calling thread, if it can.
    fn ask_by_caller(&self, id: RequestId, request: Request) -> Result<Done> {
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        if let Some(mut call) = self
            .handle
            .request(id, request, sink, Way::Blocking)
            .unwrap()
        {
            call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
        }
        answers.recv_timeout(PATIENCE).unwrap()
    }

    fn is_skipping(&self) -> bool {
        self.handle
            .session
            .machine
            .wreck()
            .threshold
            .as_ref()
            .is_some_and(|threshold| threshold.is_skipping())
    }

    /// When the thread wakes if nothing happens.
    fn wakes(&self) -> Option<Moment> {
        self.handle.session.machine.wreck().alarm.as_ref()?.at()
    }

    /// Whether nothing but a message wakes the thread for some time, and it need not be told of a
    /// few.
    fn rests(&self) -> bool {
        let soon = clock::now().after(Duration::from_millis(100));
        self.is_skipping() && self.wakes().is_none_or(|at| at > soon)
    }

    /// Waits for a lock that the other one holds, and hears of its release. It has the number
    /// of the other one's request as well, and the next one.
    fn wait_behind(
        &self,
        other: &Whole,
        server: &Server,
        id: RequestId,
        text: &str,
    ) -> (Arc<HoldCell>, u64) {
        let (cell, level) = other.grant(id, text);
        let before = scripts(server);
        let waiting = self.send(id, request(text));
        let late = clock::now().after(PATIENCE);
        while scripts(server) == before {
            assert!(clock::now() < late, "it does not try");
        }
        other
            .ask(
                id + 1,
                Request::Release(Target::Level {
                    owner: cell.owner,
                    level,
                }),
            )
            .unwrap();
        granted(waiting.recv_timeout(PATIENCE).unwrap())
    }

    /// A client that has waited for "n" behind another one, and hears of its releases. Its waiters
    /// look only when they are told to, and nobody wants events that its thread would be woken for.
    fn listening(server: &Server, other: &Whole) -> Whole {
        Whole::listening_at(&server.url(), server, other)
    }

    fn listening_at(url: &str, server: &Server, other: &Whole) -> Whole {
        let whole = Whole::start_by(url, PATIENCE * 10, PATIENCE * 10, Level::Info);
        let (cell, level) = whole.wait_behind(other, server, 1, "n");
        whole
            .ask(
                2,
                Request::Release(Target::Level {
                    owner: cell.owner,
                    level,
                }),
            )
            .unwrap();
        whole
    }

    /// Until it has released "n" directly, and has nothing else: it need not hear that. Returns the
    /// next free id.
    fn rest(&self, first: RequestId) -> RequestId {
        let late = clock::now().after(PATIENCE);
        for id in (first..).step_by(2) {
            let (cell, level) = granted(self.ask_by_caller(id, request("n")));
            let target = Target::Level {
                owner: cell.owner,
                level,
            };
            assert!(matches!(
                self.ask_by_caller(id + 1, Request::Release(target)),
                Ok(Done::Released)
            ));
            if self.rests() {
                return id + 2;
            }
            assert!(clock::now() < late, "no direct connection");
        }
        unreachable!("there are enough numbers")
    }

    /// Waits for an event of this kind.
    fn event(&self, kind: &str) -> Event {
        let late = clock::now().after(PATIENCE);
        while clock::now() < late {
            if let Some(event) = self
                .shared
                .ring
                .drain()
                .into_iter()
                .find(|event| event.kind == kind)
            {
                return event;
            }
            std::thread::yield_now();
        }
        panic!("no event {kind}");
    }

    fn has_ended(&self) -> bool {
        self.handle.join(PATIENCE);
        let message = Message::Tell(Input::KeyEnded(OwnerKey::Thread(0)));
        let refused = self.handle.session.submit(message, Way::IoThread);
        refused.is_err()
    }

    /// Which of the thread's descriptors callers have as well: its timer, and the socket of its
    /// connection.
    fn lends(&self) -> (bool, bool) {
        let state = self.handle.session.machine.wreck();
        (state.alarm.is_some(), state.threshold.is_some())
    }
}

fn granted(answer: Result<Done>) -> (Arc<HoldCell>, u64) {
    match answer.unwrap() {
        Done::Granted { cell, level } => (cell, level),
        other => panic!("{other:?}"),
    }
}

fn terms(kind: Kind) -> Terms {
    Terms {
        kind,
        reentrant: true,
        lease: Lease::Watchdog(LEASE),
        fencing: Fencing::Off,
        max_hold: None,
        replicas: 0,
        linger: false,
        tied: false,
        permits: 0,
        special: Special::NONE,
    }
}

fn request(text: &str) -> Request {
    Request::Acquire {
        name: name(text),
        key: OwnerKey::Once,
        wait: None,
        terms: terms(Kind::Reentrant),
        token: None,
    }
}

/// A multi lock of these names.
fn request_all(names: &[&str]) -> Request {
    let part = |text: &&str| Part {
        name: name(text),
        terms: terms(Kind::Reentrant),
    };
    Request::AcquireAll(AcquireAll {
        name: name(&names.join(", ")),
        parts: names.iter().map(part).collect(),
        needed: names.len(),
        key: OwnerKey::Once,
        wait: None,
        terms: terms(Kind::Multi),
    })
}

#[test]
fn a_lock_is_acquired_waited_for_released_and_closed() {
    let server = Server::start();
    let (first, second) = (Whole::start(&server.url()), Whole::start(&server.url()));
    assert!(matches!(
        first.ask(1, Request::Connect),
        Ok(Done::Connected)
    ));
    let (cell, level) = first.grant(2, "n");
    let waiting = second.send(1, request("n"));
    second.event("waiting");
    let release = Request::Release(Target::Level {
        owner: cell.owner,
        level,
    });
    assert!(matches!(first.ask(3, release), Ok(Done::Released)));
    assert!(matches!(
        waiting.recv_timeout(PATIENCE).unwrap(),
        Ok(Done::Granted { .. })
    ));
    assert!(
        matches!(second.ask(2, Request::Close { limit: LIMIT }), Ok(Done::Closed(left)) if left.is_empty())
    );
    assert!(second.has_ended());
    assert!(matches!(
        first.ask(
            4,
            Request::Force {
                name: name("n"),
                kind: Kind::Reentrant
            }
        ),
        Ok(Done::Forced(false))
    ));
    assert_eq!(
        (
            first.shared.counters.connects.get(),
            first.shared.counters.unanswered.get()
        ),
        (1, 0)
    );
}

#[test]
fn the_descriptors_of_a_thread_end_with_it() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    whole.grant(1, "n");
    assert_eq!(whole.lends(), (true, HAS_RECEIVE_MINIMUM));
    assert!(matches!(
        whole.ask(2, Request::Close { limit: LIMIT }),
        Ok(Done::Closed(_))
    ));
    assert!(whole.has_ended());
    assert_eq!(whole.lends(), (false, false));
    // Its waker keeps the descriptors of the runtime.
    assert!(!whole.handle.session.machine.inbox.has_waker());
}

#[test]
fn a_server_that_cannot_be_reached_is_told() {
    let whole = Whole::start("redis://127.0.0.1:1/");
    let error = whole.ask(1, Request::Connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn answers_that_came_during_a_pause_are_read_before_anything_is_given_up() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let whole = Whole::start(&proxy.url());
    whole
        .ask(
            1,
            Request::Inspect {
                name: name("n"),
                kind: Kind::Reentrant,
                what: Inspection::Owners,
            },
        )
        .unwrap();
    signal(&server, Signal::SIGSTOP);
    let before = proxy.passed.load(Ordering::SeqCst);
    let answer = whole.send(
        2,
        Request::Inspect {
            name: name("n"),
            kind: Kind::Reentrant,
            what: Inspection::Owners,
        },
    );
    while proxy.passed.load(Ordering::SeqCst) == before {
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(server.pid().try_into().unwrap());
    let pause = called(move |_| {
        kill(pid, Signal::SIGCONT).unwrap();
        // Longer than the call may take and than the connection may be silent.
        std::thread::sleep(Duration::from_millis(2500));
    });
    whole.leave(3, Request::Connect, pause);
    assert!(matches!(
        answer.recv_timeout(PATIENCE).unwrap(),
        Ok(Done::Inspected(holders)) if holders.is_empty()
    ));
    let counters = &whole.shared.counters;
    assert_eq!(
        (
            counters.connects.get(),
            counters.unanswered.get(),
            counters.calls.get()
        ),
        (1, 0, 2)
    );
}

#[test]
fn a_deleted_lock_is_told_at_once() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    let (cell, _) = whole.grant(1, "n");
    let (told, reasons) = mpsc::channel();
    watch(
        &cell,
        Watcher::Called(Box::new(|_| panic!("a watcher that panics harms no other"))),
    );
    watch(
        &cell,
        Watcher::Called(Box::new(move |reason| told.send(reason).unwrap())),
    );
    command::<i64>(&server, "DEL n");
    assert_eq!(reasons.recv_timeout(PATIENCE), Ok(LostReason::Deleted));
}

/// Sooner than by a renewal. Each round may be done by the calling thread or by the client's.
#[test]
fn a_client_at_rest_hears_everything_again_as_soon_as_it_has_something() {
    let server = Server::start();
    let other = Whole::start(&server.url());
    let whole = Whole::listening(&server, &other);
    let mut id = 10;
    for round in 0..20 {
        id = whole.rest(id) + 3;
        let text = format!("m{round}");
        let (cell, level) = granted(whole.ask_by_caller(id - 3, request(&text)));
        assert!(!whole.is_skipping());
        let (told, reasons) = mpsc::channel();
        watch(
            &cell,
            Watcher::Called(Box::new(move |reason| told.send(reason).unwrap())),
        );
        command::<i64>(&server, &format!("DEL {text}"));
        assert_eq!(reasons.recv_timeout(LEASE / 4), Ok(LostReason::Deleted));
        whole
            .ask(
                id - 2,
                Request::Release(Target::Level {
                    owner: cell.owner,
                    level,
                }),
            )
            .unwrap_err();
    }
    whole.wait_behind(&other, &server, whole.rest(id), "n");
}

#[test]
fn a_client_at_rest_hears_the_end_of_its_connection() {
    let server = Server::start();
    let other = Whole::start(&server.url());
    let whole = Whole::listening(&server, &other);
    let id = whole.rest(10);
    command::<i64>(&server, "CLIENT KILL TYPE pubsub");
    whole.event("unsubscribed");
    let late = clock::now().after(PATIENCE);
    while whole.shared.counters.connects.get() < 2 {
        assert!(clock::now() < late, "it is not made anew");
        std::thread::yield_now();
    }
    whole.wait_behind(&other, &server, id, "n");
}

/// A lock that a caller has acquired himself is to be looked at soon, of which the thread knows
/// nothing: it may sleep for ever.
#[test]
fn the_thread_is_woken_in_time_for_what_a_caller_has_acquired() {
    let server = Server::start();
    // Nobody wants events that its thread would be woken for.
    let whole = Whole::start_by(&server.url(), PATIENCE, Duration::ZERO, Level::Info);
    let late = clock::now().after(PATIENCE);
    for id in (1..).step_by(2) {
        assert!(
            clock::now() < late,
            "nothing is acquired on a direct connection while the thread sleeps"
        );
        let alarm = whole.wakes().unwrap_or(late);
        let sleeps = alarm > clock::now().after(LIMIT);
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        let call = whole
            .handle
            .request(id, request("n"), sink, Way::Blocking)
            .unwrap();
        let direct = call.is_some();
        call.into_iter()
            .for_each(|mut call| call.wait(true, None, || Ok::<_, ()>(true)).unwrap());
        let (cell, level) = granted(answers.recv_timeout(PATIENCE).unwrap());
        if sleeps && direct {
            while whole.shared.counters.renewed.get() == 0 {
                assert!(clock::now() < alarm, "it slept for as long as it wanted");
                std::thread::yield_now();
            }
            return;
        }
        whole
            .ask_by_caller(
                id + 1,
                Request::Release(Target::Level {
                    owner: cell.owner,
                    level,
                }),
            )
            .unwrap();
    }
}

#[test]
fn a_message_that_was_left_comes_before_a_later_one() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    whole.ask(1, Request::Connect).unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let pause = called(move |_| {
        begun.send(()).unwrap();
        wait.recv().unwrap();
    });
    whole.leave(2, Request::Connect, pause);
    has_begun.recv_timeout(PATIENCE).unwrap();
    // The I/O thread is busy, and somebody else has the engine.
    let state = whole.handle.session.machine.wreck();
    let first = whole.send(3, request("n"));
    drop(state);
    let Request::Acquire {
        name, key, terms, ..
    } = request("n")
    else {
        unreachable!()
    };
    let once = Request::Acquire {
        name,
        key,
        wait: Some(Duration::ZERO),
        terms,
        token: None,
    };
    let second = whole.send(4, once);
    go_on.send(()).unwrap();
    granted(first.recv_timeout(PATIENCE).unwrap());
    let error = second.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

/// It was told with the engine's lock held, and every caller had to wait.
#[test]
fn a_subscriber_that_blocks_keeps_no_caller_from_a_lock() {
    let server = Server::start();
    // With RESP2 messages come on a connection of their own: of its end the thread tells, and the
    // others stay.
    let whole = Arc::new(Whole::start_at(
        Protocol::Resp2,
        &server.url(),
        PATIENCE * 10,
        PATIENCE * 10,
        Level::Info,
        false,
    ));
    let other = Whole::start(&server.url());
    other.grant(1, "busy");
    let waiting = whole.send(1, request("busy"));
    let late = clock::now().after(PATIENCE);
    let subscribed = format!("PUBSUB NUMSUB {}", names::channel(Topic::Lock, "busy"));
    while command::<(String, u64)>(&server, &subscribed).1 == 0 {
        assert!(clock::now() < late, "it does not wait");
    }
    // Until callers have a connection of their own.
    let mut ids = 2..;
    let mut pair = move |whole: &Whole| {
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        let call = whole
            .handle
            .request(ids.next().unwrap(), request("n"), sink, Way::Blocking)
            .unwrap();
        let direct = call.is_some();
        call.into_iter()
            .for_each(|mut call| call.wait(true, None, || Ok::<_, ()>(true)).unwrap());
        let (cell, level) = granted(answers.recv_timeout(PATIENCE).unwrap());
        assert!(cell.is_held(clock::now()));
        let target = Target::Level {
            owner: cell.owner,
            level,
        };
        whole
            .ask_by_caller(ids.next().unwrap(), Request::Release(target))
            .unwrap();
        direct
    };
    while !pair(&whole) {
        assert!(clock::now() < late, "no direct connection");
    }
    whole.shared.ring.drain();
    let ((told, is_told), (go_on, has_remaining)) = (mpsc::channel(), mpsc::channel::<()>());
    let has_remaining = Mutex::new(has_remaining);
    whole.shared.ring.set_notify(Box::new(move || {
        let _ = told.send(());
        let _ = has_remaining.lock().unwrap().recv();
    }));
    command::<u64>(&server, "CLIENT KILL TYPE pubsub");
    is_told.recv_timeout(PATIENCE).unwrap();
    let (done, is_done) = mpsc::channel();
    let caller = {
        let whole = whole.clone();
        std::thread::spawn(move || done.send(pair(&whole)))
    };
    let direct = is_done.recv_timeout(PATIENCE);
    drop(go_on);
    assert_eq!(direct, Ok(true), "it waits for the subscriber");
    caller.join().unwrap().unwrap();
    drop(waiting);
}

/// It is shorter than the message that need not wake the thread: the connection was taken for
/// silent.
#[test]
fn a_late_answer_to_a_client_at_rest_is_heard_before_its_connection_is_given_up() {
    let server = Server::start();
    let (proxy, other) = (Proxy::to(server.port()), Whole::start(&server.url()));
    let whole = Whole::listening_at(&proxy.url(), &server, &other);
    let commands = proxy.existing();
    let id = whole.rest(10);
    let force = || Request::Force {
        name: name("m"),
        kind: Kind::Reentrant,
    };
    // The server knows the script.
    assert!(matches!(whole.ask(id, force()), Ok(Done::Forced(false))));
    let (cell, level) = granted(whole.ask_by_caller(id + 1, request("n")));
    let held = commands.held.write();
    assert_eq!(
        whole.ask(id + 2, force()).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    // The thread has done everything and sleeps.
    let told = clock::now();
    while whole.wakes().is_none_or(|at| at <= clock::now()) {
        std::thread::yield_now();
    }
    // The direct connection works. The thread need not hear of that release, and is not woken by
    // the short word that the other call came too late.
    let target = Target::Level {
        owner: cell.owner,
        level,
    };
    whole
        .ask_by_caller(id + 3, Request::Release(target))
        .unwrap();
    let skips = whole.is_skipping();
    drop(held);
    if told.until(clock::now()) > LIMIT / 4 {
        return eprintln!("too slow: the connection was silent indeed");
    }
    assert!(skips);
    let heard = clock::now();
    while heard.until(clock::now()) < LIMIT {
        assert_eq!(whole.shared.counters.connects.get(), 1, "it is made anew");
        std::thread::sleep(Duration::from_millis(10));
    }
    whole.wait_behind(&other, &server, id + 4, "n");
}

/// The thread's timer does not wait for as many messages as are to wake it: those that lie in the
/// socket when it fires count.
#[test]
fn messages_during_the_turn_of_others_count_afterwards() {
    let server = Server::start();
    let other = Whole::start(&server.url());
    let whole = Whole::listening(&server, &other);
    // Others who seem to wait for the lock: as long as each of them may take, it is left to them.
    let mut listeners: Vec<redis::Connection> = (0..8).map(|_| server.connect()).collect();
    let channel = names::channel(Topic::Lock, "n");
    let mut listening: Vec<_> = listeners
        .iter_mut()
        .map(redis::Connection::as_pubsub)
        .collect();
    listening
        .iter_mut()
        .for_each(|listener| listener.subscribe(&channel).unwrap());
    let mut looks = server.connect();
    let late = clock::now().after(PATIENCE);
    for id in (100..).step_by(10) {
        assert!(clock::now() < late, "it does not listen");
        let (cell, level) = whole.wait_behind(&other, &server, id, "n");
        let target = Target::Level {
            owner: cell.owner,
            level,
        };
        whole.ask(id + 2, Request::Release(target)).unwrap();
        let wakeups = whole.shared.counters.wakeups.get();
        let granted_soon = whole.send(id + 3, request("n"));
        // The thread decides when it has this.
        let state = whole.handle.session.machine.wreck();
        let waits = |state: &shared_engine::EngineState| {
            let until = state.engine.next_wake().filter(|end| *end > clock::now());
            until.filter(|_| {
                state
                    .threshold
                    .as_ref()
                    .is_some_and(|threshold| threshold.is_skipping())
            })
        };
        if let Some(end) = waits(&state) {
            for _ in 0..3 {
                redis::cmd("PUBLISH")
                    .arg(&channel)
                    .arg("0")
                    .exec(&mut looks)
                    .unwrap();
            }
            while clock::now() <= end {
                std::thread::yield_now();
            }
        }
        drop(state);
        let (cell, level) = granted(granted_soon.recv_timeout(PATIENCE).unwrap());
        whole
            .ask(
                id + 4,
                Request::Release(Target::Level {
                    owner: cell.owner,
                    level,
                }),
            )
            .unwrap();
        // Each of them was heard while it slept. Without that it has the lock before it hears
        // anything.
        if whole.shared.counters.wakeups.get() >= wakeups + 3 {
            return;
        }
    }
}

/// The server before may have been replaced, and another one be asked by now.
#[test]
fn an_answer_that_comes_when_there_is_another_connection_for_commands_grants_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let (recheck, linger) = (Duration::from_secs(5), Duration::ZERO);
    let whole = Whole::start_as(&proxy.url(), recheck, linger, Level::Debug, false);
    whole.ask(1, Request::Connect).unwrap();
    proxy.existing();
    let (mut ids, mut ids_of_releases) = ((2..).step_by(2), (3..).step_by(2));
    let mut begin = || {
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        (
            whole
                .handle
                .request(ids.next().unwrap(), request("n"), sink, Way::Blocking)
                .unwrap(),
            answers,
        )
    };
    let late = clock::now().after(PATIENCE);
    let mut release = |answers: mpsc::Receiver<_>| {
        let (cell, level) = granted(answers.recv_timeout(PATIENCE).unwrap());
        let release = Request::Release(Target::Level {
            owner: cell.owner,
            level,
        });
        whole.ask(ids_of_releases.next().unwrap(), release).unwrap();
    };
    loop {
        assert!(clock::now() < late, "no direct connection");
        let (call, answers) = begin();
        let direct = call.is_some();
        call.into_iter()
            .for_each(|mut call| call.wait(true, None, || Ok::<_, ()>(true)).unwrap());
        release(answers);
        if direct {
            break;
        }
    }
    let line = proxy.existing();
    // The connection may still be busy with what came before.
    let (held, mut call, answers) = loop {
        assert!(clock::now() < late, "the direct connection is busy");
        let held = line.answers.write();
        let (call, answers) = begin();
        if let Some(call) = call {
            break (held, call, answers);
        }
        drop(held);
        release(answers);
    };
    while command::<i64>(&server, "EXISTS n") == 0 {
        assert!(clock::now() < late, "it is not done");
    }
    // Another server would not know of it.
    command::<i64>(&server, "DEL n");
    let clients: String = command(&server, "CLIENT LIST");
    let ours = |line: &&str| line.contains(" name=redlatch-test ");
    let id = clients
        .lines()
        .find(ours)
        .and_then(|line| line.strip_prefix("id=")?.split(' ').next())
        .unwrap();
    command::<i64>(&server, &format!("CLIENT KILL ID {id}"));
    while whole.shared.counters.connects.get() < 2 {
        assert!(clock::now() < late, "it is not made anew");
        std::thread::yield_now();
    }
    // The engine has heard of that.
    drop(whole.handle.session.machine.wreck());
    drop(held);
    call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
    granted(answers.recv_timeout(PATIENCE).unwrap());
    assert_eq!(
        command::<i64>(&server, "EXISTS n"),
        1,
        "granted by a server that is not asked any more"
    );
}

#[test]
fn a_sink_that_panics_harms_nobody_else() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    let sink = called(|_| panic!("a sink that panics"));
    whole.leave(1, Request::Connect, sink);
    whole.grant(2, "n");
}

#[test]
fn a_panic_of_the_engine_is_told_to_everybody() {
    let server = Server::start();
    let other = Whole::start(&server.url());
    other.grant(1, "taken");
    // No time can be spread around this one: the engine panics when it has to wait for the lock.
    let whole = Whole::start_with(&server.url(), Duration::MAX);
    let (cell, _) = whole.grant(1, "held");
    assert_eq!(whole.lends(), (true, HAS_RECEIVE_MINIMUM));
    let (told, reasons) = mpsc::channel();
    watch(
        &cell,
        Watcher::Called(Box::new(move |reason| told.send(reason).unwrap())),
    );
    let (released, _) = whole.grant(3, "released");
    let (told, nothing) = mpsc::channel();
    watch(
        &released,
        Watcher::Called(Box::new(move |reason| told.send(reason).unwrap())),
    );
    released.set_released();
    let error = whole.ask(2, request("taken")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(reasons.recv_timeout(PATIENCE), Ok(LostReason::Unreachable));
    assert!(!cell.is_held(clock::now()));
    assert!(whole.has_ended());
    assert_eq!(nothing.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(whole.lends(), (false, false));
    whole.event("ended");
}

/// An inline call takes the engine's lock when it is dropped. One that lay in the inbox behind the
/// message at which the engine panicked was dropped under that lock, and the thread hung.
#[test]
fn a_panic_of_the_engine_ends_the_calls_that_were_left() {
    let server = Server::start();
    let whole = Whole::start_with(&server.url(), Duration::MAX);
    let (left, answers) = begun_inline(&whole);
    let busy = Input::Outcome {
        call: left.under_way()[0],
        outcome: CallOutcome::Answered(Reply::Busy { ttl: None }),
    };
    // The thread finds both at once.
    let machine = &whole.handle.session.machine;
    let state = machine.wreck();
    machine.inbox.push(Message::Tell(busy)).unwrap();
    left.leave();
    drop(state);
    let error = answers.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(whole.has_ended());
}

/// A call that its caller makes itself, and the answers to it.
fn begun_inline(whole: &Whole) -> (InlineCall, mpsc::Receiver<Result<Done>>) {
    whole.ask(1, Request::Connect).unwrap();
    let late = clock::now().after(PATIENCE);
    for id in (2..).step_by(2) {
        assert!(clock::now() < late, "no inline connection");
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        let begun = whole
            .handle
            .request(id, request("n"), sink, Way::Blocking)
            .unwrap();
        if let Some(call) = begun {
            return (call, answers);
        }
        let (cell, level) = granted(answers.recv_timeout(PATIENCE).unwrap());
        let owner = cell.owner;
        let release = Request::Release(Target::Level { owner, level });
        whole.ask(id + 1, release).unwrap();
    }
    unreachable!("it tries until it has one");
}

/// A client with an inline connection, which nobody uses. Without tracking, it never looks whether its
/// holds are still there.
fn with_inline(url: &str) -> Whole {
    let (recheck, linger) = (Duration::from_secs(5), Duration::ZERO);
    let whole = Whole::start_as(url, recheck, linger, Level::Debug, false);
    let (mut call, answers) = begun_inline(&whole);
    call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
    let (cell, level) = granted(answers.recv_timeout(PATIENCE).unwrap());
    whole
        .ask_by_caller(999_999, release_of(&cell, level))
        .unwrap();
    whole
}

fn release_of(cell: &HoldCell, level: u64) -> Request {
    let owner = cell.owner;
    Request::Release(Target::Level { owner, level })
}

/// How many calls the caller of a request makes itself at first, and the answer.
fn made(whole: &Whole, request: Request) -> (usize, Result<Done>) {
    static LAST: AtomicU64 = AtomicU64::new(1_000_000);
    let (answer, answers) = mpsc::channel();
    let sink = called(move |result| answer.send(result).unwrap());
    let id = LAST.fetch_add(1, Ordering::SeqCst);
    let begun = whole.handle.request(id, request, sink, Way::Blocking);
    let mut calls = 0;
    if let Some(mut call) = begun.unwrap() {
        calls = call.under_way().len();
        call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
    }
    (calls, answers.recv_timeout(PATIENCE).unwrap())
}

/// A lease of so little leaves its calls little time.
const SHORT: Duration = Duration::from_millis(150);

/// Repeats something until it tells what is expected: a caller that finds the I/O thread at work leaves its
/// calls to it.
fn comes_to<T: PartialEq + std::fmt::Debug>(expected: T, mut what: impl FnMut() -> T) {
    let late = clock::now().after(PATIENCE);
    loop {
        let found = what();
        if found == expected {
            return;
        }
        assert!(clock::now() < late, "{found:?}");
    }
}

#[test]
fn the_caller_of_a_multi_lock_makes_the_calls_for_all_names_as_one_command() {
    let server = Server::start();
    let whole = with_inline(&server.url());
    let stats = || command::<String>(&server, "INFO commandstats");
    comes_to((3, 3, true), || {
        command::<()>(&server, "CONFIG RESETSTAT");
        let (acquires, answer) = made(&whole, request_all(&["a", "b", "c"]));
        let (cell, level) = granted(answer);
        assert_eq!(command::<i64>(&server, "EXISTS a b c"), 3);
        let (releases, answer) = made(&whole, release_of(&cell, level));
        assert!(matches!(answer, Ok(Done::Released)), "{answer:?}");
        assert_eq!(command::<i64>(&server, "EXISTS a b c"), 0);
        let commands = stats().contains("cmdstat_evalsha:calls=2,");
        (acquires, releases, commands)
    });
}

/// The clocks of server and client may differ by a hundredth of the silence, so the first call after it comes too
/// late. Its caller's connection learns of that, and the thread's does not.
#[test]
fn a_try_of_a_multi_lock_after_a_long_silence_is_no_error() {
    let server = Server::start();
    let whole = with_inline(&server.url());
    let tries = || {
        let mut asked = request_all(&["a", "b", "c"]);
        if let Request::AcquireAll(AcquireAll {
            parts, wait, terms, ..
        }) = &mut asked
        {
            *wait = Some(Duration::ZERO);
            let all = Arc::get_mut(parts)
                .unwrap()
                .iter_mut()
                .map(|part| &mut part.terms)
                .chain([terms]);
            all.for_each(|terms| terms.lease = Lease::Fixed(SHORT));
        }
        asked
    };
    comes_to(3, || {
        let (calls, answer) = made(&whole, tries());
        let (cell, level) = granted(answer);
        made(&whole, release_of(&cell, level)).1.unwrap();
        calls
    });
    // Nothing tells of the end of a silence.
    std::thread::sleep(40 * SHORT);
    let stale = || command::<String>(&server, "INFO commandstats");
    command::<()>(&server, "CONFIG RESETSTAT");
    let (calls, answer) = made(&whole, tries());
    granted(answer);
    assert_eq!(calls, 3);
    assert!(!stale().contains("cmdstat_evalsha:calls=1,"), "not stale");
}

/// Another kind of key is in the way of the second name: the script does nothing for that, and the I/O thread
/// asks for it alone.
#[test]
fn what_one_command_cannot_do_for_a_name_is_done_alone() {
    let server = Server::start();
    let whole = with_inline(&server.url());
    command::<()>(&server, "SET b text");
    comes_to(3, || {
        let (calls, answer) = made(&whole, request_all(&["a", "b", "c"]));
        let error = answer.unwrap_err();
        assert!(error.message().contains("\"b\""), "{error}");
        // The others are free again.
        for text in ["a", "c"] {
            let (cell, level) = granted(made(&whole, request(text)).1);
            made(&whole, release_of(&cell, level)).1.unwrap();
        }
        calls
    });
}

#[test]
fn a_caller_whose_batches_are_refused_leaves_its_calls_to_the_thread() {
    let server = Server::start();
    let user = "ACL SETUSER tina on >geheim ~* &* +@all -exists";
    command::<()>(&server, user);
    let url = server.url().replace("redis://", "redis://tina:geheim@");
    let whole = with_inline(&url);
    let pair = || {
        let (calls, answer) = made(&whole, request_all(&["a", "b", "c"]));
        let (cell, level) = granted(answer);
        assert_eq!(command::<i64>(&server, "EXISTS a b c"), 3);
        let releases = made(&whole, release_of(&cell, level));
        releases.1.unwrap();
        (calls, releases.0)
    };
    comes_to(3, || pair().0);
    // Both would have been batches.
    assert_eq!(pair(), (0, 0));
}

/// A try was refused as if the server were out of reach.
#[test]
fn a_call_that_cannot_be_written_is_left_to_the_thread() {
    let server = Server::start();
    let whole = with_inline(&server.url());
    whole.handle.session.machine.direct.shut_down();
    let mut once = request("n");
    if let Request::Acquire { wait, .. } = &mut once {
        *wait = Some(Duration::ZERO);
    }
    granted(made(&whole, once).1);
}

/// A handler of a signal may fork while a call is made inline. The child left the call to the I/O
/// thread, which it does not have, and waited for an inbox that another thread had locked.
#[test]
#[allow(unsafe_code, reason = "it forks")]
fn a_forked_child_leaves_an_inline_call_to_nobody() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    let (mut call, answers) = begun_inline(&whole);
    let inbox = whole.handle.session.machine.inbox.locked();
    // SAFETY: the child does what a child may do with what it inherits, and exits.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(10);
            call.leave();
            // SAFETY: as above.
            unsafe { nix::libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(inbox);
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
    call.wait(true, None, || Ok::<_, ()>(true)).unwrap();
    granted(answers.recv_timeout(PATIENCE).unwrap());
}

#[test]
fn requests_that_come_while_it_closes_are_answered() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    whole.ask(1, Request::Connect).unwrap();
    let sink = called(|_| std::thread::sleep(Duration::from_millis(100)));
    whole.leave(2, Request::Close { limit: LIMIT }, sink);
    // While that sink sleeps, the engine has stopped already and the inbox is still open.
    for id in 3.. {
        let (answer, answers) = mpsc::channel();
        let sink = called(move |result| answer.send(result).unwrap());
        let refused = whole
            .handle
            .request(id, Request::Connect, sink, Way::IoThread);
        if refused.is_err() {
            assert!(answers.recv().is_err(), "a refused sink is not called");
            break;
        }
        let error = answers.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

/// A caller of an inline call that is cut short drains the inbox. A request that it found there
/// after the end got an answer that nobody gave.
#[test]
fn the_inbox_is_closed_as_soon_as_nobody_carries_effects_out() {
    let (zero, level) = (Duration::ZERO, Level::Info);
    let url = "redis://127.0.0.1:1";
    let (config, shared) = Whole::config(Protocol::Auto, url, PATIENCE, zero, level, false);
    let session = Arc::new(Session {
        machine: SharedEngine::new(
            config.engine.clone(),
            shared,
            Arc::new(InlineSlot::new(true)),
        ),
        pid: process::id(),
    });
    let runtime = super::run::runtime().unwrap();
    let timer = runtime.block_on(async { Timer::new() }).unwrap();
    let _driver = Driver::new(&config, session.clone(), timer);
    let (during, (told, is_refused)) = (session.clone(), mpsc::channel());
    let sink = called(move |_| {
        let asked = Message::Request(PendingRequest {
            id: 2,
            request: Request::Connect,
            completion: Completer(Some(called(|_| {}))),
        });
        told.send(during.submit(asked, Way::IoThread).is_err())
            .unwrap();
    });
    let answer = Effect::Answer(Completer(Some(sink)), Ok(Done::Connected));
    session.machine.wreck().left.push(answer);
    super::run::end(&session);
    assert_eq!(is_refused.recv(), Ok(true));
}

/// A sink that asks again as soon as it is answered.
struct Again {
    me: std::sync::Weak<Again>,
    session: Arc<Session>,
    last: AtomicUsize,
    goes_on: AtomicBool,
}

impl Sink for Again {
    fn answer(&self, _: Result<Done>) {
        let Some(me) = self
            .me
            .upgrade()
            .filter(|me| me.goes_on.load(Ordering::SeqCst))
        else {
            return;
        };
        let id = self.last.fetch_add(1, Ordering::SeqCst);
        let asked = PendingRequest {
            id: id.try_into().unwrap(),
            request: Request::Connect,
            completion: Completer(Some(me)),
        };
        drop(self.session.machine.inbox.push(Message::Request(asked)));
    }
}

#[test]
fn requests_without_calls_do_not_keep_the_thread_from_its_sockets() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    whole.ask(1, Request::Connect).unwrap();
    let again = Arc::new_cyclic(|me| Again {
        me: me.clone(),
        session: whole.handle.session.clone(),
        last: AtomicUsize::new(100),
        goes_on: AtomicBool::new(true),
    });
    again.answer(Ok(Done::Connected));
    let granted = whole.send(2, request("n")).recv_timeout(PATIENCE);
    again.goes_on.store(false, Ordering::SeqCst);
    assert!(matches!(granted, Ok(Ok(Done::Granted { .. }))));
}

/// The first close may have been answered before the thread has ended.
#[test]
fn closing_again_while_it_closes_is_no_error() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    whole.ask(1, Request::Connect).unwrap();
    let (begun, closed) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let sink = called(move |result: Result<Done>| {
        begun.send(result).unwrap();
        // The engine has stopped, and the inbox is still open until this ends.
        wait.recv().unwrap();
    });
    let request = || Request::Close { limit: LIMIT };
    whole.leave(2, request(), sink);
    closed.recv_timeout(PATIENCE).unwrap().unwrap();
    let again = whole.send(3, request());
    go_on.send(()).unwrap();
    let answer = again.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(&answer, Ok(Done::Closed(names)) if names.is_empty()),
        "{answer:?}"
    );
}

#[test]
fn a_thread_without_a_handle_finishes_its_releases_and_ends() {
    let server = Server::start();
    let whole = Whole::start(&server.url());
    let (cell, level) = whole.grant(1, "n");
    let (kept, _) = whole.grant(2, "kept");
    whole.handle.tell(Input::Dropped {
        owner: cell.owner,
        level,
    });
    let Whole { handle, shared: _ } = whole;
    let ended = handle.ended.clone();
    drop(handle);
    assert!(ended.wait(PATIENCE));
    assert_eq!(command::<i64>(&server, "EXISTS n"), 0);
    // A hold that somebody left behind is not renewed for ever.
    assert!(kept.is_held(clock::now()));
    assert_eq!(command::<i64>(&server, "EXISTS kept"), 1);
}

#[test]
fn the_thread_has_a_name_and_gets_no_signals() {
    let before = SigSet::thread_get_mask().unwrap();
    let server = Server::start();
    // A host name, so that the thread that looks it up is there as well.
    let whole = Whole::start(&server.url().replace("127.0.0.1", "localhost"));
    whole.ask(1, Request::Connect).unwrap();
    assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    // SIGKILL and SIGSTOP cannot be blocked; the C library keeps 32 and 33 for itself.
    let never = [9, 19, 32, 33]
        .iter()
        .fold(0, |mask, signal| mask | 1u64 << (signal - 1));
    let mut seen = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // Another test's thread may be gone by now.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|rest| rest.trim().to_owned())
        };
        if field("Name:").as_deref() == Some("redlatch") {
            let blocked = u64::from_str_radix(&field("SigBlk:").unwrap(), 16).unwrap();
            assert_eq!(blocked | never, u64::MAX, "{status}");
            seen += 1;
        }
    }
    assert!(seen >= 1);
    drop(whole);
}
