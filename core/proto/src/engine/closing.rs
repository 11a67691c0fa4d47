//! The end of the client: everything is released, then it stops.

use super::context::Context;
use super::hold::Hold;
use super::interface::{Done, Output, RequestId};
use super::timers::Timer;
use super::view::View;
use crate::error::Error;
use crate::maps::SortedMap;
use crate::wire::Name;
use crate::wire::servers::key_and_server;

/// The state of a client that is closing.
#[derive(Debug)]
pub(super) struct Closing {
    /// Callers waiting for the close to finish.
    requests: Vec<RequestId>,
    /// Locks that the server refused to release.
    pub(super) refused: Vec<Name>,
    done: bool,
}

impl Closing {
    pub(super) fn new(id: RequestId) -> Closing {
        Closing {
            requests: vec![id],
            refused: Vec::new(),
            done: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// One more caller wants the client closed.
    pub(super) fn join(&mut self, cx: &mut Context, id: RequestId) {
        if self.done {
            cx.complete(id, Done::Closed(Vec::new()));
        } else {
            self.requests.push(id);
        }
    }

    /// Removes a caller that no longer waits for the close; `false` if it did not wait. The close
    /// goes on.
    pub(super) fn leave(&mut self, id: RequestId) -> bool {
        let before = self.requests.len();
        self.requests.retain(|request| *request != id);
        self.requests.len() < before
    }

    /// Whether the close can finish: when nothing is left to settle, or nothing that a reachable server could
    /// settle.
    pub(super) fn is_over(&self, cx: &Context, view: View<'_>) -> bool {
        // While calls are in flight an outcome is still to come: the scan of everything can wait.
        let over = view.is_settled() || cx.calls.is_empty() && waits_in_vain(view, cx);
        !self.done && over
    }

    /// Reports to the closing callers which locks could not be released, and stops.
    pub(super) fn finish(&mut self, cx: &mut Context, view: View<'_>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let mut unreleased = std::mem::take(&mut self.refused);
        cx.timers.disarm(Timer::Close);
        unreleased.extend(view.holds.values().map(|hold| hold.cell.name.clone()));
        unreleased.extend(others(view).cloned());
        unreleased.sort_unstable();
        unreleased.dedup();
        if let Some(spare) = cx.links.routes.spare() {
            unreleased = of_most_servers(&unreleased, spare);
        }
        let mut callers: Vec<RequestId> = cx.callers.iter().map(|(id, _)| *id).collect();
        callers.sort_unstable();
        for caller in callers {
            cx.fail(caller, Error::closed());
        }
        for id in std::mem::take(&mut self.requests) {
            cx.complete(id, Done::Closed(unreleased.clone()));
        }
        cx.out.push(Output::Stop);
    }
}

/// Whether all remaining work is for servers that callers have stopped waiting for. That is the
/// case when the outage has lasted longer than the option `outage`, or a release has waited
/// that long. In a quorum nobody waits for as few servers as it can spare.
fn waits_in_vain(view: View<'_>, cx: &Context) -> bool {
    let late = |hold: &Hold| hold.tasks().any(|task| task.is_late(cx.now));
    let mut held: Vec<Name> = Vec::new();
    if let Some(spare) = cx.links.routes.spare() {
        let names = view.holds.values().map(|hold| &hold.cell.name);
        let mut names: Vec<Name> = names.chain(others(view)).cloned().collect();
        names.sort_unstable();
        names.dedup();
        held = of_most_servers(&names, spare);
    }
    let is_quorum = cx.links.routes.spare().is_some();
    let is_spare = |name: &Name| {
        let key = key_and_server(name).0;
        is_quorum && !held.iter().any(|held| **held == *key)
    };
    let in_vain = |name: &Name, late: bool| {
        !cx.links.is_up(name) && (late || cx.links.is_given_up(name) || is_spare(name))
    };
    view.holds
        .values()
        .all(|hold| in_vain(&hold.cell.name, late(hold)))
        && others(view).all(|name| in_vain(name, false))
}

/// The keys among these names, none of which is there twice, that are on more servers than a quorum can
/// spare.
fn of_most_servers(names: &[Name], spare: usize) -> Vec<Name> {
    let mut servers: SortedMap<&str, usize> = SortedMap::default();
    for name in names {
        *servers.or_default(key_and_server(name).0) += 1;
    }
    let most = servers.into_iter().filter(|(_, count)| *count > spare);
    most.map(|(key, _)| key.into()).collect()
}

/// The locks of unanswered acquires and of pending clean-ups, and the counters with changes.
fn others(view: View<'_>) -> impl Iterator<Item = &Name> {
    let waiters = view.names.waiters.values().map(|waiter| &waiter.name);
    let cleanups = view.cleanups.iter().map(|cleanup| &cleanup.name);
    waiters.chain(cleanups).chain(view.counting.unsettled())
}
