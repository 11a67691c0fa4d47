//! All clients, locks and holds of a host, by the numbers that it gives them.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use redlatch_proto::connecting::TlsFault;
use redlatch_proto::engine::{Done, Input, LevelId, Request, RequestId, Target, Terms, in_order};
use redlatch_proto::error::{Error, ErrorKind, LostReason, Result};
use redlatch_proto::event::Event;
use redlatch_proto::hold::{HoldCell, Listener, LossListener};
use redlatch_proto::key::OwnerKey;
use redlatch_proto::maps::Map;
use redlatch_proto::moment::Moment;
use redlatch_proto::quorum;
use redlatch_proto::url;
use redlatch_proto::wire::{Change, Counter, Inspection, Name, names};

use crate::bytes::{Arguments, Records, change, counter, record, value};
use crate::client::{Answer, Client, Program, Question, lock_name};
use crate::io::{Arrival, ConnId, Io, Lost};
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

#[derive(Default)]
pub(crate) struct Module {
    clients: Map<Id, Client>,
    families: Map<Id, Family>,
    holds: Map<Id, Hold>,
    /// The client of each call without an answer.
    calls: Map<RequestId, Id>,
    records: Records,
    answers: Vec<Answer>,
    last_conn: ConnId,
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
        1 => OwnerKey::Task(number),
        2 => OwnerKey::Explicit(number),
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
        let records = self.records.byte(record::DONE).number(id as f64);
        match done {
            Done::Connected | Done::Released | Done::Extended => {
                records.byte(value::NONE);
            }
            // The host gives permits back by their number.
            Done::Taken { .. } | Done::Open => {
                records.byte(value::NONE);
            }
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
            Done::Closed(names) => {
                records.byte(value::NAMES).number(names.len() as f64);
                for name in names {
                    records.text(&name);
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
                self.holds.insert(
                    id,
                    Hold {
                        client,
                        cell,
                        level,
                    },
                );
            }
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
    fn with<T>(
        &mut self,
        client: Id,
        act: impl FnOnce(&mut Client, &mut Io<'_>, &mut Vec<Answer>) -> T,
    ) -> Option<T> {
        let mut io = Io {
            records: &mut self.records,
            last_conn: &mut self.last_conn,
            random: &mut self.random,
        };
        let client = self.clients.get_mut(&client)?;
        Some(act(client, &mut io, &mut self.answers))
    }

    fn ask(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        request: Request,
        of: Option<Arc<HoldCell>>,
    ) {
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
        let client = Client::new(id as f64, random, &program, place, options, locks)?;
        let pems = [
            &client.options.tls_ca,
            &client.options.tls_cert,
            &client.options.tls_key,
        ];
        let records = self.records.byte(record::DONE).number(0.0);
        records.byte(value::NAMES).number(5.0);
        records.text(client.scheme());
        for pem in pems {
            let text = pem.as_ref().map_or("", |pem| pem.text());
            let path = pem.as_ref().is_some_and(|pem| pem.path().is_some());
            records.text(&format!("{}{text}", if path { "@" } else { "" }));
        }
        records.text(&millis(client.options.exit_limit).to_string());
        self.clients.insert(id, client);
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

    pub(crate) fn ready(&mut self, now: Moment, id: Id, client: Id) {
        self.ask(now, id, client, Request::Connect, None);
    }

    pub(crate) fn close(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let limit = if given.0.is_empty() {
            let known = self.clients.get(&client);
            known.map_or(Duration::ZERO, |client| client.options.close_limit)
        } else {
            read_duration("close_limit", given.value()?)?
        };
        self.ask(now, id, client, Request::Close { limit }, None);
        Ok(())
    }

    pub(crate) fn stats(&mut self, client: Id) {
        let Some(client) = self.clients.get(&client) else {
            return;
        };
        let spelling = self.spelling.unwrap_or(Spelling::SnakeCase);
        let stats = client.stats();
        let records = self.records.byte(record::DONE).number(0.0);
        records.byte(value::NAMES).number(stats.len() as f64 * 2.0);
        for (name, count) in stats {
            records.text(&spelling.of(name)).text(&count.to_string());
        }
    }

    /// Kind, level, name of the lock (or nothing) and text of each event.
    pub(crate) fn events(&mut self, client: Id) {
        let running = self
            .clients
            .get(&client)
            .and_then(|client| client.running.as_ref());
        let events = running
            .map(|running| running.ring.drain())
            .unwrap_or_default();
        let records = self.records.byte(record::DONE).number(0.0);
        records.byte(value::NAMES).number(events.len() as f64 * 4.0);
        for Event {
            kind,
            level,
            lock,
            text,
            ..
        } in events
        {
            records
                .text(kind)
                .text(&format!("{level:?}").to_lowercase());
            records
                .text(lock.as_deref().unwrap_or_default())
                .text(&text);
        }
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
        let records = self.records.byte(record::DONE).number(0.0);
        records.byte(value::NAMES).number(parts.len() as f64);
        for (name, _) in &parts {
            records.text(name);
        }
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

    /// The name as it is in Redis.
    pub(crate) fn name(&mut self, family: Id, mut given: Arguments<'_>) -> Result<()> {
        let (_, _, name) = self.lock(family, given.text()?)?;
        let records = self.records.byte(record::DONE).number(0.0);
        records.byte(value::NAMES).number(1.0).text(&name);
        Ok(())
    }

    fn acquire_options(&self, given: &mut Arguments<'_>) -> Result<AcquireOptions> {
        let (mut options, spelling) = (AcquireOptions::new(), self.spells());
        given.each_option(|name, value| options.set_spelled(spelling, name, value))?;
        Ok(options)
    }

    pub(crate) fn acquire(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        given: Arguments<'_>,
    ) -> Result<()> {
        self.acquire_as(now, id, family, given, |options| options)
    }

    /// Takes over the lock of a token, on the same terms.
    pub(crate) fn adopt(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let token = given.text()?;
        self.acquire_as(now, id, family, given, |options| options.adopts(token))
    }

    fn acquire_as(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
        adopt: impl FnOnce(AcquireOptions) -> AcquireOptions,
    ) -> Result<()> {
        let key = key_of(given.byte()?, given.whole()?);
        let name = given.text()?;
        let acquire = adopt(self.acquire_options(&mut given)?.key(key));
        let (client, options, name) = self.lock(family, name)?;
        let multi = self.families.get(&family).and_then(|own| own.multi.clone());
        let multi = multi.as_ref().map(|multi| {
            let parts = multi.parts.iter();
            parts.map(|(name, options)| (name, &**options)).collect()
        });
        let asked = self
            .client(client)?
            .requests(&name, &options)
            .acquire(acquire, multi);
        let request = match asked {
            Ok(request) => request,
            Err(error) => {
                self.fail(id, error);
                return Ok(());
            }
        };
        self.ask(now, id, client, request, None);
        Ok(())
    }

    pub(crate) fn steal(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let (client, options, name) = self.lock(family, given.text()?)?;
        let terms = Terms {
            steal: true,
            ..options.terms(&AcquireOptions::new())
        };
        let request = Request::Acquire {
            name,
            key: OwnerKey::Once,
            wait: None,
            terms,
            token: None,
        };
        self.ask(now, id, client, request, None);
        Ok(())
    }

    /// Acquires once more as the owner of a hold.
    pub(crate) fn reenter(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        hold: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let acquire = self.acquire_options(&mut given)?;
        let lock = self.families.get(&family).ok_or_else(unknown)?;
        let options = lock.options.clone();
        let Hold {
            client,
            cell,
            level,
        } = self.holds.get(&hold).ok_or_else(released)?;
        let (client, cell, key) = (*client, cell.clone(), OwnerKey::Hold(*level));
        if let Err(error) = acquire
            .validate_for(&options)
            .and_then(|()| options.validate())
        {
            self.fail(id, error);
            return Ok(());
        }
        let request = Request::Acquire {
            name: cell.name.clone(),
            key,
            wait: acquire.wait,
            terms: Terms {
                kind: self.client(client)?.requests(&cell.name, &options).kind(),
                ..options.terms(&acquire)
            },
            token: None,
        };
        self.ask(now, id, client, request, Some(cell));
        Ok(())
    }

    pub(crate) fn inspect(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let (client, options, name) = self.lock(family, given.text()?)?;
        let kind = self.client(client)?.requests(&name, &options).kind();
        let request = Request::Inspect {
            name,
            kind,
            what: match given.byte()? {
                0 => Inspection::Owners,
                1 => Inspection::Holders,
                _ => Inspection::Waiters,
            },
        };
        self.ask(now, id, client, request, None);
        Ok(())
    }

    pub(crate) fn force(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let (client, options, name) = self.lock(family, given.text()?)?;
        let kind = self.client(client)?.requests(&name, &options).kind();
        self.ask(now, id, client, Request::Force { name, kind }, None);
        Ok(())
    }

    /// Asks how many permits the semaphore has, after it was given a number of them if one follows.
    pub(crate) fn permits(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let (client, _, name) = self.lock(family, given.text()?)?;
        let limit = match given.0.is_empty() {
            true => None,
            false => u32::try_from(read_count("limit", given.value()?)?).ok(),
        };
        self.ask(now, id, client, Request::Count { name, limit }, None);
        Ok(())
    }

    /// Releases the lock with this token, or extends it if a lease follows.
    pub(crate) fn by_token(
        &mut self,
        now: Moment,
        id: Id,
        family: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let name = given.text()?;
        let token = given.text()?;
        let lease = match given.0.is_empty() {
            true => None,
            false => Some(read_duration("lease", given.value()?)?),
        };
        let (client, options, name) = self.lock(family, name)?;
        let requests = self.client(client)?.requests(&name, &options);
        let checked = lease.map_or(Ok(()), check_lease);
        let checked = checked.map_err(|error| requests.blamed(error));
        let form = match checked.and_then(|()| requests.form(token)) {
            Ok(form) => form,
            Err(error) => {
                self.fail(id, error);
                return Ok(());
            }
        };
        let request = match lease {
            Some(lease) => Request::ExtendToken { name, form, lease },
            None => Request::ReleaseToken { name, form },
        };
        self.ask(now, id, client, request, None);
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

    pub(crate) fn take_permits(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let name = names::name(given.text()?)?;
        let permits = counted("permits", given.number()?, 1);
        let wait = wait_of(&mut given)?;
        let request = permits.map(|permits| Request::Take {
            name: name.clone(),
            permits,
            wait,
        });
        self.ask_counter(now, id, client, &name, Counter::Semaphore, request);
        Ok(())
    }

    pub(crate) fn await_latch(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let name = names::name(given.text()?)?;
        let wait = wait_of(&mut given)?;
        self.ask(now, id, client, Request::Await { name, wait }, None);
        Ok(())
    }

    pub(crate) fn change(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
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
        let request = change.map(|change| Request::Change {
            name: name.clone(),
            change,
        });
        self.ask_counter(now, id, client, &name, counter, request);
        Ok(())
    }

    pub(crate) fn read(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let name = names::name(given.text()?)?;
        let counter = counter_of(given.byte()?)?;
        self.ask(now, id, client, Request::Read { name, counter }, None);
        Ok(())
    }

    fn ask_counter(
        &mut self,
        now: Moment,
        id: Id,
        client: Id,
        name: &Name,
        counter: Counter,
        request: Result<Request>,
    ) {
        match request {
            Ok(request) => self.ask(now, id, client, request, None),
            Err(error) => self.fail(id, error.on(name).of(counter.thing())),
        }
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

    pub(crate) fn release(&mut self, now: Moment, id: Id, hold: Id) -> Result<()> {
        let Hold {
            client,
            cell,
            level,
        } = self.take_hold(hold).ok_or_else(released)?;
        let owner = cell.owner;
        let target = Target::Level { owner, level };
        self.ask(now, id, client, Request::Release(target), Some(cell));
        Ok(())
    }

    pub(crate) fn extend(
        &mut self,
        now: Moment,
        id: Id,
        hold: Id,
        mut given: Arguments<'_>,
    ) -> Result<()> {
        let lease = read_duration("lease", given.value()?)?;
        let Hold {
            client,
            cell,
            level,
        } = self.holds.get(&hold).ok_or_else(released)?;
        let (client, cell, level) = (*client, cell.clone(), *level);
        let checked = check_lease(lease).and_then(|()| {
            let rules = self.client(client)?.quorum_rules();
            quorum::check_lease(lease, rules.map_or(Duration::ZERO, |(_, delay)| delay))
        });
        if let Err(error) = checked {
            self.fail(id, cell.named(error));
            return Ok(());
        }
        let owner = cell.owner;
        let target = Target::Level { owner, level };
        self.ask(
            now,
            id,
            client,
            Request::Extend { target, lease },
            Some(cell),
        );
        Ok(())
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
                client.cancel(now, id, io, answers)
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
        self.arrived(now, conn, &Arrival::Opened(given.whole()?));
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
        };
        self.arrived(now, conn, &Arrival::Closed(why));
        Ok(())
    }

    pub(crate) fn wake(&mut self, now: Moment) {
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
    }

    /// Writes all that is left, because the program ends.
    pub(crate) fn end(&mut self, now: Moment) {
        self.write(|client, io, answers| client.end(now, io, answers));
    }

    fn write(&mut self, mut write: impl FnMut(&mut Client, &mut Io<'_>, &mut Vec<Answer>)) {
        let mut io = Io {
            records: &mut self.records,
            last_conn: &mut self.last_conn,
            random: &mut self.random,
        };
        for client in self.clients.values_mut() {
            write(client, &mut io, &mut self.answers);
        }
        self.sweep();
    }

    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.clients.values().filter_map(Client::next_wake).min()
    }

    /// The tables of errors, lost reasons and options, as JSON.
    pub(crate) fn tables(&self, output: &mut Vec<u8>) {
        let quoted =
            |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut text = String::from("{\"errors\":[");
        for (at, kind) in ErrorKind::ALL.iter().enumerate() {
            text += &format!(
                "{}{{\"number\":{},\"name\":{},\"className\":{},\"retryable\":{},\"meaning\":{}}}",
                if at == 0 { "" } else { "," },
                kind.number(),
                quoted(kind.name()),
                quoted(kind.class_name()),
                kind.retryable(),
                quoted(kind.meaning()),
            );
        }
        text += "],\"reasons\":[";
        for (at, reason) in LostReason::ALL.iter().enumerate() {
            text += &format!(
                "{}{{\"number\":{},\"name\":{},\"retryable\":{},\"meaning\":{}}}",
                if at == 0 { "" } else { "," },
                reason.number(),
                quoted(reason.name()),
                reason.retryable(),
                quoted(Error::from(*reason).message()),
            );
        }
        text += "],\"options\":[";
        for (at, info) in all_options().enumerate() {
            text += &format!(
                "{}{{\"name\":{},\"spelled\":{},\"scope\":{},\"type\":{}}}",
                if at == 0 { "" } else { "," },
                quoted(info.name),
                quoted(&self.spells().of(info.name)),
                quoted(&format!("{:?}", info.scope).to_lowercase()),
                quoted(&format!("{:?}", info.r#type)),
            );
        }
        text += "]}";
        *output = text.into_bytes();
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

fn counter_of(number: u8) -> Result<Counter> {
    match number {
        counter::SEMAPHORE => Ok(Counter::Semaphore),
        counter::LATCH => Ok(Counter::Latch),
        _ => Err(unknown()),
    }
}

/// The longest wait, if one follows.
fn wait_of(given: &mut Arguments<'_>) -> Result<Option<Duration>> {
    match given.0.is_empty() {
        true => Ok(None),
        false => read_duration("wait", given.value()?).map(Some),
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
