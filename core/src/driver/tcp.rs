//! Connections without encryption.

use std::io;

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};

use crate::sys;

/// A TCP connection, to the first address of the host that answers.
pub(super) async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let attempts: Vec<_> = lookup_host((host, port))
        .await?
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(io::Error::other("the name of the host has no address"));
    }
    let (tcp, _) = select_ok(attempts).await?;
    tcp.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&tcp);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    sys::set_user_timeout(&socket, settings)?;
    Ok(tcp)
}
