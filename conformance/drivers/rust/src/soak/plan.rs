//! The plan of the harness, and the dice.

use std::time::Duration;

use redlatch::{Kind, LockOptions};
use serde_json::Value;

use crate::{Failure, text};

/// The plan. Chances are per thousand, times milliseconds.
pub(crate) struct Plan {
    pub(crate) url: String,
    pub(crate) file: String,
    pub(crate) until: i64,
    pub(crate) lease: Duration,
    pub(crate) callers: u64,
    pub(crate) seed: u64,
    pub(crate) tries: u64,
    pub(crate) fixed: u64,
    pub(crate) reenter: u64,
    pub(crate) extend: u64,
    hot: u64,
    hot_names: u64,
    shared: u64,
    shared_names: u64,
    reads: u64,
    cold_names: u64,
    linger: u64,
    oversleep: u64,
}

impl Plan {
    pub(crate) fn new(plan: &Value) -> Result<Plan, Failure> {
        let number = |field: &str| crate::number(plan, field);
        Ok(Plan {
            url: text(plan, "url")?.to_owned(),
            file: text(plan, "file")?.to_owned(),
            until: i64::try_from(number("until")?)?,
            lease: Duration::from_millis(number("lease")?),
            callers: number("callers")?,
            seed: number("seed")?,
            tries: number("tries")?,
            fixed: number("fixed")?,
            reenter: number("reenter")?,
            extend: number("extend")?,
            hot: number("hot")?,
            hot_names: number("hot_names")?,
            shared: number("shared")?,
            shared_names: number("shared_names")?,
            reads: number("reads")?,
            cold_names: number("cold_names")?,
            linger: number("linger")?,
            oversleep: number("oversleep")?,
        })
    }

    pub(crate) fn options(&self) -> LockOptions {
        LockOptions::new().watchdog_lease(self.lease).fencing(true)
    }

    /// A name and its kind.
    pub(crate) fn name(&self, random: &mut Random) -> (String, Kind) {
        if random.chance(self.hot) {
            return (
                format!("hot{}", random.below(self.hot_names)),
                Kind::Reentrant,
            );
        }
        if random.chance(self.shared) {
            let reads = random.chance(self.reads);
            let kind = if reads { Kind::Read } else { Kind::Write };
            return (format!("shared{}", random.below(self.shared_names)), kind);
        }
        let number = random.below(self.cold_names);
        let kind = if number.is_multiple_of(5) {
            Kind::Simple
        } else {
            Kind::Reentrant
        };
        (format!("cold{number}"), kind)
    }

    pub(crate) fn wait(&self, random: &mut Random) -> Duration {
        Duration::from_millis([20, 200, 2000, 20_000][random.below(4) as usize])
    }

    /// How long the work takes: mostly nothing, sometimes a while, seldom longer than the lease.
    pub(crate) fn pause(&self, random: &mut Random) -> Duration {
        if random.chance(self.oversleep) {
            self.lease * 3 / 2
        } else if random.chance(self.linger) {
            self.lease * u32::try_from(random.below(50)).unwrap_or(0) / 100
        } else {
            Duration::ZERO
        }
    }
}

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}
