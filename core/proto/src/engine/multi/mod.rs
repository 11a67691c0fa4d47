//! Multi locks: several locks that are acquired and released as one. The lock of a quorum is one of them:
//! the lock of one name on several servers, of which most are enough.
//!
//! A multi lock has no key of its own. The engine asks itself for each of its locks, by requests
//! whose answers come back here, so a part is a hold like any other: it is renewed, handed over and
//! cleaned up as one.
//!
//! An acquisition first asks for all parts at once, without waiting: one round trip where they share
//! a batch. If some are refused, it keeps the parts before the first of those, in the order of names, and
//! gives back all others. It waits for that one, then asks for those behind it up to the next that was
//! refused, and so on. So a caller waits only for a name behind all names that it holds. Every caller has
//! the same order, so no circle of them can wait for each other ([resource hierarchy]).
//!
//! The lock of a quorum goes on without some of its parts: `quorum.rs` has its rules.
//!
//! [resource hierarchy]: https://en.wikipedia.org/wiki/Dining_philosophers_problem#Resource_hierarchy_solution

mod acquiring;
mod held;
mod quorum;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, IS_PART};
use super::interface::{AcquireAll, Done, Lease, LevelId, Output, Part, RequestId, Target, Terms};
use super::timers::Timer;
use super::waiter::Acquisition;
use crate::error::{Error, LostReason, Result};
use crate::event::Level as EventLevel;
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::maps::{Map, SortedMap};
use crate::tuning;
use crate::wire::{Kind, Name, OwnerId, Side};
use acquiring::{Acquiring, Grant};
use held::{Group, GroupCommand, GroupLevel};
use quorum::{Look, Next, Round};

/// Puts the locks of a multi lock into the order in which every client waits for them, and gives them
/// with the name of the whole. `of` tells the name and the kind of each.
///
/// The name of the whole is different for different locks: it tells the side of a read-write lock, and
/// quotes a name that could be taken for several.
///
/// # Errors
/// `invalid_argument` for no locks, and for a name that is given twice.
pub fn in_order<L>(mut locks: Vec<L>, of: impl Fn(&L) -> (&Name, Kind)) -> Result<(Name, Vec<L>)> {
    locks.sort_by(|one, other| of(one).0.cmp(of(other).0));
    let names: Vec<(&Name, Kind)> = locks.iter().map(&of).collect();
    if names.is_empty() {
        let text = "a multi lock of no names; give it at least one";
        return Err(Error::invalid(text));
    }
    if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let text = "a multi lock has this name twice; give it each name once";
        let (name, kind) = pair[0];
        return Err(Error::invalid(text).on(name).of(kind.thing()));
    }
    let shown = |(name, kind): &(&Name, Kind)| {
        let name = match name.contains([',', '"', '(']) {
            true => format!("{name:?}"),
            false => name.to_string(),
        };
        match kind.side() {
            Side::Read => name + " (read)",
            Side::Write => name + " (write)",
            Side::Whole | Side::Several => name,
        }
    };
    let shown: Vec<String> = names.iter().map(shown).collect();
    Ok((shown.join(", ").into(), locks))
}

/// The multi locks of a client.
#[derive(Debug, Default)]
pub(super) struct Multi {
    attempts: SortedMap<RequestId, Acquiring>,
    commands: SortedMap<RequestId, GroupCommand>,
    /// The request of a caller that a request for a part belongs to.
    asked: SortedMap<RequestId, Asked>,
    /// The holds, by the owner of their cell. That owner is never in Redis.
    groups: SortedMap<OwnerId, Group>,
    /// The holds that a part belongs to.
    whole: SortedMap<OwnerId, Vec<OwnerId>>,
    /// The holds that a key can release, oldest first.
    of_keys: Map<(Name, OwnerKey), Vec<OwnerId>>,
    /// Holds of keys whose fixed lease has run out, oldest first. Some of them may have ended since.
    run_out: VecDeque<OwnerId>,
    /// The next steps, in their order.
    steps: VecDeque<Step>,
}

