//! Durations derived from a lease, and jitter.

use std::time::Duration;

use crate::moment::Moment;
use crate::tuning;

/// The lease of a look: a renewal that asks whether a hold exists and does not prolong it.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// The allowance for clocks that run at different speeds, as in the Redlock libraries.
pub(super) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// How long a lease is trusted, counted from the moment its request was sent.
pub(super) fn trusted(lease: Duration) -> Duration {
    lease.saturating_sub(drift(lease))
}

/// The lease that is trusted for at least `time`: the inverse of [`trusted`]. Zero for zero.
pub(super) fn lasting(time: Duration) -> Duration {
    if time.is_zero() {
        return time;
    }
    let nanos = ((time.as_nanos() + 2_000_000) * 100).div_ceil(99);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// When a copy sent at `sent` can no longer be executed. Its not-after counts on the server's
/// clock, which may run slower than ours.
pub(super) fn copy_expires(sent: Moment, limit: Duration) -> Moment {
    sent.after(limit + drift(limit))
}

/// When to probe a hold that was acquired at `sent` and is not covered by client tracking.
pub(super) fn look(sent: Moment) -> Moment {
    let step = u64::try_from(tuning::PROBE_STEP.as_micros()).unwrap_or(1);
    Moment(
        sent.after(tuning::PROBE_AGE)
            .0
            .div_ceil(step)
            .saturating_mul(step),
    )
}

/// The time between two renewals.
pub(super) fn period(lease: Duration) -> Duration {
    lease / 3
}

/// The time between two renewals of an adaptive lock. Its lease is the expected duration of the
/// work, so it is renewed when 5 s remain, but at most once a second.
pub(super) fn late_period(lease: Duration) -> Duration {
    lease
        .saturating_sub(tuning::ADAPTIVE_RENEWAL)
        .max(period(lease).min(Duration::from_secs(1)))
}

/// How long the mark of a writer that waits counts, unless the writer renews it.
pub(super) fn mark(preference: Duration, recheck: Duration) -> Duration {
    let most = recheck.saturating_mul(tuning::MARK_RECHECKS);
    preference.min(most).max(tuning::MARK_LEAST)
}

/// How long one copy of a request may stay unanswered. `least`: as `Config::least_limit`.
pub(super) fn limit(lease: Duration, least: Duration) -> Duration {
    let usual = (lease / 10).clamp(Duration::from_millis(50), Duration::from_secs(1));
    usual.max(least.min(lease / 4))
}

/// Pseudo-random numbers (SplitMix64) from a seed that the caller passes in. Used only to spread
/// retries.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Jitter(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration between the two, bounds included.
    /// Whether it is the turn of what is done once in `many` times, on average.
    pub(super) fn one_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX - 1);
        least + Duration::from_micros(self.next() % (span + 1))
    }

    /// The pause before a renewal or a release is retried.
    pub(super) fn retry(&mut self) -> Duration {
        self.between(tuning::RETRY_PAUSE.0, tuning::RETRY_PAUSE.1)
    }

    /// The pause after the `failures`-th transient server error in a row.
    pub(super) fn backoff(&mut self, failures: u32) -> Duration {
        let most = tuning::TRANSIENT_BACKOFF
            .1
            .min(tuning::TRANSIENT_BACKOFF.0 * 2u32.saturating_pow(failures.min(8)));
        self.between(most / 2, most)
    }

    /// How much later a waiter looks that has so many before it in a crowd. Together they look once in
    /// [`tuning::CROWD_LOOK`], as long as they are not too many.
    pub(super) fn in_crowd(&mut self, ahead: u32) -> Duration {
        let most = tuning::CROWD_LOOK.saturating_mul(ahead.saturating_mul(2));
        self.between(Duration::ZERO, most.min(tuning::CROWD_LOOK_LATEST))
    }

    /// `time`, spread by up to a tenth either way, so that waiters in many processes do not act at
    /// the same time.
    pub(super) fn spread(&mut self, time: Duration) -> Duration {
        self.between(time * 9 / 10, time * 11 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_trusted_for_less_than_it_lasts() {
        assert_eq!(
            trusted(Duration::from_secs(30)),
            Duration::from_millis(29_698)
        );
        assert_eq!(trusted(Duration::from_millis(1)), Duration::ZERO);
    }

    #[test]
    fn a_lease_is_trusted_almost_to_its_end() {
        assert_eq!(lasting(Duration::ZERO), Duration::ZERO);
        for micros in [1, 999, 1000, 123_457, 29_698_000, 86_400_000_000] {
            let time = Duration::from_micros(micros);
            let spare = trusted(lasting(time)) - time;
            assert!(spare <= Duration::from_micros(2), "{time:?} {spare:?}");
        }
    }

    #[test]
    fn holds_acquired_in_a_row_are_probed_together() {
        assert_eq!(look(Moment(1_000_000)), Moment(1_010_000));
        assert_eq!(look(Moment(1_004_999)), Moment(1_010_000));
        assert_eq!(look(Moment(1_005_000)), Moment(1_010_000));
        assert_eq!(look(Moment(1_005_001)), Moment(1_020_000));
        assert_eq!(look(Moment(u64::MAX)), Moment(u64::MAX));
    }

    #[test]
    fn limits_stay_within_their_bounds() {
        assert_eq!(
            limit(Duration::from_millis(100), Duration::ZERO),
            Duration::from_millis(50)
        );
        assert_eq!(
            limit(Duration::from_secs(3), Duration::ZERO),
            Duration::from_millis(300)
        );
        assert_eq!(
            limit(Duration::from_secs(3600), Duration::ZERO),
            Duration::from_secs(1)
        );
        let least = Duration::from_secs(3);
        assert_eq!(limit(Duration::from_secs(30), least), least);
        assert_eq!(
            limit(Duration::from_secs(2), least),
            Duration::from_millis(500)
        );
        assert_eq!(
            limit(Duration::from_millis(100), least),
            Duration::from_millis(50)
        );
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_varies() {
        let mut jitter = Jitter::new(7);
        let retries: Vec<Duration> = (0..100).map(|_| jitter.retry()).collect();
        assert!(
            retries
                .iter()
                .all(|pause| (tuning::RETRY_PAUSE.0..=tuning::RETRY_PAUSE.1).contains(pause))
        );
        assert!(retries.iter().any(|pause| *pause != retries[0]));
        assert!((0..40).all(|failures| jitter.backoff(failures) <= tuning::TRANSIENT_BACKOFF.1));
    }
}
