//! Looks at the servers themselves, for tools: on connections of its own, without an engine.

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::driver::{Address, Manner, Servers};
use crate::error::{Error, ErrorKind, Result};
use crate::primaries::primaries;
use crate::url::{Place, Topology};
use crate::wire::servers;

/// Connections to all primaries: one server, the server that the sentinels name, each shard of a cluster,
/// or each reachable server of a quorum. Every method blocks.
pub struct Inspector {
    runtime: Runtime,
    nodes: Vec<Node>,
    topology: &'static str,
    needed: usize,
    missing: usize,
    sentinels: Vec<Address>,
    /// The service that they watch.
    service: String,
}

struct Node {
    address: Address,
    connection: MultiplexedConnection,
}

impl Inspector {
    pub(crate) fn connect(place: &Place, manner: &Manner) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let servers = Servers::new(place, manner)?;
        let (sentinels, service) = match &servers {
            Servers::Sentinel {
                sentinels, service, ..
            } => (sentinels.clone(), service.clone()),
            _ => Default::default(),
        };
        let connected = runtime.block_on(primaries(servers))?;
        let nodes = connected.into_iter().map(|(address, connection)| Node {
            address,
            connection,
        });
        let nodes: Vec<Node> = nodes.collect();
        Ok(Inspector {
            missing: match &place.topology {
                Topology::Quorum { hosts } => hosts.len().saturating_sub(nodes.len()),
                _ => 0,
            },
            nodes,
            runtime,
            sentinels,
            service,
            topology: match place.topology {
                Topology::Single => "single",
                Topology::Sentinel { .. } => "sentinel",
                Topology::Cluster { .. } => "cluster",
                Topology::Quorum { .. } => "quorum",
            },
            needed: match &place.topology {
                Topology::Quorum { hosts } => servers::majority(hosts.len()),
                _ => 1,
            },
        })
    }

    /// `single`, `sentinel`, `cluster` or `quorum`.
    pub fn topology(&self) -> &'static str {
        self.topology
    }

    /// How many nodes have to have a lock for it to be held: most servers of a quorum, else one.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// How many servers of a quorum cannot be reached.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// The addresses of the primaries. A node is named by its place in this list.
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address.shown()).collect()
    }

    /// What each sentinel knows of the service (`SENTINEL MASTER`), with its address; of another
    /// topology nothing.
    pub fn ask_sentinels(&mut self) -> Vec<(String, Result<Value>)> {
        let question = ["SENTINEL", "MASTER", &self.service];
        let ask = |sentinel: &Address| {
            let asked = async { timeout(sentinel.timeout(), sentinel.ask_once(&question)).await };
            let answer = self.runtime.block_on(asked);
            let answer = answer.unwrap_or_else(|_| Err(sentinel.late()));
            (sentinel.shown(), answer)
        };
        self.sentinels.iter().map(ask).collect()
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
        let Some(Node {
            address,
            connection,
        }) = self.nodes.get_mut(node)
        else {
            return Err(Error::new(
                ErrorKind::Internal,
                format!("there is no node {node}"),
            ));
        };
        let mut pipeline = redis::pipe();
        for words in commands {
            let mut command = redis::Cmd::new();
            for word in words {
                command.arg(word.as_ref());
            }
            pipeline.add_command(command);
        }
        pipeline.ignore_errors();
        let replies = self.runtime.block_on(async {
            let asked = connection.send_packed_commands(&pipeline, 0, commands.len());
            timeout(address.timeout(), asked).await
        });
        let replies = replies
            .map_err(|_| address.late())?
            .map_err(|error| address.explain(&error))?;
        let reply = |value: Value| {
            value
                .extract_error()
                .map_err(|error| address.explain(&error))
        };
        Ok(replies.into_iter().map(reply).collect())
    }
}
