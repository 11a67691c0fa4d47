//! What callers do, and the answers that they get.

use super::*;

impl World {
    /// Many callers act at the same moment.
    pub(super) fn rush(&mut self, place: usize) {
        let pause = self.random.between(1000, 100_000);
        self.later(pause, Event::Rush(place));
        let count = self.clients[place].callers.len();
        let (first, many) = (
            self.random.index(count),
            self.random.pick(&[1, 8, 64]).min(count),
        );
        (first..first + many).for_each(|caller| self.act_once(place, caller % count));
    }

    pub(super) fn act(&mut self, place: usize, caller: usize) {
        let pause = self
            .random
            .between(1000, if self.hurried { 20_000 } else { 250_000 });
        let next = self.time + pause;
        let next = if self.bursts {
            next.next_multiple_of(BURST)
        } else {
            next
        };
        self.at(next, Event::Act(place, caller));
        self.act_once(place, caller);
    }

    pub(super) fn act_once(&mut self, place: usize, caller: usize) {
        self.last_uuid += 1;
        let value = |(name, lock): (&Name, &Lock)| Some((name.clone(), lock.value.clone()?));
        let token = self.server.locks.iter().find_map(value);
        let (random, names) = (&mut self.random, &self.names);
        let deed = self.clients[place].callers[caller].deed(random, names, self.last_uuid, token);
        self.do_deed(place, caller, deed);
    }

    pub(super) fn give_back(&mut self, place: usize, caller: usize) {
        let deed = self.clients[place].callers[caller].give_back(&mut self.random);
        self.do_deed(place, caller, deed);
    }

    pub(super) fn do_deed(&mut self, place: usize, caller: usize, deed: Deed) {
        let uuid = self.clients[place].uuid;
        match deed {
            Deed::Ask(request) => drop(self.ask(place, caller, request)),
            Deed::Tell(input) => self.input(uuid, input),
            Deed::Nothing => {}
        }
    }

    pub(super) fn ask(&mut self, place: usize, caller: usize, request: Request) -> RequestId {
        let client = &mut self.clients[place];
        client.last_request += 1;
        let id = client.last_request;
        client.asked.insert(id, caller);
        client.renewals.requests += 1;
        client.callers[caller].asked.push(id);
        let uuid = client.uuid;
        if let Request::Acquire {
            name, key, terms, ..
        } = &request
        {
            let engine = &client.engine;
            let has = |side| {
                let hold = engine.names.hold_of(&engine.holds, name, *key, side);
                hold.is_some()
            };
            if has(Side::Write) || terms.kind == Kind::Read && has(Side::Read) {
                self.reentering.insert((uuid, id));
            }
        }
        if matches!(&request, Request::Acquire { .. }) {
            self.asked_at.insert((uuid, id), self.time);
        }
        if matches!(&request, Request::Acquire { terms, .. } if terms.replicas > 0) {
            self.wants_replica.insert((uuid, id));
        }
        if matches!(&request, Request::Acquire { wait, .. } if *wait != Some(Duration::ZERO)) {
            self.patient.insert((uuid, id));
        }
        if let Request::Acquire {
            name, wait, terms, ..
        } = &request
        {
            let queues = terms.kind.takes_permits() || terms.kind == Kind::Fair;
            if *wait == Some(Duration::ZERO)
                && !terms.special.steal
                && !queues
                && self.is_free(name)
            {
                self.free_tries.insert((uuid, id), name.clone());
            }
        }
        self.take_direct(place, id);
        let released = match &request {
            Request::Release(Target::Level { owner, .. }) => Some((uuid, *owner)),
            _ => None,
        };
        let before = released.and_then(|hold| self.passed.get(&hold).copied());
        self.input(uuid, Input::Request { id, request });
        if let Some((_, owner)) = released.filter(|hold| self.passed.get(hold).copied() != before) {
            self.releases.insert((uuid, id), (owner, self.time));
        }
        id
    }

