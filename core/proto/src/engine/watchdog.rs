//! The watchdog renews due holds in batches, with many names per call.
//!
//! Two limits keep a slow server usable: few renewals are in flight at once, and the holds that
//! wait are renewed in the order of their deadlines (earliest deadline first). Holds that end
//! before an answer can come are renewed last.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hint::black_box;
use std::time::Duration;

use super::context::Purpose;
use super::hold::{Hold, Phase};
use super::holds::alarmed;
use super::interface::CallOutcome;
use super::lazy_box::Idle;
use super::links::{LinkId, Which};
use super::timers::Timer;
use super::{Engine, timing};
use crate::error::LostReason;
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Layout, Op, OwnerId, RenewReply, Renewal, Reply};

/// The lease of a look: a renewal that asks whether a hold exists and does not prolong it.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// The holds of one call have the same group: the link, the slot, the layout of the data, and the
/// owner of a hold that is renewed alone.
type Group = (LinkId, u16, bool, Option<OwnerId>);

/// Batches of holds that wait, ordered by the first deadline of each batch (earliest deadline
/// first).
///
/// A batch stays together. With a hundred thousand holds, one entry for each took a tenth of the
/// client's time.
type Waiting = BinaryHeap<Reverse<(Moment, Vec<OwnerId>)>>;

/// The renewals of one server. No caller waits for them.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The work of the renewals in flight, in locks. In a cluster a call is for few locks, often
    /// for one, so the number of calls would say little.
    work: usize,
    /// Holds that are renewed when some of the renewals in flight are answered.
    ready: Waiting,
    /// Holds that end before an answer comes, if it takes as long as the last one. They are renewed
    /// when no other hold waits, or when answers have become quicker. If they were renewed first,
    /// all calls would be in vain until the other holds have no time left either.
    late: Waiting,
    /// How long the last answer to a renewal took.
    took: Duration,
}

impl Flow {
    fn is_over(&self) -> bool {
        self.work == 0 && !self.keeps_waiting()
    }

    /// Whether any hold waits to be renewed.
    fn keeps_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.late.is_empty()
    }

    /// The first deadline of the holds that wait.
    fn first_deadline(&self) -> Option<Moment> {
        [&self.ready, &self.late]
            .into_iter()
            .filter_map(|waiting| Some(waiting.peek()?.0.0))
            .min()
    }

    /// The holds to be renewed next. A hold that ends before `soonest` cannot be renewed in time.
    /// The flag says whether such holds are renewed all the same, because no other hold waits.
    fn next(&mut self, soonest: Moment) -> Option<(Vec<OwnerId>, bool)> {
        let in_time = self
            .late
            .peek()
            .is_some_and(|Reverse((first, _))| *first >= soonest);
        let last = in_time || self.ready.is_empty();
        let Reverse((_, owners)) = if last {
            self.late.pop()?
        } else {
            self.ready.pop()?
        };
        Some((owners, last))
    }

    /// Whether one more call may be sent. As many full calls may be in flight.
    fn is_open(&self, calls: usize) -> bool {
        self.work < calls * (tuning::RENEWAL_BATCH + tuning::RENEWAL_CALL_WORK)
    }

    /// How many locks can be renewed now in full calls.
    fn room(&self, calls: usize) -> usize {
        (calls * (tuning::RENEWAL_BATCH + tuning::RENEWAL_CALL_WORK))
            .saturating_sub(self.work)
            .div_ceil(tuning::RENEWAL_BATCH + tuning::RENEWAL_CALL_WORK)
            * tuning::RENEWAL_BATCH
    }
}

/// Holds whose renewal is due.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) owners: Vec<OwnerId>,
    /// The longest of their periods.
    longest: Duration,
}

impl Due {
    pub(super) fn add(&mut self, owner: OwnerId, hold: &Hold) {
        self.owners.push(owner);
        self.longest = self.longest.max(hold.period().unwrap_or_default());
    }
}

