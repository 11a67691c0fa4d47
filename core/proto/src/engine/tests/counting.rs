//! Plain semaphores and count-down latches: one command at a time, counted once.

use super::*;
use crate::wire::{Change, Counter, Place};

fn trade(given: u32, wanted: &[u32]) -> Change {
    Change::Trade {
        given,
        wanted: wanted.to_vec(),
    }
}

impl Sent {
    fn change(&self) -> (u64, Change) {
        match &self.op {
            Op::Change {
                sequence, change, ..
            } => (*sequence, change.clone()),
            other => panic!("not a change: {other:?}"),
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.op, Op::Read { .. })
    }
}

impl Rig {
    fn take(&mut self, permits: u32, wait: Option<Duration>) -> RequestId {
        let name = "s".into();
        self.request(Request::Take {
            name,
            permits,
            wait,
        })
    }

    fn ask(&mut self, change: Change) -> RequestId {
        let name = "s".into();
        self.request(Request::Change { name, change })
    }

    fn give(&mut self, permits: u32) -> RequestId {
        self.ask(trade(permits, &[]))
    }

    fn dropped(&mut self, permits: u32) {
        let name = "s".into();
        self.input(Input::GivenBack { name, permits });
    }

    fn await_latch(&mut self, wait: Option<Duration>) -> RequestId {
        let name = "s".into();
        self.request(Request::Await { name, wait })
    }

    fn changed(&mut self, sent: &Sent, done: i64, left: i64) {
        let ahead = None;
        self.reply(sent, Reply::Changed { done, left, ahead });
    }

    /// It waits in a crowd, behind so many.
    fn behind(&mut self, sent: &Sent, ahead: u32) {
        let (done, left, ahead) = (0, 0, Some(ahead));
        self.reply(sent, Reply::Changed { done, left, ahead });
    }

    fn unanswered(&mut self, sent: &Sent) {
        self.outcome(sent, CallOutcome::Unanswered);
    }

    fn taken(&mut self, id: RequestId) -> u32 {
        match self.done(id) {
            Done::Taken { permits, .. } => permits,
            other => panic!("not taken: {other:?}"),
        }
    }

    fn number(&mut self, id: RequestId) -> i64 {
        match self.done(id) {
            Done::Number(number) => number,
            other => panic!("not a number: {other:?}"),
        }
    }

    fn message(&mut self) {
        self.input(Input::Message("s".into()));
    }

    /// A waiter for so many permits that was refused, with its channel subscribed.
    fn refused_head(&mut self, permits: u32) -> RequestId {
        let id = self.take(permits, None);
        let sent = self.sent();
        self.changed(&sent, 0, 0);
        self.input(Input::Subscribed("s".into()));
        let sent = self.sent();
        self.changed(&sent, 0, 0);
        self.nothing_sent();
        id
    }
}

#[test]
fn a_caller_takes_permits_and_gives_them_back() {
    let mut rig = Rig::new();
    let id = rig.take(2, None);
    let sent = rig.sent();
    assert_eq!(sent.change(), (1, trade(0, &[2])));
    assert_eq!(sent.inline.map(|inline| inline.of), Some(id));
    rig.changed(&sent, 1, 3);
    assert_eq!(rig.taken(id), 2);
    let id = rig.give(2);
    let sent = rig.sent();
    assert_eq!(sent.change(), (2, trade(2, &[])));
    rig.changed(&sent, 0, 5);
    rig.released(id);
    rig.dropped(1);
    let sent = rig.sent();
    assert_eq!((sent.change(), sent.inline), ((3, trade(1, &[])), None));
    rig.changed(&sent, 0, 6);
    rig.nothing_left();
}

#[test]
fn one_command_is_in_flight_and_serves_all_callers() {
    let mut rig = Rig::new();
    let first = rig.take(1, None);
    let sent = rig.sent();
    let others: Vec<_> = [2, 3, 1].map(|permits| rig.take(permits, None)).into();
    let (one, two) = (rig.give(1), rig.give(4));
    rig.nothing_sent();
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(first), 1);
    let sent = rig.sent();
    assert_eq!(sent.change(), (2, trade(5, &[2, 3, 1])));
    rig.changed(&sent, 2, 0);
    rig.released(one);
    rig.released(two);
    assert_eq!((rig.taken(others[0]), rig.taken(others[1])), (2, 3));
    assert!(rig.pending(others[2]));
    rig.nothing_sent();
    assert_eq!(rig.subscribed, [Name::from("s")]);
    assert_eq!(rig.topic, Topic::Semaphore);
}

