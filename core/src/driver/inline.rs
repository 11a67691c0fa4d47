//! The inline connection: a caller that blocks anyway makes its call itself, on its own thread,
//! while nothing else is in flight. That saves two context switches per call. An event loop or a
//! task that is alone does the same if the reply comes sooner than a wake-up would.
//!
//! It is a second way for calls of the same engine, and does not change what a call means. Rules:
//! - There is at most one. It is made when a few calls would have used it. A caller that finds it
//!   taken asks the I/O thread.
//! - It leads to the address of the command connection, wherever the name of the host leads by then.
//! - It is tied to one generation of the command connection. A reply that arrives after the command
//!   connection was replaced counts as unanswered, because the engine may be asking another server
//!   by now.
//! - It has no client tracking, which would cost the server an eighth of an acquire and release. If
//!   a lock is still held after some milliseconds, the engine reads it on the command connection,
//!   which is told of changes from then on.
//! - A call that is late or interrupted closes the connection. The engine settles its outcome, as
//!   for any other call.
//! - A blocking caller does not watch the deadline of its call, and sets no timeout if it has
//!   nothing else to look at: the kernel would keep a timer for each call. The I/O thread shuts the
//!   socket down when the call is late, or when its caller was answered in another way.

use std::io::{self, ErrorKind as IoKind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redlatch_proto::net;
use redlatch_proto::value::Value;

use super::News;
use super::asking::Asking;
use super::calls::Payload;
use super::connect::{Manner, fresh_identity};
use super::server_clock::ServerClock;
use crate::clock;
use crate::engine::Input;
use crate::error::{Error, ErrorKind, Result};
use crate::moment::Moment;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::sys::{BlockingSocket, StopFlag};
use crate::tuning;
use crate::wire::{Call, Publish};

/// Keeps the inline connection while no caller uses it.
pub(super) struct InlineSlot {
    keep: Mutex<Keep>,
    /// The generation of the command connection that it has to belong to. It changes together with
    /// what is kept, before the engine hears of the new connection.
    generation: AtomicU64,
}

struct Keep {
    place: Place,
    /// Calls that would have used the connection since it was last lost.
    asked: u32,
    /// The socket, to end the wait of a caller that uses it. It lives as long as the connection.
    stream: Option<Arc<BlockingSocket>>,
}

enum Place {
    /// There is none.
    Empty,
    /// It was made, and the engine has not heard of its identity yet.
    New(Box<InlineConnection>),
    Idle(Box<InlineConnection>),
    /// A caller uses it.
    Taken,
    /// Never to be used: the option `direct` is off, or the I/O thread has ended.
    Off,
}

impl InlineSlot {
    pub(super) fn new(on: bool) -> InlineSlot {
        let place = if on { Place::Empty } else { Place::Off };
        let keep = Mutex::new(Keep {
            place,
            asked: 0,
            stream: None,
        });
        InlineSlot {
            keep,
            generation: AtomicU64::new(0),
        }
    }

    fn keep(&self) -> MutexGuard<'_, Keep> {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this connection goes with the current command connection. If not, another server may
    /// be asked by now, and its replies do not count. Under the engine's lock this also says that
    /// the engine has not heard of a newer connection.
    pub(super) fn is_current(&self, connection: &InlineConnection) -> bool {
        self.generation.load(Ordering::Acquire) == connection.generation
    }

    /// Takes the connection for a caller, if it is there and works.
    pub(super) fn take(&self, now: Moment) -> Option<Box<InlineConnection>> {
        let mut keep = self.keep();
        match std::mem::replace(&mut keep.place, Place::Taken) {
            Place::Idle(mut connection) => {
                if connection.is_alive(now) {
                    return Some(connection);
                }
                keep.lose(*connection);
                None
            }
            other => {
                keep.place = other;
                None
            }
        }
    }

    /// Counts a call that would have used the connection.
    pub(super) fn wish(&self) {
        let mut keep = self.keep();
        keep.asked = keep.asked.saturating_add(1);
    }

    /// The engine has heard of the identity of a connection that was made: callers may use it.
    pub(super) fn open(&self) {
        let mut keep = self.keep();
        match std::mem::replace(&mut keep.place, Place::Empty) {
            Place::New(connection) => keep.place = Place::Idle(connection),
            other => keep.place = other,
        }
    }

    /// Puts the connection back after use.
    pub(super) fn give(&self, connection: Box<InlineConnection>) {
        let mut keep = self.keep();
        if self.is_current(&connection) && matches!(keep.place, Place::Taken) {
            keep.place = Place::Idle(connection);
        } else {
            keep.lose(*connection);
        }
    }

    /// Closes the connection.
    pub(super) fn lose(&self, connection: InlineConnection) {
        self.keep().lose(connection);
    }

    /// Shuts the socket down under a caller that waits for a reply on it.
    pub(super) fn cut_short(&self) {
        self.keep().cut_short();
    }

    /// Ends the connection for good, also under a caller that waits on it.
    pub(super) fn end(&self) {
        let mut keep = self.keep();
        keep.cut_short();
        (keep.place, keep.stream) = (Place::Off, None);
    }

    /// Another command connection is up. The inline connection that belongs to the previous one is
    /// closed, and replies on it do not count any more.
    pub(super) fn renew(&self, generation: u64) {
        let mut keep = self.keep();
        self.generation.store(generation, Ordering::Release);
        keep.cut_short();
        if let Place::New(_) | Place::Idle(_) = keep.place {
            (keep.place, keep.stream) = (Place::Empty, None);
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        let keep = self.keep();
        matches!(keep.place, Place::Empty) && keep.asked >= tuning::INLINE_WORTH
    }

    /// Keeps a connection that was made. Returns false if it is of no use any more.
    pub(super) fn made(&self, connection: InlineConnection) -> bool {
        let mut keep = self.keep();
        let wanted = self.is_current(&connection) && matches!(keep.place, Place::Empty);
        if wanted {
            keep.stream = Some(connection.stream.clone());
            keep.place = Place::New(Box::new(connection));
        }
        wanted
    }
}

impl Keep {
    fn cut_short(&self) {
        if let (Place::Taken, Some(stream)) = (&self.place, &self.stream) {
            stream.shut_down();
        }
    }

    fn lose(&mut self, connection: InlineConnection) {
        drop(connection);
        self.stream = None;
        if matches!(self.place, Place::Taken) {
            self.place = Place::Empty;
            self.asked = 0;
        }
    }
}

/// Makes the inline connection, on the I/O thread.
#[derive(Default)]
pub(super) struct InlineConnector {
    attempt: Option<Attempt>,
    generation: u64,
    /// No attempt begins before.
    rests_until: Moment,
}

type Attempt = Pin<Box<dyn Future<Output = Result<InlineConnection>>>>;

impl InlineConnector {
    /// Makes a connection if one is wanted, for this generation of the command connection.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        direct: &InlineSlot,
        generation: u64,
        plan: impl FnOnce() -> Option<Plan>,
        news: &mut News,
    ) {
        if self.generation != generation {
            self.generation = generation;
            self.attempt = None;
            self.rests_until = Moment::default();
            direct.renew(generation);
        }
        let now = clock::now();
        if self.attempt.is_none() && self.rests_until <= now && direct.is_wanted() {
            self.attempt = plan().map(|plan| Box::pin(plan.open()) as Attempt);
            self.rests_until = now.after(tuning::INLINE_RETRY);
        }
        if let Some(attempt) = &mut self.attempt
            && let Poll::Ready(made) = attempt.as_mut().poll(cx)
        {
            self.attempt = None;
            // Without it calls go through the I/O thread, so nobody has to be told.
            match made {
                Ok(connection) => {
                    if direct.made(connection) {
                        news.tell(Input::Identity(fresh_identity()));
                    }
                }
                Err(_) => self.rests_until = now.after(tuning::INLINE_REFUSED),
            }
        }
    }
}

/// How to make an inline connection that goes with a command connection.
pub(super) struct Plan {
    pub(super) server: Rc<net::Server>,
    pub(super) manner: Manner,
    /// Whether the command connection has client tracking.
    pub(super) tracked: bool,
    pub(super) publish: Publish,
    pub(super) clock: ServerClock,
    pub(super) generation: u64,
}

impl Plan {
    async fn open(self) -> Result<InlineConnection> {
        let Plan {
            server,
            manner,
            tracked,
            publish,
            clock,
            generation,
        } = self;
        let opened = Asking::connect(net::Asking::plain(server), &manner).await?;
        let stream = opened.into_blocking().map_err(|error| {
            let text = format!("no thread can wait on this connection: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let connection = InlineConnection::new(stream, clock, generation);
        Ok(InlineConnection {
            publish,
            tracked,
            ..connection
        })
    }
}

/// The inline connection.
pub(super) struct InlineConnection {
    stream: Arc<BlockingSocket>,
    /// The calls of the caller that uses it.
    pub(super) load: Option<Payload>,
    /// The last call, and the command that was written for it.
    call: Option<Call>,
    command: Vec<u8>,
    /// The first `got` bytes of `answer` are what has come of the reply, behind what `reader` has of it.
    answer: Vec<u8>,
    got: usize,
    reader: net::Reader,
    pub(super) clock: ServerClock,
    pub(super) publish: Publish,
    /// Whether the server accepts batches on it, as far as is known.
    pub(super) shares: bool,
    pub(super) generation: u64,
    used: Moment,
    /// The read timeout of the socket, as the system knows it; `None`: no limit.
    patience: Option<Duration>,
    /// How long the last answer took.
    took: Duration,
    pub(super) pace: Pace,
    /// Whether the command connection has client tracking. This connection has none.
    tracked: bool,
}

impl InlineConnection {
    /// A connection of this generation, by whose command connection the server's clock is known.
    pub(super) fn new(stream: BlockingSocket, clock: ServerClock, generation: u64) -> Self {
        InlineConnection {
            stream: Arc::new(stream),
            load: None,
            call: None,
            command: Vec::new(),
            answer: vec![0; tuning::INLINE_READ],
            got: 0,
            reader: net::Reader::default(),
            clock,
            publish: Publish::Classic,
            shares: true,
            generation,
            used: clock::now(),
            patience: None,
            took: Duration::ZERO,
            pace: Pace::default(),
            tracked: false,
        }
    }

    /// Whether the server has neither closed the connection nor sent anything unasked.
    fn is_alive(&mut self, now: Moment) -> bool {
        if self.used.until(now) < tuning::INLINE_IDLE {
            return true;
        }
        // A caller that puts it back unused has checked it for the next ones, too.
        self.used = now;
        !self.stream.has_input()
    }

    /// Sends a command for the calls; false if the connection is broken.
    pub(super) fn call(&mut self, uuid: &str, not_after: u64) -> bool {
        let Some(load) = &self.load else { return false };
        let call = load.call(self.call.take(), uuid, not_after, self.publish);
        self.command.clear();
        call.write_evalsha(&mut self.command);
        self.call = Some(call);
        // Read the clock here: `took` measures the server, not the preparation of the call.
        self.send(clock::now()).is_ok()
    }

    /// Sends the same call again, with the text of the script; false if the connection is broken.
    pub(super) fn call_with_text(&mut self) -> bool {
        let Some(call) = &self.call else { return false };
        self.command.clear();
        call.write_eval(&mut self.command);
        let sent = self.send(clock::now()).is_ok();
        // The text is long and seldom needed: do not keep the buffer.
        self.command = Vec::new();
        sent
    }

    /// Notes the server's clock, if the reply that came then tells it.
    pub(super) fn learn(&mut self, server_ms: Option<u64>, came: Moment) {
        if let Some(server_ms) = server_ms {
            self.clock = ServerClock::new(server_ms, came);
        }
    }

    /// Sends the command that was written.
    ///
    /// # Errors
    /// When the connection is broken. If the first byte already failed, nothing was sent.
    fn send(&mut self, now: Moment) -> io::Result<()> {
        self.used = now;
        self.got = 0;
        self.stream.write_all(&self.command)
    }

    /// Waits for the reply, and returns it with the time at which it came. `None` if `patience` is
    /// over or a signal came; without `patience` there is no time limit.
    ///
    /// # Errors
    /// When the connection is broken, or the bytes are not a reply.
    pub(super) fn receive(
        &mut self,
        patience: Option<Duration>,
    ) -> io::Result<Option<(Value, Moment)>> {
        if self.patience != patience {
            // A timeout of zero would be refused.
            self.stream
                .set_read_timeout(patience.map(|time| time.max(Duration::from_millis(1))))?;
            self.patience = patience;
        }
        loop {
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

    /// The reply, if all of it is there.
    fn parse(&mut self) -> io::Result<Option<Value>> {
        let answer = &self.answer[..self.got];
        if self.reader.is_clear() {
            if !answer.ends_with(b"\r\n") && self.got < self.answer.len() {
                return Ok(None);
            }
            // Most replies are a number, and most others an array of numbers.
            if let [b':', digits @ .., b'\r', b'\n'] = answer
                && let Some(number) = natural(digits)
            {
                return Ok(Some(Value::Int(number)));
            }
            if let Some(array) = numbers(answer) {
                return Ok(Some(array));
            }
        }
        self.reader.add(answer);
        self.got = 0;
        let item = self.reader.next().map_err(io::Error::other)?;
        match item {
            None => Ok(None),
            Some(net::Item::Reply(value)) if self.reader.is_clear() => Ok(Some(value)),
            Some(_) => Err(io::Error::other("the server says something unasked")),
        }
    }

    /// Whether the last reply came within `patience`.
    pub(super) fn is_quick(&self, patience: Duration) -> bool {
        self.took <= patience
    }

    /// Waits until something can be read. False if only `stop` is set, if `patience` is over, or if
    /// a signal came.
    pub(super) fn has_input_before(&self, stop: &StopFlag, patience: Option<Duration>) -> bool {
        self.stream.has_input_before(stop, patience)
    }

    /// Whether it matters that this connection has no client tracking: only if the command
    /// connection has it.
    pub(super) fn is_unseen(&self) -> bool {
        self.tracked
    }
}

/// The reply, if it is an array of numbers without a sign, and all of it is there.
fn numbers(answer: &[u8]) -> Option<Value> {
    let (first, mut rest) = line(answer)?;
    let number = |_| {
        let (number, after) = line(rest)?;
        rest = after;
        Some(Value::Int(natural(number.strip_prefix(b":")?)?))
    };
    let all = 0..natural(first.strip_prefix(b"*")?)?;
    let array = Value::Array(all.map(number).collect::<Option<_>>()?);
    rest.is_empty().then_some(array)
}

/// The first line, without its end, and what follows.
fn line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\r')?;
    let rest = text[end..].strip_prefix(b"\r\n")?;
    Some((&text[..end], rest))
}

/// Parses a number that has at least one digit and no sign.
fn natural(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(digit.into())?;
    }
    Some(number)
}

/// Decides whether the server answers so soon that a caller with others to serve should wait for
/// it.
///
/// A single late reply says little: the machine was busy. If the server is far away or slow, every
/// reply is late, and each wait is in vain. The more replies are late, the more calls go through
/// the I/O thread before one is waited for again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Late replies, less those that were in time.
    late: u32,
    /// How many of the next calls go through the I/O thread.
    pause: u32,
}

impl Pace {
    /// Whether the next call may be waited for.
    pub(super) fn is_worth_it(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    /// Learns whether the reply to a call that was waited for came in time.
    pub(super) fn learn(&mut self, in_time: bool) {
        if in_time {
            self.late = self.late.saturating_sub(1);
        } else {
            self.late = (self.late + 1).min(tuning::INLINE_LATE_EXPONENT);
            self.pause = 1 << self.late;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

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

    /// An idle inline connection, and the server's end of it.
    fn made(used: Moment) -> (InlineSlot, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ours = TcpStream::connect(address).expect("connected");
        let (theirs, _) = listener.accept().expect("accepted");
        let connection = InlineConnection {
            used,
            ..InlineConnection::new(ours.into(), ServerClock::new(0, used), 0)
        };
        let direct = InlineSlot::new(true);
        assert!(direct.made(connection));
        assert!(direct.take(used).is_none(), "the engine does not know it");
        direct.open();
        (direct, theirs)
    }

    #[test]
    fn a_connection_that_has_rested_is_used_only_if_the_server_has_left_it_as_it_was() {
        let (now, long_ago) = (clock::now(), clock::now().before(2 * tuning::INLINE_IDLE));
        let (direct, theirs) = made(long_ago);
        let connection = direct.take(now).expect("it is in good order");
        assert!(direct.take(now).is_none(), "somebody uses it");
        direct.give(connection);
        drop(theirs);
        assert!(direct.take(now).is_some(), "it was looked at just now");

        let (direct, theirs) = made(long_ago);
        drop(theirs);
        assert!(
            direct.take(now).is_none() && direct.is_missing(),
            "the server has closed it"
        );
        let (direct, theirs) = made(long_ago);
        (&theirs).write_all(b"-ERR\r\n").expect("written");
        assert!(
            direct.take(now).is_none() && direct.is_missing(),
            "the server has said something unasked"
        );
    }

    #[test]
    fn it_ends_with_the_connection_for_commands_whoever_has_it() {
        let now = clock::now();
        let (direct, _theirs) = made(now);
        direct.renew(1);
        assert!(direct.take(now).is_none() && direct.is_missing());

        let (direct, _theirs) = made(now);
        let connection = direct.take(now).expect("it is in good order");
        direct.renew(1);
        assert!(!direct.is_missing(), "somebody uses it");
        direct.give(connection);
        assert!(direct.take(now).is_none() && direct.is_missing());
    }

    #[test]
    fn nobody_waits_for_an_answer_on_a_connection_that_is_cut_short_or_ended() {
        for end in [InlineSlot::cut_short, InlineSlot::end] {
            let (direct, _theirs) = made(clock::now());
            let mut connection = direct.take(clock::now()).expect("it is in good order");
            let (waited, has_waited) = mpsc::channel();
            let waiter = thread::spawn(move || waited.send(connection.receive(None).map(drop)));
            end(&direct);
            let result = has_waited
                .recv_timeout(Duration::from_secs(30))
                .expect("it waits no longer");
            assert!(result.is_err());
            waiter.join().expect("no panic").expect("told");
        }
    }

    /// Each part of a long one was read with all parts before it.
    #[test]
    fn an_answer_is_read_whatever_its_length_and_its_pieces() {
        let (direct, mut theirs) = made(clock::now());
        let mut connection = direct.take(clock::now()).expect("it is in good order");
        let long = |count: usize| {
            let values = vec![Value::BulkString(vec![b'n'; 20]); count];
            let text = format!(
                "*{count}\r\n{}",
                "$20\r\nnnnnnnnnnnnnnnnnnnnn\r\n".repeat(count)
            );
            (text, Value::Array(values))
        };
        let number = (":7\r\n".to_owned(), Value::Int(7));
        let ints = vec![Value::Int(7); 2000];
        let numbers = (
            format!("*2000\r\n{}", ":7\r\n".repeat(2000)),
            Value::Array(ints),
        );
        for (text, value) in [
            long(1),
            number.clone(),
            long(20_000),
            number,
            numbers,
            long(0),
        ] {
            let writer = thread::spawn(move || {
                theirs.write_all(text.as_bytes()).expect("written");
                theirs
            });
            let (read, _) = connection.receive(None).expect("a reply").expect("in time");
            assert!(read == value);
            assert_eq!(connection.answer.len(), tuning::INLINE_READ);
            connection.got = 0;
            theirs = writer.join().expect("no panic");
        }
        for wrong in ["+OK\r\n:1\r\n", ">1\r\n:1\r\n", "$536870913\r\n"] {
            let (direct, mut theirs) = made(clock::now());
            let mut connection = direct.take(clock::now()).expect("it is in good order");
            theirs.write_all(wrong.as_bytes()).expect("written");
            assert!(connection.receive(None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_is_a_number_is_read_as_redis_reads_it() {
        let read = |text: &str| (natural(text.as_bytes()), text.parse().ok());
        for text in [
            "0",
            "7",
            "1795369635257",
            "9223372036854775807",
            "9223372036854775808",
            "",
            "1a",
            " 1",
        ] {
            let (ours, theirs) = read(text);
            assert_eq!(ours, theirs, "{text}");
        }
        // The general way reads those.
        assert_eq!((natural(b"-1"), natural(b"+1")), (None, None));
        let array = |all: &[i64]| {
            Some(Value::Array(
                all.iter().map(|one| Value::Int(*one)).collect(),
            ))
        };
        assert_eq!(numbers(b"*0\r\n"), array(&[]));
        assert_eq!(numbers(b"*2\r\n:1\r\n:23\r\n"), array(&[1, 23]));
        for other in [
            "*2\r\n:1\r\n",
            "*1\r\n:1\r\n:2\r\n",
            "*1\r\n:-1\r\n",
            "*1\r\n$1\r\n1\r\n",
            "*-1\r\n",
            "*1\r:1\r\n",
            ":1\r\n\r\n",
            "+1\r\n",
            "*9999999999999999999\r\n",
        ] {
            assert_eq!(numbers(other.as_bytes()), None, "{other:?}");
        }
    }

    impl InlineSlot {
        /// The connection breaks while nobody uses it.
        pub(in crate::driver) fn shut_down(&self) {
            let keep = self.keep();
            keep.stream.as_ref().expect("a connection").shut_down();
        }

        fn is_missing(&self) -> bool {
            matches!(self.keep().place, Place::Empty)
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
