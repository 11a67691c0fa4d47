//! Multi locks: several locks that are acquired and released as one.
//!
//! A multi lock has no key of its own. The engine asks itself for each of its locks, by requests
//! whose answers come back here, so a part is a hold like any other: it is renewed, handed over and
//! cleaned up as one.
//!
//! An acquisition first asks for all parts at once, without waiting: one round trip where they share
//! a batch. If some are refused, it keeps the parts before the first of those, in the order of names, and
//! gives back all others. It waits for that one, then asks for all behind it at once, and so on. So a
//! caller waits only for a name behind all names that it holds. Every caller has the same
//! order, so no circle of them can wait for each other ([resource hierarchy]).
//!
//! [resource hierarchy]: https://en.wikipedia.org/wiki/Dining_philosophers_problem#Resource_hierarchy_solution

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, IS_PART};
use super::interface::{Done, LevelId, Output, Part, RequestId, Target, Terms};
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::hold::HoldCell;
use crate::key::OwnerKey;
use crate::maps::{Map, SmallMap};
use crate::moment::Moment;
use crate::wire::{Form, Kind, Name, OwnerId};

/// Puts the locks of a multi lock into the order in which every client waits for them, and gives them
/// with the name of the whole. `of` tells the name and the kind of each.
///
/// # Errors
/// `invalid_argument` for no locks, and for a name that is given twice.
pub fn in_order<L>(mut locks: Vec<L>, of: impl Fn(&L) -> (&Name, Kind)) -> Result<(Name, Vec<L>)> {
    locks.sort_by(|one, other| of(one).0.cmp(of(other).0));
    let names: Vec<&str> = locks.iter().map(|lock| &**of(lock).0).collect();
    if names.is_empty() {
        let text = "a multi lock of no names; give it at least one";
        return Err(Error::invalid(text));
    }
    let same = names.windows(2).position(|pair| pair[0] == pair[1]);
    if let Some(twice) = same.and_then(|at| locks.get(at)) {
        let (name, kind) = of(twice);
        let text = "a multi lock has this name twice; give it each name once";
        return Err(Error::invalid(text).on(name).of(kind.thing()));
    }
    Ok((names.join(", ").into(), locks))
}

/// The multi locks of a client.
#[derive(Debug, Default)]
pub(super) struct Multi {
    attempts: SmallMap<RequestId, Attempt>,
    commands: SmallMap<RequestId, Command>,
    /// The request of a caller that a request for a part belongs to.
    asked: SmallMap<RequestId, Asked>,
    /// The holds, by the owner of their cell. That owner is never in Redis.
    groups: SmallMap<OwnerId, Group>,
    /// The holds that a part belongs to.
    whole: SmallMap<OwnerId, Vec<OwnerId>>,
    /// The holds that a key can release, oldest first.
    of_keys: Map<(Name, OwnerKey), Vec<OwnerId>>,
    /// The next steps, in their order.
    steps: VecDeque<Step>,
}

/// A step with a part, for the engine to do. The answer of those that ask comes to [`Multi::answered`].
#[derive(Debug)]
pub(super) enum Step {
    Acquire {
        asked: RequestId,
        name: Name,
        key: OwnerKey,
        wait: Option<Duration>,
        terms: Terms,
        form: Form,
    },
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

/// An acquisition under way.
#[derive(Debug)]
struct Attempt {
    name: Name,
    key: OwnerKey,
    terms: Terms,
    parts: Arc<[Part]>,
    wait: Option<Duration>,
    deadline: Option<Moment>,
    /// The parts that it has.
    granted: Vec<Option<Grant>>,
    /// The requests without an answer, by part.
    asked: Vec<Option<RequestId>>,
    /// The first refused part of this round, and why.
    refused: Option<(usize, Error)>,
    /// An error that ends the acquisition.
    failed: Option<Error>,
}

#[derive(Debug)]
struct Grant {
    cell: Arc<HoldCell>,
    level: LevelId,
}

/// A release or an extension of all parts.
#[derive(Debug)]
struct Command {
    /// It has its answer already.
    answered: bool,
    name: Name,
    left: usize,
    error: Option<Error>,
    done: Done,
}

/// A multi lock that is held, or lost and not released.
#[derive(Debug)]
struct Group {
    cell: Arc<HoldCell>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    id: LevelId,
    /// Only its key can release it.
    tied: bool,
    /// Nobody will release it.
    abandoned: bool,
    parts: Vec<(OwnerId, LevelId)>,
}

impl Attempt {
    /// Whether a refusal ends the acquisition.
    fn is_try(&self) -> bool {
        self.wait == Some(Duration::ZERO)
    }

