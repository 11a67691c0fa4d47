//! A crowd at one name: engines with a modelled server, and the calls that a hand-over costs.

use std::collections::BTreeMap;

use super::counting_world::trade;
use super::simulation::server::{Origin, Server, Uuid};
use super::*;
use crate::wire::names::channel_for;
use crate::wire::{Change, Place};

/// The way to the server, and back.
const WAY: u64 = 100;
const NAME: &str = "sale";

#[derive(Debug)]
enum What {
    Asks(CallId, Arc<Op>),
    Outcome(CallId, Reply),
    Subscribes(Topic, bool),
    Input(Input),
    Acquires,
    Leaves,
    Wakes,
}

/// One client of the crowd: its caller takes the lock again and again.
struct Member {
    engine: Engine,
    /// `None`: a plain semaphore.
    kind: Option<Kind>,
    request: RequestId,
    level: Option<Target>,
    /// It has the permit of a plain semaphore.
    has_permit: bool,
    /// It is stopped or dead: nothing reaches it.
    is_away: bool,
    got: u64,
    /// It waits, since so many hand-overs of all.
    asked: Option<u64>,
}

/// What a crowd waits for; `None`: a plain semaphore.
const KINDS: [Option<Kind>; 4] = [
    Some(Kind::Reentrant),
    Some(Kind::Write),
    Some(Kind::Semaphore),
    None,
];

/// Whether the first place is told that it is the first.
fn is_told(kind: Option<Kind>) -> bool {
    kind.is_none_or(Kind::takes_permits)
}

/// The calls for a hand-over.
fn most(kind: Option<Kind>) -> f64 {
    match kind {
        // Each renews its place meanwhile.
        Some(Kind::Fair) => 5.2,
        kind if is_told(kind) => 6.0,
        _ => 3.2,
    }
}

fn terms(kind: Kind, limit: u32) -> Terms {
    let one = kind.takes_permits();
    Terms {
        kind,
        permits: one.into(),
        special: Special {
            limit: if one { limit } else { 0 },
            ..Special::NONE
        },
        ..WATCHED
    }
}

struct Many {
    server: Server,
    /// The free ones of a plain semaphore.
    permits: i64,
    /// All of a semaphore.
    limit: u32,
    members: Vec<Member>,
    events: BTreeMap<(u64, u64), (usize, What)>,
    time: u64,
    last: u64,
    inside: u64,
    /// The way to the server, and back.
    way: u64,
    /// How long each caller waits.
    wait: Option<Duration>,
    /// So many never come again when they have given up.
    leaving: usize,
    /// How much later a message comes than an answer.
    message_way: u64,
    /// How soon a caller comes again.
    rest: u64,
    /// So many, whose users may not subscribe to the channels of places.
    denied: usize,
    /// How long the last one waits, in place of the usual time.
    hasty: Option<Duration>,
    calls: u64,
    got: u64,
    /// The longest time without a hand-over, from the last moment at which it is counted.
    pause: u64,
    since: u64,
    /// All hand-overs, and those during the longest wait of one, from the same moment.
    turns: u64,
    longest: u64,
}

impl Many {
    fn new(count: usize, kind: impl Into<Option<Kind>>, inside: u64) -> Many {
        let kind = kind.into();
        let member = |at: usize| {
            let config = Config {
                recheck: RECHECK,
                outage: OUTAGE,
                handovers: (HANDOVERS, RUN),
                linger: ms(200),
                least_limit: Duration::ZERO,
                renewals: tuning::RENEWALS_IN_FLIGHT,
                seed: at as u64,
                is_shared: |name, own| Arc::strong_count(name) > own,
            };
            Member {
                engine: Engine::new(config, Arc::new(Counters::default())),
                kind,
                request: 0,
                level: None,
                has_permit: false,
                is_away: false,
                got: 0,
                asked: None,
            }
        };
        let mut many = Many {
            server: Server::new(),
            permits: 1,
            limit: 1,
            members: (0..count).map(member).collect(),
            events: BTreeMap::new(),
            time: 1_000_000,
            last: 0,
            inside,
            way: WAY,
            wait: None,
            leaving: 0,
            message_way: 0,
            rest: 20,
            denied: 0,
            hasty: None,
            calls: 0,
            got: 0,
            pause: 0,
            since: 1_000_000,
            turns: 0,
            longest: 0,
        };
        if kind.is_none() {
            // Its number is no hash.
            many.server.semaphores.entry(NAME.into()).or_default();
        }
        for at in 0..count {
            many.input(at, Input::Up(0));
            many.later(at, at as u64 % 1000, What::Acquires);
        }
        many
    }

