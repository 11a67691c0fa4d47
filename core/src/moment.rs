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

    /// How long it is from this moment until `end`; zero if `end` has passed.
    pub(crate) fn until(self, end: Moment) -> Duration {
        Duration::from_micros(end.0.saturating_sub(self.0))
    }
}
