//! The name that a client gives its connections (`CLIENT SETNAME`). With `CLIENT LIST` it leads from
//! the owner of a lock to the process that holds it, without a key or a command per lock.

use std::fmt;

use crate::sys;

/// The parts of the name of a connection. In Redis it is
/// `<client name>;id=<uuid>;lang=<language>;pid=<number>;host=<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionName {
    /// The option `client_name`.
    pub client_name: String,
    /// With this the owners of the client begin: [`Client::id`](crate::Client::id).
    pub id: String,
    /// The language of the program: `rust`, `python`, `node`, `c`, `cli`.
    pub language: String,
    /// The process id. Containers number their processes separately.
    pub pid: u32,
    /// The name of the machine or container; empty if it cannot be told.
    pub host: String,
}

impl ConnectionName {
    /// The name for connections of this process.
    pub(crate) fn here(client_name: &str, id: &str, language: &str) -> Self {
        let (pid, host) = (std::process::id(), sys::host_name());
        Self::of(client_name, id, language, pid, &host)
    }

    /// The name for connections of a process.
    pub(crate) fn of(client_name: &str, id: &str, language: &str, pid: u32, host: &str) -> Self {
        // The server accepts printable ASCII characters only. A semicolon would end the part.
        let host = host
            .chars()
            .filter(|char| char.is_ascii_graphic() && *char != ';')
            .collect();
        ConnectionName {
            client_name: client_name.to_owned(),
            id: id.to_owned(),
            language: language.to_owned(),
            pid,
            host,
        }
    }

    /// Reads a name that `CLIENT LIST` shows; `None` if no client of redlatch has set it.
    pub fn parse(text: &str) -> Option<Self> {
        // From the right: the client name may contain anything.
        let (text, host) = text.rsplit_once(";host=")?;
        let (text, pid) = text.rsplit_once(";pid=")?;
        let (text, language) = text.rsplit_once(";lang=")?;
        let (client_name, id) = text.rsplit_once(";id=")?;
        // A shorter id would fit the owners of others.
        let lengths = id.split('-').map(str::len);
        if !lengths.eq([8, 4, 4, 4]) {
            return None;
        }
        Some(ConnectionName {
            client_name: client_name.to_owned(),
            id: id.to_owned(),
            language: language.to_owned(),
            pid: pid.parse().ok()?,
            host: host.to_owned(),
        })
    }

    /// Whether this is a connection of the client that draws this owner. The kind `article` writes
    /// a uuid without its hyphens.
    pub fn draws(&self, owner: &str) -> bool {
        owner.starts_with(&self.id) || owner.starts_with(&self.id.replace('-', ""))
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionName {
            client_name,
            id,
            language,
            pid,
            host,
        } = self;
        write!(
            f,
            "{client_name};id={id};lang={language};pid={pid};host={host}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0b0e6f2a-8d1c-4c7a-9e55";

    #[test]
    fn a_name_can_be_read_again() {
        let ours = ConnectionName::here("shop;id=2", ID, "rust");
        assert!(ours.to_string().chars().all(|char| char.is_ascii_graphic()));
        assert_eq!(ConnectionName::parse(&ours.to_string()), Some(ours.clone()));
        assert_eq!(ours.pid, std::process::id());
        assert!(ours.draws(&format!("{ID}-3d2b1a0f9c8e:7")));
        assert!(ours.draws(&format!("{}3d2b1a0f9c8e-7", ID.replace('-', ""))));
        assert!(!ours.draws("1b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:7"));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for other in ["", "redlatch", "a;b=c", "x;id=1;lang=c;pid=many;host=h"] {
            assert_eq!(ConnectionName::parse(other), None, "{other:?}");
        }
        assert_eq!(
            ConnectionName::parse("x;id=0b0e6f2a;lang=c;pid=1;host=h"),
            None
        );
    }
}
