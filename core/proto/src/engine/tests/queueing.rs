//! Fair locks: each waiter has a place in a queue that the server keeps.

use super::*;

const FAIR: Terms = Terms {
    kind: Kind::Fair,
    ..WATCHED
};
/// Long enough for each waiter to ask once more, and short enough for its place.
const ASKED_AGAIN: Duration = Duration::from_secs(6);

/// The owner that asks, whose place it takes, and whether it wants a place.
fn asked(sent: &Sent) -> (OwnerId, Option<OwnerId>, bool) {
    match &sent.op {
        Op::Acquire(op) => {
            let seat = op.payload.seat().cloned().unwrap_or_default();
            (op.owner, seat.earlier.first().copied(), seat.queues)
        }
        other => panic!("not an acquire: {other:?}"),
    }
}

/// Its earlier owners.
fn befores(sent: &Sent) -> Vec<OwnerId> {
    match &sent.op {
        Op::Acquire(op) => op.payload.seat().unwrap().earlier.clone(),
        other => panic!("not an acquire: {other:?}"),
    }
}

/// The owner whose place and permits are given up.
fn given_up(sent: &Sent) -> Option<OwnerId> {
    match &sent.op {
        Op::Release(Release { owner, .. }) => Some(*owner),
        _ => None,
    }
}

impl Rig {
    fn queue_up(&mut self) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, FAIR)
    }

    /// A waiter that has its place, and its owner.
    fn seated(&mut self) -> (RequestId, OwnerId) {
        let id = self.queue_up();
        let sent = self.sent();
        self.busy(&sent, LEASE);
        (id, asked(&sent).0)
    }

    /// The first waiter hears that its channel is subscribed, and asks once more.
    fn listens(&mut self, owner: OwnerId) {
        assert_eq!(self.subscribed, [Name::from("n")]);
        assert_eq!(self.topic, Topic::Place(owner));
        self.input(Input::Subscribed("n".into()));
        let sent = self.sent();
        assert_eq!(asked(&sent).0, owner);
        self.busy(&sent, LEASE);
    }

    fn told(&mut self) {
        self.input(Input::Message("n".into()));
    }

    /// The only call gives up the place of this owner.
    fn leaves(&mut self, owner: OwnerId) {
        let sent = self.sent();
        assert_eq!((sent.release().0, sent.release().1), (owner, 0));
        self.reply(&sent, Reply::Gone(LostReason::Stolen));
    }
}

/// A call for another name is in flight, so no caller makes its own call itself.
fn occupied() -> Rig {
    let mut rig = Rig::new();
    rig.acquire_with("other", OwnerKey::Once, None, WATCHED);
    rig.sent();
    rig
}

#[test]
fn every_waiter_asks_when_it_comes_and_again_before_its_place_runs_out() {
    let mut rig = occupied();
    for _ in 0..3 {
        rig.queue_up();
    }
    let sent = rig.all_sent();
    let owners: Vec<OwnerId> = sent.iter().map(|sent| asked(sent).0).collect();
    assert!(sent.iter().all(|sent| asked(sent).2));
    assert_eq!(sent.len(), 3);
    sent.iter().for_each(|sent| rig.busy(sent, LEASE));
    rig.listens(owners[0]);
    for _ in 0..3 {
        rig.pass(ASKED_AGAIN);
        let sent = rig.all_sent();
        let mut again: Vec<OwnerId> = sent.iter().map(|sent| asked(sent).0).collect();
        again.sort_unstable();
        assert_eq!(again, owners);
        sent.iter().for_each(|sent| rig.busy(sent, LEASE));
    }
}

#[test]
fn only_the_first_listens_and_the_channel_moves_on() {
    let mut rig = Rig::new();
    let (first, owner) = rig.seated();
    let (second, next) = rig.seated();
    rig.listens(owner);
    rig.told();
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, owner);
    rig.grant(&sent);
    let held = rig.granted(first);
    rig.nothing_sent();
    // While this client has the lock, it hears of the release anyway.
    rig.free(&held);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, next, "the end wakes the next one");
    rig.busy(&sent, LEASE);
    rig.listens(next);
    rig.told();
    let sent = rig.sent();
    rig.grant(&sent);
    let held = rig.granted(second);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_message_during_a_call_makes_it_ask_once_more() {
    let mut rig = Rig::new();
    let (id, owner) = rig.seated();
    rig.listens(owner);
    rig.told();
    let sent = rig.sent();
    rig.told();
    rig.nothing_sent();
    rig.busy(&sent, LEASE);
    let again = rig.sent();
    assert_eq!(asked(&again).0, owner);
    rig.grant(&again);
    rig.granted(id);
}

