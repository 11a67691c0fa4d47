//! Local hand-over: the release of one caller and the acquisition of the next one of this client are one call.
//!
//! It is sent once. Where it cannot be done, or nobody knows whether it was, the plain way is taken: the hold
//! is released as ever, the next owner is burned and what it may have got is cleaned up, and its caller tries
//! with another one. So there is one call more only where something went wrong.

use std::time::Duration;

use super::holding::{Hold, Phase};
use super::waiting::{Attempt, Queue, Waiter};
use super::{CallId, Engine, Outcome, Purpose, RequestId, timing};
use crate::moment::Moment;
use crate::wire::{Layout, Name, Op, OwnerId, Reply};

/// How a lock stays with this client, since it was won in competition with others.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// The first hand-over.
    began: Option<Moment>,
    handovers: usize,
}

impl Run {
    pub(super) const NONE: Run = Run { began: None, handovers: 0 };

    pub(super) fn one_more(self, sent: Moment) -> Run {
        Run { began: self.began.or(Some(sent)), handovers: self.handovers + 1 }
    }

    pub(super) fn has_handed_over(self) -> bool {
        self.handovers > 0
    }

    /// Whether others have to get a chance now.
    pub(super) fn is_over(self, now: Moment, (limit, time): (usize, Duration)) -> bool {
        self.handovers >= limit || self.began.unwrap_or(now).after(time) <= now
    }
}

impl Engine {
    /// The call that gives the lock of this hold, which is being released, to the next caller; nothing
    /// where they have to go apart.
    pub(super) fn hand_over(&mut self, owner: OwnerId) -> Option<Op> {
        let hold = self.holds.get(&owner).filter(|hold| is_free_to_go(hold))?;
        let name = hold.cell.name.clone();
        let queue = self.queues.get(&name)?;
        let to = self.receiver(queue, hold)?;
        let (form, waiter) = (hold.cell.form.clone(), self.waiters.get_mut(&to)?);
        waiter.handed = true;
        let (to, lease, fencing) = (waiter.owner, waiter.lease(), waiter.terms.fencing);
        self.set_attempt(&name, Attempt::InFlight { again: false });
        Some(Op::HandOver { name, owner, to, form, lease, fencing })
    }

    /// The head of the queue, if this hold may be handed to it.
    fn receiver(&self, queue: &Queue, hold: &Hold) -> Option<RequestId> {
        let can =
            queue.attempt == Attempt::Idle && self.closing.is_none() && self.links.is_up(&hold.cell.name);
        let others_turn = queue.run.is_over(self.now, self.config.handovers);
        let head = *queue.waiters.front().filter(|_| can && !others_turn)?;
        self.waiters.get(&head).filter(|waiter| takes(waiter, hold)).map(|_| head)
    }

    /// What the outcome of a hold's command means.
    pub(super) fn purpose_of(&self, owner: OwnerId, op: &Op) -> Purpose {
        let head = |name: &Name| self.queues.get(name)?.waiters.front().copied();
        match op {
            Op::HandOver { name, .. } => {
                head(name).map_or(Purpose::Command(owner), |to| Purpose::HandOver { from: owner, to })
            }
            _ => Purpose::Command(owner),
        }
    }

    /// The outcome of a hand-over: one is released and the other one has it, or both go their own way.
    pub(super) fn handed_over(
        &mut self,
        from: OwnerId,
        to: RequestId,
        call: CallId,
        sent: Moment,
        outcome: Outcome,
    ) {
        if matches!(outcome, Outcome::Answered(Reply::Acquired { .. })) {
            // Everybody waits for the one who has the lock now, so that one is told first.
            self.tried(to, sent, outcome);
            return self.commanded(from, call, sent, Outcome::Answered(Reply::Released(0)));
        }
        let unsure = !is_undone(&outcome);
        // First the owner whose lock it was: when that is gone, no copy can give it to the other one.
        if self.command_of(from).is_some_and(|command| command.release_instead(call, unsure)) {
            self.send_command(from);
        }
        self.not_handed_over(to, sent, unsure);
    }

    /// The head did not get the lock, or nobody knows: it goes on as if it had not been asked for.
    fn not_handed_over(&mut self, to: RequestId, sent: Moment, unsure: bool) {
        let fresh = self.next_id();
        let Some(waiter) = self.waiters.get_mut(&to) else {
            return;
        };
        waiter.handed = false;
        let (name, form, lease, answered) =
            (waiter.name.clone(), waiter.form.clone(), waiter.lease(), waiter.answered);
        let expires = timing::copy_expires(sent, waiter.limit());
        let owner = if unsure { std::mem::replace(&mut waiter.owner, fresh) } else { waiter.owner };
        self.set_attempt(&name, Attempt::Idle);
        if unsure {
            self.clean_up(&name, owner, &form, lease, Some(expires));
        }
        if answered {
            return self.remove_waiter(to, false);
        }
        self.arm_waiter(to);
        self.advance(&name);
    }
}

/// Whether nothing keeps this hold from going to another owner as it is released.
fn is_free_to_go(hold: &Hold) -> bool {
    hold.phase == Phase::Releasing && hold.levels.is_empty() && !hold.lingers
}

/// Whether this caller can take over this hold in its place.
fn takes(waiter: &Waiter, hold: &Hold) -> bool {
    let form = &hold.cell.form;
    let same = waiter.form == *form && form.token.is_none() && form.kind.layout() != Layout::Learning;
    same && waiter.terms.replicas == 0 && waiter.unsettled.is_none() && !waiter.answered && !waiter.once()
}

/// Whether the next owner has certainly got nothing.
fn is_undone(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Answered(reply) => matches!(reply, Reply::Gone(_) | Reply::Stale | Reply::Foreign(_)),
        Outcome::Refused { passing, .. } => *passing,
        Outcome::NotSent => true,
        Outcome::Unanswered => false,
    }
}
