//! Requests that concern no hold (connect, force-release, inspect, release and extend by token),
//! and closing.

use std::time::Duration;

use super::Engine;
use super::context::Purpose;
use super::errors::{clocks_differ, foreign, not_of_token, not_sent};
use super::hold::Hold;
use super::interface::{CallOutcome, Done, Output, RequestId};
use super::links::Which;
use super::timers::Timer;
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::Level as EventLevel;
use crate::tuning;
use crate::wire::{Form, Name, Op, OwnerId, RenewReply, Renewal, Reply};

/// A request that takes one call. Without an `op` it is a connect request, which ends when a link
/// is up.
#[derive(Debug)]
pub(super) struct Query {
    op: Option<Op>,
    in_flight: bool,
    /// A copy got no answer, so the server may have executed it.
    unsettled: bool,
    /// The server refused the last copy because it arrived after its not-after.
    stale: bool,
}

impl Query {
    fn name(&self) -> Option<&Name> {
        self.op.as_ref().and_then(Op::name)
    }
}

/// The state of a client that is closing.
#[derive(Debug)]
pub(super) struct Closing {
    /// Callers waiting for the close to finish.
    requests: Vec<RequestId>,
    /// Locks that the server refused to release.
    refused: Vec<Name>,
    done: bool,
}

impl Engine {
    pub(super) fn ask(&mut self, id: RequestId, op: Option<Op>) {
        self.queries.insert(
            id,
            Query {
                op,
                in_flight: false,
                unsettled: false,
                stale: false,
            },
        );
        self.cx.timers.arm(
            Timer::Query(id),
            self.cx
                .now
                .after(self.cx.config.outage.max(tuning::PLAIN_LIMIT)),
        );
        self.send_query(id);
    }

    fn send_query(&mut self, id: RequestId) {
        let Some(query) = self.queries.get_mut(&id).filter(|query| !query.in_flight) else {
            return;
        };
        match query.op.as_ref().map(|op| (op.clone(), op.name().cloned())) {
            None if self.cx.links.any_up() => self.end_query(id, Ok(Done::Connected)),
            Some((op, Some(name))) if self.cx.links.is_up(&name) => {
                query.in_flight = true;
                self.send(Purpose::Query { id, name }, op, tuning::PLAIN_LIMIT);
            }
            _ => {}
        }
    }

    /// Whether a force-release of this lock is in flight.
    pub(super) fn is_forcing(&self, name: &Name) -> bool {
        self.queries.values().any(|query| {
            query.in_flight
                && matches!(&query.op, Some(Op::Force { name: forced, .. }) if forced == name)
        })
    }

    /// Sends the queries that waited for a server, where that server can be reached now.
    pub(super) fn send_queries(&mut self) {
        let queries: Vec<RequestId> = self.queries.keys().copied().collect();
        for id in queries {
            self.send_query(id);
        }
    }

