//! A connection on which something is asked that is no call of the engine: those of tools, and the inline
//! connection before a thread has it.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use redlatch_proto::net;
use redlatch_proto::value::Value;
use tokio::time::timeout;

use super::connect::Manner;
use super::sockets::Sockets;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::BlockingSocket;
use crate::tuning;

pub(crate) struct Asking {
    asking: net::Asking,
    sockets: Sockets,
    manner: Manner,
    buffer: Vec<u8>,
}

impl Asking {
    /// Sets the connection up, within the option `connect_timeout`.
    ///
    /// # Errors
    /// `unavailable`, `auth`, `denied`, `server`, or `invalid_argument` for a service that no sentinel knows.
    pub(crate) async fn connect(asking: net::Asking, manner: &Manner) -> Result<Asking> {
        let mut own = Asking {
            asking,
            sockets: Sockets::new(manner.clone()),
            manner: manner.clone(),
            buffer: vec![0; tuning::READ],
        };
        own.asking.begin(clock::now(), &mut own.sockets);
        own.until(|asking| asking.server().is_some()).await?;
        Ok(own)
    }

    /// The server that it leads to.
    pub(crate) fn server(&self) -> Option<&Rc<net::Server>> {
        self.asking.server()
    }

    /// Sends commands in one round trip. Each has a reply of its own, which may be an error reply.
    ///
    /// # Errors
    /// `unavailable` if the server does not answer within the option `connect_timeout`, or the connection
    /// is gone.
    pub(crate) async fn ask<W: AsRef<[u8]>>(
        &mut self,
        commands: &[Vec<W>],
    ) -> Result<Vec<Result<Value>>> {
        for words in commands {
            self.asking.ask(words);
        }
        let asked = self.until(|asking| asking.answered() >= commands.len());
        let asked = asked.await;
        let answers = self.asking.take_answers();
        asked.map(|()| answers)
    }

    /// Asks for one thing.
    ///
    /// # Errors
    /// As [`ask`](Asking::ask), and an error reply.
    pub(crate) async fn ask_one<W: AsRef<[u8]>>(&mut self, words: Vec<W>) -> Result<Value> {
        let mut answers = self.ask(&[words]).await?;
        answers.pop().unwrap_or_else(|| Err(self.late()))
    }

    /// Has the connection do its part until this is so.
    async fn until(&mut self, is_so: impl Fn(&net::Asking) -> bool) -> Result<()> {
        let Asking {
            asking,
            sockets,
            buffer,
            ..
        } = self;
        let driven = poll_fn(|cx| {
            loop {
                sockets.is_new = false;
                sockets.read(cx, buffer, |id, arrival, sockets| {
                    asking.arrived(clock::now(), id, arrival, sockets);
                });
                asking.flush(clock::now(), sockets);
                sockets.write(cx);
                if let Some(error) = asking.failure() {
                    return Poll::Ready(Err(error.clone()));
                }
                if is_so(asking) {
                    return Poll::Ready(Ok(()));
                }
                if !sockets.is_new {
                    return Poll::Pending;
                }
            }
        });
        let done = timeout(self.manner.timeout, driven).await;
        done.unwrap_or_else(|_| Err(self.late()))
    }

    fn late(&self) -> Error {
        let gone = || Error::new(ErrorKind::Unavailable, "there is no server to be asked");
        self.asking.late().unwrap_or_else(gone)
    }

    /// The socket, for a thread to block on.
    ///
    /// # Errors
    /// For an encrypted connection, and where the system has no way to stop such a thread.
    pub(super) fn into_blocking(self) -> io::Result<BlockingSocket> {
        let socket = self.sockets.into_blocking()?;
        socket.set_write_timeout(self.manner.timeout)?;
        Ok(socket)
    }
}
