//! Requests without a hold (connect, force-release, inspect), the state of the link, and closing.

use super::holding::Phase;
use super::timers::Timer;
use super::timing::PLAIN_LIMIT;
use super::{Done, Engine, Outcome, Output, Purpose, RequestId};
use crate::error::{Error, ErrorKind, LostReason};
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
    request: RequestId,
    done: bool,
}

impl Engine {
    pub(super) fn ask(&mut self, id: RequestId, op: Option<Op>) {
        if op.is_none() && self.link.up {
            return self.complete(id, Done::Connected);
        }
        if let Some(error) = self.link.error().filter(|_| self.link.given_up) {
            return self.fail(id, error);
        }
        self.queries.insert(id, Query { op, in_flight: false });
        self.timers.arm(Timer::Query(id), self.now.after(self.config.outage.max(PLAIN_LIMIT)));
        self.send_query(id);
    }

    fn send_query(&mut self, id: RequestId) {
        let Some(query) = self.queries.get_mut(&id) else {
            return;
        };
        if !self.link.up || query.in_flight {
            return;
        }
        match query.op.clone() {
            Some(op) => {
                query.in_flight = true;
                self.send(Purpose::Query(id), op, PLAIN_LIMIT);
            }
            None => self.end_query(id, Ok(Done::Connected)),
        }
    }

    pub(super) fn query_due(&mut self, id: RequestId) {
        let error = self
            .link
            .error()
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the server did not answer in time"));
        self.end_query(id, Err(error));
    }

    fn end_query(&mut self, id: RequestId, result: Result<Done, Error>) {
        self.timers.disarm(Timer::Query(id));
        let Some(query) = self.queries.remove(&id) else {
            return;
        };
        let result = match query.op {
            Some(Op::Force { name } | Op::Inspect { name }) => result.map_err(|error| error.on(&name)),
            _ => result,
        };
        self.out.push(Output::Complete { id, result });
    }

    pub(super) fn answered(&mut self, id: RequestId, outcome: Outcome) {
        let Some(query) = self.queries.get_mut(&id) else {
            return;
        };
        query.in_flight = false;
        let inspects = matches!(query.op, Some(Op::Inspect { .. }));
        match outcome {
            Outcome::Answered(Reply::Forced(deleted)) => self.forced(id, deleted),
            Outcome::Answered(Reply::Holder(holder)) => self.end_query(id, Ok(Done::Inspected(holder))),
            Outcome::Answered(Reply::Foreign(what)) => {
                let text = format!("{what} lies at this name; use another name, or the kind that made it");
                self.end_query(id, Err(Error::new(ErrorKind::ForeignKind, text)));
            }
            // Nothing was done: the driver has learnt the server's clock from the reply.
            Outcome::Answered(Reply::Stale) => self.send_query(id),
            Outcome::Answered(other) => {
                let text = format!("unexpected reply: {other:?}");
                self.end_query(id, Err(Error::new(ErrorKind::Internal, text)));
            }
            Outcome::Refused { error, .. } => self.end_query(id, Err(error)),
            // A force-release is not repeated: a second one could hit the next holder.
            Outcome::Unanswered if inspects => self.send_query(id),
            Outcome::Unanswered => self.query_due(id),
            // Without a link, `link_up` sends it.
            Outcome::NotSent if !self.link.up => {}
            Outcome::NotSent => self.query_due(id),
        }
    }

    /// Our own writes are not invalidations, so the holds of this client are told here.
    fn forced(&mut self, id: RequestId, deleted: bool) {
        let name = match self.queries.get(&id) {
            Some(Query { op: Some(Op::Force { name }), .. }) => name.clone(),
            _ => return,
        };
        self.end_query(id, Ok(Done::Forced(deleted)));
        if deleted {
            self.event("forced", EventLevel::Info, &name, "force-released by this client");
            let holds = self.queues.get(&name).map(|queue| queue.holds.clone()).unwrap_or_default();
            for owner in holds {
                // A hold on its way out hears from its own release.
                if self.holds.get(&owner).is_some_and(|hold| hold.phase == Phase::Held) {
                    self.lose(owner, LostReason::Forced);
                }
            }
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
        let text = format!("not connected: {error}");
        self.out.push(Output::Event(Event {
            kind: "disconnected",
            level: EventLevel::Warn,
            lock: None,
            text,
        }));
        let hopeless =
            !self.link.ever_up || !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Server);
        if self.link.up {
            self.link.up = false;
            self.timers.arm(Timer::Outage, self.now.after(self.config.outage));
            let owners: Vec<OwnerId> = self.holds.keys().copied().collect();
            owners.into_iter().for_each(|owner| self.arm_hold(owner));
        }
        self.link.down = Some(error.clone());
        self.fail_tries(&error);
        if hopeless || self.link.given_up {
            self.fail_waiters(&error, |_| true);
            let queries: Vec<RequestId> = self.queries.keys().copied().collect();
            for id in queries {
                self.end_query(id, Err(error.clone()));
            }
        }
    }

    /// The server has been away for longer than callers wait for it.
    pub(super) fn outage_over(&mut self) {
        if let Some(error) = self.link.error() {
            self.link.given_up = true;
            self.fail_waiters(&error, |_| true);
        }
    }

    // ---- closing ----

    pub(super) fn close(&mut self, id: RequestId, limit: std::time::Duration) {
        self.closing = Some(Closing { request: id, done: false });
        self.timers.arm(Timer::Close, self.now.after(limit));
        let error = Error::new(ErrorKind::Closed, "the client was closed");
        self.fail_waiters(&error, |_| true);
        let queries: Vec<RequestId> = self.queries.keys().copied().collect();
        for query in queries {
            self.end_query(query, Err(error.clone()));
        }
        self.close_holds();
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
        let id = closing.request;
        let mut unreleased: Vec<Name> = self.holds.values().map(|hold| hold.cell.name.clone()).collect();
        unreleased.sort();
        unreleased.dedup();
        self.timers.disarm(Timer::Close);
        let mut callers: Vec<RequestId> = self.callers.keys().copied().collect();
        callers.sort_unstable();
        for caller in callers {
            self.fail(caller, Error::new(ErrorKind::Closed, "the client was closed"));
        }
        self.complete(id, Done::Closed(unreleased));
        self.out.push(Output::Stop);
    }
}
