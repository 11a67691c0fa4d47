//! The watchdog renews due holds in batches, with many names per call.
//!
//! Two limits keep a slow server usable: few renewals are in flight at once, and the holds that
//! wait are renewed in the order of their deadlines (earliest deadline first). Holds that end
//! before an answer can come are renewed last.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::context::{Answer, Context, Purpose};
use super::hold::{Hold, Phase};
use super::holds::Holds;
use super::interface::CallOutcome;
use super::lazy_box::Idle;
use super::links::{LinkId, Which};
use super::timers::Timer;
use super::timing;
use super::tracking::{Renewing, Tracking};
use crate::error::LostReason;
use crate::event::Level as EventLevel;
use crate::maps::SortedMap;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Layout, Op, OwnerId, RenewReply, Renewal, Reply};

/// The holds of one call have the same group: the link, the slot, the layout of the data, and the
/// owner of a hold that is renewed alone.
type Group = (LinkId, u16, Layout, Option<OwnerId>);

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

/// The renewals of all holds: as scheduled, and early after an invalidation or a reconnect.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    // Ordered, so that the same inputs give the same outputs.
    flows: SortedMap<LinkId, Flow>,
    pub(super) tracking: Tracking,
    /// Holds whose keys were changed. Each key comes in an invalidation of its own, so these holds
    /// are renewed only when all pending inputs are handled. That takes few calls.
    hurried: Vec<OwnerId>,
}

/// A renewal that was sent at `sent` for so long a time.
struct Kept {
    sent: Moment,
    ttl: Duration,
}

/// Why a renewal has to be repeated.
#[derive(Debug, Clone, Copy, Default)]
struct Failure {
    /// The server did not answer.
    silent: bool,
    /// It may have renewed the lock.
    done: bool,
}

/// The work that the outcome of a renewal leaves.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    /// The server says that these holds are gone.
    pub(super) lost: Vec<(OwnerId, LostReason)>,
    /// These have to be renewed once more.
    pub(super) again: Vec<OwnerId>,
}

impl Watchdog {
    pub(super) fn is_hurried(&self) -> bool {
        !self.hurried.is_empty()
    }

    /// Renews the due holds together with holds that are due soon.
    ///
    /// Holds that are renewed together are due together from then on. So holds that were acquired
    /// at random moments soon share full calls. Full calls that are due soon are sent as well: a
    /// wake-up costs as much as a call, and this saves wake-ups. In a cluster a call is for one
    /// slot, so there is no limit.
    pub(super) fn renew_with_neighbours(&mut self, cx: &mut Context, holds: &mut Holds, due: Due) {
        let (longest, mut due) = (due.longest, due.owners);
        let horizon = cx.now.after(longest / tuning::RENEWAL_EARLY);
        let filled = due.len().next_multiple_of(tuning::RENEWAL_BATCH);
        let most = if cx.links.routes.is_split() {
            usize::MAX
        } else {
            filled.max(tuning::RENEWAL_CALLS_EARLY * tuning::RENEWAL_BATCH)
        };
        let mut passed_over = Vec::new();
        loop {
            let soon = cx.timers.pop_holds(horizon, most.saturating_sub(due.len()));
            if soon.is_empty() {
                break;
            }
            holds.read_ahead(soon.iter().map(|(_, owner)| *owner));
            for (at, owner) in soon {
                if let Some(hold) = holds.alarmed(owner, at) {
                    let goes = if goes_along(hold, cx.now) {
                        &mut due
                    } else {
                        &mut passed_over
                    };
                    goes.push(owner);
                }
            }
        }
        if !cx.links.routes.is_split() && due.len() > filled {
            passed_over
                .extend(due.split_off(due.len() / tuning::RENEWAL_BATCH * tuning::RENEWAL_BATCH));
        }
        passed_over
            .into_iter()
            .for_each(|owner| holds.arm(cx, owner));
        self.send_renewals(cx, holds, &due);
    }

    /// Renews these holds now, because their keys may have changed.
    pub(super) fn renew_now(&mut self, cx: &mut Context, holds: &mut Holds, owners: Vec<OwnerId>) {
        let mut ready = Vec::with_capacity(owners.len());
        for owner in owners {
            let up = holds.is_up(cx, owner);
            let Some(hold) = holds.held(owner) else {
                continue;
            };
            if hold.renewal.in_flight {
                hold.renewal.again = true;
            } else if up {
                ready.push(owner);
            }
        }
        self.send_renewals(cx, holds, &ready);
    }

