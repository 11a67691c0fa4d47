//! The sockets of the connections in [`redlatch_proto::net`], on the I/O thread. What goes to a server,
//! and what its bytes mean, is decided there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redlatch_proto::net::{self, Arrival, Calls, ConnId, Io, Lost, Opened, Server};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::calls::OutgoingCall;
use super::connect::{Address, Manner, fresh_identity, random};
use super::inline::{InlineConnector, InlineSlot, Plan};
use super::receive_threshold::ReceiveThreshold;
use super::{DriverConfig, News, tls};
use crate::clock;
use crate::engine::{CallId, Input};
use crate::error::Error;
use crate::moment::Moment;
use crate::sys;
use crate::tuning;
use crate::url::{At, Login};
use crate::wire::{Name, Op, Topic};

/// The connections of a client, with their sockets. Driven from outside.
pub(super) struct Net {
    net: net::Net,
    sockets: Sockets,
    /// What was read last.
    buffer: Vec<u8>,
    /// The input that the engine needs before any other.
    first: Option<Input>,
    /// The slot of the inline connection.
    direct: Arc<InlineSlot>,
    maker: InlineConnector,
}

impl Net {
    pub(super) fn new(config: &DriverConfig, uuid: &str, direct: Arc<InlineSlot>) -> Self {
        let (place, manner, now) = (&config.place, &config.manner, clock::now());
        let mut sockets = Sockets {
            manner: manner.clone(),
            all: BTreeMap::new(),
            last: 0,
            is_new: false,
        };
        let manner = Rc::new(net::Manner {
            tls: place.tls,
            http: false,
            timeout: manner.timeout,
            keep_alive: manner.keep_alive,
            least_uptime: manner.least_uptime,
            protocol: manner.protocol,
            tracking: config.tracking,
            provided: manner.provider.is_some(),
            pubsub: config.pubsub,
            name: manner.client_name.to_string(),
            uuid: uuid.to_owned(),
            closing: Cell::new(false),
        });
        let mut net = net::Net::new(now, place, &manner);
        net.begin(now, &mut sockets);
        Net {
            first: net.first(),
            net,
            sockets,
            buffer: vec![0; tuning::READ],
            direct,
            maker: InlineConnector::default(),
        }
    }

    pub(super) fn send(
        &mut self,
        now: Moment,
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
        news: &mut News,
    ) {
        let sending = OutgoingCall {
            call,
            op,
            limit,
            hops: 0,
            asking: false,
        };
        self.net.send(now, sending, &mut self.sockets, news);
    }

    pub(super) fn subscribe(&mut self, now: Moment, name: Name, topic: Topic) {
        self.net.subscribe(now, &name, topic, &mut self.sockets);
    }

    pub(super) fn unsubscribe(&mut self, now: Moment, name: &Name, topic: Topic) {
        self.net.unsubscribe(now, name, topic, &mut self.sockets);
    }

    /// The receive threshold of the command connection.
    pub(super) fn threshold(&self) -> Option<&Arc<ReceiveThreshold>> {
        match self.sockets.all.get(&self.net.calls()?.conn) {
            Some(Socket::Open(open)) => open.threshold.as_ref(),
            _ => None,
        }
    }

    /// Whether messages may stay unread in the socket.
    pub(super) fn may_skip(&self) -> bool {
        self.net.calls().is_some_and(|calls| calls.only_messages)
    }

    /// Whether everything is connected and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.net.is_idle()
    }

    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.net.next_wake()
    }

    pub(super) fn wake(&mut self, now: Moment, news: &mut News) {
        self.net.wake(now, &mut self.sockets, news);
    }

    /// Reads what has come, and writes what is to be written.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, news: &mut News) {
        news.inputs.extend(self.first.take());
        loop {
            self.sockets.is_new = false;
            self.read(cx, news);
            let now = clock::now();
            self.net.settle(now, &mut self.sockets, news);
            self.net.flush(now, &mut self.sockets, news);
            // A connection that was begun just now has to be polled once, too.
            if !self.sockets.is_new {
                break;
            }
        }
        for socket in self.sockets.all.values_mut() {
            if let Socket::Open(open) = socket {
                open.write(cx);
            }
        }
        if let Some(calls) = self.net.calls() {
            let plan = || self.sockets.plan(&calls);
            let generation = calls.generation;
            self.maker.poll(cx, &self.direct, generation, plan, news);
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, news: &mut News) {
        let Net {
            net,
            sockets,
            buffer,
            ..
        } = self;
        let mut last = 0;
        while let Some((&id, _)) = sockets.all.range((Excluded(last), Unbounded)).next() {
            last = id;
            while let Some(socket) = sockets.all.get_mut(&id)
                && let Poll::Ready(event) = socket.poll(cx, buffer)
            {
                // The server was read before this moment.
                let now = clock::now();
                let text;
                let arrival = match event {
                    Event::Opened(opened) => Arrival::Opened(opened),
                    Event::Read(count) => Arrival::Bytes(&buffer[..count]),
                    Event::Ended(why) => {
                        sockets.close(id);
                        text = why.to_string();
                        Arrival::Closed(why.lost(&text))
                    }
                };
                net.arrived(now, id, &arrival, sockets, news);
            }
        }
    }
}

struct Sockets {
    manner: Manner,
    all: BTreeMap<ConnId, Socket>,
    last: ConnId,
    /// A connection was begun that was not polled yet.
    is_new: bool,
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
    /// How to make the inline connection that goes with this one. `None` with TLS.
    fn plan(&self, calls: &Calls<'_>) -> Option<Plan> {
        let server = calls.server;
        if server.manner.tls {
            return None;
        }
        let address = Address::new(&server.at, &server.login, false, self.manner.clone()).ok()?;
        Some(Plan {
            address: address.leading_to(server.peer),
            tracked: calls.tracked,
            publish: calls.publish,
            clock: calls.clock,
            generation: calls.generation,
        })
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
                return Ok((Box::new(stream), None, None));
            }
            At::Tcp(host) => host,
        };
        let (manner, name) = (&self.manner, host.name.as_str());
        let leading = manner.tcp(name, host.port, self.peer, &self.replicas);
        let tcp = leading.await?;
        let peer = tcp.peer_addr().ok();
        Ok(match &manner.tls {
            Some(tls) => (Box::new(tls.encrypt(name, tcp).await?), None, peer),
            None => {
                let threshold = ReceiveThreshold::of(&tcp).map(Arc::new);
                (Box::new(tcp), threshold, peer)
            }
        })
    }
}

type Connected = (
    Box<dyn Stream>,
    Option<Arc<ReceiveThreshold>>,
    Option<SocketAddr>,
);

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

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
        let read = ready!(Pin::new(&mut open.stream).poll_read(cx, &mut into));
        Poll::Ready(match (read, into.filled().len()) {
            (Ok(()), 0) => Event::Ended(Ended::Io(io::ErrorKind::UnexpectedEof.into())),
            (Ok(()), count) => Event::Read(count),
            (Err(error), _) => Event::Ended(Ended::Io(error)),
        })
    }
}

struct Open {
    stream: Box<dyn Stream>,
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
        let mut stream = Pin::new(&mut self.stream);
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
