//! Read-write locks: readers that share, writers in their turn, and a writer that reads.

use super::*;

const READ: Terms = Terms {
    kind: Kind::Read,
    ..WATCHED
};
const WRITE: Terms = Terms {
    kind: Kind::Write,
    ..WATCHED
};
const OTHER: OwnerKey = OwnerKey::Thread(2);

fn lasting(terms: Terms, lease: Duration) -> Terms {
    Terms {
        lease: Lease::Fixed(lease),
        ..terms
    }
}

/// The kind and owner of an acquire, and the owner of the write lock under which it reads.
fn asked(sent: &Sent) -> (Kind, OwnerId, Option<OwnerId>) {
    match &sent.op {
        Op::Acquire(Acquire {
            form,
            owner,
            payload,
            ..
        }) => (form.kind, *owner, payload.under()),
        other => panic!("not an acquire: {other:?}"),
    }
}

impl Rig {
    fn read(&mut self) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, READ)
    }

    fn write(&mut self) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, WRITE)
    }

    fn try_read(&mut self) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, Some(ms(0)), READ)
    }

    fn reader(&mut self) -> Grant {
        self.hold_with("n", OwnerKey::Once, READ)
    }

    /// Two waiting readers behind a reader that holds: both have asked ahead or as the head.
    fn two_asking(&mut self) -> ([RequestId; 2], [Sent; 2]) {
        let ids = [self.read(), self.read()];
        let sent = self.all_sent().try_into().expect("two calls");
        (ids, sent)
    }
}

#[test]
fn readers_share_the_lock_and_each_is_released_by_itself() {
    let mut rig = Rig::new();
    let (first, second) = (rig.reader(), rig.reader());
    assert_ne!(first.owner(), second.owner());
    assert!(rig.is_held(&first) && rig.is_held(&second));
    rig.free(&first);
    assert!(rig.is_held(&second));
    rig.free(&second);
    rig.nothing_left();
}

#[test]
fn a_writer_waits_for_all_readers() {
    let mut rig = Rig::new();
    let (first, second) = (rig.reader(), rig.reader());
    let writer = rig.write();
    rig.nothing_sent();
    rig.free(&first);
    rig.nothing_sent();
    rig.free(&second);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Write);
    rig.grant(&sent);
    let writer = rig.granted(writer);
    rig.free(&writer);
    rig.nothing_left();
}

#[test]
fn readers_behind_a_waiting_writer_let_it_go_first() {
    let mut rig = Rig::new();
    let reader = rig.reader();
    let writer = rig.write();
    let behind = [rig.read(), rig.read()];
    rig.nothing_sent();
    let early = rig.try_read();
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Write, "a writer waits");
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(early), ErrorKind::Timeout);
    rig.free(&reader);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Write);
    rig.grant(&sent);
    let writer = rig.granted(writer);
    assert!(behind.iter().all(|id| rig.pending(*id)));
    rig.nothing_sent();
    rig.free(&writer);
    let first = rig.sent();
    rig.grant(&first);
    rig.granted(behind[0]);
    let second = rig.sent();
    rig.grant(&second);
    rig.granted(behind[1]);
}

#[test]
fn readers_at_the_front_all_ask_at_once() {
    let mut rig = Rig::new();
    let ids = [rig.read(), rig.read(), rig.read()];
    let first = rig.sent();
    rig.grant(&first);
    rig.granted(ids[0]);
    let both = rig.all_sent();
    assert_eq!(both.len(), 2, "{both:?}");
    // The answers come in any order.
    rig.grant(&both[1]);
    rig.granted(ids[2]);
    rig.nothing_sent();
    rig.grant(&both[0]);
    rig.granted(ids[1]);
    rig.nothing_sent();
}

#[test]
fn a_reader_does_not_ask_ahead_of_a_writer_in_the_middle() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.write();
    let behind = rig.read();
    rig.nothing_sent();
    rig.grant(&sent[0]);
    rig.grant(&sent[1]);
    ids.into_iter().for_each(|id| drop(rig.granted(id)));
    rig.nothing_sent();
    assert!(rig.pending(behind));
}

