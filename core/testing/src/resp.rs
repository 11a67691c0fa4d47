//! The protocol of Redis (RESP 2 and 3): commands are read, replies are written.

use std::borrow::Cow;
use std::io::Write;

/// The words of a command.
pub(crate) type Words = Vec<Vec<u8>>;

/// The longest word, and the most words of a command: more is no program of locks.
const LONGEST: usize = 64 << 20;
/// The longest line.
const LONGEST_LINE: usize = 64 << 10;
const MOST_WORDS: usize = 1 << 20;

/// A reply, or a message that no command asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Status(Cow<'static, str>),
    /// Its text begins with its code.
    Error(String),
    Int(i64),
    Double(f64),
    Bulk(Vec<u8>),
    /// A text for people.
    Text(String),
    Nil,
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// Members with their scores: in pairs, or in RESP2 one behind the other.
    Scores(Vec<(Vec<u8>, f64)>),
    /// A message of pub/sub, or an invalidation.
    Push(Vec<Reply>),
    /// One reply for each of several channels.
    Several(Vec<Reply>),
}

impl Reply {
    pub(crate) const OK: Reply = Reply::Status(Cow::Borrowed("OK"));

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    pub(crate) fn flag(is: bool) -> Reply {
        Reply::Int(is.into())
    }

    pub(crate) fn count(number: usize) -> Reply {
        Reply::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Writes it as this version of the protocol has it.
    pub(crate) fn write(&self, out: &mut Vec<u8>, resp3: bool) {
        match self {
            Reply::Status(text) => line(out, '+', &one_line(text)),
            Reply::Error(text) => line(out, '-', &one_line(text)),
            Reply::Int(number) => line(out, ':', &number.to_string()),
            Reply::Double(number) if resp3 => line(out, ',', &shown(*number)),
            Reply::Double(number) => bulk(out, shown(*number).as_bytes()),
            Reply::Bulk(bytes) => bulk(out, bytes),
            Reply::Text(text) if resp3 => {
                line(out, '=', &(text.len() + 4).to_string());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Reply::Text(text) => bulk(out, text.as_bytes()),
            Reply::Nil => out.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            Reply::Array(parts) => {
                line(out, '*', &parts.len().to_string());
                parts.iter().for_each(|part| part.write(out, resp3));
            }
            Reply::Scores(members) if resp3 => {
                line(out, '*', &members.len().to_string());
                for (member, score) in members {
                    let pair = vec![Reply::bulk(member), Reply::Double(*score)];
                    Reply::Array(pair).write(out, resp3);
                }
            }
            Reply::Scores(members) => {
                line(out, '*', &(members.len() * 2).to_string());
                for (member, score) in members {
                    bulk(out, member);
                    bulk(out, shown(*score).as_bytes());
                }
            }
            Reply::Map(pairs) => {
                if resp3 {
                    line(out, '%', &pairs.len().to_string());
                } else {
                    line(out, '*', &(pairs.len() * 2).to_string());
                }
                for (key, value) in pairs {
                    key.write(out, resp3);
                    value.write(out, resp3);
                }
            }
            Reply::Push(parts) => {
                line(out, if resp3 { '>' } else { '*' }, &parts.len().to_string());
                parts.iter().for_each(|part| part.write(out, resp3));
            }
            Reply::Several(replies) => replies.iter().for_each(|reply| reply.write(out, resp3)),
        }
    }
}

/// The end of a line would end the reply.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

fn line(out: &mut Vec<u8>, kind: char, text: &str) {
    // A write to memory does not fail.
    let _ = write!(out, "{kind}{text}\r\n");
}

fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    line(out, '$', &bytes.len().to_string());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A number as Redis shows scores.
pub(crate) fn shown(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    format!("{number}")
}

/// The bytes that have arrived from a client, and the command that they begin.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// The parser has read the bytes before this index.
    at: usize,
    /// The command that has arrived in part: the number of its words, and the words so far.
    begun: Option<(usize, Words)>,
    /// The length of the next word.
    length: Option<usize>,
}

impl Input {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next command; `None` if it is not there completely.
    ///
    /// # Errors
    /// The text of the error after which Redis closes the connection.
    pub(crate) fn next_command(&mut self) -> Result<Option<Words>, String> {
        if self.begun.is_none() {
            match self.bytes.get(self.at) {
                None => return Ok(None),
                Some(b'*') => {
                    let Some(count) = self.number(b'*', MOST_WORDS)? else {
                        return Ok(None);
                    };
                    self.begun = Some((count, Vec::new()));
                }
                Some(_) => return self.inline(),
            }
        }
        while let Some((count, words)) = &self.begun
            && words.len() < *count
        {
            let Some(word) = self.word()? else {
                return Ok(None);
            };
            if let Some((_, words)) = &mut self.begun {
                words.push(word);
            }
        }
        Ok(self.begun.take().map(|(_, words)| words))
    }

