//! What a program of the benchmark measures of itself, and the line it prints.

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

/// What the process has used so far.
pub(crate) struct Usage {
    pub(crate) cpu: f64,
    pub(crate) rss_kb: u64,
    pub(crate) threads: u64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let cpu = getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
            let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds(usage.user_time()) + seconds(usage.system_time())
        });
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1))
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        Usage { cpu, rss_kb: field("VmRSS:"), threads: field("Threads:") }
    }
}

/// CLOCK_MONOTONIC, which all processes share.
pub(crate) fn monotonic_ns() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// The value below which `share` of the sorted values lie.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * share).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// Jain's index of fairness: 1 when all shares are equal.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) =
        shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Prints the one line of JSON.
pub(crate) fn json(fields: &[(&str, f64)]) {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    println!("{{{}}}", fields.join(", "));
}
