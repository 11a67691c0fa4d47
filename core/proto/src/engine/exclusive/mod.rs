//! The exclusive lock: one owner of a name, first come, first served.
//!
//! - `acquire`: a first acquisition, from the request to the call; readers, and writers that steal.
//! - `outcomes`: the outcomes of these calls, up to the grant; timers, ends and wake-ups of waiters.
//! - `crowds`: the place of this client among many that wait.
//! - `commands`: re-entry, release and extension of a hold.
//! - `handover`: the lock goes from one caller of this client to the next, or to this client from
//!   another process.
//! - `life`: the begin, the loss and the end of a hold.
//! - `places`: the waiters of fair locks and semaphores, whose queue Redis keeps.
//! - `rules`: the conditions that block a caller.
//!
//! Another primitive gets a folder like this one. It shares the objects beside it: the names and
//! their waiters, the holds, the watchdog, the clean-ups and the links.

mod acquire;
mod commands;
mod crowds;
mod handover;
mod life;
mod outcomes;
mod places;
mod rules;
