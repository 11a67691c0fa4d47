//! The Node.js binding: scalars in, scalars out.
//!
//! The JavaScript in `lib/` makes classes, promises and errors; all decisions are the core's. Each
//! JavaScript environment (the main thread, each worker) has one [`Border`]. The I/O threads wake
//! it through one thread-safe function, and it hands over all waiting answers at once.

mod border;
pub mod testing;
mod values;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use napi::bindgen_prelude::{BigInt, ClassInstance, Env, FnArgs, Function};
use napi_derive::napi;
use redlatch::embed::{
    AcquireOptionsExt, ClientBuilderExt, CountDownLatchExt, GuardExt, LockExt, PlainSemaphoreExt,
    SemaphoreExt, read_count, read_duration,
};
use redlatch::{AcquireOptions, OptionValue, ReentryKey, Semaphore};

use border::{Id, State};
use values::{
    Asked, Checked, EventRow, Names, SPELLING, Stat, Value, Values, caught, option, set_all,
};

/// The core's tables of errors, lost reasons and options, as JSON.
#[napi]
pub fn tables() -> String {
    redlatch::embed::tables(SPELLING)
}

/// The answers, holds and clients of one JavaScript environment.
#[napi]
pub struct Border(Rc<State>);

#[napi]
impl Border {
    /// `drain` is called when answers wait. It keeps the event loop alive only while a call is
    /// unanswered.
    #[napi(constructor)]
    pub fn new(env: Env, drain: Function<(), ()>) -> napi::Result<Self> {
        State::new(env, drain).map(Border)
    }

    /// Makes a client. No I/O.
    #[napi]
    pub fn client(&self, url: Option<String>, names: Names, values: Values) -> Checked<Client> {
        caught(|| {
            let from_env = redlatch::Client::builder_from_env;
            let mut builder = url
                .map_or_else(from_env, |url| redlatch::Client::builder(&url))
                .language("node");
            set_all(&mut builder, &names, &values)?;
            let client = builder.build()?;
            self.0.add(&client);
            Ok(Client(Rc::new(Shared {
                client,
                state: self.0.clone(),
                id: self.0.next_id(),
                told: Cell::new(false),
            })))
        })
    }

    /// Reports that the program no longer handles a signal. When the signal ends the process, the
    /// holds are released.
    #[napi]
    pub fn watch_signals(&self) {
        redlatch::embed::exit::watch_signals();
    }

    /// The runtime has one handler for the listeners of a signal and for its default action: the
    /// program listens to this signal, or does not.
    #[napi]
    pub fn hears(&self, signal: String, heard: bool) {
        redlatch::embed::exit::hears(&signal, heard);
    }

    /// Releases what is held, now: this runtime ends the process without `exit()`.
    #[napi]
    pub fn end(&self) {
        redlatch::embed::exit::is_not_called();
        self.0.end();
    }

    /// An id for an asynchronous context. The acquisitions of a context are one owner.
    #[napi]
    pub fn new_context(&self) -> Id {
        self.0.next_id()
    }

    /// The function that takes all waiting answers. It is not a method: see [`Bare`].
    #[napi]
    pub fn drain<'env>(&self, env: &'env Env) -> Bare<'env, ()> {
        let state = self.0.clone();
        env.create_function_from_closure("drain", move |_| Ok(caught(|| Ok(state.drain()))))
    }

    /// Stops waiting for a call. A lock that it may have won is released.
    #[napi]
    pub fn cancel(&self, call: Id) -> Checked<()> {
        caught(|| {
            self.0.cancel(call);
            Ok(())
        })
    }

    /// Whether the caller can rely on the hold now.
    #[napi]
    pub fn is_held(&self, hold: Id) -> bool {
        self.0.read(hold, false, redlatch::Guard::is_held)
    }

    /// Nothing, or the reason why the caller cannot rely on the hold.
    #[napi]
    pub fn check(&self, hold: Id) -> Checked<()> {
        caught(|| self.0.held(hold, redlatch::Guard::check)?)
    }

    /// How long the caller can rely on the hold, in milliseconds.
    #[napi]
    pub fn remaining(&self, hold: Id) -> f64 {
        self.0
            .read(hold, 0.0, |guard| guard.remaining().as_secs_f64() * 1000.0)
    }

    /// How many levels the hold has.
    #[napi]
    pub fn hold_count(&self, hold: Id) -> u32 {
        self.0.read(hold, 0, redlatch::Guard::hold_count)
    }

    /// The owner as it is in Redis; empty once the hold was released.
    #[napi]
    pub fn owner(&self, hold: Id) -> String {
        self.0.read(hold, String::new(), redlatch::Guard::owner)
    }

    /// The function that releases the level of a hold. It is not a method: see [`Bare`].
    #[napi]
    pub fn release<'env>(&self, env: &'env Env) -> Bare<'env, (Id,)> {
        let state = self.0.clone();
        env.create_function_from_closure("release", move |call| {
            let hold = call.get(0)?;
            Ok(caught(|| Ok(state.ask(state.take(hold)?.release()))))
        })
    }

    /// Extends the lock, so that it lives at least `lease` from now.
    #[napi]
    pub fn extend(&self, hold: Id, lease: Value) -> Checked<Asked> {
        caught(|| {
            let lease = read_duration("lease", option(&lease))?;
            Ok(self.0.ask(self.0.held(hold, |guard| guard.extend(lease))?))
        })
    }

    /// Reports that the JavaScript object of the hold was garbage-collected. Returns whether the
    /// hold was still unreleased.
    #[napi]
    pub fn abandon(&self, hold: Id) -> Checked<bool> {
        caught(|| Ok(self.0.take(hold).map(redlatch::Guard::abandon).is_ok()))
    }
}

