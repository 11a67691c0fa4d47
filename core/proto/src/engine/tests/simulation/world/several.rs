//! Locks that are made of several holds.

use super::*;

impl World {
    /// A multi lock was granted: its caller relies on each part.
    pub(super) fn granted_all(&mut self, place: usize, cell: &Arc<HoldCell>) {
        let client = &mut self.clients[place];
        let (uuid, now) = (client.uuid, client.local(self.time));
        if cell.parts().is_empty() || !cell.is_held(now) {
            return self.fail(format!("{cell:?} was granted and is not held"));
        }
        self.counts.together += 1;
        for part in cell.parts() {
            let client = &mut self.clients[place];
            client.renewals.last.entry(part.owner).or_insert(now);
            if client.cells.iter().any(|known| Arc::ptr_eq(known, part)) {
                continue;
            }
            if caller_before(client, part) {
                *self.passed.entry((uuid, part.owner)).or_default() += 1;
            } else {
                self.won.insert((uuid, part.owner), self.time);
            }
            client.cells.push(part.clone());
            self.check_token(uuid, part);
        }
    }

    /// A multi lock with a lost part, or a quorum with too many of them, is told to be lost.
    pub(super) fn check_wholes(&mut self) {
        let mut wrong = None;
        let callers = self.clients.iter().flat_map(|client| &client.callers);
        for cell in callers.flat_map(Caller::wholes) {
            let live = cell.parts().iter();
            let live = live.filter(|part| part.told_lost().is_none()).count();
            if live < cell.needed() && cell.told_lost().is_none() {
                wrong = Some(format!("{cell:?} has lost too many parts and is not lost"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }
}