#[test]
fn a_lost_reply_neither_loses_nor_doubles_a_count() {
    let mut rig = Rig::new();
    let id = rig.take(2, None);
    let first = rig.sent();
    rig.unanswered(&first);
    let again = rig.sent();
    assert_eq!(again.op, first.op, "under the same number");
    rig.pass(secs(100));
    rig.unanswered(&again);
    let again = rig.sent();
    rig.changed(&again, 1, 0);
    assert_eq!(rig.taken(id), 2);
    // The answer to the first copy comes too late.
    rig.changed(&first, 1, 0);
    let id = rig.ask(Change::Drain);
    let sent = rig.sent();
    rig.input(down());
    rig.unanswered(&sent);
    rig.nothing_sent();
    rig.input(Input::Identity(77));
    rig.input(Input::Up(0));
    let again = rig.sent();
    assert_eq!(again.op, sent.op, "also the writer");
    rig.changed(&again, 3, 0);
    assert_eq!(rig.number(id), 3);
    rig.dropped(1);
    let sent = rig.sent();
    let Op::Change { writer, .. } = sent.op else {
        panic!("no change");
    };
    assert_eq!(writer, crate::wire::first_owner(77));
}

#[test]
fn a_command_is_repeated_as_long_as_its_marker_lives() {
    let mut rig = Rig::new();
    let (id, waits) = (rig.give(2), rig.take(1, None));
    let sent = rig.sent();
    rig.input(down());
    rig.unanswered(&sent);
    rig.pass(secs(11));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    rig.pass(secs(278));
    rig.nothing_sent();
    rig.pass(secs(2));
    assert!(rig.events.contains(&"permits_lost"), "{:?}", rig.events);
    rig.input(Input::Up(0));
    let sent = rig.all_sent();
    assert!(sent.iter().all(|sent| sent.change() == (2, trade(0, &[1]))));
    let _ = waits;
}

#[test]
fn permits_that_a_caller_has_left_behind_are_given_back() {
    for ends in 0..3 {
        let mut rig = Rig::new();
        let id = rig.take(2, Some(secs(3)));
        let behind = rig.take(1, None);
        let sent = rig.sent();
        match ends {
            0 => rig.cancel(id),
            1 => rig.pass(secs(4)),
            _ => {
                rig.unanswered(&sent);
                rig.cancel(id);
                let again = rig.sent();
                rig.changed(&again, 1, 0);
            }
        }
        let kind = rig.failed(id);
        let expected = [
            ErrorKind::Cancelled,
            ErrorKind::Unavailable,
            ErrorKind::Cancelled,
        ];
        assert_eq!(kind, expected[ends]);
        if ends < 2 {
            rig.changed(&sent, 1, 0);
        }
        assert_eq!(rig.taken(behind), 1);
        let sent = rig.sent();
        assert_eq!(sent.change(), (2, trade(1, &[])));
        rig.changed(&sent, 0, 1);
        rig.nothing_left();
    }
}

#[test]
fn a_waiter_tries_again_when_it_hears_something_or_after_a_while() {
    let mut rig = Rig::new();
    let id = rig.refused_head(2);
    rig.message();
    let sent = rig.sent();
    // A message that comes meanwhile counts too.
    rig.message();
    rig.message();
    rig.changed(&sent, 0, 1);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.nothing_sent();
    rig.pass(RECHECK * 2);
    let sent = rig.sent();
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(id), 2);
    rig.nothing_left();
}

#[test]
fn the_head_keeps_others_waiting_and_a_try_does_not_wait() {
    let mut rig = Rig::new();
    let head = rig.refused_head(5);
    let small = rig.take(1, None);
    let tries = rig.take(1, Some(Duration::ZERO));
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
    rig.nothing_sent();
    // The one behind the head fits when the head leaves.
    rig.cancel(head);
    assert_eq!(rig.failed(head), ErrorKind::Cancelled);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[1]));
    rig.changed(&sent, 1, 2);
    assert_eq!(rig.taken(small), 1);
    rig.nothing_left();
}

#[test]
fn a_try_in_vain_keeps_nobody_behind_it_asleep() {
    let mut rig = Rig::new();
    let first = rig.give(1);
    let sent = rig.sent();
    let (tries, waits) = (rig.take(5, Some(Duration::ZERO)), rig.take(1, None));
    rig.changed(&sent, 0, 1);
    rig.released(first);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[5, 1]));
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[1]));
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(waits), 1);
    rig.nothing_left();
}

#[test]
fn a_wait_ends_with_its_time() {
    let mut rig = Rig::new();
    let id = rig.take(1, Some(secs(3)));
    let sent = rig.sent();
    rig.changed(&sent, 0, 0);
    rig.pass(secs(3));
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_left();
    let mut rig = Rig::new();
    rig.input(down());
    let id = rig.take(1, Some(secs(3)));
    rig.pass(secs(3));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    let id = rig.take(1, Some(Duration::ZERO));
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    assert!(rig.engine.is_settled());
}

