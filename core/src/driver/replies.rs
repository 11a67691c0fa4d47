//! Replies of redis-rs.

use redis::Value;

/// Converts a reply of redis-rs to the type of the outbox.
pub(crate) fn value(reply: Value) -> redlatch_proto::value::Value {
    use redlatch_proto::value::{ServerError, Value as Reply};
    match reply {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::BulkString(bytes),
        Value::SimpleString(text) => Reply::SimpleString(text),
        Value::VerbatimString { text, .. } => Reply::BulkString(text.into_bytes()),
        Value::Okay => Reply::SimpleString("OK".to_owned()),
        Value::Array(values) => Reply::Array(values.into_iter().map(value).collect()),
        Value::ServerError(error) => Reply::ServerError(ServerError::new(
            error.code(),
            error.details().map(str::to_owned),
        )),
        other => Reply::Other(format!("{other:?}")),
    }
}
