//! The operations that callers want on a hold: the command in flight and the tasks behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::interface::{CallId, LevelId, RequestId, Terms};
use super::lazy_box::Idle;
use super::timing;
use crate::key::OwnerKey;
use crate::moment::Moment;
use crate::wire::{HandOver, Op, Release};

/// An operation on a hold, waiting or in flight.
#[derive(Debug)]
pub(super) struct Task {
    /// The request to answer. `None` if it was answered already, or if nobody asked.
    pub(super) request: Option<RequestId>,
    pub(super) wish: HoldOp,
    /// When the caller is answered even if the server has not answered.
    pub(super) answer_by: Option<Moment>,
}

/// An operation that changes the count or the lease of a hold.
#[derive(Debug)]
pub(super) enum HoldOp {
    Enter(Entry),
    /// Give back this level; without one, the newest.
    Leave(Option<LevelId>),
    /// Make the lock live at least this long.
    Extend {
        level: Option<LevelId>,
        lease: Duration,
    },
    /// Tell the server the number of levels, because a re-entry that nobody wants may have run.
    Settle,
    /// Confirm that the lock was still held when this caller passed it on. That completes the
    /// caller's release.
    Passed,
}

/// One more level, for a caller with this key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: OwnerKey,
    pub(super) terms: Terms,
    pub(super) wait: Option<Duration>,
}

impl HoldOp {
    pub(super) fn is_passed(&self) -> bool {
        matches!(self, HoldOp::Passed)
    }
}

impl Task {
    /// When its caller stops waiting, if it has one.
    pub(super) fn answer_by(&self) -> Option<Moment> {
        self.answer_by.filter(|_| self.request.is_some())
    }

    /// Whether it has waited for the server for as long as callers wait.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        self.answer_by.is_some_and(|at| at <= now)
    }

    /// The rest of a release whose level was given to another caller.
    pub(super) fn passed(self) -> Task {
        Task {
            wish: HoldOp::Passed,
            ..self
        }
    }

    /// Whether it is a re-entry of a caller with this key.
    pub(super) fn is_entry_of(&self, key: OwnerKey) -> bool {
        matches!(&self.wish, HoldOp::Enter(entry) if entry.key == key)
    }

    /// Whether it tries once and does not wait.
    pub(super) fn once(&self) -> bool {
        matches!(&self.wish, HoldOp::Enter(entry) if entry.wait == Some(Duration::ZERO))
    }

    /// Whether it may be dropped when no caller wants it any more.
    pub(super) fn optional(&self) -> bool {
        matches!(self.wish, HoldOp::Enter(_) | HoldOp::Extend { .. })
    }
}

/// A task that was started: its call is in flight, or waits to be sent again.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) task: Task,
    /// Releases before it that passed the lock on. The answer to this command also shows that they
    /// held the lock.
    pub(super) passed: Vec<Task>,
    pub(super) op: Arc<Op>,
    pub(super) limit: Duration,
    pub(super) call: Option<CallId>,
    pub(super) begun: Moment,
    /// Copies that may have run, including the one in flight.
    pub(super) copies: u32,
    /// Transient errors in a row.
    pub(super) failures: u32,
    /// Whether the last copy arrived after its not-after by the server's clock.
    pub(super) stale: bool,
    pub(super) retry: Option<Moment>,
}

impl Command {
    pub(super) fn retry(&self) -> Option<Moment> {
        self.retry
    }

    /// The tasks of the callers that passed the lock on, then its own task. A release has already
    /// removed its level from the hold, so only the server still has to hear of it.
    pub(super) fn into_tasks(self) -> impl Iterator<Item = Task> {
        let Command { task, passed, .. } = self;
        let wish = if let HoldOp::Leave(_) = task.wish {
            HoldOp::Settle
        } else {
            task.wish
        };
        passed.into_iter().chain([Task { wish, ..task }])
    }

    /// The moment until which its copy in flight may run, if there is one.
    pub(super) fn alive_until(&self, now: Moment) -> Option<Moment> {
        self.call.map(|_| timing::copy_expires(now, self.limit))
    }

    /// Whether it frees the lock. Copies of such a command may overlap: an owner that the engine
    /// drew is never used again, and a token stays busy until they are settled.
    pub(super) fn frees(&self) -> bool {
        matches!(*self.op, Op::Release(Release { remaining: 0, .. }))
    }

    /// Turns a hand-over that was not done, or whose outcome is unknown (`unsure`), into a plain
    /// release. Returns false if this is not its call.
    pub(super) fn release_instead(&mut self, call: CallId, unsure: bool) -> bool {
        if self.call != Some(call) {
            return false;
        }
        let Op::HandOver(HandOver {
            name, owner, form, ..
        }) = &*self.op
        else {
            return false;
        };
        self.op = Arc::new(Op::Release(Release::of(name.clone(), *owner, form.clone())));
        self.call = None;
        self.copies -= u32::from(!unsure);
        true
    }

    /// Makes a late verification ask for no time, so that it does not prolong a lease that nobody
    /// renews.
    pub(super) fn asks_for_no_more(&mut self, watched: bool) {
        if self.task.wish.is_passed()
            && !watched
            && let Op::Renew { holds } = Arc::make_mut(&mut self.op)
        {
            holds.iter_mut().for_each(|hold| hold.ttl = timing::LOOK);
        }
    }

    /// Whether no caller wants its effect and no effect has to be undone.
    pub(super) fn is_pointless(&self) -> bool {
        let harmless = self.copies == 0 || matches!(self.task.wish, HoldOp::Extend { .. });
        self.task.request.is_none() && self.task.optional() && harmless
    }

    /// Whether it is a re-entry that no caller wants any more. A copy of it may have run.
    pub(super) fn is_unwanted_entry(&self) -> bool {
        self.task.request.is_none() && matches!(self.task.wish, HoldOp::Enter(_))
    }
}

/// The operations that callers want on a hold, in order.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) command: Option<Command>,
    /// The tasks behind the command in flight. The count of each is computed when its command
    /// starts.
    pub(super) todo: VecDeque<Task>,
}

impl Idle for Work {
    const IDLE: &'static Work = &Work {
        command: None,
        todo: VecDeque::new(),
    };

    fn is_idle(&self) -> bool {
        self.command.is_none() && self.todo.is_empty()
    }
}
