//! The preference for writers, between clients: a waiting writer leaves its mark at the server, and
//! new readers stand back for a while.

use super::*;

/// How long readers stand back.
const MOST: Duration = Duration::from_secs(1);
const READ: Terms = Terms {
    kind: Kind::Read,
    special: Special {
        writer_preference: Some(MOST),
        ..Special::NONE
    },
    ..WATCHED
};
const WRITE: Terms = Terms {
    kind: Kind::Write,
    special: Special {
        writer_preference: Some(MOST),
        ..Special::NONE
    },
    ..WATCHED
};

/// Whether an acquire regards the mark.
fn mark_of(sent: &Sent) -> Option<Duration> {
    match &sent.op {
        Op::Acquire(op) => op.payload.mark(),
        other => panic!("not an acquire: {other:?}"),
    }
}

/// The owner whose mark a release removes.
fn unmarked(sent: &Sent) -> Option<OwnerId> {
    match &sent.op {
        Op::Release(Release { owner, unmark, .. }) => unmark.then_some(*owner),
        other => panic!("not a release: {other:?}"),
    }
}

impl Rig {
    fn wants_side(&mut self, terms: Terms) -> RequestId {
        self.acquire_with("n", OwnerKey::Once, None, terms)
    }

    /// A waiting caller that was refused, and whose channel is subscribed.
    fn refused_side(&mut self, terms: Terms, ttl: Duration) -> (RequestId, Sent) {
        let id = self.wants_side(terms);
        let first = self.sent();
        self.busy(&first, ttl);
        self.input(Input::Subscribed("n".into()));
        let second = self.sent();
        self.busy(&second, ttl);
        (id, first)
    }
}

#[test]
fn a_writer_that_waits_marks_and_one_that_tries_does_not() {
    let mut rig = Rig::new();
    let (writer, sent) = rig.refused_side(WRITE, secs(30));
    assert_eq!(mark_of(&sent), Some(MOST));
    rig.pass(RECHECK + secs(1));
    let again = rig.sent();
    assert_eq!(mark_of(&again), Some(MOST), "it still waits");
    rig.grant(&again);
    let held = rig.granted(writer);
    rig.free(&held);
    rig.nothing_left();

    let once = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), WRITE);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), None);
    rig.busy(&sent, secs(30));
    assert_eq!(rig.failed(once), ErrorKind::Timeout);
    rig.nothing_left();
}

const PLAIN_READ: Terms = Terms {
    special: Special {
        writer_preference: None,
        ..Special::NONE
    },
    ..READ
};