    /// Takes the answer for a part.
    fn answered(&mut self, part: usize, result: Result<Done>) {
        let error = match result {
            Ok(Done::Granted { cell, level }) => {
                if let Some(grant) = self.granted.get_mut(part) {
                    *grant = Some(Grant { cell, level });
                }
                return;
            }
            Ok(other) => Error::new(ErrorKind::Internal, format!("not a grant: {other:?}")),
            Err(error) => error,
        };
        // A server that does not answer a try may answer a caller who waits.
        let passes = matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable);
        if !passes || error.kind() == ErrorKind::Unavailable && self.is_try() {
            let error = self.of_part(part, error);
            self.failed.get_or_insert(error);
        } else if self.refused.as_ref().is_none_or(|(first, _)| part < *first) {
            self.refused = Some((part, error));
        }
    }

    /// The part to wait for next: the first that was refused, or that is not held any more. It may have
    /// been lost, or released by its key, while others were waited for.
    fn next(&mut self, now: Moment) -> Option<(usize, Error)> {
        let is_gone = |grant: &Option<Grant>| {
            let grant = grant.as_ref();
            grant.is_some_and(|grant| !grant.cell.is_held(now))
        };
        let gone = self.granted.iter().position(is_gone);
        match (gone, self.refused.take()) {
            (Some(gone), Some(refused)) if refused.0 < gone => Some(refused),
            (Some(gone), _) => Some((gone, Error::not_held())),
            (None, refused) => refused,
        }
    }

    /// The error about a part, which its text names.
    fn of_part(&self, part: usize, error: Error) -> Error {
        let error = match self.parts.get(part) {
            Some(part) => error.of_part(&part.name),
            None => error,
        };
        error.on(&self.name)
    }

    /// The caller's time is over, or it does not wait.
    fn timeout(&self, part: usize) -> Error {
        let part = self.parts.get(part).map_or("", |part| &*part.name);
        let text = match self.wait.filter(|wait| !wait.is_zero()) {
            Some(wait) => format!(
                "not acquired within {wait:?}: somebody else holds {part:?} or waits for it; wait longer, or look at who holds it"
            ),
            None => format!("somebody else holds {part:?} or waits for it"),
        };
        Error::new(ErrorKind::Timeout, text).on(&self.name)
    }
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

