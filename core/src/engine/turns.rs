//! Other clients: their turn after ours, and the channel on which they tell of theirs.
//!
//! A release wakes every waiter, and all but one try in vain. So where others listen, and the lock was waited
//! for, a client leaves them as many turns as there are of them: it tries at once when it has heard that many
//! releases since its own, and a moment later for each that is missing, unless it hears the next one before.
//! Whoever waits for longest is first, then. Nobody waits much longer for a turn that nobody takes.

use std::time::Duration;

use super::holding::Phase;
use super::timers::Timer;
use super::waiting::{Attempt, Queue};
use super::{Engine, Output, Request};
use crate::moment::Moment;
use crate::owner::Key;
use crate::wire::Name;

/// How long each of the others may take to be there first: a message to it and its try, on a busy machine.
const TURN: Duration = Duration::from_micros(700);
/// So much longer they get each time that somebody had come, but was not done yet: who looks meanwhile looks in vain.
const LONGER: Duration = Duration::from_micros(350);
/// And so much at most: their message may never come.
const LONGEST: Duration = TURN.saturating_mul(4);
/// So many turns are waited for at most.
const TURNS: u32 = 8;
/// A client that has had the lock for as long as it may leaves it to the others for as long, and for twice as long with each
/// turn that nobody takes then, up to this: others may be slow (a busy machine, a JVM), and would never come in
/// between. It is less than half of what a client has before (`handover_time`).
const MOST: Duration = Duration::from_millis(20);
/// A message of our own is not waited for longer than this.
const ECHO: Duration = Duration::from_millis(100);

/// What is known of the channel of a name.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Channel {
    /// It is to be subscribed: wanted by the first waiter that finds the lock held elsewhere, given up some
    /// time after nobody waits any more.
    pub(super) wanted: bool,
    /// The server has confirmed it.
    confirmed: bool,
    /// Our own release is heard as well, until then: nobody has to look because of that.
    echo: Option<Moment>,
    /// It was heard before the answer to the release came.
    echoed: bool,
    /// When it is given up, unless somebody waits again.
    idle_until: Option<Moment>,
    /// The moment at which that is looked at.
    looked_at: Option<Moment>,
}

/// Whose turn it is.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Turn {
    /// That of the others, until then.
    others: Option<Moment>,
    /// How many others listened when it was released here.
    rivals: u32,
    /// How many releases of others were heard since.
    heard: u32,
    /// It was given after we had the lock for as long as we may: how long it is at least.
    patience: Option<Duration>,
    /// How many of those in a row nobody took.
    missed: u32,
    /// They took none: they need not be given another one before this.
    needless: Moment,
    /// Others had the lock, or have it, since it was here last.
    contended: bool,
    /// How much longer than usual each of them may take, since they take their turns but need more time.
    longer: Duration,
}

impl Turn {
    pub(super) const NONE: Turn = Turn {
        others: None,
        rivals: 0,
        heard: 0,
        patience: None,
        missed: 0,
        needless: Moment(0),
        contended: false,
        longer: Duration::ZERO,
    };

    /// The lock was got here, after a refusal (`refused`) or at once. When others did not use the time
    /// that they had, they get none for a while.
    pub(super) fn taken(&mut self, now: Moment, refused: bool, pause: Duration) {
        self.contended = refused || self.heard > 0;
        if self.rivals > 0 && !self.contended {
            self.needless = now.after(pause);
            self.missed += u32::from(self.patience.is_some());
        } else if self.contended {
            self.missed = 0;
        }
        if self.has_run_out(now) {
            self.longer = Duration::ZERO;
        }
        (self.rivals, self.heard, self.patience, self.others) = (0, 0, None, None);
    }

    /// The lock was asked for here, and somebody has it. When that was after the time of the others, they need more.
    pub(super) fn refused(&mut self, now: Moment) {
        if self.has_run_out(now) {
            self.longer = (self.longer + LONGER).min(LONGEST - TURN);
            self.others = None;
        }
    }

    /// Whether a turn of others was waited for, and they were not heard in their time.
    fn has_run_out(&self, now: Moment) -> bool {
        self.others.is_some_and(|end| end <= now)
    }

    /// The lock was released here, and so many others heard that; `ran`: how long we had it, if that is as long as we
    /// may.
    fn given(&mut self, now: Moment, rivals: u32, ran: Option<Duration>) {
        (self.rivals, self.heard) = (rivals, 0);
        let times = 1_u32.checked_shl(self.missed).unwrap_or(u32::MAX);
        self.patience = ran.map(|ran| ran.max(TURN).saturating_mul(times));
        self.wait(now);
    }

