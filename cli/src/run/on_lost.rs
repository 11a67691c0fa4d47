//! The steps of `--on-lost`.

use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;
use redlatch::{OptionValue, embed};

/// The signals and pauses that the command gets when the lock is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnLost(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Signal(Signal),
    Pause(Duration),
}

const SIGNALS: [(&str, Signal); 7] = [
    ("hup", Signal::SIGHUP),
    ("int", Signal::SIGINT),
    ("quit", Signal::SIGQUIT),
    ("term", Signal::SIGTERM),
    ("usr1", Signal::SIGUSR1),
    ("usr2", Signal::SIGUSR2),
    ("kill", Signal::SIGKILL),
];

impl OnLost {
    pub(crate) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether the command goes on without the lock.
    pub(crate) fn ignores(&self) -> bool {
        self.0.is_empty()
    }

    /// The signal that the command gets when `redlatch` itself is killed: nobody is left for a
    /// second one, so it is the last.
    pub(crate) fn last_signal(&self) -> Option<Signal> {
        self.0.iter().rev().find_map(|step| match step {
            Step::Signal(signal) => Some(*signal),
            Step::Pause(_) => None,
        })
    }
}

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "ignore" {
            return Ok(OnLost(Vec::new()));
        }
        let steps = text.split(',').map(step).collect::<Result<Vec<_>, _>>()?;
        match steps.last() {
            Some(Step::Signal(_)) => Ok(OnLost(steps)),
            _ => Err(format!(
                "{text:?} does not end with a signal, such as term,10s,kill"
            )),
        }
    }
}

fn step(word: &str) -> Result<Step, String> {
    let lower = word.to_lowercase();
    let plain = lower.strip_prefix("sig").unwrap_or(&lower);
    if let Some((_, signal)) = SIGNALS.iter().find(|(name, _)| *name == plain) {
        return Ok(Step::Signal(*signal));
    }
    // A pause has the bounds of a wait.
    match embed::read_duration("wait", OptionValue::Text(word)) {
        Ok(time) => Ok(Step::Pause(time)),
        Err(_) => {
            let names = SIGNALS.map(|(name, _)| name).join(", ");
            Err(format!(
                "{word:?} is neither a signal ({names}) nor a time with a unit, such as 10s; or the whole is `ignore`"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_signals_and_pauses() {
        let steps: OnLost = "TERM,10s,SIGKILL".parse().unwrap();
        let expected = [
            Step::Signal(Signal::SIGTERM),
            Step::Pause(Duration::from_secs(10)),
            Step::Signal(Signal::SIGKILL),
        ];
        assert_eq!(steps.steps(), expected);
        assert_eq!(steps.last_signal(), Some(Signal::SIGKILL));
        assert!(!steps.ignores());
    }

    #[test]
    fn ignore_has_no_steps() {
        let steps: OnLost = "ignore".parse().unwrap();
        assert!(steps.ignores());
        assert_eq!(steps.last_signal(), None);
    }

    #[test]
    fn a_wrong_word_is_named() {
        let error = "term,soon,kill".parse::<OnLost>().unwrap_err();
        assert!(
            error.starts_with("\"soon\" is neither a signal (hup, int"),
            "{error}"
        );
    }

    #[test]
    fn the_last_step_is_a_signal() {
        let error = "term,10s".parse::<OnLost>().unwrap_err();
        assert!(error.contains("does not end with a signal"), "{error}");
    }
}
