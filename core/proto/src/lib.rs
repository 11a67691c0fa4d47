//! The lock machine of [redlatch](https://docs.rs/redlatch): what to send to Redis, what an answer
//! means, and whom to tell. It does no I/O, starts no thread and reads no clock.
//!
//! A driver feeds [`engine::Engine`] with inputs (requests, replies, messages, the time) and
//! carries out its outputs (script calls, completions, the next instant it wants to be woken).
//! [`outbox`] decides which calls share a command, how many are in flight on a connection, and when
//! a call without an answer is given up. [`wire`] has the Lua scripts, their arguments and their
//! replies. [`net`] has the connections, as machines that are told what the sockets bring.
//!
//! The same code runs in the crate `redlatch`, where a native thread drives it, and in the
//! simulation, in virtual time. This crate is a part of redlatch and has no stable interface of its
//! own.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::new_without_default,
    reason = "redlatch documents what it re-exports"
)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests start servers"
    )
)]

#[cfg(test)]
mod campaign;
pub mod cluster;
pub mod connecting;
pub mod engine;
pub mod error;
pub mod event;
pub mod glob;
pub mod hold;
pub mod key;
pub mod maps;
pub mod moment;
pub mod net;
pub mod outbox;
pub mod primitives;
pub mod quorum;
#[cfg(test)]
mod real;
pub mod sentinel;
#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;
pub mod tuning;
pub mod url;
pub mod value;
pub mod wire;