/// Regression test: a writer behind a reader of its own client left no mark, so readers of other clients
/// did not stand back for as long as that one stayed.
#[test]
fn a_writer_behind_readers_of_its_own_client_marks() {
    let mut rig = Rig::new();
    let [first, second] = [(); 2].map(|()| rig.hold_with("n", OwnerKey::Once, PLAIN_READ));
    let writer = rig.wants_side(WRITE);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), Some(MOST));
    rig.busy(&sent, secs(30));
    assert!(rig.subscribed.is_empty(), "it hears of its own client");
    rig.pass(MOST * 6 / 10);
    let again = rig.sent();
    assert_eq!(mark_of(&again), Some(MOST), "it renews the mark");
    rig.busy(&again, secs(30));
    // Another reader of this client is left.
    rig.free(&first);
    rig.nothing_sent();
    rig.free(&second);
    let tried = rig.sent();
    rig.grant(&tried);
    let held = rig.granted(writer);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_writer_asks_again_when_readers_of_its_own_client_left_during_its_call() {
    let mut rig = Rig::new();
    let read = rig.hold_with("n", OwnerKey::Once, PLAIN_READ);
    let writer = rig.wants_side(WRITE);
    let sent = rig.sent();
    rig.free(&read);
    rig.nothing_sent();
    rig.busy(&sent, secs(30));
    let tried = rig.sent();
    // Readers of other clients refuse it now.
    rig.busy(&tried, secs(30));
    rig.input(Input::Subscribed("n".into()));
    let again = rig.sent();
    rig.grant(&again);
    let held = rig.granted(writer);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_writer_asks_when_the_last_reader_of_its_own_client_is_lost() {
    let mut rig = Rig::new();
    let _read = rig.hold_with("n", OwnerKey::Once, PLAIN_READ);
    let _writer = rig.wants_side(WRITE);
    let sent = rig.sent();
    rig.busy(&sent, secs(30));
    rig.pass(LEASE / 3);
    let sent = rig.all_sent();
    let (renewals, tries): (Vec<&Sent>, Vec<&Sent>) = sent
        .iter()
        .partition(|sent| matches!(sent.op, Op::Renew { .. }));
    tries.iter().for_each(|tried| rig.busy(tried, secs(30)));
    let [renewal] = renewals[..] else {
        panic!("one hold is renewed: {sent:?}");
    };
    rig.reply(
        renewal,
        Reply::Renewed(vec![RenewReply::Gone(LostReason::Deleted)]),
    );
    let sent = rig.all_sent();
    let tries = sent.iter().filter(|sent| matches!(sent.op, Op::Acquire(_)));
    assert_eq!(tries.count(), 1, "{sent:?}");
}

#[test]
fn a_writer_without_the_option_does_not_ask_behind_readers_of_its_own_client() {
    let mut rig = Rig::new();
    let read = rig.hold_with("n", OwnerKey::Once, PLAIN_READ);
    let writer = rig.wants_side(Terms {
        special: Special {
            writer_preference: None,
            ..Special::NONE
        },
        ..WRITE
    });
    rig.nothing_sent();
    rig.cancel(writer);
    assert_eq!(rig.failed(writer), ErrorKind::Cancelled);
    rig.free(&read);
    rig.nothing_left();
}

#[test]
fn without_the_option_nothing_regards_a_mark() {
    let mut rig = Rig::new();
    for kind in [Kind::Read, Kind::Write] {
        let terms = Terms { kind, ..WATCHED };
        let (id, sent) = rig.refused_side(terms, secs(30));
        assert_eq!(mark_of(&sent), None);
        rig.cancel(id);
        rig.failed(id);
        rig.nothing_sent();
    }
}

#[test]
fn a_writer_that_gives_up_takes_its_mark_away() {
    let mut rig = Rig::new();
    for by_time in [false, true] {
        let wait = by_time.then_some(ms(400));
        let writer = rig.acquire_with("n", OwnerKey::Once, wait, WRITE);
        let sent = rig.sent();
        rig.busy(&sent, secs(30));
        if by_time {
            rig.pass(ms(400));
            assert_eq!(rig.failed(writer), ErrorKind::Timeout);
        } else {
            rig.cancel(writer);
            assert_eq!(rig.failed(writer), ErrorKind::Cancelled);
        }
        let release = rig.sent();
        assert_eq!(unmarked(&release), Some(sent.acquire().0));
        rig.reply(&release, Reply::Gone(LostReason::Stolen));
        rig.nothing_left();
    }
}

#[test]
fn a_mark_that_comes_late_is_taken_away_again() {
    let mut rig = Rig::new();
    let writer = rig.wants_side(WRITE);
    let sent = rig.sent();
    rig.cancel(writer);
    assert_eq!(rig.failed(writer), ErrorKind::Cancelled);
    rig.nothing_sent();
    rig.outcome(&sent, CallOutcome::Unanswered);
    let release = rig.sent();
    assert!(unmarked(&release).is_some());
    rig.reply(&release, Reply::Gone(LostReason::Deleted));
    // A copy may still run.
    rig.pass(COPY);
    let again = rig.sent();
    assert_eq!(unmarked(&again), unmarked(&release));
    rig.reply(&again, Reply::Gone(LostReason::Deleted));
    rig.nothing_left();
}

#[test]
fn a_mark_lives_for_its_least_beside_a_short_recheck() {
    assert_eq!(timing::mark(secs(5), ms(100)), tuning::MARK_LEAST);
    assert_eq!(timing::mark(secs(5), secs(1)), secs(3));
}

#[test]
fn a_writer_renews_its_mark_before_it_ends() {
    let lives = [
        (ms(20), tuning::MARK_LEAST),
        (secs(4), secs(4)),
        (secs(60), RECHECK * tuning::MARK_RECHECKS),
    ];
    for (preference, life) in lives {
        let mut rig = Rig::new();
        let terms = Terms {
            special: Special {
                writer_preference: Some(preference),
                ..Special::NONE
            },
            ..WRITE
        };
        let (_, sent) = rig.refused_side(terms, secs(30));
        assert_eq!(mark_of(&sent), Some(life));
        rig.pass(life * 6 / 10);
        assert_eq!(mark_of(&rig.sent()), Some(life));
    }
}

#[test]
fn a_writer_takes_away_the_mark_of_the_connection_before() {
    let mut rig = Rig::offline();
    rig.input(Input::Identity(1));
    rig.input(Input::Up(0));
    let (writer, sent) = rig.refused_side(WRITE, secs(30));
    rig.input(down());
    rig.input(Input::Identity(2));
    rig.input(Input::Up(0));
    let all = rig.all_sent();
    let releases = |sent: &&Sent| matches!(sent.op, Op::Release(_));
    let (given_up, again): (Vec<&Sent>, Vec<&Sent>) = all.iter().partition(releases);
    assert_eq!((given_up.len(), again.len()), (1, 1), "{all:?}");
    assert_eq!(unmarked(given_up[0]), Some(sent.acquire().0));
    rig.reply(given_up[0], Reply::Gone(LostReason::Stolen));
    rig.grant(again[0]);
    let held = rig.granted(writer);
    rig.free(&held);
    rig.nothing_left();
}

#[test]
fn a_reader_stands_back_for_so_long_and_no_longer() {
    let mut rig = Rig::new();
    let began = rig.now;
    let reader = rig.wants_side(READ);
    let first = rig.sent();
    assert_eq!(mark_of(&first), Some(MOST));
    // Writers come again and again: the mark would keep it for longer.
    rig.busy(&first, secs(5));
    rig.input(Input::Subscribed("n".into()));
    let second = rig.sent();
    assert_eq!(mark_of(&second), Some(MOST));
    rig.busy(&second, secs(5));
    rig.pass(MOST - ms(1));
    rig.nothing_sent();
    rig.pass(ms(1));
    let last = rig.sent();
    assert_eq!(began.until(rig.now), MOST);
    assert_eq!(mark_of(&last), None);
    rig.grant(&last);
    rig.granted(reader);
}

#[test]
fn a_reader_that_was_refused_asks_again_when_the_mark_ends() {
    let mut rig = Rig::new();
    let (reader, _) = rig.refused_side(READ, ms(100));
    rig.pass(ms(100) + tuning::EXPIRY_SLACK);
    let again = rig.sent();
    rig.grant(&again);
    rig.granted(reader);
}

#[test]
fn a_reader_that_stands_back_keeps_no_other_reader_back() {
    let mut rig = Rig::new();
    let patient = Terms {
        special: Special {
            writer_preference: Some(secs(60)),
            ..Special::NONE
        },
        ..READ
    };
    let (last, _) = rig.refused_side(patient, secs(9));
    let plain = Terms {
        special: Special {
            writer_preference: None,
            ..Special::NONE
        },
        ..READ
    };
    let first = rig.wants_side(plain);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), None);
    rig.grant(&sent);
    let reads = rig.granted(first);
    let sent = rig.sent();
    assert!(mark_of(&sent).is_some());
    // This one comes while that call is under way.
    let second = rig.wants_side(READ);
    let beside = rig.sent();
    rig.busy(&beside, secs(9));
    rig.busy(&sent, secs(9));
    // It is the head now. The other asks beside it, as this client reads.
    let sent = rig.all_sent();
    assert_eq!(mark_of(&sent[0]), Some(MOST));
    sent.iter().for_each(|sent| rig.busy(sent, secs(9)));
    rig.pass(MOST);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), None, "its time is over");
    rig.grant(&sent);
    let also = rig.granted(second);
    // The first to come has its turn when the mark ends.
    let sent = rig.sent();
    rig.grant(&sent);
    let held = [reads, also, rig.granted(last)];
    held.iter().for_each(|held| rig.free(held));
    rig.nothing_left();
}

