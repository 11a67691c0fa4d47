//! The lock machine: holds, levels, waiters, renewals and deadlines.
//!
//! It does no I/O, reads no clock and draws no random number. Everything it learns comes in as an
//! [`Input`] with the current [`Moment`]; everything it wants comes out as an [`Output`]. So the
//! same code runs under the driver and in a simulation.
//!
//! Three rules run through all parts:
//! - What a request may do to us counts when it is sent, what it does for us when it is answered: a
//!   deadline shrinks before a release goes out, and grows only by what was asked and confirmed.
//! - What is due by the clock comes before any input, so what arrives late finds what it missed.
//! - A copy without an answer may be done until its not-after. Nothing that changes a count is
//!   repeated before that, and what nobody wants any more is released at once and after it.

mod asking;
mod commanding;
mod handing;
mod holding;
mod levels;
mod links;
mod losing;
mod pages;
mod rare;
mod renewing;
mod run_out;
mod settling;
#[cfg(test)]
pub(crate) mod tests;
mod timers;
mod timing;
mod turns;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::event::{Counters, Event, Level as EventLevel};
use crate::hold::HoldCell;
use crate::maps::{Few, Map};
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::{Fencing, Form, Holder, Kind, Name, Op, OwnerId, Reply};

use asking::{Closing, NOBODY, Query, extension_of, release_of};
use holding::Hold;
use links::Links;
pub(crate) use links::{LinkId, NOWHERE, Routes};
use pages::Pages;
use renewing::{Due, Flow};
use run_out::RunOut;
use settling::{Cleanup, Confirmed};
use timers::{Timer, Timers};
use timing::Jitter;
use waiting::{Queue, Rooms, Waiter};

/// Names a request of a caller; drawn by the caller's side, never reused.
pub(crate) type RequestId = u64;
/// Names one script call in flight; drawn by the engine, never reused.
pub(crate) type CallId = u64;
/// Names one level of a hold; drawn by the engine, never reused.
pub(crate) type LevelId = u64;

/// Everything the engine can be told.
#[derive(Debug)]
pub(crate) enum Input {
    /// A caller wants something; answered by exactly one [`Output::Complete`].
    Request { id: RequestId, request: Request },
    /// The caller of this request does not wait any more. Ignored when it was completed before.
    Cancel { id: RequestId },
    /// A guard was dropped: release its level, nobody waits for the outcome.
    Dropped { owner: OwnerId, level: LevelId },
    /// A handle was lost without release: stop renewing for its level, and warn.
    Abandoned { owner: OwnerId, level: LevelId },
    /// This level is no longer tied to a guard: only its key can release it, so it ends with its key.
    Detached { owner: OwnerId, level: LevelId },
    /// The thread or task behind this key has ended: stop renewing its detached levels, and warn.
    KeyEnded(Key),
    /// No handle to the client is left: nobody can release by key any more.
    Orphaned,
    /// What became of a call: exactly one per [`Output::Send`].
    Outcome { call: CallId, outcome: Outcome },
    /// The same for a call that was answered on a connection whose reads the server does not remember: it
    /// tells nobody when the key is changed.
    AnsweredUnseen { call: CallId, reply: Reply },
    /// The command connection to this server is up (first time or again): calls can be sent.
    Up(LinkId),
    /// The command connection to this server is gone, or an attempt to connect failed, for this
    /// reason. The driver goes on trying.
    Down(LinkId, Error),
    /// Which server answers for which name, where there are many. A link that no name leads to is
    /// forgotten: if one does again, and it is up, that is told again.
    Routes(Routes),
    /// The channel of this name is subscribed (first, or again after a gap).
    Subscribed(Name),
    /// The server does not let us subscribe to the channel of this name; waiting goes on by recheck.
    Unsubscribable(Name, Error),
    /// A message came on the channel of this name.
    Message(Name),
    /// Keys that we read were changed by somebody else (`None`: all keys).
    Invalidated(Option<Vec<Name>>),
}

