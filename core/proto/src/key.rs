//! The re-entry key: it decides whether two acquisitions of a client have the same owner.

/// The re-entry key of an acquisition. It is never sent to Redis.
///
/// Two acquisitions of one name with equal keys are one hold with two levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OwnerKey {
    /// A new owner for every acquisition: never re-enters.
    Once,
    /// The thread with this number.
    Thread(u64),
    /// One of several flows of control on the thread with this number.
    Flow {
        /// The number of the thread.
        thread: u64,
        /// The number of the flow on its thread.
        nth: u32,
    },
    /// The event-loop task with this number.
    Task(u64),
    /// A number chosen by the caller: a request, a job, a coroutine.
    Explicit(u64),
    /// The hold that has the level with this number.
    Hold(u64),
}

impl OwnerKey {
    /// Whether this key ends when `ended` does: they are equal, or `ended` is the thread of this
    /// flow.
    pub fn belongs_to(self, ended: OwnerKey) -> bool {
        match (self, ended) {
            (OwnerKey::Flow { thread, .. }, OwnerKey::Thread(number)) => thread == number,
            _ => self == ended,
        }
    }
}
