//! The acts of the fault matrix; `conformance/drivers/README.md` says what happens in each.

mod act;
mod cancelling;
mod ending;
mod outage;
mod scale;

use std::process::ExitCode;

use act::{Act, Outcome};
use serde_json::Value;

fn play_act(act: &Act) -> Outcome {
    match act.name.as_str() {
        "fork" => ending::fork(act),
        "exit-return" | "exit-exit" | "exit-panic" => ending::exit(act),
        "owner-ends" => ending::owner_ends(act),
        "runtime-ends" => ending::runtime_ends(act),
        "dropped-anywhere" => ending::dropped_anywhere(act),
        "blocked" => ending::blocked(act),
        "cancel-steps" => cancelling::steps(act),
        "cancel-instants" => cancelling::instants(act),
        "cancel-granted" => cancelling::granted(act),
        "race" => cancelling::race(act),
        "waiters" => scale::waiters(act),
        "holds" => scale::holds(act),
        "outage" => outage::outage(act),
        "names" => scale::names(act),
        name => Err(format!("no act {name}").into()),
    }
}

pub(crate) fn play(plan: &Value) -> ExitCode {
    match Act::new(plan).and_then(|act| play_act(&act)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            act::say(&format!("failed {error}"));
            ExitCode::FAILURE
        }
    }
}