#[test]
fn an_answer_that_is_under_way_when_the_time_is_over_counts() {
    let mut rig = Rig::new();
    let won = rig.take(1, Some(secs(3)));
    let sent = rig.sent();
    rig.pass(secs(3));
    assert!(rig.pending(won));
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(won), 1);
    let refused = rig.take(1, Some(secs(3)));
    let sent = rig.sent();
    let behind = rig.take(1, Some(secs(3)));
    rig.pass(secs(3));
    assert_eq!(rig.failed(behind), ErrorKind::Timeout);
    rig.changed(&sent, 0, 0);
    assert_eq!(rig.failed(refused), ErrorKind::Timeout);
    let unheard = rig.take(1, Some(secs(3)));
    let sent = rig.sent();
    rig.pass(secs(3));
    assert!(rig.pending(unheard));
    rig.pass(tuning::PLAIN_LIMIT);
    assert_eq!(rig.failed(unheard), ErrorKind::Unavailable);
    rig.changed(&sent, 0, 0);
    rig.nothing_left();
}

#[test]
fn permits_leave_a_client_whose_own_callers_never_stop_waiting() {
    let mut rig = Rig::new();
    rig.refused_head(1);
    for _ in 0..HANDOVERS + 1 {
        rig.take(1, None);
    }
    for _ in 0..HANDOVERS {
        rig.dropped(1);
        rig.nothing_sent();
    }
    rig.dropped(1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[]), "others hear of it");
    rig.changed(&sent, 0, 1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[1, 1]), "and so do the own ones");
    rig.changed(&sent, 1, 0);
}

#[test]
fn permits_leave_a_client_that_has_passed_them_on_for_long_enough() {
    let mut rig = Rig::new();
    rig.refused_head(1);
    for _ in 0..3 {
        rig.take(1, None);
    }
    rig.dropped(1);
    rig.nothing_sent();
    rig.pass(RUN);
    rig.dropped(1);
    assert_eq!(rig.sent().change().1, trade(1, &[]), "others hear of it");
}

#[test]
fn a_stale_copy_is_sent_again_and_two_say_that_clocks_differ() {
    let mut rig = Rig::new();
    let id = rig.give(1);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Stale);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.released(id);
    let id = rig.ask(Change::AddPermits(1));
    for _ in 0..2 {
        let sent = rig.sent();
        rig.reply(&sent, Reply::Stale);
    }
    assert_eq!(rig.failed(id), ErrorKind::Unavailable);
    // An earlier copy may have been done: only the marker knows.
    let id = rig.give(1);
    let first = rig.sent();
    rig.unanswered(&first);
    for _ in 0..3 {
        rig.pass(secs(1));
        let sent = rig.sent();
        assert_eq!(sent.op, first.op);
        rig.reply(&sent, Reply::Stale);
    }
    rig.pass(secs(1));
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.released(id);
    rig.nothing_left();
}

#[test]
fn a_refusal_is_told_and_a_passing_one_is_not() {
    let mut rig = Rig::new();
    let (takes, gives) = (rig.take(2, None), rig.give(1));
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Server, true));
    rig.nothing_sent();
    rig.pass(secs(5));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[2]));
    rig.reply(&sent, Reply::Foreign("a list".into()));
    assert_eq!(rig.failed(takes), ErrorKind::ForeignKind);
    assert_eq!(rig.failed(gives), ErrorKind::ForeignKind);
    assert!(!rig.events.contains(&"permits_lost"), "its caller heard");
    rig.dropped(1);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Denied, false));
    rig.nothing_sent();
    rig.pass(secs(5));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[]), "nobody else gives it back");
    rig.reply(&sent, Reply::Foreign("a list".into()));
    assert!(rig.events.contains(&"permits_lost"), "{:?}", rig.events);
    rig.nothing_left();
}

#[test]
fn an_error_says_nothing_of_an_earlier_copy() {
    let mut rig = Rig::new();
    let id = rig.take(1, None);
    let sent = rig.sent();
    rig.unanswered(&sent);
    let again = rig.sent();
    rig.outcome(&again, refused(ErrorKind::Denied, false));
    assert!(rig.pending(id));
    rig.pass(secs(5));
    let again = rig.sent();
    assert_eq!(again.change(), sent.change());
    rig.changed(&again, 1, 0);
    assert_eq!(rig.taken(id), 1);
    rig.nothing_left();
}

#[test]
fn a_try_that_comes_while_another_is_refused_does_not_wait() {
    let mut rig = Rig::new();
    rig.take(1, None);
    let sent = rig.sent();
    let tries = rig.take(1, Some(Duration::ZERO));
    rig.changed(&sent, 0, 0);
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
    rig.nothing_sent();
}

