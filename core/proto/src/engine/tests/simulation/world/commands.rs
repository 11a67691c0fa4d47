//! Commands and answers on the connections.

use super::*;

impl World {
    pub(super) fn send(
        &mut self,
        place: usize,
        connection: usize,
        call: CallId,
        op: Arc<Op>,
        limit: Duration,
    ) {
        let delay = self.delay();
        let client = &mut self.clients[place];
        let (uuid, origin) = (client.uuid, client.origin(connection));
        if !client.connections[connection].up {
            let input = Input::Outcome {
                call,
                outcome: CallOutcome::NotSent,
            };
            return self.later(delay.min(5000), Event::Input(uuid, input));
        }
        client.calls.insert(call, connection);
        let now = client.local(self.time);
        if let Some(traffic) = &mut client.connections[connection].traffic {
            traffic.send(now, call, op, limit, false);
            return self.turn_soon(place, connection);
        }
        let not_after = client.connections[connection].not_after(now, limit);
        let limit_at = client.time_at(now.after(limit));
        let arrival = (self.time + delay).max(client.connections[connection].last_arrival.0);
        self.at(limit_at, Event::Limit(uuid, call));
        let fate = self.faults.fate(&mut self.random);
        if fate != Fate::Arrives {
            self.trouble(limit_at);
        }
        let expires = limit_at + u64::try_from(timing::drift(limit).as_micros()).unwrap();
        let copy = Copied {
            origin,
            call,
            op,
            not_after,
            expires,
            answered: false,
            doubled: false,
        };
        if self.clients[place].is_own(call) && self.random.chance(self.faults.interruption) {
            return self.interrupt(limit_at, copy);
        }
        let answered = Copied {
            answered: true,
            ..copy.clone()
        };
        match fate {
            Fate::Never => {}
            Fate::Arrives => self.arrives(place, connection, arrival, answered),
            Fate::Unanswered => self.arrives(place, connection, arrival, copy),
            Fate::Late => {
                for _ in 0..self.random.between(1, 2) {
                    self.arrives_late(copy.clone());
                }
            }
            Fate::Twice => {
                self.arrives(place, connection, arrival, answered);
                let double = Copied {
                    doubled: true,
                    ..copy
                };
                if self.random.chance(500) {
                    self.arrives(place, connection, arrival, double);
                } else {
                    self.arrives_late(double);
                }
            }
        }
    }

    /// The connection for an operation, whose names are all on one server. A caller that has the
    /// inline connection sends on it.
    pub(super) fn connection_for(
        &mut self,
        place: usize,
        inline: Option<Inline>,
        call: CallId,
        op: &Op,
    ) -> usize {
        let client = &mut self.clients[place];
        let at_direct = client.at_direct();
        let suits = |direct: &&mut Direct| {
            inline.is_some_and(|inline| {
                direct.user == Some(inline.of)
                    && (inline.alone || !direct.polite)
                    && !(inline.tracked && client.tracks)
            })
        };
        if let Some(direct) = client.direct.as_mut().filter(suits) {
            direct.calls.push(call);
            return at_direct;
        }
        // The first of the names with the same slot.
        let of = |name: &Name| {
            self.names
                .iter()
                .position(|known| slot(known) == slot(name))
                .unwrap()
        };
        let mut places = names(op).into_iter().map(|name| of(&name));
        let first = places.next().unwrap();
        assert!(
            !client.is_split() || places.all(|at| at == first),
            "{op:?} is for names of two slots"
        );
        client.routes[first]
    }

    /// Schedules the arrival of a request. The requests of a connection keep their order.
    pub(super) fn arrives(&mut self, place: usize, connection: usize, arrival: u64, copy: Copied) {
        self.clients[place].connections[connection].last_arrival.0 = arrival;
        self.at(arrival, Event::Request(Box::new(copy)));
    }

    pub(super) fn arrives_late(&mut self, copy: Copied) {
        let delay = self.random.between(1000, 3_000_000);
        self.trouble(self.time + delay);
        self.later(delay, Event::Request(Box::new(copy)));
    }

    pub(super) fn request(&mut self, copy: &Copied) {
        let Copied { origin, call, .. } = *copy;
        let outcome = if names(&copy.op)
            .iter()
            .any(|name| Some(name) == self.denied.as_ref())
        {
            CallOutcome::Refused {
                error: Error::new(ErrorKind::Denied, DENIED),
                passing: false,
            }
        } else if self.random.chance(self.faults.refusal) {
            self.trouble(self.time);
            let error = Error::new(ErrorKind::Server, "refused");
            let passing = !matches!(*copy.op, Op::Acquire(_)) || self.random.chance(700);
            CallOutcome::Refused { error, passing }
        } else {
            CallOutcome::Answered(self.execute(copy))
        };
        self.note_done(copy, &outcome);
        if copy.answered {
            let event = Event::Reply {
                origin,
                call,
                server_ms: self.server.now_ms(),
                outcome,
            };
            self.answer(origin, event);
        }
    }

