//! Finds the primary of a service that sentinels watch.

use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;

use super::connect::Address;
use crate::error::Result;
use crate::url::Host;
use redlatch_proto::sentinel::{Search, Service};

/// The sentinels of a service.
pub(crate) struct Sentinels {
    hosts: Vec<Address>,
    service: Service,
    /// How to connect and log in at the servers of the service. Only host and port are replaced.
    server: Address,
}

/// A result during the search for the primary.
enum Step {
    /// A sentinel has named a primary, or does not know the service.
    Named(Result<Option<Host>>),
    /// The connection to a named primary was made, or failed.
    Reached(Result<Box<(Address, MultiplexedConnection)>>),
}

type Steps<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = Step> + 'a>>>;

impl Sentinels {
    pub(crate) fn new(hosts: Vec<Address>, service: String, server: Address) -> Self {
        Sentinels {
            hosts,
            service: Service::new(service),
            server,
        }
    }

    /// Connects to the primary.
    ///
    /// # Errors
    /// `invalid_argument` if all sentinels answer and none knows the service; else `unavailable`,
    /// or the error of the connection.
    pub(crate) async fn connect(&self) -> Result<(Address, MultiplexedConnection)> {
        let question = self.service.question();
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
                    if let Some(place) = search.named(&self.service, answer) {
                        let server = self.server.at(&place.name, place.port);
                        steps.push(Box::pin(async move {
                            Step::Reached(server.primary().await.map(Box::new))
                        }));
                    }
                }
                Step::Reached(Ok(connected)) => return Ok(*connected),
                Step::Reached(Err(error)) => search.failed(error),
            }
        }
        Err(search.not_found(&self.service))
    }
}