/// What a caller can want.
#[derive(Debug)]
pub(crate) enum Request {
    /// Be told when the server is reached, or why it cannot be.
    Connect,
    /// Hold the lock. `wait`: `None` for ever, zero: try once. `token`: what is to stand in Redis as owner; a fresh one otherwise.
    Acquire { name: Name, key: Key, wait: Option<Duration>, terms: Terms, token: Option<Arc<str>> },
    /// Give back one level.
    Release(Target),
    /// Make the lock live at least `lease` from now.
    Extend { target: Target, lease: Duration },
    /// Free the lock if it has this form's token, whoever acquired it.
    ReleaseToken { name: Name, form: Form },
    /// Make it live at least `lease` from now if it has this form's token, whoever acquired it.
    ExtendToken { name: Name, form: Form, lease: Duration },
    /// Delete the lock whoever holds it.
    Force { name: Name, kind: Kind },
    /// Read who holds it.
    Inspect { name: Name, kind: Kind },
    /// Release everything within `limit`, then stop.
    Close { limit: Duration },
}

/// Which level of which hold.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// This level.
    Level { owner: OwnerId, level: LevelId },
    /// The newest level of the hold that this key has on this name.
    Key { name: Name, key: Key },
}

/// How a level is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    /// Whether a key that holds the lock enters once more, instead of waiting for itself.
    pub(crate) reentrant: bool,
    pub(crate) lease: Lease,
    pub(crate) fencing: Fencing,
    /// The longest time the hold may last from its first acquisition.
    pub(crate) max_hold: Option<Duration>,
    /// How many replicas have to acknowledge each acquisition.
    pub(crate) replicas: u8,
    /// Whether only a release or its lease ends the hold.
    pub(crate) linger: bool,
    /// Whether the level ends with the thread or task behind its key from the start, see [`Input::Detached`].
    pub(crate) tied: bool,
}

/// How long Redis keeps a level without news from us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Renewed every third of this time.
    Watchdog(Duration),
    /// Never renewed.
    Fixed(Duration),
    /// This is asked for; what was learnt about the work decides, and that is renewed late.
    Adaptive(Duration),
}

/// What became of a script call.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The server answered.
    Answered(Reply),
    /// The server answered with an error. `passing`: it may well succeed later (loading, busy, a
    /// demoted primary); such an error means that nothing was done.
    Refused { error: Error, passing: bool },
    /// It was sent and not answered within its limit, or the connection broke: it may run until
    /// its not-after, which is `limit` after the engine handed it out.
    Unanswered,
    /// It was not sent and never will be: there is no connection, or the server has too much to do.
    NotSent,
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub(crate) enum Done {
    Connected,
    /// The lock is held; dropping the level must be told to the engine.
    Granted {
        cell: Arc<HoldCell>,
        level: LevelId,
    },
    Released,
    Extended,
    Forced(bool),
    Inspected(Option<Holder>),
    /// The names of locks that could not be released in time.
    Closed(Vec<Name>),
}

/// Everything the engine can want.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send this call; report an [`Input::Outcome`] at the latest `limit` from now. Its not-after,
    /// if it carries one, is a lower bound of the server's clock now, and `limit`. `of`: the request whose
    /// caller waits for it, if it is sent for one.
    Send { call: CallId, op: Arc<Op>, limit: Duration, of: Option<RequestId> },
    /// Have the channel of this name subscribed, and again after every gap, until told otherwise.
    Subscribe(Name),
    /// The channel of this name is not needed any more.
    Unsubscribe(Name),
    /// Answer the caller.
    Complete { id: RequestId, result: Result<Done> },
    /// A hold with a re-entry key begins: local questions by key find it here.
    Opened(Arc<HoldCell>),
    /// All levels of this hold are unwound; forget it, but not a newer hold of the same key.
    Ended(Arc<HoldCell>),
    /// Tell the watchers of this hold. A hold that is being released is not told any more: its
    /// release reports the loss.
    Lost(Arc<HoldCell>, LostReason),
    /// Something worth telling people.
    Event(Event),
    /// Closed: the thread can end.
    Stop,
}