    /// Runs a call on the server.
    pub(super) fn execute(&mut self, copy: &Copied) -> Reply {
        let Copied {
            origin,
            ref op,
            not_after,
            ..
        } = *copy;
        let tracks = |client: &Client| {
            client.tracks
                && client
                    .connection(origin)
                    .is_some_and(|connection| connection != client.at_direct())
        };
        let tracks = self.clients.iter().any(tracks);
        let before = self.handed_over(op);
        let victim = self.victim_of(copy);
        let own = self.freed_by_token(copy);
        let reply = self.server.execute(origin, tracks, op, not_after);
        if let (Some(own), Reply::Released(_)) = (own, &reply) {
            self.own_copies.insert(own);
        }
        if let (Some(victim), Reply::Released(_)) = (victim, &reply) {
            self.fail(format!("{op:?} of {} frees {victim:?}", origin.uuid));
        }
        // A copy made by the network came when its owner had gone. Its place runs out.
        if let (Op::Acquire(op), Reply::Busy { .. } | Reply::Parked { .. }, true) =
            (&**op, &reply, copy.doubled)
            && op.payload.seat().is_some_and(|seat| seat.queues)
        {
            self.excused.insert((origin.uuid, op.owner));
        }
        // A copy made by the network did the hand-over, although its client may have been told that
        // it was not done. To the client the lock is newly acquired.
        if copy.doubled && self.handed_over(op) > before {
            op.name()
                .and_then(|name| self.server.locks.get_mut(name))
                .into_iter()
                .for_each(|lock| lock.handovers = 0);
        }
        match reply {
            // It is done, but no replica acknowledges it.
            Reply::Acquired { .. }
                if op.replicas() > 0 && self.random.chance(self.faults.alone) =>
            {
                self.trouble(self.time);
                Reply::NotReplicated { got: 0 }
            }
            reply => reply,
        }
    }

    /// The owner of this client whose lock a release by token would free.
    pub(super) fn freed_by_token(&self, copy: &Copied) -> Option<(Uuid, OwnerId)> {
        let Op::Release(Release { name, form, .. }) = &*copy.op else {
            return None;
        };
        let lock = self.server.locks.get(name)?;
        let frees = form.token.is_some() && lock.value == form.token;
        lock.owner
            .filter(|(uuid, _)| frees && *uuid == copy.origin.uuid)
    }

    /// The hold of this client with the same token that a release of another attempt would free. A
    /// copy that runs after its call had its outcome is excused: only another token helps there.
    pub(super) fn victim_of(&self, copy: &Copied) -> Option<Arc<HoldCell>> {
        let Op::Release(Release {
            name,
            owner,
            form,
            remaining: 0,
            ..
        }) = &*copy.op
        else {
            return None;
        };
        let client = &self.clients[self.place_of(copy.origin.uuid)?];
        let on_time = !copy.doubled && client.calls.contains_key(&copy.call);
        let lock = self.server.locks.get(name)?;
        let freed = lock.value.is_some() && lock.value == form.token && on_time;
        let (_, victim) = lock
            .owner
            .filter(|(uuid, _)| freed && *uuid == client.uuid)?;
        let now = client.local(self.time);
        let mut others = client
            .cells
            .iter()
            .filter(|cell| ![NOBODY, cell.owner].contains(owner) && cell.is_held(now));
        others.find(|cell| cell.owner == victim).cloned()
    }

    /// The number of local hand-overs of the lock of a hand-over call.
    pub(super) fn handed_over(&self, op: &Op) -> usize {
        let Op::HandOver(HandOver { name, .. }) = op else {
            return 0;
        };
        self.server.locks.get(name).map_or(0, |lock| lock.handovers)
    }

    /// Records the consequences of a call that the server has run.
    pub(super) fn note_done(&mut self, copy: &Copied, outcome: &CallOutcome) {
        let Copied { origin, ref op, .. } = *copy;
        let acknowledged =
            op.replicas() > 0 && matches!(outcome, CallOutcome::Answered(Reply::Acquired { .. }));
        if self.faults.failovers && (acknowledged || self.random.chance(REPLICATED)) {
            self.server.replicate();
        }
        self.note(|| format!("S {} {op:?}: {outcome:?}", origin.uuid));
        self.spread_effects();
        self.note_extensions(op);
        self.note_excuses(copy, outcome);
    }

