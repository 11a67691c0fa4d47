//! Fairness towards other clients: the turns that this client leaves to them, and the channel on
//! which it hears of their releases.
//!
//! A release wakes every waiter, and all but one try in vain. So if other clients listen and the
//! lock is contended, a client leaves them one turn each after its own release. It tries at once
//! when it has heard as many releases as there are others. For each missing release it waits one
//! [`tuning::TURN`], counted again from every release that it hears. So the client that has waited
//! longest comes first, and nobody waits much longer for a turn that nobody takes.

use std::time::Duration;

use super::holds::Phase;
use super::timers::Timer;
use super::waiters::{Attempt, WaitQueue};
use super::{Engine, Output};
use crate::moment::Moment;
use crate::tuning;
use crate::wire::Name;

/// The state of a name's channel.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Channel {
    /// Whether the channel is to be subscribed. The first waiter that finds the lock held elsewhere
    /// wants it. It is given up some time after the last waiter has gone.
    pub(super) wanted: bool,
    /// Whether the server has confirmed the subscription.
    confirmed: bool,
    /// Until when the message of our own release may come. No waiter has to try because of it.
    echo: Option<Moment>,
    /// Whether that message came before the answer to the release.
    echoed: bool,
    /// When the channel is given up, unless somebody waits again.
    idle_until: Option<Moment>,
    /// When `idle_until` is checked next.
    looked_at: Option<Moment>,
}

/// The turn that this client leaves to others.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Turn {
    /// When the turn of the others ends.
    others: Option<Moment>,
    /// How many other clients listened when this client released the lock.
    rivals: u32,
    /// How many releases of others this client has heard since then.
    heard: u32,
    /// Set if this client had the lock for as long as it may: how long the turn lasts at least.
    patience: Option<Duration>,
    /// How many of those turns in a row nobody took.
    missed: u32,
    /// The others took no turn. They get no other one before this moment.
    needless: Moment,
    /// Whether others have the lock, or had it since this client had it last.
    contended: bool,
    /// How much longer than usual each of the others may take. They do take their turns, but need
    /// more time.
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

    /// This client got the lock, at once or after a refusal (`refused`). If the others did not use
    /// their turn, they get none for `pause`.
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

    /// A try of this client found the lock taken. If the turn of the others was over, they need
    /// more time.
    pub(super) fn refused(&mut self, now: Moment) {
        if self.has_run_out(now) {
            self.longer =
                (self.longer + tuning::TURN_STEP).min(tuning::TURN_LONGEST - tuning::TURN);
            self.others = None;
        }
    }

    /// Whether a turn of the others has ended without a message from them.
    fn has_run_out(&self, now: Moment) -> bool {
        self.others.is_some_and(|end| end <= now)
    }

    /// This client released the lock, and `rivals` other clients heard it. `ran`: how long this
    /// client had the lock, if that is as long as it may.
    fn given(&mut self, now: Moment, rivals: u32, ran: Option<Duration>) {
        (self.rivals, self.heard) = (rivals, 0);
        let times = 1_u32.checked_shl(self.missed).unwrap_or(u32::MAX);
        self.patience = ran.map(|ran| ran.max(tuning::TURN).saturating_mul(times));
        self.wait(now);
    }

    /// Another client released the lock.
    fn passed(&mut self, now: Moment) {
        self.heard = self.heard.saturating_add(1);
        self.patience = None;
        self.wait(now);
    }

    fn wait(&mut self, now: Moment) {
        let turns = self.rivals.saturating_sub(self.heard).min(tuning::TURNS);
        let usual = (tuning::TURN + self.longer) * turns;
        let time = self.patience.map_or(usual, |patience| {
            patience.min(tuning::TURN_AFTER_STREAK).max(usual)
        });
        self.others = (turns > 0).then(|| now.after(time));
    }

    /// How many releases of others this client still waits for. In a turn with patience it is none,
    /// because the first release ends that turn.
    fn ahead(&self, now: Moment) -> u32 {
        let counts = self.of_others(now).is_some() && self.patience.is_none();
        if counts {
            self.rivals.saturating_sub(self.heard)
        } else {
            0
        }
    }

    /// When the turn of the others ends, if it has not ended yet.
    pub(super) fn of_others(&self, now: Moment) -> Option<Moment> {
        self.others.filter(|end| *end > now)
    }
}

