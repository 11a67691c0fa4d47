//! Runs scripts as Redis does: in Lua 5.1, with `KEYS`, `ARGV` and `redis`.
//!
//! These few calls of Lua's C interface are declared here, because a binding to all of it makes the
//! packages of the languages twice as much larger. Lua raises an error by `longjmp`. Nothing here
//! calls a function that raises one, but when memory ends; the script itself runs in `pcall`.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::commands::{Answer, unknown};
use crate::hub::Hub;
use crate::resp::{Reply, shown};

/// The version of Redis whose behaviour this is.
pub(crate) const VERSION: &str = "7.4.0";

/// Lua's state, which only Lua looks into.
#[repr(C)]
struct State {
    _private: [u8; 0],
}

type Function = unsafe extern "C-unwind" fn(*mut State) -> c_int;
type Hook = unsafe extern "C-unwind" fn(*mut State, *mut c_void);

const REGISTRY: c_int = -10000;
const GLOBALS: c_int = -10002;
/// The first value that a function has kept.
const KEPT: c_int = GLOBALS - 1;
/// A hook is called after so many instructions.
const BY_COUNT: c_int = 1 << 3;
const INSTRUCTIONS: c_int = 10_000;
/// Texts that begin with it are compiled already, and Lua does not check them.
const COMPILED: u8 = 0x1b;
const NIL: c_int = 0;
const BOOLEAN: c_int = 1;
const NUMBER: c_int = 3;
const STRING: c_int = 4;
const TABLE: c_int = 5;

unsafe extern "C-unwind" {
    fn luaL_newstate() -> *mut State;
    fn lua_close(state: *mut State);
    fn luaopen_base(state: *mut State) -> c_int;
    fn luaopen_table(state: *mut State) -> c_int;
    fn luaopen_string(state: *mut State) -> c_int;
    fn luaopen_math(state: *mut State) -> c_int;
    fn luaL_loadbuffer(
        state: *mut State,
        text: *const c_char,
        size: usize,
        name: *const c_char,
    ) -> c_int;
    fn lua_pcall(state: *mut State, args: c_int, results: c_int, handler: c_int) -> c_int;
    fn lua_sethook(state: *mut State, hook: Option<Hook>, mask: c_int, count: c_int) -> c_int;
    fn lua_error(state: *mut State) -> c_int;
    fn luaL_ref(state: *mut State, table: c_int) -> c_int;
    fn luaL_unref(state: *mut State, table: c_int, number: c_int);
    fn luaL_where(state: *mut State, level: c_int);
    fn lua_checkstack(state: *mut State, more: c_int) -> c_int;
    fn lua_gettop(state: *mut State) -> c_int;
    fn lua_settop(state: *mut State, index: c_int);
    fn lua_type(state: *mut State, index: c_int) -> c_int;
    fn lua_tonumber(state: *mut State, index: c_int) -> f64;
    fn lua_toboolean(state: *mut State, index: c_int) -> c_int;
    fn lua_tolstring(state: *mut State, index: c_int, size: *mut usize) -> *const c_char;
    fn lua_touserdata(state: *mut State, index: c_int) -> *mut c_void;
    fn lua_pushboolean(state: *mut State, is: c_int);
    fn lua_pushnumber(state: *mut State, number: f64);
    fn lua_pushlstring(state: *mut State, text: *const c_char, size: usize);
    fn lua_pushlightuserdata(state: *mut State, place: *mut c_void);
    fn lua_pushcclosure(state: *mut State, function: Function, kept: c_int);
    fn lua_createtable(state: *mut State, elements: c_int, fields: c_int);
    fn lua_rawget(state: *mut State, table: c_int);
    fn lua_rawgeti(state: *mut State, table: c_int, index: c_int);
    fn lua_rawset(state: *mut State, table: c_int);
    fn lua_rawseti(state: *mut State, table: c_int, index: c_int);
}

