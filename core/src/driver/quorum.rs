//! Servers that know nothing of each other: a quorum. Each is used as a single server is. The engine
//! keeps their keys apart by names that end with the server ([`servers`]).

use std::sync::Arc;
use std::task::Context;

use super::News;
use super::calls::OutgoingCall;
use super::connect::Address;
use super::inline::InlineSlot;
use super::link::{Manner, Target};
use super::single::One;
use crate::engine::{CallOutcome, Input, LinkId, Routes};
use crate::moment::Moment;
use crate::wire::{Name, Topic, servers};
use redlatch_proto::quorum;

/// The servers of a quorum. Driven from outside like a `Link`.
pub(super) struct Quorum {
    /// In the order of their links, which are counted from 1.
    members: Vec<Member>,
    /// The engine knows the servers.
    routed: bool,
}

struct Member {
    /// Its address, as it stands in names.
    shown: Arc<str>,
    one: One,
    /// Its reports, with the names that it knows.
    news: News,
}

impl Quorum {
    pub(super) fn new(addresses: Vec<Address>, manner: &Manner) -> Self {
        let member = |(address, id): (Address, LinkId)| Member {
            shown: address.shown().into(),
            one: One::new(
                id,
                Target::Server(address.clone()),
                vec![address],
                None,
                manner.clone(),
                // Callers make no call themselves: they wait for several servers.
                Arc::new(InlineSlot::new(false)),
            ),
            news: News::default(),
        };
        Quorum {
            members: addresses.into_iter().zip(1..).map(member).collect(),
            routed: false,
        }
    }

    pub(super) fn send(&mut self, now: Moment, sending: OutgoingCall, news: &mut News) {
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
        member
            .one
            .send(now, OutgoingCall { op, ..sending }, &mut member.news);
        member.report(news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        if let Some((member, key)) = self.member_of(name) {
            member.one.subscribe(now, key, topic);
        }
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
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

    /// Whether everything is connected and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.members.iter().all(|member| member.one.is_idle())
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        if !std::mem::replace(&mut self.routed, true) {
            let servers = self.members.iter().map(|member| member.shown.clone());
            news.tell(Input::Routes(Routes::by_server(servers.collect())));
        }
        for member in &mut self.members {
            member.one.poll(cx, &mut member.news);
            member.report(news);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        let all = self.members.iter();
        all.filter_map(|member| member.one.next_wake()).min()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        for member in &mut self.members {
            member.one.wake(now, &mut member.news);
            member.report(news);
        }
    }
}

impl Member {
    /// Passes on what the server reports, with the names that the engine knows.
    fn report(&mut self, news: &mut News) {
        quorum::pass_on(std::mem::take(&mut self.news), &self.shown, news);
    }
}
