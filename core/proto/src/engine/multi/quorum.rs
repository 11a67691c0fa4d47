//! The rules of a quorum: the lock of one name on several servers, of which most are enough.
//!
//! An acquisition looks at all parts at once, without waiting, and goes on as soon as it has enough of them:
//! it stands the failure of the others. Otherwise it waits for one part, as a multi lock does: for the first that
//! somebody else holds. After [`tuning::QUORUM_LOOK`] at most it looks at all missing parts again.

use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, Grant, Multi};
use crate::engine::context::Context;
use crate::engine::interface::RequestId;
use crate::error::{Error, ErrorKind};
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::{Kind, Name, OwnerId};

/// What an acquisition has seen of the parts that it lacks.
#[derive(Debug)]
pub(super) struct Look {
    /// This round is a look at all parts, not the wait for one.
    pub(super) is_on: bool,
    /// Why parts were not acquired at the last look.
    lacking: Vec<(usize, Error)>,
    /// The parts whose servers ended a wait with an error of theirs. One that passes ends a try alone.
    refuses: Vec<bool>,
}

impl Look {
    /// The first one, at so many parts.
    pub(super) fn first(parts: usize) -> Look {
        Look {
            is_on: true,
            lacking: Vec::new(),
            refuses: vec![false; parts],
        }
    }
}

/// How long one part is waited for, if the caller has so much time left.
pub(super) fn until_look(left: Option<Duration>) -> Duration {
    left.map_or(tuning::QUORUM_LOOK, |left| left.min(tuning::QUORUM_LOOK))
}

impl Attempt {
    /// Whether some of its parts are enough.
    pub(super) fn is_quorum(&self) -> bool {
        tuning::HAS_QUORUMS && self.needed < self.parts.len()
    }

    /// Takes the error about a part, which was waited for or only tried.
    pub(super) fn refused_one(&mut self, part: usize, waited: bool, error: Error) {
        if waited {
            if let Some(refuses) = self.look.refuses.get_mut(part) {
                *refuses = error.kind() == ErrorKind::Server;
            }
            return;
        }
        // A part that is held and could not be extended tells nothing of those that are missing.
        if self.granted.get(part).is_some_and(Option::is_none) {
            self.look.lacking.push((part, error));
        }
    }

    /// How many parts are held at this moment.
    fn held(&self, now: Moment) -> usize {
        let grants = self.granted.iter().flatten();
        grants.filter(|grant| grant.cell.is_held(now)).count()
    }

    /// Whether a round of a quorum has all answers that it needs. A server that cannot be reached may answer
    /// late, or never: with enough others nobody waits for it. One that was not tried yet is waited for, or
    /// the first locks of a client would be on a bare majority.
    pub(super) fn is_round_over(&self, cx: &Context) -> bool {
        let is_enough = self.held(cx.now) >= self.needed;
        let mut asked = self.asked.iter().zip(self.parts.iter());
        asked.all(|(asked, part)| {
            asked.is_none() || is_enough && self.look.is_on && cx.links.error(&part.name).is_some()
        })
    }

    /// Why a quorum cannot be reached: of the reasons, the one that says most.
    fn no_quorum(&self, cx: &Context) -> Error {
        // The quorum stands the failure of so many servers.
        let spare = self.parts.len() - self.needed;
        let is_busy = |error: &Error| error.kind() == ErrorKind::Timeout;
        let mut busy = self.look.lacking.iter().filter(|(_, error)| is_busy(error));
        let mut failed = self
            .look
            .lacking
            .iter()
            .filter(|(_, error)| !is_busy(error));
        if busy.clone().count() > spare {
            return self.timeout(busy.next().map_or(0, |(part, _)| *part));
        }
        if failed.clone().count() > spare
            && let Some((part, error)) = failed.next()
        {
            return self.of_part(*part, error.clone());
        }
        // The caller's time ended before the look: these servers have not answered.
        let mut unheard = self.asked.iter().enumerate();
        match unheard.find(|(_, asked)| self.look.is_on && asked.is_some()) {
            Some((part, _)) => self.unheard(cx, part),
            None => self.timeout(busy.next().map_or(0, |(part, _)| *part)),
        }
    }

