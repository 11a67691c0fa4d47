//! Turns signals into events.

use std::sync::mpsc::Sender;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpid, getsid};
use redlatch::Error;
use redlatch::embed::spawn;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::Event;
use crate::failure::{Exit, Failure};

/// These go on to the command. Stop signals stay with the system: the whole job stops.
const FORWARDED: [Signal; 6] = [
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
    let mut signals = SignalsInfo::<WithOrigin>::new(wanted).map_err(|error| {
        Failure::new(Exit::Internal, format!("cannot receive signals: {error}"))
    })?;
    spawn("redlatch-signals", move || {
        for origin in signals.forever() {
            if let Some(event) = event(&origin)
                && events.send(event).is_err()
            {
                return;
            }
        }
    })
    .map_err(|error| Error::exhausted("cannot start a thread", &error))?;
    Ok(())
}

fn event(origin: &Origin) -> Option<Event> {
    let signal = Signal::try_from(origin.signal).ok()?;
    Some(match signal {
        Signal::SIGCHLD => Event::ChildChanged,
        _ => Event::Signalled {
            signal,
            // The kernel sends for a terminal only: to all processes of the job, or, when the
            // terminal is gone, to the leader of the session alone.
            shared: matches!(origin.cause, Cause::Kernel)
                && !(signal == Signal::SIGHUP && getsid(None) == Ok(getpid())),
        },
    })
}

/// Whether our parent has this signal ignored. Linux tells it without `unsafe`.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}