    pub(super) fn completed(&mut self, place: usize, id: RequestId, result: Answer<Done>) {
        let client = &mut self.clients[place];
        client.stand_back.remove(&id);
        let Some(at) = client.asked.remove(&id) else {
            return self.fail(format!("request {id} was answered twice, or never made"));
        };
        let (uuid, now) = (client.uuid, client.local(self.time));
        let caller = &mut client.callers[at];
        caller.asked.retain(|asked| *asked != id);
        let release = self.releases.remove(&(uuid, id));
        let asked_at = self.asked_at.remove(&(uuid, id)).unwrap_or_default();
        let free_try = self.free_tries.remove(&(uuid, id));
        match result {
            Ok(Done::Granted { cell, level }) if cell.kind.is_several() => {
                caller.granted(cell.clone(), level);
                self.granted_all(place, &cell);
                if self.hurried {
                    let pause = self.random.between(10, 3000);
                    self.later(pause, Event::GiveBack(place, at));
                }
            }
            Ok(Done::Granted { cell, level }) => {
                caller.granted(cell.clone(), level);
                client.renewals.last.entry(cell.owner).or_insert(now);
                if !client.cells.iter().any(|known| Arc::ptr_eq(known, &cell)) {
                    // A writer that asks to read waits for no other writer, also when it has lost its
                    // lock while its call was in flight.
                    let is_writer = self.under.contains(&(uuid, cell.owner));
                    // A re-entry whose hold ends meanwhile goes to the end of the queue.
                    let waits = |writer: &RequestId| !self.reentering.contains(&(uuid, *writer));
                    let overtaken = client.engine.overtaken(id, &cell).filter(waits);
                    // It may enter the hold that a multi lock of its key has as a part, or had.
                    let reenters = self.reentering.contains(&(uuid, id));
                    let entered = self.entered.contains(&(uuid, cell.owner));
                    let is_first = !entered && !reenters;
                    if let Some(writer) = overtaken.filter(|_| !is_writer && is_first) {
                        let text = format!("{cell:?} of {id} overtakes the writer {writer}");
                        self.wrong.get_or_insert(text);
                    }
                    let patient = self.patient.contains(&(uuid, id));
                    if let Some(before) = client.engine.before(id, &cell).filter(|_| patient) {
                        let text = format!("{cell:?} of {id} overtakes {before}");
                        self.wrong.get_or_insert(text);
                    }
                    if caller_before(client, &cell) {
                        *self.passed.entry((uuid, cell.owner)).or_default() += 1;
                    } else {
                        self.won.insert((uuid, cell.owner), self.time);
                    }
                    client.cells.push(cell.clone());
                    self.check_order(&cell, asked_at);
                    if self.wants_replica.contains(&(uuid, id)) {
                        self.replicated.insert((uuid, cell.owner));
                    }
                    self.check_token(uuid, &cell);
                }
                if !cell.is_held(now) {
                    self.fail(format!("{cell:?} was granted and is not held"));
                }
                if self.hurried {
                    let pause = self.random.between(10, 3000);
                    self.later(pause, Event::GiveBack(place, at));
                }
            }
            Ok(Done::Released) => self.check_release(uuid, release),
            Ok(Done::Closed(names)) => self.closed(place, names),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Internal => self.fail(error.to_string()),
            Err(error) if error.kind() == ErrorKind::Timeout => {
                if let Some(name) = free_try.filter(|name| self.is_free(name)) {
                    self.fail(format!("{id} of {uuid} was refused {name}, which was free"));
                }
            }
            Err(_) => {}
        }
    }

    /// Checks what closing could not release: what the server refuses, and what it waited for in
    /// vain. The process ends with these locks, as one that dies.
    pub(super) fn closed(&mut self, place: usize, mut unreleased: Vec<Name>) {
        unreleased.retain(|name| Some(name) != self.denied.as_ref());
        let client = &self.clients[place];
        let now = client.local(self.time);
        let early: Vec<&Name> = unreleased
            .iter()
            .filter(|name| !client.may_leave(&self.names, name, now))
            .collect();
        if !early.is_empty() {
            return self.fail(format!("not released: {early:?}"));
        }
        if !unreleased.is_empty() {
            self.note_legacies(place);
            self.clients[place].unreleased = unreleased;
        }
    }

    /// Checks that a release after a hand-over is not confirmed if the lock was gone before. The
    /// effect of an unanswered copy cannot be known.
    pub(super) fn check_release(&mut self, uuid: Uuid, release: Option<(OwnerId, u64)>) {
        let Some((owner, asked)) = release.filter(|(_, asked)| self.disturbed < *asked) else {
            return;
        };
        let won = self.won.get(&(uuid, owner)).copied().unwrap_or_default();
        if let Some(gone) = self
            .bereaved
            .get(&(uuid, owner))
            .filter(|gone| (won..asked).contains(*gone))
        {
            let text = format!(
                "{uuid} was told that {owner} was released, which was gone {} us before",
                asked - gone
            );
            self.fail(text);
        }
    }

    /// Checks that tokens grow from grant to grant, except for grants known to be void.
    pub(super) fn check_token(&mut self, uuid: Uuid, cell: &Arc<HoldCell>) {
        let Some(token) = cell.token() else {
            return;
        };
        let highest = self.highest_token.entry(cell.name.clone()).or_default();
        // A replica that took over may have brought a lock back. To the server, a copy of another try with the
        // caller's own value is its holder.
        let value = cell.form().token;
        let value = value.map(|value| (cell.name.clone(), value, token));
        let is_back = value.is_some_and(|value| self.brought_back.contains(&value));
        if token <= *highest && !is_back && !self.bereaved.contains_key(&(uuid, cell.owner)) {
            let text = format!("{cell:?}: token {token} after {highest}");
            return self.fail(text);
        }
        *highest = token.max(*highest);
    }

    /// Checks the reason of a loss: without faults and strangers only three reasons are possible.
    pub(super) fn lost(&mut self, cell: &Arc<HoldCell>, reason: LostReason) {
        let usual = matches!(
            reason,
            LostReason::Expired | LostReason::Forced | LostReason::Closed
        );
        let is_it = |owner: OwnerId| {
            owner == cell.owner || cell.parts().iter().any(|part| part.owner == owner)
        };
        let place = self.clients.iter().position(|client| {
            let mut wholes = client.callers.iter().flat_map(Caller::wholes);
            wholes.any(|whole| Arc::ptr_eq(whole, cell))
        });
        if let Some(now) = place.map(|place| self.clients[place].local(self.time)) {
            let held = cell.parts().iter().filter(|part| part.is_held(now));
            if held.count() >= cell.needed() {
                self.fail(format!("{cell:?} is lost and has enough parts"));
            }
        }
        let by_force = self.bereaved.keys().any(|(_, owner)| is_it(*owner));
        if !usual && !by_force && self.disturbed == 0 {
            self.fail(format!("{cell:?} was lost: {reason}"));
        }
    }
}
