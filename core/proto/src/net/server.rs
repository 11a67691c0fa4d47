//! The servers that connections lead to, and how a client connects.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::connecting::{self, Doubt};
use crate::error::Error;
use crate::url::{At, Host, Login, Place};
use crate::value::ServerError;
use crate::wire::Publish;

/// The protocol that a client speaks with its server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP3 if the server supports it, else RESP2.
    #[default]
    Auto,
    /// RESP2. It has no client tracking.
    Resp2,
    /// RESP3; connecting fails if the server does not support it.
    Resp3,
}

impl Protocol {
    /// The names, as options take them.
    #[doc(hidden)]
    pub const NAMES: [&str; 3] = ["auto", "resp2", "resp3"];

    #[doc(hidden)]
    pub fn named(name: &str) -> Option<Protocol> {
        [Protocol::Auto, Protocol::Resp2, Protocol::Resp3]
            .into_iter()
            .find(|protocol| protocol.name() == name)
    }

    #[doc(hidden)]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto",
            Protocol::Resp2 => "resp2",
            Protocol::Resp3 => "resp3",
        }
    }
}

/// How releases are published in a cluster, and where waiters listen. Every program that uses a
/// lock has to listen where the others publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ClusterPubsub {
    /// Sharded pub/sub at nodes that support it (Redis 7 and newer), else to all nodes, as Redisson
    /// does.
    #[default]
    Auto,
    /// Sharded pub/sub (`SPUBLISH`).
    Sharded,
    /// Classic pub/sub, to all nodes (`PUBLISH`).
    Classic,
    /// Both ways, for fleets in which some programs listen on one kind of channel and some on the
    /// other.
    Both,
}

impl ClusterPubsub {
    /// The words for the variants, in their order.
    #[doc(hidden)]
    pub const ALL: [&'static str; 4] = ["auto", "sharded", "classic", "both"];

    #[doc(hidden)]
    pub fn name(self) -> &'static str {
        match self {
            ClusterPubsub::Auto => "auto",
            ClusterPubsub::Sharded => "sharded",
            ClusterPubsub::Classic => "classic",
            ClusterPubsub::Both => "both",
        }
    }

    #[doc(hidden)]
    pub fn named(text: &str) -> Option<Self> {
        let all = [
            ClusterPubsub::Auto,
            ClusterPubsub::Sharded,
            ClusterPubsub::Classic,
            ClusterPubsub::Both,
        ];
        all.into_iter().find(|value| value.name() == text)
    }

    /// How to publish at a node; `sharded` says whether the node supports sharded pub/sub.
    #[doc(hidden)]
    pub fn publish(self, sharded: bool) -> Publish {
        match self {
            ClusterPubsub::Auto if sharded => Publish::Sharded,
            ClusterPubsub::Auto | ClusterPubsub::Classic => Publish::Classic,
            ClusterPubsub::Sharded => Publish::Sharded,
            ClusterPubsub::Both => Publish::Both,
        }
    }
}

/// How a client connects, whatever the server.
pub struct Manner {
    pub tls: bool,
    /// Commands go over HTTP: nothing is pushed, and no connection has a name or channels.
    pub http: bool,
    /// The limit for one attempt, set-up included.
    pub timeout: Duration,
    pub keep_alive: Duration,
    /// A server that runs for less is not used, as it may have lost its locks.
    pub least_uptime: Duration,
    pub protocol: Protocol,
    pub tracking: bool,
    /// The program provides user and password for each connection to a server that keeps locks.
    pub provided: bool,
    pub pubsub: ClusterPubsub,
    pub name: String,
    pub uuid: String,
    /// The client is being closed, and its program may end before it hears that a script is unknown.
    pub closing: Cell<bool>,
}

/// Where and how to connect.
pub struct Server {
    pub at: At,
    pub login: Login,
    /// User and password come with each connection that is open.
    pub provided: bool,
    pub manner: Rc<Manner>,
    /// The address to connect to, wherever the name of the host leads by now.
    pub peer: Option<SocketAddr>,
    /// Addresses of the host at which there was a replica. The others come first.
    pub replicas: RefCell<Vec<SocketAddr>>,
}

/// A connection that is open.
#[derive(Default)]
pub struct Opened {
    /// For the last group of the uuids of owners.
    pub identity: u64,
    /// User and password, where the program provides them ([`Server::provided`]).
    pub login: Option<Login>,
    /// The address that it leads to. Connections that go with it lead there, too, wherever the name
    /// of the host leads by then.
    pub peer: Option<SocketAddr>,
}

impl Server {
    /// The address, as it is shown in messages.
    pub fn shown(&self) -> String {
        self.at.to_string()
    }

    /// The servers that keep the locks: that of the URL, or any other of them, whose host replaces it.
    pub fn of(place: &Place, manner: &Rc<Manner>) -> Rc<Server> {
        let at = place.at.clone();
        Rc::new(Server::new(at, &place.server, manner.provided, manner))
    }

    /// The sentinels. They have users of their own.
    pub fn sentinels(place: &Place, hosts: &[Host], manner: &Rc<Manner>) -> Vec<Rc<Server>> {
        let sentinel = Server::new(place.at.clone(), &place.sentinel, false, manner);
        hosts.iter().map(|host| sentinel.at(host)).collect()
    }

    fn new(at: At, login: &Login, provided: bool, manner: &Rc<Manner>) -> Server {
        Server {
            at,
            login: login.clone(),
            provided,
            manner: manner.clone(),
            peer: None,
            replicas: RefCell::default(),
        }
    }

    /// The same settings for another server.
    pub fn at(&self, host: &Host) -> Rc<Server> {
        let at = At::Tcp(host.clone());
        Rc::new(Server::new(at, &self.login, self.provided, &self.manner))
    }

    /// This server, as an open connection leads to it.
    pub(crate) fn opened(&self, opened: &Opened) -> Rc<Server> {
        let login = Login {
            database: self.login.database,
            ..opened.login.as_ref().unwrap_or(&self.login).clone()
        };
        Rc::new(Server {
            peer: opened.peer,
            ..Server::new(self.at.clone(), &login, self.provided, &self.manner)
        })
    }

    pub(crate) fn is_same(&self, other: &Server) -> bool {
        self.at == other.at && self.peer == other.peer
    }

    /// There is a replica at this address: the next connection tries the others of the host first.
    pub(crate) fn shun(&self, peer: SocketAddr) {
        let mut replicas = self.replicas.borrow_mut();
        if replicas.contains(&peer) {
            replicas.clear();
        }
        replicas.push(peer);
    }

    /// The error for a connection that was lost while it was in use.
    pub(crate) fn broken(&self, why: &str) -> Error {
        connecting::broken(&self.shown(), why)
    }

    /// The error for an attempt that took too long.
    pub(crate) fn late(&self) -> Error {
        connecting::late(&self.shown(), self.manner.tls, self.manner.timeout)
    }

    /// The error for an answer that no server of Redis gives.
    pub(crate) fn garbled(&self, why: &str) -> Error {
        let doubt = match *self.manner {
            Manner { http: true, .. } => Doubt::NoHttp,
            Manner { tls: false, .. } => Doubt::WantsTls,
            _ => Doubt::NotRunning,
        };
        connecting::unreachable(&self.shown(), why, doubt)
    }

    /// The error for an error reply.
    pub(crate) fn refused(&self, error: &ServerError) -> Error {
        let detail = error.details().unwrap_or_default();
        connecting::refused(&self.shown(), error.code(), detail)
    }
}
