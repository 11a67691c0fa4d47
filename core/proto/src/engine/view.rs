//! The names, holds, clean-ups, counters and multi locks together. A decision that looks at all of them borrows this.

use std::time::Duration;

use super::cleanup::Cleanups;
use super::context::{Context, Purpose};
use super::counting::Counting;
use super::hold::Phase;
use super::holds::Holds;
use super::interface::{Inline, RequestId};
use super::multi::Multi;
use super::names::{Attempt, Names, WaitQueue};
use crate::moment::Moment;
use crate::wire::{Name, Op, OwnerId, Topic};

/// The names, the holds, the clean-ups, the counters and the multi locks of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) names: &'a Names,
    pub(super) holds: &'a Holds,
    pub(super) cleanups: &'a Cleanups,
    pub(super) counting: &'a Counting,
    pub(super) multi: &'a Multi,
}

impl<'a> View<'a> {
    /// Whether nothing is left to settle: no hold, no waiter, no clean-up, no change of a counter.
    pub(super) fn is_settled(&self) -> bool {
        let locks =
            self.holds.is_empty() && self.names.waiters.is_empty() && self.cleanups.is_empty();
        locks && self.counting.is_settled()
    }

    /// How the caller that waits for this call may make it itself, if it may.
    pub(super) fn inline(&self, cx: &Context, purpose: &Purpose, op: &Op) -> Option<Inline> {
        // The caller makes one command.
        if op.follow_up(Duration::ZERO).is_some() {
            return None;
        }
        if let Purpose::Counter(key) = purpose {
            let alone = self.names.waiters.is_empty() && self.holds.len() <= 1;
            let of = self.counting.sole_caller(key)?;
            return cx.is_free_for(of).then_some(Inline {
                of,
                alone: alone && self.counting.callers() <= 1,
                tracked: self.counting.reads(key),
            });
        }
        let (of, behind) = match purpose {
            Purpose::Try(id) => (*id, 1),
            Purpose::Query { id, .. } => (*id, 0),
            Purpose::Command(owner) => (self.holds.get(owner)?.asked_by()?, 0),
            // A hand-over serves two callers, the others none.
            Purpose::HandOver { .. } | Purpose::Renewal { .. } | Purpose::Cleanup { .. } => {
                return None;
            }
            Purpose::Counter(_) => return None,
        };
        // The calls for the parts of a multi lock can be one command of its caller.
        let (of, parts) = self.multi.caller_of(of)?;
        if !cx.is_free_for(of) {
            return None;
        }
        let queue = self.names.queues.get(op.name()?);
        if queue.is_some_and(|queue| queue.waiters.len() > behind) {
            return None;
        }
        // The parts of a multi lock are asked for before it has any, and released together.
        let holds = if behind > 0 { 1 } else { parts };
        Some(Inline {
            of,
            alone: self.names.waiters.len() <= behind * parts
                && self.holds.len() <= holds
                && self.counting.callers() == 0,
            tracked: queue.is_some_and(|queue| self.needs_tracking(purpose, op, queue)),
        })
    }

    /// Whether a call needs the connection with client tracking. An acquisition that may have to
    /// wait must learn of changes. A write without tracking to a key that the server tracks for us
    /// would come back as a change by somebody else. The release that frees a lock is harmless.
    fn needs_tracking(&self, purpose: &Purpose, op: &Op, queue: &WaitQueue) -> bool {
        let hold = |owner: &OwnerId| self.holds.get(owner);
        if let Purpose::Command(owner) = purpose
            && hold(owner).is_some_and(|hold| hold.phase == Phase::Releasing)
        {
            return false;
        }
        let tracked = |owner: &OwnerId| hold(owner).is_some_and(|hold| !hold.renewal.unseen);
        let may_wait = matches!(op, Op::Acquire(_)) && queue.channel.wanted;
        may_wait || queue.holds().iter().any(tracked)
    }

    /// Whether a hold on this name, or the head's call in flight, has this token.
    pub(super) fn is_token_used(&self, name: &Name, token: &str) -> bool {
        let Some(queue) = self.names.queues.get(name) else {
            return false;
        };
        let holds = |owner: &OwnerId| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Held && hold.cell.has_token(token))
        };
        let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
        let head = queue.waiters.front().filter(|_| in_flight);
        let tries = |id: &RequestId| {
            let of_head = self
                .names
                .waiters
                .get(id)
                .and_then(|head| head.form.token.as_deref());
            of_head == Some(token)
        };
        queue.holds().iter().any(holds) || head.is_some_and(tries)
    }

    /// How many release messages may stay unread in the socket before the I/O thread must wake, and
    /// for which lock. `None`: it must wake for everything.
    ///
    /// Messages may stay unread if the client does nothing but wait for this lock and leaves a turn
    /// to others: it will not try before `n + 1` releases. Its timer runs regardless. With
    /// `elsewhere`, a caller makes its call on the inline connection, so the answer does not come
    /// where messages do. If that call is the release of the only hold, the message of that release
    /// may stay unread. Readers come together, so every message of a read-write lock counts.
    pub(super) fn skipped(
        self,
        cx: &Context,
        now: Moment,
        elsewhere: bool,
    ) -> Option<(&'a Name, u32)> {
        // Each message of a counter counts.
        if self.counting.callers() > 0 {
            return None;
        }
        if elsewhere {
            return self.own_release(cx).map(|name| (name, 1));
        }
        if !self.holds.is_empty() || !cx.calls.is_empty() {
            return None;
        }
        let anyone = self.names.waiters.values().next()?;
        let (name, queue) = self.names.queues.get_key_value(&anyone.name)?;
        let alone = queue.waiters.len() == self.names.waiters.len();
        let waits = alone
            && queue.attempt == Attempt::Parked
            && queue.channel.confirmed
            && queue.channel.topic == Topic::Lock;
        let before_the_last = queue.turn.ahead(now).checked_sub(1).filter(|_| waits)?;
        let echo = queue.channel.echo.is_some_and(|until| now < until);
        Some((name, before_the_last + u32::from(echo)))
    }

    /// The lock that is being released, if the client does nothing else and hears its own message.
    fn own_release(self, cx: &Context) -> Option<&'a Name> {
        let alone = self.names.waiters.is_empty() && cx.calls.len() == 1 && self.holds.len() == 1;
        let hold = alone.then(|| self.holds.values().next()).flatten()?;
        let channel = &self.names.queues.get(&hold.cell.name)?.channel;
        let leaves =
            hold.phase == Phase::Releasing && channel.confirmed && channel.topic == Topic::Lock;
        leaves.then_some(&hold.cell.name)
    }
}
