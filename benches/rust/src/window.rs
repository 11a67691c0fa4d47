//! The time in which a workload counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::args::Args;
use crate::report::{Report, Usage};

pub(crate) struct Window {
    begun: Instant,
    end: Instant,
    /// How many pairs are left to do, where their number is given.
    left: Option<AtomicU64>,
    before: Usage,
}

impl Window {
    /// In which callers warm up.
    pub(crate) fn warming(args: &Args) -> Window {
        Window::lasting(args.warmup, None)
    }

    /// Tells the driver of the benchmark that we are ready, waits for its word, and begins.
    pub(crate) fn open(args: &Args) -> Result<Window, Failure> {
        if args.barrier {
            println!("READY");
            std::io::stdin().read_line(&mut String::new())?;
        }
        Ok(Window::lasting(
            Duration::from_secs_f64(args.seconds),
            args.pairs.map(AtomicU64::new),
        ))
    }

    fn lasting(time: Duration, left: Option<AtomicU64>) -> Window {
        let begun = Instant::now();
        Window {
            begun,
            end: begun + time,
            left,
            before: Usage::now(),
        }
    }

    /// Whether one more pair is to be done.
    pub(crate) fn is_open(&self) -> bool {
        match &self.left {
            Some(left) => left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok(),
            None => Instant::now() < self.end,
        }
    }

    /// How long a caller may wait for the lock.
    pub(crate) fn time(&self) -> Duration {
        match self.left {
            Some(_) => Duration::from_secs(60),
            None => self.end.saturating_duration_since(Instant::now()),
        }
    }

    /// The report of what has been used until now.
    pub(crate) fn report(&self) -> Report {
        let (seconds, mut used) = (self.begun.elapsed().as_secs_f64(), Usage::now());
        used.cpu -= self.before.cpu;
        used.switches -= self.before.switches;
        used.allocations -= self.before.allocations;
        Report::new(seconds, &used)
    }
}