#[test]
fn a_try_takes_no_place() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), FAIR);
    let sent = rig.sent();
    assert!(!asked(&sent).2);
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.nothing_left();
    let (_, owner) = rig.seated();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), FAIR);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, owner, "the first in the queue asks for it");
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
}

#[test]
fn a_cancelled_waiter_gives_up_its_place() {
    let mut rig = Rig::new();
    let (id, owner) = rig.seated();
    let (second, next) = rig.seated();
    rig.listens(owner);
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.leaves(owner);
    rig.listens(next);
    rig.cancel(second);
    rig.leaves(next);
    rig.completed.clear();
    rig.nothing_left();
}

#[test]
fn a_waiter_whose_time_is_over_gives_up_its_place() {
    let mut rig = Rig::new();
    let id = rig.acquire_with("n", OwnerKey::Once, Some(secs(2)), FAIR);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.listens(asked(&sent).0);
    rig.pass(secs(2));
    assert_eq!(rig.failed(id), ErrorKind::Timeout);
    rig.leaves(asked(&sent).0);
    rig.nothing_left();
}

#[test]
fn a_waiter_cancelled_during_its_call_gives_up_its_place() {
    let mut rig = Rig::new();
    let id = rig.queue_up();
    let sent = rig.sent();
    rig.cancel(id);
    assert_eq!(rig.failed(id), ErrorKind::Cancelled);
    rig.nothing_sent();
    rig.busy(&sent, LEASE);
    rig.leaves(asked(&sent).0);
    rig.nothing_left();
}

#[test]
fn a_waiter_without_an_answer_gives_up_its_place_when_no_copy_lives() {
    let mut rig = Rig::new();
    let id = rig.queue_up();
    let sent = rig.sent();
    rig.cancel(id);
    rig.completed.clear();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.leaves(asked(&sent).0);
    rig.nothing_sent();
    rig.pass(COPY);
    rig.leaves(asked(&sent).0);
    rig.nothing_left();
}

/// Regression test: its second call found the place that its first one had got, before those that had
/// theirs since. The client listened for the turn of another one, and nobody heard the message.
#[test]
fn a_first_call_without_an_answer_keeps_no_older_place() {
    for terms in [FAIR, fair(1)] {
        let mut rig = Rig::new();
        let first = rig.acquire_with("n", OwnerKey::Once, None, terms);
        let lost = rig.sent();
        let second = rig.acquire_with("n", OwnerKey::Once, None, terms);
        rig.outcome(&lost, CallOutcome::Unanswered);
        let sent = rig.all_sent();
        assert_eq!(given_up(&sent[0]), Some(asked(&lost).0));
        let tries: Vec<&Sent> = sent[1..].iter().collect();
        assert_eq!(tries.len(), 2, "{tries:?}");
        assert!(tries.iter().all(|one| asked(one).0 != asked(&lost).0));
        // Its last copy is dead.
        rig.pass(COPY);
        rig.grant(tries[0]);
        rig.granted(first);
        rig.busy(tries[1], LEASE);
        assert!(rig.pending(second));
    }
}

#[test]
fn a_closed_client_gives_up_its_places() {
    let mut rig = Rig::new();
    let (id, owner) = rig.seated();
    rig.listens(owner);
    let close = rig.request(Request::Close { limit: secs(5) });
    assert_eq!(rig.failed(id), ErrorKind::Closed);
    assert!(rig.pending(close));
    rig.leaves(owner);
    assert!(matches!(rig.done(close), Done::Closed(_)));
    rig.nothing_left();
}

#[test]
fn a_copy_without_an_answer_is_not_overtaken() {
    let mut rig = Rig::new();
    let (id, owner) = rig.seated();
    rig.listens(owner);
    rig.told();
    let sent = rig.sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    rig.told();
    rig.nothing_sent();
    rig.pass(COPY);
    let again = rig.sent();
    assert_eq!(asked(&again).0, owner);
    rig.grant(&again);
    rig.granted(id);
}

