//! A multi lock that is held, and the commands of its callers.

use std::sync::Arc;

use crate::engine::interface::{Done, LevelId};
use crate::error::{Error, LostReason};
use crate::hold::HoldCell;
use crate::wire::{Name, OwnerId};

/// A multi lock that is held, or lost and not released.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) cell: Arc<HoldCell>,
    /// How many parts the lock has, those that are not held included.
    pub(super) of: usize,
    pub(super) levels: Vec<GroupLevel>,
}

#[derive(Debug)]
pub(super) struct GroupLevel {
    pub(super) id: LevelId,
    /// Only its key can release it.
    pub(super) tied: bool,
    /// Nobody will release it.
    pub(super) abandoned: bool,
    /// Its leases are not renewed.
    pub(super) fixed: bool,
    pub(super) parts: Vec<(OwnerId, LevelId)>,
}

impl Group {
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.levels.len()).unwrap_or(u32::MAX)
    }

    /// Whether its key left it to the end of its leases, and that has come.
    pub(super) fn has_run_out(&self) -> bool {
        let left = |level: &GroupLevel| level.tied && level.fixed;
        self.cell.told_lost() == Some(LostReason::Expired) && self.levels.iter().all(left)
    }

    /// The level with this number, or the newest.
    pub(super) fn level(&self, id: Option<LevelId>) -> Option<&GroupLevel> {
        match id {
            Some(id) => self.levels.iter().find(|level| level.id == id),
            None => self.levels.last(),
        }
    }
}

/// A release or an extension of all parts.
#[derive(Debug)]
pub(super) struct GroupCommand {
    /// It has its answer already.
    pub(super) answered: bool,
    pub(super) name: Name,
    pub(super) left: usize,
    /// The first error, and whether it tells of a loss, which says more than that another part was not
    /// confirmed.
    pub(super) error: Option<(bool, Error)>,
    pub(super) done: Done,
    /// How many confirmations decide it.
    pub(super) needed: usize,
    /// How many parts may be lost, and how many may lack a confirmation.
    pub(super) spare: (usize, usize),
    pub(super) confirmed: usize,
    pub(super) gone: usize,
    pub(super) unconfirmed: usize,
}

impl GroupCommand {
    /// A release or an extension of so many parts.
    pub(super) fn of(cell: &HoldCell, left: usize, done: Done) -> Self {
        GroupCommand {
            answered: false,
            name: cell.name.clone(),
            left,
            error: None,
            done,
            needed: cell.needed(),
            spare: (left - cell.needed(), 0),
            confirmed: 0,
            gone: 0,
            unconfirmed: 0,
        }
    }

    /// Takes the error about a part.
    pub(super) fn failed(&mut self, error: Error) {
        let is_loss = error.lost_reason().is_some();
        match is_loss {
            true => self.gone += 1,
            false => self.unconfirmed += 1,
        }
        let part = error.lock_name().map(str::to_owned);
        let error = match part {
            Some(part) => error.of_part(&part),
            None => error,
        };
        // A loss that ends nothing says nothing.
        let says_more = match &self.error {
            None => true,
            Some((of_loss, _)) => *of_loss != is_loss && is_loss == (self.gone > self.spare.0),
        };
        if says_more {
            self.error = Some((is_loss, error));
        }
    }

    /// Whether too many parts are lost or not confirmed.
    pub(super) fn is_refused(&self) -> bool {
        self.gone > self.spare.0 || self.unconfirmed > self.spare.1
    }
}
