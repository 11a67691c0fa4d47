//! Local hand-over: the lock goes from one caller of this client to the next one.
//!
//! Usually a single call releases the old owner and acquires for the next one. It is sent once. If
//! it cannot be done, or its outcome is unknown, the engine takes the plain way. It releases the
//! hold as usual. It retires the next owner and cleans up what that owner may have got, and the
//! next caller tries with a fresh owner. So only a failure costs an extra call.
//!
//! Optimistic hand-over: if the server confirmed the hold less than 5 ms ago
//! (`tuning::HANDOVER_FRESH`), the engine gives the lock to the next waiter at once, under the same
//! Redis owner, and verifies it afterwards. The verification is sent immediately. A release is
//! reported only after a verification that was sent later finds the lock still ours. If the lock
//! was gone, every caller that passed it on since then, and the current holder, hear that it is
//! lost, as if that had happened a moment later. One verification is in flight at a time. It
//! answers all callers that passed the lock on before it was sent.
//!
//! Permits of a semaphore pass on without a call. The exclusive lock needs one: its release promises
//! that nobody else was in, so the server has to confirm that the lock was there. Permits promise a
//! number. Redis knows them by the id of an acquisition and counts them, whoever uses them. The next
//! caller goes on under that id, with the deadline that the server last confirmed, so the number and
//! the record in Redis stay true. The server must have confirmed the permits within
//! `Config::handovers`: until then they are not looked at, and a loss is told to the caller that has
//! them by then. A fixed lease begins anew for each caller, so it passes on only while it is as good
//! as new (`tuning::HANDOVER_FRESH`). After that time, or where the terms differ, the permits go back
//! to the server.
//!
//! The head of a semaphore has asked the server. If it was refused, it gets the permits, and the next
//! waiter takes over its parking, since the server would refuse it too. If its call is in flight, the
//! waiter behind it gets the permits.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::cleanup::Left;
use crate::engine::context::{Answer, Granted, Purpose};
use crate::engine::hold::{Hold, Phase};
use crate::engine::interface::{CallId, CallOutcome, Lease, Output, RequestId};
use crate::engine::names::{Attempt, WaitQueue};
use crate::engine::ops::NOBODY;
use crate::engine::waiter::{Acquisition, Waiter};
use crate::engine::work::{HoldOp, Task};
use crate::engine::{Engine, timing};
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Fencing, Form, HandOver, Handover, Kind, Name, Op, OwnerId, Reply};

impl Engine {
    /// The call that releases this hold and gives its lock to the next caller. `None` if the two
    /// need separate calls.
    pub(in crate::engine) fn hand_over(&mut self, owner: OwnerId) -> Option<Op> {
        if self.names.waiters.is_empty() {
            return None;
        }
        let hold = self.holds.get(&owner).filter(|hold| is_free_to_go(hold))?;
        let name = hold.cell.name.clone();
        let queue = self.names.queues.get(&name)?;
        let form = hold.cell.form();
        if form.kind.facts().handover != Handover::Whole {
            return None;
        }
        let to = self.receiver(queue, hold)?;
        self.renew_owner(to);
        let waiter = self.names.waiters.get_mut(&to)?;
        waiter.handed = true;
        // It was noted for a call of its own.
        waiter.retry = None;
        waiter.behind_own.clear();
        let (to, lease, fencing) = (waiter.call.owner, waiter.lease(), waiter.terms.fencing);
        self.names
            .set_attempt(&name, Attempt::InFlight { again: false });
        Some(Op::HandOver(HandOver {
            name,
            owner,
            adopts: None,
            to,
            form,
            lease,
            fencing,
            replicas: 0,
        }))
    }

    /// The waiter that this hold may be handed to.
    fn receiver(&self, queue: &WaitQueue, hold: &Hold) -> Option<RequestId> {
        // Nothing passes on that is being forced away.
        let can = self.closing.is_none()
            && self.cx.links.is_up(&hold.cell.name)
            && !self.queries.is_forcing(&hold.cell.name);
        let others_turn = queue.run.is_over(self.cx.now, self.cx.config.handovers);
        if !can || others_turn {
            return None;
        }
        let among_others = goes_among_others(hold.cell.kind);
        let at = match queue.attempt {
            Attempt::Idle => 0,
            // No holder of a semaphore blocks its waiters. This head has asked, and waits for a message.
            Attempt::Parked if among_others => 0,
            // The server is about to serve the head. The one behind it need not wait for that.
            Attempt::InFlight { .. } if among_others => 1,
            _ => return None,
        };
        let to = *queue.waiters.get(at)?;
        let waiter = self.names.waiters.get(&to)?;
        let head = self.names.waiters.get(queue.waiters.front()?)?;
        let alike = at == 0 || (head.form == waiter.form && !waiter.is_asking());
        (alike && takes(waiter, hold)).then_some(to)
    }

