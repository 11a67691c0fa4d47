//! Requests without a hold (connect, force-release, inspect), and closing.

use std::time::Duration;

use super::links::Which;
use super::timers::Timer;
use super::timing::PLAIN_LIMIT;
use super::waiting::not_sent;
use super::{Done, Engine, Outcome, Output, Purpose, RequestId};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::Level as EventLevel;
use crate::wire::{Form, Name, Op, OwnerId, RenewReply, Renewal, Reply};

/// A request that is one call. Without an op: wants the link to be up.
#[derive(Debug)]
pub(super) struct Query {
    op: Option<Op>,
    in_flight: bool,
    /// A copy got no answer: it may have been done.
    unsettled: bool,
}

impl Query {
    fn name(&self) -> Option<&Name> {
        self.op.as_ref().and_then(Op::name)
    }
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
        self.queries.insert(id, Query { op, in_flight: false, unsettled: false });
        self.timers.arm(Timer::Query(id), self.now.after(self.config.outage.max(PLAIN_LIMIT)));
        self.send_query(id);
    }

    fn send_query(&mut self, id: RequestId) {
        let Some(query) = self.queries.get_mut(&id).filter(|query| !query.in_flight) else {
            return;
        };
        match query.op.as_ref().map(|op| (op.clone(), op.name().cloned())) {
            None if self.links.any_up() => self.end_query(id, Ok(Done::Connected)),
            Some((op, Some(name))) if self.links.is_up(&name) => {
                query.in_flight = true;
                self.send(Purpose::Query { id, name }, op, PLAIN_LIMIT);
            }
            _ => {}
        }
    }

    /// Whether a force-release of this lock is on its way.
    pub(super) fn is_forcing(&self, name: &Name) -> bool {
        self.queries.values().any(|query| {
            query.in_flight && matches!(&query.op, Some(Op::Force { name: forced, .. }) if forced == name)
        })
    }

    /// Sends the questions that wait for a server which is there now.
    pub(super) fn send_queries(&mut self) {
        let queries: Vec<RequestId> = self.queries.keys().copied().collect();
        for id in queries {
            self.send_query(id);
        }
    }

    pub(super) fn query_due(&mut self, id: RequestId) {
        let name = self.queries.get(&id).and_then(Query::name);
        let down = name.map_or_else(|| self.links.error_of_all(), |name| self.links.error(name));
        let error =
            down.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the server did not answer in time"));
        self.end_query(id, Err(error));
    }

    /// Answers a question; what is still in flight for it only tells the holds.
    pub(super) fn end_query(&mut self, id: RequestId, result: Result<Done>) {
        self.timers.disarm(Timer::Query(id));
        let Some(query) = self.queries.remove(&id) else {
            return;
        };
        match (query.name(), result) {
            (Some(name), Err(error)) => self.fail(id, error.on(name)),
            (_, result) => self.answer(Some(id), result),
        }
    }

    /// Ends the questions about these names.
    pub(super) fn end_queries(&mut self, error: &Error, which: Which<'_>) {
        self.end_queries_that(error, &|query| query.name().is_some_and(which));
    }

    /// Ends the requests to be connected.
    pub(super) fn end_connects(&mut self, error: &Error) {
        self.end_queries_that(error, &|query| query.op.is_none());
    }

    fn end_queries_that(&mut self, error: &Error, which: &dyn Fn(&Query) -> bool) {
        let ids: Vec<RequestId> =
            self.queries.iter().filter(|(_, query)| which(query)).map(|(id, _)| *id).collect();
        for id in ids {
            self.end_query(id, Err(error.clone()));
        }
    }

    /// The outcome of a question, whose caller may have gone.
    pub(super) fn answered(&mut self, id: RequestId, name: &Name, outcome: Outcome) {
        let (mut repeats, mut unsettled) = (false, false);
        if let Some(query) = self.queries.get_mut(&id) {
            query.in_flight = false;
            repeats = !matches!(query.op, Some(Op::Force { .. }));
            unsettled = query.unsettled;
            query.unsettled |= matches!(outcome, Outcome::Unanswered);
        }
        match outcome {
            Outcome::Answered(Reply::Forced(deleted)) => self.forced(id, name, deleted),
            Outcome::Answered(Reply::Holder(holder)) => self.end_query(id, Ok(Done::Inspected(holder))),
            Outcome::Answered(Reply::Foreign(what)) => self.end_query(id, Err(foreign(&what))),
            Outcome::Answered(Reply::Released(_)) => self.released_by_token(id, name),
            // An earlier copy has freed it.
            Outcome::Answered(Reply::Gone(LostReason::Deleted)) if unsettled => {
                self.released_by_token(id, name);
            }
            Outcome::Answered(Reply::Gone(reason)) => self.end_query(id, Err(not_of_token(reason))),
            Outcome::Answered(Reply::Renewed(replies)) => self.extended_by_token(id, &replies),
            // Nothing was done: the driver has learnt the server's clock from the reply.
            Outcome::Answered(Reply::Stale) => self.send_query(id),
            Outcome::Answered(other) => {
                let text = format!("unexpected reply: {other:?}");
                self.end_query(id, Err(Error::new(ErrorKind::Internal, text)));
            }
            Outcome::Refused { error, .. } => self.end_query(id, Err(error)),
            // Without a link, `link_up` sends it.
            Outcome::NotSent if !self.links.is_up(name) => {}
            Outcome::NotSent => self.end_query(id, Err(not_sent())),
            Outcome::Unanswered if repeats => self.send_query(id),
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

    fn released_by_token(&mut self, id: RequestId, name: &Name) {
        self.end_query(id, Ok(Done::Released));
        // If a hold of this client had that token, the server does not tell it.
        self.renew_now(self.holds_on(name));
    }

    fn extended_by_token(&mut self, id: RequestId, replies: &[RenewReply]) {
        let result = match replies {
            [RenewReply::Kept] => Ok(Done::Extended),
            [RenewReply::Gone(reason)] => Err(not_of_token(*reason)),
            other => Err(Error::new(ErrorKind::Internal, format!("unexpected reply: {other:?}"))),
        };
        self.end_query(id, result);
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
        self.fail_waiters(&error, false, &|_| true);
        self.end_queries_that(&error, &|_| true);
        self.close_holds(!limit.is_zero());
        self.give_up_channels();
        if limit.is_zero() {
            self.finish_close();
        }
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
        let mut callers: Vec<RequestId> = self.callers.iter().map(|(id, _)| *id).collect();
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

/// The release that frees the lock if it has this owner and form, and teaches nothing.
pub(super) fn release_of(name: Name, owner: OwnerId, form: Form) -> Op {
    Op::Release { name, owner, form, remaining: 0, ttl: Duration::ZERO, lesson: None }
}

/// The extension of whatever has this token.
pub(super) fn extension_of(name: Name, form: Form, ttl: Duration) -> Op {
    Op::Renew { holds: vec![Renewal { name, owner: NOBODY, form, ttl }] }
}

/// The owner of what goes by its token alone.
pub(super) const NOBODY: OwnerId = 0;

fn not_of_token(reason: LostReason) -> Error {
    let text = match reason {
        LostReason::Deleted => "nobody holds it",
        _ => "somebody else holds it",
    };
    Error::new(ErrorKind::NotOwner, format!("{text}, not the owner of this token"))
}

pub(super) fn foreign(what: &str) -> Error {
    let text = format!("{what} lies at this name; use another name, or the kind that made it");
    Error::new(ErrorKind::ForeignKind, text)
}