#[test]
fn turns_of_two_callers_leave_permits_to_others() {
    let mut rig = Rig::new();
    let mut holds = rig.take(1, None);
    let sent = rig.sent();
    rig.changed(&sent, 1, 0);
    for turn in 0.. {
        assert_eq!(rig.taken(holds), 1);
        let next = rig.take(1, None);
        let sent = rig.sent();
        rig.changed(&sent, 0, 0);
        let gives = rig.give(1);
        if turn == HANDOVERS {
            assert_eq!(rig.sent().change().1, trade(1, &[]));
            break;
        }
        assert!(matches!(rig.done(gives), Done::Released));
        holds = next;
    }
}

#[test]
fn permits_pass_on_in_order_and_the_server_keeps_the_rest() {
    let mut rig = Rig::new();
    let first = rig.refused_head(3);
    let (second, third) = (rig.take(1, None), rig.take(2, None));
    let gives = rig.give(2);
    let sent = rig.sent();
    assert_eq!(
        sent.change().1,
        trade(2, &[3, 1, 2]),
        "too few for the first"
    );
    rig.changed(&sent, 0, 2);
    assert!(matches!(rig.done(gives), Done::Released));
    let gives = rig.give(3);
    assert_eq!(rig.taken(first), 3);
    assert!(matches!(rig.done(gives), Done::Released));
    let sent = rig.sent();
    assert_eq!(
        sent.change().1,
        trade(0, &[1, 2]),
        "the second wants less than the first"
    );
    rig.changed(&sent, 1, 1);
    assert_eq!(rig.taken(second), 1);
    let gives = rig.give(5);
    assert_eq!(rig.taken(third), 2);
    assert!(rig.pending(gives), "the rest is given back to the server");
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(3, &[]));
    rig.changed(&sent, 0, 4);
    assert!(matches!(rig.done(gives), Done::Released));
    rig.nothing_left();
}

#[test]
fn a_wait_reports_the_servers_last_error() {
    let mut rig = Rig::new();
    let id = rig.take(1, Some(secs(3)));
    for _ in 0..20 {
        let sent = rig.sent();
        rig.outcome(&sent, refused(ErrorKind::Server, true));
        rig.pass(Duration::from_millis(500));
        if !rig.pending(id) {
            break;
        }
    }
    assert_eq!(rig.failed(id), ErrorKind::Server);
}

#[test]
fn a_call_that_was_not_sent_is_not_done() {
    let mut rig = Rig::new();
    let (gives, adds) = (rig.give(1), rig.ask(Change::AddPermits(1)));
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    assert!(rig.pending(gives), "the engine gives it back");
    rig.pass(secs(2));
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.released(gives);
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::NotSent);
    assert_eq!(rig.failed(adds), ErrorKind::Unavailable);
    rig.nothing_sent();
    rig.pass(secs(2));
    rig.nothing_left();
}

#[test]
fn changes_are_done_in_their_order() {
    let mut rig = Rig::new();
    let set = rig.ask(Change::SetPermits(5));
    let add = rig.ask(Change::AddPermits(-3));
    let drain = rig.ask(Change::Drain);
    let gives = rig.give(1);
    let sent = rig.sent();
    assert_eq!(sent.change(), (1, Change::SetPermits(5)));
    rig.changed(&sent, 1, 5);
    assert!(matches!(rig.done(set), Done::Set(true)));
    let sent = rig.sent();
    assert_eq!(sent.change(), (2, Change::AddPermits(-3)));
    rig.changed(&sent, 0, 2);
    assert_eq!(rig.number(add), 2);
    let sent = rig.sent();
    rig.changed(&sent, 2, 0);
    assert_eq!(rig.number(drain), 2);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.released(gives);
    rig.nothing_left();
}

#[test]
fn a_caller_that_leaves_before_its_change_is_sent_changes_nothing() {
    let mut rig = Rig::new();
    let first = rig.ask(Change::AddPermits(1));
    let (add, gives) = (rig.ask(Change::AddPermits(2)), rig.give(1));
    rig.cancel(add);
    rig.cancel(gives);
    assert_eq!(rig.failed(add), ErrorKind::Cancelled);
    assert_eq!(rig.failed(gives), ErrorKind::Cancelled);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.number(first), 1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[]), "a release goes on");
    rig.changed(&sent, 0, 2);
    rig.nothing_left();
}

