//! The rules of the exclusive lock: what blocks a caller, and why a wait ended in vain.

use std::time::Duration;

use crate::engine::cleanup::Cleanups;
use crate::engine::context::Context;
use crate::engine::errors::{
    timeout, timeout_by_itself, timeout_without_limit, token_busy, unanswered, unconnected, unheard,
};
use crate::engine::hold::{Hold, Phase};
use crate::engine::interface::RequestId;
use crate::engine::names::{Attempt, WaitQueue};
use crate::engine::slab::Slab;
use crate::engine::view::View;
use crate::engine::waiter::{Acquisition, Waiter};
use crate::error::Error;
use crate::key::OwnerKey;
use crate::wire::{Kind, Name, OwnerId};

/// Whether a hold of this client blocks the queue, or the head is parked because the server
/// refused it.
pub(super) fn is_had(view: View<'_>, name: &Name) -> bool {
    let head = |queue: &WaitQueue| {
        queue
            .waiters
            .front()
            .and_then(|id| view.names.waiters.get(id))
    };
    view.names.queues.get(name).is_some_and(|queue| {
        head(queue).is_some_and(|head| {
            let refused = head.announced && head.failures == 0 && head.unsettled.is_none();
            (queue.attempt == Attempt::Parked && refused)
                || is_blocked(view.holds, queue, Wish::of(head), false)
        })
    })
}

/// Whether another caller of this client waits for the name. A try never barges past those. A reader
/// may ask beside readers that wait, and one that wants permits beside those that have not been refused.
pub(super) fn comes_behind(view: View<'_>, asked: &Acquisition, under: Option<OwnerId>) -> bool {
    let Some(queue) = view.names.queues.get(&asked.name) else {
        return false;
    };
    // The others wait for the lock under which this caller reads.
    if under.is_some() {
        return false;
    }
    let shares = asked.form.kind.is_shared();
    let beside = |waiter: &Waiter| {
        let other = asked.key == OwnerKey::Once || asked.key != waiter.key;
        let refused = match waiter.queues() {
            true => waiter.announced,
            false => queue.attempt == Attempt::Parked,
        };
        let asks = waiter.form.kind.reads() || !refused;
        waiter.form.kind.is_shared() && asks && shares && other
    };
    // A waiter that has its answer only keeps its place until its call is settled.
    let waits = |id: &RequestId| {
        let waiter = view.names.waiters.get(id);
        waiter.is_some_and(|waiter| !waiter.answered && !beside(waiter))
    };
    queue.waiters.iter().any(waits)
}

/// The server error for which the head of the queue asks again, now or in a moment, if any. A try behind
/// it must report this error, because the lock may be free. A head that waits for a hold of its client
/// asks for those that try, whatever it was told before.
pub(super) fn unheard_before(view: View<'_>, name: &Name) -> Option<Error> {
    let queue = view.names.queues.get(name)?;
    let head = view.names.waiters.get(queue.waiters.front()?)?;
    if is_token_busy(view.holds, view.cleanups, head, queue) {
        return Some(head.error.clone().unwrap_or_else(unanswered));
    }
    let waits = queue.attempt == Attempt::Idle && head.retry.is_none();
    if waits && !head.queues() && !head.form.kind.takes_permits() {
        return None;
    }
    let silent = || head.unsettled.map(|_| unanswered());
    head.error.clone().or_else(silent)
}

