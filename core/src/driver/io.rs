//! The connections in [`redlatch_proto::net`] with their sockets, on the I/O thread. What goes to a
//! server, and what its bytes mean, is decided there.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use redlatch_proto::net::{self, Calls};

use super::calls::OutgoingCall;
use super::connect::Manner;
use super::inline::{InlineConnector, InlineSlot, Plan};
use super::receive_threshold::ReceiveThreshold;
use super::sockets::Sockets;
use super::{DriverConfig, News};
use crate::clock;
use crate::engine::{CallId, Input};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Name, Op, Topic};

/// The connections of a client, with their sockets. Driven from outside.
pub(super) struct Net {
    net: net::Net,
    sockets: Sockets,
    /// What was read last.
    buffer: Vec<u8>,
    /// The input that the engine needs before any other.
    first: Option<Input>,
    /// The slot of the inline connection.
    direct: Arc<InlineSlot>,
    maker: InlineConnector,
    manner: Manner,
}

impl Net {
    pub(super) fn new(config: &DriverConfig, uuid: &str, direct: Arc<InlineSlot>) -> Self {
        let (place, manner, now) = (&config.place, &config.manner, clock::now());
        let mut sockets = Sockets::new(manner.clone());
        let manner = Rc::new(net::Manner {
            protocol: manner.protocol,
            tracking: config.tracking,
            pubsub: config.pubsub,
            uuid: uuid.to_owned(),
            ..manner.plain(place.tls)
        });
        let mut net = net::Net::new(now, place, &manner);
        net.begin(now, &mut sockets);
        Net {
            first: net.first(),
            net,
            sockets,
            buffer: vec![0; tuning::READ],
            direct,
            maker: InlineConnector::default(),
            manner: config.manner.clone(),
        }
    }

    pub(super) fn send(
        &mut self,
        now: Moment,
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
        news: &mut News,
    ) {
        let sending = OutgoingCall::of(call, op, limit);
        self.net.send(now, sending, &mut self.sockets, news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        self.net.subscribe(now, &name, topic, &mut self.sockets);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        self.net.unsubscribe(now, name, topic, &mut self.sockets);
    }

    /// The receive threshold of the command connection.
    pub(super) fn threshold(&self) -> Option<&Arc<ReceiveThreshold>> {
        self.sockets.threshold(self.net.calls()?.conn)
    }

    /// Whether messages may stay unread in the socket.
    pub(super) fn may_skip(&self) -> bool {
        self.net.calls().is_some_and(|calls| calls.only_messages)
    }

    /// Whether everything is connected and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.net.is_idle()
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.net.next_wake()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.net.wake(now, &mut self.sockets, news);
    }

    /// Reads what has come, and writes what is to be written.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        news.inputs.extend(self.first.take());
        loop {
            self.sockets.is_new = false;
            let (net, sockets) = (&mut self.net, &mut self.sockets);
            sockets.read(cx, &mut self.buffer, |id, arrival, sockets| {
                // The server was read before this moment.
                net.arrived(clock::now(), id, arrival, sockets, news);
            });
            let now = clock::now();
            self.net.settle(now, &mut self.sockets, news);
            self.net.flush(now, &mut self.sockets, news);
            // A connection that was begun just now has to be polled once, too.
            if !self.sockets.is_new {
                break;
            }
        }
        self.sockets.write(cx);
        if let Some(calls) = self.net.calls() {
            let plan = || plan(&self.manner, &calls);
            let generation = calls.generation;
            self.maker.poll(cx, &self.direct, generation, plan, news);
        }
    }
}

/// How to make the inline connection that goes with this one. `None` with TLS.
fn plan(manner: &Manner, calls: &Calls<'_>) -> Option<Plan> {
    if calls.server.manner.tls {
        return None;
    }
    Some(Plan {
        server: calls.server.clone(),
        manner: manner.clone(),
        tracked: calls.tracked,
        publish: calls.publish,
        clock: calls.clock,
        generation: calls.generation,
    })
}
