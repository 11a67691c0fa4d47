//! Clean-up releases: they remove what an owner that nobody uses any more may have left in Redis.
//!
//! A clean-up is a compare-release. The engine never reuses an owner that it drew, so that release
//! can be sent as often as needed.
//!
//! A token that a caller chose is different: the caller may use it again, and the server cannot
//! tell the attempts apart. So an attempt and a clean-up with the same token exclude each other on
//! a name. A try waits until the clean-up has ended (`is_token_busy`), and no clean-up begins while
//! a try is in flight or a hold is held (`is_token_used`). A clean-up with a token does not end
//! while its release is in flight. A copy that outlives its outcome, or that another process sent,
//! can still free the lock of a later attempt. So callers give each attempt a token of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, Purpose};
use super::hold::Hold;
use super::interface::CallOutcome;
use super::links::{LinkId, Which};
use super::ops::NOBODY;
use super::timers::Timer;
use super::timing;
use crate::maps::SortedMap;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Form, Name, Op, OwnerId, Release, Reply};

/// A release without a caller.
#[derive(Debug)]
pub(super) struct Cleanup {
    pub(super) name: Name,
    form: Form,
    /// Its owner may have noted that it waits to write.
    marked: bool,
    /// As of the release (`Op::Release`).
    place: Option<OwnerId>,
    given_up: bool,
    /// It is in flight, or waits until others are answered.
    under_way: bool,
    /// The not-after of an acquire copy that may still run. Another release follows after it.
    again_at: Option<Moment>,
    /// The next try after a failure.
    retry: Option<Moment>,
    /// The lease has ended by this moment, so no lock can be left, or it is given up.
    until: Moment,
    limit: Duration,
}

impl Cleanup {
    fn op(&self, owner: OwnerId) -> Op {
        Op::Release(Release {
            unmark: self.marked,
            place: self.place,
            ..Release::of(self.name.clone(), owner, self.form.clone())
        })
    }

    /// Name and token, if it releases the lock of a token.
    fn token_key(&self) -> Option<(Name, Arc<str>)> {
        let token = self.form.token.clone()?;
        Some((self.name.clone(), token))
    }
}

/// The clean-ups at one server.
#[derive(Debug, Default)]
struct Lane {
    sent: usize,
    /// They are sent when some of those in flight are answered.
    waiting: VecDeque<OwnerId>,
}

/// A lock that an owner may have left in Redis.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) name: Name,
    pub(super) owner: OwnerId,
    pub(super) form: Form,
    pub(super) lease: Duration,
    /// Its owner may have noted that it waits to write.
    pub(super) marked: bool,
    /// Whether a crowd may wait for it, and the place in it that its owner leaves.
    pub(super) place: Option<OwnerId>,
    /// Whether this client does not use that place any more.
    pub(super) given_up: bool,
}

impl Left {
    pub(super) fn of(name: &Name, owner: OwnerId, form: &Form, lease: Duration) -> Self {
        Left {
            name: name.clone(),
            owner,
            form: form.clone(),
            lease,
            marked: false,
            place: None,
            given_up: false,
        }
    }
}

/// A release that a server has confirmed at this moment. The server that takes its place may not
/// know of it.
#[derive(Debug)]
pub(super) struct Confirmed(Moment, Left);

impl Confirmed {
    /// Whether its lock can still exist on a server that does not know of it.
    pub(super) fn counts(&self, now: Moment) -> bool {
        let lease = if self.1.form.kind.facts().outlives_owners {
            tuning::RELEASES_KEPT_FOR
        } else {
            self.1.lease
        };
        now < self.0.after(lease.min(tuning::RELEASES_KEPT_FOR))
    }

    #[cfg(test)]
    pub(super) fn is_of(&self, owner: OwnerId) -> bool {
        self.1.owner == owner
    }
}

/// The clean-ups of a client, and the releases that it may have to repeat.
#[derive(Debug, Default)]
pub(super) struct Cleanups {
    // Ordered maps, so that the same inputs give the same outputs.
    of: SortedMap<OwnerId, Cleanup>,
    /// How many of them release the lock of a token, by name and token.
    tokens: SortedMap<(Name, Arc<str>), usize>,
    lanes: SortedMap<LinkId, Lane>,
    /// The last releases that a server confirmed.
    confirmed: VecDeque<Confirmed>,
}

/// The effect of a clean-up's outcome on the callers of the same name.
#[derive(Debug, Default)]
pub(super) struct Cleaned {
    /// A lock was released: the name and whether its form has a token.
    pub(super) released: Option<(Name, bool)>,
    /// The clean-up of a token has ended. A try may wait for the token.
    pub(super) token_free: Option<Name>,
}

