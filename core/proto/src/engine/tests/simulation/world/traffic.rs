//! The outbox of a connection as it ships, and the commands at the server.

use super::*;

impl World {
    /// Schedules a turn of the I/O thread for this connection, after its other work.
    pub(super) fn turn_soon(&mut self, place: usize, connection: usize) {
        let delay = self.random.below(200);
        let client = &mut self.clients[place];
        if !std::mem::replace(&mut client.connections[connection].turning, true) {
            let origin = client.origin(connection);
            self.later(delay, Event::Turn(origin));
        }
    }

    /// The connection of `origin`, if it still exists and uses an outbox.
    pub(super) fn traffic_of(&mut self, origin: Origin) -> Option<(usize, usize)> {
        let place = self.place_of(origin.uuid)?;
        let connection = self.clients[place].connection(origin)?;
        self.clients[place].connections[connection]
            .traffic
            .as_ref()
            .map(|_| (place, connection))
    }

    pub(super) fn with_traffic<T>(
        &mut self,
        (place, connection): (usize, usize),
        act: impl FnOnce(&mut Played, Moment) -> T,
    ) -> T {
        let client = &mut self.clients[place];
        let (uuid, now) = (client.uuid, client.local(self.time));
        let traffic = client.connections[connection].traffic.as_mut().unwrap();
        let done = act(traffic, now);
        if let Some(wrong) = traffic.wrong() {
            self.fail(format!("{uuid}: {wrong}"));
        }
        done
    }

    pub(super) fn turn(&mut self, origin: Origin) {
        let Some(at) = self.traffic_of(origin) else {
            return;
        };
        self.clients[at.0].connections[at.1].turning = false;
        let (written, outcomes) = self.with_traffic(at, Played::turn);
        written
            .into_iter()
            .for_each(|written| self.write(at, written));
        self.tell(origin.uuid, outcomes);
    }

    pub(super) fn tell(&mut self, uuid: Uuid, outcomes: Outcomes) {
        outcomes
            .into_iter()
            .for_each(|(call, outcome)| self.outcome(uuid, call, outcome));
    }

    /// Sends a command. A loss on a connection takes everything behind it along.
    pub(super) fn write(&mut self, (place, connection): (usize, usize), written: Written) {
        let delay = self.delay();
        if !written.full {
            self.check_not_after(place, &written);
            let calls = written.calls.len() as u64;
            self.counts.calls += calls;
            self.counts.shared += if written.sort.is_some() { calls } else { 0 };
        }
        let client = &self.clients[place];
        let (origin, now) = (client.origin(connection), client.local(self.time));
        let (ends, limit) = (
            client.time_at(written.deadline),
            now.until(written.deadline),
        );
        let expires = ends + micros(timing::drift(limit));
        self.note(|| format!("{} writes {written:?}", origin.uuid));
        let fate = self.faults.fate(&mut self.random);
        let command = Shared {
            origin,
            written,
            expires,
            answered: true,
            doubled: false,
        };
        let late = match fate {
            Fate::Arrives => 0,
            Fate::Twice => {
                self.trouble(ends);
                let double = Shared {
                    answered: false,
                    doubled: true,
                    ..command.clone()
                };
                let delay = self.random.between(1000, 3_000_000);
                self.trouble(self.time + delay);
                self.later(delay, Event::Command(Box::new(double)));
                0
            }
            // Most delays only hold up the commands behind.
            _ if self.random.chance(750) => self.random.between(0, 2 * micros(limit)),
            _ => {
                self.stall(origin, fate, &command);
                0
            }
        };
        let state = &mut self.clients[place].connections[connection];
        let arrival = (self.time + delay + late).max(state.last_arrival.0);
        let (deaf, answered) = (state.deaf, !state.mute);
        state.last_arrival.0 = arrival;
        if deaf || !answered || late > 0 {
            self.trouble(ends.max(arrival));
        }
        if !deaf {
            self.at(
                arrival,
                Event::Command(Box::new(Shared {
                    answered,
                    ..command
                })),
            );
        }
    }

