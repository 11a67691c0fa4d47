//! Requests without a hold (connect, force-release, inspect), the state of the link, and closing.

use std::time::Duration;

use super::timers::Timer;
use super::timing::PLAIN_LIMIT;
use super::{Done, Engine, Outcome, Output, Purpose, RequestId};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Level as EventLevel};
use crate::wire::{Name, Op, OwnerId, Reply};

/// The command connection, as far as the engine knows.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    ever_up: bool,
    /// Why it is down, once that is known.
    down: Option<Error>,
    /// The outage has lasted longer than callers wait for.
    given_up: bool,
}

impl Link {
    /// Why nothing can be sent, while nothing can be sent.
    pub(super) fn error(&self) -> Option<Error> {
        self.down.clone().filter(|_| !self.up)
    }
}

/// A request that is one call. Without an op: wants the link to be up.
#[derive(Debug)]
pub(super) struct Query {
    op: Option<Op>,
    in_flight: bool,
}

/// A client that is closing.
#[derive(Debug)]
pub(super) struct Closing {
    /// Who wants to know when it is done.
    requests: Vec<RequestId>,
    /// Locks whose release the server refused.
    refused: Vec<Name>,
    done: bool,
}

impl Engine {
    pub(super) fn ask(&mut self, id: RequestId, op: Option<Op>) {
        self.queries.insert(id, Query { op, in_flight: false });
        self.timers.arm(Timer::Query(id), self.now.after(self.config.outage.max(PLAIN_LIMIT)));
        self.send_query(id);
    }

    fn send_query(&mut self, id: RequestId) {
        let up = self.link.up;
        let Some(query) = self.queries.get_mut(&id).filter(|query| up && !query.in_flight) else {
            return;
        };
        let Some(op) = query.op.clone() else {
            return self.end_query(id, Ok(Done::Connected));
        };
        query.in_flight = true;
        if let Some(name) = name_of(&op).cloned() {
            self.send(Purpose::Query { id, name }, op, PLAIN_LIMIT);
        }
    }

    pub(super) fn query_due(&mut self, id: RequestId) {
        let error = self
            .link
            .error()
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the server did not answer in time"));
        self.end_query(id, Err(error));
    }

    /// Answers a question; what is still in flight for it only tells the holds.
    pub(super) fn end_query(&mut self, id: RequestId, result: Result<Done>) {
        self.timers.disarm(Timer::Query(id));
        let Some(query) = self.queries.remove(&id) else {
            return;
        };
        match (query.op.as_ref().and_then(name_of), result) {
            (Some(name), Err(error)) => self.fail(id, error.on(name)),
            (_, result) => self.answer(Some(id), result),
        }
    }

    fn end_queries(&mut self, error: &Error) {
        let ids: Vec<RequestId> = self.queries.keys().copied().collect();
        for id in ids {
            self.end_query(id, Err(error.clone()));
        }
    }

    /// The outcome of a question, whose caller may have gone.
    pub(super) fn answered(&mut self, id: RequestId, name: &Name, outcome: Outcome) {
        let mut inspects = false;
        if let Some(query) = self.queries.get_mut(&id) {
            query.in_flight = false;
            inspects = matches!(query.op, Some(Op::Inspect { .. }));
        }
        match outcome {
            Outcome::Answered(Reply::Forced(deleted)) => self.forced(id, name, deleted),
            Outcome::Answered(Reply::Holder(holder)) => self.end_query(id, Ok(Done::Inspected(holder))),
            Outcome::Answered(Reply::Foreign(what)) => self.end_query(id, Err(foreign(&what))),
            // Nothing was done: the driver has learnt the server's clock from the reply.
            Outcome::Answered(Reply::Stale) => self.send_query(id),
            Outcome::Answered(other) => {
                let text = format!("unexpected reply: {other:?}");
                self.end_query(id, Err(Error::new(ErrorKind::Internal, text)));
            }
            Outcome::Refused { error, .. } => self.end_query(id, Err(error)),
            // Without a link, `link_up` sends it.
            Outcome::NotSent if !self.link.up => {}
            Outcome::NotSent => self.query_due(id),
            Outcome::Unanswered if inspects => self.send_query(id),
            // A force-release is not repeated: a second one could hit the next holder. The first
            // may have hit our own hold.
            Outcome::Unanswered => {
                self.query_due(id);
                self.renew_now(self.holds_on(name));
            }
        }
    }

    fn forced(&mut self, id: RequestId, name: &Name, deleted: bool) {
        self.end_query(id, Ok(Done::Forced(deleted)));
        if deleted {
            self.event("forced", EventLevel::Info, name, "force-released by this client");
            self.lose_forced(name);
        }
    }

