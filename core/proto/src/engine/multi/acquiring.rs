//! An acquisition of a multi lock: the parts that it has, those that it asks for, and the one that it
//! waits for.

use std::sync::Arc;
use std::time::Duration;

use super::quorum::{Lack, Look};
use crate::engine::context::Context;
use crate::engine::interface::{AcquireAll, Done, LevelId, RequestId};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::HoldCell;
use crate::moment::Moment;

/// An acquisition under way.
#[derive(Debug)]
pub(super) struct Acquiring {
    pub(super) wanted: AcquireAll,
    pub(super) deadline: Option<Moment>,
    /// The parts that it has.
    pub(super) granted: Vec<Option<Grant>>,
    /// The requests without an answer, by part.
    pub(super) asked: Vec<Option<RequestId>>,
    /// The parts that were refused when they were last asked for.
    pub(super) busy: Vec<bool>,
    /// The part that it waits for. All others are only tried.
    pub(super) waits_for: Option<usize>,
    /// It has waited, so that the leases of some parts began before those of others.
    pub(super) has_waited: bool,
    /// The first refused part of this round, and why.
    pub(super) refused: Option<(usize, Error)>,
    /// For a quorum: what it has seen of the parts that it lacks.
    pub(super) look: Look,
    /// An error that ends the acquisition.
    pub(super) failed: Option<Error>,
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) cell: Arc<HoldCell>,
    pub(super) level: LevelId,
}

impl Acquiring {
    /// Whether some of its parts are enough.
    pub(super) fn is_quorum(&self) -> bool {
        self.wanted.needed < self.wanted.parts.len()
    }

    /// Whether a refusal ends the acquisition.
    pub(super) fn is_try(&self) -> bool {
        self.wanted.wait == Some(Duration::ZERO)
    }

    /// Takes the answer for a part.
    pub(super) fn answered(&mut self, now: Moment, part: usize, result: Result<Done>) {
        let waited = self.waits_for.take_if(|waited| *waited == part).is_some();
        let (is_try, is_quorum) = (self.is_try(), self.is_quorum());
        let (Some(grant), Some(busy)) = (self.granted.get_mut(part), self.busy.get_mut(part))
        else {
            return;
        };
        *busy = false;
        let error = match result {
            Ok(Done::Granted { cell, level }) => {
                *grant = Some(Grant { cell, level });
                return;
            }
            Ok(Done::Extended) => return,
            Ok(other) => Error::new(ErrorKind::Internal, format!("not a grant: {other:?}")),
            Err(error) => error,
        };
        if is_quorum {
            let waited = waited.then_some(now);
            return self.look.refused(part, waited, grant.is_none(), error);
        }
        let passes = match error.kind() {
            ErrorKind::Timeout => true,
            // A server that does not answer a try, or refuses it, may answer a caller who waits.
            _ if is_failure(&error) => !waited && !is_try,
            // It was lost before its lease began anew.
            ErrorKind::Lost | ErrorKind::NotOwner => grant.is_some(),
            _ => false,
        };
        if !passes {
            let error = self.of_part(part, error);
            self.failed.get_or_insert(error);
            return;
        }
        *busy = true;
        if self.refused.as_ref().is_none_or(|(first, _)| part < *first) {
            self.refused = Some((part, error));
        }
    }

    /// The part to wait for next: the first that was refused, or that is not held any more. It may have
    /// been lost, or released by its key, while others were waited for.
    pub(super) fn next(&mut self, now: Moment) -> Option<(usize, Error)> {
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

    /// How many parts are held at this moment.
    pub(super) fn held(&self, now: Moment) -> usize {
        let grants = self.granted.iter().flatten();
        grants.filter(|grant| grant.cell.is_held(now)).count()
    }

    /// Whether a round of a quorum has all answers that it needs. A server that cannot be reached may answer
    /// late, or never: with enough others nobody waits for it. One that was not tried yet is waited for, or
    /// the first locks of a client would be on a bare majority.
    pub(super) fn is_round_over(&self, cx: &Context) -> bool {
        let is_enough = self.held(cx.now) >= self.wanted.needed;
        let mut asked = self.asked.iter().zip(self.wanted.parts.iter());
        asked.all(|(asked, part)| {
            asked.is_none()
                || is_enough && self.look.is_on() && cx.links.error(&part.name).is_some()
        })
    }

    /// Why a quorum cannot be reached.
    pub(super) fn no_quorum(&self, cx: &Context) -> Error {
        let unheard = self.asked.iter().position(Option::is_some);
        match self
            .look
            .reason(self.wanted.parts.len() - self.wanted.needed, unheard)
        {
            Lack::Busy(part) => self.timeout(part),
            Lack::Failed(part, error) => self.of_part(part, error.clone()),
            Lack::Unheard(part) => self.unheard(cx, part),
        }
    }

    /// Whether the server of a part stays out of reach.
    pub(super) fn is_cut_off(&self, cx: &Context, part: usize) -> bool {
        let part = self.wanted.parts.get(part);
        part.is_some_and(|part| cx.links.is_hopeless(&part.name))
    }

    /// The error about a part, which its text names.
    pub(super) fn of_part(&self, part: usize, error: Error) -> Error {
        let error = match self.wanted.parts.get(part) {
            Some(part) => error.of_part(&part.name),
            None => error,
        };
        error.on(&self.wanted.name)
    }

    /// The first part that it does not have.
    pub(super) fn first_missing(&self) -> Option<usize> {
        self.granted.iter().position(Option::is_none)
    }

    /// The server of a part has not answered in time.
    pub(super) fn unheard(&self, cx: &Context, part: usize) -> Error {
        let down = self.wanted.parts.get(part);
        let down = down.and_then(|part| cx.links.error(&part.name));
        let late = || Error::new(ErrorKind::Unavailable, "no answer in time");
        self.of_part(part, down.unwrap_or_else(late))
    }

    /// The caller's time is over, or it does not wait.
    pub(super) fn timeout(&self, part: usize) -> Error {
        let part = self.wanted.parts.get(part).map_or("", |part| &*part.name);
        let text = match self.wanted.wait.filter(|wait| !wait.is_zero()) {
            Some(wait) => format!(
                "not acquired within {wait:?}: somebody else holds {part:?} or waits for it; wait longer, or look at who holds it"
            ),
            None => format!("somebody else holds {part:?} or waits for it"),
        };
        Error::new(ErrorKind::Timeout, text).on(&self.wanted.name)
    }
}

/// Whether the server has not answered, or refused a call: nothing says that somebody else holds the part.
pub(super) fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Server)
}
