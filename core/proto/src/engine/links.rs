//! The server of each name, and whether it can be reached.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Engine;
use super::interface::Output;
use super::timers::Timer;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::event::Level as EventLevel;
use crate::moment::Moment;
use crate::wire::Name;
use crate::wire::slots::slot;

/// Identifies a server, or the place of a server that is not known yet. The driver draws it and
/// never reuses it.
pub type LinkId = u32;

/// The link of all names before there are routes. Later it is the link of the names that no server
/// serves.
pub const STANDALONE: LinkId = 0;

/// The link to the server of each name. In a cluster the slot of the name decides. Without a
/// cluster there is only one link.
#[derive(Clone, Default)]
pub struct Routes(Option<Arc<[LinkId]>>);

impl fmt::Debug for Routes {
    /// Prints ranges of slots, because a line for each slot would be unreadable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges = f.debug_map();
        let mut slot = 0;
        for range in self
            .0
            .iter()
            .flat_map(|links| links.chunk_by(PartialEq::eq))
        {
            ranges.entry(&(slot..slot + range.len()), &range[0]);
            slot += range.len();
        }
        ranges.finish()
    }
}

impl Routes {
    /// One link for each slot.
    pub fn by_slot(links: Arc<[LinkId]>) -> Self {
        Routes(Some(links))
    }

    pub fn link(&self, name: &str) -> LinkId {
        let link = self
            .0
            .as_ref()
            .and_then(|links| links.get(usize::from(slot(name))));
        link.copied().unwrap_or(STANDALONE)
    }

    /// The group of a name: names of one group can share a call.
    pub(super) fn group(&self, name: &str) -> u16 {
        self.0.as_ref().map_or(0, |_| slot(name))
    }

    /// Whether the names of one call must have the same slot.
    pub(super) fn is_split(&self) -> bool {
        self.0.is_some()
    }

    fn leads_to(&self, link: LinkId) -> bool {
        self.0
            .as_ref()
            .map_or(link == STANDALONE, |links| links.contains(&link))
    }

    fn all(&self) -> Vec<LinkId> {
        let mut all = self
            .0
            .as_ref()
            .map_or_else(|| vec![STANDALONE], |links| links.to_vec());
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The state of the connection to a server, as the engine knows it.
#[derive(Debug, Default)]
struct Link {
    up: bool,
    /// The reason why it is down, once that is known.
    down: Option<Error>,
    /// The moment after which callers do not wait for the end of the outage any more.
    ends: Option<Moment>,
    /// Whether that moment has passed.
    given_up: bool,
}

/// The connections to all servers.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) routes: Routes,
    links: BTreeMap<LinkId, Link>,
    /// Whether any server was reached before.
    ever_up: bool,
    /// The moment at which the servers of some names last changed.
    rerouted: Moment,
}

impl Links {
    /// Whether calls for this name can be sent.
    pub(super) fn is_up(&self, name: &str) -> bool {
        self.links
            .get(&self.routes.link(name))
            .is_some_and(|link| link.up)
    }

    pub(super) fn is_link_up(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.up)
    }

    /// The reason why no call for this name can be sent. `None` while calls can be sent.
    pub(super) fn error(&self, name: &str) -> Option<Error> {
        self.error_of(self.routes.link(name))
    }

    fn error_of(&self, link: LinkId) -> Option<Error> {
        self.links.get(&link).filter(|link| !link.up)?.down.clone()
    }

    /// Until when callers wait for the server of this name. `None` while it is reachable, or if no
    /// server has ever been reached.
    pub(super) fn outage_ends(&self, name: &str) -> Option<Moment> {
        self.links
            .get(&self.routes.link(name))
            .filter(|link| !link.up)?
            .ends
    }

    /// Whether the server of this name has been unreachable for longer than callers wait for it.
    pub(super) fn is_given_up(&self, name: &str) -> bool {
        self.links
            .get(&self.routes.link(name))
            .is_some_and(|link| link.given_up)
    }

    /// Whether a call that was sent at `sent` may have been answered by a server that did not serve
    /// the name any more.
    pub(super) fn may_have_moved(&self, sent: Moment) -> bool {
        sent < self.rerouted
    }

    /// Whether any server is reachable.
    pub(super) fn any_up(&self) -> bool {
        self.links.values().any(|link| link.up)
    }