#[test]
fn the_next_owner_after_a_reconnect_has_the_place() {
    let mut rig = Rig::offline();
    rig.input(Input::Identity(1));
    rig.input(Input::Up(0));
    let (_, owner) = rig.seated();
    let (_, second) = rig.seated();
    rig.listens(owner);
    rig.input(down());
    rig.input(Input::Identity(2));
    rig.input(Input::Up(0));
    let acquires = |sent: &&Sent| matches!(sent.op, Op::Acquire(_));
    let asks = rig.all_sent();
    let taken: Vec<_> = asks.iter().map(|sent| asked(sent).1).collect();
    assert_eq!(taken, [Some(owner), Some(second)]);
    assert!(
        asks.iter()
            .all(|sent| ![owner, second].contains(&asked(sent).0))
    );
    for (sent, was) in asks.iter().zip([owner, second]) {
        rig.busy(sent, LEASE);
        let ends = rig.all_sent();
        let ended = ends.iter().filter(|sent| !acquires(sent));
        let ended: Vec<_> = ended.map(|sent| sent.release().0).collect();
        assert_eq!(ended, [was], "what a copy of a call may have got");
    }
    rig.pass(ASKED_AGAIN);
    let sent = rig.all_sent();
    let again = sent.iter().filter(acquires);
    again.for_each(|sent| assert_eq!(asked(sent).1, None, "it has the place"));
}

/// Two calls overtake each other on their way.
#[test]
fn waiters_stand_in_the_order_of_their_answers() {
    let mut rig = occupied();
    let ids = [rig.queue_up(), rig.queue_up(), rig.queue_up()];
    let sent = rig.all_sent();
    rig.busy(&sent[1], LEASE);
    assert_eq!(rig.topic, Topic::Place(asked(&sent[1]).0));
    rig.busy(&sent[0], LEASE);
    rig.busy(&sent[2], LEASE);
    rig.listens(asked(&sent[1]).0);
    rig.told();
    let call = rig.sent();
    rig.grant(&call);
    let held = rig.granted(ids[1]);
    rig.free(&held);
    assert_eq!(asked(&rig.sent()).0, asked(&sent[0]).0);
}

#[test]
fn a_second_waiter_of_a_key_enters_with_the_first() {
    let mut rig = Rig::new();
    let first = rig.acquire_with("n", KEY, None, FAIR);
    let second = rig.acquire_with("n", KEY, None, FAIR);
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    rig.listens(asked(&sent).0);
    rig.told();
    let call = rig.sent();
    rig.grant(&call);
    let outer = rig.granted(first);
    let level = rig.sent();
    assert_eq!((level.acquire().0, level.acquire().1), (outer.owner(), 2));
    assert!(!asked(&level).2, "a level more needs no place");
    rig.grant(&level);
    let inner = rig.granted(second);
    assert_eq!(inner.cell.count(), 2);
}

#[test]
fn nobody_overtakes_a_first_call_that_its_caller_makes_itself() {
    let mut rig = Rig::new();
    rig.queue_up();
    let first = rig.sent();
    // Its call is on another connection, so theirs could reach the server first.
    rig.queue_up();
    rig.queue_up();
    rig.nothing_sent();
    rig.busy(&first, LEASE);
    assert_eq!(rig.topic, Topic::Place(asked(&first).0));
    assert_eq!(rig.all_sent().len(), 2);
}

