//! A signal with the default disposition ends the process, and the locks are released before.
//!
//! The kernel would kill all threads at once, and leave the locks to their leases. So the handler
//! blocks the thread to which the signal came while the exit thread stops the others and closes the
//! clients. Then the signal is raised again for the handler that was there before. The kernel prefers
//! the main thread, and takes another one while that blocks the signal, as it does for the moment in
//! which it makes a thread.
//!
//! A signal that the program handles itself is left alone: its handler replaces ours. The handler of
//! another copy of redlatch in this process is not the program's: ours replaces it, and when our
//! clients are closed, the other copy closes its own.
//!
//! Deno has one handler for all signals that a part of it listens to. It replaces ours some time after
//! the start and calls it first; then a thread of Deno tells those that listen, or ends the process
//! if nobody does. So where a runtime shares its handlers, it says who listens (`hears`), and ours
//! acts if nobody does, also below such a handler.
//!
//! The kernel ignores a signal with the default disposition that comes to process 1 of a PID
//! namespace, so that process is ended without the signal, with the code that a shell gives for it.
//!
//! A stopped thread keeps the locks of the C library that it has. If it was stopped inside
//! `malloc`, the exit thread waits for that lock, and nothing is released. The process dies by
//! the signal when `exit_limit` is over, and the locks end with their leases.
#![allow(unsafe_code, reason = "signals are to be had from libc only")]

use std::cell::Cell;
use std::collections::HashSet;
use std::mem;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering, compiler_fence,
};
use std::time::{Duration, Instant};

use nix::libc::{self, c_int, c_void, pid_t, sigaction, siginfo_t};

use crate::sys::{process, without_signals};

/// The signals that usually end a process: Ctrl-C, a service manager, a closed terminal, nodemon's
/// restart.
const SIGNALS: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR2];

/// The handlers that ours replaced; null where ours is not installed.
static BEFORE: [AtomicPtr<sigaction>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];
/// Whether the runtime's handlers serve listeners and the default action alike.
static SHARED: AtomicBool = AtomicBool::new(false);
/// The signals that the program then listens to: a bit for each of `SIGNALS`.
static HEARD: AtomicU8 = AtomicU8::new(0);
/// The process in which the handlers are active. In a forked child they are not.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The signal by which the process is about to die; 0 before.
static DYING: AtomicI32 = AtomicI32::new(0);
/// The thread to which that signal came.
static LAST: AtomicI32 = AtomicI32::new(0);
/// The longest `exit_limit` that any client had, in milliseconds. The process does not outlive its
/// signal for longer.
static LIMIT: AtomicI32 = AtomicI32::new(0);
/// Event descriptors (`eventfd`): the exit thread has to begin, it has finished, a thread has been
/// stopped.
static BEGIN: AtomicI32 = AtomicI32::new(-1);
static DONE: AtomicI32 = AtomicI32::new(-1);
static STOPPED: AtomicI32 = AtomicI32::new(-1);

/// The threads that make calls into redlatch. A signal handler cannot use thread-local data, so it
/// finds them by their ids.
static THREADS: [Thread; 64] = [const { Thread::none() }; 64];

struct Thread {
    /// Its thread id; 0 if the place is free.
    id: AtomicI32,
    /// It is in a call into redlatch, and may hold a mutex that closing needs.
    busy: AtomicBool,
    /// The signal that has come to it during that call, negative if that is to stop it; 0 if none has.
    asked: AtomicI32,
}

thread_local! {
    static OWN: Cell<Option<&'static Thread>> = const { Cell::new(None) };
}

impl Thread {
    const fn none() -> Thread {
        Thread {
            id: AtomicI32::new(0),
            busy: AtomicBool::new(false),
            asked: AtomicI32::new(0),
        }
    }

    /// Whether the signal has to wait until a call of this thread has ended. If so, notes the
    /// signal there.
    fn defers(id: pid_t, signal: c_int) -> bool {
        let known = THREADS
            .iter()
            .find(|place| place.id.load(Ordering::Relaxed) == id);
        let busy = known.filter(|thread| thread.busy.load(Ordering::Relaxed));
        busy.map(|thread| thread.asked.store(signal, Ordering::Relaxed))
            .is_some()
    }
}

/// The handlers are to be active in this process.
pub(crate) fn begin() {
    PROCESS.store(process::id(), Ordering::Relaxed);
}

/// The handlers that were there before are active again.
pub(crate) fn end() {
    for place in 0..SIGNALS.len() {
        restore(place);
    }
}

