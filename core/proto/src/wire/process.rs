//! The name that a client gives its connections (`CLIENT SETNAME`). With `CLIENT LIST` it leads from
//! the owner of a lock to the process that holds it, without a key or a command per lock.

use std::collections::BTreeMap;
use std::fmt;

/// The process of a client, as the names of its connections tell it. In Redis such a name is
/// `<client name>;id=<uuid>;lang=<language>;pid=<number>;host=<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    fn parse(text: &str) -> Option<Self> {
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
        Some(Process {
            client_name: client_name.to_owned(),
            id: id.to_owned(),
            language: language.to_owned(),
            pid: pid.parse().ok()?,
            host: host.to_owned(),
        })
    }

    /// Whether this is a connection of the client that draws this owner. The kind `article` writes
    /// a uuid without its hyphens.
    fn draws(&self, owner: &str) -> bool {
        owner.starts_with(&self.id) || owner.starts_with(&self.id.replace('-', ""))
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

/// The clients of redlatch that are connected to servers.
#[derive(Debug, Default)]
pub struct Processes {
    /// By client id. Copies of one process, from a snapshot, have one id: then nobody can tell which
    /// of them holds the lock.
    by_id: BTreeMap<String, Vec<Process>>,
}

impl Processes {
    /// Adds those in an answer to `CLIENT LIST`: a line for each connection.
    pub fn add(&mut self, list: &str) {
        for line in list.lines() {
            let name = line
                .split(' ')
                .find_map(|field| field.strip_prefix("name="));
            let Some(found) = name.and_then(Process::parse) else {
                continue;
            };
            let known = self.by_id.entry(found.id.clone()).or_default();
            if !known.contains(&found) {
                known.push(found);
            }
        }
    }

    /// The process of an owner; `None` if it has no connection here or cannot be told from another.
    pub fn of(&self, owner: &str) -> Option<&Process> {
        // Every uuid is as long as every other, so at most one id fits.
        let mut fitting = self
            .by_id
            .values()
            .flatten()
            .filter(|process| process.draws(owner));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
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
        assert!(!ours.draws("1b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:7"));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        for other in ["", "redlatch", "a;b=c", "x;id=1;lang=c;pid=many;host=h"] {
            assert_eq!(Process::parse(other), None, "{other:?}");
        }
        assert_eq!(Process::parse("x;id=0b0e6f2a;lang=c;pid=1;host=h"), None);
    }

    #[test]
    fn copies_of_a_process_cannot_be_told_apart() {
        let line = |host: &str| {
            format!("id=7 addr=1:2 name=shop;id={ID};lang=c;pid=9;host={host} age=1\n")
        };
        let mut processes = Processes::default();
        processes.add(&(line("one") + "id=8 name= age=2\n" + &line("one")));
        let host = |processes: &Processes, owner: &str| {
            processes.of(owner).map(|process| process.host.clone())
        };
        let owner = format!("{ID}-3d2b1a0f9c8e:1");
        assert_eq!(host(&processes, &owner).as_deref(), Some("one"));
        assert_eq!(
            host(&processes, "0b0e6f2b-8d1c-4c7a-9e55-3d2b1a0f9c8e:1"),
            None
        );
        processes.add(&line("two"));
        assert_eq!(host(&processes, &owner), None);
    }
}
