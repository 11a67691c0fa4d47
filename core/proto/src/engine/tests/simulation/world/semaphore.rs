//! Semaphores.

use super::*;

impl World {
    /// A caller in fair mode was granted what it asked for at this time. The owners that had a place by
    /// then came before it, and have it no more.
    pub(super) fn check_order(&mut self, cell: &HoldCell, asked_at: u64) {
        if cell.kind != Kind::FairSemaphore {
            return;
        }
        let now_ms = self.server.now_ms();
        let queue = self.server.queues.get(&cell.name);
        let overtaken = queue.into_iter().flatten().find(|place| {
            // A replica that takes over may bring a place back.
            let waits = place.since < asked_at && place.due_ms > now_ms;
            waits && !self.revived.contains(&place.owner)
        });
        if let Some(place) = overtaken {
            let text = format!("{cell:?}, asked for at {asked_at}, overtakes {place:?}");
            self.wrong.get_or_insert(text);
        }
    }

    /// No more permits are out than there are: by the record of the server, and as holders believe
    /// who have not lost them to a fail-over, to a jump of the clock or to somebody else.
    pub(super) fn check_permits(&mut self) {
        let (mut wrong, limit) = (None, i64::from(LIMIT));
        for (name, semaphore) in &self.server.semaphores {
            let Semaphore { free, taken } = semaphore;
            let sum = semaphore.sum();
            if free.is_some_and(|free| free < 0 || free + sum != limit) || sum > limit {
                wrong = Some(format!("{name}: {free:?} are free beside {taken:?}"));
            }
            let mut believed = Vec::new();
            for client in &self.clients {
                let now = client.local(self.time);
                let held = client.cells.iter().filter(|cell| {
                    let me = (client.uuid, cell.owner);
                    let excused = self.bereaved.contains_key(&me) || self.jumped.contains(&me);
                    cell.name == *name && cell.is_held(now) && !excused
                });
                believed.extend(held.map(|cell| (client.uuid, cell)));
            }
            let permits = believed
                .iter()
                .map(|(_, cell)| i64::from(cell.form().permits));
            if permits.sum::<i64>() > limit {
                wrong = Some(format!("{name}: too many are out: {believed:?}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }
}
