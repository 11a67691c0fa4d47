//! What happened, for people: events and counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Name;

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// For following a single lock.
    Debug,
    /// Connections coming and going.
    Info,
    /// Something a person should look at.
    Warn,
}

/// One thing that happened. No text contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What happened: `acquired`, `waiting`, `renewed`, `lost`, `released`, `connected`, ...
    pub kind: &'static str,
    /// How much it matters.
    pub level: Level,
    /// The lock it concerns, if it concerns one.
    pub lock: Option<Name>,
    /// A sentence for people.
    pub text: String,
}

/// One counter of [`Stats`], written by one thread and read by any.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares the counters once: the shared cells, the snapshot, and the names for other languages.
macro_rules! counters {
    ($( $name:ident: $doc:literal, )+) => {
        /// The counters of a client, shared between the engine's thread and everybody else.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $( pub(crate) $name: Counter, )+ }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $( $name: self.$name.get(), )+ }
            }
        }

        /// What a client has done since it was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $( #[doc = $doc] pub $name: u64, )+ }

        impl Stats {
            /// Every counter with its name, for languages that show them as a map.
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![ $( (stringify!($name), self.$name), )+ ]
            }
        }
    };
}

counters! {
    acquired: "Levels acquired, re-entries included.",
    released: "Levels released.",
    lost: "Holds lost.",
    timeouts: "Acquires that ended by their wait.",
    cancelled: "Acquires that were cancelled.",
    renewed: "Renewals that succeeded, one per hold and round.",
    calls: "Script calls sent to Redis.",
    unanswered: "Script calls without an answer in time.",
    wakeups: "Messages that woke a waiter.",
    connects: "Connections made.",
    events_dropped: "Events that did not fit into the ring.",
    holds: "Holds now.",
    waiting: "Callers waiting for a lock now.",
}