    /// Whether a target is a multi lock.
    pub(super) fn is_meant(&self, target: &Target) -> bool {
        match target {
            Target::Level { owner, .. } => self.has(*owner),
            Target::Key { kind, .. } => *kind == Kind::Multi,
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

    // ---- acquiring ----

    /// Acquires all of `parts`, which are in the order of names.
    pub(super) fn acquire(
        &mut self,
        cx: &mut Context,
        id: RequestId,
        (name, key): (Name, OwnerKey),
        wait: Option<Duration>,
        terms: Terms,
        parts: Arc<[Part]>,
    ) {
        let waits = wait.filter(|wait| !wait.is_zero());
        let attempt = Attempt {
            name,
            key,
            terms,
            wait,
            deadline: waits.map(|wait| cx.now.after(wait)),
            granted: parts.iter().map(|_| None).collect(),
            asked: parts.iter().map(|_| None).collect(),
            parts,
            refused: None,
            failed: None,
        };
        self.attempts.insert(id, attempt);
        self.try_parts(cx, id);
    }

    /// Asks for all parts that it does not have, without waiting.
    fn try_parts(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get(&id) else {
            return;
        };
        let missing = attempt.granted.iter().enumerate();
        let missing = missing.filter(|(_, grant)| grant.is_none());
        let missing: Vec<usize> = missing.map(|(part, _)| part).collect();
        for part in missing {
            self.ask_for(cx, id, part, Some(Duration::ZERO));
        }
    }

    fn ask_for(&mut self, cx: &mut Context, id: RequestId, part: usize, wait: Option<Duration>) {
        let asked = IS_PART | cx.next_id();
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let (Some(of), Some(slot)) = (attempt.parts.get(part), attempt.asked.get_mut(part)) else {
            return;
        };
        *slot = Some(asked);
        self.asked.insert(asked, Asked::Attempt(id, part));
        let form = Form {
            kind: of.terms.kind,
            token: None,
            permits: of.terms.permits,
        };
        self.steps.push_back(Step::Acquire {
            asked,
            name: of.name.clone(),
            // Permits belong to an acquisition, not to a key.
            key: match of.terms.kind {
                Kind::Semaphore => OwnerKey::Once,
                _ => attempt.key,
            },
            wait,
            // The multi lock as a whole is tied to its key.
            terms: Terms {
                tied: false,
                ..of.terms
            },
            form,
        });
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
        attempt.answered(part, result);
        if attempt.asked.iter().all(Option::is_none) {
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
            if attempt.granted.iter().all(Option::is_some) {
                return self.open(cx, id);
            }
            return self.try_parts(cx, id);
        };
        let left = attempt.deadline.map(|deadline| cx.now.until(deadline));
        if attempt.is_try() || left.is_some_and(|left| left.is_zero()) {
            let error = match error.kind() {
                ErrorKind::Unavailable => attempt.of_part(first, error),
                _ => attempt.timeout(first),
            };
            return self.give_up(cx, id, error);
        }
        let behind = attempt.granted.iter_mut().skip(first);
        let behind: Vec<Grant> = behind.filter_map(Option::take).collect();
        self.ask_for(cx, id, first, left);
        self.give_back(behind);
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
        let Some(attempt) = self.attempts.remove(&id) else {
            return;
        };
        cx.fail(id, error);
        let asked = attempt.asked.into_iter().flatten();
        self.steps.extend(asked.map(|asked| Step::Cancel { asked }));
        self.give_back(attempt.granted.into_iter().flatten());
    }

    /// Makes a hold of an acquisition that has all parts, or a further level of the hold that the key
    /// has already.
    fn open(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.remove(&id) else {
            return;
        };
        let grants: Vec<Grant> = attempt.granted.into_iter().flatten().collect();
        let level = cx.next_id();
        let parts = grants.iter().map(|grant| (grant.cell.owner, grant.level));
        let entry = Level {
            id: level,
            tied: attempt.terms.tied,
            abandoned: false,
            parts: parts.collect(),
        };
        let cells: Box<[Arc<HoldCell>]> = grants.into_iter().map(|grant| grant.cell).collect();
        let cell = match self.same_hold(&attempt.name, &cells) {
            Some(group) => {
                group.levels.push(entry);
                group.cell.set_count(group.count());
                group.cell.clone()
            }
            None => {
                let (name, key, owner) = (attempt.name, attempt.key, cx.next_owner());
                let cell = Arc::new(HoldCell::of_parts(name, key, owner, cells));
                self.begin(cx, cell.clone(), entry);
                cell
            }
        };
        cx.complete(id, Done::Granted { cell, level });
    }

    /// The hold of the same parts under the same name, which a further level joins.
    fn same_hold(&mut self, name: &Name, parts: &[Arc<HoldCell>]) -> Option<&mut Group> {
        let same = |group: &Group| {
            let mut pairs = group.cell.parts().iter().zip(parts);
            let same = pairs.all(|(old, new)| Arc::ptr_eq(old, new));
            same && group.cell.name == *name && group.cell.told_lost().is_none()
        };
        let mut owners = self.whole.get(&parts.first()?.owner)?.iter();
        let found = owners.find(|owner| self.groups.get(owner).is_some_and(same));
        self.groups.get_mut(found?)
    }

    fn begin(&mut self, cx: &mut Context, cell: Arc<HoldCell>, level: Level) {
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
        self.groups.insert(owner, Group { cell, levels });
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

    /// Answers the caller of a request before it is done.
    pub(super) fn cancel(&mut self, cx: &mut Context, id: RequestId, error: Error) {
        if let Some(attempt) = self.attempts.get(&id) {
            let text = "the wait was cancelled; nothing stays behind in Redis";
            let error = error.reworded(text.to_owned()).on(&attempt.name);
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
                Ok((newest.ok_or_else(Error::not_held)?, None))
            }
        }
    }

    pub(super) fn release(&mut self, cx: &mut Context, id: RequestId, target: &Target) {
        let taken = self.target(target).and_then(|(owner, level)| {
            let taken = self.take_level(cx, owner, level);
            taken.ok_or_else(|| Error::released_before("level"))
        });
        let (name, level) = match taken {
            Ok(taken) => taken,
            Err(error) => return cx.fail(id, error),
        };
        self.command(id, name, level.parts.len(), Done::Released);
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
            let found = found.map(|(group, level)| (group.cell.name.clone(), level.parts.clone()));
            found.ok_or_else(|| Error::released_before("level"))
        });
        let (name, parts) = match found {
            Ok(found) => found,
            Err(error) => return cx.fail(id, error),
        };
        self.command(id, name, parts.len(), Done::Extended);
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

    fn command(&mut self, id: RequestId, name: Name, left: usize, done: Done) {
        let command = Command {
            answered: false,
            name,
            left,
            error: None,
            done,
        };
        self.commands.insert(id, command);
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
        if let Err(error) = result {
            let part = error.lock_name().map(str::to_owned);
            let error = match part {
                Some(part) => error.of_part(&part),
                None => error,
            };
            // The loss of a part says more than that another one was not confirmed.
            let says_more = |first: &Error| first.lost_reason().is_none();
            if command.error.as_ref().is_none_or(says_more) {
                command.error = Some(error);
            }
        }
        if command.left > 0 {
            return;
        }
        let command = self.commands.remove(&id);
        match command.filter(|command| !command.answered) {
            Some(Command {
                error: Some(error),
                name,
                ..
            }) => cx.fail(id, error.on(&name)),
            Some(command) => cx.complete(id, command.done),
            None => {}
        }
    }

    /// The level was dropped: release its parts. Nobody waits for the outcome.
    pub(super) fn dropped(&mut self, cx: &mut Context, owner: OwnerId, level: LevelId) {
        if let Some((_, level)) = self.take_level(cx, owner, Some(level)) {
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
        let own = |own: &&mut Level| own.id == level && !own.abandoned;
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
        keys: impl Fn(OwnerKey) -> bool,
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

    /// A hold was lost: so are the multi locks that it is a part of. Their other parts stay held
    /// until the multi lock is released, because its holder may still be at work.
    pub(super) fn part_lost(&mut self, cx: &mut Context, part: OwnerId, reason: LostReason) {
        let Some(owners) = self.whole.get(&part).cloned() else {
            return;
        };
        for owner in owners {
            if let Some(group) = self.groups.get(&owner)
                && group.cell.set_lost(reason)
            {
                cx.out.push(Output::Lost(group.cell.clone(), reason));
                self.end_abandoned(cx, owner);
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

    /// Takes a level out of its hold, or the newest, and gives it with the name. The hold ends with its
    /// last one.
    fn take_level(
        &mut self,
        cx: &mut Context,
        owner: OwnerId,
        level: Option<LevelId>,
    ) -> Option<(Name, Level)> {
        let group = self.groups.get_mut(&owner)?;
        let at = match level {
            Some(id) => group.levels.iter().position(|level| level.id == id)?,
            None => group.levels.len().checked_sub(1)?,
        };
        let level = group.levels.remove(at);
        let cell = group.cell.clone();
        cell.set_count(group.count());
        if group.levels.is_empty() {
            self.end(cx, &cell);
        }
        Some((cell.name.clone(), level))
    }
}

impl Group {
    fn count(&self) -> u32 {
        u32::try_from(self.levels.len()).unwrap_or(u32::MAX)
    }

    /// The level with this number, or the newest.
    fn level(&self, id: Option<LevelId>) -> Option<&Level> {
        match id {
            Some(id) => self.levels.iter().find(|level| level.id == id),
            None => self.levels.last(),
        }
    }
}
