//! All clients, locks and holds of a host, by the numbers that it gives them.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::connecting::TlsFault;
use redlatch_proto::engine::{Done, Input, LevelId, Request, RequestId, in_order};
use redlatch_proto::error::{Error, ErrorKind, LostReason, Result};
use redlatch_proto::event::Event;
use redlatch_proto::hold::{HoldCell, Listener, LossListener};
use redlatch_proto::maps::SortedMap;
use redlatch_proto::moment::Moment;
use redlatch_proto::net::{Arrival, ConnId, Lost, Opened};
use redlatch_proto::url;
use redlatch_proto::wire::{Counter, Name, names};

use crate::bytes::{Arguments, counter, record, value};
use crate::client::{Client, Program, Question, lock_name};
use crate::io::{Answer, Outgoing, Way};
use crate::options::{ClientOptions, LockOptions, SetOption, Spelling, tables};

/// The number of a client, a family of locks, a call or a hold. The host counts them up, so that it
/// fits a number of JavaScript.
pub(crate) type Id = u64;

/// Locks of a client with the same options, or one multi lock.
pub(crate) struct Family {
    client: Id,
    pub(crate) options: Rc<LockOptions>,
    pub(crate) multi: Option<Multi>,
}

/// A multi lock.
pub(crate) struct Multi {
    name: Name,
    pub(crate) parts: Vec<(Name, Rc<LockOptions>)>,
}

/// A level that the host has.
pub(crate) struct Hold {
    pub(crate) client: Id,
    pub(crate) cell: Arc<HoldCell>,
    pub(crate) level: LevelId,
}

/// A request of a client; a failed one is the answer of its call.
pub(crate) struct Asked {
    pub(crate) client: Id,
    pub(crate) request: Result<Request>,
    /// The hold that it concerns.
    pub(crate) of: Option<Arc<HoldCell>>,
}

#[derive(Default)]
pub(crate) struct Module {
    clients: SortedMap<Id, Client>,
    pub(crate) families: SortedMap<Id, Family>,
    pub(crate) holds: SortedMap<Id, Hold>,
    /// The client of each call without an answer.
    calls: SortedMap<RequestId, Id>,
    out: Outgoing,
    /// When the host wakes the module, as far as it was told.
    wakes: Option<Moment>,
    spelling: Option<Spelling>,
}

