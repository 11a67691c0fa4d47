//! The exclusive lock: one owner of a name, first come, first served.

mod acquire;
mod commands;
mod handover;
mod life;

pub(super) mod rules;