struct Shared {
    client: redlatch::Client,
    state: Rc<State>,
    id: Id,
    /// Whether the engine has the callback for events.
    told: Cell<bool>,
}

impl Shared {
    /// Registers the callback for events with the first call. Before it there is no engine.
    fn listen(&self) -> redlatch::Result<()> {
        if !self.told.replace(true) {
            self.client.on_events(self.state.bell(self.id))?;
        }
        Ok(())
    }

    fn ask<T>(&self, operation: redlatch::Operation<T>) -> redlatch::Result<Asked> {
        self.listen()?;
        Ok(self.state.ask(operation))
    }
}

/// A function for the most frequent calls. For a method of a class, Node-API and napi-rs look up,
/// tag and count the object, which takes longer than the rest of the call on this side.
type Bare<'env, Arguments> = napi::Result<Function<'env, Arguments, Checked<Asked>>>;

/// A client.
#[napi]
pub struct Client(Rc<Shared>);

#[napi]
impl Client {
    /// The id of the client in a batch.
    #[napi(getter)]
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// Waits until the server is reached.
    #[napi]
    pub fn ready(&self) -> Checked<Asked> {
        caught(|| self.0.ask(self.0.client.ready()))
    }

    /// Reads the options of locks, and checks the name of the first lock with them. No I/O.
    #[napi]
    pub fn locks(&self, name: String, names: Names, values: Values) -> Checked<Locks> {
        caught(|| {
            let mut options = self.0.client.lock_options();
            set_all(&mut options, &names, &values)?;
            let first = self.0.client.lock_with(&name, options)?;
            Ok(Locks(Rc::new(Family {
                first,
                client: self.0.clone(),
            })))
        })
    }

    /// The multi lock of these locks, each with its name. No I/O.
    #[napi]
    pub fn multi_lock(
        &self,
        families: Vec<ClassInstance<'_, Locks>>,
        names: Vec<String>,
    ) -> Checked<Locks> {
        caught(|| {
            let parts = families.iter().zip(&names);
            let parts = parts.map(|(family, name)| family.0.lock(name));
            let parts: Vec<redlatch::Lock> = parts.collect::<redlatch::Result<_>>()?;
            Ok(Locks(Rc::new(Family {
                first: self.0.client.multi_lock_of(&parts)?,
                client: self.0.clone(),
            })))
        })
    }

    /// A plain semaphore. No I/O.
    #[napi]
    pub fn plain_semaphore(&self, name: String) -> Checked<PlainSemaphore> {
        caught(|| {
            Ok(PlainSemaphore {
                semaphore: self.0.client.plain_semaphore(&name)?,
                client: self.0.clone(),
            })
        })
    }

    /// A count-down latch. No I/O.
    #[napi]
    pub fn latch(&self, name: String) -> Checked<CountDownLatch> {
        caught(|| {
            Ok(CountDownLatch {
                latch: self.0.client.latch(&name)?,
                client: self.0.clone(),
            })
        })
    }

    /// The counters.
    #[napi]
    pub fn stats(&self) -> Checked<Vec<Stat>> {
        caught(|| {
            Ok(self
                .0
                .client
                .stats()
                .entries()
                .into_iter()
                .map(Stat::from)
                .collect())
        })
    }

