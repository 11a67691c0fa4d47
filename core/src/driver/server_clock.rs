//! What we know about the clock of a server: enough to tell it when a request is too old.

use crate::moment::Moment;

/// How much slower than ours the server's clock may run: one part in so many, as is promised.
const DRIFT: u64 = 100;

/// A lower bound of the server's clock, in its milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerClock {
    server_ms: u64,
    heard: Moment,
}

impl ServerClock {
    /// The server's clock stood at `server_ms` some time before `heard`.
    pub(super) fn new(server_ms: u64, heard: Moment) -> Self {
        ServerClock { server_ms, heard }
    }

    /// The least that the server's clock shows at `now`, if it has not jumped.
    pub(super) fn least(&self, now: Moment) -> u64 {
        let since = u64::try_from(self.heard.until(now).as_millis()).unwrap_or(u64::MAX);
        // The server's clock may run slower than ours; a bound that is too low costs one round trip.
        self.server_ms.saturating_add(since - since / DRIFT)
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

    /// It was allowed for a tenth of that: what was sent when the server had said nothing for long could be done
    /// when it was thought to be dead.
    #[test]
    fn a_server_whose_clock_was_slower_by_a_hundredth_was_given_too_much_time() {
        let (clock, hour) = (ServerClock::new(0, Moment(0)), 3_600_000);
        assert!(clock.least(Moment(hour * 1000)) <= hour / 100 * 99);
    }
}