/// The runtime shares its handlers (see the top), and the program listens to this signal, or does
/// not.
pub(crate) fn hears(signal: &str, heard: bool) {
    const NAMES: [&str; 4] = ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2"];
    SHARED.store(true, Ordering::Relaxed);
    if let Some(place) = NAMES.iter().position(|name| *name == signal) {
        match heard {
            true => HEARD.fetch_or(1 << place, Ordering::Relaxed),
            false => HEARD.fetch_and(!(1 << place), Ordering::Relaxed),
        };
    }
}

/// Whether the program listens to a signal whose handler is shared.
fn is_heard(signal: c_int) -> bool {
    let place = place_of(signal).unwrap_or_default();
    SHARED.load(Ordering::Relaxed) && HEARD.load(Ordering::Relaxed) & (1 << place) != 0
}

fn place_of(signal: c_int) -> Option<usize> {
    SIGNALS.iter().position(|known| *known == signal)
}

/// A client may take so many milliseconds to close.
pub(crate) fn allow(limit: c_int) {
    LIMIT.fetch_max(limit, Ordering::Relaxed);
}

/// Registers the calling thread. A thread that finds no free place is stopped anywhere, even in a
/// call; closing may then use up its time limit.
pub(crate) fn register_thread() {
    if OWN.get().is_none() {
        let own = this_thread();
        let is_own = |place: &&Thread| {
            place
                .id
                .compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        OWN.set(THREADS.iter().find(is_own));
    }
}

pub(crate) fn forget_thread() {
    if let Some(own) = OWN.take() {
        own.id.store(0, Ordering::Relaxed);
    }
}

/// The kernel's number of the calling thread. The function of the C library for it exists since
/// glibc 2.30, and a library that names it is not loaded by an older one.
fn this_thread() -> pid_t {
    nix::unistd::gettid().as_raw()
}

/// Has one of `SIGNALS` call `close_all` before it ends the process. To be called on the main
/// thread; elsewhere it does nothing. Signals that the program handles itself are left alone.
pub(crate) fn watch(close_all: fn()) {
    // SAFETY: a plain system call that always succeeds.
    let is_main = this_thread() == unsafe { libc::getpid() };
    if !is_main || !(BEGIN.load(Ordering::Relaxed) >= 0 || start_undertaker(close_all)) {
        return;
    }
    for (place, signal) in SIGNALS.into_iter().enumerate() {
        // SAFETY: number and pointers are valid, and the handler is async-signal-safe.
        unsafe {
            let mut present: sigaction = mem::zeroed();
            let known = libc::sigaction(signal, ptr::null(), &mut present) == 0;
            // Handlers of the program stay. One-shot handlers (`SA_RESETHAND`) are those of
            // Node.js, which restore the terminal and die: these are replaced.
            let is_default =
                present.sa_sigaction == libc::SIG_DFL || present.sa_flags & libc::SA_RESETHAND != 0;
            let is_other_copy = is_of_redlatch(&present) && !is_installed(signal);
            // One that has replaced ours calls it.
            let is_shared = SHARED.load(Ordering::Relaxed)
                && present.sa_sigaction != libc::SIG_IGN
                && BEFORE[place].load(Ordering::Relaxed).is_null();
            if !known || !(is_default || is_other_copy || is_shared) {
                continue;
            }
            BEFORE[place].store(Box::into_raw(Box::new(present)), Ordering::Release);
            let mut ours: sigaction = mem::zeroed();
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
            ours.sa_sigaction = handler as libc::sighandler_t;
            ours.sa_flags = FLAGS;
            ours.sa_mask = mask();
            libc::sigaction(signal, &ours, ptr::null_mut());
        }
    }
}

const FLAGS: c_int = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;

/// The signals that are blocked while the handler runs: all but two. By these two, a copy of redlatch
/// recognizes the handler of another one, of any version: nobody uses them, and nobody else leaves out
/// just these.
fn mask() -> libc::sigset_t {
    // SAFETY: the pointers are to a valid set.
    unsafe {
        let mut mask: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut mask);
        libc::sigdelset(&mut mask, 51);
        libc::sigdelset(&mut mask, 57);
        mask
    }
}

