//! Transient refusals that last: callers wait meanwhile, and nobody would know why.

use crate::error::Error;
use crate::moment::Moment;
use crate::tuning;

/// The refusals of the last moments, by their texts.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Refusal>);

#[derive(Debug)]
struct Refusal {
    text: String,
    first: Moment,
    last: Moment,
    told: bool,
}

impl Refusals {
    /// Notes a refusal. Returns true once, when the same one has been met for some time.
    pub(super) fn are_news(&mut self, now: Moment, error: &Error) -> bool {
        self.0
            .retain(|known| known.last.until(now) < tuning::REFUSAL_GAP);
        let known = self
            .0
            .iter_mut()
            .find(|known| known.text == error.message());
        let Some(known) = known else {
            if self.0.len() < tuning::REFUSALS {
                self.0.push(Refusal {
                    text: error.message().to_owned(),
                    first: now,
                    last: now,
                    told: false,
                });
            }
            return false;
        };
        known.last = now;
        let lasts = known.first.until(now) >= tuning::REFUSAL_TOLD;
        lasts && !std::mem::replace(&mut known.told, true)
    }
}
