//! The way to the sockets, and what comes from them.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::connecting::{self, Doubt, TlsFault};
use crate::error::Error;

use super::server::{Opened, Server};

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
    Opened(Opened),
    Bytes(&'a [u8]),
    /// It is gone, or could not be made.
    Closed(Lost<'a>),
}

/// Why a connection is gone.
#[derive(Default)]
pub struct Lost<'a> {
    pub text: &'a str,
    pub tls: Option<TlsFault>,
    /// This process or machine has no descriptor, thread, memory or port left for now.
    pub limits: bool,
    pub cause: Option<Arc<dyn StdError + Send + Sync>>,
    /// The error that tells why nothing was tried.
    pub untried: Option<Error>,
}

impl Lost<'_> {
    /// The error for a connection that could not be made. `spoken`: it was made, and ended during
    /// the log-in.
    pub(crate) fn unreachable(&self, server: &Server, spoken: bool) -> Error {
        let shown = server.shown();
        let doubt = match server.manner.http {
            _ if self.limits => Doubt::Limits,
            true => Doubt::NoHttp,
            false if spoken && !server.manner.tls => Doubt::Closes,
            false => Doubt::NotRunning,
        };
        match (&self.untried, self.tls) {
            (Some(error), _) => error.clone(),
            (None, Some(fault)) => self.with_cause(fault.error(&shown, self.text)),
            (None, None) => self.with_cause(connecting::unreachable(&shown, self.text, doubt)),
        }
    }

    /// The error for a connection that was in use.
    pub(crate) fn broken(&self, server: &Server) -> Error {
        self.with_cause(server.broken(&format!("broke: {}", self.text)))
    }

    fn with_cause(&self, error: Error) -> Error {
        match &self.cause {
            Some(cause) => error.caused_by(cause.clone()),
            None => error,
        }
    }
}