#[test]
fn readers_that_have_stood_back_come_in_together() {
    let mut rig = Rig::new();
    let plain = Terms {
        special: Special {
            writer_preference: None,
            ..Special::NONE
        },
        ..READ
    };
    let _held = rig.hold_with("n", OwnerKey::Once, plain);
    let readers = [(); 4].map(|()| rig.wants_side(READ));
    let sent = rig.all_sent();
    assert_eq!(sent.len(), readers.len());
    sent.iter().for_each(|sent| rig.busy(sent, secs(9)));
    rig.input(Input::Subscribed("n".into()));
    let again = rig.sent();
    rig.busy(&again, secs(9));
    rig.pass(MOST);
    let head = rig.sent();
    rig.grant(&head);
    let others = rig.all_sent();
    assert_eq!(others.len(), readers.len() - 1);
    others.iter().for_each(|sent| rig.grant(sent));
    let _ = readers.map(|reader| rig.granted(reader));
}

#[test]
fn a_try_to_read_stands_back_too() {
    let mut rig = Rig::new();
    let reader = rig.acquire_with("n", OwnerKey::Once, Some(ms(0)), READ);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), Some(MOST));
    rig.busy(&sent, ms(500));
    assert_eq!(rig.failed(reader), ErrorKind::Timeout);
    rig.nothing_left();
}

