//! Calls that are answered later: what each asks, read from its arguments.

use std::time::Duration;

use redlatch_proto::engine::{Request, Target, Terms};
use redlatch_proto::error::Result;
use redlatch_proto::key::OwnerKey;
use redlatch_proto::quorum;
use redlatch_proto::wire::{Change, Counter, Inspection, names};

use crate::bytes::{Arguments, change, inspection, key};
use crate::module::{Asked, Hold, Id, Module, counter_of, released, unknown};
use crate::options::requests::{LockRequests, counted};
use crate::options::{AcquireOptions, SetOption, read_count, read_duration};

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

impl Module {
    pub(crate) fn ready(&mut self, client: Id, _: &mut Arguments<'_>) -> Result<Asked> {
        Asked::of(client, Ok(Request::Connect))
    }

    /// Closes within a limit, or within its option.
    pub(crate) fn close(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let own = self.client(client)?.options.close_limit;
        let limit = given.duration("close_limit")?.unwrap_or(own);
        Asked::of(client, Ok(Request::Close { limit }))
    }

    /// A request about a lock. Not for each type of function: the size of the module counts.
    fn about(
        &self,
        family: Id,
        name: &str,
        request: &mut dyn FnMut(LockRequests<'_>) -> Result<Request>,
    ) -> Result<Asked> {
        let (client, options, name) = self.lock(family, name)?;
        let requests = self.client(client)?.requests(&name, &options);
        Asked::of(client, request(requests))
    }

    fn acquire_options(&self, given: &mut Arguments<'_>) -> Result<AcquireOptions> {
        let (mut options, spelling) = (AcquireOptions::new(), self.spells());
        given.each_option(|name, value| options.set_spelled(spelling, name, value))?;
        Ok(options)
    }

    /// The owner, the name of the lock, and the options of an acquisition.
    fn acquisition<'a>(&self, given: &mut Arguments<'a>) -> Result<(&'a str, AcquireOptions)> {
        let key = match (given.byte()?, given.whole()?) {
            (key::TASK, number) => OwnerKey::Task(number),
            (key::EXPLICIT, number) => OwnerKey::Explicit(number),
            _ => OwnerKey::Once,
        };
        let name = given.text()?;
        Ok((name, self.acquire_options(given)?.key(key)))
    }

    pub(crate) fn acquire(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (name, acquire) = self.acquisition(given)?;
        self.acquire_on(family, name, acquire)
    }

    /// Takes over the lock of a token, on the same terms.
    pub(crate) fn adopt(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let token = given.text()?;
        let (name, acquire) = self.acquisition(given)?;
        self.acquire_on(family, name, acquire.adopts(token))
    }

    fn acquire_on(&self, family: Id, name: &str, acquire: AcquireOptions) -> Result<Asked> {
        let own = self.families.get(&family).ok_or_else(unknown)?;
        let multi = own.multi.as_ref().map(|multi| {
            let parts = multi.parts.iter();
            parts.map(|(name, options)| (name, &**options)).collect()
        });
        let (client, options, name) = self.lock(family, name)?;
        let requests = self.client(client)?.requests(&name, &options);
        Asked::of(client, requests.acquire(acquire, multi))
    }

    pub(crate) fn steal(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = given.text()?;
        let steal = AcquireOptions {
            steal: true,
            ..AcquireOptions::new()
        };
        self.acquire_on(family, name, steal)
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
        let name = given.text()?;
        let what = match given.byte()? {
            inspection::OWNERS => Inspection::Owners,
            inspection::PROCESSES => Inspection::Holders,
            _ => Inspection::Waiters,
        };
        self.about(family, name, &mut |lock| Ok(lock.inspect(what)))
    }

    pub(crate) fn force(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        self.about(family, given.text()?, &mut |lock| Ok(lock.force()))
    }

    /// Asks how many permits the semaphore has, after it was given a number of them if one follows.
    pub(crate) fn permits(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = given.text()?;
        let limit = given.rest(|given| read_count("limit", given.value()?))?;
        self.about(family, name, &mut |lock| Ok(lock.count(limit)))
    }

    /// Releases the lock with this token, or extends it if a lease follows.
    pub(crate) fn by_token(&mut self, family: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let (name, token) = (given.text()?, given.text()?);
        let lease = given.duration("lease")?;
        self.about(family, name, &mut |lock| lock.by_token(token, lease))
    }

    // ---- counters ----

    pub(crate) fn take_permits(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let permits = counted("permits", given.number()? as u64, 1);
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
        let (kind, added) = (given.byte()?, given.number()? as i64);
        // Below 0 it is far beyond the bounds.
        let number = added as u64;
        let counter = match kind {
            change::SET_COUNT | change::COUNT_DOWN => Counter::Latch,
            _ => Counter::Semaphore,
        };
        let change = match kind {
            change::RELEASE => counted("permits", number, 1).map(Change::give),
            change::SET_PERMITS => counted("permits", number, 0).map(Change::SetPermits),
            change::ADD_PERMITS => {
                counted("permits", added.unsigned_abs(), 0).map(|_| Change::AddPermits(added))
            }
            change::DRAIN => Ok(Change::Drain),
            change::SET_COUNT => counted("count", number, 1).map(Change::SetCount),
            change::COUNT_DOWN => counted("by", number, 1).map(Change::CountDown),
            _ => Err(unknown()),
        };
        let change = change.map_err(|error| error.on(&name).of(counter.thing()));
        let request = change.map(|change| Request::Change { name, change });
        Asked::of(client, request)
    }

    pub(crate) fn read(&mut self, client: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let name = names::name(given.text()?)?;
        let counter = counter_of(given.byte()?)?;
        Asked::of(client, Ok(Request::Read { name, counter }))
    }

    // ---- holds ----

    pub(crate) fn release(&mut self, hold: Id, _: &mut Arguments<'_>) -> Result<Asked> {
        let hold = self.take_hold(hold).ok_or_else(released)?;
        Ok(hold.asked(|target| Ok(Request::Release(target))))
    }

    pub(crate) fn extend(&mut self, hold: Id, given: &mut Arguments<'_>) -> Result<Asked> {
        let lease = read_duration("lease", given.value()?)?;
        let hold = self.holds.get(&hold).ok_or_else(released)?;
        let rules = self.client(hold.client)?.quorum_rules();
        let delay = rules.map_or(Duration::ZERO, |(_, delay)| delay);
        let checked = quorum::check_lease(lease, delay).map_err(|error| hold.cell.named(error));
        Ok(hold.asked(|target| checked.map(|()| Request::Extend { target, lease })))
    }
}