/// Why the wait of this caller was not enough. The error is a timeout if anything in that time
/// showed that somebody has the lock. If the server was unreachable or silent, the lock may be
/// free. A program that skips its work on a timeout must not mistake that for another worker. So no
/// answer is never a timeout, however short the wait was.
pub(super) fn late_waiter(view: View<'_>, cx: &Context, id: RequestId) -> Error {
    let Some(waiter) = view.names.waiters.get(&id) else {
        return unheard(None);
    };
    if let Some(down) = cx.links.error(&waiter.name) {
        return down;
    }
    let queue = view.names.queues.get(&waiter.name);
    let refused = queue.and_then(|queue| queue.refused);
    let began = waiter
        .deadline
        .zip(waiter.wait)
        .map(|(end, wait)| end.before(wait));
    let is_refused = refused.is_some_and(|at| Some(at) >= began);
    // An earlier attempt with the head's token may have the lock, or nobody.
    let head = queue.and_then(|queue| view.names.waiters.get(queue.waiters.front()?));
    let is_busy = queue
        .zip(head)
        .is_some_and(|(queue, head)| is_token_busy(view.holds, view.cleanups, head, queue));
    if !is_refused && is_busy {
        return match head {
            Some(head) if head.form.token == waiter.form.token => token_busy(),
            _ => unheard(waiter.wait),
        };
    }
    if is_refused || is_had(view, &waiter.name) {
        let (name, kind) = (&waiter.name, waiter.form.kind);
        let own = view
            .names
            .hold_of(view.holds, name, waiter.key, kind.side());
        return match waiter.wait {
            None | Some(Duration::ZERO) => timeout(name, waiter.wait),
            Some(wait) if kind.takes_permits() && waiter.terms.special.limit == 0 => {
                timeout_without_limit(name, wait)
            }
            Some(wait) if own.is_some() && !kind.takes_permits() => timeout_by_itself(name, wait),
            _ => timeout(name, waiter.wait),
        };
    }
    if let Some(error) = head.and_then(|head| head.error.clone()) {
        return error;
    }
    // Nobody asks in the turn of other clients, so the lack of an answer says nothing about the server.
    if queue.is_some_and(|queue| queue.turn.of_others(cx.now).is_some()) {
        return timeout(&waiter.name, waiter.wait);
    }
    if cx.links.is_up(&waiter.name) {
        unheard(waiter.wait)
    } else {
        unconnected(waiter.wait)
    }
}

/// Whether this client is releasing this lock.
pub(super) fn is_being_left(view: View<'_>, name: &Name) -> bool {
    let leaves = |owner: &OwnerId| {
        view.holds
            .get(owner)
            .is_some_and(|hold| hold.phase == Phase::Releasing)
    };
    view.names
        .queues
        .get(name)
        .is_some_and(|queue| queue.holds().iter().any(leaves))
        || view.cleanups.iter().any(|cleanup| cleanup.name == *name)
}

/// The lock that a caller wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    /// The owner of the write lock under which it reads.
    pub(super) under: Option<OwnerId>,
}

impl Wish {
    pub(super) fn of(waiter: &Waiter) -> Wish {
        Wish {
            kind: waiter.form.kind,
            under: waiter.under,
        }
    }
}

/// Whether a hold of this client blocks a waiter.
pub(super) fn is_blocked(holds: &Slab<Hold>, queue: &WaitQueue, wish: Wish, held: bool) -> bool {
    blocking(holds, queue, wish, held).next().is_some()
}

/// The holds of this client that block a waiter. The engine hears first when they end. For a lock of
/// another layout a hold is foreign data, which the server reports. With `held`, one that is being
/// released does not count.
pub(super) fn blocking(
    holds: &Slab<Hold>,
    queue: &WaitQueue,
    wish: Wish,
    held: bool,
) -> impl Iterator<Item = OwnerId> {
    let blocks = move |hold: &Hold| {
        hold.blocks(held)
            && hold.cell.kind.excludes(wish.kind)
            && Some(hold.cell.owner) != wish.under
    };
    let owners = queue.holds().iter().copied();
    owners.filter(move |owner| holds.get(owner).is_some_and(blocks))
}

/// Whether this client reads the lock and releases none of its holds.
pub(super) fn is_read_only(holds: &Slab<Hold>, queue: &WaitQueue) -> bool {
    let all = queue.holds().iter().filter_map(|owner| holds.get(owner));
    all.filter(|hold| hold.blocks(false))
        .all(|hold| hold.phase == Phase::Held && hold.cell.kind.reads())
}

/// Whether an earlier attempt with the token of this form may still free the name: its lock is
/// being released, or it is cleaned up. The value at the key does not tell the attempts apart, so a
/// try has to wait. If it were granted, a late release of the earlier attempt would free its lock.
pub(super) fn is_token_busy(
    holds: &Slab<Hold>,
    cleanups: &Cleanups,
    waiter: &Waiter,
    queue: &WaitQueue,
) -> bool {
    let Some(token) = &waiter.form.token else {
        return false;
    };
    let releases = |hold: &Hold| hold.phase == Phase::Releasing && hold.cell.has_token(token);
    let leaves = |owner: &OwnerId| holds.get(owner).is_some_and(releases);
    queue.holds().iter().any(leaves) || cleanups.releases(&waiter.name, token)
}
