//! The outbox of a connection: which calls share a command, how many are in flight, and the outcome
//! of each.

mod batcher;
pub mod calls;
pub mod limiter;
#[cfg(test)]
mod pressure_tests;
pub mod server_clock;
#[cfg(test)]
pub mod simulated;
pub mod slotmap;
pub mod waiting;
pub mod wanted;

use crate::engine::Input;
use crate::event::Event;

/// News from the connections.
#[derive(Default)]
pub struct News {
    pub inputs: Vec<Input>,
    pub events: Vec<Event>,
    /// The number of connections made.
    pub connects: u64,
    /// Calls that a node of a cluster has redirected.
    pub redirects: Vec<calls::Redirect>,
    /// A node of a cluster has said that it does not serve the slot of a channel any more.
    pub slot_moved: bool,
}

impl News {
    pub fn tell(&mut self, input: Input) {
        self.inputs.push(input);
    }

    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.events.is_empty()
    }
}