    /// Takes the events.
    #[napi]
    pub fn events(&self) -> Checked<Vec<EventRow>> {
        caught(|| {
            Ok(self
                .0
                .client
                .events()
                .into_iter()
                .map(EventRow::from)
                .collect())
        })
    }

    /// Closes within a limit; without one, within the client's option `close_limit`.
    #[napi]
    pub fn close(&self, limit: Option<Value>) -> Checked<Asked> {
        caught(|| {
            Ok(self.0.state.ask(match limit {
                Some(limit) => self
                    .0
                    .client
                    .close_within(read_duration("close_limit", option(&limit))?),
                None => self.0.client.close(),
            }))
        })
    }
}

struct Family {
    first: redlatch::Lock,
    client: Rc<Shared>,
}

impl Family {
    fn acquire(&self, name: &str, options: AcquireOptions) -> redlatch::Result<Asked> {
        self.client.ask(self.lock(name)?.acquire_with(options))
    }

    /// The lock of this name. A multi lock is alone.
    fn lock(&self, name: &str) -> redlatch::Result<redlatch::Lock> {
        match self.first.parts() {
            [] => self.first.named(name),
            _ => Ok(self.first.clone()),
        }
    }
}

/// The locks of a client that have the same options. A program may have very many locks, and an
/// object of this kind costs half a kilobyte. So locks with the same options share one, and pass
/// their names.
#[napi]
pub struct Locks(Rc<Family>);

#[napi]
impl Locks {
    /// The name as it is in Redis, or a failure for an invalid name.
    #[napi]
    pub fn name(&self, name: String) -> Checked<String> {
        caught(|| Ok(self.0.lock(&name)?.name().to_owned()))
    }

    /// The names of the locks of a multi lock, in their order.
    #[napi]
    pub fn parts(&self) -> Vec<String> {
        let parts = self.0.first.parts().iter();
        parts.map(|part| part.name().to_owned()).collect()
    }

    /// The function that acquires as a separate owner, without options or with the most frequent
    /// one, the longest wait. It is not a method: see [`Bare`].
    #[napi]
    pub fn acquire<'env>(&self, env: &'env Env) -> Bare<'env, FnArgs<(String, Option<f64>)>> {
        let family = self.0.clone();
        env.create_function_from_closure("acquire", move |call| {
            let name: String = call.get(0)?;
            let wait = if call.length() > 1 {
                Some(call.get::<f64>(1)?)
            } else {
                None
            };
            Ok(caught(|| {
                let mut options = AcquireOptions::new();
                if let Some(wait) = wait {
                    options.set("wait", OptionValue::Millis(wait))?;
                }
                family.acquire(&name, options)
            }))
        })
    }

    /// Acquires as a separate owner, or as the owner behind a number or a context.
    #[napi]
    pub fn acquire_with(
        &self,
        name: String,
        key: Option<BigInt>,
        context: Option<Id>,
        names: Names,
        values: Values,
    ) -> Checked<Asked> {
        caught(|| {
            let mut options = acquire_options(&names, &values)?;
            if let Some(number) = context {
                options = options.key(ReentryKey::Task(number as u64));
            }
            if let Some(key) = key {
                options = options.key(ReentryKey::Explicit(key.get_u64().1));
            }
            self.0.acquire(&name, options)
        })
    }

    /// Takes over the lock of a token, as a separate owner.
    #[napi]
    pub fn adopt(
        &self,
        name: String,
        token: String,
        names: Names,
        values: Values,
    ) -> Checked<Asked> {
        caught(|| {
            let options = acquire_options(&names, &values)?.adopting(&token);
            self.0.acquire(&name, options)
        })
    }

    /// Takes the write side of a read-write lock from all that have the lock.
    #[napi]
    pub fn steal(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.acquire(&name, AcquireOptions::new().stealing()))
    }

    /// Acquires once more as the owner of a hold of one of these locks.
    #[napi]
    pub fn reenter(&self, hold: Id, names: Names, values: Values) -> Checked<Asked> {
        caught(|| {
            let (Family { first, client }, options) = (&*self.0, acquire_options(&names, &values)?);
            client.ask(
                client
                    .state
                    .held(hold, |guard| guard.reenter_with(first.options(), options))?,
            )
        })
    }

    /// Asks for the current holders of the lock.
    #[napi]
    pub fn owners(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.lock(&name)?.owners()))
    }

    /// Asks for the current holders of the lock, and which processes they are.
    #[napi]
    pub fn holders(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.lock(&name)?.holders()))
    }

    /// Asks for the queue of a fair lock.
    #[napi]
    pub fn waiters(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.lock(&name)?.waiters()))
    }

    /// Frees the lock if `token` is its value.
    #[napi]
    pub fn release_token(&self, name: String, token: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.lock(&name)?.release_token(&token)))
    }

    /// Extends the lock, so that it lives at least `lease` from now, if `token` is its value.
    #[napi]
    pub fn extend_token(&self, name: String, token: String, lease: Value) -> Checked<Asked> {
        caught(|| {
            let lease = read_duration("lease", option(&lease))?;
            self.0
                .client
                .ask(self.0.lock(&name)?.extend_token(&token, lease))
        })
    }

    /// Deletes the lock, regardless of its holder.
    #[napi]
    pub fn force_release(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.lock(&name)?.force_release()))
    }

    /// Asks how many permits the semaphore has, after it was given `limit` of them if that is asked for.
    #[napi]
    pub fn permits(&self, name: String, limit: Option<f64>) -> Checked<Asked> {
        caught(|| {
            let semaphore = Semaphore::of_lock(self.0.lock(&name)?);
            self.0.client.ask(match limit {
                Some(limit) => {
                    semaphore.set_permits(read_count("limit", OptionValue::Millis(limit))?)
                }
                None => semaphore.permits(),
            })
        })
    }
}