    // ---- the link ----

    pub(super) fn link_up(&mut self) {
        self.link = Link { up: true, ever_up: true, down: None, given_up: false };
        self.timers.disarm(Timer::Outage);
        self.out.push(Output::Event(Event {
            kind: "connected",
            level: EventLevel::Info,
            lock: None,
            text: "connected".into(),
        }));
        let queries: Vec<RequestId> = self.queries.keys().copied().collect();
        for id in queries {
            self.send_query(id);
        }
        self.resume_commands();
        self.resume_cleanups();
        self.renew_all();
        self.probe_all();
    }

    pub(super) fn link_down(&mut self, error: Error) {
        // Every failed attempt comes here; the first one is news.
        let level = if self.link.error().is_none() { EventLevel::Warn } else { EventLevel::Debug };
        let text = format!("not connected: {error}");
        self.out.push(Output::Event(Event { kind: "disconnected", level, lock: None, text }));
        let hopeless =
            !self.link.ever_up || !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Server);
        if std::mem::replace(&mut self.link.up, false) {
            self.timers.arm(Timer::Outage, self.now.after(self.config.outage));
            let owners: Vec<OwnerId> = self.holds.keys().copied().collect();
            owners.into_iter().for_each(|owner| self.arm_hold(owner));
        }
        self.link.down = Some(error.clone());
        if hopeless || self.link.given_up {
            self.fail_for_link(&error);
        } else {
            self.fail_waiters(&error, true);
            self.fail_entries(&error, true);
        }
    }

    /// The server has been away for longer than callers wait for it.
    pub(super) fn outage_over(&mut self) {
        if let Some(error) = self.link.error() {
            self.link.given_up = true;
            self.fail_for_link(&error);
        }
    }

    /// Ends everybody who waits for the link. What is known of holds goes on until their deadlines.
    fn fail_for_link(&mut self, error: &Error) {
        self.fail_waiters(error, false);
        self.fail_entries(error, false);
        self.end_queries(error);
    }

    // ---- closing ----

    pub(super) fn close(&mut self, id: RequestId, limit: Duration) {
        if let Some(closing) = self.closing.as_mut().filter(|closing| !closing.done) {
            return closing.requests.push(id);
        }
        if self.closing.is_some() {
            return self.complete(id, Done::Closed(Vec::new()));
        }
        self.closing = Some(Closing { requests: vec![id], refused: Vec::new(), done: false });
        self.timers.arm(Timer::Close, self.now.after(limit));
        let error = Error::new(ErrorKind::Closed, "the client was closed");
        self.fail_waiters(&error, false);
        self.end_queries(&error);
        self.close_holds();
    }

    /// Notes a lock that the server does not let us release.
    pub(super) fn not_released(&mut self, name: &Name) {
        if let Some(closing) = &mut self.closing {
            closing.refused.push(name.clone());
        }
    }

    /// Stops when nothing is left to settle.
    pub(super) fn close_if_settled(&mut self) {
        if self.is_settled() {
            self.finish_close();
        }
    }

    /// Answers the closing caller with what could not be released, and stops.
    pub(super) fn finish_close(&mut self) {
        let Some(closing) = self.closing.as_mut().filter(|closing| !closing.done) else {
            return;
        };
        closing.done = true;
        let requests = std::mem::take(&mut closing.requests);
        let mut unreleased = std::mem::take(&mut closing.refused);
        self.timers.disarm(Timer::Close);
        // Acquires without an answer and clean-ups may have left something as well.
        unreleased.extend(self.holds.values().map(|hold| hold.cell.name.clone()));
        unreleased.extend(self.waiters.values().map(|waiter| waiter.name.clone()));
        unreleased.extend(self.cleanups.values().map(|cleanup| cleanup.name.clone()));
        unreleased.sort_unstable();
        unreleased.dedup();
        let mut callers: Vec<RequestId> = self.callers.keys().copied().collect();
        callers.sort_unstable();
        for caller in callers {
            self.fail(caller, Error::new(ErrorKind::Closed, "the client was closed"));
        }
        for id in requests {
            self.complete(id, Done::Closed(unreleased.clone()));
        }
        self.out.push(Output::Stop);
    }
}

fn name_of(op: &Op) -> Option<&Name> {
    match op {
        Op::Acquire { name, .. } | Op::Release { name, .. } | Op::Force { name } | Op::Inspect { name } => {
            Some(name)
        }
        Op::Renew { .. } => None,
    }
}

pub(super) fn foreign(what: &str) -> Error {
    let text = format!("{what} lies at this name; use another name, or the kind that made it");
    Error::new(ErrorKind::ForeignKind, text)
}
