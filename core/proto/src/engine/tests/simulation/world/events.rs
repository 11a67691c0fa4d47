//! What happens to clients: inputs, wake-ups and outputs.

use super::*;

impl World {
    pub(super) fn place_of(&self, uuid: Uuid) -> Option<usize> {
        self.clients.iter().position(|client| client.uuid == uuid)
    }

    pub(super) fn happen(&mut self, event: Event) {
        // Events for a stopped process wait until it continues.
        let place = match &event {
            Event::Input(uuid, _)
            | Event::Message(uuid, _)
            | Event::Limit(uuid, _)
            | Event::Told(uuid, ..) => self.place_of(*uuid),
            Event::Reply { origin, .. } | Event::Invalidate(origin, _) => {
                self.place_of(origin.uuid)
            }
            Event::Said { origin, .. } | Event::Turn(origin) | Event::Cut(origin) => {
                self.place_of(origin.uuid)
            }
            Event::Connect(place, _) | Event::Act(place, _) | Event::GiveBack(place, _) => {
                Some(*place)
            }
            Event::Rush(place) => Some(*place),
            _ => None,
        };
        if let Some(until) = place.map(|place| self.clients[place].stopped_until)
            && until > self.time
        {
            return self.at(until, event);
        }
        match event {
            Event::Input(uuid, input) => self.input(uuid, input),
            Event::Request(copy) => self.request(&copy),
            Event::Reply {
                origin,
                call,
                server_ms,
                outcome,
            } => self.reply(origin, call, server_ms, outcome),
            Event::Invalidate(origin, name) => self.invalidated(origin, name),
            Event::Command(command) => self.command(*command),
            Event::Serve => self.serve(),
            Event::Said {
                origin,
                to,
                server_ms,
                said,
            } => self.said(origin, &to, server_ms, &said),
            Event::Turn(origin) => self.turn(origin),
            Event::Told(uuid, call, outcome) => self.outcome(uuid, call, outcome),
            Event::Cut(origin) => self.cut(origin),
            Event::Rush(place) => self.rush(place),
            Event::Pace => self.change_pace(),
            Event::Limit(uuid, call) => self.outcome(uuid, call, CallOutcome::Unanswered),
            Event::Connect(place, connection) => self.connect(place, connection),
            Event::Subscribe(uuid, name, topic) => self.subscribe(uuid, name, topic),
            Event::Unsubscribe(uuid, name, topic) => {
                self.server
                    .subscribers
                    .remove(&(channel_of(uuid, topic, &name), uuid));
            }
            Event::Message(uuid, channel) => self.message(uuid, &channel),
            Event::Act(place, caller) => self.act(place, caller),
            Event::GiveBack(place, caller) => self.give_back(place, caller),
            Event::Disturb => self.disturb(),
            Event::Stranger => self.stranger(),
        }
    }

    pub(super) fn input(&mut self, uuid: Uuid, input: Input) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if client.has_ended() {
            return;
        }
        let now = client.local(self.time);
        client.hears(now, &input);
        self.note(|| format!("{uuid} < {input:?}"));
        let mut out = Vec::new();
        self.clients[place].engine.handle(now, input, &mut out);
        self.outputs(place, out);
    }

    pub(super) fn wake(&mut self, place: usize) {
        self.wake_traffic(place);
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        if client.engine_wake().is_none_or(|due| due > now) {
            return;
        }
        let mut out = Vec::new();
        client.engine.wake(now, &mut out);
        self.outputs(place, out);
    }

    pub(super) fn outputs(&mut self, place: usize, out: Vec<Output>) {
        let uuid = self.clients[place].uuid;
        // While a caller waits for its call, everything else is sent by the I/O thread.
        let waits = self.clients[place]
            .direct
            .as_ref()
            .is_some_and(|direct| !direct.calls.is_empty());
        for output in out {
            if !matches!(output, Output::Event(_)) {
                self.note(|| format!("{uuid} > {output:?}"));
            }
            match output {
                Output::Send {
                    call,
                    op,
                    limit,
                    inline,
                } => {
                    self.note_renewals(place, &op);
                    self.clients[place].asks(&op, limit);
                    self.check_mark_of(place, &op);
                    if let Op::Acquire(op) = &*op
                        && op.payload.under().is_some()
                    {
                        self.under.insert((uuid, op.owner));
                    }
                    if let Op::Acquire(op) = &*op
                        && op.count > 1
                    {
                        self.entered.insert((uuid, op.owner));
                    }
                    let connection =
                        self.connection_for(place, inline.filter(|_| !waits), call, &op);
                    self.send(place, connection, call, op, limit);
                }
                Output::Subscribe(name, topic) => {
                    let client = &mut self.clients[place];
                    let before = client.channels.insert(name.clone(), topic);
                    assert_eq!(before, None, "subscribed twice");
                    let channel = channel_of(uuid, topic, &name);
                    client.wanted.add(&channel, name.clone());
                    self.change_channel(place, Event::Subscribe(uuid, name, topic));
                }
                Output::Unsubscribe(name, topic) => {
                    let client = &mut self.clients[place];
                    let before = client.channels.remove(&name);
                    assert_eq!(before, Some(topic), "not subscribed");
                    let channel = channel_of(uuid, topic, &name);
                    if client.wanted.remove(&channel, &name) {
                        self.change_channel(place, Event::Unsubscribe(uuid, name, topic));
                    }
                }
                Output::Complete { id, result } => self.completed(place, id, result),
                Output::Lost(cell, reason) => {
                    if is_left_to_others(&cell, reason) {
                        self.excused.insert((uuid, cell.owner));
                    }
                    self.lost(&cell, reason);
                }
                Output::Ended(cell) => {
                    if cell.is_held(self.clients[place].local(self.time)) {
                        self.fail(format!("{cell:?} ended and is held"));
                    }
                }
                Output::Opened(_) | Output::Event(_) => {}
                Output::Stop => self.clients[place].closed = true,
            }
        }
        self.give_back_direct(place);
    }

    /// Counts the renewals that leases need, and the others.
    pub(super) fn note_renewals(&mut self, place: usize, op: &Op) {
        let Op::Renew { holds } = op else { return };
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        for renewal in holds {
            let hold = client.engine.holds.get(&renewal.owner);
            let period = hold.and_then(|hold| hold.period());
            let last = client.renewals.last.insert(renewal.owner, now);
            match (last, period) {
                // A neighbour in the same call may be renewed a tenth of its period early.
                (Some(last), Some(period)) if last.until(now) >= period * 4 / 5 => {
                    client.renewals.planned += 1
                }
                _ => client.renewals.extra += 1,
            }
        }
    }
}