/// Whether a copy of redlatch has installed this handler.
fn is_of_redlatch(present: &sigaction) -> bool {
    let ours = mask();
    // The kernel never blocks these two.
    let mut signals = (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
    // SAFETY: the pointers are to valid sets.
    let is_same = |signal| unsafe {
        libc::sigismember(&present.sa_mask, signal) == libc::sigismember(&ours, signal)
    };
    present.sa_flags & FLAGS == FLAGS && signals.all(is_same)
}

/// Runs `call` without being stopped by the signal handlers, because the call may hold a mutex that
/// closing needs. A signal that comes meanwhile takes effect at its end.
pub(crate) fn uninterrupted<T>(call: impl FnOnce() -> T) -> T {
    let Some(own) = OWN.get().filter(|own| !own.busy.load(Ordering::Relaxed)) else {
        return call();
    };
    own.busy.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = call();
    compiler_fence(Ordering::SeqCst);
    own.busy.store(false, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    match own.asked.load(Ordering::Relaxed) {
        0 => result,
        ..0 => stop(),
        signal => {
            last_act(signal);
            result
        }
    }
}

/// The signal handler. It may only call functions that POSIX calls async-signal-safe, and touch
/// atomics.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid `info`; the rest are plain system calls.
    unsafe {
        let errno = *libc::__errno_location();
        let (own, thread) = (libc::getpid(), this_thread());
        let is_dying = DYING.load(Ordering::Relaxed) != 0;
        let is_stop = is_dying && (*info).si_code == libc::SI_TKILL && (*info).si_pid() == own;
        let is_child = own.cast_unsigned() != PROCESS.load(Ordering::Relaxed);
        let is_last = LAST.load(Ordering::Relaxed) == thread;
        // The first signal goes to one thread. The exit thread then stops the others by a second
        // one (`tgkill`). In any other case the signal has the effect that it has without us.
        if !is_stop && is_heard(signal) {
            if is_installed(signal) {
                pass_on(signal, info, context);
            }
        } else if !is_stop && !is_installed(signal) && !SHARED.load(Ordering::Relaxed) {
            // The program handles the signal. Its handler calls the one that it replaced, as those
            // of the crate `signal-hook-registry` do.
        } else if is_child || is_last || is_dying != is_stop {
            die(signal);
        } else if !Thread::defers(thread, if is_stop { -signal } else { signal }) {
            if is_stop { stop() } else { last_act(signal) }
        }
        *libc::__errno_location() = errno;
    }
}

/// Calls the handler that ours replaced.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let place = place_of(signal).unwrap_or_default();
    // SAFETY: what `BEFORE` points to is never freed, and holds what the kernel would have called.
    unsafe {
        let Some(before) = BEFORE[place].load(Ordering::Acquire).as_ref() else {
            return;
        };
        let handler = before.sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            return;
        }
        if before.sa_flags & libc::SA_SIGINFO == 0 {
            mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler)(signal);
        } else {
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                mem::transmute(handler);
            handler(signal, info, context);
        }
    }
}

