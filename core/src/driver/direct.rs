//! The direct connection: a caller that blocks anyway does its call itself, on its own thread, while
//! nothing else is under way. That saves two changes of thread in each call. An event loop, or a task, that is alone
//! does the same if the answer comes sooner than it takes to be woken.
//!
//! It is a second way for calls of the same engine, and changes nothing of what a call means. Rules:
//! - There is one, made when a few calls would have used it; who finds it taken asks the thread.
//! - It belongs to one connection for commands, and ends with it: what is answered when there is another one counts as
//!   unanswered, since another server may be asked by now, to which the engine has said all that it knows.
//! - The server does not remember what is read here, which would cost it an eighth of a pair: what is still held
//!   after some milliseconds the engine looks at on the connection for commands, and is told of changes then.
//! - A call that is late or interrupted closes it. What became of the call is for the engine to settle,
//!   as it does for the others.
//! - Nobody looks himself whether his call is late: the thread cuts the wait short then, and when its caller was answered
//!   otherwise. Who has nothing else to look at waits without a limit, of which the system would keep a timer for each call.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::net::Shutdown;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::libc::MSG_NOSIGNAL;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use redis::io::tcp::socket2::SockRef;
use redis::{Cmd, ConnectionAddr, Value};

use super::connect::{Address, is_turned_away};
use super::link::Link;
use super::server_clock::ServerClock;
use crate::clock;
use crate::moment::Moment;
use crate::wire::{Call, Op, Publish};

/// How many calls would have to use the connection before it is made: short programs need none.
const WORTH: u32 = 2;
/// How long none is made after one was made.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after it could not be made: a server that refuses is not asked often.
const REFUSED: Duration = Duration::from_secs(60);
/// A connection that has rested for longer is looked at before it is used: the server may have closed it.
const RESTED: Duration = Duration::from_millis(100);
/// How long one read may take before the caller looks at the time and at signals.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// How much is read at once; most answers are shorter.
const READ: usize = 512;
/// Of a server that is always late one call in two to the power of this is waited for.
const MOST_LATE: u32 = 8;

/// Keeps the direct connection while nobody uses it.
pub(super) struct Direct {
    keep: Mutex<Keep>,
    /// Which connection for commands it has to belong to. Changed with what is kept, before the engine hears of that one.
    generation: AtomicU64,
}

struct Keep {
    place: Place,
    /// Calls that would have used it since it was last lost.
    asked: u32,
    /// By which the wait of a caller who uses it is cut short; there as long as the connection.
    stream: Option<Arc<Stream>>,
}

enum Place {
    /// There is none.
    Empty,
    Idle(Box<Wire>),
    /// Some caller uses it.
    Taken,
    /// Never to be used: it was turned off, or everything is over.
    Off,
}

impl Direct {
    pub(super) fn new(on: bool) -> Direct {
        let place = if on { Place::Empty } else { Place::Off };
        let keep = Mutex::new(Keep { place, asked: 0, stream: None });
        Direct { keep, generation: AtomicU64::new(0) }
    }

    fn keep(&self) -> MutexGuard<'_, Keep> {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this connection, or one of its calls, counts: no other server may be asked by now. Who has the engine's state
    /// knows that the engine has not heard of another one.
    pub(super) fn is_current(&self, wire: &Wire) -> bool {
        self.generation.load(Ordering::Acquire) == wire.generation
    }

    /// For a caller: the connection if it is there and in good order.
    pub(super) fn take(&self, now: Moment) -> Option<Box<Wire>> {
        let mut keep = self.keep();
        match std::mem::replace(&mut keep.place, Place::Taken) {
            Place::Idle(mut wire) => {
                if wire.is_alive(now) {
                    return Some(wire);
                }
                keep.lose(*wire);
                None
            }
            other => {
                keep.place = other;
                None
            }
        }
    }

    /// A caller would have used it.
    pub(super) fn wish(&self) {
        let mut keep = self.keep();
        keep.asked = keep.asked.saturating_add(1);
    }