    /// Somebody else has released it.
    fn passed(&mut self, now: Moment) {
        self.heard = self.heard.saturating_add(1);
        self.patience = None;
        self.wait(now);
    }

    fn wait(&mut self, now: Moment) {
        let turns = self.rivals.saturating_sub(self.heard).min(TURNS);
        let usual = (TURN + self.longer) * turns;
        let time = self.patience.map_or(usual, |patience| patience.min(MOST).max(usual));
        self.others = (turns > 0).then(|| now.after(time));
    }

    /// How many releases of others are waited for. With patience, the first of them ends that.
    fn ahead(&self, now: Moment) -> u32 {
        let counts = self.of_others(now).is_some() && self.patience.is_none();
        if counts { self.rivals.saturating_sub(self.heard) } else { 0 }
    }

    /// The end of the others' turn, while it is theirs.
    pub(super) fn of_others(&self, now: Moment) -> Option<Moment> {
        self.others.filter(|end| *end > now)
    }
}

impl Queue {
    /// Our release was confirmed and `heard` by so many.
    pub(super) fn give_turn(&mut self, now: Moment, heard: u32, handovers: (usize, Duration)) {
        let own = self.channel.confirmed && heard > 0;
        if own && !std::mem::take(&mut self.channel.echoed) {
            self.channel.echo = Some(now.after(ECHO));
        }
        let handed = self.run.has_handed_over();
        let last = handed && self.run.is_over(now, handovers);
        if (handed || self.turn.contended) && (last || self.turn.needless <= now) {
            let ran = last.then(|| self.run.lasted(now));
            self.turn.given(now, heard - u32::from(own), ran);
        }
    }
}

impl Engine {
    /// Whether releases of others may be heard.
    pub(crate) fn has_channels(&self) -> bool {
        self.channels > 0
    }

