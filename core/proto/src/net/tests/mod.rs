//! Simulation of the connections: clients that ship, servers that speak RESP, virtual time, seeded
//! faults. The world stands in for the engine, which has a simulation of its own, and for the
//! sockets.
//!
//! A seed determines a run: a time of faults, then a calm end. Bytes arrive in any pieces, and a
//! connection may end behind any byte. These promises are checked after every step:
//!
//! - each call has one outcome, within its limit, and an answer is the one that a server gave to
//!   this call;
//! - a refusal is one that a server gave to this call, and a call of a quorum goes to its own server;
//! - a call that a server may have executed is not told as not sent, and has no second copy;
//! - a call whose connection has gone is told so at once; a call is told as unanswered for no other
//!   reason than that, or the end of its time;
//! - a command that arrives in time is not refused as late, and a late copy does nothing;
//! - a connection that a server turns away (users, passwords, too many clients, a server that loads)
//!   ends no other one, and a server is told as out of reach only while its connection for calls is down;
//! - no sentinel is told the password of the servers;
//! - a connection is used for calls when the server has taken user and password, the name, the
//!   database and tracking, reports the role of primary where sentinels name it, and runs for long
//!   enough where it is of a quorum;
//! - each connection is one that the client still has: none is forgotten, and none is written to
//!   after its end;
//! - the generation of a connection never goes back;
//! - with RESP2 no command but those of pub/sub is sent where channels are subscribed;
//! - no command has keys of several slots in a cluster;
//! - a message is one that was sent on the channel of the name, an invalidation one of the key, and a
//!   confirmation one of a channel that is wanted, and the server's;
//! - no error and no event has a password;
//! - nothing that is due stays due;
//! - a connection of a tool, or an inline one, is as ready when it is used; its tool hears the error that a
//!   server gave to it, or how a connection was lost, and never waits while nothing is under way;
//! - a program is asked for user and password again before they are told as refused.
//!
//! At the calm end, some seconds after the last fault:
//!
//! - every call is answered, at the primary and at the node of its slot, unless it is lost on an idle
//!   connection that has hung since the faults, before the client can know;
//! - every wanted channel is confirmed again since its connection was lost, a message on it arrives,
//!   and no other channel is subscribed;
//! - a change of a tracked key is told;
//! - each tool is connected, and each of its questions answered;
//! - no more connections are open than the client needs.
//!
//! `REDLATCH_SEED=n` runs one seed and prints the whole trace if it fails; `REDLATCH_SEEDS=n` sets the
//! number of seeds. A campaign (`make sim`) has half of its seeds play connections, too.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test says where"
)]

mod faults;
mod redis;
mod serving;
mod tools;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::random::number;

pub use world::Counts;
use world::World;

/// The number of seeds that each test runs by default.
const SEEDS: u64 = 20;
/// The number of trace lines shown for a failed run.
pub const SHOWN: usize = 60;

/// How the servers are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One server that speaks RESP3.
    Resp3,
    /// One server, with RESP2: channels have a connection of their own.
    Resp2,
    Sentinel,
    Cluster,
    Quorum,
}

const KINDS: [Kind; 5] = [
    Kind::Resp3,
    Kind::Resp2,
    Kind::Sentinel,
    Kind::Cluster,
    Kind::Quorum,
];

/// The kind of a seed of a campaign, and whether there are faults.
pub fn kind_of(seed: u64) -> (Kind, bool) {
    let count = KINDS.len() as u64;
    let kind = KINDS[usize::try_from(seed % count).unwrap()];
    (kind, !(seed / count).is_multiple_of(8))
}

/// Runs a seed. Returns the counts or the failure, and the trace if `traced`.
pub fn run(
    seed: u64,
    (kind, faults): (Kind, bool),
    traced: bool,
) -> (Result<Counts, String>, Vec<String>) {
    let mut world = World::new(seed, kind, faults, traced);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = result.unwrap_or_else(|_| Err("a connection or its model panicked".to_owned()));
    (result, world.trace)
}

/// Runs many seeds, or only the one in `REDLATCH_SEED`.
fn run_all(kind: Kind, faults: bool) {
    let one = number("REDLATCH_SEED");
    let many = number("REDLATCH_SEEDS").unwrap_or(SEEDS);
    let many = if faults { many } else { many.div_ceil(8) };
    let seeds = one.map_or(0..many, |seed| seed..seed + 1);
    let (mut answered, mut turned_away) = (0, 0);
    for seed in seeds {
        match run(seed, (kind, faults), false).0 {
            Ok(counts) => {
                answered += counts.answered;
                turned_away += counts.turned_away;
            }
            Err(wrong) => {
                let (_, trace) = run(seed, (kind, faults), true);
                let shown = if one.is_some() {
                    0
                } else {
                    trace.len().saturating_sub(SHOWN)
                };
                panic!(
                    "{kind:?}, seed {seed}: {wrong}\n{}",
                    trace[shown..].join("\n")
                );
            }
        }
    }
    assert!(answered > 0);
    // Messages have a connection of their own there.
    let is_apart = !matches!(kind, Kind::Resp3 | Kind::Quorum);
    assert!(one.is_some() || !faults || !is_apart || turned_away > 0);
}

#[test]
fn promises_of_connections_are_kept_when_nothing_goes_wrong() {
    for kind in KINDS {
        run_all(kind, false);
    }
}

#[test]
fn promises_of_connections_are_kept_at_one_server() {
    run_all(Kind::Resp3, true);
}

#[test]
fn promises_of_connections_are_kept_with_resp2() {
    run_all(Kind::Resp2, true);
}

#[test]
fn promises_of_connections_are_kept_when_sentinels_name_another_primary() {
    run_all(Kind::Sentinel, true);
}

#[test]
fn promises_of_connections_are_kept_when_slots_move() {
    run_all(Kind::Cluster, true);
}

#[test]
fn promises_of_connections_are_kept_in_a_quorum() {
    run_all(Kind::Quorum, true);
}

#[test]
fn a_seed_determines_the_run_of_connections() {
    let run = || run(3, (Kind::Cluster, true), true).1;
    assert!(run() == run());
}
