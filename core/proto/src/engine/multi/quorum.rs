//! The rules of a quorum: the lock of one name on several servers, of which most are enough. They decide, and
//! [`Multi`](super::Multi) does it.
//!
//! An acquisition looks at all parts at once, without waiting, and goes on as soon as it has enough of them:
//! it stands the failure of the others. Otherwise it waits for one part, as a multi lock does: for the first that
//! somebody else holds. After [`tuning::QUORUM_LOOK`] at most it looks at all missing parts again.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::tuning;

/// The parts that an acquisition has seen and did not get.
#[derive(Debug)]
pub(super) struct Look {
    /// This round is a look at all parts, not the wait for one.
    is_on: bool,
    /// When the wait for one ends.
    ends: Moment,
    /// Why parts were not acquired at the last look.
    lacking: Vec<(usize, Error)>,
    /// The parts whose servers ended a wait with an error of theirs, before its time. One that passes ends a try alone.
    refuses: Vec<bool>,
}

/// Why a quorum cannot be reached: of the reasons, the one that says most.
pub(super) enum Lack<'a> {
    /// Somebody else holds this part.
    Busy(usize),
    Failed(usize, &'a Error),
    /// The caller's time ended before the look: this part's server has not answered.
    Unheard(usize),
}

/// A round that is over.
pub(super) struct Round {
    /// How many parts are held, how many are needed, and how many there are.
    pub(super) granted: usize,
    pub(super) needed: usize,
    pub(super) parts: usize,
    /// The caller does not wait any more.
    pub(super) is_last: bool,
}

/// The next step after a round.
pub(super) enum Next {
    /// It is held.
    Open,
    GiveUp,
    /// Try all missing parts.
    Look,
    /// Wait for this part, or for the first that is missing.
    Wait(Option<usize>),
}

impl Look {
    /// The first one, at so many parts.
    pub(super) fn first(parts: usize) -> Look {
        Look {
            is_on: true,
            ends: Moment::default(),
            lacking: Vec::new(),
            refuses: vec![false; parts],
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn begins(&mut self) {
        self.is_on = true;
        self.lacking.clear();
    }

    /// One part is waited for: how long, if the caller has so much time `left`.
    pub(super) fn waits(&mut self, now: Moment, left: Option<Duration>) -> Duration {
        let wait = left.map_or(tuning::QUORUM_LOOK, |left| left.min(tuning::QUORUM_LOOK));
        (self.is_on, self.ends) = (false, now.after(wait));
        wait
    }

    /// Takes the error about a part, which was waited for until now (`waited`) or only tried.
    pub(super) fn refused(
        &mut self,
        part: usize,
        waited: Option<Moment>,
        is_missing: bool,
        error: Error,
    ) {
        if let Some(now) = waited {
            if let Some(refuses) = self.refuses.get_mut(part) {
                *refuses = error.kind() == ErrorKind::Server && now < self.ends;
            }
        } else if is_missing {
            // A part that is held and could not be extended tells nothing of those that are missing.
            self.lacking.push((part, error));
        }
    }

    /// The step after a round. `is_cut_off`: the server of a part stays out of reach.
    pub(super) fn next(&self, round: &Round, is_cut_off: impl Fn(usize) -> bool) -> Next {
        let is_enough = round.granted >= round.needed;
        let is_whole = round.granted == round.parts;
        if is_enough && (self.is_on || is_whole || round.is_last) {
            return Next::Open;
        }
        let hopeless =
            |(part, error): &&(usize, Error)| self.is_hopeless(*part, error, &is_cut_off);
        let spare = round.parts - round.needed;
        if !is_enough && (round.is_last || self.lacking.iter().filter(hopeless).count() > spare) {
            return Next::GiveUp;
        }
        if !self.is_on {
            // Others may be free by now, and each of them makes the lock stand one failure more.
            return Next::Look;
        }
        Next::Wait(self.next_part(&is_cut_off))
    }

    /// Why there is no quorum, which can do without `spare` parts. `unheard`: the first part without an
    /// answer.
    pub(super) fn reason(&self, spare: usize, unheard: Option<usize>) -> Lack<'_> {
        let mut busy = self.lacking.iter().filter(|(_, error)| is_busy(error));
        let mut failed = self.lacking.iter().filter(|(_, error)| !is_busy(error));
        let (busy_ones, failed_ones) = (busy.clone().count(), failed.clone().count());
        let first_busy = busy.next().map_or(0, |(part, _)| *part);
        match (failed.next(), unheard.filter(|_| self.is_on)) {
            _ if busy_ones > spare => Lack::Busy(first_busy),
            (Some((part, error)), _) if failed_ones > spare => Lack::Failed(*part, error),
            (_, Some(part)) => Lack::Unheard(part),
            (_, None) => Lack::Busy(first_busy),
        }
    }

    /// Whether a wait for a part cannot help, after this error.
    fn is_hopeless(&self, part: usize, error: &Error, is_cut_off: &impl Fn(usize) -> bool) -> bool {
        match error.kind() {
            ErrorKind::Timeout => false,
            ErrorKind::Server => self.refuses.get(part).is_some_and(|refuses| *refuses),
            ErrorKind::Unavailable => is_cut_off(part),
            _ => true,
        }
    }

    /// The part to wait for: the first that somebody else holds, or else one whose server may come back. There
    /// is always such a part: at most as many are hopeless as the quorum can spare.
    fn next_part(&self, is_cut_off: &impl Fn(usize) -> bool) -> Option<usize> {
        let may_help =
            |(part, error): &&(usize, Error)| !self.is_hopeless(*part, error, is_cut_off);
        let lacking = || self.lacking.iter();
        let busy = lacking().filter(|(_, error)| is_busy(error));
        let busy = busy.map(|(part, _)| *part).min();
        busy.or_else(|| lacking().filter(may_help).map(|(part, _)| *part).min())
    }
}

/// Whether somebody else holds the part.
fn is_busy(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout
}
