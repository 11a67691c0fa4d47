//! Reads the replies of a server: RESP2 and RESP3.

use crate::connecting;
use crate::value::{ServerError, Value};

/// Replies nest no deeper than this: a script's result has three levels.
const DEEPEST: usize = 16;
/// The longest text, in bytes: Redis itself takes no longer one (`proto-max-bulk-len`). And the longest
/// array, in values.
const LONGEST: i64 = 512 << 20;
/// The longest line, in bytes. Redis itself reads no longer one.
const LONGEST_LINE: usize = 64 << 10;
/// The first bytes of all values.
const KINDS: &[u8] = b"+-:_#,($!=*~%|>";

/// One message of the server.
#[derive(Debug, PartialEq)]
pub enum Item {
    Reply(Value),
    /// A push message of RESP3.
    Push(Vec<Value>),
}

/// The bytes that have arrived, as far as they are not read, and what was read of a message that is not
/// complete: no byte of a long answer is read again when more of it arrives.
#[derive(Default)]
pub struct Reader {
    bytes: Vec<u8>,
    /// Where the next value begins.
    start: usize,
    /// With fewer bytes than this it is surely not complete.
    needed: usize,
    /// So many bytes of it have no end of a line.
    searched: usize,
    /// The arrays that are not complete, from the outermost to the innermost.
    open: Vec<Open>,
    #[cfg(test)]
    looked_at: usize,
}

/// An array, or something else that is made of values.
struct Open {
    kind: u8,
    /// How many values are to come.
    left: usize,
    values: Vec<Value>,
}

/// The value is not complete (with fewer bytes than these it cannot be), or no server of Redis
/// sends it.
enum Stop {
    More(usize),
    Garbled,
    /// It is larger than what Redis sends.
    Large(&'static str, i64),
}

type Read<T> = Result<T, Stop>;

impl Reader {
    /// Whether all that has arrived was read.
    pub fn is_clear(&self) -> bool {
        self.bytes.is_empty() && self.open.is_empty()
    }

