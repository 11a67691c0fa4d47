//! Connects once to every primary.

use std::rc::Rc;

use futures_util::future::{join_all, try_join_all};
use redlatch_proto::cluster::{self, node_of};
use redlatch_proto::net;

use crate::driver::{Asking, Manner};
use crate::error::{Error, ErrorKind, Result};
use crate::url::{Host, Place, Topology};

/// A connection to each primary.
///
/// # Errors
/// `unavailable`, `auth`, `denied` or `invalid_argument`; for a cluster also if one of its primaries
/// cannot be reached.
pub(crate) async fn primaries(place: &Place, manner: &Manner) -> Result<Vec<Asking>> {
    let plain = Rc::new(manner.plain(place.tls));
    let server = net::Server::of(place, &plain);
    let keeper = |host: Host| Asking::connect(net::Asking::keeper(server.at(&host)), manner);
    Ok(match &place.topology {
        Topology::Single | Topology::Sentinel { .. } => {
            let primary = net::Asking::primary(place, &plain);
            vec![Asking::connect(primary, manner).await?]
        }
        Topology::Quorum { hosts } => {
            // The servers that are there: one looks at them most closely when another is not.
            let asked = hosts.iter().cloned().map(keeper);
            let (there, mut missing): (Vec<_>, Vec<_>) =
                join_all(asked).await.into_iter().partition(Result::is_ok);
            let there: Vec<_> = there.into_iter().flatten().collect();
            match missing.pop() {
                Some(Err(error)) if there.is_empty() => return Err(error),
                _ => there,
            }
        }
        Topology::Cluster { hosts } => {
            let shards = shards(&server, hosts, manner).await?;
            try_join_all(shards.into_iter().map(keeper)).await?
        }
    })
}

/// The primaries of a cluster, as the first of these nodes that answers names them.
async fn shards(server: &net::Server, seeds: &[Host], manner: &Manner) -> Result<Vec<Host>> {
    let asked = seeds.iter().map(|seed| async {
        let seed_at = net::Asking::plain(server.at(seed));
        let mut asking = Asking::connect(seed_at, manner).await?;
        let answer = asking.ask_one(cluster::MAP.to_vec()).await?;
        cluster::map_of(answer, seed)
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
                return Ok(nodes);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
