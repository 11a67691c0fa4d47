//! Plain semaphores and count-down latches: numbers without owners.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Client, ClientInner};
use crate::completion_queue::Outcome;
use crate::engine::Request;
use crate::error::{ErrorKind, Result};
use crate::guard::{PlainPermit, unexpected, unit};
use crate::log;
use crate::operation::Operation;
use crate::options::requests::counted;
use crate::wire::{Change, Counter, Name, names};

impl Client {
    /// A semaphore without leases. [`semaphore`](Client::semaphore) has leases, so that permits of
    /// dead programs come back. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let seats = client.plain_semaphore("seats")?; // the same as getSemaphore("seats") in Java
    /// # Ok(())
    /// # }
    /// ```
    pub fn plain_semaphore(&self, name: &str) -> Result<PlainSemaphore> {
        self.0.refuse_quorum("plain semaphore")?;
        Ok(PlainSemaphore::new(self.0.clone(), names::name(name)?))
    }

    /// A count-down latch. No I/O.
    ///
    /// # Errors
    /// `invalid_argument` for a name that is not 1 to 1,024 bytes long.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
    /// let ready = client.latch("ready")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn latch(&self, name: &str) -> Result<CountDownLatch> {
        self.0.refuse_quorum("latch")?;
        Ok(CountDownLatch::new(self.0.clone(), names::name(name)?))
    }
}

/// A plain semaphore: a number of permits, and nothing that says who has them. It is the same
/// semaphore as the `RSemaphore` of Redisson with this name. Making and cloning it is cheap and does
/// no I/O.
///
/// Permits have no lease. The permits of a program that dies never come back, until somebody adds them
/// anew. [`Semaphore`](crate::Semaphore) has leases: use it, unless other programs use `RSemaphore`.
///
/// A semaphore without a number has no permits: [`try_set_permits`](PlainSemaphore::try_set_permits)
/// gives it some, once. Callers of one client come in their order, whatever number of permits each of
/// them wants. Between clients there is no order.
///
/// No command counts twice: this client knows whether a repeated one was done already. The option
/// `outage` says how long a caller waits for a server that cannot be reached.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let seats = client.plain_semaphore("seats")?;
/// seats.try_set_permits(5).await?; // does nothing if it has a number
///
/// let permit = seats.acquire().await?;
/// permit.release().await?; // or drop it
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PlainSemaphore {
    client: Arc<ClientInner>,
    name: Name,
}

/// A count-down latch: callers wait until a count gets to 0. It is the same latch as the
/// `RCountDownLatch` of Redisson with this name. Making and cloning it is cheap and does no I/O.
///
/// A latch without a count is open. At 0 its key goes away, and it can get a count again.
///
/// No call counts twice: this client knows whether a repeated one was done already.
///
/// # Examples
/// ```no_run
/// # async fn example(client: redlatch::Client) -> redlatch::Result<()> {
/// let ready = client.latch("ready")?;
/// ready.try_set_count(3).await?; // one for each worker
///
/// // In each worker:
/// ready.count_down(1).await?;
///
/// // Where all three are needed:
/// ready.wait().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CountDownLatch {
    client: Arc<ClientInner>,
    name: Name,
}

impl PlainSemaphore {
    pub(crate) fn new(client: Arc<ClientInner>, name: Name) -> Self {
        PlainSemaphore { client, name }
    }

    /// The name, as it is in Redis.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes one permit, and waits for it without a limit. Dropping the permit gives it back.
    ///
    /// # Errors
    /// `foreign_kind` when something other than a number is stored under the name, `unavailable` when
    /// the server cannot be reached for longer than the option `outage`, `auth`, `denied`, `closed`,
    /// `forked`.
    ///
    /// # Cancel safety
    /// Dropping the operation leaves the queue. Permits that were won meanwhile are given back.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// let permit = seats.acquire().await?;
    /// permit.release().await?; // or drop it
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> Operation<PlainPermit> {
        self.acquire_many(1)
    }

    /// Takes so many permits at once, 1 to 2,147,483,647, and waits for them without a limit.
    ///
    /// # Errors
    /// `invalid_argument`, else as [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](PlainSemaphore::acquire).
    pub fn acquire_many(&self, permits: usize) -> Operation<PlainPermit> {
        self.take(permits, None, taken)
    }