#[test]
fn a_writer_that_reads_does_not_wait_for_a_mark() {
    let mut rig = Rig::new();
    let write = rig.hold_with("n", KEY, WRITE);
    let reader = rig.acquire_with("n", KEY, None, READ);
    let sent = rig.sent();
    assert_eq!(mark_of(&sent), None);
    rig.grant(&sent);
    let read = rig.granted(reader);
    // A reader that enters once more has no call that could be refused.
    let again = rig.acquire_with("n", KEY, None, READ);
    let sent = rig.all_sent();
    assert!(sent.iter().all(|sent| mark_of(sent).is_none()), "{sent:?}");
    sent.iter().for_each(|sent| rig.grant(sent));
    rig.granted(again);
    assert!(rig.is_held(&read) && rig.is_held(&write));
}

/// Three clients at the modelled server in virtual time. Their readers come and go without a pause, and
/// so may their writers.
mod crowd {
    use std::collections::BTreeMap;

    use super::simulation::server::{Origin, Server, Uuid};
    use super::*;
    use crate::support::random::Random;
    use crate::wire::names::channel_for;

    /// How long a command or a reply is on its way, at most.
    const WAY: Duration = Duration::from_millis(2);
    const READS: Duration = Duration::from_millis(100);
    const WRITES: Duration = Duration::from_millis(20);
    const CLIENTS: usize = 3;
    const READERS: usize = 4;
    const RUN: Duration = Duration::from_secs(60);

    enum Event {
        Begins(usize, Kind),
        Ends(usize, Grant, Kind),
        Arrives(usize, Sent),
        Answer(usize, CallId, Reply),
        Message(usize, Name),
    }

    struct Crowd {
        rigs: Vec<Rig>,
        server: Server,
        random: Random,
        now: Moment,
        /// The events to come, in their order.
        events: BTreeMap<(Moment, u64), Event>,
        last: u64,
        /// Since when each caller waits, and for what.
        waits: BTreeMap<(usize, RequestId), (Moment, Kind)>,
        /// The longest wait of readers and of writers, and how many writers got the lock.
        longest: [Duration; 2],
        written: u64,
        preference: Option<Duration>,
        /// How long a writer pauses.
        pause: Duration,
    }

    impl Crowd {
        fn new(seed: u64, preference: Option<Duration>, writers: usize, pause: Duration) -> Crowd {
            let mut crowd = Crowd {
                rigs: (0..CLIENTS).map(|_| Rig::new()).collect(),
                server: Server::new(),
                random: Random(seed),
                now: Moment(1_000_000),
                events: BTreeMap::new(),
                last: 0,
                waits: BTreeMap::new(),
                longest: [Duration::ZERO; 2],
                written: 0,
                preference,
                pause,
            };
            for client in 0..CLIENTS {
                for _ in 0..READERS {
                    crowd.soon(READS, Event::Begins(client, Kind::Read));
                }
            }
            for client in 0..writers {
                crowd.soon(READS, Event::Begins(client, Kind::Write));
            }
            crowd
        }

        /// At some time within `most`.
        fn soon(&mut self, most: Duration, event: Event) {
            let micros = u64::try_from(most.as_micros()).unwrap();
            let after = Duration::from_micros(self.random.between(micros / 2, micros));
            self.last += 1;
            self.events
                .insert((self.now.after(after), self.last), event);
        }

        fn run(&mut self) {
            let end = self.now.after(RUN);
            while self.now < end {
                let wake = self
                    .rigs
                    .iter()
                    .filter_map(|rig| rig.engine.next_wake())
                    .min();
                let next = self.events.keys().next().map(|(at, _)| *at);
                self.now = wake.into_iter().chain(next).min().unwrap().max(self.now);
                self.server.tick(self.now.0);
                for rig in &mut self.rigs {
                    rig.now = self.now;
                    rig.wake();
                }
                if next.is_some_and(|at| at <= self.now)
                    && let Some((_, event)) = self.events.pop_first()
                {
                    self.happens(event);
                }
                (0..CLIENTS).for_each(|client| self.settle(client));
            }
            let waiting: Vec<(Moment, Kind)> = self.waits.values().copied().collect();
            for (since, kind) in waiting {
                self.waited(since, kind);
            }
        }