#[test]
fn more_readers_than_may_ask_at_once_ask_when_those_are_in() {
    let mut rig = Rig::new();
    let held = rig.reader();
    let ids: Vec<RequestId> = (0..2 * tuning::ASKING_AHEAD).map(|_| rig.read()).collect();
    let sent = rig.all_sent();
    assert_eq!(sent.len(), tuning::ASKING_AHEAD);
    sent.iter().for_each(|sent| rig.grant(sent));
    let sent = rig.all_sent();
    assert_eq!(sent.len(), tuning::ASKING_AHEAD);
    sent.iter().for_each(|sent| rig.grant(sent));
    ids.into_iter().for_each(|id| drop(rig.granted(id)));
    rig.free(&held);
}

#[test]
fn a_reader_that_asked_ahead_in_vain_asks_again_as_the_head() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.busy(&sent[1], secs(9));
    rig.nothing_sent();
    rig.grant(&sent[0]);
    rig.granted(ids[0]);
    let again = rig.sent();
    rig.grant(&again);
    rig.granted(ids[1]);
}

#[test]
fn a_reader_without_an_answer_is_cleaned_up_and_asks_again() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.outcome(&sent[1], CallOutcome::Unanswered);
    let cleanup = rig.sent();
    let owner = asked(&sent[1]).1;
    assert_eq!(cleanup.release(), (owner, 0, Duration::ZERO));
    rig.grant(&sent[0]);
    rig.granted(ids[0]);
    let again = rig.sent();
    assert_ne!(asked(&again).1, owner, "that owner may still get the lock");
    rig.grant(&again);
    rig.granted(ids[1]);
    rig.reply(&cleanup, Reply::Gone(LostReason::Stolen));
    rig.pass(COPY);
    assert_eq!(rig.sent().release().0, owner, "the copy is dead only now");
}

#[test]
fn a_reader_that_was_refused_ahead_is_told_or_asks_again() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.outcome(&sent[1], refused(ErrorKind::Server, true));
    assert!(rig.pending(ids[1]));
    let third = rig.read();
    let sent_third = rig.sent();
    rig.outcome(&sent_third, refused(ErrorKind::Denied, false));
    assert_eq!(rig.failed(third), ErrorKind::Denied);
    let _cleanup = rig.sent();
    rig.grant(&sent[0]);
    rig.granted(ids[0]);
    let again = rig.sent();
    rig.reply(&again, Reply::Stale);
    let again = rig.sent();
    rig.grant(&again);
    rig.granted(ids[1]);
}

#[test]
fn a_reader_whose_call_was_stale_ahead_asks_again_as_the_head() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.reply(&sent[1], Reply::Stale);
    rig.nothing_sent();
    rig.cancel(ids[0]);
    assert_eq!(rig.failed(ids[0]), ErrorKind::Cancelled);
    rig.busy(&sent[0], secs(9));
    let again = rig.sent();
    rig.grant(&again);
    rig.granted(ids[1]);
}

