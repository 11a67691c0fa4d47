//! Points in time. They are inputs: nothing here reads a clock.

use std::time::Duration;

/// An instant on a clock that includes suspended time: microseconds since boot.
///
/// The engine never reads a clock; every input carries the current moment. The driver and the
/// guards read `CLOCK_BOOTTIME` (see `clock.rs`), the simulation has its own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment that is `later` after this one; saturates.
    pub fn after(self, later: Duration) -> Moment {
        Moment(
            self.0
                .saturating_add(u64::try_from(later.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// The moment that is `earlier` before this one; saturates.
    pub fn before(self, earlier: Duration) -> Moment {
        Moment(
            self.0
                .saturating_sub(u64::try_from(earlier.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// The time from this moment to `end`; zero if `end` has passed.
    pub fn until(self, end: Moment) -> Duration {
        Duration::from_micros(end.0.saturating_sub(self.0))
    }
}

/// A lease in four bytes, for values stored per hold: whole milliseconds, rounded up, as Redis
/// counts. The range is 49 days; a lease has at most one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(u32);

impl From<Duration> for Span {
    fn from(time: Duration) -> Span {
        Span(u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        Duration::from_millis(span.0.into())
    }
}

/// An optional moment in eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maybe(Moment);

impl Maybe {
    /// Never, in practice: this is 580,000 years after boot.
    const NONE: Moment = Moment(u64::MAX);

    pub fn get(self) -> Option<Moment> {
        Some(self.0).filter(|at| *at != Self::NONE)
    }
}

impl Default for Maybe {
    fn default() -> Self {
        Maybe(Self::NONE)
    }
}

impl From<Option<Moment>> for Maybe {
    fn from(moment: Option<Moment>) -> Self {
        Maybe(moment.unwrap_or(Self::NONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored lease is never shorter than the one that was asked for.
    #[test]
    fn a_kept_lease_is_rounded_up() {
        for (micros, kept) in [
            (0, 0),
            (1, 1),
            (100_000, 100),
            (100_001, 101),
            (86_400_000_000, 86_400_000),
        ] {
            let kept = Duration::from_millis(kept);
            assert_eq!(
                Duration::from(Span::from(Duration::from_micros(micros))),
                kept,
                "{micros}"
            );
        }
        assert!(Duration::from(Span::from(Duration::MAX)) > Duration::from_secs(49 * 24 * 3600));
    }
}
