//! How to connect, and what is drawn for each connection.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::net;
use tokio::net::TcpStream;

use super::tcp::{Resolver, tcp};
use super::tls::Tls;
use crate::credentials::Provider;
use crate::error::Result;
use crate::options::{ClientOptions, ClusterPubsub, Protocol};

/// How to connect, whatever the server.
#[derive(Clone)]
pub(crate) struct Manner {
    /// The limit for one attempt, set-up included.
    pub(super) timeout: Duration,
    /// Shown by CLIENT LIST.
    pub(super) client_name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) keep_alive: Duration,
    pub(super) tls: Option<Tls>,
    /// Asked for user and password at each connection.
    pub(super) provider: Option<Provider>,
    /// A server that runs for less is not used, as it may have lost its locks.
    pub(super) least_uptime: Duration,
    resolver: Resolver,
}

impl Manner {
    /// # Errors
    /// `invalid_argument` for certificates that cannot be used.
    pub(crate) fn new(
        options: &ClientOptions,
        encrypted: bool,
        provider: Option<Provider>,
    ) -> Result<Self> {
        options.check_tls(encrypted)?;
        let tls = encrypted.then(|| Tls::new(options)).transpose()?;
        Ok(Manner {
            timeout: options.connect_timeout,
            client_name: options.client_name.as_str().into(),
            protocol: options.protocol,
            keep_alive: options.keep_alive,
            tls,
            provider: provider.map(Provider::for_client),
            least_uptime: Duration::ZERO,
            resolver: Resolver::default(),
        })
    }

    /// The manner of connections to the servers of a quorum.
    pub(crate) fn for_quorum(self, options: &ClientOptions) -> Self {
        Manner {
            least_uptime: options.restart_delay,
            ..self
        }
    }

    /// The same for the connections without I/O, as tools have them.
    pub(crate) fn plain(&self, tls: bool) -> net::Manner {
        net::Manner {
            tls,
            http: false,
            timeout: self.timeout,
            keep_alive: self.keep_alive,
            least_uptime: self.least_uptime,
            // What tools ask has no answer for which RESP2 has no type.
            protocol: Protocol::Resp2,
            tracking: false,
            provided: self.provider.is_some(),
            pubsub: ClusterPubsub::Auto,
            name: self.client_name.to_string(),
            uuid: String::new(),
            closing: Cell::new(false),
        }
    }

    /// The same manner, with a name for the connections.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.client_name = name.into();
        self
    }

    /// A TCP connection to the host, or to `peer` wherever the name leads by now. The addresses at
    /// which there was a replica come last.
    pub(super) async fn tcp(
        &self,
        host: &str,
        port: u16,
        peer: Option<SocketAddr>,
        replicas: &[SocketAddr],
    ) -> io::Result<TcpStream> {
        let keep_alive = self.keep_alive;
        if let Some(peer) = peer {
            return tcp(&[peer], keep_alive).await;
        }
        let found = self.resolver.addresses(host, port).await?;
        let is_replica = |address: &SocketAddr| replicas.contains(address);
        let (replicas, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_replica);
        match tcp(&others, keep_alive).await {
            Err(_) if !replicas.is_empty() => tcp(&replicas, keep_alive).await,
            made => made,
        }
    }
}

/// A random number for the last group of the uuid in all owners made from now on. It comes from the
/// operating system at this moment, because processes restored from one snapshot have everything
/// else in common.
pub(super) fn fresh_identity() -> u64 {
    let (_, low) = uuid::Uuid::new_v4().as_u64_pair();
    low & 0xffff_ffff_ffff
}

/// A random number, to spread what many clients do at once.
pub(super) fn random() -> u32 {
    uuid::Uuid::new_v4().as_u128() as u32
}
