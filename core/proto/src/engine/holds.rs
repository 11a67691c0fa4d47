//! The holds of a client, and the timer entry of each.

use std::hint::black_box;
use std::ops::{Deref, DerefMut};

use super::context::{Context, Granted};
use super::hold::{Hold, Phase};
use super::interface::{Done, RequestId};
use super::lazy_box::Idle;
use super::levels::Level;
use super::links::Which;
use super::slab::Slab;
use super::timing;
use crate::error::{Error, LostReason};
use crate::moment::{Maybe, Moment};
use crate::wire::OwnerId;

/// All holds by their owners. There may be very many, and each is looked up often. Code that
/// iterates over them sorts them.
#[derive(Debug, Default)]
pub(super) struct Holds(Slab<Hold>);

impl Deref for Holds {
    type Target = Slab<Hold>;

    fn deref(&self) -> &Slab<Hold> {
        &self.0
    }
}

impl DerefMut for Holds {
    fn deref_mut(&mut self) -> &mut Slab<Hold> {
        &mut self.0
    }
}

impl Holds {
    /// The hold of this owner, if callers may rely on it.
    pub(super) fn held(&mut self, owner: OwnerId) -> Option<&mut Hold> {
        self.get_mut(&owner)
            .filter(|hold| hold.phase == Phase::Held)
    }

    pub(super) fn is_held(&self, owner: OwnerId) -> bool {
        self.get(&owner)
            .is_some_and(|hold| hold.phase == Phase::Held)
    }

    /// The holds on these names, in the order of their numbers, so that the same inputs give the
    /// same outputs.
    pub(super) fn owners(&self, which: Which<'_>) -> Vec<OwnerId> {
        let of_names = self.iter().filter(|(_, hold)| which(&hold.cell.name));
        let mut owners: Vec<OwnerId> = of_names.map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        owners
    }

    /// The holds on these names that have work for a caller. Few holds have, so the names of the
    /// others are not compared.
    pub(super) fn busy_owners(&self, which: Which<'_>) -> Vec<OwnerId> {
        let busy = self
            .iter()
            .filter(|(_, hold)| !hold.work.is_idle() && which(&hold.cell.name));
        let mut owners: Vec<OwnerId> = busy.map(|(owner, _)| owner).collect();
        owners.sort_unstable();
        owners
    }

    pub(super) fn is_up(&self, cx: &Context, owner: OwnerId) -> bool {
        self.get(&owner)
            .is_some_and(|hold| cx.links.is_up(&hold.cell.name))
    }

    pub(super) fn error(&self, cx: &Context, owner: OwnerId) -> Option<Error> {
        cx.links.error(&self.get(&owner)?.cell.name)
    }

    pub(super) fn arm_all(&mut self, cx: &mut Context, which: Which<'_>) {
        for owner in self.owners(which) {
            self.arm(cx, owner);
        }
    }

    /// Arms the one timer of a hold for the first thing that is due.
    pub(super) fn arm(&mut self, cx: &mut Context, owner: OwnerId) {
        let Some(hold) = self.get_mut(&owner) else {
            return;
        };
        let up = cx.links.is_up(&hold.cell.name);
        if let Some(at) = hold.set_alarm(cx.now, up) {
            cx.timers.push_hold(at, owner);
        }
    }

    /// Drops outdated alarms in front of the first that counts.
    pub(super) fn forget_alarms(&self, cx: &mut Context) {
        while let Some((at, owner)) = cx.timers.first_hold() {
            if self.has_alarm(owner, at) {
                break;
            }
            cx.timers.pop_hold();
        }
    }

    /// Drops all outdated alarms if they outnumber the others.
    pub(super) fn tidy_alarms(&self, cx: &mut Context) {
        cx.timers
            .tidy_holds(self.len(), |at, owner| self.has_alarm(owner, at));
    }

    /// Adds a level that the server has granted, and gives it to its caller.
    pub(super) fn add_level(
        &mut self,
        cx: &mut Context,
        id: RequestId,
        owner: OwnerId,
        granted: Granted,
    ) {
        let Granted { terms, sent, ttl } = granted;
        let level = cx.next_id();
        let Some(hold) = self.get_mut(&owner) else {
            return;
        };
        let (lease, sure) = terms.lease.granted(ttl);
        let end = sent.after(timing::trusted(sure));
        hold.asked_for(lease.duration());
        hold.levels.push(Level::new(level, lease, end, terms.tied));
        hold.cell.set_count(hold.count());
        hold.refresh_deadline();
        // The planned look may come later than the new level needs its first renewal. The plan of a
        // reader may be such a look, too.
        let before = hold.renewal.due.get();
        if before.is_none() || hold.look {
            hold.plan_renewal(sent);
        } else if hold.cell.kind.is_shared() {
            hold.plan_renewal(sent);
            hold.renew_by(before);
        }
        let cell = hold.cell.clone();
        self.arm(cx, owner);
        cx.counters.acquired.add(1);
        cx.trace("acquired", &cell.name, || {
            format!("acquired by {owner} with hold count {}", cell.count())
        });
        cx.complete(id, Done::Granted { cell, level });
    }

    /// Prefetches the memory of these holds. It has not been used for seconds, so it is in no cache
    /// of the processor. This loop has no dependencies between the holds, so the processor loads
    /// several at a time. The work on one hold after the other would wait for each.
    pub(super) fn read_ahead(&self, owners: impl Iterator<Item = OwnerId>) {
        let touched = |owner| {
            let hold = self.get(&owner)?;
            let cell = &hold.cell;
            let of_name = cell.name.as_bytes().first()?;
            Some(
                hold.alarm.get().is_some()
                    ^ hold.levels.is_empty()
                    ^ cell.has_value()
                    ^ (*of_name == 0),
            )
        };
        black_box(owners.filter_map(touched).filter(|odd| *odd).count());
    }

    fn has_alarm(&self, owner: OwnerId, at: Moment) -> bool {
        self.get(&owner)
            .is_some_and(|hold| hold.alarm.get() == Some(at))
    }

    /// The hold whose alarm is at `at`. Clears the alarm. `None` if the alarm is outdated.
    pub(super) fn alarmed(&mut self, owner: OwnerId, at: Moment) -> Option<&mut Hold> {
        let hold = self.get_mut(&owner)?;
        let counts = hold.alarm.get() == Some(at);
        if counts {
            hold.alarm = Maybe::default();
        }
        counts.then_some(hold)
    }

    /// Why this hold was lost, if its key still has to release it. A lock with a caller's token is
    /// excluded: another program may release it.
    pub(super) fn lost_to_release(&self, owner: OwnerId) -> Option<LostReason> {
        let hold = self.get(&owner)?;
        hold.lost().filter(|_| !hold.cell.has_value())
    }

    /// Whether only a release ends this hold, because the watchdog renews it. One that is being released
    /// ends with the answer.
    pub(super) fn never_ends_by_itself(&self, owner: OwnerId) -> bool {
        let watched = |hold: &Hold| hold.watched_lease().is_some() && hold.phase == Phase::Held;
        self.get(&owner).is_some_and(watched)
    }
}
