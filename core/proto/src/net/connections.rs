//! The connections to one server: one for most calls and, once it is needed, one for calls that wait
//! for replicas.

use std::rc::Rc;

use crate::engine::LinkId;
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::OutgoingCall;
use crate::outbox::waiting::Waiting;
use crate::outbox::wanted::Wanted;

use super::handshake::Purpose;
use super::io::{Arrival, ConnId, Io};
use super::link::{Link, Target};
use super::server::Manner;

pub(crate) struct Connections {
    pub(crate) plain: Link,
    /// The connection for calls that wait for replicas.
    waiting: Link,
    /// The generation of `plain` that the other connection goes with.
    generation: u64,
    held: Waiting,
}

impl Connections {
    pub(crate) fn new(id: LinkId, target: Target, purpose: Purpose, manner: &Rc<Manner>) -> Self {
        // It goes where the other one leads.
        let none = Target::Any(Vec::new());
        Connections {
            plain: Link::new(id, target, purpose.clone(), manner.clone()),
            waiting: Link::new(id, none, purpose, manner.clone()),
            generation: 0,
            held: Waiting::default(),
        }
    }

    pub(crate) fn links(&mut self) -> [&mut Link; 2] {
        [&mut self.plain, &mut self.waiting]
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.plain.has(conn) || self.waiting.has(conn)
    }

    /// Whether everything is connected and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.plain.is_up() && !self.is_busy()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.plain.is_busy() || self.waiting.is_busy() || !self.held.is_empty()
    }

    pub(crate) fn send(
        &mut self,
        now: Moment,
        sending: OutgoingCall,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        if sending.op.replicas() == 0 || !self.plain.is_up() {
            self.plain.send(now, sending, news);
        } else {
            self.held.hold(now, sending);
            self.waiting.begin(now, io);
            self.send_held(now, news);
        }
    }

    /// Leaves the server, because it is no longer the one that is wanted.
    pub(crate) fn leave(
        &mut self,
        now: Moment,
        why: &str,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        self.plain.leave(now, why, wanted, io, news);
        let (none, mut heard) = (Wanted::default(), News::default());
        self.waiting.leave(now, why, &none, io, &mut heard);
        self.held.hear(heard, news);
    }

    /// `wanted`: the channels that the connection for most calls has. The event is about one of these
    /// connections.
    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        wanted: &Wanted,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let (none, mut heard) = (Wanted::default(), News::default());
        if self.waiting.has(conn) {
            self.waiting
                .arrived(now, conn, arrival, &none, io, &mut heard);
        } else {
            self.plain.arrived(now, conn, arrival, wanted, io, news);
            if self.generation != self.plain.generation {
                self.generation = self.plain.generation;
                // The address may lead to another server by now, but the engine takes both
                // connections for one server.
                if let Some(server) = self.plain.server() {
                    self.waiting.lead_to(server.clone());
                }
                let why = "goes with one that was replaced";
                self.waiting.leave(now, why, &none, io, &mut heard);
            }
        }
        self.held.hear(heard, news);
        self.send_held(now, news);
    }

    pub(crate) fn next_wake(&self, wanted: &Wanted) -> Option<Moment> {
        let links = [
            self.plain.next_wake(wanted),
            self.waiting.next_wake(&Wanted::default()),
        ];
        links
            .into_iter()
            .chain([self.held.next_wake()])
            .flatten()
            .min()
    }

    pub(crate) fn wake(&mut self, now: Moment, wanted: &Wanted, io: &mut dyn Io, news: &mut News) {
        self.plain.wake(now, wanted, io, news);
        let mut heard = News::default();
        self.waiting.wake(now, &Wanted::default(), io, &mut heard);
        self.held.hear(heard, news);
        self.send_held(now, news);
    }

    fn send_held(&mut self, now: Moment, news: &mut News) {
        let is_free = self.waiting.is_up() && !self.waiting.is_busy();
        if let Some(sending) = self.held.take(now, is_free, news) {
            self.waiting.send(now, sending, news);
        }
    }
}