    /// Whether there is none, and may be one.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.keep().place, Place::Empty)
    }

    /// The caller is done with it.
    pub(super) fn give(&self, wire: Box<Wire>) {
        let mut keep = self.keep();
        if self.is_current(&wire) && matches!(keep.place, Place::Taken) {
            keep.place = Place::Idle(wire);
        } else {
            keep.lose(*wire);
        }
    }

    /// The caller has closed it.
    pub(super) fn lose(&self, wire: Wire) {
        self.keep().lose(wire);
    }

    /// Whoever waits for an answer on it is to wait no longer: it breaks.
    pub(super) fn cut_short(&self) {
        self.keep().cut_short();
    }

    /// Nobody is to use it any more, and who does is to wait no longer.
    pub(super) fn end(&self) {
        let mut keep = self.keep();
        keep.cut_short();
        (keep.place, keep.stream) = (Place::Off, None);
    }

    /// Another connection for commands is up: what belonged to the last one is of no use, nor is what is answered there.
    fn renew(&self, generation: u64) {
        let mut keep = self.keep();
        self.generation.store(generation, Ordering::Release);
        keep.cut_short();
        if let Place::Idle(_) = keep.place {
            (keep.place, keep.stream) = (Place::Empty, None);
        }
    }

    fn is_wanted(&self) -> bool {
        let keep = self.keep();
        matches!(keep.place, Place::Empty) && keep.asked >= WORTH
    }

    fn made(&self, wire: Wire) {
        let mut keep = self.keep();
        if self.is_current(&wire) && matches!(keep.place, Place::Empty) {
            keep.stream = Some(wire.stream.clone());
            keep.place = Place::Idle(Box::new(wire));
        }
    }
}

impl Keep {
    fn cut_short(&self) {
        if let (Place::Taken, Some(stream)) = (&self.place, &self.stream) {
            stream.shut_down();
        }
    }

    fn lose(&mut self, wire: Wire) {
        drop(wire);
        self.stream = None;
        if matches!(self.place, Place::Taken) {
            self.place = Place::Empty;
            self.asked = 0;
        }
    }
}

/// What makes the direct connection, on the engine's thread.
#[derive(Default)]
pub(super) struct Maker {
    attempt: Option<Attempt>,
    generation: u64,
    /// No attempt before.
    rests_until: Moment,
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<Wire>>>>;

impl Maker {
    /// Makes a connection if one is wanted.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, direct: &Direct, link: &Link) {
        let generation = link.generation();
        if self.generation != generation {
            self.generation = generation;
            self.attempt = None;
            self.rests_until = Moment::default();
            direct.renew(generation);
        }
        let now = clock::now();
        if self.attempt.is_none() && self.rests_until <= now && direct.is_wanted() {
            self.attempt = link.direct().map(|plan| Box::pin(plan.open()) as Attempt);
            self.rests_until = now.after(PAUSE);
        }
        if let Some(attempt) = &mut self.attempt
            && let Poll::Ready(made) = attempt.as_mut().poll(cx)
        {
            self.attempt = None;
            // Without it calls take the other way, so nobody has to be told.
            match made {
                Ok(wire) => direct.made(wire),
                Err(_) => self.rests_until = now.after(REFUSED),
            }
        }
    }
}

/// How to make a direct connection that goes with one for commands.
pub(super) struct Plan {
    pub(super) address: Address,
    /// Whether the connection for commands is told of changes to what is read there.
    pub(super) tracked: bool,
    pub(super) publish: Publish,
    pub(super) clock: ServerClock,
    pub(super) generation: u64,
}

impl Plan {
    async fn open(self) -> io::Result<Wire> {
        let Plan { address, tracked, publish, clock, generation } = self;
        let made = tokio::task::spawn_blocking(move || {
            let mut wire = Wire {
                stream: Arc::new(Stream::connect(&address)?),
                call: None,
                command: Vec::new(),
                answer: vec![0; READ],
                got: 0,
                clock,
                publish,
                generation,
                used: clock::now(),
                patience: None,
                took: Duration::ZERO,
                pace: Pace::default(),
                tracked,
            };
            wire.log_in(&address)?;
            Ok(wire)
        });
        made.await.map_err(io::Error::other)?
    }
}

/// The direct connection.
pub(super) struct Wire {
    stream: Arc<Stream>,
    /// The call under way, and what was sent of it.
    call: Option<Call>,
    command: Vec<u8>,
    /// What has come of the answer, and how much of it.
    answer: Vec<u8>,
    got: usize,
    pub(super) clock: ServerClock,
    pub(super) publish: Publish,
    generation: u64,
    used: Moment,
    /// How long one read takes at most, as the system knows it; `None`: for ever.
    patience: Option<Duration>,
    /// How long the last answer took.
    took: Duration,
    pub(super) pace: Pace,
    /// Whether the connection for commands is told of changes, unlike this one.
    tracked: bool,
}