impl Cleanups {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether one of them releases the lock of this token at this name.
    pub(super) fn releases(&self, name: &Name, token: &Arc<str>) -> bool {
        !self.tokens.is_empty() && self.tokens.contains_key(&(name.clone(), token.clone()))
    }

    /// Whether some are in flight at this server, or wait until others are answered.
    pub(super) fn is_busy(&self, link: LinkId) -> bool {
        self.lanes.contains_key(&link)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Cleanup> {
        self.of.values()
    }

    #[cfg(test)]
    pub(super) fn is_for(&self, owner: OwnerId) -> bool {
        self.of.contains_key(&owner)
    }

    #[cfg(test)]
    pub(super) fn confirmed(&self) -> impl Iterator<Item = &Confirmed> {
        self.confirmed.iter()
    }

    /// Keeps a confirmed release for a while. A release by a caller's token is not kept: by then
    /// another attempt may have the lock with this token.
    pub(super) fn keep(&mut self, now: Moment, hold: &Hold) {
        if hold.cell.has_value() {
            return;
        }
        let cell = &hold.cell;
        let left = Left::of(&cell.name, cell.owner, &cell.form(), hold.longest());
        self.confirmed.push_back(Confirmed(now, left));
        let is_old = |kept: &VecDeque<Confirmed>| {
            kept.len() > tuning::RELEASES_KEPT
                || kept
                    .front()
                    .is_some_and(|first| first.0.after(tuning::RELEASES_KEPT_FOR) <= now)
        };
        while is_old(&self.confirmed) {
            self.confirmed.pop_front();
        }
    }

    /// Takes the confirmed releases of these names, of which a lock can still exist elsewhere.
    pub(super) fn take_confirmed(&mut self, now: Moment, which: Which<'_>) -> Vec<Left> {
        let all = std::mem::take(&mut self.confirmed);
        let (taken, kept) = all
            .into_iter()
            .partition::<VecDeque<_>, _>(|old| which(&old.1.name));
        self.confirmed = kept;
        let counts = taken.into_iter().filter(|old| old.counts(now));
        counts.map(|old| old.1).collect()
    }

    /// Releases what is left. If a copy of the acquire may still run until `alive_until`, another
    /// release follows then. `known`: the lease is the longest that the server can have granted.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context,
        left: Left,
        known: bool,
        alive_until: Option<Moment>,
    ) {
        let (owner, now) = (left.owner, cx.now);
        if self.of.contains_key(&owner) {
            return;
        }
        let again_at = alive_until.filter(|at| *at > now);
        let limit = cx.limit(left.lease);
        // An acquire of an adaptive lock may get a longer lease than it asks for. Only a hold knows
        // that lease. In a read-write lock, other owners may keep this one for as long as they stay.
        let facts = left.form.kind.facts();
        let lease = if facts.outlives_owners || (facts.learns && !known) {
            left.lease.max(tuning::LEARNT_LEASE)
        } else if facts.queues {
            // It may be a place in the queue that is left.
            left.lease.max(tuning::PLACE_KEPT)
        } else {
            left.lease
        };
        // Another call of this owner may be in flight and ask for the same lease. With replicas it
        // has twice the time.
        let last = timing::copy_expires(now, 2 * limit);
        let cleanup = Cleanup {
            name: left.name,
            form: left.form,
            marked: left.marked,
            place: left.place,
            given_up: left.given_up,
            under_way: false,
            again_at,
            retry: None,
            until: again_at.map_or(last, |at| at.max(last)).after(lease),
            limit,
        };
        if let Some(key) = cleanup.token_key() {
            *self.tokens.or_default(key) += 1;
        }
        self.of.insert(owner, cleanup);
        self.send(cx, owner);
    }

    /// Sends a clean-up, or keeps it until others are answered. If the server is unreachable, the
    /// next connection sends it.
    fn send(&mut self, cx: &mut Context, owner: OwnerId) {
        let Some(cleanup) = self.of.get_mut(&owner) else {
            return;
        };
        if cx.links.is_up(&cleanup.name) && !cleanup.under_way {
            cleanup.under_way = true;
            cleanup.retry = None;
            let link = cx.links.routes.link(&cleanup.name);
            let lane = self.lanes.or_default(link);
            if lane.sent < tuning::CLEANUPS_IN_FLIGHT {
                lane.sent += 1;
                cleanup.again_at.take_if(|at| *at <= cx.now);
                let op = cleanup.op(owner);
                // Another copy would take it from a later waiter.
                if !cleanup.given_up {
                    cleanup.place = cleanup.place.map(|_| NOBODY);
                }
                let purpose = Purpose::Cleanup { link, owner };
                cx.send(purpose, op.into(), cleanup.limit, None);
            } else {
                lane.waiting.push_back(owner);
            }
        }
        self.arm(cx, owner);
    }