#[test]
fn a_cancelled_reader_ahead_leaves_nothing() {
    let mut rig = Rig::new();
    let held = rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.cancel(ids[1]);
    assert_eq!(rig.failed(ids[1]), ErrorKind::Cancelled);
    rig.nothing_sent();
    rig.grant(&sent[1]);
    let cleanup = rig.sent();
    assert_eq!(cleanup.release().0, asked(&sent[1]).1);
    rig.reply(&cleanup, Reply::Released(0));
    rig.grant(&sent[0]);
    let reader = rig.granted(ids[0]);
    rig.free(&reader);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_reader_whose_wait_ends_while_it_asks_ahead_is_cleaned_up() {
    let mut rig = Rig::new();
    rig.reader();
    rig.read();
    let head = rig.sent();
    let short = rig.acquire_with("n", OwnerKey::Once, Some(ms(50)), READ);
    let sent = rig.sent();
    rig.pass(ms(60));
    assert_eq!(rig.failed(short), ErrorKind::Unavailable);
    rig.outcome(&sent, CallOutcome::Unanswered);
    assert_eq!(rig.sent().release().0, asked(&sent).1);
    rig.grant(&head);
    rig.nothing_sent();
}

/// Regression test: the answer that came too late to a reader ahead of the head let the head ask
/// twice, and the reader never asked again.
#[test]
fn a_grant_ahead_that_comes_too_late_is_given_back_and_asked_for_again() {
    let mut rig = Rig::new();
    let terms = lasting(READ, ms(200));
    rig.reader();
    let head = rig.read();
    let first = rig.sent();
    let late = rig.acquire_with("n", OwnerKey::Once, None, terms);
    let sent = rig.sent();
    rig.sleep(ms(250));
    rig.grant(&sent);
    let cleanup = rig.sent();
    assert_eq!(cleanup.release().0, asked(&sent).1);
    rig.grant(&first);
    rig.granted(head);
    let again = rig.sent();
    assert_ne!(asked(&again).1, asked(&sent).1);
    rig.grant(&again);
    rig.granted(late);
}

#[test]
fn a_release_of_others_is_heard_while_a_reader_of_ours_leaves() {
    let mut rig = Rig::new();
    let leaving = rig.reader();
    rig.release(&leaving);
    let release = rig.sent();
    // It came to the server, and its answer is on the way. A writer took the lock.
    let waits = rig.read();
    let sent = rig.sent();
    rig.busy(&sent, secs(9));
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.busy(&sent, secs(9));
    rig.input(Input::Message("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(waits);
    rig.reply(&release, Reply::Released(0));
}

#[test]
fn a_waiter_listens_to_the_channel_of_its_own_kind() {
    let mut rig = Rig::new();
    let plain = rig.acquire("n");
    let sent = rig.sent();
    rig.busy(&sent, secs(9));
    assert_eq!((rig.subscribed.len(), rig.topic), (1, Topic::Lock));
    let reads = rig.read();
    rig.cancel(plain);
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Read);
    rig.busy(&sent, secs(9));
    assert_eq!((rig.subscribed.len(), rig.topic), (1, Topic::ReadWrite));
    rig.input(Input::Subscribed("n".into()));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(reads);
}

#[test]
fn a_key_releases_what_it_has_of_the_kind_that_it_names() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let by_key = |kind| {
        Request::Release(Target::Key {
            name: "n".into(),
            key: KEY,
            kind,
        })
    };
    let id = rig.request(by_key(Kind::Reentrant));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    let id = rig.request(by_key(Kind::Read));
    assert_eq!(rig.failed(id), ErrorKind::NotOwner);
    assert!(rig.is_held(&writer));
}

#[test]
fn a_reader_that_asked_ahead_and_becomes_the_head_does_not_ask_twice() {
    let mut rig = Rig::new();
    rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.grant(&sent[0]);
    rig.granted(ids[0]);
    rig.nothing_sent();
    rig.input(Input::Message("n".into()));
    rig.nothing_sent();
    // It is refused as the head: it waits, and the message during its call makes it ask again.
    rig.busy(&sent[1], secs(9));
    assert_eq!(rig.subscribed.len(), 1);
    rig.input(Input::Subscribed("n".into()));
    let again = rig.sent();
    rig.grant(&again);
    rig.granted(ids[1]);
}

/// Regression test: when the connection was made, a try asked that had come behind a writer.
#[test]
fn a_try_behind_a_writer_passes_it_at_no_connection() {
    let mut rig = Rig::offline();
    let (first, writer, once) = (rig.read(), rig.write(), rig.try_read());
    rig.input(Input::Up(0));
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(first);
    let asks = rig.sent();
    assert_eq!(asked(&asks).0, Kind::Write);
    rig.busy(&asks, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    assert!(rig.pending(writer));
}

/// Regression test: a try beside another reader whose call was in flight failed with `timeout`,
/// although readers do not keep each other out.
#[test]
fn readers_that_try_at_the_same_time_all_get_in() {
    let mut rig = Rig::new();
    let (first, second) = (rig.try_read(), rig.try_read());
    let sent = rig.all_sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    rig.grant(&sent[0]);
    rig.grant(&sent[1]);
    rig.granted(first);
    rig.granted(second);
}

#[test]
fn a_try_asks_the_server_although_another_reader_was_refused() {
    let mut rig = Rig::new();
    let waits = rig.read();
    let sent = rig.sent();
    let early = rig.try_read();
    let tried = rig.sent();
    rig.busy(&sent, secs(9));
    rig.busy(&tried, secs(9));
    assert_eq!(rig.failed(early), ErrorKind::Timeout);
    let late = rig.try_read();
    let tried = rig.sent();
    rig.busy(&tried, secs(9));
    assert_eq!(rig.failed(late), ErrorKind::Timeout);
    assert!(rig.pending(waits));
    rig.nothing_sent();
}

#[test]
fn a_key_reads_again_in_the_hold_that_it_has() {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, READ);
    let writer = rig.write();
    let inner = rig.acquire_with("n", KEY, None, READ);
    let sent = rig.sent();
    assert_eq!(sent.acquire(), (outer.owner(), 2, LEASE));
    rig.grant(&sent);
    let inner = rig.granted(inner);
    assert_eq!((inner.owner(), inner.cell.count()), (outer.owner(), 2));
    assert!(rig.pending(writer), "a re-entry never waits for a writer");
    // A reader enters its hold again even if its terms do not say so: it cannot wait for itself.
    let strict = Terms {
        reentrant: false,
        ..READ
    };
    let third = rig.hold_with("n", KEY, strict);
    assert_eq!(third.owner(), outer.owner());
}

#[test]
fn readers_of_one_key_get_one_hold() {
    let mut rig = Rig::new();
    rig.reader();
    let ids = [KEY, OTHER, KEY, OTHER].map(|key| rig.acquire_with("n", key, None, READ));
    let sent = rig.all_sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    rig.grant(&sent[1]);
    let entry = rig.sent();
    assert_eq!(entry.acquire().1, 2);
    rig.grant(&entry);
    assert_eq!(rig.granted(ids[1]).owner(), rig.granted(ids[3]).owner());
    rig.grant(&sent[0]);
    let entry = rig.sent();
    rig.grant(&entry);
    assert_eq!(rig.granted(ids[0]).owner(), rig.granted(ids[2]).owner());
}

#[test]
fn tries_behind_our_own_release_ask_once_more() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    rig.release(&writer);
    let release = rig.sent();
    let ids = [rig.try_read(), rig.try_read(), rig.try_read()];
    // They have overtaken the release, which was sent again with the text of its script.
    for sent in rig.all_sent() {
        rig.busy(&sent, secs(9));
    }
    rig.reply(&release, Reply::Released(0));
    let again = rig.all_sent();
    assert_eq!(again.len(), 3, "{again:?}");
    rig.grant(&again[0]);
    rig.grant(&again[1]);
    rig.busy(&again[2], secs(9));
    rig.granted(ids[0]);
    rig.granted(ids[1]);
    assert_eq!(rig.failed(ids[2]), ErrorKind::Timeout);
    rig.nothing_sent();
}