impl Wire {
    fn log_in(&mut self, address: &Address) -> io::Result<()> {
        let deadline = clock::now().after(address.timeout());
        let mut ask = |command: &Cmd| {
            self.command = command.get_packed_command();
            self.send(clock::now())?;
            loop {
                match self.receive(Some(TICK))? {
                    Some((answer, _)) => return Ok(answer),
                    None if clock::now() >= deadline => return Err(io::Error::from(IoKind::TimedOut)),
                    None => {}
                }
            }
        };
        for (command, vital) in address.log_in() {
            let answer = ask(&command)?.extract_error();
            if let Some(error) = answer.err().filter(|error| vital || is_turned_away(error)) {
                return Err(io::Error::other(error.code().unwrap_or_default().to_owned()));
            }
        }
        Ok(())
    }

    /// Whether the server has neither closed it nor said anything unasked.
    fn is_alive(&mut self, now: Moment) -> bool {
        if self.used.until(now) < RESTED {
            return true;
        }
        // Whoever finds it useless for his call has looked for the others too.
        self.used = now;
        !self.is_answered()
    }

    /// Sends the script call for `op`; false if the connection is broken.
    pub(super) fn call(&mut self, op: &Op, uuid: &str, not_after: u64) -> bool {
        let call = match self.call.take() {
            Some(before) => Call::reusing(before, op, uuid, not_after, self.publish),
            None => Call::new(op, uuid, not_after, self.publish),
        };
        call.write_evalsha(&mut self.command);
        self.call = Some(call);
        // How long the answer takes is to be known of the server, not of what came before.
        self.send(clock::now()).is_ok()
    }

    /// Sends that call once more, with the text of the script; false if the connection is broken.
    pub(super) fn call_with_text(&mut self) -> bool {
        let Some(call) = &self.call else { return false };
        call.write_eval(&mut self.command);
        let sent = self.send(clock::now()).is_ok();
        // It is long, and seldom needed.
        self.command = Vec::new();
        sent
    }

    /// Sends the command that was written.
    ///
    /// # Errors
    /// When it is broken. Nothing was sent if it failed at the first byte.
    fn send(&mut self, now: Moment) -> io::Result<()> {
        self.used = now;
        self.got = 0;
        self.stream.write_all(&self.command)
    }