    /// Stops all traffic on a connection. It is cut soon, or found to be silent.
    pub(super) fn stall(&mut self, origin: Origin, fate: Fate, command: &Shared) {
        let Some((place, connection)) = self.traffic_of(origin) else {
            return;
        };
        let limit = command.expires.saturating_sub(self.time);
        self.trouble(self.time + SILENCE.max(3 * limit));
        let state = &mut self.clients[place].connections[connection];
        state.mute = true;
        state.deaf |= fate != Fate::Unanswered;
        if fate == Fate::Late {
            let delay = self.random.between(1000, 3_000_000);
            self.trouble(self.time + delay);
            self.later(
                delay,
                Event::Command(Box::new(Shared {
                    answered: false,
                    ..command.clone()
                })),
            );
        }
        if self.random.chance(500) {
            let delay = self.random.between(0, 2 * limit);
            self.later(delay, Event::Cut(origin));
        }
    }

    /// Checks that the server's clock ends a command no later than the client's clock. A command
    /// that was held up for longer than its time is already stale, and the server refuses it.
    pub(super) fn check_not_after(&mut self, place: usize, written: &Written) {
        let client = &self.clients[place];
        // The clocks may have drifted apart since the call was handed to the outbox.
        let end = client.time_at(written.deadline) + micros(timing::drift(written.limit));
        let latest = self.server.clock_at(end);
        let is_stale = written.not_after < self.server.clock_at(self.time);
        if written.not_after > latest && !is_stale && !self.has_jumped {
            self.fail(format!("{written:?} may be done after {latest}"));
        }
    }

    pub(super) fn cut(&mut self, origin: Origin) {
        if let Some((place, connection)) = self.traffic_of(origin) {
            self.disconnect(place, connection);
        }
    }

    /// Breaks a connection. Its last command may or may not have been written.
    pub(super) fn break_traffic(&mut self, uuid: Uuid, mut traffic: Played) {
        let client = self.clients.iter().find(|client| client.uuid == uuid);
        let now = client.map_or(Moment::default(), |client| client.local(self.time));
        let mut outcomes = if self.random.chance(500) {
            traffic.turn(now).1
        } else {
            Outcomes::new()
        };
        let (others, wrong) = traffic.broken();
        outcomes.extend(others);
        wrong
            .into_iter()
            .for_each(|wrong| self.fail(format!("{uuid}: {wrong}")));
        for (call, outcome) in outcomes {
            self.later(0, Event::Told(uuid, call, outcome));
        }
    }

    pub(super) fn invalidated(&mut self, origin: Origin, name: Name) {
        if let Some(at) = self.traffic_of(origin) {
            self.with_traffic(at, Played::heard);
        }
        self.input(origin.uuid, Input::Invalidated(Some(vec![name])));
    }

    pub(super) fn wake_traffic(&mut self, place: usize) {
        for connection in 0..self.clients[place].connections.len() {
            let origin = self.clients[place].origin(connection);
            let Some(at) = self.traffic_of(origin) else {
                continue;
            };
            let (outcomes, silent) = self.with_traffic(at, Played::wake);
            self.tell(origin.uuid, outcomes);
            if silent {
                self.note(|| format!("{} finds {connection} silent", origin.uuid));
                self.disconnect(place, connection);
            } else {
                self.turn_soon(place, connection);
            }
        }
    }

    /// Queues a command. The server runs one command at a time.
    pub(super) fn command(&mut self, command: Shared) {
        self.queue.push_back(command);
        if self.queue.len() == 1 {
            self.take_next();
        }
    }

    pub(super) fn take_next(&mut self) {
        let Some(next) = self.queue.front() else {
            return;
        };
        let takes = self.pace * next.written.calls.len() as u64;
        if self.pace > 30 {
            self.trouble(self.time + takes);
        }
        if takes == 0 {
            self.serve()
        } else {
            self.later(takes, Event::Serve)
        }
    }

    pub(super) fn serve(&mut self) {
        let Some(command) = self.queue.pop_front() else {
            return;
        };
        let said = self.answer_to(&command);
        let Shared {
            origin,
            written,
            answered,
            ..
        } = command;
        self.note(|| format!("S says {said:?} to {written:?}"));
        if answered {
            let (to, server_ms) = (Box::new(written), self.server.now_ms());
            self.answer(
                origin,
                Event::Said {
                    origin,
                    to,
                    server_ms,
                    said,
                },
            );
        }
        self.take_next();
    }