    /// Takes one permit, and waits for it at most `wait`.
    ///
    /// # Errors
    /// `timeout` when the time is over, else as [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// let permit = seats.acquire_timeout(Duration::from_secs(2)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_timeout(&self, wait: Duration) -> Operation<PlainPermit> {
        self.acquire_many_timeout(1, wait)
    }

    /// Takes so many permits at once, and waits for them at most `wait`.
    ///
    /// # Errors
    /// `invalid_argument`, `timeout` when the time is over, else as
    /// [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](PlainSemaphore::acquire).
    pub fn acquire_many_timeout(&self, permits: usize, wait: Duration) -> Operation<PlainPermit> {
        self.take(permits, Some(wait), taken)
    }

    /// Takes one permit if one is free and nobody of this client waits; else `None`.
    ///
    /// # Errors
    /// As [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// if let Some(permit) = seats.try_acquire().await? {
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(&self) -> Operation<Option<PlainPermit>> {
        self.try_acquire_many(1)
    }

    /// Takes so many permits at once if they are free and nobody of this client waits; else `None`.
    ///
    /// # Errors
    /// `invalid_argument`, else as [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](PlainSemaphore::acquire).
    pub fn try_acquire_many(&self, permits: usize) -> Operation<Option<PlainPermit>> {
        self.take(permits, Some(Duration::ZERO), |outcome| match outcome {
            Outcome::Failed(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            other => taken(other).map(Some),
        })
    }

    pub(crate) fn take<T: 'static>(
        &self,
        permits: usize,
        wait: Option<Duration>,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        match counted("permits", permits as u64, 1) {
            Ok(permits) => {
                let name = self.name.clone();
                let request = Request::Take {
                    name,
                    permits,
                    wait,
                };
                Operation::new(&self.client, request, finish).in_span(log::acquisition(&self.name))
            }
            Err(error) => Operation::failed(error.on(&self.name).of(Counter::Semaphore.thing())),
        }
    }

    /// Gives so many permits back, 1 to 2,147,483,647, whoever took them: for permits that were
    /// [forgotten](PlainPermit::forget), in this program or in another one. Nothing stops a caller
    /// that gives back more than were taken: the semaphore then has more permits than before.
    ///
    /// # Errors
    /// `invalid_argument`. `unavailable` when the server did not confirm within the option `outage`:
    /// the permits are given back as soon as it answers, so do not release them again. Else as
    /// [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// A release that was sent goes on.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// seats.acquire_many(2).await?.forget();
    /// seats.release(2).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&self, permits: usize) -> Operation<()> {
        let change = counted("permits", permits as u64, 1).map(Change::give);
        self.change(change, unit)
    }

    /// Gives the semaphore so many permits, 0 to 2,147,483,647, if it has no number yet. Returns
    /// whether it did.
    ///
    /// # Errors
    /// As [`drain`](PlainSemaphore::drain).
    ///
    /// # Cancel safety
    /// A change that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// let was_new = seats.try_set_permits(5).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_set_permits(&self, permits: usize) -> Operation<bool> {
        let change = counted("permits", permits as u64, 0).map(Change::SetPermits);
        self.change(change, set)
    }

    /// Adds permits, or takes some away if `permits` is negative; it does not wait for them, so the
    /// number may get below 0. Returns the new number. The time to live of the key stays as it is.
    ///
    /// # Errors
    /// `invalid_argument` beyond 2,147,483,647 either way, else as
    /// [`drain`](PlainSemaphore::drain).
    ///
    /// # Cancel safety
    /// A change that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// let permits = seats.add_permits(-2).await?; // two fewer from now on
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_permits(&self, permits: i64) -> Operation<i64> {
        let change =
            counted("permits", permits.unsigned_abs(), 0).map(|_| Change::AddPermits(permits));
        self.change(change, number)
    }

    /// Takes all permits that there are, and returns how many. They have no guard. A number below 0
    /// becomes 0 and is returned, as by Java's `drainPermits`.
    ///
    /// # Errors
    /// `unavailable` when the server did not answer within the option `outage`: what was sent may
    /// take effect, so look at [`available`](PlainSemaphore::available). Else as
    /// [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Cancel safety
    /// A change that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// let drained = seats.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self) -> Operation<i64> {
        self.change(Ok(Change::Drain), number)
    }

    /// How many permits there are. It may change at any time.
    ///
    /// # Errors
    /// As [`acquire`](PlainSemaphore::acquire).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(seats: redlatch::PlainSemaphore) -> redlatch::Result<()> {
    /// println!("{} seats are free", seats.available().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn available(&self) -> Operation<i64> {
        read(&self.client, &self.name, Counter::Semaphore)
    }

    fn change<T>(
        &self,
        change: Result<Change>,
        finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
    ) -> Operation<T> {
        changed(&self.client, &self.name, Counter::Semaphore, change, finish)
    }
}