#[test]
fn a_hold_is_entered_on_its_own_side_only() {
    let mut rig = Rig::new();
    let others = rig.reader();
    let reader = rig.reader();
    let write = rig.acquire_with("n", OwnerKey::Hold(reader.level), None, WRITE);
    assert_eq!(rig.failed(write), ErrorKind::InvalidArgument);
    rig.nothing_sent();
    rig.free(&others);
    rig.free(&reader);
    let writer = rig.hold_with("n", OwnerKey::Once, WRITE);
    let read = rig.acquire_with("n", OwnerKey::Hold(writer.level), None, READ);
    assert_eq!(rig.failed(read), ErrorKind::InvalidArgument);
    rig.nothing_sent();
    rig.free(&writer);
    let late = rig.acquire_with("n", OwnerKey::Hold(writer.level), None, READ);
    assert_eq!(rig.failed(late), ErrorKind::NotOwner);
    rig.nothing_left();
}

// ---- a writer that reads ----

#[test]
fn two_tries_of_a_writer_to_read_get_one_hold() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let tries = [(); 2].map(|()| rig.acquire_with("n", KEY, Some(ms(0)), READ));
    let sent = rig.sent();
    rig.grant(&sent);
    let entry = rig.sent();
    assert_eq!(entry.acquire().1, 2);
    rig.grant(&entry);
    let [first, second] = tries.map(|id| rig.granted(id));
    assert_eq!(first.owner(), second.owner());
    rig.free(&writer);
    rig.release(&second);
    let lower = rig.sent();
    assert_eq!(lower.release().1, 1);
    rig.reply(&lower, Reply::Kept);
    assert!(rig.is_held(&first));
    rig.free(&first);
    rig.nothing_left();
}