#[test]
fn closing_gives_back_what_unanswered_callers_win() {
    let mut rig = Rig::new();
    let (waits, gives) = (rig.take(2, None), rig.give(1));
    let sent = rig.sent();
    let close = rig.request(Request::Close { limit: secs(5) });
    assert_eq!(rig.failed(waits), ErrorKind::Closed);
    rig.changed(&sent, 1, 0);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(3, &[]));
    rig.changed(&sent, 0, 3);
    rig.released(gives);
    assert!(matches!(rig.done(close), Done::Closed(names) if names.is_empty()));
    assert!(rig.stopped);
    let late = rig.take(1, None);
    assert_eq!(rig.failed(late), ErrorKind::Closed);
}

#[test]
fn a_close_names_what_could_not_be_given_back() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(2);
    let gives = rig.give(1);
    let sent = rig.sent();
    let close = rig.request(Request::Close { limit: secs(2) });
    assert_eq!(rig.failed(waits), ErrorKind::Closed);
    rig.unanswered(&sent);
    rig.pass(secs(2));
    assert_eq!(rig.failed(gives), ErrorKind::Closed);
    assert!(matches!(rig.done(close), Done::Closed(names) if *names == [Name::from("s")]));
    assert!(rig.stopped);
}

#[test]
fn an_outage_ends_waits_but_no_release() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(1);
    rig.input(down());
    let gives = rig.give(1);
    rig.pass(OUTAGE);
    assert_eq!(rig.failed(waits), ErrorKind::Unavailable);
    assert_eq!(rig.failed(gives), ErrorKind::Unavailable);
    rig.pass(OUTAGE);
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[]));
    rig.changed(&sent, 0, 1);
    rig.nothing_left();
}

#[test]
fn those_who_wait_for_a_latch_share_a_look() {
    let mut rig = Rig::new();
    let first = rig.await_latch(None);
    let sent = rig.sent();
    assert!(sent.is_read() && sent.inline.is_some_and(|inline| inline.tracked));
    let second = rig.await_latch(Some(secs(60)));
    rig.nothing_sent();
    rig.changed(&sent, 0, 3);
    // The second came after the first look was sent.
    let sent = rig.sent();
    rig.changed(&sent, 0, 3);
    assert_eq!(rig.topic, Topic::Latch);
    rig.input(Input::Subscribed("s".into()));
    let sent = rig.sent();
    rig.changed(&sent, 0, 3);
    rig.nothing_sent();
    rig.message();
    let sent = rig.sent();
    rig.changed(&sent, 0, 0);
    for id in [first, second] {
        assert!(matches!(rig.done(id), Done::Open));
    }
    let late = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 0, 0);
    assert!(matches!(rig.done(late), Done::Open));
    rig.nothing_left();
}

#[test]
fn count_downs_share_a_command_and_each_has_its_count() {
    let mut rig = Rig::new();
    let first = rig.ask(Change::CountDown(1));
    let others = [2, 3, 4].map(|by| rig.ask(Change::CountDown(by)));
    let waits = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 7, 6);
    assert_eq!(rig.number(first), 6);
    let sent = rig.sent();
    assert_eq!(sent.change().1, Change::CountDown(9));
    rig.changed(&sent, 6, 0);
    assert_eq!(others.map(|id| rig.number(id)), [4, 1, 0]);
    assert!(matches!(rig.done(waits), Done::Open));
    rig.nothing_left();
}

#[test]
fn a_latch_that_closes_again_has_let_those_on_who_waited() {
    let mut rig = Rig::new();
    let waits = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.input(Input::Subscribed("s".into()));
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.ask(Change::CountDown(1));
    let sent = rig.sent();
    rig.ask(Change::SetCount(3));
    rig.changed(&sent, 1, 0);
    assert!(matches!(rig.done(waits), Done::Open));
    let sent = rig.sent();
    assert_eq!(sent.change().1, Change::SetCount(3));
    let tries = rig.await_latch(Some(Duration::ZERO));
    rig.changed(&sent, 1, 3);
    let sent = rig.sent();
    assert!(sent.is_read());
    rig.changed(&sent, 0, 3);
    assert_eq!(rig.failed(tries), ErrorKind::Timeout);
}

#[test]
fn a_key_that_goes_away_wakes_those_who_wait_for_a_latch() {
    let mut rig = Rig::new();
    let id = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 0, 3);
    for names in [Some(vec!["s".into()]), None] {
        rig.input(Input::Invalidated(names));
        rig.pass(tuning::LATCH_LOOK + tuning::HINT_DELAY);
        let sent = rig.sent();
        rig.changed(&sent, 0, 3);
    }
    // Each step of the count sends an invalidation. They cost a look in a while.
    for _ in 0..100 {
        rig.input(Input::Invalidated(Some(vec!["s".into()])));
        rig.pass(ms(1));
    }
    assert!(rig.all_sent().len() <= 1);
    assert!(rig.pending(id));
}

