//! From an [`Op`] to a command, and from the server's value to a [`Reply`].

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use super::names::{channel, token_key};
use super::{Fencing, Holder, Name, Op, RenewReply, Reply};
use crate::error::{Error, ErrorKind, LostReason, Result};

/// A Lua script with the hash by which the server knows it.
pub(crate) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Script { text, sha1: redis::Script::new(text).get_hash().to_owned() }
    }
}

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/acquire.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/release.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/renew.lua")));
static FORCE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/force.lua")));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("lua/inspect.lua")));

/// How long the counter of fencing tokens outlives its last use, unless it is persistent.
const TOKEN_EXPIRY: Duration = Duration::from_secs(25 * 3600);

/// One script call, ready to be written as EVALSHA or, for a server that does not know it, as EVAL.
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Call {
    /// The call for `op` by the client `uuid`. `not_after` is in the server's milliseconds; it is
    /// left out where a late copy does no harm.
    pub(crate) fn new(op: &Op, uuid: &str, not_after: u64) -> Call {
        let owner = |number: &u64| format!("{uuid}:{number}");
        let not_after = not_after.to_string();
        match op {
            Op::Acquire { name, owner: number, count, lease, fencing } => {
                let mut keys = vec![name.to_string()];
                let expiry = match fencing {
                    Fencing::Expiring => TOKEN_EXPIRY,
                    Fencing::Off | Fencing::Persistent => Duration::ZERO,
                };
                if *fencing != Fencing::Off {
                    keys.push(token_key(name));
                }
                let args = vec![millis(*lease), owner(number), count.to_string(), not_after, millis(expiry)];
                Call { script: &ACQUIRE, keys, args }
            }
            Op::Release { name, owner: number, remaining, ttl } => {
                let not_after = if *remaining == 0 { "0".to_owned() } else { not_after };
                let mut args = vec![owner(number), remaining.to_string(), millis(*ttl), not_after];
                args.extend(publication(name));
                Call { script: &RELEASE, keys: vec![name.to_string()], args }
            }
            Op::Renew { holds } => Call {
                script: &RENEW,
                keys: holds.iter().map(|hold| hold.name.to_string()).collect(),
                args: holds.iter().flat_map(|hold| [owner(&hold.owner), millis(hold.ttl)]).collect(),
            },
            Op::Force { name } => {
                let mut args = vec![not_after];
                args.extend(publication(name));
                Call { script: &FORCE, keys: vec![name.to_string()], args }
            }
            Op::Inspect { name } => Call { script: &INSPECT, keys: vec![name.to_string()], args: Vec::new() },
        }
    }

    pub(crate) fn evalsha(&self) -> Cmd {
        self.with("EVALSHA", &self.script.sha1)
    }

    /// The same call with the full text, which also makes the server know the script.
    pub(crate) fn eval(&self) -> Cmd {
        self.with("EVAL", self.script.text)
    }

    fn with(&self, command: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(command);
        cmd.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        cmd
    }
}

/// Verb and channel. The channel is an argument and no key: then it may lie in another slot, and
/// an ACL need not allow it as a key.
fn publication(name: &Name) -> [String; 2] {
    ["PUBLISH".to_owned(), channel(name)]
}

/// Whole milliseconds, rounded up: the server never holds for less than the caller counts on.
fn millis(time: Duration) -> String {
    time.as_micros().div_ceil(1000).to_string()
}

/// Reads the server's answer to `op`: its clock in milliseconds, and what happened.
///
/// # Errors
/// `server` when the answer has another shape than our scripts give.
pub(crate) fn decode(op: &Op, value: Value) -> Result<(u64, Reply)> {
    let malformed = || {
        Error::new(ErrorKind::Server, "the server's reply does not have the shape of our scripts' replies")
    };
    let Value::Array(values) = value else { return Err(malformed()) };
    let mut values = values.into_iter();
    let server_ms =
        values.next().and_then(integer).and_then(|ms| u64::try_from(ms).ok()).ok_or_else(malformed)?;
    let reply = if let Op::Renew { holds } = op {
        let replies: Option<Vec<RenewReply>> = values.map(renewal).collect();
        replies.filter(|replies| replies.len() == holds.len()).map(Reply::Renewed)
    } else {
        let code = values.next().and_then(integer).ok_or_else(malformed)?;
        single(op, code, values)
    };
    Ok((server_ms, reply.ok_or_else(malformed)?))
}

fn single(op: &Op, code: i64, mut rest: impl Iterator<Item = Value>) -> Option<Reply> {
    Some(match (op, code) {
        (Op::Acquire { .. }, 1) => Reply::Acquired {
            ttl: remaining(rest.next())?.unwrap_or_default(),
            token: rest.next().and_then(text).and_then(|token| token.parse().ok()),
        },
        (Op::Acquire { .. }, 2) => Reply::Busy { ttl: remaining(rest.next())? },
        (Op::Release { .. }, 1) => Reply::Released,
        (Op::Release { .. }, 2) => Reply::Kept,
        (Op::Force { .. }, 1) => Reply::Forced(true),
        (Op::Force { .. }, 3) => Reply::Forced(false),
        (Op::Inspect { .. }, 2) => Reply::Holder(Some(Holder {
            remaining: remaining(rest.next())?,
            owner: rest.next().and_then(text)?,
            // A field that is no number was not written by a lock; it holds all the same.
            count: rest.next().and_then(text)?.parse().unwrap_or(1),
        })),
        (Op::Inspect { .. }, 3) => Reply::Holder(None),
        (_, 3) => Reply::Gone(LostReason::Deleted),
        (_, 4) => Reply::Gone(LostReason::Stolen),
        (_, 5) => Reply::Foreign(rest.next().and_then(text)?),
        (_, 6) => Reply::Stale,
        _ => return None,
    })
}