impl Engine {
    /// Renews the due holds together with holds that are due soon.
    ///
    /// Holds that are renewed together are due together from then on. So holds that were acquired
    /// at random moments soon share full calls. Full calls that are due soon are sent as well: a
    /// wake-up costs as much as a call, and this saves wake-ups. In a cluster a call is for one
    /// slot, so there is no limit.
    pub(super) fn renew_with_neighbours(
        &mut self,
        Due {
            owners: mut due,
            longest,
        }: Due,
    ) {
        let horizon = self.cx.now.after(longest / tuning::RENEWAL_EARLY);
        let filled = due.len().next_multiple_of(tuning::RENEWAL_BATCH);
        let most = if self.cx.links.routes.is_split() {
            usize::MAX
        } else {
            filled.max(tuning::RENEWAL_CALLS_EARLY * tuning::RENEWAL_BATCH)
        };
        let mut passed_over = Vec::new();
        loop {
            let soon = self
                .cx
                .timers
                .pop_holds(horizon, most.saturating_sub(due.len()));
            if soon.is_empty() {
                break;
            }
            self.read_ahead(soon.iter().map(|(_, owner)| *owner));
            for (at, owner) in soon {
                if let Some(hold) = alarmed(&mut self.holds, owner, at) {
                    let goes = if goes_along(hold, self.cx.now) {
                        &mut due
                    } else {
                        &mut passed_over
                    };
                    goes.push(owner);
                }
            }
        }
        if !self.cx.links.routes.is_split() && due.len() > filled {
            passed_over
                .extend(due.split_off(due.len() / tuning::RENEWAL_BATCH * tuning::RENEWAL_BATCH));
        }
        passed_over
            .into_iter()
            .for_each(|owner| self.arm_hold(owner));
        self.send_renewals(&due);
    }

