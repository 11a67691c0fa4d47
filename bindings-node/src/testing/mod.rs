//! The server in memory, for tests of programs.

use napi_derive::napi;
use redlatch::embed::read_duration;
use redlatch::{Error, ErrorKind, Result};
use redlatch_testing::MemoryServer as Server;

use crate::values::{Checked, Value, caught, option};

/// A server in memory, in this process.
#[napi]
#[derive(Default)]
pub struct MemoryServer(Option<Server>);

#[napi]
impl MemoryServer {
    /// A server that has not been started.
    #[napi(constructor)]
    pub fn new() -> Self {
        MemoryServer::default()
    }

    /// Starts it, and returns its URL.
    #[napi]
    pub fn start(&mut self) -> Checked<String> {
        caught(|| {
            let server = Server::start().map_err(|error| {
                let text = format!("the in-memory server cannot be started: {error}");
                Error::new(ErrorKind::Internal, text)
            })?;
            let url = server.url().to_owned();
            self.0 = Some(server);
            Ok(url)
        })
    }

    /// Moves its clock ahead.
    #[napi]
    pub fn advance(&self, by: Value) -> Checked<()> {
        // The row has the bounds of any time.
        let read = || read_duration("wait", option(&by)).map_err(|error| error.spelled(|_| "by"));
        caught(|| {
            let by = read()?;
            self.running().map(|server| server.advance(by))
        })
    }

    /// Deletes the keys of a lock.
    #[napi]
    pub fn take_away(&self, name: String) -> Checked<bool> {
        caught(|| Ok(self.running()?.take_away(&name)))
    }

    /// Deletes all data.
    #[napi]
    pub fn empty(&self) -> Checked<()> {
        caught(|| self.running().map(Server::empty))
    }

    /// Answers nothing from now on.
    #[napi]
    pub fn pause(&self) -> Checked<()> {
        caught(|| self.running().map(Server::pause))
    }

    /// Answers again.
    #[napi]
    pub fn resume(&self) -> Checked<()> {
        caught(|| self.running().map(Server::resume))
    }

    /// Ends every connection.
    #[napi]
    pub fn disconnect(&self) -> Checked<()> {
        caught(|| self.running().map(Server::disconnect))
    }

    /// Ends the server.
    #[napi]
    pub fn close(&mut self) {
        self.0 = None;
    }

    fn running(&self) -> Result<&Server> {
        let text = "the in-memory server is closed; start another one";
        self.0
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Closed, text))
    }
}