    fn send_renewals(&mut self, cx: &mut Context, holds: &mut Holds, owners: &[OwnerId]) {
        // A call is for one server, and for one layout: hashes or strings.
        let mut groups: SortedMap<Group, Vec<OwnerId>> = SortedMap::default();
        // Most calls have one group, and others come in runs. A run saves a look-up for each hold.
        let mut run: Option<(Group, Vec<OwnerId>)> = None;
        for owner in owners {
            let Some(group) = group_of(cx, holds, *owner) else {
                continue;
            };
            match &mut run {
                Some((of, same)) if *of == group => same.push(*owner),
                _ => {
                    let before = run.replace((group, vec![*owner]));
                    before
                        .into_iter()
                        .for_each(|(of, same)| groups.or_default(of).extend(same));
                }
            }
        }
        run.into_iter()
            .for_each(|(of, same)| groups.or_default(of).extend(same));
        let mut groups: Vec<(Group, Vec<OwnerId>)> = groups.into_iter().collect();
        if groups.len() > 1 {
            // The map is in the order of the slots. The slot whose hold ends first is sent first.
            groups.sort_by_cached_key(|(_, group)| first_deadline(holds, group));
        }
        for ((link, ..), mut group) in groups {
            // If only a part may be sent now, it is the holds with the least time.
            if group.len() > self.flows.or_default(link).room(cx.config.renewals) {
                group.sort_by_cached_key(|owner| holds.get(owner).map(|hold| hold.deadline()));
            }
            for batch in group.chunks(tuning::RENEWAL_BATCH) {
                match self.flows.or_default(link).is_open(cx.config.renewals) {
                    true => self.send_batch(cx, holds, link, batch),
                    false => self.put_off(cx, holds, link, batch),
                }
            }
        }
    }