    /// The reason why no server is reachable, once all have failed.
    pub(super) fn error_of_all(&self) -> Option<Error> {
        let errors: Option<Vec<Error>> = self
            .routes
            .all()
            .into_iter()
            .map(|id| self.error_of(id))
            .collect();
        errors?.into_iter().next()
    }
}

/// A filter for names.
pub(super) type Which<'a> = &'a dyn Fn(&Name) -> bool;

impl Engine {
    pub(super) fn link_up(&mut self, id: LinkId) {
        self.cx.links.links.insert(
            id,
            Link {
                up: true,
                ..Link::default()
            },
        );
        self.cx.links.ever_up = true;
        self.cx.timers.disarm(Timer::Outage(id));
        self.link_event("connected", EventLevel::Info, "connected".to_owned());
        let routes = self.cx.links.routes.clone();
        self.go_on(&|name| routes.link(name) == id);
    }

    pub(super) fn link_down(&mut self, id: LinkId, error: Error) {
        let ever_up = self.cx.links.ever_up;
        let link = self.cx.links.links.entry(id).or_default();
        // Every failed attempt comes here. Only the first one is reported as a warning.
        let first = link.up || link.down.is_none();
        let was_up = std::mem::replace(&mut link.up, false);
        link.down = Some(error.clone());
        // An address that does not fit the server any more may mean that the server is being
        // replaced, so this error counts as transient.
        let passing = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Server | ErrorKind::InvalidArgument
        );
        let hopeless = !ever_up || !passing;
        let give_up = hopeless || link.given_up;
        if first && ever_up {
            let ends = self.cx.now.after(self.cx.config.outage);
            link.ends = Some(ends);
            self.cx.timers.arm(Timer::Outage(id), ends);
        }
        let level = if first {
            EventLevel::Warn
        } else {
            EventLevel::Debug
        };
        self.link_event("disconnected", level, format!("not connected: {error}"));
        let routes = self.cx.links.routes.clone();
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

    /// The server has been unreachable for longer than callers wait for it.
    pub(super) fn outage_over(&mut self, id: LinkId) {
        let Some(error) = self.cx.links.error_of(id) else {
            return;
        };
        if let Some(link) = self.cx.links.links.get_mut(&id) {
            link.given_up = true;
        }
        let routes = self.cx.links.routes.clone();
        self.fail_for_link(&error, &|name| routes.link(name) == id);
    }

    /// Ends the waits of all callers that need this link. Holds stay trusted until their deadlines.
    fn fail_for_link(&mut self, error: &Error, which: Which<'_>) {
        self.fail_waiters(error, false, which);
        self.fail_entries(error, false, which);
        self.end_queries(error, which);
        if let Some(error) = self.cx.links.error_of_all() {
            self.end_connects(&error);
        }
    }

    /// Other servers serve some names from now on. For these names the engine does the same as
    /// after a reconnect.
    pub(super) fn reroute(&mut self, routes: Routes) {
        let before = std::mem::replace(&mut self.cx.links.routes, routes.clone());
        self.cx.links.rerouted = self.cx.now;
        let old: Vec<LinkId> = self
            .cx
            .links
            .links
            .keys()
            .copied()
            .filter(|id| !routes.leads_to(*id))
            .collect();
        for id in old {
            self.cx.links.links.remove(&id);
            self.cx.timers.disarm(Timer::Outage(id));
        }
        self.go_on(&|name| before.link(name) != routes.link(name));
    }

    /// Continues the work on these names after a reconnect: sends the calls that wait, renews the
    /// holds, which makes the server track their keys, and lets waiters try. Work for a server that
    /// is still unreachable waits. Holds come before clean-ups, because after an outage they may
    /// have little time left.
    fn go_on(&mut self, which: Which<'_>) {
        self.send_queries();
        self.renew_all(which);
        self.resume_commands(which);
        self.cleanups.resume(&mut self.cx, which);
        self.repeat_releases(which);
        self.probe_all(which);
    }

    pub(super) fn link_event(&mut self, kind: &'static str, level: EventLevel, text: String) {
        self.cx.out.push(Output::Event(Event {
            kind,
            level,
            lock: None,
            text,
        }));
    }
}
