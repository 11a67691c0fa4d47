//! Points in time, as numbers that are handed in.

use std::time::Duration;

/// An instant on a clock that counts suspend: microseconds since the machine started.
///
/// The engine never reads a clock; it is told the moment with every input. The driver and the
/// guards read `CLOCK_BOOTTIME` (see `clock.rs`), the simulation makes its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// The moment `later` from this one; saturates.
    pub(crate) fn after(self, later: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(later.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The moment `earlier` than this one; saturates.
    pub(crate) fn before(self, earlier: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(earlier.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long it is from this moment until `end`; zero if `end` has passed.
    pub(crate) fn until(self, end: Moment) -> Duration {
        Duration::from_micros(end.0.saturating_sub(self.0))
    }
}

/// A lease in four bytes: whole milliseconds, rounded up, as Redis counts it. Enough for 49 days, of which a lease has one
/// at most. For what is kept many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Span(u32);

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

/// A moment or none, in eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Maybe(Moment);

impl Maybe {
    /// As good as never: a machine that has run for so long has no use for it.
    const NONE: Moment = Moment(u64::MAX);

    pub(crate) fn get(self) -> Option<Moment> {
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

    /// A lease that is kept is never shorter than the one that was asked for.
    #[test]
    fn a_kept_lease_is_rounded_up() {
        for (micros, kept) in [(0, 0), (1, 1), (100_000, 100), (100_001, 101), (86_400_000_000, 86_400_000)] {
            let kept = Duration::from_millis(kept);
            assert_eq!(Duration::from(Span::from(Duration::from_micros(micros))), kept, "{micros}");
        }
        assert!(Duration::from(Span::from(Duration::MAX)) > Duration::from_secs(49 * 24 * 3600));
    }
}