impl WaitQueue {
    /// The server confirmed our release. `heard` subscribers got its message.
    pub(super) fn give_turn(&mut self, now: Moment, heard: u32, handovers: (usize, Duration)) {
        let own = self.channel.confirmed && heard > 0;
        if own && !std::mem::take(&mut self.channel.echoed) {
            self.channel.echo = Some(now.after(tuning::OWN_MESSAGE));
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
    /// Whether messages about the releases of others may come.
    pub fn has_channels(&self) -> bool {
        self.names.channels > 0
    }

    /// Whether there is no hold, no waiter and no call in flight.
    pub fn is_at_rest(&self) -> bool {
        self.holds.is_empty() && self.cx.calls.is_empty() && self.names.waiters.is_empty()
    }

    /// How many release messages may stay unread in the socket before the I/O thread must wake, and
    /// for which lock. `None`: it must wake for everything.
    ///
    /// Messages may stay unread if the client does nothing but wait for this lock and leaves a turn
    /// to others: it will not try before `n + 1` releases. Its timer runs regardless. With
    /// `elsewhere`, a caller makes its call on the inline connection, so the answer does not come
    /// where messages do. If that call is the release of the only hold, the message of that release
    /// may stay unread.
    pub fn skipped(&self, now: Moment, elsewhere: bool) -> Option<(&Name, u32)> {
        if elsewhere {
            return self.own_release().map(|name| (name, 1));
        }
        if !self.holds.is_empty() || !self.cx.calls.is_empty() {
            return None;
        }
        let anyone = self.names.waiters.values().next()?;
        let (name, queue) = self.names.queues.get_key_value(&anyone.name)?;
        let alone = queue.waiters.len() == self.names.waiters.len();
        let waits = alone && queue.attempt == Attempt::Parked && queue.channel.confirmed;
        let before_the_last = queue.turn.ahead(now).checked_sub(1).filter(|_| waits)?;
        let echo = queue.channel.echo.is_some_and(|until| now < until);
        Some((name, before_the_last + u32::from(echo)))
    }

    /// The lock that is being released, if the client does nothing else and hears its own message.
    fn own_release(&self) -> Option<&Name> {
        let alone =
            self.names.waiters.is_empty() && self.cx.calls.len() == 1 && self.holds.len() == 1;
        let hold = alone.then(|| self.holds.values().next()).flatten()?;
        let leaves = hold.phase == Phase::Releasing
            && self.names.queues.get(&hold.cell.name)?.channel.confirmed;
        leaves.then_some(&hold.cell.name)
    }

    /// A message on the channel of a name: the lock was released.
    pub(super) fn message(&mut self, name: &Name) {
        let now = self.cx.now;
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        let on_its_way = |owner| {
            self.holds
                .get(owner)
                .is_some_and(|hold| hold.phase == Phase::Releasing)
        };
        if queue.holds().iter().any(on_its_way) {
            // Nobody else can have released the lock, so this is our own message.
            queue.channel.echoed = true;
            return;
        }
        if queue.channel.echo.take().is_some_and(|until| now < until) {
            return;
        }
        queue.turn.passed(now);
        let head = queue
            .waiters
            .front()
            .and_then(|id| self.names.waiters.get(id));
        if head.is_none_or(|head| !head.is_over(now)) {
            self.wake_head(name);
        }
    }

    pub(super) fn subscribed(&mut self, name: &Name) {
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.channel.confirmed = true;
            queue.channel.echo = None;
            queue.channel.echoed = false;
        }
        self.wake_head(name);
    }

    /// Has the channel of a name subscribed. Returns false if it is already.
    pub(super) fn want_channel(&mut self, name: &Name) -> bool {
        let Some(queue) = self
            .names
            .queues
            .get_mut(name)
            .filter(|queue| !queue.channel.wanted)
        else {
            return false;
        };
        queue.channel = Channel {
            wanted: true,
            ..Channel::default()
        };
        self.names.channels += 1;
        self.cx.out.push(Output::Subscribe(name.clone()));
        true
    }

    /// Nobody waits any more: gives the channel up if nobody waits again for some time.
    pub(super) fn leave_channel(&mut self, name: &Name) {
        let (now, linger) = (self.cx.now, self.cx.config.linger);
        let Some(queue) = self
            .names
            .queues
            .get_mut(name)
            .filter(|queue| queue.channel.wanted)
        else {
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
        if let Some(queue) = self.names.queues.get_mut(name) {
            queue.channel.looked_at = Some(at);
            self.names.idle_channels.insert((at, name.clone()));
            self.arm_channels();
        }
    }

    fn arm_channels(&mut self) {
        match self.names.idle_channels.first() {
            Some((at, _)) => self.cx.timers.arm(Timer::Channels, *at),
            None => self.cx.timers.disarm(Timer::Channels),
        }
    }

    /// Gives up the channels that have been idle for long enough.
    pub(super) fn channels_due(&mut self) {
        while let Some((_, name)) = self
            .names
            .idle_channels
            .first()
            .filter(|(at, _)| *at <= self.cx.now)
            .cloned()
        {
            self.names.idle_channels.pop_first();
            let Some(queue) = self.names.queues.get_mut(&name) else {
                continue;
            };
            queue.channel.looked_at = None;
            match queue.channel.idle_until {
                Some(end) if end <= self.cx.now => self.give_up_channel(&name),
                // A waiter used the channel meanwhile, and nobody uses it now.
                Some(end) => self.look_at_channel(&name, end),
                None => {}
            }
        }
        self.arm_channels();
    }

    fn give_up_channel(&mut self, name: &Name) {
        let Some(queue) = self.names.queues.get_mut(name) else {
            return;
        };
        if let Some(at) = queue.channel.looked_at {
            self.names.idle_channels.remove(&(at, name.clone()));
        }
        if queue.channel.wanted {
            self.names.channels -= 1;
        }
        queue.channel = Channel::default();
        self.cx.out.push(Output::Unsubscribe(name.clone()));
        self.drop_queue(name);
        self.arm_channels();
    }

    /// Gives up the idle channels of a client that closes.
    pub(super) fn give_up_channels(&mut self) {
        let idle: Vec<Name> = self
            .names
            .idle_channels
            .iter()
            .map(|(_, name)| name.clone())
            .collect();
        for name in idle {
            if self
                .names
                .queues
                .get(&name)
                .is_some_and(|queue| queue.waiters.is_empty())
            {
                self.give_up_channel(&name);
            }
        }
    }

    /// Forgets a name that nobody needs any more.
    pub(super) fn drop_queue(&mut self, name: &Name) {
        if self
            .names
            .queues
            .get(name)
            .is_some_and(WaitQueue::is_unused)
        {
            self.names.queues.remove(name);
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

    /// Notes that somebody waits.
    pub(super) fn is_used(&mut self) {
        self.idle_until = None;
    }
}
