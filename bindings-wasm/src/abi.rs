//! The functions that a host calls. Numbers are 64-bit floats, which every host has: times are
//! microseconds of one clock that never goes back, identities are whole numbers below 2^53.
#![allow(unsafe_code, reason = "exported functions are unsafe attributes")]
#![allow(
    clippy::missing_safety_doc,
    reason = "they take numbers only, and check them"
)]

use std::cell::RefCell;

use redlatch_proto::error::Result;
use redlatch_proto::moment::Moment;

use crate::bytes::Arguments;
use crate::module::{Asked, Id, Module};

#[derive(Default)]
struct Host {
    module: Module,
    /// The arguments of the next call.
    input: Vec<u8>,
    /// The records of the last call.
    output: Vec<u8>,
}

thread_local! {
    static HOST: RefCell<Host> = RefCell::default();
}

/// Runs a call and returns how many bytes of records there are. Not for each type of function: the
/// size of the module counts.
fn call(act: &dyn Fn(&mut Module, Arguments<'_>) -> Result<()>) -> u32 {
    HOST.with_borrow_mut(|host| {
        let input = std::mem::take(&mut host.input);
        if let Err(error) = act(&mut host.module, Arguments(&input)) {
            host.module.fail(0, error);
        }
        host.input = input;
        host.input.clear();
        host.input.shrink_to(1 << 16);
        host.module.take(&mut host.output);
        u32::try_from(host.output.len()).unwrap_or(u32::MAX)
    })
}

fn moment(micros: f64) -> Moment {
    Moment(micros as u64)
}

/// Makes room for the arguments of the next call, and returns their place.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_input(length: u32) -> *mut u8 {
    HOST.with_borrow_mut(|host| {
        host.input.clear();
        host.input.resize(length as usize, 0);
        host.input.as_mut_ptr()
    })
}

/// The place of the records of the last call.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_output() -> *const u8 {
    HOST.with_borrow(|host| host.output.as_ptr())
}

/// Names of options and counters are given and told in camelCase, if `camel` is not 0.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_spelling(camel: u32) {
    HOST.with_borrow_mut(|host| host.module.spelling(camel != 0));
}

/// Calls that are answered by their own records.
macro_rules! calls {
    ($( $(#[$doc:meta])* $name:ident($($arg:ident),*) => |$module:ident, $given:ident| $body:expr; )+) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: f64),*) -> u32 {
            call(&|$module, $given| { let _ = &$given; $body; Ok(()) })
        }
    )+ };
}

/// Calls with a number, that are answered later: what they are about, and how they are read.
macro_rules! asked {
    ($( $(#[$doc:meta])* $name:ident($about:ident) => $ask:ident; )+) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(id: f64, $about: f64, now: f64) -> u32 {
            ask(id, now, &|module, given| module.$ask($about as Id, given))
        }
    )+ };
}

/// Begins a call that is answered later.
fn ask(id: f64, now: f64, read: &dyn Fn(&mut Module, &mut Arguments<'_>) -> Result<Asked>) -> u32 {
    call(&|module, mut given| {
        let asked = read(module, &mut given)?;
        module.ask(moment(now), id as Id, asked);
        Ok(())
    })
}

asked! {
    /// Waits until the server is reached.
    redlatch_ready(client) => ready;
    /// Closes a client within a limit, or within its option.
    redlatch_close(client) => close;
    /// Acquires a lock. The call's number is that of the hold from then on.
    redlatch_acquire(family) => acquire;
    /// Takes over the lock of a token. The call's number is that of the hold from then on.
    redlatch_adopt(family) => adopt;
    /// Takes the write side of a read-write lock from all that have the lock.
    redlatch_steal(family) => steal;
    /// Asks who has a lock, or waits for it.
    redlatch_inspect(family) => inspect;
    /// Deletes a lock.
    redlatch_force(family) => force;
    /// Asks how many permits a semaphore has, and may set it first.
    redlatch_permits(family) => permits;
    /// Releases or extends a lock by its token.
    redlatch_by_token(family) => by_token;
    /// Takes permits of a plain semaphore.
    redlatch_take(client) => take_permits;
    /// Waits until a latch is at 0.
    redlatch_await(client) => r#await;
    /// Changes a counter.
    redlatch_change(client) => change;
    /// Reads a counter.
    redlatch_read(client) => read;
    /// Releases a hold.
    redlatch_release(hold) => release;
    /// Extends a hold.
    redlatch_extend(hold) => extend;
}

/// Acquires once more as the owner of a hold.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_reenter(id: f64, family: f64, hold: f64, now: f64) -> u32 {
    ask(id, now, &|module, given| {
        module.reenter(family as Id, hold as Id, given)
    })
}

