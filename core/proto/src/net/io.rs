//! The way to the sockets, and what comes from them.

use crate::connecting::{self, Doubt, TlsFault};
use crate::error::Error;

use super::server::Server;

/// The number of a connection. A driver gives each one a number of its own.
pub type ConnId = u64;

/// The way to the sockets. A driver may do all of it later, in this order.
pub trait Io {
    /// Opens a connection. An [`Arrival`] tells when it is open, or that it cannot be.
    fn connect(&mut self, server: &Server) -> ConnId;

    fn write(&mut self, conn: ConnId, bytes: &[u8]);

    /// Closes the connection. Nothing that arrives on it is of interest any more.
    fn close(&mut self, conn: ConnId);

    /// A random number for the jitter of pauses.
    fn random(&mut self) -> u32;
}

/// An event of a connection.
pub enum Arrival<'a> {
    /// It is open. The number is for the last group of the uuids of owners.
    Opened(u64),
    Bytes(&'a [u8]),
    /// It is gone, or could not be made.
    Closed(Lost<'a>),
}

/// Why a connection is gone.
pub struct Lost<'a> {
    pub text: &'a str,
    pub tls: Option<TlsFault>,
}

impl Lost<'_> {
    /// The error for a connection that could not be made. `spoken`: it was made, and ended during
    /// the log-in.
    pub(crate) fn unreachable(&self, server: &Server, spoken: bool) -> Error {
        let shown = server.shown();
        match self.tls {
            Some(fault) => fault.error(&shown, self.text),
            None => {
                let doubt = match server.manner.http {
                    true => Doubt::NoHttp,
                    false if spoken && !server.manner.tls => Doubt::Closes,
                    false => Doubt::NotRunning,
                };
                connecting::unreachable(&shown, self.text, doubt)
            }
        }
    }
}