    pub(super) fn query_due(&mut self, id: RequestId) {
        let name = self.queries.get(&id).and_then(Query::name);
        let down = name.map_or_else(
            || self.cx.links.error_of_all(),
            |name| self.cx.links.error(name),
        );
        let error = down.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the server did not answer in time")
        });
        self.end_query(id, Err(error));
    }

    /// Completes a query. A call that is still in flight for it no longer has a caller, but its
    /// reply still affects the holds.
    pub(super) fn end_query(&mut self, id: RequestId, result: Result<Done>) {
        self.cx.timers.disarm(Timer::Query(id));
        let Some(query) = self.queries.remove(&id) else {
            return;
        };
        match (query.name(), result) {
            (Some(name), Err(error)) => self.cx.fail(id, error.on(name)),
            (_, result) => self.answer(Some(id), result),
        }
    }

    /// Fails the queries for the selected names.
    pub(super) fn end_queries(&mut self, error: &Error, which: Which<'_>) {
        self.end_queries_that(error, &|query| query.name().is_some_and(which));
    }

    /// Fails the connect requests.
    pub(super) fn end_connects(&mut self, error: &Error) {
        self.end_queries_that(error, &|query| query.op.is_none());
    }

    fn end_queries_that(&mut self, error: &Error, which: &dyn Fn(&Query) -> bool) {
        let ids: Vec<RequestId> = self
            .queries
            .iter()
            .filter(|(_, query)| which(query))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.end_query(id, Err(error.clone()));
        }
    }

    /// Handles the outcome of a query's call. The caller may be gone by now.
    pub(super) fn answered(&mut self, id: RequestId, name: &Name, outcome: CallOutcome) {
        let (mut repeats, mut unsettled, mut was_stale) = (false, false, false);
        if let Some(query) = self.queries.get_mut(&id) {
            query.in_flight = false;
            repeats = !matches!(query.op, Some(Op::Force { .. }));
            unsettled = query.unsettled;
            query.unsettled |= matches!(outcome, CallOutcome::Unanswered);
            let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
            was_stale = std::mem::replace(&mut query.stale, is_stale);
        }
        match outcome {
            CallOutcome::Answered(Reply::Forced(deleted)) => self.forced(id, name, deleted),
            CallOutcome::Answered(Reply::Holder(holder)) => {
                self.end_query(id, Ok(Done::Inspected(holder)))
            }
            CallOutcome::Answered(Reply::Foreign(what)) => self.end_query(id, Err(foreign(&what))),
            CallOutcome::Answered(Reply::Released(_)) => self.released_by_token(id, name),
            // An earlier copy, whose answer was lost, has freed the lock.
            CallOutcome::Answered(Reply::Gone(LostReason::Deleted)) if unsettled => {
                self.released_by_token(id, name);
            }
            CallOutcome::Answered(Reply::Gone(reason)) => {
                self.end_query(id, Err(not_of_token(reason)))
            }
            CallOutcome::Answered(Reply::Renewed(replies)) => self.extended_by_token(id, &replies),
            // The server did nothing. Its reply has taught the outbox the server's clock, so the
            // next copy gets a correct not-after. If that one is late too, sending again does not
            // help.
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                self.end_query(id, Err(clocks_differ()))
            }
            CallOutcome::Answered(Reply::Stale) => self.send_query(id),
            CallOutcome::Answered(other) => {
                let text = format!("unexpected reply: {other:?}");
                self.end_query(id, Err(Error::new(ErrorKind::Internal, text)));
            }
            CallOutcome::Refused { error, .. } => self.end_query(id, Err(error)),
            // `link_up` sends the query when the link is back.
            CallOutcome::NotSent if !self.cx.links.is_up(name) => {}
            CallOutcome::NotSent => self.end_query(id, Err(not_sent())),
            CallOutcome::Unanswered if repeats => self.send_query(id),
            // A force-release is not repeated: a second copy could delete the lock of the next
            // holder. The first copy may have deleted our own hold, so our holds are verified.
            CallOutcome::Unanswered => {
                self.query_due(id);
                self.renew_now(self.holds_on(name));
            }
        }
    }

    fn forced(&mut self, id: RequestId, name: &Name, deleted: bool) {
        self.end_query(id, Ok(Done::Forced(deleted)));
        if deleted {
            self.cx.event(
                "forced",
                EventLevel::Info,
                name,
                "force-released by this client",
            );
            self.lose_forced(name);
        }
    }

    fn released_by_token(&mut self, id: RequestId, name: &Name) {
        self.end_query(id, Ok(Done::Released));
        // A hold of this client may have had that token. The reply does not say so, so our holds
        // are verified.
        self.renew_now(self.holds_on(name));
    }

    fn extended_by_token(&mut self, id: RequestId, replies: &[RenewReply]) {
        let result = match replies {
            [RenewReply::Kept] => Ok(Done::Extended),
            [RenewReply::Gone(reason)] => Err(not_of_token(*reason)),
            other => Err(Error::new(
                ErrorKind::Internal,
                format!("unexpected reply: {other:?}"),
            )),
        };
        self.end_query(id, result);
    }

    // ---- closing ----

    pub(super) fn close(&mut self, id: RequestId, limit: Duration) {
        if let Some(closing) = self.closing.as_mut().filter(|closing| !closing.done) {
            return closing.requests.push(id);
        }
        if self.closing.is_some() {
            return self.cx.complete(id, Done::Closed(Vec::new()));
        }
        self.closing = Some(Closing {
            requests: vec![id],
            refused: Vec::new(),
            done: false,
        });
        self.cx.timers.arm(Timer::Close, self.cx.now.after(limit));
        let error = Error::new(ErrorKind::Closed, "the client was closed");
        self.fail_waiters(&error, false, &|_| true);
        self.end_queries_that(&error, &|_| true);
        self.close_holds(!limit.is_zero());
        self.give_up_channels();
        if limit.is_zero() {
            self.finish_close();
        }
    }

    /// Removes a caller that no longer waits for the close; `false` if it did not wait. The close
    /// goes on.
    pub(super) fn stops_closing(&mut self, id: RequestId) -> bool {
        let Some(closing) = &mut self.closing else {
            return false;
        };
        let before = closing.requests.len();
        closing.requests.retain(|request| *request != id);
        closing.requests.len() < before
    }

    /// Records a lock that the server refuses to release.
    pub(super) fn not_released(&mut self, name: &Name) {
        if let Some(closing) = &mut self.closing {
            closing.refused.push(name.clone());
        }
    }

    /// Finishes the close when nothing is left to settle, or nothing that a reachable server could
    /// settle.
    pub(super) fn close_if_settled(&mut self) {
        // While calls are in flight an outcome is still to come: the scan of everything can wait.
        if self.is_settled() || self.cx.calls.is_empty() && self.waits_in_vain() {
            self.finish_close();
        }
    }

    /// Whether all remaining work is for servers that callers have stopped waiting for. That is the
    /// case when the outage has lasted longer than the option `outage`, or a release has waited
    /// that long.
    fn waits_in_vain(&self) -> bool {
        let late = |hold: &Hold| hold.tasks().any(|task| task.is_late(self.cx.now));
        let in_vain = |name: &Name, late: bool| {
            !self.cx.links.is_up(name) && (late || self.cx.links.is_given_up(name))
        };
        self.holds
            .values()
            .all(|hold| in_vain(&hold.cell.name, late(hold)))
            && self
                .names
                .waiters
                .values()
                .all(|waiter| in_vain(&waiter.name, false))
            && self
                .cleanups
                .iter()
                .all(|cleanup| in_vain(&cleanup.name, false))
    }

    /// Reports to the closing callers which locks could not be released, and stops.
    pub(super) fn finish_close(&mut self) {
        let Some(closing) = self.closing.as_mut().filter(|closing| !closing.done) else {
            return;
        };
        closing.done = true;
        let requests = std::mem::take(&mut closing.requests);
        let mut unreleased = std::mem::take(&mut closing.refused);
        self.cx.timers.disarm(Timer::Close);
        // Unanswered acquires and pending clean-ups may also have left a lock behind.
        unreleased.extend(self.holds.values().map(|hold| hold.cell.name.clone()));
        unreleased.extend(
            self.names
                .waiters
                .values()
                .map(|waiter| waiter.name.clone()),
        );
        unreleased.extend(self.cleanups.iter().map(|cleanup| cleanup.name.clone()));
        unreleased.sort_unstable();
        unreleased.dedup();
        let mut callers: Vec<RequestId> = self.cx.callers.iter().map(|(id, _)| *id).collect();
        callers.sort_unstable();
        for caller in callers {
            self.cx.fail(
                caller,
                Error::new(ErrorKind::Closed, "the client was closed"),
            );
        }
        for id in requests {
            self.cx.complete(id, Done::Closed(unreleased.clone()));
        }
        self.cx.out.push(Output::Stop);
    }
}

/// The release that frees the lock if it has this owner and form. It carries no lease sample.
pub(super) fn release_of(name: Name, owner: OwnerId, form: Form) -> Op {
    Op::Release {
        name,
        owner,
        form,
        remaining: 0,
        ttl: Duration::ZERO,
        lesson: None,
    }
}

/// Extends the lock whose value is the token in `form`.
pub(super) fn extension_of(name: Name, form: Form, ttl: Duration) -> Op {
    Op::Renew {
        holds: vec![Renewal {
            name,
            owner: NOBODY,
            form,
            ttl,
        }],
    }
}

/// The owner of a call that identifies the lock by its token alone.
pub(super) const NOBODY: OwnerId = 0;