    fn later(&mut self, at: usize, delay: u64, what: What) {
        self.last += 1;
        // No two calls take the same time: clients would keep step.
        let is_call = matches!(what, What::Asks(..) | What::Outcome(..));
        let more = if is_call {
            self.last * 7919 % (self.way * 2 / 3)
        } else {
            0
        };
        let due = self.time + delay + more;
        self.events.insert((due, self.last), (at, what));
    }

    fn input(&mut self, at: usize, input: Input) {
        let mut out = Vec::new();
        let now = Moment(self.time);
        self.members[at].engine.handle(now, input, &mut out);
        self.look_at(at, out);
    }

    fn look_at(&mut self, at: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send { call, op, .. } => self.later(at, self.way, What::Asks(call, op)),
                Output::Subscribe(_, topic) => {
                    self.later(at, self.way, What::Subscribes(topic, true))
                }
                Output::Unsubscribe(_, topic) => {
                    self.later(at, self.way, What::Subscribes(topic, false));
                }
                Output::Complete { result, .. } => match result {
                    Ok(Done::Granted { cell, level }) => {
                        let owner = cell.owner;
                        self.members[at].level = Some(Target::Level { owner, level });
                        self.enters(at);
                    }
                    Ok(Done::Taken { .. }) => {
                        self.members[at].has_permit = true;
                        self.enters(at);
                    }
                    Ok(_) => self.later(at, self.rest, What::Acquires),
                    Err(error) => {
                        // Unavailable: its only call is in flight when its wait ends.
                        let kinds = [ErrorKind::Timeout, ErrorKind::Unavailable];
                        assert!(kinds.contains(&error.kind()), "{error:#}");
                        if at >= self.leaving {
                            self.later(at, 20, What::Acquires);
                        }
                    }
                },
                _ => {}
            }
        }
        if let Some(due) = self.members[at].engine.next_wake() {
            let delay = due.0.saturating_sub(self.time);
            self.later(at, delay, What::Wakes);
        }
    }

    fn enters(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.got += 1;
        let waited = self.turns - member.asked.take().unwrap();
        self.longest = self.longest.max(waited);
        self.turns += 1;
        self.got += 1;
        self.pause = self.pause.max(self.time - self.since);
        self.since = self.time;
        self.later(at, self.inside, What::Leaves);
    }

    fn request(&mut self, at: usize, request: Request) {
        self.members[at].request += 1;
        let id = self.members[at].request;
        self.input(at, Input::Request { id, request });
    }

    fn run(&mut self, time: u64) {
        let end = self.time + time;
        while let Some(((due, _), _)) = self.events.first_key_value()
            && *due <= end
        {
            let ((due, _), (at, what)) = self.events.pop_first().unwrap();
            self.time = due;
            self.server.tick(due);
            self.happens(at, what);
        }
        self.time = end;
    }

    fn happens(&mut self, at: usize, what: What) {
        let uuid = at as Uuid;
        let subscribed = |topic| {
            (
                Name::from(channel_for(&uuid.to_string(), topic, NAME)),
                uuid,
            )
        };
        if self.members[at].is_away && !matches!(what, What::Asks(..) | What::Subscribes(..)) {
            return;
        }
        match what {
            What::Asks(call, op) => {
                self.calls += 1;
                let origin = Origin {
                    uuid,
                    generation: 1,
                };
                let reply = match &*op {
                    Op::Change { change, place, .. } => self.change(uuid, change, *place),
                    op => self.server.execute(origin, true, op, u64::MAX),
                };
                self.later(at, self.way, What::Outcome(call, reply));
                let effects = self.server.take_effects();
                for (origin, name) in effects.invalidated {
                    let input = Input::Invalidated(Some(vec![name]));
                    self.later(origin.uuid as usize, self.way, What::Input(input));
                }
                for (to, channel) in effects.published {
                    let wanted = self.server.subscribers.contains(&(channel, to));
                    if wanted {
                        let input = Input::Message(NAME.into());
                        // Nobody hears all messages first.
                        let way = self.message_way + self.way + self.last * 7919 % self.way;
                        self.later(to as usize, way, What::Input(input));
                    }
                }
            }
            What::Subscribes(Topic::Place(_), true) if at < self.denied => {
                let error = Error::new(ErrorKind::Auth, "NOPERM no access to the channel");
                let input = Input::Unsubscribable(NAME.into(), error);
                self.later(at, self.way, What::Input(input));
            }
            What::Subscribes(topic, true) => {
                self.server.subscribers.insert(subscribed(topic));
                self.later(at, self.way, What::Input(Input::Subscribed(NAME.into())));
            }
            What::Subscribes(topic, false) => {
                self.server.subscribers.remove(&subscribed(topic));
            }
            What::Outcome(call, reply) => {
                let outcome = CallOutcome::Answered(reply);
                self.input(at, Input::Outcome { call, outcome });
            }
            What::Input(input) => self.input(at, input),
            What::Acquires => {
                self.members[at].asked = Some(self.turns);
                let is_last = at + 1 == self.members.len();
                let hasty = self.hasty.filter(|_| is_last);
                let (name, wait) = (NAME.into(), hasty.or(self.wait));
                let request = match self.members[at].kind {
                    Some(kind) => Request::Acquire {
                        name,
                        key: OwnerKey::Once,
                        wait,
                        terms: terms(kind, self.limit),
                        token: None,
                    },
                    None => Request::Take {
                        name,
                        permits: 1,
                        wait,
                    },
                };
                self.request(at, request);
            }
            What::Leaves => {
                let name = NAME.into();
                if self.members[at].kind.is_none() {
                    self.members[at].has_permit = false;
                    let change = Change::give(1);
                    self.request(at, Request::Change { name, change });
                } else if let Some(target) = self.members[at].level.take() {
                    self.request(at, Request::Release(target));
                }
            }
            What::Wakes => {
                let now = Moment(self.time);
                let due = self.members[at].engine.next_wake();
                if due.is_some_and(|due| due <= now) {
                    let mut out = Vec::new();
                    self.members[at].engine.wake(now, &mut out);
                    self.look_at(at, out);
                }
            }
        }
    }

    /// A trade of a plain semaphore.
    fn change(&mut self, uuid: Uuid, change: &Change, place: Option<Place>) -> Reply {
        let Change::Trade { given, wanted } = change else {
            panic!("no trade: {change:?}");
        };
        let name: Name = NAME.into();
        let own = place.map(|place| (uuid, place.owner));
        let now = self.server.now_ms() * 1000;
        let crowd = self.server.crowds.entry(name.clone()).or_default();
        let due = place.is_some_and(|place| place.first);
        let before = own.filter(|_| !due).map_or(0, |own| crowd.left(own));
        let given = i64::from(*given);
        let free = self.permits + given;
        let (left, done) = trade(self.permits, (given, wanted), before);
        self.permits = left;
        let mut ahead = None;
        if let Some(own) = own {
            if done > 0 {
                crowd.served(own, due, free, now);
                self.server.tell_crowd(&name, left);
            }
            let crowd = self.server.crowds.entry(name.clone()).or_default();
            if usize::try_from(done) != Ok(wanted.len()) {
                ahead = Some(crowd.stand(own, left, now));
            }
        }
        if given.min(left) > 0 {
            self.server.publish(Topic::Semaphore, &name);
        }
        Reply::Changed { done, left, ahead }
    }

    /// A process dies: its connections end with it.
    fn kill(&mut self, at: usize) {
        self.members[at].is_away = true;
        self.server
            .subscribers
            .retain(|(_, uuid)| *uuid != at as Uuid);
    }

    /// A semaphore has so many permits, of which nobody has one yet.
    fn set_limit(&mut self, limit: u32) {
        (self.limit, self.permits) = (limit, limit.into());
    }

    /// Calls for each hand-over, from now on.
    fn cost(&mut self, time: u64) -> f64 {
        (self.calls, self.got, self.pause, self.since) = (0, 0, 0, self.time);
        self.longest = 0;
        self.run(time);
        // Some wait still.
        let asked = self.members.iter().filter_map(|member| member.asked);
        let longest = asked.map(|asked| self.turns - asked).max();
        self.longest = self.longest.max(longest.unwrap_or(0));
        self.calls as f64 / self.got.max(1) as f64
    }

    fn jain(&self) -> f64 {
        let got: Vec<f64> = self.members.iter().map(|one| one.got as f64).collect();
        let (sum, squares) = (
            got.iter().sum::<f64>(),
            got.iter().map(|got| got * got).sum::<f64>(),
        );
        sum * sum / (squares.max(1.0) * got.len() as f64)
    }
}

