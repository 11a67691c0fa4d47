//! Which process this is, without a system call.
//!
//! What was sent before a fork is the parent's, so everything that a caller does begins with this question. `getpid` is a
//! system call, a quarter of a microsecond on a virtual machine, four and more of them a pair. The kernel empties a page of
//! memory in every child of a fork if it is asked to (`MADV_WIPEONFORK`, Linux 4.14): as long as a number stands there, it
//! is the one of the process that wrote it.
#![allow(unsafe_code, reason = "such a page is to be had from the system only")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use nix::libc::{
    MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, c_void, madvise, mmap,
    munmap,
};

/// Where the number stands, 0 while nobody has asked in this process. Null before the first question.
static PLACE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// In place of a page, on a system that does not empty one: nothing is ever written here.
static NOWHERE: AtomicU32 = AtomicU32::new(0);

/// The number of this process.
pub(crate) fn id() -> u32 {
    let place = PLACE.load(Ordering::Acquire);
    // SAFETY: what is stored there is a page that is never unmapped, or a static.
    match unsafe { place.as_ref() }.map(|place| place.load(Ordering::Relaxed)) {
        Some(known) if known != 0 => known,
        _ => ask(),
    }
}

/// The first question in this process, or there is no page.
#[cold]
#[inline(never)]
fn ask() -> u32 {
    let own = std::process::id();
    let place = place();
    if !ptr::eq(place, &NOWHERE) {
        place.store(own, Ordering::Relaxed);
    }
    own
}

/// No lock is taken for it: a child may be forked while another thread is in here.
fn place() -> &'static AtomicU32 {
    let made = page().unwrap_or(ptr::from_ref(&NOWHERE).cast_mut());
    let kept = PLACE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    if kept.is_err() && !ptr::eq(made, &NOWHERE) {
        // SAFETY: nobody has seen it.
        unsafe { munmap(made.cast(), SIZE) };
    }
    // SAFETY: as in `id`; what is kept is not null.
    unsafe { &*kept.err().unwrap_or(made) }
}

/// The system makes a page of it.
const SIZE: usize = size_of::<AtomicU32>();

/// A page of zeros that is one of zeros again in a child, if the system has such.
fn page() -> Option<*mut AtomicU32> {
    // SAFETY: a mapping of its own, of zeros, at an address that the system chooses; it is big enough, and aligned.
    unsafe {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let page: *mut c_void = mmap(ptr::null_mut(), SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
        if page == MAP_FAILED {
            return None;
        }
        // An emulator that says yes to everything empties nothing.
        if madvise(page, SIZE, MADV_WIPEONFORK) != 0 || madvise(page, SIZE, -1) == 0 {
            munmap(page, SIZE);
            return None;
        }
        Some(page.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Whether `told` holds in a child. It must not allocate: another thread of the tests may be doing that.
    fn in_child(told: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child computes and leaves.
        match unsafe { fork() }.expect("a child") {
            // SAFETY: as above.
            ForkResult::Child => unsafe { nix::libc::_exit(i32::from(!told())) },
            ForkResult::Parent { child } => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
        }
    }

    fn is_right() -> bool {
        id() == std::process::id() && id() == std::process::id()
    }

    #[test]
    fn a_process_and_its_children_and_theirs_know_who_they_are() {
        assert!(is_right());
        assert!(in_child(|| is_right() && in_child(is_right)));
        assert!(is_right());
    }

    #[test]
    fn a_page_is_empty_in_a_child_that_did_not_write_there() {
        // SAFETY: it is not unmapped.
        let place = unsafe { &*page().expect("Linux 4.14") };
        place.store(7, Ordering::Relaxed);
        assert!(in_child(|| place.load(Ordering::Relaxed) == 0));
        assert_eq!(place.load(Ordering::Relaxed), 7);
    }
}
