//! The watchdog: due holds are renewed in batches, many names per call.

use std::collections::BTreeMap;
use std::time::Duration;

use super::holding::{Hold, Phase};
use super::links::Which;
use super::{Engine, Outcome, Purpose, timing};
use crate::error::LostReason;
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::wire::{Layout, Op, OwnerId, RenewReply, Renewal, Reply};

/// The most names in one call, so that a script stays short.
const BATCH: usize = 100;
/// A hold whose renewal is due within this part of its period goes along with one that is due now.
const EARLY: u32 = 10;
/// Asks whether a hold exists without making it live longer.
const LOOK: Duration = Duration::from_millis(1);

impl Engine {
    /// Renews `due` and takes along the holds that are due soon.
    pub(super) fn renew_with_neighbours(&mut self, mut due: Vec<OwnerId>) {
        let periods = due.iter().filter_map(|owner| self.holds.get(owner)?.period());
        let horizon = self.now.after(periods.max().unwrap_or_default() / EARLY);
        let neighbours = self.timers.holds_until(horizon).filter(|owner| {
            self.holds.get(owner).is_some_and(|hold| {
                let early = hold.period().unwrap_or_default() / EARLY;
                let soon = hold.renewal.due.is_some_and(|at| at <= self.now.after(early));
                soon && !hold.renewal.in_flight && hold.phase == Phase::Held
            })
        });
        due.extend(neighbours);
        self.send_renewals(&due);
    }

    /// Renews these holds now, whatever their plan: their keys may have changed.
    pub(super) fn renew_now(&mut self, owners: Vec<OwnerId>) {
        let mut ready = Vec::with_capacity(owners.len());
        for owner in owners {
            let up = self.is_up_for(owner);
            let Some(hold) = self.holds.get_mut(&owner).filter(|hold| hold.phase == Phase::Held) else {
                continue;
            };
            if hold.renewal.in_flight {
                hold.renewal.again = true;
            } else if up {
                ready.push(owner);
            }
        }
        self.send_renewals(&ready);
    }

    fn send_renewals(&mut self, owners: &[OwnerId]) {
        // One call is for one server, and has one script: hashes or strings.
        let mut groups: BTreeMap<(u16, bool), Vec<OwnerId>> = BTreeMap::new();
        for owner in owners {
            if let Some(hold) = self.holds.get(owner) {
                let is_hash = hold.cell.form.kind.layout() == Layout::Hash;
                groups.entry((self.links.routes.group(&hold.cell.name), is_hash)).or_default().push(*owner);
            }
        }
        for batch in groups.values().flat_map(|group| group.chunks(BATCH)) {
            self.send_batch(batch);
        }
    }

    fn send_batch(&mut self, owners: &[OwnerId]) {
        let now = self.now;
        let mut limit = timing::limit(Duration::MAX);
        let mut asked = Vec::with_capacity(owners.len());
        let mut holds = Vec::with_capacity(owners.len());
        for owner in owners {
            // Work that came due twice in one turn is done once.
            let wanted = |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.in_flight;
            let Some(hold) = self.holds.get_mut(owner).filter(wanted) else {
                continue;
            };
            hold.renewal.in_flight = true;
            hold.renewal.again = false;
            let watched = hold.watched_lease();
            let ttl = hold.capped(watched.unwrap_or(LOOK), now).max(LOOK);
            limit = limit.min(timing::limit(watched.unwrap_or(now.until(hold.deadline))));
            let (name, form) = (hold.cell.name.clone(), hold.cell.form.clone());
            holds.push(Renewal { name, owner: *owner, form, ttl });
            asked.push((*owner, ttl));
            self.arm_hold(*owner);
        }
        if !holds.is_empty() {
            self.send(Purpose::Renewal(asked), Op::Renew { holds }, limit);
        }
    }

    /// The outcome of a renewal of these holds for these times.
    pub(super) fn renewed(&mut self, asked: &[(OwnerId, Duration)], sent: Moment, outcome: Outcome) {
        let refused = matches!(outcome, Outcome::Refused { passing: true, .. });
        if refused && asked.len() > 1 && self.links.routes.is_split() {
            return self.renew_one_by_one(asked);
        }
        let silent = matches!(outcome, Outcome::Unanswered | Outcome::NotSent);
        let results = match outcome {
            Outcome::Answered(Reply::Renewed(results)) if results.len() == asked.len() => results,
            _ => vec![RenewReply::Failed; asked.len()],
        };
        let mut again = Vec::new();
        for ((owner, ttl), result) in asked.iter().zip(results) {
            match result {
                RenewReply::Kept => again.extend(self.renewal_kept(*owner, sent, *ttl)),
                RenewReply::Gone(reason) => self.renewal_refused(*owner, reason),
                RenewReply::Failed => again.extend(self.renewal_failed(*owner, silent)),
            }
        }
        self.renew_now(again);
    }

    /// While a slot moves, its keys are in two places: a call for one key is served, one for many not.
    fn renew_one_by_one(&mut self, asked: &[(OwnerId, Duration)]) {
        for (owner, _) in asked {
            if let Some(hold) = self.holds.get_mut(owner) {
                hold.renewal.in_flight = false;
                self.send_batch(&[*owner]);
            }
        }
    }

    /// Returns the hold if it is to be renewed once more, because of what happened meanwhile.
    fn renewal_kept(&mut self, owner: OwnerId, sent: Moment, ttl: Duration) -> Option<OwnerId> {
        let hold = self.holds.get_mut(&owner).filter(|hold| hold.phase == Phase::Held)?;
        hold.renewal.in_flight = false;
        hold.renewal.failing = false;
        hold.renewal.silent = false;
        hold.renewed_at(sent, ttl);
        let again = hold.renewal.again;
        self.counters.renewed.add(1);
        self.arm_hold(owner);
        again.then_some(owner)
    }

    /// The server says that the hold is gone. A hold on its way out hears it from its release.
    fn renewal_refused(&mut self, owner: OwnerId, reason: LostReason) {
        if self.holds.get(&owner).is_some_and(|hold| hold.phase == Phase::Held) {
            self.lose(owner, reason);
        }
    }

    /// Tries again soon, until the deadline. `silent`: the server was not heard at all. Returns the
    /// hold if it is to be renewed now, because of what happened meanwhile (a new connection, say).
    fn renewal_failed(&mut self, owner: OwnerId, silent: bool) -> Option<OwnerId> {
        let pause = self.jitter.retry();
        let hold = self.holds.get_mut(&owner).filter(|hold| hold.phase == Phase::Held)?;
        // A short lease has no time for the usual pause.
        let most = hold.watched_lease().map_or(pause, |lease| timing::period(lease) / 4);
        let retry = self.now.after(pause.min(most));
        let again = std::mem::take(&mut hold.renewal.again);
        hold.renewal.in_flight = false;
        hold.renewal.due = Some(retry);
        hold.renewal.silent = silent;
        if !std::mem::replace(&mut hold.renewal.failing, true) {
            let (name, left) = (hold.cell.name.clone(), self.now.until(hold.deadline));
            let text = format!("not renewed, trying again; trusted for another {left:?}");
            self.event("renewal_failed", EventLevel::Warn, &name, text);
        }
        self.arm_hold(owner);
        again.then_some(owner)
    }

    /// After a reconnect every hold is looked at: that tells about losses and arms tracking again.
    pub(super) fn renew_all(&mut self, which: Which<'_>) {
        self.renew_now(self.owners(which));
    }
}
