//! Requests that concern no hold: connect, force-release, inspect, release, extend and adopt by token.

use std::fmt;

use super::cleanup::Left;
use super::context::{Context, Purpose};
use super::errors::{clocks_differ, foreign, not_of_token, not_replicated, not_sent};
use super::interface::{CallOutcome, Done, RequestId};
use super::links::Which;
use super::timers::Timer;
use super::timing;
use super::waiter::Waiter;
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::maps::SortedMap;
use crate::moment::Moment;
use crate::tuning;
#[cfg(test)]
use crate::wire::OwnerId;
use crate::wire::{HandOver, Name, Op, RenewReply, Reply};

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
    /// The caller that gets a hold by it.
    adopter: Option<Box<Waiter>>,
}

impl Query {
    fn name(&self) -> Option<&Name> {
        self.op.as_ref().and_then(Op::name)
    }
}

/// The requests that concern no hold, in their order, so that the same inputs give the same
/// outputs.
#[derive(Debug, Default)]
pub(super) struct Queries {
    of: SortedMap<RequestId, Query>,
    /// What callers may have adopted that have got an error, and until when a copy may still run.
    left: Vec<(Left, Moment)>,
}

/// The effect of a query's outcome on the holds of this client.
#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    None,
    /// The query is to be sent again.
    Repeat,
    /// This client has deleted the lock.
    Forced,
    /// A hold of this client may be gone. The reply does not say so, so the holds are verified.
    Unsure,
}

impl Queries {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    #[cfg(test)]
    pub(super) fn adopts_as(&self, owner: OwnerId) -> bool {
        let mut adopters = self.of.values().filter_map(|query| query.adopter.as_ref());
        adopters.any(|adopter| adopter.call.owner == owner)
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.of.contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.of.keys().copied().collect()
    }

    pub(super) fn add(
        &mut self,
        cx: &mut Context,
        id: RequestId,
        op: Option<Op>,
        adopter: Option<Box<Waiter>>,
    ) {
        let query = Query {
            adopter,
            op,
            in_flight: false,
            unsettled: false,
            stale: false,
        };
        self.of.insert(id, query);
        let limit = cx.config.outage.max(tuning::PLAIN_LIMIT);
        cx.timers.arm(Timer::Query(id), cx.now.after(limit));
    }

    /// The call to be made for a query now, if its server can be reached. A connect request takes
    /// none: it ends when any server can be reached.
    pub(super) fn next_call(&mut self, cx: &mut Context, id: RequestId) -> Option<(Purpose, Op)> {
        let query = self.of.get_mut(&id).filter(|query| !query.in_flight)?;
        let Some(op) = &query.op else {
            if cx.links.is_reached() {
                self.end(cx, id, Ok(Done::Connected));
            }
            return None;
        };
        let name = op.name().filter(|name| cx.links.is_up(name))?.clone();
        query.in_flight = true;
        if let (Some(adopter), Some(Op::HandOver(HandOver { to, .. }))) =
            (&mut query.adopter, &mut query.op)
            && !query.unsettled
            && cx.is_outdated(adopter.call.owner)
        {
            adopter.call.owner = cx.next_owner();
            *to = adopter.call.owner;
        }
        Some((Purpose::Query { id, name }, query.op.clone()?))
    }

    /// Whether a force-release of this lock is in flight.
    pub(super) fn is_forcing(&self, name: &Name) -> bool {
        self.of.values().any(|query| {
            query.in_flight
                && matches!(&query.op, Some(Op::Force { name: forced, .. }) if forced == name)
        })
    }

    /// The caller that adopts a lock by this query, which ends: the caller has got the lock. `None` if
    /// the caller has left.
    pub(super) fn take_adopter(&mut self, cx: &mut Context, id: RequestId) -> Option<Box<Waiter>> {
        let adopter = self.of.get_mut(&id)?.adopter.take();
        cx.timers.disarm(Timer::Query(id));
        self.of.remove(&id);
        adopter
    }

    /// The locks that nobody wants any more who may have adopted them.
    pub(super) fn take_left(&mut self) -> Vec<(Left, Moment)> {
        std::mem::take(&mut self.left)
    }