    pub(super) fn answer_to(&mut self, command: &Shared) -> Said {
        let Written {
            sort,
            calls,
            full,
            not_after,
            ..
        } = &command.written;
        let (script, is_many) = (script_of(&calls[0].1, *sort), sort.is_some());
        if !full && !self.server.scripts.contains(&script) {
            return Said::Error("NOSCRIPT No matching script. Please use EVAL.");
        }
        if calls.iter().any(|(_, op)| {
            names(op)
                .iter()
                .any(|name| Some(name) == self.denied.as_ref())
        }) {
            return Said::Error(DENIED);
        }
        if self.random.chance(self.faults.refusal) {
            return Said::Error(self.refusal(command));
        }
        self.server.scripts.insert(script);
        let is_acquire = matches!(*calls[0].1, Op::Acquire(_));
        if is_many && is_acquire && self.server.now_ms() > *not_after {
            return Said::Late;
        }
        let replies = calls
            .iter()
            .map(|(call, op)| self.reply_to(command, *call, op, is_many))
            .collect();
        self.spread_effects();
        Said::Done(replies)
    }

    /// An error for a command that the server refuses. A single call that changes or frees a lock
    /// gets only transient errors.
    pub(super) fn refusal(&mut self, command: &Shared) -> &'static str {
        self.trouble(self.time + AGAIN);
        let Written { sort, calls, .. } = &command.written;
        let place = self.place_of(command.origin.uuid);
        let is_split = place.is_some_and(|place| self.clients[place].is_split());
        if is_split && self.random.chance(300) {
            return self.random.pick(&ELSEWHERE);
        }
        let may_last = sort.is_some() || matches!(*calls[0].1, Op::Acquire(_));
        if may_last && self.random.chance(400) {
            self.random.pick(&LASTING)
        } else {
            self.random.pick(&PASSING)
        }
    }

    /// The reply to one call of a command. A script for several locks does not handle every case.
    pub(super) fn reply_to(
        &mut self,
        command: &Shared,
        call: CallId,
        op: &Arc<Op>,
        is_many: bool,
    ) -> Option<Reply> {
        let Shared {
            origin,
            ref written,
            expires,
            doubled,
            ..
        } = *command;
        if is_many && (self.server.is_odd(origin, op) || self.random.chance(self.faults.refusal)) {
            return None;
        }
        let (op, not_after) = (op.clone(), written.not_after);
        let copy = Copied {
            origin,
            call,
            op,
            not_after,
            expires,
            answered: false,
            doubled,
        };
        let reply = self.execute(&copy);
        self.note_done(&copy, &CallOutcome::Answered(reply.clone()));
        Some(reply)
    }

    pub(super) fn said(&mut self, origin: Origin, to: &Written, server_ms: u64, said: &Said) {
        let Some(at) = self.traffic_of(origin) else {
            return;
        };
        let Answered {
            written,
            outcomes,
            moved,
            demoted,
        } = self.with_traffic(at, |traffic, now| traffic.replied(now, to, server_ms, said));
        written
            .into_iter()
            .for_each(|written| self.write(at, written));
        self.tell(origin.uuid, outcomes);
        moved.into_iter().for_each(|moved| self.send_on(at, moved));
        // The connection may have been replaced meanwhile.
        if self.traffic_of(origin).is_some() {
            if demoted {
                self.disconnect(at.0, at.1)
            } else {
                self.turn_soon(at.0, at.1)
            }
        }
    }

    /// Sends a call to another part of the server, with the rest of its time limit.
    pub(super) fn send_on(
        &mut self,
        (place, connection): (usize, usize),
        Moved {
            call,
            op,
            limit,
            asking,
        }: Moved,
    ) {
        let to = (connection + 1) % self.clients[place].parts;
        let uuid = self.clients[place].uuid;
        if limit.is_zero() || self.clients[place].connections[to].traffic.is_none() {
            return self.outcome(uuid, call, CallOutcome::NotSent);
        }
        self.clients[place].calls.insert(call, to);
        self.with_traffic((place, to), |traffic, now| {
            traffic.send(now, call, op, limit, asking)
        });
        self.turn_soon(place, to);
    }

    /// Changes the server's speed, and sometimes makes it lose its scripts.
    pub(super) fn change_pace(&mut self) {
        let pause = self.random.between(10_000, 600_000);
        self.later(pause, Event::Pace);
        if self.faults.slow > 0 && self.crowded {
            self.pace = self.random.pick(&PACES);
        }
        if self.faults.tenants {
            self.server.room = Some(self.random.pick(&[0, 1, 1, 2]));
            self.server.forget_tracked();
            self.spread_effects();
        }
        if self.random.chance(300) {
            self.note(|| "the server forgets the scripts".to_owned());
            self.server.scripts.clear();
        }
    }
}
