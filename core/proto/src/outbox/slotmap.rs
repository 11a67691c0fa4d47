//! The slot map of a cluster: which primary serves which slots.

use crate::value::Value;

use crate::wire::slots::SLOTS;

/// Consecutive slots, and the host and port of their primary. Without a host, it is the node that
/// was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub first: u16,
    pub last: u16,
    pub host: Option<String>,
    pub port: u16,
}

/// Parses the reply to `CLUSTER SLOTS`. Unreadable entries are skipped.
pub fn ranges(answer: Value) -> Vec<Range> {
    let Value::Array(ranges) = answer else {
        return Vec::new();
    };
    ranges.into_iter().filter_map(range).collect()
}

fn range(value: Value) -> Option<Range> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [first, last, Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let (first, last) = (number(first)?, number(last)?);
    let [host, port, ..] = primary.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(bytes) => Some(String::from_utf8(bytes.clone()).ok()?),
        _ => None,
    };
    // A node that does not know its own address yet sends an empty host or a question mark.
    let host = host.filter(|host| !host.is_empty() && host != "?");
    (first <= last && last < SLOTS).then_some(Range {
        first,
        last,
        host,
        port: number(port)?,
    })
}

fn number(value: &Value) -> Option<u16> {
    if let Value::Int(number) = value {
        u16::try_from(*number).ok()
    } else {
        None
    }
}

/// The target of a redirect, `slot host:port`. Without a host, it is the node that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    pub slot: u16,
    pub host: Option<String>,
    pub port: u16,
}

pub fn elsewhere(detail: &str) -> Option<Elsewhere> {
    let (slot, place) = detail.split_once(' ')?;
    let (host, port) = place.trim().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
    let host = Some(host.to_owned()).filter(|host| !host.is_empty() && host != "?");
    Some(Elsewhere {
        slot,
        host,
        port: port.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            node(host, port),
            node(text("r"), 1),
        ])
    }

    #[test]
    fn a_map_is_read_as_far_as_it_can_be() {
        let answer = Value::Array(vec![
            row(0, 99, text("10.0.0.1"), 7000),
            row(100, 199, Value::Nil, 7001),
            row(200, 299, text("?"), 7002),
            row(300, 16384, text("x"), 7003),
            row(7, 6, text("x"), 7003),
            row(0, 1, text("x"), 70_000),
            Value::Array(vec![Value::Int(1), Value::Int(2)]),
            Value::Nil,
        ]);
        let range = |first, last, host: Option<&str>, port| Range {
            first,
            last,
            host: host.map(str::to_owned),
            port,
        };
        let expected = [
            range(0, 99, Some("10.0.0.1"), 7000),
            range(100, 199, None, 7001),
            range(200, 299, None, 7002),
        ];
        assert_eq!(ranges(answer), expected);
        assert_eq!(ranges(Value::SimpleString("OK".to_owned())), []);
    }

    #[test]
    fn a_redirection_is_read() {
        let to = |slot, host: Option<&str>, port| {
            Some(Elsewhere {
                slot,
                host: host.map(str::to_owned),
                port,
            })
        };
        assert_eq!(
            elsewhere("3999 127.0.0.1:6381"),
            to(3999, Some("127.0.0.1"), 6381)
        );
        assert_eq!(elsewhere("3999 ::1:6381"), to(3999, Some("::1"), 6381));
        assert_eq!(elsewhere("0 :6381"), to(0, None, 6381));
        for bad in ["", "3999", "3999 host", "16384 h:1", "x h:1", "1 h:70000"] {
            assert_eq!(elsewhere(bad), None, "{bad}");
        }
    }
}
