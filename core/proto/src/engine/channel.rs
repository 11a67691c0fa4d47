//! The channel of a name, on which this client hears of the releases of others.

use crate::moment::Moment;
use crate::wire::Topic;

/// The state of a name's channel.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Channel {
    /// Whether the channel is to be subscribed. The first waiter that finds the lock held elsewhere
    /// wants it. It is given up some time after the last waiter has gone.
    pub(super) wanted: bool,
    /// Which of the name's channels it is.
    pub(super) topic: Topic,
    /// Whether the server has confirmed the subscription.
    pub(super) confirmed: bool,
    /// Until when the messages of our own release may come. No waiter has to try because of them.
    pub(super) echo: Option<Moment>,
    /// How many of them are to come yet. A release of several permits is published several times.
    pub(super) echoes: u8,
    /// How many came before the answer to the release.
    pub(super) echoed: u8,
    /// When the channel is given up, unless somebody waits again.
    pub(super) idle_until: Option<Moment>,
    /// When `idle_until` is checked next.
    pub(super) looked_at: Option<Moment>,
}

impl Channel {
    pub(super) const NONE: Channel = Channel {
        wanted: false,
        topic: Topic::Lock,
        confirmed: false,
        echo: None,
        echoes: 0,
        echoed: 0,
        idle_until: None,
        looked_at: None,
    };

    /// Our release was published so many times, and this client hears it.
    pub(super) fn expect(&mut self, messages: u8, until: Moment) {
        self.echoes = messages.saturating_sub(std::mem::take(&mut self.echoed));
        self.echo = (self.echoes > 0).then_some(until);
    }

    /// Whether a message that came now is one of our own release.
    pub(super) fn takes(&mut self, now: Moment) -> bool {
        let own = self.echo.is_some_and(|until| now < until);
        self.echoes = if own { self.echoes - 1 } else { 0 };
        self.echo = self.echo.filter(|_| self.echoes > 0);
        own
    }

    /// Notes that somebody waits.
    pub(super) fn is_used(&mut self) {
        self.idle_until = None;
    }
}
