//! The inline connection, those that are made and lost, and pub/sub.

use super::*;

impl World {
    /// A caller takes the inline connection for its request, in case the engine offers it a call.
    pub(super) fn take_direct(&mut self, place: usize, id: RequestId) {
        let (wanted, polite) = (self.random.chance(800), self.random.chance(300));
        let direct = self.clients[place].direct.as_mut();
        if let Some(direct) = direct.filter(|direct| wanted && direct.user.is_none()) {
            (direct.user, direct.polite) = (Some(id), polite);
        }
    }

    /// A signal, or the end of the caller's wait, interrupts a long call. The server still runs it
    /// later.
    pub(super) fn interrupt(&mut self, limit_at: u64, copy: Copied) {
        self.trouble(limit_at);
        let at = self.random.between(self.time, limit_at);
        self.at(at, Event::Limit(copy.origin.uuid, copy.call));
        let arrival = self.random.between(at, limit_at);
        self.at(arrival, Event::Request(Box::new(copy)));
    }

    /// Gives the inline connection back when its user waits for nothing more.
    pub(super) fn give_back_direct(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let generation = client.connections[0].generation;
        let Some(direct) = client
            .direct
            .as_mut()
            .filter(|direct| direct.calls.is_empty())
        else {
            return;
        };
        direct.user = None;
        if direct.belongs_to != generation {
            self.close_direct(place);
        }
    }

    pub(super) fn close_direct(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if client.direct.take().is_some() {
            // No client receives what still arrives on it.
            let at = client.at_direct();
            client.connections[at] = Connection::new();
            self.make_direct(place);
        }
    }

    /// Schedules a new inline connection. There is none with several servers.
    pub(super) fn make_direct(&mut self, place: usize) {
        let client = &self.clients[place];
        if !client.is_split() {
            let at = client.at_direct();
            let delay = self.random.between(100, 20_000);
            self.later(delay, Event::Connect(place, at));
        }
    }

    pub(super) fn spread_effects(&mut self) {
        let effects = self.server.take_effects();
        for (uuid, owner) in effects.bereaved {
            self.bereaved.insert((uuid, owner), self.time);
        }
        for (origin, name) in effects.invalidated {
            self.answer(origin, Event::Invalidate(origin, name));
        }
        for (uuid, name) in effects.published {
            // The waiters have to manage without this message.
            if self.random.chance(self.faults.lost_message) {
                continue;
            }
            let delay = self.delay();
            self.later(delay, Event::Message(uuid, name));
        }
        for name in effects.released {
            self.released.insert(name, self.time);
        }
    }