/// A step with a part, for the engine to do. The answer of those that ask comes to [`Multi::answered`].
#[derive(Debug)]
pub(super) enum Step {
    Acquire(Acquisition),
    Release {
        asked: RequestId,
        target: Target,
    },
    Extend {
        asked: RequestId,
        target: Target,
        lease: Duration,
    },
    /// Nobody waits for the answer to this any more.
    Cancel {
        asked: RequestId,
    },
    /// Release a level. Nobody waits for the outcome.
    Leave {
        owner: OwnerId,
        level: LevelId,
    },
    Abandon {
        owner: OwnerId,
        level: LevelId,
    },
}

/// A request for one part.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// An acquisition, of the part with this number.
    Attempt(RequestId, usize),
    /// A release or an extension, whose caller may not wait any more.
    Command(RequestId),
}

impl Multi {
    /// Whether this owner stands for a multi lock that is held.
    pub(super) fn has(&self, owner: OwnerId) -> bool {
        self.groups.get(&owner).is_some()
    }

    /// Whether the caller of this request waits for a multi lock.
    pub(super) fn has_request(&self, id: RequestId) -> bool {
        self.attempts.get(&id).is_some() || self.commands.get(&id).is_some()
    }

    /// The request of the caller that waits for this one, and how many parts it is about. Only a request
    /// for a part has another one.
    pub(super) fn caller_of(&self, id: RequestId) -> Option<(RequestId, usize)> {
        if id & IS_PART == 0 {
            return Some((id, 1));
        }
        match *self.asked.get(&id)? {
            Asked::Attempt(of, _) => Some((of, self.attempts.get(&of)?.wanted.parts.len())),
            Asked::Command(of) => Some((of, self.commands.get(&of)?.left)),
        }
    }

    /// Whether a target is a multi lock.
    pub(super) fn is_meant(&self, target: &Target) -> bool {
        match target {
            Target::Level { owner, .. } => self.has(*owner),
            Target::Key { kind, .. } => kind.is_several(),
        }
    }

