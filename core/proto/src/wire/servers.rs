//! The names of one key on several servers that know nothing of each other.
//!
//! The engine keeps such a key apart by server, as `orders:42 at 10.0.0.7:6379`. The text behind the last
//! ` at ` is the server, which no error or event has to explain. On the wire the key has its own name.

use super::ids::Name;
use super::op::Op;

const AT: &str = " at ";

/// The name that a key has in the engine.
pub fn name_at(key: &str, server: &str) -> Name {
    [key, AT, server].concat().into()
}

/// How many of a quorum's servers are most of them.
pub fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The key and the server of such a name. A name without a server is all key.
pub fn key_and_server(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(AT) {
        Some((key, server)) => (key, Some(server)),
        None => (name, None),
    }
}

/// The same call as it goes to the server of its names.
pub fn op_at_server(op: &Op) -> Op {
    op.clone().renamed(key)
}

/// The server of the names of a call.
pub fn server_of(op: &Op) -> Option<&str> {
    let name = match op {
        Op::Renew { holds } => holds.first().map(|hold| &hold.name),
        one => one.name(),
    };
    key_and_server(name?).1
}

fn key(name: &Name) -> Name {
    key_and_server(name).0.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    #[test]
    fn a_name_has_its_key_and_its_server() {
        let name = name_at("lunch at noon", "10.0.0.7:6379");
        assert_eq!(&*name, "lunch at noon at 10.0.0.7:6379");
        assert_eq!(
            key_and_server(&name),
            ("lunch at noon", Some("10.0.0.7:6379"))
        );
        let op = Op::Force {
            name,
            kind: Kind::Reentrant,
        };
        assert_eq!(
            op_at_server(&op).name().map(|name| &**name),
            Some("lunch at noon")
        );
    }
}