#[test]
fn a_hand_over_in_a_crowd_costs_few_calls_however_large_it_is() {
    let (hash, plain, permit) = (Kind::Reentrant, Kind::Simple, Kind::Semaphore);
    let crowds = [
        (3, hash, 1_000),
        (10, hash, 0),
        (60, hash, 1_000),
        (60, plain, 1_000),
        (300, hash, 0),
        (300, hash, 20_000),
        (1_000, hash, 1_000),
        (60, Kind::Adaptive, 1_000),
        (60, Kind::Fair, 1_000),
        (300, Kind::Fair, 20_000),
        (1_000, Kind::Fair, 1_000),
        (3, permit, 1_000),
        (10, permit, 0),
        (60, permit, 1_000),
        (300, permit, 20_000),
        (1_000, permit, 1_000),
    ];
    let side = Some(Kind::Write);
    let counted = [None, side].map(|kind| {
        let sizes = [
            (3, 1_000),
            (10, 0),
            (60, 1_000),
            (300, 20_000),
            (1_000, 1_000),
        ];
        sizes.map(|(count, inside)| (count, kind, inside))
    });
    let crowds = crowds.map(|(count, kind, inside)| (count, Some(kind), inside));
    let crowds = crowds.into_iter().chain(counted.into_iter().flatten());
    for (count, kind, inside) in crowds {
        let mut many = Many::new(count, kind, inside);
        let round = count.max(60) as u64 * (inside + 6 * WAY);
        many.run(4 * round);
        let cost = many.cost(8 * round);
        let (got, jain, pause, longest) = (many.got, many.jain(), many.pause, many.longest);
        let about = format!(
            "{kind:?}, {count} clients, {inside} us inside: {cost:.2} calls, jain {jain:.3}, {got} got, pause {pause}, longest {longest}"
        );
        println!("{about}");
        let fair = jain > 0.95 && longest < 3 * count.max(60) as u64;
        // A permit comes back before those that were told listen for it.
        let busy = if is_told(kind) && inside == 0 {
            2.0
        } else {
            0.0
        };
        let most = most(kind);
        assert!(
            cost < most + busy && fair && pause < inside + 10_000,
            "{about}"
        );
    }
}