    /// Whether a wait for a part of a quorum cannot help, after this error.
    fn is_hopeless(&self, cx: &Context, part: usize, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Timeout => false,
            ErrorKind::Server => self.look.refuses.get(part).is_some_and(|refuses| *refuses),
            ErrorKind::Unavailable => {
                let part = self.parts.get(part);
                part.is_some_and(|part| cx.links.is_hopeless(&part.name))
            }
            _ => true,
        }
    }

    /// The part that a quorum waits for next: the first that somebody else holds, or else one whose server
    /// may come back. There is always such a part: at most as many are hopeless as the quorum can spare.
    fn next_of_quorum(&self, cx: &Context) -> usize {
        let is_busy = |(_, error): &&(usize, Error)| error.kind() == ErrorKind::Timeout;
        let may_help = |(part, error): &&(usize, Error)| !self.is_hopeless(cx, *part, error);
        let lacking = || self.look.lacking.iter();
        let busy = lacking().filter(is_busy).map(|(part, _)| *part).min();
        busy.or_else(|| lacking().filter(may_help).map(|(part, _)| *part).min())
            .or_else(|| self.first_missing())
            .unwrap_or(0)
    }
}

impl Multi {
    /// The caller's time is over.
    pub(super) fn quorum_due(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get(&id) else {
            return;
        };
        if attempt.held(cx.now) >= attempt.needed {
            return self.open_in_time(cx, id);
        }
        let error = attempt.no_quorum(cx);
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

    /// All parts of a quorum that were asked for have their answers.
    pub(super) fn round_of_quorum_over(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        let is_gone = |grant: &mut Grant| !grant.cell.is_held(cx.now);
        let granted = attempt.granted.iter_mut();
        let gone: Vec<Grant> = granted.filter_map(|grant| grant.take_if(is_gone)).collect();
        let granted = attempt.granted.iter().flatten().count();
        let is_enough = granted >= attempt.needed;
        let left = attempt.deadline.map(|deadline| cx.now.until(deadline));
        let is_over = attempt.is_try() || left.is_some_and(|left| left.is_zero());
        let is_whole = attempt.first_missing().is_none();
        let waited = !attempt.look.is_on;
        self.give_back(gone);
        if is_enough && waited && !is_whole && !is_over {
            // Others may be free by now, and each of them makes the lock stand one failure more.
            self.go_on_with_quorum(cx, id);
        } else if is_enough {
            // The leases of some parts began before others were waited for.
            let has_waited = self.attempts.get_mut(&id);
            let has_waited = has_waited.is_some_and(|of| std::mem::take(&mut of.has_waited));
            if !(has_waited && self.extend_fixed(cx, id)) {
                self.open(cx, id);
            }
        } else if let Some(error) = self.hopeless(cx, id, is_over) {
            self.give_up(cx, id, error);
        } else {
            self.go_on_with_quorum(cx, id);
        }
    }

    /// The error of an acquisition that has not enough parts, if its time is over or no wait can help.
    fn hopeless(&self, cx: &Context, id: RequestId, is_over: bool) -> Option<Error> {
        let attempt = self.attempts.get(&id)?;
        let lacking = attempt.look.lacking.iter();
        let hopeless = lacking.filter(|(part, error)| attempt.is_hopeless(cx, *part, error));
        let hopeless = hopeless.count();
        let spare = attempt.parts.len() - attempt.needed;
        (is_over || hopeless > spare).then(|| attempt.no_quorum(cx))
    }

    /// Looks at all missing parts after a wait, and waits for one after a look.
    fn go_on_with_quorum(&mut self, cx: &mut Context, id: RequestId) {
        let Some(attempt) = self.attempts.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut attempt.look.is_on, true) {
            attempt.look.lacking.clear();
            let missing = attempt.granted.iter().enumerate();
            let missing = missing.filter(|(_, grant)| grant.is_none());
            let missing: Vec<usize> = missing.map(|(part, _)| part).collect();
            for part in missing {
                self.ask_for(cx, id, part, Some(Duration::ZERO));
            }
            return;
        }
        let next = attempt.next_of_quorum(cx);
        let behind = attempt.granted.iter_mut().skip(next);
        let behind: Vec<Grant> = behind.filter_map(Option::take).collect();
        self.give_back(behind);
        self.wait_for(cx, id, next);
    }

    /// Takes out the parts that the key's hold of a quorum does not have, if the others are enough to join it.
    pub(super) fn fresh_parts(
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

    /// Whether this hold is a part of a quorum, which alone says when it is lost.
    pub(in crate::engine) fn is_of_quorum(&self, part: OwnerId) -> bool {
        let mut owners = self.whole.get(&part).into_iter().flatten();
        owners.any(|owner| {
            let group = self.groups.get(owner);
            group.is_some_and(|group| group.cell.kind == Kind::Quorum)
        })
    }
}
