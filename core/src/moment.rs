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

/// A length of time in eight bytes: whole microseconds, rounded up. For what is kept many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Span(u64);

impl From<Duration> for Span {
    fn from(time: Duration) -> Span {
        Span(u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        Duration::from_micros(span.0)
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