    pub(super) fn message(&mut self, uuid: Uuid, channel: &Name) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        for name in self.clients[place].wanted.names(channel).to_vec() {
            self.input(uuid, Input::Message(name));
        }
    }

    pub(super) fn connect(&mut self, place: usize, connection: usize) {
        let server_ms = self.server.now_ms();
        self.trouble(self.time);
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        let is_direct = connection == client.at_direct();
        if client.connections[connection].up
            || client.closed
            || is_direct && !client.connections[0].up
        {
            return;
        }
        client.last_generation += 1;
        let (generation, server_clock) = (client.last_generation, (server_ms, now));
        let sizes = client.sizes.filter(|_| !is_direct);
        let traffic =
            sizes.map(|sizes| Played::new(client.link(connection), sizes, server_ms, now));
        client.connections[connection] = Connection {
            up: true,
            generation,
            server_clock,
            traffic,
            ..Connection::new()
        };
        if is_direct {
            let belongs_to = client.connections[0].generation;
            client.direct = Some(Direct {
                belongs_to,
                ..Direct::default()
            });
            let uuid = client.uuid;
            return self.input(uuid, Input::Identity(generation));
        }
        let (uuid, link) = (client.uuid, client.link(connection));
        // An inline connection of the last generation is closed when its user is done with it.
        self.give_back_direct(place);
        self.make_direct(place);
        self.input(uuid, Input::Identity(generation));
        self.input(uuid, Input::Up(link));
    }

    /// The connection breaks. The fate of the calls on it is unknown.
    pub(super) fn disconnect(&mut self, place: usize, connection: usize) {
        self.disconnect_for(place, connection, None);
    }

    /// The same, for this long.
    pub(super) fn disconnect_for(&mut self, place: usize, connection: usize, away: Option<u64>) {
        let client = &mut self.clients[place];
        if !client.connections[connection].up {
            return;
        }
        if connection == client.at_direct() {
            return self.break_direct(place);
        }
        client.connections[connection].up = false;
        let traffic = client.connections[connection].traffic.take();
        let (origin, uuid, link) = (
            client.origin(connection),
            client.uuid,
            client.link(connection),
        );
        let on_it = client.calls.iter().filter(|(_, at)| **at == connection);
        let calls: Vec<CallId> = on_it.map(|(call, _)| *call).collect();
        self.server.disconnected(origin);
        // Some of what was on its way still arrives.
        let random = &mut self.random;
        self.events.retain(|_, event| match event {
            Event::Request(copy) if copy.origin == origin => random.chance(500),
            Event::Command(copy) if copy.origin == origin => random.chance(500),
            Event::Reply { origin: of, .. } | Event::Invalidate(of, _) => *of != origin,
            _ => true,
        });
        let gone = || {
            Input::Down(
                link,
                Error::new(ErrorKind::Unavailable, "the connection broke"),
            )
        };
        self.later(0, Event::Input(uuid, gone()));
        match traffic {
            Some(traffic) => self.break_traffic(uuid, traffic),
            None => {
                for call in calls {
                    let delay = self.random.between(0, 50_000);
                    self.later(delay, Event::Limit(uuid, call));
                }
            }
        }
        let away = away.unwrap_or_else(|| {
            let most = if self.random.chance(100) {
                4_000_000
            } else {
                800_000
            };
            self.random.between(1000, most)
        });
        if self.random.chance(300) {
            self.later(away / 2, Event::Input(uuid, gone()));
        }
        self.later(away, Event::Connect(place, connection));
        self.trouble(self.time + away);
    }

    /// The inline connection breaks. A caller that waits on it notices, otherwise its next user
    /// does.
    pub(super) fn break_direct(&mut self, place: usize) {
        let client = &self.clients[place];
        let uuid = client.uuid;
        let direct = client.direct.as_ref();
        if let Some(&call) = direct.and_then(|direct| direct.calls.first()) {
            self.at(self.time, Event::Limit(uuid, call));
        }
    }

    /// All connections break.
    pub(super) fn disconnect_all(&mut self, place: usize) {
        for connection in 0..self.clients[place].connections.len() {
            self.disconnect(place, connection);
        }
    }

    pub(super) fn tell_routes(&mut self, place: usize) {
        let client = &self.clients[place];
        let (uuid, routes) = (client.uuid, client.routes(&self.names));
        self.input(uuid, Input::Routes(routes));
        // Links with new ids have to be reported as up.
        let client = &self.clients[place];
        let up = (0..client.parts).filter(|at| client.connections[*at].up);
        let up: Vec<LinkId> = up.map(|at| client.link(at)).collect();
        up.into_iter()
            .for_each(|link| self.input(uuid, Input::Up(link)));
    }

    /// Moves a name to another part of the server.
    pub(super) fn reroute(&mut self, place: usize) {
        let name = self.random.index(self.names.len());
        let client = &mut self.clients[place];
        client.routes[name] = (client.routes[name] + 1) % client.parts;
        client.join_slots(&self.names);
        if client.is_split() && !client.closed {
            self.tell_routes(place);
        }
    }

    /// Schedules a subscription change. The changes reach the server in order.
    pub(super) fn change_channel(&mut self, place: usize, event: Event) {
        let delay = self.delay();
        let client = &mut self.clients[place];
        client.last_subscription = (self.time + delay).max(client.last_subscription);
        let at = client.last_subscription;
        self.at(at, event);
    }

    pub(super) fn subscribe(&mut self, uuid: Uuid, name: Name, topic: Topic) {
        self.server
            .subscribers
            .insert((channel_of(uuid, topic, &name), uuid));
        let delay = self.delay();
        self.later(delay, Event::Input(uuid, Input::Subscribed(name)));
    }

    /// The connection breaks and is made again. Messages in between are lost.
    pub(super) fn interrupt_channels(&mut self, place: usize) {
        let uuid = self.clients[place].uuid;
        self.server
            .subscribers
            .retain(|(_, subscriber)| *subscriber != uuid);
        self.events
            .retain(|_, event| !matches!(event, Event::Subscribe(of, ..) if *of == uuid));
        let gap = self.random.between(1000, 1_000_000);
        self.trouble(self.time + gap);
        for (name, topic) in self.clients[place].channels.clone() {
            self.clients[place].last_subscription = self.time + gap;
            self.later(gap, Event::Subscribe(uuid, name, topic));
        }
    }
}
