//! Values of replies.

use redis::{FromRedisValue, Value};

/// The value as this type; `None` for a reply of another shape.
pub(crate) fn to<T: FromRedisValue>(value: Value) -> Option<T> {
    redis::from_redis_value(value).ok()
}

/// A text reply. `CLIENT LIST` and `INFO` are verbatim strings with RESP3.
pub(crate) fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        _ => String::new(),
    }
}

/// The fields of a text such as `INFO` sends: a line `name:value` each.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}
