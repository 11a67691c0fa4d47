//! Makes the connections for commands and for pub/sub, with the same errors and pauses.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::attentive::Attentive;
use super::causes;
use super::replies;
use super::tcp::{Resolver, tcp};
use super::tls::{self, Tls};
use crate::credentials::{Credentials, Provider};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{ClientOptions, Protocol};
use crate::sys::{self, BlockingSocket};
use crate::tuning;
use crate::url::{At, Host, Login};
use crate::wire;
use redlatch_proto::connecting::{self, Doubt};
use redlatch_proto::outbox::slotmap::Range;
use redlatch_proto::{cluster, quorum, sentinel};

/// Where and how to connect.
#[derive(Clone)]
pub(crate) struct Address {
    info: ConnectionInfo,
    manner: Manner,
    /// The address of the host, once a connection was made: all others that go with it lead to the
    /// same server, wherever the name leads by then.
    peer: Option<SocketAddr>,
}

/// How to connect, whatever the server.
#[derive(Clone)]
pub(crate) struct Manner {
    /// The limit for one attempt, set-up included.
    pub(super) timeout: Duration,
    /// Shown by CLIENT LIST.
    pub(super) client_name: Arc<str>,
    pub(super) protocol: Protocol,
    pub(super) keep_alive: Duration,
    pub(super) tls: Option<Tls>,
    /// Asked for user and password at each connection.
    pub(super) provider: Option<Provider>,
    /// A server that runs for less is not used, as it may have lost its locks.
    pub(super) least_uptime: Duration,
    resolver: Resolver,
}

impl Manner {
    /// # Errors
    /// `invalid_argument` for certificates that cannot be used.
    pub(crate) fn new(
        options: &ClientOptions,
        encrypted: bool,
        provider: Option<Provider>,
    ) -> Result<Self> {
        options.check_tls(encrypted)?;
        let tls = encrypted.then(|| Tls::new(options)).transpose()?;
        Ok(Manner {
            timeout: options.connect_timeout,
            client_name: options.client_name.as_str().into(),
            protocol: options.protocol,
            keep_alive: options.keep_alive,
            tls,
            provider: provider.map(Provider::for_client),
            least_uptime: Duration::ZERO,
            resolver: Resolver::default(),
        })
    }

    /// The manner of connections to the servers of a quorum.
    pub(crate) fn for_quorum(self, options: &ClientOptions) -> Self {
        Manner {
            least_uptime: options.restart_delay,
            ..self
        }
    }

    /// The manner of connections to sentinels. A sentinel has users of its own, so the provider is not
    /// asked for them.
    pub(super) fn for_sentinels(&self) -> Self {
        Manner {
            provider: None,
            ..self.clone()
        }
    }

    /// The same manner, with a name for the connections.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.client_name = name.into();
        self
    }

    /// A TCP connection to the host, or to `peer` wherever the name leads by now. The addresses at
    /// which there was a replica come last.
    pub(super) async fn tcp(
        &self,
        host: &str,
        port: u16,
        peer: Option<SocketAddr>,
        replicas: &[SocketAddr],
    ) -> io::Result<TcpStream> {
        let settings = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(self.keep_alive));
        let settings = &sys::give_up_after(settings, tuning::TCP_USER_TIMEOUT);
        if let Some(peer) = peer {
            return tcp(&[peer], settings).await;
        }
        let found = self.resolver.addresses(host, port).await?;
        let is_replica = |address: &SocketAddr| replicas.contains(address);
        let (replicas, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_replica);
        match tcp(&others, settings).await {
            Err(_) if !replicas.is_empty() => tcp(&replicas, settings).await,
            made => made,
        }
    }
}

