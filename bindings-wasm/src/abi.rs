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
use crate::module::{Id, Module};

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

/// Runs a call and returns how many bytes of records there are.
fn call(act: impl FnOnce(&mut Module, Arguments<'_>) -> Result<()>) -> u32 {
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

macro_rules! calls {
    ($( $(#[$doc:meta])* $name:ident($($arg:ident),*) => |$module:ident, $given:ident| $body:expr; )+) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: f64),*) -> u32 {
            $( #[allow(unused_variables)] let $arg = $arg; )*
            call(|$module, $given| { let _ = (&$module, &$given); $body })
        }
    )+ };
}

calls! {
    /// Opens a client. No I/O.
    redlatch_open(client) => |module, given| module.open(client as Id, given);
    /// No handle to the client is left.
    redlatch_drop_client(client, now) => |module, given| {
        module.drop_client(moment(now), client as Id);
        Ok(())
    };
    /// Waits until the server is reached.
    redlatch_ready(id, client, now) => |module, given| {
        module.ready(moment(now), id as Id, client as Id);
        Ok(())
    };
    /// Closes a client within a limit, or within its option.
    redlatch_close(id, client, now) => |module, given| module.close(moment(now), id as Id, client as Id, given);
    /// The counters of a client.
    redlatch_stats(client) => |module, given| {
        module.stats(client as Id);
        Ok(())
    };
    /// The events of a client since the last time.
    redlatch_events(client) => |module, given| {
        module.events(client as Id);
        Ok(())
    };
    /// Locks of a client with the same options.
    redlatch_locks(family, client) => |module, given| module.family(family as Id, client as Id, given);
    /// The multi lock of locks of a client.
    redlatch_multi(family, client) => |module, given| module.multi(family as Id, client as Id, given);
    /// They are not used any more.
    redlatch_drop_locks(family) => |module, given| {
        module.drop_family(family as Id);
        Ok(())
    };
    /// The name of a lock as it is in Redis.
    redlatch_name(family) => |module, given| module.name(family as Id, given);
    /// Acquires a lock. The call's number is that of the hold from then on.
    redlatch_acquire(id, family, now) => |module, given| module.acquire(moment(now), id as Id, family as Id, given);
    /// Takes over the lock of a token. The call's number is that of the hold from then on.
    redlatch_adopt(id, family, now) => |module, given| module.adopt(moment(now), id as Id, family as Id, given);
    /// Takes the write side of a read-write lock from all that have the lock.
    redlatch_steal(id, family, now) => |module, given| module.steal(moment(now), id as Id, family as Id, given);
    /// Acquires once more as the owner of a hold.
    redlatch_reenter(id, family, hold, now) => |module, given| module.reenter(moment(now), id as Id, family as Id, hold as Id, given);
    /// Asks who has a lock, or waits for it.
    redlatch_inspect(id, family, now) => |module, given| module.inspect(moment(now), id as Id, family as Id, given);
    /// Deletes a lock.
    redlatch_force(id, family, now) => |module, given| module.force(moment(now), id as Id, family as Id, given);
    /// Asks how many permits a semaphore has, and may set it first.
    redlatch_permits(id, family, now) => |module, given| module.permits(moment(now), id as Id, family as Id, given);
    /// Checks the name of a counter: a plain semaphore or a latch.
    redlatch_counter_name(client) => |module, given| module.counter_name(client as Id, given);
    /// Takes permits of a plain semaphore.
    redlatch_take(id, client, now) => |module, given| module.take_permits(moment(now), id as Id, client as Id, given);
    /// Waits until a latch is at 0.
    redlatch_await(id, client, now) => |module, given| module.await_latch(moment(now), id as Id, client as Id, given);
    /// Changes a counter.
    redlatch_change(id, client, now) => |module, given| module.change(moment(now), id as Id, client as Id, given);
    /// Reads a counter.
    redlatch_read(id, client, now) => |module, given| module.read(moment(now), id as Id, client as Id, given);
    /// Releases or extends a lock by its token.
    redlatch_by_token(id, family, now) => |module, given| module.by_token(moment(now), id as Id, family as Id, given);
    /// A record of failure if the hold cannot be relied on.
    redlatch_check(hold, now) => |module, given| module.check(moment(now), hold as Id);
    /// Releases a hold.
    redlatch_release(id, hold, now) => |module, given| module.release(moment(now), id as Id, hold as Id);
    /// Extends a hold.
    redlatch_extend(id, hold, now) => |module, given| module.extend(moment(now), id as Id, hold as Id, given);
    /// Stops waiting for a call.
    redlatch_cancel(id, now) => |module, given| {
        module.cancel(moment(now), id as Id);
        Ok(())
    };
    /// A connection is open.
    redlatch_opened(conn, now) => |module, given| module.opened(moment(now), conn as u64, given);
    /// Bytes have arrived.
    redlatch_received(conn, now) => |module, given| {
        module.received(moment(now), conn as u64, given.0);
        Ok(())
    };
    /// A connection is gone, or could not be made.
    redlatch_closed(conn, now) => |module, given| module.closed(moment(now), conn as u64, given);
    /// Time has passed.
    redlatch_wake(now) => |module, given| {
        module.wake(moment(now));
        Ok(())
    };
    /// Writes what calls have left to be written.
    redlatch_flush(now) => |module, given| {
        module.flush(moment(now));
        Ok(())
    };
    /// The program ends: writes all that is left, without waiting for answers.
    redlatch_end(now) => |module, given| {
        module.end(moment(now));
        Ok(())
    };
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

/// When `redlatch_wake` has to be called, if nothing else happens; infinity for never.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_next_wake() -> f64 {
    HOST.with_borrow(|host| {
        let next = host.module.next_wake();
        next.map_or(f64::INFINITY, |at| at.0 as f64)
    })
}

/// The tables of errors, lost reasons and options, as JSON; returns their length.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_tables() -> u32 {
    HOST.with_borrow_mut(|host| {
        let Host { module, output, .. } = host;
        module.tables(output);
        u32::try_from(output.len()).unwrap_or(u32::MAX)
    })
}