    pub fn add(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.looks_at(self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message; `None` when it has not arrived.
    ///
    /// # Errors
    /// For bytes that are no message, and for a message that is too large. The connection is of no use then.
    #[allow(clippy::should_implement_trait, reason = "more may come after `None`")]
    pub fn next(&mut self) -> Result<Option<Item>, String> {
        let unread = self.bytes.len() - self.start;
        if unread == 0 || unread < self.needed {
            return Ok(None);
        }
        match self.item() {
            Ok(item) => {
                if self.start == self.bytes.len() {
                    self.bytes.clear();
                    self.start = 0;
                    // A large reply must not keep its memory.
                    self.bytes.shrink_to(1 << 16);
                }
                Ok(Some(item))
            }
            Err(Stop::More(needed)) => {
                self.needed = needed;
                Ok(None)
            }
            Err(Stop::Garbled) => Err(connecting::NOT_REDIS.to_owned()),
            Err(Stop::Large(what, size)) => {
                Err(format!("{}: {what} of {size}", connecting::NOT_REDIS))
            }
        }
    }

    fn item(&mut self) -> Read<Item> {
        loop {
            let mut value = self.value()?;
            self.needed = 0;
            self.searched = 0;
            // The last value of an array completes it, and with it perhaps the array that it is in.
            while let Some(open) = self.open.last_mut() {
                if let Some(value) = value.take() {
                    open.values.push(value);
                    open.left -= 1;
                }
                if open.left > 0 {
                    break;
                }
                let (kind, values) = (open.kind, std::mem::take(&mut open.values));
                value = match kind {
                    b'*' => Some(Value::Array(values)),
                    b'%' => Some(Value::Other("a map".to_owned())),
                    b'~' => Some(Value::Other("a set".to_owned())),
                    b'>' => {
                        self.open.clear();
                        return Ok(Item::Push(values));
                    }
                    // Attributes stand before the value that they belong to.
                    _ => None,
                };
                self.open.pop();
            }
            if let Some(value) = value {
                return Ok(Item::Reply(value));
            }
        }
    }

    /// Reads a value; `None` for the beginning of an array.
    fn value(&mut self) -> Read<Option<Value>> {
        let end = self.line_end()?;
        let (kind, line) = (self.bytes[self.start], &self.bytes[self.start + 1..end]);
        let text = || std::str::from_utf8(line).map_err(|_| Stop::Garbled);
        let number = || text()?.parse::<i64>().map_err(|_| Stop::Garbled);
        let value = match kind {
            b'+' => Value::SimpleString(text()?.to_owned()),
            b'-' => error(text()?),
            b':' => Value::Int(number()?),
            b'_' => Value::Nil,
            b'#' | b',' | b'(' => Value::Other(text()?.to_owned()),
            _ => match number()? {
                // The null of RESP2.
                -1 if matches!(kind, b'$' | b'*') => Value::Nil,
                length if length > LONGEST => return Err(Stop::Large("a length", length)),
                length => {
                    let length = usize::try_from(length).map_err(|_| Stop::Garbled)?;
                    return self.long(kind, end + 2, length);
                }
            },
        };
        self.start = end + 2;
        Ok(Some(value))
    }

    /// Where the next line ends.
    fn line_end(&mut self) -> Read<usize> {
        let unread = &self.bytes[self.start..];
        let rest = &unread[self.searched..];
        let length = rest.iter().position(|byte| *byte == b'\r');
        let end = self.searched + length.unwrap_or(rest.len());
        if end > LONGEST_LINE {
            return Err(Stop::Large("a line", LONGEST_LINE as i64 + 1));
        }
        let found = match unread.get(end + 1) {
            Some(b'\n') if end > 0 => Ok(self.start + end),
            None if unread.first().is_none_or(|kind| KINDS.contains(kind)) => {
                Err(Stop::More(unread.len() + 1))
            }
            _ => Err(Stop::Garbled),
        };
        self.looks_at(end - self.searched);
        self.searched = end;
        found
    }

    /// Reads a value whose length stands in its first line, which ends before `start`.
    fn long(&mut self, kind: u8, start: usize, length: usize) -> Read<Option<Value>> {
        let left = match kind {
            b'$' | b'!' | b'=' => return self.text(kind, start, length).map(Some),
            b'*' | b'~' => length,
            b'%' | b'|' => 2 * length,
            b'>' if self.open.is_empty() => length,
            _ => return Err(Stop::Garbled),
        };
        if self.open.len() == DEEPEST {
            return Err(Stop::Large("a depth", DEEPEST as i64 + 1));
        }
        self.start = start;
        // The length is the server's word: room is made as the values come.
        self.open.push(Open {
            kind,
            left,
            values: Vec::new(),
        });
        Ok(None)
    }

    fn text(&mut self, kind: u8, start: usize, length: usize) -> Read<Value> {
        let end = start + length;
        let whole = end + 2;
        if self.bytes.len() < whole {
            return Err(Stop::More(whole - self.start));
        }
        if &self.bytes[end..whole] != b"\r\n" {
            return Err(Stop::Garbled);
        }
        let text = &self.bytes[start..end];
        let value = match kind {
            b'!' => error(&String::from_utf8_lossy(text)),
            // The text has a word for its format before it.
            b'=' => Value::BulkString(text.get(4..).unwrap_or_default().to_vec()),
            _ => Value::BulkString(text.to_vec()),
        };
        self.start = whole;
        self.looks_at(length);
        Ok(value)
    }

    /// The tests count the bytes that are searched, copied or moved.
    #[cfg(test)]
    fn looks_at(&mut self, count: usize) {
        self.looked_at += count;
    }

    #[cfg(not(test))]
    fn looks_at(&mut self, _: usize) {}
}

fn error(text: &str) -> Value {
    let (code, details) = match text.split_once(' ') {
        Some((code, details)) => (code, Some(details.to_owned())),
        None => (text, None),
    };
    Value::ServerError(ServerError::new(code, details))
}

/// Writes a command in wire format.
pub(crate) fn write_command(out: &mut Vec<u8>, words: &[impl AsRef<[u8]>]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test says where")]
mod tests {
    use super::*;

    type Message = (&'static [u8], fn() -> Item);

    const MESSAGES: &[Message] = &[
        (b"+OK\r\n", || Item::Reply(Value::SimpleString("OK".into()))),
        (b"-ERR no\r\n", || {
            Item::Reply(Value::ServerError(ServerError::new(
                "ERR",
                Some("no".into()),
            )))
        }),
        (b"*3\r\n:1\r\n$2\r\n\r\n\r\n$-1\r\n", || {
            Item::Reply(Value::Array(vec![
                Value::Int(1),
                Value::BulkString(b"\r\n".to_vec()),
                Value::Nil,
            ]))
        }),
        (b"=5\r\ntxt:a\r\n", || {
            Item::Reply(Value::BulkString(b"a".to_vec()))
        }),
        (b"%1\r\n+a\r\n_\r\n", || {
            Item::Reply(Value::Other("a map".into()))
        }),
        (b"|1\r\n+a\r\n#t\r\n:7\r\n", || Item::Reply(Value::Int(7))),
        (b">2\r\n$10\r\ninvalidate\r\n_\r\n", || {
            Item::Push(vec![Value::BulkString(b"invalidate".to_vec()), Value::Nil])
        }),
    ];

    /// What is read of a stream that arrives in these pieces, and how many bytes were looked at.
    fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Item>, usize) {
        let (mut reader, mut items) = (Reader::default(), Vec::new());
        for piece in pieces {
            reader.add(piece);
            while let Some(item) = reader.next().unwrap() {
                items.push(item);
            }
        }
        assert!(reader.is_clear());
        (items, reader.looked_at)
    }

    /// Whatever the network makes of them.
    #[test]
    fn messages_arrive_in_any_pieces() {
        let stream: Vec<u8> = MESSAGES
            .iter()
            .flat_map(|(bytes, _)| *bytes)
            .copied()
            .collect();
        let expected: Vec<Item> = MESSAGES.iter().map(|(_, item)| item()).collect();
        for size in 1..=stream.len() {
            let (items, _) = read(stream.chunks(size));
            assert_eq!(items, expected, "in pieces of {size}");
        }
        for first in 0..=stream.len() {
            let (first, rest) = stream.split_at(first);
            let (items, _) = read([first, rest].into_iter());
            assert_eq!(items, expected, "behind {first:?}");
        }
    }

    /// A large array was read from its start with each piece: 240,000 channels took minutes.
    #[test]
    fn each_byte_is_looked_at_a_few_times_however_it_arrives() {
        let flat = [b"*5000\r\n".to_vec(), b"$3\r\nabc\r\n".repeat(5000)].concat();
        let row = b"*4\r\n:1\r\n+abc\r\n$0\r\n\r\n*2\r\n:2\r\n_\r\n";
        let nested = [b"*1\r\n*1000\r\n".to_vec(), row.repeat(1000)].concat();
        let text = [
            b"$30000\r\n".to_vec(),
            vec![b'\r'; 30_000],
            b"\r\n".to_vec(),
        ]
        .concat();
        let line = [b"+".to_vec(), vec![b'a'; 30_000], b"\r\n".to_vec()].concat();
        let many = b":1\r\n".repeat(5000);
        for (stream, count) in [(flat, 1), (nested, 1), (text, 1), (line, 1), (many, 5000)] {
            for size in [1, 2, 7, 512, 16_384, stream.len()] {
                let (items, looked_at) = read(stream.chunks(size));
                assert_eq!(items.len(), count);
                let most = 2 * stream.len();
                assert!(
                    looked_at <= most,
                    "{looked_at} of {} in pieces of {size}: {:?}",
                    stream.len(),
                    &stream[..8]
                );
            }
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"\x15\x03\x01",
            b"x5\r\n",
            b"\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"$x\r\n",
            b"$1\r\nabc",
            b"+\xff\r\n",
            b"+a\rb\r\n",
            b"*1\r\n>1\r\n:1\r\n",
        ] {
            for size in [1, bytes.len()] {
                let mut reader = Reader::default();
                let mut pieces = bytes.chunks(size);
                let refused = pieces.any(|piece| {
                    reader.add(piece);
                    reader.next().is_err()
                });
                assert!(refused, "{}", bytes.escape_ascii());
            }
        }
    }

    /// Nothing is kept for it, and nobody waits for its end.
    #[test]
    fn what_is_too_large_is_refused_by_its_size() {
        let refused = |bytes: &[u8]| {
            let mut reader = Reader::default();
            reader.add(bytes);
            let error = reader.next().unwrap_err();
            let (all, room) = (reader.open.iter(), |open: &Open| open.values.capacity());
            assert_eq!(all.map(room).sum::<usize>(), 0);
            error
        };
        for kind in ["$", "!", "=", "*", "~", "%", "|", ">"] {
            for length in ["536870913", "99999999999", "9223372036854775807"] {
                let error = refused(format!("{kind}{length}\r\n").as_bytes());
                assert!(error.ends_with(&format!("a length of {length}")), "{error}");
            }
            let error = refused(format!("{kind}9223372036854775808\r\n").as_bytes());
            assert_eq!(error, connecting::NOT_REDIS);
            let mut reader = Reader::default();
            reader.add(format!("{kind}536870912\r\n").as_bytes());
            assert_eq!(reader.next(), Ok(None));
            assert!(reader.bytes.capacity() < 1000);
        }
        for deep in ["*1\r\n", "%1\r\n", "~1\r\n", "|1\r\n"] {
            let error = refused(deep.repeat(1_000_000).as_bytes());
            assert!(error.ends_with("a depth of 17"), "{error}");
        }
        for size in [1, 1000, LONGEST_LINE + 2] {
            let (long, mut reader) = (vec![b'+'; LONGEST_LINE + 2], Reader::default());
            let mut pieces = long.chunks(size);
            let error = pieces.find_map(|piece| {
                reader.add(piece);
                reader.next().err()
            });
            assert!(error.unwrap().ends_with("a line of 65537"));
            assert!(reader.looked_at <= long.len());
        }
    }
}