impl CountDownLatch {
    pub(crate) fn new(client: Arc<ClientInner>, name: Name) -> Self {
        CountDownLatch { client, name }
    }

    /// The name, as it is in Redis.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the latch this count, 1 to 2,147,483,647, if it has none. Returns whether it did.
    ///
    /// # Errors
    /// `invalid_argument`, `foreign_kind` when something other than a number is stored under the
    /// name, `unavailable` when the server did not answer within the option `outage`, `auth`,
    /// `denied`, `closed`, `forked`.
    ///
    /// # Cancel safety
    /// A change that was sent may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(ready: redlatch::CountDownLatch) -> redlatch::Result<()> {
    /// let was_new = ready.try_set_count(3).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_set_count(&self, count: usize) -> Operation<bool> {
        let change = counted("count", count as u64, 1).map(Change::SetCount);
        changed(&self.client, &self.name, Counter::Latch, change, set)
    }

    /// Counts down by `by`, 1 to 2,147,483,647, and returns what is left. The count does not get
    /// below 0: at 0 the latch is open, and everybody who waits goes on.
    ///
    /// # Errors
    /// As [`try_set_count`](CountDownLatch::try_set_count), but for `unavailable`: it is counted as soon
    /// as the server answers, so do not count down again.
    ///
    /// # Cancel safety
    /// A call that was made counts all the same: what it tells has happened.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(ready: redlatch::CountDownLatch) -> redlatch::Result<()> {
    /// let left = ready.count_down(1).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn count_down(&self, by: usize) -> Operation<i64> {
        let change = counted("by", by as u64, 1).map(Change::CountDown);
        changed(&self.client, &self.name, Counter::Latch, change, number)
    }

    /// The count; 0 when the latch is open.
    ///
    /// # Errors
    /// As [`try_set_count`](CountDownLatch::try_set_count).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(ready: redlatch::CountDownLatch) -> redlatch::Result<()> {
    /// println!("{} to come", ready.count().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn count(&self) -> Operation<i64> {
        read(&self.client, &self.name, Counter::Latch)
    }

    /// Waits until the count is 0, without a limit; at once if it is 0 or the latch has no count.
    ///
    /// # Errors
    /// As [`try_set_count`](CountDownLatch::try_set_count).
    ///
    /// # Cancel safety
    /// Dropping the operation changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(ready: redlatch::CountDownLatch) -> redlatch::Result<()> {
    /// ready.wait().await?; // a task
    /// ready.wait().wait()?; // a thread
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self) -> Operation<()> {
        self.wait_for(None)
    }

    /// Waits until the count is 0, at most `wait`.
    ///
    /// # Errors
    /// `timeout` when the time is over, else as [`try_set_count`](CountDownLatch::try_set_count).
    ///
    /// # Cancel safety
    /// Dropping the operation changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(ready: redlatch::CountDownLatch) -> redlatch::Result<()> {
    /// use std::time::Duration;
    ///
    /// ready.wait_timeout(Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_timeout(&self, wait: Duration) -> Operation<()> {
        self.wait_for(Some(wait))
    }

    pub(crate) fn wait_for(&self, wait: Option<Duration>) -> Operation<()> {
        let name = self.name.clone();
        Operation::new(&self.client, Request::Await { name, wait }, unit)
    }
}

impl std::fmt::Debug for PlainSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlainSemaphore({:?})", self.name)
    }
}

impl std::fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CountDownLatch({:?})", self.name)
    }
}

fn changed<T>(
    client: &Arc<ClientInner>,
    name: &Name,
    counter: Counter,
    change: Result<Change>,
    finish: impl FnOnce(Outcome) -> Result<T> + Send + Sync + 'static,
) -> Operation<T> {
    let request = change.map(|change| {
        let name = name.clone();
        Request::Change { name, change }
    });
    let request = request.map_err(|error| error.on(name).of(counter.thing()));
    Operation::of(client, request, finish)
}

fn read(client: &Arc<ClientInner>, name: &Name, counter: Counter) -> Operation<i64> {
    let name = name.clone();
    Operation::new(client, Request::Read { name, counter }, number)
}

pub(crate) fn taken(outcome: Outcome) -> Result<PlainPermit> {
    match outcome {
        Outcome::Taken(permit) => Ok(permit),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}

fn set(outcome: Outcome) -> Result<bool> {
    match outcome {
        Outcome::Set(set) => Ok(set),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}

fn number(outcome: Outcome) -> Result<i64> {
    match outcome {
        Outcome::Number(number) => Ok(number),
        Outcome::Failed(error) => Err(error),
        other => Err(unexpected(&other)),
    }
}
