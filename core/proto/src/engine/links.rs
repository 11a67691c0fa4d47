//! The server of each name, and whether it can be reached.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
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

    pub(super) fn leads_to(&self, link: LinkId) -> bool {
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

    // ---- changes ----

    pub(super) fn set_up(&mut self, id: LinkId) {
        let up = Link {
            up: true,
            ..Link::default()
        };
        self.links.insert(id, up);
        self.ever_up = true;
    }

    /// The connection is gone, or an attempt to connect failed. `ends`: the end of an outage that
    /// begins now.
    pub(super) fn set_down(&mut self, id: LinkId, error: &Error, ends: Moment) -> Down {
        let link = self.links.entry(id).or_default();
        let first = link.up || link.down.is_none();
        let was_up = std::mem::replace(&mut link.up, false);
        link.down = Some(error.clone());
        // An address that does not fit the server any more may mean that the server is being
        // replaced, so this error counts as transient.
        let passing = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Server | ErrorKind::InvalidArgument
        );
        let begins_outage = first && self.ever_up;
        if begins_outage {
            link.ends = Some(ends);
        }
        Down {
            first,
            was_up,
            begins_outage,
            give_up: !self.ever_up || !passing || link.given_up,
        }
    }

    /// Callers do not wait for this server any more. Returns why it is down, if it is.
    pub(super) fn give_up(&mut self, id: LinkId) -> Option<Error> {
        let error = self.error_of(id)?;
        if let Some(link) = self.links.get_mut(&id) {
            link.given_up = true;
        }
        Some(error)
    }

    /// Changes the servers of the names. Returns the routes before, and the links that no name
    /// leads to any more.
    pub(super) fn reroute(&mut self, now: Moment, routes: Routes) -> (Routes, Vec<LinkId>) {
        let is_left = |id: &LinkId| !routes.leads_to(*id);
        let left: Vec<LinkId> = self.links.keys().copied().filter(is_left).collect();
        for id in &left {
            self.links.remove(id);
        }
        self.rerouted = now;
        (std::mem::replace(&mut self.routes, routes), left)
    }
}

/// The consequences of a connection that is gone.
pub(super) struct Down {
    /// This is the first failure since the server was reached, or at all.
    pub(super) first: bool,
    pub(super) was_up: bool,
    pub(super) begins_outage: bool,
    /// No caller waits for this server.
    pub(super) give_up: bool,
}

/// A filter for names.
pub(super) type Which<'a> = &'a dyn Fn(&Name) -> bool;
