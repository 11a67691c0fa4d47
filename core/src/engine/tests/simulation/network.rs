//! How much goes wrong, and how long things take. Times are in microseconds.

use super::Random;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    /// It arrives and its answer does not.
    Unanswered,
    Never,
    /// It arrives when nobody expects it any more, perhaps twice.
    Late,
}

/// What can go wrong in a run. Chances are per thousand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    pub(super) lost_request: u64,
    pub(super) lost_reply: u64,
    pub(super) late_request: u64,
    /// A request or a reply takes long.
    pub(super) slow: u64,
    /// The server says that it cannot do it now, or at all.
    pub(super) refusal: u64,
    /// A message on a channel is lost.
    pub(super) lost_message: u64,
    /// The time between two disturbances; 0: none.
    pub(super) disturbance: u64,
    /// Other libraries and people change keys.
    pub(super) strangers: bool,
}

impl Faults {
    pub(super) const NONE: Faults = Faults {
        lost_request: 0,
        lost_reply: 0,
        late_request: 0,
        slow: 0,
        refusal: 0,
        lost_message: 0,
        disturbance: 0,
        strangers: false,
    };

    /// Only messages on channels get lost.
    pub(super) const MESSAGES: Faults = Faults { lost_message: 500, ..Faults::NONE };

    /// Calls and messages get lost, or come late.
    pub(super) const LOSSES: Faults = Faults {
        lost_request: 50,
        lost_reply: 150,
        late_request: 50,
        slow: 30,
        lost_message: 100,
        ..Faults::NONE
    };

    /// Connections break, processes stop or die.
    pub(super) const BREAKS: Faults =
        Faults { disturbance: 1_000_000, slow: 20, strangers: true, ..Faults::NONE };

    pub(super) const ALL: Faults = Faults {
        lost_request: 40,
        lost_reply: 60,
        late_request: 60,
        slow: 40,
        refusal: 40,
        lost_message: 200,
        disturbance: 700_000,
        strangers: true,
    };

    /// How long a message is on its way.
    pub(super) fn delay(&self, random: &mut Random) -> u64 {
        if random.chance(self.slow) { random.between(20_000, 1_500_000) } else { random.between(50, 1500) }
    }

    pub(super) fn fate(&self, random: &mut Random) -> Fate {
        let dice = random.below(1000);
        let (lost, unanswered) = (self.lost_request, self.lost_request + self.lost_reply);
        match dice {
            _ if dice < lost => Fate::Never,
            _ if dice < unanswered => Fate::Unanswered,
            _ if dice < unanswered + self.late_request => Fate::Late,
            _ => Fate::Arrives,
        }
    }
}
