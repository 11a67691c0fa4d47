//! The connections of a client, whatever the servers are.

use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use super::link::{Link, Target};
use super::pubsub::Subscriptions;
use super::sentinel::{Sentinels, Watch};
use super::{News, Servers};
use crate::engine::{CallId, NOWHERE};
use crate::moment::Moment;
use crate::wire::{Name, Op};

/// Everything that leads to one server at a time. Driven from outside as a `Link` is.
pub(super) struct Net {
    link: Link,
    subscriptions: Subscriptions,
    watch: Option<Watch>,
}

impl Net {
    pub(super) fn new(servers: Servers, tracking: bool, uuid: String) -> Self {
        let (target, addresses) = match servers {
            Servers::Single(address) => (Target::Server(address.clone()), vec![address]),
            Servers::Sentinel { sentinels, service, server } => {
                (Target::Primary(Rc::new(Sentinels::new(sentinels, service, server))), Vec::new())
            }
        };
        let watch = match &target {
            Target::Server(_) => None,
            Target::Primary(sentinels) => Some(Watch::new(sentinels.clone())),
        };
        Net {
            link: Link::new(NOWHERE, target, tracking, uuid),
            subscriptions: Subscriptions::new(addresses),
            watch,
        }
    }

    pub(super) fn send(&mut self, now: Moment, call: CallId, op: Op, limit: Duration, news: &mut News) {
        self.link.send(now, call, op, limit, news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name) {
        self.subscriptions.subscribe(now, name);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name) {
        self.subscriptions.unsubscribe(now, name);
    }

    /// Whether everything is connected and nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.link.is_idle()
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        if self.watch.as_mut().is_some_and(|watch| watch.poll(cx)) {
            self.link.leave("leads to a primary that was replaced", news);
        }
        self.link.poll(cx, news);
        // Messages come from the primary, too.
        if let Some(server) = self.link.server().filter(|server| !self.subscriptions.follows(server)) {
            self.subscriptions.follow(vec![server.clone()]);
        }
        self.subscriptions.poll(cx, news);
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let watch = self.watch.as_ref().and_then(Watch::next_wake);
        [self.link.next_wake(), self.subscriptions.next_wake(), watch].into_iter().flatten().min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.link.wake(now, news);
        self.subscriptions.wake(now, news);
        if let Some(watch) = &mut self.watch {
            watch.wake(now);
        }
    }
}
