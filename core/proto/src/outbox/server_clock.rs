//! An estimate of the server's clock, good enough to give requests a not-after.

use crate::moment::Moment;
use crate::tuning;

/// A lower bound of the server's clock, in its milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct ServerClock {
    server_ms: u64,
    heard: Moment,
}

impl ServerClock {
    /// The server's clock showed `server_ms` some time before `heard`.
    pub fn new(server_ms: u64, heard: Moment) -> Self {
        ServerClock { server_ms, heard }
    }

    /// The least that the server's clock shows at `now`, if it has not jumped.
    pub fn least(&self, now: Moment) -> u64 {
        let since = u64::try_from(self.heard.until(now).as_millis()).unwrap_or(u64::MAX);
        // The server's clock may run slower than ours. A bound that is too low costs one round
        // trip.
        self.server_ms
            .saturating_add(since - since / tuning::CLOCK_DRIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_with_our_clock_and_never_ahead_of_the_server() {
        let clock = ServerClock::new(5_000, Moment(1_000_000));
        assert_eq!(clock.least(Moment(1_000_000)), 5_000);
        assert_eq!(clock.least(Moment(1_001_999)), 5_001);
        assert_eq!(clock.least(Moment(0)), 5_000);
        assert_eq!(clock.least(Moment(31_000_000)), 34_700);
    }

    /// With a tenth of that allowance, a call sent after a long silence could be executed when we
    /// already took it for dead.
    #[test]
    fn a_server_whose_clock_was_slower_by_a_hundredth_was_given_too_much_time() {
        let (clock, hour) = (ServerClock::new(0, Moment(0)), 3_600_000);
        assert!(clock.least(Moment(hour * 1000)) <= hour / 100 * 99);
    }
}
