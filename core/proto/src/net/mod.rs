//! The connections of a client, as machines without I/O: what goes to a server and what its bytes
//! mean.
//!
//! A driver has the sockets. It does what [`Io`] asks for (connect, write, close) and tells [`Net`]
//! what comes of it, as an [`Arrival`]. RESP (`resp`), the hand-shake (`handshake`), one connection
//! that is kept (`link`, and `live` while it is up), the channels (`subscriptions`), one server
//! (`one`, `connections`), a cluster and a quorum are here, so that a simulation can play all of it.

mod asking;
mod cluster;
mod connections;
mod handshake;
mod io;
mod link;
mod live;
mod one;
mod quorum;
mod resp;
mod server;
mod subscriptions;
#[cfg(test)]
pub mod tests;
mod topology;

pub use asking::Asking;
pub use io::{Arrival, ConnId, Io, Lost};
pub use link::Calls;
pub use resp::{Item, Reader};
pub use server::{ClusterPubsub, Manner, Opened, Protocol, Server};
pub use topology::Net;
