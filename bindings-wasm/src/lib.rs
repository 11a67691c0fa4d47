//! The lock machine of redlatch for hosts where nothing native can go: a WebAssembly module without
//! imports. A host gives it the time, random bytes and what its sockets bring, and does what the
//! module asks for. `bindings-wasm/README.md` describes the interface.
//!
//! The engine, the wire protocol and the connections are `redlatch-proto`. The options are a file of `core/src`, compiled here once more.

pub mod abi;
mod bytes;
mod calls;
mod client;
mod io;
mod module;

#[allow(dead_code, unreachable_pub, reason = "a host needs a part of it")]
#[path = "../../core/src/options.rs"]
mod options;

// It finds here what it finds in `core`.
use redlatch_proto::{engine, error, url, wire};
mod owner {
    pub(crate) use redlatch_proto::key::OwnerKey as ReentryKey;
}
