//! The parts of redis-rs that tests against a real server need.
#![allow(clippy::unwrap_used, reason = "a failed test says where")]

use redis::{Connection, RedisResult};

use crate::value::{ServerError, Value};
use crate::wire::Call;

/// The command as redis-rs sends it; `full`: with the text of the script.
pub(crate) fn cmd(call: &Call, full: bool) -> redis::Cmd {
    call.command(full, redis::Cmd::with_capacity, |cmd, word| {
        cmd.arg(word);
    })
}

/// Makes a call with the text of its script.
pub(crate) fn eval(call: &Call, server: &mut Connection) -> RedisResult<Value> {
    Ok(cmd(call, true).query::<redis::Value>(server)?.into())
}

/// A reply as it goes over the wire.
pub(crate) fn parsed(reply: &[u8]) -> Value {
    redis::parse_redis_value(reply).unwrap().into()
}

impl From<redis::Value> for Value {
    fn from(value: redis::Value) -> Value {
        match value {
            redis::Value::Nil => Value::Nil,
            redis::Value::Int(number) => Value::Int(number),
            redis::Value::BulkString(bytes) => Value::BulkString(bytes),
            redis::Value::SimpleString(text) => Value::SimpleString(text),
            redis::Value::Array(values) => {
                Value::Array(values.into_iter().map(Value::from).collect())
            }
            redis::Value::ServerError(error) => Value::ServerError(ServerError::new(
                error.code(),
                error.details().map(str::to_owned),
            )),
            other => Value::Other(format!("{other:?}")),
        }
    }
}
