//! Faults, and the calm end.

use super::*;

impl World {
    pub(super) fn disturb(&mut self) {
        let pause = self.random.between(1000, 2 * self.faults.disturbance);
        self.later(pause, Event::Disturb);
        self.trouble(self.time);
        let place = usize::try_from(self.random.below(self.clients.len() as u64)).unwrap();
        if self.faults.jumps && self.random.chance(200) {
            return self.jump();
        }
        if self.faults.restarts && self.random.chance(100) {
            return self.restart_server();
        }
        if self.faults.failovers && self.random.chance(200) {
            return self.fail_over();
        }
        match self.random.below(10) {
            0..4 => {
                let connection = self.random.index(self.clients[place].connections.len());
                self.disconnect(place, connection);
            }
            4..6 => self.interrupt_channels(place),
            6 => {
                let stop = self.random.between(1000, 2_500_000);
                // One stop at a time, so that events that wait for the end of a stop keep their
                // order.
                if self.clients[place].stopped_until <= self.time {
                    self.clients[place].stopped_until = self.time + stop;
                }
                self.trouble(self.time + stop);
                self.note(|| format!("{place} is stopped for {stop} us"));
            }
            7 => self.restart(place),
            _ => self.reroute(place),
        }
    }

    /// A process dies, and a new one takes its place.
    pub(super) fn restart(&mut self, place: usize) {
        let client = &self.clients[place];
        let uuid = client.uuid;
        let origins: Vec<Origin> = (0..client.connections.len())
            .map(|at| client.origin(at))
            .collect();
        self.note(|| format!("{uuid} dies"));
        self.note_legacies(place);
        origins
            .into_iter()
            .for_each(|origin| self.server.disconnected(origin));
        self.server
            .subscribers
            .retain(|(_, subscriber)| *subscriber != uuid);
        self.events.retain(|_, event| match event {
            Event::Act(of, _)
            | Event::GiveBack(of, _)
            | Event::Connect(of, _)
            | Event::Rush(of) => *of != place,
            Event::Subscribe(of, ..) => *of != uuid,
            _ => true,
        });
        self.clients[place] = self.new_client();
        self.start(place);
    }

    /// Records the locks of a dying client. Each may stay for its longest lease after the last
    /// moment at which that lease may be set; an adaptive lock for the lease that the server has
    /// learnt.
    pub(super) fn note_legacies(&mut self, place: usize) {
        let client = &self.clients[place];
        let holds = client
            .engine
            .holds
            .iter()
            .filter(|(_, hold)| kind_of(&hold.cell.name) != Kind::Adaptive);
        let end = |hold: &Hold| {
            // A call that waits for replicas has twice the time.
            let (longest, limit) = (
                hold.longest(),
                timing::limit(hold.longest(), Duration::ZERO) * 2,
            );
            let (others, margin) = match topic_of(&hold.cell.name) {
                Topic::Lock | Topic::Place(_) => (0, 0),
                Topic::ReadWrite => (DEAD_READERS, 0),
                Topic::Semaphore | Topic::Seat(_) => (0, MARGIN_MS * 1000),
                Topic::Latch => panic!("a latch has no holds"),
            };
            let lives = longest + limit + timing::drift(longest);
            self.time + margin + micros(lives).max(others)
        };
        self.legacies
            .extend(holds.map(|(owner, hold)| ((client.uuid, owner), end(hold))));
    }

    /// The server restarts without its data.
    pub(super) fn restart_server(&mut self) {
        self.note(|| "the server starts again, empty".to_owned());
        self.server.restart();
        self.has_forgotten = true;
        self.forget_tokens();
        self.leave_server();
    }

    /// A replica without the last writes takes over. The next command corrects what it brings back,
    /// or it ends with its lease.
    pub(super) fn fail_over(&mut self) {
        let outdated = self.server.fail_over();
        self.note(|| format!("a replica takes over, which is wrong about {outdated:?}"));
        self.brought_back.extend(outdated.valued);
        self.excused.extend(outdated.miscounted);
        let told = |(uuid, owner): &(Uuid, OwnerId)| {
            let client = self.clients.iter().find(|client| client.uuid == *uuid);
            client.is_some_and(|client| {
                client
                    .engine
                    .tells_of_release(*owner, client.local(self.time))
            })
        };
        let (told, others): (Vec<_>, Vec<_>) = outdated.revived.into_iter().partition(told);
        self.revived.extend(told);
        self.excused.extend(others);
        // So does the mark of a writer that was let in since.
        let is_in = |(uuid, owner): &(Uuid, OwnerId)| {
            let client = self.clients.iter().find(|client| client.uuid == *uuid);
            client.is_some_and(|client| client.engine.holds.contains_key(owner))
        };
        let marks = self.server.marks.keys();
        let marked = marks.flat_map(|name| self.server.marked(name).map(|(me, _)| me));
        let marked: Vec<_> = marked.filter(is_in).collect();
        self.excused.extend(marked);
        self.leave_server();
        self.check_replicated();
    }