#[test]
fn a_planned_look_that_was_made_sooner_does_not_put_the_next_one_off() {
    let mut rig = Rig::new();
    let id = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 0, 3);
    let changed = || Input::Invalidated(Some(vec!["s".into()]));
    rig.input(changed());
    rig.pass(tuning::HINT_DELAY);
    let sent = rig.sent();
    rig.changed(&sent, 0, 2);
    // Another look is planned, and a message causes it now.
    rig.input(changed());
    rig.input(Input::Message("s".into()));
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    rig.input(changed());
    rig.pass(tuning::LATCH_LOOK);
    assert!(rig.sent().is_read());
    assert!(rig.pending(id));
}

#[test]
fn a_look_without_an_answer_is_repeated_and_a_try_looks_once() {
    let mut rig = Rig::new();
    let id = rig.await_latch(Some(Duration::ZERO));
    let sent = rig.sent();
    rig.unanswered(&sent);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_left();
}

#[test]
fn a_reader_of_a_counter_asks_once() {
    let mut rig = Rig::new();
    let name = "s".into();
    let counter = Counter::Semaphore;
    let id = rig.request(Request::Read { name, counter });
    let sent = rig.sent();
    rig.changed(&sent, 0, 4);
    assert_eq!(rig.number(id), 4);
    rig.nothing_left();
}

#[test]
fn a_counter_with_waiters_needs_every_message() {
    let mut rig = Rig::new();
    rig.refused_head(1);
    assert!(rig.engine.has_channels() && !rig.engine.is_at_rest());
    assert_eq!(rig.engine.skipped(rig.now, true), None);
}

#[test]
fn an_old_answer_opens_a_latch_for_nobody_who_came_later() {
    let mut rig = Rig::new();
    let before = rig.await_latch(None);
    let sent = rig.sent();
    rig.changed(&sent, 0, 1);
    let counts = rig.ask(Change::CountDown(1));
    let sent = rig.sent();
    rig.unanswered(&sent);
    let again = rig.sent();
    let after = rig.await_latch(None);
    rig.changed(&again, 1, 0);
    assert_eq!(rig.number(counts), 0);
    assert!(rig.pending(before) && rig.pending(after));
    let sent = rig.sent();
    assert!(sent.is_read(), "others may have set a new count");
    rig.changed(&sent, 0, 3);
    assert!(rig.pending(before) && rig.pending(after));
    // A waiter that comes while a change is under way may have come behind it.
    let counts = rig.ask(Change::CountDown(3));
    let sent = rig.sent();
    let late = rig.await_latch(None);
    rig.changed(&sent, 3, 0);
    assert_eq!(rig.number(counts), 0);
    assert!([before, after].map(|id| matches!(rig.done(id), Done::Open)) == [true; 2]);
    assert!(rig.pending(late));
    let sent = rig.sent();
    assert!(sent.is_read());
    rig.changed(&sent, 0, 0);
    assert!(matches!(rig.done(late), Done::Open));
}

#[test]
fn a_wake_up_before_the_answer_to_a_repeated_copy_counts() {
    let mut rig = Rig::new();
    let id = rig.take(1, None);
    let sent = rig.sent();
    rig.message();
    rig.unanswered(&sent);
    let again = rig.sent();
    rig.changed(&again, 0, 0);
    let sent = rig.sent();
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(id), 1);
}

#[test]
fn a_try_for_less_than_the_one_before_it_gets_what_is_free() {
    let mut rig = Rig::new();
    let first = rig.take(1, None);
    let sent = rig.sent();
    let (many, one) = (
        rig.take(5, Some(Duration::ZERO)),
        rig.take(1, Some(Duration::ZERO)),
    );
    rig.changed(&sent, 1, 1);
    assert_eq!(rig.taken(first), 1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[5, 1]));
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.failed(many), ErrorKind::Timeout);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[1]));
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(one), 1);
}

