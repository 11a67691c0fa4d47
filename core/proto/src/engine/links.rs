//! The server of each name, and whether it can be reached.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::maps::SortedMap;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::Name;
use crate::wire::servers::{key_and_server, majority};
use crate::wire::slots::slot;

/// Identifies a server, or the place of a server that is not known yet. The driver draws it and
/// never reuses it.
pub type LinkId = u32;

/// The link of all names before there are routes. Later it is the link of the names that no server
/// serves.
pub const STANDALONE: LinkId = 0;

/// The link to the server of each name.
#[derive(Clone, Default)]
pub struct Routes(Table);

#[derive(Clone, Default)]
enum Table {
    /// There is one link.
    #[default]
    One,
    /// In a cluster the slot of the name decides.
    Slots(Arc<[LinkId]>),
    /// In a quorum the server that stands in the name. The links are counted from 1.
    Servers(Arc<[Arc<str>]>),
}

impl fmt::Debug for Routes {
    /// Prints ranges of slots, because a line for each slot would be unreadable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges = f.debug_map();
        match &self.0 {
            Table::One => {}
            Table::Slots(links) => {
                let mut slot = 0;
                for range in links.chunk_by(PartialEq::eq) {
                    ranges.entry(&(slot..slot + range.len()), &range[0]);
                    slot += range.len();
                }
            }
            Table::Servers(servers) => {
                ranges.entries(servers.iter().zip(1..));
            }
        }
        ranges.finish()
    }
}

impl Routes {
    /// One link for each slot.
    pub fn by_slot(links: Arc<[LinkId]>) -> Self {
        Routes(Table::Slots(links))
    }

    /// One link for each of these servers, counted from 1. None of them knows of the others.
    pub fn by_server(servers: Arc<[Arc<str>]>) -> Self {
        Routes(Table::Servers(servers))
    }

    pub fn link(&self, name: &str) -> LinkId {
        let link = match &self.0 {
            Table::One => None,
            Table::Slots(links) => links.get(usize::from(slot(name))).copied(),
            Table::Servers(servers) => {
                let (_, server) = key_and_server(name);
                let mut servers = servers.iter().zip(1..);
                let own = servers.find(|(known, _)| Some(&***known) == server);
                own.map(|(_, link)| link)
            }
        };
        link.unwrap_or(STANDALONE)
    }

    /// The group of a name: names of one group can share a call.
    pub(super) fn group(&self, name: &str) -> u16 {
        match &self.0 {
            Table::Slots(_) => slot(name),
            Table::One | Table::Servers(_) => 0,
        }
    }

    /// Whether the names of one call must have the same slot.
    pub(super) fn is_split(&self) -> bool {
        matches!(self.0, Table::Slots(_))
    }

    pub(crate) fn leads_to(&self, link: LinkId) -> bool {
        match &self.0 {
            Table::Slots(links) => links.contains(&link),
            Table::One | Table::Servers(_) => self.all().contains(&link),
        }
    }

    /// How many of the servers have to be reached before anything can be done.
    fn needed(&self) -> usize {
        match &self.0 {
            Table::One | Table::Slots(_) => 1,
            Table::Servers(servers) => majority(servers.len()),
        }
    }

    /// How many servers of a quorum can fail. `None` without a quorum.
    pub(super) fn spare(&self) -> Option<usize> {
        match &self.0 {
            Table::One | Table::Slots(_) => None,
            Table::Servers(servers) => Some(servers.len() - self.needed()),
        }
    }

    fn all(&self) -> Vec<LinkId> {
        let mut all = match &self.0 {
            Table::One => vec![STANDALONE],
            Table::Slots(links) => links.to_vec(),
            Table::Servers(servers) => (1..).take(servers.len()).collect(),
        };
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
    /// When the connection was made.
    since: Moment,
    /// The kinds of the errors that were told of this outage. It goes on while connections are made
    /// and end at once, as at a replica.
    told: Vec<ErrorKind>,
    /// Whether the end of a connection was told, and not yet that it was made again.
    owes: bool,
}

/// The connections to all servers.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) routes: Routes,
    links: SortedMap<LinkId, Link>,
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

    /// Whether the server of this name is unreachable and nobody waits for it.
    pub(super) fn is_hopeless(&self, name: &str) -> bool {
        let link = self.links.get(&self.routes.link(name));
        link.is_some_and(|link| {
            !link.up && link.down.is_some() && (link.given_up || link.ends.is_none())
        })
    }

    /// Whether a call that was sent at `sent` may have been answered by a server that did not serve
    /// the name any more.
    pub(super) fn may_have_moved(&self, sent: Moment) -> bool {
        sent < self.rerouted
    }

    /// Whether enough servers are reachable: any, of a quorum most.
    pub(super) fn is_reached(&self) -> bool {
        let up = self.links.values().filter(|link| link.up);
        up.count() >= self.routes.needed()
    }

    /// The reason why not enough servers are reachable, once so many have failed.
    pub(super) fn error_of_all(&self) -> Option<Error> {
        let all = self.routes.all();
        let spare = all.len().checked_sub(self.routes.needed())?;
        let errors: Vec<Error> = all.iter().filter_map(|id| self.error_of(*id)).collect();
        errors.into_iter().nth(spare)
    }

    // ---- changes ----

    /// Returns whether that is news: it is not where nobody was told that a connection had ended.
    pub(super) fn set_up(&mut self, now: Moment, id: LinkId) -> bool {
        let before = self.links.remove(&id);
        let news = before.as_ref().is_none_or(|link| link.owes);
        let up = Link {
            up: true,
            since: now,
            told: before.map(|link| link.told).unwrap_or_default(),
            ..Link::default()
        };
        self.links.insert(id, up);
        self.ever_up = true;
        news
    }

    /// The connection is gone, or an attempt to connect failed.
    pub(super) fn set_down(&mut self, now: Moment, id: LinkId, outage: Outage<'_>) -> Down {
        let Outage { error, ends, idle } = outage;
        let link = self.links.or_default(id);
        let first = link.up || link.down.is_none();
        let was_up = std::mem::replace(&mut link.up, false);
        if was_up && link.since.until(now) >= tuning::GOOD_CONNECTION {
            link.told.clear();
        }
        let is_known = link.told.contains(&error.kind());
        let news = !(is_known || was_up && idle);
        if news {
            link.told.push(error.kind());
            link.owes = true;
        }
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
            news,
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

/// A connection that is gone, or cannot be made.
pub(super) struct Outage<'a> {
    pub(super) error: &'a Error,
    /// The end of an outage that begins now.
    pub(super) ends: Moment,
    /// Nobody needed the connection, so it is no news unless it cannot be made again.
    pub(super) idle: bool,
}

/// The consequences of a connection that is gone.
pub(super) struct Down {
    /// Nobody was told of such a failure in this outage.
    pub(super) news: bool,
    pub(super) was_up: bool,
    pub(super) begins_outage: bool,
    /// No caller waits for this server.
    pub(super) give_up: bool,
}

/// A filter for names.
pub(super) type Which<'a> = &'a dyn Fn(&Name) -> bool;
