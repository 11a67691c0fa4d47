//! How much a server is given at a time: no more than it answers in good time.
//!
//! Calls that come together at a server that is slow would all be answered too late, would all be asked for
//! again, and from then on the server would do nothing but copies that nobody waits for any more. So what is
//! too much for it waits here, where it costs the server nothing and can be given up with certainty.

use std::collections::BTreeMap;
use std::time::Duration;

use super::traffic::Sending;
use crate::moment::Moment;
use crate::wire::Op;

/// So many calls may be under way at least, and in the beginning. A server that does few of them a second is
/// not used by fewer of them any better, and on a busy machine every answer is late, however few there are.
const LEAST: usize = 256;
const FIRST: usize = 512;
/// Answers that come this part of their limit later than they could say that it is too much.
const SLOW: u32 = 4;
/// A call waits here for this part of its limit at most: the rest has to do for the server.
const PATIENCE: u32 = 2;

/// What waits until the server has answered other calls, and how many of those there may be.
#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    least: usize,
    /// How long the quickest answer took: so far away is the server.
    quickest: Duration,
    /// Answers to calls that were sent before say nothing new.
    shrunk: Moment,
    /// What is about locks that are held, or asked: new ones do not keep it waiting.
    first: Queue,
    others: Queue,
    /// How many have waited, to keep those in order that wait for the same time.
    count: u64,
}

/// By when they are given up, the soonest first: those with short leases have the least time.
type Queue = BTreeMap<(Moment, u64), Queued>;

#[derive(Debug)]
struct Queued {
    sending: Sending,
    end: Moment,
}

impl Window {
    pub(super) fn new() -> Self {
        Window::of_size(FIRST, LEAST)
    }

    /// Begins with `size` and never gets smaller than `least`.
    pub(super) fn of_size(size: usize, least: usize) -> Self {
        let (first, others) = (Queue::new(), Queue::new());
        Window { size, least, quickest: Duration::MAX, shrunk: Moment::default(), first, others, count: 0 }
    }

    /// Whether one more call may be sent now, while so many are under way.
    pub(super) fn is_open(&self, under_way: usize) -> bool {
        under_way < self.size
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }

    /// Keeps a call until it can be sent.
    pub(super) fn push(&mut self, now: Moment, sending: Sending) {
        let (until, end) = (now.after(sending.limit / PATIENCE), now.after(sending.limit));
        let queue =
            if matches!(*sending.op, Op::Acquire { .. }) { &mut self.others } else { &mut self.first };
        self.count += 1;
        queue.insert((until, self.count), Queued { sending, end });
    }

    /// The next call to be sent, with what is left of its time. First those are to be taken out that are overdue.
    pub(super) fn next(&mut self, now: Moment) -> Option<Sending> {
        let (_, Queued { sending, end }) = self.first.pop_first().or_else(|| self.others.pop_first())?;
        Some(Sending { limit: now.until(end), ..sending })
    }

    /// The next call that has waited for too long.
    pub(super) fn overdue(&mut self, now: Moment) -> Option<Sending> {
        let queues = [&mut self.first, &mut self.others];
        let is_due =
            |queue: &&mut Queue| queue.first_key_value().is_some_and(|((until, _), _)| *until <= now);
        let (_, queued) = queues.into_iter().find(is_due)?.pop_first()?;
        Some(queued.sending)
    }

    /// When [`overdue`](Window::overdue) is to be asked.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        [&self.first, &self.others].into_iter().filter_map(|queue| Some(queue.first_key_value()?.0.0)).min()
    }

    /// Everything that waits.
    pub(super) fn sendings(&self) -> impl Iterator<Item = &Sending> {
        self.first.values().chain(self.others.values()).map(|queued| &queued.sending)
    }

    /// The answer to so many calls in one command has come.
    pub(super) fn answered(&mut self, calls: usize, sent: Moment, limit: Duration, now: Moment) {
        let took = sent.until(now);
        self.quickest = self.quickest.min(took);
        if took - self.quickest <= limit / SLOW {
            self.size += if self.is_empty() { 0 } else { calls };
        } else if self.shrunk <= sent {
            self.size = self.least.max(self.size / 2);
            self.shrunk = now;
        }
    }
}

