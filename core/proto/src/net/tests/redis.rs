//! Servers that speak RESP byte for byte. Their data is the model of the engine's simulation.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::tests::simulation::server::Server;
use crate::net::ConnId;
use crate::net::resp::Reader;
use crate::url::Host;
use crate::value::Value;
use crate::wire::slots::{SLOTS, slot};

/// The slots move in ranges of this length.
pub(super) const RANGES: usize = 4;

/// The range of slots that a key belongs to.
pub(super) fn range_of(key: &str) -> usize {
    usize::from(slot(key)) * RANGES / usize::from(SLOTS)
}

/// The first and last slot of a range.
pub(super) fn slots_of(range: usize) -> (usize, usize) {
    let length = usize::from(SLOTS) / RANGES;
    (range * length, (range + 1) * length - 1)
}

/// What a server makes of `HELLO 3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    Known,
    /// The server speaks RESP2 only.
    NoProto,
    /// The command is unknown, as before Redis 6.
    Unknown,
}

/// How a server turns new connections away. Those that it has go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has too many: it says so unasked, and closes the connection.
    TooMany,
    /// Whoever has logged in is told this error.
    Says(&'static str),
    /// The user may not use this command.
    Denies(&'static str),
}

impl Turn {
    /// The error that each command has after the log-in.
    pub(super) fn says(self) -> Option<&'static str> {
        match self {
            Turn::Says(text) => Some(text),
            Turn::TooMany | Turn::Denies(_) => None,
        }
    }
}

/// A slot range that moves to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) range: usize,
    pub(super) to: usize,
}

/// A server process.
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) data: Server,
    /// When it was started, in microseconds.
    pub(super) started: u64,
    /// Whether it reports the role of primary, and whether it takes writes.
    pub(super) says_primary: bool,
    pub(super) is_primary: bool,
    pub(super) password: Option<String>,
    /// The one that it has when all is well.
    pub(super) own_password: Option<String>,
    pub(super) hello: Hello,
    pub(super) sharded: bool,
    /// Until when connections are refused, or are never answered.
    pub(super) refuses: u64,
    pub(super) ignores: u64,
    /// Until when new connections are turned away.
    pub(super) turns_away: (u64, Turn),
    /// Until when each script is refused by this error.
    pub(super) trouble: (u64, &'static str),
    /// The hashes of the scripts that it knows.
    pub(super) scripts: BTreeSet<String>,
    /// A sentinel: the server that it names.
    pub(super) names: Option<usize>,
    /// A node of a cluster: the owner of each range, as far as it knows.
    pub(super) map: Option<[usize; RANGES]>,
}

impl Node {
    pub(super) fn new(number: usize) -> Node {
        Node {
            host: Host {
                name: "s".to_owned(),
                port: 7000 + number as u16,
            },
            data: Server::new(),
            started: 0,
            says_primary: true,
            is_primary: true,
            password: None,
            own_password: None,
            hello: Hello::Known,
            sharded: true,
            refuses: 0,
            ignores: 0,
            turns_away: (0, Turn::TooMany),
            trouble: (0, ""),
            scripts: BTreeSet::new(),
            names: None,
            map: None,
        }
    }

    pub(super) fn shown(&self) -> String {
        format!("{}:{}", self.host.name, self.host.port)
    }
}

/// The server's side of a connection.
#[derive(Default)]
pub(super) struct Session {
    pub(super) reader: Reader,
    pub(super) has_logged_in: bool,
    pub(super) resp3: bool,
    pub(super) tracks: bool,
    /// The next command is for a slot that is being imported.
    pub(super) asking: bool,
    /// The channels, and whether each is sharded.
    pub(super) channels: BTreeMap<String, bool>,
    /// It was told by `ROLE` that the server is a primary.
    pub(super) told_primary: bool,
    /// It was told how long the server runs, in seconds.
    pub(super) told_uptime: Option<u64>,
    pub(super) is_named: bool,
    /// The server takes no command `CLIENT` from its user.
    pub(super) is_restricted: bool,
    /// The server has said that this connection is of no use.
    pub(super) turned_away: Option<String>,
    pub(super) database: u32,
}

/// One direction of a connection: bytes on their way.
#[derive(Default)]
pub(super) struct Pipe {
    pub(super) bytes: Vec<u8>,
    /// An event will bring some of them.
    pub(super) moves: bool,
    /// What is written is lost, and nobody is told.
    pub(super) is_dead: bool,
}

/// A connection, with both ends.
pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) node: usize,
    pub(super) identity: u64,
    /// The program provides user and password.
    pub(super) provided: bool,
    pub(super) session: Session,
    pub(super) up: Pipe,
    pub(super) down: Pipe,
    pub(super) is_open: bool,
    /// When the client has to have given it up, once a call is lost on it because it hangs.
    pub(super) ends_by: Option<u64>,
    /// Reads what the client writes, to know which calls are under way.
    pub(super) written: Reader,
    pub(super) calls: BTreeSet<u64>,
}

impl Conn {
    pub(super) fn new(client: usize, node: usize, identity: u64, provided: bool) -> Conn {
        Conn {
            client,
            node,
            identity,
            provided,
            session: Session::default(),
            up: Pipe::default(),
            down: Pipe::default(),
            is_open: false,
            ends_by: None,
            written: Reader::default(),
            calls: BTreeSet::new(),
        }
    }
}

pub(super) type Conns = BTreeMap<ConnId, Conn>;

/// The words of a command.
pub(super) fn words_of(value: Value) -> Vec<String> {
    let Value::Array(words) = value else {
        panic!("{value:?} is no command");
    };
    let text = |word| match word {
        Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?} is no word of a command"),
    };
    words.into_iter().map(text).collect()
}

pub(super) fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

pub(super) fn ok() -> Value {
    Value::SimpleString("OK".to_owned())
}

pub(super) fn refusal(text: &str) -> Value {
    let (code, details) = text.split_once(' ').unwrap();
    Value::ServerError(crate::value::ServerError::new(
        code,
        Some(details.to_owned()),
    ))
}

/// Writes a value as the server does.
pub(super) fn put(out: &mut Vec<u8>, value: &Value, resp3: bool) {
    let mut line = |text: String| {
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    match value {
        Value::Nil => line(if resp3 { "_" } else { "$-1" }.to_owned()),
        Value::Int(number) => line(format!(":{number}")),
        Value::SimpleString(text) => line(format!("+{text}")),
        Value::BulkString(bytes) => {
            line(format!("${}", bytes.len()));
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Value::Array(values) => {
            line(format!("*{}", values.len()));
            values.iter().for_each(|value| put(out, value, resp3));
        }
        Value::ServerError(error) => line(format!(
            "-{} {}",
            error.code(),
            error.details().unwrap_or_default()
        )),
        // The answer to HELLO: a map in RESP3.
        Value::Other(_) => out.extend_from_slice(b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
    }
}

/// Writes a message of pub/sub or of tracking.
pub(super) fn push(out: &mut Vec<u8>, values: &[Value], resp3: bool) {
    let mark = if resp3 { '>' } else { '*' };
    out.extend_from_slice(format!("{mark}{}\r\n", values.len()).as_bytes());
    values.iter().for_each(|value| put(out, value, resp3));
}
