//! A subscriber of `tracing` gets nothing unless it follows the target `redlatch`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use redlatch::Client;
use support::Server;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

const LIMIT: Duration = Duration::from_secs(60);

/// Whether the target `redlatch` is followed.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// Tells the name of each span and the kind of each event, with the lock.
struct Told(Mutex<Sender<(String, String)>>);

impl Told {
    fn tell(&self, what: &str, fields: &Fields) {
        let told = (what.to_owned(), fields.lock.clone());
        self.0.lock().unwrap().send(told).unwrap();
    }
}

#[derive(Default)]
struct Fields {
    kind: String,
    lock: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => value.clone_into(&mut self.kind),
            "lock" => value.clone_into(&mut self.lock),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// The fields that a span gets at its end.
#[derive(Default)]
struct Outcome(String);

impl Visit for Outcome {
    fn record_str(&mut self, field: &Field, value: &str) {
        assert_eq!(field.name(), "outcome");
        value.clone_into(&mut self.0);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        assert!(field.name() == "waited_ms" && value >= 0.0);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Told {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "redlatch" && FOLLOWS.load(Ordering::SeqCst)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.tell(span.metadata().name(), &fields);
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.tell(&fields.kind, &fields);
    }

    fn record(&self, _: &Id, record: &Record<'_>) {
        let mut outcome = Outcome::default();
        record.record(&mut outcome);
        let what = if outcome.0.is_empty() {
            "waited"
        } else {
            &outcome.0
        };
        self.tell(&format!("span: {what}"), &Fields::default());
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_subscriber_gets_spans_and_events_if_it_follows_them() {
    let (sender, told) = mpsc::channel();
    tracing::subscriber::set_global_default(Told(Mutex::new(sender))).unwrap();
    let server = Server::start();
    let client = Client::builder(&server.url()).build().unwrap();
    let pair = |name: &str| {
        let lock = client.lock(name).unwrap();
        lock.acquire().wait().unwrap().release().wait().unwrap();
    };
    pair("quiet");
    FOLLOWS.store(true, Ordering::SeqCst);
    pair("followed");
    let mut awaited = vec!["acquire", "acquired", "released"];
    let mut ends = 0;
    while let Some(next) = awaited.first() {
        let (what, lock) = told.recv_timeout(LIMIT).unwrap();
        assert_ne!(lock, "quiet");
        ends += u32::from(what == "span: acquired");
        if what == *next {
            assert_eq!(lock, "followed");
            awaited.remove(0);
        }
    }
    assert_eq!(ends, 1, "the span has its outcome");
    let lock = client.lock("followed").unwrap();
    let guard = lock.acquire().wait().unwrap();
    assert!(lock.try_acquire().wait().unwrap().is_none());
    let refused = || told.recv_timeout(LIMIT).unwrap().0 == "span: timeout";
    while !refused() {}
    drop(guard);
}
