//! Many engines, one modelled Redis, virtual time, seeded faults.
//!
//! A run is determined by its seed. It goes through a time of faults and a calm end; after every
//! step the promises that can be seen from outside are checked against what the server has:
//!
//! - what a guard calls held is held on the server (so at most one guard is held per name), unless
//!   somebody deleted the key and the engine has not been told yet;
//! - the server's count is the number of levels whenever nothing is under way;
//! - every request is answered exactly once, and never with `internal`;
//! - a lock that was released is not on the server any more;
//! - what nobody wants any more is released soon while nothing is wrong;
//! - the lock of a client that has died is gone after a lease, whatever of it still arrives;
//! - a free lock is not waited for longer than a recheck while nothing is wrong;
//! - a deleted key is told soon while nothing is wrong;
//! - a watchdog's lock is never nearer to its end than half its lease while nothing is wrong;
//! - fencing tokens grow, over a server that starts again without its data too;
//! - of the calls of half of the clients, and of all in a crowd, what `driver::played` says: between engine and server is
//!   the traffic that ships, with windows that are soon full, commands that callers share, and connections on which
//!   what is lost is lost with everything behind it;
//! - at the end there is no key, no subscription, no timer, no call and nobody waits.
//!
//! Three things are more than the engine can know of, and are excused: what a jump of the server's clock
//! does to locks that were held then; what a copy of an answered request does that the network made
//! (TCP makes none) and that arrives within the request's limit; and what a replica brings back that takes
//! over and has not got the last writes. Whoever held something that it does not have is told all the same.
//!
//! `REDLATCH_SEED=n` runs one seed and prints all that happened if it fails; `REDLATCH_SEEDS=n` sets
//! how many run. `make sim` runs `campaign`: as many seeds as there is time for.

mod callers;
pub(crate) mod network;
pub(crate) mod server;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use network::Faults;
pub(crate) use world::Counts;
use world::World;

/// How many seeds each test runs when nobody says otherwise.
const SEEDS: u64 = 400;
/// A crowd does as much in a run as others in so many.
const CROWD: u64 = 8;
/// How many of the last happenings of a failed run are shown.
pub(crate) const SHOWN: usize = 60;

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in this many of a thousand cases.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A place in a list of this length.
    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap();
        from[at]
    }
}

/// Runs a seed; returns how much that was, or what went wrong, and what happened if `traced`.
pub(crate) fn run(seed: u64, faults: Faults, traced: bool) -> (Result<Counts, String>, Vec<String>) {
    let mut world = World::new(seed, faults, traced);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = result.unwrap_or_else(|_| Err("the engine or its model panicked".to_owned()));
    (result, world.trace)
}

pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs many seeds, or the one that was asked for.
fn run_all(faults: Faults) {
    let one = number("REDLATCH_SEED");
    let many = number("REDLATCH_SEEDS").unwrap_or(SEEDS);
    let end = if faults.crowd { many.div_ceil(CROWD) } else { many };
    let seeds = one.map_or(0..end, |seed| seed..seed + 1);
    let (mut steps, mut shared) = (0, 0);
    for seed in seeds {
        match run(seed, faults, false).0 {
            Ok(counts) => (steps, shared) = (steps + counts.steps, shared + counts.shared),
            Err(wrong) => {
                let (_, trace) = run(seed, faults, true);
                let shown = if one.is_some() { 0 } else { trace.len().saturating_sub(SHOWN) };
                panic!("seed {seed}: {wrong}\n{}", trace[shown..].join("\n"));
            }
        }
    }
    println!("{steps} steps, {shared} calls in shared commands");
    assert!(shared > 0 || !faults.crowd || one.is_some(), "a crowd shares commands");
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
fn a_seed_determines_the_run() {
    assert_eq!(run(1, Faults::ALL, true).1, run(1, Faults::ALL, true).1);
}
