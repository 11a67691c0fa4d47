//! The tests share this: servers, and what is seen there.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod random;
pub mod sets;
pub mod starter;

pub use starter::Server;

/// The line of this answer to CLIENT LIST for the direct connection: the server tells it nothing
/// unasked.
pub fn direct_connection(list: &str) -> Option<String> {
    let direct = |line: &&str| line.contains(" name=redlatch;") && line.contains(" flags=N ");
    list.lines().find(direct).map(str::to_owned)
}

impl Server {
    /// A blocking connection.
    pub fn connect(&self) -> redis::Connection {
        self.connect_to(&self.url())
    }

    /// A blocking connection with user name, database or protocol as the URL says.
    pub fn connect_to(&self, url: &str) -> redis::Connection {
        redis::Client::open(url)
            .and_then(|client| client.get_connection())
            .expect("a connection")
    }
}
