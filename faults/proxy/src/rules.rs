//! The rules: what goes wrong with which command.

use std::time::Duration;

/// The fate of the command that a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// So many bytes of the command reach the server, then the connection is gone.
    CutRequest(usize),
    /// The command is done; so many bytes of its reply come back, then the connection is gone.
    CutReply(usize),
    /// Neither it nor anything after it arrives anywhere; the connection stays open.
    Hole,
    /// The command is done, and from then on nothing comes back; the connection stays open.
    ReplyHole,
    /// It and all that follows is late.
    Delay(Duration),
    /// Its reply and all that follows is late.
    DelayReply(Duration),
    /// It is done at once, and a copy of it this much later.
    Twice(Duration),
    /// The connection is gone at once, and the command is done this much later.
    Stall(Duration),
}

/// The next command that contains `needle`, after `skip` others that do.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) needle: Vec<u8>,
    pub(crate) skip: u64,
    pub(crate) action: Action,
    /// Commands on other connections than the direct one do not count.
    pub(crate) direct: bool,
}

/// Whether this is how a connection begins on which the server may say something unasked, as it
/// does on all but the direct one.
pub(crate) fn is_greeting(command: &[u8]) -> bool {
    contains(command, b"\r\nHELLO\r\n")
}

impl Action {
    pub(crate) fn parse(word: &str, number: &str) -> Option<Action> {
        let number: u64 = number.parse().ok()?;
        let (bytes, time) = (usize::try_from(number).ok()?, Duration::from_millis(number));
        Some(match word {
            "cut-request" => Action::CutRequest(bytes),
            "cut-reply" => Action::CutReply(bytes),
            "hole" => Action::Hole,
            "reply-hole" => Action::ReplyHole,
            "delay" => Action::Delay(time),
            "delay-reply" => Action::DelayReply(time),
            "twice" => Action::Twice(time),
            "stall" => Action::Stall(time),
            _ => return None,
        })
    }
}

/// The rules of one proxy. Each is for one command and is gone then.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    waiting: Vec<Rule>,
    pub(crate) fired: u64,
    /// The hashes of scripts that were called, in the order in which they came first.
    pub(crate) scripts: Vec<String>,
    /// The sizes of the last command that a rule was for, and of the last reply that was cut.
    pub(crate) request_size: usize,
    pub(crate) reply_size: usize,
    /// Copies that were done late.
    pub(crate) delivered: u64,
    /// Calls of scripts on direct connections.
    pub(crate) direct: u64,
}

impl Rules {
    pub(crate) fn arm(&mut self, rule: Rule) {
        self.waiting.push(rule);
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// The fate of this command, which came on a direct connection or another one.
    pub(crate) fn judge(&mut self, command: &[u8], direct: bool) -> Option<Action> {
        if self.note_script(command) && direct {
            self.direct += 1;
        }
        let hit = |rule: &Rule| (direct || !rule.direct) && contains(command, &rule.needle);
        let at = self.waiting.iter().position(hit)?;
        if self.waiting[at].skip > 0 {
            self.waiting[at].skip -= 1;
            return None;
        }
        self.fired += 1;
        self.request_size = command.len();
        Some(self.waiting.remove(at).action)
    }

    /// True if it calls a script.
    fn note_script(&mut self, command: &[u8]) -> bool {
        let mut words = command.split(|byte| *byte == b'\n').skip(2).step_by(2);
        let (Some(verb), Some(hash)) = (words.next(), words.next()) else {
            return false;
        };
        if verb.trim_ascii() != b"EVALSHA" {
            return false;
        }
        let hash = String::from_utf8_lossy(hash.trim_ascii()).into_owned();
        if !self.scripts.contains(&hash) {
            self.scripts.push(hash);
        }
        true
    }
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len().max(1)).any(|part| part == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &[u8] = b"*3\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n0\r\n";

    #[test]
    fn a_rule_is_for_one_command_after_those_it_skips() {
        let mut rules = Rules::default();
        rules.arm(Rule {
            needle: b"ab".to_vec(),
            skip: 1,
            action: Action::Hole,
            direct: false,
        });
        assert_eq!(rules.judge(b"*1\r\n$4\r\nPING\r\n", false), None);
        assert_eq!(rules.judge(CALL, false), None);
        assert_eq!(rules.judge(CALL, false), Some(Action::Hole));
        assert_eq!(rules.judge(CALL, false), None);
        assert_eq!((rules.fired, rules.request_size), (1, CALL.len()));
        assert_eq!(rules.scripts, ["ab"]);
    }

    #[test]
    fn a_rule_for_the_direct_connection_leaves_the_others_alone() {
        let mut rules = Rules::default();
        rules.arm(Rule {
            needle: b"ab".to_vec(),
            skip: 0,
            action: Action::Hole,
            direct: true,
        });
        assert_eq!(rules.judge(CALL, false), None);
        assert_eq!(rules.direct, 0);
        assert_eq!(rules.judge(CALL, true), Some(Action::Hole));
        assert_eq!(rules.direct, 1);
        assert!(is_greeting(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n") && !is_greeting(CALL));
    }
}