#[test]
fn a_writer_reads_under_its_own_lock_and_keeps_reading_after_it() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let waits = rig.write();
    let reader = rig.acquire_with("n", KEY, None, READ);
    let sent = rig.sent();
    assert_eq!(
        asked(&sent),
        (Kind::Read, sent.acquire().0, Some(writer.owner()))
    );
    rig.grant(&sent);
    let reader = rig.granted(reader);
    assert_ne!(reader.owner(), writer.owner());
    rig.free(&writer);
    rig.nothing_sent();
    assert!(rig.is_held(&reader) && rig.pending(waits));
    rig.pass(secs(11));
    let renewal = rig.sent();
    assert_eq!(renewal.renewal(), [(reader.owner(), LEASE)]);
    rig.keep(&renewal);
    rig.free(&reader);
    assert_eq!(asked(&rig.sent()).0, Kind::Write);
}

#[test]
fn others_do_not_read_under_a_writer() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let other = rig.acquire_with("n", OTHER, None, READ);
    let once = rig.try_read();
    let sent = rig.sent();
    rig.busy(&sent, LEASE);
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    rig.nothing_sent();
    // Its own reader passes those that wait, and a try does so too.
    let own = rig.acquire_with("n", KEY, Some(ms(0)), READ);
    let sent = rig.sent();
    assert_eq!(asked(&sent).2, Some(writer.owner()));
    rig.grant(&sent);
    let own = rig.granted(own);
    assert!(rig.pending(other));
    // The downgrade lets the other reader in.
    rig.free(&writer);
    let sent = rig.sent();
    assert_eq!(asked(&sent).2, None);
    rig.grant(&sent);
    rig.granted(other);
    assert!(rig.is_held(&own));
}

#[test]
fn the_loss_of_one_side_is_told_to_that_side_only() {
    for lost in [Kind::Read, Kind::Write] {
        let mut rig = Rig::new();
        let writer = rig.hold_with("n", KEY, WRITE);
        let reader = rig.hold_with("n", KEY, READ);
        rig.pass(secs(11));
        let renewals = rig.all_sent();
        assert_eq!(renewals.len(), 2, "each side has a script of its own");
        for renewal in renewals {
            let Op::Renew { holds } = &renewal.op else {
                panic!("{renewal:?}")
            };
            if holds[0].form.kind == lost {
                let gone = vec![RenewReply::Gone(LostReason::Stolen)];
                rig.reply(&renewal, Reply::Renewed(gone));
            } else {
                rig.keep(&renewal);
            }
        }
        let (gone, kept) = match lost {
            Kind::Read => (reader, writer),
            _ => (writer, reader),
        };
        assert_eq!(rig.lost, [(gone.owner(), LostReason::Stolen)]);
        assert!(rig.is_held(&kept) && !rig.is_held(&gone));
    }
}

#[test]
fn a_reader_asks_as_any_other_when_its_write_lock_is_gone() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, lasting(WRITE, ms(100)));
    rig.pass(ms(150));
    assert_eq!(rig.lost, [(writer.owner(), LostReason::Expired)]);
    let cleanup = rig.sent();
    assert_eq!(cleanup.release().0, writer.owner());
    rig.acquire_with("n", KEY, None, READ);
    assert_eq!(asked(&rig.sent()).2, None);
}

