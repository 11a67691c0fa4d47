//! The answer of a call: a status, and the text of this thread's last failure.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redlatch::embed::Uncancelled;
use redlatch::{Error, ErrorKind, LostReason, Result};

/// The result of a call: REDLATCH_OK or the number of an error.
pub type redlatch_status = i32;

/// Why a hold was lost: one of REDLATCH_LOST_EXPIRED and the like.
pub type redlatch_lost_reason = i32;

const OK: redlatch_status = 0;
const NO_REASON: redlatch_lost_reason = 0;

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last::new()) };
    /// Whether this thread is inside a call, and what panicked there.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The last failure of a thread.
struct Last {
    /// The text is in the newest. The older ones were too short for a text. They stay as they are,
    /// because the program may still have a pointer to one.
    buffers: Vec<Box<[Cell<u8>]>>,
    reason: redlatch_lost_reason,
}

impl Last {
    /// Most texts fit, so that most threads have one buffer.
    const FIRST: usize = 1024;

    const fn new() -> Last {
        Last {
            buffers: Vec::new(),
            reason: NO_REASON,
        }
    }

    /// A buffer for a text of this many bytes, its NUL among them. Each is at least twice as long
    /// as the one before, so that together they need little more than the longest text.
    fn buffer(&mut self, needed: usize) -> &[Cell<u8>] {
        if self.buffers.last().is_none_or(|last| last.len() < needed) {
            let size = needed.max(Last::FIRST).next_power_of_two();
            self.buffers.push(vec![Cell::new(0); size].into());
        }
        self.buffers.last().map_or(&[], |buffer| buffer)
    }

    fn keep(&mut self, text: &CStr, reason: redlatch_lost_reason) {
        let bytes = text.to_bytes_with_nul();
        let places = self.buffer(bytes.len()).iter();
        places.zip(bytes).for_each(|(place, byte)| place.set(*byte));
        self.reason = reason;
    }

    /// There is a buffer from now on, which the next failure writes into.
    fn text(&mut self) -> *const c_char {
        self.buffer(1).as_ptr().cast()
    }
}

/// Runs the body of an exported function that answers with a status.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> redlatch_status {
    run(body).err().unwrap_or(OK)
}

/// Runs the body of an exported function that answers with a value; `otherwise` stands for a
/// failure.
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    run(body).unwrap_or(otherwise)
}

fn run<T>(body: impl FnOnce() -> Result<T>) -> Result<T, redlatch_status> {
    let _uncancelled = Uncancelled::new();
    let outer = INSIDE.replace(true);
    let caught = catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(outer);
    let panicked = |_| Err(Error::new(ErrorKind::Internal, PANIC.take()));
    caught
        .unwrap_or_else(panicked)
        .map_err(|error| fail(&error))
}

/// Keeps a failure as this thread's last one.
pub(crate) fn fail(error: &Error) -> redlatch_status {
    let told = with_remedy(error);
    let told = told.as_ref().unwrap_or(error);
    // A text with a NUL (a lock's name may have one) is shown with its escape.
    let text = in_words_of_c(format!("{told:#}")).replace('\0', "\\0");
    let text = CString::new(text).unwrap_or_default();
    let reason = error
        .lost_reason()
        .map_or(NO_REASON, |reason| reason.number().into());
    // Fails only while the thread ends; then nobody asks for the text any more.
    let _ = LAST.try_with(|last| last.borrow_mut().keep(&text, reason));
    error.kind().number().into()
}

/// The text with the owner, which C has, in the place of what the core's other languages have.
pub(crate) fn in_words_of_c(text: String) -> String {
    const WORDS: [(&str, &str); 3] = [
        ("thread, task or key", "owner"),
        ("before that thread or task ends", "before its thread ends"),
        ("the hold (guard, grant)", "the number of the owner"),
    ];
    WORDS
        .iter()
        .fold(text, |text, (words, ours)| text.replace(words, ours))
}

/// The error with the function of C that is the remedy, where the core can only describe it.
fn with_remedy(error: &Error) -> Option<Error> {
    let reason = error
        .lost_reason()
        .filter(|_| error.operation() == Some("acquire"))?;
    Some(error.clone().reworded(format!(
        "{} Its owner still has the levels that it lost: give back each with redlatch_lock_release(), then acquire anew",
        reason.meaning()
    )))
}

/// Keeps panics inside calls from being printed; they become the text of `internal`. Panics of the
/// program (Rust that links the static library) go where they went before.
pub(crate) fn quiet_panics() {
    // Not a `Once`: a child that is forked meanwhile would wait for it for ever.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if INSIDE.get() {
            PANIC.replace(panic.to_string());
        } else {
            before(panic);
        }
    }));
}

/// One of the names of a table of the core, which are made for C once; NULL behind the last.
pub(crate) fn name_of(
    made: &'static OnceLock<Vec<CString>>,
    names: impl Iterator<Item = &'static str>,
    index: usize,
) -> *const c_char {
    let all = made.get_or_init(|| names.filter_map(|name| CString::new(name).ok()).collect());
    all.get(index).map_or(ptr::null(), |name| name.as_ptr())
}

