//! The clock for leases and deadlines. It includes the time in which the machine is suspended
//! (`CLOCK_BOOTTIME`).

use nix::time::{ClockId, clock_gettime};

use crate::moment::Moment;

/// The time since the machine started, including suspend.
pub(crate) fn now() -> Moment {
    // The call fails only for a clock that does not exist; `CLOCK_BOOTTIME` exists since Linux
    // 2.6.39. After a failure the time is at its maximum, so that every hold counts as expired.
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