#[test]
fn a_crowd_of_ten_thousand_costs_no_more() {
    let play = |kind| {
        let (count, inside) = (10_000, 1_000);
        let mut many = Many::new(count, kind, inside);
        let round = count as u64 * (inside + 5 * WAY);
        many.run(round);
        let cost = many.cost(round / 2);
        let (got, pause) = (many.got, many.pause);
        // A look finds the lock free at times and puts the first place, whose try is on its way, to the end.
        let never = many.members.iter().filter(|one| one.got == 0).count();
        let about = format!("{kind:?}: {cost:.2} calls, {got} got, pause {pause}, {never} never");
        println!("{about}");
        let fair = pause < inside + 10_000 && never < count / 50;
        assert!(cost < most(kind) && fair, "{about}");
    };
    std::thread::scope(|scope| {
        for kind in KINDS {
            scope.spawn(move || play(kind));
        }
    });
}

#[test]
fn several_permits_go_out_at_the_same_time() {
    for kind in [Some(Kind::Semaphore), None] {
        let mut many = Many::new(40, kind, 1_000);
        many.set_limit(20);
        many.way = 5_000;
        many.run(2_000_000);
        let cost = many.cost(10_000_000);
        // One after the other they take two round trips each.
        let alone = 10_000_000 / (4 * many.way);
        let about = format!(
            "{kind:?}: {cost:.2} calls, {} got, {alone} one after the other, jain {:.3}",
            many.got,
            many.jain()
        );
        println!("{about}");
        let fair = many.jain() > 0.95;
        assert!(many.got > 8 * alone && cost < 10.0 && fair, "{about}");
    }
}

#[test]
fn a_crowd_goes_on_without_those_that_die_or_stop() {
    let cases = KINDS.map(|kind| [(kind, false), (kind, true)]);
    for (kind, stops) in cases.into_iter().flatten() {
        let mut many = Many::new(100, kind, 1_000);
        many.run(1_000_000);
        for at in (0..100).step_by(3) {
            // None of them has the lock, which would be gone for its lease.
            let has = many.members[at].level.is_some() || many.members[at].has_permit;
            if !has && !stops {
                many.kill(at);
            } else if !has && at == 3 {
                many.members[at].is_away = true;
            }
        }
        many.run(60_000_000);
        let cost = many.cost(10_000_000);
        let about = format!(
            "{kind:?}, {stops}: {cost:.2} calls, {} got, pause {}",
            many.got, many.pause
        );
        println!("{about}");
        let most = if is_told(kind) { 6.0 } else { 4.0 };
        assert!(cost < most && many.got > 4_000, "{about}");
    }
}

