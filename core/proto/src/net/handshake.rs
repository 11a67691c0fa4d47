//! A connection that is being set up: all commands in one write, then their replies.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::error::Error;
use crate::url::Login;
use crate::value::Value;
use crate::{cluster, connecting, quorum, sentinel, wire};

use super::io::{Arrival, ConnId, Io};
use super::resp::{Item, Reader, write_command};
use super::server::{Protocol, Server};

/// The purpose of a connection.
#[derive(Clone, PartialEq)]
pub(crate) enum Purpose {
    Commands,
    /// The same, at a server that has to report the role of primary.
    Primary,
    /// The same, at a node of a cluster.
    Node,
    /// Whatever its owner asks, with RESP2: the calls of a thread, or the questions of a tool.
    Plain,
    /// Pub/sub with RESP2, which needs a connection of its own.
    Channels,
    /// Sharded pub/sub. It has RESP3: every server with sharded pub/sub speaks it.
    Shards,
    /// One question. The connection is of no use once it is answered.
    Question(Vec<String>),
}

impl Purpose {
    pub(crate) fn question(words: &[&str]) -> Purpose {
        Purpose::Question(words.iter().map(|word| (*word).to_owned()).collect())
    }

    pub(crate) fn is_commands(&self) -> bool {
        matches!(self, Purpose::Commands | Purpose::Primary | Purpose::Node)
    }

    /// Whether it has nothing but channels.
    pub(crate) fn is_channels(&self) -> bool {
        matches!(self, Purpose::Channels | Purpose::Shards)
    }
}

/// A connection that is being set up.
pub(crate) struct Handshake {
    pub(crate) conn: ConnId,
    pub(crate) server: Rc<Server>,
    pub(crate) purpose: Purpose,
    pub(crate) resp3: bool,
    pub(crate) reader: Reader,
    /// The commands without a reply.
    steps: VecDeque<Step>,
    /// The last group of the uuids of owners.
    pub(crate) identity: u64,
    /// User and password of the provider that the server has refused. It is asked once more, as there may be
    /// new ones by then.
    refused: Option<(Login, Error)>,
    pub(crate) untracked: Option<String>,
    pub(crate) evicts: Option<String>,
    pub(crate) time: Option<u64>,
    pub(crate) sharded: bool,
    /// The answer to the question.
    pub(crate) answer: Value,
}

#[derive(Clone, Copy)]
enum Step {
    Hello,
    Auth,
    Select,
    Name,
    Track,
    Memory,
    Time,
    /// How long it runs.
    Uptime,
    /// The command that only connections of this purpose send.
    Own,
}

/// How far the set-up of a connection is.
pub(crate) enum Setup {
    /// More replies are to come.
    Wants,
    Done,
}

impl Handshake {
    pub(crate) fn begin(server: Rc<Server>, purpose: Purpose, io: &mut dyn Io) -> Handshake {
        let resp3 = match purpose {
            Purpose::Commands | Purpose::Primary | Purpose::Node => {
                server.manner.protocol != Protocol::Resp2
            }
            Purpose::Shards => true,
            Purpose::Plain | Purpose::Channels | Purpose::Question(_) => false,
        };
        Handshake {
            conn: io.connect(&server),
            server,
            purpose,
            resp3,
            reader: Reader::default(),
            steps: VecDeque::new(),
            identity: 0,
            refused: None,
            untracked: None,
            evicts: None,
            time: None,
            sharded: false,
            answer: Value::Nil,
        }
    }

    /// Takes in an event of the connection.
    ///
    /// # Errors
    /// If the connection is of no use.
    pub(crate) fn arrived(
        &mut self,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
    ) -> Result<Setup, Error> {
        match arrival {
            Arrival::Opened(opened) => {
                self.identity = opened.identity & 0xffff_ffff_ffff;
                self.server = self.server.opened(opened);
                if let Some((before, error)) = &self.refused
                    && *before == self.server.login
                {
                    return Err(error.clone());
                }
                let bytes = self.hail();
                io.write(self.conn, &bytes);
                Ok(Setup::Wants)
            }
            Arrival::Bytes(bytes) => {
                self.reader.add(bytes);
                self.read(io)
            }
            Arrival::Closed(why) => Err(why.unreachable(&self.server, !self.steps.is_empty())),
        }
    }

    /// Begins anew, on another connection.
    fn connect_again(&mut self, io: &mut dyn Io) {
        io.close(self.conn);
        self.conn = io.connect(&self.server);
        self.reader = Reader::default();
        self.steps.clear();
    }

    fn log_in_refused(&mut self, io: &mut dyn Io) -> Result<Setup, Error> {
        let provided = self.server.provided;
        let error = connecting::log_in_refused(&self.server.shown(), provided);
        if !provided || self.refused.is_some() {
            return Err(error);
        }
        self.refused = Some((self.server.login.clone(), error));
        self.connect_again(io);
        Ok(Setup::Wants)
    }

