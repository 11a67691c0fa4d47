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
use crate::error::{Error, Result};
use crate::moment::Moment;
use crate::url::Host;
use crate::wire::Name;
use redlatch_proto::sentinel::{SWITCH, Search, Service};

/// The sentinels of a service.
pub(crate) struct Sentinels {
    hosts: Vec<Address>,
    service: RefCell<Service>,
    /// How to connect and log in at the servers of the service. Only host and port are replaced.
    server: Address,
}

/// A result during the search for the primary.
enum Step {
    /// A sentinel has named a primary, or does not know the service.
    Named(Result<Option<Host>>),
    /// The connection to a named primary was made, or failed.
    Reached(Result<Box<Connected>>),
}

type Steps<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = Step> + 'a>>>;

impl Sentinels {
    pub(crate) fn new(hosts: Vec<Address>, service: String, server: Address) -> Self {
        Sentinels {
            hosts,
            service: RefCell::new(Service::new(service)),
            server,
        }
    }

    /// Connects to the primary.
    ///
    /// # Errors
    /// `invalid_argument` if all sentinels answer and none knows the service; else `unavailable`,
    /// or the error of the connection.
    pub(crate) async fn connect(self: Rc<Self>, tracking: bool) -> Result<Connected> {
        let question = self.service.borrow().question().map(str::to_owned);
        let question = question.each_ref().map(String::as_str);
        let mut steps: Steps<'_> = FuturesUnordered::new();
        for host in &self.hosts {
            steps.push(Box::pin(async {
                Step::Named(host.ask_sentinel(&question).await)
            }));
        }
        let mut search = Search::default();
        while let Some(step) = steps.next().await {
            match step {
                Step::Named(answer) => {
                    if let Some(place) = search.named(&self.service.borrow(), answer) {
                        let server = self.server.at(&place.name, place.port);
                        steps.push(Box::pin(async move {
                            Step::Reached(server.primary(tracking).await.map(Box::new))
                        }));
                    }
                }
                Step::Reached(Ok(connected)) => {
                    self.service.borrow_mut().trust_all();
                    return Ok(*connected);
                }
                Step::Reached(Err(error)) => search.failed(error),
            }
        }
        Err(search.not_found(&self.service.borrow()))
    }

    /// The error when no primary was reached in time.
    pub(super) fn late(&self) -> Error {
        self.service.borrow().late(self.server.timeout())
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
            self.sentinels.service.borrow_mut().trust_all();
        }
        let told = self.listener.take_payloads();
        let mut service = self.sentinels.service.borrow_mut();
        told.iter().filter(|text| service.heed(text)).count() > 0
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
