//! The concurrency limiter: how many calls may be in flight at one server.
//!
//! It limits by AIMD (additive increase, multiplicative decrease, as in TCP congestion control; see
//! <https://en.wikipedia.org/wiki/Additive_increase/multiplicative_decrease>). The limit grows by
//! the number of answered calls while others wait, and halves when an answer is late.
//!
//! Without a limit, a burst of calls at a slow server is answered too late, and all of them are
//! repeated. From then on the server only works on copies that nobody waits for. Calls above the
//! limit wait here instead: they cost the server nothing, and can be given up with the certainty
//! that they were not executed.

use std::time::Duration;

use super::calls::OutgoingCall;
use crate::maps::SortedMap;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::Op;

/// The current limit, and the calls that wait for it.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    size: usize,
    least: usize,
    /// The time of the quickest answer: an estimate of the round trip to the server.
    quickest: Duration,
    /// When the limit was last halved. Answers to calls sent before that bring no new information.
    shrunk: Moment,
    /// Calls about locks that are held, and inspections. They go before new acquisitions.
    first: Queue,
    others: Queue,
    /// The number of calls that have waited. It keeps calls with equal time in order.
    count: u64,
}

/// Calls by the moment at which they are given up, soonest first: calls with short leases have the
/// least time.
type Queue = SortedMap<(Moment, u64), Queued>;

#[derive(Debug)]
struct Queued {
    sending: OutgoingCall,
    end: Moment,
}

impl ConcurrencyLimiter {
    pub fn new() -> Self {
        ConcurrencyLimiter::of_size(tuning::LIMIT_FIRST, tuning::LIMIT_LEAST)
    }

    /// Starts with the limit `size`, which never falls below `least`.
    pub fn of_size(size: usize, least: usize) -> Self {
        let (first, others) = (Queue::default(), Queue::default());
        ConcurrencyLimiter {
            size,
            least,
            quickest: Duration::MAX,
            shrunk: Moment::default(),
            first,
            others,
            count: 0,
        }
    }

    /// Whether one more call may be sent while `under_way` are in flight.
    pub fn is_open(&self, under_way: usize) -> bool {
        under_way < self.size
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }

    /// Holds a call back until it can be sent.
    pub fn push(&mut self, now: Moment, sending: OutgoingCall) {
        let (until, end) = (
            now.after(sending.limit / tuning::HELD_PART),
            now.after(sending.limit),
        );
        let queue = if matches!(*sending.op, Op::Acquire(_)) {
            &mut self.others
        } else {
            &mut self.first
        };
        self.count += 1;
        queue.insert((until, self.count), Queued { sending, end });
    }

    /// The next call to be sent, with what is left of its time limit. Overdue calls have to be
    /// taken out first.
    pub fn next(&mut self, now: Moment) -> Option<OutgoingCall> {
        let (_, Queued { sending, end }) =
            self.first.pop_first().or_else(|| self.others.pop_first())?;
        Some(OutgoingCall {
            limit: now.until(end),
            ..sending
        })
    }

    /// The next call that has waited too long.
    pub fn overdue(&mut self, now: Moment) -> Option<OutgoingCall> {
        let queues = [&mut self.first, &mut self.others];
        let is_due =
            |queue: &&mut Queue| queue.first().is_some_and(|((until, _), _)| *until <= now);
        let (_, queued) = queues.into_iter().find(is_due)?.pop_first()?;
        Some(queued.sending)
    }

    /// When [`overdue`](ConcurrencyLimiter::overdue) has to be called.
    pub fn next_wake(&self) -> Option<Moment> {
        [&self.first, &self.others]
            .into_iter()
            .filter_map(|queue| Some(queue.first()?.0.0))
            .min()
    }

    /// All calls that wait.
    pub fn sendings(&self) -> impl Iterator<Item = &OutgoingCall> {
        self.first
            .values()
            .chain(self.others.values())
            .map(|queued| &queued.sending)
    }

    /// Adjusts the limit to the answer of a command with `calls` calls.
    pub fn answered(&mut self, calls: usize, sent: Moment, limit: Duration, now: Moment) {
        let took = sent.until(now);
        self.quickest = self.quickest.min(took);
        if took - self.quickest <= limit / tuning::LATE_PART {
            self.size += if self.is_empty() { 0 } else { calls };
        } else if self.shrunk <= sent {
            self.size = self.least.max(self.size / 2);
            self.shrunk = now;
        }
    }
}