/// What the engine must know once.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The longest time between two tries of a waiter.
    pub(crate) recheck: Duration,
    /// How long a caller waits for a server that cannot be reached, once it had been reached.
    pub(crate) outage: Duration,
    /// How often in a row, and for how long, a lock may go from one owner of this client to the next
    /// before others get a chance.
    pub(crate) handovers: (usize, Duration),
    /// How long a channel stays subscribed when nobody waits any more: who had to wait often waits again.
    pub(crate) linger: Duration,
    /// How many full calls that renew may be under way at one server, or as much work in smaller ones.
    pub(crate) renewals: usize,
    /// Seeds the jitter.
    pub(crate) seed: u64,
}

/// So many calls of a hundred renewals each, or as much in smaller ones, are little work for a server, and enough to use it: while more is
/// due than it can do, calls for other things wait for this much only, and none are sent in vain.
pub(crate) const RENEWALS: usize = 16;

/// Why a call was sent, to know what its outcome means.
#[derive(Debug)]
enum Purpose {
    /// The head of a queue tries for a first acquisition.
    Try(RequestId),
    /// The command in flight of a hold: re-entry, release or extension.
    Command(OwnerId),
    /// The release of a hold that gives the lock to the head of the queue.
    HandOver { from: OwnerId, to: RequestId },
    /// A renewal of these holds for these times, in the order of the request.
    Renewal { link: LinkId, asked: Vec<(OwnerId, Duration)> },
    /// A clean-up release.
    Cleanup(OwnerId),
    /// A force-release or an inspection.
    Query { id: RequestId, name: Name },
}

/// A call in flight.
#[derive(Debug)]
struct Call {
    purpose: Purpose,
    sent: Moment,
}

/// The lock machine of one client. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Engine {
    config: Config,
    counters: Arc<Counters>,
    /// Whether anybody wants events of the level debug, which come with every acquisition.
    listened: bool,
    jitter: Jitter,
    /// The moment of the input being handled.
    now: Moment,
    /// What the input being handled has caused so far.
    out: Vec<Output>,
    /// The input being handled is an answer after which the server tells nobody of changes.
    unseen: bool,
    last_id: u64,
    /// Owners are counted for themselves: their holds are looked up again and again, and neighbours lie together.
    last_owner: OwnerId,
    links: Links,
    calls: Few<CallId, Call>,
    /// Names that somebody here holds or waits for.
    queues: Map<Name, Queue>,
    rooms: Rooms,
    // Ordered maps where the engine walks through them: the same inputs give the same outputs.
    waiters: BTreeMap<RequestId, Waiter>,
    /// There may be very many, and each is looked up again and again: who walks through them sorts.
    holds: Pages<Hold>,
    run_out: RunOut,
    flows: BTreeMap<LinkId, Flow>,
    cleanups: BTreeMap<OwnerId, Cleanup>,
    /// Names nobody waits for any more whose channels are subscribed, and when to look at that.
    idle_channels: BTreeSet<(Moment, Name)>,
    /// How many channels are wanted.
    channels: usize,
    /// The last releases that a server has confirmed.
    confirmed: VecDeque<Confirmed>,
    queries: BTreeMap<RequestId, Query>,
    /// Which hold a caller waits on that wants something of a hold.
    callers: Few<RequestId, OwnerId>,
    timers: Timers,
    /// Holds whose keys were changed: renewed when all that has come in is known. Each key comes in a message of
    /// its own, and they go in few calls.
    hurried: Vec<OwnerId>,
    closing: Option<Closing>,
}

