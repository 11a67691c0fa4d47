//! The processes behind the owners of locks: `CLIENT LIST` shows the names of their connections.

use std::collections::BTreeMap;

use redlatch::Process;
use redlatch::embed::Inspector;

use crate::failure::Failure;
use crate::held::Held;
use crate::reply::text;

/// The clients of redlatch that are connected.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// By client id. Copies of one process, from a snapshot, have one id: then nobody can tell which
    /// of them holds the lock.
    by_id: BTreeMap<String, Vec<Process>>,
}

impl Processes {
    /// Asks all primaries. A server that refuses `CLIENT LIST` shows no process.
    pub(crate) fn read(inspector: &mut Inspector) -> Result<Self, Failure> {
        let mut processes = Processes::default();
        for node in 0..inspector.nodes().len() {
            let replies = inspector.ask(node, &[vec!["CLIENT", "LIST"]])?;
            let list = replies.into_iter().next().and_then(Result::ok);
            for line in list.map(text).unwrap_or_default().lines() {
                processes.add(line);
            }
        }
        Ok(processes)
    }

    /// Adds a line of `CLIENT LIST`.
    fn add(&mut self, line: &str) {
        let name = line
            .split(' ')
            .find_map(|field| field.strip_prefix("name="));
        let Some(found) = name.and_then(Process::parse) else {
            return;
        };
        let known = self.by_id.entry(found.id.clone()).or_default();
        if !known.contains(&found) {
            known.push(found);
        }
    }

    /// Fills in the processes of the owners.
    pub(crate) fn fill(&self, held: &mut Held) {
        for owner in &mut held.owners {
            // Every uuid is as long as every other, so at most one id fits.
            let mut fitting = self
                .by_id
                .values()
                .flatten()
                .filter(|name| name.draws(&owner.name));
            owner.process = match (fitting.next(), fitting.next()) {
                (Some(only), None) => Some(only.clone()),
                _ => None,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::Owner;

    fn held_by(owner: &str) -> Held {
        Held {
            name: "n".to_owned(),
            kind: "reentrant",
            owners: vec![Owner::new(owner.to_owned(), 1)],
            remaining: None,
            more: false,
            waiting: None,
            permits: None,
        }
    }

    #[test]
    fn copies_of_a_process_cannot_be_told_apart() {
        let mut processes = Processes::default();
        let name = |host: &str| {
            format!(
                "id=7 addr=1:2 name=shop;id=0b0e6f2a-8d1c-4c7a-9e55;lang=c;pid=9;host={host} age=1"
            )
        };
        processes.add(&name("one"));
        processes.add(&name("one"));
        processes.add("id=8 name= age=2");
        let mut held = held_by("0b0e6f2a-8d1c-4c7a-9e55-3d2b1a0f9c8e:1");
        processes.fill(&mut held);
        let found = held.owners[0]
            .process
            .as_ref()
            .map(|process| process.host.as_str());
        assert_eq!(found, Some("one"));
        processes.add(&name("two"));
        processes.fill(&mut held);
        assert_eq!(held.owners[0].process, None);
        let mut other = held_by("0b0e6f2b-8d1c-4c7a-9e55-3d2b1a0f9c8e:1");
        processes.fill(&mut other);
        assert_eq!(other.owners[0].process, None);
    }
}