#[test]
fn the_next_waiter_looks_soon_when_the_lock_was_free_for_the_head() {
    let mut rig = Rig::new();
    let (id, owner) = rig.seated();
    rig.listens(owner);
    // The lock is free, and the head of another program has not taken it yet.
    rig.told();
    let sent = rig.sent();
    rig.reply(&sent, Reply::Busy { ttl: None });
    rig.pass(tuning::TRANSIENT_BACKOFF.0 * 2);
    let sent = rig.sent();
    // Now it has. Nobody tells of the end of its lease.
    rig.busy(&sent, Duration::from_secs(1));
    rig.pass(Duration::from_secs(1) + tuning::EXPIRY_SLACK);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_lock_is_not_handed_over_to_a_waiter_of_the_same_client() {
    let mut rig = Rig::new();
    let held = rig.hold_with("n", OwnerKey::Once, FAIR);
    let (id, owner) = rig.seated();
    assert!(rig.subscribed.is_empty(), "it hears of the release anyway");
    rig.free(&held);
    let sent = rig.sent();
    assert_eq!(asked(&sent), (owner, None, true));
    // One of another program comes first.
    rig.busy(&sent, LEASE);
    rig.listens(owner);
    assert!(rig.pending(id));
}

const PERMITS: Terms = Terms {
    kind: Kind::FairSemaphore,
    reentrant: false,
    special: Special {
        limit: 5,
        ..Special::NONE
    },
    ..WATCHED
};

fn fair(permits: u16) -> Terms {
    Terms { permits, ..PERMITS }
}

fn plain(permits: u16) -> Terms {
    Terms {
        kind: Kind::Semaphore,
        ..fair(permits)
    }
}

impl Rig {
    /// A caller that waits for permits, and its first call.
    fn wishes(&mut self, terms: Terms) -> (RequestId, Sent) {
        let id = self.acquire_with("n", OwnerKey::Once, None, terms);
        (id, self.sent())
    }

    /// It has a place at a semaphore, behind so many.
    fn stands(&mut self, sent: &Sent, ahead: u32) {
        let ttl = Some(LEASE);
        self.reply(sent, Reply::Parked { ttl, ahead });
    }

    fn vain(&mut self, sent: &Sent) {
        self.reply(sent, Reply::Vain { ttl: Some(LEASE) });
    }

    /// The owners that ask now.
    fn asking(&mut self) -> Vec<(OwnerId, Sent)> {
        let sent = self.all_sent();
        sent.into_iter()
            .map(|sent| (asked(&sent).0, sent))
            .collect()
    }

    /// The channel is subscribed, and those that ask because of it are refused.
    fn hears(&mut self) {
        self.input(Input::Subscribed("n".into()));
        for (_, sent) in self.asking() {
            self.busy(&sent, LEASE);
        }
    }
}

impl Rig {
    /// The channel is subscribed, and the one that wants too many asks because of it.
    fn hears_in_vain(&mut self) {
        self.input(Input::Subscribed("n".into()));
        for (_, sent) in self.asking() {
            self.vain(&sent);
        }
    }
}

#[test]
fn a_wish_for_too_many_permits_takes_no_message_from_those_behind_it() {
    let mut rig = Rig::new();
    let (_, many) = rig.wishes(fair(3));
    rig.stands(&many, 0);
    let (few, call) = rig.wishes(fair(1));
    rig.stands(&call, 1);
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.stands(&sent, 0);
    // There are only two permits now, and the message of that goes to the first one.
    rig.told();
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, asked(&many).0);
    rig.vain(&sent);
    let sent = rig.sent();
    assert_eq!(
        asked(&sent).0,
        asked(&call).0,
        "the message was for the next one"
    );
    rig.stands(&sent, 0);
    rig.nothing_sent();
    // It is the first one now.
    rig.told();
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, asked(&call).0);
    rig.grant(&sent);
    rig.granted(few);
}

#[test]
fn a_wish_for_too_many_permits_keeps_no_try_out() {
    let mut rig = Rig::new();
    let (many, sent) = rig.wishes(fair(3));
    rig.vain(&sent);
    rig.hears_in_vain();
    let one = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), fair(1));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(one);
    assert!(rig.pending(many));
}

#[test]
fn a_wish_that_can_be_met_again_comes_behind_those_with_a_place() {
    let mut rig = Rig::new();
    let (_, many) = rig.wishes(fair(3));
    rig.vain(&many);
    rig.hears_in_vain();
    let (_, few) = rig.wishes(fair(1));
    rig.stands(&few, 0);
    rig.pass(ASKED_AGAIN);
    let asks = rig.asking();
    assert_eq!(asks.len(), 2);
    for (owner, sent) in &asks {
        rig.stands(sent, u32::from(*owner != asked(&few).0));
    }
    rig.told();
    assert_eq!(asked(&rig.sent()).0, asked(&few).0);
}

#[test]
fn a_try_at_the_head_takes_no_message_from_those_behind_it() {
    let mut rig = occupied();
    let once = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), fair(1));
    let tried = rig.sent();
    let (next, call) = rig.wishes(fair(1));
    rig.told();
    rig.busy(&tried, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    rig.busy(&call, LEASE);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, asked(&call).0, "it heard the message, too");
    rig.grant(&sent);
    rig.granted(next);
}

#[test]
fn a_plain_waiter_for_many_takes_no_message_from_a_fair_one() {
    let mut rig = Rig::new();
    let (many, call) = rig.wishes(plain(3));
    rig.busy(&call, LEASE);
    let (few, fair_call) = rig.wishes(fair(1));
    rig.busy(&fair_call, LEASE);
    rig.hears();
    rig.told();
    let asks = rig.asking();
    let owners: Vec<OwnerId> = asks.iter().map(|(owner, _)| *owner).collect();
    assert!(owners.contains(&asked(&call).0) && owners.contains(&asked(&fair_call).0));
    for (owner, sent) in &asks {
        if *owner == asked(&fair_call).0 {
            rig.grant(sent);
        } else {
            rig.busy(sent, LEASE);
        }
    }
    rig.granted(few);
    assert!(rig.pending(many));
}