    /// All commands that set the connection up, in one write.
    fn hail(&mut self) -> Vec<u8> {
        let manner = &self.server.manner;
        let Login {
            user,
            password,
            database,
        } = &self.server.login;
        let mut out = Vec::new();
        let steps = &mut self.steps;
        let mut add = |step: Step, words: &[&str]| {
            write_command(&mut out, words);
            steps.push_back(step);
        };
        match (self.resp3, user, password) {
            (true, user, Some(password)) => {
                let user = user.as_deref().unwrap_or("default");
                add(Step::Hello, &["HELLO", "3", "AUTH", user, password]);
            }
            (true, _, None) => add(Step::Hello, &["HELLO", "3"]),
            (false, Some(user), Some(password)) => add(Step::Auth, &["AUTH", user, password]),
            (false, None, Some(password)) => add(Step::Auth, &["AUTH", password]),
            (false, _, None) => {}
        }
        if *database != 0 {
            add(Step::Select, &["SELECT", &database.to_string()]);
        }
        if let Purpose::Question(words) = &self.purpose {
            let words: Vec<&str> = words.iter().map(|word| &**word).collect();
            add(Step::Own, &words);
            return out;
        }
        if !manner.http {
            add(Step::Name, &["CLIENT", "SETNAME", &manner.name]);
        }
        if !self.purpose.is_commands() {
            return out;
        }
        if manner.tracking && self.resp3 {
            add(Step::Track, &["CLIENT", "TRACKING", "ON", "NOLOOP"]);
        } else if manner.tracking {
            let why = match manner.http {
                true => connecting::HTTP_ONLY,
                false => connecting::RESP2_ONLY,
            };
            self.untracked = Some(why.to_owned());
        }
        add(Step::Memory, &["INFO", "memory"]);
        add(Step::Time, &["TIME"]);
        if !manner.least_uptime.is_zero() {
            add(Step::Uptime, &quorum::INFO);
        }
        match self.purpose {
            Purpose::Primary => add(Step::Own, &["ROLE"]),
            Purpose::Node => add(Step::Own, &cluster::SHARDED),
            _ => {}
        }
        out
    }

    fn read(&mut self, io: &mut dyn Io) -> Result<Setup, Error> {
        let server = self.server.clone();
        let useless = |why: String| server.garbled(&why);
        while let Some(step) = self.steps.front().copied() {
            let value = match self.reader.next().map_err(useless)? {
                None => return Ok(Setup::Wants),
                Some(Item::Push(_)) => continue,
                Some(Item::Reply(value)) => value,
            };
            self.steps.pop_front();
            let Value::ServerError(error) = value else {
                self.answered(step, value)?;
                continue;
            };
            let detail = error.details().unwrap_or_default();
            let refused = || server.refused(&error);
            let turned_away = || wire::refusal(error.code(), detail).1;
            match step {
                Step::Hello => {
                    let with_password = server.login.password.is_some();
                    if self.purpose.is_commands()
                        && server.manner.protocol == Protocol::Auto
                        && connecting::refuses_hello(error.code(), error.details(), with_password)
                    {
                        // The server knows only RESP2.
                        self.resp3 = false;
                        self.connect_again(io);
                        return Ok(Setup::Wants);
                    }
                    if server.provided && connecting::refuses_log_in(error.code(), detail) {
                        return self.log_in_refused(io);
                    }
                    return Err(refused());
                }
                // The default user needs no password, and HELLO takes any.
                Step::Auth if connecting::needs_no_password(error.code(), detail) => {}
                Step::Auth if !turned_away() => return self.log_in_refused(io),
                Step::Own if self.purpose == Purpose::Node => {
                    self.sharded = cluster::is_sharded(Err(error.code()));
                }
                Step::Auth | Step::Select | Step::Time | Step::Uptime | Step::Own => {
                    return Err(refused());
                }
                // A name can be done without, and a log-in cannot.
                Step::Name if turned_away() || error.code() == "NOAUTH" => return Err(refused()),
                Step::Track => self.untracked = Some(refused().message().to_owned()),
                Step::Name | Step::Memory => {}
            }
        }
        Ok(Setup::Done)
    }

    /// Takes in a reply that is no error.
    fn answered(&mut self, step: Step, value: Value) -> Result<(), Error> {
        match (step, value) {
            (Step::Memory, Value::BulkString(text)) => {
                self.evicts = connecting::evicts(&String::from_utf8_lossy(&text));
            }
            (Step::Time, value) => {
                let told = time(&value);
                let useless = || self.server.garbled("it does not tell its time");
                self.time = Some(told.ok_or_else(useless)?);
            }
            (Step::Uptime, value) => {
                let info = match &value {
                    Value::BulkString(text) => String::from_utf8_lossy(text),
                    _ => "".into(),
                };
                let Server { at, manner, .. } = &*self.server;
                quorum::check_uptime(&at.to_string(), &info, manner.least_uptime)?;
            }
            (Step::Own, value) => match self.purpose {
                Purpose::Primary => sentinel::check_role(&self.server.shown(), &value)?,
                Purpose::Node => self.sharded = cluster::is_sharded(Ok(())),
                _ => self.answer = value,
            },
            _ => {}
        }
        Ok(())
    }
}

/// The reply to `TIME`, in milliseconds.
fn time(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let part = |at: usize| match parts.get(at)? {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        // JSON has numbers.
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    Some(connecting::millis_of((part(0)?, part(1)?)))
}