/// The globals of a script, and how its error becomes a reply.
const PRELUDE: &str = include_str!("prelude.lua");

/// A script of a lock takes less than a ms. One that takes so long never ends by itself.
const LONGEST: Duration = Duration::from_secs(5);

/// When a script has to end.
struct Limit {
    /// The server stops.
    stops: Arc<AtomicBool>,
    until: Instant,
}

thread_local! {
    /// The limit of the script that runs: a hook of Lua gets no data.
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

/// Whether the script that runs has to end.
fn is_over() -> bool {
    LIMIT.with(|place| {
        let limit = place.take();
        let over = limit.as_ref().is_some_and(|limit| {
            limit.stops.load(Ordering::Relaxed) || Instant::now() > limit.until
        });
        place.set(limit);
        over
    })
}

/// The interpreter, with the scripts that it knows.
pub(crate) struct Lua {
    state: *mut State,
    /// By the SHA-1 of their text: the place in Lua's registry.
    scripts: RefCell<BTreeMap<String, c_int>>,
    /// The function of the prelude that runs a script.
    runner: c_int,
    /// The server stops.
    stops: Arc<AtomicBool>,
    /// Lua has its address.
    _hub: Rc<RefCell<Hub>>,
}

impl Lua {
    /// A script that runs when `stops` becomes true ends.
    pub(crate) fn new(hub: Rc<RefCell<Hub>>, stops: Arc<AtomicBool>) -> Lua {
        let place: *const RefCell<Hub> = Rc::as_ptr(&hub);
        // SAFETY: the state is new and only ours. The hub lives longer than the state: both are fields of
        // `Lua`, which closes the state when it is dropped.
        let (state, runner) = unsafe {
            let state = luaL_newstate();
            for open in [luaopen_base, luaopen_table, luaopen_string, luaopen_math] {
                lua_pushcclosure(state, open, 0);
                lua_pcall(state, 0, 0, 0);
            }
            let prelude = load(state, PRELUDE.as_bytes(), c"@prelude");
            debug_assert!(prelude, "the prelude is Lua");
            lua_pushlightuserdata(state, place.cast_mut().cast());
            lua_pushcclosure(state, call_command, 1);
            lua_pushcclosure(state, place_of_caller, 0);
            lua_pushcclosure(state, sha1_of, 0);
            push_text(state, VERSION.as_bytes());
            lua_pcall(state, 4, 1, 0);
            (state, luaL_ref(state, REGISTRY))
        };
        Lua {
            state,
            scripts: RefCell::default(),
            runner,
            stops,
            _hub: hub,
        }
    }

    /// Compiles a script, unless it is known already, and returns its SHA-1.
    pub(crate) fn load(&self, text: &[u8]) -> Result<String, String> {
        let sha1 = sha1_smol::Sha1::from(text).hexdigest();
        if !self.knows(&sha1) {
            // SAFETY: the state is ours, and nobody else uses it now: a script calls no script.
            let place = unsafe {
                if !load(self.state, text, c"@user_script") {
                    let why = read_text(self.state, -1);
                    lua_settop(self.state, 0);
                    let why = String::from_utf8_lossy(&why).into_owned();
                    return Err(format!("ERR Error compiling script (new function): {why}"));
                }
                luaL_ref(self.state, REGISTRY)
            };
            self.scripts.borrow_mut().insert(sha1.clone(), place);
        }
        Ok(sha1)
    }

    pub(crate) fn knows(&self, sha1: &str) -> bool {
        self.scripts.borrow().contains_key(sha1)
    }

    pub(crate) fn forget(&self) {
        for (_, place) in std::mem::take(&mut *self.scripts.borrow_mut()) {
            // SAFETY: as in `load`.
            unsafe { luaL_unref(self.state, REGISTRY, place) };
        }
    }

    /// Calls a script that is known.
    pub(crate) fn call(&self, sha1: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Answer {
        let script = self.scripts.borrow().get(sha1).copied();
        let script = script.ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
        LIMIT.set(Some(Limit {
            stops: self.stops.clone(),
            until: Instant::now() + LONGEST,
        }));
        // SAFETY: as in `load`. The callback borrows the hub, which nobody has borrowed now.
        let reply = unsafe {
            let state = self.state;
            lua_rawgeti(state, REGISTRY, self.runner);
            lua_rawgeti(state, REGISTRY, script);
            push_text(state, sha1.as_bytes());
            push_list(state, keys);
            push_list(state, args);
            lua_sethook(state, Some(end_script), BY_COUNT, INSTRUCTIONS);
            let failed = lua_pcall(state, 4, 1, 0) != 0;
            lua_sethook(state, None, 0, 0);
            let reply = if failed {
                // The runner catches all but its own end.
                let why = read_text(state, -1);
                Reply::Error(String::from_utf8_lossy(&why).into_owned())
            } else {
                read(state, -1, 0)
            };
            lua_settop(state, 0);
            reply
        };
        LIMIT.set(None);
        match reply {
            Reply::Error(text) => Err(text),
            reply => Ok(reply),
        }
    }
}

impl Drop for Lua {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { lua_close(self.state) };
    }
}

/// Puts a compiled text on the stack, or why it cannot be compiled.
unsafe fn load(state: *mut State, text: &[u8], name: &CStr) -> bool {
    if text.first() == Some(&COMPILED) {
        // SAFETY: Lua copies it.
        unsafe {
            push_text(
                state,
                b"user_script: compiled Lua is refused: send its source",
            )
        };
        return false;
    }
    // SAFETY: the buffer is only read during the call.
    unsafe { luaL_loadbuffer(state, text.as_ptr().cast(), text.len(), name.as_ptr()) == 0 }
}

unsafe fn push_text(state: *mut State, text: &[u8]) {
    // SAFETY: Lua copies it.
    unsafe { lua_pushlstring(state, text.as_ptr().cast(), text.len()) };
}

unsafe fn push_list(state: *mut State, list: &[Vec<u8>]) {
    // SAFETY: the table is on top when its elements are set.
    unsafe {
        lua_createtable(state, c_int::try_from(list.len()).unwrap_or(0), 0);
        for (place, text) in (1..).zip(list) {
            push_text(state, text);
            lua_rawseti(state, -2, place);
        }
    }
}

/// A text, or a number as text; nothing of anything else.
unsafe fn read_text(state: *mut State, index: c_int) -> Vec<u8> {
    let mut size = 0;
    // SAFETY: the pointer is valid as long as the value is on the stack. A number becomes a text in its
    // place, which is why nobody calls this for a key of a table that is being read.
    unsafe {
        let text = lua_tolstring(state, index, &raw mut size);
        if text.is_null() {
            return Vec::new();
        }
        std::slice::from_raw_parts(text.cast::<u8>(), size).to_vec()
    }
}

/// The reply that a value of Lua stands for.
unsafe fn read(state: *mut State, index: c_int, depth: usize) -> Reply {
    // SAFETY: every branch leaves the stack as it was.
    unsafe {
        match lua_type(state, index) {
            STRING => Reply::Bulk(read_text(state, index)),
            NUMBER => Reply::Int(lua_tonumber(state, index) as i64),
            BOOLEAN if lua_toboolean(state, index) != 0 => Reply::Int(1),
            TABLE if depth > 100 || lua_checkstack(state, 4) == 0 => {
                Reply::Error("ERR reached lua stack limit".to_owned())
            }
            TABLE => read_table(state, index, depth),
            _ => Reply::Nil,
        }
    }
}

unsafe fn read_table(state: *mut State, index: c_int, depth: usize) -> Reply {
    // SAFETY: as above. `table` is the place from the bottom, which does not move.
    unsafe {
        let top = lua_gettop(state);
        let table = if index < 0 { top + index + 1 } else { index };
        for (name, make) in [
            (
                &b"err"[..],
                (|text| Reply::Error(text)) as fn(String) -> Reply,
            ),
            (b"ok", |text| Reply::Status(text.into())),
        ] {
            push_text(state, name);
            lua_rawget(state, table);
            let text = (lua_type(state, -1) == STRING).then(|| read_text(state, -1));
            lua_settop(state, top);
            if let Some(text) = text {
                return make(String::from_utf8_lossy(&text).into_owned());
            }
        }
        let mut parts = Vec::new();
        for place in 1.. {
            lua_rawgeti(state, table, place);
            if lua_type(state, -1) == NIL {
                break;
            }
            parts.push(read(state, -1, depth + 1));
            lua_settop(state, top);
        }
        lua_settop(state, top);
        Reply::Array(parts)
    }
}

/// Puts what a command has answered on the stack.
unsafe fn push(state: *mut State, reply: &Reply) {
    let field = |name: &[u8], text: &[u8]| {
        // SAFETY: the table is below name and value.
        unsafe {
            lua_createtable(state, 0, 1);
            push_text(state, name);
            push_text(state, text);
            lua_rawset(state, -3);
        }
    };
    let list = |parts: &mut dyn Iterator<Item = &Reply>| {
        // SAFETY: the table is below its element.
        unsafe {
            lua_createtable(state, 0, 0);
            for (place, part) in (1..).zip(parts) {
                push(state, part);
                lua_rawseti(state, -2, place);
            }
        }
    };
    // SAFETY: each branch pushes one value; there is room, which the caller has asked for.
    unsafe {
        match reply {
            Reply::Status(text) => field(b"ok", text.as_bytes()),
            Reply::Error(text) => field(b"err", text.as_bytes()),
            Reply::Int(number) => lua_pushnumber(state, *number as f64),
            Reply::Double(number) => push_text(state, shown(*number).as_bytes()),
            Reply::Bulk(bytes) => push_text(state, bytes),
            Reply::Text(text) => push_text(state, text.as_bytes()),
            Reply::Nil => lua_pushboolean(state, 0),
            Reply::Array(parts) | Reply::Push(parts) | Reply::Several(parts) => {
                list(&mut parts.iter())
            }
            Reply::Scores(members) => {
                let words = members
                    .iter()
                    .flat_map(|(member, score)| [Reply::bulk(member), Reply::bulk(shown(*score))]);
                list(&mut words.collect::<Vec<_>>().iter());
            }
            Reply::Map(pairs) => list(&mut pairs.iter().flat_map(|(key, value)| [key, value])),
        }
    }
}

/// Ends a script that has to end. From then on each of its instructions fails, so no `pcall` keeps it.
unsafe extern "C-unwind" fn end_script(state: *mut State, _: *mut c_void) {
    if is_over() {
        // SAFETY: nothing here has to be dropped when Lua leaves by `longjmp`.
        unsafe {
            lua_sethook(state, Some(end_script), BY_COUNT, 1);
            push_text(
                state,
                b"ERR the script has run for 5 s, and the in-memory server of redlatch ends it: does its loop end?",
            );
            lua_error(state);
        }
    }
}

/// `redis.pcall`: runs a command.
unsafe extern "C-unwind" fn call_command(state: *mut State) -> c_int {
    // SAFETY: `Lua::new` has put the address of the hub here, which lives longer than the state.
    unsafe {
        let hub = &*lua_touserdata(state, KEPT).cast::<RefCell<Hub>>();
        // A panic does not cross the frames of Lua.
        let reply = catch_unwind(AssertUnwindSafe(|| called(state, hub)));
        let reply = reply.unwrap_or_else(|_| {
            Reply::Error("ERR the in-memory server of redlatch has panicked".to_owned())
        });
        lua_checkstack(state, 16);
        push(state, &reply);
    }
    1
}

unsafe fn called(state: *mut State, hub: &RefCell<Hub>) -> Reply {
    let mut words = Vec::new();
    // SAFETY: the arguments are on the stack.
    unsafe {
        for index in 1..=lua_gettop(state) {
            words.push(match lua_type(state, index) {
                STRING => read_text(state, index),
                NUMBER => shown(lua_tonumber(state, index)).into_bytes(),
                _ => {
                    return Reply::Error(
                        "ERR Lua redis lib command arguments must be strings or integers"
                            .to_owned(),
                    );
                }
            });
        }
    }
    let Some((first, args)) = words.split_first() else {
        return Reply::Error(
            "ERR Please specify at least one argument for this redis.call() call".to_owned(),
        );
    };
    let name = String::from_utf8_lossy(first).to_ascii_uppercase();
    let mut hub = hub.borrow_mut();
    hub.show("lua", &words);
    let answer = hub.run(&name, args);
    answer
        .unwrap_or_else(|| Err(unknown(&name)))
        .unwrap_or_else(Reply::Error)
}

/// The line of the script that has called `redis.call`, as `user_script:7: `.
unsafe extern "C-unwind" fn place_of_caller(state: *mut State) -> c_int {
    // SAFETY: level 1 is `redis.call`, and level 2 its caller; a level that is not there gives no text.
    unsafe { luaL_where(state, 2) };
    1
}

/// `redis.sha1hex`
unsafe extern "C-unwind" fn sha1_of(state: *mut State) -> c_int {
    // SAFETY: the argument is on the stack, if there is one.
    unsafe {
        let text = read_text(state, 1);
        push_text(state, sha1_smol::Sha1::from(text).hexdigest().as_bytes());
    }
    1
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::hub::Clock;

    fn interpreter(stops: bool) -> Lua {
        let hub = Rc::new(RefCell::new(Hub::new(Clock::new())));
        Lua::new(hub, Arc::new(AtomicBool::new(stops)))
    }

    fn run(lua: &Lua, text: &str) -> Answer {
        lua.call(&lua.load(text.as_bytes())?, &[], &[])
    }

    const ENDLESS: [&str; 4] = [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function again() pcall(again) return again() end again()",
        "while true do coroutine.wrap(function() while true do end end)() end",
    ];

    #[test]
    fn an_endless_script_ends_when_the_server_stops() {
        let lua = interpreter(true);
        for script in ENDLESS {
            let since = Instant::now();
            run(&lua, script).unwrap_err();
            assert!(since.elapsed() < LONGEST, "{script}");
        }
    }

    #[test]
    fn an_endless_script_ends_after_a_while() {
        let lua = interpreter(false);
        let refused = run(&lua, ENDLESS[1]).unwrap_err();
        assert!(refused.starts_with("ERR the script has run"), "{refused}");
        assert_eq!(run(&lua, "return 1"), Ok(Reply::Int(1)));
    }

    #[test]
    fn a_compiled_script_is_refused() {
        let lua = interpreter(false);
        let refused = lua.load(b"\x1bLua").unwrap_err();
        assert!(refused.contains("compiled Lua is refused"), "{refused}");
        let script = r"
            local compiled, why = loadstring('\27Lua')
            return {tostring(compiled), why, type(string.dump), loadstring('return 7')()}";
        let words = ["nil", "compiled Lua is refused", "nil"].map(Reply::bulk);
        let wanted = [&words[..], &[Reply::Int(7)]].concat();
        assert_eq!(run(&lua, script), Ok(Reply::Array(wanted)));
    }

    #[test]
    fn a_panic_of_a_command_is_an_error_of_the_script() {
        let lua = interpreter(false);
        let hub = lua._hub.clone();
        let borrowed = hub.borrow_mut();
        // A second borrow panics.
        let refused = run(&lua, "return redis.call('PING')").unwrap_err();
        assert!(refused.contains("has panicked"), "{refused}");
        drop(borrowed);
        let fine = Ok(Reply::Status("PONG".into()));
        assert_eq!(run(&lua, "return redis.call('PING')"), fine);
    }
}