#[test]
fn a_crowd_goes_on_when_its_places_are_lost() {
    let mut many = Many::new(100, Kind::Reentrant, 1_000);
    many.run(1_000_000);
    many.server.crowds.clear();
    many.cost(20_000_000);
    // One recheck.
    assert!(many.pause < 6_000_000, "{}", many.pause);
    let cost = many.cost(5_000_000);
    assert!(cost < 4.0 && many.got > 2_000, "{cost} {}", many.got);
}

#[test]
fn callers_that_give_up_hold_up_no_crowd() {
    for kind in KINDS {
        let mut many = Many::new(100, kind, 1_000);
        (many.wait, many.leaving) = (Some(ms(40)), 60);
        many.cost(5_000_000);
        let about = format!("{kind:?}: pause {}, {} got", many.pause, many.got);
        println!("{about}");
        assert!(many.pause < 100_000 && many.got > 1_000, "{about}");
    }
}

#[test]
fn a_caller_that_gives_up_takes_no_place_from_those_that_wait() {
    for kind in [Kind::Reentrant, Kind::Write] {
        let mut many = Many::new(11, kind, 100_000);
        (many.hasty, many.rest) = (Some(ms(20)), 5_000);
        many.run(20_000_000);
        many.cost(50_000_000);
        let about = format!(
            "{kind:?}: longest wait {} of {} hand-overs",
            many.longest, many.got
        );
        println!("{about}");
        // Each one waits for the ten others.
        assert!(many.longest < 20 && many.got > 400, "{about}");
    }
}

#[test]
fn a_crowd_goes_on_beside_those_that_hear_the_channel_of_the_lock_alone() {
    let cases = KINDS.map(|kind| [1, 15, 30].map(|many| (kind, many)));
    for (kind, denied) in cases.into_iter().flatten() {
        let mut many = Many::new(30, kind, 1_000);
        many.denied = denied;
        many.run(1_000_000);
        many.cost(20_000_000);
        let least = many.members.iter().map(|one| one.got).min().unwrap();
        let about = format!(
            "{kind:?}, {denied}: {} got, pause {}, least {least}, jain {:.3}",
            many.got,
            many.pause,
            many.jain()
        );
        println!("{about}");
        // Who gives a permit of a plain semaphore back may take it again before others hear of it.
        let all = least > 20 || kind.is_none();
        assert!(many.pause < 20_000 && many.got > 6_000 && all, "{about}");
    }
}

// Semaphores give no turn, as a lock does.
#[test]
fn a_client_that_takes_a_permit_again_at_once_keeps_no_crowd_out() {
    let kinds = [None, Some(Kind::Semaphore)];
    let sizes = [2, 10, 60];
    for (kind, count) in kinds
        .into_iter()
        .flat_map(|kind| sizes.map(|count| (kind, count)))
    {
        let mut many = Many::new(count, kind, 20_000);
        (many.message_way, many.rest) = (1_000, 0);
        many.run(count as u64 * 10_000_000);
        let about = format!(
            "{kind:?}, {count}: {} got, jain {:.3}",
            many.got,
            many.jain()
        );
        println!("{about}");
        assert!(many.jain() > 0.95, "{about}");
    }
}

/// The first one looks again meanwhile, finds that it is the first, and listens to the channel of the lock.
#[test]
fn work_that_outlasts_a_look_takes_no_place_from_the_first_one() {
    for kind in [Kind::Reentrant, Kind::Simple, Kind::Write] {
        let mut many = Many::new(8, kind, 3 * RECHECK.as_micros() as u64);
        many.message_way = 50;
        many.run(20 * many.inside);
        many.cost(300 * many.inside);
        let about = format!(
            "{kind:?}: longest wait {} of {} hand-overs, jain {:.3}",
            many.longest,
            many.got,
            many.jain()
        );
        println!("{about}");
        // Each one waits for the seven others.
        assert!(many.longest < 12 && many.got > 290, "{about}");
    }
}

#[test]
fn two_clients_take_turns() {
    for kind in [Kind::Reentrant, Kind::Simple, Kind::Write] {
        for message_way in [0, 300] {
            let mut many = Many::new(2, kind, 1_000);
            (many.message_way, many.rest) = (message_way, 0);
            many.run(1_000_000);
            many.cost(20_000_000);
            let about = format!(
                "{kind:?}, {message_way}: {} got, longest wait {}, jain {:.3}",
                many.got,
                many.longest,
                many.jain()
            );
            println!("{about}");
            assert!(many.jain() > 0.95 && many.got > 10_000, "{about}");
        }
    }
}
