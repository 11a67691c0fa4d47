//! Simulation: many engines, one modelled Redis, virtual time, seeded faults.
//!
//! The seed determines a run. A run has a time of faults and a calm end. After every step, the
//! promises that are visible from outside are checked against the state of the server:
//!
//! - what a guard reports as held is held on the server (so at most one guard is held per name),
//!   unless another program deleted the key and the engine has not been told yet;
//! - a read-write lock has one writer, or readers, or a writer and readers of its own key;
//! - no reader of a client overtakes a writer of that client that asked before it;
//! - no more permits of a semaphore are out than there are, as holders believe and by the record of
//!   the server, which counts each as free or as taken, and not as both;
//! - nobody stays in the queue of a fair lock who does not wait for it;
//! - no reader stands back for writers of other clients longer than its option says, and no writer
//!   keeps readers back that does not wait any more;
//! - waiters of one client get permits in the order in which they asked;
//! - the server's count is the number of levels whenever no call is in flight;
//! - every request is answered exactly once, and never with `internal`;
//! - a lock that was released is not on the server any more;
//! - no client frees a lock of its own with the release of another attempt, although callers use a
//!   token several times;
//! - a lock that no caller wants any more is released soon, while nothing is wrong;
//! - the lock of a client that has died is gone after a lease, even if some of its calls still
//!   arrive;
//! - no client waits for a free lock longer than a recheck, while nothing is wrong, nor longer than its
//!   message takes, while all messages arrive; callers may ask and release in bursts;
//! - no try is refused a lock that was free from the try to its answer;
//! - the holder of a deleted key is told soon, while nothing is wrong;
//! - a lock with a watchdog always has at least half its lease left, while nothing is wrong;
//! - a server that tracks too many keys gets hardly more than twice the renewals that leases need;
//! - fencing tokens grow, even across a server restart without data;
//! - half of the clients, and all clients in a crowd, use the outbox that ships, with small windows
//!   of the concurrency limiter, batched commands, and connections on which a loss takes everything
//!   behind it along;
//!   `driver::simulated` lists what is checked about their calls;
//! - at the end no key, subscription, timer, call or waiter is left.
//!
//! The engine cannot know three things, so they are excused: the effect of a jump of the server's
//! clock on locks that were held then; a copy of an answered request that the network made (TCP
//! makes none) and that arrives within the request's limit; and locks that a replica without the
//! last writes brings back when it takes over. A holder whose lock is gone is told in all these
//! cases.
//!
//! `REDLATCH_SEED=n` runs one seed and prints the whole trace if it fails; `REDLATCH_SEEDS=n` sets
//! the number of seeds. `make sim` runs `campaign`, which runs as many seeds as the time allows.

mod callers;
pub mod network;
mod outage;
pub mod permits;
pub mod places;
pub mod server;
pub mod shared;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::random::number;

use network::Faults;
pub use world::Counts;
use world::World;

/// The number of seeds that each test runs by default.
const SEEDS: u64 = 400;
/// A run of a crowd does as much as this many other runs.
const CROWD: u64 = 8;
/// The number of trace lines shown for a failed run.
pub const SHOWN: usize = 60;

/// Runs a seed. Returns the counts or the failure, and the trace if `traced`.
pub fn run(seed: u64, faults: Faults, traced: bool) -> (Result<Counts, String>, Vec<String>) {
    let mut world = World::new(seed, faults, traced);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = result.unwrap_or_else(|_| Err("the engine or its model panicked".to_owned()));
    (result, world.trace)
}

/// Runs many seeds, or only the one in `REDLATCH_SEED`.
fn run_all(faults: Faults) {
    let one = number("REDLATCH_SEED");
    let many = number("REDLATCH_SEEDS").unwrap_or(SEEDS);
    let end = if faults.crowd {
        many.div_ceil(CROWD)
    } else {
        many
    };
    let seeds = one.map_or(0..end, |seed| seed..seed + 1);
    let (mut steps, mut shared) = (0, 0);
    for seed in seeds {
        match run(seed, faults, false).0 {
            Ok(counts) => (steps, shared) = (steps + counts.steps, shared + counts.shared),
            Err(wrong) => {
                let (_, trace) = run(seed, faults, true);
                let shown = if one.is_some() {
                    0
                } else {
                    trace.len().saturating_sub(SHOWN)
                };
                panic!("seed {seed}: {wrong}\n{}", trace[shown..].join("\n"));
            }
        }
    }
    println!("{steps} steps, {shared} calls in shared commands");
    assert!(
        shared > 0 || !faults.crowd || one.is_some(),
        "a crowd shares commands"
    );
}

#[test]
fn promises_are_kept_when_nothing_goes_wrong() {
    run_all(Faults::NONE);
}

#[test]
fn promises_are_kept_when_messages_are_lost() {
    run_all(Faults::MESSAGES);
}

#[test]
fn promises_are_kept_when_calls_and_messages_are_lost() {
    run_all(Faults::LOSSES);
}

#[test]
fn promises_are_kept_when_connections_break_and_processes_stop() {
    run_all(Faults::BREAKS);
}

#[test]
fn promises_are_kept_when_the_server_forgets_and_its_clock_jumps() {
    run_all(Faults::SERVER);
}

#[test]
fn all_but_exclusion_is_kept_when_a_replica_takes_over_that_is_behind() {
    run_all(Faults::FAILOVER);
}

#[test]
fn promises_are_kept_when_everything_goes_wrong() {
    run_all(Faults::ALL);
}

#[test]
fn promises_are_kept_in_a_crowd_at_a_slow_server() {
    run_all(Faults::CROWD);
}

#[test]
fn calls_stay_few_when_the_server_tracks_too_many_keys() {
    run_all(Faults::TENANTS);
}

#[test]
fn a_seed_determines_the_run() {
    assert_eq!(run(1, Faults::ALL, true).1, run(1, Faults::ALL, true).1);
}