fn renewal(value: Value) -> Option<RenewReply> {
    Some(match integer(value)? {
        1 => RenewReply::Kept,
        3 => RenewReply::Gone(LostReason::Deleted),
        4 => RenewReply::Gone(LostReason::Stolen),
        7 => RenewReply::Failed,
        _ => return None,
    })
}

fn integer(value: Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A PTTL: `None` inside means that the key has no expiry.
fn remaining(value: Option<Value>) -> Option<Option<Duration>> {
    let ms = value.and_then(integer)?;
    Some(u64::try_from(ms).ok().map(Duration::from_millis))
}

/// What an error reply means: its kind with a remedy, and whether it may pass by itself.
pub(crate) fn refusal(code: &str, detail: &str) -> (Error, bool) {
    let denied =
        ["can't run this command", "can't access", "can't publish", "No permissions", "no permissions"];
    let said = |remedy: &str| format!("the server said {code} {detail}; {remedy}");
    let (kind, passing, text) = match code {
        "NOAUTH" | "WRONGPASS" => (ErrorKind::Auth, false, said("check user name and password in the URL")),
        "NOPERM" => (ErrorKind::Denied, false, said("allow it in the ACL of this user")),
        _ if denied.iter().any(|part| detail.contains(part)) => {
            (ErrorKind::Denied, false, said("allow it in the ACL of this user"))
        }
        "WRONGTYPE" => (ErrorKind::ForeignKind, false, said("use another lock name")),
        "LOADING" | "BUSY" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS"
        | "MISCONF" => (ErrorKind::Server, true, said("it may pass; wait longer or look at the server")),
        "OOM" => {
            (ErrorKind::Server, false, said("the server is out of memory; raise maxmemory or free some"))
        }
        _ => (ErrorKind::Server, false, said("look at the server")),
    };
    (Error::new(kind, text), passing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire() -> Op {
        Op::Acquire {
            name: Name::from("orders"),
            owner: 7,
            count: 1,
            lease: Duration::from_micros(30_000_001),
            fencing: Fencing::Expiring,
        }
    }

    fn int(number: i64) -> Value {
        Value::Int(number)
    }

    #[test]
    fn an_acquire_is_written_with_its_token_key_and_not_after() {
        let call = Call::new(&acquire(), "uuid", 99);
        assert_eq!(call.keys, ["orders", "redisson_lock_token:{orders}"]);
        assert_eq!(call.args, ["30001", "uuid:7", "1", "99", "90000000"]);
    }

    #[test]
    fn only_a_partial_release_has_a_not_after() {
        let release = |remaining| Op::Release {
            name: Name::from("n"),
            owner: 1,
            remaining,
            ttl: Duration::from_secs(1),
        };
        assert_eq!(
            Call::new(&release(0), "u", 5).args,
            ["u:1", "0", "1000", "0", "PUBLISH", "redisson_lock__channel:{n}"]
        );
        assert_eq!(Call::new(&release(2), "u", 5).args[3], "5");
    }

    #[test]
    fn replies_are_read_and_other_shapes_refused() {
        let reply =
            |values: Vec<Value>| decode(&acquire(), Value::Array(values)).map_err(|error| error.kind());
        let token = Value::BulkString(b"12".to_vec());
        let acquired = Reply::Acquired { ttl: Duration::from_millis(9), token: Some(12) };
        assert_eq!(reply(vec![int(5), int(1), int(9), token]), Ok((5, acquired)));
        assert_eq!(reply(vec![int(5), int(2), int(-1)]), Ok((5, Reply::Busy { ttl: None })));
        assert_eq!(reply(vec![int(5), int(6)]), Ok((5, Reply::Stale)));
        for bad in
            [vec![], vec![int(5)], vec![int(-5), int(6)], vec![int(5), int(42)], vec![Value::Nil, int(1)]]
        {
            assert_eq!(reply(bad), Err(ErrorKind::Server));
        }
        assert!(decode(&acquire(), Value::Okay).is_err());
        assert!(decode(&Op::Renew { holds: Vec::new() }, Value::Array(vec![int(1), int(1)])).is_err());
    }

    #[test]
    fn error_replies_are_sorted_by_what_to_do() {
        let sorted = |code, detail| {
            let (error, passing) = refusal(code, detail);
            (error.kind(), passing)
        };
        assert_eq!(sorted("LOADING", ""), (ErrorKind::Server, true));
        assert_eq!(sorted("OOM", ""), (ErrorKind::Server, false));
        assert_eq!(sorted("WRONGPASS", ""), (ErrorKind::Auth, false));
        assert_eq!(
            sorted("ERR", "The user executing the script can't run this command"),
            (ErrorKind::Denied, false)
        );
        assert_eq!(sorted("WRONGTYPE", ""), (ErrorKind::ForeignKind, false));
    }
}