/// The text of the calling thread's last failure, "" if none of its calls has failed. It never
/// contains a password. The next failure of this thread overwrites it, so copy what is needed for
/// longer. The pointer itself can be read until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow_mut().text())
        .unwrap_or(c"".as_ptr())
}

/// Why the hold was lost, if the calling thread's last failure was REDLATCH_LOST; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_last_lost_reason() -> redlatch_lost_reason {
    LAST.try_with(|last| last.borrow().reason)
        .unwrap_or(NO_REASON)
}

/// The name of a number that no table has.
const UNKNOWN: &str = "unknown\0";

fn kind_of(status: redlatch_status) -> Option<ErrorKind> {
    u8::try_from(status).ok().and_then(ErrorKind::from_number)
}

/// The name of a status, as in every language: "timeout", "not_owner", ... Static, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_status_name(status: redlatch_status) -> *const c_char {
    if status == OK {
        return c"ok".as_ptr();
    }
    let name = kind_of(status).map_or(UNKNOWN, ErrorKind::terminated_name);
    name.as_ptr().cast()
}

/// The name of a reason for a loss: "expired", "deleted", ... Static, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_lost_reason_name(reason: redlatch_lost_reason) -> *const c_char {
    let reason = u8::try_from(reason).ok().and_then(LostReason::from_number);
    let name = reason.map_or(UNKNOWN, LostReason::terminated_name);
    name.as_ptr().cast()
}

/// Whether the same call can succeed later without changing anything.
///
///     redlatch_status status = redlatch_lock_acquire(lock, REDLATCH_THREAD, 5000, REDLATCH_LOCK_LEASE, NULL);
///     if (status != REDLATCH_OK)
///         fprintf(stderr, "%s (%s)%s\n", redlatch_last_error(), redlatch_status_name(status),
///                 redlatch_status_retryable(status) ? ": it may go better later" : "");
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_status_retryable(status: redlatch_status) -> bool {
    kind_of(status).is_some_and(ErrorKind::retryable)
}

/// The version of the library that runs: "major.minor.patch". REDLATCH_VERSION is the one of the
/// header. Static.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The same as a number that can be compared, like REDLATCH_VERSION_NUMBER, which is the one of the
/// header: major * 10000 + minor * 100 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn redlatch_version_number() -> u32 {
    let parts = env!("CARGO_PKG_VERSION").split('.');
    parts.fold(0, |sum, part| sum * 100 + part.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text stays until the next failure of this thread.
        unsafe { CStr::from_ptr(redlatch_last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text_and_place() {
        quiet_panics();
        assert_eq!(status(|| panic!("deep inside")), 99);
        assert!(
            last().starts_with("internal") && last().contains("deep inside"),
            "{}",
            last()
        );
        assert!(last().contains("status.rs"), "{}", last());
        assert_eq!(value(7, || panic!("again")), 7);
        assert_eq!(status(|| Ok(())), OK);
    }

    #[test]
    fn names_are_those_of_the_core() {
        for kind in ErrorKind::ALL {
            // SAFETY: static texts.
            let name = unsafe { CStr::from_ptr(redlatch_status_name(kind.number().into())) };
            assert_eq!(name.to_str(), Ok(kind.name()));
            assert_eq!(
                redlatch_status_retryable(kind.number().into()),
                kind.retryable()
            );
        }
        for reason in LostReason::ALL {
            // SAFETY: static texts.
            let name = unsafe { CStr::from_ptr(redlatch_lost_reason_name(reason.number().into())) };
            assert_eq!(name.to_str(), Ok(reason.name()));
        }
        for unknown in [-1, 77, 256, i32::MAX] {
            // SAFETY: static texts.
            assert_eq!(
                unsafe { CStr::from_ptr(redlatch_status_name(unknown)) },
                c"unknown"
            );
            assert!(!redlatch_status_retryable(unknown));
        }
    }

    #[test]
    fn a_text_stays_readable_when_a_longer_one_comes() {
        let first = redlatch_last_error();
        fail(&Error::new(ErrorKind::Server, "short"));
        // SAFETY: the pointer can be read until the thread ends.
        let read = || unsafe { CStr::from_ptr(first) };
        assert_eq!(read(), c"server: short");
        let long = "x".repeat(5 * Last::FIRST);
        fail(&Error::new(ErrorKind::Server, long.clone()));
        assert_eq!(last(), format!("server: {long}"));
        assert_eq!(read(), c"server: short");
        fail(&Error::new(ErrorKind::Server, "y"));
        assert_eq!(last(), "server: y");
    }

    #[test]
    fn a_text_with_nul_is_shown_in_full() {
        fail(&Error::new(ErrorKind::Server, "a\0b"));
        assert_eq!(last(), "server: a\\0b");
    }
}