impl Engine {
    pub(crate) fn new(config: Config, counters: Arc<Counters>) -> Self {
        Engine {
            jitter: Jitter::new(config.seed),
            config,
            counters,
            listened: true,
            now: Moment::default(),
            out: Vec::new(),
            unseen: false,
            last_id: 0,
            last_owner: 0,
            links: Links::default(),
            calls: Few::default(),
            queues: Map::default(),
            rooms: Rooms::default(),
            waiters: BTreeMap::new(),
            holds: Pages::default(),
            run_out: RunOut::default(),
            flows: BTreeMap::new(),
            cleanups: BTreeMap::new(),
            idle_channels: BTreeSet::new(),
            channels: 0,
            confirmed: VecDeque::new(),
            queries: BTreeMap::new(),
            callers: Few::default(),
            timers: Timers::default(),
            hurried: Vec::new(),
            closing: None,
        }
    }

    /// Takes one input; what it causes is appended to `out`.
    pub(crate) fn handle(&mut self, now: Moment, input: Input, out: &mut Vec<Output>) {
        self.begin(now, out);
        // What the clock says comes first: what arrives at or after a deadline is too late, even if
        // nobody had the time to wake us in between. But of what others have done we may hear late, several things at a
        // time: all of it is known before their turn is taken to be over.
        if !matches!(input, Input::Message(_) | Input::Invalidated(_)) {
            self.do_due();
        }
        self.dispatch(input);
        self.end(out);
    }

