//! Read-write locks: their sides, and the marks of writers.

use super::*;

impl World {
    /// Beside a writer there are only readers of its own client, and of its own key.
    pub(super) fn check_sides(&mut self) {
        let mut wrong = None;
        for (name, shared) in &self.server.shared {
            let writers = || shared.owners.iter().filter(|lock| !lock.reads);
            let uuid = |lock: &Lock| lock.owner.map(|(uuid, _)| uuid);
            let of_one = shared
                .owners
                .iter()
                .all(|lock| uuid(lock) == uuid(&shared.owners[0]));
            let writes = writers().count();
            if writes > 1 || shared.is_written != (writes == 1) || (writes == 1 && !of_one) {
                wrong = Some(format!("{name}: {shared:?}"));
            }
            let Some((uuid, writer)) = writers().next().and_then(|lock| lock.owner) else {
                continue;
            };
            let Some(client) = self.clients.iter().find(|client| client.uuid == uuid) else {
                continue;
            };
            let now = client.local(self.time);
            let held = |owner: OwnerId| {
                client
                    .cells
                    .iter()
                    .find(|cell| cell.owner == owner && cell.is_held(now))
            };
            let readers = shared
                .owners
                .iter()
                .filter(|lock| lock.reads)
                .filter_map(|lock| held(lock.owner?.1));
            let key = held(writer).map(|cell| cell.key);
            for reader in readers {
                if key.is_some_and(|key| key != reader.key) && !self.is_excused((uuid, writer)) {
                    wrong = Some(format!("{reader:?} is beside the writer {writer}"));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }

    /// While the only problem is that the server tracks too many keys, there are about as many
    /// renewals as leases need.
    pub(super) fn check_looks(&mut self) {
        let few = |client: &&Client| client.renewals.extra > client.renewals.allowed();
        let Some(client) = self.clients.iter().find(few).filter(|_| self.tenants) else {
            return;
        };
        let Renewals {
            planned,
            extra,
            requests,
            ref last,
        } = client.renewals;
        let holds = last.len();
        let text = format!(
            "{extra} looks beside {planned} renewals of {holds} holds, with {requests} requests"
        );
        let uuid = client.uuid;
        self.fail(format!("{uuid}: {text}"));
    }

    /// A reader regards the mark of waiting writers for as long as its option says, and no longer.
    pub(super) fn check_mark_of(&mut self, place: usize, op: &Op) {
        let Op::Acquire(Acquire {
            owner,
            form,
            payload,
            ..
        }) = op
        else {
            return;
        };
        let Some(most) = payload.mark() else { return };
        let client = &mut self.clients[place];
        let now = client.local(self.time);
        let waiters = &client.engine.names.waiters;
        let waiter = waiters.iter().find(|(_, one)| one.call.owner == *owner);
        // Its caller may have its answer by now.
        let Some((id, waiter)) = waiter.filter(|_| form.kind == Kind::Read) else {
            return;
        };
        // A mark of a writer may be shorter.
        let most = waiter.terms.special.writer_preference.unwrap_or(most);
        // It counts from the call, or from before that.
        let end = *client.stand_back.entry(*id).or_insert(now.after(most));
        if end <= now {
            self.fail(format!("{op:?} stands back after {end:?}"));
        }
    }

    /// No mark stays of a writer that does not wait any more.
    pub(super) fn check_marks(&mut self) {
        let mut wrong = None;
        let marks = self.server.marks.keys();
        let marks = marks.flat_map(|name| {
            let owners = self.server.marked(name);
            owners.map(move |(owner, end_ms)| (name, owner, end_ms))
        });
        for (name, me, end_ms) in marks {
            let (uuid, owner) = me;
            let lives = |client: &&Client| client.uuid == uuid && !client.has_left(name);
            let client = self.clients.iter().find(lives);
            let excused = self.has_jumped || self.is_excused(me);
            if client.is_none_or(|client| client.engine.wants(owner)) || excused {
                continue;
            }
            let since = *self.ghosts.entry(me).or_insert(self.time);
            if self.time > self.disturbed.max(since) + allowed(GHOST, name) {
                wrong = Some(format!(
                    "{name}: the mark of {me:?} until {end_ms} stays since {since}"
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }
}
