//! The figures that a program of the benchmark measures of itself, and the line that it prints.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

use crate::{ALLOCATIONS, LIVE_BYTES};

/// The resources that the process has used so far, and those that it uses now.
pub(crate) struct Usage {
    pub(crate) cpu: f64,
    /// How often one of its threads went to sleep.
    pub(crate) switches: f64,
    pub(crate) allocations: f64,
    pub(crate) live_bytes: f64,
    pub(crate) rss_kb: f64,
    pub(crate) threads: f64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let (cpu, switches) = getrusage(UsageWho::RUSAGE_SELF).map_or((0.0, 0.0), |usage| {
            let seconds =
                |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
            (cpu, usage.voluntary_context_switches() as f64)
        });
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1))
                .and_then(|word| word.parse().ok())
                .unwrap_or(0.0)
        };
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) as f64;
        let live_bytes = LIVE_BYTES.load(Ordering::Relaxed) as f64;
        Usage {
            cpu,
            switches,
            allocations,
            live_bytes,
            rss_kb: field("VmRSS:"),
            threads: field("Threads:"),
        }
    }
}

/// The least memory that the process had on the heap while it held its locks, by samples from the
/// second half of that time. Calls in flight take memory too, and on a busy machine some always
/// are.
#[derive(Default)]
pub(crate) struct LeastMemory(Vec<f64>);

impl LeastMemory {
    /// How many samples are taken while the locks are held.
    pub(crate) const SAMPLES: u32 = 40;

    /// The pause before each sample.
    pub(crate) fn pause(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds / f64::from(Self::SAMPLES))
    }

    pub(crate) fn sample(&mut self) {
        self.0.push(LIVE_BYTES.load(Ordering::Relaxed) as f64);
    }

    fn live_bytes(&self) -> f64 {
        let later = self.0.iter().skip(self.0.len() / 2);
        later.copied().fold(f64::INFINITY, f64::min)
    }
}

/// CLOCK_MONOTONIC, which all processes share.
pub(crate) fn monotonic_ns() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// The value below which `share` of the sorted values lie.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * share).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// Jain's index of fairness: 1 when all shares are equal.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, squares + share * share)
    });
    if squares == 0.0 {
        0.0
    } else {
        sum * sum / (shares.len() as f64 * squares)
    }
}

/// Which shares of all times are at most as long as each entry of `quantiles_us`.
const SHARES: [f64; 12] = [
    0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0,
];

/// The line of JSON, field by field.
pub(crate) struct Report(Vec<String>);

impl Report {
    /// Begins with what was used in the time measured.
    pub(crate) fn new(seconds: f64, used: &Usage) -> Report {
        Report(Vec::new())
            .with("seconds", seconds)
            .with("cpu_s", used.cpu)
            .with("switches", used.switches)
            .with("allocations", used.allocations)
    }

    pub(crate) fn with(mut self, name: &str, value: f64) -> Report {
        self.0.push(format!("\"{name}\": {value}"));
        self
    }

    /// The measurements of one caller, in microseconds.
    pub(crate) fn with_latencies(mut self, mut times: Vec<f64>) -> Report {
        times.sort_by(f64::total_cmp);
        let quantiles = SHARES.map(|share| format!("{:.2}", percentile(&times, share)));
        self.0
            .push(format!("\"quantiles_us\": [{}]", quantiles.join(", ")));
        self.with("pairs", times.len() as f64)
            .with("p50_us", percentile(&times, 0.5))
            .with("p99_us", percentile(&times, 0.99))
            .with("max_us", percentile(&times, 1.0))
    }

    /// The measurements of the callers of W4.
    pub(crate) fn with_turns(self, turns: Vec<Turns>) -> Report {
        let shares: Vec<f64> = turns.iter().map(|each| each.acquired as f64).collect();
        let handed: u64 = turns.iter().map(|each| each.handed).sum();
        let mut waits: Vec<f64> = turns.into_iter().flat_map(|each| each.waits).collect();
        waits.sort_by(f64::total_cmp);
        self.with("acq", shares.iter().sum())
            .with("handoffs", handed as f64)
            .with("max_wait_ms", percentile(&waits, 1.0))
            .with("p99_wait_ms", percentile(&waits, 0.99))
            .with("jain", jain(&shares))
    }

    /// How W5 went, with what the process used before the locks were taken.
    pub(crate) fn with_held(
        self,
        locks: usize,
        before: &Usage,
        least: &LeastMemory,
        acquire_s: f64,
    ) -> Report {
        let now = Usage::now();
        self.with("locks", locks as f64)
            .with("rss_before_kb", before.rss_kb)
            .with("rss_after_kb", now.rss_kb)
            .with("threads", now.threads)
            .with("acquire_s", acquire_s)
            .with("live_bytes", least.live_bytes() - before.live_bytes)
    }

    pub(crate) fn print(self) {
        println!("{{{}}}", self.0.join(", "));
    }
}

/// The record of one caller of W4: how often it held the lock, how often it got it from another
/// caller, and its waits in ms.
#[derive(Default)]
pub(crate) struct Turns {
    pub(crate) acquired: u64,
    pub(crate) handed: u64,
    pub(crate) waits: Vec<f64>,
}
