//! Events and counters: what the client reports to people.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wire::Name;

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// For following a single lock.
    Debug,
    /// Connections are made and lost.
    Info,
    /// Something a person should look at.
    Warn,
}

/// One event. Its text never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The kind of event: `lost`, `connected`, `disconnected`, ...; docs/events.md lists all.
    pub kind: &'static str,
    /// The severity.
    pub level: Level,
    /// The lock it concerns, if it concerns one.
    pub lock: Option<Name>,
    /// A sentence for people.
    pub text: String,
}

impl Event {
    #[doc(hidden)]
    pub fn new(kind: &'static str, level: Level, lock: Option<Name>, text: String) -> Event {
        Event {
            kind,
            level,
            lock,
            text,
        }
    }
}

/// One counter of [`Stats`]. Any thread may read it. An update is a load and a store, so writers
/// need a lock: that of the engine, or another one.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.set(self.get() + n);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares the counters once: the shared cells, the snapshot, and the names for other languages.
macro_rules! counters {
    ($( $name:ident: $doc:literal, )+) => {
        /// The counters of a client: the engine writes them, and any thread may read them.
        #[derive(Debug, Default)]
        pub struct Counters { $( pub $name: Counter, )+ }

        impl Counters {
            pub fn snapshot(&self) -> Stats {
                Stats { $( $name: self.$name.get(), )+ }
            }
        }

        /// The activity of a client since it was opened.
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
    calls: "Script calls made of Redis. Calls that leave together may share a command.",
    unanswered: "Script calls without an answer in time.",
    wakeups: "Messages that woke a waiter.",
    connects: "Connections made.",
    events_dropped: "Events that did not fit into the ring.",
    holds: "Holds now.",
    waiting: "Callers waiting for a lock now.",
}

/// Is called when the ring goes from empty to not empty. Must not block.
pub type Notify = Box<dyn Fn() + Send + Sync>;

/// A ring of the latest events, for languages that drain them into a log of their own. It is
/// bounded: if the reader is slow or absent, the oldest events are dropped and counted.
pub struct Ring {
    capacity: usize,
    /// The lowest severity that is kept.
    least: Level,
    state: Mutex<RingState>,
    dropped: Counter,
}

#[derive(Default)]
struct RingState {
    events: VecDeque<Event>,
    notify: Option<Notify>,
}

impl Ring {
    pub fn new(capacity: usize, least: Level) -> Self {
        Ring {
            capacity,
            least,
            state: Mutex::default(),
            dropped: Counter::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether events of this severity are kept.
    pub fn wants(&self, level: Level) -> bool {
        self.capacity > 0 && level >= self.least
    }

    pub fn push(&self, event: Event) {
        if !self.wants(event.level) {
            return;
        }
        let mut state = self.state();
        if state.events.len() == self.capacity {
            state.events.pop_front();
            self.dropped.add(1);
        }
        state.events.push_back(event);
        if state.events.len() == 1
            && let Some(notify) = &state.notify
        {
            notify();
        }
    }

    pub fn drain(&self) -> Vec<Event> {
        self.state().events.drain(..).collect()
    }

    /// Sets the function to call from now on. Calls it at once if the ring already has events.
    pub fn set_notify(&self, notify: Notify) {
        let mut state = self.state();
        if !state.events.is_empty() {
            notify();
        }
        state.notify = Some(notify);
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn event(text: &str) -> Event {
        Event {
            kind: "test",
            level: Level::Info,
            lock: None,
            text: text.into(),
        }
    }

    #[test]
    fn a_full_ring_loses_the_oldest_and_counts_it() {
        let ring = Ring::new(2, Level::Info);
        ring.push(Event {
            level: Level::Debug,
            ..event("too small")
        });
        ["a", "b", "c"]
            .into_iter()
            .for_each(|text| ring.push(event(text)));
        let texts: Vec<String> = ring.drain().into_iter().map(|event| event.text).collect();
        assert_eq!((texts.join(""), ring.dropped()), ("bc".into(), 1));
    }

    #[test]
    fn the_reader_is_notified_once_per_filling() {
        let (ring, calls) = (Ring::new(8, Level::Info), Arc::new(Counter::default()));
        let counter = calls.clone();
        ring.push(event("before"));
        ring.set_notify(Box::new(move || counter.add(1)));
        ring.push(event("more"));
        assert_eq!(calls.get(), 1);
        ring.drain();
        ring.push(event("again"));
        assert_eq!(calls.get(), 2);
    }
}