calls! {
    /// Opens a client. No I/O.
    redlatch_open(client) => |module, given| module.open(client as Id, given)?;
    /// No handle to the client is left.
    redlatch_drop_client(client, now) => |module, given| module.drop_client(moment(now), client as Id);
    /// The counters of a client.
    redlatch_stats(client) => |module, given| module.stats(client as Id);
    /// The events of a client since the last time.
    redlatch_events(client) => |module, given| module.events(client as Id);
    /// Locks of a client with the same options.
    redlatch_locks(family, client) => |module, given| module.family(family as Id, client as Id, given)?;
    /// The multi lock of locks of a client.
    redlatch_multi(family, client) => |module, given| module.multi(family as Id, client as Id, given)?;
    /// They are not used any more.
    redlatch_drop_locks(family) => |module, given| module.drop_family(family as Id);
    /// The name of a lock as it is in Redis.
    redlatch_name(family) => |module, given| module.name(family as Id, given)?;
    /// Checks the name of a counter: a plain semaphore or a latch.
    redlatch_counter_name(client) => |module, given| module.counter_name(client as Id, given)?;
    /// The owner of a hold as it is in Redis.
    redlatch_owner(hold) => |module, given| module.owner(hold as Id)?;
    /// A record of failure if the hold cannot be relied on.
    redlatch_check(hold, now) => |module, given| module.check(moment(now), hold as Id)?;
    /// Stops waiting for a call.
    redlatch_cancel(id, now) => |module, given| module.cancel(moment(now), id as Id);
    /// A connection is open.
    redlatch_opened(conn, now) => |module, given| module.opened(moment(now), conn as u64, given)?;
    /// Bytes have arrived.
    redlatch_received(conn, now) => |module, given| module.received(moment(now), conn as u64, given.0);
    /// A connection is gone, or could not be made.
    redlatch_closed(conn, now) => |module, given| module.closed(moment(now), conn as u64, given)?;
    /// Time has passed.
    redlatch_wake(now) => |module, given| module.wake(moment(now));
    /// Writes what calls have left to be written.
    redlatch_flush(now) => |module, given| module.flush(moment(now));
    /// The program ends: writes all that is left, without waiting for answers.
    redlatch_end(now) => |module, given| module.end(moment(now));
}

/// Whether a handle that was lost had a hold. It is not renewed any more.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_abandon(hold: f64, now: f64) -> u32 {
    HOST.with_borrow_mut(|host| u32::from(host.module.abandon(moment(now), hold as Id)))
}

/// Whether the hold can be relied on.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_is_held(hold: f64, now: f64) -> u32 {
    HOST.with_borrow(|host| u32::from(host.module.is_held(moment(now), hold as Id)))
}

/// For how many milliseconds, if nothing more is heard of the server.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_remaining(hold: f64, now: f64) -> f64 {
    HOST.with_borrow(|host| host.module.remaining(moment(now), hold as Id))
}

/// How many levels the hold has.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_count(hold: f64) -> u32 {
    HOST.with_borrow(|host| host.module.count(hold as Id))
}

/// The tables of errors, lost reasons and options, as JSON; returns their length.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_tables() -> u32 {
    HOST.with_borrow_mut(|host| {
        let Host { module, output, .. } = host;
        *output = module.tables().into_bytes();
        u32::try_from(output.len()).unwrap_or(u32::MAX)
    })
}
