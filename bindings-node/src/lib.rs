//! The Node.js face: scalars in, scalars out.
//!
//! Classes, promises and errors are made by the JavaScript in `lib/`; everything that has a meaning is the core's.
//! Each JavaScript environment (the main thread, each worker) has one [`Border`], which the engines' threads wake
//! through one thread-safe function and which hands over all answers at once.

mod border;
pub mod tables;
mod values;

use std::cell::Cell;
use std::rc::Rc;

use napi::bindgen_prelude::{BigInt, Env, FnArgs, Function};
use napi_derive::napi;
use redlatch::{AcquireOptions, Key, OptionValue, read_duration};

use border::{Id, State};
use values::{Asked, Checked, EventRow, Names, Stat, Value, Values, caught, option, set_all};

/// The answers, holds and clients of one JavaScript environment.
#[napi]
pub struct Border(Rc<State>);

#[napi]
impl Border {
    /// `drain` is called when answers wait; it keeps the event loop alive only while a call is unanswered.
    #[napi(constructor)]
    pub fn new(env: Env, drain: Function<(), ()>) -> napi::Result<Self> {
        State::new(env, drain).map(Border)
    }

    /// Makes a client. No I/O.
    #[napi]
    pub fn client(&self, url: Option<String>, names: Names, values: Values) -> Checked<Client> {
        caught(|| {
            let from_env = redlatch::Client::builder_from_env;
            let mut builder = url.map_or_else(from_env, |url| redlatch::Client::builder(&url));
            set_all(&names, &values, |name, value| builder.set(name, value))?;
            let client = builder.build()?;
            Ok(Client(Rc::new(Shared {
                client,
                state: self.0.clone(),
                id: self.0.next_id(),
                told: Cell::new(false),
            })))
        })
    }

    /// A number for an asynchronous context: its acquisitions are one owner.
    #[napi]
    pub fn new_context(&self) -> Id {
        self.0.next_id()
    }

    /// The function that takes all answers. Not a method: see [`Bare`].
    #[napi]
    pub fn drain<'env>(&self, env: &'env Env) -> Bare<'env, ()> {
        let state = self.0.clone();
        env.create_function_from_closure("drain", move |_| Ok(caught(|| Ok(state.drain()))))
    }

    /// Stops waiting for a call. What it may have won is released.
    #[napi]
    pub fn cancel(&self, call: Id) -> Checked<()> {
        caught(|| {
            self.0.cancel(call);
            Ok(())
        })
    }

    /// Whether the hold can be relied on now.
    #[napi]
    pub fn is_held(&self, hold: Id) -> bool {
        self.0.read(hold, false, redlatch::Guard::is_held)
    }

    /// Nothing, or why the hold cannot be relied on.
    #[napi]
    pub fn check(&self, hold: Id) -> Checked<()> {
        caught(|| self.0.held(hold, redlatch::Guard::check)?)
    }

    /// How long the hold can be relied on, in milliseconds.
    #[napi]
    pub fn remaining(&self, hold: Id) -> f64 {
        self.0.read(hold, 0.0, |guard| guard.remaining().as_secs_f64() * 1000.0)
    }

    /// How many levels the hold has.
    #[napi]
    pub fn hold_count(&self, hold: Id) -> u32 {
        self.0.read(hold, 0, redlatch::Guard::hold_count)
    }

    /// The function that gives the level of a hold back. Not a method: see [`Bare`].
    #[napi]
    pub fn release<'env>(&self, env: &'env Env) -> Bare<'env, (Id,)> {
        let state = self.0.clone();
        env.create_function_from_closure("release", move |call| {
            let hold = call.get(0)?;
            Ok(caught(|| Ok(state.ask(state.take(hold)?.release()))))
        })
    }

    /// Makes the lock live at least so long from now.
    #[napi]
    pub fn extend(&self, hold: Id, lease: Value) -> Checked<Asked> {
        caught(|| {
            let lease = read_duration("lease", option(&lease))?;
            Ok(self.0.ask(self.0.held(hold, |guard| guard.extend(lease))?))
        })
    }

    /// The JavaScript object of the hold was garbage-collected; whether it had not been released.
    #[napi]
    pub fn abandon(&self, hold: Id) -> Checked<bool> {
        caught(|| Ok(self.0.take(hold).map(redlatch::Guard::abandon).is_ok()))
    }
}

struct Shared {
    client: redlatch::Client,
    state: Rc<State>,
    id: Id,
    /// Whether the engine knows whom to tell of events.
    told: Cell<bool>,
}

