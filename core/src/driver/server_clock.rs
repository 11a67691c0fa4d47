//! What we know about the clock of a server: enough to tell it when a request is too old, and now and then when a lease ends.

use crate::moment::Moment;

/// How much slower or faster than ours the server's clock may run: one part in so many, as is promised.
const DRIFT: u64 = 100;
/// So many microseconds may lie between the least and the most that the server's clock shows, for it to be told when a lease ends.
const SURE: u64 = 2000;

/// Bounds of the server's clock, in its milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerClock {
    server_ms: u64,
    /// When it was asked for, if that is known.
    asked: Option<Moment>,
    heard: Moment,
}

impl ServerClock {
    /// The server's clock stood at `server_ms` some time before `heard`.
    pub(super) fn new(server_ms: u64, heard: Moment) -> Self {
        ServerClock { server_ms, asked: None, heard }
    }

    /// The same, and not before `asked`.
    pub(super) fn between(server_ms: u64, asked: Moment, heard: Moment) -> Self {
        ServerClock { server_ms, asked: Some(asked), heard }
    }

    /// The least that the server's clock shows at `now`, if it has not jumped.
    pub(super) fn least(&self, now: Moment) -> u64 {
        let since = u64::try_from(self.heard.until(now).as_millis()).unwrap_or(u64::MAX);
        // The server's clock may run slower than ours; a bound that is too low costs one round trip.
        self.server_ms.saturating_add(since - since / DRIFT)
    }

    /// The most that it shows at `now`, if it has not jumped and was heard of lately: within 50 ms, of a server that is near.
    pub(super) fn most(&self, now: Moment) -> Option<u64> {
        let micros = |from: Moment| u64::try_from(from.until(now).as_micros()).unwrap_or(u64::MAX);
        let (longest, shortest) = (micros(self.asked?), micros(self.heard));
        // It has shown up to a millisecond more than it told.
        let most = longest.checked_add(longest.div_ceil(DRIFT) + 999)?;
        let least = shortest - shortest / DRIFT;
        (most - least <= SURE).then(|| self.server_ms.saturating_add(most.div_ceil(1000)))
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
    #[test]
    fn it_is_never_behind_the_server_and_says_so_only_while_it_is_sure() {
        // Asked at 999.8 ms of our time and heard at 1,000 ms: it has shown 5,000 to 5,000.999 in between.
        let clock = ServerClock::between(5_000, Moment(999_800), Moment(1_000_000));
        assert_eq!(clock.most(Moment(1_000_000)), Some(5_002));
        assert_eq!(clock.most(Moment(1_030_000)), Some(5_032));
        assert_eq!(clock.most(Moment(1_060_000)), None, "its clock may run faster than ours");
        let far = ServerClock::between(5_000, Moment(998_000), Moment(1_000_000));
        assert_eq!(far.most(Moment(1_000_000)), None, "nobody knows when it has answered");
        assert_eq!(ServerClock::new(5_000, Moment(1_000_000)).most(Moment(1_000_000)), None);
    }
}