    /// The next moment at which [`Engine::wake`] must be called, if nothing else happens.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let first = self.timers.first();
        if self.hurried.is_empty() { first } else { Some(first.map_or(self.now, |at| at.min(self.now))) }
    }

    /// Does what is due at `now`.
    pub(crate) fn wake(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.begin(now, out);
        self.do_due();
        let hurried = std::mem::take(&mut self.hurried);
        self.renew_now(hurried);
        self.end(out);
    }

    fn do_due(&mut self) {
        let (mut renewals, mut done) = (Due::default(), 0_u64);
        while let Some((at, timer)) = self.timers.pop_due(self.now) {
            done += 1;
            // What is armed for now while it is done would be due for ever.
            debug_assert!(done < 10_000_000, "time stands still: {timer:?}");
            match timer {
                Timer::Waiter(id) => self.waiter_due(id),
                Timer::Hold(owner) => {
                    self.tend(owner, at, &mut renewals);
                    let others = self.timers.pop_holds(at, usize::MAX);
                    self.read_ahead(others.iter().map(|(_, owner)| *owner));
                    for (at, owner) in others {
                        self.tend(owner, at, &mut renewals);
                    }
                }
                Timer::PutOff(link) => self.put_off_due(link),
                Timer::Cleanup(owner) => self.cleanup_due(owner),
                Timer::Query(id) => self.query_due(id),
                Timer::Outage(link) => self.outage_over(link),
                Timer::Channels => self.channels_due(),
                Timer::Close => self.finish_close(),
            }
        }
        if !renewals.owners.is_empty() {
            self.renew_with_neighbours(renewals);
        }
    }

    /// Whether the caller of this request may do its call itself: nothing else is under way that the call
    /// could leave together with, nobody here waits for the lock, and the server is there. `alone`: only if
    /// nobody else uses the client. `unseen`: the server tells nobody of changes to what is read there.
    pub(crate) fn suits_caller(&self, request: &Request, alone: bool, unseen: bool) -> bool {
        if alone && (!self.waiters.is_empty() || self.holds.len() > 1) {
            return false;
        }
        let name = match request {
            Request::Acquire { name, terms, .. } if terms.replicas == 0 => Some(name),
            Request::Release(target) | Request::Extend { target, .. } => self.name_of(target),
            Request::ReleaseToken { name, .. }
            | Request::ExtendToken { name, .. }
            | Request::Force { name, .. }
            | Request::Inspect { name, .. } => Some(name),
            Request::Acquire { .. } | Request::Connect | Request::Close { .. } => None,
        };
        let free = |name: &Name| {
            let queue = self.queues.get(name);
            queue.is_none_or(|queue| {
                queue.waiters.is_empty() && !(unseen && self.is_better_seen(queue, request))
            })
        };
        self.calls.is_empty() && name.is_some_and(|name| self.links.is_up(name) && free(name))
    }

    /// Whether the server is to see to whom the call is of use. Who may have to wait is to be told of changes,
    /// and a change to a key that the server watches for us would be told to us as one of somebody else. The
    /// release that frees a lock is harmless.
    fn is_better_seen(&self, queue: &Queue, request: &Request) -> bool {
        let watched = |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| !hold.renewal.unseen);
        let last = |owner: &OwnerId| self.holds.get(owner).is_some_and(|hold| hold.count() == 1);
        match request {
            Request::Acquire { .. } => queue.channel.wanted || queue.holds().iter().any(watched),
            Request::Release(Target::Level { owner, .. }) => watched(owner) && !last(owner),
            Request::Release(_) => queue.holds().iter().any(|owner| watched(owner) && !last(owner)),
            _ => queue.holds().iter().any(watched),
        }
    }

    fn name_of<'a>(&'a self, target: &'a Target) -> Option<&'a Name> {
        match target {
            Target::Level { owner, .. } => self.holds.get(owner).map(|hold| &hold.cell.name),
            Target::Key { name, .. } => Some(name),
        }
    }

    /// Says whether anybody wants to follow single locks.
    pub(crate) fn set_listened(&mut self, listened: bool) {
        self.listened = listened;
    }

    /// Whether nothing is under way: no hold, no waiter, no clean-up.
    pub(crate) fn is_settled(&self) -> bool {
        self.holds.is_empty() && self.waiters.is_empty() && self.cleanups.is_empty()
    }

    /// All holds, for a driver that has to give them up.
    pub(crate) fn cells(&self) -> Vec<Arc<HoldCell>> {
        self.holds.values().map(|hold| hold.cell.clone()).collect()
    }

    fn begin(&mut self, now: Moment, out: &mut Vec<Output>) {
        // A clock handed in out of order must not move a deadline back.
        self.now = self.now.max(now);
        std::mem::swap(&mut self.out, out);
    }

    fn end(&mut self, out: &mut Vec<Output>) {
        if self.closing.is_some() {
            self.close_if_settled();
        }
        self.forget_alarms();
        self.tidy_alarms();
        self.counters.holds.set(self.holds.len() as u64);
        self.counters.waiting.set(self.waiters.len() as u64);
        std::mem::swap(&mut self.out, out);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Request { id, request } => self.request(id, request),
            Input::Cancel { id } => self.cancel(id),
            Input::Dropped { owner, level } => self.leave(None, owner, Some(level)),
            Input::Abandoned { owner, level } => self.abandon(owner, level),
            Input::Detached { owner, level } => self.detach(owner, level),
            Input::KeyEnded(key) => self.abandon_detached(|of| of == key),
            Input::Orphaned => self.abandon_detached(|_| true),
            Input::Outcome { call, outcome } => self.outcome(call, outcome),
            Input::AnsweredUnseen { call, reply } => {
                self.unseen = true;
                self.outcome(call, Outcome::Answered(reply));
                self.unseen = false;
            }
            Input::Up(link) => self.link_up(link),
            Input::Down(link, error) => self.link_down(link, error),
            Input::Routes(routes) => self.reroute(routes),
            Input::Subscribed(name) => self.subscribed(&name),
            Input::Unsubscribable(name, error) => self.unsubscribable(&name, &error),
            Input::Message(name) => self.message(&name),
            Input::Invalidated(names) => self.invalidated(names),
        }
    }

    fn request(&mut self, id: RequestId, request: Request) {
        if self.closing.is_some() {
            return match request {
                Request::Close { limit } => self.close(id, limit),
                _ => self.fail(id, Error::new(ErrorKind::Closed, "the client is closed; open a new one")),
            };
        }
        match request {
            Request::Connect => self.ask(id, None),
            Request::Acquire { name, key, wait, terms, token } => {
                let form = Form { kind: terms.kind, token };
                self.acquire(id, name, key, wait, terms, form);
            }
            Request::Release(target) => self.release(id, &target),
            Request::Extend { target, lease } => self.extend(id, &target, lease),
            Request::ReleaseToken { name, form } => self.ask(id, Some(release_of(name, NOBODY, form))),
            Request::ExtendToken { name, form, lease } => self.ask(id, Some(extension_of(name, form, lease))),
            Request::Force { name, kind } => self.ask(id, Some(Op::Force { name, kind })),
            Request::Inspect { name, kind } => self.ask(id, Some(Op::Inspect { name, kind })),
            Request::Close { limit } => self.close(id, limit),
        }
    }

    fn cancel(&mut self, id: RequestId) {
        let error = || Error::new(ErrorKind::Cancelled, "the call was cancelled");
        if self.waiters.contains_key(&id) {
            self.give_up(id, error());
        } else if self.queries.contains_key(&id) {
            self.end_query(id, Err(error()));
        } else {
            self.cancel_command(id, error());
        }
    }

    fn outcome(&mut self, call: CallId, outcome: Outcome) {
        // Each call has one outcome; a second one is none of ours.
        let Some(Call { purpose, sent }) = self.calls.remove(&call) else {
            return;
        };
        if matches!(outcome, Outcome::Unanswered) {
            self.counters.unanswered.add(1);
        }
        match purpose {
            Purpose::Try(id) => self.tried(id, sent, outcome),
            Purpose::Command(owner) => self.commanded(owner, call, sent, outcome),
            Purpose::HandOver { from, to } => self.handed_over(from, to, call, sent, outcome),
            Purpose::Renewal { link, asked } => self.renewed(link, &asked, sent, outcome),
            Purpose::Cleanup(owner) => self.cleaned(owner, outcome),
            Purpose::Query { id, name } => self.answered(id, &name, outcome),
        }
    }

    /// Keys that we have read were written by somebody else. That is never a verdict: holds are
    /// renewed at once, which tells; waiters may try.
    fn invalidated(&mut self, names: Option<Vec<Name>>) {
        let names = names.unwrap_or_else(|| self.all_names());
        for name in &names {
            let Some(queue) = self.queues.get(name) else {
                continue;
            };
            self.hurried.extend(queue.holds().iter().copied());
            self.hint(name);
        }
    }

    // ---- small services for all parts ----

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn next_owner(&mut self) -> OwnerId {
        self.last_owner += 1;
        self.last_owner
    }

    fn send(&mut self, purpose: Purpose, op: impl Into<Arc<Op>>, limit: Duration) -> CallId {
        let call = self.next_id();
        self.counters.calls.add(1);
        let of = match &purpose {
            Purpose::Try(id) | Purpose::Query { id, .. } => Some(*id),
            Purpose::Command(owner) => self.holds.get(owner).and_then(|hold| hold.asked_by()),
            // It is for two callers, or for nobody.
            Purpose::HandOver { .. } | Purpose::Renewal { .. } | Purpose::Cleanup(_) => None,
        };
        self.calls.insert(call, Call { purpose, sent: self.now });
        self.out.push(Output::Send { call, op: op.into(), limit, of });
        call
    }

    fn complete(&mut self, id: RequestId, done: Done) {
        self.callers.remove(&id);
        self.out.push(Output::Complete { id, result: Ok(done) });
    }

    fn fail(&mut self, id: RequestId, error: Error) {
        self.callers.remove(&id);
        match error.kind() {
            ErrorKind::Timeout => self.counters.timeouts.add(1),
            ErrorKind::Cancelled => self.counters.cancelled.add(1),
            _ => {}
        }
        self.out.push(Output::Complete { id, result: Err(error) });
    }

    /// What follows a single lock. Its text is made only for those who want it.
    fn trace(&mut self, kind: &'static str, lock: &Name, text: impl FnOnce() -> String) {
        if self.listened {
            self.event(kind, EventLevel::Debug, lock, text());
        }
    }

    fn event(&mut self, kind: &'static str, level: EventLevel, lock: &Name, text: impl Into<String>) {
        self.out.push(Output::Event(Event { kind, level, lock: Some(lock.clone()), text: text.into() }));
    }
}
