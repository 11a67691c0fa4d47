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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::context::IS_PART;
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
    /// Each part with the holds that it belongs to. Ordered, so that the same inputs give the same
    /// outputs.
    whole: BTreeSet<(OwnerId, OwnerId)>,
    /// The holds that a key can release, oldest first.
    of_keys: Map<(Name, OwnerKey), Vec<OwnerId>>,
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
    /// What it has, by part.
    granted: Vec<Option<Grant>>,
    /// The requests without an answer, by part.
    asked: Vec<Option<RequestId>>,
    /// The first refused part of this round, and why.
    refused: Option<(usize, Error)>,
    /// An error that ends the acquisition.
    failed: Option<Error>,
}

#[derive(Debug, Clone)]
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

    /// The level is not tied to a guard any more.
    pub(super) fn detach(&mut self, owner: OwnerId, level: LevelId) {
        let group = self.groups.get_mut(&owner);
        let levels = group.into_iter().flat_map(|group| &mut group.levels);
        for level in levels.filter(|own| own.id == level) {
            level.tied = true;
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

    /// The hold of the same parts under the same name, which a further level joins.
    fn same_hold(&mut self, name: &Name, parts: &[Arc<HoldCell>]) -> Option<&mut Group> {
        let first = parts.first()?.owner;
        let same = |group: &Group| {
            let old = group.cell.parts();
            let same = old.len() == parts.len()
                && old
                    .iter()
                    .zip(parts)
                    .all(|(old, new)| Arc::ptr_eq(old, new));
            same && group.cell.name == *name && group.cell.told_lost().is_none()
        };
        let mut owners = self.whole.range((first, 0)..=(first, OwnerId::MAX));
        let found = owners.find(|(_, owner)| self.groups.get(owner).is_some_and(same));
        let owner = found?.1;
        self.groups.get_mut(&owner)
    }

    fn open(&mut self, cell: Arc<HoldCell>, level: Level) {
        cell.set_count(1);
        let owner = cell.owner;
        let parts = cell.parts().iter().map(|part| (part.owner, owner));
        self.whole.extend(parts);
        if cell.key != OwnerKey::Once {
            let of_key = (cell.name.clone(), cell.key);
            self.of_keys.entry(of_key).or_default().push(owner);
        }
        let levels = vec![level];
        self.groups.insert(owner, Group { cell, levels });
    }

    fn end(&mut self, cell: &HoldCell) {
        self.groups.remove(&cell.owner);
        for part in cell.parts() {
            self.whole.remove(&(part.owner, cell.owner));
        }
        let of_key = (cell.name.clone(), cell.key);
        if let Some(owners) = self.of_keys.get_mut(&of_key) {
            owners.retain(|owner| *owner != cell.owner);
            if owners.is_empty() {
                self.of_keys.remove(&of_key);
            }
        }
    }

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
}

impl Engine {
    // ---- acquiring ----

    /// Acquires all of `parts`, which are in the order of names.
    pub(super) fn acquire_all(
        &mut self,
        id: RequestId,
        name: Name,
        key: OwnerKey,
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
            deadline: waits.map(|wait| self.cx.now.after(wait)),
            granted: parts.iter().map(|_| None).collect(),
            asked: parts.iter().map(|_| None).collect(),
            parts,
            refused: None,
            failed: None,
        };
        self.multi.attempts.insert(id, attempt);
        self.try_parts(id);
    }

    /// Asks for all parts that it does not have, without waiting.
    fn try_parts(&mut self, id: RequestId) {
        let Some(attempt) = self.multi.attempts.get(&id) else {
            return;
        };
        let missing = attempt.granted.iter().enumerate();
        let missing = missing.filter(|(_, grant)| grant.is_none());
        let missing: Vec<usize> = missing.map(|(part, _)| part).collect();
        for part in missing {
            self.ask_for_part(id, part, Some(Duration::ZERO));
        }
    }

    fn ask_for_part(&mut self, id: RequestId, part: usize, wait: Option<Duration>) {
        let asked = IS_PART | self.cx.next_id();
        let Some(attempt) = self.multi.attempts.get_mut(&id) else {
            return;
        };
        let (Some(of), Some(slot)) = (attempt.parts.get(part), attempt.asked.get_mut(part)) else {
            return;
        };
        *slot = Some(asked);
        self.multi.asked.insert(asked, Asked::Attempt(id, part));
        let form = Form {
            kind: of.terms.kind,
            token: None,
            permits: of.terms.permits,
        };
        // The multi lock as a whole is tied to its key.
        let terms = Terms {
            tied: false,
            ..of.terms
        };
        // Permits belong to an acquisition, not to a key.
        let key = match of.terms.kind {
            Kind::Semaphore => OwnerKey::Once,
            _ => attempt.key,
        };
        let name = of.name.clone();
        self.acquire(asked, name, key, wait, terms, form);
    }

    /// Takes the answers about parts. New ones may come while this goes on.
    pub(super) fn advance_multi(&mut self) {
        while let Some((asked, result)) = self.cx.parts.pop_front() {
            match self.multi.asked.remove(&asked) {
                Some(Asked::Attempt(id, part)) => self.part_tried(id, part, result),
                Some(Asked::Command(id)) => self.part_commanded(id, result),
                None => {}
            }
        }
    }

    fn part_tried(&mut self, id: RequestId, part: usize, result: Result<Done>) {
        let Some(attempt) = self.multi.attempts.get_mut(&id) else {
            // The caller has given up.
            if let Ok(Done::Granted { cell, level }) = result {
                self.leave(None, cell.owner, Some(level));
            }
            return;
        };
        if let Some(slot) = attempt.asked.get_mut(part) {
            *slot = None;
        }
        attempt.answered(part, result);
        if attempt.asked.iter().all(Option::is_none) {
            self.round_over(id);
        }
    }

    /// All parts that were asked for have their answers.
    fn round_over(&mut self, id: RequestId) {
        let now = self.cx.now;
        let Some(attempt) = self.multi.attempts.get_mut(&id) else {
            return;
        };
        if let Some(error) = attempt.failed.take() {
            return self.give_up_parts(id, error);
        }
        let Some((first, error)) = attempt.next(now) else {
            if attempt.granted.iter().all(Option::is_some) {
                return self.open_multi(id);
            }
            return self.try_parts(id);
        };
        let left = attempt.deadline.map(|deadline| now.until(deadline));
        let over = attempt.is_try() || left.is_some_and(|left| left.is_zero());
        if over {
            let error = match error.kind() {
                ErrorKind::Unavailable => attempt.of_part(first, error),
                _ => attempt.timeout(first),
            };
            return self.give_up_parts(id, error);
        }
        let behind = attempt.granted.iter_mut().skip(first);
        let behind: Vec<Grant> = behind.filter_map(Option::take).collect();
        self.ask_for_part(id, first, left);
        for grant in behind {
            self.leave(None, grant.cell.owner, Some(grant.level));
        }
    }

    /// Ends an acquisition with an error, and gives back what it has.
    fn give_up_parts(&mut self, id: RequestId, error: Error) {
        let Some(attempt) = self.multi.attempts.remove(&id) else {
            return;
        };
        self.cx.fail(id, error);
        for asked in attempt.asked.into_iter().flatten() {
            self.cancel(asked);
        }
        for grant in attempt.granted.into_iter().flatten() {
            self.leave(None, grant.cell.owner, Some(grant.level));
        }
    }

    /// Makes a hold of an acquisition that has all parts, or a further level of the hold that the key
    /// has already.
    fn open_multi(&mut self, id: RequestId) {
        let Some(attempt) = self.multi.attempts.remove(&id) else {
            return;
        };
        let grants: Vec<Grant> = attempt.granted.into_iter().flatten().collect();
        let level = Level {
            id: self.cx.next_id(),
            tied: attempt.terms.tied,
            abandoned: false,
            parts: grants
                .iter()
                .map(|grant| (grant.cell.owner, grant.level))
                .collect(),
        };
        let level_id = level.id;
        let parts: Box<[Arc<HoldCell>]> = grants.into_iter().map(|grant| grant.cell).collect();
        let cell = match self.multi.same_hold(&attempt.name, &parts) {
            Some(group) => {
                group.levels.push(level);
                group.cell.set_count(group.count());
                group.cell.clone()
            }
            None => {
                let owner = self.cx.next_owner();
                let cell = HoldCell::of_parts(attempt.name, attempt.key, owner, parts);
                let cell = Arc::new(cell);
                self.multi.open(cell.clone(), level);
                if attempt.key != OwnerKey::Once {
                    self.cx.out.push(Output::Opened(cell.clone()));
                }
                cell
            }
        };
        let level = level_id;
        self.cx.complete(id, Done::Granted { cell, level });
    }

    /// Answers the caller of a request about a multi lock before it is done.
    pub(super) fn cancel_multi(&mut self, id: RequestId, error: Error) {
        if let Some(attempt) = self.multi.attempts.get(&id) {
            let text = "the wait was cancelled; nothing stays behind in Redis";
            let error = error.reworded(text.to_owned()).on(&attempt.name);
            return self.give_up_parts(id, error);
        }
        let command = self.multi.commands.get_mut(&id);
        if let Some(command) = command.filter(|command| !command.answered) {
            command.answered = true;
            let error = error.on(&command.name);
            self.cx.fail(id, error);
        }
    }

    // ---- holding ----

    pub(super) fn release_multi(&mut self, id: RequestId, target: &Target) {
        let taken = self.multi.target(target).and_then(|(owner, level)| {
            let taken = self.take_multi_level(owner, level);
            taken.ok_or_else(|| Error::released_before("level"))
        });
        match taken {
            Ok((cell, level)) => {
                let command = Command {
                    answered: false,
                    name: cell.name.clone(),
                    left: level.parts.len(),
                    error: None,
                    done: Done::Released,
                };
                self.multi.commands.insert(id, command);
                for (owner, level) in level.parts {
                    let asked = self.ask_of_part(id);
                    self.release(asked, &Target::Level { owner, level });
                }
            }
            Err(error) => self.cx.fail(id, error),
        }
    }

    pub(super) fn extend_multi(&mut self, id: RequestId, target: &Target, lease: Duration) {
        let found = self.multi.target(target).and_then(|(owner, level)| {
            let group = self.multi.groups.get(&owner);
            let level = group.and_then(|group| group.level(level));
            let level = level.map(|level| (level.parts.clone(), owner));
            level.ok_or_else(|| Error::released_before("level"))
        });
        let (parts, owner) = match found {
            Ok(found) => found,
            Err(error) => return self.cx.fail(id, error),
        };
        let Some(group) = self.multi.groups.get(&owner) else {
            return;
        };
        let command = Command {
            answered: false,
            name: group.cell.name.clone(),
            left: parts.len(),
            error: None,
            done: Done::Extended,
        };
        self.multi.commands.insert(id, command);
        for (owner, level) in parts {
            let asked = self.ask_of_part(id);
            self.extend(asked, &Target::Level { owner, level }, lease);
        }
    }

    /// The level was dropped: release its parts. Nobody waits for the outcome.
    pub(super) fn drop_multi(&mut self, owner: OwnerId, level: LevelId) {
        if let Some((_, level)) = self.take_multi_level(owner, Some(level)) {
            for (owner, level) in level.parts {
                self.leave(None, owner, Some(level));
            }
        }
    }

    /// The level was lost without a release: its parts are not renewed any more.
    pub(super) fn abandon_multi(&mut self, owner: OwnerId, level: LevelId) {
        let Some(group) = self.multi.groups.get_mut(&owner) else {
            return;
        };
        let own = |own: &&mut Level| own.id == level && !own.abandoned;
        let Some(level) = group.levels.iter_mut().find(own) else {
            return;
        };
        level.abandoned = true;
        for (owner, level) in level.parts.clone() {
            self.abandon(owner, level);
        }
        self.end_abandoned(owner);
    }

    /// Stops renewing the levels that only these keys can release. With `guarded`, includes the
    /// levels that have a guard.
    pub(super) fn abandon_multis(&mut self, keys: &impl Fn(OwnerKey) -> bool, guarded: bool) {
        let of_keys = self.multi.groups.iter();
        let of_keys = of_keys.filter(|(_, group)| keys(group.cell.key));
        let orphans = of_keys.flat_map(|(owner, group)| {
            let levels = group.levels.iter();
            let levels = levels.filter(|level| level.tied || guarded);
            levels.map(|level| (*owner, level.id))
        });
        let mut orphans: Vec<(OwnerId, LevelId)> = orphans.collect();
        orphans.sort_unstable();
        for (owner, level) in orphans {
            self.abandon_multi(owner, level);
        }
    }

    /// A hold was lost: so are the multi locks that it is a part of. Their other parts stay held
    /// until the multi lock is released, because its holder may still be at work.
    pub(super) fn part_lost(&mut self, part: OwnerId, reason: LostReason) {
        let of_part = self.multi.whole.range((part, 0)..=(part, OwnerId::MAX));
        let owners: Vec<OwnerId> = of_part.map(|(_, owner)| *owner).collect();
        for owner in owners {
            if let Some(group) = self.multi.groups.get(&owner)
                && group.cell.set_lost(reason)
            {
                self.cx.out.push(Output::Lost(group.cell.clone(), reason));
                self.end_abandoned(owner);
            }
        }
    }

    /// The client closes: its holds are told and released part by part, so nothing is left of them as
    /// a whole.
    pub(super) fn close_multis(&mut self) {
        let cells = self.multi.groups.iter().map(|(_, group)| &group.cell);
        let mut cells: Vec<Arc<HoldCell>> = cells.cloned().collect();
        cells.sort_unstable_by_key(|cell| cell.owner);
        cells.iter().for_each(|cell| self.end_multi(cell));
    }

    /// Ends a lost hold that nobody will release.
    fn end_abandoned(&mut self, owner: OwnerId) {
        let Some(group) = self.multi.groups.get_mut(&owner) else {
            return;
        };
        if group.cell.told_lost().is_some() && group.levels.iter().all(|level| level.abandoned) {
            let cell = group.cell.clone();
            self.end_multi(&cell);
        }
    }

    fn end_multi(&mut self, cell: &Arc<HoldCell>) {
        cell.set_count(0);
        cell.set_released();
        self.multi.end(cell);
        if cell.key == OwnerKey::Once {
            return;
        }
        self.cx.out.push(Output::Ended(cell.clone()));
        // Its key may have an older hold, which it can ask about again.
        if let Some(older) = self.multi.of_key(&cell.name, cell.key) {
            self.cx.out.push(Output::Opened(older.clone()));
        }
    }

    /// Takes a level out of its hold, or the newest. The hold ends with its last one.
    fn take_multi_level(
        &mut self,
        owner: OwnerId,
        level: Option<LevelId>,
    ) -> Option<(Arc<HoldCell>, Level)> {
        let group = self.multi.groups.get_mut(&owner)?;
        let at = match level {
            Some(id) => group.levels.iter().position(|level| level.id == id)?,
            None => group.levels.len().checked_sub(1)?,
        };
        let level = group.levels.remove(at);
        let cell = group.cell.clone();
        cell.set_count(group.count());
        if group.levels.is_empty() {
            self.end_multi(&cell);
        }
        Some((cell, level))
    }

    fn ask_of_part(&mut self, id: RequestId) -> RequestId {
        let asked = IS_PART | self.cx.next_id();
        self.multi.asked.insert(asked, Asked::Command(id));
        asked
    }

    fn part_commanded(&mut self, id: RequestId, result: Result<Done>) {
        let Some(command) = self.multi.commands.get_mut(&id) else {
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
            if command
                .error
                .as_ref()
                .is_none_or(|first| first.lost_reason().is_none())
            {
                command.error = Some(error);
            }
        }
        if command.left > 0 {
            return;
        }
        let Some(command) = self
            .multi
            .commands
            .remove(&id)
            .filter(|command| !command.answered)
        else {
            return;
        };
        match command.error {
            Some(error) => self.cx.fail(id, error.on(&command.name)),
            None => self.cx.complete(id, command.done),
        }
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
