use std::time::Duration;

use super::Engine;
use super::channel::Channel;
use super::hold::Phase;
use super::interface::Output;
use super::names::{Attempt, WaitQueue};
use super::timers::Timer;
use crate::moment::Moment;
use crate::tuning;
use crate::wire::Name;

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
