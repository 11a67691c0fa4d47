//! The times that follow from a lease, and jitter.

use std::time::Duration;

use crate::moment::Moment;

/// How long before a retry of a renewal or a release, at least and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));
/// The first and the longest pause after errors that may pass (loading, busy, a demoted primary).
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How long an invalidation waits for the message that usually follows it.
pub(super) const HINT_DELAY: Duration = Duration::from_millis(10);
/// A waiter looks again this long after the holder's time should have run out.
pub(super) const EXPIRY_SLACK: Duration = Duration::from_millis(2);
/// What remains of an adaptive lock when it is renewed.
const LATE: Duration = Duration::from_secs(5);
/// What was acquired where nobody tells of changes is looked at when it is this old, together with what gets that
/// old soon.
const SETTLED: Duration = Duration::from_millis(5);
const TOGETHER: Duration = Duration::from_millis(10);
/// As old may the last word of the server be when a lock goes from one caller of a client to the next before the server
/// is asked: as old as it gets where nobody tells of changes.
pub(super) const FRESH: Duration = SETTLED;
/// So many tries may invalidations cause in the time of a recheck, where no message follows them.
pub(super) const HINTS: u32 = 20;
/// The response limit of calls that have no lease.
pub(super) const PLAIN_LIMIT: Duration = Duration::from_secs(1);

/// The allowance for clocks that run at different speeds, as in the Redlock libraries.
pub(super) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// How long a lease is trusted, counted from when its request was sent.
pub(super) fn trusted(lease: Duration) -> Duration {
    lease.saturating_sub(drift(lease))
}

/// The lease that is trusted for at least `time`: the inverse of [`trusted`]; zero for zero.
pub(super) fn lasting(time: Duration) -> Duration {
    if time.is_zero() {
        return time;
    }
    let nanos = ((time.as_nanos() + 2_000_000) * 100).div_ceil(99);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// When a copy that was sent at `sent` cannot run any more. Its not-after counts on the server's
/// clock, which may be slower than ours.
pub(super) fn copy_expires(sent: Moment, limit: Duration) -> Moment {
    sent.after(limit + drift(limit))
}

/// When to look at something that was acquired at `sent` where nobody tells of changes.
pub(super) fn look(sent: Moment) -> Moment {
    let step = u64::try_from(TOGETHER.as_micros()).unwrap_or(1);
    Moment(sent.after(SETTLED).0.div_ceil(step).saturating_mul(step))
}

/// The time between two renewals.
pub(super) fn period(lease: Duration) -> Duration {
    lease / 3
}

/// The same for an adaptive lock, which lives for as long as the work should take: it is renewed
/// when 5 s remain, if that is not more often than every second.
pub(super) fn late_period(lease: Duration) -> Duration {
    lease.saturating_sub(LATE).max(period(lease).min(Duration::from_secs(1)))
}

/// How long one copy of a request may stay unanswered.
pub(super) fn limit(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

/// The same for an acquisition that so many replicas are to acknowledge: they have as long as the server.
pub(super) fn limit_with(replicas: u32, lease: Duration) -> Duration {
    if replicas == 0 { limit(lease) } else { limit(lease) * 2 }
}

/// Pseudo-random numbers from a seed that is handed in (SplitMix64): spreads retries, nothing else.
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

    /// A duration between the two, both possible.
    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX - 1);
        least + Duration::from_micros(self.next() % (span + 1))
    }

    /// The pause before a retry of a renewal or a release.
    pub(super) fn retry(&mut self) -> Duration {
        self.between(RETRY.0, RETRY.1)
    }

    /// The pause after the `failures`-th error in a row that may pass.
    pub(super) fn backoff(&mut self, failures: u32) -> Duration {
        let most = BACKOFF.1.min(BACKOFF.0 * 2u32.saturating_pow(failures.min(8)));
        self.between(most / 2, most)
    }

    /// A time spread by a tenth to both sides, so that waiters of many processes do not march in step.
    pub(super) fn spread(&mut self, time: Duration) -> Duration {
        self.between(time * 9 / 10, time * 11 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_trusted_for_less_than_it_lasts() {
        assert_eq!(trusted(Duration::from_secs(30)), Duration::from_millis(29_698));
        assert_eq!(trusted(Duration::from_millis(1)), Duration::ZERO);
    }

    #[test]
    fn what_lasts_is_trusted_long_enough_and_not_much_longer() {
        assert_eq!(lasting(Duration::ZERO), Duration::ZERO);
        for micros in [1, 999, 1000, 123_457, 29_698_000, 86_400_000_000] {
            let time = Duration::from_micros(micros);
            let spare = trusted(lasting(time)) - time;
            assert!(spare <= Duration::from_micros(2), "{time:?} {spare:?}");
        }
    }

    #[test]
    fn what_was_acquired_soon_after_each_other_is_looked_at_together_and_soon() {
        assert_eq!(look(Moment(1_000_000)), Moment(1_010_000));
        assert_eq!(look(Moment(1_004_999)), Moment(1_010_000));
        assert_eq!(look(Moment(1_005_000)), Moment(1_010_000));
        assert_eq!(look(Moment(1_005_001)), Moment(1_020_000));
        assert_eq!(look(Moment(u64::MAX)), Moment(u64::MAX));
    }

    #[test]
    fn limits_stay_within_their_bounds() {
        assert_eq!(limit(Duration::from_millis(100)), Duration::from_millis(50));
        assert_eq!(limit(Duration::from_secs(3)), Duration::from_millis(300));
        assert_eq!(limit(Duration::from_secs(3600)), Duration::from_secs(1));
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_varies() {
        let mut jitter = Jitter::new(7);
        let retries: Vec<Duration> = (0..100).map(|_| jitter.retry()).collect();
        assert!(retries.iter().all(|pause| (RETRY.0..=RETRY.1).contains(pause)));
        assert!(retries.iter().any(|pause| *pause != retries[0]));
        assert!((0..40).all(|failures| jitter.backoff(failures) <= BACKOFF.1));
    }
}
