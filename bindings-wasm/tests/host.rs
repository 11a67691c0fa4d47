//! The interface without a runtime: this links the crate, calls the functions of the module as
//! `bindings-wasm/README.md` describes them, and locks a real server. `test_host.py` loads the module.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../core/tests/support/starter.rs"]
mod starter;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlatch_wasm::abi::*;
use starter::Server;

/// The arguments of a call.
#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn number(mut self, number: f64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0
            .extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }
}

#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Flag(bool),
    Held,
    Holders(Vec<String>),
    Texts(Vec<String>),
    Failed(u32, String),
}

#[derive(Default)]
struct Host {
    sockets: HashMap<u64, TcpStream>,
    answers: HashMap<u64, Answer>,
    lost: Vec<(u64, u32)>,
    gone: Vec<u64>,
    due: Option<u64>,
}

/// Reads records.
struct Records(Vec<u8>, usize);

impl Records {
    fn take(&mut self, length: usize) -> &[u8] {
        self.1 += length;
        &self.0[self.1 - length..self.1]
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn number(&mut self) -> f64 {
        f64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = u32::from_le_bytes(self.take(4).try_into().unwrap());
        self.take(length as usize).to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }
}

impl Host {
    /// Gives arguments, calls, and does what the records say.
    #[allow(
        unsafe_code,
        reason = "the memory of the module is reached by its place"
    )]
    fn call(&mut self, given: Arguments, call: impl FnOnce() -> u32) {
        let place = redlatch_input(u32::try_from(given.0.len()).unwrap());
        // SAFETY: the function has made that much room there.
        unsafe { std::ptr::copy_nonoverlapping(given.0.as_ptr(), place, given.0.len()) };
        let length = call() as usize;
        // SAFETY: as many bytes of records are there, and stay until the next call.
        let bytes = unsafe { std::slice::from_raw_parts(redlatch_output(), length) }.to_vec();
        let mut records = Records(bytes, 0);
        while records.1 < length {
            self.record(&mut records);
        }
    }

    fn record(&mut self, records: &mut Records) {
        let (kind, number) = (records.byte(), records.number() as u64);
        match kind {
            1 => {
                let (_, tls, host, port) = (
                    records.number(),
                    records.byte(),
                    records.text(),
                    records.number(),
                );
                records.number();
                assert_eq!(tls, 0);
                match TcpStream::connect((host, port as u16)) {
                    Ok(socket) => {
                        socket
                            .set_read_timeout(Some(Duration::from_millis(2)))
                            .unwrap();
                        self.sockets.insert(number, socket);
                        let random = Arguments::default().number(0.123_456_789);
                        self.after(
                            random,
                            move || redlatch_opened(number as f64, now()),
                            records,
                        );
                    }
                    Err(error) => {
                        let why = Arguments::default().byte(255).text(&error.to_string());
                        let closed = move || redlatch_closed(number as f64, now());
                        self.after(why, closed, records);
                    }
                }
            }
            2 => {
                let bytes = records.bytes();
                self.sockets
                    .get_mut(&number)
                    .unwrap()
                    .write_all(&bytes)
                    .unwrap();
            }
            3 => drop(self.sockets.remove(&number)),
            4 => {
                let answer = match records.byte() {
                    0 => Answer::Done,
                    1 => Answer::Flag(records.byte() == 1),
                    3 => {
                        let count = records.number() as usize;
                        let owner = |_| {
                            let owner = records.text();
                            records.number();
                            records.number();
                            if records.byte() == 0 {
                                return owner;
                            }
                            let (client, language) = (records.text(), records.text());
                            let (pid, host) = (records.number(), records.text());
                            format!("{owner} {client} {language} {pid} {host}")
                        };
                        Answer::Holders((0..count).map(owner).collect())
                    }
                    4 => {
                        let count = records.number() as usize;
                        Answer::Texts((0..count).map(|_| records.text()).collect())
                    }
                    5 => Answer::Held,
                    other => panic!("a value {other}"),
                };
                self.answers.insert(number, answer);
            }
            5 => {
                let answer = Answer::Failed(records.number() as u32, records.text());
                records.byte();
                if records.byte() == 1 {
                    records.text();
                }
                records.number();
                self.answers.insert(number, answer);
            }
            6 => self.lost.push((number, records.number() as u32)),
            7 => {}
            8 => self.gone.push(number),
            9 => self.due = Some(number),
            other => panic!("a record {other}"),
        }
    }

    /// Makes a call in the middle of the records of another one.
    fn after(&mut self, given: Arguments, call: impl FnOnce() -> u32, before: &mut Records) {
        let rest = std::mem::take(&mut before.0);
        self.call(given, call);
        before.0 = rest;
    }

    /// Waits for the answer of a call.
    fn wait(&mut self, id: u64) -> Answer {
        let end = Instant::now() + Duration::from_secs(60);
        self.call(Arguments::default(), || redlatch_flush(now()));
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            assert!(Instant::now() < end, "no answer");
            self.turn();
        }
    }

    /// Reads what has arrived, and lets time pass.
    fn turn(&mut self) {
        let mut bytes = [0; 4096];
        for conn in self.sockets.keys().copied().collect::<Vec<u64>>() {
            let Some(socket) = self.sockets.get_mut(&conn) else {
                continue;
            };
            match socket.read(&mut bytes) {
                Ok(length @ 1..) => {
                    let given = Arguments(bytes[..length].to_vec());
                    self.call(given, || redlatch_received(conn as f64, now()));
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => {
                    self.sockets.remove(&conn);
                    let why = Arguments::default().byte(255).text("closed");
                    self.call(why, || redlatch_closed(conn as f64, now()));
                }
            }
        }
        if self.due.take_if(|due| *due as f64 <= now()).is_some() {
            self.call(Arguments::default(), || redlatch_wake(now()));
        }
    }
}