/// On the thread to which the first signal came: waits until the clients are closed, then dies.
fn last_act(signal: c_int) {
    let own = LAST.compare_exchange(0, this_thread(), Ordering::SeqCst, Ordering::SeqCst);
    if own.is_err() {
        // Two threads got one at the same moment. This one is stopped like all others.
        return;
    }
    DYING.store(signal, Ordering::SeqCst);
    let mut done = libc::pollfd {
        fd: DONE.load(Ordering::Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    if tell(&BEGIN) {
        let limit =
            Duration::from_millis(LIMIT.load(Ordering::Relaxed).max(0).cast_unsigned().into());
        let end = Instant::now() + limit;
        let mut left = limit;
        // Another signal of the program interrupts it, where it waits at the end of a call.
        // SAFETY: the pointer is to one valid entry.
        while unsafe {
            let limit = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX);
            libc::poll(&mut done, 1, limit) == -1 && *libc::__errno_location() == libc::EINTR
        } {
            left = end.saturating_duration_since(Instant::now());
        }
    }
    die(signal);
}

/// On each other thread: waits until the process ends.
fn stop() -> ! {
    tell(&STOPPED);
    loop {
        // SAFETY: it only waits.
        unsafe { libc::pause() };
    }
}

/// Gives the signal the effect that it has without us. In a handler that happens when the handler
/// returns.
fn die(signal: c_int) {
    if let Some(place) = place_of(signal) {
        if SHARED.load(Ordering::Relaxed) {
            // SAFETY: numbers and pointers are valid, and what `BEFORE` points to is never freed.
            unsafe {
                let before = BEFORE[place].load(Ordering::Acquire).as_ref();
                let other_copy = before.filter(|before| is_of_redlatch(before));
                let mut action: sigaction = mem::zeroed();
                if let Some(other_copy) = other_copy {
                    action = *other_copy;
                } else {
                    // The runtime's, which may have replaced that of another copy, and calls it.
                    let mut info: siginfo_t = mem::zeroed();
                    info.si_signo = signal;
                    pass_on(signal, &mut info, ptr::null_mut());
                }
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        } else {
            restore(place);
        }
    }
    // SAFETY: plain system calls, with pointers to a valid set.
    unsafe {
        libc::raise(signal);
        if libc::getpid() == 1 {
            // It comes now, or never: to another copy, or to Node.js, which restores the terminal.
            let mut only: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut only);
            libc::sigaddset(&mut only, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
            libc::_exit(128 + signal);
        }
    }
}

/// Restores the handler that was there before ours, unless ours has been replaced meanwhile.
fn restore(place: usize) {
    // SAFETY: what `BEFORE` points to is never freed.
    let Some(before) = (unsafe { BEFORE[place].load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    if is_installed(SIGNALS[place]) {
        // SAFETY: number and pointers are valid.
        unsafe { libc::sigaction(SIGNALS[place], before, ptr::null_mut()) };
    }
}

/// Whether our handler is the one that the kernel calls for this signal.
fn is_installed(signal: c_int) -> bool {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
    // SAFETY: number and pointers are valid.
    unsafe {
        let mut present: sigaction = mem::zeroed();
        let known = libc::sigaction(signal, ptr::null(), &mut present) == 0;
        known && present.sa_sigaction == handler as libc::sighandler_t
    }
}

fn tell(event: &AtomicI32) -> bool {
    let one = 1u64;
    // SAFETY: the pointer is to eight valid bytes.
    unsafe { libc::write(event.load(Ordering::Relaxed), (&raw const one).cast(), 8) == 8 }
}

/// Waits for an event descriptor and resets it. Returns how often it was told; 0 when `limit` is
/// over.
fn heard(event: &AtomicI32, limit: Option<Duration>) -> u64 {
    let mut wait = libc::pollfd {
        fd: event.load(Ordering::Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = limit.map_or(-1, |limit| {
        c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
    });
    let mut count = 0u64;
    // SAFETY: the pointers are to one valid entry and to eight valid bytes.
    unsafe {
        if libc::poll(&mut wait, 1, limit) != 1
            || libc::read(wait.fd, (&raw mut count).cast(), 8) != 8
        {
            return 0;
        }
    }
    count
}

/// Starts the exit thread, which closes the clients when a signal has come. Returns false if the
/// system does not give what it needs: signals then have the effect that they have without us.
fn start_undertaker(close_all: fn()) -> bool {
    for event in [&BEGIN, &DONE, &STOPPED] {
        // SAFETY: a plain system call.
        event.store(
            unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) },
            Ordering::Relaxed,
        );
    }
    let life = move || {
        while heard(&BEGIN, None) == 0 {}
        if stop_all(DYING.load(Ordering::SeqCst)) {
            let _ = catch_unwind(close_all);
        }
        tell(&DONE);
    };
    let thread = std::thread::Builder::new()
        .name("redlatch-exit".to_owned())
        .stack_size(256 * 1024);
    let complete = [&BEGIN, &DONE, &STOPPED]
        .iter()
        .all(|event| event.load(Ordering::Relaxed) >= 0);
    let started = complete && matches!(without_signals(|| thread.spawn(life)), Ok(Ok(_)));
    if !started {
        BEGIN.store(-1, Ordering::Relaxed);
    }
    started
}

/// Stops every thread except the one that waits already, and threads that block the signal, as ours
/// do. The main thread may block it for a moment only, and is waited for. Returns false if a thread
/// cannot be stopped in time: then nothing may be released.
fn stop_all(signal: c_int) -> bool {
    let end = Instant::now()
        + Duration::from_millis(LIMIT.load(Ordering::Relaxed).max(0).cast_unsigned().into());
    let (mut asked, mut stopped) = (HashSet::new(), 0);
    loop {
        let Some(threads) = threads() else {
            return false;
        };
        asked.retain(|thread| threads.contains(thread));
        let missed = asked.len() as u64 > stopped;
        let fresh: Vec<pid_t> = threads
            .into_iter()
            .filter(|thread| !asked.contains(thread))
            .collect();
        let before = asked.len();
        // SAFETY: a plain system call.
        let send = |thread: &pid_t| unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), *thread, signal) == 0
        };
        asked.extend(
            fresh
                .into_iter()
                .filter(|thread| is_main(*thread) || takes(*thread, signal))
                .filter(send),
        );
        if asked.len() == before && !missed {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        // Look again soon: a thread that has ended meanwhile sends no event.
        stopped += heard(&STOPPED, Some(Duration::from_millis(5)));
    }
}

fn is_main(thread: pid_t) -> bool {
    thread == process::id().cast_signed()
}

/// The threads of the process without the one that waits for the end; `None` if the system does not
/// list them.
fn threads() -> Option<HashSet<pid_t>> {
    let last = LAST.load(Ordering::SeqCst);
    let all = std::fs::read_dir("/proc/self/task").ok()?;
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Some(numbers.filter(|thread| *thread != last).collect())
}

/// Whether the thread takes the signal, that is, does not block it.
fn takes(thread: pid_t, signal: c_int) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        return false;
    };
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    blocked & (1 << (signal - 1)) == 0
}
