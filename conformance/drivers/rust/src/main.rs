//! The program of the Rust face; `conformance/drivers/README.md` says what its modes do.
//!
//! redlatch-conformance [act JSON]

mod acts;
mod counters;
mod serve;
mod turn;
mod usage;

use std::error::Error;
use std::process::ExitCode;

use serde_json::Value;

type Failure = Box<dyn Error + Send + Sync>;

/// A text of the plan.
fn text<'a>(plan: &'a Value, field: &str) -> Result<&'a str, Failure> {
    plan[field]
        .as_str()
        .ok_or_else(|| format!("{field} is missing").into())
}

/// A number of the plan.
fn number(plan: &Value, field: &str) -> Result<u64, Failure> {
    plan[field]
        .as_u64()
        .ok_or_else(|| format!("{field} is missing").into())
}

fn main() -> Result<ExitCode, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => serve::serve_stdin()?,
        ["act", plan] => return Ok(acts::play(&serde_json::from_str(plan)?)),
        _ => return Err("redlatch-conformance [act JSON]".into()),
    }
    Ok(ExitCode::SUCCESS)
}