/// The changes that say what has happened, and the end of the text for a caller that leaves.
fn kept() -> [(Change, &'static str); 2] {
    [
        (trade(2, &[]), "so do not release them again"),
        (Change::CountDown(2), "so do not count it down again"),
    ]
}

#[test]
fn what_has_happened_is_counted_whatever_its_caller_hears() {
    for (change, end) in kept() {
        for refusal in 0..3 {
            let mut rig = Rig::new();
            let id = rig.ask(change.clone());
            let mut sent = rig.sent();
            match refusal {
                0 => rig.outcome(&sent, refused(ErrorKind::Denied, false)),
                1 => rig.cancel(id),
                _ => {
                    rig.reply(&sent, Reply::Stale);
                    sent = rig.sent();
                    rig.reply(&sent, Reply::Stale);
                }
            }
            let error = rig.error(id);
            assert!(error.message().ends_with(end), "{error}");
            if refusal != 1 {
                rig.pass(secs(5));
                sent = rig.sent();
            }
            assert_eq!(sent.change().1, change);
            rig.changed(&sent, 2, 0);
            assert!(!rig.events.contains(&"permits_lost"), "{:?}", rig.events);
            rig.nothing_left();
        }
    }
}

#[test]
fn what_nobody_can_know_is_an_event() {
    for (change, _) in kept() {
        let mut rig = Rig::new();
        let id = rig.ask(change);
        let sent = rig.sent();
        rig.input(down());
        rig.unanswered(&sent);
        rig.pass(secs(11));
        assert_eq!(rig.failed(id), ErrorKind::Unavailable);
        rig.pass(secs(280));
        assert!(rig.events.contains(&"permits_lost"), "{:?}", rig.events);
    }
}

#[test]
fn tries_that_are_answered_take_no_room() {
    let mut rig = Rig::new();
    rig.take(1, Some(Duration::ZERO));
    let mut sent = rig.sent();
    for _ in 0..100 {
        // The next one comes before the answer, so the counter is always in use.
        rig.take(1, Some(Duration::ZERO));
        rig.changed(&sent, 1, 0);
        sent = rig.sent();
    }
    assert!(rig.engine.counting.tries() <= 2);
}

#[test]
fn one_answer_refuses_all_tries_that_want_more() {
    let mut rig = Rig::new();
    let once = Some(Duration::ZERO);
    let first = rig.take(2, once);
    let sent = rig.sent();
    let (second, third) = (rig.take(2, once), rig.take(1, once));
    let (waits, last) = (rig.take(3, None), rig.take(1, once));
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.failed(first), ErrorKind::Timeout);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[2, 1, 3, 1]));
    rig.changed(&sent, 0, 1);
    assert_eq!(rig.failed(second), ErrorKind::Timeout);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(0, &[1, 3, 1]), "there is one for it");
    rig.message();
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(third), 1);
    assert_eq!(
        rig.failed(last),
        ErrorKind::Timeout,
        "it does not wait for more"
    );
    assert!(rig.pending(waits));
}

#[test]
fn tries_at_once_fail_at_once() {
    let mut rig = Rig::new();
    let once = Some(Duration::ZERO);
    let first = rig.take(1, once);
    let sent = rig.sent();
    let others: Vec<_> = (0..tuning::TAKES).map(|_| rig.take(1, once)).collect();
    rig.changed(&sent, 0, 0);
    let sent = rig.sent();
    rig.changed(&sent, 0, 0);
    for id in [&[first][..], &others].concat() {
        assert_eq!(rig.failed(id), ErrorKind::Timeout);
    }
    rig.nothing_left();
}

#[test]
fn permits_that_were_taken_away_are_not_passed_on() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(1);
    let adds = rig.ask(Change::AddPermits(-2));
    let gives = rig.give(1);
    let sent = rig.sent();
    rig.changed(&sent, 0, -2);
    assert_eq!(rig.number(adds), -2);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[1]), "the server takes it");
    rig.changed(&sent, 0, -1);
    assert!(matches!(rig.done(gives), Done::Released));
    rig.give(1);
    let sent = rig.sent();
    rig.changed(&sent, 0, 0);
    rig.give(1);
    assert_eq!(rig.taken(waits), 1, "it is passed on again");
}

#[test]
fn a_row_of_permits_that_were_passed_on_is_forgotten() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(1);
    rig.give(1);
    assert_eq!(rig.taken(waits), 1);
    rig.pass(secs(59));
    assert!(rig.engine.counting.names().next().is_some());
    rig.pass(secs(2));
    assert_eq!(rig.engine.counting.names().next(), None);
}

#[test]
fn what_is_given_back_beside_a_close_is_given_back() {
    let mut rig = Rig::new();
    let first = rig.give(1);
    let sent = rig.sent();
    let close = rig.request(Request::Close { limit: secs(2) });
    let (second, takes) = (rig.give(2), rig.take(1, None));
    assert_eq!(rig.failed(takes), ErrorKind::Closed);
    rig.changed(&sent, 0, 1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(2, &[]));
    rig.changed(&sent, 0, 3);
    for id in [first, second] {
        assert!(matches!(rig.done(id), Done::Released));
    }
    assert!(matches!(rig.done(close), Done::Closed(names) if names.is_empty()));
    let late = rig.give(1);
    assert_eq!(rig.failed(late), ErrorKind::Closed);
}

#[test]
fn a_waiter_that_looks_again_learns_that_permits_were_taken_away() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(1);
    rig.pass(RECHECK * 2);
    let sent = rig.sent();
    rig.changed(&sent, 0, -1);
    let gives = rig.give(1);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[1]));
    rig.changed(&sent, 0, 0);
    assert!(matches!(rig.done(gives), Done::Released) && rig.pending(waits));
}