    /// Whether nobody holds or wants anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.holds.is_empty() && self.calls.is_empty() && self.waiters.is_empty()
    }

    /// Of how many releases this client need not be told at once: it does nothing but wait for this lock, leaves it to
    /// others, and is to hear of as many and of one more before it tries. Its timer does not wait for that. Who holds
    /// something, or has a call under way, is to be told everything; but where the only call is the release of the only
    /// hold, and `elsewhere`, its answer does not come where messages do, nobody has to be told of that release.
    pub(crate) fn skipped(&self, now: Moment, elsewhere: bool) -> Option<(&Name, u32)> {
        if elsewhere {
            return self.own_release().map(|name| (name, 1));
        }
        if !self.holds.is_empty() || !self.calls.is_empty() {
            return None;
        }
        let anyone = self.waiters.values().next()?;
        let (name, queue) = self.queues.get_key_value(&anyone.name)?;
        let alone = queue.waiters.len() == self.waiters.len();
        let waits = alone && queue.attempt == Attempt::Parked && queue.channel.confirmed;
        let before_the_last = queue.turn.ahead(now).checked_sub(1).filter(|_| waits)?;
        let echo = queue.channel.echo.is_some_and(|until| now < until);
        Some((name, before_the_last + u32::from(echo)))
    }

    /// The lock that is being released, if there is nothing else, and we hear that ourselves.
    fn own_release(&self) -> Option<&Name> {
        let alone = self.waiters.is_empty() && self.calls.len() == 1 && self.holds.len() == 1;
        let hold = alone.then(|| self.holds.values().next()).flatten()?;
        let leaves = hold.phase == Phase::Releasing && self.queues.get(&hold.cell.name)?.channel.confirmed;
        leaves.then_some(&hold.cell.name)
    }

    /// Whether a caller who asks for this would leave it to others for now, without a call.
    pub(super) fn leaves_to_others(&self, request: &Request) -> bool {
        let Request::Acquire { name, key, wait, .. } = request else {
            return false;
        };
        let Some(queue) = self.queues.get(name).filter(|_| self.has_channels()) else {
            return false;
        };
        let free = queue.waiters.is_empty() && queue.holds().is_empty() && queue.attempt == Attempt::Idle;
        let can = free && !matches!(key, Key::Hold(_)) && self.closing.is_none() && self.links.is_up(name);
        let patient = |end: Moment| wait.is_none_or(|wait| self.now.after(wait) > end);
        can && queue.turn.of_others(self.now).is_some_and(patient)
    }

    /// A message on the channel of a name: the lock was released.
    pub(super) fn message(&mut self, name: &Name) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        let on_its_way = |owner| self.holds.get(owner).is_some_and(|hold| hold.phase == Phase::Releasing);
        if queue.holds().iter().any(on_its_way) {
            // Nobody else can have released it.
            queue.channel.echoed = true;
            return;
        }
        if queue.channel.echo.take().is_some_and(|until| now < until) {
            return;
        }
        queue.turn.passed(now);
        let head = queue.waiters.front().and_then(|id| self.waiters.get(id));
        if head.is_none_or(|head| !head.is_over(now)) {
            self.wake_head(name);
        }
    }

    pub(super) fn subscribed(&mut self, name: &Name) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.channel.confirmed = true;
            queue.channel.echo = None;
            queue.channel.echoed = false;
        }
        self.wake_head(name);
    }

    /// Has the channel of a name subscribed. False if it is already.
    pub(super) fn want_channel(&mut self, name: &Name) -> bool {
        let Some(queue) = self.queues.get_mut(name).filter(|queue| !queue.channel.wanted) else {
            return false;
        };
        queue.channel = Channel { wanted: true, ..Channel::default() };
        self.channels += 1;
        self.out.push(Output::Subscribe(name.clone()));
        true
    }

    /// Nobody waits any more: gives the channel up when that stays so for a while.
    pub(super) fn leave_channel(&mut self, name: &Name) {
        let (now, linger) = (self.now, self.config.linger);
        let Some(queue) = self.queues.get_mut(name).filter(|queue| queue.channel.wanted) else {
            return;
        };
        if linger.is_zero() || self.closing.is_some() {
            return self.give_up_channel(name);
        }
        let end = *queue.channel.idle_until.get_or_insert(now.after(linger));
        if queue.channel.looked_at.is_none() {
            self.look_at_channel(name, end);
        }
    }

    fn look_at_channel(&mut self, name: &Name, at: Moment) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.channel.looked_at = Some(at);
            self.idle_channels.insert((at, name.clone()));
            self.arm_channels();
        }
    }

    fn arm_channels(&mut self) {
        match self.idle_channels.first() {
            Some((at, _)) => self.timers.arm(Timer::Channels, *at),
            None => self.timers.disarm(Timer::Channels),
        }
    }

    /// Looks at the channels that may have been idle for long enough.
    pub(super) fn channels_due(&mut self) {
        while let Some((_, name)) = self.idle_channels.first().filter(|(at, _)| *at <= self.now).cloned() {
            self.idle_channels.pop_first();
            let Some(queue) = self.queues.get_mut(&name) else {
                continue;
            };
            queue.channel.looked_at = None;
            match queue.channel.idle_until {
                Some(end) if end <= self.now => self.give_up_channel(&name),
                // It was used meanwhile, and is not any more.
                Some(end) => self.look_at_channel(&name, end),
                None => {}
            }
        }
        self.arm_channels();
    }

    fn give_up_channel(&mut self, name: &Name) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        if let Some(at) = queue.channel.looked_at {
            self.idle_channels.remove(&(at, name.clone()));
        }
        if queue.channel.wanted {
            self.channels -= 1;
        }
        queue.channel = Channel::default();
        self.out.push(Output::Unsubscribe(name.clone()));
        self.drop_queue(name);
        self.arm_channels();
    }

    /// A client that closes wants to hear nothing.
    pub(super) fn give_up_channels(&mut self) {
        let idle: Vec<Name> = self.idle_channels.iter().map(|(_, name)| name.clone()).collect();
        for name in idle {
            if self.queues.get(&name).is_some_and(|queue| queue.waiters.is_empty()) {
                self.give_up_channel(&name);
            }
        }
    }

    /// Forgets a name that nobody needs any more.
    pub(super) fn drop_queue(&mut self, name: &Name) {
        if self.queues.get(name).is_some_and(Queue::is_unused) {
            self.queues.remove(name);
        }
    }
}

impl Channel {
    pub(super) const NONE: Channel = Channel {
        wanted: false,
        confirmed: false,
        echo: None,
        echoed: false,
        idle_until: None,
        looked_at: None,
    };

    /// Somebody waits.
    pub(super) fn is_used(&mut self) {
        self.idle_until = None;
    }
}
