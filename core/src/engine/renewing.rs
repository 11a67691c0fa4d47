//! The watchdog: due holds are renewed in batches, many names per call.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hint::black_box;
use std::time::Duration;

use super::holding::{Hold, Phase, alarmed};
use super::links::Which;
use super::rare::Idle;
use super::timers::Timer;
use super::{Engine, LinkId, Outcome, Purpose, timing};
use crate::error::LostReason;
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::wire::{Layout, Op, OwnerId, RenewReply, Renewal, Reply};

/// The most names in one call, so that a script stays short.
const BATCH: usize = 100;
/// A hold whose renewal is due within this part of its period goes along with one that is due now.
const EARLY: u32 = 10;
/// So many full calls leave together at most, if some of them could wait. What is renewed early is renewed once more in the
/// end, and with more of them the others of this client wait longer behind them.
const TOGETHER: usize = 4;
/// Asks whether a hold exists without making it live longer.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// What a call costs a server, and us, whatever it is for: about as much as so many of its locks. So there are no more
/// of the smallest than a connection always has room for (`driver/window.rs`).
const CALL: usize = 6;

/// What goes in one call has the same link, slot and shape of data; or it is to go alone.
type Group = (LinkId, u16, bool, Option<OwnerId>);

/// The renewals at one server.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The work of the calls under way, in locks. In a cluster a call is for few of them, often for one.
    work: usize,
    /// Holds that are renewed when some of those are answered, whoever has the least time first.
    /// They stand together as they came: with a hundred thousand, one entry for each took a tenth of our time.
    ready: BinaryHeap<Reverse<(Moment, Vec<OwnerId>)>>,
}

impl Flow {
    /// Whether one more call may be sent, while as many full ones may be under way.
    fn is_open(&self, calls: usize) -> bool {
        self.work < calls * (BATCH + CALL)
    }

