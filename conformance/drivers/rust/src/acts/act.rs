//! Shared by all acts: their plan, and talking to the matrix.

use std::io::{BufRead, Write};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Lock, OptionValue};
use serde_json::Value;

use crate::usage::Usage;
use crate::{Failure, number, text};

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// How long anything may take that has no limit of its own: only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Act {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    pub(crate) size: usize,
}

impl Act {
    pub(crate) fn new(plan: &Value) -> Outcome<Act> {
        Ok(Act {
            name: text(plan, "act")?.to_owned(),
            url: text(plan, "url")?.to_owned(),
            lock: text(plan, "lock")?.to_owned(),
            lease: Duration::from_millis(number(plan, "lease_ms")?),
            size: usize::try_from(number(plan, "size")?)?,
        })
    }

    pub(crate) fn client(&self) -> Outcome<Client> {
        let mut builder = Client::builder(&self.url);
        let lease = u32::try_from(self.lease.as_millis())?;
        builder.set("watchdog_lease", OptionValue::Millis(f64::from(lease)))?;
        let client = builder.build()?;
        client.ready().wait()?;
        Ok(client)
    }

    pub(crate) fn lock(&self, client: &Client) -> Outcome<Lock> {
        Ok(client.lock(&self.lock)?)
    }

    /// The name that somebody else holds all the time.
    pub(crate) fn busy(&self, client: &Client) -> Outcome<Lock> {
        Ok(client.lock(&format!("{}:busy", self.lock))?)
    }
}

pub(crate) fn say(word: &str) {
    println!("{word}");
    // Without a reader there is nobody to tell.
    let _ = std::io::stdout().flush();
}

/// Says `ready`, and goes on when the matrix says so.
pub(crate) fn ready() {
    say("ready");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

pub(crate) fn ensure(holds: bool, text: impl Into<String>) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(text.into().into())
    }
}

pub(crate) fn eventually(text: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        ensure(Instant::now() < end, text)?;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until the client has renewed `times` more, so that a hold is known to live on.
pub(crate) fn renewed(client: &Client, times: u64) -> Outcome {
    let before = client.stats().renewed;
    eventually("nothing is renewed", || {
        client.stats().renewed >= before + times
    })
}

pub(crate) fn at_rest(client: &Client) -> Outcome {
    eventually("something is still held or waited for", || {
        let stats = client.stats();
        stats.holds == 0 && stats.waiting == 0
    })
}

/// Says what the process has; the matrix compares.
pub(crate) fn say_resources(when: &str) {
    let Usage {
        memory,
        threads,
        files,
    } = Usage::now();
    say(&format!(
        "{when} memory={memory} threads={threads} descriptors={files}"
    ));
}
