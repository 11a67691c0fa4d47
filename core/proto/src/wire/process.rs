//! The name that a client gives its connections (`CLIENT SETNAME`). With `CLIENT LIST` it leads from
//! the owner of a lock to the process that holds it, without a key or a command per lock.

use std::fmt;

/// The process of a client, as the names of its connections tell it. In Redis such a name is
/// `<client name>;id=<uuid>;lang=<language>;pid=<number>;host=<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// The option `client_name`.
    pub client_name: String,
    /// With this the owners of the client begin (`Client::id`).
    pub id: String,
    /// The language of the program: `rust`, `python`, `node`, `c`, `cli`.
    pub language: String,
    /// The process id. Containers number their processes separately.
    pub pid: u32,
    /// The name of the machine or container; empty if it cannot be told.
    pub host: String,
}

impl Process {
    pub fn new(client_name: &str, id: &str, language: &str, pid: u32, host: &str) -> Self {
        // The server accepts printable ASCII characters only. A semicolon would end the part.
        let host = host
            .chars()
            .filter(|char| char.is_ascii_graphic() && *char != ';')
            .collect();
        Process {
            client_name: client_name.to_owned(),
            id: id.to_owned(),
            language: language.to_owned(),
            pid,
            host,
        }
    }

    /// Reads the name of a connection; `None` if no client of redlatch has set it.
    pub fn parse(text: &str) -> Option<Self> {
        // From the right: the client name may contain anything.
        let mut parts = text.rsplitn(5, ';');
        let mut part = |name| parts.next()?.strip_prefix(name);
        let (host, pid) = (part("host=")?, part("pid=")?);
        let (language, id) = (part("lang=")?, part("id=")?);
        let client_name = parts.next()?;
        // A shorter id would fit the owners of others.
        let lengths = id.split('-').map(str::len);
        if !lengths.eq([8, 4, 4, 4]) {
            return None;
        }
        Some(Process {
            client_name: client_name.to_owned(),
            id: id.to_owned(),
            language: language.to_owned(),
            pid: pid.parse().ok()?,
            host: host.to_owned(),
        })
    }

    /// Whether this is a connection of the client that draws this owner. The kind `article` writes
    /// a uuid without its hyphens. The id of a permit has only the first 12 digits of it.
    pub fn draws(&self, owner: &str) -> bool {
        fn digits(text: &str) -> impl Iterator<Item = u8> {
            text.bytes().filter(|byte| *byte != b'-')
        }
        let is_permit = owner.len() == 32 && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
        let compared = if is_permit { 12 } else { usize::MAX };
        let mut owner = digits(owner);
        digits(&self.id)
            .take(compared)
            .all(|digit| owner.next() == Some(digit))
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process {
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
        let ours = Process::new("shop;id=2", ID, "rust", 7, "ho;st 1");
        assert!(ours.to_string().chars().all(|char| char.is_ascii_graphic()));
        assert_eq!(Process::parse(&ours.to_string()), Some(ours.clone()));
        assert_eq!((ours.pid, &*ours.host), (7, "host1"));
        assert!(ours.draws(&format!("{ID}-3d2b1a0f9c8e:7")));
        assert!(ours.draws(&format!("{}3d2b1a0f9c8e-7", ID.replace('-', ""))));
        assert!(ours.draws("0b0e6f2a8d1c3d2b1a0f9c8e00070000"));
        assert!(!ours.draws("0b0e6f2a8d1d3d2b1a0f9c8e00070000"));
        assert!(!ours.draws("1b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:7"));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for other in ["", "redlatch", "a;b=c", "x;id=1;lang=c;pid=many;host=h"] {
            assert_eq!(Process::parse(other), None, "{other:?}");
        }
        assert_eq!(Process::parse("x;id=0b0e6f2a;lang=c;pid=1;host=h"), None);
    }
}