/// Regression test: the reader kept the place that it had under its write lock, so it overtook a
/// writer that had waited for longer.
#[test]
fn a_reader_whose_write_lock_ends_before_it_asks_waits_in_its_order() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let waits = rig.write();
    rig.input(down());
    let reader = rig.acquire_with("n", KEY, None, READ);
    rig.release(&writer);
    rig.input(Input::Up(0));
    let release = rig.sent();
    rig.reply(&release, Reply::Released(0));
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Write);
    rig.grant(&sent);
    let other = rig.granted(waits);
    rig.nothing_sent();
    rig.free(&other);
    let sent = rig.sent();
    assert_eq!((asked(&sent).0, asked(&sent).2), (Kind::Read, None));
    rig.grant(&sent);
    rig.granted(reader);
}

/// Regression test: the first of two such readers stayed at the front, before the writer.
#[test]
fn two_readers_whose_write_lock_ends_before_they_ask_wait_in_their_order() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let waits = rig.write();
    rig.input(down());
    let readers = [KEY; 2].map(|key| rig.acquire_with("n", key, None, READ));
    rig.release(&writer);
    rig.input(Input::Up(0));
    let release = rig.sent();
    rig.reply(&release, Reply::Released(0));
    let sent = rig.sent();
    assert_eq!(asked(&sent).0, Kind::Write, "it asked first");
    rig.grant(&sent);
    let other = rig.granted(waits);
    rig.free(&other);
    let sent = rig.sent();
    rig.grant(&sent);
    rig.granted(readers[0]);
}

/// Regression test: what a reader may have got by a call without an answer stayed in Redis when it
/// entered the hold of its key instead.
#[test]
fn a_reader_in_doubt_that_enters_the_hold_of_its_key_is_cleaned_up() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    rig.input(down());
    let early = rig.acquire_with("n", KEY, None, READ);
    let late = rig.acquire_with("n", KEY, None, READ);
    rig.input(Input::Up(0));
    let (renewals, asking): (Vec<Sent>, Vec<Sent>) = rig
        .all_sent()
        .into_iter()
        .partition(|sent| matches!(sent.op, Op::Renew { .. }));
    renewals.iter().for_each(|renewal| rig.keep(renewal));
    assert_eq!(asking.len(), 1);
    let in_doubt = asked(&asking[0]).1;
    rig.outcome(&asking[0], CallOutcome::Unanswered);
    rig.free(&writer);
    rig.pass(COPY);
    let again = rig.sent();
    assert_ne!(asked(&again).1, in_doubt, "the early one has its turn");
    rig.grant(&again);
    rig.granted(early);
    let sent = rig.all_sent();
    let cleans =
        |sent: &Sent| matches!(&sent.op, Op::Release(Release { owner, .. }) if *owner == in_doubt);
    assert!(sent.iter().any(cleans), "{sent:?}");
    let entry = sent.iter().find(|sent| !cleans(sent)).unwrap();
    rig.grant(entry);
    rig.granted(late);
}

#[test]
fn a_write_lock_that_other_readers_keep_alive_is_released_when_its_lease_ends() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    rig.hold_with("n", KEY, lasting(READ, secs(300)));
    rig.input(down());
    rig.pass(secs(31));
    assert_eq!(rig.lost, [(writer.owner(), LostReason::Unreachable)]);
    // Its field stays in the hash as long as its reader keeps that alive.
    rig.input(Input::Up(0));
    let sent = rig.all_sent();
    let released = |sent: &Sent| matches!(&sent.op, Op::Release(Release { owner, form, .. }) if *owner == writer.owner() && form.kind == Kind::Write);
    assert!(sent.iter().any(released), "{sent:?}");
}

#[test]
fn an_upgrade_is_refused_at_once() {
    let mut rig = Rig::new();
    let reader = rig.hold_with("n", KEY, READ);
    for wait in [None, Some(ms(0)), Some(secs(1))] {
        let id = rig.acquire_with("n", KEY, wait, WRITE);
        assert_eq!(rig.failed(id), ErrorKind::WouldDeadlock);
    }
    rig.nothing_sent();
    // Other keys wait, and the key may write when it reads no more.
    let other = rig.acquire_with("n", OTHER, None, WRITE);
    rig.nothing_sent();
    rig.cancel(other);
    rig.free(&reader);
    rig.hold_with("n", KEY, WRITE);
}

