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
    /// Until when the message of our own release may come. No waiter has to try because of it.
    pub(super) echo: Option<Moment>,
    /// Whether that message came before the answer to the release.
    pub(super) echoed: bool,
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
        echoed: false,
        idle_until: None,
        looked_at: None,
    };

    /// Notes that somebody waits.
    pub(super) fn is_used(&mut self) {
        self.idle_until = None;
    }
}
