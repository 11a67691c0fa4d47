//! Finds the primary of a service that sentinels watch.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::connect::{Address, Connected};
use crate::error::{Error, Result};
use crate::url::Host;
use redlatch_proto::sentinel::{Search, Service};

/// The sentinels of a service.
pub(crate) struct Sentinels {
    pub(super) hosts: Vec<Address>,
    pub(super) service: RefCell<Service>,
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