    /// The time of a query is over.
    pub(super) fn due(&mut self, cx: &mut Context, id: RequestId) {
        let name = self.of.get(&id).and_then(Query::name);
        let down = name.map_or_else(|| cx.links.error_of_all(), |name| cx.links.error(name));
        let error = down.unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the server did not answer in time")
        });
        self.end(cx, id, Err(error));
    }

    /// Completes a query. A call that is still in flight for it no longer has a caller, but its
    /// reply still affects the holds.
    pub(super) fn end(&mut self, cx: &mut Context, id: RequestId, result: Result<Done>) {
        cx.timers.disarm(Timer::Query(id));
        let Some(query) = self.of.remove(&id) else {
            return;
        };
        let open = query.in_flight || query.unsettled;
        match (query.name(), result) {
            (Some(name), Err(error)) => cx.fail(id, error.on(name)),
            (_, result) => cx.answer(Some(id), result),
        }
        if let Some(adopter) = query.adopter.filter(|_| open) {
            let alive_until = timing::copy_expires(cx.now, tuning::PLAIN_LIMIT);
            self.left.push((adopter.left(), alive_until));
        }
    }

    /// Fails the queries for the selected names.
    pub(super) fn fail(&mut self, cx: &mut Context, error: &Error, which: Which<'_>) {
        self.fail_those(cx, error, &|query| query.name().is_some_and(which));
    }

    /// Fails the connect requests.
    pub(super) fn fail_connects(&mut self, cx: &mut Context, error: &Error) {
        self.fail_those(cx, error, &|query| query.op.is_none());
    }

    pub(super) fn fail_all(&mut self, cx: &mut Context, error: &Error) {
        self.fail_those(cx, error, &|_| true);
    }

    fn fail_those(&mut self, cx: &mut Context, error: &Error, which: &dyn Fn(&Query) -> bool) {
        let failed = self.of.iter().filter(|(_, query)| which(query));
        let ids: Vec<RequestId> = failed.map(|(id, _)| *id).collect();
        for id in ids {
            self.end(cx, id, Err(error.clone()));
        }
    }

    /// Handles the outcome of a query's call. The caller may be gone by now.
    pub(super) fn answered(
        &mut self,
        cx: &mut Context,
        id: RequestId,
        name: &Name,
        outcome: CallOutcome,
    ) -> Effect {
        let (mut repeats, mut unsettled, mut was_stale) = (false, false, false);
        if let Some(query) = self.of.get_mut(&id) {
            query.in_flight = false;
            repeats = !matches!(query.op, Some(Op::Force { .. }));
            unsettled = query.unsettled;
            query.unsettled |= matches!(outcome, CallOutcome::Unanswered);
            let is_stale = matches!(outcome, CallOutcome::Answered(Reply::Stale));
            was_stale = std::mem::replace(&mut query.stale, is_stale);
        }
        let (result, effect) = match outcome {
            CallOutcome::Answered(Reply::Forced(true)) => (Ok(Done::Forced(true)), Effect::Forced),
            // A hold of this client may have had that token.
            CallOutcome::Answered(Reply::Released(_)) => (Ok(Done::Released), Effect::Unsure),
            // An earlier copy, whose answer was lost, has freed the lock.
            CallOutcome::Answered(Reply::Gone(LostReason::Deleted)) if unsettled => {
                (Ok(Done::Released), Effect::Unsure)
            }
            // The server did it, and it is undone.
            CallOutcome::Answered(Reply::NotReplicated { got }) => {
                let query = self.of.get_mut(&id);
                let wanted = query.map_or(0, |query| {
                    query.unsettled = true;
                    query.op.as_ref().map_or(0, Op::replicas)
                });
                (Err(not_replicated(wanted, got)), Effect::Unsure)
            }
            // The server did nothing. Its reply has taught the outbox the server's clock, so the
            // next copy gets a correct not-after. If that one is late too, sending again does not
            // help.
            CallOutcome::Answered(Reply::Stale) if was_stale => {
                (Err(clocks_differ()), Effect::None)
            }
            CallOutcome::Answered(Reply::Stale) => return Effect::Repeat,
            CallOutcome::Answered(reply) => (told(reply), Effect::None),
            CallOutcome::Refused { error, .. } => (Err(error), Effect::None),
            // `link_up` sends the query when the link is back.
            CallOutcome::NotSent if !cx.links.is_up(name) => return Effect::None,
            CallOutcome::NotSent => (Err(not_sent()), Effect::None),
            CallOutcome::Unanswered if repeats => return Effect::Repeat,
            // A force-release is not repeated: a second copy could delete the lock of the next
            // holder. The first copy may have deleted our own hold.
            CallOutcome::Unanswered => {
                self.due(cx, id);
                return Effect::Unsure;
            }
        };
        self.end(cx, id, result);
        effect
    }
}

/// What a reply tells the caller.
fn told(reply: Reply) -> Result<Done> {
    match reply {
        Reply::Forced(deleted) => Ok(Done::Forced(deleted)),
        Reply::Holders(holders) => Ok(Done::Inspected(holders)),
        Reply::Counted(permits) => Ok(Done::Counted(permits)),
        Reply::Changed { left, .. } => Ok(Done::Number(left)),
        Reply::Foreign(what) => Err(foreign(&what)),
        Reply::Gone(reason) => Err(not_of_token(reason)),
        Reply::Renewed(replies) => match &*replies {
            [RenewReply::Kept] => Ok(Done::Extended),
            [RenewReply::Gone(reason)] => Err(not_of_token(*reason)),
            other => Err(unexpected(&other)),
        },
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &dyn fmt::Debug) -> Error {
    Error::new(ErrorKind::Internal, format!("unexpected reply: {reply:?}"))
}