#[test]
fn a_number_that_was_told_before_an_outage_passes_nothing_on() {
    let mut rig = Rig::new();
    let waits = rig.refused_head(1);
    rig.input(down());
    rig.pass(RECHECK + ms(1));
    let gives = rig.give(1);
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[1]), "others may have taken it");
    rig.changed(&sent, 0, 0);
    assert!(matches!(rig.done(gives), Done::Released) && rig.pending(waits));
}

#[test]
fn an_answer_that_is_older_than_a_recheck_passes_nothing_on() {
    let mut rig = Rig::new();
    let waits = rig.take(1, None);
    let sent = rig.sent();
    rig.pass(tuning::PLAIN_LIMIT);
    rig.unanswered(&sent);
    let again = rig.sent();
    rig.pass(RECHECK);
    let gives = rig.give(1);
    rig.changed(&again, 0, 0);
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[1]), "that was the first copy's");
    rig.changed(&sent, 0, -1);
    assert!(matches!(rig.done(gives), Done::Released) && rig.pending(waits));
}

#[test]
fn a_client_that_was_told_no_number_passes_nothing_on() {
    let mut rig = Rig::new();
    let adds = rig.ask(Change::AddPermits(-2));
    let sent = rig.sent();
    rig.changed(&sent, 0, -2);
    assert_eq!(rig.number(adds), -2);
    rig.input(down());
    let (gives, waits) = (rig.give(1), rig.take(1, None));
    rig.input(Input::Up(0));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[1]), "the server takes it");
    rig.changed(&sent, 0, -1);
    assert!(matches!(rig.done(gives), Done::Released) && rig.pending(waits));
}

#[test]
fn what_nobody_waits_for_is_given_back_after_a_passing_refusal() {
    let mut rig = Rig::new();
    rig.dropped(1);
    let sent = rig.sent();
    rig.outcome(&sent, refused(ErrorKind::Unavailable, true));
    rig.pass(secs(1));
    let sent = rig.sent();
    assert_eq!(sent.change().1, trade(1, &[]));
    rig.changed(&sent, 0, 1);
    rig.nothing_left();
}

/// A waiter with a place in a crowd, and one before it there. Its next try is in flight.
fn behind_another() -> (Rig, RequestId, Sent, OwnerId) {
    let mut rig = Rig::new();
    let id = rig.refused_head(1);
    for _ in 0..2 {
        rig.message();
        let sent = rig.sent();
        rig.behind(&sent, 1);
    }
    rig.input(Input::Subscribed("s".into()));
    let sent = rig.sent();
    let Op::Change {
        place: Some(place), ..
    } = sent.op
    else {
        panic!("no place: {:?}", sent.op);
    };
    (rig, id, sent, place.owner)
}

fn given_up(sent: &Sent) -> OwnerId {
    match &sent.op {
        Op::Release(release) => release.place.unwrap(),
        other => panic!("not given up: {other:?}"),
    }
}

#[test]
fn each_copy_of_what_gives_a_place_in_a_crowd_up_has_that_place() {
    let (mut rig, id, sent, place) = behind_another();
    rig.behind(&sent, 1);
    rig.cancel(id);
    for _ in 0..2 {
        let sent = rig.sent();
        assert_eq!(given_up(&sent), place);
        rig.unanswered(&sent);
        rig.pass(secs(1));
    }
}

#[test]
fn a_place_that_a_late_answer_tells_of_is_given_up_once_more() {
    let (mut rig, id, sent, place) = behind_another();
    rig.cancel(id);
    let release = rig.sent();
    assert_eq!(given_up(&release), place);
    rig.reply(&release, Reply::Gone(LostReason::Stolen));
    rig.behind(&sent, 1);
    assert_eq!(given_up(&rig.sent()), place);
    let next = rig.take(1, None);
    assert!(rig.engine.counting.has(next));
}

#[test]
fn a_waiter_that_left_a_permit_to_the_first_place_tries_again_soon() {
    let (mut rig, id, sent, place) = behind_another();
    rig.reply(
        &sent,
        Reply::Changed {
            done: 0,
            left: 1,
            ahead: Some(0),
        },
    );
    rig.nothing_sent();
    rig.pass(tuning::CROWD_LEFT * 2);
    let sent = rig.sent();
    let first = matches!(sent.op, Op::Change { place: Some(Place { owner, first: true }), .. } if owner == place);
    assert!(first, "{:?}", sent.op);
    rig.changed(&sent, 1, 0);
    assert_eq!(rig.taken(id), 1);
}
