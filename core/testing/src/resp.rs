//! The protocol of Redis (RESP 2 and 3): commands are read, replies are written.

use std::borrow::Cow;
use std::io::Write;

/// The words of a command.
pub(crate) type Words = Vec<Vec<u8>>;

/// The longest word, and the most words of a command: more is no program of locks.
const LONGEST: usize = 64 << 20;
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
            Reply::Status(text) => line(out, '+', text),
            Reply::Error(text) => line(out, '-', &text.replace(['\r', '\n'], " ")),
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

/// Takes the next command from what has arrived; `None` if it is not there completely.
///
/// # Errors
/// The text of the error after which Redis closes the connection.
pub(crate) fn next_command(input: &mut Vec<u8>) -> Result<Option<Words>, String> {
    let mut reader = Reader { input, at: 0 };
    let words = match reader.input.first() {
        None => return Ok(None),
        Some(b'*') => reader.array()?,
        Some(_) => reader.inline()?,
    };
    let Some(words) = words else {
        return Ok(None);
    };
    let used = reader.at;
    input.drain(..used);
    Ok(Some(words))
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn line(&mut self) -> Option<&[u8]> {
        let rest = self.input.get(self.at..)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        self.at += end + 1;
        let line = rest.get(..end)?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// The number behind this mark.
    fn number(&mut self, mark: u8, most: usize) -> Result<Option<usize>, String> {
        let Some(line) = self.line() else {
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

    fn array(&mut self) -> Result<Option<Words>, String> {
        let Some(count) = self.number(b'*', MOST_WORDS)? else {
            return Ok(None);
        };
        let mut words = Vec::new();
        for _ in 0..count {
            let Some(length) = self.number(b'$', LONGEST)? else {
                return Ok(None);
            };
            let Some(word) = self.input.get(self.at..self.at + length) else {
                return Ok(None);
            };
            if self.input.len() < self.at + length + 2 {
                return Ok(None);
            }
            words.push(word.to_vec());
            self.at += length + 2;
        }
        Ok(Some(words))
    }

    fn inline(&mut self) -> Result<Option<Words>, String> {
        if self.input.len() > LONGEST {
            return Err("ERR Protocol error: too big inline request".to_owned());
        }
        Ok(self.line().map(|line| {
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
        for end in 0..first {
            let mut input = whole[..end].to_vec();
            assert_eq!(next_command(&mut input).unwrap(), None, "{end} bytes");
            assert_eq!(input.len(), end);
        }
        let mut input = whole.to_vec();
        let words =
            |words: &[&str]| Some(words.iter().map(|word| word.as_bytes().to_vec()).collect());
        assert_eq!(next_command(&mut input).unwrap(), words(&["GET", "a"]));
        assert_eq!(next_command(&mut input).unwrap(), words(&["PING", "now"]));
        assert_eq!(next_command(&mut input).unwrap(), None);
    }

    #[test]
    fn other_protocols_are_refused() {
        for wrong in ["*1\r\n+PING\r\n", "*x\r\n", "*1\r\n$99999999999\r\n"] {
            let error = next_command(&mut wrong.as_bytes().to_vec()).unwrap_err();
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
