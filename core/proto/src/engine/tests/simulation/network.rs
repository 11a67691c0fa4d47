//! The faults of a run, and the delays. Times are in microseconds.

use crate::support::random::Random;

/// The fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// It arrives, but its reply does not.
    Unanswered,
    Never,
    /// It arrives after its time limit, perhaps twice.
    Late,
    /// It arrives and is answered, and a copy of it arrives as well, at once or late.
    Twice,
}

/// The faults that can happen in a run. Chances are per thousand.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    pub lost_request: u64,
    pub lost_reply: u64,
    pub late_request: u64,
    pub doubled_request: u64,
    /// A request or a reply is slow.
    pub slow: u64,
    /// The server refuses a call: temporarily, or an acquire also for good.
    pub refusal: u64,
    /// No replica acknowledges in time.
    pub alone: u64,
    /// A pub/sub message is lost.
    pub lost_message: u64,
    /// A caller stops waiting for its own call on the inline connection.
    pub interruption: u64,
    /// The mean time between two disturbances; 0 for none.
    pub disturbance: u64,
    /// Disturbance: the server restarts without its data.
    pub restarts: bool,
    /// Disturbance: the server's clock jumps.
    pub jumps: bool,
    /// Disturbance: a replica that is behind takes over.
    pub failovers: bool,
    /// Other libraries and people change keys.
    pub strangers: bool,
    /// The callers are a crowd: they share commands and wait for a slow server.
    pub crowd: bool,
    /// The server tracks a limited number of keys, and the keys of other programs leave little or
    /// no room.
    pub tenants: bool,
}

impl Faults {
    pub const NONE: Faults = Faults {
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
        tenants: false,
    };

    /// Only pub/sub messages get lost.
    pub const MESSAGES: Faults = Faults {
        lost_message: 500,
        ..Faults::NONE
    };

    /// Calls and messages get lost or come late.
    pub const LOSSES: Faults = Faults {
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
    pub const BREAKS: Faults = Faults {
        disturbance: 1_000_000,
        slow: 20,
        interruption: 50,
        strangers: true,
        ..Faults::NONE
    };

    /// The server loses its data, and its clock jumps. The promises do not hold for locks that were
    /// held then, and hold again for later acquisitions.
    pub const SERVER: Faults = Faults {
        disturbance: 700_000,
        restarts: true,
        jumps: true,
        slow: 20,
        lost_reply: 30,
        ..Faults::NONE
    };

    /// A replica without the last writes takes over. Two owners may hold then, and each one that
    /// lost its lock is told.
    pub const FAILOVER: Faults = Faults {
        disturbance: 500_000,
        failovers: true,
        slow: 20,
        alone: 200,
        ..Faults::NONE
    };

    pub const ALL: Faults = Faults {
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
        tenants: false,
    };

    /// Many callers at a server whose speed changes. Connections break with shared commands in
    /// flight.
    pub const CROWD: Faults = Faults {
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

    /// The server's table of tracked keys is full.
    pub const TENANTS: Faults = Faults {
        tenants: true,
        ..Faults::NONE
    };

    /// The kinds of faults that a campaign runs, seed after seed.
    pub const KINDS: [(&'static str, Faults); 9] = [
        ("none", Faults::NONE),
        ("messages", Faults::MESSAGES),
        ("losses", Faults::LOSSES),
        ("breaks", Faults::BREAKS),
        ("server", Faults::SERVER),
        ("failover", Faults::FAILOVER),
        ("all", Faults::ALL),
        ("crowd", Faults::CROWD),
        ("tenants", Faults::TENANTS),
    ];

    /// Whether calls get lost, so that they are repeated.
    pub fn loses_calls(&self) -> bool {
        self.lost_request + self.lost_reply + self.late_request + self.refusal > 0
    }

    /// The time that a message is on its way.
    pub fn delay(&self, random: &mut Random) -> u64 {
        if random.chance(self.slow) {
            random.between(20_000, 1_500_000)
        } else {
            random.between(50, 1500)
        }
    }

    pub fn fate(&self, random: &mut Random) -> Fate {
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
