//! Clean-up releases: what an owner that nobody uses any more may have left in Redis.
//!
//! Owners are never reused, so a compare-release can be sent as often as needed.

use std::collections::VecDeque;
use std::time::Duration;

use super::asking::release_of;
use super::links::Which;
use super::timers::Timer;
use super::timing;
use super::{Engine, Outcome, Purpose};
use crate::moment::Moment;
use crate::wire::{Form, Layout, Name, OwnerId, Reply};

/// A release that has no caller.
#[derive(Debug)]
pub(super) struct Cleanup {
    pub(super) name: Name,
    form: Form,
    in_flight: bool,
    /// The not-after of an acquire copy that may still run: release once more after it.
    again_at: Option<Moment>,
    /// When to try again after a failure.
    retry: Option<Moment>,
    /// The lease has ended by then, so nothing can be left.
    until: Moment,
    limit: Duration,
}

/// How many confirmed releases are kept, and for how long: a fail-over with a slow verdict.
const KEPT: usize = 1024;
const KEPT_FOR: Duration = Duration::from_secs(60);

/// How long a lock is looked after whose lease the server has chosen, and nobody has been told.
const LEARNT: Duration = Duration::from_secs(3600);

/// A release that a server has confirmed. Its successor may never have heard of it.
#[derive(Debug)]
pub(super) struct Confirmed {
    at: Moment,
    name: Name,
    owner: OwnerId,
    form: Form,
    lease: Duration,
}

impl Confirmed {
    /// Whether anything can be left of it where it was not heard of.
    pub(super) fn counts(&self, now: Moment) -> bool {
        now < self.at.after(self.lease.min(KEPT_FOR))
    }

    #[cfg(test)]
    pub(super) fn is_of(&self, owner: OwnerId) -> bool {
        self.owner == owner
    }
}

impl Engine {
    /// Keeps a confirmed release for a while. What has a token of its caller may have another owner.
    pub(super) fn keep_release(&mut self, owner: OwnerId) {
        let Some(hold) = self.holds.get(&owner).filter(|hold| !hold.cell.has_value()) else {
            return;
        };
        let (cell, lease) = (&hold.cell, hold.longest());
        let (at, name, form) = (self.now, cell.name.clone(), cell.form());
        self.confirmed.push_back(Confirmed { at, name, owner, form, lease });
        let is_old = |kept: &VecDeque<Confirmed>| {
            kept.len() > KEPT || kept.front().is_some_and(|first| first.at.after(KEPT_FOR) <= at)
        };
        while is_old(&self.confirmed) {
            self.confirmed.pop_front();
        }
    }

    /// Another server, or the same one with older data, may have locks that were released: tells it
    /// again, so that nobody has to wait for the end of their leases.
    pub(super) fn repeat_releases(&mut self, which: Which<'_>) {
        let (repeated, kept) =
            std::mem::take(&mut self.confirmed).into_iter().partition(|old| which(&old.name));
        self.confirmed = kept;
        let repeated: VecDeque<Confirmed> = repeated;
        for old in repeated.into_iter().filter(|old| old.counts(self.now)).collect::<Vec<_>>() {
            self.clean_up(&old.name, old.owner, &old.form, old.lease, None);
        }
    }

    /// Releases whatever `owner` may have on `name`, now and, if a copy of its acquire may still
    /// run until `alive_until`, once more after that.
    pub(super) fn clean_up(
        &mut self,
        name: &Name,
        owner: OwnerId,
        form: &Form,
        lease: Duration,
        alive_until: Option<Moment>,
    ) {
        let again_at = alive_until.filter(|at| *at > self.now);
        let limit = timing::limit(lease);
        // What an acquire of an adaptive lock got may last longer than what it asked for: only a hold knows.
        let unknown = form.kind.layout() == Layout::Learning && !self.holds.contains_key(&owner);
        let lease = if unknown { lease.max(LEARNT) } else { lease };
        // Another call of this owner may be under way, which asks for as long; with replicas it has twice the time.
        let last = timing::copy_expires(self.now, 2 * limit);
        let until = again_at.map_or(last, |at| at.max(last)).after(lease);
        if self.cleanups.contains_key(&owner) {
            return;
        }
        self.cleanups.insert(
            owner,
            Cleanup {
                name: name.clone(),
                form: form.clone(),
                in_flight: false,
                again_at,
                retry: None,
                until,
                limit,
            },
        );
        self.send_cleanup(owner);
    }

    fn send_cleanup(&mut self, owner: OwnerId) {
        let now = self.now;
        let Some(cleanup) = self.cleanups.get_mut(&owner) else {
            return;
        };
        let up = self.links.is_up(&cleanup.name);
        if up && !cleanup.in_flight {
            cleanup.in_flight = true;
            cleanup.retry = None;
            cleanup.again_at.take_if(|at| *at <= now);
            let op = release_of(cleanup.name.clone(), owner, cleanup.form.clone());
            let limit = cleanup.limit;
            self.send(Purpose::Cleanup(owner), op, limit);
        }
        self.arm_cleanup(owner);
    }

    fn arm_cleanup(&mut self, owner: OwnerId) {
        let Some(cleanup) = self.cleanups.get(&owner) else {
            return;
        };
        let up = self.links.is_up(&cleanup.name);
        let wanted =
            [cleanup.again_at, cleanup.retry].into_iter().flatten().filter(|_| up && !cleanup.in_flight);
        let at = wanted.fold(cleanup.until, Moment::min);
        self.timers.arm(Timer::Cleanup(owner), at);
    }

    pub(super) fn cleanup_due(&mut self, owner: OwnerId) {
        let now = self.now;
        let Some(cleanup) = self.cleanups.get_mut(&owner) else {
            return;
        };
        if cleanup.until <= now {
            return self.end_cleanup(owner);
        }
        if [cleanup.again_at, cleanup.retry].iter().flatten().any(|at| *at <= now) {
            self.send_cleanup(owner);
        } else {
            self.arm_cleanup(owner);
        }
    }

    pub(super) fn cleaned(&mut self, owner: OwnerId, outcome: Outcome) {
        let retry = self.now.after(self.jitter.retry());
        let Some(cleanup) = self.cleanups.get_mut(&owner) else {
            return;
        };
        cleanup.in_flight = false;
        let name = cleanup.name.clone();
        let released = matches!(outcome, Outcome::Answered(Reply::Released(_)));
        match outcome {
            Outcome::Answered(_) | Outcome::Refused { passing: false, .. } if cleanup.again_at.is_none() => {
                self.end_cleanup(owner);
            }
            Outcome::Answered(_) => self.arm_cleanup(owner),
            Outcome::NotSent | Outcome::Unanswered | Outcome::Refused { .. } => {
                cleanup.retry = Some(retry);
                self.arm_cleanup(owner);
            }
        }
        if released {
            // Our own release publishes, but a waiter of this client need not wait for that.
            self.wake_head(&name);
        }
    }

    fn end_cleanup(&mut self, owner: OwnerId) {
        self.timers.disarm(Timer::Cleanup(owner));
        self.cleanups.remove(&owner);
    }

    /// After a reconnect, clean-ups that wait for the server go on.
    pub(super) fn resume_cleanups(&mut self, which: Which<'_>) {
        let of_names = self.cleanups.iter().filter(|(_, cleanup)| which(&cleanup.name));
        let owners: Vec<OwnerId> = of_names.map(|(owner, _)| *owner).collect();
        for owner in owners {
            self.send_cleanup(owner);
        }
    }
}
