//! Reads the replies of a server: RESP2 and RESP3.

use crate::connecting;
use crate::value::{ServerError, Value};

/// Replies nest no deeper than this: a script's result has three levels.
const DEEPEST: usize = 16;

/// One message of the server.
#[derive(Debug, PartialEq)]
pub(crate) enum Item {
    Reply(Value),
    /// A push message of RESP3.
    Push(Vec<Value>),
}

/// The bytes that have arrived, as far as they are not read.
#[derive(Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    /// Where the unread ones begin.
    start: usize,
    /// With fewer bytes than this the next message is surely not complete.
    needed: usize,
}

/// The message is not complete (with fewer bytes than these it cannot be), or no server of Redis
/// sends it.
enum Stop {
    More(usize),
    Garbled,
}

type Read<T> = Result<T, Stop>;

impl Reader {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message; `None` when it has not arrived.
    ///
    /// # Errors
    /// For bytes that are no message.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, &'static str> {
        let unread = self.bytes.get(self.start..).unwrap_or_default();
        if unread.is_empty() || unread.len() < self.needed {
            return Ok(None);
        }
        let mut parser = Parser {
            bytes: unread,
            at: 0,
        };
        match parser.item() {
            Ok(item) => {
                self.start += parser.at;
                self.needed = 0;
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
            Err(Stop::Garbled) => Err(connecting::NOT_REDIS),
        }
    }
}

/// The reply that these bytes are; `None` if it is not complete.
///
/// # Errors
/// For bytes that are no reply.
pub fn parse(bytes: &[u8]) -> Result<Option<Value>, &'static str> {
    match (Parser { bytes, at: 0 }).value(0) {
        Ok(value) => Ok(Some(value)),
        Err(Stop::More(_)) => Ok(None),
        Err(Stop::Garbled) => Err(connecting::NOT_REDIS),
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn item(&mut self) -> Read<Item> {
        if self.bytes.first() != Some(&b'>') {
            return self.value(0).map(Item::Reply);
        }
        self.at = 1;
        let count = self.count()?;
        self.values(count, 1).map(Item::Push)
    }

    fn line(&mut self) -> Read<&'a str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
            return Err(Stop::More(self.bytes.len() + 1));
        };
        self.at += end + 2;
        std::str::from_utf8(&rest[..end]).map_err(|_| Stop::Garbled)
    }

    fn number(&mut self) -> Read<i64> {
        self.line()?.parse().map_err(|_| Stop::Garbled)
    }

    fn count(&mut self) -> Read<usize> {
        usize::try_from(self.number()?).map_err(|_| Stop::Garbled)
    }

    /// The length of a string or array; `None` for RESP2's null.
    fn length(&mut self) -> Read<Option<usize>> {
        match self.number()? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| Stop::Garbled),
        }
    }

    fn bulk(&mut self, length: usize) -> Read<&'a [u8]> {
        let end = self.at.saturating_add(length);
        let whole = end.saturating_add(2);
        if self.bytes.len() < whole {
            return Err(Stop::More(whole));
        }
        let text = &self.bytes[self.at..end];
        if &self.bytes[end..whole] != b"\r\n" {
            return Err(Stop::Garbled);
        }
        self.at = whole;
        Ok(text)
    }

    fn values(&mut self, count: usize, depth: usize) -> Read<Vec<Value>> {
        // The count is the server's word: room is made as the values come.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value(depth)?);
        }
        Ok(values)
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > DEEPEST {
            return Err(Stop::Garbled);
        }
        let Some(&kind) = self.bytes.get(self.at) else {
            return Err(Stop::More(self.at + 1));
        };
        self.at += 1;
        Ok(match kind {
            b'+' => Value::SimpleString(self.line()?.to_owned()),
            b'-' => error(self.line()?),
            b':' => Value::Int(self.number()?),
            b'$' => match self.length()? {
                Some(length) => Value::BulkString(self.bulk(length)?.to_vec()),
                None => Value::Nil,
            },
            b'*' => match self.length()? {
                Some(count) => Value::Array(self.values(count, depth + 1)?),
                None => Value::Nil,
            },
            b'_' => {
                self.line()?;
                Value::Nil
            }
            b'!' => {
                let length = self.count()?;
                error(&String::from_utf8_lossy(self.bulk(length)?))
            }
            b'=' => {
                // The text has a word for its format before it.
                let length = self.count()?;
                let text = self.bulk(length)?;
                Value::BulkString(text.get(4..).unwrap_or_default().to_vec())
            }
            b'#' | b',' | b'(' => Value::Other(self.line()?.to_owned()),
            b'%' => {
                let count = self.count()?.saturating_mul(2);
                self.values(count, depth + 1)?;
                Value::Other("a map".to_owned())
            }
            b'~' => {
                let count = self.count()?;
                self.values(count, depth + 1)?;
                Value::Other("a set".to_owned())
            }
            b'|' => {
                // Attributes stand before the reply that they belong to.
                let count = self.count()?.saturating_mul(2);
                self.values(count, depth + 1)?;
                self.value(depth + 1)?
            }
            _ => return Err(Stop::Garbled),
        })
    }
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

    /// Whatever the network makes of them.
    #[test]
    fn messages_arrive_in_any_pieces() {
        let stream: Vec<u8> = MESSAGES
            .iter()
            .flat_map(|(bytes, _)| *bytes)
            .copied()
            .collect();
        for size in 1..=stream.len() {
            let mut reader = Reader::default();
            let mut items = Vec::new();
            for piece in stream.chunks(size) {
                reader.add(piece);
                while let Some(item) = reader.next().unwrap() {
                    items.push(item);
                }
            }
            let expected: Vec<Item> = MESSAGES.iter().map(|(_, item)| item()).collect();
            assert_eq!(items, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        let deep = b"*1\r\n".repeat(1_000_000);
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"$-2\r\n",
            b"$x\r\n",
            b"$1\r\nabc",
            b"+\xff\r\n",
            &deep,
        ] {
            let mut reader = Reader::default();
            reader.add(bytes);
            assert!(reader.next().is_err(), "{:?}", &bytes[..4]);
        }
        let mut reader = Reader::default();
        reader.add(b"*99999999999\r\n");
        assert_eq!(reader.next(), Ok(None));
    }
}
