//! A connection without calls of the engine, for as long as its owner wants it: tools ask on it, and the
//! inline connection is set up as one.

use std::rc::Rc;

use crate::engine::{Input, STANDALONE};
use crate::error::{Error, Result};
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::wanted::Wanted;
use crate::url::{Place, Topology};
use crate::value::Value;

use super::handshake::Purpose;
use super::io::{Arrival, ConnId, Io};
use super::link::{Link, Sentinels, Target};
use super::server::{Manner, Server};

pub struct Asking {
    link: Link,
    news: News,
    /// Why it could not be made, or is gone.
    failure: Option<Error>,
}

impl Asking {
    fn new(target: Target, purpose: Purpose, manner: &Rc<Manner>) -> Asking {
        Asking {
            link: Link::new(STANDALONE, target, purpose, manner.clone()),
            news: News::default(),
            failure: None,
        }
    }

    /// To the server of a URL, or to the primary that its sentinels name.
    pub fn primary(place: &Place, manner: &Rc<Manner>) -> Asking {
        let server = Server::of(place, manner);
        let Topology::Sentinel { hosts, service } = &place.topology else {
            return Asking::keeper(server);
        };
        let sentinels = Sentinels::new(place, hosts, service, server);
        let target = Target::Primary(Rc::new(sentinels));
        Asking::new(target, Purpose::Primary, manner)
    }

    /// To a server that keeps locks, which has to be fit for that.
    pub fn keeper(server: Rc<Server>) -> Asking {
        let manner = server.manner.clone();
        Asking::new(Target::Any(vec![server]), Purpose::Commands, &manner)
    }

    /// To any server, with RESP2.
    pub fn plain(server: Rc<Server>) -> Asking {
        let manner = server.manner.clone();
        Asking::new(Target::Any(vec![server]), Purpose::Plain, &manner)
    }

    pub fn begin(&mut self, now: Moment, io: &mut dyn Io) {
        self.link.begin(now, io);
    }

    /// The server that it leads to, once it is set up.
    pub fn server(&self) -> Option<&Rc<Server>> {
        self.link.server()
    }

    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The error for a server that has not answered in time.
    pub fn late(&self) -> Option<Error> {
        match self.link.server() {
            Some(server) => Some(server.late()),
            None => self.link.late(),
        }
    }

    pub fn arrived(&mut self, now: Moment, conn: ConnId, arrival: &Arrival<'_>, io: &mut dyn Io) {
        let (none, news) = (Wanted::default(), &mut self.news);
        self.link.arrived(now, conn, arrival, &none, io, news);
        for input in std::mem::take(&mut self.news).inputs {
            if let Input::Down(_, error) = input {
                self.failure = Some(error);
                self.link.end(io);
            }
        }
    }

    pub fn ask(&mut self, words: &[impl AsRef<[u8]>]) {
        self.link.ask(words);
    }

    /// Writes what was asked.
    pub fn flush(&mut self, now: Moment, io: &mut dyn Io) {
        self.link.flush(now, io, &mut self.news);
    }

    /// How many questions have an answer.
    pub fn answered(&self) -> usize {
        self.link.answers.len()
    }

    /// The answers, in the order of the questions. Those that come later are of no interest.
    pub fn take_answers(&mut self) -> Vec<Result<Value>> {
        let answers = std::mem::take(&mut self.link.answers);
        self.link.stop_asking();
        answers
    }
}