    /// Waits for the answer, and tells when it came: `None` if it has not within `patience`, where there is one, or a
    /// signal came.
    ///
    /// # Errors
    /// When the connection is broken, or what came is no answer.
    pub(super) fn receive(&mut self, patience: Option<Duration>) -> io::Result<Option<(Value, Moment)>> {
        if self.patience != patience {
            // Zero would be refused.
            self.stream.set_read_timeout(patience.map(|time| time.max(Duration::from_millis(1))))?;
            self.patience = patience;
        }
        loop {
            if self.got == self.answer.len() {
                self.answer.resize(self.got + READ, 0);
            }
            match self.stream.read(&mut self.answer[self.got..]) {
                Ok(0) => return Err(io::Error::from(IoKind::UnexpectedEof)),
                Ok(more) => {
                    self.got += more;
                    if let Some(value) = self.parse()? {
                        let now = clock::now();
                        self.took = self.used.until(now);
                        return Ok(Some((value, now)));
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        IoKind::WouldBlock | IoKind::TimedOut | IoKind::Interrupted
                    ) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The answer, if all of it is there.
    fn parse(&self) -> io::Result<Option<Value>> {
        let answer = &self.answer[..self.got];
        if !answer.ends_with(b"\r\n") {
            return Ok(None);
        }
        // Most answers are a number.
        if let [b':', digits @ .., b'\r', b'\n'] = answer
            && let Some(number) = natural(digits)
        {
            return Ok(Some(Value::Int(number)));
        }
        match redis::parse_redis_value(answer) {
            Ok(value) => Ok(Some(value)),
            // It ends before it is complete.
            Err(error) if error.is_connection_dropped() => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Whether the last answer has come within `patience`.
    pub(super) fn is_quick(&self, patience: Duration) -> bool {
        self.took <= patience
    }

    /// Whether something has come already.
    fn is_answered(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    /// Whether it matters that the server tells nobody of changes to what is read here.
    pub(super) fn is_unseen(&self) -> bool {
        self.tracked
    }
}

/// A number that has at least a digit and no sign.
fn natural(digits: &[u8]) -> Option<i64> {
    let add = |number: i64, digit: &u8| {
        let digit = digit.wrapping_sub(b'0');
        number.checked_mul(10)?.checked_add(i64::from(digit)).filter(|_| digit < 10)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// Whether the server answers so soon that it is worth to wait for it, for a caller who has others to serve.
///
/// A single late answer says little: the machine was busy. Of a server that is far away or slow all are late, and each
/// keeps the caller waiting in vain: the more of them, the more calls go the other way before one is tried again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Late answers, less those that were in time.
    late: u32,
    /// Calls that are to go the other way.
    pause: u32,
}

impl Pace {
    /// Whether the next call may be waited for.
    pub(super) fn is_worth_it(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    /// A call was waited for: has the answer come in time?
    pub(super) fn learn(&mut self, in_time: bool) {
        if in_time {
            self.late = self.late.saturating_sub(1);
        } else {
            self.late = (self.late + 1).min(MOST_LATE);
            self.pause = 1 << self.late;
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(address: &Address) -> io::Result<Stream> {
        let stream = match address.place() {
            ConnectionAddr::Tcp(host, port) => Stream::Tcp(tcp((host.as_str(), *port), address)?),
            ConnectionAddr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            _ => return Err(io::Error::from(IoKind::Unsupported)),
        };
        match &stream {
            Stream::Tcp(tcp) => tcp.set_write_timeout(Some(address.timeout()))?,
            Stream::Unix(unix) => unix.set_write_timeout(Some(address.timeout()))?,
        }
        Ok(stream)
    }

    fn set_read_timeout(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_read_timeout(patience),
            Stream::Unix(unix) => unix.set_read_timeout(patience),
        }
    }

    /// Who reads from it has come to its end.
    fn shut_down(&self) {
        // Fails only when it is broken already.
        let _ = match self {
            Stream::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Stream::Unix(unix) => unix.shutdown(Shutdown::Both),
        };
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(tcp) => tcp.as_fd(),
            Stream::Unix(unix) => unix.as_fd(),
        }
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => (&mut &*tcp).write_all(bytes),
            Stream::Unix(unix) => Quiet(unix).write_all(bytes),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => (&mut &*tcp).read(buffer),
            Stream::Unix(unix) => (&mut &*unix).read(buffer),
        }
    }
}

/// Writes without a signal: it would end a C program whose server has gone, on whose thread this is. Before Rust 1.90 the
/// standard library does so for TCP only.
struct Quiet<'a>(&'a UnixStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(self.0).send_with_flags(bytes, MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first address of the host that answers.
fn tcp(place: (&str, u16), address: &Address) -> io::Result<TcpStream> {
    let mut last = io::Error::from(IoKind::AddrNotAvailable);
    for candidate in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, address.timeout()) {
            Ok(tcp) => {
                let settings = address.tcp_settings();
                tcp.set_nodelay(settings.nodelay())?;
                let socket = SockRef::from(&tcp);
                if let Some(keepalive) = settings.keepalive() {
                    socket.set_tcp_keepalive(keepalive)?;
                }
                socket.set_tcp_user_timeout(settings.user_timeout())?;
                return Ok(tcp);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use nix::sys::signal::{SigSet, Signal};

    use super::*;

    /// How many of `calls` are waited for by a caller whose answers are late as `is_late` says.
    fn waited(calls: u32, is_late: impl Fn(u32) -> bool) -> usize {
        let mut pace = Pace::default();
        let waited = |call: &u32| {
            let worth = pace.is_worth_it();
            if worth {
                pace.learn(!is_late(*call));
            }
            worth
        };
        (0..calls).filter(waited).count()
    }

    /// A direct connection that nobody uses, and the server's end of it.
    fn made(used: Moment) -> (Direct, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let wire = Wire {
            stream: Arc::new(Stream::Unix(ours)),
            call: None,
            command: Vec::new(),
            answer: vec![0; READ],
            got: 0,
            clock: ServerClock::new(0, used),
            publish: Publish::Classic,
            generation: 0,
            used,
            patience: None,
            took: Duration::ZERO,
            pace: Pace::default(),
            tracked: false,
        };
        let direct = Direct::new(true);
        direct.made(wire);
        (direct, theirs)
    }

    #[test]
    fn a_connection_that_has_rested_is_used_only_if_the_server_has_left_it_as_it_was() {
        let (now, long_ago) = (clock::now(), clock::now().before(2 * RESTED));
        let (direct, theirs) = made(long_ago);
        let wire = direct.take(now).expect("it is in good order");
        assert!(direct.take(now).is_none(), "somebody uses it");
        direct.give(wire);
        drop(theirs);
        assert!(direct.take(now).is_some(), "it was looked at just now");

        let (direct, theirs) = made(long_ago);
        drop(theirs);
        assert!(direct.take(now).is_none() && direct.is_missing(), "the server has closed it");
        let (direct, theirs) = made(long_ago);
        (&theirs).write_all(b"-ERR\r\n").expect("written");
        assert!(direct.take(now).is_none() && direct.is_missing(), "the server has said something unasked");
    }

    #[test]
    fn it_ends_with_the_connection_for_commands_whoever_has_it() {
        let now = clock::now();
        let (direct, _theirs) = made(now);
        direct.renew(1);
        assert!(direct.take(now).is_none() && direct.is_missing());

        let (direct, _theirs) = made(now);
        let wire = direct.take(now).expect("it is in good order");
        direct.renew(1);
        assert!(!direct.is_missing(), "somebody uses it");
        direct.give(wire);
        assert!(direct.take(now).is_none() && direct.is_missing());
    }

    #[test]
    fn nobody_waits_for_an_answer_on_a_connection_that_is_cut_short_or_ended() {
        for end in [Direct::cut_short, Direct::end] {
            let (direct, _theirs) = made(clock::now());
            let mut wire = direct.take(clock::now()).expect("it is in good order");
            let (waited, has_waited) = mpsc::channel();
            let waiter = thread::spawn(move || waited.send(wire.receive(None).map(drop)));
            end(&direct);
            let result = has_waited.recv_timeout(Duration::from_secs(30)).expect("it waits no longer");
            assert!(result.is_err());
            waiter.join().expect("no panic").expect("told");
        }
    }

    #[test]
    fn an_answer_that_is_a_number_is_read_as_redis_reads_it() {
        let read = |text: &str| (natural(text.as_bytes()), text.parse().ok());
        for text in ["0", "7", "1795369635257", "9223372036854775807", "9223372036854775808", "", "1a", " 1"]
        {
            let (ours, theirs) = read(text);
            assert_eq!(ours, theirs, "{text}");
        }
        // The general way reads those.
        assert_eq!((natural(b"-1"), natural(b"+1")), (None, None));
    }

    /// The signals that wait for this thread, as bits.
    fn pending() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("the state of this thread");
        let signals = status.lines().find_map(|line| line.strip_prefix("SigPnd:")).expect("signals");
        u64::from_str_radix(signals.trim(), 16).expect("a number")
    }

    /// A C program was ended by that.
    #[test]
    fn a_server_that_has_gone_raises_no_signal() {
        let mut pipe = SigSet::empty();
        pipe.add(Signal::SIGPIPE);
        pipe.thread_block().expect("blocked");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        drop(listener.accept().expect("accepted"));
        let (unix, gone) = UnixStream::pair().expect("a pair");
        drop(gone);
        for stream in [Stream::Unix(unix), Stream::Tcp(tcp)] {
            // The first bytes may be on their way before anybody knows.
            let end = clock::now().after(Duration::from_secs(30));
            while stream.write_all(b"PING\r\n").is_ok() {
                assert!(clock::now() < end, "it has gone");
            }
            assert_eq!(pending() & 1 << (Signal::SIGPIPE as u32 - 1), 0);
        }
    }

    #[test]
    fn a_single_late_answer_changes_little() {
        assert_eq!(waited(1000, |call| call == 500), 998);
    }

    #[test]
    fn a_server_that_is_far_away_is_hardly_waited_for() {
        assert!(waited(10_000, |_| true) < 50);
    }

    #[test]
    fn a_server_that_was_slow_is_waited_for_again() {
        let slow_at_first = waited(10_000, |call| call < 1000);
        assert!(slow_at_first > 8000, "{slow_at_first}");
    }
}