#[test]
fn the_release_of_a_read_lock_does_not_end_the_renewals_of_the_write_lock() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let reader = rig.hold_with("n", KEY, READ);
    rig.free(&reader);
    rig.pass(secs(11));
    let renewal = rig.sent();
    assert_eq!(renewal.renewal(), [(writer.owner(), LEASE)]);
    rig.keep(&renewal);
    assert!(rig.is_held(&writer));
}

#[test]
fn a_release_by_key_is_for_the_side_that_it_names() {
    let mut rig = Rig::new();
    let writer = rig.hold_with("n", KEY, WRITE);
    let reader = rig.hold_with("n", KEY, READ);
    let by_key = |kind| {
        Request::Release(Target::Key {
            name: "n".into(),
            key: KEY,
            kind,
        })
    };
    rig.request(by_key(Kind::Read));
    let sent = rig.sent();
    assert_eq!(sent.release().0, reader.owner());
    let nothing = rig.request(by_key(Kind::Read));
    assert_eq!(rig.failed(nothing), ErrorKind::NotOwner);
    rig.request(by_key(Kind::Write));
    assert_eq!(rig.sent().release().0, writer.owner());
}

// ---- losses, connections and the end ----

#[test]
fn the_loss_of_a_reader_leaves_the_others() {
    let mut rig = Rig::new();
    let (first, second) = (rig.reader(), rig.reader());
    rig.pass(secs(11));
    let renewal = rig.sent();
    assert_eq!(renewal.renewal().len(), 2);
    let gone = RenewReply::Gone(LostReason::Stolen);
    rig.reply(&renewal, Reply::Renewed(vec![gone, RenewReply::Kept]));
    assert_eq!(rig.lost, [(first.owner(), LostReason::Stolen)]);
    assert!(rig.is_held(&second));
    // It may still be there, and a writer waits for the other one as before.
    let cleanup = rig.sent();
    assert_eq!(cleanup.release().0, first.owner());
    rig.write();
    rig.nothing_sent();
}

#[test]
fn readers_are_renewed_and_asked_for_again_after_a_reconnect() {
    let mut rig = Rig::new();
    let held = rig.reader();
    let (ids, sent) = rig.two_asking();
    rig.input(down());
    sent.iter()
        .for_each(|sent| rig.outcome(sent, CallOutcome::NotSent));
    rig.nothing_sent();
    rig.input(Input::Up(0));
    let sent = rig.all_sent();
    let (renewals, acquires): (Vec<Sent>, Vec<Sent>) = sent
        .into_iter()
        .partition(|sent| matches!(sent.op, Op::Renew { .. }));
    assert_eq!(renewals[0].renewal()[0].0, held.owner());
    // The first asks as the head. The other one asked ahead in vain, so it waits for its turn.
    assert_eq!(acquires.len(), 1, "{acquires:?}");
    rig.grant(&acquires[0]);
    rig.granted(ids[0]);
    let last = rig.sent();
    rig.grant(&last);
    rig.granted(ids[1]);
}

#[test]
fn closing_releases_readers_and_settles_those_that_ask() {
    let mut rig = Rig::new();
    let held = rig.reader();
    let (ids, sent) = rig.two_asking();
    let close = rig.request(Request::Close { limit: secs(10) });
    ids.into_iter()
        .for_each(|id| assert_eq!(rig.failed(id), ErrorKind::Closed));
    let release = rig.sent();
    assert_eq!(release.release().0, held.owner());
    rig.reply(&release, Reply::Released(0));
    rig.grant(&sent[1]);
    let cleanup = rig.sent();
    assert_eq!(cleanup.release().0, asked(&sent[1]).1);
    rig.reply(&cleanup, Reply::Released(0));
    assert!(rig.pending(close));
    rig.busy(&sent[0], secs(9));
    assert!(matches!(rig.done(close), Done::Closed(names) if names.is_empty()));
    assert!(rig.stopped);
}

fn changed() -> Input {
    Input::Invalidated(Some(vec!["n".into()]))
}

