//! How long in a row a thread that serves others may be given its answers at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::moment::Moment;

/// How many answers in a row come at once, and for how long more do: as long as the step of an event loop's own
/// timers. A loop that computes between its calls turns after so many, one that only locks after that time.
const AT_ONCE: u32 = 16;
const LIMIT: Duration = Duration::from_millis(1);

/// Counts the answers in a row for which an event loop, or a thread of an executor, did not have to turn to others.
pub(crate) struct Series {
    answers: AtomicU32,
    /// When the first of them was asked for, in the microseconds of a [`Moment`].
    since: AtomicU64,
}

impl Series {
    pub(crate) const fn new() -> Series {
        Series { answers: AtomicU32::new(0), since: AtomicU64::new(0) }
    }

    /// Whether the next answer may come at once: who never has to wait serves nobody else.
    pub(crate) fn may_go_on(&self) -> bool {
        self.may_go_on_at(clock::now())
    }

    fn may_go_on_at(&self, now: Moment) -> bool {
        // Only one thread counts here.
        let before = self.answers.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.since.store(now.0, Ordering::Relaxed);
        }
        before < AT_ONCE || Moment(self.since.load(Ordering::Relaxed)).until(now) < LIMIT
    }

    /// The thread turns to others: the answer comes later.
    pub(crate) fn end(&self) {
        self.answers.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(5_000_000);

    #[test]
    fn a_loop_that_only_locks_turns_after_a_while() {
        let series = Series::new();
        let step = LIMIT / 100;
        let given = (0..).take_while(|call| series.may_go_on_at(START.after(step * *call))).count();
        assert_eq!(given, 100);
        assert!(!series.may_go_on_at(START.after(LIMIT * 2)), "until one comes later");
        series.end();
        assert!(series.may_go_on_at(START.after(LIMIT * 2)));
    }

    #[test]
    fn a_loop_that_computes_between_its_calls_turns_after_a_few() {
        let series = Series::new();
        let given = (0..).take_while(|call| series.may_go_on_at(START.after(LIMIT * *call))).count();
        assert_eq!(given, AT_ONCE as usize);
    }
}
