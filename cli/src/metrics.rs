//! Metrics of `watch`, as Prometheus reads them. Names follow OpenTelemetry's, as Prometheus spells
//! them: `redlatch.lock.hold.duration` is `redlatch_lock_hold_duration_seconds`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::held::Held;
use crate::watch::{Change, What};

/// The bounds of the histogram, in seconds: those of Prometheus' libraries, and longer ones for the
/// locks of jobs.
const BOUNDS: [f64; 12] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];

/// More locks have no metrics of their own.
const MOST_LOCKS: usize = 1000;

/// The counters since the program began.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    per_lock: bool,
    begun: bool,
    taken: u64,
    freed: u64,
    passed: u64,
    expired: u64,
    held: Histogram,
    /// The kinds that were seen: a series that vanishes is no zero for an alert.
    kinds: BTreeSet<&'static str>,
}

#[derive(Debug, Default)]
struct Histogram {
    /// One for each bound; above the last one none.
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }
}

impl Metrics {
    pub(crate) fn new(per_lock: bool) -> Self {
        Metrics {
            per_lock,
            ..Metrics::default()
        }
    }

    /// Counts what has changed. The first look finds locks that somebody took before.
    pub(crate) fn note(&mut self, changes: &[Change]) {
        if !std::mem::replace(&mut self.begun, true) {
            return;
        }
        for change in changes {
            match change.what {
                What::Taken => self.taken += 1,
                What::Freed => self.freed += 1,
                What::Passed => self.passed += 1,
                What::Shared => {}
            }
            self.expired += u64::from(change.expired);
            if let Some(time) = change.had {
                self.held.observe(time);
            }
        }
    }

    /// All of them. `locks` are those that are held; `None` while the servers are away, and then
    /// nothing is said about them.
    pub(crate) fn as_text(
        &mut self,
        locks: Option<&[Held]>,
        held_for: impl Fn(&Held) -> Duration,
        look: Duration,
    ) -> String {
        let mut page = Page::default();
        page.single(
            "redlatch_up",
            "gauge",
            "Whether the last look reached the servers.",
            u64::from(locks.is_some()),
        );
        page.single(
            "redlatch_look_duration_seconds",
            "gauge",
            "How long the last look took.",
            look.as_secs_f64(),
        );
        for (name, help, value) in [
            (
                "redlatch_lock_acquired_total",
                "Locks that were seen to be taken, hand-overs included.",
                self.taken + self.passed,
            ),
            (
                "redlatch_lock_handovers_total",
                "Locks that were seen to go from one holder to another.",
                self.passed,
            ),
            (
                "redlatch_lock_released_total",
                "Locks that were seen to become free.",
                self.freed,
            ),
            (
                "redlatch_lock_expired_total",
                "Locks whose lease was seen to run out: their holder died, was cut off or had a fixed lease.",
                self.expired,
            ),
        ] {
            page.single(name, "counter", help, value);
        }
        page.histogram(
            "redlatch_lock_hold_duration_seconds",
            "How long locks were held, as far as it was seen: at the end of a hold.",
            &self.held,
        );
        if let Some(locks) = locks {
            self.gauges(&mut page, locks, held_for);
        }
        page.text
    }

    fn gauges(&mut self, page: &mut Page, locks: &[Held], held_for: impl Fn(&Held) -> Duration) {
        self.kinds.extend(locks.iter().map(Held::stored_kind));
        let kinds = self.kinds.iter().map(|kind| (*kind, (0, 0)));
        let mut kinds: BTreeMap<&str, (usize, u64)> = kinds.collect();
        for held in locks {
            let (count, waiting) = kinds.entry(held.stored_kind()).or_default();
            *count += 1;
            *waiting += held.waiting.unwrap_or(0);
        }
        page.head("redlatch_lock_held", "gauge", "Locks that are held now.");
        for (kind, (count, _)) in &kinds {
            page.line("redlatch_lock_held", &[("kind", kind)], count);
        }
        let waiting = "Clients that wait for a lock now, at most.";
        page.head("redlatch_lock_waiting", "gauge", waiting);
        for (kind, (_, count)) in &kinds {
            page.line("redlatch_lock_waiting", &[("kind", kind)], count);
        }
        page.single(
            "redlatch_lock_held_longest_seconds",
            "gauge",
            "The longest time that a lock is held by now, as far as it was seen.",
            locks
                .iter()
                .map(&held_for)
                .max()
                .unwrap_or_default()
                .as_secs_f64(),
        );
        if !self.per_lock {
            return;
        }
        let shown = &locks[..locks.len().min(MOST_LOCKS)];
        let name = "redlatch_lock_held_seconds";
        page.head(
            name,
            "gauge",
            "How long this lock is held by now, as far as it was seen.",
        );
        for held in shown {
            let labels = [("lock", &held.name[..]), ("kind", held.stored_kind())];
            page.line(name, &labels, held_for(held).as_secs_f64());
        }
        let name = "redlatch_lock_waiters";
        page.head(
            name,
            "gauge",
            "Clients that wait for this lock now, at most.",
        );
        for held in shown {
            if let Some(count) = held.waiting {
                page.line(
                    name,
                    &[("lock", &held.name), ("kind", held.stored_kind())],
                    count,
                );
            }
        }
        page.single(
            "redlatch_locks_left_out",
            "gauge",
            "Locks that have no metrics of their own, because there are too many.",
            locks.len() - shown.len(),
        );
    }
}

/// Text in the exposition format of Prometheus.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, text)| format!("{name}=\"{}\"", escaped(text)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, count) in BOUNDS.iter().zip(histogram.buckets) {
            self.line(&bucket, &[("le", &bound.to_string())], count);
        }
        self.line(&bucket, &[("le", "+Inf")], histogram.count);
        self.line(&format!("{name}_sum"), &[], histogram.sum);
        self.line(&format!("{name}_count"), &[], histogram.count);
    }
}

/// A label's value. A backslash, a quote and a line feed would end it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_each_bucket_that_it_fits() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::from_secs(1));
        histogram.observe(Duration::from_secs(7200));
        assert_eq!(histogram.buckets, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!((histogram.count, histogram.sum), (2, 7201.0));
    }

    #[test]
    fn a_name_cannot_end_its_label() {
        let mut page = Page::default();
        page.line("m", &[("lock", "a\"} 1\nb\\")], 2);
        assert_eq!(page.text, "m{lock=\"a\\\"} 1\\nb\\\\\"} 2\n");
    }
}