    /// A clean-up at this server was answered, so the next one can be sent.
    pub(super) fn send_next(&mut self, cx: &mut Context, link: LinkId) {
        let up = cx.links.is_link_up(link);
        if let Some(lane) = self.lanes.get_mut(&link) {
            lane.sent -= 1;
        }
        while let Some(lane) = self.lanes.get_mut(&link)
            && (lane.sent < tuning::CLEANUPS_IN_FLIGHT || !up)
            && let Some(owner) = lane.waiting.pop_front()
        {
            if let Some(cleanup) = self.of.get_mut(&owner) {
                cleanup.under_way = false;
                self.send(cx, owner);
            }
        }
        let is_over = |lane: &Lane| lane.sent == 0 && lane.waiting.is_empty();
        if self.lanes.get(&link).is_some_and(is_over) {
            self.lanes.remove(&link);
        }
    }

    fn arm(&self, cx: &mut Context, owner: OwnerId) {
        let Some(cleanup) = self.of.get(&owner) else {
            return;
        };
        let up = cx.links.is_up(&cleanup.name);
        let wanted = [cleanup.again_at, cleanup.retry]
            .into_iter()
            .flatten()
            .filter(|_| up && !cleanup.under_way);
        let at = wanted.fold(cleanup.until, Moment::min);
        cx.timers.arm(Timer::Cleanup(owner), at);
    }

    /// The timer of a clean-up is due. Returns the name of the clean-up if that has ended and a try
    /// may wait for its token.
    pub(super) fn due(&mut self, cx: &mut Context, owner: OwnerId) -> Option<Name> {
        let cleanup = self.of.get(&owner)?;
        if cleanup.until <= cx.now {
            // A release by token that is in flight could free the lock of the next attempt.
            if cleanup.under_way && cleanup.form.token.is_some() {
                return None;
            }
            return self.end(cx, owner);
        }
        let wanted = [cleanup.again_at, cleanup.retry];
        if wanted.iter().flatten().any(|at| *at <= cx.now) {
            self.send(cx, owner);
        } else {
            self.arm(cx, owner);
        }
        None
    }

    pub(super) fn answered(
        &mut self,
        cx: &mut Context,
        owner: OwnerId,
        outcome: CallOutcome,
    ) -> Cleaned {
        let retry = cx.now.after(cx.jitter.retry());
        let mut cleaned = Cleaned::default();
        let Some(cleanup) = self.of.get_mut(&owner) else {
            return cleaned;
        };
        cleanup.under_way = false;
        if matches!(outcome, CallOutcome::Answered(Reply::Released(_))) {
            cleaned.released = Some((cleanup.name.clone(), cleanup.form.token.is_some()));
        }
        match outcome {
            // Its end waited for this answer.
            _ if cleanup.until <= cx.now => cleaned.token_free = self.end(cx, owner),
            CallOutcome::Answered(_) | CallOutcome::Refused { passing: false, .. }
                if cleanup.again_at.is_none() =>
            {
                cleaned.token_free = self.end(cx, owner);
            }
            CallOutcome::Answered(_) => self.arm(cx, owner),
            CallOutcome::NotSent | CallOutcome::Unanswered | CallOutcome::Refused { .. } => {
                cleanup.retry = Some(retry);
                self.arm(cx, owner);
            }
        }
        cleaned
    }

    /// Ends a clean-up. Returns its name if a try may wait for its token.
    fn end(&mut self, cx: &mut Context, owner: OwnerId) -> Option<Name> {
        cx.timers.disarm(Timer::Cleanup(owner));
        let ended = self.of.remove(&owner)?;
        let key = ended.token_key()?;
        if let Some(count) = self.tokens.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.tokens.remove(&key);
            }
        }
        Some(ended.name)
    }

    /// Sends the clean-ups that wait for the server, after a reconnect.
    pub(super) fn resume(&mut self, cx: &mut Context, which: Which<'_>) {
        let of_names = self.of.iter().filter(|(_, cleanup)| which(&cleanup.name));
        let owners: Vec<OwnerId> = of_names.map(|(owner, _)| *owner).collect();
        for owner in owners {
            self.send(cx, owner);
        }
    }
}