/// A waiter of a client whose connection breaks twice.
fn reconnect(rig: &mut Rig, group: u64) {
    rig.input(down());
    rig.input(Input::Identity(group));
    rig.input(Input::Up(0));
}

#[test]
fn a_place_stays_when_two_connections_break_in_a_row() {
    for in_doubt in [false, true] {
        for terms in [FAIR, fair(1)] {
            let mut rig = Rig::offline();
            rig.input(Input::Identity(1));
            rig.input(Input::Up(0));
            rig.acquire_with("n", OwnerKey::Once, None, terms);
            let first = rig.sent();
            rig.busy(&first, LEASE);
            reconnect(&mut rig, 2);
            let second = rig.sent();
            assert_eq!(befores(&second), [asked(&first).0]);
            rig.input(down());
            let lost = match in_doubt {
                true => CallOutcome::Unanswered,
                false => CallOutcome::NotSent,
            };
            rig.outcome(&second, lost);
            rig.input(Input::Identity(3));
            rig.input(Input::Up(0));
            rig.pass(COPY);
            // Nobody knows which of them the server knows.
            let third = rig.sent();
            assert_eq!(befores(&third), [asked(&first).0, asked(&second).0]);
            rig.busy(&third, LEASE);
            let released: Vec<OwnerId> = rig.all_sent().iter().filter_map(given_up).collect();
            let all = befores(&third);
            assert_eq!(released, all, "what a copy of a call may have got");
        }
    }
}

#[test]
fn a_call_names_four_earlier_owners_at_most() {
    let mut rig = Rig::offline();
    rig.input(Input::Identity(1));
    rig.input(Input::Up(0));
    rig.acquire_with("n", OwnerKey::Once, None, FAIR);
    let first = rig.sent();
    rig.busy(&first, LEASE);
    let mut owners = vec![asked(&first).0];
    for group in 2..20 {
        reconnect(&mut rig, group);
        let sent = rig.all_sent();
        let (released, tried): (Vec<&Sent>, Vec<&Sent>) =
            sent.iter().partition(|sent| given_up(sent).is_some());
        let [tried] = tried[..] else {
            panic!("it asks once: {sent:?}");
        };
        // The one that has a place for certain stays, and the last ones.
        let left = (owners.len() > tuning::FORMER_OWNERS).then(|| owners.remove(1));
        assert_eq!(befores(tried), owners);
        let released: Vec<OwnerId> = released.into_iter().filter_map(given_up).collect();
        assert!(left.is_none_or(|left| released.contains(&left)), "{sent:?}");
        assert!(owners.iter().all(|owner| !released.contains(owner)));
        owners.push(asked(tried).0);
        rig.input(down());
        rig.outcome(tried, CallOutcome::NotSent);
    }
}

#[test]
fn a_waiter_for_a_permit_listens_to_releases_when_it_is_the_head() {
    let mut rig = Rig::new();
    let (id, call) = rig.wishes(fair(1));
    let own = Topic::Seat(asked(&call).0);
    rig.stands(&call, 2);
    assert_eq!(rig.topics.get("n"), Some(&own));
    // The confirmation closes the gap between the answer and the subscription.
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    // It is told that it is the head before the older answer comes, so it asks once more.
    rig.told();
    rig.stands(&sent, 1);
    let sent = rig.sent();
    rig.stands(&sent, 1);
    rig.nothing_sent();
    rig.told();
    rig.nothing_sent();
    assert_eq!(rig.topics.get("n"), Some(&Topic::Semaphore));
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.stands(&sent, 0);
    rig.told();
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(id);
}

#[test]
fn a_waiter_for_a_permit_whose_own_channel_is_denied_hears_all_releases() {
    let mut rig = Rig::new();
    let (_, call) = rig.wishes(fair(1));
    rig.stands(&call, 2);
    let error = Error::new(ErrorKind::Auth, "NOPERM no access to the channel");
    rig.input(Input::Unsubscribable("n".into(), error));
    assert_eq!(rig.topics.get("n"), Some(&Topic::Semaphore));
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.stands(&sent, 2);
    assert_eq!(rig.topics.get("n"), Some(&Topic::Semaphore));
    rig.told();
    assert_eq!(asked(&rig.sent()).0, asked(&call).0);
}
