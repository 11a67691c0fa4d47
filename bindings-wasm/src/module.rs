//! All clients, locks and holds of a host, by the numbers that it gives them.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::connecting::TlsFault;
use redlatch_proto::engine::{Done, Input, LevelId, Request, RequestId, Target, Terms, in_order};
use redlatch_proto::error::{Error, ErrorKind, LostReason, Result};
use redlatch_proto::event::Event;
use redlatch_proto::hold::{HoldCell, Listener, LossListener};
use redlatch_proto::key::OwnerKey;
use redlatch_proto::maps::SortedMap;
use redlatch_proto::moment::Moment;
use redlatch_proto::net::{Arrival, ConnId, Io, Lost, Opened};
use redlatch_proto::quorum;
use redlatch_proto::url;
use redlatch_proto::wire::{Change, Counter, Inspection, Kind, Name, names};

use crate::bytes::{Arguments, Records, change, counter, inspection, key, record, value};
use crate::client::{Answer, Client, Program, Question, lock_name};
use crate::io::Way;
use crate::options::{
    AcquireOptions, ClientOptions, LockOptions, SetOption, Spelling, all_options, check_lease,
    read_count, read_duration,
};

/// The number of a client, a family of locks, a call or a hold. The host counts them up, so that it
/// fits a number of JavaScript.
pub(crate) type Id = u64;

/// Locks of a client with the same options, or one multi lock.
struct Family {
    client: Id,
    options: Rc<LockOptions>,
    multi: Option<Rc<Multi>>,
}

/// A multi lock.
struct Multi {
    name: Name,
    parts: Vec<(Name, Rc<LockOptions>)>,
}

/// A level that the host has.
struct Hold {
    client: Id,
    cell: Arc<HoldCell>,
    level: LevelId,
}

/// A request of a client; a failed one is the answer of its call.
pub(crate) struct Asked {
    client: Id,
    request: Result<Request>,
    /// The hold that it concerns.
    of: Option<Arc<HoldCell>>,
}

impl Asked {
    /// Of a call without a hold.
    fn of(client: Id, request: Result<Request>) -> Result<Asked> {
        let of = None;
        Ok(Asked {
            client,
            request,
            of,
        })
    }
}

impl Hold {
    fn asked(&self, request: impl FnOnce(Target) -> Result<Request>) -> Asked {
        let (owner, level) = (self.cell.owner, self.level);
        Asked {
            client: self.client,
            request: request(Target::Level { owner, level }),
            of: Some(self.cell.clone()),
        }
    }
}

#[derive(Default)]
pub(crate) struct Module {
    clients: SortedMap<Id, Client>,
    families: SortedMap<Id, Family>,
    holds: SortedMap<Id, Hold>,
    /// The client of each call without an answer.
    calls: SortedMap<RequestId, Id>,
    records: Records,
    answers: Vec<Answer>,
    last_conn: ConnId,
    /// When the host wakes the module, as far as it was told.
    wakes: Option<Moment>,
    random: u64,
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

/// Which owner an acquisition is made for.
fn key_of(kind: u8, number: u64) -> OwnerKey {
    match kind {
        key::TASK => OwnerKey::Task(number),
        key::EXPLICIT => OwnerKey::Explicit(number),
        _ => OwnerKey::Once,
    }
}

impl Module {
    pub(crate) fn spelling(&mut self, camel: bool) {
        self.spelling = camel.then_some(Spelling::CamelCase);
    }

    fn spells(&self) -> Spelling {
        self.spelling.unwrap_or(Spelling::SnakeCase)
    }

    /// The records since the last time.
    pub(crate) fn take(&mut self, output: &mut Vec<u8>) {
        self.answer();
        LOST.with_borrow_mut(|lost| {
            for (id, reason) in lost.drain(..) {
                let records = self.records.byte(record::LOST).number(id as f64);
                records.number(reason.number().into());
            }
        });
        EVENTFUL.with_borrow_mut(|clients| {
            for id in clients.drain(..) {
                self.records.byte(record::EVENTS).number(id as f64);
            }
        });
        output.clear();
        output.shrink_to(1 << 16);
        std::mem::swap(output, &mut self.records.0);
    }