#[cfg(test)]
impl Window {
    /// How many calls may be under way, and how many there may be at least.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.size, self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fencing, Form, Kind, Name};

    const LIMIT: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Moment {
        Moment::default().after(Duration::from_millis(ms))
    }

    fn sending(call: u64) -> Sending {
        let op = Op::Inspect { name: Name::from("n"), kind: Kind::Reentrant };
        Sending { call, op: op.into(), limit: LIMIT, hops: 0, asking: false }
    }

    #[test]
    fn it_grows_while_answers_are_quick_and_more_is_wanted() {
        let mut window = Window::new();
        window.answered(1, at(0), LIMIT, at(1));
        assert!(window.is_open(FIRST - 1) && !window.is_open(FIRST));
        window.push(at(1), sending(1));
        window.answered(1, at(0), LIMIT, at(1));
        assert!(window.is_open(FIRST));
    }

    #[test]
    fn it_shrinks_once_for_what_was_sent_together() {
        let mut window = Window::new();
        window.push(at(0), sending(1));
        window.answered(7 * FIRST, at(0), LIMIT, at(1));
        for _ in 0..50 {
            window.answered(1, at(10), LIMIT, at(500));
        }
        assert!(window.is_open(4 * FIRST - 1) && !window.is_open(4 * FIRST));
        for turn in 1..9 {
            window.answered(1, at(1000 * turn), LIMIT, at(1000 * turn + 500));
        }
        assert!(window.is_open(LEAST - 1) && !window.is_open(LEAST));
    }

    #[test]
    fn a_server_that_is_far_away_is_not_slow() {
        let mut window = Window::new();
        for turn in 0..9 {
            window.answered(1, at(1000 * turn), LIMIT, at(1000 * turn + 300));
        }
        assert!(window.is_open(FIRST - 1));
    }

    #[test]
    fn what_waits_is_sent_in_what_is_left_of_its_time_or_given_up() {
        let mut window = Window::new();
        window.push(at(0), sending(1));
        window.push(at(100), sending(2));
        assert_eq!(window.next_wake(), Some(at(500)));
        assert!(window.overdue(at(499)).is_none());
        assert_eq!(window.overdue(at(500)).map(|given_up| given_up.call), Some(1));
        let next = window.next(at(300)).expect("one waits");
        assert_eq!((next.call, next.limit), (2, Duration::from_millis(800)));
        assert!(window.is_empty());
    }

    #[test]
    fn what_is_about_locks_that_are_held_goes_before_new_ones() {
        let (name, form) = (Name::from("n"), Form::default());
        let fencing = Fencing::Off;
        let op = Op::Acquire { name, owner: 1, form, count: 1, lease: LIMIT, fencing, replicas: 0 };
        let mut window = Window::new();
        window.push(at(0), Sending { op: op.into(), ..sending(1) });
        window.push(at(1), sending(2));
        assert_eq!(window.sendings().count(), 2);
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(2));
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(1));
    }

    /// A call with little time stood behind one with much, and was sent when nothing was left of it.
    #[test]
    fn who_has_little_time_does_not_wait_behind_those_who_have_much() {
        let mut window = Window::new();
        let short = |call| Sending { limit: LIMIT / 20, ..sending(call) };
        window.push(at(0), sending(1));
        window.push(at(1), short(2));
        window.push(at(1), short(3));
        assert_eq!(window.next_wake(), Some(at(26)));
        assert_eq!(window.next(at(2)).map(|next| next.call), Some(2));
        assert_eq!(window.overdue(at(26)).map(|given_up| given_up.call), Some(3));
        assert_eq!(window.next(at(26)).map(|next| next.call), Some(1));
    }
}