/// Regression test: after its key was deleted, a reader or a holder of permits was looked at a tenth of
/// its lease later, while a writer was inside already.
#[test]
fn the_end_of_a_key_that_holders_share_is_found_soon() {
    let permits = Terms {
        kind: Kind::Semaphore,
        reentrant: false,
        special: Special {
            limit: 5,
            ..Special::NONE
        },
        ..READ
    };
    for terms in [READ, permits] {
        let mut rig = Rig::new();
        let holder = rig.hold_with("n", OwnerKey::Once, terms);
        rig.pass(secs(1));
        rig.input(changed());
        rig.nothing_sent();
        rig.pass(ms(20));
        let look = rig.sent();
        let gone = vec![RenewReply::Gone(LostReason::Deleted)];
        rig.reply(&look, Reply::Renewed(gone));
        assert_eq!(rig.lost, [(holder.owner(), LostReason::Deleted)]);
    }
}

#[test]
fn changes_of_a_key_with_readers_are_looked_at_less_and_less_often() {
    let mut rig = Rig::new();
    let readers: Vec<Grant> = (0..20).map(|_| rig.reader()).collect();
    let (mut calls, end) = (0, rig.now.after(secs(9)));
    while rig.now < end {
        rig.input(changed());
        for sent in rig.all_sent() {
            calls += 1;
            rig.keep(&sent);
        }
        rig.pass(ms(1));
    }
    assert!((1..=30).contains(&calls), "{calls}");
    assert!(readers.iter().all(|reader| rig.is_held(reader)));
    assert!(!rig.events.contains(&"tracking_suspended"));
}

/// Two levels of one reader, the longer one on top, and a look that is planned after an invalidation.
fn looking() -> (Rig, Grant, Grant) {
    let mut rig = Rig::new();
    let outer = rig.hold_with("n", KEY, lasting(READ, secs(50)));
    let inner = rig.hold_with("n", KEY, lasting(READ, secs(90)));
    rig.pass(secs(1));
    rig.input(Input::Invalidated(Some(vec!["n".into()])));
    rig.nothing_sent();
    (rig, outer, inner)
}

fn lower(rig: &mut Rig, level: &Grant) {
    rig.release(level);
    let sent = rig.sent();
    rig.reply(&sent, Reply::Kept);
}

fn the_look_finds_it_gone(mut rig: Rig, reader: &Grant) {
    rig.pass(secs(10));
    let look = rig.sent();
    let gone = vec![RenewReply::Gone(LostReason::Deleted)];
    rig.reply(&look, Reply::Renewed(gone));
    assert_eq!(rig.lost, [(reader.owner(), LostReason::Deleted)]);
}

#[test]
fn a_planned_look_at_a_reader_survives_the_release_of_a_level() {
    let (mut rig, outer, inner) = looking();
    lower(&mut rig, &inner);
    the_look_finds_it_gone(rig, &outer);
}

#[test]
fn a_planned_look_at_an_abandoned_reader_is_made() {
    let (mut rig, outer, inner) = looking();
    for level in [outer.level, inner.level] {
        let owner = outer.owner();
        rig.input(Input::Abandoned { owner, level });
    }
    the_look_finds_it_gone(rig, &outer);
}

#[test]
fn a_renewed_level_of_a_reader_does_not_wait_for_a_planned_look() {
    let (mut rig, _outer, inner) = looking();
    lower(&mut rig, &inner);
    let short = Terms {
        lease: Lease::Watchdog(secs(3)),
        ..READ
    };
    let watched = rig.hold_with("n", KEY, short);
    rig.pass(ms(1500));
    let renewal = rig.sent();
    assert_eq!(renewal.renewal()[0].0, watched.owner());
}

/// A renewal of Redisson cuts the time of the hash to 30 s, however long the lease of a reader is.
#[test]
fn a_reader_with_a_long_lease_looks_before_a_renewal_of_redisson_could_end_it() {
    let mut rig = Rig::new();
    let reader = rig.hold_with("n", OwnerKey::Once, lasting(READ, secs(3600)));
    rig.pass(secs(60));
    rig.all_sent().iter().for_each(|look| rig.keep(look));
    for _ in 0..20 {
        rig.input(Input::Invalidated(Some(vec!["n".into()])));
        rig.pass(secs(11));
        let look = rig.sent();
        assert_eq!(look.renewal()[0].0, reader.owner());
        rig.keep(&look);
    }
}