    /// Defers the renewal of these holds until others are answered. So a slow server does not get
    /// more work because it is slow.
    ///
    /// The holds share one alarm at the first of their deadlines. An alarm for each hold would be
    /// outdated as soon as the hold is renewed, and outdated alarms are removed one by one.
    fn put_off(&mut self, cx: &mut Context, holds: &mut Holds, link: LinkId, owners: &[OwnerId]) {
        let (mut first, mut waiting, mut busy) =
            (None, Vec::with_capacity(owners.len()), Vec::new());
        for owner in owners {
            let wanted =
                |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.is_under_way();
            if let Some(hold) = holds.get_mut(owner).filter(wanted) {
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
        busy.into_iter().for_each(|owner| holds.arm(cx, owner));
        if let Some(first) = first {
            let flow = self.flows.or_default(link);
            flow.ready.push(Reverse((first, waiting)));
            self.watch_put_off(cx, link);
        }
    }

    fn watch_put_off(&self, cx: &mut Context, link: LinkId) {
        match self.flows.get(&link).and_then(Flow::first_deadline) {
            Some(first) => cx.timers.arm(Timer::PutOff(link), first),
            None => cx.timers.disarm(Timer::PutOff(link)),
        }
    }

    /// The deadline of a deferred hold has come. The other holds of its batch still wait.
    pub(super) fn put_off_due(&mut self, cx: &mut Context, holds: &mut Holds, link: LinkId) {
        let now = cx.now;
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
        ended.into_iter().for_each(|owner| holds.arm(cx, owner));
        self.watch_put_off(cx, link);
    }

    /// Takes out the holds to be renewed next: enough for one call, or a few more. A hold that was
    /// released or renewed meanwhile does not wait any more.
    ///
    /// In a cluster the holds of a batch have the same slot, and the next batch has another one. It
    /// could not share the call and would be deferred again, so only one batch is taken.
    pub(super) fn next_put_off(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        link: LinkId,
        up: bool,
    ) -> Vec<OwnerId> {
        let full = if cx.links.routes.is_split() {
            1
        } else {
            tuning::RENEWAL_BATCH
        };
        let (mut next, mut late, mut first_late) = (Vec::new(), Vec::new(), None);
        let Some(flow) = self.flows.get_mut(&link) else {
            return next;
        };
        let soonest = if up { cx.now.after(flow.took) } else { cx.now };
        while next.len() < full
            && let Some((owners, nevertheless)) = flow.next(soonest)
        {
            for owner in owners {
                let Some(hold) = holds.get_mut(&owner).filter(|hold| hold.is_put_off()) else {
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
    pub(super) fn renew_put_off(&mut self, cx: &mut Context, holds: &mut Holds, link: LinkId) {
        let up = cx.links.is_link_up(link);
        while let Some(flow) = self.flows.get(&link) {
            if !flow.keeps_waiting() || up && !flow.is_open(cx.config.renewals) {
                break;
            }
            let next = self.next_put_off(cx, holds, link, up);
            if up {
                self.send_renewals(cx, holds, &next);
            } else {
                next.into_iter().for_each(|owner| holds.arm(cx, owner));
            }
        }
        self.watch_put_off(cx, link);
    }

    /// Removes the record of a server that has no work in flight and none that waits. While
    /// clean-ups are in flight, the server is still busy with an outage, so the record stays.
    pub(super) fn forget_flow(&mut self, link: LinkId, cleaning: bool) {
        if self.flows.get(&link).is_some_and(Flow::is_over) && !cleaning {
            self.flows.remove(&link);
        }
    }

    fn send_batch(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        link: LinkId,
        owners: &[OwnerId],
    ) {
        let (now, up) = (cx.now, cx.links.is_link_up(link));
        let mut limit = cx.limit(Duration::MAX);
        let mut asked = Vec::with_capacity(owners.len());
        let mut renewals = Vec::with_capacity(owners.len());
        let mut alarms = Vec::with_capacity(owners.len());
        let (mut looks, mut shared) = (0, 0);
        for owner in owners {
            // A hold can come due twice in one turn. It is renewed once.
            let wanted = |hold: &&mut Hold| hold.phase == Phase::Held && !hold.renewal.in_flight;
            let Some(hold) = holds.get_mut(owner).filter(wanted) else {
                continue;
            };
            let invalidated = hold.renewal.begin();
            let look = std::mem::take(&mut hold.look);
            looks += usize::from(look);
            if invalidated {
                shared += usize::from(!look && hold.cell.kind.is_shared());
            } else {
                hold.harmless = hold.harmless.saturating_sub(1);
                hold.own_harmless = hold.own_harmless.saturating_sub(1);
            }
            let watched = hold.watched_lease();
            let ttl = hold
                .capped(watched.unwrap_or(timing::LOOK), now)
                .max(timing::LOOK);
            hold.plan_renewal(now);
            limit = limit.min(cx.limit(watched.unwrap_or(now.until(hold.deadline()))));
            let (name, form) = (hold.cell.name.clone(), hold.cell.form());
            renewals.push(Renewal {
                name,
                owner: *owner,
                form,
                ttl,
            });
            asked.push((*owner, ttl));
            alarms.extend(hold.set_alarm(now, up).map(|at| (at, *owner)));
        }
        cx.timers.push_holds(&alarms);
        if !renewals.is_empty() {
            self.flows.or_default(link).work += renewals.len() + tuning::RENEWAL_CALL_WORK;
            let planned = renewals.len() - looks - shared;
            let work = Renewing {
                planned,
                looks,
                shared,
            };
            self.tracking.renewing(cx, holds.len(), work);
            let op = Op::Renew { holds: renewals };
            cx.send(Purpose::Renewal { link, asked }, op.into(), limit, None);
        }
    }

    /// The work of a renewal of so many holds is over.
    pub(super) fn worked(&mut self, now: Moment, link: LinkId, holds: usize, answer: &Answer) {
        if let Some(flow) = self.flows.get_mut(&link) {
            flow.work -= holds + tuning::RENEWAL_CALL_WORK;
            if matches!(answer.outcome, CallOutcome::Answered(_)) {
                flow.took = answer.sent.until(now);
            }
        }
    }

    /// The outcome of a renewal of these holds for these times.
    pub(super) fn take_renewed(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        asked: &[(OwnerId, Duration)],
        answer: Answer,
    ) -> Renewed {
        let Answer { sent, outcome } = answer;
        let refused = matches!(outcome, CallOutcome::Refused { passing: true, .. });
        if refused && asked.len() > 1 && cx.links.routes.is_split() {
            self.renew_one_by_one(cx, holds, asked);
            return Renewed::default();
        }
        // The server did nothing. The driver has learnt the server's clock from the reply.
        if matches!(outcome, CallOutcome::Answered(Reply::Stale)) {
            return self.renewal_stale(cx, holds, asked);
        }
        let failure = Failure {
            silent: matches!(outcome, CallOutcome::Unanswered | CallOutcome::NotSent),
            // The server may have done a part before it refused.
            done: !matches!(outcome, CallOutcome::NotSent),
        };
        let results = match outcome {
            CallOutcome::Answered(Reply::Renewed(results)) if results.len() == asked.len() => {
                results
            }
            _ => vec![RenewReply::Failed; asked.len()],
        };
        holds.read_ahead(asked.iter().map(|(owner, _)| *owner));
        let mut renewed = Renewed::default();
        for ((owner, ttl), result) in asked.iter().zip(results) {
            match result {
                RenewReply::Kept => {
                    let kept = Kept { sent, ttl: *ttl };
                    let again = self.renewal_kept(cx, holds, *owner, kept);
                    renewed.again.extend(again);
                }
                // For a hold that is being released, the release reports that.
                RenewReply::Gone(reason) if holds.is_held(*owner) => {
                    renewed.lost.push((*owner, reason))
                }
                RenewReply::Gone(_) => {}
                RenewReply::Failed => renewed
                    .again
                    .extend(self.renewal_failed(cx, holds, *owner, failure)),
            }
        }
        renewed
    }

    /// Renews these holds with a call for each. While a slot moves between two nodes, they serve
    /// calls for one key and refuse calls for several.
    fn renew_one_by_one(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        asked: &[(OwnerId, Duration)],
    ) {
        let owners: Vec<OwnerId> = asked.iter().map(|(owner, _)| *owner).collect();
        for owner in &owners {
            if let Some(hold) = holds.held(*owner) {
                hold.renewal.in_flight = false;
                hold.renewal.alone = true;
            }
        }
        self.send_renewals(cx, holds, &owners);
    }

    /// The renewal arrived after its not-after by the server's clock. It is repeated at once. If
    /// the repeat is too late as well, the next one follows after a pause.
    fn renewal_stale(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        asked: &[(OwnerId, Duration)],
    ) -> Renewed {
        let mut again = Vec::with_capacity(asked.len());
        for (owner, _) in asked {
            let Some(hold) = holds.get_mut(owner) else {
                continue;
            };
            if std::mem::replace(&mut hold.stale, true) {
                let failure = Failure::default();
                again.extend(self.renewal_failed(cx, holds, *owner, failure));
            } else {
                hold.renewal.in_flight = false;
                again.push(*owner);
            }
        }
        Renewed {
            lost: Vec::new(),
            again,
        }
    }

    /// The server has renewed the hold. Returns the hold if it has to be renewed once more, because
    /// of an event since the renewal was sent.
    fn renewal_kept(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        owner: OwnerId,
        kept: Kept,
    ) -> Option<OwnerId> {
        let hold = holds.held(owner)?;
        hold.renewal.in_flight = false;
        hold.renewal.failing = false;
        hold.renewal.silent = false;
        hold.renewal.in_doubt = false;
        hold.renewed_at(kept.sent, kept.ttl);
        cx.counters.renewed.add(1);
        hold.stale = false;
        let (again, invalidated) = (hold.renewal.again, hold.renewal.invalidated);
        if let Some(at) = hold.set_alarm(cx.now, cx.links.is_up(&hold.cell.name)) {
            cx.timers.push_hold(at, owner);
        }
        // The key may have changed after the renewal ran on the server.
        if invalidated && !again {
            self.plan_look(cx, holds, owner);
        }
        again.then_some(owner)
    }

    /// Plans another renewal soon, until the deadline. Returns the hold if it has to be renewed now,
    /// because of an event since the renewal was sent, such as a new connection.
    fn renewal_failed(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        owner: OwnerId,
        failure: Failure,
    ) -> Option<OwnerId> {
        let pause = cx.jitter.retry();
        let hold = holds.held(owner)?;
        // A short lease has no time for the usual pause.
        let most = hold
            .watched_lease()
            .map_or(pause, |lease| timing::period(lease) / 4);
        let retry = cx.now.after(pause.min(most));
        let again = std::mem::take(&mut hold.renewal.again);
        hold.renewal.in_flight = false;
        hold.renewal.invalidated = false;
        hold.look = false;
        hold.renewal.due = Some(retry).into();
        hold.renewal.silent = failure.silent;
        hold.renewal.in_doubt |= failure.done;
        if !std::mem::replace(&mut hold.renewal.failing, true) {
            let (name, left) = (hold.cell.name.clone(), cx.now.until(hold.deadline()));
            let text = format!("not renewed, trying again; trusted for another {left:?}");
            cx.event("renewal_failed", EventLevel::Warn, &name, text);
        }
        holds.arm(cx, owner);
        again.then_some(owner)
    }

    /// Renews every hold after a reconnect. That finds losses, and makes the server track the keys
    /// again.
    pub(super) fn renew_all(&mut self, cx: &mut Context, holds: &mut Holds, which: Which<'_>) {
        self.renew_now(cx, holds, holds.owners(which));
    }

    // ---- early renewals ----

    /// The key of this hold was changed, or the server does not track it any more. `own`: that is
    /// the key that a reader has for itself.
    pub(super) fn key_changed(
        &mut self,
        cx: &mut Context,
        holds: &mut Holds,
        owner: OwnerId,
        own: bool,
    ) {
        let up = holds.is_up(cx, owner);
        let Some(hold) = holds
            .get_mut(&owner)
            .filter(|hold| up && hold.phase == Phase::Held)
        else {
            return;
        };
        // A probe of this hold is planned or in flight already. One because of the shared key may be
        // planned too late.
        let known = hold.renewal.invalidated && (hold.look || !own);
        if known || hold.renewal.put_off {
            return;
        }
        hold.renewal.invalidated = true;
        hold.look |= own;
        // A renewal in flight may have read the key before the change; `renewal_kept` handles that.
        if !hold.renewal.in_flight {
            self.plan_look(cx, holds, owner);
        }
    }

    /// Plans a probe of a hold whose key was invalidated: now, after its delay, or with its next
    /// renewal.
    pub(super) fn plan_look(&mut self, cx: &mut Context, holds: &mut Holds, owner: OwnerId) {
        let kind_and_look = |hold: &Hold| (hold.cell.kind.is_shared(), hold.look);
        let Some((is_shared, look)) = holds.get(&owner).map(kind_and_look) else {
            return;
        };
        // The key that a reader has for itself says as much about it as the key of a lock with one
        // holder.
        let (shared, own) = (is_shared && !look, is_shared && look);
        let may = shared || self.tracking.may_look(cx, holds.len());
        let soon = shared && self.tracking.may_look_at_shared(holds.len());
        let now = cx.now;
        let Some(hold) = holds.get_mut(&owner) else {
            return;
        };
        // Other owners change a shared key all the time, and each renewal is one more change. Most holds
        // are released before their first probe. But the change may be the end of the key, and a renewal
        // of Redisson may have cut the time of a long lease to its own 30 s.
        let (least, most) = if soon {
            (now.until(timing::look(now)), tuning::SHARED_LOOK_MOST)
        } else if shared {
            (
                hold.longest() / tuning::SHARED_LOOK,
                tuning::SHARED_LOOK_MOST,
            )
        } else {
            (Duration::ZERO, Duration::MAX)
        };
        let harmless = match own {
            true => &mut hold.own_harmless,
            false => &mut hold.harmless,
        };
        let pause = rest(*harmless).max(least).min(most);
        let counted = harmless.saturating_add(1);
        let at = now.after(pause.min(timing::period(hold.longest())));
        let due = hold.renewal.due.get();
        if !may || due.is_some_and(|due| due <= at) {
            // Without a planned renewal nothing would clear the flag, and the next invalidation
            // would be ignored.
            hold.renewal.invalidated = due.is_some();
            return;
        }
        match own {
            true => hold.own_harmless = counted,
            false => hold.harmless = counted,
        }
        hold.look = !shared;
        if at <= now {
            self.hurried.push(owner);
        } else {
            hold.renewal.due = Some(at).into();
            holds.arm(cx, owner);
        }
    }

    /// Probes a hold that was acquired from a server that may not serve its name any more.
    pub(super) fn hurry(&mut self, holds: &mut Holds, owner: OwnerId) {
        if let Some(hold) = holds.get_mut(&owner) {
            hold.look = true;
            self.hurried.push(owner);
        }
    }

    /// Sends the probes that are due now. Holds that were renewed in the meantime need none.
    pub(super) fn look_at_hurried(&mut self, cx: &mut Context, holds: &mut Holds) {
        let mut hurried = std::mem::take(&mut self.hurried);
        hurried.retain(|owner| holds.get(owner).is_some_and(|hold| hold.look));
        self.renew_now(cx, holds, hurried);
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

/// The delay before the next probe of a hold, after `harmless` probes that found it unchanged.
fn rest(harmless: u8) -> Duration {
    match harmless {
        0 => Duration::ZERO,
        some => tuning::PROBE_PAUSE
            .saturating_mul(1_u32.checked_shl(u32::from(some - 1)).unwrap_or(u32::MAX)),
    }
}

fn group_of(cx: &Context, holds: &Holds, owner: OwnerId) -> Option<Group> {
    let hold = holds.get(&owner)?;
    let layout = hold.cell.kind.facts().renewed_as;
    let (name, routes) = (&hold.cell.name, &cx.links.routes);
    Some((
        routes.link(name),
        routes.group(name),
        layout,
        hold.renewal.alone.then_some(owner),
    ))
}

/// The first deadline of these holds.
fn first_deadline(holds: &Holds, owners: &[OwnerId]) -> Option<Moment> {
    owners
        .iter()
        .filter_map(|owner| Some(holds.get(owner)?.deadline()))
        .min()
}