    // ---- optimistic hand-over ----

    /// The waiter that gets the lock of this hold at once when its only level is released, and when
    /// the call was sent that last confirmed the hold.
    pub(in crate::engine) fn takes_at_once(
        &self,
        owner: OwnerId,
        wish: &HoldOp,
    ) -> Option<(RequestId, Moment)> {
        if self.names.waiters.is_empty() {
            return None;
        }
        let (hold, HoldOp::Leave(level)) = (self.holds.get(&owner)?, wish) else {
            return None;
        };
        let gone = hold.position(*level) == Some(0) && hold.levels.len() == 1 && !hold.lingers;
        let settled = hold.phase == Phase::Held && hold.tasks().all(|task| task.wish.is_passed());
        // A copy of this process may have a hold with the same outdated owner.
        if !gone || !settled || hold.renewal.failing || self.cx.is_outdated(owner) {
            return None;
        }
        let queue = self.names.queues.get(&hold.cell.name)?;
        let to = self.receiver(queue, hold)?;
        let waiter = self.names.waiters.get(&to)?;
        let (heard, lasts) = if goes_among_others(hold.cell.kind) {
            // An answer about one of several holders says nothing about the others.
            let heard = hold.deadline().before(timing::trusted(hold.longest()));
            let most = self.cx.config.handovers.1;
            let lasts = match waiter.terms.lease {
                Lease::Fixed(_) => tuning::HANDOVER_FRESH,
                watched => most.min(timing::period(watched.duration())),
            };
            (heard, lasts)
        } else {
            (queue.run.heard?, tuning::HANDOVER_FRESH)
        };
        let fresh = self.cx.now < heard.after(lasts);
        (fresh && takes_behind(waiter, hold, heard)).then_some((to, heard))
    }

    /// Gives the lock to the next caller, and has the server verify that it was there to be given.
    /// Permits are given without that.
    pub(in crate::engine) fn pass_on(
        &mut self,
        owner: OwnerId,
        to: RequestId,
        heard: Moment,
        release: Task,
    ) {
        let refused = self.refused_until(to);
        let Some(waiter) = self.names.take_waiter(&mut self.cx, to) else {
            return self.add_task(owner, release);
        };
        let Waiter {
            name,
            key,
            terms,
            form,
            announced,
            ..
        } = waiter;
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        hold.levels.clear();
        hold.must_end = terms
            .max_hold
            .map(|most| self.cx.now.after(timing::trusted(most)))
            .into();
        hold.lingers = terms.linger;
        let cell = Arc::new(HoldCell::new(name.clone(), key, owner, form.clone(), None));
        let before = std::mem::replace(&mut hold.cell, cell.clone());
        before.set_count(0);
        before.set_released();
        self.change_keys(before, cell);
        let among_others = goes_among_others(form.kind);
        if let Some(queue) = self.names.queues.get_mut(&name) {
            // Permits pass on for so long after they were confirmed, so the streak is over with that.
            let began = if among_others { heard } else { self.cx.now };
            queue.run = queue.run.one_more(began);
            // A turn that others have is not over because one of several holders goes on, and the
            // server has refused nobody.
            if !among_others {
                let pause = self.cx.config.handovers.1;
                queue.turn.taken(self.cx.now, announced, pause);
                queue.note_refusal(self.cx.now);
            }
        }
        let (sent, ttl) = (heard, terms.lease.duration());
        let granted = Granted { terms, sent, ttl };
        self.holds.add_level(&mut self.cx, to, owner, granted);
        if among_others {
            self.left(release.request);
        } else {
            self.add_task(owner, release.passed());
        }
        self.adopt_waiters(&name, key, owner, &form);
        match refused {
            Some(end) => self.pass_refusal_on(&name, &form, terms.special.limit, end),
            None => self.advance(&name),
        }
    }

    /// Until when this waiter is parked, because the server has refused it.
    fn refused_until(&self, id: RequestId) -> Option<Moment> {
        let waiter = self.names.waiters.get(&id)?;
        let queue = self.names.queues.get(&waiter.name)?;
        let refused = queue.attempt == Attempt::Parked
            && waiter.announced
            && waiter.failures == 0
            && queue.turn.of_others(self.cx.now).is_none();
        waiter.retry.filter(|_| refused)
    }

