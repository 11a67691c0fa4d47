//! Connects once to every primary.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis::aio::MultiplexedConnection;
use redlatch_proto::cluster::node_of;

use crate::driver::{Address, Sentinels, Servers};
use crate::error::{Error, ErrorKind, Result};
use crate::url::Host;

/// A connection to each primary, with the address that it leads to.
///
/// # Errors
/// `unavailable`, `auth`, `denied` or `invalid_argument`; for a cluster also if one of its primaries
/// cannot be reached.
pub(crate) async fn primaries(servers: Servers) -> Result<Vec<(Address, MultiplexedConnection)>> {
    Ok(match servers {
        Servers::Single(address) => vec![within(&address.clone(), address.commands()).await?],
        Servers::Sentinel {
            sentinels,
            service,
            server,
        } => {
            let sentinels = Sentinels::new(sentinels, service, server.clone());
            vec![within(&server, sentinels.connect()).await?]
        }
        Servers::Quorum(servers) => {
            // The servers that are there: one looks at them most closely when another is not.
            let asked = servers
                .into_iter()
                .map(|server| async move { within(&server.clone(), server.commands()).await });
            let (there, mut missing): (Vec<_>, Vec<_>) =
                join_all(asked).await.into_iter().partition(Result::is_ok);
            let there: Vec<_> = there.into_iter().flatten().collect();
            match missing.pop() {
                Some(Err(error)) if there.is_empty() => return Err(error),
                _ => there,
            }
        }
        Servers::Cluster { server, seeds } => {
            let nodes = shards(&server, &seeds).await?;
            try_join_all(
                nodes
                    .into_iter()
                    .map(|node| async move { within(&node.clone(), node.commands()).await }),
            )
            .await?
        }
    })
}

/// The primaries of a cluster, as the first of these nodes that answers names them.
async fn shards(server: &Address, seeds: &[Host]) -> Result<Vec<Address>> {
    let asked = seeds.iter().map(|seed| async {
        let seed = server.at(&seed.name, seed.port);
        within(&seed, seed.clone().ask_for_slots()).await
    });
    let mut failure = Error::new(ErrorKind::InvalidArgument, "the URL names no node");
    for answer in join_all(asked).await {
        match answer {
            Ok(ranges) => {
                let mut nodes: Vec<Host> = Vec::new();
                for node in ranges.into_iter().map(node_of) {
                    if !nodes.contains(&node) {
                        nodes.push(node);
                    }
                }
                let nodes = nodes.iter().map(|node| server.at(&node.name, node.port));
                return Ok(nodes.collect());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Limits an attempt to the option `connect_timeout`.
async fn within<T>(address: &Address, attempt: impl Future<Output = Result<T>>) -> Result<T> {
    let limit: Duration = address.timeout();
    match tokio::time::timeout(limit, attempt).await {
        Ok(done) => done,
        Err(_) => Err(address.late()),
    }
}
