//! How much goes wrong, and how long things take. Times are in microseconds.

use super::Random;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    /// It arrives and its answer does not.
    Unanswered,
    Never,
    /// It arrives when nobody expects it any more, perhaps twice.
    Late,
    /// It arrives and is answered, and a copy of it arrives as well, at once or late.
    Twice,
}

/// What can go wrong in a run. Chances are per thousand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) lost_request: u64,
    pub(crate) lost_reply: u64,
    pub(crate) late_request: u64,
    pub(crate) doubled_request: u64,
    /// A request or a reply takes long.
    pub(crate) slow: u64,
    /// The server says that it cannot do it now; for an acquire, or at all.
    pub(crate) refusal: u64,
    /// No replica has what was done, in time.
    pub(crate) alone: u64,
    /// A message on a channel is lost.
    pub(crate) lost_message: u64,
    /// A caller does not wait any longer for its own call on the direct connection.
    pub(crate) interruption: u64,
    /// The time between two disturbances; 0: none.
    pub(crate) disturbance: u64,
    /// Among the disturbances: the server starts again without its data.
    pub(crate) restarts: bool,
    /// Among the disturbances: the server's clock jumps.
    pub(crate) jumps: bool,
    /// Among the disturbances: a replica takes over that is behind.
    pub(crate) failovers: bool,
    /// Other libraries and people change keys.
    pub(crate) strangers: bool,
    /// Callers are a crowd, who share commands and wait for a slow server.
    pub(crate) crowd: bool,
}

impl Faults {
    pub(crate) const NONE: Faults = Faults {
        lost_request: 0,
        lost_reply: 0,
        late_request: 0,
        doubled_request: 0,
        slow: 0,
        refusal: 0,
        alone: 0,
        lost_message: 0,
        interruption: 0,
        disturbance: 0,
        restarts: false,
        jumps: false,
        failovers: false,
        strangers: false,
        crowd: false,
    };

    /// Only messages on channels get lost.
    pub(crate) const MESSAGES: Faults = Faults { lost_message: 500, ..Faults::NONE };

    /// Calls and messages get lost, or come late.
    pub(crate) const LOSSES: Faults = Faults {
        lost_request: 50,
        lost_reply: 150,
        late_request: 50,
        doubled_request: 50,
        slow: 30,
        alone: 300,
        lost_message: 100,
        interruption: 50,
        ..Faults::NONE
    };

    /// Connections break, processes stop or die.
    pub(crate) const BREAKS: Faults =
        Faults { disturbance: 1_000_000, slow: 20, interruption: 50, strangers: true, ..Faults::NONE };

    /// The server forgets everything, and its clock jumps: the promises do not hold for what was
    /// held then, and hold again for what is acquired later.
    pub(crate) const SERVER: Faults = Faults {
        disturbance: 700_000,
        restarts: true,
        jumps: true,
        slow: 20,
        lost_reply: 30,
        ..Faults::NONE
    };

    /// A replica takes over that has not got the last writes: two may hold then, and each that does not
    /// any more is told.
    pub(crate) const FAILOVER: Faults =
        Faults { disturbance: 500_000, failovers: true, slow: 20, alone: 200, ..Faults::NONE };

    pub(crate) const ALL: Faults = Faults {
        lost_request: 40,
        lost_reply: 60,
        late_request: 60,
        doubled_request: 40,
        slow: 40,
        refusal: 40,
        alone: 300,
        lost_message: 200,
        interruption: 50,
        disturbance: 700_000,
        restarts: true,
        jumps: false,
        failovers: true,
        strangers: true,
        crowd: false,
    };

    /// Many callers at a server that is now quick, now slow; connections break under what they share.
    pub(crate) const CROWD: Faults = Faults {
        lost_request: 3,
        lost_reply: 5,
        late_request: 3,
        doubled_request: 3,
        slow: 3,
        refusal: 20,
        disturbance: 1_000_000,
        crowd: true,
        ..Faults::NONE
    };

    /// What a campaign goes through, seed after seed.
    pub(crate) const KINDS: [(&'static str, Faults); 8] = [
        ("none", Faults::NONE),
        ("messages", Faults::MESSAGES),
        ("losses", Faults::LOSSES),
        ("breaks", Faults::BREAKS),
        ("server", Faults::SERVER),
        ("failover", Faults::FAILOVER),
        ("all", Faults::ALL),
        ("crowd", Faults::CROWD),
    ];

    /// Whether calls get lost, so that they have to be repeated.
    pub(crate) fn loses_calls(&self) -> bool {
        self.lost_request + self.lost_reply + self.late_request + self.refusal > 0
    }

    /// How long a message is on its way.
    pub(crate) fn delay(&self, random: &mut Random) -> u64 {
        if random.chance(self.slow) { random.between(20_000, 1_500_000) } else { random.between(50, 1500) }
    }

    pub(crate) fn fate(&self, random: &mut Random) -> Fate {
        let dice = random.below(1000);
        let (lost, unanswered) = (self.lost_request, self.lost_request + self.lost_reply);
        match dice {
            _ if dice < lost => Fate::Never,
            _ if dice < unanswered => Fate::Unanswered,
            _ if dice < unanswered + self.late_request => Fate::Late,
            _ if dice < unanswered + self.late_request + self.doubled_request => Fate::Twice,
            _ => Fate::Arrives,
        }
    }
}