/// Microseconds of a clock that never goes back.
fn now() -> f64 {
    use std::sync::OnceLock;
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_micros() as f64 + 1.0
}

#[test]
fn a_host_of_another_kind_locks_a_real_server() {
    let server = Server::start();
    let mut host = Host::default();
    redlatch_spelling(0);
    let given = || Arguments::default();
    let program = |options: fn(Arguments) -> Arguments, url: &str| {
        let random = given().number(0.1).number(0.2).number(0.3);
        let program = random.text("test").number(7.0).text("here");
        options(program.byte(1).text(url).byte(0))
    };

    // Bad input has an answer of its own.
    let odd = |given: Arguments| given.text("leese").byte(1).number(1.0);
    host.call(program(odd, "redis://h"), || redlatch_open(1.0));
    let Some(Answer::Failed(16, text)) = host.answers.remove(&0) else {
        panic!("accepted")
    };
    assert!(text.contains("did you mean lease?"), "{text}");

    let url = format!("redis://127.0.0.1:{}", server.port());
    host.call(program(|given| given, &url), || redlatch_open(1.0));
    assert!(matches!(host.answers.remove(&0), Some(Answer::Texts(_))));
    host.call(given(), || redlatch_ready(2.0, 1.0, now()));
    assert_eq!(host.wait(2), Answer::Done);

    let name = || given().byte(0).number(0.0).text("orders:42");
    host.call(given().text("orders:42"), || redlatch_locks(3.0, 1.0));
    host.call(name(), || redlatch_acquire(4.0, 3.0, now()));
    assert_eq!(host.wait(4), Answer::Held);
    assert_eq!((redlatch_is_held(4.0, now()), redlatch_count(4.0)), (1, 1));
    assert!(redlatch_remaining(4.0, now()) > 20_000.0);
    for (processes, end) in [(0, ""), (1, " redlatch test 7 here")] {
        host.call(given().text("orders:42").byte(processes), || {
            redlatch_inspect(5.0, 3.0, now())
        });
        let Answer::Holders(owners) = host.wait(5) else {
            panic!("no holders");
        };
        assert!(owners.len() == 1 && owners[0].contains(':'), "{owners:?}");
        assert!(owners[0].ends_with(end), "{owners:?}");
    }

    // Another owner waits until it is released.
    host.call(name().text("wait").byte(1).number(0.0), || {
        redlatch_acquire(6.0, 3.0, now())
    });
    assert!(matches!(host.wait(6), Answer::Failed(1, _)));
    host.call(name(), || redlatch_acquire(7.0, 3.0, now()));
    host.turn();
    host.call(given(), || redlatch_release(8.0, 4.0, now()));
    assert_eq!((host.wait(8), host.wait(7)), (Answer::Done, Answer::Held));

    // A loss is told to the levels that are left.
    host.call(given(), || redlatch_reenter(11.0, 3.0, 7.0, now()));
    assert_eq!(host.wait(11), Answer::Held);
    host.call(given(), || redlatch_release(12.0, 11.0, now()));
    assert_eq!(host.wait(12), Answer::Done);
    host.call(given().text("orders:42"), || {
        redlatch_force(9.0, 3.0, now())
    });
    assert_eq!(host.wait(9), Answer::Flag(true));
    assert_eq!(
        (&host.lost[..], redlatch_is_held(7.0, now())),
        (&[(7, 4)][..], 0)
    );

    host.call(given(), || redlatch_close(10.0, 1.0, now()));
    assert_eq!(host.wait(10), Answer::Texts(Vec::new()));
    assert!(host.sockets.is_empty());
    assert!(host.gone.is_empty());
    host.call(given(), || redlatch_drop_client(1.0, now()));
    assert_eq!(host.gone, [1]);
}
