//! The log: events and spans of `tracing`. Without the feature `tracing` it is empty.

#[cfg(feature = "tracing")]
pub(crate) use with::*;
#[cfg(not(feature = "tracing"))]
pub(crate) use without::*;

#[cfg(feature = "tracing")]
mod with {
    use std::time::Instant;

    use tracing::field::Empty;

    use crate::error::ErrorKind;
    use crate::event::{Event, Level};

    pub(crate) use tracing::Span;

    /// Whether a subscriber wants our events of level debug.
    pub(crate) fn wants_debug() -> bool {
        tracing::enabled!(target: "redlatch", tracing::Level::DEBUG)
    }

    /// Logs an event.
    pub(crate) fn tell(event: &Event) {
        let (kind, lock) = (event.kind, event.lock.as_deref());
        match event.level {
            Level::Info => tracing::info!(target: "redlatch", kind, lock, "{}", event.text),
            Level::Warn => tracing::warn!(target: "redlatch", kind, lock, "{}", event.text),
            _ => tracing::debug!(target: "redlatch", kind, lock, "{}", event.text),
        }
    }

    /// The span of an acquisition.
    pub(crate) fn acquisition(lock: &str) -> Span {
        tracing::debug_span!(target: "redlatch", "acquire", lock, outcome = Empty, waited_ms = Empty)
    }

    /// When the work of a span began, if somebody follows it.
    pub(crate) fn began(span: &Span) -> Option<Instant> {
        (!span.is_disabled()).then(Instant::now)
    }

    /// Notes in the span what came of an acquisition, and how long that took.
    pub(crate) fn ended(span: &Span, began: Instant, failed: Option<ErrorKind>) {
        span.record("outcome", failed.map_or("acquired", ErrorKind::name));
        span.record("waited_ms", began.elapsed().as_secs_f64() * 1000.0);
    }
}

#[cfg(not(feature = "tracing"))]
mod without {
    use std::time::Instant;

    use crate::error::ErrorKind;
    use crate::event::Event;

    #[derive(Clone)]
    pub(crate) struct Span;

    impl Span {
        pub(crate) fn none() -> Span {
            Span
        }

        pub(crate) fn entered(self) -> Span {
            self
        }
    }

    pub(crate) fn wants_debug() -> bool {
        false
    }

    pub(crate) fn tell(_: &Event) {}

    pub(crate) fn acquisition(_: &str) -> Span {
        Span
    }

    pub(crate) fn began(_: &Span) -> Option<Instant> {
        None
    }

    pub(crate) fn ended(_: &Span, _: Instant, _: Option<ErrorKind>) {}
}
