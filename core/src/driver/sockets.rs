//! The sockets of the connections in [`redlatch_proto::net`], on a thread with a runtime.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redlatch_proto::net::{Arrival, ConnId, Io, Lost, Opened, Server};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connect::{Manner, fresh_identity, random};
use super::receive_threshold::ReceiveThreshold;
use super::tls;
use crate::error::Error;
use crate::sys::{self, BlockingSocket, LocalStream};
use crate::tuning;
use crate::url::{At, Login};

pub(super) struct Sockets {
    manner: Manner,
    all: BTreeMap<ConnId, Socket>,
    last: ConnId,
    /// A connection was begun that was not polled yet.
    pub(super) is_new: bool,
}

impl Io for Sockets {
    fn connect(&mut self, server: &Server) -> ConnId {
        self.last += 1;
        let connecting = Connecting {
            manner: self.manner.clone(),
            at: server.at.clone(),
            provided: server.provided,
            peer: server.peer,
            replicas: server.replicas.borrow().clone(),
        };
        let socket = Socket::Connecting(Box::pin(connecting.open()));
        self.all.insert(self.last, socket);
        self.is_new = true;
        self.last
    }

    fn write(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some(Socket::Open(open)) = self.all.get_mut(&conn) {
            open.unwritten.extend_from_slice(bytes);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.all.remove(&conn);
    }

    fn random(&mut self) -> u32 {
        random()
    }
}

impl Sockets {
    pub(super) fn new(manner: Manner) -> Self {
        Sockets {
            manner,
            all: BTreeMap::new(),
            last: 0,
            is_new: false,
        }
    }

    /// The receive threshold of a connection.
    pub(super) fn threshold(&self, conn: ConnId) -> Option<&Arc<ReceiveThreshold>> {
        match self.all.get(&conn) {
            Some(Socket::Open(open)) => open.threshold.as_ref(),
            _ => None,
        }
    }

    /// Takes in what has come.
    pub(super) fn read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut arrived: impl FnMut(ConnId, &Arrival<'_>, &mut Sockets),
    ) {
        let mut last = 0;
        while let Some((&id, _)) = self.all.range((Excluded(last), Unbounded)).next() {
            last = id;
            while let Some(socket) = self.all.get_mut(&id)
                && let Poll::Ready(event) = socket.poll(cx, buffer)
            {
                let text;
                let arrival = match event {
                    Event::Opened(opened) => Arrival::Opened(opened),
                    Event::Read(count) => Arrival::Bytes(&buffer[..count]),
                    Event::Ended(why) => {
                        self.close(id);
                        text = why.to_string();
                        Arrival::Closed(why.lost(&text))
                    }
                };
                arrived(id, &arrival, self);
            }
        }
    }

    /// Writes what is to be written.
    pub(super) fn write(&mut self, cx: &mut Context<'_>) {
        for socket in self.all.values_mut() {
            if let Socket::Open(open) = socket {
                open.write(cx);
            }
        }
    }