    /// Excuses what the engine cannot know: a copy that the network made of an answered request,
    /// and a copy that runs too late because the server's clock went back.
    pub(super) fn note_excuses(&mut self, copy: &Copied, outcome: &CallOutcome) {
        let uuid = copy.origin.uuid;
        let (owner, shrinks) = match (&*copy.op, outcome) {
            (Op::Renew { holds }, _) => {
                let late = self.has_jumped && self.time > copy.expires;
                let owners = holds.iter().filter(|_| late).map(|hold| (uuid, hold.owner));
                return self.jumped.extend(owners);
            }
            (
                _,
                CallOutcome::Answered(
                    Reply::Acquired { .. } | Reply::NotReplicated { .. } | Reply::Kept,
                ),
            ) => match *copy.op {
                Op::Acquire(Acquire { owner, .. }) | Op::HandOver(HandOver { to: owner, .. }) => {
                    (owner, false)
                }
                Op::Release(Release { owner, .. }) => (owner, true),
                _ => return,
            },
            _ => return,
        };
        let me = (uuid, owner);
        if copy.doubled {
            self.excused.insert(me);
        }
        // It may shorten a lease that was acquired since.
        if self.time > copy.expires || (copy.doubled && shrinks) {
            self.jumped.insert(me);
        }
    }

    /// Excuses extensions by token, of which the owner hears nothing.
    pub(super) fn note_extensions(&mut self, op: &Op) {
        let Op::Renew { holds } = op else {
            return;
        };
        let by_token = holds.iter().filter(|hold| hold.owner == NOBODY);
        let owners = by_token.filter_map(|hold| self.server.locks.get(&hold.name)?.owner);
        self.excused.extend(owners);
    }

    /// Sends something to a client on its command connection, in order.
    pub(super) fn answer(&mut self, origin: Origin, event: Event) {
        let delay = self.delay();
        let Some(place) = self.place_of(origin.uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if let Some(connection) = client
            .connection(origin)
            .filter(|at| !client.connections[*at].mute)
        {
            let last = &mut client.connections[connection].last_arrival.1;
            let arrival = (self.time + delay).max(*last);
            *last = arrival;
            self.at(arrival, event);
        }
    }

    pub(super) fn reply(
        &mut self,
        origin: Origin,
        call: CallId,
        server_ms: u64,
        outcome: CallOutcome,
    ) {
        let Some(place) = self.place_of(origin.uuid) else {
            return;
        };
        let client = &mut self.clients[place];
        if let Some(connection) = client.connection(origin) {
            client.connections[connection].server_clock = (server_ms, client.local(self.time));
            self.outcome(origin.uuid, call, outcome);
        }
    }

    pub(super) fn outcome(&mut self, uuid: Uuid, call: CallId, outcome: CallOutcome) {
        let Some(place) = self.place_of(uuid) else {
            return;
        };
        if self.clients[place].calls.remove(&call).is_none() {
            return;
        }
        // A call with a late answer is repeated after a pause.
        if matches!(outcome, CallOutcome::Unanswered | CallOutcome::NotSent) {
            self.trouble(self.time + AGAIN);
        }
        if self.clients[place].is_own(call) {
            return self.direct_outcome(place, call, outcome);
        }
        self.input(uuid, Input::Outcome { call, outcome });
    }

    /// The outcome of a call on the inline connection. The calls of a command have theirs together. One
    /// that is late or interrupted closes the connection.
    fn direct_outcome(&mut self, place: usize, call: CallId, outcome: CallOutcome) {
        let client = &mut self.clients[place];
        let (uuid, tracks) = (client.uuid, client.tracks);
        let Some(direct) = &mut client.direct else {
            return;
        };
        direct.calls.retain(|other| *other != call);
        let closes = matches!(outcome, CallOutcome::Unanswered);
        // Reads on the inline connection are not covered by client tracking.
        direct.heard.push(match outcome {
            CallOutcome::Answered(reply) if tracks => Input::AnsweredUntracked { call, reply },
            outcome => Input::Outcome { call, outcome },
        });
        if closes {
            for call in std::mem::take(&mut direct.calls) {
                client.calls.remove(&call);
                let outcome = CallOutcome::Unanswered;
                direct.heard.push(Input::Outcome { call, outcome });
            }
        }
        if !direct.calls.is_empty() {
            return;
        }
        let mut heard = std::mem::take(&mut direct.heard);
        if closes {
            self.close_direct(place);
        }
        let input = match heard.pop() {
            Some(only) if heard.is_empty() => only,
            last => Input::Together(heard.into_iter().chain(last).collect()),
        };
        self.input(uuid, input);
    }
}
