//! Local hand-over: the lock goes from one caller of this client to the next one.
//!
//! As a rule one call is the release of the one and the acquisition of the other. It is sent once. Where it cannot be
//! done, or nobody knows whether it was, the plain way is taken: the hold is released as ever, the next owner is burned
//! and what it may have got is cleaned up, and its caller tries with another one. So there is one call more only where
//! something went wrong.
//!
//! Where the server has said a moment ago that the lock is ours, it is passed on before the server is asked: the owner
//! that Redis knows stays, and another caller is behind it. The server is asked at once, though, and nobody who has
//! passed the lock on is told that it was released before a call that was sent after that has found it still ours. If
//! it was not, each of them and the one who has it are told that it is lost, as if it had been lost a moment later. One
//! such call at a time answers all who have passed it on before it was sent.

use std::sync::Arc;
use std::time::Duration;

use super::commanding::{Task, Wish};
use super::holding::{Hold, Phase};
use super::waiting::{Attempt, Queue, Waiter};
use super::{CallId, Engine, Outcome, Output, Purpose, RequestId, Target, timing};
use crate::hold::HoldCell;
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::{Fencing, Layout, Name, Op, OwnerId, Reply};

/// How a lock stays with this client, since it was won in competition with others.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// The first hand-over.
    began: Option<Moment>,
    handovers: usize,
    /// When the last call was sent whose answer says that the lock is ours.
    heard: Option<Moment>,
}

impl Run {
    pub(super) const NONE: Run = Run { began: None, handovers: 0, heard: None };

    pub(super) fn one_more(self, sent: Moment) -> Run {
        Run { began: self.began.or(Some(sent)), handovers: self.handovers + 1, ..self }
    }

    /// A call that was sent then has found that the lock is ours.
    pub(super) fn hear(&mut self, sent: Moment) {
        self.heard = self.heard.max(Some(sent));
    }

    pub(super) fn has_handed_over(self) -> bool {
        self.handovers > 0
    }

    /// How long ago the first hand-over was.
    pub(super) fn lasted(self, now: Moment) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.until(now))
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
        if self.waiters.is_empty() {
            return None;
        }
        let hold = self.holds.get(&owner).filter(|hold| is_free_to_go(hold))?;
        let name = hold.cell.name.clone();
        let queue = self.queues.get(&name)?;
        let to = self.receiver(queue, hold)?;
        let (form, waiter) = (hold.cell.form(), self.waiters.get_mut(&to)?);
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

    // ---- passed on before the server is asked ----

    /// Whether giving this level back would pass its lock on at once.
    pub(crate) fn passes_on(&self, target: &Target) -> bool {
        self.target(target)
            .is_ok_and(|(owner, level)| self.takes_at_once(owner, &Wish::Leave(level)).is_some())
    }

    /// Who gets the lock of this hold at once when its only level is given back.
    pub(super) fn takes_at_once(&self, owner: OwnerId, wish: &Wish) -> Option<(RequestId, Moment)> {
        if self.waiters.is_empty() {
            return None;
        }
        let (hold, Wish::Leave(level)) = (self.holds.get(&owner)?, wish) else {
            return None;
        };
        let gone = hold.position(*level) == Some(0) && hold.levels.len() == 1 && !hold.lingers;
        let settled = hold.phase == Phase::Held && hold.tasks().all(|task| task.wish.is_passed());
        if !gone || !settled || hold.renewal.failing {
            return None;
        }
        let queue = self.queues.get(&hold.cell.name)?;
        let heard = queue.run.heard.filter(|heard| self.now < heard.after(timing::FRESH))?;
        let to = self.receiver(queue, hold)?;
        self.waiters.get(&to).filter(|waiter| takes_behind(waiter, hold, heard)).map(|_| (to, heard))
    }

    /// Gives the lock to the next caller, and has the server say that it was there to be given.
    pub(super) fn pass_on(&mut self, owner: OwnerId, (to, heard): (RequestId, Moment), release: Task) {
        let Some(waiter) = self.take_waiter(to) else {
            return self.add_task(owner, release);
        };
        let Waiter { name, key, terms, form, announced, .. } = waiter;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.levels.clear();
        hold.must_end = terms.max_hold.map(|most| self.now.after(timing::trusted(most))).into();
        hold.lingers = terms.linger;
        let cell = Arc::new(HoldCell::new(name.clone(), key, owner, form.clone(), None));
        let before = std::mem::replace(&mut hold.cell, cell.clone());
        before.set_count(0);
        before.set_released();
        self.change_keys(before, cell);
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.run = queue.run.one_more(self.now);
            queue.turn.taken(self.now, announced, self.config.handovers.1);
            queue.note_refusal(self.now);
        }
        self.add_level(to, owner, terms, heard, terms.lease.duration());
        self.add_task(owner, release.passed());
        self.adopt_waiters(&name, key, owner, &form);
        self.advance(&name);
    }

    /// Another cell stands for a hold: who asks by key finds that one.
    fn change_keys(&mut self, before: Arc<HoldCell>, cell: Arc<HoldCell>) {
        if before.key != Key::Once {
            self.out.push(Output::Ended(before));
        }
        if cell.key != Key::Once {
            self.out.push(Output::Opened(cell));
        }
    }

    /// The lock was still ours when this call for `ttl` found it, which was sent after it had been passed on.
    pub(super) fn heard_of_passing(&mut self, owner: OwnerId, sent: Moment, ttl: Duration) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        for level in hold.levels.iter_mut() {
            level.end = level.end.max(sent.after(timing::trusted(level.lease().min(ttl))));
        }
        hold.renewed_at(sent, ttl);
        if let Some(queue) = self.queues.get_mut(&hold.cell.name) {
            queue.run.hear(sent);
        }
    }

    // ---- in one call ----

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
        let fresh = self.next_owner();
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
    let form = &waiter.form;
    let same = *form == hold.cell.form() && form.token.is_none() && form.kind.layout() != Layout::Learning;
    same && waiter.terms.replicas == 0 && waiter.unsettled.is_none() && !waiter.answered && !waiter.once()
}

/// Whether this caller can be behind the owner that Redis knows already, of whom the server was `heard` last: nobody
/// can tell from the outside, and the lock lives for as long as it would if it had been acquired then. A value that a
/// caller has chosen stands for that caller; one that we made nobody was told.
fn takes_behind(waiter: &Waiter, hold: &Hold, heard: Moment) -> bool {
    let lease = waiter.terms.lease.duration();
    waiter.terms.fencing == Fencing::Off
        && hold.longest() <= lease
        && waiter.lease() == lease
        && hold.deadline() >= heard.after(timing::trusted(lease))
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
