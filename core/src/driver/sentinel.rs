//! Finds the primary of a service that sentinels watch, and notices when it changes.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::News;
use super::channels::Reach;
use super::connect::{Address, Connected};
use super::pubsub::Subscriptions;
use crate::engine::Input;
use crate::error::{Error, ErrorKind, Result};
use crate::moment::Moment;
use crate::wire::Name;

/// The channel on which a sentinel announces the new primary of a service.
const SWITCH: &str = "+switch-master";

/// The sentinels of a service.
pub(crate) struct Sentinels {
    hosts: Vec<Address>,
    service: String,
    /// How to connect and log in at the servers of the service. Only host and port are replaced.
    server: Address,
    /// The primary that was replaced last, until its successor is reached. A sentinel that lags
    /// behind still names it, and for a moment it still reports the role of primary.
    deposed: RefCell<Option<(String, u16)>>,
}

/// A result during the search for the primary.
enum Step {
    /// A sentinel has named a primary, or does not know the service.
    Named(Result<Option<(String, u16)>>),
    /// The connection to a named primary was made, or failed.
    Reached(Result<Box<Connected>>),
}

type Steps<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = Step> + 'a>>>;

impl Sentinels {
    pub(crate) fn new(hosts: Vec<Address>, service: String, server: Address) -> Self {
        Sentinels {
            hosts,
            service,
            server,
            deposed: RefCell::default(),
        }
    }

    /// Connects to the primary.
    ///
    /// All sentinels are asked at the same time, so that a silent one costs nothing. A server that
    /// is named is believed if it reports the role of primary itself.
    ///
    /// # Errors
    /// `invalid_argument` if all sentinels answer and none knows the service; else `unavailable`,
    /// or the error of the connection.
    pub(crate) async fn connect(self: Rc<Self>, tracking: bool) -> Result<Connected> {
        let mut steps: Steps<'_> = FuturesUnordered::new();
        for host in &self.hosts {
            steps.push(Box::pin(async {
                Step::Named(host.ask_sentinel(&self.service).await)
            }));
        }
        let (mut named, mut unknown, mut failures) = (Vec::new(), 0, Vec::new());
        while let Some(step) = steps.next().await {
            match step {
                Step::Named(Ok(Some(place))) if named.contains(&place) => {}
                Step::Named(Ok(Some(place))) if self.deposed.borrow().as_ref() == Some(&place) => {
                    failures.push(self.lagging());
                }
                Step::Named(Ok(Some(place))) => {
                    let server = self.server.at(&place.0, place.1);
                    steps.push(Box::pin(async move {
                        Step::Reached(server.primary(tracking).await.map(Box::new))
                    }));
                    named.push(place);
                }
                Step::Named(Ok(None)) => unknown += 1,
                Step::Reached(Ok(connected)) => {
                    self.deposed.replace(None);
                    return Ok(*connected);
                }
                // The error of a named server explains more than that of an unreachable sentinel,
                // so it comes first.
                Step::Reached(Err(error)) => failures.insert(0, error),
                Step::Named(Err(error)) => failures.push(error),
            }
        }
        Err(self.not_found(unknown, failures))
    }

    fn not_found(&self, unknown: usize, failures: Vec<Error>) -> Error {
        let service = &self.service;
        match failures.into_iter().next() {
            None => {
                let text = format!(
                    "no sentinel watches a service named {service:?}; write the name of `sentinel monitor` \
                     behind the hosts in the URL"
                );
                Error::new(ErrorKind::InvalidArgument, text)
            }
            Some(error) => {
                let text = match unknown {
                    0 => format!("service {service:?}: {}", error.message()),
                    _ => format!(
                        "service {service:?}: {unknown} sentinels do not know it; {}",
                        error.message()
                    ),
                };
                error.reworded(text)
            }
        }
    }

    fn lagging(&self) -> Error {
        let text = "a sentinel still names the primary that was replaced; asking again";
        Error::new(ErrorKind::Unavailable, text)
    }

    /// The error when no primary was reached in time.
    pub(super) fn late(&self) -> Error {
        let text = format!(
            "service {:?}: no primary was reached within {:?}; do the sentinels run, and the server that they \
             name?",
            self.service,
            self.server.timeout()
        );
        Error::new(ErrorKind::Unavailable, text)
    }

    pub(super) fn server(&self) -> &Address {
        &self.server
    }
}

/// Listens to a sentinel for announcements of a new primary.
pub(super) struct Watch {
    sentinels: Rc<Sentinels>,
    listener: Subscriptions,
    /// Reports of the listener. The engine does not need them.
    news: News,
    listening: bool,
}

impl Watch {
    pub(super) fn new(sentinels: Rc<Sentinels>) -> Self {
        // Sentinels have no locks.
        let listener =
            Subscriptions::new(sentinels.hosts.clone(), Reach::Classic, "").with_payloads();
        Watch {
            sentinels,
            listener,
            news: News::default(),
            listening: false,
        }
    }

    /// Reads all announcements that have arrived. Returns true if the primary has changed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.listener.poll(cx, &mut self.news);
        self.news.events.clear();
        if self
            .news
            .inputs
            .drain(..)
            .any(|input| matches!(input, Input::Subscribed(_)))
        {
            // Announcements before this subscription may have been missed, so no server is ruled
            // out any more.
            self.sentinels.deposed.replace(None);
        }
        let told = self.listener.take_payloads();
        told.iter().filter(|text| self.is_ours(text)).count() > 0
    }

    /// Reads `service old-host old-port new-host new-port`. If it is about our service, notes the
    /// old primary and returns true.
    fn is_ours(&self, text: &str) -> bool {
        let words: Vec<&str> = text.split(' ').collect();
        let [service, host, port, _, _] = words.as_slice() else {
            return false;
        };
        if *service != self.sentinels.service {
            return false;
        }
        let deposed = port.parse().ok().map(|port| ((*host).to_owned(), port));
        self.sentinels.deposed.replace(deposed);
        true
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        // The first wake starts the subscription, so it is due at once.
        if self.listening {
            self.listener.next_wake()
        } else {
            Some(Moment::default())
        }
    }

    pub(super) fn wake(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.listening, true) {
            self.listener
                .subscribe_to(now, SWITCH.to_owned(), Name::from(SWITCH));
        }
        self.listener.wake(now, &mut self.news);
    }
}
