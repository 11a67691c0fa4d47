//! The connections to one server: one for most calls and, once it is needed, one for calls that
//! wait for replicas, as `redlatch_proto::outbox::waiting` says.

use std::task::Context;

use redis::aio::MultiplexedConnection;
use redlatch_proto::outbox::waiting;

use super::News;
use super::calls::OutgoingCall;
use super::channels::Said;
use super::connect::Address;
use super::link::{Link, Manner, Target};
use crate::engine::LinkId;
use crate::moment::Moment;
use crate::wire::Publish;

/// Driven from outside, as a `Link` is. The engine sees both connections as one link.
pub(super) struct ServerConnections {
    plain: Link,
    waiting: Waiting,
    /// The generation of `plain` that the other connection goes with.
    generation: u64,
}

/// The connection for calls that wait for replicas.
struct Waiting {
    id: LinkId,
    target: Target,
    manner: Manner,
    link: Option<Link>,
    held: waiting::Waiting,
}

impl ServerConnections {
    /// Begins to connect at the first [`poll`](ServerConnections::poll).
    pub(super) fn new(id: LinkId, target: Target, manner: Manner) -> Self {
        let plain = Link::new(id, target.clone(), manner.clone());
        ServerConnections {
            plain,
            waiting: Waiting {
                id,
                target,
                manner,
                link: None,
                held: waiting::Waiting::default(),
            },
            generation: 0,
        }
    }

    /// Sends a call, or reports soon that it cannot be sent.
    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
        match self.plain.server() {
            Some(server) if sending.op.replicas() > 0 => {
                self.waiting.send(now, server, sending, news);
            }
            _ => self.plain.send(now, sending, news),
        }
    }

    /// The connection for most calls.
    pub(super) fn plain(&self) -> &Link {
        &self.plain
    }

    /// Takes the pub/sub messages that came on the connection for most calls.
    pub(super) fn take_messages(&mut self) -> impl Iterator<Item = Said> {
        self.plain.take_messages()
    }

    pub(super) fn publishes(&self) -> Option<Publish> {
        self.plain.publishes()
    }

    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        self.plain.connection()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.plain.is_idle() && !self.waiting.is_busy()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.plain.is_busy() || self.waiting.is_busy()
    }

    pub(super) fn leave(&mut self, why: &str, news: &mut News) {
        self.plain.leave(why, news);
        self.waiting
            .drive(news, |link, heard| link.leave(why, heard));
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        self.plain.poll(cx, news);
        if self.generation != self.plain.generation() {
            self.generation = self.plain.generation();
            // The address may lead to another server by now, but the engine takes both connections
            // for one server.
            if let Some(server) = self.plain.server() {
                let target = self.waiting.target.at(server);
                self.waiting.drive(news, |link, heard| {
                    link.leave_for(target, "goes with one that was replaced", heard);
                });
            }
        }
        // Calls that are sent because the connection is up now have to be polled once, too.
        while self.waiting.drive(news, |link, heard| link.poll(cx, heard)) {}
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let link = self.waiting.link.as_ref().and_then(Link::next_wake);
        [self.plain.next_wake(), link, self.waiting.held.next_wake()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.plain.wake(now, news);
        self.waiting
            .drive(news, |link, heard| link.wake(now, heard));
    }
}

impl Waiting {
    /// `server`: where the other connection leads.
    fn send(&mut self, now: Moment, server: &Address, sending: OutgoingCall, news: &mut News) {
        self.held.hold(now, sending);
        if self.link.is_none() {
            let target = self.target.at(server);
            self.link = Some(Link::new(self.id, target, self.manner.clone()));
        }
        self.send_held(now, news);
    }

    /// Sends the calls that were held, if the connection is up. True if any was sent.
    fn send_held(&mut self, now: Moment, news: &mut News) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let taken = self.held.take(now, link.server().is_some(), news);
        let sent = !taken.is_empty();
        for sending in taken {
            link.send(now, sending, news);
        }
        sent
    }

    /// Lets the connection do something and passes its news on. True if held calls were sent because
    /// it is up now.
    fn drive(&mut self, news: &mut News, act: impl FnOnce(&mut Link, &mut News)) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let mut heard = News::default();
        act(link, &mut heard);
        self.held.hear(heard, news);
        self.send_held(crate::clock::now(), news)
    }

    fn is_busy(&self) -> bool {
        !self.held.is_empty() || self.link.as_ref().is_some_and(Link::is_busy)
    }
}
