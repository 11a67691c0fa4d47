//! Looks at the servers themselves, for tools: on connections of its own, without an engine.

use std::rc::Rc;

use futures_util::future::join_all;
use redlatch_proto::net;
use redlatch_proto::value::Value;
use tokio::runtime::{Builder, Runtime};

use crate::driver::{Asking, Manner};
use crate::error::{Error, ErrorKind, Result};
use crate::primaries::primaries;
use crate::url::{Place, Topology};
use crate::wire::servers;

/// Connections to all primaries: one server, the server that the sentinels name, each shard of a cluster,
/// or each reachable server of a quorum. Every method blocks.
pub struct Inspector {
    runtime: Runtime,
    nodes: Vec<Node>,
    place: Place,
    manner: Manner,
}

struct Node {
    shown: String,
    asking: Asking,
}

impl Inspector {
    pub(crate) fn connect(place: Place, manner: Manner) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let connected = runtime.block_on(primaries(&place, &manner))?;
        let node = |asking: Asking| Node {
            shown: asking.server().map(|at| at.shown()).unwrap_or_default(),
            asking,
        };
        Ok(Inspector {
            nodes: connected.into_iter().map(node).collect(),
            runtime,
            place,
            manner,
        })
    }

    /// `single`, `sentinel`, `cluster` or `quorum`.
    pub fn topology(&self) -> &'static str {
        match self.place.topology {
            Topology::Single => "single",
            Topology::Sentinel { .. } => "sentinel",
            Topology::Cluster { .. } => "cluster",
            Topology::Quorum { .. } => "quorum",
        }
    }

    /// How many nodes have to have a lock for it to be held: most servers of a quorum, else one.
    pub fn needed(&self) -> usize {
        match &self.place.topology {
            Topology::Quorum { hosts } => servers::majority(hosts.len()),
            _ => 1,
        }
    }

    /// How many servers of a quorum cannot be reached.
    pub fn missing(&self) -> usize {
        match &self.place.topology {
            Topology::Quorum { hosts } => hosts.len().saturating_sub(self.nodes.len()),
            _ => 0,
        }
    }

    /// The addresses of the primaries. A node is named by its place in this list.
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.shown.clone()).collect()
    }

    /// What each sentinel knows of the service (`SENTINEL MASTER`), with its address; of another
    /// topology nothing.
    pub fn ask_sentinels(&mut self) -> Vec<(String, Result<Value>)> {
        let Topology::Sentinel { hosts, service } = &self.place.topology else {
            return Vec::new();
        };
        let question = vec!["SENTINEL", "MASTER", service];
        let manner = Rc::new(self.manner.plain(self.place.tls));
        let sentinels = net::Server::sentinels(&self.place, hosts, &manner);
        let ask = async |sentinel: Rc<net::Server>| {
            let shown = sentinel.shown();
            let answer = async {
                let sentinel = net::Asking::plain(sentinel);
                let mut sentinel = Asking::connect(sentinel, &self.manner).await?;
                sentinel.ask_one(question.clone()).await
            };
            (shown, answer.await)
        };
        // One that is silent holds up no other.
        self.runtime
            .block_on(join_all(sentinels.into_iter().map(ask)))
    }

    /// Sends commands to a node in one round trip. Each has a reply of its own, which may be an
    /// error reply.
    ///
    /// # Errors
    /// `unavailable` if the node does not answer within the option `connect_timeout`, or is gone.
    pub fn ask<W: AsRef<[u8]>>(
        &mut self,
        node: usize,
        commands: &[Vec<W>],
    ) -> Result<Vec<Result<Value>>> {
        let Some(node) = self.nodes.get_mut(node) else {
            let text = format!("there is no node {node}");
            return Err(Error::new(ErrorKind::Internal, text));
        };
        self.runtime.block_on(node.asking.ask(commands))
    }
}
