//! Turns signals into events.

use std::sync::mpsc::Sender;

use nix::sys::signal::{SigSet, Signal};
use redlatch::Error;
use redlatch::embed::spawn;
use signal_hook::iterator::Signals;

use super::{Event, family};
use crate::failure::{Exit, Failure};

/// These go on to the command. Stop signals stay with the system: the whole job stops.
pub(super) const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Reports signals from now on. A signal that is ignored stays ignored, here and in the command, as
/// nohup(1) wants it.
pub(super) fn report_to(events: Sender<Event>) -> Result<(), Failure> {
    let wanted: Vec<Signal> = FORWARDED
        .into_iter()
        .filter(|signal| !is_ignored(*signal))
        .chain([Signal::SIGCHLD])
        .collect();
    // A parent may have blocked them, which exec keeps.
    let mask: SigSet = wanted.iter().copied().collect();
    mask.thread_unblock().map_err(|error| {
        Failure::new(Exit::Internal, format!("cannot unblock signals: {error}"))
    })?;
    let wanted = wanted.into_iter().map(|signal| signal as i32);
    let mut signals = Signals::new(wanted).map_err(|error| {
        Failure::new(Exit::Internal, format!("cannot receive signals: {error}"))
    })?;
    spawn("redlatch-signals", move || {
        for signal in signals.forever() {
            let event = match Signal::try_from(signal) {
                Ok(Signal::SIGCHLD) => Event::ChildChanged,
                Ok(signal) => Event::Signalled(signal),
                Err(_) => continue,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })
    .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    Ok(())
}

/// Whether our parent has this signal ignored. Linux tells it without `unsafe`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    family::mask(&status, "SigIgn:") >> (signal as i32 - 1) & 1 == 1
}