    /// How many locks can go now in full calls.
    fn room(&self, calls: usize) -> usize {
        (calls * (BATCH + CALL)).saturating_sub(self.work).div_ceil(BATCH + CALL) * BATCH
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
    /// Renews what is due and takes along the holds that are due soon.
    ///
    /// Where all can go in one call, calls are filled up and no more are made: holds that are renewed together are
    /// due together from then on, so that what began at random soon goes in full calls. Full calls that are due soon
    /// go along as well: to wake up costs us as much as a call, and there are fewer wake-ups then.
    pub(super) fn renew_with_neighbours(&mut self, Due { owners: mut due, longest }: Due) {
        let horizon = self.now.after(longest / EARLY);
        let filled = due.len().next_multiple_of(BATCH);
        let most = if self.links.routes.is_split() { usize::MAX } else { filled.max(TOGETHER * BATCH) };
        let mut passed_over = Vec::new();
        loop {
            let soon = self.timers.pop_holds(horizon, most.saturating_sub(due.len()));
            if soon.is_empty() {
                break;
            }
            self.read_ahead(soon.iter().map(|(_, owner)| *owner));
            for (at, owner) in soon {
                if let Some(hold) = alarmed(&mut self.holds, owner, at) {
                    let goes = if goes_along(hold, self.now) { &mut due } else { &mut passed_over };
                    goes.push(owner);
                }
            }
        }
        if !self.links.routes.is_split() && due.len() > filled {
            passed_over.extend(due.split_off(due.len() / BATCH * BATCH));
        }
        passed_over.into_iter().for_each(|owner| self.arm_hold(owner));
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

    /// Has the processor fetch what is needed of these holds. Nobody has touched it for seconds: here it fetches that of several
    /// at a time, while it would wait for that of each where they are worked on one by one.
    pub(super) fn read_ahead(&self, owners: impl Iterator<Item = OwnerId>) {
        let touched = |owner| {
            let hold = self.holds.get(&owner)?;
            let cell = &hold.cell;
            let of_name = cell.name.as_bytes().first()?;
            Some(hold.alarm.get().is_some() ^ hold.levels.is_empty() ^ cell.has_value() ^ (*of_name == 0))
        };
        black_box(owners.filter_map(touched).filter(|odd| *odd).count());
    }

    fn group_of(&self, owner: OwnerId) -> Option<Group> {
        let hold = self.holds.get(&owner)?;
        let is_hash = hold.cell.kind.layout() == Layout::Hash;
        let (name, routes) = (&hold.cell.name, &self.links.routes);
        Some((routes.link(name), routes.group(name), is_hash, hold.renewal.alone.then_some(owner)))
    }

    fn send_renewals(&mut self, owners: &[OwnerId]) {
        // One call is for one server, and has one script: hashes or strings.
        let mut groups: BTreeMap<Group, Vec<OwnerId>> = BTreeMap::new();
        // Mostly it is one, and others come in runs.
        let mut run: Option<(Group, Vec<OwnerId>)> = None;
        for owner in owners {
            let Some(group) = self.group_of(*owner) else {
                continue;
            };
            match &mut run {
                Some((of, same)) if *of == group => same.push(*owner),
                _ => {
                    let before = run.replace((group, vec![*owner]));
                    before.into_iter().for_each(|(of, same)| groups.entry(of).or_default().extend(same));
                }
            }
        }
        run.into_iter().for_each(|(of, same)| groups.entry(of).or_default().extend(same));
        for ((link, ..), mut group) in groups {
            // Where not all may be sent now, whoever has the least time is.
            if group.len() > self.flows.entry(link).or_default().room(self.config.renewals) {
                group.sort_by_cached_key(|owner| self.holds.get(owner).map(|hold| hold.deadline()));
            }
            for batch in group.chunks(BATCH) {
                match self.flows.entry(link).or_default().is_open(self.config.renewals) {
                    true => self.send_batch(link, batch),
                    false => self.put_off(link, batch),
                }
            }
        }
    }

    /// Renews these holds when others are answered. A server that is slow gets no more work for that.
    ///
    /// They have an alarm in common, at the first of their deadlines: an alarm of each would be left behind as soon as it is
    /// renewed, and all of those together have to be forgotten one by one.
    fn put_off(&mut self, link: LinkId, owners: &[OwnerId]) {
        let (mut first, mut waiting, mut busy) = (None, Vec::with_capacity(owners.len()), Vec::new());
        for owner in owners {
            let wanted = |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.is_under_way();
            if let Some(hold) = self.holds.get_mut(owner).filter(wanted) {
                hold.renewal.put_off = true;
                first = first.into_iter().chain([hold.deadline()]).min();
                waiting.push(*owner);
                if !hold.work.is_idle() {
                    busy.push(*owner);
                }
            }
        }
        // Its own alarm was taken, and callers who wait for something else of it are to be answered in time.
        busy.into_iter().for_each(|owner| self.arm_hold(owner));
        if let Some(first) = first {
            self.flows.entry(link).or_default().ready.push(Reverse((first, waiting)));
            self.watch_put_off(link);
        }
    }

    fn watch_put_off(&mut self, link: LinkId) {
        match self.flows.get(&link).and_then(|flow| flow.ready.peek()) {
            Some(Reverse((first, _))) => self.timers.arm(Timer::PutOff(link), *first),
            None => self.timers.disarm(Timer::PutOff(link)),
        }
    }

    /// A deadline of what is put off has come: all that stand with it are looked at, each for itself.
    pub(super) fn put_off_due(&mut self, link: LinkId) {
        let now = self.now;
        let mut next = Vec::new();
        while let Some(flow) = self.flows.get(&link)
            && flow.ready.peek().is_some_and(|Reverse((first, _))| *first <= now)
        {
            next.extend(self.next_put_off(link));
        }
        next.into_iter().for_each(|owner| self.arm_hold(owner));
        self.watch_put_off(link);
    }

    /// Takes those out that are to be renewed next. One that was released, or renewed all the same, is not waiting any more.
    fn next_put_off(&mut self, link: LinkId) -> Vec<OwnerId> {
        let waiting = self.flows.get_mut(&link).and_then(|flow| flow.ready.pop());
        let mut owners = waiting.map(|Reverse((_, owners))| owners).unwrap_or_default();
        let waits = |hold: &mut Hold| std::mem::take(&mut hold.renewal.put_off);
        owners.retain(|owner| self.holds.get_mut(owner).is_some_and(waits));
        owners
    }

    /// Goes on with what was put off. Without the server it is left to the next connection.
    fn renew_put_off(&mut self, link: LinkId) {
        let up = self.links.is_link_up(link);
        while let Some(flow) = self.flows.get(&link) {
            if flow.ready.is_empty() || up && !flow.is_open(self.config.renewals) {
                break;
            }
            let mut next = Vec::new();
            while next.len() < BATCH && self.flows.get(&link).is_some_and(|flow| !flow.ready.is_empty()) {
                next.extend(self.next_put_off(link));
            }
            if up {
                self.send_renewals(&next);
            } else {
                next.into_iter().for_each(|owner| self.arm_hold(owner));
            }
        }
        self.watch_put_off(link);
        if self.flows.get(&link).is_some_and(|flow| flow.work == 0 && flow.ready.is_empty()) {
            self.flows.remove(&link);
        }
    }

    fn send_batch(&mut self, link: LinkId, owners: &[OwnerId]) {
        let (now, up) = (self.now, self.links.is_link_up(link));
        let mut limit = timing::limit(Duration::MAX);
        let mut asked = Vec::with_capacity(owners.len());
        let mut holds = Vec::with_capacity(owners.len());
        let mut alarms = Vec::with_capacity(owners.len());
        for owner in owners {
            // Work that came due twice in one turn is done once.
            let wanted = |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.in_flight;
            let Some(hold) = self.holds.get_mut(owner).filter(wanted) else {
                continue;
            };
            hold.renewal.in_flight = true;
            hold.renewal.unseen = false;
            hold.renewal.put_off = false;
            hold.renewal.alone = false;
            hold.renewal.again = false;
            let watched = hold.watched_lease();
            let ttl = hold.capped(watched.unwrap_or(LOOK), now).max(LOOK);
            hold.plan_renewal(now);
            limit = limit.min(timing::limit(watched.unwrap_or(now.until(hold.deadline()))));
            let (name, form) = (hold.cell.name.clone(), hold.cell.form());
            holds.push(Renewal { name, owner: *owner, form, ttl });
            asked.push((*owner, ttl));
            alarms.extend(hold.set_alarm(now, up).map(|at| (at, *owner)));
        }
        self.timers.push_holds(&alarms);
        if !holds.is_empty() {
            self.flows.entry(link).or_default().work += holds.len() + CALL;
            self.send(Purpose::Renewal { link, asked }, Op::Renew { holds }, limit);
        }
    }

    /// The outcome of a renewal of these holds for these times.
    pub(super) fn renewed(
        &mut self,
        link: LinkId,
        asked: &[(OwnerId, Duration)],
        sent: Moment,
        outcome: Outcome,
    ) {
        if let Some(flow) = self.flows.get_mut(&link) {
            flow.work -= asked.len() + CALL;
        }
        self.take_renewed(asked, sent, outcome);
        self.renew_put_off(link);
    }

    fn take_renewed(&mut self, asked: &[(OwnerId, Duration)], sent: Moment, outcome: Outcome) {
        let refused = matches!(outcome, Outcome::Refused { passing: true, .. });
        if refused && asked.len() > 1 && self.links.routes.is_split() {
            return self.renew_one_by_one(asked);
        }
        // The server has seen the call and did nothing, and the driver has learnt its clock from the reply.
        if matches!(outcome, Outcome::Answered(Reply::Stale)) {
            return self.renew_again(asked);
        }
        let silent = matches!(outcome, Outcome::Unanswered | Outcome::NotSent);
        let results = match outcome {
            Outcome::Answered(Reply::Renewed(results)) if results.len() == asked.len() => results,
            _ => vec![RenewReply::Failed; asked.len()],
        };
        self.read_ahead(asked.iter().map(|(owner, _)| *owner));
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
        let owners: Vec<OwnerId> = asked.iter().map(|(owner, _)| *owner).collect();
        for owner in &owners {
            if let Some(hold) = self.holds.get_mut(owner).filter(|hold| hold.phase == Phase::Held) {
                hold.renewal.in_flight = false;
                hold.renewal.alone = true;
            }
        }
        self.send_renewals(&owners);
    }

    fn renew_again(&mut self, asked: &[(OwnerId, Duration)]) {
        let owners: Vec<OwnerId> = asked.iter().map(|(owner, _)| *owner).collect();
        for owner in &owners {
            if let Some(hold) = self.holds.get_mut(owner) {
                hold.renewal.in_flight = false;
            }
        }
        self.renew_now(owners);
    }

    /// Returns the hold if it is to be renewed once more, because of what happened meanwhile.
    fn renewal_kept(&mut self, owner: OwnerId, sent: Moment, ttl: Duration) -> Option<OwnerId> {
        let hold = self.holds.get_mut(&owner).filter(|hold| hold.phase == Phase::Held)?;
        hold.renewal.in_flight = false;
        hold.renewal.failing = false;
        hold.renewal.silent = false;
        hold.renewed_at(sent, ttl);
        self.counters.renewed.add(1);
        if let Some(at) = hold.set_alarm(self.now, self.links.is_up(&hold.cell.name)) {
            self.timers.push_hold(at, owner);
        }
        hold.renewal.again.then_some(owner)
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
        hold.renewal.due = Some(retry).into();
        hold.renewal.silent = silent;
        if !std::mem::replace(&mut hold.renewal.failing, true) {
            let (name, left) = (hold.cell.name.clone(), self.now.until(hold.deadline()));
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

/// Whether the renewal of this hold is due soon, by its own lease.
fn goes_along(hold: &Hold, now: Moment) -> bool {
    let early = hold.period().unwrap_or_default() / EARLY;
    let soon = hold.renewal.due.get().is_some_and(|at| at <= now.after(early));
    // Most that are only to be looked at are given back before that.
    soon && !hold.renewal.unseen && !hold.renewal.is_under_way() && hold.phase == Phase::Held
}
