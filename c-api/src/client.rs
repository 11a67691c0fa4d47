//! Clients.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use redlatch::embed::ClientExt;
use redlatch::{Client, Error, ErrorKind, Level, Result, Stats};

use crate::arguments::{Freed, millis_or};
use crate::calls::{Caller, Calls, Slot, User};
use crate::events::{Events, Handle, REDLATCH_EVENT_READY, What};
use crate::exports::exports;
use crate::locked;
use crate::options::redlatch_options;
use crate::status::{in_words_of_c, name_of, redlatch_status};

/// For redlatch_client_close(): as long as the option close_limit says.
pub const REDLATCH_CLOSE_LIMIT: i64 = -1;

/// For following single locks; only with the option debug_events.
pub const REDLATCH_LEVEL_DEBUG: i32 = 0;
/// Connections coming and going.
pub const REDLATCH_LEVEL_INFO: i32 = 1;
/// Something a person should look at.
pub const REDLATCH_LEVEL_WARN: i32 = 2;

/// Called for what happens, for a log: level is one of REDLATCH_LEVEL_DEBUG and the like, kind a
/// word, lock the name of the lock or NULL, text a sentence. The strings are valid during the call
/// only. Unprintable characters are escaped in them as in the texts of errors: a newline in a name
/// is the two characters \n, and ESC is \u{1b}. The function should return soon: while it runs, no
/// other function of this client is called, and of the events only the newest are kept (option
/// events). Locks are renewed and calls are answered all the same.
pub type redlatch_event_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        level: i32,
        kind: *const c_char,
        lock: *const c_char,
        text: *const c_char,
    ),
>;

type EventFn = unsafe extern "C" fn(*mut c_void, i32, *const c_char, *const c_char, *const c_char);

/// A connection to Redis under one identity, with a thread of its own that renews what is held. May
/// be used from any thread, by several at once.
pub struct redlatch_client {
    pub(crate) core: Client,
    events: Mutex<Events>,
    calls: Mutex<Option<Calls>>,
    log: Arc<Slot<EventFn>>,
}

impl redlatch_client {
    fn of(core: Client) -> Arc<redlatch_client> {
        Arc::new(redlatch_client {
            core,
            events: Mutex::default(),
            calls: Mutex::default(),
            log: Slot::new(),
        })
    }

    /// The time for closing that C gives.
    pub(crate) fn limit(&self, wait_ms: i64) -> Result<Duration> {
        let constant = (REDLATCH_CLOSE_LIMIT, "REDLATCH_CLOSE_LIMIT");
        let given = millis_or(constant, "wait_ms", wait_ms, "close_limit")?;
        Ok(given.unwrap_or_else(|| self.core.close_limit()))
    }

    /// Refuses to work for another process than the one that opened the client. Asked before any
    /// lock of ours is taken, since a child may have inherited it locked.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.core.is_forked() {
            self.core.id().map(drop)
        } else {
            Ok(())
        }
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        locked(&self.events)
    }

    /// Forgets what waits through a handle that is freed.
    pub(crate) fn forget(&self, handle: Arc<Handle>) {
        if self.core.is_forked() {
            // All of it is the parent's.
            std::mem::forget(handle);
        } else {
            self.events().forget(&handle);
        }
    }

    /// The thread that calls functions of the program.
    pub(crate) fn caller(&self) -> Result<Caller> {
        let mut calls = locked(&self.calls);
        let started = match calls.take() {
            Some(calls) => calls,
            None => Calls::start()?,
        };
        Ok(calls.insert(started).caller())
    }

    fn close(&self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        let closed = self.core.close_within(limit).wait();
        self.core.join(limit.saturating_sub(began.elapsed()));
        closed
    }

    fn log(self: &Arc<Self>, function: redlatch_event_fn, user: User) -> Result<()> {
        self.log.set(function, user);
        if function.is_none() {
            return Ok(());
        }
        let (caller, client) = (self.caller()?, Arc::downgrade(self));
        self.core.on_events(move || {
            let client = client.clone();
            caller.later(move || {
                if let Some(client) = client.upgrade() {
                    client.tell();
                }
            });
        })
    }

    /// Tells the program what has happened since the last time.
    fn tell(&self) {
        if !self.log.is_set() {
            // Events that nobody listens to stay in the ring.
            return;
        }
        for event in self.core.events() {
            let level = match event.level {
                Level::Debug => REDLATCH_LEVEL_DEBUG,
                Level::Warn => REDLATCH_LEVEL_WARN,
                _ => REDLATCH_LEVEL_INFO,
            };
            let (kind, lock, sentence) = (
                printable(event.kind),
                event.lock.as_deref().map(printable),
                printable(&in_words_of_c(event.text)),
            );
            let lock = lock.as_ref().map_or(ptr::null(), |lock| lock.as_ptr());
            // SAFETY: what is registered is called as the header says; the strings outlive the
            // call.
            self.log.call(|told, user| unsafe {
                told(user, level, kind.as_ptr(), lock, sentence.as_ptr())
            });
        }
    }
}

