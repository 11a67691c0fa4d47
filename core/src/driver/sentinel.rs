//! Finding the primary of a service that sentinels watch, and noticing when it is another one.

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

/// The channel on which a sentinel tells that a service has a new primary.
const SWITCH: &str = "+switch-master";

/// The sentinels of a service.
pub(super) struct Sentinels {
    hosts: Vec<Address>,
    service: String,
    /// How to log in at the servers of the service; only the host is another one.
    server: Address,
    /// The primary that was replaced last, until its successor is reached: a sentinel that lags
    /// behind still names it, and for a moment it still says that it is the primary.
    deposed: RefCell<Option<(String, u16)>>,
}

/// What comes back while the primary is looked for.
enum Step {
    /// A sentinel has named somebody, or does not know the service.
    Named(Result<Option<(String, u16)>>),
    /// Whoever was named was reached.
    Reached(Result<Box<Connected>>),
}

type Steps<'a> = FuturesUnordered<Pin<Box<dyn Future<Output = Step> + 'a>>>;

impl Sentinels {
    pub(super) fn new(hosts: Vec<Address>, service: String, server: Address) -> Self {
        Sentinels { hosts, service, server, deposed: RefCell::default() }
    }

    /// Connects to the primary.
    ///
    /// All sentinels are asked at once, so that one that is silent costs nothing; whoever is named
    /// is believed when it says itself that it is the primary.
    ///
    /// # Errors
    /// `invalid_argument` if all sentinels answer and none knows the service; else `unavailable`, or
    /// what the connection failed with.
    pub(super) async fn connect(self: Rc<Self>, tracking: bool) -> Result<Connected> {
        let mut steps: Steps<'_> = FuturesUnordered::new();
        for host in &self.hosts {
            steps.push(Box::pin(async { Step::Named(host.ask_sentinel(&self.service).await) }));
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
                // The server of the service says more than a sentinel that cannot be reached.
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
                Error::new(error.kind(), text)
            }
        }
    }

    fn lagging(&self) -> Error {
        let text = "a sentinel still names the primary that was replaced; asking again";
        Error::new(ErrorKind::Unavailable, text)
    }

    /// No primary was reached in time.
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

/// Listens to a sentinel for a new primary.
pub(super) struct Watch {
    sentinels: Rc<Sentinels>,
    listener: Subscriptions,
    /// What the listener tells; the engine has no use for it.
    news: News,
    listening: bool,
}

impl Watch {
    pub(super) fn new(sentinels: Rc<Sentinels>) -> Self {
        let listener = Subscriptions::new(sentinels.hosts.clone(), Reach::Classic).with_payloads();
        Watch { sentinels, listener, news: News::default(), listening: false }
    }

    /// Takes in what has come. True if the primary is another one now.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.listener.poll(cx, &mut self.news);
        self.news.events.clear();
        if self.news.inputs.drain(..).any(|input| matches!(input, Input::Subscribed(_))) {
            // What was told meanwhile is unknown: nobody is ruled out.
            self.sentinels.deposed.replace(None);
        }
        let told = self.listener.take_payloads();
        told.iter().filter(|text| self.is_ours(text)).count() > 0
    }

    /// Reads `service old-host old-port new-host new-port`.
    fn is_ours(&self, text: &str) -> bool {
        let words: Vec<&str> = text.split(' ').collect();
        let [service, host, port, _, _] = words.as_slice() else { return false };
        if *service != self.sentinels.service {
            return false;
        }
        let deposed = port.parse().ok().map(|port| ((*host).to_owned(), port));
        self.sentinels.deposed.replace(deposed);
        true
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        // Before the first wake there is nothing to listen with.
        if self.listening { self.listener.next_wake() } else { Some(Moment::default()) }
    }

    pub(super) fn wake(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.listening, true) {
            self.listener.subscribe_to(now, SWITCH.to_owned(), Name::from(SWITCH));
        }
        self.listener.wake(now, &mut self.news);
    }
}