fn acquire_options(names: &Names, values: &Values) -> redlatch::Result<AcquireOptions> {
    let mut options = AcquireOptions::new();
    set_all(&mut options, names, values)?;
    Ok(options)
}

/// A plain semaphore. JavaScript gives whole numbers that are not negative, unless they may be.
#[napi]
pub struct PlainSemaphore {
    semaphore: redlatch::PlainSemaphore,
    client: Rc<Shared>,
}

#[napi]
impl PlainSemaphore {
    /// Takes permits, and waits for them, at most `wait` if that is given.
    #[napi]
    pub fn take(&self, permits: f64, wait: Option<Value>) -> Checked<Asked> {
        caught(|| {
            let wait = read_wait(wait)?;
            let take = PlainSemaphoreExt::take(&self.semaphore, permits as usize, wait);
            self.client.ask(take)
        })
    }

    /// Gives permits back, whoever took them.
    #[napi]
    pub fn release(&self, permits: f64) -> Checked<Asked> {
        caught(|| self.client.ask(self.semaphore.release(permits as usize)))
    }

    /// Sets the number of permits, if there is none.
    #[napi]
    pub fn try_set_permits(&self, permits: f64) -> Checked<Asked> {
        caught(|| {
            self.client
                .ask(self.semaphore.try_set_permits(permits as usize))
        })
    }

    /// Adds permits, or takes some away.
    #[napi]
    pub fn add_permits(&self, permits: f64) -> Checked<Asked> {
        caught(|| self.client.ask(self.semaphore.add_permits(permits as i64)))
    }

    /// Takes all permits that there are.
    #[napi]
    pub fn drain(&self) -> Checked<Asked> {
        caught(|| self.client.ask(self.semaphore.drain()))
    }

    /// Asks how many permits there are.
    #[napi]
    pub fn available(&self) -> Checked<Asked> {
        caught(|| self.client.ask(self.semaphore.available()))
    }
}

/// A count-down latch. JavaScript gives whole numbers that are not negative.
#[napi]
pub struct CountDownLatch {
    latch: redlatch::CountDownLatch,
    client: Rc<Shared>,
}

#[napi]
impl CountDownLatch {
    /// Sets the count, if there is none.
    #[napi]
    pub fn try_set_count(&self, count: f64) -> Checked<Asked> {
        caught(|| self.client.ask(self.latch.try_set_count(count as usize)))
    }

    /// Counts down.
    #[napi]
    pub fn count_down(&self, by: f64) -> Checked<Asked> {
        caught(|| self.client.ask(self.latch.count_down(by as usize)))
    }

    /// Asks for the count.
    #[napi]
    pub fn count(&self) -> Checked<Asked> {
        caught(|| self.client.ask(self.latch.count()))
    }

    /// Waits until the count is 0, at most `wait` if that is given.
    #[napi]
    pub fn wait(&self, wait: Option<Value>) -> Checked<Asked> {
        caught(|| self.client.ask(self.latch.wait_within(read_wait(wait)?)))
    }
}

fn read_wait(wait: Option<Value>) -> redlatch::Result<Option<Duration>> {
    wait.map(|wait| read_duration("wait", option(&wait)))
        .transpose()
}
