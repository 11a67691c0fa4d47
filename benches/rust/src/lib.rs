//! The workloads W1 to W5 for Rust, with futures or (`--peer blocking`) with threads; see
//! `benches/README.md`.
//!
//! Two programs run them: `redlatch-bench`, and `redlatch-bench-counted`, whose allocator counts.

mod args;
mod asynchronous;
mod blocking;
mod contested;
mod report;
mod window;

use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use args::Args;
use contested::{MULTI, PLAIN};
use redlatch::{Client, LockOptions, OptionValue};

/// Whatever went wrong.
pub type Failure = Box<dyn Error + Send + Sync>;

/// How often memory was asked for; 0 where nobody counts.
pub static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// How many bytes of it are in use; 0 where nobody counts.
pub static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

fn client(args: &Args) -> Result<Client, Failure> {
    let lease = LockOptions::new().watchdog_lease(args.lease);
    let builder = Client::builder(&args.url).lock_options(lease);
    if [PLAIN, MULTI].contains(&args.kind.as_str()) {
        return Ok(builder.build()?);
    }
    Ok(builder
        .option("kind", OptionValue::Text(&args.kind))
        .option("limit", OptionValue::Millis(args.limit.into()))
        .build()?)
}

/// Runs the workload that the arguments name.
pub fn run(words: impl Iterator<Item = String>) -> Result<(), Failure> {
    let args = Args::parse(words)?;
    if args.kind == PLAIN && args.workload == "W5" {
        println!("{{\"na\": \"permits without a lease are not renewed\"}}");
        return Ok(());
    }
    if args.peer == "blocking" {
        blocking::run(&args)
    } else {
        asynchronous::run(&args)
    }
}