    /// Whether nothing is held and nobody waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let held = self.groups.is_empty() && self.whole.is_empty() && self.of_keys.is_empty();
        held && self.attempts.is_empty() && self.commands.is_empty() && self.asked.is_empty()
    }

    /// The cells of what is held.
    pub(super) fn cells(&self) -> impl Iterator<Item = &Arc<HoldCell>> {
        self.groups.iter().map(|(_, group)| &group.cell)
    }

    pub(super) fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Takes the answer to a request for a part.
    pub(super) fn answered(&mut self, cx: &mut Context, asked: RequestId, result: Result<Done>) {
        match self.asked.remove(&asked) {
            Some(Asked::Attempt(id, part)) => self.part_tried(cx, id, part, result),
            Some(Asked::Command(id)) => self.part_commanded(cx, id, result),
            None => {}
        }
    }

    /// A hold that this key has lost stands in its way, unless its lease has run out as
    /// planned.
    fn lost_before(&mut self, cx: &mut Context, name: &Name, key: OwnerKey) -> Option<Error> {
        let cell = self.of_key(name, key)?.clone();
        let reason = cell.told_lost()?;
        let group = self.groups.get(&cell.owner)?;
        if group.has_run_out() {
            self.forget(cx, &cell);
            return None;
        }
        Some(Error::lost_before(name, reason))
    }

    /// Ends a hold that its key need not release any more.
    fn forget(&mut self, cx: &mut Context, cell: &Arc<HoldCell>) {
        let group = self.groups.get_mut(&cell.owner);
        let levels = group.map(|group| std::mem::take(&mut group.levels));
        let parts = levels.into_iter().flatten().flat_map(|level| level.parts);
        let leave = |(owner, level)| Step::Leave { owner, level };
        self.steps.extend(parts.map(leave));
        cell.set_forgotten();
        self.end(cx, cell);
    }

    /// The hold of the same parts under the same name, which a further level joins. The level of a quorum
    /// may lack some of them.
    fn same_hold(&mut self, name: &Name, parts: &[Arc<HoldCell>]) -> Option<&mut Group> {
        let same = |group: &Group| {
            let old = group.cell.parts();
            let has = |new: &Arc<HoldCell>| old.iter().any(|old| Arc::ptr_eq(old, new));
            let enough = match group.cell.kind {
                Kind::Quorum => group.cell.needed() <= parts.len(),
                _ => old.len() == parts.len(),
            };
            let same = enough && parts.iter().all(has);
            same && group.cell.name == *name && group.cell.told_lost().is_none()
        };
        let mut owners = self.whole.get(&parts.first()?.owner)?.iter();
        let found = owners.find(|owner| self.groups.get(owner).is_some_and(same));
        self.groups.get_mut(found?)
    }

    fn begin(&mut self, cx: &mut Context, cell: Arc<HoldCell>, of: usize, level: GroupLevel) {
        cell.set_count(1);
        let owner = cell.owner;
        for part in cell.parts() {
            match self.whole.get_mut(&part.owner) {
                Some(owners) => owners.push(owner),
                None => drop(self.whole.insert(part.owner, vec![owner])),
            }
        }
        if cell.key != OwnerKey::Once {
            let of_key = (cell.name.clone(), cell.key);
            self.of_keys.entry(of_key).or_default().push(owner);
            cx.out.push(Output::Opened(cell.clone()));
        }
        let levels = vec![level];
        self.groups.insert(owner, Group { cell, of, levels });
    }

    fn end(&mut self, cx: &mut Context, cell: &Arc<HoldCell>) {
        cell.set_count(0);
        cell.set_released();
        self.groups.remove(&cell.owner);
        for part in cell.parts() {
            if let Some(owners) = self.whole.get_mut(&part.owner) {
                owners.retain(|owner| *owner != cell.owner);
                if owners.is_empty() {
                    self.whole.remove(&part.owner);
                }
            }
        }
        if cell.key == OwnerKey::Once {
            return;
        }
        cx.out.push(Output::Ended(cell.clone()));
        let of_key = (cell.name.clone(), cell.key);
        if let Some(owners) = self.of_keys.get_mut(&of_key) {
            owners.retain(|owner| *owner != cell.owner);
            if owners.is_empty() {
                self.of_keys.remove(&of_key);
            }
        }
        // Its key may have an older hold, which it can ask about again.
        if let Some(older) = self.of_key(&cell.name, cell.key) {
            cx.out.push(Output::Opened(older.clone()));
        }
    }

    // ---- acquiring ----

    /// Acquires all of `parts`, which are in the order of names.
    pub(super) fn acquire(&mut self, cx: &mut Context, id: RequestId, wanted: AcquireAll) {
        if wanted.terms.tied
            && let Some(error) = self.lost_before(cx, &wanted.name, wanted.key)
        {
            return cx.fail(id, error);
        }
        let waits = wanted.wait.filter(|wait| !wait.is_zero());
        let parts = wanted.parts.len();
        let attempt = Acquiring {
            wanted,
            deadline: waits.map(|wait| cx.now.after(wait)),
            granted: (0..parts).map(|_| None).collect(),
            asked: vec![None; parts],
            busy: vec![false; parts],
            waits_for: None,
            has_waited: false,
            refused: None,
            look: Look::first(parts),
            failed: None,
        };
        if let Some(deadline) = attempt.deadline {
            cx.timers.arm(Timer::Multi(id), deadline);
        }
        self.attempts.insert(id, attempt);
        self.try_parts(cx, id);
    }

    /// The caller's time is over.
    pub(super) fn due(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get(&id) else {
            return;
        };
        if attempt.is_quorum() {
            if attempt.held(cx.now) >= attempt.wanted.needed {
                return self.open_in_time(cx, id);
            }
            let error = attempt.no_quorum(cx);
            return self.give_up(cx, id, error);
        }
        // A part that is waited for has the same end.
        if attempt.waits_for.is_some() {
            return;
        }
        let refused = attempt.refused.as_ref().map(|(part, _)| *part);
        let part = refused.or_else(|| attempt.first_missing()).unwrap_or(0);
        let down = attempt
            .wanted
            .parts
            .get(part)
            .and_then(|of| cx.links.error(&of.name));
        // Nobody has said yet that others hold one.
        let asked = attempt.asked.iter().position(Option::is_some);
        let unheard = asked.filter(|_| !attempt.has_waited);
        let error = match (down, &attempt.refused, unheard) {
            (Some(down), ..) => attempt.of_part(part, down),
            (None, Some((_, error)), _) if acquiring::is_failure(error) => {
                attempt.of_part(part, error.clone())
            }
            (None, None, Some(unheard)) => attempt.unheard(cx, unheard),
            _ => attempt.timeout(part),
        };
        self.give_up(cx, id, error);
    }

    /// The caller's time is over, and a quorum is there: no more answers are waited for.
    fn open_in_time(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let asked = attempt.asked.iter_mut().map(Option::take).collect();
        let has_waited = std::mem::take(&mut attempt.has_waited);
        self.stop_asking(asked);
        if !(has_waited && self.extend_fixed(cx, id)) {
            self.open(cx, id);
        }
    }

    /// Asks for the parts that it does not have, without waiting, up to the first that was refused
    /// before: for that one it waits.
    fn try_parts(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get(&id) else {
            return;
        };
        let missing = attempt.granted.iter().zip(&attempt.busy).enumerate();
        let missing = missing.filter(|(_, (grant, _))| grant.is_none());
        let free = missing.take_while(|(_, (_, busy))| !**busy);
        let free: Vec<usize> = free.map(|(part, _)| part).collect();
        if let (true, Some(first)) = (free.is_empty(), attempt.first_missing()) {
            return self.wait_for(cx, id, first);
        }
        for part in free {
            self.ask_for(cx, id, part, Some(Duration::ZERO));
        }
    }

    fn wait_for(&mut self, cx: &mut Context, id: RequestId, part: usize) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        (attempt.waits_for, attempt.has_waited) = (Some(part), true);
        let left = attempt.deadline.map(|deadline| cx.now.until(deadline));
        let wait = match attempt.is_quorum() {
            true => Some(attempt.look.waits(cx.now, left)),
            false => left,
        };
        self.ask_for(cx, id, part, wait);
    }

    fn ask_for(&mut self, cx: &mut Context, id: RequestId, part: usize, wait: Option<Duration>) {
        let asked = IS_PART | cx.next_id();
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let (Some(of), Some(slot)) = (attempt.wanted.parts.get(part), attempt.asked.get_mut(part))
        else {
            return;
        };
        *slot = Some(asked);
        self.asked.insert(asked, Asked::Attempt(id, part));
        self.steps.push_back(Step::Acquire(Acquisition {
            id: asked,
            name: of.name.clone(),
            // Permits belong to an acquisition, not to a key.
            key: match of.terms.kind {
                kind if kind.takes_permits() => OwnerKey::Once,
                _ => attempt.wanted.key,
            },
            wait,
            // The multi lock as a whole is tied to its key.
            terms: Terms {
                tied: false,
                ..of.terms
            },
            form: of.terms.form(None),
        }));
    }

    fn part_tried(&mut self, cx: &mut Context, id: RequestId, part: usize, result: Result<Done>) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            // The caller has given up.
            if let Ok(Done::Granted { cell, level }) = result {
                let owner = cell.owner;
                self.steps.push_back(Step::Leave { owner, level });
            }
            return;
        };
        if let Some(slot) = attempt.asked.get_mut(part) {
            *slot = None;
        }
        attempt.answered(cx.now, part, result);
        if attempt.is_quorum() {
            if attempt.is_round_over(cx) {
                self.round_of_quorum_over(cx, id);
            }
        } else if attempt.asked.iter().all(Option::is_none) {
            self.round_over(cx, id);
        }
    }

    /// All parts that were asked for have their answers.
    fn round_over(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        if let Some(error) = attempt.failed.take() {
            return self.give_up(cx, id, error);
        }
        let Some((first, error)) = attempt.next(cx.now) else {
            if attempt.first_missing().is_some() {
                return self.try_parts(cx, id);
            }
            if std::mem::take(&mut attempt.has_waited) && self.extend_fixed(cx, id) {
                return;
            }
            return self.open(cx, id);
        };
        let left = attempt.deadline.map(|deadline| cx.now.until(deadline));
        if attempt.is_try() || left.is_some_and(|left| left.is_zero()) {
            let error = match acquiring::is_failure(&error) {
                true => attempt.of_part(first, error),
                false => attempt.timeout(first),
            };
            return self.give_up(cx, id, error);
        }
        self.wait_behind(cx, id, first);
    }

    /// All parts of a quorum that were asked for have their answers.
    fn round_of_quorum_over(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let is_gone = |grant: &mut Grant| !grant.cell.is_held(cx.now);
        let granted = attempt.granted.iter_mut();
        let gone: Vec<Grant> = granted.filter_map(|grant| grant.take_if(is_gone)).collect();
        let left = attempt.deadline.map(|deadline| cx.now.until(deadline));
        let round = Round {
            granted: attempt.granted.iter().flatten().count(),
            needed: attempt.wanted.needed,
            parts: attempt.wanted.parts.len(),
            is_last: attempt.is_try() || left.is_some_and(|left| left.is_zero()),
        };
        let next = attempt
            .look
            .next(&round, |part| attempt.is_cut_off(cx, part));
        let missing = attempt.first_missing().unwrap_or(0);
        self.give_back(gone);
        match next {
            Next::Open => {
                // The leases of some parts began before others were waited for.
                let has_waited = self.attempts.get_mut(&id);
                let has_waited = has_waited.is_some_and(|of| std::mem::take(&mut of.has_waited));
                if !(has_waited && self.extend_fixed(cx, id)) {
                    self.open(cx, id);
                }
            }
            Next::GiveUp => {
                let attempt = self.attempts.get(&id);
                if let Some(error) = attempt.map(|attempt| attempt.no_quorum(cx)) {
                    self.give_up(cx, id, error);
                }
            }
            Next::Look => self.look_again(cx, id),
            Next::Wait(part) => self.wait_behind(cx, id, part.unwrap_or(missing)),
        }
    }

    /// Looks at all missing parts of a quorum.
    fn look_again(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        attempt.look.begins();
        let missing = attempt.granted.iter().enumerate();
        let missing = missing.filter(|(_, grant)| grant.is_none());
        let missing: Vec<usize> = missing.map(|(part, _)| part).collect();
        for part in missing {
            self.ask_for(cx, id, part, Some(Duration::ZERO));
        }
    }

    /// Waits for this part, and gives back those behind it.
    fn wait_behind(&mut self, cx: &mut Context, id: RequestId, first: usize) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let behind = attempt.granted.iter_mut().skip(first);
        let behind: Vec<Grant> = behind.filter_map(Option::take).collect();
        self.give_back(behind);
        self.wait_for(cx, id, first);
    }

    /// Begins the fixed leases of all parts anew. Some of them began when others were waited for. Returns
    /// whether there are any.
    fn extend_fixed(&mut self, cx: &mut Context, id: RequestId) -> bool {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return false;
        };
        let parts = attempt.wanted.parts.iter().zip(&attempt.granted);
        let parts = parts.zip(&mut attempt.asked).enumerate();
        for (part, ((of, grant), slot)) in parts {
            let (Lease::Fixed(lease), Some(grant)) = (of.terms.lease, grant) else {
                continue;
            };
            let asked = IS_PART | cx.next_id();
            *slot = Some(asked);
            self.asked.insert(asked, Asked::Attempt(id, part));
            let target = Target::Level {
                owner: grant.cell.owner,
                level: grant.level,
            };
            self.steps.push_back(Step::Extend {
                asked,
                target,
                lease,
            });
        }
        attempt.asked.iter().any(Option::is_some)
    }

    fn stop_asking(&mut self, asked: Vec<Option<RequestId>>) {
        let asked = asked.into_iter().flatten();
        self.steps.extend(asked.map(|asked| Step::Cancel { asked }));
    }

    fn give_back(&mut self, grants: impl IntoIterator<Item = Grant>) {
        let leave = |grant: Grant| Step::Leave {
            owner: grant.cell.owner,
            level: grant.level,
        };
        self.steps.extend(grants.into_iter().map(leave));
    }

    /// Ends an acquisition with an error, and gives back what it has.
    fn give_up(&mut self, cx: &mut Context, id: RequestId, error: Error) {
        let Some(attempt) = self.take_attempt(cx, id) else {
            return;
        };
        cx.fail(id, error);
        self.stop_asking(attempt.asked);
        self.give_back(attempt.granted.into_iter().flatten());
    }

    fn take_attempt(&mut self, cx: &mut Context, id: RequestId) -> Option<Acquiring> {
        let attempt = self.attempts.remove(&id)?;
        if attempt.deadline.is_some() {
            cx.timers.disarm(Timer::Multi(id));
        }
        Some(attempt)
    }

    /// The client closes: nobody gets a multi lock any more.
    pub(super) fn give_up_all(&mut self, cx: &mut Context, error: &Error) {
        let attempts = self.attempts.iter();
        let mut attempts: Vec<(RequestId, Name)> = attempts
            .map(|(id, attempt)| (*id, attempt.wanted.name.clone()))
            .collect();
        attempts.sort_unstable();
        for (id, name) in attempts {
            self.give_up(cx, id, error.clone().on(&name));
        }
    }

    /// Makes a hold of an acquisition that has all parts, or a further level of the hold that the key
    /// has already.
    fn open(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.take_attempt(cx, id) else {
            return;
        };
        let wanted = attempt.wanted;
        let is_fixed = |of: &Part| matches!(of.terms.lease, Lease::Fixed(_));
        let fixed = wanted.parts.iter().all(is_fixed);
        let (of, needed) = (wanted.parts.len(), wanted.needed);
        self.stop_asking(attempt.asked);
        let mut grants: Vec<Grant> = attempt.granted.into_iter().flatten().collect();
        if wanted.terms.kind == Kind::Quorum {
            // A level of a hold has no part that the hold does not have.
            let fresh = self.fresh_parts(&wanted.name, wanted.key, needed, &mut grants);
            self.give_back(fresh);
        }
        let level = cx.next_id();
        let parts = grants.iter().map(|grant| (grant.cell.owner, grant.level));
        let entry = GroupLevel {
            id: level,
            tied: wanted.terms.tied,
            abandoned: false,
            fixed,
            parts: parts.collect(),
        };
        let cells: Box<[Arc<HoldCell>]> = grants.into_iter().map(|grant| grant.cell).collect();
        let cell = match self.same_hold(&wanted.name, &cells) {
            Some(group) => {
                group.levels.push(entry);
                group.cell.set_count(group.count());
                group.cell.clone()
            }
            None => {
                let (name, key, owner) = (wanted.name, wanted.key, cx.next_owner());
                let manner = (wanted.terms.kind, needed);
                let cell = Arc::new(HoldCell::of_parts(name, key, owner, manner, cells));
                self.begin(cx, cell.clone(), of, entry);
                cell
            }
        };
        cx.complete(id, Done::Granted { cell, level });
    }

    /// Takes out the parts that the key's hold of a quorum does not have, if the others are enough to join it.
    fn fresh_parts(
        &self,
        name: &Name,
        key: OwnerKey,
        needed: usize,
        grants: &mut Vec<Grant>,
    ) -> Vec<Grant> {
        let Some(cell) = self.of_key(name, key) else {
            return Vec::new();
        };
        let has = |grant: &Grant| {
            let mut parts = cell.parts().iter();
            parts.any(|part| Arc::ptr_eq(part, &grant.cell))
        };
        if cell.told_lost().is_some() || grants.iter().filter(|grant| has(grant)).count() < needed {
            return Vec::new();
        }
        grants.extract_if(.., |grant| !has(grant)).collect()
    }

    // ---- requests ----

    /// Answers the caller of a request before it is done.
    pub(super) fn cancel(&mut self, cx: &mut Context, id: RequestId, error: Error) {
        if let Some(attempt) = self.attempts.get(&id) {
            let text = "the wait was cancelled; nothing stays behind in Redis";
            let error = error.reworded(text.to_owned()).on(&attempt.wanted.name);
            return self.give_up(cx, id, error);
        }
        let command = self.commands.get_mut(&id);
        if let Some(command) = command.filter(|command| !command.answered) {
            command.answered = true;
            let error = error.on(&command.name);
            cx.fail(id, error);
        }
    }

    // ---- holding ----

    /// The newest hold that this key has.
    fn of_key(&self, name: &Name, key: OwnerKey) -> Option<&Arc<HoldCell>> {
        let owners = self.of_keys.get(&(name.clone(), key))?;
        let newest = self.groups.get(owners.last()?)?;
        Some(&newest.cell)
    }

    /// The hold that a target is about.
    fn target(&self, target: &Target) -> Result<(OwnerId, Option<LevelId>)> {
        match target {
            Target::Level { owner, level } => Ok((*owner, Some(*level))),
            Target::Key { name, key, .. } => {
                let newest = self.of_key(name, *key).map(|cell| cell.owner);
                let not_held = || Error::not_held().on(name);
                Ok((newest.ok_or_else(not_held)?, None))
            }
        }
    }

    pub(super) fn release(&mut self, cx: &mut Context, id: RequestId, target: &Target) {
        let taken = self.target(target).and_then(|(owner, level)| {
            let taken = self.take_level(cx, owner, level);
            taken.ok_or_else(|| Error::released_before("level"))
        });
        let (cell, of, level) = match taken {
            Ok(taken) => taken,
            Err(error) => return cx.fail(id, error),
        };
        // If the release of so many is not confirmed, the next owner still finds enough others.
        let spare = of - cell.needed();
        let mut command = GroupCommand::of(&cell, level.parts.len(), Done::Released);
        command.spare.1 = spare;
        self.commands.insert(id, command);
        for (owner, level) in level.parts {
            let asked = self.ask_of_part(cx, id);
            let target = Target::Level { owner, level };
            self.steps.push_back(Step::Release { asked, target });
        }
    }

    pub(super) fn extend(
        &mut self,
        cx: &mut Context,
        id: RequestId,
        target: &Target,
        lease: Duration,
    ) {
        let found = self.target(target).and_then(|(owner, level)| {
            let group = self.groups.get(&owner);
            let found = group.and_then(|group| Some((group, group.level(level)?)));
            let found = found.map(|(group, level)| (group.cell.clone(), level.parts.clone()));
            found.ok_or_else(|| Error::released_before("level"))
        });
        let (cell, parts) = match found {
            Ok(found) => found,
            Err(error) => return cx.fail(id, error),
        };
        let command = GroupCommand::of(&cell, parts.len(), Done::Extended);
        self.commands.insert(id, command);
        for (owner, level) in parts {
            let asked = self.ask_of_part(cx, id);
            let target = Target::Level { owner, level };
            self.steps.push_back(Step::Extend {
                asked,
                target,
                lease,
            });
        }
    }

    fn ask_of_part(&mut self, cx: &mut Context, id: RequestId) -> RequestId {
        let asked = IS_PART | cx.next_id();
        self.asked.insert(asked, Asked::Command(id));
        asked
    }

    fn part_commanded(&mut self, cx: &mut Context, id: RequestId, result: Result<Done>) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        command.left -= 1;
        match result {
            Ok(_) => command.confirmed += 1,
            Err(error) => command.failed(error),
        }
        // The answers that are missing cannot change the outcome, and a server that is down may give none
        // for long.
        if command.confirmed >= command.needed && !std::mem::replace(&mut command.answered, true) {
            let done = std::mem::replace(&mut command.done, Done::Released);
            cx.complete(id, done);
        }
        if command.left > 0 {
            return;
        }
        let command = self.commands.remove(&id);
        if let Some(command) = command.filter(|command| !command.answered) {
            match command.error {
                Some((_, error)) if command.is_refused() => cx.fail(id, error.on(&command.name)),
                _ => cx.complete(id, command.done),
            }
        }
    }

    /// The level was dropped: release its parts. Nobody waits for the outcome.
    pub(super) fn dropped(&mut self, cx: &mut Context, owner: OwnerId, level: LevelId) {
        if let Some((_, _, level)) = self.take_level(cx, owner, Some(level)) {
            let leave = |(owner, level)| Step::Leave { owner, level };
            self.steps.extend(level.parts.into_iter().map(leave));
        }
    }

    /// The level is not tied to a guard any more.
    pub(super) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let group = self.groups.get_mut(&owner);
        let levels = group.into_iter().flat_map(|group| &mut group.levels);
        for level in levels.filter(|own| own.id == level) {
            level.tied = true;
        }
    }

    /// The level was lost without a release: its parts are not renewed any more.
    pub(super) fn abandon(&mut self, cx: &mut Context, owner: OwnerId, level: LevelId) {
        let Some(group) = self.groups.get_mut(&owner) else {
            return;
        };
        let own = |own: &&mut GroupLevel| own.id == level && !own.abandoned;
        let Some(level) = group.levels.iter_mut().find(own) else {
            return;
        };
        level.abandoned = true;
        let abandon = |&(owner, level): &_| Step::Abandon { owner, level };
        self.steps.extend(level.parts.iter().map(abandon));
        self.end_abandoned(cx, owner);
    }

    /// Stops renewing the levels that only these keys can release. With `guarded`, includes the
    /// levels that have a guard.
    pub(super) fn abandon_all(
        &mut self,
        cx: &mut Context,
        keys: &dyn Fn(OwnerKey) -> bool,
        guarded: bool,
    ) {
        let of_keys = self.groups.iter();
        let of_keys = of_keys.filter(|(_, group)| keys(group.cell.key));
        let orphans = of_keys.flat_map(|(owner, group)| {
            let levels = group.levels.iter();
            let levels = levels.filter(|level| level.tied || guarded);
            levels.map(|level| (*owner, level.id))
        });
        let mut orphans: Vec<(OwnerId, LevelId)> = orphans.collect();
        orphans.sort_unstable();
        for (owner, level) in orphans {
            self.abandon(cx, owner, level);
        }
    }

    /// Whether this hold is a part of a quorum, which alone says when it is lost.
    pub(super) fn is_of_quorum(&self, part: OwnerId) -> bool {
        let mut owners = self.whole.get(&part).into_iter().flatten();
        owners.any(|owner| {
            let group = self.groups.get(owner);
            group.is_some_and(|group| group.cell.kind == Kind::Quorum)
        })
    }

    /// A hold was lost: so are the multi locks that it is a part of. Their other parts stay held
    /// until the multi lock is released, because its holder may still be at work.
    pub(super) fn part_lost(&mut self, cx: &mut Context, part: OwnerId, reason: LostReason) {
        let Some(owners) = self.whole.get(&part).cloned() else {
            return;
        };
        for owner in owners {
            let Some(group) = self.groups.get(&owner) else {
                continue;
            };
            let held = group.cell.parts().iter();
            let held = held.filter(|other| other.owner != part && other.is_held(cx.now));
            if held.count() >= group.cell.needed() {
                continue;
            }
            group.cell.blame(part);
            if group.cell.set_lost(reason) {
                if group.cell.kind == Kind::Quorum {
                    cx.counters.lost.add(1);
                    let text = format!("lost ({reason}): {}", reason.meaning());
                    cx.event("lost", EventLevel::Warn, &group.cell.name, text);
                }
                cx.out.push(Output::Lost(group.cell.clone(), reason));
                self.end_abandoned(cx, owner);
                self.note_run_out(cx, owner);
            }
        }
    }

    /// Records a hold that has run out. Its key may still ask about it, but most keys never do, so old
    /// ones are forgotten.
    fn note_run_out(&mut self, cx: &mut Context, owner: OwnerId) {
        if !self.groups.get(&owner).is_some_and(Group::has_run_out) {
            return;
        }
        self.run_out.push_back(owner);
        while self.run_out.len() > tuning::EXPIRED_KEPT {
            let oldest = self.run_out.pop_front();
            let group = oldest.and_then(|owner| self.groups.get(&owner));
            if let Some(cell) = group.map(|group| group.cell.clone()) {
                self.forget(cx, &cell);
            }
        }
    }

    /// Ends a lost hold that nobody will release.
    fn end_abandoned(&mut self, cx: &mut Context, owner: OwnerId) {
        let Some(group) = self.groups.get(&owner) else {
            return;
        };
        if group.cell.told_lost().is_some() && group.levels.iter().all(|level| level.abandoned) {
            let cell = group.cell.clone();
            self.end(cx, &cell);
        }
    }

    /// The client closes: its holds are told and released part by part, so nothing is left of them as
    /// a whole.
    pub(super) fn close(&mut self, cx: &mut Context) {
        let mut cells: Vec<Arc<HoldCell>> = self.cells().cloned().collect();
        cells.sort_unstable_by_key(|cell| cell.owner);
        cells.iter().for_each(|cell| self.end(cx, cell));
    }

    /// Takes a level out of its hold, or the newest, and gives it with the hold, and how many parts the
    /// lock has. The hold ends with its last one.
    fn take_level(
        &mut self,
        cx: &mut Context,
        owner: OwnerId,
        level: Option<LevelId>,
    ) -> Option<(Arc<HoldCell>, usize, GroupLevel)> {
        let group = self.groups.get_mut(&owner)?;
        let at = match level {
            Some(id) => group.levels.iter().position(|level| level.id == id)?,
            None => group.levels.len().checked_sub(1)?,
        };
        let level = group.levels.remove(at);
        let (cell, of) = (group.cell.clone(), group.of);
        cell.set_count(group.count());
        if group.levels.is_empty() {
            self.end(cx, &cell);
        }
        Some((cell, of, level))
    }
}
