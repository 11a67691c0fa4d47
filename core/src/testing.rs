//! A server in memory, for tests of programs that use locks; with the feature `testing`.
//!
//! It runs in the process of the test, and the clients are the same as in production: they connect to
//! its URL. A lock means the same as on Redis, because the same scripts run. A test decides when a lock
//! is lost, when a lease runs out and when the server is out of reach, so it waits for nothing but
//! events.
//!
//! ```
//! use std::time::Duration;
//! use redlatch::{AcquireOptions, Client, LostReason, testing::MemoryServer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = MemoryServer::start()?;
//! let client = Client::connect(server.url()).await?;
//! let lock = client.lock("orders:42")?;
//!
//! let guard = lock.acquire().await?;
//! assert!(server.take_away("orders:42")); // as an operator or an eviction would
//! assert_eq!(guard.lost().await, LostReason::Deleted);
//!
//! let options = AcquireOptions::new().lease(Duration::from_secs(60));
//! let forgotten = lock.acquire_with(options).await?;
//! server.advance(Duration::from_secs(61)); // the lease has run out
//! forgotten.lost().await;
//! # client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! It is one server without users, TLS, replicas and persistence, and it has only the commands that
//! redlatch needs. For Sentinel, Cluster, access rules or scripts of your own, start a real one. It is
//! not made for production.

pub use redlatch_testing::MemoryServer;
