//! Fairness towards other clients: the turns that this client leaves to them, and the channel on
//! which it hears of their releases.
//!
//! A release wakes every waiter, and all but one try in vain. So if other clients listen and the
//! lock is contended, a client leaves them one turn each after its own release. It tries at once
//! when it has heard as many releases as there are others. For each missing release it waits one
//! [`tuning::TURN`], counted again from every release that it hears. So the client that has waited
//! longest comes first, and nobody waits much longer for a turn that nobody takes.

use std::time::Duration;

use crate::moment::Moment;
use crate::tuning;

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
    pub(super) needless: Moment,
    /// Whether others have the lock, or had it since this client had it last.
    pub(super) contended: bool,
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
    pub(super) fn given(&mut self, now: Moment, rivals: u32, ran: Option<Duration>) {
        (self.rivals, self.heard) = (rivals, 0);
        let times = 1_u32.checked_shl(self.missed).unwrap_or(u32::MAX);
        self.patience = ran.map(|ran| ran.max(tuning::TURN).saturating_mul(times));
        self.wait(now);
    }

    /// Another client released the lock.
    pub(super) fn passed(&mut self, now: Moment) {
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
    pub(super) fn ahead(&self, now: Moment) -> u32 {
        let counts = self.of_others(now).is_some() && self.patience.is_none();
        if counts {
            self.rivals.saturating_sub(self.heard)
        } else {
            0
        }
    }

    /// Whether several others may want the lock. The first release that this client hears tells of one.
    pub(super) fn has_rivals(&self) -> bool {
        self.contended || self.heard > 1
    }

    /// When the turn of the others ends, if it has not ended yet.
    pub(super) fn of_others(&self, now: Moment) -> Option<Moment> {
        self.others.filter(|end| *end > now)
    }
}

/// The streak of local hand-overs since this client won the lock in competition with others.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// When the first hand-over was made; of permits, when those that were passed on had been confirmed.
    began: Option<Moment>,
    handovers: usize,
    /// When the last call was sent whose answer confirmed that the lock is ours.
    pub(super) heard: Option<Moment>,
}

impl Run {
    pub(super) const NONE: Run = Run {
        began: None,
        handovers: 0,
        heard: None,
    };

    pub(super) fn one_more(self, began: Moment) -> Run {
        Run {
            began: Some(self.began.map_or(began, |first| first.min(began))),
            handovers: self.handovers + 1,
            ..self
        }
    }

    /// Notes that a call sent at `sent` found the lock still ours.
    pub(super) fn hear(&mut self, sent: Moment) {
        self.heard = self.heard.max(Some(sent));
    }

    pub(super) fn has_handed_over(self) -> bool {
        self.handovers > 0
    }

    /// How long ago the first hand-over was made.
    pub(super) fn lasted(self, now: Moment) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.until(now))
    }

    /// Whether the streak has reached its limit, so that other clients must get a chance.
    pub(super) fn is_over(self, now: Moment, (limit, time): (usize, Duration)) -> bool {
        self.handovers >= limit || self.began.unwrap_or(now).after(time) <= now
    }
}
