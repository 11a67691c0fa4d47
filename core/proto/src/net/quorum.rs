//! The connections to servers that know nothing of each other: a quorum. Each is used as a single server
//! is. The engine keeps their keys apart by names that end with the server ([`servers`]).

use std::rc::Rc;
use std::sync::Arc;

use crate::engine::{CallOutcome, Input, Routes};
use crate::moment::Moment;
use crate::outbox::News;
use crate::outbox::calls::OutgoingCall;
use crate::quorum;
use crate::wire::{Name, Topic, servers};

use super::io::{Arrival, ConnId, Io};
use super::link::Link;
use super::one::One;
use super::server::Server;

pub struct Quorum {
    /// In the order of their links, which are counted from 1.
    members: Vec<Member>,
}

struct Member {
    /// Its address, as it stands in names.
    shown: Arc<str>,
    one: One,
    /// Its reports, with the names that it knows.
    news: News,
}

impl Quorum {
    pub(crate) fn new(servers: impl Iterator<Item = Rc<Server>>) -> Self {
        let member = |(server, id): (Rc<Server>, _)| Member {
            shown: server.shown().into(),
            one: One::server(id, server),
            news: News::default(),
        };
        Quorum {
            members: servers.zip(1..).map(member).collect(),
        }
    }

    /// The link of each name.
    pub(crate) fn routes(&self) -> Routes {
        let servers = self.members.iter().map(|member| member.shown.clone());
        Routes::by_server(servers.collect())
    }

    /// Lets each server do something, and passes on what it reports.
    fn each(&mut self, news: &mut News, mut act: impl FnMut(&mut One, &mut News)) {
        for member in &mut self.members {
            act(&mut member.one, &mut member.news);
            member.report(news);
        }
    }

    pub(crate) fn begin(&mut self, now: Moment, io: &mut dyn Io) {
        for member in &mut self.members {
            member.one.begin(now, io);
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Moment,
        sending: OutgoingCall,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let server = servers::server_of(&sending.op);
        let mut members = self.members.iter_mut();
        let Some(member) = members.find(|member| Some(&*member.shown) == server) else {
            // The engine asks for no other names.
            return news.tell(Input::Outcome {
                call: sending.call,
                outcome: CallOutcome::NotSent,
            });
        };
        let op = Arc::new(servers::op_at_server(&sending.op));
        let sending = OutgoingCall { op, ..sending };
        member.one.send(now, sending, io, &mut member.news);
        member.report(news);
    }

    pub(crate) fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic, io: &mut dyn Io) {
        if let Some((member, key)) = self.member_of(name) {
            member.one.subscribe(now, &key, topic, io);
        }
    }

    pub(crate) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        if let Some((member, key)) = self.member_of(name) {
            member.one.unsubscribe(now, &key, topic);
        }
    }

    /// The server of a name, and the name there.
    fn member_of(&mut self, name: &Name) -> Option<(&mut Member, Name)> {
        let (key, server) = servers::key_and_server(name);
        let mut members = self.members.iter_mut();
        let member = members.find(|member| Some(&*member.shown) == server)?;
        Some((member, key.into()))
    }

    /// Does what follows from the events of the connections.
    pub(crate) fn settle(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        self.each(news, |one, own| one.settle(now, io, own));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.members.iter().all(|member| member.one.is_idle())
    }

    pub(crate) fn has(&self, conn: ConnId) -> bool {
        self.members.iter().any(|member| member.one.has(conn))
    }

    /// Takes in an event of a connection.
    pub(crate) fn arrived(
        &mut self,
        now: Moment,
        conn: ConnId,
        arrival: &Arrival<'_>,
        io: &mut dyn Io,
        news: &mut News,
    ) {
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.one.has(conn)) {
            let Member { one, news: own, .. } = member;
            one.arrived(now, conn, arrival, io, own);
            member.report(news);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let all = self.members.iter();
        all.filter_map(|member| member.one.next_wake()).min()
    }

    pub(crate) fn wake(&mut self, now: Moment, io: &mut dyn Io, news: &mut News) {
        self.each(news, |one, own| one.wake(now, io, own));
    }

    pub(crate) fn each_link(&mut self, act: &mut dyn FnMut(&mut Link)) {
        for member in &mut self.members {
            member.one.each_link(act);
        }
    }
}

impl Member {
    fn report(&mut self, news: &mut News) {
        quorum::pass_on(std::mem::take(&mut self.news), &self.shown, news);
    }
}