    /// The socket of the only connection, for a thread to block on.
    pub(super) fn into_blocking(self) -> io::Result<BlockingSocket> {
        match self.all.into_values().next() {
            Some(Socket::Open(open)) => open.stream.into_blocking(),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// How to make a connection.
struct Connecting {
    manner: Manner,
    at: At,
    provided: bool,
    peer: Option<SocketAddr>,
    replicas: Vec<SocketAddr>,
}

impl Connecting {
    async fn open(self) -> Result<(Open, Opened), Ended> {
        let login = match &self.manner.provider {
            Some(provider) if self.provided => {
                let given = provider.ask().await.map_err(Ended::Untried)?;
                Some(Login {
                    user: given.user,
                    password: Some(given.password),
                    database: 0,
                })
            }
            _ => None,
        };
        let (stream, threshold, peer) = self.connect().await.map_err(Ended::Io)?;
        let open = Open {
            stream,
            unwritten: Vec::new(),
            written: 0,
            threshold,
        };
        let opened = Opened {
            identity: fresh_identity(),
            login,
            peer,
        };
        Ok((open, opened))
    }

    async fn connect(&self) -> io::Result<Connected> {
        let host = match &self.at {
            At::Unix(path) => {
                let stream = sys::connect_local(path.as_ref()).await?;
                return Ok((Stream::Local(stream), None, None));
            }
            At::Tcp(host) => host,
        };
        let (manner, name) = (&self.manner, host.name.as_str());
        let leading = manner.tcp(name, host.port, self.peer, &self.replicas);
        let tcp = leading.await?;
        let peer = tcp.peer_addr().ok();
        Ok(match &manner.tls {
            Some(tls) => {
                let stream = tls.encrypt(name, tcp).await?;
                (Stream::Encrypted(Box::new(stream)), None, peer)
            }
            None => {
                let threshold = ReceiveThreshold::of(&tcp).map(Arc::new);
                (Stream::Tcp(tcp), threshold, peer)
            }
        })
    }
}

type Connected = (Stream, Option<Arc<ReceiveThreshold>>, Option<SocketAddr>);

enum Stream {
    Tcp(TcpStream),
    Local(LocalStream),
    Encrypted(Box<tls::Stream>),
}

trait Bytes: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Bytes for S {}

impl Stream {
    fn bytes(&mut self) -> Pin<&mut dyn Bytes> {
        Pin::new(match self {
            Stream::Tcp(tcp) => tcp,
            Stream::Local(local) => local,
            Stream::Encrypted(tls) => tls,
        })
    }

    fn into_blocking(self) -> io::Result<BlockingSocket> {
        match self {
            Stream::Tcp(tcp) => {
                let tcp = tcp.into_std()?;
                tcp.set_nonblocking(false)?;
                Ok(BlockingSocket::from(tcp))
            }
            Stream::Local(local) => BlockingSocket::local(local),
            Stream::Encrypted(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<(Open, Opened), Ended>>>>;

enum Socket {
    Connecting(Attempt),
    Open(Open),
}

enum Event {
    Opened(Opened),
    /// So many bytes are in the buffer.
    Read(usize),
    Ended(Ended),
}

impl Socket {
    fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Event> {
        let open = match self {
            Socket::Open(open) => open,
            Socket::Connecting(attempt) => {
                return Poll::Ready(match ready!(attempt.as_mut().poll(cx)) {
                    Ok((open, opened)) => {
                        *self = Socket::Open(open);
                        Event::Opened(opened)
                    }
                    Err(why) => Event::Ended(why),
                });
            }
        };
        let mut into = ReadBuf::new(buffer);
        let read = ready!(open.stream.bytes().poll_read(cx, &mut into));
        Poll::Ready(match (read, into.filled().len()) {
            (Ok(()), 0) => Event::Ended(Ended::Io(io::ErrorKind::UnexpectedEof.into())),
            (Ok(()), count) => Event::Read(count),
            (Err(error), _) => Event::Ended(Ended::Io(error)),
        })
    }
}

struct Open {
    stream: Stream,
    /// The first `written` bytes of them are written; an encrypted connection may still keep them.
    unwritten: Vec<u8>,
    written: usize,
    /// The receive threshold of the socket (`SO_RCVLOWAT`), on plain TCP only.
    threshold: Option<Arc<ReceiveThreshold>>,
}

impl Open {
    fn write(&mut self, cx: &mut Context<'_>) {
        if self.unwritten.is_empty() {
            return;
        }
        let mut stream = self.stream.bytes();
        while self.written < self.unwritten.len() {
            let rest = &self.unwritten[self.written..];
            match stream.as_mut().poll_write(cx, rest) {
                Poll::Ready(Ok(count @ 1..)) => self.written += count,
                // The end of the connection is read, behind all that the server has said: a full
                // server says so before it is asked.
                Poll::Ready(_) => self.written = self.unwritten.len(),
                Poll::Pending => return,
            }
        }
        if stream.poll_flush(cx).is_ready() {
            self.written = 0;
            self.unwritten.clear();
            self.unwritten.shrink_to(tuning::READ);
        }
    }
}

/// Why a connection is gone, or was not made.
enum Ended {
    Io(io::Error),
    /// Nothing was tried.
    Untried(Error),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Io(error) => error.fmt(f),
            Ended::Untried(error) => error.fmt(f),
        }
    }
}

impl Ended {
    fn lost(self, text: &str) -> Lost<'_> {
        let lost = Lost {
            text,
            ..Lost::default()
        };
        match self {
            Ended::Untried(error) => Lost {
                untried: Some(error),
                ..lost
            },
            Ended::Io(error) => {
                let limits = sys::is_exhausted(&error);
                let (tls, cause) = match tls::fault_of(&error) {
                    Some((fault, failure)) => (Some(fault), failure),
                    None => (None, Arc::new(error) as _),
                };
                Lost {
                    tls,
                    limits,
                    cause: Some(cause),
                    ..lost
                }
            }
        }
    }
}