thread_local! {
    /// Holds that were lost, as listeners have heard since the last record.
    static LOST: RefCell<Vec<(Id, LostReason)>> = const { RefCell::new(Vec::new()) };
    /// The same: clients with events.
    static EVENTFUL: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

/// The levels of a hold that the host has, and is told the loss of.
#[derive(Default)]
struct Levels(Vec<Id>);

impl LossListener for Levels {
    fn lost(self: Box<Self>, reason: LostReason) {
        LOST.with_borrow_mut(|lost| lost.extend(self.0.iter().map(|id| (*id, reason))));
    }
}

/// The levels in the listener. Nothing else is ever put there.
fn levels(listener: &mut Listener) -> Option<&mut Vec<Id>> {
    let listener = listener.get_or_insert_with(|| Box::new(Box::new(Levels::default())));
    let listener: &mut dyn Any = &mut ***listener;
    listener.downcast_mut().map(|Levels(ids)| ids)
}

/// Has the host told when the hold is lost.
fn watch(cell: &HoldCell, id: Id) {
    let watched = cell.listen(|listener| {
        if let Some(ids) = levels(listener) {
            ids.push(id);
        }
    });
    if let Err(Some(reason)) = watched {
        LOST.with_borrow_mut(|lost| lost.push((id, reason)));
    }
}

/// The host has no use for this level any more. A hold that has ended tells nobody anyway.
fn unwatch(cell: &HoldCell, id: Id) {
    let _ = cell.listen(|listener| {
        // The last one is released first, as a rule.
        if let Some(ids) = levels(listener)
            && let Some(at) = ids.iter().rposition(|watched| *watched == id)
        {
            ids.remove(at);
        }
    });
}

impl Module {
    pub(crate) fn spelling(&mut self, camel: bool) {
        self.spelling = camel.then_some(Spelling::CamelCase);
    }

    pub(crate) fn spells(&self) -> Spelling {
        self.spelling.unwrap_or(Spelling::SnakeCase)
    }

    /// The records since the last time.
    pub(crate) fn take(&mut self, output: &mut Vec<u8>) {
        self.answer();
        LOST.with_borrow_mut(|lost| {
            for (id, reason) in lost.drain(..) {
                let records = self.out.records.byte(record::LOST).number(id as f64);
                records.number(reason.number().into());
            }
        });
        EVENTFUL.with_borrow_mut(|clients| {
            for id in clients.drain(..) {
                self.out.records.byte(record::EVENTS).number(id as f64);
            }
        });
        output.clear();
        output.shrink_to(1 << 16);
        std::mem::swap(output, &mut self.out.records.0);
    }

    /// Makes records of the answers.
    fn answer(&mut self) {
        for Answer { id, result } in std::mem::take(&mut self.out.answers) {
            let client = self.calls.remove(&id);
            match result {
                Ok(done) => self.done(id, client.unwrap_or_default(), done),
                Err(error) => self.fail(id, error),
            }
        }
    }

    fn done(&mut self, id: Id, client: Id, done: Done) {
        if let Done::Closed(names) = done {
            return self.tell_names(id, &names);
        }
        let records = self.out.records.byte(record::DONE).number(id as f64);
        match done {
            Done::Forced(flag) | Done::Set(flag) => {
                records.byte(value::FLAG).byte(u8::from(flag));
            }
            Done::Number(number) => {
                records.byte(value::NUMBER).number(number as f64);
            }
            Done::Inspected(holders) => {
                records.byte(value::HOLDERS).number(holders.len() as f64);
                for holder in holders {
                    let remaining = holder.remaining.map_or(-1.0, millis);
                    records.text(&holder.owner);
                    records.number(holder.count.into()).number(remaining);
                    match holder.process {
                        None => records.byte(0),
                        Some(process) => {
                            records.byte(1).text(&process.client_name);
                            records.text(&process.language);
                            records.number(process.pid.into()).text(&process.host)
                        }
                    };
                }
            }
            Done::Counted(permits) => {
                records.byte(value::PERMITS);
                records.number(permits.available as f64);
                records.number(permits.limit as f64);
            }
            Done::Granted { cell, level } => {
                match (cell.token(), cell.parts()) {
                    (Some(token), _) => records.byte(value::TOKEN).whole(token),
                    (None, []) => records.byte(value::GRANTED),
                    (None, parts) => {
                        records.byte(value::PARTS).number(parts.len() as f64);
                        let uuid = self.clients.get(&client).map_or("", Client::uuid);
                        for part in parts {
                            records.text(&part.owner_name(uuid));
                            records.whole(part.token().unwrap_or_default());
                        }
                        records
                    }
                };
                watch(&cell, id);
                let hold = Hold {
                    client,
                    cell,
                    level,
                };
                self.holds.insert(id, hold);
            }
            // The host gives permits that are taken back by their number.
            Done::Connected | Done::Released | Done::Extended | Done::Taken { .. } | Done::Open => {
                records.byte(value::NONE);
            }
            Done::Closed(_) => {}
        }
    }

    /// An answer of texts; the number 0 stands for the call that is made now.
    fn tell_names(&mut self, id: Id, names: &[impl AsRef<str>]) {
        let records = self.out.records.byte(record::DONE).number(id as f64);
        records.byte(value::NAMES).number(names.len() as f64);
        for name in names {
            records.text(name.as_ref());
        }
    }

    /// A record of a failure; the number 0 stands for the call that is made now.
    pub(crate) fn fail(&mut self, id: Id, error: Error) {
        let spelling = self.spells();
        let error = error.spelled(|name| spelling.of(name));
        let lists = error.option_fault().is_some_and(|fault| fault.lists_names);
        let records = self.out.records.byte(record::FAILED).number(id as f64);
        records.number(error.kind().number().into());
        records.text(&error.named_message()).byte(u8::from(lists));
        match error.lock_name() {
            Some(name) => records.byte(1).text(name),
            None => records.byte(0),
        };
        let reason = error.lost_reason().map_or(0, |reason| reason.number());
        records.number(reason.into());
    }

    /// Lets a client do something, with the way to the host.
    fn with(&mut self, now: Moment, id: Id, act: impl FnOnce(&mut Client, &mut Way<'_>)) {
        let (client, out) = (id, &mut self.out);
        if let Some(known) = self.clients.get_mut(&id) {
            act(known, &mut Way { now, client, out });
        }
    }

    /// Lets those clients do something that this holds for.
    fn with_each(
        &mut self,
        now: Moment,
        which: fn(&Client, Moment) -> bool,
        act: fn(&mut Client, &mut Way<'_>),
    ) {
        for (id, known) in self.clients.iter_mut() {
            let (client, out) = (*id, &mut self.out);
            if which(known, now) {
                act(known, &mut Way { now, client, out });
            }
        }
        self.sweep();
    }

    /// Begins a call that is answered later.
    pub(crate) fn ask(&mut self, now: Moment, id: Id, asked: Asked) {
        let (client, of) = (asked.client, asked.of);
        let request = match asked.request {
            Ok(request) => request,
            Err(error) => return self.fail(id, error),
        };
        self.calls.insert(id, client);
        let notify = move || EVENTFUL.with_borrow_mut(|clients| clients.push(client));
        self.with(now, client, |client, way| {
            client.ask(Question { id, request, of }, notify, way);
        });
    }

    // ---- clients ----

    pub(crate) fn open(&mut self, id: Id, mut given: Arguments<'_>) -> Result<()> {
        let random = [given.whole()?, given.whole()?, given.whole()?];
        self.out.random ^= random[2];
        let program = Program {
            language: given.text()?,
            pid: given.number()? as u32,
            host: given.text()?,
        };
        let url = given.optional_text()?;
        let variable = given.optional_text()?;
        let (mut options, mut locks) = (ClientOptions::new(), LockOptions::new());
        let spelling = self.spells();
        let mut both = Both(&mut options, &mut locks);
        given.each_option(|name, value| both.set_spelled(spelling, name, value))?;
        // Options are told of before the URL, as by the native faces.
        options.validate()?;
        let place = url.map_or_else(|| url::from_env(variable, url::parse), url::parse)?;
        let client = Client::new(random, &program, place, options, locks)?;
        let pems = [
            &client.options.tls_ca,
            &client.options.tls_cert,
            &client.options.tls_key,
        ];
        let pems = pems.map(|pem| {
            let text = pem.as_ref().map_or("", |pem| pem.text());
            let path = pem.as_ref().is_some_and(|pem| pem.path().is_some());
            format!("{}{text}", if path { "@" } else { "" })
        });
        let (scheme, exit_limit) = (
            client.scheme().to_owned(),
            millis(client.options.exit_limit),
        );
        self.clients.insert(id, client);
        let [ca, cert, key] = pems;
        self.tell_names(0, &[scheme, ca, cert, key, exit_limit.to_string()]);
        Ok(())
    }

    /// No handle to the client is left.
    pub(crate) fn drop_client(&mut self, now: Moment, id: Id) {
        self.with(now, id, Client::orphan);
        self.sweep();
    }

    /// Forgets clients without handles that have ended.
    fn sweep(&mut self) {
        let records = &mut self.out.records;
        self.clients.retain(|id, client| {
            let gone = client.is_dropped() && client.has_ended();
            if gone {
                records.byte(record::GONE).number(*id as f64);
            }
            !gone
        });
    }

    pub(crate) fn stats(&mut self, client: Id) {
        let (spelling, client) = (self.spells(), self.clients.get(&client));
        let stats = client.map(Client::stats).unwrap_or_default();
        let pair = |(name, count): (&str, u64)| [spelling.of(name), count.to_string()];
        let stats: Vec<String> = stats.into_iter().flat_map(pair).collect();
        self.tell_names(0, &stats);
    }

    /// Kind, level, name of the lock (or nothing) and text of each event.
    pub(crate) fn events(&mut self, client: Id) {
        let client = self.clients.get(&client);
        let running = client.and_then(|client| client.running.as_ref());
        let events = running.map(|running| running.ring.drain());
        let texts = |event: Event| {
            let level = format!("{:?}", event.level).to_ascii_lowercase();
            let lock = event.lock.as_deref().unwrap_or_default().to_owned();
            [event.kind.to_owned(), level, lock, event.text.clone()]
        };
        let events = events.unwrap_or_default().into_iter();
        let events: Vec<String> = events.flat_map(texts).collect();
        self.tell_names(0, &events);
    }

    // ---- locks ----

    pub(crate) fn family(&mut self, id: Id, client: Id, mut given: Arguments<'_>) -> Result<()> {
        let spelling = self.spells();
        let known = self.client(client)?;
        let name = given.text()?;
        let options = if given.0.is_empty() {
            known.locks.clone()
        } else {
            let mut options = (*known.locks).clone();
            given.each_option(|name, value| options.set_spelled(spelling, name, value))?;
            options.validate()?;
            options.validate_kind(&known.locks)?;
            known.check_for_quorum(&options)?;
            Rc::new(options)
        };
        known.check_replicas(&options)?;
        lock_name(&options, name)?;
        let multi = None;
        let family = Family {
            client,
            options,
            multi,
        };
        self.families.insert(id, family);
        Ok(())
    }

    /// The multi lock of these locks. Its own answer: the names in their order.
    pub(crate) fn multi(&mut self, id: Id, client: Id, mut given: Arguments<'_>) -> Result<()> {
        self.client(client)?.refuse_quorum("multi lock")?;
        let mut parts = Vec::new();
        while !given.0.is_empty() {
            let (family, name) = (given.number()? as Id, given.text()?);
            let own = self.families.get(&family);
            let Some(own) = own.filter(|own| own.client == client) else {
                return Err(Error::of_another_client().on(&name.into()));
            };
            match &own.multi {
                Some(inner) => parts.extend(inner.parts.iter().cloned()),
                None => parts.push((lock_name(&own.options, name)?, own.options.clone())),
            }
        }
        let (name, parts) = in_order(parts, |(name, options)| (name, options.kind))?;
        let names: Vec<Name> = parts.iter().map(|(name, _)| name.clone()).collect();
        self.tell_names(0, &names);
        let options = Rc::new(parts[0].1.of_multi_lock());
        let multi = Some(Multi { name, parts });
        let family = Family {
            client,
            options,
            multi,
        };
        self.families.insert(id, family);
        Ok(())
    }

    pub(crate) fn drop_family(&mut self, id: Id) {
        self.families.remove(&id);
    }

    pub(crate) fn client(&self, id: Id) -> Result<&Client> {
        self.clients.get(&id).ok_or_else(unknown)
    }

    pub(crate) fn lock(&self, family: Id, name: &str) -> Result<(Id, Rc<LockOptions>, Name)> {
        let own = self.families.get(&family).ok_or_else(unknown)?;
        let name = match &own.multi {
            Some(multi) => multi.name.clone(),
            None => lock_name(&own.options, name)?,
        };
        Ok((own.client, own.options.clone(), name))
    }

    /// The name as it is in Redis.
    pub(crate) fn name(&mut self, family: Id, mut given: Arguments<'_>) -> Result<()> {
        let (_, _, name) = self.lock(family, given.text()?)?;
        self.tell_names(0, &[name]);
        Ok(())
    }

    // ---- counters ----

    pub(crate) fn counter_name(&self, client: Id, mut given: Arguments<'_>) -> Result<()> {
        let what = match counter_of(given.byte()?)? {
            Counter::Semaphore => "plain semaphore",
            Counter::Latch => "latch",
        };
        self.client(client)?.refuse_quorum(what)?;
        names::name(given.text()?).map(drop)
    }

    // ---- holds ----

    pub(crate) fn is_held(&self, now: Moment, hold: Id) -> bool {
        let hold = self.holds.get(&hold);
        hold.is_some_and(|hold| hold.cell.is_held(now))
    }

    pub(crate) fn check(&mut self, now: Moment, hold: Id) -> Result<()> {
        let Hold { cell, .. } = self.holds.get(&hold).ok_or_else(released)?;
        cell.check(now)
    }

    /// In milliseconds.
    pub(crate) fn remaining(&self, now: Moment, hold: Id) -> f64 {
        let hold = self.holds.get(&hold);
        let held = hold.filter(|hold| hold.cell.is_held(now));
        held.map_or(0.0, |hold| millis(now.until(hold.cell.deadline())))
    }

    pub(crate) fn count(&self, hold: Id) -> u32 {
        let hold = self.holds.get(&hold);
        hold.map_or(0, |hold| hold.cell.count())
    }

    /// The owner as it is in Redis.
    pub(crate) fn owner(&mut self, hold: Id) -> Result<()> {
        let Hold { cell, client, .. } = self.holds.get(&hold).ok_or_else(released)?;
        let owner = cell.owner_name(self.client(*client)?.uuid());
        self.tell_names(0, &[owner]);
        Ok(())
    }

    /// The host gives up a level.
    pub(crate) fn take_hold(&mut self, id: Id) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        unwatch(&hold.cell, id);
        Some(hold)
    }

    /// The handle of a hold was lost without a release. False if there is no such hold. The host is still told when the lease ends:
    /// it may have given out a signal of the hold.
    pub(crate) fn abandon(&mut self, now: Moment, hold: Id) -> bool {
        let Some(hold) = self.holds.remove(&hold) else {
            return false;
        };
        let (owner, level) = (hold.cell.owner, hold.level);
        self.tell(now, hold.client, Input::Abandoned { owner, level });
        true
    }

    fn tell(&mut self, now: Moment, client: Id, input: Input) {
        self.with(now, client, |client, way| client.tell(input, way));
    }

    /// Stops waiting for a call. A lock that it has won is released.
    pub(crate) fn cancel(&mut self, now: Moment, id: RequestId) {
        if let Some(client) = self.calls.remove(&id) {
            self.with(now, client, |client, way| client.cancel(id, way));
        } else if let Some(hold) = self.take_hold(id) {
            // Granted, and the host had not told its caller yet.
            let (owner, level) = (hold.cell.owner, hold.level);
            self.tell(now, hold.client, Input::Dropped { owner, level });
        }
    }

    // ---- connections and time ----

    fn client_of(&self, conn: ConnId) -> Option<Id> {
        let mut clients = self.clients.iter();
        clients.find_map(|(id, client)| client.has_conn(conn).then_some(*id))
    }

    /// Takes in an event of a connection.
    fn arrived(&mut self, now: Moment, conn: ConnId, arrival: &Arrival<'_>) {
        if let Some(client) = self.client_of(conn) {
            self.with(now, client, |client, way| {
                client.arrived(conn, arrival, way)
            });
            self.flush(now);
        }
    }

    pub(crate) fn opened(
        &mut self,
        now: Moment,
        conn: ConnId,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let opened = Opened {
            identity: given.whole()?,
            ..Opened::default()
        };
        self.arrived(now, conn, &Arrival::Opened(opened));
        Ok(())
    }

    pub(crate) fn received(&mut self, now: Moment, conn: ConnId, bytes: &[u8]) {
        self.arrived(now, conn, &Arrival::Bytes(bytes));
    }

    pub(crate) fn closed(
        &mut self,
        now: Moment,
        conn: ConnId,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let (tls, text) = (given.byte()?, given.text()?);
        let why = Lost {
            text,
            // 255: it has nothing to do with TLS.
            tls: (tls != u8::MAX).then(|| TlsFault::from_number(tls)),
            ..Lost::default()
        };
        self.arrived(now, conn, &Arrival::Closed(why));
        Ok(())
    }

    pub(crate) fn wake(&mut self, now: Moment) {
        self.wakes = None;
        self.with_each(now, Client::is_due, Client::wake);
        self.flush(now);
    }

    /// Writes what calls have left to be written.
    pub(crate) fn flush(&mut self, now: Moment) {
        self.with_each(now, |_, _| true, Client::flush);
        let next = self.clients.values().filter_map(Client::next_wake).min();
        if let Some(at) = next.filter(|at| self.wakes.is_none_or(|told| *at < told)) {
            self.wakes = Some(at);
            self.out.records.byte(record::WAKE).number(at.0 as f64);
        }
    }

    /// Writes all that is left, because the program ends.
    pub(crate) fn end(&mut self, now: Moment) {
        self.with_each(now, |_, _| true, Client::end);
    }

    /// The tables of errors, lost reasons and options, as JSON.
    pub(crate) fn tables(&self) -> String {
        tables(self.spells())
    }
}

/// A client takes the options of its locks, too.
struct Both<'a>(&'a mut ClientOptions, &'a mut LockOptions);

impl SetOption for Both<'_> {
    const SCOPE: crate::options::Scope = crate::options::Scope::Client;

    fn set_option(&mut self, name: &str, value: crate::options::OptionValue<'_>) -> Result<()> {
        if LockOptions::has(name) {
            self.1.set(name, value)
        } else {
            self.0.set(name, value)
        }
    }
}

pub(crate) fn counter_of(number: u8) -> Result<Counter> {
    match number {
        counter::SEMAPHORE => Ok(Counter::Semaphore),
        counter::LATCH => Ok(Counter::Latch),
        _ => Err(unknown()),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(crate) fn unknown() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the host uses a number that it has not given",
    )
}

pub(crate) fn released() -> Error {
    Error::new(
        ErrorKind::NotOwner,
        "this hold was released; acquire it again",
    )
}
