//! The promises that are checked after every step.

use super::*;

impl World {
    pub(super) fn fail(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    pub(super) fn check(&mut self) -> Result<(), String> {
        self.check_holds();
        self.check_wholes();
        self.check_counts();
        self.check_sides();
        self.check_permits();
        self.check_ghosts();
        self.check_places();
        self.check_marks();
        self.check_waiters();
        self.check_tries();
        self.check_renewals();
        self.check_turns();
        self.check_calls();
        self.check_looks();
        self.check_closing();
        match self.wrong.take() {
            Some(wrong) => {
                self.note(|| wrong.clone());
                Err(wrong)
            }
            None => Ok(()),
        }
    }

    /// Whether nobody has this lock, and no writer keeps readers back.
    pub(super) fn is_free(&self, name: &Name) -> bool {
        let server = &self.server;
        let has = server.locks.contains_key(name) || server.shared.contains_key(name);
        !has && server.marked_until(name).is_none()
    }

    /// Looks which tries have seen their lock taken.
    pub(super) fn check_tries(&mut self) {
        let mut tries = std::mem::take(&mut self.free_tries);
        tries.retain(|_, name| self.is_free(name));
        self.free_tries = tries;
    }

    /// Every lock that a client reports as held is held on the server.
    pub(super) fn check_holds(&mut self) {
        let mut wrong = None;
        for client in &mut self.clients {
            let now = client.local(self.time);
            let let_go = &mut client.let_go;
            client.cells.retain(|cell| {
                let is_kept = cell.is_held(now) || cell.count() > 0;
                if !is_kept {
                    let_go.entry(cell.owner).or_insert(now);
                }
                is_kept
            });
            let holds = &client.engine.holds;
            let_go.retain(|owner, _| {
                let hold = holds.get(owner);
                hold.is_some_and(|hold| hold.tasks().next().is_some())
            });
            for cell in client.cells.iter().filter(|cell| cell.is_held(now)) {
                let me = (client.uuid, cell.owner);
                let lock = self.server.lock_of(&cell.name, me);
                if lock.is_some() || self.jumped.contains(&me) {
                    continue;
                }
                match self.bereaved.get(&me) {
                    None => {
                        wrong = Some(format!(
                            "{} calls {cell:?} held; the server has {:?} {:?}",
                            client.uuid,
                            self.server.locks.get(&cell.name),
                            self.server.shared.get(&cell.name)
                        ))
                    }
                    Some(since)
                        if client.tracks
                            && !self.tenants
                            && !self.own_copies.contains(&me)
                            && (!cell.kind.takes_permits()
                                || client.engine.renewed_lease(cell.owner).is_some())
                            && self.time
                                > *since.max(&self.disturbed)
                                    + allowed(self.told_within, &cell.name)
                                    + if cell.kind.is_shared() {
                                        TOLD_READER
                                    } else {
                                        0
                                    }
                                    // Two renewals in a row came too late.
                                    + if holds.get(&cell.owner).is_some_and(|hold| hold.stale) {
                                        AGAIN
                                    } else {
                                        0
                                    } =>
                    {
                        wrong = Some(format!("{} was not told of {cell:?}", client.uuid));
                    }
                    Some(_) => {}
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// The server's count is the number of levels.
    pub(super) fn check_counts(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner.filter(|me| !self.is_excused(*me)) else {
                continue;
            };
            let client = self.clients.iter().find(|client| client.uuid == uuid);
            match client.and_then(|client| client.engine.settled_count(owner)) {
                Some(count) if count != lock.count => {
                    wrong = Some(format!("{name}: {lock:?} has {count} levels"));
                }
                _ => {}
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    pub(super) fn is_excused(&self, me: (Uuid, OwnerId)) -> bool {
        self.excused.contains(&me) || self.jumped.contains(&me)
    }

    /// While nothing is wrong, the watchdog never lets a lock come near its expiry.
    pub(super) fn check_renewals(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner.filter(|me| !self.jumped.contains(me)) else {
                continue;
            };
            let client = self.clients.iter().find(|client| client.uuid == uuid);
            let Some(lease) = client.and_then(|client| client.engine.renewed_lease(owner)) else {
                continue;
            };
            let calm = self.time.saturating_sub(self.disturbed)
                > u64::try_from(lease.as_micros()).unwrap();
            if calm && self.server.left(name, lock) < least(name, lease) {
                wrong = Some(format!("{name}: {lock:?} is not renewed in time"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client hands a lock to its own waiters for longer than allowed.
    pub(super) fn check_turns(&mut self) {
        let passed = |lock: &Lock| {
            lock.owner
                .and_then(|me| self.passed.get(&me))
                .copied()
                .unwrap_or(0)
        };
        let greedy = self
            .server
            .locks
            .iter()
            .find(|(_, lock)| lock.handovers + passed(lock) > HANDOVERS);
        let wrong = greedy.map(|(name, lock)| format!("{name}: {lock:?} is not given to others"));
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// Every call has its outcome in time.
    pub(super) fn check_calls(&mut self) {
        let mut wrong = None;
        for client in &self.clients {
            let running = self.time.saturating_sub(ROUNDING);
            if client.stopped_until >= running {
                continue;
            }
            let now = client.local(running);
            let traffic = client
                .connections
                .iter()
                .filter_map(|connection| connection.traffic.as_ref());
            if let Some(call) = traffic.filter_map(|traffic| traffic.overdue(now)).next() {
                wrong = Some(format!(
                    "{}: {call} has no outcome in its time",
                    client.uuid
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client goes on closing when callers have waited long enough for all that is left.
    pub(super) fn check_closing(&mut self) {
        let running = self.time.saturating_sub(ROUNDING);
        let mut wrong = None;
        let closing = |client: &&Client| client.closing && !client.closed;
        for client in self.clients.iter().filter(closing) {
            let now = client.local(running);
            let left = client.engine.unsettled();
            let waited = |name: &Name| {
                let outage = client.outage(&self.names, name, now);
                outage.is_some_and(|outage| outage >= OUTAGE)
            };
            if client.calls.is_empty() && left.iter().all(|name| waited(name)) {
                wrong = Some(format!("{} closes and waits for {left:?}", client.uuid));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// The engine knows every lock of its client on the server. Locks that no caller wants are gone
    /// soon.
    pub(super) fn check_ghosts(&mut self) {
        let mut wrong = None;
        for (name, lock) in self.server.held() {
            let Some((uuid, owner)) = lock.owner else {
                continue;
            };
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let Some(client) = self.clients.iter().find(lives) else {
                let others = self.server.shared.get(name).map(|shared| &shared.owners);
                let lives_on = |other: &Lock| {
                    other.owner.is_none_or(|(uuid, _)| {
                        self.clients.iter().any(|client| client.uuid == uuid)
                    })
                };
                if others.is_some_and(|others| others.iter().any(lives_on)) {
                    let end = self.legacies.entry((uuid, owner)).or_default();
                    *end = (*end).max(self.time + DEAD_READERS);
                }
                let over = self
                    .legacies
                    .get(&(uuid, owner))
                    .is_some_and(|end| self.time > *end);
                if over && !self.is_excused((uuid, owner)) {
                    wrong = Some(format!("{name}: {lock:?} lives on, whose owner has died"));
                }
                continue;
            };
            let is_ghost = !client.engine.wants(owner);
            if !is_ghost || self.is_excused((uuid, owner)) {
                continue;
            }
            let ends = self.server.left(name, lock) <= client.ends_soon(owner);
            let known = client.engine.cleanups.is_for(owner)
                || if topic_of(name) == Topic::Semaphore {
                    ends
                } else {
                    self.server.ttl(lock) <= client.ends_soon(owner)
                };
            if !known && !self.revived.contains(&(uuid, owner)) {
                wrong = Some(format!("{name}: {lock:?} is forgotten"));
            }
            let since = *self.ghosts.entry((uuid, owner)).or_insert(self.time);
            // Permits that end by themselves are kept for the margin.
            let margin = if topic_of(name) == Topic::Semaphore && ends {
                MARGIN_MS * 1000
            } else {
                0
            };
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) + margin {
                wrong = Some(format!("{name}: {lock:?} stays since {since}"));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// No client waits for a free lock.
    pub(super) fn check_waiters(&mut self) {
        let mut stuck = None;
        for (place, client) in self.clients.iter().enumerate() {
            for (at, name) in self.names.iter().enumerate() {
                let since = &mut self.waits[place * self.names.len() + at];
                let waits = client
                    .engine
                    .waits_for(name)
                    .filter(|_| !client.has_ended());
                let now = client.local(self.time);
                let is_taken = |(id, kind, permits): (RequestId, Kind, i64)| {
                    let queue = self.server.queues.get(name);
                    let head = queue.and_then(|queue| queue.first());
                    let head = head.filter(|head| head.due_ms > self.server.now_ms());
                    let of_other = head.is_some_and(|head| {
                        head.owner.0 != client.uuid || !client.engine.wants(head.owner.1)
                    });
                    if kind.takes_permits() {
                        let semaphore = self.server.semaphores.get(name);
                        let wanted = match head.filter(|_| kind == Kind::FairSemaphore) {
                            Some(_) if of_other => return true,
                            Some(head) => permits.max(head.many),
                            None => permits,
                        };
                        return semaphore.is_some_and(|one| one.available() < wanted);
                    }
                    let shared = self.server.shared.get(name);
                    let end = client.stand_back.get(&id).filter(|_| kind == Kind::Read);
                    let stands_back = end.is_some_and(|end| *end > now);
                    of_other
                        || stands_back && self.server.marked_until(name).is_some()
                        || self.server.locks.contains_key(name)
                        || shared.is_some_and(|shared| kind == Kind::Write || shared.is_written)
                };
                let Some(waits) = waits.filter(|waits| !is_taken(*waits)) else {
                    *since = None;
                    continue;
                };
                // In a queue of permits, several may be free for one after the other. Each of them hears of its
                // turn by a message or looks by itself.
                let (head, fair) = (waits.0, waits.1 == Kind::FairSemaphore);
                let is_over = |(_, before, _): &(u64, RequestId, Option<u64>)| {
                    fair && *before != head && !client.engine.names.waiters.contains_key(before)
                };
                *since = since.filter(|one| !is_over(one));
                let queues = matches!(waits.1, Kind::Fair | Kind::FairSemaphore);
                let (since, _, told) = since.get_or_insert((self.time, head, None));
                // A queue on the server is told again by each call while the lock is free. The first time
                // counts.
                let last = self.released.get(name).copied();
                let last = last.filter(|at| *at == *since || queues && *at > *since);
                *told = told.or(last.filter(|_| self.heard));
                let (since, told) = (*since, *told);
                let end = match told {
                    Some(at) => at.max(self.disturbed) + WOKEN,
                    None => since.max(self.disturbed) + allowed(PATIENCE, name),
                };
                if self.time > end {
                    stuck = Some(format!(
                        "{} waits for {name}, which is free since {since}",
                        client.uuid
                    ));
                }
            }
        }
        stuck.into_iter().for_each(|wrong| self.fail(wrong));
    }

    pub(super) fn check_end(&mut self) -> Result<(), String> {
        if self.server.held().next().is_some() || !self.server.subscribers.is_empty() {
            return Err(format!("left on the server: {:?}", self.server));
        }
        for client in &self.clients {
            let Client {
                uuid,
                engine,
                asked,
                calls,
                channels,
                ..
            } = client;
            let traffic = client
                .connections
                .iter()
                .filter_map(|connection| connection.traffic.as_ref());
            if !traffic.clone().all(Played::is_idle) {
                return Err(format!("calls are left on a connection of {uuid}"));
            }
            let is_clear = client.has_ended() || engine.is_clear();
            if !asked.is_empty() || !calls.is_empty() || !channels.is_empty() || !is_clear {
                return Err(format!(
                    "left in {uuid}: {asked:?} {calls:?} {channels:?} {engine:?}"
                ));
            }
        }
        Ok(())
    }
}

impl Engine {
    /// The server's count for a hold without a call in flight: its levels, or 1 for a reader.
    pub(super) fn settled_count(&self, owner: OwnerId) -> Option<u32> {
        let hold = self.holds.get(&owner)?;
        let count = if hold.cell.kind.is_shared() {
            1
        } else {
            hold.count()
        };
        (hold.tasks().next().is_none() && hold.phase == Phase::Held).then_some(count)
    }

    /// The watchdog's lease of a hold without a fixed end.
    pub(super) fn renewed_lease(&self, owner: OwnerId) -> Option<Duration> {
        let hold: &Hold = self.holds.get(&owner)?;
        let lasting = hold.phase == Phase::Held && hold.must_end().is_none();
        hold.watched_lease().filter(|_| lasting)
    }

    /// Whether a new server would be told again that this owner released its lock.
    pub(super) fn tells_of_release(&self, owner: OwnerId, now: Moment) -> bool {
        self.cleanups
            .confirmed()
            .any(|kept| kept.is_of(owner) && kept.counts(now))
    }

    /// Whether this owner holds the lock or tries to acquire it.
    pub(super) fn wants(&self, owner: OwnerId) -> bool {
        let tries = self
            .names
            .waiters
            .values()
            .any(|waiter| waiter.call.owner == owner || waiter.earlier.contains(&owner));
        tries
            || self.queries.adopts_as(owner)
            || self
                .holds
                .get(&owner)
                .is_some_and(|hold| !matches!(hold.phase, Phase::Lost(_)))
    }

    /// The first waiter of the name, its kind, and the permits that it wants, unless a hold of this client is in its way.
    pub(super) fn waits_for(&self, name: &Name) -> Option<(RequestId, Kind, i64)> {
        let queue = self.names.queues.get(name)?;
        let id = *queue.waiters.front()?;
        let head = self.names.waiters.get(&id)?;
        let blocks = |hold: &Hold| {
            hold.blocks(false)
                && (hold.cell.kind.excludes(head.form.kind) || !head.form.kind.is_shared())
                && Some(hold.cell.owner) != head.under
        };
        let blocked = queue.holds().iter().any(|owner| blocks(&self.holds[owner]));
        (!blocked).then_some((id, head.form.kind, head.form.permits.into()))
    }

    /// A caller that waits for permits of this semaphore and asked before this request. The head may
    /// be passed by one that wants as many while its own call is in flight.
    pub(super) fn before(&self, id: RequestId, cell: &HoldCell) -> Option<RequestId> {
        if cell.kind != Kind::Semaphore {
            return None;
        }
        let queue = self.names.queues.get(&cell.name)?;
        let asks = |other: &RequestId| {
            let in_flight = matches!(queue.attempt, Attempt::InFlight { .. });
            let is_head = queue.waiters.front() == Some(other);
            in_flight && is_head && self.names.waiters[other].form == cell.form()
        };
        let waits = |other: &RequestId| {
            let waiter = &self.names.waiters[other];
            *other < id && !waiter.answered && !waiter.queues()
        };
        let mut before = queue.waiters.iter().copied().filter(waits);
        before.find(|other| !asks(other))
    }

    /// A writer that waits for this name and asked before this request, unless the reader has the
    /// write lock itself.
    pub(super) fn overtaken(&self, id: RequestId, cell: &HoldCell) -> Option<RequestId> {
        let is_own = |owner: &OwnerId| {
            let hold = &self.holds[owner];
            hold.cell.key == cell.key && hold.cell.kind == Kind::Write
        };
        let queue = self.names.queues.get(&cell.name)?;
        if cell.kind != Kind::Read || queue.holds().iter().any(is_own) {
            return None;
        }
        let waits = |writer: &RequestId| {
            let waiter = &self.names.waiters[writer];
            waiter.form.kind == Kind::Write && !waiter.answered && *writer < id
        };
        queue.waiters.iter().copied().find(waits)
    }

    /// The locks of all that is left to settle.
    pub(super) fn unsettled(&self) -> Vec<&Name> {
        let holds = self.holds.values().map(|hold| &hold.cell.name);
        let waiters = self.names.waiters.values().map(|waiter| &waiter.name);
        let cleanups = self.cleanups.iter().map(|cleanup| &cleanup.name);
        holds.chain(waiters).chain(cleanups).collect()
    }

    /// Whether the engine is empty.
    pub(super) fn is_clear(&self) -> bool {
        let empty =
            self.names.queues.is_empty() && self.queries.is_empty() && self.cx.callers.is_empty();
        let empty = empty && self.multi.is_empty();
        empty && self.is_settled() && self.cx.calls.is_empty() && self.next_wake().is_none()
    }
}
