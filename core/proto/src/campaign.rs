//! `make sim`: seed after seed until the budget is spent, of the engine and of the connections. Among the
//! other tests it is a short one.
//!
//! `REDLATCH_FIRST_SEED` (default 0), `REDLATCH_SEEDS` and `REDLATCH_MINUTES` (whatever ends first;
//! default a few seeds), `REDLATCH_THREADS` (default 1). `REDLATCH_SEED=n` runs that seed alone.
#![allow(clippy::unwrap_used, reason = "a failed test says where")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::tests::simulation::network::Faults;
use crate::engine::tests::simulation::{Counts, SHOWN, run};
use crate::net::tests as connections;
use crate::support::random::number;

/// How many seeds are run when nobody says otherwise, and the minutes that they may take.
const FEW: u64 = 60;
const UNLIMITED: f64 = 1e6;
/// How many failed seeds are shown.
const FAILURES: u64 = 3;

/// Shared by the threads of a campaign.
struct Budget {
    next: AtomicU64,
    end: u64,
    until: Instant,
    seeds: AtomicU64,
    steps: AtomicU64,
    calls: AtomicU64,
    shared: AtomicU64,
    together: AtomicU64,
    connections: AtomicU64,
    violations: AtomicU64,
}

impl Budget {
    fn from_environment() -> Budget {
        let minutes: Option<f64> = std::env::var("REDLATCH_MINUTES")
            .ok()
            .and_then(|text| text.parse().ok());
        let (first, end) = match number("REDLATCH_SEED") {
            Some(seed) => (seed, seed + 1),
            None => {
                let first = number("REDLATCH_FIRST_SEED").unwrap_or(0);
                let seeds = number("REDLATCH_SEEDS").or(minutes.is_none().then_some(FEW));
                (first, seeds.map_or(u64::MAX, |seeds| first + seeds))
            }
        };
        Budget {
            next: AtomicU64::new(first),
            end,
            until: Instant::now() + Duration::from_secs_f64(60.0 * minutes.unwrap_or(UNLIMITED)),
            seeds: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            together: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            violations: AtomicU64::new(0),
        }
    }

    fn spend(&self) {
        while Instant::now() < self.until {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            self.seeds.fetch_add(1, Ordering::Relaxed);
            let (kind, faults) = kind_of(seed);
            match run(seed, faults, false).0 {
                Ok(Counts {
                    steps,
                    calls,
                    shared,
                    together,
                }) => {
                    self.steps.fetch_add(steps, Ordering::Relaxed);
                    self.calls.fetch_add(calls, Ordering::Relaxed);
                    self.shared.fetch_add(shared, Ordering::Relaxed);
                    self.together.fetch_add(together, Ordering::Relaxed);
                }
                Err(wrong) => {
                    if self.violations.fetch_add(1, Ordering::Relaxed) < FAILURES {
                        let trace = run(seed, faults, true).1;
                        show(seed, kind, &wrong, &trace);
                    }
                }
            }
            // They take longer, and every second seed has some.
            if seed.is_multiple_of(2) {
                self.connect(seed / 2, seed);
            }
        }
    }
}

impl Budget {
    /// Runs the simulation of the connections.
    fn connect(&self, own: u64, seed: u64) {
        let kind = connections::kind_of(own);
        match connections::run(own, kind, false).0 {
            Ok(counts) => {
                self.connections
                    .fetch_add(counts.connections, Ordering::Relaxed);
            }
            Err(wrong) => {
                if self.violations.fetch_add(1, Ordering::Relaxed) < FAILURES {
                    let trace = connections::run(own, kind, true).1;
                    show(seed, &format!("connections, {kind:?}"), &wrong, &trace);
                }
            }
        }
    }
}

/// Which faults a seed goes through.
fn kind_of(seed: u64) -> (&'static str, Faults) {
    let count = Faults::KINDS.len() as u64;
    Faults::KINDS[usize::try_from(seed % count).unwrap()]
}

fn show(seed: u64, kind: &str, wrong: &str, trace: &[String]) {
    let shown = if number("REDLATCH_SEED").is_some() {
        0
    } else {
        trace.len().saturating_sub(SHOWN)
    };
    println!(
        "seed {seed} ({kind}): {wrong}\n{}\nall of it: REDLATCH_SEED={seed} make sim\n",
        trace[shown..].join("\n")
    );
}

#[test]
fn campaign() {
    let budget = Budget::from_environment();
    let threads = number("REDLATCH_THREADS").unwrap_or(1);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| budget.spend());
        }
    });
    let (seeds, steps) = (budget.seeds.into_inner(), budget.steps.into_inner());
    let violations = budget.violations.into_inner();
    let minutes = begun.elapsed().as_secs_f64() / 60.0 * threads as f64;
    println!(
        "{:.1} million steps a minute on one core",
        steps as f64 / minutes / 1e6
    );
    let (calls, shared) = (budget.calls.into_inner(), budget.shared.into_inner());
    let together = budget.together.into_inner();
    let connections = budget.connections.into_inner();
    println!(
        "sim: seeds={seeds} steps={steps} calls={calls} shared={shared} multi={together} connections={connections} violations={violations}"
    );
    assert_eq!(violations, 0);
}