    /// Renews these holds now, because their keys may have changed.
    pub(super) fn renew_now(&mut self, owners: Vec<OwnerId>) {
        let mut ready = Vec::with_capacity(owners.len());
        for owner in owners {
            let up = self.is_up_for(owner);
            let Some(hold) = self
                .holds
                .get_mut(&owner)
                .filter(|hold| hold.phase == Phase::Held)
            else {
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

    /// Prefetches the memory of these holds. It has not been used for seconds, so it is in no cache
    /// of the processor. This loop has no dependencies between the holds, so the processor loads
    /// several at a time. The work on one hold after the other would wait for each.
    pub(super) fn read_ahead(&self, owners: impl Iterator<Item = OwnerId>) {
        let touched = |owner| {
            let hold = self.holds.get(&owner)?;
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

    fn group_of(&self, owner: OwnerId) -> Option<Group> {
        let hold = self.holds.get(&owner)?;
        let is_hash = hold.cell.kind.layout() == Layout::Hash;
        let (name, routes) = (&hold.cell.name, &self.cx.links.routes);
        Some((
            routes.link(name),
            routes.group(name),
            is_hash,
            hold.renewal.alone.then_some(owner),
        ))
    }

    fn send_renewals(&mut self, owners: &[OwnerId]) {
        // A call is for one server, and for one layout: hashes or strings.
        let mut groups: BTreeMap<Group, Vec<OwnerId>> = BTreeMap::new();
        // Most calls have one group, and others come in runs. A run saves a look-up for each hold.
        let mut run: Option<(Group, Vec<OwnerId>)> = None;
        for owner in owners {
            let Some(group) = self.group_of(*owner) else {
                continue;
            };
            match &mut run {
                Some((of, same)) if *of == group => same.push(*owner),
                _ => {
                    let before = run.replace((group, vec![*owner]));
                    before
                        .into_iter()
                        .for_each(|(of, same)| groups.entry(of).or_default().extend(same));
                }
            }
        }
        run.into_iter()
            .for_each(|(of, same)| groups.entry(of).or_default().extend(same));
        let mut groups: Vec<(Group, Vec<OwnerId>)> = groups.into_iter().collect();
        if groups.len() > 1 {
            // The map is in the order of the slots. The slot whose hold ends first is sent first.
            groups.sort_by_cached_key(|(_, group)| self.first_deadline(group));
        }
        for ((link, ..), mut group) in groups {
            // If only a part may be sent now, it is the holds with the least time.
            if group.len()
                > self
                    .flows
                    .entry(link)
                    .or_default()
                    .room(self.cx.config.renewals)
            {
                group.sort_by_cached_key(|owner| self.holds.get(owner).map(|hold| hold.deadline()));
            }
            for batch in group.chunks(tuning::RENEWAL_BATCH) {
                match self
                    .flows
                    .entry(link)
                    .or_default()
                    .is_open(self.cx.config.renewals)
                {
                    true => self.send_batch(link, batch),
                    false => self.put_off(link, batch),
                }
            }
        }
    }

    /// The first deadline of these holds.
    fn first_deadline(&self, owners: &[OwnerId]) -> Option<Moment> {
        owners
            .iter()
            .filter_map(|owner| Some(self.holds.get(owner)?.deadline()))
            .min()
    }

    /// Defers the renewal of these holds until others are answered. So a slow server does not get
    /// more work because it is slow.
    ///
    /// The holds share one alarm at the first of their deadlines. An alarm for each hold would be
    /// outdated as soon as the hold is renewed, and outdated alarms are removed one by one.
    fn put_off(&mut self, link: LinkId, owners: &[OwnerId]) {
        let (mut first, mut waiting, mut busy) =
            (None, Vec::with_capacity(owners.len()), Vec::new());
        for owner in owners {
            let wanted =
                |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.is_under_way();
            if let Some(hold) = self.holds.get_mut(owner).filter(wanted) {
                hold.renewal.put_off = true;
                first = first.into_iter().chain([hold.deadline()]).min();
                waiting.push(*owner);
                if !hold.work.is_idle() {
                    busy.push(*owner);
                }
            }
        }
        // The alarm of these holds was taken. Callers that wait for another operation on them have
        // to be answered in time.
        busy.into_iter().for_each(|owner| self.arm_hold(owner));
        if let Some(first) = first {
            self.flows
                .entry(link)
                .or_default()
                .ready
                .push(Reverse((first, waiting)));
            self.watch_put_off(link);
        }
    }

    fn watch_put_off(&mut self, link: LinkId) {
        match self.flows.get(&link).and_then(Flow::first_deadline) {
            Some(first) => self.cx.timers.arm(Timer::PutOff(link), first),
            None => self.cx.timers.disarm(Timer::PutOff(link)),
        }
    }

    /// The deadline of a deferred hold has come. The other holds of its batch still wait.
    pub(super) fn put_off_due(&mut self, link: LinkId) {
        let (now, holds) = (self.cx.now, &mut self.holds);
        let mut ended = Vec::new();
        let Some(flow) = self.flows.get_mut(&link) else {
            return;
        };
        for waiting in [&mut flow.ready, &mut flow.late] {
            while waiting
                .peek()
                .is_some_and(|Reverse((first, _))| *first <= now)
                && let Some(Reverse((_, mut owners))) = waiting.pop()
            {
                let mut next: Option<Moment> = None;
                owners.retain(|owner| {
                    let Some(hold) = holds.get_mut(owner).filter(|hold| hold.is_put_off()) else {
                        return false;
                    };
                    let end = hold.deadline();
                    if end <= now {
                        hold.renewal.put_off = false;
                        ended.push(*owner);
                        return false;
                    }
                    next = next.into_iter().chain([end]).min();
                    true
                });
                if let Some(next) = next {
                    waiting.push(Reverse((next, owners)));
                }
            }
        }
        ended.into_iter().for_each(|owner| self.arm_hold(owner));
        self.watch_put_off(link);
    }

    /// Takes out the holds to be renewed next: enough for one call, or a few more. A hold that was
    /// released or renewed meanwhile does not wait any more.
    ///
    /// In a cluster the holds of a batch have the same slot, and the next batch has another one. It
    /// could not share the call and would be deferred again, so only one batch is taken.
    pub(super) fn next_put_off(&mut self, link: LinkId, up: bool) -> Vec<OwnerId> {
        let full = if self.cx.links.routes.is_split() {
            1
        } else {
            tuning::RENEWAL_BATCH
        };
        let (mut next, mut late, mut first_late) = (Vec::new(), Vec::new(), None);
        let Some(flow) = self.flows.get_mut(&link) else {
            return next;
        };
        let soonest = if up {
            self.cx.now.after(flow.took)
        } else {
            self.cx.now
        };
        while next.len() < full
            && let Some((owners, nevertheless)) = flow.next(soonest)
        {
            for owner in owners {
                let Some(hold) = self.holds.get_mut(&owner).filter(|hold| hold.is_put_off()) else {
                    continue;
                };
                let end = hold.deadline();
                if nevertheless || end >= soonest {
                    hold.renewal.put_off = false;
                    next.push(owner);
                } else {
                    first_late = first_late.into_iter().chain([end]).min();
                    late.push(owner);
                }
            }
        }
        if let Some(first) = first_late {
            flow.late.push(Reverse((first, late)));
        }
        next
    }

    /// Renews deferred holds. If the server is unreachable, the next connection renews them.
    fn renew_put_off(&mut self, link: LinkId) {
        let up = self.cx.links.is_link_up(link);
        while let Some(flow) = self.flows.get(&link) {
            if !flow.keeps_waiting() || up && !flow.is_open(self.cx.config.renewals) {
                break;
            }
            let next = self.next_put_off(link, up);
            if up {
                self.send_renewals(&next);
            } else {
                next.into_iter().for_each(|owner| self.arm_hold(owner));
            }
        }
        self.watch_put_off(link);
        self.forget_flow(link);
    }

    /// Removes the record of a server that has no work in flight and none that waits. While
    /// clean-ups are in flight, the server is still busy with an outage, so the record stays.
    pub(super) fn forget_flow(&mut self, link: LinkId) {
        if self.flows.get(&link).is_some_and(Flow::is_over) && !self.cleanups.is_busy(link) {
            self.flows.remove(&link);
        }
    }

    fn send_batch(&mut self, link: LinkId, owners: &[OwnerId]) {
        let (now, up) = (self.cx.now, self.cx.links.is_link_up(link));
        let mut limit = timing::limit(Duration::MAX);
        let mut asked = Vec::with_capacity(owners.len());
        let mut holds = Vec::with_capacity(owners.len());
        let mut alarms = Vec::with_capacity(owners.len());
        let mut looks = 0;
        for owner in owners {
            // A hold can come due twice in one turn. It is renewed once.
            let wanted = |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.in_flight;
            let Some(hold) = self.holds.get_mut(owner).filter(wanted) else {
                continue;
            };
            hold.renewal.in_flight = true;
            hold.renewal.unseen = false;
            hold.renewal.put_off = false;
            hold.renewal.alone = false;
            hold.renewal.again = false;
            looks += usize::from(std::mem::take(&mut hold.look));
            if !std::mem::take(&mut hold.renewal.invalidated) {
                hold.harmless = hold.harmless.saturating_sub(1);
            }
            let watched = hold.watched_lease();
            let ttl = hold.capped(watched.unwrap_or(LOOK), now).max(LOOK);
            hold.plan_renewal(now);
            limit = limit.min(timing::limit(watched.unwrap_or(now.until(hold.deadline()))));
            let (name, form) = (hold.cell.name.clone(), hold.cell.form());
            holds.push(Renewal {
                name,
                owner: *owner,
                form,
                ttl,
            });
            asked.push((*owner, ttl));
            alarms.extend(hold.set_alarm(now, up).map(|at| (at, *owner)));
        }
        self.cx.timers.push_holds(&alarms);
        if !holds.is_empty() {
            self.flows.entry(link).or_default().work += holds.len() + tuning::RENEWAL_CALL_WORK;
            self.renewing(holds.len() - looks, looks);
            self.send(Purpose::Renewal { link, asked }, Op::Renew { holds }, limit);
        }
    }

    /// The outcome of a renewal of these holds for these times.
    pub(super) fn renewed(
        &mut self,
        link: LinkId,
        asked: &[(OwnerId, Duration)],
        sent: Moment,
        outcome: CallOutcome,
    ) {
        if let Some(flow) = self.flows.get_mut(&link) {
            flow.work -= asked.len() + tuning::RENEWAL_CALL_WORK;
            if matches!(outcome, CallOutcome::Answered(_)) {
                flow.took = sent.until(self.cx.now);
            }
        }
        self.take_renewed(asked, sent, outcome);
        self.renew_put_off(link);
    }

    fn take_renewed(&mut self, asked: &[(OwnerId, Duration)], sent: Moment, outcome: CallOutcome) {
        let refused = matches!(outcome, CallOutcome::Refused { passing: true, .. });
        if refused && asked.len() > 1 && self.cx.links.routes.is_split() {
            return self.renew_one_by_one(asked);
        }
        // The server did nothing. The driver has learnt the server's clock from the reply.
        if matches!(outcome, CallOutcome::Answered(Reply::Stale)) {
            return self.renewal_stale(asked);
        }
        let silent = matches!(outcome, CallOutcome::Unanswered | CallOutcome::NotSent);
        // The server may have done a part before it refused.
        let done = !matches!(outcome, CallOutcome::NotSent);
        let results = match outcome {
            CallOutcome::Answered(Reply::Renewed(results)) if results.len() == asked.len() => {
                results
            }
            _ => vec![RenewReply::Failed; asked.len()],
        };
        self.read_ahead(asked.iter().map(|(owner, _)| *owner));
        let mut again = Vec::new();
        for ((owner, ttl), result) in asked.iter().zip(results) {
            match result {
                RenewReply::Kept => again.extend(self.renewal_kept(*owner, sent, *ttl)),
                RenewReply::Gone(reason) => self.renewal_refused(*owner, reason),
                RenewReply::Failed => again.extend(self.renewal_failed(*owner, silent, done)),
            }
        }
        self.renew_now(again);
    }

    /// Renews these holds with a call for each. While a slot moves between two nodes, they serve
    /// calls for one key and refuse calls for several.
    fn renew_one_by_one(&mut self, asked: &[(OwnerId, Duration)]) {
        let owners: Vec<OwnerId> = asked.iter().map(|(owner, _)| *owner).collect();
        for owner in &owners {
            if let Some(hold) = self
                .holds
                .get_mut(owner)
                .filter(|hold| hold.phase == Phase::Held)
            {
                hold.renewal.in_flight = false;
                hold.renewal.alone = true;
            }
        }
        self.send_renewals(&owners);
    }

    /// The renewal arrived after its not-after by the server's clock. It is repeated at once. If
    /// the repeat is too late as well, the next one follows after a pause.
    fn renewal_stale(&mut self, asked: &[(OwnerId, Duration)]) {
        let mut again = Vec::with_capacity(asked.len());
        for (owner, _) in asked {
            let Some(hold) = self.holds.get_mut(owner) else {
                continue;
            };
            if std::mem::replace(&mut hold.stale, true) {
                again.extend(self.renewal_failed(*owner, false, false));
            } else {
                hold.renewal.in_flight = false;
                again.push(*owner);
            }
        }
        self.renew_now(again);
    }

    /// The server has renewed the hold. Returns the hold if it has to be renewed once more, because
    /// of an event since the renewal was sent.
    fn renewal_kept(&mut self, owner: OwnerId, sent: Moment, ttl: Duration) -> Option<OwnerId> {
        let hold = self
            .holds
            .get_mut(&owner)
            .filter(|hold| hold.phase == Phase::Held)?;
        hold.renewal.in_flight = false;
        hold.renewal.failing = false;
        hold.renewal.silent = false;
        hold.renewal.in_doubt = false;
        hold.renewed_at(sent, ttl);
        self.cx.counters.renewed.add(1);
        hold.stale = false;
        let (again, invalidated) = (hold.renewal.again, hold.renewal.invalidated);
        if let Some(at) = hold.set_alarm(self.cx.now, self.cx.links.is_up(&hold.cell.name)) {
            self.cx.timers.push_hold(at, owner);
        }
        // The key may have changed after the renewal ran on the server.
        if invalidated && !again {
            self.plan_look(owner);
        }
        again.then_some(owner)
    }

    /// The server says that the hold is gone. For a hold that is being released, the release
    /// reports that.
    fn renewal_refused(&mut self, owner: OwnerId, reason: LostReason) {
        if self
            .holds
            .get(&owner)
            .is_some_and(|hold| hold.phase == Phase::Held)
        {
            self.lose(owner, reason);
            self.look_was_right();
        }
    }

    /// Plans another renewal soon, until the deadline. `silent`: the server did not answer. `done`:
    /// it may have renewed the lock. Returns the hold if it has to be renewed now, because of an
    /// event since the renewal was sent, such as a new connection.
    fn renewal_failed(&mut self, owner: OwnerId, silent: bool, done: bool) -> Option<OwnerId> {
        let pause = self.cx.jitter.retry();
        let hold = self
            .holds
            .get_mut(&owner)
            .filter(|hold| hold.phase == Phase::Held)?;
        // A short lease has no time for the usual pause.
        let most = hold
            .watched_lease()
            .map_or(pause, |lease| timing::period(lease) / 4);
        let retry = self.cx.now.after(pause.min(most));
        let again = std::mem::take(&mut hold.renewal.again);
        hold.renewal.in_flight = false;
        hold.renewal.invalidated = false;
        hold.look = false;
        hold.renewal.due = Some(retry).into();
        hold.renewal.silent = silent;
        hold.renewal.in_doubt |= done;
        if !std::mem::replace(&mut hold.renewal.failing, true) {
            let (name, left) = (hold.cell.name.clone(), self.cx.now.until(hold.deadline()));
            let text = format!("not renewed, trying again; trusted for another {left:?}");
            self.cx
                .event("renewal_failed", EventLevel::Warn, &name, text);
        }
        self.arm_hold(owner);
        again.then_some(owner)
    }

    /// Renews every hold after a reconnect. That finds losses, and makes the server track the keys
    /// again.
    pub(super) fn renew_all(&mut self, which: Which<'_>) {
        self.renew_now(self.owners(which));
    }
}

/// Whether the renewal of this hold is due soon, by its own lease.
fn goes_along(hold: &Hold, now: Moment) -> bool {
    let early = hold.period().unwrap_or_default() / tuning::RENEWAL_EARLY;
    let soon = hold
        .renewal
        .due
        .get()
        .is_some_and(|at| at <= now.after(early));
    // A first look is not made early, because most of these holds are released before it is due.
    soon && !hold.renewal.unseen && !hold.renewal.is_under_way() && hold.phase == Phase::Held
}