    /// The next line that has arrived.
    fn line(&mut self) -> Result<Option<&[u8]>, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return if rest.len() > LONGEST_LINE {
                Err("ERR Protocol error: too big inline request".to_owned())
            } else {
                Ok(None)
            };
        };
        self.at += end + 1;
        let line = rest.get(..end).unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The number behind this mark.
    fn number(&mut self, mark: u8, most: usize) -> Result<Option<usize>, String> {
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        let Some(digits) = line.strip_prefix(&[mark]) else {
            let got = line.first().copied().map_or(' ', char::from);
            let expected = char::from(mark);
            return Err(format!(
                "ERR Protocol error: expected '{expected}', got '{got}'"
            ));
        };
        let number = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse::<i64>().ok())
            .filter(|number| i64::try_from(most).is_ok_and(|most| *number <= most))
            .ok_or_else(|| {
                let what = if mark == b'*' { "multibulk" } else { "bulk" };
                format!("ERR Protocol error: invalid {what} length")
            })?;
        Ok(Some(usize::try_from(number).unwrap_or(0)))
    }

    fn word(&mut self) -> Result<Option<Vec<u8>>, String> {
        if self.length.is_none() {
            self.length = self.number(b'$', LONGEST)?;
        }
        let Some(length) = self.length else {
            return Ok(None);
        };
        let end = self.at + length;
        // An end of line follows.
        if self.bytes.len() < end + 2 {
            return Ok(None);
        }
        let word = self.bytes.get(self.at..end).map(<[u8]>::to_vec);
        (self.at, self.length) = (end + 2, None);
        Ok(word)
    }

    fn inline(&mut self) -> Result<Option<Words>, String> {
        Ok(self.line()?.map(|line| {
            line.split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty())
                .map(<[u8]>::to_vec)
                .collect()
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_taken_when_all_of_it_has_arrived() {
        let whole = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING now\r\n";
        let first = whole.len() - b"PING now\r\n".len();
        let words =
            |words: &[&str]| Some(words.iter().map(|word| word.as_bytes().to_vec()).collect());
        for end in 0..first {
            let mut input = Input::default();
            input.add(&whole[..end]);
            assert_eq!(input.next_command().unwrap(), None, "{end} bytes");
            input.add(&whole[end..]);
            assert_eq!(input.next_command().unwrap(), words(&["GET", "a"]));
            assert_eq!(input.next_command().unwrap(), words(&["PING", "now"]));
            assert_eq!(input.next_command().unwrap(), None);
        }
    }

    #[test]
    fn what_has_arrived_is_read_once() {
        let mut input = Input::default();
        input.add(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\n1");
        assert_eq!(input.next_command().unwrap(), None);
        // Only the word that is not there completely is left.
        input.add(b"2");
        assert_eq!(input.bytes, b"12");
        assert_eq!(input.next_command().unwrap(), None);
        input.add(b"345\r\n");
        assert_eq!(input.next_command().unwrap().unwrap()[2], b"12345");
    }

    #[test]
    fn a_text_of_several_lines_is_one_reply() {
        for (reply, written) in [
            (Reply::Status("a\r\n+x".into()), "+a  +x\r\n"),
            (Reply::Error("ERR a\n-x".into()), "-ERR a -x\r\n"),
        ] {
            let mut out = Vec::new();
            reply.write(&mut out, true);
            assert_eq!(String::from_utf8(out).unwrap(), written);
        }
    }

    #[test]
    fn other_protocols_are_refused() {
        for wrong in ["*1\r\n+PING\r\n", "*x\r\n", "*1\r\n$99999999999\r\n"] {
            let mut input = Input::default();
            input.add(wrong.as_bytes());
            let error = input.next_command().unwrap_err();
            assert!(error.starts_with("ERR Protocol error"), "{wrong}: {error}");
        }
    }

    #[test]
    fn each_version_of_the_protocol_has_its_replies() {
        let written = |reply: &Reply, resp3| {
            let mut out = Vec::new();
            reply.write(&mut out, resp3);
            String::from_utf8(out).unwrap()
        };
        for (reply, two, three) in [
            (Reply::Nil, "$-1\r\n", "_\r\n"),
            (Reply::Double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (
                Reply::Map(vec![(Reply::Int(1), Reply::OK)]),
                "*2\r\n:1\r\n+OK\r\n",
                "%1\r\n:1\r\n+OK\r\n",
            ),
            (
                Reply::Push(vec![Reply::bulk("a")]),
                "*1\r\n$1\r\na\r\n",
                ">1\r\n$1\r\na\r\n",
            ),
            (Reply::Text("a".into()), "$1\r\na\r\n", "=5\r\ntxt:a\r\n"),
        ] {
            assert_eq!(written(&reply, false), two);
            assert_eq!(written(&reply, true), three);
        }
    }
}
