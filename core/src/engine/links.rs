//! Which server answers for a name, and whether it can be reached.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::timers::Timer;
use super::{Engine, Output};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Level as EventLevel};
use crate::moment::Moment;
use crate::wire::Name;
use crate::wire::slots::slot;

/// Names a server, or whoever serves what no known server does; drawn by the driver, never reused.
pub(crate) type LinkId = u32;

/// The link of all names before there are routes, and later of those that no server answers for.
pub(crate) const NOWHERE: LinkId = 0;

/// Which link leads to the server of a name: by slot in a cluster; else there is only one.
#[derive(Clone, Default)]
pub(crate) struct Routes(Option<Arc<[LinkId]>>);

impl fmt::Debug for Routes {
    /// Ranges of slots, not each of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges = f.debug_map();
        let mut slot = 0;
        for range in self.0.iter().flat_map(|links| links.chunk_by(PartialEq::eq)) {
            ranges.entry(&(slot..slot + range.len()), &range[0]);
            slot += range.len();
        }
        ranges.finish()
    }
}

impl Routes {
    /// One link for each slot.
    pub(crate) fn by_slot(links: Arc<[LinkId]>) -> Self {
        Routes(Some(links))
    }

    pub(crate) fn link(&self, name: &str) -> LinkId {
        let link = self.0.as_ref().and_then(|links| links.get(usize::from(slot(name))));
        link.copied().unwrap_or(NOWHERE)
    }

    /// The names that can go in one call have the same of this.
    pub(super) fn group(&self, name: &str) -> u16 {
        self.0.as_ref().map_or(0, |_| slot(name))
    }

    /// Whether names in one call have to have the same slot.
    pub(super) fn is_split(&self) -> bool {
        self.0.is_some()
    }

    fn leads_to(&self, link: LinkId) -> bool {
        self.0.as_ref().map_or(link == NOWHERE, |links| links.contains(&link))
    }

    fn all(&self) -> Vec<LinkId> {
        let mut all = self.0.as_ref().map_or_else(|| vec![NOWHERE], |links| links.to_vec());
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The connection to a server, as far as the engine knows.
#[derive(Debug, Default)]
struct Link {
    up: bool,
    /// Why it is down, once that is known.
    down: Option<Error>,
    /// The outage has lasted longer than callers wait for.
    given_up: bool,
}

/// The connections to all servers.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) routes: Routes,
    links: BTreeMap<LinkId, Link>,
    /// Some server was reached once.
    ever_up: bool,
    /// When other servers came to answer for some names.
    rerouted: Moment,
}

impl Links {
    /// Whether calls for this name can be sent.
    pub(super) fn is_up(&self, name: &str) -> bool {
        self.links.get(&self.routes.link(name)).is_some_and(|link| link.up)
    }

    pub(super) fn is_link_up(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.up)
    }

    /// Why nothing can be sent for this name, while nothing can be sent.
    pub(super) fn error(&self, name: &str) -> Option<Error> {
        self.error_of(self.routes.link(name))
    }

    fn error_of(&self, link: LinkId) -> Option<Error> {
        self.links.get(&link).filter(|link| !link.up)?.down.clone()
    }

    /// Whether a call that was sent then may have been answered by a server that did not serve its name any more.
    pub(super) fn may_have_moved(&self, sent: Moment) -> bool {
        sent < self.rerouted
    }

    /// Whether any server is reached.
    pub(super) fn any_up(&self) -> bool {
        self.links.values().any(|link| link.up)
    }

    /// Why no server is reached, once all have failed.
    pub(super) fn error_of_all(&self) -> Option<Error> {
        let errors: Option<Vec<Error>> = self.routes.all().into_iter().map(|id| self.error_of(id)).collect();
        errors?.into_iter().next()
    }
}

/// Picks names.
pub(super) type Which<'a> = &'a dyn Fn(&Name) -> bool;

impl Engine {
    pub(super) fn link_up(&mut self, id: LinkId) {
        self.links.links.insert(id, Link { up: true, ..Link::default() });
        self.links.ever_up = true;
        self.timers.disarm(Timer::Outage(id));
        self.link_event("connected", EventLevel::Info, "connected".to_owned());
        let routes = self.links.routes.clone();
        self.go_on(&|name| routes.link(name) == id);
    }

    pub(super) fn link_down(&mut self, id: LinkId, error: Error) {
        let ever_up = self.links.ever_up;
        let link = self.links.links.entry(id).or_default();
        // Every failed attempt comes here; the first one is news.
        let first = link.up || link.down.is_none();
        let was_up = std::mem::replace(&mut link.up, false);
        link.down = Some(error.clone());
        // A server that fits the address no more may be one that is being replaced.
        let passing =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Server | ErrorKind::InvalidArgument);
        let hopeless = !ever_up || !passing;
        let give_up = hopeless || link.given_up;
        let level = if first { EventLevel::Warn } else { EventLevel::Debug };
        self.link_event("disconnected", level, format!("not connected: {error}"));
        if first && ever_up {
            self.timers.arm(Timer::Outage(id), self.now.after(self.config.outage));
        }
        let routes = self.links.routes.clone();
        let which = |name: &Name| routes.link(name) == id;
        if was_up {
            self.arm_holds(&which);
        }
        if give_up {
            self.fail_for_link(&error, &which);
        } else {
            self.fail_waiters(&error, true, &which);
            self.fail_entries(&error, true, &which);
        }
    }

    /// The server has been away for longer than callers wait for it.
    pub(super) fn outage_over(&mut self, id: LinkId) {
        let Some(error) = self.links.error_of(id) else { return };
        if let Some(link) = self.links.links.get_mut(&id) {
            link.given_up = true;
        }
        let routes = self.links.routes.clone();
        self.fail_for_link(&error, &|name| routes.link(name) == id);
    }

    /// Ends everybody who waits for the link. What is known of holds goes on until their deadlines.
    fn fail_for_link(&mut self, error: &Error, which: Which<'_>) {
        self.fail_waiters(error, false, which);
        self.fail_entries(error, false, which);
        self.end_queries(error, which);
        if let Some(error) = self.links.error_of_all() {
            self.end_connects(&error);
        }
    }

    /// Other servers answer for some names. For those this is as a new connection.
    pub(super) fn reroute(&mut self, routes: Routes) {
        let before = std::mem::replace(&mut self.links.routes, routes.clone());
        self.links.rerouted = self.now;
        let old: Vec<LinkId> = self.links.links.keys().copied().filter(|id| !routes.leads_to(*id)).collect();
        for id in old {
            self.links.links.remove(&id);
            self.timers.disarm(Timer::Outage(id));
        }
        self.go_on(&|name| before.link(name) != routes.link(name));
    }

    /// Goes on with these names after a reconnect: what waits is sent, holds are looked at, which
    /// arms their tracking, and waiters try. Where nothing can be sent yet, it waits.
    fn go_on(&mut self, which: Which<'_>) {
        self.send_queries();
        self.resume_commands(which);
        self.resume_cleanups(which);
        self.repeat_releases(which);
        self.renew_all(which);
        self.probe_all(which);
    }

    fn link_event(&mut self, kind: &'static str, level: EventLevel, text: String) {
        self.out.push(Output::Event(Event { kind, level, lock: None, text }));
    }
}