    /// The head that the server had refused until `end` got its permits from a holder. The server
    /// would refuse the next one too, if it wants the same.
    fn pass_refusal_on(&mut self, name: &Name, form: &Form, limit: u32, end: Moment) {
        let next = self.names.queues.get(name);
        let next = next.and_then(|queue| queue.waiters.front().copied());
        let alike = next.and_then(|id| {
            let waiter = self.names.waiters.get_mut(&id)?;
            let asks = waiter.once() || waiter.is_asking();
            let same = waiter.form == *form && waiter.terms.special.limit == limit;
            (same && !asks).then_some((id, waiter))
        });
        match alike {
            Some((id, waiter)) => {
                waiter.announced = true;
                self.names.park(&mut self.cx, id, end);
            }
            None => self.advance(name),
        }
    }

    /// Replaces the cell of a hold. Questions by key find the new one.
    fn change_keys(&mut self, before: Arc<HoldCell>, cell: Arc<HoldCell>) {
        if before.key != OwnerKey::Once {
            self.cx.out.push(Output::Ended(before));
        }
        if cell.key != OwnerKey::Once {
            self.cx.out.push(Output::Opened(cell));
        }
    }

    /// A call for `ttl` that was sent at `sent`, after an optimistic hand-over, found the lock
    /// still ours.
    pub(in crate::engine) fn heard_of_passing(
        &mut self,
        owner: OwnerId,
        sent: Moment,
        ttl: Duration,
    ) {
        let Some(hold) = self.holds.get_mut(&owner) else {
            return;
        };
        for level in hold.levels.iter_mut() {
            level.end = level
                .end
                .max(sent.after(timing::trusted(level.lease().min(ttl))));
        }
        hold.renewed_at(sent, ttl);
        if let Some(queue) = self.names.queues.get_mut(&hold.cell.name) {
            queue.run.hear(sent);
        }
    }

    // ---- hand-over in one call ----

    /// The purpose of a hold's command, which says how to read its outcome.
    pub(in crate::engine) fn purpose_of(&self, owner: OwnerId, op: &Op) -> Purpose {
        let head = |name: &Name| self.names.queues.get(name)?.waiters.front().copied();
        match op {
            Op::HandOver(HandOver { name, .. }) => {
                head(name).map_or(Purpose::Command(owner), |to| Purpose::HandOver {
                    from: owner,
                    to,
                })
            }
            _ => Purpose::Command(owner),
        }
    }

    /// The outcome of a hand-over. Either the old owner is released and the next one has the lock,
    /// or both continue separately.
    pub(in crate::engine) fn handed_over(
        &mut self,
        from: OwnerId,
        to: RequestId,
        call: CallId,
        answer: Answer,
    ) {
        let Answer { sent, outcome } = answer;
        if matches!(outcome, CallOutcome::Answered(Reply::Acquired { .. })) {
            // The new holder comes first, since everybody else waits for it.
            self.tried(to, sent, outcome);
            return self.commanded(from, call, sent, CallOutcome::Answered(Reply::Released(0)));
        }
        let unsure = !is_undone(&outcome);
        // The old owner comes first: once it is released, no copy can give the lock to the next
        // one.
        if self
            .command_of(from)
            .is_some_and(|command| command.release_instead(call, unsure))
        {
            self.send_command(from);
        }
        self.not_handed_over(to, sent, unsure);
    }

    /// The head did not get the lock, or the outcome is unknown (`unsure`). It goes on as if no
    /// hand-over had been tried.
    fn not_handed_over(&mut self, to: RequestId, sent: Moment, unsure: bool) {
        let fresh = self.cx.next_owner();
        let Some(waiter) = self.names.waiters.get_mut(&to) else {
            return;
        };
        waiter.handed = false;
        let (name, form, lease, answered) = (
            waiter.name.clone(),
            waiter.form.clone(),
            waiter.lease(),
            waiter.answered,
        );
        let expires = timing::copy_expires(sent, waiter.call.limit);
        let owner = if unsure {
            std::mem::replace(&mut waiter.call.owner, fresh)
        } else {
            waiter.call.owner
        };
        self.names.set_attempt(&name, Attempt::Idle);
        if unsure {
            self.clean_up(Left::of(&name, owner, &form, lease), Some(expires));
        }
        if answered {
            return self.remove_waiter(to, false);
        }
        self.names.arm_waiter(&mut self.cx, to);
        self.advance(&name);
    }

    // ---- adoption ----