impl Freed for redlatch_client {
    fn freed(self: Arc<Self>) {
        if self.core.is_forked() {
            // All of it is the parent's.
            std::mem::forget(self);
        } else {
            self.log.set(None, User(ptr::null_mut()));
        }
    }
}

/// A text for a log: control characters and what else cannot be printed are escaped, as in the
/// texts of errors.
fn printable(text: &str) -> CString {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    CString::new(shown).unwrap_or_default()
}

exports! {
    /// Opens a client and waits until the server is reached. url is
    /// "redis://[user:password@]host[:port][/database]" or "unix:///path"; NULL: the environment
    /// variable REDLATCH_URL. options may be NULL. Close the client and free it with
    /// redlatch_client_free().
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: url cannot be read, there is none in the environment, it does not
    ///   fit the server (database, Sentinel, Cluster), options contradict each other, or client is
    ///   NULL.
    /// - REDLATCH_UNAVAILABLE: the server cannot be reached, or does not answer within the option
    ///   connect_timeout.
    /// - REDLATCH_AUTH: the server refuses user, password or certificate, or its certificate is
    ///   refused.
    /// - REDLATCH_DENIED: its access rules forbid what connecting needs.
    /// - REDLATCH_SERVER: it answers with an error, for instance while it loads its data.
    #[must_use]
    fn redlatch_client_open(url: *const c_char, options: *const redlatch_options,
        client: *mut *mut redlatch_client) {
        let core = redlatch_options::client(options, url.optional()?)?;
        core.ready().wait()?;
        client.give(redlatch_client::of(core))
    }

    /// Makes a client that connects with its first call: does no I/O, so that a program can start before
    /// its server. Until the server was reached once, calls that need it fail with
    /// REDLATCH_UNAVAILABLE after one attempt to connect, and later ones try again.
    /// redlatch_client_ready_start() connects ahead. Arguments, closing and freeing are as for
    /// redlatch_client_open().
    ///
    ///     redlatch_client *client = NULL; // the server may start later
    ///     if (redlatch_client_new("redis://127.0.0.1:6379", NULL, &client) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: url cannot be read, there is none in the environment, options
    ///   contradict each other, or client is NULL.
    #[must_use]
    fn redlatch_client_new(url: *const c_char, options: *const redlatch_options,
        client: *mut *mut redlatch_client) {
        client.give(redlatch_client::of(redlatch_options::client(options, url.optional()?)?))
    }

    /// Connects, if the client has not yet, and returns at once: an event REDLATCH_EVENT_READY with this
    /// tag comes when the server was reached, or could not be. For a client of redlatch_client_new(),
    /// which connects with its first call in any case.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an operation with this tag is under way, or client is NULL.
    /// - STARTED
    fn redlatch_client_ready_start(client: *mut redlatch_client, tag: u64) {
        client.start(&client, tag, What::Answer(REDLATCH_EVENT_READY), || Ok(client.core.ready()))
    }

    /// Releases all that is held, ends every call that waits (REDLATCH_CLOSED) and stops. Holders are
    /// told that they lost their lock. Takes wait_ms at most, or as long as REDLATCH_CLOSE_LIMIT
    /// allows; 0 leaves everything to its lease. Fails with REDLATCH_UNAVAILABLE, naming the locks, if
    /// some could not be released; the client is closed all the same. Closing again is no error, and
    /// releases nothing more. After fork() the child may call it for the parent's client; it does
    /// nothing.
    ///
    ///     if (redlatch_client_close(client, REDLATCH_CLOSE_LIMIT) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error()); // these locks end with their leases
    ///     redlatch_client_free(client);
    ///
    /// Statuses:
    /// - REDLATCH_UNAVAILABLE: some locks could not be released in time; the text names them.
    /// - REDLATCH_INVALID_ARGUMENT: client is NULL, or wait_ms is negative or above 10 minutes.
    fn redlatch_client_close(client: *mut redlatch_client, wait_ms: i64) {
        client.close(client.limit(wait_ms)?)
    }

    /// Begins what redlatch_client_close() does and returns at once: an event REDLATCH_EVENT_CLOSE with
    /// this tag comes, after those of the calls that waited. Its result is REDLATCH_UNAVAILABLE, and the
    /// text names the locks, if some could not be released. The thread of the client may end a moment
    /// later.
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: wait_ms is negative or above 10 minutes, an operation with this tag
    ///   is under way, or client is NULL.
    /// - STARTED
    fn redlatch_client_close_start(client: *mut redlatch_client, wait_ms: i64, tag: u64) {
        let limit = client.limit(wait_ms)?;
        client.start(&client, tag, What::Close(limit), || Ok(client.core.close_within(limit)))
    }

    /// Frees a client; NULL is allowed. Does no I/O: what is still held ends with its lease. Locks of
    /// this client stay usable until they are freed too, but nothing calls the program's event function
    /// any more.
    free redlatch_client_free(client: *mut redlatch_client);

    /// Registers told, to be called with user for everything that happens, from a thread of the
    /// library; NULL stops it. The function may call anything here. When this returns, the function
    /// before is not running and will not be called again, unless it is that function that calls this.
    ///
    ///     static void told(void *file, int32_t level, const char *kind, const char *lock, const char *text)
    ///     {
    ///         if (level >= REDLATCH_LEVEL_WARN)
    ///             fprintf((FILE *)file, "%s %s: %s\n", kind, lock != NULL ? lock : "", text);
    ///     }
    ///
    ///     if (redlatch_client_on_event(client, told, stderr) != REDLATCH_OK)
    ///         fprintf(stderr, "%s\n", redlatch_last_error());
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: client is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    /// - REDLATCH_CLOSED: the client was closed before it was used.
    fn redlatch_client_on_event(client: *mut redlatch_client, told: redlatch_event_fn,
        user: *mut c_void) {
        client.refuse_fork()?;
        client.log(told, user)
    }

    /// A counter of the client by its name: "acquired", "lost", "renewed", "holds", ...; an unknown
    /// name is refused with the list of all.
    ///
    ///     uint64_t lost = 0;
    ///     if (redlatch_client_stats(client, "lost", &lost) == REDLATCH_OK)
    ///         printf("%llu locks were lost\n", (unsigned long long)lost);
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: there is no such counter, or an argument is NULL.
    /// - REDLATCH_FORKED: the client belongs to the parent process.
    fn redlatch_client_stats(client: *mut redlatch_client, name: *const c_char, count: *mut u64) {
        let name = name.text()?;
        count.needed()?;
        client.refuse_fork()?;
        let all = client.core.stats().entries();
        let Some((_, number)) = all.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
            let text = format!("there is no counter {name:?}; there are {}", names.join(", "));
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        count.put(*number);
        Ok(())
    }

    /// The names of all counters there are, one for each index from 0; NULL after the last. Static.
    fn redlatch_client_stats_name(index: usize) -> *const c_char = ptr::null() => {
        static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
        name_of(&NAMES, Stats::default().entries().into_iter().map(|(name, _)| name), index)
    };

    /// A descriptor that is readable while events wait for redlatch_client_next_event(): it is
    /// level-triggered. Under edge triggering (EPOLLET) take all events each time, until
    /// REDLATCH_EVENT_NONE: a new one makes no edge while others wait. Poll it; never read, write or
    /// close it. It is the same one every time and is valid until the client is freed.
    /// On Windows it is a socket for select() and WSAPoll(): cast it to SOCKET.
    ///
    ///     struct pollfd events = {-1, POLLIN, 0};
    ///     if (redlatch_client_event_fd(client, &events.fd) == REDLATCH_OK && poll(&events, 1, 100) == 1)
    ///         puts("redlatch_client_next_event() has something to tell");
    ///
    /// Statuses:
    /// - REDLATCH_INVALID_ARGUMENT: an argument is NULL.
    /// - STARTED
    fn redlatch_client_event_fd(client: *mut redlatch_client, fd: *mut c_int) {
        fd.needed()?;
        client.refuse_fork()?;
        fd.put(client.events().fd()?);
        Ok(())
    }
}
