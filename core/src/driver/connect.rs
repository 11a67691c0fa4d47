//! Making connections: one way for commands, one for pub/sub, the same errors and pauses for both.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, RedisError};

use crate::error::{Error, ErrorKind};
use crate::wire;

/// The first and the longest pause between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// When the kernel asks an idle peer whether it is there, and gives up one that does not answer.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls waiting to be written. Callers of a lock are bounded by themselves, not by this.
const BUFFER: usize = 4096;

/// Where and how to connect.
#[derive(Clone)]
pub(crate) struct Address {
    info: ConnectionInfo,
    timeout: Duration,
    /// Shown by CLIENT LIST.
    client_name: String,
}

impl Address {
    pub(crate) fn new(info: ConnectionInfo, timeout: Duration, client_name: String) -> Self {
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(KEEP_ALIVE))
            .set_user_timeout(USER_TIMEOUT);
        // `CLIENT SETINFO` would have to be allowed in every ACL; the name says who we are.
        let settings =
            info.redis_settings().clone().set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        Address { info: info.set_tcp_settings(tcp).set_redis_settings(settings), timeout, client_name }
    }

    /// The same for a server before Redis 6, which speaks RESP2 only.
    pub(super) fn downgrade(&mut self) {
        let settings = self.info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        self.info = self.info.clone().set_redis_settings(settings);
    }

    pub(super) fn speaks_resp3(&self) -> bool {
        self.info.redis_settings().protocol().supports_resp3()
    }

    fn client(&self) -> Result<Client, Error> {
        Client::open(self.info.clone()).map_err(|error| self.explain(&error))
    }

    /// Connects for commands, under our name. `push` hears what the server says unasked.
    pub(super) async fn commands(
        &self,
        push: impl redis::aio::AsyncPushSender,
    ) -> Result<MultiplexedConnection, Failure> {
        let client = self.client()?;
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        if self.speaks_resp3() {
            config = config.set_push_sender(push);
        }
        let connect = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let _: () = redis::cmd("CLIENT")
                .arg("SETNAME")
                .arg(&self.client_name)
                .query_async(&mut connection)
                .await?;
            Ok(connection)
        };
        self.within(connect).await
    }

    /// Connects for pub/sub.
    pub(super) async fn pubsub(&self) -> Result<redis::aio::PubSub, Failure> {
        let client = self.client()?;
        self.within(client.get_async_pubsub()).await
    }

    async fn within<T>(&self, connect: impl Future<Output = Result<T, RedisError>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, connect).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if error.kind() == redis::ErrorKind::RESP3NotSupported => Err(Failure::NoResp3),
            Ok(Err(error)) => Err(Failure::Error(self.explain(&error))),
            Err(_) => {
                let text = format!(
                    "no answer from {} within {:?}; is it a Redis server?",
                    self.info.addr(),
                    self.timeout
                );
                Err(Failure::Error(Error::new(ErrorKind::Unavailable, text)))
            }
        }
    }

    /// What an error while connecting means. The address is told, never user name or password.
    pub(super) fn explain(&self, error: &RedisError) -> Error {
        let addr = self.info.addr();
        match (error.kind(), error.code()) {
            (redis::ErrorKind::AuthenticationFailed, _) => Error::new(
                ErrorKind::Auth,
                format!("{addr} refused user name or password; check them in the URL"),
            ),
            (_, Some(code)) => wire::refusal(code, error.detail().unwrap_or_default()).0,
            (redis::ErrorKind::InvalidClientConfig, _) => {
                Error::invalid(format!("cannot connect to {addr}: {}", error.category()))
            }
            _ => {
                let why =
                    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
                let text = format!("cannot reach {addr}: {why}; is the server running there?");
                Error::new(ErrorKind::Unavailable, text)
            }
        }
    }
}

/// Why a connection could not be made.
pub(super) enum Failure {
    /// The server wants the older protocol.
    NoResp3,
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

/// Pauses between attempts: none before the first, then doubling, bounded and jittered.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits for the turn of the next attempt.
    pub(super) async fn pause(&mut self) {
        if self.failures > 0 {
            let most = PAUSE.1.min(PAUSE.0 * 2u32.saturating_pow(self.failures.min(8) - 1));
            // Spread over the upper half, so that a fleet does not come back in step.
            let share = uuid::Uuid::new_v4().as_u128() as u32 % 512;
            tokio::time::sleep(most / 2 + most * share / 1024).await;
        }
        self.failures += 1;
    }
}
