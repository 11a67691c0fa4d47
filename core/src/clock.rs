//! The clock of everything that is promised: it goes on while the machine is suspended.

use nix::time::{ClockId, clock_gettime};

use crate::moment::Moment;

/// The time since the machine started, suspend included.
pub(crate) fn now() -> Moment {
    // The call fails only for clocks that do not exist; this one has been there since Linux 2.6.39.
    // Without it, time stands at its end: every hold counts as expired, none as held for ever.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Moment(u64::MAX), |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        let micros = u64::try_from(time.tv_nsec()).unwrap_or_default() / 1000;
        Moment(seconds.saturating_mul(1_000_000).saturating_add(micros))
    })
}

#[cfg(test)]
mod tests {
    use super::now;

    #[test]
    fn it_never_goes_back() {
        let first = now();
        assert!((0..1000).map(|_| now()).is_sorted_by(|a, b| a <= b));
        assert!(now() >= first && first.0 > 0);
    }
}