#[cfg(test)]
impl ConcurrencyLimiter {
    /// The current and the least limit.
    pub fn sizes(&self) -> (usize, usize) {
        (self.size, self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Acquire, Fencing, Form, Inspection, Kind, Name};

    const LIMIT: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn sending(call: u64) -> OutgoingCall {
        let op = Op::Inspect {
            name: Name::from("n"),
            kind: Kind::Reentrant,
            what: Inspection::Owners,
        };
        OutgoingCall {
            call,
            op: op.into(),
            limit: LIMIT,
            hops: 0,
            asking: false,
        }
    }

    #[test]
    fn it_grows_while_answers_are_quick_and_more_is_wanted() {
        let mut window = ConcurrencyLimiter::new();
        window.answered(1, at(0), LIMIT, at(1));
        assert!(window.is_open(tuning::LIMIT_FIRST - 1) && !window.is_open(tuning::LIMIT_FIRST));
        window.push(at(1), sending(1));
        window.answered(1, at(0), LIMIT, at(1));
        assert!(window.is_open(tuning::LIMIT_FIRST));
    }

    #[test]
    fn it_shrinks_once_for_what_was_sent_together() {
        let mut window = ConcurrencyLimiter::new();
        window.push(at(0), sending(1));
        window.answered(7 * tuning::LIMIT_FIRST, at(0), LIMIT, at(1));
        for _ in 0..50 {
            window.answered(1, at(10), LIMIT, at(500));
        }
        assert!(
            window.is_open(4 * tuning::LIMIT_FIRST - 1) && !window.is_open(4 * tuning::LIMIT_FIRST)
        );
        for turn in 1..9 {
            window.answered(1, at(1000 * turn), LIMIT, at(1000 * turn + 500));
        }
        assert!(window.is_open(tuning::LIMIT_LEAST - 1) && !window.is_open(tuning::LIMIT_LEAST));
    }

    #[test]
    fn a_server_that_is_far_away_is_not_slow() {
        let mut window = ConcurrencyLimiter::new();
        for turn in 0..9 {
            window.answered(1, at(1000 * turn), LIMIT, at(1000 * turn + 300));
        }
        assert!(window.is_open(tuning::LIMIT_FIRST - 1));
    }

    #[test]
    fn a_held_back_call_is_sent_in_its_remaining_time_or_given_up() {
        let mut window = ConcurrencyLimiter::new();
        window.push(at(0), sending(1));
        window.push(at(100), sending(2));
        assert_eq!(window.next_wake(), Some(at(500)));
        assert!(window.overdue(at(499)).is_none());
        assert_eq!(
            window.overdue(at(500)).map(|given_up| given_up.call),
            Some(1)
        );
        let next = window.next(at(300)).expect("one waits");
        assert_eq!((next.call, next.limit), (2, Duration::from_millis(800)));
        assert!(window.is_empty());
    }

    #[test]
    fn calls_for_held_locks_go_before_acquisitions() {
        let (name, form) = (Name::from("n"), Form::default());
        let fencing = Fencing::Off;
        let op = Op::Acquire(Acquire {
            fencing,
            ..Acquire::of(name, 1, form, LIMIT)
        });
        let mut window = ConcurrencyLimiter::new();
        window.push(
            at(0),
            OutgoingCall {
                op: op.into(),
                ..sending(1)
            },
        );
        window.push(at(1), sending(2));
        assert_eq!(window.sendings().count(), 2);
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(2));
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(1));
    }

    /// Otherwise a call with little time would wait behind one with much, and be sent with none
    /// left.
    #[test]
    fn a_call_with_little_time_goes_before_one_with_much() {
        let mut window = ConcurrencyLimiter::new();
        let short = |call| OutgoingCall {
            limit: LIMIT / 20,
            ..sending(call)
        };
        window.push(at(0), sending(1));
        window.push(at(1), short(2));
        window.push(at(1), short(3));
        assert_eq!(window.next_wake(), Some(at(26)));
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(2));
        assert_eq!(
            window.overdue(at(26)).map(|given_up| given_up.call),
            Some(3)
        );
        assert_eq!(window.next(at(26)).map(|next| next.call), Some(1));
    }
}
