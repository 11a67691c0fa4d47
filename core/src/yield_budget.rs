//! A cooperative budget, as `tokio::task::coop`: how many answers in a row an event loop may get
//! inline.

use crate::clock;
use crate::moment::Moment;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::tuning;

/// Counts the inline answers in a row, for which an event loop or an executor's thread did not turn
/// to its other tasks.
pub(crate) struct YieldBudget {
    answers: AtomicU32,
    /// When the first of them was asked for, in microseconds as in [`Moment`].
    since: AtomicU64,
}

impl YieldBudget {
    pub(crate) const fn new() -> YieldBudget {
        YieldBudget {
            answers: AtomicU32::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// Whether the next answer may come inline. A thread that never had to wait would not serve its
    /// other tasks.
    pub(crate) fn has_remaining(&self) -> bool {
        self.has_remaining_at(clock::now())
    }

    fn has_remaining_at(&self, now: Moment) -> bool {
        // `Relaxed` is enough: only one thread counts.
        let before = self.answers.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.since.store(now.0, Ordering::Relaxed);
        }
        before < tuning::INLINE_ANSWERS
            || Moment(self.since.load(Ordering::Relaxed)).until(now) < tuning::INLINE_TIME
    }

    /// Starts a new budget: the thread turns to its other tasks, and the answer comes later.
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
        let series = YieldBudget::new();
        let step = tuning::INLINE_TIME / 100;
        let given = (0..)
            .take_while(|call| series.has_remaining_at(START.after(step * *call)))
            .count();
        assert_eq!(given, 100);
        assert!(
            !series.has_remaining_at(START.after(tuning::INLINE_TIME * 2)),
            "until one comes later"
        );
        series.end();
        assert!(series.has_remaining_at(START.after(tuning::INLINE_TIME * 2)));
    }

    #[test]
    fn a_loop_that_computes_between_its_calls_turns_after_a_few() {
        let series = YieldBudget::new();
        let given = (0..)
            .take_while(|call| series.has_remaining_at(START.after(tuning::INLINE_TIME * *call)))
            .count();
        assert_eq!(given, tuning::INLINE_ANSWERS as usize);
    }
}
