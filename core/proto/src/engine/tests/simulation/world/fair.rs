//! Fair locks and semaphores: places in queues, and turns.

use super::*;

impl World {
    /// Nobody stays in a queue who does not wait any more.
    pub(super) fn check_places(&mut self) {
        let mut wrong = None;
        let now_ms = self.server.now_ms();
        let places = self.server.queues.iter();
        for (name, place) in places.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
            let (uuid, owner) = place.owner;
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let client = self.clients.iter().find(lives);
            let is_ghost = client.is_some_and(|client| !client.engine.wants(owner));
            // A clock that goes back runs copies that should be stale.
            let excused = self.has_jumped
                || self.is_excused(place.owner)
                || self.revived.contains(&place.owner);
            if !is_ghost || place.due_ms <= now_ms || excused {
                continue;
            }
            let since = *self.ghosts.entry(place.owner).or_insert(self.time);
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) {
                wrong = Some(format!("{name}: {place:?} stays since {since}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }
}
