//! The ways to one server: a connection for most calls and, once it is needed, one for calls that wait
//! for replicas. WAIT keeps everything behind it waiting, and counts the writes of its own connection
//! only.

use std::task::Context;

use redis::aio::MultiplexedConnection;

use super::News;
use super::channels::Said;
use super::connect::Address;
use super::link::{Link, Manner, Target};
use super::traffic::Sending;
use crate::engine::{Input, LinkId, Outcome};
use crate::moment::Moment;
use crate::wire::Publish;

/// Driven from outside as a `Link` is, and for the engine one link.
pub(super) struct Lanes {
    plain: Link,
    waiting: Waiting,
    /// Which connection for most calls the other one goes with.
    generation: u64,
}

/// The connection for calls that wait for replicas.
struct Waiting {
    id: LinkId,
    target: Target,
    manner: Manner,
    link: Option<Link>,
    /// Calls that came before it was there, and when their time is over.
    held: Vec<(Sending, Moment)>,
}

impl Lanes {
    /// Begins to connect at the first [`poll`](Lanes::poll).
    pub(super) fn new(id: LinkId, target: Target, manner: Manner) -> Self {
        let plain = Link::new(id, target.clone(), manner.clone());
        Lanes { plain, waiting: Waiting { id, target, manner, link: None, held: Vec::new() }, generation: 0 }
    }

    /// Sends a call, or says soon that it cannot be sent.
    pub(super) fn send(&mut self, now: Moment, sending: Sending, news: &mut News) {
        if sending.op.replicas() == 0 || self.plain.server().is_none() {
            self.plain.send(now, sending, news);
        } else {
            self.waiting.send(now, sending, news);
        }
    }

    /// The way for most calls.
    pub(super) fn plain(&self) -> &Link {
        &self.plain
    }

    /// The messages that came by the way for most calls.
    pub(super) fn take_messages(&mut self) -> impl Iterator<Item = Said> {
        self.plain.take_messages()
    }

    pub(super) fn publishes(&self) -> Option<Publish> {
        self.plain.publishes()
    }

    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        self.plain.connection()
    }

    pub(super) fn server(&self) -> Option<&Address> {
        self.plain.server()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.plain.is_idle() && !self.waiting.is_busy()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.plain.is_busy() || self.waiting.is_busy()
    }

    pub(super) fn leave(&mut self, why: &str, news: &mut News) {
        self.plain.leave(why, news);
        self.waiting.drive(news, |link, heard| link.leave(why, heard));
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        self.plain.poll(cx, news);
        if self.generation != self.plain.generation() {
            self.generation = self.plain.generation();
            // The address may lead to another server by now, and to the engine there is one.
            self.waiting.drive(news, |link, heard| link.leave("goes with one that was replaced", heard));
        }
        // What is sent because it is connected now has to be polled once, too.
        while self.waiting.drive(news, |link, heard| link.poll(cx, heard)) {}
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let link = self.waiting.link.as_ref().and_then(Link::next_wake);
        let held = self.waiting.held.iter().map(|(_, end)| *end);
        [self.plain.next_wake(), link].into_iter().flatten().chain(held).min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.plain.wake(now, news);
        self.waiting.drive(news, |link, heard| link.wake(now, heard));
        self.waiting.send_held(now, news);
    }
}

impl Waiting {
    fn send(&mut self, now: Moment, sending: Sending, news: &mut News) {
        let end = now.after(sending.limit);
        self.held.push((sending, end));
        if self.link.is_none() {
            self.link = Some(Link::new(self.id, self.target.clone(), self.manner.clone()));
        }
        self.send_held(now, news);
    }

    /// Sends what has waited for the connection, in what is left of its time; true if anything was sent.
    fn send_held(&mut self, now: Moment, news: &mut News) -> bool {
        let Some(link) = &mut self.link else { return false };
        let before = self.held.len();
        for (sending, end) in std::mem::take(&mut self.held) {
            if end <= now {
                news.tell(Input::Outcome { call: sending.call, outcome: Outcome::NotSent });
            } else if link.server().is_some() {
                link.send(now, Sending { limit: now.until(end), ..sending }, news);
            } else {
                self.held.push((sending, end));
            }
        }
        self.held.len() < before
    }

    /// Lets the connection do something and passes on what it has learnt. Whether it is up is its own
    /// matter. True if calls were sent because it is.
    fn drive(&mut self, news: &mut News, act: impl FnOnce(&mut Link, &mut News)) -> bool {
        let Some(link) = &mut self.link else { return false };
        let mut heard = News::default();
        act(link, &mut heard);
        news.connects += heard.connects;
        news.redirects.extend(heard.redirects);
        let mut up = false;
        for input in heard.inputs {
            match input {
                Input::Up(_) => up = true,
                Input::Down(..) => {}
                input => news.tell(input),
            }
        }
        up && self.send_held(crate::clock::now(), news)
    }

    fn is_busy(&self) -> bool {
        !self.held.is_empty() || self.link.as_ref().is_some_and(Link::is_busy)
    }
}