impl Shared {
    /// Has the border woken by events, from the first call on: before that there is no engine.
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

/// A function for what is called most often. A method of a class has its object looked up, tagged and counted by Node-API
/// and napi-rs, which takes longer than the rest of a call does on this side.
type Bare<'env, Arguments> = napi::Result<Function<'env, Arguments, Checked<Asked>>>;

/// A client.
#[napi]
pub struct Client(Rc<Shared>);

#[napi]
impl Client {
    /// What names the client in a batch.
    #[napi(getter)]
    pub fn id(&self) -> Id {
        self.0.id
    }

    /// Answered when the server is reached.
    #[napi]
    pub fn ready(&self) -> Checked<Asked> {
        caught(|| self.0.ask(self.0.client.ready()))
    }

    /// Reads the options of locks, and checks the name of the first that has them. No I/O.
    #[napi]
    pub fn locks(&self, name: String, names: Names, values: Values) -> Checked<Locks> {
        caught(|| {
            let mut options = self.0.client.lock_options();
            set_all(&names, &values, |name, value| options.set(name, value))?;
            let first = self.0.client.lock_with(&name, options)?;
            Ok(Locks(Rc::new(Family { first, client: self.0.clone() })))
        })
    }

    /// The counters.
    #[napi]
    pub fn stats(&self) -> Checked<Vec<Stat>> {
        caught(|| Ok(self.0.client.stats().entries().into_iter().map(Stat::from).collect()))
    }

    /// Takes the events.
    #[napi]
    pub fn events(&self) -> Checked<Vec<EventRow>> {
        caught(|| Ok(self.0.client.events().into_iter().map(EventRow::from).collect()))
    }

    /// Closes within a limit, or within the client's own.
    #[napi]
    pub fn close(&self, limit: Option<Value>) -> Checked<Asked> {
        caught(|| {
            Ok(self.0.state.ask(match limit {
                Some(limit) => self.0.client.close_within(read_duration("close_limit", option(&limit))?),
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
        self.client.ask(self.first.named(name)?.acquire_with(options))
    }
}

/// The locks of a client that have the same options. There may be very many of them, and an object of this kind
/// costs half a kilobyte: so they share one, and tell their names.
#[napi]
pub struct Locks(Rc<Family>);

#[napi]
impl Locks {
    /// The name as it stands in Redis; a failure if it cannot be one.
    #[napi]
    pub fn name(&self, name: String) -> Checked<String> {
        caught(|| Ok(self.0.first.named(&name)?.name().to_owned()))
    }

    /// The function that acquires as an owner of its own, without options or with the one that is given most: how long to
    /// wait at most. Not a method: see [`Bare`].
    #[napi]
    pub fn acquire<'env>(&self, env: &'env Env) -> Bare<'env, FnArgs<(String, Option<f64>)>> {
        let family = self.0.clone();
        env.create_function_from_closure("acquire", move |call| {
            let name: String = call.get(0)?;
            let wait = if call.length() > 1 { Some(call.get::<f64>(1)?) } else { None };
            Ok(caught(|| {
                let mut options = AcquireOptions::new();
                if let Some(wait) = wait {
                    options.set("wait", OptionValue::Millis(wait))?;
                }
                family.acquire(&name, options)
            }))
        })
    }

    /// Acquires as an owner of its own, or as the owner behind a number or a context.
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
                options = options.key(Key::Task(number as u64));
            }
            if let Some(key) = key {
                options = options.key(Key::Explicit(key.get_u64().1));
            }
            self.0.acquire(&name, options)
        })
    }

    /// Acquires once more as the owner of a hold of such a lock.
    #[napi]
    pub fn reenter(&self, hold: Id, names: Names, values: Values) -> Checked<Asked> {
        caught(|| {
            let (Family { first, client }, options) = (&*self.0, acquire_options(&names, &values)?);
            client.ask(client.state.held(hold, |guard| guard.reenter_with(first.options(), options))?)
        })
    }

    /// Asks who holds the lock.
    #[napi]
    pub fn holder(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.first.named(&name)?.holder()))
    }

    /// Frees the lock if this is its value.
    #[napi]
    pub fn release_token(&self, name: String, token: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.first.named(&name)?.release_token(&token)))
    }

    /// Makes the lock live at least so long from now if this is its value.
    #[napi]
    pub fn extend_token(&self, name: String, token: String, lease: Value) -> Checked<Asked> {
        caught(|| {
            let lease = read_duration("lease", option(&lease))?;
            self.0.client.ask(self.0.first.named(&name)?.extend_token(&token, lease))
        })
    }

    /// Deletes the lock whoever holds it.
    #[napi]
    pub fn force_release(&self, name: String) -> Checked<Asked> {
        caught(|| self.0.client.ask(self.0.first.named(&name)?.force_release()))
    }
}

fn acquire_options(names: &Names, values: &Values) -> redlatch::Result<AcquireOptions> {
    let mut options = AcquireOptions::new();
    set_all(names, values, |name, value| options.set(name, value))?;
    Ok(options)
}
