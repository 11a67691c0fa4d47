//! Connections without encryption, and the addresses of a host.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::select_ok;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::shared_call::SharedCall;
use crate::sys;
use crate::tuning;

/// Looks up host names for a client: one look-up of a name at a time, because each may hang.
#[derive(Clone, Default)]
pub(super) struct Resolver(Arc<Mutex<HashMap<String, SharedCall<Found>>>>);

/// The addresses, or the kind of the error and its text.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

impl Resolver {
    /// The addresses of a host.
    ///
    /// # Errors
    /// When they cannot be looked up, or the system has no thread for that.
    pub(super) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        if let Some(found) = HOSTS.lock().unwrap().get(host) {
            return Ok(found.clone());
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let known = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(host.to_owned()).or_default().clone()
        };
        let name = host.to_owned();
        let look_up = move || {
            let found = (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter);
            found.map_err(|error| (error.kind(), error.to_string()))
        };
        let mut found = match known.ask(look_up).await? {
            Some(found) => found.map_err(|(kind, text)| io::Error::new(kind, text))?,
            None => return Err(io::Error::other("the look-up of the host's name panicked")),
        };
        found.iter_mut().for_each(|address| address.set_port(port));
        Ok(found)
    }
}

/// The addresses of hosts that no name server knows.
#[cfg(test)]
pub(super) static HOSTS: Mutex<std::collections::BTreeMap<String, Vec<SocketAddr>>> =
    Mutex::new(std::collections::BTreeMap::new());

/// A TCP connection, to the address that answers first.
pub(super) async fn tcp(addresses: &[SocketAddr], keep_alive: Duration) -> io::Result<TcpStream> {
    if addresses.is_empty() {
        return Err(io::Error::other("the name of the host has no address"));
    }
    let attempts = addresses
        .iter()
        .copied()
        .map(TcpStream::connect)
        .map(Box::pin);
    let (tcp, _) = select_ok(attempts).await?;
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(&tcp);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(keep_alive))?;
    sys::give_up_after(&socket, tuning::TCP_USER_TIMEOUT)?;
    Ok(tcp)
}