    /// Checks that a lock acknowledged by a replica is not lost.
    pub(super) fn check_replicated(&mut self) {
        let mut wrong = None;
        for client in &self.clients {
            let now = client.local(self.time);
            for cell in client.cells.iter().filter(|cell| cell.is_held(now)) {
                let me = (client.uuid, cell.owner);
                if self.replicated.contains(&me) && self.bereaved.get(&me) == Some(&self.time) {
                    wrong = Some(format!(
                        "{cell:?} is lost with its server, though a replica had it"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// Another server answers. Everything on its way to the old one is lost.
    pub(super) fn leave_server(&mut self) {
        self.events.retain(|_, event| {
            !matches!(event, Event::Request(_) | Event::Command(_) | Event::Serve)
        });
        self.queue.clear();
        for place in 0..self.clients.len() {
            self.disconnect_all(place);
            self.interrupt_channels(place);
        }
        self.spread_effects();
    }

    /// The server's clock jumps. The jump is small enough to wait for the locks that live longer
    /// because of it.
    pub(super) fn jump(&mut self) {
        let ms = self.random.between(1, 3000).cast_signed() * self.random.pick(&[-1, 1]);
        self.note(|| format!("the server's clock jumps by {ms} ms"));
        self.has_jumped |= ms < 0;
        self.forget_tokens();
        self.jumped
            .extend(self.server.held().filter_map(|(_, lock)| lock.owner));
        self.server.jump(ms);
        self.trouble(self.time + 3_000_000);
        self.spread_effects();
    }

    /// Tokens grow across the loss of their counters only if the clock does not go back.
    pub(super) fn forget_tokens(&mut self) {
        if self.has_jumped && self.has_forgotten {
            self.highest_token.clear();
        }
    }

    /// Another library or a person changes a key.
    pub(super) fn stranger(&mut self) {
        let pause = self.random.between(1000, 1_500_000);
        self.later(pause, Event::Stranger);
        let name = self.names[usize::try_from(self.random.below(self.names.len() as u64)).unwrap()]
            .clone();
        let kind = self.random.below(6);
        self.note(|| format!("a stranger does {kind} to {name}"));
        match kind {
            _ if topic_of(&name) == Topic::Semaphore => {
                if kind == 0 && self.random.chance(500) {
                    self.server.delete(&name, None);
                } else {
                    let ms = self.random.between(1, 1500);
                    self.server.stranger_at_semaphore(&name, kind, ms);
                }
            }
            0 => drop(self.server.delete(&name, None)),
            1..4 if topic_of(&name) == Topic::ReadWrite => {
                let (ms, reads) = (self.random.between(1, 1500), self.random.chance(500));
                self.server.take_side(&name, reads, ms);
            }
            1..4 => {
                let ms = self.random.between(1, 1500);
                self.server.take(&name, ms);
            }
            4 if topic_of(&name) == Topic::ReadWrite => {
                self.trouble(self.time);
                self.server.evict(&name, self.random.index(4));
            }
            _ => self.server.give_back(&name),
        }
        self.spread_effects();
    }

    /// Ends all faults. Some clients are closed, a few of them during an outage; in the others
    /// every caller leaves.
    pub(super) fn calm_down(&mut self) {
        self.note(|| "calm".to_owned());
        let breaks = self.faults.disturbance > 0 || self.faults.loses_calls();
        self.faults = Faults::NONE;
        let goes_on = |event: &Event| {
            !matches!(
                event,
                Event::Act(..) | Event::Rush(_) | Event::Disturb | Event::Stranger | Event::Pace
            )
        };
        self.events.retain(|_, event| goes_on(event));
        self.pace = 0;
        // Disconnected or stopped clients recover by themselves.
        let end = self.time + 5_000_000;
        let closing: Vec<bool> = self
            .clients
            .iter()
            .map(|_| self.random.chance(500))
            .collect();
        if breaks && self.random.chance(300) {
            let before = self.random.between(0, LAST_OUTAGE);
            self.run_calmly(end - before);
            let closing = (0..closing.len()).filter(|place| closing[*place]);
            closing.for_each(|place| self.begin_last_outage(place));
        }
        self.run_calmly(end);
        for (place, closes) in closing.into_iter().enumerate() {
            if closes {
                self.clients[place].closing = true;
                self.ask(
                    place,
                    0,
                    Request::Close {
                        limit: Duration::from_secs(10),
                    },
                );
            } else {
                self.all_go(place);
            }
        }
    }

    pub(super) fn run_calmly(&mut self, end: u64) {
        self.run_until(end).map_err(|wrong| self.fail(wrong)).ok();
    }

    /// The servers of a client that is about to close are out of reach. Some of its callers have
    /// just released their locks.
    pub(super) fn begin_last_outage(&mut self, place: usize) {
        for caller in 0..self.clients[place].callers.len() {
            if self.random.chance(300) {
                self.give_back(place, caller);
            }
        }
        for connection in 0..self.clients[place].connections.len() {
            let away = self.random.between(1000, LAST_OUTAGE);
            self.disconnect_for(place, connection, Some(away));
        }
    }

    pub(super) fn all_go(&mut self, place: usize) {
        let uuid = self.clients[place].uuid;
        let asked: Vec<RequestId> = self.clients[place].asked.keys().copied().collect();
        for id in asked {
            self.input(uuid, Input::Cancel { id });
        }
        for caller in 0..self.clients[place].callers.len() {
            for (owner, level) in std::mem::take(&mut self.clients[place].callers[caller].granted) {
                self.input(uuid, Input::Dropped { owner, level });
            }
        }
    }
}