        fn happens(&mut self, event: Event) {
            match event {
                Event::Begins(client, kind) => {
                    let terms = Terms {
                        kind,
                        special: Special {
                            writer_preference: self.preference,
                            ..Special::NONE
                        },
                        ..WATCHED
                    };
                    let id = self.rigs[client].wants_side(terms);
                    self.waits.insert((client, id), (self.now, kind));
                }
                Event::Ends(client, grant, kind) => {
                    let pause = match kind {
                        Kind::Read => READS / 4,
                        _ => self.pause,
                    };
                    self.rigs[client].release(&grant);
                    self.soon(pause, Event::Begins(client, kind));
                }
                Event::Arrives(client, sent) => {
                    let origin = Origin {
                        uuid: client as Uuid,
                        generation: 1,
                    };
                    let reply = self.server.execute(origin, false, &sent.op, u64::MAX);
                    self.soon(WAY, Event::Answer(client, sent.call, reply));
                    for (uuid, channel) in self.server.take_effects().published {
                        let of = channel_for(&uuid.to_string(), Topic::ReadWrite, "n");
                        assert_eq!(&*channel, of);
                        self.soon(WAY, Event::Message(uuid as usize, "n".into()));
                    }
                }
                Event::Answer(client, call, reply) => {
                    let outcome = CallOutcome::Answered(reply);
                    self.rigs[client].input(Input::Outcome { call, outcome });
                }
                Event::Message(client, name) => self.rigs[client].input(Input::Message(name)),
            }
        }

        /// Takes what an engine put out.
        fn settle(&mut self, client: usize) {
            let uuid = client as Uuid;
            let channel: Name = channel_for(&uuid.to_string(), Topic::ReadWrite, "n").into();
            let wanted = !self.rigs[client].subscribed.is_empty();
            if wanted && self.server.subscribers.insert((channel.clone(), uuid)) {
                self.rigs[client].input(Input::Subscribed("n".into()));
            } else if !wanted {
                self.server.subscribers.remove(&(channel, uuid));
            }
            for sent in self.rigs[client].all_sent() {
                self.soon(WAY, Event::Arrives(client, sent));
            }
            let done: Vec<RequestId> = self.rigs[client].completed.keys().copied().collect();
            for id in done {
                let Some((since, kind)) = self.waits.remove(&(client, id)) else {
                    self.rigs[client].released(id);
                    continue;
                };
                let grant = self.rigs[client].granted(id);
                self.waited(since, kind);
                let holds = match kind {
                    Kind::Read => READS,
                    _ => WRITES,
                };
                self.soon(holds, Event::Ends(client, grant, kind));
            }
        }

        fn waited(&mut self, since: Moment, kind: Kind) {
            let side = usize::from(kind == Kind::Write);
            self.longest[side] = self.longest[side].max(since.until(self.now));
            self.written += u64::from(kind == Kind::Write);
        }
    }

    #[test]
    fn a_writer_gets_the_lock_when_the_readers_before_it_have_left() {
        let (mut without, mut with) = (Duration::ZERO, Duration::ZERO);
        for seed in 0..20 {
            let longest = |preference| {
                let mut crowd = Crowd::new(seed, preference, 1, READS);
                crowd.run();
                assert!(
                    preference.is_none() || crowd.longest[0] < MOST + READS,
                    "{:?}",
                    crowd.longest
                );
                crowd.longest[1]
            };
            without = without.max(longest(None));
            with = with.max(longest(Some(MOST)));
        }
        // No reader of any client begins after the writer's mark.
        assert!(with < READS + 10 * WAY, "{with:?}");
        assert!(without > 10 * with, "{without:?}: the readers are no load");
    }

    #[test]
    fn writers_that_keep_coming_do_not_keep_readers_out() {
        for seed in 0..20 {
            let mut crowd = Crowd::new(seed, Some(MOST), CLIENTS, WAY);
            crowd.run();
            let [reads, writes] = crowd.longest;
            assert!(reads < MOST + 10 * WRITES, "{reads:?} {writes:?}");
            // While the readers have their turn, no other writer may open it once more.
            assert!(writes < MOST, "{writes:?}");
            assert!(crowd.written > 100, "{} writes", crowd.written);
        }
    }
}
