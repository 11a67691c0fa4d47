//! The arguments that every program of the benchmark takes.

use std::time::Duration;

use crate::Failure;

pub(crate) struct Args {
    /// `async` or `blocking`.
    pub(crate) peer: String,
    /// A value of the option `kind`, `plain-semaphore` or `multi`.
    pub(crate) kind: String,
    /// The permits of a semaphore.
    pub(crate) limit: u32,
    /// The names of a multi lock.
    pub(crate) names: usize,
    pub(crate) workload: String,
    pub(crate) url: String,
    pub(crate) seconds: f64,
    /// Instead of seconds: how often W1, W2 or W4 acquires, all callers together.
    pub(crate) pairs: Option<u64>,
    pub(crate) barrier: bool,
    pub(crate) warmup: Duration,
    pub(crate) tasks: usize,
    pub(crate) locks: usize,
    pub(crate) lease: Duration,
    /// The time inside the lock.
    pub(crate) inside: Duration,
    pub(crate) ts_file: Option<String>,
    pub(crate) name: String,
    /// Which of several processes.
    pub(crate) id: String,
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, Failure> {
        let mut args = Args {
            peer: "async".into(),
            kind: "reentrant".into(),
            limit: 0,
            names: 1,
            workload: "W1".into(),
            url: "redis://127.0.0.1:6379".into(),
            seconds: 3.0,
            pairs: None,
            barrier: false,
            warmup: Duration::from_millis(300),
            tasks: 64,
            locks: 10_000,
            lease: Duration::from_secs(30),
            inside: Duration::from_millis(1),
            ts_file: None,
            name: "bench".into(),
            id: String::new(),
        };
        while let Some(flag) = words.next() {
            if flag == "--barrier" {
                args.barrier = true;
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{flag} wants a value"))?;
            match flag.as_str() {
                "--peer" => args.peer = value,
                "--kind" => args.kind = value,
                "--limit" => args.limit = value.parse()?,
                "--names" => args.names = value.parse()?,
                "--workload" => args.workload = value,
                "--url" => args.url = value,
                "--seconds" => args.seconds = value.parse()?,
                "--pairs" => args.pairs = Some(value.parse()?),
                "--warmup" => args.warmup = Duration::from_secs_f64(value.parse()?),
                "--tasks" => args.tasks = value.parse()?,
                "--locks" => args.locks = value.parse()?,
                "--lease-ms" => args.lease = Duration::from_millis(value.parse()?),
                "--cs-us" => args.inside = Duration::from_micros(value.parse()?),
                "--ts-file" => args.ts_file = Some(value),
                "--name" => args.name = value,
                "--id" => args.id = value,
                // There is nothing to be tuned.
                "--poll-ms" => {}
                _ => return Err(format!("there is no argument {flag}").into()),
            }
        }
        Ok(args)
    }
}
