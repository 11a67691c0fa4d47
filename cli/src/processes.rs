//! The processes behind the owners of locks, over all primaries.

use redlatch::embed::{Inspector, Processes};

use crate::failure::Failure;
use crate::held::Held;
use crate::reply::text;

/// Asks all primaries. A server that refuses `CLIENT LIST` shows no process.
pub(crate) fn read(inspector: &mut Inspector) -> Result<Processes, Failure> {
    let mut processes = Processes::default();
    for node in 0..inspector.nodes().len() {
        let replies = inspector.ask(node, &[vec!["CLIENT", "LIST"]])?;
        let list = replies.into_iter().next().and_then(Result::ok);
        processes.add(&list.map(text).unwrap_or_default());
    }
    Ok(processes)
}

/// Fills in the processes of the owners.
pub(crate) fn fill(processes: &Processes, held: &mut Held) {
    for owner in &mut held.owners {
        owner.process = processes.of(&owner.name).cloned();
    }
}