impl Address {
    /// # Errors
    /// `internal`: redis-rs takes every address so far.
    pub(crate) fn new(at: &At, login: &Login, tls: bool, manner: Manner) -> Result<Self> {
        // Skip `CLIENT SETINFO`: every ACL would have to allow it, and the client name already
        // identifies us.
        let settings = settings_of(login).set_skip_set_lib_name();
        let info = addr_of(at, tls)
            .into_connection_info()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("{at}: {error}")))?;
        Ok(Address {
            info: info.set_redis_settings(settings),
            manner,
            peer: None,
        })
    }

    /// Connects by `connect`, with fresh credentials if there is a provider; returns the address
    /// with those that the server took. The server may have got new ones since the provider was
    /// asked: if it refuses the log-in, the provider is asked once more.
    pub(super) async fn logged_in<T, F>(
        self,
        connect: impl Fn(Address) -> F,
    ) -> Result<(Address, T)>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let open = async |address: Address| {
            let opened = connect(address.clone()).await;
            opened.map(|opened| (address, opened))
        };
        let Some(provider) = self.manner.provider.clone() else {
            let opened = open(self.clone()).await;
            return opened.map_err(|error| self.explain(&error));
        };
        let given = provider.ask().await?;
        let opened = match open(self.with(&given)).await {
            Err(error) if is_log_in_refused(&error) => {
                let newer = provider.ask().await?;
                if newer == given {
                    Err(error)
                } else {
                    open(self.with(&newer)).await
                }
            }
            opened => opened,
        };
        opened.map_err(|error| self.explain(&error))
    }

    fn with(&self, credentials: &Credentials) -> Address {
        let mut settings = RedisConnectionInfo::default()
            .set_db(self.info.redis_settings().db())
            .set_skip_set_lib_name()
            .set_password(&credentials.password);
        if let Some(user) = &credentials.user {
            settings = settings.set_username(user);
        }
        Address {
            info: self.info.clone().set_redis_settings(settings),
            ..self.clone()
        }
    }

    /// The server at this address, wherever the name of the host leads by now.
    pub(super) fn leading_to(self, peer: Option<SocketAddr>) -> Self {
        Address { peer, ..self }
    }

    /// The address as it is shown in messages.
    pub(crate) fn shown(&self) -> String {
        self.info.addr().to_string()
    }

    /// How long one attempt to connect may take, set-up included.
    pub(crate) fn timeout(&self) -> Duration {
        self.manner.timeout
    }

    /// The commands that log in on a connection that redis-rs does not set up. The flag says
    /// whether any error reply makes the connection useless, or only one that refuses the
    /// connection itself ([`is_turned_away`]).
    fn log_in(&self) -> Vec<(Cmd, bool)> {
        let settings = self.info.redis_settings();
        let command = |words: &[&str]| {
            let mut command = Cmd::new();
            command.arg(words);
            command
        };
        let auth = settings.password().map(|password| {
            let words = ["AUTH"]
                .into_iter()
                .chain(settings.username())
                .chain([password]);
            command(&words.collect::<Vec<_>>())
        });
        let select = (settings.db() != 0).then(|| command(&["SELECT", &settings.db().to_string()]));
        let name = command(&["CLIENT", "SETNAME", &self.manner.client_name]);
        let vital = |command: Option<Cmd>| command.map(|command| (command, true));
        [vital(auth), vital(select), Some((name, false))]
            .into_iter()
            .flatten()
            .collect()
    }

    fn settings(&self, protocol: ProtocolVersion) -> RedisConnectionInfo {
        self.info.redis_settings().clone().set_protocol(protocol)
    }

    async fn connect(&self, protocol: ProtocolVersion) -> RedisResult<MultiplexedConnection> {
        match (self.info.addr(), &self.manner.tls) {
            (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
                let tcp = self.tcp(host, *port).await?;
                self.connect_on(tls.encrypt(host, tcp).await?, protocol)
                    .await
            }
            (ConnectionAddr::Tcp(host, port), _) => {
                self.connect_on(self.tcp(host, *port).await?, protocol)
                    .await
            }
            (ConnectionAddr::Unix(path), _) => {
                self.connect_on(sys::connect_local(path).await?, protocol)
                    .await
            }
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    }

    /// A TCP connection to the host, or to the same server as before.
    async fn tcp(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        self.manner.tcp(host, port, self.peer, &[]).await
    }

    async fn connect_on<S>(
        &self,
        stream: S,
        protocol: ProtocolVersion,
    ) -> RedisResult<MultiplexedConnection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (settings, stream) = (self.settings(protocol), Attentive::new(stream));
        // No time limits: the callers set them.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        // The task ends when the last handle of the connection is dropped.
        tokio::spawn(driver);
        Ok(connection)
    }

    /// Makes a connection for tools, and sets its name; returns it with the address that it leads to.
    ///
    /// There is no time limit here: the caller sets it.
    pub(crate) async fn commands(self) -> Result<(Address, MultiplexedConnection)> {
        let open = |address: Address| async move { address.open().await };
        let (address, connection) = self.logged_in(open).await?;
        // An error reply to the name does no harm, except when the server refuses the connection,
        // which it says in its first reply. A connection error shows in the next reply as well.
        let name = ["CLIENT", "SETNAME", &address.manner.client_name];
        let time = ask(&connection, &["TIME"]);
        let (named, time) = join(ask(&connection, &name), time).await;
        let named = named.map(drop).or_else(|error| {
            if is_turned_away(&error) {
                Err(error)
            } else {
                Ok(())
            }
        });
        named.and(time).map_err(|error| address.explain(&error))?;
        address.check_uptime(&connection).await?;
        Ok((address, connection))
    }

    /// Refuses a server of a quorum that has not run for long. It may have lost the keys of locks whose
    /// holders count on its vote.
    async fn check_uptime(&self, connection: &MultiplexedConnection) -> Result<()> {
        let least = self.manner.least_uptime;
        if least.is_zero() {
            return Ok(());
        }
        let info = ask(connection, &quorum::INFO).await;
        let info = info.map_err(|error| self.explain(&error))?;
        let text: String = redis::from_redis_value(info).unwrap_or_default();
        quorum::check_uptime(&self.shown(), &text, least)
    }

    /// The same settings for another server.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => {
                let (insecure, tls_params) = (*insecure, tls_params.clone());
                ConnectionAddr::TcpTls {
                    host,
                    port,
                    insecure,
                    tls_params,
                }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Address {
            info: self.info.clone().set_addr(addr),
            peer: None,
            ..self.clone()
        }
    }

    /// Asks a node of a cluster for the slot map, on a connection of its own.
    pub(crate) async fn ask_for_slots(self) -> Result<Vec<Range>> {
        let plain = |address: Address| async move { address.plain().await };
        let (address, connection) = self.logged_in(plain).await?;
        address.ask_for_slots_on(connection).await
    }

    /// Asks a node of a cluster for the slot map (`CLUSTER SLOTS`) on this connection.
    pub(super) async fn ask_for_slots_on(
        self,
        connection: MultiplexedConnection,
    ) -> Result<Vec<Range>> {
        let answer = ask(&connection, &cluster::MAP)
            .await
            .map_err(|error| self.explain(&error))?;
        cluster::map_of(replies::value(answer), &self.host())
    }

    /// Host and port. The URL of a set of servers has no other addresses.
    fn host(&self) -> Host {
        match self.info.addr() {
            ConnectionAddr::Tcp(name, port)
            | ConnectionAddr::TcpTls {
                host: name, port, ..
            } => Host {
                name: name.clone(),
                port: *port,
            },
            _ => Host {
                name: String::new(),
                port: 0,
            },
        }
    }

    /// Makes a command connection to a server that must report the role of primary (`ROLE`).
    pub(super) async fn primary(self) -> Result<(Address, MultiplexedConnection)> {
        let (address, connection) = self.commands().await?;
        let role = ask(&connection, &["ROLE"])
            .await
            .map_err(|error| address.explain(&error))?;
        sentinel::check_role(&address.shown(), &replies::value(role))?;
        Ok((address, connection))
    }

    /// Asks a sentinel for the primary of a service; `None` if it does not know the service.
    pub(super) async fn ask_sentinel(&self, question: &[&str]) -> Result<Option<Host>> {
        let answer = self.ask_once(question).await?;
        sentinel::primary_of(&self.shown(), &replies::value(answer))
    }

    /// Asks on a connection for this question.
    pub(crate) async fn ask_once(&self, question: &[&str]) -> Result<redis::Value> {
        let answer = async { ask(&self.plain().await?, question).await };
        answer.await.map_err(|error| self.explain(&error))
    }

    /// A connection for one or two commands.
    async fn plain(&self) -> RedisResult<MultiplexedConnection> {
        self.connect(ProtocolVersion::RESP2).await
    }

    /// Connects with the protocol that the options ask for. `Auto` means RESP3, and RESP2 with servers
    /// that do not speak it.
    async fn open(&self) -> RedisResult<MultiplexedConnection> {
        if self.manner.protocol != Protocol::Resp2 {
            match self.connect(ProtocolVersion::RESP3).await {
                Err(error)
                    if self.manner.protocol == Protocol::Auto && self.refuses_hello(&error) => {}
                opened => return opened,
            }
        }
        self.plain().await
    }

    /// Whether the server does not know HELLO (before Redis 6, some proxies) or RESP3.
    fn refuses_hello(&self, error: &RedisError) -> bool {
        let with_password = self.info.redis_settings().password().is_some();
        error.kind() == redis::ErrorKind::RESP3NotSupported
            || error
                .code()
                .is_some_and(|code| connecting::refuses_hello(code, error.detail(), with_password))
    }

    /// A connection that a thread can block on, logged in.
    pub(super) async fn blocking(&self) -> RedisResult<BlockingSocket> {
        let socket = match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let mut stream = self.tcp(host, *port).await?;
                self.greet(&mut stream).await?;
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                BlockingSocket::from(stream)
            }
            ConnectionAddr::Unix(path) => {
                let mut stream = sys::connect_local(path).await?;
                self.greet(&mut stream).await?;
                BlockingSocket::local(stream)?
            }
            _ => return Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        };
        socket.set_write_timeout(self.timeout())?;
        Ok(socket)
    }

    /// Logs in.
    async fn greet(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> RedisResult<()> {
        let commands = self.log_in();
        let packed: Vec<u8> = commands
            .iter()
            .flat_map(|(command, _)| command.get_packed_command())
            .collect();
        // A full server has already replied and closed the connection. The write may fail then, but
        // the reply can still be read.
        let written = async {
            stream.write_all(&packed).await?;
            stream.flush().await
        };
        let _ = written.await;
        let mut decoder = Default::default();
        for (_, vital) in commands {
            let answer = redis::parse_redis_value_async(&mut decoder, &mut *stream)
                .await?
                .extract_error();
            if let Some(error) = answer.err().filter(|error| vital || is_turned_away(error)) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The error for an attempt that took too long.
    pub(crate) fn late(&self) -> Error {
        let tls = self.manner.tls.is_some();
        connecting::late(&self.shown(), tls, self.manner.timeout)
    }

    /// Explains an error of the connection. The text contains the address, but never the user name
    /// or password.
    pub(crate) fn explain(&self, error: &RedisError) -> Error {
        let addr = self.shown();
        let provided = self.manner.provider.is_some();
        let by_redis_rs = error.kind() == redis::ErrorKind::AuthenticationFailed;
        if by_redis_rs || provided && is_log_in_refused(error) {
            return connecting::log_in_refused(&addr, provided);
        }
        if let Some(code) = error.code() {
            return connecting::refused(&addr, code, &detail(error));
        }
        if let Some(refusal) = tls::explain(&addr, error) {
            return refusal;
        }
        if error.kind() == redis::ErrorKind::Parse {
            // The parser tells of its bytes, in several lines.
            let why = connecting::NOT_REDIS;
            let doubt = match self.manner.tls {
                Some(_) => Doubt::NotRunning,
                None => Doubt::WantsTls,
            };
            return connecting::unreachable(&addr, why, doubt);
        }
        if let Some(cause) = causes::io_error(error) {
            let is_closed = matches!(
                cause.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::UnexpectedEof
            );
            let doubt = match is_closed && self.manner.tls.is_none() {
                _ if sys::is_exhausted(&cause) => Doubt::Limits,
                true => Doubt::Closes,
                false => Doubt::NotRunning,
            };
            return connecting::unreachable(&addr, &cause.to_string(), doubt)
                .caused_by(Arc::new(cause));
        }
        let why = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        connecting::unreachable(&addr, &why, Doubt::NotRunning)
    }
}

/// A random number for the last group of the uuid in all owners made from now on. It comes from the
/// operating system at this moment, because processes restored from one snapshot have everything
/// else in common.
pub(super) fn fresh_identity() -> u64 {
    let (_, low) = uuid::Uuid::new_v4().as_u64_pair();
    low & 0xffff_ffff_ffff
}

fn addr_of(at: &At, tls: bool) -> ConnectionAddr {
    match at {
        At::Unix(path) => ConnectionAddr::Unix(path.into()),
        At::Tcp(Host { name, port }) if tls => ConnectionAddr::TcpTls {
            host: name.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        At::Tcp(Host { name, port }) => ConnectionAddr::Tcp(name.clone(), *port),
    }
}

fn settings_of(login: &Login) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(login.database.into());
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    settings
}

/// A random number, to spread what many clients do at once.
pub(super) fn random() -> u32 {
    uuid::Uuid::new_v4().as_u128() as u32
}

/// Whether the server refuses the connection for now, whatever the command, as when it has too many
/// clients.
pub(super) fn is_turned_away(error: &RedisError) -> bool {
    error
        .code()
        .is_some_and(|code| wire::refusal(code, &detail(error)).1)
}

/// Whether the server refuses user name or password.
fn is_log_in_refused(error: &RedisError) -> bool {
    let refuses = |code| connecting::refuses_log_in(code, &detail(error));
    error.kind() == redis::ErrorKind::AuthenticationFailed || error.code().is_some_and(refuses)
}

/// The server's text, or that of redis-rs if there is none.
fn detail(error: &RedisError) -> String {
    error
        .detail()
        .map_or_else(|| error.to_string(), str::to_owned)
}

/// Sends one command. An error reply becomes an error.
pub(super) async fn ask(connection: &MultiplexedConnection, words: &[&str]) -> RedisResult<Value> {
    let mut command = Cmd::new();
    command.arg(words);
    connection
        .clone()
        .send_packed_command(&command)
        .await?
        .extract_error()
}

#[cfg(feature = "tls")]
#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    use redis::make_extension_error;
    use tokio::runtime::Builder;
    use tokio_rustls::rustls::{CertificateError, Error as Failure};

    use super::*;

    /// How often the provider is asked for one attempt that ends with this error, and the kind of
    /// the error that is told.
    fn asked(refusal: impl Fn() -> RedisError) -> (u32, ErrorKind) {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let provider = Provider::new(move || {
            let number = count.fetch_add(1, Ordering::SeqCst);
            Ok(Credentials::password(number.to_string()))
        });
        let manner = Manner::new(&ClientOptions::new(), false, Some(provider)).expect("fit");
        let at = At::Unix("/nowhere".into());
        let address = Address::new(&at, &Login::default(), false, manner).expect("an address");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let attempt = address.logged_in(async |_| Err::<(), _>(refusal()));
        let error = runtime.block_on(attempt).err().expect("refused");
        (asked.load(Ordering::SeqCst), error.kind())
    }

    #[test]
    fn a_provider_is_asked_again_only_if_the_log_in_is_refused() {
        let said = |code: &str, text: &str| make_extension_error(code.into(), Some(text.into()));
        let expired = || Failure::InvalidCertificate(CertificateError::Expired);
        assert_eq!(asked(|| said("WRONGPASS", "")), (2, ErrorKind::Auth));
        assert_eq!(asked(|| said("NOAUTH", "")), (2, ErrorKind::Auth));
        assert_eq!(
            asked(|| said("ERR", "invalid password")),
            (2, ErrorKind::Auth)
        );
        assert_eq!(asked(|| said("NOPERM", "")), (1, ErrorKind::Denied));
        assert_eq!(
            asked(|| io::Error::other(expired()).into()),
            (1, ErrorKind::Auth)
        );
    }
}
