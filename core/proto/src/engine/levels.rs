//! The levels of a hold. There is nearly always one, which is stored inline.

use std::ops::{Deref, DerefMut};
use std::slice;
use std::time::Duration;

use super::interface::{Lease, LevelId};
use super::timing;
use crate::moment::{Moment, Span};

/// One acquisition on a hold.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) id: LevelId,
    /// The moment until which this level's lease can be trusted, as far as it was renewed.
    pub(super) end: Moment,
    lease: Span,
    /// Whether the watchdog renews it.
    watched: bool,
    /// The watchdog does not renew it any more. It ends with the hold.
    pub(super) abandoned: bool,
    /// Only its key can release it.
    pub(super) detached: bool,
}

impl Level {
    pub(super) fn new(id: LevelId, lease: Lease, end: Moment, detached: bool) -> Level {
        let watched = !matches!(lease, Lease::Fixed(_));
        Level {
            id,
            end,
            lease: lease.duration().into(),
            watched,
            abandoned: false,
            detached,
        }
    }

    /// The lease that the caller asked for; for an adaptive lock, the lease that the server chose.
    pub(super) fn lease(&self) -> Duration {
        self.lease.into()
    }

    /// The lease that the watchdog renews for this level.
    pub(super) fn watched(&self) -> Option<Duration> {
        (self.watched && !self.abandoned).then(|| self.lease.into())
    }

    /// Whether the level ends by itself, and nobody will report that: its lease is fixed, and it
    /// has no guard.
    pub(super) fn is_left_to_end(&self) -> bool {
        !self.watched && self.detached
    }

    /// How long the key must live for this level: its renewed lease, or its remaining time plus the
    /// allowance for drift, whichever is longer (the level may have been extended).
    pub(super) fn needs(&self, now: Moment) -> Duration {
        timing::lasting(now.until(self.end)).max(self.watched().unwrap_or_default())
    }
}

/// All levels of a hold, oldest first.
#[derive(Debug, Default)]
pub(super) enum Levels {
    #[default]
    None,
    One(Level),
    // Boxed: more than one level is rare, and an inline vector would enlarge every hold.
    #[allow(clippy::box_collection)]
    Many(Box<Vec<Level>>),
}

impl Levels {
    pub(super) fn push(&mut self, level: Level) {
        *self = match std::mem::take(self) {
            Levels::None => Levels::One(level),
            Levels::One(first) => Levels::Many(Box::new(vec![first, level])),
            Levels::Many(mut levels) => {
                levels.push(level);
                Levels::Many(levels)
            }
        };
    }

    pub(super) fn remove(&mut self, at: usize) {
        match self {
            Levels::Many(levels) => drop(levels.remove(at)),
            Levels::None | Levels::One(_) => self.clear(),
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Levels::None;
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Level) -> bool) {
        match self {
            Levels::Many(levels) => levels.retain(keep),
            Levels::One(level) if !keep(level) => self.clear(),
            Levels::None | Levels::One(_) => {}
        }
    }
}

impl Deref for Levels {
    type Target = [Level];

    fn deref(&self) -> &[Level] {
        match self {
            Levels::None => &[],
            Levels::One(level) => slice::from_ref(level),
            Levels::Many(levels) => levels,
        }
    }
}

impl DerefMut for Levels {
    fn deref_mut(&mut self) -> &mut [Level] {
        match self {
            Levels::None => &mut [],
            Levels::One(level) => slice::from_mut(level),
            Levels::Many(levels) => levels,
        }
    }
}
