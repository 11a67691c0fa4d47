//! Calls that wait for replicas, before the connection for them is free.
//!
//! [`WAIT`](https://redis.io/commands/wait) blocks everything behind it, and counts only the writes
//! of its own connection. So these calls have a connection of their own, and the engine takes both
//! connections for one.

use super::News;
use super::calls::OutgoingCall;
use crate::engine::{CallOutcome, Input};
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;

#[derive(Default)]
pub struct Waiting {
    /// Calls that wait for the connection, with their deadlines.
    held: Vec<(OutgoingCall, Moment)>,
    /// Why the connection is down.
    down: Option<Error>,
}

impl Waiting {
    pub fn hold(&mut self, now: Moment, sending: OutgoingCall) {
        let end = now.after(sending.limit);
        self.held.push((sending, end));
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// When [`take`](Waiting::take) has to be called, if nothing else happens.
    pub fn next_wake(&self) -> Option<Moment> {
        self.held.iter().map(|(_, end)| *end).min()
    }

    /// Takes news of the connection, and passes them on. The engine does not hear whether it is up
    /// or down.
    pub fn hear(&mut self, heard: News, news: &mut News) {
        news.connects += heard.connects;
        news.redirects.extend(heard.redirects);
        for input in heard.inputs {
            match input {
                Input::Up(_) => self.down = None,
                Input::Down(_, error) => self.down = Some(error),
                // The owners of a client carry the identity of its connection for most calls.
                Input::Identity(_) => {}
                input => news.tell(input),
            }
        }
    }

    /// Gives up the calls whose time is over. Takes the first other one, with the rest of its time, if the
    /// connection is free: a `WAIT` without a replica blocks it for half the time of its call, and with
    /// several of them in it no call would be answered in time.
    pub fn take(&mut self, now: Moment, is_free: bool, news: &mut News) -> Option<OutgoingCall> {
        let mut taken = None;
        for (sending, end) in std::mem::take(&mut self.held) {
            if end <= now {
                news.tell(Input::Outcome {
                    call: sending.call,
                    outcome: self.not_sent(),
                });
            // With less than a quarter, the `WAIT` could end before replicas in good order answer.
            } else if is_free && taken.is_none() && now.until(end) * 4 >= sending.limit {
                taken = Some(OutgoingCall {
                    limit: now.until(end),
                    ..sending
                });
            } else {
                self.held.push((sending, end));
            }
        }
        taken
    }

    /// The outcome of a call whose deadline passed before the connection was up. The server is in
    /// reach on the connection for most calls, so only this connection knows what keeps it away.
    fn not_sent(&self) -> CallOutcome {
        let Some(error) = self.down.clone() else {
            return CallOutcome::NotSent;
        };
        let passing = !matches!(error.kind(), ErrorKind::Auth | ErrorKind::Denied);
        CallOutcome::Refused { error, passing }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::engine::STANDALONE;
    use crate::wire::{Kind, Op};

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }

    fn heard(input: Input) -> News {
        News {
            inputs: vec![input],
            connects: 1,
            ..News::default()
        }
    }

    fn held(limit: Duration) -> Waiting {
        let mut waiting = Waiting::default();
        let op = Op::Force {
            name: "n".into(),
            kind: Kind::Reentrant,
        };
        waiting.hold(
            at(0),
            OutgoingCall {
                call: 7,
                op: Arc::new(op),
                limit,
                hops: 0,
                asking: false,
            },
        );
        waiting
    }

    #[test]
    fn a_call_is_sent_with_the_rest_of_its_time() {
        let (mut waiting, mut news) = (held(Duration::from_millis(50)), News::default());
        assert!(waiting.take(at(20), false, &mut news).is_none());
        assert_eq!(waiting.next_wake(), Some(at(50)));
        let taken = waiting.take(at(20), true, &mut news);
        let limit = taken.map(|sending| sending.limit);
        assert_eq!(limit, Some(Duration::from_millis(30)));
        assert!(waiting.is_empty() && news.inputs.is_empty());
    }

    #[test]
    fn one_call_at_a_time_waits_for_replicas() {
        let (mut waiting, mut news) = (held(Duration::from_millis(50)), News::default());
        waiting.held.extend(held(Duration::from_millis(70)).held);
        let limits = [
            Some(Duration::from_millis(50)),
            Some(Duration::from_millis(70)),
            None,
        ];
        for limit in limits {
            let taken = waiting.take(at(0), true, &mut news);
            assert_eq!(taken.map(|sending| sending.limit), limit);
        }
        assert!(news.inputs.is_empty());
    }

    #[test]
    fn a_call_with_little_time_left_is_not_sent() {
        let (mut waiting, mut news) = (held(Duration::from_millis(80)), News::default());
        assert!(waiting.take(at(61), true, &mut news).is_none());
        assert!(news.inputs.is_empty());
        assert!(waiting.take(at(80), true, &mut news).is_none());
        let [Input::Outcome { outcome, .. }] = news.inputs.as_slice() else {
            panic!("{:?}", news.inputs);
        };
        assert!(matches!(outcome, CallOutcome::NotSent), "{outcome:?}");
    }

    #[test]
    fn a_late_call_is_refused_for_what_kept_the_connection_away() {
        let refusals = [(ErrorKind::Auth, false), (ErrorKind::Unavailable, true)];
        for (kind, expected) in refusals {
            let (mut waiting, mut news) = (held(Duration::ZERO), News::default());
            let error = Error::new(kind, "why");
            waiting.hear(heard(Input::Down(STANDALONE, error)), &mut news);
            assert!(waiting.take(at(1), true, &mut news).is_none());
            let [Input::Outcome { call: 7, outcome }] = news.inputs.as_slice() else {
                panic!("{:?}", news.inputs);
            };
            let CallOutcome::Refused { error, passing } = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!((error.kind(), *passing), (kind, expected));
        }
    }

    #[test]
    fn the_engine_hears_of_calls_and_connections_alone() {
        let (mut waiting, mut news) = (held(Duration::ZERO), News::default());
        let error = Error::new(ErrorKind::Unavailable, "why");
        for input in [
            Input::Down(STANDALONE, error),
            Input::Identity(5),
            Input::Up(STANDALONE),
        ] {
            waiting.hear(heard(input), &mut news);
        }
        assert_eq!((news.inputs.len(), news.connects), (0, 3));
        // Nothing keeps the connection away any more.
        waiting.take(at(1), true, &mut news);
        let outcome = news.inputs.pop();
        assert!(
            matches!(
                outcome,
                Some(Input::Outcome {
                    outcome: CallOutcome::NotSent,
                    ..
                })
            ),
            "{outcome:?}"
        );
    }
}
