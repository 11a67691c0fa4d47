//! The C face: translates between C and the core, and decides nothing.
//!
//! Every exported function hands its body to [`status`](status::status) or
//! [`value`](status::value), which catch panics and keep the text of a failure. Most are rows of
//! `exports!`. The doc comments of exported items become `include/redlatch.h`, which is the manual.
// C has the naming rules here, and what a caller must see to is said once, at the top of the
// header.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod arguments;
mod calls;
pub mod canceller;
pub mod client;
pub mod counters;
pub mod events;
mod exports;
pub mod lock;
pub mod options;
pub mod semaphore;
pub mod status;

/// Locks a mutex. Nothing under one of ours is left half done by a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "../tests/header.rs"]
mod header;