    /// A caller takes over a lock whose token it was given, from whatever process has it.
    ///
    /// One call replaces the token by an owner of this client. So the process that handed the lock on
    /// can neither release nor extend it any more, and what it does when its own hold ends does no
    /// harm. It is told of the loss as of any other. A second adoption with the same token is refused.
    pub(in crate::engine) fn adopt(&mut self, asked: Acquisition, token: Arc<str>) {
        let (id, name, key) = (asked.id, &asked.name, asked.key);
        let (form, terms) = (&asked.form, &asked.terms);
        let mine = self
            .names
            .hold_of(&self.holds, name, key, form.kind.side())
            .filter(|owner| !self.forget_run_out(*owner, key));
        if mine.is_some_and(|owner| !self.holds.get(&owner).is_some_and(Hold::is_lost)) {
            // A release by this key could not tell which hold it gives back.
            let text = "this thread, task or key has the lock already; release it first, or use another key";
            return self.cx.fail(id, Error::invalid(text).on(name));
        }
        let lease = terms.first_lease();
        let owner = self.cx.next_owner();
        let op = Op::HandOver(HandOver {
            name: name.clone(),
            owner: NOBODY,
            adopts: Some(token),
            to: owner,
            form: form.clone(),
            lease,
            fencing: terms.fencing,
            replicas: terms.replicas.into(),
        });
        let adopter = Waiter::new(asked, owner, tuning::PLAIN_LIMIT);
        self.queries
            .add(&mut self.cx, id, Some(op), Some(Box::new(adopter)));
        self.send_query(id);
    }

    /// The server has given the lock to the adopter.
    pub(in crate::engine) fn adopted(
        &mut self,
        id: RequestId,
        sent: Moment,
        ttl: Duration,
        token: Option<u64>,
    ) {
        // An adopter that has left has begun the clean-up.
        let Some(adopter) = self.queries.take_adopter(&mut self.cx, id) else {
            return;
        };
        let (name, key, owner, form) = (
            adopter.name.clone(),
            adopter.key,
            adopter.call.owner,
            adopter.form.clone(),
        );
        if sent.after(timing::trusted(adopter.lease().min(ttl))) <= self.cx.now {
            let text = "the answer came after the lease could be trusted; raise the lease";
            let error = Error::new(ErrorKind::Unavailable, text);
            self.cx.fail(id, error.on(&name));
            return self.clean_up_waiter(&adopter);
        }
        let queue = self.names.queues.entry(name.clone()).or_default();
        queue.add_hold(owner);
        let terms = adopter.terms;
        self.open_hold(id, *adopter, Granted { terms, sent, ttl }, token);
        // The server does not tell a client of its own changes.
        self.lose_all(&name, LostReason::Stolen, Some(owner));
        self.adopt_waiters(&name, key, owner, &form);
    }
}

/// Whether a hold of this kind goes to the next caller while there are other holders.
fn goes_among_others(kind: Kind) -> bool {
    kind.facts().handover == Handover::AmongOthers
}

/// Whether the release of this hold can give the lock to another owner.
fn is_free_to_go(hold: &Hold) -> bool {
    hold.phase == Phase::Releasing && hold.levels.is_empty() && !hold.lingers
}

/// Whether this caller can take over the lock of this hold.
fn takes(waiter: &Waiter, hold: &Hold) -> bool {
    let form = &waiter.form;
    let same = *form == hold.cell.form() && form.token.is_none();
    same && form.kind.facts().handover != Handover::Never
        && waiter.terms.replicas == 0
        && waiter.unsettled.is_none()
        && !waiter.answered
        && !waiter.once()
}

/// Whether this caller can continue under the Redis owner of the hold, which a call sent at `heard`
/// last confirmed. Nobody outside can tell the difference: the lock lives as long as if the caller
/// had acquired it at that moment. A token that a caller chose identifies that caller and stays
/// with it. Nobody was told of an owner that the engine drew.
fn takes_behind(waiter: &Waiter, hold: &Hold, heard: Moment) -> bool {
    let lease = waiter.terms.lease.duration();
    waiter.terms.fencing == Fencing::Off
        && hold.longest() <= lease
        && waiter.lease() == lease
        && hold.deadline() >= heard.after(timing::trusted(lease))
}

/// Whether the next owner certainly did not get the lock.
fn is_undone(outcome: &CallOutcome) -> bool {
    match outcome {
        CallOutcome::Answered(reply) => {
            matches!(reply, Reply::Gone(_) | Reply::Stale | Reply::Foreign(_))
        }
        CallOutcome::Refused { passing, .. } => *passing,
        CallOutcome::NotSent => true,
        CallOutcome::Unanswered => false,
    }
}
