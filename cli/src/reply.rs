//! Values of replies.

use redlatch::embed::Value;

/// What a reply may be read as.
pub(crate) trait FromReply: Sized {
    fn read(value: Value) -> Option<Self>;
}

impl FromReply for Value {
    fn read(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl FromReply for Vec<u8> {
    fn read(value: Value) -> Option<Self> {
        match value {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.into_bytes()),
            _ => None,
        }
    }
}

impl FromReply for String {
    fn read(value: Value) -> Option<Self> {
        String::from_utf8(to(value)?).ok()
    }
}

impl FromReply for i64 {
    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Int(number) => Some(number),
            value => to::<String>(value)?.parse().ok(),
        }
    }
}

impl FromReply for u64 {
    fn read(value: Value) -> Option<Self> {
        to::<i64>(value)?.try_into().ok()
    }
}

/// The score of a member of a sorted set.
impl FromReply for f64 {
    fn read(value: Value) -> Option<Self> {
        to::<String>(value)?.parse().ok()
    }
}

impl<T: FromReply> FromReply for Vec<T> {
    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Array(values) => values.into_iter().map(T::read).collect(),
            _ => None,
        }
    }
}

impl<A: FromReply, B: FromReply> FromReply for (A, B) {
    fn read(value: Value) -> Option<Self> {
        let mut values = to::<Vec<Value>>(value)?.into_iter();
        let both = (to(values.next()?)?, to(values.next()?)?);
        values.next().is_none().then_some(both)
    }
}

/// The value as this type; `None` for a reply of another shape.
pub(crate) fn to<T: FromReply>(value: Value) -> Option<T> {
    T::read(value)
}

/// Names and values in turn, as of the fields of a hash.
pub(crate) fn pairs<A: FromReply, B: FromReply>(value: Value) -> Option<Vec<(A, B)>> {
    let mut values = to::<Vec<Value>>(value)?.into_iter();
    let mut pairs = Vec::new();
    while let Some(first) = values.next() {
        pairs.push((to(first)?, to(values.next()?)?));
    }
    Some(pairs)
}

/// A text reply.
pub(crate) fn text(value: Value) -> String {
    value.text().unwrap_or_default()
}

/// The fields of a text such as `INFO` sends: a line `name:value` each.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}