    /// Makes records of the answers.
    fn answer(&mut self) {
        for Answer { id, result } in std::mem::take(&mut self.answers) {
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
        let records = self.records.byte(record::DONE).number(id as f64);
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
                            records.text(&part.form().owner(uuid, part.owner));
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
        let records = self.records.byte(record::DONE).number(id as f64);
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
        let records = self.records.byte(record::FAILED).number(id as f64);
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
    fn with(&mut self, client: Id, act: impl FnOnce(&mut Client, &mut dyn Io, &mut Vec<Answer>)) {
        let mut way = Way {
            client,
            records: &mut self.records,
            last_conn: &mut self.last_conn,
            random: &mut self.random,
        };
        if let Some(client) = self.clients.get_mut(&client) {
            act(client, &mut way, &mut self.answers);
        }
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
        self.with(client, |of_client, io, answers| {
            of_client.ask(now, Question { id, request, of }, io, notify, answers);
        });
    }

    // ---- clients ----

    pub(crate) fn open(&mut self, id: Id, mut given: Arguments<'_>) -> Result<()> {
        let random = [given.whole()?, given.whole()?, given.whole()?];
        self.random ^= random[2];
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
        self.with(id, |client, io, answers| client.orphan(now, io, answers));
        self.sweep();
    }

    /// Forgets clients without handles that have ended.
    fn sweep(&mut self) {
        let records = &mut self.records;
        self.clients.retain(|id, client| {
            let gone = client.is_dropped() && client.has_ended();
            if gone {
                records.byte(record::GONE).number(*id as f64);
            }
            !gone
        });
    }

    pub(crate) fn ready(&mut self, client: Id, _: &mut Arguments<'_>) -> Result<Asked> {
        Asked::of(client, Ok(Request::Connect))
    }

    /// Closes within a limit, or within its option.
    pub(crate) fn close(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let limit = given.duration("close_limit")?.unwrap_or_else(|| {
            let known = self.clients.get(&client);
            known.map_or(Duration::ZERO, |client| client.options.close_limit)
        });
        Asked::of(client, Ok(Request::Close { limit }))
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
        let multi = Some(Rc::new(Multi { name, parts }));
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

    fn client(&self, id: Id) -> Result<&Client> {
        self.clients.get(&id).ok_or_else(unknown)
    }

    fn lock(&self, family: Id, name: &str) -> Result<(Id, Rc<LockOptions>, Name)> {
        let own = self.families.get(&family).ok_or_else(unknown)?;
        let name = match &own.multi {
            Some(multi) => multi.name.clone(),
            None => lock_name(&own.options, name)?,
        };
        Ok((own.client, own.options.clone(), name))
    }

    /// The same with the kind of its key.
    fn keyed(&self, family: Id, name: &str) -> Result<(Id, Name, Kind)> {
        let (client, options, name) = self.lock(family, name)?;
        let kind = self.client(client)?.requests(&name, &options).kind();
        Ok((client, name, kind))
    }

    /// The name as it is in Redis.
    pub(crate) fn name(&mut self, family: Id, mut given: Arguments<'_>) -> Result<()> {
        let (_, _, name) = self.lock(family, given.text()?)?;
        self.tell_names(0, &[name]);
        Ok(())
    }

    fn acquire_options(&self, given: &mut Arguments<'_>) -> Result<AcquireOptions> {
        let (mut options, spelling) = (AcquireOptions::new(), self.spells());
        given.each_option(|name, value| options.set_spelled(spelling, name, value))?;
        Ok(options)
    }

    pub(crate) fn acquire(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        self.acquire_as(family, given, None)
    }

    /// Takes over the lock of a token, on the same terms.
    pub(crate) fn adopt(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let token = given.text()?;
        self.acquire_as(family, given, Some(token))
    }

    fn acquire_as(
        &self,
        family: Id,
        given: &mut Arguments<'_>,
        adopted: Option<&str>,
    ) -> Result<Asked> {
        let key = key_of(given.byte()?, given.whole()?);
        let name = given.text()?;
        let mut acquire = self.acquire_options(given)?.key(key);
        if let Some(token) = adopted {
            acquire = acquire.adopts(token);
        }
        let (client, options, name) = self.lock(family, name)?;
        let multi = self.families.get(&family).and_then(|own| own.multi.clone());
        let multi = multi.as_ref().map(|multi| {
            let parts = multi.parts.iter();
            parts.map(|(name, options)| (name, &**options)).collect()
        });
        let requests = self.client(client)?.requests(&name, &options);
        Asked::of(client, requests.acquire(acquire, multi))
    }

    pub(crate) fn steal(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (client, options, name) = self.lock(family, given.text()?)?;
        let mut terms = options.terms(&AcquireOptions::new());
        terms.special.steal = true;
        let request = Request::Acquire {
            name,
            key: OwnerKey::Once,
            wait: None,
            terms,
            token: None,
        };
        Asked::of(client, Ok(request))
    }

    /// Acquires once more as the owner of a hold.
    pub(crate) fn reenter(
        &mut self,
        family: Id,
        hold: Id,
        given: &mut Arguments<'_>,
    ) -> Result<Asked> {
        let acquire = self.acquire_options(given)?;
        let lock = self.families.get(&family).ok_or_else(unknown)?;
        let options = &lock.options;
        let hold = self.holds.get(&hold).ok_or_else(released)?;
        let name = &hold.cell.name;
        let terms = Terms {
            kind: self.client(hold.client)?.requests(name, options).kind(),
            ..options.terms(&acquire)
        };
        let checked = acquire.validate_for(options);
        let checked = checked.and_then(|()| options.validate());
        let request = checked.map(|()| Request::Acquire {
            name: name.clone(),
            key: OwnerKey::Hold(hold.level),
            wait: acquire.wait,
            terms,
            token: None,
        });
        Ok(Asked {
            client: hold.client,
            request,
            of: Some(hold.cell.clone()),
        })
    }

    pub(crate) fn inspect(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (client, name, kind) = self.keyed(family, given.text()?)?;
        let what = match given.byte()? {
            inspection::OWNERS => Inspection::Owners,
            inspection::PROCESSES => Inspection::Holders,
            _ => Inspection::Waiters,
        };
        Asked::of(client, Ok(Request::Inspect { name, kind, what }))
    }

    pub(crate) fn force(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (client, name, kind) = self.keyed(family, given.text()?)?;
        Asked::of(client, Ok(Request::Force { name, kind }))
    }

    /// Asks how many permits the semaphore has, after it was given a number of them if one follows.
    pub(crate) fn permits(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (client, _, name) = self.lock(family, given.text()?)?;
        let limit = given.rest(|given| read_count("limit", given.value()?))?;
        let limit = limit.and_then(|limit| u32::try_from(limit).ok());
        Asked::of(client, Ok(Request::Count { name, limit }))
    }

    /// Releases the lock with this token, or extends it if a lease follows.
    pub(crate) fn by_token(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (name, token) = (given.text()?, given.text()?);
        let lease = given.duration("lease")?;
        let (client, options, name) = self.lock(family, name)?;
        let requests = self.client(client)?.requests(&name, &options);
        let checked = lease.map_or(Ok(()), check_lease);
        let checked = checked.map_err(|error| requests.blamed(error));
        let form = checked.and_then(|()| requests.form(token));
        let name = name.clone();
        let request = form.map(|form| match lease {
            Some(lease) => Request::ExtendToken { name, form, lease },
            None => Request::ReleaseToken { name, form },
        });
        Asked::of(client, request)
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

    pub(crate) fn take_permits(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let permits = counted("permits", given.number()?, 1);
        let permits = permits.map_err(|error| error.on(&name).of(Counter::Semaphore.thing()));
        let wait = given.duration("wait")?;
        let request = permits.map(|permits| Request::Take {
            name,
            permits,
            wait,
        });
        Asked::of(client, request)
    }

    pub(crate) fn r#await(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let wait = given.duration("wait")?;
        Asked::of(client, Ok(Request::Await { name, wait }))
    }

    pub(crate) fn change(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let (kind, number) = (given.byte()?, given.number()?);
        let counter = match kind {
            change::SET_COUNT | change::COUNT_DOWN => Counter::Latch,
            _ => Counter::Semaphore,
        };
        let change = match kind {
            change::RELEASE => counted("permits", number, 1).map(Change::give),
            change::SET_PERMITS => counted("permits", number, 0).map(Change::SetPermits),
            change::ADD_PERMITS => {
                counted("permits", number.abs(), 0).map(|_| Change::AddPermits(number as i64))
            }
            change::DRAIN => Ok(Change::Drain),
            change::SET_COUNT => counted("count", number, 1).map(Change::SetCount),
            change::COUNT_DOWN => counted("by", number, 1).map(Change::CountDown),
            _ => Err(unknown()),
        };
        let change = change.map_err(|error| error.on(&name).of(counter.thing()));
        Asked::of(
            client,
            change.map(|change| Request::Change { name, change }),
        )
    }

    pub(crate) fn read(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let counter = counter_of(given.byte()?)?;
        Asked::of(client, Ok(Request::Read { name, counter }))
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

    /// The host gives up a level.
    fn take_hold(&mut self, id: Id) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        unwatch(&hold.cell, id);
        Some(hold)
    }

    pub(crate) fn release(&mut self, hold: Id, _: &mut Arguments<'_>) -> Result<Asked> {
        let hold = self.take_hold(hold).ok_or_else(released)?;
        Ok(hold.asked(|target| Ok(Request::Release(target))))
    }

    pub(crate) fn extend(&mut self, hold: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let lease = read_duration("lease", given.value()?)?;
        let hold = self.holds.get(&hold).ok_or_else(released)?;
        let checked = check_lease(lease).and_then(|()| {
            let rules = self.client(hold.client)?.quorum_rules();
            quorum::check_lease(lease, rules.map_or(Duration::ZERO, |(_, delay)| delay))
        });
        let checked = checked.map_err(|error| hold.cell.named(error));
        Ok(hold.asked(|target| checked.map(|()| Request::Extend { target, lease })))
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
        self.with(client, |client, io, answers| {
            client.tell(now, input, io, answers);
        });
    }

    /// Stops waiting for a call. A lock that it has won is released.
    pub(crate) fn cancel(&mut self, now: Moment, id: RequestId) {
        if let Some(client) = self.calls.remove(&id) {
            self.with(client, |client, io, answers| {
                client.cancel(now, id, io, answers);
            });
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
            self.with(client, |client, io, answers| {
                client.arrived(now, conn, arrival, io, answers);
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
        let due = |client: &Client| client.next_wake().is_some_and(|at| at <= now);
        let due: Vec<Id> = self
            .clients
            .iter()
            .filter_map(|(id, client)| due(client).then_some(*id))
            .collect();
        for id in due {
            self.with(id, |client, io, answers| client.wake(now, io, answers));
        }
        self.flush(now);
    }

    /// Writes what calls have left to be written.
    pub(crate) fn flush(&mut self, now: Moment) {
        self.write(|client, io, answers| client.flush(now, io, answers));
        let next = self.clients.values().filter_map(Client::next_wake).min();
        if let Some(at) = next.filter(|at| self.wakes.is_none_or(|told| *at < told)) {
            self.wakes = Some(at);
            self.records.byte(record::WAKE).number(at.0 as f64);
        }
    }

    /// Writes all that is left, because the program ends.
    pub(crate) fn end(&mut self, now: Moment) {
        self.write(|client, io, answers| client.end(now, io, answers));
    }

    fn write(&mut self, mut write: impl FnMut(&mut Client, &mut dyn Io, &mut Vec<Answer>)) {
        for (id, client) in self.clients.iter_mut() {
            let mut way = Way {
                client: *id,
                records: &mut self.records,
                last_conn: &mut self.last_conn,
                random: &mut self.random,
            };
            write(client, &mut way, &mut self.answers);
        }
        self.sweep();
    }

    /// The tables of errors, lost reasons and options, as JSON.
    pub(crate) fn tables(&self) -> String {
        let errors = ErrorKind::ALL.iter().map(|kind| {
            object(&[
                ("number", &kind.number()),
                ("name", &quoted(kind.name())),
                ("className", &quoted(kind.class_name())),
                ("retryable", &kind.retryable()),
                ("meaning", &quoted(kind.meaning())),
            ])
        });
        let reasons = LostReason::ALL.iter().map(|reason| {
            object(&[
                ("number", &reason.number()),
                ("name", &quoted(reason.name())),
                ("retryable", &reason.retryable()),
                ("meaning", &quoted(Error::from(*reason).message())),
            ])
        });
        let options = all_options().map(|info| {
            object(&[
                ("name", &quoted(info.name)),
                ("spelled", &quoted(&self.spells().of(info.name))),
                (
                    "scope",
                    &quoted(&format!("{:?}", info.scope).to_ascii_lowercase()),
                ),
                ("type", &quoted(&format!("{:?}", info.r#type))),
            ])
        });
        object(&[
            ("errors", &list(errors.collect())),
            ("reasons", &list(reasons.collect())),
            ("options", &list(options.collect())),
        ])
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn object(fields: &[(&str, &dyn Display)]) -> String {
    let mut json = String::from("{");
    for (name, value) in fields {
        let comma = if json.len() > 1 { "," } else { "" };
        json += &format!("{comma}\"{name}\":{value}");
    }
    json + "}"
}

fn list(rows: Vec<String>) -> String {
    format!("[{}]", rows.join(","))
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

fn counter_of(number: u8) -> Result<Counter> {
    match number {
        counter::SEMAPHORE => Ok(Counter::Semaphore),
        counter::LATCH => Ok(Counter::Latch),
        _ => Err(unknown()),
    }
}

/// Checks a number of permits or a count.
fn counted(what: &str, number: f64, least: u32) -> Result<u32> {
    let most = i32::MAX.unsigned_abs();
    if number >= least.into() && number <= most.into() && number.fract() == 0.0 {
        return Ok(number as u32);
    }
    Err(Error::invalid(format!(
        "{what} is {number}; give it a whole number from {least} to {most}"
    )))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn unknown() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the host uses a number that it has not given",
    )
}

fn released() -> Error {
    Error::new(
        ErrorKind::NotOwner,
        "this hold was released; acquire it again",
    )
}
